/* moek/ep/wire.h -- the protocol: flags, credits, bounded waits, and the first error.
 *
 * An operation on a handle goes through phases, on every rank the same: counts (alltoall only), dispatch, combine.  In
 * each phase every rank sends to every rank, itself included, perhaps nothing:
 *
 *     grant     wait until each rank is done with what I sent it in this phase's operation before
 *     (store)   rows into the windows of others
 *     publish   add to my flag in each window:  1 << 40 | tag << 32 | count
 *     arrive    wait until each rank's flag in my window has moved on, by just one such addend; take tag and count
 *     (load)    rows from my own window
 *     release   add 1 to my credit in each window: I am done with yours
 *
 * Flags and credits are running totals of 64 bits in a line of their own with one writer, never cleared, compared by
 * difference, so they may wrap.  Payload comes before its flag by release and acquire; on a GPU the same is a fence at
 * system scope and a relaxed store.  Without credits a rank that starts its next operation early would overwrite rows
 * that are still being read (tests/test_ep_protocol.c shows it).
 *
 * grant, in a correct program, is satisfied before it is asked: dispatch of the next operation comes after combine of
 * this one, which every rank sends after it has read its rows.  So send halves wait for nobody (but for the counts of
 * alltoall), and ranks that take turns on one GPU, or one thread, do not block each other.
 *
 * On GPUs rows may follow their count: whoever reads one waits for its mark (device.h).  Nothing else changes: a
 * row is released when all of its rank's are.
 *
 * Every wait looks, once in a while, for an error of its own (latch), for one of another rank (abort_word), and at the
 * clock.  Whoever fails first writes the reason to its latch and to the abort_word of all.  Nothing is published
 * after that: half-written rows are never announced.                                                                 */
#ifndef MOEK_EP_WIRE_H
#define MOEK_EP_WIRE_H
#if MOEK_HAVE_CUDA_
static moek_status moek_ep_fail_on_gpu_(const moek_ep *ep, const moek_ep_error *e);
#endif
#if !defined(__GNUC__)
#error "moek_ep.h needs the __atomic builtins of gcc or clang"
#endif

/* A clock in milliseconds that is never set back, and a way to let others run.  Define both to bring your own. */
#ifndef MOEK_EP_MS
#if !defined(__unix__) && !defined(__APPLE__)
#error "moek_ep.h: define MOEK_EP_MS() and MOEK_EP_PAUSE() for this system"
#endif
#include <sched.h>
#include <sys/times.h>
#include <unistd.h>
static uint64_t moek_ep_ms_(void)
{
    struct tms unused;
    return (uint64_t)times(&unused) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}
#define MOEK_EP_MS() moek_ep_ms_()
#define MOEK_EP_PAUSE() ((void)sched_yield())
#endif

static uint64_t moek_ep_load_(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void moek_ep_store_(uint64_t *p, uint64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

static uint64_t *moek_ep_word_(const moek_ep *ep, int rank, size_t at) { return (uint64_t *)(ep->base[rank] + at); }

/* In the window of `rank`. */
static uint64_t *moek_ep_flag_(const moek_ep *ep, int rank, int kind, int phase, int handle, int from)
{
    return moek_ep_word_(ep, rank, moek_ep_flag_at_(&ep->layout, ep->config.ranks, kind, phase, handle, from));
}

/* My own totals of a phase and handle. */
typedef struct moek_ep_totals_ { uint64_t *sent, *seen, *operations; } moek_ep_totals_;
MOEK_FN moek_ep_totals_ moek_ep_totals_of_(char *own, const moek_ep_layout *l, int handles, int ranks, int phase,
                                           int handle)
{
    moek_ep_totals_ t;
    t.sent = (uint64_t *)(own + moek_ep_local_at_(l, handles, ranks, phase, handle));
    t.seen = t.sent + ranks;
    t.operations = t.seen + ranks;
    return t;
}
static moek_ep_totals_ moek_ep_local_(const moek_ep *ep, int phase, int handle)
{
    return moek_ep_totals_of_(ep->base[ep->config.rank], &ep->layout, ep->config.handles, ep->config.ranks, phase,
                              handle);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* An error in a word: status 8, cause 8, phase 4, handle 4, peer 8, reporter 8, operation 24 bits.  0: none. */
MOEK_FN uint64_t moek_ep_pack_(const moek_ep_error *e)
{
    return (uint64_t)e->status | (uint64_t)e->cause << 8 | (uint64_t)e->phase << 16 | (uint64_t)e->handle << 20 |
           (uint64_t)e->peer << 24 | (uint64_t)e->reporter << 32 | (uint64_t)(e->operation & 0xffffff) << 40;
}
static moek_ep_error moek_ep_unpack_(uint64_t w)
{
    moek_ep_error e;
    e.status = (moek_status)(w & 0xff);
    e.cause = (moek_status)(w >> 8 & 0xff);
    e.phase = (int)(w >> 16 & 15);
    e.handle = (int)(w >> 20 & 15);
    e.peer = (int)(w >> 24 & 0xff);
    e.reporter = (int)(w >> 32 & 0xff);
    e.operation = (unsigned)(w >> 40);
    e.rows = 0;
    return e;
}

/* alltoall on GPUs, in config.report behind the latch, a word a handle: rows that did not fit (32 bits), the rank that
 * would have received them (8), operation (24). */
MOEK_FN uint64_t moek_ep_pack_full_(uint32_t rows, int rank, uint64_t operation)
{
    return rows | (uint64_t)rank << 32 | (operation & 0xffffff) << 40;
}
/* Takes it; 0: there was none. */
static int moek_ep_full_(const moek_ep *ep, moek_ep_error *e)
{
    uint64_t *const report = (uint64_t *)ep->config.report, w = 0;
    int handle;
    if (ep->config.transport != MOEK_EP_GPU || ep->config.kind != MOEK_EP_ALLTOALL || !ep->open) return 0;
    for (handle = 0; handle < ep->config.handles; handle++)
        if ((w = __atomic_exchange_n(report + 1 + handle, 0, __ATOMIC_ACQ_REL)) != 0) break;
    if (!w) return 0;
    e->status = e->cause = MOEK_E_CAPACITY;
    e->phase = MOEK_EP_COUNTS; e->handle = handle; e->reporter = ep->config.rank;
    e->rows = (int)(w & 0xffffffff);
    e->peer = (int)(w >> 32 & 0xff);
    e->operation = (unsigned)(w >> 40);
    return 1;
}

/* Where the host finds the latch: kernels copy theirs to config.report. */
static uint64_t *moek_ep_latch_(const moek_ep *ep)
{
    return ep->config.transport == MOEK_EP_GPU ? (uint64_t *)ep->config.report
                                               : moek_ep_word_(ep, ep->config.rank, ep->layout.latch);
}

/* A word of a window, wherever that is; 0 if it can not be read. */
static uint64_t moek_ep_peek_(const moek_ep *ep, const uint64_t *word)
{
    uint64_t value = 0;
    if (ep->config.transport != MOEK_EP_GPU) return moek_ep_load_(word);
    return moek_ep_copy_(ep, &value, word, sizeof value) == MOEK_OK ? value : 0;
}

static moek_status moek_ep_poke_(const moek_ep *ep, uint64_t *word, uint64_t value)
{
    if (ep->config.transport == MOEK_EP_GPU) return moek_ep_copy_(ep, word, &value, sizeof value);
    moek_ep_store_(word, value);
    return MOEK_OK;
}

/* The first error stays. */
static moek_status moek_ep_keep_(const moek_ep *ep, const moek_ep_error *e)
{
    uint64_t none = 0, *latch = moek_ep_latch_(ep);
    __atomic_compare_exchange_n(latch, &none, moek_ep_pack_(e), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return (moek_status)(moek_ep_load_(latch) & 0xff);
}

/* Has the group ended?  Then the status that runs return.  (On a GPU, once open, kernels look at the abort_word.) */
static moek_status moek_ep_ended_(const moek_ep *ep)
{
    const uint64_t here = moek_ep_load_(moek_ep_latch_(ep));
    uint64_t there;
    moek_ep_error e;
    if (here) return (moek_status)(here & 0xff);
    if (ep->open && ep->config.transport == MOEK_EP_GPU) return MOEK_OK;
    there = moek_ep_peek_(ep, moek_ep_word_(ep, ep->config.rank, ep->layout.abort_word));
    if (!there) return MOEK_OK;
    e = moek_ep_unpack_(there);
    e.status = MOEK_E_ABORTED;
    return moek_ep_keep_(ep, &e);
}

/* Ends the group: keeps the error here and tells it to all; of two handles that fail at once, the first one's. */
static moek_status moek_ep_fail_(const moek_ep *ep, moek_status status, int phase, int handle, int peer,
                                 uint64_t operation)
{
    const moek_status before = moek_ep_ended_(ep);
    moek_ep_error e;
    moek_status kept;
    uint64_t first;
    int p;
    if (before != MOEK_OK) return before;
    e.status = e.cause = status;
    e.phase = phase; e.handle = handle; e.peer = peer; e.reporter = ep->config.rank;
    e.operation = (unsigned)(operation & 0xffffff);
    e.rows = 0;
#if MOEK_HAVE_CUDA_
    if (ep->config.transport == MOEK_EP_GPU) return moek_ep_fail_on_gpu_(ep, &e);
#endif
    kept = moek_ep_keep_(ep, &e);
    first = moek_ep_load_(moek_ep_latch_(ep));
    if (moek_ep_unpack_(first).reporter != ep->config.rank) return kept;         /* who did has told all */
    for (p = 0; p < ep->config.ranks; p++) {
        uint64_t none = 0, *word = moek_ep_word_(ep, p, ep->layout.abort_word);
        if (p != ep->config.rank)
            __atomic_compare_exchange_n(word, &none, first, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    return kept;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Another rank has found that configurations differ?  Then this one finds it, too, and can say more than that: what it
 * waits for when it opens is there already, or about to come. */
static int moek_ep_will_see_(const moek_ep *ep, int phase)
{
    const moek_ep_error e = moek_ep_unpack_(moek_ep_load_(moek_ep_latch_(ep)));
    return phase == MOEK_EP_OPENING && e.phase == MOEK_EP_OPENING && e.cause == MOEK_E_MISMATCH;
}

/* Once more, though the look number `polls` (from 1) was in vain?  *start: 0 at the first. */
static moek_status moek_ep_again_(const moek_ep *ep, unsigned polls, uint64_t *start, int phase, int handle, int peer,
                                  uint64_t operation)
{
    moek_status ended;
    uint64_t now;
    if (polls % 64) return MOEK_OK;
    if ((ended = moek_ep_ended_(ep)) != MOEK_OK && !moek_ep_will_see_(ep, phase)) return ended;
    now = MOEK_EP_MS();
    if (!*start) *start = now;
    if (now - *start > (uint64_t)ep->config.timeout_ms)
        return moek_ep_fail_(ep, MOEK_E_TIMEOUT, phase, handle, peer, operation);
    MOEK_EP_PAUSE();
    return MOEK_OK;
}

/* Until *word is at least `least` beyond `from`, in differences that may wrap. */
static moek_status moek_ep_wait_(const moek_ep *ep, const uint64_t *word, uint64_t from, uint64_t least, int phase,
                                 int handle, int peer, uint64_t operation)
{
    moek_status status = MOEK_OK;
    uint64_t start = 0;
    unsigned polls;
    for (polls = 1; status == MOEK_OK && (moek_ep_peek_(ep, word) - from - least) >> 63; polls++)
        status = moek_ep_again_(ep, polls, &start, phase, handle, peer, operation);
    return status;
}

/* The ranks are asked from my own on, so that not all look at rank 0 first. */
static int moek_ep_turn_(const moek_ep *ep, int i) { return (ep->config.rank + i) % ep->config.ranks; }

static moek_status moek_ep_grant_(const moek_ep *ep, int phase, int handle)
{
    const uint64_t operations = *moek_ep_local_(ep, phase, handle).operations;
    moek_status status = moek_ep_ended_(ep);
    int i;
    for (i = 0; i < ep->config.ranks && status == MOEK_OK; i++) {
        const int p = moek_ep_turn_(ep, i);
        status = moek_ep_wait_(ep, moek_ep_flag_(ep, ep->config.rank, 1, phase, handle, p), 0, operations, phase,
                               handle, p, operations + 1);
    }
    return status;
}

/* counts: [ranks] rows that went to each rank. */
static moek_status moek_ep_publish_(const moek_ep *ep, int phase, int handle, int tag, const int32_t *counts)
{
    const moek_ep_totals_ t = moek_ep_local_(ep, phase, handle);
    const moek_status ended = moek_ep_ended_(ep);
    int i;
    if (ended != MOEK_OK) return ended;
    for (i = 0; i < ep->config.ranks; i++) {
        const int p = moek_ep_turn_(ep, i);
        t.sent[p] += (uint64_t)1 << 40 | (uint64_t)tag << 32 | (uint32_t)counts[p];
        moek_ep_store_(moek_ep_flag_(ep, p, 0, phase, handle, ep->config.rank), t.sent[p]);
    }
    *t.operations += 1;
    return MOEK_OK;
}

/* tag: what all ranks must have sent along.  counts: [ranks], written. */
static moek_status moek_ep_arrive_(const moek_ep *ep, int phase, int handle, int tag, int32_t *counts)
{
    const moek_ep_totals_ t = moek_ep_local_(ep, phase, handle);
    const uint64_t one = (uint64_t)1 << 40;
    moek_status status = MOEK_OK;
    int i;
    for (i = 0; i < ep->config.ranks && status == MOEK_OK; i++) {
        const int p = moek_ep_turn_(ep, i);
        const uint64_t *flag = moek_ep_flag_(ep, ep->config.rank, 0, phase, handle, p);
        uint64_t now;
        status = moek_ep_wait_(ep, flag, t.seen[p], one, phase, handle, p, *t.operations);
        if (status != MOEK_OK) break;
        now = moek_ep_load_(flag);
        now -= t.seen[p];
        counts[p] = (int32_t)(now & 0xffffffff);
        if (now >> 40 != 1 || (int)(now >> 32 & 0xff) != tag)
            status = moek_ep_fail_(ep, MOEK_E_MISMATCH, phase, handle, p, *t.operations);
        t.seen[p] += now;
    }
    return status == MOEK_OK ? moek_ep_ended_(ep) : status;
}

static void moek_ep_release_(const moek_ep *ep, int phase, int handle)
{
    const uint64_t operations = *moek_ep_local_(ep, phase, handle).operations;
    int i;
    for (i = 0; i < ep->config.ranks; i++)
        moek_ep_store_(moek_ep_flag_(ep, moek_ep_turn_(ep, i), 1, phase, handle, ep->config.rank), operations);
}
#endif
