/* moek/ep/wire.h -- the protocol between ranks, as the host speaks it: flags, credits and bounded waits.
 *
 * An operation on a handle goes through phases, the same on every rank: counts (alltoall only), dispatch, combine.  In
 * each phase every rank sends to every rank, itself included, even if there are no rows:
 *
 *     grant     wait until each rank has finished with what I sent it in the same phase of the operation before
 *     (store)   write rows into the windows of the other ranks
 *     publish   add to my flag in each window:  1 << 40 | tag << 32 | count
 *     arrive    wait until the flag of each rank in my window has grown by exactly one such addend; take tag and count
 *     (load)    read rows from my own window
 *     release   add 1 to my credit in each window: I have finished with the rows of that rank
 *
 * Flags and credits are running totals of 64 bits.  Each has a line of its own and one writer, and is never cleared.
 * Totals are compared by difference, so they may wrap.  Rows are ordered before their flag by release and acquire; on a
 * GPU by a fence at system scope and a relaxed store.  Credits are necessary: without them a rank that starts its next
 * operation early would overwrite rows that are still being read (tests/ep/test_ep_protocol.c shows this).
 *
 * In a correct program grant never has to wait: dispatch of the next operation follows combine of this one, and every
 * rank sends its combine rows after it has read its dispatch rows.  So send halves wait for no other rank (except for
 * the counts of alltoall), and ranks that take turns on one GPU, or in one thread, do not block each other.
 *
 * On GPUs rows may arrive after their count; a kernel that reads a row waits for the row's mark (ep/device.h).  Nothing
 * else changes: the rows of a rank are released together.
 *
 * Every wait checks from time to time for an error of its own rank (latch), for an error of another rank (abort_word),
 * and the clock.  The first rank that fails writes the reason to its latch and to the abort_word of every other rank.
 * Nothing is published after that, so half-written rows are never announced.                                         */
#ifndef MOEK_EP_WIRE_H
#define MOEK_EP_WIRE_H
#include "error.h"

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* 1 if the group ended because configurations differ, and this rank will find the same difference by itself.  Its own
 * sentence names the field and both values, so opening goes on: the handshake that it waits for is or will be there. */
static int moek_ep_will_see_(const moek_ep *ep, int phase)
{
    const moek_ep_error e = moek_ep_unpack_(moek_ep_load_(moek_ep_latch_(ep)));
    return phase == MOEK_EP_OPENING && e.phase == MOEK_EP_OPENING && e.cause == MOEK_E_MISMATCH;
}

/* Called after poll number `polls` (from 1) found nothing new.  Every 64 polls: looks for errors and at the clock.
 * *start: set to 0 by the caller before the first poll.  MOEK_OK: poll again. */
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

/* Waits until *word - from is at least `least`, modulo 2^64. */
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

/* Each rank goes through its peers from itself on, so that not all ranks begin with rank 0. */
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

/* counts: [ranks], rows that were sent to each rank. */
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

/* tag: the tag that every rank must have published.  counts: [ranks], written. */
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
