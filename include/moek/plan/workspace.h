/* moek/plan/workspace.h -- the scratch memory of a run: each part is laid out by one function, once a plan.  It counts
 * the bytes, and says where each array begins (plan.places); a run adds the address. */
#ifndef MOEK_WORKSPACE_H
#define MOEK_WORKSPACE_H
#include <string.h>
#include "rule.h"

/* A size stays at the largest size_t once it is there: a user's part may ask for anything, and size_t may have 32 bits.
 * A plan refuses such a size. */
static size_t moek_times_(size_t a, size_t b)
{
    if ((a | b) >> 4 * sizeof(size_t) && b && a > (size_t)-1 / b) return (size_t)-1;
    return a * b;
}
/* Where so many bytes begin, behind those that are used. */
static size_t moek_take_(size_t *used, size_t bytes)
{
    const size_t at = *used;
    *used = at > (size_t)-256 || bytes > (size_t)-256 - at ? (size_t)-1 : at + (bytes + 255) / 256 * 256;
    return at;
}
enum { MOEK_NOWHERE_ = 1 };                            /* a part that is not there (parts begin at multiples of 256) */
static void *moek_placed_(void *base, size_t at) { return at == MOEK_NOWHERE_ ? NULL : (char *)base + at; }

/* Scales of `rows` quantized rows (where columns share them: groups may begin some columns before, which count). */
static size_t moek_scales_(const moek_format *f, size_t rows, size_t columns)
{
    const moek_scale_shape *const of = &f->x_scale;
    const size_t each = moek_scale_count(of, 1, columns);
    return of->rows ? moek_times_(rows, each) : each;
}

static size_t moek_scales_bytes_(const moek_format *f, size_t rows, size_t columns)
{
    return moek_times_(moek_scales_(f, rows, columns), (size_t)moek_scale_bits_[f->x_scale.type] / 8);
}

typedef struct moek_quantized_ { void *q, *scale; float *partial; } moek_quantized_;

static void moek_take_quantized_(size_t *used, const moek_format *f, size_t rows, size_t columns, int offset,
                                 size_t at[3])
{
    at[0] = moek_take_(used, moek_times_(rows, moek_x_bytes_(f, columns)));
    at[1] = moek_take_(used, moek_scales_bytes_(f, rows, columns + (size_t)offset));
    at[2] = moek_take_(used, moek_by_tensor_(f) ? 4 * MOEK_QUANT_PARTIALS : 0);
}
static moek_quantized_ moek_quantized_at_(void *base, const size_t at[3])
{
    moek_quantized_ q;
    q.q = moek_placed_(base, at[0]); q.scale = moek_placed_(base, at[1]);
    q.partial = (float *)moek_placed_(base, at[2]);
    return q;
}

/* The same for a part that lays itself out anew each time: base NULL counts bytes, else places are given. */
typedef struct moek_arena_ { char *base; size_t used; } moek_arena_;
static MOEK_UNUSED void *moek_arena_take_(moek_arena_ *a, size_t bytes)
{
    const size_t at = moek_take_(&a->used, bytes);
    return a->base ? a->base + at : NULL;
}
static MOEK_UNUSED moek_quantized_ moek_arena_take_quantized_(moek_arena_ *a, const moek_format *f, size_t rows,
                                                               size_t columns)
{
    static const moek_quantized_ none = { NULL, NULL, NULL };
    size_t at[3];
    moek_take_quantized_(&a->used, f, rows, columns, 0, at);
    return a->base ? moek_quantized_at_(a->base, at) : none;
}

/* plan.places: of a step, of prepare/finalize on one rank, of the experts of the table.  Quantized rows have three. */
enum {
    MOEK_PLACE_TOPK_IDS_, MOEK_PLACE_TOPK_WEIGHTS_, MOEK_PLACE_IDS_, MOEK_PLACE_PREPARE_, MOEK_PLACE_EXPERTS_,
    MOEK_PLACE_OUT_,
    MOEK_PLACE_A_, MOEK_PLACE_A_COUNTS_ = MOEK_PLACE_A_ + 3, MOEK_PLACE_A_SLOT_ROW_,
    MOEK_PLACE_FLAGS_, MOEK_PLACE_SPLIT_, MOEK_PLACE_COUNTS_, MOEK_PLACE_OFFSETS_, MOEK_PLACE_ORDER_,
    MOEK_PLACE_SLOT_ROW_, MOEK_PLACE_BLOCK_EXPERT_, MOEK_PLACE_BLOCK_ROW_, MOEK_PLACE_NUM_BLOCKS_, MOEK_PLACE_H_,
    MOEK_PLACE_HQ_, MOEK_PLACE_EXPANDED_ = MOEK_PLACE_HQ_ + 3, MOEK_PLACE_EXPANDED_SCALE_, MOEK_PLACE_COUNT_
};
enum { moek_places_hold_all_ = sizeof(char[(int)MOEK_PLACE_COUNT_ <= (int)MOEK_PLACES ? 1 : -1]) };

typedef struct moek_one_rank_ { moek_quantized_ a; int32_t *counts, *slot_row; } moek_one_rank_;

static size_t moek_one_rank_layout_(const moek_plan *plan, size_t *at)
{
    const moek_config *c = &plan->config;
    const int batched = plan->rows_per_expert > 0;
    const moek_format *const f = plan->chosen.format;
    const int copied = moek_quantizes_(f) || c->router_weight_on_input;               /* else x is used as it is */
    const size_t rows = batched ? (size_t)plan->local_experts * (size_t)plan->rows_per_expert
                      : copied ? (size_t)plan->chunk : 0;
    size_t used = 0;
    moek_take_quantized_(&used, f, rows, (size_t)c->hidden, 0, at + MOEK_PLACE_A_);
    at[MOEK_PLACE_A_COUNTS_] = moek_take_(&used, batched ? 4 * (size_t)plan->local_experts : 0);
    at[MOEK_PLACE_A_SLOT_ROW_] = moek_take_(&used, batched ? moek_times_((size_t)plan->slots * 4, (size_t)plan->chunk)
                                                        : 0);
    return used;
}
static moek_one_rank_ moek_one_rank_work_(const moek_step *step)
{
    const size_t *const at = step->plan->chosen.places;
    void *const base = step->prepare_workspace;
    moek_one_rank_ w;
    w.a = moek_quantized_at_(base, at + MOEK_PLACE_A_);
    w.counts = (int32_t *)moek_placed_(base, at[MOEK_PLACE_A_COUNTS_]);
    w.slot_row = (int32_t *)moek_placed_(base, at[MOEK_PLACE_A_SLOT_ROW_]);
    return w;
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
    const moek_format *const to = moek_format_of(plan->chosen.up[plan->chosen.expanded]->quant);
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
    int i, m = plan->chosen.up[0]->m;
    for (i = 1; i < plan->chosen.gemms; i++) if (plan->chosen.up[i]->m < m) m = plan->chosen.up[i]->m;
    return (size_t)m;
}

/* Flags that a run takes at most: of up and down, or of an up_down kernel.  With them tiles are split along k and taken
 * by demand, which batch_invariant forbids. */
static int moek_gemm_flags_(const moek_plan *plan, int gemms)
{
    return plan->config.batch_invariant ? 0 : plan->chosen.up[gemms]->flags + plan->chosen.down[gemms]->flags;
}
static int moek_max_flags_(const moek_plan *plan)
{
    int i, most = 0;
    for (i = 0; i < plan->chosen.gemms; i++) if (moek_gemm_flags_(plan, i) > most) most = moek_gemm_flags_(plan, i);
    for (i = 0; i < plan->chosen.up_downs; i++) {
        const int flags = plan->chosen.up_down[i]->flags + MOEK_UP_DOWN_BLOCKS;
        if (flags > most) most = flags;
    }
    return most;
}
/* Bytes of partial sums that a block takes at most. */
static int moek_max_scratch_(const moek_plan *plan)
{
    int i, most = 0;
    for (i = 0; i < plan->chosen.gemms && !plan->config.batch_invariant; i++) {
        if (plan->chosen.up[i]->scratch > most) most = plan->chosen.up[i]->scratch;
        if (plan->chosen.down[i]->scratch > most) most = plan->chosen.down[i]->scratch;
    }
    for (i = 0; i < plan->chosen.layers; i++)
        if (plan->chosen.layer[i]->scratch > most) most = plan->chosen.layer[i]->scratch;
    return most;
}

static size_t moek_table_layout_(const moek_plan *plan, size_t *at)
{
    const moek_config *c = &plan->config;
    const size_t experts = (size_t)plan->local_experts;
    const size_t slots = plan->rows_per_expert ? 0 : (size_t)plan->rows * (size_t)plan->slots;
    const size_t rows = plan->rows_per_expert ? experts * (size_t)plan->rows_per_expert : slots;
    const size_t blocks = slots ? moek_max_blocks(slots, experts, moek_smallest_tile_(plan)) : 0;
    const int flags = slots ? moek_max_flags_(plan) : 0, scratch = slots ? moek_max_scratch_(plan) : 0;
    size_t used = 0;
    /* Flags lie first: the sort zeroes them, or the quantization of x. */
    at[MOEK_PLACE_FLAGS_] = moek_take_(&used, 4 * (size_t)flags);
    at[MOEK_PLACE_SPLIT_] = moek_take_(&used, (size_t)scratch * (size_t)plan->chosen.multiprocessors);
    if (!flags) at[MOEK_PLACE_FLAGS_] = MOEK_NOWHERE_;
    if (!scratch) at[MOEK_PLACE_SPLIT_] = MOEK_NOWHERE_;
    at[MOEK_PLACE_COUNTS_] = moek_take_(&used, slots ? 4 * experts : 0);
    at[MOEK_PLACE_OFFSETS_] = moek_take_(&used, slots ? 4 * (experts + 1) : 0);
    at[MOEK_PLACE_ORDER_] = moek_take_(&used, moek_times_(slots, 4));
    at[MOEK_PLACE_SLOT_ROW_] = moek_take_(&used, moek_may_sort_x_(plan) ? moek_times_(slots, 4) : 0);
    at[MOEK_PLACE_BLOCK_EXPERT_] = moek_take_(&used, moek_times_(blocks, 4));
    at[MOEK_PLACE_BLOCK_ROW_] = moek_take_(&used, moek_times_(blocks, 4));
    at[MOEK_PLACE_NUM_BLOCKS_] = moek_take_(&used, slots ? 4 : 0);
    at[MOEK_PLACE_H_] = moek_take_(&used, moek_times_(rows, 2 * (size_t)c->inter));
    if (moek_quantizes_(plan->chosen.h_format))
        moek_take_quantized_(&used, plan->chosen.h_format, rows, (size_t)c->inter, c->inter_offset,
                             at + MOEK_PLACE_HQ_);
    else at[MOEK_PLACE_HQ_] = at[MOEK_PLACE_HQ_ + 1] = at[MOEK_PLACE_HQ_ + 2] = MOEK_NOWHERE_;
    at[MOEK_PLACE_EXPANDED_] = moek_take_(&used, plan->chosen.expanded ? moek_expanded_(plan, 0) : 0);
    at[MOEK_PLACE_EXPANDED_SCALE_] = moek_take_(&used, plan->chosen.expanded ? moek_expanded_(plan, 1) : 0);
    return used;
}
static moek_table_work_ moek_table_work_of_(const moek_step *step)
{
    const size_t *const at = step->plan->chosen.places;
    void *const base = step->experts_workspace;
    moek_table_work_ w;
    w.flags = (int32_t *)moek_placed_(base, at[MOEK_PLACE_FLAGS_]);
    w.split = (float *)moek_placed_(base, at[MOEK_PLACE_SPLIT_]);
    w.counts = (int32_t *)moek_placed_(base, at[MOEK_PLACE_COUNTS_]);
    w.offsets = (int32_t *)moek_placed_(base, at[MOEK_PLACE_OFFSETS_]);
    w.order = (int32_t *)moek_placed_(base, at[MOEK_PLACE_ORDER_]);
    w.slot_row = (int32_t *)moek_placed_(base, at[MOEK_PLACE_SLOT_ROW_]);
    w.block_expert = (int32_t *)moek_placed_(base, at[MOEK_PLACE_BLOCK_EXPERT_]);
    w.block_row = (int32_t *)moek_placed_(base, at[MOEK_PLACE_BLOCK_ROW_]);
    w.num_blocks = (int32_t *)moek_placed_(base, at[MOEK_PLACE_NUM_BLOCKS_]);
    w.h = moek_placed_(base, at[MOEK_PLACE_H_]);
    w.hq = moek_quantized_at_(base, at + MOEK_PLACE_HQ_);
    w.expanded = moek_placed_(base, at[MOEK_PLACE_EXPANDED_]);
    w.expanded_scale = moek_placed_(base, at[MOEK_PLACE_EXPANDED_SCALE_]);
    return w;
}

/* The workspace of one chunk: its bytes. */
static size_t moek_layout_(const moek_plan *plan, size_t *at)
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
    size_t used = 0;
    moek_one_rank_layout_(plan, at);                   /* a user's part may be one that hands on to `local` */
    if (plan->chosen.tiles) moek_table_layout_(plan, at);
    at[MOEK_PLACE_TOPK_IDS_] = moek_take_(&used, moek_times_(slots, 4));
    at[MOEK_PLACE_TOPK_WEIGHTS_] = moek_take_(&used, moek_times_(slots, 4));
    at[MOEK_PLACE_IDS_] = moek_take_(&used, moek_times_(slots, 4));
    at[MOEK_PLACE_PREPARE_] = moek_take_(&used, pf->workspace ? pf->workspace(pf, plan) : 0);
    at[MOEK_PLACE_EXPERTS_] = moek_take_(&used, experts->workspace ? experts->workspace(experts, plan) : 0);
    at[MOEK_PLACE_OUT_] = moek_take_(&used, moek_times_(rows, 2 * hidden));
    return used ? used : 256;
}
static void moek_place_step_(moek_step *step, void *base)
{
    const size_t *const at = step->plan->chosen.places;
    step->topk_ids = (int32_t *)moek_placed_(base, at[MOEK_PLACE_TOPK_IDS_]);
    step->topk_weights = (float *)moek_placed_(base, at[MOEK_PLACE_TOPK_WEIGHTS_]);
    step->ids = (const int32_t *)moek_placed_(base, at[MOEK_PLACE_IDS_]);
    step->prepare_workspace = moek_placed_(base, at[MOEK_PLACE_PREPARE_]);
    step->experts_workspace = moek_placed_(base, at[MOEK_PLACE_EXPERTS_]);
    step->out = moek_placed_(base, at[MOEK_PLACE_OUT_]);
}
#endif
