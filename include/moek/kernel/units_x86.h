/* moek/kernel/units_x86.h -- blocks of GGUF files in panels with AVX2 and AVX-512: pieces of generated/moek_units.h.  A
 * lane of 32 bits is a row of w, and has four columns. */
#ifndef MOEK_UNITS_X86_H
#define MOEK_UNITS_X86_H
#include "units.h"
#include "avx512.h"
#if MOEK_HAVE_X86_

/* Numbers of 16 rows, a byte each, from bit `shift` on; they begin at bit `up`. */
MOEK_AVX2_INLINE __m128i moek_unit_number_avx2_(const uint8_t *at, const int shift, const int bits, const int up)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)at);
    if (bits == 8) return v;
    if (shift > up) v = _mm_srli_epi16(v, shift - up);
    if (shift < up) v = _mm_slli_epi16(v, up - shift);
    return _mm_and_si128(v, _mm_set1_epi8((char)(((1 << bits) - 1) << up)));
}
MOEK_AVX2_INLINE __m128i moek_unit_or_avx2_(__m128i a, __m128i b) { return _mm_or_si128(a, b); }
MOEK_AVX2_INLINE __m128i moek_unit_less_avx2_(__m128i n, const int less)
{
    return _mm_sub_epi8(n, _mm_set1_epi8((char)less));
}
/* f16 of 16 rows; times numbers with a sign. */
typedef struct moek_sixteen_avx2_ { __m256 of[2]; } moek_sixteen_avx2_;
MOEK_AVX2_INLINE moek_sixteen_avx2_ moek_unit_tops_avx2_(const uint8_t *at)
{
    moek_sixteen_avx2_ f;
    f.of[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
    f.of[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at + 1));
    return f;
}
MOEK_AVX2_INLINE moek_sixteen_avx2_ moek_unit_times_avx2_(moek_sixteen_avx2_ top, __m128i n)
{
    top.of[0] = _mm256_mul_ps(top.of[0], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(n)));
    top.of[1] = _mm256_mul_ps(top.of[1], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(n, 8))));
    return top;
}
MOEK_AVX2_INLINE void moek_unit_put_avx2_(float *to, moek_sixteen_avx2_ f, const int minus)
{
    const __m256 sign = _mm256_set1_ps(minus ? -0.0f : 0.0f);
    _mm256_storeu_ps(to, _mm256_xor_ps(f.of[0], sign));
    _mm256_storeu_ps(to + 8, _mm256_xor_ps(f.of[1], sign));
}
MOEK_AVX512_INLINE __m512 moek_unit_tops_avx512_(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
MOEK_AVX512_INLINE __m512 moek_unit_times_avx512_(__m512 top, __m128i n)
{
    return _mm512_mul_ps(top, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(n)));
}
MOEK_AVX512_INLINE void moek_unit_put_avx512_(float *to, __m512 f, const int minus)
{
    _mm512_storeu_ps(to, minus ? _mm512_xor_ps(f, _mm512_set1_ps(-0.0f)) : f);
}

/* Four single bits of each word, from bit `from` on, to bit `up` of a byte each. */
MOEK_AVX2_INLINE __m256i moek_unit_singles_avx2_(const uint8_t *at, const int from, const int up)
{
    const __m256i low = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
                                         0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m256i bit = _mm256_set1_epi32(0x08040201);
    const __m256i four = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *)(const void *)at), from);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(four, low), bit), bit),
                            _mm256_set1_epi8((char)(1 << up)));
}
/* (A permutation looks at 4 bits.) */
MOEK_AVX512_INLINE __m512i moek_unit_singles_avx512_(const uint8_t *at, const int from, const int up)
{
#define MOEK_FOUR_(n) (((n) * 0x00204081 & 0x01010101) << up)
    const __m512i apart = _mm512_setr_epi32(MOEK_FOUR_(0), MOEK_FOUR_(1), MOEK_FOUR_(2), MOEK_FOUR_(3), MOEK_FOUR_(4),
                                            MOEK_FOUR_(5), MOEK_FOUR_(6), MOEK_FOUR_(7), MOEK_FOUR_(8), MOEK_FOUR_(9),
                                            MOEK_FOUR_(10), MOEK_FOUR_(11), MOEK_FOUR_(12), MOEK_FOUR_(13),
                                            MOEK_FOUR_(14), MOEK_FOUR_(15));
#undef MOEK_FOUR_
    return _mm512_permutexvar_epi32(_mm512_srli_epi32(_mm512_loadu_si512(at), (unsigned)from), apart);
}
/* Part p of 8 rows, or of 16, from `from` on (moek_unit_begin_): a vector for each four columns.  raw: as sums of the
 * set take these, codes of 8 bits and of a codebook by AVX-512 128 more. */
MOEK_AVX2_INLINE __m256i moek_unit_load_avx2_(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
MOEK_AVX2_INLINE void moek_unit_codes_avx2_(__m256i to[8], const uint8_t *from, const moek_unit_layout_ *l, int p,
                                            const int raw)
{
    const uint8_t *const at = from + l->at[p], *const more = from + l->more_at[p];
    const __m128i shift = _mm_cvtsi32_si128(l->shift[p]), then = _mm_cvtsi32_si128(l->more_shift[p]);
    const __m256i low = _mm256_set1_epi8((char)((1 << l->bits) - 1));
    const __m256i high = _mm256_set1_epi8((char)((1 << l->more) - 1));
    const __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)l->book));
#define MOEK_WORD_(v) do { \
        __m256i c = moek_unit_load_avx2_(at + 64 * (l->by ? (v) % 4 : (v))); \
        if (l->by && (v) > 3) c = _mm256_srli_epi16(c, l->by); \
        if (!l->by && l->bits < 8) c = _mm256_srl_epi16(c, shift); \
        if (l->bits < 8) c = _mm256_and_si256(c, low); \
        if (l->single) c = _mm256_or_si256(c, moek_unit_singles_avx2_(more, 4 * (v), l->bits)); \
        else if (l->more) \
            c = _mm256_or_si256(c, _mm256_slli_epi16(_mm256_and_si256(_mm256_srl_epi16( \
                moek_unit_load_avx2_(more + 64 * (v)), then), high), l->bits)); \
        if (l->look) c = _mm256_shuffle_epi8(book, c); \
        if (!raw && l->less) c = _mm256_sub_epi8(c, _mm256_set1_epi8((char)l->less)); \
        to[v] = c; \
    } while (0)
    MOEK_WORD_(0); MOEK_WORD_(1); MOEK_WORD_(2); MOEK_WORD_(3);
    MOEK_WORD_(4); MOEK_WORD_(5); MOEK_WORD_(6); MOEK_WORD_(7);
#undef MOEK_WORD_
}
MOEK_AVX512_INLINE void moek_unit_codes_avx512_(__m512i to[8], const uint8_t *from, const moek_unit_layout_ *l, int p,
                                                const int raw)
{
    const uint8_t *const at = from + l->at[p], *const more = from + l->more_at[p];
    const __m512i shift = _mm512_set1_epi32(l->shift[p]), then = _mm512_set1_epi32((l->more_shift[p] - l->bits) & 31);
    const __m512i low = _mm512_set1_epi8((char)((1 << l->bits) - 1));
    const __m512i high = _mm512_set1_epi8((char)(((1 << l->more) - 1) << (l->bits & 7)));
    const __m512i book = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)l->book));
    const int less = raw ? (l->wide ? 128 : 0) : l->less;
#define MOEK_WORD_(v) do { \
        __m512i c = _mm512_loadu_si512(at + 64 * (l->by ? (v) % 4 : (v))); \
        if (l->by && (v) > 3) c = _mm512_srli_epi16(c, (unsigned)l->by); \
        if (!l->by && l->bits < 8) c = _mm512_rorv_epi32(c, shift); \
        if (l->bits < 8) c = _mm512_and_si512(c, low); \
        if (l->single) c = _mm512_or_si512(c, moek_unit_singles_avx512_(more, 4 * (v), l->bits)); \
        else if (l->more) c = _mm512_or_si512(c, _mm512_and_si512(_mm512_rorv_epi32( \
            _mm512_loadu_si512(more + 64 * (v)), then), high)); \
        if (l->look) c = _mm512_shuffle_epi8(book, c); \
        if (less) c = _mm512_sub_epi8(c, _mm512_set1_epi8((char)less)); \
        to[v] = c; \
    } while (0)
    MOEK_WORD_(0); MOEK_WORD_(1); MOEK_WORD_(2); MOEK_WORD_(3);
    MOEK_WORD_(4); MOEK_WORD_(5); MOEK_WORD_(6); MOEK_WORD_(7);
#undef MOEK_WORD_
}
/* A part, to words. */
MOEK_AVX2_INLINE void moek_unit_words_avx2_(uint32_t *words, const uint8_t *from, const moek_unit_layout_ *l, int p,
                                            int raw)
{
    __m256i codes[8];
    int v, h;
    for (h = 0; h < 2; h++) {
        if (raw) moek_unit_codes_avx2_(codes, from + 32 * h, l, p, 1);
        else moek_unit_codes_avx2_(codes, from + 32 * h, l, p, 0);
        for (v = 0; v < 8; v++) _mm256_storeu_si256((__m256i *)(void *)(words + 16 * v + 8 * h), codes[v]);
    }
}
MOEK_AVX512_INLINE void moek_unit_words_avx512_(uint32_t *words, const uint8_t *from, const moek_unit_layout_ *l, int p,
                                                int raw)
{
    __m512i codes[8];
    int v;
    if (raw) moek_unit_codes_avx512_(codes, from, l, p, 1);
    else moek_unit_codes_avx512_(codes, from, l, p, 0);
    for (v = 0; v < 8; v++) _mm512_storeu_si512(words + 16 * v, codes[v]);
}

#define MOEK_V_SIXTEEN moek_sixteen_avx2_
#define MOEK_V_BYTES __m128i
#define MOEK_V_(x) moek_unit_##x##_avx2_
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "units_body.h"
#define moek_unit_number_avx512_ moek_unit_number_avx2_
#define moek_unit_or_avx512_ moek_unit_or_avx2_
#define moek_unit_less_avx512_ moek_unit_less_avx2_
#define MOEK_V_SIXTEEN __m512
#define MOEK_V_BYTES __m128i
#define MOEK_V_(x) moek_unit_##x##_avx512_
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "units_body.h"
#undef moek_unit_number_avx512_
#undef moek_unit_or_avx512_
#undef moek_unit_less_avx512_
#endif
#endif
