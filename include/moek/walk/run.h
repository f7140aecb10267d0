/* moek/walk/run.h -- the walk: route, prepare, experts, finalize. */
#ifndef MOEK_RUN_H
#define MOEK_RUN_H
#include <string.h>
#include "experts.h"
#include "route.h"

/* Rows by which the kernels of a step are selected, before dispatch.  Host counts only: what the device knows better
 * may cost speed, never correctness. */
static int moek_selection_rows_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const int senders = plan->prepare_finalize->num_dispatchers;
    return plan->rows_per_expert ? step->tokens * (senders > 1 ? senders : 1)
         : plan->chosen.one_rank ? step->tokens : step->rows;
}

/* The step of tokens first .. first + tokens - 1: pointers moved, workspace laid out, kernels selected. */
static void moek_slice_(const moek_plan *plan, const moek_args *args, int first, int tokens, int fuse,
                        moek_step *step)
{
    const moek_config *c = &plan->config;
    const size_t row = 2 * (size_t)first, slot = (size_t)first * (size_t)plan->slots;
    int32_t *ids;
    float *weights;
    memset(step, 0, sizeof *step);
    step->plan = plan;
    step->args = *args;
    step->first = first;
    step->tokens = step->args.tokens = tokens;
    step->a_stride = (size_t)c->hidden;
    moek_place_step_(step, args->workspace);
    step->selection = moek_selection_of(plan, moek_selection_rows_(step), args->state ? fuse : MOEK_FUSE_NONE);
    if (!tokens) return;
    step->args.x = (const char *)args->x + row * moek_x_stride_(args, c);
    step->args.y = (char *)args->y + row * moek_y_stride_(args, c);
    if (args->shared_y) step->args.shared_y = (const char *)args->shared_y + row * moek_shared_y_stride_(args, c);
    if (args->router_logits)
        step->args.router_logits = (const char *)args->router_logits +
                                   (size_t)first * moek_logits_stride_(plan, args) * moek_logit_bytes_(c->logits_dtype);
    if (args->shared_weights)
        step->args.shared_weights = args->shared_weights + (size_t)first * (size_t)c->shared_slots;
    if (args->token_ids) step->args.token_ids = args->token_ids + first;
    if (args->is_padding) step->args.is_padding = args->is_padding + first;
    ids = args->topk_ids ? args->topk_ids + slot : NULL;
    weights = args->topk_weights ? args->topk_weights + slot : NULL;
    step->args.topk_ids = ids;
    step->args.topk_weights = weights;
    if (args->topk_ids64) step->args.topk_ids64 = args->topk_ids64 + slot;     /* step->topk_ids: in the workspace */
    if (ids) step->topk_ids = ids;                    /* the caller's arrays are read, or written, in place */
    if (weights) step->topk_weights = weights;
}

moek_status moek_begin(const moek_plan *plan, const moek_args *args, moek_step *step)
{
    moek_status status = moek_check_run_(plan, args, NULL);
    if (status != MOEK_OK) return status;
    if (!step) MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "step is NULL");
    if (args->tokens > plan->chunk)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.tokens is %d; the stages take at most plan.chunk = %d at once",
                     args->tokens, plan->chunk);
    moek_slice_(plan, args, 0, args->tokens, MOEK_FUSE_UP_DOWN, step);
    return MOEK_OK;
}

moek_status moek_prepare_send(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->prepare_send ? pf->prepare_send(pf, step, stream) : MOEK_OK;
}

moek_status moek_prepare_receive(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->prepare_receive ? pf->prepare_receive(pf, step, stream) : MOEK_OK;
}

/* No rows reached this rank: nothing to compute, and finalize still takes part. */
moek_status moek_experts_apply(moek_step *step, moek_stream stream)
{
    const moek_experts *experts;
    MOEK_BEGUN_(step);
    experts = step->plan->experts;
    /* Rows from other ranks: their number is known only now. */
    if (!step->plan->chosen.one_rank)
        step->selection = moek_selection_of(step->plan, moek_selection_rows_(step), MOEK_FUSE_NONE);
    return step->rows > 0 ? experts->apply(experts, step, stream) : MOEK_OK;
}

moek_status moek_finalize_send(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->finalize_send ? pf->finalize_send(pf, step, step->plan->experts->weight_and_reduce, stream) : MOEK_OK;
}

moek_status moek_finalize_receive(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->finalize_receive
         ? pf->finalize_receive(pf, step, step->plan->experts->weight_and_reduce, stream) : MOEK_OK;
}

moek_status moek_prepare(moek_step *step, moek_stream stream)
{
    const moek_status status = moek_prepare_send(step, stream);
    return status != MOEK_OK ? status : moek_prepare_receive(step, stream);
}

moek_status moek_finalize(moek_step *step, moek_stream stream)
{
    moek_status status = moek_finalize_send(step, stream);
    int shared;
    if (status != MOEK_OK) return status;
    shared = step->tokens && step->args.shared;
    if (shared)
        status = step->args.shared(step->args.shared_context, step->first, step->tokens, stream);
    step->straight = !shared;
    if (status == MOEK_OK) status = moek_finalize_receive(step, stream);
    step->straight = 0;
    return status;
}

/* A user's part may have left its own sentence. */
static moek_status moek_failed_(const moek_args *args, moek_status status, int first)
{
    if (args->why && args->why_size && args->why[0]) return status;
    MOEK_REFUSE_(args, status, "a step failed at token %d: %s", first, moek_status_text(status));
}

moek_status moek_run(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const int fuse = args && args->shared ? MOEK_FUSE_UP_DOWN : MOEK_FUSE_LAYER;  /* shared: something between steps */
    moek_step step;
    int first, end;
    moek_status status = moek_check_run_(plan, args, stream);
    if (status != MOEK_OK) return status;
    end = plan->prepare_finalize->collective ? plan->config.max_tokens : args->tokens;
    for (first = 0;; first += plan->chunk) {
        const int left = args->tokens > first ? args->tokens - first : 0;
        moek_slice_(plan, args, first, left < plan->chunk ? left : plan->chunk, fuse, &step);
        if ((status = moek_route(&step, stream)) != MOEK_OK) return moek_failed_(args, status, first);
        step.routed = step.args.router_logits != NULL;
        if (step.selection.layer) status = moek_layer_(step.selection.layer, &step, stream);
        else if ((status = moek_prepare(&step, stream)) == MOEK_OK &&
                 (status = moek_experts_apply(&step, stream)) == MOEK_OK)
            status = moek_finalize(&step, stream);
        if (status != MOEK_OK) return moek_failed_(args, status, first);
        if (end - first <= plan->chunk) return MOEK_OK;
    }
}
#endif
