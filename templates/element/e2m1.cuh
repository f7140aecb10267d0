/* element/e2m1.cuh -- e2m1 on GPUs (e2m1.j2 says what it is). */
#ifndef MOEK_E2M1_CUH
#define MOEK_E2M1_CUH
#include "../../include/moek/kernel/ptx.h"

/* A scale, twice, as moek_pairs_e2m1_ takes it.  s up to 2^33 in bf16; from 2^-31 to 2^8 in fp16. */
MOEK_DEVICE uint32_t moek_scale_e2m1_(float s, int dtype)
{
    const float shift_factor = s * (dtype == MOEK_DTYPE_FP16 ? 128.0f : 1.98070406e28f /* 2^94 */);
    return moek_to_t2_(shift_factor, shift_factor, dtype);
}
/* 8 e2m1 -> 4 pairs (k, k + 4) of T, times the scale and 2^-32 (fp16: 2^-7). */
MOEK_DEVICE void moek_pairs_e2m1_(uint32_t to[4], const uint32_t *codes, uint32_t scale, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16, left = fp16 ? 9 : 6;
    const uint32_t mask = fp16 ? 0x0e000e00 : 0x01c001c0, sign = 0x80008000, w = codes[0], high = w >> 8;
    to[0] = moek_fma_t2_((w << left & mask) | (w << 12 & sign), scale, sign, dtype);
    to[1] = moek_fma_t2_((w << (left - 4) & mask) | (w << 8 & sign), scale, sign, dtype);
    to[2] = moek_fma_t2_((high << left & mask) | (w << 4 & sign), scale, sign, dtype);
    to[3] = moek_fma_t2_((high << (left - 4) & mask) | (w & sign), scale, sign, dtype);
}

/* Four e2m1 of a byte each -> two pairs of T, exactly: of 4 bits two tables have the high and the low byte. */
MOEK_DEVICE void moek_pairs_of_bytes_e2m1_(uint32_t to[2], uint32_t codes, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16;
    const uint32_t two = codes | codes >> 4;           /* a nibble each, in bytes 0 and 2 */
    const uint32_t which = ((two & 0xff) | (two >> 8 & 0xff00)) & 0x7777;
    const uint32_t magnitude = fp16 ? __byte_perm(0x3e3c3800, 0x46444240, which)
                                    : __byte_perm(0x3f3f3f00, 0x40404040, which);
    const uint32_t high = magnitude | (codes << 4 & 0x80808080);
    const uint32_t low = fp16 ? 0 : __byte_perm(0xc0800000, 0xc0804000, which);
    to[0] = __byte_perm(low, high, 0x5140);
    to[1] = __byte_perm(low, high, 0x7362);
}

/* 8 e2m1 -> e4m3, 2^6 times too small, exactly: those at even places, and the others. */
MOEK_DEVICE void moek_e4m3_of_e2m1_(uint32_t to[2], uint32_t w)
{
    to[0] = (w << 4 & 0x80808080) | (w << 2 & 0x1c1c1c1c);
    to[1] = (w & 0x80808080) | (w >> 2 & 0x1c1c1c1c);
}

/* 8 e2m1 -> a byte each as mma.sync by block scale wants them, the code in bits 2 to 5: those at even places, and the
 * others. */
MOEK_DEVICE void moek_padded_of_e2m1_(uint32_t to[2], uint32_t w)
{
    to[0] = w << 2 & 0x3c3c3c3c;
    to[1] = w >> 2 & 0x3c3c3c3c;
}

/* Two words of a fragment (moek/ops.h: repack) hold 8 pairs, numbers 0 to 3 of the first and then of the second word.
 * In the order of bits that follows, a rotation and a mask make a pair of bf16: three pairs of each word, and two of a
 * third word, which has the bits `mixed` of the first and the other bits of the second. */
enum { moek_mixed_e2m1_ = 0x06030603 };
/* A pair as it lies in a word of codes, and as bits of bf16. */
MOEK_DEVICE uint32_t moek_pair_e2m1_(uint32_t w, int number)
{
    const uint32_t codes = w >> 4 * number;
    return (codes << 6 & 0x01c001c0) | (codes << 12 & 0x80008000);
}
MOEK_DEVICE void moek_arrange_e2m1_(uint32_t w[2])
{
    const uint32_t mixed = moek_rotate_(moek_pair_e2m1_(w[0], 3), 18) | moek_rotate_(moek_pair_e2m1_(w[1], 3), 24);
    const uint32_t first = moek_pair_e2m1_(w[0], 0) | moek_rotate_(moek_pair_e2m1_(w[0], 1), 28) |
                           moek_rotate_(moek_pair_e2m1_(w[0], 2), 22);
    const uint32_t second = moek_rotate_(moek_pair_e2m1_(w[1], 0), 30) | moek_rotate_(moek_pair_e2m1_(w[1], 1), 26) |
                            moek_rotate_(moek_pair_e2m1_(w[1], 2), 20);
    w[0] = first | (mixed & moek_mixed_e2m1_);
    w[1] = second | (mixed & ~moek_mixed_e2m1_);
}
/* A pair as bits of T: 2^126 (fp16: 2^14) times too small. */
MOEK_DEVICE uint32_t moek_bits_e2m1_(uint32_t w, int left, int dtype)
{
    if (dtype == MOEK_DTYPE_BF16) return moek_rotate_(w, left) & 0x81c081c0;
    return (moek_rotate_(w, left) & 0x80008000) | (moek_rotate_(w, left + 3) & 0x0e000e00);
}
/* Arranged words -> their pairs; -> the words before. */
MOEK_DEVICE void moek_pairs_of_e2m1_(uint32_t to[8], const uint32_t w[2], int dtype)
{
    const uint32_t mixed = moek_select_(moek_mixed_e2m1_, w[0], w[1]);
    to[0] = moek_bits_e2m1_(w[0], 0, dtype);
    to[1] = moek_bits_e2m1_(w[0], 4, dtype);
    to[2] = moek_bits_e2m1_(w[0], 10, dtype);
    to[3] = moek_bits_e2m1_(mixed, 14, dtype);
    to[4] = moek_bits_e2m1_(w[1], 2, dtype);
    to[5] = moek_bits_e2m1_(w[1], 6, dtype);
    to[6] = moek_bits_e2m1_(w[1], 12, dtype);
    to[7] = moek_bits_e2m1_(mixed, 8, dtype);
}
MOEK_DEVICE void moek_rearrange_e2m1_(uint32_t w[2])
{
    uint32_t pairs[8];
    int i;
    moek_pairs_of_e2m1_(pairs, w, MOEK_DTYPE_BF16);
    w[0] = w[1] = 0;
    #pragma unroll
    for (i = 0; i < 8; i++)
        w[i / 4] |= ((pairs[i] >> 6 & 0x00070007) | (pairs[i] >> 12 & 0x00080008)) << i % 4 * 4;
}
/* Arranged words -> their pairs, of rows g, g + 8, g and g + 8 each, times the scale of the row and 2^-32 (fp16: 2^-7).
 * scales: of row g in the low half, of row g + 8 in the high one; scales of the second word are `next` further on. */
MOEK_DEVICE void moek_fragment_e2m1_(uint32_t to[2][4], const uint32_t *w, const uint32_t *scales, int next, int dtype)
{
    const uint32_t two[2] = { w[0], w[1] };
    uint32_t pairs[8];
    int i;
    moek_pairs_of_e2m1_(pairs, two, dtype);
    #pragma unroll
    for (i = 0; i < 8; i++) {
        const uint32_t scale = scales[i / 4 * next];
        to[i / 4][i % 4] = i % 2 ? moek_times_high_t2_(scale, pairs[i], dtype)
                                 : moek_times_low_t2_(scale, pairs[i], dtype);
    }
}
/* Scales of rows g and g + 8 for two groups each, bytes of `from`, to a word for each group, as moek_fragment_e2m1_
 * takes them.  bf16: the byte is the exponent of bf16; above 2^34 all become NaN, as 255 is. */
MOEK_DEVICE void moek_scales_e8m0_e2m1_(uint32_t to[2], uint32_t from, int dtype)
{
    int i, j;
    #pragma unroll
    for (i = 0; i < 2; i++)
        if (dtype == MOEK_DTYPE_FP16) {
            float s[2];
            #pragma unroll
            for (j = 0; j < 2; j++) {                  /* (2^-127 becomes 0, which it is in fp16, too) */
                const float of = moek_float_((from >> (16 * i + 8 * j) & 255) << 23);
                s[j] = fmaf(of, 128, of * 0);
            }
            to[i] = moek_to_t2_(s[0], s[1], dtype);
        } else {
            to[i] = moek_min_u16_((__byte_perm(from, 0, i ? 0x4342 : 0x4140) << 7) + 0x2f002f00 /* 94 more */,
                                    0x7fff7fff /* NaN */);
        }
}
MOEK_DEVICE void moek_scales_e4m3_e2m1_(uint32_t to[2], uint32_t from, int dtype)
{
    const uint32_t power = dtype == MOEK_DTYPE_FP16 ? 0x58005800 /* 2^7 */ : 0x6e806e80 /* 2^94 */;
    int i;
    moek_fp16_of_e4m3_(to, from);
    #pragma unroll
    for (i = 0; i < 2; i++) {
        if (dtype == MOEK_DTYPE_BF16) {
            float s[2];
            moek_from_t2_(s, to[i], MOEK_DTYPE_FP16);
            to[i] = moek_to_t2_(s[0], s[1], dtype);
        }
        to[i] = moek_fma_t2_(to[i], power, 0x80008000, dtype);
    }
}

/* A word of a fragment for e4m3 (moek/ops.h: repack), from its 8 codes, code j of row g at bits 4j on and of row g + 8
 * at 16 + 4j on.  The sign of row g goes to bit 8j + 3, of row g + 8 to 8j + 7.  Magnitudes become 0 2 3 1 4 5
 * 6 7, places in a table: 0 1 1.5 .5, 2 3 4 6.  And back. */
MOEK_DEVICE uint32_t moek_arrange_e4m3_e2m1_(uint32_t w)
{
    const uint32_t as_is = (w >> 2 & 0x11111111) * 7;                          /* magnitudes from 4 on */
    const uint32_t low = (w << 1 & 0x22222222) | ((w ^ w >> 1) & 0x11111111);
    return (w & as_is) | (low & ~as_is) | (moek_nibbles_apart_(w) & 0x88888888);
}
MOEK_DEVICE uint32_t moek_rearrange_e4m3_e2m1_(uint32_t w)
{
    const uint32_t as_is = (w >> 2 & 0x11111111) * 7;
    const uint32_t low = (w >> 1 & 0x11111111) | ((w ^ w >> 1) << 1 & 0x22222222);
    return (w & as_is) | (low & ~as_is) | (moek_nibbles_together_(w) & 0x88888888);
}
/* For rows g (low half) and g + 8: of each 32 of k, the power of 2 by which e2m1 is larger in e4m3, plus 6: 1 to 12, or
 * 0 if that is too little, and the bits of codes that then count.  by: what sums of 128 of k are multiplied by. */
typedef struct moek_folded_e8m0_e2m1_ { uint32_t power[4], mask[4]; float by[2]; } moek_folded_e8m0_e2m1_;
enum { moek_lowest_e8m0_e2m1_ = 0x000c000c };          /* 12 of both rows: the least that `top` may be */
/* Scales of 64 of k each: bytes of rows g and g + 8, of the first 32 and of the next.  The largest of them and of `top`
 * becomes 12: 6 * 2^6 is the most that e4m3 has room for.  Returns that largest. */
MOEK_DEVICE uint32_t moek_powers_e8m0_e2m1_(moek_folded_e8m0_e2m1_ *to, const uint32_t scales[2], uint32_t top)
{
    uint32_t most, base;
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) to->power[i] = __byte_perm(scales[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
    most = moek_max_u16_(moek_max_u16_(to->power[0], to->power[1]), moek_max_u16_(to->power[2], to->power[3]));
    most = moek_max_u16_(most, top);
    base = most - moek_lowest_e8m0_e2m1_;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        to->power[i] = moek_max_u16_(to->power[i], base) - base;
        to->mask[i] = moek_min_u16_(to->power[i], 0x00010001) * 0x7777;
    }
    return most;
}
/* What sums are multiplied by then.  Infinite for 255, NaN, so times 0 NaN, and else 0. */
MOEK_DEVICE void moek_by_e8m0_e2m1_(float to[2], uint32_t most)
{
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const float by = moek_float_(i ? most << 7 & 0x7f800000 : most << 23);
        to[i] = fmaf(by, 0.0f, by * 0.015625f);
    }
}
MOEK_DEVICE void moek_fold_scale_e8m0_e2m1_(moek_folded_e8m0_e2m1_ *to, const uint32_t scales[2])
{
    moek_by_e8m0_e2m1_(to->by, moek_powers_e8m0_e2m1_(to, scales, moek_lowest_e8m0_e2m1_));
}
/* The same onto the largest scale up to here (top), so that sums of all stages have one unit.  Where it rises, returns
 * 1, and what sums of row g and of row g + 8 are to be multiplied by. */
MOEK_DEVICE int moek_rescale_up_e8m0_e2m1_(moek_folded_e8m0_e2m1_ *to, const uint32_t scales[2], uint32_t *top,
                                           float rescale[2])
{
    const uint32_t most = moek_powers_e8m0_e2m1_(to, scales, *top), rise = most - *top;
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) rescale[i] = moek_float_((127 - min(rise >> 16 * i & 0xffff, 127u)) << 23);
    *top = most;
    return rise != 0;
}
/* 64 of k: each word -> e4m3 of row g, and of row g + 8, from tables of the 8 magnitudes at that power. */
MOEK_DEVICE void moek_fragment_e4m3_e8m0_e2m1_(uint32_t to[2][4], const moek_words_ *codes,
                                               const moek_folded_e8m0_e2m1_ *by, int half)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        const uint32_t w = codes->w[i], power = by->power[2 * half + i / 2], g = power & 0xffff, next = power >> 16;
        const uint32_t magnitudes = w & by->mask[2 * half + i / 2];
        to[i / 2][i % 2 * 2] = (w << 4 & 0x80808080) |
            moek_pick_(g * 0x08080800 + 0x000c0800, g * 0x08080808 + 0x1c181410, magnitudes);
        to[i / 2][i % 2 * 2 + 1] = (w & 0x80808080) |
            moek_pick_(next * 0x08080800 + 0x000c0800, next * 0x08080808 + 0x1c181410, magnitudes >> 16);
    }
}
/* The same where scales are e4m3 and a lane has one of row g and one of row g + 8 in 64 of k.  codes: of each 64 of k
 * and row, e4m3 of its scale and of 1.5 times that, both times a power of 2; mask: the bits of codes that count.  by:
 * as above, 2^5 too large. */
typedef struct moek_folded_e4m3_e2m1_ { uint32_t codes[2][2], mask[2]; float by[2]; } moek_folded_e4m3_e2m1_;
/* The largest of four lanes, of which each has scales of the same two rows. */
MOEK_DEVICE uint32_t moek_max_of_lanes_e2m1_(uint32_t most)
{
    most = moek_max_t2_(most, __shfl_xor_sync(0xffffffff, most, 1), MOEK_DTYPE_FP16);
    return moek_max_t2_(most, __shfl_xor_sync(0xffffffff, most, 2), MOEK_DTYPE_FP16);
}
/* h: scales of 64 of k each as fp16, of row g in the low half, of row g + 8 in the high one; most: the largest of the
 * scales that share a power of 2.  The power brings it to 32 .. 60: 6 * 60 is less than 448, and half of 2^-5 is still
 * normal.  (All of them 0: any power does.)  by: 0 times a NaN adds it. */
MOEK_DEVICE void moek_fold_scale_onto_e4m3_e2m1_(moek_folded_e4m3_e2m1_ *to, const uint32_t h[2], uint32_t most)
{
    const uint32_t power = most & 0x7c007c00, by = 0x8c008c00 - power;         /* 2^5 over it */
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const uint32_t s = moek_fma_t2_(h[i], by, 0x80008000, MOEK_DTYPE_FP16);
        to->mask[i] = moek_at_least_fp16_(s, 0x28002800 /* 2^-5 */) & 0x77777777;
        to->codes[i][0] = moek_e4m3_of_fp16_(moek_times_low_t2_(s, 0x3e003c00 /* 1, 1.5 */, MOEK_DTYPE_FP16));
        to->codes[i][1] = moek_e4m3_of_fp16_(moek_times_high_t2_(s, 0x3e003c00, MOEK_DTYPE_FP16));
    }
    moek_from_t2_(to->by, moek_fma_t2_(most, 0, power, MOEK_DTYPE_FP16), MOEK_DTYPE_FP16);
}
/* Of 128 of k: scales of 64 each, of row g in the low byte, of row g + 8 in the next; four lanes have all. */
MOEK_DEVICE void moek_fold_scale_e4m3_e2m1_(moek_folded_e4m3_e2m1_ *to, const uint32_t scales[2])
{
    uint32_t of[2][2], h[2];
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        moek_fp16_of_e4m3_(of[i], scales[i]);
        h[i] = of[i][0];
    }
    moek_fold_scale_onto_e4m3_e2m1_(to, h, moek_max_of_lanes_e2m1_(moek_max_t2_(h[0], h[1], MOEK_DTYPE_FP16)));
}
/* One power of 2 is 8 in the codes of e4m3. */
MOEK_DEVICE void moek_fragment_e4m3_e4m3_e2m1_(uint32_t to[2][4], const moek_words_ *codes,
                                               const moek_folded_e4m3_e2m1_ *by, int half)
{
    const uint32_t g = by->codes[half][0], next = by->codes[half][1];
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) {
        const uint32_t w = codes->w[i], magnitudes = w & by->mask[half];
        to[i / 2][i % 2 * 2] = (w << 4 & 0x80808080) |
            moek_pick_(g * 0x01000100 + 0xf8000000, g * 0x00010001 + 0x10100808, magnitudes);
        to[i / 2][i % 2 * 2 + 1] = (w & 0x80808080) |
            moek_pick_(next * 0x01000100 + 0xf8000000, next * 0x00010001 + 0x10100808, magnitudes >> 16);
    }
}

/* 64 of k of a lane's two rows of fragments: codes, times scales -> T. */
template <class Format>
MOEK_DEVICE void moek_fragment_of_e2m1_(uint32_t to[4][4], const moek_words_ *codes, const uint32_t *scales, int dtype)
{
    enum { G = 64 / Format::W_SCALE_COLUMNS };         /* scales of a row */
    uint32_t by[G];
    int i;
    #pragma unroll
    for (i = 0; i < G / 2; i++) Format::scales(by + 2 * i, scales[i], dtype);
    #pragma unroll
    for (i = 0; i < 2; i++)
        moek_fragment_e2m1_(to + 2 * i, codes->w + 2 * i, by + i * G / 2, G / 4, dtype);
}

#endif
