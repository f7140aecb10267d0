/* moek/kernel/gemm_avx2.h -- dots of gemm_cpu.h with AVX2, FMA and F16C (moek/kernel/isa.h).  The bits are those of
 * plain C: the same sums in the same order. */
#include "gemm_cpu.h"
#ifndef MOEK_GEMM_AVX2_H
#define MOEK_GEMM_AVX2_H
#if MOEK_HAVE_X86_

/* The low halves of 8 words, then the high ones. */
MOEK_AVX2_INLINE __m256i moek_low_high_avx2_(__m256i words)
{
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, apart), 0xd8);
}
/* 16 of fp16, 8 to each. */
MOEK_AVX2_INLINE void moek_put_fp16_avx2_(float *to, float *and_to, __m256i fp16)
{
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(fp16)));
    _mm256_storeu_ps(and_to, _mm256_cvtph_ps(_mm256_extracti128_si256(fp16, 1)));
}
/* moek_piece_fp16_. */
MOEK_AVX2_INLINE void moek_piece_fp16_avx2_(float *to, const void *from)
{
    int i;
    for (i = 0; i < MOEK_PIECE / 16; i++) {
        const __m256i words = _mm256_loadu_si256((const __m256i *)from + i);
        moek_put_fp16_avx2_(to + 8 * i, to + MOEK_PIECE / 2 + 8 * i, moek_low_high_avx2_(words));
    }
}
/* moek_piece_e4m3_: bits of e4m3 are those of an fp16 that is 2^8 too small, subnormals included. */
MOEK_AVX2_INLINE void moek_piece_e4m3_avx2_(float *to, const void *from)
{
    enum { W = MOEK_PIECE / 4 };
    const __m256i keep = _mm256_set1_epi16((short)0xbf80), magnitude = _mm256_set1_epi8(0x7f);
    __m256i nan = _mm256_setzero_si256();
    int i;
    for (i = 0; i < W; i += 8) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)from + i / 8);
        const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 1), keep);
        const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(c, 1), keep);
        moek_put_fp16_avx2_(to + i, to + 2 * W + i, moek_low_high_avx2_(even));
        moek_put_fp16_avx2_(to + W + i, to + 3 * W + i, moek_low_high_avx2_(odd));
        nan = _mm256_or_si256(nan, _mm256_cmpeq_epi8(_mm256_and_si256(c, magnitude), magnitude));
    }
    if (_mm256_movemask_epi8(nan)) to[0] = moek_float_(0x7fc00000);
}
/* lanes += by * sums of 16 lanes, rounded twice as plain C does. */
MOEK_AVX2_INLINE void moek_add_lanes_avx2_(float *lanes, __m256 low, __m256 high, __m256 by)
{
    low = _mm256_mul_ps(low, by); high = _mm256_mul_ps(high, by);
    __asm__("" : "+x"(low), "+x"(high));               /* else a compiler makes FMAs */
    _mm256_storeu_ps(lanes, _mm256_add_ps(_mm256_loadu_ps(lanes), low));
    _mm256_storeu_ps(lanes + 8, _mm256_add_ps(_mm256_loadu_ps(lanes + 8), high));
}
/* moek_dot_ of elements whose products are exact in f32 (from 2^-126 on), so that FMA gives the same bits. */
MOEK_AVX2_INLINE void moek_dot_exact_avx2_(float *lanes, const float *w, const float *x, float by)
{
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    int i;
    for (i = 0; i < MOEK_PIECE; i += MOEK_LANES) {
        low = _mm256_fmadd_ps(_mm256_loadu_ps(w + i), _mm256_loadu_ps(x + i), low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(w + i + 8), _mm256_loadu_ps(x + i + 8), high);
    }
    moek_add_lanes_avx2_(lanes, low, high, _mm256_set1_ps(by));
}
/* Pieces of fp16 or e4m3 times rows of x (moek_dots_), of which each has a scale, and a scale of x, or none has. */
MOEK_AVX2_INLINE void moek_dots_pieces_avx2_(float (*lanes)[MOEK_LANES], const void *from, int pieces, moek_dots_ a,
                                             const int element)
{
    const int bytes = element == MOEK_ELEMENT_E4M3 ? MOEK_PIECE : 2 * MOEK_PIECE;
    float piece[MOEK_PIECE];
    int n, r, i;
    for (n = 0; n < pieces; n++) {
        const char *const at = (const char *)from + (size_t)n * (size_t)bytes;
        for (i = 0; i < bytes; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD + (uintptr_t)i);
        if (element == MOEK_ELEMENT_E4M3) moek_piece_e4m3_avx2_(piece, at);
        else moek_piece_fp16_avx2_(piece, at);
        for (r = 0; r < a.rows; r++) {
            const float w_scale = a.scale ? a.scale[n] : 1;
            const float x_scale = a.x_scale ? a.x_scale[(size_t)r * a.x_scale_row + (size_t)n] : 1;
            moek_dot_exact_avx2_(lanes[r], piece, a.x + (size_t)r * a.x_row + (size_t)n * MOEK_PIECE,
                                 w_scale * x_scale);
        }
    }
}
MOEK_AVX2_FN void moek_dots_avx2_fp16_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns,
                                       moek_dots_ a)
{
    (void)columns;
    moek_dots_pieces_avx2_(lanes, from, pieces, a, MOEK_ELEMENT_FP16);
}
MOEK_AVX2_FN void moek_dots_avx2_e4m3_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns,
                                       moek_dots_ a)
{
    (void)columns;
    moek_dots_pieces_avx2_(lanes, from, pieces, a, MOEK_ELEMENT_E4M3);
}
/* moek_dot_exact_avx2_ of bf16, which registers hold: the even columns of 64 words, then the odd ones. */
MOEK_AVX2_INLINE void moek_dot_bf16_avx2_(float *lanes, const __m256i *words, const float *x)
{
    const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
#define MOEK_EVEN_(i) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words + (i)), 16)), \
    _mm256_loadu_ps(x + 8 * (i))
#define MOEK_ODD_(i) _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words + (i)), odd)), \
    _mm256_loadu_ps(x + MOEK_PIECE / 2 + 8 * (i))
    low = _mm256_fmadd_ps(MOEK_EVEN_(0), low); high = _mm256_fmadd_ps(MOEK_EVEN_(1), high);
    low = _mm256_fmadd_ps(MOEK_EVEN_(2), low); high = _mm256_fmadd_ps(MOEK_EVEN_(3), high);
    low = _mm256_fmadd_ps(MOEK_EVEN_(4), low); high = _mm256_fmadd_ps(MOEK_EVEN_(5), high);
    low = _mm256_fmadd_ps(MOEK_EVEN_(6), low); high = _mm256_fmadd_ps(MOEK_EVEN_(7), high);
    low = _mm256_fmadd_ps(MOEK_ODD_(0), low);  high = _mm256_fmadd_ps(MOEK_ODD_(1), high);
    low = _mm256_fmadd_ps(MOEK_ODD_(2), low);  high = _mm256_fmadd_ps(MOEK_ODD_(3), high);
    low = _mm256_fmadd_ps(MOEK_ODD_(4), low);  high = _mm256_fmadd_ps(MOEK_ODD_(5), high);
    low = _mm256_fmadd_ps(MOEK_ODD_(6), low);  high = _mm256_fmadd_ps(MOEK_ODD_(7), high);
#undef MOEK_EVEN_
#undef MOEK_ODD_
    moek_add_lanes_avx2_(lanes, low, high, _mm256_set1_ps(1));
}
MOEK_AVX2_FN void moek_dots_avx2_bf16_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns,
                                       moek_dots_ a)
{
    int n, r, i;
    (void)columns;
    for (n = 0; n < pieces; n++) {
        const char *const at = (const char *)from + (size_t)n * (2 * MOEK_PIECE);
        for (i = 0; i < 2 * MOEK_PIECE; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD + i);
        for (r = 0; r < a.rows; r++)
            moek_dot_bf16_avx2_(lanes[r], (const __m256i *)(const void *)at,
                                a.x + (size_t)r * a.x_row + (size_t)n * MOEK_PIECE);
    }
}
#endif
#endif
