/* demo.c -- one MoE layer from router logits to output: Qwen3-30B-A3B in bf16 and in fp8 with 128 x 128 blocks, and
 * gpt-oss-20b as published, in mxfp4 with biases.  Or Qwen3-30B-A3B in the formats that are named, with columns of a
 * scale where the format leaves them open: demo mxfp4_a16 int4_a16:32
 *
 *   ./moek demo                                                builds and runs it: on the GPU if nvcc and one are there
 *   cc -O3 -march=native -Iinclude bench/demo.c -o demo -lm && ./demo
 *   nvcc -x cu -gencode arch=compute_90a,code=sm_90a -Iinclude bench/demo.c -o demo && ./demo
 *
 * Prints the plan, the error against the double-precision reference of tests/oracle/ref.h, time, bytes and GB/s. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L
#endif
#ifndef DEMO_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include <stdio.h>
#include "../tests/mem.h"
#include "../tests/oracle/ref.h"
#include "clock.h"
#include "fill.h"
#include "must.h"

enum { TOKENS = 16, RUNS = 7 };

typedef struct layer {
    fill_sizes n;
    void *up, *down, *up_scale, *down_scale, *up_global_scale, *down_global_scale, *up_bias, *down_bias;
    size_t up_bias_bytes, down_bias_bytes;             /* 0: the model has none */
    float *logits;
    uint16_t *x;
} layer;

static layer make_layer(const moek_config *c, int biases)
{
    const moek_format *const f = moek_format_of(c->quant);
    const double up = 1 / sqrt((double)c->hidden), down = 1 / sqrt((double)c->inter);
    layer l;
    int i;
    l.n = fill_sizes_of(c, c->experts);
    l.up = fill_host_weights(f, l.n.up, (size_t)c->hidden, c->dtype, up, 1);
    l.down = fill_host_weights(f, l.n.down, (size_t)c->inter, c->dtype, down, 2);
    l.up_scale = fill_host(l.n.up_scale, fill_scales(f, c->dtype, up), 3);
    l.down_scale = fill_host(l.n.down_scale, fill_scales(f, c->dtype, down), 4);
    l.up_global_scale = fill_host(l.n.up_global_scale, fill_seconds(), 7);
    l.down_global_scale = fill_host(l.n.down_global_scale, fill_seconds(), 8);
    l.up_bias_bytes = biases ? 2 * 2 * (size_t)c->experts * (size_t)c->inter : 0;      /* gpt-oss: gate and up */
    l.down_bias_bytes = biases ? 2 * (size_t)c->experts * (size_t)c->hidden : 0;
    l.up_bias = biases ? fill_host(l.up_bias_bytes, fill_t(c->dtype, 0.5), 9) : NULL;
    l.down_bias = biases ? fill_host(l.down_bias_bytes, fill_t(c->dtype, 0.5), 10) : NULL;
    l.x = (uint16_t *)fill_host(2 * (size_t)(TOKENS * c->hidden), fill_t(c->dtype, 1), 5);
    l.logits = (float *)mem_alloc(0, 4 * (size_t)(TOKENS * c->experts));
    for (i = 0; i < TOKENS * c->experts; i++) l.logits[i] = 2 * fill_normal((uint64_t)i, 6);
    return l;
}

/* The bytes that a run must move at least: weights and scales of the experts that are used, x, y. */
static double bytes_of(const moek_config *c, const layer *l, const int32_t *ids, int tokens)
{
    char used[1024] = {0};
    int i, active = 0;
    for (i = 0; i < tokens * c->topk; i++) { active += !used[ids[i]]; used[ids[i]] = 1; }
    return (double)active / c->experts * (double)(l->n.up + l->n.down + l->n.up_scale + l->n.down_scale +
                                                   l->up_bias_bytes + l->down_bias_bytes) + 4.0 * tokens * c->hidden;
}

static double error_of(const moek_plan *plan, const layer *l, const int32_t *ids, const float *weights,
                       const uint16_t *y)
{
    const moek_config *c = &plan->config;
    double *want = (double *)malloc(sizeof(double) * (size_t)(TOKENS * c->hidden));
    ref_layer_args r;
    moek_weights w;
    ref_distance d;
    memset(&r, 0, sizeof r);
    memset(&w, 0, sizeof w);
    w.w_up = l->up; w.w_down = l->down;
    w.w_up_scale = l->up_scale; w.w_down_scale = l->down_scale;
    w.w_up_global_scale = (const float *)l->up_global_scale;
    w.w_down_global_scale = (const float *)l->down_global_scale;
    w.w_up_bias = l->up_bias; w.w_down_bias = l->down_bias;
    r.tokens = TOKENS; r.hidden = c->hidden; r.inter = c->inter; r.slots = c->topk; r.experts = c->experts;
    r.format = format_with(moek_format_of(c->quant), c->block); r.dtype = c->dtype; r.act = c->act;
    r.alpha = c->alpha; r.beta = c->beta; r.limit = c->limit;
    r.up_layout = c->up_layout;
    r.x = l->x; r.ids = ids; r.weights = weights; r.w = &w;
    ref_layer(&r, want);
    d = ref_compare_t(y, want, (size_t)(TOKENS * c->hidden), c->dtype);
    free(want);
    return d.same_nonfinite ? d.rel_l2 : INFINITY;
}

/* The chosen experts against the reference's choice, which is the same whether softmax comes before top-k or after. */
static int routing_differs(const moek_config *c, const layer *l, const int32_t *ids)
{
    int32_t want[TOKENS * 32];
    float weights[TOKENS * 32];
    moek_route_args a;
    int i, differs = 0;
    memset(&a, 0, sizeof a);
    a.tokens = TOKENS; a.experts = c->experts; a.topk = c->topk;
    a.score = MOEK_SCORE_SOFTMAX; a.normalize = MOEK_NORM_SUM; a.scale = 1;
    a.logits = l->logits; a.logits_dtype = MOEK_DTYPE_F32;
    a.ids = want; a.weights = weights;
    ref_route(&a);
    for (i = 0; i < TOKENS * c->topk; i++) differs += want[i] != ids[i];
    return differs;
}

static double median(double *t, int n)
{
    int i, j;
    for (i = 1; i < n; i++)
        for (j = i; j > 0 && t[j] < t[j - 1]; j--) { const double swap = t[j]; t[j] = t[j - 1]; t[j - 1] = swap; }
    return t[n / 2];
}

/* One token: another each time, so that its experts come from memory. */
static double time_run(const moek_plan *plan, const moek_args *args, int tokens)
{
    double t[RUNS];
    char why[256] = "";
    moek_args a = *args;
    int i;
    a.tokens = tokens;
    a.why = why; a.why_size = sizeof why;
    for (i = -1; i < RUNS; i++) {                      /* the first warms up */
        const int first = tokens == 1 ? i + 1 : 0;
        double start;
        a.x = (const uint16_t *)args->x + (size_t)first * (size_t)plan->config.hidden;
        a.router_logits = (const float *)args->router_logits + (size_t)first * (size_t)plan->config.experts;
        start = seconds();
        must(moek_run(plan, &a, NULL), "moek_run", why);
#if MEM_CUDA
        mem_must(cudaDeviceSynchronize());
#endif
        if (i >= 0) t[i] = seconds() - start;
    }
    return median(t, RUNS);
}

static int demo(const char *model, moek_config config, int biases)
{
    const int quant = config.quant;
    moek_plan plan;
    moek_weights w;
    moek_args args;
    char text[8192];
    layer l;
    int32_t *ids;
    float *weights;
    uint16_t *y;
    double t, t1, bytes, error;
    int where, differs;

    config.max_tokens = TOKENS;
    must(moek_plan_init(&plan, &config), "moek_plan_init", plan.why);
    where = plan.arch;
    l = make_layer(&plan.config, biases);
    moek_describe(&plan, text, sizeof text);
    printf("\n%s\n%s", model, text);

#define THERE(field, host, bytes_) do { \
        void *p_ = host; \
        if (where) { p_ = mem_alloc(where, bytes_); mem_put(where, p_, host, bytes_); } \
        field = p_; \
    } while (0)
    memset(&w, 0, sizeof w);
    THERE(w.w_up, l.up, l.n.up);
    THERE(w.w_down, l.down, l.n.down);
    if (l.n.up_scale) {
        void *up, *down;
        THERE(up, l.up_scale, l.n.up_scale);
        THERE(down, l.down_scale, l.n.down_scale);
        w.w_up_scale = up; w.w_down_scale = down;
    }
    if (l.n.up_global_scale) {
        void *up, *down;
        THERE(up, l.up_global_scale, l.n.up_global_scale);
        THERE(down, l.down_global_scale, l.n.down_global_scale);
        w.w_up_global_scale = (const float *)up; w.w_down_global_scale = (const float *)down;
    }
    if (biases) {
        void *up, *down;
        THERE(up, l.up_bias, l.up_bias_bytes);
        THERE(down, l.down_bias, l.down_bias_bytes);
        w.w_up_bias = up; w.w_down_bias = down;
    }
    must(moek_plan_bind(&plan, &w), "moek_plan_bind", plan.why);
    memset(&args, 0, sizeof args);
    args.tokens = TOKENS;
    THERE(args.x, l.x, 2 * (size_t)(TOKENS * config.hidden));
    THERE(args.router_logits, l.logits, 4 * (size_t)(TOKENS * config.experts));
    args.y = mem_alloc(where, 2 * (size_t)(TOKENS * config.hidden));
    args.topk_ids = (int32_t *)mem_alloc(where, 4 * (size_t)(TOKENS * config.topk));
    args.topk_weights = (float *)mem_alloc(where, 4 * (size_t)(TOKENS * config.topk));
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = mem_alloc(where, args.workspace_size);
    t1 = time_run(&plan, &args, 1);
    t = time_run(&plan, &args, TOKENS);

    ids = (int32_t *)malloc(4 * (size_t)(TOKENS * config.topk));
    weights = (float *)malloc(4 * (size_t)(TOKENS * config.topk));
    y = (uint16_t *)malloc(2 * (size_t)(TOKENS * config.hidden));
    mem_get(where, ids, args.topk_ids, 4 * (size_t)(TOKENS * config.topk));
    mem_get(where, weights, args.topk_weights, 4 * (size_t)(TOKENS * config.topk));
    mem_get(where, y, args.y, 2 * (size_t)(TOKENS * config.hidden));
    differs = routing_differs(&plan.config, &l, ids);
    bytes = bytes_of(&plan.config, &l, ids, TOKENS);
    error = error_of(&plan, &l, ids, weights, y);
    printf("%-9s 1 token: %.3f ms, %.1f MB, %.1f GB/s\n", moek_quant_name(quant), 1e3 * t1,
           1e-6 * bytes_of(&plan.config, &l, ids, 1), 1e-9 * bytes_of(&plan.config, &l, ids, 1) / t1);
    printf("%-9s %d tokens: %.3f ms, %.1f MB, %.1f GB/s, relative L2 error %.2e against the double-precision "
           "reference, %s\n", moek_quant_name(quant), TOKENS, 1e3 * t, 1e-6 * bytes, 1e-9 * bytes / t, error,
           differs ? "routing DIFFERS" : "routing the same");
    free(ids); free(weights); free(y);
    mem_free(0, l.up); mem_free(0, l.down); mem_free(0, l.up_scale); mem_free(0, l.down_scale);
    mem_free(0, l.up_global_scale); mem_free(0, l.down_global_scale);
    mem_free(0, l.up_bias); mem_free(0, l.down_bias);
    mem_free(0, l.x); mem_free(0, l.logits);
    if (where) {
        mem_free(where, (void *)(uintptr_t)w.w_up); mem_free(where, (void *)(uintptr_t)w.w_down);
        mem_free(where, (void *)(uintptr_t)w.w_up_scale); mem_free(where, (void *)(uintptr_t)w.w_down_scale);
        mem_free(where, (void *)(uintptr_t)w.w_up_global_scale);
        mem_free(where, (void *)(uintptr_t)w.w_down_global_scale);
        mem_free(where, (void *)(uintptr_t)w.w_up_bias); mem_free(where, (void *)(uintptr_t)w.w_down_bias);
        mem_free(where, (void *)(uintptr_t)args.x); mem_free(where, (void *)(uintptr_t)args.router_logits);
    }
    mem_free(where, args.y); mem_free(where, args.topk_ids); mem_free(where, args.topk_weights);
    mem_free(where, args.workspace);
    return differs || !(error < (format_quantizes(moek_format_of(quant)) ? 5e-3 : 3e-3));
}

/* What memory gives: bytes read plus bytes written of a large copy, by as many threads as the rows use. */
static double copy_rate(int where)
{
    enum { PARTS = 64, RUNS_ = 5 };
    const size_t part = (size_t)4 << 20;
    char *from = (char *)mem_alloc(where, PARTS * part), *to = (char *)mem_alloc(where, PARTS * part);
    double best = 1e9, start;
    int run, i;
    for (run = 0; run <= RUNS_; run++) {               /* the first touches the pages */
        start = seconds();
#if MEM_CUDA
        if (where) {
            mem_must(cudaMemcpy(to, from, PARTS * part, cudaMemcpyDeviceToDevice));
            mem_must(cudaDeviceSynchronize());
        }
#endif
        if (!where) {
#ifdef _OPENMP
            #pragma omp parallel for
#endif
            for (i = 0; i < PARTS; i++) {
                if (!run) memset(from + (size_t)i * part, i, part);
                memcpy(to + (size_t)i * part, from + (size_t)i * part, part);
            }
        }
        if (run && seconds() - start < best) best = seconds() - start;
    }
    mem_free(where, from);
    mem_free(where, to);
    return 2.0 * PARTS * (double)part / best;
}

static int demo_qwen(int quant, int block)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    config.quant = quant; config.block = block;
    return demo("Qwen3-30B-A3B", config, 0);
}
static int demo_gpt_oss(void)
{
    const moek_config config = MOEK_GPT_OSS_20B;
    return demo("gpt-oss-20b", config, 1);
}
/* "int4_a16:32" */
static int demo_named(const char *word)
{
    int i;
    for (i = 0; i < FORMATS; i++) {
        const char *const name = format_at(i)->name;
        const size_t n = strlen(name);
        if (!strncmp(word, name, n) && (!word[n] || word[n] == ':'))
            return demo_qwen(format_numbers[i], word[n] ? atoi(word + n + 1) : 0);
    }
    printf("demo: %s is no format\n", word);
    return 1;
}

int main(int argc, char **argv)
{
    moek_config config = MOEK_QWEN3_30B_A3B;
    moek_plan plan;
    char text[16384], *line;
    int bad = 0, i;
    config.max_tokens = TOKENS;
    moek_explain(&config, text, sizeof text);
    printf("One MoE layer.  Backends for Qwen3-30B-A3B, bf16:\n");
    for (line = strtok(text, "\n"); line && line[0] != ' '; line = strtok(NULL, "\n")) printf("  %s\n", line);
    must(moek_plan_init(&plan, &config), "moek_plan_init", plan.why);
    printf("A large copy on this %s: %.1f GB/s, read plus written.\n", plan.arch ? "GPU" : "CPU",
           1e-9 * copy_rate(plan.arch));
    for (i = 1; i < argc; i++) bad |= demo_named(argv[i]);
    if (argc < 2) bad = demo_qwen(FORMAT_PLAIN, 0) | demo_qwen(FORMAT_BLOCKED, 0) | demo_gpt_oss();
    puts(bad ? "\nFAILED: an error is above its bound (3e-3, of quantized x 5e-3), or the routing differs" : "\nok");
    return bad;
}
