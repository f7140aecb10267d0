/* ref_check.h -- the oracle's own test: sums as the kernel of ref.h makes them, against its loop on the CPU; and its
 * fast way to codes, against the plain one.
 *
 * A program that compares with up, down or layers runs ref_check first.  Compiled by nvcc, on a GPU: that is what made
 * the oracle's sums.  Elsewhere: the kernel's code, run on the CPU, so that no change of it goes unseen there. */
#ifndef REF_CHECK_H
#define REF_CHECK_H
#include "../check.h"
#include "ref.h"

/* Random rows and scales; `odd`: with a NaN, an Inf, zeros and huge scales here and there. */
static inline double ref_check_number(int odd)
{
    static const double odds[] = { NAN, INFINITY, -INFINITY, 0, -0.0 };
    return odd && rng_below(40) == 0 ? odds[rng_below(5)] : rng_normal();
}
static inline void ref_check_fill(const ref_batch *b, int odd)
{
    const size_t rows = (size_t)b->rows, w_rows = (size_t)b->columns * b->sides, k = (size_t)b->gemm.k;
    const size_t groups = (size_t)b->groups;
    size_t i;
    for (i = 0; i < rows * k; i++) b->a_k[i] = (ref_held)ref_check_number(odd && i / k % 4 == 1);
    for (i = 0; i < w_rows * k; i++) b->w_k[i] = (ref_held)ref_check_number(odd && i / k % 8 == 3);
    for (i = 0; i < rows * groups; i++) b->a_scale[i] = ref_check_number(odd && i / groups % 4 == 2);
    for (i = 0; i < w_rows * groups; i++) {
        b->w_scale[i] = ref_check_number(odd && i / groups % 8 == 5) * ldexp(1, odd && rng_below(9) == 0 ? 1000 : 0);
        b->lost[i] = (unsigned char)(rng_below(3) == 0);
    }
    for (i = 0; i < w_rows; i++) b->bias[i] = i % 3 ? ref_check_number(odd && i % 8 == 6) : -0.0;
}
/* Two strips over the first columns and one over the rest; some of less than all rows. */
static inline void ref_check_strips(ref_batch *b)
{
    static const int rows[] = { REF_STRIP, 3, 1 };
    int s, row = 0;
    for (s = 0; s < b->strips; s++) {
        ref_strip *const at = &b->strip[s];
        at->row = row, at->rows = rows[s], row += rows[s];
        at->column = s < 2 ? 0 : b->columns / 3, at->columns = s < 2 ? b->columns / 3 : b->columns - b->columns / 3;
        at->out = b->out, b->out += (size_t)at->rows * at->columns;
        if (at->columns > b->most) b->most = at->columns;
    }
}
/* Is x, for want, what other orders of the same sums give?  `size`: what the sums may be off by, times 1e12. */
static inline int ref_check_same(double x, double want, double size)
{
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(x) : x == want;
    return fabs(x - want) <= 1e-12 * (fabs(want) + size);
}
static inline void ref_check_case(int up, int act, int k, int k_offset, int share, int odd)
{
    enum { COLUMNS = 45 };
    moek_gemm_args a;
    ref_batch b, other;
    void *memory, *copy;
    size_t inputs, bytes, all, i, bad = 0;
    memset(&a, 0, sizeof a);
    a.n = COLUMNS, a.k = k, a.k_offset = k_offset;
    a.epilogue.act = act, a.epilogue.alpha = 1.5f, a.epilogue.beta = 0.5f, a.epilogue.limit = 1.25f;
    b = ref_batch_of(&a, up, share);
    b.rows = REF_STRIP + 4, b.columns = COLUMNS, b.strips = 3;
    b.out = all = (size_t)b.rows * COLUMNS;            /* (more than there are) */
    bytes = ref_places(&b, NULL, &inputs);
    memory = ref_batch_memory(bytes), copy = ref_alloc(bytes);
    ref_places(&b, memory, &inputs);
    ref_check_fill(&b, odd);
    b.out = 0;
    ref_check_strips(&b);
    other = b, other.out = all;
    ref_sums(&other, 1);
    memcpy(copy, memory, bytes);
    ref_places(&other, copy, &inputs);
    memset(b.y, 0, b.out * sizeof *b.y);
    ref_on_cpu(&b);
    for (i = 0; i < b.out; i++)                        /* slack is some 1e-6 of the sums' |terms| */
        bad += !ref_check_same(other.y[i], b.y[i], 1e6 * b.slack[i]) ||
               !ref_check_same(other.slack[i], b.slack[i], fabs(b.y[i]) + 1e6 * b.slack[i]);
    CHECK(!bad, "ref.h: up %d act %d k %d offset %d share %d odd %d: %d of %d sums are others", up, act, k, k_offset,
          share, odd, (int)bad, (int)b.out);
    ref_batch_free(memory), free(copy);
}
/* Codes of numbers of all sizes, many of them in the middle between two. */
static inline void ref_check_codes(void)
{
    int f, i, bad = 0;
    for (f = 0; f < REF_NUMBERS; f++)
        for (i = 0; ref_numbers[f].kind == REF_FLOAT && i < 20000; i++) {
            const int bits = ref_numbers[f].bits, power = i % 2 ? rng_below(320) - 160 : rng_below(24) - 12;
            const double whole = ldexp(1, bits) + rng_below(1 << bits);      /* one bit more than n has */
            const double x = ldexp(i % 3 ? whole : whole + rng_uniform(), power - bits) * (i % 5 ? 1 : -1);
            const double y = i % 100 == 7 ? ref_check_number(1) * (i % 200 == 7 ? 1e300 : 1) : x;
            bad += ref_encode_bits_(&ref_numbers[f], y) != ref_encode_float_(&ref_numbers[f], y);
        }
    CHECK(!bad, "ref.h: %d codes of numbers are others", bad);
}
/* Every activation; k of one group and of many, whole and cut. */
static inline void ref_check(void)
{
    static const int shapes[][3] = { { 96, 0, 0 }, { 104, 8, 16 }, { 200, 24, 32 }, { 392, 0, 128 }, { 1, 0, 0 } };
#define REF_CHECK_ACT(NAME, name, number, gated) number,
    static const int acts[] = { MOEK_EACH_ACT(REF_CHECK_ACT) };
#undef REF_CHECK_ACT
    const int count = (int)(sizeof acts / sizeof *acts);
    const uint64_t before = rng_state;                 /* what comes next gets the numbers that it would have */
    int i, odd;
    ref_check_codes();
    for (i = 0; i < count + 5; i++)
        for (odd = 0; odd < 2; odd++) {
            const int *const s = shapes[i % 5];
            ref_check_case(i < count, acts[i % count], s[0], s[1], s[2], odd);
        }
    rng_state = before;
}
#endif
