/* fixed_layer.cu -- selection at compile time: an engine that serves one model compiles the rows of that model only.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/fixed_layer.cu -o fixed_layer && ./fixed_layer
 *   cc -O3 -Iinclude -x c examples/fixed_layer.cu -lm -o fixed_layer && ./fixed_layer
 *   c++ -O3 -Iinclude -x c++ examples/fixed_layer.cu -o fixed_layer && ./fixed_layer
 *
 * Rows of other formats, and of other hidden sizes where one is baked in, are neither compiled nor listed. */
#define MOEK_HIDDEN 2048
#define MOEK_QUANT MOEK_FP8B128
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include "example.h"

enum { HIDDEN = MOEK_HIDDEN, INTER = 128, EXPERTS = 4, TOPK = 2, TOKENS = 3, BLOCKS = HIDDEN / 128 };

static moek_config config_of(int quant)
{
    moek_config c = MOEK_QWEN3_30B_A3B;                /* in small: 4 experts, a shard of 128 */
    c.quant = quant; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK;
    c.max_tokens = TOKENS; c.exclude = EXAMPLE_EXCLUDE;
    return c;
}

/* What is compiled in, and what becomes of a config that asks for something else. */
static void list(void)
{
    const moek_config other = config_of(MOEK_BF16);
    moek_plan plan;
    int i, n;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        printf("  %s\n", k[i].name);
        example_must(!k[i].quant || k[i].quant == MOEK_QUANT, k[i].name, "this row should not be here");
    }
    example_must(moek_plan_init(&plan, &other) == MOEK_E_NO_KERNEL, "bf16", "should not be there");
    printf("%d rows.  Asked for bf16:\n%s\n\n", n, plan.why);
}

/* Weights are codes of 1, times the scale of their block: (e + 1) / HIDDEN in w_up of expert e, 1 / INTER in w_down. */
static moek_weights weights_of(int device)
{
    static uint8_t ones[EXPERTS * 2 * INTER * HIDDEN];
    static float up[EXPERTS * 2 * BLOCKS], down[EXPERTS * BLOCKS];
    moek_weights w;
    int i;
    memset(ones, 0x38, sizeof ones);
    for (i = 0; i < EXPERTS * 2 * BLOCKS; i++) up[i] = (float)(i / (2 * BLOCKS) + 1) / (float)HIDDEN;
    for (i = 0; i < EXPERTS * BLOCKS; i++) down[i] = 1.0f / (float)INTER;
    memset(&w, 0, sizeof w);
    w.w_up = example_new(device, ones, sizeof ones);
    w.w_up_scale = (const float *)example_new(device, up, sizeof up);
    w.w_down = example_new(device, ones, sizeof ones / 2);
    w.w_down_scale = (const float *)example_new(device, down, sizeof down);
    return w;
}

/* x is all ones.  So gate = up = e + 1, and y = the sum of weight * silu(e + 1) * (e + 1). */
static int check(const uint16_t *y, const int32_t *ids, const float *weights)
{
    int t, j, k, wrong = 0;
    for (t = 0; t < TOKENS; t++) {
        double want = 0;
        for (k = t * TOPK; k < (t + 1) * TOPK; k++) {
            const double g = ids[k] + 1.0;
            want += weights[k] * g / (1 + exp(-g)) * g;
        }
        for (j = 0; j < HIDDEN; j++) wrong += !(fabs(example_float(y[t * HIDDEN + j]) - want) < 0.01 * want);
        printf("token %d: %.4f, expected %.4f\n", t, example_float(y[t * HIDDEN]), want);
    }
    return wrong;
}

int main(void)
{
    static uint16_t x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    const int32_t ids[TOKENS * TOPK] = { 0, 1, 2, 3, 1, 3 };
    const float weights[TOKENS * TOPK] = { 0.5f, 0.5f, 0.75f, 0.25f, 1, 0.5f };
    const moek_config config = config_of(MOEK_QUANT);
    char why[256] = "";
    moek_weights w;
    moek_plan plan;
    moek_args a;
    int i, wrong;

    list();
    example_must(moek_plan_init(&plan, &config) == MOEK_OK, "moek_plan_init", plan.why);
    w = weights_of(plan.device);
    example_must(moek_plan_bind(&plan, &w) == MOEK_OK, "moek_plan_bind", plan.why);

    for (i = 0; i < TOKENS * HIDDEN; i++) x[i] = example_bf16(1);
    memset(&a, 0, sizeof a);
    a.tokens = TOKENS;
    a.x = example_new(plan.device, x, sizeof x);
    a.topk_ids = (int32_t *)example_new(plan.device, ids, sizeof ids);
    a.topk_weights = (float *)example_new(plan.device, weights, sizeof weights);
    a.y = example_new(plan.device, NULL, sizeof y);
    a.workspace_size = moek_workspace_size(&plan);
    a.workspace = example_new(plan.device, NULL, a.workspace_size);
    a.why = why; a.why_size = sizeof why;
    example_must(moek_run(&plan, &a, NULL) == MOEK_OK, "moek_run", why);

    example_get(plan.device, y, a.y, sizeof y);
    wrong = check(y, ids, weights);
    puts(wrong ? "WRONG" : "ok");
    return wrong != 0;
}
