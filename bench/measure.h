/* measure.h -- what bench.cu and bench_ep.cu share: rest before a cell, the order of times, the weights of a layer, the
 * floor of its time, and whether its result is right.  CUDA C++. */
#ifndef MEASURE_H
#define MEASURE_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../tests/mem.h"
#include "../tests/oracle/ref.h"
#include "clock.h"
#include "fill.h"

/* A GPU that has worked hard is slower for a while. */
static inline void rest(int ms)
{
    for (const double until = seconds() + 1e-3 * ms; seconds() < until;) continue;
}
/* For qsort: doubles. */
static inline int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Microseconds: the larger of (weight bytes of the experts in use) / 4.27 TB/s and FLOPs / 1500 (fp8) or 800 (bf16)
 * TFLOPS, near the ceilings of an H200. */
static inline double floor_of(double bytes, double flops, int fp8)
{
    const double memory = 1e6 * bytes / 4.27e12, tensor = 1e6 * flops / (fp8 ? 1500e12 : 800e12);
    return memory > tensor ? memory : tensor;
}
/* An element of an array on a GPU. */
static inline const void *element_of(const void *array, size_t i, size_t bytes)
{
    return array ? (const char *)array + i * bytes : NULL;
}
/* The arrays of weights that have a part an expert, and the bytes of each. */
enum { PARTS = 6 };
static inline void parts_of(moek_weights *w, const fill_sizes *n, const void **array[PARTS], size_t bytes[PARTS])
{
    const void **const arrays[PARTS] = { &w->w_up, &w->w_down, (const void **)&w->w_up_scale,
        (const void **)&w->w_down_scale, (const void **)&w->w_up_global_scale, (const void **)&w->w_down_global_scale };
    const size_t sizes[PARTS] = { n->up, n->down, n->up_scale, n->down_scale,
                                  n->up_global_scale, n->down_global_scale };
    memcpy(array, arrays, sizeof arrays);
    memcpy(bytes, sizes, sizeof sizes);
}
/* Weights of expert e alone. */
static inline moek_weights weights_of(const moek_config *c, const moek_weights *w, size_t e)
{
    const fill_sizes one = fill_sizes_of(c, 1);
    moek_weights r = *w;
    const void **array[PARTS];
    size_t bytes[PARTS];
    parts_of(&r, &one, array, bytes);
    for (int i = 0; i < PARTS; i++) *array[i] = element_of(*array[i], e, bytes[i]);
    return r;
}

/* How far y is from the double reference: one token, x and y on a GPU; slot[k]: the expert of its slot
 * k, on whatever GPU; weights: on the host.  c: with its defaults filled in, as in a plan. */
static ref_distance error_of_token(const moek_config *c, const moek_weights *slot, const float *weights,
                                   const void *x, const void *y)
{
    const int k = c->topk, h = c->hidden;
    const fill_sizes one = fill_sizes_of(c, 1);
    uint16_t *host_x = (uint16_t *)malloc(2 * h), *host_y = (uint16_t *)malloc(2 * h);
    double *want = (double *)malloc(sizeof(double) * h);
    const void **array[PARTS], **there[PARTS];
    size_t bytes[PARTS];
    float fixed;
    int32_t ids[32];
    ref_layer_args r;
    moek_weights w;
    memset(&r, 0, sizeof r);
    memset(&w, 0, sizeof w);
    parts_of(&w, &one, array, bytes);
    for (int i = 0; i < PARTS; i++) *array[i] = malloc(k * bytes[i] + 1);
    for (int i = 0; i < k; i++) {
        moek_weights expert = slot[i];
        parts_of(&expert, &one, there, bytes);
        for (int j = 0; j < PARTS; j++)
            if (bytes[j]) mem_get(80, (uint8_t *)*array[j] + i * bytes[j], *there[j], bytes[j]);
        ids[i] = i;
    }
    mem_get(80, host_x, x, 2 * h);
    mem_get(80, host_y, y, 2 * h);
    if (slot[0].x_scale) {
        mem_get(80, &fixed, slot[0].x_scale, 4);
        w.x_scale = w.h_scale = &fixed;
    }
    r.tokens = 1; r.hidden = h; r.inter = c->inter; r.slots = k; r.experts = k;
    r.format = format_lying(c, c->quant);
    r.down = c->down_quant ? format_lying(c, c->down_quant) : NULL;
    r.dtype = c->dtype; r.act = c->act; r.alpha = 1;
    r.up_layout = MOEK_UP_GATE_UP;
    r.x = host_x; r.ids = ids; r.weights = weights; r.w = &w;
    ref_layer(&r, want);
    ref_distance d = ref_compare_t(host_y, want, h, r.dtype);
    for (int i = 0; i < PARTS; i++) free((void *)*array[i]);
    free(host_x); free(host_y); free(want);
    if (!d.same_nonfinite) d.rel_l2 = INFINITY;
    return d;
}

static __global__ void fill_k(void *array, size_t n, fill_codes from, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        fill_element(array, i, from.width, from.code[fill_draw(i, seed)], from.code[fill_draw(i, seed + 1000)]);
}
static void *filled(size_t bytes, fill_codes from, uint32_t seed)
{
    void *p = NULL;
    if (!bytes) return p;
    p = mem_alloc(80, bytes);
    fill_k<<<1024, 256>>>(p, fill_count(from.width, bytes), from, seed);
    mem_must(cudaGetLastError());
    return p;
}
/* Weights, rows of so many columns.  In blocks of files, which the host makes: some rows, over and over. */
static void *filled_rows(const moek_format *f, size_t bytes, size_t columns, int dtype, double deviation, uint32_t seed)
{
    const size_t row = moek_weight_bytes(f, 0, columns);
    size_t some = ((size_t)1 << 20) / columns * row, at;
    char *p;
    void *rows;
    if (!f->only_blocks) return filled(bytes, fill_weights(f, dtype, deviation), seed);
    if (some > bytes) some = bytes;
    p = (char *)mem_alloc(80, bytes);
    rows = fill_host_weights(f, some, columns, dtype, deviation, seed);
    for (at = 0; at < bytes; at += some) mem_put(80, p + at, rows, bytes - at < some ? bytes - at : some);
    mem_free(0, rows);
    return p;
}
/* Weights of so many experts, on the current GPU, as a gated layer has them after training: h and y near x in size. */
static moek_weights filled_weights(const moek_config *c, int experts, uint32_t seed)
{
    const moek_format *const f = format_lying(c, c->quant);
    const moek_format *const d = c->down_quant ? format_lying(c, c->down_quant) : f;
    const int dtype = format_dtype_in(f, 0);
    const double up = 1 / sqrt((double)c->hidden), down = 1 / sqrt((double)c->inter);
    const fill_sizes n = fill_sizes_of(c, experts);
    moek_weights w;
    memset(&w, 0, sizeof w);
    w.w_up = filled_rows(f, n.up, (size_t)c->hidden, dtype, up, seed + 1);
    w.w_down = filled_rows(d, n.down, (size_t)c->inter, dtype, down, seed + 2);
    w.w_up_scale = filled(n.up_scale, fill_scales(f, dtype, up), seed + 3);
    w.w_down_scale = filled(n.down_scale, fill_scales(d, dtype, down), seed + 4);
    w.w_up_global_scale = (const float *)filled(n.up_global_scale, fill_seconds(), seed + 5);
    w.w_down_global_scale = (const float *)filled(n.down_global_scale, fill_seconds(), seed + 6);
    if (f->static_x)                                   /* the layer's: one for all ranks */
        w.x_scale = w.h_scale = (const float *)filled(4, fill_static(f, dtype), 7);
    return w;
}
static void free_weights(moek_weights *w)
{
    const fill_sizes none = { 0, 0, 0, 0, 0, 0 };
    const void **array[PARTS];
    size_t bytes[PARTS];
    parts_of(w, &none, array, bytes);
    for (int i = 0; i < PARTS; i++) mem_free(80, (void *)*array[i]);
    mem_free(80, (void *)w->x_scale);
    memset(w, 0, sizeof *w);
}
#endif
