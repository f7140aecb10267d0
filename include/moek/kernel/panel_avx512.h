/* moek/kernel/panel_avx512.h -- panel.h with AVX-512 (moek/kernel/isa.h). */
#include "panel_avx2.h"
#include "avx512.h"
#ifndef MOEK_PANEL_AVX512_H
#define MOEK_PANEL_AVX512_H
#if MOEK_HAVE_X86_

MOEK_AVX512_INLINE __m512 moek_panel_load_avx512_(const float *from) { return _mm512_loadu_ps(from); }
MOEK_AVX512_INLINE void moek_panel_store_avx512_(float *to, __m512 f) { _mm512_storeu_ps(to, f); }
MOEK_AVX512_INLINE __m512i moek_panel_words_avx512_(const uint32_t *from) { return _mm512_loadu_si512(from); }
MOEK_AVX512_INLINE __m512 moek_panel_zero_avx512_(void) { return _mm512_setzero_ps(); }
MOEK_AVX512_INLINE __m512 moek_panel_all_avx512_(float f) { return _mm512_set1_ps(f); }
MOEK_AVX512_INLINE __m512 moek_panel_fma_avx512_(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
MOEK_AVX512_INLINE __m512 moek_panel_mul_avx512_(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
MOEK_AVX512_INLINE __m512 moek_panel_sub_avx512_(__m512 a, __m512 b) { return _mm512_sub_ps(a, b); }
MOEK_AVX512_INLINE __m512 moek_panel_whole_avx512_(__m512 part, const float *sum)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_cvtps_epi32(part), _mm512_loadu_si512(sum)));
}
/* moek_lift_; of u4b8 less 8, unless there are zero points.  (A permutation looks at 4 bits.) */
MOEK_AVX512_INLINE __m512 moek_panel_lift_avx512_(__m512i w, const int shift, const int element, const int zeros)
{
    const __m512i sign = _mm512_set1_epi32((int)0x80000000);
    if (element == MOEK_ELEMENT_U4B8) {
        const __m512 values = zeros ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                                    : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return _mm512_permutexvar_ps(_mm512_srli_epi32(w, shift), values);
    }
    if (element == MOEK_ELEMENT_E2M1) {
        const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        return _mm512_permutexvar_ps(_mm512_srli_epi32(w, shift), values);
    }
    if (element == MOEK_ELEMENT_S8)
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 24 - shift), 24));
    if (element == MOEK_ELEMENT_E4M3) {                /* as with AVX2 */
        const __m512i mask = _mm512_set1_epi32(0x07f00000);
        const __m512i at = shift > 20 ? _mm512_srli_epi32(w, shift > 20 ? shift - 20 : 0)
                                      : _mm512_slli_epi32(w, shift > 20 ? 0 : 20 - shift);
        const __m512i m = _mm512_and_si512(at, mask), f = _mm512_or_si512(m, _mm512_set1_epi32(112 << 23));
        const __m512 g = _mm512_fmadd_ps(_mm512_castsi512_ps(f), _mm512_set1_ps(2), _mm512_set1_ps(-6.103515625e-05f));
        const __m512i s = _mm512_and_si512(_mm512_slli_epi32(w, 24 - shift), sign);
        const __m512i v = _mm512_or_si512(_mm512_min_epu32(f, _mm512_castps_si512(g)), s);
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(m, mask), _mm512_set1_epi32(-1)));
    }
    if (element == MOEK_ELEMENT_BF16)
        return _mm512_castsi512_ps(shift ? _mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000))
                                         : _mm512_slli_epi32(w, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(shift ? _mm512_srli_epi32(w, 16) : w));
}
#define MOEK_VF __m512
#define MOEK_VI __m512i
#define MOEK_V_LANES 16
#define MOEK_V_ROWS 12
#define MOEK_V_(x) moek_panel_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "panel_body.h"

static MOEK_UNUSED const moek_panel_set_ moek_panel_set_avx512_ = {
    &moek_set_avx512_, moek_panel_decode_avx512_, moek_panel_outer_avx512_, moek_turn_avx2_, moek_run_scales_avx2_,
    moek_scaled_avx2_, moek_silu_avx2_, moek_to_t_avx2_
};
#endif
#endif
