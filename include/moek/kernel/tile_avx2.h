/* moek/kernel/tile_avx2.h -- tile.h with AVX2, FMA and F16C (moek/kernel/isa.h). */
#include "tile.h"
#include "panel_avx2.h"
#ifndef MOEK_TILE_AVX2_H
#define MOEK_TILE_AVX2_H
#if MOEK_HAVE_X86_

/* moek_tile_less_ of both halves, each 16 words. */
MOEK_AVX2_INLINE void moek_less_avx2_(int32_t *less, const __m256i words[2], int offset)
{
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i first = _mm256_madd_epi16(words[0], one), second = _mm256_madd_epi16(words[1], one);
    const __m256i pairs = _mm256_add_epi32(_mm256_unpacklo_epi32(first, second), _mm256_unpackhi_epi32(first, second));
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    both = _mm_mullo_epi32(_mm_add_epi32(both, _mm_unpackhi_epi64(both, both)), _mm_set1_epi32(offset));
    _mm_storel_epi64((__m128i *)less, both);
    less[2] = _mm_cvtsi128_si32(_mm_add_epi32(both, _mm_shuffle_epi32(both, 1)));
}
MOEK_AVX2_FN void moek_tile_less_avx2_(int32_t *less, const int8_t *digit, int offset)
{
    __m256i words[2];
    words[0] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)digit));
    words[1] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(digit + 16)));
    moek_less_avx2_(less, words, offset);
}
/* Of four words the first and the third, then the others. */
MOEK_AVX2_INLINE void moek_store_fours_avx2_(int8_t *to, const __m256i words[2])
{
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm256_storeu_si256((__m256i *)to, _mm256_shuffle_epi8(words[0], order));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_shuffle_epi8(words[1], order));
}
MOEK_AVX2_FN uint32_t moek_tile_encode_avx2_(moek_tile_x_ *to, int b, const float *x, int offset, int words,
                                             uint32_t *top)
{
    __m256i q[4], t[4], whole[2], thirds[2], two[2], bytes;
    const uint32_t power = moek_split_avx2_(q, t, x, top);
    int i;
    to->s[b] = moek_float_(power << 23);
    moek_narrow_avx2_(whole, q);
    moek_narrow_avx2_(thirds, t);
    bytes = moek_bytes_avx2_(thirds);
    if (words) {
        moek_store_fours_avx2_(to->digit[0] + 64 * b, whole);
        moek_store_fours_avx2_(to->digit[2] + 64 * b, thirds);
        for (i = 0; i < 3; i++) to->less[0][3 * b + i] = 0;            /* (there is no offset) */
    } else {
        moek_two_digits_avx2_(two, whole);
        _mm256_storeu_si256((__m256i *)(to->digit[0] + 32 * b), two[0]);
        _mm256_storeu_si256((__m256i *)(to->digit[1] + 32 * b), two[1]);
        _mm256_storeu_si256((__m256i *)(to->digit[2] + 32 * b), bytes);
        moek_less_avx2_(to->less[0] + 3 * b, whole, offset);
    }
    return 0xffu & ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes,
                                                                                      _mm256_setzero_si256())));
}
MOEK_AVX2_FN void moek_tile_place_avx2_(moek_tile_x_ *to, int b, const int8_t *x, int offset, int words)
{
    __m256i whole[2];
    int i;
    for (i = 0; i < 2; i++) whole[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * i)));
    if (words) moek_store_fours_avx2_(to->digit[0] + 64 * b, whole);
    else memcpy(to->digit[0] + 32 * b, x, 32);
    moek_less_avx2_(to->less[0] + 3 * b, whole, offset);
}

/* ---- what tile_body.h wants -------------------------------------------------------------------------------------- */

MOEK_AVX2_INLINE __m256 moek_tile_load_avx2_(const float *from) { return _mm256_loadu_ps(from); }
MOEK_AVX2_INLINE void moek_tile_store_avx2_(float *to, __m256 f) { _mm256_storeu_ps(to, f); }
MOEK_AVX2_INLINE __m256 moek_tile_all_avx2_(float f) { return _mm256_set1_ps(f); }
MOEK_AVX2_INLINE __m256 moek_tile_fma_avx2_(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
MOEK_AVX2_INLINE __m256 moek_tile_mul_avx2_(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
MOEK_AVX2_INLINE __m256 moek_tile_to_f_avx2_(__m256i i) { return _mm256_cvtepi32_ps(i); }
MOEK_AVX2_INLINE __m256i moek_tile_i_load_avx2_(const int32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
MOEK_AVX2_INLINE void moek_tile_i_store_avx2_(int32_t *to, __m256i i) { _mm256_storeu_si256((__m256i *)to, i); }
MOEK_AVX2_INLINE __m256i moek_tile_i_all_avx2_(int32_t i) { return _mm256_set1_epi32(i); }
MOEK_AVX2_INLINE __m256i moek_tile_i_sub_avx2_(__m256i a, __m256i b) { return _mm256_sub_epi32(a, b); }
MOEK_AVX2_INLINE __m256i moek_tile_i_add_avx2_(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
MOEK_AVX2_INLINE __m256i moek_tile_i_mul_avx2_(__m256i a, __m256i b) { return _mm256_mullo_epi32(a, b); }
/* Four digits, or two words, for all lanes. */
MOEK_AVX2_INLINE __m256i moek_four_avx2_(const int8_t *digit)
{
    int32_t four;
    memcpy(&four, digit, sizeof four);
    return _mm256_set1_epi32(four);
}
/* 8 vectors of codes: of 4 bits the low halves of 4, then the high ones; s8 as they come.  (No loops here, or below: a
 * compiler that leaves one alone keeps vectors in memory.) */
MOEK_AVX2_INLINE void moek_tile_codes_avx2_(__m256i to[8], const uint8_t *at, const int element)
{
#define MOEK_CODES_(v) do { \
        const __m256i *const from = (const __m256i *)(const void *)(at + 64 * (v)); \
        __m256i two[2]; \
        two[0] = _mm256_loadu_si256(from); \
        if (element == MOEK_ELEMENT_S8) two[1] = _mm256_loadu_si256(from + 8); \
        else moek_codes_avx2_(two, two[0], element); \
        to[v] = two[0]; \
        to[(v) + 4] = two[1]; \
    } while (0)
    MOEK_CODES_(0); MOEK_CODES_(1); MOEK_CODES_(2); MOEK_CODES_(3);
#undef MOEK_CODES_
}
/* Products of 4 vectors of codes with a digit.  Of 4 bits 16 sums of s16, two of which hold a block of u4b8, and one
 * half a block of e2m1; of s8, whose digits are words, 8 of s32. */
MOEK_AVX2_INLINE __m256i moek_product_avx2_(__m256i codes, const int8_t *digit, const int element)
{
    __m256i two[2];
    if (element != MOEK_ELEMENT_S8) return _mm256_maddubs_epi16(codes, moek_four_avx2_(digit));
    moek_codes_avx2_(two, codes, element);
    return _mm256_add_epi32(_mm256_madd_epi16(two[0], moek_four_avx2_(digit)),
                            _mm256_madd_epi16(two[1], moek_four_avx2_(digit + 4)));
}
MOEK_AVX2_INLINE __m256i moek_plus_avx2_(__m256i a, __m256i b, const int element)
{
    return element == MOEK_ELEMENT_S8 ? _mm256_add_epi32(a, b) : _mm256_add_epi16(a, b);
}
MOEK_AVX2_INLINE __m256i moek_products_avx2_(const __m256i codes[4], const int8_t *digit, const int element)
{
    const int each = element == MOEK_ELEMENT_S8 ? 8 : 4;
    const __m256i a = moek_product_avx2_(codes[0], digit, element);
    const __m256i b = moek_product_avx2_(codes[1], digit + each, element);
    const __m256i c = moek_product_avx2_(codes[2], digit + 2 * each, element);
    const __m256i d = moek_product_avx2_(codes[3], digit + 3 * each, element);
    if (element == MOEK_ELEMENT_U6B32) {               /* four sums of 16 bits would be too large */
        const __m256i one = _mm256_set1_epi16(1);
        return _mm256_add_epi32(_mm256_madd_epi16(_mm256_add_epi16(a, b), one),
                                _mm256_madd_epi16(_mm256_add_epi16(c, d), one));
    }
    return moek_plus_avx2_(moek_plus_avx2_(a, b, element), moek_plus_avx2_(c, d, element), element);
}
/* to[0], to[1]: products of the two halves.  part: 0, 1: of a half alone; 2: of both. */
MOEK_AVX2_INLINE void moek_tile_dots_avx2_(__m256i to[2], const __m256i codes[8], const int8_t *digit, const int part,
                                           const int element)
{
    if (part != 1) to[0] = moek_products_avx2_(codes, digit, element);
    if (part) to[1] = moek_products_avx2_(codes + 4, digit + (element == MOEK_ELEMENT_S8 ? 32 : 16), element);
}
MOEK_AVX2_INLINE __m256i moek_tile_whole_avx2_(const __m256i low[2], const __m256i *high, const int part,
                                               const int element)
{
    const __m256i one = _mm256_set1_epi16(1), much = _mm256_set1_epi16(256);
    __m256i d;
    if (element == MOEK_ELEMENT_S8) return part < 2 ? low[part] : _mm256_add_epi32(low[0], low[1]);
    if (element == MOEK_ELEMENT_U6B32) {
        d = part < 2 ? low[part] : _mm256_add_epi32(low[0], low[1]);
        return !high ? d : _mm256_add_epi32(d, _mm256_slli_epi32(part < 2 ? high[part]
                                                                       : _mm256_add_epi32(high[0], high[1]), 8));
    }
    if (part < 2) {
        d = _mm256_madd_epi16(low[part], one);
        return high ? _mm256_add_epi32(d, _mm256_madd_epi16(high[part], much)) : d;
    }
    if (element == MOEK_ELEMENT_U4B8) {
        d = _mm256_madd_epi16(_mm256_add_epi16(low[0], low[1]), one);
        return high ? _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_add_epi16(high[0], high[1]), much)) : d;
    }
    d = _mm256_add_epi32(_mm256_madd_epi16(low[0], one), _mm256_madd_epi16(low[1], one));
    if (!high) return d;
    return _mm256_add_epi32(d, _mm256_add_epi32(_mm256_madd_epi16(high[0], much), _mm256_madd_epi16(high[1], much)));
}
MOEK_AVX2_INLINE __m256i moek_tile_one_avx2_(const uint8_t *at, int high, const int8_t *digit, const int element)
{
    const __m256i from = _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m256i two[2];
    if (element == MOEK_ELEMENT_S8) return moek_product_avx2_(from, digit, element);
    moek_codes_avx2_(two, from, element);
    return _mm256_madd_epi16(moek_product_avx2_(high ? two[1] : two[0], digit, element), _mm256_set1_epi16(1));
}
/* Scales of 8 rows, from row h on, of group g. */
MOEK_AVX2_INLINE __m256 moek_tile_scales_avx2_(const moek_tile_w_ *w, size_t g, int h)
{
    const char *const at = w->scale + (g * MOEK_PANEL + (size_t)h) * (size_t)w->scale_bytes;
    if (w->scale_type == MOEK_SCALE_TYPE_NONE) return _mm256_set1_ps(1);
    if (w->scale_type == MOEK_SCALE_TYPE_T) return moek_eight_t_avx2_((const uint16_t *)(const void *)at, w->dtype);
    if (w->scale_type == MOEK_SCALE_TYPE_E8M0) return moek_eight_e8m0_avx2_(at);
    if (w->scale_type == MOEK_SCALE_TYPE_E4M3) return moek_eight_e4m3_avx2_(at);
    return _mm256_loadu_ps((const float *)(const void *)at);
}
MOEK_AVX2_INLINE __m256i moek_tile_zeros_avx2_(const uint8_t *from, int h)
{
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
    return h ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(15));
}
#define moek_tile_unit_codes_avx2_ moek_unit_codes_avx2_
#define MOEK_VF __m256
#define MOEK_VI __m256i
#define MOEK_V_LANES 8
#define MOEK_V_WORDS 1
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_avx2_
#define MOEK_V_FENCE __asm__ volatile("" ::: "memory")
#define MOEK_V_(x) moek_tile_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "tile_body.h"

static MOEK_UNUSED const moek_tile_set_ moek_tile_set_avx2_ = {
    &moek_panel_set_avx2_, moek_tile_encode_avx2_, moek_tile_place_avx2_, moek_tile_less_avx2_,
    moek_tile_run_avx2_, 12, 0, 1
};
#endif
#endif
