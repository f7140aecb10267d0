/* own_experts.c -- a user's own experts in moek's walk: low-rank ones, o = B[e] . (A[e] . x), as adapters (LoRA) have
 * them.
 *
 *   cc -O3 -Iinclude examples/own_experts.c examples/moek.c -lm -o own_experts && ./own_experts
 *
 * Fill in a moek_experts and put its address in the config: route, prepare and finalize stay moek's.  These experts are
 * plain C on host memory, so `exclude` keeps the other steps off the GPU; yours may launch kernels on `stream`. */
#include "example.h"

enum { HIDDEN = 100, EXPERTS = 4, TOPK = 2, TOKENS = 5, RANK = 8 };

typedef struct low_rank { float a[EXPERTS][RANK][HIDDEN], b[EXPERTS][HIDDEN][RANK]; } low_rank;

static void low_rank_apply(const low_rank *w, int e, const uint16_t *x, float *out)
{
    float h[RANK] = { 0 };
    int r, j;
    for (r = 0; r < RANK; r++)
        for (j = 0; j < HIDDEN; j++) h[r] += w->a[e][r][j] * example_float(x[j]);
    for (j = 0; j < HIDDEN; j++)
        for (out[j] = 0, r = 0; r < RANK; r++) out[j] += w->b[e][j][r] * h[r];
}

/* Rows that prepare delivered -> step->out [rows][slots][hidden], not weighted, not summed: that is MOEK_DELEGATE. */
static moek_status apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const low_rank *w = (const low_rank *)self->context;
    const int slots = step->plan->slots;
    int row, k, j;
    (void)stream;
    for (row = 0; row < step->rows; row++) {
        for (k = 0; k < slots; k++) {
            const int e = step->expert_ids[row * slots + k];
            uint16_t *out = (uint16_t *)step->out + ((size_t)row * slots + k) * HIDDEN;
            float o[HIDDEN];
            if (e < 0) continue;                       /* nobody's: finalize will not read it */
            low_rank_apply(w, e, (const uint16_t *)step->a + (size_t)row * HIDDEN, o);
            for (j = 0; j < HIDDEN; j++) out[j] = example_bf16(o[j]);
        }
    }
    return MOEK_OK;
}

/* What these experts cannot do, they say while planning: the sentence ends up in plan.why. */
static int supports(const moek_experts *self, const moek_config *config, char *why, size_t why_size)
{
    (void)self;
    if (moek_format_of(config->quant)->w == MOEK_ELEMENT_BF16 && config->hidden == HIDDEN) return 1;
    snprintf(why, why_size, "anything but bf16 and hidden %d", HIDDEN);
    return 0;
}

/* Of token 0. */
static double error_of(const low_rank *w, const uint16_t *x, const int32_t *ids, const float *weights,
                       const uint16_t *y)
{
    double want[HIDDEN] = { 0 };
    float o[HIDDEN];
    int k, j;
    for (k = 0; k < TOPK; k++) {
        low_rank_apply(w, ids[k], x, o);
        for (j = 0; j < HIDDEN; j++) want[j] += weights[k] * o[j];
    }
    return example_error(y, want, HIDDEN);
}

int main(void)
{
    static low_rank w;
    uint16_t y[TOKENS * HIDDEN];
    moek_experts ours;
    moek_config config;
    moek_weights none;                                 /* ours are in the context */
    moek_args args;
    uint16_t *x = example_random(TOKENS * HIDDEN, 1, 1);
    float logits[TOKENS * EXPERTS], topk_weights[TOKENS * TOPK], *f;
    int32_t topk_ids[TOKENS * TOPK];
    char why[256] = "", text[2000];
    double error;
    int i;
    moek_plan plan;
    for (f = &w.a[0][0][0], i = 0; i < (int)(sizeof w / sizeof *f); i++) f[i] = (float)(i * 31 % 97) / 97 - 0.5f;
    for (i = 0; i < TOKENS * EXPERTS; i++) logits[i] = (float)(i * 7 % 11);

    memset(&ours, 0, sizeof ours);
    ours.name = "low_rank"; ours.format = MOEK_STANDARD; ours.weight_and_reduce = MOEK_DELEGATE;
    ours.context = &w; ours.supports = supports; ours.apply = apply;
    memset(&config, 0, sizeof config);
    config.hidden = HIDDEN; config.inter = RANK; config.experts = EXPERTS; config.topk = TOPK;
    config.quant = MOEK_FP16; config.act = MOEK_SILU; config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    config.max_tokens = TOKENS;
    config.backend = MOEK_BACKEND_USER; config.exclude = MOEK_BACKENDS_GPU; config.experts_impl = &ours;
    example_must(moek_plan_init(&plan, &config) == MOEK_E_BACKEND, "fp16", "our experts should have said no");
    printf("fp16: %s\n", plan.why);
    config.quant = MOEK_BF16;
    example_must(moek_plan_init(&plan, &config) == MOEK_OK, "moek_plan_init", plan.why);
    memset(&none, 0, sizeof none);
    example_must(moek_plan_bind(&plan, &none) == MOEK_OK, "moek_plan_bind", plan.why);
    moek_describe(&plan, text, sizeof text);
    fputs(text, stdout);

    memset(&args, 0, sizeof args);
    args.tokens = TOKENS; args.x = example_new(-1, x, sizeof y); args.y = example_new(-1, NULL, sizeof y);
    args.router_logits = logits; args.topk_ids = topk_ids; args.topk_weights = topk_weights;
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(-1, NULL, args.workspace_size);
    args.why = why; args.why_size = sizeof why;
    example_must(moek_run(&plan, &args, NULL) == MOEK_OK, "moek_run", why);
    error = error_of(&w, x, topk_ids, topk_weights, (const uint16_t *)args.y);
    printf("off by %.2e of a plain loop: %s\n", error, error < 0.01 ? "ok" : "WRONG");
    example_free(-1, args.x), example_free(-1, args.y), example_free(-1, args.workspace);
    free(x);
    return !(error < 0.01);
}
