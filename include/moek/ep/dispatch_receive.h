/* moek/ep/dispatch_receive.h -- prepare_receive: kernels that wait for rows and make of them what the experts read. */
#ifndef MOEK_EP_DISPATCH_RECEIVE_H
#define MOEK_EP_DISPATCH_RECEIVE_H
#include "device.h"

typedef struct moek_ep_dispatch_receive_ {
    moek_ep_gpu_ g;
    int experts, rows_per_expert, scales;              /* scales: MOEK_EP_FLOATS_, ...                                */
    moek_ep_sizes_ size;
    int go;                           /* 1: the next kernel may start early, because no kernel that another rank or
                                         operation waits for needs the SMs that it takes                              */
    int stays;                        /* low_latency: copies are stored with L2 evict_last                            */
    int32_t *counts, *offsets, *expert_tokens, *slot_row, *ids, *token;  /* written, as moek_ep_work_ says            */
    float *weights;
    char *x;
    void *scale;                      /* alltoall, allgather: NULL where the experts read scales in the window        */
    int shares;                       /* alltoall where rows are moved: the rows of a rank may not have fit           */
} moek_ep_dispatch_receive_;

/* Unpacks word j of the scales of a row (w, as it travels) to row `row` of a->scale. */
MOEK_DEVICE void moek_ep_gpu_unpack_(const moek_ep_dispatch_receive_ *a, moek_ep_sizes_ size, size_t row, int j,
                                     uint32_t w)
{
    uint8_t *const bytes = (uint8_t *)(size_t)moek_ep_scales_at_(a->scale, row, size.groups, a->scales);
    uint32_t *const words = (uint32_t *)bytes;
    int i;
    if (a->scales == MOEK_EP_FLOATS_ || (a->scales == MOEK_EP_BYTES_ && size.groups % 4 == 0)) {
        words[j] = w;
        return;
    }
    #pragma unroll
    for (i = 0; i < 4; i++) {
        if (4 * j + i >= size.groups) break;
        if (a->scales == MOEK_EP_BYTES_) bytes[4 * j + i] = (uint8_t)(w >> 8 * i);
        else words[4 * j + i] = (w >> 8 * i & 0xff) << 23;
    }
}

/* Loads words w0 + me, w0 + me + THREADS, ... of a slice of a received row. */
enum { MOEK_EP_TAKEN_ = 4 };
MOEK_DEVICE void moek_ep_gpu_look_(moek_ep_sizes_ size, const char *x, int w0, moek_words_ *v)
{
    int d;
    #pragma unroll
    for (d = 0; d < MOEK_EP_TAKEN_; d++) {
        const int w = w0 + d * MOEK_EP_THREADS_ + threadIdx.x;
        v[d] = w < size.words ? moek_load_words_(x + 16 * (size_t)w) : moek_zero_words_();
    }
}
/* low_latency: a block copies a received row to each of its experts, after the rows of lower ranks.
 * The copies are stored with L2 evict_last, where they fit.  Reason: the experts read many times more weights than L2
 * holds, and each dirty line that is evicted meanwhile delays a read.  The next operation overwrites the copies in
 * L2. */
MOEK_DEVICE void moek_ep_gpu_take_row_(const moek_ep_dispatch_receive_ *a, moek_ep_sizes_ size, int from, size_t row)
{
    const moek_ep_gpu_ *const g = &a->g;
    const moek_ep_layout *const l = &g->layout;
    const int me = threadIdx.x, lane = me % 32, is = lane < g->slots;
    const char *const x = moek_ep_gpu_field_(g, g->rank, l->x, row);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(g, g->rank, l->scale, row);
    const int id = is ? ((const int32_t *)moek_ep_gpu_field_(g, g->rank, l->ids, row))[lane] : -1;
    int at = is ? ((const int32_t *)moek_ep_gpu_field_(g, g->rank, l->order, row))[lane] : 0;
    const float weight = is ? ((const float *)moek_ep_gpu_field_(g, g->rank, l->weights, row))[lane] : 0;
    const int words = moek_ep_scale_words_(size.groups, a->scales);
    uint32_t slots, left;
    moek_words_ v[MOEK_EP_TAKEN_];
    int w0, d, j, s;
    moek_ep_gpu_look_(size, x, 0, v);                     /* before its ids are known: saves a round trip */
    for (s = 0; s < from && id >= 0; s++) at += (int)moek_ep_gpu_counts_(g, g->rank, s)[id];
    at = id < 0 ? MOEK_EP_ABSENT_ : at < a->rows_per_expert ? id * a->rows_per_expert + at : MOEK_EP_DROPPED_;
    if (is && me < 32) a->weights[row * g->slots + lane] = weight;
    if (is && me < 32) a->slot_row[row * g->slots + lane] = at;
    slots = __ballot_sync(0xffffffff, at >= 0);
    for (w0 = 0; w0 < size.words && slots; w0 += (int)MOEK_EP_TAKEN_ * MOEK_EP_THREADS_) {
        if (w0) moek_ep_gpu_look_(size, x, w0, v);
        for (left = slots; left; left &= left - 1) {
            char *const to = a->x + (size_t)__shfl_sync(0xffffffff, at, __ffs(left) - 1) * size.words * 16;
            #pragma unroll
            for (d = 0; d < MOEK_EP_TAKEN_; d++) {
                const int w = w0 + d * MOEK_EP_THREADS_ + me;
                if (w < size.words) moek_store_words_last_(to + 16 * (size_t)w, v[d], a->stays);
            }
        }
    }
    for (w0 = 0; w0 < words && slots; w0 += MOEK_EP_THREADS_) {     /* from the last thread down */
        uint32_t value = 0;
        j = w0 + MOEK_EP_THREADS_ - 1 - me;
        if (j < words) value = scale[j];
        for (left = slots; left; left &= left - 1) {
            const int to = __shfl_sync(0xffffffff, at, __ffs(left) - 1);
            if (j < words) moek_ep_gpu_unpack_(a, size, to, j, value);
        }
    }
}

/* All blocks wait for the kernel before, even those without a row: later kernels rely on it. */
MOEK_DEVICE void moek_ep_gpu_dispatch_receive_few_(const moek_ep_dispatch_receive_ *a, moek_ep_sizes_ size)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const uint64_t operation = moek_ep_gpu_operation_(g, MOEK_EP_DISPATCH);
    int ended = moek_ep_gpu_arrive_(g, MOEK_EP_DISPATCH, counts), e, n, p, most = 0;
    if (a->go) moek_grid_go_();
    for (p = 0; p < g->ranks && !ended; p++) most = max(most, counts[p]);
    for (n = blockIdx.x; n < most * g->ranks && !ended; n += gridDim.x) {
        const int from = moek_ep_gpu_turn_(g, n % g->ranks), t = n / g->ranks;
        const size_t row = (size_t)from * g->max_tokens + t;
        if (t >= counts[from]) continue;
        if (threadIdx.x == 0 && !g->moved)
            ended = moek_ep_gpu_wait_(g, moek_ep_gpu_mark_(g, g->rank, row), operation, 0, MOEK_EP_DISPATCH, from,
                                      NULL);
        ended = __syncthreads_or(ended);
        if (!ended) moek_ep_gpu_take_row_(a, size, from, row);
    }
    for (e = blockIdx.x * MOEK_EP_THREADS_ + threadIdx.x; e < a->experts; e += gridDim.x * MOEK_EP_THREADS_) {
        int rows = 0;
        for (p = 0; p < g->ranks && !ended; p++) rows += (int)moek_ep_gpu_counts_(g, g->rank, p)[e];
        a->expert_tokens[e] = min(rows, a->rows_per_expert);
    }
    if (blockIdx.x == 0 && (int)threadIdx.x < g->ranks) a->counts[threadIdx.x] = ended ? 0 : counts[threadIdx.x];
    moek_grid_wait_();
}

/* alltoall where rows are moved: if the rows of any rank did not fit, no rows count.  counts: shared, written. */
MOEK_DEVICE void moek_ep_gpu_refuse_(const moek_ep_gpu_ *g, int *counts)
{
    const int p = threadIdx.x;
    if (!__syncthreads_or(p < g->ranks && counts[p] == MOEK_EP_FULL_)) return;
    if (p == 0 && blockIdx.x == 0) moek_ep_gpu_full_(g);
    if (p < g->ranks) counts[p] = MOEK_EP_FULL_;
    __syncthreads();
}

/* alltoall, allgather: 1 if there is a received row at this index.  total: received rows of all ranks. */
MOEK_DEVICE int moek_ep_gpu_live_(const moek_ep_gpu_ *g, int row, int total, const int *counts, int ended)
{
    return g->packed ? row < total : !ended && row % g->max_tokens < counts[row / g->max_tokens];
}

/* alltoall, allgather: copies ids, with -1 where there is no row: after the rows of each rank; for alltoall, unless
 * rows are moved, after all rows.  A copy is needed because a peer may still store rows after the group has ended,
 * while the sort reads ids twice and must see the same.  Also copies what combine_send needs, so that it does not read
 * received rows, and unpacks scales that the experts do not read in the window. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_)
moek_ep_dispatch_receive_rows_k_(const moek_ep_dispatch_receive_ a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int ended = moek_ep_gpu_arrive_(g, MOEK_EP_DISPATCH, counts), me = threadIdx.x, slots = g->slots;
    const int rows = g->packed ? g->packed : g->ranks * g->max_tokens;
    const int32_t *const ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, 0);
    const int32_t *const token = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.token, 0);
    const float *const weights = (const float *)moek_ep_gpu_field_(g, g->rank, g->layout.weights, 0);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.scale, 0);
    const int words = moek_ep_scale_words_(a.size.groups, a.scales);
    const size_t first = blockIdx.x * MOEK_EP_THREADS_ + me;
    int p, offset = 0, total = 0;
    size_t i;
    if (a.shares && !ended) moek_ep_gpu_refuse_(g, counts);
    for (p = 0; p < g->ranks && !ended; p++) {
        if (p == me) offset = total;
        total += max(counts[p], 0);
    }
    moek_grid_wait_();
    for (i = first; i < (size_t)rows * slots; i += gridDim.x * MOEK_EP_THREADS_) {
        const int row = (int)(i / slots);
        const int live = moek_ep_gpu_live_(g, row, total, counts, ended);
        a.ids[i] = live ? ids[i] : -1;
        if (live) a.weights[i] = weights[i];
        if (live && i % slots == 0) a.token[row] = token[row];
    }
    for (i = a.scale ? first : (size_t)rows * words; i < (size_t)rows * words; i += gridDim.x * MOEK_EP_THREADS_) {
        const int row = (int)(i / words);
        const int live = moek_ep_gpu_live_(g, row, total, counts, ended);
        if (live) moek_ep_gpu_unpack_(&a, a.size, row, (int)(i % words), scale[i]);
    }
    if (blockIdx.x == 0 && me < g->ranks) a.counts[me] = ended ? 0 : counts[me];
    if (blockIdx.x == 0 && me <= g->ranks && g->packed) a.offsets[me] = me < g->ranks ? offset : total;
}

MOEK_EP_FEW_K_ moek_ep_dispatch_receive_k_(const moek_ep_dispatch_receive_ a)
{
    moek_ep_gpu_dispatch_receive_few_(&a, a.size);
}
#endif
