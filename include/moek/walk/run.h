/* moek/walk/run.h -- the walk: route, prepare, experts, finalize; checks first, then launches only. */
#ifndef MOEK_RUN_H
#define MOEK_RUN_H

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

/* What prepare/finalize refuses, with its sentence or one for want of that. */
static moek_status moek_check_part_(const moek_plan *plan, const moek_args *args)
{
    const moek_prepare_finalize *pf = plan->prepare_finalize;
    const moek_status status = pf->check ? pf->check(pf, plan, args) : MOEK_OK;
    if (status == MOEK_OK || (args->why && args->why_size && args->why[0])) return status;
    MOEK_REFUSE_(args, status, "prepare/finalize %s refuses the run: %s", pf->name, moek_status_text(status));
}

/* Ids are below this: logical ones if there are replicas, else physical. */
static int moek_id_bound_(const moek_plan *plan)
{
    return plan->weights.replicas ? plan->config.experts + plan->config.shared_slots : plan->config.physical_experts;
}

static size_t moek_logit_bytes_(int dtype) { return dtype == MOEK_DTYPE_F32 ? 4 : 2; }
static size_t moek_logits_stride_(const moek_plan *plan, const moek_args *args)
{
    return args->router_logits_stride ? args->router_logits_stride : (size_t)plan->config.experts;
}

/* Host memory: token ids, or the ids that are given, can be looked at. */
static moek_status moek_check_host_ids_(const moek_plan *plan, const moek_args *args)
{
    const long long slots = (long long)args->tokens * plan->slots;
    const int bound = moek_id_bound_(plan), rows = plan->weights.router_table_rows;
    long long i;
    int t;
    for (t = 0; args->router_logits && plan->weights.router_table && t < args->tokens; t++) {
        if (args->is_padding && args->is_padding[t]) continue;
        if (args->token_ids[t] < 0 || args->token_ids[t] >= rows)
            MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.token_ids[%d] is %d; weights.router_table has rows 0 to %d "
                         "(router_table_rows %d)", t, (int)args->token_ids[t], rows - 1, rows);
    }
    for (i = 0; !args->router_logits && i < slots; i++) {
        const long long id = args->topk_ids ? args->topk_ids[i] : args->topk_ids64[i];
        if (args->is_padding && args->is_padding[i / plan->slots]) continue;
        if (id < -1 || id >= bound)
            MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.topk_ids%s[%ld][%d] is %lld; ids are -1 to %d",
                         args->topk_ids ? "" : "64", (long)(i / plan->slots), (int)(i % plan->slots), id, bound - 1);
    }
    return MOEK_OK;
}

/* Logits, and what is read beside them alone. */
static moek_status moek_check_logit_args_(const moek_plan *plan, const moek_args *args)
{
    const int experts = plan->config.experts;
    const unsigned long stride = (unsigned long)args->router_logits_stride;
    if (args->shared_weights && !plan->config.shared_slots)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.shared_weights is given, but config.shared_slots is 0: there is no "
                     "slot that they could weigh");
    if (args->shared_weights && !args->router_logits)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.shared_weights is given, but router_logits is NULL: then "
                     "topk_weights holds the weights of all slots, of these too");
    if (stride && !args->router_logits)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.router_logits_stride is %lu, but router_logits is NULL", stride);
    if (stride && args->router_logits_stride < (size_t)experts)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.router_logits_stride is %lu elements; a token has %d logits "
                     "(config.experts), so at least that, or 0", stride, experts);
    if (args->router_logits && plan->weights.router_table && !args->token_ids)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "weights.router_table is given (hash routing), "
                     "so args.token_ids must be; it is NULL");
    return MOEK_OK;
}

/* Of a run with tokens: logits, ids and weights. */
static moek_status moek_check_router_args_(const moek_plan *plan, const moek_args *args)
{
    moek_status status;
    if ((uintptr_t)args->router_logits % moek_logit_bytes_(plan->config.logits_dtype) ||
        (uintptr_t)args->topk_ids % 4 || (uintptr_t)args->topk_ids64 % 8 || (uintptr_t)args->topk_weights % 4 ||
        (uintptr_t)args->token_ids % 4 || (uintptr_t)args->shared_weights % 4)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.router_logits, topk_ids, topk_ids64, topk_weights, token_ids or "
                     "shared_weights is not aligned to its elements");
    if (args->topk_ids && args->topk_ids64)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.topk_ids and topk_ids64 are both given; they stand for the same ids, "
                     "so one of them must be NULL");
    if (!args->router_logits && ((!args->topk_ids && !args->topk_ids64) || !args->topk_weights))
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.router_logits is NULL, so topk_ids (or topk_ids64) and topk_weights "
                     "must both be given; %s is NULL", args->topk_weights ? "topk_ids" : "topk_weights");
    if ((status = moek_check_logit_args_(plan, args)) != MOEK_OK) return status;
    return plan->device < 0 ? moek_check_host_ids_(plan, args) : MOEK_OK;
}

/* Rows of x, y or shared_y.  Kernels count a chunk of x in 32 bits, 16 bytes each, and a row in 31. */
static moek_status moek_check_stride_(const moek_plan *plan, const moek_args *args, const char *name, size_t stride)
{
    const size_t hidden = (size_t)plan->config.hidden;
    const size_t rows = (size_t)(args->tokens < plan->chunk ? args->tokens : plan->chunk);
    if (stride != hidden && (stride < hidden || stride % 8))
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s_stride is %lu elements; 0 (hidden), %lu (hidden), or more and a "
                     "multiple of 8", name, (unsigned long)stride, (unsigned long)hidden);
    if (stride >= (size_t)1 << 30 || (unsigned long long)stride * rows > 1ull << 35)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s_stride is %lu elements, for %lu tokens a chunk; below 2^30, and "
                     "at most 2^35 a chunk: fewer tokens in config.chunk_tokens, or rows nearer to each other",
                     name, (unsigned long)stride, (unsigned long)rows);
    return MOEK_OK;
}
static moek_status moek_check_strides_(const moek_plan *plan, const moek_args *args)
{
    const moek_config *c = &plan->config;
    const size_t x = moek_x_stride_(args, c), y = moek_y_stride_(args, c), shared = moek_shared_y_stride_(args, c);
    moek_status status = moek_check_stride_(plan, args, "x", x);
    if (status == MOEK_OK) status = moek_check_stride_(plan, args, "y", y);
    if (status == MOEK_OK && args->shared_y) status = moek_check_stride_(plan, args, "shared_y", shared);
    if (status != MOEK_OK) return status;
    if (args->y == args->x && x != y)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.y is x, whose rows are %lu elements apart, and args.y_stride says "
                     "%lu: give both the same stride, or y memory of its own", (unsigned long)x, (unsigned long)y);
    if (args->y == args->shared_y && shared != y)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.y is shared_y, whose rows are %lu elements apart, and args.y_stride "
                     "says %lu: give both the same stride, or y memory of its own",
                     (unsigned long)shared, (unsigned long)y);
    return MOEK_OK;
}

/* Everything that can be refused is refused here, before anything is launched or written. */
static moek_status moek_check_run_(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_status status;
    if (!plan || !args) return MOEK_E_ARGUMENT;
    if (args->why && args->why_size) args->why[0] = 0;
    if (!plan->backend)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "the plan is not initialized: moek_plan_init did not return MOEK_OK");
    if (!plan->bound)
        MOEK_REFUSE_(args, MOEK_E_UNBOUND, "the plan has no weights: call moek_plan_bind after moek_plan_init");
    if (args->tokens < 0 || args->tokens > plan->config.max_tokens)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.tokens is %d; the plan was made for 0 to %d (config.max_tokens)",
                     args->tokens, plan->config.max_tokens);
    if (args->handle != 0 && args->handle != 1)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.handle is %d; 0 or 1", args->handle);
    if (!args->workspace)
        MOEK_REFUSE_(args, MOEK_E_WORKSPACE, "args.workspace is NULL; %lu bytes are needed",
                     (unsigned long)plan->workspace_size);
    if ((uintptr_t)args->workspace % 256)
        MOEK_REFUSE_(args, MOEK_E_WORKSPACE, "args.workspace is not aligned to 256 bytes");
    if (args->workspace_size < plan->workspace_size)
        MOEK_REFUSE_(args, MOEK_E_WORKSPACE, "args.workspace_size is %lu; moek_workspace_size(plan) is %lu",
                     (unsigned long)args->workspace_size, (unsigned long)plan->workspace_size);
    if (plan->device >= 0 && moek_device_current_() != plan->device)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "the plan belongs to CUDA device %d, current is %d: cudaSetDevice(%d), "
                     "or make a plan for it",
                     plan->device, moek_device_current_(), plan->device);
    if (plan->device >= 0 && moek_device_error_())
        MOEK_REFUSE_(args, MOEK_E_CUDA, "an earlier CUDA call of this thread failed (%s) and nobody took note: "
                     "see to it, then clear it by cudaGetLastError()", moek_device_error_());
    if (plan->device < 0 && stream)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "this plan runs on the CPU, on host memory, so stream must be NULL; "
                     "to stay on the GPU, set config.exclude = 1u << MOEK_BACKEND_CPU and read plan.why");
    if ((uintptr_t)args->state % 256)
        MOEK_REFUSE_(args, MOEK_E_WORKSPACE, "args.state is not aligned to 256 bytes");
    if ((status = moek_check_part_(plan, args)) != MOEK_OK || !args->tokens) return status;
    if (!args->x || !args->y) MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s is NULL", args->x ? "y" : "x");
    if ((uintptr_t)args->x % 16 || (uintptr_t)args->y % 16 || (uintptr_t)args->shared_y % 16)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.x, y or shared_y is not aligned to 16 bytes");
    if ((status = moek_check_strides_(plan, args)) != MOEK_OK) return status;
    return moek_check_router_args_(plan, args);
}

/* The step of tokens first .. first + tokens - 1: pointers moved, workspace laid out. */
static void moek_slice_(const moek_plan *plan, const moek_args *args, int first, int tokens, moek_step *step)
{
    const moek_config *c = &plan->config;
    const size_t row = 2 * (size_t)first, slot = (size_t)first * (size_t)plan->slots;
    int32_t *ids;
    float *weights;
    memset(step, 0, sizeof *step);
    step->plan = plan;
    step->args = *args;
    step->first = first;
    step->tokens = step->args.tokens = tokens;
    step->a_stride = (size_t)c->hidden;
    moek_layout_(plan, (char *)args->workspace, step);
    if (!tokens) return;
    step->args.x = (const char *)args->x + row * moek_x_stride_(args, c);
    step->args.y = (char *)args->y + row * moek_y_stride_(args, c);
    if (args->shared_y) step->args.shared_y = (const char *)args->shared_y + row * moek_shared_y_stride_(args, c);
    if (args->router_logits)
        step->args.router_logits = (const char *)args->router_logits +
                                   (size_t)first * moek_logits_stride_(plan, args) * moek_logit_bytes_(c->logits_dtype);
    if (args->shared_weights)
        step->args.shared_weights = args->shared_weights + (size_t)first * (size_t)c->shared_slots;
    if (args->token_ids) step->args.token_ids = args->token_ids + first;
    if (args->is_padding) step->args.is_padding = args->is_padding + first;
    ids = args->topk_ids ? args->topk_ids + slot : NULL;
    weights = args->topk_weights ? args->topk_weights + slot : NULL;
    step->args.topk_ids = ids;
    step->args.topk_weights = weights;
    if (args->topk_ids64) step->args.topk_ids64 = args->topk_ids64 + slot;     /* step->topk_ids: in the workspace */
    if (ids) step->topk_ids = ids;                    /* the caller's arrays are read, or written, in place */
    if (weights) step->topk_weights = weights;
}

moek_status moek_begin(const moek_plan *plan, const moek_args *args, moek_step *step)
{
    moek_status status = moek_check_run_(plan, args, NULL);
    if (status != MOEK_OK) return status;
    if (!step) MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "step is NULL");
    if (args->tokens > plan->chunk)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.tokens is %d; the stages take at most plan.chunk = %d at once",
                     args->tokens, plan->chunk);
    moek_slice_(plan, args, 0, args->tokens, step);
    return MOEK_OK;
}

static moek_status moek_route_logits_(moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const moek_config *c = &plan->config;
    const moek_method_ *method = moek_method_of_(c->routing);
    moek_route_args a;
    memset(&a, 0, sizeof a);
    a.score = method->score; a.normalize = method->normalize; a.eps = c->router_eps;
    a.tokens = step->tokens; a.experts = c->experts; a.topk = c->topk;
    a.scale = c->scale;
    a.groups = c->groups; a.topk_groups = c->topk_groups; a.group_score = moek_group_score_(plan);
    a.logits = step->args.router_logits; a.logits_dtype = c->logits_dtype;
    a.logits_stride = moek_logits_stride_(plan, &step->args);
    a.bias = plan->weights.router_bias;
    a.expert_scale = plan->weights.router_expert_scale;
    a.table = plan->weights.router_table; a.table_rows = plan->weights.router_table_rows;
    a.token_ids = step->args.token_ids;
    a.is_padding = step->args.is_padding;
    a.shared = c->shared_slots; a.shared_weight = c->shared_weight; a.shared_weights = step->args.shared_weights;
    a.ids = step->topk_ids; a.weights = step->topk_weights; a.ids64 = step->args.topk_ids64;
    a.early = plan->arch >= 90;
    return plan->route->launch(&a, stream);
}

/* Ids that are given as int64: the map makes them int32. */
static int moek_widely_given_(const moek_step *step) { return step->args.topk_ids64 && !step->args.router_logits; }

/* Nothing to map, and only our own steps to read the ids: those skip what is out of range by themselves. */
static int moek_ids_are_local_(const moek_step *step)
{
    const moek_plan *plan = step->plan;
    const moek_weights *w = &plan->weights;
    const int ours = plan->backend != MOEK_BACKEND_USER &&
                     (plan->prepare_finalize == &moek_local || plan->prepare_finalize == &moek_batched);
    const int padding = step->args.is_padding && !step->args.router_logits;
    return ours && !w->replicas && !w->expert_map && !w->expert_load && !padding && !moek_widely_given_(step);
}

/* A step that moek_begin refused, or never saw. */
#define MOEK_BEGUN_(step) if (!(step) || !moek_planned_((step)->plan)) return MOEK_E_ARGUMENT

/* moek_step: ids after this are experts of this rank (of any, where prepare/finalize is collective), or -1. */
moek_status moek_route(moek_step *step, moek_stream stream)
{
    const moek_plan *plan;
    const moek_weights *w;
    moek_map_args a;
    moek_status status;
    MOEK_BEGUN_(step);
    plan = step->plan; w = &plan->weights;
    if ((status = moek_check_part_(plan, &step->args)) != MOEK_OK || !step->tokens) return status;
    if (step->args.router_logits && (status = moek_route_logits_(step, stream)) != MOEK_OK) return status;
    if (moek_ids_are_local_(step)) {
        step->ids = step->topk_ids;
        return MOEK_OK;
    }
    memset(&a, 0, sizeof a);
    a.tokens = step->tokens; a.topk = plan->slots; a.first = step->first;
    a.experts = moek_id_bound_(plan);
    a.physical = plan->config.physical_experts; a.max_replicas = plan->config.max_replicas;
    a.ids = step->topk_ids;
    if (moek_widely_given_(step)) { a.ids64 = step->args.topk_ids64; a.given = step->topk_ids; }
    a.replicas = w->replicas; a.replica_count = w->replica_count;
    a.map = plan->prepare_finalize->collective ? NULL : w->expert_map; a.load = w->expert_load;
    a.is_padding = step->args.is_padding;
    a.out = (int32_t *)step->ids;
    return plan->map->launch(&a, stream);
}

moek_status moek_prepare_send(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->prepare_send ? pf->prepare_send(pf, step, stream) : MOEK_OK;
}

moek_status moek_prepare_receive(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->prepare_receive ? pf->prepare_receive(pf, step, stream) : MOEK_OK;
}

/* No rows reached this rank: nothing to compute, and finalize still takes part. */
moek_status moek_experts_apply(moek_step *step, moek_stream stream)
{
    const moek_experts *experts;
    MOEK_BEGUN_(step);
    experts = step->plan->experts;
    return step->rows > 0 ? experts->apply(experts, step, stream) : MOEK_OK;
}

moek_status moek_finalize_send(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->finalize_send ? pf->finalize_send(pf, step, step->plan->experts->weight_and_reduce, stream) : MOEK_OK;
}

moek_status moek_finalize_receive(moek_step *step, moek_stream stream)
{
    const moek_prepare_finalize *pf;
    MOEK_BEGUN_(step);
    pf = step->plan->prepare_finalize;
    return pf->finalize_receive
         ? pf->finalize_receive(pf, step, step->plan->experts->weight_and_reduce, stream) : MOEK_OK;
}

moek_status moek_prepare(moek_step *step, moek_stream stream)
{
    const moek_status status = moek_prepare_send(step, stream);
    return status != MOEK_OK ? status : moek_prepare_receive(step, stream);
}

moek_status moek_finalize(moek_step *step, moek_stream stream)
{
    moek_status status = moek_finalize_send(step, stream);
    int shared;
    if (status != MOEK_OK) return status;
    shared = step->tokens && step->args.shared;
    if (shared)
        status = step->args.shared(step->args.shared_context, step->first, step->tokens, stream);
    step->straight = !shared;
    if (status == MOEK_OK) status = moek_finalize_receive(step, stream);
    step->straight = 0;
    return status;
}

/* A user's part may have left its own sentence. */
static moek_status moek_failed_(const moek_args *args, moek_status status, int first)
{
    if (args->why && args->why_size && args->why[0]) return status;
    MOEK_REFUSE_(args, status, "a step failed at token %d: %s", first, moek_status_text(status));
}

moek_status moek_run(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const moek_kernel *layer;
    moek_step step;
    int first, end;
    moek_status status = moek_check_run_(plan, args, stream);
    if (status != MOEK_OK) return status;
    end = plan->prepare_finalize->collective ? plan->config.max_tokens : args->tokens;
    for (first = 0;; first += plan->chunk) {
        const int left = args->tokens > first ? args->tokens - first : 0;
        moek_slice_(plan, args, first, left < plan->chunk ? left : plan->chunk, &step);
        if ((status = moek_route(&step, stream)) != MOEK_OK) return moek_failed_(args, status, first);
        step.routed = step.args.router_logits != NULL;
        layer = args->state && !args->shared ? moek_plan_layer(plan, step.tokens) : NULL;
        if (layer) status = moek_layer_(layer, &step, stream);
        else if ((status = moek_prepare(&step, stream)) == MOEK_OK &&
                 (status = moek_experts_apply(&step, stream)) == MOEK_OK)
            status = moek_finalize(&step, stream);
        if (status != MOEK_OK) return moek_failed_(args, status, first);
        if (end - first <= plan->chunk) return MOEK_OK;
    }
}
#endif
