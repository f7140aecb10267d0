/* moek/kernel/sm90.h -- helpers of the sm90 rows: instructions (ptx_sm90.h), wgmma of each shape, and what is made of
 * them in plain C. */
#ifndef MOEK_SM90_H
#define MOEK_SM90_H
#include "ptx_sm90.h"
#include "../../../generated/moek_wgmma.h"               /* moek_wgmma_n<N>_<element>_ */

#ifdef MOEK_SM90_CODE_
/* One of these, by a macro that is its N. */
#define MOEK_WGMMA_NAME_(front, n, element) front##n##_##element##_
#define MOEK_WGMMA_(n, element) MOEK_WGMMA_NAME_(moek_wgmma_n, n, element)
#define MOEK_WGMMA_OF_REGISTERS_(n, element) MOEK_WGMMA_NAME_(moek_wgmma_of_registers_n, n, element)

/* ---- made of these, in plain C ----------------------------------------------------------------------------------- */

/* A stage of `bytes`, of a map by_8: of expert e, columns (rows of w, or pairs of them) from j0 on, k from step * per
 * on, where `per` are 128 bytes. */
MOEK_DEVICE void moek_tma_stage_(void *to, const CUtensorMap *map, uint64_t *bar, int bytes, uint64_t policy,
                                 const moek_gemm_ *a, int per, int step, int j0, int e)
{
    const int tiled = a->w.layout;
    moek_mbar_arrive_expect_(bar, bytes);
    moek_tma_once_(to, map, bar, policy, tiled ? 0 : step * per - a->k_offset, 0, j0 / 8,
                   tiled ? e * (a->k / per) + step : e);
}
/* Of steps up to `until`, are this one and the next asked for together?  What they bring lies side by side in memory,
 * 256 bytes of each row, and comes faster so than one after the other (docs/notes: two-stages-together).  Of tiled
 * weights each stage is contiguous. */
MOEK_DEVICE int moek_two_(const moek_gemm_ *a, int step, int until)
{
    return !a->w.layout && !(step & 1) && step + 1 < until;
}
/* One arrival for the whole warp, after all its lanes came by. */
MOEK_DEVICE void moek_mbar_arrive_warp_(uint64_t *bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) moek_mbar_arrive_(bar);
}
/* To the next place of a ring of n, whose barriers change phase with each round. */
#define moek_next_(place, phase, n) do { if (++(place) == (n)) { (place) = 0; (phase) ^= 1; } } while (0)
/* An operand that is the same in all lanes, so that the compiler knows it, too: it then reckons with it in uniform
 * registers, where wgmma wants it. */
MOEK_DEVICE uint64_t moek_uniform_(uint64_t operand)
{
    return (operand & 0xffffffff00000000ull) | __shfl_sync(0xffffffff, (uint32_t)operand, 0);
}
/* moek_fast_silu_ of n (32 at most) gates of two rows, two of the one, two of the other, and so on; y may be either.
 * One reciprocal serves two: exp and it come from a unit that takes 8 clocks for a warp. */
MOEK_DEVICE void moek_fast_silus_(float *y, const float *g, const float *u, int n)
{
    float e[32];
    int i, fine = 1, fine_too = 1;                 /* of a row each: what is in the other must not change a bit */
    #pragma unroll
    for (i = 0; i < n; i += 2) {
        float a, b, r;
        a = moek_ex2_(g[i] * -1.44269504f);
        b = moek_ex2_(g[i + 1] * -1.44269504f);
        a += 1;
        b += 1;
        r = moek_about_one_over_(a * b);
        if (i % 4) fine_too &= a * b < 1e37f;      /* else the product is too large for a float, or one is NaN */
        else fine &= a * b < 1e37f;
        e[i] = g[i] * (r * b) * u[i];
        e[i + 1] = g[i + 1] * (r * a) * u[i + 1];
    }
    if (!fine)
        #pragma unroll
        for (i = 0; i < n; i += 4) {
            e[i] = moek_fast_silu_(g[i], u[i]);
            e[i + 1] = moek_fast_silu_(g[i + 1], u[i + 1]);
        }
    if (!fine_too)
        #pragma unroll
        for (i = 2; i < n; i += 4) {
            e[i] = moek_fast_silu_(g[i], u[i]);
            e[i + 1] = moek_fast_silu_(g[i + 1], u[i + 1]);
        }
    #pragma unroll
    for (i = 0; i < n; i++) y[i] = e[i];
}

/* The same in place, of two sums a and b of rows of h: gates at 4 i and 4 i + 1, ups behind them, results where gates
 * were.  n of each, two a row of 4.  One reciprocal serves a column of a and one of b, of the same row.  n <= 32. */
MOEK_DEVICE void moek_fast_pairs_(float *a, float *b, int n)
{
    float y[32], z[32];
    uint32_t redo = 0;                             /* a bit a row: what is in another must not change this one */
    int i;
    #pragma unroll
    for (i = 0; i < n; i++) {
        const int at = i / 2 * 4 + i % 2;
        float e, f, r;
        e = moek_ex2_(a[at] * -1.44269504f);
        f = moek_ex2_(b[at] * -1.44269504f);
        e += 1;
        f += 1;
        r = moek_about_one_over_(e * f);
        if (!(e * f < 1e37f)) redo |= 1u << i;     /* the product is too large for a float, or one is NaN */
        y[i] = a[at] * (r * f) * a[at + 2];
        z[i] = b[at] * (r * e) * b[at + 2];
    }
    if (redo)
        #pragma unroll
        for (i = 0; i < n; i++) {
            const int at = i / 2 * 4 + i % 2;
            if (!(redo >> i & 1)) continue;
            y[i] = moek_fast_silu_(a[at], a[at + 2]);
            z[i] = moek_fast_silu_(b[at], b[at + 2]);
        }
    #pragma unroll
    for (i = 0; i < n; i++) {
        a[i / 2 * 4 + i % 2] = y[i];
        b[i / 2 * 4 + i % 2] = z[i];
    }
}

#endif
#endif
