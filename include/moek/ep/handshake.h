/* moek/ep/handshake.h -- the configuration that ranks compare when a group opens.
 *
 * One list drives everything: the values that are sent, the comparison, and the field names in error sentences.
 * The layer's fields must also match in every plan on the group.  Each rank makes its plans later and alone, so that
 * check is local (moek_ep_supports_).  With mixed_layers it covers only the fields that the exchange depends on.
 * Configs are compared with their defaults filled in.  Values that mean the same are normalized to one first
 * (moek_ep_level_).
 *
 * Each value is a 64-bit word.  Words are grouped in lines (layout.h); a line starts with the mark of its rank.
 * Line 0 keeps its offset in all versions and begins with the version, so that different versions detect each other.
 * Line 0 also holds the number of ranks, because the offsets of all later lines depend on that number. */
#ifndef MOEK_EP_HANDSHAKE_H
#define MOEK_EP_HANDSHAKE_H
#include <stdio.h>
#include <string.h>
#include "../plan/check.h"
#include "api.h"

enum { MOEK_EP_WIRE_VERSION_ = 8 };                    /* of the protocol between ranks */

/* X(field of moek_config, how, all).  how: its type, INT_ or FLOAT_.  all: 1 if the exchange itself depends on the
 * field; then all layers of a group must agree on it, even with mixed_layers.
 * Left out on purpose: backend, exclude, kernel, tuned, weight_layout, expand_weights (how one rank computes);
 * local_experts, max_replicas (a rank's own); max_tokens, chunk_tokens, format (their effect is compared below as
 * max_tokens, chunks and kind). */
#define MOEK_EACH_EP_LAYER_FIELD_(X) \
    X(hidden, INT_, 1) X(inter, INT_, 0) X(experts, INT_, 1) X(topk, INT_, 1) X(shared_slots, INT_, 1) \
    X(quant, INT_, 1) X(act, INT_, 0) X(dtype, INT_, 1) X(alpha, FLOAT_, 0) X(beta, FLOAT_, 0) X(limit, FLOAT_, 0) \
    X(up_layout, INT_, 0) X(ue8m0, INT_, 1) X(router_weight_on_input, INT_, 1) X(routing, INT_, 0) \
    X(groups, INT_, 0) X(topk_groups, INT_, 0) X(scale, FLOAT_, 0) X(logits_dtype, INT_, 0) \
    X(shared_weight, FLOAT_, 0) X(physical_experts, INT_, 1) X(max_rows_per_expert, INT_, 1) \
    X(batch_invariant, INT_, 0) X(router_eps, FLOAT_, 0) X(group_score, INT_, 0) X(up_scales, INT_, 0) \
    X(inter_offset, INT_, 0) X(down_quant, INT_, 0)

/* X(name, value): fields of the group, before and after the layer's fields.  A field that other defaults derive from
 * comes first, so that the error names the field that the user set.  ep: settled, with its layout; c: its config.
 * MIDDLE: X(name, how, value), where a value may be a float. */
#define MOEK_EACH_EP_FIRST_FIELD_(X) \
    X("the version of moek_ep.h", MOEK_EP_WIRE_VERSION_) X("ranks", c->ranks) X("transport", c->transport) \
    X("kind", c->kind) X("combine", c->combine) X("max_tokens", c->max_tokens)
#define MOEK_EACH_EP_MIDDLE_FIELD_(X) X("x_scale", FLOAT_, c->x_scale)
#define MOEK_EACH_EP_LAST_FIELD_(X) \
    X("chunks of a run (max_tokens by chunk_tokens)", ep->chunks) X("max_rows", c->max_rows) \
    X("handles", c->handles) X("mixed_layers", c->mixed_layers != 0) \
    X("move_gathers", c->move && c->move_gathers) \
    X("the owners of experts (a number for all)", ep->owners) \
    X("bytes of a row and its scales", ep->row_bytes + ep->scale_bytes) X("bytes of a window", ep->layout.size)

#define MOEK_ONE_(...) +1
enum {
    MOEK_EP_FIRST_FIELDS_ = 0 MOEK_EACH_EP_FIRST_FIELD_(MOEK_ONE_),
    MOEK_EP_LAYER_FIELDS_ = 0 MOEK_EACH_EP_LAYER_FIELD_(MOEK_ONE_),
    MOEK_EP_HANDSHAKE_ = MOEK_EP_FIRST_FIELDS_ + MOEK_EP_LAYER_FIELDS_ MOEK_EACH_EP_MIDDLE_FIELD_(MOEK_ONE_)
                     MOEK_EACH_EP_LAST_FIELD_(MOEK_ONE_)
};
#undef MOEK_ONE_

/* Bytes of a line; words of a line after its mark; lines of a rank. */
enum {
    MOEK_EP_LINE_ = 128, MOEK_EP_HANDSHAKE_WORDS_ = MOEK_EP_LINE_ / 8 - 1,
    MOEK_EP_HANDSHAKE_LINES_ = (MOEK_EP_HANDSHAKE_ + MOEK_EP_HANDSHAKE_WORDS_ - 1) / MOEK_EP_HANDSHAKE_WORDS_
};

enum { MOEK_EP_INT_, MOEK_EP_FLOAT_ };
typedef struct moek_ep_compared_ { const char *name; int how, all; } moek_ep_compared_;
static moek_ep_compared_ moek_ep_compared_of_(int i)
{
    static const moek_ep_compared_ all[] = {
#define MOEK_NAME_(name, value) { name, MOEK_EP_INT_, 1 },
#define MOEK_FIELD_(field, how, all) { #field, MOEK_EP_##how, all },
#define MOEK_TYPED_(name, how, value) { name, MOEK_EP_##how, 1 },
        MOEK_EACH_EP_FIRST_FIELD_(MOEK_NAME_)
        MOEK_EACH_EP_LAYER_FIELD_(MOEK_FIELD_)
        MOEK_EACH_EP_MIDDLE_FIELD_(MOEK_TYPED_)
        MOEK_EACH_EP_LAST_FIELD_(MOEK_NAME_)
#undef MOEK_NAME_
#undef MOEK_FIELD_
#undef MOEK_TYPED_
    };
    return all[i];
}

/* to: [MOEK_EP_LAYER_FIELDS_], written. */
#define MOEK_EP_WORD_INT_(value) (uint64_t)(value)
#define MOEK_EP_WORD_FLOAT_(value) moek_bits_((value) + 0.0f)          /* -0 becomes 0 */
static void moek_ep_layer_words_(const moek_config *c, uint64_t *to)
{
    int i = 0;
#define MOEK_VALUE_(field, how, all) to[i++] = MOEK_EP_WORD_##how(c->field);
    MOEK_EACH_EP_LAYER_FIELD_(MOEK_VALUE_)
#undef MOEK_VALUE_
}
/* to: [MOEK_EP_HANDSHAKE_], written. */
static void moek_ep_handshake_(const moek_ep *ep, uint64_t *to)
{
    const moek_ep_config *c = &ep->config;
    int i = 0;
#define MOEK_VALUE_(name, value) to[i++] = (uint64_t)(value);
    MOEK_EACH_EP_FIRST_FIELD_(MOEK_VALUE_)
    moek_ep_layer_words_(&ep->layer, to + i);
    i += MOEK_EP_LAYER_FIELDS_;
#define MOEK_TYPED_(name, how, value) to[i++] = MOEK_EP_WORD_##how(value);
    MOEK_EACH_EP_MIDDLE_FIELD_(MOEK_TYPED_)
    MOEK_EACH_EP_LAST_FIELD_(MOEK_VALUE_)
#undef MOEK_VALUE_
#undef MOEK_TYPED_
}
#undef MOEK_EP_WORD_INT_
#undef MOEK_EP_WORD_FLOAT_

/* Two different values of field i, printed so that they look different. */
typedef struct moek_ep_two_ { char a[32], b[32]; } moek_ep_two_;
static moek_ep_two_ moek_ep_two_of_(int i, uint64_t a, uint64_t b)
{
    moek_ep_two_ two;
    int digits;
    if (moek_ep_compared_of_(i).how == MOEK_EP_INT_) {
        snprintf(two.a, sizeof two.a, "%lld", (long long)a);
        snprintf(two.b, sizeof two.b, "%lld", (long long)b);
        return two;
    }
    for (digits = 6; digits <= 9; digits += 3) {       /* 9 digits distinguish all floats */
        snprintf(two.a, sizeof two.a, "%.*g", digits, (double)moek_float_((uint32_t)a));
        snprintf(two.b, sizeof two.b, "%.*g", digits, (double)moek_float_((uint32_t)b));
        if (strcmp(two.a, two.b)) break;
    }
    return two;
}

/* Normalizes a config whose defaults are filled in: settings with the same meaning get the same value.  (Where the
 * method's own group score is MAX, the effective score depends on weights.router_bias, so DEFAULT stays as it is.) */
static void moek_ep_level_(const moek_ep *ep, moek_config *c)
{
    const int few = ep->config.kind == MOEK_EP_LOW_LATENCY;
    if (c->groups < 2) c->groups = c->topk_groups = 0;
    if (!c->groups) c->group_score = MOEK_GROUP_SCORE_DEFAULT;
    else if (!c->group_score && moek_method_of_(c->routing)->group_score == MOEK_GROUP_SCORE_TOP2)
        c->group_score = MOEK_GROUP_SCORE_TOP2;
    if (!few) c->max_rows_per_expert = 0;
    else if (!c->max_rows_per_expert) c->max_rows_per_expert = ep->config.ranks * ep->config.max_tokens;
    c->ue8m0 = c->ue8m0 != 0;
    c->router_weight_on_input = c->router_weight_on_input != 0;
    c->batch_invariant = c->batch_invariant != 0;
}

/* The number of chunks of a run. */
static int moek_ep_chunks_(const moek_config *c) { return (c->max_tokens - 1) / moek_chunk_(c) + 1; }
#endif
