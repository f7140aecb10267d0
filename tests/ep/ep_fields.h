/* ep_fields.h -- what ranks of a group compare when it opens: a change of each field, made on one rank of three, and
 * what all of them must then say. */
#ifndef EP_FIELDS_H
#define EP_FIELDS_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../check.h"
#include "../oracle/formats.h"
#include "../mem.h"

enum { EP_FIELDS_RANKS = 3, EP_FIELDS_ODD = 2 };       /* ODD: the rank that was given something else */

/* Layers that all ranks are given before the change. */
enum { EP_PLAIN, EP_OAI, EP_FP8, EP_GROUPS, EP_SHARED, EP_TOP1, EP_FEW, EP_APART, EP_STATIC, EP_CHUNKS };

/* X(name, layer, plan, change): plan: nor may a plan have it that is made when all have opened. */
#define EP_EACH_FIELD(X) \
    X("ranks", EP_PLAIN, 0, g->ranks = 4) \
    X("hidden", EP_PLAIN, 1, c->hidden = 144) \
    X("inter", EP_PLAIN, 1, c->inter = 32) \
    X("experts", EP_PLAIN, 1, c->experts = 11) \
    X("topk", EP_PLAIN, 1, c->topk = 2) \
    X("topk", EP_SHARED, 1, (c->topk = 4, c->shared_slots = 1))                 /* the same sum */ \
    X("shared_slots", EP_SHARED, 1, c->shared_slots = 1) \
    X("quant", EP_PLAIN, 1, c->quant = format_of_t(MOEK_DTYPE_FP16)) \
    X("down_quant", EP_PLAIN, 1, c->down_quant = FORMAT_BLOCKED) \
    X("act", EP_PLAIN, 1, c->act = MOEK_GELU) \
    X("dtype", EP_FP8, 1, c->dtype = MOEK_DTYPE_FP16) \
    X("alpha", EP_OAI, 1, c->alpha = 1.5f) \
    X("beta", EP_OAI, 1, c->beta = 2) \
    X("limit", EP_PLAIN, 1, c->limit = 3) \
    X("limit", EP_OAI, 1, c->limit = 3) \
    X("up_layout", EP_PLAIN, 1, c->up_layout = MOEK_UP_INTERLEAVED) \
    X("ue8m0", EP_FP8, 1, c->ue8m0 = 1) \
    X("router_weight_on_input", EP_TOP1, 1, c->router_weight_on_input = 1) \
    X("routing", EP_PLAIN, 1, c->routing = MOEK_ROUTE_SOFTMAX_RENORM) \
    X("groups", EP_GROUPS, 1, c->groups = 2) \
    X("topk_groups", EP_GROUPS, 1, c->topk_groups = 3) \
    X("scale", EP_PLAIN, 1, c->scale = 2.5f) \
    X("logits_dtype", EP_PLAIN, 1, c->logits_dtype = MOEK_DTYPE_BF16) \
    X("shared_weight", EP_SHARED, 1, c->shared_weight = 0.5f) \
    X("physical_experts", EP_PLAIN, 1, (c->physical_experts = 15, c->max_replicas = 2)) \
    X("max_rows_per_expert", EP_FEW, 1, c->max_rows_per_expert = 4) \
    X("batch_invariant", EP_PLAIN, 1, c->batch_invariant = 1) \
    X("router_eps", EP_GROUPS, 1, c->router_eps = 1e-6f) \
    X("group_score", EP_GROUPS, 1, c->group_score = MOEK_GROUP_SCORE_MAX) \
    X("up_scales", EP_FP8, 1, c->up_scales = MOEK_UP_SCALES_SEPARATE) \
    X("inter_offset", EP_APART, 1, c->inter_offset = 64) \
    X("kind", EP_PLAIN, 0, g->kind = MOEK_EP_ALLGATHER) \
    X("kind", EP_PLAIN, 0, (g->kind = MOEK_EP_LOW_LATENCY, c->format = MOEK_BATCHED)) \
    X("combine", EP_PLAIN, 0, g->combine = MOEK_EP_EXACT) \
    X("max_tokens", EP_PLAIN, 0, g->max_tokens = 7) \
    X("max_tokens", EP_PLAIN, 0, c->max_tokens = 7) \
    X("chunks of a run (max_tokens by chunk_tokens)", EP_CHUNKS, 1, c->chunk_tokens = 1)      /* 65, where 1 is */ \
    X("x_scale", EP_STATIC, 0, g->x_scale = 0.50000006f)                        /* the last bit of 0.5 */ \
    X("max_rows", EP_PLAIN, 0, g->max_rows = 4) \
    X("handles", EP_PLAIN, 0, g->handles = 2) \
    X("mixed_layers", EP_PLAIN, 0, g->mixed_layers = 1) \
    X("the owners of experts (a number for all)", EP_PLAIN, 0, g->placement = MOEK_EP_ROUND_ROBIN) \
    X("bytes of a row and its scales", EP_FP8, 0, c->experts_impl = &ep_fields_own)
/* Of kernels that are emulated (memory of a GPU is the host's there); where rows are moved. */
#define EP_EACH_FIELD_EMULATED(X) X("transport", EP_PLAIN, 0, g->transport = MOEK_EP_HOST)
#define EP_EACH_FIELD_MOVED(X) X("move_gathers", EP_PLAIN, 0, g->move_gathers = 1)

static moek_status ep_fields_apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    (void)self; (void)step; (void)stream;
    return MOEK_E_ARGUMENT;
}
static const moek_experts ep_fields_own = { "own", MOEK_STANDARD, MOEK_DELEGATE, 1, NULL, NULL, NULL, ep_fields_apply };
typedef struct ep_field { const char *name; int layer, plan; } ep_field;
#define EP_FIELD_(name, layer, plan, change) { name, layer, plan },
static const ep_field ep_fields[] = {
    EP_EACH_FIELD(EP_FIELD_) EP_EACH_FIELD_EMULATED(EP_FIELD_) EP_EACH_FIELD_MOVED(EP_FIELD_)
};
#undef EP_FIELD_
enum { EP_FIELDS = (int)(sizeof ep_fields / sizeof *ep_fields), EP_EMULATED = EP_FIELDS - 2, EP_MOVED };

static inline void ep_fields_change(int i, moek_ep_config *g, moek_config *c)
{
    int n = 0;
#define EP_FIELD_(name, layer, plan, change) if (i == n++) { change; }
    EP_EACH_FIELD(EP_FIELD_) EP_EACH_FIELD_EMULATED(EP_FIELD_) EP_EACH_FIELD_MOVED(EP_FIELD_)
#undef EP_FIELD_
}
static inline void ep_fields_layer(int layer, moek_ep_config *g, moek_config *c)
{
    memset(c, 0, sizeof *c);
    c->hidden = 128; c->inter = 48; c->experts = 12; c->topk = 3; c->quant = FORMAT_PLAIN; c->act = MOEK_SILU;
    c->max_tokens = 6;
    if (layer == EP_OAI) c->act = MOEK_SWIGLUOAI;
    if (layer == EP_FP8 || layer == EP_APART) c->quant = FORMAT_BLOCKED;
    if (layer == EP_STATIC) { c->quant = format_nth(format_x_second, 0); g->x_scale = 0.5f; }
    if (layer == EP_APART) c->up_scales = MOEK_UP_SCALES_SEPARATE;
    if (layer == EP_SHARED) c->shared_slots = 2;
    if (layer == EP_TOP1) c->topk = 1;
    if (layer == EP_FEW) g->kind = MOEK_EP_LOW_LATENCY;
    if (layer == EP_CHUNKS) c->max_tokens = g->max_tokens = 65;
    if (layer == EP_GROUPS) { c->routing = MOEK_ROUTE_DEEPSEEK_V3; c->groups = 4; c->topk_groups = 2; }
}

/* Where ranks are. */
typedef struct ep_fields_place {
    int gpu;
    char *report;                                      /* [EP_FIELDS_RANKS][MOEK_EP_REPORT] */
    moek_ep_move move;                                 /* or NULL */
    void *context[EP_FIELDS_RANKS];                    /* for it */
} ep_fields_place;
typedef struct ep_fields_rank {
    moek_ep ep;
    moek_ep_config group;
    moek_config config;
    void *base[EP_FIELDS_RANKS + 1];
    moek_status status;
} ep_fields_rank;
static void *ep_fields_open(void *p)
{
    ep_fields_rank *r = (ep_fields_rank *)p;
    r->status = moek_ep_open(&r->ep, &r->group, r->base);
    return NULL;
}
/* All ranks by threads, each with its config (group and config of each).  There is a window for one rank more. */
static inline void ep_fields_open_all(ep_fields_rank *rank, void **window, int gpu)
{
    pthread_t thread[EP_FIELDS_RANKS];
    size_t size = 0, n;
    void *zeros;
    int r, p;
    for (r = 0; r < EP_FIELDS_RANKS; r++) {
        rank[r].group.layer = &rank[r].config;
        n = moek_ep_window_size(&rank[r].group);
        if (n > size) size = n;
    }
    zeros = calloc(1, size);
    for (r = 0; r < 2 * EP_FIELDS_RANKS + 1; r++) {
        window[r] = mem_alloc(mem_where(gpu), size);
        mem_put(mem_where(gpu), window[r], zeros, size);
    }
    free(zeros);
    for (r = 0; r < EP_FIELDS_RANKS; r++) {
        void *const out = window[EP_FIELDS_RANKS + 1 + r];
        for (p = 0; p <= EP_FIELDS_RANKS; p++) rank[r].base[p] = rank[r].group.move && p != r ? out : window[p];
    }
    for (r = 0; r < EP_FIELDS_RANKS; r++)
        if (pthread_create(&thread[r], NULL, ep_fields_open, &rank[r])) abort();
    for (r = 0; r < EP_FIELDS_RANKS; r++) pthread_join(thread[r], NULL);
}

/* Field i: as all ranks have it they open; then one rank has another. */
static inline void ep_fields_test(int i, const ep_fields_place *place)
{
    const ep_field *f = &ep_fields[i];
    ep_fields_rank rank[EP_FIELDS_RANKS];
    void *window[2 * EP_FIELDS_RANKS + 1];
    int r, odd;
    for (odd = 0; odd < 2; odd++) {
        memset(rank, 0, sizeof rank);
        if (place->report) memset(place->report, 0, MOEK_EP_REPORT * EP_FIELDS_RANKS);
        for (r = 0; r < EP_FIELDS_RANKS; r++) {
            moek_ep_config *g = &rank[r].group;
            g->rank = r; g->ranks = EP_FIELDS_RANKS; g->kind = MOEK_EP_ALLTOALL; g->timeout_ms = 5000;
            g->transport = place->gpu ? MOEK_EP_GPU : MOEK_EP_HOST;
            if (place->report) g->report = place->report + MOEK_EP_REPORT * r;
            g->move = place->move; g->move_context = place->context[r];
            ep_fields_layer(f->layer, g, &rank[r].config);
            if (odd && r == EP_FIELDS_ODD) ep_fields_change(i, g, &rank[r].config);
        }
        ep_fields_open_all(rank, window, place->gpu);
        for (r = 0; r < EP_FIELDS_RANKS; r++) {
            const char *const why = rank[r].ep.why;
            const int n = (int)strlen(f->name);
            int other = -1;
            if (odd) CHECK(rank[r].status == MOEK_E_MISMATCH && !strncmp(why, f->name, (size_t)n) &&
                           sscanf(why + n, ": rank %d has ", &other) == 1 &&
                           (r == EP_FIELDS_ODD) != (other == EP_FIELDS_ODD), "%s, rank %d: %s: %s", f->name, r,
                           moek_status_name(rank[r].status), why);
            else CHECK(rank[r].status == MOEK_OK, "%s, as on all ranks: %s", f->name, why);
        }
        for (r = 0; r < 2 * EP_FIELDS_RANKS + 1; r++) mem_free(mem_where(place->gpu), window[r]);
    }
}
#endif
