/* test_bytes.c -- products of bytes (moek/kernel/bytes.h) before anything is rounded to T: sums against double
 * precision, and the bits of each set of instructions that this processor has, of weights as they come and in panels,
 * and of any number of rows, against the bits of plain C.
 *
 *   cc -std=c99 -O2 -Iinclude tests/rows/test_bytes.c -lm -o test_bytes && ./test_bytes [quick]
 *
 * quick: of the sizes and offsets of a format one in three.
 * Tiles of AMX are in plain C here, on any machine with AVX-512; with -DTEST_TILES those of the machine. */
#ifndef TEST_TILES
#include "../emu/emu_amx.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#define MOEK_ARCH 0
#endif
#include "moek.h"
#include "moek/kernel/bytes_amx.h"
#include "moek/kernel/bytes_i8mm.h"
#include <stdio.h>
#include <stdlib.h>
#include "../check.h"
#include "../oracle/ref.h"
#include "../quick.h"

enum { ROWS = 50, N = 48, MOST_K = 2880, SUMS = 64 * MOEK_STRIP };     /* ROWS: two turns of a task */
typedef struct byte_case { const moek_format *f; int block, k, offset, zeros; } byte_case;

static uint8_t w[N * MOST_K], zero[N * 64], panel_w[N * MOST_K], panel_zero[N * 64];
static int8_t x[ROWS * MOST_K];
static float w_scale[N * 128], panel_scale[N * 128], x_scale[ROWS * 128];
static float plain[SUMS], made[SUMS];
static double wanted[ROWS][N], bound[ROWS][N];
static const struct { const moek_byte_set_ *set; int arch; const char *name; } sets[] = {
    { &moek_byte_set_cpu_, MOEK_ARCH_CPU, "plain C" },
#if MOEK_HAVE_X86_
    { &moek_byte_set_avx2_, MOEK_ARCH_AVX2, "avx2" }, { &moek_byte_set_avx512_, MOEK_ARCH_AVX512, "avx512" },
#if MOEK_HAVE_AMX_
    { &moek_byte_set_amx_, MOEK_ARCH_AMX, "amx" }
#endif
#elif MOEK_HAVE_NEON_
    { &moek_byte_set_neon_, MOEK_ARCH_NEON, "neon" },
#if MOEK_HAVE_I8MM_
    { &moek_byte_set_i8mm_, MOEK_ARCH_I8MM, "i8mm" }
#endif
#endif
};
enum { SETS = (int)(sizeof sets / sizeof *sets) };

static int columns_of(const byte_case *c) { return c->f->blocks ? c->block : c->f->w_scale.columns; }
static int groups_of(const byte_case *c, int columns)
{
    return columns ? (c->offset + c->k + columns - 1) / columns : 1;
}
/* All codes, and all bytes of x: -128, too.  */
static void fill(const byte_case *c)
{
    const ref_number *const type = ref_scale_type(c->f->w_scale.type, MOEK_DTYPE_BF16);
    const int columns = columns_of(c), groups = groups_of(c, columns);
    int i;
    for (i = 0; i < N * c->k; i++) w[i] = (uint8_t)rng_below(256);
    for (i = 0; i < ROWS * c->k; i++) x[i] = (int8_t)((int)rng_below(256) - 128);
    for (i = 0; i < N * 64; i++) zero[i] = (uint8_t)rng_below(256);
    for (i = 0; i < ROWS * 128; i++) x_scale[i] = 0.01f * (0.5f + rng_uniform());
    for (i = 0; i < N * groups; i++) ref_put(type, w_scale, (size_t)i, 0.01 * (0.5 + rng_uniform()));
}
/* w, scales and zero points in panels (moek/ops.h draws them). */
static void to_panels(const byte_case *c)
{
    const int bits = c->f->w_bits, groups = groups_of(c, columns_of(c));
    const int bytes = c->f->w_scale.type == MOEK_SCALE_TYPE_T ? 2 : 1;
    int j, k, g;
    memset(panel_w, 0, sizeof panel_w);
    memset(panel_zero, 0, sizeof panel_zero);
    for (j = 0; j < N; j++) {
        const uint8_t *const row = w + j * (c->k * bits / 8);
        uint8_t *const to = panel_w + j / 16 * (c->k * bits * 2);
        for (k = 0; k < c->k; k++) {
            if (bits == 8) to[k / 4 * 64 + j % 16 * 4 + k % 4] = row[k];
            else to[k / 32 * 256 + k % 16 / 4 * 64 + j % 16 * 4 + k % 4] |=
                     (uint8_t)((row[k / 2] >> k % 2 * 4 & 15) << (k % 32 / 16 * 4));
        }
        for (g = 0; g < groups && bits == 4; g++) {
            const int at = j / 16 * groups + g, code = zero[j * ((groups + 1) / 2) + g / 2] >> g % 2 * 4 & 15;
            memcpy((char *)panel_scale + (at * 16 + j % 16) * bytes, (char *)w_scale + (j * groups + g) * bytes,
                   (size_t)bytes);
            panel_zero[j / 16 * ((groups + 1) / 2 * 16) + 8 * g + j % 8] |= (uint8_t)(code << (j % 16 < 8 ? 0 : 4));
        }
    }
}
/* wanted and bound: sums of 32 columns are exact, then each step rounds to f32. */
static void reference(const byte_case *c)
{
    const ref_number *const of_w = ref_element(c->f->w, MOEK_DTYPE_BF16);
    const ref_number *const type = ref_scale_type(c->f->w_scale.type, MOEK_DTYPE_BF16);
    const int columns = columns_of(c), groups = groups_of(c, columns), x_groups = groups_of(c, 32);
    int j, r, k;
    for (r = 0; r < ROWS; r++)
        for (j = 0; j < N; j++)
            for (wanted[r][j] = bound[r][j] = 0, k = 0; k < c->k; k++) {
                const int at = c->offset + k, g = columns ? at / columns : 0;
                double v = ref_get(of_w, w, (size_t)(j * c->k + k)), product;
                if (c->zeros) v -= (zero[j * ((groups + 1) / 2) + g / 2] >> g % 2 * 4 & 15) - 8;
                product = v * x[r * c->k + k];
                if (columns)
                    product *= ref_get(type, w_scale, (size_t)(j * groups + g)) * x_scale[r * x_groups + at / 32];
                wanted[r][j] += product;
                bound[r][j] += columns ? fabs(product) * (c->k / 32.0 + 4) * ldexp(1, -24) : 0;
            }
}
/* Sums of rows first to first + rows - 1 and so many columns, as a set makes them. */
static void sums_of(const byte_case *c, int set, int in_panels, int first, int rows, int columns, float *to)
{
    moek_gemm_args args;
    moek_gemm_ found;
    moek_bytes_ t;
    memset(&args, 0, sizeof args);
    args.n = args.w_rows = N; args.k = c->k; args.k_offset = c->offset; args.a_rows = ROWS;
    args.a = x; args.a_scale = x_scale; args.w.layout = in_panels ? MOEK_WEIGHTS_PANELS : 0;
    args.w.codes = in_panels ? panel_w : w; args.w.scales = in_panels ? panel_scale : w_scale;
    if (c->zeros) args.w.zero_points = in_panels ? panel_zero : zero;
    t = moek_bytes_of_(&args, &found, sets[set].set,
                       MOEK_OP_DOWN, c->f->number, c->block, NULL);
    memset(to, 0x55, SUMS * sizeof *to);
    moek_bytes_sums_(&t, 0, first, rows, 0, columns, to);
}
static double number_of(const byte_case *c, const float *sum)
{
    int32_t whole;
    memcpy(&whole, sum, sizeof whole);
    return columns_of(c) ? (double)*sum : whole;
}
static void check(const byte_case *c)
{
    static const int counts[] = { 48, 1, 2, 4, 5, 17, 16, 15, 32, 33 };
    int set, in_panels, i, r, j, wrong = 0;
    fill(c);
    to_panels(c);
    reference(c);
    sums_of(c, 0, 0, 0, 48, N, plain);
    for (r = 0; r < 48; r++)
        for (j = 0; j < N; j++)
            wrong += !(fabs(number_of(c, &plain[r * MOEK_STRIP + j]) - wanted[r][j]) <= bound[r][j]);
    CHECK(!wrong, "%s:%d k %d offset %d zeros %d: %d sums are wrong", c->f->name, c->block, c->k, c->offset, c->zeros,
          wrong);
    for (set = 0; set < SETS; set++)
        for (in_panels = 0; in_panels < 2 && !moek_lacks_(sets[set].arch); in_panels++)
            for (i = 0; i < (int)(sizeof counts / sizeof *counts); i++) {
                const int rows = counts[i], first = 48 - rows, columns = in_panels || i % 2 ? N : N - 7;
                int other = 0;
                if (in_panels && (c->k % 32 || c->offset % 32)) continue;
                sums_of(c, set, in_panels, first, rows, columns, made);
                for (r = 0; r < rows; r++)
                    other += memcmp(made + r * MOEK_STRIP, plain + (first + r) * MOEK_STRIP, (size_t)columns * 4) != 0;
                CHECK(!other, "%s:%d k %d offset %d zeros %d: %s, %s, %d rows: %d have other bits", c->f->name,
                      c->block, c->k, c->offset, c->zeros, sets[set].name, in_panels ? "panels" : "as they come", rows,
                      other);
            }
}
static void format_with_columns(const moek_format *f, int block)
{
    static const int ks[] = { 2048, 32, 2, 130, 1408, 2880, 96, 768 };
    byte_case c;
    int i, offset, columns;
    memset(&c, 0, sizeof c);
    c.f = f; c.block = block;
    columns = columns_of(&c);
    for (i = 0; i < (int)(sizeof ks / sizeof *ks); i++)
        for (offset = 0; offset < (columns ? 4 : 1); offset++) {
            static const int offsets[] = { 0, 30, 96, 50 };
            if (quick_set && (i + offset + block / 32 + f->number) % 3) continue;
            c.k = ks[i];
            c.offset = offsets[offset] % (columns > 32 ? columns : 32);
            c.zeros = f->zero && (i + offset) % 2;
            check(&c);
        }
}
int main(int argc, char **argv)
{
    const moek_format *f = moek_cpu_formats_, *const end = f + sizeof moek_cpu_formats_ / sizeof *f;
    int i, formats = 0;
    quick_word(&argc, &argv);
    for (; f < end; f++) {
        if (f->x != MOEK_ELEMENT_S8 || f->only_blocks) continue;     /* blocks: test_digits */
        formats++;
        for (i = 0; i < (f->blocks ? f->blocks : 1); i++) format_with_columns(f, f->blocks ? f->block[i] : 0);
    }
    CHECK(formats == 3, "x is s8 in %d formats", formats);
    for (i = 0; i < SETS; i++)
        if (moek_lacks_(sets[i].arch))
            printf("%s: skipped, %s\n", sets[i].name, moek_lacks_(sets[i].arch)), check_skipped++;
    return check_end();
}
