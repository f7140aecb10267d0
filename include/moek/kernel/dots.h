/* moek/kernel/dots.h -- loops of the CPU rows over pieces of 128 elements (moek_element_cpu.h decodes them): plain C99,
 * any compiler.
 *
 * The loops are written so that a compiler vectorizes them without being allowed to reorder sums: no branch in the
 * body, and sums in MOEK_LANES independent lanes.  So the bits do not depend on the vector width either.  Codes of 4
 * bits have intrinsics of AVX-512 besides (moek_dot_codes_): the same sums in the same order, with FMA.             */
#ifndef MOEK_DOTS_H
#define MOEK_DOTS_H
#include "../strict.h"
#include "isa.h"
#include "numbers.h"
#include "parallel.h"

/* Host only: MOEK_FN would make device functions of them too. */
#if defined(__cplusplus)
#define MOEK_CPU_FN static MOEK_UNUSED inline
#else
#define MOEK_CPU_FN static MOEK_UNUSED __inline
#endif

/* The same of what kernels with other constants each make a part of themselves. */
#define MOEK_CPU_LOOP_ static MOEK_UNUSED MOEK_INTO_LOOPS_
/* The same of what stays outside, lest a loop's registers go to its constants. */
#if defined(__GNUC__)
#define MOEK_CPU_CALL_ static MOEK_UNUSED __attribute__((noinline))
#else
#define MOEK_CPU_CALL_ static MOEK_UNUSED
#endif

/* Ask for memory early: decoding fills the window in which a core would find its next loads by itself. */
#if defined(__GNUC__)
#define MOEK_PREFETCH(address) __builtin_prefetch((const void *)(address))
#else
#define MOEK_PREFETCH(address) ((void)(address))
#endif
enum { MOEK_AHEAD = 4096 };                            /* so many bytes */

enum { MOEK_LANES = 16, MOEK_PIECE = 128 };           /* a piece: what is decoded at a time; a group of fp8b128 */

/* (nvcc hands this file to its own front end, which need not know intrinsics.  A test asks for each way.) */
#if defined(MOEK_VECTORS_)
#elif defined(__GNUC__) && !defined(__CUDACC__) && defined(__AVX512BW__)
#define MOEK_VECTORS_ 512
#else
#define MOEK_VECTORS_ 0
#endif
#if MOEK_VECTORS_
#include <immintrin.h>
#endif

MOEK_CPU_FN int moek_finite_(float x) { return (moek_bits_(x) & 0x7fffffff) < 0x7f800000; }

/* The bits of the largest |x|, or of `top`.  NaN is above all others. */
MOEK_CPU_FN uint32_t moek_top_(uint32_t top, const float *x, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        const uint32_t magnitude = moek_bits_(x[i]) & 0x7fffffff;
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

/* n numbers to f32. */
MOEK_CPU_FN void moek_decode_t_(float *to, const uint16_t *from, int n, int dtype)
{
    int i;
    if (dtype == MOEK_DTYPE_FP16) for (i = 0; i < n; i++) to[i] = moek_from_fp16_(from[i]);
    else for (i = 0; i < n; i++) to[i] = moek_from_bf16_(from[i]);
}

/* moek_piece_<element>_: a piece to f32, for a dot product of two pieces.  The P elements of a word go to P parts of
 * `to`, each as long as there are words: element k is number k / P of part k % P, in both pieces, and the order does
 * not matter to the sum.  So no lane has to cross a vector.                                                         */
MOEK_CPU_FN uint32_t moek_word_(const void *from, int i)
{
    uint32_t w;
    memcpy(&w, (const char *)from + 4 * i, 4);
    return w;
}

/* A piece in the order of `parts` parts, from its own order of `own`, which are fewer. */
MOEK_CPU_FN void moek_piece_order_(float *to, const float *from, int own, int parts)
{
    const int step = parts / own, words = MOEK_PIECE / parts;
    int b, i, j;
    for (b = 0; b < own; b++)
        for (i = 0; i < words; i++)
            for (j = 0; j < step; j++) to[(j * own + b) * words + i] = from[(b * words + i) * step + j];
}

/* The `left` bytes of a piece that are there, and zeros; in `tail` if some are missing. */
MOEK_CPU_FN const void *moek_padded_(void *tail, size_t size, const void *from, size_t left)
{
    if (left >= size) return from;
    memset(tail, 0, size);
    memcpy(tail, from, left);
    return tail;
}

/* lanes += scale * (w . x) of one piece. */
MOEK_CPU_FN void moek_dot_(float *lanes, const float *w, const float *x, float scale)
{
    int i, l;
    for (l = 0; l < MOEK_LANES; l++) {
        float sum = 0;
        for (i = 0; i < MOEK_PIECE; i += MOEK_LANES) sum += w[i + l] * x[i + l];
        lanes[l] += scale * sum;
    }
}
/* The same where each `columns` of k have scales of their own: of w and of x, one a group. */
MOEK_CPU_FN void moek_dot_groups_(float *lanes, const float *w, const float *x, const float *w_scale,
                                  const float *x_scale, int parts, int columns)
{
    const int words = MOEK_PIECE / parts;
    const int each = columns / parts;                  /* words of a group */
    float scale[MOEK_PIECE];
    int i, l, p;
    for (i = 0; i < words / each; i++) {
        const float of_group = w_scale[i] * x_scale[i];
        for (l = 0; l < each; l++) scale[i * each + l] = of_group;
    }
    for (i = 0; i < words; i += MOEK_LANES) {
        for (l = 0; l < MOEK_LANES; l++) {
            float sum = 0;
            for (p = 0; p < parts; p++) sum += w[p * words + i + l] * x[p * words + i + l];
            lanes[l] += scale[i + l] * sum;
        }
    }
}
/* w - zero, one zero point a group. */
MOEK_CPU_FN void moek_less_zeros_(float *w, const float *zero, int parts, int columns)
{
    const int words = MOEK_PIECE / parts;
    int i, p;
    for (p = 0; p < parts; p++)
        for (i = 0; i < words; i++) w[p * words + i] -= zero[i * parts / columns];
}
MOEK_CPU_FN float moek_sum_lanes_(const float *lanes)
{
#if MOEK_VECTORS_
    const __m256 half = _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float eight[8], four[4];
    int l;
    for (l = 0; l < 8; l++) eight[l] = lanes[l] + lanes[l + 8];
    for (l = 0; l < 4; l++) four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

/* ---- pieces of 4-bit codes, each multiplied by some rows of x ---------------------------------------------------- */

/* zero, scale, x_scale: one for each group of columns of the first piece, then of the next, and 8 floats more that may
 * be read; NULL: 0, 1, 1.  x: pieces in the order of parts, as moek_piece_ has them. */
typedef struct moek_dots_ {
    const float *zero, *scale, *x, *x_scale;
    size_t x_row, x_scale_row;                         /* floats from a row of x to the next                          */
    int rows;
} moek_dots_;

/* lanes[r] += scale * x_scale * ((w - zero) . x) of piece number n, which is decoded. */
MOEK_CPU_FN void moek_dot_piece_(float (*lanes)[MOEK_LANES], float *w, int n, int columns, moek_dots_ a)
{
    static const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const int g = n * (MOEK_PIECE / columns);
    int r;
    if (a.zero) moek_less_zeros_(w, a.zero + g, 8, columns);
    for (r = 0; r < a.rows; r++) {
        const float *const x = a.x + (size_t)r * a.x_row + n * MOEK_PIECE;
        const float *const w_scale = a.scale ? a.scale + g : ones;
        const float *const x_scale = a.x_scale ? a.x_scale + (size_t)r * a.x_scale_row + g : ones;
        if (columns == MOEK_PIECE) moek_dot_(lanes[r], w, x, w_scale[0] * x_scale[0]);
        else moek_dot_groups_(lanes[r], w, x, w_scale, x_scale, 8, columns);
    }
}

#if MOEK_VECTORS_
/* Of each word of codes its group's number: lane i has word i. */
MOEK_CPU_LOOP_ __m512 moek_spread_(const float *of, int columns)
{
#define MOEK_GROUP_(i) (i) * 8 / columns
    const __m512i at = _mm512_setr_epi32(
        MOEK_GROUP_(0), MOEK_GROUP_(1), MOEK_GROUP_(2), MOEK_GROUP_(3), MOEK_GROUP_(4), MOEK_GROUP_(5), MOEK_GROUP_(6),
        MOEK_GROUP_(7), MOEK_GROUP_(8), MOEK_GROUP_(9), MOEK_GROUP_(10), MOEK_GROUP_(11), MOEK_GROUP_(12),
        MOEK_GROUP_(13), MOEK_GROUP_(14), MOEK_GROUP_(15));
#undef MOEK_GROUP_
    return _mm512_permutexvar_ps(at, _mm512_castps256_ps512(_mm256_loadu_ps(of)));
}
/* A piece: w[p] has code p of each word.  VPERMW looks up 32 words at once, codes j and j + 4 of each; the table has
 * bf16 of all codes twice, because five bits choose. */
MOEK_CPU_LOOP_ void moek_unpack_codes_(__m512 w[8], const void *codes, __m512i table)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    __m512i from = _mm512_loadu_si512(codes), two[4];
    int j;
    __asm__("" : "+v"(from));                          /* load once: each shift would load for itself, 10 % slower */
    two[0] = _mm512_permutexvar_epi16(from, table);
    two[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(from, 4), table);
    two[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(from, 8), table);
    two[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(from, 12), table);
    for (j = 0; j < 4; j++) {
        w[j] = _mm512_castsi512_ps(_mm512_slli_epi32(two[j], 16));
        w[j + 4] = _mm512_castsi512_ps(_mm512_and_si512(two[j], high));
    }
}
MOEK_CPU_LOOP_ __m512 moek_dot_row_(__m512 lanes, const __m512 w[8], const float *x, __m512 scale)
{
    __m512 sum = _mm512_mul_ps(w[0], _mm512_loadu_ps(x));
    int p;
    for (p = 1; p < 8; p++) sum = _mm512_fmadd_ps(w[p], _mm512_loadu_ps(x + p * MOEK_LANES), sum);
    return _mm512_fmadd_ps(scale, sum, lanes);
}
MOEK_CPU_LOOP_ void moek_dot_codes_(float (*lanes)[MOEK_LANES], const void *codes, int pieces, int columns,
                                    moek_dots_ a, const uint16_t *table)
{
    const __m512i values = _mm512_loadu_si512(table);
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 first = _mm512_loadu_ps(lanes[0]);          /* of row 0: it stays in a register */
    int n, p, r;
    for (n = 0; n < pieces; n++) {
        const int g = n * (MOEK_PIECE / columns);
        const __m512 scale = a.scale ? moek_spread_(a.scale + g, columns) : one;
        __m512 w[8];
        MOEK_PREFETCH((uintptr_t)codes + (size_t)n * 64 + MOEK_AHEAD);
        moek_unpack_codes_(w, (const char *)codes + (size_t)n * 64, values);
        if (a.zero) {
            const __m512 zero = moek_spread_(a.zero + g, columns);
            for (p = 0; p < 8; p++) w[p] = _mm512_sub_ps(w[p], zero);
        }
        for (r = 0; r < a.rows; r++) {
            const float *const x = a.x + (size_t)r * a.x_row + n * MOEK_PIECE;
            __m512 by = scale;
            if (a.x_scale)
                by = _mm512_mul_ps(by, moek_spread_(a.x_scale + (size_t)r * a.x_scale_row + g, columns));
            if (!r) first = moek_dot_row_(first, w, x, by);
            else _mm512_storeu_ps(lanes[r], moek_dot_row_(_mm512_loadu_ps(lanes[r]), w, x, by));
        }
    }
    _mm512_storeu_ps(lanes[0], first);
}
#endif
#endif
