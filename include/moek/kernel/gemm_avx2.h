/* moek/kernel/gemm_avx2.h -- dots of gemm_cpu.h with AVX2, FMA and F16C (moek/kernel/isa.h).  The bits are plain C's:
 * the same sums in the same order. */
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
/* moek_piece_e4m3_: bits of e4m3 are an fp16 that is 2^8 too small, subnormals included. */
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
/* Of a piece: its 16 products of 8 lanes, MOEK_EVEN_ (vectors of w and x), then MOEK_ODD_, to low and high in turn. */
#define MOEK_SUM_PIECE_ \
    low = _mm256_fmadd_ps(MOEK_EVEN_(0), low); high = _mm256_fmadd_ps(MOEK_EVEN_(1), high); \
    low = _mm256_fmadd_ps(MOEK_EVEN_(2), low); high = _mm256_fmadd_ps(MOEK_EVEN_(3), high); \
    low = _mm256_fmadd_ps(MOEK_EVEN_(4), low); high = _mm256_fmadd_ps(MOEK_EVEN_(5), high); \
    low = _mm256_fmadd_ps(MOEK_EVEN_(6), low); high = _mm256_fmadd_ps(MOEK_EVEN_(7), high); \
    low = _mm256_fmadd_ps(MOEK_ODD_(0), low);  high = _mm256_fmadd_ps(MOEK_ODD_(1), high); \
    low = _mm256_fmadd_ps(MOEK_ODD_(2), low);  high = _mm256_fmadd_ps(MOEK_ODD_(3), high); \
    low = _mm256_fmadd_ps(MOEK_ODD_(4), low);  high = _mm256_fmadd_ps(MOEK_ODD_(5), high); \
    low = _mm256_fmadd_ps(MOEK_ODD_(6), low);  high = _mm256_fmadd_ps(MOEK_ODD_(7), high);
/* Sums of 16 lanes of a piece of bf16, which registers hold: the even columns of 64 words, then the odd ones. */
MOEK_AVX2_INLINE void moek_lanes_bf16_avx2_(__m256 to[2], const __m256i *words, const float *x)
{
    const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
#define MOEK_EVEN_(i) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words + (i)), 16)), \
    _mm256_loadu_ps(x + 8 * (i))
#define MOEK_ODD_(i) _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words + (i)), odd)), \
    _mm256_loadu_ps(x + MOEK_PIECE / 2 + 8 * (i))
    MOEK_SUM_PIECE_
#undef MOEK_EVEN_
#undef MOEK_ODD_
    to[0] = low; to[1] = high;
}
MOEK_AVX2_FN void moek_dots_avx2_bf16_(float (*lanes)[MOEK_LANES], const void *from, int pieces, int columns,
                                       moek_dots_ a)
{
    int n, r, i;
    (void)columns;
    for (n = 0; n < pieces; n++) {
        const char *const at = (const char *)from + (size_t)n * (2 * MOEK_PIECE);
        for (i = 0; i < 2 * MOEK_PIECE; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_AHEAD + i);
        for (r = 0; r < a.rows; r++) {
            __m256 of[2];
            moek_lanes_bf16_avx2_(of, (const __m256i *)(const void *)at,
                                  a.x + (size_t)r * a.x_row + (size_t)n * MOEK_PIECE);
            moek_add_lanes_avx2_(lanes[r], of[0], of[1], _mm256_set1_ps(1));
        }
    }
}

/* ---- whole rows (moek_cpu_rows_) --------------------------------------------------------------------------------- */

enum { MOEK_ROW_AHEAD_AVX2 = 8192 };                   /* bytes that are asked for early */
/* moek_sum_lanes_ */
MOEK_AVX2_INLINE float moek_sum_lanes_avx2_(__m256 low, __m256 high)
{
    const __m256 half = _mm256_add_ps(low, high);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
/* Any rows of x: lanes are in memory. */
MOEK_AVX2_INLINE void moek_row_of_avx2_(float *sum, const void *w, int n, float unit, moek_dots_ a,
                                        moek_dots_fn_ *dots, const int bits)
{
    float lanes[MOEK_CPU_M][MOEK_LANES] MOEK_LINE_ALIGNED_;
    int i, r;
    for (i = 0; i < n; i += MOEK_CPU_RUN) {
        const int left = n - i < MOEK_CPU_RUN ? n - i : MOEK_CPU_RUN;
        memset(lanes, 0, (size_t)a.rows * sizeof *lanes);
        dots(lanes, (const char *)w + (size_t)i * (size_t)bits / 8, left / MOEK_PIECE, MOEK_PIECE, a);
        for (r = 0; r < a.rows; r++)
            sum[r] += moek_sum_lanes_avx2_(_mm256_loadu_ps(lanes[r]), _mm256_loadu_ps(lanes[r] + 8)) * unit;
        a.x += left;
        if (a.scale) a.scale += left / MOEK_PIECE;
        if (a.x_scale) a.x_scale += left / MOEK_PIECE;
    }
}
/* The same of fp16. */
MOEK_AVX2_INLINE void moek_lanes_fp16_avx2_(__m256 to[2], const __m256i *words, const float *x)
{
#define MOEK_LOAD_(i) moek_low_high_avx2_(_mm256_loadu_si256(words + (i)))
    const __m256i w0 = MOEK_LOAD_(0), w1 = MOEK_LOAD_(1), w2 = MOEK_LOAD_(2), w3 = MOEK_LOAD_(3);
    const __m256i w4 = MOEK_LOAD_(4), w5 = MOEK_LOAD_(5), w6 = MOEK_LOAD_(6), w7 = MOEK_LOAD_(7);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
#define MOEK_EVEN_(i) _mm256_cvtph_ps(_mm256_castsi256_si128(w##i)), _mm256_loadu_ps(x + 8 * (i))
#define MOEK_ODD_(i) _mm256_cvtph_ps(_mm256_extracti128_si256(w##i, 1)), \
    _mm256_loadu_ps(x + MOEK_PIECE / 2 + 8 * (i))
    MOEK_SUM_PIECE_
#undef MOEK_LOAD_
#undef MOEK_EVEN_
#undef MOEK_ODD_
    to[0] = low; to[1] = high;
}
#undef MOEK_SUM_PIECE_
/* One row of x: lanes stay in registers. */
MOEK_AVX2_INLINE void moek_row_of_one_avx2_(float *sum, const void *w, int n, const float *x, const int element)
{
    const __m256i *at = (const __m256i *)w;
    int i, j, b, end;
    for (i = 0; i < n; i = end) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps(), of[2];
        end = n - i < MOEK_CPU_RUN ? n : i + MOEK_CPU_RUN;
        for (j = i; j < end; j += MOEK_PIECE, at += 8, x += MOEK_PIECE) {
            for (b = 0; b < 2 * MOEK_PIECE; b += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_ROW_AHEAD_AVX2 + (uintptr_t)b);
            if (element == MOEK_ELEMENT_BF16) moek_lanes_bf16_avx2_(of, at, x);
            else moek_lanes_fp16_avx2_(of, at, x);
            low = _mm256_add_ps(low, of[0]);
            high = _mm256_add_ps(high, of[1]);
        }
        *sum += moek_sum_lanes_avx2_(low, high);
    }
}
/* moek_piece_bf16_ */
MOEK_AVX2_INLINE void moek_put_bf16_avx2_(float *to, const void *from)
{
    int i;
    for (i = 0; i < MOEK_PIECE / 16; i++) {
        const __m256i words = _mm256_loadu_si256((const __m256i *)from + i);
        _mm256_storeu_ps(to + 8 * i, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
        _mm256_storeu_ps(to + MOEK_PIECE / 2 + 8 * i,
                         _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u))));
    }
}
MOEK_AVX2_INLINE void moek_put_t_avx2_(float *to, const void *from, int dtype)
{
    if (dtype == MOEK_DTYPE_FP16) moek_piece_fp16_avx2_(to, from);
    else moek_put_bf16_avx2_(to, from);
}
/* A piece of x in the order of pieces of 16 bits, and of 8. */
MOEK_AVX2_FN void moek_x_halves_avx2_(float *to, const void *from, int element, int dtype)
{
    moek_put_t_avx2_(to, from, element == MOEK_ELEMENT_T ? dtype
                               : element == MOEK_ELEMENT_FP16 ? (int)MOEK_DTYPE_FP16 : (int)MOEK_DTYPE_BF16);
}
MOEK_AVX2_FN void moek_x_quarters_avx2_(float *to, const void *from, int element, int dtype)
{
    float own[MOEK_PIECE];
    int i, h;
    if (element == MOEK_ELEMENT_E4M3) {
        moek_piece_e4m3_avx2_(to, from);
        return;
    }
    moek_put_t_avx2_(own, from, dtype);
    for (h = 0; h < 2; h++)                            /* even columns are the first and third of four, odd ones .. */
        for (i = 0; i < MOEK_PIECE / 4; i += 8) {
            const float *const at = own + h * MOEK_PIECE / 2 + 2 * i;
            const __m256 a = _mm256_loadu_ps(at), b = _mm256_loadu_ps(at + 8);
            const __m256d first = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
            const __m256d last = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
            _mm256_storeu_pd((double *)(void *)(to + h * MOEK_PIECE / 4 + i), _mm256_permute4x64_pd(first, 0xd8));
            _mm256_storeu_pd((double *)(void *)(to + (h + 2) * MOEK_PIECE / 4 + i), _mm256_permute4x64_pd(last, 0xd8));
        }
}
#define MOEK_ROW_(name, ELEMENT, bits) \
    MOEK_AVX2_FN void moek_row_##name##_avx2_(float *sum, const void *w, int n, float unit, moek_dots_ a) \
    { \
        if ((bits) == 16 && a.rows == 1) moek_row_of_one_avx2_(sum, w, n, a.x, ELEMENT); \
        else moek_row_of_avx2_(sum, w, n, unit, a, moek_dots_avx2_##name##_, bits); \
    }
MOEK_ROW_(bf16, MOEK_ELEMENT_BF16, 16)
MOEK_ROW_(fp16, MOEK_ELEMENT_FP16, 16)
MOEK_ROW_(e4m3, MOEK_ELEMENT_E4M3, 8)
#undef MOEK_ROW_
static MOEK_UNUSED const moek_cpu_rows_ moek_rows_bf16_avx2_ = { moek_row_bf16_avx2_, moek_x_halves_avx2_ };
static MOEK_UNUSED const moek_cpu_rows_ moek_rows_fp16_avx2_ = { moek_row_fp16_avx2_, moek_x_halves_avx2_ };
static MOEK_UNUSED const moek_cpu_rows_ moek_rows_e4m3_avx2_ = { moek_row_e4m3_avx2_, moek_x_quarters_avx2_ };
#endif
#endif
