/* test_floats.c -- rows of gemm_cpu with a set of instructions (moek/kernel/gemm_avx2.h, gemm_avx512.h, gemm_neon.h):
 * each gives the bits of its row in plain C, with 1 to 9 rows of x, whole pieces of k and others, scales of each shape,
 * NaN and Inf.
 *
 *   cc -std=c99 -O2 -Iinclude tests/rows/test_floats.c -lm -o test_floats && ./test_floats */
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#define MOEK_WANT_ARCH(a) ((a) < 80)
#endif
#include "moek.h"
#include "moek/kernel/dots.h"
#include "moek/kernel/isa.h"
#include <stdio.h>
#include <stdlib.h>
#include "../check.h"
#include "../oracle/ref.h"

enum { ROWS = 9, N = 40, MOST_K = 4096, SCALES = 64 * 2 * N };
typedef struct floats_case { const moek_format *f; int op, k, rows, offset, dtype, special; } floats_case;

static uint16_t w[2 * N * MOST_K], x[ROWS * MOST_K], plain[ROWS * N], made[ROWS * N];
static float w_scale[SCALES], x_scale[SCALES];

static void fill(const floats_case *c)
{
    const ref_number *const of_w = ref_element(c->f->w, c->dtype), *const of_x = ref_element(c->f->x, c->dtype);
    int i;
    for (i = 0; i < 2 * N * c->k; i++) ref_put(of_w, w, (size_t)i, rng_normal());
    for (i = 0; i < ROWS * c->k; i++) ref_put(of_x, x, (size_t)i, rng_normal());
    for (i = 0; i < SCALES; i++) w_scale[i] = 0.01f * (0.5f + rng_uniform()), x_scale[i] = 0.5f + rng_uniform();
    if (!c->special) return;
    if (c->f->w == MOEK_ELEMENT_E4M3) ((uint8_t *)w)[3 * c->k + c->k / 2] = 0x7f;       /* NaN */
    else ref_put(of_w, w, (size_t)(3 * c->k + c->k / 2), INFINITY);
    for (i = 0; i < c->k; i += 3) ref_put(of_w, w, (size_t)(5 * c->k + i), ldexp(1, -9) * (i % 2 ? -1 : 1));
    ref_put(of_w, w, (size_t)(6 * c->k), ldexp(1, c->f->w == MOEK_ELEMENT_E4M3 ? -9 : -24));     /* subnormal */
}
static void run(const floats_case *c, const moek_kernel *k, uint16_t *out)
{
    const int32_t counts[1] = { c->rows };
    moek_gemm_args args;
    memset(&args, 0, sizeof args);
    args.n = N; args.k = c->k; args.w_rows = c->op == MOEK_OP_UP ? 2 * N : N;
    args.experts = 1; args.a_rows = c->rows; args.rows_per_expert = ROWS; args.rows.counts = counts;
    args.a = x; args.a_scale = x_scale; args.w.codes = w; args.w.scales = w_scale;
    args.out = out; args.dtype = c->dtype; args.epilogue.act = MOEK_SILU; args.k_offset = c->offset;
    args.up_first = N; args.w_step = 1;
    memset(out, 0x55, ROWS * N * sizeof *out);
    CHECK(k->launch(&args, NULL) == MOEK_OK, "%s", k->name);
}
static int compared;
static void check(const floats_case *c, const moek_kernel *of_plain, const moek_kernel *of_set)
{
    int i, other = 0, finite = 0;
    fill(c);
    run(c, of_plain, plain);
    run(c, of_set, made);
    for (i = 0; i < c->rows * N; i++) {
        other += plain[i] != made[i];
        finite += moek_finite_(moek_from_t_(plain[i], c->dtype)) && plain[i] & 0x7fff;
    }
    CHECK(!other && !memcmp(plain, made, sizeof plain), "%s: %d of %d are not those of plain C: k %d rows %d offset %d "
          "special %d", of_set->name, other, c->rows * N, c->k, c->rows, c->offset, c->special);
    CHECK(finite > c->rows * N / 2 && (!c->special || finite < c->rows * N), "%s: %d of %d are finite", of_set->name,
          finite, c->rows * N);
    compared++;
}
static void kernel(const moek_kernel *of_set, const moek_kernel *of_plain)
{
    static const int ks[] = { 2048, 128, 768, 1408, 1088, 16, 3200, 4096 };
    floats_case c;
    int i;
    memset(&c, 0, sizeof c);
    c.f = moek_format_of(of_set->quant);
    c.op = of_set->op;
    for (i = 0; i < (int)(sizeof ks / sizeof *ks); i++)
        for (c.rows = 1; c.rows <= ROWS; c.rows++) {
            c.k = ks[i];
            c.special = (i + c.rows) % 3 == 0;
            c.offset = c.op == MOEK_OP_DOWN && c.f->w_scale.columns == 128 && c.rows % 2 && c.k < 4096 ? 64 : 0;
            c.dtype = c.f->w == MOEK_ELEMENT_FP16 || (c.f->x == MOEK_ELEMENT_T && i % 2) ? MOEK_DTYPE_FP16
                                                                                       : MOEK_DTYPE_BF16;
            check(&c, of_plain, of_set);
        }
}
int main(void)
{
    int n, i, j, rows = 0;
    const moek_kernel *const all = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        const moek_kernel *const k = &all[i];
        if ((k->op != MOEK_OP_UP && k->op != MOEK_OP_DOWN) || !k->arch || k->m != 8) continue;
        rows++;
        if (moek_lacks_(k->arch)) {
            printf("%s: skipped, %s\n", k->name, moek_lacks_(k->arch)), check_skipped++;
            continue;
        }
        for (j = 0; j < n; j++)
            if (!all[j].arch && all[j].op == k->op && all[j].quant == k->quant && all[j].m == 8) break;
        CHECK(j < n, "%s has no row in plain C", k->name);
        if (j < n) kernel(k, &all[j]);
    }
    CHECK(rows == (MOEK_HAVE_X86_ ? 32 : MOEK_HAVE_NEON_ ? 16 : 0) && (compared || check_skipped || !rows), "%d rows",
          rows);
    return check_end();
}
