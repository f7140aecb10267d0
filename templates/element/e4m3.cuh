/* element/e4m3.cuh -- e4m3 on GPUs (e4m3.j2 says what it is). */
#ifndef MOEK_E4M3_CUH
#define MOEK_E4M3_CUH
#include "../../include/moek/kernel/ptx.h"

/* 8 e4m3 -> 4 pairs of T, exactly.  NaN becomes 480 in bf16: moek_nan_e4m3_.  In bf16's places, the bits of a code are
 * 2^-120 of its value. */
MOEK_DEVICE void moek_pairs_e4m3_(uint32_t to[4], const uint32_t *codes, int dtype)
{
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        if (dtype == MOEK_DTYPE_FP16) {
            moek_fp16_of_e4m3_(to + 2 * i, codes[i]);
        } else {
            const uint32_t low = __byte_perm(codes[i], 0, 0x1404), high = __byte_perm(codes[i], 0, 0x3424);
            to[2 * i] = moek_fma_t2_((low >> 4 & 0x07f007f0) | (low & 0x80008000), 0x7b807b80, 0x80008000, dtype);
            to[2 * i + 1] = moek_fma_t2_((high >> 4 & 0x07f007f0) | (high & 0x80008000), 0x7b807b80, 0x80008000, dtype);
        }
    }
}
MOEK_DEVICE uint32_t moek_nan_e4m3_(const uint32_t *codes)
{
    return (((codes[0] & 0x7f7f7f7f) + 0x01010101) | ((codes[1] & 0x7f7f7f7f) + 0x01010101)) & 0x80808080;
}
/* sum += x times w, of what ldmatrix brings.  They become fp16, exactly: two m16n8k16. */
template <int MI, int NI>
MOEK_DEVICE void moek_mma_of_e4m3_(float sum[MI][NI][4], const uint32_t xs[MI][4], const uint32_t ws[NI][2])
{
    int mi, ni, half;
    #pragma unroll
    for (half = 0; half < 2; half++) {
        uint32_t fx[MI][4], fw[2];
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            uint32_t low[2], high[2];
            moek_fp16_of_e4m3_(low, xs[mi][2 * half]);
            moek_fp16_of_e4m3_(high, xs[mi][2 * half + 1]);
            fx[mi][0] = low[0]; fx[mi][1] = high[0]; fx[mi][2] = low[1]; fx[mi][3] = high[1];
        }
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            moek_fp16_of_e4m3_(fw, ws[ni][half]);
            #pragma unroll
            for (mi = 0; mi < MI; mi++) moek_mma_fp16_(sum[mi][ni], fx[mi], fw);
        }
    }
}
/* The same where the sums of 32 of k have scales: x of both halves; then the sums of a column tile. */
template <int MI> MOEK_DEVICE void moek_halves_of_e4m3_(uint32_t fx[2][MI][4], const uint32_t xs[MI][4])
{
    int mi, half;
    #pragma unroll
    for (half = 0; half < 2; half++)
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            uint32_t low[2], high[2];
            moek_fp16_of_e4m3_(low, xs[mi][2 * half]);
            moek_fp16_of_e4m3_(high, xs[mi][2 * half + 1]);
            fx[half][mi][0] = low[0]; fx[half][mi][1] = high[0];
            fx[half][mi][2] = low[1]; fx[half][mi][3] = high[1];
        }
}
template <int MI> MOEK_DEVICE void moek_mma_half_of_e4m3_(float sum[MI][4], const uint32_t fx[MI][4], uint32_t w)
{
    uint32_t fw[2];
    int mi;
    moek_fp16_of_e4m3_(fw, w);
    #pragma unroll
    for (mi = 0; mi < MI; mi++) moek_mma_fp16_(sum[mi], fx[mi], fw);
}
#endif
