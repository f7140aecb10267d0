/* gguf.h -- reads .gguf files, and makes moek_config and moek_weights of their layers.  Copy it, with safetensors.h,
 * whose files, sentences and halves it shares.
 *
 *     gguf g;
 *     gguf_layer l;
 *     moek_weights w;
 *     must(gguf_open(&g, "model-00001-of-00003.gguf"), g.why);        all files of the model: mapped, and checked
 *     must(gguf_find(&g, 3, &l), g.why);                              1. layer 3; l.experts 0: a dense one
 *     if (*l.unrouted) ...                                            2. a sentence: set routing and act yourself
 *     l.config.max_tokens = 512;
 *     l.config.weight_layout = MOEK_WEIGHTS_BLOCKS;                   mxfp4 and nvfp4, too, stay in the file; leave
 *                                                                     0 where all is bf16, f16 or f32: plans refuse
 *     moek_plan_init(&plan, &l.config);
 *     bytes = gguf_carve(&l, 0, NULL, &w);                            3. room for what can not stay in the file
 *     gguf_carve(&l, 0, aligned_memory(bytes), &w);
 *     must(gguf_load(&g, &l, 0, &w, &report), g.why);                 4. fills that room; the rest is in the map
 *     moek_import_verdict(&report, text, sizeof text);                5. may these weights be run?
 *     moek_plan_bind(&plan, &w);
 *
 * Weights whose bytes are moek's (bf16, f16, and blocks, where moek has their format) are bound where the file is
 * mapped: nothing is copied.  In the room go f32, which is rounded to T, biases in T, and mxfp4 and nvfp4, which become
 * codes and scales: arrays, which can be tiled.  Where l.config.weight_layout is MOEK_WEIGHTS_BLOCKS, these stay in the
 * file, and the room has global scales of nvfp4 alone; a report reads them all the same.  For a GPU: copy each array of
 * *w, whose sizes are those of l.matrix[..]->bytes, or of the room.
 * Expert parallelism: l.config.local_experts, and `first`, the first expert of this rank.
 *     l.config   hidden, inter, experts, topk, quant, down_quant (0: down is as gate and up), dtype, up_layout of any
 *                architecture whose tensors have these names; routing, groups, scale, act of those in gguf_routes:
 *                files do not say how a model routes, the code of llama.cpp does.  Others: *l.unrouted, and act is 0,
 *                which moek refuses
 *     l.router   the product x . router is the engine's, and l.router_bias is added to it.  (exp_probs_b is another
 *                bias, that of the choice alone: w.router_bias.)  l.shared: shared experts, the engine's, too
 *
 * Files may be damaged: each count, length and offset is compared with the bytes that are left before it is used.
 * Refused, with a sentence: other versions, big-endian files, names that are there twice, types that are not known,
 * tensors that overlap or lie outside.  A file that is cut short while the program runs is a bus error, as with all
 * mapped files. */
#ifndef GGUF_H
#define GGUF_H
#include "moek.h"
#include "moek_import.h"
#include "safetensors.h"

/* X(number, name, columns and bytes of a block, how moek reads experts of it) */
#define GGUF_EACH_TYPE(X) \
    X(0,  "f32",     1,   4,   ROUNDED) X(1,  "f16",     1,   2,   PLAIN)   X(30, "bf16",    1,   2,   PLAIN) \
    X(2,  "q4_0",    32,  18,  BLOCKS)  X(3,  "q4_1",    32,  20,  BLOCKS)  X(6,  "q5_0",    32,  22,  BLOCKS) \
    X(7,  "q5_1",    32,  24,  BLOCKS)  X(8,  "q8_0",    32,  34,  BLOCKS)  X(20, "iq4_nl",  32,  18,  BLOCKS) \
    X(10, "q2_K",    256, 84,  BLOCKS)  X(11, "q3_K",    256, 110, BLOCKS)  X(12, "q4_K",    256, 144, BLOCKS) \
    X(13, "q5_K",    256, 176, BLOCKS)  X(14, "q6_K",    256, 210, BLOCKS)  X(23, "iq4_xs",  256, 136, BLOCKS) \
    X(39, "mxfp4",   32,  17,  MXFP4)   X(40, "nvfp4",   64,  36,  NVFP4)   X(16, "iq2_xxs", 256, 66,  NOT) \
    X(17, "iq2_xs",  256, 74,  NOT)     X(22, "iq2_s",   256, 82,  NOT)     X(18, "iq3_xxs", 256, 98,  NOT) \
    X(21, "iq3_s",   256, 110, NOT)     X(19, "iq1_s",   256, 50,  NOT)     X(29, "iq1_m",   256, 56,  NOT) \
    X(34, "tq1_0",   256, 54,  NOT)     X(35, "tq2_0",   256, 66,  NOT)     X(41, "q1_0",    128, 18,  NOT) \
    X(24, "i8",      1,   1,   NOT)     X(25, "i16",     1,   2,   NOT)     X(26, "i32",     1,   4,   NOT) \
    X(27, "i64",     1,   8,   NOT)     X(28, "f64",     1,   8,   NOT)
enum { GGUF_NOT, GGUF_PLAIN, GGUF_ROUNDED, GGUF_BLOCKS, GGUF_MXFP4, GGUF_NVFP4 };
typedef struct gguf_type { int number; const char *name; int columns, bytes, way; } gguf_type;
static const gguf_type gguf_types[] = {
#define GGUF_TYPE(number, name, columns, bytes, way) { number, name, columns, bytes, GGUF_##way },
    GGUF_EACH_TYPE(GGUF_TYPE)
#undef GGUF_TYPE
};
enum { GGUF_TYPES = sizeof gguf_types / sizeof *gguf_types, GGUF_DIMS = 4 };
enum { GGUF_BF16 = 30 };                               /* the type's number */

enum {                                                 /* types of values */
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64,
    GGUF_I64, GGUF_F64, GGUF_VALUES
};
typedef struct gguf_text { const char *at; size_t length; } gguf_text;         /* where the file has it: no end */
typedef struct gguf_pair {
    gguf_text key;
    int type, item;                                    /* GGUF_U8, ..; item: of an array, else type */
    uint64_t count;                                    /* of an array, else 1 */
    const unsigned char *at;                           /* the value, or the first of the array */
} gguf_pair;
typedef struct gguf_tensor {
    gguf_text name;
    const gguf_type *type;
    uint64_t ne[GGUF_DIMS];                            /* ne[0] is the fastest: columns; 1 where there is no more */
    const unsigned char *data;
    size_t bytes;
} gguf_tensor;
typedef struct gguf {
    gguf_pair *pair;                                   /* of the first file, by key */
    gguf_tensor *tensor;                               /* of all files, by name */
    mapped *file;
    size_t pairs, tensors, files;
    gguf_text arch;                                    /* general.architecture */
    int depth;                                         /* layers that are run; nextn layers lie behind them */
    char why[WHY];                                     /* where a function returned 0 */
} gguf;

typedef struct gguf_layer {
    moek_config config;
    int number, experts;
    const gguf_tensor *matrix[4], *bias[4], *scale[4]; /* by MOEK_MATRIX_*; NULL: none; biases and scales are f32 */
    const gguf_tensor *router, *router_bias, *exp_probs_b;
    const gguf_tensor *shared[3], *shared_gate;        /* gate, up, down of shared experts; gate of their sum */
    char unrouted[WHY];                                /* a sentence, if routing, act, .. are not known here; else "" */
} gguf_layer;

/* ---- the container ----------------------------------------------------------------------------------------------- */

typedef struct gguf_cursor { const unsigned char *at, *end; } gguf_cursor;

static inline size_t gguf_left(const gguf_cursor *c) { return (size_t)(c->end - c->at); }
static inline int gguf_take(gguf_cursor *c, void *to, size_t bytes)    /* 0: the file has ended */
{
    if (gguf_left(c) < bytes) return 0;
    memcpy(to, c->at, bytes);
    c->at += bytes;
    return 1;
}
static inline int gguf_take_text(gguf_cursor *c, gguf_text *to)
{
    uint64_t length;
    if (!gguf_take(c, &length, 8) || length > gguf_left(c)) return 0;
    to->at = (const char *)c->at;
    to->length = (size_t)length;
    c->at += to->length;
    return 1;
}
static inline int gguf_compare(gguf_text a, gguf_text b)
{
    const int side = memcmp(a.at, b.at, a.length < b.length ? a.length : b.length);
    return side ? side : a.length < b.length ? -1 : a.length > b.length;
}
static inline gguf_text gguf_text_of(const char *text)
{
    gguf_text t;
    t.at = text; t.length = strlen(text);
    return t;
}
static inline int gguf_is(gguf_text t, const char *text) { return !gguf_compare(t, gguf_text_of(text)); }
/* For a sentence: at most 63 characters, and none that a terminal obeys. */
static inline const char *gguf_shown(gguf_text t, char to[64])
{
    size_t i;
    for (i = 0; i < t.length && i < 63; i++) to[i] = t.at[i] >= ' ' && t.at[i] <= '~' ? t.at[i] : '?';
    to[i] = 0;
    return to;
}

static inline size_t gguf_value_bytes(int type)        /* 0: not all have the same */
{
    static const unsigned char bytes[GGUF_VALUES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return bytes[type];
}
/* Past the values of a pair, whose type and count are known; 0: the file has ended, or a bool is neither 0 nor 1. */
static inline int gguf_skip_values(gguf_cursor *c, const gguf_pair *p)
{
    const size_t bytes = gguf_value_bytes(p->item);
    gguf_text text;
    uint64_t i;
    if (p->count > gguf_left(c) / (bytes ? bytes : 8)) return 0;       /* a string has 8 bytes, or more */
    if (!bytes) {
        for (i = 0; i < p->count; i++) if (!gguf_take_text(c, &text)) return 0;
        return 1;
    }
    for (i = 0; i < p->count && p->item == GGUF_BOOL; i++) if (c->at[i] > 1) return 0;
    c->at += (size_t)p->count * bytes;
    return 1;
}
static inline int gguf_read_pair(gguf *g, gguf_cursor *c, gguf_pair *p, const char *path)
{
    uint32_t type, item;
    char key[64];
    if (!gguf_take_text(c, &p->key) || !gguf_take(c, &type, 4)) return say(g->why, "%s: the file ends in a key", path);
    gguf_shown(p->key, key);
    item = type;
    p->count = 1;
    if (type == GGUF_ARRAY && (!gguf_take(c, &item, 4) || !gguf_take(c, &p->count, 8)))
        return say(g->why, "%s: the file ends in the array %s", path, key);
    if (type >= GGUF_VALUES || item >= GGUF_VALUES)
        return say(g->why, "%s: key %s has values of type %u; there are 0 to %d", path, key,
                   (unsigned)(type < GGUF_VALUES ? item : type), GGUF_VALUES - 1);
    if (item == GGUF_ARRAY) return say(g->why, "%s: key %s is an array of arrays, which is not read here", path, key);
    p->type = (int)type; p->item = (int)item;
    p->at = c->at;
    return gguf_skip_values(c, p) || say(g->why, "%s: the value of key %s is longer than the file, or no bool", path,
                                         key);
}
static inline int gguf_by_key(const void *a, const void *b)
{
    return gguf_compare(((const gguf_pair *)a)->key, ((const gguf_pair *)b)->key);
}
static inline const gguf_pair *gguf_pair_in(const gguf_pair *list, size_t n, const char *key)
{
    gguf_pair wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.key = gguf_text_of(key);
    return n ? (const gguf_pair *)bsearch(&wanted, list, n, sizeof *list, gguf_by_key) : NULL;
}
static inline gguf_pair *gguf_read_pairs(gguf *g, gguf_cursor *c, uint64_t count, const char *path)
{
    gguf_pair *list;
    char key[64];
    uint64_t i;
    if (count > gguf_left(c) / 13) {
        say(g->why, "%s: %llu keys do not fit into the file", path, (unsigned long long)count);
        return NULL;
    }
    list = (gguf_pair *)calloc((size_t)count + 1, sizeof *list);
    if (!list) {
        say(g->why, "%s: out of memory", path);
        return NULL;
    }
    for (i = 0; i < count; i++)
        if (!gguf_read_pair(g, c, &list[i], path)) break;
    if (i == count) {
        qsort(list, (size_t)count, sizeof *list, gguf_by_key);
        for (i = 1; i < count; i++)
            if (!gguf_by_key(&list[i - 1], &list[i])) {
                say(g->why, "%s: key %s is there twice", path, gguf_shown(list[i].key, key));
                break;
            }
        if (i >= count) return list;
    }
    free(list);
    return NULL;
}

/* An integer, or bool, of a pair; of an array that of number i.  0: it is none, or it is beyond i64. */
static inline int gguf_integer(const gguf_pair *p, uint64_t i, int64_t *to)
{
    const size_t bytes = gguf_value_bytes(p->item);
    int64_t value = 0;
    if (p->type != GGUF_ARRAY) i = 0;
    if (i >= p->count || !bytes || p->item == GGUF_F32 || p->item == GGUF_F64) return 0;
    memcpy(&value, p->at + (size_t)i * bytes, bytes);  /* (little-endian, as the file) */
    if (p->item == GGUF_I8) value = (int8_t)value;
    if (p->item == GGUF_I16) value = (int16_t)value;
    if (p->item == GGUF_I32) value = (int32_t)value;
    *to = value;
    return p->item != GGUF_U64 || value >= 0;
}
/* The pair of a key; ".expert_count": behind the architecture.  NULL: there is none. */
static inline const gguf_pair *gguf_pair_of(const gguf *g, const char *key)
{
    char path[NAME];
    snprintf(path, NAME, "%.*s%s", *key == '.' ? (int)g->arch.length : 0, g->arch.at ? g->arch.at : "", key);
    return gguf_pair_in(g->pair, g->pairs, path);
}
/* A whole number from least to most; of an array, that of layer i.  No such key: `otherwise`.  0: a sentence. */
static inline int gguf_whole(gguf *g, const char *key, int i, int otherwise, int least, int most, int *to)
{
    const gguf_pair *p = gguf_pair_of(g, key);
    int64_t value = otherwise;
    char shown[64];
    *to = least;
    if (p && !gguf_integer(p, (uint64_t)(i < 0 ? 0 : i), &value))
        return say(g->why, "key %s is no whole number, or not one for each layer", gguf_shown(p->key, shown));
    if (value < least || value > most)
        return say(g->why, p ? "key %s%s is %lld; it must be from %d to %d"
                             : "key %s%s is missing (%lld is taken); it must be from %d to %d",
                   *key == '.' ? gguf_shown(g->arch, shown) : "", key, (long long)value, least, most);
    *to = (int)value;
    return 1;
}
static inline int gguf_real(gguf *g, const char *key, double otherwise, double least, double most, double *to)
{
    const gguf_pair *p = gguf_pair_of(g, key);
    int64_t whole = 0;
    char shown[64];
    float f;
    *to = otherwise;
    if (p && p->type == GGUF_F32) memcpy(&f, p->at, 4), *to = f;
    else if (p && p->type == GGUF_F64) memcpy(to, p->at, 8);
    else if (p) *to = p->type != GGUF_ARRAY && gguf_integer(p, 0, &whole) ? (double)whole : (double)NAN;
    if (*to >= least && *to <= most) return 1;
    return say(g->why, p ? "key %s%s is %g; it must be a number from %.10g to %.10g"
                         : "key %s%s is missing (%g is taken); it must be a number from %.10g to %.10g",
               *key == '.' ? gguf_shown(g->arch, shown) : "", key, *to, least, most);
}
/* A string of a key; at NULL: there is none. */
static inline gguf_text gguf_string(const gguf *g, const char *key)
{
    const gguf_pair *p = gguf_pair_of(g, key);
    gguf_cursor c;
    gguf_text t;
    t.at = NULL; t.length = 0;
    if (!p || p->type != GGUF_STRING) return t;
    c.at = p->at; c.end = p->at + 8;                   /* (its length was compared with the file before) */
    memcpy(&t.length, c.at, sizeof t.length < 8 ? sizeof t.length : 8);
    t.at = (const char *)c.end;
    return t;
}

static inline const gguf_type *gguf_type_of(uint32_t number)           /* NULL: there is none */
{
    int i;
    for (i = 0; i < GGUF_TYPES; i++) if ((uint32_t)gguf_types[i].number == number) return &gguf_types[i];
    return NULL;
}
/* A tensor of the list; *offset: in the data, not compared with the file yet. */
static inline int gguf_read_tensor(gguf *g, gguf_cursor *c, gguf_tensor *t, uint64_t *offset, const char *path)
{
    uint32_t dims, type, i;
    uint64_t elements = 1;
    char name[64];
    if (!gguf_take_text(c, &t->name) || !gguf_take(c, &dims, 4))
        return say(g->why, "%s: the file ends in its list of tensors", path);
    gguf_shown(t->name, name);
    if (!dims || dims > GGUF_DIMS)
        return say(g->why, "%s: tensor %s has %u dimensions; 1 to %d are read here", path, name, (unsigned)dims,
                   GGUF_DIMS);
    for (i = 0; i < GGUF_DIMS; i++) {
        t->ne[i] = 1;
        if (i < dims && !gguf_take(c, &t->ne[i], 8)) return say(g->why, "%s: the file ends in tensor %s", path, name);
        if (!t->ne[i] || t->ne[i] > (uint64_t)INT64_MAX / elements)
            return say(g->why, "%s: tensor %s has a size of 0, or more elements than any file", path, name);
        elements *= t->ne[i];
    }
    if (!gguf_take(c, &type, 4) || !gguf_take(c, offset, 8))
        return say(g->why, "%s: the file ends in tensor %s", path, name);
    t->type = gguf_type_of(type);
    if (!t->type && ((type >= 31 && type <= 33) || (type >= 36 && type <= 38)))
        return say(g->why, "%s: tensor %s is of GGUF type %u, a repacked order of another program: take the file "
                   "that it was made from", path, name, (unsigned)type);
    if (!t->type)
        return say(g->why, "%s: tensor %s is of GGUF type %u, which is not known here", path, name, (unsigned)type);
    if (t->ne[0] % (uint64_t)t->type->columns)
        return say(g->why, "%s: tensor %s has rows of %llu; blocks of %s have %d", path, name,
                   (unsigned long long)t->ne[0], t->type->name, t->type->columns);
    elements /= (uint64_t)t->type->columns;
    if (elements > (uint64_t)((size_t)-1 / (size_t)t->type->bytes))
        return say(g->why, "%s: tensor %s is larger than any file", path, name);
    t->bytes = (size_t)elements * (size_t)t->type->bytes;
    return 1;
}
static inline int gguf_by_name(const void *a, const void *b)
{
    return gguf_compare(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}
static inline int gguf_by_place(const void *a, const void *b)
{
    const unsigned char *const x = ((const gguf_tensor *)a)->data, *const y = ((const gguf_tensor *)b)->data;
    return x < y ? -1 : x > y;
}
/* Tensors of a file, behind those of the files before it: their bytes are there, and nobody else's. */
static inline int gguf_read_tensors(gguf *g, gguf_cursor *c, uint64_t count, uint64_t alignment,
                                    const unsigned char *file, const char *path)
{
    gguf_tensor *t;
    uint64_t i, start, *offset;
    size_t left, size = (size_t)(c->end - file);
    char name[64];
    int good = 1;
    if (count > gguf_left(c) / 32) return say(g->why, "%s: %llu tensors do not fit into the file", path,
                                              (unsigned long long)count);
    t = (gguf_tensor *)realloc(g->tensor, (g->tensors + (size_t)count + 1) * sizeof *t);
    if (!t) return say(g->why, "%s: out of memory", path);
    g->tensor = t;
    t += g->tensors;
    offset = (uint64_t *)calloc((size_t)count + 1, sizeof *offset);
    if (!offset) return say(g->why, "%s: out of memory", path);
    for (i = 0; good && i < count; i++) good = gguf_read_tensor(g, c, &t[i], &offset[i], path);
    start = ((uint64_t)(c->at - file) + alignment - 1) / alignment * alignment;
    left = start < size ? size - (size_t)start : 0;
    for (i = 0; good && i < count; i++) {
        gguf_shown(t[i].name, name);
        if (offset[i] % alignment)
            good = say(g->why, "%s: tensor %s begins at %llu, which is no multiple of general.alignment, %llu", path,
                       name, (unsigned long long)offset[i], (unsigned long long)alignment);
        else if (offset[i] > left || t[i].bytes > left - (size_t)offset[i])
            good = say(g->why, "%s: tensor %s lies outside of the file; was it cut?", path, name);
        else t[i].data = file + start + offset[i];
    }
    free(offset);
    if (!good) return 0;
    qsort(t, (size_t)count, sizeof *t, gguf_by_place);
    for (i = 1; i < count; i++)
        if ((size_t)(t[i].data - t[i - 1].data) < t[i - 1].bytes)
            return say(g->why, "%s: tensor %s begins where another one has its bytes", path,
                       gguf_shown(t[i].name, name));
    g->tensors += (size_t)count;
    return 1;
}
/* One of split.no, split.count, split.tensors.count, which have several types. */
static inline int64_t gguf_split(const gguf_pair *list, size_t n, const char *key, int64_t otherwise)
{
    const gguf_pair *p = gguf_pair_in(list, n, key);
    return p && p->type != GGUF_ARRAY && gguf_integer(p, 0, &otherwise) ? otherwise : p ? -1 : otherwise;
}
/* A file in memory: number `no` of `of`.  The memory stays the caller's, and has to stay. */
static inline int gguf_read(gguf *g, const unsigned char *file, size_t size, int no, int of, const char *path)
{
    gguf_cursor c;
    const gguf_pair *p;
    gguf_pair *list;
    uint64_t tensors = 0, count = 0;
    int64_t alignment = 32, files, number;
    uint32_t version = 0;
    int good;
    c.at = file; c.end = file + size;
    if (size < 24 || memcmp(file, "GGUF", 4)) return say(g->why, "%s: no GGUF file", path);
    c.at += 4;
    gguf_take(&c, &version, 4); gguf_take(&c, &tensors, 8); gguf_take(&c, &count, 8);
    if (version && !(version & 0xffff))
        return say(g->why, "%s: a big-endian file: convert the model for this machine", path);
    if (version != 2 && version != 3)
        return say(g->why, version == 1 ? "%s: GGUF version %u (2023): convert the model again"
                                        : "%s: GGUF version %u; 2 and 3 are read here", path, (unsigned)version);
    list = gguf_read_pairs(g, &c, count, path);
    if (!list) return 0;
    p = gguf_pair_in(list, (size_t)count, "general.alignment");
    if (p && (p->type != GGUF_U32 || !gguf_integer(p, 0, &alignment))) alignment = 0;
    files = gguf_split(list, (size_t)count, "split.count", of);
    number = gguf_split(list, (size_t)count, "split.no", no);
    if (alignment < 1 || (alignment & (alignment - 1)))
        good = say(g->why, "%s: general.alignment is no power of two in u32", path);
    else if (files != of && (of > 1 || files))         /* (0: they were merged) */
        good = say(g->why, "%s: split.count is %lld, by the name it is %d: keep names as NAME-00001-of-0000N.gguf",
                   path, (long long)files, of);
    else if (number != no)
        good = say(g->why, "%s: split.no is %lld, but the file is number %d, from 0", path, (long long)number, no);
    else good = gguf_read_tensors(g, &c, tensors, (uint64_t)alignment, file, path);
    if (good && !no) {
        g->pair = list;
        g->pairs = (size_t)count;
    } else free(list);
    return good;
}

/* What holds for all files together; layers, architecture. */
static inline int gguf_finish(gguf *g, const char *path)
{
    int64_t all = gguf_split(g->pair, g->pairs, "split.tensors.count", (int64_t)g->tensors);
    int nextn;
    char name[64];
    size_t i;
    if (all != (int64_t)g->tensors)
        return say(g->why, "%s: there are %zu tensors, but split.tensors.count is %lld", path, g->tensors,
                   (long long)all);
    if (g->tensors) qsort(g->tensor, g->tensors, sizeof *g->tensor, gguf_by_name);
    for (i = 1; i < g->tensors; i++)
        if (!gguf_by_name(&g->tensor[i - 1], &g->tensor[i]))
            return say(g->why, "%s: tensor %s is there twice", path, gguf_shown(g->tensor[i].name, name));
    g->arch = gguf_string(g, "general.architecture");
    if (!g->arch.at || g->arch.length > 60 || memchr(g->arch.at, 0, g->arch.length))
        return say(g->why, "%s: general.architecture is missing, or no name", path);
    if (!gguf_whole(g, ".block_count", -1, 0, 0, 1 << 16, &g->depth) ||
        !gguf_whole(g, ".nextn_predict_layers", -1, 0, 0, g->depth, &nextn)) return 0;
    g->depth -= nextn;
    return 1;
}
static inline void gguf_close(gguf *g)
{
    size_t i;
    for (i = 0; i < g->files; i++) munmap((void *)(size_t)g->file[i].at, g->file[i].bytes);
    free(g->pair); free(g->tensor); free(g->file);
    memset(g, 0, sizeof *g);
}
/* A file, or, of NAME-00002-of-00003.gguf, all three.  0: a sentence, and g->why is all that is left. */
static inline int gguf_open(gguf *g, const char *path)
{
    const size_t length = strlen(path);
    char name[PATH], why[WHY];
    const char *tail = length > 20 ? path + length - 20 : "";          /* -00001-of-00003.gguf */
    int no, files = 1, good = 1, split;
    memset(g, 0, sizeof *g);
    split = *tail == '-' && strspn(tail + 1, "0123456789") == 5 && !strncmp(tail + 6, "-of-", 4) &&
            strspn(tail + 10, "0123456789") == 5 && !strcmp(tail + 15, ".gguf");
    if (split) files = (int)strtol(tail + 10, NULL, 10);
    if (length >= PATH || files < 1) return say(g->why, "%.60s..: no name of a file", path);
    g->file = (mapped *)calloc((size_t)files, sizeof *g->file);
    if (!g->file) return say(g->why, "%s: out of memory", path);
    for (no = 0; good && no < files; no++) {
        mapped *f = &g->file[no];
        if (split) snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)(length - 20), path, no + 1, files);
        else snprintf(name, sizeof name, "%s", path);
        f->at = map_file(name, &f->bytes, g->why);
        if (f->at) g->files++;
        good = f->at && gguf_read(g, f->at, f->bytes, no, files, name);
    }
    if (good && gguf_finish(g, path)) return 1;
    memcpy(why, g->why, sizeof why);
    gguf_close(g);
    return say(g->why, "%s", why);
}
static inline const gguf_tensor *gguf_tensor_of(const gguf *g, const char *name)               /* NULL: there is none */
{
    gguf_tensor wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.name = gguf_text_of(name);
    if (!g->tensors) return NULL;
    return (const gguf_tensor *)bsearch(&wanted, g->tensor, g->tensors, sizeof wanted, gguf_by_name);
}
/* Of layer n: "ffn_down_exps.weight". */
static inline const gguf_tensor *gguf_part(const gguf *g, int n, const char *part)
{
    char name[NAME];
    snprintf(name, NAME, "blk.%d.%.150s", n, part);
    return gguf_tensor_of(g, name);
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* How models route: what their code in llama.cpp has, as files do not say it.  gating 0: routing; else what
 * ARCH.expert_gating_func is where it is missing (1 softmax, 2 sigmoid, 3 softmax of those that are chosen, 4
 * sqrt(softplus)), and expert_weights_norm, expert_weights_scale and the groups count, too. */
typedef struct gguf_route { const char *arch; int routing, gating, act; } gguf_route;
static const gguf_route gguf_routes[] = {
    { "qwen3moe", MOEK_ROUTE_SOFTMAX_RENORM, 0, MOEK_SILU }, { "qwen2moe", MOEK_ROUTE_SOFTMAX, 0, MOEK_SILU },
    { "llama", MOEK_ROUTE_TOPK_SOFTMAX, 0, MOEK_SILU }, { "olmoe", MOEK_ROUTE_SOFTMAX, 0, MOEK_SILU },
    { "gpt-oss", MOEK_ROUTE_TOPK_SOFTMAX, 0, MOEK_SWIGLUOAI }, { "deepseek2", 0, 1, MOEK_SILU },
    { "glm4moe", 0, 2, MOEK_SILU }
};
/* The format in which moek runs experts of a type; 0: there is none in this build.  f32 is rounded to bf16. */
static inline int gguf_quant(const gguf_type *t)
{
    enum { BF16 = 30 };
    const moek_format *const f = moek_format_of_file(t->way == GGUF_ROUNDED ? BF16 : t->number);
    int quant = f && t->way != GGUF_NOT ? f->number : 0;
    if (t->way == GGUF_MXFP4) quant = MOEK_MXFP4_A16;
    if (t->way == GGUF_NVFP4) quant = MOEK_NVFP4_A16;
    return quant;
}
static inline int gguf_no_format(gguf *g, const gguf_tensor *t)
{
    char name[64], served[200];
    int i, at = 0;
    for (i = 0; i < GGUF_TYPES; i++)
        if (gguf_quant(&gguf_types[i]))
            at += snprintf(served + at, sizeof served - (size_t)at, "%s%s", at ? ", " : "", gguf_types[i].name);
    return say(g->why, "%s is %s (GGUF type %d), for which this moek has no kernels; it has some for %s",
               gguf_shown(t->name, name), t->type->name, t->type->number, served);
}
/* Is a tensor [experts][rows][columns]?  0: a sentence. */
static inline int gguf_fits(gguf *g, const gguf_tensor *t, uint64_t columns, uint64_t rows, uint64_t experts)
{
    char name[64];
    if (t->ne[0] == columns && t->ne[1] == rows && t->ne[2] == experts && t->ne[3] == 1) return 1;
    return say(g->why, "%s has sizes %llu, %llu, %llu, %llu; those of the layer are %llu, %llu, %llu",
               gguf_shown(t->name, name), (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
               (unsigned long long)t->ne[2], (unsigned long long)t->ne[3], (unsigned long long)columns,
               (unsigned long long)rows, (unsigned long long)experts);
}
static inline int gguf_fits_f32(gguf *g, const gguf_tensor *t, uint64_t columns, uint64_t rows)
{
    char name[64];
    if (!t) return 1;
    if (t->type->number) return say(g->why, "%s is %s; f32 is expected", gguf_shown(t->name, name), t->type->name);
    return gguf_fits(g, t, columns, rows, 1);
}
static inline int gguf_rows(const gguf_layer *l, int which)
{
    return which == MOEK_MATRIX_DOWN ? l->config.hidden : which == MOEK_MATRIX_GATE_UP ? 2 * l->config.inter
                                                                                       : l->config.inter;
}
static inline int gguf_columns(const gguf_layer *l, int which)
{
    return which == MOEK_MATRIX_DOWN ? l->config.inter : l->config.hidden;
}
/* Are weights of a type T itself, so that x is? */
static inline int gguf_in_fp16(const gguf_tensor *t)
{
    return moek_format_of(gguf_quant(t->type))->w == MOEK_ELEMENT_FP16;
}
static inline int gguf_in_bf16(const gguf_tensor *t)
{
    return moek_format_of(gguf_quant(t->type))->w == MOEK_ELEMENT_BF16;
}
/* Sizes and formats of the matrices, which are there. */
static inline int gguf_shapes(gguf *g, gguf_layer *l)
{
    const gguf_tensor *down = l->matrix[MOEK_MATRIX_DOWN], *up = l->matrix[MOEK_MATRIX_UP];
    const gguf_tensor *gate = l->matrix[MOEK_MATRIX_GATE];
    moek_config *c = &l->config;
    char name[64], other[64];
    int which;
    if (down->ne[0] > 1 << 24 || down->ne[1] > 1 << 24 || down->ne[2] > 1024)
        return say(g->why, "%s: a layer has at most 2^24 rows, 2^24 columns and 1024 experts",
                   gguf_shown(down->name, name));
    c->inter = (int)down->ne[0]; c->hidden = (int)down->ne[1];
    c->experts = l->experts = (int)down->ne[2];
    if (!up) up = l->matrix[MOEK_MATRIX_GATE_UP];
    for (which = 0; which < 4; which++) {
        const gguf_tensor *t = l->matrix[which];
        if (!t) continue;
        if (!gguf_fits(g, t, (uint64_t)gguf_columns(l, which), (uint64_t)gguf_rows(l, which), down->ne[2]) ||
            !gguf_fits_f32(g, l->bias[which], (uint64_t)gguf_rows(l, which), down->ne[2]) ||
            !gguf_fits_f32(g, l->scale[which], down->ne[2], 1)) return 0;
        if (!gguf_quant(t->type)) return gguf_no_format(g, t);
        if (l->scale[which] && t->type->way != GGUF_NVFP4)
            return say(g->why, "%s: experts in %s with a global scale are not read here",
                       gguf_shown(l->scale[which]->name, name), t->type->name);
    }
    if (gate && gate->type != up->type)
        return say(g->why, "%s is %s, %s is %s: a layer has one format for both", gguf_shown(gate->name, name),
                   gate->type->name, gguf_shown(up->name, other), up->type->name);
    if (gate && !l->bias[MOEK_MATRIX_GATE] != !l->bias[MOEK_MATRIX_UP])
        return say(g->why, "of %s and %s one has a bias", gguf_shown(gate->name, name), gguf_shown(up->name, other));
    c->quant = gguf_quant(up->type);
    if (gguf_quant(down->type) != c->quant) c->down_quant = gguf_quant(down->type);
    c->dtype = gguf_in_fp16(up) || gguf_in_fp16(down) ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    if (gguf_in_bf16(up) != gguf_in_bf16(down) && gguf_in_fp16(up) != gguf_in_fp16(down))
        return say(g->why, "%s is %s, %s is %s: x and y of a layer have one type", gguf_shown(up->name, name),
                   up->type->name, gguf_shown(down->name, other), down->type->name);
    if (gate) c->up_layout = MOEK_UP_SEPARATE;
    else if (l->matrix[MOEK_MATRIX_GATE_UP]) c->up_layout = MOEK_UP_GATE_UP;
    return 1;
}
/* deepseek2 and glm4moe: what their keys say.  DeepSeek-V3 (61 layers) has 8 groups, which old files do not say. */
static inline int gguf_gated(gguf *g, gguf_layer *l, int gating)
{
    static const int routing[2][5] = {
        { 0, MOEK_ROUTE_SOFTMAX, MOEK_ROUTE_SIGMOID, MOEK_ROUTE_TOPK_SOFTMAX, MOEK_ROUTE_SQRTSOFTPLUS },
        { 0, MOEK_ROUTE_SOFTMAX_RENORM, MOEK_ROUTE_DEEPSEEK_V3, MOEK_ROUTE_TOPK_SOFTMAX, MOEK_ROUTE_DEEPSEEK_V4 }
    };
    const gguf_tensor *words = gguf_tensor_of(g, "token_embd.weight");
    const int flash = gguf_is(g->arch, "deepseek2") && words && words->ne[1] == 154880 &&
                      (g->depth == 47 || g->depth == 48);              /* GLM-4.7-Flash */
    moek_config *c = &l->config;
    int norm, v3;
    double scale;
    if (!gguf_whole(g, ".expert_gating_func", l->number, 0, 0, 4, &l->config.routing) ||
        !gguf_whole(g, ".expert_weights_norm", l->number, 0, 0, 1, &norm) ||
        !gguf_real(g, ".expert_weights_scale", 0, 0, 1e6, &scale)) return 0;
    if (c->routing) gating = c->routing;
    else if (flash) gating = 2;
    c->routing = routing[norm][gating];
    c->scale = (float)scale;
    v3 = gguf_is(g->arch, "deepseek2") && gating == 2 && g->depth == 61 && c->experts == 256 && c->hidden == 7168;
    return gguf_whole(g, ".expert_group_count", l->number, v3 ? 8 : 0, 0, c->experts, &c->groups) &&
           gguf_whole(g, ".expert_group_used_count", l->number, v3 ? 4 : 0, 0, c->experts, &c->topk_groups);
}
static inline int gguf_routing(gguf *g, gguf_layer *l)
{
    const size_t n = sizeof gguf_routes / sizeof *gguf_routes;
    size_t i;
    char arch[64];
    for (i = 0; i < n && !gguf_is(g->arch, gguf_routes[i].arch); i++) continue;
    if (!gguf_whole(g, ".expert_used_count", l->number, 0, i < n, l->experts < 32 ? l->experts : 32, &l->config.topk))
        return 0;
    say(l->unrouted, "routing of architecture %s is not known here: set routing, act, and, where the model has them, "
        "groups, topk_groups, scale and limit of the config yourself", gguf_shown(g->arch, arch));
    if (i == n) return 1;
    if (!l->matrix[MOEK_MATRIX_GATE] && !l->matrix[MOEK_MATRIX_GATE_UP])         /* all of these models are gated */
        return say(g->why, "blk.%d has no ffn_gate_exps, but models of architecture %s have", l->number, arch);
    *l->unrouted = 0;
    l->config.act = gguf_routes[i].act;
    l->config.routing = gguf_routes[i].routing;
    return !gguf_routes[i].gating || gguf_gated(g, l, gguf_routes[i].gating);
}
/* Layer n: its tensors, and what moek needs to know.  l->experts 0: it has none.  0: a sentence. */
static inline int gguf_find(gguf *g, int n, gguf_layer *l)
{
    static const char *const names[4] = { "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps" };
    static const char *const shared[3] = { "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight" };
    char part[64];
    int i, experts;
    memset(l, 0, sizeof *l);
    l->number = n;
    if (n < 0 || n >= 1 << 16) return say(g->why, "there is no layer %d", n);
    if (gguf_part(g, n, "ffn_down.0.weight"))
        return say(g->why, "blk.%d has a tensor for each expert, as until April 2024: convert the model again", n);
    for (i = 0; i < 4; i++) {
        snprintf(part, sizeof part, "%s.weight", names[i]);
        l->matrix[i] = gguf_part(g, n, part);
        snprintf(part, sizeof part, "%s.bias", names[i]);
        l->bias[i] = gguf_part(g, n, part);
        snprintf(part, sizeof part, "%s.scale", names[i]);
        l->scale[i] = gguf_part(g, n, part);
    }
    if (!l->matrix[MOEK_MATRIX_DOWN]) return 1;
    i = l->matrix[MOEK_MATRIX_GATE_UP] != NULL;
    if (!!l->matrix[MOEK_MATRIX_UP] == i || (i && l->matrix[MOEK_MATRIX_GATE]))
        return say(g->why, "blk.%d has ffn_down_exps, and neither ffn_up_exps, with or without ffn_gate_exps, nor "
                   "ffn_gate_up_exps alone", n);
    l->router = gguf_part(g, n, "ffn_gate_inp.weight");
    l->router_bias = gguf_part(g, n, "ffn_gate_inp.bias");
    l->exp_probs_b = gguf_part(g, n, "exp_probs_b.bias");
    l->shared_gate = gguf_part(g, n, "ffn_gate_inp_shexp.weight");
    for (i = 0; i < 3; i++) l->shared[i] = gguf_part(g, n, shared[i]);
    if (!gguf_shapes(g, l)) return 0;
    if (!gguf_whole(g, ".expert_count", n, l->experts, 1, 1024, &experts)) return 0;
    if (experts != l->experts || (l->router && l->router->ne[1] != (uint64_t)experts))
        return say(g->why, "blk.%d has %d experts, the router %d, the key expert_count says %d", n, l->experts,
                   l->router ? (int)l->router->ne[1] : 0, experts);
    return gguf_fits_f32(g, l->router_bias, (uint64_t)experts, 1) &&
           gguf_fits_f32(g, l->exp_probs_b, (uint64_t)experts, 1) && gguf_routing(g, l);
}

/* ---- its weights ------------------------------------------------------------------------------------------------- */

typedef struct gguf_fields { const void **w, **scale, **bias; const float **global; } gguf_fields;
static inline gguf_fields gguf_fields_of(moek_weights *w, int which)
{
    gguf_fields f;
    f.w = which == MOEK_MATRIX_GATE ? &w->w_gate : which == MOEK_MATRIX_DOWN ? &w->w_down : &w->w_up;
    f.scale = which == MOEK_MATRIX_GATE ? &w->w_gate_scale : which == MOEK_MATRIX_DOWN ? &w->w_down_scale
                                                                                       : &w->w_up_scale;
    f.global = which == MOEK_MATRIX_GATE ? &w->w_gate_global_scale : which == MOEK_MATRIX_DOWN ? &w->w_down_global_scale
                                                                                               : &w->w_up_global_scale;
    f.bias = which == MOEK_MATRIX_GATE ? &w->w_gate_bias : which == MOEK_MATRIX_DOWN ? &w->w_down_bias : &w->w_up_bias;
    return f;
}
static inline size_t gguf_local(const gguf_layer *l)           /* experts here */
{
    return (size_t)(l->config.local_experts > 0 && l->config.local_experts < l->experts ? l->config.local_experts
                                                                                        : l->experts);
}
static inline int gguf_fp4(const gguf_tensor *t) { return t->type->way == GGUF_MXFP4 || t->type->way == GGUF_NVFP4; }
/* Does it become arrays? */
static inline int gguf_imported(const gguf_layer *l, const gguf_tensor *t)
{
    return gguf_fp4(t) && l->config.weight_layout != MOEK_WEIGHTS_BLOCKS;
}
/* Where the file has a matrix of expert `first`, if it can be bound there; NULL: it goes to memory. */
static inline const void *gguf_in_place(const gguf_layer *l, int which, int first)
{
    const gguf_tensor *t = l->matrix[which];
    const unsigned char *at = t->data + t->bytes / (size_t)l->experts * (size_t)first;
    const int fp4 = gguf_fp4(t) && !gguf_imported(l, t);
    const int stays = t->type->way == GGUF_PLAIN || t->type->way == GGUF_BLOCKS || fp4;
    return stays && (uintptr_t)at % 16 == 0 ? at : NULL;
}
/* Bytes that *w needs beside the file; memory, aligned to 256 bytes: *w points there, and into the file.  Experts from
 * `first` on: l->config.local_experts of them, or all. */
static inline size_t gguf_carve(const gguf_layer *l, int first, void *memory, moek_weights *w)
{
    const size_t experts = gguf_local(l);
    char *base = (char *)memory;
    size_t at = 0;
    int which;
    memset(w, 0, sizeof *w);
    for (which = 0; which < 4; which++) {
        const size_t rows = (size_t)gguf_rows(l, which), columns = (size_t)gguf_columns(l, which);
        const gguf_tensor *t = l->matrix[which];
        const gguf_fields to = gguf_fields_of(w, which);
        const moek_format *f = t ? moek_format_of(gguf_quant(t->type)) : NULL;
        if (!t) continue;
        *to.w = gguf_in_place(l, which, first);
        if (f->global_scale) *to.global = (const float *)memory_piece(base, &at, experts * sizeof(float) *
                                                               (which == MOEK_MATRIX_GATE_UP ? 2 : 1));
        if (gguf_imported(l, t)) {
            *to.w = memory_piece(base, &at, experts * rows * moek_element_bytes(f->w, columns));
            *to.scale = memory_piece(base, &at, experts * moek_scale_bytes(&f->w_scale, rows, columns));
        } else if (t->type->way == GGUF_ROUNDED) *to.w = memory_piece(base, &at, experts * rows * columns * 2);
        else if (!*to.w) *to.w = memory_piece(base, &at, t->bytes / (size_t)l->experts * experts);
        if (l->bias[which]) *to.bias = memory_piece(base, &at, experts * rows * 2);
    }
    if (l->exp_probs_b && (uintptr_t)l->exp_probs_b->data % sizeof(float) == 0)
        w->router_bias = (const float *)(const void *)l->exp_probs_b->data;
    else if (l->exp_probs_b) w->router_bias = (const float *)memory_piece(base, &at, (size_t)l->experts * 4);
    return at;
}
static inline float gguf_f32(const gguf_tensor *t, size_t i)
{
    float f;
    memcpy(&f, t->data + 4 * i, 4);
    return f;
}
/* f32, from element `from` on, as T. */
static inline void gguf_round(const gguf_layer *l, const gguf_tensor *t, size_t from, size_t count, const void *to)
{
    const int fp16 = l->config.dtype == MOEK_DTYPE_FP16;
    uint16_t *at = (uint16_t *)(size_t)to;
    size_t i;
    for (i = 0; i < count; i++) at[i] = fp16 ? half_of(gguf_f32(t, from + i)) : bf16_of(gguf_f32(t, from + i));
}
/* A matrix of expert `of` of the file through the importer, as that of expert `here`.  Gate and up in one tensor of
 * nvfp4 are two calls, as each has a global scale. */
static inline int gguf_import(gguf *g, const gguf_layer *l, int which, size_t of, int here, const moek_weights *w,
                              moek_import_report *report)
{
    const gguf_tensor *t = l->matrix[which];
    const size_t bytes = t->bytes / (size_t)l->experts;
    const int nv = t->type->way == GGUF_NVFP4, parts = nv && which == MOEK_MATRIX_GATE_UP ? 2 : 1;
    float second = nv && l->scale[which] ? gguf_f32(l->scale[which], of) : 1;
    char name[64], why[WHY - 70];
    int part;
    for (part = 0; part < parts; part++) {
        moek_import_args a;
        memset(&a, 0, sizeof a);
        a.source = nv ? MOEK_FROM_NVFP4_GGUF : MOEK_FROM_MXFP4_GGUF;
        a.their_w = (void *)(size_t)(t->data + of * bytes + bytes / 2 * (size_t)part); /* (only read) */
        a.their_global = nv ? &second : NULL;
        a.report = report;
        a.why = g->why; a.why_size = sizeof g->why;
        if (moek_import_place(&l->config, w, parts == 2 ? part ? MOEK_MATRIX_UP : MOEK_MATRIX_GATE : which, here,
                              &a) == MOEK_OK && moek_import(0, &a, NULL) == MOEK_OK) continue;
        memcpy(why, g->why, sizeof why);
        return say(g->why, "%s: %s", gguf_shown(t->name, name), why);
    }
    return 1;
}
/* Of fp4 that stays in blocks: global scales; and what the importer says of it, in memory that is given back. */
static inline int gguf_blocks(gguf *g, const gguf_layer *l, int which, size_t begin, const gguf_fields *to,
                              moek_import_report *report)
{
    const gguf_tensor *t = l->matrix[which];
    const moek_format *f = moek_format_of(gguf_quant(t->type));
    const size_t parts = which == MOEK_MATRIX_GATE_UP ? 2 : 1, experts = gguf_local(l);
    float *global = f->global_scale ? (float *)(size_t)*to->global : NULL;
    gguf_layer one = *l;
    moek_weights w;
    char *memory;
    size_t e;
    int other, good = 1;
    for (e = 0; e < experts * parts && global; e++)
        global[e] = l->scale[which] ? gguf_f32(l->scale[which], begin + e / parts) : 1;
    if (!report) return 1;
    one.config.weight_layout = 0; one.config.local_experts = 1;
    for (other = 0; other < 4; other++) if (other != which) one.matrix[other] = one.bias[other] = NULL;
    memory = (char *)malloc(gguf_carve(&one, 0, NULL, &w) + 256);
    if (!memory) return say(g->why, "out of memory");
    gguf_carve(&one, 0, memory + (256 - (uintptr_t)memory % 256), &w);
    for (e = 0; e < experts && good; e++) good = gguf_import(g, &one, which, begin + e, 0, &w, report);
    free(memory);
    return good;
}
/* What does not stay in the file, to where gguf_carve made *w point, in host memory.  report: or NULL. */
static inline int gguf_load(gguf *g, const gguf_layer *l, int first, const moek_weights *w, moek_import_report *report)
{
    const size_t experts = gguf_local(l), begin = (size_t)first;
    moek_weights local = *w;
    size_t e;
    int which;
    if (first < 0 || begin + experts > (size_t)l->experts)
        return say(g->why, "experts %d to %d: the layer has %d", first, first + (int)experts - 1, l->experts);
    for (which = 0; which < 4; which++) {
        const gguf_tensor *t = l->matrix[which];
        const gguf_fields to = gguf_fields_of(&local, which);
        const size_t rows = t ? (size_t)gguf_rows(l, which) : 0, columns = (size_t)gguf_columns(l, which);
        const size_t bytes = t ? t->bytes / (size_t)l->experts : 0;
        if (!t) continue;
        if (l->bias[which]) gguf_round(l, l->bias[which], begin * rows, experts * rows, *to.bias);
        if (t->type->way == GGUF_ROUNDED) gguf_round(l, t, begin * rows * columns, experts * rows * columns, *to.w);
        else if (!gguf_imported(l, t) && !gguf_in_place(l, which, first))
            memcpy((void *)(size_t)*to.w, t->data + begin * bytes, experts * bytes);
        if (gguf_fp4(t) && !gguf_imported(l, t) && !gguf_blocks(g, l, which, begin, &to, report)) return 0;
        for (e = 0; e < experts && gguf_imported(l, t); e++)
            if (!gguf_import(g, l, which, begin + e, (int)e, w, report)) return 0;
    }
    if (l->exp_probs_b && (const void *)w->router_bias != (const void *)l->exp_probs_b->data)
        memcpy((void *)(size_t)w->router_bias, l->exp_probs_b->data, (size_t)l->experts * 4);
    return 1;
}
#endif
