/* ep_threads.c -- one MoE layer on several ranks, each with some of the experts; the ranks are threads of one process.
 *
 *   cc -O3 -Iinclude examples/ep_threads.c -pthread -lm -o ep_threads && ./ep_threads
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -x cu -Iinclude examples/ep_threads.c -o ep_threads && ./ep_threads
 *   ./ep_threads [RANKS]
 *
 * By cc they are on the CPU; by nvcc on a GPU each, or several on one, or, where there is none, on the CPU.  Every rank
 * runs the same few lines as a program with one rank does; what is new are the group and its window.  The
 * implementation is in this file, and of its kernels only those for bf16.  example.h has memory and a plain loop. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* pthread_barrier_t */
#endif
#define MOEK_QUANT MOEK_BF16
#define MOEK_IMPLEMENTATION
#include "moek_ep.h"
#include "example.h"
#include <pthread.h>

enum { HIDDEN = 256, INTER = 128, EXPERTS = 10, TOPK = 3, MAX_TOKENS = 16, MAX_RANKS = 10 };

/* What is the same for all, and where the ranks find each other's windows. */
typedef struct common {
    moek_config config;
    moek_ep_config group;
    uint16_t *up, *down;                               /* of all experts; a real rank would only load its own */
    void *window[MAX_RANKS];
    pthread_barrier_t ready;
    int gpus;
} common;

typedef struct rank { common *all; int number, tokens; double error; char kind[16]; } rank;

static void must(moek_status status, const char *what, const char *why)
{
    example_must(status == MOEK_OK, what, why[0] ? why : moek_status_text(status));
}

/* ---- GPUs, if there are any -------------------------------------------------------------------------------------- */

#ifdef EXAMPLE_CUDA
static void must_cuda(cudaError_t error, const char *what)
{
    example_must(error == cudaSuccess, what, cudaGetErrorString(error));
}
static int count_gpus(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) { (void)cudaGetLastError(); n = 0; }
    return n;
}
static void use(int device) { if (device >= 0) must_cuda(cudaSetDevice(device), "cudaSetDevice"); }
/* Ranks of a GPU must not wait for each other's streams. */
static moek_stream new_stream(int device)
{
    cudaStream_t stream = NULL;
    if (device >= 0) must_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return (moek_stream)stream;
}
/* Where kernels report what went wrong. */
static void *new_report(int device)
{
    void *p = NULL;
    if (device >= 0) must_cuda(cudaHostAlloc(&p, MOEK_EP_REPORT, cudaHostAllocPortable), "cudaHostAlloc");
    if (p) memset(p, 0, MOEK_EP_REPORT);
    return p;
}
static void wait_for(int device, moek_stream stream)
{
    if (device >= 0) must_cuda(cudaStreamSynchronize((cudaStream_t)stream), "the layer");
}
static void wait_for_zeros(int device) { if (device >= 0) must_cuda(cudaDeviceSynchronize(), "zeros"); }
#else
static int count_gpus(void) { return 0; }
static void use(int device) { (void)device; }
static moek_stream new_stream(int device) { (void)device; return NULL; }
static void *new_report(int device) { (void)device; return NULL; }
static void wait_for(int device, moek_stream stream) { (void)device; (void)stream; }
static void wait_for_zeros(int device) { (void)device; }
#endif
static int device_of(const common *s, int rank) { return s->gpus ? rank % s->gpus : -1; }

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* The rank's experts, in the group's order. */
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
static double error_of(const common *s, int device, const moek_args *args, const uint16_t *x)
{
    int32_t ids[MAX_TOKENS * TOPK];
    float weights[MAX_TOKENS * TOPK];
    uint16_t y[MAX_TOKENS * HIDDEN];
    double worst = 0;
    int t, k;
    example_get(device, ids, args->topk_ids, sizeof ids);
    example_get(device, weights, args->topk_weights, sizeof weights);
    example_get(device, y, args->y, sizeof y);
    for (t = 0; t < args->tokens; t++) {
        double want[HIDDEN] = { 0 }, error;
        for (k = t * TOPK; k < (t + 1) * TOPK; k++) {
            const size_t e = (size_t)ids[k];
            example_expert(want, x + t * HIDDEN, s->up + e * 2 * INTER * HIDDEN, s->down + e * HIDDEN * INTER, HIDDEN,
                           INTER, weights[k]);
        }
        error = example_error(y + t * HIDDEN, want, HIDDEN);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void *run_rank(void *p)
{
    rank *r = (rank *)p;
    common *s = r->all;
    moek_ep ep;
    moek_ep_config group = s->group;
    moek_config config = s->config;
    moek_plan plan;
    moek_weights weights;
    moek_args args;
    char why[512] = "";
    const int device = device_of(s, r->number);
    moek_stream stream;
    float logits[MAX_TOKENS * EXPERTS];
    uint16_t *x = example_random((size_t)MAX_TOKENS * HIDDEN, 1, 10 + (uint32_t)r->number);
    int i;
    for (i = 0; i < MAX_TOKENS * EXPERTS; i++) logits[i] = (float)((i + 31 * r->number) * 7919 % 1009) / 250.0f;

    /* 1. Open the group: waits for all ranks, and finds out if one was given something else. */
    use(device);
    stream = new_stream(device);
    group.rank = r->number;
    group.report = new_report(device);
    must(moek_ep_open(&ep, &group, s->window), "moek_ep_open", ep.why);

    /* 2. From here on as ever; join says which experts are here, and that rows have to travel. */
    must(moek_ep_join(&ep, &config), "moek_ep_join", "");
    must(moek_plan_init(&plan, &config), "moek_plan_init", plan.why);
    memset(&weights, 0, sizeof weights);
    weights.w_up = own(&ep, s->up, (size_t)2 * INTER * HIDDEN);
    weights.w_down = own(&ep, s->down, (size_t)HIDDEN * INTER);
    must(moek_plan_bind(&plan, &weights), "moek_plan_bind", plan.why);

    /* 3. Run: this rank's tokens in, its results out.  Every rank must call it, also one without tokens. */
    memset(&args, 0, sizeof args);
    args.tokens = r->tokens;
    args.x = example_new(device, x, sizeof(uint16_t) * MAX_TOKENS * HIDDEN);
    args.router_logits = example_new(device, logits, sizeof logits);
    args.topk_ids = (int32_t *)example_new(device, NULL, sizeof(int32_t) * MAX_TOKENS * TOPK);
    args.topk_weights = (float *)example_new(device, NULL, sizeof(float) * MAX_TOKENS * TOPK);
    args.y = example_new(device, NULL, sizeof(uint16_t) * MAX_TOKENS * HIDDEN);
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(device, NULL, args.workspace_size);
    args.why = why; args.why_size = sizeof why;
    wait_for_zeros(device);
    pthread_barrier_wait(&s->ready);                   /* example_new may wait for the GPU, and so for another rank */
    must(moek_run(&plan, &args, stream), "moek_run", why);

    /* 4. On a GPU: when the stream has been waited for, is all well? */
    wait_for(device, stream);
    must(moek_ep_poll(&ep, NULL), "moek_ep_poll", "");
    r->error = error_of(s, device, &args, x);
    strncpy(r->kind, moek_ep_kind_name(ep.config.kind), sizeof r->kind - 1);
    example_free(device, weights.w_up), example_free(device, weights.w_down), example_free(device, args.x);
    example_free(device, args.router_logits), example_free(device, args.topk_ids);
    example_free(device, args.topk_weights), example_free(device, args.y), example_free(device, args.workspace);
    free(x);
    return NULL;
}

int main(int argc, char **argv)
{
    const int ranks = argc > 1 ? atoi(argv[1]) : 4;
    pthread_t thread[MAX_RANKS];
    rank r[MAX_RANKS];
    common s;
    char text[2000];
    size_t size;
    int i, wrong = 0;
    example_must(ranks >= 1 && ranks <= MAX_RANKS, "RANKS", "1 to 10");

    memset(&s, 0, sizeof s);
    s.config.hidden = HIDDEN; s.config.inter = INTER; s.config.experts = EXPERTS; s.config.topk = TOPK;
    s.config.quant = MOEK_BF16; s.config.act = MOEK_SILU; s.config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    s.config.max_tokens = MAX_TOKENS;
    s.gpus = count_gpus();
    s.group.ranks = ranks;
    s.group.layer = &s.config;
    moek_ep_explain(&s.group, text, sizeof text);
    fputs(text, stdout);

    /* A window for each rank, zeroed, before anybody opens. */
    size = moek_ep_window_size(&s.group);
    example_must(size > 0, "moek_ep_window_size", "the group cannot be opened");
    for (i = 0; i < ranks; i++) {
        use(device_of(&s, i));
        s.window[i] = example_new(device_of(&s, i), NULL, size);
        wait_for_zeros(device_of(&s, i));
    }
    pthread_barrier_init(&s.ready, NULL, (unsigned)ranks);
    s.up = example_random((size_t)EXPERTS * 2 * INTER * HIDDEN, 0.1f, 1);
    s.down = example_random((size_t)EXPERTS * HIDDEN * INTER, 0.1f, 2);
    for (i = 0; i < ranks; i++) {
        memset(&r[i], 0, sizeof r[i]);
        r[i].all = &s;
        r[i].number = i;
        r[i].tokens = i == 1 ? 0 : MAX_TOKENS - 3 * i % MAX_TOKENS;                /* ranks need not have as many */
        example_must(!pthread_create(&thread[i], NULL, run_rank, &r[i]), "pthread_create", "failed");
    }
    for (i = 0; i < ranks; i++) {
        pthread_join(thread[i], NULL);
        printf("rank %d: %d tokens by %s, off by %.2e of a plain loop: %s\n", i, r[i].tokens, r[i].kind, r[i].error,
               r[i].error < 0.01 ? "ok" : "WRONG");
        wrong |= !(r[i].error < 0.01);
    }
    for (i = 0; i < ranks; i++) example_free(device_of(&s, i), s.window[i]);
    pthread_barrier_destroy(&s.ready);
    free(s.up), free(s.down);
    return wrong;
}
