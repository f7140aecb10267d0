/* moek/import/scales.h -- scales: from one type and order to another, and what is counted of them.  For host and
 * device. */
#ifndef MOEK_IMPORT_SCALES_H
#define MOEK_IMPORT_SCALES_H
#include "../kernel/numbers.h"
#include "api.h"

enum {                                                 /* [rows][groups], [groups][rows], one, in GGUF's blocks */
    MOEK_SCALES_ROWS, MOEK_SCALES_GROUPS, MOEK_SCALES_ONE, MOEK_SCALES_BLOCKS
};
enum { MOEK_GLOBAL_NONE, MOEK_GLOBAL_TIMES, MOEK_GLOBAL_OVER };

/* Counters of the report by number. */
#define MOEK_INDEX_(name, text) MOEK_COUNT_##name##_,
enum { MOEK_EACH_IMPORT_COUNT(MOEK_INDEX_) MOEK_COUNTS_, MOEK_COUNT_highest_ = MOEK_COUNTS_, MOEK_COUNT_lowest_,
       MOEK_TALLY_ };
#undef MOEK_INDEX_
enum { MOEK_EXPONENT_ = 512 };                         /* what a report adds to exponents */
enum { MOEK_BINADES_ = 12, MOEK_BINADES_E4M3_ = 11 };  /* what a fold to e4m3 spans: of powers of 2, of e4m3 */

/* type, dtype: MOEK_SCALE_TYPE_*, and T.  row, group: bytes to the next; tiles > 0: bytes in order 128X4, with so many
 * blocks side by side.  per > 1: so many lie side by side, a byte each, and `group` is from these to the next. */
typedef struct moek_factors_ { unsigned char *at; int type, dtype; size_t row, group, tiles, per; } moek_factors_;
enum { MOEK_TILE_ROWS_ = 128, MOEK_TILE_GROUPS_ = 4 };
typedef struct moek_rescale_ {
    moek_factors_ to, from;
    size_t rows, groups;
    size_t all_rows, all_groups;                       /* of to, with those that fill its blocks up: they become 0 */
    int positive, shared;                              /* the sign is bad; to is there: is it the same? */
    const int32_t *row_order;
    const float *from_global;                          /* or NULL */
    float *to_global;
    int over;                                          /* to_global = 1 / from_global */
    uint64_t *report;                                  /* or NULL */
} moek_rescale_;

MOEK_FN size_t moek_factors_bytes_(int type)
{
    return type == MOEK_SCALE_TYPE_F32 ? 4 : type == MOEK_SCALE_TYPE_T ? 2 : 1;
}
MOEK_FN size_t moek_factors_place_(const moek_factors_ *s, size_t row, size_t group)
{
    if (s->per > 1) return row * s->row + group / s->per * s->group + group % s->per;
    if (!s->tiles) return row * s->row + group * s->group;
    return (row / 128 * s->tiles + group / 4) * 512 + row % 32 * 16 + row / 32 % 4 * 4 + group % 4;
}
MOEK_FN uint32_t moek_factors_load_(const moek_factors_ *s, size_t row, size_t group)
{
    const unsigned char *const at = s->at + moek_factors_place_(s, row, group);
    if (s->type == MOEK_SCALE_TYPE_F32) return *(const uint32_t *)at;
    return s->type == MOEK_SCALE_TYPE_T ? *(const uint16_t *)at : *at;
}
MOEK_FN void moek_factors_store_(const moek_factors_ *s, size_t row, size_t group, uint32_t bits)
{
    unsigned char *const at = s->at + moek_factors_place_(s, row, group);
    if (s->type == MOEK_SCALE_TYPE_F32) *(uint32_t *)at = bits;
    else if (s->type == MOEK_SCALE_TYPE_T) *(uint16_t *)at = (uint16_t)bits;
    else *at = (unsigned char)bits;
}
MOEK_FN float moek_factors_value_(const moek_factors_ *s, uint32_t bits)
{
    if (s->type == MOEK_SCALE_TYPE_F32) return moek_float_(bits);
    if (s->type == MOEK_SCALE_TYPE_T) return moek_from_t_((uint16_t)bits, s->dtype);
    return s->type == MOEK_SCALE_TYPE_E8M0 ? moek_from_e8m0_((uint8_t)bits) : moek_from_e4m3_((uint8_t)bits);
}
/* floor(log2(v)), v neither 0 nor Inf nor NaN. */
MOEK_FN int moek_factors_exponent_(float v)
{
    const uint32_t u = moek_bits_(v) & 0x7fffffff;
    int e = (int)(u >> 23) - 127;
    uint32_t m = u;
    if (u >> 23) return e;
    for (e = -126; !(m & 0x800000); e--) m <<= 1;
    return e;
}

MOEK_FN void moek_tally_max_(uint64_t *n, int exponent)
{
    const uint64_t high = (uint64_t)(MOEK_EXPONENT_ + exponent), low = (uint64_t)(MOEK_EXPONENT_ - exponent);
    if (n[MOEK_COUNT_highest_] < high) n[MOEK_COUNT_highest_] = high;
    if (n[MOEK_COUNT_lowest_] < low) n[MOEK_COUNT_lowest_] = low;
}
MOEK_FN int moek_is_finite_(float v) { return (moek_bits_(v) & 0x7f800000) != 0x7f800000; }

/* What a fold sees of a scale of a byte: its e8m0 byte + 1, or its exponent + 128; 0: it is NaN, or 0. */
MOEK_FN int moek_rescale_power_(int type, uint32_t bits, float v)
{
    if (type == MOEK_SCALE_TYPE_E8M0) return bits == 255 ? 0 : (int)bits + 1;
    return type == MOEK_SCALE_TYPE_E4M3 && v > 0 ? moek_factors_exponent_(v) + 128 : 0;
}
/* One scale.  Returns moek_rescale_power_. */
MOEK_FN int moek_rescale_one_(const moek_rescale_ *a, size_t row, size_t from_row, size_t group, uint64_t *n)
{
    const uint32_t bits = moek_factors_load_(&a->from, from_row, group);
    const float v = moek_factors_value_(&a->from, bits);
    uint32_t to = bits;
    if (a->to.type != a->from.type || a->to.dtype != a->from.dtype) {
        float w;
        to = a->to.type == MOEK_SCALE_TYPE_T ? moek_to_t_(v, a->to.dtype) : moek_bits_(v);
        if (a->to.type == MOEK_SCALE_TYPE_E8M0) to = to >> 23 & 0xff;  /* (back: 2^-127 has the exponent 0) */
        w = moek_factors_value_(&a->to, to);
        n[MOEK_COUNT_scales_rounded_] += moek_is_finite_(v) && w != v;
        n[MOEK_COUNT_scales_lost_] += moek_is_finite_(v) && v != 0 && (w == 0 || !moek_is_finite_(w));
    }
    if (!a->shared) moek_factors_store_(&a->to, row, group, to);
    else n[MOEK_COUNT_scales_separate_] += moek_factors_load_(&a->to, row, group) != to;
    n[MOEK_COUNT_scales_]++;
    n[MOEK_COUNT_scales_zero_] += v == 0;
    n[MOEK_COUNT_scales_nan_] += !moek_is_finite_(v);
    if (a->from.type != MOEK_SCALE_TYPE_E8M0) {
        const uint32_t sign = bits >> (8 * moek_factors_bytes_(a->from.type) - 1);
        n[MOEK_COUNT_scales_negative_] += sign;
        n[MOEK_COUNT_signs_bad_] += a->positive ? sign : 0;
    }
    if (v != 0 && moek_is_finite_(v)) moek_tally_max_(n, moek_factors_exponent_(v));
    return moek_rescale_power_(a->from.type, bits, v);
}
/* The scales of a row that are number `first` and each `step`th from there; returns the largest moek_rescale_power_. */
MOEK_FN int moek_rescale_row_(const moek_rescale_ *a, size_t row, size_t first, size_t step, uint64_t *n)
{
    const size_t from = row < a->rows && a->row_order ? (size_t)(uint32_t)a->row_order[row] : row;
    size_t g;
    int most = 0;
    for (g = row < a->rows ? a->groups + first : first; g < a->all_groups; g += step)
        moek_factors_store_(&a->to, row, g, 0);
    if (from >= a->rows) {
        n[MOEK_COUNT_orders_bad_] += row < a->rows && first == 0;
        return 0;
    }
    for (g = first; g < a->groups; g += step) {
        const int byte = moek_rescale_one_(a, row, from, g, n);
        if (byte > most) most = byte;
    }
    return most;
}
/* Then, with the largest of the whole row: groups that a fold to e4m3 would round again.  Reads what was written. */
MOEK_FN void moek_rescale_fold_(const moek_rescale_ *a, size_t row, size_t first, size_t step, int most, uint64_t *n)
{
    const int type = a->to.type, least = most - (type == MOEK_SCALE_TYPE_E8M0 ? MOEK_BINADES_ : MOEK_BINADES_E4M3_);
    size_t g;
    if (!most) return;
    for (g = first; g < a->groups; g += step) {
        const uint32_t bits = moek_factors_load_(&a->to, row, g);
        const int power = moek_rescale_power_(type, bits, moek_factors_value_(&a->to, bits));
        n[MOEK_COUNT_groups_beyond_] += power && power <= least;
    }
}
MOEK_FN void moek_rescale_global_(const moek_rescale_ *a, uint64_t *n)
{
    const float g = *a->from_global, to = a->over ? 1.0f / g : g;
    n[MOEK_COUNT_globals_bad_] += !(g > 0) || !moek_is_finite_(g) || !(to > 0) || !moek_is_finite_(to);
    n[MOEK_COUNT_globals_rounded_] += a->over && 1.0f / to != g;
    *a->to_global = to;
}
#endif
