/* moek/kernel/blocks_avx2.h -- pieces of what unpacks blocks of GGUF files with AVX2 (generated/moek_blocks_avx2.h):
 * planes of bits of 32 codes in a row, a byte each, and scales of 8 groups as f32.  moek/format.h says what a plane
 * is. */
#ifndef MOEK_BLOCKS_AVX2_H
#define MOEK_BLOCKS_AVX2_H
#include "isa.h"
#if MOEK_HAVE_X86_

MOEK_AVX2_INLINE void moek_put_avx2_(int8_t *to, __m256i codes) { _mm256_storeu_si256((__m256i *)to, codes); }
/* A plane of which 32 bytes have a number each, from bit `shift` on; the numbers begin at bit `up`. */
MOEK_AVX2_INLINE __m256i moek_plane_avx2_(const uint8_t *at, const int shift, const int bits, const int up)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)at);
    if (bits == 8) return v;
    if (shift > up) v = _mm256_srli_epi16(v, shift - up);
    if (shift < up) v = _mm256_slli_epi16(v, up - shift);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(((1 << bits) - 1) << up)));
}
/* A plane of which 16 bytes have a number each, and one more `by` bits higher. */
MOEK_AVX2_INLINE __m256i moek_halves_avx2_(const uint8_t *at, const int by, const int bits)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)at);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, by), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8((char)((1 << bits) - 1)));
}
/* A plane of single bits, 8 columns a byte, which begin at bit `up`. */
MOEK_AVX2_INLINE __m256i moek_singles_avx2_(const uint8_t *at, const int up)
{
    const __m256i of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                        2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    int32_t four;
    memcpy(&four, at, 4);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(four), of), bit),
                                              bit), _mm256_set1_epi8((char)(1 << up)));
}
/* 8 numbers of a plane: in which of 16 bytes each begins, and at which bit. */
MOEK_AVX2_INLINE __m256i moek_numbers_avx2_(__m128i bytes, __m128i at, __m256i shift, const int bits)
{
    const __m256i v = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(bytes, at));
    return bits == 8 ? v : _mm256_and_si256(_mm256_srlv_epi32(v, shift), _mm256_set1_epi32((1 << bits) - 1));
}
#define MOEK_EIGHT_(a, b, c, d, e, f, g, h) _mm_setr_epi8(a, b, c, d, e, f, g, h, -1, -1, -1, -1, -1, -1, -1, -1)
/* ...  and the next bits of these numbers, from bit `up` on. */
MOEK_AVX2_INLINE __m256i moek_more_avx2_(__m256i n, __m256i more, const int up)
{
    return _mm256_or_si256(n, _mm256_slli_epi32(more, up));
}
/* An f16, everywhere. */
MOEK_AVX2_INLINE __m256 moek_all_fp16_avx2_(const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, 2);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
/* 8 f16 that lie `step` bytes apart. */
MOEK_AVX2_INLINE __m256 moek_eight_fp16_avx2_(const uint8_t *at, const int step)
{
    uint16_t h[8];
    int i;
    for (i = 0; i < 8; i++) memcpy(&h[i], at + i * step, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], (short)h[4],
                                          (short)h[5], (short)h[6], (short)h[7]));
}
#endif
#endif
