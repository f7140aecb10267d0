/* moek/walk/weights.h -- weights in tiled order, or in panels, and back. */
#ifndef MOEK_WEIGHTS_H
#define MOEK_WEIGHTS_H
#include <string.h>
#include "../plan/arch.h"
#include "../plan/device_query.h"
#include "../plan/gemms.h"
#include "../plan/rule.h"
#include "../plan/table.h"
#include "threads.h"

/* Weights of a checkpoint, their scales or their zero points -> tiled, or back. */
enum { MOEK_REPACK_W_, MOEK_REPACK_SCALES_, MOEK_REPACK_ZEROS_ };
/* Panels, or back; a has the rows.  Groups of k may begin before k does. */
static moek_status moek_repack_panels_(const moek_plan *plan, const moek_format *f, const moek_kernel *row,
                                       moek_repack_args *a, int what, const moek_gemm_args *g)
{
    const moek_scale_shape of = moek_weight_scale(f, plan->config.block);
    a->panels = 1;
    if (f->only_blocks) {
        a->block = moek_block_of(f->file_type);
        a->row_bytes = moek_weight_bytes(f, MOEK_WEIGHTS_PANELS, (size_t)g->k);
        return row->launch(a, moek_stream_of_(&plan->config.parallel));
    }
    a->zeros = what == MOEK_REPACK_ZEROS_;
    a->group = what ? moek_scale_bits_[of.type] / 8 : 4;
    if (what == MOEK_REPACK_W_ && moek_element_bytes(f->w, 2) == 1) a->codes = f->w;
    a->row_bytes = what == MOEK_REPACK_SCALES_ ? moek_scale_bytes(&of, 1, (size_t)(g->k + g->k_offset))
                 : moek_element_bytes(f->w, !a->zeros ? (size_t)g->k
                                      : moek_scale_count(&of, 1, (size_t)(g->k + g->k_offset)));
    return row->launch(a, moek_stream_of_(&plan->config.parallel));
}
static moek_status moek_repack_(const moek_plan *plan, int down, int what, const void *from, void *to, int experts,
                                int back, moek_stream stream)
{
    const int host = plan && plan->device < 0, op = down ? MOEK_OP_DOWN : MOEK_OP_UP;
    const moek_kernel *k = NULL;
    const moek_format *f;
    moek_gemm_args g;
    moek_repack_args a;
    int i;
    if (!moek_planned_(plan) || experts < 0 || (experts && (!from || from == to || !to)) ||
        ((uintptr_t)from | (uintptr_t)to) % 16) return MOEK_E_ARGUMENT;
    f = moek_format_at_(&plan->config, op);
    if (what && !(host ? moek_scales_in_panels_ : moek_scales_tiled_)(f, plan->config.block))
        return MOEK_E_ARGUMENT;
    if (what == MOEK_REPACK_ZEROS_ && !f->zero) return MOEK_E_ARGUMENT;
    for (i = 0; i < MOEK_KERNELS_ && !k; i++)
        if (moek_table_[i].op == MOEK_OP_REPACK && moek_runs_on_(&moek_table_[i], plan->arch) &&
            (!moek_table_[i].quant || moek_table_[i].quant == f->number)) k = &moek_table_[i];
    if (!k) return MOEK_E_NO_KERNEL;
    if (host ? stream != NULL : moek_device_current_() != plan->device) return MOEK_E_ARGUMENT;
    if (!(host ? moek_can_panel_(&plan->config) : moek_can_tile_(&plan->config, op))) return MOEK_E_ARGUMENT;
    if (moek_layout_at_(&plan->config, op) == MOEK_WEIGHTS_BLOCKS && !f->only_blocks)
        return MOEK_E_ARGUMENT;                        /* the plan's weights are no arrays */
    if (!down && !host && plan->config.up_layout == MOEK_UP_SEPARATE) return MOEK_E_ARGUMENT;
    memset(&a, 0, sizeof a);
    g = *moek_gemm_of_(plan, op);
    if (!down && plan->config.up_layout == MOEK_UP_SEPARATE) g.w_rows = g.n;  /* gate or up alone */
    a.experts = experts; a.w_rows = g.w_rows; a.n = g.n;
    a.gate_first = g.gate_first; a.up_first = g.up_first; a.w_step = g.w_step;
    a.back = back; a.from = from; a.to = to;
    if (host) return moek_repack_panels_(plan, f, k, &a, what, &g);
    if (what) {
        const moek_scale_shape of = moek_weight_scale(f, plan->config.block);
        a.group = of.columns < 64 ? 64 / of.columns : 1;
        a.zeros = what == MOEK_REPACK_ZEROS_;
        a.row_bytes = moek_element_bytes(f->w, moek_scale_count(&of, 1, (size_t)g.k));
        if (!a.zeros) {
            a.scale_bytes = moek_scale_bits_[of.type] / 8;
            a.group *= a.scale_bytes;
            a.row_bytes = moek_scale_bytes(&of, 1, (size_t)g.k);
        }
    } else {
        if (moek_in_fragments_(f)) {
            a.codes = f->w; a.x = f->x;
            a.columns = moek_weight_scale(f, plan->config.block).columns;
        }
        a.row_bytes = moek_weight_bytes(f, MOEK_WEIGHTS_TILED, (size_t)g.k);
        if (f->only_blocks) a.block = moek_block_of(f->file_type), a.codes = 0;
    }
    return k->launch(&a, stream);
}
moek_status moek_repack_up(const moek_plan *plan, const void *from, void *to, int experts, int back,
                           moek_stream stream)
{
    return moek_repack_(plan, 0, MOEK_REPACK_W_, from, to, experts, back, stream);
}
moek_status moek_repack_down(const moek_plan *plan, const void *from, void *to, int experts, int back,
                             moek_stream stream)
{
    return moek_repack_(plan, 1, MOEK_REPACK_W_, from, to, experts, back, stream);
}
moek_status moek_repack_up_scale(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                 moek_stream stream)
{
    return moek_repack_(plan, 0, MOEK_REPACK_SCALES_, from, to, experts, back, stream);
}
moek_status moek_repack_down_scale(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                   moek_stream stream)
{
    return moek_repack_(plan, 1, MOEK_REPACK_SCALES_, from, to, experts, back, stream);
}
moek_status moek_repack_up_zero(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                moek_stream stream)
{
    return moek_repack_(plan, 0, MOEK_REPACK_ZEROS_, from, to, experts, back, stream);
}
moek_status moek_repack_down_zero(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                  moek_stream stream)
{
    return moek_repack_(plan, 1, MOEK_REPACK_ZEROS_, from, to, experts, back, stream);
}
#endif
