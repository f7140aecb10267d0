/* moek/kernel/act.h -- the activation of a thread's sums by wgmma or mma.sync, whose M are rows of w: its switch,
 * once. */
#ifndef MOEK_ACT_SUMS_H
#define MOEK_ACT_SUMS_H
#include "cuda.h"

/* One activation, by its number, of N rows of a. */
template <int ACT, int GATED, int N>
MOEK_DEVICE void moek_act_of_sums_(float *sum, float alpha, float beta, float limit)
{
    int i;
    if constexpr (GATED)
        #pragma unroll
        for (i = 0; i < N / 4; i++)
            sum[i / 2 * 4 + i % 2] = moek_act_any_(ACT, sum[i / 2 * 4 + i % 2], sum[i / 2 * 4 + i % 2 + 2], alpha, beta,
                                                   limit);
    else
        #pragma unroll
        for (i = 0; i < N / 2; i++) sum[i] = moek_act_any_(ACT, sum[i], 0, alpha, beta, limit);
}
/* The activation, in place: gated, of a pair of rows of w in the first one's; else of both.  swapped: up is first. */
template <int N> MOEK_DEVICE void moek_act_sums_(const moek_gemm_ *a, float *sum, int swapped)
{
    const moek_epilogue *const to = &a->epilogue;
    int i;
    if (swapped)
        #pragma unroll
        for (i = 0; i < N / 4; i++) {
            const float up = sum[i / 2 * 4 + i % 2];
            sum[i / 2 * 4 + i % 2] = sum[i / 2 * 4 + i % 2 + 2];
            sum[i / 2 * 4 + i % 2 + 2] = up;
        }
    if (to->act == MOEK_SILU && !(to->limit > 0)) {
        #pragma unroll
        for (i = 0; i < N / 4; i++)
            sum[i / 2 * 4 + i % 2] = moek_fast_silu_(sum[i / 2 * 4 + i % 2], sum[i / 2 * 4 + i % 2 + 2]);
    } else {
        const float alpha = to->alpha, beta = to->beta, limit = to->limit;
        switch (to->act) {
#define MOEK_ACT_CASE_(NAME, name, number, gated) \
        case number: moek_act_of_sums_<number, gated, N>(sum, alpha, beta, limit); break;
        MOEK_EACH_ACT(MOEK_ACT_CASE_)
#undef MOEK_ACT_CASE_
        }
    }
}
/* Sums of rows of w in which a code was NaN become NaN: MI times 16 rows of w, M rows of a.  odd: of this lane's k, for
 * a NaN in row g of 16 rows i, bit 7 - 2 * i of a byte; in row g + 8, the one below. */
template <int MI, int M> MOEK_DEVICE void moek_spoil_(float *sum, uint32_t odd)
{
    int i, j;
    odd |= __shfl_xor_sync(0xffffffff, odd, 1);
    odd |= __shfl_xor_sync(0xffffffff, odd, 2);
    if (!odd) return;
    #pragma unroll
    for (i = 0; i < MI * 2; i++)
        #pragma unroll
        for (j = 0; j < M / 4; j++)
            if (odd & 0x80808080 >> i) sum[i / 2 * (M / 2) + j / 2 * 4 + i % 2 * 2 + j % 2] = moek_float_(0x7fc00000);
}
#endif
