/* moek/plan/workspace.h -- the scratch memory of a run: each part is laid out by one function, which counts bytes (base
 * NULL) or gives places. */
#ifndef MOEK_WORKSPACE_H
#define MOEK_WORKSPACE_H
#include <string.h>
#include "rule.h"

typedef struct moek_carver_ { char *base; size_t used; } moek_carver_;

/* Both stay at the largest size_t once they reach it: a user's part may ask for anything, and size_t may have 32 bits.
 * A plan refuses such a size. */
static size_t moek_times_(size_t a, size_t b)
{
    if ((a | b) >> 4 * sizeof(size_t) && b && a > (size_t)-1 / b) return (size_t)-1;
    return a * b;
}
static void *moek_take_(moek_carver_ *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used = c->used > (size_t)-256 || bytes > (size_t)-256 - c->used ? (size_t)-1
            : c->used + (bytes + 255) / 256 * 256;
    return p;
}

/* Scales of `rows` quantized rows (where columns share them: groups may begin some columns before, which count). */
static size_t moek_scales_(int quant, size_t rows, size_t columns)
{
    const moek_scale_shape *const of = &moek_format_of(quant)->x_scale;
    const size_t each = moek_scale_count(of, 1, columns);
    return of->rows ? moek_times_(rows, each) : each;
}

static size_t moek_scales_bytes_(int quant, size_t rows, size_t columns)
{
    return moek_times_(moek_scales_(quant, rows, columns), (size_t)moek_scale_bits_[moek_x_scale_(quant)->type] / 8);
}

typedef struct moek_quantized_ { void *q, *scale; float *partial; } moek_quantized_;

static moek_quantized_ moek_take_quantized_(moek_carver_ *c, const moek_config *config, size_t rows, size_t columns,
                                            int offset)
{
    moek_quantized_ q;
    q.q = moek_take_(c, moek_times_(rows, moek_x_bytes_(config->quant, columns)));
    q.scale = moek_take_(c, moek_scales_bytes_(config->quant, rows, columns + (size_t)offset));
    q.partial = (float *)moek_take_(c, moek_by_tensor_(config->quant) ? 4 * MOEK_QUANT_PARTIALS : 0);
    return q;
}

typedef struct moek_one_rank_ { moek_quantized_ a; int32_t *counts, *slot_row; } moek_one_rank_;

static size_t moek_one_rank_layout_(const moek_plan *plan, void *base, moek_one_rank_ *w)
{
    const moek_config *c = &plan->config;
    const int batched = plan->rows_per_expert > 0;
    const int copied = moek_quantizes_(c->quant) || c->router_weight_on_input;      /* else x is used as it is */
    const size_t rows = batched ? (size_t)plan->local_experts * (size_t)plan->rows_per_expert
                      : copied ? (size_t)plan->chunk : 0;
    moek_carver_ carver;
    carver.base = (char *)base; carver.used = 0;
    w->a = moek_take_quantized_(&carver, c, rows, (size_t)c->hidden, 0);
    w->counts = (int32_t *)moek_take_(&carver, batched ? 4 * (size_t)plan->local_experts : 0);
    w->slot_row = (int32_t *)moek_take_(&carver, batched ? moek_times_((size_t)plan->slots * 4, (size_t)plan->chunk)
                                                         : 0);
    return carver.used;
}

typedef struct moek_table_work_ {
    int32_t *counts, *offsets, *order, *slot_row, *block_expert, *block_row, *num_blocks, *flags;
    float *split;
    void *h;
    moek_quantized_ hq;
    void *expanded, *expanded_scale;                  /* weights of up, then of down, as e4m3                         */
} moek_table_work_;

/* Bytes of the larger of w_up and w_down in the format that weights become, or of their scales. */
static size_t moek_expanded_(const moek_plan *plan, int scales)
{
    const moek_config *c = &plan->config;
    const moek_format *const to = moek_format_of(plan->up[plan->expanded]->quant);
    const size_t hidden = (size_t)c->hidden, inter = (size_t)c->inter, halves = moek_act_gated_(c->act) ? 2 : 1;
    const size_t apart = (inter + 127) / 128 * 128;    /* rows of gate, and of up, that share scales */
    const size_t up = scales ? moek_scale_bytes(&to->w_scale, halves * apart, hidden)
                             : moek_times_(halves * inter, hidden);
    const size_t down = scales ? moek_scale_bytes(&to->w_scale, hidden, inter) : moek_times_(hidden, inter);
    return moek_times_((size_t)plan->local_experts, up > down ? up : down);
}

/* Rows of the smallest tile that a run may take: the smallest tile makes the most row blocks. */
static size_t moek_smallest_tile_(const moek_plan *plan)
{
    int i, m = plan->up[0]->m;
    for (i = 1; i < plan->pairs; i++) if (plan->up[i]->m < m) m = plan->up[i]->m;
    return (size_t)m;
}

/* Flags that a run takes at most: of up and down, or of an mlp kernel.  With them tiles are split along k and taken by
 * demand, which batch_invariant forbids. */
static int moek_pair_flags_(const moek_plan *plan, int pair)
{
    return plan->config.batch_invariant ? 0 : plan->up[pair]->flags + plan->down[pair]->flags;
}
static int moek_most_flags_(const moek_plan *plan)
{
    int i, most = 0;
    for (i = 0; i < plan->pairs; i++) if (moek_pair_flags_(plan, i) > most) most = moek_pair_flags_(plan, i);
    for (i = 0; i < plan->mlps; i++)
        if (plan->mlp[i]->flags + MOEK_MLP_BLOCKS > most) most = plan->mlp[i]->flags + MOEK_MLP_BLOCKS;
    return most;
}
/* Bytes of partial sums that a block takes at most. */
static int moek_most_scratch_(const moek_plan *plan)
{
    int i, most = 0;
    for (i = 0; i < plan->pairs && !plan->config.batch_invariant; i++) {
        if (plan->up[i]->scratch > most) most = plan->up[i]->scratch;
        if (plan->down[i]->scratch > most) most = plan->down[i]->scratch;
    }
    for (i = 0; i < plan->layers; i++) if (plan->layer[i]->scratch > most) most = plan->layer[i]->scratch;
    return most;
}

static size_t moek_table_layout_(const moek_plan *plan, void *base, moek_table_work_ *w)
{
    const moek_config *c = &plan->config;
    const size_t experts = (size_t)plan->local_experts;
    const size_t slots = plan->rows_per_expert ? 0 : (size_t)plan->rows * (size_t)plan->slots;
    const size_t rows = plan->rows_per_expert ? experts * (size_t)plan->rows_per_expert : slots;
    const size_t blocks = slots ? moek_max_blocks(slots, experts, moek_smallest_tile_(plan)) : 0;
    const int flags = slots ? moek_most_flags_(plan) : 0, scratch = slots ? moek_most_scratch_(plan) : 0;
    moek_carver_ carver;
    carver.base = (char *)base; carver.used = 0;
    /* Flags lie first: the sort zeroes them, or the quantization of x. */
    w->flags = (int32_t *)moek_take_(&carver, 4 * (size_t)flags);
    w->split = (float *)moek_take_(&carver, (size_t)scratch * (size_t)plan->multiprocessors);
    if (!flags) w->flags = NULL;
    if (!scratch) w->split = NULL;
    w->counts = (int32_t *)moek_take_(&carver, slots ? 4 * experts : 0);
    w->offsets = (int32_t *)moek_take_(&carver, slots ? 4 * (experts + 1) : 0);
    w->order = (int32_t *)moek_take_(&carver, moek_times_(slots, 4));
    w->slot_row = (int32_t *)moek_take_(&carver, moek_sorts_x_from_(plan) ? moek_times_(slots, 4) : 0);
    w->block_expert = (int32_t *)moek_take_(&carver, moek_times_(blocks, 4));
    w->block_row = (int32_t *)moek_take_(&carver, moek_times_(blocks, 4));
    w->num_blocks = (int32_t *)moek_take_(&carver, slots ? 4 : 0);
    w->h = moek_take_(&carver, moek_times_(rows, 2 * (size_t)c->inter));
    if (moek_quantizes_(c->quant)) w->hq = moek_take_quantized_(&carver, c, rows, (size_t)c->inter, c->inter_offset);
    else memset(&w->hq, 0, sizeof w->hq);
    w->expanded = moek_take_(&carver, plan->expanded ? moek_expanded_(plan, 0) : 0);
    w->expanded_scale = moek_take_(&carver, plan->expanded ? moek_expanded_(plan, 1) : 0);
    return carver.used;
}

/* Workspace of one chunk; the same code counts (base NULL) and carves. */
static size_t moek_layout_(const moek_plan *plan, char *base, moek_step *step)
{
    const size_t slots = (size_t)plan->chunk * (size_t)plan->slots;
    const size_t hidden = (size_t)plan->config.hidden;
    const moek_prepare_finalize *pf = plan->prepare_finalize;
    const moek_experts *experts = plan->experts;
    const size_t batched = (size_t)plan->local_experts * (size_t)plan->rows_per_expert;
    const size_t flat = (size_t)plan->rows * (experts->weight_and_reduce == MOEK_NOOP ? 1 : (size_t)plan->slots);
    const int by_expert = experts->weight_and_reduce == MOEK_DELEGATE ||
                          experts->weight_and_reduce == MOEK_NAIVE_BATCHED;
    const size_t rows = plan->rows_per_expert && (by_expert || batched > flat) ? batched : flat;
    moek_carver_ c;
    c.base = base; c.used = 0;
    step->topk_ids = (int32_t *)moek_take_(&c, moek_times_(slots, 4));
    step->topk_weights = (float *)moek_take_(&c, moek_times_(slots, 4));
    step->ids = (const int32_t *)moek_take_(&c, moek_times_(slots, 4));
    step->prepare_workspace = moek_take_(&c, pf->workspace ? pf->workspace(pf, plan) : 0);
    step->experts_workspace = moek_take_(&c, experts->workspace ? experts->workspace(experts, plan) : 0);
    step->out = moek_take_(&c, moek_times_(rows, 2 * hidden));
    return c.used ? c.used : 256;
}
#endif
