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

/* n numbers to f32. */
MOEK_CPU_FN void moek_decode_t_(float *to, const uint16_t *from, int n, int dtype)
{
    int i;
    if (dtype == MOEK_DTYPE_FP16) for (i = 0; i < n; i++) to[i] = moek_from_fp16_(from[i]);
    else for (i = 0; i < n; i++) to[i] = moek_from_bf16_(from[i]);
}

/* A piece to f32, for a dot product of two pieces of the same kind.  The numbers of a word go to different parts of
 * `to`, in an order that is the same for both and does not matter to the sum: so no lane has to cross a vector.     */
MOEK_CPU_FN uint32_t moek_word_(const void *from, int i)
{
    uint32_t w;
    memcpy(&w, (const char *)from + 4 * i, 4);
    return w;
}
MOEK_CPU_FN void moek_piece_bf16_(float *to, const void *from)
{
    enum { W = MOEK_PIECE / 2 };
    int i;
    for (i = 0; i < W; i++) {
        const uint32_t w = moek_word_(from, i);
        to[i] = moek_float_(w << 16);
        to[i + W] = moek_float_(w & 0xffff0000);
    }
}

/* The `left` bytes of a piece that are there, and zeros; in `tail` if some are missing. */
MOEK_CPU_FN const void *moek_padded_(void *tail, size_t size, const void *from, size_t left)
{
    if (left >= size) return from;
    memset(tail, 0, size);
    memcpy(tail, from, left);
    return tail;
}

/* f is right but for subnormals, where g is; that is exact, is the smaller of the two there, and else the larger. */
MOEK_CPU_FN float moek_unpack_fp16_(uint32_t sign, uint32_t magnitude)
{
    const uint32_t f = magnitude + (112u << 23), g = moek_bits_(2.0f * moek_float_(f) - 6.103515625e-05f);  /* 2^-14 */
    const uint32_t infinite = magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0;
    return moek_float_((f < g ? f : g) | infinite | (sign & 0x80000000));
}
MOEK_CPU_FN void moek_piece_fp16_(float *to, const void *from)
{
    enum { W = MOEK_PIECE / 2 };
    int i;
    for (i = 0; i < W; i++) {
        const uint32_t w = moek_word_(from, i);
        to[i] = moek_unpack_fp16_(w << 16, w << 13 & 0x0fffe000);
        to[i + W] = moek_unpack_fp16_(w, w >> 3 & 0x0fffe000);
    }
}

/* Likewise, and 2^-8 of the value, which saves an operation; one factor of a product, by MOEK_E4M3_UNIT, makes up for
 * both.  A NaN among the 128 spoils the whole sum, so it is enough to make the first one NaN.                       */
#define MOEK_E4M3_UNIT 65536.0f
MOEK_CPU_FN float moek_unpack_e4m3_(uint32_t sign, uint32_t magnitude)
{
    const uint32_t f = (magnitude & 0x07f00000) | 112u << 23, g = moek_bits_(2.0f * moek_float_(f) - 6.103515625e-05f);
    return moek_float_((f < g ? f : g) | (sign & 0x80000000));
}
MOEK_CPU_FN void moek_piece_e4m3_(float *to, const void *from)
{
    enum { W = MOEK_PIECE / 4 };
    uint32_t nan = 0;
    int i;
    for (i = 0; i < W; i++) {
        const uint32_t w = moek_word_(from, i);
        to[i] = moek_unpack_e4m3_(w << 24, w << 20);
        to[i + W] = moek_unpack_e4m3_(w << 16, w << 12);
        to[i + 2 * W] = moek_unpack_e4m3_(w << 8, w << 4);
        to[i + 3 * W] = moek_unpack_e4m3_(w, w >> 4);
        nan |= ((w & 0x7f7f7f7f) + 0x01010101) & 0x80808080;
    }
    if (nan) to[0] = moek_float_(0x7fc00000);
}

/* n numbers to e4m3: the bytes of moek_to_e4m3_, without a branch.  Below 2^-6, adding 2^14 rounds to a multiple of
 * 2^-9 and leaves that multiple in the low bits.                                                                    */
MOEK_CPU_FN void moek_encode_e4m3_(uint8_t *to, const float *from, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        const uint32_t u = moek_bits_(from[i]), a = u & 0x7fffffff;
        const uint32_t normal = (a - (120u << 23) + 0x7ffff + ((a >> 20) & 1)) >> 20;
        const uint32_t small = moek_bits_(moek_float_(a) + 16384.0f) - 0x46800000;
        uint32_t m = a < 0x3c800000 ? small : normal;
        m = a >= 0x43e00000 ? 0x7e : m;                                                          /* 448 and above */
        m = a > 0x7f800000 ? 0x7f : m;
        to[i] = (uint8_t)(m | (u >> 24 & 0x80));
    }
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
MOEK_CPU_FN float moek_sum_lanes_(const float *lanes)
{
    float eight[8], four[4];
    int l;
    for (l = 0; l < 8; l++) eight[l] = lanes[l] + lanes[l + 8];
    for (l = 0; l < 4; l++) four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}
#endif
