/* moek/facts.h -- facts that host code asks: of formats (moek/format.h), activations, routing methods, backends, and
 * sets of instructions of CPUs.  All come from lists of kernels.toml and of moek/enums.h. */
#ifndef MOEK_FACTS_H
#define MOEK_FACTS_H
#include "stages.h"
#include "format_facts.h"
#include "kernel/linkage.h"
#include "../../generated/moek_blocks.h"

#define MOEK_BITS_(name, bits) bits,
static const int moek_element_bits_[] = { 0, MOEK_EACH_ELEMENT(MOEK_BITS_) };
static const int moek_scale_bits_[] = { 0, MOEK_EACH_SCALE_TYPE(MOEK_BITS_) };
#undef MOEK_BITS_

const moek_block *moek_block_of(int file_type)
{
    size_t i;
    for (i = 0; i < sizeof moek_blocks_ / sizeof moek_blocks_[0]; i++)
        if (moek_blocks_[i].type == file_type) return &moek_blocks_[i];
    return NULL;
}

const moek_format *moek_format_of(int quant)
{
    static const moek_format all[] = {
        MOEK_EACH_FORMAT(MOEK_FORMAT_FACTS_)
    };
    enum { FORMATS = sizeof all / sizeof all[0] };
    size_t i = (size_t)quant - 1;                      /* numbers without a gap: a run asks again and again */
    if (i < FORMATS && all[i].number == quant) return &all[i];
    for (i = 0; i < FORMATS; i++) if (all[i].number == quant) return &all[i];
    return NULL;
}
const moek_format *moek_format_of_file(int file_type)
{
#define MOEK_NUMBER_(NAME, name, number) number,
    static const int numbers[] = { MOEK_EACH_QUANT(MOEK_NUMBER_) };
#undef MOEK_NUMBER_
    size_t i;
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const moek_format *const f = moek_format_of(numbers[i]);
        if (f->file_type == file_type && f->file_columns && f->x_bits == 16) return f;
    }
    return NULL;
}

/* What host code asks most.  f: a format, or NULL, which has nothing of it. */
/* Is x s8 beside other weights?  Such formats have plain C of their own on CPUs, and serve where they are named. */
static MOEK_UNUSED int moek_sums_bytes_(const moek_format *f)
{
    return f->x == MOEK_ELEMENT_S8 && (f->w != f->x || f->only_blocks);
}
static int moek_quantizes_(const moek_format *f) { return f && f->x_bits < 16; }   /* x and h become not T */
static const moek_scale_shape *moek_x_scale_(const moek_format *f)
{
    static const moek_scale_shape none = { 0, 0, 0 };
    return f ? &f->x_scale : &none;
}
static int moek_by_tensor_(const moek_format *f) { return moek_x_scale_(f)->type && !moek_x_scale_(f)->rows; }
static int moek_by_row_(const moek_format *f) { return moek_x_scale_(f)->rows && !moek_x_scale_(f)->columns; }
static int moek_blocked_(const moek_format *f) { return moek_x_scale_(f)->columns > 0; }
static int moek_x_global_scale_(const moek_format *f)  /* x has a static scale on top of others */
{
    return f && f->static_x && !moek_by_tensor_(f);
}
static const moek_scale_shape *moek_w_scale_(const moek_format *f)
{
    static const moek_scale_shape none = { 0, 0, 0 };
    return f ? &f->w_scale : &none;
}
/* Rows of w share scales, so that it matters where a shard of tensor parallelism begins. */
static int moek_rows_share_(const moek_format *f) { return moek_w_scale_(f)->rows > 1; }
/* Columns or rows of w, or columns of h, share scales: one more than config.inter_offset may be; 0: none. */
static int moek_scale_group_(const moek_format *f, int block)
{
    const moek_scale_shape w = f ? moek_weight_scale(f, block) : *moek_w_scale_(NULL);
    const int most = w.rows > w.columns ? w.rows : w.columns, x = moek_x_scale_(f)->columns;
    return most > 1 || x ? most > x ? most : x : 0;
}
/* T of a format whose elements are T; 0: T is free. */
static int moek_fixed_dtype_(const moek_format *f)
{
    return !f ? 0 : f->x == MOEK_ELEMENT_BF16 ? MOEK_DTYPE_BF16 : f->x == MOEK_ELEMENT_FP16 ? MOEK_DTYPE_FP16 : 0;
}
/* The format of that T. */
static MOEK_UNUSED int moek_plain_format_of_(int dtype)
{
    int quant = 1;
    while (moek_fixed_dtype_(moek_format_of(quant)) != dtype) quant++;
    return quant;
}

/* The format of the weights that an op reads: w_down may have one of its own.  (A plan has both found.) */
static int moek_quant_at_(const moek_config *c, int op)
{
    return op == MOEK_OP_DOWN && c->down_quant ? c->down_quant : c->quant;
}
static const moek_format *moek_format_at_(const moek_config *c, int op)
{
    return moek_format_of(moek_quant_at_(c, op));
}
/* The format of w_down and of h; gate, up and x have config.quant. */
static int moek_down_quant_(const moek_config *c) { return moek_quant_at_(c, MOEK_OP_DOWN); }
static int moek_two_formats_(const moek_config *c) { return moek_down_quant_(c) != c->quant; }
/* config.ue8m0, of x or of h in this format: of two formats, one may have no such scales. */
static int moek_rounds_up_(const moek_config *c, const moek_format *f) { return c->ue8m0 && f->ue8m0; }

moek_scale_shape moek_weight_scale(const moek_format *f, int block)
{
    moek_scale_shape of = f->w_scale;
    if (f->blocks) of.columns = block;
    return of;
}
size_t moek_element_bytes(int element, size_t columns)
{
    return element > 0 && element < MOEK_ELEMENT_COUNT_ ? (columns * (size_t)moek_element_bits_[element] + 7) / 8 : 0;
}
/* Do weights lie in blocks of a file, and not tiled, or in panels? */
static int moek_in_blocks_(const moek_format *f, int weight_layout)
{
    if (f->only_blocks) return weight_layout != MOEK_WEIGHTS_PANELS &&
                               (weight_layout != MOEK_WEIGHTS_TILED || f->tiled != MOEK_READS_FRAGMENTS);
    return weight_layout == MOEK_WEIGHTS_BLOCKS && moek_block_of(f->file_type);
}
/* How the weights of an op lie.  config.weight_layout is one word for both formats: blocks are where a format has them,
 * and a format that has nothing else, or is tiled there, lies in blocks under any word. */
static int moek_layout_at_(const moek_config *c, int op)
{
    const int blocks = moek_in_blocks_(moek_format_at_(c, op), c->weight_layout);
    return blocks ? MOEK_WEIGHTS_BLOCKS : c->weight_layout == MOEK_WEIGHTS_BLOCKS ? MOEK_WEIGHTS_CHECKPOINT
                                                                                  : c->weight_layout;
}
/* Columns of whole blocks of a file, which the weights of an op come in, or came in before repack; else 0. */
static int moek_block_columns_(const moek_config *c, int op)
{
    const moek_format *const f = moek_format_at_(c, op);
    return f->only_blocks || moek_layout_at_(c, op) == MOEK_WEIGHTS_BLOCKS ? f->file_columns : 0;
}
size_t moek_weight_bytes(const moek_format *f, int weight_layout, size_t columns)
{
    if (!f->only_blocks && !moek_in_blocks_(f, weight_layout)) return moek_element_bytes(f->w, columns);
    return (columns + (size_t)f->file_columns - 1) / (size_t)f->file_columns * (size_t)f->file_bytes;
}
size_t moek_scale_count(const moek_scale_shape *of, size_t rows, size_t columns)
{
    const size_t by_rows = of->rows ? (rows + (size_t)of->rows - 1) / (size_t)of->rows : 1;
    const size_t by_columns = of->columns ? (columns + (size_t)of->columns - 1) / (size_t)of->columns : 1;
    return of->type ? by_rows * by_columns : 0;
}
size_t moek_scale_bytes(const moek_scale_shape *of, size_t rows, size_t columns)
{
    return moek_scale_count(of, rows, columns) * (size_t)moek_scale_bits_[of->type] / 8;
}

static int moek_act_gated_(int act)
{
    switch (act) {
#define MOEK_CASE_(NAME, name, number, gated) case number: return gated;
    MOEK_EACH_ACT(MOEK_CASE_)
#undef MOEK_CASE_
    default: return 0;
    }
}

/* The sets of CPUs, best first.  (No processor has sets of two families.) */
static const int moek_sets_[] = { MOEK_ARCH_AMX, MOEK_ARCH_AVX512, MOEK_ARCH_AVX2, MOEK_ARCH_I8MM, MOEK_ARCH_NEON,
                                  MOEK_ARCH_CPU };
enum { MOEK_SETS_ = (int)(sizeof moek_sets_ / sizeof moek_sets_[0]) };

typedef struct moek_backend_ { const char *name; int number, arch; } moek_backend_;
static const moek_backend_ moek_backends_[] = {                                  /* best first */
#define MOEK_FACTS_(name, number, arch) { #name, number, arch },
    MOEK_EACH_BACKEND(MOEK_FACTS_)
#undef MOEK_FACTS_
};
enum { MOEK_BACKENDS_ = (int)(sizeof moek_backends_ / sizeof moek_backends_[0]) };

typedef struct moek_device_of_ { int arch, device; } moek_device_of_;
static const moek_device_of_ moek_devices_[] = {
#define MOEK_DEVICE_OF_(arch, device) { arch, device },
    MOEK_EACH_DEVICE(MOEK_DEVICE_OF_)
#undef MOEK_DEVICE_OF_
};
enum { MOEK_DEVICES_ = (int)(sizeof moek_devices_ / sizeof moek_devices_[0]) };

typedef struct moek_method_ {
    const char *name, *text;
    int number, score, normalize, group_score;
    float eps;
} moek_method_;
static const moek_method_ moek_methods_[] = {
#define MOEK_FACTS_(name, number, score, normalize, eps, group, text) \
    { #name, text, number, MOEK_SCORE_##score, MOEK_NORM_##normalize, MOEK_GROUP_SCORE_##group, eps },
    MOEK_EACH_ROUTING(MOEK_FACTS_)
#undef MOEK_FACTS_
};

static const moek_method_ *moek_method_of_(int routing)                         /* NULL: there is none */
{
    int i;
    for (i = 0; i < (int)(sizeof moek_methods_ / sizeof moek_methods_[0]); i++)
        if (moek_methods_[i].number == routing) return &moek_methods_[i];
    return NULL;
}

int moek_version(void) { return MOEK_VERSION; }

int moek_hidden_round_up(int hidden)
{
#define MOEK_STEP_(h) if (hidden <= h) return h;
    MOEK_EACH_HIDDEN(MOEK_STEP_)
#undef MOEK_STEP_
    return 0;
}
#endif
