/* element/u4b8.cuh -- u4b8 on GPUs (u4b8.j2 says what it is). */
#ifndef MOEK_U4B8_CUH
#define MOEK_U4B8_CUH
#include "../../include/moek/kernel/ptx.h"

/* A scale and a zero point, twice, as moek_pairs_u4b8_ takes them. */
MOEK_DEVICE uint32_t moek_scale_u4b8_(float s, int dtype)
{
    const float shift_factor = dtype == MOEK_DTYPE_FP16 ? s : s * 1.58456325e29f /* 2^97 */;
    return moek_to_t2_(shift_factor, shift_factor, dtype);
}
MOEK_DEVICE uint32_t moek_zero_u4b8_(uint32_t zero, int dtype)
{
    return dtype == MOEK_DTYPE_FP16 ? zero * 0x00010001 | 0xe400e400 : zero * 0x00100010 | 0x80008000;
}
/* 8 u4b8 -> 4 pairs (k, k + 4) of T: (code - zero) * scale, rounded once, times 2^-32 in bf16.
 * bf16: the 4 bits of a code are a multiple of 2^-129 where they are, or of 2^-133 four places lower.
 * fp16: a multiple of 1 on top of 1024, or of 16 four places higher. */
MOEK_DEVICE void moek_pairs_u4b8_(uint32_t to[4], const uint32_t *codes, uint32_t scale, uint32_t zero, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16;
    const uint32_t w = codes[0], high = w >> 8, low_bits = 0x000f000f, high_bits = 0x00f000f0, none = 0x80008000;
    const uint32_t low_by = fp16 ? 0x3c003c00 /* 1 */ : 0x41804180 /* 16 */;
    const uint32_t high_by = fp16 ? 0x2c002c00 /* 1/16 */ : 0x3f803f80 /* 1 */;
    const uint32_t base = fp16 ? 0x64006400 : 0;
    const uint32_t high_zero = fp16 ? moek_fma_t2_(base, 0x3b803b80 /* 15/16 */, zero, dtype) : zero;
    to[0] = moek_fma_t2_(moek_fma_t2_((w & low_bits) | base, low_by, zero, dtype), scale, none, dtype);
    to[1] = moek_fma_t2_(moek_fma_t2_((w & high_bits) | base, high_by, high_zero, dtype), scale, none, dtype);
    to[2] = moek_fma_t2_(moek_fma_t2_((high & low_bits) | base, low_by, zero, dtype), scale, none, dtype);
    to[3] = moek_fma_t2_(moek_fma_t2_((high & high_bits) | base, high_by, high_zero, dtype), scale, none, dtype);
}

/* Scales of row g in the low half, of row g + 8 in the high one: what codes are multiplied by where they lie, and what
 * is added then.  bf16: -8 times the scale; scales are up to 2^26.  zero: with zero points, for both rows. */
typedef struct moek_scales_u4b8_ { uint32_t by, less, zero[2]; } moek_scales_u4b8_;
MOEK_DEVICE void moek_scales_t_u4b8_(moek_scales_u4b8_ *to, uint32_t from, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16;
    to->by = fp16 ? from : moek_fma_t2_(from, 0x70007200 /* 2^101, 2^97 */, 0x80008000, dtype);
    to->less = fp16 ? 0x80008000 : moek_fma_t2_(from, 0xb100b100 /* -2^-29 */, 0x80008000, dtype);
}
/* The same for scales of 1, as constants. */
MOEK_DEVICE void moek_no_scales_u4b8_(moek_scales_u4b8_ *to, int dtype)
{
    to->by = dtype == MOEK_DTYPE_FP16 ? 0x3c003c00 : 0x70007200;
    to->less = dtype == MOEK_DTYPE_FP16 ? 0x80008000 : 0xb100b100;
}
/* A word of a fragment (moek/ops.h: repack) -> its pairs, of rows g, g + 8, g and g + 8: (code - 8) * scale, rounded
 * once, times 2^-32 in bf16.  The codes of row g are the low 4 bits of a byte, 2^-133 in bf16, the codes of g + 8 the
 * high ones, 2^-129. */
MOEK_DEVICE void moek_fragment_u4b8_(uint32_t to[4], uint32_t w, const moek_scales_u4b8_ *scale, int dtype)
{
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const uint32_t base = dtype == MOEK_DTYPE_FP16 ? 0x64006400 : 0;
        uint32_t low = moek_and_or_(w >> 8 * i, 0x000f000f, base);
        uint32_t high = moek_and_or_(w >> 8 * i, 0x00f000f0, base);
        if (dtype == MOEK_DTYPE_FP16) {
            low = moek_fma_t2_(low, 0x3c003c00 /* 1 */, 0xe408e408 /* -1032 */, dtype);
            high = moek_fma_t2_(high, 0x2c002c00 /* 1/16 */, 0xd480d480 /* -72 */, dtype);
        }
        to[2 * i] = moek_fma_low_t2_(low, scale->by, scale->less, dtype);
        to[2 * i + 1] = moek_fma_high_t2_(high, scale->by, scale->less, dtype);
    }
}
/* With zero points, of row g in bits 0 to 3 of `zeros`, of row g + 8 in bits 4 to 7: what codes have too much where
 * they lie.  bf16: the zero points as they are; fp16: on top of 1024, of 64.  A scale times a zero point would have
 * 12 bits, so codes are subtracted first: exact, and (code - zero) * scale is rounded once. */
MOEK_DEVICE void moek_zeros_t_u4b8_(moek_scales_u4b8_ *to, uint32_t zeros, int dtype)
{
    const uint32_t both = __byte_perm(zeros, 0, 0x4040), fp16 = dtype == MOEK_DTYPE_FP16;
    to->zero[0] = (both & 0x000f000f) | (fp16 ? 0xe400e400 : 0x80008000);
    to->zero[1] = (both & 0x00f000f0) | (fp16 ? 0xd400d400 : 0x80008000);
}
MOEK_DEVICE void moek_fragment_zero_u4b8_(uint32_t to[4], uint32_t w, const moek_scales_u4b8_ *scale, int dtype)
{
    const uint32_t fp16 = dtype == MOEK_DTYPE_FP16, base = fp16 ? 0x64006400 : 0;
    const uint32_t one = fp16 ? 0x3c003c00 : 0x3f803f80, high_by = fp16 ? 0x2c002c00 /* 1/16 */ : one;
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const uint32_t low = moek_and_or_(w >> 8 * i, 0x000f000f, base);
        const uint32_t high = moek_and_or_(w >> 8 * i, 0x00f000f0, base);
        to[2 * i] = moek_times_low_t2_(scale->by, moek_fma_t2_(low, one, scale->zero[0], dtype), dtype);
        to[2 * i + 1] = moek_times_high_t2_(scale->by, moek_fma_t2_(high, high_by, scale->zero[1], dtype), dtype);
    }
}

/* A word of a fragment for e4m3 (moek/ops.h: repack), from its 8 codes, code j of row g at bits 4j on and of row g + 8
 * at 16 + 4j on.  Bits 4j on go to 8j on, 16 + 4j to 8j + 4; there they are 1 and 7 - code in the bits above for a code
 * below 8, else 0 and code - 8.  And back. */
MOEK_DEVICE uint32_t moek_arrange_e4m3_u4b8_(uint32_t w)
{
    const uint32_t x = moek_nibbles_apart_(w), low = ~x >> 3 & 0x11111111;
    return ((x & 0x77777777) ^ low * 7) << 1 | low;
}
MOEK_DEVICE uint32_t moek_rearrange_e4m3_u4b8_(uint32_t w)
{
    const uint32_t low = w & 0x11111111;
    return moek_nibbles_together_(((w >> 1 & 0x77777777) ^ low * 7) | (low ^ 0x11111111) << 3);
}
/* What sums of 128 of k of rows g and g + 8 are multiplied by: the scales. */
typedef struct moek_folded_f32_u4b8_ { float by[2]; } moek_folded_f32_u4b8_;
MOEK_DEVICE void moek_fold_scale_f32_u4b8_(moek_folded_f32_u4b8_ *to, const uint32_t scales[2])
{
    to->by[0] = moek_float_(scales[0]);
    to->by[1] = moek_float_(scales[1]);
}
/* 64 of k: each word -> (code - 8) * 2^-8 in e4m3 of row g, and of row g + 8.  Up to 16, the code of e4m3 is the number
 * times 2^9.  So 2n is n * 2^-8, and what is added to a negative one (0x81, and the 1 that is there) its sign and 2. */
MOEK_DEVICE void moek_fragment_e4m3_f32_u4b8_(uint32_t to[2][4], const moek_words_ *codes,
                                              const moek_folded_f32_u4b8_ *by, int half)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        const uint32_t w = codes->w[i], high = w >> 4 & 0x0f0f0f0f;
        to[i / 2][i % 2 * 2] = (w & 0x0f0f0f0f) + (w & 0x01010101) * 0x81;
        to[i / 2][i % 2 * 2 + 1] = high + (high & 0x01010101) * 0x81;
    }
    (void)by; (void)half;
}

/* 64 of k of a lane's two rows of fragments: codes, times scales, if those are not of a whole row -> T.  zeros: with
 * zero points (zero, which is a constant), a byte for each scale. */
template <class Format>
MOEK_DEVICE void moek_fragment_of_u4b8_(uint32_t to[4][4], const moek_words_ *codes, const uint32_t *scales,
                                        uint32_t zeros, int zero, int dtype)
{
    enum { COLUMNS = Format::W_SCALE_COLUMNS, G = 0 < COLUMNS && COLUMNS < 64 ? 64 / (COLUMNS + (COLUMNS == 0)) : 1 };
    moek_scales_u4b8_ by[G];                           /* of a row in 64 of k */
    int i;
    #pragma unroll
    for (i = 0; i < G; i++) {
        if (COLUMNS == 0) moek_no_scales_u4b8_(by + i, dtype);
        else moek_scales_t_u4b8_(by + i, scales[i], dtype);
        if (zero) moek_zeros_t_u4b8_(by + i, zeros >> 8 * i, dtype);
    }
    #pragma unroll
    for (i = 0; i < 4; i++)
        if (zero) moek_fragment_zero_u4b8_(to[i], codes->w[i], by + i * G / 4, dtype);
        else moek_fragment_u4b8_(to[i], codes->w[i], by + i * G / 4, dtype);
}

/* 8 u4b8 -> e4m3, 2^9 times too small, exactly: those at even places, and the others.  Up to 15, an integer is the code
 * of e4m3 of 2^-9 of it. */
MOEK_DEVICE void moek_e4m3_of_u4b8_(uint32_t to[2], uint32_t w)
{
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const uint32_t n = w >> 4 * i & 0x0f0f0f0f, eight = n & 0x08080808, not_negative = (eight << 5) - (eight >> 3);
        to[i] = (n & 0x07070707 & not_negative) | ((0x88888888 - n) & ~not_negative);
    }
}
#endif
