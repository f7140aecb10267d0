/* moek/kernel/avx2.h -- helpers of the rows of arch avx2: AVX2, FMA and F16C (moek/kernel/isa.h).  The bits are those
 * of plain C: the same sums in the same order. */
#include "digits.h"
#include "../../../generated/moek_blocks_avx2.h"
#ifndef MOEK_AVX2_H
#define MOEK_AVX2_H
#if MOEK_HAVE_X86_

/* ---- products of integers (digits.h) ----------------------------------------------------------------------------- */

/* T to f32. */
MOEK_AVX2_INLINE __m256 moek_eight_t_avx2_(const uint16_t *from, int dtype)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)from);
    return dtype == MOEK_DTYPE_FP16 ? _mm256_cvtph_ps(t)
                                    : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(t), 16));
}
MOEK_AVX2_FN void moek_decode_avx2_(float *to, const uint16_t *from, int n, int dtype)
{
    int i;
    for (i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, moek_eight_t_avx2_(from + i, dtype));
    moek_decode_t_(to + i, from + i, n - i, dtype);
}
/* 32 numbers of 32 bits in order -> of 16 bits: first and second 16. */
MOEK_AVX2_INLINE void moek_narrow_avx2_(__m256i to[2], const __m256i from[4])
{
    to[0] = _mm256_permute4x64_epi64(_mm256_packs_epi32(from[0], from[1]), 0xd8);
    to[1] = _mm256_permute4x64_epi64(_mm256_packs_epi32(from[2], from[3]), 0xd8);
}
/* 32 pairs of bytes in order: to[0] and to[1] get the 16 even and the 16 odd first bytes, to[2] and to[3] the second
 * ones. */
MOEK_AVX2_INLINE void moek_apart_avx2_(__m128i to[4], __m256i a, __m256i b)
{
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15,
                                           0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
    const __m256i c = _mm256_shuffle_epi8(a, order), d = _mm256_shuffle_epi8(b, order);
    const __m256i e = _mm256_permute2x128_si256(c, d, 0x20), f = _mm256_permute2x128_si256(c, d, 0x31);
    const __m256i first = _mm256_permute4x64_epi64(_mm256_unpacklo_epi32(e, f), 0xd8);
    const __m256i second = _mm256_permute4x64_epi64(_mm256_unpackhi_epi32(e, f), 0xd8);
    to[0] = _mm256_castsi256_si128(first); to[1] = _mm256_extracti128_si256(first, 1);
    to[2] = _mm256_castsi256_si128(second); to[3] = _mm256_extracti128_si256(second, 1);
}
/* Sums of 8 neighbours each of 32 words. */
MOEK_AVX2_INLINE __m128i moek_eights_avx2_(const __m256i words[2])
{
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i pairs = _mm256_hadd_epi32(_mm256_madd_epi16(words[0], one), _mm256_madd_epi16(words[1], one));
    const __m256i fours = _mm256_hadd_epi32(pairs, pairs);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
}
/* 32 numbers of 32 bits in order -> the 16 even ones as words, and the odd ones. */
MOEK_AVX2_INLINE __m256i moek_words_avx2_(const __m256i q[4], int odd)
{
    __m256i two[2];
    int i;
    for (i = 0; i < 2; i++) {
        const __m256 a = _mm256_castsi256_ps(q[2 * i]), b = _mm256_castsi256_ps(q[2 * i + 1]);
        two[i] = _mm256_permute4x64_epi64(_mm256_castps_si256(odd ? _mm256_shuffle_ps(a, b, 0xdd)
                                                                  : _mm256_shuffle_ps(a, b, 0x88)), 0xd8);
    }
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(two[0], two[1]), 0xd8);
}
MOEK_AVX2_INLINE uint32_t moek_top_avx2_(const float *x)               /* of 32 */
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    __m128i four;
    int i;
    for (i = 0; i < 32; i += 8)
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude));
    four = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    four = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}
/* 32 of x as q and t, which moek_q_ makes; the biased exponent of s. */
MOEK_AVX2_INLINE uint32_t moek_split_avx2_(__m256i q[4], __m256i t[4], const float *x, uint32_t *top)
{
    const uint32_t most = moek_top_avx2_(x), power = moek_power_(most);
    const __m256 inverse = _mm256_set1_ps(moek_float_((254 - power) << 23));
    int i;
    *top = most > *top ? most : *top;
    for (i = 0; i < 4; i++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse);
        q[i] = _mm256_cvtps_epi32(v);
        t[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(v, _mm256_cvtepi32_ps(q[i])), _mm256_set1_ps(256.0f)));
        q[i] = _mm256_sub_epi32(q[i], _mm256_cmpeq_epi32(t[i], _mm256_set1_epi32(128)));
        t[i] = _mm256_srai_epi32(_mm256_slli_epi32(t[i], 24), 24);
    }
    return power;
}
/* 32 bytes of 32 words that fit into bytes, in order. */
MOEK_AVX2_INLINE __m256i moek_bytes_avx2_(const __m256i words[2])
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(words[0], words[1]), 0xd8);
}
/* The two bytes of 32 words, as s8: low ones, and what is left. */
MOEK_AVX2_INLINE void moek_two_digits_avx2_(__m256i to[2], const __m256i words[2])
{
    __m256i low[2], high[2];
    int i;
    for (i = 0; i < 2; i++) {
        low[i] = _mm256_srai_epi16(_mm256_slli_epi16(words[i], 8), 8);
        high[i] = _mm256_srai_epi16(_mm256_add_epi16(words[i], _mm256_set1_epi16(128)), 8);
    }
    to[0] = moek_bytes_avx2_(low);
    to[1] = moek_bytes_avx2_(high);
}
/* Sums of 4 neighbours each of 32 words. */
MOEK_AVX2_INLINE __m256i moek_fours_avx2_(const __m256i words[2])
{
    const __m256i one = _mm256_set1_epi16(1);
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(_mm256_madd_epi16(words[0], one),
                                                      _mm256_madd_epi16(words[1], one)), 0xd8);
}
/* 32 columns of a chunk, from column 32 b on, in order; less: sums of lanes. */
MOEK_AVX2_INLINE void moek_in_order_avx2_(moek_x_chunk_ *to, int b, const float *x, uint32_t *top)
{
    __m256i q[4], t[4], words[2], thirds[2], two[2];
    const uint32_t power = moek_split_avx2_(q, t, x + 32 * b, top);
    moek_narrow_avx2_(words, q);
    moek_narrow_avx2_(thirds, t);
    moek_two_digits_avx2_(two, words);
    _mm256_storeu_si256((__m256i *)(to->digit[0] + 32 * b), two[0]);
    _mm256_storeu_si256((__m256i *)(to->digit[1] + 32 * b), two[1]);
    _mm256_storeu_si256((__m256i *)(to->digit[2] + 32 * b), moek_bytes_avx2_(thirds));
    _mm256_storeu_si256((__m256i *)(to->less[0] + 8 * b), moek_fours_avx2_(words));
    _mm256_storeu_si256((__m256i *)(to->less[1] + 8 * b), moek_fours_avx2_(thirds));
    _mm256_storeu_ps(to->s + 8 * b, _mm256_set1_ps(moek_float_(power << 23)));
}
MOEK_AVX2_FN uint32_t moek_encode_avx2_(moek_x_chunk_ *to, const float *x, int element, int zeros, uint32_t *top)
{
    const int s8 = element == MOEK_ELEMENT_S8, offset = zeros ? 1 : element == MOEK_ELEMENT_U4B8 ? 8 : 12;
    uint32_t found = 0;
    int b, i;
    for (b = 0; b < 2 && s8 && zeros; b++) moek_in_order_avx2_(to, b, x, top);
    for (b = s8 && zeros ? 2 : 0; b < (s8 ? 2 : 4); b++) {
        __m256i q[4], t[4];
        const uint32_t power = moek_split_avx2_(q, t, x + 32 * b, top);
        const __m256 s = _mm256_set1_ps(moek_float_((power - (element == MOEK_ELEMENT_E2M1)) << 23));
        __m256i words[2], thirds[2];
        __m128i bytes[4];
        if (s8) {
            int8_t *const low = to->digit[0] + 32 * b, *const third = to->digit[1] + 32 * b;
            _mm256_storeu_si256((__m256i *)low, moek_words_avx2_(q, 0));
            _mm256_storeu_si256((__m256i *)(low + MOEK_CHUNK), moek_words_avx2_(q, 1));
            thirds[0] = moek_words_avx2_(t, 0); thirds[1] = moek_words_avx2_(t, 1);
            _mm256_storeu_si256((__m256i *)third, thirds[0]);
            _mm256_storeu_si256((__m256i *)(third + MOEK_CHUNK), thirds[1]);
            found |= (0xffu & ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(
                _mm256_or_si256(thirds[0], thirds[1]), _mm256_setzero_si256())))) << 8 * b;
            _mm256_storeu_ps(to->s + 8 * b, s);
            continue;
        }
        moek_narrow_avx2_(words, q);
        moek_narrow_avx2_(thirds, t);
        _mm_storeu_si128((__m128i *)(to->less[0] + 4 * b),
                         _mm_mullo_epi32(moek_eights_avx2_(words), _mm_set1_epi32(offset)));
        _mm_storeu_si128((__m128i *)(to->less[1] + 4 * b),
                         _mm_mullo_epi32(moek_eights_avx2_(thirds), _mm_set1_epi32(offset)));
        for (i = 0; i < 2; i++) {
            const __m256i high = _mm256_add_epi16(words[i], _mm256_set1_epi16(128));
            words[i] = _mm256_blendv_epi8(words[i], high, _mm256_set1_epi16((short)0xff00));
        }
        moek_apart_avx2_(bytes, words[0], words[1]);
        for (i = 0; i < 4; i++)
            _mm_storeu_si128((__m128i *)(to->digit[i / 2] + i % 2 * MOEK_CHUNK + 16 * b), bytes[i]);
        moek_apart_avx2_(bytes, thirds[0], thirds[1]);
        for (i = 0; i < 2; i++)
            _mm_storeu_si128((__m128i *)(to->digit[2] + i * MOEK_CHUNK + 16 * b), bytes[i]);
        found |= (0xfu & ~(uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(
            _mm_or_si128(bytes[0], bytes[1]), _mm_setzero_si128())))) << 4 * b;
        _mm_storeu_ps(to->s + 4 * b, _mm256_castps256_ps128(s));
    }
    return found;
}

MOEK_AVX2_FN void moek_place_avx2_(moek_x_chunk_ *to, const int8_t *x)
{
    int h;
    for (h = 0; h < 2; h++) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(x + 32 * h));
        _mm256_storeu_si256((__m256i *)(to->digit[0] + 32 * h), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
        _mm256_storeu_si256((__m256i *)(to->digit[0] + MOEK_CHUNK + 32 * h), _mm256_srai_epi16(v, 8));
    }
}
/* 32 bytes of codes as the instructions take them: [0] even columns, [1] odd ones. */
MOEK_AVX2_INLINE void moek_codes_avx2_(__m256i to[2], __m256i codes, int element)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i e2m1 = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
                                          12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    if (element == MOEK_ELEMENT_S8) {
        to[0] = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8);
        to[1] = _mm256_srai_epi16(codes, 8);
        return;
    }
    to[0] = _mm256_and_si256(codes, low);
    to[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
    if (element != MOEK_ELEMENT_E2M1) return;
    to[0] = _mm256_shuffle_epi8(e2m1, to[0]);
    to[1] = _mm256_shuffle_epi8(e2m1, to[1]);
}
/* Pairs of even columns and of odd ones: of bytes 16 sums of s16, of words (s8) 8 of s32. */
MOEK_AVX2_INLINE __m256i moek_pairs_avx2_(const __m256i codes[2], const int8_t *even, const int8_t *odd, int element)
{
    const __m256i e = _mm256_loadu_si256((const __m256i *)even), o = _mm256_loadu_si256((const __m256i *)odd);
    if (element == MOEK_ELEMENT_S8)
        return _mm256_add_epi32(_mm256_madd_epi16(codes[0], e), _mm256_madd_epi16(codes[1], o));
    return _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], e), _mm256_maddubs_epi16(codes[1], o));
}
/* f32 sums of q, and of t if `dense`, of half h of a chunk; zero: NULL, or of each lane. */
MOEK_AVX2_INLINE __m256 moek_half_avx2_(const __m256i codes[2], const moek_x_chunk_ *x, int h, int element, int dense,
                                        const __m256i *zero)
{
    const int s8 = element == MOEK_ELEMENT_S8;
    const __m256i one = _mm256_set1_epi16(1), much = _mm256_set1_epi16(256);
    __m256i less = _mm256_loadu_si256((const __m256i *)(x->less[0] + 8 * h)), d, e;
    __m256 f;
    d = moek_pairs_avx2_(codes, x->digit[0] + 32 * h, x->digit[0] + MOEK_CHUNK + 32 * h, element);
    if (!s8) {
        e = moek_pairs_avx2_(codes, x->digit[1] + 32 * h, x->digit[1] + MOEK_CHUNK + 32 * h, element);
        d = _mm256_add_epi32(_mm256_madd_epi16(d, one), _mm256_madd_epi16(e, much));
        if (zero) less = _mm256_mullo_epi32(less, *zero);
        d = _mm256_sub_epi32(d, less);
    }
    f = _mm256_cvtepi32_ps(d);
    if (!dense) return f;
    e = moek_pairs_avx2_(codes, x->digit[s8 ? 1 : 2] + 32 * h, x->digit[s8 ? 1 : 2] + MOEK_CHUNK + 32 * h, element);
    if (!s8) {
        less = _mm256_loadu_si256((const __m256i *)(x->less[1] + 8 * h));
        if (zero) less = _mm256_mullo_epi32(less, *zero);
        e = _mm256_sub_epi32(_mm256_madd_epi16(e, one), less);
    }
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(e), _mm256_set1_ps(0.00390625f), f);
}
/* Scales of a run to f32; 8 more may be written. */
MOEK_AVX2_INLINE void moek_run_scales_avx2_(float *to, const moek_w_run_ *w, const char *from, int n)
{
    int i = 0;
    for (; w->scale_type == MOEK_SCALE_TYPE_T && i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, moek_eight_t_avx2_((const uint16_t *)from + i, w->dtype));
    for (; w->scale_type == MOEK_SCALE_TYPE_F32 && i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_loadu_ps((const float *)from + i));
    for (; w->scale_type == MOEK_SCALE_TYPE_E8M0 && i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, moek_eight_e8m0_avx2_(from + i));
    for (; w->scale_type == MOEK_SCALE_TYPE_E4M3 && i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, moek_eight_e4m3_avx2_(from + i));
    for (; i < n; i++) to[i] = moek_digits_scale_(from, (size_t)i, w->scale_type, w->dtype);
    _mm256_storeu_ps(to + n, _mm256_setzero_ps());
}
/* The list of a run: eight lanes. */
MOEK_AVX2_INLINE __m256 moek_list_avx2_(const uint8_t *from, const float *scale, const int32_t *zeros,
                                        const moek_x_run_ *x, int element)
{
    __m256 eight = _mm256_setzero_ps();
    int i, j;
    for (i = 0; i < x->thirds; i += 8) {
        const moek_x_list_ *const list = &x->list[i / 8];
        __m256i codes[2], e, less = _mm256_loadu_si256((const __m256i *)list->less);
        __m256 by = _mm256_loadu_ps(list->by);
        int32_t word[8], zero[8];
        float of[8];
        for (j = 0; j < 8; j++) {
            memcpy(&word[j], from + 4 * list->at[j], 4);
            of[j] = scale[list->group[j]];
        }
        moek_codes_avx2_(codes, _mm256_setr_epi32(word[0], word[1], word[2], word[3], word[4], word[5], word[6],
                                                  word[7]), element);
        e = moek_pairs_avx2_(codes, list->digit[0], list->digit[1], element);
        if (zeros) {
            for (j = 0; j < 8; j++) zero[j] = zeros[list->group[j]];
            less = _mm256_mullo_epi32(less, _mm256_loadu_si256((const __m256i *)zero));
        }
        if (element != MOEK_ELEMENT_S8)
            e = _mm256_sub_epi32(_mm256_madd_epi16(e, _mm256_set1_epi16(1)), less);
        by = _mm256_mul_ps(_mm256_setr_ps(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]), by);
        eight = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(e), _mm256_loadu_ps(list->s)), by, eight);
    }
    return eight;
}
/* lanes += half h of chunk c, whose codes are there, of one row of x. */
MOEK_AVX2_INLINE __m256 moek_add_half_avx2_(__m256 lanes, const __m256i codes[2], const moek_x_chunk_ *x, int h,
                                            __m256 of_w, __m256i zero, int element, int kind)
{
    const __m256 f = moek_half_avx2_(codes, x, h, element, kind & MOEK_DOTS_DENSE,
                                     kind & MOEK_DOTS_ZERO ? &zero : NULL);
    if (kind & MOEK_DOTS_SCALED) of_w = _mm256_mul_ps(of_w, _mm256_loadu_ps(x->by + 8 * h));
    return _mm256_fmadd_ps(_mm256_mul_ps(f, _mm256_loadu_ps(x->s + 8 * h)), of_w, lanes);
}
/* A run of a row of w and of `rows` rows of x, 1, 2 or 4.  (No loop over them, so that lanes stay in registers.) */
MOEK_AVX2_INLINE void moek_dot_row_avx2_(double *sum, const moek_w_run_ *w, const moek_w_one_ *one, const float *scale,
                                         const int32_t *zero_of, const moek_lane_scales_ *to,
                                         const moek_x_run_ *const *x, const int rows, const int element,
                                         const int kind)
{
    const int step = moek_chunk_scales_(w, element);
    const moek_x_chunk_ *const x0 = x[0]->chunk, *const x1 = x[rows > 1]->chunk;
    const moek_x_chunk_ *const x2 = x[rows > 2 ? 2 : 0]->chunk, *const x3 = x[rows > 2 ? 3 : 0]->chunk;
    const __m256i spread[2] = { _mm256_loadu_si256((const __m256i *)to->at),
                                _mm256_loadu_si256((const __m256i *)(to->at + 8)) };
    const uint8_t *at = one->codes;
    __m256 lanes[4][2];
    int c, r;
    for (r = 0; r < 4; r++) lanes[r][0] = lanes[r][1] = _mm256_setzero_ps();
    for (c = 0; c < one->chunks; c++, at += MOEK_CHUNK) {
        /* (From where it was stored: a load of parts of two stores waits for both.) */
        const __m256 some = _mm256_loadu_ps(scale + (step * c & ~7));
        const __m256i part = _mm256_set1_epi32(step * c & 7);
        __m256i zeros = _mm256_setzero_si256();
        MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD);
        if (kind & MOEK_DOTS_ZERO) zeros = _mm256_loadu_si256((const __m256i *)(zero_of + (step * c & ~7)));
#define MOEK_EIGHT_LANES_(h) do { \
            const __m256i from = _mm256_add_epi32(spread[h], part); \
            const __m256 of_w = _mm256_permutevar8x32_ps(some, from); \
            const __m256i zero = kind & MOEK_DOTS_ZERO ? _mm256_permutevar8x32_epi32(zeros, from) : zeros; \
            __m256i codes[2]; \
            moek_codes_avx2_(codes, _mm256_loadu_si256((const __m256i *)at + h), element); \
            lanes[0][h] = moek_add_half_avx2_(lanes[0][h], codes, x0 + c, h, of_w, zero, element, kind); \
            if (rows > 1) lanes[1][h] = moek_add_half_avx2_(lanes[1][h], codes, x1 + c, h, of_w, zero, element, kind); \
            if (rows > 2) lanes[2][h] = moek_add_half_avx2_(lanes[2][h], codes, x2 + c, h, of_w, zero, element, kind); \
            if (rows > 2) lanes[3][h] = moek_add_half_avx2_(lanes[3][h], codes, x3 + c, h, of_w, zero, element, kind); \
        } while (0)
        MOEK_EIGHT_LANES_(0);
        MOEK_EIGHT_LANES_(1);
#undef MOEK_EIGHT_LANES_
    }
    for (r = 0; r < rows; r++) {
        __m256 eight = _mm256_add_ps(lanes[r][0], lanes[r][1]);
        if (!(kind & MOEK_DOTS_DENSE))
            eight = _mm256_add_ps(eight, moek_list_avx2_(one->codes, scale, kind & MOEK_DOTS_ZERO ? zero_of : NULL,
                                                         x[r], element));
        else eight = _mm256_add_ps(eight, _mm256_setzero_ps());
        sum[r] = (float)sum[r] + moek_add_eight_avx2_(eight);
    }
}
#define MOEK_V_(x) moek_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "digits_body.h"

MOEK_AVX2_FN void moek_sums_avx2_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    int i, run, r, c, h;
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++)
            for (r = 0; r < rows; r++) {
                const moek_w_one_ one = moek_w_one_of_(w, i, run);
                const uint8_t *at = one.codes;
                __m256i lanes = _mm256_setzero_si256();
                __m128i four;
                for (c = 0; c < one.chunks; c++, at += MOEK_CHUNK) {
                    MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD);
                    for (h = 0; h < 2; h++) {
                        const int8_t *const in = x[run * rows + r]->chunk[c].digit[0] + 32 * h;
                        __m256i codes[2];
                        moek_codes_avx2_(codes, _mm256_loadu_si256((const __m256i *)at + h), MOEK_ELEMENT_S8);
                        lanes = _mm256_add_epi32(lanes, moek_pairs_avx2_(codes, in, in + MOEK_CHUNK, MOEK_ELEMENT_S8));
                    }
                }
                four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
                four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
                w->sum[(size_t)i * w->sum_step][r] += _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
            }
}
static MOEK_UNUSED const moek_set_ moek_set_avx2_ = {
    moek_encode_avx2_, moek_decode_avx2_, moek_place_avx2_, moek_dots_avx2_, moek_sums_avx2_, 1
};
#endif
#endif
