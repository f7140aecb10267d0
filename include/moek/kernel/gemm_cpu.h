/* moek/kernel/gemm_cpu.h -- up and down projections on the CPU, in plain C or with dots of a set of instructions.
 *
 *     out[p][j] = f(sum over k of a[row(p)][k] * w[e][j][k])         up: f is the activation of gate and up
 *
 * Bound by weight bytes while an expert holds at most m rows, by the FMA units above.  A task is one expert and a group
 * of columns.  It turns a stretch of m rows of a into f32 once, then streams each weight row by it: decode a piece to
 * f32 in L1, or codes in registers (moek_dots_), multiply by every row.  An expert with more rows goes round again,
 * with its weights from L2.
 *
 * A kernel is the facts of its format as constants (MOEK_GEMM_CPU_ROW_), and a task that all functions here become a
 * part of: what is written as a question of facts is none in its code.                                               */
#include "cpu.h"
#ifndef MOEK_GEMM_CPU_H
#define MOEK_GEMM_CPU_H

/* M: rows of a at once, at most; RUN: lanes are summed after so many of k; COLUMNS: of a task. */
enum { MOEK_CPU_M = 8, MOEK_CPU_RUN = 1024, MOEK_CPU_X = MOEK_CPU_RUN * MOEK_CPU_M, MOEK_CPU_COLUMNS = 32 };

typedef void moek_dots_fn_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns, moek_dots_ a);
/* At most 128 columns of a block as f32: part 0, or 1 of a block of 256 (moek_blocks_cpu.h). */
typedef void moek_block_fn_(float *to, const uint8_t *block, int part);
/* What a set of instructions has for whole pieces of an element: sum[row of x] += n columns of a row of w, times unit,
 * lanes summed after each RUN of k; and a piece of x, T or of w's element, in the order of pieces of w. */
typedef struct moek_cpu_rows_ {
    void (*row)(float *sum, const void *w, int n, float unit, moek_dots_ a);
    void (*x)(float *to, const void *from, int element, int dtype);
} moek_cpu_rows_;
typedef struct moek_gemm_cpu_ {
    const moek_format *f;
    int op, hidden, columns, m;                        /* hidden: baked in, or 0; columns: of a scale of w, if open;
                                                          m: rows of a at once                                        */
    moek_dots_fn_ *dots;                               /* sums of pieces side by side, or NULL: pieces become f32     */
    moek_block_fn_ *block;                             /* w lies in blocks; or NULL                                   */
    const moek_cpu_rows_ *rows;                        /* or NULL: all goes by dots                                   */
} moek_gemm_cpu_;

/* ---- what follows from the facts --------------------------------------------------------------------------------- */

/* Columns of w that share a scale; of w or of x, the fewest, a group of k; 0: all. */
MOEK_CPU_LOOP_ int moek_cpu_w_columns_(const moek_gemm_cpu_ *c)
{
    return c->f->blocks ? c->columns : c->f->w_scale.columns;
}
MOEK_CPU_LOOP_ int moek_cpu_columns_(const moek_gemm_cpu_ *c)
{
    const int w = moek_cpu_w_columns_(c), x = c->f->x_scale.columns;
    return !w || (x && x < w) ? x : w;
}
/* Groups of a piece, at least 1. */
MOEK_CPU_LOOP_ int moek_cpu_groups_(const moek_gemm_cpu_ *c)
{
    const int columns = moek_cpu_columns_(c);
    return columns ? MOEK_PIECE / columns : 1;
}
/* Scales of the groups of a stretch are made f32 ahead. */
MOEK_CPU_LOOP_ int moek_cpu_ahead_(const moek_gemm_cpu_ *c)
{
    return moek_cpu_groups_(c) > 1 || (c->dots && moek_cpu_columns_(c));
}
/* A scale of a row of x acts in the loop, where w's does: both may be extreme. */
MOEK_CPU_LOOP_ int moek_cpu_early_(const moek_gemm_cpu_ *c)
{
    return c->f->x_scale.rows && !c->f->x_scale.columns && moek_cpu_columns_(c) &&
           c->f->w_scale.type == MOEK_SCALE_TYPE_F32;
}
/* Groups of k have scales of x, then: of their own, or the row's; ones where pieces want them. */
MOEK_CPU_LOOP_ int moek_cpu_x_ahead_(const moek_gemm_cpu_ *c)
{
    return moek_cpu_ahead_(c) && (c->f->x_scale.columns || moek_cpu_early_(c) || !c->dots);
}
/* A group of k may begin before k does; smaller ones may lie before it altogether. */
MOEK_CPU_LOOP_ int moek_cpu_shifted_(const moek_gemm_cpu_ *c)
{
    return c->op == MOEK_OP_DOWN && moek_cpu_columns_(c);
}
MOEK_CPU_LOOP_ int moek_cpu_outside_(const moek_gemm_cpu_ *c)
{
    const int columns = moek_cpu_columns_(c);
    return moek_cpu_shifted_(c) && (columns < moek_cpu_w_columns_(c) || columns < c->f->x_scale.columns);
}
/* Decoded pieces of an element are 1 / unit of the values.  So x is multiplied by a number; or, where x comes as it is
 * and may be large, sums are. */
MOEK_CPU_LOOP_ int moek_cpu_unit_(const int element)
{
#define MOEK_UNIT_(NAME, name, unit, integer) if (element == MOEK_ELEMENT_##NAME) return unit;
    MOEK_EACH_PIECE_(MOEK_UNIT_)
#undef MOEK_UNIT_
    return 1;
}
MOEK_CPU_LOOP_ int moek_cpu_of_x_(const moek_gemm_cpu_ *c)
{
    return moek_cpu_unit_(c->f->x) * (c->f->w == c->f->x ? moek_cpu_unit_(c->f->w) : 1);
}
MOEK_CPU_LOOP_ int moek_cpu_of_sum_(const moek_gemm_cpu_ *c)
{
    return c->f->w == c->f->x ? 1 : moek_cpu_unit_(c->f->w);
}
/* Integers: a float holds the sum of a RUN, a double all of them. */
MOEK_CPU_LOOP_ int moek_cpu_exact_(const moek_gemm_cpu_ *c)
{
#define MOEK_INTEGER_(NAME, name, unit, integer) \
    if ((integer) && c->f->w == MOEK_ELEMENT_##NAME && c->f->x == MOEK_ELEMENT_##NAME) return !moek_cpu_columns_(c);
    MOEK_EACH_PIECE_(MOEK_INTEGER_)
#undef MOEK_INTEGER_
    return 0;
}
MOEK_CPU_LOOP_ int moek_cpu_k_(const moek_gemm_cpu_ *c, const moek_gemm_ *a)
{
    return c->op == MOEK_OP_UP && c->hidden ? c->hidden : a->k;
}
MOEK_CPU_LOOP_ int moek_cpu_n_(const moek_gemm_cpu_ *c, const moek_gemm_ *a)
{
    return c->op == MOEK_OP_DOWN && c->hidden ? c->hidden : a->n;
}
MOEK_CPU_LOOP_ int moek_cpu_halves_(const moek_gemm_cpu_ *c, const moek_gemm_ *a)
{
    return c->op == MOEK_OP_UP && a->w_rows == 2 * a->n ? 2 : 1;
}
MOEK_CPU_LOOP_ int moek_cpu_more_(const moek_format *f)
{
    return f->global_scale || f->zero || (f->static_x && f->x_scale.rows);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Element i of a row. */
MOEK_CPU_LOOP_ const void *moek_cpu_at_(const void *row, int i, const int bits)
{
    return (const char *)row + (bits < 8 ? i / 2 : (ptrdiff_t)i * (bits / 8));
}
/* Elements begin to end - 1 of a row, some of a piece, with zeros behind them; where k < 0, behind -k zeros. */
MOEK_CPU_CALL_ const void *moek_cpu_tail_(void *tail, const void *row, int bits, int k, int begin, int end)
{
    memset(tail, 0, (size_t)(MOEK_PIECE * bits / 8));
    memcpy((char *)tail + (k < 0 ? -k * bits / 8 : 0), moek_cpu_at_(row, begin, bits),
           (size_t)((end - begin) * bits / 8));
    return tail;
}
/* 128 of a row from k on; k counts from the first group's begin, which lies `offset` before the row.  What is not there
 * is 0. */
MOEK_CPU_LOOP_ const void *moek_cpu_padded_(const moek_gemm_cpu_ *c, void *tail, const void *row, const int bits, int k,
                                            int offset, int all)
{
    int begin, end;
    if (moek_cpu_shifted_(c)) k -= offset, all -= offset;
    begin = moek_cpu_shifted_(c) && k < 0 ? 0 : k; end = all - k < MOEK_PIECE ? all : k + MOEK_PIECE;
    if (end - begin == MOEK_PIECE) return moek_cpu_at_(row, begin, bits);
    return moek_cpu_tail_(tail, row, bits, moek_cpu_groups_(c) > 1 ? k : 0, begin, end);
}
/* A piece of an element, in its own order. */
MOEK_CPU_LOOP_ void moek_cpu_piece_(float *to, const void *from, const int element)
{
#define MOEK_PIECE_OF_(NAME, name, unit, integer) if (element == MOEK_ELEMENT_##NAME) moek_piece_##name##_(to, from);
    MOEK_EACH_PIECE_(MOEK_PIECE_OF_)
#undef MOEK_PIECE_OF_
}
/* A piece of x, in the order of one of w. */
MOEK_CPU_LOOP_ void moek_cpu_x_piece_(const moek_gemm_cpu_ *c, float *to, const void *from, int dtype)
{
    float own[MOEK_PIECE];
    if (c->block && c->f->x_bits == 16) {
        moek_decode_t_(to, (const uint16_t *)from, MOEK_PIECE, dtype);
    } else if (c->block) {                             /* s8: in the order of columns, as blocks are decoded */
        int i;
        for (i = 0; i < MOEK_PIECE; i++) to[i] = ((const int8_t *)from)[i];
    } else if (c->f->w == c->f->x) {
        moek_cpu_piece_(to, from, c->f->x);
    } else {
        if (c->f->x != MOEK_ELEMENT_T) moek_cpu_piece_(own, from, c->f->x);
        else if (dtype == MOEK_DTYPE_FP16) moek_piece_fp16_(own, from);
        else moek_piece_bf16_(own, from);
        moek_piece_order_(to, own, 32 / c->f->x_bits, 32 / c->f->w_bits);
    }
}
/* 128 columns of a row of blocks, from k on; zeros behind the last. */
MOEK_CPU_LOOP_ void moek_cpu_blocks_(const moek_gemm_cpu_ *c, float *to, const uint8_t *row, int k, int all)
{
    const int columns = c->f->file_columns, part = columns < MOEK_PIECE ? columns : MOEK_PIECE;
    const uint8_t *b = row + (size_t)(k / columns) * (size_t)c->f->file_bytes;
    int i;
    for (i = 0; i < MOEK_PIECE; i += part, b += part / columns * c->f->file_bytes) {
        if (k + i < all) c->block(to + i, b, columns > part ? k % columns / part : 0);
        else memset(to + i, 0, (size_t)part * sizeof *to);
    }
}
/* Scales of a row, of `own` columns each, as f32: of `groups` groups from column k on; behind the last 0.  0, too,
 * where a group has no column from `offset` on: such scales are of another shard, and may be NaN. */
MOEK_CPU_LOOP_ void moek_cpu_scales_(const moek_gemm_cpu_ *c, float *to, const void *row, const int type, const int own,
                                     const int by, int k, int offset, int all, int groups, int dtype)
{
    const int columns = moek_cpu_columns_(c), left = (all - k + columns - 1) / columns;
    const int there = left < groups ? left : groups;
    int g;
    if (own != columns)
        for (g = 0; g < there; g++)
            to[g] = moek_digits_scale_(row, (size_t)((k + g * columns) / own), type, dtype);
    else if (type == MOEK_SCALE_TYPE_F32) memcpy(to, (const float *)row + k / columns, (size_t)there * sizeof *to);
    else if (type == MOEK_SCALE_TYPE_E8M0) moek_scales_e8m0_(to, (const uint8_t *)row + k / columns, there);
    else if (type == MOEK_SCALE_TYPE_E4M3) moek_scales_e4m3_(to, (const uint8_t *)row + k / columns, there);
    else if (dtype == MOEK_DTYPE_FP16) moek_scales_fp16_(to, (const uint16_t *)row + k / columns, there);
    else moek_scales_bf16_(to, (const uint16_t *)row + k / columns, there);
    if (by > 1) for (g = 0; g < there; g++) to[g] *= (float)by;
    for (g = there; g < groups; g++) to[g] = 0;
    if (moek_cpu_outside_(c)) for (g = 0; g < groups && k + (g + 1) * columns <= offset; g++) to[g] = 0;
}
/* Zero points of a row of w as pieces have values, of `groups` groups from column k on. */
MOEK_CPU_LOOP_ void moek_cpu_zeros_(const moek_gemm_cpu_ *c, float *to, const uint8_t *row, int k, int all, int groups)
{
    const int columns = moek_cpu_w_columns_(c), w = c->f->w;
    int g;
    for (g = 0; g < groups; g++, k += MOEK_PIECE / moek_cpu_groups_(c)) {
        const int i = columns ? k / columns : 0;
        const uint8_t code = c->f->w_bits == 4 ? (uint8_t)(row[i / 2] >> 4 * (i % 2) & 15) : row[i];
        float zero = 0;
#define MOEK_ZERO_(NAME, name, unit, integer) \
        if (w == MOEK_ELEMENT_##NAME) zero = moek_from_##name##_(code) * (1.0f / (unit));
        MOEK_EACH_PIECE_(MOEK_ZERO_)
#undef MOEK_ZERO_
        to[g] = k < all ? zero : 0;
    }
}
/* Sum s of the columns from j0 on takes this row of w, of half *of; gate and up of a column are neighbours. */
MOEK_CPU_LOOP_ size_t moek_cpu_w_row_(const moek_gemm_ *a, int halves, int j0, int s, int *of)
{
    *of = halves == 2 ? s % 2 : 0;
    return halves == 2 ? (size_t)(j0 + s / 2) * (size_t)a->gate_up.step : (size_t)(j0 + s);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* A stretch: n of k from k on, of `all`, which count from the first group's begin, `offset` before a row; `columns`
 * from a row of x to the next, of `rows`. */
typedef struct moek_cpu_stretch_ { int rows, columns, k, n, offset, all; } moek_cpu_stretch_;
/* Of it as f32: x, and scales and zero points of its groups.  8 more may be read (moek_dots_). */
enum { MOEK_CPU_GROUPS = MOEK_CPU_X / 16 + 8 };
typedef struct moek_cpu_made_ { float *x, *x_scale, *w_scale, *zero; } moek_cpu_made_;

/* Row r of x. */
MOEK_CPU_LOOP_ void moek_cpu_load_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, moek_cpu_stretch_ t, int r,
                                   size_t from, moek_cpu_made_ made)
{
    const moek_scale_shape *const xs = &c->f->x_scale;
    const int bits = c->f->x_bits, by = moek_cpu_of_x_(c), groups = moek_cpu_groups_(c);
    const size_t row = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)moek_cpu_k_(c, a) * (size_t)bits / 8;
    const void *const in = (const char *)a->a + from * row;
    float *const x = made.x + r * t.columns;
    uint16_t tail[MOEK_PIECE];
    int i;
    for (i = 0; i < t.n; i += MOEK_PIECE) {
        const void *const piece = moek_cpu_padded_(c, tail, in, bits, t.k + i, t.offset, t.all);
        if (c->rows) c->rows->x(x + i, piece, c->f->x, a->dtype);
        else moek_cpu_x_piece_(c, x + i, piece, a->dtype);
    }
    if (moek_cpu_ahead_(c) && xs->columns) {
        const size_t blocks = ((size_t)t.all + (size_t)xs->columns - 1) / (size_t)xs->columns;
        moek_cpu_scales_(c, made.x_scale + r * t.columns / MOEK_PIECE * groups,
                         (const char *)a->a_scale + from * blocks * (size_t)moek_digits_bits_(xs->type) / 8, xs->type,
                         xs->columns, 1, t.k, t.offset, t.all, (t.n + MOEK_PIECE - 1) / MOEK_PIECE * groups, a->dtype);
    } else if (c->dots && moek_cpu_early_(c)) {
        for (i = 0; i < t.n; i += MOEK_PIECE)
            made.x_scale[(r * t.columns + i) / MOEK_PIECE] = moek_digits_scale_(a->a_scale, from, xs->type, a->dtype);
    }
    /* Here, and not with the scales: by it a scale may be too large for a float where no result is. */
    if (by != 1) for (i = 0; i < (t.n + MOEK_PIECE - 1) / MOEK_PIECE * MOEK_PIECE; i++) x[i] *= (float)by;
}
/* Of sums of codes in plain C each kernel has its own, with its constants.  (By name: a function that a pointer leads
 * to is not always found to be one to put there, as with -Og.) */
MOEK_CPU_LOOP_ void moek_cpu_dots_(moek_dots_fn_ *of, float (*lanes)[MOEK_LANES], const void *from, int pieces,
                                   int columns, moek_dots_ a)
{
#define MOEK_CPU_DOTS_OF_(name) \
    if (of == moek_dots_##name##_) { moek_dots_##name##_into_(lanes, from, pieces, columns, a); return; }
    MOEK_EACH_DOTS_(MOEK_CPU_DOTS_OF_)
#undef MOEK_CPU_DOTS_OF_
    of(lanes, from, pieces, columns, a);
}
/* lanes += columns i0 to end - 1 of the stretch, by moek_dots_ with the rows of `dots`. */
MOEK_CPU_LOOP_ void moek_cpu_codes_(const moek_gemm_cpu_ *c, moek_cpu_stretch_ t, moek_cpu_made_ made, moek_dots_ *dots,
                                    const void *w, int zeros, int i0, int end, float (*lanes)[MOEK_LANES])
{
    const int columns = moek_cpu_columns_(c), groups = moek_cpu_groups_(c), shifted = moek_cpu_shifted_(c);
    uint16_t tail[MOEK_PIECE];
    int i, n;
    for (i = i0; i < end; i += n * MOEK_PIECE) {
        /* Whole pieces side by side; else one, of which some is missing. */
        const int k = t.k + i - (shifted ? t.offset : 0), whole = shifted && k < 0 ? 0 : (end - i) / MOEK_PIECE;
        const void *const from = whole ? moek_cpu_at_(w, k, c->f->w_bits)
                                       : moek_cpu_padded_(c, tail, w, c->f->w_bits, t.k + i, t.offset, t.all);
        if (moek_cpu_ahead_(c)) dots->scale = made.w_scale + i / MOEK_PIECE * groups;
        if (moek_cpu_x_ahead_(c)) dots->x_scale = made.x_scale + i / MOEK_PIECE * groups;
        if (c->f->zero) dots->zero = zeros ? made.zero + i / MOEK_PIECE * groups : NULL;
        dots->x = made.x + i;
        n = whole ? whole : 1;
        moek_cpu_dots_(c->dots, lanes, from, n, columns ? columns : MOEK_PIECE, *dots);
    }
}
/* All of a stretch, which is whole pieces, by functions of a set. */
MOEK_CPU_LOOP_ void moek_cpu_row_(const moek_gemm_cpu_ *c, moek_cpu_stretch_ t, moek_cpu_made_ made, moek_dots_ dots,
                                  const void *w, float *sum)
{
    if (moek_cpu_ahead_(c)) dots.scale = made.w_scale;
    if (moek_cpu_x_ahead_(c)) dots.x_scale = made.x_scale;
    dots.x = made.x;
    c->rows->row(sum, w, t.n, moek_cpu_ahead_(c) ? 1 : (float)moek_cpu_of_sum_(c), dots);
}
/* The scale of piece i of the stretch, for the row of x that lies in row `from` of a. */
MOEK_CPU_LOOP_ float moek_cpu_scale_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, moek_cpu_stretch_ t, int i,
                                     size_t from, const void *w_scales)
{
    const moek_scale_shape *const xs = &c->f->x_scale;
    const int columns = moek_cpu_columns_(c), g = columns ? (t.k + i) / columns : 0;
    float scale = 1;
    if (columns && xs->columns)
        scale = moek_digits_scale_(a->a_scale, from * (((size_t)t.all + (size_t)columns - 1) / (size_t)columns) +
                                   (size_t)g, xs->type, a->dtype);
    else if (moek_cpu_early_(c)) scale = moek_digits_scale_(a->a_scale, from, xs->type, a->dtype);
    if (moek_cpu_w_columns_(c))
        scale = scale * moek_digits_scale_(w_scales, (size_t)g, c->f->w_scale.type, a->dtype);
    return scale * (float)moek_cpu_of_sum_(c);
}
/* The same by pieces that become f32 first. */
MOEK_CPU_LOOP_ void moek_cpu_pieces_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, moek_cpu_stretch_ t,
                                     const size_t *from, moek_cpu_made_ made, const void *w, const void *w_scales,
                                     int zeros, int i0, int end, float (*lanes)[MOEK_LANES])
{
    const moek_format *const f = c->f;
    const int groups = moek_cpu_groups_(c), bits = f->w_bits, parts = c->block ? 1 : 32 / bits;
    const int bytes = c->block ? MOEK_PIECE * f->file_bytes / f->file_columns : MOEK_PIECE * bits / 8;
    float piece[MOEK_PIECE] MOEK_LINE_ALIGNED_;
    uint16_t tail[MOEK_PIECE];
    int i, r;
    for (i = i0; i < end; i += MOEK_PIECE) {
        const void *const next = c->block
            ? (const char *)w + (ptrdiff_t)((t.k + i) / f->file_columns) * f->file_bytes
            : (const char *)moek_cpu_at_(w, t.k + i, bits);
        for (r = 0; r < bytes; r += 64) MOEK_PREFETCH((uintptr_t)next + MOEK_AHEAD + (uintptr_t)r);
        if (c->block) moek_cpu_blocks_(c, piece, (const uint8_t *)w, t.k + i, t.all);
        else moek_cpu_piece_(piece, moek_cpu_padded_(c, tail, w, bits, t.k + i, t.offset, t.all), f->w);
        if (f->zero && zeros)
            moek_less_zeros_(piece, made.zero + i / MOEK_PIECE * groups, parts, MOEK_PIECE / groups);
        for (r = 0; r < t.rows; r++) {
            const float *const x = made.x + r * t.columns + i;
            if (groups > 1)
                moek_dot_groups_(lanes[r], piece, x, made.w_scale + i / MOEK_PIECE * groups,
                                 made.x_scale + (r * t.columns + i) / MOEK_PIECE * groups, parts, MOEK_PIECE / groups);
            else moek_dot_(lanes[r], piece, x, moek_cpu_scale_(c, a, t, i, from[r], w_scales));
        }
    }
}
/* sum[s][r] = w row s . row p0 + r of a.  Lanes are summed after each RUN of k, whatever the number of rows: so the
 * bits of a row do not depend on which rows are beside it.  exact: in the place of sum, of integers. */
MOEK_CPU_LOOP_ void moek_cpu_sums_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, int e, int p0, int rows,
                                   int j0, int sums, float (*sum)[MOEK_CPU_M], double (*exact)[MOEK_CPU_M])
{
    const moek_format *const f = c->f;
    const moek_gate_up_ *const h = &a->gate_up;
    const int groups = moek_cpu_groups_(c), halves = moek_cpu_halves_(c, a), k = moek_cpu_k_(c, a);
    const int columns = moek_cpu_w_columns_(c);
    const size_t w_bytes = c->block ? (size_t)k / (size_t)f->file_columns * (size_t)f->file_bytes
                                    : (size_t)k * (size_t)f->w_bits / 8;
    float x[MOEK_CPU_X] MOEK_LINE_ALIGNED_, x_scale[MOEK_CPU_GROUPS], w_scale[MOEK_CPU_GROUPS], zero[MOEK_CPU_GROUPS];
    float lanes[MOEK_CPU_M][MOEK_LANES] MOEK_LINE_ALIGNED_;
    size_t from[MOEK_CPU_M], w_blocks, scale_bytes, zero_bytes;
    moek_cpu_made_ made;
    moek_cpu_stretch_ t;
    moek_dots_ dots;
    int s, r, i0, i, there;
    made.x = x; made.x_scale = x_scale; made.w_scale = w_scale; made.zero = zero;
    t.rows = rows;
    t.columns = MOEK_CPU_RUN * c->m / rows / MOEK_CPU_RUN * MOEK_CPU_RUN; /* few rows: long ways through the weights */
    t.offset = moek_cpu_shifted_(c) ? a->k_offset : 0;
    t.all = t.offset + k;
    w_blocks = columns ? ((size_t)t.all + (size_t)columns - 1) / (size_t)columns : 1;
    scale_bytes = w_blocks * (size_t)moek_digits_bits_(f->w_scale.type) / 8;
    zero_bytes = (w_blocks * (size_t)f->w_bits + 7) / 8;
    memset(&dots, 0, sizeof dots);
    dots.rows = rows; dots.x_row = (size_t)t.columns;
    if (moek_cpu_ahead_(c) || f->zero) dots.x_scale_row = (size_t)(t.columns / MOEK_PIECE * groups);
    for (r = 0; r < rows; r++) from[r] = moek_digits_from_(a, p0 + r);
    if (moek_cpu_exact_(c)) memset(exact, 0, (size_t)sums * sizeof *exact);
    else memset(sum, 0, (size_t)sums * sizeof *sum);
    if (moek_cpu_ahead_(c) && !c->dots && !f->x_scale.columns)
        for (i = 0; i < c->m * MOEK_CPU_RUN / MOEK_PIECE * groups; i++) x_scale[i] = 1;
    for (t.k = 0; t.k < t.all; t.k += t.columns) {
        t.n = t.all - t.k < t.columns ? t.all - t.k : t.columns;
        for (r = 0; r < rows; r++) moek_cpu_load_(c, a, t, r, from[r], made);
        there = (t.n + MOEK_PIECE - 1) / MOEK_PIECE * groups;
        for (s = 0; s < sums; s++) {
            int of;
            const size_t row = moek_cpu_w_row_(a, halves, j0, s, &of), w_row = (size_t)e * (size_t)h->rows + row;
            const char *const w = (const char *)h->codes[of] + w_row * w_bytes;
            const char *w_scales = NULL;
            const uint8_t *zeros = NULL;
            if (columns)
                w_scales = (const char *)h->scales[of] + scale_bytes * ((size_t)e * (size_t)h->scale_rows +
                    (f->w_scale.rows == 1 ? row : ((size_t)h->shift[of] + row) / (size_t)f->w_scale.rows));
            if (f->zero && h->zero_points[of]) {
                zeros = (const uint8_t *)h->zero_points[of] + w_row * zero_bytes;
                moek_cpu_zeros_(c, zero, zeros, t.k, t.all, there);
            }
            if (moek_cpu_ahead_(c) && !columns)        /* (blocks have theirs in them) */
                for (i = 0; i < there; i++) w_scale[i] = 1;
            else if (moek_cpu_ahead_(c))
                moek_cpu_scales_(c, w_scale, w_scales, f->w_scale.type, columns, moek_cpu_of_sum_(c), t.k, t.offset,
                                 t.all, there, a->dtype);
            if (c->rows && t.n % MOEK_PIECE == 0 && !t.offset) {
                moek_cpu_row_(c, t, made, dots, moek_cpu_at_(w, t.k, f->w_bits), sum[s]);
                continue;
            }
            for (i0 = 0; i0 < t.n; i0 += MOEK_CPU_RUN) {
                const int end = t.n < i0 + MOEK_CPU_RUN ? t.n : i0 + MOEK_CPU_RUN;
                memset(lanes, 0, (size_t)rows * sizeof *lanes);
                if (c->dots) moek_cpu_codes_(c, t, made, &dots, w, zeros != NULL, i0, end, lanes);
                else moek_cpu_pieces_(c, a, t, from, made, w, w_scales, zeros != NULL, i0, end, lanes);
                for (r = 0; r < rows; r++) {
                    const float lane = moek_sum_lanes_(lanes[r]);
                    if (moek_cpu_exact_(c)) exact[s][r] += lane;
                    else if (c->dots && !moek_cpu_ahead_(c)) sum[s][r] += lane * (float)moek_cpu_of_sum_(c);
                    else sum[s][r] += lane;
                }
            }
        }
    }
}
/* out = act(sum * scales + bias). */
MOEK_CPU_LOOP_ void moek_cpu_store_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, int e, int p0, int rows,
                                    int j0, int sums, float (*sum)[MOEK_CPU_M], double (*exact)[MOEK_CPU_M])
{
    const moek_format *const f = c->f;
    const moek_scale_shape *const ws = &f->w_scale, *const xs = &f->x_scale;
    const int halves = moek_cpu_halves_(c, a), x_row = xs->rows && !xs->columns && !moek_cpu_early_(c);
    int s, r;
    for (s = 0; s < sums; s++) {
        int of;
        const size_t w_row = (size_t)e * (size_t)a->gate_up.rows + moek_cpu_w_row_(a, halves, j0, s, &of);
        const float bias = a->w.bias ? moek_from_t_(((const uint16_t *)a->gate_up.bias[of])[w_row], a->dtype) : 0.0f;
        for (r = 0; r < rows; r++) {
            float scale = 1;
            if (x_row || (xs->type && !xs->rows))
                scale = moek_digits_scale_(a->a_scale, x_row ? moek_digits_from_(a, p0 + r) : 0, xs->type, a->dtype);
            if (ws->type && !moek_cpu_w_columns_(c))
                scale = scale * moek_digits_scale_(a->gate_up.scales[of], ws->rows ? w_row : (size_t)e, ws->type,
                                                   a->dtype);
            if (f->global_scale) scale = scale * moek_global_scale_of_(a, of, e);
            if (f->static_x && xs->rows) scale = scale * a->a_global_scale[0];
            sum[s][r] = (moek_cpu_exact_(c) ? (float)exact[s][r] : sum[s][r]) * scale + bias;
        }
    }
    for (r = 0; r < rows; r++) {
        const size_t to = (size_t)(a->rows.out_order ? a->rows.out_order[p0 + r] : p0 + r);
        uint16_t *const out = (uint16_t *)a->out + to * (size_t)moek_cpu_n_(c, a) + j0;
        for (s = 0; s < sums; s += halves) {
            const float g = sum[s][r], u = sum[s + halves - 1][r];
            const float y = c->op == MOEK_OP_UP ? moek_epilogue_of_(&a->epilogue, g, u) : g;
            out[s / halves] = moek_to_t_(y, a->dtype);
        }
    }
}

/* ---- a kernel ---------------------------------------------------------------------------------------------------- */

/* Columns of an expert, or none. */
MOEK_CPU_LOOP_ void moek_cpu_task_(const moek_gemm_cpu_ *c, const moek_gemm_ *a, long long task)
{
    const moek_gemm_task_ t = moek_gemm_task_of_(a, MOEK_CPU_COLUMNS, task);
    const int sums = t.columns * moek_cpu_halves_(c, a);
    float sum[2 * MOEK_CPU_COLUMNS][MOEK_CPU_M];
    double exact[2 * MOEK_CPU_COLUMNS][MOEK_CPU_M];
    int p;
    for (p = t.first; p < t.end; p += c->m) {
        const int rows = t.end - p < c->m ? t.end - p : c->m;
        moek_cpu_sums_(c, a, t.e, p, rows, t.j0, sums, sum, exact);
        moek_cpu_store_(c, a, t.e, p, rows, t.j0, sums, sum, exact);
    }
}
static MOEK_UNUSED moek_status moek_cpu_launch_(const void *args, moek_stream stream, const moek_gemm_cpu_ *c,
                                                moek_task_fn task)
{
    const moek_format *const f = c->f;
    const int columns = moek_cpu_w_columns_(c);
    moek_gemm_ found;
    moek_take_gemm_(&found, (const moek_gemm_args *)args);
    if (c->block)
        moek_find_gate_up_by_(&found, (size_t)found.k / (size_t)f->file_columns * (size_t)f->file_bytes, 32, 0, 0, 0);
    else moek_find_gate_up_of_(&found, f->w_bits, moek_digits_bits_(f->w_scale.type), f->w_scale.rows, columns, 0);
    moek_parallel_for_(stream, moek_gemm_tasks_(&found, MOEK_CPU_COLUMNS), task, &found);
    return MOEK_OK;
}
/* What a launcher has for weights that lie in one way: facts, and a task. */
#define MOEK_GEMM_CPU_WAY_(way, format, OP, hidden, columns, m, dots, block, rows) \
    static const moek_gemm_cpu_ way##_facts_ = { &format, MOEK_OP_##OP, hidden, columns, m, dots, block, rows }; \
    static void way##_task_(const void *data, long long task) \
    { \
        moek_cpu_task_(&way##_facts_, (const moek_gemm_ *)data, task); \
    }
/* A row of the table: MOEK_GEMM_CPU_ROW_(name, UP, INT4_A16, hidden or 0, columns of a scale of w, m, AVX2, dots, what
 * decodes blocks, and moek_cpu_rows_, or NULL). */
#define MOEK_GEMM_CPU_ROW_(row, OP, quant, hidden, columns, m, SET, dots, block, rows) \
    MOEK_GEMM_CPU_WAY_(row, moek_cpu_formats_[MOEK_CPU_FORMAT_##quant], OP, hidden, columns, m, dots, block, rows) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_cpu_launch_(args, stream, &row##_facts_, row##_task_); \
    }
/* Of a format that has arrays and blocks, which `block` decodes. */
#define MOEK_GEMM_CPU_ROW_OF_TWO_(row, OP, quant, hidden, columns, m, SET, dots, block, rows) \
    MOEK_GEMM_CPU_WAY_(row, moek_cpu_formats_[MOEK_CPU_FORMAT_##quant], OP, hidden, columns, m, dots, NULL, rows) \
    MOEK_GEMM_CPU_WAY_(row##_in_blocks, moek_cpu_in_blocks_[MOEK_CPU_IN_BLOCKS_##quant], OP, hidden, 0, m, NULL, \
                       block, NULL) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        const moek_gemm_args *const a = (const moek_gemm_args *)args; \
        if (!a) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        if (a->w.layout != MOEK_WEIGHTS_BLOCKS) return moek_cpu_launch_(a, stream, &row##_facts_, row##_task_); \
        return moek_cpu_launch_(a, stream, &row##_in_blocks_facts_, row##_in_blocks_task_); \
    }
#endif
