/* example.h -- what the examples share: memory where a plan works, random bf16, and a plain loop to compare with.
 *
 * An engine has its own of each; nothing here is part of moek.  With EXAMPLE_CUDA, or as CUDA, memory can lie on the
 * GPU; without, no CUDA header is needed, and EXAMPLE_EXCLUDE keeps plans off the GPU. */
#ifndef EXAMPLE_H
#define EXAMPLE_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "moek.h"
#if defined(__CUDACC__) && !defined(EXAMPLE_CUDA)
#define EXAMPLE_CUDA
#endif
#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#define EXAMPLE_EXCLUDE 0u
#else
#define EXAMPLE_EXCLUDE MOEK_BACKENDS_GPU
#endif

static inline void example_must(int ok, const char *what, const char *why)
{
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* device: plan.device, the GPU or -1.  A copy of `from` there, or zeros; aligned to 256 bytes. */
static inline void *example_new(int device, const void *from, size_t bytes)
{
    char *raw, *at;
#ifdef EXAMPLE_CUDA
    if (device >= 0) {
        void *p = NULL;
        example_must(cudaMalloc(&p, bytes + 1) == cudaSuccess, "cudaMalloc", "out of memory?");
        if (from) example_must(!cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy", "failed");
        else example_must(!cudaMemset(p, 0, bytes), "cudaMemset", "failed");
        return p;
    }
#endif
    (void)device;
    raw = (char *)malloc(bytes + 256 + sizeof raw);
    example_must(raw != NULL, "malloc", "out of memory");
    at = raw + sizeof raw;
    at += (256 - ((size_t)at & 255)) & 255;
    memcpy(at - sizeof raw, &raw, sizeof raw);         /* where example_free finds it */
    if (from) memcpy(at, from, bytes);
    else memset(at, 0, bytes);
    return at;
}
static inline void example_free(int device, const void *p)
{
    void *raw;
#ifdef EXAMPLE_CUDA
    if (device >= 0) { cudaFree((void *)(size_t)p); return; }
#endif
    (void)device;
    memcpy(&raw, (const char *)p - sizeof raw, sizeof raw);
    free(raw);
}
/* From the host, to where there is memory already. */
static inline void example_put(int device, void *to, const void *from, size_t bytes)
{
#ifdef EXAMPLE_CUDA
    if (device >= 0) {
        example_must(!cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy", "failed");
        return;
    }
#endif
    (void)device;
    memcpy(to, from, bytes);
}
/* To the host, after all that was launched. */
static inline void example_get(int device, void *to, const void *from, size_t bytes)
{
#ifdef EXAMPLE_CUDA
    if (device >= 0) {
        const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
        example_must(error == cudaSuccess, "cudaMemcpy", cudaGetErrorString(error));
        return;
    }
#endif
    (void)device;
    memcpy(to, from, bytes);
}

static inline float example_float(uint16_t bf16)
{
    const uint32_t u = (uint32_t)bf16 << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t example_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
/* Random bf16 between -scale and scale. */
static inline void example_fill(uint16_t *a, size_t n, float scale, uint32_t seed)
{
    size_t i;
    for (i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        a[i] = example_bf16(scale * ((float)(seed >> 8) / 8388608.0f - 1));
    }
}
static inline uint16_t *example_random(size_t n, float scale, uint32_t seed)               /* the caller frees them */
{
    uint16_t *a = (uint16_t *)malloc(2 * n);
    example_must(a != NULL, "malloc", "out of memory");
    example_fill(a, n, scale, seed);
    return a;
}

/* y [hidden] += weight * w_down . (silu(gate . x) * (up . x)), of one expert; the rows of w_up: gate first. */
static inline double example_dot(const uint16_t *a, const uint16_t *b, int n)
{
    double sum = 0;
    int i;
    for (i = 0; i < n; i++) sum += (double)example_float(a[i]) * example_float(b[i]);
    return sum;
}
static inline void example_expert(double *y, const uint16_t *x, const uint16_t *w_up, const uint16_t *w_down,
                                  int hidden, int inter, double weight)
{
    int i, j;
    for (i = 0; i < inter; i++) {
        const double gate = example_dot(w_up + (size_t)i * hidden, x, hidden);
        const double h = gate / (1 + exp(-gate)) * example_dot(w_up + (size_t)(inter + i) * hidden, x, hidden);
        for (j = 0; j < hidden; j++) y[j] += weight * h * example_float(w_down[(size_t)j * inter + i]);
    }
}
/* How far y is from what the loop gave, relative; NaN if y is not finite. */
static inline double example_error(const uint16_t *y, const double *want, int n)
{
    double error = 0, square = 0;
    int j;
    for (j = 0; j < n; j++) {
        const double d = example_float(y[j]) - want[j];
        error += d * d;
        square += want[j] * want[j];
    }
    return sqrt(error / square);
}
#endif
