/* moek/walk/arguments.h -- the arguments of a run: all that can be refused is refused before anything is launched or
 * written. */
#ifndef MOEK_ARGUMENTS_H
#define MOEK_ARGUMENTS_H
#include "../plan/device_query.h"
#include "overlap.h"

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

/* Addresses of workspace and state, or of the others. */
static moek_status moek_check_aligned_(const moek_plan *plan, const moek_args *args, int work)
{
    enum { WORK = 2 };                                 /* (test_api has all of them misaligned) */
    moek_text_ t = moek_text_in_(args->why, args->why_size);
    if (moek_aligned_(plan, &moek_in_args_, args, work ? 0 : WORK, work ? WORK : moek_in_args_.n, &t)) return MOEK_OK;
    return work ? MOEK_E_WORKSPACE : MOEK_E_ARGUMENT;
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
    if ((status = moek_check_aligned_(plan, args, 1)) != MOEK_OK) return status;
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
    if (args->parallel.pool && !args->parallel.run)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.parallel.pool is given, and args.parallel.run is NULL: set both, or "
                     "neither for config.parallel");
    if ((status = moek_check_part_(plan, args)) != MOEK_OK || !args->tokens) return status;
    if (!args->x || !args->y) MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s is NULL", args->x ? "y" : "x");
    if ((status = moek_check_aligned_(plan, args, 0)) != MOEK_OK) return status;
    if ((status = moek_check_strides_(plan, args)) != MOEK_OK) return status;
    if ((status = moek_check_router_args_(plan, args)) != MOEK_OK) return status;
    return moek_check_overlap_(plan, args);
}
#endif
