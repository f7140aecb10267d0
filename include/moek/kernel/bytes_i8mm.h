/* moek/kernel/bytes_i8mm.h -- bytes.h with Arm's smmla, two rows by 8 columns times as many (moek/kernel/isa.h): half
 * as many products as sdot has.  Codes of 8 rows of w are put side by side by twos once for all rows of x, which come
 * in twos, too.  Sums are integers, so the bits are plain C's. */
#include "bytes_neon.h"
#ifndef MOEK_BYTES_I8MM_H
#define MOEK_BYTES_I8MM_H
#if MOEK_HAVE_I8MM_

/* 32 columns of rows h to h + 7 of a panel: [4 v + 2 j] rows h + 4 v and the next, 8 columns from 8 j on; behind it the
 * two rows after those. */
MOEK_I8MM_INLINE void moek_i8mm_codes_(int8x16_t to[16], const uint8_t *at, const int element, const uint8_t *zero,
                                       int h)
{
    int32x4_t codes[8];
#define MOEK_TWO_(v, j) \
    to[8 * (v) + 2 * (j)] = vreinterpretq_s8_s32(vzip1q_s32(codes[2 * (j)], codes[2 * (j) + 1])); \
    to[8 * (v) + 2 * (j) + 1] = vreinterpretq_s8_s32(vzip2q_s32(codes[2 * (j)], codes[2 * (j) + 1]));
    moek_tile_bytes_neon_(codes, at + 4 * h, element, zero, h);
    MOEK_TWO_(0, 0) MOEK_TWO_(0, 1) MOEK_TWO_(0, 2) MOEK_TWO_(0, 3)
    moek_tile_bytes_neon_(codes, at + 4 * (h + 4), element, zero, h + 4);
    MOEK_TWO_(1, 0) MOEK_TWO_(1, 1) MOEK_TWO_(1, 2) MOEK_TWO_(1, 3)
#undef MOEK_TWO_
}
/* Sums of two rows of x with 8 rows of w: [0], [1] the first one's, [2], [3] the second one's. */
MOEK_I8MM_INLINE void moek_i8mm_pair_(int32x4_t to[4], const int8x16_t w[16], const int8_t *x, const int8_t *x1,
                                      int32_t start, int32_t start1)
{
    const int32x4_t begin = vcombine_s32(vdup_n_s32(start), vdup_n_s32(start1));
    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x)), b = vreinterpretq_s64_s8(vld1q_s8(x + 16));
    const int64x2_t c = vreinterpretq_s64_s8(vld1q_s8(x1)), d = vreinterpretq_s64_s8(vld1q_s8(x1 + 16));
    const int8x16_t both[4] = { vreinterpretq_s8_s64(vzip1q_s64(a, c)), vreinterpretq_s8_s64(vzip2q_s64(a, c)),
                                vreinterpretq_s8_s64(vzip1q_s64(b, d)), vreinterpretq_s8_s64(vzip2q_s64(b, d)) };
    int32x4_t s0 = begin, s1 = begin, s2 = begin, s3 = begin;      /* of two rows of w each */
#define MOEK_STEP_(j) \
    s0 = vmmlaq_s32(s0, both[j], w[2 * (j)]); s1 = vmmlaq_s32(s1, both[j], w[2 * (j) + 1]); \
    s2 = vmmlaq_s32(s2, both[j], w[8 + 2 * (j)]); s3 = vmmlaq_s32(s3, both[j], w[8 + 2 * (j) + 1]);
    MOEK_STEP_(0) MOEK_STEP_(1) MOEK_STEP_(2) MOEK_STEP_(3)
#undef MOEK_STEP_
    to[0] = vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(s0), vreinterpretq_s64_s32(s1)));
    to[1] = vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(s2), vreinterpretq_s64_s32(s3)));
    to[2] = vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(s0), vreinterpretq_s64_s32(s1)));
    to[3] = vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(s2), vreinterpretq_s64_s32(s3)));
}
MOEK_I8MM_INLINE void moek_i8mm_panel_(float *sum, const moek_tile_w_ *w, const moek_bytes_x_ *x, int block0, int rows,
                                       const int element, const int zeros, const int exact)
{
    const int bytes = element == MOEK_ELEMENT_S8 ? 512 : 256;
    int b, i, r, h;
    for (b = 0; b < w->blocks; b++) {
        const size_t g = (size_t)((w->first + 32 * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        const uint8_t *const at = w->codes + (size_t)b * (size_t)bytes;
        const int first = (block0 + b) * rows;
        for (i = 0; i < bytes; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
        if (!exact) MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
        for (h = 0; h < MOEK_PANEL; h += 8) {
            const float32x4_t low = exact ? vdupq_n_f32(1) : moek_tile_scales_neon_(w, g, h);
            const float32x4_t high = exact ? low : moek_tile_scales_neon_(w, g, h + 4);
            float *to = sum + h;
            int8x16_t codes[16];
            moek_i8mm_codes_(codes, at, element, zeros ? w->zero + 8 * g : NULL, h);
            for (r = first; r < first + rows; r += 2, to += 2 * MOEK_STRIP) {
                const int next = r + 1 < first + rows ? r + 1 : r;     /* of an odd number the last is its own pair */
                const float32x4_t s = vdupq_n_f32(exact ? 1 : x->s[r]), s1 = vdupq_n_f32(exact ? 1 : x->s[next]);
                int32x4_t d[4];
                moek_i8mm_pair_(d, codes, x->code + 32 * r, x->code + 32 * next, x->start[r], x->start[next]);
                moek_tile_byte_sums_neon_(to, d[0], low, s, exact);
                moek_tile_byte_sums_neon_(to + 4, d[1], high, s, exact);
                if (next == r) continue;
                moek_tile_byte_sums_neon_(to + MOEK_STRIP, d[2], low, s1, exact);
                moek_tile_byte_sums_neon_(to + MOEK_STRIP + 4, d[3], high, s1, exact);
            }
        }
    }
}
#define MOEK_BYTES_(name, element, zeros, exact) \
    MOEK_I8MM_FN void moek_i8mm_##name##_(float *sum, const moek_tile_w_ *w, const moek_bytes_x_ *x, int b, int rows) \
    { \
        moek_i8mm_panel_(sum, w, x, b, rows, element, zeros, exact); \
    }
MOEK_BYTES_(u4b8, MOEK_ELEMENT_U4B8, 0, 0)
MOEK_BYTES_(u4b8_zero, MOEK_ELEMENT_U4B8, 1, 0)
MOEK_BYTES_(e2m1, MOEK_ELEMENT_E2M1, 0, 0)
MOEK_BYTES_(s8, MOEK_ELEMENT_S8, 0, 1)
#undef MOEK_BYTES_
/* (One row of x: half of each product would be lost.) */
MOEK_NEON_FN void moek_bytes_run_i8mm_(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b,
                                       int rows)
{
    int p;
    if (rows == 1) moek_tile_bytes_run_neon_(sum, w, panels, x, b, rows);
    else for (p = 0; p < panels; p++, w++, sum += MOEK_PANEL) {
        if (w->element == MOEK_ELEMENT_S8) moek_i8mm_s8_(sum, w, x, b, rows);
        else if (w->element == MOEK_ELEMENT_E2M1) moek_i8mm_e2m1_(sum, w, x, b, rows);
        else if (w->zero) moek_i8mm_u4b8_zero_(sum, w, x, b, rows);
        else moek_i8mm_u4b8_(sum, w, x, b, rows);
    }
}
static MOEK_UNUSED const moek_byte_set_ moek_byte_set_i8mm_ = {
    &moek_panel_set_neon_, moek_bytes_place_neon_, moek_bytes_run_i8mm_, 0, 0, 0, 0, 0, NULL, NULL
};
#endif
#endif
