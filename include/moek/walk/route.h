/* moek/walk/route.h -- logits to ids and weights, then ids to experts of this rank. */
#ifndef MOEK_ROUTE_H
#define MOEK_ROUTE_H
#include <string.h>
#include "../plan/bind.h"
#include "../plan/rule.h"
#include "arguments.h"
#include "threads.h"

static moek_status moek_route_logits_(moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    moek_route_args a = plan->chosen.router;
    a.tokens = step->tokens;
    a.logits = step->args.router_logits;
    a.logits_stride = moek_logits_stride_(plan, &step->args);
    a.token_ids = step->args.token_ids;
    a.is_padding = step->args.is_padding;
    a.shared_weights = step->args.shared_weights;
    a.ids = step->topk_ids; a.weights = step->topk_weights; a.ids64 = step->args.topk_ids64;
    return plan->chosen.route->launch(&a, stream);
}

/* Ids that are given as int64: the map makes them int32. */
static int moek_ids_are_int64_(const moek_step *step) { return step->args.topk_ids64 && !step->args.router_logits; }

/* Nothing is to be mapped, and only built-in steps read the ids: those steps skip ids out of range by themselves. */
static int moek_ids_are_local_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const moek_weights *w = &plan->weights;
    const int ours = plan->backend != MOEK_BACKEND_USER && plan->chosen.one_rank;
    const int padding = step->args.is_padding && !step->args.router_logits;
    return ours && !w->replicas && !w->expert_map && !w->expert_load && !padding && !moek_ids_are_int64_(step);
}

/* A step that moek_begin refused, or never saw. */
#define MOEK_BEGUN_(step) if (!(step) || !moek_planned_((step)->plan)) return MOEK_E_ARGUMENT

/* moek_step: ids after this are experts of this rank (of any, where prepare/finalize is collective), or -1. */
moek_status moek_route(moek_step *step, moek_stream stream)
{
    const moek_plan *plan;
    const moek_weights *w;
    moek_map_args a;
    moek_status status;
    MOEK_BEGUN_(step);
    plan = step->plan; w = &plan->weights;
    if ((status = moek_check_part_(plan, &step->args)) != MOEK_OK || !step->tokens) return status;
    stream = moek_stream_of_step_(step, stream);
    if (step->args.router_logits && (status = moek_route_logits_(step, stream)) != MOEK_OK) return status;
    if (moek_ids_are_local_(step)) {
        step->ids = step->topk_ids;
        return MOEK_OK;
    }
    memset(&a, 0, sizeof a);
    a.tokens = step->tokens; a.topk = plan->slots; a.first = step->first;
    a.experts = moek_id_bound_(plan);
    a.physical = plan->config.physical_experts; a.max_replicas = plan->config.max_replicas;
    a.ids = step->topk_ids;
    if (moek_ids_are_int64_(step)) { a.ids64 = step->args.topk_ids64; a.given = step->topk_ids; }
    a.replicas = w->replicas; a.replica_count = w->replica_count;
    a.map = plan->prepare_finalize->collective ? NULL : w->expert_map; a.load = w->expert_load;
    a.is_padding = step->args.is_padding;
    a.out = (int32_t *)step->ids;
    return plan->chosen.map->launch(&a, stream);
}
#endif
