/* moek/kernel/tile.h -- up and down of few rows an expert on CPUs, of weights in panels (moek_repack_up).
 *
 * A lane is a row of w, so nothing is added up across lanes, and a panel is one linear stream.  32 columns are a block;
 * 32 blocks, a panel of which stays in L1, a run.  x is q and t under a power of two for each block, as in digits.h.
 * Of a block, a lane's sum of code * q is an exact integer; (float)sum * s and FMA with the scale of w add that to the
 * lane's f32.  Fours of columns that have a t come after the blocks of their run, as a list; or t counts in all blocks
 * of the run (`dense`).  s8 times s8 is exact throughout.  Blocks of GGUF files become words of codes, scales and
 * minimums of a unit in L1, once for all rows of x; t counts throughout, and a minimum multiplies the sum of x.
 *
 * So plain C, which is the measure, and each set of instructions (tile_avx2.h, ..) give the same bits, and so does any
 * number of rows.  A row of x with a NaN or Inf, which no integer has, is multiplied as many rows are (panel.h).  So
 * is a row with x of 2^115 and more: sums of codes times x may exceed f32 before the scale.                          */
#include "panel.h"
#ifndef MOEK_TILE_H
#define MOEK_TILE_H

enum {
    MOEK_TILE_BLOCKS = 32, MOEK_TILE_K = 32 * MOEK_TILE_BLOCKS,        /* of a run: blocks, columns */
    MOEK_TILE_ROWS = 4,                                /* of x at a time */
    MOEK_TILE_RUNS = 4,                                /* what a task has room for: rows of x, times runs of each */
    MOEK_TILE_THIRDS = 48,                             /* fours of columns in the list of a run; more: dense */
    MOEK_TILE_STRIPS = 16,                             /* the most of a task, which share x */
    MOEK_TILE_SUMS = MOEK_TILE_ROWS * (int)MOEK_STRIP, /* of a strip */
    MOEK_TILE_TOP = 242 << 23,                         /* bits of 2^115: 32 codes times x may be 2^12 times as much */
    MOEK_TILE_AHEAD = 12288, MOEK_TILE_AHEAD_SCALES = 1024              /* bytes that are asked for early */
};
/* Four columns of x that have a t. */
typedef struct moek_tile_third_ {
    int8_t digit[8];                                   /* t; for a set that takes `words` as words */
    int32_t at, high, group, less;                     /* byte of the run's panel; 1: high halves of codes; half of a
                                                          block, 0 the first; what an offset of the codes adds */
    float s, by;
} moek_tile_third_;
/* x of a run. */
typedef struct moek_tile_x_ {
    /* low and high of q, t; columns in their order.  Or, for a set that takes `words`, q in [0] and [1] and t in [2]
     * and [3], as words: of four columns the first and the third, then the others. */
    int8_t digit[4][MOEK_TILE_K];
    int32_t less[2][3 * MOEK_TILE_BLOCKS];             /* of q and, if dense, of t: what an offset adds in both halves
                                                          of a block, in all of it */
    float s[MOEK_TILE_BLOCKS], by[2 * MOEK_TILE_BLOCKS];               /* s times the unit of codes; scales of x */
    float low[2][2 * MOEK_TILE_BLOCKS];                /* of halves of blocks, of blocks: sums of x, for minimums */
    moek_tile_third_ third[MOEK_TILE_THIRDS];
    int thirds, dense;                                 /* entries of the list; 1: t counts in all blocks */
} moek_tile_x_;
/* A panel, of a run. */
typedef struct moek_tile_w_ {
    const uint8_t *codes;
    const char *scale;                                 /* [group][16], or NULL: none acts here */
    const uint8_t *zero;                               /* [group][8]: byte b has rows b and b + 8; or NULL */
    const float *min;                                  /* [group][16], of blocks: times sums of x; or NULL */
    int element, scale_type, scale_bytes, dtype;
    int log;                                           /* columns of a group are 1 << log */
    int first, blocks;                                 /* column of the first group with which the run begins; blocks */
    int exact;                                         /* x is s8, and sums are bits of int32 */
    int less;                                          /* bytes.h: what makes codes of blocks numbers without a sign */
} moek_tile_w_;
/* A unit of blocks of GGUF files. */
typedef struct moek_tile_unit_ {
    uint32_t words[MOEK_UNIT_PARTS * MOEK_PART_WORDS];
    float scale[2 * MOEK_UNIT_PARTS * MOEK_PANEL], min[2 * MOEK_UNIT_PARTS * MOEK_PANEL];
    int parts, halves, sign;                           /* halves: 16 columns have a scale; sign: there are minimums */
} MOEK_LINE_ALIGNED_ moek_tile_unit_;
/* The same of a unit of `parts` parts as it lies. */
typedef void moek_tile_few_(float *sum, const uint8_t *unit, int parts, const moek_tile_x_ *const *x, int b, int rows);
/* What a set of instructions has.  Sums are [row of x][MOEK_STRIP]. */
typedef struct moek_tile_set_ {
    const moek_panel_set_ *panel;
    /* Block b of x to digits.  Returns fours with a t, a bit each; *top: as moek_top_. */
    uint32_t (*encode)(moek_tile_x_ *to, int b, const float *x, int offset, int words, uint32_t *top);
    void (*place)(moek_tile_x_ *to, int b, const int8_t *x, int offset, int words);    /* of s8 */
    void (*less)(int32_t *less, const int8_t *digit, int offset);      /* three numbers of 32 columns */
    void (*run)(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *const *x, int rows);
    int e2m1, s8, words;                               /* offsets of codes; 1: of s8 q as words */
} moek_tile_set_;

/* ---- plain C: the measure ---------------------------------------------------------------------------------------- */

MOEK_CPU_FN void moek_tile_less_(int32_t *less, int half, int32_t sum)
{
    less[half] = sum;
    less[2] = half ? less[0] + sum : sum;
}
MOEK_CPU_FN uint32_t moek_tile_encode_plain_(moek_tile_x_ *to, int b, const float *x, int offset, int words,
                                             uint32_t *top)
{
    const uint32_t most = moek_top_(0, x, 32), power = moek_power_(most);
    const float inverse = moek_float_((254 - power) << 23);
    int32_t sum = 0;
    uint32_t found = 0;
    int i;
    (void)words;
    *top = most > *top ? most : *top;
    to->s[b] = moek_float_(power << 23);
    for (i = 0; i < 32; i++) {
        const int at = 32 * b + i;
        int t;
        const int q = moek_q_(x[i] * inverse, &t), low = (int8_t)(q & 255);
        to->digit[0][at] = (int8_t)low; to->digit[1][at] = (int8_t)((q - low) / 256); to->digit[2][at] = (int8_t)t;
        sum += offset * q;
        found |= (uint32_t)(t != 0) << i / 4;
        if (i % 16 == 15) moek_tile_less_(to->less[0] + 3 * b, i / 16, sum), sum = 0;
    }
    return found;
}
/* The same of digits: what an offset of codes adds. */
MOEK_CPU_FN void moek_tile_less_of_(int32_t *less, const int8_t *digit, int offset)
{
    int32_t sum = 0;
    int i;
    for (i = 0; i < 32; i++) {
        sum += offset * digit[i];
        if (i % 16 == 15) moek_tile_less_(less, i / 16, sum), sum = 0;
    }
}
MOEK_CPU_FN void moek_tile_place_plain_(moek_tile_x_ *to, int b, const int8_t *x, int offset, int words)
{
    (void)words;
    memcpy(to->digit[0] + 32 * b, x, 32);
    moek_tile_less_of_(to->less[0] + 3 * b, x, offset);
}
/* Of four columns the sum of codes, in 4 bytes of a row, times a digit. */
MOEK_CPU_FN int32_t moek_tile_four_(int element, const uint8_t *codes, int high, const int8_t *digit)
{
    int32_t sum = 0;
    int i;
    for (i = 0; i < 4; i++)
        sum += digit[i] * (element == MOEK_ELEMENT_S8 ? moek_code_(element, codes[i])
                                                      : moek_code_(element, codes[i] >> 4 * high & 15));
    return sum;
}
/* Of a row and of half a block. */
MOEK_CPU_FN int32_t moek_tile_half_(const moek_tile_w_ *w, const uint8_t *codes, int half, const int8_t *digit)
{
    const int s8 = w->element == MOEK_ELEMENT_S8;
    int32_t sum = 0;
    int v;
    for (v = 0; v < 4; v++)
        sum += moek_tile_four_(w->element, codes + 64 * (s8 ? 4 * half + v : v), half, digit + 16 * half + 4 * v);
    return sum;
}
MOEK_CPU_FN float moek_tile_scale_(const moek_tile_w_ *w, int half, int row)
{
    const size_t g = (size_t)((w->first + 16 * half) >> w->log);
    return w->scale ? moek_digits_scale_(w->scale, g * MOEK_PANEL + (size_t)row, w->scale_type, w->dtype) : 1;
}
MOEK_CPU_FN int32_t moek_tile_zero_(const moek_tile_w_ *w, int half, int row)
{
    const size_t g = (size_t)((w->first + 16 * half) >> w->log);
    return w->zero ? w->zero[8 * g + (size_t)(row % 8)] >> row / 8 * 4 & 15 : 1;
}
/* Blocks and list of a run of a row of w and one of x. */
MOEK_CPU_FN float moek_tile_dot_plain_(float sum, const moek_tile_w_ *w, const moek_tile_x_ *x, int row)
{
    const int each = w->log == 4 ? 1 : 2, bytes = w->element == MOEK_ELEMENT_S8 ? 512 : 256;   /* each: halves that */
    int b, h, i, j;                                                                        /* have a scale in common */
    for (b = 0; b < w->blocks; b++)
        for (h = 0; h < 2; h += each) {
            const uint8_t *const codes = w->codes + bytes * b + 4 * row;
            const int32_t zero = moek_tile_zero_(w, 2 * b + h, row);
            int32_t low = 0, high = 0, third = 0;
            float f;
            for (i = h; i < h + each; i++) {
                low += moek_tile_half_(w, codes, i, x->digit[0] + 32 * b) - zero * x->less[0][3 * b + i];
                high += moek_tile_half_(w, codes, i, x->digit[1] + 32 * b);
                if (!x->dense) continue;               /* third digits are a list, and nothing is written there */
                third += moek_tile_half_(w, codes, i, x->digit[2] + 32 * b) - zero * x->less[1][3 * b + i];
            }
            f = (float)(256 * high + low);
            if (x->dense) f = moek_fma_((float)third, 0.00390625f, f);
            sum = moek_fma_(f * x->s[b], moek_tile_scale_(w, 2 * b + h, row) * x->by[2 * b + h], sum);
        }
    for (j = 0; j < x->thirds; j++) {
        const moek_tile_third_ *const t = &x->third[j];
        const int32_t d = moek_tile_four_(w->element, w->codes + t->at + 4 * row, t->high, t->digit);
        sum = moek_fma_((float)(d - moek_tile_zero_(w, t->group, row) * t->less) * t->s,
                        moek_tile_scale_(w, t->group, row) * t->by, sum);
    }
    return sum;
}
MOEK_CPU_FN float moek_tile_exact_plain_(float sum, const moek_tile_w_ *w, const moek_tile_x_ *x, int row)
{
    int32_t whole;
    int b, h;
    memcpy(&whole, &sum, sizeof whole);
    for (b = 0; b < w->blocks; b++)
        for (h = 0; h < 2; h++) whole += moek_tile_half_(w, w->codes + 512 * b + 4 * row, h, x->digit[0] + 32 * b);
    memcpy(&sum, &whole, sizeof sum);
    return sum;
}
MOEK_CPU_FN void moek_tile_run_plain_(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *const *x, int rows)
{
    int r, i;
    for (r = 0; r < rows; r++)
        for (i = 0; i < MOEK_PANEL; i++) {
            float *const to = sum + r * MOEK_STRIP + i;
            *to = w->exact ? moek_tile_exact_plain_(*to, w, x[r], i) : moek_tile_dot_plain_(*to, w, x[r], i);
        }
}
/* Part p of a unit, and block b of x: a row of w and one of x. */
MOEK_CPU_FN float moek_tile_part_plain_(float sum, const moek_tile_unit_ *u, int p, const moek_tile_x_ *x, int b,
                                        int row)
{
    const int each = u->halves ? 1 : 2;                /* halves that have a scale in common */
    moek_tile_w_ w;
    int h, i;
    memset(&w, 0, sizeof w);
    w.element = MOEK_ELEMENT_S8;
    w.codes = (const uint8_t *)(u->words + p * MOEK_PART_WORDS + row);
    for (h = 0; h < 2; h += each) {
        const float scale = u->scale[(2 * p + h) / each * MOEK_PANEL + row];
        int32_t q = 0, t = 0;
        for (i = h; i < h + each; i++) {
            q += 256 * moek_tile_half_(&w, w.codes, i, x->digit[1] + 32 * b) +
                 moek_tile_half_(&w, w.codes, i, x->digit[0] + 32 * b) - x->less[0][3 * b + i];
            t += moek_tile_half_(&w, w.codes, i, x->digit[2] + 32 * b) - x->less[1][3 * b + i];
        }
        sum = moek_fma_(moek_fma_((float)t, 0.00390625f, (float)q) * x->s[b], scale * x->by[2 * b + h], sum);
    }
    for (h = 0; h < 2 && u->sign; h += each)
        sum = moek_fma_(u->min[(2 * p + h) / each * MOEK_PANEL + row], x->low[each - 1][2 * b + h], sum);
    return sum;
}
MOEK_CPU_FN void moek_tile_unit_plain_(float *sum, const moek_tile_unit_ *u, const moek_tile_x_ *const *x, int b,
                                       int rows)
{
    int r, i, p;
    for (r = 0; r < rows; r++)
        for (i = 0; i < MOEK_PANEL; i++) {
            float *const to = sum + r * MOEK_STRIP + i;
            for (p = 0; p < u->parts; p++) *to = moek_tile_part_plain_(*to, u, p, x[r], b + p, i);
        }
}
static MOEK_UNUSED const moek_tile_set_ moek_tile_set_cpu_ = {
    &moek_panel_set_cpu_, moek_tile_encode_plain_, moek_tile_place_plain_, moek_tile_less_of_, moek_tile_run_plain_,
    0, 0, 0
};

/* What a loop is compiled for, besides the rows: X(name, element, kind). */
enum { MOEK_TILE_ZERO = 1, MOEK_TILE_HALVES = 2, MOEK_TILE_DENSE = 4, MOEK_TILE_EXACT = 8, MOEK_TILE_MIN = 16 };
#define MOEK_TILES_OF_(X) \
    X(u4b8, MOEK_ELEMENT_U4B8, 0) X(u4b8_zero, MOEK_ELEMENT_U4B8, MOEK_TILE_ZERO) \
    X(e2m1, MOEK_ELEMENT_E2M1, 0) X(e2m1_halves, MOEK_ELEMENT_E2M1, MOEK_TILE_HALVES) \
    X(s8, MOEK_ELEMENT_S8, 0) X(s8_exact, MOEK_ELEMENT_S8, MOEK_TILE_EXACT)

/* ---- a GEMM ------------------------------------------------------------------------------------------------------ */

/* What a launcher found. */
typedef struct moek_tiles_ {
    moek_panels_ p, floats;                            /* sums are what they mean; rows of large x, NaN, Inf */
    const moek_tile_set_ *set;
    moek_tile_few_ *few;                               /* of blocks in panels; or NULL: by plain C */
    int offset, words;                                 /* of codes; q of x as words */
    int exact;
} moek_tiles_;

/* Scales of x, of halves of blocks of a run. */
MOEK_CPU_FN void moek_tile_by_(const moek_tiles_ *t, float *by, size_t from, int k, int n)
{
    const moek_digits_ *const d = &t->p.d;
    const moek_scale_shape *const xs = &d->f.x_scale;
    const int acts = d->early || xs->columns;
    const size_t row = xs->columns ? ((size_t)d->all + (size_t)xs->columns - 1) / (size_t)xs->columns : 1;
    float last = 1;
    int i, g, group = -1;
    for (i = 0; i < n; i += 16) {
        g = xs->columns ? (k + i) / xs->columns : 0;
        if (acts && g != group)
            last = moek_digits_scale_(d->a->a_scale, from * row + (size_t)g, xs->type, d->a->dtype), group = g;
        by[i / 16] = last;
    }
}
/* The list: fours of block b that have a t. */
MOEK_CPU_FN void moek_tile_list_(const moek_tiles_ *t, moek_tile_x_ *to, int b, uint32_t found)
{
    const int s8 = t->p.d.f.w == MOEK_ELEMENT_S8;
    int i, j;
    for (i = 0; i < 8 && !to->dense; i++) {
        moek_tile_third_ *const third = &to->third[to->thirds];
        const int8_t *const from = t->words ? to->digit[2] + 64 * b + 8 * i : to->digit[2] + 32 * b + 4 * i;
        if (!(found >> i & 1)) continue;
        if (to->thirds == MOEK_TILE_THIRDS) { to->dense = 1; break; }
        memset(third->digit, 0, sizeof third->digit);
        memcpy(third->digit, from, t->words ? 8 : 4);
        third->at = s8 ? 512 * b + 64 * i : 256 * b + 64 * (i % 4);
        third->high = i / 4;
        third->group = 2 * b + i / 4;
        for (third->less = j = 0; j < 4 && t->offset; j++) third->less += t->offset * from[j];
        third->s = to->s[b] * 0.00390625f;
        third->by = to->by[third->group];
        to->thirds++;
    }
}
/* Sums of x of a run, for minimums, which are there in the place of what an offset adds. */
MOEK_CPU_FN void moek_tile_lows_(moek_tile_x_ *to, int blocks)
{
    int b, i;
    for (b = 0; b < blocks; b++)
        for (i = 0; i < 3; i++) {
            int32_t *const q = &to->less[0][3 * b + i], *const t = &to->less[1][3 * b + i];
            to->low[i == 2][2 * b + i % 2] = (float)(256 * *q + *t) * (to->s[b] * 0.00390625f) * to->by[2 * b];
            *q = *t = 0;
        }
}
/* Run number `run` of row `from` of x.  Returns the bits of the largest |x|. */
static MOEK_UNUSED uint32_t moek_tile_x_of_(const moek_tiles_ *t, moek_tile_x_ *to, size_t from, int run)
{
    const moek_digits_ *const d = &t->p.d;
    const moek_gemm_ *const a = d->a;
    const size_t row_bytes = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)a->k * (size_t)d->f.x_bits / 8;
    const char *const row = (const char *)a->a + from * row_bytes;
    const int k = run * MOEK_TILE_K, n = a->k - k < MOEK_TILE_K ? a->k - k : MOEK_TILE_K;
    float x[MOEK_TILE_K + 8];
    uint32_t top = 0;
    int b;
    to->thirds = 0; to->dense = t->p.units != NULL;
    if (t->exact) {
        for (b = 0; b < n / 32; b++) t->set->place(to, b, (const int8_t *)row + k + 32 * b, t->offset, t->words);
        return 0;
    }
    if (d->f.x == MOEK_ELEMENT_E4M3) t->p.set->scales(x, &t->p.e4m3, row + k, n);
    else moek_digits_x_(d, x, row, d->offset + k, n);
    moek_tile_by_(t, to->by, from, d->offset + k, n);
    for (b = 0; b < n / 32; b++) {
        const uint32_t found = t->set->encode(to, b, x + 32 * b, t->offset, t->words, &top);
        if (d->f.w == MOEK_ELEMENT_E2M1) to->s[b] *= 0.5f;             /* codes are twice the value */
        if (found) moek_tile_list_(t, to, b, found);
    }
    if (to->dense) to->thirds = 0;
    for (b = 0; b < n / 32 && to->dense && t->words; b++) memset(to->less[1] + 3 * b, 0, 3 * sizeof(int32_t));
    for (b = 0; b < n / 32 && to->dense && !t->words; b++)
        t->set->less(to->less[1] + 3 * b, to->digit[2] + 32 * b, t->offset);
    if (t->p.units && d->block->sign) moek_tile_lows_(to, n / 32);
    return top;
}
/* A panel, of all runs. */
MOEK_CPU_FN moek_tile_w_ moek_tile_w_at_(const moek_tiles_ *t, const moek_panel_at_ *at)
{
    const moek_digits_ *const d = &t->p.d;
    const moek_scale_shape *const ws = &d->f.w_scale;
    const int group = ws->columns ? ws->columns : 1 << 30;       /* of a scale */
    moek_tile_w_ w;
    memset(&w, 0, sizeof w);
    w.codes = at->w; w.scale = at->scale; w.zero = at->zero;
    w.element = d->f.w; w.scale_type = at->scale ? ws->type : MOEK_SCALE_TYPE_NONE; w.dtype = d->a->dtype;
    w.scale_bytes = moek_digits_scale_bits_(&d->f) / 8;
    w.exact = t->exact;
    w.log = 4;
    while (group > 1 << w.log) w.log++;
    return w;
}
MOEK_CPU_FN moek_tile_w_ moek_tile_w_of_(const moek_tiles_ *t, int e, int j, int of, uint8_t zeros[8])
{
    const moek_panel_at_ at = moek_panel_at_of_(&t->p, e, j, of);
    moek_tile_w_ w = moek_tile_w_at_(t, &at);
    int r;
    if (!at.zero_step) return w;
    for (r = 0; r < 8; r++) {                          /* of whole rows: as they come */
        const uint8_t *const zero = at.zero + (size_t)r * at.zero_step;
        zeros[r] = (uint8_t)((zero[0] & 15) | (zero[8 * at.zero_step] & 15) << 4);
    }
    w.zero = zeros;
    return w;
}
/* The same of blocks of GGUF files: a unit at a time, for all rows of x. */
static MOEK_UNUSED void moek_tile_units_(const moek_tiles_ *t, float *sum, const uint8_t *unit, int run0, int runs,
                                         const moek_tile_x_ *x, int rows)
{
    const moek_digits_ *const d = &t->p.d;
    const size_t bytes = MOEK_PANEL * moek_panel_unit_bytes_(d);
    const int end = run0 * MOEK_TILE_K + runs * MOEK_TILE_K, parts = (end < d->a->k ? end : d->a->k) / MOEK_PART;
    const moek_tile_x_ *in[MOEK_TILE_ROWS];
    moek_tile_unit_ u;
    int p, r, i, n;
    u.halves = d->block->scale.of.columns == 16;
    u.sign = d->block->sign;
    unit += (size_t)(run0 * ((int)MOEK_TILE_K / (int)MOEK_UNIT)) * bytes;
    for (p = run0 * MOEK_TILE_BLOCKS; p < parts; p += MOEK_UNIT_PARTS, unit += bytes) {
        const int left = d->a->k / MOEK_PART - p, of = (p / MOEK_TILE_BLOCKS - run0) * rows;
        u.parts = left < MOEK_UNIT_PARTS ? left : MOEK_UNIT_PARTS;
        if (!t->few) t->p.units->parts(u.words, u.scale, u.min, unit, u.parts, 0, u.parts, 1);
        for (r = 0; r < rows; r += n) {
            n = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
            for (i = 0; i < n; i++) in[i] = x + of + r + i;
            if (t->few) t->few(sum + r * MOEK_STRIP, unit, u.parts, in, p % MOEK_TILE_BLOCKS, n);
            else moek_tile_unit_plain_(sum + r * MOEK_STRIP, &u, in, p % MOEK_TILE_BLOCKS, n);
        }
    }
}
/* sum += runs from run0 on, which are in x[run][row of x]. */
static MOEK_UNUSED void moek_tile_panel_(const moek_tiles_ *t, float *sum, int e, int j, int of, int run0, int runs,
                                         const moek_tile_x_ *x, int rows)
{
    const moek_digits_ *const d = &t->p.d;
    const size_t step = (size_t)(MOEK_TILE_K * 2) * (size_t)d->f.w_bits;
    uint8_t zeros[8];
    moek_tile_w_ w = moek_tile_w_of_(t, e, j, of, zeros);
    const moek_tile_x_ *in[MOEK_TILE_ROWS];
    int run, r, n;
    if (t->p.units) { moek_tile_units_(t, sum, w.codes, run0, runs, x, rows); return; }
    w.codes += (size_t)run0 * step;
    for (run = run0; run < run0 + runs; run++, w.codes += step) {
        const int left = d->a->k - run * MOEK_TILE_K;
        w.first = d->offset + run * MOEK_TILE_K;
        w.blocks = (left < MOEK_TILE_K ? left : MOEK_TILE_K) / 32;
        for (r = 0; r < rows; r += n) {
            int i, dense = 0;
            n = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
            for (i = 0; i < n; i++) {
                in[i] = x + (run - run0) * rows + r + i;
                dense += in[i]->dense;
            }
            if (dense % n == 0) t->set->run(sum + r * MOEK_STRIP, &w, in, n);
            else for (i = 0; i < n; i++) t->set->run(sum + (r + i) * MOEK_STRIP, &w, in + i, 1);
        }
    }
}
/* sum[strip][MOEK_TILE_ROWS][MOEK_STRIP] of at most MOEK_TILE_ROWS rows of x.  Returns rows that are not done so, a bit
 * each. */
static MOEK_UNUSED int moek_tile_sums_(const moek_tiles_ *t, int e, int p0, int rows, int j0, int columns, float *sum)
{
    const moek_digits_ *const d = &t->p.d;
    const int runs = (d->a->k + MOEK_TILE_K - 1) / MOEK_TILE_K, at_once = MOEK_TILE_RUNS / rows;
    const int strip = MOEK_STRIP / d->halves;
    moek_tile_x_ x[MOEK_TILE_RUNS];
    int run0, run, r, j, of, floats = 0;
    for (j = 0; j < columns; j += strip)
        memset(sum + j / strip * MOEK_TILE_SUMS, 0, (size_t)(rows * (int)MOEK_STRIP) * sizeof *sum);
    for (run0 = 0; run0 < runs; run0 += at_once) {
        const int n = runs - run0 < at_once ? runs - run0 : at_once;
        for (r = 0; r < rows; r++)
            for (run = 0; run < n; run++)
                if (moek_tile_x_of_(t, &x[run * rows + r], moek_digits_from_(d->a, p0 + r), run0 + run) >=
                    MOEK_TILE_TOP) floats |= 1 << r;
        for (j = 0; j < columns; j += MOEK_PANEL)
            for (of = 0; of < d->halves; of++) {
                float *const to = sum + j / strip * MOEK_TILE_SUMS;
                moek_tile_panel_(t, to + moek_panel_lane_(d, j % strip, of), e, j0 + j, of, run0, n, x, rows);
            }
    }
    return floats;
}
/* Rows as many are done. */
static MOEK_UNUSED void moek_tile_floats_(const moek_tiles_ *t, int e, int p0, int rows, int j0, int columns)
{
    float sum[MOEK_PANEL_X * MOEK_STRIP];
    moek_panel_sums_(&t->floats, e, p0, rows, j0, columns, sum);
    moek_panel_store_(&t->floats, e, p0, rows, j0, columns, sum);
}
MOEK_CPU_FN moek_tiles_ moek_tiles_of_(const void *args, moek_gemm_ *found, const moek_tile_set_ *set, int op,
                                       int quant, int columns)
{
    moek_tiles_ t;
    memset(&t, 0, sizeof t);
    t.set = set;
    t.floats = t.p = moek_panels_of_(args, found, set->panel, op, quant, columns);
    t.p.w_unit = t.p.x_unit = 1;
    t.exact = t.p.how == MOEK_SUM_EXACT;
    t.words = set->words && t.p.d.f.w == MOEK_ELEMENT_S8;
    t.offset = t.p.d.a->gate_up.zero_points[0] ? 1 : t.p.d.f.w == MOEK_ELEMENT_U4B8 ? 8
             : t.p.d.f.w == MOEK_ELEMENT_E2M1 ? set->e2m1 : set->s8;
    return t;
}
/* Weights in blocks of GGUF files.  (What minimums multiply is a sum of x: as an offset of 1 would add that.) */
MOEK_CPU_FN void moek_tiles_in_units_(moek_tiles_ *t, const moek_units_ *units, moek_tile_few_ *few)
{
    t->few = few;
    t->p.units = t->floats.units = units;
    t->words = units->words;
    t->offset = t->p.d.block->sign ? 1 : units->offset;
}
/* `rows` rows of x and `columns` columns of out. */
static MOEK_UNUSED void moek_tile_rows_of_(const moek_tiles_ *t, int e, int p0, int rows, int j0, int columns)
{
    const int strip = MOEK_STRIP / t->p.d.halves, long_sums = t->exact && t->p.d.a->k > MOEK_PANEL_EXACT;
    float sum[(int)MOEK_TILE_STRIPS * (int)MOEK_TILE_SUMS];
    const int floats = long_sums ? (1 << rows) - 1 : moek_tile_sums_(t, e, p0, rows, j0, columns, sum);
    int j, r;
    for (j = 0; j < columns; j += strip) {
        const int width = columns - j < strip ? columns - j : strip;
        if (!long_sums)
            moek_panel_store_(&t->p, e, p0, rows, j0 + j, width, sum + j / strip * MOEK_TILE_SUMS);
        for (r = 0; r < rows; r++) if (floats >> r & 1) moek_tile_floats_(t, e, p0 + r, 1, j0 + j, width);
    }
}
/* Strips of an expert, or none. */
static MOEK_UNUSED void moek_tile_task_(const void *data, long long task)
{
    const moek_tiles_ *const t = (const moek_tiles_ *)data;
    const moek_gemm_task_ g = moek_gemm_task_of_(t->p.d.a, t->p.d.columns, task);
    int row;
    for (row = g.first; row < g.end; row += MOEK_TILE_ROWS)
        moek_tile_rows_of_(t, g.e, row, g.end - row < MOEK_TILE_ROWS ? g.end - row : (int)MOEK_TILE_ROWS, g.j0,
                           g.columns);
}
/* A launcher's work. */
static MOEK_UNUSED moek_status moek_tile_launch_(const void *args, moek_stream stream, const moek_tile_set_ *set,
                                                 int op, int quant, int columns, const moek_units_ *units,
                                                 moek_tile_few_ *few)
{
    moek_gemm_ found;
    moek_tiles_ t = moek_tiles_of_(args, &found, set, op, quant, columns);
    const int strip = MOEK_STRIP / t.p.d.halves;
    if (units) moek_tiles_in_units_(&t, units, few);
    t.p.d.columns = moek_gemm_columns_(t.p.d.a, stream, MOEK_TILE_STRIPS * strip, strip);
    moek_parallel_for_(stream, moek_gemm_tasks_(t.p.d.a, t.p.d.columns), moek_tile_task_, &t);
    return MOEK_OK;
}
/* A row of the table, as MOEK_DIGITS_ROW_. */
#define MOEK_TILE_ROW_(row, OP, quant, columns, set, SET, units, few) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_tile_launch_(args, stream, &moek_tile_set_##set##_, MOEK_OP_##OP, MOEK_##quant, columns, \
                                 units, few); \
    }
#endif
