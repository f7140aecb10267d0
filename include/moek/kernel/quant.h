/* moek/kernel/quant.h -- rows of x and h become rows of a format's x on CPUs: what all rows of the table do. */
#include "cpu.h"
#ifndef MOEK_QUANT_H
#define MOEK_QUANT_H

/* Is row r of the work there? */
MOEK_CPU_FN int moek_quant_live_(const moek_quant_args *a, int r)
{
    if (a->row_limit && r >= *a->row_limit) return 0;
    return !a->counts || r % a->rows_per_expert < a->counts[r / a->rows_per_expert];
}
/* Columns j on of a source row, of `cols` columns. */
MOEK_CPU_FN const uint16_t *moek_quant_from_(const moek_quant_args *a, size_t source, int j, int cols)
{
    return (const uint16_t *)a->x + source * (size_t)(a->x_stride ? a->x_stride : cols) + j;
}
/* n numbers of a source row, which are f32, times its weight. */
MOEK_CPU_FN void moek_quant_weigh_(const moek_quant_args *a, float *x, size_t source, int n)
{
    const float weight = moek_from_t_(moek_to_t_(a->row_weight[source], a->dtype), a->dtype);
    int i;
    for (i = 0; i < n; i++) x[i] = moek_from_t_(moek_to_t_(x[i] * weight, a->dtype), a->dtype);
}
/* A launcher's work. */
MOEK_CPU_FN moek_status moek_quant_launch_(const moek_quant_args *a, moek_stream stream, moek_task_fn task)
{
    int r;
    for (r = 0; r < a->zeros; r++) a->zero[r] = 0;
    moek_parallel_for_(stream, a->rows, task, a);
    return MOEK_OK;
}
#endif
