/* moek/plan/describe.h -- moek_explain and moek_describe: what was chosen, and why not the rest. */
#ifndef MOEK_DESCRIBE_H
#define MOEK_DESCRIBE_H
#include <math.h>
#include <string.h>
#include "bind.h"
#include "plan.h"

static void moek_append_bounds_(const moek_plan *plan, moek_text_ *t);
size_t moek_explain(const moek_config *config, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size), why;
    char sentence[MOEK_WHY], reason[160];
    moek_plan plan;
    moek_request_ o;
    moek_status status;
    int i;
    memset(&plan, 0, sizeof plan);
    why = moek_text_in_(sentence, sizeof sentence);
    status = moek_choose_(config, &plan, &o, &why, &t);
    if (plan.note[0]) moek_append_(&t, "tuned: %s\n", plan.note);
    if (plan.backend && plan.chosen.tiles) {
        moek_append_(&t, "rule: ");
        moek_append_bounds_(&plan, &t);
        moek_append_(&t, "\n");
    }
    for (i = 0; t.length && i < MOEK_KERNELS_; i++) { /* no text: refused before any backend or row was asked */
        const moek_kernel *k = &moek_table_[i];
        const char *no = moek_kernel_refuses_(k, &o, plan.backend ? o.arch : k->arch, reason, sizeof reason);
        moek_append_(&t, "  %-44s ", k->name);
        if (moek_plan_has_(&plan, k)) moek_append_(&t, "taken\n");
        else if (no) moek_append_(&t, "%s\n", no);
        else moek_append_(&t, "fits%s%s\n", plan.backend ? "; " : "", plan.backend ? moek_left_out_(&plan, k) : "");
    }
    moek_append_(&t, "moek_plan_init: %s%s%s\n", moek_status_name(status), status == MOEK_OK ? "" : ": ", sentence);
    return t.length;
}

/* Are bounds of the built-in rule measured, and on what? */
static void moek_append_bounds_(const moek_plan *plan, moek_text_ *t)
{
    const moek_chosen *const h = &plan->chosen;
    if (h->computed)
        moek_append_(t, "bounds computed for sm_%d, %d SMs of %d MHz, %d GB/s, %.1f MiB of L2; ./moek tune measures",
                     plan->arch, h->multiprocessors, h->mhz, h->gbs, h->l2_kb / 1024.0);
    else moek_append_(t, "bounds measured on %s", plan->device < 0 ? "other CPUs" : "H200");
}
static void moek_describe_choices_(const moek_plan *plan, moek_text_ *t)
{
    int i;
    moek_append_(t, "choice    %s", plan->chosen.choices ? "measured (config.tuned)" : "built-in rule, ");
    if (!plan->chosen.choices) moek_append_bounds_(plan, t);
    moek_append_(t, "%s\n", plan->chosen.choices ? ":" : "");
    for (i = 0; i < plan->chosen.choices; i++) {
        const int gemms = plan->chosen.choice[i].gemms;
        moek_append_(t, "  up to %d tokens: %s\n", plan->chosen.choice[i].tokens,
                     gemms >= 0 ? plan->chosen.up[gemms]->name :
                     gemms <= MOEK_CHOICE_UP_DOWN ? plan->chosen.up_down[MOEK_CHOICE_UP_DOWN - gemms]->name :
                     gemms <= MOEK_CHOICE_LAYER ? "one launch" : "the built-in rule");
    }
    if (plan->chosen.choices) {
        moek_append_(t, "  otherwise: the built-in rule, ");
        moek_append_bounds_(plan, t);
        moek_append_(t, "\n");
    }
    if (plan->note[0]) moek_append_(t, "  note: %s\n", plan->note);
}

/* What the config left 0 and what it stands for, where that changes results. */
static void moek_describe_act_(const moek_config *c, moek_text_ *t)
{
    static const char *const layouts[] = { "?", "gate, then up", "gate and up interleaved", "up, then gate",
                                           "up alone, gate in w_gate" };
    const int layout = c->up_layout >= 0 && c->up_layout <= MOEK_UP_SEPARATE ? c->up_layout : 0;
    const int scales = moek_act_scales_(c->act), clamps = moek_act_clamps_(c->act);
    const char *const name = moek_act_name(c->act);
    moek_append_(t, "act       %s", name ? name : "?");
    if (scales) moek_append_(t, ", alpha %g", (double)c->alpha);
    if (scales && c->act == MOEK_SITU && !(c->beta > 0)) moek_append_(t, ", beta none");
    else if (scales) moek_append_(t, ", beta %g", (double)c->beta);
    if (clamps && c->limit > 0 && c->limit < HUGE_VALF) moek_append_(t, ", limit %g", (double)c->limit);
    else if (clamps) moek_append_(t, ", limit none");
    if (moek_act_gated_(c->act)) moek_append_(t, "; rows of w_up: %s\n", layouts[layout]);
    else moek_append_(t, "; not gated\n");
}
/* The method, and what of it is this layer's own. */
static void moek_describe_route_(const moek_plan *plan, moek_text_ *t)
{
    const moek_config *c = &plan->config;
    const moek_weights *w = &plan->weights;
    const moek_method_ *method = moek_method_of_(c->routing);
    moek_append_(t, "route     %s, MOEK_ROUTE_%s: %s", plan->chosen.route->name, method->name, method->text);
    if (c->groups > 1)
        moek_append_(t, "; %d of %d groups, by %s", c->topk_groups, c->groups,
                     moek_group_score_(plan) == MOEK_GROUP_SCORE_TOP2 ? "the sum of their two best" : "their best");
    if (moek_divides_(method)) moek_append_(t, "; eps %g", (double)c->router_eps);
    moek_append_(t, "; scale %g", (double)c->scale);
    if (c->shared_slots) moek_append_(t, "; %d shared slots, weight %g", c->shared_slots, (double)c->shared_weight);
    if (plan->bound)
        moek_append_(t, "; %s%s%s", w->router_bias ? "with router_bias" : "no router_bias",
                     w->router_expert_scale ? ", router_expert_scale" : "", w->router_table ? ", router_table" : "");
    moek_append_(t, "\n");
}

/* The format of the weights and how they lie; of two formats: "up q4_k_a16 (..), down q6_k_a16 (..)". */
static void moek_describe_weights_(const moek_config *c, moek_text_ *t)
{
    const int two = moek_two_formats_(c);
    int op;
    for (op = MOEK_OP_UP; op <= (two ? MOEK_OP_DOWN : MOEK_OP_UP); op++) {
        const int layout = moek_layout_at_(c, op);
        if (two) moek_append_(t, "%s%s ", op == MOEK_OP_DOWN ? ", " : "", moek_op_name_(op));
        moek_append_(t, "%s%s", moek_quant_name(moek_quant_at_(c, op)),
                     layout == MOEK_WEIGHTS_BLOCKS ? " (blocks of a GGUF file, in place)" :
                     layout == MOEK_WEIGHTS_TILED ? " (tiled)" : layout == MOEK_WEIGHTS_PANELS ? " (in panels)" : "");
    }
}

size_t moek_describe(const moek_plan *plan, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size);
    const moek_config *c;
    int i, said = 0, quantizes;
    if (!plan || !plan->backend) { moek_append_(&t, "not initialized: %s\n",
                                                plan ? plan->why : "NULL"); return t.length; }
    c = &plan->config;
    quantizes = moek_quantizes_(plan->chosen.format) && !plan->experts->expects_unquantized;
    moek_append_(&t, "layer     hidden %d, inter %d, %d experts (%d here), top-%d%s, ", c->hidden, c->inter, c->experts,
                 plan->local_experts, c->topk, c->shared_slots ? " + shared slots" : "");
    moek_describe_weights_(c, &t);
    moek_append_(&t, "%s, T %s, up to %d tokens in chunks of %d\n", c->ue8m0 ? " (ue8m0)" : "",
                 moek_dtype_name_(c->dtype), c->max_tokens, plan->chunk);
    moek_describe_act_(c, &t);
    moek_append_(&t, "backend   %s%s%s, workspace %.1f MiB\n", moek_backend_name_(plan->backend),
                 plan->device < 0 ? " (host memory), kernels of " : "",
                 plan->device < 0 ? moek_arch_name_(plan->chosen.cpu) : "", plan->workspace_size / 1048576.0);
    moek_describe_route_(plan, &t);
    moek_append_(&t, "prepare   %s, %s format%s%s\n", plan->prepare_finalize->name,
                 moek_format_name_(plan->prepare_finalize->format), quantizes ? ", " : "",
                 quantizes ? plan->chosen.quant->name : "");
    if (plan->chosen.tiles && !plan->rows_per_expert) moek_append_(&t, "sort      %s\n", plan->chosen.sort->name);
    if (!plan->chosen.tiles) moek_append_(&t, "experts   %s\n", plan->experts->name);
    else moek_describe_choices_(plan, &t);
    for (i = 0; i < plan->chosen.gemms; i++) {
        const int last = i >= plan->chosen.tiles - 1, expanded = plan->chosen.expanded && i == plan->chosen.expanded;
        if (!last && !moek_tile_rows_(plan, plan->chosen.up[i])) continue;    /* for no number of rows */
        if (expanded) moek_append_(&t, "from %d rows an expert on, by %s first:\n", moek_expands_from_(plan),
                                plan->chosen.expand->name);
        else moek_append_(&t, last ? "%s%s\n" : "%s%s (", said ? "" : "experts   ",
                  i >= plan->chosen.tiles ? "only where measured:" : last && said ? "otherwise:" :
                  last ? "any number of rows:" : "up to");
        said = 1;
        if (!last) {
            int to, from = moek_two_tiles_(plan, plan->chosen.up[i], &to);
            moek_append_(&t, "%d", moek_tile_rows_(plan, plan->chosen.up[i]));
            if (from) moek_append_(&t, ", or %d to %d,", from, to);
            moek_append_(&t, " rows an expert):\n");
        }
        moek_append_(&t, "  up      %s\n", plan->chosen.up[i]->name);
        if (moek_quantizes_(plan->chosen.h_format)) {
            const moek_facts_ f = moek_facts_of_(plan, 0);
            const int from = moek_requantizes_from_(plan, &f, plan->chosen.up[i]);
            moek_append_(&t, "  quant   %s", plan->chosen.h_quant->name);
            if (from) moek_append_(&t, " (from %d rows an expert on: up itself)", from);
            moek_append_(&t, "\n");
        }
        moek_append_(&t, "  down    %s\n", plan->chosen.down[i]->name);
    }
    for (i = 0; i < plan->chosen.up_downs; i++)
        moek_append_(&t, "%s%s (up to %d rows an expert)\n", i ? "          " : "both      ",
                     plan->chosen.up_down[i]->name, moek_tile_rows_(plan, plan->chosen.up_down[i]));
    if (plan->chosen.up_downs)
        moek_append_(&t, "          instead of up and down, with args.state, where moek_plan_up_down says so\n");
    moek_append_(&t, "finalize  %s, %s\n", plan->prepare_finalize->name, plan->chosen.combine->name);
    for (i = 0; i < plan->chosen.layers; i++) {
        const moek_kernel *const layer = plan->chosen.layer[i];
        const int few = layer->max_tokens, room = few ? moek_decode_most_(plan, layer, 0) : 0;
        const int most = few ? moek_decode_most_(plan, layer, 1) : moek_tile_rows_(plan, layer);
        if (!most && (!few || room)) continue;
        moek_append_(&t, "%s%s (", i ? "          " : "in one    ", layer->name);
        if (most) moek_append_(&t, "up to %d %s", most, few ? "tokens" : "rows an expert");
        else moek_append_(&t, "for no number of tokens: a token of this shape does not fit in");
        if (few && room < few && most == room)
            moek_append_(&t, "%s %d slots and %d bytes of shared memory", most ? ", which fill" : "", MOEK_DECODE_SLOTS,
                         layer->shared_bytes);
        moek_append_(&t, ")\n");
    }
    if (plan->chosen.layers)
        moek_append_(&t, "          instead of all but route, with args.state, up to %d tokens by moek_run\n",
                     MOEK_SELF_SORT / plan->slots);
    return t.length;
}
#endif
