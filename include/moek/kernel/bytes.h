/* moek/kernel/bytes.h -- up and down on CPUs where x is s8: products of bytes, whose sums are integers.
 *
 *   sum[row of x][row of w] += (float)(codes . x, of 32 columns) * scale of x * scale of w
 *
 * A lane is a row of w, 16 of which are a panel (tile.h).  32 columns of w, 256 bytes of codes of 4 bits, go to
 * registers as bytes, once for all rows of x; four columns of x are broadcast.  So a sum of 32 columns is exact, and
 * one chain of FMAs over these is a sum: plain C, which is the measure, and each set of instructions (bytes_avx2.h, ..)
 * give the same bits, and so do both layouts, and any number of rows.  s8 times s8, whose scales are a row's: one sum.
 *
 * Weights lie in panels (moek_repack_up), or as they come: then words of 16 rows are put side by side first.  Of blocks
 * of GGUF files in panels four rows of x at a time take codes from where these lie, or words of 128 columns are made
 * for all (moek_byte_set_.unit_rows).                                                                                */
#include "tile.h"
#ifndef MOEK_BYTES_H
#define MOEK_BYTES_H

enum {
    MOEK_BYTES_ROWS = 48,                              /* of x at a time */
    MOEK_BYTES_ROOM = MOEK_BYTES_ROWS * 512,           /* bytes of x in a task: of few rows more columns */
    MOEK_BYTES_SUMS = MOEK_BYTES_ROOM / 32,            /* blocks of rows of x in there */
    MOEK_BYTES_TURN = 128,                             /* columns of w that are put side by side at a time */
    MOEK_BYTES_UNIT_WORDS = 16,                        /* moek_byte_set_.unit_rows, where x is words */
    MOEK_BYTES_ZERO = 15                               /* codes less their zero points, plus this, have no sign */
};
/* Some columns of rows of x. */
typedef struct moek_bytes_x_ {
    int8_t code[MOEK_BYTES_ROOM];                      /* [block][row][32]; for a set with `words`, of s8, 32 words */
    int32_t start[MOEK_BYTES_SUMS];                    /* [block][row]: what codes without a sign are too large by */
    float s[MOEK_BYTES_SUMS];                          /* the scale of x, times the unit of codes */
    float low[2][MOEK_BYTES_SUMS];                     /* of blocks with minimums: s times the sum of x; with scales of
                                                          16 columns, of both halves of 32 */
    int32_t half[MOEK_BYTES_SUMS];                     /* there start is for the second half, and this for the first */
} moek_bytes_x_;
/* sum[rows][MOEK_STRIP] += a unit of `parts` parts of blocks in panels as it lies, of all rows of x; b: x's block of
 * the first part. */
typedef void moek_bytes_unit_(float *sum, const uint8_t *unit, int parts, const moek_bytes_x_ *x, int b, int rows);
/* How 32 columns of x lie: as they come; as codes of 4 bits do that come, even ones first; as words, of four columns
 * the first and the third, then the others; for tiles, 64 columns of a row. */
enum { MOEK_BYTES_COLUMNS, MOEK_BYTES_EVEN_ODD, MOEK_BYTES_WORDS, MOEK_BYTES_PAIRS };
/* Codes of blocks that have at most 4, 5 or 6 bits, of w with `less`. */
#define MOEK_SMALL_(e) ((e) == MOEK_ELEMENT_U4 || (e) == MOEK_ELEMENT_U5 || (e) == MOEK_ELEMENT_U6B32)
/* What a set of instructions has. */
typedef struct moek_byte_set_ {
    const moek_panel_set_ *panel;
    /* Blocks of a row of x, each `step` bytes behind the one before, with a number each in start[], `rows` apart. */
    void (*place)(int8_t *to, size_t step, int32_t *start, int rows, const int8_t *x, int blocks, int offset,
                  int order);
    /* sum[rows][MOEK_STRIP] += one panel, or two side by side, of which w->blocks blocks from x's block `b` on */
    void (*run)(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b, int rows);
    int e2m1, s8, words;                               /* offsets of codes; 1: of s8 x as words, but small codes */
    int unit_rows;                                     /* so many rows of x take blocks in panels as these lie */
    /* Rows of x that a tile has, or 0.  From so many on, rows are filled up with zeros to whole tiles, and lie 64
     * columns side by side where whole rows are added up; begin and end stand around all calls of `run` then. */
    int tile;
    void (*begin)(int exact), (*end)(void);
} moek_byte_set_;

/* ---- plain C: the measure ---------------------------------------------------------------------------------------- */

MOEK_CPU_FN void moek_bytes_place_plain_(int8_t *to, size_t step, int32_t *start, int rows, const int8_t *x, int blocks,
                                         int offset, int order)
{
    int b, i;
    for (b = 0; b < blocks; b++, to += step, start += rows, x += 32)
        for (*start = i = 0; i < 32; i++) {
            to[order == MOEK_BYTES_EVEN_ODD ? i / 2 + i % 2 * 16 : i] = x[i];
            *start -= offset * x[i];
        }
}
/* A block of codes as integers: 16 rows of 32 columns. */
MOEK_CPU_FN void moek_bytes_codes_plain_(int to[32][MOEK_PANEL], const moek_tile_w_ *w, int b)
{
    const int s8 = w->element == MOEK_ELEMENT_S8;
    const uint8_t *const codes = w->codes + (s8 ? 512 : 256) * b;
    int i, l;
    for (i = 0; i < 32; i++)
        for (l = 0; l < MOEK_PANEL; l++) {
            const int byte = codes[64 * (s8 ? i / 4 : i % 16 / 4) + 4 * l + i % 4];
            to[i][l] = moek_code_(w->element, s8 ? byte : byte >> i / 16 * 4 & 15);
            if (w->zero) to[i][l] += MOEK_BYTES_ZERO - moek_tile_zero_(w, 2 * b, l);
        }
}
/* Block i of w, with scales of 16 columns, and one of a row of x. */
MOEK_CPU_FN void moek_bytes_halves_plain_(float *to, int codes[32][MOEK_PANEL], const moek_tile_w_ *w,
                                          const moek_bytes_x_ *x, int i, int at)
{
    int h, l, j;
    for (h = 0; h < 2; h++)
        for (l = 0; l < MOEK_PANEL; l++) {
            int32_t whole = h ? x->start[at] : x->half[at];
            for (j = 16 * h; j < 16 * h + 16; j++) whole += codes[j][l] * x->code[32 * at + j];
            to[l] = moek_fma_((float)whole * x->s[at], moek_tile_scale_(w, 2 * i + h, l), to[l]);
        }
    for (h = 0; h < 2 && w->min; h++)
        for (l = 0; l < MOEK_PANEL; l++)
            to[l] = moek_fma_(w->min[MOEK_PANEL * (2 * i + h) + l], x->low[h][at], to[l]);
}
MOEK_CPU_FN void moek_bytes_panel_plain_(float *sum, const moek_tile_w_ *w, const moek_bytes_x_ *x, int b, int rows)
{
    int codes[32][MOEK_PANEL], i, j, r, l;
    for (i = 0; i < w->blocks; i++) {
        float scale[MOEK_PANEL];
        moek_bytes_codes_plain_(codes, w, i);
        for (l = 0; l < MOEK_PANEL; l++) scale[l] = moek_tile_scale_(w, 2 * i, l);
        for (r = 0; r < rows && w->log == 4; r++)
            moek_bytes_halves_plain_(sum + r * MOEK_STRIP, codes, w, x, i, (b + i) * rows + r);
        for (r = 0; r < rows && w->log != 4; r++) {
            const int at = (b + i) * rows + r;
            const int8_t *const in = x->code + 32 * at;
            float *const to = sum + r * MOEK_STRIP;
            int32_t whole[MOEK_PANEL];
            if (w->exact) memcpy(whole, to, sizeof whole);
            else for (l = 0; l < MOEK_PANEL; l++) whole[l] = x->start[at];
            for (j = 0; j < 32; j++) for (l = 0; l < MOEK_PANEL; l++) whole[l] += codes[j][l] * in[j];
            if (w->exact) memcpy(to, whole, sizeof whole);
            else for (l = 0; l < MOEK_PANEL; l++) to[l] = moek_fma_((float)whole[l] * x->s[at], scale[l], to[l]);
            for (l = 0; l < MOEK_PANEL && w->min; l++)
                to[l] = moek_fma_(w->min[MOEK_PANEL * i + l], x->low[0][at], to[l]);
        }
    }
}
MOEK_CPU_FN void moek_bytes_run_plain_(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b,
                                       int rows)
{
    int i;
    for (i = 0; i < panels; i++) moek_bytes_panel_plain_(sum + MOEK_PANEL * i, w + i, x, b, rows);
}
static MOEK_UNUSED const moek_byte_set_ moek_byte_set_cpu_ = {
    &moek_panel_set_cpu_, moek_bytes_place_plain_, moek_bytes_run_plain_, 0, 0, 0, 0, 0, NULL, NULL
};

/* ---- a GEMM ------------------------------------------------------------------------------------------------------ */

/* What a launcher found. */
typedef struct moek_bytes_ {
    moek_tiles_ t;                                     /* (without a set) */
    const moek_byte_set_ *set;
    moek_bytes_unit_ *unit;                            /* of blocks in panels as these lie; or NULL: by words */
    int order;                                         /* MOEK_BYTES_COLUMNS, .. */
    int column;                                        /* bytes of a column of x */
    int element;                                       /* of codes of blocks: s8, or a small one */
} moek_bytes_;
/* Columns of a panel that came as rows. */
typedef struct moek_bytes_rows_ {
    uint32_t words[MOEK_BYTES_TURN / 4 * MOEK_PANEL];
    char scale[MOEK_PANEL_GROUPS * MOEK_PANEL * 4];
    float min[MOEK_PANEL_GROUPS * MOEK_PANEL];
    uint8_t zero[MOEK_BYTES_TURN / 32 * 8];
} moek_bytes_rows_;

/* Rows of x as they are laid out: as many, or whole tiles. */
MOEK_CPU_FN int moek_bytes_laid_(const moek_bytes_ *t, int rows)
{
    const int tile = t->set->tile;
    return tile && rows >= tile ? (rows + tile - 1) / tile * tile : rows;
}
MOEK_CPU_FN int moek_bytes_pairs_(const moek_bytes_ *t, int laid)
{
    return t->t.exact && t->set->tile && laid >= t->set->tile;
}
/* Where block b of row r of x lies. */
MOEK_CPU_FN int8_t *moek_bytes_at_(const moek_bytes_ *t, moek_bytes_x_ *to, int b, int r, int laid)
{
    if (moek_bytes_pairs_(t, laid)) return to->code + 64 * (b / 2 * laid + r) + 32 * (b % 2);
    return to->code + 32 * t->column * (b * laid + r);
}
/* Do so many rows of x take blocks in panels as these lie? */
MOEK_CPU_FN int moek_bytes_by_units_(const moek_bytes_ *t, int rows)
{
    return t->unit && rows <= (t->order == MOEK_BYTES_WORDS ? (int)MOEK_BYTES_UNIT_WORDS : t->set->unit_rows);
}
/* Of 16 columns of x. */
MOEK_CPU_FN int32_t moek_bytes_sum_(const int8_t *x)
{
    int32_t sum = 0;
    int i;
    for (i = 0; i < 16; i++) sum += x[i];
    return sum;
}
/* Columns k to k + n - 1 of rows of x as blocks, times `units` of rows; outside of x they are zeros. */
static MOEK_UNUSED void moek_bytes_x_of_(const moek_bytes_ *t, moek_bytes_x_ *to, const float *units, int p0, int rows,
                                         int k, int n)
{
    const int laid = moek_bytes_laid_(t, rows), pairs = moek_bytes_pairs_(t, laid), blocks = (n + 31) / 32;
    const int order = pairs ? (int)MOEK_BYTES_PAIRS : t->order, all = pairs ? (blocks + 1) / 2 * 2 : blocks;
    const moek_digits_ *const d = &t->t.p.d;
    const moek_gemm_ *const a = d->a;
    const size_t row_bytes = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)a->k;
    const size_t groups = ((size_t)d->all + 31) / 32, step = 32 * (size_t)t->column * (size_t)laid;
    const float unit = d->f.w == MOEK_ELEMENT_E2M1 ? 0.5f : 1.0f;
    const int offset = moek_bytes_by_units_(t, rows) ? t->t.p.units->offset : t->t.offset;
    const int fine = d->block && d->f.w_scale.columns == 16, sums = d->block && (d->block->sign || fine);
    int r, b, i, count;
    for (r = 0; r < rows; r++) {
        const size_t from = moek_digits_from_(a, p0 + r);
        const int8_t *const row = (const int8_t *)a->a + from * row_bytes;
        const float *const scale = (const float *)a->a_scale + from * groups + (size_t)(k / 32);
        for (b = 0; b < blocks; b += count) {
            const int first = k + 32 * b - d->offset;  /* column of the row */
            const int begin = first < 0 ? -first : 0, left = a->k - first;
            const int8_t *in = row + first;
            int8_t part[32];
            count = begin || left < 32 || (pairs && b % 2) ? 1 : (n - 32 * b < left ? n - 32 * b : left) / 32;
            if (begin || left < 32) {
                memset(part, 0, sizeof part);
                memcpy(part + begin, row + first + begin, (size_t)((left < 32 ? left : 32) - begin));
                in = part;
            }
            t->set->place(moek_bytes_at_(t, to, b, r, laid), step, to->start + b * laid + r, laid, in, count,
                          sums ? 1 : offset, order);
            for (i = 0; i < count && fine; i++) to->half[(b + i) * laid + r] = moek_bytes_sum_(in + 32 * i);
        }
        for (b = 0; b < blocks && !t->t.exact; b++) to->s[b * laid + r] = scale[b] * unit * units[r];
        for (b = 0; b < blocks && sums; b++) {         /* until here start is -sum, as of an offset of 1 */
            const int at = b * laid + r;
            const int32_t all = -to->start[at], first = fine ? to->half[at] : all;
            to->low[0][at] = (float)first * to->s[at];
            to->low[1][at] = (float)(all - first) * to->s[at];
            to->half[at] = -offset * first;
            to->start[at] = -offset * (fine ? all - first : all);
        }
        for (b = blocks; b < all; b++) memset(moek_bytes_at_(t, to, b, r, laid), 0, 32);
    }
    for (r = rows; r < laid; r++)
        for (b = 0; b < all; b++) {
            memset(moek_bytes_at_(t, to, b, r, laid), 0, 32);
            to->s[b * laid + r] = 0;
        }
}
/* Columns k to k + n - 1 of 16 rows of w, of which `there` are there, as a panel: what w points to. */
static MOEK_UNUSED void moek_bytes_turn_(const moek_bytes_ *t, moek_tile_w_ *w, moek_bytes_rows_ *to,
                                         const moek_panel_at_ *at, int there, int k, int n)
{
    const moek_digits_ *const d = &t->t.p.d;
    const int bits = d->f.w_bits, begin = k < d->offset ? d->offset - k : 0;
    const int columns = d->f.w_scale.columns, g0 = columns ? k / columns : 0;
    const int groups = columns ? (k + n - 1) / columns - g0 + 1 : 0;
    const size_t bytes = (size_t)w->scale_bytes;
    uint8_t tail[MOEK_PANEL][MOEK_BYTES_TURN];
    const uint8_t *row[MOEK_PANEL];
    int r, g, i;
    for (r = 0; r < MOEK_PANEL; r++) {
        const size_t of = (size_t)(r < there ? r : 0);
        row[r] = at->w + of * at->w_step + (ptrdiff_t)(k - d->offset) * bits / 8;
        for (i = 0; i < n * bits / 8; i += 64) MOEK_PREFETCH((uintptr_t)row[r] + (uintptr_t)(n * bits / 8 + i));
        if (r >= there) row[r] = row[0];               /* its sums are not looked at */
        else if (begin || n % 32) {
            memset(tail[r], 0, sizeof tail[r]);
            memcpy(tail[r] + begin * bits / 8, row[r] + begin * bits / 8, (size_t)((n - begin) * bits + 7) / 8);
            row[r] = tail[r];
        }
        for (g = 0; g < groups; g++)
            memcpy(to->scale + (size_t)(g * MOEK_PANEL + r) * bytes,
                   at->scale + of * at->scale_step + (size_t)(g0 + g) * bytes, bytes);
    }
    t->set->panel->turn(to->words, row, (n + 31) / 32 * bits);
    w->codes = (const uint8_t *)to->words;
    w->blocks = (n + 31) / 32;
    if (w->scale) w->scale = to->scale;
    w->first = columns ? k - g0 * columns : 0;
    for (g = 0; g < (groups ? groups : 1) && at->zero; g++)
        for (r = 0; r < 8; r++) {
            const size_t high = (size_t)(r + 8 < there ? r + 8 : 0), low = (size_t)(r < there ? r : 0);
            to->zero[8 * g + r] = (uint8_t)(moek_zero_(at->zero + low * at->zero_step, g0 + g) |
                                            moek_zero_(at->zero + high * at->zero_step, g0 + g) << 4);
        }
    if (at->zero) w->zero = to->zero;
}
/* The same of w in blocks of GGUF files: rows from j on of half `of`. */
static MOEK_UNUSED void moek_bytes_blocks_(const moek_bytes_ *t, moek_tile_w_ *w, moek_bytes_rows_ *to, int e, int j,
                                           int of, int there, int k, int n)
{
    const moek_digits_ *const d = &t->t.p.d;
    moek_panel_words_(&t->t.p, to->words, (float *)(void *)to->scale, to->min, e, j, of, there, k, n);
    memset(w, 0, sizeof *w);
    w->codes = (const uint8_t *)to->words; w->scale = to->scale;
    w->min = d->block->sign ? to->min : NULL;
    w->element = t->element; w->scale_type = MOEK_SCALE_TYPE_F32; w->scale_bytes = 4;
    w->less = t->t.offset;
    w->log = d->f.w_scale.columns == 16 ? 4 : 5; w->blocks = n / 32;
}
/* sum += columns k to k + n - 1 of 16 rows of w in blocks, in panels as these lie.  k begins a unit. */
static MOEK_UNUSED void moek_bytes_units_(const moek_bytes_ *t, float *sum, int e, int j, int of, int k, int n,
                                          const moek_bytes_x_ *x, int rows)
{
    const size_t bytes = MOEK_PANEL * moek_panel_unit_bytes_(&t->t.p.d);
    const uint8_t *unit = moek_panel_at_of_(&t->t.p, e, j, of).w + (size_t)(k / MOEK_UNIT) * bytes;
    int i;
    for (i = 0; i < n; i += MOEK_UNIT, unit += bytes)
        t->unit(sum, unit, (n - i < MOEK_UNIT ? n - i : MOEK_UNIT) / MOEK_PART, x, i / MOEK_PART, rows);
}
/* sum += columns k to k + n - 1 of two panels: of gate and up, or of 16 columns of out and the next ones. */
static MOEK_UNUSED void moek_bytes_panels_(const moek_bytes_ *t, float *sum, int e, int j, int columns, int k, int n,
                                           const moek_bytes_x_ *x, int rows)
{
    const moek_digits_ *const d = &t->t.p.d;
    const int halves = d->halves, panels = halves == 2 || columns > MOEK_PANEL ? 2 : 1;
    moek_bytes_rows_ turned[2];
    moek_panel_at_ at[2];
    moek_tile_w_ w[2];
    int i, p;
    for (p = 0; p < panels && !d->block; p++)
        at[p] = moek_panel_at_of_(&t->t.p, e, halves == 2 ? j : j + MOEK_PANEL * p, halves == 2 ? p : 0);
    if (moek_bytes_by_units_(t, rows)) {
        for (p = 0; p < panels; p++)
            moek_bytes_units_(t, sum + MOEK_PANEL * p, e, halves == 2 ? j : j + MOEK_PANEL * p, halves == 2 ? p : 0, k,
                              n, x, rows);
        return;
    }
    if (t->t.p.in_panels && !d->block) {
        for (p = 0; p < panels; p++) {
            w[p] = moek_tile_w_at_(&t->t, &at[p]);
            w[p].codes += (size_t)(k - d->offset) * (size_t)(d->f.w_bits * MOEK_PANEL / 8);
            w[p].first = k;
            w[p].blocks = n / 32;
        }
        t->set->run(sum, w, panels, x, 0, rows);
        return;
    }
    for (i = 0; i < n; i += MOEK_BYTES_TURN) {
        const int turn = n - i < MOEK_BYTES_TURN ? n - i : (int)MOEK_BYTES_TURN;
        for (p = 0; p < panels; p++) {
            const int first = halves == 2 ? 0 : MOEK_PANEL * p;
            const int there = columns - first < MOEK_PANEL ? columns - first : MOEK_PANEL;
            if (d->block) {
                moek_bytes_blocks_(t, &w[p], &turned[p], e, j + first, halves == 2 ? p : 0, there, k + i, turn);
                continue;
            }
            w[p] = moek_tile_w_at_(&t->t, &at[p]);
            moek_bytes_turn_(t, &w[p], &turned[p], &at[p], there, k + i, turn);
        }
        t->set->run(sum, w, panels, x, i / 32, rows);
    }
}
/* Units of rows of x whose scales are large: sums are multiplied by `back` at the end.  (Small ones have room.) */
MOEK_CPU_FN void moek_bytes_of_rows_(const moek_bytes_ *t, int p0, int rows, float *units, float *back)
{
    const moek_digits_ *const d = &t->t.p.d;
    const int groups = (d->all + 31) / 32, before = d->offset / 32;
    int r;
    for (r = 0; r < rows; r++) {
        const float *const scale = (const float *)d->a->a_scale + moek_digits_from_(d->a, p0 + r) * (size_t)groups;
        units[r] = back[r] = 1;
        if (!t->t.exact) units[r] = moek_x_unit_(moek_top_(0, scale + before, groups - before), 0, &back[r]);
    }
}
/* `rows` rows of x and `columns` columns of out: sum[strip][row][MOEK_STRIP], with room for whole tiles. */
static MOEK_UNUSED void moek_bytes_sums_(const moek_bytes_ *t, int e, int p0, int rows, int j0, int columns, float *sum)
{
    const moek_digits_ *const d = &t->t.p.d;
    const int laid = moek_bytes_laid_(t, rows), tiles = t->set->begin && laid >= t->set->tile;
    const int each = t->unit ? (int)MOEK_UNIT : (int)MOEK_BYTES_TURN;  /* what a stretch has whole ones of */
    const int stretch = MOEK_BYTES_ROOM / (laid * t->column) / each * each;
    const int wide = MOEK_WIDE / d->halves, strip = MOEK_STRIP / d->halves, one = laid * (int)MOEK_STRIP;
    float units[MOEK_BYTES_ROWS], back[MOEK_BYTES_ROWS];
    moek_bytes_x_ x;
    int k, j, r;
    moek_bytes_of_rows_(t, p0, rows, units, back);
    memset(sum, 0, (size_t)((columns + strip - 1) / strip * one) * sizeof *sum);
    if (tiles) t->set->begin(t->t.exact);
    for (k = d->offset / 32 * 32; k < d->all; k += stretch) {
        const int n = d->all - k < stretch ? d->all - k : stretch;
        moek_bytes_x_of_(t, &x, units, p0, rows, k, n);
        for (j = 0; j < columns; j += wide)
            moek_bytes_panels_(t, sum + j / strip * one + j % strip / wide * MOEK_WIDE, e, j0 + j, columns - j, k, n,
                               &x, laid);
    }
    if (tiles) t->set->end();
    for (r = 0; r < rows; r++)
        for (j = 0; j < (columns + strip - 1) / strip * (int)MOEK_STRIP && back[r] > 1; j++)
            sum[j / MOEK_STRIP * one + r * MOEK_STRIP + j % MOEK_STRIP] *= back[r];
}
/* blocks: of GGUF files, what the set has for them; or NULL. */
MOEK_CPU_FN moek_bytes_ moek_bytes_of_(const void *args, moek_gemm_ *found, const moek_byte_set_ *set, int op,
                                       int quant, int columns, const moek_block_set_ *blocks)
{
    const int bits = moek_format_of(quant)->w_bits;
    moek_bytes_ t;
    const moek_digits_ *const d = &t.t.p.d;
    memset(&t, 0, sizeof t);
    t.set = set;
    t.t.p = moek_panels_of_(args, found, set->panel, op, quant, columns);
    t.t.p.w_unit = t.t.p.x_unit = 1;
    t.t.exact = t.t.p.how == MOEK_SUM_EXACT;
    t.t.offset = d->a->gate_up.zero_points[0] ? (int)MOEK_BYTES_ZERO : d->f.w == MOEK_ELEMENT_U4B8 ? 8
               : d->f.w == MOEK_ELEMENT_E2M1 ? set->e2m1 : set->s8;
    t.element = d->f.w;
    if (set->words && blocks && !blocks->words) {
        t.element = bits > 5 ? MOEK_ELEMENT_U6B32 : bits > 4 ? MOEK_ELEMENT_U5 : MOEK_ELEMENT_U4;
        t.t.offset = blocks->offset;
    }
    t.order = t.element == MOEK_ELEMENT_S8 ? set->words ? MOEK_BYTES_WORDS : MOEK_BYTES_COLUMNS
            : t.t.p.in_panels || blocks ? MOEK_BYTES_COLUMNS : MOEK_BYTES_EVEN_ODD;
    t.column = t.order == MOEK_BYTES_WORDS ? 2 : 1;
    if (blocks) t.t.p.d.unpack = blocks->unpack;
    return t;
}
/* Weights in blocks of GGUF files, in panels. */
MOEK_CPU_FN void moek_bytes_in_units_(moek_bytes_ *t, const moek_units_ *units, moek_bytes_unit_ *unit)
{
    t->t.p.units = units;
    t->unit = unit;
}
/* Strips of an expert, or a part of one, or none.  Of few rows of x several at a time, which share x. */
static MOEK_UNUSED void moek_bytes_task_(const void *data, long long task)
{
    const moek_bytes_ *const t = (const moek_bytes_ *)data;
    const moek_gemm_task_ g = moek_gemm_task_of_(t->t.p.d.a, t->t.p.d.columns, task);
    const int all = g.end - g.first, most = moek_bytes_laid_(t, all < MOEK_BYTES_ROWS ? all : (int)MOEK_BYTES_ROWS);
    const int strip = MOEK_STRIP / t->t.p.d.halves, width = most ? MOEK_BYTES_ROWS / most * strip : g.columns;
    float sum[(int)MOEK_BYTES_ROWS * (int)MOEK_STRIP];
    int row, j, i;
    for (j = 0; j < g.columns; j += width)
        for (row = g.first; row < g.end; row += MOEK_BYTES_ROWS) {
            const int rows = g.end - row < MOEK_BYTES_ROWS ? g.end - row : (int)MOEK_BYTES_ROWS;
            const int columns = g.columns - j < width ? g.columns - j : width;
            moek_bytes_sums_(t, g.e, row, rows, g.j0 + j, columns, sum);
            for (i = 0; i < columns; i += strip)
                moek_panel_store_(&t->t.p, g.e, row, rows, g.j0 + j + i, columns - i < strip ? columns - i : strip,
                                  sum + i / strip * moek_bytes_laid_(t, rows) * MOEK_STRIP);
        }
}
/* A launcher's work.  (Sums of s8 beyond 32 bits are made as panels make them.) */
static MOEK_UNUSED moek_status moek_bytes_launch_(const void *args, moek_stream stream, const moek_byte_set_ *set,
                                                  int op, int quant, int columns, const moek_block_set_ *blocks,
                                                  const moek_units_ *units, moek_bytes_unit_ *unit)
{
    moek_gemm_ found;
    moek_bytes_ t = moek_bytes_of_(args, &found, set, op, quant, columns, blocks);
    const int strip = MOEK_STRIP / t.t.p.d.halves, most = moek_gemm_most_rows_(t.t.p.d.a);
    int strips = 1;                                    /* that share x, as many as their sums have room */
    if (t.t.exact && t.t.p.d.all > MOEK_PANEL_EXACT)
        return moek_panel_launch_(args, stream, set->panel, op, quant, columns, NULL, NULL);
    if (t.t.p.d.block && t.t.p.in_panels) moek_bytes_in_units_(&t, units, unit);
    while (2 * strips * moek_bytes_laid_(&t, most) <= MOEK_BYTES_ROWS && strips < MOEK_TILE_STRIPS) strips *= 2;
    t.t.p.d.columns = moek_gemm_columns_(t.t.p.d.a, stream, strips * strip, strip / 4);
    moek_parallel_for_(stream, moek_gemm_tasks_(t.t.p.d.a, t.t.p.d.columns), moek_bytes_task_, &t);
    return MOEK_OK;
}
/* A row of the table, as MOEK_DIGITS_ROW_. */
#define MOEK_BYTES_ROW_(row, OP, quant, columns, set, SET, blocks, units, unit) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_bytes_launch_(args, stream, &moek_byte_set_##set##_, MOEK_OP_##OP, MOEK_##quant, columns, \
                                  blocks, units, unit); \
    }
#endif
