/* moek/kernel/blocks_neon.h -- blocks of GGUF files with NEON: pieces of what unpacks them
 * (generated/moek_blocks_neon.h), planes of bits of 32 codes in a row, a byte each, and scales of 8 groups as f32; and
 * the loops of few rows (blocks_body.h).  moek/format.h says what a plane is. */
#ifndef MOEK_BLOCKS_NEON_H
#define MOEK_BLOCKS_NEON_H
#include "digits.h"
#if MOEK_HAVE_NEON_

MOEK_NEON_INLINE void moek_put_neon_(int8_t *to, uint8x16x2_t codes)
{
    vst1q_s8(to, vreinterpretq_s8_u8(codes.val[0]));
    vst1q_s8(to + 16, vreinterpretq_s8_u8(codes.val[1]));
}
/* Bits of each byte, some bits lower (by < 0) or higher. */
MOEK_NEON_INLINE uint8x16_t moek_bits_neon_(uint8x16_t v, const int by, const int mask)
{
    return vandq_u8(by ? vshlq_u8(v, vdupq_n_s8((int8_t)by)) : v, vdupq_n_u8((uint8_t)mask));
}
/* A plane of which 32 bytes have a number each, from bit `shift` on; the numbers begin at bit `up`. */
MOEK_NEON_INLINE uint8x16x2_t moek_plane_neon_(const uint8_t *at, const int shift, const int bits, const int up)
{
    uint8x16x2_t v;
    v.val[0] = moek_bits_neon_(vld1q_u8(at), bits == 8 ? 0 : up - shift, ((1 << bits) - 1) << up);
    v.val[1] = moek_bits_neon_(vld1q_u8(at + 16), bits == 8 ? 0 : up - shift, ((1 << bits) - 1) << up);
    return v;
}
/* A plane of which 16 bytes have a number each, and one more `by` bits higher. */
MOEK_NEON_INLINE uint8x16x2_t moek_halves_neon_(const uint8_t *at, const int by, const int bits)
{
    uint8x16x2_t v;
    v.val[0] = moek_bits_neon_(vld1q_u8(at), 0, (1 << bits) - 1);
    v.val[1] = moek_bits_neon_(vld1q_u8(at), -by, (1 << bits) - 1);
    return v;
}
/* Two planes, one behind the other, of which 8 bytes have a number of 4 bits each, and one more above. */
MOEK_NEON_INLINE uint8x16x2_t moek_quarters_neon_(const uint8_t *at)
{
    const uint8x16_t v = vld1q_u8(at), low = vandq_u8(v, vdupq_n_u8(15)), high = vshrq_n_u8(v, 4);
    uint8x16x2_t both;
    both.val[0] = vcombine_u8(vget_low_u8(low), vget_low_u8(high));
    both.val[1] = vcombine_u8(vget_high_u8(low), vget_high_u8(high));
    return both;
}
/* A plane of single bits, 8 columns a byte, which begin at bit `up`. */
MOEK_NEON_INLINE uint8x16x2_t moek_singles_neon_(const uint8_t *at, const int up)
{
    static const uint8_t of[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 };
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)), first = vld1q_u8(of);
    uint32_t four;
    uint8x16_t all;
    uint8x16x2_t v;
    memcpy(&four, at, 4);
    all = vreinterpretq_u8_u32(vdupq_n_u32(four));
    v.val[0] = vandq_u8(vtstq_u8(vqtbl1q_u8(all, first), bit), vdupq_n_u8((uint8_t)(1 << up)));
    v.val[1] = vandq_u8(vtstq_u8(vqtbl1q_u8(all, vaddq_u8(first, vdupq_n_u8(2))), bit),
                        vdupq_n_u8((uint8_t)(1 << up)));
    return v;
}
MOEK_NEON_INLINE uint8x16x2_t moek_or_neon_(uint8x16x2_t a, uint8x16x2_t b)
{
    a.val[0] = vorrq_u8(a.val[0], b.val[0]);
    a.val[1] = vorrq_u8(a.val[1], b.val[1]);
    return a;
}
MOEK_NEON_INLINE uint8x16x2_t moek_less_neon_(uint8x16x2_t codes, uint8x16_t less)
{
    codes.val[0] = vsubq_u8(codes.val[0], less);
    codes.val[1] = vsubq_u8(codes.val[1], less);
    return codes;
}
MOEK_NEON_INLINE uint8x16x2_t moek_look_neon_(int8x16_t book, uint8x16x2_t codes)
{
    codes.val[0] = vreinterpretq_u8_s8(vqtbl1q_s8(book, codes.val[0]));
    codes.val[1] = vreinterpretq_u8_s8(vqtbl1q_s8(book, codes.val[1]));
    return codes;
}
#define MOEK_EIGHT_NEON_(a, b, c, d, e, f, g, h) \
    vcreate_u8((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 | \
               (uint64_t)(f) << 40 | (uint64_t)(g) << 48 | (uint64_t)(h) << 56)
/* 8 numbers of a plane: in which of 16 bytes each begins, and at which bit. */
MOEK_NEON_INLINE uint8x8_t moek_numbers_neon_(uint8x16_t bytes, uint8x8_t at, uint8x8_t shift, const int bits)
{
    const uint8x8_t v = vqtbl1_u8(bytes, at);
    return bits == 8 ? v : vand_u8(vshl_u8(v, vneg_s8(vreinterpret_s8_u8(shift))),
                                   vdup_n_u8((uint8_t)((1 << bits) - 1)));
}
/* ...  and the next bits of these numbers, from bit `up` on. */
MOEK_NEON_INLINE uint8x8_t moek_more_neon_(uint8x8_t n, uint8x8_t more, const int up)
{
    return vorr_u8(n, vshl_u8(more, vdup_n_s8((int8_t)up)));
}
/* An f16, everywhere. */
MOEK_NEON_INLINE float32x4_t moek_all_fp16_neon_(const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, 2);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}
/* 8 numbers with a sign times `top`, or the negative of that. */
MOEK_NEON_INLINE void moek_put_numbers_neon_(float *to, float32x4_t top, uint8x8_t n, const int minus)
{
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(n));
    const float32x4_t low = vmulq_f32(top, vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
    const float32x4_t high = vmulq_f32(top, vcvtq_f32_s32(vmovl_high_s16(wide)));
    vst1q_f32(to, minus ? vnegq_f32(low) : low);
    vst1q_f32(to + 4, minus ? vnegq_f32(high) : high);
}
/* 8 f16 that lie `step` bytes apart. */
MOEK_NEON_INLINE void moek_put_eight_neon_(float *to, const uint8_t *at, const int step, const int minus)
{
    uint16_t h[8];
    int i;
    for (i = 0; i < 8; i++) memcpy(&h[i], at + i * step, 2);
    for (i = 0; i < 8; i += 4) {
        const float32x4_t f = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + i)));
        vst1q_f32(to + i, minus ? vnegq_f32(f) : f);
    }
}
/* `per` scales of a byte of each of so many blocks, 8 or 16 in all, times `by`. */
MOEK_NEON_INLINE void moek_put_scales_neon_(float *to, const uint8_t *at, const int bytes, const int per,
                                            const int blocks, const int type, const float by)
{
    int i, j;
    for (i = 0; i < blocks; i++, at += bytes)
        for (j = 0; j < per; j++)
            *to++ = by * (type == MOEK_SCALE_TYPE_E8M0 ? moek_from_e8m0_(at[j]) : moek_from_e4m3_(at[j]));
}

/* ---- what blocks_body.h wants: 32 columns are two vectors of lanes ----------------------------------------------- */

MOEK_NEON_INLINE float32x4x2_t moek_block_zero_neon_(void)
{
    float32x4x2_t v;
    v.val[0] = v.val[1] = vdupq_n_f32(0);
    return v;
}
#define moek_block_none_neon_ moek_block_zero_neon_
typedef struct moek_by_neon_ { float of[16]; const float *unit; } moek_by_neon_;
typedef struct moek_factors_neon_ { float scale[16], min[16]; } moek_factors_neon_;
MOEK_NEON_INLINE void moek_block_by_neon_(moek_by_neon_ *by, float32x4x2_t *low, const moek_factors_neon_ *w,
                                          const float *x, const int kind)
{
    const int groups = kind & MOEK_BLOCK_FINE ? 16 : 8;
    int i;
    by->unit = x;
    for (i = 0; i < groups; i += 4) {
        const float32x4_t scale = vld1q_f32(w->scale + i);
        vst1q_f32(by->of + i, kind & MOEK_BLOCK_FAR ? scale : vmulq_f32(scale, vld1q_f32(x + i)));
        if (kind & MOEK_BLOCK_MIN)
            low->val[i / 4 % 2] = vfmaq_f32(low->val[i / 4 % 2], vld1q_f32(w->min + i), vld1q_f32(x + groups + i));
    }
}
MOEK_NEON_INLINE float32x4_t moek_block_four_neon_(float32x4_t lanes, int8x16_t codes, const moek_x_chunk_ *x, int at,
                                                   float by, float unit, const int kind)
{
    const int32x4_t none = vdupq_n_s32(0);
    int32x4_t d;
    float32x4_t f;
    if (kind & MOEK_BLOCK_BYTES)
        return vfmaq_n_f32(lanes, vcvtq_f32_s32(vdotq_s32(none, codes, vld1q_s8(x->digit[0] + at))), by);
    d = vdotq_s32(none, codes, vld1q_s8(x->digit[1] + at));
    d = vdotq_s32(vshlq_n_s32(d, 8), codes, vld1q_s8(x->digit[0] + at));
    if (kind & MOEK_BLOCK_WIDE)
        f = vfmaq_f32(vcvtq_f32_s32(vdotq_s32(none, codes, vld1q_s8(x->digit[2] + at))), vcvtq_f32_s32(d),
                      vdupq_n_f32(256));
    else f = vcvtq_f32_s32(vdotq_s32(vshlq_n_s32(d, 8), codes, vld1q_s8(x->digit[2] + at)));
    if (kind & MOEK_BLOCK_FAR) f = vmulq_n_f32(f, unit);
    return vfmaq_n_f32(lanes, f, by);
}
MOEK_NEON_INLINE float32x4x2_t moek_block_add_neon_(float32x4x2_t lanes, uint8x16x2_t codes, const moek_x_chunk_ *x,
                                                    const int h, const moek_by_neon_ *by, const int part,
                                                    const int kind)
{
    const int fine = kind & MOEK_BLOCK_FINE, g = fine ? 2 * part : part;
    lanes.val[0] = moek_block_four_neon_(lanes.val[0], vreinterpretq_s8_u8(codes.val[0]), x, 32 * h, by->of[g],
                                         by->unit[g], kind);
    lanes.val[1] = moek_block_four_neon_(lanes.val[1], vreinterpretq_s8_u8(codes.val[1]), x, 32 * h + 16,
                                         by->of[fine ? g + 1 : g], by->unit[g], kind);
    return lanes;
}
MOEK_NEON_INLINE float moek_block_end_neon_(float sum, const float32x4x2_t *lanes, float32x4x2_t low, float back,
                                            const int kind)
{
    const float32x4_t a = vaddq_f32(vaddq_f32(lanes[0].val[0], lanes[1].val[0]), low.val[0]);
    const float32x4_t four = vaddq_f32(a, vaddq_f32(vaddq_f32(lanes[0].val[1], lanes[1].val[1]), low.val[1]));
    const float32x4_t two = vaddq_f32(four, vextq_f32(four, four, 2)), one = vaddq_f32(two, vdupq_laneq_f32(two, 1));
    (void)kind;
    return vgetq_lane_f32(vfmaq_n_f32(vdupq_n_f32(sum), one, back), 0);
}
#define MOEK_VF float32x4x2_t
#define MOEK_VI uint8x16x2_t
#define MOEK_V_LANES 8
#define MOEK_V_FACTORS moek_factors_neon_
#define MOEK_V_BY moek_by_neon_
#define MOEK_V_LOW float32x4x2_t
#define MOEK_V_(x) moek_##x##_neon_
#define MOEK_V_FN MOEK_NEON_FN
#define MOEK_V_INLINE MOEK_NEON_INLINE
#include "blocks_body.h"
#undef moek_block_none_neon_
#endif
#endif
