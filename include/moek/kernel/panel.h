/* moek/kernel/panel.h -- up and down of many rows an expert on CPUs: a panel of w becomes f32 once, for all rows.
 *
 *   sum[row of x][row of w] += panel[k][row of w] * x[row of x][k]
 *
 * A task is some rows of w of an expert.  Of 128 columns of k, its rows of x become f32 (48 of them at a time), and
 * then 32 rows of w do, scales included; outer products keep 2 vectors of sums for some rows of x in registers.  Codes
 * times scales, or of e4m3, are kept a power of two smaller, lest f32 has no room for them; sums get that back.
 *
 * Each sum is one chain of FMAs over k, or one for each group of k whose scales are f32.  So plain C, which is the
 * measure, and each set of instructions (panel_avx2.h, ..) give the same bits, whatever the rows beside.  s8 times s8:
 * sums of 128 of k are exact in f32, and are added up as integers.
 *
 * Weights lie in panels (moek_repack_up), or as they come: then words of 16 rows are put side by side first.  Blocks of
 * GGUF files become codes of s8, scales and minimums before that (digits.h).                                         */
#include "../../../generated/moek_units.h"
#ifndef MOEK_PANEL_H
#define MOEK_PANEL_H

enum {
    MOEK_PANEL = 16,                                   /* rows of w */
    MOEK_WIDE = 2 * MOEK_PANEL,                        /* that are f32 at a time */
    MOEK_STRIP = 4 * MOEK_WIDE,                        /* of a task */
    MOEK_PANEL_K = 128,                                /* columns at a time: groups whose scales are f32 have as many */
    MOEK_PANEL_X = 48,                                 /* rows of x at a time */
    /* Columns whose products of s8 32 bits hold.  Of more, half as many rows: bits above 16 lie so far behind. */
    MOEK_PANEL_EXACT = 1 << 16, MOEK_PANEL_HIGH = MOEK_PANEL_X / 2 * MOEK_STRIP,
    MOEK_PANEL_GROUPS = MOEK_PANEL_K / 16              /* the most groups of scales in these columns */
};
/* How sums of 128 of k are added up: in one chain, times scales, or as integers. */
enum { MOEK_SUM_CHAIN, MOEK_SUM_SCALED, MOEK_SUM_EXACT };

/* 16 rows of w: words of 4 bytes, 16 side by side, and what codes are multiplied by. */
typedef struct moek_panel_in_ {
    const uint32_t *words;                             /* of k: [word][16] */
    int k;                                             /* columns */
    int group;                                         /* columns of a scale; at least k: one for all */
    const float *scale, *zero;                         /* [group][16]; or NULL: 1, and of u4b8 8.  zero, of s8: what is
                                                          added to codes times scales */
} moek_panel_in_;
typedef struct moek_panel_set_ {
    const moek_set_ *digits;                           /* for T to f32 */
    /* 16 rows by in->k columns to f32, a column in each MOEK_WIDE; e4m3 to 2^-8 of that */
    void (*decode)(float *panel, const moek_panel_in_ *in, int element, int as_they_come);
    /* sum[rows][MOEK_STRIP] += panel[k][MOEK_WIDE] * x[rows][MOEK_PANEL_K]; rows of x behind `rows` are zeros. */
    void (*outer)(float *sum, const float *panel, const float *x, int k, int rows, int how, const float *w_scale,
                  const float *x_scale);
    /* 16 rows of words, side by side */
    void (*turn)(uint32_t *to, const uint8_t *const *rows, int words);
    void (*scales)(float *to, const moek_w_run_ *w, const char *from, int n);          /* and 8 zeros behind them */
    /* MOEK_STRIP sums: to = sum * unit * (x_scale * by) + bias; 16 of g: silu(g) * u; 16 to T */
    void (*scaled)(float *to, const float *sum, const float *by, const float *bias, float unit, float x_scale);
    void (*silu)(float *g, const float *u);
    void (*to_t)(uint16_t *to, const float *from, int dtype);
} moek_panel_set_;

/* ---- plain C ----------------------------------------------------------------------------------------------------- */

/* A code, of word w, as f32, of e4m3 2^-8 of that; shift: its first bit. */
MOEK_CPU_FN float moek_lift_(int element, uint32_t w, int shift)
{
    switch (element) {
    case MOEK_ELEMENT_U4B8: return (float)(int)(w >> shift & 15);
    case MOEK_ELEMENT_E2M1: return (float)moek_code_(element, (int)(w >> shift & 15)) * 0.5f;
    case MOEK_ELEMENT_S8:   return (float)moek_code_(element, (int)(w >> shift & 255));
    case MOEK_ELEMENT_E4M3: return moek_from_e4m3_((uint8_t)(w >> shift & 255)) * 0.00390625f;
    case MOEK_ELEMENT_BF16: return moek_from_bf16_((uint16_t)(w >> shift & 0xffff));
    default:                return moek_from_fp16_((uint16_t)(w >> shift & 0xffff));
    }
}
/* Bits of an element; of the columns of word `at`, the one whose code is at bit `shift`. */
MOEK_CPU_FN int moek_element_bits_of_(int element)
{
    return element == MOEK_ELEMENT_U4B8 || element == MOEK_ELEMENT_E2M1 ? 4
         : element == MOEK_ELEMENT_S8 || element == MOEK_ELEMENT_E4M3 ? 8 : 16;
}
MOEK_CPU_FN int moek_panel_column_(int bits, int at, int shift, int as_they_come)
{
    if (bits == 4 && !as_they_come) return at / 4 * 32 + at % 4 * 4 + shift / 8 + shift % 8 * 4;
    return (32 * at + shift) / bits;
}
MOEK_CPU_FN void moek_decode_panel_plain_(float *panel, const moek_panel_in_ *in, int element, int as_they_come)
{
    const int bits = moek_element_bits_of_(element), words = (in->k * bits + 31) / 32;
    int v, shift, r;
    for (v = 0; v < words; v++)
        for (shift = 0; shift < 32; shift += bits) {
            const int k = moek_panel_column_(bits, v, shift, as_they_come), g = k / in->group * MOEK_PANEL;
            for (r = 0; r < MOEK_PANEL; r++) {
                float f = moek_lift_(element, in->words[v * MOEK_PANEL + r], shift);
                if (element == MOEK_ELEMENT_U4B8) f -= in->zero ? in->zero[g + r] : 8;
                if (element == MOEK_ELEMENT_S8 && in->zero) f = moek_fma_(f, in->scale[g + r], in->zero[g + r]);
                else if (in->scale) f *= in->scale[g + r];
                panel[k * MOEK_WIDE + r] = f;
            }
        }
}
/* What becomes of a sum of k, and of what was there. */
MOEK_CPU_FN float moek_panel_add_(float sum, float part, int how, float scale)
{
    if (how == MOEK_SUM_SCALED) return moek_fma_(part, scale, sum);
    if (how == MOEK_SUM_EXACT) {
        int32_t whole;
        memcpy(&whole, &sum, sizeof whole);
        whole += (int32_t)part;
        memcpy(&part, &whole, sizeof part);
    }
    return part;
}
MOEK_CPU_FN void moek_outer_plain_(float *sum, const float *panel, const float *x, int k, int rows, int how,
                                   const float *w_scale, const float *x_scale)
{
    int r, i, l;
    for (r = 0; r < rows; r++, sum += MOEK_STRIP, x += MOEK_PANEL_K) {
        float part[MOEK_WIDE];
        for (l = 0; l < MOEK_WIDE; l++) part[l] = how == MOEK_SUM_CHAIN ? sum[l] : 0;
        for (i = 0; i < k; i++)
            for (l = 0; l < MOEK_WIDE; l++) part[l] = moek_fma_(panel[i * MOEK_WIDE + l], x[i], part[l]);
        for (l = 0; l < MOEK_WIDE; l++)
            sum[l] = moek_panel_add_(sum[l], part[l], how, how == MOEK_SUM_SCALED ? w_scale[l] * x_scale[r] : 1);
    }
}
MOEK_CPU_FN void moek_turn_plain_(uint32_t *to, const uint8_t *const *rows, int words)
{
    int r, v;
    for (r = 0; r < MOEK_PANEL; r++)
        for (v = 0; v < words; v++) to[v * MOEK_PANEL + r] = moek_word_(rows[r], v);
}
MOEK_CPU_FN void moek_scales_plain_(float *to, const moek_w_run_ *w, const char *from, int n)
{
    int i;
    for (i = 0; i < n; i++) to[i] = moek_digits_scale_(from, (size_t)i, w->scale_type, w->dtype);
}
MOEK_CPU_FN void moek_scaled_plain_(float *to, const float *sum, const float *by, const float *bias, float unit,
                                    float x_scale)
{
    int i;
    for (i = 0; i < MOEK_STRIP; i++) to[i] = moek_fma_(sum[i] * unit, x_scale * by[i], bias[i]);
}
/* 2^i, from the bits of i + 1.5 * 2^23, of which the first or second half is taken: so f32 holds each. */
MOEK_CPU_FN float moek_half_power_(int i, int second)
{
    const int half = (i + 512) / 2 - 256;              /* rounded down */
    return moek_float_((uint32_t)((second ? i - half : half) + 127) << 23);
}
/* e^x by a polynomial (Cephes' expf), in FMAs, so that all sets have the same bits; of NaN NaN. */
MOEK_CPU_FN float moek_exp_plain_(float x)
{
    const float of = x < -87 ? -87 : x > 100 ? 100 : x, shifted = moek_fma_(of, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f, r = moek_fma_(n, 2.12194440e-4f, moek_fma_(n, -0.693359375f, of));
    const int i = (int)(moek_bits_(shifted) - 0x4b400000);
    float p = 1.9875691500e-4f;
    if (x != x) return x;
    p = moek_fma_(p, r, 1.3981999507e-3f);
    p = moek_fma_(p, r, 8.3334519073e-3f);
    p = moek_fma_(p, r, 4.1665795894e-2f);
    p = moek_fma_(p, r, 1.6666665459e-1f);
    p = moek_fma_(p, r, 5.0000001201e-1f);
    p = moek_fma_(p, r * r, r) + 1;
    return p * moek_half_power_(i, 0) * moek_half_power_(i, 1);
}
MOEK_CPU_FN void moek_silu_plain_(float *g, const float *u)
{
    int i;
    for (i = 0; i < MOEK_PANEL; i++) g[i] = g[i] * (1 / (1 + moek_exp_plain_(-g[i]))) * u[i];
}
MOEK_CPU_FN void moek_to_t_plain_(uint16_t *to, const float *from, int dtype)
{
    int i;
    for (i = 0; i < MOEK_PANEL; i++) to[i] = moek_to_t_(from[i], dtype);
}
static MOEK_UNUSED const moek_panel_set_ moek_panel_set_cpu_ = {
    &moek_set_cpu_, moek_decode_panel_plain_, moek_outer_plain_, moek_turn_plain_, moek_scales_plain_,
    moek_scaled_plain_, moek_silu_plain_, moek_to_t_plain_
};

/* ---- a GEMM ------------------------------------------------------------------------------------------------------ */

/* How a format is multiplied, and what its launcher found. */
typedef struct moek_panels_ {
    moek_digits_ d;
    const moek_panel_set_ *set;
    moek_w_run_ scales, e4m3;                          /* the types of scales of w, of x in e4m3 */
    const moek_units_ *units;                          /* of blocks in panels */
    int how, in_panels;
    int within;                                        /* scales of w are multiplied into panels */
    float scale_unit;                                  /* ..., times this power of two */
    float w_unit, x_unit;                              /* so panels and x are these powers of two of what they mean */
} moek_panels_;
/* Where in memory 16 rows of w begin: panel p of half `of`, or row j of that. */
typedef struct moek_panel_at_ { const uint8_t *w, *zero; const char *scale; size_t w_step, zero_step, scale_step; }
    moek_panel_at_;

/* Bytes of a row of w, of its zero points, of its scales. */
MOEK_CPU_FN void moek_panel_bytes_(const moek_panels_ *p, size_t *w, size_t *zero, size_t *scale)
{
    const moek_digits_ *const d = &p->d;
    const size_t groups = moek_groups_(d->a, d->f.w_scale.columns);
    *w = moek_digits_row_(d);
    *zero = (groups * (size_t)d->f.w_bits + 7) / 8;
    *scale = groups * (size_t)moek_digits_scale_bits_(&d->f) / 8;
}
MOEK_CPU_FN moek_panel_at_ moek_panel_at_of_(const moek_panels_ *p, int e, int j, int of)
{
    const moek_digits_ *const d = &p->d;
    const moek_gemm_ *const a = d->a;
    const moek_gate_up_ *const h = &a->gate_up;
    const int gated = d->halves == 2, apart = gated && a->gate.codes;
    const size_t step = (size_t)(gated ? h->step : 1), row = (size_t)e * (size_t)h->rows + (size_t)j * step;
    const int rows = !d->block && d->f.w_scale.rows == 1 && d->f.w_scale.columns;      /* that have scales of blocks */
    moek_panel_at_ at;
    size_t w, zero, scale;
    moek_panel_bytes_(p, &w, &zero, &scale);
    memset(&at, 0, sizeof at);
    if (p->in_panels) {                                /* (halves know rows in their own order) */
        const int own = apart && !of;
        const size_t first = (size_t)e * (size_t)h->rows + (size_t)(gated && !apart ? 2 * j + MOEK_PANEL * of : j);
        const moek_matrix *const m = own ? &a->gate : &a->w;
        at.w = (const uint8_t *)m->codes + first * w;
        at.scale = rows ? (const char *)m->scales + first * scale : NULL;
        at.zero = m->zero_points && d->f.w_scale.columns ? (const uint8_t *)m->zero_points + first * zero : NULL;
        if (at.zero || !m->zero_points) return at;
    } else {
        at.w = (const uint8_t *)h->codes[of] + row * w;
        at.scale = rows ? (const char *)h->scales[of] + row * scale : NULL;
        at.w_step = step * w; at.scale_step = step * scale;
    }
    if (h->zero_points[of]) {
        at.zero = (const uint8_t *)h->zero_points[of] + row * zero;
        at.zero_step = step * zero;
    }
    return at;
}
/* Scales and zero points of groups from column k on, [group][16]; rows: of the 16 that there are.  Scales of groups
 * that lie before k's begin are another shard's. */
MOEK_CPU_FN void moek_panel_scales_(const moek_panels_ *p, const moek_panel_at_ *at, int rows, int k, int groups,
                                    float *scale, float *zero)
{
    enum { ALL = MOEK_PANEL_GROUPS * MOEK_PANEL };
    const int columns = p->d.f.w_scale.columns, g0 = columns ? k / columns : 0;
    const size_t bytes = (size_t)moek_digits_scale_bits_(&p->d.f) / 8;
    char raw[4 * ALL];
    float f32[ALL + 8];
    int g, r;
    if (p->within) {
        const char *from = at->scale + (size_t)g0 * MOEK_PANEL * bytes;
        for (r = 0; r < MOEK_PANEL && !p->in_panels; r++) {
            const char *const row = at->scale + (size_t)(r < rows ? r : 0) * at->scale_step + (size_t)g0 * bytes;
            from = raw;
            for (g = 0; g < groups; g++) {
                char *const to = raw + (size_t)(g * MOEK_PANEL + r) * bytes;
                if (bytes == 1) *to = row[g];
                else memcpy(to, row + 2 * g, 2);       /* (f32 acts on sums) */
            }
        }
        p->set->scales(f32, &p->scales, from, groups * MOEK_PANEL);
        for (g = 0; g < groups * MOEK_PANEL; g++) scale[g] = f32[g] * p->scale_unit;
        for (g = 0; g < groups && (g0 + g + 1) * columns <= p->d.offset; g++)
            for (r = 0; r < MOEK_PANEL; r++) scale[g * MOEK_PANEL + r] = 0;
    }
    for (g = 0; g < groups && at->zero; g++)
        for (r = 0; r < MOEK_PANEL; r++)
            zero[g * MOEK_PANEL + r] = !at->zero_step ? (float)(at->zero[(g0 + g) * 8 + r % 8] >> r / 8 * 4 & 15)
                : (float)moek_zero_(at->zero + (size_t)(r < rows ? r : 0) * at->zero_step, g0 + g);
}
/* Bytes of a unit of a row of blocks. */
MOEK_CPU_FN size_t moek_panel_unit_bytes_(const moek_digits_ *d)
{
    return (size_t)(MOEK_UNIT / d->block->columns * d->block->bytes);
}
/* Columns k to k + n - 1 of 16 rows of blocks that lie in panels. */
MOEK_CPU_FN void moek_panel_unit_(const moek_panels_ *p, uint32_t *words, float *scale, float *min, int e, int j,
                                  int of, int k, int n)
{
    const size_t bytes = MOEK_PANEL * moek_panel_unit_bytes_(&p->d);
    const uint8_t *const unit = moek_panel_at_of_(p, e, j, of).w + (size_t)(k / MOEK_UNIT) * bytes;
    const int left = p->d.a->k - k / MOEK_UNIT * MOEK_UNIT, all = left < MOEK_UNIT ? left : MOEK_UNIT;
    size_t i;
    for (i = 0; i < bytes && k % MOEK_UNIT == 0; i += 64) MOEK_PREFETCH((uintptr_t)unit + bytes + i);
    p->units->parts(words, scale, min, unit, all / MOEK_PART, k % MOEK_UNIT / MOEK_PART, n / MOEK_PART, 0);
}
/* Columns k to k + n - 1 of 16 rows of w in blocks, of which `rows` are there: words of s8, scales and minimums of
 * groups. */
static MOEK_UNUSED void moek_panel_words_(const moek_panels_ *p, uint32_t *words, float *scales, float *mins, int e,
                                          int j, int of, int rows, int k, int n)
{
    enum { ALL = 256 / 16 + (int)MOEK_PANEL_GROUPS };  /* scales of a block, the most, and what a turn may read more */
    const moek_digits_ *const d = &p->d;
    const moek_gate_up_ *const h = &d->a->gate_up;
    const int columns = d->f.w_scale.columns, begin = k % d->block->columns;
    const size_t bytes = moek_digits_row_(d), step = (size_t)(d->halves == 2 ? h->step : 1);
    const size_t first = (size_t)(k / d->block->columns) * (size_t)d->block->bytes;
    int8_t codes[MOEK_PANEL][MOEK_PANEL_K];
    float scale[MOEK_PANEL][ALL], min[MOEK_PANEL][ALL];
    const uint8_t *row[MOEK_PANEL], *scale_row[MOEK_PANEL], *min_row[MOEK_PANEL];
    const size_t all = MOEK_PANEL_GROUPS * MOEK_PANEL * sizeof *scales;
    int r;
    if (p->in_panels) { moek_panel_unit_(p, words, scales, mins, e, j, of, k, n); return; }
    memset(scale, 0, sizeof scale);
    memset(min, 0, sizeof min);
    for (r = 0; r < MOEK_PANEL; r++) {
        const int there = r < rows ? r : 0;            /* sums of others are not looked at */
        const size_t at = (size_t)e * (size_t)h->rows + (size_t)(j + r) * step;
        if (r < rows)
            d->unpack(codes[r], scale[r], min[r], (const uint8_t *)h->codes[of] + at * bytes + first, begin, n);
        row[r] = (const uint8_t *)codes[there];
        scale_row[r] = (const uint8_t *)(scale[there] + begin / columns);
        min_row[r] = (const uint8_t *)(min[there] + begin / columns);
    }
    p->set->turn(words, scale_row, MOEK_PANEL_GROUPS);
    memcpy(scales, words, all);
    if (d->block->sign) p->set->turn(words, min_row, MOEK_PANEL_GROUPS), memcpy(mins, words, all);
    p->set->turn(words, row, n / 4);
}
/* The same as f32. */
static MOEK_UNUSED void moek_panel_blocks_(const moek_panels_ *p, float *panel, int e, int j, int of, int rows, int k,
                                           int n)
{
    const moek_digits_ *const d = &p->d;
    float scales[MOEK_PANEL_GROUPS * MOEK_PANEL], mins[MOEK_PANEL_GROUPS * MOEK_PANEL];
    uint32_t words[MOEK_PANEL_K / 4 * MOEK_PANEL];
    moek_panel_in_ in;
    moek_panel_words_(p, words, scales, mins, e, j, of, rows, k, n);
    in.k = n; in.group = d->f.w_scale.columns; in.words = words;
    in.scale = scales; in.zero = d->block->sign ? mins : NULL;
    p->set->decode(panel, &in, d->f.w, 1);
}
/* Columns k to k + n - 1 of 16 rows of w, of which `rows` are there, to f32. */
static MOEK_UNUSED void moek_panel_w_(const moek_panels_ *p, float *panel, int e, int j, int of, int rows, int k, int n)
{
    const moek_digits_ *const d = &p->d;
    const int bits = d->f.w_bits, columns = d->f.w_scale.columns;
    const moek_panel_at_ at = moek_panel_at_of_(p, e, j, of);
    const int grouped = columns && columns < MOEK_PANEL_K;
    const int groups = grouped ? (n + columns - 1) / columns : 1, begin = k < d->offset ? d->offset - k : 0;
    float scale[MOEK_PANEL_GROUPS * MOEK_PANEL], zero[MOEK_PANEL_GROUPS * MOEK_PANEL];
    uint32_t words[MOEK_PANEL_K / 2 * MOEK_PANEL];
    uint8_t tail[MOEK_PANEL][2 * MOEK_PANEL_K];
    const uint8_t *row[MOEK_PANEL];
    moek_panel_in_ in;
    int r, i;
    moek_panel_scales_(p, &at, rows, k, groups, scale, zero);
    in.k = n; in.group = grouped ? columns : MOEK_PANEL_K; in.words = words;
    in.scale = p->within ? scale : NULL; in.zero = at.zero ? zero : NULL;
    if (p->in_panels) {                                /* (nothing lies before k's begin but whole blocks) */
        const uint8_t *const from = at.w + (size_t)(k + begin - d->offset) * (size_t)(bits * MOEK_PANEL / 8);
        for (i = 0; i < MOEK_PANEL_K * bits * 2; i += 64)
            MOEK_PREFETCH((uintptr_t)from + (uintptr_t)(MOEK_PANEL_K * bits * 2 + i));
        for (i = 0; i < begin; i++) memset(panel + i * MOEK_WIDE, 0, MOEK_PANEL * sizeof *panel);
        for (i = begin; i < n; i += in.k) {            /* the rest of a group that begins before k, then whole ones */
            const int g = grouped ? i / columns : 0, left = grouped && i % columns ? columns - i % columns : n;
            in.k = left < n - i ? left : n - i;
            in.words = (const uint32_t *)(const void *)(from + (size_t)(i - begin) * (size_t)(bits * MOEK_PANEL / 8));
            in.scale = p->within ? scale + g * MOEK_PANEL : NULL;
            in.zero = at.zero ? zero + g * MOEK_PANEL : NULL;
            p->set->decode(panel + i * MOEK_WIDE, &in, d->f.w, 0);
        }
        return;
    }
    for (r = 0; r < MOEK_PANEL; r++) {
        const ptrdiff_t first = (ptrdiff_t)(k + begin - d->offset) * bits / 8;
        row[r] = at.w + (size_t)(r < rows ? r : 0) * at.w_step + first;
        for (i = 0; i < MOEK_PANEL_K * bits / 8; i += 64)              /* what comes next */
            MOEK_PREFETCH((uintptr_t)row[r] + (uintptr_t)(MOEK_PANEL_K * bits / 8 + i));
        if (r < rows && !begin && n == MOEK_PANEL_K) continue;
        if (r < rows) {
            memset(tail[r], 0, sizeof tail[r]);
            memcpy(tail[r] + begin * bits / 8, row[r], (size_t)(n - begin) * (size_t)bits / 8);
            row[r] = tail[r];
        } else {
            row[r] = row[0];                           /* its sums are not looked at */
        }
    }
    p->set->turn(words, row, (n * bits + 31) / 32);
    p->set->decode(panel, &in, d->f.w, 1);
}
/* Columns k to k + 127 of rows of x to f32, with their scales where these are of few columns; else *scale. */
static MOEK_UNUSED void moek_panel_x_(const moek_panels_ *p, float *x, float *scale, int p0, int rows, int k)
{
    const moek_digits_ *const d = &p->d;
    const moek_gemm_ *const a = d->a;
    const moek_scale_shape *const xs = &d->f.x_scale;
    const size_t row_bytes = a->a_row_bytes ? (size_t)a->a_row_bytes : (size_t)a->k * (size_t)d->f.x_bits / 8;
    const size_t x_row = xs->columns ? ((size_t)d->all + (size_t)xs->columns - 1) / (size_t)xs->columns : 1;
    int r, i, g;
    for (r = 0; r < rows; r++, x += MOEK_PANEL_K) {
        const size_t from = moek_digits_from_(a, p0 + r);
        const char *const row = (const char *)a->a + from * row_bytes;
        if (d->f.x == MOEK_ELEMENT_E4M3 && k >= d->offset && k + MOEK_PANEL_K <= d->all)
            p->set->scales(x, &p->e4m3, row + (k - d->offset), MOEK_PANEL_K);
        else moek_digits_x_(d, x, row, k, MOEK_PANEL_K);
        scale[r] = 1;
        if (d->early) scale[r] = moek_digits_scale_(a->a_scale, from, xs->type, a->dtype);
        else if (xs->columns == MOEK_PANEL_K)
            scale[r] = moek_digits_scale_(a->a_scale, from * x_row + (size_t)(k / MOEK_PANEL_K), xs->type, a->dtype);
        else for (g = 0; xs->columns && g < MOEK_PANEL_K && k + g < d->all; g += xs->columns) {
            const int others = k + g + xs->columns <= d->offset;
            const size_t at = from * x_row + (size_t)((k + g) / xs->columns);
            const float by = others ? 0 : p->x_unit * moek_digits_scale_(a->a_scale, at, xs->type, a->dtype);
            for (i = g; i < g + xs->columns; i++) x[i] *= by;
        }
    }
}
/* Scales of w that multiply sums of 128 of k, of 16 rows of which `rows` are there. */
static MOEK_UNUSED void moek_panel_w_scale_(const moek_panels_ *p, float *to, int e, int j, int of, int rows, int k)
{
    const moek_digits_ *const d = &p->d;
    const moek_gate_up_ *const h = &d->a->gate_up;
    const moek_scale_shape *const ws = &d->f.w_scale;
    const size_t bytes = (size_t)moek_digits_scale_bits_(&d->f) / 8, g = ws->columns ? (size_t)(k / ws->columns) : 0;
    const size_t groups = moek_groups_(d->a, ws->columns), step = (size_t)(d->halves == 2 ? h->step : 1);
    const moek_panel_at_ at = moek_panel_at_of_(p, e, j, of);
    int r;
    for (r = 0; r < MOEK_PANEL; r++) {
        const size_t row = (size_t)(j + r) * step, by_rows = ws->rows ? (size_t)ws->rows : 1;
        const char *scale = at.scale;
        if (p->within || !ws->columns || r >= rows) { to[r] = 1; continue; }
        if (!scale)
            scale = (const char *)h->scales[of] +
                    (((size_t)e * (size_t)h->scale_rows + ((size_t)h->shift[of] + row) / by_rows) * groups + g) * bytes;
        else if (p->in_panels) scale += (g * MOEK_PANEL + (size_t)r) * bytes;
        else scale += (size_t)r * at.scale_step + g * bytes;
        to[r] = moek_digits_scale_(scale, 0, ws->type, d->a->dtype);
    }
}
/* Which sum of a row of x belongs to column c, of gate (0) or of up. */
MOEK_CPU_FN int moek_panel_lane_(const moek_digits_ *d, int c, int of)
{
    return d->halves == 2 ? c / MOEK_PANEL * MOEK_WIDE + of * MOEK_PANEL + c % MOEK_PANEL : c;
}
/* What sums of a strip are multiplied by, and what is added, in the order of sums. */
static MOEK_UNUSED void moek_panel_factors_(const moek_panels_ *p, int e, int j0, int columns, float *by, float *bias)
{
    const moek_digits_ *const d = &p->d;
    const moek_gemm_ *const a = d->a;
    const moek_scale_shape *const ws = &d->f.w_scale;
    const float x_global_scale = d->f.static_x && d->f.x_scale.rows ? d->a->a_global_scale[0] : 1;
    const size_t step = (size_t)(d->halves == 2 ? a->gate_up.step : 1);
    const int own = (ws->type && !ws->columns) || d->f.global_scale;   /* scales of rows, of an expert */
    int s, c;
    for (s = 0; s < MOEK_STRIP; s++) by[s] = x_global_scale, bias[s] = 0;
    for (c = 0; c < columns && (own || a->w.bias); c++)
        for (s = 0; s < d->halves; s++) {
            const int i = moek_panel_lane_(d, c, s);
            const size_t row = (size_t)e * (size_t)a->gate_up.rows + (size_t)(j0 + c) * step;
            by[i] = ws->columns || !ws->type ? 1
                  : moek_digits_scale_(a->gate_up.scales[s], ws->rows ? row : (size_t)e, ws->type, a->dtype);
            if (d->f.global_scale) by[i] *= moek_global_scale_of_(a, s, e);
            by[i] *= x_global_scale;
            if (a->w.bias) bias[i] = moek_from_t_(((const uint16_t *)a->gate_up.bias[s])[row], a->dtype);
        }
}
/* out = f(sum * scales + bias) of `rows` rows from p0 on; columns of out from j0 on. */
static MOEK_UNUSED void moek_panel_store_(const moek_panels_ *p, int e, int p0, int rows, int j0, int columns,
                                          const float *sum)
{
    const moek_digits_ *const d = &p->d;
    const moek_gemm_ *const a = d->a;
    const moek_scale_shape *const xs = &d->f.x_scale;
    const int x_row = xs->rows && !xs->columns && !d->early, x_all = xs->type && !xs->rows;
    const moek_epilogue *const to_y = &a->epilogue;
    const int exact = p->how == MOEK_SUM_EXACT, silu = d->up && to_y->act == MOEK_SILU && !(to_y->limit > 0);
    const float unit = 1 / (p->w_unit * p->x_unit);
    float by[MOEK_STRIP], bias[MOEK_STRIP], done[MOEK_STRIP];
    int s, r, c, i;
    moek_panel_factors_(p, e, j0, columns, by, bias);
    for (r = 0; r < rows; r++, sum += MOEK_STRIP) {
        const size_t to = (size_t)(a->rows.out_order ? a->rows.out_order[p0 + r] : p0 + r);
        uint16_t *const out = (uint16_t *)a->out + to * (size_t)a->n + j0;
        const float x_scale = x_row || x_all
            ? moek_digits_scale_(a->a_scale, x_all ? 0 : moek_digits_from_(a, p0 + r), xs->type, a->dtype) : 1;
        for (s = 0; s < MOEK_STRIP && exact; s++) {
            int32_t low, high = 0;
            memcpy(&low, &sum[s], sizeof low);
            if (d->all > MOEK_PANEL_EXACT) memcpy(&high, &sum[MOEK_PANEL_HIGH + s], sizeof high);
            done[s] = (float)(65536.0 * high + low);
        }
        p->set->scaled(done, exact ? done : sum, by, bias, unit, x_scale);
        for (c = 0; c < columns; c += MOEK_PANEL) {
            float *const g = done + moek_panel_lane_(d, c, 0), *const u = d->halves == 2 ? g + MOEK_PANEL : g;
            const int n = columns - c < MOEK_PANEL ? columns - c : MOEK_PANEL;
            uint16_t tail[MOEK_PANEL];
            if (silu) p->set->silu(g, u);
            for (i = 0; i < n && d->up && !silu; i++)
                g[i] = moek_epilogue_of_(to_y, g[i], u[i]);
            p->set->to_t(n < MOEK_PANEL ? tail : out + c, g, a->dtype);
            if (n < MOEK_PANEL) memcpy(out + c, tail, (size_t)n * sizeof *tail);
        }
    }
}
/* Integers: what is above 16 bits goes to where that is added up. */
MOEK_CPU_FN void moek_panel_lift_high_(float *sum, int rows)
{
    int i;
    for (i = 0; i < rows * MOEK_STRIP; i++) {
        int32_t low, high;
        memcpy(&low, sum + i, sizeof low);
        memcpy(&high, sum + MOEK_PANEL_HIGH + i, sizeof high);
        high += (low - (low & 65535)) / 65536;
        low &= 65535;
        memcpy(sum + i, &low, sizeof low);
        memcpy(sum + MOEK_PANEL_HIGH + i, &high, sizeof high);
    }
}
/* `rows` rows of x and `columns` columns of out. */
static MOEK_UNUSED void moek_panel_sums_(const moek_panels_ *p, int e, int p0, int rows, int j0, int columns,
                                         float *sum)
{
    const moek_digits_ *const d = &p->d;
    const int wide = d->halves == 2 ? MOEK_PANEL : MOEK_WIDE;         /* columns of 32 rows of w */
    float x[MOEK_PANEL_X * MOEK_PANEL_K + 8], panel[MOEK_PANEL_K * MOEK_WIDE];
    float x_scale[MOEK_PANEL_X], w_scale[MOEK_WIDE];
    int k, c, i;
    memset(sum, 0, (size_t)(MOEK_PANEL_X * MOEK_STRIP) * sizeof *sum);
    memset(x_scale, 0, sizeof x_scale);
    memset(x, 0, sizeof x);
    memset(panel, 0, sizeof panel);                    /* columns that are not there are multiplied, too */
    for (k = d->offset / MOEK_PANEL_K * MOEK_PANEL_K; k < d->all; k += MOEK_PANEL_K) {
        const int n = d->all - k < MOEK_PANEL_K ? d->all - k : MOEK_PANEL_K;
        moek_panel_x_(p, x, x_scale, p0, rows, k);
        for (c = 0; c < columns; c += wide) {
            for (i = 0; i < 2; i++) {                  /* gate and up, or 16 columns and the next ones */
                const int of = d->halves == 2 ? i : 0, j = c + (d->halves == 2 ? 0 : MOEK_PANEL * i);
                const int there = columns - j < MOEK_PANEL ? columns - j : MOEK_PANEL;
                if (there > 0 && d->block)
                    moek_panel_blocks_(p, panel + MOEK_PANEL * i, e, j0 + j, of, there, k, n);
                else if (there > 0) moek_panel_w_(p, panel + MOEK_PANEL * i, e, j0 + j, of, there, k, n);
                if (there > 0 && p->how == MOEK_SUM_SCALED)
                    moek_panel_w_scale_(p, w_scale + MOEK_PANEL * i, e, j0 + j, of, there, k);
            }
            p->set->outer(sum + c / wide * MOEK_WIDE, panel, x, n, rows, p->how, w_scale, x_scale);
        }
        if (p->how == MOEK_SUM_EXACT && d->all > MOEK_PANEL_EXACT && (k + MOEK_PANEL_K) % MOEK_PANEL_EXACT == 0)
            moek_panel_lift_high_(sum, rows);
    }
}
MOEK_CPU_FN moek_panels_ moek_panels_of_(const void *args, moek_gemm_ *found, const moek_panel_set_ *set,
                                         int op, int quant, int columns)
{
    moek_panels_ p;
    const moek_scale_shape *ws, *xs;
    memset(&p, 0, sizeof p);
    p.d = moek_digits_of_(args, found, set->digits, op, quant, columns);
    ws = &p.d.f.w_scale; xs = &p.d.f.x_scale;
    p.set = set;
    p.in_panels = p.d.a->w.layout == MOEK_WEIGHTS_PANELS;
    p.scales.scale_type = ws->type; p.scales.dtype = p.d.a->dtype;
    p.e4m3.scale_type = MOEK_SCALE_TYPE_E4M3;
    p.within = (ws->columns && ws->type != MOEK_SCALE_TYPE_F32) || p.d.block;
    p.how = moek_digits_exact_(&p.d) ? MOEK_SUM_EXACT
          : (ws->columns && !p.within) || xs->columns == MOEK_PANEL_K ? MOEK_SUM_SCALED : MOEK_SUM_CHAIN;
    p.scale_unit = p.d.f.w == MOEK_ELEMENT_E4M3 || p.d.block ? 1.0f : 1.0f / 16;
    p.w_unit = p.d.f.w == MOEK_ELEMENT_E4M3 ? 1.0f / 256 : p.within ? p.scale_unit : 1.0f;
    p.x_unit = xs->type == MOEK_SCALE_TYPE_E8M0 ? 1.0f / 256 : 1.0f;
    return p;
}
/* A strip of an expert, or none. */
static MOEK_UNUSED void moek_panel_task_(const void *data, long long task)
{
    const moek_panels_ *const p = (const moek_panels_ *)data;
    const moek_gemm_task_ t = moek_gemm_task_of_(p->d.a, MOEK_STRIP / p->d.halves, task);
    const int most = p->how == MOEK_SUM_EXACT && p->d.all > MOEK_PANEL_EXACT ? MOEK_PANEL_X / 2 : MOEK_PANEL_X;
    float sum[MOEK_PANEL_X * MOEK_STRIP];
    int row;
    for (row = t.first; row < t.end; row += most) {
        const int rows = t.end - row < most ? t.end - row : most;
        moek_panel_sums_(p, t.e, row, rows, t.j0, t.columns, sum);
        moek_panel_store_(p, t.e, row, rows, t.j0, t.columns, sum);
    }
}
/* A launcher's work. */
static MOEK_UNUSED moek_status moek_panel_launch_(const void *args, moek_stream stream, const moek_panel_set_ *set,
                                                  int op, int quant, int columns, moek_unpack_ *unpack,
                                                  const moek_units_ *units)
{
    moek_gemm_ found;
    moek_panels_ p = moek_panels_of_(args, &found, set, op, quant, columns);
    p.d.unpack = unpack;
    p.units = units;
    moek_parallel_for_(stream, moek_gemm_tasks_(p.d.a, MOEK_STRIP / p.d.halves), moek_panel_task_, &p);
    return MOEK_OK;
}
/* A row of the table, as MOEK_DIGITS_ROW_. */
#define MOEK_PANEL_ROW_(row, OP, quant, columns, set, SET, unpack, units) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_##SET) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_panel_launch_(args, stream, &moek_panel_set_##set##_, MOEK_OP_##OP, MOEK_##quant, columns, \
                                  unpack, units); \
    }
#endif
