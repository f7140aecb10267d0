/* test_mma.c -- the emulator's mma.sync of e4m3 beside a second reading of the PTX manual, and what narrow sums cost.
 *
 *   ninja build/log/emu_mma.log
 *
 * What a register of a lane holds stands here as the manual has it (9.7.14, mma.m16n8k32), by numbers of elements. */
#include "emu.h"
#include "moek.h"
#include "../../include/moek/kernel/ptx.h"
#include "../check.h"
#include "../oracle/ref.h"

enum { M = 16, N = 8, K = 32, LONG = 8192, PART = 128 };
typedef struct mma_args { const uint8_t *a, *b; float *d; int k, part; } mma_args;      /* a: [M][k], b: [N][k] */

/* d = a * b; of each `part` of k a sum of its own, which is added in f32. */
static __global__ void mma_kernel(mma_args args)
{
    const int lane = (int)threadIdx.x, group = lane / 4, in_group = lane % 4;
    float total[4] = {0}, d[4] = {0};
    int i, k0;
    for (k0 = 0; k0 < args.k; k0 += K) {
        uint32_t a[4] = {0}, b[2] = {0};
        for (i = 0; i < 16; i++) {
            const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
            const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
            a[i / 4] |= (uint32_t)args.a[row * args.k + k0 + column] << 8 * (i % 4);
        }
        for (i = 0; i < 8; i++)
            b[i / 4] |= (uint32_t)args.b[group * args.k + k0 + in_group * 4 + (i & 3) + i / 4 * 16] << 8 * (i % 4);
        moek_mma_e4m3_(d, a, b);
        if ((k0 + K) % args.part) continue;
        for (i = 0; i < 4; i++) total[i] += d[i], d[i] = 0;
    }
    for (i = 0; i < 4; i++) args.d[(group + (i < 2 ? 0 : 8)) * N + in_group * 2 + (i & 1)] = total[i];
}
static uint32_t state = 1;
static uint8_t code(int positive)                      /* finite */
{
    uint8_t c;
    do c = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24 & (positive ? 127 : 255)); while ((c & 127) == 127);
    return c;
}
static double value(uint8_t code) { return ref_decode(&ref_numbers[REF_E4M3], code); }

/* Each element of a in turn is the only one; then of b. */
static void test_places(void)
{
    uint8_t a[M * K], b[N * K];
    float d[M * N];
    const mma_args args = { a, b, d, K, K };
    int side, i, n, wrong = 0;
    for (side = 0; side < 2; side++)
        for (i = 0; i < (side ? N : M) * K; i++) {
            for (n = 0; n < M * K; n++) a[n] = side ? code(0) : n == i ? 0x38 /* 1 */ : 0;
            for (n = 0; n < N * K; n++) b[n] = !side ? code(0) : n == i ? 0x38 : 0;
            CHECK(MOEK_LAUNCH_(mma_kernel, 1, 32, 0, NULL, args) == MOEK_OK, "no launch");
            for (n = 0; n < M * N; n++) {
                const int row = n / N, column = n % N;
                wrong += d[n] != (side ? column == i / K ? value(a[row * K + i % K]) : 0
                                       : row == i / K ? value(b[column * K + i % K]) : 0);
            }
        }
    CHECK(!wrong, "%d sums are of other elements", wrong);
}
/* The worst of the sums of so many of k, in parts of the sum of the magnitudes. */
static double error_of(int k, int part, int positive)
{
    static uint8_t a[M * LONG], b[N * LONG];
    float d[M * N];
    const mma_args args = { a, b, d, k, part };
    double worst = 0;
    int i, n;
    for (i = 0; i < M * k; i++) a[i] = code(positive);
    for (i = 0; i < N * k; i++) b[i] = code(positive);
    CHECK(MOEK_LAUNCH_(mma_kernel, 1, 32, 0, NULL, args) == MOEK_OK, "no launch");
    for (n = 0; n < M * N; n++) {
        double sum = 0, magnitudes = 0;
        for (i = 0; i < k; i++) {
            const double product = value(a[n / N * k + i]) * value(b[n % N * k + i]);
            sum += product, magnitudes += fabs(product);
        }
        worst = fmax(worst, fabs(d[n] - sum) / magnitudes);
    }
    return worst;
}
static void test_sums(void)
{
    double one, parts, whole;
    emu_narrow = 0;
    one = error_of(K, K, 0), parts = error_of(LONG, PART, 1);
    CHECK(one <= ldexp(1, -24), "exact: %.2e", one);
    CHECK(parts <= ldexp(LONG / PART, -24), "exact, in parts: %.2e", parts);
    emu_narrow = 1;                                    /* 33 terms, each off by less than 2^-13 of the largest */
    one = error_of(K, K, 0);
    CHECK(one > ldexp(1, -18) && one < 33 * ldexp(1, -EMU_NARROW_BITS), "narrow: %.2e", one);
    parts = error_of(LONG, PART, 1), whole = error_of(LONG, LONG, 1);
    CHECK(parts < ldexp(1, -9), "narrow, in parts of %d: %.2e", PART, parts);
    CHECK(whole > 8 * parts, "narrow, in one piece: %.2e, in parts: %.2e", whole, parts);
    printf("sums of %d of k: off by %.2e of their magnitude in parts of %d, %.2e in one piece\n", LONG, parts, PART,
           whole);
    emu_narrow = 0;
}
/* A NaN of either side comes through, and only to its row or column; so does what does not fit. */
static void test_nan(void)
{
    uint8_t a[M * K], b[N * K];
    float d[M * N];
    const mma_args args = { a, b, d, K, K };
    int n, wrong = 0;
    for (emu_narrow = 0; emu_narrow < 2; emu_narrow++) {
        for (n = 0; n < M * K; n++) a[n] = n == 5 * K + 17 ? 0x7f : code(0);
        for (n = 0; n < N * K; n++) b[n] = n == 3 * K + 9 ? 0xff : code(0);
        CHECK(MOEK_LAUNCH_(mma_kernel, 1, 32, 0, NULL, args) == MOEK_OK, "no launch");
        for (n = 0; n < M * N; n++) wrong += (d[n] != d[n]) != (n / N == 5 || n % N == 3);
    }
    emu_narrow = 0;
    CHECK(!wrong, "%d sums are NaN that should not be, or the other way round", wrong);
}

int main(void)
{
    test_places();
    test_sums();
    test_nan();
    return check_end();
}
