/* moek/ep/gpu.h -- the host side of the three kinds on GPUs: opens a group whose windows are in GPU memory, moves rows
 * where windows are not reachable, and launches the kernels of the four stages. */
#ifndef MOEK_EP_GPU_H
#define MOEK_EP_GPU_H
#include <string.h>
#include "../plan/device_query.h"
#include "host.h"
#if MOEK_HAVE_CUDA_
#include "combine_receive.h"
#include "combine_send.h"
#include "dispatch_receive.h"
#include "dispatch_send.h"
#endif

#if MOEK_HAVE_CUDA_

/* ---- calls of the CUDA runtime ----------------------------------------------------------------------------------- */

#if MOEK_HAVE_CUDART_
#include <sys/auxv.h>
#include <unistd.h>

/* 1 if work on the stream has not finished. */
static int moek_ep_is_busy_(moek_stream stream)
{
    const cudaError_t error = cudaStreamQuery((cudaStream_t)stream);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaErrorNotReady;
}
/* 1 if this is pinned host memory that kernels reach by the same address. */
static int moek_ep_is_pinned_(const void *report)
{
    struct cudaPointerAttributes at;
    if (report && cudaPointerGetAttributes(&at, report) == cudaSuccess && at.type == cudaMemoryTypeHost &&
        at.devicePointer == report) return 1;
    (void)cudaGetLastError();
    return 0;
}

/* The mark of a device: a hash of its UUID, so that all processes get the same value however they number devices.  Odd,
 * so never 0: a rank's handshake lines start with it, and 0 means "not written". */
static uint64_t moek_ep_device_mark_(int ordinal)
{
    struct cudaDeviceProp p;
    uint64_t hash = 14695981039346656037u;
    size_t i;
    if (cudaGetDeviceProperties(&p, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return 1;
    }
    for (i = 0; i < sizeof p.uuid.bytes; i++) hash = (hash ^ (unsigned char)p.uuid.bytes[i]) * 1099511628211u;
    return hash >> 1 | 1;
}

/* Checks that each base[p] is GPU memory, and this rank's memory on the current device; turns on peer access to the
 * others. */
static moek_status moek_ep_reach_windows_(moek_ep *ep, void *const *base, moek_text_ *why)
{
    const moek_device_ device = moek_device_query_();
    int p;
    ep->device = device.ordinal; ep->multiprocessors = device.multiprocessors;
    ep->mark = moek_ep_device_mark_(device.ordinal);
    for (p = 0; p < ep->config.ranks; p++) {
        struct cudaPointerAttributes at;
        cudaError_t error = cudaPointerGetAttributes(&at, base[p]);
        if (error != cudaSuccess || at.type != cudaMemoryTypeDevice) {
            (void)cudaGetLastError();
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "base[%d] is not memory of a GPU: take cudaMalloc, or for rows of the CPU "
                       "transport = MOEK_EP_HOST", p);
        }
        if (p == ep->config.rank && at.device != ep->device)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "the window of this rank, %d, is on device %d, current is %d", p,
                       at.device, ep->device);
        if (at.device == ep->device) continue;
        error = cudaDeviceEnablePeerAccess(at.device, 0);
        if (error == cudaSuccess) continue;
        (void)cudaGetLastError();
        if (error != cudaErrorPeerAccessAlreadyEnabled)
            MOEK_FAIL_(why, MOEK_E_BACKEND, "device %d can not reach device %d, where the window of rank %d is: %s",
                       ep->device, at.device, p, cudaGetErrorString(error));
    }
    return MOEK_OK;
}

/* The start of the allocation that holds p, as cudaMalloc returned it or cudaIpc mapped it; NULL if it can not be
 * found. */
static char *moek_ep_start_of_(void *p)
{
    typedef int (*range)(unsigned long long *start, size_t *size, unsigned long long p);    /* as cuda.h has it */
    const range get = (range)moek_driver_function_("cuMemGetAddressRange");
    unsigned long long start = 0;
    size_t size = 0;
    return get && !get(&start, &size, (unsigned long long)(uintptr_t)p) ? (char *)(uintptr_t)start : NULL;
}

typedef struct moek_ep_ipc_ {
    cudaIpcMemHandle_t handle;                         /* of the whole allocation */
    uint64_t at;                                       /* offset of the window in it */
    void *window;
    uint64_t process[2];                               /* identifies the process */
    int64_t status;
} moek_ep_ipc_;

static moek_ep_ipc_ moek_ep_ipc_of_(void *window)
{
    const void *random = (const void *)getauxval(AT_RANDOM);          /* 16 random bytes, new in each exec */
    const char *start;
    moek_ep_ipc_ m;
    memset(&m, 0, sizeof m);
    m.window = window;
    if (random) memcpy(m.process, random, sizeof m.process);
    m.process[0] += (uint64_t)getpid();
    m.status = cudaIpcGetMemHandle(&m.handle, window);
    start = window ? moek_ep_start_of_(window) : NULL;                 /* after the call above: it needs a context */
    if (m.status == cudaSuccess && !start) m.status = cudaErrorNotSupported;
    m.at = start ? (uint64_t)((char *)window - start) : 0;
    return m;
}

static moek_status moek_ep_ipc_map_(const moek_ep_ipc_ *mine, const moek_ep_ipc_ *theirs, int p, void **base,
                                    moek_text_ *why)
{
    cudaError_t error = (cudaError_t)theirs->status;
    *base = theirs->window;
    if (error == cudaSuccess && !memcmp(mine->process, theirs->process, sizeof mine->process)) return MOEK_OK;
    *base = NULL;
    if (error == cudaSuccess) error = cudaIpcOpenMemHandle(base, theirs->handle, cudaIpcMemLazyEnablePeerAccess);
    if (error == cudaSuccess) {
        *base = (char *)*base + theirs->at;
        return MOEK_OK;
    }
    (void)cudaGetLastError();
    MOEK_FAIL_(why, MOEK_E_CUDA, "the window of rank %d: %s", p, cudaGetErrorString(error));
}

moek_status moek_ep_ipc_open(int rank, int ranks, void *window, moek_ep_gather gather, void *context, void **base,
                             char *text, size_t size)
{
    moek_ep_ipc_ mine = moek_ep_ipc_of_(window), all[MOEK_EP_MAX_RANKS];
    int64_t own = MOEK_OK, each[MOEK_EP_MAX_RANKS];
    moek_text_ why = moek_text_in_(text, size);
    int p;
    (void)cudaGetLastError();
    if (!window || !gather || !base || ranks < 1 || ranks > MOEK_EP_MAX_RANKS || rank < 0 || rank >= ranks)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "window, gather or base is NULL, or rank is %d of %d ranks", rank, ranks);
    memset(base, 0, sizeof *base * (size_t)ranks);
    if (gather(context, &mine, all, sizeof mine)) MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "gather failed");
    for (p = 0; p < ranks && own == MOEK_OK; p++) own = moek_ep_ipc_map_(&mine, &all[p], p, &base[p], &why);
    if (gather(context, &own, each, sizeof own)) {
        moek_ep_ipc_close(ranks, window, base);
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "gather failed");
    }
    for (p = 0; p < ranks; p++) {
        if (each[p] == MOEK_OK) continue;
        moek_ep_ipc_close(ranks, window, base);
        if (own == MOEK_OK) moek_append_(&why, "rank %d could not map all windows", p);
        return MOEK_E_CUDA;
    }
    return MOEK_OK;
}

void moek_ep_ipc_close(int ranks, void *window, void **base)
{
    int p, device = 0;
    /* start_of_ needs a CUDA context; this thread may not have one yet. */
    if (cudaGetDevice(&device) == cudaSuccess) (void)cudaSetDevice(device);
    for (p = 0; p < ranks; p++) {
        void *const start = base[p] && base[p] != window ? moek_ep_start_of_(base[p]) : NULL;
        if (base[p] && base[p] != window && (!start || cudaIpcCloseMemHandle(start) != cudaSuccess) &&
            cudaIpcCloseMemHandle(base[p]) != cudaSuccess)
            (void)cudaGetLastError();                  /* a window of this process: was not mapped */
        base[p] = NULL;
    }
}

#else
static int moek_ep_is_busy_(moek_stream stream) { (void)stream; return 0; }
static int moek_ep_is_pinned_(const void *report) { return report != NULL; }
static moek_status moek_ep_reach_windows_(moek_ep *ep, void *const *base, moek_text_ *why)
{
    (void)base; (void)why;
    ep->device = moek_device_query_().ordinal;
    ep->multiprocessors = 16;                          /* so that ranks that share it get a few blocks */
    return MOEK_OK;
}
#endif

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Kernels of low_latency that are baked for a hidden size, and last those for any size (hidden 0). */
typedef struct moek_ep_kernels_ {
    int hidden;
    void (*send_codes)(moek_ep_dispatch_send_);
    void (*combine_send)(moek_ep_combine_send_);
    void (*combine_receive)(moek_ep_combine_receive_);
} moek_ep_kernels_;
#define MOEK_EP_KERNELS_(h) \
    { h, moek_ep_dispatch_send_codes_h##h##_k_, moek_ep_combine_send_h##h##_k_, moek_ep_combine_receive_h##h##_k_ },
static const moek_ep_kernels_ moek_ep_few_kernels_[] = {
    MOEK_EACH_HIDDEN(MOEK_EP_KERNELS_)
    { 0, moek_ep_dispatch_send_codes_k_, moek_ep_combine_send_k_, moek_ep_combine_receive_k_ }
};
#undef MOEK_EP_KERNELS_

/* low_latency: the baked kernels of the group's hidden size, if there are any and if they serve the request; otherwise
 * the kernels for any size. */
static const moek_ep_kernels_ *moek_ep_few_of_(const moek_ep *ep, int serve)
{
    const moek_ep_kernels_ *k = moek_ep_few_kernels_;
    while (k->hidden && !(serve && k->hidden == ep->baked)) k++;
    return k;
}
static const moek_ep_kernels_ *moek_ep_few_for_sums_(const moek_ep *ep)
{
    return moek_ep_few_of_(ep, ep->config.combine == MOEK_EP_REDUCED);
}

/* Kernels are loaded when the group opens, not at the first launch: then kernels of other ranks may be waiting. */
static int moek_ep_few_loaded_(const moek_ep_kernels_ *k)
{
    return MOEK_READY_(k->send_codes, 0) == MOEK_OK && MOEK_READY_(k->combine_send, 0) == MOEK_OK &&
           MOEK_READY_(k->combine_receive, 0) == MOEK_OK;
}
static moek_status moek_ep_load_kernels_(const moek_ep *ep, moek_text_ *why)
{
    if (moek_ep_few_loaded_(moek_ep_few_of_(ep, 0)) && moek_ep_few_loaded_(moek_ep_few_of_(ep, 1)) &&
        MOEK_READY_(moek_ep_dispatch_send_words_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_dispatch_receive_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_counts_k_, 0) == MOEK_OK && MOEK_READY_(moek_ep_shares_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_dispatch_send_many_words_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_dispatch_send_many_codes_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_dispatch_receive_rows_k_, 0) == MOEK_OK && MOEK_READY_(moek_ep_end_k_, 0) == MOEK_OK &&
        MOEK_READY_(moek_ep_combine_send_many_k_, MOEK_EP_RING_BYTES_) == MOEK_OK &&
        MOEK_READY_(moek_ep_combine_receive_many_k_, MOEK_EP_RING_BYTES_) == MOEK_OK)
        return MOEK_OK;
    MOEK_FAIL_(why, MOEK_E_ARCH, "the binary holds no code of the exchange kernels for this device");
}

/* ---- rows that are moved ----------------------------------------------------------------------------------------- */

enum { MOEK_EP_PARTS_OF_ = 5 };                        /* the most parts of a phase: flags and counts; four arrays */
/* A part of the data that goes to each rank in a phase.  at: the offset for rank 0; those for ranks 1, 2, ... follow
 * without gaps.  bytes: for one rank.  every: the data is the same for all ranks, and lies in the own window. */
typedef struct moek_ep_part_of_ { size_t at, bytes; int every; } moek_ep_part_of_;
static int moek_ep_parts_of_(const moek_ep *ep, const moek_ep_message_ *m, int phase, int handle,
                             moek_ep_part_of_ *part)
{
    const moek_ep_config *c = &ep->config;
    const moek_ep_layout l = moek_ep_fields_(ep, m);
    /* The first two are the same for every rank (allgather).  `token` is not moved: it follows from the row's index. */
    const moek_ep_field field[] = { l.x, l.scale, l.ids, l.weights };
    const size_t rows = (size_t)moek_ep_share_(ep), first = l.rows + (size_t)handle * l.rows_size;
    const size_t element = c->combine == MOEK_EP_REDUCED_F32 ? 4 : 2;
    const int gathers = c->kind == MOEK_EP_ALLGATHER && c->move_gathers;
    int n = 0, i;
#define MOEK_PART_(at_, bytes_, every_) \
    (part[n].at = (at_), part[n].bytes = (bytes_), part[n].every = (every_), n += part[n].bytes != 0)
    MOEK_PART_(moek_ep_flag_at_(&l, c->ranks, 0, MOEK_EP_COUNTS, handle, 0), l.counts_stride, 0);
    if (phase == MOEK_EP_COMBINE)
        MOEK_PART_(moek_ep_partial_at_(&l, handle, 0, 0), rows * (size_t)l.slots * (size_t)ep->hidden * element, 0);
    else if (moek_ep_low_latency_(ep)) MOEK_PART_(first, rows * l.x.stride, 0);
    else for (i = 0; i < 4; i++) MOEK_PART_(first + field[i].at, rows * field[i].stride, gathers && i < 2);
#undef MOEK_PART_
    return n;
}

static moek_status moek_ep_move_parts_(const moek_ep *ep, const moek_ep_part_of_ *part, int parts, moek_stream stream)
{
    moek_ep_piece piece[(int)MOEK_EP_PARTS_OF_ * MOEK_EP_MAX_RANKS];
    char *const own = ep->base[ep->config.rank];
    int i, n, count = 0;
    for (n = 0; n < parts && ep->config.ranks > 1; n++) {
        if (!part[n].every) continue;
        piece[count].rank = MOEK_EP_EVERY;
        piece[count].from = own + part[n].at + (size_t)ep->config.rank * part[n].bytes;
        piece[count].to = own + part[n].at;
        piece[count++].bytes = part[n].bytes;
    }
    for (i = 1; i < ep->config.ranks; i++)
        for (n = 0; n < parts; n++) {
            const int p = moek_ep_turn_(ep, i);
            const size_t at = part[n].at + (size_t)p * part[n].bytes;
            if (part[n].every) continue;
            piece[count].rank = p;
            piece[count].from = ep->base[p] + at;
            piece[count].to = own + at;
            piece[count++].bytes = part[n].bytes;
        }
    return !count || !ep->config.move(ep->config.move_context, piece, count, stream) ? MOEK_OK : MOEK_E_CUDA;
}

/* Enqueues the moves of a phase, after the kernel that filled the outgoing window.  Does nothing where windows are
 * reachable. */
static moek_status moek_ep_move_(const moek_ep *ep, const moek_step *step, int phase, moek_stream stream)
{
    const moek_ep_message_ m = moek_ep_message_of_(step->plan);
    const int handle = step->args.handle;
    moek_ep_part_of_ part[MOEK_EP_PARTS_OF_];
    int parts;
    if (!ep->config.move) return MOEK_OK;
    parts = moek_ep_parts_of_(ep, &m, phase, handle, part);
    if (moek_ep_move_parts_(ep, part, parts, stream) == MOEK_OK) return MOEK_OK;
    moek_ep_fail_(ep, MOEK_E_ABORTED, phase, handle, ep->config.rank, 0);
    MOEK_REFUSE_(&step->args, MOEK_E_CUDA, "config.move could not move the rows of %s on handle %d: the group has "
                 "ended", moek_ep_phase_name_(phase), handle);
}

/* Moves a line of the handshake to each rank. */
static moek_status moek_ep_move_handshake_(const moek_ep *ep, int line, moek_stream stream)
{
    moek_ep_part_of_ part;
    part.at = moek_ep_handshake_at_(ep, line, 0); part.bytes = MOEK_EP_LINE_; part.every = 0;
    return moek_ep_move_parts_(ep, &part, 1, stream);
}
/* Waits until the moves have finished.  A mark is not enough: bytes of a line may arrive in any order, so the mark may
 * arrive before the rest. */
static moek_status moek_ep_wait_for_handshake_(const moek_ep *ep, moek_stream stream)
{
    moek_status status = MOEK_OK;
    uint64_t start = 0;
    unsigned polls;
    for (polls = 1; status == MOEK_OK && moek_ep_is_busy_(stream); polls++)
        status = moek_ep_again_(ep, polls, &start, MOEK_EP_OPENING, 0, ep->config.rank, 0);
    return status;
}

/* ---- the four halves --------------------------------------------------------------------------------------------- */

/* 1 if no GEMM of another operation or rank has to run beside a kernel that waits. */
static int moek_ep_alone_(const moek_ep *ep) { return ep->sharing <= 1 && ep->config.handles == 1; }

/* The most blocks of a kernel that has `each` blocks on an SM.  Where GEMMs of another operation or rank may have to
 * run beside a kernel that waits, half of the SMs stay free for them; otherwise the kernel could hold the SMs of the
 * very work that it waits for. */
static int moek_ep_blocks_(const moek_ep *ep, int each)
{
    const int n = moek_ep_alone_(ep) ? each * ep->multiprocessors : ep->multiprocessors / 2 / ep->sharing;
    return n > 1 ? n : 1;
}
/* alltoall and allgather: the most blocks of the send kernel.  The links limit it, and this many blocks saturate them.
 * (combine_send takes all SMs, because it reads topk rows for one row that travels.) */
static int moek_ep_many_(const moek_ep *ep)
{
    const int n = moek_ep_blocks_(ep, 1), most = MOEK_EP_WARPS_ / (MOEK_EP_MANY_ / 32);
    return n < most ? n : most;
}
/* low_latency: slices of a row of partial, or of y.  Each is for one block. */
static int moek_ep_stretches_(const moek_ep *ep)
{
    return (ep->hidden + 8 * MOEK_EP_THREADS_ - 1) / (8 * MOEK_EP_THREADS_);
}
/* low_latency: blocks of a kernel with one block for each received row.  The host does not know that number, and
 * assumes that the other ranks have about as many tokens as this one. */
static int moek_ep_few_rows_(const moek_ep *ep, long long tokens)
{
    const int most = moek_ep_blocks_(ep, MOEK_EP_EACH_);
    const long long rows = ep->config.ranks * (tokens > 8 ? tokens : 8);
    return rows < most ? (int)rows : most;
}

/* low_latency: 1 if copies of received rows, and the zeros that combine_receive leaves, may be stored with L2
 * evict_last: if all operations in flight on this GPU have at most STAYS_ bytes of them.  Assumes that the other ranks
 * have about as many tokens as this one. */
enum { MOEK_EP_STAYS_ = 24 << 20 };
static int moek_ep_stays_(const moek_ep *ep, const moek_plan *plan, int tokens)
{
    const size_t element = ep->config.combine == MOEK_EP_REDUCED_F32 ? 4 : 2;
    const size_t copies = (size_t)ep->slots * moek_ep_message_of_(plan).x_bytes;
    const size_t zeros = (size_t)ep->layout.slots * (size_t)ep->hidden * element;
    return (copies + zeros) * (size_t)tokens * (size_t)(ep->config.handles * ep->sharing) <= (size_t)MOEK_EP_STAYS_;
}

static moek_ep_sizes_ moek_ep_sizes_sent_(const moek_ep_message_ *m)
{
    moek_ep_sizes_ s;
    s.x_stride = (int)(m->x_row / 2); s.words = (int)(m->x_bytes / 16); s.groups = (int)m->scales.count;
    return s;
}

/* 1 if the send kernels quantize to this format: e4m3 with a float for each 128 columns.  Other rows are quantized by
 * the kernel of the table, before they are sent. */
static int moek_ep_fuses_(const moek_format *f)
{
    const moek_scale_shape *const of = &f->x_scale;
    return f->x == MOEK_ELEMENT_E4M3 && of->type == MOEK_SCALE_TYPE_F32 && of->columns == 128;
}

static moek_status moek_ep_prepare_send_gpu_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const moek_plan *plan = step->plan;
    const int weighted = plan->config.router_weight_on_input, tokens = step->tokens;
    const int few = moek_ep_low_latency_(ep), most = few ? moek_ep_blocks_(ep, MOEK_EP_EACH_) : moek_ep_many_(ep);
    const int fused = moek_ep_fuses_(plan->chosen.format) && !moek_ep_sends_t_(plan) && !weighted;
    moek_ep_message_ m = moek_ep_message_of_(plan);
    moek_ep_dispatch_send_ a;
    const int early = moek_launches_early_(plan), warps = most * (MOEK_EP_MANY_ / 32);
    moek_ep_work_ w;
    int blocks;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_IDLE_);
    if (status == MOEK_OK && !fused) status = moek_ep_quantize_(ep, step, &m, stream);
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, plan, step->prepare_workspace, &w);
    memset(&a, 0, sizeof a);
    a.g = moek_ep_on_gpu_(ep, step->args.handle, moek_ep_tag_(plan));
    a.g.layout = moek_ep_fields_(ep, &m);
    a.tokens = tokens;
    a.each = tokens > warps ? (tokens + warps - 1) / warps : 1;
    if (fused) m.x_row = 2 * moek_x_stride_(&step->args, &plan->config);
    a.size = moek_ep_sizes_sent_(&m);
    a.dtype = plan->config.dtype; a.scales = m.scales.how;
    a.ids = step->ids;
    a.weights = weighted ? NULL : step->topk_weights;
    a.x = fused ? (const char *)step->args.x : m.x;
    a.scale = m.scale;
    a.to = w.to;
    a.before = ep->config.kind == MOEK_EP_ALLTOALL ? w.before : NULL;
    if (moek_ep_shares_(ep)) { a.rows = w.rows; a.back = w.back; }
    if (few) {
        blocks = (tokens < most ? tokens : most) + 1;
        status = fused ? MOEK_CHAIN_(moek_ep_few_of_(ep, 1)->send_codes, blocks, MOEK_EP_THREADS_, 0, stream, early, a)
                       : MOEK_CHAIN_(moek_ep_dispatch_send_words_k_, blocks, MOEK_EP_THREADS_, 0, stream, early, a);
    } else {
        blocks = tokens < most ? (tokens ? tokens : 1) : most;
        if (a.g.packed) status = MOEK_CHAIN_(moek_ep_counts_k_, 1, MOEK_EP_MANY_, 0, stream, early, a);
        else if (a.rows) status = MOEK_CHAIN_(moek_ep_shares_k_, 1, MOEK_EP_MANY_, 0, stream, early, a);
        if (status == MOEK_OK)
            status = fused ? MOEK_CHAIN_(moek_ep_dispatch_send_many_codes_k_, blocks, MOEK_EP_MANY_, 0, stream, early,
                                         a)
                           : MOEK_CHAIN_(moek_ep_dispatch_send_many_words_k_, blocks, MOEK_EP_MANY_, 0, stream, early,
                                         a);
    }
    if (status == MOEK_OK) status = moek_ep_move_(ep, step, MOEK_EP_DISPATCH, stream);
    if (status == MOEK_OK) ep->stage[step->args.handle] = MOEK_EP_SENT_;
    return status;
}

static moek_status moek_ep_prepare_receive_gpu_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const moek_plan *plan = step->plan;
    const moek_ep_message_ m = moek_ep_message_of_(plan);
    const int few = moek_ep_low_latency_(ep);
    const int most = few ? moek_ep_few_rows_(ep, step->tokens) : moek_ep_blocks_(ep, 3);
    const int rows = (int)(moek_ep_rows_(ep) * (size_t)ep->slots / MOEK_EP_THREADS_) + 1;
    const int early = moek_launches_early_(plan) && !ep->config.move;
    moek_ep_dispatch_receive_ a;
    moek_ep_work_ w;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_SENT_);
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, plan, step->prepare_workspace, &w);
    memset(&a, 0, sizeof a);
    a.g = moek_ep_on_gpu_(ep, step->args.handle, moek_ep_tag_(plan));
    a.g.layout = moek_ep_fields_(ep, &m);
    a.go = moek_ep_alone_(ep);
    a.stays = moek_ep_stays_(ep, plan, step->tokens);
    a.shares = moek_ep_shares_(ep);
    a.experts = plan->local_experts; a.rows_per_expert = plan->rows_per_expert;
    a.size = moek_ep_sizes_sent_(&m); a.scales = m.scales.how;
    a.counts = w.counts; a.offsets = w.offsets; a.expert_tokens = w.expert_tokens; a.slot_row = w.slot_row;
    a.ids = w.ids; a.token = w.token; a.weights = w.weights;
    a.x = moek_ep_late_(plan) ? (char *)w.unquantized : (char *)w.arrived.q;
    a.scale = few ? w.arrived.scale : moek_ep_expands_(&m.scales) ? w.scale : NULL;
    if (few) {
        status = MOEK_CHAIN_(moek_ep_dispatch_receive_k_, most, MOEK_EP_THREADS_, 0, stream, early, a);
        if (status == MOEK_OK) status = moek_ep_arrived_low_latency_(step, &w, stream);
    } else {
        status = MOEK_CHAIN_(moek_ep_dispatch_receive_rows_k_, rows < most ? rows : most, MOEK_EP_THREADS_, 0, stream,
                             early, a);
        if (status == MOEK_OK) status = moek_ep_arrived_rows_(ep, step, &w, stream);
    }
    if (status == MOEK_OK) ep->stage[step->args.handle] = MOEK_EP_ARRIVED_;
    return status;
}

static moek_status moek_ep_finalize_send_gpu_(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                              moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const moek_ep_message_ m = moek_ep_message_of_(step->plan);
    const int few = moek_ep_low_latency_(ep), early = moek_launches_early_(step->plan);
    moek_ep_combine_send_ a;
    moek_ep_work_ w;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_ARRIVED_);
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    memset(&a, 0, sizeof a);
    a.g = moek_ep_on_gpu_(ep, step->args.handle, moek_ep_tag_(step->plan));
    a.g.layout = moek_ep_fields_(ep, &m);
    a.hidden = ep->hidden; a.dtype = ep->dtype;
    a.reduced = weight_and_reduce == MOEK_NOOP;
    a.counts = w.counts;
    a.offsets = a.g.packed ? w.offsets : NULL;
    a.slot_row = few ? w.slot_row : NULL;
    a.ids = w.ids; a.token = few || ep->config.move ? NULL : w.token; a.weights = w.weights;
    a.out = (const uint16_t *)step->out;
    if (few) {
        const int blocks = moek_ep_few_rows_(ep, (long long)step->tokens * moek_ep_stretches_(ep)) + 1;
        status = MOEK_CHAIN_(moek_ep_few_for_sums_(ep)->combine_send, blocks, MOEK_EP_THREADS_, 0, stream, early, a);
    } else {
        /* Not early: SMs that down leaves first would get two blocks each, and the others none. */
        const int blocks = moek_ep_blocks_(ep, 1) + 1;
        status = MOEK_LAUNCH_(moek_ep_combine_send_many_k_, blocks, MOEK_EP_BACK_, MOEK_EP_RING_BYTES_, stream, a);
    }
    if (status == MOEK_OK) status = moek_ep_move_(ep, step, MOEK_EP_COMBINE, stream);
    if (status == MOEK_OK) ep->stage[step->args.handle] = MOEK_EP_RETURNED_;
    return status;
}

static moek_status moek_ep_finalize_receive_gpu_(const moek_prepare_finalize *self, moek_step *step,
                                                 int weight_and_reduce, moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const int early = moek_launches_early_(step->plan) && !ep->config.move;
    moek_ep_combine_receive_ a;
    moek_ep_work_ w;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_RETURNED_);
    (void)weight_and_reduce;
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    memset(&a, 0, sizeof a);
    a.g = moek_ep_on_gpu_(ep, step->args.handle, moek_ep_tag_(step->plan));
    a.tokens = step->tokens; a.hidden = ep->hidden; a.dtype = ep->dtype;
    a.ids = step->ids;
    a.weights = step->plan->config.router_weight_on_input ? NULL : step->topk_weights;
    a.addend = (const uint16_t *)step->args.shared_y;
    a.addend_stride = (int)moek_shared_y_stride_(&step->args, &step->plan->config);
    a.y = (uint16_t *)step->args.y;
    a.y_stride = (int)moek_y_stride_(&step->args, &step->plan->config);
    a.straight = step->straight;
    a.back = moek_ep_shares_(ep) ? w.back : NULL;
    a.stays = moek_ep_stays_(ep, step->plan, step->tokens);
    if (moek_ep_low_latency_(ep)) {
        const long long items = (long long)step->tokens * moek_ep_stretches_(ep);
        const int most = moek_ep_blocks_(ep, MOEK_EP_EACH_), blocks = items < 1 ? 1 : items < most ? (int)items : most;
        status = MOEK_CHAIN_(moek_ep_few_for_sums_(ep)->combine_receive, blocks, MOEK_EP_THREADS_, 0, stream, early, a);
    } else {
        const int blocks = moek_ep_blocks_(ep, 1);
        status = MOEK_CHAIN_(moek_ep_combine_receive_many_k_, blocks, MOEK_EP_BACK_, MOEK_EP_RING_BYTES_, stream,
                             early, a);
    }
    if (status == MOEK_OK) ep->stage[step->args.handle] = MOEK_EP_IDLE_;
    return status;
}
#endif

#if !MOEK_HAVE_CUDART_
moek_status moek_ep_ipc_open(int rank, int ranks, void *window, moek_ep_gather gather, void *context, void **base,
                             char *text, size_t size)
{
    moek_text_ why = moek_text_in_(text, size);
    (void)rank; (void)ranks; (void)window; (void)gather; (void)context; (void)base;
    MOEK_FAIL_(&why, MOEK_E_BACKEND, "this was compiled without nvcc: there is no memory of GPUs to map");
}
void moek_ep_ipc_close(int ranks, void *window, void **base) { (void)ranks; (void)window; (void)base; }
#endif
#endif
