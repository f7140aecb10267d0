/* fill.h -- random layers for the demo and the benchmark: element i of an array is a function of i and a seed, the
 * same on host and device.  Compile as C99 or as CUDA. */
#ifndef FILL_H
#define FILL_H
#include "../include/moek/kernel/numbers.h"

MOEK_FN uint32_t fill_hash(uint64_t i, uint32_t seed)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xbf58476d1ce4e5b9u;
    h ^= h >> 31;
    h *= 0x94d049bb133111ebu;
    return (uint32_t)(h >> 32);
}
/* Sum of four bytes: near enough to a normal distribution of variance 1. */
MOEK_FN float fill_normal(uint64_t i, uint32_t seed)
{
    const uint32_t h = fill_hash(i, seed);
    return ((float)((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510.0f) * (1.0f / 147.8f);
}
MOEK_FN uint16_t fill_t(uint64_t i, uint32_t seed, float scale, int dtype)
{
    return moek_to_t_(fill_normal(i, seed) * scale, dtype);
}
/* e4m3 codes of a normal distribution of deviation 64: all exponents occur, none saturates. */
MOEK_FN uint8_t fill_e4m3(uint64_t i, uint32_t seed) { return moek_to_e4m3_(fill_normal(i, seed) * 64.0f); }
/* Scales near `scale / 64`, so that the weights they scale have deviation about `scale`. */
MOEK_FN float fill_scale(uint64_t i, uint32_t seed, float scale)
{
    return scale * (1.0f / 64.0f) * (0.75f + (float)(fill_hash(i, seed) >> 8) * (0.5f / 16777216.0f));
}

/* Element i of an array: e4m3 (of 1 byte), bf16 (2) or a scale (4). */
MOEK_FN void fill_element(void *array, size_t i, int element, uint32_t seed, float scale)
{
    if (element == 1) ((uint8_t *)array)[i] = fill_e4m3(i, seed);
    else if (element == 2) ((uint16_t *)array)[i] = fill_t(i, seed, scale, MOEK_DTYPE_BF16);
    else ((float *)array)[i] = fill_scale(i, seed, scale);
}
MOEK_UNUSED static void fill_array(void *array, size_t n, int element, uint32_t seed, float scale)
{
    long i;
#ifdef _OPENMP
    #pragma omp parallel for
#endif
    for (i = 0; i < (long)n; i++) fill_element(array, (size_t)i, element, seed, scale);
}

/* Sizes of the weight arrays of a gated layer, in elements. */
typedef struct fill_sizes { size_t up, down, up_scale, down_scale; int element; } fill_sizes;
MOEK_UNUSED static fill_sizes fill_sizes_of(const moek_config *c, int experts)
{
    const size_t e = (size_t)experts, h = (size_t)c->hidden, i = (size_t)c->inter, hb = (h + 127) / 128;
    fill_sizes s;
    s.element = c->quant == MOEK_BF16 || c->quant == MOEK_FP16 ? 2 : 1;
    s.up = e * 2 * i * h;
    s.down = e * h * i;
    s.up_scale = c->quant == MOEK_FP8B128 ? e * ((2 * i + 127) / 128) * hb
               : c->quant == MOEK_FP8C ? e * 2 * i : c->quant == MOEK_FP8T ? e : 0;
    s.down_scale = c->quant == MOEK_FP8B128 ? e * hb * ((i + 127) / 128)
                 : c->quant == MOEK_FP8C ? e * h : c->quant == MOEK_FP8T ? e : 0;
    return s;
}
#endif
