/* bench.cu -- whole layers on a GPU: one line a cell.
 *
 *   ./moek bench [words ...]                 cells whose "shape quant M" line holds every word
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude bench/bench.cu -o bench
 *   ./bench [-o results.tsv] [-k up_fp8b128_h0_on_sm90_m16] [-s] [-q] [words ...]
 *                                            -k: with the first row of the format whose name holds this
 *                                            -s: without args.state
 *                                            -q: without the error, which the host takes seconds for
 *
 * A cell is one shape, format and number of tokens, from given top-k ids and weights to y: sorting, quantization, both
 * GEMMs and the weighted sum.  Method: one CUDA graph holds several layers with different uniform random routings, so
 * that the weights of small batches come from memory and not from L2; the figure is the mean a layer of the median
 * replay.  The floor is the larger of (weight bytes of the experts in use) / 4.27 TB/s and FLOPs / 1500 (fp8) or 800
 * (bf16) TFLOPS, ceilings of an H200.  The error is the relative L2 distance of one token to the double-precision
 * reference. */
#ifndef BENCH_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "../tests/mem.h"
#include "../tests/ref.h"
#include "fill.h"

enum { LAYERS_MAX = 8, REPLAYS = 21, WARM_UPS = 3 };

static const struct { const char *name; int experts, hidden, inter, topk; } shapes[] = {
    { "deepseek-v3-tp8",      256, 7168, 256,   8 },
    { "qwen3-30b-a3b",        128, 2048, 768,   8 },
    { "mixtral-8x7b",         8,   4096, 14336, 2 },
    { "deepseek-v3-32-local", 32,  7168, 2048,  8 },
    { "qwen3-235b-tp4",       128, 4096, 384,   8 },
};
static const int all_tokens[] = { 1, 4, 8, 16, 32, 64, 128, 512, 1024, 2048, 8192 };

#define CUDA(call) mem_must(call)

static void must(moek_status status, const char *what, const char *why)
{
    if (status == MOEK_OK) return;
    printf("bench: %s: %s: %s\n", what, moek_status_name(status), why && why[0] ? why : moek_status_text(status));
    exit(1);
}

static __global__ void fill_k(void *array, size_t n, int element, uint32_t seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        if (element == 1) ((uint8_t *)array)[i] = fill_e4m3(i, seed);
        else if (element == 2) ((uint16_t *)array)[i] = fill_t(i, seed, scale, MOEK_DTYPE_BF16);
        else ((float *)array)[i] = fill_scale(i, seed, scale);
    }
}
static void *filled(size_t n, int element, uint32_t seed, float scale)
{
    void *p = NULL;
    if (!n) return p;
    p = mem_alloc(80, n * (size_t)element);
    fill_k<<<1024, 256>>>(p, n, element, seed, scale);
    CUDA(cudaGetLastError());
    return p;
}

/* ---- ceilings of this machine ------------------------------------------------------------------------------------ */

static __global__ void read_k(const uint4 *p, size_t n, uint4 *out)
{
    uint4 sum = make_uint4(0, 0, 0, 0);
    const size_t step = (size_t)gridDim.x * blockDim.x * 8;
    for (size_t i = blockIdx.x * (size_t)blockDim.x * 8 + threadIdx.x; i + 7 * blockDim.x < n; i += step) {
        uint4 v[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(p + i + j * blockDim.x);
        #pragma unroll
        for (int j = 0; j < 8; j++) { sum.x ^= v[j].x; sum.y ^= v[j].y; sum.z ^= v[j].z; sum.w ^= v[j].w; }
    }
    if (sum.x == 0x12345678 && sum.y == 0x9abcdef0) *out = sum;
}

static double timed(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    CUDA(cudaEventSynchronize(b));
    CUDA(cudaEventElapsedTime(&ms, a, b));
    return 1e-3 * ms;
}

static void ceilings(cudaEvent_t e0, cudaEvent_t e1)
{
    const size_t bytes = (size_t)4 << 30;
    char *a = (char *)mem_alloc(80, bytes), *b = (char *)mem_alloc(80, bytes);
    double copy = 1e9, read = 1e9;
    for (int i = 0; i < 6; i++) {
        CUDA(cudaEventRecord(e0));
        CUDA(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice));
        CUDA(cudaEventRecord(e1));
        copy = fmin(copy, timed(e0, e1));
        CUDA(cudaEventRecord(e0));
        read_k<<<132 * 4, 512>>>((const uint4 *)a, bytes / 16, (uint4 *)b);
        CUDA(cudaEventRecord(e1));
        read = fmin(read, timed(e0, e1));
    }
    printf("ceilings: copy %.2f TB/s (read plus written), pure read %.2f TB/s\n",
           2e-12 * bytes / copy, 1e-12 * bytes / read);
    mem_free(80, a);
    mem_free(80, b);
}

/* ---- one cell ---------------------------------------------------------------------------------------------------- */

typedef struct cell {
    moek_config config;
    moek_plan plan;
    moek_weights w;
    fill_sizes n;
    int tokens, layers;
    int32_t *host_ids, *ids;                          /* [layers][tokens][topk] */
    float *host_weights, *weights;
    uint16_t *x, *y;
    void *workspace, *state;
    char *cold;                                       /* written before a replay, so that L2 holds nothing of use */
} cell;

static int quick, stateless;
static uint32_t route_state;
static uint32_t route_random(void) { route_state = route_state * 1664525u + 1013904223u; return route_state >> 8; }

/* Uniform random routing: topk distinct experts a token. */
static void random_routing(cell *c)
{
    const int k = c->config.topk, n = c->layers * c->tokens;
    route_state = 12345;
    for (int t = 0; t < n; t++)
        for (int i = 0; i < k; i++) {
            int32_t *ids = c->host_ids + (size_t)t * k;
            int again = 1;
            while (again) {
                ids[i] = (int32_t)(route_random() % (uint32_t)c->config.experts);
                again = 0;
                for (int j = 0; j < i; j++) again |= ids[j] == ids[i];
            }
            c->host_weights[(size_t)t * k + i] = 1.0f / k + 0.01f * (float)i;
        }
}

/* Mean weight bytes a layer of the experts in use. */
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
    return active / c->layers / c->config.experts * ((double)(c->n.up + c->n.down) * c->n.element);
}

/* The experts of the last layer's last token, brought to the host, through the reference. */
static double error_of(const cell *c)
{
    const int k = c->config.topk, h = c->config.hidden;
    const size_t token = (size_t)c->layers * c->tokens - 1;
    const fill_sizes one = fill_sizes_of(&c->config, 1), part = fill_sizes_of(&c->config, k);
    uint8_t *up = (uint8_t *)malloc(part.up * part.element), *down = (uint8_t *)malloc(part.down * part.element);
    float *up_scale = (float *)malloc(4 * part.up_scale + 4), *down_scale = (float *)malloc(4 * part.down_scale + 4);
    uint16_t *x = (uint16_t *)malloc(2 * h), *y = (uint16_t *)malloc(2 * h);
    double *want = (double *)malloc(sizeof(double) * h);
    float fixed;
    int32_t ids[32];
    ref_layer_args r;
    moek_weights w;
    memset(&r, 0, sizeof r);
    memset(&w, 0, sizeof w);
    for (int i = 0; i < k; i++) {
        const size_t e = (size_t)c->host_ids[token * k + i], el = one.element;
        mem_get(80, up + i * one.up * el, (const char *)c->w.w_up + e * one.up * el, one.up * el);
        mem_get(80, down + i * one.down * el, (const char *)c->w.w_down + e * one.down * el, one.down * el);
        if (one.up_scale)
            mem_get(80, up_scale + i * one.up_scale, c->w.w_up_scale + e * one.up_scale, 4 * one.up_scale);
        if (one.down_scale)
            mem_get(80, down_scale + i * one.down_scale, c->w.w_down_scale + e * one.down_scale, 4 * one.down_scale);
        ids[i] = i;
    }
    mem_get(80, x, c->x + (size_t)(c->tokens - 1) * h, 2 * h);
    mem_get(80, y, c->y + (size_t)(c->tokens - 1) * h, 2 * h);
    w.w_up = up; w.w_down = down; w.w_up_scale = up_scale; w.w_down_scale = down_scale;
    if (c->w.x_scale) {
        mem_get(80, &fixed, c->w.x_scale, 4);
        w.x_scale = w.h_scale = &fixed;
    }
    r.tokens = 1; r.hidden = h; r.inter = c->config.inter; r.slots = k; r.experts = k;
    r.quant = c->config.quant; r.dtype = c->plan.config.dtype; r.act = c->config.act; r.alpha = 1;
    r.up_layout = MOEK_UP_HALVES;
    r.x = x; r.ids = ids; r.weights = c->host_weights + token * k; r.w = &w;
    ref_layer(&r, want);
    const ref_distance d = ref_compare_t(y, want, h, r.dtype);
    const double error = d.same_nonfinite ? d.rel_l2 : INFINITY;
    free(up); free(down); free(up_scale); free(down_scale); free(x); free(y); free(want);
    return error;
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

typedef struct result { double us, low, high, host_us; } result;

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static result time_cell(const cell *c, cudaStream_t stream, cudaEvent_t e0, cudaEvent_t e1)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double t[REPLAYS];
    result r;
    CUDA(cudaStreamSynchronize(stream));
    r.host_us = now();
    for (int i = 0; i < 32; i++) run_layer(c, i % c->layers, stream);
    r.host_us = (now() - r.host_us) * 1e6 / 32;
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int l = 0; l < c->layers; l++) run_layer(c, l, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaMemsetAsync(c->y, 0xff, 2 * (size_t)c->tokens * c->config.hidden, stream));
    for (int i = -WARM_UPS; i < REPLAYS; i++) {
        CUDA(cudaMemsetAsync(c->cold, i, (size_t)128 << 20, stream));
        CUDA(cudaEventRecord(e0, stream));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaEventRecord(e1, stream));
        const double s = timed(e0, e1);
        if (i >= 0) t[i] = 1e6 * s / c->layers;
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    qsort(t, REPLAYS, sizeof t[0], by_value);
    r.us = t[REPLAYS / 2]; r.low = t[0]; r.high = t[REPLAYS - 1];
    return r;
}

static void report(const cell *c, const char *name, FILE *out, cudaStream_t stream, cudaEvent_t e0, cudaEvent_t e1)
{
    const result r = time_cell(c, stream, e0, e1);
    const double bytes = weight_bytes(c), flops = 6.0 * c->tokens * c->config.topk * c->config.hidden * c->config.inter;
    const double floor_bytes = 1e6 * bytes / 4.27e12;
    const double floor_flops = 1e6 * flops / (c->n.element == 1 ? 1500e12 : 800e12);
    const double floor = floor_bytes > floor_flops ? floor_bytes : floor_flops, error = quick ? NAN : error_of(c);
    const moek_kernel *const layer = moek_plan_layer(&c->plan, c->tokens);
    const char *up = (layer ? layer : c->plan.up[moek_plan_tile(&c->plan, c->tokens)])->name;
    const char *quant = moek_quant_name(c->config.quant);
    printf("%-21s %-8s %5d %9.1f  %8.1f %8.1f %8.1f  %4.0f %%  %7.1f %7.0f  %.1e  %5.1f  %s\n",
           name, quant, c->tokens, r.us, r.low, r.high, floor,
           100 * floor / r.us, 1e-6 * flops / r.us, 1e-3 * bytes / r.us, error, r.host_us, up);
    fflush(stdout);
    if (out)
        fprintf(out, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.0f\t%.2e\t%.1f\t%s\n",
                name, quant, c->tokens, r.us, r.low, r.high, floor,
                1e-6 * flops / r.us, 1e-3 * bytes / r.us, error, r.host_us, up);
}

static int wanted(const char *name, const char *quant, int tokens, char **words, int count)
{
    char line[128];
    int named = !strcmp(quant, "bf16") || !strcmp(quant, "fp8b128");           /* the others: when they are asked for */
    snprintf(line, sizeof line, "%s %s M=%d.", name, quant, tokens);
    for (int i = 0; i < count; i++) named |= !strcmp(words[i], quant);
    if (!named) return 0;
    for (int i = 0; i < count; i++) if (!strstr(line, words[i])) return 0;
    return 1;
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

int main(int argc, char **argv)
{
    FILE *out = NULL;
    const char *word = NULL;
    cudaStream_t stream;
    cudaEvent_t e0, e1;
    cudaDeviceProp device;
    static const int quants[] = { MOEK_BF16, MOEK_FP8B128, MOEK_FP8T, MOEK_FP8C };
    if (argc > 2 && !strcmp(argv[1], "-o")) { out = fopen(argv[2], "w"); argc -= 2; argv += 2; }
    if (argc > 2 && !strcmp(argv[1], "-k")) { word = argv[2]; argc -= 2; argv += 2; }
    if (argc > 1 && !strcmp(argv[1], "-s")) { stateless = 1; argc--; argv++; }
    if (argc > 1 && !strcmp(argv[1], "-q")) { quick = 1; argc--; argv++; }
    CUDA(cudaGetDeviceProperties(&device, 0));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreate(&e0));
    CUDA(cudaEventCreate(&e1));
    printf("%s, %d SMs\n", device.name, device.multiProcessorCount);
    if (!word) ceilings(e0, e1);
    printf("%-21s %-8s %5s %9s  %8s %8s %8s  %6s  %7s %7s  %7s  %5s  %s\n",
           "shape", "quant", "M", "us", "min", "max", "floor", "share", "TFLOPS", "GB/s", "error", "host", "row");
    if (out)
        fprintf(out, "# %s; bench -o\nshape\tquant\ttokens\tus\tmin_us\tmax_us\tfloor_us\ttflops\tweight_gb_s\t"
                "error\thost_us\trow\n", device.name);
    char *cold = (char *)mem_alloc(80, (size_t)128 << 20);
    void *state = mem_alloc(80, moek_state_size());
    CUDA(cudaMemset(state, 0, moek_state_size()));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t q = 0; q < sizeof quants / sizeof quants[0]; q++) {
            cell c;
            memset(&c, 0, sizeof c);
            c.cold = cold;
            c.state = stateless ? NULL : state;
            for (size_t m = 0; m < sizeof all_tokens / sizeof all_tokens[0]; m++) {
                if (!wanted(shapes[s].name, moek_quant_name(quants[q]), all_tokens[m], argv + 1, argc - 1)) continue;
                moek_config config;
                memset(&config, 0, sizeof config);
                config.hidden = shapes[s].hidden; config.inter = shapes[s].inter;
                config.experts = shapes[s].experts; config.topk = shapes[s].topk;
                config.quant = quants[q]; config.act = MOEK_SILU; config.max_tokens = c.tokens = all_tokens[m];
                config.kernel = row_with(word, quants[q]);
                c.config = config;
                must(moek_plan_init(&c.plan, &config), "moek_plan_init", c.plan.why);
                if (!c.w.w_up) {
                    const float up = 1.0f / sqrtf((float)config.hidden), down = 1.0f / sqrtf((float)config.inter);
                    c.n = fill_sizes_of(&config, config.experts);
                    c.w.w_up = filled(c.n.up, c.n.element, 1, up);
                    c.w.w_down = filled(c.n.down, c.n.element, 2, down);
                    c.w.w_up_scale = (float *)filled(c.n.up_scale, 4, 3, up);
                    c.w.w_down_scale = (float *)filled(c.n.down_scale, 4, 4, down);
                    if (quants[q] == MOEK_FP8T) c.w.x_scale = c.w.h_scale = (float *)filled(1, 4, 7, 1);
                }
                must(moek_plan_bind(&c.plan, &c.w), "moek_plan_bind", c.plan.why);
                c.layers = c.tokens <= 64 ? LAYERS_MAX : c.tokens <= 512 ? 4 : 2;
                const size_t slots = (size_t)c.layers * c.tokens * config.topk;
                c.host_ids = (int32_t *)malloc(4 * slots);
                c.host_weights = (float *)malloc(4 * slots);
                random_routing(&c);
                c.ids = (int32_t *)mem_alloc(80, 4 * slots);
                c.weights = (float *)mem_alloc(80, 4 * slots);
                mem_put(80, c.ids, c.host_ids, 4 * slots);
                mem_put(80, c.weights, c.host_weights, 4 * slots);
                c.x = (uint16_t *)filled((size_t)c.tokens * config.hidden, 2, 5, 1);
                c.y = (uint16_t *)mem_alloc(80, 2 * (size_t)c.tokens * config.hidden);
                c.workspace = mem_alloc(80, moek_workspace_size(&c.plan));
                report(&c, shapes[s].name, out, stream, e0, e1);
                free(c.host_ids); free(c.host_weights);
                mem_free(80, c.ids); mem_free(80, c.weights); mem_free(80, c.x); mem_free(80, c.y);
                mem_free(80, c.workspace);
            }
            if (c.w.w_up) {
                mem_free(80, (void *)c.w.w_up); mem_free(80, (void *)c.w.w_down);
                mem_free(80, (void *)c.w.w_up_scale); mem_free(80, (void *)c.w.w_down_scale);
            }
        }
    if (out) fclose(out);
    return 0;
}
