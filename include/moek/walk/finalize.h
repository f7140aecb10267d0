/* moek/walk/finalize.h -- rows of the experts, weighted and added, to y, on one rank. */
#ifndef MOEK_FINALIZE_H
#define MOEK_FINALIZE_H
#include <string.h>
#include "../plan/workspace.h"
#include "overlap.h"
#include "threads.h"

static moek_status moek_nothing_to_send_(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                         moek_stream stream)
{
    (void)self; (void)step; (void)weight_and_reduce; (void)stream;
    return MOEK_OK;
}

static moek_status moek_one_rank_finalize_(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                           moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int batched = self->format == MOEK_BATCHED;
    moek_combine_args a;
    if (weight_and_reduce == MOEK_DELEGATE) weight_and_reduce = batched ? MOEK_NAIVE_BATCHED : MOEK_CONTIGUOUS;
    memset(&a, 0, sizeof a);
    a.tokens = step->tokens; a.topk = plan->slots; a.hidden = plan->config.hidden;
    a.experts = plan->local_experts;
    a.dtype = plan->config.dtype;
    a.rows = step->out;
    a.ids = step->ids;
    a.weights = plan->config.router_weight_on_input ? NULL : step->topk_weights;
    a.addend = step->args.shared_y; a.addend_stride = (int)moek_shared_y_stride_(&step->args, &plan->config);
    a.y = step->args.y; a.y_stride = (int)moek_y_stride_(&step->args, &plan->config);
    if (step->out == step->args.y) a.rows_stride = a.y_stride;         /* NOOP */
    a.discard = step->selection.details.discards && weight_and_reduce != MOEK_NOOP;        /* NOOP: rows may be y */
    if (weight_and_reduce == MOEK_NOOP) {             /* one row a token, all done: only the shared experts are left */
        if (step->out == step->args.y && !a.addend) return MOEK_OK;
        a.topk = 1; a.ids = NULL; a.weights = NULL;
    } else if (weight_and_reduce == MOEK_NAIVE_BATCHED) {
        a.slot_row = moek_one_rank_work_(step).slot_row;
    }
    a.early = moek_early_(plan, plan->chosen.combine);
    return plan->chosen.combine->launch(&a, moek_stream_of_step_(step, stream));
}
#endif
