/* moek/ep_device.h -- the protocol of ep_wire.h as kernels speak it, and the kernels of the three kinds.
 *
 *     counts    alltoall only: how many rows go to whom, into all windows; publish.  (Where rows are moved, shares:
 *               the same beside the rows to come; nothing to publish yet)
 *     send      (alltoall: arrive with the counts;) quantize (fp8b128) or copy rows into the windows of their ranks;
 *               publish
 *     receive   arrive; low_latency: rows to [local experts][rows_per_expert], by rank and token within an expert;
 *               others (receive_rows): rows lie where the experts read them.  What giveback will ask is copied: it
 *               leaves the received rows alone
 *     giveback  publish, release; what the experts gave, reduced by token, into the windows of the tokens' ranks
 *     collect   arrive; add up, ranks ascending
 *
 * Few tokens (low_latency) are waited for by latency: a block a row, or a stretch of one.  Many go by wires: a warp a
 * row, on the way out on 24 multiprocessors at most, the others are free for what the caller has to compute.
 *
 * WORDS that come back by low_latency say themselves that they are there: 4 bytes travel as their complement, 0 is what
 * has not come, and who has read them leaves 0 behind.  So there is no fence, no barrier and no second look between who
 * writes and who reads.
 * MARKS.  Rows that low_latency sends, and those that come back by the other kinds, are not counted until they are
 * there: each is marked with the operation's number by who wrote it, and taken while others are on their way.
 * giveback, and send of low_latency, publish at once how many tokens there are (one block does).  The other kinds' rows
 * that go out are published when all are there, by the last block (a counter in the window, left as it was).
 *
 * Each block waits for itself, and no block for another one of its kernel: so kernels need not be resident as a whole.
 * (That is why counts is a kernel of its own: blocks of send wait for those of their own rank, too.)
 * Who publishes also does what the receiving kernel before left: counts as seen what has arrived, and releases.  (So
 * combine is released by the next operation's send, or counts: in time, since nobody asks for that credit before.)
 * Where the group has ended, blocks leave and no more is published.  Where rows would not fit (alltoall), which all
 * ranks find alike, an operation goes on without rows: send and giveback publish counts of -1, and collect leaves y
 * alone.  (Where rows are moved, all find it when they receive: a rank whose rows did not fit sends such counts.)
 *
 * receive and collect may start while the kernel ahead still runs (programmatic dependent launch): they wait for flags,
 * words and marks, and write what only kernels before that one have read; all their blocks wait for it before they end,
 * since the kernels behind rely on that.  send and giveback let them start.
 *
 * What a kernel wrote to a peer comes before its flag or mark: the writes of a block or warp, a barrier, a fence at
 * system scope, a relaxed store.  Polls acquire: one load less on the way than to look again. */
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
/* 16 bytes that a peer may be writing, or wait for: each 4 of them come whole, in no order. */
MOEK_DEVICE moek_words_ moek_load_words_sys_(const void *p)
{
    moek_words_ v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
    return v;
}
MOEK_DEVICE void moek_store_words_sys_(void *p, moek_words_ v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
                 :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
/* Stored; stays: and the last to leave L2.  (A policy made once takes collect more registers.) */
MOEK_DEVICE void moek_store_words_last_(void *p, moek_words_ v, int stays)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
    asm volatile("{\n"
                 ".reg .pred stays;\n"
                 "setp.ne.s32 stays, %6, 0;\n"
                 "@stays st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;\n"
                 "@!stays st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
                 "}\n" :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "l"(policy), "r"(stays)
                 : "memory");
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
MOEK_FN moek_words_ moek_load_words_sys_(const void *p)
{
    moek_words_ v;
    int i;
    for (i = 0; i < 4; i++) v.w[i] = __atomic_load_n((const uint32_t *)p + i, __ATOMIC_RELAXED);
    return v;
}
MOEK_FN void moek_store_words_sys_(void *p, moek_words_ v)
{
    int i;
    for (i = 0; i < 4; i++) __atomic_store_n((uint32_t *)p + i, v.w[i], __ATOMIC_RELAXED);
}
MOEK_FN void moek_store_words_last_(void *p, moek_words_ v, int stays) { (void)stays; moek_store_words_(p, v); }
MOEK_FN int32_t moek_load4_l2_(const void *p) { return *(const int32_t *)p; }
#endif

/* ---- the group, as kernels know it ------------------------------------------------------------------------------- */

/* Few tokens: threads of a block, and the most blocks on a multiprocessor. */
enum { MOEK_EP_THREADS_ = 256, MOEK_EP_EACH_ = 3 };
enum { MOEK_EP_ABSENT_ = -1, MOEK_EP_DROPPED_ = -2 };  /* slot_row: no expert of this rank; no room for it            */

/* Of a row: elements of two bytes, whatever x is, from one that is sent to the next; 16 bytes of x on the wire; scales.
 * Kernels of one hidden size have the latter two, of e4m3 with a scale for 128 columns, as constants. */
typedef struct moek_ep_sizes_ { int x_stride, words, groups; } moek_ep_sizes_;
MOEK_FN moek_ep_sizes_ moek_ep_sizes_of_codes_(int hidden, int x_stride)
{
    moek_ep_sizes_ s;
    s.x_stride = x_stride; s.words = hidden / 16; s.groups = (hidden + 127) / 128;
    return s;
}

typedef struct moek_ep_gpu_ {
    moek_ep_layout layout;
    int rank, ranks, handle, handles, slots, physical_experts, max_tokens, tag, combine;
    int gather;                       /* allgather: each token goes to all ranks                                      */
    int packed;                       /* alltoall: the most rows that a rank receives; others: 0                      */
    int moved;                        /* rows are moved: base[p] is what goes out, and its parts are p's              */
    int every;                        /* moved, allgather: rows and scales from my own window to every rank           */
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
/* In the window of `rank`: how many rows rank `from` sends to each rank (alltoall), to each expert (low_latency). */
MOEK_DEVICE uint32_t *moek_ep_gpu_counts_(const moek_ep_gpu_ *g, int rank, int from)
{
    return (uint32_t *)(g->base[rank] + moek_ep_counts_at_(&g->layout, g->ranks, g->handle, from));
}
/* Of a row of dispatch (low_latency) or of partial (the others): the operation that wrote it last. */
MOEK_DEVICE uint64_t *moek_ep_gpu_mark_(const moek_ep_gpu_ *g, int rank, size_t row)
{
    return moek_ep_gpu_word_(g, rank, moek_ep_mark_at_(&g->layout, g->handle, row));
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

/* The operation under way, from 1.  Each phase asks the other's count, which does not move while its kernels run. */
MOEK_DEVICE uint64_t moek_ep_gpu_operation_(const moek_ep_gpu_ *g, int phase)
{
    const int other = phase == MOEK_EP_COMBINE ? MOEK_EP_DISPATCH : MOEK_EP_COMBINE;
    return moek_load_relaxed_sys_(moek_ep_gpu_local_(g, other).operations) + (phase != MOEK_EP_COMBINE);
}

/* By a thread between two looks, whose number it counts: is it time to give up?  Then give_up says why, which is not
 * 0: the group has ended, or does so now. */
typedef struct moek_ep_patience_ { uint64_t start; unsigned polls; } moek_ep_patience_;
MOEK_DEVICE int moek_ep_gpu_enough_(const moek_ep_gpu_ *g, moek_ep_patience_ *wait)
{
    uint64_t now;
    if (++wait->polls % 64) return 0;
    if (moek_load_relaxed_sys_(moek_ep_gpu_word_(g, g->rank, g->layout.latch)) ||
        moek_load_relaxed_sys_(moek_ep_gpu_word_(g, g->rank, g->layout.abort_word))) return 1;
    now = moek_clock_ns_();
    if (!wait->start) wait->start = now;
    return now - wait->start > g->timeout_ns;
}
MOEK_DEVICE int moek_ep_gpu_give_up_(const moek_ep_gpu_ *g, int phase, int peer)
{
    const int ended = moek_ep_gpu_ended_(g);
    return ended ? ended : moek_ep_gpu_fail_(g, MOEK_E_TIMEOUT, phase, peer, moek_ep_gpu_operation_(g, phase));
}

/* By one thread: until *word is at least `least` beyond `from`; *value (or NULL): what it is then. */
MOEK_DEVICE int moek_ep_gpu_wait_(const moek_ep_gpu_ *g, const uint64_t *word, uint64_t from, uint64_t least, int phase,
                                  int peer, uint64_t *value)
{
    moek_ep_patience_ wait = { 0, 0 };
    uint64_t seen;
    while (((seen = moek_load_acquire_sys_(word)) - from - least) >> 63)
        if (moek_ep_gpu_enough_(g, &wait)) return moek_ep_gpu_give_up_(g, phase, peer);
    if (value) *value = seen;
    return 0;
}

/* What comes back by low_latency says itself that it is there: 4 bytes are sent as their complement, 0 is what has not
 * come, and who has read them leaves 0 behind.  (Of 4 bytes that are all ones the first bit is lost, a NaN's sign.) */
MOEK_DEVICE moek_words_ moek_ep_sent_(moek_words_ v)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) v.w[i] = ~v.w[i] ? ~v.w[i] : 0x80000000;
    return v;
}
MOEK_DEVICE int moek_ep_is_there_(moek_words_ v) { return v.w[0] && v.w[1] && v.w[2] && v.w[3]; }

/* By all threads of a block: a thread of the last warps for each peer, since the first ones have something else to do.
 * ask looks, and waits for nothing; grant waits where that was too early.  Not 0 in one thread: the group has ended. */
typedef struct moek_ep_ask_ { uint64_t operations; int late, ended; } moek_ep_ask_;
MOEK_DEVICE moek_ep_ask_ moek_ep_gpu_ask_(const moek_ep_gpu_ *g, int phase)
{
    const int i = (int)(blockDim.x - 1 - threadIdx.x);
    moek_ep_ask_ a = { 0, 0, 0 };
    uint64_t credit;
    if (i >= g->ranks) return a;
    credit = moek_load_acquire_sys_(moek_ep_gpu_flag_(g, g->rank, 1, phase, moek_ep_gpu_turn_(g, i)));
    a.operations = moek_ep_gpu_operation_(g, phase) - 1;
    a.late = (int)((credit - a.operations) >> 63);
    if (i == 0) a.ended = moek_ep_gpu_ended_(g);
    return a;
}
MOEK_DEVICE int moek_ep_gpu_grant_(const moek_ep_gpu_ *g, int phase, moek_ep_ask_ a)
{
    const int p = moek_ep_gpu_turn_(g, (int)(blockDim.x - 1 - threadIdx.x));
    if (!a.late || a.ended) return a.ended;
    return moek_ep_gpu_wait_(g, moek_ep_gpu_flag_(g, g->rank, 1, phase, p), 0, a.operations, phase, p, NULL);
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
        uint64_t now = 0;
        ended = moek_ep_gpu_wait_(g, flag, seen, one, phase, p, &now);
        if (!ended) {
            now -= seen;
            counts[p] = (int)(now & 0xffffffff);
            if (now >> 40 != 1 || (int)(now >> 32 & 0xff) != g->tag)
                ended = moek_ep_gpu_fail_(g, MOEK_E_MISMATCH, phase, p, moek_ep_gpu_operation_(g, phase));
        }
    }
    if (threadIdx.x == blockDim.x - 1) ended = moek_ep_gpu_ended_(g);      /* (ranks are fewer than threads) */
    return __syncthreads_or(ended);
}

/* What a block publishes with, a thread a peer; read early, since it takes a while. */
typedef struct moek_ep_news_ { uint64_t sent, arrived, operations; } moek_ep_news_;
/* `other`: the phase of the kernels before, all of whose rows have arrived and been read. */
MOEK_DEVICE moek_ep_news_ moek_ep_gpu_news_(const moek_ep_gpu_ *g, int phase, int other)
{
    const int p = moek_ep_gpu_turn_(g, threadIdx.x);
    moek_ep_news_ n = { 0, 0, 0 };
    if ((int)threadIdx.x >= g->ranks) return n;
    n.operations = moek_load_relaxed_sys_(moek_ep_gpu_local_(g, phase).operations) + 1;
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
    if (p == g->rank) *moek_ep_gpu_local_(g, phase).operations = news.operations;  /* giveback asks behind my flag */
    moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 1, other, moek_ep_gpu_mine_(g, p)), operations);
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 0, phase, moek_ep_gpu_mine_(g, p)), news.sent);
    moek_ep_gpu_local_(g, phase).sent[p] = news.sent;
    moek_ep_gpu_local_(g, other).seen[p] = news.arrived;
}

/* A row's mark: by one thread, behind a barrier of those who wrote the row. */
MOEK_DEVICE void moek_ep_gpu_mark_row_(const moek_ep_gpu_ *g, int rank, size_t row, uint64_t operation)
{
    if (g->moved) return;                              /* flags come with the rows */
    moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_mark_(g, rank, row), operation);
}

/* ---- prepare_send ------------------------------------------------------------------------------------------------ */

typedef struct moek_ep_send_ {
    moek_ep_gpu_ g;
    int tokens, each;                 /* each: alltoall, allgather: a warp has so many tokens in a row                */
    moek_ep_sizes_ size;
    int dtype, ue8m0;
    const int32_t *ids;
    const float *weights;             /* NULL: ones                                                                   */
    const char *x;                    /* rows of the wire, or those to be quantized                                   */
    const uint32_t *scale;
    uint64_t *to;                     /* alltoall: [tokens]: bits of the ranks that a token goes to                   */
    int32_t *before;                  /* alltoall, others NULL: [warps][ranks]: rows of the tokens before a warp's    */
    int32_t *rows, *back;             /* alltoall where rows are moved, others NULL: [ranks]: rows that go there, or
                                         MOEK_EP_FULL_; [tokens][slots]: row of the window that goes out              */
} moek_ep_send_;

/* A token's slots, a lane each: rank << 16 | local expert, or -1; its weight; all: bits of the ranks. */
typedef struct moek_ep_slots_ { int32_t id, place; float weight; uint64_t to; } moek_ep_slots_;
MOEK_DEVICE moek_ep_slots_ moek_ep_gpu_slots_(const moek_ep_send_ *a, int token)
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
/* By a warp: ids and weights of a row of rank p. */
MOEK_DEVICE void moek_ep_gpu_put_slots_(const moek_ep_send_ *a, int p, size_t row, moek_ep_slots_ s)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int lane = threadIdx.x % 32;
    if (lane >= a->g.slots) return;
    ((int32_t *)moek_ep_gpu_field_(&a->g, p, l->ids, row))[lane] =
        s.place >= 0 && s.place >> 16 == p ? s.place & 0xffff : -1;
    ((float *)moek_ep_gpu_field_(&a->g, p, l->weights, row))[lane] = s.weight;
}
/* Words of scales on the wire: a float a group, or with ue8m0 a byte, its exponent, of four groups side by side. */
MOEK_DEVICE int moek_ep_scale_words_(int groups, int ue8m0) { return ue8m0 ? (groups + 3) / 4 : groups; }
MOEK_DEVICE uint32_t moek_ep_pack_scales_(const uint32_t *scale, int n)
{
    uint32_t packed = 0;
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) if (i < n) packed |= scale[i] >> 23 << 8 * i;
    return packed;
}

/* A stretch of a row, by `team` threads, this one number me of them: MOEK_EP_DEPTH_ times 16 bytes a thread.  As it is:
 * words w0 + me, w0 + me + team, ... */
enum { MOEK_EP_DEPTH_ = 4 };
MOEK_DEVICE void moek_ep_gpu_fetch_words_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, int w0,
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
/* To row[p] + plus of rank p. */
MOEK_DEVICE void moek_ep_gpu_send_words_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, uint64_t to,
                                         const int *row, int plus, moek_words_ *v, int me, int team)
{
    const moek_ep_layout *const l = &a->g.layout;
    const int words = moek_ep_scale_words_(size.groups, a->ue8m0);
    const uint32_t *const scale = a->scale + (size_t)token * size.groups;
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
        const uint32_t w = a->ue8m0 ? moek_ep_pack_scales_(scale + 4 * j, size.groups - 4 * j) : scale[j];
        for (i = 0; i < a->g.ranks; i++)
            if (to >> i & 1) ((uint32_t *)moek_ep_gpu_field_(&a->g, i, l->scale, row[i] + plus))[j] = w;
    }
}

/* Quantized on the way: a thread has 16 columns, 8 threads the 128 of a scale. */
MOEK_DEVICE void moek_ep_gpu_fetch_columns_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, int w0,
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
/* By a warp: s: a lane's scale of the 16 columns of its word; those of the warp are number `turn` of the row's.  They
 * stay with *keep, a word a lane, until each lane has one: then one store takes up to 128 bytes (few: at once). */
MOEK_DEVICE void moek_ep_gpu_send_scales_(const moek_ep_send_ *a, moek_ep_sizes_ size, uint64_t to, const int *row,
                                          int plus, float s, int turn, uint32_t *keep, int few)
{
    const int lane = threadIdx.x % 32, by = a->ue8m0 ? 0 : 2, mask = few ? 0 : (32 >> by) - 1;   /* a turn's: 1 << by */
    const int words = moek_ep_scale_words_(size.groups, a->ue8m0), at = ((turn & ~mask) << by) + lane;
    uint32_t w = __shfl_sync(0xffffffff, moek_bits_(s), lane % 4 * 8);
    int i;
    if (a->ue8m0)
        w = __reduce_or_sync(0xffffffff, 4 * turn + lane % 4 < size.groups ? w >> 23 << lane % 4 * 8 : 0);
    if (lane >> by == (turn & mask)) *keep = w;
    if (((turn & mask) != mask && (turn + 1) << by < words) || turn << by >= words) return;
    if (at >= words || lane > (mask << by | ((1 << by) - 1))) return;
    #pragma unroll 1
    for (i = 0; i < a->g.ranks; i++)
        if (to >> i & 1) ((uint32_t *)moek_ep_gpu_field_(&a->g, i, a->g.layout.scale, row[i] + plus))[at] = *keep;
}
MOEK_DEVICE void moek_ep_gpu_send_codes_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, uint64_t to,
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
            s[d] = moek_group_codes_(two, v + 2 * d, 2, LANES, a->ue8m0, dtype);
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

/* quantize: 0, or MOEK_DTYPE_* of x; a constant, like team. */
MOEK_DEVICE void moek_ep_gpu_fetch_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, int quantize,
                                    moek_words_ *v, int me, int team)
{
    if (quantize) moek_ep_gpu_fetch_columns_(a, size, token, 0, v, me, team);
    else moek_ep_gpu_fetch_words_(a, size, token, 0, v, me, team);
}
MOEK_DEVICE void moek_ep_gpu_send_row_(const moek_ep_send_ *a, moek_ep_sizes_ size, int token, int quantize,
                                       uint64_t to, const int *row, int plus, moek_words_ *v, int me, int team)
{
    if (quantize) moek_ep_gpu_send_codes_(a, size, token, to, row, plus, v, me, team, quantize);
    else moek_ep_gpu_send_words_(a, size, token, to, row, plus, v, me, team);
}

/* ---- low_latency */

/* One block: to each rank, how many rows its experts have of my tokens.  Not 0: the group has ended. */
MOEK_DEVICE int moek_ep_gpu_tell_experts_(const moek_ep_send_ *a)
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

/* By a warp: which of its expert's rows, of those from this rank, is slot k of a token? */
MOEK_DEVICE int moek_ep_gpu_order_(const moek_ep_send_ *a, int token, int k, int id)
{
    const int end = token * a->g.slots + k;
    int i, before = 0;
    #pragma unroll 8
    for (i = threadIdx.x % 32; i < end; i += 32) before += a->ids[i] == id;
    return (int)__reduce_add_sync(0xffffffff, (uint32_t)before);
}

/* A block a token, which marks its row; and one that tells of them all. */
MOEK_DEVICE void moek_ep_gpu_send_few_(const moek_ep_send_ *a, moek_ep_sizes_ size, int quantize)
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

enum { MOEK_EP_MANY_ = 1024, MOEK_EP_FULL_ = -1 };     /* threads of kernels whose warps go their own ways            */

/* Sum over the threads before this one; *all: over all.  part: [warps], shared; free again behind the next barrier. */
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

/* alltoall, one block: how many rows go to each rank, and where those of each warp of the kernel behind begin. */
MOEK_DEVICE void moek_ep_gpu_number_(const moek_ep_send_ *a, int *all)
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
    for (p = 0; p < g->ranks; p++) {                   /* (a warp of the kernel behind: a thread here) */
        int rows = 0, before, sum;
        for (t = first; t < end; t++) rows += (int)(a->to[t] >> p & 1);
        before = moek_ep_gpu_before_(rows, part, &sum);
        if (first < end) a->before[me * g->ranks + p] = before;
        if (me == 0) all[p] = sum;
    }
}

/* To all. */
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1) moek_ep_counts_k_(const moek_ep_send_ a)
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

/* Where rows are moved: into what goes out.  A rank has room for max_tokens here. */
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1) moek_ep_shares_k_(const moek_ep_send_ a)
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

/* alltoall: too many rows for some rank.  By one thread: the host is told how many, and which. */
MOEK_DEVICE void moek_ep_gpu_full_(const moek_ep_gpu_ *g)
{
    uint32_t rows, most = 0;
    int p, s, fullest = 0;
    for (p = 0; p < g->ranks; p++) {
        for (rows = 0, s = 0; s < g->ranks; s++) {
            const uint32_t here = moek_ep_gpu_counts_(g, g->rank, s)[p];
            rows = g->packed ? rows + here : max(rows, here * g->ranks);       /* moved: as if all had so many */
        }
        if (rows > most) { most = rows; fullest = p; }
    }
    moek_store_relaxed_sys_(g->report + 1 + g->handle,
                            moek_ep_pack_full_(most, fullest, moek_ep_gpu_operation_(g, MOEK_EP_COUNTS)));
}

/* alltoall: waits for everybody's counts.  row: [ranks], shared, written: where my rows begin at each rank; all: as
 * long, shared: how many they are.  MOEK_EP_FULL_: they do not fit; else not 0: the group has ended. */
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

/* A warp a token. */
MOEK_DEVICE void moek_ep_gpu_send_many_(const moek_ep_send_ *a, int quantize)
{
    enum { WARPS = MOEK_EP_MANY_ / 32 };
    __shared__ int row[WARPS][MOEK_EP_MAX_RANKS], begin[MOEK_EP_MAX_RANKS], all[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a->g;
    const int me = threadIdx.x, lane = me % 32, warp = me / 32, number = warp * gridDim.x + blockIdx.x;
    const int before = g->packed ? MOEK_EP_COUNTS : MOEK_EP_COMBINE;
    /* Rows that go to every rank are moved from my own window. */
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
moek_ep_send_many_words_k_(const moek_ep_send_ a) { moek_ep_gpu_send_many_(&a, 0); }
static __global__ void __launch_bounds__(MOEK_EP_MANY_, 1)
moek_ep_send_many_codes_k_(const moek_ep_send_ a)
{
    if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_send_many_(&a, MOEK_DTYPE_FP16);
    else moek_ep_gpu_send_many_(&a, MOEK_DTYPE_BF16);
}

/* ---- prepare_receive --------------------------------------------------------------------------------------------- */

typedef struct moek_ep_receive_ {
    moek_ep_gpu_ g;
    int experts, rows_per_expert, ue8m0;
    moek_ep_sizes_ size;
    int go;                           /* the kernel behind may start: nothing that others wait for needs its place    */
    int stays;                        /* low_latency: copies are the last to leave L2                                 */
    int32_t *counts, *offsets, *expert_tokens, *slot_row, *ids, *token;  /* written, as moek_ep_work_ says            */
    float *weights;
    char *x;
    uint32_t *scale;                  /* others than low_latency: if ue8m0                                            */
    int shares;                       /* alltoall where rows are moved: a rank's may not have fit                     */
} moek_ep_receive_;

/* Word j of a row's scales, as it travels: those of its groups, to `scale`. */
MOEK_DEVICE void moek_ep_gpu_unpack_(const moek_ep_receive_ *a, moek_ep_sizes_ size, uint32_t *scale, int j,
                                     uint32_t w)
{
    int i;
    if (!a->ue8m0) {
        scale[j] = w;
        return;
    }
    #pragma unroll
    for (i = 0; i < 4; i++) if (4 * j + i < size.groups) scale[4 * j + i] = (w >> 8 * i & 0xff) << 23;
}

/* Words me, me + THREADS, ... of a stretch of a received row. */
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
/* low_latency: a block a row.  A row that arrived goes to each of its experts, behind those of ranks before.  These
 * copies are the last to leave L2, where they fit: experts read as many weights as fit there many times, and for
 * each line that has to go back to memory meanwhile a read waits; the next operation writes over them. */
MOEK_DEVICE void moek_ep_gpu_take_row_(const moek_ep_receive_ *a, moek_ep_sizes_ size, int from, size_t row)
{
    const moek_ep_gpu_ *const g = &a->g;
    const moek_ep_layout *const l = &g->layout;
    const int me = threadIdx.x, lane = me % 32, is = lane < g->slots;
    const char *const x = moek_ep_gpu_field_(g, g->rank, l->x, row);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(g, g->rank, l->scale, row);
    const int id = is ? ((const int32_t *)moek_ep_gpu_field_(g, g->rank, l->ids, row))[lane] : -1;
    int at = is ? ((const int32_t *)moek_ep_gpu_field_(g, g->rank, l->order, row))[lane] : 0;
    const float weight = is ? ((const float *)moek_ep_gpu_field_(g, g->rank, l->weights, row))[lane] : 0;
    const int words = moek_ep_scale_words_(size.groups, a->ue8m0);
    uint32_t slots, left;
    moek_words_ v[MOEK_EP_TAKEN_];
    int w0, d, j, s;
    moek_ep_gpu_look_(size, x, 0, v);                     /* also where it has no expert here: no time to ask first */
    for (s = 0; s < from && id >= 0; s++) at += (int)moek_ep_gpu_counts_(g, g->rank, s)[id];
    at = id < 0 ? MOEK_EP_ABSENT_ : at < a->rows_per_expert ? id * a->rows_per_expert + at : MOEK_EP_DROPPED_;
    if (is && me < 32) a->weights[row * g->slots + lane] = weight;
    if (is && me < 32) a->slot_row[row * g->slots + lane] = at;
    slots = __ballot_sync(0xffffffff, at >= 0);
    for (w0 = 0; w0 < size.words && slots; w0 += MOEK_EP_TAKEN_ * MOEK_EP_THREADS_) {
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
    for (w0 = 0; w0 < words && slots; w0 += MOEK_EP_THREADS_) {     /* by the last threads */
        uint32_t value = 0;
        j = w0 + MOEK_EP_THREADS_ - 1 - me;
        if (j < words) value = scale[j];
        for (left = slots; left; left &= left - 1) {
            const int to = __shfl_sync(0xffffffff, at, __ffs(left) - 1);
            if (j < words) moek_ep_gpu_unpack_(a, size, a->scale + (size_t)to * size.groups, j, value);
        }
    }
}

/* Blocks without a row also wait for the kernel ahead: the one behind relies on it. */
MOEK_DEVICE void moek_ep_gpu_receive_few_(const moek_ep_receive_ *a, moek_ep_sizes_ size)
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

/* alltoall where rows are moved: those of one rank did not fit, so nobody's count.  counts: shared, written. */
MOEK_DEVICE void moek_ep_gpu_refuse_(const moek_ep_gpu_ *g, int *counts)
{
    const int p = threadIdx.x;
    if (!__syncthreads_or(p < g->ranks && counts[p] == MOEK_EP_FULL_)) return;
    if (p == 0 && blockIdx.x == 0) moek_ep_gpu_full_(g);
    if (p < g->ranks) counts[p] = MOEK_EP_FULL_;
    __syncthreads();
}

/* alltoall, allgather: has this row arrived?  total: of all ranks together. */
MOEK_DEVICE int moek_ep_gpu_live_(const moek_ep_gpu_ *g, int row, int total, const int *counts, int ended)
{
    return g->packed ? row < total : !ended && row % g->max_tokens < counts[row / g->max_tokens];
}

/* Ids, of -1 where there are no rows: behind those of each rank; alltoall, unless rows are moved: behind all.  A copy:
 * where the group has ended a peer may still store rows, and who sorts must read the same twice.  And what giveback
 * asks, so that it leaves received rows alone. */
static __global__ void __launch_bounds__(MOEK_EP_THREADS_) moek_ep_receive_rows_k_(const moek_ep_receive_ a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    const moek_ep_gpu_ *const g = &a.g;
    const int ended = moek_ep_gpu_arrive_(g, MOEK_EP_DISPATCH, counts), me = threadIdx.x, slots = g->slots;
    const int rows = g->packed ? g->packed : g->ranks * g->max_tokens;
    const int32_t *const ids = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.ids, 0);
    const int32_t *const token = (const int32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.token, 0);
    const float *const weights = (const float *)moek_ep_gpu_field_(g, g->rank, g->layout.weights, 0);
    const uint32_t *const scale = (const uint32_t *)moek_ep_gpu_field_(g, g->rank, g->layout.scale, 0);
    const int words = moek_ep_scale_words_(a.size.groups, a.ue8m0);
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
    for (i = a.ue8m0 ? first : (size_t)rows * words; i < (size_t)rows * words; i += gridDim.x * MOEK_EP_THREADS_) {
        const int row = (int)(i / words);
        const int live = moek_ep_gpu_live_(g, row, total, counts, ended);
        if (live) moek_ep_gpu_unpack_(&a, a.size, a.scale + (size_t)row * a.size.groups, (int)(i % words), scale[i]);
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
    const int32_t *slot_row;          /* low_latency; others NULL: row k of received row r is r * slots + k           */
    const int32_t *ids, *token;       /* others; low_latency NULL: token t is row t of its rank                       */
    const float *weights;
    const uint16_t *out;
} moek_ep_giveback_;

/* A received row: lane k of a warp knows its slot k. */
typedef struct moek_ep_given_row_ { int at, token; float weight; uint32_t mine; } moek_ep_given_row_;
MOEK_DEVICE moek_ep_given_row_ moek_ep_gpu_given_(const moek_ep_giveback_ *a, size_t row)
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

/* Threads of giveback and collect for many tokens: a block of each on a multiprocessor, so that rows are added up while
 * others are on their way.  Words of 16 bytes on their way to each thread, in shared memory. */
enum { MOEK_EP_BACK_ = 512, MOEK_EP_RING_ = 12, MOEK_EP_RING_BYTES_ = MOEK_EP_BACK_ * MOEK_EP_RING_ * 16 };

/* To be added up: `rows` rows, `stride` bytes apart; lane n of a warp knows row n, as a number behind `base`, and its
 * weight. */
typedef struct moek_ep_adds_ { const char *base; size_t stride; int at, rows; float weight; } moek_ep_adds_;

/* By a warp: sum += eight columns of those rows, in their order: word w of each, if it is one of `words`. */
MOEK_DEVICE void moek_ep_gpu_add_words_(moek_ep_adds_ r, int w, int words, float sum[8], int dtype)
{
    enum { ROWS = 4 };
    int n0, n, j;
    for (n0 = 0; n0 < r.rows; n0 += ROWS) {
        moek_words_ v[ROWS];
        float by[ROWS], x[8];
        #pragma unroll
        for (n = 0; n < ROWS; n++) {
            const char *const from = r.base + (size_t)__shfl_sync(0xffffffff, r.at, (n0 + n) % 32) * r.stride;
            by[n] = __shfl_sync(0xffffffff, r.weight, (n0 + n) % 32);
            v[n] = n0 + n < r.rows && w < words ? moek_load_words_(from + 16 * (size_t)w) : moek_zero_words_();
        }
        #pragma unroll
        for (n = 0; n < ROWS; n++) {
            if (n0 + n >= r.rows) break;
            moek_from_t8_(x, v[n], dtype);
            #pragma unroll
            for (j = 0; j < 8; j++) sum[j] += by[n] * x[j];
        }
    }
}

/* By a warp, in a ring of shared memory: words w = lane, lane + 32, ... of each row in turn.  The next is asked for. */
typedef struct moek_ep_ring_ { moek_words_ *slot; int i, w, next_row, next_w; } moek_ep_ring_;
MOEK_DEVICE void moek_ep_gpu_ask_next_(moek_ep_ring_ *q, moek_ep_adds_ r, int words)
{
    const int at = __shfl_sync(0xffffffff, r.at, q->next_row), is = q->next_w < words;
    if (q->next_w - (int)threadIdx.x % 32 < words)
        moek_cp_async16_(q->slot + q->i * MOEK_EP_BACK_, r.base + at * r.stride + (is ? 16 * (size_t)q->next_w : 0),
                         is ? 16 : 0);
    moek_cp_async_commit_();
    if (++q->i == MOEK_EP_RING_) q->i = 0;
    if (++q->next_row < r.rows) return;
    q->next_row = 0;
    q->next_w += 32;
}
MOEK_DEVICE moek_ep_ring_ moek_ep_gpu_ring_(moek_ep_adds_ r, int words)
{
    MOEK_SHARED_(moek_words_, ring);
    const int lane = threadIdx.x % 32;
    moek_ep_ring_ q = { ring + threadIdx.x, 0, lane, 0, lane };
    int i;
    for (i = 0; i < MOEK_EP_RING_ && r.rows; i++) moek_ep_gpu_ask_next_(&q, r, words);
    return q;
}
/* The sum of the next word; its number: q->w before. */
MOEK_DEVICE void moek_ep_gpu_add_next_(moek_ep_ring_ *q, moek_ep_adds_ r, int words, float sum[8], int dtype)
{
    float x[8];
    int n, j;
    #pragma unroll
    for (j = 0; j < 8; j++) sum[j] = 0;
    for (n = 0; n < r.rows; n++) {
        const float by = __shfl_sync(0xffffffff, r.weight, n);
        moek_cp_async_wait_(MOEK_EP_RING_ - 1);
        moek_from_t8_(x, moek_load_words_(q->slot + q->i * MOEK_EP_BACK_), dtype);
        #pragma unroll
        for (j = 0; j < 8; j++) sum[j] += by * x[j];
        moek_ep_gpu_ask_next_(q, r, words);
    }
    q->w += 32;
}

MOEK_DEVICE void moek_ep_gpu_put_words_(char *to, moek_words_ v, int few)
{
    if (few) moek_store_words_sys_(to, moek_ep_sent_(v));
    else moek_store_words_(to, v);
}
/* Eight columns of a row of partial, T or f32. */
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

/* Where a row goes at rank `to`: the row of partial; EXACT: that of slot 0. */
MOEK_DEVICE size_t moek_ep_gpu_goes_to_(const moek_ep_giveback_ *a, int to, moek_ep_given_row_ r)
{
    const moek_ep_gpu_ *const g = &a->g;
    const size_t token = (size_t)r.token + (g->moved ? (size_t)to * g->max_tokens : 0);
    const int first = g->combine == MOEK_EP_EXACT || g->moved;
    return token * g->layout.slots + (first ? 0 : g->ranks <= g->slots ? g->rank : __ffs(r.mine) - 1);
}
/* A row that is lost: 16 bytes of it. */
MOEK_DEVICE moek_words_ moek_ep_lost_words_(int dtype)
{
    const uint32_t w = moek_ep_lost_(dtype);
    moek_words_ v;
    v.w[0] = v.w[1] = v.w[2] = v.w[3] = w;
    return v;
}
/* By a warp: this lane's words w0, w0 + step, ... before `words`, of 16 bytes of T.  EXACT: the rows as they are. */
MOEK_DEVICE void moek_ep_gpu_give_slots_(const moek_ep_giveback_ *a, int hidden, char *put, moek_ep_given_row_ r,
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
/* Their sum. */
MOEK_DEVICE void moek_ep_gpu_give_sum_(const moek_ep_giveback_ *a, int hidden, char *put, moek_ep_given_row_ r, int w0,
                                       int step, int few, int f32, int dtype)
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

/* Whose is row n / ranks, of those of all ranks in turn?  Each team goes to another rank than the time before, `stride`
 * rows ago: so all wires are in use at all times. */
MOEK_DEVICE int moek_ep_gpu_next_(const moek_ep_gpu_ *g, int n, int stride)
{
    const int i = n / g->ranks, rows = max(stride / g->ranks, 1);
    return moek_ep_gpu_turn_(g, (n + i / rows) % g->ranks);
}

/* Rows of all ranks in turn, and one block that tells of them all.  few: a block has a stretch of a row; else a warp a
 * row, which it marks.  All three are constants. */
MOEK_DEVICE void moek_ep_gpu_giveback_(const moek_ep_giveback_ *a, int hidden, int few, int combine, int dtype)
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
    if (few && first >= 0 && first / stretches / g->ranks < g->max_tokens)     /* that row may not have come */
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
    /* Words and marks say what has come; what is moved comes as a whole, so there the last block tells of it. */
    if (g->moved || !blockIdx.x)
        moek_ep_gpu_publish_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH,
                             moek_ep_gpu_news_(g, MOEK_EP_COMBINE, MOEK_EP_DISPATCH), g->moved ? gridDim.x : 1, counts);
}
MOEK_DEVICE void moek_ep_gpu_giveback_any_(const moek_ep_giveback_ *a, int few)
{
    const int h = a->hidden, f32 = a->g.combine == MOEK_EP_REDUCED_F32;
    if (a->g.combine == MOEK_EP_EXACT) moek_ep_gpu_giveback_(a, h, few, MOEK_EP_EXACT, 0);
    else if (f32) moek_ep_gpu_giveback_(a, h, few, MOEK_EP_REDUCED_F32, a->dtype);
    else if (a->dtype == MOEK_DTYPE_FP16) moek_ep_gpu_giveback_(a, h, few, MOEK_EP_REDUCED, MOEK_DTYPE_FP16);
    else moek_ep_gpu_giveback_(a, h, few, MOEK_EP_REDUCED, MOEK_DTYPE_BF16);
}
static __global__ void __launch_bounds__(MOEK_EP_BACK_, 2)
moek_ep_giveback_many_k_(const moek_ep_giveback_ a) { moek_ep_gpu_giveback_any_(&a, 0); }

/* ---- finalize_receive -------------------------------------------------------------------------------------------- */

typedef struct moek_ep_collect_ {
    moek_ep_gpu_ g;
    int tokens, hidden, dtype;
    const int32_t *ids;
    const float *weights;             /* EXACT; NULL: ones                                                            */
    const uint16_t *addend;           /* or NULL                                                                      */
    uint16_t *y;
    int addend_stride, y_stride;      /* elements from a row to the next                                              */
    int straight;                     /* the kernel ahead is giveback.  Else it may be yours: of x, if y is x, or of
                                         shared_y; then y waits for it                                                */
    const int32_t *back;              /* as send left it, or NULL                                                     */
    int stays;                        /* low_latency: zeros are the last to leave L2                                  */
} moek_ep_collect_;

/* Rows of partial that come back for a token, in the order of their sum: lane n of a warp gets row n, and whose it is.
 * How many. */
typedef struct moek_ep_sum_ { int mine, from, rows; float weight; } moek_ep_sum_;
MOEK_DEVICE moek_ep_sum_ moek_ep_gpu_returned_(const moek_ep_collect_ *a, int token, const int32_t *back)
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

/* By a warp: until those rows are there.  Not 0: the group has ended. */
MOEK_DEVICE int moek_ep_gpu_back_(const moek_ep_collect_ *a, int token, moek_ep_sum_ s, uint64_t operation)
{
    const moek_ep_gpu_ *const g = &a->g;
    const size_t row = (size_t)token * g->layout.slots + s.mine;
    moek_ep_patience_ wait = { 0, 0 };
    int ended = 0;
    if ((int)threadIdx.x % 32 < s.rows && !g->moved) {
        const uint64_t *const mark = moek_ep_gpu_mark_(g, g->rank, row);
        while (!ended && (moek_load_relaxed_sys_(mark) - operation) >> 63) {
            moek_pause_(200);                          /* others have use for the way to memory */
            ended = moek_ep_gpu_enough_(g, &wait);
        }
        if (ended) moek_ep_gpu_give_up_(g, MOEK_EP_COMBINE, s.from);
        moek_load_acquire_sys_(mark);
    }
    __syncwarp();
    return __any_sync(0xffffffff, ended);
}

MOEK_DEVICE void moek_ep_gpu_put_y_(const moek_ep_collect_ *a, int token, int column, float sum[8], int dtype)
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

/* Eight columns of a token.  few: of rows that say themselves when they are there; f32: of floats.  Both are constants.
 * lost: words of a row that is passed over, or 0.  Not 0: the group has ended. */
MOEK_DEVICE int moek_ep_gpu_collect_(const moek_ep_collect_ *a, int hidden, int token, int column, moek_ep_sum_ s,
                                     int few, int f32, int dtype, uint32_t lost)
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

/* Waits for what came back, if anything did; not 0: there is nothing to add up. */
MOEK_DEVICE int moek_ep_gpu_nothing_(const moek_ep_collect_ *a)
{
    __shared__ int counts[MOEK_EP_MAX_RANKS];
    return moek_ep_gpu_arrive_(&a->g, MOEK_EP_COMBINE, counts) || counts[0] == MOEK_EP_FULL_;
}

/* Items: (token, stretch of columns).  Where the first one's rows will be is asked before they are there. */
MOEK_DEVICE void moek_ep_gpu_collect_few_(const moek_ep_collect_ *a, int hidden, int f32, int dtype, uint32_t lost)
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
        ended = __syncthreads_or(moek_ep_gpu_collect_(a, hidden, token, n % stretches * COLUMNS + 8 * me, s, 1,
                                                     f32, dtype, lost));
    }
    moek_grid_wait_();
}
/* A warp a token. */
MOEK_DEVICE void moek_ep_gpu_collect_many_(const moek_ep_collect_ *a, int f32, int dtype)
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
            moek_ep_gpu_collect_(a, a->hidden, t, 8 * w, s, 0, 1, dtype, 0);
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
static __global__ void __launch_bounds__(MOEK_EP_BACK_, 2) moek_ep_collect_many_k_(const moek_ep_collect_ a)
{
    if (a.g.combine == MOEK_EP_REDUCED_F32) moek_ep_gpu_collect_many_(&a, 1, a.dtype);
    else if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_collect_many_(&a, 0, MOEK_DTYPE_FP16);
    else moek_ep_gpu_collect_many_(&a, 0, MOEK_DTYPE_BF16);
}

/* ---- kernels for few tokens -------------------------------------------------------------------------------------- */

/* For any hidden size, and all there is. */
#define MOEK_EP_FEW_K_ static __global__ void __launch_bounds__(MOEK_EP_THREADS_, MOEK_EP_EACH_)
MOEK_EP_FEW_K_ moek_ep_send_words_k_(const moek_ep_send_ a) { moek_ep_gpu_send_few_(&a, a.size, 0); }
MOEK_EP_FEW_K_ moek_ep_send_codes_k_(const moek_ep_send_ a)
{
    if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_send_few_(&a, a.size, MOEK_DTYPE_FP16);
    else moek_ep_gpu_send_few_(&a, a.size, MOEK_DTYPE_BF16);
}
MOEK_EP_FEW_K_ moek_ep_receive_k_(const moek_ep_receive_ a) { moek_ep_gpu_receive_few_(&a, a.size); }
MOEK_EP_FEW_K_ moek_ep_giveback_k_(const moek_ep_giveback_ a) { moek_ep_gpu_giveback_any_(&a, 1); }
MOEK_EP_FEW_K_ moek_ep_collect_k_(const moek_ep_collect_ a)
{
    const uint32_t lost = a.g.combine == MOEK_EP_EXACT ? moek_ep_lost_(a.dtype) : 0;
    if (a.g.combine == MOEK_EP_REDUCED_F32) moek_ep_gpu_collect_few_(&a, a.hidden, 1, a.dtype, 0);
    else if (a.dtype == MOEK_DTYPE_FP16) moek_ep_gpu_collect_few_(&a, a.hidden, 0, MOEK_DTYPE_FP16, lost);
    else moek_ep_gpu_collect_few_(&a, a.hidden, 0, MOEK_DTYPE_BF16, lost);
}

/* For one of the hidden sizes that are supported, and bf16: what sends fp8b128, and REDUCED.  (The others have no
 * format to choose, and a size alone gains them less than 1 %.) */
#define MOEK_EP_BAKED_(h) \
    MOEK_EP_FEW_K_ moek_ep_send_codes_h##h##_k_(const moek_ep_send_ a) \
    { moek_ep_gpu_send_few_(&a, moek_ep_sizes_of_codes_(h, a.size.x_stride), MOEK_DTYPE_BF16); } \
    MOEK_EP_FEW_K_ moek_ep_giveback_h##h##_k_(const moek_ep_giveback_ a) \
    { moek_ep_gpu_giveback_(&a, h, 1, MOEK_EP_REDUCED, MOEK_DTYPE_BF16); } \
    MOEK_EP_FEW_K_ moek_ep_collect_h##h##_k_(const moek_ep_collect_ a) \
    { moek_ep_gpu_collect_few_(&a, h, 0, MOEK_DTYPE_BF16, 0); }
#define MOEK_EP_KERNELS_(h) \
    { h, moek_ep_send_codes_h##h##_k_, moek_ep_giveback_h##h##_k_, moek_ep_collect_h##h##_k_ },

/* The last: for any size. */
typedef struct moek_ep_kernels_ {
    int hidden;
    void (*send_codes)(moek_ep_send_);
    void (*giveback)(moek_ep_giveback_);
    void (*collect)(moek_ep_collect_);
} moek_ep_kernels_;
MOEK_EACH_HIDDEN(MOEK_EP_BAKED_)
static const moek_ep_kernels_ moek_ep_few_kernels_[] = {
    MOEK_EACH_HIDDEN(MOEK_EP_KERNELS_)
    { 0, moek_ep_send_codes_k_, moek_ep_giveback_k_, moek_ep_collect_k_ }
};
#undef MOEK_EP_BAKED_
#undef MOEK_EP_KERNELS_
#undef MOEK_EP_FEW_K_
#endif
