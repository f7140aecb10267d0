/* moe_lm.c -- a language model in one C file: a folder of Hugging Face and token ids in, token ids out.
 *
 *   cc -O3 -march=native -fopenmp -Iinclude examples/moe_lm.c -lm -o moe_lm &&
 *        ./moe_lm tests/data/lm/qwen3_moe 8 1 2 3
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -x cu examples/moe_lm.c -o moe_lm &&
 *        ./moe_lm tests/data/lm/gpt_oss_mxfp4 8 1 2 3
 *   ./moe_lm FOLDER COUNT TOKEN ...                    prints the COUNT tokens that follow, greedily chosen
 *
 * Qwen3-MoE, OLMoE, Mixtral and gpt-oss: in bf16; gpt-oss in MXFP4; the others in fp8 with blocks of 128 x 128, and in
 * symmetric int4 of compressed-tensors (pack-quantized).  No tokenizer.  MoE layers are moek's, on the GPU where nvcc
 * compiled this file and there is one.  Attention, norms and head are plain C in f32, on the CPU.
 * What an engine may want to copy, in this order:
 *     plan_layers     config.json -> moek_config; planned once, for all layers: they have one shape
 *     load_experts    stacks and imports the experts of a layer, and binds them to the layer's copy of the plan
 *     run_experts     runs a layer; all layers share x, y, logits and the workspace
 * safetensors.h, beside it, reads the folder: no longer than a converter in Python and what would read its output, and
 * no checkpoint is written twice.  example.h has memory where the plan works. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* mmap */
#endif
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include "moek_import.h"
#include "safetensors.h"

enum { CHUNK = 256 };                                  /* tokens that run together */

static void *room(size_t count, size_t bytes)          /* zeros, kept until the program ends */
{
    void *p = calloc(count + 1, bytes);
    example_must(p != NULL, "calloc", "out of memory");
    return p;
}
static float *floats(size_t count) { return (float *)room(count, sizeof(float)); }
static void must(moek_status status, const char *what, const char *why)
{
    example_must(status == MOEK_OK, what, *why ? why : moek_status_text(status));
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* What differs by model_type.  matrix: by MOEK_MATRIX_GATE, UP, DOWN, GATE_UP; %d: the expert's number.  stacked: a
 * tensor has the matrices of all experts. */
typedef struct family { const char *type, *router, *matrix[4]; int stacked, act, routing; } family;
static const family families[] = {
    { "qwen3_moe", "mlp.gate",
      { "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj", NULL },
      0, MOEK_SILU, MOEK_ROUTE_SOFTMAX },
    { "olmoe", "mlp.gate",
      { "mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj", "mlp.experts.%d.down_proj", NULL },
      0, MOEK_SILU, MOEK_ROUTE_SOFTMAX },
    { "mixtral", "block_sparse_moe.gate",
      { "block_sparse_moe.experts.%d.w1", "block_sparse_moe.experts.%d.w3", "block_sparse_moe.experts.%d.w2", NULL },
      0, MOEK_SILU, MOEK_ROUTE_TOPK_SOFTMAX },
    { "gpt_oss", "mlp.router",
      { NULL, NULL, "mlp.experts.down_proj", "mlp.experts.gate_up_proj" },
      1, MOEK_SWIGLUOAI, MOEK_ROUTE_TOPK_SOFTMAX }
};

typedef struct vector { int n; const float *v; } vector;               /* v NULL: the model has none */
typedef struct matrix { int rows, columns; const uint16_t *w; vector bias; } matrix;   /* bf16 */
typedef struct layer {
    vector input_norm, post_norm, q_norm, k_norm, sinks;
    int window;                                        /* how many tokens a token sees; 0: all */
    matrix q, k, v, o, router;
    float *keys, *values;                              /* [positions][kv_heads * head] */
    moek_plan plan;                                    /* the model's, with the weights of the layer */
} layer;
typedef struct lm {
    const family *kind;
    const char *json;                                  /* config.json */
    tensors files;
    int hidden, heads, kv_heads, head, vocab, depth;
    int positions, position;                           /* room for tokens, and those that were run */
    float eps, clip;
    layer *layers;                                     /* [depth] */
    matrix embed, lm_head;
    vector norm;
    float *cosines, *sines;                            /* [positions][head / 2] */
    float *x, *normed, *queries, *attended, *router;   /* [CHUNK][..] */
    uint16_t *rounded;                                 /* what goes to moek, and comes back */
    moek_config moe;
    moek_plan plan;
    moek_args args;
    void *moe_x, *moe_logits;                          /* args.x and args.router_logits, on the plan's device */
    int source;                                        /* of experts: MOEK_FROM_*, or 0: moek takes them as they are */
    const char *w_part, *scale_part;                   /* how names of weights and of their scales end; or NULL */
    const char *w_type;                                /* and of which type the weights are */
    moek_import_report report;
    char why[512];
} lm;

/* Tensor `name` and `part` of layer n, or, n < 0, outside of the layers; NULL: there is none, and none is needed. */
static const tensor *find(const lm *m, int n, const char *name, const char *part, int needed)
{
    char whole[NAME];
    const int at = n < 0 ? 0 : snprintf(whole, NAME, "model.layers.%d.", n);
    const tensor *t;
    snprintf(whole + at, NAME - at, "%s%s", name, part);
    t = tensor_of(&m->files, whole);
    example_must(t || !needed, whole, "the folder has no such tensor");
    return t;
}
static float number_at(const tensor *t, size_t i)
{
    float f;
    if (json_is(t->type, "BF16")) return example_float((uint16_t)(t->data[2 * i] | t->data[2 * i + 1] << 8));
    example_must(json_is(t->type, "F32"), t->name, "neither BF16 nor F32");
    memcpy(&f, t->data + 4 * i, 4);
    return f;
}
static size_t count_of(const tensor *t) { return t->bytes / (json_is(t->type, "F32") ? 4 : 2); }
static vector vector_of(const lm *m, int n, const char *name, const char *part, int needed)
{
    const tensor *t = find(m, n, name, part, needed);
    vector a = { 0, NULL };
    float *to;
    int i;
    if (!t) return a;
    a.n = (int)count_of(t);
    a.v = to = floats(a.n);
    for (i = 0; i < a.n; i++) to[i] = number_at(t, i);
    return a;
}

static float e4m3(int code)
{
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float f = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return code & 128 ? -f : f;
}
/* A quantized matrix outside of the experts, as bf16.  fp8: a scale for 128 x 128.  Else int4: code - 8, the first in
 * the low half of a byte, rows of whole words; a scale for `block` columns. */
static const uint16_t *decoded(const lm *m, int n, const char *name, int rows, int columns)
{
    const tensor *w = find(m, n, name, m->w_part, 1), *scale;
    const int fp8 = json_is(w->type, "F8_E4M3"), of = m->moe.block ? m->moe.block : 128;
    const int groups = (columns + of - 1) / of;
    const size_t row = fp8 ? (size_t)columns : ((size_t)columns + 7) / 8 * 4;
    uint16_t *to = (uint16_t *)room((size_t)rows * columns, sizeof *to);
    int i, k;
    example_must(m->scale_part && json_is(w->type, m->w_type) && w->bytes == rows * row, w->name,
                 "another type or shape than config.json says, or f16");
    scale = find(m, n, name, m->scale_part, 1);
    example_must(count_of(scale) == (size_t)(fp8 ? (rows + 127) / 128 : rows) * groups, scale->name, "wrong shape");
    for (i = 0; i < rows; i++)
        for (k = 0; k < columns; k++) {
            const int byte = w->data[i * row + (fp8 ? k : k / 2)];
            const float value = fp8 ? e4m3(byte) : (float)(byte >> 4 * (k & 1) & 15) - 8;
            const size_t group = (size_t)(fp8 ? i / 128 : i) * groups + k / of;
            to[(size_t)i * columns + k] = example_bf16(value * number_at(scale, group));
        }
    return to;
}
/* bf16 stays in the file. */
static matrix matrix_of(const lm *m, int n, const char *name, int rows, int columns)
{
    const tensor *t = find(m, n, name, ".weight", 0);
    const int plain = t && json_is(t->type, "BF16");
    matrix a;
    example_must(!plain || t->bytes == 2 * (size_t)rows * columns, name, "has another shape");
    a.rows = rows; a.columns = columns;
    a.w = plain ? (const uint16_t *)(const void *)t->data : decoded(m, n, name, rows, columns);
    a.bias = vector_of(m, n, name, ".bias", 0);
    return a;
}

/* ---- plain C: products, norms, attention ------------------------------------------------------------------------- */

static float dot(const float *x, const uint16_t *w, int n)
{
    float lane[16] = { 0 }, sum = 0;
    int i, j;
    for (i = 0; i + 16 <= n; i += 16) for (j = 0; j < 16; j++) lane[j] += x[i + j] * example_float(w[i + j]);
    for (; i < n; i++) sum += x[i] * example_float(w[i]);
    for (j = 0; j < 16; j++) sum += lane[j];
    return sum;
}
/* y [tokens][rows] = x [tokens][columns] . a, or y + that. */
static void linear(float *y, const float *x, int tokens, const matrix *a, int add)
{
    int r, t;
#ifdef _OPENMP
#pragma omp parallel for private(t)
#endif
    for (r = 0; r < a->rows; r++)
        for (t = 0; t < tokens; t++) {
            float *to = &y[(size_t)t * a->rows + r];
            *to = (add ? *to : 0) + (a->bias.v ? a->bias.v[r] : 0) +
                  dot(x + (size_t)t * a->columns, a->w + (size_t)r * a->columns, a->columns);
        }
}
/* As many elements as there are factors by themselves: a token, or a head. */
static void rms_norm(const lm *m, float *y, const float *x, size_t size, vector factor)
{
    size_t i;
    int j;
    for (i = 0; i < size; i += factor.n) {
        float square = 0;
        for (j = 0; j < factor.n; j++) square += x[i + j] * x[i + j];
        square = 1 / sqrtf(square / (float)factor.n + m->eps);
        for (j = 0; j < factor.n; j++) y[i + j] = x[i + j] * square * factor.v[j];
    }
}
static void clamp(float *x, size_t n, float limit)     /* 0: none */
{
    size_t i;
    for (i = 0; i < n && limit > 0; i++) x[i] = fminf(fmaxf(x[i], -limit), limit);
}
/* Norm, clamp and rotary embedding of queries or keys. */
static void norm_and_rotate(const lm *m, float *x, int tokens, int heads, vector norm)
{
    const size_t size = (size_t)tokens * heads * m->head;
    const int half = m->head / 2;
    int i, k;
    if (norm.v) rms_norm(m, x, x, size, norm);
    clamp(x, size, m->clip);
    for (i = 0; i < tokens * heads; i++, x += m->head)
        for (k = 0; k < half; k++) {
            const size_t at = (size_t)(m->position + i / heads) * half + k;
            const float a = x[k], b = x[k + half];
            x[k] = a * m->cosines[at] - b * m->sines[at];
            x[k + half] = b * m->cosines[at] + a * m->sines[at];
        }
}
/* y [head]: one head of one token.  A sink is a score without a value. */
static void attend(const lm *m, const layer *l, float *y, const float *query, int position, int h)
{
    const size_t row = (size_t)m->kv_heads * m->head, first = (size_t)(h / (m->heads / m->kv_heads)) * m->head;
    float most = l->sinks.v ? l->sinks.v[h] : -INFINITY, sum = l->sinks.v ? 1 : 0;
    int p, k;
    memset(y, 0, sizeof *y * m->head);
    for (p = l->window && position >= l->window ? position - l->window + 1 : 0; p <= position; p++) {
        const float *key = l->keys + p * row + first, *value = l->values + p * row + first;
        float score = 0, weight, fade = 1;
        for (k = 0; k < m->head; k++) score += query[k] * key[k];
        score /= sqrtf((float)m->head);
        if (score > most) fade = expf(most - score), most = score;
        weight = expf(score - most);
        sum = sum * fade + weight;
        for (k = 0; k < m->head; k++) y[k] = y[k] * fade + weight * value[k];
    }
    for (k = 0; k < m->head; k++) y[k] /= sum;
}
/* x += attention(normed) */
static void run_attention(lm *m, const layer *l, int tokens)
{
    const size_t row = (size_t)m->kv_heads * m->head;
    float *keys = l->keys + m->position * row, *values = l->values + m->position * row;
    int i;
    linear(m->queries, m->normed, tokens, &l->q, 0);
    linear(keys, m->normed, tokens, &l->k, 0);
    linear(values, m->normed, tokens, &l->v, 0);
    norm_and_rotate(m, m->queries, tokens, m->heads, l->q_norm);
    norm_and_rotate(m, keys, tokens, m->kv_heads, l->k_norm);
    clamp(values, tokens * row, m->clip);
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (i = 0; i < tokens * m->heads; i++)
        attend(m, l, m->attended + (size_t)i * m->head, m->queries + (size_t)i * m->head, m->position + i / m->heads,
               i % m->heads);
    linear(m->x, m->attended, tokens, &l->o, 1);
}

/* ---- MoE layers: moek -------------------------------------------------------------------------------------------- */

/* The format of the experts, and how it lies in the file. */
static void choose_format(lm *m)
{
    const char *q = json_at(m->json, "quantization_config"), *method = json_at(q, "quant_method");
    const char *weights = json_at(json_at(json_at(q, "config_groups"), "group_0"), "weights");
    const char *block = json_first(json_at(q, "weight_block_size"));
    moek_config *c = &m->moe;
    c->quant = MOEK_BF16;
    m->w_part = m->kind->stacked ? "" : ".weight"; m->w_type = "BF16";
    if (!q) return;
    if (json_is(method, "mxfp4")) {
        c->quant = MOEK_MXFP4_A16;
        m->source = MOEK_FROM_MXFP4; m->w_part = "_blocks"; m->w_type = "U8"; m->scale_part = "_scales";
    } else if (json_is(method, "fp8") && block && strtol(block, NULL, 10) == 128) {
        c->quant = MOEK_FP8B128;                       /* moek's bytes: no import */
        c->up_scales = MOEK_UP_SCALES_APART;           /* gate and up were quantized apart */
        m->w_type = "F8_E4M3"; m->scale_part = ".weight_scale_inv";
    } else if (json_is(json_at(q, "format"), "pack-quantized") && json_number(weights, "num_bits", 0) == 4 &&
               json_number(weights, "symmetric", 0) && json_number(weights, "group_size", 0) > 0 &&
               !json_is(json_at(weights, "actorder"), "group")) {
        c->quant = MOEK_INT4_A16;
        c->block = (int)json_number(weights, "group_size", 0);
        m->source = MOEK_FROM_PACKED_INT4; m->w_part = ".weight_packed"; m->w_type = "I32";
        m->scale_part = ".weight_scale";
    } else example_must(0, "quantization_config", "not mxfp4, fp8 with blocks of 128, symmetric pack-quantized int4");
}

/* 1. What a layer is, planned once: the plan of all layers, and the memory that they take turns to use. */
static void plan_layers(lm *m)
{
    const char *j = m->json;
    moek_config *c = &m->moe;
    char text[2000];
    c->hidden = m->hidden;
    c->inter = (int)json_number(j, "moe_intermediate_size", json_number(j, "intermediate_size", 0));
    c->experts = (int)json_number(j, "num_local_experts", json_number(j, "num_experts", 0));
    c->topk = (int)json_number(j, "num_experts_per_tok", 0);
    c->act = m->kind->act;
    c->limit = (float)json_number(j, "swiglu_limit", 0);               /* gpt-oss; 0: the activation's own */
    c->routing = json_number(j, "norm_topk_prob", 0) ? MOEK_ROUTE_SOFTMAX_RENORM : m->kind->routing;
    c->max_tokens = CHUNK;
    c->exclude = EXAMPLE_EXCLUDE;
    choose_format(m);
    must(moek_plan_init(&m->plan, c), "moek_plan_init", m->plan.why);
    moek_describe(&m->plan, text, sizeof text);
    fputs(text, stderr);
    m->args.x = m->moe_x = example_new(m->plan.device, NULL, sizeof(uint16_t) * CHUNK * c->hidden);
    m->args.y = example_new(m->plan.device, NULL, sizeof(uint16_t) * CHUNK * c->hidden);
    m->args.router_logits = m->moe_logits = example_new(m->plan.device, NULL, sizeof(float) * CHUNK * c->experts);
    m->args.workspace_size = moek_workspace_size(&m->plan);
    m->args.workspace = example_new(m->plan.device, NULL, m->args.workspace_size);
    m->args.why = m->why; m->args.why_size = sizeof m->why;
}

/* Weights or scales (part) of a matrix of expert e, in the file; of tensor *t. */
static const unsigned char *expert_part(const lm *m, int n, int e, int which, const char *part, const tensor **t)
{
    char name[NAME];
    snprintf(name, NAME, m->kind->matrix[which], e);
    *t = find(m, n, name, part, 1);
    return (*t)->data + (m->kind->stacked ? e * ((*t)->bytes / m->moe.experts) : 0);
}
/* One matrix of an expert.  moek_import_place knows where it belongs in w; moek_import recodes it. */
static void load_matrix(lm *m, const moek_weights *w, int n, int e, int which)
{
    const moek_format *f = moek_format_of(m->moe.quant);
    const moek_scale_shape shape = moek_weight_scale(f, m->moe.block);
    const size_t in_tensor = m->kind->stacked ? m->moe.experts : 1;
    const tensor *t, *scale = NULL;
    const unsigned char *codes = expert_part(m, n, e, which, m->w_part, &t), *scales = NULL;
    size_t bytes, groups, g;
    moek_import_args a;
    int i, k;
    memset(&a, 0, sizeof a);
    a.source = m->source; a.report = &m->report;
    a.why = m->why; a.why_size = sizeof m->why;
    must(moek_import_place(&m->moe, w, which, e, &a), t->name, m->why);
    if (m->scale_part) scales = expert_part(m, n, e, which, m->scale_part, &scale);
    bytes = a.rows * moek_element_bytes(f->w, a.columns);
    groups = moek_scale_count(&shape, a.rows, a.columns);
    example_must(t->bytes == in_tensor * bytes && json_is(t->type, m->w_type), t->name, "has another shape or type");
    if (m->source) {
        example_must(scale->bytes == in_tensor * moek_scale_bytes(&shape, a.rows, a.columns) &&
                     !json_is(scale->type, "F16"), scale->name, "has another shape or type");
        a.their_w = (void *)(size_t)codes; a.their_scale = (void *)(size_t)scales;         /* (only read) */
        must(moek_import(0, &a, NULL), t->name, m->why);
    } else if (m->kind->stacked)                       /* gpt-oss in bf16: [experts][columns][rows] */
        for (i = 0; i < a.rows; i++)
            for (k = 0; k < a.columns; k++)
                memcpy((uint16_t *)a.w + (size_t)i * a.columns + k, codes + 2 * ((size_t)k * a.rows + i), 2);
    else {
        memcpy(a.w, codes, bytes);
        example_must(!scale || count_of(scale) == groups, t->name, "has scales of another shape");
        for (g = 0; scale && g < groups; g++) ((float *)a.scale)[g] = number_at(scale, g);
    }
}
/* From host memory to the plan's device. */
static void move(const lm *m, const void **p, size_t bytes)
{
    const void *host = *p;
    if (!bytes || m->plan.device < 0) return;
    *p = example_new(m->plan.device, host, bytes);
    example_free(-1, host);
}
static const void *bias_of(const lm *m, int n, int which, size_t bytes)
{
    const char *name = m->kind->matrix[which];
    const tensor *t = name ? find(m, n, name, "_bias", 0) : NULL;
    example_must(!t || (t->bytes == bytes && json_is(t->type, "BF16")), name, "its bias has another shape or type");
    return t ? example_new(m->plan.device, t->data, bytes) : NULL;
}
/* 2. All experts of layer n, each array one piece of memory, bound to the layer's copy of the plan. */
static void load_experts(lm *m, int n)
{
    const moek_format *f = moek_format_of(m->moe.quant);
    const moek_scale_shape shape = moek_weight_scale(f, m->moe.block);
    const size_t experts = m->moe.experts, hidden = m->hidden, inter = m->moe.inter;
    const size_t up = experts * 2 * inter * moek_element_bytes(f->w, hidden);
    const size_t down = experts * hidden * moek_element_bytes(f->w, inter);
    const size_t up_scale = experts * 2 * moek_scale_bytes(&shape, inter, hidden);
    const size_t down_scale = experts * moek_scale_bytes(&shape, hidden, inter);
    moek_plan *plan = &m->layers[n].plan;
    moek_weights w;
    int e, which;
    memset(&w, 0, sizeof w);
    w.w_up = example_new(-1, NULL, up);
    w.w_down = example_new(-1, NULL, down);
    if (up_scale) w.w_up_scale = example_new(-1, NULL, up_scale), w.w_down_scale = example_new(-1, NULL, down_scale);
    for (e = 0; e < m->moe.experts; e++)
        for (which = 0; which < 4; which++) if (m->kind->matrix[which]) load_matrix(m, &w, n, e, which);
    move(m, &w.w_up, up); move(m, &w.w_down, down);
    move(m, &w.w_up_scale, up_scale); move(m, &w.w_down_scale, down_scale);
    w.w_up_bias = bias_of(m, n, MOEK_MATRIX_GATE_UP, sizeof(uint16_t) * experts * 2 * inter);            /* gpt-oss */
    w.w_down_bias = bias_of(m, n, MOEK_MATRIX_DOWN, sizeof(uint16_t) * experts * hidden);
    *plan = m->plan;                                   /* a plan is a value */
    must(moek_plan_bind(plan, &w), "moek_plan_bind", plan->why);
}

/* 3. A layer.  x += experts(normed): the router's product is ours, the rest is one call. */
static void run_experts(lm *m, const layer *l, int tokens)
{
    const size_t n = (size_t)tokens * m->hidden;
    size_t i;
    linear(m->router, m->normed, tokens, &l->router, 0);
    for (i = 0; i < n; i++) m->rounded[i] = example_bf16(m->normed[i]);
    example_put(m->plan.device, m->moe_x, m->rounded, sizeof *m->rounded * n);
    example_put(m->plan.device, m->moe_logits, m->router, sizeof(float) * tokens * m->moe.experts);
    m->args.tokens = tokens;
    must(moek_run(&l->plan, &m->args, NULL), "moek_run", m->why);
    example_get(m->plan.device, m->rounded, m->args.y, sizeof *m->rounded * n);
    for (i = 0; i < n; i++) m->x[i] += example_float(m->rounded[i]);
}

/* ---- a run, and loading ------------------------------------------------------------------------------------------ */

/* Some more tokens; logits [vocab] of what follows the last one. */
static void lm_run(lm *m, const int *ids, int count, float *logits)
{
    const size_t hidden = m->hidden;
    int n, t, tokens;
    size_t k;
    example_must(count > 0 && count <= m->positions - m->position, "tokens", "none, or more than there is room for");
    for (; count > 0; ids += tokens, count -= tokens, m->position += tokens) {
        tokens = count < CHUNK ? count : CHUNK;
        for (t = 0; t < tokens; t++) {
            example_must(ids[t] >= 0 && ids[t] < m->vocab, "token", "no such id");
            for (k = 0; k < hidden; k++) m->x[t * hidden + k] = example_float(m->embed.w[ids[t] * hidden + k]);
        }
        for (n = 0; n < m->depth; n++) {
            const layer *l = &m->layers[n];
            rms_norm(m, m->normed, m->x, tokens * hidden, l->input_norm);
            run_attention(m, l, tokens);
            rms_norm(m, m->normed, m->x, tokens * hidden, l->post_norm);
            run_experts(m, l, tokens);
        }
        rms_norm(m, m->normed, m->x + (tokens - 1) * hidden, hidden, m->norm);
    }
    linear(logits, m->normed, 1, &m->lm_head, 0);
}

/* Angles of the rotary embedding, plain or YaRN, which divides the frequencies of long waves by `factor`. */
static void set_angles(lm *m)
{
    const char *newer = json_at(m->json, "rope_parameters");           /* of transformers 5 */
    const char *rope = newer ? newer : json_at(m->json, "rope_scaling"), *type = json_at(rope, "rope_type");
    const int half = m->head / 2, yarn = json_is(type, "yarn");
    const double base = json_number(newer, "rope_theta", json_number(m->json, "rope_theta", 10000));
    const double factor = yarn ? json_number(rope, "factor", 1) : 1;
    const double length = json_number(rope, "original_max_position_embeddings", 4096) / (2 * acos(-1.0));
    double low = m->head * log(length / json_number(rope, "beta_fast", 32)) / (2 * log(base));
    double high = m->head * log(length / json_number(rope, "beta_slow", 1)) / (2 * log(base));
    const double scale = json_number(rope, "attention_factor", 1 + 0.1 * log(factor));
    int p, k;
    example_must(!type || yarn || json_is(type, "default"), "rope_type", "neither default nor yarn");
    if (json_number(rope, "truncate", 1)) low = floor(low), high = ceil(high);
    low = fmax(low, 0); high = fmax(fmin(high, m->head - 1), low + 0.001);
    m->cosines = floats((size_t)m->positions * half);
    m->sines = floats((size_t)m->positions * half);
    for (p = 0; p < m->positions; p++)
        for (k = 0; k < half; k++) {
            const double ramp = fmin(fmax((k - low) / (high - low), 0), 1);
            const double angle = p * pow(base, -2.0 * k / m->head) * (1 - ramp + ramp / factor);
            m->cosines[(size_t)p * half + k] = (float)(scale * cos(angle));
            m->sines[(size_t)p * half + k] = (float)(scale * sin(angle));
        }
}
static void load_layer(lm *m, int n)
{
    const char *type = json_first(json_at(m->json, "layer_types"));
    const int q = m->heads * m->head, kv = m->kv_heads * m->head;
    layer *l = &m->layers[n];
    int i;
    for (i = 0; type && i < n; i++) type = json_next(type);
    if (json_number(m->json, "use_sliding_window", 1) && (!type || json_is(type, "sliding_attention")))
        l->window = (int)json_number(m->json, "sliding_window", 0);
    l->input_norm = vector_of(m, n, "input_layernorm", ".weight", 1);
    l->post_norm = vector_of(m, n, "post_attention_layernorm", ".weight", 1);
    l->q_norm = vector_of(m, n, "self_attn.q_norm", ".weight", 0);     /* Qwen3: of a head; OLMoE: of all heads */
    l->k_norm = vector_of(m, n, "self_attn.k_norm", ".weight", 0);
    l->sinks = vector_of(m, n, "self_attn.sinks", "", 0);
    l->q = matrix_of(m, n, "self_attn.q_proj", q, m->hidden);
    l->k = matrix_of(m, n, "self_attn.k_proj", kv, m->hidden);
    l->v = matrix_of(m, n, "self_attn.v_proj", kv, m->hidden);
    l->o = matrix_of(m, n, "self_attn.o_proj", m->hidden, q);
    l->router = matrix_of(m, n, m->kind->router, m->moe.experts, m->hidden);
    l->keys = floats((size_t)m->positions * kv);
    l->values = floats((size_t)m->positions * kv);
    load_experts(m, n);
}
/* A model, with room for so many tokens. */
static lm *lm_open(const char *folder, int positions)
{
    lm *m = (lm *)room(1, sizeof *m);
    size_t bytes, i;
    const unsigned char *file;
    const char *j;
    char path[PATH];
    int n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    file = map_file(path, &bytes);
    j = m->json = json_text(file, bytes);
    for (i = 0; i < sizeof families / sizeof *families; i++)
        if (json_is(json_at(j, "model_type"), families[i].type)) m->kind = &families[i];
    example_must(m->kind != NULL, "model_type", "none of qwen3_moe, olmoe, mixtral, gpt_oss");
    m->hidden = (int)json_number(j, "hidden_size", 0);
    m->heads = (int)json_number(j, "num_attention_heads", 1);
    m->kv_heads = (int)json_number(j, "num_key_value_heads", m->heads);
    m->head = (int)json_number(j, "head_dim", m->hidden / m->heads);
    m->vocab = (int)json_number(j, "vocab_size", 0);
    m->depth = (int)json_number(j, "num_hidden_layers", 0);
    m->eps = (float)json_number(j, "rms_norm_eps", 1e-5);
    m->clip = (float)json_number(j, "clip_qkv", 0);
    m->positions = positions;
    add_folder(&m->files, folder);
    plan_layers(m);
    set_angles(m);
    m->embed = matrix_of(m, -1, "model.embed_tokens", m->vocab, m->hidden);
    m->lm_head = json_number(j, "tie_word_embeddings", 0) ? m->embed : matrix_of(m, -1, "lm_head", m->vocab, m->hidden);
    m->norm = vector_of(m, -1, "model.norm", ".weight", 1);
    m->x = floats((size_t)CHUNK * m->hidden);
    m->normed = floats((size_t)CHUNK * m->hidden);
    m->queries = floats((size_t)CHUNK * m->heads * m->head);
    m->attended = floats((size_t)CHUNK * m->heads * m->head);
    m->router = floats((size_t)CHUNK * m->moe.experts);
    m->rounded = (uint16_t *)room((size_t)CHUNK * m->hidden, sizeof *m->rounded);
    m->layers = (layer *)room(m->depth, sizeof *m->layers);
    for (n = 0; n < m->depth; n++) load_layer(m, n);
    must(moek_import_verdict(&m->report, m->why, sizeof m->why), "moek_import", m->why);
    return m;
}

static int best_of(const float *logits, int n)
{
    int i, best = 0;
    for (i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    return best;
}
int main(int argc, char **argv)
{
    const int given = argc - 3, count = argc > 3 ? atoi(argv[2]) : 0;
    float *logits;
    int *ids, i, token;
    lm *m;
    example_must(count > 0, "moe_lm FOLDER COUNT TOKEN ...", "prints the COUNT tokens that follow");
    m = lm_open(argv[1], given + count);
    ids = (int *)room(given, sizeof *ids);
    for (i = 0; i < given; i++) ids[i] = atoi(argv[3 + i]);
    logits = floats(m->vocab);
    lm_run(m, ids, given, logits);                     /* the prompt at once, then a token at a time */
    for (i = 0; i < count; i++) {
        token = best_of(logits, m->vocab);
        printf("%d%c", token, i < count - 1 ? ' ' : '\n');
        fflush(stdout);
        if (i < count - 1) lm_run(m, &token, 1, logits);
    }
    return 0;
}
