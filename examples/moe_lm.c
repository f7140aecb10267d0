/* moe_lm.c -- a language model in one C file: a folder of Hugging Face and token ids in, token ids out.
 *
 *   cc -O3 -march=native -fopenmp -Iinclude examples/moe_lm.c -lm -o moe_lm &&
 *        ./moe_lm tests/data/lm/qwen3_moe 8 1 2 3
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_MXFP4_A16 -Iinclude -x cu examples/moe_lm.c \
 *        -o moe_lm && ./moe_lm tests/data/lm/gpt_oss_mxfp4 8 1 2 3
 *   ./moe_lm FOLDER COUNT TOKEN ...                    prints the COUNT tokens that follow, greedily chosen
 *   ./moe_lm FILE.gguf COUNT TOKEN ...                 the same; one of its parts, if it is split
 *
 * Without -DMOEK_QUANT all formats are compiled: with nvcc a quarter of an hour of one core (-split-compile 0: of all).
 *
 * Qwen3-MoE, OLMoE, Mixtral and gpt-oss, with experts in any format that checkpoint.h or gguf.h reads.  Outside of the
 * experts: bf16, fp8 with blocks of 128 x 128, and symmetric int4 of compressed-tensors (pack-quantized); in .gguf
 * files all types of gguf_decode.h, decoded as they are read.  No tokenizer.  MoE layers are moek's, on the GPU where
 * nvcc compiled this file and there is one.  Attention, norms and head are plain C in f32, on the CPU.  What does not
 * fit is refused in a sentence.
 * What an engine may want to copy, in this order:
 *     plan_layers     a layer's moek_config; planned once for layers of one format
 *     load_experts    imports the experts of a layer, and binds them to the layer's copy of the plan
 *     bind_gguf       the same of a .gguf, whose blocks stay where the file is mapped
 *     run_experts     runs a layer; all layers share x, y, logits and the workspace
 * and, beside it, checkpoint.h and gguf.h, which find out what the files have, and safetensors.h, which reads them.  No
 * checkpoint is written twice.  example.h has memory where the plan works. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* mmap */
#endif
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include "moek_import.h"
#include "checkpoint.h"
#include "gguf_decode.h"
#include "example.h"

enum { CHUNK = 256, LONGEST = 1 << 20 };               /* tokens that run together; positions there may be */

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

/* What else differs, the files say.  arch: in .gguf files; adjacent: where elements of a head that are rotated together
 * lie side by side (the converter moved rows of q and k); windows: of every second layer alone. */
typedef struct family { const char *type, *arch; int routing, adjacent, windows; } family;
static const family families[] = {
    { "qwen3_moe", "qwen3moe", MOEK_ROUTE_SOFTMAX, 0, 0 }, { "olmoe", "olmoe", MOEK_ROUTE_SOFTMAX, 0, 0 },
    { "mixtral", "llama", MOEK_ROUTE_TOPK_SOFTMAX, 1, 0 }, { "gpt_oss", "gpt-oss", MOEK_ROUTE_TOPK_SOFTMAX, 0, 1 }
};

typedef struct vector { int n; const float *v; } vector;               /* v NULL: the model has none */
typedef struct matrix {
    int rows, columns;
    const gguf_type *type;                             /* bf16, or what a .gguf has */
    const unsigned char *w;
    size_t row_bytes;
    vector bias;
} matrix;
/* Rotary embedding: YaRN divides the frequencies of long waves by `factor`; 1: plain. */
typedef struct rope { double base, factor, length, fast, slow, scale; int truncate; } rope;
typedef struct layer {
    vector input_norm, post_norm, q_norm, k_norm, sinks;
    int window;                                        /* how many tokens a token sees; 0: all */
    matrix q, k, v, o, router;
    float *keys, *values;                              /* [positions][kv_heads * head] */
    moek_plan plan;                                    /* the model's, with the weights of the layer */
} layer;
typedef struct lm {
    const family *kind;
    checkpoint of;                                     /* a folder */
    checkpoint_layer experts;                          /* of its first layer: all are like it */
    gguf container;                                    /* or a .gguf: it has files then */
    moek_config config;                                /* of the first layer */
    rope rotary;
    int hidden, heads, kv_heads, head, vocab, depth;
    int positions, position;                           /* room for tokens, and those that were run */
    float eps, clip;
    layer *layers;                                     /* [depth] */
    matrix embed, lm_head;
    vector norm;
    float *cosines, *sines;                            /* [positions][head / 2] */
    float *x, *normed, *queries, *attended, *router;   /* [CHUNK][..] */
    uint16_t *rounded;                                 /* what goes to moek, and comes back */
    moek_plan plan;                                    /* of layers of the first one's format */
    size_t workspace;
    moek_args args;
    void *moe_x, *moe_logits;                          /* args.x and args.router_logits, on the plan's device */
    moek_import_report report;
    char why[WHY];
} lm;

/* Numbers of config.json, which must be from `least` to `most`. */
static int whole(const lm *m, const char *key, int otherwise, int least, int most)
{
    char why[WHY];
    int n;
    example_must(json_whole(m->of.text, key, otherwise, least, most, &n, why), "config.json", why);
    return n;
}
static double real(const char *object, const char *key, double otherwise, double least, double most)
{
    char why[WHY];
    double x;
    example_must(json_real(object, key, otherwise, least, most, &x, why), "config.json", why);
    return x;
}
/* As .gguf files call a tensor; the first that is there. */
static const gguf_tensor *find_gguf(const lm *m, int n, const char *name, const char *part, int needed)
{
    static const char *const names[][2] = {
        { "model.embed_tokens", "token_embd" }, { "model.norm", "output_norm" }, { "lm_head", "output" },
        { "input_layernorm", "attn_norm" }, { "post_attention_layernorm", "ffn_norm" },
        { "post_attention_layernorm", "post_attention_norm" }, { "self_attn.q_norm", "attn_q_norm" },
        { "self_attn.k_norm", "attn_k_norm" }, { "self_attn.sinks", "attn_sinks" }, { "self_attn.q_proj", "attn_q" },
        { "self_attn.k_proj", "attn_k" }, { "self_attn.v_proj", "attn_v" }, { "self_attn.o_proj", "attn_output" },
        { "router", "ffn_gate_inp" }
    };
    const gguf_tensor *t = NULL;
    char path[NAME] = "";
    size_t i;
    for (i = 0; !t && i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i][0])) continue;
        snprintf(path, NAME, "%s%s", names[i][1], *part ? part : ".weight");
        t = n < 0 ? gguf_tensor_of(&m->container, path) : gguf_part(&m->container, n, path);
    }
    example_must(t || !needed, path, "the file has no such tensor");
    return t;
}
/* Keys of a .gguf, behind its architecture. */
static int whole_gguf(lm *m, const char *key, int otherwise, int least, int most)
{
    int n;
    example_must(gguf_whole(&m->container, key, 0, otherwise, least, most, &n), "the file", m->container.why);
    return n;
}
static double real_gguf(lm *m, const char *key, double otherwise, double least, double most)
{
    double x;
    example_must(gguf_real(&m->container, key, otherwise, least, most, &x), "the file", m->container.why);
    return x;
}
/* Tensor `name` and `part` of layer n, or, n < 0, outside of the layers; NULL: there is none, and none is needed. */
static const tensor *find(const lm *m, int n, const char *name, const char *part, int needed)
{
    char path[NAME];
    const int at = n < 0 ? 0 : snprintf(path, NAME, "model.layers.%d.", n);
    const tensor *t;
    snprintf(path + at, (size_t)(NAME - at), "%s%s", name, part);
    t = tensor_of(&m->of.files, path);
    example_must(t || !needed, path, "the folder has no such tensor");
    return t;
}
/* A vector of `size` elements, or of `other`. */
static vector vector_of(const lm *m, int n, const char *name, const char *part, int needed, int size, int other)
{
    const gguf_tensor *g = m->container.files ? find_gguf(m, n, name, part, needed) : NULL;
    const tensor *t = m->container.files ? NULL : find(m, n, name, part, needed);
    vector a = { 0, NULL };
    float *to;
    int i;
    if (g) {
        example_must(g->ne[0] == (uint64_t)size || g->ne[0] == (uint64_t)other, name, "has another length");
        a.n = (int)g->ne[0];
        a.v = to = floats((size_t)a.n);
        example_must(gguf_decode(g->type, g->data, (size_t)a.n, to), name, "is of a type that is not decoded here");
    }
    if (!t) return a;
    example_must(tensor_has_numbers(t), t->name, "neither BF16 nor F16 nor F32");
    example_must(t->count == (size_t)size || t->count == (size_t)other, t->name, "has another length");
    a.n = (int)t->count;
    a.v = to = floats((size_t)a.n);
    for (i = 0; i < a.n; i++) to[i] = tensor_number(t, (size_t)i);
    return a;
}

static float e4m3(int code)
{
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float f = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return code & 128 ? -f : f;
}
/* How a matrix outside of the experts is quantized. */
static const checkpoint_format *format_of(const lm *m, int n, const char *name)
{
    static const char only[] = "is neither BF16, nor fp8 in blocks of 128 x 128, nor symmetric pack-quantized int4";
    const checkpoint_format *f = m->of.format, *end = f + m->of.formats;
    const tensor *t = NULL;
    for (; f < end; f++) {
        t = find(m, n, name, f->w, 0);
        if (t && checkpoint_has_word(f->type, t->type)) break;
    }
    if (f == end) t = find(m, n, name, ".weight", 1);
    example_must(f < end && ((f->source == MOEK_FROM_PACKED_INT4 && !f->zero && !f->order) ||
                             f->source == MOEK_FROM_FP8_BLOCK || json_is(t->type, "BF16")), t->name, only);
    return f;
}
/* A quantized matrix, as bf16.  int4: code - 8, the first in the low half of a byte, rows of whole words. */
static const uint16_t *decoded(const lm *m, int n, const char *name, const checkpoint_format *f, int rows, int columns)
{
    const int fp8 = f->source == MOEK_FROM_FP8_BLOCK, of = fp8 ? 128 : f->block ? f->block : columns;
    const int groups = (columns + of - 1) / of, scale_rows = fp8 ? (rows + 127) / 128 : rows;
    const size_t row = fp8 ? (size_t)columns : ((size_t)columns + 7) / 8 * 4;
    const tensor *w = find(m, n, name, f->w, 1), *scale = find(m, n, name, f->scale, 1);
    uint16_t *to = (uint16_t *)room((size_t)rows * (size_t)columns, sizeof *to);
    int i, k;
    example_must(w->bytes == (size_t)rows * row, w->name, "has another shape");
    example_must(tensor_has_numbers(scale) && scale->count == (size_t)scale_rows * (size_t)groups, scale->name,
                 "has another type or shape");
    for (i = 0; i < rows; i++)
        for (k = 0; k < columns; k++) {
            const int byte = w->data[(size_t)i * row + (size_t)(fp8 ? k : k / 2)];
            const float value = fp8 ? e4m3(byte) : (float)(byte >> 4 * (k & 1) & 15) - 8;
            const size_t group = (size_t)(fp8 ? i / 128 : i) * (size_t)groups + (size_t)(k / of);
            to[(size_t)i * (size_t)columns + (size_t)k] = bf16_of(value * tensor_number(scale, group));
        }
    return to;
}
/* bf16, and whatever a .gguf has, stays in the file. */
static matrix matrix_of(const lm *m, int n, const char *name, int rows, int columns)
{
    const gguf_tensor *g = m->container.files ? find_gguf(m, n, name, ".weight", 1) : NULL;
    matrix a;
    float block[256];
    memset(&a, 0, sizeof a);
    a.rows = rows; a.columns = columns;
    a.bias = vector_of(m, n, name, ".bias", 0, rows, rows);
    if (g) {
        a.type = g->type; a.w = g->data; a.row_bytes = gguf_row_bytes(g);
        example_must(g->ne[0] == (uint64_t)columns && g->ne[1] == (uint64_t)rows && g->ne[2] * g->ne[3] == 1, name,
                     "has another shape");
        example_must(gguf_decode(g->type, g->data, (size_t)g->type->columns, block), name,
                     "is of a type that is not decoded here");
    } else {
        const checkpoint_format *f = format_of(m, n, name);
        const tensor *t = find(m, n, name, f->w, 1);
        example_must(f->source || t->count == (size_t)rows * (size_t)columns, t->name, "has another shape");
        a.type = gguf_type_of(GGUF_BF16);
        a.w = f->source ? (const unsigned char *)decoded(m, n, name, f, rows, columns) : t->data;
        a.row_bytes = 2 * (size_t)columns;
    }
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
static float dot_f32(const float *x, const float *w, int n)
{
    float lane[16] = { 0 }, sum = 0;
    int i, j;
    for (i = 0; i + 16 <= n; i += 16) for (j = 0; j < 16; j++) lane[j] += x[i + j] * w[i + j];
    for (; i < n; i++) sum += x[i] * w[i];
    for (j = 0; j < 16; j++) sum += lane[j];
    return sum;
}
/* Row r of a, times those of x: added to y [tokens], `stride` apart.  Blocks are decoded once for all tokens. */
static void linear_row(float *y, size_t stride, const float *x, int tokens, const matrix *a, int r)
{
    const unsigned char *w = a->w + (size_t)r * a->row_bytes;
    float part[256];
    int t, k, n;
    if (a->type->number == GGUF_BF16 && (uintptr_t)w % 2 == 0) {
        for (t = 0; t < tokens; t++)
            y[(size_t)t * stride] += dot(x + (size_t)t * a->columns, (const uint16_t *)(const void *)w, a->columns);
        return;
    }
    for (k = 0; k < a->columns; k += 256) {
        n = a->columns - k < 256 ? a->columns - k : 256;
        gguf_decode(a->type, w + k / a->type->columns * a->type->bytes, (size_t)n, part);
        for (t = 0; t < tokens; t++) y[(size_t)t * stride] += dot_f32(x + (size_t)t * a->columns + k, part, n);
    }
}
/* y [tokens][rows] = x [tokens][columns] . a, or y + that. */
static void linear(float *y, const float *x, int tokens, const matrix *a, int add)
{
    int r, t;
#ifdef _OPENMP
#pragma omp parallel for private(t)
#endif
    for (r = 0; r < a->rows; r++) {
        for (t = 0; t < tokens; t++) {
            float *to = &y[(size_t)t * a->rows + r];
            *to = (add ? *to : 0) + (a->bias.v ? a->bias.v[r] : 0);
        }
        linear_row(y + r, (size_t)a->rows, x, tokens, a, r);
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
    const int half = m->head / 2, adjacent = m->container.files && m->kind->adjacent;
    int i, k;
    if (norm.v) rms_norm(m, x, x, size, norm);
    clamp(x, size, m->clip);
    for (i = 0; i < tokens * heads; i++, x += m->head)
        for (k = 0; k < half; k++) {
            const size_t at = (size_t)(m->position + i / heads) * half + k;
            float *first = x + (adjacent ? 2 * k : k), *second = adjacent ? first + 1 : first + half;
            const float a = *first, b = *second;
            *first = a * m->cosines[at] - b * m->sines[at];
            *second = b * m->cosines[at] + a * m->sines[at];
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

/* 1. What a layer is, planned once: the plan of all layers, and the memory that they take turns to use. */
static void find_experts(lm *m)
{
    moek_config *c = &m->experts.config;
    gguf_layer l;
    if (m->container.files) {
        example_must(gguf_find(&m->container, 0, &l), "layer 0", m->container.why);
        example_must(l.experts > 0, "layer 0", "has no experts");
        m->config = l.config;                          /* with its routing: families of this file are known there */
    } else {
        example_must(checkpoint_find(&m->of, 0, &m->experts), "layer 0", m->of.why);
        example_must(m->experts.experts > 0, "layer 0", "has no experts");
        c->routing = json_true(m->of.text, "norm_topk_prob", 0) ? MOEK_ROUTE_SOFTMAX_RENORM : m->kind->routing;
        c->dtype = MOEK_DTYPE_BF16;
        m->config = *c;
    }
}
/* A plan for layers of the config's format; all have their turn in the one workspace. */
static void plan_config(lm *m, moek_plan *plan, const moek_config *config)
{
    moek_config c = *config;
    moek_plan in_file;
    char text[2000];
    example_must(c.dtype != MOEK_DTYPE_FP16, "experts", "are in fp16; bf16 is served here");
    c.max_tokens = CHUNK;
    c.exclude = EXAMPLE_EXCLUDE;
    must(moek_plan_init(plan, &c), "moek_plan_init", plan->why);
    c.weight_layout = MOEK_WEIGHTS_BLOCKS;             /* where the file has them, no copy; GPUs read arrays faster */
    if (m->container.files && plan->backend == MOEK_BACKEND_CPU && moek_plan_init(&in_file, &c) == MOEK_OK)
        *plan = in_file;
    moek_describe(plan, text, sizeof text);
    fputs(text, stderr);
    if (moek_workspace_size(plan) > m->workspace) m->workspace = moek_workspace_size(plan);
}
static void plan_layers(lm *m)
{
    const size_t hidden = (size_t)m->config.hidden, experts = (size_t)m->config.experts;
    plan_config(m, &m->plan, &m->config);
    m->args.x = m->moe_x = example_new(m->plan.device, NULL, sizeof(uint16_t) * CHUNK * hidden);
    m->args.y = example_new(m->plan.device, NULL, sizeof(uint16_t) * CHUNK * hidden);
    m->args.router_logits = m->moe_logits = example_new(m->plan.device, NULL, sizeof(float) * CHUNK * experts);
    m->args.why = m->why; m->args.why_size = sizeof m->why;
}
/* 2. All experts of layer n, in one piece of memory, bound to the layer's copy of the plan. */
static void load_experts(lm *m, int n)
{
    moek_plan *plan = &m->layers[n].plan;
    checkpoint_layer l;
    moek_weights w;
    size_t bytes;
    void *host;
    example_must(checkpoint_find(&m->of, n, &l), "experts", m->of.why);
    example_must(l.experts && l.config.quant == m->experts.config.quant && l.config.block == m->experts.config.block &&
                 l.names == m->experts.names, "experts", "layers have another format than the first, or none");
    l.config = m->config;
    bytes = checkpoint_carve(&l, NULL, &w);
    host = example_new(-1, NULL, bytes);
    checkpoint_carve(&l, host, &w);
    example_must(checkpoint_load(&m->of, &l, 0, &w, &m->report), "experts", m->of.why);
    if (m->plan.device >= 0) {
        checkpoint_carve(&l, example_new(m->plan.device, host, bytes), &w);
        example_free(-1, host);
    }
    *plan = m->plan;                                   /* a plan is a value */
    must(moek_plan_bind(plan, &w), "moek_plan_bind", plan->why);
}
/* Of a .gguf: bound in the file where moek has the format, or in `host`; on a GPU copied.  Layers may have several
 * formats. */
static void bind_gguf(lm *m, int n)
{
    moek_plan *plan = &m->layers[n].plan;
    gguf_layer l;
    moek_weights w;
    size_t bytes;
    void *host;
    int which;
    example_must(gguf_find(&m->container, n, &l), "experts", m->container.why);
    example_must(l.experts == m->config.experts && l.config.hidden == m->config.hidden &&
                 l.config.dtype == m->config.dtype, "experts", "layers have other sizes than the first, or none");
    *plan = m->plan;
    if (l.config.quant != m->config.quant || l.config.down_quant != m->config.down_quant)
        plan_config(m, plan, &l.config);
    l.config.weight_layout = plan->config.weight_layout;
    bytes = gguf_carve(&l, 0, NULL, &w);
    host = example_new(-1, NULL, bytes);
    gguf_carve(&l, 0, host, &w);
    example_must(gguf_load(&m->container, &l, 0, &w, &m->report), "experts", m->container.why);
    if (plan->device >= 0) {
        gguf_carve(&l, 0, example_new(plan->device, host, bytes), &w);
        example_free(-1, host);
        for (which = 0; which < 4; which++)
            if (l.matrix[which] && gguf_in_place(&l, which, 0))
                *gguf_fields_of(&w, which).w = example_new(plan->device, l.matrix[which]->data, l.matrix[which]->bytes);
    }
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
    example_put(m->plan.device, m->moe_logits, m->router, sizeof(float) * tokens * m->config.experts);
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
    example_must(count > 0 && count <= m->positions - m->position, "tokens", "none, or more than there is room for");
    for (; count > 0; ids += tokens, count -= tokens, m->position += tokens) {
        tokens = count < CHUNK ? count : CHUNK;
        for (t = 0; t < tokens; t++) {
            example_must(ids[t] >= 0 && ids[t] < m->vocab, "token", "no such id");
            gguf_decode(m->embed.type, m->embed.w + (size_t)ids[t] * m->embed.row_bytes, hidden, m->x + t * hidden);
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

static void read_rope(lm *m)
{
    const char *newer = json_at(m->of.text, "rope_parameters");        /* of transformers 5 */
    const char *scaling = newer ? newer : json_at(m->of.text, "rope_scaling"), *type = json_at(scaling, "rope_type");
    const int yarn = json_is(type, "yarn");
    rope *r = &m->rotary;
    r->base = real(newer, "rope_theta", real(m->of.text, "rope_theta", 10000, 1.01, 1e12), 1.01, 1e12);
    r->factor = yarn ? real(scaling, "factor", 1, 1, 1e6) : 1;
    r->length = real(scaling, "original_max_position_embeddings", 4096, 1, 1e9);
    r->fast = real(scaling, "beta_fast", 32, 1e-3, 1e6);
    r->slow = real(scaling, "beta_slow", 1, 1e-3, 1e6);
    r->scale = real(scaling, "attention_factor", 1 + 0.1 * log(r->factor), 0, 1e3);
    r->truncate = json_true(scaling, "truncate", 1);
    example_must(!type || yarn || json_is(type, "default"), "rope_type", "neither default nor yarn");
}
/* Of a .gguf.  gpt-oss does not truncate; no key says so. */
static void read_rope_gguf(lm *m)
{
    const gguf_text type = gguf_string(&m->container, ".rope.scaling.type");
    rope *r = &m->rotary;
    example_must(!type.at || gguf_is(type, "yarn") || gguf_is(type, "none"), "rope.scaling.type",
                 "neither yarn nor none");
    r->base = real_gguf(m, ".rope.freq_base", 10000, 1.01, 1e12);
    r->factor = type.at && gguf_is(type, "yarn") ? real_gguf(m, ".rope.scaling.factor", 1, 1, 1e6) : 1;
    r->length = real_gguf(m, ".rope.scaling.original_context_length", 4096, 1, 1e9);
    r->fast = real_gguf(m, ".rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6);
    r->slow = real_gguf(m, ".rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6);
    r->scale = real_gguf(m, ".rope.scaling.attn_factor", 1, 0, 1e3) * (1 + 0.1 * log(r->factor));
    r->truncate = !m->kind->windows;
}
/* Angles of the rotary embedding. */
static void set_angles(lm *m)
{
    const rope *r = &m->rotary;
    const double length = r->length / (2 * acos(-1.0));
    const int half = m->head / 2;
    double low = m->head * log(length / r->fast) / (2 * log(r->base));
    double high = m->head * log(length / r->slow) / (2 * log(r->base));
    int p, k;
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0); high = fmax(fmin(high, m->head - 1), low + 0.001);
    m->cosines = floats((size_t)m->positions * (size_t)half);
    m->sines = floats((size_t)m->positions * (size_t)half);
    for (p = 0; p < m->positions; p++)
        for (k = 0; k < half; k++) {
            const double ramp = fmin(fmax((k - low) / (high - low), 0), 1);
            const double angle = p * pow(r->base, -2.0 * k / m->head) * (1 - ramp + ramp / r->factor);
            m->cosines[(size_t)p * half + k] = (float)(r->scale * cos(angle));
            m->sines[(size_t)p * half + k] = (float)(r->scale * sin(angle));
        }
}
/* How many tokens a token of layer n sees; 0: all. */
static int window_of(lm *m, int n)
{
    const char *type = json_first(json_at(m->of.text, "layer_types"));
    int i;
    if (m->container.files)
        return m->kind->windows && n % 2 ? 0 : whole_gguf(m, ".attention.sliding_window", 0, 0, 0x7fffffff);
    for (i = 0; type && i < n; i++) type = json_next(type);
    return json_true(m->of.text, "use_sliding_window", 1) && (!type || json_is(type, "sliding_attention"))
               ? whole(m, "sliding_window", 0, 0, 0x7fffffff) : 0;
}
static void load_layer(lm *m, int n)
{
    const int q = m->heads * m->head, kv = m->kv_heads * m->head;
    layer *l = &m->layers[n];
    l->window = window_of(m, n);
    l->input_norm = vector_of(m, n, "input_layernorm", ".weight", 1, m->hidden, m->hidden);
    l->post_norm = vector_of(m, n, "post_attention_layernorm", ".weight", 1, m->hidden, m->hidden);
    l->q_norm = vector_of(m, n, "self_attn.q_norm", ".weight", 0, m->head, q);     /* Qwen3: of a head; OLMoE: all */
    l->k_norm = vector_of(m, n, "self_attn.k_norm", ".weight", 0, m->head, kv);
    l->sinks = vector_of(m, n, "self_attn.sinks", "", 0, m->heads, m->heads);
    l->q = matrix_of(m, n, "self_attn.q_proj", q, m->hidden);
    l->k = matrix_of(m, n, "self_attn.k_proj", kv, m->hidden);
    l->v = matrix_of(m, n, "self_attn.v_proj", kv, m->hidden);
    l->o = matrix_of(m, n, "self_attn.o_proj", m->hidden, q);
    l->router = matrix_of(m, n, m->container.files ? "router" : m->experts.names->router, m->config.experts, m->hidden);
    l->keys = floats((size_t)m->positions * (size_t)kv);
    l->values = floats((size_t)m->positions * (size_t)kv);
    if (m->container.files) bind_gguf(m, n);
    else load_experts(m, n);
}
/* Sizes that are not the experts'. */
static void read_sizes(lm *m)
{
    const char *type = json_at(m->of.json, "model_type");
    size_t i;
    for (i = 0; i < sizeof families / sizeof *families; i++)
        if (json_is(type, families[i].type)) m->kind = &families[i];
    example_must(m->kind != NULL, "model_type", "none of qwen3_moe, olmoe, mixtral, gpt_oss");
    m->hidden = whole(m, "hidden_size", 0, 1, 1 << 24);
    m->heads = whole(m, "num_attention_heads", 0, 1, 1 << 12);
    m->kv_heads = whole(m, "num_key_value_heads", m->heads, 1, m->heads);
    m->head = whole(m, "head_dim", m->hidden / m->heads, 2, 1 << 12);
    m->vocab = whole(m, "vocab_size", 0, 1, 1 << 24);
    m->depth = m->of.depth;
    m->eps = (float)real(m->of.text, "rms_norm_eps", 1e-5, 0, 1);
    m->clip = (float)real(m->of.text, "clip_qkv", 0, 0, 1e30);
    read_rope(m);
}
static void read_sizes_gguf(lm *m)
{
    const gguf_tensor *t;
    size_t i;
    for (i = 0; i < sizeof families / sizeof *families; i++)
        if (gguf_is(m->container.arch, families[i].arch)) m->kind = &families[i];
    example_must(m->kind != NULL, "general.architecture", "none of qwen3moe, olmoe, llama with experts, gpt-oss");
    m->hidden = whole_gguf(m, ".embedding_length", 0, 1, 1 << 24);
    m->heads = whole_gguf(m, ".attention.head_count", 0, 1, 1 << 12);
    m->kv_heads = whole_gguf(m, ".attention.head_count_kv", m->heads, 1, m->heads);
    m->head = whole_gguf(m, ".attention.key_length", m->hidden / m->heads, 2, 1 << 12);
    t = find_gguf(m, -1, "model.embed_tokens", ".weight", 1);
    example_must(t->ne[1] <= 1 << 24, "token_embd.weight", "has more than 2^24 rows");
    m->vocab = (int)t->ne[1];
    m->depth = m->container.depth;
    example_must(m->depth > 0, "block_count", "there are no layers");
    m->eps = (float)real_gguf(m, ".attention.layer_norm_rms_epsilon", 1e-5, 0, 1);
    m->clip = (float)real_gguf(m, ".attention.clamp_kqv", 0, 0, 1e30);
    example_must(whole_gguf(m, ".rope.dimension_count", m->head, 1, 1 << 12) == m->head, "rope.dimension_count",
                 "is not the length of a head");
    read_rope_gguf(m);
}
/* A model, with room for so many tokens: a folder, or FILE.gguf. */
static lm *lm_open(const char *path, int positions)
{
    lm *m = (lm *)room(1, sizeof *m);
    const size_t length = strlen(path);
    const int is_gguf = length > 5 && !strcmp(path + length - 5, ".gguf");
    int n, tied;
    if (is_gguf) example_must(gguf_open(&m->container, path), path, m->container.why);
    else example_must(checkpoint_open(&m->of, path), path, m->of.why);
    m->positions = positions;
    if (is_gguf) read_sizes_gguf(m);
    else read_sizes(m);
    example_must(m->head % 2 == 0, "head_dim", "must be even");
    example_must(m->heads % m->kv_heads == 0, "num_key_value_heads", "must divide num_attention_heads");
    m->embed = matrix_of(m, -1, "model.embed_tokens", m->vocab, m->hidden);
    tied = is_gguf ? !find_gguf(m, -1, "lm_head", ".weight", 0) : json_true(m->of.text, "tie_word_embeddings", 0);
    m->lm_head = tied ? m->embed : matrix_of(m, -1, "lm_head", m->vocab, m->hidden);
    m->norm = vector_of(m, -1, "model.norm", ".weight", 1, m->hidden, m->hidden);
    find_experts(m);
    example_must(m->config.hidden == m->hidden, "experts", "have another hidden size than the model");
    plan_layers(m);
    m->layers = (layer *)room((size_t)m->depth, sizeof *m->layers);
    for (n = 0; n < m->depth; n++) load_layer(m, n);
    must(moek_import_verdict(&m->report, m->why, sizeof m->why), "moek_import", m->why);
    m->args.workspace_size = m->workspace;
    m->args.workspace = example_new(m->plan.device, NULL, m->workspace);
    m->x = floats((size_t)CHUNK * (size_t)m->hidden);
    m->normed = floats((size_t)CHUNK * (size_t)m->hidden);
    m->queries = floats((size_t)CHUNK * (size_t)(m->heads * m->head));
    m->attended = floats((size_t)CHUNK * (size_t)(m->heads * m->head));
    m->router = floats((size_t)CHUNK * (size_t)m->config.experts);
    m->rounded = (uint16_t *)room((size_t)CHUNK * (size_t)m->hidden, sizeof *m->rounded);
    set_angles(m);
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
    const int given = argc - 3;
    const long count = argc > 3 ? strtol(argv[2], NULL, 10) : 0;
    float *logits;
    int *ids, i, token;
    lm *m;
    example_must(count > 0 && count <= LONGEST - given, "moe_lm FOLDER or FILE.gguf COUNT TOKEN ...",
                 "prints the COUNT tokens that follow");
    m = lm_open(argv[1], given + (int)count);
    ids = (int *)room(given, sizeof *ids);
    for (i = 0; i < given; i++) ids[i] = (int)strtol(argv[3 + i], NULL, 10);
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
