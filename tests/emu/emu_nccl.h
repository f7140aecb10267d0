/* emu_nccl.h -- as much of NCCL as moek_ep_nccl.h and its tests call, on the emulator: declarations as in nccl.h, and
 * bodies that move bytes between processes.  tests/emu/include is put where <nccl.h> is looked for.
 *
 * Ranks are processes (threads will do where no kernel waits for another rank's).  What is given to a stream is done
 * when the stream gets there, and of a communicator in the order of the calls, whatever their streams; it waits for its
 * peers without an end, until ncclCommAbort.  Sends and receives of a pair meet in their order; what is short comes in
 * two halves with a while between them.  It stops with a sentence where NCCL would hang or give rubbish: pieces of a
 * pair that differ in size or kind, memory that is no device's, a communicator that was aborted, windows of different
 * sizes, memory that is freed while it is registered.  What a test wants to be otherwise is in emu_nccl. */
#ifndef EMU_NCCL_H
#define EMU_NCCL_H
#include "emu_cuda.h"
#include <atomic>
#include <time.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 29
#define NCCL_PATCH 7
#define NCCL_VERSION_CODE 22907
#define NCCL_WIN_DEFAULT 0

enum ncclResult_t {
    ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
    ncclRemoteError, ncclInProgress
};
enum ncclDataType_t {
    ncclInt8, ncclChar = ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32,
    ncclFloat64, ncclBfloat16
};
typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId { char internal[128]; } ncclUniqueId;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclTeam { int nRanks, rank, stride; } ncclTeam_t;

static __attribute__((unused)) struct emu_nccl {       /* of this process; 0: all goes well */
    int version;                                       /* of the library; 0: this header's version */
    int no_memory;                                     /* ncclMemAlloc fails */
    int no_window;                                     /* 1: a handle in host memory, as of 2.28; 2: NULL, as later */
    int reach;                                         /* ranks that loads and stores reach; 0: all */
    int in_progress;                                   /* so often calls say so, as comms that do not block */
    ncclResult_t registers, gathers, async;            /* what these calls return */
} emu_nccl;

enum { EMU_RANKS = 8, EMU_SECONDS = 60, EMU_NCCL_MEMORY = 1, EMU_TORN = 4096 };
static const size_t EMU_CHUNK = 1 << 16;
enum emu_kind { EMU_SEND, EMU_GATHER };
static const char *const emu_kinds[] = { "ncclSend", "ncclAllGather" };
/* From one rank to another: a chunk at a time; put and got count them. */
struct emu_wire { uint64_t put, got, bytes; int kind; char data[EMU_CHUNK]; };
struct emu_board {                                     /* a file that all ranks have mapped */
    int there, come[EMU_RANKS];
    emu_place place[EMU_RANKS];                        /* of windows that are registered now */
    size_t offset[EMU_RANKS], bytes[EMU_RANKS];
    emu_wire wire[EMU_RANKS][EMU_RANKS];               /* [from][to] */
};
struct ncclWindow_vidmem { char *base[EMU_RANKS], *block[EMU_RANKS]; int rank, ranks; };
struct ncclComm {
    int rank, ranks, device;
    emu_board *board;
    std::atomic<int> aborted;
    std::atomic<uint64_t> turns, turn;                 /* given; the one that is on */
    std::vector<ncclWindow_t> windows;
};

EMU_FN double emu_now_s()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
EMU_FN const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const text[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited", "in progress" };
    return text[r];
}
EMU_FN const char *ncclGetLastError(ncclComm_t) { return "(emulated)"; }
EMU_FN ncclResult_t ncclGetVersion(int *version)
{
    *version = emu_nccl.version ? emu_nccl.version : NCCL_VERSION_CODE;
    return ncclSuccess;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

EMU_FN ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const int process = (int)getpid(), file = memfd_create("NCCL", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)sizeof(emu_board))) emu_stop("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &process, sizeof process);
    memcpy(id->internal + sizeof process, &file, sizeof file);
    return ncclSuccess;
}
EMU_FN ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    const double start = emu_now_s();
    const ncclComm_t c = new ncclComm();
    int process, number;
    char path[64];
    if (ranks > EMU_RANKS) emu_stop("ncclCommInitRank: %ld ranks", ranks);
    memcpy(&process, id.internal, sizeof process);
    memcpy(&number, id.internal + sizeof process, sizeof number);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void *const p = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(emu_board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) emu_stop("ncclCommInitRank: no id");
    close(file);
    c->rank = rank; c->ranks = ranks; c->device = emu_device;
    c->board = (emu_board *)p;
    __atomic_add_fetch(&c->board->there, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&c->board->there, __ATOMIC_ACQUIRE) < ranks) {
        if (emu_now_s() - start > EMU_SECONDS) return ncclSystemError;
        usleep(200);
    }
    *comm = c;
    return ncclSuccess;
}
EMU_FN ncclComm_t emu_comm(ncclComm_t c)
{
    if (!c || c->aborted) emu_stop("a communicator is used that was aborted or destroyed");
    return c;
}
EMU_FN ncclResult_t ncclCommCount(ncclComm_t c, int *n) { *n = emu_comm(c)->ranks; return ncclSuccess; }
EMU_FN ncclResult_t ncclCommUserRank(ncclComm_t c, int *r) { *r = emu_comm(c)->rank; return ncclSuccess; }
EMU_FN ncclResult_t ncclCommCuDevice(ncclComm_t c, int *device) { *device = emu_comm(c)->device; return ncclSuccess; }
EMU_FN ncclResult_t emu_in_progress()
{
    return emu_nccl.in_progress && emu_nccl.in_progress-- ? ncclInProgress : ncclSuccess;
}
EMU_FN ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    emu_comm(c);
    *r = emu_nccl.async != ncclSuccess ? emu_nccl.async : emu_in_progress();
    return ncclSuccess;
}

/* ---- what moves -------------------------------------------------------------------------------------------------- */

struct emu_op { int kind, peer, sends; char *at; size_t bytes, moved; };
struct emu_batch { ncclComm_t comm; cudaStream_t stream; std::vector<emu_op> ops; };

EMU_FN size_t emu_chunk(const emu_op *o)
{
    return o->bytes - o->moved < EMU_CHUNK ? o->bytes - o->moved : EMU_CHUNK;
}
/* A chunk, if it can go now. */
EMU_FN int emu_put(ncclComm_t c, emu_op *o)
{
    emu_wire *const w = &c->board->wire[c->rank][o->peer];
    const size_t n = emu_chunk(o);
    if (__atomic_load_n(&w->got, __ATOMIC_ACQUIRE) != w->put) return 0;
    w->kind = o->kind;
    w->bytes = o->bytes;
    memcpy(w->data, o->at + o->moved, n);
    o->moved += n;
    __atomic_store_n(&w->put, w->put + 1, __ATOMIC_RELEASE);
    return 1;
}
EMU_FN int emu_get(ncclComm_t c, emu_op *o)
{
    emu_wire *const w = &c->board->wire[o->peer][c->rank];
    const size_t n = emu_chunk(o);
    if (__atomic_load_n(&w->put, __ATOMIC_ACQUIRE) == w->got) return 0;
    if (w->kind != o->kind || w->bytes != o->bytes) {
        fprintf(stderr, "%s, %s: ", emu_kinds[w->kind], emu_kinds[o->kind]);
        emu_stop("rank %ld sends %ld bytes, rank %ld waits for %ld", o->peer, (long)w->bytes, c->rank, (long)o->bytes);
    }
    memcpy(o->at + o->moved, w->data, n / 2);
    if (n <= EMU_TORN) usleep(200);                    /* a reader ahead of the stream sees half of the data */
    memcpy(o->at + o->moved + n / 2, w->data + n / 2, n - n / 2);
    o->moved += n;
    __atomic_store_n(&w->got, w->got + 1, __ATOMIC_RELEASE);
    return 1;
}
/* All at once; messages of a pair and direction one after the other. */
EMU_FN void emu_move(ncclComm_t c, std::vector<emu_op> ops, uint64_t turn)
{
    size_t left = ops.size(), i;
    while (c->turn < turn) usleep(200);
    while (left && !c->aborted) {
        uint32_t busy[2] = { 0, 0 };
        int moved = 0;
        for (left = i = 0; i < ops.size(); i++) {
            emu_op *const o = &ops[i];
            if (o->moved == o->bytes) continue;
            left++;
            if (busy[o->sends] >> o->peer & 1) continue;
            busy[o->sends] |= 1u << o->peer;
            moved += o->sends ? emu_put(c, o) : emu_get(c, o);
        }
        if (!moved) usleep(200);
    }
    c->turn = turn + 1;
}

static thread_local __attribute__((unused)) int emu_depth;
static thread_local __attribute__((unused)) std::vector<emu_batch> *emu_batches;
EMU_FN ncclResult_t emu_begin(const emu_batch &call)
{
    const ncclComm_t c = call.comm;
    const std::vector<emu_op> ops = call.ops;
    emu_enqueue(call.stream, [=]() -> emu_job {
        const uint64_t turn = c->turns++;
        return [=] { emu_move(c, ops, turn); };
    });
    return emu_in_progress();
}
EMU_FN ncclResult_t emu_do(ncclComm_t c, cudaStream_t stream, const std::vector<emu_op> &ops)
{
    size_t i;
    emu_comm(c);
    for (i = 0; i < ops.size(); i++) {
        cudaPointerAttributes at;
        cudaPointerGetAttributes(&at, ops[i].at);
        if (at.type != cudaMemoryTypeDevice || !emu_find(ops[i].at, ops[i].bytes, NULL))
            emu_stop("rank %ld gives NCCL %ld bytes that are no memory of its GPU", c->rank, (long)ops[i].bytes);
        if (ops[i].peer < 0 || ops[i].peer >= c->ranks) return ncclInvalidArgument;
    }
    if (!emu_batches) emu_batches = new std::vector<emu_batch>();
    if (!emu_depth || emu_batches->empty() || emu_batches->back().comm != c || emu_batches->back().stream != stream) {
        const emu_batch call = { c, stream, ops };
        if (!emu_depth) return emu_begin(call);
        for (i = 0; i < emu_batches->size(); i++)
            if ((*emu_batches)[i].comm == c) emu_stop("a group with several streams");
        emu_batches->push_back(call);
    } else emu_batches->back().ops.insert(emu_batches->back().ops.end(), ops.begin(), ops.end());
    return ncclSuccess;
}
EMU_FN ncclResult_t ncclGroupStart(void) { emu_depth++; return ncclSuccess; }
EMU_FN ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = ncclSuccess;
    size_t i;
    if (!emu_depth) return ncclInvalidUsage;
    if (--emu_depth || !emu_batches) return ncclSuccess;
    for (i = 0; i < emu_batches->size(); i++) {
        const ncclResult_t one = emu_begin((*emu_batches)[i]);
        if (one != ncclSuccess) r = one;
    }
    emu_batches->clear();
    return r;
}

EMU_FN size_t emu_bytes(size_t n, ncclDataType_t type)
{
    static const int size[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
    return n * (size_t)size[type];
}
EMU_FN ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    const emu_op o = { EMU_SEND, peer, 1, (char *)from, emu_bytes(n, type), 0 };
    return emu_do(c, s, std::vector<emu_op>(1, o));
}
EMU_FN ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    const emu_op o = { EMU_SEND, peer, 0, (char *)to, emu_bytes(n, type), 0 };
    return emu_do(c, s, std::vector<emu_op>(1, o));
}
EMU_FN ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t c,
                                  cudaStream_t s)
{
    const size_t bytes = emu_bytes(n, type);
    std::vector<emu_op> ops;
    int p;
    if (emu_nccl.gathers != ncclSuccess) return emu_nccl.gathers;
    for (p = 0; p < emu_comm(c)->ranks; p++) {
        const emu_op send = { EMU_GATHER, p, 1, (char *)from, bytes, 0 };
        const emu_op receive = { EMU_GATHER, p, 0, (char *)to + (size_t)p * bytes, bytes, 0 };
        if (p == c->rank && from == receive.at) continue;                        /* in place */
        ops.push_back(send);
        ops.push_back(receive);
    }
    return emu_do(c, s, ops);
}

/* ---- memory and windows ------------------------------------------------------------------------------------------ */

EMU_FN ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
    *p = emu_nccl.no_memory ? NULL : emu_alloc(bytes, EMU_PAGE, EMU_NCCL_MEMORY);
    return *p ? ncclSuccess : ncclUnhandledCudaError;
}
/* Blocks with a window, of all communicators. */
EMU_FN std::vector<char *> &emu_registered() { static std::vector<char *> &r = *new std::vector<char *>(); return r; }
EMU_FN ncclResult_t ncclMemFree(void *p)
{
    size_t i;
    for (i = 0; i < emu_registered().size(); i++)
        if (emu_registered()[i] == p) emu_stop("ncclMemFree of memory that has a window");
    cudaDeviceSynchronize();
    emu_free(p, EMU_NCCL_MEMORY);
    return ncclSuccess;
}
EMU_FN void emu_all_come(ncclComm_t c)                 /* without an end: as in NCCL */
{
    const double start = emu_now_s();
    const int now = __atomic_add_fetch(&c->board->come[c->rank], 1, __ATOMIC_ACQ_REL);
    int p;
    for (p = 0; p < c->ranks; p++)
        while (__atomic_load_n(&c->board->come[p], __ATOMIC_ACQUIRE) < now) {
            if (emu_now_s() - start > EMU_SECONDS) emu_stop("ncclCommWindowRegister: rank %ld does not come", p);
            usleep(200);
        }
}
EMU_FN ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *at, size_t bytes, ncclWindow_t *window, int flags)
{
    emu_board *const b = emu_comm(c)->board;
    char *own = NULL;
    int p;
    const emu_block *const block = emu_find(at, bytes, &own);
    if (!block || ((char *)at - own) % EMU_PAGE || flags != NCCL_WIN_DEFAULT) return ncclInvalidArgument;
    if (block->kind != EMU_NCCL_MEMORY) emu_stop("ncclCommWindowRegister: memory that ncclMemAlloc did not give");
    b->place[c->rank] = emu_place_of(at);
    b->offset[c->rank] = (size_t)((char *)at - own);
    b->bytes[c->rank] = bytes;
    emu_all_come(c);
    for (p = 0; p < c->ranks; p++)
        if (b->bytes[p] != bytes || b->place[p].bytes != block->bytes)
            emu_stop("windows of %ld and %ld bytes", (long)bytes, (long)b->bytes[p]);
    *window = NULL;
    if (emu_nccl.no_window == 1) *window = new ncclWindow_vidmem();
    if (!emu_nccl.no_window && emu_nccl.registers == ncclSuccess) {
        *window = (ncclWindow_t)emu_alloc(sizeof **window, 256, EMU_NCCL_MEMORY);
        for (p = 0; p < c->ranks; p++) {
            (*window)->block[p] = p == c->rank ? own : emu_map(b->place[p]);
            (*window)->base[p] = (*window)->block[p] + b->offset[p];
        }
        (*window)->rank = c->rank; (*window)->ranks = c->ranks;
        emu_registered().push_back(own);
    }
    if (*window) c->windows.push_back(*window);
    emu_all_come(c);
    return emu_nccl.registers != ncclSuccess ? emu_nccl.registers : emu_in_progress();
}
EMU_FN void emu_deregister(ncclComm_t c, size_t i)
{
    const ncclWindow_t w = c->windows[i];
    std::vector<char *> &r = emu_registered();
    size_t k;
    int p;
    c->windows.erase(c->windows.begin() + (long)i);
    if (!emu_find(w, 1, NULL)) { delete w; return; }
    for (p = 0; p < w->ranks; p++) if (p != w->rank) emu_unmap(w->block[p]);
    for (k = 0; r[k] != w->block[w->rank]; k++) { }
    r.erase(r.begin() + (long)k);
    emu_free(w, EMU_NCCL_MEMORY);
}
EMU_FN ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t w)
{
    size_t i;
    for (i = 0; i < emu_comm(c)->windows.size() && c->windows[i] != w; i++) { }
    if (i == c->windows.size()) emu_stop("ncclCommWindowDeregister: no window of this communicator");
    cudaDeviceSynchronize();
    emu_deregister(c, i);
    return ncclSuccess;
}

EMU_FN ncclTeam_t ncclTeamLsa(ncclComm_t c)
{
    const ncclTeam_t team = { emu_nccl.reach ? emu_nccl.reach : emu_comm(c)->ranks, c->rank, 1 };
    return team;
}
EMU_FN void *ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer) { return w->base[peer] + offset; }
/* NCCL has it from 2.29.2 on; it is looked for by its name (link with -rdynamic). */
extern "C" __attribute__((used)) ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t w, size_t offset, int peer,
                                                                         void **to)
{
    *to = ncclGetLsaPointer(w, offset, peer);
    return ncclSuccess;
}

/* ---- the end of a communicator ----------------------------------------------------------------------------------- */

/* (Never freed: so that it is found out if it is used again.) */
EMU_FN void emu_end(ncclComm_t c)
{
    while (c->turn < c->turns) usleep(200);          /* what is under way leaves, as kernels do */
    while (!c->windows.empty()) emu_deregister(c, 0);
    c->aborted = 1;
}
EMU_FN ncclResult_t ncclCommAbort(ncclComm_t c)
{
    emu_comm(c)->aborted = 1;
    emu_end(c);
    return ncclSuccess;
}
EMU_FN ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!emu_comm(c)->windows.empty()) emu_stop("ncclCommDestroy: windows are still registered");
    emu_end(c);
    return ncclSuccess;
}
#endif
