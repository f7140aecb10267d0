/* moek/plan/check.h -- a config without its kernels: bounds, what fits together, defaults. */
#ifndef MOEK_CHECK_H
#define MOEK_CHECK_H
#include "../names.h"
#include "../text.h"
#include <math.h>

/* Up to these sizes all products of a row's sizes, and all byte counts of a workspace, stay below 2^63. */
enum {
    MOEK_MAX_EXPERTS_ = 1024, MOEK_MAX_TOPK_ = 32, MOEK_MAX_COLUMNS_ = 1 << 24, MOEK_MAX_SLOTS_ = 0x7ff00000
};

static size_t moek_x_bytes_(const moek_format *f, size_t columns) { return moek_element_bytes(f->x, columns); }
/* Columns of a line of 128 bytes of weights. */
static int moek_w_line_(const moek_format *f) { return 128 * 8 / f->w_bits; }
/* Are tiled weights of this format fragments (moek/ops.h: repack)?  And are its scales repacked, too? */
enum { MOEK_READS_TILED_ = MOEK_READS_LINES | MOEK_READS_FRAGMENTS };
/* Are weights that lie so (moek_layout_at_) among what is read (moek_kernel.reads)? */
static int moek_reads_(int reads, int layout)
{
    switch (layout) {
    case MOEK_WEIGHTS_BLOCKS: return (reads & MOEK_READS_BLOCKS) != 0;
    case MOEK_WEIGHTS_TILED:  return (reads & MOEK_READS_TILED_) != 0;
    case MOEK_WEIGHTS_PANELS: return (reads & MOEK_READS_PANELS) != 0;
    default:                  return (reads & MOEK_READS_CHECKPOINT) != 0;
    }
}
static int moek_in_fragments_(const moek_format *f) { return f->tiled == MOEK_READS_FRAGMENTS; }
static int moek_scales_tiled_(const moek_format *f, int block)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    return moek_in_fragments_(f) && of.rows == 1 && of.columns;
}
/* What hidden and inter must be multiples of for tiled weights: a line of 128 bytes; or a fragment has so many columns,
 * and rows of gate and up. */
static int moek_tile_granule_(const moek_format *f) { return moek_in_fragments_(f) ? 64 : moek_w_line_(f); }
static int moek_can_tile_(const moek_config *c, int op)
{
    const moek_format *const f = moek_format_at_(c, op);
    const int granule = moek_tile_granule_(f);
    return (moek_in_fragments_(f) || !f->only_blocks) && c->hidden % granule == 0 &&
           c->inter % granule == 0;
}
/* The same for panels: rows of up and columns of down are inter; and a scale of 16 rows lies in one place. */
enum { MOEK_PANEL_GRANULE_ = 32 };
static int moek_can_panel_(const moek_config *c)
{
    return c->hidden % MOEK_PANEL_GRANULE_ == 0 && c->inter % MOEK_PANEL_GRANULE_ == 0 &&
           c->inter_offset % MOEK_PANEL_GRANULE_ == 0;
}
static int moek_scales_in_panels_(const moek_format *f, int block)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    return of.rows == 1 && of.columns;
}

/* How gate and up lie, of a gated activation, the default put in. */
static int moek_up_layout_(const moek_config *c)
{
    return c->up_layout ? c->up_layout : c->act == MOEK_SWIGLUOAI ? MOEK_UP_INTERLEAVED : MOEK_UP_GATE_UP;
}
/* Does the format have scales of so many columns (config.block), where it leaves them open? */
static int moek_has_block_(const moek_format *f, int block)
{
    int i = 0;
    while (i < f->blocks && f->block[i] != block) i++;
    return i < f->blocks;
}

/* Everything that can be said without looking at kernels, and defaults.  config is the plan's own copy.  A config with
 * its defaults filled in passes all checks, and is filled in as it was: plan.config may make another plan. */
static moek_status moek_check_sizes_(const moek_config *c, moek_text_ *why)
{
    const long long all = (long long)c->experts + c->shared_slots;
#define MOEK_POSITIVE_(field) \
    if (c->field < 1) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config." #field " is %d; it must be at least 1", c->field)
    MOEK_POSITIVE_(hidden); MOEK_POSITIVE_(inter); MOEK_POSITIVE_(experts); MOEK_POSITIVE_(topk);
    MOEK_POSITIVE_(max_tokens);
#define MOEK_NOT_NEGATIVE_(field) \
    if (c->field < 0) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config." #field " is %d; it must not be negative", c->field)
    MOEK_NOT_NEGATIVE_(shared_slots); MOEK_NOT_NEGATIVE_(local_experts); MOEK_NOT_NEGATIVE_(physical_experts);
    MOEK_NOT_NEGATIVE_(max_replicas); MOEK_NOT_NEGATIVE_(chunk_tokens); MOEK_NOT_NEGATIVE_(max_rows_per_expert);
    MOEK_NOT_NEGATIVE_(groups); MOEK_NOT_NEGATIVE_(topk_groups);
#undef MOEK_POSITIVE_
#undef MOEK_NOT_NEGATIVE_
    if (c->experts > MOEK_MAX_EXPERTS_ || all > MOEK_MAX_EXPERTS_)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.experts + shared_slots is %lld; the router takes at most %d",
                   all, MOEK_MAX_EXPERTS_);
    if (c->topk > c->experts || c->topk + c->shared_slots > MOEK_MAX_TOPK_)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.topk is %d (+ %d shared slots) of %d experts; at most %d, "
                   "and not more than there are",
                   c->topk, c->shared_slots, c->experts, MOEK_MAX_TOPK_);
    if (c->local_experts > MOEK_MAX_EXPERTS_ || c->physical_experts > 65536)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.local_experts is %d and physical_experts %d; at most %d and 65536",
                   c->local_experts, c->physical_experts, MOEK_MAX_EXPERTS_);
    if (c->hidden > MOEK_MAX_COLUMNS_ || c->inter > MOEK_MAX_COLUMNS_)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.hidden is %d and inter %d; each is at most 2^24, which is %d",
                   c->hidden, c->inter, MOEK_MAX_COLUMNS_);
    if ((long long)c->max_tokens * (c->topk + c->shared_slots) > MOEK_MAX_SLOTS_)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.max_tokens %d x %d slots overflows 31 bits (at most %d slots): "
                   "make max_tokens smaller", c->max_tokens, c->topk + c->shared_slots, MOEK_MAX_SLOTS_);
    return MOEK_OK;
}

/* config.down_quant: what goes with two formats. */
static moek_status moek_check_two_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const up = moek_format_of(c->quant), *const down = moek_format_of(c->down_quant);
    const int own[2] = { moek_fixed_dtype_(up), moek_fixed_dtype_(down) };
    if (!down)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.down_quant is %d, which is no format; 0 (as quant), or "
                   "MOEK_Q6_K_A16, ...", c->down_quant);
    if (own[0] && own[1] && own[0] != own[1])
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.quant is %s and down_quant %s, but a layer has one T (config.dtype)",
                   up->name, down->name);
    if (c->inter_offset)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d, but down_quant is %s beside %s, and shards of two "
                   "formats begin with whole groups of scales of both: leave it 0, and cut inter so", c->inter_offset,
                   down->name, up->name);
    if (c->expand_weights)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.expand_weights is %d, but down_quant is %s beside %s, and it is for "
                   "one format: leave it 0", c->expand_weights, down->name, up->name);
    return MOEK_OK;
}

/* Do the weights come as the layout says?  Of two formats, one may lie otherwise (moek_layout_at_). */
static moek_status moek_check_layout_(const moek_config *c, moek_text_ *why)
{
    const int at[2] = { moek_layout_at_(c, MOEK_OP_UP), moek_layout_at_(c, MOEK_OP_DOWN) };
    const int own = at[0] == c->weight_layout ? 0 : 1, op = own ? MOEK_OP_DOWN : MOEK_OP_UP;
    const moek_format *const f = moek_format_at_(c, op);
    int i;
    if (c->weight_layout && at[own] != c->weight_layout && f->only_blocks)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is %d, and %s comes in blocks of GGUF files alone, "
                   "which are not tiled where x is not T: leave it 0 (MOEK_WEIGHTS_BLOCKS), or, on a CPU, set "
                   "MOEK_WEIGHTS_PANELS (%d)", c->weight_layout, f->name, MOEK_WEIGHTS_PANELS);
    if (c->weight_layout && at[own] != c->weight_layout)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_BLOCKS, and GGUF files have no blocks "
                   "of %s (moek_format.file_type): leave it 0", f->name);
    for (i = MOEK_OP_UP; i <= MOEK_OP_DOWN; i++) {
        const int layout = moek_layout_at_(c, i);
        if (layout == MOEK_WEIGHTS_TILED && !moek_can_tile_(c, i))
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, and hidden %d or inter %d "
                       "no multiple of %d: leave weight_layout 0", c->hidden, c->inter,
                       moek_tile_granule_(moek_format_at_(c, i)));
        if (layout == MOEK_WEIGHTS_PANELS && !moek_can_panel_(c))
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_PANELS, and hidden %d, inter %d or "
                       "inter_offset %d no multiple of %d: leave weight_layout 0", c->hidden, c->inter,
                       c->inter_offset, MOEK_PANEL_GRANULE_);
    }
    return MOEK_OK;
}

static moek_status moek_check_kinds_(const moek_config *c, moek_text_ *why)
{
    moek_status status;
    const moek_format *const up = moek_format_of(c->quant), *const down = moek_format_at_(c, MOEK_OP_DOWN);
    const int of_up = moek_fixed_dtype_(up), of_down = moek_fixed_dtype_(down);
    const int own = of_up ? of_up : of_down ? of_down : c->dtype;
    if (c->parallel.pool && !c->parallel.run)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.parallel.pool is given, and config.parallel.run is NULL: set both, or "
                   "neither for the threads of OpenMP");
    if (c->backend && !moek_backend_name_(c->backend))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.backend is %d; MOEK_BACKEND_*", c->backend);
    if (c->backend && c->exclude & 1u << c->backend)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.backend demands MOEK_BACKEND_%s, and config.exclude has its bit: "
                   "leave backend 0, or clear 1u << MOEK_BACKEND_%s", moek_backend_name_(c->backend),
                   moek_backend_name_(c->backend));
    if (!moek_quant_name(c->quant))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.quant is %d, which is no format; MOEK_BF16, MOEK_FP8B128, ...",
                   c->quant);
    if (moek_two_formats_(c) && (status = moek_check_two_(c, why)) != MOEK_OK) return status;
    if (!moek_act_name(c->act))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.act is %d, which is no activation; MOEK_SILU, ...", c->act);
    if (c->dtype != MOEK_DTYPE_DEFAULT && c->dtype != MOEK_DTYPE_BF16 && c->dtype != MOEK_DTYPE_FP16)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.dtype is %d; MOEK_DTYPE_BF16 or MOEK_DTYPE_FP16", c->dtype);
    if (c->dtype != MOEK_DTYPE_DEFAULT && own != c->dtype)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.dtype is %s but %s is %s: leave dtype 0", moek_dtype_name_(c->dtype),
                   of_up ? "quant" : "down_quant", moek_quant_name(of_up ? c->quant : c->down_quant));
    if (c->logits_dtype < 0 || c->logits_dtype > MOEK_DTYPE_F32)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.logits_dtype is %d; MOEK_DTYPE_*", c->logits_dtype);
    if (c->up_layout < 0 || c->up_layout > MOEK_UP_SEPARATE)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.up_layout is %d; MOEK_UP_*", c->up_layout);
    if (c->format != MOEK_STANDARD && c->format != MOEK_BATCHED)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.format is %d; MOEK_STANDARD or MOEK_BATCHED", c->format);
    if (c->weight_layout < 0 || c->weight_layout > MOEK_WEIGHTS_BLOCKS)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is %d; MOEK_WEIGHTS_*", c->weight_layout);
    if ((status = moek_check_layout_(c, why)) != MOEK_OK) return status;
    if (c->ue8m0 && !moek_rounds_up_(c, up) && !moek_rounds_up_(c, down))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.ue8m0 rounds f32 scales of groups of columns of x up, but of %s x is "
                   "%s: leave it 0", up->name, up->x_about);
    if (!(c->scale - c->scale == 0 && c->shared_weight - c->shared_weight == 0))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.scale %g or shared_weight %g is not finite",
                   (double)c->scale, (double)c->shared_weight);
    if (c->router_weight_on_input && c->topk + c->shared_slots != 1)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.router_weight_on_input needs topk 1 and no shared slots, not %d",
                   c->topk + c->shared_slots);
    return MOEK_OK;
}

/* Which activations have which parameters (moek.h). */
static int moek_act_is_oai_(int act) { return act == MOEK_SWIGLUOAI || act == MOEK_SWIGLUOAI_UNINTERLEAVE; }
static int moek_act_scales_(int act) { return moek_act_is_oai_(act) || act == MOEK_SITU; }      /* alpha and beta */
static int moek_act_clamps_(int act)                                                            /* limit */
{
    return moek_act_is_oai_(act) || act == MOEK_SILU || act == MOEK_SWIGLUSTEP;
}

/* The parameters of an activation (moek.h): one that is set and that the formula does not have is refused, since the
 * caller means something by it. */
static moek_status moek_check_act_(const moek_config *c, moek_text_ *why)
{
    const char *const name = moek_act_name(c->act);
    if (!(c->alpha - c->alpha == 0 && c->beta - c->beta == 0))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.alpha is %g and beta %g; they must be finite",
                   (double)c->alpha, (double)c->beta);
    if ((c->alpha != 0 || c->beta != 0) && !moek_act_scales_(c->act))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.alpha is %g and beta %g, but %s has neither: leave them 0",
                   (double)c->alpha, (double)c->beta, name);
    if (c->act == MOEK_SITU && c->beta < 0)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.beta is %g; situ takes one above 0, or 0 for none", (double)c->beta);
    if (c->limit != 0 && c->limit != MOEK_NO_LIMIT && !moek_act_clamps_(c->act))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.limit is %g, but %s does not clamp: leave it 0", (double)c->limit,
                   name);
    if (!(c->limit >= 0) && c->limit != MOEK_NO_LIMIT)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.limit is %g; a limit above 0, 0 for the default of the activation, or "
                   "MOEK_NO_LIMIT", (double)c->limit);
    if (c->up_layout && !moek_act_gated_(c->act))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.up_layout is %d, but %s is not gated, w_up has one kind of rows: "
                   "leave it 0", c->up_layout, name);
    return MOEK_OK;
}

/* Rows that are no whole blocks: what files hold in place of them, or what a shard does. */
static moek_status moek_no_blocks_(const moek_format *f, const char *size, int columns, moek_text_ *why)
{
    const moek_block *const b = moek_block_of(f->file_type);
    const moek_format *const instead = moek_format_of_file(b->instead);
    moek_append_(why, "config.%s is %d; of %s it must be a multiple of %d, the columns of a block.  ", size, columns,
                 f->name, b->columns);
    if (instead)
        moek_append_(why, "Files hold rows of other lengths as other types, such as %s: take the format of the "
                     "tensor's type (moek_format_of_file).  ", instead->name);
    MOEK_FAIL_(why, MOEK_E_ARGUMENT, "Cut shards of tensor parallelism by whole blocks, so that ranks may differ in "
               "inter, or spread experts (moek_ep.h)");
}

/* config.block, of one of the formats or of both. */
static moek_status moek_check_block_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const f[2] = { moek_format_of(c->quant), moek_format_at_(c, MOEK_OP_DOWN) };
    int i, j;
    if (c->block && !f[0]->blocks && !f[1]->blocks)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.block is %d, but %s says itself how many columns have a scale: leave "
                   "it 0", c->block, f[0]->name);
    for (j = 0; j < 2; j++) {
        if (!f[j]->blocks || moek_has_block_(f[j], c->block)) continue;
        moek_append_(why, "config.block is %d; of %s it is one of", c->block, f[j]->name);
        for (i = 0; i < f[j]->blocks; i++) moek_append_(why, " %d", f[j]->block[i]);
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, ", the columns of a scale%s",
                   moek_has_block_(f[j], 0) ? " (0: a whole row)" : "");
    }
    return MOEK_OK;
}

/* The sizes that elements fill bytes with, or blocks: rows of gate and up have hidden columns, rows of down inter. */
static moek_status moek_check_granule_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const f = moek_format_of(c->quant);
    const moek_format *const down = moek_format_at_(c, MOEK_OP_DOWN);
    const int of_up = moek_block_columns_(c, MOEK_OP_UP), of_down = moek_block_columns_(c, MOEK_OP_DOWN);
    if (of_up && c->hidden % of_up) return moek_no_blocks_(f, "hidden", c->hidden, why);
    if (of_down && c->inter % of_down) return moek_no_blocks_(down, "inter", c->inter, why);
    if (c->hidden % f->granule || c->inter % down->granule || c->inter_offset % down->granule)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.hidden is %d, inter %d and inter_offset %d; of %s they must be "
                   "multiples of %d", c->hidden, c->inter, c->inter_offset,
                   c->hidden % f->granule ? f->name : down->name, c->hidden % f->granule ? f->granule : down->granule);
    return MOEK_OK;
}

/* config.inter_offset: where a shard may begin, and what goes with that. */
static moek_status moek_check_shard_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const f = moek_format_of(c->quant);
    const int shared = moek_scale_group_(moek_format_of(c->quant), c->block);
    if (c->inter_offset && moek_block_columns_(c, MOEK_OP_UP))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d, and shards of %s begin with a block of %d "
                   "columns: leave it 0, and cut inter by whole blocks, or spread experts (moek_ep.h)", c->inter_offset,
                   f->name, f->file_columns);
    if (c->inter_offset && !shared)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d, but %s has no scales of groups of rows or columns "
                   "that a shard could begin in (w: %s; x: %s): leave it 0", c->inter_offset, f->name, f->w_about,
                   f->x_about);
    if (c->inter_offset < 0 || (shared && c->inter_offset >= shared))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d; of %s it is 0 to %d: the first column of the "
                   "shard %% %d, so (rank * inter) %% %d where shards are equal", c->inter_offset, f->name, shared - 1,
                   shared, shared);
    if (c->inter_offset && moek_act_gated_(c->act) && c->up_layout != MOEK_UP_SEPARATE && !c->up_scales &&
        moek_rows_share_(moek_format_of(c->quant)))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d, so scales of gate and up have rows of their "
                   "own: set up_scales = MOEK_UP_SCALES_SEPARATE, and pass them so", c->inter_offset);
    if (c->inter_offset && c->weight_layout == MOEK_WEIGHTS_TILED)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, whose tiles of w_down begin "
                   "with the shard, and inter_offset is %d: leave weight_layout 0, or cut shards by whole groups of %d "
                   "columns (inter_offset 0)", c->inter_offset, shared);
    return MOEK_OK;
}

/* config.cpu: 0, MOEK_CPU_PLAIN or a set. */
static moek_status moek_check_cpu_(const moek_config *c, moek_text_ *why)
{
    int i;
    if (!c->cpu || c->cpu == MOEK_CPU_PLAIN) return MOEK_OK;
    for (i = 0; i < MOEK_SETS_; i++) if (moek_sets_[i] == c->cpu) return MOEK_OK;
    moek_append_(why, "config.cpu is %d; it is 0 (the best there is), MOEK_CPU_PLAIN (%d)", c->cpu, MOEK_CPU_PLAIN);
    for (i = 0; i < MOEK_SETS_ - 1; i++) moek_append_(why, ", %s (%d)", moek_arch_name_(moek_sets_[i]), moek_sets_[i]);
    return MOEK_E_ARGUMENT;
}

/* How weights and their scales lie. */
static moek_status moek_check_weights_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const f = moek_format_of(c->quant);
    if (c->up_layout == MOEK_UP_SEPARATE && c->weight_layout == MOEK_WEIGHTS_TILED)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, which has gate and up in one "
                   "array, and up_layout is MOEK_UP_SEPARATE: leave one of them 0");
    if (c->up_scales < 0 || c->up_scales > MOEK_UP_SCALES_SEPARATE)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.up_scales is %d; MOEK_UP_SCALES_*", c->up_scales);
    if (c->up_scales && !moek_rows_share_(moek_format_of(c->quant)))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.up_scales is for weights several rows of which share a scale, but "
                   "those of %s are %s: leave it 0", f->name, f->w_about);
    if (c->up_scales && moek_act_gated_(c->act) && moek_up_layout_(c) == MOEK_UP_INTERLEAVED)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.up_scales is MOEK_UP_SCALES_SEPARATE, and rows of w_up are "
                   "interleaved, so that the %d rows of a scale are of gate and of up: up_layout MOEK_UP_GATE_UP, "
                   "_SWAPPED or _SEPARATE",
                   f->w_scale.rows);
    return moek_check_shard_(c, why);
}

/* config.expand_weights */
static moek_status moek_check_expands_(const moek_config *c, moek_text_ *why)
{
    if (c->expand_weights < 0 || c->expand_weights > 1)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.expand_weights is %d; 0 or 1", c->expand_weights);
    if (!c->expand_weights) return MOEK_OK;
    if (!moek_format_of(c->quant)->expands)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.expand_weights is for weights that become e4m3 in a run "
                   "(moek_format.expands), and weights of %s become nothing else: leave it 0",
                   moek_quant_name(c->quant));
    if (c->weight_layout != MOEK_WEIGHTS_TILED)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.expand_weights reads weights of MOEK_WEIGHTS_TILED, and weight_layout "
                   "is %d: set it, and repack (moek_repack_up), or leave expand_weights 0", c->weight_layout);
    if (c->format != MOEK_STANDARD || c->batch_invariant)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.expand_weights is for MOEK_STANDARD and without batch_invariant, "
                   "which wants one tile for all sizes: leave it 0");
    return MOEK_OK;
}

static moek_status moek_check_groups_(const moek_config *c, moek_text_ *why)
{
    if (c->groups > 1 && (c->experts % c->groups || c->topk_groups < 1 || c->topk_groups > c->groups ||
                          c->topk > c->experts / c->groups * c->topk_groups))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.groups %d, topk_groups %d do not fit %d experts, topk %d: "
                   "groups must divide experts, "
                   "and the groups kept must hold topk", c->groups, c->topk_groups, c->experts, c->topk);
    if (c->group_score < 0 || c->group_score > MOEK_GROUP_SCORE_TOP2)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.group_score is %d; MOEK_GROUP_SCORE_*", c->group_score);
    if (c->groups <= 1 && c->topk_groups > 1)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.topk_groups is %d, but groups is %d, which is none: set groups, or "
                   "topk_groups 0", c->topk_groups, c->groups);
    if (c->groups <= 1 && c->group_score)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.group_score is given, but groups is %d, which is none: set groups and "
                   "topk_groups, or group_score 0", c->groups);
    return MOEK_OK;
}

static int moek_divides_(const moek_method_ *method)
{
    return method->normalize == MOEK_NORM_SUM || method->normalize == MOEK_NORM_SIGMOID_SUM;
}

static moek_status moek_check_routing_(const moek_config *c, moek_text_ *why)
{
    const moek_method_ *method = moek_method_of_(c->routing);
    moek_status status;
    if (!method)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.routing is %d, which is no method; MOEK_ROUTE_*", c->routing);
    if ((status = moek_check_groups_(c, why)) != MOEK_OK) return status;
    if (c->routing == MOEK_ROUTE_SPARSEMIXER && (c->topk != 2 || c->groups > 1))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "MOEK_ROUTE_SPARSEMIXER needs topk 2 and no groups, not topk %d, groups %d",
                   c->topk, c->groups);
    if (!(c->router_eps >= 0 && c->router_eps - c->router_eps == 0))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.router_eps is %g; it must be finite and not negative",
                   (double)c->router_eps);
    if (c->router_eps > 0 && !moek_divides_(method))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.router_eps is %g, but MOEK_ROUTE_%s (%s) divides by no sum of "
                   "weights: leave router_eps 0, or choose a method that does",
                   (double)c->router_eps, method->name, method->text);
    if (c->shared_weight != 0 && !c->shared_slots)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.shared_weight is %g, but shared_slots is 0: there is no slot that it "
                   "could weigh; set shared_slots, or leave it 0", (double)c->shared_weight);
    return MOEK_OK;
}

static void moek_fill_defaults_(moek_config *c)
{
    const moek_format *const up = moek_format_of(c->quant), *const down = moek_format_at_(c, MOEK_OP_DOWN);
    if (!c->dtype) c->dtype = moek_fixed_dtype_(up);
    if (!c->dtype) c->dtype = moek_fixed_dtype_(down);
    if (!c->dtype) c->dtype = MOEK_DTYPE_BF16;
    if (c->down_quant == c->quant) c->down_quant = 0;
    if (!c->logits_dtype) c->logits_dtype = MOEK_DTYPE_F32;
    c->ue8m0 = c->ue8m0 != 0;                         /* ranks compare the number */
    if (!c->weight_layout && up->only_blocks && down->only_blocks) c->weight_layout = MOEK_WEIGHTS_BLOCKS;
    if (moek_act_gated_(c->act)) c->up_layout = moek_up_layout_(c);
    if (c->up_layout == MOEK_UP_SEPARATE && moek_rows_share_(up)) c->up_scales = MOEK_UP_SCALES_SEPARATE;
    if (c->scale == 0) c->scale = 1;
    if (c->shared_slots && c->shared_weight == 0) c->shared_weight = 1;
    if (c->router_eps == 0) c->router_eps = moek_method_of_(c->routing)->eps;
    if (!c->physical_experts) c->physical_experts = c->experts + c->shared_slots;
    if (!c->local_experts)
        c->local_experts = c->physical_experts < MOEK_MAX_EXPERTS_ ? c->physical_experts : MOEK_MAX_EXPERTS_;
    if (moek_act_is_oai_(c->act)) {
        if (c->alpha == 0) c->alpha = 1.702f;
        if (c->beta == 0) c->beta = 1;
        if (c->limit == 0) c->limit = 7;
    }
    if (c->act == MOEK_SITU && c->alpha == 0) c->alpha = 1;
    /* No clamp: silu's kernels ask whether there is a limit, the others clamp by whatever there is. */
    if (c->limit <= 0)
        c->limit = c->act == MOEK_SWIGLUSTEP || (c->limit < 0 && moek_act_is_oai_(c->act)) ? HUGE_VALF : 0;
}

/* Tokens of a chunk. */
static int moek_chunk_(const moek_config *c)
{
    return c->chunk_tokens && c->chunk_tokens < c->max_tokens ? c->chunk_tokens : c->max_tokens;
}
#endif
