/* moek/walk/experts.h -- up, activation, down: a launch a step, or several steps in one launch. */
#ifndef MOEK_EXPERTS_H
#define MOEK_EXPERTS_H
#include <string.h>
#include "quantize.h"
#include "weights.h"

/* Batched: the most rows an expert can hold in this run, as far as the host knows; other ranks may send more. */
static int moek_live_rows_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const long long mine = (long long)step->tokens * plan->slots;
    return plan->chosen.one_rank && mine < plan->rows_per_expert ? (int)mine : plan->rows_per_expert;
}

/* Scratch: x in sorted order lies in step->out, two bytes an element, which down overwrites later. */
static moek_status moek_sort_x_(const moek_step *step, const moek_table_work_ *w, moek_gemm_args *g,
                                moek_stream stream)
{
    const moek_plan *plan = step->plan;
    size_t used = 0, at[3];
    moek_quantized_ to;
    moek_quant_args q;
    moek_take_quantized_(&used, plan->chosen.format, (size_t)step->tokens * (size_t)plan->slots,
                         (size_t)plan->config.hidden, 0, at);
    to = moek_quantized_at_(step->out, at);
    q = moek_quant_x_(step, w->slot_row, to);
    q.early = 1;
    g->a_rows = q.rows; g->a = to.q; g->a_scale = moek_quantizes_(plan->chosen.format) ? to.scale : NULL;
    g->rows.order = NULL; g->rows.div = 1;
    g->a_row_bytes = 0;
    return plan->chosen.quant->launch(&q, stream);
}

/* down of the kernels that do up and down in one launch: where h goes, quantized with static scales or with the scales
 * that the kernel finds. */
static moek_gemm_args moek_down_in_one_(const moek_step *step, const moek_table_work_ *w)
{
    const moek_plan *plan = step->plan;
    moek_gemm_args down = *moek_gemm_of_(plan, MOEK_OP_DOWN);
    down.a = moek_quantizes_(plan->chosen.format) ? w->hq.q : w->h;
    down.a_scale = moek_by_tensor_(plan->chosen.format) ? plan->weights.h_scale : w->hq.scale;
    down.out = step->out;
    return down;
}

/* Up, quantization of h and down by an up_down kernel. */
static moek_status moek_run_up_down_(const moek_kernel *up_down, const moek_step *step, const moek_table_work_ *w,
                                      moek_gemm_args *up, moek_stream stream)
{
    moek_gemm_args down = moek_down_in_one_(step, w);
    moek_up_down_args a;
    up->early = 1;
    down.rows.out_order = w->order;
    a.up = up; a.down = &down;
    a.flags = w->flags; a.ue8m0 = step->plan->config.ue8m0;
    return up_down->launch(&a, stream);
}

/* Weights of g become e4m3 in the workspace; then g has these and their scales, in the order of checkpoints. */
static moek_status moek_expand_(const moek_plan *plan, const moek_table_work_ *w, moek_gemm_args *g,
                                moek_stream stream)
{
    const int gated = g->w_rows > g->n;
    const moek_format *const to = moek_format_of(plan->chosen.up[plan->chosen.expanded]->quant);
    moek_expand_args a;
    moek_status status;
    memset(&a, 0, sizeof a);
    a.experts = g->experts; a.w_rows = g->w_rows; a.n = g->n; a.k = g->k;
    a.gate_first = g->gate_first; a.up_first = g->up_first;
    a.w_step = gated ? g->w_step : 1;
    a.columns = moek_w_scale_(plan->chosen.format)->columns;
    a.w = g->w.codes; a.w_scale = g->w.scales;
    a.w_global_scale = g->w.global_scale;
    a.to = w->expanded; a.to_scale = (float *)w->expanded_scale;
    status = plan->chosen.expand->launch(&a, stream);
    g->w.codes = w->expanded; g->w.scales = w->expanded_scale;
    g->w.layout = 0;
    g->scales_separate = gated && a.w_step == 1 && moek_rows_share_(to);
    g->early = 0;                                      /* a GEMM looks at weights before the previous kernel is done */
    return status;
}

/* Slots in the order of experts: sorted, but where the up kernel sorts; and what g reads of the order. */
static moek_status moek_sort_slots_(const moek_step *step, const moek_table_work_ *w, moek_gemm_args *g,
                                    moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_config *c = &plan->config;
    const moek_details *how = &step->selection.details;
    const moek_kernel *const up_down = step->selection.up_down;
    const moek_kernel *const up = up_down ? up_down : plan->chosen.up[how->tile];
    moek_sort_args s;
    moek_status status;
    memset(&s, 0, sizeof s);
    s.slots = step->rows * plan->slots; s.experts = plan->local_experts;
    s.block_m = up->m;
    g->max_blocks = moek_max_blocks(s.slots, plan->local_experts, s.block_m);
    s.ids = step->expert_ids;
    s.counts = w->counts; s.offsets = w->offsets; s.order = w->order;
    if (!up_down && up->traits & MOEK_TRAIT_ROW_BLOCKS) {
        s.block_expert = w->block_expert; s.block_row = w->block_row; s.num_blocks = w->num_blocks;
    }
    s.zeros = up_down ? up_down->flags + g->max_blocks : moek_gemm_flags_(plan, how->tile);
    s.zero = s.zeros ? w->flags : NULL;
    if (how->sorted_x) s.slot_row = w->slot_row;
    if (moek_early_(plan, plan->chosen.sort) && moek_local_(plan))       /* 1: beside the quantization of x */
        s.early = step->routed && !how->counts_ids ? 2
                : (moek_quantizes_(plan->chosen.format) || c->router_weight_on_input) && !how->sorted_x;
    if (!how->self_sorts && (status = plan->chosen.sort->launch(&s, stream)) != MOEK_OK) return status;
    if (how->self_sorts || how->counts_ids) { g->ids = s.ids; g->slots = s.slots; }
    g->rows.counts = w->counts; g->rows.offsets = w->offsets;
    g->rows.block_expert = w->block_expert; g->rows.block_row = w->block_row; g->rows.num_blocks = w->num_blocks;
    g->rows.order = w->order; g->rows.div = plan->slots;
    return how->sorted_x ? moek_sort_x_(step, w, g, stream) : MOEK_OK;
}

/* Quantization of h, which lies as rows of g do. */
static moek_status moek_quantize_h_(const moek_step *step, const moek_table_work_ *w, const moek_gemm_args *g,
                                    moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_config *c = &plan->config;
    const moek_details *how = &step->selection.details;
    const int each = plan->rows_per_expert;
    const size_t rows = each ? (size_t)g->experts * (size_t)each : (size_t)(step->rows * plan->slots);
    moek_quant_args q = moek_quant_to_(plan, w->h, rows, (size_t)c->inter, w->hq);
    q.ue8m0 = moek_rounds_up_(c, plan->chosen.h_format);
    q.static_scale = plan->weights.h_scale;
    q.group_offset = moek_blocked_(plan->chosen.h_format) ? c->inter_offset : 0;
    if (each) { q.counts = g->rows.counts; q.rows_per_expert = each; }
    else if (!how->self_sorts) q.row_limit = w->offsets + g->experts;
    q.early = moek_early_(plan, plan->chosen.h_quant);
    q.max_blocks = how->h_sms;
    return plan->chosen.h_quant->launch(&q, stream);
}

static moek_status moek_table_apply_(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_config *c = &plan->config;
    const moek_details *how = &step->selection.details;
    const moek_kernel *const up = plan->chosen.up[how->tile], *const down = plan->chosen.down[how->tile];
    const int batched = plan->rows_per_expert, quantizes_h = moek_quantizes_(plan->chosen.h_format);
    moek_table_work_ w = moek_table_work_of_(step);
    moek_gemm_args g = *moek_gemm_of_(plan, MOEK_OP_UP), d;
    moek_status status;
    (void)self;

    stream = moek_stream_of_step_(step, stream);
    g.a_rows = batched ? g.experts * batched : step->rows;
    g.a = step->a; g.a_scale = step->a_scale;
    g.a_row_bytes = (int)moek_x_bytes_(plan->chosen.format, step->a_stride);
    if (batched) {
        g.max_blocks = (moek_live_rows_(step) + up->m - 1) / up->m;
        g.rows.counts = step->expert_tokens;
    } else if ((status = moek_sort_slots_(step, &w, &g, stream)) != MOEK_OK) {
        return status;
    }
    if (step->selection.up_down) return moek_run_up_down_(step->selection.up_down, step, &w, &g, stream);

    g.out = w.h;
    g.early = moek_early_(plan, up);
    g.split = w.split; g.split_flags = w.flags;
    if (how->requantizes) {
        if (moek_by_tensor_(plan->chosen.format)) w.hq.scale = (void *)plan->weights.h_scale;
        g.q = w.hq.q; g.q_scale = (float *)w.hq.scale; g.epilogue.ue8m0 = c->ue8m0;
    }
    if (how->expands && (status = moek_expand_(plan, &w, &g, stream)) != MOEK_OK) return status;
    if ((status = up->launch(&g, stream)) != MOEK_OK) return status;
    if (quantizes_h && !how->requantizes && (status = moek_quantize_h_(step, &w, &g, stream)) != MOEK_OK)
        return status;

    d = *moek_gemm_of_(plan, MOEK_OP_DOWN);
    d.rows = g.rows; d.max_blocks = g.max_blocks;
    d.rows.out_order = batched ? NULL : w.order;      /* back to slot order: out is [rows][slots][hidden] */
    d.rows.order = NULL; d.rows.div = 1;
    d.a_rows = batched ? g.a_rows : step->rows * plan->slots;
    d.a = quantizes_h ? w.hq.q : w.h; d.a_scale = quantizes_h ? w.hq.scale : NULL;
    d.out = step->out;
    if (down->traits & MOEK_TRAIT_SORTS_IDS) { d.ids = g.ids; d.slots = g.slots; }
    d.split = g.split; d.split_flags = w.flags ? w.flags + up->flags : NULL;
    d.early = moek_early_(plan, down);
    if (how->expands && (status = moek_expand_(plan, &w, &d, stream)) != MOEK_OK) return status;
    return down->launch(&d, stream);
}

/* All behind routing in one launch. */
static moek_status moek_layer_(const moek_kernel *layer, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_one_rank_ one = moek_one_rank_work_(step);
    const moek_table_work_ w = moek_table_work_of_(step);
    moek_gemm_args up = *moek_gemm_of_(plan, MOEK_OP_UP), down = moek_down_in_one_(step, &w);
    moek_layer_args a;
    memset(&a, 0, sizeof a);
    up.a = moek_quantizes_(plan->chosen.format) ? one.a.q : step->args.x;
    up.a_scale = moek_by_tensor_(plan->chosen.format) ? plan->weights.x_scale : one.a.scale;
    a.tokens = step->tokens; a.topk = plan->slots;
    a.ids = step->ids; a.weights = step->topk_weights;
    a.x = step->args.x; a.x_stride = (int)moek_x_stride_(&step->args, &plan->config);
    a.ue8m0 = plan->config.ue8m0;
    a.up = &up; a.down = &down;
    a.addend = step->args.shared_y; a.addend_stride = (int)moek_shared_y_stride_(&step->args, &plan->config);
    a.y = step->args.y; a.y_stride = (int)moek_y_stride_(&step->args, &plan->config);
    a.split = w.split;
    a.state = (moek_layer_state *)step->args.state;
    a.discard = 1;
    return layer->launch(&a, stream);
}
#endif
