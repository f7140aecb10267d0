/* moek/ep/flags.h -- words of 64 bits in windows: flags, totals and packed errors.  Their addresses, their formats, and
 * how the host loads and stores them. */
#ifndef MOEK_EP_FLAGS_H
#define MOEK_EP_FLAGS_H
#include "layout.h"

#if !defined(__GNUC__)
#error "moek_ep.h needs the __atomic builtins of gcc or clang"
#endif

/* A monotonic clock in milliseconds, and a call that yields the CPU.  Define both to bring your own. */
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

/* A flag of rank `from` in the window of `rank`. */
static uint64_t *moek_ep_flag_(const moek_ep *ep, int rank, int kind, int phase, int handle, int from)
{
    return moek_ep_word_(ep, rank, moek_ep_flag_at_(&ep->layout, ep->config.ranks, kind, phase, handle, from));
}

/* Totals of a phase and handle, in the rank's own window: sent and seen are [ranks]. */
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

/* An error packed into a word, so that one store or compare-and-swap publishes it: status 8, cause 8, phase 4,
 * handle 4, peer 8, reporter 8, operation 24 bits.  0: no error. */
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

/* alltoall on GPUs reports rows that did not fit in config.report, after the latch, one word a handle: number of rows
 * (32 bits), the rank that would have received them (8), operation (24). */
MOEK_FN uint64_t moek_ep_pack_full_(uint32_t rows, int rank, uint64_t operation)
{
    return rows | (uint64_t)rank << 32 | (operation & 0xffffff) << 40;
}

/* ---- words of a window in host or GPU memory --------------------------------------------------------------------- */

/* Load and store a word of a window in host or GPU memory.  peek_ returns 0 if the word can not be read. */
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
#endif
