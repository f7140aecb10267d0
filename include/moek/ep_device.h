/* moek/ep_device.h -- the protocol of ep_wire.h as kernels speak it, and the kernels of the three kinds.
 *
 *     counts    alltoall only: how many rows go to whom, into all windows; publish
 *     send      (alltoall: arrive with the counts;) quantize (fp8b128) or copy rows into the windows of their ranks;
 *               publish
 *     receive   arrive; low_latency: rows to [local experts][rows_per_expert], by rank and token within an expert;
 *               others (receive_rows): rows lie where the experts read them
 *     giveback  what the experts gave, reduced by token, into the windows of the tokens' ranks; publish, release
 *     collect   arrive; add up, ranks ascending
 *
 * Each block waits for itself, and no block for another one of its kernel: so kernels need not be resident as a whole.
 * (That is why counts is a kernel of its own: blocks of send wait for those of their own rank, too.)
 * The last block of send and giveback (a counter in the window, which it leaves as it was) publishes.  With that it
 * also does what the receiving kernel before it left: it counts as seen what has arrived, and releases.  (So combine is
 * released by the next operation's send, or counts: in time, since nobody asks for that credit before.)
 * Where the group has ended, blocks leave, nothing is published, and experts are given no rows.  Where rows would not
 * fit (alltoall), which all ranks find alike, an operation goes on without rows: send and giveback publish counts of
 * -1, and collect leaves y alone.
 *
 * receive and collect may start while the kernel ahead still runs (programmatic dependent launch): they wait for flags
 * first, which depend on nothing here, and then for that kernel.  send and giveback let them start.
 *
 * What a kernel wrote to a peer comes before its flag: a block's writes, barrier, an acq_rel addition to the counter,
 * barrier in the last block, a fence at system scope, relaxed flags.  Polls are relaxed; who has seen his flag reads it
 * once more with acquire.  Bound by the wire and by latency: 16-byte stores, several loads on their way. */
#ifndef MOEK_EP_DEVICE_H
#define MOEK_EP_DEVICE_H
#include "device.h"

/* ---- one function an instruction --------------------------------------------------------------------------------- */

#ifndef MOEK_EMU
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
/* 4 bytes past L1. */
MOEK_DEVICE int32_t moek_load4_l2_(const void *p)
{
    int32_t v;
    asm volatile("ld.global.cg.s32 %0, [%1];\n" : "=r"(v) : "l"(p));
    return v;
}
#else
MOEK_FN uint64_t moek_load_relaxed_sys_(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
MOEK_FN uint64_t moek_load_acquire_sys_(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
MOEK_FN void moek_store_relaxed_sys_(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
MOEK_FN void moek_fence_sys_(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MOEK_FN uint32_t moek_count_to_(uint32_t *counter, uint32_t last)
{
    const uint32_t before = *counter;
    *counter = before >= last ? 0 : before + 1;
    return before;
}
MOEK_FN uint64_t moek_clock_ns_(void)                 /* asked by those who wait: for other processes */
{
    MOEK_EP_PAUSE();
    return 1000000 * MOEK_EP_MS();
}
MOEK_FN int32_t moek_load4_l2_(const void *p) { return *(const int32_t *)p; }
#endif

/* ---- the group, as kernels know it ------------------------------------------------------------------------------- */

enum { MOEK_EP_THREADS_ = 256 };

typedef struct moek_ep_gpu_ {
    moek_ep_layout layout;
    int rank, ranks, handle, handles, slots, physical_experts, max_tokens, tag, combine;
    int gather;                       /* allgather: each token goes to all ranks                                      */
    int packed;                       /* alltoall: the most rows that a rank receives; others: 0                      */
    int moved;                        /* rows are moved: base[p] is what goes out, and its parts are p's              */
    uint64_t timeout_ns, *report;
    char *base[MOEK_EP_MAX_RANKS];
} moek_ep_gpu_;

MOEK_DEVICE uint64_t *moek_ep_gpu_word_(const moek_ep_gpu_ *g, int rank, size_t at)
{
    return (uint64_t *)(g->base[rank] + at);
}
MOEK_DEVICE uint64_t *moek_ep_gpu_flag_(const moek_ep_gpu_ *g, int rank, int kind, int phase, int from)
{
    return moek_ep_gpu_word_(g, rank, moek_ep_flag_at_(&g->layout, g->ranks, kind, phase, g->handle, from));
}
MOEK_DEVICE moek_ep_totals_ moek_ep_gpu_local_(const moek_ep_gpu_ *g, int phase)
{
    return moek_ep_totals_of_(g->base[g->rank], &g->layout, g->handles, g->ranks, phase, g->handle);
}
MOEK_DEVICE char *moek_ep_gpu_field_(const moek_ep_gpu_ *g, int rank, moek_ep_field field, size_t row)
{
    return g->base[rank] + moek_ep_field_at_(&g->layout, g->handle, field, row);
}
/* alltoall, in the window of `rank`: how many rows rank `from` sends to each rank. */
MOEK_DEVICE uint32_t *moek_ep_gpu_counts_(const moek_ep_gpu_ *g, int rank, int from)
{
    return (uint32_t *)(g->base[rank] + g->layout.counts) + (g->handle * g->ranks + from) * g->ranks;
}
MOEK_DEVICE int moek_ep_gpu_place_(const moek_ep_gpu_ *g, int32_t id)     /* rank << 16 | local expert, or -1 */
{
    const int32_t *place = (const int32_t *)(g->base[g->rank] + g->layout.place);
    return (uint32_t)id < (uint32_t)g->physical_experts ? place[id] : -1;
}
/* In the window of rank `to`: whose part is mine? */
MOEK_DEVICE int moek_ep_gpu_mine_(const moek_ep_gpu_ *g, int to) { return g->moved ? to : g->rank; }
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
    if (here) {
        moek_store_relaxed_sys_(g->report, here);      /* who kept it may not have come to that yet */
        return (int)(here & 0xff);
    }
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
    e.rows = 0;
    return moek_ep_gpu_end_(g, moek_ep_pack_(&e));
}
typedef struct moek_ep_end_ { moek_ep_gpu_ g; uint64_t error; } moek_ep_end_;
static __global__ void moek_ep_end_k_(const moek_ep_end_ a) { moek_ep_gpu_end_(&a.g, a.error); }

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* By one thread: until *word is at least `least` beyond `from`.  `more`: than operations that were sent. */
MOEK_DEVICE int moek_ep_gpu_wait_(const moek_ep_gpu_ *g, const uint64_t *word, uint64_t from, uint64_t least, int phase,
                                  int peer, int more)
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
        if (now - start > g->timeout_ns)
            return moek_ep_gpu_fail_(g, MOEK_E_TIMEOUT, phase, peer,
                                     moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).operations) + more);
    }
    (void)moek_load_acquire_sys_(word);
    return 0;
}

/* By all threads of a block: a thread of the last warps for each peer, since the first ones have something else to do.
 * ask looks, and waits for nothing.  grant, only in blocks that publish counts (before the last of them is done,
 * `operations` stays what it is), waits where that was too early; not 0 in one of them: the group has ended.  (What an
 * earlier kernel wrote of `local` is read past L1: this one may start early.) */
typedef struct moek_ep_ask_ { uint64_t operations; int late, ended; } moek_ep_ask_;
MOEK_DEVICE moek_ep_ask_ moek_ep_gpu_ask_(const moek_ep_gpu_ *g, int phase)
{
    const int i = MOEK_EP_THREADS_ - 1 - (int)threadIdx.x;
    moek_ep_ask_ a = { 0, 0, 0 };
    uint64_t credit;
    if (i >= g->ranks) return a;
    credit = moek_load_acquire_sys_(moek_ep_gpu_flag_(g, g->rank, 1, phase, moek_ep_gpu_turn_(g, i)));
    a.operations = moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).operations);
    a.late = (int)((credit - a.operations) >> 63);
    if (i == 0) a.ended = moek_ep_gpu_ended_(g);
    return a;
}
MOEK_DEVICE int moek_ep_gpu_grant_(const moek_ep_gpu_ *g, int phase, moek_ep_ask_ a)
{
    const int p = moek_ep_gpu_turn_(g, MOEK_EP_THREADS_ - 1 - (int)threadIdx.x);
    if (!a.late || a.ended) return a.ended;
    return moek_ep_gpu_wait_(g, moek_ep_gpu_flag_(g, g->rank, 1, phase, p), 0, a.operations, phase, p, 1);
}

/* The same for all threads.  counts: [ranks], shared, written. */
MOEK_DEVICE int moek_ep_gpu_arrive_(const moek_ep_gpu_ *g, int phase, int *counts)
{
    const uint64_t one = (uint64_t)1 << 40;
    int ended = 0;
    if ((int)threadIdx.x < g->ranks) {
        const int p = moek_ep_gpu_turn_(g, threadIdx.x);
        const uint64_t *flag = moek_ep_gpu_flag_(g, g->rank, 0, phase, p);
        const uint64_t seen = moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).seen + p);
        ended = moek_ep_gpu_wait_(g, flag, seen, one, phase, p, 0);
        if (!ended) {
            const uint64_t now = moek_load_relaxed_sys_(flag) - seen;
            counts[p] = (int)(now & 0xffffffff);
            if (now >> 40 != 1 || (int)(now >> 32 & 0xff) != g->tag)
                ended = moek_ep_gpu_fail_(g, MOEK_E_MISMATCH, phase, p,
                                          moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).operations));
        }
    }
    if (threadIdx.x == 0 && !ended) ended = moek_ep_gpu_ended_(g);
    return __syncthreads_or(ended);
}

/* What the last block publishes with, a thread a peer; read early, since it takes a while. */
typedef struct moek_ep_news_ { uint64_t sent, arrived; } moek_ep_news_;
/* `other`: the phase of the kernels before, all of whose rows have arrived and been read. */
MOEK_DEVICE moek_ep_news_ moek_ep_gpu_news_(const moek_ep_gpu_ *g, int phase, int other)
{
    const int p = moek_ep_gpu_turn_(g, threadIdx.x);
    moek_ep_news_ n = { 0, 0 };
    if ((int)threadIdx.x >= g->ranks) return n;
    n.sent = moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).sent + p);
    n.arrived = moek_load_relaxed_sys_(moek_ep_gpu_flag_(g, g->rank, 0, other, p));
    return n;
}

/* By all threads of `blocks` blocks; the last of them to come tells the others of rows, counts: shared.  A block for
 * which the group has ended does not come, so that nothing is told. */
MOEK_DEVICE void moek_ep_gpu_publish_(const moek_ep_gpu_ *g, int phase, int other, moek_ep_news_ news, int blocks,
                                      const int *counts)
{
    const int p = moek_ep_gpu_turn_(g, threadIdx.x);
    uint32_t *done = (uint32_t *)(g->base[g->rank] + g->layout.done +
                                  (size_t)((phase - MOEK_EP_COUNTS) * g->handles + g->handle) * MOEK_EP_LINE_);
    uint64_t operations;
    __syncthreads();
    if (blocks > 1 && !__syncthreads_or(threadIdx.x == 0 && (int)moek_count_to_(done, blocks - 1) == blocks - 1))
        return;
    if ((int)threadIdx.x >= g->ranks) return;
    operations = *moek_ep_gpu_local_(g, other).operations;
    news.sent += (uint64_t)1 << 40 | (uint64_t)g->tag << 32 | (uint32_t)counts[p];
    moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 1, other, moek_ep_gpu_mine_(g, p)), operations);
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 0, phase, moek_ep_gpu_mine_(g, p)), news.sent);
    moek_ep_gpu_local_(g, phase).sent[p] = news.sent;
    moek_ep_gpu_local_(g, other).seen[p] = news.arrived;
    if (threadIdx.x == 0) *moek_ep_gpu_local_(g, phase).operations += 1;
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
    if (a->g.gather) return ~(uint64_t)0 >> (64 - a->g.ranks);
    for (k = 0; k < a->g.slots; k++) {
        const int place = moek_ep_gpu_place_(&a->g, ids[k]);
        if (place >= 0) ranks |= (uint64_t)1 << (place >> 16);
    }
    return ranks;
}

/* Rows that go to each rank: row (added to) of the tokens before `first`, all (written) of all of them; both shared.
 * Meanwhile the grant.  Not 0: the group has ended. */
MOEK_DEVICE int moek_ep_gpu_number_(const moek_ep_send_ *a, int phase, int first, int *row, int *all)
{
    const int lane = threadIdx.x % 32, ranks = a->g.ranks;
    int t0, p, ended;
    if ((int)threadIdx.x < ranks) all[threadIdx.x] = 0;
    __syncthreads();
    ended = moek_ep_gpu_grant_(&a->g, phase, moek_ep_gpu_ask_(&a->g, phase));
    __syncwarp();
    for (t0 = threadIdx.x - lane; t0 < a->tokens; t0 += MOEK_EP_THREADS_) {
        const int t = t0 + lane;
        const uint64_t to = t < a->tokens ? moek_ep_gpu_ranks_(a, t) : 0;
        for (p = 0; p < ranks; p++) {
            const uint32_t here = __ballot_sync(0xffffffff, to >> p & 1);
            const uint32_t earlier = __ballot_sync(0xffffffff, (to >> p & 1) && t < first);
            if (lane == 0 && here) atomicAdd(&all[p], __popc(here));
            if (lane == 0 && earlier) atomicAdd(&row[p], __popc(earlier));
        }
    }
    return __syncthreads_or(ended);
}

/* alltoall: too many rows for some rank.  By one thread: the host is told how many, and which. */
MOEK_DEVICE void moek_ep_gpu_full_(const moek_ep_gpu_ *g)
{
    const uint64_t operation = moek_load_relaxed_sys_(moek_ep_gpu_local_(g, MOEK_EP_COUNTS).operations);
    uint32_t rows, most = 0;
    int p, s, fullest = 0;
    for (p = 0; p < g->ranks; p++) {
        for (rows = 0, s = 0; s < g->ranks; s++) rows += moek_ep_gpu_counts_(g, g->rank, s)[p];
        if (rows > most) { most = rows; fullest = p; }
    }
    moek_store_relaxed_sys_(g->report + 1 + g->handle, moek_ep_pack_full_(most, fullest, operation));
}

enum { MOEK_EP_FULL_ = -1 };

/* alltoall: waits for everybody's counts.  row: [ranks], shared, written: where my rows begin at each rank; unused: as
 * long, shared.  MOEK_EP_FULL_: they do not fit; else not 0: the group has ended. */
MOEK_DEVICE int moek_ep_gpu_room_(const moek_ep_gpu_ *g, int *row, int *unused)
{
    const int p = threadIdx.x;
    int rows = 0, s;
    if (moek_ep_gpu_arrive_(g, MOEK_EP_COUNTS, unused)) return 1;
    for (s = 0; s < g->ranks && p < g->ranks; s++) {
        if (s == g->rank) row[p] = rows;
        rows += (int)moek_ep_gpu_counts_(g, g->rank, s)[p];
    }
    if (!__syncthreads_or(rows > g->packed)) return 0;
    if (p == 0 && blockIdx.x == 0) moek_ep_gpu_full_(g);
    return MOEK_EP_FULL_;
}

/* One block: how many rows go to whom, to all. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 1) moek_ep_counts_k_(const moek_ep_send_ a)
{
    __shared__ int row[MOEK_EP_MAX_RANKS], all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    moek_ep_news_ news;
    int i;
    moek_grid_wait_();
    moek_grid_go_();
    news = moek_ep_gpu_news_(g, MOEK_EP_COUNTS, MOEK_EP_COMBINE);
    if (moek_ep_gpu_number_(&a, MOEK_EP_COUNTS, 0, row, all)) return;
    for (i = threadIdx.x; i < g->ranks * g->ranks; i += MOEK_EP_THREADS_)
        moek_ep_gpu_counts_(g, i / g->ranks, g->rank)[i % g->ranks] = (uint32_t)all[i % g->ranks];
    moek_ep_gpu_publish_(g, MOEK_EP_COUNTS, MOEK_EP_COMBINE, news, 1, all);
}

/* Token, ids and weights of a row: what thread k (ids) or 64 + k (weights) puts there. */
MOEK_DEVICE int32_t moek_ep_gpu_fetch_head_(const moek_ep_send_ *a, int token)
{
    const int k = threadIdx.x % 64;
    const size_t slot = (size_t)token * a->g.slots + k;
    if (threadIdx.x >= 128 || k >= a->g.slots) return token;
    if (threadIdx.x < 64) return moek_ep_gpu_place_(&a->g, a->ids[slot]);
    return (int32_t)moek_bits_(a->weights ? a->weights[slot] : 1.0f);
}
MOEK_DEVICE void moek_ep_gpu_put_head_(const moek_ep_send_ *a, int p, size_t row, int32_t head)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int k = threadIdx.x % 64, here = head >= 0 && head >> 16 == p;
    if (threadIdx.x == 128) *(int32_t *)moek_ep_gpu_field_(&a->g, p, l->token, row) = head;
    if (threadIdx.x >= 128 || k >= a->g.slots) return;
    if (threadIdx.x < 64) ((int32_t *)moek_ep_gpu_field_(&a->g, p, l->ids, row))[k] = here ? head & 0xffff : -1;
    else ((int32_t *)moek_ep_gpu_field_(&a->g, p, l->weights, row))[k] = head;
}

/* A thread's part of a stretch of a row: MOEK_EP_DEPTH_ times 16 bytes. */
enum { MOEK_EP_DEPTH_ = 4 };

/* As it is: words w0, w0 + THREADS, ... */
MOEK_DEVICE void moek_ep_gpu_fetch_words_(const moek_ep_send_ *a, int token, int w0, moek_words_ *v)
{
    const char *const from = a->x + (size_t)token * a->row_words * 16;
    int d;
    #pragma unroll
    for (d = 0; d < MOEK_EP_DEPTH_; d++) {
        const int w = w0 + d * MOEK_EP_THREADS_ + threadIdx.x;
        v[d] = w < a->row_words ? moek_load_words_(from + 16 * (size_t)w) : moek_zero_words_();
    }
}
MOEK_DEVICE void moek_ep_gpu_send_words_(const moek_ep_send_ *a, int token, uint64_t to, const int *row, moek_words_ *v)
{
    const moek_ep_layout *const l = &a->g.layout;
    int w0, d, i, j;
    for (w0 = 0; w0 < a->row_words; w0 += MOEK_EP_DEPTH_ * MOEK_EP_THREADS_) {
        if (w0) moek_ep_gpu_fetch_words_(a, token, w0, v);
        for (i = 0; i < a->g.ranks; i++) {
            const int p = moek_ep_gpu_turn_(&a->g, i);
            char *x;
            if (!(to >> p & 1)) continue;
            x = moek_ep_gpu_field_(&a->g, p, l->x, row[p]);
            #pragma unroll
            for (d = 0; d < MOEK_EP_DEPTH_; d++) {
                const int w = w0 + d * MOEK_EP_THREADS_ + threadIdx.x;
                if (w < a->row_words) moek_store_words_(x + 16 * (size_t)w, v[d]);
            }
        }
    }
    for (j = threadIdx.x; j < a->scale_words; j += MOEK_EP_THREADS_)
        for (i = 0; i < a->g.ranks; i++)
            if (to >> i & 1)
                ((uint32_t *)moek_ep_gpu_field_(&a->g, i, l->scale, row[i]))[j] =
                    a->scale[(size_t)token * a->scale_words + j];
}

/* Quantized on the way: a thread has 16 columns, 8 threads the 128 of a scale. */
MOEK_DEVICE void moek_ep_gpu_fetch_columns_(const moek_ep_send_ *a, int token, int w0, moek_words_ *v)
{
    const uint16_t *const from = (const uint16_t *)a->x + (size_t)token * a->hidden;
    int d;
    #pragma unroll
    for (d = 0; d < MOEK_EP_DEPTH_; d++) {
        const int w = w0 + d / 2 * MOEK_EP_THREADS_ + threadIdx.x;
        v[d] = w < a->row_words ? moek_load_words_(from + 16 * (size_t)w + 8 * (d % 2)) : moek_zero_words_();
    }
}
MOEK_DEVICE void moek_ep_gpu_send_codes_(const moek_ep_send_ *a, int token, uint64_t to, const int *row, moek_words_ *v,
                                         int dtype)
{
    enum { DEPTH = MOEK_EP_DEPTH_ / 2, LANES = 8 };
    const moek_ep_layout *const l = &a->g.layout;
    uint2 q[DEPTH][2];
    float s[DEPTH];
    int w0, d, i;
    for (w0 = 0; w0 < a->row_words; w0 += DEPTH * MOEK_EP_THREADS_) {
        if (w0) moek_ep_gpu_fetch_columns_(a, token, w0, v);
        #pragma unroll
        for (d = 0; d < DEPTH; d++) s[d] = moek_group_codes_(q[d], v + 2 * d, 2, LANES, a->ue8m0, dtype);
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

/* What a thread reads of a token.  quantize: 0, or MOEK_DTYPE_* of x. */
typedef struct moek_ep_token_ { uint64_t to; moek_words_ v[MOEK_EP_DEPTH_]; int32_t head; } moek_ep_token_;
MOEK_DEVICE void moek_ep_gpu_fetch_(const moek_ep_send_ *a, int token, int quantize, moek_ep_token_ *t)
{
    if (quantize) moek_ep_gpu_fetch_columns_(a, token, 0, t->v);
    else moek_ep_gpu_fetch_words_(a, token, 0, t->v);
    t->head = moek_ep_gpu_fetch_head_(a, token);
    t->to = moek_ep_gpu_ranks_(a, token);
}

/* packed: alltoall.  It is a constant, like quantize, so that the other kinds pay nothing for it. */
MOEK_DEVICE void moek_ep_gpu_send_(const moek_ep_send_ *a, int quantize, int packed)
{
    __shared__ int row[MOEK_EP_MAX_RANKS], all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const int first = blockIdx.x * a->block_tokens, me = threadIdx.x;
    const int before = packed ? MOEK_EP_COUNTS : MOEK_EP_COMBINE;
    moek_ep_token_ it;
    moek_ep_news_ news;
    int end = min(first + a->block_tokens, a->tokens), t, p, room = 0;
    moek_grid_wait_();
    moek_grid_go_();
    if (packed) room = moek_ep_gpu_room_(g, row, all);
    else if (me < g->ranks) row[me] = moek_ep_gpu_mine_(g, me) * g->max_tokens;
    if (room > 0) return;
    news = moek_ep_gpu_news_(g, MOEK_EP_DISPATCH, before);
    if (first < end) moek_ep_gpu_fetch_(a, first, quantize, &it);
    if (moek_ep_gpu_number_(a, MOEK_EP_DISPATCH, first, row, all)) return;
    if (room && me < g->ranks) all[me] = MOEK_EP_FULL_;
    if (room) end = first;
    for (t = first; t < end; t++) {
        if (t > first) moek_ep_gpu_fetch_(a, t, quantize, &it);
        for (p = 0; p < g->ranks; p++) if (it.to >> p & 1) moek_ep_gpu_put_head_(a, p, row[p], it.head);
        if (quantize) moek_ep_gpu_send_codes_(a, t, it.to, row, it.v, quantize);
        else moek_ep_gpu_send_words_(a, t, it.to, row, it.v);
        __syncthreads();
        if (me < g->ranks) row[me] += (int)(it.to >> me & 1);
        __syncthreads();
    }
    moek_ep_gpu_publish_(g, MOEK_EP_DISPATCH, before, news, gridDim.x, all);
}
MOEK_DEVICE void moek_ep_gpu_send_quantized_(const moek_ep_send_ *a, int packed)
{
    if (a->dtype == MOEK_DTYPE_FP16) moek_ep_gpu_send_(a, MOEK_DTYPE_FP16, packed);
    else moek_ep_gpu_send_(a, MOEK_DTYPE_BF16, packed);
}
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4)
moek_ep_send_words_k_(const moek_ep_send_ a) { moek_ep_gpu_send_(&a, 0, 0); }
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4)
moek_ep_send_codes_k_(const moek_ep_send_ a) { moek_ep_gpu_send_quantized_(&a, 0); }
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 3)
moek_ep_send_packed_words_k_(const moek_ep_send_ a) { moek_ep_gpu_send_(&a, 0, 1); }
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 3)
moek_ep_send_packed_codes_k_(const moek_ep_send_ a) { moek_ep_gpu_send_quantized_(&a, 1); }

/* ---- prepare_receive --------------------------------------------------------------------------------------------- */

typedef struct moek_ep_receive_ {
    moek_ep_gpu_ g;
    int experts, rows_per_expert, row_words, scale_words;
    int go;                           /* the kernel behind may start: nothing that others wait for needs its place    */
    int32_t *counts, *offsets, *expert_tokens, *slot_row, *ids;  /* written, as moek_ep_work_ says                    */
    char *x;
    uint32_t *scale;
} moek_ep_receive_;

/* By a warp: part `part` of PARTS of received row `row` to row `at` of the experts. */
enum { MOEK_EP_PARTS_ = 4 };
MOEK_DEVICE void moek_ep_gpu_take_row_(const moek_ep_receive_ *a, int row, int at, int part)
{
    enum { DEPTH = 4 };
    const moek_ep_layout *const l = &a->g.layout;
    const char *const from = moek_ep_gpu_field_(&a->g, a->g.rank, l->x, row);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(&a->g, a->g.rank, l->scale, row);
    char *const to = a->x + (size_t)at * a->row_words * 16;
    const int lane = threadIdx.x % 32, step = (a->row_words + MOEK_EP_PARTS_ - 1) / MOEK_EP_PARTS_;
    const int end = min(a->row_words, (part + 1) * step);
    moek_words_ v[DEPTH];
    int w0, d, j;
    for (w0 = part * step + lane; w0 < end; w0 += 32 * DEPTH) {
        #pragma unroll
        for (d = 0; d < DEPTH; d++) if (w0 + 32 * d < end) v[d] = moek_load_words_(from + 16 * (size_t)(w0 + 32 * d));
        #pragma unroll
        for (d = 0; d < DEPTH; d++) if (w0 + 32 * d < end) moek_store_words_(to + 16 * (size_t)(w0 + 32 * d), v[d]);
    }
    for (j = 32 * part + lane; j < a->scale_words; j += 32 * MOEK_EP_PARTS_)
        a->scale[(size_t)at * a->scale_words + j] = scale[j];
}

/* How many of a received row's slots are expert e's.  (Behind the slots is room to 16 bytes, and rubbish.) */
MOEK_DEVICE int moek_ep_gpu_hits_(const int32_t *ids, int slots, int e)
{
    int k, hits = 0;
    #pragma unroll 2
    for (k = 0; k < slots; k += 4) {
        const int4 id = *(const int4 *)(ids + k);
        hits += (id.x == e) + (k + 1 < slots && id.y == e);
        hits += (k + 2 < slots && id.z == e) + (k + 3 < slots && id.w == e);
    }
    return hits;
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

/* One expert's rows, of which this block copies a gridDim.y-th.  counts: shared. */
MOEK_DEVICE void moek_ep_gpu_take_expert_(const moek_ep_receive_ *a, int e, const int *counts, int total)
{
    enum { WARPS = MOEK_EP_THREADS_ / 32 };
    __shared__ int part[WARPS], list[MOEK_EP_THREADS_], list_at[MOEK_EP_THREADS_], list_hits[MOEK_EP_THREADS_];
    const moek_ep_gpu_ *const g = &a->g;
    const int limit = a->rows_per_expert;
    int filled = 0, n0, n, k, h, all;
    for (n0 = 0; n0 < total; n0 += MOEK_EP_THREADS_) {
        int row = n0 + threadIdx.x, s = 0, hits = 0, before, at;
        const int32_t *ids = NULL;
        if (row < total) {
            while (row >= counts[s]) row -= counts[s++];
            row += s * g->max_tokens;
            ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, row);
            hits = moek_ep_gpu_hits_(ids, g->slots, e);
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
        for (n = threadIdx.x / 32 + WARPS * blockIdx.y; n < MOEK_EP_PARTS_ * (all >> 16); n += WARPS * gridDim.y) {
            const int i = n / MOEK_EP_PARTS_;
            for (h = 0; h < list_hits[i]; h++)
                if (list_at[i] + h < limit)
                    moek_ep_gpu_take_row_(a, list[i], e * limit + list_at[i] + h, n % MOEK_EP_PARTS_);
        }
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
    if (a.go) moek_grid_go_();
    moek_grid_wait_();
    for (p = 0; p < a.g.ranks && !ended; p++) total += counts[p];
    for (e = blockIdx.x; e < a.experts; e += gridDim.x) moek_ep_gpu_take_expert_(&a, e, counts, total);
    if (one && (int)threadIdx.x < a.g.ranks) a.counts[threadIdx.x] = ended ? 0 : counts[threadIdx.x];
}

/* Ids, of -1 where there are no rows: allgather: behind those of each rank; alltoall: behind all.  A copy: where the
 * group has ended a peer may still store rows, and who sorts must read the same twice. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_) moek_ep_receive_rows_k_(const moek_ep_receive_ a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int ended = moek_ep_gpu_arrive_(g, MOEK_EP_DISPATCH, counts), me = threadIdx.x;
    const int rows = g->packed ? g->packed : g->ranks * g->max_tokens;
    int row, k, p, offset = 0, total = 0;
    for (p = 0; p < g->ranks && !ended; p++) {
        if (p == me) offset = total;
        total += max(counts[p], 0);
    }
    moek_grid_wait_();
    for (row = blockIdx.x * MOEK_EP_THREADS_ + threadIdx.x; row < rows; row += gridDim.x * MOEK_EP_THREADS_) {
        const int32_t *const ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, row);
        const int live = g->packed ? row < total : !ended && row % g->max_tokens < counts[row / g->max_tokens];
        for (k = 0; k < g->slots; k++) a.ids[(size_t)row * g->slots + k] = live ? ids[k] : -1;
    }
    if (blockIdx.x == 0 && me < g->ranks) a.counts[me] = ended ? 0 : counts[me];
    if (blockIdx.x == 0 && me <= g->ranks && g->packed) a.offsets[me] = me < g->ranks ? offset : total;
}

/* ---- finalize_send ----------------------------------------------------------------------------------------------- */

typedef struct moek_ep_giveback_ {
    moek_ep_gpu_ g;
    int hidden, dtype;
    int reduced;                      /* the experts weighted and added up themselves: a row of out for each received */
    const int32_t *counts, *offsets;  /* of the rows of each rank; offsets NULL: rank * max_tokens                    */
    const int32_t *slot_row;          /* NULL: row k of received row r is r * slots + k                               */
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

/* Eight columns of a received row, of rank `to`; lane k of a warp knows its slot k. */
MOEK_DEVICE void moek_ep_gpu_give_(const moek_ep_giveback_ *a, int to, size_t row, int column)
{
    enum { DEPTH = 4 };
    const moek_ep_gpu_ *const g = &a->g;
    const int f32 = g->combine == MOEK_EP_REDUCED_F32, lane = threadIdx.x % 32, slots = g->slots;
    const size_t bytes = (size_t)a->hidden * (f32 ? 4 : 2);
    const int32_t *const ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, row);
    const int id = lane < slots ? ids[lane] : -1;
    const int at = a->reduced ? (lane ? -1 : (int)row) : id < 0 ? -1
                 : a->slot_row ? a->slot_row[row * slots + lane] : (int)(row * slots) + lane;
    const float *const weights = (const float *)moek_ep_gpu_field_(g, g->rank, g->layout.weights, row);
    const float weight = a->reduced ? 1.0f : lane < slots ? weights[lane] : 0;
    const size_t token = *(const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.token, row) +
                         (g->moved ? (size_t)to * g->max_tokens : 0);
    const uint32_t mine = __ballot_sync(0xffffffff, id >= 0);
    uint32_t left = __ballot_sync(0xffffffff, at >= 0);
    const int slot = g->moved ? 0 : g->ranks <= slots ? g->rank : __ffs(mine) - 1;
    char *const put = g->base[to] + moek_ep_partial_at_(&g->layout, g->handle, token * g->layout.slots, bytes);
    float sum[8] = {0}, x[8];
    int d, j, k;
    if (g->combine == MOEK_EP_EXACT) {
        for (k = 0; k < slots; k++) {
            const int from = __shfl_sync(0xffffffff, at, k);
            if (mine >> k & 1 && column < a->hidden)
                moek_store_words_(put + k * bytes + 2 * (size_t)column, from < 0 ? moek_zero_words_()
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
        moek_ep_gpu_put8_(put + slot * bytes, column, sum, f32, a->dtype);
}

/* Items: (row, stretch of columns); rows of the next rank first, ours last.  Blocks without an item leave, and must not
 * wait: they may come when the others have published. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4) moek_ep_giveback_k_(const moek_ep_giveback_ a)
{
    enum { COLUMNS = 8 * MOEK_EP_THREADS_ };
    __shared__ int counts[MOEK_EP_MAX_RANKS], offsets[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int stretches = (a.hidden + COLUMNS - 1) / COLUMNS, me = threadIdx.x;
    const moek_ep_ask_ ask = moek_ep_gpu_ask_(g, MOEK_EP_COMBINE);
    int n, items = 0, p;
    moek_ep_news_ news;
    moek_grid_wait_();
    moek_grid_go_();
    news = moek_ep_gpu_news_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH);
    if (me < g->ranks) counts[me] = a.counts[me];
    if (me < g->ranks) offsets[me] = a.offsets ? a.offsets[me] : me * g->max_tokens;
    __syncthreads();
    for (p = 0; p < g->ranks; p++) items += max(counts[p], 0) * stretches;
    if (blockIdx.x && (int)blockIdx.x >= items) return;
    /* (A receiving block that saw the end left its rows without numbers: look again, now that it is done.) */
    if (__syncthreads_or(moek_ep_gpu_grant_(g, MOEK_EP_COMBINE, ask) || (me == 0 && moek_ep_gpu_ended_(g)))) return;
    for (n = blockIdx.x; n < items; n += gridDim.x) {
        int i = n / stretches, turn = 0;
        while (i >= counts[moek_ep_gpu_turn_(g, turn)]) i -= counts[moek_ep_gpu_turn_(g, turn++)];
        p = moek_ep_gpu_turn_(g, turn);
        moek_ep_gpu_give_(&a, p, (size_t)offsets[p] + i, n % stretches * COLUMNS + 8 * me);
    }
    moek_ep_gpu_publish_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH, news, max(1, min(items, (int)gridDim.x)), counts);
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

/* Rows of partial that come back for a token, in the order of their sum: lane n of a warp gets row n.  How many. */
typedef struct moek_ep_sum_ { int mine, rows; float weight; } moek_ep_sum_;
MOEK_DEVICE moek_ep_sum_ moek_ep_gpu_returned_(const moek_ep_collect_ *a, int token)
{
    const moek_ep_gpu_ *const g = &a->g;
    const int lane = threadIdx.x % 32, exact = g->combine == MOEK_EP_EXACT;
    const int32_t *const ids = a->ids + (size_t)token * g->slots;
    const int place = lane < g->slots ? moek_ep_gpu_place_(g, moek_load4_l2_(ids + lane)) : -1;
    moek_ep_sum_ s = { 0, 0, 1.0f };
    int p;
    for (p = 0; p < (exact ? g->slots : g->ranks); p++) {
        const uint32_t there = __ballot_sync(0xffffffff, place >= 0 && (exact ? lane : place >> 16) == p);
        if (!there) continue;
        if (lane == s.rows) s.mine = exact || g->moved || g->ranks <= g->slots ? p : __ffs(there) - 1;
        s.rows++;
    }
    if (exact && a->weights)
        s.weight = moek_float_((uint32_t)moek_load4_l2_(a->weights + (size_t)token * g->slots + s.mine));
    if (!g->moved) return s;
    p = __shfl_sync(0xffffffff, place, exact ? s.mine : 0) >> 16;
    s.mine = exact ? p * g->max_tokens * g->slots + s.mine : s.mine * g->max_tokens;
    return s;
}

/* Eight columns of a token. */
MOEK_DEVICE void moek_ep_gpu_collect_(const moek_ep_collect_ *a, int token, int column, moek_ep_sum_ s)
{
    enum { DEPTH = 4 };
    const moek_ep_gpu_ *const g = &a->g;
    const int f32 = g->combine == MOEK_EP_REDUCED_F32, words = f32 ? 2 : 1;       /* 16-byte words of eight columns */
    const size_t bytes = (size_t)a->hidden * (f32 ? 4 : 2), first = (size_t)token * g->layout.slots;
    const char *const from = g->base[g->rank] + moek_ep_partial_at_(&g->layout, g->handle, first, bytes) +
                             (f32 ? 4 : 2) * (size_t)column;
    float sum[8] = {0}, x[8];
    int n0, d, j;
    for (n0 = 0; n0 < s.rows * words; n0 += DEPTH) {
        moek_words_ v[DEPTH];
        float by[DEPTH];
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            const int row = __shfl_sync(0xffffffff, s.mine, (n0 + d) / words);
            by[d] = __shfl_sync(0xffffffff, s.weight, (n0 + d) / words);
            if (n0 + d < s.rows * words && column < a->hidden)
                v[d] = moek_load_words_(from + row * bytes + d % words * 16);
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            if (n0 + d >= s.rows * words || column >= a->hidden) continue;
            if (f32) {
                #pragma unroll
                for (j = 0; j < 4; j++) sum[d % 2 * 4 + j] += moek_float_(v[d].w[j]);
                continue;
            }
            moek_from_t8_(x, v[d], a->dtype);
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

/* Items: (token, stretch of columns).  Where the first one's rows will be is asked before they are there. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_, 4) moek_ep_collect_k_(const moek_ep_collect_ a)
{
    enum { COLUMNS = 8 * MOEK_EP_THREADS_ };
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const int stretches = (a.hidden + COLUMNS - 1) / COLUMNS, items = a.tokens * stretches;
    moek_ep_sum_ s = { 0, 0, 0.0f };
    int n, ended;
    if ((int)blockIdx.x < items) s = moek_ep_gpu_returned_(&a, blockIdx.x / stretches);
    ended = moek_ep_gpu_arrive_(&a.g, MOEK_EP_COMBINE, counts) || counts[0] == MOEK_EP_FULL_;
    moek_grid_wait_();
    for (n = blockIdx.x; n < items && !ended; n += gridDim.x) {
        if (n != (int)blockIdx.x) s = moek_ep_gpu_returned_(&a, n / stretches);
        moek_ep_gpu_collect_(&a, n / stretches, n % stretches * COLUMNS + 8 * threadIdx.x, s);
    }
}
#endif
