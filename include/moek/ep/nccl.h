/* moek/ep/nccl.h -- how a group over NCCL opens, waits and closes (moek_ep_nccl.h).
 *
 * Ranks exchange everything here by one all-gather of at most MOEK_EP_NCCL_SAY_ bytes a rank, with a bounded wait.  A
 * step is tried on each rank; then all ranks learn how it went (agree), and go on together or undo the step together.
 *
 * The first message is a vote.  It has the same number of bytes in all versions, and begins with the sender's version.
 * So ranks of different versions detect that before they wait for messages of different sizes. */
#ifndef MOEK_EP_NCCL_PARTS_H
#define MOEK_EP_NCCL_PARTS_H
#include <stdio.h>
#include <string.h>
#include "group.h"
#include "nccl_api.h"

#if !MOEK_HAVE_CUDART_
#error "moek_ep_nccl.h: compile the implementation with nvcc"
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#if NCCL_VERSION_CODE >= 22807
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <nccl_device.h>
#pragma GCC diagnostic pop
#endif

#ifndef MOEK_EP_NCCL_VERSION_                           /* a test pretends to be another version */
#define MOEK_EP_NCCL_VERSION_ MOEK_VERSION
#endif
enum { MOEK_EP_NCCL_SAY_ = 512, MOEK_EP_NCCL_FIRST_ = 22807, MOEK_EP_NCCL_GETTER_ = 22902 };

const char *moek_ep_nccl_path_name(int path)
{
    return path == MOEK_EP_NCCL_WINDOW ? "window" : path == MOEK_EP_NCCL_IPC ? "ipc"
         : path == MOEK_EP_NCCL_SENDS ? "sends" : NULL;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* 1 if a call succeeded.  Waits, at most timeout_ms, for a call on a nonblocking communicator that is still in
 * progress. */
static int moek_ep_nccl_ok_(const moek_ep_nccl *w, ncclResult_t r)
{
    const uint64_t start = MOEK_EP_MS();
    while (r == ncclInProgress && MOEK_EP_MS() - start <= (uint64_t)w->timeout_ms) {
        MOEK_EP_PAUSE();
        if (ncclCommGetAsyncError(w->comm, &r) != ncclSuccess) return 0;
    }
    return r == ncclSuccess;
}

/* Waits at most `ms` until the stream is idle.  OK; E_TIMEOUT, also if NCCL has failed and `watch` is set; E_CUDA. */
static moek_status moek_ep_nccl_idle_(const moek_ep_nccl *w, cudaStream_t stream, int ms, int watch)
{
    const uint64_t start = MOEK_EP_MS();
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        ncclResult_t r = ncclSuccess;
        (void)cudaGetLastError();
        if (watch && w->comm && (ncclCommGetAsyncError(w->comm, &r) != ncclSuccess ||
                                 (r != ncclSuccess && r != ncclInProgress))) return MOEK_E_TIMEOUT;
        if (MOEK_EP_MS() - start > (uint64_t)ms) return MOEK_E_TIMEOUT;
        MOEK_EP_PAUSE();
    }
    if (error == cudaSuccess) return MOEK_OK;
    (void)cudaGetLastError();
    return MOEK_E_CUDA;
}

/* Aborts the communicator, once, even if two threads try. */
static void moek_ep_nccl_drop_(moek_ep_nccl *w)
{
    const ncclComm_t comm = __atomic_exchange_n(&w->comm, (ncclComm_t)NULL, __ATOMIC_ACQ_REL);
    if (comm) (void)ncclCommAbort(comm);
}

/* ---- all-gather and votes ---------------------------------------------------------------------------------------- */

/* A moek_ep_gather.  A failure aborts the communicator. */
static int moek_ep_nccl_gather_(void *context, const void *mine, void *all, size_t bytes)
{
    moek_ep_nccl *const w = (moek_ep_nccl *)context;
    const cudaStream_t stream = (cudaStream_t)w->stream;
    char *const at = (char *)w->scratch;
    if (!w->comm || bytes > MOEK_EP_NCCL_SAY_) return 1;
    if (cudaMemcpyAsync(at + (size_t)w->rank * bytes, mine, bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess &&
        moek_ep_nccl_ok_(w, ncclAllGather(at + (size_t)w->rank * bytes, at, bytes, ncclInt8, w->comm, stream)) &&
        moek_ep_nccl_idle_(w, stream, w->timeout_ms, 1) == MOEK_OK &&
        cudaMemcpyAsync(all, at, (size_t)w->ranks * bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
        cudaStreamSynchronize(stream) == cudaSuccess) return 0;
    (void)cudaGetLastError();
    moek_ep_nccl_drop_(w);
    return 1;
}

/* The same, with a sentence on failure. */
static moek_status moek_ep_nccl_hear_(moek_ep_nccl *w, const void *mine, void *all, size_t bytes, moek_text_ *why)
{
    if (!moek_ep_nccl_gather_(w, mine, all, bytes)) return MOEK_OK;
    MOEK_FAIL_(why, MOEK_E_TIMEOUT, "NCCL failed or not all ranks came within %d ms; the communicator was aborted: "
               "make another one", w->timeout_ms);
}

/* Versions before 105 had a status in the place of the two versions, so that wire reads as 0.  Such a rank prints
 * `why`, which therefore is set in every vote. */
typedef struct moek_ep_nccl_vote_ {
    int32_t version, wire;                             /* MOEK_VERSION; MOEK_EP_WIRE_VERSION_ */
    char why[MOEK_EP_NCCL_SAY_ - 16];
    int64_t status;
} moek_ep_nccl_vote_;
typedef char moek_ep_nccl_vote_fits_[sizeof(moek_ep_nccl_vote_) == MOEK_EP_NCCL_SAY_ ? 1 : -1];

/* Exchanges the status of a step.  MOEK_OK if it succeeded on all ranks; otherwise the status of the first rank that
 * failed, with its sentence in `why`. */
static moek_status moek_ep_nccl_agree_(moek_ep_nccl *w, moek_status status, const char *own, moek_text_ *why)
{
    moek_ep_nccl_vote_ mine, all[MOEK_EP_MAX_RANKS];
    int p;
    memset(&mine, 0, sizeof mine);
    mine.version = MOEK_EP_NCCL_VERSION_; mine.wire = MOEK_EP_WIRE_VERSION_;
    mine.status = status;
    if (status != MOEK_OK) memcpy(mine.why, own, strlen(own) < sizeof mine.why ? strlen(own) : sizeof mine.why - 1);
    else snprintf(mine.why, sizeof mine.why, "it has moek %d.%d", (int)mine.version, (int)mine.wire);
    if ((status = moek_ep_nccl_hear_(w, &mine, all, sizeof mine, why)) != MOEK_OK) return status;
    for (p = 0; p < w->ranks; p++)
        if (all[p].version != all[0].version || all[p].wire != all[0].wire)
            MOEK_FAIL_(why, MOEK_E_MISMATCH, "rank %d has moek %d.%d, rank 0 has %d.%d%s", p, (int)all[p].version,
                       (int)all[p].wire, (int)all[0].version, (int)all[0].wire,
                       all[p].wire && all[0].wire ? "" : " (one is older than 105)");
    for (p = 0; p < w->ranks; p++)
        if (all[p].status != MOEK_OK) MOEK_FAIL_(why, (moek_status)all[p].status, "rank %d: %s", p, all[p].why);
    return MOEK_OK;
}

/* ---- what ranks compare ------------------------------------------------------------------------------------------ */

typedef struct moek_ep_nccl_handshake_ {
    uint64_t config[MOEK_EP_HANDSHAKE_], host, nccl, path, memory;
} moek_ep_nccl_handshake_;
typedef char moek_ep_nccl_handshake_fits_[sizeof(moek_ep_nccl_handshake_) <= MOEK_EP_NCCL_SAY_ ? 1 : -1];

/* Identifies the host: a hash of the boot id, which is the same in all containers of a running kernel; or of
 * NCCL_HOSTID where that is set, as NCCL does. */
static uint64_t moek_ep_nccl_host_(void)
{
    char id[256] = "";
    const char *const told = getenv("NCCL_HOSTID");
    uint64_t hash = 14695981039346656037u;
    size_t i;
    const int file = told ? -1 : open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    if (told) snprintf(id, sizeof id, "%s", told);
    else if (file < 0 || read(file, id, 36) != 36) (void)gethostname(id, sizeof id - 1);
    if (file >= 0) close(file);
    for (i = 0; i < sizeof id; i++) hash = (hash ^ (unsigned char)id[i]) * 1099511628211u;
    return hash;
}

/* Compares configurations field by field.  *one_host: 1 if all ranks are on one host; *nccl: the oldest version of
 * NCCL. */
static moek_status moek_ep_nccl_greet_(moek_ep_nccl *w, const moek_ep *ep, int path, int *one_host, int *nccl,
                                       moek_text_ *why)
{
    moek_ep_nccl_handshake_ mine, all[MOEK_EP_MAX_RANKS];
    moek_status status;
    int p, i, version = 0;
    (void)ncclGetVersion(&version);
    memset(&mine, 0, sizeof mine);
    moek_ep_handshake_(ep, mine.config);
    if (version > NCCL_VERSION_CODE) version = NCCL_VERSION_CODE;              /* compiled for that one */
    mine.host = moek_ep_nccl_host_(); mine.nccl = (uint64_t)version; mine.path = (uint64_t)path;
    mine.memory = w->memory_size;
    if ((status = moek_ep_nccl_hear_(w, &mine, all, sizeof mine, why)) != MOEK_OK) return status;
    *one_host = 1; *nccl = version;
    for (p = 0; p < w->ranks; p++) {
        if (all[p].path != all[0].path)
            MOEK_FAIL_(why, MOEK_E_MISMATCH, "path: rank %d has %lu, rank 0 has %lu", p, (unsigned long)all[p].path,
                       (unsigned long)all[0].path);
        if (all[p].memory != all[0].memory)
            MOEK_FAIL_(why, MOEK_E_MISMATCH, "memory: rank %d brings %lu bytes, rank 0 %lu", p,
                       (unsigned long)all[p].memory, (unsigned long)all[0].memory);
        for (i = 0; i < MOEK_EP_HANDSHAKE_; i++)
            if (all[p].config[i] != all[0].config[i]) {
                const moek_ep_two_ two = moek_ep_two_of_(i, all[p].config[i], all[0].config[i]);
                MOEK_FAIL_(why, MOEK_E_MISMATCH, "%s: rank %d has %s, rank 0 has %s", moek_ep_compared_of_(i).name, p,
                           two.a, two.b);
            }
        *one_host &= all[p].host == mine.host;
        if ((int)all[p].nccl < *nccl) *nccl = (int)all[p].nccl;
    }
    return MOEK_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Bytes of memory for the path of the group.  `sends` has an outgoing window after its own. */
static size_t moek_ep_nccl_needs_(const moek_ep *ep)
{
    return ep->layout.size * (ep->config.move && ep->config.ranks > 1 ? 2 : 1);
}

/* 1 if memory is from cudaMalloc: cudaIpc accepts it.  A window of NCCL needs memory that cudaIpc does not accept. */
static int moek_ep_nccl_by_malloc_(void *p)
{
    cudaIpcMemHandle_t unused;
    const int yes = cudaIpcGetMemHandle(&unused, p) == cudaSuccess;
    (void)cudaGetLastError();
    return yes;
}

/* Checks that the caller's memory suits this path. */
static moek_status moek_ep_nccl_suits_(const moek_ep_nccl *w, size_t bytes, moek_text_ *why)
{
    const int malloced = w->path == MOEK_EP_NCCL_SENDS || moek_ep_nccl_by_malloc_(w->memory);
    if (w->memory_size < bytes)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "memory is of %lu bytes, this path needs %lu", (unsigned long)w->memory_size,
                   (unsigned long)bytes);
    if (w->path == MOEK_EP_NCCL_WINDOW && malloced)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "memory is not ncclMemAlloc's (or NCCL_CUMEM_ENABLE=0 is set)");
    if (w->path == MOEK_EP_NCCL_WINDOW && (uintptr_t)w->memory % MOEK_EP_PAGE_)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "memory is not aligned to %d bytes", (int)MOEK_EP_PAGE_);
    if (w->path == MOEK_EP_NCCL_IPC && !malloced)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "memory is not cudaMalloc's");
    return MOEK_OK;
}

/* The memory of this rank's window: the caller's, or allocated.  Zeroed. */
static moek_status moek_ep_nccl_alloc_(moek_ep_nccl *w, const moek_ep *ep, moek_text_ *why)
{
    const size_t bytes = moek_ep_nccl_needs_(ep);
    moek_status status = w->memory ? moek_ep_nccl_suits_(w, bytes, why) : MOEK_OK;
    int ok = 1;
    if (status != MOEK_OK) return status;
    if (w->memory) w->window = w->memory;
    else if (w->path == MOEK_EP_NCCL_WINDOW) ok = ncclMemAlloc(&w->window, bytes) == ncclSuccess;
    else ok = cudaMalloc(&w->window, bytes) == cudaSuccess;
    if (!ok) w->window = NULL;
    else if (bytes > ep->layout.size) w->out = (char *)w->window + ep->layout.size;
    if (ok && cudaMemsetAsync(w->window, 0, bytes, cudaStreamPerThread) == cudaSuccess &&
        cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess) return MOEK_OK;
    (void)cudaGetLastError();
    MOEK_FAIL_(why, MOEK_E_CUDA, w->memory ? "%lu bytes of memory can not be written"
                                           : "%lu bytes of memory for a window are not to be had",
                                           (unsigned long)bytes);
}

/* ipc: unmaps, and waits for all ranks, because no rank may free memory that another one still has mapped. */
static void moek_ep_nccl_unmap_(moek_ep_nccl *w)
{
    char unused[MOEK_EP_NCCL_SAY_ + 64];
    moek_text_ t = moek_text_in_(unused, sizeof unused);
    if (w->path != MOEK_EP_NCCL_IPC) return;
    moek_ep_ipc_close(w->ranks, w->window, w->base);
    if (w->comm) (void)moek_ep_nccl_agree_(w, MOEK_OK, "", &t);
}
static void moek_ep_nccl_free_(moek_ep_nccl *w)
{
    moek_ep_nccl_unmap_(w);
#if NCCL_VERSION_CODE >= 22807
    if (w->registered && w->comm)
        (void)moek_ep_nccl_ok_(w, ncclCommWindowDeregister(w->comm, (ncclWindow_t)w->registered));
#endif
    if (w->window && !w->memory && w->path == MOEK_EP_NCCL_WINDOW) (void)ncclMemFree(w->window);
    else if (w->window && !w->memory) (void)cudaFree(w->window);
    w->window = w->out = w->registered = NULL;
    (void)cudaGetLastError();
}

/* ---- the three paths: each leaves in w what it allocated and mapped ---------------------------------------------- */

#if NCCL_VERSION_CODE >= 22807
typedef struct moek_ep_nccl_bases_ { ncclWindow_t window; int ranks; void **to; } moek_ep_nccl_bases_;
static __global__ void moek_ep_nccl_resolve_k_(moek_ep_nccl_bases_ a)
{
    if ((int)threadIdx.x < a.ranks) a.to[threadIdx.x] = ncclGetLsaPointer(a.window, 0, (int)threadIdx.x);
}

/* Finds the pointers to all ranks' memory.  The struct behind ncclWindow_t is private.  NCCL 2.29.2 and later has a
 * function that reads it; before that a kernel must do so. */
static moek_status moek_ep_nccl_resolve_(moek_ep_nccl *w, int version, moek_text_ *why)
{
    typedef ncclResult_t (*getter)(ncclWindow_t, size_t, int, void **);
    const ncclWindow_t window = (ncclWindow_t)w->registered;
    const cudaStream_t stream = (cudaStream_t)w->stream;
    moek_ep_nccl_bases_ a;
    getter get = NULL;
    int p;
    if (version >= MOEK_EP_NCCL_GETTER_) *(void **)&get = dlsym(RTLD_DEFAULT, "ncclGetLsaDevicePointer");
    for (p = 0; get && p < w->ranks; p++)
        if (get(window, 0, p, &w->base[p]) != ncclSuccess || !w->base[p])
            MOEK_FAIL_(why, MOEK_E_BACKEND, "NCCL knows no pointer to the window of rank %d", p);
    if (get) return MOEK_OK;
    a.window = window; a.ranks = w->ranks; a.to = (void **)w->scratch;
    if (MOEK_LAUNCH_(moek_ep_nccl_resolve_k_, 1, MOEK_EP_MAX_RANKS, 0, stream, a) == MOEK_OK &&
        cudaMemcpyAsync(w->base, w->scratch, sizeof w->base[0] * (size_t)w->ranks, cudaMemcpyDeviceToHost, stream) ==
            cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess) return MOEK_OK;
    MOEK_FAIL_(why, MOEK_E_CUDA, "the window of NCCL: %s", cudaGetErrorString(cudaGetLastError()));
}

static moek_status moek_ep_nccl_register_(moek_ep_nccl *w, size_t size, int version, moek_text_ *why)
{
    struct cudaPointerAttributes at;
    ncclWindow_t window = NULL;
    const ncclResult_t r = ncclCommWindowRegister(w->comm, w->window, size, &window, NCCL_WIN_DEFAULT);
    if (!moek_ep_nccl_ok_(w, r)) MOEK_FAIL_(why, MOEK_E_BACKEND, "ncclCommWindowRegister: %s", ncclGetErrorString(r));
    w->registered = window;
    if (!window || cudaPointerGetAttributes(&at, window) != cudaSuccess || at.type != cudaMemoryTypeDevice) {
        (void)cudaGetLastError();
        MOEK_FAIL_(why, MOEK_E_BACKEND, "NCCL gives no window (NCCL_CUMEM_ENABLE=0, NCCL_WIN_ENABLE=0 or "
                   "NCCL_P2P_DISABLE=1 is set, or GPUs do not reach each other)");
    }
    if (ncclTeamLsa(w->comm).nRanks != w->ranks)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "NCCL reaches %d of %d ranks by loads and stores", ncclTeamLsa(w->comm).nRanks,
                   w->ranks);
    return moek_ep_nccl_resolve_(w, version, why);
}
#endif

static moek_status moek_ep_nccl_by_window_(moek_ep_nccl *w, const moek_ep *ep, int version, moek_text_ *why)
{
#if NCCL_VERSION_CODE >= 22807
    char own[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ t = moek_text_in_(own, sizeof own);
    moek_status status;
    if (version < MOEK_EP_NCCL_FIRST_)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "libnccl.so.2 is %d.%d.%d, here or on another rank; it must be 2.28.7 or later",
                   version / 10000, version / 100 % 100, version % 100);
    status = moek_ep_nccl_alloc_(w, ep, &t);
    if ((status = moek_ep_nccl_agree_(w, status, own, why)) != MOEK_OK) return status;      /* registers together */
    status = moek_ep_nccl_register_(w, ep->layout.size, version, &t);
    return moek_ep_nccl_agree_(w, status, own, why);
#else
    (void)w; (void)ep; (void)version;
    MOEK_FAIL_(why, MOEK_E_BACKEND, "this was compiled with nccl.h of NCCL %d.%d.%d; it must be 2.28.7 or later",
               NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
#endif
}

static moek_status moek_ep_nccl_by_ipc_(moek_ep_nccl *w, moek_ep *ep, moek_text_ *why)
{
    char own[MOEK_EP_NCCL_SAY_] = "", all[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ t = moek_text_in_(own, sizeof own);
    moek_status status = moek_ep_nccl_alloc_(w, ep, &t);
    if ((status = moek_ep_nccl_agree_(w, status, own, why)) != MOEK_OK) return status;
    status = moek_ep_ipc_open(w->rank, w->ranks, w->window, moek_ep_nccl_gather_, w, w->base, all, sizeof all);
    if (status == MOEK_OK) status = moek_ep_reach_windows_(ep, w->base, &t);
    else moek_append_(&t, "%s", all);
    return moek_ep_nccl_agree_(w, status, own, why);
}

/* A moek_ep_move. */
static int moek_ep_nccl_move_(void *context, const moek_ep_piece *piece, int count, moek_stream stream)
{
    const moek_ep_nccl *const w = (const moek_ep_nccl *)context;
    ncclResult_t r = ncclSuccess, end;
    int i;
    if (!w->comm || ncclGroupStart() != ncclSuccess) return 1;
    for (i = 0; i < count && r == ncclSuccess; i++) {
        if (piece[i].rank == MOEK_EP_EVERY) {
            r = ncclAllGather(piece[i].from, piece[i].to, piece[i].bytes, ncclInt8, w->comm, (cudaStream_t)stream);
            continue;
        }
        r = ncclSend(piece[i].from, piece[i].bytes, ncclInt8, piece[i].rank, w->comm, (cudaStream_t)stream);
        if (r == ncclSuccess)
            r = ncclRecv(piece[i].to, piece[i].bytes, ncclInt8, piece[i].rank, w->comm, (cudaStream_t)stream);
    }
    end = ncclGroupEnd();
    return !moek_ep_nccl_ok_(w, r) || !moek_ep_nccl_ok_(w, end);
}

static moek_status moek_ep_nccl_by_sends_(moek_ep_nccl *w, const moek_ep *ep, moek_text_ *why)
{
    char own[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ t = moek_text_in_(own, sizeof own);
    int p;
    const moek_status status = moek_ep_nccl_alloc_(w, ep, &t);
    for (p = 0; p < w->ranks; p++) w->base[p] = p == w->rank ? w->window : w->out;
    return moek_ep_nccl_agree_(w, status, own, why);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Checks what this rank can check alone, and allocates what it needs for voting. */
static moek_status moek_ep_nccl_look_(moek_ep_nccl *w, const moek_ep_config *group, int path, moek_text_ *why)
{
    struct cudaPointerAttributes at;
    int device = -1, current = -1, ok;
    if (!group || !w->comm) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "group or comm is NULL");
    if (ncclCommCount(w->comm, &w->ranks) != ncclSuccess || ncclCommUserRank(w->comm, &w->rank) != ncclSuccess ||
        ncclCommCuDevice(w->comm, &device) != ncclSuccess || cudaGetDevice(&current) != cudaSuccess)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "comm is no communicator in working order: %s", ncclGetLastError(w->comm));
    if (w->ranks > MOEK_EP_MAX_RANKS)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "the communicator has %d ranks, a group at most %d: ncclCommSplit makes "
                   "smaller ones", w->ranks, (int)MOEK_EP_MAX_RANKS);
    w->timeout_ms = group->timeout_ms > 0 ? group->timeout_ms : 30000;
    moek_ep_on_device_(device);                        /* needed to tell the others what is wrong */
    ok = cudaMalloc(&w->scratch, (size_t)w->ranks * MOEK_EP_NCCL_SAY_ + 1024) == cudaSuccess &&
         cudaStreamCreateWithFlags((cudaStream_t *)&w->stream, cudaStreamNonBlocking) == cudaSuccess;
    moek_ep_on_device_(current);
    if (!ok) MOEK_FAIL_(why, MOEK_E_CUDA, "%s", cudaGetErrorString(cudaGetLastError()));
    if (device != current)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "the communicator is for device %d, current is %d: cudaSetDevice(%d) first",
                   device, current, device);
    if (group->ranks && (group->ranks != w->ranks || group->rank != w->rank))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "group says rank %d of %d, the communicator %d of %d; leave both 0 to take "
                   "the communicator's", group->rank, group->ranks, w->rank, w->ranks);
    if (w->memory && (cudaPointerGetAttributes(&at, w->memory) != cudaSuccess || at.type != cudaMemoryTypeDevice ||
                      at.device != device || (uintptr_t)w->memory % 256)) {
        (void)cudaGetLastError();
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "memory is no memory of device %d, or not aligned to 256 bytes", device);
    }
    if (!w->memory && w->memory_size)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "memory is NULL, its size %lu", (unsigned long)w->memory_size);
    if (path < MOEK_EP_NCCL_AUTO || path > MOEK_EP_NCCL_SENDS)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "path is %d; MOEK_EP_NCCL_AUTO, _WINDOW, _IPC or _SENDS", path);
    return MOEK_OK;
}

/* Settles the group for a path.  A refusal is for this rank alone; the caller lets all ranks agree. */
static moek_status moek_ep_nccl_choose_(moek_ep_nccl *w, moek_ep *ep, moek_ep_config *group, int path, moek_text_ *why)
{
    moek_text_ none = moek_text_in_(NULL, 0);
    group->move = path == MOEK_EP_NCCL_SENDS ? moek_ep_nccl_move_ : NULL;
    group->move_context = w;
    memset(ep, 0, sizeof *ep);
    return moek_ep_choose_(ep, group, why, &none);
}

size_t moek_ep_nccl_memory_size_(const moek_ep_config *group, int path, size_t config_size, int version)
{
    moek_text_ none = moek_text_in_(NULL, 0);
    moek_ep_config g;
    moek_ep ep;
    size_t most = 0;
    int p;
    if (!group || version != MOEK_VERSION || config_size != sizeof g) return 0;
    for (p = MOEK_EP_NCCL_WINDOW; p <= MOEK_EP_NCCL_SENDS; p++) {
        if (path && path != p) continue;
        g = *group;
        g.transport = MOEK_EP_GPU;
        if (moek_ep_nccl_choose_(NULL, &ep, &g, p, &none) == MOEK_OK && moek_ep_nccl_needs_(&ep) > most)
            most = moek_ep_nccl_needs_(&ep);
    }
    return most;
}

/* Tries one path: settles the group, compares configurations, allocates and maps.  The result is the same on all
 * ranks. */
static moek_status moek_ep_nccl_try_(moek_ep_nccl *w, moek_ep *ep, moek_ep_config *group, int path, int demanded,
                                     moek_text_ *why)
{
    char own[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ t = moek_text_in_(own, sizeof own);
    int one_host = 0, nccl = 0;
    moek_status status = moek_ep_nccl_choose_(w, ep, group, path, &t);
    if ((status = moek_ep_nccl_agree_(w, status, own, why)) != MOEK_OK ||
        (status = moek_ep_nccl_greet_(w, ep, demanded, &one_host, &nccl, why)) != MOEK_OK) return status;
    w->path = path;
    group->move_gathers = path == MOEK_EP_NCCL_SENDS && !one_host;
    if (path != MOEK_EP_NCCL_SENDS && !one_host) MOEK_FAIL_(why, MOEK_E_BACKEND, "ranks are on several hosts");
    return path == MOEK_EP_NCCL_WINDOW ? moek_ep_nccl_by_window_(w, ep, nccl, why)
         : path == MOEK_EP_NCCL_IPC ? moek_ep_nccl_by_ipc_(w, ep, why) : moek_ep_nccl_by_sends_(w, ep, why);
}

static moek_status moek_ep_nccl_find_(moek_ep_nccl *w, moek_ep *ep, moek_ep_config *group, int demanded,
                                      moek_text_ *log)
{
    moek_status status = MOEK_E_BACKEND;
    int path;
    for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++) {
        char reason[MOEK_EP_NCCL_SAY_ + 64] = "";
        moek_text_ why = moek_text_in_(reason, sizeof reason);
        if (demanded && path != demanded) {
            moek_append_(log, "%s: not demanded\n", moek_ep_nccl_path_name(path));
            continue;
        }
        status = moek_ep_nccl_try_(w, ep, group, path, demanded, &why);
        moek_append_(log, "%s: %s\n", moek_ep_nccl_path_name(path), status == MOEK_OK ? "taken" : reason);
        if (status == MOEK_OK) return status;
        moek_ep_nccl_free_(w);
        w->path = 0;
        if (status != MOEK_E_BACKEND && status != MOEK_E_CUDA) return status;
    }
    return status;
}

static void moek_ep_nccl_end_(moek_ep_nccl *w)
{
    moek_ep_nccl_free_(w);
    if (w->scratch) (void)cudaFree(w->scratch);
    if (w->stream) (void)cudaStreamDestroy((cudaStream_t)w->stream);
    if (w->report) (void)cudaFreeHost(w->report);
    w->scratch = w->stream = w->report = NULL;
    w->path = 0;
    w->ep->open = 0; w->ep->config.report = NULL;      /* the report is freed: it must not be read */
    memset(w->ep->base, 0, sizeof w->ep->base);
    (void)cudaGetLastError();
}

/* All ranks have their windows: opens the group itself. */
static moek_status moek_ep_nccl_join_(moek_ep_nccl *w, moek_ep *ep, moek_ep_config *group, moek_text_ *log)
{
    char own[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ t = moek_text_in_(own, sizeof own);
    moek_status status = MOEK_OK;
    if (!group->report) {
        if (cudaHostAlloc(&w->report, MOEK_EP_REPORT, cudaHostAllocPortable) == cudaSuccess)
            memset(w->report, 0, MOEK_EP_REPORT);
        else status = MOEK_E_CUDA;
        ep->config.report = group->report = w->report;
    }
    if (status != MOEK_OK) moek_append_(&t, "cudaHostAlloc: %s", cudaGetErrorString(cudaGetLastError()));
    else status = moek_ep_check_windows_(ep, w->base, &t);             /* moek_ep_open may refuse these alone */
    if ((status = moek_ep_nccl_agree_(w, status, own, log)) != MOEK_OK) return status;
    status = moek_ep_open(ep, group, w->base);
    status = moek_ep_nccl_agree_(w, status, ep->why, log);
    return status;
}

moek_status moek_ep_nccl_open_(moek_ep_nccl *w, moek_ep *ep, const moek_ep_config *group, ncclComm_t comm, int path,
                               void *memory, size_t size, size_t wire_size, size_t ep_size, size_t config_size,
                               int version)
{
    char own[MOEK_EP_NCCL_SAY_] = "";
    moek_text_ log, t = moek_text_in_(own, sizeof own);
    moek_ep_config g;
    moek_status status;
    if (!w || !ep) return MOEK_E_ARGUMENT;
    if (version != MOEK_VERSION || wire_size != sizeof *w || ep_size != sizeof *ep || config_size != sizeof *group)
        return MOEK_E_VERSION;                         /* write nothing: *w may be smaller */
    memset(w, 0, sizeof *w);
    w->comm = comm; w->ep = ep;
    w->memory = memory; w->memory_size = size;
    log = moek_text_in_(w->text, sizeof w->text);
    status = moek_ep_nccl_look_(w, group, path, &t);
    if (!w->stream) {                                  /* no vote without a stream: other ranks time out, abort */
        moek_append_(&log, "%s", own);
        if (status == MOEK_E_CUDA) moek_ep_nccl_drop_(w);
    } else status = moek_ep_nccl_agree_(w, status, own, &log);
    if (status == MOEK_OK) {
        g = *group;
        g.rank = w->rank; g.ranks = w->ranks; g.transport = MOEK_EP_GPU;
        status = moek_ep_nccl_find_(w, ep, &g, path, &log);
        if (status == MOEK_OK) status = moek_ep_nccl_join_(w, ep, &g, &log);
    }
    if (status != MOEK_OK) moek_ep_nccl_end_(w);
    return status;
}

/* ---- waits of the caller, and the end ---------------------------------------------------------------------------- */

void moek_ep_nccl_abort(moek_ep_nccl *w, moek_ep *ep)
{
    if (!w || !ep || !w->path) return;
    moek_ep_abort(ep);
    if (w->path == MOEK_EP_NCCL_SENDS) moek_ep_nccl_drop_(w);
}

moek_status moek_ep_nccl_wait(moek_ep_nccl *w, moek_ep *ep, moek_stream stream, int ms)
{
    moek_text_ t;
    moek_ep_error e;
    moek_status status;
    if (!w || !ep || !w->path) return MOEK_E_ARGUMENT;
    if (!ms) ms = w->timeout_ms;
    status = moek_ep_nccl_idle_(w, (cudaStream_t)stream, ms, w->path == MOEK_EP_NCCL_SENDS);
    if (status == MOEK_OK) {
        if ((status = moek_ep_poll(ep, &e)) != MOEK_E_CAPACITY) return status;
        t = moek_text_in_(w->text, sizeof w->text);
        moek_append_(&t, "operation %u on handle %d: the rows of rank %d need max_rows = %d, the group has %d",
                     e.operation, e.handle, e.peer, e.rows, ep->config.max_rows);
        return status;
    }
    moek_ep_nccl_abort(w, ep);
    (void)moek_ep_nccl_idle_(w, (cudaStream_t)stream, w->timeout_ms, 0);         /* kernels that wait now leave */
    return status;
}

moek_status moek_ep_nccl_close(moek_ep_nccl *w)
{
    char unused[MOEK_EP_NCCL_SAY_ + 64];
    moek_text_ t = moek_text_in_(unused, sizeof unused);
    moek_status status = MOEK_OK;
    if (!w || !w->path) return MOEK_E_ARGUMENT;
    status = w->comm ? moek_ep_nccl_agree_(w, MOEK_OK, "", &t) : MOEK_E_TIMEOUT;
    moek_ep_nccl_end_(w);
    return status;
}
#endif
