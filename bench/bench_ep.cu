/* bench_ep.cu -- what the exchange of expert parallelism costs on GPUs, a thread and a rank a GPU; and whole layers.
 *
 *   ./moek bench-ep [KIND | exchange | halves | FORMAT | ranks=N | TOKENS ...]      of a rank, by default 1 128 4096
 *   nvcc -std=c++17 -O2 -arch=sm_90a -Iinclude bench/bench_ep.cu -o bench_ep && ./bench_ep
 *
 * DeepSeek-V3's sizes: hidden 7168, inter 2048, 256 experts, top-8, each token to 8 experts at random; windows by peer
 * access, on all GPUs there are.  On one GPU two ranks share it: that shows the kernels, and no wire.  ranks=N (1, 2, 4
 * or 8): so many, whatever GPUs there are.  KIND is that of the tokens behind it; without one up to 256 tokens go by
 * low_latency, more by alltoall.  FORMAT: any, several of them one after the other (by default fp8b128, then bf16).
 * exchange: no experts, for the tokens behind it.
 *
 * Each rank replays CUDA graphs of OPERATIONS operations (LAYERS where there are experts).  Lines:
 *     dispatch   prepare_send and prepare_receive, between clock stamps, which are kernels of one thread: the time of a
 *                stamp is in the figure, which is the median over operations of the slowest rank's time
 *     combine    finalize_send and finalize_receive, likewise
 *     experts    the experts alone, on the rows that arrived; likewise
 *     sum        of these three
 *     pair       dispatch and combine, from graphs with a stamp before the first and behind the last: an operation's
 *                mean, median over replays of the slowest rank's
 *     layer      the whole; likewise.  And the relative L2 distance of one token to the double reference
 *     halves     (where asked for) the same in two halves on two handles and streams: the exchange of one beside the
 *                experts of the other
 * The floor: bytes to the busiest peer's side at WIRE; of experts as in bench.cu; both for the whole.  Where there are
 * experts the GPU rests before each graph, so that all meet the same clock.
 *
 * Compiled with -DUSE_NCCL, and with a GPU a rank, lines of NCCL's own collectives follow, timed like pair: alltoall of
 * the bytes that the busiest rank sends, allgather of all rows, reduce-scatter of rows of bf16.  And the words window,
 * ipc and sends (moek_ep_nccl.h) are taken: so groups are opened for the tokens behind them. */
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
#include "clock.h"
#include "measure.h"
#include "must.h"

enum { HIDDEN = 7168, INTER = 2048, EXPERTS = 256, TOPK = 8, RANKS = 8 };
enum { OPERATIONS = 21, LAYERS = 7, REPLAYS = 20, REST = 30 };         /* ms of rest */
enum { STAMPED, PAIR, ALONE, LAYER, GRAPHS };          /* graphs of a rank: the exchange, the experts, both */
enum { DISPATCH, COMBINE, SPANS };                     /* between stamps; of ALONE: the first */
static const double WIRE = 370e9;                      /* bytes a second that plain stores reach on an H200's NVLink */

/* ---- medians ----------------------------------------------------------------------------------------------------- */

typedef struct spread { double median, p90; } spread;
static spread spread_of(double *us, int n)
{
    spread r;
    qsort(us, (size_t)n, sizeof *us, ascending);
    r.median = us[n / 2]; r.p90 = us[n * 9 / 10];
    return r;
}
/* Over replays, of the slowest rank's time. */
static spread slowest_of(int ranks, const double us[RANKS][REPLAYS])
{
    double slowest[REPLAYS];
    int i, r;
    for (i = 0; i < REPLAYS; i++)
        for (slowest[i] = 0, r = 0; r < ranks; r++) if (us[r][i] > slowest[i]) slowest[i] = us[r][i];
    return spread_of(slowest, REPLAYS);
}
static __global__ void stamp_k(uint64_t *to)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(t));
    *to = t;
}
/* Microseconds from the one stamp to the other, of one replay. */
static double replay(cudaGraphExec_t exec, cudaStream_t stream, const uint64_t *stamps)
{
    uint64_t t[2];
    mem_must(cudaGraphLaunch(exec, stream));
    mem_must(cudaStreamSynchronize(stream));
    mem_get(MEM_DEVICE, t, stamps, sizeof t);
    return 1e-3 * (double)(t[1] - t[0]);
}
static cudaGraphExec_t captured(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    mem_must(cudaStreamEndCapture(stream, &graph));
    mem_must(cudaGraphInstantiate(&exec, graph, 0));
    mem_must(cudaGraphUpload(exec, stream));
    mem_must(cudaGraphDestroy(graph));
    return exec;
}
#ifdef USE_NCCL
#include "bench_nccl.h"
#endif

/* ---- a cell ------------------------------------------------------------------------------------------------------ */

typedef struct setup {
    int ranks, gpus, tokens, quant, kind, path;        /* path: over NCCL; 0: peer access */
    int layers, halves;                                /* with experts; only in two halves */
    moek_config config;                                /* of a half, if so */
    void *base[RANKS];
    pthread_barrier_t barrier;
    double us[GRAPHS][RANKS][REPLAYS];                 /* an operation's mean */
    double span[GRAPHS][SPANS][RANKS][REPLAYS * OPERATIONS];           /* of STAMPED and ALONE, us */
    double sent[RANKS], back[RANKS];                   /* bytes to other ranks */
    int rows[RANKS][EXPERTS];                          /* of each rank for each expert */
    double error;
} setup;
typedef struct rank { setup *all; int number; } rank;
static moek_weights weights[RANKS];                    /* kept from cell to cell ... */
static int weights_are[RANKS];                         /* ... of a format */

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
        for (k = 0; k < TOPK; k++) {
            w[t * TOPK + k] = 1.0f / TOPK;
            s->rows[me][id[t * TOPK + k]]++;
        }
    }
    s->sent[me] = rows * (ep->row_bytes + ep->scale_bytes + 4 + 8 * TOPK);
    s->back[me] = there * 2 * HIDDEN;
    mem_put(MEM_DEVICE, ids, id, sizeof(int32_t) * TOPK * (size_t)s->tokens);
    mem_put(MEM_DEVICE, weights, w, sizeof(float) * TOPK * (size_t)s->tokens);
    free(id); free(w);
}

static void run_experts(moek_step *step, cudaStream_t stream)
{
    must(moek_experts_apply(step, (moek_stream)stream), "experts", step->args.why);
}
static void run_prepare(moek_step *step, cudaStream_t stream)
{
    must(moek_prepare(step, (moek_stream)stream), "prepare", step->args.why);
}
static void run_finalize(moek_step *step, cudaStream_t stream)
{
    must(moek_finalize(step, (moek_stream)stream), "finalize", step->args.why);
}
static int operations_of(int what) { return what < ALONE ? OPERATIONS : LAYERS; }
/* Ranks start graphs at different times: an operation that is not timed goes ahead. */
static void begin(moek_step *step, cudaStream_t stream, uint64_t *stamps)
{
    mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run_prepare(step, stream);
    run_finalize(step, stream);
    stamp_k<<<1, 1, 0, stream>>>(stamps);
}
static cudaGraphExec_t end(cudaStream_t stream, uint64_t *stamps)
{
    stamp_k<<<1, 1, 0, stream>>>(stamps + 1);
    return captured(stream);
}
static cudaGraphExec_t record(int what, moek_step *step, cudaStream_t stream, uint64_t *stamps)
{
    uint64_t *at = stamps + 2;
    int i;
    begin(step, stream, stamps);
    for (i = 0; i < operations_of(what); i++) {
        if (what == STAMPED || what == ALONE) stamp_k<<<1, 1, 0, stream>>>(at++);
        if (what != ALONE) run_prepare(step, stream);
        if (what == STAMPED) stamp_k<<<1, 1, 0, stream>>>(at++);
        if (what >= ALONE) run_experts(step, stream);
        if (what != ALONE) run_finalize(step, stream);
        if (what == STAMPED || what == ALONE) stamp_k<<<1, 1, 0, stream>>>(at++);
    }
    return end(stream, stamps);
}
static void keep_spans(setup *s, int what, int me, int replay, const uint64_t *stamps)
{
    const int n = operations_of(what), spans = what == STAMPED ? 2 : 1;
    uint64_t t[2 + 3 * OPERATIONS], *at = t + 2;
    int i, k;
    mem_get(MEM_DEVICE, t, stamps, sizeof t);
    for (i = 0; i < n; i++, at += spans + 1)
        for (k = 0; k < spans; k++)
            s->span[what][k][me][replay * n + i] = 1e-3 * (double)(at[k + 1] - at[k]);
}
/* step[0] on the one stream, step[1] on the other; kernels that wait for rows come when the other's experts are done */
static cudaGraphExec_t record_halves(moek_step *step, const cudaStream_t *stream, uint64_t *stamps)
{
    const moek_stream m[2] = { (moek_stream)stream[0], (moek_stream)stream[1] };
    cudaEvent_t event;
    int i;
#define THEN(from, to) \
    mem_must(cudaEventRecord(event, stream[from])); mem_must(cudaStreamWaitEvent(stream[to], event, 0))
#define DO(what, h) must(what(&step[h], m[h]), #what, step[h].args.why)
    mem_must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    begin(&step[0], stream[0], stamps);
    for (i = 0; i < LAYERS; i++) {
        DO(moek_prepare, 0);
        THEN(0, 1);
        DO(moek_prepare_send, 1);
        DO(moek_experts_apply, 0);
        THEN(0, 1);
        DO(moek_prepare_receive, 1);
        DO(moek_finalize_send, 0);
        DO(moek_experts_apply, 1);
        THEN(1, 0);
        DO(moek_finalize_receive, 0);
        DO(moek_finalize, 1);
        THEN(1, 0);
    }
#undef THEN
#undef DO
    mem_must(cudaEventDestroy(event));
    return end(stream[0], stamps);
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
    s->base[me] = mem_alloc(MEM_DEVICE, size);
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
    mem_free(MEM_DEVICE, s->base[me]);
}

/* Of this rank's experts, on its GPU. */
static void give_weights(const setup *s, const moek_ep *ep, int me)
{
    if (weights_are[me] == s->quant || !s->layers) return;
    free_weights(&weights[me]);
    weights[me] = filled_weights(&s->config, ep->local_experts, 10 * (uint32_t)me);
    weights_are[me] = s->quant;
}
/* Experts are not run: any address will do. */
static void any_weights(moek_weights *w, int quant, const void *at)
{
    const moek_format *const f = moek_format_of(quant);
    w->w_up = w->w_down = at;
    if (format_scaled(f)) w->w_up_scale = w->w_down_scale = at;
    if (f->global_scale) w->w_up_global_scale = w->w_down_global_scale = (const float *)at;
    if (f->static_x) w->x_scale = w->h_scale = (const float *)at;
}
/* The last token of this rank. */
static double error_of(const setup *s, const moek_plan *plan, int me, const uint16_t *x, const uint16_t *y)
{
    const int owns = EXPERTS / s->ranks;
    const size_t at = (size_t)(s->tokens - 1) * HIDDEN;
    moek_weights slot[TOPK];
    float weight[TOPK];
    int32_t ids[TOPK];
    int k;
    choose(ids, me, s->tokens - 1);
    for (k = 0; k < TOPK; k++) {
        slot[k] = weights_of(&plan->config, &weights[ids[k] / owns], (size_t)(ids[k] % owns));
        weight[k] = 1.0f / TOPK;
    }
    return error_of_token(&plan->config, slot, weight, x + at, y + at).rel_l2;
}

static void *run_rank(void *p)
{
    rank *r = (rank *)p;
    setup *s = r->all;
    const int me = r->number, steps = s->halves ? 2 : 1, first = s->halves ? LAYER : STAMPED;
    const int graphs = s->layers ? GRAPHS : ALONE;
    const size_t rows = (size_t)s->tokens;
    moek_ep_config group;
    moek_config config = s->config;
    moek_weights w;
    moek_args a;
    moek_step step[2];
    char why[512] = "";
    cudaStream_t stream[2];
    cudaGraphExec_t exec[GRAPHS];
    void *workspace[2] = { NULL, NULL };
    uint64_t *stamps;
    int i, g;
    moek_ep *ep = (moek_ep *)malloc(sizeof *ep);
    moek_plan *plan = (moek_plan *)malloc(sizeof *plan);
    mem_must(cudaSetDevice(me % s->gpus));
    for (i = 0; i < 2; i++) mem_must(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
    memset(&group, 0, sizeof group);
    group.rank = me; group.ranks = s->ranks; group.layer = &s->config;
    group.kind = s->kind; group.transport = MOEK_EP_GPU;
    group.handles = steps;
    group.timeout_ms = 5000;
    mem_must(cudaHostAlloc(&group.report, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(group.report, 0, MOEK_EP_REPORT);
    open_group(s, ep, &group);
    moek_ep_join(ep, &config);
    must(moek_plan_init(plan, &config), "moek_plan_init", plan->why);

    memset(&a, 0, sizeof a);
    a.x = filled(2 * HIDDEN * rows, fill_t(MOEK_DTYPE_BF16, 1), 1000 + (uint32_t)me);
    a.topk_ids = (int32_t *)mem_alloc(MEM_DEVICE, 4 * TOPK * rows);
    a.topk_weights = (float *)mem_alloc(MEM_DEVICE, 4 * TOPK * rows);
    a.y = mem_alloc(MEM_DEVICE, 2 * HIDDEN * rows);
    a.workspace_size = moek_workspace_size(plan);
    a.why = why; a.why_size = sizeof why;
    route(s, ep, me, a.topk_ids, a.topk_weights);
    give_weights(s, ep, me);
    w = weights[me];
    if (!s->layers) any_weights(&w, s->quant, a.x);
    must(moek_plan_bind(plan, &w), "moek_plan_bind", plan->why);
    for (i = 0; i < steps; i++) {
        const size_t from = i ? rows / 2 : 0;
        moek_args half = a;
        half.tokens = (int)(i ? rows - from : rows / (size_t)steps);
        half.handle = i;
        half.x = (const char *)a.x + 2 * HIDDEN * from;
        half.y = (char *)a.y + 2 * HIDDEN * from;
        half.topk_ids += from * TOPK;
        half.topk_weights += from * TOPK;
        half.workspace = workspace[i] = mem_alloc(MEM_DEVICE, a.workspace_size);
        mem_must(cudaMemset(workspace[i], 0, a.workspace_size));
        mem_must(cudaStreamSynchronize(NULL));         /* and all that is filled */
        must(moek_begin(plan, &half, &step[i]), "moek_begin", why);
        must(moek_route(&step[i], (moek_stream)stream[0]), "moek_route", why);
    }
    stamps = (uint64_t *)mem_alloc(MEM_DEVICE, 8 * (2 + 3 * OPERATIONS));
    for (g = first; g < graphs; g++)
        exec[g] = s->halves ? record_halves(step, stream, stamps) : record(g, step, stream[0], stamps);
    mem_must(cudaStreamSynchronize(stream[0]));

    for (i = -2; i < REPLAYS; i++)
        for (g = first; g < graphs; g++) {
            double us;
            if (s->layers) rest(REST);
            pthread_barrier_wait(&s->barrier);
            us = replay(exec[g], stream[0], stamps) / operations_of(g);
            if (i >= 0) s->us[g][me][i] = us;
            if (i >= 0 && (g == STAMPED || g == ALONE)) keep_spans(s, g, me, i, stamps);
        }
    if (moek_ep_poll(ep, NULL) != MOEK_OK) {
        char text[1024];
        moek_ep_describe(ep, text, sizeof text);
        printf("%s", text);
        fflush(stdout);
        _Exit(1);                                      /* not exit: another rank may be here, too */
    }
    pthread_barrier_wait(&s->barrier);                 /* nobody writes into windows any more */
    if (s->layers && me == s->ranks - 1) s->error = error_of(s, plan, me, (const uint16_t *)a.x, (uint16_t *)a.y);
    for (g = first; g < graphs; g++) mem_must(cudaGraphExecDestroy(exec[g]));
    for (i = 0; i < 2; i++) {
        mem_must(cudaStreamDestroy(stream[i]));
        mem_free(MEM_DEVICE, workspace[i]);
    }
    close_group(s, me);
    mem_free(MEM_DEVICE, (void *)(size_t)a.x); mem_free(MEM_DEVICE, a.topk_ids); mem_free(MEM_DEVICE, a.topk_weights);
    mem_free(MEM_DEVICE, a.y); mem_free(MEM_DEVICE, stamps);
    mem_must(cudaFreeHost(group.report));
    free(ep); free(plan);
    return NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Over operations, of the slowest rank's time. */
static spread stamped(const setup *s, int what, int k)
{
    double us[REPLAYS * OPERATIONS];
    const int n = REPLAYS * operations_of(what);
    int i, r;
    for (i = 0; i < n; i++)
        for (us[i] = 0, r = 0; r < s->ranks; r++) if (s->span[what][k][r][i] > us[i]) us[i] = s->span[what][k][r][i];
    return spread_of(us, n);
}
/* bytes: that the busiest rank sends; reads of weights where there are experts. */
static void line(const setup *s, const char *kind, const char *what, spread us, double bytes, double floor_us)
{
    printf("%6d  %-11s  %-11s  %-10s  %8.1f  %8.1f  %10.0f  %8.2f  %5.0f %%", s->tokens, moek_quant_name(s->quant),
           kind, what, us.median, us.p90, bytes, floor_us, 100 * floor_us / us.median);
    if (!strcmp(what, "layer") || !strcmp(what, "halves")) printf("  off by %.1e", s->error);
    printf("\n");
    fflush(stdout);
}
static double most(const setup *s, const double *bytes)
{
    double n = 0;
    int r;
    for (r = 0; r < s->ranks; r++) if (bytes[r] > n) n = bytes[r];
    return n;
}
/* Of the rank that has most to do: bytes of weights that are needed; returns the floor. */
static double floor_of_experts(const setup *s, double *bytes)
{
    const fill_sizes one = fill_sizes_of(&s->config, 1);
    const int owns = EXPERTS / s->ranks;
    double floor_us = 0;
    int r, e;
    *bytes = 0;
    for (r = 0; r < s->ranks; r++) {
        double used = 0, rows = 0, us;
        for (e = r * owns; e < (r + 1) * owns; e++) {
            int p, n = 0;
            for (p = 0; p < s->ranks; p++) n += s->rows[p][e];
            rows += n;
            used += n > 0;
        }
        used *= (double)(one.up + one.down);
        us = floor_of(used, 6.0 * rows * HIDDEN * INTER, format_quantizes(moek_format_of(s->quant)));
        if (used > *bytes) *bytes = used;
        if (us > floor_us) floor_us = us;
    }
    return floor_us;
}
static void lines(const setup *s)
{
    const char *const kind = moek_ep_kind_name(s->kind);
    const double sent = most(s, s->sent), back = most(s, s->back), wire = 1e6 * (sent + back) / WIRE;
    double bytes, floor_us;
    spread part[3], sum = { 0, 0 };
    int i;
    if (!s->halves) {
        line(s, kind, "dispatch", part[0] = stamped(s, STAMPED, DISPATCH), sent, 1e6 * sent / WIRE);
        line(s, kind, "combine", part[1] = stamped(s, STAMPED, COMBINE), back, 1e6 * back / WIRE);
        line(s, kind, "pair", slowest_of(s->ranks, s->us[PAIR]), sent + back, wire);
    }
    if (!s->layers) return;
    floor_us = floor_of_experts(s, &bytes);
    if (!s->halves) {
        line(s, kind, "experts", part[2] = stamped(s, ALONE, 0), bytes, floor_us);
        for (i = 0; i < 3; i++) { sum.median += part[i].median; sum.p90 += part[i].p90; }
        line(s, kind, "sum", sum, sent + back + bytes, wire + floor_us);
    }
    line(s, kind, s->halves ? "halves" : "layer", slowest_of(s->ranks, s->us[LAYER]), sent + back + bytes,
         wire + floor_us);
    if (!(s->error > 0 && s->error < 0.03)) {          /* (0: nothing but zeros was compared) */
        printf("bench_ep: that is wrong\n");
        exit(1);
    }
}

#ifdef USE_NCCL
/* NCCL's own: to all what the busiest rank sends, in equal parts; all tokens to all; rows of T added up. */
static void measure_nccl(const setup *s)
{
    const moek_format *const f = moek_format_of(s->quant);
    const size_t row = moek_element_bytes(f->x, HIDDEN) + moek_scale_bytes(&f->x_scale, 1, HIDDEN);
    const size_t tokens = (size_t)s->tokens;
    size_t bytes[NCCL_KINDS];
    spread us[NCCL_KINDS];
    int i;
    bytes[NCCL_ALLTOALL] = ((size_t)most(s, s->sent) / (size_t)(s->ranks - 1) + 15) / 16 * 16;
    bytes[NCCL_ALLGATHER] = tokens * row;
    bytes[NCCL_REDUCESCATTER] = tokens * 2 * HIDDEN;
    nccl_measure(s->ranks, bytes, us);
    for (i = 0; i < NCCL_KINDS; i++) {
        const double out = (double)bytes[i] * (s->ranks - 1);
        line(s, "NCCL's", nccl_names[i], us[i], out, 1e6 * out / WIRE);
    }
}
#endif

typedef struct asked { int kind, path, layers, halves; } asked;
static void measure(int ranks, int gpus, int tokens, int quant, const asked *a)
{
    static setup s;
    pthread_t thread[RANKS];
    rank r[RANKS];
    int i;
    memset(&s, 0, sizeof s);
    s.ranks = ranks; s.gpus = gpus; s.tokens = tokens; s.quant = quant; s.path = a->path;
    s.halves = a->halves && tokens > 1; s.layers = a->layers || s.halves;
    s.kind = a->kind ? a->kind : tokens > MOEK_EP_FEW_TOKENS ? MOEK_EP_ALLTOALL : MOEK_EP_LOW_LATENCY;
    s.config.hidden = HIDDEN; s.config.inter = INTER; s.config.experts = EXPERTS; s.config.topk = TOPK;
    s.config.quant = quant; s.config.block = moek_format_of(quant)->block[0]; s.config.act = MOEK_SILU;
    s.config.max_tokens = s.halves ? (tokens + 1) / 2 : tokens;
    pthread_barrier_init(&s.barrier, NULL, (unsigned)ranks);
    for (i = 0; i < ranks; i++) {
        r[i].all = &s; r[i].number = i;
        if (pthread_create(&thread[i], NULL, run_rank, &r[i])) abort();
    }
    for (i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    lines(&s);
    pthread_barrier_destroy(&s.barrier);
#ifdef USE_NCCL
    if (ranks > 1 && gpus >= ranks && !a->path && !s.halves) measure_nccl(&s);
#endif
}

/* A word that is no number: what it asks for. */
static void ask(asked *a, const char *word, int gpus, int ranks)
{
    int kind;
#ifdef USE_NCCL
    if (nccl_path(word) && gpus >= ranks) {
        a->path = nccl_path(word);
        printf("# over NCCL: %s\n", word);
        return;
    }
#else
    (void)gpus; (void)ranks;
#endif
    if (!strncmp(word, "ranks=", 6)) return;
    if (!strcmp(word, "exchange")) { a->layers = a->halves = 0; return; }
    if (!strcmp(word, "halves")) { a->halves = 1; return; }
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        if (!strcmp(word, moek_ep_kind_name(kind))) { a->kind = kind; return; }
    printf("bench_ep: neither a number of tokens nor a kind: %s\n", word);
    exit(1);
}

/* The format of that name; 0: the word is another. */
static int quant_of(const char *word)
{
    int i;
    for (i = 0; i < FORMATS; i++) if (!strcmp(word, format_at(i)->name)) return format_at(i)->number;
    return 0;
}
/* One format: each number among the words. */
static void measure_words(int ranks, int gpus, int quant, int words, char **word)
{
    static const int usual[] = { 1, 128, 4096 };
    asked a = { MOEK_EP_AUTO, 0, 1, 0 };
    int i, numbers = 0;
    printf("# peer access\n");                         /* until a word says another path */
    for (i = 0; i < words; i++)
        if (atoi(word[i]) > 0) {
            measure(ranks, gpus, atoi(word[i]), quant, &a);
            numbers++;
        } else if (!quant_of(word[i])) ask(&a, word[i], gpus, ranks);
    for (i = 0; i < 3 && !numbers; i++) measure(ranks, gpus, usual[i], quant, &a);
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp p;
    int gpus = 0, ranks, i, formats = 0;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
#ifdef USE_NCCL
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    must_nccl(ncclGetUniqueId(&nccl_bench.id));
#endif
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus) { printf("bench_ep: there is no GPU\n"); return 1; }
    if (gpus > RANKS) gpus = RANKS;
    ranks = gpus > 1 ? gpus : 2;
    for (i = 1; i < argc; i++) if (!strncmp(argv[i], "ranks=", 6)) ranks = atoi(argv[i] + 6);
    if (ranks < 1 || ranks > RANKS || EXPERTS % ranks) { printf("bench_ep: ranks=1, 2, 4 or 8\n"); return 1; }
    mem_must(cudaGetDeviceProperties(&p, 0));
    if (gpus > ranks) gpus = ranks;
    printf("# %s, %d rank%s on %d GPU%s, %s, hidden %d, %d experts, top-%d\n", p.name, ranks, ranks > 1 ? "s" : "",
           gpus, gpus > 1 ? "s" : "", gpus < 2 ? "loopback: no wire" : gpus < ranks ? "some share one" : "peer access",
           HIDDEN, EXPERTS, TOPK);
    printf("# medians of %d operations of the slowest rank, in CUDA graphs; floor at %.0f GB/s\n",
           REPLAYS * OPERATIONS, WIRE / 1e9);
    printf("tokens  format       kind         what              us       p90       bytes     floor  share\n");
    for (i = 1; i < argc; i++)
        if (quant_of(argv[i])) {
            measure_words(ranks, gpus, quant_of(argv[i]), argc - 1, argv + 1);
            formats++;
        }
    if (formats) return 0;
    measure_words(ranks, gpus, FORMAT_BLOCKED, argc - 1, argv + 1);
    measure_words(ranks, gpus, FORMAT_PLAIN, argc - 1, argv + 1);
    return 0;
}
