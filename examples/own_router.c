/* own_router.c -- an engine with its own router, and work of its own between the stages of a layer.
 *
 *   cc -O3 -Iinclude examples/own_router.c examples/moek.c -lm -o own_router && ./own_router
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_BF16 -DEXAMPLE_CUDA -Iinclude \
 *        examples/own_router.c examples/moek.cu -o own_router && ./own_router
 *
 * Leave router_logits NULL, and topk_ids and topk_weights are read instead of written.  Then the stages: moek_run is
 * nothing but begin, route, prepare, experts, finalize; an engine may call them one by one. */
#include "example.h"

enum { HIDDEN = 256, INTER = 128, EXPERTS = 8, TOPK = 2, TOKENS = 6 };

/* Here token t goes to expert t and its neighbour; the last token is padding, which no expert sees. */
static void route(int32_t *ids, float *weights)
{
    int t;
    for (t = 0; t < TOKENS; t++) {
        ids[t * TOPK] = t < TOKENS - 1 ? t % EXPERTS : -1;
        ids[t * TOPK + 1] = t < TOKENS - 1 ? (t + 1) % EXPERTS : -1;
        weights[t * TOPK] = 0.75f;
        weights[t * TOPK + 1] = 0.25f;
    }
}
static void must(moek_status status, const char *why)
{
    example_must(status == MOEK_OK, moek_status_name(status), why);
}

/* The layer stage by stage.  Between them is where an engine overlaps: other streams, another batch, shared experts. */
static void run_stages(const moek_plan *plan, const moek_args *args, const char *why)
{
    moek_step step;
    must(moek_begin(plan, args, &step), why);          /* checks; lays out the workspace; launches nothing */
    must(moek_route(&step, NULL), why);                /* takes the given ids, and maps them to experts of this rank */
    must(moek_prepare_send(&step, NULL), why);
    must(moek_prepare_receive(&step, NULL), why);
    printf("%d rows go to the experts\n", step.rows);
    must(moek_experts_apply(&step, NULL), why);
    must(moek_finalize_send(&step, NULL), why);
    /* Here y may still be waited for: our own work, on `step.args.shared_y` say, hides behind the exchange. */
    must(moek_finalize_receive(&step, NULL), why);
}

/* Of token 0. */
static double error_of(const uint16_t *up, const uint16_t *down, const uint16_t *x, const int32_t *ids,
                       const float *weights, const uint16_t *y)
{
    double want[HIDDEN] = { 0 };
    int k;
    for (k = 0; k < TOPK; k++)
        example_expert(want, x, up + ids[k] * 2 * INTER * HIDDEN, down + ids[k] * HIDDEN * INTER,
                       HIDDEN, INTER, weights[k]);
    return example_error(y, want, HIDDEN);
}

int main(void)
{
    const size_t up_size = (size_t)EXPERTS * 2 * INTER * HIDDEN, down_size = (size_t)EXPERTS * HIDDEN * INTER;
    uint16_t *up = example_random(up_size, 0.1f, 1), *down = example_random(down_size, 0.15f, 2);
    uint16_t *x = example_random(TOKENS * HIDDEN, 1, 3);
    static uint16_t y[TOKENS * HIDDEN], again[TOKENS * HIDDEN];
    int32_t ids[TOKENS * TOPK];
    float topk_weights[TOKENS * TOPK];
    char why[256] = "";
    double error, padding = 0;
    int j, ok, same;
    moek_config config;
    moek_plan plan;
    moek_weights weights;
    moek_args args;

    memset(&config, 0, sizeof config);
    config.hidden = HIDDEN; config.inter = INTER; config.experts = EXPERTS; config.topk = TOPK;
    config.quant = MOEK_BF16; config.act = MOEK_SILU;
    config.max_tokens = TOKENS; config.exclude = EXAMPLE_EXCLUDE;
    example_must(moek_plan_init(&plan, &config) == MOEK_OK, "moek_plan_init", plan.why);
    memset(&weights, 0, sizeof weights);
    weights.w_up = example_new(plan.device, up, 2 * up_size);
    weights.w_down = example_new(plan.device, down, 2 * down_size);
    example_must(moek_plan_bind(&plan, &weights) == MOEK_OK, "moek_plan_bind", plan.why);

    route(ids, topk_weights);
    memset(&args, 0, sizeof args);
    args.tokens = TOKENS;
    args.x = example_new(plan.device, x, sizeof y);
    args.topk_ids = (int32_t *)example_new(plan.device, ids, sizeof ids);
    args.topk_weights = (float *)example_new(plan.device, topk_weights, sizeof topk_weights);
    args.y = example_new(plan.device, NULL, sizeof y);
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(plan.device, NULL, args.workspace_size);
    args.why = why; args.why_size = sizeof why;
    must(moek_run(&plan, &args, NULL), why);
    example_get(plan.device, y, args.y, sizeof y);
    run_stages(&plan, &args, why);
    example_get(plan.device, again, args.y, sizeof again);

    same = !memcmp(y, again, sizeof y);
    error = error_of(up, down, x, ids, topk_weights, y);
    for (j = 0; j < HIDDEN; j++) padding += fabs(example_float(y[(TOKENS - 1) * HIDDEN + j]));
    ok = same && error < 0.01 && padding == 0;
    printf("stages and moek_run give %s bits; off by %.2e of a plain loop; padding is %g: %s\n",
           same ? "the same" : "OTHER", error, padding, ok ? "ok" : "WRONG");

    example_free(plan.device, weights.w_up), example_free(plan.device, weights.w_down);
    example_free(plan.device, args.topk_ids), example_free(plan.device, args.topk_weights);
    example_free(plan.device, args.x), example_free(plan.device, args.y), example_free(plan.device, args.workspace);
    free(up), free(down), free(x);
    return !ok;
}
