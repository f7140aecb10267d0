/* moek/kernel/bytes_avx512.h -- bytes.h with AVX-512 and VNNI (moek/kernel/isa.h). */
#include "bytes_avx2.h"
#include "tile_avx512.h"
#ifndef MOEK_BYTES_AVX512_H
#define MOEK_BYTES_AVX512_H
#if MOEK_HAVE_X86_

MOEK_AVX512_INLINE void moek_tile_bytes_avx512_(__m512i to[8], const uint8_t *at, const int element,
                                                const uint8_t *zero, int h)
{
    __m512i less;
    moek_tile_codes_avx512_(to, at, element);
    if (!zero) return;
    less = _mm512_sub_epi32(_mm512_set1_epi32(MOEK_BYTES_ZERO), moek_tile_zeros_avx512_(zero, h));
    less = _mm512_mullo_epi32(less, _mm512_set1_epi32(0x01010101));
#define MOEK_LESS_(v) to[v] = _mm512_add_epi8(to[v], less);
    MOEK_LESS_(0) MOEK_LESS_(1) MOEK_LESS_(2) MOEK_LESS_(3) MOEK_LESS_(4) MOEK_LESS_(5) MOEK_LESS_(6) MOEK_LESS_(7)
#undef MOEK_LESS_
}
MOEK_AVX512_INLINE void moek_tile_byte_dots_avx512_(__m512i to[2], __m512i start, const __m512i codes[8],
                                                    const __m512i codes1[8], const int panels, const int8_t *x,
                                                    const int element, const int zeros)
{
    const __m512i none = _mm512_setzero_si512();
    __m512i a = start, b = none, c = start, d = none;
    (void)element; (void)zeros;
#define MOEK_STEP_(i) do { \
        const __m512i four = moek_four_avx512_(x + 4 * (i)), next = moek_four_avx512_(x + 4 * (i) + 4); \
        a = _mm512_dpbusd_epi32(a, codes[i], four); \
        if (panels > 1) c = _mm512_dpbusd_epi32(c, codes1[i], four); \
        b = _mm512_dpbusd_epi32(b, codes[(i) + 1], next); \
        if (panels > 1) d = _mm512_dpbusd_epi32(d, codes1[(i) + 1], next); \
    } while (0)
    MOEK_STEP_(0); MOEK_STEP_(2); MOEK_STEP_(4); MOEK_STEP_(6);
#undef MOEK_STEP_
    to[0] = _mm512_add_epi32(a, b);
    if (panels > 1) to[1] = _mm512_add_epi32(c, d);
}
MOEK_AVX512_INLINE void moek_tile_byte_half_avx512_(__m512i to[2], __m512i start, const __m512i codes[8],
                                                    const __m512i codes1[8], const int panels, const int8_t *x,
                                                    const int half, const int element)
{
    int i;
    (void)element;
    to[0] = to[1] = start;
    for (i = 4 * half; i < 4 * half + 4; i++) {
        const __m512i four = moek_four_avx512_(x + 4 * i);
        to[0] = _mm512_dpbusd_epi32(to[0], codes[i], four);
        if (panels > 1) to[1] = _mm512_dpbusd_epi32(to[1], codes1[i], four);
    }
}
#define MOEK_VF __m512
#define MOEK_VI __m512i
#define MOEK_V_LANES 16
#define MOEK_V_WORDS 0
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_avx512_
#define MOEK_V_FENCE (void)0
#define MOEK_V_(x) moek_tile_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "bytes_body.h"

static MOEK_UNUSED const moek_byte_set_ moek_byte_set_avx512_ = {
    &moek_panel_set_avx512_, moek_bytes_place_avx2_, moek_tile_bytes_run_avx512_, 12, 128, 0, 8, 0, NULL, NULL
};
#endif
#endif
