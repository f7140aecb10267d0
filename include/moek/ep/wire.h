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
