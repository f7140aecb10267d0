/* moek/kernel/bytes_neon.h -- bytes.h with Arm's sdot (moek/kernel/isa.h). */
#include "bytes.h"
#include "tile_neon.h"
#ifndef MOEK_BYTES_NEON_H
#define MOEK_BYTES_NEON_H
#if MOEK_HAVE_NEON_

/* moek_bytes_place_plain_ */
MOEK_NEON_FN void moek_bytes_place_neon_(int8_t *to, size_t step, int32_t *start, int rows, const int8_t *x, int blocks,
                                         int offset, int order)
{
    int b;
    for (b = 0; b < blocks; b++, to += step, start += rows, x += 32) {
        const int8x16_t first = vld1q_s8(x), last = vld1q_s8(x + 16);
        *start = -offset * (vaddlvq_s8(first) + vaddlvq_s8(last));
        vst1q_s8(to, order == MOEK_BYTES_EVEN_ODD ? vuzp1q_s8(first, last) : first);
        vst1q_s8(to + 16, order == MOEK_BYTES_EVEN_ODD ? vuzp2q_s8(first, last) : last);
    }
}
MOEK_NEON_INLINE void moek_tile_bytes_neon_(int32x4_t to[8], const uint8_t *at, const int element, const uint8_t *zero,
                                            int h)
{
    int32x4_t less;
    int8x16_t bytes;
    moek_tile_codes_neon_(to, at, element);
    if (!zero) return;
    less = vsubq_s32(vdupq_n_s32(MOEK_BYTES_ZERO), moek_tile_zeros_neon_(zero, h));
    bytes = vreinterpretq_s8_s32(vmulq_s32(less, vdupq_n_s32(0x01010101)));
#define MOEK_LESS_(v) to[v] = vreinterpretq_s32_s8(vaddq_s8(vreinterpretq_s8_s32(to[v]), bytes));
    MOEK_LESS_(0) MOEK_LESS_(1) MOEK_LESS_(2) MOEK_LESS_(3) MOEK_LESS_(4) MOEK_LESS_(5) MOEK_LESS_(6) MOEK_LESS_(7)
#undef MOEK_LESS_
}
MOEK_NEON_INLINE void moek_tile_byte_dots_neon_(int32x4_t to[2], int32x4_t start, const int32x4_t codes[8],
                                                const int32x4_t codes1[8], const int panels, const int8_t *x,
                                                const int element, const int zeros)
{
    (void)codes1; (void)panels; (void)element; (void)zeros;            /* (a panel is four vectors) */
    to[0] = vaddq_s32(moek_products_neon_(start, codes, x), moek_products_neon_(vdupq_n_s32(0), codes + 4, x + 16));
}
MOEK_NEON_INLINE void moek_tile_byte_half_neon_(int32x4_t to[2], int32x4_t start, const int32x4_t codes[8],
                                                const int32x4_t codes1[8], const int panels, const int8_t *x,
                                                const int half, const int element)
{
    (void)codes1; (void)panels; (void)element;
    to[0] = moek_products_neon_(start, codes + 4 * half, x + 16 * half);
}
#define MOEK_VF float32x4_t
#define MOEK_VI int32x4_t
#define MOEK_V_LANES 4
#define MOEK_V_WORDS 0
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_neon_
#define MOEK_V_FENCE (void)0
#define MOEK_V_(x) moek_tile_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "bytes_body.h"

static MOEK_UNUSED const moek_byte_set_ moek_byte_set_neon_ = {
    &moek_panel_set_neon_, moek_bytes_place_neon_, moek_tile_bytes_run_neon_, 0, 0, 0, 8, 0, NULL, NULL
};
#endif
#endif
