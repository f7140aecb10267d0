/* moek/ep/combine_receive.h -- finalize_receive: kernels that wait for results of the experts and add them up to y. */
#ifndef MOEK_EP_COMBINE_RECEIVE_H
#define MOEK_EP_COMBINE_RECEIVE_H
#include "device.h"

typedef struct moek_ep_combine_receive_ {
    moek_ep_gpu_ g;
    int tokens, hidden, dtype;
    const int32_t *ids;
    const float *weights;             /* EXACT; NULL: ones                                                            */
    const uint16_t *addend;           /* or NULL                                                                      */
    uint16_t *y;
    int addend_stride, y_stride;      /* elements from a row to the next                                              */
    int straight;                     /* 1: the kernel before is combine_send.  0: it may be the caller's, and read x
                                         (if y is x) or write shared_y; then y must wait for that kernel              */
    const int32_t *back;              /* written by send (rows in the outgoing window), or NULL                       */
    int stays;                        /* low_latency: zeros are stored with L2 evict_last                             */
} moek_ep_combine_receive_;

/* The rows of partial that come back for a token, in the order of the sum.  Lane n of a warp gets addend n: its row
 * (mine), its rank (from), its weight.  rows: the number of addends. */
typedef struct moek_ep_sum_ { int mine, from, rows; float weight; } moek_ep_sum_;
MOEK_DEVICE moek_ep_sum_ moek_ep_gpu_returned_(const moek_ep_combine_receive_ *a, int token, const int32_t *back)
{
    const moek_ep_gpu_ *const g = &a->g;
    const int lane = threadIdx.x % 32, exact = g->combine == MOEK_EP_EXACT;
    const int32_t *const ids = a->ids + (size_t)token * g->slots;
    const int place = lane < g->slots ? moek_ep_gpu_place_(g, moek_load4_l2_(ids + lane)) : -1;
    moek_ep_sum_ s = { 0, 0, 0, 1.0f };
    int p;
    for (p = 0; p < (exact ? g->slots : g->ranks); p++) {
        const uint32_t there = __ballot_sync(0xffffffff, place >= 0 && (exact ? lane : place >> 16) == p);
        if (!there) continue;
        if (lane == s.rows) s.mine = !back && (exact || g->moved || g->ranks <= g->slots) ? p : __ffs(there) - 1;
        if (lane == s.rows) s.from = p;
        s.rows++;
    }
    if (exact) s.from = __shfl_sync(0xffffffff, place, s.mine) >> 16;
    if (exact && a->weights)
        s.weight = moek_float_((uint32_t)moek_load4_l2_(a->weights + (size_t)token * g->slots + s.mine));
    if (back && lane < s.rows)
        s.mine = (moek_load4_l2_(back + (size_t)token * g->slots + s.mine) - token) * g->layout.slots +
                 (exact ? s.mine : 0);
    else if (g->moved) s.mine = exact ? s.from * g->max_tokens * g->slots + s.mine : s.from * g->max_tokens;
    return s;
}

/* A warp waits for the marks of these rows.  Returns nonzero if the group has ended. */
MOEK_DEVICE int moek_ep_gpu_back_(const moek_ep_combine_receive_ *a, int token, moek_ep_sum_ s, uint64_t operation)
{
    const moek_ep_gpu_ *const g = &a->g;
    const size_t row = (size_t)token * g->layout.slots + s.mine;
    moek_ep_patience_ wait = { 0, 0 };
    int ended = 0;
    if ((int)threadIdx.x % 32 < s.rows && !g->moved) {
        const uint64_t *const mark = moek_ep_gpu_mark_(g, g->rank, row);
        while (!ended && (moek_load_relaxed_sys_(mark) - operation) >> 63) {
            moek_pause_(200);                          /* leaves memory bandwidth to others */
            ended = moek_ep_gpu_enough_(g, &wait);
        }
        if (ended) moek_ep_gpu_give_up_(g, MOEK_EP_COMBINE, s.from);
        moek_load_acquire_sys_(mark);
    }
    __syncwarp();
    return __any_sync(0xffffffff, ended);
}

MOEK_DEVICE void moek_ep_gpu_put_y_(const moek_ep_combine_receive_ *a, int token, int column, float sum[8], int dtype)
{
    float x[8];
    int j;
    if (a->addend) {
        moek_from_t8_(x, moek_load_words_(a->addend + (size_t)token * a->addend_stride + column), dtype);
        #pragma unroll
        for (j = 0; j < 8; j++) sum[j] += x[j];
    }
    moek_store_words_(a->y + (size_t)token * a->y_stride + column, moek_to_t8_(sum, dtype));
}

/* Adds up eight columns of a token.  few: polls the words of rows until they are not 0, then leaves 0 behind; f32: rows
 * are floats.  Both are compile-time constants.  lost: the word that marks a lost row, which is skipped, or 0.  Returns
 * nonzero if the group has ended. */
MOEK_DEVICE int moek_ep_gpu_combine_receive_(const moek_ep_combine_receive_ *a, int hidden, int token, int column,
                                             moek_ep_sum_ s, int few, int f32, int dtype, uint32_t lost)
{
    enum { LOADS = 4 };
    const moek_ep_gpu_ *const g = &a->g;
    const int words = f32 ? 2 : 1, loads = few ? LOADS : 2, rows = loads / words;    /* words of eight columns */
    const size_t bytes = (size_t)hidden * (f32 ? 4 : 2), first = (size_t)token * g->layout.slots;
    char *const from = g->base[g->rank] + moek_ep_partial_at_(&g->layout, g->handle, first, bytes) +
                       (f32 ? 4 : 2) * (size_t)column;
    moek_ep_patience_ wait = { 0, 0 };
    float sum[8] = {0}, x[8];
    int n0, d, j, ended = 0;
    for (n0 = 0; n0 < s.rows; n0 += rows) {
        moek_words_ v[LOADS];
        char *at[LOADS];
        #pragma unroll
        for (d = 0; d < rows; d++) {
            at[d] = from + __shfl_sync(0xffffffff, s.mine, (n0 + d) % 32) * bytes;
            if (n0 + d >= s.rows || column >= hidden) at[d] = NULL;
        }
        while (!ended) {
            uint32_t late = 0;
            #pragma unroll
            for (d = 0; d < loads; d++)
                if (at[d / words]) v[d] = few ? moek_load_words_sys_(at[d / words] + d % words * 16)
                                              : moek_load_words_(at[d / words] + d % words * 16);
            #pragma unroll
            for (d = 0; d < loads && few; d++)
                if (at[d / words] && !moek_ep_is_there_(v[d])) late |= 1u << d / words;
            if (!few || !(late = __reduce_or_sync(0xffffffff, late))) break;
            ended = __any_sync(0xffffffff, moek_ep_gpu_enough_(g, &wait));
            if (ended) s.from = __shfl_sync(0xffffffff, s.from, n0 + __ffs(late) - 1);
        }
        if (ended) break;
        #pragma unroll
        for (d = 0; d < loads; d++) {
            const float by = __shfl_sync(0xffffffff, s.weight, (n0 + d / words) % 32);
            if (!at[d / words]) continue;
            if (few) moek_store_words_last_(at[d / words] + d % words * 16, moek_zero_words_(), a->stays);
            if (few) v[d] = moek_not_words_(v[d]);
            if (lost && v[d].w[0] == lost) continue;
            if (!f32) moek_from_t8_(x, v[d], dtype);
            #pragma unroll
            for (j = 0; j < (f32 ? 4 : 8); j++) {
                if (f32) sum[d % 2 * 4 + j] += moek_float_(v[d].w[j]);
                else sum[j] += by * x[j];
            }
        }
    }
    if (ended) moek_ep_gpu_give_up_(g, MOEK_EP_COMBINE, s.from);
    if (few && !a->straight) moek_grid_wait_();
    if (column < hidden && !ended) moek_ep_gpu_put_y_(a, token, column, sum, dtype);
    return ended;
}

/* Waits for the flags of all ranks.  Returns nonzero if there is nothing to add up: the group has ended, or the
 * operation went on without rows. */
MOEK_DEVICE int moek_ep_gpu_nothing_(const moek_ep_combine_receive_ *a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    return moek_ep_gpu_arrive_(&a->g, MOEK_EP_COMBINE, counts) || counts[0] == MOEK_EP_FULL_;
}

/* Items are pairs (token, slice of columns), one a block.  The rows of the first item are looked up before the wait, to
 * hide the latency. */
MOEK_DEVICE void moek_ep_gpu_combine_receive_few_(const moek_ep_combine_receive_ *a, int hidden, int f32, int dtype,
                                                  uint32_t lost)
{
    enum { COLUMNS = 8 * MOEK_EP_THREADS_ };
    const int stretches = (hidden + COLUMNS - 1) / COLUMNS, items = a->tokens * stretches, me = threadIdx.x;
    moek_ep_sum_ s = { 0, 0, 0, 0.0f };
    int n, ended;
    if ((int)blockIdx.x < items) s = moek_ep_gpu_returned_(a, blockIdx.x / stretches, NULL);
    ended = moek_ep_gpu_nothing_(a);
    for (n = blockIdx.x; n < items && !ended; n += gridDim.x) {
        const int token = n / stretches;
        if (n != (int)blockIdx.x) s = moek_ep_gpu_returned_(a, token, NULL);
        ended = __syncthreads_or(moek_ep_gpu_combine_receive_(a, hidden, token, n % stretches * COLUMNS + 8 * me, s, 1,
                                                     f32, dtype, lost));
    }
    moek_grid_wait_();
}
/* Each warp adds up one token at a time. */
MOEK_DEVICE void moek_ep_gpu_combine_receive_many_(const moek_ep_combine_receive_ *a, int f32, int dtype)
{
    const moek_ep_gpu_ *const g = &a->g;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = gridDim.x * (MOEK_EP_BACK_ / 32);
    const int words = a->hidden / 8;
    const uint64_t operation = moek_ep_gpu_operation_(g, MOEK_EP_COMBINE);
    int t, w, ended = moek_ep_gpu_nothing_(a);
    for (t = warp * gridDim.x + blockIdx.x; t < a->tokens && !ended; t += warps) {
        const moek_ep_sum_ s = moek_ep_gpu_returned_(a, t, a->back);
        moek_ep_adds_ adds;
        moek_ep_ring_ ring;
        ended = moek_ep_gpu_back_(a, t, s, operation);
        if (ended) break;
        if (!a->straight) moek_grid_wait_();
        for (w = lane; f32 && w - lane < words; w += 32)
            moek_ep_gpu_combine_receive_(a, a->hidden, t, 8 * w, s, 0, 1, dtype, 0);
        if (f32) continue;
        adds.stride = 2 * (size_t)a->hidden;
        adds.base = g->base[g->rank] + moek_ep_partial_at_(&g->layout, g->handle, (size_t)t * g->layout.slots,
                                                           adds.stride);
        adds.at = s.mine; adds.rows = s.rows; adds.weight = s.weight;
        ring = moek_ep_gpu_ring_(adds, words);
        while ((w = ring.w) - lane < words) {
            float sum[8];
            moek_ep_gpu_add_next_(&ring, adds, words, sum, dtype);
            if (w < words) moek_ep_gpu_put_y_(a, t, 8 * w, sum, dtype);
        }
    }
    moek_grid_wait_();
}
static __global__ void __launch_bounds__(MOEK_EP_BACK_, 2)
moek_ep_combine_receive_many_k_(const moek_ep_combine_receive_ a)
{
    if (a.g.combine == MOEK_EP_REDUCED_F32) moek_ep_gpu_combine_receive_many_(&a, 1, a.dtype);
    else if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_combine_receive_many_(&a, 0, MOEK_DTYPE_FP16);
    else moek_ep_gpu_combine_receive_many_(&a, 0, MOEK_DTYPE_BF16);
}

MOEK_EP_FEW_K_ moek_ep_combine_receive_k_(const moek_ep_combine_receive_ a)
{
    const uint32_t lost = a.g.combine == MOEK_EP_EXACT ? moek_ep_lost_(a.dtype) : 0;
    if (a.g.combine == MOEK_EP_REDUCED_F32) moek_ep_gpu_combine_receive_few_(&a, a.hidden, 1, a.dtype, 0);
    else if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_combine_receive_few_(&a, a.hidden, 0, MOEK_DTYPE_FP16, lost);
    else moek_ep_gpu_combine_receive_few_(&a, a.hidden, 0, MOEK_DTYPE_BF16, lost);
}
#define MOEK_EP_COMBINE_RECEIVE_BAKED_(h) \
    MOEK_EP_FEW_K_ moek_ep_combine_receive_h##h##_k_(const moek_ep_combine_receive_ a) \
    { moek_ep_gpu_combine_receive_few_(&a, h, 0, MOEK_DTYPE_BF16, 0); }
MOEK_EACH_HIDDEN(MOEK_EP_COMBINE_RECEIVE_BAKED_)
#undef MOEK_EP_COMBINE_RECEIVE_BAKED_
#endif
