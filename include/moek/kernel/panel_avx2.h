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
#define MOEK_VF __m256
#define MOEK_VI __m256i
#define MOEK_V_LANES 8
#define MOEK_V_ROWS 6
#define MOEK_V_(x) moek_panel_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "panel_body.h"
#undef MOEK_VF
#undef MOEK_VI
#undef MOEK_V_LANES
#undef MOEK_V_ROWS
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE

static MOEK_UNUSED const moek_panel_set_ moek_panel_set_avx2_ = {
    &moek_set_avx2_, moek_panel_decode_avx2_, moek_panel_outer_avx2_, moek_turn_avx2_, moek_run_scales_avx2_
};
#endif
#endif
