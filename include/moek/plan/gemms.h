/* moek/plan/gemms.h -- what GEMMs and the router are handed in each run, found once: sizes by moek_plan_init, weights
 * by moek_plan_bind.  A run copies the structs, and adds rows and what lies in its workspace. */
#ifndef MOEK_GEMMS_H
#define MOEK_GEMMS_H
#include <string.h>
#include "arch.h"

static const moek_gemm_args *moek_gemm_of_(const moek_plan *plan, int op)
{
    return &plan->chosen.gemm[op == MOEK_OP_DOWN];
}

/* Sizes, and where rows of gate and of up lie. */
static void moek_size_gemms_(moek_plan *plan)
{
    const moek_config *const c = &plan->config;
    const int gated = moek_act_gated_(c->act), layout = gated ? c->up_layout : MOEK_UP_GATE_UP;
    moek_gemm_args *const up = &plan->chosen.gemm[0], *const down = &plan->chosen.gemm[1];
    int i;
    memset(up, 0, sizeof *up);
    up->experts = plan->local_experts; up->dtype = c->dtype;
    up->rows_per_expert = plan->rows_per_expert; up->rows.div = 1;
    up->invariant = c->batch_invariant;
    *down = *up;
    up->n = c->inter; up->k = c->hidden; up->w_rows = gated ? 2 * c->inter : c->inter;
    down->n = down->w_rows = c->hidden; down->k = c->inter;
    for (i = 0; i < 2; i++) plan->chosen.gemm[i].w.layout = moek_layout_at_(c, i ? MOEK_OP_DOWN : MOEK_OP_UP);
    up->n_offset = down->k_offset = c->inter_offset;
    up->scales_separate = gated && c->up_scales;
    up->w_step = layout == MOEK_UP_INTERLEAVED ? 2 : 1;
    up->gate_first = layout == MOEK_UP_SWAPPED ? c->inter : 0;
    up->up_first = layout == MOEK_UP_INTERLEAVED ? 1 : layout == MOEK_UP_SWAPPED ? 0 : c->inter;
    up->epilogue.act = c->act; up->epilogue.alpha = c->alpha; up->epilogue.beta = c->beta;
    up->epilogue.limit = c->limit;
}

/* The matrices of plan->weights. */
static void moek_bind_gemms_(moek_plan *plan)
{
    const moek_weights *const w = &plan->weights;
    moek_gemm_args *const up = &plan->chosen.gemm[0], *const down = &plan->chosen.gemm[1];
#define MOEK_MATRIX_(to, name) \
    ((to).codes = w->w_##name, (to).scales = w->w_##name##_scale, (to).bias = w->w_##name##_bias, \
     (to).global_scale = w->w_##name##_global_scale, (to).zero_points = w->w_##name##_zero)
    MOEK_MATRIX_(up->w, up);
    MOEK_MATRIX_(up->gate, gate);
    MOEK_MATRIX_(down->w, down);
#undef MOEK_MATRIX_
    up->a_global_scale = moek_x_global_scale_(plan->chosen.format) ? w->x_scale : NULL;
    down->a_global_scale = moek_x_global_scale_(plan->chosen.h_format) ? w->h_scale : NULL;
}

/* How groups score: as asked, else as the method says, but for a bias. */
static int moek_group_score_(const moek_plan *plan)
{
    const int own = moek_method_of_(plan->config.routing)->group_score;
    if (plan->config.group_score) return plan->config.group_score;
    return plan->weights.router_bias ? MOEK_GROUP_SCORE_TOP2 : own;
}
static void moek_bind_router_(moek_plan *plan)
{
    const moek_config *const c = &plan->config;
    const moek_weights *const w = &plan->weights;
    const moek_method_ *const method = moek_method_of_(c->routing);
    moek_route_args *const a = &plan->chosen.router;
    memset(a, 0, sizeof *a);
    a->score = method->score; a->normalize = method->normalize; a->eps = c->router_eps;
    a->experts = c->experts; a->topk = c->topk;
    a->scale = c->scale;
    a->groups = c->groups; a->topk_groups = c->topk_groups; a->group_score = moek_group_score_(plan);
    a->logits_dtype = c->logits_dtype;
    a->bias = w->router_bias; a->expert_scale = w->router_expert_scale;
    a->table = w->router_table; a->table_rows = w->router_table_rows;
    a->shared = c->shared_slots; a->shared_weight = c->shared_weight;
    a->early = moek_early_(plan, plan->chosen.route);
}
#endif
