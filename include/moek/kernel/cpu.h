/* moek/kernel/cpu.h -- helpers of the CPU rows: plain C99, any compiler; OpenMP where it is switched on.
 *
 * The loops are written so that a compiler vectorizes them without being allowed to reorder sums: no branch in the
 * body, and sums in MOEK_LANES independent lanes.  So the bits do not depend on the vector width either.            */
#include "numbers.h"                                    /* ahead of the guard, as there */
#ifndef MOEK_CPU_H
#define MOEK_CPU_H
#include "../strict.h"

#if defined(_OPENMP)
#define MOEK_PARALLEL_FOR _Pragma("omp parallel for schedule(dynamic)")
#else
#define MOEK_PARALLEL_FOR
#endif

/* Host only: MOEK_FN would make device functions of them too. */
#if defined(__cplusplus)
#define MOEK_CPU_FN static MOEK_UNUSED inline
#else
#define MOEK_CPU_FN static MOEK_UNUSED __inline
#endif

/* Ask for memory early: decoding fills the window in which a core would find its next loads by itself. */
#if defined(__GNUC__)
#define MOEK_PREFETCH(address) __builtin_prefetch((const void *)(address))
#else
#define MOEK_PREFETCH(address) ((void)(address))
#endif

enum { MOEK_LANES = 16, MOEK_PIECE = 128 };           /* a piece: what is decoded at a time; a group of fp8b128 */

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

/* The `left` bytes of a piece that are there, and zeros; in `tail` if some are missing. */
MOEK_CPU_FN const void *moek_padded_(void *tail, size_t size, const void *from, size_t left)
{
    if (left >= size) return from;
    memset(tail, 0, size);
    memcpy(tail, from, left);
    return tail;
}

#include "../../../generated/moek_element_cpu.h"

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
    float scale[MOEK_PIECE / 2];
    int i, l, p;
    for (i = 0; i < words; i++) scale[i] = w_scale[i * parts / columns] * x_scale[i * parts / columns];
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
    float eight[8], four[4];
    int l;
    for (l = 0; l < 8; l++) eight[l] = lanes[l] + lanes[l + 8];
    for (l = 0; l < 4; l++) four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}
#endif
