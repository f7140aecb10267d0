/* gemm/fragments_finish.cuh -- what kernels have in common that read weights as fragments, by wgmma and by mma.sync: of
 * 16 rows of w, whose sums a lane has of rows g and g + 8, zero points of whole rows, scales and bias. */
#ifndef MOEK_GEMM_FRAGMENTS_FINISH_CUH
#define MOEK_GEMM_FRAGMENTS_FINISH_CUH
#include "../../include/moek/kernel/schedule.h"

/* One zero point a row: of this lane's rows of w, as for 64 of k.  j: the first column of the 16 rows of w (gated: 8
 * columns). */
MOEK_DEVICE uint32_t moek_row_zeros_(const moek_gemm_ *args, const moek_tile_ *tile, int n, int j, int gated)
{
    const moek_gate_up_ *const h = &args->gate_up;
    const int g = threadIdx.x % 32 / 4;
    uint32_t zeros = 0;
    int i;
    if (j < n)
        #pragma unroll
        for (i = 0; i < 2; i++)
            zeros |= (((const uint8_t *)h->zero_points[i])
                      [(size_t)tile->e * h->rows + (size_t)(gated ? j + g : j + g + 8 * i) * h->step] & 15u)
                     << 4 * i;
    return zeros;
}
/* What this lane's sums of rows g and g + 8 are multiplied by, times what scale has, and the bias.  BY_ROW: scales of
 * w are of rows, or of all. */
template <int UP, int BY_ROW, class Format>
MOEK_DEVICE void moek_scale_and_bias_(float scale[2], float bias[2], const moek_gemm_ *a, int e, int j,
                                      int gated, int dtype)
{
    const int g = threadIdx.x % 32 / 4;
    int i;
    #pragma unroll
    for (i = 0; i < 2; i++) {
        const int column = gated ? j + g : j + g + 8 * i;
        if (a->w.bias)
            bias[i] = moek_from_t_(((const uint16_t *)a->gate_up.bias[i])
                                   [(size_t)e * a->gate_up.rows + column * (UP ? a->gate_up.step : 1)], dtype);
        if constexpr (Format::GLOBAL_SCALE) scale[i] *= moek_global_scale_of_(a, i, e);
        if constexpr (BY_ROW) {
            const size_t w_row = (size_t)e * a->gate_up.scale_rows + column * a->gate_up.step;
            scale[i] *= Format::w_scale(a->gate_up.scales[i], Format::W_SCALE_ROWS == 1 ? w_row : e, dtype);
        }
    }
}
#endif
