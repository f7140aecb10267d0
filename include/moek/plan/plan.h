/* moek/plan/plan.h -- the oracle: fills in defaults, walks the backends, takes the first to accept, says why of the
 * rest. */
#ifndef MOEK_PLAN_H
#define MOEK_PLAN_H

#define MOEK_NO_(text, status, ...) do { moek_say_((text), __VA_ARGS__); return (status); } while (0)

/* Everything that can be said without looking at kernels, and defaults.  config is the plan's own copy.  A config with
 * its defaults filled in passes all checks, and is filled in as it was: plan.config may make another plan. */
static moek_status moek_check_sizes_(const moek_config *c, moek_text_ *why)
{
    const long long all = (long long)c->experts + c->shared_slots;
#define MOEK_POSITIVE_(field) \
    if (c->field < 1) MOEK_NO_(why, MOEK_E_ARGUMENT, "config." #field " is %d; it must be at least 1", c->field)
    MOEK_POSITIVE_(hidden); MOEK_POSITIVE_(inter); MOEK_POSITIVE_(experts); MOEK_POSITIVE_(topk);
    MOEK_POSITIVE_(max_tokens);
#define MOEK_NOT_NEGATIVE_(field) \
    if (c->field < 0) MOEK_NO_(why, MOEK_E_ARGUMENT, "config." #field " is %d; it must not be negative", c->field)
    MOEK_NOT_NEGATIVE_(shared_slots); MOEK_NOT_NEGATIVE_(local_experts); MOEK_NOT_NEGATIVE_(physical_experts);
    MOEK_NOT_NEGATIVE_(max_replicas); MOEK_NOT_NEGATIVE_(chunk_tokens); MOEK_NOT_NEGATIVE_(max_rows_per_expert);
    MOEK_NOT_NEGATIVE_(groups); MOEK_NOT_NEGATIVE_(topk_groups);
#undef MOEK_POSITIVE_
#undef MOEK_NOT_NEGATIVE_
    if (c->experts > MOEK_MAX_EXPERTS_ || all > MOEK_MAX_EXPERTS_)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.experts + shared_slots is %lld; the router takes at most %d",
                 all, MOEK_MAX_EXPERTS_);
    if (c->topk > c->experts || c->topk + c->shared_slots > MOEK_MAX_TOPK_)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.topk is %d (+ %d shared slots) of %d experts; at most %d, "
                 "and not more than there are",
                 c->topk, c->shared_slots, c->experts, MOEK_MAX_TOPK_);
    if (c->local_experts > MOEK_MAX_EXPERTS_ || c->physical_experts > 65536)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.local_experts is %d and physical_experts %d; at most %d and 65536",
                 c->local_experts, c->physical_experts, MOEK_MAX_EXPERTS_);
    if (c->hidden > MOEK_MAX_COLUMNS_ || c->inter > MOEK_MAX_COLUMNS_)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.hidden is %d and inter %d; each is at most 2^24, which is %d",
                 c->hidden, c->inter, MOEK_MAX_COLUMNS_);
    if ((long long)c->max_tokens * (c->topk + c->shared_slots) > MOEK_MAX_SLOTS_)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.max_tokens %d x %d slots overflows 31 bits (at most %d slots): "
                 "make max_tokens smaller", c->max_tokens, c->topk + c->shared_slots, MOEK_MAX_SLOTS_);
    return MOEK_OK;
}

static moek_status moek_check_kinds_(const moek_config *c, moek_text_ *why)
{
    const int own = moek_own_dtype_(c->quant) ? moek_own_dtype_(c->quant) : c->dtype;
    if (c->backend && !moek_backend_name_(c->backend))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.backend is %d; MOEK_BACKEND_*", c->backend);
    if (!moek_quant_name(c->quant))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.quant is %d, which is no format; MOEK_BF16, MOEK_FP8B128, ...",
                 c->quant);
    if (!moek_act_name(c->act))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.act is %d, which is no activation; MOEK_SILU, ...", c->act);
    if (c->dtype != MOEK_DTYPE_DEFAULT && c->dtype != MOEK_DTYPE_BF16 && c->dtype != MOEK_DTYPE_FP16)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.dtype is %d; MOEK_DTYPE_BF16 or MOEK_DTYPE_FP16", c->dtype);
    if (c->dtype != MOEK_DTYPE_DEFAULT && own != c->dtype)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.dtype is %s but quant is %s: leave dtype 0",
                 moek_dtype_name_(c->dtype), moek_quant_name(c->quant));
    if (c->logits_dtype < 0 || c->logits_dtype > MOEK_DTYPE_F32)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.logits_dtype is %d; MOEK_DTYPE_*", c->logits_dtype);
    if (c->up_layout < 0 || c->up_layout > MOEK_UP_APART)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.up_layout is %d; MOEK_UP_*", c->up_layout);
    if (c->format != MOEK_STANDARD && c->format != MOEK_BATCHED)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.format is %d; MOEK_STANDARD or MOEK_BATCHED", c->format);
    if (c->weight_layout < 0 || c->weight_layout > MOEK_WEIGHTS_TILED)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.weight_layout is %d; MOEK_WEIGHTS_*", c->weight_layout);
    if (c->weight_layout == MOEK_WEIGHTS_TILED && !moek_can_tile_(c))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, and hidden %d or inter %d "
                 "no multiple of %d, which is 128 bytes: leave weight_layout 0", c->hidden, c->inter,
                 moek_w_line_(c->quant));
    if (c->ue8m0 && !moek_format_of(c->quant)->ue8m0)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.ue8m0 is for fp8b128, not for %s", moek_quant_name(c->quant));
    if (!(c->scale - c->scale == 0 && c->shared_weight - c->shared_weight == 0))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.scale %g or shared_weight %g is not finite",
                 (double)c->scale, (double)c->shared_weight);
    if (c->router_weight_on_input && c->topk + c->shared_slots != 1)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.router_weight_on_input needs topk 1 and no shared slots, not %d",
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
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.alpha is %g and beta %g; they must be finite",
                 (double)c->alpha, (double)c->beta);
    if ((c->alpha != 0 || c->beta != 0) && !moek_act_scales_(c->act))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.alpha is %g and beta %g, but %s has neither: leave them 0",
                 (double)c->alpha, (double)c->beta, name);
    if (c->act == MOEK_SITU && c->beta < 0)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.beta is %g; situ takes one above 0, or 0 for none", (double)c->beta);
    if (c->limit != 0 && c->limit != MOEK_NO_LIMIT && !moek_act_clamps_(c->act))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.limit is %g, but %s does not clamp: leave it 0", (double)c->limit, name);
    if (!(c->limit >= 0) && c->limit != MOEK_NO_LIMIT)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.limit is %g; a limit above 0, 0 for the default of the activation, or "
                 "MOEK_NO_LIMIT", (double)c->limit);
    if (c->up_layout && !moek_act_gated_(c->act))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.up_layout is %d, but %s is not gated, w_up has one kind of rows: "
                 "leave it 0", c->up_layout, name);
    return MOEK_OK;
}

/* config.block, and the sizes that the format's elements fill bytes with. */
static moek_status moek_check_block_(const moek_config *c, moek_text_ *why)
{
    const moek_format *const f = moek_format_of(c->quant);
    int i = 0;
    if (c->block && !f->blocks)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.block is %d, but %s says itself how many columns have a scale: leave "
                 "it 0", c->block, f->name);
    while (i < f->blocks && f->block[i] != c->block) i++;
    if (f->blocks && i == f->blocks) {
        moek_say_(why, "config.block is %d; of %s it is one of", c->block, f->name);
        for (i = 0; i < f->blocks; i++) moek_say_(why, " %d", f->block[i]);
        MOEK_NO_(why, MOEK_E_ARGUMENT, ", the columns of a scale (0: a whole row)");
    }
    if (c->hidden % f->granule || c->inter % f->granule || c->inter_offset % f->granule)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.hidden is %d, inter %d and inter_offset %d; of %s they must be "
                 "multiples of %d", c->hidden, c->inter, c->inter_offset, f->name, f->granule);
    return MOEK_OK;
}

/* How weights and their scales lie. */
static moek_status moek_check_weights_(const moek_config *c, moek_text_ *why)
{
    const int gated = moek_act_gated_(c->act), apart = c->up_layout == MOEK_UP_APART;
    const int shared = moek_shared_by_(c->quant, c->block);
    const int interleaved = c->up_layout == MOEK_UP_INTERLEAVED || (!c->up_layout && c->act == MOEK_SWIGLUOAI);
    if (apart && c->weight_layout == MOEK_WEIGHTS_TILED)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, which has gate and up in one "
                 "array, and up_layout is MOEK_UP_APART: leave one of them 0");
    if (c->up_scales < 0 || c->up_scales > MOEK_UP_SCALES_APART)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.up_scales is %d; MOEK_UP_SCALES_*", c->up_scales);
    if (c->up_scales && !moek_rows_share_(c->quant))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.up_scales is for fp8b128, not for %s, where each row has its own or an "
                 "expert has one: leave it 0", moek_quant_name(c->quant));
    if (c->up_scales && gated && interleaved)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.up_scales is MOEK_UP_SCALES_APART, and rows of w_up are interleaved, so "
                 "that 128 of them are of gate and of up: up_layout MOEK_UP_HALVES, _SWAPPED or _APART");
    if (c->inter_offset < 0 || c->inter_offset >= (shared ? shared : 128))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d; 0 to %d: (rank * inter) %% %d", c->inter_offset,
                 (shared ? shared : 128) - 1, shared ? shared : 128);
    if (c->inter_offset && !shared)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.inter_offset is for fp8b128, not for %s, which has no blocks of "
                 "128 rows: leave it 0", moek_quant_name(c->quant));
    if (c->inter_offset && gated && !apart && !c->up_scales && moek_rows_share_(c->quant))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.inter_offset is %d, so scales of gate and up have rows of their "
                 "own: set up_scales = MOEK_UP_SCALES_APART, and pass them so", c->inter_offset);
    if (c->inter_offset && c->weight_layout == MOEK_WEIGHTS_TILED)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.weight_layout is MOEK_WEIGHTS_TILED, whose 128 columns of w_down begin "
                 "with the shard, and inter_offset %d: leave weight_layout 0", c->inter_offset);
    return MOEK_OK;
}

static moek_status moek_check_groups_(const moek_config *c, moek_text_ *why)
{
    if (c->groups > 1 && (c->experts % c->groups || c->topk_groups < 1 || c->topk_groups > c->groups ||
                          c->topk > c->experts / c->groups * c->topk_groups))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.groups %d, topk_groups %d do not fit %d experts, topk %d: "
                 "groups must divide experts, "
                 "and the groups kept must hold topk", c->groups, c->topk_groups, c->experts, c->topk);
    if (c->group_score < 0 || c->group_score > MOEK_GROUP_SCORE_TOP2)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.group_score is %d; MOEK_GROUP_SCORE_*", c->group_score);
    if (c->groups <= 1 && c->topk_groups > 1)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.topk_groups is %d, but groups is %d, which is none: set groups, or "
                 "topk_groups 0", c->topk_groups, c->groups);
    if (c->groups <= 1 && c->group_score)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.group_score is given, but groups is %d, which is none: set groups and "
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
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.routing is %d, which is no method; MOEK_ROUTE_*", c->routing);
    if ((status = moek_check_groups_(c, why)) != MOEK_OK) return status;
    if (c->routing == MOEK_ROUTE_SPARSEMIXER && (c->topk != 2 || c->groups > 1))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "MOEK_ROUTE_SPARSEMIXER needs topk 2 and no groups, not topk %d, groups %d",
                 c->topk, c->groups);
    if (!(c->router_eps >= 0 && c->router_eps - c->router_eps == 0))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.router_eps is %g; it must be finite and not negative",
                 (double)c->router_eps);
    if (c->router_eps > 0 && !moek_divides_(method))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.router_eps is %g, but MOEK_ROUTE_%s (%s) divides by no sum of weights: "
                 "leave router_eps 0, or choose a method that does",
                 (double)c->router_eps, method->name, method->text);
    if (c->shared_weight != 0 && !c->shared_slots)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "config.shared_weight is %g, but shared_slots is 0: there is no slot that it "
                 "could weigh; set shared_slots, or leave it 0", (double)c->shared_weight);
    return MOEK_OK;
}

static void moek_fill_defaults_(moek_config *c)
{
    if (!c->dtype) c->dtype = moek_own_dtype_(c->quant) ? moek_own_dtype_(c->quant) : MOEK_DTYPE_BF16;
    if (!c->logits_dtype) c->logits_dtype = MOEK_DTYPE_F32;
    c->ue8m0 = c->ue8m0 != 0;                         /* ranks compare the number */
    if (!c->up_layout && moek_act_gated_(c->act))
        c->up_layout = c->act == MOEK_SWIGLUOAI ? MOEK_UP_INTERLEAVED : MOEK_UP_HALVES;
    if (c->up_layout == MOEK_UP_APART && moek_rows_share_(c->quant)) c->up_scales = MOEK_UP_SCALES_APART;
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

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct moek_oracle_ {
    moek_device_ device;
    const moek_config *config;
    moek_text_ *why;
    int arch;                                         /* of the rows that the backend taken has asked for */
} moek_oracle_;

/* Why a row cannot serve its op in this plan: NULL if it can. */
static const char *moek_row_refuses_(const moek_kernel *k, const moek_oracle_ *o, int arch, char *why, size_t size)
{
    const moek_config *c = o->config;
    const int gemm = k->op == MOEK_OP_UP || k->op == MOEK_OP_DOWN || k->op == MOEK_OP_LAYER ||
                     k->op == MOEK_OP_MLP;
    moek_text_ t = moek_text_in_(why, size);
    if (k->arch != arch && (arch != 90 || k->arch != 80 || gemm))            /* sm90 has GEMMs of its own, no more */
        moek_say_(&t, "its rows are for arch %d, not %d", k->arch, arch);
    else if (k->arch && k->shared_bytes > o->device.shared_bytes)
        moek_say_(&t, "needs %d bytes of shared memory a block, the device has %d",
                  k->shared_bytes, o->device.shared_bytes);
    else if (gemm && k->arch < 90 && c->weight_layout == MOEK_WEIGHTS_TILED)
        moek_say_(&t, "reads no weights of MOEK_WEIGHTS_TILED");
    else if (k->quant && k->quant != c->quant) moek_say_(&t, "is for %s", moek_quant_name(k->quant));
    else if (k->hidden && k->hidden != c->hidden) moek_say_(&t, "is for hidden %d", k->hidden);
    else if (gemm && k->block != c->block && k->block) moek_say_(&t, "is for scales of %d columns (block)", k->block);
    else if (gemm && k->block != c->block) moek_say_(&t, "is for scales of whole rows (block 0)");
    else if (k->op == MOEK_OP_LAYER && k->m == 4 && c->dtype == MOEK_DTYPE_FP16 && moek_quantizes_(k->quant))
        moek_say_(&t, "does not round rows of down to fp16, which may overflow, before their weights");
    else if (k->granule > 1 && c->hidden % k->granule)
        moek_say_(&t, "hidden %d is no multiple of %d", c->hidden, k->granule);
    else if (k->granule > 1 && (gemm || k->op == MOEK_OP_QUANT) && c->inter % k->granule)
        moek_say_(&t, "inter %d is no multiple of %d", c->inter, k->granule);
    else if (gemm && k->granule > 1 && c->inter_offset % k->granule)
        moek_say_(&t, "inter_offset %d is no multiple of %d", c->inter_offset, k->granule);
    else if (c->inter_offset && (k->op == MOEK_OP_LAYER || k->op == MOEK_OP_MLP))
        moek_say_(&t, "quantizes h in groups of 128 that begin with the shard; inter_offset is %d", c->inter_offset);
    return t.length ? why : NULL;
}

static int moek_demanded_(const moek_kernel *k, const moek_config *c)
{
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    return !demanded || demanded->op != k->op || demanded == k;
}

static const moek_kernel *moek_first_(const moek_oracle_ *o, int op, int arch, int m)
{
    char why[160];
    int i;
    for (i = 0; i < MOEK_ROWS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op == op && (m < 0 || k->m == m) && moek_demanded_(k, o->config) &&
            !moek_row_refuses_(k, o, arch, why, sizeof why))
            return k;
    }
    return NULL;
}

/* The row to add: the nearest row's text with this config's format, and its hidden size if that was baked in. */
static void moek_say_row_(moek_text_ *t, const moek_kernel *near_row, const moek_config *c)
{
    const char *p = near_row->row;
    moek_say_(t, "add to kernels.toml:  ");
    while (*p) {
        if (!strncmp(p, "quant = \"", 9)) {
            moek_say_(t, "quant = \"%s", moek_quant_name(c->quant));
            p = strchr(p + 9, '"');
        } else if (near_row->hidden && !strncmp(p, "hidden = ", 9)) {
            moek_say_(t, "hidden = %d", c->hidden);
            p += 9 + strspn(p + 9, "0123456789");
        } else if (moek_format_of(c->quant)->blocks && !strncmp(p, "block = ", 8)) {
            moek_say_(t, "block = %d", c->block);
            p += 8 + strspn(p + 8, "0123456789");
        } else {
            moek_say_(t, "%c", *p++);
        }
    }
    moek_say_(t, "\nthen:  python3 codegen/moegen.py");
}

static moek_status moek_no_row_(const moek_oracle_ *o, int op, int arch)
{
    const moek_config *c = o->config;
    const moek_kernel *near_row = NULL;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    char reason[160] = "";
    int i;
    if (demanded && demanded->op == op && moek_row_refuses_(demanded, o, arch, reason, sizeof reason))
        MOEK_NO_(o->why, MOEK_E_NO_KERNEL, "config.kernel %s cannot serve: %s", c->kernel, reason);
    for (i = MOEK_ROWS_ - 1; i >= 0; i--) {           /* same op; better the same arch, best also the format */
        const moek_kernel *k = &moek_table_[i];
        const int closer = !near_row || (k->arch == arch) > (near_row->arch == arch) ||
                           (k->arch == near_row->arch && (k->quant == c->quant) >= (near_row->quant == c->quant));
        if (k->op == op && closer) near_row = k;
    }
    moek_say_(o->why, "no kernel: %s %s hidden=%d inter=%d on %s.", moek_op_name_(op), moek_quant_name(c->quant),
              c->hidden, c->inter, moek_arch_name_(arch));
    if (!near_row)
        MOEK_NO_(o->why, MOEK_E_NO_KERNEL, "  No row of this op is compiled in; "
                 "python3 codegen/moegen.py list shows what there is.");
    moek_row_refuses_(near_row, o, arch, reason, sizeof reason);
    moek_say_(o->why, "  Nearest: %s (%s).\n", near_row->name, reason);
    if (near_row->arch == arch && (!near_row->quant || near_row->quant == c->quant) && !near_row->hidden) {
        if (c->hidden % near_row->granule || c->inter % near_row->granule)
            moek_say_(o->why, "pad hidden and inter to multiples of %d", near_row->granule);
        return MOEK_E_NO_KERNEL;
    }
    moek_say_row_(o->why, near_row, c);
    return MOEK_E_NO_KERNEL;
}

/* ---- backends ---------------------------------------------------------------------------------------------------- */

/* The predicates of a backend in their order; each says "kernel does not support ..." when it refuses. */
static moek_status moek_backend_refuses_(const moek_oracle_ *o, int arch, const moek_experts *experts,
                                         const moek_prepare_finalize *pf)
{
    const moek_config *c = o->config;
    char why[256] = "";
    int i, formats = 0;
    if (arch > 0 && o->device.ordinal < 0)
        MOEK_NO_(o->why, MOEK_E_ARCH, "kernel does not support current device: there is no CUDA device%s",
                 MOEK_HAVE_CUDA_ ? "" : " (compiled without nvcc)");
    if (arch > o->device.arch)
        MOEK_NO_(o->why, MOEK_E_ARCH, "kernel does not support current device sm_%d; it needs sm_%d or newer",
                 o->device.arch, arch);
    /* "no act_and_mul MLP layer", "activation": every row takes all activations; a user's experts say so in supports */
    for (i = 0; i < MOEK_ROWS_; i++)
        formats |= moek_table_[i].op == MOEK_OP_UP && moek_table_[i].arch == arch && moek_table_[i].quant == c->quant;
    if (!formats && experts->apply == moek_table_apply_) return moek_no_row_(o, MOEK_OP_UP, arch);
    if (c->weight_layout == MOEK_WEIGHTS_TILED && arch < 90 && experts->apply == moek_table_apply_)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "kernel does not support MOEK_WEIGHTS_TILED: only sm90 rows read such "
                 "weights; leave config.weight_layout 0, and weights as they come");
    if (c->local_experts > c->physical_experts)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "kernel does not support parallel config: %d local of %d physical experts",
                 c->local_experts, c->physical_experts);
    if (c->physical_experts < c->experts + c->shared_slots && !c->max_replicas)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "kernel does not support parallel config: %d physical experts "
                 "for %d logical ones and no replicas",
                 c->physical_experts, c->experts + c->shared_slots);
    if (!pf->finalize_receive || (!pf->prepare_send && !pf->prepare_receive))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s has no finalize_receive, or neither half of prepare",
                 pf->name);
    if (pf->max_rows < 0 || pf->max_tokens_per_rank < 0)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s has max_rows %d and max_tokens_per_rank %d; "
                 "neither may be negative, 0 is no limit", pf->name, pf->max_rows, pf->max_tokens_per_rank);
    if (!experts->apply) MOEK_NO_(o->why, MOEK_E_BACKEND, "experts %s: apply is NULL", experts->name);
    if (experts->weight_and_reduce < MOEK_DELEGATE || experts->weight_and_reduce > MOEK_NAIVE_BATCHED ||
        (experts->weight_and_reduce == MOEK_NAIVE_BATCHED && experts->format != MOEK_BATCHED))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "experts %s: weight_and_reduce %d is none of MOEK_DELEGATE, ..., "
                 "or is not for %s format",
                 experts->name, experts->weight_and_reduce, moek_format_name_(experts->format));
    /* "routing method", "router logits dtype": routing is a step of its own, the same for every backend */
    if (experts->supports && !experts->supports(experts, c, why, sizeof why))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "experts %s: kernel does not support %s", experts->name, why);
    if (pf->format != experts->format)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "kernel does not support %s activation format: "
                 "prepare/finalize %s delivers it, experts %s take %s",
                 moek_format_name_(pf->format), pf->name, experts->name, moek_format_name_(experts->format));
    if (pf->supports && !pf->supports(pf, c, why, sizeof why))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s does not support %s", pf->name, why);
    if (pf->cannot_defer && experts->expects_unquantized && moek_quantizes_(c->quant))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s cannot defer quantization, "
                 "and experts %s expect unquantized rows", pf->name, experts->name);
    if (pf->max_tokens_per_rank && moek_chunk_(c) > pf->max_tokens_per_rank)
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s takes %d tokens a rank, config.max_tokens is %d: "
                 "set chunk_tokens",
                 pf->name, pf->max_tokens_per_rank, c->max_tokens);
    if (pf->prepare_send == moek_local_prepare_ && experts->expects_unquantized && c->router_weight_on_input &&
        moek_quantizes_(c->quant))
        MOEK_NO_(o->why, MOEK_E_BACKEND, "prepare/finalize %s cannot put the router's weight on rows "
                 "that experts %s quantize themselves", pf->name, experts->name);
    return MOEK_OK;
}

/* Is there code for this device, and may it have its shared memory?  (A launcher called with NULL answers that.) */
static moek_status moek_ready_rows_(const moek_oracle_ *o, const moek_plan *plan)
{
    const moek_kernel *all[5 + 4 * MOEK_MAX_TILES];
    int i, n = 0;
    all[n++] = plan->route; all[n++] = plan->map; all[n++] = plan->sort; all[n++] = plan->quant;
    all[n++] = plan->combine;
    for (i = 0; i < plan->tiles; i++) { all[n++] = plan->up[i]; all[n++] = plan->down[i]; }
    for (i = 0; i < plan->layers; i++) all[n++] = plan->layer[i];
    for (i = 0; i < plan->mlps; i++) all[n++] = plan->mlp[i];
    for (i = 0; i < n; i++)
        if (all[i] && all[i]->launch(NULL, NULL) != MOEK_OK) {
            const char *const own = all[i]->arch >= 90 ? "a" : "";
            MOEK_NO_(o->why, MOEK_E_ARCH, "%s: the binary holds no code for sm_%d%s; "
                     "compile with -gencode arch=compute_%d%s,code=sm_%d%s", all[i]->name, o->device.arch, own,
                     o->device.arch, own, o->device.arch, own);
        }
    return MOEK_OK;
}

/* Into a list by tile height, unless one of its height is there, which was better. */
static void moek_add_tile_(const moek_kernel **list, int *count, const moek_kernel *k)
{
    int i;
    for (i = 0; i < *count; i++) if (list[i]->m == k->m) return;
    if (*count == MOEK_MAX_TILES) return;
    for (i = (*count)++; i > 0 && list[i - 1]->m > k->m; i--) list[i] = list[i - 1];
    list[i] = k;
}

/* The best row of op for each tile height. */
static void moek_add_rows_(const moek_oracle_ *o, int op, int arch, const moek_kernel **list, int *count)
{
    char why[160];
    int i;
    for (i = 0; i < MOEK_ROWS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op == op && moek_demanded_(k, o->config) && !moek_row_refuses_(k, o, arch, why, sizeof why))
            moek_add_tile_(list, count, k);
    }
}

/* Rows for few tokens.  None if another row was demanded for what they do. */
static void moek_choose_layers_(const moek_oracle_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    plan->layers = 0;
    plan->layers_demanded = demanded && demanded->op == MOEK_OP_LAYER;
    if (!plan->tiles || plan->prepare_finalize != &moek_local || c->batch_invariant || c->router_weight_on_input ||
        (demanded && demanded->op != MOEK_OP_LAYER && demanded->op != MOEK_OP_ROUTE && demanded->op != MOEK_OP_MAP))
        return;
    moek_add_rows_(o, MOEK_OP_LAYER, arch, plan->layer, &plan->layers);
}

/* Rows that are both GEMMs.  None if another row was demanded for what they do. */
static void moek_choose_mlps_(const moek_oracle_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    const int op = demanded ? demanded->op : MOEK_OP_MLP;
    plan->mlps = 0;
    plan->mlps_demanded = demanded && op == MOEK_OP_MLP;
    if (!plan->tiles || plan->prepare_finalize != &moek_local || c->batch_invariant || op == MOEK_OP_UP ||
        op == MOEK_OP_DOWN || op == MOEK_OP_LAYER) return;
    moek_add_rows_(o, MOEK_OP_MLP, arch, plan->mlp, &plan->mlps);
}

static moek_status moek_choose_rows_(const moek_oracle_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const int table = plan->experts->apply == moek_table_apply_;
    int i;
#define MOEK_FIRST_(op, field) if (!(plan->field = moek_first_(o, op, arch, -1))) return moek_no_row_(o, op, arch)
    MOEK_FIRST_(MOEK_OP_ROUTE, route);
    MOEK_FIRST_(MOEK_OP_MAP, map);
    MOEK_FIRST_(MOEK_OP_SORT, sort);
    MOEK_FIRST_(MOEK_OP_QUANT, quant);
    MOEK_FIRST_(MOEK_OP_COMBINE, combine);
#undef MOEK_FIRST_
    plan->tiles = 0;
    for (i = 0; table && i < MOEK_ROWS_; i++) {       /* the best row of each tile height, with the best partner */
        const moek_kernel *up = &moek_table_[i];
        char why[160];
        if (up->op == MOEK_OP_UP && moek_demanded_(up, c) && !moek_row_refuses_(up, o, arch, why, sizeof why) &&
            moek_first_(o, MOEK_OP_DOWN, arch, up->m))
            moek_add_tile_(plan->up, &plan->tiles, up);
    }
    for (i = 0; i < plan->tiles; i++) plan->down[i] = moek_first_(o, MOEK_OP_DOWN, arch, plan->up[i]->m);
    if (table && !plan->tiles)
        return moek_no_row_(o, moek_first_(o, MOEK_OP_UP, arch, -1) ? MOEK_OP_DOWN : MOEK_OP_UP, arch);
    if (c->batch_invariant && plan->tiles > 1) plan->tiles = 1;
    moek_choose_layers_(o, arch, plan);
    moek_choose_mlps_(o, arch, plan);
    return MOEK_OK;
}

static size_t moek_layout_(const moek_plan *plan, char *base, moek_step *step);
static moek_status moek_check_tuned_(const moek_config *c, moek_text_ *why);
static void moek_choose_tuned_(const moek_oracle_ *o, moek_plan *plan);

static moek_status moek_try_backend_(moek_oracle_ *o, int backend, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_prepare_finalize *pf = c->prepare_finalize ? c->prepare_finalize
                                    : c->format == MOEK_BATCHED ? &moek_batched : &moek_local;
    const int senders = pf->num_dispatchers > 1 ? pf->num_dispatchers : 1;
    const moek_experts *experts = backend == MOEK_BACKEND_USER ? c->experts_impl
                                : pf->format == MOEK_BATCHED ? &moek_table_batched_ : &moek_table_standard_;
    long long rows, per_expert;
    moek_status status;
    moek_step step;
    if (!experts) MOEK_NO_(o->why, MOEK_E_BACKEND, "config.experts_impl is NULL");
    if ((status = moek_backend_refuses_(o, arch, experts, pf)) != MOEK_OK) return status;
    plan->backend = backend;
    plan->prepare_finalize = pf;
    plan->experts = experts;
    plan->device = arch ? o->device.ordinal : -1;
    plan->arch = arch ? o->device.arch : 0;
    plan->multiprocessors = arch ? o->device.multiprocessors : 0;
    plan->slots = c->topk + c->shared_slots;
    plan->local_experts = c->local_experts;
    plan->chunk = moek_chunk_(c);
    rows = (long long)(pf->max_tokens_per_rank ? pf->max_tokens_per_rank : plan->chunk) * senders;
    if (pf->max_rows && pf->format == MOEK_STANDARD) rows = pf->max_rows;
    per_expert = pf->format != MOEK_BATCHED ? 0 : c->max_rows_per_expert ? c->max_rows_per_expert : rows;
    if ((double)plan->local_experts * (double)per_expert > MOEK_MAX_SLOTS_ ||
        (double)rows * plan->slots > MOEK_MAX_SLOTS_)
        MOEK_NO_(o->why, MOEK_E_ARGUMENT, "%d experts x %lld rows, or %lld rows x %d slots, overflow 31 bits: "
                 "set chunk_tokens or max_rows_per_expert",
                 plan->local_experts, per_expert, rows, plan->slots);
    if (arch >= 90 && !per_expert &&
        (double)rows * (double)moek_x_bytes_(c->quant, (size_t)c->hidden) >= (double)MOEK_GATHERED)
        MOEK_NO_(o->why, MOEK_E_ARGUMENT, "%lld rows of x of hidden %d are 64 GiB or more: set chunk_tokens", rows,
                 c->hidden);
    plan->rows = (int)rows;
    plan->rows_per_expert = (int)per_expert;
    if ((status = moek_choose_rows_(o, arch, plan)) != MOEK_OK) return status;
    if ((status = moek_ready_rows_(o, plan)) != MOEK_OK) return status;
    moek_choose_tuned_(o, plan);
    plan->workspace_size = moek_layout_(plan, NULL, &step);
    if (plan->workspace_size == (size_t)-1)
        MOEK_NO_(o->why, MOEK_E_ARGUMENT, "the workspace would have more bytes than size_t can count (%d bits): "
                 "set chunk_tokens or max_rows_per_expert", 8 * (int)sizeof(size_t));
    o->arch = arch;
    return MOEK_OK;
}

/* A backend with its rows.  A user's experts take the rows of the first architecture that serves, if not excluded. */
static moek_status moek_try_(moek_oracle_ *o, const moek_backend_ *b, moek_plan *plan)
{
    moek_status status = MOEK_E_BACKEND;
    int i;
    if (b->number != MOEK_BACKEND_USER) return moek_try_backend_(o, b->number, b->arch, plan);
    for (i = 0; i < MOEK_BACKENDS_ && status != MOEK_OK; i++) {
        const moek_backend_ *rows = &moek_backends_[i];
        if (rows->number == MOEK_BACKEND_USER || o->config->exclude & 1u << rows->number) continue;
        if (rows->arch > 0 && o->device.ordinal < 0) continue;
        moek_clear_(o->why);
        status = moek_try_backend_(o, b->number, rows->arch, plan);
    }
    if (!o->why->length)
        moek_say_(o->why, "%s",
                  o->config->experts_impl ? "its other steps need the rows of a backend, and config.exclude leaves none"
                                          : "config.experts_impl is NULL");
    return status;
}

/* The demanded kernel must be in the plan, not just in the table. */
static int moek_plan_has_(const moek_plan *p, const moek_kernel *k)
{
    int i, has = k == p->route || k == p->map || k == p->sort || k == p->quant || k == p->combine;
    for (i = 0; i < p->pairs; i++) has |= k == p->up[i] || k == p->down[i];
    for (i = 0; i < p->layers; i++) has |= k == p->layer[i];
    for (i = 0; i < p->mlps; i++) has |= k == p->mlp[i];
    return has;
}

/* Rows for several steps in one launch: what they cannot do. */
static int moek_several_steps_serve_(const moek_plan *p, int op)
{
    return p->prepare_finalize == &moek_local && !p->config.batch_invariant &&
           !(op == MOEK_OP_LAYER && p->config.router_weight_on_input);
}

/* Why a row that fits the config is not in the plan. */
static const char *moek_left_out_(const moek_plan *p, const moek_kernel *k)
{
    const int gemm = k->op == MOEK_OP_UP || k->op == MOEK_OP_DOWN;
    const int several = k->op == MOEK_OP_LAYER || k->op == MOEK_OP_MLP;
    int i, partners = 0;
    if (k->op == MOEK_OP_REPACK) return "it is in no plan: moek_repack_up and moek_repack_down take it";
    if ((gemm || several) && !p->tiles) return "experts are config.experts_impl";
    if (several && !moek_several_steps_serve_(p, k->op))
        return "it is for prepare/finalize local, without batch_invariant or, a layer row, router_weight_on_input";
    for (i = 0; gemm && i < MOEK_ROWS_; i++)
        partners |= moek_table_[i].op == (k->op == MOEK_OP_UP ? MOEK_OP_DOWN : MOEK_OP_UP) &&
                    moek_table_[i].m == k->m && moek_table_[i].arch == k->arch && moek_table_[i].quant == k->quant;
    if (gemm && !partners) return "no row of the other GEMM has its tile";
    return gemm && p->config.batch_invariant ? "batch_invariant takes one tile for all sizes" : "another was before it";
}

/* Has the plan the row that was demanded? */
static moek_status moek_check_demanded_(const moek_oracle_ *o, const moek_plan *plan)
{
    const moek_kernel *const demanded = moek_kernel_find(o->config->kernel);
    char reason[160];
    const char *no;
    if (!demanded || moek_plan_has_(plan, demanded)) return MOEK_OK;
    no = moek_row_refuses_(demanded, o, o->arch, reason, sizeof reason);
    MOEK_NO_(o->why, MOEK_E_NO_KERNEL, "config.kernel %s cannot serve: %s", o->config->kernel,
             no ? no : moek_left_out_(plan, demanded));
}

/* Walk the backends: the log gets a line for each, `why` the reasons if none serves. */
static moek_status moek_walk_backends_(moek_oracle_ *o, moek_plan *plan, moek_text_ *why, moek_text_ *log)
{
    const moek_config *c = o->config;
    moek_status status = MOEK_E_BACKEND, first = MOEK_E_BACKEND;
    char reason[MOEK_WHY];
    int i;
    for (i = 0; i < MOEK_BACKENDS_; i++) {
        const moek_backend_ *b = &moek_backends_[i];
        const int asked = !c->backend || c->backend == b->number;
        moek_text_ t = moek_text_in_(reason, sizeof reason);
        if (!asked || status == MOEK_OK) {
            moek_say_(log, "%s: %s\n", b->name, asked ? "not asked, a better one was taken" : "not demanded");
            continue;
        }
        o->why = &t;
        if (!c->backend && c->exclude & 1u << b->number) moek_say_(&t, "excluded by config.exclude");
        else if ((status = moek_try_(o, b, plan)) == MOEK_OK) status = moek_check_demanded_(o, plan);
        if (status != MOEK_OK) {                       /* nothing of it stays */
            plan->route = plan->map = plan->sort = plan->quant = plan->combine = NULL;
            plan->tiles = plan->pairs = plan->layers = plan->mlps = 0;
        }
        moek_say_(log, "%s: %s\n", b->name, status == MOEK_OK ? "taken" : reason);
        if (status == MOEK_OK || (b->number == MOEK_BACKEND_USER && !c->experts_impl && !c->backend)) continue;
        moek_say_(why, "%s%s: %s", why->length ? "\n" : "", b->name, reason);
        if (first == MOEK_E_BACKEND || first == MOEK_E_ARCH || status == MOEK_E_NO_KERNEL)
            first = status;                            /* the one the user can mend */
    }
    if (status == MOEK_OK) moek_clear_(why);
    return status == MOEK_OK ? MOEK_OK : first;
}

/* All of moek_plan_init, and of what moek_explain says.  plan: zeros; o: what rows were asked with. */
static moek_status moek_choose_(const moek_config *config, moek_plan *plan, moek_oracle_ *o, moek_text_ *why,
                                moek_text_ *log)
{
    moek_status status;
    moek_config *c = &plan->config;
    memset(o, 0, sizeof *o);
    if (!config) MOEK_NO_(why, MOEK_E_ARGUMENT, "config is NULL");
    *c = *config;
    if ((status = moek_check_sizes_(c, why)) != MOEK_OK || (status = moek_check_kinds_(c, why)) != MOEK_OK ||
        (status = moek_check_act_(c, why)) != MOEK_OK || (status = moek_check_block_(c, why)) != MOEK_OK ||
        (status = moek_check_weights_(c, why)) != MOEK_OK ||
        (status = moek_check_routing_(c, why)) != MOEK_OK || (status = moek_check_tuned_(c, why)) != MOEK_OK)
        return status;
    moek_fill_defaults_(c);
    if (c->experts_impl && !c->backend && !(c->exclude & 1u << MOEK_BACKEND_USER))
        c->backend = MOEK_BACKEND_USER;               /* given is meant: no silent fallback */
    if (c->kernel && !moek_kernel_find(c->kernel))
        MOEK_NO_(why, MOEK_E_NO_KERNEL, "config.kernel %s is not compiled in; "
                 "python3 codegen/moegen.py list shows what there is, "
                 "kernels.toml what to add", c->kernel);
    o->config = c;
    o->device = moek_device_query_();
    status = moek_walk_backends_(o, plan, why, log);
    if (status != MOEK_OK) plan->workspace_size = 0, plan->backend = 0;
    return status;
}

moek_status moek_plan_init_(moek_plan *plan, const moek_config *config, size_t config_size, size_t plan_size,
                            int version)
{
    moek_text_ why, log = moek_text_in_(NULL, 0);
    moek_oracle_ o;
    moek_status status;
    if (!plan) return MOEK_E_ARGUMENT;
    if (plan_size != sizeof *plan) return MOEK_E_VERSION;                  /* its why may lie elsewhere: do not write */
    memset(plan, 0, sizeof *plan);
    why = moek_text_in_(plan->why, sizeof plan->why);
    if (version != MOEK_VERSION || config_size != sizeof *config)
        MOEK_NO_(&why, MOEK_E_VERSION, "caller has moek.h version %d, implementation %d: compile both with the same",
                 version, MOEK_VERSION);
    status = moek_choose_(config, plan, &o, &why, &log);
    plan->config.tuned = NULL;                        /* the caller may let go of it */
    return status;
}

size_t moek_workspace_size(const moek_plan *plan) { return plan ? plan->workspace_size : 0; }
size_t moek_state_size(void) { return sizeof(moek_layer_state); }

/* ---- weights ----------------------------------------------------------------------------------------------------- */

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
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.router_bias or router_table is given; "
                 "MOEK_ROUTE_SPARSEMIXER has neither");
    if (w->router_table && w->router_table_rows < 1)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.router_table_rows is %d, but router_table is given: set it to the "
                 "rows of router_table (the vocabulary), token ids must be below it", w->router_table_rows);
    if (!w->router_table && w->router_table_rows)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.router_table_rows is %d, but router_table is NULL",
                 w->router_table_rows);
    if (w->router_table && w->router_bias)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.router_bias is given beside router_table, but a bias only decides "
                 "which experts are chosen, and the table does that: one of them must be NULL");
    if (w->router_table && c->groups > 1)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.router_table is given, but config.groups is %d, and groups only "
                 "decide which experts are chosen: the table does that, so set groups and topk_groups 0", c->groups);
    return MOEK_OK;
}

/* weights.w_gate and what belongs to it: all of it where config.up_layout says so, else nothing. */
static moek_status moek_bind_apart_(const moek_plan *plan, const moek_weights *weights, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const uintptr_t gate = (uintptr_t)weights->w_gate, up = (uintptr_t)weights->w_up;
    int i, sm90 = 0;
    if (c->up_layout != MOEK_UP_APART) {
        if (weights->w_gate || weights->w_gate_scale || weights->w_gate_bias)
            MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.%s is given, but config.up_layout is not MOEK_UP_APART: "
                     "set it, or put gate and up into one array",
                     weights->w_gate ? "w_gate" : weights->w_gate_scale ? "w_gate_scale" : "w_gate_bias");
        return MOEK_OK;
    }
    if (!weights->w_gate)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_gate is NULL; config.up_layout is MOEK_UP_APART, so gate is "
                 "there and w_up is up alone");
    if (gate == up)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_gate and w_up are the same array; config.up_layout is MOEK_UP_APART, "
                 "so they are two");
    if (!weights->w_gate_scale != !weights->w_up_scale)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.%s is NULL and %s is given: weights with scales need them for both, "
                 "other ones have none", weights->w_gate_scale ? "w_up_scale" : "w_gate_scale",
                 weights->w_gate_scale ? "w_gate_scale" : "w_up_scale");
    if (!weights->w_gate_bias != !weights->w_up_bias)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.%s is NULL and %s is given: biases of both, or of neither",
                 weights->w_gate_bias ? "w_up_bias" : "w_gate_bias",
                 weights->w_gate_bias ? "w_gate_bias" : "w_up_bias");
    for (i = 0; i < plan->pairs; i++) sm90 |= plan->up[i]->arch == 90;
    if (sm90 && (uint64_t)(gate < up ? up - gate : gate - up) >> MOEK_SM90_APART)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_gate and w_up are 2^%d bytes apart or more, too far for a stride "
                 "of the copy engine: allocate them closer, or set config.backend = MOEK_BACKEND_SM80",
                 MOEK_SM90_APART);
    return MOEK_OK;
}

/* weights.w_up_global_scale and its like: all of them where the format has a second scale, else none. */
static moek_status moek_bind_second_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int second = moek_format_of(c->quant)->second, apart = c->up_layout == MOEK_UP_APART;
    const char *const given = w->w_up_global_scale ? "w_up_global_scale" : w->w_down_global_scale
                            ? "w_down_global_scale" : w->w_gate_global_scale ? "w_gate_global_scale" : NULL;
    const char *const missing = !w->w_up_global_scale ? "w_up_global_scale" : !w->w_down_global_scale
                              ? "w_down_global_scale" : apart && !w->w_gate_global_scale ? "w_gate_global_scale" : NULL;
    if (!second && given)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.%s is given, but config.quant is %s, which has no second scale", given,
                 moek_quant_name(c->quant));
    if (second && missing)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s has a second scale, one an expert", missing,
                 moek_quant_name(c->quant));
    if (!apart && w->w_gate_global_scale)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_gate_global_scale is given, but config.up_layout is not "
                 "MOEK_UP_APART: w_up_global_scale has that of gate, too");
    return MOEK_OK;
}

/* weights.w_up_zero and its like: of all weights or of none, and only where the format may have them. */
static moek_status moek_bind_zeros_(const moek_plan *plan, const moek_weights *w, moek_text_ *why)
{
    const moek_config *c = &plan->config;
    const int apart = c->up_layout == MOEK_UP_APART, any = w->w_up_zero || w->w_down_zero || w->w_gate_zero;
    if (any && !moek_format_of(c->quant)->zero)
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_up_zero, w_down_zero or w_gate_zero is given, but config.quant is "
                 "%s, which has no zero points", moek_quant_name(c->quant));
    if (any && (!w->w_up_zero || !w->w_down_zero || !w->w_gate_zero != !apart))
        MOEK_NO_(why, MOEK_E_ARGUMENT, "weights.w_up_zero and w_down_zero go together, and w_gate_zero with them where "
                 "config.up_layout is MOEK_UP_APART, and only there");
    return MOEK_OK;
}

moek_status moek_plan_bind(moek_plan *plan, const moek_weights *weights)
{
    moek_status status;
    moek_text_ why;
    const moek_config *c;
    int scale_bytes;
    if (!plan) return MOEK_E_ARGUMENT;
    why = moek_text_in_(plan->why, sizeof plan->why);
    c = &plan->config;
    scale_bytes = moek_w_scale_(c->quant)->type ? moek_scale_bits_[moek_w_scale_(c->quant)->type] / 8 : 4;
    plan->bound = 0;
    if (!plan->backend)
        MOEK_NO_(&why, MOEK_E_ARGUMENT, "the plan is not initialized: moek_plan_init did not return MOEK_OK");
    if (!weights) MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights is NULL");
#define MOEK_NEED_(field, condition, reason) \
    if ((condition) && !weights->field) MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights." #field " is NULL; %s", reason)
#define MOEK_ALIGNED_(field, bytes) \
    if ((uintptr_t)weights->field % bytes) \
        MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights." #field " is not aligned to %d bytes", bytes)
    if (plan->backend != MOEK_BACKEND_USER) {
        const int scaled = moek_w_scale_(c->quant)->type != 0;
        MOEK_NEED_(w_up, 1, "every layer needs it");
        MOEK_NEED_(w_down, 1, "every layer needs it");
        if (scaled && (!weights->w_up_scale || !weights->w_down_scale))
            MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights.%s is NULL; %s weights need scales",
                     weights->w_up_scale ? "w_down_scale" : "w_up_scale", moek_quant_name(c->quant));
        if (!scaled && (weights->w_up_scale || weights->w_down_scale))
            MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights.w_up_scale or w_down_scale is given, but config.quant is %s, "
                     "which has none", moek_quant_name(c->quant));
        if ((status = moek_bind_apart_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_second_(plan, weights, &why)) != MOEK_OK) return status;
        if ((status = moek_bind_zeros_(plan, weights, &why)) != MOEK_OK) return status;
        if (!moek_by_tensor_(c->quant) && (weights->x_scale || weights->h_scale))
            MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights.x_scale or h_scale is given, but only fp8t has static scales, "
                     "not %s", moek_quant_name(c->quant));
        if (c->batch_invariant && moek_by_tensor_(c->quant) && (!weights->x_scale || !weights->h_scale))
            MOEK_NO_(&why, MOEK_E_ARGUMENT, "kernel does not support batch invariance: "
                     "fp8t needs x_scale and h_scale for it");
    }
    MOEK_ALIGNED_(w_up, 16); MOEK_ALIGNED_(w_down, 16); MOEK_ALIGNED_(w_gate, 16); MOEK_ALIGNED_(w_gate_bias, 16);
    MOEK_ALIGNED_(w_up_scale, scale_bytes); MOEK_ALIGNED_(w_down_scale, scale_bytes);
    MOEK_ALIGNED_(w_gate_scale, scale_bytes); MOEK_ALIGNED_(w_up_global_scale, 4);
    MOEK_ALIGNED_(w_down_global_scale, 4); MOEK_ALIGNED_(w_gate_global_scale, 4);
    MOEK_ALIGNED_(w_up_bias, 16); MOEK_ALIGNED_(w_down_bias, 16); MOEK_ALIGNED_(x_scale, 4); MOEK_ALIGNED_(h_scale, 4);
    MOEK_ALIGNED_(router_bias, 4); MOEK_ALIGNED_(router_expert_scale, 4); MOEK_ALIGNED_(router_table, 4);
    MOEK_ALIGNED_(replicas, 4); MOEK_ALIGNED_(replica_count, 4); MOEK_ALIGNED_(expert_map, 4);
    MOEK_ALIGNED_(expert_load, 8);
    if ((status = moek_check_router_weights_(c, weights, &why)) != MOEK_OK) return status;
    MOEK_NEED_(expert_map, c->local_experts != c->physical_experts && !plan->prepare_finalize->collective,
               "local_experts differs from physical_experts, so it must say which are here");
    if (weights->expert_map && plan->prepare_finalize->collective)
        MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights.expert_map is given, but prepare/finalize %s knows where experts are",
                 plan->prepare_finalize->name);
    MOEK_NEED_(replica_count, weights->replicas != NULL, "replicas needs it");
    if (weights->replica_count && !weights->replicas)
        MOEK_NO_(&why, MOEK_E_ARGUMENT, "weights.replica_count is given, but replicas is NULL");
    if (weights->replicas && c->max_replicas < 1)
        MOEK_NO_(&why, MOEK_E_ARGUMENT, "config.max_replicas is %d, but weights.replicas is given", c->max_replicas);
    MOEK_NEED_(replicas, c->physical_experts < c->experts + c->shared_slots,
               "there are fewer physical than logical experts");
#undef MOEK_NEED_
#undef MOEK_ALIGNED_
    plan->weights = *weights;
    plan->bound = 1;
    return MOEK_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

size_t moek_explain(const moek_config *config, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size), why;
    char sentence[MOEK_WHY], reason[160];
    moek_plan plan;
    moek_oracle_ o;
    moek_status status;
    int i;
    memset(&plan, 0, sizeof plan);
    why = moek_text_in_(sentence, sizeof sentence);
    status = moek_choose_(config, &plan, &o, &why, &t);
    if (plan.note[0]) moek_say_(&t, "tuned: %s\n", plan.note);
    for (i = 0; t.length && i < MOEK_ROWS_; i++) {    /* no text: refused before any backend or row was asked */
        const moek_kernel *k = &moek_table_[i];
        const char *no = moek_row_refuses_(k, &o, plan.backend ? o.arch : k->arch, reason, sizeof reason);
        moek_say_(&t, "  %-44s ", k->name);
        if (moek_plan_has_(&plan, k)) moek_say_(&t, "taken\n");
        else if (no) moek_say_(&t, "%s\n", no);
        else moek_say_(&t, "fits%s%s\n", plan.backend ? "; " : "", plan.backend ? moek_left_out_(&plan, k) : "");
    }
    moek_say_(&t, "moek_plan_init: %s%s%s\n", moek_status_name(status), status == MOEK_OK ? "" : ": ", sentence);
    return t.length;
}

static void moek_describe_choices_(const moek_plan *plan, moek_text_ *t)
{
    int i;
    moek_say_(t, "choice    %s\n", plan->choices ? "measured (config.tuned):" : "built-in rule");
    for (i = 0; i < plan->choices; i++)
        moek_say_(t, "  up to %d tokens: %s\n", plan->choice[i].tokens,
                  plan->choice[i].pair >= 0 ? plan->up[plan->choice[i].pair]->name :
                  plan->choice[i].pair <= MOEK_CHOICE_MLP ? plan->mlp[MOEK_CHOICE_MLP - plan->choice[i].pair]->name :
                  plan->choice[i].pair <= MOEK_CHOICE_LAYER ? "one launch" : "the built-in rule");
    if (plan->choices) moek_say_(t, "  otherwise: the built-in rule\n");
    if (plan->note[0]) moek_say_(t, "  note: %s\n", plan->note);
}

/* What the config left 0 and what it stands for, where that changes results. */
static void moek_describe_act_(const moek_config *c, moek_text_ *t)
{
    static const char *const layouts[] = { "?", "gate, then up", "gate and up interleaved", "up, then gate",
                                           "up alone, gate in w_gate" };
    const int layout = c->up_layout >= 0 && c->up_layout <= MOEK_UP_APART ? c->up_layout : 0;
    const int scales = moek_act_scales_(c->act), clamps = moek_act_clamps_(c->act);
    const char *const name = moek_act_name(c->act);
    moek_say_(t, "act       %s", name ? name : "?");
    if (scales) moek_say_(t, ", alpha %g", (double)c->alpha);
    if (scales && c->act == MOEK_SITU && !(c->beta > 0)) moek_say_(t, ", beta none");
    else if (scales) moek_say_(t, ", beta %g", (double)c->beta);
    if (clamps && c->limit > 0 && c->limit < HUGE_VALF) moek_say_(t, ", limit %g", (double)c->limit);
    else if (clamps) moek_say_(t, ", limit none");
    if (moek_act_gated_(c->act)) moek_say_(t, "; rows of w_up: %s\n", layouts[layout]);
    else moek_say_(t, "; not gated\n");
}
/* The method, and what of it is this layer's own. */
static void moek_describe_route_(const moek_plan *plan, moek_text_ *t)
{
    const moek_config *c = &plan->config;
    const moek_weights *w = &plan->weights;
    const moek_method_ *method = moek_method_of_(c->routing);
    moek_say_(t, "route     %s, MOEK_ROUTE_%s: %s", plan->route->name, method->name, method->text);
    if (c->groups > 1)
        moek_say_(t, "; %d of %d groups, by %s", c->topk_groups, c->groups,
                  moek_group_score_(plan) == MOEK_GROUP_SCORE_TOP2 ? "the sum of their two best" : "their best");
    if (moek_divides_(method)) moek_say_(t, "; eps %g", (double)c->router_eps);
    moek_say_(t, "; scale %g", (double)c->scale);
    if (c->shared_slots) moek_say_(t, "; %d shared slots, weight %g", c->shared_slots, (double)c->shared_weight);
    if (plan->bound)
        moek_say_(t, "; %s%s%s", w->router_bias ? "with router_bias" : "no router_bias",
                  w->router_expert_scale ? ", router_expert_scale" : "", w->router_table ? ", router_table" : "");
    moek_say_(t, "\n");
}

size_t moek_describe(const moek_plan *plan, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size);
    const moek_config *c;
    int i;
    if (!plan || !plan->backend) { moek_say_(&t, "not initialized: %s\n", plan ? plan->why : "NULL"); return t.length; }
    c = &plan->config;
    moek_say_(&t, "layer     hidden %d, inter %d, %d experts (%d here), top-%d%s, %s%s%s, T %s, "
              "up to %d tokens in chunks of %d\n", c->hidden, c->inter, c->experts, plan->local_experts, c->topk,
              c->shared_slots ? " + shared slots" : "", moek_quant_name(c->quant),
              c->weight_layout == MOEK_WEIGHTS_TILED ? " (tiled)" : "", c->ue8m0 ? " (ue8m0)" : "",
              moek_dtype_name_(c->dtype), c->max_tokens, plan->chunk);
    moek_describe_act_(c, &t);
    moek_say_(&t, "backend   %s%s, workspace %.1f MiB\n", moek_backend_name_(plan->backend),
              plan->device < 0 ? " (host memory)" : "", plan->workspace_size / 1048576.0);
    moek_describe_route_(plan, &t);
    moek_say_(&t, "prepare   %s, %s format%s%s\n", plan->prepare_finalize->name,
              moek_format_name_(plan->prepare_finalize->format),
              moek_quantizes_(c->quant) && !plan->experts->expects_unquantized ? ", " : "",
              moek_quantizes_(c->quant) && !plan->experts->expects_unquantized ? plan->quant->name : "");
    if (plan->tiles && !plan->rows_per_expert) moek_say_(&t, "sort      %s\n", plan->sort->name);
    if (!plan->tiles) moek_say_(&t, "experts   %s\n", plan->experts->name);
    else moek_describe_choices_(plan, &t);
    for (i = 0; i < plan->pairs; i++) {
        const int last = i >= plan->tiles - 1;
        moek_say_(&t, last ? "%s%s\n" : "%s%s (", i ? "" : "experts   ",
                  i >= plan->tiles ? "only where measured:" : last && i ? "otherwise:" :
                  last ? "any number of rows:" : "up to");
        if (!last) moek_say_(&t, "%d rows an expert):\n", moek_tile_mean_(plan, plan->up[i]));
        moek_say_(&t, "  up      %s\n", plan->up[i]->name);
        if (moek_quantizes_(c->quant)) {
            const int from = moek_requantizes_from_(plan, plan->up[i]);
            moek_say_(&t, "  quant   %s", plan->quant->name);
            if (from) moek_say_(&t, " (from %d rows an expert on: up itself)", from);
            moek_say_(&t, "\n");
        }
        moek_say_(&t, "  down    %s\n", plan->down[i]->name);
    }
    for (i = 0; i < plan->mlps; i++)
        moek_say_(&t, "%s%s (up to %d rows an expert)\n", i ? "          " : "both      ", plan->mlp[i]->name,
                  moek_tile_mean_(plan, plan->mlp[i]));
    if (plan->mlps)
        moek_say_(&t, "          instead of up and down, with args.state, where moek_plan_mlp says so\n");
    moek_say_(&t, "finalize  %s, %s\n", plan->prepare_finalize->name, plan->combine->name);
    for (i = 0; i < plan->layers; i++) {
        const int few = plan->layer[i]->m == 4;
        int most = few ? plan->layer[i]->m : moek_tile_mean_(plan, plan->layer[i]);
        while (few && most && !moek_few_wins_(plan, most)) most--;
        if (most) moek_say_(&t, "%s%s (up to %d %s)\n", i ? "          " : "in one    ", plan->layer[i]->name, most,
                            few ? "tokens" : "rows an expert");
    }
    if (plan->layers)
        moek_say_(&t, "          instead of all but route, with args.state, up to %d tokens by moek_run\n",
                  MOEK_SELF_SORT / plan->slots);
    return t.length;
}
#endif
