/* ref.h -- what the kernels must compute: plain loops in double, written from moek.h and moek/ops.h, not from kernels.
 *
 * It shares nothing with them: numbers are made here by frexp and nearbyint.  What a format is, its descriptor says
 * (moek/format.h).  The functions take the structs of moek/ops.h with host pointers; up, down and combine write
 * doubles, before the rounding to T.
 *
 * Quantization is f32 arithmetic whose bits matter, so ref_quant does it in float, one operation a statement: no
 * product is followed by a sum, so that -ffp-contract cannot change it.  Not for -ffast-math, nor for x87. */
#ifndef REF_H
#define REF_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "formats.h"
#include "moek.h"

/* Compiled by nvcc, behind mem.h: up and down run on the GPU, if there is one.  (Not in the emulator.) */
#if defined(__CUDACC__) && !defined(MOEK_EMU) && defined(MEM_CUDA) && MEM_CUDA
#define REF_CUDA 1
#define REF_BOTH static inline __host__ __device__
#else
#define REF_CUDA 0
#define REF_BOTH static inline
#endif

#define REF_UNWRITTEN (-1e300)                         /* fill outputs with it to see which rows somebody owns */

/* Zeros; never NULL. */
static inline void *ref_alloc(size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    if (!p) abort();
    return p;
}

#include "numbers.h"
#include "steps.h"
#include "gemm.h"
#include "layers.h"
#endif
