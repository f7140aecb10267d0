/* moe_layer.c -- one MoE layer from plain C99, on the GPU or, without one, on the CPU.
 *
 *   cc -O3 -Iinclude examples/moe_layer.c examples/moek.c -lm -o moe_layer
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_BF16 -DEXAMPLE_CUDA -Iinclude \
 *        examples/moe_layer.c examples/moek.cu -o moe_layer
 *   ./moe_layer [TOKENS]
 *
 * The kernels are in examples/moek.c or moek.cu, which are two lines long; this file knows nothing of them.  example.h,
 * beside it, has the memory and the plain loop to compare with. */
#include "example.h"

enum { HIDDEN = 512, INTER = 256, EXPERTS = 16, TOPK = 4, MAX_TOKENS = 64 };

typedef struct host_layer { uint16_t *up, *down, *x; float logits[MAX_TOKENS * EXPERTS]; } host_layer;

static host_layer *random_layer(void)
{
    host_layer *l = (host_layer *)malloc(sizeof *l);
    int i;
    example_must(l != NULL, "malloc", "out of memory");
    l->up = example_random((size_t)EXPERTS * 2 * INTER * HIDDEN, 0.08f, 1);
    l->down = example_random((size_t)EXPERTS * HIDDEN * INTER, 0.1f, 2);
    l->x = example_random((size_t)MAX_TOKENS * HIDDEN, 1, 3);
    for (i = 0; i < MAX_TOKENS * EXPERTS; i++) l->logits[i] = (float)(i * 7919 % 1009) / 250.0f;
    return l;
}

/* Token t by a plain loop, from the experts that the router chose. */
static double error_of(const host_layer *l, int t, const int32_t *ids, const float *weights, const uint16_t *y)
{
    double want[HIDDEN] = { 0 };
    int k;
    for (k = t * TOPK; k < (t + 1) * TOPK; k++) {
        const size_t e = (size_t)ids[k];
        example_expert(want, l->x + t * HIDDEN, l->up + e * 2 * INTER * HIDDEN, l->down + e * HIDDEN * INTER,
                       HIDDEN, INTER, weights[k]);
    }
    return example_error(y + t * HIDDEN, want, HIDDEN);
}

int main(int argc, char **argv)
{
    const int tokens = argc > 1 ? atoi(argv[1]) : 5;
    static uint16_t y[MAX_TOKENS * HIDDEN];
    static float topk_weights[MAX_TOKENS * TOPK];
    static int32_t topk_ids[MAX_TOKENS * TOPK];
    host_layer *host = random_layer();
    double error;
    const moek_format *format;
    moek_plan plan;
    moek_status status;
    char why[256] = "", text[2000];
    moek_config config;
    moek_weights weights;
    moek_args args;
    example_must(tokens > 0, "TOKENS", "at least 1");

    /* 1. Say what the layer is.  What is left out is zero, and zero is the default. */
    memset(&config, 0, sizeof config);
    config.hidden = HIDDEN; config.inter = INTER; config.experts = EXPERTS; config.topk = TOPK;
    config.quant = MOEK_BF16; config.act = MOEK_SILU; config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    config.max_tokens = MAX_TOKENS;
    config.exclude = EXAMPLE_EXCLUDE;

    /* 2. Plan once.  A plan is a plain value that owns nothing: keep it, copy it, drop it. */
    example_must(moek_plan_init(&plan, &config) == MOEK_OK, "moek_plan_init", plan.why);
    moek_describe(&plan, text, sizeof text);
    fputs(text, stdout);

    /* 3. Bring the weights, where the plan works.  The library never allocates: we do. */
    memset(&weights, 0, sizeof weights);
    format = moek_format_of(config.quant);             /* how many bytes a row has; scales: moek_scale_bytes */
    weights.w_up = example_new(plan.device, host->up,
                               (size_t)EXPERTS * 2 * INTER * moek_element_bytes(format->w, HIDDEN));
    weights.w_down = example_new(plan.device, host->down,
                                 (size_t)EXPERTS * HIDDEN * moek_element_bytes(format->w, INTER));
    example_must(moek_plan_bind(&plan, &weights) == MOEK_OK, "moek_plan_bind", plan.why);

    /* 4. Run.  On a GPU these are launches on a stream: no allocation, no synchronization, safe in a graph. */
    memset(&args, 0, sizeof args);
    args.tokens = tokens;
    args.x = example_new(plan.device, host->x, (size_t)MAX_TOKENS * HIDDEN * 2);
    args.router_logits = example_new(plan.device, host->logits, sizeof host->logits);
    args.topk_ids = (int32_t *)example_new(plan.device, NULL, sizeof topk_ids);       /* written; may be left out */
    args.topk_weights = (float *)example_new(plan.device, NULL, sizeof topk_weights);
    args.y = example_new(plan.device, NULL, sizeof y);
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(plan.device, NULL, args.workspace_size);             /* layers may share it */
    args.why = why; args.why_size = sizeof why;
    status = moek_run(&plan, &args, NULL);
    example_must(status == MOEK_OK, moek_status_name(status), why);

    example_get(plan.device, y, args.y, sizeof y);
    example_get(plan.device, topk_ids, args.topk_ids, sizeof topk_ids);
    example_get(plan.device, topk_weights, args.topk_weights, sizeof topk_weights);
    error = error_of(host, tokens - 1, topk_ids, topk_weights, y);
    printf("token %d is off by %.2e of a plain loop: %s\n", tokens - 1, error, error < 0.01 ? "ok" : "WRONG");

    example_free(plan.device, weights.w_up), example_free(plan.device, weights.w_down);
    example_free(plan.device, args.x), example_free(plan.device, args.router_logits), example_free(plan.device, args.y);
    example_free(plan.device, args.topk_ids), example_free(plan.device, args.topk_weights);
    example_free(plan.device, args.workspace);
    free(host->up), free(host->down), free(host->x), free(host);
    return !(error < 0.01);
}
