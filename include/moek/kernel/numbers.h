/* moek/kernel/numbers.h -- what host and device code share: bf16, fp16 and e4m3 by integer arithmetic; activations;
 * which half of the weights lies where. */
#ifndef MOEK_NUMBERS_H
#define MOEK_NUMBERS_H
#include <math.h>
#include "gemm.h"
#include "../../../generated/moek_element.h"             /* moek_from_<element>_, moek_to_<element>_ */
#include "../../../generated/moek_act.h"

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

/* e8m0: 2^(b - 127), 255 is NaN; 0 is 2^-127, which is subnormal.  To: up to the next; what is below 2^-127
 * to 0, Inf to 254. */
MOEK_FN float moek_from_e8m0_(uint8_t b)
{
    return moek_float_(b == 255 ? 0x7fc00000 : b ? (uint32_t)b << 23 : 0x00400000);
}
MOEK_FN uint8_t moek_to_e8m0_(float s)
{
    return s != s ? 255 : s > moek_float_(0x00400000) ? (uint8_t)moek_ue8m0_(s) : 0;
}
/* u6: a scale in the low 6 bits. */
MOEK_FN float moek_from_u6_(uint8_t b) { return (float)(b & 63); }

/* What becomes of the sums of gate and up. */
MOEK_FN float moek_epilogue_of_(const moek_epilogue *to, float g, float u)
{
    return moek_act_any_(to->act, g, u, to->alpha, to->beta, to->limit);
}
/* Groups of so many columns of k that a row of w has, 0: all of k is one; of a shard, the first may begin before k. */
static MOEK_UNUSED size_t moek_groups_(const moek_gemm_ *a, int columns)
{
    return columns ? ((size_t)a->k_offset + (size_t)a->k + (size_t)columns - 1) / (size_t)columns : 1;
}
/* Half i of the weights is gate.  (gate_up.swapped is found.) */
static MOEK_UNUSED int moek_half_is_gate_(const moek_gemm_ *a, int i)
{
    return a->w_rows > a->n && i == a->gate_up.swapped;
}
/* The row of an expert's with which half i begins. */
static MOEK_UNUSED size_t moek_half_first_(const moek_gemm_ *a, int i)
{
    if (a->w_rows <= a->n || a->gate.codes) return 0;
    return (size_t)(moek_half_is_gate_(a, i) ? a->gate_first : a->up_first);
}
/* Finds a->gate_up, but for zero points.  row: bytes of a row of w; scale_bits, scale_rows, scale_columns: of the
 * scales of w, of so many rows and columns each, 0: all (no scales: as one would be).  in_memory: gated, [0] is of what
 * lies first in memory, as maps of weights want it; else of gate. */
static MOEK_UNUSED void moek_find_gate_up_by_(moek_gemm_ *a, size_t row, int scale_bits, int scale_rows,
                                             int scale_columns, int in_memory)
{
    const int gated = a->w_rows > a->n, apart = gated && a->gate.codes;
    const int scales_separate = gated && !apart && a->scales_separate;
    const int of = scale_rows ? scale_rows : 1, blocks = ((of > 1 ? a->n_offset : 0) + a->n + of - 1) / of;
    const size_t scales = moek_groups_(a, scale_columns) * (size_t)scale_bits / 8;
    moek_gate_up_ *const h = &a->gate_up;
    int i;
    h->swapped = gated && in_memory &&
                 (apart ? (uintptr_t)a->gate.codes > (uintptr_t)a->w.codes : a->gate_first > a->up_first);
    h->step = gated && !apart ? a->w_step : 1;
    h->rows = apart ? a->n : a->w_rows;
    h->scale_rows = scales_separate ? 2 * blocks : gated && !apart ? (a->w_rows + of - 1) / of : blocks;
    h->global_step = gated && !apart ? 2 : 1;
    for (i = 0; i < 2; i++) {
        const moek_matrix *const m = apart && moek_half_is_gate_(a, i) ? &a->gate : &a->w;
        const size_t first = moek_half_first_(a, i);
        const char *const scale = (const char *)m->scales;
        h->codes[i] = (const char *)m->codes + first * row;
        h->bias[i] = m->bias ? (const uint16_t *)m->bias + first : NULL;
        h->scales[i] = (const float *)(!scale ? NULL : scale_rows == 1 ? scale + first * scales
                                       : scales_separate && first ? scale + (size_t)blocks * scales : scale);
        h->shift[i] = scale_rows == 1 ? 0 : gated && !apart && !scales_separate ? (int)first : a->n_offset;
        h->global_scale[i] = m->global_scale ? m->global_scale + (first != 0) : NULL;
        h->zero_points[i] = NULL;
    }
}
/* The same with bits of an element of w, and zero points. */
static MOEK_UNUSED void moek_find_gate_up_of_(moek_gemm_ *a, int bits, int scale_bits, int scale_rows,
                                             int scale_columns, int in_memory)
{
    const size_t zeros = (moek_groups_(a, scale_columns) * (size_t)bits + 7) / 8;      /* bytes of a row of them */
    int i;
    moek_find_gate_up_by_(a, (size_t)a->k * (size_t)bits / 8, scale_bits, scale_rows, scale_columns, in_memory);
    for (i = 0; i < 2; i++) {
        const moek_matrix *const m = a->gate.codes && moek_half_is_gate_(a, i) ? &a->gate : &a->w;
        if (m->zero_points) a->gate_up.zero_points[i] = (const char *)m->zero_points + moek_half_first_(a, i) * zeros;
    }
}
/* The global scale of half i of the weights of expert e. */
MOEK_FN float moek_global_scale_of_(const moek_gemm_ *a, int i, int e)
{
    return a->gate_up.global_scale[i][e * a->gate_up.global_step];
}
#endif
