/* moek/plan/bind.h -- the weights of a plan: is there what the format and the config need, and is it aligned. */
#ifndef MOEK_BIND_H
#define MOEK_BIND_H
#include "alignment.h"
#include "gemms.h"

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

/* The field of config that says the format of an op's weights. */
static const char *moek_quant_field_(const moek_config *c, int op)
{
    return op == MOEK_OP_DOWN && moek_two_formats_(c) ? "down_quant" : "quant";
}

/* The scales of a GEMM's weights. */
static moek_status moek_bind_scales_(const moek_config *c, const void *scale, int op, moek_text_ *why)
{
    const moek_format *const f = moek_format_at_(c, op);
    const int blocks = moek_layout_at_(c, op) == MOEK_WEIGHTS_BLOCKS;
    const int scaled = moek_w_scale_(f)->type && !blocks;
    if (scaled && !scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_%s_scale is NULL; %s weights need scales", moek_op_name_(op),
                   f->name);
    if (!scaled && scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_%s_scale is given, but config.%s is %s, which has none%s",
                   moek_op_name_(op), moek_quant_field_(c, op), f->name,
                   blocks ? " beside its blocks" : "");
    return MOEK_OK;
}

/* weights.w_up_global_scale and its like: all of them where the format has a global scale, else none. */
static moek_status moek_bind_global_scale_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int apart = c->up_layout == MOEK_UP_SEPARATE;
    const struct { const char *name; const void *at; int op, there; } all[] = {
        { "w_up_global_scale", w->w_up_global_scale, MOEK_OP_UP, 1 },
        { "w_down_global_scale", w->w_down_global_scale, MOEK_OP_DOWN, 1 },
        { "w_gate_global_scale", w->w_gate_global_scale, MOEK_OP_UP, apart },
    };
    int i;
    for (i = 0; i < 3; i++) {
        const int quant = moek_quant_at_(c, all[i].op), takes = moek_format_of(quant)->global_scale;
        if (all[i].at && !takes)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is given, but config.%s is %s, which has no global scale",
                       all[i].name, moek_quant_field_(c, all[i].op), moek_quant_name(quant));
        if (!all[i].at && takes && all[i].there)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s has a global scale, one an expert", all[i].name,
                       moek_quant_name(quant));
    }
    if (!apart && w->w_gate_global_scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_gate_global_scale is given, but config.up_layout is not "
                   "MOEK_UP_SEPARATE: w_up_global_scale has gate's, too");
    return MOEK_OK;
}

/* weights.w_up_zero and its like: of all weights of a format or of none, and only where the format may have them. */
static moek_status moek_bind_zeros_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int apart = c->up_layout == MOEK_UP_SEPARATE;
    const int up = w->w_up_zero || w->w_gate_zero, down = w->w_down_zero != NULL;
    const int both = up || (down && !moek_two_formats_(c));
    int op;
    for (op = MOEK_OP_UP; op <= MOEK_OP_DOWN; op++) {
        const moek_format *const f = moek_format_at_(c, op);
        if ((op == MOEK_OP_UP ? up : down) && !f->zero)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_up_zero, w_down_zero or w_gate_zero is given, but config.%s is "
                       "%s, which has no zero points", moek_quant_field_(c, op), f->name);
    }
    if (both && (!w->w_up_zero || !w->w_gate_zero != !apart || (!down && !moek_two_formats_(c))))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.w_up_zero and w_down_zero go together, and w_gate_zero with them "
                   "where config.up_layout is MOEK_UP_SEPARATE, and only there");
    return MOEK_OK;
}

/* weights.x_scale and h_scale: static scales of x in its format, and of h in the format of w_down. */
static moek_status moek_bind_static_(const moek_config *c, const void *scale, int op, moek_text_ *why)
{
    const moek_format *const f = moek_format_at_(c, op);
    const char *const name = op == MOEK_OP_UP ? "x" : "h";
    if (!f->static_x && scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s_scale is given, but only formats with static scales have it, not "
                   "%s", name, f->name);
    if (moek_x_global_scale_(f) && !scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "weights.%s_scale is NULL; %s needs it, a factor on top of the scales of %s",
                   name, f->name, name);
    if (c->batch_invariant && moek_by_tensor_(f) && !scale)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "kernel does not support batch invariance: %s needs %s_scale for it",
                   f->name, name);
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
        MOEK_NEED_(w_up, 1, "every layer needs it");
        MOEK_NEED_(w_down, 1, "every layer needs it");
        if ((status = moek_bind_scales_(c, weights->w_up_scale, MOEK_OP_UP, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_scales_(c, weights->w_down_scale, MOEK_OP_DOWN, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_separate_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_global_scale_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_zeros_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_static_(c, weights->x_scale, MOEK_OP_UP, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_static_(c, weights->h_scale, MOEK_OP_DOWN, &why)) != MOEK_OK) return status;
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
    moek_bind_gemms_(plan);
    moek_bind_router_(plan);
    plan->bound = 1;
    return MOEK_OK;
}
#endif
