/* moek/kernel/bytes_avx2.h -- bytes.h with AVX2, FMA and F16C (moek/kernel/isa.h). */
#include "bytes.h"
#include "tile_avx2.h"
#ifndef MOEK_BYTES_AVX2_H
#define MOEK_BYTES_AVX2_H
#if MOEK_HAVE_X86_

/* A block of x; returns what its columns add up to, times 16 bits of `by`. */
MOEK_AVX2_INLINE int32_t moek_bytes_block_avx2_(int8_t *to, const int8_t *x, __m256i by, const int order)
{
    const __m256i in = _mm256_loadu_si256((const __m256i *)x);
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), in), by);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    __m256i words[2];
    if (order == MOEK_BYTES_WORDS) {
        words[0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(in));
        words[1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(in, 1));
        moek_store_fours_avx2_(to, words);
    } else if (order == MOEK_BYTES_EVEN_ODD) {
        const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
                                               0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_shuffle_epi8(in, apart), 0xd8));
    } else {
        _mm256_storeu_si256((__m256i *)to, in);
    }
    sum = _mm_add_epi32(sum, _mm_unpackhi_epi64(sum, sum));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 1)));
}
MOEK_AVX2_FN void moek_bytes_place_avx2_(int8_t *to, size_t step, int32_t *start, int rows, const int8_t *x, int blocks,
                                         int offset, int order)
{
    const __m256i by = _mm256_set1_epi16((short)-offset);
    int b;
    for (b = 0; b < blocks; b++, to += step, start += rows, x += 32) {
        if (order == MOEK_BYTES_WORDS) *start = moek_bytes_block_avx2_(to, x, by, MOEK_BYTES_WORDS);
        else if (order == MOEK_BYTES_EVEN_ODD) *start = moek_bytes_block_avx2_(to, x, by, MOEK_BYTES_EVEN_ODD);
        else *start = moek_bytes_block_avx2_(to, x, by, MOEK_BYTES_COLUMNS);
    }
}

/* ---- what bytes_body.h wants ------------------------------------------------------------------------------------- */

/* Of s8 words of 16 columns; of small codes bytes, with a sign. */
MOEK_AVX2_INLINE void moek_tile_bytes_avx2_(__m256i to[8], const uint8_t *at, const int element, const uint8_t *zero,
                                            int h)
{
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
                                            0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m256i less = _mm256_setzero_si256();
    if (element == MOEK_ELEMENT_S8) {
#define MOEK_CODES_(v) \
        moek_codes_avx2_(to + 2 * (v), _mm256_loadu_si256((const __m256i *)(const void *)(at + 64 * (v))), element);
        MOEK_CODES_(0) MOEK_CODES_(1) MOEK_CODES_(2) MOEK_CODES_(3)
#undef MOEK_CODES_
        return;
    }
    if (MOEK_SMALL_(element)) { moek_tile_codes_avx2_(to, at, MOEK_ELEMENT_S8); return; }
    moek_tile_codes_avx2_(to, at, element);
    if (!zero) return;
    less = _mm256_sub_epi32(_mm256_set1_epi32(MOEK_BYTES_ZERO), moek_tile_zeros_avx2_(zero, h));
    less = _mm256_shuffle_epi8(less, spread);
#define MOEK_LESS_(v) to[v] = _mm256_add_epi8(to[v], less);
    MOEK_LESS_(0) MOEK_LESS_(1) MOEK_LESS_(2) MOEK_LESS_(3) MOEK_LESS_(4) MOEK_LESS_(5) MOEK_LESS_(6) MOEK_LESS_(7)
#undef MOEK_LESS_
}
MOEK_AVX2_INLINE void moek_tile_byte_plus_avx2_(__m256i codes[8], int less)
{
    const __m256i by = _mm256_set1_epi8((char)less);
#define MOEK_PLUS_(v) codes[v] = _mm256_add_epi8(codes[v], by);
    MOEK_PLUS_(0) MOEK_PLUS_(1) MOEK_PLUS_(2) MOEK_PLUS_(3) MOEK_PLUS_(4) MOEK_PLUS_(5) MOEK_PLUS_(6) MOEK_PLUS_(7)
#undef MOEK_PLUS_
}
/* Bytes: 16 bits hold a block's sum of codes of 4 bits, half a block's of 5 bits and of e2m1, a quarter's of 6. */
MOEK_AVX2_INLINE void moek_tile_byte_dots_avx2_(__m256i to[2], __m256i start, const __m256i codes[8],
                                                const __m256i codes1[8], const int panels, const int8_t *x,
                                                const int element, const int zeros)
{
    __m256i two[2];
    (void)codes1; (void)panels;                        /* (a panel is two vectors, so it is always one) */
    if (element == MOEK_ELEMENT_S8) {
#define MOEK_MADD_(v) _mm256_madd_epi16(codes[v], moek_four_avx2_(x + 4 * (v)))
        to[0] = _mm256_add_epi32(_mm256_add_epi32(_mm256_add_epi32(MOEK_MADD_(0), MOEK_MADD_(1)),
                                                  _mm256_add_epi32(MOEK_MADD_(2), MOEK_MADD_(3))),
                                 _mm256_add_epi32(_mm256_add_epi32(MOEK_MADD_(4), MOEK_MADD_(5)),
                                                  _mm256_add_epi32(MOEK_MADD_(6), MOEK_MADD_(7))));
#undef MOEK_MADD_
        return;
    }
    moek_tile_dots_avx2_(two, codes, x, 2, element);
    to[0] = _mm256_add_epi32(start, moek_tile_whole_avx2_(two, NULL, 2, zeros ? MOEK_ELEMENT_E2M1
                                                          : element == MOEK_ELEMENT_U4 ? MOEK_ELEMENT_U4B8 : element));
}
/* Of 16 columns of such bytes. */
MOEK_AVX2_INLINE __m256i moek_small_half_avx2_(const __m256i codes[4], const int8_t *x, const int element)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i a = moek_product_avx2_(codes[0], x, element), b = moek_product_avx2_(codes[2], x + 8, element);
    a = _mm256_add_epi16(a, moek_product_avx2_(codes[1], x + 4, element));
    b = _mm256_add_epi16(b, moek_product_avx2_(codes[3], x + 12, element));
    if (element != MOEK_ELEMENT_U6B32) return _mm256_madd_epi16(_mm256_add_epi16(a, b), one);
    return _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one));
}
MOEK_AVX2_INLINE void moek_tile_byte_half_avx2_(__m256i to[2], __m256i start, const __m256i codes[8],
                                                const __m256i codes1[8], const int panels, const int8_t *x,
                                                const int half, const int element)
{
    (void)codes1; (void)panels;
    to[0] = _mm256_add_epi32(start, moek_small_half_avx2_(codes + 4 * half, x + 16 * half, element));
}
#define MOEK_VF __m256
#define MOEK_VI __m256i
#define MOEK_V_LANES 8
#define MOEK_V_WORDS 1
#define MOEK_V_UNIT_FACTORS_(name) moek_unit_factors_##name##_avx2_
#define MOEK_V_FENCE __asm__ volatile("" ::: "memory")
#define MOEK_V_(x) moek_tile_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "bytes_body.h"

static MOEK_UNUSED const moek_byte_set_ moek_byte_set_avx2_ = {
    &moek_panel_set_avx2_, moek_bytes_place_avx2_, moek_tile_bytes_run_avx2_, 12, 0, 1, MOEK_BYTES_ROWS, 0, NULL, NULL
};
#endif
#endif
