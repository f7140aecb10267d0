/* moek/ep_device.h -- the protocol of ep_wire.h as kernels speak it, and the four kernels of low_latency.
 *
 *     send      quantize (fp8b128) or copy rows into the windows of their ranks; publish
 *     receive   arrive; rows to [local experts][rows_per_expert], by rank and token within an expert
 *     giveback  what the experts gave, reduced by token, into the windows of the tokens' ranks; publish, release
 *     collect   arrive; add up, ranks ascending; release
 *
 * Each block waits for itself, and no block for another one of its kernel: so kernels need not be resident as a whole.
 * The last block of a kernel (a counter in the window, which it leaves as it was) publishes and counts operations.
 * Where the group has ended, blocks leave, nothing is published, and experts are given no rows.
 *
 * What a kernel wrote to a peer comes before its flag: a block's writes, barrier, an acq_rel addition to the counter,
 * barrier in the last block, a fence at system scope, relaxed flags.  Polls are relaxed; who has seen his flag reads it
 * once more with acquire.  Bound by the wire and by latency: 16-byte stores, several loads on their way. */
#ifndef MOEK_EP_DEVICE_H
#define MOEK_EP_DEVICE_H
#include "device.h"

/* ---- one function an instruction --------------------------------------------------------------------------------- */

MOEK_DEVICE uint64_t moek_load_relaxed_sys_(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];\n" : "=l"(v) : "l"(p) : "memory");
    return v;
}
MOEK_DEVICE uint64_t moek_load_acquire_sys_(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];\n" : "=l"(v) : "l"(p) : "memory");
    return v;
}
MOEK_DEVICE void moek_store_relaxed_sys_(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;\n" :: "l"(p), "l"(v) : "memory");
}
MOEK_DEVICE void moek_fence_sys_(void) { asm volatile("fence.acq_rel.sys;\n" ::: "memory"); }
/* The value before; it goes back to 0 behind `last`. */
MOEK_DEVICE uint32_t moek_count_to_(uint32_t *counter, uint32_t last)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}
MOEK_DEVICE uint64_t moek_clock_ns_(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t));
    return t;
}

/* ---- the group, as kernels know it ------------------------------------------------------------------------------- */

enum { MOEK_EP_THREADS_ = 256 };
enum { MOEK_EP_SEND_, MOEK_EP_RECEIVE_, MOEK_EP_GIVEBACK_, MOEK_EP_COLLECT_ };          /* halves: lines of `done` */

typedef struct moek_ep_gpu_ {
    moek_ep_layout layout;
    int rank, ranks, handle, handles, slots, physical_experts, max_tokens, tag, combine;
    uint64_t timeout_ns, *report;
    char *base[MOEK_EP_MAX_RANKS];
} moek_ep_gpu_;

MOEK_DEVICE uint64_t *moek_ep_gpu_word_(const moek_ep_gpu_ *g, int rank, size_t at)
{
    return (uint64_t *)(g->base[rank] + at);
}
MOEK_DEVICE uint64_t *moek_ep_gpu_flag_(const moek_ep_gpu_ *g, int rank, int kind, int phase, int from)
{
    return moek_ep_gpu_word_(g, rank, moek_ep_flag_at_(&g->layout, g->handles, g->ranks, kind, phase, g->handle, from));
}
MOEK_DEVICE moek_ep_totals_ moek_ep_gpu_local_(const moek_ep_gpu_ *g, int phase)
{
    return moek_ep_totals_of_(g->base[g->rank], &g->layout, g->handles, g->ranks, phase, g->handle);
}
MOEK_DEVICE char *moek_ep_gpu_field_(const moek_ep_gpu_ *g, int rank, moek_ep_field field, size_t row)
{
    return g->base[rank] + moek_ep_field_at_(&g->layout, g->handle, field, row);
}
MOEK_DEVICE int moek_ep_gpu_place_(const moek_ep_gpu_ *g, int32_t id)     /* rank << 16 | local expert, or -1 */
{
    return (uint32_t)id < (uint32_t)g->physical_experts ? ((const int32_t *)(g->base[g->rank] + g->layout.place))[id] : -1;
}
/* Thread i's peer: from the next rank on, so that not all begin with rank 0. */
MOEK_DEVICE int moek_ep_gpu_turn_(const moek_ep_gpu_ *g, int i) { return (g->rank + 1 + i) % g->ranks; }

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The first error stays; the host is told. */
MOEK_DEVICE uint64_t moek_ep_gpu_keep_(const moek_ep_gpu_ *g, uint64_t error)
{
    unsigned long long *latch = (unsigned long long *)moek_ep_gpu_word_(g, g->rank, g->layout.latch);
    const uint64_t before = atomicCAS(latch, 0ull, (unsigned long long)error);
    if (!before) moek_store_relaxed_sys_(g->report, error);
    return before ? before : error;
}
MOEK_DEVICE int moek_ep_gpu_ended_(const moek_ep_gpu_ *g)
{
    const uint64_t here = moek_load_relaxed_sys_(moek_ep_gpu_word_(g, g->rank, g->layout.latch));
    const uint64_t there = moek_load_relaxed_sys_(moek_ep_gpu_word_(g, g->rank, g->layout.abort_word));
    if (here) return (int)(here & 0xff);
    return there ? (int)(moek_ep_gpu_keep_(g, (there & ~(uint64_t)0xff) | MOEK_E_ABORTED) & 0xff) : 0;
}
/* Ends the group: keeps the error and, if it is the first, tells it to all. */
MOEK_DEVICE int moek_ep_gpu_end_(const moek_ep_gpu_ *g, uint64_t error)
{
    const int before = moek_ep_gpu_ended_(g);
    uint64_t kept;
    int p;
    if (before) return before;
    kept = moek_ep_gpu_keep_(g, error);
    for (p = 0; p < g->ranks && kept == error; p++) {
        uint64_t *word = moek_ep_gpu_word_(g, p, g->layout.abort_word);
        if (p != g->rank && !moek_load_relaxed_sys_(word)) moek_store_relaxed_sys_(word, error);
    }
    return (int)(kept & 0xff);
}
MOEK_DEVICE int moek_ep_gpu_fail_(const moek_ep_gpu_ *g, int status, int phase, int peer, uint64_t operation)
{
    moek_ep_error e;
    e.status = e.cause = (moek_status)status;
    e.phase = phase; e.handle = g->handle; e.peer = peer; e.reporter = g->rank;
    e.operation = (unsigned)(operation & 0xffffff);
    return moek_ep_gpu_end_(g, moek_ep_pack_(&e));
}
static __global__ void moek_ep_end_k_(const moek_ep_gpu_ g, uint64_t error) { moek_ep_gpu_end_(&g, error); }

/* ---- waits: by all threads of a block; what they return is the same for all, and 0 unless the group has ended ------ */

/* By one thread: until *word is at least `least` beyond `from`. */
MOEK_DEVICE int moek_ep_gpu_wait_(const moek_ep_gpu_ *g, const uint64_t *word, uint64_t from, uint64_t least, int phase,
                                  int peer, uint64_t operation)
{
    uint64_t start = 0;
    unsigned polls;
    for (polls = 1; (moek_load_relaxed_sys_(word) - from - least) >> 63; polls++) {
        int ended;
        uint64_t now;
        if (polls % 64) continue;
        if ((ended = moek_ep_gpu_ended_(g)) != 0) return ended;
        now = moek_clock_ns_();
        if (!start) start = now;
        if (now - start > g->timeout_ns) return moek_ep_gpu_fail_(g, MOEK_E_TIMEOUT, phase, peer, operation);
    }
    (void)moek_load_acquire_sys_(word);
    return 0;
}

MOEK_DEVICE int moek_ep_gpu_grant_(const moek_ep_gpu_ *g, int phase)
{
    int ended = 0;
    if (threadIdx.x < g->ranks) {
        const int p = moek_ep_gpu_turn_(g, threadIdx.x);
        const uint64_t operations = *moek_ep_gpu_local_(g, phase).operations;
        ended = moek_ep_gpu_wait_(g, moek_ep_gpu_flag_(g, g->rank, 1, phase, p), 0, operations, phase, p,
                                  operations + 1);
    }
    if (threadIdx.x == 0 && !ended) ended = moek_ep_gpu_ended_(g);
    return __syncthreads_or(ended);
}

/* counts: [ranks], shared, written. */
MOEK_DEVICE int moek_ep_gpu_arrive_(const moek_ep_gpu_ *g, int phase, int *counts)
{
    const uint64_t one = (uint64_t)1 << 40;
    int ended = 0;
    if (threadIdx.x < g->ranks) {
        const int p = moek_ep_gpu_turn_(g, threadIdx.x);
        const moek_ep_totals_ t = moek_ep_gpu_local_(g, phase);
        const uint64_t *flag = moek_ep_gpu_flag_(g, g->rank, 0, phase, p), seen = t.seen[p];
        ended = moek_ep_gpu_wait_(g, flag, seen, one, phase, p, *t.operations);
        if (!ended) {
            const uint64_t now = moek_load_relaxed_sys_(flag) - seen;
            counts[p] = (int)(now & 0xffffffff);
            if (now >> 40 != 1 || (int)(now >> 32 & 0xff) != g->tag)
                ended = moek_ep_gpu_fail_(g, MOEK_E_MISMATCH, phase, p, *t.operations);
        }
    }
    if (threadIdx.x == 0 && !ended) ended = moek_ep_gpu_ended_(g);
    return __syncthreads_or(ended);
}

/* 1 in the last block to come here, unless the group has ended: what all blocks did comes before what it does now. */
MOEK_DEVICE int moek_ep_gpu_last_(const moek_ep_gpu_ *g, int half)
{
    const uint32_t blocks = gridDim.x * gridDim.y;
    int last = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        const size_t line = (size_t)(half * g->handles + g->handle) * MOEK_EP_LINE_;
        last = moek_count_to_((uint32_t *)(g->base[g->rank] + g->layout.done + line), blocks - 1) == blocks - 1 &&
               !moek_ep_gpu_ended_(g);
    }
    return __syncthreads_or(last);
}

/* By threads of the last block, one a rank.  counts: shared. */
MOEK_DEVICE void moek_ep_gpu_publish_(const moek_ep_gpu_ *g, int phase, const int *counts)
{
    const moek_ep_totals_ t = moek_ep_gpu_local_(g, phase);
    const int p = moek_ep_gpu_turn_(g, threadIdx.x);
    if (threadIdx.x < g->ranks) {
        t.sent[p] += (uint64_t)1 << 40 | (uint64_t)g->tag << 32 | (uint32_t)counts[p];
        moek_fence_sys_();
        moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 0, phase, g->rank), t.sent[p]);
    }
    if (threadIdx.x == 0) *t.operations += 1;
}
/* `fenced`: publish has just been called. */
MOEK_DEVICE void moek_ep_gpu_release_(const moek_ep_gpu_ *g, int phase, int fenced)
{
    const int p = moek_ep_gpu_turn_(g, threadIdx.x);
    if (threadIdx.x >= g->ranks) return;
    if (!fenced) moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 1, phase, g->rank), *moek_ep_gpu_local_(g, phase).operations);
}
/* What has arrived is the past. */
MOEK_DEVICE void moek_ep_gpu_seen_(const moek_ep_gpu_ *g, int phase, const int *counts)
{
    if (threadIdx.x < g->ranks)
        moek_ep_gpu_local_(g, phase).seen[threadIdx.x] +=
            (uint64_t)1 << 40 | (uint64_t)g->tag << 32 | (uint32_t)counts[threadIdx.x];
}

/* ---- prepare_send ------------------------------------------------------------------------------------------------ */

typedef struct moek_ep_send_ {
    moek_ep_gpu_ g;
    int tokens, block_tokens;         /* block_tokens: a block has so many in a row                                   */
    int row_words, scale_words;       /* of the wire: 16 bytes of x, 4 bytes of scales                                */
    int hidden, dtype, ue8m0;
    const int32_t *ids;
    const float *weights;             /* NULL: ones                                                                   */
    const char *x;                    /* rows of the wire, or those to be quantized                                   */
    const uint32_t *scale;
} moek_ep_send_;

/* Bits of the ranks that hold an expert of a token. */
MOEK_DEVICE uint64_t moek_ep_gpu_ranks_(const moek_ep_send_ *a, int token)
{
    const int32_t *ids = a->ids + (size_t)token * a->g.slots;
    uint64_t ranks = 0;
    int k;
    for (k = 0; k < a->g.slots; k++) {
        const int place = moek_ep_gpu_place_(&a->g, ids[k]);
        if (place >= 0) ranks |= (uint64_t)1 << (place >> 16);
    }
    return ranks;
}

/* before, all: [ranks], shared: rows of tokens below `first` for each rank, and of all tokens. */
MOEK_DEVICE void moek_ep_gpu_number_(const moek_ep_send_ *a, int first, int *before, int *all)
{
    const int lane = threadIdx.x % 32, ranks = a->g.ranks;
    int t0, p;
    if (threadIdx.x < ranks) before[threadIdx.x] = all[threadIdx.x] = 0;
    __syncthreads();
    for (t0 = 0; t0 < a->tokens; t0 += MOEK_EP_THREADS_) {
        const int t = t0 + threadIdx.x;
        const uint64_t to = t < a->tokens ? moek_ep_gpu_ranks_(a, t) : 0;
        for (p = 0; p < ranks; p++) {
            const uint32_t here = __ballot_sync(0xffffffff, to >> p & 1);
            const uint32_t earlier = __ballot_sync(0xffffffff, (to >> p & 1) && t < first);
            if (lane == 0 && here) atomicAdd(&all[p], __popc(here));
            if (lane == 0 && earlier) atomicAdd(&before[p], __popc(earlier));
        }
    }
    __syncthreads();
}

/* Token, ids and weights of a row. */
MOEK_DEVICE void moek_ep_gpu_put_head_(const moek_ep_send_ *a, int token, int p, size_t row)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int slots = a->g.slots, k = threadIdx.x % 64;
    const size_t slot = (size_t)token * slots + k;
    if (threadIdx.x < 64 && k < slots) {
        const int place = moek_ep_gpu_place_(&a->g, a->ids[slot]);
        ((int32_t *)moek_ep_gpu_field_(&a->g, p, l->ids, row))[k] = place >= 0 && place >> 16 == p ? place & 0xffff : -1;
    } else if (threadIdx.x < 128 && k < slots) {
        ((float *)moek_ep_gpu_field_(&a->g, p, l->weights, row))[k] = a->weights ? a->weights[slot] : 1.0f;
    } else if (threadIdx.x == 128) {
        *(int32_t *)moek_ep_gpu_field_(&a->g, p, l->token, row) = token;
    }
}

/* A stretch of 2048 (or so) bytes or more of a token: what a thread has of it, 16 bytes each. */
enum { MOEK_EP_DEPTH_ = 4 };

/* As it is. */
MOEK_DEVICE void moek_ep_gpu_send_words_(const moek_ep_send_ *a, int token, uint64_t to, const int *row)
{
    const moek_ep_layout *const l = &a->g.layout;
    const char *const from = a->x + (size_t)token * a->row_words * 16;
    moek_words_ v[MOEK_EP_DEPTH_];
    int w0, d, i, j;
    for (w0 = threadIdx.x; w0 < a->row_words; w0 += MOEK_EP_DEPTH_ * MOEK_EP_THREADS_) {
        #pragma unroll
        for (d = 0; d < MOEK_EP_DEPTH_; d++)
            if (w0 + d * MOEK_EP_THREADS_ < a->row_words)
                v[d] = moek_load_words_(from + 16 * (size_t)(w0 + d * MOEK_EP_THREADS_));
        for (i = 0; i < a->g.ranks; i++) {
            const int p = moek_ep_gpu_turn_(&a->g, i);
            char *x;
            if (!(to >> p & 1)) continue;
            x = moek_ep_gpu_field_(&a->g, p, l->x, row[p]);
            #pragma unroll
            for (d = 0; d < MOEK_EP_DEPTH_; d++)
                if (w0 + d * MOEK_EP_THREADS_ < a->row_words)
                    moek_store_words_(x + 16 * (size_t)(w0 + d * MOEK_EP_THREADS_), v[d]);
        }
    }
    for (j = threadIdx.x; j < a->scale_words; j += MOEK_EP_THREADS_)
        for (i = 0; i < a->g.ranks; i++)
            if (to >> i & 1)
                ((uint32_t *)moek_ep_gpu_field_(&a->g, i, l->scale, row[i]))[j] =
                    a->scale[(size_t)token * a->scale_words + j];
}

/* Quantized on the way: a thread 16 columns, 8 threads the 128 of a scale. */
MOEK_DEVICE void moek_ep_gpu_send_codes_(const moek_ep_send_ *a, int token, uint64_t to, const int *row, int dtype)
{
    enum { DEPTH = 2, LANES = 8 };
    const moek_ep_layout *const l = &a->g.layout;
    const uint16_t *const from = (const uint16_t *)a->x + (size_t)token * a->hidden;
    moek_words_ x[DEPTH][2];
    uint2 q[DEPTH][2];
    float s[DEPTH];
    int w0, d, i;
    for (w0 = 0; w0 < a->row_words; w0 += DEPTH * MOEK_EP_THREADS_) {
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            const int w = w0 + d * MOEK_EP_THREADS_ + threadIdx.x;
            x[d][0] = w < a->row_words ? moek_load_words_(from + 16 * (size_t)w) : moek_zero_words_();
            x[d][1] = w < a->row_words ? moek_load_words_(from + 16 * (size_t)w + 8) : moek_zero_words_();
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++) s[d] = moek_group_codes_(q[d], x[d], 2, LANES, a->ue8m0, dtype);
        for (i = 0; i < a->g.ranks; i++) {
            const int p = moek_ep_gpu_turn_(&a->g, i);
            if (!(to >> p & 1)) continue;
            #pragma unroll
            for (d = 0; d < DEPTH; d++) {
                const int w = w0 + d * MOEK_EP_THREADS_ + threadIdx.x;
                if (w >= a->row_words) continue;
                *(uint4 *)(moek_ep_gpu_field_(&a->g, p, l->x, row[p]) + 16 * (size_t)w) =
                    make_uint4(q[d][0].x, q[d][0].y, q[d][1].x, q[d][1].y);
                if (w % LANES == 0) ((float *)moek_ep_gpu_field_(&a->g, p, l->scale, row[p]))[w / LANES] = s[d];
            }
        }
    }
}

/* quantize: 0, or MOEK_DTYPE_* of x. */
MOEK_DEVICE void moek_ep_gpu_send_(const moek_ep_send_ *a, int quantize)
{
    __shared__ int row[MOEK_EP_MAX_RANKS], all[MOEK_EP_MAX_RANKS];
    const int first = blockIdx.x * a->block_tokens, ranks = a->g.ranks, me = threadIdx.x;
    const int ended = moek_ep_gpu_grant_(&a->g, MOEK_EP_DISPATCH);
    int t, p;
    moek_ep_gpu_number_(a, first, row, all);
    if (me < ranks) row[me] += a->g.rank * a->g.max_tokens;
    __syncthreads();
    for (t = first; t < first + a->block_tokens && t < a->tokens && !ended; t++) {
        const uint64_t to = moek_ep_gpu_ranks_(a, t);
        for (p = 0; p < ranks; p++) if (to >> p & 1) moek_ep_gpu_put_head_(a, t, p, row[p]);
        if (quantize) moek_ep_gpu_send_codes_(a, t, to, row, quantize);
        else moek_ep_gpu_send_words_(a, t, to, row);
        __syncthreads();
        if (me < ranks) row[me] += (int)(to >> me & 1);
        __syncthreads();
    }
    if (moek_ep_gpu_last_(&a->g, MOEK_EP_SEND_)) moek_ep_gpu_publish_(&a->g, MOEK_EP_DISPATCH, all);
}
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4)
moek_ep_send_words_k_(const moek_ep_send_ a) { moek_ep_gpu_send_(&a, 0); }
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4)
moek_ep_send_codes_k_(const moek_ep_send_ a)
{
    if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_send_(&a, MOEK_DTYPE_FP16);
    else moek_ep_gpu_send_(&a, MOEK_DTYPE_BF16);
}

/* ---- prepare_receive --------------------------------------------------------------------------------------------- */

typedef struct moek_ep_receive_ {
    moek_ep_gpu_ g;
    int experts, rows_per_expert, row_words, scale_words;
    int32_t *counts, *expert_tokens, *slot_row;        /* written, as moek_ep_work_ says                              */
    char *x;
    uint32_t *scale;
} moek_ep_receive_;

/* By a warp: received row `row` to row `at` of the experts. */
MOEK_DEVICE void moek_ep_gpu_take_row_(const moek_ep_receive_ *a, int row, int at)
{
    enum { DEPTH = 8 };
    const moek_ep_layout *const l = &a->g.layout;
    const char *const from = moek_ep_gpu_field_(&a->g, a->g.rank, l->x, row);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(&a->g, a->g.rank, l->scale, row);
    char *const to = a->x + (size_t)at * a->row_words * 16;
    const int lane = threadIdx.x % 32;
    moek_words_ v[DEPTH];
    int w0, d, j;
    for (w0 = lane; w0 < a->row_words; w0 += 32 * DEPTH) {
        #pragma unroll
        for (d = 0; d < DEPTH; d++)
            if (w0 + 32 * d < a->row_words) v[d] = moek_load_words_(from + 16 * (size_t)(w0 + 32 * d));
        #pragma unroll
        for (d = 0; d < DEPTH; d++)
            if (w0 + 32 * d < a->row_words) moek_store_words_(to + 16 * (size_t)(w0 + 32 * d), v[d]);
    }
    for (j = lane; j < a->scale_words; j += 32) a->scale[(size_t)at * a->scale_words + j] = scale[j];
}

/* Sum over the threads before this one; *all: over all.  part is shared. */
MOEK_DEVICE int moek_ep_gpu_before_(int mine, int *part, int *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = mine, by, w, before = 0;
    #pragma unroll
    for (by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(0xffffffff, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    *all = 0;
    #pragma unroll
    for (w = 0; w < MOEK_EP_THREADS_ / 32; w++) {
        if (w < warp) before += part[w];
        *all += part[w];
    }
    return before + sum - mine;
}

/* One expert's rows, of which this block copies every gridDim.y-th.  counts: shared. */
MOEK_DEVICE void moek_ep_gpu_take_expert_(const moek_ep_receive_ *a, int e, const int *counts, int total)
{
    enum { WARPS = MOEK_EP_THREADS_ / 32 };
    __shared__ int part[WARPS], list[MOEK_EP_THREADS_], list_at[MOEK_EP_THREADS_], list_hits[MOEK_EP_THREADS_];
    const moek_ep_gpu_ *const g = &a->g;
    const int limit = a->rows_per_expert;
    int filled = 0, n0, i, k, h, all;
    for (n0 = 0; n0 < total; n0 += MOEK_EP_THREADS_) {
        int row = n0 + threadIdx.x, s = 0, hits = 0, before, at;
        const int32_t *ids = NULL;
        if (row < total) {
            while (row >= counts[s]) row -= counts[s++];
            row += s * g->max_tokens;
            ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, row);
            for (k = 0; k < g->slots; k++) hits += ids[k] == e;
        }
        before = moek_ep_gpu_before_(hits | (hits > 0) << 16, part, &all);
        at = filled + (before & 0xffff);
        if (hits) {
            list[before >> 16] = row; list_at[before >> 16] = at; list_hits[before >> 16] = hits;
            for (k = 0; k < g->slots && blockIdx.y == 0; k++)
                if (ids[k] == e) {
                    a->slot_row[(size_t)row * g->slots + k] = at < limit ? e * limit + at : -1;
                    at++;
                }
        }
        __syncthreads();
        for (i = threadIdx.x / 32 + WARPS * blockIdx.y; i < all >> 16; i += WARPS * gridDim.y)
            for (h = 0; h < list_hits[i]; h++)
                if (list_at[i] + h < limit) moek_ep_gpu_take_row_(a, list[i], e * limit + list_at[i] + h);
        filled += all & 0xffff;
        __syncthreads();
    }
    if (threadIdx.x == 0 && blockIdx.y == 0) a->expert_tokens[e] = filled < limit ? filled : limit;
}

static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 3) moek_ep_receive_k_(const moek_ep_receive_ a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const int ended = moek_ep_gpu_arrive_(&a.g, MOEK_EP_DISPATCH, counts), one = blockIdx.x == 0 && blockIdx.y == 0;
    int e, p, total = 0;
    for (p = 0; p < a.g.ranks && !ended; p++) total += counts[p];
    for (e = blockIdx.x; e < a.experts; e += gridDim.x) moek_ep_gpu_take_expert_(&a, e, counts, total);
    if (one && threadIdx.x < a.g.ranks) a.counts[threadIdx.x] = ended ? 0 : counts[threadIdx.x];
    if (moek_ep_gpu_last_(&a.g, MOEK_EP_RECEIVE_)) moek_ep_gpu_seen_(&a.g, MOEK_EP_DISPATCH, counts);
}

/* ---- finalize_send ----------------------------------------------------------------------------------------------- */

typedef struct moek_ep_giveback_ {
    moek_ep_gpu_ g;
    int hidden, dtype;
    const int32_t *counts, *slot_row;
    const uint16_t *out;
} moek_ep_giveback_;

/* Eight columns of a row of partial, T or f32. */
MOEK_DEVICE void moek_ep_gpu_put8_(char *row, int column, const float sum[8], int f32, int dtype)
{
    if (!f32) {
        moek_store_words_(row + 2 * (size_t)column, moek_to_t8_(sum, dtype));
        return;
    }
    *(float4 *)(row + 4 * (size_t)column) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    *(float4 *)(row + 4 * (size_t)column + 16) = make_float4(sum[4], sum[5], sum[6], sum[7]);
}

/* Eight columns of received row i of rank `to`; lane k of a warp knows its slot k. */
MOEK_DEVICE void moek_ep_gpu_give_(const moek_ep_giveback_ *a, int to, int i, int column)
{
    enum { DEPTH = 4 };
    const moek_ep_gpu_ *const g = &a->g;
    const int f32 = g->combine == MOEK_EP_REDUCED_F32, lane = threadIdx.x % 32, slots = g->slots;
    const size_t row = (size_t)to * g->max_tokens + i, bytes = (size_t)a->hidden * (f32 ? 4 : 2);
    const int32_t *const ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, row);
    const int id = lane < slots ? ids[lane] : -1, at = id >= 0 ? a->slot_row[row * slots + lane] : -1;
    const float weight = lane < slots ? ((const float *)moek_ep_gpu_field_(g, g->rank, g->layout.weights, row))[lane] : 0;
    const size_t token = *(const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.token, row);
    const uint32_t mine = __ballot_sync(0xffffffff, id >= 0);
    uint32_t left = __ballot_sync(0xffffffff, at >= 0);
    const int slot = g->ranks <= slots ? g->rank : __ffs(mine) - 1;
    float sum[8] = {0}, x[8];
    int d, j, k;
    if (g->combine == MOEK_EP_EXACT) {
        for (k = 0; k < slots; k++) {
            const int from = __shfl_sync(0xffffffff, at, k);
            char *const put = g->base[to] + moek_ep_partial_at_(&g->layout, g->handle, token * g->layout.slots + k, bytes);
            if (mine >> k & 1 && column < a->hidden)
                moek_store_words_(put + 2 * (size_t)column, from < 0 ? moek_zero_words_()
                                  : moek_load_words_(a->out + (size_t)from * a->hidden + column));
        }
        return;
    }
    while (left) {
        moek_words_ v[DEPTH];
        float by[DEPTH];
        int n = 0;
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            const int from = left ? __ffs(left) - 1 : 0, r = __shfl_sync(0xffffffff, at, from);
            by[d] = __shfl_sync(0xffffffff, weight, from);
            if (left) {
                n++;
                left &= left - 1;
                if (column < a->hidden) v[d] = moek_load_words_(a->out + (size_t)r * a->hidden + column);
            }
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            if (d >= n || column >= a->hidden) continue;
            moek_from_t8_(x, v[d], a->dtype);
            #pragma unroll
            for (j = 0; j < 8; j++) sum[j] += by[d] * x[j];
        }
    }
    if (mine && column < a->hidden)
        moek_ep_gpu_put8_(g->base[to] + moek_ep_partial_at_(&g->layout, g->handle, token * g->layout.slots + slot, bytes),
                          column, sum, f32, a->dtype);
}

/* Items: (row of a rank, stretch of columns); rows of the ranks in turn, so that all links are busy. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4) moek_ep_giveback_k_(const moek_ep_giveback_ a)
{
    enum { COLUMNS = 8 * MOEK_EP_THREADS_ };
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const int stretches = (a.hidden + COLUMNS - 1) / COLUMNS, items = a.g.ranks * a.g.max_tokens * stretches;
    const int ended = moek_ep_gpu_grant_(&a.g, MOEK_EP_COMBINE);
    int n;
    if (threadIdx.x < a.g.ranks) counts[threadIdx.x] = a.counts[threadIdx.x];
    __syncthreads();
    for (n = blockIdx.x; n < items && !ended; n += gridDim.x) {
        const int row = n / stretches, to = moek_ep_gpu_turn_(&a.g, row), i = row / a.g.ranks;
        if (i < counts[to]) moek_ep_gpu_give_(&a, to, i, n % stretches * COLUMNS + 8 * threadIdx.x);
    }
    if (moek_ep_gpu_last_(&a.g, MOEK_EP_GIVEBACK_)) {
        moek_ep_gpu_publish_(&a.g, MOEK_EP_COMBINE, counts);
        moek_ep_gpu_release_(&a.g, MOEK_EP_DISPATCH, 1);
    }
}

/* ---- finalize_receive -------------------------------------------------------------------------------------------- */

typedef struct moek_ep_collect_ {
    moek_ep_gpu_ g;
    int tokens, hidden, dtype;
    const int32_t *ids;
    const float *weights;             /* EXACT; NULL: ones                                                            */
    const uint16_t *addend;           /* or NULL                                                                      */
    uint16_t *y;
} moek_ep_collect_;

/* Rows of partial that came back for a token, in the order of their sum: lane n of a warp gets row n.  How many. */
MOEK_DEVICE int moek_ep_gpu_returned_(const moek_ep_collect_ *a, int token, int *mine)
{
    const moek_ep_gpu_ *const g = &a->g;
    const int lane = threadIdx.x % 32;
    const int place = lane < g->slots ? moek_ep_gpu_place_(g, a->ids[(size_t)token * g->slots + lane]) : -1;
    const int exact = g->combine == MOEK_EP_EXACT, end = exact ? g->slots : g->ranks;
    int p, n = 0;
    for (p = 0; p < end; p++) {
        const uint32_t there = __ballot_sync(0xffffffff, place >= 0 && (exact ? lane : place >> 16) == p);
        if (!there) continue;
        if (lane == n) *mine = exact || g->ranks <= g->slots ? p : __ffs(there) - 1;
        n++;
    }
    return n;
}

MOEK_DEVICE void moek_ep_gpu_collect_(const moek_ep_collect_ *a, int token, int column)
{
    enum { DEPTH = 4 };
    const moek_ep_gpu_ *const g = &a->g;
    const int f32 = g->combine == MOEK_EP_REDUCED_F32, exact = g->combine == MOEK_EP_EXACT;
    const size_t bytes = (size_t)a->hidden * (f32 ? 4 : 2), first = (size_t)token * g->layout.slots;
    int mine = 0, n = moek_ep_gpu_returned_(a, token, &mine), n0, d, j;
    const float weight = exact && a->weights ? a->weights[(size_t)token * g->slots + mine] : 1.0f;
    float sum[8] = {0}, x[8];
    for (n0 = 0; n0 < n; n0 += DEPTH) {
        moek_words_ v[DEPTH][2];
        float by[DEPTH];
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            const int row = __shfl_sync(0xffffffff, mine, n0 + d);
            const char *const from = g->base[g->rank] + moek_ep_partial_at_(&g->layout, g->handle, first + row, bytes);
            by[d] = __shfl_sync(0xffffffff, weight, n0 + d);
            if (n0 + d >= n || column >= a->hidden) continue;
            v[d][0] = moek_load_words_(from + (f32 ? 4 : 2) * (size_t)column);
            if (f32) v[d][1] = moek_load_words_(from + 4 * (size_t)column + 16);
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            if (n0 + d >= n || column >= a->hidden) continue;
            if (f32) for (j = 0; j < 8; j++) x[j] = moek_float_(v[d][j / 4].w[j % 4]);
            else moek_from_t8_(x, v[d][0], a->dtype);
            #pragma unroll
            for (j = 0; j < 8; j++) sum[j] += by[d] * x[j];
        }
    }
    if (column >= a->hidden) return;
    if (a->addend) {
        moek_from_t8_(x, moek_load_words_(a->addend + (size_t)token * a->hidden + column), a->dtype);
        #pragma unroll
        for (j = 0; j < 8; j++) sum[j] += x[j];
    }
    moek_store_words_(a->y + (size_t)token * a->hidden + column, moek_to_t8_(sum, a->dtype));
}

static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 3) moek_ep_collect_k_(const moek_ep_collect_ a)
{
    enum { COLUMNS = 8 * MOEK_EP_THREADS_ };
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const int stretches = (a.hidden + COLUMNS - 1) / COLUMNS, items = a.tokens * stretches;
    const int ended = moek_ep_gpu_arrive_(&a.g, MOEK_EP_COMBINE, counts);
    int n;
    for (n = blockIdx.x; n < items && !ended; n += gridDim.x)
        moek_ep_gpu_collect_(&a, n / stretches, n % stretches * COLUMNS + 8 * threadIdx.x);
    if (moek_ep_gpu_last_(&a.g, MOEK_EP_COLLECT_)) {
        moek_ep_gpu_seen_(&a.g, MOEK_EP_COMBINE, counts);
        moek_ep_gpu_release_(&a.g, MOEK_EP_COMBINE, 0);
    }
}
#endif
