/* moek/plan/alignment.h -- what each address in weights and args must be a multiple of: what kernels load there at
 * once, which may be more than an element.  This is said here alone.  moek_plan_bind and moek_run check by it,
 * moek_alignment tells a caller, and tests/api/test_api.c compares docs/formats.md with it. */
#ifndef MOEK_ALIGNMENT_H
#define MOEK_ALIGNMENT_H
#include <string.h>
#include "arch.h"
#include "check.h"

/* The config decides. */
enum { MOEK_BY_SCALES_ = -1, MOEK_BY_ZEROS_ = -2, MOEK_BY_LOGITS_ = -3, MOEK_BY_WEIGHTS_ = -4 };
#define MOEK_EACH_WEIGHTS_ADDRESS_(X) \
    X(w_up, MOEK_BY_WEIGHTS_) X(w_down, MOEK_BY_WEIGHTS_) X(w_gate, MOEK_BY_WEIGHTS_) \
    X(w_up_bias, 16) X(w_down_bias, 16) X(w_gate_bias, 16) \
    X(w_up_scale, MOEK_BY_SCALES_) X(w_down_scale, MOEK_BY_SCALES_) X(w_gate_scale, MOEK_BY_SCALES_) \
    X(w_up_zero, MOEK_BY_ZEROS_) X(w_down_zero, MOEK_BY_ZEROS_) X(w_gate_zero, MOEK_BY_ZEROS_) \
    X(w_up_global_scale, 4) X(w_down_global_scale, 4) X(w_gate_global_scale, 4) X(x_scale, 4) X(h_scale, 4) \
    X(router_bias, 4) X(router_expert_scale, 4) X(router_table, 4) X(replicas, 4) X(replica_count, 4) \
    X(expert_map, 4) X(expert_load, 8)
/* Of args, arrays of the workspace come first: a run checks them by themselves. */
#define MOEK_EACH_ARGS_ADDRESS_(X) \
    X(workspace, 256) X(state, 256) X(x, 16) X(y, 16) X(shared_y, 16) X(router_logits, MOEK_BY_LOGITS_) \
    X(topk_ids, 4) X(topk_ids64, 8) X(topk_weights, 4) X(token_ids, 4) X(shared_weights, 4) X(is_padding, 1)

typedef struct moek_address_ { const char *name; size_t at; int bytes; } moek_address_;
static const moek_address_ moek_weights_addresses_[] = {
#define MOEK_ADDRESS_(field, bytes) { #field, offsetof(moek_weights, field), bytes },
    MOEK_EACH_WEIGHTS_ADDRESS_(MOEK_ADDRESS_)
#undef MOEK_ADDRESS_
};
static const moek_address_ moek_args_addresses_[] = {
#define MOEK_ADDRESS_(field, bytes) { #field, offsetof(moek_args, field), bytes },
    MOEK_EACH_ARGS_ADDRESS_(MOEK_ADDRESS_)
#undef MOEK_ADDRESS_
};
typedef struct moek_addresses_ { const char *of; const moek_address_ *list; int n; } moek_addresses_;
static const moek_addresses_ moek_in_weights_ = {
    "weights", moek_weights_addresses_, (int)(sizeof moek_weights_addresses_ / sizeof *moek_weights_addresses_)
};
static const moek_addresses_ moek_in_args_ = {
    "args", moek_args_addresses_, (int)(sizeof moek_args_addresses_ / sizeof *moek_args_addresses_)
};

static size_t moek_logit_bytes_(int dtype) { return dtype == MOEK_DTYPE_F32 ? 4 : 2; }

/* Of tiled weights, bulk copies bring scales and zero points of blocks, 16 bytes at a time.  Of weights as they come, a
 * kernel of a GPU has one load for all scales of 32 columns of a row. */
static int moek_scale_alignment_(const moek_plan *plan, int op, int zeros)
{
    const moek_config *const c = &plan->config;
    const moek_format *const f = moek_format_at_(c, op);
    const moek_scale_shape of = moek_weight_scale(f, c->block);
    const int scale = of.type && !zeros ? moek_scale_bits_[of.type] / 8 : 1;
    if (moek_layout_at_(c, op) == MOEK_WEIGHTS_TILED && moek_scales_tiled_(f, c->block)) return 16;
    if (moek_arch_is_host_(plan->arch) || zeros || of.columns < 1 || of.columns >= 32) return scale;
    return scale * 32 / of.columns;
}
/* Kernels of a CPU read blocks of a file by the byte: its tensors, and their experts, begin where they may.  On a GPU
 * rows do, but copies of 16 bytes begin at multiples of that. */
static int moek_weight_alignment_(const moek_plan *plan, int op)
{
    return moek_arch_is_host_(plan->arch) && moek_layout_at_(&plan->config, op) == MOEK_WEIGHTS_BLOCKS ? 1 : 16;
}
static int moek_alignment_of_(const moek_plan *plan, const moek_address_ *a)
{
    int op;
    if (a->bytes > 0) return a->bytes;                 /* (a run asks of each address) */
    if (a->bytes == MOEK_BY_LOGITS_) return (int)moek_logit_bytes_(plan->config.logits_dtype);
    op = strncmp(a->name, "w_down", 6) ? MOEK_OP_UP : MOEK_OP_DOWN;
    if (a->bytes == MOEK_BY_WEIGHTS_) return moek_weight_alignment_(plan, op);
    return moek_scale_alignment_(plan, op, a->bytes == MOEK_BY_ZEROS_);
}

/* Are addresses `first` to `end` - 1 where they must be?  0, and a sentence about the first that is not.  fields: the
 * weights, or args. */
static int moek_aligned_(const moek_plan *plan, const moek_addresses_ *all, const void *fields, int first, int end,
                         moek_text_ *t)
{
    int i;
    for (i = first; i < end; i++) {
        const moek_address_ *const a = &all->list[i];
        const int bytes = moek_alignment_of_(plan, a);
        const void *address;
        memcpy(&address, (const char *)fields + a->at, sizeof address);
        if (((uintptr_t)address & ((uintptr_t)bytes - 1)) == 0) continue;
        moek_append_(t, "%s.%s is not aligned to %d bytes, as kernels of this plan need it: the address is %d beyond a "
                     "multiple of that.  Allocate the array at one, or copy it there (moek_alignment has the number)",
                     all->of, a->name, bytes, (int)((uintptr_t)address % (uintptr_t)bytes));
        return 0;
    }
    return 1;
}

size_t moek_alignment(const moek_plan *plan, const char *field)
{
    const moek_addresses_ *const all = field && !strncmp(field, "args.", 5) ? &moek_in_args_ : &moek_in_weights_;
    const size_t length = strlen(all->of);
    int i;
    if (!plan || !plan->backend || !field || strncmp(field, all->of, length) || field[length] != '.') return 0;
    for (i = 0; i < all->n; i++)
        if (!strcmp(field + length + 1, all->list[i].name)) return (size_t)moek_alignment_of_(plan, &all->list[i]);
    return 0;
}
#endif
