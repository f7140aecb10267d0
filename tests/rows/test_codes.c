/* test_codes.c -- what the CPU kernels do with codes of 4 bits, in each way that a machine may have: intrinsics of
 * AVX-512, and plain C.  Sums against double precision; scales of one byte, all of them, bit by bit.
 *
 *   cc -std=c99 -march=native -DTEST_VECTORS=512 -Iinclude tests/rows/test_codes.c -lm -o test_codes && ./test_codes
 *
 * TEST_VECTORS: 512 or 0.  A compiler that was not told to use such vectors skips the program. */
#if TEST_VECTORS && (!defined(__AVX512BW__) || !defined(__AVX512VL__))
#include <stdio.h>
int main(void)
{
    printf("0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#define MOEK_VECTORS_ TEST_VECTORS
#include "moek.h"
#include "moek/kernel/cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include "../check.h"
#include "../oracle/ref.h"

enum { ROWS = 8, PIECES = 9, GUARD = 64 };

typedef void (*dots)(float (*lanes)[MOEK_LANES], const void *codes, int pieces, int columns, moek_dots_ a);
#define WITH(element, columns) \
    static void dots_##element##_##columns(float (*lanes)[MOEK_LANES], const void *codes, int pieces, int n, \
                                           moek_dots_ a) \
    { (void)n; moek_dots_##element##_(lanes, codes, pieces, columns, a); }
WITH(e2m1, 16) WITH(e2m1, 32) WITH(e2m1, 64) WITH(e2m1, 128)
WITH(u4b8, 16) WITH(u4b8, 32) WITH(u4b8, 64) WITH(u4b8, 128)
static const struct { dots run; int columns, of_e2m1; } all[] = {
    { dots_e2m1_16, 16, 1 }, { dots_e2m1_32, 32, 1 }, { dots_e2m1_64, 64, 1 }, { dots_e2m1_128, 128, 1 },
    { dots_u4b8_16, 16, 0 }, { dots_u4b8_32, 32, 0 }, { dots_u4b8_64, 64, 0 }, { dots_u4b8_128, 128, 0 }
};

/* In memory of its own, so that what is read beside it is found by AddressSanitizer, and by valgrind. */
static float *floats(size_t n, int more)
{
    float *f = (float *)malloc(4 * (n + (size_t)more));
    size_t i;
    for (i = 0; i < n + (size_t)more; i++) f[i] = i < n ? (float)rng_normal() : NAN;
    return f;
}
static void sums(int which, int pieces, int rows, int zeros, int scales, int x_scales)
{
    const int columns = all[which].columns, groups = MOEK_PIECE / columns;
    const size_t x_row = (size_t)(pieces * MOEK_PIECE + 16), s_row = (size_t)(pieces * groups + 3);
    unsigned char *codes = (unsigned char *)malloc((size_t)pieces * 64);
    float *x = floats(x_row * (size_t)rows, 0), *scale = floats((size_t)(pieces * groups), 8);
    float *x_scale = floats(s_row * (size_t)rows, 8), *zero = floats((size_t)(pieces * groups), 8);
    float lanes[ROWS + 1][MOEK_LANES];
    moek_dots_ a;
    int r, k, l, wrong = 0, beside = 0;
    memset(&a, 0, sizeof a);
    for (k = 0; k < pieces * 64; k++) codes[k] = (unsigned char)rng_below(256);
    for (k = 0; k < pieces * groups; k++) zero[k] = (float)(rng_below(16) - 8);
    a.rows = rows; a.x = x; a.x_row = x_row;
    if (zeros) a.zero = zero;
    if (scales) a.scale = scale;
    if (x_scales) { a.x_scale = x_scale; a.x_scale_row = s_row; }
    for (r = 0; r <= ROWS; r++) for (l = 0; l < MOEK_LANES; l++) lanes[r][l] = (float)(r + l);
    all[which].run(lanes, codes, pieces, columns, a);
    for (r = 0; r <= ROWS; r++)
        for (l = 0; l < MOEK_LANES; l++) {
            double want = r + l, size = r + l;
            int n, p;
            for (n = 0; n < pieces && r < rows; n++)
                for (p = 0; p < 8; p++) {              /* code p of word l */
                    const int g = n * groups + (8 * l + p) / columns;
                    const int code = codes[64 * n + 4 * l + p / 2] >> 4 * (p % 2) & 15;
                    double v = all[which].of_e2m1 ? moek_from_e2m1_((uint8_t)code) : moek_from_u4b8_((uint8_t)code);
                    if (zeros) v -= zero[g];
                    v *= x[(size_t)r * x_row + (size_t)(n * MOEK_PIECE + p * MOEK_LANES + l)];
                    if (scales) v *= scale[g];
                    if (x_scales) v *= x_scale[(size_t)r * s_row + (size_t)g];
                    want += v; size += fabs(v);
                }
            if (r >= rows) beside += lanes[r][l] != (float)(r + l);
            else wrong += !(fabs(lanes[r][l] - want) <= 2e-6 * size);
        }
    CHECK(!wrong && !beside, "%s, %d columns, %d pieces, %d rows, zero %d, scale %d, of x %d: %d sums, %d beside",
          all[which].of_e2m1 ? "e2m1" : "u4b8", columns, pieces, rows, zeros, scales, x_scales, wrong, beside);
    free(codes); free(x); free(scale); free(x_scale); free(zero);
}

static int same(float a, float b) { return moek_bits_(a) == moek_bits_(b) || (a != a && b != b); }
/* All scales, and each number of them: what lies behind is not touched. */
static void scales(void)
{
    uint8_t bytes[256];
    uint16_t halves[256];
    float got[256 + GUARD];
    int n, i, j, k, wrong = 0;
    for (i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    for (n = 0; n <= 256; n += n < 40 ? 1 : 27)
        for (k = 0; k < 2; k++) {
            for (i = 0; i < 256 + GUARD; i++) got[i] = -77;
            if (k) moek_scales_e4m3_(got, bytes + 256 - n, n);
            else moek_scales_e8m0_(got, bytes + 256 - n, n);
            for (i = 0; i < n; i++) {
                const uint8_t b = bytes[256 - n + i];
                wrong += !same(got[i], k ? moek_from_e4m3_(b) : moek_from_e8m0_(b));
            }
            for (; i < 256 + GUARD; i++) wrong += got[i] != -77;
        }
    CHECK(!wrong, "%d scales of one byte", wrong);
    for (wrong = 0, j = 0; j < 65536; j += 256)
        for (k = 0; k < 2; k++) {
            for (i = 0; i < 256; i++) halves[i] = (uint16_t)(i + j);
            if (k) moek_scales_fp16_(got, halves, 256);
            else moek_scales_bf16_(got, halves, 256);
            for (i = 0; i < 256; i++)
                wrong += !same(got[i], k ? moek_from_fp16_(halves[i]) : moek_from_bf16_(halves[i]));
        }
    CHECK(!wrong, "%d scales in T", wrong);
}

/* Lanes are added in one order, whatever adds them; pieces come to the order of parts. */
static void orders(void)
{
    float lanes[MOEK_LANES], eight[8], own[MOEK_PIECE], to[MOEK_PIECE];
    int i, k, turn, wrong = 0;
    for (turn = 0; turn < 1000; turn++) {
        for (i = 0; i < MOEK_LANES; i++) lanes[i] = (float)(rng_normal() * ldexp(1, rng_below(30)));
        for (i = 0; i < 8; i++) eight[i] = lanes[i] + lanes[i + 8];
        for (i = 0; i < 4; i++) eight[i] = eight[i] + eight[i + 4];
        wrong += moek_sum_lanes_(lanes) != (eight[0] + eight[2]) + (eight[1] + eight[3]);
    }
    CHECK(!wrong, "%d sums of lanes", wrong);
    for (wrong = 0, turn = 2; turn <= 8; turn *= 2) {
        for (k = 0; k < MOEK_PIECE; k++) own[k % turn * (MOEK_PIECE / turn) + k / turn] = (float)k;
        if (turn == 2) moek_piece_order_(to, own, 2, 8);
        else if (turn == 4) moek_piece_order_(to, own, 4, 8);
        else moek_piece_order_(to, own, 8, 8);
        for (k = 0; k < MOEK_PIECE; k++) wrong += to[k % 8 * MOEK_LANES + k / 8] != (float)k;
    }
    CHECK(!wrong, "%d entries in another order", wrong);
}

int main(void)
{
    int which, pieces, rows, how;
    rng_seed(3);
    for (which = 0; which < 8; which++)
        for (how = 0; how < 8; how++)
            for (pieces = 0; pieces <= PIECES; pieces += pieces < 3 ? 1 : 3)
                for (rows = 1; rows <= ROWS; rows += rows < 2 ? 1 : 3)
                    sums(which, pieces, rows, how & 1, how >> 1 & 1, how >> 2 & 1);
    scales();
    orders();
    return check_end();
}
#endif
