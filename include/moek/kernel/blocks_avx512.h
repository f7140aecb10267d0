/* moek/kernel/blocks_avx512.h -- blocks of GGUF files with AVX-512: pieces of generated/moek_blocks_avx512.h, planes of
 * bits of 64 codes in a row, a byte each; and the loops of few rows (blocks_body.h). */
#ifndef MOEK_BLOCKS_AVX512_H
#define MOEK_BLOCKS_AVX512_H
#include "blocks_avx2.h"
#if MOEK_HAVE_X86_

/* Bits of each byte, which begin at bit `from` (of each half, or of each quarter), to bit `up`; bits around them go. */
MOEK_AVX512_INLINE __m512i moek_bits_avx512_(__m512i v, const int bits, const int up)
{
    return _mm512_and_si512(v, _mm512_set1_epi8((char)(((1 << bits) - 1) << up)));
}
/* A plane of which 32 bytes have a number each: 32 from bit `shift` on at `at`, and 32 more. */
MOEK_AVX512_INLINE __m512i moek_plane_avx512_(const uint8_t *at, const int shift, const uint8_t *more, const int then,
                                              const int bits, const int up)
{
    const int a = (up - shift) & 31, b = (up - then) & 31;                /* to the left; within bytes that is enough */
    __m512i v;
    if (at + 32 == more) {
        v = _mm512_loadu_si512(at);
        if (shift == then && bits == 8) return v;
        if (shift == then) {
            if (shift > up) v = _mm512_srli_epi16(v, (unsigned)(shift > up ? shift - up : 0));
            if (shift < up) v = _mm512_slli_epi16(v, (unsigned)(shift < up ? up - shift : 0));
            return moek_bits_avx512_(v, bits, up);
        }
    } else {
        v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)at));
        if (at != more) v = _mm512_inserti64x4(v, _mm256_loadu_si256((const __m256i *)(const void *)more), 1);
    }
    if (bits == 8) return v;
    v = _mm512_rolv_epi32(v, _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b));
    return moek_bits_avx512_(v, bits, up);
}
/* A plane of which 16 bytes have a number each, and one more `by` bits higher; twice. */
MOEK_AVX512_INLINE __m512i moek_halves_avx512_(const uint8_t *at, const uint8_t *more, const int by, const int bits)
{
    const int a = -by & 31;
    const __m512i first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m512i v = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128((const __m128i *)(const void *)more));
    const __m512i n = _mm512_setr_epi32(0, 0, 0, 0, a, a, a, a, 0, 0, 0, 0, a, a, a, a);
    return moek_bits_avx512_(_mm512_rolv_epi32(v, n), bits, 0);
}
/* Two planes, one behind the other, of which 8 bytes have a number of 4 bits each, and one more above; twice. */
MOEK_AVX512_INLINE __m512i moek_quarters_avx512_(const uint8_t *at, const uint8_t *more)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(moek_quarters_avx2_(at)), moek_quarters_avx2_(more), 1);
}
/* A plane of single bits, 8 columns a byte, which begin at bit `up`: 32 columns of `at`, and 32 more. */
MOEK_AVX512_INLINE __m512i moek_singles_avx512_(const uint8_t *at, const uint8_t *more, const int up)
{
    uint32_t bits[2];
    memcpy(&bits[0], at, 4);
    memcpy(&bits[1], more, 4);
    return _mm512_maskz_set1_epi8((__mmask64)(bits[0] | (uint64_t)bits[1] << 32), (char)(1 << up));
}
/* Two f16, each in 8 lanes. */
MOEK_AVX512_INLINE __m512 moek_tops_avx512_(const uint8_t *first, const uint8_t *second)
{
    uint16_t h[2];
    uint32_t both;
    memcpy(&h[0], first, 2);
    memcpy(&h[1], second, 2);
    both = h[0] | (uint32_t)h[1] << 16;
    if (second == first + 2) memcpy(&both, first, 4);
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)both))));
}
/* 16 numbers of a plane: in which of 16 bytes each begins; how far its lowest bit goes to the left, to bit `up`. */
#define MOEK_NUMBERS_AVX512_(in, bytes, by, bits, up) \
    _mm512_and_si512(_mm512_rolv_epi32(_mm512_cvtepu8_epi32(_mm_shuffle_epi8(in, _mm_setr_epi8 bytes)), \
                                       _mm512_setr_epi32 by), _mm512_set1_epi32(((1 << (bits)) - 1) << (up)))

/* ---- what blocks_body.h wants ------------------------------------------------------------------------------------ */

MOEK_AVX512_INLINE __m512 moek_block_zero_avx512_(void) { return _mm512_setzero_ps(); }
#define moek_block_none_avx512_ moek_block_zero_avx512_
/* Of groups of 32 columns `scale` has 8 scales, then 8 minimums without their sign. */
typedef struct moek_factors_avx512_ { __m512 scale, min; } moek_factors_avx512_;
typedef struct moek_by_avx512_ { __m512 of, unit; } moek_by_avx512_;
MOEK_AVX512_INLINE void moek_block_by_avx512_(moek_by_avx512_ *by, __m512 *low, const moek_factors_avx512_ *w,
                                              const float *x, const int kind)
{
    const __m512 first = _mm512_loadu_ps(x);
    by->unit = first;
    by->of = kind & MOEK_BLOCK_FAR ? w->scale : _mm512_mul_ps(w->scale, first);
    if (!(kind & MOEK_BLOCK_MIN)) return;
    if (kind & MOEK_BLOCK_FINE) {
        const __m512 min = kind & MOEK_BLOCK_LESS ? _mm512_xor_ps(w->min, _mm512_set1_ps(-0.0f)) : w->min;
        const __m512 sum = _mm512_loadu_ps(x + 16);
        __m256 eight = _mm512_castps512_ps256(*low);
        eight = _mm256_fmadd_ps(_mm512_castps512_ps256(min), _mm512_castps512_ps256(sum), eight);
        eight = _mm256_fmadd_ps(_mm512_extractf32x8_ps(min, 1), _mm512_extractf32x8_ps(sum, 1), eight);
        *low = _mm512_castps256_ps512(eight);
    }
    else if (kind & MOEK_BLOCK_LESS) *low = _mm512_fnmadd_ps(w->scale, first, *low);
    else *low = _mm512_fmadd_ps(w->scale, first, *low);
}
MOEK_AVX512_INLINE __m512 moek_block_add_avx512_(__m512 lanes, __m512i codes, const moek_x_chunk_ *x, const int h,
                                                 const moek_by_avx512_ *by, const int part, const int kind)
{
    const int g = kind & MOEK_BLOCK_FINE ? 4 * part : 2 * part, n = kind & MOEK_BLOCK_FINE ? 1 : 0;
    const __m512i at = _mm512_setr_epi32(g, g, g, g, g + n, g + n, g + n, g + n, g + 1 + n, g + 1 + n, g + 1 + n,
                                         g + 1 + n, g + 1 + 2 * n, g + 1 + 2 * n, g + 1 + 2 * n, g + 1 + 2 * n);
    __m512i d;
    __m512 f;
    (void)h;
    if (kind & MOEK_BLOCK_BYTES) {
        d = kind & MOEK_BLOCK_OFFSET ? _mm512_loadu_si512(x->less[0]) : _mm512_setzero_si512();
        d = _mm512_dpbusd_epi32(d, codes, _mm512_loadu_si512(x->digit[0]));
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_permutexvar_ps(at, by->of), lanes);
    }
    d = kind & MOEK_BLOCK_WIDE ? _mm512_loadu_si512(x->less[0]) : _mm512_setzero_si512();
    d = _mm512_dpbusd_epi32(d, codes, _mm512_loadu_si512(x->digit[1]));
    d = _mm512_dpbusd_epi32(_mm512_slli_epi32(d, 8), codes, _mm512_loadu_si512(x->digit[0]));
    if (kind & MOEK_BLOCK_WIDE) {
        const __m512i t = _mm512_dpbusd_epi32(_mm512_loadu_si512(x->less[1]), codes, _mm512_loadu_si512(x->digit[2]));
        f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_set1_ps(256), _mm512_cvtepi32_ps(t));
    } else {
        d = _mm512_dpbusd_epi32(_mm512_slli_epi32(d, 8), codes, _mm512_loadu_si512(x->digit[2]));
        if (kind & MOEK_BLOCK_OFFSET) d = _mm512_sub_epi32(d, _mm512_loadu_si512(x->less[0]));
        f = _mm512_cvtepi32_ps(d);
    }
    if (kind & MOEK_BLOCK_FAR) f = _mm512_mul_ps(f, _mm512_permutexvar_ps(at, by->unit));
    return _mm512_fmadd_ps(f, _mm512_permutexvar_ps(at, by->of), lanes);
}
MOEK_AVX512_INLINE float moek_block_end_avx512_(float sum, const __m512 *lanes, __m512 low, float back, const int kind)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes[0]), _mm512_extractf32x8_ps(lanes[0], 1));
    const int above = kind & MOEK_BLOCK_MIN && !(kind & MOEK_BLOCK_FINE);
    const __m256 more = above ? _mm512_extractf32x8_ps(low, 1) : _mm512_castps512_ps256(low);
    return moek_block_plus_avx2_(sum, _mm256_add_ps(eight, more), back);
}
#define MOEK_VF __m512
#define MOEK_VI __m512i
#define MOEK_V_LANES 16
#define MOEK_V_FACTORS moek_factors_avx512_
#define MOEK_V_BY moek_by_avx512_
#define MOEK_V_LOW __m512
#define MOEK_V_(x) moek_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "blocks_body.h"
#undef moek_block_none_avx512_
#endif
#endif
