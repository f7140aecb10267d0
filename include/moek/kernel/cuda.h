/* moek/kernel/cuda.h -- helpers of the CUDA rows: instructions (ptx.h), elements and formats, and what is made of them
 * in plain C. */
#ifndef MOEK_CUDA_H
#define MOEK_CUDA_H
#include "ptx.h"
#include "../../../generated/moek_formats.h"             /* elements, and formats */

/* In launchers of GEMMs: the bytes of a row of a, where none are given; the halves of w and their scales (in_memory: in
 * the order of memory); and global scales and zero points. */
template <class Format> static MOEK_UNUSED void moek_find_gemm_(moek_gemm_ *a, int in_memory)
{
    if (!a->a_row_bytes) a->a_row_bytes = (int)((size_t)a->k * Format::X_BITS / 8);
    moek_find_gate_up_of_(a, Format::W_BITS, Format::W_SCALE_BITS, Format::W_SCALE_ROWS, Format::W_SCALE_COLUMNS,
                         in_memory);
}

/* ---- Helpers in plain C, for the SIMT rows. ---- */

MOEK_DEVICE moek_words_ moek_zero_words_(void)
{
    const moek_words_ v = {{0, 0, 0, 0}};
    return v;
}

/* What one block hands another needs no flag: T are stored as their complement, and 0 is what is not there yet.  (Two
 * NaNs become one.  By the letter of PTX, stores of 2 bytes and loads of 16 race; each T is whole all the same.) */
MOEK_DEVICE uint16_t moek_not_t_(uint16_t t) { return t == 0xffff ? 1 : (uint16_t)~t; }
MOEK_DEVICE moek_words_ moek_not_words_(moek_words_ v)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) v.w[i] = ~v.w[i];
    return v;
}
MOEK_DEVICE int moek_all_there_(moek_words_ v)                        /* none of eight is 0 */
{
    uint32_t zero = 0;
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) zero |= (v.w[i] - 0x00010001) & ~v.w[i] & 0x80008000;
    return !zero;
}

/* Eight T from memory, by one load if `whole` (all are there, and aligned to 16 bytes), else the first n and zeros. */
MOEK_DEVICE moek_words_ moek_load8_(const uint16_t *from, int n, int whole)
{
    moek_words_ r = moek_zero_words_();
    int i;
    if (whole) return moek_load_words_(from);
    #pragma unroll
    for (i = 0; i < 8; i++) if (i < n) r.w[i / 2] |= (uint32_t)from[i] << 16 * (i % 2);
    return r;
}
MOEK_DEVICE void moek_store8_(uint16_t *to, moek_words_ v, int n, int whole)
{
    int i;
    if (whole) {
        moek_store_words_(to, v);
        return;
    }
    #pragma unroll
    for (i = 0; i < 8; i++) if (i < n) to[i] = (uint16_t)(v.w[i / 2] >> 16 * (i % 2));
}
MOEK_DEVICE void moek_from_t8_(float f[8], moek_words_ v, int dtype)
{
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) moek_from_t2_(f + 2 * i, v.w[i], dtype);
}
MOEK_DEVICE moek_words_ moek_to_t8_(const float f[8], int dtype)
{
    moek_words_ r;
    int i;
    #pragma unroll
    for (i = 0; i < 4; i++) r.w[i] = moek_to_t2_(f[2 * i], f[2 * i + 1], dtype);
    return r;
}

/* x / s, rounded as a division is, by inverse = 1 / s: two steps of the remainder, where a division by itself would
 * find its reciprocal, and look for s too small or too large, each time.  For s >= 2^-100, or Inf. */
MOEK_DEVICE float moek_divide_(float x, float s, float inverse)
{
    float y = x * inverse;
    if (!(inverse > 0) || !(fabsf(y) < INFINITY)) return y;          /* s or x is Inf, or x NaN */
    y = fmaf(fmaf(-s, y, x), inverse, y);
    return fmaf(fmaf(-s, y, x), inverse, y);
}

/* As quant (moek/ops.h) does it: the scale of a group of fp8b128 by its largest |x|, x / s, and fp8t's x * (1 / s). */
MOEK_DEVICE float moek_group_scale_(float top, int ue8m0)
{
    const float s = __fdiv_rn(fmaxf(top, 1e-10f), 448.0f);
    return ue8m0 ? moek_float_(moek_ue8m0_(fmaxf(s, 1e-10f)) << 23) : s;
}
MOEK_DEVICE float moek_by_scale_(float x, float s, float inverse)
{
    return copysignf(moek_divide_(x, s, inverse), x);                 /* the sign matters to NaN */
}
MOEK_DEVICE float moek_by_static_(float x, float inverse)
{
    const float nan = moek_float_(0x7fc00000 | (moek_bits_(x) & 0x80000000));
    return !(fabsf(x) < INFINITY) ? nan : inverse < INFINITY ? x * inverse : 0;
}

/* The same where all of a group is finite, in a quarter of the instructions: the largest |x| of eight T, as bits; the
 * scale; what moek_e4m3_of_t8_ multiplies by; the codes.
 *
 * y = x * high + x * low, where high is a little less than 1 / s (so that low > 0, and -0 stays -0) and low the rest.
 * That is x / s but for about 2^-42 of it, and e4m3 of both is the same: of all T x and top with |x| <= top, both T, s
 * of fp8b128 with and without ue8m0 and of fp8c, and each `high` that moek_about_one_over_ may lead to, all were tried.
 * (With s above 2^104 low is a denormal: compiled to flush those, an exact tie may go the other way.) */
typedef struct moek_inverse_ { float high, low; } moek_inverse_;
MOEK_DEVICE uint32_t moek_max_t8_(moek_words_ x, int dtype)
{
    return moek_max_t2_(moek_max_t2_(x.w[0], x.w[1], dtype), moek_max_t2_(x.w[2], x.w[3], dtype), dtype);
}
MOEK_DEVICE int moek_finite_t_(uint32_t most, int dtype)
{
    return most < (dtype == MOEK_DTYPE_FP16 ? 0x7c00 : 0x7f80);
}
MOEK_DEVICE float moek_finite_scale_(float top, int ue8m0)
{
    const float t = fmaxf(top, 1e-10f), y = t * (1.0f / 448.0f);
    const float s = fmaf(fmaf(-448.0f, y, t), 1.0f / 448.0f, y);
    return ue8m0 ? moek_float_(moek_ue8m0_(fmaxf(s, 1e-10f)) << 23) : s;
}
MOEK_DEVICE moek_inverse_ moek_invert_(float s)
{
    moek_inverse_ by;
    by.high = moek_float_(moek_bits_(moek_about_one_over_(s)) - 2);
    by.low = fmaf(-s, by.high, 1.0f) * by.high;
    return by;
}
MOEK_DEVICE uint2 moek_e4m3_of_t8_(moek_words_ x, moek_inverse_ by, int dtype)
{
    float y[8];
    int i;
    moek_from_t8_(y, x, dtype);
    #pragma unroll
    for (i = 0; i < 8; i++) y[i] = fmaf(y[i], by.high, y[i] * by.low);
    return make_uint2(moek_numbers_to_e4m3x4_(y[0], y[1], y[2], y[3]),
                      moek_numbers_to_e4m3x4_(y[4], y[5], y[6], y[7]));
}

/* fp8t: codes of eight columns, by 1 / scale. */
MOEK_DEVICE uint2 moek_static_codes_(moek_words_ x, float inverse, int dtype)
{
    float f[8];
    int i;
    moek_from_t8_(f, x, dtype);
    #pragma unroll
    for (i = 0; i < 8; i++) f[i] = moek_by_static_(f[i], inverse);
    return moek_to_e4m3x8_(f);
}
/* fp8b128: the scale of a group of 128 columns, which is returned, and its codes.  A lane has 8 * parts of the columns,
 * `lanes` (a power of 2) lanes side by side have the group.  All lanes of a warp come here together. */
MOEK_DEVICE float moek_group_codes_(uint2 *q, const moek_words_ *x, int parts, int lanes, int ue8m0, int dtype)
{
    uint32_t most = moek_max_t8_(x[0], dtype);
    float s, top = 0, f[8];
    moek_inverse_ by;
    int h, i;
    #pragma unroll
    for (h = 1; h < parts; h++) most = moek_max_t2_(most, moek_max_t8_(x[h], dtype), dtype);
    #pragma unroll
    for (i = lanes / 2; i; i /= 2) most = moek_max_t2_(most, __shfl_xor_sync(0xffffffff, most, i), dtype);
    most = moek_max_t2_(most, most >> 16, dtype) & 0x7fff;
    if (__all_sync(0xffffffff, moek_finite_t_(most, dtype))) {
        moek_from_t2_(f, most, dtype);
        s = moek_finite_scale_(f[0], ue8m0);
        by = moek_invert_(s);
        #pragma unroll
        for (h = 0; h < parts; h++) q[h] = moek_e4m3_of_t8_(x[h], by, dtype);
        return s;
    }
    #pragma unroll
    for (h = 0; h < parts; h++) {
        moek_from_t8_(f, x[h], dtype);
        #pragma unroll
        for (i = 0; i < 8; i++) top = fmaxf(top, fabsf(f[i]));       /* NaN is passed over */
    }
    #pragma unroll
    for (i = lanes / 2; i; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, i));
    if (top < INFINITY) {
        s = moek_finite_scale_(top, ue8m0);
        by = moek_invert_(s);
    } else {                                                          /* then 1 / s is the sum of equal parts */
        s = ue8m0 ? moek_float_(0x7f000000) : INFINITY;
        by.high = by.low = ue8m0 ? moek_float_(1 << 21) : 0;
    }
    #pragma unroll
    for (h = 0; h < parts; h++) {
        moek_from_t8_(f, x[h], dtype);
        #pragma unroll
        for (i = 0; i < 8; i++) f[i] = copysignf(fmaf(f[i], by.high, f[i] * by.low), f[i]);    /* NaN has a sign */
        q[h] = moek_to_e4m3x8_(f);
    }
    return s;
}
/* mxfp8: the e8m0 of a group, which is returned, and codes: of eight columns of this lane; `lanes` lanes side by side
 * have the group.  All lanes of a warp come here together. */
MOEK_DEVICE uint32_t moek_e8m0_codes_(uint2 *q, moek_words_ x, int lanes, int dtype)
{
    float f[8], top = 0, inverse;
    uint32_t code;
    int i;
    moek_from_t8_(f, x, dtype);
    #pragma unroll
    for (i = 0; i < 8; i++) top = fmaxf(top, fabsf(f[i]));           /* NaN is passed over */
    #pragma unroll
    for (i = lanes / 2; i; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, i));
    code = moek_to_e8m0_(__fdiv_rn(top, 448.0f));
    inverse = moek_float_(code == 254 ? 0x00400000 : (254 - code) << 23);            /* 2^(127 - code) */
    #pragma unroll
    for (i = 0; i < 8; i++) f[i] = copysignf(f[i] * inverse, f[i]);
    *q = moek_to_e4m3x8_(f);
    return code;
}
/* nvfp4_a4: the e4m3 of a group of 16 under the scale `all`, and the codes of two lanes; over: 1 / all, or 0. */
MOEK_DEVICE uint32_t moek_e2m1_codes_(uint32_t *q, moek_words_ x, float all, float over, int dtype)
{
    float f[8], s, factor;
    uint32_t most = 0, code;
    int i;
    moek_from_t8_(f, x, dtype);
    #pragma unroll
    for (i = 0; i < 8; i++) most = max(most, moek_bits_(f[i]) & 0x7fffffff);         /* NaN is larger than Inf */
    most = max(most, __shfl_xor_sync(0xffffffff, most, 1));
    s = over * (moek_float_(most) * (1.0f / 6.0f));
    code = most < 0x7f800000 ? moek_to_e4m3_(s) : 0x7f;
    s = moek_from_e4m3_((uint8_t)code);
    factor = s > 0 ? __fdiv_rn(1.0f, s * all) : 0.0f;
    if (!(fabsf(factor) < INFINITY)) factor = 3.402823466e38f;
    *q = 0;
    #pragma unroll
    for (i = 0; i < 8; i++) *q |= (uint32_t)moek_to_e2m1_(f[i] * factor) << 4 * i;
    return code;
}

/* Floats as unsigned numbers of the same order; -0 is +0, and no number is 0. */
MOEK_DEVICE uint32_t moek_order_(float f)
{
    const uint32_t u = moek_bits_(f);
    return f == 0.0f ? 0x80000000 : u & 0x80000000 ? ~u : u | 0x80000000;
}
MOEK_DEVICE float moek_unorder_(uint32_t order)
{
    return moek_float_(order & 0x80000000 ? order & 0x7fffffff : ~order);
}

/* Do rows of so many bytes, one behind the other, each have their lines of L2 to themselves? */
static MOEK_UNUSED int moek_whole_lines_(const void *rows, size_t bytes)
{
    return (uintptr_t)rows % 128 == 0 && bytes % 128 == 0;
}

/* n / d by a multiplication, for n < 2^31: a division takes 100 clocks, and there are a dozen before a block knows what
 * to do.  m = floor(2^(31 + s) / d) + 1 with 2^s >= d is off by less than 2^s / 2^(31 + s) of itself. */
typedef struct moek_fastdiv { uint32_t m, s; } moek_fastdiv;
static MOEK_UNUSED moek_fastdiv moek_fastdiv_of_(unsigned d)
{
    moek_fastdiv o = { 0, 0 };
    while ((uint64_t)1 << o.s < d) o.s++;
    o.m = (uint32_t)(((uint64_t)1 << (31 + o.s)) / d + 1);
    return o;
}
MOEK_DEVICE unsigned moek_fastdiv_(unsigned n, moek_fastdiv d) { return (unsigned)((uint64_t)n * d.m >> (31 + d.s)); }

/* n / d for n < 2^23 and d > 0, as long as nobody can know d before: a division takes three times as long. */
MOEK_DEVICE int moek_quotient_(int n, int d)
{
    int q = (int)((float)n * __frcp_rn((float)d));
    q += (q + 1) * d <= n;
    return q - (q * d > n);
}

/* What is of a half.  (By an index that is no constant the compiler would keep a copy of the parameters in memory.) */
#define MOEK_HALF_(array, half) ((half) ? (array)[1] : (array)[0])
/* Scales whose type the format says, where it is f32. */
#define MOEK_F32_(scales) ((const float *)(scales))
/* fp8b128: scales of row j of expert e, of half 0 or 1; row: how many there are of a row. */
MOEK_DEVICE const float *moek_scales_of_(const moek_gate_up_ *h, int half, int e, int j, int row)
{
    const size_t at = (size_t)e * h->scale_rows + (MOEK_HALF_(h->shift, half) + j * h->step) / 128;
    return MOEK_HALF_(h->scales, half) + at * row;
}

/* Over the 32 lanes of a warp; the sum is in the same order in every run.  NaN passes the maximum by. */
MOEK_DEVICE float moek_warp_sum_(float f)
{
    int by;
    #pragma unroll
    for (by = 16; by; by /= 2) f += __shfl_xor_sync(0xffffffff, f, by);
    return f;
}
MOEK_DEVICE float moek_warp_max_(float f)
{
    return moek_unorder_(__reduce_max_sync(0xffffffff, f == f ? moek_order_(f) : 0u));
}

/* Until there are n. */
MOEK_DEVICE void moek_flag_reach_(const int32_t *flag, int n)
{
    while (moek_flag_read_(flag) < n) continue;
}

/* As moek_act_silu_ without a limit, by the approximate exp and reciprocal: within 1e-6. */
MOEK_DEVICE float moek_fast_silu_(float g, float u) { return __fdividef(g, 1.0f + __expf(-g)) * u; }
#endif
