/* ep_layer.c -- one MoE layer on several ranks, a process and a GPU each; in C99.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_BF16 -Iinclude examples/ep_layer.c \
 *        examples/ep_moek.cu -o ep_layer && sh examples/ep_launch.sh 2 ./ep_layer
 *   ./ep_layer RANK RANKS FILE                         one rank: ep_launch.sh, or mpirun, starts them all
 *   ./ep_layer [RANKS]                                 starts its own, by fork, before any of them touches CUDA
 *
 * With more ranks than GPUs some share one; without a GPU ranks are on the CPU, and their windows in memory that all
 * share.  What they tell each other (where windows are, the id for NCCL) goes through FILE, which all of them map: a
 * program on several hosts has MPI for it.
 * Compile both files with -DUSE_NCCL, link with -lnccl, and ranks (a GPU each) open their group from a communicator:
 * moek_ep_nccl.h finds out how they reach each other.  The kernels are in examples/ep_moek.cu; example.h has memory
 * and a plain loop. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* fork, MAP_ANONYMOUS */
#endif
#ifndef EXAMPLE_CUDA
#define EXAMPLE_CUDA
#endif
#include <cuda_runtime_api.h>
#ifdef USE_NCCL
#include "moek_ep_nccl.h"
#else
#include "moek_ep.h"
#endif
#include "example.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HIDDEN = 512, INTER = 256, EXPERTS = 16, TOPK = 4, MAX_TOKENS = 24, MAX_RANKS = 8 };

static void must(moek_status status, const char *what, const char *why)
{
    example_must(status == MOEK_OK, what, why[0] ? why : moek_status_text(status));
}
static void must_cuda(cudaError_t error, const char *what)
{
    example_must(error == cudaSuccess, what, cudaGetErrorString(error));
}

/* ---- an all-gather in shared memory ------------------------------------------------------------------------------ */

typedef struct table { int here[MAX_RANKS]; char slot[MAX_RANKS][256]; } table;
typedef struct gatherer { table *t; int rank, ranks, turn; } gatherer;

/* 20 seconds at most: who failed does not come. */
static int meet(gatherer *g)
{
    const time_t end = time(NULL) + 20;
    int p;
    __atomic_store_n(&g->t->here[g->rank], ++g->turn, __ATOMIC_RELEASE);
    for (p = 0; p < g->ranks; p++)
        while (__atomic_load_n(&g->t->here[p], __ATOMIC_ACQUIRE) < g->turn) {
            if (time(NULL) > end) return 1;
            sched_yield();
        }
    return 0;
}
static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    gatherer *g = (gatherer *)context;
    int p;
    if (bytes > sizeof g->t->slot[0]) return 1;
    memcpy(g->t->slot[g->rank], mine, bytes);
    if (meet(g)) return 1;
    for (p = 0; p < g->ranks; p++) memcpy((char *)all + (size_t)p * bytes, g->t->slot[p], bytes);
    return meet(g);
}

/* ---- a group on GPUs --------------------------------------------------------------------------------------------- */

/* What goes with a group: the memory behind it. */
#ifdef USE_NCCL
typedef moek_ep_nccl group_wire;
static void open_gpu(group_wire *w, moek_ep *ep, moek_ep_config *group, gatherer *g)
{
    ncclUniqueId id, all[MAX_RANKS];
    ncclComm_t comm;
    memset(&id, 0, sizeof id);
    if (g->rank == 0) example_must(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId", "failed");
    example_must(!gather(g, &id, all, sizeof id), "gather", "failed");
    example_must(ncclCommInitRank(&comm, g->ranks, all[0], g->rank) == ncclSuccess, "ncclCommInitRank",
                 "failed.  Has each rank a GPU of its own?");
    must(moek_ep_nccl_open(w, ep, group, comm, MOEK_EP_NCCL_AUTO), "moek_ep_nccl_open", w->text);
    if (g->rank == 0) printf("%s", w->text);
}
static void wait_gpu(group_wire *w, moek_ep *ep) { must(moek_ep_nccl_wait(w, ep, NULL, 0), "moek_ep_nccl_wait", ""); }
static void close_gpu(group_wire *w, gatherer *g)
{
    (void)g;
    must(moek_ep_nccl_close(w), "moek_ep_nccl_close", "");
    ncclCommDestroy(w->comm);
}
#else
typedef struct group_wire { void *window, *base[MAX_RANKS]; } group_wire;
static void open_gpu(group_wire *w, moek_ep *ep, moek_ep_config *group, gatherer *g)
{
    char why[512] = "";
    w->window = example_new(0, NULL, moek_ep_window_size(group));
    must_cuda(cudaHostAlloc(&group->report, MOEK_EP_REPORT, cudaHostAllocPortable), "cudaHostAlloc");
    memset(group->report, 0, MOEK_EP_REPORT);
    must_cuda(cudaDeviceSynchronize(), "zeros");
    must(moek_ep_ipc_open(g->rank, g->ranks, w->window, gather, g, w->base, why, sizeof why), "moek_ep_ipc_open", why);
    must(moek_ep_open(ep, group, w->base), "moek_ep_open", ep->why);
}
static void wait_gpu(group_wire *w, moek_ep *ep)
{
    (void)w;
    must_cuda(cudaDeviceSynchronize(), "the layer");
    must(moek_ep_poll(ep, NULL), "moek_ep_poll", "");
}
static void close_gpu(group_wire *w, gatherer *g)
{
    meet(g);                                           /* all are done: windows may go */
    moek_ep_ipc_close(g->ranks, w->window, w->base);
    meet(g);
    example_free(0, w->window);
}
#endif

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* The rank's experts, in the group's order, on its GPU. */
static void *own(const moek_ep *ep, const uint16_t *all, size_t expert)
{
    uint16_t *mine = (uint16_t *)example_new(-1, NULL, 2 * expert * (size_t)ep->local_experts);
    void *there;
    int i;
    for (i = 0; i < ep->local_experts; i++) {
        const int e = moek_ep_expert(ep, ep->config.rank, i);
        if (e >= 0) memcpy(mine + (size_t)i * expert, all + (size_t)e * expert, 2 * expert);
    }
    there = example_new(ep->device, mine, 2 * expert * (size_t)ep->local_experts);
    example_free(-1, mine);
    return there;
}

/* The worst token against a plain loop over all experts. */
static double error_of(int device, const moek_args *a, const uint16_t *x, const uint16_t *up, const uint16_t *down)
{
    int32_t ids[MAX_TOKENS * TOPK];
    float weights[MAX_TOKENS * TOPK];
    uint16_t y[MAX_TOKENS * HIDDEN];
    double worst = 0;
    int t, k;
    example_get(device, ids, a->topk_ids, sizeof ids);
    example_get(device, weights, a->topk_weights, sizeof weights);
    example_get(device, y, a->y, sizeof y);
    for (t = 0; t < a->tokens; t++) {
        double want[HIDDEN] = { 0 }, error;
        for (k = t * TOPK; k < (t + 1) * TOPK; k++)
            example_expert(want, x + t * HIDDEN, up + (size_t)ids[k] * 2 * INTER * HIDDEN,
                           down + (size_t)ids[k] * HIDDEN * INTER, HIDDEN, INTER, weights[k]);
        error = example_error(y + t * HIDDEN, want, HIDDEN);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void say_layer(moek_config *c)
{
    memset(c, 0, sizeof *c);
    c->hidden = HIDDEN; c->inter = INTER; c->experts = EXPERTS; c->topk = TOPK;
    c->quant = MOEK_BF16; c->act = MOEK_SILU; c->routing = MOEK_ROUTE_SOFTMAX_RENORM;
    c->max_tokens = MAX_TOKENS;
}

/* host: windows of all ranks, for want of a GPU. */
static int run_rank(int rank, int ranks, table *t, char *const *host)
{
    gatherer g = { t, rank, ranks, 0 };
    moek_config config;
    moek_ep_config group;
    moek_ep ep;
    moek_plan plan;
    moek_weights weights;
    moek_args args;
    uint16_t *up = example_random((size_t)EXPERTS * 2 * INTER * HIDDEN, 0.08f, 1);          /* of all experts; a real */
    uint16_t *down = example_random((size_t)EXPERTS * HIDDEN * INTER, 0.1f, 2);             /* rank loads its own     */
    uint16_t *x = example_random((size_t)MAX_TOKENS * HIDDEN, 1, 10 + (uint32_t)rank);
    float logits[MAX_TOKENS * EXPERTS];
    group_wire wire;
    void *base[MAX_RANKS];
    char why[512] = "";
    double error;
    int i, gpus = 0, device = -1;
    if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) device = rank % gpus;
    else (void)cudaGetLastError();
    if (device >= 0) must_cuda(cudaSetDevice(device), "cudaSetDevice");
    for (i = 0; i < MAX_TOKENS * EXPERTS; i++) logits[i] = (float)((i + 31 * rank) * 7919 % 1009) / 250.0f;

    /* 1. The layer and the group; windows, or an id for NCCL, go by way of `gather`. */
    say_layer(&config);
    memset(&group, 0, sizeof group);
    group.rank = rank; group.ranks = ranks; group.layer = &config;
    group.transport = device < 0 ? MOEK_EP_HOST : MOEK_EP_GPU;
    for (i = 0; i < ranks; i++) base[i] = host[i];
    if (device >= 0) open_gpu(&wire, &ep, &group, &g);
    else must(moek_ep_open(&ep, &group, base), "moek_ep_open", ep.why);

    /* 2. From here on as ever; join says which experts are here, and that rows have to travel. */
    must(moek_ep_join(&ep, &config), "moek_ep_join", "");
    must(moek_plan_init(&plan, &config), "moek_plan_init", plan.why);
    memset(&weights, 0, sizeof weights);
    weights.w_up = own(&ep, up, (size_t)2 * INTER * HIDDEN);
    weights.w_down = own(&ep, down, (size_t)HIDDEN * INTER);
    must(moek_plan_bind(&plan, &weights), "moek_plan_bind", plan.why);

    /* 3. Run: this rank's tokens in, its results out.  Every rank must call it, also one without tokens. */
    memset(&args, 0, sizeof args);
    args.tokens = rank == 1 ? 3 : MAX_TOKENS - rank;
    args.x = example_new(device, x, sizeof(uint16_t) * MAX_TOKENS * HIDDEN);
    args.router_logits = example_new(device, logits, sizeof logits);
    args.topk_ids = (int32_t *)example_new(device, NULL, sizeof(int32_t) * MAX_TOKENS * TOPK);
    args.topk_weights = (float *)example_new(device, NULL, sizeof(float) * MAX_TOKENS * TOPK);
    args.y = example_new(device, NULL, sizeof(uint16_t) * MAX_TOKENS * HIDDEN);
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(device, NULL, args.workspace_size);
    args.why = why; args.why_size = sizeof why;
    for (i = 0; i < 3; i++) must(moek_run(&plan, &args, NULL), "moek_run", why);
    if (device >= 0) wait_gpu(&wire, &ep);
    else must(moek_ep_poll(&ep, NULL), "moek_ep_poll", "");

    error = error_of(device, &args, x, up, down);
    printf("rank %d, %s %d: %d tokens by %s, off by %.2e of a plain loop: %s\n", rank,
           device < 0 ? "on the CPU, process" : "on GPU", device < 0 ? (int)getpid() : device, args.tokens,
           moek_ep_kind_name(ep.config.kind), error, error < 0.01 ? "ok" : "WRONG");
    fflush(stdout);
    if (device >= 0) close_gpu(&wire, &g);
    return !(error < 0.01);
}

/* Zeros that processes share: those that map the same file (which was empty), or, with none, those that are forked. */
static char *shared(size_t bytes, const char *path)
{
    const int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    void *p = MAP_FAILED;
    if (!path) p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    else if (file >= 0 && !ftruncate(file, (off_t)bytes))
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    example_must(p != MAP_FAILED, path ? path : "mmap", "failed");
    return (char *)p;
}

int main(int argc, char **argv)
{
    const int one = argc == 4, ranks = one ? atoi(argv[2]) : argc > 1 ? atoi(argv[1]) : 2;
    const size_t page = 4096, head = (sizeof(table) + page - 1) / page * page;
    moek_config config;
    moek_ep_config group;
    char *memory, *host[MAX_RANKS];
    size_t window;
    int r, status, wrong = 0;
    example_must(ranks >= 1 && ranks <= MAX_RANKS, "RANKS", "1 to 8");
    say_layer(&config);
    memset(&group, 0, sizeof group);
    group.ranks = ranks; group.layer = &config;
    group.transport = MOEK_EP_HOST;
    window = moek_ep_window_size(&group);              /* for want of a GPU */
    memory = shared(head + window * (size_t)ranks, one ? argv[3] : NULL);
    for (r = 0; r < ranks; r++) host[r] = memory + head + window * (size_t)r;
    if (one) return run_rank(atoi(argv[1]), ranks, (table *)memory, host);
    for (r = 0; r < ranks; r++)
        if (fork() == 0) exit(run_rank(r, ranks, (table *)memory, host));
    for (r = 0; r < ranks; r++) {
        wait(&status);
        wrong |= status != 0;
    }
    return wrong;
}
