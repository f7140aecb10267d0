/* moek/ep/dispatch_send.h -- prepare_send: kernels that send rows to the ranks of their experts and count them. */
#ifndef MOEK_EP_DISPATCH_SEND_H
#define MOEK_EP_DISPATCH_SEND_H
#include "device.h"

typedef struct moek_ep_dispatch_send_ {
    moek_ep_gpu_ g;
    int tokens, each;                 /* each: alltoall, allgather: consecutive tokens of a warp                      */
    moek_ep_sizes_ size;
    int dtype, scales;                /* scales: MOEK_EP_FLOATS_, ...                                                 */
    const int32_t *ids;
    const float *weights;             /* NULL: ones                                                                   */
    const char *x;                    /* rows as they travel, or rows to be quantized                                 */
    const void *scale;
    uint64_t *to;                     /* alltoall: [tokens]: bit mask of the ranks that a token goes to               */
    int32_t *before;                  /* alltoall, others NULL: [warps][ranks]: rows for a rank from all tokens ahead
                                         of the warp's                                                                */
    int32_t *rows, *back;             /* alltoall where rows are moved, others NULL.  rows: [ranks], rows for each rank
                                         or MOEK_EP_FULL_.  back: [tokens][slots], row in the outgoing window         */
} moek_ep_dispatch_send_;

/* The slots of a token, one a lane.  place: rank << 16 | local expert, or -1.  to: bit mask of the token's ranks, the
 * same in all lanes. */
typedef struct moek_ep_slots_ { int32_t id, place; float weight; uint64_t to; } moek_ep_slots_;
MOEK_DEVICE moek_ep_slots_ moek_ep_gpu_slots_(const moek_ep_dispatch_send_ *a, int token)
{
    const moek_ep_gpu_ *const g = &a->g;
    const int lane = threadIdx.x % 32;
    const size_t slot = (size_t)token * g->slots + lane;
    moek_ep_slots_ s;
    uint64_t bit;
    s.id = lane < g->slots ? a->ids[slot] : -1;
    s.weight = lane < g->slots && a->weights ? a->weights[slot] : 1.0f;
    s.place = moek_ep_gpu_place_(g, s.id);
    bit = s.place < 0 ? 0 : (uint64_t)1 << (s.place >> 16);
    s.to = __reduce_or_sync(0xffffffff, (uint32_t)bit);
    if (g->ranks > 32) s.to |= (uint64_t)__reduce_or_sync(0xffffffff, (uint32_t)(bit >> 32)) << 32;
    return s;
}
/* A warp stores the ids and weights of a row at rank p. */
MOEK_DEVICE void moek_ep_gpu_put_slots_(const moek_ep_dispatch_send_ *a, int p, size_t row, moek_ep_slots_ s)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int lane = threadIdx.x % 32;
    if (lane >= a->g.slots) return;
    ((int32_t *)moek_ep_gpu_field_(&a->g, p, l->ids, row))[lane] =
        s.place >= 0 && s.place >> 16 == p ? s.place & 0xffff : -1;
    ((float *)moek_ep_gpu_field_(&a->g, p, l->weights, row))[lane] = s.weight;
}
/* Word j of a row's n scales, as it travels: a float, or four bytes, 0 behind the last scale. */
MOEK_DEVICE uint32_t moek_ep_pack_scales_(const char *scale, int j, int n, int how)
{
    const uint32_t *const floats = (const uint32_t *)scale;
    uint32_t packed = 0;
    int i;
    if (how == MOEK_EP_FLOATS_) return floats[j];
    #pragma unroll
    for (i = 0; i < 4; i++)
        if (4 * j + i < n)
            packed |= (how == MOEK_EP_BYTES_ ? (uint32_t)(uint8_t)scale[4 * j + i] : floats[4 * j + i] >> 23) << 8 * i;
    return packed;
}

/* Loads a slice of a row, unchanged.  `team` threads, of which this is number `me`, load MOEK_EP_DEPTH_ words of 16
 * bytes each: words w0 + me, w0 + me + team, ... */
enum { MOEK_EP_DEPTH_ = 4 };
MOEK_DEVICE void moek_ep_gpu_fetch_words_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, int w0,
                                          moek_words_ *v, int me, int team)
{
    const char *const from = a->x + (size_t)token * size.x_stride * 2;
    int d;
    #pragma unroll
    for (d = 0; d < MOEK_EP_DEPTH_; d++) {
        const int w = w0 + d * team + me;
        v[d] = w < size.words ? moek_load_words_(from + 16 * (size_t)w) : moek_zero_words_();
    }
}
/* Sends the row to row row[p] + plus of each rank p in the mask `to`, with its scales. */
MOEK_DEVICE void moek_ep_gpu_send_words_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, uint64_t to,
                                         const int *row, int plus, moek_words_ *v, int me, int team)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int words = moek_ep_scale_words_(size.groups, a->scales);
    const char *const scale = moek_ep_scales_at_(a->scale, token, size.groups, a->scales);
    int w0, d, i, j;
    for (w0 = 0; w0 < size.words; w0 += MOEK_EP_DEPTH_ * team) {
        if (w0) moek_ep_gpu_fetch_words_(a, size, token, w0, v, me, team);
        for (i = 0; i < a->g.ranks; i++) {
            const int p = moek_ep_gpu_turn_(&a->g, i);
            char *x;
            if (!(to >> p & 1)) continue;
            x = moek_ep_gpu_field_(&a->g, p, l->x, row[p] + plus);
            #pragma unroll
            for (d = 0; d < MOEK_EP_DEPTH_; d++) {
                const int w = w0 + d * team + me;
                if (w < size.words) moek_store_words_(x + 16 * (size_t)w, v[d]);
            }
        }
    }
    for (j = me; j < words; j += team) {
        const uint32_t w = moek_ep_pack_scales_(scale, j, size.groups, a->scales);
        for (i = 0; i < a->g.ranks; i++)
            if (to >> i & 1) ((uint32_t *)moek_ep_gpu_field_(&a->g, i, l->scale, row[i] + plus))[j] = w;
    }
}

/* The same for a row that is quantized on the way to e4m3 with a float for each 128 columns: a thread has 16 columns, 8
 * threads have the values of a scale.  (Its scales are FLOATS or EXPONENTS.) */
MOEK_DEVICE void moek_ep_gpu_fetch_columns_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, int w0,
                                            moek_words_ *v, int me, int team)
{
    const uint16_t *const from = (const uint16_t *)a->x + (size_t)token * size.x_stride;
    int d;
    #pragma unroll
    for (d = 0; d < MOEK_EP_DEPTH_; d++) {
        const int w = w0 + d / 2 * team + me;
        v[d] = w < size.words ? moek_load_words_(from + 16 * (size_t)w + 8 * (d % 2)) : moek_zero_words_();
    }
}
/* A warp sends its scales.  s: the scale of the lane's 16 columns.  turn: which 32 words of the row the warp has.
 * Scales are collected in *keep, one word a lane, until all lanes have one, so that one store takes up to 128 bytes.
 * few: scales are stored at once. */
MOEK_DEVICE void moek_ep_gpu_send_scales_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, uint64_t to,
                                          const int *row, int plus, float s, int turn, uint32_t *keep, int few)
{
    const int lane = threadIdx.x % 32, by = a->scales ? 0 : 2, mask = few ? 0 : (32 >> by) - 1;  /* words: 1 << by */
    const int words = moek_ep_scale_words_(size.groups, a->scales), at = ((turn & ~mask) << by) + lane;
    uint32_t w = __shfl_sync(0xffffffff, moek_bits_(s), lane % 4 * 8);
    int i;
    if (a->scales)                                     /* EXPONENTS */
        w = __reduce_or_sync(0xffffffff, 4 * turn + lane % 4 < size.groups ? w >> 23 << lane % 4 * 8 : 0);
    if (lane >> by == (turn & mask)) *keep = w;
    if (((turn & mask) != mask && (turn + 1) << by < words) || turn << by >= words) return;
    if (at >= words || lane > (mask << by | ((1 << by) - 1))) return;
    #pragma unroll 1
    for (i = 0; i < a->g.ranks; i++)
        if (to >> i & 1) ((uint32_t *)moek_ep_gpu_field_(&a->g, i, a->g.layout.scale, row[i] + plus))[at] = *keep;
}
MOEK_DEVICE void moek_ep_gpu_send_codes_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, uint64_t to,
                                         const int *row, int plus, moek_words_ *v, int me, int team, int dtype)
{
    enum { DEPTH = MOEK_EP_DEPTH_ / 2, LANES = 8 };
    const moek_ep_layout *const l = &a->g.layout;
    const int few = team != 32;
    uint32_t keep = 0;
    int w0, d, i;
    for (w0 = 0; w0 < size.words; w0 += DEPTH * team) {
        moek_words_ q[DEPTH];
        float s[DEPTH];
        if (w0) moek_ep_gpu_fetch_columns_(a, size, token, w0, v, me, team);
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            uint2 two[2];
            s[d] = moek_group_codes_(two, v + 2 * d, 2, LANES, a->scales, dtype);
            q[d].w[0] = two[0].x; q[d].w[1] = two[0].y; q[d].w[2] = two[1].x; q[d].w[3] = two[1].y;
        }
        for (i = 0; i < a->g.ranks; i++) {
            const int p = moek_ep_gpu_turn_(&a->g, i);
            if (!(to >> p & 1)) continue;
            #pragma unroll
            for (d = 0; d < DEPTH; d++) {
                const int w = w0 + d * team + me;
                if (w < size.words)
                    moek_store_words_(moek_ep_gpu_field_(&a->g, p, l->x, row[p] + plus) + 16 * (size_t)w, q[d]);
            }
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++)
            moek_ep_gpu_send_scales_(a, size, to, row, plus, s[d], (w0 + d * team + me) / 32, &keep, few);
    }
}

/* quantize: 0, or MOEK_DTYPE_* of x.  quantize and team are compile-time constants. */
MOEK_DEVICE void moek_ep_gpu_fetch_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, int quantize,
                                    moek_words_ *v, int me, int team)
{
    if (quantize) moek_ep_gpu_fetch_columns_(a, size, token, 0, v, me, team);
    else moek_ep_gpu_fetch_words_(a, size, token, 0, v, me, team);
}
MOEK_DEVICE void moek_ep_gpu_send_row_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int token, int quantize,
                                       uint64_t to, const int *row, int plus, moek_words_ *v, int me, int team)
{
    if (quantize) moek_ep_gpu_send_codes_(a, size, token, to, row, plus, v, me, team, quantize);
    else moek_ep_gpu_send_words_(a, size, token, to, row, plus, v, me, team);
}

/* ---- low_latency */

/* One block stores into each window how many rows each expert there gets from my tokens.  Returns nonzero if the group
 * has ended. */
MOEK_DEVICE int moek_ep_gpu_tell_experts_(const moek_ep_dispatch_send_ *a)
{
    enum { SOME = 1024 };
    __shared__ int rows[SOME];
    const moek_ep_gpu_ *const g = &a->g;
    const moek_ep_ask_ ask = moek_ep_gpu_ask_(g, MOEK_EP_DISPATCH);
    int e0, i;
    for (e0 = 0; e0 < g->physical_experts; e0 += SOME) {
        const int some = min((int)SOME, g->physical_experts - e0);
        for (i = threadIdx.x; i < some; i += MOEK_EP_THREADS_) rows[i] = 0;
        __syncthreads();
        for (i = threadIdx.x; i < a->tokens * g->slots; i += MOEK_EP_THREADS_) {
            const int e = a->ids[i] - e0;
            if ((uint32_t)e < (uint32_t)some) atomicAdd(&rows[e], 1);
        }
        if (__syncthreads_or(e0 ? 0 : moek_ep_gpu_grant_(g, MOEK_EP_DISPATCH, ask))) return 1;
        for (i = threadIdx.x; i < some; i += MOEK_EP_THREADS_) {
            const int place = moek_ep_gpu_place_(g, e0 + i), p = place >> 16;
            moek_ep_gpu_counts_(g, p, moek_ep_gpu_mine_(g, p))[place & 0xffff] = (uint32_t)rows[i];
        }
        __syncthreads();
    }
    return 0;
}

/* By a warp: the index of slot k's row among the rows that expert `id` gets from this rank. */
MOEK_DEVICE int moek_ep_gpu_order_(const moek_ep_dispatch_send_ *a, int token, int k, int id)
{
    const int end = token * a->g.slots + k;
    int i, before = 0;
    #pragma unroll 8
    for (i = threadIdx.x % 32; i < end; i += 32) before += a->ids[i] == id;
    return (int)__reduce_add_sync(0xffffffff, (uint32_t)before);
}

/* Block 0 stores the counts and publishes.  Each other block sends one token at a time, and marks the token's rows. */
MOEK_DEVICE void moek_ep_gpu_dispatch_send_few_(const moek_ep_dispatch_send_ *a, moek_ep_sizes_ size, int quantize)
{
    enum { WARPS = MOEK_EP_THREADS_ / 32 };
    __shared__ int all[MOEK_EP_MAX_RANKS], row[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const int me = threadIdx.x, lane = me % 32, warp = me / 32, blocks = (int)gridDim.x - 1;
    moek_words_ v[MOEK_EP_DEPTH_];
    moek_ep_news_ news;
    moek_ep_ask_ ask;
    uint64_t operation;
    int t, k, p;
    moek_grid_wait_();
    moek_grid_go_();
    if (!blockIdx.x) {
        news = moek_ep_gpu_news_(g, MOEK_EP_DISPATCH, MOEK_EP_COMBINE);
        if (me < g->ranks) all[me] = a->tokens;
        if (moek_ep_gpu_tell_experts_(a)) return;
        moek_ep_gpu_publish_(g, MOEK_EP_DISPATCH, MOEK_EP_COMBINE, news, 1, all);
        return;
    }
    if (me < g->ranks) row[me] = moek_ep_gpu_mine_(g, me) * g->max_tokens;
    ask = moek_ep_gpu_ask_(g, MOEK_EP_DISPATCH);
    operation = moek_ep_gpu_operation_(g, MOEK_EP_DISPATCH);
    for (t = (int)blockIdx.x - 1; t < a->tokens; t += blocks) {
        moek_ep_slots_ s;
        moek_ep_gpu_fetch_(a, size, t, quantize, v, me, MOEK_EP_THREADS_);
        s = moek_ep_gpu_slots_(a, t);
        if (t == (int)blockIdx.x - 1 && __syncthreads_or(moek_ep_gpu_grant_(g, MOEK_EP_DISPATCH, ask))) return;
        moek_ep_gpu_send_row_(a, size, t, quantize, s.to, row, t, v, me, MOEK_EP_THREADS_);
        for (p = warp; p < g->ranks; p += WARPS)
            moek_ep_gpu_put_slots_(a, p, (size_t)row[p] + t, s);
        for (k = warp; k < g->slots; k += WARPS) {
            const int place = __shfl_sync(0xffffffff, s.place, k), id = __shfl_sync(0xffffffff, s.id, k);
            int order;
            if (place < 0) continue;
            order = moek_ep_gpu_order_(a, t, k, id);
            p = place >> 16;
            if (lane == 0)
                ((int32_t *)moek_ep_gpu_field_(g, p, g->layout.order, (size_t)row[p] + t))[k] = order;
        }
        __syncthreads();
        if (me < g->ranks) {
            p = moek_ep_gpu_turn_(g, me);
            moek_ep_gpu_mark_row_(g, p, (size_t)row[p] + t, operation);
        }
    }
}

/* ---- alltoall, allgather */

enum { MOEK_EP_MANY_ = 1024 };                         /* threads of a block, whose warps work independently          */

/* Exclusive prefix sum of `mine` over the threads of a block; *all: the total.  part: [warps], shared; may be reused
 * after return. */
MOEK_DEVICE int moek_ep_gpu_before_(int mine, int *part, int *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int sum = mine, by, w, before = 0;
    #pragma unroll
    for (by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(0xffffffff, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    *all = 0;
    for (w = 0; w < warps; w++) {
        if (w < warp) before += part[w];
        *all += part[w];
    }
    __syncthreads();
    return before + sum - mine;
}

/* alltoall, one block: counts the rows for each rank (all, shared), and where the rows of each warp of the send kernel
 * begin (a->before). */
MOEK_DEVICE void moek_ep_gpu_number_(const moek_ep_dispatch_send_ *a, int *all)
{
    __shared__ int part[MOEK_EP_MANY_ / 32];
    const moek_ep_gpu_ *const g = &a->g;
    const int me = threadIdx.x, first = me * a->each, end = min(first + a->each, a->tokens);
    int t, k, p;
    for (t = me; t < a->tokens; t += MOEK_EP_MANY_) {
        uint64_t to = 0;
        #pragma unroll 8
        for (k = 0; k < g->slots; k++) {
            const int place = moek_ep_gpu_place_(g, a->ids[(size_t)t * g->slots + k]);
            if (place >= 0) to |= (uint64_t)1 << (place >> 16);
        }
        a->to[t] = to;
    }
    __syncthreads();
    for (p = 0; p < g->ranks; p++) {                   /* a thread here counts for a warp of the send kernel */
        int rows = 0, before, sum;
        for (t = first; t < end; t++) rows += (int)(a->to[t] >> p & 1);
        before = moek_ep_gpu_before_(rows, part, &sum);
        if (first < end) a->before[me * g->ranks + p] = before;
        if (me == 0) all[p] = sum;
    }
}

/* alltoall: stores the counts into all windows, and publishes. */
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1) moek_ep_counts_k_(const moek_ep_dispatch_send_ a)
{
    __shared__ int all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int me = threadIdx.x;
    moek_ep_news_ news;
    moek_ep_ask_ ask;
    int i;
    moek_grid_wait_();
    moek_grid_go_();
    news = moek_ep_gpu_news_(g, MOEK_EP_COUNTS, MOEK_EP_COMBINE);
    ask = moek_ep_gpu_ask_(g, MOEK_EP_COUNTS);
    moek_ep_gpu_number_(&a, all);
    if (__syncthreads_or(moek_ep_gpu_grant_(g, MOEK_EP_COUNTS, ask))) return;
    for (i = me; i < g->ranks * g->ranks; i += MOEK_EP_MANY_)
        moek_ep_gpu_counts_(g, i / g->ranks, g->rank)[i % g->ranks] = (uint32_t)all[i % g->ranks];
    moek_ep_gpu_publish_(g, MOEK_EP_COUNTS, MOEK_EP_COMBINE, news, 1, all);
}

/* alltoall where rows are moved: stores the counts into the outgoing window.  g->max_tokens is the share of a rank, the
 * most rows that it can be sent. */
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1) moek_ep_shares_k_(const moek_ep_dispatch_send_ a)
{
    __shared__ int all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int me = threadIdx.x;
    int i, full;
    moek_grid_wait_();
    moek_grid_go_();
    moek_ep_gpu_number_(&a, all);
    __syncthreads();
    for (i = me; i < g->ranks * g->ranks; i += MOEK_EP_MANY_) {
        const int p = i / g->ranks;
        moek_ep_gpu_counts_(g, p, moek_ep_gpu_mine_(g, p))[i % g->ranks] = (uint32_t)all[i % g->ranks];
    }
    full = __syncthreads_or(me < g->ranks && all[me] > g->max_tokens);
    if (me < g->ranks) a.rows[me] = full ? MOEK_EP_FULL_ : all[me];
}

/* alltoall: waits for the counts of all ranks.  Written, both [ranks] and shared: row, where my rows begin at each
 * rank; all, how many they are.  Returns 0; MOEK_EP_FULL_ if rows do not fit; or 1 if the group has ended. */
MOEK_DEVICE int moek_ep_gpu_room_(const moek_ep_gpu_ *g, int *row, int *all)
{
    const int p = threadIdx.x;
    int rows = 0, s;
    if (moek_ep_gpu_arrive_(g, MOEK_EP_COUNTS, all)) return 1;
    for (s = 0; s < g->ranks && p < g->ranks; s++) {
        const int here = (int)moek_ep_gpu_counts_(g, g->rank, s)[p];
        if (s == g->rank) { row[p] = rows; all[p] = here; }
        rows += here;
    }
    if (!__syncthreads_or(rows > g->packed)) return 0;
    if (p == 0 && blockIdx.x == 0) moek_ep_gpu_full_(g);
    __syncthreads();
    if (p < g->ranks) all[p] = MOEK_EP_FULL_;
    return MOEK_EP_FULL_;
}

/* Each warp sends a->each consecutive tokens, one at a time.  The last block to finish publishes. */
MOEK_DEVICE void moek_ep_gpu_dispatch_send_many_(const moek_ep_dispatch_send_ *a, int quantize)
{
    enum { WARPS = MOEK_EP_MANY_ / 32 };
    __shared__ int row[WARPS][MOEK_EP_MAX_RANKS], begin[MOEK_EP_MAX_RANKS], all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const int me = threadIdx.x, lane = me % 32, warp = me / 32, number = warp * gridDim.x + blockIdx.x;
    const int before = g->packed ? MOEK_EP_COUNTS : MOEK_EP_COMBINE;
    /* x and scales that go to every rank are stored once, in my own window: the move sends them from there. */
    const uint64_t same = g->every ? (uint64_t)1 << g->rank : ~(uint64_t)0;
    int t = number * a->each, end = min(t + a->each, a->tokens), p, room = 0;
    moek_words_ v[MOEK_EP_DEPTH_];
    moek_grid_wait_();
    moek_grid_go_();
    if (!g->packed && me < g->ranks) {
        begin[me] = moek_ep_gpu_mine_(g, me) * g->max_tokens;
        all[me] = a->rows ? a->rows[me] : a->tokens;
    }
    if (__syncthreads_or(moek_ep_gpu_grant_(g, MOEK_EP_DISPATCH, moek_ep_gpu_ask_(g, MOEK_EP_DISPATCH)))) return;
    if (g->packed) room = moek_ep_gpu_room_(g, begin, all);
    if (room > 0) return;
    if (room || all[0] == MOEK_EP_FULL_) end = t;
    for (p = lane; p < g->ranks && t < end; p += 32)
        row[warp][p] = begin[p] + (a->before ? a->before[number * g->ranks + p] : t);
    __syncwarp();
    for (; t < end; t++) {
        moek_ep_slots_ s;
        moek_ep_gpu_fetch_(a, a->size, t, quantize, v, lane, 32);
        s = moek_ep_gpu_slots_(a, t);
        if (g->gather) s.to = ~(uint64_t)0 >> (64 - g->ranks);
        for (p = 0; p < g->ranks; p++) {
            if (!(s.to >> p & 1)) continue;
            moek_ep_gpu_put_slots_(a, p, row[warp][p], s);
            if (lane == 0) *(int32_t *)moek_ep_gpu_field_(g, p, g->layout.token, row[warp][p]) = t;
        }
        moek_ep_gpu_send_row_(a, a->size, t, quantize, s.to & same, row[warp], 0, v, lane, 32);
        if (a->back && s.place >= 0) a->back[(size_t)t * g->slots + lane] = row[warp][s.place >> 16];
        __syncwarp();
        for (p = lane; p < g->ranks; p += 32) row[warp][p] += (int)(s.to >> p & 1);
        __syncwarp();
    }
    moek_ep_gpu_publish_(g, MOEK_EP_DISPATCH, before, moek_ep_gpu_news_(g, MOEK_EP_DISPATCH, before), gridDim.x, all);
}

static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1)
moek_ep_dispatch_send_many_words_k_(const moek_ep_dispatch_send_ a) { moek_ep_gpu_dispatch_send_many_(&a, 0); }
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1)
moek_ep_dispatch_send_many_codes_k_(const moek_ep_dispatch_send_ a)
{
    if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_dispatch_send_many_(&a, MOEK_DTYPE_FP16);
    else moek_ep_gpu_dispatch_send_many_(&a, MOEK_DTYPE_BF16);
}

/* ---- kernels for few tokens */

MOEK_EP_FEW_K_ moek_ep_dispatch_send_words_k_(const moek_ep_dispatch_send_ a)
{
    moek_ep_gpu_dispatch_send_few_(&a, a.size, 0);
}
MOEK_EP_FEW_K_ moek_ep_dispatch_send_codes_k_(const moek_ep_dispatch_send_ a)
{
    if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_dispatch_send_few_(&a, a.size, MOEK_DTYPE_FP16);
    else moek_ep_gpu_dispatch_send_few_(&a, a.size, MOEK_DTYPE_BF16);
}

/* Baked: for each supported hidden size, with bf16 (ep/device.h). */
#define MOEK_EP_DISPATCH_SEND_BAKED_(h) \
    MOEK_EP_FEW_K_ moek_ep_dispatch_send_codes_h##h##_k_(const moek_ep_dispatch_send_ a) \
    { moek_ep_gpu_dispatch_send_few_(&a, moek_ep_sizes_of_codes_(h, a.size.x_stride), MOEK_DTYPE_BF16); }
MOEK_EACH_HIDDEN(MOEK_EP_DISPATCH_SEND_BAKED_)
#undef MOEK_EP_DISPATCH_SEND_BAKED_
#endif
