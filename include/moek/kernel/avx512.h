/* moek/kernel/avx512.h -- helpers of the rows of arch avx512: AVX-512 with VNNI (moek/kernel/isa.h).  The bits are
 * plain C's in digits.h. */
#include "avx2.h"
#include "../../../generated/moek_blocks_avx512.h"
#ifndef MOEK_AVX512_H
#define MOEK_AVX512_H
#if MOEK_HAVE_X86_

/* 64 bytes of codes as the instructions take them: [0] even columns, [1] odd ones. */
MOEK_AVX512_INLINE void moek_codes_avx512_(__m512i to[2], __m512i codes, int element)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i e2m1 = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24,
                                                              12, 11, 10, 9, 8, 6, 4, 0));
    if (element == MOEK_ELEMENT_S8) {
        to[0] = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8);
        to[1] = _mm512_srai_epi16(codes, 8);
        return;
    }
    to[0] = _mm512_and_si512(codes, low);
    to[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
    if (element != MOEK_ELEMENT_E2M1) return;
    to[0] = _mm512_shuffle_epi8(e2m1, to[0]);
    to[1] = _mm512_shuffle_epi8(e2m1, to[1]);
}
/* sum + codes times a digit (s8: words). */
MOEK_AVX512_INLINE __m512i moek_sums_of_avx512_(__m512i sum, const __m512i codes[2], const int8_t *digit, int element)
{
    const __m512i even = _mm512_loadu_si512(digit), odd = _mm512_loadu_si512(digit + MOEK_CHUNK);
    if (element == MOEK_ELEMENT_S8) return _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(sum, codes[0], even), codes[1], odd);
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, codes[0], even), codes[1], odd);
}
/* lanes += a chunk, whose codes are there, of one row of x. */
MOEK_AVX512_INLINE __m512 moek_add_chunk_avx512_(__m512 lanes, const __m512i codes[2], const moek_x_chunk_ *x,
                                                 __m512 of_w, __m512i zero, int element, int kind)
{
    const int s8 = element == MOEK_ELEMENT_S8;
    const __m512i none = _mm512_setzero_si512();
    __m512i d = moek_sums_of_avx512_(none, codes, x->digit[0], element), less;
    __m512 f;
    if (!s8) {
        d = _mm512_add_epi32(d, _mm512_slli_epi32(moek_sums_of_avx512_(none, codes, x->digit[1], element), 8));
        less = _mm512_loadu_si512(x->less[0]);
        if (kind & MOEK_DOTS_ZERO) less = _mm512_mullo_epi32(less, zero);
        d = _mm512_sub_epi32(d, less);
    }
    f = _mm512_cvtepi32_ps(d);
    if (kind & MOEK_DOTS_DENSE) {
        d = moek_sums_of_avx512_(none, codes, x->digit[s8 ? 1 : 2], element);
        if (!s8) {
            less = _mm512_loadu_si512(x->less[1]);
            if (kind & MOEK_DOTS_ZERO) less = _mm512_mullo_epi32(less, zero);
            d = _mm512_sub_epi32(d, less);
        }
        f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_set1_ps(0.00390625f), f);
    }
    if (kind & MOEK_DOTS_SCALED) of_w = _mm512_mul_ps(of_w, _mm512_loadu_ps(x->by));
    return _mm512_fmadd_ps(_mm512_mul_ps(f, _mm512_loadu_ps(x->s)), of_w, lanes);
}
/* A run of a row of w and of `rows` rows of x, 1, 2 or 4. */
MOEK_AVX512_INLINE void moek_dot_row_avx512_(double *sum, const moek_w_run_ *w, const moek_w_one_ *one,
                                             const float *scale, const int32_t *zero_of, const moek_lane_scales_ *to,
                                             const moek_x_run_ *const *x, const int rows, const int element,
                                             const int kind)
{
    const int step = moek_chunk_scales_(w, element);
    const moek_x_chunk_ *const x0 = x[0]->chunk, *const x1 = x[rows > 1]->chunk;
    const moek_x_chunk_ *const x2 = x[rows > 2 ? 2 : 0]->chunk, *const x3 = x[rows > 2 ? 3 : 0]->chunk;
    const __m512i spread = _mm512_loadu_si512(to->at);
    const uint8_t *at = one->codes;
    __m512 lanes[4];
    int c, r;
    for (r = 0; r < 4; r++) lanes[r] = _mm512_setzero_ps();
    for (c = 0; c < one->chunks; c++, at += MOEK_CHUNK) {
        /* (From where it was stored: a load of parts of two stores waits for both.) */
        const __m512i from = _mm512_add_epi32(spread, _mm512_set1_epi32(step * c & 7));
        const __m512 of_w =
            _mm512_permutexvar_ps(from, _mm512_castps256_ps512(_mm256_loadu_ps(scale + (step * c & ~7))));
        __m512i codes[2], zero = _mm512_setzero_si512();
        MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD);
        if (kind & MOEK_DOTS_ZERO)
            zero = _mm512_permutexvar_epi32(from, _mm512_castsi256_si512(
                _mm256_loadu_si256((const __m256i *)(zero_of + (step * c & ~7)))));
        moek_codes_avx512_(codes, _mm512_loadu_si512(at), element);
        lanes[0] = moek_add_chunk_avx512_(lanes[0], codes, x0 + c, of_w, zero, element, kind);
        if (rows > 1) lanes[1] = moek_add_chunk_avx512_(lanes[1], codes, x1 + c, of_w, zero, element, kind);
        if (rows > 2) lanes[2] = moek_add_chunk_avx512_(lanes[2], codes, x2 + c, of_w, zero, element, kind);
        if (rows > 2) lanes[3] = moek_add_chunk_avx512_(lanes[3], codes, x3 + c, of_w, zero, element, kind);
    }
    for (r = 0; r < rows; r++) {
        __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes[r]), _mm512_extractf32x8_ps(lanes[r], 1));
        if (!(kind & MOEK_DOTS_DENSE))
            eight = _mm256_add_ps(eight, moek_list_avx2_(one->codes, scale, kind & MOEK_DOTS_ZERO ? zero_of : NULL,
                                                         x[r], element));
        else eight = _mm256_add_ps(eight, _mm256_setzero_ps());
        sum[r] = (float)sum[r] + moek_add_eight_avx2_(eight);
    }
}
#define moek_run_scales_avx512_ moek_run_scales_avx2_
#define MOEK_V_(x) moek_##x##_avx512_
#define MOEK_V_FN MOEK_AVX512_FN
#define MOEK_V_INLINE MOEK_AVX512_INLINE
#include "digits_body.h"
#undef moek_run_scales_avx512_

MOEK_AVX512_FN void moek_sums_avx512_(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    int i, run, r, c;
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++)
            for (r = 0; r < rows; r++) {
                const moek_w_one_ one = moek_w_one_of_(w, i, run);
                const uint8_t *at = one.codes;
                __m512i lanes = _mm512_setzero_si512();
                for (c = 0; c < one.chunks; c++, at += MOEK_CHUNK) {
                    __m512i codes[2];
                    MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD);
                    moek_codes_avx512_(codes, _mm512_loadu_si512(at), MOEK_ELEMENT_S8);
                    lanes = moek_sums_of_avx512_(lanes, codes, x[run * rows + r]->chunk[c].digit[0], MOEK_ELEMENT_S8);
                }
                w->sum[(size_t)i * w->sum_step][r] += _mm512_reduce_add_epi32(lanes);
            }
}
static MOEK_UNUSED const moek_set_ moek_set_avx512_ = {
    moek_encode_avx2_, moek_decode_avx2_, moek_place_avx2_, moek_dots_avx512_, moek_sums_avx512_, 1
};
#endif
#endif
