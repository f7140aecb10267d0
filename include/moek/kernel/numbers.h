/* moek/kernel/numbers.h -- what host and device code share: linkage words; bf16, fp16 and e4m3 by integer
 * arithmetic. */
#include "../../moek.h"                                   /* ahead of the guard: an implementation needs this */
#ifndef MOEK_COMMON_H
#define MOEK_COMMON_H
#include <math.h>
#include <string.h>

#if defined(__GNUC__)
#define MOEK_UNUSED __attribute__((unused))
#else
#define MOEK_UNUSED
#endif
#if defined(__CUDACC__)
#define MOEK_FN static MOEK_UNUSED __host__ __device__ __forceinline__
#elif defined(__cplusplus)
#define MOEK_FN static MOEK_UNUSED inline
#else
#define MOEK_FN static MOEK_UNUSED __inline
#endif

/* A launcher is static, so that two programs' kernels never meet; in split mode each is an object of its own. */
#if !defined(MOEK_SPLIT)
#define MOEK_LAUNCHER static MOEK_UNUSED moek_status
#elif defined(__cplusplus)
#define MOEK_LAUNCHER extern "C" moek_status
#else
#define MOEK_LAUNCHER moek_status
#endif

MOEK_FN uint32_t moek_bits_(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
MOEK_FN float moek_float_(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* bf16: round to nearest even; NaN stays NaN. */
MOEK_FN float moek_from_bf16_(uint16_t b) { return moek_float_((uint32_t)b << 16); }
MOEK_FN uint16_t moek_to_bf16_(float f)
{
    const uint32_t u = moek_bits_(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* fp16: round to nearest even; overflow to Inf; subnormals exact. */
MOEK_FN float moek_from_fp16_(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return moek_float_(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return moek_float_(sign | ((magnitude << 13) + (112u << 23)));
    return moek_float_(sign | moek_bits_((float)magnitude * (1.0f / 16777216.0f)));
}
MOEK_FN uint16_t moek_to_fp16_(float f)
{
    const uint32_t u = moek_bits_(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                       /* 65520 and above */
    if (a >= 0x38800000) return (uint16_t)(sign | ((a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13));
    return (uint16_t)(sign | (uint32_t)rintf(moek_float_(a) * 16777216.0f));     /* subnormal: a multiple of 2^-24 */
}

/* e4m3 (fn): 4 exponent bits of bias 7, largest 448, no Inf, 0x7f is NaN.  To: nearest even, saturating; NaN stays. */
MOEK_FN float moek_from_e4m3_(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80) << 24, magnitude = b & 0x7f;
    if (magnitude == 0x7f) return moek_float_(sign | 0x7fc00000);
    if (magnitude >= 8) return moek_float_(sign | ((magnitude << 20) + (120u << 23)));
    return moek_float_(sign | moek_bits_((float)magnitude * (1.0f / 512.0f)));
}
MOEK_FN uint8_t moek_to_e4m3_(float f)
{
    const uint32_t u = moek_bits_(f), sign = (u >> 24) & 0x80, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (a >= 0x43e00000) return (uint8_t)(sign | 0x7e);                          /* 448 and above */
    if (a >= 0x3c800000) {                                                       /* 2^-6: normal */
        const uint32_t r = (a - (120u << 23) + 0x7ffff + ((a >> 20) & 1)) >> 20;
        return (uint8_t)(sign | (r > 0x7e ? 0x7e : r));
    }
    return (uint8_t)(sign | (uint32_t)rintf(moek_float_(a) * 512.0f));           /* subnormal: a multiple of 2^-9 */
}

/* T by its MOEK_DTYPE_* number. */
MOEK_FN float moek_from_t_(uint16_t bits, int dtype)
{
    return dtype == MOEK_DTYPE_FP16 ? moek_from_fp16_(bits) : moek_from_bf16_(bits);
}
MOEK_FN uint16_t moek_to_t_(float f, int dtype)
{
    return dtype == MOEK_DTYPE_FP16 ? moek_to_fp16_(f) : moek_to_bf16_(f);
}

/* What a raw logit that is NaN or Inf scores: its expert is masked, as are those that score less (moek/ops.h: route).
 * Scores that are not raw are above it. */
#define MOEK_MASKED_ (-1e38f)
/* Where a maximum of logits begins: -Inf less it is -Inf, whose exp is 0; less -Inf it would be NaN. */
#define MOEK_LOWEST_ (-3.402823466e38f)

/* 2^ceil(log2(s)) for s > 0, exactly; the biased exponent is what UE8M0 stores. */
MOEK_FN uint32_t moek_ue8m0_(float s)
{
    const uint32_t u = moek_bits_(s);
    const uint32_t e = (u >> 23) + ((u & 0x7fffff) != 0);
    return e > 254 ? 254 : e;
}

#include "../../../generated/moek_act.h"
/* Finds a->halves.  bits: of an element of w; by_row: w has a scale for each row; in_memory: gated, [0] is of what lies
 * first in memory, as maps of weights want it; else of gate. */
static MOEK_UNUSED void moek_find_halves_(moek_gemm_args *a, int bits, int by_row, int in_memory)
{
    const int gated = a->w_rows > a->n, apart = gated && a->w_gate, scales_apart = gated && !apart && a->scales_apart;
    const int blocks = (a->n_offset + a->n + 127) / 128;
    const size_t row = (size_t)a->k * (size_t)bits / 8;
    const size_t groups = ((size_t)a->k + 127) / 128;
    moek_halves *const h = &a->halves;
    int i;
    h->swapped = gated && in_memory &&
                 (apart ? (uintptr_t)a->w_gate > (uintptr_t)a->w : a->gate_first > a->up_first);
    h->step = gated && !apart ? a->w_step : 1;
    h->rows = apart ? a->n : a->w_rows;
    h->scale_rows = scales_apart ? 2 * blocks : gated && !apart ? (a->w_rows + 127) / 128 : blocks;
    for (i = 0; i < 2; i++) {
        const int gate = gated && i == h->swapped, own = gate && apart;
        const int first = !gated || apart ? 0 : gate ? a->gate_first : a->up_first;
        const void *const bias = own ? a->gate_bias : a->bias;
        const float *const scale = own ? a->gate_scale : a->w_scale;
        h->w[i] = (const char *)(own ? a->w_gate : a->w) + (size_t)first * row;
        h->bias[i] = bias ? (const uint16_t *)bias + first : NULL;
        h->scale[i] = !scale ? NULL : by_row ? scale + first : scales_apart && first ? scale + blocks * groups
                    : scale;
        h->shift[i] = gated && !apart && !scales_apart ? first : a->n_offset;
    }
}
#endif
