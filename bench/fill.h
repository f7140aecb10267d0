/* fill.h -- random layers of any format for the demo and the benchmark: element i of an array is a function of i and a
 * seed, the same on host and device.  Compile as C99 or as CUDA. */
#ifndef FILL_H
#define FILL_H
#include "../include/moek/kernel/numbers.h"
#include "../tests/mem.h"
#include "../tests/oracle/ref.h"

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

/* What an array is filled from: codes, of which each element is one. */
enum { FILL_CODES = 512 };
typedef struct fill_codes { int width; uint32_t code[FILL_CODES]; } fill_codes;

/* Normal numbers. */
MOEK_UNUSED static fill_codes fill_numbers(const ref_number *n, double deviation)
{
    fill_codes c;
    int i;
    c.width = n->width;
    for (i = 0; i < FILL_CODES; i++) c.code[i] = ref_encode(n, fill_normal((uint64_t)i, 99) * deviation);
    return c;
}
MOEK_UNUSED static fill_codes fill_t(int dtype, double deviation) { return fill_numbers(ref_t(dtype), deviation); }
/* Numbers from 3/4 to 5/4 of a size. */
MOEK_UNUSED static fill_codes fill_about(const ref_number *n, double size)
{
    fill_codes c;
    int i;
    c.width = n->width;
    for (i = 0; i < FILL_CODES; i++) c.code[i] = ref_encode(n, size * (0.75 + 0.5 * i / FILL_CODES));
    return c;
}
/* Weights of a deviation of about `deviation`, once they are scaled; and the scales for that, which spread by half; of
 * formats with a global scale, that is the 8th part of 1. */
MOEK_UNUSED static fill_codes fill_weights(const moek_format *f, int dtype, double deviation)
{
    const ref_number *const n = ref_element(f->w, dtype);
    return fill_numbers(n, format_scaled(f) ? ref_spread(n) : deviation);
}
MOEK_UNUSED static fill_codes fill_scales(const moek_format *f, int dtype, double deviation)
{
    const ref_number *const n = ref_scale_type(f->w_scale.type, dtype);
    return fill_about(n, (f->global_scale ? 8 : 1) * deviation / ref_spread(ref_element(f->w, dtype)));
}
MOEK_UNUSED static fill_codes fill_seconds(void) { return fill_about(&ref_numbers[REF_F32], 1.0 / 8); }
/* The static scale, always an f32, of activations of deviation 1.  Of formats with scales of columns beside it, those
 * are e4m3 of up to 448, and codes up to 6: the largest activation, about 5, is 448 times 6 times the static scale. */
MOEK_UNUSED static fill_codes fill_static(const moek_format *f, int dtype)
{
    return fill_about(&ref_numbers[REF_F32],
                      f->x_scale.columns ? 5.0 / (6 * 448) : 1 / ref_spread(ref_element(f->x, dtype)));
}
/* So many in a number of bytes: elements, or pairs of those of 4 bits. */
MOEK_FN size_t fill_count(int width, size_t bytes) { return width > 8 ? bytes / (size_t)(width / 8) : bytes; }
MOEK_FN uint32_t fill_draw(size_t i, uint32_t seed) { return fill_hash(i, seed) % FILL_CODES; }
/* Element i, or pair i: `code`, of a pair the first; the other is `next`. */
MOEK_FN void fill_element(void *array, size_t i, int width, uint32_t code, uint32_t next)
{
    if (width == 32) ((uint32_t *)array)[i] = code;
    else if (width == 16) ((uint16_t *)array)[i] = (uint16_t)code;
    else ((uint8_t *)array)[i] = (uint8_t)(width == 8 ? code : code | next << 4);
}
MOEK_UNUSED static void fill_array(void *array, size_t bytes, const fill_codes *from, uint32_t seed)
{
    const long n = (long)fill_count(from->width, bytes);
    long i;
#ifdef _OPENMP
    #pragma omp parallel for
#endif
    for (i = 0; i < n; i++)
        fill_element(array, (size_t)i, from->width, from->code[fill_draw((size_t)i, seed)],
                     from->code[fill_draw((size_t)i, seed + 1000)]);
}

MOEK_UNUSED static void *fill_host(size_t bytes, fill_codes from, uint32_t seed)
{
    void *p = mem_alloc(0, bytes);
    fill_array(p, bytes, &from, seed);
    return p;
}
/* Weights of rows of so many columns. */
MOEK_UNUSED static void *fill_host_weights(const moek_format *f, size_t bytes, size_t columns, int dtype,
                                           double deviation, uint32_t seed)
{
    void *p;
    if (!f->only_blocks) return fill_host(bytes, fill_weights(f, dtype, deviation), seed);
    p = mem_alloc(0, bytes);
    block_fill(f, p, bytes / moek_weight_bytes(f, 0, columns), columns, deviation, seed);
    return p;
}
/* Sizes of the weight arrays of a gated layer, in bytes; 0: the format has none.  (No zero points.) */
typedef struct fill_sizes { size_t up, down, up_scale, down_scale, up_global_scale, down_global_scale; } fill_sizes;
MOEK_UNUSED static fill_sizes fill_sizes_of(const moek_config *c, int experts)
{
    const moek_format *const f = format_lying(c, c->quant);
    const moek_format *const d = format_lying(c, c->down_quant ? c->down_quant : c->quant);
    const size_t e = (size_t)experts, h = (size_t)c->hidden, i = (size_t)c->inter;
    fill_sizes s;
    s.up = e * 2 * i * moek_weight_bytes(f, c->weight_layout, h);
    s.down = e * h * moek_weight_bytes(d, c->weight_layout, i);
    s.up_scale = e * moek_scale_bytes(&f->w_scale, 2 * i, h);
    s.down_scale = e * moek_scale_bytes(&d->w_scale, h, i);
    s.up_global_scale = f->global_scale ? e * 2 * sizeof(float) : 0;
    s.down_global_scale = d->global_scale ? e * sizeof(float) : 0;
    return s;
}
#endif
