/* bench_host.cu -- host time of moek_run: what a call takes until it returns, without what the GPU does then.
 *
 *   nvcc -O2 -x cu -gencode arch=compute_90a,code=sm_90a -Iinclude -DMOEK_QUANT=FORMAT bench/bench_host.cu -o \
 *     bench_host
 *   g++ -O2 -std=c++17 -DMOEK_EMU -DMOEK_EMU_ARCH=90 -Iinclude -DMOEK_QUANT=FORMAT -x c++ bench/bench_host.cu -o \
 *     bench_host
 *   ./bench_host [ROUNDS [NAME]]                   NAME: only layers that have it in their line
 *
 * With nvcc kernels are launched, on a stream of their own, no more of them at once than its queue holds; a call's time
 * is that of the wall, and CPU time of the thread.  With MOEK_EMU a launch does nothing (the driver is left out): what
 * is left is the library's own work.  The figure is the fastest round.  To compare two versions run their programs in
 * turn.  Layers are Qwen3-30B-A3B (128 experts, top-8), routed from logits; ep: a group of one rank. */
#ifdef MOEK_EMU
#include "../tests/emu/emu.h"
static int launches;
template <class T> static int launched(const T &) { launches++; return 1; }
#undef MOEK_LAUNCH_
#undef MOEK_LAUNCH_PAIRS_
#undef MOEK_CHAIN_ORDERED_
#define MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args) \
    ((void)sizeof(&*(kernel)), (void)(grid), launched(args) ? MOEK_OK : MOEK_E_CUDA)
#define MOEK_LAUNCH_PAIRS_(kernel, grid, threads, shared, stream, early, args) \
    MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args)
#define MOEK_CHAIN_ORDERED_(kernel, grid, threads, shared, stream, early, args) \
    MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args)
#endif
#define MOEK_IMPLEMENTATION
#include "moek_ep.h"
#include <stdio.h>
#include "../tests/mem.h"
#include "clock.h"
#include "must.h"

enum { BATCH = 24 };                                   /* runs between waits for the stream */

typedef struct subject {
    char name[80];
    int quant, tokens, state, ids, kind;               /* ids: given, no logits; kind: 0, or MOEK_EP_* */
    moek_plan plan;
    moek_args args;
    char why[256];
    moek_ep ep;
    double wall, cpu;                                  /* of a call */
    int launches;
} subject;

/* Memory of a device, zeros; with MOEK_EMU nobody touches it: an address is enough, but for the window of a rank. */
static void *take(size_t bytes, int touched)
{
#if MEM_CUDA
    void *p = mem_alloc(90, bytes);
    (void)touched;
    mem_must(cudaMemset(p, 0, bytes));
    return p;
#else
    static uintptr_t next = (uintptr_t)1 << 40;
    void *const p = touched ? calloc(1, bytes + 4096) : (void *)next;
    next += (bytes + 4095) / 4096 * 4096;
    return touched ? (void *)(((uintptr_t)p + 4095) / 4096 * 4096) : p;
#endif
}

static void open_group(subject *s, moek_config *c)
{
    moek_ep_config g;
    void *base[1];
    memset(&g, 0, sizeof g);
    g.ranks = 1; g.layer = c; g.kind = s->kind; g.transport = MOEK_EP_GPU;
#if MEM_CUDA
    mem_must(cudaHostAlloc(&g.report, MOEK_EP_REPORT, cudaHostAllocDefault));
    memset(g.report, 0, MOEK_EP_REPORT);
#else
    g.report = take(MOEK_EP_REPORT, 1);
#endif
    base[0] = take(moek_ep_window_size(&g), 1);
    must(moek_ep_open(&s->ep, &g, base), "moek_ep_open", s->ep.why);
    must(moek_ep_join(&s->ep, c), "moek_ep_join", s->ep.why);
}

static void make(subject *s)
{
    moek_config c = MOEK_QWEN3_30B_A3B;
    moek_weights w;
    const moek_format *f;
    size_t e, up, down;
    c.quant = s->quant; c.max_tokens = s->tokens;
    f = moek_format_of(s->quant);
    if (f->tiled & MOEK_READS_FRAGMENTS) c.weight_layout = MOEK_WEIGHTS_TILED;
    if (s->kind) open_group(s, &c);
    must(moek_plan_init(&s->plan, &c), s->name, s->plan.why);
    e = (size_t)s->plan.local_experts; up = 2 * (size_t)c.inter; down = (size_t)c.hidden;
    memset(&w, 0, sizeof w);
    w.w_up = take(e * up * moek_weight_bytes(f, c.weight_layout, down), 0);
    w.w_down = take(e * down * moek_weight_bytes(f, c.weight_layout, (size_t)c.inter), 0);
    if (f->w_scale.type) {
        w.w_up_scale = take(e * moek_scale_bytes(&f->w_scale, up, down), 0);
        w.w_down_scale = take(e * moek_scale_bytes(&f->w_scale, down, (size_t)c.inter), 0);
    }
    must(moek_plan_bind(&s->plan, &w), s->name, s->plan.why);
    s->args.tokens = s->tokens;
    s->args.x = take((size_t)s->tokens * down * 2, 0);
    s->args.y = take((size_t)s->tokens * down * 2, 0);
    if (s->ids) {
        s->args.topk_ids = (int32_t *)take((size_t)s->tokens * 8 * 4, 0);
        s->args.topk_weights = (float *)take((size_t)s->tokens * 8 * 4, 0);
    } else {
        s->args.router_logits = take((size_t)s->tokens * 128 * 4, 0);
    }
    s->args.workspace_size = moek_workspace_size(&s->plan);
    s->args.workspace = take(s->args.workspace_size, 0);
    if (s->state) s->args.state = take(moek_state_size(), 0);
    s->args.why = s->why; s->args.why_size = sizeof s->why;
}

static moek_stream stream;
static void settle(void)
{
#if MEM_CUDA
    mem_must(cudaStreamSynchronize((cudaStream_t)stream));
#endif
}
static void time_runs(subject *s, int runs)
{
    double wall = seconds(), cpu = seconds_on(CLOCK_THREAD_CPUTIME_ID);
    int i;
    for (i = 0; i < runs; i++) must(moek_run(&s->plan, &s->args, stream), s->name, s->why);
    cpu = (seconds_on(CLOCK_THREAD_CPUTIME_ID) - cpu) / runs;
    wall = (seconds() - wall) / runs;
    settle();
    if (!s->wall || wall < s->wall) s->wall = wall;
    if (!s->cpu || cpu < s->cpu) s->cpu = cpu;
}

static const struct { const char *name; int tokens, state, ids, kind; } ways[] = {
    { "one launch     ", 1, 1, 0, 0 }, { "one launch, ids", 1, 1, 1, 0 }, { "step by step   ", 1, 0, 0, 0 },
    { "step by step   ", 64, 0, 0, 0 }, { "steps, ids     ", 64, 0, 1, 0 }, { "step by step   ", 2048, 0, 0, 0 },
    { "low_latency    ", 64, 0, 0, MOEK_EP_LOW_LATENCY }, { "alltoall       ", 512, 0, 0, MOEK_EP_ALLTOALL },
};
enum { WAYS = sizeof ways / sizeof ways[0] };

/* All ways of all formats whose kernels are compiled. */
static int list(subject *to)
{
    int n = 0, quant, way;
    for (quant = 1; moek_format_of(quant); quant++) {
        const moek_format *const f = moek_format_of(quant);
        if (!(MOEK_WANT_QUANT(quant)) || f->only_blocks) continue;
        for (way = 0; way < WAYS; way++) {
            subject *const s = &to[n++];
            s->quant = quant; s->tokens = ways[way].tokens; s->state = ways[way].state; s->ids = ways[way].ids;
            s->kind = ways[way].kind;
            snprintf(s->name, sizeof s->name, "%s %-12s %4d", ways[way].name, f->name, s->tokens);
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    static subject all[64 * WAYS];
    const char *const only = argc > 2 ? argv[2] : "";
    const int rounds = argc > 1 ? atoi(argv[1]) : 200, batch = MEM_CUDA ? BATCH : 1000, n = list(all);
    int i, round;
#if MEM_CUDA
    cudaStream_t own;
    mem_must(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    stream = (moek_stream)own;
#else
    emu_sms = 132;
#endif
    for (i = 0; i < n; i++) {
        if (!strstr(all[i].name, only)) continue;
        make(&all[i]);
#ifdef MOEK_EMU
        launches = 0;
#endif
        time_runs(&all[i], 1);
#ifdef MOEK_EMU
        all[i].launches = launches;
#endif
        all[i].wall = all[i].cpu = 0;
    }
    fprintf(stderr, "bench_host: each layer has run\n");
    for (round = 0; round < rounds; round++)
        for (i = 0; i < n; i++)
            if (strstr(all[i].name, only)) time_runs(&all[i], batch);
    for (i = 0; i < n; i++)
        if (all[i].cpu)
            printf("%s  %2d launches  %8.0f ns wall  %8.0f ns cpu\n", all[i].name, all[i].launches,
                   1e9 * all[i].wall, 1e9 * all[i].cpu);
    return 0;
}
