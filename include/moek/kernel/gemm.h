/* moek/kernel/gemm.h -- what a launcher of up or down hands its kernel. */
#ifndef MOEK_KERNEL_GEMM_H
#define MOEK_KERNEL_GEMM_H
#include <stddef.h>
#include <string.h>
#include "../ops.h"
#include "linkage.h"

/* The matrices as a kernel walks them, in two halves.  [0]: gate; in some kernels, whichever of gate and up lies first
 * in memory.  [1]: the other.  Not gated: both halves are all of w. */
typedef struct moek_gate_up_ {
    const void *codes[2], *bias[2]; /* row 0 of expert 0 (bias: or NULL)                                             */
    const float *scales[2];         /* fp8t, fp8c, and where each row has scales (of another type: cast): the same.
                                       fp8b128: for row j, row (shift + j * step) / 128 of scales from here on       */
    int shift[2];
    int step;                       /* rows from j to j + 1                                                          */
    int rows, scale_rows;           /* rows from an expert to the next: of w, bias and fp8c scales; of fp8b128 scales */
    int swapped;                    /* [0] is up                                                                     */
    const float *global_scale[2];   /* of expert 0, or NULL                                                          */
    const void *zero_points[2];     /* row 0 of expert 0, or NULL                                                    */
    int global_step;                /* global scales from an expert to the next                                      */
} moek_gate_up_;
/* The fields of moek_gemm_args, and what is found in them. */
typedef struct moek_gemm_ {
#include "../gemm_body.h"
    moek_gate_up_ gate_up;
} moek_gemm_;
typedef char moek_gemm_begins_as_its_args_[offsetof(moek_gemm_, gate_up) == sizeof(moek_gemm_args) ? 1 : -1];
static MOEK_UNUSED void moek_take_gemm_(moek_gemm_ *to, const moek_gemm_args *args) { memcpy(to, args, sizeof *args); }
#endif
