/* before.h -- what comes before the GEMMs: routing, sort and quantization of x (by blocks), each alone and together, as
 * moek_run launches them.  One CUDA graph holds BEFORE_TIMES of them, on logits of BEFORE_LOGITS runs in turn, launched
 * as behind each other in a layer; the figure is the median replay's mean.  CUDA C++, for bench.cu alone. */
#ifndef BEFORE_H
#define BEFORE_H

enum { BEFORE_TIMES = 32, BEFORE_LOGITS = 8, BEFORE_MOST = 8192 };
enum { BEFORE_ROUTE, BEFORE_SORT, BEFORE_QUANT, BEFORE_ALL, BEFORE_KINDS };

typedef struct before {
    const char *name;
    moek_config config;
    moek_plan plan;
    moek_args args;
    float *logits;                                    /* [BEFORE_LOGITS][BEFORE_MOST][experts] */
    int32_t *counts, *offsets, *order, *flags;
    void *q, *scale;
} before;

static void before_launch(const before *b, int kind, int turn, cudaStream_t stream)
{
    const int early = kind == BEFORE_ALL && b->plan.arch >= 90 ? 2 : 0;
    moek_args args = b->args;
    moek_step step;
    moek_sort_args s;
    args.router_logits = b->logits + (size_t)turn % BEFORE_LOGITS * BEFORE_MOST * b->config.experts;
    must(moek_begin(&b->plan, &args, &step), "moek_begin", "");
    if (kind == BEFORE_ROUTE || kind == BEFORE_ALL) must(moek_route(&step, stream), "moek_route", "");
    if (kind == BEFORE_QUANT || kind == BEFORE_ALL) {
        moek_quant_args q;
        memset(&q, 0, sizeof q);
        q.rows = args.tokens; q.cols = b->config.hidden; q.source_div = 1;
        q.dtype = MOEK_DTYPE_BF16; q.x = args.x; q.q = b->q; q.scale = b->scale;
        q.early = early;
        must(b->plan.chosen.quant->launch(&q, stream), "quant", "");
    }
    if (kind != BEFORE_SORT && kind != BEFORE_ALL) return;
    memset(&s, 0, sizeof s);
    s.slots = args.tokens * b->config.topk; s.experts = b->config.experts;
    s.ids = step.topk_ids; s.counts = b->counts; s.offsets = b->offsets; s.order = b->order;
    s.zero = b->flags; s.zeros = 2 * MOEK_SPLITS;
    s.early = early;
    must(b->plan.chosen.sort->launch(&s, stream), "sort", "");
}

static result before_time(const before *b, int kind, const timer *by)
{
    cudaGraph_t graph;
    CUDA(cudaStreamSynchronize(by->stream));
    CUDA(cudaStreamBeginCapture(by->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < BEFORE_TIMES; i++) before_launch(b, kind, i, by->stream);
    CUDA(cudaStreamEndCapture(by->stream, &graph));
    return time_graph(graph, BEFORE_TIMES, NULL, by, INFINITY);
}

static __global__ void fill_f32_k(float *array, size_t n, uint32_t seed, float deviation)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        array[i] = fill_normal(i, seed) * deviation;
}
/* Normal numbers, of which few are equal: logits. */
static float *filled_f32(size_t n, uint32_t seed, float deviation)
{
    float *p = (float *)mem_alloc(80, 4 * n);
    fill_f32_k<<<1024, 256>>>(p, n, seed, deviation);
    mem_must(cudaGetLastError());
    return p;
}

/* Weights are not read, so that what there is may stand for them. */
static void before_model(const char *name, moek_config config, const timer *by)
{
    static const int tokens[] = { 1, 8, 32, 128, 512, 2048, 8192 };
    const size_t slots = (size_t)BEFORE_MOST * config.topk, x = (size_t)BEFORE_MOST * config.hidden;
    const moek_format *const f = moek_format_of(FORMAT_BLOCKED);
    before b;
    moek_weights w;
    memset(&b, 0, sizeof b);
    memset(&w, 0, sizeof w);
    config.quant = f->number;
    config.max_tokens = BEFORE_MOST;
    config.exclude = 1u << MOEK_BACKEND_CPU;
    b.name = name; b.config = config;
    must(moek_plan_init(&b.plan, &config), "moek_plan_init", b.plan.why);
    b.logits = filled_f32((size_t)BEFORE_LOGITS * BEFORE_MOST * config.experts, 1, 1);
    w.w_up = w.w_down = b.logits; w.w_up_scale = w.w_down_scale = b.logits;
    if (config.groups) w.router_bias = filled_f32((size_t)config.experts, 2, 0.1f);
    must(moek_plan_bind(&b.plan, &w), "moek_plan_bind", b.plan.why);
    b.args.x = filled(2 * x, fill_t(MOEK_DTYPE_BF16, 1), 3); b.args.y = mem_alloc(80, 2 * x);
    b.args.topk_ids = (int32_t *)mem_alloc(80, 4 * slots); b.args.topk_weights = (float *)mem_alloc(80, 4 * slots);
    b.args.workspace_size = moek_workspace_size(&b.plan);
    b.args.workspace = mem_alloc(80, b.args.workspace_size);
    b.counts = (int32_t *)mem_alloc(80, 4 * (size_t)config.experts);
    b.offsets = (int32_t *)mem_alloc(80, 4 * (size_t)config.experts + 4);
    b.order = (int32_t *)mem_alloc(80, 4 * slots);
    b.flags = (int32_t *)mem_alloc(80, 8 * MOEK_SPLITS);
    b.q = mem_alloc(80, moek_element_bytes(f->x, x)); b.scale = mem_alloc(80, moek_scale_bytes(&f->x_scale, 1, x));
    for (int m = 0; m < COUNT(tokens); m++) {
        double us[BEFORE_KINDS], mhz = 0;
        b.args.tokens = tokens[m];
        for (int k = 0; k < BEFORE_KINDS; k++) {
            const result r = before_time(&b, k, by);
            us[k] = r.us;
            mhz = r.mhz;
        }
        printf("%-16s %7d %6d %6d  %8.2f %8.2f %8.2f  %8.2f %5.0f\n", name, config.experts, config.hidden, tokens[m],
               us[BEFORE_ROUTE], us[BEFORE_SORT], us[BEFORE_QUANT], us[BEFORE_ALL], mhz);
        fflush(stdout);
        if (ask.out)
            fprintf(ask.out, "%s\t%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\n", name, config.experts, config.hidden,
                    tokens[m], us[BEFORE_ROUTE], us[BEFORE_SORT], us[BEFORE_QUANT], us[BEFORE_ALL], mhz);
    }
    mem_free(80, b.logits); mem_free(80, (void *)w.router_bias); mem_free(80, (void *)b.args.x);
    mem_free(80, b.args.y); mem_free(80, b.args.topk_ids); mem_free(80, b.args.topk_weights);
    mem_free(80, b.args.workspace); mem_free(80, b.counts); mem_free(80, b.offsets); mem_free(80, b.order);
    mem_free(80, b.flags); mem_free(80, b.q); mem_free(80, b.scale);
}

static void before_all(const cudaDeviceProp *device, const timer *by)
{
    const moek_config qwen = MOEK_QWEN3_30B_A3B, deepseek = MOEK_DEEPSEEK_V3;
    printf("%s, %d SMs; microseconds\n", device->name, device->multiProcessorCount);
    printf("%-16s %7s %6s %6s  %8s %8s %8s  %8s %5s\n", "model", "experts", "hidden", "M", "route", "sort", "quant",
           "all", "MHz");
    if (ask.out)
        fprintf(ask.out, "# ./moek bench before; %s, %d SMs\nmodel\texperts\thidden\ttokens\troute_us\tsort_us\t"
                         "quant_us\tall_us\tmhz\n", device->name, device->multiProcessorCount);
    before_model("qwen3-30b-a3b", qwen, by);
    before_model("deepseek-v3", deepseek, by);
}
#endif
