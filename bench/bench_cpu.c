/* bench_cpu.c -- how fast the CPU kernels read weights: a layer of one token, in every format, beside plain reads.
 *
 *   ./moek bench                                   where there is no GPU: builds and runs it
 *   cc -O3 -march=native -fopenmp -Iinclude bench/bench_cpu.c -o bench_cpu -lm && OMP_NUM_THREADS=2 ./bench_cpu
 *   ./bench_cpu [-t TOKENS] [-r ROUNDS] [-c CPU] [-k WHERE] [-p] [FORMAT[:BLOCK] ...]
 *       -c CPU  config.cpu: 1 plain C, 2 AVX2, 5 AVX-512;  -p  weights in panels (moek_repack_up)
 *       -k avx2_m48n32  only the kernels whose names end so (config.kernel)
 *
 * A run has the sizes of Qwen3-30B-A3B (hidden 2048, inter 768, top-8 of 128 experts) and takes eight experts that no
 * run took lately, so that weights come from memory.  A format's runs are spread over all rounds; the figure is the
 * fastest run, because other programs on the machine only ever add time.  Weights are codes and scales.  Tokens of a
 * run share the eight experts; 16 and more of them are spread over all experts, TOKENS / 16 rows each.  Reads: 256 MiB
 * of 8-byte words, added up by all threads, likewise the fastest. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L
#endif
#ifndef BENCH_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include <stdio.h>
#include "clock.h"
#include "fill.h"
#ifdef _OPENMP
#include <omp.h>
#endif

enum { MOST_FORMATS = 64, HIDDEN = 2048, INTER = 768, EXPERTS = 128, TOPK = 8, RUNS = EXPERTS / TOPK };
static const size_t READ_BYTES = (size_t)256 << 20;

typedef struct subject {                               /* a format under test */
    const moek_format *f;
    int block;
    moek_plan plan;
    moek_args args;
    double bytes, best;                                /* of a run: weights; seconds */
    void *given[16];
    int gifts;
} subject;

static void *keep(subject *s, void *p) { return s->given[s->gifts++] = p; }
static const void *filled(subject *s, size_t bytes, fill_codes from, uint32_t seed)
{
    return bytes ? keep(s, fill_host(bytes, from, seed)) : NULL;
}
static int cpu, panels;
static const char *ends;                               /* of the kernel's name, or NULL: what the plan chooses */
static const char *demanded(const subject *s)
{
    int i, n;
    const moek_kernel *const all = moek_kernels(&n);
    for (i = 0; ends && i < n; i++) {
        const size_t length = strlen(all[i].name);
        if (all[i].op == MOEK_OP_UP && all[i].quant == s->f->number && all[i].block == s->block &&
            length > strlen(ends) && !strcmp(all[i].name + length - strlen(ends), ends)) return all[i].name;
    }
    return NULL;
}
typedef moek_status (*repacker)(const moek_plan *, const void *, void *, int, int, moek_stream);
/* The same array in panels, in its place. */
static void to_panels(subject *s, repacker repack, const void *array, size_t bytes)
{
    void *const was = mem_alloc(0, bytes);
    memcpy(was, array, bytes);
    if (repack(&s->plan, was, (void *)(uintptr_t)array, EXPERTS, 0, NULL) != MOEK_OK) exit(1);
    mem_free(0, was);
}
static void make(subject *s, int tokens)
{
    const float third = 1.0f / 3;
    moek_config c;
    moek_weights w;
    fill_sizes n;
    float *scale = (float *)keep(s, mem_alloc(0, 2 * sizeof *scale));
    memset(&c, 0, sizeof c);
    memset(&w, 0, sizeof w);
    memset(&s->args, 0, sizeof s->args);
    c.hidden = HIDDEN; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK; c.act = MOEK_SILU;
    c.quant = s->f->number; c.block = s->block; c.max_tokens = tokens; c.backend = MOEK_BACKEND_CPU;
    c.kernel = demanded(s);
    c.cpu = cpu; c.weight_layout = panels ? MOEK_WEIGHTS_PANELS : MOEK_WEIGHTS_CHECKPOINT;
    if (moek_plan_init(&s->plan, &c) != MOEK_OK) { printf("%s: %s\n", s->f->name, s->plan.why); exit(1); }
    n = fill_sizes_of(&s->plan.config, EXPERTS);
    scale[0] = scale[1] = s->f->x_bits < 8 ? third / 448 : third / 100;
    w.w_up = keep(s, fill_host_weights(s->f, n.up, HIDDEN, s->plan.config.dtype, 0.02, 1));
    w.w_down = keep(s, fill_host_weights(s->f, n.down, INTER, s->plan.config.dtype, 0.02, 2));
    w.w_up_scale = filled(s, n.up_scale, fill_scales(s->f, s->plan.config.dtype, 0.02), 3);
    w.w_down_scale = filled(s, n.down_scale, fill_scales(s->f, s->plan.config.dtype, 0.02), 4);
    w.w_up_global_scale = (const float *)filled(s, n.up_global_scale, fill_seconds(), 5);
    w.w_down_global_scale = (const float *)filled(s, n.down_global_scale, fill_seconds(), 6);
    if (panels) to_panels(s, moek_repack_up, w.w_up, n.up), to_panels(s, moek_repack_down, w.w_down, n.down);
    if (panels && s->f->w_scale.rows == 1 && moek_weight_scale(s->f, s->block).columns) {
        to_panels(s, moek_repack_up_scale, w.w_up_scale, n.up_scale);
        to_panels(s, moek_repack_down_scale, w.w_down_scale, n.down_scale);
    }
    if (s->f->static_x) { w.x_scale = scale; w.h_scale = scale + 1; }
    if (moek_plan_bind(&s->plan, &w) != MOEK_OK) { printf("%s: %s\n", s->f->name, s->plan.why); exit(1); }
    s->args.tokens = tokens;
    s->args.x = filled(s, 2 * (size_t)tokens * HIDDEN, fill_t(s->plan.config.dtype, 1), 7);
    s->args.topk_ids = (int32_t *)keep(s, mem_alloc(0, 4 * (size_t)tokens * TOPK));
    s->args.topk_weights = (float *)keep(s, mem_alloc(0, 4 * (size_t)tokens * TOPK));
    s->args.y = keep(s, mem_alloc(0, 2 * (size_t)tokens * HIDDEN));
    s->args.workspace_size = moek_workspace_size(&s->plan);
    s->args.workspace = keep(s, mem_alloc(0, s->args.workspace_size));
    s->bytes = (double)(n.up + n.down + n.up_scale + n.down_scale) * (tokens < RUNS ? TOPK : EXPERTS) / EXPERTS;
    s->best = 1e9;
}
/* All experts once: eight a run, the same for all tokens, or in one run of many tokens. */
static void round_of(subject *s)
{
    const int many = s->args.tokens >= RUNS;
    int run, i;
    for (run = 0; run < (many ? 1 : RUNS); run++) {
        double start;
        for (i = 0; i < s->args.tokens * TOPK; i++) {
            s->args.topk_ids[i] = (run * TOPK + (many ? i : i % TOPK)) % EXPERTS;
            s->args.topk_weights[i] = 1.0f / TOPK;
        }
        start = seconds();
        if (moek_run(&s->plan, &s->args, NULL) != MOEK_OK) exit(1);
        start = seconds() - start;
        if (start < s->best) s->best = start;
    }
}
static uint64_t sink;
static double read_once(const uint64_t *from)
{
    const long n = (long)(READ_BYTES / 64);
    const double start = seconds();
    uint64_t sum = 0;
    long i;
#ifdef _OPENMP
    #pragma omp parallel for reduction(+:sum)
#endif
    for (i = 0; i < n; i++) {
        int j;
        for (j = 0; j < 8; j++) sum += from[8 * i + j];
    }
    sink += sum;
    return seconds() - start;
}

static subject *subjects;
static int count;
static void add(const moek_format *f, int block)
{
    if (count == MOST_FORMATS || !format_has(f, MOEK_OP_UP, 0)) return;
    subjects[count].f = f;
    subjects[count++].block = block;
}
static void add_named(const char *word)
{
    const size_t n = strcspn(word, ":");
    int i;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (!strncmp(f->name, word, n) && !f->name[n]) add(f, word[n] ? atoi(word + n + 1) : format_block(f, 0));
    }
}
int main(int argc, char **argv)
{
    uint64_t *words;
    double best_read = 1e9;
    int tokens = 1, rounds = 12, threads = 1, named = 0, i, j;
    subjects = (subject *)calloc(MOST_FORMATS, sizeof *subjects);
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc) tokens = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-r") && i + 1 < argc) rounds = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-c") && i + 1 < argc) cpu = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-k") && i + 1 < argc) ends = argv[++i];
        else if (!strcmp(argv[i], "-p")) panels = 1;
        else add_named(argv[i]), named = 1;
    }
    for (i = 0; i < FORMATS && !named; i++) {
        const moek_format *const f = format_at(i);
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++) add(f, f->blocks ? f->block[j] : 0);
    }
    if (!count || tokens < 1 || rounds < 1) {
        fprintf(stderr, "bench_cpu [-t TOKENS] [-r ROUNDS] [-c CPU] [-k WHERE] [-p] [FORMAT[:BLOCK] ...]\n");
        return 1;
    }
    words = (uint64_t *)mem_alloc(0, READ_BYTES);
    memset(words, 1, READ_BYTES);
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    for (i = 0; i < count; i++) make(&subjects[i], tokens);
    for (j = 0; j < rounds; j++) {
        double t;
        for (i = 0; i < count; i++) round_of(&subjects[i]);
        for (i = 0; i < 4; i++) if ((t = read_once(words)) < best_read) best_read = t;
    }
    printf("%d token%s, %d thread%s, the fastest of %d runs; reads %.1f GB/s\n", tokens, tokens > 1 ? "s" : "", threads,
           threads > 1 ? "s" : "", rounds * (tokens < RUNS ? RUNS : 1), (double)READ_BYTES / best_read * 1e-9);
    for (i = 0; i < count; i++) {
        subject *const s = &subjects[i];
        char name[40];
        if (s->f->blocks) snprintf(name, sizeof name, "%s:%d", s->f->name, s->block);
        else snprintf(name, sizeof name, "%s", s->f->name);
        printf("%-16s %8.3f ms %8.1f MB %8.1f GB/s of weights %8.1f GFLOPS\n", name, 1e3 * s->best, 1e-6 * s->bytes,
               s->bytes / s->best * 1e-9, 6e-9 * HIDDEN * INTER * TOPK * tokens / s->best);
        while (s->gifts) mem_free(0, s->given[--s->gifts]);
    }
    mem_free(0, words);
    free(subjects);
    return sink == 1;
}
