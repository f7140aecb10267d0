/* moek/kernel/blocks_avx2.h -- blocks of GGUF files with AVX2: pieces of what unpacks them
 * (generated/moek_blocks_avx2.h), planes of bits of 32 codes in a row, a byte each, and scales of 8 groups as f32; and
 * the loops of few rows (blocks_body.h).  moek/format.h says what a plane is. */
#ifndef MOEK_BLOCKS_AVX2_H
#define MOEK_BLOCKS_AVX2_H
#include "digits.h"
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
/* Two planes, one behind the other, of which 8 bytes have a number of 4 bits each, and one more above. */
MOEK_AVX2_INLINE __m256i moek_quarters_avx2_(const uint8_t *at)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)at), high = _mm_srli_epi16(v, 4);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(v, high)),
                                                 _mm_unpackhi_epi64(v, high), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
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
/* 8 scales of a byte to f32. */
MOEK_AVX2_INLINE __m256 moek_eight_e8m0_avx2_(const char *from)
{
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
    const __m256i nan = _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255));
    const __m256i f = _mm256_max_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(f, _mm256_set1_epi32(0x7fc00000), nan));
}
MOEK_AVX2_INLINE __m256 moek_eight_e4m3_avx2_(const char *from)        /* its bits are an fp16, 2^8 too small */
{
    const __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)from), most = _mm_set1_epi8(127);
    const __m128i h = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(b), 7), _mm_set1_epi16((short)0xbf80));
    const __m256i nan = _mm256_cvtepi8_epi32(_mm_cmpeq_epi8(_mm_and_si128(b, most), most));
    return _mm256_blendv_ps(_mm256_mul_ps(_mm256_cvtph_ps(h), _mm256_set1_ps(256.0f)),
                            _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), _mm256_castsi256_ps(nan));
}
/* `per` scales of a byte of each of so many blocks, 8 or 16 in all, times `by`. */
MOEK_AVX2_INLINE void moek_put_scales_avx2_(float *to, const uint8_t *at, const int bytes, const int per,
                                            const int blocks, const int type, const float by)
{
    char in[16];
    int i;
    for (i = 0; i < blocks; i++) memcpy(in + i * per, at + i * bytes, (size_t)per);
    for (i = 0; i < per * blocks; i += 8) {
        const __m256 f = type == MOEK_SCALE_TYPE_E8M0 ? moek_eight_e8m0_avx2_(in + i) : moek_eight_e4m3_avx2_(in + i);
        _mm256_storeu_ps(to + i, _mm256_mul_ps(f, _mm256_set1_ps(by)));
    }
}

/* ---- what blocks_body.h wants ------------------------------------------------------------------------------------ */

MOEK_AVX2_INLINE float moek_add_eight_avx2_(__m256 eight)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MOEK_AVX2_INLINE __m256 moek_block_zero_avx2_(void) { return _mm256_setzero_ps(); }
#define moek_block_none_avx2_ moek_block_zero_avx2_
typedef struct moek_by_avx2_ { float of[16]; const float *unit; } moek_by_avx2_;
typedef struct moek_factors_avx2_ { float scale[16], min[16]; } moek_factors_avx2_;
MOEK_AVX2_INLINE void moek_block_by_avx2_(moek_by_avx2_ *by, __m256 *low, const moek_factors_avx2_ *w, const float *x,
                                          const int kind)
{
    const int fine = kind & MOEK_BLOCK_FINE;
    const float *const sum = x + (fine ? 16 : 8);
    by->unit = x;
    if (kind & MOEK_BLOCK_FAR) { memcpy(by->of, w->scale, (fine ? 16 : 8) * sizeof(float)); return; }
    _mm256_storeu_ps(by->of, _mm256_mul_ps(_mm256_loadu_ps(w->scale), _mm256_loadu_ps(x)));
    if (fine) _mm256_storeu_ps(by->of + 8, _mm256_mul_ps(_mm256_loadu_ps(w->scale + 8), _mm256_loadu_ps(x + 8)));
    if (!(kind & MOEK_BLOCK_MIN)) return;
    *low = _mm256_fmadd_ps(_mm256_loadu_ps(w->min), _mm256_loadu_ps(sum), *low);
    if (fine) *low = _mm256_fmadd_ps(_mm256_loadu_ps(w->min + 8), _mm256_loadu_ps(sum + 8), *low);
}
/* Codes of 8 bits times words of x: `at` has the words of even columns. */
MOEK_AVX2_INLINE __m256i moek_block_words_avx2_(__m256i codes, const int8_t *at)
{
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8), odd = _mm256_srai_epi16(codes, 8);
    const __m256i *const x = (const __m256i *)(const void *)at, *const other = x + MOEK_CHUNK / 32;
    return _mm256_add_epi32(_mm256_madd_epi16(even, _mm256_loadu_si256(x)),
                            _mm256_madd_epi16(odd, _mm256_loadu_si256(other)));
}
/* Codes without a sign times a digit, times `by`. */
MOEK_AVX2_INLINE __m256i moek_block_bytes_avx2_(__m256i codes, const int8_t *digit, int by)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, _mm256_loadu_si256((const __m256i *)(const void *)digit)),
                             _mm256_set1_epi16((short)by));
}
MOEK_AVX2_INLINE __m256 moek_block_add_avx2_(__m256 lanes, __m256i codes, const moek_x_chunk_ *x, const int h,
                                             const moek_by_avx2_ *by, const int part, const int kind)
{
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256 scale = kind & MOEK_BLOCK_FINE
        ? _mm256_permutevar_ps(_mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)(by->of + 2 * part))),
                               spread) : _mm256_broadcast_ss(by->of + part);
    __m256 f;
    if (kind & MOEK_BLOCK_BYTES) {
        __m256i d = kind & MOEK_BLOCK_WIDE ? moek_block_words_avx2_(codes, x->digit[0] + 32 * h)
                                           : moek_block_bytes_avx2_(codes, x->digit[0] + 32 * h, 1);
        if (kind & MOEK_BLOCK_OFFSET)
            d = _mm256_add_epi32(d, _mm256_loadu_si256((const __m256i *)(const void *)(x->less[0] + 8 * h)));
        f = _mm256_cvtepi32_ps(d);
    } else if (kind & MOEK_BLOCK_WIDE) {
        const __m256i q = moek_block_words_avx2_(codes, x->digit[0] + 32 * h);
        f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(256),
                            _mm256_cvtepi32_ps(moek_block_words_avx2_(codes, x->digit[1] + 32 * h)));
    } else {
        __m256i d = _mm256_add_epi32(moek_block_bytes_avx2_(codes, x->digit[1] + 32 * h, 256),
                                     moek_block_bytes_avx2_(codes, x->digit[0] + 32 * h, 1));
        d = _mm256_add_epi32(_mm256_slli_epi32(d, 8), moek_block_bytes_avx2_(codes, x->digit[2] + 32 * h, 1));
        if (kind & MOEK_BLOCK_OFFSET)
            d = _mm256_sub_epi32(d, _mm256_loadu_si256((const __m256i *)(const void *)(x->less[0] + 8 * h)));
        f = _mm256_cvtepi32_ps(d);
    }
    if (kind & MOEK_BLOCK_FAR) f = _mm256_mul_ps(f, _mm256_broadcast_ss(by->unit + part));     /* (never fine) */
    return _mm256_fmadd_ps(f, scale, lanes);
}
MOEK_AVX2_INLINE float moek_block_plus_avx2_(float sum, __m256 eight, float back)
{
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(moek_add_eight_avx2_(eight)), _mm_set_ss(back), _mm_set_ss(sum)));
}
MOEK_AVX2_INLINE float moek_block_end_avx2_(float sum, const __m256 *lanes, __m256 low, float back, const int kind)
{
    (void)kind;
    return moek_block_plus_avx2_(sum, _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[1]), low), back);
}
#define MOEK_VF __m256
#define MOEK_VI __m256i
#define MOEK_V_LANES 8
#define MOEK_V_FACTORS moek_factors_avx2_
#define MOEK_V_BY moek_by_avx2_
#define MOEK_V_LOW __m256
#define MOEK_V_(x) moek_##x##_avx2_
#define MOEK_V_FN MOEK_AVX2_FN
#define MOEK_V_INLINE MOEK_AVX2_INLINE
#include "blocks_body.h"
#undef moek_block_none_avx2_
#endif
#endif
