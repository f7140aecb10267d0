/* moek/plan/rule.h -- which kernels serve a run of so many rows, decided once: measured choices (config.tuned) first,
 * then the rules of rules.toml.  This file says what a kernel can do at all, the rules say when it does. */
#ifndef MOEK_RULE_H
#define MOEK_RULE_H
#include "../kernel/isa.h"
#include <string.h>
#include "check.h"
#include "bounds.h"
#include "decode.h"
#include "../../../generated/moek_rules.h"

/* A plan that moek_plan_init refused, or never saw, has no sizes to divide by. */
static int moek_planned_(const moek_plan *plan) { return plan && plan->backend; }

/* Is prepare/finalize `local`, which leaves rows where they are? */
static int moek_local_(const moek_plan *plan) { return plan->chosen.one_rank && !plan->rows_per_expert; }

/* The facts of a plan and of a run of so many rows, before dispatch.  Facts of a kernel: moek_facts_on_. */
static moek_facts_ moek_facts_of_(const moek_plan *plan, int rows)
{
    const moek_config *c = &plan->config;
    const moek_format *const of = plan->chosen.format;
    const int matrices = moek_act_gated_(c->act) ? 3 : 2, columns = matrices == 3 ? 128 : 256;
    moek_facts_ f;
    memset(&f, 0, sizeof f);
    f.device = plan->arch; f.sms = plan->chosen.multiprocessors;
    f.hidden = c->hidden; f.inter = c->inter;
    f.expert = (long long)c->hidden * c->inter * matrices;
    f.up_tiles = (c->inter + columns - 1) / columns;
    f.down_tiles = (c->hidden + 255) / 256;
    f.quantizes = of->x_bits < 16;
    f.by_row = moek_by_row_(of);
    f.integers = of->x == MOEK_ELEMENT_S8;
    f.x_columns = of->x_scale.columns;
    f.fragments = c->weight_layout == MOEK_WEIGHTS_TILED &&
                  (moek_in_fragments_(of) || moek_in_fragments_(plan->chosen.h_format));
    f.layers = plan->chosen.layers;
    f.mma = plan->chosen.tiles && moek_by_mma_(plan->chosen.up[0]);
    f.gbs = plan->chosen.gbs;
    f.w_bits = of->w_bits;
    f.sets = plan->chosen.cpu && (!MOEK_PLAIN_IS_WIDE_ || moek_in_blocks_(of, c->weight_layout));
    f.rows = rows;
    f.slots = (long long)rows * plan->slots;
    f.used = f.slots < plan->local_experts ? f.slots : plan->local_experts;
    f.mean = (f.slots + c->physical_experts - 1) / c->physical_experts;
    return f;
}
static const moek_facts_ *moek_facts_on_(moek_facts_ *f, const moek_plan *plan, const moek_kernel *k)
{
    const moek_chosen *const h = &plan->chosen;
    int i;
    for (i = h->computed ? h->tiles - 1 : -1; i >= 0 && h->up[i] != k && h->down[i] != k; i--) {}
    f->computed = i >= 0;
    f->computed_rows = i < 0 ? 0 : h->bound[i].rows;
    f->again = i < 0 ? 0 : h->bound[i].again;
    f->last = i < 0 ? 0 : h->bound[i].last;
    f->row_blocks = (k->traits & MOEK_TRAIT_ROW_BLOCKS) != 0;
    f->fused = k->op == MOEK_OP_UP_DOWN;
    f->m = k->m;
    return f;
}
/* Rows an expert, on average, up to which this kernel is taken. */
static int moek_tile_rows_(const moek_plan *plan, const moek_kernel *k)
{
    moek_facts_ f = moek_facts_of_(plan, 0);
    return (int)moek_rule_tile_rows_(moek_facts_on_(&f, plan, k));
}
/* Rows an expert, on average, for which it is taken beyond these: from the first, 0 if there are none, to the last. */
static int moek_two_tiles_(const moek_plan *plan, const moek_kernel *k, int *last)
{
    moek_facts_ f = moek_facts_of_(plan, 0);
    int first = 0;
    moek_facts_on_(&f, plan, k);
    *last = 0;
    for (f.mean = 1; f.mean <= (f.computed ? f.last : 2 * k->m); f.mean++)
        if (moek_rule_two_tiles_(&f)) {
            *last = (int)f.mean;
            if (!first) first = *last;
        }
    return first;
}
/* Do an expert's rows, on average, fit the tile of this kernel, or two? */
static int moek_tile_holds_(moek_facts_ *f, const moek_plan *plan, const moek_kernel *k)
{
    moek_facts_on_(f, plan, k);
    return f->mean <= moek_rule_tile_rows_(f) || moek_rule_two_tiles_(f);
}

/* The pair measured as the fastest for so many rows, or MOEK_CHOICE_*. */
static int moek_measured_(const moek_plan *plan, int rows)
{
    int i;
    for (i = 0; i < plan->chosen.choices; i++)
        if (rows <= plan->chosen.choice[i].tokens) return plan->chosen.choice[i].gemms;
    return MOEK_CHOICE_RULE;
}

/* Rows an expert, on average, from which on weights become e4m3 first, where the plan has kernels for that. */
static int moek_expands_from_(const moek_plan *plan)
{
    const moek_facts_ f = moek_facts_of_(plan, 0);
    return (int)moek_rule_expands_(&f);
}

static int moek_tile_of_(const moek_plan *plan, moek_facts_ *f)
{
    int i = moek_measured_(plan, (int)f->rows);
    if (plan->chosen.expanded && f->mean >= moek_expands_from_(plan)) return plan->chosen.expanded;  /* (as measured) */
    if (i >= 0) return i;
    for (i = 0; i < plan->chosen.tiles - 1; i++) if (moek_tile_holds_(f, plan, plan->chosen.up[i])) break;
    return i;
}

/* Are scales for x and h known before either is, where the format has one for all of it?  A kernel that does several
 * steps cannot look at all of x, or of h, first. */
static int moek_scales_known_(const moek_plan *plan)
{
    return !moek_by_tensor_(plan->chosen.format) || (plan->weights.x_scale && plan->weights.h_scale);
}

/* Shared memory of a one-launch kernel of few tokens for so many. */
static moek_decode_smem moek_decode_smem_in_(const moek_plan *plan, const moek_kernel *k, int tokens)
{
    const moek_config *c = &plan->config;
    const int blocks = plan->chosen.multiprocessors < MOEK_SPLITS ? plan->chosen.multiprocessors : MOEK_SPLITS;
    const int more = plan->weights.w_up_zero != NULL || moek_quantizes_(plan->chosen.format);
    return moek_decode_smem_of(moek_decode_room_of(k), tokens, plan->slots, plan->local_experts, c->hidden, c->inter,
                               moek_act_gated_(c->act), plan->chosen.format->w_bits, more, blocks);
}
/* And is it taken for them?  (Where it is for some tokens, it is for fewer.) */
static int moek_decode_wins_(const moek_plan *plan, const moek_kernel *k, int tokens)
{
    const moek_facts_ f = moek_facts_of_(plan, tokens);
    return moek_decode_smem_in_(plan, k, tokens).fits && (plan->chosen.layers_demanded || moek_rule_few_tokens_(&f));
}
/* The most tokens for which there is room, or for which it is taken. */
static int moek_decode_most_(const moek_plan *plan, const moek_kernel *k, int taken)
{
    int most = k->max_tokens;
    while (most && !(taken ? moek_decode_wins_(plan, k, most) : moek_decode_smem_in_(plan, k, most).fits)) most--;
    return most;
}

/* The kernel for all behind routing in one launch. */
static const moek_kernel *moek_layer_of_(const moek_plan *plan, moek_facts_ *f)
{
    const int tokens = (int)f->rows, measured = moek_measured_(plan, tokens);
    int i;
    if (tokens < 1 || f->slots > MOEK_SELF_SORT || measured >= 0 || measured <= MOEK_CHOICE_UP_DOWN) return NULL;
    if (!moek_scales_known_(plan)) return NULL;
    if (measured <= MOEK_CHOICE_LAYER) {
        const moek_kernel *const k = plan->chosen.layer[MOEK_CHOICE_LAYER - measured];
        if (!k->max_tokens || moek_decode_smem_in_(plan, k, tokens).fits) return k;
    }
    for (i = 0; i < plan->chosen.layers && plan->chosen.layer[i]->max_tokens; i++)
        if (moek_decode_wins_(plan, plan->chosen.layer[i], tokens)) return plan->chosen.layer[i];
    if (!plan->chosen.layers_demanded && !moek_rule_one_launch_(f)) return NULL;
    for (; i < plan->chosen.layers; i++) {
        const moek_kernel *const k = plan->chosen.layer[i];
        if (tokens <= k->m || moek_tile_holds_(f, plan, k)) return k;
    }
    return NULL;
}

/* The kernel for up, quantization of h and down in one launch.  Never with very short tiles (of 128 bytes of k: up 8,
 * down 2): the warp that tells other blocks of a tile, which takes microseconds, could fall behind. */
static const moek_kernel *moek_up_down_of_(const moek_plan *plan, moek_facts_ *f)
{
    const moek_config *c = &plan->config;
    const int element = (int)moek_x_bytes_(plan->chosen.format, 1);
    const int measured = plan->chosen.up_downs_demanded ? MOEK_CHOICE_RULE : moek_measured_(plan, (int)f->rows);
    const moek_kernel *k = NULL;
    long long blocks;
    int i;
    if (!plan->chosen.up_downs || f->rows < 1 || measured >= 0) return NULL;
    if (!moek_scales_known_(plan)) return NULL;
    if (c->hidden * element <= 7 * 128 || c->inter * element <= 128) return NULL;
    if (plan->chosen.up_downs_demanded) k = plan->chosen.up_down[0];
    else if (measured <= MOEK_CHOICE_UP_DOWN) k = plan->chosen.up_down[MOEK_CHOICE_UP_DOWN - measured];
    else if (!moek_rule_up_down_(f)) return NULL;
    for (i = 0; !k && i < plan->chosen.up_downs; i++)
        if (moek_tile_holds_(f, plan, plan->chosen.up_down[i])) k = plan->chosen.up_down[i];
    if (!k) return NULL;
    blocks = moek_max_blocks(f->slots, plan->local_experts, k->m);
    return blocks <= MOEK_UP_DOWN_BLOCKS && blocks * k->m * c->inter * element < MOEK_GATHERED ? k : NULL;
}

/* Rows an expert from which on the up kernel quantizes h itself; 0: it cannot. */
static int moek_requantizes_from_(const moek_plan *plan, const moek_facts_ *f, const moek_kernel *up)
{
    const moek_config *c = &plan->config;
    const int can = up->traits & MOEK_TRAIT_QUANTIZES_OUT && moek_act_gated_(c->act) && !c->inter_offset &&
                    !moek_two_formats_(c) &&
                    (!moek_by_tensor_(plan->chosen.format) || plan->weights.h_scale);
    moek_facts_ on = *f;
    return can ? (int)moek_rule_requantizes_(moek_facts_on_(&on, plan, up)) : 0;
}

/* May x be written in sorted order for an up kernel?  Workspaces hold its place. */
static int moek_may_sort_x_(const moek_plan *plan)
{
    const moek_facts_ f = moek_facts_of_(plan, 0);
    int i, gains = 0;
    for (i = 0; i < plan->chosen.gemms; i++) gains |= plan->chosen.up[i]->traits & MOEK_TRAIT_SORTED_X;
    return gains && moek_local_(plan) && moek_rule_sorted_x_(&f);
}

/* What the up or up_down kernel does beside its GEMM, on one rank. */
static void moek_share_work_(const moek_plan *plan, const moek_facts_ *f, const moek_kernel *k,
                             moek_selection *selection)
{
    moek_details *const how = &selection->details;
    const moek_format *const of = plan->chosen.format;
    const int from = (int)moek_rule_sorted_x_(f);
    const int one_pass = moek_blocked_(of) || (moek_by_tensor_(of) && plan->weights.h_scale);
    how->self_sorts = k->traits & MOEK_TRAIT_SORTS_IDS && one_pass && f->slots <= MOEK_SELF_SORT &&
                      !moek_two_formats_(&plan->config);
    how->sorted_x = k->traits & MOEK_TRAIT_SORTED_X && from && f->mean >= from;
    how->counts_ids = k->traits & MOEK_TRAIT_COUNTS_IDS && !moek_by_row_(of) && !how->sorted_x &&
                      f->slots <= MOEK_SORT_FEW && !how->expands;
}

moek_selection moek_selection_of(const moek_plan *plan, int rows, int fuse)
{
    moek_selection selection;
    moek_details *const how = &selection.details;
    const moek_kernel *k, *down;
    moek_facts_ f;
    int from;
    memset(&selection, 0, sizeof selection);
    if (!moek_planned_(plan)) return selection;
    f = moek_facts_of_(plan, rows);
    how->discards = (int)moek_rule_discards_(&f);
    if (!plan->chosen.tiles) return selection;        /* a user's experts */
    selection.layer = fuse >= MOEK_FUSE_LAYER ? moek_layer_of_(plan, &f) : NULL;
    selection.up_down = fuse >= MOEK_FUSE_UP_DOWN ? moek_up_down_of_(plan, &f) : NULL;
    how->tile = moek_tile_of_(plan, &f);
    how->expands = !selection.up_down && plan->chosen.expanded && how->tile == plan->chosen.expanded;
    k = selection.up_down ? selection.up_down : plan->chosen.up[how->tile];
    if (moek_local_(plan)) moek_share_work_(plan, &f, k, &selection);
    how->x_sms = how->counts_ids ? (int)moek_rule_x_sms_(moek_facts_on_(&f, plan, k)) : 0;
    if (selection.up_down) return selection;
    from = moek_requantizes_from_(plan, &f, k);
    down = plan->chosen.down[how->tile];
    if (!selection.layer) selection.up = k, selection.down = down;
    how->requantizes = from && f.mean >= from;
    how->h_sms = !plan->rows_per_expert ? (int)moek_rule_h_sms_(moek_facts_on_(&f, plan, down)) : 0;
    return selection;
}

int moek_plan_tile(const moek_plan *plan, int rows)
{
    return moek_selection_of(plan, rows, MOEK_FUSE_NONE).details.tile;
}
const moek_kernel *moek_plan_layer(const moek_plan *plan, int tokens)
{
    return moek_selection_of(plan, tokens, MOEK_FUSE_LAYER).layer;
}
const moek_kernel *moek_plan_up_down(const moek_plan *plan, int rows)
{
    return moek_selection_of(plan, rows, MOEK_FUSE_UP_DOWN).up_down;
}
#endif
