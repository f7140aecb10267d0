/* measure.h -- what bench.cu and bench_ep.cu share: rest before a cell, the order of times, the weights of a layer, the
 * floor of its time, and whether its result is right.  CUDA C++. */
#ifndef MEASURE_H
#define MEASURE_H
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../tests/mem.h"
#include "../tests/ref.h"
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
/* Weights of expert e alone. */
static inline moek_weights weights_of(const moek_config *c, const moek_weights *w, size_t e)
{
    const fill_sizes one = fill_sizes_of(c, 1);
    moek_weights r = *w;
    r.w_up = element_of(w->w_up, e, one.up * one.element);
    r.w_down = element_of(w->w_down, e, one.down * one.element);
    r.w_up_scale = (const float *)element_of(w->w_up_scale, e, 4 * one.up_scale);
    r.w_down_scale = (const float *)element_of(w->w_down_scale, e, 4 * one.down_scale);
    return r;
}

/* How far y is from the double reference: one token, x and y on a GPU; slot[k]: the expert of its slot
 * k, on whatever GPU; weights: on the host.  c: with its defaults filled in, as in a plan. */
static ref_distance error_of_token(const moek_config *c, const moek_weights *slot, const float *weights,
                                   const void *x, const void *y)
{
    const int k = c->topk, h = c->hidden;
    const fill_sizes one = fill_sizes_of(c, 1), part = fill_sizes_of(c, k);
    uint8_t *up = (uint8_t *)malloc(part.up * part.element), *down = (uint8_t *)malloc(part.down * part.element);
    float *up_scale = (float *)malloc(4 * part.up_scale + 4), *down_scale = (float *)malloc(4 * part.down_scale + 4);
    uint16_t *host_x = (uint16_t *)malloc(2 * h), *host_y = (uint16_t *)malloc(2 * h);
    double *want = (double *)malloc(sizeof(double) * h);
    float fixed;
    int32_t ids[32];
    ref_layer_args r;
    moek_weights w;
    memset(&r, 0, sizeof r);
    memset(&w, 0, sizeof w);
    for (int i = 0; i < k; i++) {
        const size_t el = one.element;
        mem_get(80, up + i * one.up * el, slot[i].w_up, one.up * el);
        mem_get(80, down + i * one.down * el, slot[i].w_down, one.down * el);
        if (one.up_scale) mem_get(80, up_scale + i * one.up_scale, slot[i].w_up_scale, 4 * one.up_scale);
        if (one.down_scale) mem_get(80, down_scale + i * one.down_scale, slot[i].w_down_scale, 4 * one.down_scale);
        ids[i] = i;
    }
    mem_get(80, host_x, x, 2 * h);
    mem_get(80, host_y, y, 2 * h);
    w.w_up = up; w.w_down = down; w.w_up_scale = up_scale; w.w_down_scale = down_scale;
    if (slot[0].x_scale) {
        mem_get(80, &fixed, slot[0].x_scale, 4);
        w.x_scale = w.h_scale = &fixed;
    }
    r.tokens = 1; r.hidden = h; r.inter = c->inter; r.slots = k; r.experts = k;
    r.format = moek_format_of(c->quant); r.dtype = c->dtype; r.act = c->act; r.alpha = 1;
    r.up_layout = MOEK_UP_HALVES;
    r.x = host_x; r.ids = ids; r.weights = weights; r.w = &w;
    ref_layer(&r, want);
    ref_distance d = ref_compare_t(host_y, want, h, r.dtype);
    free(up); free(down); free(up_scale); free(down_scale); free(host_x); free(host_y); free(want);
    if (!d.same_nonfinite) d.rel_l2 = INFINITY;
    return d;
}

static __global__ void fill_k(void *array, size_t n, int element, uint32_t seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        fill_element(array, i, element, seed, scale);
}
static void *filled(size_t n, int element, uint32_t seed, float scale)
{
    void *p = NULL;
    if (!n) return p;
    p = mem_alloc(80, n * (size_t)element);
    fill_k<<<1024, 256>>>(p, n, element, seed, scale);
    mem_must(cudaGetLastError());
    return p;
}
/* Weights of so many experts, on the current GPU, as a gated layer has them after training: h and y near x in size. */
static moek_weights filled_weights(const moek_config *c, int experts, uint32_t seed)
{
    const float up = 1.0f / sqrtf((float)c->hidden), down = 1.0f / sqrtf((float)c->inter);
    const fill_sizes n = fill_sizes_of(c, experts);
    moek_weights w;
    memset(&w, 0, sizeof w);
    w.w_up = filled(n.up, n.element, seed + 1, up);
    w.w_down = filled(n.down, n.element, seed + 2, down);
    w.w_up_scale = (float *)filled(n.up_scale, 4, seed + 3, up);
    w.w_down_scale = (float *)filled(n.down_scale, 4, seed + 4, down);
    if (c->quant == MOEK_FP8T) w.x_scale = w.h_scale = (float *)filled(1, 4, seed + 7, 1);
    return w;
}
static void free_weights(moek_weights *w)
{
    mem_free(80, (void *)w->w_up); mem_free(80, (void *)w->w_down);
    mem_free(80, (void *)w->w_up_scale); mem_free(80, (void *)w->w_down_scale);
    mem_free(80, (void *)w->x_scale);
    memset(w, 0, sizeof *w);
}
#endif
