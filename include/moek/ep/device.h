/* moek/ep/device.h -- the protocol of wire.h in kernels, and the device code that the four stages share.
 *
 *     counts    (dispatch_send.h) alltoall only: stores how many rows go to each rank into all windows; publishes.
 *               Where rows are moved, `shares` stores the same counts beside the outgoing rows, but publishes nothing
 *     dispatch_send     quantizes (fp8b128) or copies rows into the windows of their ranks; publishes.  alltoall first
 *               waits for the counts of all ranks
 *     dispatch_receive  waits for rows.  low_latency: copies them to [local experts][rows_per_expert], ordered by
 *               rank and token within an expert.  Others (receive_rows): rows stay where the experts read them.
 *               Whatever combine_send needs later is copied out of the window, so that it does not read received rows
 *     combine_send      publishes and releases; stores the results of the experts, reduced by token, into the windows
 *               of the tokens' ranks
 *     combine_receive   waits for results; adds them up, ranks ascending
 *
 * low_latency is bound by latency: a block handles one row, or a slice of one.  The other kinds are bound by the links:
 * a warp handles one row.  Their send uses at most 24 SMs, because more would not be faster; the other SMs are free for
 * the caller's kernels.
 *
 * WORDS.  Results that low_latency sends back carry their own arrival flag.  Each 4 bytes travel as their complement,
 * and 0 means "not arrived"; combine_receive writes 0 back after reading.  So sender and receiver need no fence, no
 * barrier and no second load.
 * MARKS.  Rows that low_latency sends out, and results of the other kinds, may be announced before they arrive.  Each
 * has a mark: the number of the operation, stored by the writer of the row.  A receiver takes rows whose marks have
 * arrived while other rows are still in flight.  combine_send, and send of low_latency, publish the number of tokens at
 * once, by one block.  Rows that the other kinds send out have no marks: they are published when all are stored, by the
 * last block to finish (it is found by a counter in the window, which returns to 0).
 *
 * Each block waits by itself, and no block waits for another block of the same kernel.  So a kernel's blocks need not
 * all be resident.  (This is why counts is a separate kernel: blocks of send wait for the counts of their own rank,
 * too.)  The block that publishes also completes the receiving kernel before: it records the arrived totals as seen,
 * and releases those rows.  (So combine is released by the next operation's send or counts.  That is in time: no rank
 * needs this credit earlier.)
 * When the group has ended, blocks return and nothing more is published.  When rows would not fit (alltoall), all ranks
 * find the same from the counts, and the operation goes on without rows: dispatch_send and combine_send publish counts
 * of -1, and combine_receive leaves y alone.  (Where rows are moved, ranks find this when they receive: the rank whose
 * rows did not fit sends such counts.)
 *
 * dispatch_receive and combine_receive may start while the kernel before still runs (programmatic dependent launch):
 * they wait for flags, words and marks, and the memory that they write is read only by kernels before that one.  All
 * their blocks still wait for that kernel before they exit, because later kernels rely on it.  dispatch_send and
 * combine_send let them start early.
 *
 * ORDER.  What a kernel stores to a peer comes before its flag or mark: stores of the block or warp, a barrier, a fence
 * at system scope, a relaxed store.  Polls are acquire loads: that saves the second load that a relaxed poll needs. */
#ifndef MOEK_EP_DEVICE_H
#define MOEK_EP_DEVICE_H
#include <string.h>
#include "flags.h"
#include "../kernel/cuda.h"

/* ---- one function for each instruction --------------------------------------------------------------------------- */

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
/* Increments a counter that wraps to 0 after `last`.  Returns the value before. */
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
/* 16 bytes that a peer may be writing or polling.  Each 4 of them are read and written whole, in no order. */
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
/* A store; if `stays`, with L2 evict_last.  (The policy is created anew each time: kept in a register it costs
 * combine_receive more registers.) */
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
/* Loads 4 bytes from L2, not from L1. */
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
MOEK_FN uint64_t moek_clock_ns_(void)                 /* (waiting code calls it: yields the CPU) */
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

/* Kernels for few tokens (low_latency): threads of a block, and the most blocks on an SM.
 * Each exists for any hidden size and all formats.  Those that send fp8b128, and those for REDUCED, also exist for each
 * supported hidden size, with bf16, as a constant ("baked").  The other kernels have no format to choose, and a
 * constant size alone gains them less than 1 %. */
enum { MOEK_EP_THREADS_ = 256, MOEK_EP_EACH_ = 3 };
#define MOEK_EP_FEW_K_ static __global__ void __launch_bounds__(MOEK_EP_THREADS_, MOEK_EP_EACH_)
enum { MOEK_EP_ABSENT_ = -1, MOEK_EP_DROPPED_ = -2 };  /* slot_row: no expert of this rank; its expert was full       */
enum { MOEK_EP_FULL_ = -1 };                           /* published instead of a count: rows did not fit              */

/* Sizes of a row.  x_stride: from one row at the sender to the next, in units of two bytes, whatever the type of x.
 * words: 16-byte words of x on the wire.  groups: floats of scales, or bytes (moek_ep_scales_).  Baked kernels have
 * words and groups as constants: as e4m3 with a scale for each 128 columns has them. */
typedef struct moek_ep_sizes_ { int x_stride, words, groups; } moek_ep_sizes_;
MOEK_FN moek_ep_sizes_ moek_ep_sizes_of_codes_(int hidden, int x_stride)
{
    moek_ep_sizes_ s;
    s.x_stride = x_stride; s.words = hidden / 16; s.groups = (hidden + 127) / 128;
    return s;
}

/* 4-byte words of a row's scales on the wire: floats, or bytes, four in a word.  how: MOEK_EP_FLOATS_, ... */
MOEK_DEVICE int moek_ep_scale_words_(int groups, int how) { return how == MOEK_EP_FLOATS_ ? groups : (groups + 3) / 4; }
/* The scales of a row in memory, of which `all` has row 0's. */
MOEK_DEVICE const char *moek_ep_scales_at_(const void *all, size_t row, int groups, int how)
{
    return (const char *)all + row * (how == MOEK_EP_BYTES_ ? (size_t)groups : 4 * (size_t)groups);
}

typedef struct moek_ep_gpu_ {
    moek_ep_layout layout;
    int rank, ranks, handle, handles, slots, physical_experts, max_tokens, tag, combine;
    int gather;                       /* allgather: each token goes to all ranks                                      */
    int packed;                       /* alltoall: the most rows that a rank receives; others: 0                      */
    int moved;                        /* rows are moved: base[p] is the outgoing window; its parts p go to rank p     */
    int every;                        /* moved, allgather: rows and scales go from my own window to every rank        */
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
/* Counts of rank `from` in the window of `rank`: rows for each rank (alltoall), or for each local expert
 * (low_latency). */
MOEK_DEVICE uint32_t *moek_ep_gpu_counts_(const moek_ep_gpu_ *g, int rank, int from)
{
    return (uint32_t *)(g->base[rank] + moek_ep_counts_at_(&g->layout, g->ranks, g->handle, from));
}
/* The mark of a received row (low_latency) or of a row of partial (others): the last operation that wrote the row. */
MOEK_DEVICE uint64_t *moek_ep_gpu_mark_(const moek_ep_gpu_ *g, int rank, size_t row)
{
    return moek_ep_gpu_word_(g, rank, moek_ep_mark_at_(&g->layout, g->handle, row));
}
MOEK_DEVICE int moek_ep_gpu_place_(const moek_ep_gpu_ *g, int32_t id)     /* rank << 16 | local expert, or -1 */
{
    const int32_t *place = (const int32_t *)(g->base[g->rank] + g->layout.place);
    return (uint32_t)id < (uint32_t)g->physical_experts ? place[id] : -1;
}
/* The index of my parts in the window at base[to]: my rank; in an outgoing window the rank they are moved to. */
MOEK_DEVICE int moek_ep_gpu_mine_(const moek_ep_gpu_ *g, int to) { return g->moved ? to : g->rank; }
/* The peer with number i: numbers start at the next rank, so that not all ranks begin with rank 0. */
MOEK_DEVICE int moek_ep_gpu_turn_(const moek_ep_gpu_ *g, int i) { return (g->rank + 1 + i) % g->ranks; }

/* Made by the host for a launch.  The caller replaces `layout` if the kernel accesses rows: their strides depend on
 * what a plan sends (moek_ep_fields_). */
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
    g.timeout_ns = g.moved ? 0 : (uint64_t)c->timeout_ms * 1000000;       /* moved: all has come, or never will */
    g.report = (uint64_t *)c->report;
    memcpy(g.base, ep->base, sizeof g.base);
    return g;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Stores an error in the latch unless there is one already, and in the host's report.  Returns the error that is
 * kept. */
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
        moek_store_relaxed_sys_(g->report, here);      /* its writer may not have got to that yet */
        return (int)(here & 0xff);
    }
    return there ? (int)(moek_ep_gpu_keep_(g, (there & ~(uint64_t)0xff) | MOEK_E_ABORTED) & 0xff) : 0;
}
/* Ends the group: keeps the error and, if it is the first one, sends it to all ranks.  Returns the status that is
 * kept. */
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

/* The number of the current operation, from 1.  Derived from the count of the other phase, because that one does not
 * change while kernels of this phase run. */
MOEK_DEVICE uint64_t moek_ep_gpu_operation_(const moek_ep_gpu_ *g, int phase)
{
    const int other = phase == MOEK_EP_COMBINE ? MOEK_EP_DISPATCH : MOEK_EP_COMBINE;
    return moek_load_relaxed_sys_(moek_ep_gpu_local_(g, other).operations) + (phase != MOEK_EP_COMBINE);
}

/* enough_: called by a thread after each poll without success; counts the polls.  Returns 1 if the thread must give up.
 * give_up_: returns the reason, never 0: the status of a group that has ended, or else it ends the group by a
 * timeout. */
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

/* One thread waits until *word - from is at least `least`, modulo 2^64.  *value (or NULL): the word at that time.
 * Returns nonzero if the group has ended. */
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

/* The encoding of results that low_latency sends back (WORDS above): the complement of each 4 bytes, never 0.  Bytes
 * that are all ones would become 0; they lose their first bit, which is the sign of a NaN. */
MOEK_DEVICE moek_words_ moek_ep_sent_(moek_words_ v)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) v.w[i] = ~v.w[i] ? ~v.w[i] : 0x80000000;
    return v;
}
MOEK_DEVICE int moek_ep_is_there_(moek_words_ v) { return v.w[0] && v.w[1] && v.w[2] && v.w[3]; }

/* grant of wire.h in two steps, for all threads of a block.  ask_ loads the credits without waiting; grant_ waits for
 * those that were late.  A thread for each peer, from the last one down: the first warps have other work.
 * grant_ returns nonzero in some thread if the group has ended. */
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

/* arrive of wire.h, for all threads of a block.  counts: [ranks], shared, written.  Returns the same value in all
 * threads; nonzero: the group has ended. */
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
    if (threadIdx.x == blockDim.x - 1) ended = moek_ep_gpu_ended_(g);      /* (a block has more threads than ranks) */
    return __syncthreads_or(ended);
}

/* What a block needs to publish, one thread a peer.  Loaded early, to hide the latency of the loads. */
typedef struct moek_ep_news_ { uint64_t sent, arrived, operations; } moek_ep_news_;
/* other: the phase of the kernels before.  All rows of that phase have arrived and have been read. */
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

/* publish of wire.h, called by all threads of `blocks` blocks; the last block to arrive publishes.  Also records the
 * arrived totals of phase `other` as seen, and releases its rows.  counts: shared.  A block for which the group has
 * ended must not call this: then nothing is published. */
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
    if (p == g->rank) *moek_ep_gpu_local_(g, phase).operations = news.operations;  /* combine_send reads it after it */
    moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 1, other, moek_ep_gpu_mine_(g, p)), operations);
    moek_store_relaxed_sys_(moek_ep_gpu_flag_(g, p, 0, phase, moek_ep_gpu_mine_(g, p)), news.sent);
    moek_ep_gpu_local_(g, phase).sent[p] = news.sent;
    moek_ep_gpu_local_(g, other).seen[p] = news.arrived;
}

/* Marks a row.  Called by one thread, after a barrier of the threads that wrote the row. */
MOEK_DEVICE void moek_ep_gpu_mark_row_(const moek_ep_gpu_ *g, int rank, size_t row, uint64_t operation)
{
    if (g->moved) return;                              /* flags are moved with the rows */
    moek_fence_sys_();
    moek_store_relaxed_sys_(moek_ep_gpu_mark_(g, rank, row), operation);
}

/* alltoall: too many rows for some rank.  One thread reports the fullest rank and its number of rows to the host. */
MOEK_DEVICE void moek_ep_gpu_full_(const moek_ep_gpu_ *g)
{
    uint32_t rows, most = 0;
    int p, s, fullest = 0;
    for (p = 0; p < g->ranks; p++) {
        for (rows = 0, s = 0; s < g->ranks; s++) {
            const uint32_t here = moek_ep_gpu_counts_(g, g->rank, s)[p];
            rows = g->packed ? rows + here : max(rows, here * g->ranks);       /* moved: as if all ranks sent so many */
        }
        if (rows > most) { most = rows; fullest = p; }
    }
    moek_store_relaxed_sys_(g->report + 1 + g->handle,
                            moek_ep_pack_full_(most, fullest, moek_ep_gpu_operation_(g, MOEK_EP_COUNTS)));
}

/* ---- rows that are added up, by combine_send and combine_receive ------------------------------------------------- */

/* Threads of a block of combine_send and combine_receive for many tokens: an SM has room for one block of each, so that
 * rows are added up while other rows are in flight.  RING: 16-byte words in flight to each thread, in shared memory. */
enum { MOEK_EP_BACK_ = 512, MOEK_EP_RING_ = 12, MOEK_EP_RING_BYTES_ = MOEK_EP_BACK_ * MOEK_EP_RING_ * 16 };

/* Rows to be added up.  Row number i lies at base + i * stride.  Lane n of a warp holds the number (`at`) and the
 * weight of the n-th of `rows` addends. */
typedef struct moek_ep_adds_ { const char *base; size_t stride; int at, rows; float weight; } moek_ep_adds_;

/* A warp adds word w of each row to sum, in the order of the rows: eight columns.  w >= words: adds nothing. */
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

/* A warp's ring of asynchronous copies to shared memory.  A lane gets words w = lane, lane + 32, ...; for each w it
 * gets that word of each row in turn.  ask_next_ starts the next copy. */
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
/* The sum of the rows at the next word, whose number was q->w before the call. */
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
