/* moek/kernel/digits.h -- up and down of few rows an expert by products of integers, for weights of 4 bits and s8.
 *
 * 32 columns of x have a power of two s in common.  Each becomes q = x / s rounded, 16 bits, and a third digit
 * t = 256 (x / s - q) rounded, 8 bits: what is left is below the rounding of f32 sums.  Rows of bf16 have few t that
 * are not 0, so these are a list; rows of fp16 have many, which go through the loop as q does (`dense`).
 *
 * A lane is 4 bytes of a row of w, 4 or 8 columns; 16 lanes are a chunk, 16 chunks a run.  A lane's sum of code * q is
 * an exact integer; (float)sum * s is exact, too, and FMA with the scale of w adds that to the lane's f32.  The list
 * has 8 lanes of its own.  After a run, 16 lanes are added to 8, the list's to these, and all are added up.  So
 * plain C, which is the measure, and each set of instructions (avx2.h, ..) give the same bits, and so does any number
 * of rows.  A row of x with a NaN or Inf, which no integer has, is multiplied in floats.
 *
 * Rows of blocks of GGUF files: codes go from the planes of a block to registers (blocks_body.h), t counts throughout,
 * and scales of groups come times s.  Minimums multiply sums of x.  Where x is s8 with scales of 32 columns, the code
 * is the one digit, and s the scale.                                                                                 */
#include "cpu.h"
#include "isa.h"
#include "../want.h"
#include "../../../generated/moek_blocks.h"
#ifndef MOEK_DIGITS_H
#define MOEK_DIGITS_H

enum {
    MOEK_CHUNK = 64,                                   /* bytes of codes */
    MOEK_RUN = 16,                                     /* chunks */
    MOEK_X_RUNS = 4,                                   /* what a task has room for: rows of x, times runs of each */
    MOEK_THIRDS = 4,                                   /* lists of 8 that a run may have; more thirds: dense */
    MOEK_RUN_GROUPS = MOEK_CHUNK * MOEK_RUN / 16,      /* of a run of s8 in blocks, the most: 16 columns a scale */
    MOEK_BLOCK_AHEAD = 12288                           /* bytes of blocks that are asked for early */
};
/* x of a chunk.  Codes of 4 bits: a digit has 64 even columns, then 64 odd ones.  s8: 64 columns as they come; or,
 * where a set takes `words`, q in digit[0] and t in digit[1], as 32 words of even columns and 32 of odd ones.  Blocks:
 * 64 columns as they come, or such words (moek_block_set_). */
typedef struct moek_x_chunk_ {
    int8_t digit[3][2 * MOEK_CHUNK];                   /* low and high of q, t; low is the remainder, so high fits */
    int32_t less[2][MOEK_LANES];                       /* of q and t: what an offset of the codes adds */
    float s[MOEK_LANES], by[MOEK_LANES];               /* s times the unit of codes; scales of x that act here, or 1 */
} moek_x_chunk_;
typedef struct moek_x_list_ {
    int8_t digit[2][32];                               /* t of 8 lanes: as above, 4 bytes each */
    int32_t at[8], group[8], less[8];                  /* the lane of the run; which scale of w; as above */
    float s[8], by[8];
} moek_x_list_;
typedef struct moek_x_run_ {
    moek_x_chunk_ chunk[MOEK_RUN];
    float group[2 * MOEK_RUN_GROUPS];                  /* of blocks, each 256 columns: of groups the unit of 256 q + t,
                                                          then sums of x, for minimums; 0 behind all of k */
    moek_x_list_ list[MOEK_THIRDS];
    int thirds, dense;                                 /* entries of the lists; 1: t counts in all chunks */
    float back;                                        /* of blocks: `group` is divided by back, which sums get */
} MOEK_LINE_ALIGNED_ moek_x_run_;
/* Some columns of a row of blocks, from column `begin` of a block on (0 or 128), to codes of s8: multiples of 32, in a
 * block of 256 of 128.  All scales of these blocks, as f32, and minimums with their sign. */
typedef void moek_unpack_(int8_t *codes, float *scale, float *min, const uint8_t *blocks, int begin, int columns);
/* What a set of instructions has for a kind of blocks. */
struct moek_w_run_;
typedef struct moek_block_set_ {
    moek_unpack_ *unpack;
    void (*dots)(const struct moek_w_run_ *w, const moek_x_run_ *const *x, int rows);
    /* Codes are so much more than what they mean; x is words; 1: less[] is where sums of q and of t begin, and not what
     * is taken off the sum of 256 q + t.  (x in s8: less[0] is where sums begin, and `starts` is 0.) */
    int offset, words, starts;
} moek_block_set_;
/* The moek_block_set_ `to` of a set of instructions: blocks of `name`, which the set `of` unpacks, by the loops of
 * blocks_body.h.  Behind `starts`: bytes of 256 columns, and the kind of the loops. */
#define MOEK_BLOCK_ROWS_(to, set, SET, name, of, offset, words, starts, ...) \
    MOEK_##SET##_FN void moek_dots_##to##_##set##_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows) \
    { \
        moek_block_dots_##set##_(w, x, rows, moek_codes_##name##_##set##_, moek_factors_##name##_##set##_, \
                                 __VA_ARGS__); \
    } \
    static MOEK_UNUSED const moek_block_set_ moek_blocks_##to##_##set##_ = { \
        moek_unpack_##name##_##of##_, moek_dots_##to##_##set##_, offset, words, starts \
    };
/* Runs of rows of w, and the sums to which theirs are added: of each row of w one for each row of x. */
typedef struct moek_w_run_ {
    int element, rows, runs, chunks;                   /* chunks: of the last run */
    const uint8_t *codes, *zero;                       /* zero: of groups, the first in the low bits; or NULL */
    const char *scale;                                 /* of groups, or NULL: none acts here */
    size_t codes_step, zero_step, scale_step, sum_step;/* from a row to the next: bytes; sums: rows */
    int scale_type, dtype, scales, others;             /* scales: so many are there in all runs; behind them 0.
                                                          others: the first ones are another shard's, maybe NaN: 0 */
    int run_scales, scale_bytes;                       /* of a run; of a scale */
    int columns;                                       /* of a scale; 0: all, or none acts here */
    int scaled;                                        /* scales of x act here, too */
    double (*sum)[MOEK_X_RUNS];
    moek_unpack_ *unpack;                              /* codes are blocks that this unpacks; NULL: they are not */
    int run_bytes, sign;                               /* of a run, of codes; 0: no minimums */
    int far, bytes;                                    /* MOEK_BLOCK_FAR, MOEK_BLOCK_BYTES */
} moek_w_run_;
/* One run of one row. */
typedef struct moek_w_one_ { const uint8_t *codes, *zero; const char *scale; int chunks, scales, others; } moek_w_one_;
enum { MOEK_RUN_SCALES = 2 * MOEK_CHUNK * MOEK_RUN / 16 + 8 };         /* the most, and 8 that may be read */

/* What a set of instructions has: x to digits of a chunk, of f32 (returns lanes with a t, a bit each; *top: as
 * moek_top_; of s8 with `zeros` bytes, and `less` has their sums); T to f32; x of s8; sums of a run, of rows of x; the
 * same of s8 on both sides, exactly. */
typedef struct moek_set_ {
    uint32_t (*encode)(moek_x_chunk_ *to, const float *x, int element, int zeros, uint32_t *top);
    void (*decode)(float *to, const uint16_t *from, int n, int dtype);
    void (*place)(moek_x_chunk_ *to, const int8_t *x);                 /* s8 */
    void (*dots)(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows);
    void (*sums)(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows);
    int words;
} moek_set_;

/* a * b + c, rounded once, where the processor has no such instruction: the product is exact in double, and the sum is
 * right unless it lies in the middle between two f32, or is subnormal.  There what the sum lost decides: a last bit of
 * 1 says that it is not in the middle.  (Some fmaf, as MinGW's, round twice.) */
MOEK_CPU_FN float moek_fma_(float a, float b, float c)
{
#if defined(FP_FAST_FMAF) || defined(__FP_FAST_FMAF)
    return fmaf(a, b, c);
#else
    const double product = (double)a * b, sum = product + c;
    uint64_t u;
    memcpy(&u, &sum, sizeof u);
    if (fabs(sum) <= 1.7976931348623157e308 &&         /* neither NaN nor Inf */
        ((u & 0x1fffffff) == 0x10000000 || fabs(sum) < 1.1754943508222875e-38)) {
        const double of_c = sum - product, lost = (product - (sum - of_c)) + (c - of_c);
        double odd;
        if (lost != 0 && !(u & 1)) u += (lost > 0) == (sum > 0) ? 1 : (uint64_t)-1;
        memcpy(&odd, &u, sizeof odd);
        return (float)odd;
    }
    return (float)sum;
#endif
}

MOEK_CPU_FN int moek_lane_columns_(int element) { return element == MOEK_ELEMENT_S8 ? 4 : 8; }
/* A code as an integer; of e2m1 twice the value. */
MOEK_CPU_FN int moek_code_(int element, int code)
{
    static const int8_t e2m1[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
    return element == MOEK_ELEMENT_U4B8 ? code : element == MOEK_ELEMENT_E2M1 ? e2m1[code] : (code ^ 128) - 128;
}
MOEK_CPU_FN int32_t moek_zero_(const uint8_t *zero, int i) { return zero[i / 2] >> 4 * (i % 2) & 15; }

/* ---- plain C: the measure ---------------------------------------------------------------------------------------- */

MOEK_CPU_FN uint32_t moek_power_(uint32_t top)         /* the biased exponent of s: |q| is at most 32639 */
{
    const uint32_t e = (top + 0x010100) >> 23;
    return e < 16 ? 2 : e - 14;
}
/* v, which is x / s, as q and t. */
MOEK_CPU_FN int moek_q_(float v, int *t)
{
    const int q = (int16_t)(moek_bits_(v + 12582912.0f) & 0xffff);
    *t = (int16_t)(moek_bits_((v - (float)q) * 256.0f + 12582912.0f) & 0xffff);
    if (*t != 128) return q;
    *t = -128;
    return q + 1;
}
MOEK_CPU_FN uint32_t moek_encode_plain_(moek_x_chunk_ *to, const float *x, int element, int zeros, uint32_t *top)
{
    const int each = moek_lane_columns_(element), columns = each * MOEK_LANES;
    const int offset = zeros ? 1 : element == MOEK_ELEMENT_U4B8 ? 8 : 0;
    uint32_t found = 0;
    int b, i;
    memset(to->less, 0, sizeof to->less);
    for (b = 0; b < columns; b += 32) {
        const uint32_t most = moek_top_(0, x + b, 32), power = moek_power_(most);
        const float inverse = moek_float_((254 - power) << 23);
        *top = most > *top ? most : *top;
        for (i = b; i < b + 32; i++) {
            const int lane = i / each, at = each == 8 ? i / 2 + i % 2 * MOEK_CHUNK : i;
            const float v = x[i] * inverse;
            int t;
            const int q = moek_q_(v, &t), low = (int8_t)(q & 255);
            to->digit[0][at] = (int8_t)low; to->digit[1][at] = (int8_t)((q - low) / 256);
            to->digit[2][at] = (int8_t)t;
            to->less[0][lane] += offset * q; to->less[1][lane] += offset * t;
            found |= (uint32_t)(t != 0) << lane;
            to->s[lane] = moek_float_((power - (element == MOEK_ELEMENT_E2M1)) << 23);
        }
    }
    return found;
}
MOEK_CPU_FN void moek_place_plain_(moek_x_chunk_ *to, const int8_t *x) { memcpy(to->digit[0], x, MOEK_CHUNK); }
/* Of a lane: the sum of codes times `digit`, the digit of its first byte. */
MOEK_CPU_FN int32_t moek_lane_(int element, const uint8_t *codes, const int8_t *digit)
{
    int32_t sum = 0;
    int i;
    for (i = 0; i < 4; i++) {
        if (element == MOEK_ELEMENT_S8) sum += moek_code_(element, codes[i]) * digit[i];
        else sum += moek_code_(element, codes[i] & 15) * digit[i] +
                    moek_code_(element, codes[i] >> 4) * digit[i + MOEK_CHUNK];
    }
    return sum;
}
MOEK_CPU_FN moek_w_one_ moek_w_one_of_(const moek_w_run_ *w, int row, int run)
{
    moek_w_one_ one;
    const int left = w->scales - run * w->run_scales;
    one.codes = w->codes + (size_t)row * w->codes_step + (size_t)(run * w->run_bytes);
    one.zero = w->zero ? w->zero + (size_t)row * w->zero_step + run * w->run_scales / 2 : NULL;
    one.scale = !w->scale ? NULL
        : w->scale + (size_t)row * w->scale_step + (size_t)run * (size_t)(w->run_scales * w->scale_bytes);
    one.chunks = run == w->runs - 1 ? w->chunks : MOEK_RUN;
    one.scales = !w->run_scales ? 1 : left < w->run_scales ? left : w->run_scales;
    one.others = run ? 0 : w->others;
    return one;
}
/* A run of a row of w and one of x. */
MOEK_CPU_FN float moek_dot_plain_(const moek_w_run_ *w, const moek_w_one_ *one, const float *scale,
                                  const moek_x_run_ *x)
{
    const int each = moek_lane_columns_(w->element);
    float lanes[MOEK_LANES], third[8], four[4];
    int c, l, i, j;
    for (l = 0; l < MOEK_LANES; l++) lanes[l] = 0;
    for (l = 0; l < 8; l++) third[l] = 0;
    for (c = 0; c < one->chunks; c++)
        for (l = 0; l < MOEK_LANES; l++) {
            const moek_x_chunk_ *const in = &x->chunk[c];
            const uint8_t *const codes = one->codes + MOEK_CHUNK * c + 4 * l;
            const int group = w->columns ? (MOEK_LANES * c + l) * each / w->columns : 0;
            const int32_t zero = !one->zero ? 1 : group < one->scales ? moek_zero_(one->zero, group) : 0;
            float f = (float)(256 * moek_lane_(w->element, codes, in->digit[1] + 4 * l) +
                              moek_lane_(w->element, codes, in->digit[0] + 4 * l) - zero * in->less[0][l]);
            if (x->dense)
                f = moek_fma_((float)(moek_lane_(w->element, codes, in->digit[2] + 4 * l) - zero * in->less[1][l]),
                              0.00390625f, f);
            lanes[l] = moek_fma_(f * in->s[l], scale[group] * in->by[l], lanes[l]);
        }
    for (i = 0; i < x->thirds && !x->dense; i += 8)
        for (j = 0; j < 8; j++) {
            const moek_x_list_ *const list = &x->list[i / 8];
            const int32_t zero = one->zero ? moek_zero_(one->zero, list->group[j]) : 1;
            int8_t digit[MOEK_CHUNK + 4];
            memcpy(digit, list->digit[0] + 4 * j, 4);
            memcpy(digit + MOEK_CHUNK, list->digit[1] + 4 * j, 4);
            third[j] = moek_fma_((float)(moek_lane_(w->element, one->codes + 4 * list->at[j], digit) -
                                         zero * list->less[j]) * list->s[j],
                                 scale[list->group[j]] * list->by[j], third[j]);
        }
    for (l = 0; l < 8; l++) lanes[l] = (lanes[l] + lanes[l + 8]) + third[l];
    for (l = 0; l < 4; l++) four[l] = lanes[l] + lanes[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}
/* Where the unit of group g lies in moek_x_run_, and how far behind that the sum of x. */
MOEK_CPU_FN int moek_group_at_(int g, int columns) { return g / (256 / columns) * 512 / columns + g % (256 / columns); }
/* A run of blocks: codes, and 8 scales and minimums more, which are 0. */
MOEK_CPU_FN void moek_unpack_run_(const moek_w_run_ *w, moek_w_one_ *one, int8_t *codes, float *scale, float *min)
{
    int i;
    w->unpack(codes, scale, min, one->codes, 0, one->scales * w->columns);
    for (i = one->scales; i < one->scales + 8; i++) scale[i] = min[i] = 0;
    one->codes = (const uint8_t *)codes;
}
/* A run of a row of w in blocks, which is unpacked, and one of x; minimums: eight lanes more. */
MOEK_CPU_FN void moek_block_plain_(float *lanes, float *low, const moek_w_run_ *w, const moek_w_one_ *one,
                                   const float *scale, const float *min, const moek_x_run_ *x)
{
    const int behind = 256 / w->columns;
    int c, l, g;
    for (c = 0; c < one->chunks; c++)
        for (l = 0; l < MOEK_LANES; l++) {
            const moek_x_chunk_ *const in = &x->chunk[c];
            const uint8_t *const codes = one->codes + MOEK_CHUNK * c + 4 * l;
            const int32_t low = moek_lane_(w->element, codes, in->digit[0] + 4 * l);
            float f = (float)low, unit;
            if (!w->bytes) {
                const int32_t q = 256 * moek_lane_(w->element, codes, in->digit[1] + 4 * l) + low;
                f = moek_fma_((float)q, 256.0f, (float)moek_lane_(w->element, codes, in->digit[2] + 4 * l));
            }
            g = (MOEK_LANES * c + l) * 4 / w->columns;
            unit = x->group[moek_group_at_(g, w->columns)];
            lanes[l] = w->far ? moek_fma_(f * unit, scale[g], lanes[l]) : moek_fma_(f, scale[g] * unit, lanes[l]);
        }
    for (g = 0; g < one->scales && w->sign; g++)
        low[g % 8] = moek_fma_(min[g], x->group[moek_group_at_(g, w->columns) + behind], low[g % 8]);
}
MOEK_CPU_FN void moek_dots_blocks_plain_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    float scale[MOEK_RUN_SCALES], min[MOEK_RUN_GROUPS + 8], four[4];
    int8_t codes[MOEK_RUN * MOEK_CHUNK] = { 0 };
    int i, run, r, l;
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++) {
            moek_w_one_ one = moek_w_one_of_(w, i, run);
            moek_unpack_run_(w, &one, codes, scale, min);
            for (r = 0; r < rows; r++) {
                const moek_x_run_ *const in = x[run * rows + r];
                double *const sum = &w->sum[(size_t)i * w->sum_step][r];
                float lanes[MOEK_LANES] = { 0 }, low[8] = { 0 };
                moek_block_plain_(lanes, low, w, &one, scale, min, in);
                for (l = 0; l < 8; l++) lanes[l] = (lanes[l] + lanes[l + 8]) + low[l];
                for (l = 0; l < 4; l++) four[l] = lanes[l] + lanes[l + 4];
                *sum = moek_fma_((four[0] + four[2]) + (four[1] + four[3]), in->back, (float)*sum);
            }
        }
}
MOEK_CPU_FN void moek_dots_plain_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    float scale[MOEK_RUN_SCALES];
    int i, run, r, g;
    if (w->unpack) { moek_dots_blocks_plain_(w, x, rows); return; }
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++) {
            const moek_w_one_ one = moek_w_one_of_(w, i, run);
            for (g = 0; g < MOEK_RUN_SCALES; g++)
                scale[g] = !one.scale ? 1 : g >= one.others && g < one.scales
                    ? moek_digits_scale_(one.scale, (size_t)g, w->scale_type, w->dtype) : 0;
            for (r = 0; r < rows; r++) {
                double *const sum = &w->sum[(size_t)i * w->sum_step][r];
                *sum = (float)*sum + moek_dot_plain_(w, &one, scale, x[run * rows + r]);
            }
        }
}
MOEK_CPU_FN void moek_sums_plain_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    int i, run, r, c, l;
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++)
            for (r = 0; r < rows; r++) {
                const moek_w_one_ one = moek_w_one_of_(w, i, run);
                int32_t sum = 0;
                for (c = 0; c < one.chunks; c++)
                    for (l = 0; l < MOEK_LANES; l++)
                        sum += moek_lane_(w->element, one.codes + MOEK_CHUNK * c + 4 * l,
                                          x[run * rows + r]->chunk[c].digit[0] + 4 * l);
                w->sum[(size_t)i * w->sum_step][r] += sum;
            }
}
static MOEK_UNUSED const moek_set_ moek_set_cpu_ = {
    moek_encode_plain_, moek_decode_t_, moek_place_plain_, moek_dots_plain_, moek_sums_plain_, 0
};

/* What a loop is compiled for, besides the element and the rows. */
enum { MOEK_DOTS_ZERO = 1, MOEK_DOTS_SCALED = 2, MOEK_DOTS_DENSE = 4 };
/* X(name, element, kind) */
#define MOEK_DOTS_OF_(X) \
    X(u4b8, MOEK_ELEMENT_U4B8, 0) X(u4b8_zero, MOEK_ELEMENT_U4B8, MOEK_DOTS_ZERO) \
    X(u4b8_scaled, MOEK_ELEMENT_U4B8, MOEK_DOTS_SCALED) \
    X(u4b8_both, MOEK_ELEMENT_U4B8, MOEK_DOTS_ZERO | MOEK_DOTS_SCALED) \
    X(e2m1, MOEK_ELEMENT_E2M1, 0) X(e2m1_scaled, MOEK_ELEMENT_E2M1, MOEK_DOTS_SCALED) \
    X(s8, MOEK_ELEMENT_S8, 0)
/* Elements of the weights of formats that are compiled, a bit each: loops of other elements would be half of the time
 * that one format takes.  (What reaches these loops has the element of its format: blocks have loops of their own.) */
#define MOEK_WANTED_W_(NAME, name, number, a, b, w, ...) | (MOEK_WANT_QUANT(number) ? 1 << MOEK_ELEMENT_##w : 0)
enum { MOEK_WANTED_ELEMENTS_ = 0 MOEK_EACH_FORMAT(MOEK_WANTED_W_) };
#undef MOEK_WANTED_W_
#define MOEK_WANTS_ELEMENT_(element) (MOEK_WANTED_ELEMENTS_ >> (element) & 1)
/* What a loop of blocks is compiled for: scales of 16 columns; codes that are more than they mean, in bytes; codes of
 * more than 6 bits, whose sums with 256 q + t do not fit into 32 bits; blocks of fewer than 256 columns. */
enum {
    MOEK_BLOCK_FINE = 1, MOEK_BLOCK_OFFSET = 2, MOEK_BLOCK_WIDE = 4, MOEK_BLOCK_SHORT = 8,
    MOEK_BLOCK_MIN = 16, MOEK_BLOCK_LESS = 32,         /* minimums are added, or taken off */
    MOEK_BLOCK_FAR = 64,                               /* scales of any power: x has its unit before they come */
    MOEK_BLOCK_BYTES = 128                             /* x is s8: one digit, whose sums begin at less[0] */
};
/* Scales of a chunk. */
MOEK_CPU_FN int moek_chunk_scales_(const moek_w_run_ *w, int element)
{
    return w->columns ? (element == MOEK_ELEMENT_S8 ? 4 : 8) * MOEK_LANES / w->columns : 0;
}
/* Which scale, from a chunk's first on, a lane has. */
typedef struct moek_lane_scales_ { int32_t at[MOEK_LANES]; } moek_lane_scales_;

/* ---- a GEMM ------------------------------------------------------------------------------------------------------ */

/* A row of the table, and what its launcher found. */
typedef struct moek_digits_ {
    const moek_gemm_ *a;                               /* with halves */
    moek_format f;                                     /* with the columns of the row */
    const moek_set_ *set;
    int up, halves, each;                              /* columns of a lane */
    int offset, all, chunks;                           /* k, where the first group begins before a does; of all of k */
    int early;                                         /* scales of rows of x act on each block */
    const moek_block *block;                           /* w lies in such blocks; f is what they become; or NULL */
    const moek_block_set_ *blocks;                     /* for these; or NULL */
    moek_unpack_ *unpack;
    int columns;                                       /* of out, of a task */
} moek_digits_;

MOEK_CPU_FN int moek_digits_scale_bits_(const moek_format *f)
{
    return moek_digits_bits_(f->w_scale.type);
}
/* Are sums of products of s8 and s8, whole rows of which are exact? */
MOEK_CPU_FN int moek_digits_exact_(const moek_digits_ *d)
{
    return d->f.x == MOEK_ELEMENT_S8 && d->f.w == MOEK_ELEMENT_S8 && !d->block;
}
/* Columns k to k + n - 1 of a row of x as f32, k from the first group's begin; 0 where a has none. */
MOEK_CPU_FN void moek_digits_x_(const moek_digits_ *d, float *to, const char *row, int k, int n)
{
    const int begin = k < d->offset ? d->offset : k, end = k + n < d->all ? k + n : d->all, at = begin - d->offset;
    int i;
    for (i = 0; i < n && (begin != k || end != k + n); i++) to[i] = 0;
    to += begin - k;
    n = end - begin;
    if (n <= 0) return;
    if (d->f.x_bits == 16) d->set->decode(to, (const uint16_t *)row + at, n, d->a->dtype);
    else if (d->f.x == MOEK_ELEMENT_E4M3) moek_scales_e4m3_(to, (const uint8_t *)row + at, n);
    else if (d->f.x == MOEK_ELEMENT_S8) for (i = at; i < at + n; i++) to[i - at] = ((const int8_t *)row)[i];
    else for (i = at; i < at + n; i++) to[i - at] = moek_from_e2m1_(((const uint8_t *)row)[i / 2] >> i % 2 * 4 & 15);
}
/* The power of two for x, or for its scale, whose largest has the bits `top`, so that f32 has room for products of
 * scales and for sums of codes; below `small` it is tiny.  Sums are multiplied by *back. */
MOEK_CPU_FN float moek_x_unit_(uint32_t top, uint32_t small, float *back)
{
    const float up = 18446744073709551616.0f, down = 5.421010862427522e-20f;           /* 2^64, 2^-64 */
    const int tiny = top < small, large = top >= 191u << 23;                           /* 2^64 */
    *back = tiny ? down : large ? up : 1;
    return tiny ? up : large ? down : 1;
}
/* Units and sums of groups of a run of blocks, and what an offset of codes adds; top: of x.  Scales times units stay
 * numbers that f32 has with all its bits. */
static MOEK_UNUSED void moek_digits_groups_(const moek_digits_ *d, moek_x_run_ *to, int chunks, uint32_t top)
{
    const int columns = d->f.w_scale.columns, lanes = columns / 4, words = d->blocks && d->blocks->words;
    const int offset = d->blocks ? d->blocks->offset : 0, starts = d->blocks && d->blocks->starts;
    const float unit = 0.00390625f * moek_x_unit_(top, 79u << 23 /* 2^-48 */, &to->back);
    int c, l, i;
    memset(to->group, 0, sizeof to->group);
    for (c = 0; c < chunks; c++) {
        moek_x_chunk_ *const chunk = &to->chunk[c];
        for (l = 0; l < MOEK_LANES; l += lanes) {
            float *const group = to->group + moek_group_at_((c * MOEK_LANES + l) / lanes, columns);
            int32_t sum = 0;
            for (i = l; i < l + lanes && !words; i++) sum += 256 * chunk->less[0][i] + chunk->less[1][i];
            group[0] = chunk->s[l] * unit;
            group[256 / columns] = (float)sum * group[0];
        }
        for (l = 0; l < MOEK_LANES && !words; l++) {
            const int32_t q = -offset * chunk->less[0][l], t = offset * chunk->less[1][l], low = q & 255;
            chunk->less[0][l] = starts ? (q - low) / 256 : t - 256 * q;
            if (starts) chunk->less[1][l] = 256 * low - t;             /* (sums of q are high digits first) */
        }
    }
}
/* Run number `run` of row `from` of x in s8, for blocks: codes, where sums of lanes begin, scales, sums of groups. */
static MOEK_UNUSED void moek_digits_block_bytes_(const moek_digits_ *d, moek_x_run_ *to, size_t from, int run)
{
    const moek_gemm_ *const a = d->a;
    const int8_t *const row = (const int8_t *)a->a + from * (size_t)(a->a_row_bytes ? a->a_row_bytes : a->k);
    const float *const scale = (const float *)a->a_scale + from * (size_t)((d->all + 31) / 32);
    const int columns = d->f.w_scale.columns, lanes = columns / 4, words = d->blocks && d->blocks->words;
    const int offset = d->blocks ? d->blocks->offset : 0, first = run * MOEK_RUN * MOEK_CHUNK;
    const int all = d->all - first < MOEK_RUN * MOEK_CHUNK ? d->all - first : MOEK_RUN * MOEK_CHUNK;
    const uint32_t top = moek_top_(0, scale + first / 32, (all + 31) / 32);
    const float unit = moek_x_unit_(top, 72u << 23 /* 2^-55 */, &to->back);
    int c, l, i;
    to->thirds = 0; to->dense = 1;
    memset(to->group, 0, sizeof to->group);
    for (c = 0; c * MOEK_CHUNK < all; c++) {
        moek_x_chunk_ *const chunk = &to->chunk[c];
        int32_t sum[MOEK_LANES];
        int8_t tail[MOEK_CHUNK];
        const int8_t *const in = (const int8_t *)moek_padded_(tail, sizeof tail, row + first + c * MOEK_CHUNK,
                                                              (size_t)(all - c * MOEK_CHUNK));
        for (l = 0; l < MOEK_LANES; l++) sum[l] = in[4 * l] + in[4 * l + 1] + in[4 * l + 2] + in[4 * l + 3];
        for (l = 0; l < MOEK_LANES; l++) chunk->less[0][l] = -offset * sum[l];
        if (words) {
            int16_t word[MOEK_CHUNK];
            for (i = 0; i < MOEK_CHUNK; i++) word[i / 2 + i % 2 * (MOEK_CHUNK / 2)] = in[i];
            memcpy(chunk->digit[0], word, sizeof word);
        } else {
            memcpy(chunk->digit[0], in, MOEK_CHUNK);
        }
        for (l = 0; l < MOEK_LANES && c * MOEK_CHUNK + 4 * l < all; l += lanes) {
            const int k = c * MOEK_CHUNK + 4 * l;
            float *const group = to->group + moek_group_at_(k / columns, columns);
            int32_t of = 0;
            for (i = l; i < l + lanes; i++) of += sum[i];
            group[0] = scale[(first + k) / 32] * unit;
            group[256 / columns] = (float)of * group[0];
        }
    }
    for (; c % 4; c++) memset(&to->chunk[c], 0, sizeof to->chunk[c]);  /* sets take 256 columns */
}
/* Run number `run` of row `from` of x, for blocks.  Returns the bits of the largest |x|. */
static MOEK_UNUSED uint32_t moek_digits_block_run_(const moek_digits_ *d, moek_x_run_ *to, size_t from, int run)
{
    const moek_gemm_ *const a = d->a;
    const char *const row = (const char *)a->a + from * (a->a_row_bytes ? (size_t)a->a_row_bytes : 2 * (size_t)a->k);
    uint32_t top = 0;
    int c;
    if (d->f.x == MOEK_ELEMENT_S8) {                   /* (a scale that is NaN or Inf has its way in f32) */
        moek_digits_block_bytes_(d, to, from, run);
        return 0;
    }
    to->thirds = 0; to->dense = 1;
    for (c = 0; c < MOEK_RUN && run * MOEK_RUN + c < d->chunks; c++) {
        float x[MOEK_CHUNK];
        moek_digits_x_(d, x, row, (run * MOEK_RUN + c) * MOEK_CHUNK, MOEK_CHUNK);
        d->set->encode(&to->chunk[c], x, MOEK_ELEMENT_S8, !(d->blocks && d->blocks->words), &top);
    }
    moek_digits_groups_(d, to, c, top);
    for (; c % 4; c++) memset(&to->chunk[c], 0, sizeof to->chunk[c]);  /* sets take 256 columns */
    return top;
}
/* Run number `run` of row `from` of x.  Returns the bits of the largest |x|. */
static MOEK_UNUSED uint32_t moek_digits_run_(const moek_digits_ *d, moek_x_run_ *to, size_t from, int run)
{
    const moek_gemm_ *const a = d->a;
    const size_t row_bytes = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)a->k * (size_t)d->f.x_bits / 8;
    const char *const row = (const char *)a->a + from * row_bytes;
    const int per = d->each * MOEK_LANES, x_columns = d->f.x_scale.columns, words = d->set->words && d->each == 4;
    const size_t x_row = x_columns ? ((size_t)d->all + (size_t)x_columns - 1) / (size_t)x_columns : 1;
    uint32_t top = 0;
    int c, l;
    if (d->block) return moek_digits_block_run_(d, to, from, run);
    to->thirds = to->dense = 0;
    for (c = 0; c < MOEK_RUN && run * MOEK_RUN + c < d->chunks; c++) {
        const int k = (run * MOEK_RUN + c) * per;
        moek_x_chunk_ *const chunk = &to->chunk[c];
        float x[2 * MOEK_CHUNK];
        uint32_t found;
        moek_digits_x_(d, x, row, k, per);
        found = d->set->encode(chunk, x, d->f.w, d->a->gate_up.zero_points[0] != NULL, &top);
        for (l = 0; l < MOEK_LANES; l++) chunk->by[l] = 1;
        for (l = 0; l < MOEK_LANES && (d->early || x_columns); l++) {
            const int column = k + l * d->each;
            const int others = x_columns && (column / x_columns + 1) * x_columns <= d->offset; /* (maybe NaN) */
            chunk->by[l] = column >= d->all || others ? 0
                : moek_digits_scale_(a->a_scale, from * x_row + (size_t)(x_columns ? column / x_columns : 0),
                                     d->f.x_scale.type, a->dtype);
        }
        for (l = 0; l < MOEK_LANES && found; l++) {
            moek_x_list_ *const list = &to->list[to->thirds / 8 % MOEK_THIRDS];
            const int j = to->thirds % 8;
            if (!(found >> l & 1)) continue;
            if (to->thirds == 8 * MOEK_THIRDS) { to->dense = 1; break; }
            memcpy(list->digit[0] + 4 * j, chunk->digit[words ? 1 : 2] + 4 * l, 4);
            memcpy(list->digit[1] + 4 * j, chunk->digit[words ? 1 : 2] + MOEK_CHUNK + 4 * l, 4);
            list->at[j] = MOEK_LANES * c + l;
            list->group[j] = d->f.w_scale.columns ? list->at[j] * d->each / d->f.w_scale.columns : 0;
            list->less[j] = chunk->less[1][l];
            list->s[j] = chunk->s[l] * 0.00390625f;
            list->by[j] = chunk->by[l];
            to->thirds++;
        }
    }
    for (; to->thirds % 8 && !to->dense; to->thirds++) {               /* nothing, of the lane before */
        moek_x_list_ *const list = &to->list[to->thirds / 8];
        const int j = to->thirds % 8;
        memset(list->digit[0] + 4 * j, 0, 4);
        memset(list->digit[1] + 4 * j, 0, 4);
        list->at[j] = list->at[j - 1]; list->group[j] = list->group[j - 1]; list->less[j] = 0;
        list->s[j] = list->by[j] = 0;
    }
    return top;
}
/* The same of s8, whose codes are the integers. */
static MOEK_UNUSED void moek_digits_s8_(const moek_digits_ *d, moek_x_run_ *to, size_t from, int run)
{
    const size_t row_bytes = d->a->a_row_bytes ? (size_t)d->a->a_row_bytes : (size_t)d->a->k;
    const char *const row = (const char *)d->a->a + from * row_bytes;
    int8_t tail[MOEK_CHUNK];
    int c;
    for (c = 0; c < MOEK_RUN && run * MOEK_RUN + c < d->chunks; c++) {
        const int k = (run * MOEK_RUN + c) * MOEK_CHUNK;
        d->set->place(&to->chunk[c], (const int8_t *)moek_padded_(tail, sizeof tail, row + k, (size_t)(d->all - k)));
    }
}
/* w . x in floats, of a row of x that has a NaN or Inf. */
static MOEK_UNUSED float moek_digits_float_(const moek_digits_ *d, const uint8_t *w, const void *scale,
                                            const uint8_t *zero, size_t from)
{
    const moek_gemm_ *const a = d->a;
    const size_t row_bytes = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)a->k * (size_t)d->f.x_bits / 8;
    const char *const row = (const char *)a->a + from * row_bytes;
    const int columns = d->f.w_scale.columns, x_columns = d->f.x_scale.columns, least = columns ? columns : 32;
    const float unit = d->f.w == MOEK_ELEMENT_E2M1 ? 0.5f : 1.0f;
    const size_t x_row = x_columns ? ((size_t)d->all + (size_t)x_columns - 1) / (size_t)x_columns : 1;
    float sum = 0;
    int k, i;
    for (k = 0; k < d->all; k += least) {
        const int g = columns ? k / columns : 0;
        const int less = zero ? zero[g / 2] >> 4 * (g % 2) & 15 : d->f.w == MOEK_ELEMENT_U4B8 ? 8 : 0;
        float x[2 * MOEK_CHUNK], part = 0;
        float by = columns ? moek_digits_scale_(scale, (size_t)g, d->f.w_scale.type, a->dtype) : 1;
        if (d->early || x_columns)
            by *= moek_digits_scale_(a->a_scale, from * x_row + (size_t)(x_columns ? k / x_columns : 0),
                                     d->f.x_scale.type, a->dtype);
        moek_digits_x_(d, x, row, k, least);
        for (i = k < d->offset ? d->offset - k : 0; i < least && k + i < d->all; i++) {
            const int at = k + i - d->offset;
            const int code = d->each == 8 ? w[at / 2] >> 4 * (at % 2) & 15 : w[at];
            part += (float)(moek_code_(d->f.w, code) - less) * unit * x[i];
        }
        sum += part * by;
    }
    return sum;
}
/* The same, where w lies in blocks. */
static MOEK_UNUSED float moek_digits_block_float_(const moek_digits_ *d, const uint8_t *w, size_t from)
{
    enum { COLUMNS = 256 };
    const moek_gemm_ *const a = d->a;
    const char *const row = (const char *)a->a + from * (a->a_row_bytes ? (size_t)a->a_row_bytes : 2 * (size_t)a->k);
    const int columns = d->f.w_scale.columns;
    float sum = 0;
    int k, i;
    for (k = 0; k < d->all; k += COLUMNS, w += COLUMNS / d->block->columns * d->block->bytes) {
        const int n = d->all - k < COLUMNS ? d->all - k : COLUMNS;
        float x[COLUMNS], scale[COLUMNS / 16], min[COLUMNS / 16] = { 0 };
        int8_t codes[COLUMNS];
        d->unpack(codes, scale, min, w, 0, n);
        moek_digits_x_(d, x, row, k, n);
        for (i = 0; i < n; i++) sum += moek_fma_(codes[i], scale[i / columns], min[i / columns]) * x[i];
    }
    return sum;
}
MOEK_CPU_FN size_t moek_digits_row_(const moek_digits_ *d)             /* bytes of a row of w, in memory */
{
    return d->block ? (size_t)(d->a->k / d->block->columns) * (size_t)d->block->bytes
                    : (size_t)d->a->k * (size_t)d->f.w_bits / 8;
}
/* Columns from j0 on of half `of`, runs from `run` on: where codes, zero points and scales lie. */
MOEK_CPU_FN void moek_digits_w_(const moek_digits_ *d, moek_w_run_ *w, int e, int j0, int of, int run, int runs)
{
    const moek_gate_up_ *const h = &d->a->gate_up;
    const moek_scale_shape *const ws = &d->f.w_scale;
    const int run_columns = (int)MOEK_RUN * (int)MOEK_LANES * d->each;
    const int run_scales = ws->columns ? run_columns / ws->columns : 0, g = run * run_scales;
    const size_t step = (size_t)(d->halves == 2 ? h->step : 1), row = (size_t)e * (size_t)h->rows + (size_t)j0 * step;
    const size_t groups = ws->columns ? ((size_t)d->all + (size_t)ws->columns - 1) / (size_t)ws->columns : 1;
    const size_t bytes = moek_digits_row_(d), zeros = (groups * (size_t)d->f.w_bits + 7) / 8;
    const size_t scales = groups * (size_t)moek_digits_scale_bits_(&d->f) / 8;
    const int left = d->chunks - (run + runs - 1) * MOEK_RUN;
    memset(w, 0, sizeof *w);
    w->element = d->f.w; w->columns = ws->columns; w->dtype = d->a->dtype; w->scale_type = ws->type;
    w->scaled = d->early || d->f.x_scale.columns;
    w->runs = runs; w->chunks = left < MOEK_RUN ? left : MOEK_RUN;
    w->scales = (int)groups - g; w->run_scales = run_scales; w->scale_bytes = (int)(scales / groups);
    w->others = ws->columns && !run ? d->offset / ws->columns : 0;
    w->run_bytes = d->block ? run_columns / d->block->columns * d->block->bytes : MOEK_RUN * MOEK_CHUNK;
    w->codes = (const uint8_t *)h->codes[of] + row * bytes + run * w->run_bytes - d->offset * d->f.w_bits / 8;
    if (d->block) {
        w->unpack = d->unpack; w->sign = d->block->sign;
        w->far = d->block->scale.of.type == MOEK_SCALE_TYPE_E8M0;
        w->bytes = d->f.x == MOEK_ELEMENT_S8;
    }
    else if (ws->columns)
        w->scale = (const char *)h->scales[of] + row * scales + (size_t)g * (scales / groups);
    if (h->zero_points[of]) w->zero = (const uint8_t *)h->zero_points[of] + row * zeros + g / 2;
    w->codes_step = step * bytes; w->scale_step = step * scales; w->zero_step = step * zeros;
    w->sum_step = (size_t)d->halves;
}
/* Sums of runs of `columns` columns from j0 on.  What is read beside a row of w, where q is 0, is of the same half of
 * the expert; of rows where that is not so, what is there is in `tail`. */
static MOEK_UNUSED void moek_digits_half_(const moek_digits_ *d, int e, int j0, int columns, int of, int run, int runs,
                                          const moek_x_run_ *const *x, int rows, double (*sum)[MOEK_X_RUNS])
{
    void (*const dots)(const moek_w_run_ *, const moek_x_run_ *const *, int) =
        moek_digits_exact_(d) ? d->set->sums : d->blocks && d->blocks->dots ? d->blocks->dots : d->set->dots;
    const long long bytes = (long long)d->a->k * d->f.w_bits / 8, before = (long long)d->offset * d->f.w_bits / 8;
    const long long begin = (long long)run * MOEK_RUN * MOEK_CHUNK - before;         /* from the row's first byte on */
    uint8_t tail[MOEK_X_RUNS * MOEK_RUN * MOEK_CHUNK];
    long long end;
    moek_w_run_ w;
    int j, n;
    moek_digits_w_(d, &w, e, j0, of, run, runs);
    if (d->block) {                                    /* rows are whole blocks */
        w.rows = columns;
        w.sum = sum + of;
        dots(&w, x, rows);
        return;
    }
    end = begin + (long long)((runs - 1) * MOEK_RUN + w.chunks) * MOEK_CHUNK;
    for (j = j0; j < j0 + columns; j += n) {
        const long long behind = (long long)(d->a->n - 1 - j) * (long long)w.codes_step;           /* of the half */
        const long long over = end - bytes;            /* behind the row */
        const uint8_t *const codes = w.codes;
        const int inside = begin >= 0 || (long long)j * (long long)w.codes_step + begin >= 0;
        n = 1;
        if (inside) {                                  /* as many rows as have room behind them */
            n = over <= 0 ? j0 + columns - j : over > behind ? 1 : 1 + (int)((behind - over) / (long long)w.codes_step);
            if (n > j0 + columns - j) n = j0 + columns - j;
        }
        if (!inside || over > behind) {
            const long long from = begin < 0 ? 0 : begin, to = over > 0 ? bytes : end;
            memset(tail, 0, sizeof tail);
            memcpy(tail + (from - begin), codes + (from - begin), (size_t)(to - from));
            w.codes = tail;
        }
        w.rows = n;
        w.sum = sum + (j - j0) * d->halves + of;
        dots(&w, x, rows);
        w.codes = codes + (size_t)n * w.codes_step;
        if (w.scale) w.scale += (size_t)n * w.scale_step;
        if (w.zero) w.zero += (size_t)n * w.zero_step;
    }
}
/* sum[s][r] = w row s . row p0 + r of a, of at most MOEK_X_RUNS rows; gate and up of a column are neighbours. */
static MOEK_UNUSED void moek_digits_dots_(const moek_digits_ *d, int e, int p0, int rows, int j0, int columns,
                                          double (*sum)[MOEK_X_RUNS])
{
    const int runs = (d->chunks + MOEK_RUN - 1) / MOEK_RUN, at_once = MOEK_X_RUNS / rows;
    moek_x_run_ x[MOEK_X_RUNS];
    const moek_x_run_ *in[MOEK_X_RUNS];
    uint32_t top[MOEK_X_RUNS] = { 0, 0, 0, 0 };
    int run0, run, r, of, j;
    memset(sum, 0, (size_t)(columns * d->halves) * sizeof *sum);
    for (run0 = 0; run0 < runs; run0 += at_once) {
        const int end = runs < run0 + at_once ? runs : run0 + at_once;
        for (r = 0; r < rows; r++)
            for (run = run0; run < end; run++) {
                const size_t from = moek_digits_from_(d->a, p0 + r);
                moek_x_run_ *const to = &x[(run - run0) * rows + r];
                if (moek_digits_exact_(d)) {
                    moek_digits_s8_(d, to, from, run);
                } else {
                    const uint32_t most = moek_digits_run_(d, to, from, run);
                    if (most > top[r]) top[r] = most;
                }
            }
        for (r = 0; r < MOEK_X_RUNS; r++) in[r] = &x[r];
        for (of = 0; of < d->halves; of++)
            moek_digits_half_(d, e, j0, columns, of, run0, end - run0, in, rows, sum);
    }
    for (r = 0; r < rows; r++)
        for (of = 0; of < d->halves && top[r] >= 0x7f800000; of++)    /* a NaN or Inf */
            for (j = 0; j < columns; j++) {
                moek_w_run_ w;
                moek_digits_w_(d, &w, e, j0 + j, of, 0, 1);
                sum[j * d->halves + of][r] = d->block
                    ? moek_digits_block_float_(d, w.codes, moek_digits_from_(d->a, p0 + r))
                    : moek_digits_float_(d, w.codes + d->offset * d->f.w_bits / 8, w.scale,
                                                                w.zero, moek_digits_from_(d->a, p0 + r));
            }
}
/* Sums of half `of` become sum * scales + bias. */
static MOEK_UNUSED void moek_digits_scaled_(const moek_digits_ *d, int e, int p0, int rows, int j0, int columns, int of,
                                            double (*sum)[MOEK_X_RUNS])
{
    const moek_gemm_ *const a = d->a;
    const moek_scale_shape *const ws = &d->f.w_scale, *const xs = &d->f.x_scale;
    const int x_row = xs->rows && !xs->columns && !d->early, x_global_scale = d->f.static_x && xs->rows;
    const uint16_t *const biases = a->w.bias ? (const uint16_t *)a->gate_up.bias[of] : NULL;
    const size_t step = (size_t)(d->halves == 2 ? a->gate_up.step : 1);
    size_t w_row = (size_t)e * (size_t)a->gate_up.rows + (size_t)j0 * step;
    float by = 1, x_scale[MOEK_X_RUNS] = { 1, 1, 1, 1 };
    int j, r;
    if (ws->columns && !biases && !x_row && !d->f.global_scale && !x_global_scale) return;
    for (r = 0; r < rows && x_row; r++)
        x_scale[r] = moek_digits_scale_(a->a_scale, moek_digits_from_(a, p0 + r), xs->type, a->dtype);
    for (j = 0; j < columns; j++, w_row += step) {
        double *const to = sum[j * d->halves + of];
        const float bias = biases ? moek_from_t_(biases[w_row], a->dtype) : 0.0f;
        if (!ws->columns) by = moek_digits_scale_(a->gate_up.scales[of], w_row, ws->type, a->dtype);
        for (r = 0; r < rows; r++) {
            float scale = x_scale[r] * by;
            if (d->f.global_scale) scale = scale * moek_global_scale_of_(a, of, e);
            if (x_global_scale) scale = scale * a->a_global_scale[0];
            to[r] = (float)to[r] * scale + bias;
        }
    }
}
/* out = f(sum * scales + bias). */
static MOEK_UNUSED void moek_digits_store_(const moek_digits_ *d, int e, int p0, int rows, int j0, int columns,
                                           double (*sum)[MOEK_X_RUNS])
{
    const moek_gemm_ *const a = d->a;
    const int halves = d->halves, dtype = a->dtype;
    int r, j;
    for (j = 0; j < halves; j++) moek_digits_scaled_(d, e, p0, rows, j0, columns, j, sum);
    for (r = 0; r < rows; r++) {
        const size_t to = (size_t)(a->rows.out_order ? a->rows.out_order[p0 + r] : p0 + r);
        uint16_t *const out = (uint16_t *)a->out + to * (size_t)a->n + j0;
        for (j = 0; j < columns && !d->up; j++) out[j] = moek_to_t_((float)sum[j][r], dtype);
        for (j = 0; j < columns && d->up; j++) {
            const float g = (float)sum[j * halves][r], u = (float)sum[j * halves + halves - 1][r];
            out[j] = moek_to_t_(moek_epilogue_of_(&a->epilogue, g, u), dtype);
        }
    }
}
/* Of args of a launcher, which are copied to *found.  columns: of a scale of w, where the format leaves these open. */
MOEK_CPU_FN moek_digits_ moek_digits_of_(const void *args, moek_gemm_ *found, const moek_set_ *set, int op,
                                         int quant, int columns)
{
    moek_digits_ d;
    moek_format f = moek_cpu_formats_[0];
    int i;
    for (i = 0; f.number != quant; i++) f = moek_cpu_formats_[i];
    if (f.blocks) f.w_scale.columns = columns;
    memset(&d, 0, sizeof d);
    moek_take_gemm_(found, (const moek_gemm_args *)args);
    if (f.only_blocks || found->w.layout == MOEK_WEIGHTS_BLOCKS) {     /* which become s8 */
        d.block = moek_blocks_;
        while (d.block->type != f.file_type) d.block++;
        f.w = MOEK_ELEMENT_S8; f.w_bits = 8; f.w_scale = d.block->scale.of; f.w_scale.type = MOEK_SCALE_TYPE_F32;
        moek_find_gate_up_by_(found, (size_t)found->k / (size_t)f.file_columns * (size_t)f.file_bytes, 32, 0, 0, 0);
    } else {
        moek_find_gate_up_of_(found, f.w_bits, moek_digits_scale_bits_(&f), f.w_scale.rows, f.w_scale.columns, 0);
    }
    d.a = found; d.f = f; d.set = set;
    d.up = op == MOEK_OP_UP; d.halves = d.up && d.a->w_rows == 2 * d.a->n ? 2 : 1;
    d.each = moek_lane_columns_(f.w);
    d.offset = d.up || !f.w_scale.columns || d.block ? 0 : d.a->k_offset;
    d.all = d.offset + d.a->k;
    d.chunks = (d.all + d.each * MOEK_LANES - 1) / (d.each * MOEK_LANES);
    d.early = f.x_scale.rows && !f.x_scale.columns && f.w_scale.columns && f.w_scale.type == MOEK_SCALE_TYPE_F32;
    return d;
}
/* Columns of a task: x becomes digits in each, so they are no more tasks than threads need. */
enum { MOEK_DIGITS_COLUMNS = 512, MOEK_DIGITS_MIN_COLUMNS = 32 };
/* Columns of an expert, or none. */
static MOEK_UNUSED void moek_digits_task_(const void *data, long long task)
{
    const moek_digits_ *const d = (const moek_digits_ *)data;
    const moek_gemm_task_ t = moek_gemm_task_of_(d->a, d->columns, task);
    double sum[2 * MOEK_DIGITS_COLUMNS][MOEK_X_RUNS];
    int p;
    for (p = t.first; p < t.end; p += MOEK_X_RUNS) {
        const int rows = t.end - p < MOEK_X_RUNS ? t.end - p : (int)MOEK_X_RUNS;
        moek_digits_dots_(d, t.e, p, rows, t.j0, t.columns, sum);
        moek_digits_store_(d, t.e, p, rows, t.j0, t.columns, sum);
    }
}
/* A launcher's work.  (Blocks that no loop of the set takes go by plain C.) */
static MOEK_UNUSED moek_status moek_digits_launch_(const void *args, moek_stream stream, const moek_set_ *set, int op,
                                                   int quant, int columns, const moek_block_set_ *blocks)
{
    moek_gemm_ found;
    moek_digits_ d = moek_digits_of_(args, &found, set, op, quant, columns);
    if (d.block) d.unpack = blocks->unpack;
    if (d.block && blocks->dots) d.blocks = blocks;
    else if (d.block) d.set = &moek_set_cpu_;          /* (words and offset of the set are not for plain C) */
    d.columns = moek_gemm_columns_(d.a, stream, MOEK_DIGITS_COLUMNS, MOEK_DIGITS_MIN_COLUMNS);
    moek_parallel_for_(stream, moek_gemm_tasks_(d.a, d.columns), moek_digits_task_, &d);
    return MOEK_OK;
}
/* A row of the table: MOEK_DIGITS_ROW_(name, UP, INT4_A16, columns of a scale of w, avx2, AVX2, what the set has for
 * blocks, or NULL). */
#define MOEK_DIGITS_ROW_(row, OP, quant, columns, set, SET, blocks) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_digits_launch_(args, stream, &moek_set_##set##_, MOEK_OP_##OP, MOEK_##quant, columns, blocks); \
    }
#endif
