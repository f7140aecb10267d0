/* moek/walk/quantize.h -- quantization of rows: arguments for x and for h, and moek_quantize for callers. */
#ifndef MOEK_QUANTIZE_H
#define MOEK_QUANTIZE_H
#include <string.h>
#include "../plan/table.h"
#include "../plan/workspace.h"
#include "overlap.h"
#include "threads.h"

static moek_quant_args moek_quant_to_(const moek_plan *plan, const void *x, size_t rows, size_t columns,
                                      moek_quantized_ to)
{
    moek_quant_args a;
    memset(&a, 0, sizeof a);
    a.rows = (int)rows; a.cols = (int)columns; a.source_div = 1;
    a.dtype = plan->config.dtype;
    a.x = x;
    a.ue8m0 = moek_rounds_up_(&plan->config, plan->chosen.format);
    a.partial = to.partial;
    a.q = to.q; a.scale = to.scale;
    return a;
}

/* x of a run.  slot_row: each row once a slot, to there; NULL: as they lie. */
static moek_quant_args moek_quant_x_(const moek_step *step, const int32_t *slot_row, moek_quantized_ to)
{
    const moek_plan *plan = step->plan;
    const int copies = slot_row ? plan->slots : 1;
    moek_quant_args a = moek_quant_to_(plan, step->args.x, (size_t)step->tokens * (size_t)copies,
                                       (size_t)plan->config.hidden, to);
    a.x_stride = (int)moek_x_stride_(&step->args, &plan->config);
    a.source_div = copies;
    a.target = slot_row;
    a.static_scale = plan->weights.x_scale;
    a.row_weight = plan->config.router_weight_on_input ? step->topk_weights : NULL;
    return a;
}

/* Is everything where its elements want it?  Rows of a GPU move 16 bytes at a time. */
static int moek_quant_aligned_(const moek_format *f, int arch, const moek_quant_args *a)
{
    const uintptr_t wide = (uintptr_t)a->x | (uintptr_t)a->q;
    const uintptr_t words = (uintptr_t)a->row_weight | (uintptr_t)a->static_scale | (uintptr_t)a->target |
                            (uintptr_t)a->row_limit | (uintptr_t)a->counts | (uintptr_t)a->partial |
                            (uintptr_t)a->zero | (a->scale_layout == MOEK_SCALE_PACKED ? (uintptr_t)a->scale : 0);
    const size_t scale = (size_t)moek_scale_bits_[f->x_scale.type] / 8;
    if (scale && (uintptr_t)a->scale % scale) return 0;
    return wide % 16 == 0 || (moek_arch_is_host_(arch) && (uintptr_t)a->x % 2 == 0) ? words % 4 == 0 : 0;
}

moek_status moek_quantize(int quant, int arch, const moek_quant_args *args, moek_stream stream)
{
    const moek_format *const f = moek_format_of(quant);
    int i;
    if (!f) return MOEK_E_NO_KERNEL;
    if (!args || args->rows < 0 || args->rows > MOEK_MAX_SLOTS_ || args->cols < 1 || args->cols > MOEK_MAX_COLUMNS_ ||
        args->source_div < 1 || !args->x || !args->q || args->zeros < 0 || (args->zeros && !args->zero) ||
        args->max_blocks < 0 || args->early < 0 || args->early > 2 || !moek_quant_aligned_(f, arch, args))
        return MOEK_E_ARGUMENT;
    if (args->ue8m0 && !f->ue8m0) return MOEK_E_ARGUMENT;
    if (moek_arch_is_host_(arch) && args->static_scale && *args->static_scale < 0) return MOEK_E_ARGUMENT;
    if (args->dtype != MOEK_DTYPE_BF16 && args->dtype != MOEK_DTYPE_FP16) return MOEK_E_ARGUMENT;
    if (moek_fixed_dtype_(f) && args->dtype != moek_fixed_dtype_(f)) return MOEK_E_ARGUMENT;
    if (args->counts && (args->rows_per_expert < 1 || args->rows % args->rows_per_expert)) return MOEK_E_ARGUMENT;
    if (args->scale_layout < MOEK_SCALE_ROW || args->scale_layout > MOEK_SCALE_PACKED) return MOEK_E_ARGUMENT;
    if (args->scale_layout != MOEK_SCALE_ROW && (!moek_blocked_(f) || args->scale_stride < args->rows))
        return MOEK_E_ARGUMENT;
    if (args->scale_layout == MOEK_SCALE_PACKED && !args->ue8m0 && f->x_scale.type != MOEK_SCALE_TYPE_E8M0)
        return MOEK_E_ARGUMENT;
    if (args->group_offset < 0 || (args->group_offset && args->group_offset >= f->x_scale.columns) ||
        (!moek_arch_is_host_(arch) && args->group_offset % 8)) return MOEK_E_ARGUMENT;
    if (moek_quantizes_(f) && !args->scale) return MOEK_E_ARGUMENT;
    if (moek_x_global_scale_(f) && !args->static_scale) return MOEK_E_ARGUMENT;
    if (moek_by_tensor_(f) && !args->static_scale && !args->partial) return MOEK_E_ARGUMENT;
    if (args->x_stride && args->x_stride != args->cols && (args->x_stride < args->cols || args->x_stride % 8))
        return MOEK_E_ARGUMENT;
    for (i = 0; i < MOEK_KERNELS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op != MOEK_OP_QUANT || k->quant != quant || !moek_runs_on_(k, arch)) continue;
        if (k->hidden ? k->hidden != args->cols : args->cols % k->granule) continue;
        return k->launch(args, stream);
    }
    return MOEK_E_NO_KERNEL;
}
#endif
