/* test_digits.c -- products of integers (moek/kernel/digits.h; in panels: tile.h) before anything is rounded to T: sums
 * against double precision, by each set of instructions that this processor has, and their bits against the bits of
 * plain C.  Without the third digits the same bounds must fail.  The same of outer products (moek/kernel/panel.h), but
 * for the digits.
 *
 *   cc -std=c99 -O2 -Iinclude tests/rows/test_digits.c -lm -o test_digits
 *   ./test_digits [quick]                              quick: a third of the sizes of each kind and T */
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#define MOEK_ARCH 0
#endif
#include "moek.h"
#include "moek/kernel/bytes_avx512.h"
#include "moek/kernel/bytes_neon.h"
#include "moek/kernel/panel_avx512.h"
#include "moek/kernel/tile_avx512.h"
#include "moek/kernel/tile_neon.h"
#include <stdio.h>
#include <stdlib.h>
#include "../check.h"
#include "../oracle/ref.h"
#include "../quick.h"

enum { NORMAL, OUTLIERS, SUBNORMAL, SMALL_BESIDE, EQUAL, LARGE, KINDS };    /* of x */
enum { ROWS = 4, N = 16, MOST_K = 4096 };
typedef struct sum_case { int quant, block, dtype, kind, k, offset, zeros, in_blocks; } sum_case;

static uint8_t room[2 * N * MOST_K + 1], zero[N * 256];
static uint8_t *w;                                     /* in the room, whose end is the end of blocks */
static uint16_t x[ROWS * MOST_K];
static float w_scale[N * 256], x_scale[ROWS * 256];
static double wanted[N][ROWS], bound[N][ROWS];

/* Of x an element; the code of its format. */
static double number_of(const sum_case *c, int i)
{
    const double normal = rng_normal();
    switch (c->kind) {
    case OUTLIERS:     return i % 97 == 5 ? 4096 * normal : normal;
    case SUBNORMAL:    return ldexp(normal, c->dtype == MOEK_DTYPE_FP16 ? -19 : -128);
    case SMALL_BESIDE: return ldexp(normal, -(int)rng_below(14));
    case LARGE:        return ldexp(normal < 0 ? -0.99 : 0.99, c->dtype == MOEK_DTYPE_FP16 ? 16 : 128);
    case EQUAL:        return rng_below(2) ? 1.9921875 : -1.9921875;     /* all mantissa bits of bf16 */
    default:           return normal;
    }
}
static const moek_format *given_to(const sum_case *c)
{
    const moek_format *const f = moek_format_of(c->quant);
    return c->in_blocks ? format_in_blocks(f) : f;
}
static void fill(const sum_case *c, const moek_format *f)
{
    const moek_format *const given = given_to(c);
    const ref_number *const of_x = ref_element(f->x, c->dtype), *const of_w = ref_element(f->w, c->dtype);
    const ref_number *const type = ref_scale_type(f->w_scale.type, c->dtype);
    const int by = given->only_blocks && f->x_bits < 16 ? c->kind == SUBNORMAL ? -110 : c->kind == LARGE ? 120 : 0 : 0;
    int i;                                             /* by: scales are so large, then, not codes */
    for (i = 0; i < ROWS * c->k; i++)
        ref_put(of_x, x, (size_t)i, by ? 30 * rng_normal() : number_of(c, i) * (f->x_bits < 16 ? 30 : 1));
    for (i = 0; i < ROWS * 256; i++) x_scale[i] = 0.5f + rng_uniform();
    for (i = 0; i < ROWS * 256; i++)                   /* (large ones in every other row of x) */
        if (by < 0 || i / ((c->k + 31) / 32) % 2) x_scale[i] *= (float)ldexp(1, by);
    if (given->only_blocks) {
        block_fill(given, w, N, (size_t)c->k, c->kind == LARGE ? ldexp(1, -10) : 1, rng_u32());
        return;
    }
    for (i = 0; i < N * c->k; i++) ref_put_code(of_w, w, (size_t)i, (unsigned)rng_below(1 << of_w->width));
    for (i = 0; i < N * 256; i++) ref_put(type, w_scale, (size_t)i, 0.01 * (0.5 + rng_uniform()));
    for (i = 0; f->x_scale.columns && i < ROWS * (c->offset / f->x_scale.columns); i++) {      /* before all of k */
        const int groups = (c->offset + c->k + f->x_scale.columns - 1) / f->x_scale.columns;
        x_scale[i % ROWS * groups + i / ROWS] = NAN;
    }
    for (i = 0; i < N * 256; i++) zero[i] = (uint8_t)rng_below(256);
}
/* The same of blocks.  With minimums, what they are taken from counts, and the minimum. */
static void reference_blocks(const sum_case *c, const moek_digits_ *d)
{
    const moek_format *const f = given_to(c);
    const ref_number *const of_x = ref_element(f->x, c->dtype);
    int j, r, k, i;
    for (j = 0; j < N; j++)
        for (r = 0; r < ROWS; r++)
            for (wanted[j][r] = bound[j][r] = 0, k = 0; k < c->k; k += 32) {
                const uint8_t *const at = w + (size_t)j * (size_t)(c->k / f->file_columns * f->file_bytes) +
                                          k / f->file_columns * f->file_bytes;
                const double by = f->x_scale.columns ? x_scale[r * ((c->k + 31) / 32) + k / 32] : 1;
                double top = 0;
                for (i = k; i < k + 32; i++)
                    top = fmax(top, fabs(ref_get(of_x, x, (size_t)(r * c->k + i))));
                for (i = k; i < k + 32; i++) {
                    const double v = block_weight(f, d->block, at, i % f->file_columns);
                    const double min = d->block->sign ? block_factor(&d->block->min, at, i % f->file_columns) : 0;
                    wanted[j][r] += v * by * ref_get(of_x, x, (size_t)(r * c->k + i));
                    bound[j][r] += (fabs(v - d->block->sign * min) + fabs(min)) * by * top *
                                   (ldexp(1, -22) + (c->k / 32.0 + 3) * ldexp(1, -24));
                }
            }
}
/* wanted and bound: of the contract, 2^-22 of each product with the largest |x| of its 32 columns for the digits, and
 * 2^-24 for each f32 sum. */
static void reference(const sum_case *c, const moek_digits_ *d)
{
    const moek_format *const f = &d->f;
    const ref_number *const of_x = ref_element(f->x, c->dtype), *const of_w = ref_element(f->w, c->dtype);
    const ref_number *const type = ref_scale_type(f->w_scale.type, c->dtype);
    const int columns = f->w_scale.columns, groups = columns ? (d->all + columns - 1) / columns : 1;
    const int x_columns = f->x_scale.columns, x_groups = x_columns ? (d->all + x_columns - 1) / x_columns : 1;
    const size_t zero_row = (size_t)(groups + 1) / 2;
    int j, r, k, i;
    for (j = 0; j < N; j++)
        for (r = 0; r < ROWS; r++)
            for (wanted[j][r] = bound[j][r] = 0, k = 0; k < d->all; k += 16) {
                const int begin = k / 32 * 32;
                double top = 0, by = 1;
                for (i = begin; i < begin + 32; i++)
                    if (i >= d->offset && i < d->all)
                        top = fmax(top, fabs(ref_get(of_x, x, (size_t)(r * c->k + i - d->offset))));
                if (columns)
                    by = ref_get(type, w_scale, (size_t)(j * groups + k / columns));
                if (x_columns && k / x_columns >= d->offset / x_columns) by *= x_scale[r * x_groups + k / x_columns];
                else if (d->early) by *= x_scale[r];
                for (i = k < d->offset ? d->offset : k; i < k + 16 && i < d->all; i++) {
                    const size_t at = (size_t)(i - d->offset);
                    double v = ref_get(of_w, w, (size_t)(j * c->k) + at);
                    if (d->a->gate_up.zero_points[0]) {
                        const int g = columns ? k / columns : 0;
                        v -= (int)(zero[(size_t)j * zero_row + (size_t)g / 2] >> 4 * (g % 2) & 15) - 8;
                    }
                    wanted[j][r] += v * by * ref_get(of_x, x, (size_t)(r * c->k) + at);
                    bound[j][r] += fabs(v * by) * top * (ldexp(1, -22) + (d->all / 32.0 + 3) * ldexp(1, -24));
                }
            }
}
/* The worst sum in parts of its bound; *l2: relative, of all. */
static double worst_of(double (*sum)[MOEK_X_RUNS], int rows, int first, double *l2)
{
    double worst = 0, off = 0, all = 0;
    int j, r;
    for (j = 0; j < N; j++)
        for (r = 0; r < rows; r++) {
            const double e = sum[j][r] - wanted[j][first + r];
            const double part = bound[j][first + r] > 0 ? fabs(e) / bound[j][first + r] : e != 0 ? 1e9 : 0;
            if (!(part <= worst)) worst = part;
            off += e * e;
            all += wanted[j][first + r] * wanted[j][first + r];
        }
    *l2 = all > 0 ? sqrt(off / all) : 0;
    return worst;
}
static uint32_t two_digits(moek_x_chunk_ *to, const float *from, int element, int zeros, uint32_t *top)
{
    moek_encode_plain_(to, from, element, zeros, top);
    memset(to->digit[2], 0, sizeof to->digit[2]);
    memset(to->less[1], 0, sizeof to->less[1]);
    return 0;
}
/* What sets have for blocks, in the order of sets. */
#if MOEK_HAVE_X86_
#define SETS_(name) &moek_blocks_##name##avx2_, &moek_blocks_##name##avx512_
#elif MOEK_HAVE_NEON_
#define SETS_(name) &moek_blocks_##name##neon_
#else
#define SETS_(name) NULL
#endif
#define PLAIN_(name, type, part) \
    static const moek_block_set_ plain_##name = { moek_unpack_##name##_plain_, NULL, 0, 0, 0 };
MOEK_EACH_BLOCK_(PLAIN_)
#define OF_SETS_(name, type, part) { type, 0, { &plain_##name, SETS_(name##_) } },
#define OF_SETS_OF_S8_(name, type, part) { type, MOEK_ELEMENT_S8, { &plain_##name, SETS_(name##_s8_) } },
static const struct { int type, x; const moek_block_set_ *by[3]; } block_sets[] = {
    MOEK_EACH_BLOCK_(OF_SETS_) MOEK_EACH_BLOCK_OF_S8_(OF_SETS_OF_S8_) { 0, 0, { NULL } }
};
static const struct { const moek_set_ *set; const moek_panel_set_ *panel; int arch; const char *name; } sets[] = {
    { &moek_set_cpu_, &moek_panel_set_cpu_, MOEK_ARCH_CPU, "plain C" },
#if MOEK_HAVE_X86_
    { &moek_set_avx2_, &moek_panel_set_avx2_, MOEK_ARCH_AVX2, "avx2" },
    { &moek_set_avx512_, &moek_panel_set_avx512_, MOEK_ARCH_AVX512, "avx512" }
#elif MOEK_HAVE_NEON_
    { &moek_set_neon_, &moek_panel_set_neon_, MOEK_ARCH_NEON, "neon" }
#endif
};
static const moek_block_set_ *blocks_of(int type, int x, int set)
{
    const int of_x = x == MOEK_ELEMENT_S8 ? x : 0;
    int i = 0;
    while (block_sets[i].type != type || block_sets[i].x != of_x) i++;
    CHECK(!set || block_sets[i].by[set]->dots, "type %d: no loop of %s", type, sets[set].name);
    return block_sets[i].by[set];
}
static void blocks_by(moek_digits_ *d, int set)
{
    d->blocks = d->block ? blocks_of(d->block->type, d->f.x, set) : NULL;
    d->unpack = d->blocks ? d->blocks->unpack : NULL;
}
static int seen_two, failed_two;                       /* cases where two digits do not do, and where that showed */
static double largest, largest_l2;
/* Of blocks in panels. */
#if MOEK_HAVE_X86_
#define UNITS_(name) &moek_units_##name##_avx2_, &moek_units_##name##_avx512_
#define FEW_(name) moek_tile_few_##name##_avx2_, moek_tile_few_##name##_avx512_
#define UNIT_BYTES_(name) moek_tile_unit_bytes_##name##_avx2_, moek_tile_unit_bytes_##name##_avx512_
#elif MOEK_HAVE_NEON_
#define UNITS_(name) &moek_units_##name##_neon_
#define FEW_(name) moek_tile_few_##name##_neon_
#define UNIT_BYTES_(name) moek_tile_unit_bytes_##name##_neon_
#else
#define UNITS_(name) NULL
#define FEW_(name) NULL
#define UNIT_BYTES_(name) NULL
#endif
#define UNITS_OF_(name, element, kind) \
    { #name "_", { &moek_units_##name##_cpu_, UNITS_(name) }, { NULL, FEW_(name) }, { NULL, UNIT_BYTES_(name) } },
typedef struct unit_set {
    const char *format;
    const moek_units_ *by[3];
    moek_tile_few_ *few[3];
    moek_bytes_unit_ *unit_bytes[3];
} unit_set;
static const unit_set unit_sets[] = { MOEK_EACH_UNIT_(UNITS_OF_) { "", { NULL }, { NULL }, { NULL } } };
static const unit_set *units_of(const moek_format *f)
{
    const unit_set *u = unit_sets;
    while (strncmp(u->format, f->name, strlen(u->format))) u++;
    CHECK(*u->format, "%s: no units", f->name);
    return u;
}
/* Outer products of the same, after reference(). */
static void panels(const sum_case *c, const void *args)
{
    static float plain[MOEK_PANEL_X * MOEK_STRIP], made[MOEK_PANEL_X * MOEK_STRIP];
    moek_gemm_ found;
    int set, rows, j, r;
    for (set = 0; set < (int)(sizeof sets / sizeof *sets); set++) {
        moek_panels_ p;
        if (!sets[set].panel || moek_lacks_(sets[set].arch)) continue;
        p = moek_panels_of_(args, &found, sets[set].panel, MOEK_OP_DOWN, c->quant, c->block);
        blocks_by(&p.d, set);
        if (p.d.block && p.in_panels) p.units = units_of(&p.d.f)->by[set];
        for (rows = 1; rows <= ROWS; rows += ROWS - 1) {
            int other = 0, wrong = 0;
            moek_panel_sums_(&p, 0, 0, rows, 0, N, set ? made : plain);
            for (r = 0; r < rows; r++)
                for (j = 0; j < N; j++) {
                    const double sum = plain[r * MOEK_STRIP + j];
                    other += set && memcmp(&made[r * MOEK_STRIP + j], &plain[r * MOEK_STRIP + j], sizeof *made) != 0;
                    /* k 2^-24 of all products, of which bound has 2^-22 + (k / 32 + 3) 2^-24; and w was rounded */
                    const double most = bound[j][r] * (c->k + 2) / (c->k / 32.0 + 7);
                    wrong += p.d.block && !(fabs(sum - wanted[j][r]) <= most);
                }
            CHECK(!other && !wrong, "%s:%d T %d kind %d k %d offset %d: panels by %s, %d rows: %d sums have other "
                  "bits, %d are wrong", p.d.f.name, c->block, c->dtype, c->kind, c->k, c->offset, sets[set].name, rows,
                  other, wrong);
        }
    }
}
static uint8_t panel_w[2 * N * MOST_K], panel_zero[N * 256];
static float panel_scale[N * 256];
static void blocks_to_panel(const sum_case *c, const moek_digits_ *d)
{
    const moek_file_panel_ in_file = moek_file_panel_of_(d->block);
    const size_t row = (size_t)(c->k / d->block->columns * d->block->bytes);
    int r;
    for (r = 0; r < N; r++) moek_file_panel_row_(&in_file, panel_w, w + (size_t)r * row, row, r, 0);
}
/* Products of bytes of the same, where the set has a way for blocks (moek/kernel/bytes.h), after reference(): of blocks
 * in place, in panels by words, and in panels as these lie; of so many rows of x, those of x again and again. */
static void bytes_of_blocks(const sum_case *c, const moek_gemm_args *args)
{
    enum { IN_PLACE, IN_PANELS, AS_THEY_LIE, LAYOUTS, MOST = 17 };
    static const int32_t again[MOST] = { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0 };
    static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 9, MOST };              /* of rows: beyond the limits of sets */
    static const char *const names[] = { "in place", "in panels", "in panels as these lie" };
    static float plain[MOEK_BYTES_ROWS * MOEK_STRIP], made[MOEK_BYTES_ROWS * MOEK_STRIP];
    static const struct { const moek_byte_set_ *set; int of; } ways[] = {
        { &moek_byte_set_cpu_, 0 },
#if MOEK_HAVE_X86_
        { &moek_byte_set_avx2_, 1 }, { &moek_byte_set_avx512_, 2 }
#elif MOEK_HAVE_NEON_
        { &moek_byte_set_neon_, 1 }
#endif
    };
    const moek_format *const f = given_to(c);
    moek_gemm_ found;
    int i, layout, rows, j, r, n;
    if (!f->only_blocks || f->x != MOEK_ELEMENT_S8) return;
    for (i = 0; i < (int)(sizeof ways / sizeof *ways) * LAYOUTS; i++) {
        const int of = ways[i / LAYOUTS].of;
        const unit_set *const u = format_has_arrays(f) ? NULL : units_of(f);
        moek_gemm_args as = *args;
        moek_bytes_ t;
        layout = i % LAYOUTS;
        as.rows.order = again, as.rows.div = 1;
        if (moek_lacks_(sets[of].arch) || (layout && !u) || (layout == AS_THEY_LIE && !u->unit_bytes[of])) continue;
        if (layout) as.w.layout = MOEK_WEIGHTS_PANELS, as.w.codes = panel_w;
        t = moek_bytes_of_(&as, &found, ways[i / LAYOUTS].set, MOEK_OP_DOWN, c->quant, c->block,
                           layout && !of ? NULL : blocks_of(f->file_type, f->x, of));
        if (layout) {
            blocks_to_panel(c, &t.t.p.d);
            moek_bytes_in_units_(&t, u->by[of], layout == AS_THEY_LIE ? u->unit_bytes[of] : NULL);
        }
        for (n = 0; n < (int)(sizeof counts / sizeof *counts); n++) {
            int other = 0, wrong = 0;
            rows = counts[n];
            moek_bytes_sums_(&t, 0, 0, rows, 0, N, i ? made : plain);
            for (r = 0; r < rows; r++)
                for (j = 0; j < N; j++) {
                    const int at = r * MOEK_STRIP + j;
                    other += i && memcmp(&made[at], &plain[at], sizeof *made) != 0;
                    wrong += !(fabs(plain[at] - wanted[j][r % ROWS]) <= bound[j][r % ROWS]);
                }
            CHECK(!other && !wrong, "%s T %d kind %d k %d: bytes %s by %s, %d rows: %d sums have other bits, %d are "
                  "wrong", t.t.p.d.f.name, c->dtype, c->kind, c->k, names[layout], sets[of].name, rows, other, wrong);
        }
    }
}
static void sums(const sum_case *c)
{
    static double plain[N][MOEK_X_RUNS], made[N][MOEK_X_RUNS];
    moek_gemm_args args;
    moek_gemm_ found;
    moek_set_ less = moek_set_cpu_;
    moek_digits_ d;
    double worst, l2;
    size_t i;
    int rows, first, j, r;
    w = given_to(c)->only_blocks                       /* (they begin anywhere; nothing behind them is read) */
      ? room + sizeof room - N * moek_weight_bytes(given_to(c), MOEK_WEIGHTS_BLOCKS, (size_t)c->k) : room + 1;
    memset(&args, 0, sizeof args);
    args.n = args.w_rows = N; args.k = c->k; args.k_offset = c->offset; args.dtype = c->dtype;
    args.a = x; args.w.codes = w; args.w.scales = w_scale; args.a_scale = x_scale;
    args.a_rows = ROWS; args.w.zero_points = c->zeros ? zero : NULL;
    args.w.layout = c->in_blocks ? MOEK_WEIGHTS_BLOCKS : 0;
    d = moek_digits_of_(&args, &found, &moek_set_cpu_, MOEK_OP_DOWN, c->quant, c->block);
    fill(c, &d.f);
    if (d.block) reference_blocks(c, &d);
    else reference(c, &d);
    blocks_by(&d, 0);
    moek_digits_dots_(&d, 0, 0, ROWS, 0, N, plain);
    worst = worst_of(plain, ROWS, 0, &l2);
    CHECK(worst <= 1 && (c->kind == SUBNORMAL || l2 <= 1e-6), "%s:%d T %d kind %d k %d offset %d zeros %d: %.3f of the "
          "bound, relative L2 %.2e", d.f.name, c->block, c->dtype, c->kind, c->k, c->offset, c->zeros, worst, l2);
    if (worst > largest) largest = worst;
    if (l2 > largest_l2) largest_l2 = l2;
    for (i = 0; i < sizeof sets / sizeof *sets; i++)
        for (rows = 1; rows <= ROWS && !moek_lacks_(sets[i].arch); rows++)
            for (first = 0; first + rows <= ROWS; first += rows) {
                int other = 0;
                d.set = sets[i].set;
                blocks_by(&d, (int)i);
                moek_digits_dots_(&d, 0, first, rows, 0, N, made);
                for (j = 0; j < N; j++)
                    for (r = 0; r < rows; r++) other += memcmp(&made[j][r], &plain[j][first + r], sizeof(double)) != 0;
                CHECK(!other, "%s:%d T %d kind %d k %d offset %d zeros %d: %s, %d rows: %d sums have other bits",
                      d.f.name, c->block, c->dtype, c->kind, c->k, c->offset, c->zeros, sets[i].name, rows, other);
            }
    panels(c, &args);
    bytes_of_blocks(c, &args);
    less.encode = two_digits;
    d.set = &less;
    blocks_by(&d, 0);
    moek_digits_dots_(&d, 0, 0, ROWS, 0, N, made);
    worst = worst_of(made, ROWS, 0, &l2);
    if (c->kind <= OUTLIERS && c->k >= 1024 && d.f.x_bits == 16) seen_two++, failed_two += l2 > 1e-6;
}
/* ---- weights in panels ------------------------------------------------------------------------------------------- */

static const struct { const moek_tile_set_ *set; int arch; const char *name; } tile_sets[] = {
    { &moek_tile_set_cpu_, MOEK_ARCH_CPU, "plain C" },
#if MOEK_HAVE_X86_
    { &moek_tile_set_avx2_, MOEK_ARCH_AVX2, "avx2" }, { &moek_tile_set_avx512_, MOEK_ARCH_AVX512, "avx512" }
#elif MOEK_HAVE_NEON_
    { &moek_tile_set_neon_, MOEK_ARCH_NEON, "neon" }
#endif
};
/* The order that moek/ops.h draws, of rows as they come. */
static void to_panel(const sum_case *c, const moek_digits_ *d)
{
    const int bits = d->f.w_bits, columns = d->f.w_scale.columns;
    const int groups = columns ? (d->all + columns - 1) / columns : 1;
    const int bytes = moek_digits_scale_bits_(&d->f) / 8;
    int j, k, g;
    if (d->block) { blocks_to_panel(c, d); return; }
    memset(panel_w, 0, sizeof panel_w);
    for (j = 0; j < N; j++) {
        for (k = 0; k < c->k; k++) {
            const uint8_t *const row = w + (size_t)j * (size_t)(c->k * bits / 8);
            if (bits == 8) panel_w[k / 4 * 64 + 4 * j + k % 4] = row[k];
            else panel_w[k / 32 * 256 + k % 16 / 4 * 64 + 4 * j + k % 4] |=
                     (uint8_t)((row[k / 2] >> k % 2 * 4 & 15) << (k % 32 / 16 * 4));
        }
        for (g = 0; g < groups; g++) {
            const int from = zero[j * ((groups + 1) / 2) + g / 2] >> g % 2 * 4 & 15;
            uint8_t *const to = &panel_zero[8 * g + j % 8];
            memcpy((char *)panel_scale + (size_t)(g * N + j) * (size_t)bytes,
                   (char *)w_scale + (size_t)(j * groups + g) * (size_t)bytes, (size_t)bytes);
            *to = (uint8_t)((*to & (j < 8 ? 0xf0 : 15)) | from << (j < 8 ? 0 : 4));
        }
    }
}
static uint32_t two_digits_of_tile(moek_tile_x_ *to, int b, const float *from, int offset, int words, uint32_t *top)
{
    moek_tile_encode_plain_(to, b, from, offset, words, top);
    memset(to->digit[2] + 32 * b, 0, 32);
    return 0;
}
/* The sums of a tile in the form of worst_of. */
static void tile_sums(moek_tiles_ *t, const moek_tile_set_ *set, int of, int first, int rows, int as_many,
                      double (*to)[MOEK_X_RUNS])
{
    static float sum[MOEK_TILE_ROWS * MOEK_STRIP];
    int j, r;
    t->set = set;
    t->words = set->words && t->p.d.f.w == MOEK_ELEMENT_S8;
    if (t->p.d.block) {
        const unit_set *const u = units_of(&t->p.d.f);
        moek_tiles_in_units_(t, u->by[of], u->few[of]);
    }
    else if (t->p.d.f.w != MOEK_ELEMENT_U4B8) t->offset = t->p.d.f.w == MOEK_ELEMENT_E2M1 ? set->e2m1 : set->s8;
    CHECK(moek_tile_sums_(t, 0, first, rows, 0, N, sum) == (as_many ? (1 << rows) - 1 : 0), "rows done as many are");
    for (j = 0; j < N; j++) for (r = 0; r < rows; r++) to[j][r] = sum[r * MOEK_STRIP + j];
}
static void tiles(const sum_case *c)
{
    static double plain[N][MOEK_X_RUNS], made[N][MOEK_X_RUNS];
    moek_gemm_args args;
    moek_gemm_ found;
    moek_tile_set_ less = moek_tile_set_cpu_;
    moek_tiles_ t;
    double worst, l2;
    size_t i;
    int rows, first, j, r;
    memset(&args, 0, sizeof args);
    args.n = args.w_rows = N; args.k = c->k; args.k_offset = c->offset; args.dtype = c->dtype;
    args.a = x; args.w.codes = panel_w; args.w.scales = panel_scale; args.a_scale = x_scale;
    args.a_rows = ROWS; args.w.layout = MOEK_WEIGHTS_PANELS;
    t = moek_tiles_of_(&args, &found, &moek_tile_set_cpu_, MOEK_OP_DOWN, c->quant, c->block);
    args.w.zero_points = !c->zeros ? NULL : t.p.d.f.w_scale.columns ? panel_zero : zero;
    t = moek_tiles_of_(&args, &found, &moek_tile_set_cpu_, MOEK_OP_DOWN, c->quant, c->block);
    fill(c, &t.p.d.f);
    to_panel(c, &t.p.d);
    if (t.p.d.block) reference_blocks(c, &t.p.d), panels(c, &args);
    else reference(c, &t.p.d);
    if (c->kind == LARGE && c->dtype == MOEK_DTYPE_BF16) {             /* what panels() looked at */
        for (i = 0; i < sizeof tile_sets / sizeof *tile_sets; i++)
            if (!moek_lacks_(tile_sets[i].arch)) tile_sums(&t, tile_sets[i].set, (int)i, 0, ROWS, 1, made);
        return;
    }
    tile_sums(&t, &moek_tile_set_cpu_, 0, 0, ROWS, 0, plain);
    worst = worst_of(plain, ROWS, 0, &l2);
    CHECK(worst <= 1 && (c->kind == SUBNORMAL || l2 <= 1e-6), "panels, %s:%d T %d kind %d k %d offset %d zeros %d: "
          "%.3f of the bound, relative L2 %.2e", t.p.d.f.name, c->block, c->dtype, c->kind, c->k, c->offset, c->zeros,
          worst, l2);
    if (worst > largest) largest = worst;
    if (l2 > largest_l2) largest_l2 = l2;
    for (i = 0; i < sizeof tile_sets / sizeof *tile_sets; i++)
        for (rows = 1; rows <= ROWS && !moek_lacks_(tile_sets[i].arch); rows++)
            for (first = 0; first + rows <= ROWS; first += rows) {
                int other = 0;
                tile_sums(&t, tile_sets[i].set, (int)i, first, rows, 0, made);
                for (j = 0; j < N; j++)
                    for (r = 0; r < rows; r++) other += memcmp(&made[j][r], &plain[j][first + r], sizeof(double)) != 0;
                CHECK(!other, "panels, %s:%d T %d kind %d k %d offset %d zeros %d: %s, %d rows: %d have other bits",
                      t.p.d.f.name, c->block, c->dtype, c->kind, c->k, c->offset, c->zeros, tile_sets[i].name, rows,
                      other);
            }
    less.encode = two_digits_of_tile;
    tile_sums(&t, &less, 0, 0, ROWS, 0, made);
    worst_of(made, ROWS, 0, &l2);
    if (c->kind <= OUTLIERS && c->k >= 1024 && t.p.d.f.x_bits == 16) seen_two++, failed_two += l2 > 1e-6;
}
/* All kinds of x, sizes, T, offsets and zero points, of a format with so many columns of a scale, where it leaves these
 * open. */
static void format_with_columns(const moek_format *f, int block)
{
    static const int given[] = { 2048, 32, 2, 130, 1408, 4096, 2880 };
    static const int in_32[] = { 2048, 32, 96, 4096, 1408, 2880, 768 };
    static const int in_64[] = { 2048, 64, 192, 4096, 1408, 2880, 768 };
    static const int in_256[] = { 2048, 256, 768, 4096, 1280, 2816, 512 };
    const int *const in_blocks = f->file_columns == 32 ? in_32 : f->file_columns == 64 ? in_64 : in_256;
    const int *const ks = f->only_blocks ? in_blocks : given;
    const int columns = f->blocks ? block : f->w_scale.columns;
    const int panels_too = f->only_blocks ? !format_has_arrays(f) && f->x_bits == 16 : 1;    /* x in s8: as bytes */
    sum_case c;
    int i;
    c.quant = f->number; c.block = block; c.in_blocks = f->only_blocks;
    for (c.kind = 0; c.kind < KINDS; c.kind++)
        for (i = 0; i < (int)(sizeof given / sizeof *given); i++)
            for (c.dtype = MOEK_DTYPE_BF16; c.dtype <= MOEK_DTYPE_FP16; c.dtype++) {
                if (quick_set && (c.kind + i + c.dtype) % 3) continue;
                if (c.kind == LARGE && !c.in_blocks) continue;
                c.k = ks[i];
                c.offset = columns && i % 3 == 1 ? columns - 2 : 0;
                c.zeros = f->zero && (i + c.kind) % 2;
                sums(&c);
                c.offset = columns > 32 ? i % 3 * 32 : 0;
                if (c.k % 32 == 0 && panels_too) tiles(&c);
            }
}
int main(int argc, char **argv)
{
    const moek_format *f = moek_cpu_formats_, *const end = f + sizeof moek_cpu_formats_ / sizeof *f;
    size_t i;
    int j;
    quick_word(&argc, &argv);
    for (; f < end; f++) {                             /* those that the rows serve, but for s8 times s8 */
        const int codes = f->w == MOEK_ELEMENT_U4B8 || f->w == MOEK_ELEMENT_E2M1 || f->w == MOEK_ELEMENT_S8;
        if (!codes && !f->only_blocks) continue;
        if (f->x_bits < 8 || (f->x == MOEK_ELEMENT_S8 && f->w == f->x && !f->only_blocks)) continue;
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++) format_with_columns(f, f->blocks ? f->block[j] : 0);
        if (format_in_blocks(f) != f) format_with_columns(format_in_blocks(f), 0);
    }
    CHECK(seen_two > 20 && failed_two == seen_two, "two digits alone were good enough in %d of %d cases",
          seen_two - failed_two, seen_two);
    for (i = 0; i < sizeof sets / sizeof *sets; i++)
        if (moek_lacks_(sets[i].arch))
            printf("%s: skipped, %s\n", sets[i].name, moek_lacks_(sets[i].arch)), check_skipped++;
    printf("the worst sum: %.3f of its bound; relative L2 at most %.2e; two digits fail in %d of %d cases\n", largest,
           largest_l2, failed_two, seen_two);
    return check_end();
}
