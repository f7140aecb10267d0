/* demo_ep.c -- one Qwen3-30B-A3B MoE layer in fp8 with 128 x 128 blocks on N ranks, which are threads: on the GPUs that
 * are there, a GPU each or several on one, or on the CPU.
 *
 *   ./moek demo-ep [RANKS]                                     builds and runs it
 *   cc -O3 -march=native -Iinclude bench/demo_ep.c -o demo_ep -pthread -lm && ./demo_ep
 *   nvcc -x cu -gencode arch=compute_90a,code=sm_90a -Iinclude bench/demo_ep.c -o demo_ep && ./demo_ep
 *
 * Prints how the kind is chosen, and for each kind and way to combine: the error against the double-precision reference
 * of tests/oracle, whether the bits are those of one rank, and times (on GPUs of a launch and a wait).  Placement is
 * linear, so a rank's experts are a stretch of the whole; on the CPU ranks share its memory.  On one CPU or GPU ranks
 * only divide what it can do. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif
#ifndef DEMO_SPLIT
#ifndef __CUDACC__
#define MOEK_ARCH 0
#endif
#define MOEK_IMPLEMENTATION
#endif
#include "moek_ep.h"
#include <pthread.h>
#include <stdio.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "../tests/mem.h"
#include "../tests/oracle/ref.h"
#include "clock.h"
#include "fill.h"
#include "must.h"

enum { TOKENS = 16, RUNS = 3, RANKS = 16 };
static const double LIMIT = 1e-2;                      /* 6e-3 but for fp8 wgmma, which sums to 13 bits */

#if MEM_CUDA
static int count_gpus(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    return (void)cudaGetLastError(), 0;
}
static void use(int device) { mem_must(cudaSetDevice(device)); }
static moek_stream new_stream(void)
{
    cudaStream_t stream;
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return (moek_stream)stream;
}
static void finish(moek_stream stream) { mem_must(cudaStreamSynchronize((cudaStream_t)stream)); }
static void *new_report(void)
{
    void *p;
    mem_must(cudaHostAlloc(&p, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(p, 0, MOEK_EP_REPORT);
    return p;
}
static void zero(int gpu, void *p, size_t bytes)
{
    if (!gpu) { memset(p, 0, bytes); return; }
    mem_must(cudaMemset(p, 0, bytes));
    mem_must(cudaDeviceSynchronize());
}
#else
static int count_gpus(void) { return 0; }
static void use(int device) { (void)device; }
static moek_stream new_stream(void) { return NULL; }
static void finish(moek_stream stream) { (void)stream; }
static void *new_report(void) { return NULL; }
static void zero(int gpu, void *p, size_t bytes) { (void)gpu; memset(p, 0, bytes); }
#endif
/* On a GPU a copy there; else it is there. */
static void *put(int gpu, const void *host, size_t bytes)
{
    void *p;
    if (!gpu) return (void *)(size_t)host;
    p = mem_alloc(mem_where(gpu), bytes);
    mem_put(mem_where(gpu), p, host, bytes);
    return p;
}
static void drop(int gpu, const void *p) { if (gpu) mem_free(mem_where(gpu), (void *)(size_t)p); }

typedef struct whole {                                 /* the layer, and what one rank makes of it */
    moek_config config;
    int gpus;                                          /* 0: on the CPU */
    moek_weights w;
    uint16_t *x, *one, *y;
    int32_t ids[TOKENS * 32];
    float weights[TOKENS * 32];
    double *want, one_seconds;
    int ranks, first[RANKS + 1];
    moek_weights part[RANKS];                          /* a rank's experts */
    pthread_barrier_t together;
    moek_ep_config group;
    void *window[RANKS];
} whole;
typedef struct rank { whole *all; int number; double seconds; } rank;

static moek_args args_of(const whole *l, const moek_plan *plan, int first, int tokens)
{
    const int k = l->config.topk, h = l->config.hidden, gpu = l->gpus;
    const size_t n = (size_t)tokens;
    moek_args a;
    memset(&a, 0, sizeof a);
    a.tokens = tokens;
    a.x = put(gpu, l->x + first * h, 2 * n * (size_t)h);
    a.topk_ids = (int32_t *)put(gpu, l->ids + first * k, 4 * n * (size_t)k);
    a.topk_weights = (float *)put(gpu, l->weights + first * k, 4 * n * (size_t)k);
    a.y = put(gpu, l->y + first * h, 2 * n * (size_t)h);
    a.workspace_size = moek_workspace_size(plan);
    a.workspace = mem_alloc(mem_where(gpu), a.workspace_size);
    return a;
}
/* y back into the whole. */
static void end_args(const whole *l, const moek_args *a, int first)
{
    if (l->gpus)
        mem_get(MEM_DEVICE, l->y + first * l->config.hidden, a->y, 2 * (size_t)a->tokens * (size_t)l->config.hidden);
    mem_free(mem_where(l->gpus), a->workspace);
    drop(l->gpus, a->x); drop(l->gpus, a->topk_ids); drop(l->gpus, a->topk_weights); drop(l->gpus, a->y);
}

/* `experts` experts from `first` on. */
static moek_weights part_of(const whole *l, int first, int experts)
{
    const fill_sizes one = fill_sizes_of(&l->config, 1);
    const size_t f = (size_t)first, n = (size_t)experts;
    moek_weights w = l->w;
    w.w_up = put(l->gpus, (const uint8_t *)w.w_up + f * one.up, n * one.up);
    w.w_down = put(l->gpus, (const uint8_t *)w.w_down + f * one.down, n * one.down);
    w.w_up_scale = put(l->gpus, (const uint8_t *)w.w_up_scale + f * one.up_scale, n * one.up_scale);
    w.w_down_scale = put(l->gpus, (const uint8_t *)w.w_down_scale + f * one.down_scale, n * one.down_scale);
    return w;
}
static void end_part(const whole *l, const moek_weights *w)
{
    drop(l->gpus, w->w_up); drop(l->gpus, w->w_down); drop(l->gpus, w->w_up_scale); drop(l->gpus, w->w_down_scale);
}

static void make_layer(whole *l)
{
    const moek_config qwen = MOEK_QWEN3_30B_A3B;
    const moek_format *const f = moek_format_of(FORMAT_BLOCKED);
    const double up = 1 / sqrt((double)qwen.hidden), down = 1 / sqrt((double)qwen.inter);
    fill_sizes n;
    int t, k;
    l->config = qwen;
    l->config.quant = f->number;
    l->config.max_tokens = TOKENS;
    l->config.exclude = l->gpus ? 1u << MOEK_BACKEND_CPU : MOEK_BACKENDS_GPU;
    l->config.batch_invariant = l->gpus > 0;           /* one tile for all sizes: bits can be compared */
    n = fill_sizes_of(&l->config, qwen.experts);
    l->w.w_up = fill_host(n.up, fill_weights(f, MOEK_DTYPE_BF16, up), 1);
    l->w.w_down = fill_host(n.down, fill_weights(f, MOEK_DTYPE_BF16, down), 2);
    l->w.w_up_scale = fill_host(n.up_scale, fill_scales(f, MOEK_DTYPE_BF16, up), 3);
    l->w.w_down_scale = fill_host(n.down_scale, fill_scales(f, MOEK_DTYPE_BF16, down), 4);
    l->x = (uint16_t *)fill_host(2 * (size_t)(TOKENS * qwen.hidden), fill_t(MOEK_DTYPE_BF16, 1), 5);
    l->y = (uint16_t *)mem_alloc(0, 2 * (size_t)(TOKENS * qwen.hidden));
    l->one = (uint16_t *)mem_alloc(0, 2 * (size_t)(TOKENS * qwen.hidden));
    l->want = (double *)malloc(sizeof(double) * (size_t)(TOKENS * qwen.hidden));
    for (t = 0; t < TOKENS; t++) {
        for (k = 0; k < qwen.topk; k++) {              /* 37 and 16 apart: all of a token's are different */
            l->ids[t * qwen.topk + k] = (37 * t + 16 * k + (int)(fill_hash((uint64_t)(t * 32 + k), 6) % 16)) % 128;
            l->weights[t * qwen.topk + k] = 1.0f / (float)qwen.topk;
        }
    }
}

static void one_rank(whole *l)
{
    const moek_weights w = part_of(l, 0, l->config.experts);
    const moek_stream stream = new_stream();
    moek_plan plan;
    moek_args a;
    char why[256] = "";
    ref_layer_args r;
    int i;
    must(moek_plan_init(&plan, &l->config), "moek_plan_init", plan.why);
    must(moek_plan_bind(&plan, &w), "moek_plan_bind", plan.why);
    a = args_of(l, &plan, 0, TOKENS);
    a.why = why; a.why_size = sizeof why;
    for (i = 0; i <= RUNS; i++) {                      /* the first warms up */
        const double start = seconds();
        must(moek_run(&plan, &a, stream), "moek_run", why);
        finish(stream);
        if (i == 1 || (i && seconds() - start < l->one_seconds)) l->one_seconds = seconds() - start;
    }
    end_args(l, &a, 0);
    end_part(l, &w);
    memcpy(l->one, l->y, 2 * (size_t)(TOKENS * l->config.hidden));
    memset(&r, 0, sizeof r);
    r.tokens = TOKENS; r.hidden = l->config.hidden; r.inter = l->config.inter; r.slots = l->config.topk;
    r.experts = l->config.experts; r.format = moek_format_of(l->config.quant);
    r.dtype = plan.config.dtype; r.act = l->config.act;
    r.alpha = plan.config.alpha; r.beta = plan.config.beta; r.limit = plan.config.limit;
    r.up_layout = plan.config.up_layout;
    r.x = l->x; r.ids = l->ids; r.weights = l->weights; r.w = &l->w;
    ref_layer(&r, l->want);
}

static void *run_rank(void *p)
{
    rank *r = (rank *)p;
    whole *l = r->all;
    moek_config config = l->config;
    moek_ep_config group = l->group;
    moek_ep ep;
    moek_plan plan;
    moek_args a;
    moek_stream stream;
    char why[512] = "";
    int i;
#ifdef _OPENMP
    omp_set_num_threads(omp_get_num_procs() / l->ranks > 1 ? omp_get_num_procs() / l->ranks : 1);
#endif
    if (l->gpus) use(r->number % l->gpus);
    stream = new_stream();
    group.rank = r->number;
    group.report = new_report();
    must(moek_ep_open(&ep, &group, l->window), "moek_ep_open", ep.why);
    must(moek_ep_join(&ep, &config), "moek_ep_join", "");
    must(moek_plan_init(&plan, &config), "moek_plan_init", plan.why);
    if (!l->part[r->number].w_up)                      /* the same ones in all groups */
        l->part[r->number] = part_of(l, moek_ep_expert(&ep, r->number, 0), ep.local_experts);
    must(moek_plan_bind(&plan, &l->part[r->number]), "moek_plan_bind", plan.why);
    a = args_of(l, &plan, l->first[r->number], l->first[r->number + 1] - l->first[r->number]);
    a.why = why; a.why_size = sizeof why;
    pthread_barrier_wait(&l->together);                /* so would allocations */
    for (i = 0; i <= RUNS; i++) {
        const double start = seconds();
        must(moek_run(&plan, &a, stream), "moek_run", why);
        finish(stream);
        if (i == 1 || (i && seconds() - start < r->seconds)) r->seconds = seconds() - start;
    }
    must(moek_ep_poll(&ep, NULL), "moek_ep_poll", "");
    pthread_barrier_wait(&l->together);                /* frees would wait for other ranks' kernels */
    end_args(l, &a, l->first[r->number]);
    return NULL;
}

static int many_ranks(whole *l, int kind, int combine)
{
    static const char *const names[] = { "reduced", "reduced f32", "exact" };
    const size_t n = (size_t)(TOKENS * l->config.hidden);
    pthread_t thread[RANKS];
    rank r[RANKS];
    double slowest = 0;
    ref_distance d;
    int i, same, bad;
    l->group.kind = kind;
    l->group.combine = combine;
    for (i = 0; i < l->ranks; i++) {
        const size_t size = moek_ep_window_size(&l->group);
        if (l->gpus) use(i % l->gpus);
        l->window[i] = mem_alloc(mem_where(l->gpus), size);
        zero(l->gpus, l->window[i], size);
    }
    pthread_barrier_init(&l->together, NULL, (unsigned)l->ranks);
    memset(l->y, 0, 2 * n);
    for (i = 0; i < l->ranks; i++) {
        r[i].all = l;
        r[i].number = i;
        r[i].seconds = 0;
        if (pthread_create(&thread[i], NULL, run_rank, &r[i])) exit(1);
    }
    for (i = 0; i < l->ranks; i++) {
        pthread_join(thread[i], NULL);
        if (r[i].seconds > slowest) slowest = r[i].seconds;
    }
    for (i = 0; i < l->ranks; i++) {
        if (l->gpus) use(i % l->gpus);
        mem_free(mem_where(l->gpus), l->window[i]);
    }
    pthread_barrier_destroy(&l->together);
    d = ref_compare_t(l->y, l->want, n, MOEK_DTYPE_BF16);
    same = !memcmp(l->y, l->one, 2 * n);
    bad = !(d.rel_l2 < LIMIT && d.same_nonfinite) || (combine == MOEK_EP_EXACT && !same);
    printf("%-12s %-12s %8.2f ms  relative L2 error %.2e  bits of one rank: %s%s\n", moek_ep_kind_name(kind),
           names[combine], 1e3 * slowest, d.rel_l2, same ? "yes" : "no", bad ? "  FAILED" : "");
    return bad;
}

int main(int argc, char **argv)
{
    static whole l;
    const int ranks = argc > 1 ? atoi(argv[1]) : 4;
    char text[4000];
    int i, kind, combine, bad = 0;
    if (ranks < 1 || ranks > RANKS) { printf("demo_ep [RANKS]: 1 to %d\n", (int)RANKS); return 1; }
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);    /* ranks that share a GPU: a queue for each stream, and */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);         /* no kernel to load while one waits */
    l.gpus = count_gpus();
    make_layer(&l);
    l.ranks = l.group.ranks = ranks;
    l.group.layer = &l.config;
    for (i = 0; i < ranks; i++) {                      /* rank 1 has no tokens; the others unequal numbers of them */
        const int share = TOKENS / ranks + (i % 2 ? -1 : 1);
        l.first[i + 1] = i == ranks - 1 ? TOKENS : l.first[i] + (i == 1 || share < 0 ? 0 : share);
        if (l.first[i + 1] > TOKENS) l.first[i + 1] = TOKENS;
    }
    printf("Qwen3-30B-A3B, one MoE layer in fp8b128, %d tokens:", (int)TOKENS);
    for (i = 0; i < ranks; i++) printf(" %d", l.first[i + 1] - l.first[i]);
    moek_ep_explain(&l.group, text, sizeof text);
    printf(" on ranks 0 to %d, on %d %s\n", ranks - 1, l.gpus > ranks ? ranks : l.gpus ? l.gpus : 1,
           l.gpus > 1 ? "GPUs" : l.gpus ? "GPU" : "CPU");
    printf("%s\n", text);
    one_rank(&l);
    printf("%-12s %-12s %8.2f ms\n", "one rank", "", 1e3 * l.one_seconds);
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++) bad |= many_ranks(&l, kind, combine);
    puts(bad ? "\nFAILED: an error is above 1e-2, or exact has other bits than one rank" : "\nok");
    for (i = 0; i < ranks; i++) end_part(&l, &l.part[i]);
    mem_free(0, (void *)(size_t)l.w.w_up); mem_free(0, (void *)(size_t)l.w.w_down);
    mem_free(0, (void *)(size_t)l.w.w_up_scale); mem_free(0, (void *)(size_t)l.w.w_down_scale);
    mem_free(0, l.x); mem_free(0, l.y); mem_free(0, l.one);
    free(l.want);
    return bad;
}
