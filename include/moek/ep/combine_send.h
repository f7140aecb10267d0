/* moek/ep/combine_send.h -- finalize_send: kernels that send results of the experts back to the ranks of the tokens. */
#ifndef MOEK_EP_COMBINE_SEND_H
#define MOEK_EP_COMBINE_SEND_H
#include "device.h"

typedef struct moek_ep_combine_send_ {
    moek_ep_gpu_ g;
    int hidden, dtype;
    int reduced;                      /* the experts weighted and added up: one row of out for each received row      */
    const int32_t *counts, *offsets;  /* rows of each rank, and where they begin; offsets NULL: rank * max_tokens     */
    const int32_t *slot_row;          /* low_latency; others NULL: slot k of received row r has row r * slots + k     */
    const int32_t *ids, *token;       /* alltoall, allgather.  token NULL: token t is row t of its rank               */
    const float *weights;
    const uint16_t *out;
} moek_ep_combine_send_;

/* A received row, as a warp knows it.  Lane k has the row of `out` (at; < 0: none) and the weight of slot k.  mine: bit
 * mask of the slots that have an expert here. */
typedef struct moek_ep_given_row_ { int at, token; float weight; uint32_t mine; } moek_ep_given_row_;
MOEK_DEVICE moek_ep_given_row_ moek_ep_gpu_given_(const moek_ep_combine_send_ *a, size_t row)
{
    const int lane = threadIdx.x % 32, slots = a->g.slots, is = lane < slots;
    const size_t slot = row * slots + lane;
    moek_ep_given_row_ r;
    int id;
    r.weight = a->reduced ? 1.0f : is ? a->weights[slot] : 0;
    r.token = a->token ? a->token[row] : (int)(row % a->g.max_tokens);
    r.at = a->slot_row && is ? a->slot_row[slot] : MOEK_EP_ABSENT_;
    id = a->slot_row ? (r.at == MOEK_EP_ABSENT_ ? -1 : 0) : is ? a->ids[slot] : -1;
    if (!a->slot_row) r.at = a->reduced ? (lane ? -1 : (int)row) : id < 0 ? -1 : (int)slot;
    r.mine = __ballot_sync(0xffffffff, id >= 0);
    return r;
}

MOEK_DEVICE void moek_ep_gpu_put_words_(char *to, moek_words_ v, int few)
{
    if (few) moek_store_words_sys_(to, moek_ep_sent_(v));
    else moek_store_words_(to, v);
}
/* Stores eight columns of a row of partial, as T or f32. */
MOEK_DEVICE void moek_ep_gpu_put8_(char *row, int column, const float sum[8], int f32, int dtype, int few)
{
    moek_words_ v;
    int h, i;
    if (!f32) {
        v = moek_to_t8_(sum, dtype);
        moek_ep_gpu_put_words_(row + 2 * (size_t)column, v, few);
        return;
    }
    #pragma unroll
    for (h = 0; h < 2; h++) {
        #pragma unroll
        for (i = 0; i < 4; i++) v.w[i] = moek_bits_(sum[4 * h + i]);
        moek_ep_gpu_put_words_(row + 4 * (size_t)column + 16 * h, v, few);
    }
}

/* The row of partial at rank `to` for a result; EXACT: the row of slot 0. */
MOEK_DEVICE size_t moek_ep_gpu_goes_to_(const moek_ep_combine_send_ *a, int to, moek_ep_given_row_ r)
{
    const moek_ep_gpu_ *const g = &a->g;
    const size_t token = (size_t)r.token + (g->moved ? (size_t)to * g->max_tokens : 0);
    const int first = g->combine == MOEK_EP_EXACT || g->moved;
    return token * g->layout.slots + (first ? 0 : g->ranks <= g->slots ? g->rank : __ffs(r.mine) - 1);
}
/* 16 bytes of a lost row (moek_ep_lost_). */
MOEK_DEVICE moek_words_ moek_ep_lost_words_(int dtype)
{
    const uint32_t w = moek_ep_lost_(dtype);
    moek_words_ v;
    v.w[0] = v.w[1] = v.w[2] = v.w[3] = w;
    return v;
}
/* EXACT: a warp sends the rows of all slots unchanged.  A lane sends 16-byte words w0, w0 + step, ... of each row. */
MOEK_DEVICE void moek_ep_gpu_give_slots_(const moek_ep_combine_send_ *a, int hidden, char *put, moek_ep_given_row_ r,
                                         int w0, int step, int few)
{
    const size_t bytes = 2 * (size_t)hidden;
    int k, w;
    for (k = 0; k < a->g.slots; k++) {
        const int from = __shfl_sync(0xffffffff, r.at, k);
        if (!(r.mine >> k & 1)) continue;
        #pragma unroll 4
        for (w = w0; w < hidden / 8; w += step) {
            const moek_words_ v = from < 0 ? (few ? moek_ep_lost_words_(a->dtype) : moek_zero_words_())
                                : moek_load_words_(a->out + (size_t)from * hidden + 8 * (size_t)w);
            moek_ep_gpu_put_words_(put + k * bytes + 16 * (size_t)w, v, few);
        }
    }
}
/* REDUCED, REDUCED_F32: the same for the weighted sum of these rows. */
MOEK_DEVICE void moek_ep_gpu_give_sum_(const moek_ep_combine_send_ *a, int hidden, char *put, moek_ep_given_row_ r,
                                       int w0, int step, int few, int f32, int dtype)
{
    const int lane = threadIdx.x % 32, words = hidden / 8;
    uint32_t left = __ballot_sync(0xffffffff, r.at >= 0);
    moek_ep_adds_ adds;
    moek_ep_ring_ ring;
    int w;
    adds.base = (const char *)a->out; adds.stride = 2 * (size_t)hidden;
    adds.at = adds.rows = 0; adds.weight = 0;
    for (; left; left &= left - 1) {
        const int k = __ffs(left) - 1, at = __shfl_sync(0xffffffff, r.at, k);
        const float weight = __shfl_sync(0xffffffff, r.weight, k);
        if (lane == adds.rows) { adds.at = at; adds.weight = weight; }
        adds.rows++;
    }
    if (few) {
        for (w = w0; w - lane < words; w += step) {
            float sum[8] = {0};
            moek_ep_gpu_add_words_(adds, w, words, sum, dtype);
            if (w < words) moek_ep_gpu_put8_(put, 8 * w, sum, f32, dtype, 1);
        }
        return;
    }
    ring = moek_ep_gpu_ring_(adds, words);
    while ((w = ring.w) - lane < words) {
        float sum[8];
        moek_ep_gpu_add_next_(&ring, adds, words, sum, dtype);
        if (w < words) moek_ep_gpu_put8_(put, 8 * w, sum, f32, dtype, 0);
    }
}

/* The rank of item n, which is row n / ranks of that rank: round-robin over peers, rotated every `stride` items, so
 * that all links stay busy.  (A team takes every stride-th item.  Without the rotation its rank would never change
 * where stride is a multiple of the number of ranks.) */
MOEK_DEVICE int moek_ep_gpu_next_(const moek_ep_gpu_ *g, int n, int stride)
{
    const int i = n / g->ranks, rows = max(stride / g->ranks, 1);
    return moek_ep_gpu_turn_(g, (n + i / rows) % g->ranks);
}

/* Items are the received rows, ranks in turn.  few: an item is a slice of a row, handled by a block.  Otherwise it is a
 * row, handled and marked by a warp.  Block 0 only publishes.  few, combine and dtype are compile-time constants. */
MOEK_DEVICE void moek_ep_gpu_combine_send_(const moek_ep_combine_send_ *a, int hidden, int few, int combine, int dtype)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS], offsets[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const int me = threadIdx.x, lane = me % 32, words = hidden / 8;
    const int exact = combine == MOEK_EP_EXACT, f32 = combine == MOEK_EP_REDUCED_F32;
    const int stretches = few ? (words + MOEK_EP_THREADS_ - 1) / MOEK_EP_THREADS_ : 1;
    const int teams = few ? 1 : (int)blockDim.x / 32, stride = ((int)gridDim.x - 1) * teams;
    const int first = ((int)blockIdx.x - 1) * teams + (few ? 0 : me / 32), step = few ? words : 32;
    const size_t bytes = (size_t)hidden * (f32 ? 4 : 2);
    moek_ep_given_row_ r = { 0, 0, 0.0f, 0 };
    int n, p, most = 0;
    uint64_t operation;
    const moek_ep_ask_ ask = moek_ep_gpu_ask_(g, MOEK_EP_COMBINE);
    moek_grid_wait_();
    moek_grid_go_();
    operation = moek_ep_gpu_operation_(g, MOEK_EP_COMBINE);
    if (me < g->ranks) counts[me] = a->counts[me];
    if (me < g->ranks) offsets[me] = a->offsets ? a->offsets[me] : me * g->max_tokens;
    if (few && first >= 0 && first / stretches / g->ranks < g->max_tokens)     /* early: there may be no such row */
        r = moek_ep_gpu_given_(a, (size_t)moek_ep_gpu_turn_(g, first / stretches % g->ranks) * g->max_tokens +
                                  first / stretches / g->ranks);
    if (__syncthreads_or(moek_ep_gpu_grant_(g, MOEK_EP_COMBINE, ask))) return;
    for (p = 0; p < g->ranks; p++) most = max(most, counts[p]);
    most *= g->ranks * stretches;
    for (n = blockIdx.x ? first : most; n < most; n += stride) {
        const int i = n / stretches / g->ranks, w = few ? n % stretches * MOEK_EP_THREADS_ + me : lane;
        const int to = few ? moek_ep_gpu_turn_(g, n / stretches % g->ranks) : moek_ep_gpu_next_(g, n, stride);
        size_t row;
        char *put;
        if (i >= counts[to]) continue;
        if (n != first || !few) r = moek_ep_gpu_given_(a, (size_t)offsets[to] + i);
        if (!r.mine) continue;
        row = moek_ep_gpu_goes_to_(a, to, r);
        put = g->base[to] + moek_ep_partial_at_(&g->layout, g->handle, row, bytes);
        if (exact) moek_ep_gpu_give_slots_(a, hidden, put, r, w, step, few);
        else moek_ep_gpu_give_sum_(a, hidden, put, r, w, step, few, f32, dtype);
        if (few) continue;
        __syncwarp();
        if (exact ? r.mine >> lane & 1 : lane == 0) moek_ep_gpu_mark_row_(g, to, exact ? row + lane : row, operation);
    }
    /* Block 0 may publish before rows are stored, because words and marks show what has arrived.  What is moved has
     * neither and arrives as a whole, so there the last block to finish publishes. */
    if (g->moved || !blockIdx.x)
        moek_ep_gpu_publish_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH,
                             moek_ep_gpu_news_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH), g->moved ? gridDim.x : 1, counts);
}
MOEK_DEVICE void moek_ep_gpu_combine_send_any_(const moek_ep_combine_send_ *a, int few)
{
    const int h = a->hidden, f32 = a->g.combine == MOEK_EP_REDUCED_F32;
    if (a->g.combine == MOEK_EP_EXACT) moek_ep_gpu_combine_send_(a, h, few, MOEK_EP_EXACT, 0);
    else if (f32) moek_ep_gpu_combine_send_(a, h, few, MOEK_EP_REDUCED_F32, a->dtype);
    else if (a->dtype == MOEK_DTYPE_FP16) moek_ep_gpu_combine_send_(a, h, few, MOEK_EP_REDUCED, MOEK_DTYPE_FP16);
    else moek_ep_gpu_combine_send_(a, h, few, MOEK_EP_REDUCED, MOEK_DTYPE_BF16);
}
static __global__ void __launch_bounds__(MOEK_EP_BACK_, 2)
moek_ep_combine_send_many_k_(const moek_ep_combine_send_ a) { moek_ep_gpu_combine_send_any_(&a, 0); }

MOEK_EP_FEW_K_ moek_ep_combine_send_k_(const moek_ep_combine_send_ a) { moek_ep_gpu_combine_send_any_(&a, 1); }
#define MOEK_EP_COMBINE_SEND_BAKED_(h) \
    MOEK_EP_FEW_K_ moek_ep_combine_send_h##h##_k_(const moek_ep_combine_send_ a) \
    { moek_ep_gpu_combine_send_(&a, h, 1, MOEK_EP_REDUCED, MOEK_DTYPE_BF16); }
MOEK_EACH_HIDDEN(MOEK_EP_COMBINE_SEND_BAKED_)
#undef MOEK_EP_COMBINE_SEND_BAKED_
#endif
