/* moek/walk/parts.h -- the built-in parts: prepare/finalize `local` and `batched`, and the experts made of table rows.
 *
 * Each lays out its workspace in one function that serves both the query (base NULL) and the use. */
#ifndef MOEK_PARTS_H
#define MOEK_PARTS_H

/* Columns: up to these all products of a row's sizes, and all byte counts of a workspace, stay below 2^63. */
enum {
    MOEK_MAX_EXPERTS_ = 1024, MOEK_MAX_TOPK_ = 32, MOEK_MAX_COLUMNS_ = 1 << 24, MOEK_MAX_SLOTS_ = 0x7ff00000
};

/* Elements from a row of a run's x, y and shared_y to the next. */
static size_t moek_x_stride_(const moek_args *a, const moek_config *c)
{
    return a->x_stride ? a->x_stride : (size_t)c->hidden;
}
static size_t moek_y_stride_(const moek_args *a, const moek_config *c)
{
    return a->y_stride ? a->y_stride : (size_t)c->hidden;
}
static size_t moek_shared_y_stride_(const moek_args *a, const moek_config *c)
{
    return a->shared_y_stride ? a->shared_y_stride : (size_t)c->hidden;
}

typedef struct moek_carver_ { char *base; size_t used; } moek_carver_;

/* Both stay at the largest size_t once they reach it (a part of a user's may ask for anything, and size_t may have 32
 * bits); a plan refuses that. */
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

/* Bytes of so many columns of weights, of q. */
static size_t moek_w_bytes_(int quant, size_t columns) { return moek_element_bytes(moek_format_of(quant)->w, columns); }
static size_t moek_x_bytes_(int quant, size_t columns) { return moek_element_bytes(moek_format_of(quant)->x, columns); }
/* Columns of a line of 128 bytes of weights. */
static int moek_w_line_(int quant) { return 128 * 8 / moek_format_of(quant)->w_bits; }
/* May weights be tiled?  Rows of w_up and of w_down must be whole lines of 128 bytes. */
static int moek_can_tile_(const moek_config *c)
{
    const int line = moek_w_line_(c->quant);
    return c->hidden % line == 0 && c->inter % line == 0;
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

static moek_quant_args moek_quant_to_(const moek_plan *plan, const void *x, size_t rows, size_t columns,
                                      moek_quantized_ to)
{
    moek_quant_args a;
    memset(&a, 0, sizeof a);
    a.rows = (int)rows; a.cols = (int)columns; a.source_div = 1;
    a.dtype = plan->config.dtype;
    a.x = x;
    a.ue8m0 = plan->config.ue8m0;
    a.partial = to.partial;
    a.q = to.q; a.scale = to.scale;
    return a;
}

/* x of a run.  slot_row: each row once a slot, to there; NULL: as they lie. */
static moek_quant_args moek_quant_x_(const moek_step *step, const int32_t *slot_row, moek_quantized_ to)
{
    const moek_plan *plan = step->plan;
    const int copies = slot_row ? plan->slots : 1;
    moek_quant_args a = moek_quant_to_(plan, step->args.x, (size_t)step->tokens * (size_t)copies,
                                       (size_t)plan->config.hidden, to);
    a.x_stride = (int)moek_x_stride_(&step->args, &plan->config);
    a.source_div = copies;
    a.target = slot_row;
    a.static_scale = plan->weights.x_scale;
    a.row_weight = plan->config.router_weight_on_input ? step->topk_weights : NULL;
    return a;
}

/* ---- prepare/finalize on one rank -------------------------------------------------------------------------------- */

typedef struct moek_one_rank_ { moek_quantized_ a; int32_t *counts, *slot_row; } moek_one_rank_;

static moek_status moek_table_apply_(const moek_experts *self, moek_step *step, moek_stream stream);
static long long moek_mean_rows_(const moek_plan *plan, int rows);

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

static size_t moek_one_rank_workspace_(const moek_prepare_finalize *self, const moek_plan *plan)
{
    moek_one_rank_ w;
    (void)self;
    return moek_one_rank_layout_(plan, NULL, &w);
}

/* Are rows of sm90 the experts of a plan on one rank? */
static int moek_sm90_here_(const moek_plan *plan)
{
    return plan->arch >= 90 && plan->prepare_finalize == &moek_local && plan->experts->apply == moek_table_apply_;
}
/* The mlp row that a run takes, or NULL.  Its blocks wait for each other: args.state is the caller's word that they
 * can. */
static const moek_kernel *moek_mlp_row_(const moek_step *step)
{
    return step->args.state ? moek_plan_mlp(step->plan, step->tokens) : NULL;
}
/* The up or mlp row that a run takes, if so, and if it is one of sm90; else NULL. */
static const moek_kernel *moek_sm90_up_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const moek_kernel *up;
    if (!moek_sm90_here_(plan) || !plan->tiles) return NULL;
    if ((up = moek_mlp_row_(step)) != NULL) return up;
    up = plan->up[moek_plan_tile(plan, step->tokens)];
    return up->arch == 90 ? up : NULL;
}

/* Does the up row sort by itself?  Then the kernel before it is the quantization of x, which zeroes its flags. */
static int moek_self_sorts_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const moek_kernel *up = moek_sm90_up_(step);
    const int fp8 = moek_blocked_(plan->config.quant) || (moek_by_tensor_(plan->config.quant) && plan->weights.h_scale);
    return up && up->op == MOEK_OP_UP && up->m < 128 && fp8 && (long long)step->tokens * plan->slots <= MOEK_SELF_SORT;
}

/* Does a run write rows of x in sorted order (each once a slot), for the copy engine, instead of having the up row
 * gather them?  Up takes 2 to 4 % less then, which pays for the bytes where experts are wide; as measured. */
static int moek_orders_wide_(const moek_plan *plan)
{
    const moek_config *c = &plan->config;
    return moek_sm90_here_(plan) && !moek_by_row_(c->quant) && c->inter >= 4096 && c->hidden >= 512;
}
static int moek_orders_(const moek_step *step)
{
    const moek_kernel *up = moek_sm90_up_(step);
    return up && up->op == MOEK_OP_UP && up->m == 128 && moek_orders_wide_(step->plan) &&
           moek_mean_rows_(step->plan, step->tokens) >= 512;
}

/* Does the up or mlp row count slots by itself?  It then begins beside the sort and the quantization of x, which leave
 * multiprocessors to it (fp8c's does not).  Few slots only: each of its blocks looks at all ids. */
static int moek_counts_(const moek_step *step)
{
    const moek_kernel *up = moek_sm90_up_(step);
    return up && (up->op == MOEK_OP_MLP || up->m == 128) && !moek_by_row_(step->plan->config.quant) &&
           !moek_orders_(step) &&
           (long long)step->tokens * step->plan->slots <= MOEK_SORT_FEW;
}

/* Nothing to send on one rank: quantize, and multiply by the router's weight where that is asked for. */
static moek_status moek_local_prepare_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int defer = plan->experts->expects_unquantized, self_sorts = moek_self_sorts_(step);
    moek_one_rank_ w;
    moek_quant_args a;
    (void)self;
    moek_one_rank_layout_(plan, step->prepare_workspace, &w);
    step->a = step->args.x;
    step->a_scale = NULL;
    step->rows = step->tokens;
    step->expert_ids = step->ids;
    step->expert_weights = step->topk_weights;
    step->expert_tokens = NULL;
    step->a_stride = moek_x_stride_(&step->args, &plan->config);
    if ((defer || !moek_quantizes_(plan->config.quant)) && !plan->config.router_weight_on_input) return MOEK_OK;
    if (moek_orders_(step)) return MOEK_OK;           /* moek_table_apply_ quantizes behind its sort */
    step->a_stride = (size_t)plan->config.hidden;
    a = moek_quant_x_(step, NULL, w.a);
    if (self_sorts && !plan->config.batch_invariant) {
        a.zero = (int32_t *)step->experts_workspace;
        a.zeros = 2 * MOEK_SPLITS;
    }
    if (moek_counts_(step)) a.few = 64;               /* as measured: of 132 multiprocessors */
    else if (!self_sorts && plan->arch >= 90 && step->routed && plan->prepare_finalize == &moek_local)
        a.early = a.row_weight ? 1 : 2;               /* 2: beside routing */
    step->a = w.a.q;
    step->a_scale = moek_quantizes_(plan->config.quant) ? w.a.scale : NULL;
    return plan->quant->launch(&a, stream);
}

/* Rows to [local experts][rows_per_expert][hidden], in token order within an expert. */
static moek_status moek_batched_prepare_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    moek_one_rank_ w;
    moek_sort_args s;
    moek_quant_args a;
    moek_status status;
    (void)self;
    moek_one_rank_layout_(plan, step->prepare_workspace, &w);
    memset(&s, 0, sizeof s);
    s.slots = step->tokens * plan->slots;
    s.experts = plan->local_experts;
    s.rows_per_expert = plan->rows_per_expert;
    s.ids = step->ids; s.counts = w.counts; s.slot_row = w.slot_row;
    s.early = plan->arch >= 90 && step->routed ? 2 : 0;
    if ((status = plan->sort->launch(&s, stream)) != MOEK_OK) return status;
    a = moek_quant_x_(step, w.slot_row, w.a);
    step->a = w.a.q;
    step->a_scale = moek_quantizes_(plan->config.quant) ? w.a.scale : NULL;
    a.early = plan->arch >= 90;
    step->rows = plan->rows_per_expert;
    step->expert_ids = NULL;
    step->expert_weights = NULL;
    step->expert_tokens = w.counts;
    return plan->quant->launch(&a, stream);
}

static moek_status moek_nothing_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    (void)self; (void)step; (void)stream;
    return MOEK_OK;
}

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
    moek_one_rank_ w;
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
    /* Measured: of more rows than L2 holds a fair part of, nothing is gained.  (NOOP: rows may be y.) */
    a.discard = plan->arch >= 90 && weight_and_reduce != MOEK_NOOP &&
                (long long)step->tokens * plan->slots * plan->config.hidden <= 128ll << 20;
    if (weight_and_reduce == MOEK_NOOP) {             /* one row a token, all done: only the shared experts are left */
        if (step->out == step->args.y && !a.addend) return MOEK_OK;
        a.topk = 1; a.ids = NULL; a.weights = NULL;
    } else if (weight_and_reduce == MOEK_NAIVE_BATCHED) {
        moek_one_rank_layout_(plan, step->prepare_workspace, &w);
        a.slot_row = w.slot_row;
    }
    a.early = plan->arch >= 90;
    return plan->combine->launch(&a, stream);
}

const moek_prepare_finalize moek_local = {
    "local", MOEK_STANDARD, 0, 1, 0, 0, NULL, NULL, moek_one_rank_workspace_,
    moek_local_prepare_, moek_nothing_, moek_nothing_to_send_, moek_one_rank_finalize_, 0, 0, NULL
};
const moek_prepare_finalize moek_batched = {
    "batched", MOEK_BATCHED, 0, 1, 0, 1, NULL, NULL, moek_one_rank_workspace_,
    moek_batched_prepare_, moek_nothing_, moek_nothing_to_send_, moek_one_rank_finalize_, 0, 0, NULL
};

/* ---- experts made of table rows ---------------------------------------------------------------------------------- */

typedef struct moek_table_work_ {
    int32_t *counts, *offsets, *order, *slot_row, *block_expert, *block_row, *num_blocks, *flags;
    float *split;
    void *h;
    moek_quantized_ hq;
} moek_table_work_;

/* Rows of the smallest tile that a run may take: it makes the most blocks. */
static size_t moek_smallest_tile_(const moek_plan *plan)
{
    int i, m = plan->up[0]->m;
    for (i = 1; i < plan->pairs; i++) if (plan->up[i]->m < m) m = plan->up[i]->m;
    return (size_t)m;
}

static size_t moek_table_layout_(const moek_plan *plan, void *base, moek_table_work_ *w)
{
    const moek_config *c = &plan->config;
    const size_t experts = (size_t)plan->local_experts;
    const size_t slots = plan->rows_per_expert ? 0 : (size_t)plan->rows * (size_t)plan->slots;
    const size_t rows = plan->rows_per_expert ? experts * (size_t)plan->rows_per_expert : slots;
    const size_t blocks = slots ? moek_max_blocks(slots, experts, moek_smallest_tile_(plan)) : 0;
    size_t splits, split, flags;
    moek_carver_ carver;
    carver.base = (char *)base; carver.used = 0;
    /* For sm90 rows that split tiles (batch_invariant forbids it), take them by demand, or are both GEMMs.  Flags
     * first: `sort` zeroes them, or moek_local_prepare_. */
    splits = slots && plan->arch >= 90 && !c->batch_invariant ? MOEK_SPLITS : 0;
    flags = splits && plan->mlps ? MOEK_MLP_FLAGS + MOEK_MLP_BLOCKS : 2 * splits;
    w->flags = (int32_t *)moek_take_(&carver, 4 * flags);
    split = splits ? (size_t)32 * 128 : 0;            /* of a block: of the tallest tile that is cut */
    if (plan->layers && split < (size_t)plan->layer[plan->layers - 1]->m * 4 * 256)
        split = (size_t)plan->layer[plan->layers - 1]->m * 4 * 256;
    w->split = (float *)moek_take_(&carver, 4 * split * (size_t)plan->multiprocessors);
    if (!splits) { w->flags = NULL; w->split = NULL; }
    w->counts = (int32_t *)moek_take_(&carver, slots ? 4 * experts : 0);
    w->offsets = (int32_t *)moek_take_(&carver, slots ? 4 * (experts + 1) : 0);
    w->order = (int32_t *)moek_take_(&carver, moek_times_(slots, 4));
    w->slot_row = (int32_t *)moek_take_(&carver, moek_orders_wide_(plan) ? moek_times_(slots, 4) : 0);
    w->block_expert = (int32_t *)moek_take_(&carver, moek_times_(blocks, 4));
    w->block_row = (int32_t *)moek_take_(&carver, moek_times_(blocks, 4));
    w->num_blocks = (int32_t *)moek_take_(&carver, slots ? 4 : 0);
    w->h = moek_take_(&carver, moek_times_(rows, 2 * (size_t)c->inter));
    if (moek_quantizes_(c->quant)) w->hq = moek_take_quantized_(&carver, c, rows, (size_t)c->inter, c->inter_offset);
    else memset(&w->hq, 0, sizeof w->hq);
    return carver.used;
}

static size_t moek_table_workspace_(const moek_experts *self, const moek_plan *plan)
{
    moek_table_work_ w;
    (void)self;
    return moek_table_layout_(plan, NULL, &w);
}

/* The mean rows an expert up to which a tile is taken.  On sm90 a second block of an expert costs more than a tile that
 * is partly empty: some room is left.  Of narrow experts each tile of w brings x again, and stores of y count most in
 * fp8: wide tiles win earlier.  All as measured (bench/tuned/). */
static int moek_tile_mean_(const moek_plan *plan, const moek_kernel *up)
{
    if (up->arch != 90) return up->m;
    if (up->op == MOEK_OP_MLP)
        return up->m - 8 > 48 && moek_quantizes_(plan->config.quant) && plan->config.inter <= 256 ? 48 : up->m - 8;
    return up->m == 32 && plan->config.inter < 512 ? 14 : 2 * up->m / 3;
}

/* The pair measured as the fastest for so many rows, or MOEK_CHOICE_*. */
static int moek_measured_(const moek_plan *plan, int rows)
{
    int i;
    for (i = 0; i < plan->choices; i++) if (rows <= plan->choice[i].tokens) return plan->choice[i].pair;
    return MOEK_CHOICE_RULE;
}

/* Of so many rows before they are dispatched. */
static long long moek_mean_rows_(const moek_plan *plan, int rows)
{
    const long long experts = plan->config.physical_experts;
    return ((long long)rows * plan->slots + experts - 1) / experts;
}

/* A plan that moek_plan_init refused, or never saw, has no sizes to divide by. */
static int moek_planned_(const moek_plan *plan) { return plan && plan->backend; }

int moek_plan_tile(const moek_plan *plan, int rows)
{
    const long long mean = moek_planned_(plan) ? moek_mean_rows_(plan, rows) : 0;
    int i = moek_planned_(plan) ? moek_measured_(plan, rows) : 0;
    if (i >= 0) return i;
    for (i = 0; i < plan->tiles - 1; i++)
        if (mean <= moek_tile_mean_(plan, plan->up[i])) break;
    return i;
}

/* Rows of a run, before they are dispatched.  Host counts only: what the device knows better may cost speed, never
 * correctness. */
static int moek_run_rows_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const int senders = plan->prepare_finalize->num_dispatchers;
    return plan->rows_per_expert ? step->tokens * (senders > 1 ? senders : 1) : step->rows;
}

/* Batched: the most rows an expert can hold in this run, as far as the host knows; other ranks may send more. */
static int moek_live_rows_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const long long mine = (long long)step->tokens * plan->slots;
    return plan->prepare_finalize == &moek_batched && mine < plan->rows_per_expert ? (int)mine : plan->rows_per_expert;
}

/* What a GEMM reads of weights and config. */
static void moek_up_weights_(const moek_plan *plan, moek_gemm_args *g)
{
    const moek_config *c = &plan->config;
    const int gated = moek_act_gated_(c->act);
    g->experts = plan->local_experts; g->dtype = c->dtype;
    g->n = c->inter; g->k = c->hidden; g->w_rows = gated ? 2 * c->inter : c->inter;
    g->w = plan->weights.w_up; g->w_scale = plan->weights.w_up_scale; g->bias = plan->weights.w_up_bias;
    g->act = c->act; g->alpha = c->alpha; g->beta = c->beta; g->limit = c->limit;
    g->w_gate = plan->weights.w_gate; g->gate_scale = plan->weights.w_gate_scale;
    g->gate_bias = plan->weights.w_gate_bias;
    g->scales_apart = gated && c->up_scales; g->n_offset = c->inter_offset; g->k_offset = 0;
    g->w_step = c->up_layout == MOEK_UP_INTERLEAVED && gated ? 2 : 1;
    g->gate_first = c->up_layout == MOEK_UP_SWAPPED && gated ? c->inter : 0;
    g->up_first = c->up_layout == MOEK_UP_INTERLEAVED ? 1 : c->up_layout == MOEK_UP_SWAPPED ? 0 : c->inter;
    g->tiled = c->weight_layout == MOEK_WEIGHTS_TILED;
}
static void moek_down_weights_(const moek_plan *plan, moek_gemm_args *g)
{
    const moek_config *c = &plan->config;
    g->experts = plan->local_experts; g->dtype = c->dtype;
    g->n = c->hidden; g->k = c->inter; g->w_rows = c->hidden;
    g->w = plan->weights.w_down; g->w_scale = plan->weights.w_down_scale; g->bias = plan->weights.w_down_bias;
    g->w_gate = NULL; g->gate_scale = NULL; g->gate_bias = NULL;
    g->scales_apart = g->n_offset = 0; g->k_offset = c->inter_offset;
    g->tiled = c->weight_layout == MOEK_WEIGHTS_TILED;
}

/* Launches up or down; of a format with a second scale or zero points, with these. */
static moek_status moek_launch_gemm_(const moek_plan *plan, const moek_kernel *k, const moek_gemm_args *g,
                                     moek_stream stream)
{
    const moek_weights *const w = &plan->weights;
    const int down = k->op == MOEK_OP_DOWN;
    moek_gemm_more_args more;
    if (!moek_format_of(k->quant)->second && !moek_format_of(k->quant)->zero) return k->launch(g, stream);
    memset(&more, 0, sizeof more);
    more.gemm = *g;
    more.w_global_scale = down ? w->w_down_global_scale : w->w_up_global_scale;
    more.gate_global_scale = down ? NULL : w->w_gate_global_scale;
    more.w_zero = down ? w->w_down_zero : w->w_up_zero;
    more.gate_zero = down ? NULL : w->w_gate_zero;
    return k->launch(&more, stream);
}

/* Weights of a checkpoint -> tiled, or back. */
static moek_status moek_repack_(const moek_plan *plan, int down, const void *from, void *to, int experts, int back,
                                moek_stream stream)
{
    const moek_kernel *k = NULL;
    moek_gemm_args g;
    moek_repack_args a;
    int i;
    if (!moek_planned_(plan) || experts < 0 || (experts && (!from || !to)) ||
        ((uintptr_t)from | (uintptr_t)to) % 16) return MOEK_E_ARGUMENT;
    for (i = 0; i < MOEK_ROWS_ && !k; i++)
        if (moek_table_[i].op == MOEK_OP_REPACK && moek_table_[i].arch <= plan->arch) k = &moek_table_[i];
    if (!k) return MOEK_E_NO_KERNEL;
    if (moek_device_current_() != plan->device || !moek_can_tile_(&plan->config)) return MOEK_E_ARGUMENT;
    if (!down && plan->config.up_layout == MOEK_UP_APART) return MOEK_E_ARGUMENT;
    memset(&g, 0, sizeof g);
    memset(&a, 0, sizeof a);
    if (down) moek_down_weights_(plan, &g);
    else moek_up_weights_(plan, &g);
    a.experts = experts; a.w_rows = g.w_rows; a.n = g.n;
    a.gate_first = g.gate_first; a.up_first = g.up_first; a.w_step = g.w_step;
    a.row_bytes = moek_w_bytes_(plan->config.quant, (size_t)g.k);
    a.back = back; a.from = from; a.to = to;
    return k->launch(&a, stream);
}
moek_status moek_repack_up(const moek_plan *plan, const void *from, void *to, int experts, int back,
                           moek_stream stream)
{
    return moek_repack_(plan, 0, from, to, experts, back, stream);
}
moek_status moek_repack_down(const moek_plan *plan, const void *from, void *to, int experts, int back,
                             moek_stream stream)
{
    return moek_repack_(plan, 1, from, to, experts, back, stream);
}

/* The mean rows an expert from which on the up row quantizes what it makes by itself; 0: it cannot.  With fewer, what
 * that adds to each tile was measured as longer than a launch of its own. */
static int moek_requantizes_from_(const moek_plan *plan, const moek_kernel *up)
{
    const int quant = plan->config.quant;
    const int can = moek_blocked_(quant) ? !plan->config.inter_offset : moek_by_tensor_(quant) && plan->weights.h_scale;
    return up->arch == 90 && up->m == 128 && moek_act_gated_(plan->config.act) && can ? 512 : 0;
}

/* Rows of x behind each other as up wants them, where down will write later: step->out, of two bytes an element. */
static moek_status moek_order_x_(const moek_step *step, const moek_table_work_ *w, moek_gemm_args *g,
                                 moek_stream stream)
{
    const moek_plan *plan = step->plan;
    moek_carver_ carver;
    moek_quantized_ to;
    moek_quant_args q;
    carver.base = (char *)step->out; carver.used = 0;
    to = moek_take_quantized_(&carver, &plan->config, (size_t)step->tokens * (size_t)plan->slots,
                              (size_t)plan->config.hidden, 0);
    q = moek_quant_x_(step, w->slot_row, to);
    q.early = 1;
    g->rows = q.rows; g->a = to.q; g->a_scale = moek_quantizes_(plan->config.quant) ? to.scale : NULL;
    g->a_order = NULL; g->a_div = 1;
    g->a_row_bytes = 0;
    return plan->quant->launch(&q, stream);
}

/* What up and down of a row that is both have in its launch: weights; h, quantized by scales known or by its own. */
static void moek_both_gemms_(const moek_step *step, const moek_table_work_ *w, moek_gemm_args *up, moek_gemm_args *down)
{
    const moek_plan *plan = step->plan;
    moek_up_weights_(plan, up);
    moek_down_weights_(plan, down);
    down->a = moek_quantizes_(plan->config.quant) ? w->hq.q : w->h;
    down->a_scale = moek_by_tensor_(plan->config.quant) ? plan->weights.h_scale : w->hq.scale;
    down->out = step->out;
}

/* up, quantization of h and down by an mlp row.  g: as up has it, but for weights. */
static moek_status moek_mlp_(const moek_kernel *mlp, const moek_step *step, const moek_table_work_ *w,
                             const moek_gemm_args *g, moek_stream stream)
{
    moek_gemm_args up = *g, down = *g;
    moek_mlp_args a;
    moek_both_gemms_(step, w, &up, &down);
    up.early = 1;
    down.a_row_bytes = 0;
    down.out_order = w->order;
    a.up = &up; a.down = &down;
    a.flags = w->flags; a.ue8m0 = step->plan->config.ue8m0;
    return mlp->launch(&a, stream);
}

static moek_status moek_table_apply_(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_config *c = &plan->config;
    const moek_weights *weights = &plan->weights;
    const int early = plan->arch >= 90, rows = moek_run_rows_(step), tile = moek_plan_tile(plan, rows);
    const int fp8 = moek_quantizes_(c->quant), slots = step->rows * plan->slots;
    const int from = moek_requantizes_from_(plan, plan->up[tile]);
    const int requantizes = from && moek_mean_rows_(plan, rows) >= from, orders = moek_orders_(step);
    const int self_sorts = moek_self_sorts_(step), counts = moek_counts_(step);
    const moek_kernel *const mlp = moek_mlp_row_(step);
    moek_table_work_ w;
    moek_sort_args s;
    moek_gemm_args g;
    moek_quant_args q;
    moek_status status;
    (void)self;
    moek_table_layout_(plan, step->experts_workspace, &w);

    memset(&g, 0, sizeof g);
    g.experts = plan->local_experts;
    g.dtype = c->dtype;
    g.rows = step->rows; g.a = step->a; g.a_scale = step->a_scale;
    g.a_row_bytes = (int)moek_x_bytes_(c->quant, step->a_stride);
    g.a_div = 1;
    if (plan->rows_per_expert) {
        g.rows = g.experts * plan->rows_per_expert;
        g.rows_per_expert = plan->rows_per_expert;
        g.max_blocks = (moek_live_rows_(step) + plan->up[tile]->m - 1) / plan->up[tile]->m;
        g.counts = step->expert_tokens;
    } else {
        memset(&s, 0, sizeof s);
        s.slots = slots; s.experts = plan->local_experts;
        s.block_m = mlp ? mlp->m : plan->up[tile]->m;
        g.max_blocks = moek_max_blocks(slots, plan->local_experts, s.block_m);
        s.ids = step->expert_ids;
        s.counts = w.counts; s.offsets = w.offsets; s.order = w.order;
        if (!mlp && plan->up[tile]->arch != 90) {     /* those find row blocks from the counts */
            s.block_expert = w.block_expert; s.block_row = w.block_row; s.num_blocks = w.num_blocks;
        }
        s.zero = w.flags; s.zeros = mlp ? MOEK_MLP_FLAGS + g.max_blocks : w.flags ? 2 * MOEK_SPLITS : 0;
        if (orders) s.slot_row = w.slot_row;
        if (early && plan->prepare_finalize == &moek_local)            /* 1: beside the quantization of x */
            s.early = step->routed && !counts ? 2 : (fp8 || c->router_weight_on_input) && !orders;
        if (!self_sorts && (status = plan->sort->launch(&s, stream)) != MOEK_OK) return status;
        if (self_sorts || counts) { g.ids = step->expert_ids; g.slots = slots; }
        g.counts = w.counts; g.offsets = w.offsets;
        g.block_expert = w.block_expert; g.block_row = w.block_row; g.num_blocks = w.num_blocks;
        g.a_order = w.order; g.a_div = plan->slots;
        if (orders && (status = moek_order_x_(step, &w, &g, stream)) != MOEK_OK) return status;
    }

    if (mlp) return moek_mlp_(mlp, step, &w, &g, stream);
    moek_up_weights_(plan, &g);
    g.out = w.h;
    g.early = early;
    g.split = w.split; g.split_flags = w.flags;
    g.invariant = c->batch_invariant;
    if (requantizes) {
        if (moek_by_tensor_(c->quant)) w.hq.scale = (void *)weights->h_scale;
        g.q = w.hq.q; g.q_scale = (float *)w.hq.scale; g.ue8m0 = c->ue8m0;
    }
    if ((status = moek_launch_gemm_(plan, plan->up[tile], &g, stream)) != MOEK_OK) return status;

    if (fp8 && !requantizes) {
        q = moek_quant_to_(plan, w.h,
                           plan->rows_per_expert ? (size_t)g.experts * (size_t)g.rows_per_expert : (size_t)slots,
                           (size_t)c->inter, w.hq);
        q.static_scale = weights->h_scale;
        q.group_offset = moek_blocked_(c->quant) ? c->inter_offset : 0;
        if (plan->rows_per_expert) { q.counts = g.counts; q.rows_per_expert = g.rows_per_expert; }
        else if (!self_sorts) q.row_limit = w.offsets + g.experts;
        q.early = early;
        /* As measured, of 132 multiprocessors: on the others down is ready when h is. */
        if (early && !plan->rows_per_expert && plan->down[tile]->m == 128) q.few = 96;
        if ((status = plan->quant->launch(&q, stream)) != MOEK_OK) return status;
    }

    moek_down_weights_(plan, &g);
    if (!plan->rows_per_expert) g.rows = slots;
    g.a = fp8 ? w.hq.q : w.h; g.a_scale = fp8 ? w.hq.scale : NULL;
    g.out = step->out;
    g.out_order = plan->rows_per_expert ? NULL : w.order;      /* back to slot order: out is [rows][slots][hidden] */
    g.a_order = NULL; g.a_div = 1;
    g.a_row_bytes = 0;
    g.q = NULL;
    if (plan->down[tile]->m == 128) g.ids = NULL;
    if (w.flags) g.split_flags = w.flags + MOEK_SPLITS;
    return moek_launch_gemm_(plan, plan->down[tile], &g, stream);
}

/* The most experts that so many slots can have. */
static long long moek_used_experts_(const moek_plan *plan, long long slots)
{
    return slots < plan->local_experts ? slots : plan->local_experts;
}
/* Are scales for x and h known before either is, where the format has one for all of it?  Rows for several steps in one
 * launch cannot look at all of it first. */
static int moek_scales_known_(const moek_plan *plan)
{
    return !moek_by_tensor_(plan->config.quant) || (plan->weights.x_scale && plan->weights.h_scale);
}
/* Can a layer row with m = 4 take so many tokens? */
static int moek_few_fits_(const moek_plan *plan, int tokens)
{
    const moek_config *c = &plan->config;
    const int blocks = plan->multiprocessors < MOEK_SPLITS ? plan->multiprocessors : MOEK_SPLITS;
    return moek_few_of(tokens, plan->slots, plan->local_experts, c->hidden, c->inter, moek_act_gated_(c->act),
                       (int)moek_w_bytes_(c->quant, 1), blocks).fits;
}
/* Does it, as measured, or, if such a row was asked for or is the only one, can it?  Each block of it quantizes all
 * of x for itself, and the rows with m > 4 read weights a little faster: so narrow experts go to those by the elements
 * of the experts in use and of x.  (Where it does for some tokens, it does for fewer.) */
static int moek_few_wins_(const moek_plan *plan, int tokens)
{
    const moek_config *c = &plan->config;
    const long long expert = (long long)c->hidden * c->inter * (moek_act_gated_(c->act) ? 3 : 2);
    if (!moek_few_fits_(plan, tokens)) return 0;
    if (plan->layers_demanded) return 1;
    if (c->inter > 1024) return tokens <= 2;
    return tokens == 1 || plan->layers == 1 ||
           moek_used_experts_(plan, (long long)tokens * plan->slots) * expert / 10000 + (long long)tokens * c->hidden <=
           (moek_quantizes_(c->quant) ? 35000 : 46000);
}

/* Measured: the rows with m > 4 win where down has tiles enough for all multiprocessors, or short ones, while experts
 * hold few rows. */
static const moek_kernel *moek_layer_of_(const moek_plan *plan, int tokens)
{
    const long long slots = (long long)tokens * plan->slots;
    const long long used = moek_used_experts_(plan, slots);
    const int measured = moek_measured_(plan, tokens);
    int i;
    if (tokens < 1 || slots > MOEK_SELF_SORT || measured >= 0 || measured <= MOEK_CHOICE_MLP) return NULL;
    if (!moek_scales_known_(plan)) return NULL;
    if (measured <= MOEK_CHOICE_LAYER) {
        const moek_kernel *const k = plan->layer[MOEK_CHOICE_LAYER - measured];
        if (k->m > 4 || moek_few_fits_(plan, tokens)) return k;
    }
    for (i = 0; i < plan->layers && plan->layer[i]->m == 4; i++)
        if (moek_few_wins_(plan, tokens)) return plan->layer[i];
    if (2 * used * ((plan->config.hidden + 255) / 256) < 3 * (long long)plan->multiprocessors &&
        plan->config.inter > 1024 && !plan->layers_demanded) return NULL;
    for (; i < plan->layers; i++)
        if (tokens <= plan->layer[i]->m || moek_mean_rows_(plan, tokens) <= moek_tile_mean_(plan, plan->layer[i]))
            return plan->layer[i];
    return NULL;
}

/* As measured: where most experts' rows fit into a tile (moek_tile_mean_), and there are two tiles of up for each
 * block; with few rows an expert, for which other rows cut tiles, of down as well, and only from some slots on.  Never
 * with very short tiles (of 128 bytes of k: up 8, down 2): who tells other blocks of a tile, which takes microseconds,
 * could fall behind. */
static const moek_kernel *moek_mlp_of_(const moek_plan *plan, int rows)
{
    const moek_config *c = &plan->config;
    const long long slots = (long long)rows * plan->slots;
    const long long used = moek_used_experts_(plan, slots);
    const long long mean = moek_mean_rows_(plan, rows), tiles = 2 * plan->multiprocessors;
    const int columns = moek_act_gated_(c->act) ? 128 : 256, element = (int)moek_x_bytes_(c->quant, 1);
    const int few = moek_quantizes_(c->quant) ? 10 : 16;                  /* rows an expert */
    const int measured = plan->mlps_demanded ? MOEK_CHOICE_RULE : moek_measured_(plan, rows);
    const moek_kernel *k = NULL;
    int i;
    if (!plan->mlps || rows < 1 || measured >= 0) return NULL;
    if (!moek_scales_known_(plan)) return NULL;
    if (c->hidden * element <= 7 * 128 || c->inter * element <= 128) return NULL;
    if (plan->mlps_demanded) k = plan->mlp[0];
    else if (measured <= MOEK_CHOICE_MLP) k = plan->mlp[MOEK_CHOICE_MLP - measured];
    else if (used * ((c->inter + columns - 1) / columns) < tiles ||
             (mean <= few && (slots < 256 || used * ((c->hidden + 255) / 256) < tiles))) return NULL;
    for (i = 0; !k && i < plan->mlps; i++) if (mean <= moek_tile_mean_(plan, plan->mlp[i])) k = plan->mlp[i];
    if (!k || moek_max_blocks(slots, plan->local_experts, k->m) > MOEK_MLP_BLOCKS) return NULL;
    return moek_max_blocks(slots, plan->local_experts, k->m) * k->m * c->inter * element < MOEK_GATHERED ? k : NULL;
}

const moek_kernel *moek_plan_layer(const moek_plan *plan, int tokens)
{
    return moek_planned_(plan) ? moek_layer_of_(plan, tokens) : NULL;
}
const moek_kernel *moek_plan_mlp(const moek_plan *plan, int rows)
{
    return moek_planned_(plan) ? moek_mlp_of_(plan, rows) : NULL;
}

/* What follows routing, in one launch of such a row. */
static moek_status moek_layer_(const moek_kernel *layer, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    moek_one_rank_ one;
    moek_table_work_ w;
    moek_gemm_args up, down;
    moek_layer_args a;
    moek_one_rank_layout_(plan, step->prepare_workspace, &one);
    moek_table_layout_(plan, step->experts_workspace, &w);
    memset(&up, 0, sizeof up);
    memset(&down, 0, sizeof down);
    memset(&a, 0, sizeof a);
    moek_both_gemms_(step, &w, &up, &down);
    up.a = moek_quantizes_(plan->config.quant) ? one.a.q : step->args.x;
    up.a_scale = moek_by_tensor_(plan->config.quant) ? plan->weights.x_scale : one.a.scale;
    a.tokens = step->tokens; a.topk = plan->slots;
    a.ids = step->ids; a.weights = step->topk_weights;
    a.x = step->args.x; a.x_stride = (int)moek_x_stride_(&step->args, &plan->config);
    a.ue8m0 = plan->config.ue8m0;
    a.up = &up; a.down = &down;
    a.addend = step->args.shared_y; a.addend_stride = (int)moek_shared_y_stride_(&step->args, &plan->config);
    a.y = step->args.y; a.y_stride = (int)moek_y_stride_(&step->args, &plan->config);
    a.split = w.split;
    a.state = (moek_layer_state *)step->args.state;
    a.discard = 1;
    return layer->launch(&a, stream);
}

static const moek_experts moek_table_standard_ = {
    "table", MOEK_STANDARD, MOEK_DELEGATE, 0, NULL, NULL, moek_table_workspace_, moek_table_apply_
};
static const moek_experts moek_table_batched_ = {
    "table_batched", MOEK_BATCHED, MOEK_DELEGATE, 0, NULL, NULL, moek_table_workspace_, moek_table_apply_
};

/* Is everything where its elements want it?  Rows of a GPU move 16 bytes at a time. */
static int moek_quant_aligned_(int quant, int arch, const moek_quant_args *a)
{
    const uintptr_t wide = (uintptr_t)a->x | (uintptr_t)a->q;
    const uintptr_t words = (uintptr_t)a->row_weight | (uintptr_t)a->static_scale | (uintptr_t)a->target |
                            (uintptr_t)a->row_limit | (uintptr_t)a->counts | (uintptr_t)a->partial |
                            (uintptr_t)a->zero | (a->scale_layout == MOEK_SCALE_PACKED ? (uintptr_t)a->scale : 0);
    const size_t scale = (size_t)moek_scale_bits_[moek_x_scale_(quant)->type] / 8;
    if (scale && (uintptr_t)a->scale % scale) return 0;
    return wide % 16 == 0 || (!arch && (uintptr_t)a->x % 2 == 0) ? words % 4 == 0 : 0;
}

moek_status moek_quantize(int quant, int arch, const moek_quant_args *args, moek_stream stream)
{
    const moek_format *const f = moek_format_of(quant);
    int i;
    if (!f) return MOEK_E_NO_KERNEL;
    if (!args || args->rows < 0 || args->rows > MOEK_MAX_SLOTS_ || args->cols < 1 || args->cols > MOEK_MAX_COLUMNS_ ||
        args->source_div < 1 || !args->x || !args->q || args->zeros < 0 || (args->zeros && !args->zero) ||
        args->few < 0 || args->early < 0 || args->early > 2 || !moek_quant_aligned_(quant, arch, args))
        return MOEK_E_ARGUMENT;
    if (args->ue8m0 && moek_quantizes_(quant) && !f->ue8m0) return MOEK_E_ARGUMENT;
    if (args->dtype != MOEK_DTYPE_BF16 && args->dtype != MOEK_DTYPE_FP16) return MOEK_E_ARGUMENT;
    if (moek_own_dtype_(quant) && args->dtype != moek_own_dtype_(quant)) return MOEK_E_ARGUMENT;
    if (args->counts && (args->rows_per_expert < 1 || args->rows % args->rows_per_expert)) return MOEK_E_ARGUMENT;
    if (args->scale_layout < MOEK_SCALE_ROW || args->scale_layout > MOEK_SCALE_PACKED) return MOEK_E_ARGUMENT;
    if (args->scale_layout != MOEK_SCALE_ROW && (!moek_blocked_(quant) || args->scale_stride < args->rows))
        return MOEK_E_ARGUMENT;
    if (args->scale_layout == MOEK_SCALE_PACKED && !args->ue8m0 && f->x_scale.type != MOEK_SCALE_TYPE_E8M0)
        return MOEK_E_ARGUMENT;
    if (args->group_offset < 0 || (args->group_offset && args->group_offset >= f->x_scale.columns) ||
        (arch && args->group_offset % 8)) return MOEK_E_ARGUMENT;
    if (moek_quantizes_(quant) && !args->scale) return MOEK_E_ARGUMENT;
    if (moek_by_tensor_(quant) && !args->static_scale && !args->partial) return MOEK_E_ARGUMENT;
    if (args->x_stride && args->x_stride != args->cols && (args->x_stride < args->cols || args->x_stride % 8))
        return MOEK_E_ARGUMENT;
    for (i = 0; i < MOEK_ROWS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op != MOEK_OP_QUANT || k->quant != quant || (k->arch ? arch < k->arch : arch != 0)) continue;
        if (k->hidden ? k->hidden != args->cols : args->cols % k->granule) continue;
        return k->launch(args, stream);
    }
    return MOEK_E_NO_KERNEL;
}
#endif
