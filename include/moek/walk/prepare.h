/* moek/walk/prepare.h -- rows of x to the experts, on one rank: quantize; batched: dispatch, too. */
#ifndef MOEK_PREPARE_H
#define MOEK_PREPARE_H
#include <string.h>
#include "quantize.h"

/* Nothing to send on one rank: quantize, and multiply by the router's weight where that is asked for. */
static moek_status moek_local_prepare_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int defer = plan->experts->expects_unquantized;
    const moek_details *how = &step->selection.details;
    const moek_one_rank_ w = moek_one_rank_work_(step);
    moek_quant_args a;
    (void)self;
    step->a = step->args.x;
    step->a_scale = NULL;
    step->rows = step->tokens;
    step->expert_ids = step->ids;
    step->expert_weights = step->topk_weights;
    step->expert_tokens = NULL;
    step->a_stride = moek_x_stride_(&step->args, &plan->config);
    if ((defer || !moek_quantizes_(plan->chosen.format)) && !plan->config.router_weight_on_input) return MOEK_OK;
    if (how->sorted_x) return MOEK_OK;          /* moek_table_apply_ quantizes behind its sort */
    step->a_stride = (size_t)plan->config.hidden;
    a = moek_quant_x_(step, NULL, w.a);
    if (how->self_sorts && !plan->config.batch_invariant) {
        a.zero = (int32_t *)step->experts_workspace;
        a.zeros = moek_gemm_flags_(plan, how->tile);
    }
    a.max_blocks = how->x_sms;
    if (!how->counts_ids && !how->self_sorts && moek_early_(plan, plan->chosen.quant) && step->routed &&
        moek_local_(plan))
        a.early = a.row_weight ? 1 : 2;               /* 2: beside routing */
    step->a = w.a.q;
    step->a_scale = moek_quantizes_(plan->chosen.format) ? w.a.scale : NULL;
    return plan->chosen.quant->launch(&a, moek_stream_of_step_(step, stream));
}

/* Rows to [local experts][rows_per_expert][hidden], in token order within an expert. */
static moek_status moek_batched_prepare_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_one_rank_ w = moek_one_rank_work_(step);
    moek_sort_args s;
    moek_quant_args a;
    moek_status status;
    (void)self;
    stream = moek_stream_of_step_(step, stream);
    memset(&s, 0, sizeof s);
    s.slots = step->tokens * plan->slots;
    s.experts = plan->local_experts;
    s.rows_per_expert = plan->rows_per_expert;
    s.ids = step->ids; s.counts = w.counts; s.slot_row = w.slot_row;
    s.early = moek_early_(plan, plan->chosen.sort) && step->routed ? 2 : 0;
    if ((status = plan->chosen.sort->launch(&s, stream)) != MOEK_OK) return status;
    a = moek_quant_x_(step, w.slot_row, w.a);
    step->a = w.a.q;
    step->a_scale = moek_quantizes_(plan->chosen.format) ? w.a.scale : NULL;
    a.early = moek_early_(plan, plan->chosen.quant);
    step->rows = plan->rows_per_expert;
    step->expert_ids = NULL;
    step->expert_weights = NULL;
    step->expert_tokens = w.counts;
    return plan->chosen.quant->launch(&a, stream);
}

static moek_status moek_nothing_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    (void)self; (void)step; (void)stream;
    return MOEK_OK;
}
#endif
