/* moek/plan/fields.h -- the fields of each public struct, in the order of its declaration: for moek_offset, and for the
 * generator, which makes the initializers of models from them.  codegen/test_moegen.py compares them with moek.h. */
#ifndef MOEK_FIELDS_H
#define MOEK_FIELDS_H
#include <string.h>
#include "../stages.h"

#define MOEK_EACH_CONFIG_FIELD_(X) \
    X(hidden) X(inter) X(experts) X(topk) X(quant) X(act) X(max_tokens) X(dtype) X(alpha) X(beta) X(limit) \
    X(up_layout) X(ue8m0) X(router_weight_on_input) X(routing) X(groups) X(topk_groups) X(scale) X(logits_dtype) \
    X(shared_slots) X(shared_weight) X(local_experts) X(physical_experts) X(max_replicas) X(chunk_tokens) \
    X(format) X(max_rows_per_expert) X(backend) X(exclude) X(batch_invariant) X(kernel) X(prepare_finalize) \
    X(experts_impl) X(tuned) X(weight_layout) X(router_eps) X(group_score) X(up_scales) X(inter_offset) \
    X(block) X(expand_weights) X(cpu) X(parallel) X(down_quant)
#define MOEK_EACH_WEIGHTS_FIELD_(X) \
    X(w_up) X(w_down) X(w_up_scale) X(w_down_scale) X(w_up_bias) X(w_down_bias) X(x_scale) X(h_scale) \
    X(router_bias) X(router_expert_scale) X(router_table) X(replicas) X(replica_count) X(expert_map) \
    X(expert_load) X(w_gate) X(w_gate_scale) X(w_gate_bias) X(router_table_rows) \
    X(w_up_global_scale) X(w_down_global_scale) X(w_gate_global_scale) X(w_up_zero) X(w_down_zero) X(w_gate_zero)
#define MOEK_EACH_ARGS_FIELD_(X) \
    X(tokens) X(x) X(router_logits) X(topk_ids) X(topk_weights) X(y) X(workspace) X(workspace_size) X(token_ids) \
    X(is_padding) X(shared) X(shared_context) X(shared_y) X(handle) X(why) X(why_size) X(state) X(topk_ids64) \
    X(shared_weights) X(x_stride) X(y_stride) X(shared_y_stride) X(router_logits_stride) \
    X(parallel)
#define MOEK_EACH_KERNEL_FIELD_(X) \
    X(name) X(op) X(quant) X(hidden) X(granule) X(m) X(arch) X(threads) X(shared_bytes) X(launch) X(row) X(block) \
    X(reads) X(traits) X(scratch) X(flags) X(max_tokens) X(ring) X(pages) X(down_quant)
#define MOEK_EACH_PLAN_FIELD_(X) \
    X(config) X(weights) X(bound) X(backend) X(device) X(arch) X(slots) X(local_experts) X(chunk) X(rows) \
    X(rows_per_expert) X(prepare_finalize) X(experts) X(workspace_size) X(why) X(note) X(chosen)
#define MOEK_EACH_SELECTION_FIELD_(X) X(layer) X(up_down) X(up) X(down) X(details)
#define MOEK_EACH_STEP_FIELD_(X) \
    X(plan) X(args) X(first) X(tokens) X(topk_ids) X(topk_weights) X(ids) X(a) X(a_scale) X(rows) X(expert_ids) \
    X(expert_weights) X(expert_tokens) X(out) X(straight) X(prepare_workspace) X(experts_workspace) X(routed) \
    X(a_stride) X(selection)
#define MOEK_EACH_PREPARE_FINALIZE_FIELD_(X) \
    X(name) X(format) X(output_is_reduced) X(num_dispatchers) X(max_tokens_per_rank) X(cannot_defer) X(context) \
    X(supports) X(workspace) X(prepare_send) X(prepare_receive) X(finalize_send) X(finalize_receive) \
    X(collective) X(max_rows) X(check)
#define MOEK_EACH_EXPERTS_FIELD_(X) \
    X(name) X(format) X(weight_and_reduce) X(expects_unquantized) X(context) X(supports) X(workspace) X(apply)
#define MOEK_EACH_QUANT_ARGS_FIELD_(X) \
    X(rows) X(cols) X(source_div) X(dtype) X(x) X(row_weight) X(static_scale) X(ue8m0) X(scale_layout) \
    X(scale_stride) X(target) X(row_limit) X(counts) X(rows_per_expert) X(partial) X(q) X(scale) X(zero) \
    X(zeros) X(early) X(max_blocks) X(x_stride) X(group_offset)

typedef struct moek_field_ { const char *of, *name; size_t offset; } moek_field_;            /* no name: its size */
static const moek_field_ moek_fields_[] = {
#define MOEK_SIZE_(type) { #type, "", sizeof(moek_##type) },
#define MOEK_FIELD_(field) { "config", #field, offsetof(moek_config, field) },
    MOEK_SIZE_(config) MOEK_EACH_CONFIG_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "weights", #field, offsetof(moek_weights, field) },
    MOEK_SIZE_(weights) MOEK_EACH_WEIGHTS_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "args", #field, offsetof(moek_args, field) },
    MOEK_SIZE_(args) MOEK_EACH_ARGS_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "kernel", #field, offsetof(moek_kernel, field) },
    MOEK_SIZE_(kernel) MOEK_EACH_KERNEL_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "plan", #field, offsetof(moek_plan, field) },
    MOEK_SIZE_(plan) MOEK_EACH_PLAN_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "selection", #field, offsetof(moek_selection, field) },
    MOEK_SIZE_(selection) MOEK_EACH_SELECTION_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "step", #field, offsetof(moek_step, field) },
    MOEK_SIZE_(step) MOEK_EACH_STEP_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "prepare_finalize", #field, offsetof(moek_prepare_finalize, field) },
    MOEK_SIZE_(prepare_finalize) MOEK_EACH_PREPARE_FINALIZE_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "experts", #field, offsetof(moek_experts, field) },
    MOEK_SIZE_(experts) MOEK_EACH_EXPERTS_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#define MOEK_FIELD_(field) { "quant_args", #field, offsetof(moek_quant_args, field) },
    MOEK_SIZE_(quant_args) MOEK_EACH_QUANT_ARGS_FIELD_(MOEK_FIELD_)
#undef MOEK_FIELD_
#undef MOEK_SIZE_
};

size_t moek_config_size(void) { return sizeof(moek_config); }
size_t moek_plan_size(void) { return sizeof(moek_plan); }

size_t moek_offset(const char *field)
{
    const size_t n = sizeof moek_fields_ / sizeof moek_fields_[0], length = field ? strcspn(field, ".") : 0;
    size_t i;
    for (i = 0; field && i < n; i++) {
        const moek_field_ *f = &moek_fields_[i];
        if (strncmp(f->of, field, length) || f->of[length]) continue;
        if (strcmp(f->name, field[length] ? field + length + 1 : "")) continue;
        if (field[length] && !f->name[0]) continue;   /* "args.": no field */
        return f->offset;
    }
    return (size_t)-1;
}
#endif
