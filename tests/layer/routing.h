/* routing.h -- a part of test_layer.c, which includes it once: routing, ids, and where experts are. */
static void route_once(int routing, int turn)
{
    moek_config c = config_of(format_nth(format_plain, turn));
    char what[64];
    layer l;
    c.routing = routing;
    c.format = turn / 2 % 2;
    c.logits_dtype = turn % 4;
    c.topk = routing == MOEK_ROUTE_LLAMA4 ? 1 : 2;                    /* 2: route_more */
    c.router_weight_on_input = routing == MOEK_ROUTE_LLAMA4;
    if (routing == MOEK_ROUTE_DEEPSEEK_V3) c.groups = 4, c.topk_groups = 2, c.scale = 2.5f;
    layer_new(&l, &c, LAYER_LOGITS, TOKENS);
    if (routing == MOEK_ROUTE_DEEPSEEK_V3 || routing == MOEK_ROUTE_MINIMAX2)
        l.w.router_bias = layer_new_f32(&l, EXPERTS, -0.2f, 0.2f);
    if (turn % 3 == 2) l.w.router_expert_scale = layer_new_f32(&l, EXPERTS, 0.5f, 2);
    snprintf(what, sizeof what, "routing method %d", routing);
    layer_check(&l, what);
    layer_free(&l);
}
static void test_routing(void)
{
    int turn = 0;
#define METHOD(name, number, score, normalize, eps, group, text) route_once(number, turn++);
    MOEK_EACH_ROUTING(METHOD)
#undef METHOD
}


/* A method with what may be said beside it: groups and their score, eps, a stride, weights of the constant slots. */
static void route_more(int routing, int normalize, int turn)
{
    const int sparse = routing == MOEK_ROUTE_SPARSEMIXER, sums = normalize == MOEK_NORM_SUM ||
              normalize == MOEK_NORM_SIGMOID_SUM;
    moek_config c = config_of(format_nth(format_plain, turn + 1));
    char what[80];
    layer l;
    c.routing = routing;
    c.logits_dtype = turn % 4;
    c.format = turn / 2 % 2;
    c.shared_slots = turn % 3;
    c.batch_invariant = !layer_arch;                   /* chunks: many rows have another kernel on CPUs, too */
    if (!sparse) c.groups = 4, c.topk_groups = 2, c.group_score = turn / 3 % 3;
    if (sums) c.router_eps = 0.25f;
    layer_new(&l, &c, LAYER_LOGITS, TOKENS);
    if (!sparse && turn % 2) l.w.router_bias = layer_new_f32(&l, EXPERTS, -0.2f, 0.2f);
    layer_stretch_logits(&l, turn % 3 ? 8 : 3);
    if (c.shared_slots) l.args.shared_weights = layer_new_f32(&l, TOKENS * c.shared_slots, -1, 1);
    snprintf(what, sizeof what, "routing method %d, group score %d", routing, c.group_score);
    if (layer_check(&l, what)) {
        uint16_t *y = layer_y(&l, moek_run);
        l.config.chunk_tokens = 4;
        if (layer_plan(&l) && layer_same(&l, moek_run, y, "in chunks")) layer_check_route(&l);
        free(y);
    }
    layer_free(&l);
}
static void test_routing_more(void)
{
    int turn = 0;
#define METHOD(name, number, score, normalize, eps, group, text) route_more(number, MOEK_NORM_##normalize, turn++);
    MOEK_EACH_ROUTING(METHOD)
#undef METHOD
}

/* Experts that may not be chosen: of all but `left`, by a logit of -Inf or by a bias of -Inf or NaN. */
static void masked_once(int routing, int kind, int left)
{
    moek_config c = config_of(FORMAT_PLAIN);
    const float *weights;
    float *logits, *bias = NULL;
    int32_t *ids;
    char what[64];
    layer l;
    int t, e, first = 1, wrong = 0;
    if (kind && routing == MOEK_ROUTE_SPARSEMIXER) return;           /* has no bias */
    c.routing = routing;
    layer_new(&l, &c, LAYER_LOGITS, TOKENS);
    logits = (float *)(size_t)l.args.router_logits;
    if (kind) l.w.router_bias = bias = layer_new_f32(&l, EXPERTS, 0, 0);
    for (t = 0; t < TOKENS; t++)
        for (e = 0; e < EXPERTS; e++) if (!kind && e != left) logits[t * EXPERTS + e] = -INFINITY;
    for (e = 0; e < EXPERTS && kind; e++) if (e != left) bias[e] = kind == 1 || e % 2 ? -INFINITY : NAN;
    snprintf(what, sizeof what, "routing method %d, masked by kind %d but for %d", routing, kind, left);
    if (layer_check(&l, what)) {
        ids = layer_ids(&l);
        weights = (const float *)layer_got(&l, l.args.topk_weights);
        if (left < EXPERTS) first = 0;                 /* the first one that is not to count */
        for (t = 0; t < TOKENS; t++) {
            wrong += first ? ids[t * TOPK] != 0 || ids[t * TOPK + 1] != 1 || weights[t * TOPK] != 0
                           : ids[t * TOPK] != left || ids[t * TOPK + 1] != (left == 0) ||
                             (weights[t * TOPK] == 0 && routing != MOEK_ROUTE_TOPK);     /* its logit may be 0 */
            wrong += weights[t * TOPK + 1] != 0;
        }
        CHECK(!wrong, "%s: %d ids or weights are wrong", l.what, wrong);
        free(ids);
    }
    layer_free(&l);
}
static void test_masked(void)
{
    int turn = 0;
#define METHOD(name, number, score, normalize, eps, group, text)                                    \
    masked_once(number, 0, turn % EXPERTS); masked_once(number, 1 + turn % 2, (turn + 3) % EXPERTS); \
    if (!SMALL || turn % 4 == 0) masked_once(number, turn % 3, EXPERTS);                             \
    turn++;
    MOEK_EACH_ROUTING(METHOD)
#undef METHOD
}
/* The group that stays has two masked experts of the four that are asked for: no expert of another group comes in. */
static void test_masked_group(void)
{
    static const int32_t want[4] = { 9, 11, 8, 10 };
    int turn;
    for (turn = 0; turn < 4; turn++) {
        moek_config c = config_of(FORMAT_PLAIN);
        const int32_t *ids;
        const float *weights;
        float *bias;
        layer l;
        int i, wrong = 0;
        c.experts = 16; c.topk = 4; c.groups = 4; c.topk_groups = 1; c.routing = MOEK_ROUTE_DEEPSEEK_V3;
        c.group_score = turn / 2 ? MOEK_GROUP_SCORE_MAX : MOEK_GROUP_SCORE_DEFAULT;
        layer_new(&l, &c, LAYER_LOGITS, TOKENS);
        memset((void *)(size_t)l.args.router_logits, 0, 4 * TOKENS * 16);
        l.w.router_bias = bias = layer_new_f32(&l, 16, 0, 0);
        for (i = 8; i < 12; i++) bias[i] = i % 2 ? 3 : turn % 2 ? NAN : -INFINITY;
        if (layer_check(&l, "a group with masked experts")) {
            ids = (const int32_t *)layer_got(&l, l.args.topk_ids);
            weights = (const float *)layer_got(&l, l.args.topk_weights);
            for (i = 0; i < 4 * TOKENS; i++)
                wrong += ids[i] != want[i % 4] || !(fabsf(weights[i] - (i % 4 < 2 ? 0.5f : 0)) < 1e-6f);
            CHECK(!wrong, "%s: %d ids or weights are wrong: %d %d %d %d", l.what, wrong, ids[0], ids[1], ids[2],
                  ids[3]);
        }
        layer_free(&l);
    }
}

/* Logits of which there is no softmax: the token is NaN to be seen, and nobody else is touched.  All -Inf: 0.  Both
 * choose experts 0 and 1, as the token's logits do before: the dynamic scale of h stays what it is. */
static void spoil_once(int quant, int turn, int state)
{
    enum { AT = 4 };
    moek_config c = config_of(quant);
    void *const before = layer_state;
    float *logits;
    uint16_t *y;
    layer l;
    int kind, e, j;
    c.routing = turn % 2 ? MOEK_ROUTE_SOFTMAX_RENORM : MOEK_ROUTE_SOFTMAX;
    c.format = turn == 1;
    if (turn == 2) c.topk = 1, c.router_weight_on_input = 1;
    layer_new(&l, &c, LAYER_LOGITS | (turn == 2 ? LAYER_STATIC : 0), TOKENS);
    if (state) layer_state = layer_zeros(moek_state_size());
    logits = (float *)(size_t)l.args.router_logits + AT * EXPERTS;
    for (e = 0; e < EXPERTS; e++) logits[e] = (float)-e;
    if (layer_check(&l, "logits before") && (y = layer_y(&l, moek_run)) != NULL) {
        for (kind = 0; kind < 3; kind++) {             /* one NaN, one Inf, all -Inf */
            uint16_t *got;
            int wrong = 0;
            for (e = 0; e < EXPERTS; e++) logits[e] = kind == 2 ? -INFINITY : (float)-e;
            if (kind < 2) logits[5] = kind ? INFINITY : NAN;
            if (!layer_run(&l, moek_run)) continue;
            layer_check_route(&l);
            got = (uint16_t *)layer_got(&l, l.args.y) + AT * (size_t)c.hidden;
            for (j = 0; j < c.hidden; j++) {
                const double v = ref_get_t(got, (size_t)j, l.config.dtype);
                wrong += kind < 2 ? !isnan(v) : v != 0;
            }
            memcpy(got, y + AT * (size_t)c.hidden, 2 * (size_t)c.hidden);
            CHECK(!wrong, "%s: %d entries do not show a softmax that is none, kind %d", l.what, wrong, kind);
            CHECK(!memcmp(layer_got(&l, l.args.y), y, layer_y_bytes(&l)), "%s: a token's logits reach others, kind %d",
                  l.what, kind);
        }
        free(y);
    }
    if (state) mem_free(layer_arch, layer_state);
    layer_state = before;
    layer_free(&l);
}
static void test_spoiled_logits(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        for (turn = 0; turn < 4; turn++) {
            SKIP_IF_SMALL(!quick_set && (turn + q_) % 5 > 1);
            SKIP_IF_QUICK_OF_ALL(7);
            spoil_once(f->number, turn, 0);
            if (layer_arch == 90 && turn != 1) spoil_once(f->number, turn, 1);
        }
    }
}

/* Ids by a table.  On a GPU also tokens that the table does not have, and entries that are no expert: nobody. */
static void test_hash_routing(void)
{
    enum { ROWS = 50 };
    static const int32_t outside[] = { -1, ROWS, INT32_MAX };
    int turn;
    for (turn = 0; turn < (layer_arch ? 3 : 2); turn++) {
        moek_config c = config_of(FORMAT_PLAIN);
        layer l;
        int32_t *table, *token_ids;
        int i;
        c.shared_slots = turn;
        c.routing = turn == 1 ? MOEK_ROUTE_TOPK_SOFTMAX : turn ? MOEK_ROUTE_SIGMOID_RENORM : MOEK_ROUTE_SOFTMAX;
        c.batch_invariant = !layer_arch;
        layer_new(&l, &c, LAYER_LOGITS, TOKENS);
        l.w.router_table = table = layer_new_i32(&l, ROWS * TOPK);
        l.w.router_table_rows = ROWS;
        l.args.token_ids = token_ids = layer_new_i32(&l, TOKENS);
        for (i = 0; i < ROWS; i++) layer_choose(table + i * TOPK, TOPK, EXPERTS);
        for (i = 0; i < TOKENS; i++) token_ids[i] = i % ROWS;
        for (i = 0; turn == 2 && i < TOKENS; i += 4) token_ids[i] = outside[i / 4 % 3];
        if (turn) for (i = 1; i < ROWS * TOPK; i += 7) table[i] = i % 3 ? EXPERTS + i % 2 : -5;
        if (layer_check(&l, "hash routing")) {
            uint16_t *y = layer_y(&l, moek_run);
            l.config.chunk_tokens = 4;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "hash routing in chunks");
            free(y);
        }
        layer_free(&l);
    }
}

/* ---- ids of 64 bits, and what may be read of ids and weights ----------------------------------------------------- */

/* Step by step, and the ids of the step, as int32, to `peeked` once they are routed. */
static int32_t *peeked;
static moek_status by_peeking(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_step step;
    moek_status s = moek_begin(plan, args, &step);
    if (s == MOEK_OK) s = moek_route(&step, stream);
    if (s == MOEK_OK) layer_copy(peeked, step.topk_ids, 4 * (size_t)args->tokens * plan->slots, stream);
    if (s == MOEK_OK) s = moek_prepare(&step, stream);
    if (s == MOEK_OK) s = moek_experts_apply(&step, stream);
    return s == MOEK_OK ? moek_finalize(&step, stream) : s;
}
/* Shared experts that take a copy of their tokens' ids and weights.  to_ids, to_weights: where the backend is. */
typedef struct shared_peek { const moek_args *args; char *to_ids, *to_weights; size_t slots; } shared_peek;
static shared_peek peek_now;
static moek_status shared_peeks(void *context, int first, int tokens, moek_stream stream)
{
    const shared_peek *p = (const shared_peek *)context;
    const size_t from = (size_t)first * p->slots, n = (size_t)tokens * p->slots;
    const size_t size = p->args->topk_ids ? 4 : 8;
    const char *ids = p->args->topk_ids ? (const char *)p->args->topk_ids : (const char *)p->args->topk_ids64;
    layer_copy(p->to_ids + size * from, ids + size * from, size * n, stream);
    layer_copy(p->to_weights + 4 * from, p->args->topk_weights + from, 4 * n, stream);
    return MOEK_OK;
}
static moek_status with_peeks(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    shared_peek p = peek_now;
    p.args = args;
    a.shared = shared_peeks; a.shared_context = &p;
    return moek_run(plan, &a, stream);
}
/* args.shared finds the ids and weights of its tokens. */
static void check_peeks(layer *l, const uint16_t *y)
{
    const size_t n = (size_t)l->args.tokens * l->plan.slots, size = l->args.topk_ids ? 4 : 8;
    const void *const ids = l->args.topk_ids ? (const void *)l->args.topk_ids : (const void *)l->args.topk_ids64;
    void *const to_ids = layer_array_new(l, size * n, LAYER_OUT);
    void *const to_weights = layer_array_new(l, 4 * n, LAYER_OUT);
    peek_now.slots = (size_t)l->plan.slots;
    peek_now.to_ids = (char *)layer_find(l, to_ids)->there + LAYER_GUARD;
    peek_now.to_weights = (char *)layer_find(l, to_weights)->there + LAYER_GUARD;
    if (layer_same(l, with_peeks, y, "shared experts that look at ids")) {
        if (l->options & LAYER_LOGITS) layer_check_route(l);
        CHECK(!memcmp(layer_got(l, to_ids), layer_got(l, ids), size * n), "%s: args.shared finds other ids", l->what);
        CHECK(!memcmp(layer_got(l, to_weights), layer_got(l, l->args.topk_weights), 4 * n),
              "%s: args.shared finds other weights", l->what);
    }
}
/* Ids of 64 bits, written or read, give the bits that ids of 32 do; the step has both. */
static void wide_once(int quant, int format, int logits, int maps)
{
    moek_config c = config_of(quant);
    int32_t *want, *map;
    unsigned char *padding;
    uint16_t *y;
    layer l;
    int i;
    c.format = format;
    c.shared_slots = maps;
    c.batch_invariant = !layer_arch;                   /* in chunks, too: on CPUs few rows may have other kernels */
    layer_new(&l, &c, logits ? LAYER_LOGITS : 0, TOKENS);
    if (maps) {
        l.w.expert_map = map = layer_new_i32(&l, EXPERTS + 1);
        for (i = 0; i <= EXPERTS; i++) map[i] = i == 3 ? -1 : EXPERTS - i;
        l.args.is_padding = padding = (unsigned char *)layer_array_new(&l, TOKENS, LAYER_IN);
        for (i = 0; i < TOKENS; i++) padding[i] = i % 4 == 2;
    }
    if (!logits) for (i = 0; i < TOKENS * TOPK; i += 5) l.args.topk_ids[i] = -1;
    if (layer_check(&l, "ids of 32 bits") && (y = layer_y(&l, moek_run)) != NULL) {
        want = layer_ids(&l);
        layer_widen_ids(&l);
        if (!logits && layer_arch)                     /* of a GPU plan: nobody, whatever the low bits say */
            for (i = 0; i < TOKENS * TOPK; i += 5)
                l.args.topk_ids64[i] = i % 2 ? ((int64_t)1 << 32) + 1 : i % 4 ? -((int64_t)1 << 40) : INT64_MAX;
        if (layer_check(&l, "ids of 64 bits") && layer_same(&l, moek_run, y, "ids of 64 bits")) {
            int32_t *const to = (int32_t *)layer_array_new(&l, 4 * (size_t)TOKENS * l.plan.slots, LAYER_OUT);
            peeked = (int32_t *)(layer_find(&l, to)->there + LAYER_GUARD);
            layer_same(&l, by_peeking, y, "ids of 64 bits, step by step");
            CHECK(!memcmp(layer_got(&l, to), want, 4 * (size_t)TOKENS * l.plan.slots), "%s: step.topk_ids are others",
                  l.what);
        }
        l.config.chunk_tokens = 4;
        if (layer_plan(&l)) {
            layer_same(&l, moek_run, y, "ids of 64 bits in chunks");
            check_peeks(&l, y);
        }
        free(want);
        free(y);
    }
    layer_free(&l);
}
static void test_wide_ids(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        if (format_by_tensor(f)) continue;             /* its scale is a chunk's */
        for (turn = 0; turn < 8; turn++) {
            SKIP_IF_SMALL(!quick_set && (turn + q_) % 4);
            SKIP_IF_QUICK_OF_ALL(13);
            wide_once(f->number, turn % 2, turn / 2 % 2, turn / 4);
        }
    }
}
static void test_shared_peeks(void)
{
    int turn;
    for (turn = 0; turn < 4; turn++) {
        moek_config c = config_of(FORMAT_PLAIN);
        uint16_t *y;
        layer l;
        c.format = turn % 2;
        c.shared_slots = turn / 2;
        layer_new(&l, &c, turn == 3 ? 0 : LAYER_LOGITS, TOKENS);
        if (layer_check(&l, "ids for shared experts") && (y = layer_y(&l, moek_run)) != NULL) {
            check_peeks(&l, y);
            l.config.chunk_tokens = 4;
            if (layer_plan(&l)) check_peeks(&l, y);
            free(y);
        }
        layer_free(&l);
    }
}

/* Ties, one expert for all, experts without rows, an expert twice, nobody. */
static void test_adversarial(void)
{
    static const char *const names[] = { "all to one", "a token twice to one", "nobody", "ids out of range", "ties" };
    int kind, i;
    FOR_EACH_FORMAT(f) {
        for (kind = 0; kind < 5; kind++) {
            moek_config c = config_of(f->number);
            layer l;
            SKIP_IF_SMALL((kind + q_) % 5);
            c.format = kind == 1 ? MOEK_STANDARD : kind == 3 ? q_ % 2 : (kind + q_) % 2;
            layer_new(&l, &c, kind == 4 ? LAYER_LOGITS : 0, TOKENS);
            for (i = 0; i < TOKENS * TOPK && kind < 4; i++) {
                int32_t *id = &l.args.topk_ids[i];
                if (kind == 0) *id = i % TOPK ? -1 : 5;
                if (kind == 1) *id = i / TOPK % EXPERTS;
                if (kind == 2 || (kind == 3 && i % 5 == 0)) *id = -1;
                if (kind == 3 && layer_arch && i % 7 == 1) *id = i % 2 ? EXPERTS : 0x7fffffff;   /* a GPU plan only */
            }
            if (kind == 4) memset((void *)(size_t)l.args.router_logits, 0, 4 * TOKENS * EXPERTS);
            layer_check(&l, names[kind]);
            layer_free(&l);
        }
    }
}

/* ---- where experts are ------------------------------------------------------------------------------------------- */

/* Two ranks with half of the experts each: what they give adds up to the whole. */
static void copy_half(const void *to, const void *from, size_t bytes, int second)
{
    memcpy((void *)(size_t)to, (const char *)from + (second ? bytes : 0), bytes);
}
static void half_of(const layer *whole, layer *half, int second)
{
    const moek_config c = whole->config;
    const moek_format *const f = whole->format;
    const size_t n = EXPERTS / 2, up = (size_t)whole->up_rows, h = (size_t)c.hidden, inter = (size_t)c.inter;
    moek_config part = c;
    int32_t *map;
    int i;
    part.local_experts = EXPERTS / 2;
    layer_new(half, &part, whole->options, whole->args.tokens);
    copy_half(half->w.w_up, whole->w.w_up, n * up * moek_weight_bytes(f, 0, h), second);
    copy_half(half->w.w_down, whole->w.w_down, n * h * moek_weight_bytes(f, 0, inter), second);
    if (format_scaled(f)) {
        copy_half(half->w.w_up_scale, whole->w.w_up_scale, n * moek_scale_bytes(&f->w_scale, up, h), second);
        copy_half(half->w.w_down_scale, whole->w.w_down_scale, n * moek_scale_bytes(&f->w_scale, h, inter), second);
    }
    copy_half(half->args.x, whole->args.x, layer_y_bytes(whole), 0);
    memcpy(half->args.topk_ids, whole->args.topk_ids, 4 * (size_t)whole->args.tokens * TOPK);
    memcpy(half->args.topk_weights, whole->args.topk_weights, 4 * (size_t)whole->args.tokens * TOPK);
    half->w.expert_map = map = layer_new_i32(half, EXPERTS);
    for (i = 0; i < EXPERTS; i++) map[i] = i / (EXPERTS / 2) == second ? i % (EXPERTS / 2) : -1;
}
static void test_expert_map(void)
{
    int turn;
    for (turn = 0; turn < 4; turn++) {
        moek_config c = config_of(turn % 2 ? FORMAT_ROW : FORMAT_PLAIN);
        layer whole, half[2];
        double *want, square = 0, error = 0;
        size_t i;
        SKIP_IF_SMALL(turn == 1 || turn == 2);
        c.format = turn / 2;
        layer_new(&whole, &c, 0, TOKENS);
        half_of(&whole, &half[0], 0);
        half_of(&whole, &half[1], 1);
        if (layer_check(&whole, "the whole") && layer_check(&half[0], "the first half") &&
            layer_check(&half[1], "the second half")) {
            const void *y0 = layer_got(&half[0], half[0].args.y), *y1 = layer_got(&half[1], half[1].args.y);
            want = layer_ref(&whole);
            for (i = 0; i < layer_y_bytes(&whole) / 2; i++) {
                const double d = ref_get_t(y0, i, MOEK_DTYPE_BF16) + ref_get_t(y1, i, MOEK_DTYPE_BF16) - want[i];
                square += want[i] * want[i];
                error += d * d;
            }
            CHECK(sqrt(error / square) < layer_tolerance(&whole), "the halves do not add up: %.2e",
                  sqrt(error / square));
            free(want);
        }
        layer_free(&whole); layer_free(&half[0]); layer_free(&half[1]);
    }
}

/* 12 physical experts for 8 logical ones, in any order; counters; padding and ids of -1 count for nobody. */
static void test_replicas(void)
{
    int turn;
    for (turn = 0; turn < 2; turn++) {
        moek_config c = config_of(FORMAT_PLAIN);
        layer l;
        int32_t *replicas, *count, *map;
        unsigned char *padding;
        int e, i;
        c.physical_experts = PHYSICAL; c.local_experts = PHYSICAL - 2; c.max_replicas = REPLICAS;
        c.format = turn;
        layer_new(&l, &c, turn ? LAYER_LOGITS : 0, TOKENS);
        l.w.replicas = replicas = layer_new_i32(&l, EXPERTS * REPLICAS);
        l.w.replica_count = count = layer_new_i32(&l, EXPERTS);
        l.w.expert_map = map = layer_new_i32(&l, PHYSICAL);
        l.w.expert_load = (int64_t *)layer_array_new(&l, 8 * PHYSICAL, LAYER_OUT);
        l.args.is_padding = padding = (unsigned char *)layer_array_new(&l, TOKENS, LAYER_IN);
        memset(l.w.expert_load, 0, 8 * PHYSICAL);
        for (e = 0; e < EXPERTS; e++) {
            count[e] = e % (REPLICAS + 1);             /* expert 0 and 4: nowhere */
            for (i = 0; i < REPLICAS; i++)             /* expert 3: nowhere, too */
                replicas[e * REPLICAS + i] = i < count[e] && e != 3 ? rng_below(PHYSICAL) : -1;
        }
        for (e = 0; e < PHYSICAL; e++) map[e] = (e + 5) % PHYSICAL < PHYSICAL - 2 ? (e + 5) % PHYSICAL : -1;
        for (i = 0; i < TOKENS; i++) padding[i] = i % 4 == 1;
        if (!turn) for (i = 0; i < TOKENS * TOPK; i += 3) l.args.topk_ids[i] = -1;
        layer_check(&l, "replicas");
        layer_free(&l);
    }
}

/* The rows of padding are zero, or what the shared experts gave. */
static void test_padding(void)
{
    int turn;
    for (turn = 0; turn < 4; turn++) {
        moek_config c = config_of(turn % 2 ? FORMAT_BLOCKED : FORMAT_PLAIN);
        layer l;
        unsigned char *padding;
        uint16_t *whole;
        int i, t, wrong = 0;
        SKIP_IF_SMALL(turn == 0 || turn == 3);
        c.format = turn % 2;
        c.batch_invariant = !layer_arch;
        layer_new(&l, &c, turn / 2 ? LAYER_LOGITS : 0, TOKENS);
        l.args.is_padding = padding = (unsigned char *)layer_array_new(&l, TOKENS, LAYER_IN);
        for (t = 0; t < TOKENS; t++) padding[t] = t % 3 == 0;
        if (turn < 2) l.args.topk_ids[0] = 12345;      /* what a padding row says is nobody's business */
        if (turn % 2) l.args.shared_y = layer_new_t(&l, TOKENS * HIDDEN, 1);
        if (layer_check(&l, "padding")) {
            const uint16_t *y = (const uint16_t *)layer_got(&l, l.args.y), *shared = (const uint16_t *)l.args.shared_y;
            for (i = 0; i < TOKENS * HIDDEN; i++) wrong += padding[i / HIDDEN] && y[i] != (shared ? shared[i] : 0);
            CHECK(!wrong, "%s: %d entries of padding", l.what, wrong);
            whole = layer_y(&l, moek_run);
            l.config.chunk_tokens = 4;
            if (layer_plan(&l)) layer_same(&l, moek_run, whole, "padding in chunks");
            free(whole);
        }
        layer_free(&l);
    }
}

/* The router's weight on the input, slots that every token has, rows beyond max_rows_per_expert. */
static void test_options(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number), on_input, shared, few;
        layer l;
        SKIP_IF_SMALL(f->number != FORMAT_TENSOR);
        on_input = shared = few = c;
        on_input.topk = 1; on_input.router_weight_on_input = 1; on_input.format = q_ % 2;
        layer_new(&l, &on_input, LAYER_BIAS, TOKENS);
        layer_check(&l, "weight on the input");
        layer_free(&l);
        shared.shared_slots = 2; shared.shared_weight = 0.25f; shared.format = (q_ + 1) % 2;
        layer_new(&l, &shared, q_ % 2 ? LAYER_LOGITS : 0, TOKENS);
        layer_check(&l, "shared slots");
        layer_free(&l);
        few.format = MOEK_BATCHED; few.max_rows_per_expert = 3;
        layer_new(&l, &few, LAYER_LOGITS, TOKENS);
        layer_check(&l, "more rows than max_rows_per_expert");
        layer_free(&l);
    }
}
