/* moek/import/import.h -- moek_import and its relatives: what a source is, checks, orders, the report. */
#ifndef MOEK_IMPORT_IMPORT_H
#define MOEK_IMPORT_IMPORT_H
#include <string.h>
#include "../plan/check.h"
#include "quantize_blocks.h"
#include "shape.h"

typedef struct moek_source_ {
    const char *name;
    int number, quant, codes, flip, scales, type, zeros, less, global;
} moek_source_;
#define MOEK_FACTS_(name, number, quant, codes, flip, scales, type, zeros, less, global) \
    { #name, number, MOEK_##quant, MOEK_CODES_##codes, flip, MOEK_SCALES_##scales, MOEK_DTYPE_##type, \
      MOEK_CODES_##zeros, less, MOEK_GLOBAL_##global },
static const moek_source_ moek_sources_[] = { MOEK_EACH_SOURCE(MOEK_FACTS_) };
#undef MOEK_FACTS_

#define MOEK_PLAIN_ROW_(name, number) { #name, number, MOEK_DTYPE_##name },
static const struct { const char *name; int number, dtype; } moek_plain_sources_[] = {
    MOEK_EACH_PLAIN_SOURCE(MOEK_PLAIN_ROW_)
};
#undef MOEK_PLAIN_ROW_
enum { MOEK_PLAIN_SOURCES_ = sizeof moek_plain_sources_ / sizeof moek_plain_sources_[0] };

/* MOEK_DTYPE_* of plain weights; 0: it is another source. */
static int moek_plain_dtype_(int source)
{
    int i;
    for (i = 0; i < MOEK_PLAIN_SOURCES_; i++)
        if (moek_plain_sources_[i].number == source) return moek_plain_sources_[i].dtype;
    return 0;
}
static const moek_source_ *moek_source_of_(int source)
{
    size_t i;
    for (i = 0; i < sizeof moek_sources_ / sizeof moek_sources_[0]; i++)
        if (moek_sources_[i].number == source) return &moek_sources_[i];
    return NULL;
}
const char *moek_source_name(int source)
{
    const moek_source_ *const s = moek_source_of_(source);
    int i;
    for (i = 0; i < MOEK_PLAIN_SOURCES_; i++)
        if (moek_plain_sources_[i].number == source) return moek_plain_sources_[i].name;
    return s ? s->name : NULL;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* All that a call works with, from its arguments. */
typedef struct moek_import_ {
    const moek_source_ *source;
    const moek_format *format;
    int dtype, their_type, their_dtype;                /* T; of their scales: MOEK_SCALE_TYPE_*, and T of that */
    size_t rows, columns, step, scale_rows, groups;
    moek_codes_ ours, theirs, our_zero, their_zero;
    moek_factors_ our_scale, their_scale;
} moek_import_;

/* Scales of integers may be negative. */
static int moek_is_integer_(const moek_format *f)
{
    return f->w == MOEK_ELEMENT_U4B8 || f->w == MOEK_ELEMENT_S8;
}
static int moek_bad_pointer_(const void *p, size_t align) { return !p || (uintptr_t)p % align; }

/* May the source become f?  Scales of other types are those that a file has as f32 or T; one may be a scale of all. */
static int moek_import_fits_(const moek_source_ *s, const moek_format *f)
{
    const moek_format *const of = moek_format_of(s->quant);
    const int open = of->w_scale.type == MOEK_SCALE_TYPE_F32 || of->w_scale.type == MOEK_SCALE_TYPE_T;
    const int type = f->w_scale.type;
    return f->w == of->w && f->global_scale == of->global_scale &&
           (f->w_scale.rows == of->w_scale.rows || s->scales == MOEK_SCALES_ONE) &&
           (type == of->w_scale.type || (open && (type == MOEK_SCALE_TYPE_F32 || type == MOEK_SCALE_TYPE_T)));
}

/* Rows and columns of the matrix in m->format. */
static moek_status moek_import_shape_(const moek_import_args *a, moek_import_ *m)
{
    const moek_format *const f = m->format;
    moek_scale_shape shape;
    if (f->blocks ? !moek_has_block_(f, a->block) : a->block && a->block != f->w_scale.columns)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "block is %d: scales of %s have not so many columns; block as in the config, "
                     "0 for a whole row%s", a->block, f->name, f->blocks ? "" : " or where the format has one choice");
    if (a->rows < 1 || a->columns < 1 || a->rows > MOEK_MAX_COLUMNS_ || a->columns > MOEK_MAX_COLUMNS_)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "rows are %d and columns %d: 1 to %d", a->rows, a->columns,
                     MOEK_MAX_COLUMNS_);
    if (a->columns % f->granule)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "columns are %d: %s takes multiples of %d", a->columns, f->name, f->granule);
    shape = moek_weight_scale(f, a->block);
    m->rows = (size_t)a->rows; m->columns = (size_t)a->columns; m->step = (size_t)(a->row_step ? a->row_step : 1);
    m->groups = moek_scale_count(&shape, 1, m->columns);
    m->scale_rows = m->groups ? moek_scale_count(&shape, m->rows, m->columns) / m->groups : 0;
    m->dtype = a->dtype ? a->dtype : MOEK_DTYPE_BF16;
    if (a->row_step < 0 || (m->dtype != MOEK_DTYPE_BF16 && m->dtype != MOEK_DTYPE_FP16))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "row_step is %d, at least 0; dtype %d, MOEK_DTYPE_BF16 or _FP16", a->row_step,
                     a->dtype);
    return MOEK_OK;
}

static moek_status moek_import_sizes_(const moek_import_args *a, moek_import_ *m)
{
    const moek_format *f;
    moek_status status;
    m->source = moek_source_of_(a->source);
    if (!m->source)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "source is %d: take one of MOEK_FROM_*, 1 to %d", a->source,
                     MOEK_SOURCE_COUNT_ - 1);
    m->format = f = moek_format_of(a->quant ? a->quant : m->source->quant);
    if (!f || !moek_import_fits_(m->source, f))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "quant is %d, %s: %s becomes %s, or what has the same elements", a->quant,
                     f ? f->name : "no format", m->source->name, moek_quant_name(m->source->quant));
    status = moek_import_shape_(a, m);
    if (status != MOEK_OK) return status;
    m->theirs = moek_codes_of_(a->their_w, m->source->codes, f->w_bits, m->rows, m->columns, 1);
    if (moek_codes_in_blocks_(&m->theirs) && (m->columns % moek_codes_block_(&m->theirs) ||
                                              m->groups * 2 * moek_codes_half_(&m->theirs) != m->columns))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "columns are %d, block is %d: blocks of GGUF have %d columns, and a scale for "
                     "%d", a->columns, a->block, (int)moek_codes_block_(&m->theirs),
                     2 * (int)moek_codes_half_(&m->theirs));
    if (m->source->codes == MOEK_CODES_AWQ && a->rows % 8)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "rows are %d: AWQ packs 8 of them", a->rows);
    if (a->recipe)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "recipe is %d: %s is quantized already", a->recipe, m->source->name);
    if (f->w_scale.rows > 1 && (a->row_order || m->step != 1))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "row_step is %d%s: rows of %s that share a scale lie side by side, in the "
                     "file's order", a->row_step, a->row_order ? ", and there is a row_order" : "", f->name);
    return MOEK_OK;
}

/* Types of scales, and how they lie. */
static moek_status moek_import_scales_(const moek_import_args *a, moek_import_ *m)
{
    const moek_source_ *const s = m->source;
    const int type = m->format->w_scale.type;
    const int open = type == MOEK_SCALE_TYPE_F32 || type == MOEK_SCALE_TYPE_T;
    const int dtype = a->scale_dtype ? a->scale_dtype : s->type, powers = dtype == MOEK_DTYPE_E8M0;
    const int choice = open && s->scales != MOEK_SCALES_BLOCKS;          /* of those the type is ggml's */
    size_t bytes;
    if (choice ? (dtype < MOEK_DTYPE_BF16 || dtype > MOEK_DTYPE_F32) && !(powers && m->format->w == MOEK_ELEMENT_E4M3)
             : a->scale_dtype != 0)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "scale_dtype is %d: %s", a->scale_dtype,
                     choice ? "MOEK_DTYPE_BF16, _FP16 or _F32, for FP8_* _E8M0"
                          : "leave it 0, scales of this source have one type");
    if (a->scale_order && (a->scale_order != MOEK_SCALE_ORDER_128X4 || moek_factors_bytes_(type) != 1 ||
                           s->scales != MOEK_SCALES_ROWS))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "scale_order is %d: 0, or for scales of a byte MOEK_SCALE_ORDER_128X4, which "
                     "scales of %s are not", a->scale_order, s->name);
    m->our_scale.at = (unsigned char *)a->scale;
    m->our_scale.type = m->their_scale.type = type;
    if (type == MOEK_SCALE_TYPE_T) m->our_scale.dtype = m->dtype;
    if (open) m->their_scale.type = powers ? MOEK_SCALE_TYPE_E8M0
                                  : dtype == MOEK_DTYPE_F32 ? MOEK_SCALE_TYPE_F32 : MOEK_SCALE_TYPE_T;
    if (m->their_scale.type == MOEK_SCALE_TYPE_T) m->their_scale.dtype = dtype;
    m->our_scale.group = moek_factors_bytes_(type);
    m->our_scale.row = m->our_scale.group * m->groups * m->step;
    bytes = moek_factors_bytes_(m->their_scale.type);
    m->their_scale.at = (unsigned char *)(s->scales == MOEK_SCALES_BLOCKS ? a->their_w : a->their_scale);
    m->their_scale.row = s->scales == MOEK_SCALES_ROWS ? bytes * m->groups : bytes;
    m->their_scale.group = s->scales == MOEK_SCALES_ROWS ? bytes : bytes * m->rows;
    if (s->scales == MOEK_SCALES_ONE) m->their_scale.row = m->their_scale.group = 0;
    if (a->scale_order) m->their_scale.tiles = (m->groups + MOEK_TILE_GROUPS_ - 1) / MOEK_TILE_GROUPS_;
    if (s->scales == MOEK_SCALES_BLOCKS) {
        m->their_scale.per = moek_codes_block_(&m->theirs) * m->groups / m->columns;
        m->theirs.lead = (int)(m->their_scale.per * bytes);
        m->their_scale.group = moek_codes_block_bytes_(&m->theirs);
        m->their_scale.row = m->their_scale.group * (m->groups / m->their_scale.per);
    }
    if (moek_bad_pointer_(m->our_scale.at, m->our_scale.group) || moek_bad_pointer_(m->their_scale.at, bytes))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "scale or their_scale is NULL, or not aligned as its elements");
    return MOEK_OK;
}

/* In place: where it is the same bytes, or the same with others in their place. */
static moek_status moek_import_in_place_(const moek_import_args *a, const moek_import_ *m)
{
    const int orders = a->row_order || a->column_order, side_by_side = m->step == 1;
    if (a->w == a->their_w && (orders || !side_by_side || m->theirs.layout != MOEK_CODES_ROWS ||
                               m->theirs.row_bytes != m->ours.row_bytes))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "w is their_w: only where rows of both are %s%s",
                     "the same bytes or codes, side by side, in the same order", orders ? ": there is an order" : "");
    if (m->our_scale.at == m->their_scale.at &&
        (orders || !side_by_side || !(m->source->scales == MOEK_SCALES_ROWS || m->scale_rows * m->groups == 1) ||
         m->their_scale.tiles ||
         m->our_scale.type != m->their_scale.type || m->our_scale.dtype != m->their_scale.dtype))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "scale is their_scale: only where both have one type and one order");
    if (a->zero && a->zero == a->their_zero)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "zero is their_zero: they differ in order");
    return MOEK_OK;
}

/* Of words, and not of bytes? */
static int moek_source_words_(const moek_source_ *s)
{
    return s->codes != MOEK_CODES_ROWS && s->scales != MOEK_SCALES_BLOCKS && s->codes != MOEK_CODES_BYTES;
}
/* What the file says of its arrays. */
static moek_status moek_import_tensors_(const moek_import_args *a, const moek_import_ *m)
{
    const moek_source_ *const s = m->source;
    const moek_wanted_ w = moek_shape_codes_(s->name, "their_w", &m->theirs, moek_source_words_(s));
    const moek_wanted_ zero = moek_shape_codes_(s->name, "their_zero", &m->their_zero, 1);
    const int one = s->scales == MOEK_SCALES_ONE, turned = s->scales == MOEK_SCALES_GROUPS;
    moek_status status = moek_shape_check_(a, &a->w_tensor, &w);
    if (status == MOEK_OK && s->scales != MOEK_SCALES_BLOCKS)
        status = moek_shape_scales_(a, s->name, &m->their_scale, one ? 1 : m->scale_rows, one ? 1 : m->groups, turned);
    if (status == MOEK_OK && a->their_zero) status = moek_shape_check_(a, &a->zero_tensor, &zero);
    return status == MOEK_OK && a->their_global ? moek_shape_global_(a, s->name) : status;
}
static moek_status moek_import_begin_(const moek_import_args *a, moek_import_ *m)
{
    moek_status status = moek_import_sizes_(a, m);
    const moek_source_ *const s = m->source;
    int bits;
    if (status == MOEK_OK) status = moek_import_scales_(a, m);
    if (status != MOEK_OK) return status;
    bits = m->format->w_bits;
    if (moek_bad_pointer_(a->w, 1) || moek_bad_pointer_(a->their_w, moek_source_words_(s) ? 4 : 1))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "w or their_w is NULL, or words of it are not aligned to 4 bytes");
    if (!s->zeros && a->their_zero)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "their_zero: %s has no zero points", s->name);
    if (!m->format->zero && a->zero) MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "zero: %s has none", m->format->name);
    if ((uintptr_t)a->their_zero % 4)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "words of their_zero are not aligned to 4 bytes");
    if (s->global ? moek_bad_pointer_(a->global, 4) || moek_bad_pointer_(a->their_global, 4)
                  : a->global || a->their_global)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "global and their_global: %s, %s", s->name,
                     s->global ? "both, an f32 each" : "has no global scale: leave both NULL");
    m->ours = moek_codes_of_(a->w, MOEK_CODES_ROWS, bits, m->rows, m->columns, m->step);
    m->our_zero = moek_codes_of_(a->zero, MOEK_CODES_ROWS, bits, m->rows, m->groups, m->step);
    m->their_zero = moek_codes_of_(a->their_zero, s->zeros, bits, m->rows, m->groups, 1);
    status = moek_import_tensors_(a, m);
    return status == MOEK_OK ? moek_import_in_place_(a, m) : status;
}

/* ---- import, export ---------------------------------------------------------------------------------------------- */

static moek_status moek_import_codes_(int arch, const moek_import_args *a, const moek_import_ *m, int back,
                                      moek_stream stream)
{
    moek_recode_ r;
    memset(&r, 0, sizeof r);
    r.to = back ? m->theirs : m->ours;
    r.from = back ? m->ours : m->theirs;
    r.row_order = a->row_order; r.column_order = a->column_order;
    r.flip = (uint32_t)m->source->flip;
    r.counter = !back && moek_is_integer_(m->format) && !a->their_zero && !a->zero ? MOEK_COUNT_codes_lowest_ : -1;
    r.watch = m->format->w_bits == 8 ? 0x80 : 0;       /* s8, u4b8 */
    r.all = r.counter2 = -1;
    r.report = (uint64_t *)a->report;
    return moek_recode_run_(arch, &r, stream);
}
/* Zero points, also where one side has no array for them. */
static moek_status moek_import_zeros_(int arch, const moek_import_args *a, const moek_import_ *m, int back,
                                      moek_stream stream)
{
    const int less = m->source->less;
    moek_recode_ r;
    memset(&r, 0, sizeof r);
    r.to = back ? m->their_zero : m->our_zero;
    r.from = back ? m->our_zero : m->their_zero;
    r.row_order = a->row_order;
    r.counter = r.all = r.counter2 = -1;
    r.report = (uint64_t *)a->report;
    if (!r.to.at && !r.from.at) return MOEK_OK;
    if (!r.to.at) {                                    /* nothing is written: any plane will do */
        r.to = m->our_zero;
        r.to.at = NULL;
        r.counter = MOEK_COUNT_zeros_lost_; r.others = 1; r.watch = r.from.fill;
    } else if (!back && less && r.from.at) {
        r.counter = MOEK_COUNT_zeros_wrapped_;
    }
    if (!back && r.from.at) r.all = MOEK_COUNT_zeros_;
    if (!back && r.from.at && m->source->codes == MOEK_CODES_GPTQ) {
        r.counter2 = MOEK_COUNT_zeros_other_;
        r.watch2 = less ? r.from.fill + 1 : r.from.fill - 1;
    }
    r.add = !less ? 0 : back ? r.to.at ? ~0u : 0 : r.from.at ? 1 : 0;
    return moek_recode_run_(arch, &r, stream);
}
static moek_status moek_import_factors_(int arch, const moek_import_args *a, const moek_import_ *m, int back,
                                        moek_stream stream)
{
    moek_rescale_ r;
    memset(&r, 0, sizeof r);
    r.to = back ? m->their_scale : m->our_scale;
    r.from = back ? m->our_scale : m->their_scale;
    r.rows = r.all_rows = m->scale_rows; r.groups = r.all_groups = m->groups;
    if (r.to.tiles) {
        r.all_rows = (r.rows + MOEK_TILE_ROWS_ - 1) / MOEK_TILE_ROWS_ * MOEK_TILE_ROWS_;
        r.all_groups = r.to.tiles * MOEK_TILE_GROUPS_;
    }
    r.positive = !moek_is_integer_(m->format);
    r.shared = !back && a->scale_shared;
    r.row_order = m->format->w_scale.rows ? a->row_order : NULL;
    r.from_global = back ? a->global : a->their_global;
    r.to_global = back ? a->their_global : a->global;
    r.over = m->source->global == MOEK_GLOBAL_OVER;
    r.report = (uint64_t *)a->report;
    return moek_rescale_run_(arch, &r, stream);
}
/* ---- plain weights ----------------------------------------------------------------------------------------------- */

/* Powers of two: what is added to the bits of the largest |w|, so that its exponent is the next where the recipe wants
 * that.  top: bits of the mantissa of the largest element. */
static uint32_t moek_plain_up_(int recipe, uint32_t top)
{
    return recipe == MOEK_RECIPE_ROUND ? 0x200000 : recipe == MOEK_RECIPE_CEIL ? 0x7fffff - top : 0;
}
static moek_status moek_plain_recipe_(const moek_import_args *a, const moek_format *f, moek_plain_ *p)
{
    const int powers = f->w_scale.type == MOEK_SCALE_TYPE_E8M0, blocks = f->w_scale.rows > 1;
    const int integers = moek_is_integer_(f), e2m1 = f->w == MOEK_ELEMENT_E2M1;
    const int narrow = a->recipe == MOEK_RECIPE_NARROW;
    int recipe = a->recipe;
    if (recipe < 0 || recipe > MOEK_RECIPE_NARROW || (narrow && !integers) ||
        (recipe && !narrow && !powers && !(blocks && recipe == MOEK_RECIPE_CEIL)))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "recipe is %d: %s takes 0%s", recipe, f->name, integers
                     ? " or MOEK_RECIPE_NARROW" : powers ? ", MOEK_RECIPE_FLOOR, _ROUND or _CEIL"
                     : blocks ? " or MOEK_RECIPE_CEIL" : "");
    if (powers && !recipe) recipe = e2m1 ? MOEK_RECIPE_ROUND : MOEK_RECIPE_CEIL;
    p->largest = integers ? (float)(1 << (f->w_bits - 1)) - (narrow ? 1.0f : 0.5f) : e2m1 ? 6.0f : 448.0f;
    p->whole_largest = f->global_scale ? p->largest * 448.0f : p->largest;
    p->up = moek_plain_up_(recipe, e2m1 ? 0x400000 : 0x600000);
    p->less = powers || recipe == MOEK_RECIPE_CEIL ? (e2m1 ? 2 : 8) : 0;
    return MOEK_OK;
}
static moek_status moek_plain_tensor_(const moek_import_args *a, int dtype)
{
    moek_wanted_ w;
    w.source = moek_source_name(a->source); w.name = "their_w"; w.bytes = dtype == MOEK_DTYPE_F32 ? 4 : 2;
    w.size[0] = (uint64_t)a->rows; w.size[1] = (uint64_t)a->columns;
    return moek_shape_check_(a, &a->w_tensor, &w);
}
/* What both kinds of formats want: those whose scales are arrays, and blocks of files. */
static moek_status moek_plain_check_(const moek_import_args *a, const moek_import_ *m, const moek_scale_shape *shape)
{
    const moek_format *const f = m->format;
    const int dtype = moek_plain_dtype_(a->source), blocks = f->only_blocks;
    if (a->row_order || a->column_order || a->their_scale || a->their_zero || a->their_global || a->scale_dtype ||
        a->scale_order || a->scale_shared)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "row_order, column_order, their_scale, their_zero, their_global, scale_dtype, "
                     "scale_order, scale_shared: leave them 0, plain weights have none");
    if (!blocks && shape->rows != 1 && m->step != 1)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "row_step is %d: rows of %s that share a scale lie side by side", a->row_step,
                     f->name);
    if (moek_bad_pointer_(a->w, blocks ? 2 : 1) || moek_bad_pointer_(a->their_w, dtype == MOEK_DTYPE_F32 ? 4 : 2) ||
        a->w == a->their_w || (!blocks && moek_bad_pointer_(a->scale, moek_factors_bytes_(shape->type))))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "w, their_w or scale is %s, or not aligned as its elements",
                     a->w == a->their_w ? "another of them" : "NULL");
    if (blocks && a->scale)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "scale: %s has its scales in its blocks: leave it NULL", f->name);
    if (f->global_scale ? moek_bad_pointer_(a->global, 4) : a->global != NULL)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "global: %s has %s", f->name,
                     f->global_scale ? "one, an f32" : "none: leave it NULL");
    if (!f->zero && a->zero) MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "zero: %s has none", f->name);
    return moek_plain_tensor_(a, dtype);
}
static moek_status moek_plain_begin_(const moek_import_args *a, moek_import_ *m, moek_plain_ *p)
{
    const moek_format *const f = m->format;
    moek_scale_shape shape;
    moek_status status = moek_import_shape_(a, m);
    if (status == MOEK_OK) status = moek_plain_recipe_(a, f, p);
    if (status != MOEK_OK) return status;
    shape = moek_weight_scale(f, a->block);
    status = moek_plain_check_(a, m, &shape);
    if (status != MOEK_OK) return status;
    p->from = (const unsigned char *)a->their_w; p->dtype = moek_plain_dtype_(a->source);
    p->element = f->w; p->bits = f->w_bits;
    p->rows = m->rows; p->columns = m->columns;
    p->group_rows = shape.rows ? (size_t)shape.rows : 1;
    p->group_columns = shape.columns ? (size_t)shape.columns : m->columns;
    p->w = (unsigned char *)a->w; p->pitch = moek_element_bytes(f->w, m->columns) * m->step;
    m->our_scale.at = (unsigned char *)a->scale; m->our_scale.type = shape.type;
    if (shape.type == MOEK_SCALE_TYPE_T) m->our_scale.dtype = m->dtype;
    m->our_scale.group = moek_factors_bytes_(shape.type);
    m->our_scale.row = m->our_scale.group * m->groups * m->step;
    if (shape.rows) p->scale = m->our_scale;
    p->whole = f->global_scale ? a->global : shape.rows ? NULL : (float *)a->scale;
    m->our_zero = moek_codes_of_(a->zero, MOEK_CODES_ROWS, p->bits, m->rows, m->groups, m->step);
    return MOEK_OK;
}
static moek_status moek_plain_begin_blocks_(const moek_import_args *a, moek_import_ *m, moek_plain_blocks_ *p)
{
    const moek_format *const f = m->format;
    const moek_block *const block = moek_plain_block_of_(f);
    moek_status status;
    if (!block)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "quant is %s: plain weights become q4_0, q4_1, q5_0, q5_1 and q8_0; blocks of "
                     "other types are found by a search, which llama-quantize does", f->name);
    if (a->recipe) MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "recipe is %d: %s takes 0", a->recipe, f->name);
    status = moek_import_shape_(a, m);
    if (status == MOEK_OK) status = moek_plain_check_(a, m, NULL);
    if (status != MOEK_OK) return status;
    p->from = (const unsigned char *)a->their_w; p->dtype = moek_plain_dtype_(a->source);
    p->bits = f->w_bits; p->middle = moek_plain_middle_(f->w);
    p->rows = m->rows; p->across = m->columns / MOEK_QUANTIZED_;
    p->w = (unsigned char *)a->w; p->pitch = p->across * (size_t)block->bytes * m->step;
    p->block = *block;
    m->scale_rows = m->rows; m->groups = p->across;
    m->our_scale.at = p->w + block->scale.plane[0].at;
    m->our_scale.type = MOEK_SCALE_TYPE_T; m->our_scale.dtype = MOEK_DTYPE_FP16;
    m->our_scale.group = (size_t)block->bytes; m->our_scale.row = p->pitch;
    return MOEK_OK;
}
/* What the report says of scales, they are there already. */
static moek_status moek_plain_report_(int arch, const moek_import_args *a, const moek_import_ *m, moek_stream stream)
{
    moek_rescale_ r;
    memset(&r, 0, sizeof r);
    r.to = r.from = m->our_scale;
    r.rows = r.all_rows = m->scale_rows; r.groups = r.all_groups = m->groups;
    r.positive = !m->format->only_blocks;              /* (d of q4_0 has the sign of the largest) */
    r.from_global = r.to_global = m->format->global_scale ? a->global : NULL;
    r.report = (uint64_t *)a->report;
    return r.report ? moek_rescale_run_(arch, &r, stream) : MOEK_OK;
}
static moek_status moek_import_plain_(int arch, const moek_import_args *a, moek_import_ *m, int back,
                                      moek_stream stream)
{
    const moek_format *const f = m->format = moek_format_of(a->quant);
    moek_plain_ p;
    moek_plain_blocks_ blocks;
    moek_recode_ zeros;
    moek_status status;
    if (back) MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "source is %s: quantized weights do not become what they were",
                           moek_source_name(a->source));
    if (!f || (!f->w_scale.type && !f->only_blocks))
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "quant is %d, %s: what plain weights become, a format with scales", a->quant,
                     f ? f->name : "no format");
    memset(&p, 0, sizeof p);
    memset(&blocks, 0, sizeof blocks);
    memset(&zeros, 0, sizeof zeros);
    status = f->only_blocks ? moek_plain_begin_blocks_(a, m, &blocks) : moek_plain_begin_(a, m, &p);
    if (status != MOEK_OK) return status;
    status = f->only_blocks ? moek_plain_blocks_run_(arch, &blocks, stream) : moek_plain_run_(arch, &p, stream);
    zeros.to = zeros.from = m->our_zero;
    zeros.from.at = NULL;
    zeros.counter = zeros.all = zeros.counter2 = -1;
    if (status == MOEK_OK && a->zero) status = moek_recode_run_(arch, &zeros, stream);
    if (status == MOEK_OK) status = moek_plain_report_(arch, a, m, stream);
    if (status != MOEK_OK) MOEK_REFUSE_(a, status, "%s: a launch failed", moek_source_name(a->source));
    return MOEK_OK;
}

static moek_status moek_import_run_(int arch, const moek_import_args *a, int back, moek_stream stream)
{
    moek_import_ m;
    moek_status status;
    if (!a) return MOEK_E_ARGUMENT;
    memset(&m, 0, sizeof m);
    if (arch && MOEK_HAVE_CUDA_ == 0)
        MOEK_REFUSE_(a, MOEK_E_NO_KERNEL, "arch is %d: this implementation was compiled without CUDA; arch 0 is the "
                     "host", arch);
    if (a->parallel.pool && !a->parallel.run)
        MOEK_REFUSE_(a, MOEK_E_ARGUMENT, "parallel.pool is given, and parallel.run is NULL: set both, or neither for "
                     "the threads of OpenMP");
    if (!arch) stream = moek_stream_of_(&a->parallel);
    if (moek_plain_dtype_(a->source)) return moek_import_plain_(arch, a, &m, back, stream);
    status = moek_import_begin_(a, &m);
    if (status != MOEK_OK) return status;
    status = moek_import_codes_(arch, a, &m, back, stream);
    if (status == MOEK_OK) status = moek_import_zeros_(arch, a, &m, back, stream);
    if (status == MOEK_OK) status = moek_import_factors_(arch, a, &m, back, stream);
    if (status != MOEK_OK) MOEK_REFUSE_(a, status, "%s: a launch failed", m.source->name);
    return MOEK_OK;
}
moek_status moek_import(int arch, const moek_import_args *args, moek_stream stream)
{
    return moek_import_run_(arch, args, 0, stream);
}
moek_status moek_export(int arch, const moek_import_args *args, moek_stream stream)
{
    return moek_import_run_(arch, args, 1, stream);
}

/* ---- where a matrix belongs -------------------------------------------------------------------------------------- */

/* Scales that rows share: the first of the matrix, counted in rows of scales.  -1: some of its scales are for rows of
 * another one, too; if there is one for a tensor, and it is one for both, that may be. */
static int64_t moek_place_shared_(const moek_config *c, const moek_format *f, int matrix, int expert, int one)
{
    const int of = f->w_scale.rows, gated = moek_act_gated_(c->act), layout = moek_up_layout_(c);
    const int gate = matrix == MOEK_MATRIX_GATE, both = matrix == MOEK_MATRIX_GATE_UP;
    const int apart = gated && layout == MOEK_UP_SEPARATE, halves = gated && !apart;
    const int second = halves && !both && gate != (layout != MOEK_UP_SWAPPED);
    const int64_t blocks = of ? (c->inter + of - 1) / of : 1;
    const int64_t up = !halves ? blocks : !of ? 1 : c->up_scales ? 2 * blocks : (2 * (int64_t)c->inter + of - 1) / of;
    if (matrix == MOEK_MATRIX_DOWN) return (int64_t)expert * (of ? (c->hidden + of - 1) / of : 1);
    if (both) return c->up_scales ? -1 : expert * up;
    if (halves && !of) return one ? expert : -1;
    if (halves && (layout == MOEK_UP_INTERLEAVED || (!c->up_scales && c->inter % of))) return -1;
    return expert * up + (second ? blocks : 0);
}
/* Is there such a layer, and this matrix in it? */
static moek_status moek_place_check_(const moek_config *c, int matrix, int expert, moek_text_ *why)
{
    const int gate = matrix == MOEK_MATRIX_GATE, both = matrix == MOEK_MATRIX_GATE_UP;
    const int64_t experts = c->local_experts ? c->local_experts : c->physical_experts ? c->physical_experts
                          : (int64_t)c->experts + c->shared_slots;
    moek_status status = moek_check_kinds_(c, why);
    if (status != MOEK_OK) return status;
    if (c->hidden < 1 || c->inter < 1 || c->hidden > MOEK_MAX_COLUMNS_ || c->inter > MOEK_MAX_COLUMNS_)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.hidden is %d and inter %d: 1 to %d", c->hidden, c->inter,
                   MOEK_MAX_COLUMNS_);
    if ((status = moek_check_block_(c, why)) != MOEK_OK) return status;
    if ((status = moek_check_granule_(c, why)) != MOEK_OK) return status;
    if (experts > MOEK_MAX_EXPERTS_ || expert < 0 || expert >= experts)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "expert is %d: this rank has %lld (config.local_experts, or experts and "
                   "shared_slots), at most %d", expert, (long long)experts, MOEK_MAX_EXPERTS_);
    if (matrix < MOEK_MATRIX_GATE || matrix > MOEK_MATRIX_GATE_UP || ((gate || both) && !moek_act_gated_(c->act)))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "matrix %d of expert %d: %s", matrix, expert,
                   gate || both ? "the activation has no gate; its matrix is MOEK_MATRIX_UP" : "there is none");
    if (c->inter_offset)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d: a shard that begins inside a group of scales "
                   "is imported by rows and columns that you set yourself", c->inter_offset);
    return MOEK_OK;
}
/* Of the arrays of weights those that have the matrix. */
typedef struct moek_place_arrays_ { const void *w, *scale, *zero; const float *global; } moek_place_arrays_;
static moek_place_arrays_ moek_place_arrays_of_(const moek_weights *w, int down, int gate_apart)
{
    moek_place_arrays_ a;
    a.w = down ? w->w_down : gate_apart ? w->w_gate : w->w_up;
    a.scale = down ? w->w_down_scale : gate_apart ? w->w_gate_scale : w->w_up_scale;
    a.zero = down ? w->w_down_zero : gate_apart ? w->w_gate_zero : w->w_up_zero;
    a.global = down ? w->w_down_global_scale : gate_apart ? w->w_gate_global_scale : w->w_up_global_scale;
    return a;
}
moek_status moek_import_place(const moek_config *config, const moek_weights *weights, int matrix, int expert,
                              moek_import_args *args)
{
    const int down = matrix == MOEK_MATRIX_DOWN, both = matrix == MOEK_MATRIX_GATE_UP;
    const int gate = matrix == MOEK_MATRIX_GATE;
    const moek_source_ *source;
    const moek_format *f;
    moek_scale_shape shape;
    moek_place_arrays_ at;
    moek_text_ why;
    moek_status status;
    size_t row, w, scale, zero, expert_rows, second;
    int64_t shared = 0;
    int halves, apart, interleaved, layout, one;
    if (!args) return MOEK_E_ARGUMENT;
    if (!config || !weights) MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "config or weights is NULL");
    why = moek_text_in_(args->why, args->why_size);
    status = moek_place_check_(config, matrix, expert, &why);
    if (status != MOEK_OK) return status;
    f = moek_format_at_(config, down ? MOEK_OP_DOWN : MOEK_OP_UP);
    if (!f->only_blocks && moek_in_blocks_(f, config->weight_layout))
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_BLOCKS, and of %s arrays of codes and "
                   "scales are imported: set weight_layout 0, or bind the blocks of the file", f->name);
    source = moek_source_of_(args->source);
    one = source && source->scales == MOEK_SCALES_ONE;
    layout = moek_up_layout_(config);
    apart = moek_act_gated_(config->act) && layout == MOEK_UP_SEPARATE;
    halves = moek_act_gated_(config->act) && !apart;
    interleaved = halves && layout == MOEK_UP_INTERLEAVED;
    second = halves && !both && !down && gate != (layout != MOEK_UP_SWAPPED);  /* of the two */
    if (both && (apart || f->global_scale))
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "gate and up have %s each: import one after the other",
                   apart ? "an array" : "a global scale");
    if (f->w_scale.type && f->w_scale.rows != 1) shared = moek_place_shared_(config, f, matrix, expert, one);
    if (shared < 0)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "matrix %d: scales of %s are for rows of gate and up: %s", matrix, f->name,
                   both ? "and up_scales keeps them apart: one after the other"
                        : "MOEK_MATRIX_GATE_UP has both, as up_layout has them; or give each an array");
    at = moek_place_arrays_of_(weights, down, apart && gate);
    if (!at.w || (f->w_scale.type && !at.scale) || (f->global_scale && !at.global))
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "an array of weights that %s has is NULL", f->name);
    args->rows = down ? config->hidden : config->inter * (both ? 2 : 1);
    args->columns = down ? config->inter : config->hidden;
    args->block = f->blocks ? config->block : 0; args->dtype = config->dtype; args->quant = f->number;
    args->row_step = interleaved && !down && !both ? 2 : 1;
    args->scale_shared = one && halves && f->w_scale.type && !f->w_scale.rows && matrix == MOEK_MATRIX_UP;
    shape = moek_weight_scale(f, args->block);
    w = moek_weight_bytes(f, config->weight_layout, (size_t)args->columns);
    scale = moek_scale_bytes(&shape, 1, (size_t)args->columns);
    zero = moek_element_bytes(f->w, moek_scale_count(&shape, 1, (size_t)args->columns));
    expert_rows = down ? (size_t)args->rows : (size_t)config->inter * (halves ? 2 : 1);
    row = (size_t)expert * expert_rows + (!second ? 0 : interleaved ? 1 : (size_t)args->rows);
    args->w = (char *)at.w + row * w;
    args->scale = at.scale ? (char *)at.scale + (f->w_scale.rows == 1 ? row : (size_t)shared) * scale : NULL;
    args->zero = at.zero ? (char *)at.zero + row * zero : NULL;
    args->global = !f->global_scale ? NULL :
                   (float *)at.global + (down ? 1u : halves ? 2u : 1u) * (size_t)expert + second;
    return MOEK_OK;
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

moek_status moek_import_order(const int32_t *g_idx, int columns, int block, int32_t *order, int *moved, char *why,
                              size_t why_size)
{
    moek_text_ text = moek_text_in_(why, why_size);
    const int of = block > 0 && block < columns ? block : columns;
    const int groups = columns > 0 ? (columns - 1) / of + 1 : 0;
    int k, g, first = -1, n = 0;
    if (!g_idx || columns < 1 || block < 0)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "g_idx is NULL, or columns are %d and block %d", columns, block);
    for (k = 0; k < columns && first < 0; k++) if (g_idx[k] != k / of) first = k;
    if (moved) *moved = first >= 0;
    if (first >= 0 && !order)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "g_idx[%d] is %d, where columns in order would have %d: act-order of gate "
                   "and up needs x in another order for each expert, which there is not; quantize with desc_act = "
                   "false, or static groups", first, (int)g_idx[first], first / of);
    if (!order) return MOEK_OK;
    for (g = 0; g < groups; g++) {
        const int begin = n;
        for (k = 0; k < columns; k++) if (g_idx[k] == g) order[n++] = k;
        if (n - begin != (g < groups - 1 ? of : columns - g * of))
            MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "group %d of g_idx has %d columns, not %d: such groups have no order in "
                       "which they lie side by side", g, n - begin, g < groups - 1 ? of : columns - g * of);
    }
    return MOEK_OK;
}
moek_status moek_import_inverse(const int32_t *order, int n, int32_t *inverse)
{
    int i;
    if (!order || !inverse || n < 1 || order == inverse) return MOEK_E_ARGUMENT;
    for (i = 0; i < n; i++) inverse[i] = -1;
    for (i = 0; i < n; i++) {
        if (order[i] < 0 || order[i] >= n || inverse[order[i]] >= 0) return MOEK_E_ARGUMENT;
        inverse[order[i]] = i;
    }
    return MOEK_OK;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

moek_status moek_import_verdict(const moek_import_report *r, char *why, size_t why_size)
{
    moek_text_ text = moek_text_in_(why, why_size);
    if (!r) return MOEK_E_ARGUMENT;
#define MOEK_MUST_NOT_(count, sentence) \
    if (r->count) MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "%llu of %llu " sentence, (unsigned long long)r->count, \
                             (unsigned long long)(r->count > r->scales ? r->count : r->scales))
    MOEK_MUST_NOT_(scales_nan, "scales are NaN or Inf, and so would be their groups");
    MOEK_MUST_NOT_(signs_bad, "scales have their sign set: damaged, or of another type than was said");
    MOEK_MUST_NOT_(scales_lost, "scales became 0 or Inf in T: take the other T (config.dtype)");
    MOEK_MUST_NOT_(scales_separate, "scales of up are not gate's, and the format has one for both: take "
                   "up_layout MOEK_UP_SEPARATE, or quant fp8c, which has a scale a row");
#undef MOEK_MUST_NOT_
    if (r->codes_outside)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "%llu codes are outside -8 .. 7: weights of 8 bits, MOEK_FROM_INT8_BYTES?",
                   (unsigned long long)r->codes_outside);
    if (r->zeros_other && r->zeros_other == r->zeros)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "all %llu zero points are one off the middle: symmetric weights of GPTQ's "
                   "other version, MOEK_FROM_GPTQ_* for checkpoint_format gptq, MOEK_FROM_GPTQ_V2_* for gptq_v2",
                   (unsigned long long)r->zeros);
    if (r->zeros_lost)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "%llu of %llu zero points are not the middle of the codes, and there is no "
                   "array for them: int4_a16 takes weights.w_up_zero and w_down_zero, others none",
                   (unsigned long long)r->zeros_lost, (unsigned long long)r->zeros);
    if (r->globals_bad)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "%llu global scales are 0, negative, NaN or Inf",
                   (unsigned long long)r->globals_bad);
    if (r->orders_bad)
        MOEK_FAIL_(&text, MOEK_E_ARGUMENT, "row_order or column_order leads outside the matrix in %llu words or rows",
                   (unsigned long long)r->orders_bad);
    return MOEK_OK;
}
int moek_import_exponents(const moek_import_report *r, int *lowest, int *highest)
{
    if (!r || !r->highest_ || !r->lowest_) return 0;
    if (lowest) *lowest = MOEK_EXPONENT_ - (int)r->lowest_;
    if (highest) *highest = (int)r->highest_ - MOEK_EXPONENT_;
    return 1;
}
size_t moek_import_describe(const moek_import_report *r, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size);
    int low, high;
    const char *comma = "";
    if (!r) return 0;
#define MOEK_SAY_COUNT_(name, what) \
    if (r->name) { moek_append_(&t, "%s%llu %s", comma, (unsigned long long)r->name, what); comma = ", "; }
    MOEK_EACH_IMPORT_COUNT(MOEK_SAY_COUNT_)
#undef MOEK_SAY_COUNT_
    if (moek_import_exponents(r, &low, &high)) moek_append_(&t, "%sscales of 2^%d to 2^%d", comma, low, high);
    return t.length;
}
#endif
