/* steps.h -- a part of test_rows.c, which includes it once: route, map, sort. */
typedef struct route_method { int number, score, normalize, group_score; float eps; } route_method;
#define ROUTE_METHOD(name, number, score, normalize, eps, group, text) \
    { number, MOEK_SCORE_##score, MOEK_NORM_##normalize, MOEK_GROUP_SCORE_##group, eps },
static const route_method route_methods[] = { MOEK_EACH_ROUTING(ROUTE_METHOD) };

enum {
    LOGITS_PLAIN, LOGITS_TIES, LOGITS_EQUAL, LOGITS_NONFINITE, LOGITS_NAN, LOGITS_WIDE, LOGITS_MASKED, LOGITS_NONE,
    LOGITS_KINDS
};

static double route_logit(int kind, int e)
{
    static const double odd[] = { NAN, INFINITY, -INFINITY, -0.0, 0.0 };
    const double x = 2 * rng_normal();
    switch (kind) {
    case LOGITS_TIES:      return nearbyint(2 * x) / 2;               /* makes -0, too, which equals 0 */
    case LOGITS_EQUAL:     return 0.75;
    case LOGITS_NONFINITE: return e % 5 == 2 ? odd[rng_below(COUNT(odd))] : x;
    case LOGITS_NAN:       return NAN;
    case LOGITS_WIDE:      return 10 * x;
    case LOGITS_MASKED:    return e % 3 ? -INFINITY : x;
    case LOGITS_NONE:      return -INFINITY;
    default:               return x;
    }
}
static void route_fill(moek_route_args *a)
{
    const size_t stride = a->logits_stride ? a->logits_stride : (size_t)a->experts;
    void *logits = in((size_t)a->tokens * stride * (a->logits_dtype == MOEK_DTYPE_F32 ? 4 : 2));
    int t, e;
    for (t = 0; t < a->tokens; t++) {
        const int turn = (t + now.cases) % 16;
        const int kind = a->tokens == 1 ? rng_below(LOGITS_KINDS) : turn < LOGITS_KINDS ? turn : LOGITS_PLAIN;
        for (e = 0; e < a->experts; e++) {
            const double x = route_logit(kind, e);
            const size_t i = (size_t)t * stride + e;
            if (a->logits_dtype == MOEK_DTYPE_F32) ((float *)logits)[i] = (float)x;
            else ((uint16_t *)logits)[i] = ref_to_t(x, a->logits_dtype);
        }
    }
    a->logits = logits;
}
/* How far f32 may be from a double score: exp of a rounded difference, a division, and the sum with the bias. */
static double route_noise(const moek_route_args *a, double s, double c)
{
    return (a->score == MOEK_SCORE_RAW || a->score == MOEK_SCORE_SPARSEMIXER ? 0 : 8e-6 * fabs(s) + 3e-38) +
           (a->bias ? 1.2e-7 * fabs(c) : 0);
}
/* 1 if f32 could choose other groups than double. */
static int route_groups_close(const moek_route_args *a, const double *s, const unsigned char *allowed)
{
    const int size = a->experts / (a->groups > 1 ? a->groups : 1);
    double score[1024];
    int g, h;
    if (a->groups <= 1) return 0;
    ref_group_scores(a, s, score);
    for (g = 0; g < a->groups; g++)
        for (h = 0; h < a->groups; h++) {
            const double gap = fabs(score[g] - score[h]), noise = 1e-5 * (fabs(score[g]) + fabs(score[h])) + 1e-30;
            if (allowed[g * size] && !allowed[h * size] && gap > 0 && gap < noise) return 1;
        }
    return 0;
}
/* Expert i, chosen, must not lose to j: nearly as good is enough, but of equals the lower comes first. */
static int route_may_precede(const moek_route_args *a, const double *s, int i, int j)
{
    const double ci = ref_choice(a, s, i), cj = ref_choice(a, s, j);
    if (isinf(ci) || isinf(cj)) return ci > cj || (ci == cj && i < j);
    if (s[i] == s[j] && (!a->bias || a->bias[i] == a->bias[j])) return i < j;
    return ci >= cj - route_noise(a, s[i], ci) - route_noise(a, s[j], cj);
}
static int route_ids_right(const moek_route_args *a, const double *s, const unsigned char *allowed, const int32_t *ids)
{
    unsigned char chosen[1024] = { 0 };
    int i, j;
    for (i = 0; i < a->topk; i++) {
        if (ids[i] < 0 || ids[i] >= a->experts || chosen[ids[i]] || !allowed[ids[i]]) return 0;
        chosen[ids[i]] = 1;
        for (j = 0; j < i; j++) if (!route_may_precede(a, s, ids[j], ids[i])) return 0;
    }
    for (i = 0; i < a->topk; i++)
        for (j = 0; j < a->experts; j++)
            if (!chosen[j] && allowed[j] && !route_may_precede(a, s, ids[i], j)) return 0;
    return 1;
}
/* 1 if an expert is so near the threshold that f32 may count it in or out. */
static int route_sparse_close(const moek_route_args *a, const double *s, const int32_t *ids)
{
    int e, k;
    for (k = 0; a->score == MOEK_SCORE_SPARSEMIXER && k < 2; k++)
        for (e = 0; e < a->experts; e++) {
            const double m = s[ids[k]], factor = fabs(s[e]) > m ? fabs(s[e]) : m;
            if (e != ids[k] && s[e] != m && fabs(m - s[e] - 0.02 * factor) < 1e-6 * (fabs(m) + factor)) return 1;
        }
    return 0;
}
static void route_check_ids(const moek_route_args *a, int t, const double *s, const int32_t *ids)
{
    unsigned char allowed[1024];
    int32_t known[32];
    int k, right = 1;
    if (a->table) {
        ref_look_up(a, t, known);
        for (k = 0; k < a->topk; k++) right = right && ids[k] == known[k];
    } else {
        ref_groups(a, s, allowed);
        if (route_groups_close(a, s, allowed)) return;
        right = route_ids_right(a, s, allowed, ids);
    }
    CHECK(right, "%s: %s: token %d: wrong ids %d %d ..", now.row->name, now.what, t, ids[0], a->topk > 1 ? ids[1] : -1);
}
static void route_check_token(const moek_route_args *a, int t, const int32_t *ids, const float *weights)
{
    double s[1024], w[1024];
    const int sound = ref_scores(a, t, s);
    int k, in_range = 1, bad = -1;
    for (k = 0; k < a->topk; k++) if (ids[k] < (a->table ? -1 : 0) || ids[k] >= a->experts) in_range = 0;
    if (!CHECK(in_range, "%s: %s: token %d: an id is out of range", now.row->name, now.what, t)) return;
    route_check_ids(a, t, s, ids);
    if (route_sparse_close(a, s, ids)) return;
    ref_route_weights(a, s, ids, sound, w);
    for (k = 0; k < a->topk; k++) {
        /* A score may be no more than a denormal float: off by up to 2^-149, however small it is. */
        const double score = ids[k] < 0 ? 0 : fabs(s[ids[k]]);
        const double few_bits = score < 1e-38 ? fmin(ldexp(1, -149) / (score + 1e-60), 1) : 0;
        const double allow = (1e-5 + few_bits) * fabs(w[k]) + 1e-30, error = fabs(weights[k] - w[k]);
        if (isnan(w[k]) && isnan(weights[k])) continue;
        worse(error / allow);
        if (!(error <= allow)) bad = k;
    }
    k = bad < 0 ? 0 : bad;
    CHECK(bad < 0, "%s: %s: token %d: weight of expert %d is %.9g, not %.9g", now.row->name, now.what, t, ids[k],
          weights[k], w[k]);
}
static void route_check(const moek_route_args *h)
{
    const int slots = h->topk + h->shared;
    const int32_t *ids = (const int32_t *)got(h->ids);
    const float *weights = (const float *)got(h->weights);
    const int64_t *wide = h->ids64 ? (const int64_t *)got(h->ids64) : NULL;
    int t, k, constant = 1, same = 1;
    for (t = 0; t < h->tokens; t++) {
        const int padding = h->is_padding && h->is_padding[t];
        for (k = padding ? 0 : h->topk; k < slots; k++) {
            const size_t i = (size_t)t * slots + k;
            const int32_t id = padding ? -1 : h->experts + k - h->topk;
            const float weight = h->shared_weights ? h->shared_weights[t * h->shared + k - h->topk] : h->shared_weight;
            if (ids[i] != id || weights[i] != (padding ? 0 : weight)) constant = 0;
        }
        for (k = t * slots; wide && k < (t + 1) * slots; k++) same = same && wide[k] == ids[k];
        if (!padding) route_check_token(h, t, ids + (size_t)t * slots, weights + (size_t)t * slots);
    }
    CHECK(constant, "%s: %s: shared slots or padding tokens", now.row->name, now.what);
    CHECK(same, "%s: %s: ids of 64 bits are others", now.row->name, now.what);
}
static void route_run(moek_route_args h)
{
    moek_route_args d;
    h.ids = out_i32(h.tokens * (h.topk + h.shared));
    h.weights = (float *)out_i32(h.tokens * (h.topk + h.shared));
    d = h;
    MOVE(d.logits), MOVE(d.bias), MOVE(d.expert_scale), MOVE(d.table), MOVE(d.token_ids);
    MOVE(d.is_padding), MOVE(d.ids), MOVE(d.weights), MOVE(d.shared_weights), MOVE(d.ids64);
    if (launch_twice(&d)) route_check(&h);
    if (now.cases % 4 == 0 && h.tokens && late_can()) {
        d.early = 1;
        late_begin(d.logits, h.logits);
        if (launch_twice(&d)) route_check(&h);
        late_end();
    }
    rows_clear();
}
/* Some entries are no expert, and some tokens not in the table. */
static void route_table(moek_route_args *h)
{
    enum { VOCABULARY = 50 };
    static const int32_t outside[] = { -1, VOCABULARY, INT32_MAX, INT32_MIN }, nobody[] = { -1, 0, INT32_MAX };
    int32_t *table = in_i32(VOCABULARY * h->topk), *token_ids = in_i32(h->tokens);
    int i, k;
    for (i = 0; i < VOCABULARY; i++)
        for (k = 0; k < h->topk; k++)
            table[i * h->topk + k] = rng_below(9) ? (i * 7 + k * 3 + i / 3) % h->experts
                                   : nobody[i % 3] ? nobody[i % 3] : h->experts + k % 2;
    for (i = 0; i < h->tokens; i++) token_ids[i] = rng_below(8) ? rng_below(VOCABULARY) : outside[rng_below(4)];
    h->table = table, h->token_ids = token_ids, h->table_rows = VOCABULARY;
}
/* 1: finite; 2: all experts masked; 3: many of them, by -Inf or NaN, and now and then one that must be; 4: all but one
 * or two of each group, so that groups that stay may hold fewer than are asked for. */
static void route_bias(moek_route_args *h, int kind, int ties)
{
    float *const bias = in_f32(h->experts);
    const int often = 1 + rng_below(8), size = h->experts / (h->groups > 1 ? h->groups : 1);
    int i, g;
    for (i = 0; i < h->experts; i++) {
        bias[i] = ties ? 0.25f * rng_below(3) : 0.3f * rng_normal();
        if (kind == 2 || (kind == 3 && rng_below(8) < often)) bias[i] = rng_below(2) ? -INFINITY : NAN;
        else if (kind == 3 && rng_below(4 * h->experts) == 0) bias[i] = INFINITY;
    }
    for (g = 0; g < h->groups && kind == 4; g++) {
        const int left = rng_below(size), other = rng_below(2) ? left : rng_below(size);
        for (i = 0; i < size; i++) if (i != left && i != other) bias[g * size + i] = i % 2 ? -INFINITY : NAN;
    }
    h->bias = bias;
}
static int route_tokens;                               /* not 0: that many */
/* `options`: bits that choose what else the case has. */
static void route_case(const route_method *m, int experts, int topk, int groups, int topk_groups, int bias,
                       unsigned options)
{
    static const int dtypes[] = { MOEK_DTYPE_F32, MOEK_DTYPE_BF16, MOEK_DTYPE_FP16 };
    static const int tokens[] = { 33, 1, 64, 33, 5, 0 };
    const int sparse = m->score == MOEK_SCORE_SPARSEMIXER;
    moek_route_args h;
    float *array;
    unsigned char *padding;
    int i;
    memset(&h, 0, sizeof h);
    h.tokens = SMALL ? 7 : tokens[options % COUNT(tokens)], h.experts = experts, h.topk = topk;
    if (SMALL && options % 8 == 0) h.tokens = 33;
    if (route_tokens) h.tokens = route_tokens;
    h.score = m->score, h.normalize = m->normalize, h.eps = m->eps, h.scale = options & 1 ? 2.5f : 1;
    if (options & 0x400) h.eps = 0.5f;
    h.groups = groups, h.topk_groups = topk_groups, h.logits_dtype = dtypes[options % 3];
    h.group_score = m->group_score;
    if (options & 0x800) h.group_score = MOEK_GROUP_SCORE_TOP2 + MOEK_GROUP_SCORE_MAX - m->group_score;
    h.shared = options & 2 ? 2 : 0, h.shared_weight = 0.4f;
    h.logits_stride = options & 0x100 ? (size_t)experts + (options & 1 ? 8 : 3) : 0;
    SAY("method %d experts %d topk %d groups %d/%d bias %d tokens %d dtype %d options %x", m->number, experts, topk,
        groups, topk_groups, bias, h.tokens, h.logits_dtype, options);
    route_fill(&h);
    if (bias && !sparse) route_bias(&h, bias, options & 8);
    if (options & 0x200) h.ids64 = (int64_t *)out(8 * (size_t)h.tokens * (topk + h.shared));
    if (options & 0x200 && h.shared)
        h.shared_weights = array = in_f32(h.tokens * h.shared), fill_f32(array, (size_t)h.tokens * h.shared, -1, 1);
    if (options & 4) h.expert_scale = array = in_f32(experts), fill_f32(array, (size_t)experts, 0.5f, 2);
    if ((options & 0x70) == 0x70 && !sparse && groups <= 1) route_table(&h);
    if (options & 0x80) {
        h.is_padding = padding = (unsigned char *)in((size_t)h.tokens);
        for (i = 0; i < h.tokens; i++) padding[i] = (unsigned char)(rng_below(4) == 0 ? 1 + i % 2 * 254 : 0);
    }
    route_run(h);
}
static void test_route(void)
{
    static const int experts[] = { 1, 6, 8, 16, 60, 64, 128, 160, 256, 257, 384, 512, 1024 };
    static const int topks[] = { 1, 2, 6, 8, 10, 22, 32 };
    static const int grouped[][4] = {
        { 256, 8, 8, 4 }, { 16, 2, 8, 2 }, { 128, 2, 8, 2 }, { 160, 6, 8, 3 }, { 384, 8, 1, 1 },
        { 64, 6, 4, 1 }, { 60, 4, 6, 5 }, { 1024, 8, 32, 4 }, { 512, 22, 1, 1 }, { 48, 8, 2, 2 },
        { 1024, 8, 64, 5 }, { 120, 4, 40, 7 }, { 96, 6, 12, 5 }, { 720, 8, 9, 3 }, { 1020, 8, 3, 2 }, { 800, 8, 20, 7 },
    };
    const int few = now.thin ? 25 : SMALL ? 9 : 1;    /* one case of so many */
    int m, e, k, i, turn = 0;
    for (m = 0; m < COUNT(route_methods); m++) {
        const int sparse = route_methods[m].score == MOEK_SCORE_SPARSEMIXER;
        for (e = 0; e < COUNT(experts); e++)
            for (k = 0; k < COUNT(topks); k++) {
                if (topks[k] > experts[e] || (sparse && topks[k] != 2) || ++turn % few) continue;
                route_case(&route_methods[m], experts[e], topks[k], 0, 0, rng_below(4), rng_u32() & 0xfff);
            }
        for (i = 0; i < COUNT(grouped) && !sparse; i++) {
            const int *g = grouped[i];
            if (++turn % (few > 9 ? 8 : few > 1 ? 4 : 1)) continue;
            for (k = 0; k < (g[2] > 1 ? 4 : 2); k++)
                route_case(&route_methods[m], g[0], g[1], g[2], g[3], k, rng_u32() & 0xfff);
            if (g[2] > 1) route_case(&route_methods[m], g[0], g[1], g[2], g[3], 3, rng_u32() & 0xfff);
        }
    }
    for (i = 0; i < 2 * COUNT(grouped); i += few > 9 ? 3 : 1) {
        const int *g = grouped[i % COUNT(grouped)];
        const route_method *method = &route_methods[(5 * i + 2) % COUNT(route_methods)];
        if (g[2] > 1 && method->score != MOEK_SCORE_SPARSEMIXER)
            route_case(method, g[0], g[1], g[2], g[3], 4, (rng_u32() & 0x77f) | (i < COUNT(grouped) ? 0x800 : 0));
    }
    route_tokens = 4500;                               /* more than there are blocks */
    for (m = 0; m < COUNT(route_methods); m++) {
        if (route_methods[m].score == MOEK_SCORE_SPARSEMIXER || (SMALL && m % 4)) continue;
        route_case(&route_methods[m], 128, 8, 0, 0, 0, m % 3);
        route_case(&route_methods[m], 256, 8, 8, 4, route_methods[m].score == MOEK_SCORE_SIGMOID, 0x83 + m % 3);
    }
    route_tokens = 0;
}

/* ---- map --------------------------------------------------------------------------------------------------------- */

static void map_case(int tokens, int topk, int experts, unsigned options)
{
    enum { REPLICAS = 5 };
    moek_map_args h, d;
    int32_t *ids, *array;
    int32_t *want, *given = NULL;
    int64_t *load = NULL, *wide;
    unsigned char *padding;
    int i;
    memset(&h, 0, sizeof h);
    SAY("tokens %d topk %d experts %d options %x", tokens, topk, experts, options);
    h.tokens = tokens, h.topk = topk, h.experts = experts, h.max_replicas = REPLICAS;
    h.first = rng_below(3) * 1000;
    h.physical = options & 1 ? experts * 2 + 3 : experts;
    ids = options & 2 ? out_i32(tokens * topk) : in_i32(tokens * topk);          /* 2: in place */
    for (i = 0; i < tokens * topk; i++) ids[i] = rng_below(8) ? rng_below(experts) : experts + 3 -
        rng_below(experts + 9);
    if (tokens * topk > 2) ids[0] = INT32_MIN, ids[1] = INT32_MAX;
    h.ids = ids;
    h.out = options & 2 ? ids : out_i32(tokens * topk);
    if (options & 1) {
        h.replicas = array = in_i32(experts * REPLICAS);
        for (i = 0; i < experts * REPLICAS; i++) array[i] = rng_below(9) ? rng_below(h.physical) : -1 - rng_below(3);
        for (i = 0; i < experts * REPLICAS; i += 17) array[i] = h.physical + rng_below(3);     /* nobody: as -1 */
        h.replica_count = array = in_i32(experts);
        for (i = 0; i < experts; i++) array[i] = rng_below(REPLICAS + 3) - 1;          /* too many: nobody */
    }
    if (options & 4) {
        h.map = array = in_i32(h.physical);
        for (i = 0; i < h.physical; i++) array[i] = rng_below(2) ? rng_below(1000) : -1;
    }
    if (options & 8) {
        h.load = wide = (int64_t *)out(8 * (size_t)h.physical);            /* beyond 2^32, and about to get there */
        for (i = 0; i < h.physical; i++) wide[i] = ((int64_t)rng_below(3) << 32) - rng_below(4);
    }
    if (options & 16) {
        h.is_padding = padding = (unsigned char *)in((size_t)tokens);
        for (i = 0; i < tokens; i++) padding[i] = (unsigned char)(rng_below(3) == 0);
    }
    if (options & 32) {                                /* those, and some that are one of them but for bits above 31 */
        h.ids64 = wide = (int64_t *)in(8 * (size_t)tokens * topk);
        for (i = 0; i < tokens * topk; i++)
            wide[i] = ids[i] + (rng_below(9) ? 0 : 1 - 2 * (i % 2)) * ((int64_t)1 << 32);
        h.ids = NULL, h.given = out_i32(tokens * topk);
    }
    d = h;
    MOVE(d.ids), MOVE(d.replicas), MOVE(d.replica_count), MOVE(d.map), MOVE(d.load), MOVE(d.out), MOVE(d.is_padding);
    MOVE(d.ids64), MOVE(d.given);
    if (launch_twice(&d)) {
        moek_map_args r = h;
        r.out = want = (int32_t *)rows_want(h.out);
        if (h.given) r.given = given = (int32_t *)rows_want(h.given);
        if (h.load) r.load = load = (int64_t *)rows_want(h.load);
        ref_map(&r);
        rows_same("out", h.out, want);
        if (given) rows_same("given", h.given, given);
        if (h.load) rows_same("load", h.load, load);
    }
    rows_clear();
}
static void test_map(void)
{
    static const int tokens[] = { 0, 1, 3, 33, 64, 257, 1000 }, topk[] = { 1, 2, 8, 10, 34 };
    static const int experts[] = { 1, 8, 61, 256, 1026 };
    unsigned options;
    int t, turn = 0;
    for (options = 0; options < 64; options++)
        for (t = 0; t < COUNT(tokens); t++, turn++)
            if (!SMALL || tokens[t] < 100)
                map_case(tokens[t], topk[turn % COUNT(topk)], experts[turn % 3 + turn % 2], options);
}

/* ---- sort -------------------------------------------------------------------------------------------------------- */

enum { IDS_RANDOM, IDS_ONE, IDS_NONE, IDS_EVEN, IDS_SORTED, IDS_SKEWED, IDS_KINDS };

static void fill_ids(int32_t *ids, int slots, int experts, int kind)
{
    const int hot = rng_below(experts);
    int i;
    for (i = 0; i < slots; i++) {
        switch (kind) {
        case IDS_ONE:    ids[i] = hot; break;
        case IDS_NONE:   ids[i] = i % 2 ? -1 : experts + i % 3; break;
        case IDS_EVEN:   ids[i] = rng_below((experts + 1) / 2) * 2; break;
        case IDS_SORTED: ids[i] = (int32_t)((int64_t)i * experts / slots); break;
        case IDS_SKEWED: ids[i] = rng_below(2) ? hot : rng_below(experts); break;
        default:         ids[i] = rng_below(12) ? rng_below(experts) : rng_below(2) ? -1 : experts + rng_below(2);
        }
    }
}
static void sort_check(const moek_sort_args *h, moek_sort_args r, int blocks)
{
#define WANT(field) if (h->field) r.field = (int32_t *)rows_want(h->field)
#define SAME(field) if (h->field) rows_same(#field, h->field, r.field)
    WANT(zero);
    WANT(counts); WANT(offsets); WANT(order); WANT(block_expert); WANT(block_row); WANT(num_blocks); WANT(slot_row);
    ref_sort(&r);
    CHECK(!h->num_blocks || *r.num_blocks <= blocks, "%s: more blocks than moek_max_blocks", now.what);
    SAME(zero);
    SAME(counts); SAME(offsets); SAME(order); SAME(block_expert); SAME(block_row); SAME(num_blocks); SAME(slot_row);
}
static void sort_case(int slots, int experts, int block_m, int rows_per_expert, int kind, int lists)
{
    const int blocks = moek_max_blocks(slots, experts, block_m);
    moek_sort_args h, d;
    int32_t *ids;
    int late;
    memset(&h, 0, sizeof h);
    SAY("slots %d experts %d block_m %d rows_per_expert %d kind %d lists %d", slots, experts, block_m, rows_per_expert,
        kind, lists);
    h.slots = slots, h.experts = experts, h.block_m = block_m, h.rows_per_expert = rows_per_expert;
    h.ids = ids = in_i32(slots);
    fill_ids(ids, slots, experts, kind);
    h.counts = out_i32(experts);
    if (rows_per_expert || kind % 3 == 0) h.slot_row = out_i32(slots);
    if (!rows_per_expert) h.offsets = out_i32(experts + 1), h.order = out_i32(slots);
    if (!rows_per_expert && lists) {
        h.num_blocks = out_i32(1);
        h.block_expert = out_i32(blocks), h.block_row = out_i32(blocks);     /* no more room than the contract says */
    }
    if (kind % 2) h.zeros = 1 + slots % 700, h.zero = out_i32(h.zeros);
    d = h;
    MOVE(d.zero);
    MOVE(d.ids), MOVE(d.counts), MOVE(d.offsets), MOVE(d.order);
    MOVE(d.block_expert), MOVE(d.block_row), MOVE(d.num_blocks), MOVE(d.slot_row);
    for (late = 0; late < (slots && late_can() ? 2 : 1); late++) {
        if (late) d.early = 2, late_begin(d.ids, h.ids);
        if (launch_twice(&d)) sort_check(&h, h, blocks);
        if (late) late_end();
    }
    rows_clear();
}
static void test_sort(void)
{
    static const int slots[] = { 0, 1, 7, 64, 1000, 1024, 1025, 5003, 16384, 16385 };
    static const int experts[] = { 1, 8, 61, 128, 257, 1026 };
    static const int m[] = { 8, 16, 64, 128 }, limits[] = { 1, 3, 16, 1000 };
    int s, e, kind, turn = 0;
    for (s = 0; s < COUNT(slots); s++)
        for (e = 0; e < COUNT(experts); e++)
            for (kind = 0; kind < IDS_KINDS; kind++, turn++) {
                if (slots[s] > 2000 && (kind > 1 || e % 2 == 0 || SMALL)) continue;
                if (now.thin && turn % (slots[s] > 100 ? 17 : 5)) continue;
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], 0, kind, 1);
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], 0, kind, 0);
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], limits[turn % COUNT(limits)], kind, 0);
            }
}
