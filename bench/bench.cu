/* bench.cu -- whole layers on a GPU: one line a cell.
 *
 *   ./moek bench [words ...]                 cells whose "shape quant M" line holds every word
 *   ./moek bench before [-o FILE]            routing, sort and quantization instead, alone and together (before.h)
 *   ./moek tune [words ...]                  the same cells by each row that fits: which is the fastest?
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude bench/bench.cu -o bench
 *   ./bench [tune] [options] [words ...]
 *      -o FILE       a tab-separated file; of tune: for config.tuned (include/moek/plan/tuned.h has its columns)
 *      -k WORD       with the first row of the format whose name holds this: up_fp8b128_h0_on_sm90_m16
 *      -s            without args.state: step by step
 *      -w            with tiled weights (config.weight_layout)
 *      -b            with weights in blocks of files, formats that have arrays, too
 *      -e            with config.expand_weights, formats whose tiled weights may become e4m3 in a run
 *      -z            with zero points, formats that may have them
 *      -t FILE       with the measured choices of this file
 *      -q            without the error, which the host takes seconds for
 *      -r MS         so many milliseconds of rest before a cell (100), but no fewer than the one before it took: so
 *                    that it meets the clock of a cool GPU
 *      --arch 80     by kernels of an older machine, as this one has code for
 *      --shared 99   by kernels that need at most so many KB of shared memory a block.  (An SM has as many of their
 *                    blocks as it has room for, all the same.)
 *      hidden=7168 inter=2048 experts=32 topk=8         this shape, instead of those below
 *      block=32      of formats that leave it open: so many columns a scale (config.block); else their first choice
 *      down=q6_k_a16                                    w_down in this format (config.down_quant)
 *      tokens=1,8,64                                    these counts
 *
 * A cell is one shape, format and number of tokens, from given top-k ids and weights to y: sorting, quantization, both
 * GEMMs and the weighted sum.  Method: one CUDA graph holds several layers with different uniform random routings, so
 * that the weights of small batches come from memory and not from L2; the figure is the mean a layer of the median
 * replay.  MHz is a multiprocessor's clock, mean of the replays: many tokens meet the GPU's power limit, and what comes
 * right behind them meets the clock that they left.  Shapes in batched format quantize to [experts][tokens][hidden],
 * with counts; skewed: some experts get four times their share.  The floor is the larger of (weight bytes of the
 * experts in use) / 4.27 TB/s and FLOPs / 1500 (fp8) or 800 (bf16) TFLOPS, near the ceilings of an H200; what the
 * machine itself can do is measured first.  The error is the relative L2 distance of y to the double-precision
 * reference, by 8 tokens (the host takes up to a second for one). */
#ifndef BENCH_SPLIT
#define MOEK_LIMIT_DEVICE_ bench_limit
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "../tests/mem.h"
#include "clock.h"
#include "fill.h"
#include "ceiling.h"
#include "measure.h"
#include "must.h"

enum { LAYERS_MAX = 8, REPLAYS = 21, WARM_UPS = 3, TOKENS_MAX = 64, ERROR_TOKENS = 8 };

typedef struct shape { const char *name; int experts, hidden, inter, topk, batched, skewed; } shape;
static const shape shapes[] = {
    { "deepseek-v3-tp8",        256, 7168, 256,   8, 0, 0 },
    { "qwen3-30b-a3b",          128, 2048, 768,   8, 0, 0 },
    { "mixtral-8x7b",           8,   4096, 14336, 2, 0, 0 },
    { "deepseek-v3-32-local",   32,  7168, 2048,  8, 0, 0 },
    { "qwen3-235b-tp4",         128, 4096, 384,   8, 0, 0 },
    { "deepseek-v3-32-batched", 32,  7168, 2048,  8, 1, 0 },
    { "deepseek-v3-32-skewed",  32,  7168, 2048,  8, 1, 1 },
};
static const int all_tokens[] = { 1, 4, 8, 16, 32, 64, 128, 512, 1024, 2048, 8192 };
static const int batched_tokens[] = { 128, 512 };      /* 32 and 128 rows an expert */
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#define CUDA(call) mem_must(call)

static void sure(int ok, const char *what, const char *why) { must(ok ? MOEK_OK : MOEK_E_ARGUMENT, what, why); }

/* What the command line asks for. */
static struct {
    int tune, before, quick, stateless, tiled, blocks, zeros, expands, rest, tokens[TOKENS_MAX], counts, words, block;
    int down;                                         /* config.down_quant */
    int arch, shared;                                 /* 0: the device's */
    const char *row, *tuned;
    char **word;
    FILE *out;
    shape given;
} ask;

/* What plans take the device for (moek/plan/device_query.h). */
void bench_limit(int *arch, int *shared_bytes)
{
    if (ask.arch && ask.arch < *arch) *arch = ask.arch;
    if (ask.shared && ask.shared * 1024 < *shared_bytes) *shared_bytes = ask.shared * 1024;
}

/* ---- one cell ---------------------------------------------------------------------------------------------------- */

typedef struct cell {
    moek_config config;
    moek_plan plan;
    moek_weights w, tiled;                            /* tiled: only w_up and w_down are its own; NULL: not asked for */
    fill_sizes n;
    const shape *of;
    int tokens, layers;
    int32_t *host_ids, *ids;                          /* [layers][tokens][topk] */
    float *host_weights, *weights;
    uint16_t *x, *y;
    void *workspace, *state;
    char *cold;                                       /* written before a replay, so that L2 holds nothing of use */
} cell;

static uint32_t route_state;
static uint32_t route_random(void) { route_state = route_state * 1664525u + 1013904223u; return route_state >> 8; }

/* Skewed: the square of a uniform number, so that the first of 32 experts is named by most tokens. */
static int32_t route_expert(const cell *c)
{
    const uint32_t r = route_random();
    const double u = r * (1.0 / (1 << 24));
    return (int32_t)(c->of->skewed ? u * u * c->config.experts : r % (uint32_t)c->config.experts);
}

/* Random routing: topk distinct experts a token. */
static void random_routing(cell *c)
{
    const int k = c->config.topk, n = c->layers * c->tokens;
    route_state = 12345;
    for (int t = 0; t < n; t++)
        for (int i = 0; i < k; i++) {
            int32_t *ids = c->host_ids + (size_t)t * k;
            int again = 1;
            while (again) {
                ids[i] = route_expert(c);
                again = 0;
                for (int j = 0; j < i; j++) again |= ids[j] == ids[i];
            }
            c->host_weights[(size_t)t * k + i] = 1.0f / k + 0.01f * (float)i;
        }
}

/* Mean bytes a layer of the weights and scales of the experts in use. */
static double weight_bytes(const cell *c)
{
    const int slots = c->tokens * c->config.topk;
    double active = 0;
    for (int l = 0; l < c->layers; l++) {
        char used[1024] = {0};
        for (int i = 0; i < slots; i++) {
            char *u = &used[c->host_ids[(size_t)l * slots + i]];
            active += !*u;
            *u = 1;
        }
    }
    return active / c->layers / c->config.experts * (double)(c->n.up + c->n.down + c->n.up_scale + c->n.down_scale);
}

/* The relative L2 distance of the last layer's y, by ERROR_TOKENS tokens that lie evenly apart, the last one among
 * them. */
static double error_of(const cell *c)
{
    const size_t h = (size_t)c->config.hidden, k = (size_t)c->config.topk, tokens = (size_t)c->tokens;
    const size_t apart = (tokens + ERROR_TOKENS - 1) / ERROR_TOKENS;
    double error = 0, square = 0;
    for (size_t t = tokens; t > 0; t = t > apart ? t - apart : 0) {
        const size_t at = t - 1, token = (size_t)(c->layers - 1) * tokens + at;
        moek_weights slot[32];
        for (size_t i = 0; i < k; i++) slot[i] = weights_of(&c->plan.config, &c->w, (size_t)c->host_ids[token * k + i]);
        const ref_distance d = error_of_token(&c->plan.config, slot, c->host_weights + token * k, c->x + at * h,
                                              c->y + at * h);
        error += d.rel_l2 * d.rel_l2 * d.square;
        square += d.square;
    }
    return sqrt(error / square);
}

static void run_layer(const cell *c, int layer, cudaStream_t stream)
{
    const size_t slots = (size_t)c->tokens * c->config.topk;
    char why[256] = "";
    moek_args a;
    memset(&a, 0, sizeof a);
    a.tokens = c->tokens;
    a.x = c->x;
    a.topk_ids = c->ids + layer * slots;
    a.topk_weights = c->weights + layer * slots;
    a.y = c->y;
    a.workspace = c->workspace;
    a.workspace_size = moek_workspace_size(&c->plan);
    a.state = c->state;
    a.why = why; a.why_size = sizeof why;
    must(moek_run(&c->plan, &a, stream), "moek_run", why);
}

typedef struct stamp { long long clock, ns; unsigned sm; } stamp;
typedef struct timer { cudaStream_t stream; cudaEvent_t e0, e1; stamp *stamps; } timer;     /* [2 REPLAYS]: device */
typedef struct result { double us, low, high, mhz; } result;

static __global__ void stamp_k(stamp *to)
{
    asm volatile("mov.u32 %0, %%smid;" : "=r"(to->sm));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(to->clock));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(to->ns));
}

/* Mean clock of a multiprocessor from each even stamp to the next.  NaN: they were never on the same one. */
static double mean_mhz(const stamp *stamps, int n)
{
    stamp *s = (stamp *)malloc(n * sizeof *s);
    double clocks = 0, ns = 0;
    mem_get(80, s, stamps, n * sizeof *s);
    for (int i = 0; i < n; i += 2) {
        if (s[i].sm != s[i + 1].sm) continue;
        clocks += (double)(s[i + 1].clock - s[i].clock);
        ns += (double)(s[i + 1].ns - s[i].ns);
    }
    free(s);
    return ns > 0 ? 1e3 * clocks / ns : NAN;
}

/* What the host takes for a layer outside of a graph, in microseconds. */
static double time_host(const cell *c, const timer *t)
{
    CUDA(cudaStreamSynchronize(t->stream));
    const double start = seconds();
    for (int i = 0; i < 32; i++) run_layer(c, i % c->layers, t->stream);
    const double us = (seconds() - start) * 1e6 / 32;
    CUDA(cudaStreamSynchronize(t->stream));
    return us;
}

/* Replays of a graph of so many layers; the graph is destroyed.  cold: 128 MB that are written before each, so that L2
 * has nothing of before; or NULL.  Given up, with what the warm-up took, if that is far beyond `limit` microseconds a
 * layer. */
static result time_graph(cudaGraph_t graph, int layers, void *cold, const timer *by, double limit)
{
    static double worked;                              /* seconds of the cell before */
    cudaGraphExec_t exec;
    double t[REPLAYS], start;
    result r;
    int hopeless = 0;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    rest(1e3 * worked > ask.rest ? (int)(1e3 * worked) : ask.rest);
    start = seconds();
    for (int i = -WARM_UPS; i < REPLAYS && !hopeless; i++) {
        stamp *const stamps = by->stamps + 2 * (i < 0 ? 0 : i);
        if (cold) CUDA(cudaMemsetAsync(cold, i, (size_t)128 << 20, by->stream));
        stamp_k<<<1, 1, 0, by->stream>>>(stamps);
        CUDA(cudaEventRecord(by->e0, by->stream));
        CUDA(cudaGraphLaunch(exec, by->stream));
        CUDA(cudaEventRecord(by->e1, by->stream));
        stamp_k<<<1, 1, 0, by->stream>>>(stamps + 1);
        const double us = 1e6 * ceiling_seconds(by->e0, by->e1) / layers;
        hopeless = i < 0 && us > (i == -1 ? 1.5 : 4) * limit;
        t[hopeless || i < 0 ? 0 : i] = us;
    }
    worked = seconds() - start;
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    r.mhz = hopeless ? NAN : mean_mhz(by->stamps, 2 * REPLAYS);
    if (hopeless) { r.us = r.low = r.high = t[0]; return r; }
    qsort(t, REPLAYS, sizeof t[0], ascending);
    r.us = t[REPLAYS / 2]; r.low = t[0]; r.high = t[REPLAYS - 1];
    return r;
}
static result time_cell(const cell *c, const timer *by, double limit)
{
    cudaGraph_t graph;
    CUDA(cudaStreamSynchronize(by->stream));
    CUDA(cudaStreamBeginCapture(by->stream, cudaStreamCaptureModeThreadLocal));
    for (int l = 0; l < c->layers; l++) run_layer(c, l, by->stream);
    CUDA(cudaStreamEndCapture(by->stream, &graph));
    CUDA(cudaMemsetAsync(c->y, 0xff, 2 * (size_t)c->tokens * c->config.hidden, by->stream));
    CUDA(cudaStreamSynchronize(by->stream));
    return time_graph(graph, c->layers, c->cold, by, limit);
}

#include "before.h"

/* ---- from the command line --------------------------------------------------------------------------------------- */

static int wanted(const char *name, const char *quant, int tokens)
{
    char line[128];
    int named = !strcmp(quant, moek_quant_name(FORMAT_PLAIN)) || !strcmp(quant, moek_quant_name(FORMAT_BLOCKED));
    snprintf(line, sizeof line, "%s %s M=%d.", name, quant, tokens);
    for (int i = 0; i < ask.words; i++) named |= !strcmp(ask.word[i], quant);      /* the others: when asked for */
    if (!named) return 0;
    for (int i = 0; i < ask.words; i++) if (!strstr(line, ask.word[i])) return 0;
    return 1;
}

static char *text_of(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long size;
    if (f && !fseek(f, 0, SEEK_END) && (size = ftell(f)) >= 0 && !fseek(f, 0, SEEK_SET)) {
        text = (char *)malloc((size_t)size + 1);
        text[fread(text, 1, (size_t)size, f)] = 0;
    }
    sure(text != NULL, path, "cannot be read");
    fclose(f);
    return text;
}

/* hidden=7168, tokens=1,8: 1 if it was such a word. */
static int asks(const char *word)
{
    const struct { const char *name; int *value; } numbers[] = {
        { "hidden=", &ask.given.hidden }, { "inter=", &ask.given.inter }, { "experts=", &ask.given.experts },
        { "topk=", &ask.given.topk },
    };
    for (int i = 0; i < COUNT(numbers); i++)
        if (!strncmp(word, numbers[i].name, strlen(numbers[i].name))) {
            *numbers[i].value = atoi(word + strlen(numbers[i].name));
            sure(*numbers[i].value > 0, word, "must be a number of at least 1");
            ask.given.name = "given";
            return 1;
        }
    if (!strncmp(word, "block=", 6)) return ask.block = atoi(word + 6), 1;
    if (!strncmp(word, "down=", 5)) {
        for (int q = 0; q < FORMATS; q++)
            if (!strcmp(format_at(q)->name, word + 5)) ask.down = format_numbers[q];
        sure(ask.down > 0, word, "is no format");
        return 1;
    }
    if (strncmp(word, "tokens=", 7)) return 0;
    for (const char *p = word + 7; ask.counts < TOKENS_MAX; p++) {
        char *end;
        ask.tokens[ask.counts++] = (int)strtol(p, &end, 10);
        sure(end > p && (!*end || *end == ',') && ask.tokens[ask.counts - 1] > 0, word,
             "must be numbers of at least 1, with commas between");
        p = end;
        if (!*p) break;
    }
    return 1;
}

static void read_words(int argc, char **argv)
{
    ask.word = argv;
    ask.rest = 100;
    ask.block = -1;
    for (int i = 1; i < argc; i++) {
        const int more = i + 1 < argc;
        if (i == 1 && !strcmp(argv[i], "tune")) ask.tune = 1;
        else if (i == 1 && !strcmp(argv[i], "before")) ask.before = 1;
        else if (more && !strcmp(argv[i], "-o")) {
            ask.out = fopen(argv[++i], "w");
            sure(ask.out != NULL, argv[i], "cannot be written");
        } else if (more && !strcmp(argv[i], "-k")) ask.row = argv[++i];
        else if (more && !strcmp(argv[i], "-t")) ask.tuned = text_of(argv[++i]);
        else if (more && !strcmp(argv[i], "-r")) ask.rest = atoi(argv[++i]);
        else if (more && !strcmp(argv[i], "--arch")) ask.arch = atoi(argv[++i]);
        else if (more && !strcmp(argv[i], "--shared")) ask.shared = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-q")) ask.quick = 1;
        else if (!strcmp(argv[i], "-s")) ask.stateless = 1;
        else if (!strcmp(argv[i], "-w")) ask.tiled = 1;
        else if (!strcmp(argv[i], "-b")) ask.blocks = 1;
        else if (!strcmp(argv[i], "-z")) ask.zeros = 1;
        else if (!strcmp(argv[i], "-e")) ask.expands = 1;
        else if (!asks(argv[i])) ask.word[ask.words++] = argv[i];
    }
    sure(!ask.given.name || (ask.given.hidden && ask.given.inter && ask.given.experts && ask.given.topk), "a shape",
         "needs hidden=, inter=, experts= and topk=");
}

/* ---- one line ---------------------------------------------------------------------------------------------------- */

/* config.block: n, if the format has that choice, else 0. */
static int format_block_of(int quant, int n)
{
    const moek_format *const f = moek_format_of(quant);
    for (int i = 0; i < f->blocks; i++) if (f->block[i] == n) return n;
    return 0;
}

/* The first row of a format whose name holds the word; NULL: let the plan choose. */
static const char *row_with(const char *word, int quant)
{
    int n;
    const moek_kernel *k = moek_kernels(&n);
    for (int i = 0; word && i < n; i++)
        if (k[i].arch && k[i].quant == quant && strstr(k[i].name, word)) return k[i].name;
    return NULL;
}

/* Plans for a row (NULL: the plan's choice), with a workspace.  0: the row is not for this device or shape. */
static int cell_plan(cell *c, const char *kernel)
{
    c->config.kernel = kernel;
    if (moek_plan_init(&c->plan, &c->config) != MOEK_OK) return 0;
    must(moek_plan_bind(&c->plan, c->tiled.w_up ? &c->tiled : &c->w), "moek_plan_bind", c->plan.why);
    mem_free(80, c->workspace);
    c->workspace = mem_alloc(80, moek_workspace_size(&c->plan));
    return 1;
}

static const moek_kernel *cell_row(const cell *c)
{
    const moek_kernel *row = c->of->batched || !c->state ? NULL : moek_plan_layer(&c->plan, c->tokens);
    if (!row && c->state) row = moek_plan_up_down(&c->plan, c->tokens);
    return row ? row : moek_selection_of(&c->plan, c->tokens, MOEK_FUSE_NONE).up;
}

/* Bytes of the zero points of so many rows of an expert; from 4 to 11. */
static size_t cell_zero_bytes(const cell *c, int rows, int columns)
{
    const moek_scale_shape of = moek_weight_scale(moek_format_of(c->config.quant), c->config.block);
    return (size_t)c->config.experts * (size_t)rows *
           moek_element_bytes(moek_format_of(c->config.quant)->w, moek_scale_count(&of, 1, (size_t)columns));
}
static void cell_zeros(cell *c)
{
    fill_codes zeros;
    zeros.width = 4;
    for (int i = 0; i < FILL_CODES; i++) zeros.code[i] = 4 + (uint32_t)i % 8;
    c->w.w_up_zero = filled(cell_zero_bytes(c, 2 * c->config.inter, c->config.hidden), zeros, 11);
    c->w.w_down_zero = filled(cell_zero_bytes(c, c->config.hidden, c->config.inter), zeros, 12);
}
/* Are scales repacked, too? */
static int scales_tiled(int quant, int block)
{
    const moek_scale_shape of = moek_weight_scale(moek_format_of(quant), block);
    return format_in_fragments(moek_format_of(quant)) && of.rows == 1 && of.columns;
}
/* Tiled weights, and what it takes to make them. */
static void cell_tile(cell *c)
{
    const int zeros = c->w.w_up_zero && c->config.block;
    void *const up = mem_alloc(80, c->n.up), *const down = mem_alloc(80, c->n.down);
    const int experts = c->config.experts, scales = scales_tiled(c->config.quant, c->config.block);
    const int down_quant = c->config.down_quant ? c->config.down_quant : c->config.quant;
    const int down_scales = scales_tiled(down_quant, c->config.block);
    cudaEvent_t e[2];
    c->tiled = c->w;
    c->tiled.w_up = up; c->tiled.w_down = down;
    if (scales) c->tiled.w_up_scale = mem_alloc(80, c->n.up_scale);
    if (down_scales) c->tiled.w_down_scale = mem_alloc(80, c->n.down_scale);
    if (zeros) {
        c->tiled.w_up_zero = mem_alloc(80, cell_zero_bytes(c, 2 * c->config.inter, c->config.hidden));
        c->tiled.w_down_zero = mem_alloc(80, cell_zero_bytes(c, c->config.hidden, c->config.inter));
    }
    must(moek_plan_init(&c->plan, &c->config), "moek_plan_init", c->plan.why);
    for (int i = 0; i < 2; i++) CUDA(cudaEventCreate(&e[i]));
    for (int i = 0; i < 2; i++) {                     /* the second time counts */
        CUDA(cudaEventRecord(e[0]));
        must(moek_repack_up(&c->plan, c->w.w_up, up, experts, 0, NULL), "moek_repack_up", NULL);
        must(moek_repack_down(&c->plan, c->w.w_down, down, experts, 0, NULL), "moek_repack_down", NULL);
        if (scales)
            must(moek_repack_up_scale(&c->plan, c->w.w_up_scale, (void *)c->tiled.w_up_scale, experts, 0, NULL),
                 "moek_repack_up_scale", NULL);
        if (down_scales)
            must(moek_repack_down_scale(&c->plan, c->w.w_down_scale, (void *)c->tiled.w_down_scale, experts, 0, NULL),
                 "moek_repack_down_scale", NULL);
        if (zeros)
            must(moek_repack_up_zero(&c->plan, c->w.w_up_zero, (void *)c->tiled.w_up_zero, experts, 0, NULL),
                 "moek_repack_up_zero", NULL);
        if (zeros)
            must(moek_repack_down_zero(&c->plan, c->w.w_down_zero, (void *)c->tiled.w_down_zero, experts, 0, NULL),
                 "moek_repack_down_zero", NULL);
        CUDA(cudaEventRecord(e[1]));
    }
    const double s = ceiling_seconds(e[0], e[1]);
    printf("%-22s %-8s repacked in %.2f ms, %.2f TB/s (read plus written)\n", c->of->name,
           moek_quant_name(c->config.quant), 1e3 * s, 2e-12 * (c->n.up + c->n.down) / s);
    for (int i = 0; i < 2; i++) CUDA(cudaEventDestroy(e[i]));
}

static void cell_new(cell *c, int tokens)
{
    const moek_config *config = &c->config;
    const int dtype = format_dtype_in(moek_format_of(config->quant), 0);
    c->config.max_tokens = c->tokens = tokens;
    c->layers = tokens <= 64 ? LAYERS_MAX : tokens <= 512 ? 4 : 2;
    const size_t slots = (size_t)c->layers * tokens * config->topk;
    c->host_ids = (int32_t *)malloc(4 * slots);
    c->host_weights = (float *)malloc(4 * slots);
    random_routing(c);
    c->ids = (int32_t *)mem_alloc(80, 4 * slots);
    c->weights = (float *)mem_alloc(80, 4 * slots);
    mem_put(80, c->ids, c->host_ids, 4 * slots);
    mem_put(80, c->weights, c->host_weights, 4 * slots);
    c->x = (uint16_t *)filled(2 * (size_t)tokens * config->hidden, fill_t(dtype, 1), 5);
    c->y = (uint16_t *)mem_alloc(80, 2 * (size_t)tokens * config->hidden);
    if (c->w.w_up) return;
    c->n = fill_sizes_of(config, config->experts);
    c->w = filled_weights(config, config->experts, 0);
    if (ask.zeros && moek_format_of(config->quant)->zero) cell_zeros(c);
    if (ask.tiled) cell_tile(c);
}

static void cell_free(cell *c)
{
    free(c->host_ids); free(c->host_weights);
    mem_free(80, c->ids); mem_free(80, c->weights); mem_free(80, c->x); mem_free(80, c->y);
    mem_free(80, c->workspace);
    c->workspace = NULL;
}

static void report(cell *c, const timer *by)
{
    sure(cell_plan(c, row_with(ask.row, c->config.quant)), "moek_plan_init", c->plan.why);
    const double host_us = time_host(c, by);
    const result r = time_cell(c, by, INFINITY);
    const double bytes = weight_bytes(c), flops = 6.0 * c->tokens * c->config.topk * c->config.hidden * c->config.inter;
    const double floor = floor_of(bytes, flops, format_quantizes(moek_format_of(c->config.quant)));
    const double error = ask.quick ? NAN : error_of(c);
    const char *row = cell_row(c)->name, *quant = moek_quant_name(c->config.quant);
    printf("%-22s %-8s %5d %9.1f  %8.1f %8.1f %5.0f %8.1f  %4.0f %%  %7.1f %7.0f  %.1e  %5.1f  %s\n",
           c->of->name, quant, c->tokens, r.us, r.low, r.high, r.mhz, floor,
           100 * floor / r.us, 1e-6 * flops / r.us, 1e-3 * bytes / r.us, error, host_us, row);
    fflush(stdout);
    if (ask.out)
        fprintf(ask.out, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.0f\t%.2f\t%.1f\t%.0f\t%.2e\t%.1f\t%s\n",
                c->of->name, quant, c->tokens, r.us, r.low, r.high, r.mhz, floor,
                1e-6 * flops / r.us, 1e-3 * bytes / r.us, error, host_us, row);
}

static double tune_row(cell *c, const char *kernel, const timer *by, double limit)
{
    const result r = time_cell(c, by, limit);
    printf("%-22s %-8s %5d %9.1f  %8.1f %8.1f  %s%s\n", c->of->name, moek_quant_name(c->config.quant), c->tokens, r.us,
           r.low, r.high, cell_row(c)->name, kernel ? "" : "  (the built-in choice)");
    fflush(stdout);
    return r.us;
}

/* The built-in choice, then every other up, up_down or layer row that this device takes.  What seems faster by less
 * than a hundredth, or only the first time, is not. */
static void tune(cell *c, const char *device, const timer *by)
{
    const moek_kernel *k, *best = NULL, *built_in;
    double us, built_in_us;
    int n;
    sure(cell_plan(c, NULL), "moek_plan_init", c->plan.why);
    built_in = cell_row(c);
    us = built_in_us = tune_row(c, NULL, by, INFINITY);
    k = moek_kernels(&n);
    for (int i = 0; i < n; i++) {
        const int op = k[i].op;
        if (op != MOEK_OP_UP && op != MOEK_OP_LAYER && op != MOEK_OP_UP_DOWN) continue;
        if (k[i].quant != c->config.quant) continue;
        if (&k[i] == built_in || !cell_plan(c, k[i].name) || cell_row(c) != &k[i]) continue;
        const double row_us = tune_row(c, k[i].name, by, us);
        if (row_us < us) us = row_us, best = &k[i];
    }
    if (best && cell_plan(c, NULL)) built_in_us = fmin(built_in_us, tune_row(c, NULL, by, INFINITY));
    if (best && cell_plan(c, best->name)) us = fmax(us, tune_row(c, best->name, by, INFINITY));
    if (!best || us > 0.99 * built_in_us) best = built_in, us = built_in_us;
    if (ask.out)
        fprintf(ask.out, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%.2f\t%.2f\n", device, moek_quant_name(c->config.quant),
                c->config.hidden, c->config.inter, c->config.experts, c->config.topk, c->tokens, best->name, us,
                built_in_us);
}

/* All counts of tokens of a shape and a format, on the same weights. */
static void run_shape(const shape *of, int quant, const char *device, const timer *by, char *cold, void *state)
{
    const int *tokens = ask.counts ? ask.tokens : of->batched ? batched_tokens : all_tokens;
    const int counts = ask.counts ? ask.counts : of->batched ? COUNT(batched_tokens) : COUNT(all_tokens);
    cell c;
    memset(&c, 0, sizeof c);
    c.cold = cold;
    c.state = state;
    c.of = of;
    c.config.hidden = of->hidden; c.config.inter = of->inter;
    c.config.experts = of->experts; c.config.topk = of->topk;
    c.config.quant = quant; c.config.act = MOEK_SILU;
    c.config.down_quant = ask.down;
    c.config.block = ask.block < 0 ? format_block(moek_format_of(quant), 0) : format_block_of(quant, ask.block);
    c.config.format = of->batched ? MOEK_BATCHED : MOEK_STANDARD;
    c.config.exclude = 1u << MOEK_BACKEND_CPU;
    c.config.weight_layout = ask.tiled ? MOEK_WEIGHTS_TILED : ask.blocks ? MOEK_WEIGHTS_BLOCKS
                                                                           : MOEK_WEIGHTS_CHECKPOINT;
    c.config.expand_weights = ask.expands && ask.tiled && !of->batched && moek_format_of(quant)->expands;
    c.config.tuned = ask.tune ? NULL : ask.tuned;
    for (int m = 0; m < counts; m++) {
        if (!wanted(of->name, moek_quant_name(quant), tokens[m])) continue;
        cell_new(&c, tokens[m]);
        if (ask.tune) tune(&c, device, by);
        else report(&c, by);
        cell_free(&c);
    }
    if (c.tiled.w_up_scale != c.w.w_up_scale) mem_free(80, (void *)c.tiled.w_up_scale);
    if (c.tiled.w_down_scale != c.w.w_down_scale) mem_free(80, (void *)c.tiled.w_down_scale);
    if (c.tiled.w_up_zero != c.w.w_up_zero) {
        mem_free(80, (void *)c.tiled.w_up_zero); mem_free(80, (void *)c.tiled.w_down_zero);
    }
    mem_free(80, (void *)c.w.w_up_zero); mem_free(80, (void *)c.w.w_down_zero);
    mem_free(80, (void *)c.tiled.w_up); mem_free(80, (void *)c.tiled.w_down);
    free_weights(&c.w);
}

static void heads(int argc, char **argv, const cudaDeviceProp *device, const timer *by)
{
    char text[256] = "", date[32] = "";
    const time_t today = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&today));
    printf("%s, %d SMs", device->name, device->multiProcessorCount);
    if (ask.arch) printf("; by kernels of sm_%d", ask.arch);
    if (ask.shared) printf("; by kernels of at most %d KB of shared memory a block", ask.shared);
    printf("\n");
    if (!ask.tune && !ask.row) {
        ceiling_all(text, sizeof text, device->multiProcessorCount, by->e0, by->e1);
        printf("ceilings: %s\n", text);
    }
    if (ask.tune)
        printf("%-22s %-8s %5s %9s  %8s %8s  %s\n", "shape", "quant", "M", "us", "min", "max", "row");
    else
        printf("%-22s %-8s %5s %9s  %8s %8s %5s %8s  %6s  %7s %7s  %7s  %5s  %s\n", "shape", "quant", "M", "us",
               "min", "max", "MHz", "floor", "share", "TFLOPS", "GB/s", "error", "host", "row");
    if (!ask.out) return;
    fprintf(ask.out, "# ./moek%s", ask.tune ? "" : " bench");
    for (int i = 1; i < argc; i++) fprintf(ask.out, " %s", argv[i]);
    fprintf(ask.out, "; %s, %d SMs; %s%s%s\n", device->name, device->multiProcessorCount, date, text[0] ? "; " : "",
            text);
    fprintf(ask.out, ask.tune ? "device\tquant\thidden\tinter\texperts\ttopk\ttokens\tup_row\tus\tbuilt_in_us\n"
                              : "shape\tquant\ttokens\tus\tmin_us\tmax_us\tmhz\tfloor_us\ttflops\tweight_gb_s\t"
                                "error\thost_us\trow\n");
}

int main(int argc, char **argv)
{
    timer by;
    cudaDeviceProp device;
    char **const line = (char **)malloc(sizeof *argv * (size_t)(argc + 1));
    memcpy(line, argv, sizeof *argv * (size_t)(argc + 1));
    read_words(argc, line);
    CUDA(cudaGetDeviceProperties(&device, 0));
    CUDA(cudaStreamCreate(&by.stream));
    CUDA(cudaEventCreate(&by.e0));
    CUDA(cudaEventCreate(&by.e1));
    by.stamps = (stamp *)mem_alloc(80, 2 * REPLAYS * sizeof *by.stamps);
    if (ask.before) {
        before_all(&device, &by);
        if (ask.out) fclose(ask.out);
        return 0;
    }
    heads(argc, argv, &device, &by);
    char *cold = (char *)mem_alloc(80, (size_t)128 << 20);
    void *state = ask.stateless ? NULL : mem_alloc(80, moek_state_size());
    if (state) CUDA(cudaMemset(state, 0, moek_state_size()));
    for (int s = 0; s < (ask.given.name ? 1 : COUNT(shapes)); s++)
        for (int q = 0; q < FORMATS; q++) {
            const shape *of = ask.given.name ? &ask.given : &shapes[s];
            if (!format_on_gpu(format_at(q))) continue;
            if (!ask.tune || !of->batched) run_shape(of, format_numbers[q], device.name, &by, cold, state);
        }
    if (ask.out) fclose(ask.out);
    return 0;
}
