/* test_rows.c -- every row of the kernel table against ref.h, by operation.
 *
 *   cc -std=c99 -O2 -Iinclude tests/test_rows.c -lm -o rows              the CPU rows
 *   nvcc -x cu -std=c++17 -O2 -Iinclude tests/test_rows.c -o rows        those of this GPU, too
 *   c++ -std=c++17 -O2 -DMOEK_EMU -Iinclude -x c++ tests/test_rows.c -o rows    GPU rows on the CPU, in small cases:
 *                                      those for sm80; for sm90 with -DMOEK_EMU_ARCH=90 '-DMOEK_WANT_ARCH(a)=((a)==90)'
 *   ./rows [quick] [-jN] [-v] [WORD ...]        only rows whose name holds every word; -v: tells each case before it,
 *                                      and when; quick: the quick set (quick.h); -j: in N processes (workers.h)
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  Prints a line a row: its cases, and the worst error in
 * parts of what is allowed (where not all must be exact), and its seconds. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L                        /* clock_gettime */
#endif
#ifdef MOEK_EMU
#include "emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "rows.h"
#include "quick.h"
#include "ref_check.h"
#include "workers.h"

/* Emulation is 100 times slower: fewer and smaller cases, but each kind of them.  -DTEST_ALL: all the same. */
#if (defined(MOEK_EMU) || defined(TEST_SMALL)) && !defined(TEST_ALL)
enum { SMALL = 1 };
#else
enum { SMALL = 0 };
#endif
/* Of large cases, emulated: of a row for Hopper one of so many (of the quick set: fewer, of each format others), of
 * others none. */
static int always;                                     /* 1: this case is not left out */
static int asked;                                      /* of the quick set: how often this was asked */
static int leave_out(int i, int of)
{
    if (quick_set) i = asked++, of *= 5;
    return SMALL && !always && (now.row->arch != 90 || i % of);
}
/* Until each_act_end: a case of each activation stays, in a layout that it has; 0: this one may be left out. */
static int each_act(int i, int layout, int gated)
{
    return always = quick_row(now.row) && layout == MOEK_UP_HALVES + (gated ? i % MOEK_UP_APART : 0);
}
static void each_act_end(void) { always = 0; }
static int turns;                                      /* begins elsewhere for each row: these leave out other cases */
#define SAY(...) snprintf(now.what, sizeof now.what, __VA_ARGS__)
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void worse(double error) { if (error > now.worst || isnan(error)) now.worst = error; }

/* ---- launched early ---------------------------------------------------------------------------------------------- */

/* 1: this case is to run again, launched early behind a kernel that has not written its input yet. */
#if MEM_CUDA
static int late_can(void)
{
    int device, major = 0;
    if (!mem_on_gpu(now.row->arch)) return 0;
    mem_must(cudaGetDevice(&device));
    mem_must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
}
typedef struct late_array { unsigned char *at, *there; size_t bytes; } late_array;   /* an input, and what is in it */
typedef struct late_arrays { late_array of[4]; int count; } late_arrays;
/* A kernel that lets the next one begin at once, and writes only 20 us later what that one reads. */
static __global__ void late_k(late_arrays late)
{
    size_t i;
    int j;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    for (i = 0; i < 20; i++) __nanosleep(1000);
#endif
    for (j = 0; j < late.count; j++)
        for (i = threadIdx.x; i < late.of[j].bytes; i += blockDim.x) late.of[j].at[i] = late.of[j].there[i];
}
static late_arrays late;
static void late_before(const void *args)
{
    int j;
    (void)args;
    for (j = 0; j < late.count; j++) {
        mem_must(cudaMemcpy(late.of[j].there, late.of[j].at, late.of[j].bytes, cudaMemcpyDeviceToDevice));
        mem_must(cudaMemset(late.of[j].at, 0xff, late.of[j].bytes));
    }
    mem_must(cudaDeviceSynchronize());
    late_k<<<1, 1024, 0, (cudaStream_t)now.stream>>>(late);
    mem_must(cudaGetLastError());
}
/* Until late_end: what `host` stands for, and lies at `there`, is late; up to three of them. */
static void late_begin(const void *there, const void *host)
{
    static cudaStream_t stream;
    late_array *const a = &late.of[late.count++];
    if (!stream) mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    a->at = (unsigned char *)there;
    a->bytes = rows_find(host)->bytes;
    a->there = (unsigned char *)mem_alloc(now.row->arch, a->bytes);
    now.before = late_before, now.stream = stream;
}
static void late_end(void)
{
    now.before = NULL, now.stream = NULL;
    while (late.count) mem_free(now.row->arch, late.of[--late.count].there);
}
#else
static int late_can(void) { return 0; }
static void late_begin(const void *there, const void *host) { (void)there, (void)host; }
static void late_end(void) {}
#endif

/* ---- route ------------------------------------------------------------------------------------------------------- */

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
    const int few = quick_set ? 25 : SMALL ? 9 : 1;    /* one case of so many */
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
                if (quick_set && turn % (slots[s] > 100 ? 17 : 5)) continue;
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], 0, kind, 1);
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], 0, kind, 0);
                sort_case(slots[s], experts[e], m[turn % COUNT(m)], limits[turn % COUNT(limits)], kind, 0);
            }
}

/* ---- quant ------------------------------------------------------------------------------------------------------- */

enum { X_PLAIN, X_ZERO, X_SUBNORMAL, X_HUGE, X_NAN, X_INF, X_ALL_NAN, X_ONE, X_SMALL, X_KINDS };

static double quant_x(int kind, int dtype, int j)
{
    const double x = rng_normal() * 3;
    const double top = format_quantizes(now.format) ? ref_largest(ref_element(now.format->x, dtype)) : 448;
    switch (kind) {
    case X_ZERO:      return j % 2 ? 0.0 : -0.0;
    case X_SUBNORMAL: return x * (dtype == MOEK_DTYPE_FP16 ? 1e-6 : 1e-39);
    case X_HUGE:      return x * (dtype == MOEK_DTYPE_FP16 ? 6e3 : 3e37);
    case X_NAN:       return rng_below(9) ? x : NAN;
    case X_INF:       return rng_below(9) ? x : rng_below(2) ? INFINITY : -INFINITY;
    case X_ALL_NAN:   return NAN;
    case X_ONE:       return j % 16 == 5 ? top : fmin(top, 0.25 * rng_below(40));    /* scale 1: codes on ties */
    case X_SMALL:     return x * (dtype == MOEK_DTYPE_FP16 ? 1e-4 : 1e-12);
    default:          return x;
    }
}
/* A kind for each group of 128 columns of each row.  `calm`: nothing that has no finite maximum. */
static void quant_fill(uint16_t *x, int rows, int cols, int stride, int dtype, int calm, int only)
{
    int r, j, kind = 0;
    for (r = 0; r < rows; r++)
        for (j = 0; j < cols; j++) {
            if (j % 128 == 0) kind = only >= 0 ? only : rng_below(3) ? rng_below(X_KINDS) : X_PLAIN;
            if (calm && (kind == X_NAN || kind == X_INF || kind == X_ALL_NAN)) kind = X_PLAIN;
            x[(size_t)r * stride + j] = ref_to_t(quant_x(kind, dtype, j), dtype);
        }
}
/* per_expert: rows of an expert, with Q_COUNTS; 0: a quarter of all, or one. */
typedef struct quant_case_t {
    int rows, cols, div, dtype, layout, ue8m0, only, per_expert;
    unsigned options;
} quant_case_t;
enum { Q_WEIGHT = 1, Q_TARGET = 2, Q_LIMIT = 4, Q_COUNTS = 8, Q_STATIC = 16, Q_CALM = 32, Q_ZERO = 64 };

static int quant_targets(const quant_case_t *c, moek_quant_args *h)       /* returns the rows that q must have */
{
    const int spare = c->options & Q_TARGET ? 5 : 0;
    int32_t *target;
    int i;
    if (!spare) return c->rows;
    h->target = target = in_i32(c->rows);
    for (i = 0; i < c->rows; i++) {                    /* distinct: 7 is prime, and else they fall */
        target[i] = (c->rows + spare) % 7 ? (i * 7 + 3) % (c->rows + spare) : c->rows + spare - 1 - i;
        if (rng_below(6) == 0) target[i] = -1;
    }
    return c->rows + spare;
}
static void quant_live(const quant_case_t *c, moek_quant_args *h)
{
    int32_t *array;
    int i;
    if (c->options & Q_LIMIT) {
        h->row_limit = array = in_i32(1);
        *array = rng_below(4) ? rng_below(c->rows + 1) : c->rows + 3;
    }
    if (!(c->options & Q_COUNTS)) return;
    h->rows_per_expert = c->per_expert ? c->per_expert : c->rows % 4 ? 1 : c->rows / 4;
    h->counts = array = in_i32(c->rows / h->rows_per_expert);
    for (i = 0; i < c->rows / h->rows_per_expert; i++) array[i] = rng_below(h->rows_per_expert + 1);
}
static size_t quant_scale_bytes(const quant_case_t *c, const moek_quant_args *h, int rows)
{
    const moek_format *const f = now.format;
    const size_t groups = moek_scale_count(&f->x_scale, 1, (size_t)(h->group_offset + c->cols));
    const size_t each = ref_bytes(ref_scale_type(f->x_scale.type, h->dtype), 1);
    if (!format_blocked(f)) return each * (format_by_row(f) ? (size_t)rows : 1);
    if (c->layout == MOEK_SCALE_ROW) return (size_t)rows * groups * each;
    return (size_t)h->scale_stride * (c->layout == MOEK_SCALE_COLUMN ? groups * each : (groups + 3) / 4 * 4);
}
/* Bits, but that a NaN is a NaN: its sign is the machine's choice (Inf / Inf is -NaN on x86, +NaN on a GPU). */
static void quant_same_codes(const char *field, const ref_number *number, const void *host, const void *want, size_t n,
                             int columns)
{
    size_t i, bad = n;
    unsigned g = 0, w = 0;
    for (i = 0; i < n && bad == n; i++) {
        g = ref_code(number, got(host), i), w = ref_code(number, want, i);
        if (g == w) continue;
        if (isnan(ref_decode(number, g)) && isnan(ref_decode(number, w))) continue;
        bad = i;
    }
    CHECK(bad == n, "%s: %s: %s row %d column %d is %x, not %x", now.row->name, now.what, field,
          (int)(bad / (size_t)columns), (int)(bad % (size_t)columns), g, w);
}
static void quant_same(const moek_quant_args *h, int rows, const void *want)
{
    quant_same_codes("q", ref_element(now.format->x, h->dtype), h->q, want, (size_t)rows * h->cols, h->cols);
}
static void quant_check(const moek_quant_args *h, moek_quant_args r, int rows)
{
    const ref_number *const type = ref_scale_type(now.format->x_scale.type, h->dtype);
    r.q = rows_want(h->q), r.scale = rows_want(h->scale);
    ref_quant(&r, now.format);
    quant_same(h, rows, r.q);
    if (h->scale_layout == MOEK_SCALE_PACKED) rows_same("scale", h->scale, r.scale);
    else {
        quant_same_codes("scale", type, h->scale, r.scale, rows_find(h->scale)->bytes * 8 / (size_t)type->width, 1);
        free(r.scale);
    }
    if (h->zero) {
        r.zero = (int32_t *)rows_want(h->zero);
        memset(r.zero, 0, (size_t)h->zeros * 4);
        rows_same("zero", h->zero, r.zero);
    }
    free(r.q);
}
static void quant_case(const quant_case_t *c)
{
    const int sources = (c->rows - 1) / c->div + 1;
    const int given = rows_stride(now.cases, c->cols), stride = given ? given : c->cols;
    moek_quant_args h, d;
    uint16_t *x;
    float *array;
    int rows, late, times;
    memset(&h, 0, sizeof h);
    SAY("rows %d cols %d stride %d div %d dtype %d layout %d ue8m0 %d only %d options %x", c->rows, c->cols, given,
        c->div, c->dtype, c->layout, c->ue8m0, c->only, c->options);
    h.x_stride = given;
    h.rows = c->rows, h.cols = c->cols, h.source_div = c->div, h.dtype = c->dtype;
    h.ue8m0 = c->ue8m0, h.scale_layout = c->layout;
    if (format_blocked(now.format) && now.cases % 3 == 1) {
        const int step = mem_on_gpu(now.row->arch) ? 8 : now.row->granule;
        h.group_offset = step * (1 + now.cases % (now.format->x_scale.columns / step - 1));
    }
    h.x = x = (uint16_t *)in(rows_size(sources, c->cols, stride) * 2);
    quant_fill(x, sources, c->cols, stride, c->dtype, (c->options & Q_CALM) != 0, c->only);
    if (c->options & Q_WEIGHT) h.row_weight = array = in_f32(sources), fill_f32(array, (size_t)sources, -1, 1.5f);
    if (c->options & Q_STATIC || format_x_second(now.format)) {
        h.static_scale = array = in_f32(1);
        *array = c->only == X_ZERO ? 0 : ldexpf(now.cases % 4 == 3 ? 0.5f : 0.3f + rng_uniform(), -rng_below(9));
        if (now.cases % 8 == 6 && !format_by_tensor(now.format)) *array = ldexpf(1, -125);
    }
    rows = quant_targets(c, &h);
    quant_live(c, &h);
    h.scale_stride = round_up(rows, 4) + (c->options & Q_TARGET ? 4 : 0);
    h.partial = (float *)scratch(MOEK_QUANT_PARTIALS * sizeof(float));
    h.q = out((size_t)rows * moek_element_bytes(now.format->x, (size_t)c->cols));
    h.scale = out(quant_scale_bytes(c, &h, rows));
    if (c->options & Q_ZERO) h.zeros = 1 + c->cols % 700, h.zero = out_i32(h.zeros);
    if (c->rows % 2) h.few = 1 + c->cols % 3;
    d = h;
    MOVE(d.zero);
    MOVE(d.x), MOVE(d.row_weight), MOVE(d.static_scale), MOVE(d.target), MOVE(d.row_limit), MOVE(d.counts);
    MOVE(d.partial), MOVE(d.q), MOVE(d.scale);
    times = sources && now.cases % 3 == 0 && late_can() ? 3 : 1;
    for (late = 0; late < times; late++) {
        d.early = late;
        if (late == 1) late_begin(d.x, h.x);
        if (launch_twice(&d)) quant_check(&h, h, rows);
        if (late == 1) late_end();
    }
    rows_clear();
}
static void test_quant(void)
{
    static const int rows[] = { 1, 5, 12, 37, 64 }, cols[] = { 1, 7, 100, 128, 129, 130, 256, 389, 640, 1000 };
    const moek_format *const f = now.format;
    const int granule = now.row->granule, cases = quick_set ? 20 : SMALL ? 40 : 500;
    const int fixed = f->static_x, blocked = format_blocked(f);
    const int layouts = !blocked ? 1 : f->x_scale.type == MOEK_SCALE_TYPE_E8M0 ? 3 : 2;  /* packed: powers of two */
    int i;
    quant_case_t c;
    for (i = 0; i < cases; i++) {
        c.per_expert = 0;
        c.rows = rows[rng_below(COUNT(rows))], c.cols = round_up(cols[i % COUNT(cols)], granule);
        if (SMALL && (c.rows > 12 || c.cols > 400)) c.rows = 5, c.cols = round_up(130, granule);
        if (now.row->hidden) c.cols = now.row->hidden;
        c.div = rng_below(3) ? 1 : 3;
        c.dtype = format_dtype_in(f, i);
        c.ue8m0 = f->ue8m0 ? rng_below(2) * (1 + i % 3) : 0;           /* 2 and 3 are no less */
        c.layout = layouts > 1 ? rng_below(c.ue8m0 ? 3 : layouts) : 0;
        c.options = rng_u32() & (Q_WEIGHT | Q_TARGET | Q_LIMIT | Q_COUNTS | Q_CALM | Q_ZERO | (fixed ? Q_STATIC : 0));
        c.only = i % 7 ? -1 : rng_below(3) ? X_ZERO : X_PLAIN;
        quant_case(&c);
    }
    /* Rows of one source at several targets, some of them -1; the last source may have fewer. */
    c.per_expert = 0;
    for (i = 0; i < 12; i++) {
        c.rows = rows[i % COUNT(rows)], c.cols = round_up(cols[i % COUNT(cols)], granule), c.div = 1 + i % 8;
        if (SMALL && c.cols > 400) c.cols = round_up(130, granule);
        if (now.row->hidden) c.cols = now.row->hidden;
        c.layout = blocked ? i % 2 : 0, c.ue8m0 = 0, c.only = -1;
        c.options = Q_TARGET | (i % 3 ? Q_LIMIT : 0) | (i % 4 ? 0 : Q_WEIGHT) | (fixed && i % 2 ? Q_STATIC : 0);
        quant_case(&c);
    }
    for (i = 0; i < 4; i++) {                          /* one source for all, however it is said */
        c.rows = 12, c.cols = now.row->hidden ? now.row->hidden : round_up(130, granule);
        c.div = i % 2 ? 0x7fffffff : 0x40000000, c.options = i < 2 ? Q_TARGET : 0;
        quant_case(&c);
    }
    c.div = 1, c.only = -1, c.layout = c.ue8m0 = 0;
    /* More experts than blocks, and more of each than a block takes at once: blocks go on, within a row and beyond. */
    if (quick_set && now.row->quant % 3) return;
    c.per_expert = 13, c.rows = 2055 * c.per_expert, c.options = Q_COUNTS;
    c.cols = now.row->hidden ? now.row->hidden : round_up(264, granule);
    quant_case(&c);
}

/* ---- up, down ---------------------------------------------------------------------------------------------------- */

/* How far y must move for T(y) to be this code: beyond the middle between it and its neighbour nearer y; -1: it is. */
static double t_needed(double y, unsigned code, int dtype)
{
    const ref_number *f = ref_t(dtype);
    const double *const values = ref_table_(f), g = values[code];
    unsigned neighbour = fabs(g) > fabs(y) ? code - 1 : code + 1;
    if (g == ref_round_t(y, dtype)) return -1;
    if (g == 0) neighbour = y < 0 ? ref_sign_bit(f) + 1 : 1;
    return fabs(y - 0.5 * (g + values[neighbour]));
}
/* In parts of what is allowed, where y may be off by slack before it is rounded once, to nearest; below 1: right. */
static double t_error(unsigned code, double y, double slack, int dtype)
{
    const double g = ref_table_(ref_t(dtype))[code];
    double needed;
    if (y == REF_UNWRITTEN) return code == (ROWS_POISON << 8 | ROWS_POISON) ? 0 : INFINITY;
    if (isnan(y)) return isnan(g) ? 0 : INFINITY;
    if (isinf(y)) return g == y ? 0 : INFINITY;
    needed = t_needed(y, code, dtype);
    return needed < 0 && needed < slack ? 0 : needed / slack;
}
static void t_check(const void *result, const double *y, const double *slack, size_t n, int columns, int dtype)
{
    const uint16_t *const code = (const uint16_t *)result;
    size_t i, bad = n;
    double most = 0;
    int ok = 0;
#ifdef _OPENMP
#pragma omp parallel for reduction(max : most) reduction(min : bad) if (n > 10000)
#endif
    for (i = 0; i < n; i++) {
        const double error = t_error(code[i], y[i], slack[i], dtype);
        if (error > most) most = error;
        if (!(error < 1) && i < bad) bad = i;
    }
    worse(most);
    if (!n) return;
    if (bad == n) bad = 0, ok = 1;
    CHECK(ok, "%s: %s: row %d column %d is %.9g, not %.9g (off by at most %.3g before rounding)%s", now.row->name,
          now.what, (int)(bad / (size_t)columns), (int)(bad % (size_t)columns), ref_get_t(result, bad, dtype), y[bad],
          slack[bad], y[bad] == REF_UNWRITTEN ? ": nobody's row" : "");
}

enum { ORDER_IN = 1, ORDER_OUT = 2 };
typedef struct gemm_case_t {
    int up, dtype, act, layout, bias, experts, topk, slots, batched, n, k, kind, order, bad, turn;
    int a_power, w_power;                              /* scales are 2^this larger */
    int spread;                                        /* those of w are up to 2^this smaller, each by itself */
} gemm_case_t;

/* What the table says of the row (codegen/columns.py). */
static int row_does(int trait) { return (now.row->traits & trait) != 0; }

/* Kernels for sets of instructions of CPUs that do what the row does, which is plain C: they take its cases, for most
 * of the time goes into the oracle.  Blocks of such a kernel, where its height is another. */
static struct { const moek_kernel *row; double worst; int cases; } gemm_set[6];
static int gemm_sets_there;
static moek_sort_args gemm_set_blocks;

/* The sorted rows of each expert, as the row will get them: offsets, order, counts and the blocks, or counts only. */
static void gemm_rows(const gemm_case_t *c, moek_gemm_args *h)
{
    const int self = row_does(MOEK_TRAIT_COUNTS_IDS) ||
                     (row_does(MOEK_TRAIT_SORTS_IDS) && c->slots <= MOEK_SELF_SORT);
    const int block_m = now.row->m ? now.row->m : 16, blocks = moek_max_blocks(c->slots, c->experts, block_m);
    moek_sort_args s;
    int32_t *ids = (int32_t *)ref_alloc((size_t)c->slots * 4);
    memset(&s, 0, sizeof s);
    h->experts = c->experts;
    s.slots = c->slots, s.experts = c->experts, s.block_m = block_m, s.ids = ids, s.counts = in_i32(c->experts);
    fill_ids(ids, c->slots, c->experts, c->kind);
    h->counts = s.counts;
    if (!c->batched && c->order == (c->up ? ORDER_IN : ORDER_OUT) && self) {
        int32_t *own = in_i32(c->slots);
        memcpy(own, ids, (size_t)c->slots * 4);
        h->ids = own;
    }
    if (c->batched) {
        h->rows_per_expert = s.rows_per_expert = 1 + c->slots / 2;
        h->max_blocks = (h->rows_per_expert + block_m - 1) / block_m;
        s.slot_row = (int32_t *)ref_alloc((size_t)c->slots * 4);
        ref_sort(&s);
        free(s.slot_row);
    } else {
        s.offsets = in_i32(c->experts + 1), s.order = in_i32(c->slots), s.num_blocks = in_i32(1);
        s.block_expert = in_i32(blocks), s.block_row = in_i32(blocks);
        ref_sort(&s);
        h->offsets = s.offsets, h->block_expert = s.block_expert, h->block_row = s.block_row;
        h->num_blocks = s.num_blocks, h->max_blocks = blocks;
        h->a_div = 1;
        if (c->order & ORDER_IN) h->a_order = s.order, h->a_div = c->topk;
        if (c->order & ORDER_OUT) h->out_order = s.order;
        if (gemm_sets_there) {
            const int more = moek_max_blocks(c->slots, c->experts, gemm_set[0].row->m);
            s.block_m = gemm_set[0].row->m, s.num_blocks = in_i32(1);
            s.block_expert = in_i32(more), s.block_row = in_i32(more);
            ref_sort(&s);
            gemm_set_blocks = s;
        }
    }
    free(ids);
}
/* Elements that are 1 on average, and scales that leave them so. */
static void gemm_a_row(const moek_gemm_args *h, void *a, size_t row_bytes, void *scale, int row)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->x, h->dtype), *type = ref_scale_type(f->x_scale.type, h->dtype);
    const size_t groups = moek_scale_count(&f->x_scale, 1, (size_t)(h->k_offset + h->k));
    const double size = 1 / ref_spread(number);
    fill_codes((uint8_t *)a + row * row_bytes, (size_t)h->k, number, ref_spread(number));
    if (format_by_tensor(f)) fill_scales(scale, 1, type, size, size);
    else if (groups) fill_scales((char *)scale + row * ref_bytes(type, groups), groups, type, size * 0.5, size * 1.5);
}
/* a: rows that nobody reads stay NaN.  `bad`: one row gets a NaN (or an Inf), which must stay in what is made of it. */
static void gemm_a(const gemm_case_t *c, moek_gemm_args *h)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->x, h->dtype);
    const int rows = c->batched ? c->experts * h->rows_per_expert : c->slots;
    const size_t k_bytes = moek_element_bytes(f->x, (size_t)h->k);
    const size_t row_bytes = now.cases % 3 == 1 ? k_bytes + 16 - k_bytes % 16 + 16 * (now.cases % 5) : k_bytes;
    uint8_t *a = (uint8_t *)in(rows ? (rows - 1) * row_bytes + k_bytes : 0);
    void *scale = f->x_scale.type ? in((size_t)(rows + 1) * moek_scale_bytes(&f->x_scale, 1,
                                                                            (size_t)(h->k_offset + h->k))) : NULL;
    int e, p, bad = -1;
    h->rows = rows, h->a = a, h->a_scale = (const float *)scale;
    h->a_row_bytes = row_bytes == k_bytes ? 0 : (int)row_bytes;
    for (e = 0; e < h->experts; e++) {
        const int begin = c->batched ? e * h->rows_per_expert : h->offsets[e];
        const int end = c->batched ? begin + h->counts[e] : h->offsets[e + 1];
        for (p = begin; p < end; p++) {
            const int row = h->a_order ? h->a_order[p] / h->a_div : p;
            gemm_a_row(h, a, row_bytes, scale, row);
            if (bad < 0 || rng_below(3) == 0) bad = row;
        }
    }
    if (!c->bad || bad < 0) return;
    ref_put_code(number, a + bad * row_bytes, (size_t)rng_below(h->k),
                 number->inf && c->bad != 1 ? number->top : ref_nan(number));
}
/* Where gate and up lie among n rows each. */
static void rows_of_up(int layout, int n, int *gate_first, int *up_first, int *w_step)
{
    *w_step = layout == MOEK_UP_INTERLEAVED ? 2 : 1;
    *gate_first = layout == MOEK_UP_SWAPPED ? n : 0;
    *up_first = layout == MOEK_UP_SWAPPED ? 0 : layout == MOEK_UP_INTERLEAVED ? 1 : n;
}
/* Does the row read weights as fragments only? */
static int gemm_in_fragments(void) { return now.row->reads == MOEK_READS_FRAGMENTS; }
static int gemm_in_panels(void) { return now.row->reads == MOEK_READS_PANELS; }
/* Its w and w_scale, from those of a checkpoint; of format f and its block. */
static void to_fragments(moek_gemm_args *h, const moek_format *f, int block)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    const size_t rows = (size_t)h->experts * h->w_rows;
    moek_repack_args r;
    memset(&r, 0, sizeof r);
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = moek_element_bytes(f->w, (size_t)h->k), r.codes = f->w, r.x = f->x;
    r.columns = of.columns;
    r.from = h->w, r.to = in(rows * r.row_bytes);
    ref_repack(&r);
    h->w = r.to;
    h->tiled = 1;
    if (!of.columns || of.rows != 1) return;           /* scales act on sums: as they come */
    r.codes = 0, r.row_bytes = moek_scale_bytes(&of, 1, (size_t)h->k);
    r.scale_bytes = ref_scale_type(of.type, h->dtype)->width / 8;
    r.group = r.scale_bytes * (of.columns < 64 ? 64 / of.columns : 1);
    r.from = h->w_scale, r.to = in(rows * r.row_bytes);
    ref_repack(&r);
    h->w_scale = r.to;
}
static void gemm_to_fragments(moek_gemm_args *h) { to_fragments(h, now.format, now.row->block); }
/* Its zero points, likewise. */
static const void *gemm_tiled_zeros(const moek_gemm_args *h, const void *zero)
{
    const moek_scale_shape of = moek_weight_scale(now.format, now.row->block);
    moek_repack_args r;
    if (!zero || !of.columns) return zero;
    memset(&r, 0, sizeof r);
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = moek_element_bytes(now.format->w, moek_scale_count(&of, 1, (size_t)h->k));
    r.zeros = 1, r.group = of.columns < 64 ? 64 / of.columns : 1;
    r.from = zero, r.to = in((size_t)h->experts * h->w_rows * r.row_bytes);
    ref_repack(&r);
    return r.to;
}
/* An array of rows of w, of scales or of zero points, in panels; apart: of gate or of up alone. */
static const void *gemm_panels_of(const moek_gemm_args *h, const void *from, size_t row_bytes, int codes, int group,
                                  int zeros)
{
    moek_repack_args r;
    if (!from) return NULL;
    memset(&r, 0, sizeof r);
    r.panels = 1, r.experts = h->experts, r.w_rows = h->w_gate ? h->n : h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = row_bytes, r.codes = codes, r.group = group, r.zeros = zeros;
    r.from = from, r.to = in((size_t)h->experts * r.w_rows * row_bytes);
    ref_repack(&r);
    return r.to;
}
static void gemm_to_panels(moek_gemm_args *h)
{
    const moek_format *const f = now.format;
    const moek_scale_shape of = moek_weight_scale(f, now.row->block);
    const size_t row = moek_element_bytes(f->w, (size_t)h->k);
    const moek_gemm_args was = *h;
    const int codes = f->w_bits == 4 ? f->w : 0;
    h->tiled = MOEK_WEIGHTS_PANELS;
    h->w = gemm_panels_of(&was, was.w, row, codes, 4, 0);
    h->w_gate = gemm_panels_of(&was, was.w_gate, row, codes, 4, 0);
    if (!of.columns || of.rows != 1) return;           /* as they come */
    {
        const size_t bytes = moek_scale_bytes(&of, 1, (size_t)(h->k + h->k_offset));
        const int each = ref_scale_type(of.type, h->dtype)->width / 8;
        h->w_scale = gemm_panels_of(&was, was.w_scale, bytes, 0, each, 0);
        h->gate_scale = gemm_panels_of(&was, was.gate_scale, bytes, 0, each, 0);
    }
}
static const void *gemm_panel_zeros(const moek_gemm_args *h, const void *zero)
{
    const moek_scale_shape of = moek_weight_scale(now.format, now.row->block);
    if (!of.columns) return zero;
    return gemm_panels_of(h, zero, moek_element_bytes(now.format->w,
                                                      moek_scale_count(&of, 1, (size_t)(h->k + h->k_offset))), 0, 1, 1);
}
static moek_gemm_more_args gemm_more;                 /* of the case: second scales and zero points, if it has any */
/* Of so many rows of w, of an expert, and matrices in them; a second scale leaves the others an eighth. */
enum { SECOND = 8 };
static void gemm_w_more(const gemm_case_t *c, moek_gemm_more_args *m, int of_expert, int matrices)
{
    const moek_format *const f = now.format;
    const moek_gemm_args *const h = &m->gemm;
    const ref_number *const number = ref_element(f->w, h->dtype);
    const size_t groups = moek_scale_count(&f->w_scale, 1, (size_t)(h->k_offset + h->k));
    const size_t row = moek_element_bytes(f->w, groups), rows = (size_t)h->experts * of_expert;
    float *second;
    uint8_t *zero;
    size_t r, g;
    if (f->second) {
        m->w_global_scale = second = in_f32(h->experts * matrices);
        fill_f32(second, (size_t)h->experts * matrices, 0.5f / SECOND, 2.0f / SECOND);
    }
    if (!f->zero || c->turn % 3 == 0) return;
    m->w_zero = zero = (uint8_t *)in(rows * row);
    for (r = 0; r < rows; r++)
        for (g = 0; g < groups; g++)
            ref_put_code(number, zero + r * row, g, (unsigned)rng_below(1 << number->width));
}
/* So many rows of w, of an expert, and so many rows of scales that rows share, to h->w, w_scale and bias. */
static void gemm_w_array(const gemm_case_t *c, moek_gemm_more_args *m, int of_expert, int scale_rows, int matrices)
{
    moek_gemm_args *const h = &m->gemm;
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->w, h->dtype), *type = ref_scale_type(f->w_scale.type, h->dtype);
    const size_t rows = (size_t)h->experts * of_expert;
    const size_t groups = moek_scale_count(&f->w_scale, 1, (size_t)(h->k_offset + h->k));
    const size_t scales = groups * (f->w_scale.rows == 0 ? (size_t)h->experts : f->w_scale.rows == 1 ? rows :
                                    (size_t)h->experts * scale_rows);
    const double size = 1.5 / sqrt((double)h->k), scale = size / ref_spread(number) * (f->second ? SECOND : 1);
    void *w, *bias, *scaled;
    if (c->bias) h->bias = bias = in(rows * 2), fill_t(bias, rows, h->dtype, 0.5);
    h->w = w = in(rows * moek_weight_bytes(f, 0, (size_t)h->k));
    if (f->only_blocks) { block_fill(f, w, rows, (size_t)h->k, size, rng_u32()); return; }
    fill_codes(w, rows * h->k, number, scales ? ref_spread(number) : size);
    if (!scales) return;
    scaled = in(ref_bytes(type, scales));
    fill_scales(scaled, scales, type, scale * 0.5, scale * 1.5);
    if (format_integers(f)) fill_signs(scaled, scales, type);
    h->w_scale = (const float *)scaled;
    gemm_w_more(c, m, of_expert, matrices);
}
/* Rows of scales that so many rows have, where rows share them. */
static int gemm_blocks_of(int rows)
{
    const int share = now.format->w_scale.rows;
    return share ? (rows + share - 1) / share : 1;
}
static void gemm_w(const gemm_case_t *c, moek_gemm_args *h)
{
    const int gated = h->w_rows > h->n, apart = gated && c->layout == MOEK_UP_APART;
    const int blocks = gemm_blocks_of(h->n_offset + h->n);
    moek_gemm_more_args gate, up;
    memset(&up, 0, sizeof up);
    up.gemm = *h, gate = up;
    if (!apart) {
        gemm_w_array(c, &up, h->w_rows,
                     gated && !h->scales_apart ? gemm_blocks_of(h->w_rows) : blocks * (1 + gated), 1 + gated);
        *h = up.gemm, gemm_more = up;
        return;
    }
    gemm_w_array(c, c->turn / 2 % 2 ? &gate : &up, h->n, blocks, 1);    /* either may lie first in memory */
    gemm_w_array(c, c->turn / 2 % 2 ? &up : &gate, h->n, blocks, 1);
    gemm_more = up;
    gemm_more.gate_global_scale = gate.w_global_scale, gemm_more.gate_zero = gate.w_zero;
    h->w = up.gemm.w, h->w_scale = up.gemm.w_scale, h->bias = up.gemm.bias;
    h->w_gate = gate.gemm.w, h->gate_scale = gate.gemm.w_scale, h->gate_bias = gate.gemm.bias;
}
/* Scales by a power of two. */
static void gemm_power(const void *scale, const ref_number *type, int power)
{
    const size_t n = rows_find(scale)->bytes * 8 / (size_t)type->width;
    size_t i;
    for (i = 0; i < n; i++) ref_put(type, (void *)scale, i, ldexp(ref_get(type, scale, i), power));
}
/* Scales of w by powers of two up to 2^-spread: a third as they are, a third by about 2^-11. */
static void gemm_spread(const void *scale, const ref_number *type, int spread)
{
    const size_t n = rows_find(scale)->bytes * 8 / (size_t)type->width;
    size_t i;
    for (i = 0; i < n; i++) {
        const int kind = rng_below(3), by = !kind ? 0 : kind == 1 ? 9 + rng_below(5) : rng_below(spread + 1);
        ref_put(type, (void *)scale, i, ldexp(ref_get(type, scale, i), -by));
    }
}
/* Of a shard in its block of so many rows or columns: as the row takes them. */
static int gemm_offset(int turn, int block)
{
    const int g = now.row->granule;
    return block > g ? g * (1 + turn % ((block - 1) / g)) : 0;
}
static void gemm_act(const gemm_case_t *c, moek_gemm_args *h)
{
    const int gated = ref_gated(c->act);
    h->act = c->act;
    now.acts |= 1u << c->act;
    h->alpha = c->turn % 2 ? 1.702f : 1, h->beta = c->turn % 3 ? 1 : 0.5f, h->limit = c->turn % 4 ? 1.5f : 7;
    if (c->act == MOEK_SILU && c->turn % 2) h->limit = 0;
    if (c->act == MOEK_SITU && c->turn % 2) h->beta = 0;
    rows_of_up(c->layout, h->n, &h->gate_first, &h->up_first, &h->w_step);
    if (c->layout == MOEK_UP_APART) h->gate_first = h->up_first = h->w_step = -7;        /* not to be read */
    if (!format_rows_share(now.format) || c->layout == MOEK_UP_INTERLEAVED) return;
    h->scales_apart = gated && c->layout != MOEK_UP_APART && c->turn % 3 == 1;
    if (now.row->op == MOEK_OP_UP && (!gated || h->scales_apart || c->layout == MOEK_UP_APART) && c->turn / 3 % 2)
        h->n_offset = gemm_offset(c->turn, now.format->w_scale.rows);
}
static void gemm_move(moek_gemm_args *d)
{
    MOVE(d->a), MOVE(d->a_scale), MOVE(d->w), MOVE(d->w_scale), MOVE(d->bias), MOVE(d->out), MOVE(d->a_order);
    MOVE(d->out_order), MOVE(d->offsets), MOVE(d->counts), MOVE(d->block_expert), MOVE(d->block_row);
    MOVE(d->w_gate), MOVE(d->gate_scale), MOVE(d->gate_bias), MOVE(d->num_blocks), MOVE(d->split);
    MOVE(d->split_flags), MOVE(d->ids), MOVE(d->q), MOVE(d->q_scale);
}
/* What lets a row of sm90 cut tiles along k, or count tiles that are taken. */
static void gemm_split(moek_gemm_args *h)
{
    if (now.row->scratch) h->split = (float *)scratch((size_t)MOEK_SPLITS * now.row->scratch);
    if (!now.row->flags) return;
    h->split_flags = (int32_t *)scratch((size_t)now.row->flags * 4);
    memset(h->split_flags, 0, (size_t)now.row->flags * 4);
}
/* All that a row takes, on its side. */
static moek_gemm_more_args gemm_moved(const moek_gemm_args *h)
{
    moek_gemm_more_args d = gemm_more;
    d.gemm = *h;
    if (gemm_in_fragments()) d.w_zero = gemm_tiled_zeros(h, d.w_zero);
    if (h->tiled == MOEK_WEIGHTS_PANELS)
        d.w_zero = gemm_panel_zeros(h, d.w_zero), d.gate_zero = gemm_panel_zeros(h, d.gate_zero);
    gemm_move(&d.gemm);
    MOVE(d.a_global_scale), MOVE(d.w_global_scale), MOVE(d.gate_global_scale), MOVE(d.w_zero), MOVE(d.gate_zero);
    return d;
}
static struct { double *y, *slack; } gemm_want;       /* of the case: made for its first launch */
/* Where weights become T in front of the product, bf16 sums are made 2^32 times too small, and terms below 2^-117 are
 * lost.  (gemm_codes has 64 of them.) */
static double gemm_lost(void)
{
    return ref_w_in_t && !format_plain(now.format) && !format_quantizes(now.format) ? ldexp(1, -117 + 6) : 0;
}
/* Elements of T that differ.  (A NaN may have any sign.) */
static size_t gemm_others(const uint16_t *made, const uint16_t *want, size_t n, int dtype)
{
    size_t i, other = 0;
    for (i = 0; i < n; i++)
        other += made[i] != want[i] && !(isnan(ref_get_t(made, i, dtype)) && isnan(ref_get_t(want, i, dtype)));
    return other;
}
/* The case by the kernels for sets of instructions, each compared with the oracle, and with the first of its height:
 * the same bits. */
static void gemm_sets(const moek_gemm_more_args *of, const moek_gemm_args *h, size_t size)
{
    const moek_kernel *const own = now.row;
    const double worst = now.worst;
    const int cases = now.cases;
    const uint16_t *const made = (const uint16_t *)got(h->out);
    uint16_t *result[1 + COUNT(gemm_set)];             /* of the row, and of each set */
    int i, j;
    for (i = 0; i < COUNT(result); i++) result[i] = (uint16_t *)ref_alloc(size * 2);
    memcpy(result[0], made, size * 2);
    for (i = 0; i < gemm_sets_there; i++) {
        moek_gemm_more_args d = *of;
        now.row = gemm_set[i].row, now.cases = cases - 1, now.worst = gemm_set[i].worst;
        if (now.row->m != own->m && d.gemm.block_expert) {
            d.gemm.block_expert = gemm_set_blocks.block_expert, d.gemm.block_row = gemm_set_blocks.block_row;
            d.gemm.num_blocks = gemm_set_blocks.num_blocks;
            MOVE(d.gemm.block_expert), MOVE(d.gemm.block_row), MOVE(d.gemm.num_blocks);
        }
        if (launch_twice(&d)) {
            t_check(made, gemm_want.y, gemm_want.slack, size, h->n, h->dtype);
            for (j = 0; (j ? gemm_set[j - 1].row : own)->m != now.row->m; j++) continue;
            if (j <= i) {
                const size_t other = gemm_others(made, result[j], size, h->dtype);
                CHECK(!other, "%s: %s: %lu of %lu elements of out have other bits than by %s", now.row->name, now.what,
                      (unsigned long)other, (unsigned long)size, (j ? gemm_set[j - 1].row : own)->name);
            }
            gemm_set[i].worst = now.worst, gemm_set[i].cases++;
        }
        memcpy(result[i + 1], made, size * 2);
    }
    now.row = own, now.worst = worst, now.cases = cases;
    memcpy(got(h->out), result[0], size * 2);
    for (i = 0; i < COUNT(result); i++) free(result[i]);
}
/* `exact`: all sums fit in f32, so only the rounding to T may show. */
static void gemm_launch_as(const moek_gemm_args *as, const moek_gemm_args *h, int up, size_t size, int exact)
{
    const moek_gemm_more_args d = gemm_moved(as);
    size_t i;
    if (!launch_twice(&d)) return;
    gemm_more.gemm = *h;
    if (!gemm_want.y) {
        gemm_want.y = (double *)ref_alloc(size * sizeof(double));
        gemm_want.slack = (double *)ref_alloc(size * sizeof(double));
        for (i = 0; i < size; i++) gemm_want.y[i] = REF_UNWRITTEN;
        rows_say("the reference");
        (up ? ref_up : ref_down)(&gemm_more.gemm, now.format, gemm_want.y, gemm_want.slack);
        for (i = 0; exact && i < size; i++) gemm_want.slack[i] = gemm_lost();
    }
    t_check(got(h->out), gemm_want.y, gemm_want.slack, size, h->n, h->dtype);
    if (gemm_sets_there) gemm_sets(&d, h, size);
}
static void gemm_clear(void)
{
    free(gemm_want.y), free(gemm_want.slack);
    gemm_want.y = gemm_want.slack = NULL;
    memset(&gemm_more, 0, sizeof gemm_more);
    rows_clear();
}
static void gemm_launch(const moek_gemm_args *h, int up, size_t size, int exact)
{
    moek_gemm_args as = *h;                            /* as the row reads weights */
    if (gemm_in_fragments()) gemm_to_fragments(&as);
    if (gemm_in_panels()) gemm_to_panels(&as);
    gemm_launch_as(&as, h, up, size, exact);
}
#if MEM_CUDA
/* Launched early, behind a kernel that has not written a and its scales yet (nor a_order, if the row counts slots): the
 * same bits. */
static void gemm_late(const moek_gemm_args *h)
{
    moek_gemm_more_args d = gemm_moved(h);
    d.gemm.early = 1;
    late_begin(d.gemm.a, h->a);
    if (h->a_scale) late_begin(d.gemm.a_scale, h->a_scale);
    if (h->slots) late_begin(d.gemm.a_order, h->a_order);
    rows_again("out behind a late kernel", &d, h->out);
    late_end();
}
#endif
/* w of a GEMM as a tiled one; NULL: it cannot be. */
static const void *gemm_tiles(const moek_gemm_args *h)
{
    moek_repack_args r;
    memset(&r, 0, sizeof r);
    r.row_bytes = moek_element_bytes(now.format->w, (size_t)h->k);
    if (r.row_bytes % 128 || h->n % 8 || h->w_gate || h->k_offset) return NULL;
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.from = h->w, r.to = in((size_t)h->experts * h->w_rows * r.row_bytes);
    ref_repack(&r);
    return r.to;
}
/* The same bits from tiled weights, on sm90. */
static void gemm_tiled(const moek_gemm_args *h)
{
    moek_gemm_args tiled = *h;
    moek_gemm_more_args d;
    if (now.row->reads & MOEK_READS_CHECKPOINT && now.row->reads & MOEK_READS_PANELS && h->n % 16 == 0 &&
        h->k % 32 == 0 && h->k_offset % 32 == 0) {
        gemm_to_panels(&tiled);
        d = gemm_moved(&tiled);
        rows_again("out of panels", &d, h->out);
    }
    if (!(now.row->reads & MOEK_READS_LINES) || !(tiled.w = gemm_tiles(h))) return;
    tiled.tiled = 1;
    d = gemm_moved(&tiled);
    rows_again("out of tiled weights", &d, h->out);
}
/* The row quantizes by itself: the codes of what it made before, and nothing else. */
static void gemm_requantized(const moek_gemm_args *h, int rows)
{
    moek_gemm_args d = *h;
    moek_quant_args made, want;
    int32_t *const target = (int32_t *)ref_alloc((size_t)rows * 4);
    void *const x = ref_alloc((size_t)rows * h->n * 2);
    int e, p;
    memcpy(x, got(h->out), (size_t)rows * h->n * 2);
    memset(target, 0xff, (size_t)rows * 4);
    for (e = 0; e < h->experts; e++) {
        const int begin = h->rows_per_expert ? e * h->rows_per_expert : h->offsets[e];
        for (p = begin; p < begin + h->counts[e]; p++) {
            const int row = h->out_order ? h->out_order[p] : p;
            target[row] = row;
        }
    }
    memset(&made, 0, sizeof made);
    made.rows = rows, made.cols = h->n, made.source_div = 1, made.dtype = h->dtype, made.x = x, made.target = target;
    made.ue8m0 = d.ue8m0 = now.format->ue8m0 && now.cases % 2;
    made.q = d.q = out((size_t)rows * moek_element_bytes(now.format->x, (size_t)h->n));
    if (format_by_tensor(now.format)) {
        d.q_scale = in_f32(1);
        *d.q_scale = ldexpf(0.3f + rng_uniform(), -rng_below(9));
        made.static_scale = d.q_scale;
    } else {
        made.scale = d.q_scale = (float *)out((size_t)rows * moek_scale_bytes(&now.format->x_scale, 1, (size_t)h->n));
    }
    want = made;
    want.q = rows_want(made.q);
    want.scale = made.scale ? rows_want(made.scale) : ref_alloc(4);
    gemm_move(&d);
    if (launch_twice(&d)) {
        ref_quant(&want, now.format);
        quant_same(&made, rows, want.q);
        if (made.scale) rows_same("scale", made.scale, want.scale);
        else free(want.scale);
        rows_same("out", h->out, rows_want(h->out));
    }
    free(want.q), free(target), free(x);
}
static void gemm_case(const gemm_case_t *c)
{
    const moek_format *const f = now.format;
    const int columns = ref_columns(f);
    moek_gemm_args h, as;                              /* as: as the row reads weights */
    size_t rows;
    memset(&h, 0, sizeof h);
    SAY("turn %d n %d k %d act %d layout %d bias %d experts %d topk %d slots %d batched %d kind %d order %d bad %d "
        "dtype %d", c->turn, c->n, c->k, c->act, c->layout, c->bias, c->experts, c->topk, c->slots, c->batched, c->kind,
        c->order, c->bad, c->dtype);
    h.n = c->n, h.k = c->k, h.dtype = c->dtype, h.w_rows = c->up && ref_gated(c->act) ? 2 * c->n : c->n;
    gemm_rows(c, &h);
    if (c->up) gemm_act(c, &h);
    else if (columns && c->turn % 4 == 2 && !gemm_in_fragments()) h.k_offset = gemm_offset(c->turn / 4, columns);
    if (gemm_in_panels() || (now.row->reads & MOEK_READS_PANELS && c->turn % 8 == 6)) h.k_offset -= h.k_offset % 32;
    gemm_a(c, &h);
    gemm_w(c, &h);
    if (format_x_second(f)) {
        float *const second = in_f32(1);
        fill_f32(second, 1, 0.5f, 2);
        gemm_more.a_global_scale = second;
    }
    if (c->a_power) gemm_power(h.a_scale, ref_scale_type(f->x_scale.type, c->dtype), c->a_power);
    if (c->w_power) gemm_power(h.w_scale, ref_scale_type(f->w_scale.type, c->dtype), c->w_power);
    if (c->spread) {                                   /* and one is NaN */
        const ref_number *const type = ref_scale_type(f->w_scale.type, c->dtype);
        gemm_spread(h.w_scale, type, c->spread);
        ref_put_code(type, (void *)h.w_scale, (size_t)rng_below((int)rows_find(h.w_scale)->bytes * 8 / type->width),
                     ref_nan(type));
    }
    rows = c->batched ? (size_t)c->experts * h.rows_per_expert : (size_t)c->slots;
    h.out = out(rows * c->n * 2);
    if (c->turn % 3 == 0) gemm_split(&h);
    as = h;
    if (gemm_in_fragments()) gemm_to_fragments(&as);
    if (gemm_in_panels()) gemm_to_panels(&as);
    if (h.ids) {                                       /* it sorts by itself; no result of sort is there to be read */
        moek_gemm_args self = as;
        self.slots = c->slots;
        self.counts = self.offsets = NULL;
        if (row_does(MOEK_TRAIT_SORTS_IDS)) self.a_order = self.out_order = NULL;
        gemm_launch_as(&self, &h, c->up, rows * c->n, 0);
#if MEM_CUDA
        if (row_does(MOEK_TRAIT_COUNTS_IDS) && c->slots < 1000) gemm_late(&self);
#endif
    }
    h.ids = as.ids = NULL;
    gemm_launch_as(&as, &h, c->up, rows * c->n, 0);
    if (!as.tiled) gemm_tiled(&h);
#if MEM_CUDA
    if (row_does(MOEK_TRAIT_EARLY) && c->turn % 2 && c->slots < 1000) gemm_late(&as);
#endif
    if (c->up && h.w_rows > h.n && !h.n_offset && row_does(MOEK_TRAIT_QUANTIZES_OUT))
        gemm_requantized(&h, (int)rows);
    gemm_clear();
}
/* Sizes that are a multiple of the row's granule, and as little more as can be. */
static int gemm_size(int turn, int largest)
{
    static const int sizes[] = { 72, 1, 136, 3, 264, 392, 128, 520 };
    const int g = now.row->granule, size = sizes[turn % COUNT(sizes)];
    const int n = size < 8 ? g * size : round_up(size, g);
    return n <= round_up(largest, g) ? n : round_up(72, g);
}
/* With the hidden size of a row that has one baked in. */
static void gemm_run(gemm_case_t *c)
{
    if (now.row->hidden && c->up) c->k = now.row->hidden;
    if (now.row->hidden && !c->up) c->n = now.row->hidden;
    if (now.row->arch == 90 && now.cases % 3 == 0) c->k = round_up(c->k, 128);           /* whole steps: also tiled */
    if (gemm_in_panels() || (now.row->reads & MOEK_READS_PANELS && now.cases % 2))
        c->k = round_up(c->k, 32), c->n = round_up(c->n, 16);
    if (gemm_in_fragments() && c->layout == MOEK_UP_APART) c->layout = MOEK_UP_SWAPPED;
    if (quick_set && SMALL && (double)c->slots * c->n * c->k > 1e8) return;             /* a second or more, emulated */
    gemm_case(c);
}
static void gemm_one(int up, int act, int layout, int turn)
{
    static const int slots[] = { 40, 1, 17, 64, 9, 33 };
    const int batched = turn % 3 == 2;
    gemm_case_t c;
    memset(&c, 0, sizeof c);
    c.up = up, c.act = act, c.layout = layout, c.turn = turn;
    c.dtype = format_dtype(now.format) ? format_dtype(now.format) : format_dtype_in(now.format, rng_below(2));
    c.bias = rng_below(2), c.batched = batched, c.experts = 1 + rng_below(SMALL ? 4 : 9), c.topk = 1 + rng_below(3);
    c.slots = slots[turn % COUNT(slots)] * (SMALL ? 1 : 1 + rng_below(2));
    c.kind = rng_below(IDS_KINDS), c.order = rng_below(4), c.bad = rng_below(5) ? 0 : 1 + rng_below(2);
    c.n = gemm_size(rng_below(8), SMALL ? 136 : 264), c.k = gemm_size(rng_below(8), SMALL ? 264 : 520);
    gemm_run(&c);
}
/* A gated layer of at least n x k, rows in the order that a layer has. */
static gemm_case_t gemm_plain(int up, int kind, int experts, int slots, int n, int k)
{
    gemm_case_t c;
    memset(&c, 0, sizeof c);
    c.up = up, c.act = MOEK_SILU, c.layout = MOEK_UP_HALVES, c.turn = 1, c.experts = experts, c.topk = 2;
    c.slots = slots, c.kind = kind, c.order = up ? ORDER_IN : ORDER_OUT;
    c.dtype = format_dtype_in(now.format, 0);
    c.n = round_up(n, now.row->granule), c.k = round_up(k, now.row->granule);
    return c;
}
/* Large enough for every tile, stage and warp to be in use: a hot expert among empty and small ones. */
static void gemm_large(int up, int batched)
{
    gemm_case_t c = gemm_plain(up, IDS_SKEWED, 7, 2 * (now.row->m > 64 ? now.row->m : 64) + 13, SMALL ? 72 : 328,
                               SMALL ? 136 : 648);
    if (quick_set && (up + batched + now.row->quant) % 2) return;
    c.batched = batched;
    gemm_run(&c);
}
/* One expert with two full row blocks and a third that is not: blocks that go in pairs, and an odd one. */
static void gemm_odd(int up)
{
    const int m = now.row->m ? now.row->m : 16;
    int i;
    if (!mem_on_gpu(now.row->arch)) return;
    for (i = 0; i < 16; i++) {                         /* an odd number of columns of wide tiles, and an even one */
        gemm_case_t c = gemm_plain(up, IDS_ONE, 1, 2 * m + m / 2 + 1 - i % 2, i < 8 ? 328 : 392, 648);
        c.order = i / 2 % 4;
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 4; i++) {                          /* experts with two row blocks and three, in any order */
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 9, 9 * 2 * m, 392, 72);
        c.turn = i;
        c.batched = i == 3;
        if (!leave_out(i, 3)) gemm_run(&c);
    }
    for (i = 0; i < 6; i++) {                          /* one row block and two, the last half full or a row more */
        gemm_case_t c = gemm_plain(up, IDS_ONE, 3, i / 2 % 2 * m + m / 2 + i % 2, 328, i < 4 ? 648 : 136);
        if (!leave_out(i, 7)) gemm_run(&c);
    }
}
/* Experts with one row block and a few rows more, which a tile may take along, or some too many. */
static void gemm_tails(int up)
{
    static const int more[] = { 1, 8, 9, 16, 17, 24, 25, 33 };
    const int m = now.row->m ? now.row->m : 16;
    int i;
    if (now.row->arch != 90 || m < 128) return;
    for (i = 0; i < 3 * COUNT(more); i++) {            /* one expert, or three with as many rows */
        const int experts = i % 3 ? 3 : 1;
        gemm_case_t c = gemm_plain(up, IDS_SORTED, experts, experts * (m + more[i / 3]), gemm_size(i, 520),
                                   i % 2 ? 648 : 136 + 64 * (i % 5));
        c.k = round_up(c.k, now.row->granule), c.n = round_up(c.n, now.row->granule);
        c.turn = i, c.order = i % 4, c.batched = i % 5 == 4, c.bias = i / 2 % 2, c.bad = i % 7 == 6;
        if (up) c.act = MOEK_SILU + i % 11, c.layout = i / 3 % 5;
        c.dtype = format_dtype_in(now.format, i);
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 12; i++) {                         /* tiles enough that none is cut in two; two blocks and a tail */
        const int experts = (i < 11 ? 40 : 20) / (SMALL ? 8 : 1), rows = (i < 11 ? m : 2 * m) + more[i % COUNT(more)];
        gemm_case_t c = gemm_plain(up, IDS_SORTED, experts, experts * rows, up ? 136 : 264, 72);
        c.k = round_up(c.k, now.row->granule), c.n = round_up(c.n, now.row->granule);
        c.turn = i, c.order = i % 4, c.batched = i % 4 == 3, c.bias = i / 2 % 2, c.bad = i == 6;
        if (up) c.act = i < 8 ? MOEK_SILU : MOEK_SILU + i % 11, c.layout = i % 5;
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 6; i++) {                          /* some with tails, some without, some empty or of two blocks */
        const int slots = 9 * (m + 8 * (i - 2));
        gemm_case_t c = gemm_plain(up, i % 2 ? IDS_SKEWED : IDS_RANDOM, 9, slots, i < 3 ? 328 : 72, 392);
        c.turn = i;
        if (!leave_out(i, 3)) gemm_run(&c);
    }
}
/* More row blocks than a GPU has multiprocessors, all but a few of them short. */
static void gemm_blocks(int up, int act, int layout, int turn)
{
    gemm_case_t c = gemm_plain(up, IDS_SKEWED, 150, 600, 136, turn % 3 ? 72 : 264);
    if (leave_out(turn, 13) || !mem_on_gpu(now.row->arch) || now.row->m < 128) return;
    c.act = act, c.layout = layout, c.turn = turn, c.bias = turn % 2;
    gemm_run(&c);
}
/* 4096 tokens (or 4096 of top-2), but few columns: a hot expert beside smaller ones, and one that gets them all.  More
 * tiles than a GPU has multiprocessors, so that persistent blocks take several. */
static void gemm_many(int up, int kind, int topk, int batched, int turn)
{
    const int n = now.row->m < 128 ? 136 : turn < 3 ? 264 : turn < 8 ? 520 : 392;
    gemm_case_t c = gemm_plain(up, kind, 5, (SMALL ? 500 : 4096) * topk, n, 72);
    if (leave_out(turn, 2) || !mem_on_gpu(now.row->arch)) return;
    c.topk = topk, c.batched = batched, c.turn = turn;
    if (turn >= 6) c.k = round_up(turn == 7 ? 1700 : 200, now.row->granule);        /* 1700: 14 or 27 steps */
    gemm_run(&c);
}
static void gemm_many_tokens(int up)
{
    if (now.row->arch == 90 && now.row->m == 128) {   /* blocks in pairs that take several tiles, by demand */
        gemm_many(up, IDS_SKEWED, 2, 0, 3);
        gemm_many(up, IDS_EVEN, 2, 0, 6);
        gemm_many(up, IDS_SKEWED, 2, 0, 7);
        gemm_many(up, IDS_SKEWED, 2, 0, 8);
        gemm_many(up, IDS_EVEN, 2, 0, 9);
    }
    gemm_many(up, IDS_SKEWED, 2, 0, 0);
    gemm_many(up, IDS_ONE, 1, 0, 1);
    gemm_many(up, IDS_SKEWED, 1, 1, 2);
}
/* Scales near the ends of f32, whose products are ordinary; and results that nearly are too large, or too small. */
static void gemm_extremes(int up)
{
    static const int powers[][2] = { { 124, -113 }, { -113, 124 }, { 118, -100 }, { 60, 59 }, { -60, -40 } };
    int i;
    if (now.format->x_scale.type != MOEK_SCALE_TYPE_F32 || now.format->w_scale.type != MOEK_SCALE_TYPE_F32) return;
    for (i = quick_set ? up : 0; i < COUNT(powers); i += quick_set ? 3 : 1) {
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 3, now.row->m + 9, 72, 392);
        c.act = MOEK_RELU_NO_MUL, c.a_power = powers[i][0], c.w_power = powers[i][1];
        gemm_run(&c);
    }
}
/* May a row put scales of w into its elements: powers of two, or what e4m3 may take in? */
static int gemm_has_powers(void)
{
    return ref_rounded(now.format) ||
           (now.format->w_scale.type == MOEK_SCALE_TYPE_E8M0 && format_quantizes(now.format));
}
/* Such scales, where 128 columns have several: some far apart. */
static void gemm_powers(int up)
{
    int i;
    if (!gemm_has_powers()) return;
    for (i = 0; i < (quick_set ? 2 : 6); i++) {
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 3, now.row->m + 9, 136, i % 2 ? 392 : 136);
        c.act = MOEK_RELU_NO_MUL, c.spread = i % 3 ? 40 : 11, c.turn = i;
        gemm_run(&c);
    }
}
/* What all sizes are multiples of, so that weights can be in panels if the row wants that. */
static int gemm_granule(void) { return gemm_in_panels() ? round_up(now.row->granule, 32) : now.row->granule; }
/* Every code of w, or of a, once, times 1: down must give it back.  (NaN times 0 spoils a sum, but few have one.)
 * Or integers in both, whose sums often lie in the middle between two T.  Or codes of w, with scales that are powers of
 * two, up to 2^40 apart; or e4m3, 2^17. */
enum { CODES_IN_A, CODES_IN_W, INTEGERS, POWERS };
static void gemm_codes(int mode)
{
    const int each = mode == POWERS ? 128 : 64;        /* of k */
    const moek_format *const f = now.format;
    const int k = round_up(each, gemm_granule()), dtype = format_dtype_in(f, 0);
    const ref_number *const of_a = ref_element(f->x, dtype), *const of_w = ref_element(f->w, dtype);
    const ref_number *const of_scale = ref_scale_type(f->w_scale.type, dtype);
    const int in_w = mode == CODES_IN_W || mode == POWERS;
    const ref_number *const of = in_w ? of_w : of_a, *const other = in_w ? of_a : of_w;
    const int skip = SMALL && of->width > 8 ? 8 : 1;
    const int codes = mode == POWERS ? each : of->width < 8 ? 1 : (1 << of->width) / skip / each;
    gemm_case_t c;
    moek_gemm_args h;
    void *a, *w, *a_scale, *w_scale;
    float *second;
    size_t size, scales, i;
    if (f->only_blocks && mode != CODES_IN_W) return;  /* (not each has 0 and 1) */
    memset(&c, 0, sizeof c), memset(&h, 0, sizeof h);
    SAY(mode == INTEGERS ? "integers" : mode == POWERS ? "powers of two" : in_w ? "every code of w"
                                                                               : "every code of a");
    c.experts = 1, c.topk = 1, c.kind = IDS_ONE, c.slots = mode == CODES_IN_A ? codes : each;
    h.dtype = dtype, h.k = k;
    h.n = h.w_rows = in_w ? round_up(codes, gemm_granule()) : k;
    gemm_rows(&c, &h);
    h.rows = c.slots, h.a = a = in(c.slots * moek_element_bytes(f->x, (size_t)k));
    h.w = w = in(h.n * moek_weight_bytes(f, 0, (size_t)k));
    for (i = 0; i < (size_t)c.slots * k; i++) ref_put_code(of_a, a, i, ref_encode(of_a, 0));
    if (f->only_blocks) block_fill(f, w, (size_t)h.n, (size_t)k, 1, 7);
    for (i = 0; !f->only_blocks && i < (size_t)h.n * k; i++) ref_put_code(of_w, w, i, ref_encode(of_w, 0));
    for (i = 0; !f->only_blocks && mode != INTEGERS && i < (size_t)each * codes; i++)
        ref_put_code(of, in_w ? w : a, i / each * k + i % each,
                     ((unsigned)i * skip + (unsigned)rng_below(skip)) % (1u << of->width));
    for (i = 0; mode != INTEGERS && i < (size_t)each; i++) ref_put(other, in_w ? a : w, i * k + i, 1);
    for (i = 0; mode == INTEGERS && i < (size_t)each * k; i++) {
        ref_put(of_a, a, i, rng_below(33) - 16);       /* 17 .. are not e4m3 */
        ref_put(of_w, w, i, rng_below(33) - 16);
    }
    scales = (size_t)(h.n + c.slots) * (size_t)k;
    a_scale = in(scales * 4), w_scale = in(scales * 4);
    fill_scales(a_scale, scales, ref_scale_type(f->x_scale.type, dtype), 1, 1);
    fill_scales(w_scale, scales, of_scale, 1, 1);
    if (mode == POWERS && ref_rounded(f)) fill_scales(w_scale, scales, of_scale, 128, 448);
    if (mode == POWERS) gemm_spread(w_scale, of_scale, ref_rounded(f) ? 17 : 40);
    if (f->x_scale.type) h.a_scale = (const float *)a_scale;
    if (f->w_scale.type) h.w_scale = (const float *)w_scale;
    if (f->second) gemm_more.w_global_scale = second = in_f32(1), *second = 1;
    if (format_x_second(f)) gemm_more.a_global_scale = second = in_f32(1), *second = 1;
    size = (size_t)c.slots * h.n;
    h.out = out(size * 2);
    gemm_launch(&h, 0, size, mode != POWERS && !(f->only_blocks && moek_block_of(f->file_type)->sign));
    gemm_clear();
}
/* Integers on both sides whose partial sums need more than the 24 bits of f32, and whose sums do not; or, of long k,
 * whose sums need 33 bits, the low nine of which are 0: all of it must be exact, also where tiles are cut along k. */
static void gemm_exact(int most, int rows, int longer)
{
    enum { N = 64 };
    const moek_format *const f = now.format;
    const int half = round_up(most, gemm_granule()), n = round_up(N, gemm_granule());
    const ref_number *const of_a = ref_element(f->x, MOEK_DTYPE_FP16), *const of_w = ref_element(f->w, MOEK_DTYPE_FP16);
    gemm_case_t c;
    moek_gemm_args h;
    uint8_t *a, *w;
    void *a_scale, *w_scale;
    size_t i, j;
    if (of_a->kind != REF_SIGNED || of_w->kind != REF_SIGNED || ref_columns(f)) return;
    memset(&c, 0, sizeof c), memset(&h, 0, sizeof h);
    SAY("sums of %d integers", 2 * half);
    c.experts = 1, c.topk = 1, c.kind = IDS_ONE, c.slots = rows;
    h.dtype = MOEK_DTYPE_FP16, h.k = 2 * half, h.n = h.w_rows = n;
    gemm_rows(&c, &h);
    h.rows = rows, h.a = a = (uint8_t *)in((size_t)rows * h.k), h.w = w = (uint8_t *)in((size_t)n * h.k);
    for (i = 0; i < (size_t)rows; i++)
        for (j = 0; j < (size_t)half; j++) {
            const int v = longer ? 80 + 16 * rng_below(3) : 100 + rng_below(28);
            ref_put(of_a, a, i * h.k + j, v);                          /* what is left: 16 * 127 */
            ref_put(of_a, a, i * h.k + half + j, longer ? v : -v + (j ? 0 : rng_below(17)));
        }
    for (i = 0; i < (size_t)n; i++)
        for (j = 0; j < (size_t)half; j++) {
            const int v = longer ? i % 2 ? 96 : -96 : 100 + rng_below(28);
            ref_put(of_w, w, i * h.k + j, v), ref_put(of_w, w, i * h.k + half + j, v);
        }
    h.a_scale = a_scale = in((size_t)rows * 4), h.w_scale = w_scale = in((size_t)n * 4);
    fill_scales(a_scale, (size_t)rows, ref_scale_type(f->x_scale.type, h.dtype), 1, 1);
    if (longer) gemm_power(a_scale, ref_scale_type(f->x_scale.type, h.dtype), -20);
    fill_scales(w_scale, (size_t)n, ref_scale_type(f->w_scale.type, h.dtype), 1, 1);
    h.out = out((size_t)rows * n * 2);
    gemm_split(&h);
    gemm_launch(&h, 0, (size_t)rows * n, 1);
    gemm_clear();
}
#define UP_ACT(NAME, name, number, gated) { number, gated },
static void test_up(void)
{
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, again, turn = 0;
    for (again = 0; again < (SMALL || quick_set ? 1 : 4); again++)
        for (i = 0; i < COUNT(acts); i++)
            for (layout = MOEK_UP_HALVES; layout <= (acts[i][1] ? MOEK_UP_APART : MOEK_UP_HALVES); layout++)
                if (each_act(i, layout, acts[i][1]) || !quick_set) gemm_one(1, acts[i][0], layout, turn++);
    each_act_end();
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_HALVES; layout <= (acts[i][1] ? MOEK_UP_APART : MOEK_UP_HALVES); layout++)
            gemm_blocks(1, acts[i][0], layout, turn++);
    gemm_large(1, 0);
    gemm_large(1, 1);
    gemm_odd(1);
    gemm_tails(1);
    gemm_many_tokens(1);
    gemm_extremes(1);
    gemm_powers(1);
}
static void test_down(void)
{
    int turn;
    for (turn = 0; turn < (quick_set ? 9 : SMALL ? 18 : 100); turn++) gemm_one(0, 0, 0, turn);
    for (turn = 0; turn < 4; turn++) gemm_blocks(0, MOEK_SILU, MOEK_UP_HALVES, turn);
    gemm_large(0, 0);
    gemm_large(0, 1);
    gemm_odd(0);
    gemm_tails(0);
    gemm_many_tokens(0);
    gemm_extremes(0);
    gemm_powers(0);
    if (!now.row->hidden) gemm_codes(CODES_IN_A), gemm_codes(CODES_IN_W), gemm_codes(INTEGERS), gemm_exact(4096, 40, 0);
    if (!now.row->hidden && gemm_has_powers()) gemm_codes(POWERS);
    if (!now.row->hidden && (quick_row(now.row) || !SMALL)) gemm_exact((quick_set ? 2 : 3) << 16, 5, 1);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

enum { C_SLOT_ROW = 1, C_WEIGHTS = 2, C_ADDEND = 4, C_ALIAS = 8, C_NOBODY = 16, C_ANYBODY = 32 };

/* `exact`: integers, whose sums fit in f32 and often lie in the middle between two T. */
static void combine_fill(uint16_t *array, size_t n, int dtype, int exact)
{
    const int most = dtype == MOEK_DTYPE_FP16 ? 1024 : 128;
    size_t i;
    if (!exact) fill_t(array, n, dtype, 2);
    for (i = 0; exact && i < n; i++) array[i] = ref_to_t(rng_below(2 * most + 1) - most / 2, dtype);
}
/* What the stride of a field of combine comes to. */
static int combine_stride(int given, int hidden) { return given ? given : hidden; }

static void combine_case(int tokens, int topk, int hidden, int dtype, unsigned options)
{
    const int experts = 1 + rng_below(20), slots = tokens * topk, most = slots + 7;
    const int exact = !(options & C_WEIGHTS) && rng_below(2);
    const size_t size = (size_t)tokens * hidden;
    moek_combine_args h, d;
    int32_t *ids, *slot_row = NULL;
    uint16_t *rows, *addend;
    float *weights;
    double *y, *slack;
    void *made;
    size_t row_step, rows_all, y_all, addend_all;
    int i, y_step;
    memset(&h, 0, sizeof h);
    h.rows_stride = rows_stride(now.cases, hidden), h.y_stride = rows_stride(now.cases / 2, hidden);
    h.addend_stride = options & C_ALIAS ? h.y_stride : rows_stride(now.cases / 4, hidden);
    row_step = combine_stride(h.rows_stride, hidden), y_step = combine_stride(h.y_stride, hidden);
    rows_all = rows_size(most, hidden, (int)row_step), y_all = rows_size(tokens, hidden, y_step);
    addend_all = rows_size(tokens, hidden, combine_stride(h.addend_stride, hidden));
    SAY("tokens %d topk %d hidden %d strides %d %d %d dtype %d options %x", tokens, topk, hidden, h.rows_stride,
        h.addend_stride, h.y_stride, dtype, options);
    h.tokens = tokens, h.topk = topk, h.hidden = hidden, h.experts = experts, h.dtype = dtype;
    h.ids = ids = in_i32(slots);
    fill_ids(ids, slots, experts, options & C_NOBODY ? IDS_NONE : IDS_RANDOM);
    if (options & C_ANYBODY) h.ids = NULL;
    if (options & C_SLOT_ROW) {
        h.slot_row = slot_row = in_i32(slots);
        for (i = 0; i < slots; i++) slot_row[i] = rng_below(7) ? (i * 5 + 2) % most : -1;
    }
    h.discard = rng_below(2) && (!slot_row || most % 5);               /* (else two slots may have a row) */
    h.rows = rows = (uint16_t *)(h.discard ? scratch : in)(rows_all * 2);
    memset(rows, 0xff, rows_all * 2);
    if (options & C_WEIGHTS) h.weights = weights = in_f32(slots), fill_f32(weights, (size_t)slots, -0.5f, 1.5f);
    for (i = 0; i < slots; i++) {                      /* rows that nobody reads stay NaN, and so do their weights */
        const int row = slot_row ? slot_row[i] : i, used = row >= 0 && (!h.ids || (ids[i] >= 0 && ids[i] < experts));
        if (!used && h.weights) ((float *)h.weights)[i] = NAN;
        if (!used) continue;
        combine_fill(rows + row * row_step, (size_t)hidden, dtype, exact);
        if (rng_below(30)) continue;
        rows[row * row_step + rng_below(hidden)] = ref_to_t(rng_below(2) ? NAN : INFINITY, dtype);
    }
    h.y = out(y_all * 2);
    if (options & C_ADDEND) {
        h.addend = addend = options & C_ALIAS ? (uint16_t *)h.y : (uint16_t *)in(addend_all * 2);
        combine_fill(addend, addend_all, dtype, exact);
    }
    d = h;
    MOVE(d.rows), MOVE(d.ids), MOVE(d.slot_row), MOVE(d.weights), MOVE(d.addend), MOVE(d.y);
    if (launch_twice(&d)) {
        y = (double *)ref_alloc(size * sizeof *y), slack = (double *)ref_alloc(size * sizeof *slack);
        ref_combine(&h, y, slack);
        if (exact) memset(slack, 0, size * sizeof *slack);
        made = rows_dense("y", h.y, tokens, hidden, y_step);
        t_check(made, y, slack, size, hidden, dtype);
        free(y), free(slack), free(made);
    }
    rows_clear();
}
static void test_combine(void)
{
    static const int tokens[] = { 1, 0, 5, 33 }, topk[] = { 1, 2, 8, 10, 33 };
    static const int hidden[] = { 1, 3, 72, 64, 136, 513, 1000, 1032, 1216 };
    unsigned options;
    int t, turn = 0;
    for (options = 0; options < 64; options++)
        for (t = 0; t < COUNT(tokens); t++, turn++) {
            const int g = now.row->granule, dtype = rng_below(2) ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
            int size = hidden[turn % COUNT(hidden)];
            size = now.row->hidden ? now.row->hidden : size < 8 ? g * size : round_up(size, g);
            if (!SMALL || turn % 5 == 0) combine_case(tokens[t], topk[turn % COUNT(topk)], size, dtype, options);
        }
}

/* ---- repack ------------------------------------------------------------------------------------------------------ */

/* There, byte for byte as the contract says, and back: what came, so no byte is lost. */
static void repack_case(int experts, int n, int layout, size_t row_bytes, int codes, int x, int columns, int group,
                        int scale_bytes, int zeros)
{
    const int panels = now.row->arch < MOEK_ARCH_SM80;
    moek_repack_args h, d;
    size_t size, i;
    void *want;
    char *from;
    memset(&h, 0, sizeof h);
    SAY("experts %d n %d layout %d row_bytes %d codes %d x %d columns %d group %d zeros %d", experts, n, layout,
        (int)row_bytes, codes, x, columns, group, zeros);
    h.codes = codes, h.x = x, h.columns = columns, h.group = group, h.scale_bytes = scale_bytes, h.zeros = zeros;
    h.panels = panels;
    h.experts = experts, h.n = n, h.w_rows = layout ? 2 * n : n, h.row_bytes = row_bytes;
    rows_of_up(layout, n, &h.gate_first, &h.up_first, &h.w_step);
    size = (size_t)experts * h.w_rows * row_bytes;
    h.from = from = (char *)in(size), h.to = out(size);
    for (i = 0; i < size; i++) from[i] = (char)rng_u32();
    d = h, want = rows_want(h.to);
    MOVE(d.from), MOVE(d.to);
    if (launch_twice(&d)) {
        d = h, d.to = want;
        ref_repack(&d);
        rows_same("to", h.to, want);
        h.from = in(size), h.to = out(size), h.back = 1;
        memcpy((void *)h.from, rows_find(from)[1].got + ROWS_GUARD, size);               /* `to`, made behind it */
        d = h, want = rows_want(h.to);
        MOVE(d.from), MOVE(d.to);
        memcpy(want, from, size);
        if (launch_twice(&d)) rows_same("from, again", h.to, want);
        else free(want);
    } else free(want);
    rows_clear();
}
static void test_panels(void)
{
    static const int sizes[] = { 16, 32, 48, 272 };
    int i, layout;
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (quick_set ? 4 : 12); i++) {
            const int n = sizes[(i + layout) % COUNT(sizes)], group = 1 << i % 3;
            const size_t units = (size_t)(1 + i * 7 % 11);
            repack_case(1 + i % 3, n, layout, 16 * units, i % 2 ? MOEK_ELEMENT_E2M1 : MOEK_ELEMENT_U4B8, 0, 0, 0, 0, 0);
            repack_case(1 + i % 3, n, layout, (size_t)group * units, 0, 0, 0, group, 0, 0);
            repack_case(1 + i % 3, n, layout, units, 0, 0, 0, 0, 0, 1);
        }
}
static void test_repack(void)
{
    static const int sizes[] = { 8, 16, 40, 264, 1032 }, steps[] = { 1, 2, 5, 33, 56 };
    int i, layout;
    if (now.row->arch < MOEK_ARCH_SM80) { test_panels(); return; }
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (quick_set ? 5 : SMALL ? 12 : 25); i++)
            repack_case(1 + i % 3, sizes[i % COUNT(sizes)], layout, 128 * (size_t)steps[(i + i / 5) % COUNT(steps)],
                        0, 0, 0, 0, 0, 0);
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)
        for (i = 0; i < (quick_set ? 4 : 12); i++) {
            const int n = 64 * (1 + i * 5 % 7), group = i % 2 ? 4 : 2;
            const size_t units = (size_t)(1 + i * 7 % 11);
            repack_case(1 + i % 3, n, layout, 32 * units, i % 2 ? MOEK_ELEMENT_E2M1 : MOEK_ELEMENT_U4B8,
                        i / 2 % 2 ? MOEK_ELEMENT_E4M3 : MOEK_ELEMENT_T, (i / 4 + layout) % 2 ? 32 : 16, 0, 0, 0);
            repack_case(1 + i % 3, n, layout, units * (size_t)group, 0, 0, 0, group, i % 4 == 3 ? 4 : 1 + i / 2 % 2,
                        0);
            repack_case(1 + i % 3, n, layout, units, 0, 0, 0, 1 + i % 2, 0, 1);
            repack_case(1 + i % 3, n, layout, 32 * units, i % 2 ? MOEK_ELEMENT_E4M3 : MOEK_ELEMENT_S8,
                        MOEK_ELEMENT_T, 0, 0, 0, 0);
        }
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

static const moek_format *format_that_expands(int columns)
{
    int i = 0;
    while (!format_at(i)->expands || format_at(i)->w_scale.columns != columns) i++;
    return format_at(i);
}
/* spread: of scales, in powers of 2; a NaN among those of 32 columns if it is the largest there is. */
static void expand_case(int experts, int n, int k, int layout, int columns, int spread)
{
    const size_t w_rows = layout ? 2 * (size_t)n : (size_t)n, rows = experts * w_rows;
    const size_t groups = (size_t)(k / columns), blocks = rows * 2 * ((size_t)k / 128 + 1);
    uint8_t *const codes = (uint8_t *)ref_alloc(rows * k / 2), *const scales = (uint8_t *)ref_alloc(rows * groups);
    moek_expand_args h, d;
    moek_gemm_args w;
    size_t i;
    void *want, *want_scale;
    memset(&h, 0, sizeof h);
    memset(&w, 0, sizeof w);
    SAY("experts %d n %d k %d layout %d columns %d spread %d", experts, n, k, layout, columns, spread);
    h.experts = experts, h.n = n, h.k = k, h.w_rows = (int)w_rows, h.columns = columns;
    rows_of_up(layout, n, &h.gate_first, &h.up_first, &h.w_step);
    for (i = 0; i < rows * k / 2; i++) codes[i] = (uint8_t)rng_u32();
    for (i = 0; i < rows * groups; i++)
        scales[i] = (uint8_t)(columns == 32 ? 120 + rng_below(spread) : rng_below(8 * spread));
    if (columns == 32 && spread > 30) scales[rng_below((uint32_t)(rows * groups))] = 255, scales[0] = 0;
    if (columns == 16) memset(scales, 0, groups);      /* a row of zeros, and sometimes one with a NaN */
    if (columns == 16 && spread > 9) scales[groups + (size_t)rng_below((int)(rows - 1) * (int)groups)] = 127;
    w.experts = experts, w.n = n, w.k = k, w.w_rows = h.w_rows, w.w = codes, w.w_scale = scales;
    w.gate_first = h.gate_first, w.up_first = h.up_first, w.w_step = h.w_step;
    to_fragments(&w, format_that_expands(columns), 0);
    h.w = w.w, h.w_scale = w.w_scale;
    if (columns == 16) {
        h.w_global_scale = (const float *)in(2 * (size_t)experts * sizeof(float));
        fill_f32((float *)(uintptr_t)h.w_global_scale, 2 * (size_t)experts, 0.5f, 2);
    }
    h.to = out(rows * k), h.to_scale = (float *)out(4 * (columns == 16 ? rows : blocks));
    d = h, want = rows_want(h.to), want_scale = rows_want(h.to_scale);
    MOVE(d.w), MOVE(d.w_scale), MOVE(d.w_global_scale), MOVE(d.to), MOVE(d.to_scale);
    if (launch_twice(&d)) {
        const float *const scale = (const float *)got(h.to_scale);
        d = h, d.to = want, d.to_scale = (float *)want_scale;
        ref_expand(&d, codes, scales);
        for (i = 0; i < (columns == 16 ? rows : blocks); i++)          /* one NaN is as good as another */
            if (scale[i] != scale[i] && d.to_scale[i] != d.to_scale[i]) {
                d.to_scale[i] = scale[i];
                if (columns == 16) memcpy((char *)want + i * k, (const char *)got(h.to) + i * k, (size_t)k);
            }
        rows_same("to", h.to, want);
        rows_same("to_scale", h.to_scale, want_scale);
    } else free(want), free(want_scale);
    free(codes), free(scales);
    rows_clear();
}
static void test_expand(void)
{
    static const int n[] = { 64, 128, 192, 448 }, k[] = { 64, 128, 192, 576, 1024 };
    int i, layout;
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (quick_set ? 6 : SMALL ? 10 : 20); i++) {
            expand_case(1 + i % 3, n[i % COUNT(n)], k[(i + layout) % COUNT(k)], layout, 32,
                        i % 2 ? 10 : i % 4 ? 20 : 40);
            expand_case(1 + i % 2, n[i % COUNT(n)], k[(i + layout) % COUNT(k)], layout, 16, i % 3 ? 15 : 9);
        }
}

/* ---- layer ------------------------------------------------------------------------------------------------------- */

static int multiprocessors(void)
{
    int n = 1;
#ifdef MOEK_EMU
    n = EMU_RESIDENT;
#endif
#if MEM_CUDA
    mem_must(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
#endif
    return n;
}
/* What a case has besides: scales of 0 in every other 128 of k; a token of NaN that its router gave no weight; a NaN in
 * an expert's bias, which others must not see; no weights at all. */
enum { LAYER_PLAIN, LAYER_ZERO_SCALES, LAYER_NAN_TOKEN, LAYER_NAN_BIAS, LAYER_NO_WEIGHTS, LAYER_ODDITIES };
static void layer_odd(int odd, moek_layer_args *h, moek_gemm_args *up, moek_gemm_args *down)
{
    const moek_scale_shape *const shape = &now.format->w_scale;
    const moek_gemm_args *both[2];
    int g, i, k;
    both[0] = up, both[1] = down;
    for (g = 0; odd == LAYER_ZERO_SCALES && g < 2; g++) {
        const int groups = (int)moek_scale_count(shape, 1, (size_t)both[g]->k);
        const int blocks = both[g]->experts * gemm_blocks_of(both[g]->w_rows);
        for (i = 0; i < blocks * groups; i++) if (i % groups % 2 == 0) ((float *)both[g]->w_scale)[i] = 0;
    }
    for (k = 0; odd == LAYER_NAN_TOKEN && k < h->topk; k++) ((float *)h->weights)[k] = 0;
    for (i = 0; odd == LAYER_NAN_TOKEN && i < up->k; i++) ((uint16_t *)h->x)[i] = 0x7fff;
    if (odd == LAYER_NAN_BIAS && h->ids[0] >= 0 && h->ids[0] < down->experts)
        ((uint16_t *)down->bias)[(size_t)h->ids[0] * down->w_rows] = 0x7fff;
    if (odd == LAYER_NO_WEIGHTS) h->weights = NULL;
}
/* A row of few tokens leaves its count, and zeros where the next will write h; another zeros but for its count. */
static void layer_left(const moek_layer_state *was, const moek_layer_state *is, int blocks)
{
    const int few = now.row->most_tokens > 0, turn = few && was->launches[0];
    int i, flags = 0, h = 0;
    for (i = few ? 0 : 2; i < MOEK_LAYER_FLAGS; i++) flags += is->flags[i] != 0;
    for (i = 0; i < MOEK_FEW_H / 2; i++) h += is->h[few ? turn ^ 1 : i % 2][i] != 0;
    CHECK(!flags && !h && (few ? (int)(is->launches[0] - was->launches[0]) : is->flags[0]) == blocks,
          "%s: %s: the state is left with %d flags, %d of h, count %d", now.row->name, now.what, flags, h,
          few ? (int)(is->launches[0] - was->launches[0]) : is->flags[0]);
}
/* y of a whole layer, or of slots: in relative L2, and each element. */
static void layer_compare(const void *y, const double *want, int rows, int hidden, int inter, int dtype,
                          double tolerance)
{
    const ref_distance off = ref_compare_t(y, want, (size_t)rows * hidden, dtype);
    const ref_worst w = ref_worst_of(y, want, rows, hidden, dtype);
    const double bound = ref_bound(now.format, dtype, inter, now.row->arch);
    worse(off.rel_l2 / tolerance);
    if (w.off / bound > now.worst_element) now.worst_element = w.off / bound;
    CHECK(off.rel_l2 < tolerance && off.same_nonfinite, "%s: %s: off by %.2e, at most %.2e", now.row->name, now.what,
          off.rel_l2, off.max_abs);
    CHECK(w.off < bound, "%s: %s: row %d column %d is off by %.3f of its row's rms", now.row->name, now.what, w.row,
          w.column, w.off);
}
/* x and h have scales that are known before, if the format has such. */
static void layer_static(moek_gemm_args *up, moek_gemm_args *down)
{
    const float most = 4.5f / (float)ref_largest(ref_element(now.format->x, up->dtype));
    if (!now.format->static_x) return;
    up->a_scale = in_f32(1), down->a_scale = in_f32(1);
    fill_f32((float *)up->a_scale, 1, 0.9f * most, most), fill_f32((float *)down->a_scale, 1, 0.9f * most, most);
}
/* For `rows` quantized rows, where columns share scales. */
static const float *layer_scales(int rows, int columns)
{
    const moek_scale_shape *const shape = &now.format->x_scale;
    return (const float *)scratch((size_t)rows * moek_scale_bytes(shape, 1, (size_t)columns));
}
static void layer_odd_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                           int kind, int odd)
{
    const moek_format *const f = now.format;
    const int fp8 = format_quantizes(f), slots = tokens * topk, fragments = gemm_in_fragments();
    const int blocks = multiprocessors();
    /* A code of h that falls to its neighbour counts for more, the fewer there are, and so does a rounded y. */
    const double all = (double)tokens * hidden;
    const double tolerance = (fp8 ? 9e-3 : 3e-3) * (fp8 && all < 1e4 ? 4 : all < 100 ? 2 : 1);
    gemm_case_t c;
    moek_gemm_args up, down;
    moek_gemm_more_args up_more, down_more, d_up, d_down;
    moek_layer_args h, d;
    moek_weights w;
    ref_layer_args r;
    int32_t *ids;
    double *want;
    void *made;
    size_t x_all, y_all, addend_all;
    int i, y_step;
    memset(&c, 0, sizeof c), memset(&up, 0, sizeof up), memset(&down, 0, sizeof down);
    memset(&h, 0, sizeof h), memset(&w, 0, sizeof w), memset(&r, 0, sizeof r);
    if (turn % 3 == 2 || turn % 7 == 0) hidden = round_up(hidden, 128), inter = round_up(inter, 128);  /* also tiled */
    SAY("tokens %d topk %d experts %d hidden %d inter %d act %d layout %d kind %d turn %d odd %d", tokens, topk,
        experts, hidden, inter, act, layout, kind, turn, odd);
    h.x_stride = rows_stride(turn, hidden), h.y_stride = rows_stride(turn / 2, hidden);
    h.addend_stride = turn % 2 ? h.y_stride : rows_stride(turn / 4, hidden);
    y_step = h.y_stride ? h.y_stride : hidden;
    x_all = rows_size(tokens, hidden, h.x_stride ? h.x_stride : hidden), y_all = rows_size(tokens, hidden, y_step);
    addend_all = rows_size(tokens, hidden, h.addend_stride ? h.addend_stride : hidden);
    c.act = act, c.layout = layout, c.turn = turn, c.bias = turn % 3 == 1 || odd == LAYER_NAN_BIAS;
    up.dtype = down.dtype = fragments ? MOEK_DTYPE_BF16 : format_dtype_in(f, turn);
    up.experts = down.experts = experts;
    up.n = down.k = inter, up.k = down.n = down.w_rows = hidden, up.w_rows = ref_gated(act) ? 2 * inter : inter;
    if (fragments && c.layout == MOEK_UP_APART) c.layout = layout = MOEK_UP_SWAPPED;
    gemm_act(&c, &up);
    gemm_w(&c, &up);
    up_more = gemm_more;
    gemm_w(&c, &down);
    down_more = gemm_more;
    h.tokens = tokens, h.topk = topk, h.ue8m0 = f->ue8m0 && turn % 4 == 3;
    h.ids = ids = in_i32(slots);
    fill_ids(ids, slots, experts, kind);
    h.weights = in_f32(slots);
    fill_f32((float *)h.weights, (size_t)slots, -0.5f, 1.5f);
    h.x = in(x_all * 2);
    for (i = 0; i < tokens; i++)                       /* between them they stay NaN */
        fill_t((uint16_t *)h.x + (size_t)i * (h.x_stride ? h.x_stride : hidden), (size_t)hidden, up.dtype, 1);
    h.y = out(y_all * 2);
    if (turn % 5 == 2) {
        h.addend = turn % 2 ? h.y : in(addend_all * 2);
        fill_t((void *)h.addend, addend_all, up.dtype, 1);
    }
    layer_static(&up, &down);
    r.tokens = tokens, r.slots = topk, r.experts = experts, r.hidden = hidden, r.inter = inter;
    r.format = f, r.dtype = up.dtype, r.act = act, r.alpha = up.alpha, r.beta = up.beta, r.limit = up.limit;
    r.up_layout = layout, r.ue8m0 = h.ue8m0, r.x = h.x, r.ids = ids, r.weights = h.weights, r.w = &w;
    r.addend = h.addend, r.x_stride = h.x_stride, r.addend_stride = h.addend_stride;
    w.w_up = up.w, w.w_up_scale = up.w_scale, w.w_up_bias = up.bias, w.x_scale = (const float *)up.a_scale;
    w.w_gate = up.w_gate, w.w_gate_scale = up.gate_scale, w.w_gate_bias = up.gate_bias;
    r.up_scales = up.scales_apart;
    w.w_down = down.w, w.w_down_scale = down.w_scale, w.w_down_bias = down.bias;
    w.w_up_global_scale = up_more.w_global_scale, w.w_down_global_scale = down_more.w_global_scale;
    w.w_up_zero = up_more.w_zero, w.w_down_zero = down_more.w_zero;
    w.h_scale = (const float *)down.a_scale;
    layer_odd(odd, &h, &up, &down);
    r.weights = h.weights;
    up.a = fp8 ? scratch(tokens * moek_element_bytes(f->x, (size_t)hidden)) : h.x;
    down.a = scratch((size_t)slots * inter * 2);
    if (format_blocked(f)) up.a_scale = layer_scales(tokens, hidden), down.a_scale = layer_scales(slots, inter);
    down.out = scratch((size_t)slots * hidden * 2);
    h.split = now.row->scratch ? (float *)scratch((size_t)blocks * now.row->scratch) : NULL;
    h.equal = turn % 3 == 0;
    h.discard = turn / 2 % 2;
    h.state = (moek_layer_state *)scratch(sizeof *h.state);
    memset(h.state, 0, sizeof *h.state);
    if (now.row->most_tokens && turn % 2) {         /* the second launch, behind one that left its h */
        h.state->launches[0] = (unsigned long long)blocks;
        memset(h.state->h[0], 0x5a, sizeof h.state->h[0]);
    }
    d = h, d_up = up_more, d_down = down_more;
    d_up.gemm = up, d_down.gemm = down;
    if (fragments) {
        gemm_to_fragments(&d_up.gemm), gemm_to_fragments(&d_down.gemm);
        d_up.w_zero = gemm_tiled_zeros(&up, d_up.w_zero), d_down.w_zero = gemm_tiled_zeros(&down, d_down.w_zero);
    }
    d.up = &d_up.gemm, d.down = &d_down.gemm;
    MOVE(d.ids), MOVE(d.weights), MOVE(d.x), MOVE(d.addend), MOVE(d.y), MOVE(d.split), MOVE(d.state);
    gemm_move(&d_up.gemm);
    gemm_move(&d_down.gemm);
    MOVE(d_up.w_global_scale), MOVE(d_down.w_global_scale), MOVE(d_up.w_zero), MOVE(d_down.w_zero);
    if (launch_twice(&d)) {
        want = (double *)ref_alloc((size_t)tokens * hidden * sizeof *want);
        ref_layer(&r, want);
        made = rows_dense("y", h.y, tokens, hidden, y_step);
        layer_compare(made, want, tokens, hidden, inter, up.dtype, tolerance);
        free(made);
        layer_left(h.state, (const moek_layer_state *)got(h.state), blocks);
        free(want);
        if (!fragments && (d_up.gemm.w = gemm_tiles(&up)) && (d_down.gemm.w = gemm_tiles(&down))) {
            MOVE(d_up.gemm.w), MOVE(d_down.gemm.w);
            d_up.gemm.tiled = d_down.gemm.tiled = 1;
            rows_again("y of tiled weights", &d, h.y);
        }
    }
    rows_clear();
}
static void layer_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                       int kind)
{
    if (!leave_out(turns++, now.row->most_tokens ? 1 : 11))
        layer_odd_case(turn, act, layout, tokens, topk, experts, hidden, inter, kind, LAYER_PLAIN);
}
/* Rows with m = 4. */
static void test_layer_few(void)
{
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    const int m = now.row->m;
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_HALVES; layout <= (acts[i][1] ? MOEK_UP_APART : MOEK_UP_HALVES); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            layer_case(turn, acts[i][0], layout, 1 + turn % m, 1 + rng_below(32 / m), 4 + rng_below(9),
                       gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < (SMALL ? 2 : 8); i++)              /* (IDS_ONE: a token names one expert more than once) */
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            layer_case(turn, MOEK_SILU, i % 2 ? MOEK_UP_HALVES : MOEK_UP_INTERLEAVED, 1 + i % m,
                       1 + turn % (32 / m), 2 + turn % 20, gemm_size(turn, 520), gemm_size(turn / 3, 392), kind);
    for (i = LAYER_PLAIN + 1; i < LAYER_ODDITIES; i++, turn++)
        if (i != LAYER_ZERO_SCALES || format_rows_share(now.format))
            layer_odd_case(turn, MOEK_SILU, MOEK_UP_HALVES, 3, 2, 9, round_up(328, now.row->granule),
                           round_up(264, now.row->granule), IDS_RANDOM, i);
    /* Fewer items than warps. */
    layer_case(4, MOEK_SILU, MOEK_UP_HALVES, 1, 1, 3, round_up(520, now.row->granule), now.row->granule, IDS_RANDOM);
    layer_case(3, MOEK_SILU, MOEK_UP_HALVES, 1, 1, 3, now.row->granule, now.row->granule, IDS_RANDOM);
    /* Wide experts: in halves, whatever the format. */
    layer_case(1, MOEK_SILU, MOEK_UP_HALVES, 1, 2, 7, round_up(136, now.row->granule), round_up(1100, now.row->granule),
               IDS_RANDOM);
    if (multiprocessors() < 100) return;               /* they would not fit */
    /* Many experts; a k of many items; more than a block's threads in a row of x. */
    layer_case(1, MOEK_SILU, MOEK_UP_HALVES, 4, 8, 1000, round_up(64, now.row->granule), round_up(64, now.row->granule),
               IDS_RANDOM);
    layer_case(2, MOEK_SILU, MOEK_UP_HALVES, 1, 2, 4, round_up(1024, now.row->granule),
               round_up(6200, now.row->granule), IDS_RANDOM);
    layer_case(4, MOEK_SILU, MOEK_UP_HALVES, 3, 4, 9, round_up(7168, now.row->granule), round_up(200, now.row->granule),
               IDS_SKEWED);
}
static void test_layer(void)
{
    static const int tokens[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 127, 128 };
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_HALVES; layout <= (acts[i][1] ? MOEK_UP_APART : MOEK_UP_HALVES); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            layer_case(turn, acts[i][0], layout, tokens[turn % COUNT(tokens)], 1 + rng_below(2), 4 + rng_below(9),
                       gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < COUNT(tokens); i++)                /* (the reference takes 10 ns for a product) */
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            layer_case(turn, MOEK_SILU, MOEK_UP_HALVES, tokens[i], 1 + turn % (tokens[i] > 20 ? 3 : 8), 8 + turn % 60,
                       gemm_size(turn, tokens[i] > 20 ? 136 : 520), gemm_size(turn / 3, tokens[i] > 20 ? 72 : 392),
                       kind);
    if (quick_set && SMALL) return;                    /* (a case takes up to ten seconds) */
    /* Tiles by demand, more than one a block; then runs cut in many places. */
    layer_case(1, MOEK_SILU, MOEK_UP_HALVES, 128, 8, 60, round_up(520, now.row->granule),
               round_up(24, now.row->granule), IDS_RANDOM);
    layer_case(2, MOEK_SILU, MOEK_UP_HALVES, 120, 8, 60, round_up(776, now.row->granule),
               round_up(24, now.row->granule), IDS_SKEWED);
    layer_case(3, MOEK_SILU, MOEK_UP_HALVES, 16, 8, 16, round_up(1000, now.row->granule),
               round_up(300, now.row->granule), IDS_RANDOM);
    layer_case(4, MOEK_SILU, MOEK_UP_HALVES, 30, 8, 1000, round_up(64, now.row->granule),
               round_up(64, now.row->granule), IDS_RANDOM);
    layer_case(5, MOEK_SILU, MOEK_UP_HALVES, 128, 8, 9, round_up(128, now.row->granule),
               round_up(64, now.row->granule), IDS_ONE);
    /* Tiles of up in 4 pieces, and in 3. */
    layer_case(10, MOEK_SILU, MOEK_UP_HALVES, 8, 8, 30, round_up(2700, now.row->granule),
               round_up(72, now.row->granule), IDS_RANDOM);
    layer_case(7, MOEK_RELU2_NO_MUL, MOEK_UP_HALVES, 8, 8, 30, round_up(2700, now.row->granule),
               round_up(72, now.row->granule), IDS_RANDOM);
    layer_case(11, MOEK_SILU, MOEK_UP_INTERLEAVED, 18, 8, 140, 1056 * 16 / now.format->w_bits,
               round_up(16, now.row->granule), IDS_SORTED);
}

/* ---- mlp --------------------------------------------------------------------------------------------------------- */

/* Each slot is a token of a layer with one slot a token and no weights: its y is the slot's row. */
static void mlp_want(const moek_mlp_args *h, const void *x, int stride, const int32_t *ids, int slots, int topk,
                     int layout, double *want)
{
    const size_t row = (size_t)h->up->k * 2;
    char *const every = (char *)ref_alloc((size_t)slots * row);
    moek_weights w;
    ref_layer_args r;
    int i;
    memset(&w, 0, sizeof w), memset(&r, 0, sizeof r);
    for (i = 0; i < slots; i++) memcpy(every + i * row, (const uint16_t *)x + i / topk * (size_t)stride, row);
    r.tokens = slots, r.slots = 1, r.experts = h->up->experts, r.hidden = h->up->k, r.inter = h->up->n;
    r.format = now.format, r.dtype = h->up->dtype, r.act = h->up->act;
    r.alpha = h->up->alpha, r.beta = h->up->beta, r.limit = h->up->limit;
    r.up_layout = layout, r.ue8m0 = h->ue8m0, r.x = every, r.ids = ids, r.w = &w;
    w.w_up = h->up->w, w.w_up_scale = h->up->w_scale, w.w_up_bias = h->up->bias;
    w.w_gate = h->up->w_gate, w.w_gate_scale = h->up->gate_scale, w.w_gate_bias = h->up->gate_bias;
    r.up_scales = h->up->scales_apart;
    w.w_down = h->down->w, w.w_down_scale = h->down->w_scale, w.w_down_bias = h->down->bias;
    if (now.format->static_x) w.x_scale = (const float *)h->up->a_scale, w.h_scale = (const float *)h->down->a_scale;
    ref_layer(&r, want);
    free(every);
}
static void mlp_move(moek_mlp_args *d, moek_gemm_args *up, moek_gemm_args *down)
{
    d->up = up, d->down = down;
    MOVE(d->flags);
    gemm_move(up);
    gemm_move(down);
}
/* x -> a of up: what quant makes of it. */
static void mlp_quantize(moek_gemm_args *up, const void *x, int tokens, int ue8m0)
{
    moek_quant_args q;
    memset(&q, 0, sizeof q);
    up->a = x;
    if (!format_quantizes(now.format)) return;
    q.rows = tokens, q.cols = up->k, q.source_div = 1, q.dtype = up->dtype, q.x = x, q.ue8m0 = ue8m0;
    up->a = q.q = in(tokens * moek_element_bytes(now.format->x, (size_t)up->k));
    if (now.format->static_x) q.static_scale = (const float *)up->a_scale, q.scale = ref_alloc(4);
    else q.scale = in(tokens * moek_scale_bytes(&now.format->x_scale, 1, (size_t)up->k));
    ref_quant(&q, now.format);
    if (now.format->static_x) free(q.scale);
    else up->a_scale = (const float *)q.scale;
}
/* What a case has besides: a token of NaN, or of Inf; gates so far below 0 that two have no reciprocal in common. */
enum { MLP_PLAIN, MLP_NAN, MLP_INF, MLP_FAR, MLP_ODDITIES };
static void mlp_odd_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                         int kind, int odd)
{
    const moek_format *const f = now.format;
    const int fp8 = format_quantizes(f), slots = tokens * topk, by_slot = rng_below(4) != 1;
    const int self = rng_below(2);                     /* the row counts by itself */
    const double all = (double)slots * hidden;
    /* (Few rows of a group or two: that of the largest h may fall to another power of 2, or bf16.) */
    const double tolerance = (fp8 ? 9e-3 : 3e-3) * (fp8 && all < 1e3 ? 8 : fp8 && all < 1e4 ? 4 : all < 100 ? 2 : 1);
    gemm_case_t c;
    moek_gemm_args up, down, d_up, d_down;
    moek_mlp_args h, d;
    const int32_t *ids;
    const uint16_t *made, *before;
    uint16_t *x, *of_slot;
    double *want;
    int i, p, stride, touched = 0;
    if (leave_out(turns++, 11)) return;
    memset(&c, 0, sizeof c), memset(&up, 0, sizeof up), memset(&down, 0, sizeof down), memset(&h, 0, sizeof h);
    if (rng_below(5) < 2) hidden = round_up(hidden, 128), inter = round_up(inter, 128);              /* also tiled */
    c.act = act, c.layout = layout, c.turn = turn, c.bias = rng_below(3) == 1;
    SAY("tokens %d topk %d experts %d hidden %d inter %d act %d layout %d bias %d kind %d turn %d odd %d", tokens, topk,
        experts, hidden, inter, act, layout, c.bias, kind, turn, odd);
    c.up = 1, c.experts = experts, c.slots = slots, c.topk = topk, c.kind = kind, c.order = ORDER_IN;
    up.dtype = down.dtype = format_dtype(f) ? format_dtype(f) : format_dtype_in(f, rng_below(2));
    up.n = down.k = inter, up.k = down.n = down.w_rows = hidden, up.w_rows = ref_gated(act) ? 2 * inter : inter;
    down.experts = experts;
    gemm_rows(&c, &up);
    ids = up.ids;
    up.slots = slots;
    gemm_act(&c, &up);
    gemm_w(&c, &up);
    gemm_w(&c, &down);
    stride = rows_stride(turn, hidden);
    up.a_row_bytes = fp8 ? 0 : 2 * stride;             /* (fp8: x is quantized before, side by side) */
    if (!stride || fp8) stride = hidden;
    x = (uint16_t *)in(rows_size(tokens, hidden, stride) * 2);
    for (i = 0; i < tokens; i++)
        fill_t(x + (size_t)i * stride, (size_t)hidden, up.dtype, odd == MLP_FAR ? 30 : 1);
    p = odd == MLP_NAN || odd == MLP_INF ? rng_below(tokens) * stride : 0;
    for (i = 0; odd == MLP_NAN && i < hidden; i++) x[p + i] = 0x7fff;
    if (odd == MLP_INF) x[p + rng_below(hidden)] = ref_to_t(INFINITY, up.dtype);
    layer_static(&up, &down);
    /* (Inf: 448 times 2^127, which a double is and a float is not.) */
    h.ue8m0 = f->ue8m0 && rng_below(4) == 3 && odd != MLP_INF;
    mlp_quantize(&up, x, tokens, h.ue8m0);
    down.a = scratch((size_t)slots * inter * 2);
    if (format_blocked(f)) down.a_scale = layer_scales(slots, inter);
    down.out = out((size_t)slots * hidden * 2);
    if (by_slot) down.out_order = up.a_order;
    h.flags = (int32_t *)scratch((size_t)(MOEK_MLP_FLAGS + up.max_blocks) * 4);
    memset(h.flags, 0, (size_t)(MOEK_MLP_FLAGS + up.max_blocks) * 4);
    h.up = &up, h.down = &down;
    if (!self) up.ids = NULL;
    d = h, d_up = up, d_down = down;
    mlp_move(&d, &d_up, &d_down);
    if (launch_twice(&d)) {
        want = (double *)ref_alloc((size_t)slots * hidden * sizeof *want);
        of_slot = (uint16_t *)ref_alloc((size_t)slots * hidden * 2);
        memset(of_slot, 0, (size_t)slots * hidden * 2);
        made = (const uint16_t *)got(down.out), before = (const uint16_t *)rows_want(down.out);
        rows_say("the reference");
        mlp_want(&h, x, stride, ids, slots, topk, layout, want);
        for (p = 0; p < up.offsets[experts]; p++) {
            const int slot = up.a_order[p];
            memcpy(of_slot + (size_t)slot * hidden, made + (size_t)(by_slot ? slot : p) * hidden, (size_t)hidden * 2);
        }
        layer_compare(of_slot, want, slots, hidden, inter, up.dtype, tolerance);
        for (i = 0; i < slots; i++) {                  /* nobody's rows */
            const int nobody = by_slot ? ids[i] < 0 || ids[i] >= experts : i >= up.offsets[experts];
            touched += nobody && memcmp(made + (size_t)i * hidden, before + (size_t)i * hidden, (size_t)hidden * 2);
        }
        CHECK(!touched, "%s: %s: %d rows that are nobody's were written", now.row->name, now.what, touched);
        free(want), free(of_slot), free((void *)before);
#if MEM_CUDA
        if (slots < 3000) {                            /* behind a kernel that has not written a, or its order, yet */
            d = h, d_up = up, d_down = down;
            d_up.early = 1;
            mlp_move(&d, &d_up, &d_down);
            late_begin(d_up.a, up.a);
            late_begin(d_up.a_order, up.a_order);
            late_begin(d.flags, h.flags);
            if (fp8 && !f->static_x) late_begin(d_up.a_scale, up.a_scale);
            rows_again("out behind a late kernel", &d, down.out);
            late_end();
        }
#endif
        d = h, d_up = up, d_down = down;
        if ((d_up.w = gemm_tiles(&up)) && (d_down.w = gemm_tiles(&down))) {
            d_up.tiled = d_down.tiled = 1;
            mlp_move(&d, &d_up, &d_down);
            rows_again("out of tiled weights", &d, down.out);
        }
    }
    rows_clear();
}
static void mlp_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter, int kind)
{
    mlp_odd_case(turn, act, layout, tokens, topk, experts, hidden, inter, kind, MLP_PLAIN);
}
static void test_mlp(void)
{
    static const int tokens[] = { 1, 3, 9, 17, 33, 64, 65, 127, 200, 255 };
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_HALVES; layout <= (acts[i][1] ? MOEK_UP_APART : MOEK_UP_HALVES); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            mlp_case(turn, acts[i][0], layout, tokens[turn % COUNT(tokens)], 1 + rng_below(2), 1 + rng_below(9),
                     gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < COUNT(tokens); i++)
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            mlp_case(turn, MOEK_SILU, MOEK_UP_HALVES, tokens[i], 1 + turn % (tokens[i] > 20 ? 3 : 8), 1 + turn % 60,
                     gemm_size(turn, tokens[i] > 20 ? 136 : 520), gemm_size(turn / 3, tokens[i] > 20 ? 72 : 392), kind);
    for (i = 0; i < 4 * MLP_ODDITIES; i++, turn++)
        mlp_odd_case(turn, acts[i / 2 % COUNT(acts)][0], MOEK_UP_HALVES, 20 + 37 * (i % 3), 2, 5,
                     gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 264), IDS_RANDOM, i % MLP_ODDITIES);
    /* Several tiles a block of up and of down, in the ring many times over; the most experts, of which not all have
     * rows; the most row blocks there may be, an expert's side by side, more slots than few blocks sort. */
    for (kind = 0; kind < IDS_KINDS; kind++, turn++)
        mlp_case(turn, MOEK_SILU, MOEK_UP_HALVES, 400, 2, 40, round_up(700, now.row->granule),
                 round_up(264, now.row->granule), kind);
    mlp_case(1, MOEK_SILU, MOEK_UP_HALVES, 700, 1, 1000, round_up(72, now.row->granule),
             round_up(16, now.row->granule), IDS_RANDOM);
    for (i = 0; i < 2; i++)
        mlp_case(2 + i, MOEK_SILU, MOEK_UP_SWAPPED, (SMALL ? 60 : 500) * now.row->m, 2, 3, now.row->granule,
                 now.row->granule, IDS_EVEN);
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* A word stands in the name; one behind a minus does not. */
static int wanted(const char *name, int words, char **word)
{
    int i;
    for (i = 0; i < words; i++)
        if (word[i][0] == '-' ? !!strstr(name, word[i] + 1) : !strstr(name, word[i])) return 0;
    return 1;
}
/* Emulated, fragments that differ in the columns of a scale alone take turns: of four such formats and six heights of
 * tile, each height once or twice, each format twice. */
static int takes_turn(const moek_kernel *rows, const moek_kernel *k)
{
    const moek_kernel *of;
    int height = 0, block = 0;
    if (k->arch != 90 || !k->block || (k->op != MOEK_OP_UP && k->op != MOEK_OP_DOWN)) return 1;
    for (of = rows; of < k; of++) {
        if (of->op != k->op || of->quant != k->quant || of->arch != k->arch) continue;
        height += of->block == k->block && of->m < k->m;
        block += of->m == k->m;
    }
    return (height + block) % 3 == 0;
}
/* Names of the rows that are to run: words of the command line. */
static int words_given;
static char **words;
static int asked_for(const moek_kernel *k)
{
    return wanted(k->name, words_given, words) && !(quick_set && !quick_row(k));
}
static int can_run(const moek_kernel *k) { return mem_can_run(k->arch) && k->launch(NULL, NULL) == MOEK_OK; }
static int does_the_same(const moek_kernel *plain, const moek_kernel *k)
{
    return !plain->arch && k->arch && !mem_on_gpu(k->arch) && plain->op == k->op && plain->quant == k->quant &&
           plain->hidden == k->hidden && plain->block == k->block &&
           (plain->reads & k->reads) == plain->reads && asked_for(plain) && asked_for(k) && can_run(k);
}
/* Will this row of plain C be tested, and take that kernel for a set of instructions along?  The one of its height, if
 * there is one. */
static int takes_along(const moek_kernel *plain, const moek_kernel *k)
{
    int count, i;
    const moek_kernel *const all = moek_kernels(&count);
    if (!does_the_same(plain, k)) return 0;
    for (i = 0; i < count && plain->m != k->m; i++) if (all[i].m == k->m && does_the_same(&all[i], k)) return 0;
    return 1;
}
static void say_row(const char *name, int cases, double worst, const char *time, int failed)
{
    printf("%-44s %5d cases  worst %.3f", name, cases, worst);
    if (now.worst_element > 0) printf(" (element %.3f)", now.worst_element);
    printf(", %s  %s\n", time, check_failed == failed ? "ok" : "FAILED");
#define SAY_ACT(NAME, name, number, gated) if (now.acts >> number & 1) printf(" %s", #name);
    if (now.acts) {                                    /* tests/cells.py reads both lines */
        printf("acts of %s:", name);
        MOEK_EACH_ACT(SAY_ACT)
        printf("\n");
    }
}
static void test_row(const moek_kernel *row)
{
    const int failed = check_failed;
    char time[24];
    int count, i;
    const moek_kernel *const all = moek_kernels(&count);
    memset(&now, 0, sizeof now);
    memset(gemm_set, 0, sizeof gemm_set);
    for (i = gemm_sets_there = 0; i < count; i++)
        if (takes_along(row, &all[i]) && CHECK(gemm_sets_there < COUNT(gemm_set), "%s: too many sets", row->name))
            gemm_set[gemm_sets_there++].row = &all[i];
    now.row = row;
    now.format = format_with(moek_format_of(row->quant), row->block);
    now.start = seconds();
    turns = row->m / 8 + 3 * row->quant, asked = 7 * row->quant;
    rng_seed(1);                                       /* a row gives the same, whatever runs before it */
    /* (The most seen: 1.30.) */
    ref_products_error = row->arch == 90 && row->quant && format_quantizes(now.format) ? ldexp(1.5, -12) : 0;
    ref_w_in_t = mem_on_gpu(row->arch);
    ref_w_in_e4m3 = row->quant && gemm_in_fragments() && format_quantizes(now.format);
    ref_w_unit = row->m >= 96 ? 0 : 128;               /* tall tiles: of the row up to there */
    switch (row->op) {
    case MOEK_OP_ROUTE:   test_route(); break;
    case MOEK_OP_MAP:     test_map(); break;
    case MOEK_OP_SORT:    test_sort(); break;
    case MOEK_OP_QUANT:   test_quant(); break;
    case MOEK_OP_UP:      test_up(); break;
    case MOEK_OP_DOWN:    test_down(); break;
    case MOEK_OP_COMBINE: test_combine(); break;
    case MOEK_OP_REPACK:  test_repack(); break;
    case MOEK_OP_EXPAND:  test_expand(); break;
    case MOEK_OP_LAYER:   now.row->most_tokens ? test_layer_few() : test_layer(); break;
    case MOEK_OP_MLP:     test_mlp(); break;
    default:              CHECK(0, "%s: no test for op %d", row->name, row->op);
    }
    snprintf(time, sizeof time, "%.1f s", seconds() - now.start);
    say_row(row->name, now.cases, now.worst, time, failed);
    for (i = 0; i < gemm_sets_there; i++)
        say_row(gemm_set[i].row->name, gemm_set[i].cases, gemm_set[i].worst, "in that time", failed);
    fflush(stdout);
}
static void test_rows(int argc, char **argv)
{
    int count, i, j, rows_named = 0;                   /* by more than an op */
    const moek_kernel *const rows = moek_kernels(&count);
    ref_check();
    for (i = 1; i < argc; i++) rows_named |= argv[i][0] != '-' && strcmp(argv[i], "moek_up");
    words_given = argc - 1, words = argv + 1;
    for (i = 0; i < count; i++) {
        if (!asked_for(&rows[i])) continue;
        for (j = 0; j < count && !takes_along(&rows[j], &rows[i]); j++) continue;
        if (j < count) continue;
        if ((SMALL && !rows_named && !takes_turn(rows, &rows[i])) || !workers_take()) continue;
        if (can_run(&rows[i])) test_row(&rows[i]);
        else {
            check_skipped++;
            printf("%-44s skipped: not for this machine\n", rows[i].name);
        }
    }
}
int main(int argc, char **argv)
{
    int processes;
    quick_word(&argc, &argv);
    if (quick_set) rows_twice = 3;
    processes = workers_word(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "-v")) rows_tell = 1, argc--, argv++;
    workers_run(processes, test_rows, argc, argv);
    return check_end();
}
