/* gemm/mma_finish.cuh -- what kernels by mma.sync have in common: the rows of a block's tile, and what becomes of its
 * sums in shared memory. */
#ifndef MOEK_GEMM_MMA_FINISH_CUH
#define MOEK_GEMM_MMA_FINISH_CUH
#include "../../include/moek/kernel/cuda.h"

/* Row blocks of a launch, by the list that sort makes, or of each expert's part of a. */
MOEK_DEVICE int moek_row_blocks_(const moek_gemm_ *a)
{
    return a->rows_per_expert ? a->experts * a->max_blocks : *a->rows.num_blocks;
}
/* Where a tile lies: rows row0 .. end - 1 of its expert and what follows, and which of a row block's tiles it is. */
typedef struct moek_row_tile_ { int e, row0, end, j; } moek_row_tile_;
/* A tile by its number, of row blocks of m rows, each of so many tiles; 0: it has no rows, or there are fewer tiles.
 * Tiles with numbers side by side share rows of a and of w: most_group row blocks, then the next columns. */
MOEK_DEVICE int moek_find_row_tile_(moek_row_tile_ *tile, const moek_gemm_ *a, int number, int tiles, int m,
                                    int most_group)
{
    const int per = a->max_blocks, row_blocks = moek_row_blocks_(a);
    const int first = number / (most_group * tiles) * most_group, within = number % (most_group * tiles);
    const int group = row_blocks - first < most_group ? row_blocks - first : most_group;
    int b;
    if (group <= 0 || within >= group * tiles) return 0;
    b = first + within % group;
    tile->j = within / group;
    tile->e = a->rows_per_expert ? b / per : a->rows.block_expert[b];
    tile->row0 = a->rows_per_expert ? tile->e * a->rows_per_expert + b % per * m : a->rows.block_row[b];
    tile->end = a->rows_per_expert ? tile->e * a->rows_per_expert + a->rows.counts[tile->e]
                                   : a->rows.offsets[tile->e + 1];
    return tile->row0 < tile->end;
}

/* row: [M + R], of a tile's rows of a, rows row0 .. end - 1 of its expert, then of w, columns from j0 on; -1: none.
 * gated up: the first R / 2 rows of w are of gate, the others of up.  Ends with a barrier. */
template <int M, int R, int THREADS>
MOEK_DEVICE void moek_rows_of_mma_(int32_t *row, const moek_gemm_ *a, int t, int row0, int end, int j0, int n,
                                   int gated, int columns)
{
    int i;
    for (i = t; i < M + R; i += THREADS) {
        const int p = row0 + i, c = i - M;
        if (c < 0) row[i] = p >= end ? -1 : a->rows.order ? a->rows.order[p] / a->rows.div : p;
        else if (gated) {
            const int j = j0 + c % columns;
            row[i] = j >= n ? -1 : j * a->gate_up.step;
        }
        else row[i] = j0 + c >= n ? -1 : j0 + c;
    }
    __syncthreads();
}

/* A sum of all slices of k, whose tiles are TILE floats apart. */
template <int SLICES, int TILE> MOEK_DEVICE float moek_sum_of_slices_(const float *sums)
{
    float sum = sums[0];
    int i;
    #pragma unroll
    for (i = 1; i < SLICES; i++) sum += sums[i * TILE];
    return sum;
}
/* What sums of row `w_row` of w of expert e, of half i, are multiplied by, times shift_factor. */
template <class Format>
MOEK_DEVICE float moek_factor_of_(const moek_gemm_ *a, float shift_factor, int i, size_t w_row, int e, int dtype)
{
    if constexpr (Format::X_TENSOR) {
        return ((const float *)a->a_scale)[0] * Format::w_scale(a->gate_up.scales[i], e, dtype);
    } else if constexpr (Format::W_SCALED_BY && Format::W_SCALE_COLUMNS == 0) {
        return shift_factor * Format::w_scale(a->gate_up.scales[i], Format::W_SCALE_ROWS == 1 ? w_row : e, dtype);
    } else if constexpr (Format::GLOBAL_SCALE) {
        if constexpr (Format::X_GLOBAL_SCALE)
            return shift_factor * moek_global_scale_of_(a, i, e) * a->a_global_scale[0];
        else
            return shift_factor * moek_global_scale_of_(a, i, e);
    } else {
        return shift_factor;
    }
}

/* SHIFTED: elements became T (2: e4m3), and may be too small. */
template <int SHIFTED, class Format> MOEK_DEVICE float moek_shift_factor_of_sums_(int dtype)
{
    if constexpr (SHIFTED == 2) return Format::whole_shift_factor();
    else if constexpr (SHIFTED) return Format::mixed_shift_factor(dtype);
    else return 1;
}

/* Scale, bias, activation, and out.  A thread keeps a pair of columns and goes down the rows.  tile: M rows of R sums
 * and PITCH - R more; SLICES of them are added, in order.  row: [M + R], of a, then of w.  act, gated: constants. */
template <int UP, int M, int R, int PITCH, int SLICES, int THREADS, int SHIFTED, class Format>
MOEK_DEVICE void moek_finish_mma_(const moek_gemm_ *a, const float *tile, const int32_t *row, int e, int row0,
                                  int end, int j0, int n, int act, int gated)
{
    enum {
        SCALES = (Format::W_SCALED_BY && Format::W_SCALE_COLUMNS == 0) || Format::GLOBAL_SCALE,
        BY_ROW = Format::X_BY_ROW && !(Format::W_SCALE_F32 && Format::W_SCALE_COLUMNS > 0)     /* else with sums of k */
    };
    const int dtype = Format::DTYPE > 0 ? (int)Format::DTYPE : a->dtype;
    const int pairs = gated ? R / 4 : R / 2, c = (int)threadIdx.x % pairs * 2;
    const float shift_factor = moek_shift_factor_of_sums_<SHIFTED, Format>(a->dtype);
    float scale[2] = { shift_factor, shift_factor }, bias[2] = {0, 0};
    float up_scale[2] = { shift_factor, shift_factor }, up_bias[2] = {0, 0};
    const moek_gate_up_ *const h = &a->gate_up;
    int r, i;
    if (j0 + c >= n) return;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const size_t w_row = (size_t)e * h->rows + row[M + c + i];     /* gate and up: the same row, each of its half */
        if (a->w.bias) bias[i] = moek_from_t_(((const uint16_t *)h->bias[0])[w_row], dtype);
        if constexpr (SCALES) scale[i] = moek_factor_of_<Format>(a, shift_factor, 0, w_row, e, dtype);
        if (UP && gated && a->w.bias) up_bias[i] = moek_from_t_(((const uint16_t *)h->bias[1])[w_row], dtype);
        if constexpr (UP && SCALES)
            if (gated || Format::X_TENSOR) up_scale[i] = moek_factor_of_<Format>(a, shift_factor, 1, w_row, e, dtype);
    }
    #pragma unroll (UP ? 1 : 4)
    for (r = (int)threadIdx.x / pairs; r < M && row0 + r < end; r += THREADS / pairs) {
        const size_t out_row = a->rows.out_order ? a->rows.out_order[row0 + r] : row0 + r;
        const float *const sums = tile + r * PITCH + c;
        const float x_scale = BY_ROW ? ((const float *)a->a_scale)[row[r]] : 1.0f;
        float y[2];
        #pragma unroll
        for (i = 0; i < 2; i++) {
            y[i] = moek_sum_of_slices_<SLICES, M * PITCH>(sums + i) * (x_scale * scale[i]) + bias[i];
            if (UP)
                y[i] = moek_act_any_(act, y[i], gated ? moek_sum_of_slices_<SLICES, M * PITCH>(sums + R / 2 + i) *
                                                        (x_scale * up_scale[i]) + up_bias[i] : 0,
                                     a->epilogue.alpha, a->epilogue.beta, a->epilogue.limit);
        }
        ((uint32_t *)a->out)[(out_row * n + j0 + c) / 2] = moek_to_t2_(y[0], y[1], dtype);
    }
}

/* moek_finish_mma_ with the run's activation; of down, without one. */
template <int UP, int M, int R, int PITCH, int SLICES, int THREADS, int SHIFTED, class Format>
MOEK_DEVICE void moek_finish_tile_(const moek_gemm_ *a, const float *tile, const int32_t *row, int e, int row0,
                                   int end, int j0, int n)
{
    if constexpr (UP)
        switch (a->epilogue.act) {                              /* a loop each: a branch in it would cost more */
#define MOEK_FINISH_(NAME, name, number, gated) \
        case number: \
            moek_finish_mma_<UP, M, R, PITCH, SLICES, THREADS, SHIFTED, Format>(a, tile, row, e, row0, end, j0, n, \
                                                                               number, gated); \
            break;
        MOEK_EACH_ACT(MOEK_FINISH_)
#undef MOEK_FINISH_
        }
    else
        moek_finish_mma_<UP, M, R, PITCH, SLICES, THREADS, SHIFTED, Format>(a, tile, row, e, row0, end, j0, n, 0, 0);
}

/* Blocks of a launch with tiles of so many columns; 0: there is nothing to do, -1: too many. */
static MOEK_UNUSED int moek_blocks_of_mma_(const moek_gemm_args *a, int columns)
{
    size_t blocks = (a->rows_per_expert ? (size_t)a->experts : 1) * (size_t)a->max_blocks;
    blocks *= (size_t)((a->n + columns - 1) / columns);
    return blocks > 0x7fffffff ? -1 : (int)blocks;
}
#endif
