/* moek/kernel/gemm_neon.h -- dots and whole rows of gemm_cpu.h with NEON of Armv8.2 (moek/kernel/isa.h).  The bits are
 * plain C's: the same sums in the same order. */
#include "gemm_cpu.h"
#ifndef MOEK_GEMM_NEON_H
#define MOEK_GEMM_NEON_H
#if MOEK_HAVE_NEON_

/* 8 of 16 bits, T or fp16 by dtype, to f32. */
MOEK_NEON_INLINE void moek_eight_neon_(float32x4_t *first, float32x4_t *last, uint16x8_t t, int dtype)
{
    if (dtype == MOEK_DTYPE_FP16) {
        *first = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u16(t)));
        *last = vcvt_high_f32_f16(vreinterpretq_f16_u16(t));
    } else {
        *first = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(t), 16));
        *last = vreinterpretq_f32_u32(vshll_high_n_u16(t, 16));
    }
}
/* 16 of e4m3 as 2^-8 of their values: bits of e4m3 are an fp16's that is 2^8 too small, subnormals included. */
MOEK_NEON_INLINE void moek_e4m3_neon_(float32x4_t *a, float32x4_t *b, float32x4_t *c, float32x4_t *d, uint8x16_t from)
{
    const int8x16_t bytes = vreinterpretq_s8_u8(from);
    const int16x8_t keep = vdupq_n_s16((short)0xbf80), first = vshll_n_s8(vget_low_s8(bytes), 7);
    moek_eight_neon_(a, b, vreinterpretq_u16_s16(vandq_s16(first, keep)), MOEK_DTYPE_FP16);
    moek_eight_neon_(c, d, vreinterpretq_u16_s16(vandq_s16(vshll_high_n_s8(bytes, 7), keep)), MOEK_DTYPE_FP16);
}
/* Twice the largest magnitude of bytes; 254: some e4m3 is NaN. */
MOEK_NEON_INLINE uint8x16_t moek_top_neon_(uint8x16_t top, uint8x16_t of)
{
    return vmaxq_u8(top, vshlq_n_u8(of, 1));
}
MOEK_NEON_INLINE int moek_any_nan_neon_(uint8x16_t top) { return vmaxvq_u8(top) == 254; }

/* Lanes 4 v to 4 v + 3 of a piece in the order of plain C (moek_piece_), of e4m3 2^-8 of that. */
MOEK_NEON_INLINE void moek_part_neon_(float32x4_t to[8], uint8x16_t *top, const uint8_t *at, const int v,
                                      const int element)
{
    int i;
    if (element == MOEK_ELEMENT_E4M3) {                /* of 8 words two bytes each, then one */
        const uint8x16_t a = vld1q_u8(at + 16 * v), b = vld1q_u8(at + 64 + 16 * v);
        const uint8x16_t even = vuzp1q_u8(a, b), odd = vuzp2q_u8(a, b);
        *top = moek_top_neon_(moek_top_neon_(*top, a), b);
        moek_e4m3_neon_(&to[0], &to[1], &to[2], &to[3], vuzp1q_u8(even, odd));
        moek_e4m3_neon_(&to[4], &to[5], &to[6], &to[7], vuzp2q_u8(even, odd));
    } else if (element == MOEK_ELEMENT_FP16) {
        for (i = 0; i < 4; i += 2) {
            const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(at + 64 * i + 16 * v));
            const uint16x8_t b = vreinterpretq_u16_u8(vld1q_u8(at + 64 * i + 64 + 16 * v));
            moek_eight_neon_(&to[i], &to[i + 1], vuzp1q_u16(a, b), MOEK_DTYPE_FP16);
            moek_eight_neon_(&to[i + 4], &to[i + 5], vuzp2q_u16(a, b), MOEK_DTYPE_FP16);
        }
    } else {
        for (i = 0; i < 4; i++) {
            const uint32x4_t w = vreinterpretq_u32_u8(vld1q_u8(at + 64 * i + 16 * v));
            to[i] = vreinterpretq_f32_u32(vshlq_n_u32(w, 16));
            to[i + 4] = vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000)));
        }
    }
}
/* Four lanes += by * (part . x), rounded as in plain C. */
MOEK_NEON_INLINE float32x4_t moek_add_part_neon_(float32x4_t lanes, const float32x4_t w[8], const float *x,
                                                 const int scaled, float by)
{
    float32x4_t sum = vdupq_n_f32(0);
#define MOEK_STEP_(i) sum = vfmaq_f32(sum, w[i], vld1q_f32(x + 16 * (i)));
    MOEK_STEP_(0) MOEK_STEP_(1) MOEK_STEP_(2) MOEK_STEP_(3) MOEK_STEP_(4) MOEK_STEP_(5) MOEK_STEP_(6) MOEK_STEP_(7)
#undef MOEK_STEP_
    if (scaled) sum = vmulq_n_f32(sum, by);
    __asm__("" : "+w"(sum));                           /* else a compiler makes FMAs */
    return vaddq_f32(lanes, sum);
}
/* moek_sum_lanes_; a NaN of e4m3 spoils it. */
MOEK_NEON_INLINE float moek_sum_lanes_neon_(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, int nan)
{
    const float32x4_t first = nan ? vsetq_lane_f32(moek_float_(0x7fc00000), a, 0) : a;
    const float32x4_t four = vaddq_f32(vaddq_f32(first, c), vaddq_f32(b, d));
    return (vgetq_lane_f32(four, 0) + vgetq_lane_f32(four, 2)) + (vgetq_lane_f32(four, 1) + vgetq_lane_f32(four, 3));
}
MOEK_NEON_INLINE void moek_prefetch_piece_neon_(const uint8_t *at, const int bytes)
{
    int b;
    for (b = 0; b < bytes; b += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD + (uintptr_t)b);
}
/* The scale of piece n and row r of x. */
MOEK_NEON_INLINE float moek_piece_scale_neon_(const moek_dots_ *a, int n, int r)
{
    return (a->scale ? a->scale[n] : 1) * (a->x_scale ? a->x_scale[(size_t)r * a->x_scale_row + (size_t)n] : 1);
}
/* A row of w times 1, 2 or 4 rows of x: lanes stay in registers. */
MOEK_NEON_INLINE void moek_row_of_neon_(float *sum, const void *w, int n, float unit, moek_dots_ a, const int rows,
                                        const int scaled, const int element)
{
    const int bytes = element == MOEK_ELEMENT_E4M3 ? MOEK_PIECE : 2 * MOEK_PIECE;
    const uint8_t *at = (const uint8_t *)w;
    int i, j, r, v, end;
    for (i = 0; i < n; i = end) {
        float32x4_t lanes[4][4], part[8];
        uint8x16_t top = vdupq_n_u8(0);
        for (r = 0; r < rows; r++) for (v = 0; v < 4; v++) lanes[r][v] = vdupq_n_f32(0);
        end = n - i < MOEK_CPU_RUN ? n : i + MOEK_CPU_RUN;
        for (j = i; j < end; j += MOEK_PIECE, at += bytes, a.x += MOEK_PIECE) {
            float by[4];
            moek_prefetch_piece_neon_(at, bytes);
            for (r = 0; r < rows; r++) by[r] = scaled ? moek_piece_scale_neon_(&a, j / MOEK_PIECE, r) : 1;
            for (v = 0; v < 4; v++) {
                moek_part_neon_(part, &top, at, v, element);
                for (r = 0; r < rows; r++)
                    lanes[r][v] = moek_add_part_neon_(lanes[r][v], part, a.x + (size_t)r * a.x_row + 4 * v, scaled,
                                                      by[r]);
            }
        }
        for (r = 0; r < rows; r++)
            sum[r] += unit * moek_sum_lanes_neon_(lanes[r][0], lanes[r][1], lanes[r][2], lanes[r][3],
                                                  element == MOEK_ELEMENT_E4M3 && moek_any_nan_neon_(top));
    }
}
/* Pieces times rows of x (moek_dots_): lanes are in memory. */
MOEK_NEON_INLINE void moek_dots_pieces_neon_(float (*lanes)[MOEK_LANES], const void *from, int pieces, moek_dots_ a,
                                             const int element)
{
    const int bytes = element == MOEK_ELEMENT_E4M3 ? MOEK_PIECE : 2 * MOEK_PIECE;
    const uint8_t *at = (const uint8_t *)from;
    uint8x16_t top = vdupq_n_u8(0);
    float32x4_t part[8];
    int n, r, v;
    for (n = 0; n < pieces; n++, at += bytes, a.x += MOEK_PIECE) {
        moek_prefetch_piece_neon_(at, bytes);
        for (v = 0; v < 4; v++) {
            moek_part_neon_(part, &top, at, v, element);
            for (r = 0; r < a.rows; r++)
                vst1q_f32(lanes[r] + 4 * v, moek_add_part_neon_(vld1q_f32(lanes[r] + 4 * v), part,
                                                                a.x + (size_t)r * a.x_row + 4 * v, 1,
                                                                moek_piece_scale_neon_(&a, n, r)));
        }
    }
    if (element != MOEK_ELEMENT_E4M3 || !moek_any_nan_neon_(top)) return;
    for (r = 0; r < a.rows; r++) lanes[r][0] = moek_float_(0x7fc00000);
}
#define MOEK_DOTS_(name, ELEMENT) \
    MOEK_NEON_FN void moek_dots_neon_##name##_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns, \
                                               moek_dots_ a) \
    { \
        (void)columns; \
        moek_dots_pieces_neon_(lanes, from, pieces, a, ELEMENT); \
    }
MOEK_DOTS_(bf16, MOEK_ELEMENT_BF16)
MOEK_DOTS_(fp16, MOEK_ELEMENT_FP16)
MOEK_DOTS_(e4m3, MOEK_ELEMENT_E4M3)
#undef MOEK_DOTS_

/* Pieces of x in the order of pieces of 16 bits, and of 8. */
MOEK_NEON_FN void moek_x_halves_neon_(float *to, const void *from, int element, int dtype)
{
    const int type = element == MOEK_ELEMENT_T ? dtype
                   : element == MOEK_ELEMENT_FP16 ? (int)MOEK_DTYPE_FP16 : (int)MOEK_DTYPE_BF16;
    int i, p;
    for (i = 0; i < MOEK_PIECE / 2; i += 8) {
        const uint16x8x2_t of = vld2q_u16((const uint16_t *)from + 2 * i);
        for (p = 0; p < 2; p++) {
            float32x4_t first, last;
            moek_eight_neon_(&first, &last, of.val[p], type);
            vst1q_f32(to + p * (MOEK_PIECE / 2) + i, first);
            vst1q_f32(to + p * (MOEK_PIECE / 2) + i + 4, last);
        }
    }
}
MOEK_NEON_FN void moek_x_quarters_neon_(float *to, const void *from, int element, int dtype)
{
    enum { W = MOEK_PIECE / 4 };
    uint8x16_t top = vdupq_n_u8(0);
    float32x4_t f[4];
    int i, p, j;
    for (i = 0; element == MOEK_ELEMENT_E4M3 && i < W; i += 16) {
        const uint8x16x4_t of = vld4q_u8((const uint8_t *)from + 4 * i);
        for (p = 0; p < 4; p++) {
            top = moek_top_neon_(top, of.val[p]);
            moek_e4m3_neon_(&f[0], &f[1], &f[2], &f[3], of.val[p]);
            for (j = 0; j < 4; j++) vst1q_f32(to + p * W + i + 4 * j, f[j]);
        }
    }
    for (i = 0; element != MOEK_ELEMENT_E4M3 && i < W; i += 8) {
        const uint16x8x4_t of = vld4q_u16((const uint16_t *)from + 4 * i);
        for (p = 0; p < 4; p++) {
            moek_eight_neon_(&f[0], &f[1], of.val[p], dtype);
            vst1q_f32(to + p * W + i, f[0]);
            vst1q_f32(to + p * W + i + 4, f[1]);
        }
    }
    if (moek_any_nan_neon_(top)) to[0] = moek_float_(0x7fc00000);
}
#define MOEK_V_(x) moek_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#define MOEK_V_X_HALVES moek_x_halves_neon_
#define MOEK_V_X_QUARTERS moek_x_quarters_neon_
#include "rows_body.h"
#endif
#endif
