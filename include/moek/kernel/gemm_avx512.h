/* moek/kernel/gemm_avx512.h -- rows of gemm_cpu.h with AVX-512 (moek/kernel/isa.h).  The bits are as in plain C: a
 * vector is 16 lanes.  Ends of rows, which are no whole pieces, are left to AVX2. */
#include "gemm_avx2.h"
#include "avx512.h"
#ifndef MOEK_GEMM_AVX512_H
#define MOEK_GEMM_AVX512_H
#if MOEK_HAVE_X86_

enum { MOEK_ROW_AHEAD_AVX512 = 3072 };                 /* bytes that are asked for early */
/* 32 words of 16 bits to f32: the low halves of 16 words, then the high ones. */
MOEK_AVX512_INLINE void moek_two_fp16_avx512_(__m512 *low, __m512 *high, __m512i words)
{
    const __m512i apart = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1,
                                           30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i two = _mm512_permutexvar_epi16(apart, words);
    *low = _mm512_cvtph_ps(_mm512_castsi512_si256(two));
    *high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two, 1));
}
/* A piece in the order of plain C; of e4m3 2^-8 of that.  Returns lanes with a NaN of e4m3. */
MOEK_AVX512_INLINE __mmask64 moek_piece_avx512_(__m512 to[8], const char *at, const int element)
{
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000u), keep = _mm512_set1_epi16((short)0xbf80);
    const __m512i most = _mm512_set1_epi8(127);
    __mmask64 nan = 0;
#define MOEK_WORDS_(i) do { \
        const __m512i w = _mm512_loadu_si512(at + 64 * (i)); \
        if (element == MOEK_ELEMENT_BF16) { \
            to[i] = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); \
            to[(i) + 4] = _mm512_castsi512_ps(_mm512_and_si512(w, odd)); \
        } else { \
            moek_two_fp16_avx512_(&to[i], &to[(i) + 4], w); \
        } \
    } while (0)
#define MOEK_BYTES_(i) do { \
        const __m512i c = _mm512_loadu_si512(at + 64 * (i)); \
        nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(c, most), most); \
        moek_two_fp16_avx512_(&to[i], &to[(i) + 4], \
                              _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(c, 8), 1), keep)); \
        moek_two_fp16_avx512_(&to[(i) + 2], &to[(i) + 6], _mm512_and_si512(_mm512_srai_epi16(c, 1), keep)); \
    } while (0)
    if (element == MOEK_ELEMENT_E4M3) {
        MOEK_BYTES_(0); MOEK_BYTES_(1);
    } else {
        MOEK_WORDS_(0); MOEK_WORDS_(1); MOEK_WORDS_(2); MOEK_WORDS_(3);
    }
#undef MOEK_WORDS_
#undef MOEK_BYTES_
    return nan;
}
/* lanes += by * (piece . x), rounded as in plain C. */
MOEK_AVX512_INLINE __m512 moek_add_piece_avx512_(__m512 lanes, const __m512 w[8], const float *x, const int scaled,
                                                 float by)
{
    __m512 sum = _mm512_setzero_ps();
#define MOEK_STEP_(i) sum = _mm512_fmadd_ps(w[i], _mm512_loadu_ps(x + 16 * (i)), sum);
    MOEK_STEP_(0) MOEK_STEP_(1) MOEK_STEP_(2) MOEK_STEP_(3) MOEK_STEP_(4) MOEK_STEP_(5) MOEK_STEP_(6) MOEK_STEP_(7)
#undef MOEK_STEP_
    if (scaled) sum = _mm512_mul_ps(sum, _mm512_set1_ps(by));
    __asm__("" : "+v"(sum));                           /* else a compiler makes FMAs */
    return _mm512_add_ps(lanes, sum);
}
MOEK_AVX512_INLINE void moek_row_of_avx512_(float *sum, const void *w, int n, float unit, moek_dots_ a, const int rows,
                                            const int scaled, const int element)
{
    const int bytes = element == MOEK_ELEMENT_E4M3 ? MOEK_PIECE : 2 * MOEK_PIECE;
    const char *at = (const char *)w;
    int i, j, end, b;
    for (i = 0; i < n; i = end) {
        __m512 l0 = _mm512_setzero_ps(), l1 = l0, l2 = l0, l3 = l0;
        end = n - i < MOEK_CPU_RUN ? n : i + MOEK_CPU_RUN;
        for (j = i; j < end; j += MOEK_PIECE, at += bytes, a.x += MOEK_PIECE) {
            const float by = scaled ? a.scale[j / MOEK_PIECE] : 1;
            __m512 piece[8];
            for (b = 0; b < bytes; b += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_ROW_AHEAD_AVX512 + (uintptr_t)b);
            if (moek_piece_avx512_(piece, at, element))
                piece[0] = _mm512_mask_mov_ps(piece[0], 1, _mm512_set1_ps(moek_float_(0x7fc00000)));
#define MOEK_BY_(r) \
    scaled ? by * (a.x_scale ? a.x_scale[(size_t)(r) * a.x_scale_row + (size_t)(j / MOEK_PIECE)] : 1) : 1
            l0 = moek_add_piece_avx512_(l0, piece, a.x, scaled, MOEK_BY_(0));
            if (rows > 1) l1 = moek_add_piece_avx512_(l1, piece, a.x + a.x_row, scaled, MOEK_BY_(1));
            if (rows > 2) l2 = moek_add_piece_avx512_(l2, piece, a.x + 2 * a.x_row, scaled, MOEK_BY_(2));
            if (rows > 2) l3 = moek_add_piece_avx512_(l3, piece, a.x + 3 * a.x_row, scaled, MOEK_BY_(3));
#undef MOEK_BY_
        }
#define MOEK_END_(r) if (rows > (r)) \
            sum[r] += unit * moek_sum_lanes_avx2_(_mm512_castps512_ps256(l##r), _mm512_extractf32x8_ps(l##r, 1));
        MOEK_END_(0) MOEK_END_(1) MOEK_END_(2) MOEK_END_(3)
#undef MOEK_END_
    }
}
#define MOEK_V_(x) moek_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#define MOEK_V_X_HALVES moek_x_halves_avx2_
#define MOEK_V_X_QUARTERS moek_x_quarters_avx2_
#include "rows_body.h"
#endif
#endif
