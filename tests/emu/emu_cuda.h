/* emu_cuda.h -- as much of CUDA's runtime as moek and its tests call, on the emulator (emu.h).
 *
 * A process has the GPU that cudaSetDevice names (of EMU_GPUS), whose memory is a file without a name: other processes
 * map it (cudaIpc), so that kernels of one reach windows of another and wait for it.  A stream is a thread; kernels of
 * a process run one at a time, whatever their streams, to their end: so ranks whose kernels wait for each other are
 * processes.  A graph is the list of what was captured.
 *
 * Harsh where a GPU may be: memory is poison when it is given, and its edges are looked at when it is freed; cudaMemcpy
 * to the host is late; what other processes still have mapped when it is freed is counted (emu_gpu.freed_mapped).  An
 * error stays until cudaGetLastError takes it.  What a test wants to fail is in emu_gpu. */
#ifndef EMU_CUDA_H
#define EMU_CUDA_H
#include "emu.h"
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EMU_GPUS = 4, EMU_EDGE = 256, EMU_FRESH = 0x55, EMU_PAGE = 4096 };
static const size_t EMU_MEMORY = (size_t)1 << 30;
static __attribute__((unused)) struct emu_gpu {        /* of this process */
    int no_memory;                                     /* the n-th cudaMalloc from now on fails, and all behind it */
    int no_ipc, no_peer;                               /* handles can not be opened; peers not be reached */
    int no_range;                                      /* the driver does not say where an allocation begins */
    int freed_mapped;                                  /* blocks of cudaMalloc that were freed too early */
} emu_gpu;

enum cudaError_t {
    cudaSuccess, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600, cudaErrorPeerAccessUnsupported = 217,
    cudaErrorPeerAccessAlreadyEnabled = 704, cudaErrorMapBufferObjectFailed = 205, cudaErrorNotSupported = 801
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice,
                      cudaMemcpyDefault };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
                      cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrMultiProcessorCount,
                      cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth,
                      cudaDevAttrL2CacheSize };
enum { cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1, cudaIpcMemLazyEnablePeerAccess = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
struct cudaPointerAttributes { cudaMemoryType type; int device; void *devicePointer, *hostPointer; };
struct cudaDeviceProp { char name[256]; struct { char bytes[16]; } uuid; int major, minor; };

static thread_local __attribute__((unused)) cudaError_t emu_error;
static thread_local __attribute__((unused)) int emu_device;
EMU_FN cudaError_t emu_say(cudaError_t error) { if (error != cudaSuccess) emu_error = error; return error; }
EMU_FN cudaError_t cudaPeekAtLastError(void) { return emu_error; }
EMU_FN cudaError_t cudaGetLastError(void) { const cudaError_t e = emu_error; emu_error = cudaSuccess; return e; }
EMU_FN const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorMapBufferObjectFailed: return "mapping of buffer object failed";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "another error";
    }
}
__attribute__((unused, noreturn)) static void emu_stop(const char *what, long a = 0, long b = 0, long c = 0, long d = 0)
{
    fflush(stdout);
    fprintf(stderr, "emu, process %d: ", (int)getpid());
    fprintf(stderr, what, a, b, c, d);
    fprintf(stderr, "\n");
    abort();
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

EMU_FN cudaError_t cudaGetDeviceCount(int *n) { *n = EMU_GPUS; return cudaSuccess; }
EMU_FN cudaError_t cudaGetDevice(int *device) { *device = emu_device; return cudaSuccess; }
EMU_FN cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= EMU_GPUS) return emu_say(cudaErrorInvalidDevice);
    emu_device = device;
    return cudaSuccess;
}
EMU_FN cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    static const int values[8] = { 8, 0, 163 * 1024, 4 };      /* clocks are not known */
    if (device < 0 || device >= EMU_GPUS) return emu_say(cudaErrorInvalidDevice);
    *value = values[what];
    return cudaSuccess;
}
EMU_FN cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulator");
    memset(p->uuid.bytes, 17 * device + 1, sizeof p->uuid.bytes);
    p->major = 8;
    return cudaSuccess;
}
EMU_FN cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned)
{
    static int on[EMU_GPUS];
    if (emu_gpu.no_peer) return emu_say(cudaErrorPeerAccessUnsupported);
    return emu_say(on[device]++ ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* What is enqueued.  turn: called when it is, in the order of all streams; what it returns is called in the stream. */
typedef std::function<void()> emu_job;
typedef std::function<emu_job()> emu_item;
typedef std::vector<emu_item> emu_graph;
struct CUstream_st {
    std::mutex lock;
    std::condition_variable change;
    std::deque<emu_job> queue;                        /* the first is at work */
    emu_graph *capture;
    bool ends;
};
typedef struct CUstream_st *cudaStream_t;
typedef emu_graph *cudaGraph_t, *cudaGraphExec_t;
#define cudaStreamPerThread ((cudaStream_t)2)

struct emu_all_streams { std::mutex lock; std::vector<cudaStream_t> list; int made; };
EMU_FN emu_all_streams &emu_streams() { static emu_all_streams &all = *new emu_all_streams(); return all; }

EMU_FN void emu_serve(cudaStream_t s)
{
    std::unique_lock<std::mutex> hold(s->lock);
    for (;;) {
        s->change.wait(hold, [&] { return s->ends || !s->queue.empty(); });
        if (s->queue.empty()) return;
        emu_job &work = s->queue.front();             /* (others only append) */
        hold.unlock();
        work();
        hold.lock();
        s->queue.pop_front();
        s->change.notify_all();
    }
}
EMU_FN cudaStream_t emu_new_stream()
{
    emu_all_streams &all = emu_streams();
    std::lock_guard<std::mutex> hold(all.lock);
    const cudaStream_t s = new CUstream_st();
    s->capture = NULL; s->ends = false;
    all.list.push_back(s);
    all.made++;
    std::thread(emu_serve, s).detach();
    return s;
}
EMU_FN cudaStream_t emu_stream(cudaStream_t s)
{
    static const cudaStream_t null = emu_new_stream();
    static thread_local cudaStream_t own;
    if (s == cudaStreamPerThread && !own) own = emu_new_stream();
    return s == cudaStreamPerThread ? own : s ? s : null;
}
EMU_FN void emu_append(cudaStream_t s, const emu_item &item)
{
    const emu_job work = item();
    std::lock_guard<std::mutex> hold(s->lock);
    s->queue.push_back(work);
    s->change.notify_all();
}
EMU_FN void emu_enqueue(cudaStream_t stream, const emu_item &item)
{
    const cudaStream_t s = emu_stream(stream);
    if (s->capture) s->capture->push_back(item);
    else emu_append(s, item);
}
EMU_FN cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { *s = emu_new_stream(); return cudaSuccess; }
EMU_FN cudaError_t cudaStreamDestroy(cudaStream_t s)   /* what is on it goes on (its last thread leaves it there) */
{
    emu_all_streams &all = emu_streams();
    std::lock_guard<std::mutex> hold(s->lock);
    s->ends = true;
    s->change.notify_all();
    all.lock.lock();
    all.made--;
    all.lock.unlock();
    return cudaSuccess;
}
EMU_FN cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaStream_t s = emu_stream(stream);
    std::lock_guard<std::mutex> hold(s->lock);
    return emu_say(s->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}
EMU_FN cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const cudaStream_t s = emu_stream(stream);
    std::unique_lock<std::mutex> hold(s->lock);
    if (s->capture) emu_stop("cudaStreamSynchronize of a stream that is captured");
    s->change.wait(hold, [&] { return s->queue.empty(); });
    return cudaSuccess;
}
EMU_FN cudaError_t cudaDeviceSynchronize(void)
{
    emu_all_streams &all = emu_streams();
    size_t i;
    for (i = 0;; i++) {
        all.lock.lock();
        const cudaStream_t s = i < all.list.size() ? all.list[i] : NULL;
        all.lock.unlock();
        if (!s) return cudaSuccess;
        if (!s->capture) cudaStreamSynchronize(s);
    }
}
EMU_FN cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    s->capture = new emu_graph();
    return cudaSuccess;
}
EMU_FN cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = s->capture;
    s->capture = NULL;
    return cudaSuccess;
}
EMU_FN cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new emu_graph(*graph);
    return cudaSuccess;
}
EMU_FN cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    size_t i;
    for (i = 0; i < exec->size(); i++) emu_enqueue(s, (*exec)[i]);
    return cudaSuccess;
}
EMU_FN cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
EMU_FN cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { delete exec; return cudaSuccess; }

/* Kernels: the emulator's state is the program's, so one runs at a time.  (The lock outlives the program's end.) */
EMU_FN std::mutex &emu_kernels() { static std::mutex &lock = *new std::mutex(); return lock; }
EMU_FN int emu_launch_on(void *stream, std::function<void()> launch)
{
    const emu_job work = [=] {
        std::lock_guard<std::mutex> hold(emu_kernels());
        launch();
    };
    emu_enqueue((cudaStream_t)stream, [=] { return work; });
    return cudaPeekAtLastError() == cudaSuccess;
}
static const int emu_has_streams __attribute__((unused)) = (emu_on_stream = emu_launch_on, 1);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* In front of each block, where other processes see it. */
struct emu_head { int maps; };
struct emu_block { size_t bytes; int device, kind; };  /* kind: 0 cudaMalloc; others: whoever asked */
/* Where a block is for other processes. */
struct emu_place { int process, file, device, kind; size_t at, bytes; };
struct emu_foreign { char *map; size_t size; emu_place place; };
struct emu_memory {
    std::mutex lock;
    int file;
    char *base;
    std::map<char *, emu_block> blocks;
    std::map<char *, size_t> pinned;
    std::map<char *, emu_foreign> foreign;             /* blocks of other processes */
};
EMU_FN emu_memory &emu_all_memory()
{
    static emu_memory *all;
    static std::once_flag once;
    std::call_once(once, [] {
        emu_memory *m = new emu_memory();
        m->file = memfd_create("emulated GPU", MFD_CLOEXEC);
        if (m->file < 0 || ftruncate(m->file, (off_t)EMU_MEMORY)) emu_stop("no memory for a GPU");
        m->base = (char *)mmap(NULL, EMU_MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->file, 0);
        if (m->base == MAP_FAILED) emu_stop("no memory for a GPU");
        all = m;
    });
    return *all;
}
EMU_FN emu_head *emu_head_of(char *block) { return (emu_head *)(block - EMU_EDGE - sizeof(emu_head)); }

/* First fit.  Between blocks: a head and EMU_EDGE bytes in front, as many behind. */
EMU_FN void *emu_alloc(size_t bytes, size_t align, int kind)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    char *end = m.base, *at;
    std::map<char *, emu_block>::iterator i = m.blocks.begin();
    for (;; end = i->first + i->second.bytes + EMU_EDGE, ++i) {
        at = end + sizeof(emu_head) + EMU_EDGE;
        at += (align - (uintptr_t)at % align) % align;
        if (i == m.blocks.end() || at + bytes + EMU_EDGE <= (char *)emu_head_of(i->first)) break;
    }
    if (at + bytes + EMU_EDGE > m.base + EMU_MEMORY) return NULL;
    const emu_block b = { bytes, emu_device, kind };
    m.blocks[at] = b;
    emu_head_of(at)->maps = 0;
    memset(at - EMU_EDGE, EMU_POISON, EMU_EDGE);
    memset(at, EMU_FRESH, bytes);
    memset(at + bytes, EMU_POISON, EMU_EDGE);
    return at;
}
/* The block that holds all of them, or NULL. */
EMU_FN const emu_block *emu_find(const void *p, size_t bytes, char **start)
{
    emu_memory &m = emu_all_memory();
    std::map<char *, emu_block>::iterator i = m.blocks.upper_bound((char *)p);
    if (i == m.blocks.begin()) return NULL;
    --i;
    if ((char *)p + bytes > i->first + i->second.bytes) return NULL;
    if (start) *start = i->first;
    return &i->second;
}
EMU_FN void emu_free(void *p, int kind)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    const std::map<char *, emu_block>::iterator b = m.blocks.find((char *)p);
    size_t i;
    if (b == m.blocks.end()) emu_stop("%lx is freed, but was not given", (long)p);
    if (b->second.kind != kind) emu_stop("memory of kind %ld is freed as kind %ld", b->second.kind, kind);
    for (i = 0; i < EMU_EDGE; i++)
        if (b->first[-1 - (long)i] != EMU_POISON || b->first[b->second.bytes + i] != EMU_POISON)
            emu_stop("something was written beside a block of %ld bytes", (long)b->second.bytes);
    if (!kind) emu_gpu.freed_mapped += __atomic_load_n(&emu_head_of(b->first)->maps, __ATOMIC_ACQUIRE) != 0;
    memset(b->first, EMU_POISON, b->second.bytes);
    m.blocks.erase(b);
}
/* Blocks, pinned memory, what is mapped, streams: what must be as many as before. */
EMU_FN int emu_held_by_process()
{
    emu_memory &m = emu_all_memory();
    emu_all_streams &all = emu_streams();
    std::lock_guard<std::mutex> hold(m.lock), too(all.lock);
    return (int)(m.blocks.size() + m.pinned.size() + m.foreign.size()) + all.made;
}

EMU_FN cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = NULL;
    if (emu_gpu.no_memory > 1) emu_gpu.no_memory--;
    else if (emu_gpu.no_memory) return emu_say(cudaErrorMemoryAllocation);
    *p = bytes ? emu_alloc(bytes, 256, 0) : NULL;
    return emu_say(*p || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
EMU_FN cudaError_t cudaFree(void *p)
{
    cudaDeviceSynchronize();
    if (p) emu_free(p, 0);
    return cudaSuccess;
}
EMU_FN cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    *p = malloc(bytes);
    memset(*p, EMU_FRESH, bytes);
    m.pinned[(char *)*p] = bytes;
    return cudaSuccess;
}
EMU_FN cudaError_t cudaFreeHost(void *p)
{
    emu_memory &m = emu_all_memory();
    cudaDeviceSynchronize();
    std::lock_guard<std::mutex> hold(m.lock);
    if (!m.pinned.erase((char *)p)) emu_stop("cudaFreeHost of what cudaHostAlloc did not give");
    free(p);
    return cudaSuccess;
}
EMU_FN cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *to, const void *p)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    const emu_block *const b = emu_find(p, 1, NULL);
    std::map<char *, size_t>::iterator i = m.pinned.upper_bound((char *)p);
    std::map<char *, emu_foreign>::iterator f = m.foreign.upper_bound((char *)p);
    memset(to, 0, sizeof *to);
    to->device = -1;
    if (b) to->type = cudaMemoryTypeDevice, to->device = b->device, to->devicePointer = (void *)p;
    else if (i != m.pinned.begin() && (char *)p < (--i)->first + i->second)
        to->type = cudaMemoryTypeHost, to->devicePointer = to->hostPointer = (void *)p;
    else if (f != m.foreign.begin() && (char *)p < (--f)->first + f->second.place.bytes)
        to->type = cudaMemoryTypeDevice, to->device = f->second.place.device, to->devicePointer = (void *)p;
    return cudaSuccess;
}

/* From the host the bytes are taken at once; to it they come when the stream gets there. */
EMU_FN cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    cudaPointerAttributes at;
    std::shared_ptr<std::vector<char> > kept;
    cudaPointerGetAttributes(&at, from);
    if (at.type != cudaMemoryTypeDevice)
        kept = std::make_shared<std::vector<char> >((const char *)from, (const char *)from + bytes);
    const emu_job work = [=] { if (bytes) memcpy(to, kept ? kept->data() : from, bytes); };
    emu_enqueue(stream, [=] { return work; });
    return cudaSuccess;
}
EMU_FN cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const emu_job work = [=] { if (bytes) memset(p, value, bytes); };
    emu_enqueue(stream, [=] { return work; });
    return cudaSuccess;
}
EMU_FN cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return cudaStreamSynchronize(NULL);
}
EMU_FN cudaError_t cudaMemset(void *p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, NULL); }

/* ---- memory of other processes ----------------------------------------------------------------------------------- */

EMU_FN emu_place emu_place_of(const void *p)           /* of the block that p is in; bytes 0: there is none */
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    char *start = NULL;
    const emu_block *const b = emu_find(p, 1, &start);
    const emu_place none = { 0, 0, 0, 0, 0, 0 };
    if (!b) return none;
    const emu_place place = { (int)getpid(), m.file, b->device, b->kind, (size_t)(start - m.base), b->bytes };
    return place;
}
EMU_FN char *emu_map(const emu_place &place)           /* NULL: it can not be */
{
    emu_memory &m = emu_all_memory();
    const size_t before = (place.at - EMU_EDGE - sizeof(emu_head)) / EMU_PAGE * EMU_PAGE;
    char path[64];
    emu_foreign f;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place.process, place.file);
    const int file = place.bytes ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NULL;
    f.place = place;
    f.size = place.at + place.bytes - before;
    f.map = (char *)mmap(NULL, f.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)before);
    close(file);
    if (f.map == MAP_FAILED) return NULL;
    char *const block = f.map + (place.at - before);
    __atomic_add_fetch(&emu_head_of(block)->maps, 1, __ATOMIC_ACQ_REL);
    std::lock_guard<std::mutex> hold(m.lock);
    m.foreign[block] = f;
    return block;
}
EMU_FN int emu_unmap(void *block)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    const std::map<char *, emu_foreign>::iterator f = m.foreign.find((char *)block);
    if (f == m.foreign.end()) return 0;
    __atomic_sub_fetch(&emu_head_of(f->first)->maps, 1, __ATOMIC_ACQ_REL);
    munmap(f->second.map, f->second.size);
    m.foreign.erase(f);
    return 1;
}

struct cudaIpcMemHandle_t { emu_place place; };
EMU_FN cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    h->place = emu_place_of(p);
    return emu_say(h->place.bytes && !h->place.kind ? cudaSuccess : cudaErrorInvalidValue);
}
EMU_FN cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned)
{
    *p = emu_gpu.no_ipc || h.place.process == (int)getpid() ? NULL : emu_map(h.place);
    return emu_say(*p ? cudaSuccess : cudaErrorMapBufferObjectFailed);
}
EMU_FN cudaError_t cudaIpcCloseMemHandle(void *p)
{
    cudaDeviceSynchronize();
    return emu_say(emu_unmap(p) ? cudaSuccess : cudaErrorInvalidValue);
}

/* cuMemGetAddressRange, of this process's blocks and of those that it has mapped. */
EMU_FN int emu_range(unsigned long long *start, size_t *size, unsigned long long p)
{
    emu_memory &m = emu_all_memory();
    std::lock_guard<std::mutex> hold(m.lock);
    char *own = NULL;
    const emu_block *const b = emu_find((char *)p, 1, &own);
    std::map<char *, emu_foreign>::iterator f = m.foreign.upper_bound((char *)p);
    if (!b && (f == m.foreign.begin() || (char *)p >= (--f)->first + f->second.place.bytes)) return 1;
    *start = (unsigned long long)(b ? own : f->first);
    *size = b ? b->bytes : f->second.place.bytes;
    return 0;
}
EMU_FN void *moek_driver_function_(const char *name)
{
    return strcmp(name, "cuMemGetAddressRange") || emu_gpu.no_range ? NULL : (void *)emu_range;
}
#endif
