/* checkpoint.h -- from a folder of Hugging Face to moek_config, and to what moek_import takes.  Copy it, with
 * safetensors.h: an engine need not know what a quantizer calls its tensors.
 *
 *     checkpoint c;
 *     checkpoint_layer l;
 *     moek_weights w;
 *     must(checkpoint_open(&c, folder), c.why);                       config.json, and where the tensors are
 *     must(checkpoint_find(&c, 3, &l), c.why);                        1. layer 3: names, format; l.experts 0: none
 *     l.config.routing = MOEK_ROUTE_SOFTMAX_RENORM;                   2. what only the model's code says
 *     l.config.max_tokens = 512;                                         (docs/models.md)
 *     moek_plan_init(&plan, &l.config);
 *     bytes = checkpoint_carve(&l, NULL, &w);                         3. room for all arrays of the layer, in one piece
 *     checkpoint_carve(&l, aligned_memory(bytes), &w);
 *     must(checkpoint_load(&c, &l, 0, &w, &report), c.why);           4. all experts, into host memory
 *     moek_import_verdict(&report, text, sizeof text);                5. may they be run?
 *     moek_plan_bind(&plan, &w);
 *
 * For a GPU: checkpoint_load, copy the piece, checkpoint_carve(&l, the copy, &w): the arrays lie the same there.  Or,
 * with less host memory, checkpoint_matrix for each matrix of each expert: it fills in moek_import_args, whose arrays
 * one copies to the GPU before moek_import.  Expert parallelism: l.config.local_experts, and checkpoint_load's `first`.
 *
 * Read are mxfp4 of gpt-oss, compressed-tensors, auto-round, GPTQ, AWQ, ModelOpt, fp8, and plain bf16 and fp16, in the
 * names of models.toml.  The tensors decide: quantization_config says which formats there may be, the experts of the
 * layer which of them is there, so that lists of ignored layers need not be understood.
 *     l.config   hidden, inter, experts, topk, act, limit, dtype, quant, block, up_layout, up_scales.  quant: what a
 *                checkpoint says of activations is kept: fp8c where they are e4m3, too, else fp8c_a16.  Any format with
 *                the same weights may take its place (moek_same_weights): nvfp4_a16, say, by nvfp4_a8
 *                act: that of hidden_act; 0, which moek refuses, where checkpoint.h does not know the name: set it.
 *                Some models mean more than the name says (docs/models.md)
 *     fp8        a scale a matrix: fp8t, if gate's is up's in all experts of the layer; else fp8c, whose rows have the
 *                scale of their matrix: exactly the same weights.  (fp8t with MOEK_UP_SEPARATE has two scales, too.)
 *     act-order  of down: rows of gate and up take the order (moek_import_order); of gate and up: refused            */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "moek.h"
#include "moek_import.h"
#include "../generated/moek_names.h"
#include "safetensors.h"

typedef struct checkpoint_names {                      /* a row of names in models.toml, which says what is what */
    const char *models, *methods, *router, *matrix[4]; /* matrix: by MOEK_MATRIX_* */
    int interleaved, turned, cut;
} checkpoint_names;
typedef struct checkpoint_format {
    int source, quant, block;                          /* source: MOEK_FROM_*, or 0: the bytes are moek's */
    const char *w, *type;                              /* how names of weights end, and of which types they may be */
    const char *scale, *zero, *order, *global, *static_x;              /* of the other parts; NULL: there is none */
    int zeros;                                         /* zero points are kept; 0: they all are the middle */
} checkpoint_format;
enum { CHECKPOINT_FORMATS = 16 };

typedef struct checkpoint {
    tensors files;
    char *json, *quant_json;                           /* config.json; a file beside it that says what is quantized */
    const char *text, *quantized, *method;             /* sizes; quantization_config; its quant_method */
    char tool[64];                                     /* what wrote it: "gptqmodel" of meta.quantizer */
    int depth, hidden, inter, experts, topk;           /* depth: layers */
    checkpoint_format format[CHECKPOINT_FORMATS];      /* that there may be, plain weights last */
    int formats;
    int32_t *order;                                    /* of columns of down: [inter], of the expert that was last */
    int order_moved;                                   /* some expert's are moved */
    unsigned char *gathered[2];                        /* weights and scales of a matrix that lies otherwise */
    char why[WHY], unread[WHY];                        /* unread: what of quantized is not served here */
} checkpoint;
typedef struct checkpoint_layer {
    moek_config config;
    int number, experts;
    const char *prefix;                                /* "model.layers.%d." */
    const checkpoint_names *names;
    const checkpoint_format *format;
    int bias, static_x;                                /* experts have biases; x and h of fp8t have scales */
    char looked_for[NAME];                             /* where experts is 0 */
} checkpoint_layer;

static const char *const checkpoint_prefixes[] = {
#define CHECKPOINT_PREFIX(text) text,
    MOEK_EACH_LAYER_NAME(CHECKPOINT_PREFIX)
#undef CHECKPOINT_PREFIX
    NULL
};
static const checkpoint_names checkpoint_name_rows[] = {
#define CHECKPOINT_NAMES(models, methods, router, gate, up, gate_up, down, interleaved, turned, cut) \
    { models, methods, router, { gate, up, down, gate_up }, interleaved, turned, cut },
    MOEK_EACH_NAMES(CHECKPOINT_NAMES)
#undef CHECKPOINT_NAMES
    { NULL, NULL, NULL, { NULL, NULL, NULL, NULL }, 0, 0, 0 }
};

/* ---- what quantization_config says ------------------------------------------------------------------------------- */

static inline checkpoint_format *checkpoint_may(checkpoint *c, int source, int quant, int block, const char *w,
                                                const char *type, const char *scale)
{
    checkpoint_format *f = &c->format[c->formats];
    if (c->formats < CHECKPOINT_FORMATS - 1) c->formats++;             /* (more there are not) */
    memset(f, 0, sizeof *f);
    f->source = source; f->quant = quant; f->block = block;
    f->w = w; f->type = type; f->scale = scale;
    return f;
}
/* [128, 128] */
static inline int checkpoint_block_128(const char *sides)
{
    const char *first = json_first(sides), *second = first ? json_next(first) : NULL;
    return second && strtol(first, NULL, 10) == 128 && strtol(second, NULL, 10) == 128;
}
static inline void checkpoint_unread(checkpoint *c, const char *what, const char *value)
{
    char shown[64];
    if (!*c->unread) say(c->unread, "%s %s", what, json_shown(value, shown));
}
/* Weights in e4m3.  columns, rows: of a scale, 0: all; a8: activations are e4m3, too. */
static inline checkpoint_format *checkpoint_may_fp8(checkpoint *c, int rows, int columns, int a8, const char *scale)
{
    const int source = rows > 1 ? MOEK_FROM_FP8_BLOCK : columns ? MOEK_FROM_MXFP8
                     : rows ? MOEK_FROM_FP8_CHANNEL : MOEK_FROM_FP8_TENSOR;
    const int quant = rows > 1 ? (a8 ? MOEK_FP8B128 : MOEK_FP8B128_A16) : columns ? MOEK_MXFP8
                    : rows ? (a8 ? MOEK_FP8C : MOEK_FP8C_A16) : (a8 ? MOEK_FP8T : MOEK_FP8T_A16);
    return checkpoint_may(c, source, quant, 0, ".weight", " F8_E4M3 ", scale);
}
/* A group of compressed-tensors. */
static inline void checkpoint_compressed(checkpoint *c, const char *group)
{
    const char *w = json_at(group, "weights"), *x = json_at(group, "input_activations");
    const char *own = json_at(group, "format"), *format = own ? own : json_at(c->quantized, "format");
    const char *strategy = json_at(w, "strategy"), *block = json_at(w, "block_structure"), *type = json_at(w, "type");
    const int is_float = json_is(type, "float"), symmetric = json_true(w, "symmetric", 1);
    checkpoint_format *f = NULL;
    int bits, columns, a_bits = 16, fp8_x, int8_x;
    if (!json_whole(w, "num_bits", 0, 1, 64, &bits, c->unread) ||
        !json_whole(w, "group_size", 0, -1, 1 << 20, &columns, c->unread) ||
        (x && !json_whole(x, "num_bits", 16, 1, 64, &a_bits, c->unread))) return;
    fp8_x = a_bits == 8 && json_is(json_at(x, "type"), "float");
    int8_x = a_bits == 8 && !fp8_x;
    if (columns < 0 || json_is(strategy, "channel")) columns = 0;
    if (json_is(format, "nvfp4-pack-quantized")) {
        f = checkpoint_may(c, MOEK_FROM_NVFP4_PACKED, MOEK_NVFP4_A16, 0, ".weight_packed", " U8 ", ".weight_scale");
        f->global = ".weight_global_scale";
    } else if (json_is(format, "mxfp4-pack-quantized"))
        f = checkpoint_may(c, MOEK_FROM_MXFP4, MOEK_MXFP4_A16, 0, ".weight_packed", " U8 ", ".weight_scale");
    else if (is_float && bits == 8 && json_is(strategy, "block")) {
        if (checkpoint_block_128(block)) f = checkpoint_may_fp8(c, 128, 128, fp8_x, ".weight_scale");
    } else if (is_float && bits == 8 && json_is(strategy, "group")) {
        if (columns == 32) f = checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale");
    } else if (is_float && bits == 8) {
        f = checkpoint_may_fp8(c, json_is(strategy, "channel"), 0, fp8_x, ".weight_scale");
        if (x && !json_true(x, "dynamic", 0)) f->static_x = ".input_scale";
    } else if (json_is(type, "int") && bits == 4 && json_is(format, "pack-quantized")) {
        const int a8 = fp8_x && columns == 128 && symmetric;
        f = checkpoint_may(c, MOEK_FROM_PACKED_INT4, a8 ? MOEK_INT4_A8 : MOEK_INT4_A16, columns, ".weight_packed",
                           " I32 ", ".weight_scale");
    } else if (json_is(type, "int") && bits == 8 && columns)
        say(c->unread, "int8 with a scale for %d columns: moek's int8 has one a row", columns);
    else if (json_is(type, "int") && bits == 8 && json_is(format, "pack-quantized"))
        f = checkpoint_may(c, MOEK_FROM_PACKED_INT8, int8_x ? MOEK_INT8_A8 : MOEK_INT8_A16, columns,
                           ".weight_packed", " I32 ", ".weight_scale");
    else if (json_is(type, "int") && bits == 8)
        f = checkpoint_may(c, MOEK_FROM_INT8_BYTES, int8_x ? MOEK_INT8_A8 : MOEK_INT8_A16, columns, ".weight",
                           " I8 ", ".weight_scale");
    else if (json_is(type, "int") && bits == 4)
        f = checkpoint_may(c, MOEK_FROM_INT4_BYTES, fp8_x && columns == 128 ? MOEK_INT4_A8 : MOEK_INT4_A16,
                           columns, ".weight", " I8 ", ".weight_scale");
    if (!f) checkpoint_unread(c, "compressed-tensors", format);
    if (!f) return;
    if (json_is(type, "int") && !symmetric) f->zero = ".weight_zero_point", f->zeros = 1;
    if (json_is(type, "int") && json_is(json_at(w, "actorder"), "group")) f->order = ".weight_g_idx";
}
/* GPTQ and AWQ, and what auto-round writes in their way.  v2: zero points are stored as they are. */
static inline void checkpoint_words(checkpoint *c, int awq, int v2)
{
    const char *q = c->quantized, *bits_at = json_at(q, "bits") ? "bits" : "w_bit";
    const char *version = json_at(q, "version");
    checkpoint_format *f;
    int bits, columns;
    if (!json_whole(q, bits_at, 4, 1, 64, &bits, c->unread) ||
        !json_whole(q, json_at(q, "group_size") ? "group_size" : "q_group_size", 128, -1, 1 << 20, &columns, c->unread))
        return;
    if (columns < 0) columns = 0;
    if (bits == 8 && columns && !awq) {
        say(c->unread, "int8 with a scale for %d columns: moek's int8 has one a row", columns);
        return;
    }
    if ((bits != 4 && (awq || bits != 8)) ||
        (awq && version && !json_is(version, "gemm") && !json_is(version, "GEMM"))) {
        checkpoint_unread(c, awq ? "AWQ of another version or with other bits:" : "GPTQ with bits:",
                          bits == 4 ? version : json_at(q, bits_at));
        return;
    }
    f = checkpoint_may(c, awq ? MOEK_FROM_AWQ : bits == 8 ? (v2 ? MOEK_FROM_GPTQ_V2_INT8 : MOEK_FROM_GPTQ_INT8)
                                                         : (v2 ? MOEK_FROM_GPTQ_V2_INT4 : MOEK_FROM_GPTQ_INT4),
                       bits == 8 ? MOEK_INT8_A16 : MOEK_INT4_A16, columns, ".qweight", " I32 ", ".scales");
    f->zero = ".qzeros";
    f->zeros = awq ? json_true(q, "zero_point", 1) : 1;
    if (json_at(q, "sym")) f->zeros = !json_true(q, "sym", 0);         /* (GPTQ, auto-round) */
    if (!awq) f->order = ".g_idx";
}
static inline void checkpoint_auto_round(checkpoint *c)
{
    const char *packing = json_at(c->quantized, "packing_format"), *data = json_at(c->quantized, "data_type");
    char how[64], type[64];
    json_shown(packing, how);
    json_shown(data, type);
    if (strstr(type, "fp")) {
        checkpoint_format *f;
        f = checkpoint_may(c, MOEK_FROM_MXFP4, MOEK_MXFP4_A16, 0, ".weight_packed", " U8 ", ".weight_scale");
        if (strstr(type, "nv_fp")) {
            f->source = MOEK_FROM_NVFP4_PACKED; f->quant = MOEK_NVFP4_A16; f->global = ".weight_global_scale";
        }
        checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale");
        checkpoint_may_fp8(c, 128, 128, 1, ".weight_scale");
        checkpoint_may_fp8(c, 128, 128, 1, ".weight_scale_inv");
        checkpoint_may_fp8(c, 1, 0, 1, ".weight_scale");
        checkpoint_may_fp8(c, 0, 0, 1, ".weight_scale");
    } else checkpoint_words(c, strstr(how, "awq") != NULL, !strstr(how, "gptq") || strstr(how, "gptqmodel"));
}
static inline void checkpoint_modelopt(checkpoint *c, const char *given)
{
    char algo[64];
    const int before = c->formats;
    int i, mixed, fp4, fp8;
    json_shown(given, algo);
    for (i = 0; algo[i]; i++) if (algo[i] >= 'a' && algo[i] <= 'z') algo[i] = (char)(algo[i] - 'a' + 'A');
    mixed = !strcmp(algo, "MIXED_PRECISION");
    fp4 = strstr(algo, "NVFP4") || strstr(algo, "MXFP4");              /* (W4A8_MXFP4_FP8: by the weights) */
    fp8 = !fp4 && strstr(algo, "FP8");
    if (mixed || strstr(algo, "NVFP4"))
        checkpoint_may(c, MOEK_FROM_NVFP4_MODELOPT, strstr(algo, "W4A8") ? MOEK_NVFP4_A8 : MOEK_NVFP4_A16, 0, ".weight",
                       " U8 ", ".weight_scale")->global = ".weight_scale_2";
    if (mixed || strstr(algo, "MXFP4"))
        checkpoint_may(c, MOEK_FROM_MXFP4, strstr(algo, "W4A8") ? MOEK_MXFP4_A8 : MOEK_MXFP4_A16, 0, ".weight", " U8 ",
                       ".weight_scale");
    if (mixed || !strcmp(algo, "MXFP8")) checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale");
    if (mixed || (fp8 && strstr(algo, "_PB"))) checkpoint_may_fp8(c, 128, 128, !strstr(algo, "WO"), ".weight_scale");
    if (mixed || (fp8 && strstr(algo, "PER_CHANNEL"))) checkpoint_may_fp8(c, 1, 0, 1, ".weight_scale");
    if (mixed || fp8) checkpoint_may_fp8(c, 0, 0, 1, ".weight_scale")->static_x = ".input_scale";
    if (!strncmp(algo, "W8A8_SQ", 7) || !strcmp(algo, "W8A16"))
        checkpoint_may(c, MOEK_FROM_INT8_BYTES, algo[3] == '8' ? MOEK_INT8_A8 : MOEK_INT8_A16, 0, ".weight", " I8 ",
                       ".weight_scale");
    if (c->formats == before) checkpoint_unread(c, "ModelOpt", given);
}
static inline void checkpoint_fp8(checkpoint *c)
{
    const char *q = c->quantized, *block = json_at(q, "weight_block_size");
    checkpoint_format *f;
    if (checkpoint_block_128(block)) {
        checkpoint_may_fp8(c, 128, 128, 1, ".weight_scale_inv");
        if (json_at(c->text, "expert_dtype"))          /* DeepSeek-V4: experts in mxfp4, the rest in fp8 */
            checkpoint_may(c, MOEK_FROM_MXFP4, MOEK_MXFP4_A16, 0, ".weight", " I8 U8 ", ".scale");
    } else if (block) checkpoint_unread(c, "fp8 with weight_block_size", block);
    else {
        f = checkpoint_may_fp8(c, 0, 0, 1, ".weight_scale");
        if (json_is(json_at(q, "activation_scheme"), "static")) f->static_x = ".input_scale";
    }
    checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale_inv");
}
static inline void checkpoint_quantized(checkpoint *c)
{
    const char *q = c->quantized, *m = c->method, *algo = json_at(q, "quant_algo"), *group, *v;
    if (json_is(m, "mxfp4"))
        checkpoint_may(c, MOEK_FROM_MXFP4, MOEK_MXFP4_A16, 0, "_blocks", " U8 ", "_scales");
    else if (json_is(m, "compressed-tensors"))
        for (group = json_first(json_at(q, "config_groups")); group && c->formats < 12; group = json_next(v)) {
            v = json_value(group);
            checkpoint_compressed(c, v);
        }
    else if (json_is(m, "auto-round") || json_is(m, "intel/auto-round")) checkpoint_auto_round(c);
    else if (json_is(m, "gptq")) checkpoint_words(c, 0, json_is(json_at(q, "checkpoint_format"), "gptq_v2"));
    else if (json_is(m, "awq")) checkpoint_words(c, 1, 0);
    else if (json_is(m, "w4afp8"))
        checkpoint_may(c, MOEK_FROM_INT4_SIGNED, MOEK_INT4_A8, 128, ".weight", " I8 U8 ", ".weight_scale_inv");
    else if (algo) checkpoint_modelopt(c, algo);
    else if (json_is(m, "fp8")) checkpoint_fp8(c);
    else if (json_is(m, "mxfp8")) {
        checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale_inv");
        checkpoint_may_fp8(c, 1, 32, 1, ".weight_scale");
    } else if (q) checkpoint_unread(c, "quant_method", m);
    checkpoint_may(c, 0, MOEK_BF16, 0, ".weight", " BF16 ", NULL);
    checkpoint_may(c, 0, MOEK_FP16, 0, ".weight", " F16 ", NULL);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Part `part` of a matrix of expert e, or NULL.  Of stacked matrices names end in one of three ways. */
static inline const tensor *checkpoint_part(const checkpoint *c, const checkpoint_layer *l, int which, int e,
                                            const char *part, char name[NAME])
{
    const char *module = l->names->matrix[which];
    const tensor *t;
    int at = snprintf(name, NAME, l->prefix, l->number), module_end;
    at += snprintf(name + at, (size_t)(NAME - at), module, e);
    module_end = at;
    snprintf(name + at, (size_t)(NAME - at), "%s", part);
    t = tensor_of(&c->files, name);
    if (t || strstr(module, "%d") || *part != '.') return t;
    snprintf(name + at, (size_t)(NAME - at), "_%s", part + 1);
    t = tensor_of(&c->files, name);
    if (t || strncmp(part, ".weight", 7)) return t;
    snprintf(name + module_end, (size_t)(NAME - module_end), "%s", part + 7);
    return tensor_of(&c->files, name);
}
static inline int checkpoint_has_word(const char *words, const char *value)            /* value: JSON, or plain */
{
    char spaced[68], shown[64];
    if (!words || !value || !*value) return 0;
    snprintf(spaced, sizeof spaced, " %s ", *value == '"' ? json_shown(value, shown) : value);
    return strlen(spaced) > 2 && strstr(words, spaced) != NULL;
}
/* Is it one of the architecture's rows? */
static inline int checkpoint_may_be_named(const checkpoint *c, const checkpoint_names *row)
{
    const char *whole = json_at(c->json, "model_type"), *text = json_at(c->text, "model_type");
    const checkpoint_names *other;
    if (row->methods && !checkpoint_has_word(row->methods, c->method) && !checkpoint_has_word(row->methods, c->tool))
        return 0;
    if (checkpoint_has_word(row->models, whole) || checkpoint_has_word(row->models, text)) return 1;
    if (row->methods || row->interleaved) return 0;
    for (other = checkpoint_name_rows; other->models; other++)
        if (checkpoint_has_word(other->models, whole) || checkpoint_has_word(other->models, text)) return 0;
    return 1;
}
static inline int checkpoint_stacked(const checkpoint_layer *l)
{
    return !strstr(l->names->matrix[MOEK_MATRIX_DOWN], "%d");
}
static inline int checkpoint_rows(const checkpoint_layer *l, int which)
{
    const moek_config *m = &l->config;
    return which == MOEK_MATRIX_DOWN ? m->hidden : which == MOEK_MATRIX_GATE_UP ? 2 * m->inter : m->inter;
}
static inline int checkpoint_columns(const checkpoint_layer *l, int which)
{
    return which == MOEK_MATRIX_DOWN ? l->config.inter : l->config.hidden;
}

/* Are weights and scales of a matrix there, of the right types and sizes?  0: a sentence. */
static inline int checkpoint_fits(checkpoint *c, const checkpoint_layer *l, int which, int e)
{
    const checkpoint_format *f = l->format;
    const moek_format *of = moek_format_of(f->quant);
    const moek_scale_shape shape = moek_weight_scale(of, f->block);
    const size_t rows = (size_t)checkpoint_rows(l, which), columns = (size_t)checkpoint_columns(l, which);
    const size_t many = checkpoint_stacked(l) ? (size_t)l->experts : 1;
    const size_t groups = moek_scale_count(&shape, rows, columns);
    char name[NAME], type[64];
    const tensor *t = checkpoint_part(c, l, which, e, f->w, name), *scale;
    size_t row = moek_element_bytes(of->w, columns);
    if (!t) return say(c->why, "%s is not in the folder", name);
    if (!checkpoint_has_word(f->type, t->type))
        return say(c->why, "%s has type %s; %s wants%.*s", name, json_shown(t->type, type), of->name,
                   (int)strlen(f->type) - 1, f->type);
    if (json_is(t->type, "I32")) row = (row + 3) / 4 * 4;
    if (f->source == MOEK_FROM_INT4_BYTES) row = columns;
    if (t->bytes != many * rows * row)
        return say(c->why, "%s has %zu bytes; %zu matrices of %zu x %zu in %s have %zu", name, t->bytes, many, rows,
                   columns, of->name, many * rows * row);
    if (!f->scale) return 1;
    scale = checkpoint_part(c, l, which, e, f->scale, name);
    if (!scale) return say(c->why, "%s is not in the folder", name);
    if (scale->count == many * groups || (!shape.rows && scale->count == 1)) return 1;
    return say(c->why, "%s has %zu scales; %s wants %zu", name, scale->count, of->name, many * groups);
}
/* The matrices of a layer that its names have, of the first expert and the last, and of nobody else. */
static inline int checkpoint_fits_layer(checkpoint *c, const checkpoint_layer *l)
{
    char name[NAME];
    int which, e;
    for (which = 0; which < 4; which++)
        for (e = 0; e < l->experts && l->names->matrix[which]; e += l->experts > 1 ? l->experts - 1 : 1)
            if (!checkpoint_fits(c, l, which, e)) return 0;
    if (!checkpoint_stacked(l) && checkpoint_part(c, l, MOEK_MATRIX_DOWN, l->experts, l->format->w, name))
        return say(c->why, "%s is there, but config.json has %d experts", name, l->experts);
    return 1;
}

/* ---- a folder ---------------------------------------------------------------------------------------------------- */

static inline const char *checkpoint_first_key(const char *object, const char *const *keys)
{
    for (; *keys; keys++) if (json_at(object, *keys)) return *keys;
    return keys[-1];
}
static inline int checkpoint_sizes(checkpoint *c)
{
    static const char *const hidden[] = { "moe_latent_size", "routed_expert_hidden_size", "hidden_size", NULL };
    static const char *const inter[] = { "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", NULL };
    static const char *const experts[] = { "n_routed_experts", "num_local_experts", "moe_num_experts", "num_experts",
                                           NULL };
    static const char *const topk[] = { "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k",
                                        "num_experts_per_tok", NULL };
    const char *t = c->text;
    return json_whole(t, "num_hidden_layers", 0, 1, 1 << 12, &c->depth, c->why) &&
           json_whole(t, checkpoint_first_key(t, hidden), 0, 1, 1 << 24, &c->hidden, c->why) &&
           json_whole(t, checkpoint_first_key(t, inter), 0, 1, 1 << 24, &c->inter, c->why) &&
           json_whole(t, checkpoint_first_key(t, experts), 0, 1, 1024, &c->experts, c->why) &&
           json_whole(t, checkpoint_first_key(t, topk), 0, 1, 32, &c->topk, c->why);
}
static inline char *checkpoint_json(const char *folder, const char *name, char *why)
{
    char path[PATH], *text = NULL;
    const unsigned char *file;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = map_file(path, &bytes, why);
    if (file) {
        text = json_text(file, bytes, path, why);
        munmap((void *)(size_t)file, bytes);
    }
    return text;
}
static inline void checkpoint_close(checkpoint *c)
{
    free(c->json); free(c->quant_json); free(c->order);
    free(c->gathered[0]); free(c->gathered[1]);
    close_tensors(&c->files);
    memset(c, 0, sizeof *c);
}
/* The name that was looked for, and two that are there: those that look most like experts of layer n. */
static inline int checkpoint_no_names(checkpoint *c, int n, const char *looked_for)
{
    static const char *const like[] = { "experts", "moe", "mlp", "feed_forward", "ffn", "" };
    const char *two[2] = { NULL, NULL };
    char layer[32];
    size_t i, pass;
    int k = 0;
    snprintf(layer, sizeof layer, "layers.%d.", n);
    for (pass = 0; pass < 2 * sizeof like / sizeof *like && k < 2; pass++)
        for (i = 0; i < c->files.count && k < 2; i++) {
            const char *name = c->files.at[i].name;
            if (strstr(name, like[pass / 2]) && (pass % 2 || strstr(name, layer)) && name != two[0]) two[k++] = name;
        }
    return say(c->why, "%s is not in the folder, which has %s%s%s%s%s (models.toml, names.experts: what is known)",
               looked_for, k ? two[0] : "no tensors", k ? ", " : "", k > 1 ? two[1] : k ? "no others" : "",
               *c->unread ? "; not read here: " : "", c->unread);
}
static inline int checkpoint_has_experts(const checkpoint *c, int n)
{
    char layer[32];
    size_t i;
    snprintf(layer, sizeof layer, "layers.%d.", n);
    for (i = 0; i < c->files.count; i++)
        if (strstr(c->files.at[i].name, layer) && strstr(c->files.at[i].name, "experts") &&
            !strstr(c->files.at[i].name, "shared_experts")) return 1;
    return 0;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* Is a number of each matrix (part) the same of gate and of up, in all experts? */
static inline int checkpoint_one_number(const checkpoint *c, const checkpoint_layer *l, const char *part)
{
    char name[NAME];
    int e;
    if (!l->names->matrix[MOEK_MATRIX_GATE]) return 1;
    for (e = 0; e < l->experts; e++) {
        const tensor *gate = checkpoint_part(c, l, MOEK_MATRIX_GATE, e, part, name);
        const tensor *up = checkpoint_part(c, l, MOEK_MATRIX_UP, e, part, name);
        if (gate && up && gate->count && up->count && tensor_number(gate, 0) != tensor_number(up, 0)) return 0;
    }
    return 1;
}
/* Are there biases by another row of names than the weights'? */
static inline int checkpoint_stray_bias(const checkpoint *c, const checkpoint_layer *l, char name[NAME])
{
    checkpoint_layer other = *l;
    for (other.names = checkpoint_name_rows; other.names->models; other.names++)
        if (checkpoint_part(c, &other, MOEK_MATRIX_DOWN, 0, ".bias", name)) return 1;
    return 0;
}
/* Matrices in w_up: gate and up, or up alone. */
static inline int checkpoint_parts(const checkpoint_layer *l)
{
    return l->names->matrix[MOEK_MATRIX_GATE] || l->names->matrix[MOEK_MATRIX_GATE_UP] ? 2 : 1;
}
static inline int checkpoint_act(checkpoint *c, const checkpoint_layer *l, moek_config *m)
{
    static const struct { const char *name; int gated, plain; } acts[] = {
        { "silu", MOEK_SILU, MOEK_SILU_NO_MUL }, { "swish", MOEK_SILU, MOEK_SILU_NO_MUL },
        { "gelu", MOEK_GELU, MOEK_GELU_NO_MUL }, { "gelu_pytorch_tanh", MOEK_GELU_TANH, MOEK_GELU_TANH_NO_MUL },
        { "gelu_new", MOEK_GELU_TANH, MOEK_GELU_TANH_NO_MUL }, { "relu", 0, MOEK_RELU_NO_MUL },
        { "relu2", 0, MOEK_RELU2_NO_MUL }
    };
    static const char *const keys[] = { "mlp_hidden_act", "hidden_activation", "hidden_act", NULL };
    const char *t = c->text, *limit = json_at(t, "swiglu_limit"), *name = json_at(t, checkpoint_first_key(t, keys));
    double clamp = 0;
    size_t i;
    if (limit && !json_real(t, "swiglu_limit", 0, 0, 1e30, &clamp, c->why)) return 0;
    m->limit = (float)clamp;
    m->act = 0;                                        /* (a name that is not known here: the caller sets it) */
    for (i = 0; i < sizeof acts / sizeof *acts; i++)
        if (json_is(name ? name : "\"silu\"", acts[i].name))
            m->act = checkpoint_parts(l) == 2 ? acts[i].gated : acts[i].plain;
    if (strstr(l->names->models, "gpt_oss")) m->act = MOEK_SWIGLUOAI;
    return 1;
}
/* l->config, once names and format are known. */
static inline int checkpoint_config(checkpoint *c, checkpoint_layer *l)
{
    const char *type = json_at(c->text, "torch_dtype") ? json_at(c->text, "torch_dtype") : json_at(c->text, "dtype");
    const moek_format *f = moek_format_of(l->format->quant);
    const int which = l->names->matrix[MOEK_MATRIX_GATE_UP] ? MOEK_MATRIX_GATE_UP : MOEK_MATRIX_UP;
    moek_config *m = &l->config;
    char name[NAME];
    m->quant = l->format->quant;
    m->block = f->blocks ? l->format->block : 0;       /* (int4_a8 says itself that it has 128) */
    m->dtype = json_is(type, "float16") ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    if (f->w_bits == 16) m->dtype = f->w == MOEK_ELEMENT_FP16 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    m->up_layout = l->names->interleaved ? MOEK_UP_INTERLEAVED : MOEK_UP_GATE_UP;
    if (f->w_scale.rows > 1 && which == MOEK_MATRIX_UP) m->up_scales = MOEK_UP_SCALES_SEPARATE;   /* quantized apart */
    if (l->format->source == MOEK_FROM_FP8_TENSOR && !checkpoint_one_number(c, l, l->format->scale))
        m->quant = f->x_bits < 16 ? MOEK_FP8C : MOEK_FP8C_A16;
    if (l->names->cut && l->format->global && !checkpoint_one_number(c, l, l->format->global))
        return say(c->why, "layer %d: rows of gate and up alternate, were cut in two halves, and these have a second "
                   "scale each: no format has that", l->number);
    l->bias = checkpoint_part(c, l, which, 0, ".bias", name) != NULL;
    l->bias |= checkpoint_part(c, l, MOEK_MATRIX_DOWN, 0, ".bias", name) != NULL;
    if (!l->bias && checkpoint_stray_bias(c, l, name))
        return say(c->why, "%s: biases of all experts in one tensor, weights of each in its own: what wrote the file "
                   "did not know this model, and may have taken [in][out] for [out][in]", name);
    l->static_x = l->format->static_x && moek_format_of(m->quant)->static_x &&
                  checkpoint_part(c, l, MOEK_MATRIX_DOWN, 0, l->format->static_x, name) != NULL;
    if (checkpoint_part(c, l, which, 0, ".pre_quant_scale", name))
        return say(c->why, "%s: activations are multiplied by a vector before the experts; a layer of moek has no "
                   "place for that", name);
    if (moek_format_of(m->quant)->blocks && m->block && m->block != 32 && m->block != 64 && m->block != 128)
        return say(c->why, "layer %d: a scale for %d columns; %s has them for 32, 64, 128 or a row", l->number,
                   m->block, moek_format_of(m->quant)->name);
    return checkpoint_act(c, l, m);
}
/* Layer n: which names and format its experts have.  1, and l->experts 0: it has no experts.  0: c->why. */
static inline int checkpoint_find(checkpoint *c, int n, checkpoint_layer *l)
{
    char looked_for[NAME], nearly[WHY], name[NAME];
    const char *const *prefix;
    const checkpoint_names *row;
    int i;
    *looked_for = *nearly = 0;
    for (row = checkpoint_name_rows; row->models; row++)
        for (prefix = checkpoint_prefixes; *prefix && checkpoint_may_be_named(c, row); prefix++)
            for (i = 0; i < c->formats; i++) {
                memset(l, 0, sizeof *l);
                l->number = n; l->experts = l->config.experts = c->experts;
                l->config.hidden = c->hidden; l->config.inter = c->inter; l->config.topk = c->topk;
                l->prefix = *prefix; l->names = row; l->format = &c->format[i];
                if (!checkpoint_part(c, l, MOEK_MATRIX_DOWN, 0, l->format->w, name)) {
                    if (!*looked_for) memcpy(looked_for, name, sizeof name);
                } else if (checkpoint_fits_layer(c, l)) return checkpoint_config(c, l);
                else if (!*nearly) memcpy(nearly, c->why, sizeof nearly);
            }
    if (*nearly) return say(c->why, "%s%s%s", nearly, *c->unread ? "; not read here: " : "", c->unread);
    if (checkpoint_has_experts(c, n)) return checkpoint_no_names(c, n, looked_for);
    l->experts = l->config.experts = 0;
    memcpy(l->looked_for, looked_for, sizeof l->looked_for);
    return 1;
}

/* 1, or 0: a sentence in c->why.  checkpoint_close, in either case. */
static inline int checkpoint_open(checkpoint *c, const char *folder)
{
    static const char *const beside[] = { "hf_quant_config.json", "quantize_config.json", "quant_config.json" };
    checkpoint_layer l;
    const char *tool;
    size_t i;
    int n;
    memset(c, 0, sizeof *c);
    c->json = checkpoint_json(folder, "config.json", c->why);
    if (!c->json) return 0;
    c->text = json_at(c->json, "text_config") ? json_at(c->json, "text_config") : c->json;
    if (!checkpoint_sizes(c)) return 0;
    c->quantized = json_at(c->json, "quantization_config");
    if (!c->quantized) c->quantized = json_at(c->text, "quantization_config");
    if (!c->quantized) c->quantized = json_at(c->json, "compression_config");
    for (i = 0; i < 3 && !c->quantized; i++) {         /* ModelOpt; GPTQ and AWQ of before transformers knew them */
        free(c->quant_json);
        c->quant_json = checkpoint_json(folder, beside[i], c->unread);
        c->quantized = c->quant_json && !i ? json_at(c->quant_json, "quantization") : c->quant_json;
    }
    *c->unread = 0;
    c->method = json_at(c->quantized, "quant_method");
    if (!c->method && c->quant_json) c->method = i == 2 ? "\"gptq\"" : i == 3 ? "\"awq\"" : NULL;
    tool = json_at(json_at(c->quantized, "meta"), "quantizer");
    json_shown(tool && *tool == '[' ? json_first(tool) : tool, c->tool);
    c->tool[strcspn(c->tool, ":")] = 0;
    checkpoint_quantized(c);
    if (!add_folder(&c->files, folder)) return say(c->why, "%s", c->files.why);
    c->order = (int32_t *)malloc(sizeof *c->order * (size_t)c->inter);
    if (!c->order) return say(c->why, "%d orders: out of memory", c->inter);
    for (n = 0; n < c->depth; n++) {                   /* is there a layer with experts, and do we know it? */
        if (!checkpoint_find(c, n, &l)) return 0;
        if (l.experts) return 1;
    }
    return checkpoint_no_names(c, 0, l.looked_for);
}

/* Bytes that all arrays of the layer have together; memory, aligned to 256 bytes: *w points to them there.  Biases and
 * zero points are among them where the checkpoint has some. */
static inline size_t checkpoint_carve(const checkpoint_layer *l, void *memory, moek_weights *w)
{
    const moek_config *m = &l->config;
    const moek_format *f = moek_format_of(m->quant);
    const moek_scale_shape shape = moek_weight_scale(f, m->block);
    const size_t experts = (size_t)(m->local_experts ? m->local_experts : l->experts);
    const size_t inter = (size_t)m->inter, hidden = (size_t)m->hidden;
    const size_t parts = (size_t)checkpoint_parts(l);
    const size_t up_scale = m->up_scales ? parts * moek_scale_bytes(&shape, inter, hidden)
                                         : moek_scale_bytes(&shape, parts * inter, hidden);
    const int zero = f->zero && l->format->zeros;
    char *base = (char *)memory;
    size_t at = 0;
    memset(w, 0, sizeof *w);
    w->w_up = memory_piece(base, &at, experts * parts * inter * moek_element_bytes(f->w, hidden));
    w->w_down = memory_piece(base, &at, experts * hidden * moek_element_bytes(f->w, inter));
    w->w_up_scale = memory_piece(base, &at, experts * up_scale);
    w->w_down_scale = memory_piece(base, &at, experts * moek_scale_bytes(&shape, hidden, inter));
    if (f->global_scale) {
        w->w_up_global_scale = (float *)memory_piece(base, &at, experts * parts * sizeof(float));
        w->w_down_global_scale = (float *)memory_piece(base, &at, experts * sizeof(float));
    }
    if (zero) {
        const size_t up = moek_element_bytes(f->w, moek_scale_count(&shape, 1, hidden));
        const size_t down = moek_element_bytes(f->w, moek_scale_count(&shape, 1, inter));
        w->w_up_zero = memory_piece(base, &at, experts * parts * inter * up);
        w->w_down_zero = memory_piece(base, &at, experts * hidden * down);
    }
    if (l->bias) {
        w->w_up_bias = memory_piece(base, &at, experts * parts * inter * sizeof(uint16_t));
        w->w_down_bias = memory_piece(base, &at, experts * hidden * sizeof(uint16_t));
    }
    if (l->static_x) {
        w->x_scale = (float *)memory_piece(base, &at, sizeof(float));
        w->h_scale = (float *)memory_piece(base, &at, sizeof(float));
    }
    return at;
}

/* ---- a matrix ---------------------------------------------------------------------------------------------------- */

/* Rows first, first + step, ... of [all rows][columns], or, turned, of [columns][all rows]: a copy in memory of c, and
 * what *says, as if the file had it so.  NULL: no such shape. */
static inline void *checkpoint_gather(checkpoint *c, int which, const void *at, size_t all, size_t rows, size_t first,
                                      size_t step, int turned, moek_import_tensor *says)
{
    const size_t columns = (size_t)says->shape[turned ? 0 : 1];
    const size_t bytes = columns ? (size_t)says->bytes / all / columns : 0;
    unsigned char *to;
    size_t i, k;
    if (says->shape[turned ? 1 : 0] != (int64_t)all || says->shape[2] || !bytes) return NULL;
    to = (unsigned char *)realloc(c->gathered[which], rows * columns * bytes);
    if (!to) return NULL;
    c->gathered[which] = to;
    for (i = 0; i < rows; i++)
        for (k = 0; k < columns; k++) {
            const size_t row = first + i * step, from = turned ? k * all + row : row * columns + k;
            memcpy(to + (i * columns + k) * bytes, (const char *)at + from * bytes, bytes);
        }
    says->shape[0] = (int64_t)rows; says->shape[1] = (int64_t)columns;
    says->bytes = rows * columns * bytes;
    return to;
}
/* Matrices that lie [in][out], and gate or up of one tensor with both, which have a global scale each: copies. */
static inline int checkpoint_rearranged(checkpoint *c, const checkpoint_layer *l, int which, int e, moek_import_args *a)
{
    const int split = !l->names->matrix[which], up = which == MOEK_MATRIX_UP, apart = l->names->interleaved;
    const int turned = l->names->turned && l->format->w[0] == '.';     /* ("_blocks" of gpt-oss are not turned) */
    const size_t rows = (size_t)a->rows, all = split ? 2 * rows : rows, step = split && apart ? 2 : 1;
    const size_t first = !split || !up ? 0 : apart ? 1 : rows;
    char name[NAME];
    if (!split && !turned) return 1;
    a->their_w = checkpoint_gather(c, 0, a->their_w, all, rows, first, step, turned, &a->w_tensor);
    if (a->their_w && a->scale_tensor.bytes <= sizeof(float)) return 1;
    a->their_scale = checkpoint_gather(c, 1, a->their_scale, all, rows, first, step, turned, &a->scale_tensor);
    if (a->their_w && a->their_scale) return 1;
    checkpoint_part(c, l, split ? MOEK_MATRIX_GATE_UP : which, e, l->format->w, name);
    return say(c->why, "%s: stacked weights are [experts][in][out], with groups along `in`; weights or scales of this "
               "file have another shape", name);
}
/* A part of expert e's matrix, and what the file says of it; NULL: there is none. */
static inline void *checkpoint_of(checkpoint *c, const checkpoint_layer *l, int which, int e, const char *part,
                                  moek_import_tensor *says, const tensor **found)
{
    char name[NAME];
    const tensor *t = *found = part ? checkpoint_part(c, l, which, e, part, name) : NULL;
    const int stacked = t && checkpoint_stacked(l) && t->count > 1;
    const int first = stacked && t->dims && t->shape[0] == (size_t)l->experts;
    int i;
    if (!t) return NULL;
    says->bytes = t->bytes / (size_t)(stacked ? l->experts : 1);
    for (i = 0; i + first < t->dims && t->dims - first <= MOEK_IMPORT_SIZES; i++)
        says->shape[i] = (int64_t)t->shape[i + first];
    if (t->dims == first) says->shape[0] = 1;
    return (void *)(size_t)(t->data + (stacked ? (size_t)e * (size_t)says->bytes : 0));        /* (only read) */
}
/* The order of columns of down of expert e, for rows of gate and of up; NULL: as they are.  Gate and up: only that. */
static inline int checkpoint_order(checkpoint *c, const checkpoint_layer *l, int which, int e, const int32_t **order)
{
    const int down = which == MOEK_MATRIX_DOWN;
    moek_import_tensor says;
    const tensor *t;
    char why[WHY / 2];
    int moved = 0;
    const void *at = checkpoint_of(c, l, which, e, l->format->order, &says, &t);
    *order = NULL;
    if (!t || !l->format->block) return 1;
    if (!json_is(t->type, "I32") || t->count != (size_t)checkpoint_columns(l, which) || checkpoint_stacked(l))
        return say(c->why, "%s is no order of %d columns", t->name, checkpoint_columns(l, which));
    if (moek_import_order((const int32_t *)at, (int)t->count, l->format->block, down ? c->order : NULL, &moved, why,
                          sizeof why) != MOEK_OK) return say(c->why, "%s: %s", t->name, why);
    if (moved) *order = c->order;
    c->order_moved |= moved;
    return 1;
}
static inline int checkpoint_dtype(const tensor *t)
{
    if (json_is(t->type, "F32")) return MOEK_DTYPE_F32;
    if (json_is(t->type, "F16")) return MOEK_DTYPE_FP16;
    return json_is(t->type, "BF16") ? (int)MOEK_DTYPE_BF16 : (int)MOEK_DTYPE_E8M0;
}
/* All but the report: where the matrix is, and where it goes.  source 0, plain weights: checkpoint_copy. */
static inline int checkpoint_matrix(checkpoint *c, const checkpoint_layer *l, int first, const moek_weights *w,
                                    int which, int e, moek_import_args *a)
{
    const checkpoint_format *f = l->format;
    const int has = l->names->matrix[which] ? which : MOEK_MATRIX_GATE_UP;
    const int32_t *own, *order;
    const tensor *t;
    moek_config place = l->config;
    char name[NAME];
    int type;
    memset(a, 0, sizeof *a);
    a->source = f->source;
    a->why = c->why; a->why_size = sizeof c->why;
    if (l->names->cut) place.up_layout = MOEK_UP_GATE_UP;              /* halves of rows that are in order already */
    if (moek_import_place(&place, w, which, e - first, a) != MOEK_OK || !checkpoint_fits(c, l, has, e)) return 0;
    type = moek_format_of(a->quant)->w_scale.type;
    a->their_w = checkpoint_of(c, l, has, e, f->w, &a->w_tensor, &t);
    a->their_scale = checkpoint_of(c, l, has, e, f->scale, &a->scale_tensor, &t);
    if (type == MOEK_SCALE_TYPE_T || type == MOEK_SCALE_TYPE_F32) a->scale_dtype = checkpoint_dtype(t);
    a->their_zero = checkpoint_of(c, l, has, e, f->zero, &a->zero_tensor, &t);
    if (f->zeros && !t) {
        checkpoint_part(c, l, has, e, f->zero, name);
        return say(c->why, "%s is not in the folder", name);
    }
    if (t && !t->count) return say(c->why, "%s is empty", t->name);
    a->their_global = (float *)checkpoint_of(c, l, has, e, f->global, &a->global_tensor, &t);
    if (f->global && (!t || !json_is(t->type, "F32")))
        return say(c->why, "layer %d: an expert has no global scale %s in F32", l->number, f->global);
    if (t && !t->count) return say(c->why, "%s is empty", t->name);
    if (f->source && !checkpoint_rearranged(c, l, which, e, a)) return 0;
    if (!f->order) return 1;
    if (!checkpoint_order(c, l, MOEK_MATRIX_DOWN, e, &order)) return 0;
    if (which == MOEK_MATRIX_DOWN) a->column_order = order;
    else if (!checkpoint_order(c, l, which, e, &own)) return 0;
    else a->row_order = order;
    return 1;
}
/* Plain weights, which may be stacked as [in][out]. */
static inline void checkpoint_copy(const checkpoint_layer *l, const moek_import_args *a)
{
    const size_t step = (size_t)a->row_step, rows = (size_t)a->rows, columns = (size_t)a->columns;
    const uint16_t *from = (const uint16_t *)a->their_w;
    uint16_t *to = (uint16_t *)a->w;
    size_t i, k;
    for (i = 0; i < rows; i++)
        if (l->names->turned) for (k = 0; k < columns; k++) to[i * step * columns + k] = from[k * rows + i];
        else memcpy(to + i * step * columns, from + i * columns, 2 * columns);
}
/* Biases of a matrix, as T. */
static inline int checkpoint_bias(checkpoint *c, const checkpoint_layer *l, int first, const moek_weights *w, int which,
                                  int e, const moek_import_args *a)
{
    const int down = which == MOEK_MATRIX_DOWN, fp16 = l->config.dtype == MOEK_DTYPE_FP16;
    const size_t rows = (size_t)a->rows, step = (size_t)(a->row_step ? a->row_step : 1);
    const int parts = checkpoint_parts(l), second = which == MOEK_MATRIX_UP && parts == 2;
    const size_t of_expert = (size_t)(down ? l->config.hidden : parts * l->config.inter);
    const size_t begin = (size_t)(e - first) * of_expert + (!second ? 0 : step == 2 ? 1 : rows);
    uint16_t *to = (uint16_t *)(size_t)(down ? w->w_down_bias : w->w_up_bias);
    char name[NAME];
    const int split = !l->names->matrix[which], apart = l->names->interleaved;
    const tensor *t = checkpoint_part(c, l, split ? MOEK_MATRIX_GATE_UP : which, e, ".bias", name);
    const size_t many = checkpoint_stacked(l) ? (size_t)l->experts : 1, all = split ? 2 * rows : rows;
    size_t i;
    if (!to) return 1;
    if (!t || t->count != many * all || !tensor_has_numbers(t))
        return say(c->why, "%s: there is no bias of %zu rows in it", name, rows);
    for (i = 0; i < rows; i++) {
        const size_t row = a->row_order ? (size_t)a->row_order[i] : i;
        const size_t from = !split ? row : apart ? 2 * row + (size_t)second : row + (second ? rows : 0);
        const float value = tensor_number(t, (many > 1 ? (size_t)e * all : 0) + from);
        to[begin + i * step] = fp16 ? half_of(value) : bf16_of(value);
    }
    return 1;
}
/* The importer's sentence, behind the name of the tensor. */
static inline int checkpoint_named(checkpoint *c, const checkpoint_layer *l, int which, int e)
{
    char name[NAME], why[WHY];
    checkpoint_part(c, l, which, e, l->format->w, name);
    memcpy(why, c->why, sizeof why);
    return say(c->why, "%s: %s", name, why);
}
/* Static scales of x or of h: the largest of all experts. */
static inline void checkpoint_static(const checkpoint *c, const checkpoint_layer *l, int which, int e, const float *to)
{
    char name[NAME];
    const tensor *t = checkpoint_part(c, l, which, e, l->format->static_x, name);
    size_t i;
    for (i = 0; t && i < t->count && tensor_has_numbers(t); i++)       /* (of stacked experts: one each, or one) */
        if (tensor_number(t, i) > *to) *(float *)(size_t)to = tensor_number(t, i);
}
/* Which calls of checkpoint_matrix an expert takes.  Formats with a global scale have no MOEK_MATRIX_GATE_UP. */
static inline int checkpoint_imports(const checkpoint_layer *l, int which)
{
    const int split = l->names->matrix[MOEK_MATRIX_GATE_UP] && l->format->global;
    return split ? which != MOEK_MATRIX_GATE_UP : l->names->matrix[which] != NULL;
}
/* Experts from `first` on (l->config.local_experts of them; 0: all) into the arrays of *w, in host memory. */
static inline int checkpoint_load(checkpoint *c, const checkpoint_layer *l, int first, const moek_weights *w,
                                  moek_import_report *report)
{
    const int experts = l->config.local_experts ? l->config.local_experts : l->experts;
    moek_import_args a;
    int e, which;
    if (first < 0 || experts < 0 || first > l->experts - experts)
        return say(c->why, "experts %d to %d: the layer has %d", first, first + experts - 1, l->experts);
    if (l->static_x) *(float *)(size_t)w->x_scale = *(float *)(size_t)w->h_scale = 0;
    for (e = first; e < first + experts; e++)
        for (which = 0; which < 4; which++) {
            if (!checkpoint_imports(l, which)) continue;
            if (!checkpoint_matrix(c, l, first, w, which, e, &a)) return 0;
            a.report = report;
            if (!l->format->source) checkpoint_copy(l, &a);
            else if (moek_import(0, &a, NULL) != MOEK_OK) return checkpoint_named(c, l, which, e);
            if (l->bias && !checkpoint_bias(c, l, first, w, which, e, &a)) return 0;
        }
    for (e = 0; e < l->experts && l->static_x; e++)
        for (which = 0; which < 4; which++)
            if (l->names->matrix[which])
                checkpoint_static(c, l, which, e, which == MOEK_MATRIX_DOWN ? w->h_scale : w->x_scale);
    if (l->static_x && !(*w->x_scale > 0 && *w->h_scale > 0))
        return say(c->why, "layer %d: there is no %s above 0 of %s", l->number, l->format->static_x,
                   *w->h_scale > 0 ? "gate and up" : "down");
    return 1;
}
#endif
