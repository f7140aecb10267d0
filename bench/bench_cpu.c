/* bench_cpu.c -- how fast the CPU kernels read weights: a layer of one token, in every format, beside plain reads.
 *
 *   ./moek bench                                   where there is no GPU: builds and runs it
 *   cc -O3 -march=native -fopenmp -Iinclude bench/bench_cpu.c -o bench_cpu -lm && OMP_NUM_THREADS=2 ./bench_cpu
 *   ./bench_cpu [-t TOKENS] [-r ROUNDS] [-c CPU] [-k WHERE] [-p | -b] [-u] [-w] [FORMAT[:BLOCK] ...]
 *       -c CPU  config.cpu: 1 plain C, 2 AVX2, 5 AVX-512, 6 AMX
 *       -p      weights in panels (moek_repack_up);  -b  both layouts, in turn
 *       -k avx2_m48n32  only the kernels whose names end so (config.kernel)
 *       -u      CPU time over threads in the place of wall time: where other programs run
 *       -w      also where the time of that run went: microseconds of each step
 *
 * A run has the sizes of Qwen3-30B-A3B (hidden 2048, inter 768, top-8 of 128 experts) and takes eight experts that no
 * run took lately, so that weights come from memory.  A format's runs are spread over all rounds; the figure is the
 * fastest run, because other programs on the machine only ever add time.  Weights are codes and scales.  Tokens of a
 * run share the eight experts; 16 and more of them are spread over all experts, TOKENS / 16 rows each.
 * Reads: 16 MiB of 8-byte words, as large as a run's weights, other ones each time, added up by all threads, likewise
 * the fastest.
 * -w: the router's logits choose the experts, so that routing is there, too; the steps run on args.parallel, whose
 * function has a clock.  What is no step is sorting and the walk. */
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

enum { MOST_FORMATS = 128, HIDDEN = 2048, INTER = 768, EXPERTS = 128, TOPK = 8, RUNS = EXPERTS / TOPK };
static const size_t READ_BYTES = (size_t)256 << 20, READ_PART = (size_t)16 << 20;

enum { STEPS = 6 };                                    /* at most: route, quant of x, up, quant of h, down, combine */
typedef struct subject {                               /* a format under test */
    const moek_format *f;
    int block, panels;
    moek_plan plan;
    moek_args args;
    double bytes, best;                                /* of a run: weights; seconds */
    double step[STEPS];                                /* of the same run */
    int steps;
    float *logits;                                     /* -w */
    void *given[16];
    int gifts;
} subject;

static void *keep(subject *s, void *p) { return s->given[s->gifts++] = p; }
static const void *filled(subject *s, size_t bytes, fill_codes from, uint32_t seed)
{
    return bytes ? keep(s, fill_host(bytes, from, seed)) : NULL;
}
static int cpu, layouts = 1, by_cpu_time, where;       /* layouts: bits 1 as they come, 2 panels */
static int threads = 1;
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
    c.cpu = cpu; c.weight_layout = s->panels ? MOEK_WEIGHTS_PANELS : MOEK_WEIGHTS_CHECKPOINT;
    if (moek_plan_init(&s->plan, &c) != MOEK_OK) { printf("%s: %s\n", s->f->name, s->plan.why); exit(1); }
    n = fill_sizes_of(&s->plan.config, EXPERTS);
    scale[0] = scale[1] = s->f->x_bits < 8 ? third / 448 : third / 100;
    w.w_up = keep(s, fill_host_weights(s->f, n.up, HIDDEN, s->plan.config.dtype, 0.02, 1));
    w.w_down = keep(s, fill_host_weights(s->f, n.down, INTER, s->plan.config.dtype, 0.02, 2));
    w.w_up_scale = filled(s, n.up_scale, fill_scales(s->f, s->plan.config.dtype, 0.02), 3);
    w.w_down_scale = filled(s, n.down_scale, fill_scales(s->f, s->plan.config.dtype, 0.02), 4);
    w.w_up_global_scale = (const float *)filled(s, n.up_global_scale, fill_seconds(), 5);
    w.w_down_global_scale = (const float *)filled(s, n.down_global_scale, fill_seconds(), 6);
    if (s->panels) to_panels(s, moek_repack_up, w.w_up, n.up), to_panels(s, moek_repack_down, w.w_down, n.down);
    if (s->panels && s->f->w_scale.rows == 1 && moek_weight_scale(s->f, s->block).columns) {
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
    if (where) s->logits = (float *)keep(s, mem_alloc(0, sizeof(float) * (size_t)tokens * EXPERTS));
    s->args.router_logits = s->logits;
}
static double now(void)
{
    return by_cpu_time ? seconds_on(CLOCK_PROCESS_CPUTIME_ID) / threads : seconds();
}
/* moek_parallel.run with a clock: what moek does by itself. */
typedef struct clocked { double step[STEPS]; int steps; } clocked;
static void run_clocked(void *pool, long long tasks, moek_task_fn task, const void *data)
{
    clocked *const c = (clocked *)pool;
    const double start = now();
    long long i;
#ifdef _OPENMP
    #pragma omp parallel for schedule(dynamic)
#endif
    for (i = 0; i < tasks; i++) task(data, i);
    if (c->steps < STEPS) c->step[c->steps++] = now() - start;
}
/* Token t of a run takes these. */
static void route_to(subject *s, int run, int many)
{
    int i;
    for (i = 0; where && i < s->args.tokens * EXPERTS; i++) s->logits[i] = 0.01f * (float)(i % EXPERTS);
    for (i = 0; i < s->args.tokens * TOPK; i++) {
        const int e = (run * TOPK + (many ? i : i % TOPK)) % EXPERTS;
        if (where) s->logits[i / TOPK * EXPERTS + e] += 9;
        else { s->args.topk_ids[i] = e; s->args.topk_weights[i] = 1.0f / TOPK; }
    }
}
/* All experts once: eight a run, the same for all tokens, or in one run of many tokens. */
static void round_of(subject *s)
{
    const int many = s->args.tokens >= RUNS;
    static clocked c;
    int run;
    if (where) { s->args.parallel.run = run_clocked; s->args.parallel.pool = &c; }
    for (run = 0; run < (many ? 1 : RUNS); run++) {
        double start;
        route_to(s, run, many);
        c.steps = 0;
        start = now();
        if (moek_run(&s->plan, &s->args, NULL) != MOEK_OK) exit(1);
        start = now() - start;
        if (start >= s->best) continue;
        s->best = start;
        for (s->steps = 0; where && s->steps < c.steps; s->steps++) s->step[s->steps] = c.step[s->steps];
    }
}
static uint64_t sink;
/* Seconds of the fastest of all parts, each read once. */
static double read_parts(const uint64_t *from)
{
    const long n = (long)(READ_PART / 64);
    double best = 1e9;
    size_t part;
    for (part = 0; part < READ_BYTES / READ_PART; part++, from += READ_PART / 8) {
        const double start = now();
        uint64_t sum = 0;
        double t;
        long i;
#ifdef _OPENMP
        #pragma omp parallel for reduction(+:sum)
#endif
        for (i = 0; i < n; i++) {
            int j;
            for (j = 0; j < 8; j++) sum += from[8 * i + j];
        }
        sink += sum;
        t = now() - start;
        if (t < best) best = t;
    }
    return best;
}

static subject *subjects;
static int count;
static void add(const moek_format *f, int block)
{
    int p;
    if (!format_has(f, MOEK_OP_UP, 0)) return;
    for (p = 0; p < 2 && count < MOST_FORMATS; p++) {
        if (!(layouts & 1 << p)) continue;
        subjects[count].f = f;
        subjects[count].panels = p;
        subjects[count++].block = block;
    }
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
static int options(int argc, char **argv, int *tokens, int *rounds)
{
    int i, j, named = 0;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc) *tokens = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-r") && i + 1 < argc) *rounds = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-c") && i + 1 < argc) cpu = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-k") && i + 1 < argc) ends = argv[++i];
        else if (!strcmp(argv[i], "-p")) layouts = 2;
        else if (!strcmp(argv[i], "-b")) layouts = 3;
        else if (!strcmp(argv[i], "-u")) by_cpu_time = 1;
        else if (!strcmp(argv[i], "-w")) where = 1;
        else add_named(argv[i]), named = 1;
    }
    for (i = 0; i < FORMATS && !named; i++) {
        const moek_format *const f = format_at(i);
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++) add(f, f->blocks ? f->block[j] : 0);
    }
    return count && *tokens > 0 && *rounds > 0;
}
/* Microseconds of the steps of a run, and the part of all but the GEMMs. */
static void print_steps(const subject *s)
{
    static const char *const all[] = { "route", "quant", "up", "quant", "down", "combine" };
    static const char *const few[] = { "route", "up", "down", "combine" };
    const int quantizes = s->steps == STEPS;
    double rest = s->best;
    int i;
    for (i = 0; i < s->steps; rest -= s->step[i++])
        printf("%s%s %.1f", i ? ", " : "    ", (quantizes ? all : few)[i], 1e6 * s->step[i]);
    printf(", sort and the walk %.1f us; all but up and down %.1f %%\n", 1e6 * rest,
           100 * (1 - (s->step[quantizes ? 2 : 1] + s->step[quantizes ? 4 : 2]) / s->best));
}
int main(int argc, char **argv)
{
    uint64_t *words;
    double best_read = 1e9;
    int tokens = 1, rounds = 12, i, j;
    subjects = (subject *)calloc(MOST_FORMATS, sizeof *subjects);
    if (!options(argc, argv, &tokens, &rounds)) {
        fprintf(stderr, "bench_cpu [-t TOKENS] [-r ROUNDS] [-c CPU] [-k WHERE] [-p | -b] [-u] [-w] "
                        "[FORMAT[:BLOCK] ...]\n");
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
        if ((t = read_parts(words)) < best_read) best_read = t;
    }
    printf("%d token%s, %d thread%s, %s, the fastest of %d runs; reads %.1f GB/s\n", tokens, tokens > 1 ? "s" : "",
           threads, threads > 1 ? "s" : "", by_cpu_time ? "CPU time" : "wall",
           rounds * (tokens < RUNS ? RUNS : 1), (double)READ_PART / best_read * 1e-9);
    for (i = 0; i < count; i++) {
        subject *const s = &subjects[i];
        const double rate = s->bytes / s->best * 1e-9, reads = (double)READ_PART / best_read * 1e-9;
        char name[40], block[16] = "";
        if (s->f->blocks) snprintf(block, sizeof block, ":%d", s->block);
        snprintf(name, sizeof name, "%s%s%s", s->f->name, block, s->panels ? " panels" : "");
        printf("%-22s %8.3f ms %8.1f MB %8.1f GB/s of weights, %3.0f %% of reads %8.1f GFLOPS\n", name, 1e3 * s->best,
               1e-6 * s->bytes, rate, 100 * rate / reads, 6e-9 * HIDDEN * INTER * TOPK * tokens / s->best);
        if (where) print_steps(s);
        while (s->gifts) mem_free(0, s->given[--s->gifts]);
    }
    mem_free(0, words);
    free(subjects);
    return sink == 1;
}
