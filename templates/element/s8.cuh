/* element/s8.cuh -- s8 on GPUs (s8.j2 says what it is). */
#ifndef MOEK_S8_CUH
#define MOEK_S8_CUH
#include "../../include/moek/kernel/ptx.h"

/* Exact sums of more than 2^16 products, which s32 does not hold: sums of s32, and `high`, a byte of each four of them
 * in units of 2^31.  Carry, at least after each 2^16 products: |sum| is at most 2^30 again, what is above goes to
 * byte i of `high`.  (Bytes have signs and take from the next; 2^24 products make at most 127 units.) */
MOEK_DEVICE void moek_carry_s8_(int32_t sum[4], int32_t *high)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        const int32_t above = ((sum[i] >> 30) + 1) >> 1;
        sum[i] = (int32_t)((uint32_t)sum[i] - ((uint32_t)above << 31));
        *high = (int32_t)((uint32_t)*high + ((uint32_t)above << 8 * i));
    }
}
/* Both, rounded once. */
MOEK_DEVICE void moek_total_s8_(float total[4], const int32_t sum[4], int32_t high)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        const int32_t byte = (int8_t)high;
        total[i] = fmaf((float)(byte * (1 << 15) + (sum[i] >> 16)), 65536.0f, (float)(sum[i] & 0xffff));
        high = (high - byte) >> 8;
    }
}
/* 8 s8 -> 4 pairs of T, exactly, times 2^-32 in bf16.  code + 128 is a multiple of 2^-133 in bf16; in fp16 of -1, on
 * top of -1024, whose upper byte is one of `less`, too. */
MOEK_DEVICE void moek_pairs_s8_(uint32_t to[4], const uint32_t *codes, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16;
    const uint32_t by = fp16 ? 0xbc00bc00 /* -1 */ : 0x72007200 /* 2^101 */;
    const uint32_t less = fp16 ? 0xe480e480 /* -1152 */ : 0xb300b300 /* -128 * 2^-32 */;
    const uint32_t above = fp16 ? less : 0;
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const uint32_t w = codes[i] ^ 0x80808080;
        to[2 * i] = moek_fma_t2_(__byte_perm(w, above, 0x5150), by, less, dtype);
        to[2 * i + 1] = moek_fma_t2_(__byte_perm(w, above, 0x5352), by, less, dtype);
    }
}
/* No code is a NaN, as moek_nan_e4m3_ would say. */
MOEK_DEVICE uint32_t moek_nan_s8_(const uint32_t *codes) { (void)codes; return 0; }
/* Eight floats -> eight s8, the first in the lowest byte: the bytes of moek_encode_s8_. */
MOEK_DEVICE uint2 moek_to_s8x8_(const float x[8])
{
    uint32_t four[2] = {0, 0};
    int i;
    #pragma unroll
    for (i = 0; i < 8; i++) {
        const float high = x[i] < 127.0f ? x[i] : x[i] >= 127.0f ? 127.0f : 0.0f;
        four[i / 4] |= (moek_bits_((high > -127.0f ? high : -127.0f) + 12582912.0f) & 0xff) << 8 * (i % 4);
    }
    return make_uint2(four[0], four[1]);
}
/* sum += x times w, of what ldmatrix brings, which is what mma.sync takes: 16 bytes of k. */
template <int MI, int NI>
MOEK_DEVICE void moek_mma_of_s8_(int32_t sum[MI][NI][4], const uint32_t xs[MI][4], const uint32_t ws[NI][2])
{
    int mi, ni;
    #pragma unroll
    for (ni = 0; ni < NI; ni++)
        #pragma unroll
        for (mi = 0; mi < MI; mi++) moek_mma_s8_(sum[mi][ni], xs[mi], ws[ni]);
}
#endif
