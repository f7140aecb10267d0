/* moek/kernel/cpu.h -- helpers of the CPU rows: pieces and their dot products (dots.h), elements, rows of scales, facts
 * of formats. */
#ifndef MOEK_CPU_H
#define MOEK_CPU_H
#include "dots.h"
#include "file_panels.h"
#include "../format_facts.h"
#include "../../../generated/moek_element_cpu.h"
#include "../../../generated/moek_blocks_cpu.h"

/* Scales of a row to f32, without a branch, eight at a time: rows are short, and what a wider loop leaves over counts.
 * e4m3: as moek_piece_e4m3_ decodes, which gives 2^-8 of the value. */
MOEK_CPU_FN float moek_scale_e8m0_(uint32_t b)
{
    const uint32_t power = b ? b << 23 : 0x00400000;
    return moek_float_(b == 255 ? 0x7fc00000 : power);
}
MOEK_CPU_FN float moek_scale_e4m3_(uint32_t b)
{
    const uint32_t f = (b & 0x7f) << 20 | 112u << 23, g = moek_bits_(2.0f * moek_float_(f) - 6.103515625e-05f);
    const uint32_t v = moek_bits_(moek_float_((f < g ? f : g) | (b & 0x80) << 24) * 256.0f);
    return moek_float_((b & 0x7f) == 0x7f ? 0x7fc00000 : v);
}
#define MOEK_SCALES_(name, type, scale) \
    MOEK_CPU_CALL_ void name(float *to, const type *from, int n) \
    { \
        int i, j; \
        for (i = 0; i + 8 <= n; i += 8) for (j = i; j < i + 8; j++) to[j] = scale; \
        for (j = i; j < n; j++) to[j] = scale; \
    }
MOEK_SCALES_(moek_scales_e8m0_, uint8_t, moek_scale_e8m0_(from[j]))
MOEK_SCALES_(moek_scales_e4m3_, uint8_t, moek_scale_e4m3_(from[j]))
MOEK_SCALES_(moek_scales_bf16_, uint16_t, moek_from_bf16_(from[j]))
MOEK_SCALES_(moek_scales_fp16_, uint16_t, moek_unpack_fp16_((uint32_t)from[j] << 16, (from[j] & 0x7fffu) << 13))
#undef MOEK_SCALES_
/* Scale i of x or of w as f32; bits of one. */
MOEK_CPU_FN float moek_digits_scale_(const void *of, size_t i, int type, int dtype)
{
    if (type == MOEK_SCALE_TYPE_F32) return ((const float *)of)[i];
    if (type == MOEK_SCALE_TYPE_T) return moek_from_t_(((const uint16_t *)of)[i], dtype);
    return type == MOEK_SCALE_TYPE_E8M0 ? moek_from_e8m0_(((const uint8_t *)of)[i])
                                        : moek_from_e4m3_(((const uint8_t *)of)[i]);
}
MOEK_CPU_FN int moek_digits_bits_(int type)
{
    return type == MOEK_SCALE_TYPE_F32 ? 32 : type == MOEK_SCALE_TYPE_T ? 16 : 8;
}
/* Row p of the work of up or down reads this row of a. */
MOEK_CPU_FN size_t moek_digits_from_(const moek_gemm_ *a, int p)
{
    return (size_t)(a->rows.order ? a->rows.order[p] / a->rows.div : p);
}

/* Facts of formats: moek_format_of is not there where kernels are objects of their own. */
static MOEK_UNUSED const moek_format moek_cpu_formats_[] = { MOEK_EACH_FORMAT(MOEK_FORMAT_FACTS_) };
enum {                                                 /* MOEK_CPU_FORMAT_BF16, ...: where a format stands there */
#define MOEK_CPU_FORMAT_(NAME, ...) MOEK_CPU_FORMAT_##NAME,
    MOEK_EACH_FORMAT(MOEK_CPU_FORMAT_)
#undef MOEK_CPU_FORMAT_
    MOEK_CPU_FORMAT_COUNT_
};
/* Of those that have arrays, as they lie in blocks of files. */
static MOEK_UNUSED const moek_format moek_cpu_in_blocks_[] = { MOEK_EACH_FORMAT_IN_BLOCKS(MOEK_FORMAT_FACTS_) };
enum {                                                 /* MOEK_CPU_IN_BLOCKS_MXFP4_A16, ... */
#define MOEK_CPU_IN_BLOCKS_(NAME, ...) MOEK_CPU_IN_BLOCKS_##NAME,
    MOEK_EACH_FORMAT_IN_BLOCKS(MOEK_CPU_IN_BLOCKS_)
#undef MOEK_CPU_IN_BLOCKS_
    MOEK_CPU_IN_BLOCKS_COUNT_
};
#endif
