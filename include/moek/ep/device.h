/* moek/ep/device.h -- the protocol of wire.h as kernels speak it, and the kernels of the three kinds.
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
#include "../device.h"

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
#define MOEK_EP_FEW_K_ static __global__ void __launch_bounds__(MOEK_EP_THREADS_, MOEK_EP_EACH_)
enum { MOEK_EP_ABSENT_ = -1, MOEK_EP_DROPPED_ = -2 };  /* slot_row: no expert of this rank; no room for it            */
enum { MOEK_EP_FULL_ = -1 };                           /* in the place of counts: rows did not fit                    */

/* Of a row: elements of two bytes, whatever x is, from one that is sent to the next; 16 bytes of x on the wire; scales.
 * Kernels of one hidden size have the latter two, of e4m3 with a scale for 128 columns, as constants. */
typedef struct moek_ep_sizes_ { int x_stride, words, groups; } moek_ep_sizes_;
MOEK_FN moek_ep_sizes_ moek_ep_sizes_of_codes_(int hidden, int x_stride)
{
    moek_ep_sizes_ s;
    s.x_stride = x_stride; s.words = hidden / 16; s.groups = (hidden + 127) / 128;
    return s;
}

/* Words of scales on the wire: a float a group, or with ue8m0 a byte, its exponent, of four groups side by side. */
MOEK_DEVICE int moek_ep_scale_words_(int groups, int ue8m0) { return ue8m0 ? (groups + 3) / 4 : groups; }

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

/* By the host, for a launch.  A kernel that reads or writes fields of rows is then given the layout of the message. */
static moek_ep_gpu_ moek_ep_on_gpu_(const moek_ep *ep, int handle, int tag)
{
    const moek_ep_config *c = &ep->config;
    moek_ep_gpu_ g;
    memset(&g, 0, sizeof g);
    g.layout = ep->layout;
    g.gather = c->kind == MOEK_EP_ALLGATHER;
    g.packed = c->kind == MOEK_EP_ALLTOALL && !c->move ? c->max_rows : 0;
    g.rank = c->rank; g.ranks = c->ranks; g.handle = handle; g.handles = c->handles;
    g.slots = ep->slots; g.physical_experts = ep->physical_experts; g.max_tokens = moek_ep_share_(ep);
    g.tag = tag;
    g.combine = c->combine;
    g.moved = c->move != NULL;
    g.every = g.moved && g.gather && c->move_gathers;
    g.timeout_ns = g.moved ? 0 : (uint64_t)c->timeout_ms * 1000000;       /* moved: it has come, or never will */
    g.report = (uint64_t *)c->report;
    memcpy(g.base, ep->base, sizeof g.base);
    return g;
}

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

/* ---- rows that are added up, by giveback and collect ------------------------------------------------------------- */

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
#endif
