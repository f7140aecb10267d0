/* moek/kernel/neon.h -- helpers of the rows of arch neon: Arm's sdot (moek/kernel/isa.h).  The bits are plain C's
 * in digits.h. */
#include "digits.h"
#include "../../../generated/moek_blocks_neon.h"
#ifndef MOEK_NEON_H
#define MOEK_NEON_H
#if MOEK_HAVE_NEON_

/* 16 bytes of codes: [0] even columns, or all of s8, [1] odd ones. */
MOEK_NEON_INLINE void moek_codes_neon_(int8x16_t to[2], const uint8_t *from, int element)
{
    static const int8_t values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
    const uint8x16_t codes = vld1q_u8(from), even = vandq_u8(codes, vdupq_n_u8(15)), odd = vshrq_n_u8(codes, 4);
    if (element == MOEK_ELEMENT_S8) {
        to[0] = to[1] = vreinterpretq_s8_u8(codes);
    } else if (element == MOEK_ELEMENT_E2M1) {
        to[0] = vqtbl1q_s8(vld1q_s8(values), even);
        to[1] = vqtbl1q_s8(vld1q_s8(values), odd);
    } else {
        to[0] = vreinterpretq_s8_u8(even);
        to[1] = vreinterpretq_s8_u8(odd);
    }
}
/* Codes times a digit; odd: where its odd columns are. */
MOEK_NEON_INLINE int32x4_t moek_sums_of_neon_(const int8x16_t codes[2], const int8_t *digit, const int8_t *odd,
                                              int element)
{
    const int32x4_t sum = vdotq_s32(vdupq_n_s32(0), codes[0], vld1q_s8(digit));
    return element == MOEK_ELEMENT_S8 ? sum : vdotq_s32(sum, codes[1], vld1q_s8(odd));
}
MOEK_NEON_INLINE void moek_run_scales_neon_(float *to, const moek_w_run_ *w, const char *from, int n)
{
    int i;
    for (i = 0; i < n; i++) to[i] = moek_digits_scale_(from, (size_t)i, w->scale_type, w->dtype);
    for (i = n; i < n + 8; i++) to[i] = 0;
}
/* Four lanes of the list from entry i on. */
MOEK_NEON_INLINE float32x4_t moek_list_neon_(float32x4_t sum, const uint8_t *from, const float *scale,
                                             const int32_t *zeros, const moek_x_list_ *list, int i, int element)
{
    uint8_t bytes[16];
    float of[4];
    int32_t zero[4];
    int8x16_t codes[2];
    int32x4_t d;
    int j;
    for (j = 0; j < 4; j++) {
        memcpy(bytes + 4 * j, from + 4 * list->at[i + j], 4);
        of[j] = scale[list->group[i + j]];
        zero[j] = zeros ? zeros[list->group[i + j]] : 1;
    }
    moek_codes_neon_(codes, bytes, element);
    d = moek_sums_of_neon_(codes, list->digit[0] + 4 * i, list->digit[1] + 4 * i, element);
    d = vmlsq_s32(d, vld1q_s32(list->less + i), vld1q_s32(zero));
    return vfmaq_f32(sum, vmulq_f32(vcvtq_f32_s32(d), vld1q_f32(list->s + i)),
                     vmulq_f32(vld1q_f32(of), vld1q_f32(list->by + i)));
}
/* A run of a row of w and of `rows` rows of x, 1, 2 or 4. */
MOEK_NEON_INLINE void moek_dot_row_neon_(double *sum, const moek_w_run_ *w, const moek_w_one_ *one, const float *scale,
                                         const int32_t *zero_of, const moek_lane_scales_ *to,
                                         const moek_x_run_ *const *x, const int rows, const int element,
                                         const int kind)
{
    const int step = moek_chunk_scales_(w, element);
    float32x4_t lanes[4][4];
    int c, r, v, l, i;
    for (r = 0; r < rows; r++) for (v = 0; v < 4; v++) lanes[r][v] = vdupq_n_f32(0);
    for (c = 0; c < one->chunks; c++) {
        MOEK_PREFETCH((uintptr_t)one->codes + (size_t)c * MOEK_CHUNK + MOEK_AHEAD);
        for (v = 0; v < 4; v++) {
            int8x16_t codes[2];
            float of[4];
            int32_t zero[4];
            moek_codes_neon_(codes, one->codes + MOEK_CHUNK * c + 16 * v, element);
            for (l = 0; l < 4; l++) {
                of[l] = scale[step * c + to->at[4 * v + l]];
                zero[l] = kind & MOEK_DOTS_ZERO ? zero_of[step * c + to->at[4 * v + l]] : 1;
            }
            for (r = 0; r < rows; r++) {
                const moek_x_chunk_ *const in = &x[r]->chunk[c];
                const int8_t *const low = in->digit[0] + 16 * v, *const high = in->digit[1] + 16 * v;
                const int8_t *const third = in->digit[2] + 16 * v;
                int32x4_t d = moek_sums_of_neon_(codes, low, low + MOEK_CHUNK, element);
                float32x4_t f, by = vld1q_f32(of);
                d = vaddq_s32(d, vshlq_n_s32(moek_sums_of_neon_(codes, high, high + MOEK_CHUNK, element), 8));
                f = vcvtq_f32_s32(vmlsq_s32(d, vld1q_s32(in->less[0] + 4 * v), vld1q_s32(zero)));
                if (kind & MOEK_DOTS_DENSE) {
                    d = moek_sums_of_neon_(codes, third, third + MOEK_CHUNK, element);
                    d = vmlsq_s32(d, vld1q_s32(in->less[1] + 4 * v), vld1q_s32(zero));
                    f = vfmaq_f32(f, vcvtq_f32_s32(d), vdupq_n_f32(0.00390625f));
                }
                if (kind & MOEK_DOTS_SCALED) by = vmulq_f32(by, vld1q_f32(in->by + 4 * v));
                lanes[r][v] = vfmaq_f32(lanes[r][v], vmulq_f32(f, vld1q_f32(in->s + 4 * v)), by);
            }
        }
    }
    for (r = 0; r < rows; r++) {
        float32x4_t third[2] = { vdupq_n_f32(0), vdupq_n_f32(0) }, four;
        for (i = 0; i < x[r]->thirds && !(kind & MOEK_DOTS_DENSE); i += 4)
            third[i / 4 % 2] = moek_list_neon_(third[i / 4 % 2], one->codes, scale,
                                               kind & MOEK_DOTS_ZERO ? zero_of : NULL, &x[r]->list[i / 8], i % 8,
                                               element);
        four = vaddq_f32(vaddq_f32(vaddq_f32(lanes[r][0], lanes[r][2]), third[0]),
                         vaddq_f32(vaddq_f32(lanes[r][1], lanes[r][3]), third[1]));
        sum[r] = (float)sum[r] + ((vgetq_lane_f32(four, 0) + vgetq_lane_f32(four, 2)) +
                                  (vgetq_lane_f32(four, 1) + vgetq_lane_f32(four, 3)));
    }
}
#define MOEK_V_(x) moek_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "digits_body.h"

MOEK_NEON_FN void moek_sums_neon_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    int i, run, r, c, v;
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++)
            for (r = 0; r < rows; r++) {
                const moek_w_one_ one = moek_w_one_of_(w, i, run);
                int32x4_t sum = vdupq_n_s32(0);
                for (c = 0; c < one.chunks; c++) {
                    const uint8_t *const at = one.codes + MOEK_CHUNK * c;
                    MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD);
                    for (v = 0; v < MOEK_CHUNK; v += 16)
                        sum = vdotq_s32(sum, vreinterpretq_s8_u8(vld1q_u8(at + v)),
                                        vld1q_s8(x[run * rows + r]->chunk[c].digit[0] + v));
                }
                w->sum[(size_t)i * w->sum_step][r] += vaddvq_s32(sum);
            }
}
static MOEK_UNUSED const moek_set_ moek_set_neon_ = {
    moek_encode_plain_, moek_decode_t_, moek_place_plain_, moek_dots_neon_, moek_sums_neon_, 0
};
#endif
#endif
