/* moek/kernel/tile_neon.h -- tile.h with Arm's sdot (moek/kernel/isa.h).  A vector is 4 rows of w. */
#include "tile.h"
#include "panel_neon.h"
#ifndef MOEK_TILE_NEON_H
#define MOEK_TILE_NEON_H
#if MOEK_HAVE_NEON_

MOEK_NEON_INLINE float32x4_t moek_tile_load_neon_(const float *from) { return vld1q_f32(from); }
MOEK_NEON_INLINE void moek_tile_store_neon_(float *to, float32x4_t f) { vst1q_f32(to, f); }
MOEK_NEON_INLINE float32x4_t moek_tile_all_neon_(float f) { return vdupq_n_f32(f); }
MOEK_NEON_INLINE float32x4_t moek_tile_fma_neon_(float32x4_t a, float32x4_t b, float32x4_t c)
{
    return vfmaq_f32(c, a, b);
}
MOEK_NEON_INLINE float32x4_t moek_tile_mul_neon_(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
MOEK_NEON_INLINE float32x4_t moek_tile_to_f_neon_(int32x4_t i) { return vcvtq_f32_s32(i); }
MOEK_NEON_INLINE int32x4_t moek_tile_i_load_neon_(const int32_t *from) { return vld1q_s32(from); }
MOEK_NEON_INLINE void moek_tile_i_store_neon_(int32_t *to, int32x4_t i) { vst1q_s32(to, i); }
MOEK_NEON_INLINE int32x4_t moek_tile_i_all_neon_(int32_t i) { return vdupq_n_s32(i); }
MOEK_NEON_INLINE int32x4_t moek_tile_i_sub_neon_(int32x4_t a, int32x4_t b) { return vsubq_s32(a, b); }
MOEK_NEON_INLINE int32x4_t moek_tile_i_add_neon_(int32x4_t a, int32x4_t b) { return vaddq_s32(a, b); }
MOEK_NEON_INLINE int32x4_t moek_tile_i_mul_neon_(int32x4_t a, int32x4_t b) { return vmulq_s32(a, b); }
/* 8 vectors of codes: of 4 bits the low halves of 4, then the high ones; s8 as they come. */
MOEK_NEON_INLINE void moek_tile_codes_neon_(int32x4_t to[8], const uint8_t *at, const int element)
{
#define MOEK_CODES_(v) do { \
        int8x16_t two[2]; \
        moek_codes_neon_(two, at + 64 * (v), element); \
        if (element == MOEK_ELEMENT_S8) two[1] = vreinterpretq_s8_u8(vld1q_u8(at + 64 * (v) + 256)); \
        to[v] = vreinterpretq_s32_s8(two[0]); \
        to[(v) + 4] = vreinterpretq_s32_s8(two[1]); \
    } while (0)
    MOEK_CODES_(0); MOEK_CODES_(1); MOEK_CODES_(2); MOEK_CODES_(3);
#undef MOEK_CODES_
}
/* sum += products of 4 vectors of codes with 16 digits, four to each. */
MOEK_NEON_INLINE int32x4_t moek_products_neon_(int32x4_t sum, const int32x4_t codes[4], const int8_t *digit)
{
    const int8x16_t d = vld1q_s8(digit);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes[0]), d, 0);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes[1]), d, 1);
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes[2]), d, 2);
    return vdotq_laneq_s32(sum, vreinterpretq_s8_s32(codes[3]), d, 3);
}
/* to[0], to[1]: products of the two halves.  part: 0, 1: of a half alone; 2: of both. */
MOEK_NEON_INLINE void moek_tile_dots_neon_(int32x4_t to[2], const int32x4_t codes[8], const int8_t *digit,
                                           const int part, const int element)
{
    (void)element;
    if (part != 1) to[0] = moek_products_neon_(vdupq_n_s32(0), codes, digit);
    if (part) to[1] = moek_products_neon_(vdupq_n_s32(0), codes + 4, digit + 16);
}
MOEK_NEON_INLINE int32x4_t moek_tile_whole_neon_(const int32x4_t low[2], const int32x4_t *high, const int part,
                                                 const int element)
{
    const int32x4_t d = part < 2 ? low[part] : vaddq_s32(low[0], low[1]);
    (void)element;
    return !high ? d : vaddq_s32(d, vshlq_n_s32(part < 2 ? high[part] : vaddq_s32(high[0], high[1]), 8));
}
MOEK_NEON_INLINE int32x4_t moek_tile_one_neon_(const uint8_t *at, int high, const int8_t *digit, const int element)
{
    int8x16_t two[2];
    int32_t four;
    memcpy(&four, digit, sizeof four);
    moek_codes_neon_(two, at, element);
    return vdotq_s32(vdupq_n_s32(0), high && element != MOEK_ELEMENT_S8 ? two[1] : two[0],
                     vreinterpretq_s8_s32(vdupq_n_s32(four)));
}
/* Scales of 4 rows, from row h on, of group g. */
MOEK_NEON_INLINE float32x4_t moek_tile_scales_neon_(const moek_tile_w_ *w, size_t g, int h)
{
    const char *const at = w->scale + (g * MOEK_PANEL + (size_t)h) * (size_t)w->scale_bytes;
    float four[4];
    int i;
    if (w->scale_type == MOEK_SCALE_TYPE_NONE) return vdupq_n_f32(1);
    if (w->scale_type == MOEK_SCALE_TYPE_T && w->dtype != MOEK_DTYPE_FP16)
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)(const void *)at), 16));
    if (w->scale_type == MOEK_SCALE_TYPE_T)
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)at)));
    for (i = 0; i < 4; i++) four[i] = moek_digits_scale_(at, (size_t)i, w->scale_type, w->dtype);
    return vld1q_f32(four);
}
/* Byte b has the zero points of rows b and b + 8. */
MOEK_NEON_INLINE int32x4_t moek_tile_zeros_neon_(const uint8_t *from, int h)
{
    int32_t four[4];
    int i;
    for (i = 0; i < 4; i++) four[i] = from[(h + i) % 8] >> (h + i) / 8 * 4 & 15;
    return vld1q_s32(four);
}
#define moek_tile_unit_codes_neon_ moek_unit_codes_neon_
#define MOEK_VF float32x4_t
#define MOEK_VI int32x4_t
#define MOEK_V_LANES 4
#define MOEK_V_WORDS 0
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_neon_
#define MOEK_V_FENCE (void)0
#define MOEK_V_(x) moek_tile_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "tile_body.h"

static MOEK_UNUSED const moek_tile_set_ moek_tile_set_neon_ = {
    &moek_panel_set_neon_, moek_tile_encode_plain_, moek_tile_place_plain_, moek_tile_less_of_, moek_tile_run_neon_,
    0, 0, 0
};
#endif
#endif
