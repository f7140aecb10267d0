/* moek/plan/bind.h -- the weights of a plan: is there what the format and the config need, and is it aligned. */
#ifndef MOEK_BIND_H
#define MOEK_BIND_H
#include "alignment.h"

/* How groups score: as asked, else as the method says, but for a bias. */
static int moek_group_score_(const moek_plan *plan)
{
    const int own = moek_method_of_(plan->config.routing)->group_score;
    if (plan->config.group_score) return plan->config.group_score;
    return plan->weights.router_bias ? MOEK_GROUP_SCORE_TOP2 : own;
}

/* What a router's weights must be beside each other, and beside the config. */
static moek_status moek_check_router_weights_(const moek_config *c, const moek_weights *w, moek_text_ *why)
{
    if (c->routing == MOEK_ROUTE_SPARSEMIXER && (w->router_bias || w->router_table))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.router_bias or router_table is given; "
                   "MOEK_ROUTE_SPARSEMIXER has neither");
    if (w->router_table && w->router_table_rows < 1)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.router_table_rows is %d, but router_table is given: set it to the "
                   "rows of router_table (the vocabulary), token ids must be below it", w->router_table_rows);
    if (!w->router_table && w->router_table_rows)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.router_table_rows is %d, but router_table is NULL",
                   w->router_table_rows);
    if (w->router_table && w->router_bias)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.router_bias is given beside router_table, but a bias only decides "
                   "which experts are chosen, and the table does that: one of them must be NULL");
    if (w->router_table && c->groups > 1)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.router_table is given, but config.groups is %d, and groups only "
                   "decide which experts are chosen: the table does that, so set groups and topk_groups 0", c->groups);
    return MOEK_OK;
}

/* weights.w_gate and what belongs to it: all of it where config.up_layout says so, else nothing. */
static moek_status moek_bind_separate_(const moek_plan *plan, const moek_weights *weights, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const uintptr_t gate = (uintptr_t)weights->w_gate, up = (uintptr_t)weights->w_up;
    int i, maps = 0;
    if (c->up_layout != MOEK_UP_SEPARATE) {
        if (weights->w_gate || weights->w_gate_scale || weights->w_gate_bias)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is given, but config.up_layout is not MOEK_UP_SEPARATE: "
                       "set it, or put gate and up into one array",
                       weights->w_gate ? "w_gate" : weights->w_gate_scale ? "w_gate_scale" : "w_gate_bias");
        return MOEK_OK;
    }
    if (!weights->w_gate)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_gate is NULL; config.up_layout is MOEK_UP_SEPARATE, so gate is "
                   "there and w_up is up alone");
    if (gate == up)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_gate and w_up are the same array; config.up_layout is "
                   "MOEK_UP_SEPARATE, so they are two");
    if (!weights->w_gate_scale != !weights->w_up_scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is NULL and %s is given: weights with scales need them for both, "
                   "other ones have none", weights->w_gate_scale ? "w_up_scale" : "w_gate_scale",
                   weights->w_gate_scale ? "w_gate_scale" : "w_up_scale");
    if (!weights->w_gate_bias != !weights->w_up_bias)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is NULL and %s is given: biases of both, or of neither",
                   weights->w_gate_bias ? "w_up_bias" : "w_gate_bias",
                   weights->w_gate_bias ? "w_gate_bias" : "w_up_bias");
    for (i = 0; i < plan->chosen.gemms; i++) maps |= plan->chosen.up[i]->traits & MOEK_TRAIT_W_MAPS;
    if (maps && (uint64_t)(gate < up ? up - gate : gate - up) >> MOEK_SM90_APART)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_gate and w_up are 2^%d bytes apart or more, too far for a stride "
                   "of a TMA map: allocate them closer, or set config.backend = MOEK_BACKEND_SM80",
                   MOEK_SM90_APART);
    return MOEK_OK;
}

/* weights.w_up_global_scale and its like: all of them where the format has a global scale, else none. */
static moek_status moek_bind_global_scale_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int takes = moek_format_of(c->quant)->global_scale, apart = c->up_layout == MOEK_UP_SEPARATE;
    const char *const given = w->w_up_global_scale ? "w_up_global_scale" : w->w_down_global_scale
                            ? "w_down_global_scale" : w->w_gate_global_scale ? "w_gate_global_scale" : NULL;
    const char *const missing = !w->w_up_global_scale ? "w_up_global_scale" : !w->w_down_global_scale
                              ? "w_down_global_scale" : apart && !w->w_gate_global_scale ? "w_gate_global_scale" : NULL;
    if (!takes && given)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is given, but config.quant is %s, which has no global scale",
                   given, moek_quant_name(c->quant));
    if (takes && missing)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s has a global scale, one an expert", missing,
                   moek_quant_name(c->quant));
    if (!apart && w->w_gate_global_scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_gate_global_scale is given, but config.up_layout is not "
                   "MOEK_UP_SEPARATE: w_up_global_scale has that of gate, too");
    return MOEK_OK;
}

/* weights.w_up_zero and its like: of all weights or of none, and only where the format may have them. */
static moek_status moek_bind_zeros_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int apart = c->up_layout == MOEK_UP_SEPARATE, any = w->w_up_zero || w->w_down_zero || w->w_gate_zero;
    if (any && !moek_format_of(c->quant)->zero)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_up_zero, w_down_zero or w_gate_zero is given, but config.quant is "
                   "%s, which has no zero points", moek_quant_name(c->quant));
    if (any && (!w->w_up_zero || !w->w_down_zero || !w->w_gate_zero != !apart))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_up_zero and w_down_zero go together, and w_gate_zero with them "
                   "where config.up_layout is MOEK_UP_SEPARATE, and only there");
    return MOEK_OK;
}

moek_status moek_plan_bind(moek_plan *plan, const moek_weights *weights)
{
    moek_status status;
    moek_text_ why;
    const moek_config *c;
    if (!plan) return MOEK_E_ARGUMENT;
    why = moek_text_in_(plan->why, sizeof plan->why);
    c = &plan->config;
    plan->bound = 0;
    if (!plan->backend)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "the plan is not initialized: moek_plan_init did not return MOEK_OK");
    if (!weights) MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights is NULL");
#define MOEK_NEED_(field, condition, reason) \
    if ((condition) && !weights->field) MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights." #field " is NULL; %s", reason)
    if (plan->backend != MOEK_BACKEND_USER) {
        const int blocks = moek_in_blocks_(moek_format_of(c->quant), c->weight_layout);
        const int scaled = moek_w_scale_(c->quant)->type && !blocks;
        MOEK_NEED_(w_up, 1, "every layer needs it");
        MOEK_NEED_(w_down, 1, "every layer needs it");
        if (scaled && (!weights->w_up_scale || !weights->w_down_scale))
            MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s weights need scales",
                       weights->w_up_scale ? "w_down_scale" : "w_up_scale", moek_quant_name(c->quant));
        if (!scaled && (weights->w_up_scale || weights->w_down_scale))
            MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights.w_up_scale or w_down_scale is given, but config.quant is %s, "
                       "which has none%s", moek_quant_name(c->quant), blocks ? " beside its blocks" : "");
        if ((status = moek_bind_separate_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_global_scale_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_zeros_(plan, weights, &why)) != MOEK_OK) return status;
        if (!moek_format_of(c->quant)->static_x && (weights->x_scale || weights->h_scale))
            MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights.x_scale or h_scale is given, but only formats with static "
                       "scales have them, not %s", moek_quant_name(c->quant));
        if (moek_x_global_scale_(c->quant) && (!weights->x_scale || !weights->h_scale))
            MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s needs x_scale and h_scale, a factor on top of "
                       "the scales of x and of h", weights->x_scale ? "h_scale" : "x_scale", moek_quant_name(c->quant));
        if (c->batch_invariant && moek_by_tensor_(c->quant) && (!weights->x_scale || !weights->h_scale))
            MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "kernel does not support batch invariance: "
                       "%s needs x_scale and h_scale for it", moek_quant_name(c->quant));
    }
    if (!moek_aligned_(plan, &moek_in_weights_, weights, 0, moek_in_weights_.n, &why)) return MOEK_E_ARGUMENT;
    if ((status = moek_check_router_weights_(c, weights, &why)) != MOEK_OK) return status;
    MOEK_NEED_(expert_map, c->local_experts != c->physical_experts && !plan->prepare_finalize->collective,
               "local_experts differs from physical_experts, so it must say which are here");
    if (weights->expert_map && plan->prepare_finalize->collective)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT,
                   "weights.expert_map is given, but prepare/finalize %s knows where experts are",
                   plan->prepare_finalize->name);
    MOEK_NEED_(replica_count, weights->replicas != NULL, "replicas needs it");
    if (weights->replica_count && !weights->replicas)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "weights.replica_count is given, but replicas is NULL");
    if (weights->replicas && c->max_replicas < 1)
        MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "config.max_replicas is %d, but weights.replicas is given", c->max_replicas);
    MOEK_NEED_(replicas, c->physical_experts < c->experts + c->shared_slots,
               "there are fewer physical than logical experts");
#undef MOEK_NEED_
    plan->weights = *weights;
    plan->bound = 1;
    return MOEK_OK;
}
#endif
