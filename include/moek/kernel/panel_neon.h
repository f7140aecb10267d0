/* moek/kernel/panel_neon.h -- panel.h with NEON of Armv8.2 (moek/kernel/isa.h). */
#include "panel.h"
#include "neon.h"
#ifndef MOEK_PANEL_NEON_H
#define MOEK_PANEL_NEON_H
#if MOEK_HAVE_NEON_

MOEK_NEON_INLINE float32x4_t moek_panel_load_neon_(const float *from) { return vld1q_f32(from); }
MOEK_NEON_INLINE void moek_panel_store_neon_(float *to, float32x4_t f) { vst1q_f32(to, f); }
MOEK_NEON_INLINE uint32x4_t moek_panel_words_neon_(const uint32_t *from) { return vld1q_u32(from); }
MOEK_NEON_INLINE float32x4_t moek_panel_zero_neon_(void) { return vdupq_n_f32(0); }
MOEK_NEON_INLINE float32x4_t moek_panel_all_neon_(float f) { return vdupq_n_f32(f); }
MOEK_NEON_INLINE float32x4_t moek_panel_fma_neon_(float32x4_t a, float32x4_t b, float32x4_t c)
{
    return vfmaq_f32(c, a, b);
}
MOEK_NEON_INLINE float32x4_t moek_panel_mul_neon_(float32x4_t a, float32x4_t b) { return vmulq_f32(a, b); }
MOEK_NEON_INLINE float32x4_t moek_panel_sub_neon_(float32x4_t a, float32x4_t b) { return vsubq_f32(a, b); }
MOEK_NEON_INLINE float32x4_t moek_panel_whole_neon_(float32x4_t part, const float *sum)
{
    return vreinterpretq_f32_s32(vaddq_s32(vcvtq_s32_f32(part), vreinterpretq_s32_f32(vld1q_f32(sum))));
}
/* w << by, and zeros come in; by < 0: >> -by. */
MOEK_NEON_INLINE uint32x4_t moek_shifted_neon_(uint32x4_t w, const int by) { return vshlq_u32(w, vdupq_n_s32(by)); }
/* Codes of 4 bits, the low ones of each word, as twice the value of e2m1. */
MOEK_NEON_INLINE int32x4_t moek_twice_e2m1_neon_(uint32x4_t codes)
{
    const uint32x4_t m = vandq_u32(codes, vdupq_n_u32(7));
    static const uint8_t values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0 };
    /* (the three bytes above are 0 in both) */
    const uint8x16_t looked = vqtbl1q_u8(vld1q_u8(values), vreinterpretq_u8_u32(m));
    return vreinterpretq_s32_u8(looked);
}
/* moek_lift_; of u4b8 less 8, unless there are zero points. */
MOEK_NEON_INLINE float32x4_t moek_panel_lift_neon_(uint32x4_t w, const int shift, const int element, const int zeros)
{
    const uint32x4_t sign = vdupq_n_u32(0x80000000);
    if (element == MOEK_ELEMENT_U4B8) {
        const float32x4_t f = vcvtq_f32_u32(vandq_u32(moek_shifted_neon_(w, -shift), vdupq_n_u32(15)));
        return zeros ? f : vsubq_f32(f, vdupq_n_f32(8));
    }
    if (element == MOEK_ELEMENT_E2M1) {
        const int32x4_t twice = moek_twice_e2m1_neon_(moek_shifted_neon_(w, -shift));
        const uint32x4_t f = vreinterpretq_u32_f32(vmulq_f32(vcvtq_f32_s32(twice), vdupq_n_f32(0.5f)));
        return vreinterpretq_f32_u32(vorrq_u32(f, vandq_u32(moek_shifted_neon_(w, 28 - shift), sign)));
    }
    if (element == MOEK_ELEMENT_S8)
        return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(moek_shifted_neon_(w, 24 - shift)), 24));
    if (element == MOEK_ELEMENT_E4M3) {                /* f is right but for subnormals, where g is (element/e4m3.j2) */
        const uint32x4_t mask = vdupq_n_u32(0x07f00000), m = vandq_u32(moek_shifted_neon_(w, 20 - shift), mask);
        const uint32x4_t f = vorrq_u32(m, vdupq_n_u32(112u << 23));
        const float32x4_t g = vfmaq_f32(vdupq_n_f32(-6.103515625e-05f), vreinterpretq_f32_u32(f), vdupq_n_f32(2));
        const uint32x4_t v = vminq_u32(f, vreinterpretq_u32_f32(g));
        const uint32x4_t s = vandq_u32(moek_shifted_neon_(w, 24 - shift), sign);
        return vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(v, s), vceqq_u32(m, mask)));
    }
    if (element == MOEK_ELEMENT_BF16)
        return vreinterpretq_f32_u32(shift ? vandq_u32(w, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(w, 16));
    return vcvt_f32_f16(vreinterpret_f16_u16(shift ? vshrn_n_u32(w, 16) : vmovn_u32(w)));
}
/* 4 words of 4 rows, side by side. */
MOEK_NEON_INLINE void moek_turn_four_neon_(uint32_t *to, const uint8_t *const *rows, int at)
{
    const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(rows[0] + at)), b = vreinterpretq_u32_u8(vld1q_u8(rows[1] + at));
    const uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(rows[2] + at)), d = vreinterpretq_u32_u8(vld1q_u8(rows[3] + at));
    const uint64x2_t even[2] = { vreinterpretq_u64_u32(vtrn1q_u32(a, b)), vreinterpretq_u64_u32(vtrn1q_u32(c, d)) };
    const uint64x2_t odd[2] = { vreinterpretq_u64_u32(vtrn2q_u32(a, b)), vreinterpretq_u64_u32(vtrn2q_u32(c, d)) };
    vst1q_u32(to, vreinterpretq_u32_u64(vtrn1q_u64(even[0], even[1])));
    vst1q_u32(to + MOEK_PANEL, vreinterpretq_u32_u64(vtrn1q_u64(odd[0], odd[1])));
    vst1q_u32(to + 2 * MOEK_PANEL, vreinterpretq_u32_u64(vtrn2q_u64(even[0], even[1])));
    vst1q_u32(to + 3 * MOEK_PANEL, vreinterpretq_u32_u64(vtrn2q_u64(odd[0], odd[1])));
}
MOEK_NEON_FN void moek_turn_neon_(uint32_t *to, const uint8_t *const *rows, int words)
{
    int v, r;
    for (v = 0; v + 4 <= words; v += 4)
        for (r = 0; r < MOEK_PANEL; r += 4) moek_turn_four_neon_(to + v * MOEK_PANEL + r, rows + r, 4 * v);
    for (; v < words; v++)
        for (r = 0; r < MOEK_PANEL; r++) to[v * MOEK_PANEL + r] = moek_word_(rows[r], v);
}
MOEK_NEON_FN void moek_scaled_neon_(float *to, const float *sum, const float *by, const float *bias, float unit,
                                    float x_scale)
{
    int i;
    for (i = 0; i < MOEK_STRIP; i += 4)
        vst1q_f32(to + i, vfmaq_f32(vld1q_f32(bias + i), vmulq_f32(vld1q_f32(sum + i), vdupq_n_f32(unit)),
                                    vmulq_f32(vdupq_n_f32(x_scale), vld1q_f32(by + i))));
}
#define MOEK_VF float32x4_t
#define MOEK_VI uint32x4_t
#define MOEK_V_LANES 4
#define MOEK_V_ROWS 12
#define MOEK_V_(x) moek_panel_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "panel_body.h"

/* (SiLU, rounding to T and scales of rows of x: plain C.) */
static MOEK_UNUSED const moek_panel_set_ moek_panel_set_neon_ = {
    &moek_set_neon_, moek_panel_decode_neon_, moek_panel_outer_neon_, moek_turn_neon_, moek_scales_plain_,
    moek_scaled_neon_, moek_silu_plain_, moek_to_t_plain_
};
#endif
#endif
