/* moek/plan/plan.h -- the choice: walks the backends in their order; the first that accepts is taken, each other one
 * gets a sentence. */
#ifndef MOEK_PLAN_H
#define MOEK_PLAN_H
#include <string.h>
#include "gemms.h"
#include "tuned.h"
#include "workspace.h"

/* Are the experts made of kernels of the table? */
static int moek_table_experts_(const moek_experts *experts)
{
    return experts == &moek_standard_experts || experts == &moek_batched_experts;
}

/* Has the backend kernels for the weights of up, or of down: for their format, and as they lie? */
static moek_status moek_weights_refused_(const moek_request_ *o, int arch, int op)
{
    const int quant = moek_quant_at_(o->config, op), layout = moek_layout_at_(o->config, op);
    const int host = moek_arch_is_host_(arch);
    int i, formats = 0, reads = 0;
    for (i = 0; i < MOEK_KERNELS_; i++)
        if (moek_table_[i].op == op && moek_table_[i].quant == quant && moek_arch_below_(moek_table_[i].arch, arch, 1))
            formats = 1, reads |= moek_table_[i].reads;
    if (!formats) return moek_no_kernel_(o, op, arch);
    if (layout == MOEK_WEIGHTS_BLOCKS && !moek_reads_(reads, layout) && moek_reads_(reads, MOEK_WEIGHTS_TILED) &&
        moek_format_of(quant)->only_blocks)
        MOEK_FAIL_(o->why, MOEK_E_NO_KERNEL, "kernel does not support MOEK_WEIGHTS_BLOCKS: %s reads %s only as "
                   "MOEK_WEIGHTS_TILED; repack from blocks (moek_repack_up, moek_repack_down)", moek_arch_name_(arch),
                   moek_quant_name(quant));
    if (layout == MOEK_WEIGHTS_BLOCKS && !moek_reads_(reads, layout))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support MOEK_WEIGHTS_BLOCKS: its rows read no blocks of "
                   "GGUF files; leave config.weight_layout 0, and import weights (moek_import.h)");
    if (layout == MOEK_WEIGHTS_TILED && !moek_reads_(reads, layout))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support MOEK_WEIGHTS_TILED: %s has no rows of %s that read "
                   "such weights; leave config.weight_layout 0, and weights as they come%s", moek_arch_name_(arch),
                   moek_quant_name(quant), !host ? "" :
                   ", or set MOEK_WEIGHTS_PANELS, the order of CPUs, and repack from these with a plan for the CPU");
    if (layout == MOEK_WEIGHTS_PANELS && !moek_reads_(reads, layout))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support MOEK_WEIGHTS_PANELS: only rows of CPUs read such "
                   "weights; leave config.weight_layout 0, and weights as they come, or set MOEK_WEIGHTS_TILED, and "
                   "repack from these with a plan for the GPU");
    return MOEK_OK;
}

/* Rows for which nobody asked: of other devices, or of an architecture without any for the config. */
static moek_status moek_unasked_refused_(const moek_request_ *o, int arch)
{
    const moek_config *c = o->config;
    const moek_kernel *const demanded = moek_kernel_find(c->kernel);
    int i, own = 0;
    if (demanded && demanded->arch == arch) return MOEK_OK;
    for (i = 0; i < MOEK_BACKENDS_; i++)
        if (moek_backends_[i].arch == arch && moek_backends_[i].number == c->backend) return MOEK_OK;
    if (!moek_arch_unasked_(arch, o->device.arch)) {
        moek_append_(o->why, "kernel does not support current device sm_%d: rows of %s are for", o->device.arch,
                     moek_arch_name_(arch));
        for (i = 0; i < MOEK_DEVICES_; i++)
            if (moek_devices_[i].arch == arch) moek_append_(o->why, " sm_%d", moek_devices_[i].device);
        moek_append_(o->why, ", elsewhere only where config.backend demands them");
        return MOEK_E_ARCH;
    }
    for (i = 0; i < MOEK_KERNELS_; i++)
        own |= moek_table_[i].arch == arch && (moek_table_[i].op == MOEK_OP_UP || moek_table_[i].op == MOEK_OP_DOWN) &&
               moek_table_[i].quant == moek_quant_at_(c, moek_table_[i].op);
    if (moek_arch_adds_(arch) && !own)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support %s: %s has no rows of its own for it, and rows "
                   "of an older architecture serve", moek_quant_name(c->quant), moek_arch_name_(arch));
    return MOEK_OK;
}

/* The predicates of a backend in their order; each says "kernel does not support ..." when it refuses. */
static moek_status moek_backend_refuses_(const moek_request_ *o, int arch, const moek_experts *experts,
                                         const moek_prepare_finalize *pf)
{
    const moek_config *c = o->config;
    char why[256] = "";
    const int table = moek_table_experts_(experts);
    moek_status status;
    int i;
    if (!moek_arch_is_host_(arch) && o->device.ordinal < 0)
        MOEK_FAIL_(o->why, MOEK_E_ARCH, "kernel does not support current device: there is no CUDA device%s",
                   MOEK_HAVE_CUDA_ ? "" : " (compiled without nvcc)");
    if (!moek_arch_is_host_(arch) && arch > o->device.arch)
        MOEK_FAIL_(o->why, MOEK_E_ARCH, "kernel does not support current device sm_%d; it needs sm_%d or newer",
                   o->device.arch, arch);
    if (!moek_arch_is_host_(arch) && (status = moek_unasked_refused_(o, arch)) != MOEK_OK) return status;
    /* "no act_and_mul MLP layer", "activation": every row takes all activations; a user's experts say so in supports */
    for (i = MOEK_OP_UP; table && i <= MOEK_OP_DOWN; i++)
        if ((status = moek_weights_refused_(o, arch, i)) != MOEK_OK) return status;
    if (c->local_experts > c->physical_experts)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support parallel config: config.local_experts is %d, more "
                   "than physical_experts, which is %d (0 stands for experts + shared_slots)", c->local_experts,
                   c->physical_experts);
    if (c->physical_experts < c->experts + c->shared_slots && !c->max_replicas)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support parallel config: config.physical_experts is %d, "
                   "for %d logical experts (experts + shared_slots), and max_replicas is 0: set it, with "
                   "weights.replicas", c->physical_experts, c->experts + c->shared_slots);
    if (!pf->finalize_receive || (!pf->prepare_send && !pf->prepare_receive))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s has no finalize_receive, or neither half of prepare",
                   pf->name);
    if (pf->max_rows < 0 || pf->max_tokens_per_rank < 0)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s has max_rows %d and max_tokens_per_rank %d; "
                   "neither may be negative, 0 is no limit", pf->name, pf->max_rows, pf->max_tokens_per_rank);
    if (!experts->apply) MOEK_FAIL_(o->why, MOEK_E_BACKEND, "experts %s: apply is NULL", experts->name);
    if (experts->weight_and_reduce < MOEK_DELEGATE || experts->weight_and_reduce > MOEK_NAIVE_BATCHED ||
        (experts->weight_and_reduce == MOEK_NAIVE_BATCHED && experts->format != MOEK_BATCHED))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "experts %s: weight_and_reduce %d is none of MOEK_DELEGATE, ..., "
                   "or is not for %s format",
                   experts->name, experts->weight_and_reduce, moek_format_name_(experts->format));
    /* "routing method", "router logits dtype": routing is a step of its own, the same for every backend */
    if (!table && moek_two_formats_(c))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "experts %s: config.down_quant is %s beside %s, and two formats are for "
                   "kernels of the table alone: leave it 0", experts->name, moek_quant_name(c->down_quant),
                   moek_quant_name(c->quant));
    if (experts->supports && !experts->supports(experts, c, why, sizeof why))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "experts %s: kernel does not support %s", experts->name, why);
    if (pf->format != experts->format)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "kernel does not support %s activation format: "
                   "prepare/finalize %s delivers it, experts %s take %s",
                   moek_format_name_(pf->format), pf->name, experts->name, moek_format_name_(experts->format));
    if (pf->supports && !pf->supports(pf, c, why, sizeof why))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s does not support %s", pf->name, why);
    if (pf->cannot_defer && experts->expects_unquantized && moek_quantizes_(moek_format_of(c->quant)))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s cannot defer quantization, "
                   "and experts %s expect unquantized rows", pf->name, experts->name);
    if (pf->max_tokens_per_rank && moek_chunk_(c) > pf->max_tokens_per_rank)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s takes %d tokens a rank, config.max_tokens is %d: "
                   "set chunk_tokens",
                   pf->name, pf->max_tokens_per_rank, c->max_tokens);
    if (pf->prepare_send == moek_local.prepare_send && experts->expects_unquantized && c->router_weight_on_input &&
        moek_quantizes_(moek_format_of(c->quant)))
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "prepare/finalize %s cannot put the router's weight on rows "
                   "that experts %s quantize themselves", pf->name, experts->name);
    return MOEK_OK;
}

/* Is there code for this device, and may it have its shared memory?  (A launcher called with NULL answers that.) */
static moek_status moek_ready_kernels_(const moek_request_ *o, const moek_plan *plan)
{
    const moek_chosen *const h = &plan->chosen;
    const moek_kernel *all[7 + 4 * MOEK_MAX_TILES];
    int i, n = 0;
    all[n++] = h->route; all[n++] = h->map; all[n++] = h->sort; all[n++] = h->quant; all[n++] = h->h_quant;
    all[n++] = h->combine; all[n++] = h->expand;
    for (i = 0; i < h->gemms; i++) { all[n++] = h->up[i]; all[n++] = h->down[i]; }
    for (i = 0; i < h->layers; i++) all[n++] = h->layer[i];
    for (i = 0; i < h->up_downs; i++) all[n++] = h->up_down[i];
    for (i = 0; i < n; i++)
        if (all[i] && all[i]->launch(NULL, NULL) != MOEK_OK) {
            const moek_target_ target = moek_target_of_(all[i], o->device.arch);
            MOEK_FAIL_(o->why, MOEK_E_ARCH, "%s: the binary holds no code for sm_%d%s; "
                       "compile with -gencode arch=compute_%d%s,code=sm_%d%s%s", all[i]->name, target.arch,
                       target.letter, target.arch, target.letter, target.arch, target.letter, target.plain);
        }
    return MOEK_OK;
}

/* Rows for few tokens.  None if another row was demanded for what they do. */
static void moek_choose_layers_(const moek_request_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    plan->chosen.layers = 0;
    plan->chosen.layers_demanded = demanded && demanded->op == MOEK_OP_LAYER;
    if (!plan->chosen.tiles || !moek_local_(plan) || c->batch_invariant || c->router_weight_on_input ||
        (demanded && demanded->op != MOEK_OP_LAYER && demanded->op != MOEK_OP_ROUTE && demanded->op != MOEK_OP_MAP &&
         demanded->op != MOEK_OP_EXPAND))
        return;
    moek_add_kernels_(o, MOEK_OP_LAYER, moek_arch_of_layers_(c, arch, o->device.arch), plan->chosen.layer,
                      &plan->chosen.layers);
    moek_add_kernels_(o, MOEK_OP_LAYER, arch, plan->chosen.layer, &plan->chosen.layers);
}

/* Rows that are both GEMMs.  None if another row was demanded for what they do. */
static void moek_choose_up_downs_(const moek_request_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    const int op = demanded ? demanded->op : MOEK_OP_UP_DOWN;
    plan->chosen.up_downs = 0;
    plan->chosen.up_downs_demanded = demanded && op == MOEK_OP_UP_DOWN;
    if (!plan->chosen.tiles || !moek_local_(plan) || c->batch_invariant || op == MOEK_OP_UP ||
        op == MOEK_OP_DOWN || op == MOEK_OP_LAYER) return;
    moek_add_kernels_(o, MOEK_OP_UP_DOWN, arch, plan->chosen.up_down, &plan->chosen.up_downs);
}

/* config.expand_weights: the kernel that makes e4m3 of weights, and behind the tiles the pair that reads them.  None
 * where no run can have so many rows, or another pair was demanded. */
static moek_status moek_choose_expanded_(const moek_request_ *o, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_kernel *demanded = moek_kernel_find(c->kernel), *up, *down = NULL;
    const int to = moek_format_of(c->quant)->expands;
    plan->chosen.expanded = 0;
    plan->chosen.expand = NULL;
    if (!c->expand_weights || !plan->chosen.tiles || plan->chosen.gemms == MOEK_MAX_TILES) return MOEK_OK;
    if (demanded && (demanded->op == MOEK_OP_UP || demanded->op == MOEK_OP_DOWN)) return MOEK_OK;
    if (plan->rows_per_expert)
        MOEK_FAIL_(o->why, MOEK_E_BACKEND, "config.expand_weights is for MOEK_STANDARD, and prepare/finalize %s "
                   "delivers MOEK_BATCHED: leave it 0", plan->prepare_finalize->name);
    if (moek_facts_of_(plan, plan->rows).mean < moek_expands_from_(plan)) return MOEK_OK;
    plan->chosen.expand = moek_first_(o, MOEK_OP_EXPAND, arch, -1);
    up = moek_tallest_of_(o, to, arch, &down);
    if (!plan->chosen.expand || !up)
        MOEK_FAIL_(o->why, MOEK_E_NO_KERNEL, "config.expand_weights: weights of %s become weights of %s, and no pair "
                   "of rows of %s is compiled that serves hidden %d and inter %d.  Where MOEK_QUANT left them out, "
                   "define MOEK_WANT_QUANT(q) as ((q) == %d || (q) == %d) in its place; or leave expand_weights 0",
                   moek_quant_name(c->quant), moek_quant_name(to), moek_quant_name(to), c->hidden, c->inter, c->quant,
                   to);
    plan->chosen.expanded = plan->chosen.gemms++;
    plan->chosen.up[plan->chosen.expanded] = up;
    plan->chosen.down[plan->chosen.expanded] = down;
    return MOEK_OK;
}

static moek_status moek_choose_kernels_(const moek_request_ *o, int arch, moek_plan *plan)
{
    moek_chosen *const h = &plan->chosen;
    const moek_config *c = o->config;
    const int table = moek_table_experts_(plan->experts);
    int i;
#define MOEK_FIRST_(op, field) if (!(h->field = moek_first_(o, op, arch, -1))) return moek_no_kernel_(o, op, arch)
    MOEK_FIRST_(MOEK_OP_ROUTE, route);
    MOEK_FIRST_(MOEK_OP_MAP, map);
    MOEK_FIRST_(MOEK_OP_SORT, sort);
    MOEK_FIRST_(MOEK_OP_COMBINE, combine);
#undef MOEK_FIRST_
    if (!(h->quant = moek_quant_row_(o, arch, c->quant, c->hidden))) return MOEK_E_NO_KERNEL;
    h->h_quant = h->quant;
    if (moek_two_formats_(c) && moek_quantizes_(moek_format_of(c->down_quant)) &&
        !(h->h_quant = moek_quant_row_(o, arch, c->down_quant, c->inter))) return MOEK_E_NO_KERNEL;
    h->tiles = 0;
    for (i = 0; table && i < MOEK_KERNELS_; i++) {    /* the best row of each tile height, with the best partner */
        const moek_kernel *up = &moek_table_[i];
        char why[160];
        if (up->op == MOEK_OP_UP && moek_demanded_(up, c) && !moek_kernel_refuses_(up, o, arch, why, sizeof why) &&
            moek_partner_(o, up, arch))
            moek_add_tile_(h->up, &h->tiles, up);
    }
    for (i = 0; i < h->tiles; i++) h->down[i] = moek_partner_(o, h->up[i], arch);
    if (table && !h->tiles)
        return moek_no_kernel_(o, moek_first_(o, MOEK_OP_UP, arch, -1) ? MOEK_OP_DOWN : MOEK_OP_UP, arch);
    if (c->batch_invariant && h->tiles > 1) h->tiles = 1;
    h->gemms = h->tiles;
    moek_choose_layers_(o, arch, plan);
    moek_choose_up_downs_(o, arch, plan);
    return moek_choose_expanded_(o, arch, plan);
}

/* Is there a row that finds rows of x by 32 bits? */
static int moek_gathers_(int quant, int arch)
{
    int i, gathers = 0;
    for (i = 0; i < MOEK_KERNELS_; i++)
        if (moek_table_[i].op == MOEK_OP_UP && moek_table_[i].quant == quant &&
            moek_arch_below_(moek_table_[i].arch, arch, 1)) gathers |= moek_table_[i].traits & MOEK_TRAIT_GATHERS;
    return gathers;
}

static moek_status moek_try_backend_(moek_request_ *o, int backend, int arch, moek_plan *plan)
{
    const moek_config *c = o->config;
    const moek_prepare_finalize *pf = c->prepare_finalize ? c->prepare_finalize
                                    : c->format == MOEK_BATCHED ? &moek_batched : &moek_local;
    const int senders = pf->num_dispatchers > 1 ? pf->num_dispatchers : 1, host = moek_arch_is_host_(arch);
    const moek_experts *experts = backend == MOEK_BACKEND_USER ? c->experts_impl
                                : pf->format == MOEK_BATCHED ? &moek_batched_experts : &moek_standard_experts;
    long long rows, per_expert;
    moek_status status;
    if (!experts) MOEK_FAIL_(o->why, MOEK_E_BACKEND, "config.experts_impl is NULL");
    if ((status = moek_backend_refuses_(o, arch, experts, pf)) != MOEK_OK) return status;
    plan->backend = backend;
    plan->prepare_finalize = pf;
    plan->chosen.one_rank = pf == &moek_local || pf == &moek_batched;
    plan->experts = experts;
    plan->device = host ? -1 : o->device.ordinal;
    plan->arch = host ? 0 : o->device.arch;
    plan->chosen.cpu = host ? arch : 0;
    plan->chosen.multiprocessors = host ? 0 : o->device.multiprocessors;
    plan->slots = c->topk + c->shared_slots;
    plan->local_experts = c->local_experts;
    plan->chosen.format = moek_format_of(c->quant);
    plan->chosen.h_format = moek_format_at_(c, MOEK_OP_DOWN);
    plan->chunk = moek_chunk_(c);
    rows = (long long)(pf->max_tokens_per_rank ? pf->max_tokens_per_rank : plan->chunk) * senders;
    if (pf->max_rows && pf->format == MOEK_STANDARD) rows = pf->max_rows;
    per_expert = pf->format != MOEK_BATCHED ? 0 : c->max_rows_per_expert ? c->max_rows_per_expert : rows;
    if ((double)plan->local_experts * (double)per_expert > (double)MOEK_MAX_SLOTS_ ||
        (double)rows * plan->slots > (double)MOEK_MAX_SLOTS_)
        MOEK_FAIL_(o->why, MOEK_E_ARGUMENT, "%d experts x %lld rows, or %lld rows x %d slots, overflow 31 bits: "
                   "set chunk_tokens or max_rows_per_expert",
                   plan->local_experts, per_expert, rows, plan->slots);
    if (!per_expert && moek_gathers_(c->quant, arch) &&
        (double)rows * (double)moek_x_bytes_(moek_format_of(c->quant), (size_t)c->hidden) >= (double)MOEK_GATHERED)
        MOEK_FAIL_(o->why, MOEK_E_ARGUMENT, "%lld rows of x of hidden %d are 64 GiB or more: set chunk_tokens", rows,
                   c->hidden);
    plan->rows = (int)rows;
    plan->rows_per_expert = (int)per_expert;
    if ((status = moek_choose_kernels_(o, arch, plan)) != MOEK_OK) return status;
    if ((status = moek_ready_kernels_(o, plan)) != MOEK_OK) return status;
    moek_size_gemms_(plan);
    moek_choose_tuned_(o, plan);
    moek_compute_bounds_(plan, &o->device);
    plan->workspace_size = moek_layout_(plan, plan->chosen.places);
    if (plan->workspace_size == (size_t)-1)
        MOEK_FAIL_(o->why, MOEK_E_ARGUMENT, "the workspace would have more bytes than size_t can count (%d bits): "
                   "set chunk_tokens or max_rows_per_expert", 8 * (int)sizeof(size_t));
    o->arch = arch;
    return MOEK_OK;
}

/* The same with rows of the architecture of a backend: on the CPU of the best set, or of the one that is demanded. */
static moek_status moek_try_kernels_(moek_request_ *o, int backend, const moek_backend_ *rows, moek_plan *plan)
{
    const char *const lacks = moek_lacks_of_(o, o->cpu);
    if (rows->number == MOEK_BACKEND_CPU && lacks)
        MOEK_FAIL_(o->why, MOEK_E_ARCH, "config.cpu asks for %s, and %s; leave it 0, and the plan takes the best there "
                   "is", moek_arch_name_(o->cpu), lacks);
    return moek_try_backend_(o, backend, rows->number == MOEK_BACKEND_CPU ? o->cpu : rows->arch, plan);
}

/* A backend with its rows.  A user's experts take the rows of the first architecture that serves, if not excluded. */
static moek_status moek_try_(moek_request_ *o, const moek_backend_ *b, moek_plan *plan)
{
    moek_status status = MOEK_E_BACKEND;
    int i;
    if (b->number != MOEK_BACKEND_USER) return moek_try_kernels_(o, b->number, b, plan);
    for (i = 0; i < MOEK_BACKENDS_ && status != MOEK_OK; i++) {
        const moek_backend_ *rows = &moek_backends_[i];
        if (rows->number == MOEK_BACKEND_USER || o->config->exclude & 1u << rows->number) continue;
        if (!moek_arch_is_host_(rows->arch) && o->device.ordinal < 0) continue;
        moek_clear_(o->why);
        status = moek_try_kernels_(o, b->number, rows, plan);
    }
    if (!o->why->length)
        moek_append_(o->why, "%s",
                     o->config->experts_impl ? "its other steps need the rows of a backend, and config.exclude leaves "
                     "none"
                                             : "config.experts_impl is NULL");
    return status;
}

/* The demanded kernel must be in the plan, not just in the table. */
static int moek_plan_has_(const moek_plan *p, const moek_kernel *k)
{
    const moek_chosen *const h = &p->chosen;
    int i, has = k == h->route || k == h->map || k == h->sort || k == h->quant || k == h->h_quant ||
                 k == h->combine || k == h->expand;
    for (i = 0; i < h->gemms; i++) has |= k == h->up[i] || k == h->down[i];
    for (i = 0; i < h->layers; i++) has |= k == h->layer[i];
    for (i = 0; i < h->up_downs; i++) has |= k == h->up_down[i];
    return has;
}

/* Rows for several steps in one launch: what they cannot do. */
static int moek_several_steps_serve_(const moek_plan *p, int op)
{
    return moek_local_(p) && !p->config.batch_invariant &&
           !(op == MOEK_OP_LAYER && p->config.router_weight_on_input);
}

/* Why a row that fits the config is not in the plan. */
static const char *moek_left_out_(const moek_plan *p, const moek_kernel *k)
{
    const int gemm = k->op == MOEK_OP_UP || k->op == MOEK_OP_DOWN;
    const int several = k->op == MOEK_OP_LAYER || k->op == MOEK_OP_UP_DOWN;
    const int other = k->op == MOEK_OP_UP ? MOEK_OP_DOWN : MOEK_OP_UP;
    const int free = moek_arch_is_host_(k->arch) && moek_two_formats_(&p->config);       /* moek_partner_ */
    int i, partners = 0;
    if (k->op == MOEK_OP_REPACK) return "it is in no plan: moek_repack_up and moek_repack_down take it";
    if (k->op == MOEK_OP_EXPAND) return "config.expand_weights asks for it";
    if ((gemm || several) && !p->chosen.tiles) return "experts are config.experts_impl";
    if (several && !moek_several_steps_serve_(p, k->op))
        return "it is for prepare/finalize local, without batch_invariant; a layer kernel, without "
               "router_weight_on_input";
    for (i = 0; gemm && i < MOEK_KERNELS_; i++)
        partners |= moek_table_[i].op == other && (moek_table_[i].m == k->m || free) &&
                    moek_table_[i].arch == k->arch && moek_table_[i].quant == moek_quant_at_(&p->config, other);
    if (gemm && !partners) return "no row of the other GEMM has its tile";
    return gemm && p->config.batch_invariant ? "batch_invariant takes one tile for all sizes" : "another was before it";
}

/* Has the plan the row that was demanded? */
static moek_status moek_check_demanded_(const moek_request_ *o, const moek_plan *plan)
{
    const moek_kernel *const demanded = moek_kernel_find(o->config->kernel);
    char reason[160];
    const char *no;
    if (!demanded || moek_plan_has_(plan, demanded)) return MOEK_OK;
    no = moek_kernel_refuses_(demanded, o, o->arch, reason, sizeof reason);
    MOEK_FAIL_(o->why, MOEK_E_NO_KERNEL, "config.kernel %s cannot serve: %s", o->config->kernel,
               no ? no : moek_left_out_(plan, demanded));
}

/* Which set of instructions a plan of the CPU takes, and why no better one. */
static void moek_append_sets_(const moek_request_ *o, moek_text_ *t)
{
    int i;
    moek_append_(t, "  kernels of %s", moek_arch_name_(o->cpu));
    for (i = 0; moek_sets_[i] != o->cpu; i++) {
        if (!moek_set_compiled_(moek_sets_[i])) continue;
        moek_append_(t, "; not of %s: %s", moek_arch_name_(moek_sets_[i]), o->lacks[i] ? o->lacks[i] : "config.cpu");
    }
    moek_append_(t, "\n");
}

/* Walk the backends: the log gets a line for each, `why` the reasons if none serves. */
static moek_status moek_walk_backends_(moek_request_ *o, moek_plan *plan, moek_text_ *why, moek_text_ *log)
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
            moek_append_(log, "%s: %s\n", b->name, asked ? "not asked, a better one was taken" : "not demanded");
            continue;
        }
        o->why = &t;
        if (!c->backend && c->exclude & 1u << b->number) moek_append_(&t, "excluded by config.exclude");
        else if ((status = moek_try_(o, b, plan)) == MOEK_OK) status = moek_check_demanded_(o, plan);
        if (status != MOEK_OK) memset(&plan->chosen, 0, sizeof plan->chosen);   /* nothing of it stays */
        moek_append_(log, "%s: %s\n", b->name, status == MOEK_OK ? "taken" : reason);
        if (status == MOEK_OK && b->number == MOEK_BACKEND_CPU) moek_append_sets_(o, log);
        if (status == MOEK_OK || (b->number == MOEK_BACKEND_USER && !c->experts_impl && !c->backend)) continue;
        moek_append_(why, "%s%s: %s", why->length ? "\n" : "", b->name, reason);
        if (first == MOEK_E_BACKEND || first == MOEK_E_ARCH || status == MOEK_E_NO_KERNEL)
            first = status;                            /* the one the user can mend */
    }
    if (status == MOEK_OK) moek_clear_(why);
    return status == MOEK_OK ? MOEK_OK : first;
}

/* All of moek_plan_init, and of what moek_explain says.  plan: zeros; o: what rows were asked with. */
static moek_status moek_choose_(const moek_config *config, moek_plan *plan, moek_request_ *o, moek_text_ *why,
                                moek_text_ *log)
{
    moek_status status;
    moek_config *c = &plan->config;
    memset(o, 0, sizeof *o);
    if (!config) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config is NULL");
    *c = *config;
    if ((status = moek_check_sizes_(c, why)) != MOEK_OK || (status = moek_check_kinds_(c, why)) != MOEK_OK ||
        (status = moek_check_act_(c, why)) != MOEK_OK || (status = moek_check_block_(c, why)) != MOEK_OK ||
        (status = moek_check_granule_(c, why)) != MOEK_OK ||
        (status = moek_check_weights_(c, why)) != MOEK_OK ||
        (status = moek_check_expands_(c, why)) != MOEK_OK || (status = moek_check_cpu_(c, why)) != MOEK_OK ||
        (status = moek_check_routing_(c, why)) != MOEK_OK || (status = moek_check_tuned_(c, why)) != MOEK_OK)
        return status;
    moek_fill_defaults_(c);
    if (c->experts_impl && !c->backend && !(c->exclude & 1u << MOEK_BACKEND_USER))
        c->backend = MOEK_BACKEND_USER;               /* given is meant: no silent fallback */
    if (c->kernel && !moek_kernel_find(c->kernel))
        MOEK_FAIL_(why, MOEK_E_NO_KERNEL, "config.kernel %s is not compiled in; "
                   "./moek gen list shows what there is, "
                   "kernels.toml what to add", c->kernel);
    o->config = c;
    o->device = moek_device_query_();
    moek_ask_cpu_(o);
    status = moek_walk_backends_(o, plan, why, log);
    if (status != MOEK_OK) plan->workspace_size = 0, plan->backend = 0;
    return status;
}

void moek_version_text_(char *why, int version)
{
    moek_text_ t = moek_text_in_(why, 256);            /* any moek.h has as much room */
    moek_append_(&t, MOEK_VERSION_TEXT_, version, MOEK_VERSION);
}

moek_status moek_plan_init_(moek_plan *plan, const moek_config *config, size_t config_size, size_t plan_size,
                            int version)
{
    moek_text_ why, log = moek_text_in_(NULL, 0);
    moek_request_ o;
    moek_status status;
    if (!plan) return MOEK_E_ARGUMENT;
    if (plan_size != sizeof *plan) return MOEK_E_VERSION;                  /* its why may lie elsewhere: do not write */
    memset(plan, 0, sizeof *plan);
    why = moek_text_in_(plan->why, sizeof plan->why);
    if (version != MOEK_VERSION || config_size != sizeof *config)
        MOEK_FAIL_(&why, MOEK_E_VERSION, MOEK_VERSION_TEXT_, version, MOEK_VERSION);
    status = moek_choose_(config, plan, &o, &why, &log);
    plan->config.tuned = NULL;                        /* the caller may let go of it */
    return status;
}

size_t moek_workspace_size(const moek_plan *plan) { return plan ? plan->workspace_size : 0; }
size_t moek_state_size(void) { return sizeof(moek_layer_state); }
#endif
