/* moek/kernel/panel_avx2.h -- panel.h with AVX2, FMA and F16C (moek/kernel/isa.h). */
#include "panel.h"
#include "avx2.h"
#ifndef MOEK_PANEL_AVX2_H
#define MOEK_PANEL_AVX2_H
#if MOEK_HAVE_X86_

MOEK_AVX2_INLINE __m256 moek_panel_load_avx2_(const float *from) { return _mm256_loadu_ps(from); }
MOEK_AVX2_INLINE void moek_panel_store_avx2_(float *to, __m256 f) { _mm256_storeu_ps(to, f); }
MOEK_AVX2_INLINE __m256i moek_panel_words_avx2_(const uint32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
MOEK_AVX2_INLINE __m256 moek_panel_zero_avx2_(void) { return _mm256_setzero_ps(); }
MOEK_AVX2_INLINE __m256 moek_panel_all_avx2_(float f) { return _mm256_set1_ps(f); }
MOEK_AVX2_INLINE __m256 moek_panel_fma_avx2_(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
MOEK_AVX2_INLINE __m256 moek_panel_mul_avx2_(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
MOEK_AVX2_INLINE __m256 moek_panel_sub_avx2_(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
MOEK_AVX2_INLINE __m256 moek_panel_whole_avx2_(__m256 part, const float *sum)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_cvtps_epi32(part), _mm256_loadu_si256((const __m256i *)sum)));
}
/* moek_lift_; of u4b8 less 8, unless there are zero points. */
MOEK_AVX2_INLINE __m256 moek_panel_lift_avx2_(__m256i w, const int shift, const int element, const int zeros)
{
    const __m256i sign = _mm256_set1_epi32((int)0x80000000);
    if (element == MOEK_ELEMENT_U4B8) {
        const __m256 f = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w, shift), _mm256_set1_epi32(15)));
        return zeros ? f : _mm256_sub_ps(f, _mm256_set1_ps(8));
    }
    if (element == MOEK_ELEMENT_E2M1) {
        const __m256 values = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
        const __m256 f = _mm256_permutevar8x32_ps(values, _mm256_srli_epi32(w, shift));
        return _mm256_xor_ps(f, _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(w, 28 - shift), sign)));
    }
    if (element == MOEK_ELEMENT_S8)
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 24 - shift), 24));
    if (element == MOEK_ELEMENT_E4M3) {                /* f is right but for subnormals, where g is (element/e4m3.j2) */
        const __m256i mask = _mm256_set1_epi32(0x07f00000);
        const __m256i at = shift > 20 ? _mm256_srli_epi32(w, shift - 20) : _mm256_slli_epi32(w, 20 - shift);
        const __m256i m = _mm256_and_si256(at, mask), f = _mm256_or_si256(m, _mm256_set1_epi32(112 << 23));
        const __m256 g = _mm256_fmadd_ps(_mm256_castsi256_ps(f), _mm256_set1_ps(2), _mm256_set1_ps(-6.103515625e-05f));
        const __m256i nan = _mm256_cmpeq_epi32(m, mask);
        const __m256i s = _mm256_and_si256(_mm256_slli_epi32(w, 24 - shift), sign);
        const __m256i v = _mm256_min_epu32(f, _mm256_castps_si256(g));
        return _mm256_castsi256_ps(_mm256_or_si256(_mm256_or_si256(v, s), nan));
    }
    if (element == MOEK_ELEMENT_BF16)
        return _mm256_castsi256_ps(shift ? _mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000))
                                         : _mm256_slli_epi32(w, 16));
    w = shift ? _mm256_srli_epi32(w, 16) : _mm256_and_si256(w, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
/* 8 words of 8 rows, side by side. */
MOEK_AVX2_INLINE void moek_turn_eight_avx2_(uint32_t *to, const uint8_t *const *rows, int at)
{
    __m256 a[8], b[8];
    int i;
    for (i = 0; i < 8; i++) a[i] = _mm256_loadu_ps((const float *)(const void *)(rows[i] + at));
    for (i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(void *)(to + i * MOEK_PANEL), _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps((float *)(void *)(to + (i + 4) * MOEK_PANEL), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
MOEK_AVX2_FN void moek_turn_avx2_(uint32_t *to, const uint8_t *const *rows, int words)
{
    int v, r;
    for (v = 0; v + 8 <= words; v += 8) {
        moek_turn_eight_avx2_(to + v * MOEK_PANEL, rows, 4 * v);
        moek_turn_eight_avx2_(to + v * MOEK_PANEL + 8, rows + 8, 4 * v);
    }
    for (; v < words; v++)
        for (r = 0; r < MOEK_PANEL; r++) to[v * MOEK_PANEL + r] = moek_word_(rows[r], v);
}
MOEK_AVX2_FN void moek_scaled_avx2_(float *to, const float *sum, const float *by, const float *bias, float unit,
                                    float x_scale)
{
    int i;
    for (i = 0; i < MOEK_STRIP; i += 8)
        _mm256_storeu_ps(to + i, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_loadu_ps(sum + i), _mm256_set1_ps(unit)),
                                                 _mm256_mul_ps(_mm256_set1_ps(x_scale), _mm256_loadu_ps(by + i)),
                                                 _mm256_loadu_ps(bias + i)));
}
/* moek_exp_plain_.  (Of a NaN, min and max give the second.) */
MOEK_AVX2_INLINE __m256 moek_exp_avx2_(__m256 x)
{
    const __m256 shift = _mm256_set1_ps(12582912.0f);
    const __m256 of = _mm256_min_ps(_mm256_set1_ps(100), _mm256_max_ps(_mm256_set1_ps(-87), x));
    const __m256 shifted = _mm256_fmadd_ps(of, _mm256_set1_ps(1.44269504f), shift), n = _mm256_sub_ps(shifted, shift);
    const __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f),
                                     _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), of));
    const __m256i i = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(i, 1), one = _mm256_set1_epi32(127);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), one),
                                                                  23)));
}
MOEK_AVX2_FN void moek_silu_avx2_(float *g, const float *u)
{
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
    int i;
    for (i = 0; i < MOEK_PANEL; i += 8) {
        const __m256 x = _mm256_loadu_ps(g + i), t = moek_exp_avx2_(_mm256_xor_ps(x, sign));
        const __m256 sigma = _mm256_div_ps(one, _mm256_add_ps(one, t));
        _mm256_storeu_ps(g + i, _mm256_mul_ps(_mm256_mul_ps(x, sigma), _mm256_loadu_ps(u + i)));
    }
}
/* moek_to_bf16_, moek_to_fp16_ */
MOEK_AVX2_FN void moek_to_t_avx2_(uint16_t *to, const float *from, int dtype)
{
    const __m256i one = _mm256_set1_epi32(1), infinite = _mm256_set1_epi32(0x7f800000);
    __m256i bits[2];
    int i;
    for (i = 0; i < 2; i++) {
        const __m256i u = _mm256_loadu_si256((const __m256i *)(from + 8 * i)), high = _mm256_srli_epi32(u, 16);
        const __m256i round = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, one));
        const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff)), infinite);
        bits[i] = _mm256_blendv_epi8(_mm256_srli_epi32(_mm256_add_epi32(u, round), 16),
                                     _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
        if (dtype != MOEK_DTYPE_FP16) continue;
        bits[i] = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(_mm256_castsi256_ps(u), 0));
        bits[i] = _mm256_blendv_epi8(bits[i], _mm256_and_si256(bits[i], _mm256_set1_epi32(0xfe00)), nan);
    }
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packus_epi32(bits[0], bits[1]), 0xd8));
}
#define MOEK_VF __m256
#define MOEK_VI __m256i
#define MOEK_V_LANES 8
#define MOEK_V_ROWS 6
#define MOEK_V_(x) moek_panel_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "panel_body.h"

static MOEK_UNUSED const moek_panel_set_ moek_panel_set_avx2_ = {
    &moek_set_avx2_, moek_panel_decode_avx2_, moek_panel_outer_avx2_, moek_turn_avx2_, moek_run_scales_avx2_,
    moek_scaled_avx2_, moek_silu_avx2_, moek_to_t_avx2_
};
#endif
#endif
