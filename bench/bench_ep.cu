/* bench_ep.cu -- what the exchange of expert parallelism costs on GPUs, a thread and a rank a GPU.
 *
 *   ./moek bench-ep [KIND | TOKENS ...]                builds and runs it; tokens of a rank, by default 1 128 4096
 *   nvcc -std=c++17 -O2 -arch=sm_90a -Iinclude bench/bench_ep.cu -o bench_ep && ./bench_ep
 *
 * DeepSeek-V3's sizes: hidden 7168, 256 experts, top-8, each token to 8 experts at random; windows by peer access, on
 * all GPUs there are.  On one GPU two ranks share it: that shows the kernels, and no wire.  KIND is that of the tokens
 * behind it; without one up to 256 tokens go by low_latency, more by alltoall.
 *
 * Each rank replays a CUDA graph of OPERATIONS operations, experts left out.  dispatch: prepare_send and
 * prepare_receive; combine: finalize_send and finalize_receive; between clock stamps, which are kernels of one thread:
 * the time of a stamp is in the figure.  A figure is the median over operations of the slowest rank's time.  pair:
 * dispatch and combine, from graphs without stamps.  The floor: bytes to the busiest peer's side at WIRE.
 *
 * Compiled with -DUSE_NCCL, and with a GPU a rank, lines of NCCL's own collectives follow, with graphs without stamps:
 * alltoall of the bytes that the busiest rank sends, allgather of all rows, reduce-scatter of rows of bf16.  And the
 * words window, ipc and sends (moek_ep_nccl.h) are taken: so groups are opened for the tokens behind them. */
#ifndef BENCH_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#ifdef USE_NCCL
#include "moek_ep_nccl.h"
#else
#include "moek_ep.h"
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "../tests/mem.h"
#include "fill.h"

enum { HIDDEN = 7168, INTER = 2048, EXPERTS = 256, TOPK = 8, OPERATIONS = 21, REPLAYS = 20, RANKS = 8, STAMPS = 3 };
static const double WIRE = 370e9;                      /* bytes a second that plain stores reach on an H200's NVLink */
#ifdef USE_NCCL
#include "bench_nccl.h"
#endif

typedef struct setup {
    int ranks, gpus, tokens, quant, kind, path;        /* path: over NCCL; 0: peer access */
    moek_config config;
    void *base[RANKS];
    pthread_barrier_t barrier;
    uint64_t *stamps[RANKS];                           /* [REPLAYS][OPERATIONS][STAMPS], ns */
    double pair[RANKS][REPLAYS];                       /* us */
    double sent[RANKS], back[RANKS];                   /* bytes to other ranks */
} setup;
typedef struct rank { setup *all; int number; } rank;

static void must(moek_status status, const char *what, const char *why)
{
    if (status == MOEK_OK) return;
    printf("bench_ep: %s: %s: %s\n", what, moek_status_name(status), why && why[0] ? why : moek_status_text(status));
    exit(1);
}

static __global__ void stamp_k(uint64_t *to)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t));
    *to = t;
}
static __global__ void fill_k(uint16_t *x, size_t n, uint32_t seed)
{
    size_t i;
    for (i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = fill_t(i, seed, 1, MOEK_DTYPE_BF16);
}

/* TOPK different experts of token t. */
static void choose(int32_t *ids, int rank, int t)
{
    uint64_t n = 0;
    int k, j;
    for (k = 0; k < TOPK; k++) {
        do {
            ids[k] = (int32_t)(fill_hash(((uint64_t)rank * 4096 + (uint64_t)t) * 64 + n++, 9) % EXPERTS);
            for (j = 0; j < k && ids[j] != ids[k]; j++) { }
        } while (j < k);
    }
}

/* Ids and weights to the device; counts what travels. */
static void route(setup *s, const moek_ep *ep, int me, int32_t *ids, float *weights)
{
    const int owns = EXPERTS / s->ranks;
    int32_t *id = (int32_t *)malloc(sizeof(int32_t) * TOPK * (size_t)s->tokens);
    float *w = (float *)malloc(sizeof(float) * TOPK * (size_t)s->tokens);
    double rows = 0, there = 0;
    int t, k, p;
    for (t = 0; t < s->tokens; t++) {
        choose(id + t * TOPK, me, t);
        for (p = 0; p < s->ranks; p++) {
            for (k = 0; k < TOPK && id[t * TOPK + k] / owns != p; k++) { }
            there += p != me && k < TOPK;
            rows += p != me && (k < TOPK || s->kind == MOEK_EP_ALLGATHER);
        }
        for (k = 0; k < TOPK; k++) w[t * TOPK + k] = 1.0f / TOPK;
    }
    s->sent[me] = rows * (ep->row_bytes + ep->scale_bytes + 4 + 8 * TOPK);
    s->back[me] = there * 2 * HIDDEN;
    mem_put(1, ids, id, sizeof(int32_t) * TOPK * (size_t)s->tokens);
    mem_put(1, weights, w, sizeof(float) * TOPK * (size_t)s->tokens);
    free(id); free(w);
}

static cudaGraphExec_t record(moek_step *step, cudaStream_t stream, uint64_t *stamps)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int i;
    mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (i = 0; i < OPERATIONS; i++) {
        if (stamps) stamp_k<<<1, 1, 0, stream>>>(stamps + i * STAMPS);
        must(moek_prepare(step, (moek_stream)stream), "prepare", step->args.why);
        if (stamps) stamp_k<<<1, 1, 0, stream>>>(stamps + i * STAMPS + 1);
        must(moek_finalize(step, (moek_stream)stream), "finalize", step->args.why);
        if (stamps) stamp_k<<<1, 1, 0, stream>>>(stamps + i * STAMPS + 2);
    }
    mem_must(cudaStreamEndCapture(stream, &graph));
    mem_must(cudaGraphInstantiate(&exec, graph, 0));
    mem_must(cudaGraphUpload(exec, stream));
    mem_must(cudaGraphDestroy(graph));
    return exec;
}

#ifdef USE_NCCL
static moek_ep_nccl wire[RANKS];
static int nccl_path(const char *name)                 /* 0: none of that name */
{
    int path;
    for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++)
        if (!strcmp(name, moek_ep_nccl_path_name(path))) return path;
    return 0;
}
#endif
static void open_group(setup *s, moek_ep *ep, const moek_ep_config *group)
{
    const size_t size = moek_ep_window_size(group);
    const int me = group->rank;
#ifdef USE_NCCL
    if (s->path) {
        must(moek_ep_nccl_open(&wire[me], ep, group, nccl_comm(s->ranks, me), s->path), "open", wire[me].text);
        return;
    }
#endif
    s->base[me] = mem_alloc(1, size);
    mem_must(cudaMemset(s->base[me], 0, size));
    mem_must(cudaDeviceSynchronize());
    pthread_barrier_wait(&s->barrier);
    must(moek_ep_open(ep, group, s->base), "moek_ep_open", ep->why);
}
static void close_group(setup *s, int me)
{
#ifdef USE_NCCL
    if (s->path) { must(moek_ep_nccl_close(&wire[me]), "close", ""); return; }
#endif
    mem_free(1, s->base[me]);
}

static void *run_rank(void *p)
{
    rank *r = (rank *)p;
    setup *s = r->all;
    const int me = r->number;
    const size_t rows = (size_t)s->tokens;
    moek_ep_config group;
    moek_config config = s->config;
    moek_weights w;
    moek_args a;
    moek_step step;
    char why[512] = "";
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraphExec_t exec[2];
    uint64_t *stamps;
    float ms;
    int i;
    moek_ep *ep = (moek_ep *)malloc(sizeof *ep);
    moek_plan *plan = (moek_plan *)malloc(sizeof *plan);
    mem_must(cudaSetDevice(me % s->gpus));
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mem_must(cudaEventCreate(&begin)); mem_must(cudaEventCreate(&end));
    memset(&group, 0, sizeof group);
    group.rank = me; group.ranks = s->ranks; group.layer = &s->config;
    group.kind = s->kind; group.transport = MOEK_EP_GPU;
    group.timeout_ms = 5000;
    mem_must(cudaHostAlloc(&group.report, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(group.report, 0, MOEK_EP_REPORT);
    open_group(s, ep, &group);
    moek_ep_join(ep, &config);
    must(moek_plan_init(plan, &config), "moek_plan_init", plan->why);

    memset(&a, 0, sizeof a);
    a.tokens = s->tokens;
    a.x = mem_alloc(1, 2 * HIDDEN * rows);
    fill_k<<<256, 256>>>((uint16_t *)(size_t)a.x, HIDDEN * rows, 1 + (uint32_t)me);
    a.topk_ids = (int32_t *)mem_alloc(1, 4 * TOPK * rows);
    a.topk_weights = (float *)mem_alloc(1, 4 * TOPK * rows);
    a.y = mem_alloc(1, 2 * HIDDEN * rows);
    a.workspace_size = moek_workspace_size(plan);
    a.workspace = mem_alloc(1, a.workspace_size);
    mem_must(cudaMemset(a.workspace, 0, a.workspace_size));
    a.why = why; a.why_size = sizeof why;
    route(s, ep, me, a.topk_ids, a.topk_weights);
    memset(&w, 0, sizeof w);                           /* experts are not run: any address will do */
    w.w_up = w.w_down = a.x;
    if (s->quant == MOEK_FP8B128) w.w_up_scale = w.w_down_scale = (const float *)a.x;
    must(moek_plan_bind(plan, &w), "moek_plan_bind", plan->why);
    must(moek_begin(plan, &a, &step), "moek_begin", why);
    must(moek_route(&step, (moek_stream)stream), "moek_route", why);
    stamps = (uint64_t *)mem_alloc(1, 8 * OPERATIONS * STAMPS);
    exec[0] = record(&step, stream, stamps);
    exec[1] = record(&step, stream, NULL);
    mem_must(cudaStreamSynchronize(stream));

    for (i = -2; i < REPLAYS; i++) {
        pthread_barrier_wait(&s->barrier);
        mem_must(cudaGraphLaunch(exec[0], stream));
        mem_must(cudaStreamSynchronize(stream));
        if (i >= 0) mem_get(1, s->stamps[me] + i * OPERATIONS * STAMPS, stamps, 8 * OPERATIONS * STAMPS);
        pthread_barrier_wait(&s->barrier);
        mem_must(cudaEventRecord(begin, stream));
        mem_must(cudaGraphLaunch(exec[1], stream));
        mem_must(cudaEventRecord(end, stream));
        mem_must(cudaStreamSynchronize(stream));
        mem_must(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0) s->pair[me][i] = 1e3 * (double)ms / OPERATIONS;
    }
    if (moek_ep_poll(ep, NULL) != MOEK_OK) {
        char text[1024];
        moek_ep_describe(ep, text, sizeof text);
        printf("%s", text);
        exit(1);
    }
    pthread_barrier_wait(&s->barrier);                 /* nobody writes into windows any more */
    mem_must(cudaGraphExecDestroy(exec[0])); mem_must(cudaGraphExecDestroy(exec[1]));
    mem_must(cudaStreamDestroy(stream));
    mem_must(cudaEventDestroy(begin)); mem_must(cudaEventDestroy(end));
    close_group(s, me);
    mem_free(1, (void *)(size_t)a.x); mem_free(1, a.topk_ids); mem_free(1, a.topk_weights);
    mem_free(1, a.y); mem_free(1, a.workspace); mem_free(1, stamps);
    mem_must(cudaFreeHost(group.report));
    free(ep); free(plan);
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
/* The median and the 90th percentile of the slowest rank's time from stamp `from` to the next. */
static void slowest(const setup *s, int from, double *median, double *p90)
{
    double us[REPLAYS * OPERATIONS];
    int i, r, n = 0;
    for (i = 0; i < REPLAYS * OPERATIONS; i++) {
        if (i % OPERATIONS == 0) continue;             /* ranks do not start a graph at the same time */
        us[n] = 0;
        for (r = 0; r < s->ranks; r++) {
            const uint64_t *t = s->stamps[r] + i * STAMPS + from;
            const double time = 1e-3 * (double)(t[1] - t[0]);
            if (time > us[n]) us[n] = time;
        }
        n++;
    }
    qsort(us, (size_t)n, sizeof *us, ascending);
    *median = us[n / 2]; *p90 = us[n * 9 / 10];
}
static void line(const setup *s, const char *what, double median, double p90, const double *bytes)
{
    double most = 0, floor_us;
    int r;
    for (r = 0; r < s->ranks; r++) if (bytes[r] > most) most = bytes[r];
    floor_us = 1e6 * most / WIRE;
    printf("%6d  %-8s  %-11s  %-8s  %8.1f  %8.1f  %10.0f  %8.2f  %5.0f %%\n", s->tokens, moek_quant_name(s->quant),
           moek_ep_kind_name(s->kind), what, median, p90, most, floor_us, 100 * floor_us / median);
    fflush(stdout);
}

#ifdef USE_NCCL
/* NCCL's own: to all what the busiest rank sends, in equal parts; all tokens to all; rows of T added up. */
static void measure_nccl(const setup *s)
{
    const size_t row = s->quant == MOEK_FP8B128 ? HIDDEN + HIDDEN / 32 : 2 * HIDDEN, tokens = (size_t)s->tokens;
    size_t bytes[NCCL_KINDS];
    double us[NCCL_KINDS][2], most = 0;
    int i;
    for (i = 0; i < s->ranks; i++) if (s->sent[i] > most) most = s->sent[i];
    bytes[NCCL_ALLTOALL] = ((size_t)most / (size_t)(s->ranks - 1) + 15) / 16 * 16;
    bytes[NCCL_ALLGATHER] = tokens * row;
    bytes[NCCL_REDUCESCATTER] = tokens * 2 * HIDDEN;
    nccl_measure(s->ranks, bytes, us, ascending);
    for (i = 0; i < NCCL_KINDS; i++) {
        const double out = (double)bytes[i] * (s->ranks - 1), floor_us = 1e6 * out / WIRE;
        printf("%6d  %-8s  %-11s  %-8s  %8.1f  %8.1f  %10.0f  %8.2f  %5.0f %%\n", s->tokens,
               moek_quant_name(s->quant), "NCCL's", nccl_names[i], us[i][0], us[i][1], out, floor_us,
               100 * floor_us / us[i][0]);
    }
}
#endif

static void measure(int ranks, int gpus, int tokens, int quant, int kind, int path)
{
    static setup s;
    pthread_t thread[RANKS];
    rank r[RANKS];
    double median, p90, pairs[REPLAYS], both[RANKS];
    int i, k;
    memset(&s, 0, sizeof s);
    s.ranks = ranks; s.gpus = gpus; s.tokens = tokens; s.quant = quant; s.path = path;
    s.kind = kind ? kind : tokens > MOEK_EP_FEW_TOKENS ? MOEK_EP_ALLTOALL : MOEK_EP_LOW_LATENCY;
    s.config.hidden = HIDDEN; s.config.inter = INTER; s.config.experts = EXPERTS; s.config.topk = TOPK;
    s.config.quant = quant; s.config.act = MOEK_SILU; s.config.max_tokens = tokens;
    pthread_barrier_init(&s.barrier, NULL, (unsigned)ranks);
    for (i = 0; i < ranks; i++) {
        s.stamps[i] = (uint64_t *)calloc(REPLAYS * OPERATIONS * STAMPS, 8);
        r[i].all = &s; r[i].number = i;
        if (pthread_create(&thread[i], NULL, run_rank, &r[i])) abort();
    }
    for (i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    slowest(&s, 0, &median, &p90);
    line(&s, "dispatch", median, p90, s.sent);
    slowest(&s, 1, &median, &p90);
    line(&s, "combine", median, p90, s.back);
    for (i = 0; i < REPLAYS; i++)
        for (pairs[i] = 0, k = 0; k < ranks; k++) if (s.pair[k][i] > pairs[i]) pairs[i] = s.pair[k][i];
    for (k = 0; k < ranks; k++) both[k] = s.sent[k] + s.back[k];
    qsort(pairs, REPLAYS, sizeof *pairs, ascending);
    line(&s, "pair", pairs[REPLAYS / 2], pairs[REPLAYS * 9 / 10], both);
    for (i = 0; i < ranks; i++) free(s.stamps[i]);
    pthread_barrier_destroy(&s.barrier);
#ifdef USE_NCCL
    if (gpus >= ranks && !path) measure_nccl(&s);
#endif
}

static int kind_of(const char *name)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) if (!strcmp(name, moek_ep_kind_name(kind))) return kind;
    printf("bench_ep: neither a number of tokens nor a kind: %s\n", name);
    exit(1);
}

int main(int argc, char **argv)
{
    static const int quants[] = { MOEK_FP8B128, MOEK_BF16 }, usual[] = { 1, 128, 4096 };
    struct cudaDeviceProp p;
    int gpus = 0, ranks, i, q;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
#ifdef USE_NCCL
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    must_nccl(ncclGetUniqueId(&nccl_bench.id));
#endif
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) { printf("bench_ep: there is no GPU\n"); return 1; }
    if (gpus > RANKS) gpus = RANKS;
    ranks = gpus > 1 ? gpus : 2;
    mem_must(cudaGetDeviceProperties(&p, 0));
    printf("# %s, %d ranks on %d GPU%s, %s, hidden %d, %d experts, top-%d\n", p.name, ranks, gpus,
           gpus > 1 ? "s" : "", gpus > 1 ? "peer access" : "loopback: no wire", HIDDEN, EXPERTS, TOPK);
    printf("# medians of %d operations of the slowest rank, in CUDA graphs; floor at %.0f GB/s\n",
           REPLAYS * (OPERATIONS - 1), WIRE / 1e9);
    printf("tokens  format    kind         what            us       p90       bytes     floor  share\n");
    for (q = 0; q < 2; q++) {
        int kind = MOEK_EP_AUTO, path = 0;
        for (i = 0; i < 3 && argc < 2; i++) measure(ranks, gpus, usual[i], quants[q], kind, path);
        for (i = 1; i < argc; i++) {
            if (atoi(argv[i]) > 0) measure(ranks, gpus, atoi(argv[i]), quants[q], kind, path);
#ifdef USE_NCCL
            else if (nccl_path(argv[i]) && gpus >= ranks) {
                path = nccl_path(argv[i]);
                printf("# over NCCL: %s\n", argv[i]);
            }
#endif
            else kind = kind_of(argv[i]);
        }
    }
    return 0;
}
