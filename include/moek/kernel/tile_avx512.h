/* moek/kernel/tile_avx512.h -- tile.h with AVX-512 and VNNI (moek/kernel/isa.h). */
#include "tile_avx2.h"
#include "panel_avx512.h"
#ifndef MOEK_TILE_AVX512_H
#define MOEK_TILE_AVX512_H
#if MOEK_HAVE_X86_

MOEK_AVX512_INLINE __m512 moek_tile_load_avx512_(const float *from) { return _mm512_loadu_ps(from); }
MOEK_AVX512_INLINE void moek_tile_store_avx512_(float *to, __m512 f) { _mm512_storeu_ps(to, f); }
MOEK_AVX512_INLINE __m512 moek_tile_all_avx512_(float f) { return _mm512_set1_ps(f); }
MOEK_AVX512_INLINE __m512 moek_tile_fma_avx512_(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
MOEK_AVX512_INLINE __m512 moek_tile_mul_avx512_(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
MOEK_AVX512_INLINE __m512 moek_tile_to_f_avx512_(__m512i i) { return _mm512_cvtepi32_ps(i); }
MOEK_AVX512_INLINE __m512i moek_tile_i_load_avx512_(const int32_t *from) { return _mm512_loadu_si512(from); }
MOEK_AVX512_INLINE void moek_tile_i_store_avx512_(int32_t *to, __m512i i) { _mm512_storeu_si512(to, i); }
MOEK_AVX512_INLINE __m512i moek_tile_i_all_avx512_(int32_t i) { return _mm512_set1_epi32(i); }
MOEK_AVX512_INLINE __m512i moek_tile_i_sub_avx512_(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
MOEK_AVX512_INLINE __m512i moek_tile_i_add_avx512_(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
MOEK_AVX512_INLINE __m512i moek_tile_i_mul_avx512_(__m512i a, __m512i b) { return _mm512_mullo_epi32(a, b); }
MOEK_AVX512_INLINE __m512i moek_four_avx512_(const int8_t *digit)
{
    int32_t four;
    memcpy(&four, digit, sizeof four);
    return _mm512_set1_epi32(four);
}
/* As with AVX2; s8 plus 128, for these instructions take one side without a sign. */
MOEK_AVX512_INLINE void moek_tile_codes_avx512_(__m512i to[8], const uint8_t *at, const int element)
{
    const __m512i sign = _mm512_set1_epi8(-128);
#define MOEK_CODES_(v) do { \
        __m512i two[2]; \
        two[0] = _mm512_loadu_si512(at + 64 * (v)); \
        if (element == MOEK_ELEMENT_S8) { \
            two[0] = _mm512_xor_si512(two[0], sign); \
            two[1] = _mm512_xor_si512(_mm512_loadu_si512(at + 64 * (v) + 256), sign); \
        } \
        else moek_codes_avx512_(two, two[0], element); \
        to[v] = two[0]; \
        to[(v) + 4] = two[1]; \
    } while (0)
    MOEK_CODES_(0); MOEK_CODES_(1); MOEK_CODES_(2); MOEK_CODES_(3);
#undef MOEK_CODES_
}
MOEK_AVX512_INLINE __m512i moek_products_avx512_(const __m512i codes[4], const int8_t *digit)
{
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[0], moek_four_avx512_(digit));
    sum = _mm512_dpbusd_epi32(sum, codes[1], moek_four_avx512_(digit + 4));
    sum = _mm512_dpbusd_epi32(sum, codes[2], moek_four_avx512_(digit + 8));
    return _mm512_dpbusd_epi32(sum, codes[3], moek_four_avx512_(digit + 12));
}
/* to[0], to[1]: products of the two halves.  part: 0, 1: of a half alone; 2: of both. */
MOEK_AVX512_INLINE void moek_tile_dots_avx512_(__m512i to[2], const __m512i codes[8], const int8_t *digit,
                                               const int part, const int element)
{
    (void)element;
    if (part != 1) to[0] = moek_products_avx512_(codes, digit);
    if (part) to[1] = moek_products_avx512_(codes + 4, digit + 16);
}
MOEK_AVX512_INLINE __m512i moek_tile_whole_avx512_(const __m512i low[2], const __m512i *high, const int part,
                                                   const int element)
{
    const __m512i d = part < 2 ? low[part] : _mm512_add_epi32(low[0], low[1]);
    (void)element;
    if (!high) return d;
    return _mm512_add_epi32(d, _mm512_slli_epi32(part < 2 ? high[part] : _mm512_add_epi32(high[0], high[1]), 8));
}
MOEK_AVX512_INLINE __m512i moek_tile_one_avx512_(const uint8_t *at, int high, const int8_t *digit, const int element)
{
    const __m512i none = _mm512_setzero_si512(), codes = _mm512_loadu_si512(at);
    __m512i two[2];
    if (element == MOEK_ELEMENT_S8)
        return _mm512_dpbusd_epi32(none, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), moek_four_avx512_(digit));
    moek_codes_avx512_(two, codes, element);
    return _mm512_dpbusd_epi32(none, high ? two[1] : two[0], moek_four_avx512_(digit));
}
/* Scales of 16 rows of group g. */
MOEK_AVX512_INLINE __m512 moek_tile_scales_avx512_(const moek_tile_w_ *w, size_t g, int h)
{
    const char *const at = w->scale + g * MOEK_PANEL * (size_t)w->scale_bytes;
    (void)h;
    if (w->scale_type == MOEK_SCALE_TYPE_NONE) return _mm512_set1_ps(1);
    if (w->scale_type == MOEK_SCALE_TYPE_T) {
        const __m256i t = _mm256_loadu_si256((const __m256i *)(const void *)at);
        return w->dtype == MOEK_DTYPE_FP16 ? _mm512_cvtph_ps(t)
            : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(t), 16));
    }
    if (w->scale_type == MOEK_SCALE_TYPE_E8M0) {
        const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
        const __m512i f = _mm512_max_epi32(_mm512_slli_epi32(b, 23), _mm512_set1_epi32(0x00400000));
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(f, _mm512_cmpeq_epi32_mask(b, _mm512_set1_epi32(255)),
                                                         _mm512_set1_epi32(0x7fc00000)));
    }
    if (w->scale_type == MOEK_SCALE_TYPE_E4M3) {       /* as with AVX2 */
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)at), most = _mm_set1_epi8(127);
        const __m256i i = _mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7);
        const __m512 f = _mm512_cvtph_ps(_mm256_and_si256(i, _mm256_set1_epi16((short)0xbf80)));
        return _mm512_mask_mov_ps(_mm512_mul_ps(f, _mm512_set1_ps(256.0f)),
                                  _mm_cmpeq_epi8_mask(_mm_and_si128(b, most), most),
                                  _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
    }
    return _mm512_loadu_ps((const float *)(const void *)at);
}
MOEK_AVX512_INLINE __m512i moek_tile_zeros_avx512_(const uint8_t *from, int h)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
    const __m128i both = _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4));
    (void)h;
    return _mm512_cvtepu8_epi32(_mm_and_si128(both, _mm_set1_epi8(15)));
}
#define moek_tile_unit_codes_avx512_ moek_unit_codes_avx512_
#define MOEK_VF __m512
#define MOEK_VI __m512i
#define MOEK_V_LANES 16
#define MOEK_V_WORDS 0
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_avx512_
#define MOEK_V_FENCE (void)0
#define MOEK_V_(x) moek_tile_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "tile_body.h"

static MOEK_UNUSED const moek_tile_set_ moek_tile_set_avx512_ = {
    &moek_panel_set_avx512_, moek_tile_encode_avx2_, moek_tile_place_avx2_, moek_tile_less_avx2_,
    moek_tile_run_avx512_, 12, 128, 0
};
#endif
#endif
