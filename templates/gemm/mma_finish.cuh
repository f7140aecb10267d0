/* gemm/mma_finish.cuh -- what becomes of a tile's sums in shared memory, of kernels by mma.sync. */
#ifndef MOEK_GEMM_MMA_FINISH_CUH
#define MOEK_GEMM_MMA_FINISH_CUH
#include "../../include/moek/kernel/cuda.h"

/* A sum of all slices of k, whose tiles are TILE floats apart. */
template <int SLICES, int TILE> MOEK_DEVICE float moek_sum_of_slices_(const float *from)
{
    float sum = from[0];
    int i;
    #pragma unroll
    for (i = 1; i < SLICES; i++) sum += from[i * TILE];
    return sum;
}
/* What sums of row `at` of w of expert e, of half i, are multiplied by, times lift. */
template <class Format>
MOEK_DEVICE float moek_factor_of_(const moek_gemm_args *a, float lift, int i, size_t at, int e, int dtype)
{
    if constexpr (Format::X_TENSOR) {
        return ((const float *)a->a_scale)[0] * Format::w_scale(a->halves.scale[i], e, dtype);
    } else if constexpr (Format::W_SCALE_COLUMNS == 0) {
        return lift * Format::w_scale(a->halves.scale[i], Format::W_SCALE_ROWS == 1 ? at : e, dtype);
    } else if constexpr (Format::SECOND) {
        const moek_gemm_more_args *const more = (const moek_gemm_more_args *)a;
        if constexpr (Format::X_SECOND)
            return lift * more->global[i][e * more->globals] * more->a_global_scale[0];
        else
            return lift * more->global[i][e * more->globals];
    } else {
        return lift;
    }
}

/* Scale, bias, activation, and out.  A thread keeps a pair of columns and goes down the rows.  tile: M rows of R sums
 * and PITCH - R more; SLICES of them are added, in order.  lift: what sums are multiplied by.  row: [M + R], of a, then
 * of w.  act, gated: constants. */
template <int UP, int M, int R, int PITCH, int SLICES, int THREADS, class Format>
MOEK_DEVICE void moek_finish_mma_(const moek_gemm_args *a, const float *tile, const int32_t *row, int e, int row0,
                                  int end, int j0, int n, float lift, int act, int gated)
{
    enum {
        SCALES = Format::W_SCALED_BY && (Format::W_SCALE_COLUMNS == 0 || Format::SECOND),
        BY_ROW = Format::X_BY_ROW && !(Format::W_SCALE_F32 && Format::W_SCALE_COLUMNS > 0)     /* else with sums of k */
    };
    const int dtype = Format::DTYPE > 0 ? (int)Format::DTYPE : a->dtype;
    const int pairs = gated ? R / 4 : R / 2, c = (int)threadIdx.x % pairs * 2;
    float scale[2] = { lift, lift }, bias[2] = {0, 0};
    float up_scale[2] = { lift, lift }, up_bias[2] = {0, 0};
    const moek_halves *const h = &a->halves;
    int r, i;
    if (j0 + c >= n) return;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const size_t at = (size_t)e * h->rows + row[M + c + i];        /* gate and up: the same row, each of its half */
        if (a->bias) bias[i] = moek_from_t_(((const uint16_t *)h->bias[0])[at], dtype);
        if constexpr (SCALES) scale[i] = moek_factor_of_<Format>(a, lift, 0, at, e, dtype);
        if (UP && gated && a->bias) up_bias[i] = moek_from_t_(((const uint16_t *)h->bias[1])[at], dtype);
        if constexpr (UP && SCALES)
            if (gated || Format::X_TENSOR) up_scale[i] = moek_factor_of_<Format>(a, lift, 1, at, e, dtype);
    }
    #pragma unroll (UP ? 1 : 4)
    for (r = (int)threadIdx.x / pairs; r < M && row0 + r < end; r += THREADS / pairs) {
        const size_t to = a->out_order ? a->out_order[row0 + r] : row0 + r;
        const float *const from = tile + r * PITCH + c;
        const float x_scale = BY_ROW ? ((const float *)a->a_scale)[row[r]] : 1.0f;
        float y[2];
        #pragma unroll
        for (i = 0; i < 2; i++) {
            y[i] = moek_sum_of_slices_<SLICES, M * PITCH>(from + i) * (x_scale * scale[i]) + bias[i];
            if (UP)
                y[i] = moek_act_any_(act, y[i], gated ? moek_sum_of_slices_<SLICES, M * PITCH>(from + R / 2 + i) *
                                                        (x_scale * up_scale[i]) + up_bias[i] : 0,
                                     a->alpha, a->beta, a->limit);
        }
        ((uint32_t *)a->out)[(to * n + j0 + c) / 2] = moek_to_t2_(y[0], y[1], dtype);
    }
}
#endif
