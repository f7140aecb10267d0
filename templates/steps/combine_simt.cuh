/* steps/combine_simt.cuh -- y[t] = sum over k of weights[t][k] * rows[t][k]: a thread eight columns of a token.
 *
 * Bound by the bytes of the rows: 16-byte loads, DEPTH of them on their way at once.  A block takes 8 * THREADS
 * columns, so that one token of a usual hidden size already spreads over several SMs.
 */
#ifndef MOEK_STEPS_COMBINE_SIMT_CUH
#define MOEK_STEPS_COMBINE_SIMT_CUH
#include "../../include/moek/kernel/cuda.h"

/* HIDDEN: the hidden size, or 0: a run has the size. */
template <int HIDDEN, int THREADS> struct moek_combine_simt_ {
    MOEK_DEVICE void run(const moek_combine_args a)
    {
        enum { V = 8, DEPTH = 4 };
        const int hidden = HIDDEN ? HIDDEN : a.hidden, whole = HIDDEN ? 1 : hidden % V == 0;
        const int column = (blockIdx.y * THREADS + threadIdx.x) * V, n = hidden - column;
        const size_t token = blockIdx.x;
        const uint16_t *const rows = (const uint16_t *)a.rows + column;
        float sum[V] = {0}, x[V];
        int k0, d, j;
        moek_grid_wait_();

        for (k0 = 0; k0 < a.topk; k0 += DEPTH) {
            moek_words_ words[DEPTH];
            float weight[DEPTH];
            int id[DEPTH], row[DEPTH];
            #pragma unroll
            for (d = 0; d < DEPTH; d++) {                                /* all of these, before one is looked at */
                const size_t slot = token * a.topk + (k0 + d < a.topk ? k0 + d : k0);
                id[d] = a.ids ? a.ids[slot] : 0;
                row[d] = a.slot_row ? a.slot_row[slot] : (int)slot;
                weight[d] = a.weights ? a.weights[slot] : 1.0f;
            }
            #pragma unroll
            for (d = 0; d < DEPTH; d++)
                if (n <= 0 || k0 + d >= a.topk || (a.ids && (uint32_t)id[d] >= (uint32_t)a.experts)) row[d] = -1;
            #pragma unroll
            for (d = 0; d < DEPTH; d++)
                if (row[d] >= 0) words[d] = moek_load8_(rows + (size_t)row[d] * a.rows_stride, n, whole);
            #pragma unroll
            for (d = 0; d < DEPTH; d++) {
                if (row[d] < 0) continue;
                moek_from_t8_(x, words[d], a.dtype);
                #pragma unroll
                for (j = 0; j < V; j++) sum[j] += weight[d] * x[j];
            }
            if (a.discard) {
                __syncwarp();                                            /* all have read */
                #pragma unroll
                for (d = 0; d < DEPTH; d++)
                    if (row[d] >= 0 && threadIdx.x % 8 == 0)
                        moek_discard_((uint16_t *)rows + (size_t)row[d] * a.rows_stride);
            }
        }
        if (n <= 0) return;
        if (a.addend) {
            const uint16_t *const addend = (const uint16_t *)a.addend + token * a.addend_stride + column;
            moek_from_t8_(x, moek_load8_(addend, n, whole), a.dtype);
            #pragma unroll
            for (j = 0; j < V; j++) sum[j] += x[j];
        }
        moek_store8_((uint16_t *)a.y + token * a.y_stride + column, moek_to_t8_(sum, a.dtype), n, whole);
    }
};

/* Launches such a kernel.  args NULL: makes it ready. */
template <int HIDDEN, int THREADS>
static MOEK_UNUSED moek_status moek_launch_combine_simt_(const void *args, moek_stream stream,
                                                         void (*kernel)(moek_combine_args))
{
    enum { COLUMNS = 8 * THREADS };
    const moek_combine_args *const a = (const moek_combine_args *)args;
    moek_combine_args given;
    dim3 grid(1);
    if (!a) return MOEK_READY_(kernel, 0);
    if (a->tokens < 1 || a->hidden < 1) return MOEK_OK;
    grid = dim3(a->tokens, (a->hidden + COLUMNS - 1) / COLUMNS);
    given = *a;
    given.discard = a->discard && !a->rows_stride && moek_whole_lines_(a->rows, (size_t)a->hidden * 2);
    if (!a->rows_stride) given.rows_stride = a->hidden;
    if (!a->addend_stride) given.addend_stride = a->hidden;
    if (!a->y_stride) given.y_stride = a->hidden;
    return MOEK_CHAIN_(kernel, grid, THREADS, 0, stream, a->early, given);
}
#endif
