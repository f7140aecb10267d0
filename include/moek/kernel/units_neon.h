/* moek/kernel/units_neon.h -- blocks of GGUF files in panels with NEON: pieces of generated/moek_units.h, the
 * same as in units_x86.h.  Codes are s8 throughout. */
#ifndef MOEK_UNITS_NEON_H
#define MOEK_UNITS_NEON_H
#include "units.h"
#include "neon.h"
#if MOEK_HAVE_NEON_

MOEK_NEON_INLINE uint8x16_t moek_unit_number_neon_(const uint8_t *at, const int shift, const int bits, const int up)
{
    const uint8x16_t v = vld1q_u8(at);
    if (bits == 8) return v;
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)(up - shift))), vdupq_n_u8((uint8_t)(((1 << bits) - 1) << up)));
}
MOEK_NEON_INLINE uint8x16_t moek_unit_or_neon_(uint8x16_t a, uint8x16_t b) { return vorrq_u8(a, b); }
MOEK_NEON_INLINE uint8x16_t moek_unit_less_neon_(uint8x16_t n, const int less)
{
    return vsubq_u8(n, vdupq_n_u8((uint8_t)less));
}
typedef struct moek_sixteen_neon_ { float32x4_t of[4]; } moek_sixteen_neon_;
MOEK_NEON_INLINE moek_sixteen_neon_ moek_unit_tops_neon_(const uint8_t *at)
{
    const uint8x16_t a = vld1q_u8(at), b = vld1q_u8(at + 16);
    moek_sixteen_neon_ f;
    f.of[0] = vcvt_f32_f16(vreinterpret_f16_u8(vget_low_u8(a)));
    f.of[1] = vcvt_f32_f16(vreinterpret_f16_u8(vget_high_u8(a)));
    f.of[2] = vcvt_f32_f16(vreinterpret_f16_u8(vget_low_u8(b)));
    f.of[3] = vcvt_f32_f16(vreinterpret_f16_u8(vget_high_u8(b)));
    return f;
}
MOEK_NEON_INLINE moek_sixteen_neon_ moek_unit_times_neon_(moek_sixteen_neon_ top, uint8x16_t n)
{
    const int16x8_t a = vmovl_s8(vreinterpret_s8_u8(vget_low_u8(n)));
    const int16x8_t b = vmovl_s8(vreinterpret_s8_u8(vget_high_u8(n)));
    top.of[0] = vmulq_f32(top.of[0], vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))));
    top.of[1] = vmulq_f32(top.of[1], vcvtq_f32_s32(vmovl_s16(vget_high_s16(a))));
    top.of[2] = vmulq_f32(top.of[2], vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))));
    top.of[3] = vmulq_f32(top.of[3], vcvtq_f32_s32(vmovl_s16(vget_high_s16(b))));
    return top;
}
MOEK_NEON_INLINE void moek_unit_put_neon_(float *to, moek_sixteen_neon_ f, const int minus)
{
    vst1q_f32(to, minus ? vnegq_f32(f.of[0]) : f.of[0]);
    vst1q_f32(to + 4, minus ? vnegq_f32(f.of[1]) : f.of[1]);
    vst1q_f32(to + 8, minus ? vnegq_f32(f.of[2]) : f.of[2]);
    vst1q_f32(to + 12, minus ? vnegq_f32(f.of[3]) : f.of[3]);
}

/* Four single bits of each of 4 words, from bit `first` on, to bit `up` of a byte each. */
MOEK_NEON_INLINE uint8x16_t moek_unit_singles_neon_(const uint8_t *at, const int first, const int up)
{
    static const uint8_t of[16] = { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 };
    static const uint8_t bits[16] = { 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8 };
    const uint8x16_t in = vqtbl1q_u8(vld1q_u8(at), vaddq_u8(vld1q_u8(of), vdupq_n_u8((uint8_t)(first / 8))));
    const uint8x16_t bit = vshlq_u8(vld1q_u8(bits), vdupq_n_s8((int8_t)(first % 8)));
    return vandq_u8(vtstq_u8(in, bit), vdupq_n_u8((uint8_t)(1 << up)));
}
/* Part p of 4 rows, from `from` on. */
MOEK_NEON_INLINE void moek_unit_codes_neon_(int32x4_t to[8], const uint8_t *from, const moek_unit_layout_ *l, int p,
                                            const int raw)
{
    const uint8_t *const at = from + l->at[p], *const more = from + l->more_at[p];
    const int8x16_t shift = vdupq_n_s8((int8_t)-l->shift[p]), then = vdupq_n_s8((int8_t)(l->bits - l->more_shift[p]));
    const uint8x16_t low = vdupq_n_u8((uint8_t)((1 << l->bits) - 1));
    const uint8x16_t high = vdupq_n_u8((uint8_t)(((1 << l->more) - 1) << (l->bits & 7)));
    const uint8x16_t book = vreinterpretq_u8_s8(vld1q_s8(l->book));
#define MOEK_WORD_(v) do { \
        uint8x16_t c = vld1q_u8(at + 64 * (l->by ? (v) % 4 : (v))); \
        if (l->by && (v) > 3) c = vshlq_u8(c, vdupq_n_s8((int8_t)-l->by)); \
        if (!l->by && l->bits < 8) c = vshlq_u8(c, shift); \
        if (l->bits < 8) c = vandq_u8(c, low); \
        if (l->single) c = vorrq_u8(c, moek_unit_singles_neon_(more, 4 * (v), l->bits)); \
        else if (l->more) c = vorrq_u8(c, vandq_u8(vshlq_u8(vld1q_u8(more + 64 * (v)), then), high)); \
        if (l->look) c = vqtbl1q_u8(book, c); \
        if (l->less) c = moek_unit_less_neon_(c, l->less); \
        to[v] = vreinterpretq_s32_u8(c); \
    } while (0)
    MOEK_WORD_(0); MOEK_WORD_(1); MOEK_WORD_(2); MOEK_WORD_(3);
    MOEK_WORD_(4); MOEK_WORD_(5); MOEK_WORD_(6); MOEK_WORD_(7);
#undef MOEK_WORD_
    (void)raw;
}
MOEK_NEON_INLINE void moek_unit_words_neon_(uint32_t *words, const uint8_t *from, const moek_unit_layout_ *l, int p,
                                            int raw)
{
    int32x4_t codes[8];
    int v, h;
    for (h = 0; h < 16; h += 4) {
        moek_unit_codes_neon_(codes, from + 4 * h, l, p, raw);
        for (v = 0; v < 8; v++) vst1q_u32(words + 16 * v + h, vreinterpretq_u32_s32(codes[v]));
    }
}

#define MOEK_V_SIXTEEN moek_sixteen_neon_
#define MOEK_V_BYTES uint8x16_t
#define MOEK_V_(x) moek_unit_##x##_neon_
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "units_body.h"
#endif
#endif
