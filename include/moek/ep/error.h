/* moek/ep/error.h -- errors on the host: the first one is kept, sent to all ranks, polled, and put in a sentence.
 *
 * `latch` holds the first error that this rank knows of; abort_word receives the error of another rank.  On GPUs both
 * are in GPU memory, where kernels write them, and config.report in pinned memory has a copy of the latch. */
#ifndef MOEK_EP_ERROR_H
#define MOEK_EP_ERROR_H
#include <string.h>
#include "flags.h"
#if MOEK_HAVE_CUDA_
#include "device.h"
#endif

/* Consumes the report of rows that did not fit (moek_ep_pack_full_) of the lowest handle that has one.  Returns 0 if
 * there is none. */
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

/* The latch as the host sees it.  On GPUs that is config.report, to which kernels copy theirs. */
static uint64_t *moek_ep_latch_(const moek_ep *ep)
{
    return ep->config.transport == MOEK_EP_GPU ? (uint64_t *)ep->config.report
                                               : moek_ep_word_(ep, ep->config.rank, ep->layout.latch);
}

/* Stores an error unless there is one already.  Returns the status of the error that is kept. */
static moek_status moek_ep_keep_(const moek_ep *ep, const moek_ep_error *e)
{
    uint64_t none = 0, *latch = moek_ep_latch_(ep);
    __atomic_compare_exchange_n(latch, &none, moek_ep_pack_(e), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return (moek_status)(moek_ep_load_(latch) & 0xff);
}

/* MOEK_OK, or the status that runs return because the group has ended.  On an open group on GPUs the host does not read
 * abort_word: kernels do, and report. */
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

#if MOEK_HAVE_CUDA_
/* ---- where windows are in GPU memory ----------------------------------------------------------------------------- */

#if MOEK_HAVE_CUDART_
/* Makes a device current.  Returns the device that was current before. */
static int moek_ep_on_device_(int device)
{
    int before = device;
    if (cudaGetDevice(&before) == cudaSuccess && before != device) (void)cudaSetDevice(device);
    return before;
}
/* A stream of its own for a short piece of work, and the end of both: finish_ waits and destroys the stream. */
static moek_stream moek_ep_new_stream_(void)
{
    cudaStream_t stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) (void)cudaGetLastError();
    return stream;
}
static void moek_ep_finish_(moek_status launched, moek_stream stream)
{
    if (launched != MOEK_OK || cudaStreamSynchronize(stream) != cudaSuccess) (void)cudaGetLastError();
    if (stream) cudaStreamDestroy(stream);
}
#else
static int moek_ep_on_device_(int device) { return device; }
static moek_stream moek_ep_new_stream_(void) { return (moek_stream)0; }
static void moek_ep_finish_(moek_status launched, moek_stream stream) { (void)launched; (void)stream; }
#endif

/* Ends the group by a kernel, because windows are in GPU memory.  Any thread may call it; on return the host has the
 * error, too.  The kernel gets a non-blocking stream: runs may be on the NULL stream, and wait for a peer there. */
static moek_status moek_ep_fail_on_gpu_(const moek_ep *ep, const moek_ep_error *e)
{
    const int current = moek_ep_on_device_(ep->device);
    const moek_stream stream = moek_ep_new_stream_();
    moek_ep_end_ a;
    a.g = moek_ep_on_gpu_(ep, 0, 0);
    a.error = moek_ep_pack_(e);
    moek_ep_finish_(MOEK_LAUNCH_(moek_ep_end_k_, 1, 1, 0, stream, a), stream);
    moek_ep_on_device_(current);
    return moek_ep_keep_(ep, e);                       /* also where the launch failed */
}
#endif

/* ---- the end of a group ------------------------------------------------------------------------------------------ */

/* Ends the group: keeps the error here and sends it to all ranks.  If two handles fail at once, the first error is kept
 * and sent. */
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
    if (moek_ep_unpack_(first).reporter != ep->config.rank) return kept;         /* that rank has told all */
    for (p = 0; p < ep->config.ranks; p++) {
        uint64_t none = 0, *word = moek_ep_word_(ep, p, ep->layout.abort_word);
        if (p != ep->config.rank)
            __atomic_compare_exchange_n(word, &none, first, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    return kept;
}

moek_status moek_ep_poll(const moek_ep *ep, moek_ep_error *error)
{
    moek_status status;
    moek_ep_error e;
    memset(&e, 0, sizeof e);
    if (error) *error = e;
    if (!ep || !ep->base[0]) return MOEK_E_ARGUMENT;
    status = moek_ep_ended_(ep);
    if (status != MOEK_OK) e = moek_ep_unpack_(moek_ep_load_(moek_ep_latch_(ep)));
    else if (moek_ep_full_(ep, &e)) status = MOEK_E_CAPACITY;
    if (error) *error = e;
    return status;
}

/* ---- sentences --------------------------------------------------------------------------------------------------- */

static const char *moek_ep_phase_name_(int phase)
{
    return phase == MOEK_EP_OPENING ? "opening" : phase == MOEK_EP_COUNTS ? "counts"
         : phase == MOEK_EP_DISPATCH ? "dispatch" : "combine";
}

/* Appends a sentence on what ended the group. */
static void moek_ep_say_(const moek_ep *ep, moek_text_ *t)
{
    moek_ep_error e;
    moek_ep_poll(ep, &e);
    if (e.reporter == ep->config.rank) moek_append_(t, "this rank, %d, ended the group: ", e.reporter);
    else moek_append_(t, "rank %d ended the group: ", e.reporter);
    if (e.cause == MOEK_E_TIMEOUT && ep->config.move && e.operation)
        moek_append_(t, "what was moved from rank %d brought no rows: it has ended, or was elsewhere", e.peer);
    else if (e.cause == MOEK_E_TIMEOUT)
        moek_append_(t, "rank %d did not answer within %d ms", e.peer, ep->config.timeout_ms);
    else if (e.cause == MOEK_E_MISMATCH && e.phase == MOEK_EP_OPENING)
        moek_append_(t, "rank %d was given another configuration", e.peer);
    else if (e.cause == MOEK_E_MISMATCH)
        moek_append_(t, "rank %d runs another layer, or has other static scales or chunks", e.peer);
    else
        moek_append_(t, "moek_ep_abort was called");
    if (e.operation)
        moek_append_(t, " (%s of operation %u on handle %d)", moek_ep_phase_name_(e.phase), e.operation, e.handle);
    moek_append_(t, ".  Open it again, on zeroed windows");
}

static moek_status moek_ep_tell_(const moek_ep *ep, const moek_args *args, moek_status status)
{
    moek_text_ t = moek_text_in_(args->why, args->why_size);
    moek_ep_say_(ep, &t);
    return status;
}
#endif
