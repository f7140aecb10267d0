/* test_layer.c -- whole layers through moek_plan_init, bind and run, against ref_layer, on each backend that is here.
 *
 *   cc -std=c99 -O2 -Iinclude -Itests tests/test_layer.c -lm -o layer                       the CPU rows
 *   nvcc -x cu -std=c++17 -O2 -Iinclude -Itests tests/test_layer.c -o layer                 those of this GPU, too
 *   c++ -std=c++17 -O2 -DMOEK_EMU -Iinclude -Itests -x c++ tests/test_layer.c -o layer      GPU rows on the CPU
 *                                                                (-DMOEK_EMU_ARCH=90: of a GPU that has sm90)
 *   ./layer [quick] [-jN] [-v] [SM90 | SM80 | CPU [WORD]]  one backend only, and tests whose names hold the word;
 *                                                          quick: the quick set (quick.h); -j: in N processes
 *
 * -v: tells each run before it, and when.
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  Tolerances: layer.h, layer_tolerance. */
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
#include "../bench/clock.h"
#include "layer.h"
#include "quick.h"
#include "ref_check.h"
#include "workers.h"

/* Emulation is 100 times slower: fewer combinations, and smaller layers. */
enum {
#if defined(MOEK_EMU) || defined(TEST_SMALL)
    SMALL = 1, HIDDEN = 128, INTER = 64, TOKENS = 9,
#else
    SMALL = 0, HIDDEN = 256, INTER = 128, TOKENS = 33,
#endif
    EXPERTS = 8, TOPK = 2, PHYSICAL = 12, REPLICAS = 3
};

static int backend;                                    /* under test */

/* Where the format leaves columns of scales open, each of its choices by turns. */
static int config_turn;
static moek_config config_of(int quant)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.block = format_block(moek_format_of(quant), config_turn++);
    c.hidden = format_round_up(moek_format_of(quant), HIDDEN); c.inter = format_round_up(moek_format_of(quant), INTER);
    c.experts = EXPERTS; c.topk = TOPK;
    c.quant = quant; c.act = MOEK_SILU; c.max_tokens = TOKENS;
    c.backend = backend;
    return c;
}
/* Blocks of GGUF files differ in little: of the quick set, each test has another quarter of them. */
static int quick_blocks;
/* Every format that the backend serves, of weights as they come: its descriptor.  (Others: test_fragments.) */
#define FOR_EACH_FORMAT(f) \
    const moek_format *f; \
    int q_, test_ = quick_blocks++; \
    for (q_ = 0; q_ < FORMATS && (f = format_at(q_), 1); q_++) \
        if (format_has(f, MOEK_OP_UP, layer_arch) && !(layer_arch == 90 && format_in_fragments(f)) && \
            !(quick_set && f->only_blocks && (q_ + test_) % 4))
/* One format for what does not depend on it; under emulation one for all. */
#define SKIP_IF_SMALL(condition) if (SMALL && (condition)) continue
/* Of the quick set: one turn in so many, of each format others. */
#define SKIP_IF_QUICK(turn, of) if (quick_set && ((turn) + q_) % (of)) continue
/* What formats do not change, of the quick set: of all cases of a test one in so many, whatever their format. */
static int quick_cases;                                /* of this test, until now */
#define SKIP_IF_QUICK_OF_ALL(of) if (quick_set && quick_cases++ % (of)) continue

/* ---- formats, activations, layouts ------------------------------------------------------------------------------- */

/* Every format with every activation; layouts, biases, T of fp8, ue8m0, static scales and entries take turns. */
static void test_formats(void)
{
    static const int acts[] = {
#define ACT(NAME, name, number, gated) number,
        MOEK_EACH_ACT(ACT)
#undef ACT
    };
    const int n = (int)(sizeof acts / sizeof *acts);
    FOR_EACH_FORMAT(f) {
        int turn, options;
        for (turn = 0; turn < 2 * n; turn++) {
            const int format = turn / n, i = turn % n;
            moek_config c = config_of(f->number);
            char what[64];
            layer l;
            SKIP_IF_SMALL((i + 3 * q_ + 5 * format) % n > 1);
            if (!SMALL) SKIP_IF_QUICK(i + format, 2);
            c.act = acts[i];
            c.format = format;
            if (ref_act_depends(c.act, 2)) c.limit = i % 4 == 1 ? MOEK_NO_LIMIT : i % 4 == 2 ? 0 : 1.5f;
            if (ref_act_depends(c.act, 0)) c.alpha = turn % 2 ? 1.25f : 0;
            if (ref_act_depends(c.act, 1)) c.beta = turn % 2 ? 0.5f : 0;
            c.dtype = format_dtype_in(f, i);
            c.ue8m0 = f->ue8m0 && i % 3 == 1;
            c.up_layout = ref_gated(c.act) ? (i + q_) % 5 : 0;
            if (c.up_layout == MOEK_UP_SWAPPED && format_rows_share(f)) c.up_scales = MOEK_UP_SCALES_APART;
            snprintf(what, sizeof what, "%s, layout %d, turn %d", moek_act_name(c.act), c.up_layout, turn);
            options = (i % 2 ? LAYER_BIAS : 0) | (i % 3 == 2 ? LAYER_STATIC : 0);
            if ((i + format) % 2) options |= LAYER_LOGITS;
            if (i % 3) options |= LAYER_ZERO;
            layer_new(&l, &c, options, TOKENS);
            layer_check(&l, what);
            layer_free(&l);
        }
    }
}

/* The same weights by two formats: each layer is what its own reference says, and the two are as far apart as x and h
 * are rounded.  Of a normal entry a code is off by rms 2.6e-2 in e4m3, 1e-1 in e2m1 under scales of 16 columns, and
 * 2^-7 of a few deviations in 8-bit integers; x and h, gate and up, add to about twice that. */
static double pair_apart(const moek_format *f)
{
    return f->x_bits < 8 ? 0.2 : f->x == MOEK_ELEMENT_E4M3 ? 0.06 : 0.02;
}
static void test_pair(const moek_format *quantized, const moek_format *plain, int options)
{
    const double most = 2 * pair_apart(quantized);
    moek_config c = config_of(quantized->number);
    layer l;
    ref_distance d;
    double *want;
    uint16_t *y;
    size_t n, i;
    c.format = options & LAYER_BIAS ? MOEK_BATCHED : MOEK_STANDARD;
    layer_new(&l, &c, options, TOKENS);
    n = (size_t)TOKENS * (size_t)c.hidden;
    if (layer_check(&l, "of a pair") && (y = layer_y(&l, moek_run)) != NULL) {
        want = (double *)ref_alloc(8 * n);
        for (i = 0; i < n; i++) want[i] = ref_get_t(y, i, l.plan.config.dtype);
        free(y);
        l.config.quant = plain->number;
        l.format = format_with(plain, c.block);
        l.w.x_scale = l.w.h_scale = NULL;
        if (layer_check(&l, "of a pair, x in T")) {
            d = ref_compare_t(layer_got(&l, l.args.y), want, n, l.plan.config.dtype);
            CHECK(d.rel_l2 < most && d.rel_l2 > most / 20, "%s and %s: %.2e apart, at most %.2e", quantized->name,
                  plain->name, d.rel_l2, most);
        }
        free(want);
    }
    layer_free(&l);
}
static void test_pairs(void)
{
    int i;
    FOR_EACH_FORMAT(f) {
        for (i = 0; i < FORMATS; i++) {
            const moek_format *const g = format_at(i);
            if (f->x_bits != 16 || g == f || !moek_same_weights(f->number, g->number)) continue;
            if (!format_has(g, MOEK_OP_UP, layer_arch)) continue;
            test_pair(g, f, 0);
            if (!quick_set) test_pair(g, f, LAYER_BIAS);
        }
    }
}

/* No tokens, one, and sizes at the edges of what tiles and vectors hold. */
static void test_sizes(void)
{
    static const int odd[][2] = { { 100, 36 }, { 1, 1 }, { 129, 257 }, { 130, 3 }, { 17, 128 } };
    static const int even[][2] = { { 16, 16 }, { 144, 272 }, { 320, 48 } };
    int i;
    FOR_EACH_FORMAT(f) {
        for (i = 0; i < (layer_arch ? 3 : 5); i++) {
            moek_config c = config_of(f->number);
            const int *size = layer_arch ? even[i] : odd[i], g = format_granule(f, layer_arch);
            layer l;
            SKIP_IF_SMALL((i + q_) % 3);
            c.hidden = (size[0] + g - 1) / g * g; c.inter = (size[1] + g - 1) / g * g;
            c.format = i % 2;
            layer_new(&l, &c, LAYER_BIAS | (i % 2 ? LAYER_ZERO : 0), i == 2 ? 1 : 5);
            if (layer_check(&l, "odd sizes")) {
                uint16_t *y = layer_y(&l, moek_run);
                l.config.chunk_tokens = 2;             /* rows that start anywhere */
                if (!format_by_tensor(f) && layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 2 of an odd size");
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* The arguments of one token out of many. */
static moek_args token_of(const moek_plan *plan, const moek_args *args, int t)
{
    moek_args a = *args;
    const size_t row = 2 * (size_t)t * plan->config.hidden;
    a.tokens = 1;
    a.x = (const char *)args->x + row;
    a.y = (char *)args->y + row;
    a.topk_ids += t * plan->slots;
    a.topk_weights += t * plan->slots;
    return a;
}
static moek_status token_by_token(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_status s = MOEK_OK;
    int t;
    for (t = 0; t < args->tokens && s == MOEK_OK; t++) {
        const moek_args a = token_of(plan, args, t);
        s = moek_run(plan, &a, stream);
    }
    return s;
}

/* Many rows an expert, many experts, large topk: the other tiles. */
static void test_tiles(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        layer l;
        int batched;
        SKIP_IF_SMALL(f->number != FORMAT_BLOCKED);
        c.hidden = format_round_up(f, 128); c.inter = format_round_up(f, 64);
        for (batched = 0; batched < 2; batched++) {
            c.format = batched;
            c.experts = 2; c.topk = 1; c.max_tokens = SMALL ? 40 : 1100;
            layer_new(&l, &c, LAYER_LOGITS | LAYER_STATIC, c.max_tokens);
            layer_check(&l, "many rows an expert");
            layer_free(&l);
            c.batch_invariant = 1; c.max_tokens = SMALL ? 40 : 300;
            layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
            if (layer_check(&l, "many rows an expert, batch invariant")) {
                uint16_t *y = layer_y(&l, moek_run);
                layer_same(&l, token_by_token, y, "a token alone");
                free(y);
            }
            layer_free(&l);
            c.batch_invariant = 0;
            c.experts = SMALL ? 20 : 64; c.topk = SMALL ? 5 : 20; c.max_tokens = 7;
            layer_new(&l, &c, LAYER_LOGITS, 7);
            layer_check(&l, "many experts");
            layer_free(&l);
        }
    }
}

/* The row for many tokens of a format, of weights as they come: up by tiles of 128 rows, NULL: none. */
static const char *wide_row(const moek_format *f)
{
    int n, i;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++)
        if (k[i].quant == f->number && k[i].reads & MOEK_READS_CHECKPOINT && k[i].traits & MOEK_TRAIT_SORTED_X)
            return k[i].name;
    return NULL;
}
/* The rows for many tokens, if a token's bits must be its own: about 150 rows an expert, so some behind a full tile. */
static void test_wide_alone(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        layer l;
        if (layer_arch != 90 || (quick_set && f->number != FORMAT_BLOCKED) || !wide_row(f)) continue;
        c.hidden = format_round_up(f, 128); c.inter = format_round_up(f, 64);
        c.experts = quick_set ? 1 : 2; c.topk = 1; c.max_tokens = 150 * c.experts;
        c.kernel = wide_row(f); c.batch_invariant = 1;
        layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
        if (layer_check(&l, "tiles of 128, batch invariant")) {
            uint16_t *y = layer_y(&l, moek_run);
            layer_same(&l, token_by_token, y, "a token alone");
            free(y);
        }
        layer_free(&l);
    }
}

/* Wide experts with many rows: x is written in sorted order, and up reads it by TMA.  In chunks with fewer rows an
 * expert, up gathers: the same bits. */
static void test_wide_ordered(void)
{
    FOR_EACH_FORMAT(f) {
        int i;
        if (layer_arch != 90 || !wide_row(f)) continue;
        for (i = 0; i < 3; i++) {
            const struct layer_strides strides = { 520, 1024, 0, 0, 0 };
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            int slot;
            SKIP_IF_SMALL((i + q_) % 3 < 2);
            c.hidden = 512; c.inter = 4096; c.kernel = wide_row(f); c.batch_invariant = 1;
            c.experts = i < 2 ? 3 : 1; c.topk = i < 2 ? 2 : 1; c.max_tokens = i < 2 ? 800 : 515;
            c.router_weight_on_input = i == 2;
            c.ue8m0 = f->ue8m0 && i == 1;
            layer_new(&l, &c, LAYER_STATIC | (i == 1 ? LAYER_LOGITS : 0), c.max_tokens);
            snprintf(l.what, sizeof l.what, "rows of x in order, %s, turn %d", f->name, i);
            for (slot = 3; i == 0 && slot < 2 * c.max_tokens; slot += 97) l.args.topk_ids[slot] = -1;
            y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
            if (y) layer_compare_some(&l, SMALL ? 4 : 9);
            layer_same(&l, moek_run, y, "a second run");
            layer_strides_now = strides;
            layer_strided_drive = moek_run;
            if (!SMALL || f->number == format_of_t(MOEK_DTYPE_FP16)) layer_same(&l, layer_strided, y, "strides");
            l.config.chunk_tokens = i < 2 ? 300 : 200;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "gathered");
            free(y);
            layer_free(&l);
        }
    }
}

/* Each row by a measured choice, also those of an older architecture, beside what the plan would have taken. */
static void test_tuned(void)
{
    char line[256], device[16];
    int n, i;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        moek_config c = config_of(k[i].quant);
        moek_plan plan;
        layer l;
        if (k[i].op != MOEK_OP_UP || mem_on_gpu(k[i].arch) != mem_on_gpu(layer_arch)) continue;
        if (layer_arch ? k[i].arch > layer_arch : k[i].launch(NULL, NULL) != MOEK_OK) continue;
        if (!(k[i].reads & MOEK_READS_CHECKPOINT)) continue;
        SKIP_IF_SMALL(quick_set && k[i].quant != FORMAT_BLOCKED);
        if (k[i].hidden) c.hidden = k[i].hidden;
        c.block = k[i].block;
        c.backend = 0;
        c.exclude = layer_arch ? 1u << MOEK_BACKEND_CPU : MOEK_BACKENDS_GPU;
        if (layer_arch == 80) c.exclude |= 1u << MOEK_BACKEND_SM90;
        if (!CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s: %s", k[i].name, plan.why)) continue;
        snprintf(device, sizeof device, layer_arch ? "sm%d" : "cpu", plan.arch);
        snprintf(line, sizeof line, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t1\t1", device, moek_quant_name(c.quant), c.hidden,
                 c.inter, c.experts, c.topk, TOKENS, k[i].name);
        c.tuned = line;
        c.format = i % 2;
        layer_new(&l, &c, LAYER_BIAS, TOKENS);
        layer_check(&l, k[i].name);
        CHECK(l.plan.chosen.choices && l.plan.chosen.up[moek_plan_tile(&l.plan, TOKENS)] == &k[i] && !l.plan.note[0],
              "%s is not chosen: %s", k[i].name, l.plan.note);
        layer_free(&l);
    }
}

/* ---- routing ----------------------------------------------------------------------------------------------------- */

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
            got = (uint16_t *)layer_got(&l, l.args.y) + AT * HIDDEN;
            for (j = 0; j < HIDDEN; j++) {
                const double v = ref_get_t(got, (size_t)j, l.config.dtype);
                wrong += kind < 2 ? !isnan(v) : v != 0;
            }
            memcpy(got, y + AT * HIDDEN, 2 * HIDDEN);
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
/* Ids of 64 bits, written or read, give the bits that those of 32 do; the step has both. */
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
            for (i = 0; i < REPLICAS; i++)             /* those of expert 3 are nowhere, too */
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

/* ---- the same bits by another way -------------------------------------------------------------------------------- */

static moek_status by_stages(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_step step;
    moek_status s = moek_begin(plan, args, &step);
    if (s == MOEK_OK) s = moek_route(&step, stream);
    if (s == MOEK_OK) s = moek_prepare_send(&step, stream);
    if (s == MOEK_OK) s = moek_prepare_receive(&step, stream);
    if (s == MOEK_OK) s = moek_experts_apply(&step, stream);
    if (s == MOEK_OK) s = moek_finalize_send(&step, stream);
    if (s == MOEK_OK && args->shared) s = args->shared(args->shared_context, step.first, step.tokens, stream);
    return s == MOEK_OK ? moek_finalize_receive(&step, stream) : s;
}
static moek_status by_pairs(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_step step;
    moek_status s = moek_begin(plan, args, &step);
    if (s == MOEK_OK) s = moek_route(&step, stream);
    if (s == MOEK_OK) s = moek_prepare(&step, stream);
    if (s == MOEK_OK) s = moek_experts_apply(&step, stream);
    return s == MOEK_OK ? moek_finalize(&step, stream) : s;
}
/* A plan is a value: a copy runs as well. */
static moek_status by_copy(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const moek_plan copy = *plan;
    return moek_run(&copy, args, stream);
}
static moek_status in_place(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    layer_copy(args->y, args->x, 2 * (size_t)args->tokens * plan->config.hidden, stream);
    a.x = args->y;
    return moek_run(plan, &a, stream);
}
/* Two steps at once, each with its workspace: halves of the tokens, interleaved as dual-batch overlap does. */
static void *second_workspace;
static moek_status two_in_flight(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    static moek_status (*const stages[])(moek_step *, moek_stream) = {
        moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
        moek_finalize_send, moek_finalize_receive
    };
    moek_args half[2];
    moek_step step[2];
    moek_status s = MOEK_OK;
    int i, k;
    half[0] = half[1] = *args;
    half[0].tokens = args->tokens / 2;
    half[1] = token_of(plan, args, half[0].tokens);
    half[1].tokens = args->tokens - half[0].tokens;
    half[1].handle = 1;
    half[1].workspace = second_workspace;
    for (k = 0; k < 2 && s == MOEK_OK; k++) s = moek_begin(plan, &half[k], &step[k]);
    for (i = 0; i < 6; i++)
        for (k = 0; k < 2 && s == MOEK_OK; k++) s = stages[i](&step[(i + k) % 2], stream);
    CHECK(step[0].args.handle == 0 && step[1].args.handle == 1, "handles");
    return s;
}
#if MEM_CUDA
/* Capture, replay twice.  The first replay works on what a run before left behind. */
static moek_status by_graph(const moek_plan *plan, const moek_args *args, moek_stream unused)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    moek_status s;
    (void)unused;
    mem_must(cudaDeviceSynchronize());                 /* with mem_put: the new stream waits for nobody */
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    s = moek_run(plan, args, stream);
    mem_must(cudaStreamEndCapture(stream, &graph));
    mem_must(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    mem_must(cudaGraphLaunch(exec, stream));
    mem_must(cudaGraphLaunch(exec, stream));
    mem_must(cudaStreamSynchronize(stream));
    mem_must(cudaGraphExecDestroy(exec));
    mem_must(cudaGraphDestroy(graph));
    mem_must(cudaStreamDestroy(stream));
    return s;
}
#endif

static void test_same_bits(void)
{
    FOR_EACH_FORMAT(f) {
        int format;
        for (format = 0; format < 2; format++) {
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            SKIP_IF_SMALL(!quick_set && (q_ + format) % 3);
            SKIP_IF_QUICK_OF_ALL(5);
            c.format = format;
            c.batch_invariant = 1;                     /* a token's bits do not depend on the others */
            layer_new(&l, &c, LAYER_BIAS | LAYER_STATIC, TOKENS);
            if (layer_check(&l, "the same bits") && (y = layer_y(&l, moek_run)) != NULL) {
                layer_same(&l, by_stages, y, "stage by stage");
                layer_same(&l, by_pairs, y, "prepare and finalize");
                layer_same(&l, by_copy, y, "a copied plan");
                layer_same(&l, in_place, y, "y in the place of x");
                layer_same(&l, token_by_token, y, "a token alone");
                second_workspace = mem_alloc(layer_arch, moek_workspace_size(&l.plan));
                layer_same(&l, two_in_flight, y, "two steps in flight");
                mem_free(layer_arch, second_workspace);
#if MEM_CUDA
                if (layer_arch) layer_same(&l, by_graph, y, "a graph");
#endif
                l.config.chunk_tokens = 4;
                if (layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 4");
                l.config.chunk_tokens = 1;
                if (layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 1");
                l.config.chunk_tokens = TOKENS + 1;
                if (layer_plan(&l)) layer_same(&l, moek_run, y, "a chunk larger than all");
                l.config.max_tokens = 2 * TOKENS;
                if (layer_plan(&l)) layer_same(&l, moek_run, y, "a plan for more tokens");
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* Rows of x, y and shared_y with strides: the same bits, and nothing between them is written.  y in the place of x, or
 * of shared_y. */
static int strides_turn;
static void strides_same(layer *l, layer_driver drive)
{
    static const struct layer_strides cases[] = {
        { 8, 0, 0, 0, 0 }, { 0, 16, 8, 0, 0 }, { 24, 8, 0, 1, 0 }, { 8, 40, 0, 0, 1 }, { 1, 1, 1, 0, 0 }
    };                                                 /* more than hidden; 1: hidden more */
    const size_t hidden = (size_t)l->config.hidden, whole = (hidden + 7) / 8 * 8;
    uint16_t *const y = layer_plan(l) ? layer_y(l, drive) : NULL;
    int i;
    for (i = 0; y && i < 5; i++) {
        struct layer_strides s = cases[i];
        char how[64];
        SKIP_IF_SMALL((i + strides_turn++) % (quick_set ? 7 : 3));
        if (s.over && !l->args.shared_y) s.over = 0;
        s.x = s.x ? whole + (s.x == 1 ? whole : s.x) : 0;
        s.y = s.y ? whole + (s.y == 1 ? whole : s.y) : 0;
        s.shared = s.shared ? whole + (s.shared == 1 ? whole : s.shared) : 0;
        layer_strides_now = s;
        layer_strided_drive = drive;
        snprintf(how, sizeof how, "strides, turn %d", i);
        layer_same(l, layer_strided, y, how);
    }
    free(y);
}
static void strides_of(layer *l, const char *what)
{
    snprintf(l->what, sizeof l->what, "strides of %s %s, format %d", what, moek_quant_name(l->config.quant),
             l->config.format);
    l->config.chunk_tokens = (l->args.tokens + 1) / 2;
    strides_same(l, moek_run);
    l->config.chunk_tokens = 0;
    if (!layer_state) strides_same(l, by_stages);
    strides_same(l, moek_run);
}
static void test_strides(void)
{
    strides_turn = 0;
    FOR_EACH_FORMAT(f) {
        int format, i, n;
        const moek_kernel *const k = moek_kernels(&n);
        for (format = 0; format < 3; format++) {       /* 2: standard, weights on the input */
            moek_config c = config_of(f->number);
            layer l;
            SKIP_IF_SMALL(!quick_set && (format + q_) % 3 >= 2);
            SKIP_IF_QUICK_OF_ALL(5);
            c.format = format == 1;
            c.batch_invariant = 1;
            if (!layer_arch && !format_blocked(f)) c.hidden = format_round_up(f, 100 + f->granule);    /* none of 8 */
            if (format == 2) c.topk = 1, c.router_weight_on_input = 1;
            layer_new(&l, &c, LAYER_STATIC, TOKENS);
            if (format != 1) l.args.shared_y = layer_new_t(&l, (size_t)TOKENS * c.hidden, 1);
            strides_of(&l, "steps,");
            layer_free(&l);
        }
        for (i = 0; i < n; i++) {                      /* each row by itself */
            const int wide = k[i].op == MOEK_OP_UP && k[i].traits & MOEK_TRAIT_SORTED_X;
            moek_config c = config_of(f->number);
            layer l;
            if (k[i].quant != f->number || k[i].arch != layer_arch || !layer_arch) continue;
            if (quick_set && !quick_row(&k[i])) continue;
            if (k[i].op != MOEK_OP_UP && k[i].op != MOEK_OP_LAYER && k[i].op != MOEK_OP_MLP) continue;
            SKIP_IF_SMALL(k[i].op != MOEK_OP_LAYER && (i + q_) % 4);
            SKIP_IF_QUICK(i, 4);
            c.kernel = k[i].name; c.block = k[i].block;
            c.hidden = k[i].op == MOEK_OP_MLP ? 1024 : 256; c.inter = k[i].op == MOEK_OP_MLP ? 256 : 128;
            c.max_tokens = k[i].op == MOEK_OP_LAYER ? k[i].most_tokens ? 3 : 9 : wide && !SMALL ? 300 : 20;
            layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
            l.args.shared_y = layer_new_t(&l, (size_t)c.max_tokens * c.hidden, 1);
            if (k[i].op != MOEK_OP_UP) layer_state = layer_zeros(moek_state_size());
            strides_of(&l, k[i].name);
            if (k[i].op != MOEK_OP_UP)
                CHECK(k[i].op == MOEK_OP_LAYER ? moek_plan_layer(&l.plan, c.max_tokens) == &k[i]
                                               : moek_plan_mlp(&l.plan, c.max_tokens) == &k[i],
                      "%s is not what runs", k[i].name);
            if (layer_state) mem_free(layer_arch, layer_state);
            layer_state = NULL;
            layer_free(&l);
        }
    }
}

#if MEM_CUDA
/* Replays of a graph of runs with as many routings, on one workspace and one state: each must give the bits it gave. */
static void replays(layer *l, int times)
{
    enum { RUNS = 16 };
    const moek_args a = layer_args(l);
    const size_t slots = (size_t)a.tokens * l->plan.slots, bytes = layer_y_bytes(l);
    int32_t *ids = (int32_t *)malloc(4 * RUNS * slots), *ids_there = (int32_t *)mem_alloc(layer_arch, 4 * RUNS * slots);
    char *y = (char *)malloc(RUNS * bytes), *again = (char *)malloc(RUNS * bytes);
    char *y_there = (char *)mem_alloc(layer_arch, RUNS * bytes), *state = (char *)layer_zeros(moek_state_size());
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int i, n, k = l->plan.slots, same = 1;
    for (i = 0; i < RUNS * a.tokens; i++) {
        layer_choose(ids + i * k, k, i % 3 ? l->config.experts : 2 * k);         /* few experts, and many */
        if (i % 7 == 3) ids[i * k] = -1;
        if (i / a.tokens % 4 == 1) memset(ids + i * k, 0xff, 4 * (size_t)k);     /* nobody's */
        if (i / a.tokens == 5 && i % a.tokens == 0) ids[i * k] = 1;              /* but one */
    }
    mem_put(layer_arch, ids_there, ids, 4 * RUNS * slots);
    layer_put(l);
    mem_must(cudaDeviceSynchronize());
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (i = 0; i < RUNS; i++) {
        moek_args run = a;
        run.topk_ids = ids_there + i * slots;
        run.y = y_there + i * bytes;
        run.state = i % 5 == 4 ? NULL : state;
        CHECK(moek_run(&l->plan, &run, stream) == MOEK_OK, "%s: %s", l->what, l->why);
    }
    mem_must(cudaStreamEndCapture(stream, &graph));
    mem_must(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (n = 0; n < times; n += RUNS) {
        if (n % (64 * RUNS) == 0) mem_must(cudaMemsetAsync(y_there, 0xa5, RUNS * bytes, stream));
        mem_must(cudaGraphLaunch(exec, stream));
        if (n && n % (64 * RUNS) && n + RUNS < times) continue;
        mem_must(cudaMemcpyAsync(n ? again : y, y_there, RUNS * bytes, cudaMemcpyDeviceToHost, stream));
        mem_must(cudaStreamSynchronize(stream));
        if (n) same &= !memcmp(y, again, RUNS * bytes);
    }
    CHECK(same, "%s: a replay gave other bits", l->what);
    mem_must(cudaGraphExecDestroy(exec));
    mem_must(cudaGraphDestroy(graph));
    mem_must(cudaStreamDestroy(stream));
    mem_free(layer_arch, ids_there); mem_free(layer_arch, y_there); mem_free(layer_arch, state);
    free(ids); free(y); free(again);
}
#endif

/* Rows that are a whole layer want down tiles for all multiprocessors: larger layers than those above. */
static void test_one_launch(void)
{
    FOR_EACH_FORMAT(f) {
        static const int tokens[] = { 1, 3, 8, 9, 20 };
        int i;
        for (i = 0; i < 5 && layer_arch == 90; i++) {
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            if (!format_has(f, MOEK_OP_LAYER, layer_arch)) continue;
            SKIP_IF_SMALL((i + q_) % 5);
            c.hidden = 99 * 64; c.inter = 64; c.experts = 24; c.topk = 8;
            c.max_tokens = tokens[i];
            if (i % 2) c.up_layout = MOEK_UP_INTERLEAVED;
            layer_new(&l, &c, i % 3 == 1 ? LAYER_BIAS | LAYER_STATIC : LAYER_STATIC, tokens[i]);
            if (layer_check(&l, "one launch") &&
                CHECK(moek_plan_layer(&l.plan, tokens[i]) != NULL, "%s: no row takes it", l.what)) {
                layer_state = layer_zeros(moek_state_size());
                y = layer_y(&l, moek_run);
                layer_same(&l, by_copy, y, "a copied plan");
                layer_same(&l, in_place, y, "y in the place of x");
#if MEM_CUDA
                layer_same(&l, by_graph, y, "a graph");
                replays(&l, getenv("CUDA_INJECTION64_PATH") ? 64 : i == 2 ? 100000 : 2000);     /* a sanitizer? */
#endif
                mem_free(layer_arch, layer_state);
                layer_state = NULL;
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* Rows that are up and down, each by itself, with fewer rows an expert than a tile has, and more; then where the plan
 * takes them. */
static void mlp_case(int quant, const char *row, int tokens, int turn)
{
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    c.hidden = turn % 2 ? 1152 : 1024; c.inter = turn % 3 ? 256 : 384;
    c.experts = !row ? 140 : quick_set ? 4 : 9; c.topk = row ? 2 : 4;
    c.max_tokens = tokens;
    c.up_layout = turn % 5;
    c.kernel = row;
    if (turn % 5 == 4 && turn % 2) c.act = MOEK_RELU2_NO_MUL, c.up_layout = 0;
    if (turn % 5 == 3) c.shared_slots = 1;
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0) | (turn % 4 == 2 ? LAYER_LOGITS : 0), tokens);
    layer_state = layer_zeros(moek_state_size());
    if (!layer_check(&l, row ? row : "the plan's mlp row") || !CHECK(layer_state, "%s: no state", l.what) ||
        !CHECK(moek_plan_mlp(&l.plan, tokens) != NULL && !moek_plan_layer(&l.plan, tokens), "%s: no row takes it",
               l.what)) {
        y = NULL;
    } else if ((y = layer_y(&l, moek_run)) != NULL) {
        layer_same(&l, by_stages, y, "by stages");
#if MEM_CUDA
        layer_same(&l, by_graph, y, "a graph");
#endif
        if (row && !quick_set) {
            l.config.chunk_tokens = (tokens + 1) / 2;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "in chunks");
        }
    }
    free(y);
    mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
static void test_mlp(void)
{
    FOR_EACH_FORMAT(f) {
        int n, i, turn = 0;
        const moek_kernel *k = moek_kernels(&n);
        if (!format_has(f, MOEK_OP_MLP, layer_arch)) continue;
        for (i = 0; i < n; i++)
            if (k[i].op == MOEK_OP_MLP && k[i].quant == f->number && !(quick_set && !quick_row(&k[i]))) {
                mlp_case(f->number, k[i].name, 40, turn);
                turn += 2;
                SKIP_IF_SMALL((turn + q_) % 8 > 1 || quick_set);
                mlp_case(f->number, k[i].name, 300, turn - 1);
            }
        SKIP_IF_SMALL(f->number != FORMAT_BLOCKED || quick_set);
        mlp_case(f->number, NULL, 300 + 300 * (f->number % 3), f->number);
    }
}

/* Tiled weights, made by the library: the same bits from rows of every kind; and back again.  Rows that read them not
 * say so. */
static void *repacked(layer *l, int down, const void *from, int back)
{
    const layer_array *a = layer_find(l, from);
    const int n = l->plan.local_experts;
    char *const of = (char *)mem_alloc(layer_arch, a->bytes), *const to = (char *)mem_alloc(layer_arch, a->bytes);
    void *const got = malloc(a->bytes);
    int e;
    mem_put(layer_arch, of, from, a->bytes);
    for (e = 0; e < n; e += 3) {                       /* some experts at a time */
        const size_t at = a->bytes / (size_t)n * (size_t)e;
        const int some = n - e < 3 ? n - e : 3;
        const moek_status s = (down ? moek_repack_down : moek_repack_up)(&l->plan, of + at, to + at, some, back, NULL);
        CHECK(s == MOEK_OK, "%s: repack: %s", l->what, moek_status_name(s));
    }
    mem_get(layer_arch, got, to, a->bytes);
    mem_free(layer_arch, of); mem_free(layer_arch, to);
    return got;
}
static void tiled_case(int quant, int turn)
{
    static const int tokens[] = { 1, 4, 9, 70, 300, 900 };
    const int many = quick_set && SMALL && turn % 6 == 5 ? 300 : tokens[turn % 6];
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    c.hidden = turn % 2 ? 640 : 1152; c.inter = turn % 4 < 2 ? 256 : 384; c.experts = turn % 3 ? 11 : 6; c.topk = 2;
    c.max_tokens = many;
    c.up_layout = turn % 4;
    if (turn % 5 == 4) c.act = MOEK_RELU2_NO_MUL, c.up_layout = 0;
    if (turn == 7) c.format = MOEK_BATCHED;
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0), many);
    snprintf(l.what, sizeof l.what, "tiled weights, %s, turn %d", l.format->name, turn);
    if (turn % 3 && format_has(l.format, MOEK_OP_LAYER, 90)) layer_state = layer_zeros(moek_state_size());
    y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
    if (y && c.format == MOEK_STANDARD) layer_compare_some(&l, many < 10 ? many : 10);
    if (y) {
        void *const up = repacked(&l, 0, l.w.w_up, 0), *const down = repacked(&l, 1, l.w.w_down, 0), *was;
        layer_array *const a = layer_find(&l, l.w.w_up), *const b = layer_find(&l, l.w.w_down);
        void *const first = malloc(a->bytes);
        memcpy(first, l.w.w_up, a->bytes);
        memcpy((void *)(uintptr_t)l.w.w_up, up, a->bytes);
        memcpy((void *)(uintptr_t)l.w.w_down, down, b->bytes);
        l.config.weight_layout = MOEK_WEIGHTS_TILED;
        if (layer_plan(&l)) layer_same(&l, moek_run, y, "tiled");
        was = repacked(&l, 0, l.w.w_up, 1);
        CHECK(!memcmp(was, first, a->bytes), "%s: back are other weights", l.what);
        free(up); free(down); free(was); free(first);
    }
    free(y);
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* Weights at addresses that are no more aligned than moek_alignment says: the same bits, where kernels load no more at
 * once.  (Of a GPU a misaligned load fails.)  Less aligned ones are refused, by name. */
static layer *least_of;                                /* whose weights they are */
static moek_status at_least_alignment(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    static const char *const names[] = {
        "w_up", "w_down", "w_gate", "w_up_scale", "w_down_scale", "w_gate_scale", "w_up_zero", "w_down_zero",
        "w_gate_zero", "w_up_bias", "w_down_bias", "w_gate_bias", "w_up_global_scale", "w_down_global_scale",
        "w_gate_global_scale", "x_scale", "h_scale"
    };
    enum { NAMES = sizeof names / sizeof *names };
    void *there[NAMES] = {0};
    moek_plan p = *plan;
    moek_weights w = plan->weights;
    moek_status status;
    int i, j;
    for (i = 0; i < NAMES; i++) {
        char field[48], *to, *from;
        void *at;
        size_t bytes;
        snprintf(field, sizeof field, "weights.%s", names[i]);
        bytes = moek_alignment(plan, field);
        at = (char *)&w + moek_offset(field);
        memcpy(&from, at, sizeof from);
        if (!from) continue;
        for (j = 0; least_of->array[j].there + LAYER_GUARD != (unsigned char *)from; j++)
            if (j == least_of->arrays - 1) abort();
        there[i] = mem_alloc(layer_arch, least_of->array[j].bytes + 64);
        to = (char *)there[i] + bytes / 2;
        memcpy(at, &to, sizeof to);
        if (bytes > 1)
            CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && strstr(p.why, field), "%s: %s is accepted: %s",
                  least_of->what, field, p.why);
        to = (char *)there[i] + bytes;
        memcpy(at, &to, sizeof to);
        layer_copy(to, from, least_of->array[j].bytes, stream);
    }
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s: %s", least_of->what, p.why);
    status = moek_run(&p, args, stream);
#if MEM_CUDA
    if (layer_arch) mem_must(cudaDeviceSynchronize());
#endif
    for (i = 0; i < NAMES; i++) mem_free(layer_arch, there[i]);
    return status;
}
static void test_alignment(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        for (turn = 0; turn < 2; turn++) {
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            SKIP_IF_QUICK(turn, 2);
            c.up_layout = turn ? MOEK_UP_APART : 0;
            layer_new(&l, &c, LAYER_BIAS | LAYER_STATIC | LAYER_ZERO, TOKENS);
            snprintf(l.what, sizeof l.what, "alignment, %s, layout %d", f->name, c.up_layout);
            y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
            least_of = &l;
            if (y) layer_same(&l, at_least_alignment, y, "other addresses");
            free(y);
            layer_free(&l);
        }
    }
}

/* In place of an array of the layer, what the library makes of it. */
typedef moek_status (*repacker)(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                moek_stream stream);
static void repack_by(layer *l, repacker repack, const void *host)
{
    layer_array *const a = layer_find(l, host);
    const size_t each = a->bytes / (size_t)l->plan.local_experts;
    char *const of = (char *)mem_alloc(layer_arch, a->bytes), *const to = (char *)mem_alloc(layer_arch, a->bytes);
    char *const again = (char *)mem_alloc(layer_arch, a->bytes);
    unsigned char *const got = (unsigned char *)malloc(a->bytes);
    int e, done = 1;
    mem_put(layer_arch, of, host, a->bytes);
    for (e = 0; e < l->plan.local_experts; e += 3) {   /* some experts at a time */
        const int some = l->plan.local_experts - e < 3 ? l->plan.local_experts - e : 3;
        const size_t at = each * (size_t)e;
        done &= repack(&l->plan, of + at, to + at, some, 0, NULL) == MOEK_OK &&
                repack(&l->plan, to + at, again + at, some, 1, NULL) == MOEK_OK;
    }
    mem_get(layer_arch, got, again, a->bytes);
    CHECK(done && !memcmp(got, host, a->bytes), "%s: repacked and back it is something else", l->what);
    a->repacked = (unsigned char *)malloc(a->bytes + 2 * LAYER_GUARD);
    memcpy(a->repacked, a->host, a->bytes + 2 * LAYER_GUARD);
    mem_get(layer_arch, a->repacked + LAYER_GUARD, to, a->bytes);
    mem_free(layer_arch, of); mem_free(layer_arch, to); mem_free(layer_arch, again);
    free(got);
}
/* expands: with config.expand_weights, which so many rows an expert then take. */
static void fragments_case(int quant, int act, int tokens, int turn, int expands)
{
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    if (moek_format_of(quant)->blocks) c.block = moek_format_of(quant)->block[turn % moek_format_of(quant)->blocks];
    c.hidden = turn % 2 ? 320 : 128; c.inter = turn % 4 < 2 ? 192 : 128; c.experts = turn % 3 ? 7 : 3;
    if (expands) c.hidden = turn % 2 ? 576 : 320, c.inter = turn % 4 < 2 ? 448 : 256;
    c.dtype = turn % 3 == 1 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    c.max_tokens = tokens;
    c.act = act;
    c.up_layout = ref_gated(act) ? turn % 4 : 0;       /* all but APART */
    c.batch_invariant = turn % 5 == 3 && !expands;
    if (turn % 7 == 6 && !expands) c.format = MOEK_BATCHED;
    c.weight_layout = MOEK_WEIGHTS_TILED;
    c.expand_weights = expands;
    layer_new(&l, &c, (turn % 2 ? LAYER_BIAS : 0) | (turn / 2 % 2 ? LAYER_ZERO : 0), tokens);
    if (turn % 3 != 1 && c.format == MOEK_STANDARD && format_has(l.format, MOEK_OP_LAYER, 90))     /* up to 8 tokens: */
        layer_state = layer_zeros(moek_state_size());                  /* in one launch */
    snprintf(l.what, sizeof l.what, "fragments, %s, block %d, zeros %d, act %d, %d tokens, turn %d, expands %d",
             l.format->name, c.block, l.w.w_up_zero != NULL, act, tokens, turn, expands);
    if (layer_plan(&l)) {
        CHECK(moek_selection_of(&l.plan, tokens, MOEK_FUSE_LAYER).details.expands == expands, "%s: it does not",
              l.what);
        repack_by(&l, moek_repack_up, l.w.w_up); repack_by(&l, moek_repack_down, l.w.w_down);
        const int scales = l.format->w_scale.rows == 1 && l.format->w_scale.columns;
        if (scales) {                                  /* (others, and zero points of rows, stay) */
            repack_by(&l, moek_repack_up_scale, l.w.w_up_scale);
            repack_by(&l, moek_repack_down_scale, l.w.w_down_scale);
        }
        if (l.w.w_up_zero && scales) {
            repack_by(&l, moek_repack_up_zero, l.w.w_up_zero); repack_by(&l, moek_repack_down_zero, l.w.w_down_zero);
        }
        if ((y = layer_y(&l, moek_run)) != NULL) {
            layer_compare_some(&l, tokens < 12 ? tokens : 12);
            if (!layer_state) layer_same(&l, by_stages, y, "by stages");       /* (in one launch o is not rounded) */
            least_of = &l;
            layer_same(&l, at_least_alignment, y, "other addresses");
#if MEM_CUDA
            layer_same(&l, by_graph, y, "a graph");
#endif
        }
        free(y);
    }
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* Weights in panels, on the CPU: all that belongs to them is repacked. */
static void panels_case(int quant, int tokens, int turn)
{
    static const int acts[] = { MOEK_SILU, MOEK_SWIGLUOAI, MOEK_RELU2_NO_MUL };
    const moek_format *const f = moek_format_of(quant);
    moek_config c = config_of(quant);
    int scales;
    uint16_t *y;
    layer l;
    if (f->blocks) c.block = f->block[turn % f->blocks];
    c.hidden = turn % 2 ? 160 : 128; c.inter = turn % 4 < 2 ? 96 : 192; c.experts = 3;
    c.dtype = format_dtype_in(f, turn);
    c.max_tokens = tokens;
    c.act = acts[turn % 3];
    c.up_layout = ref_gated(c.act) ? turn % 5 : 0;
    if (turn % 7 == 6) c.format = MOEK_BATCHED;
    c.weight_layout = MOEK_WEIGHTS_PANELS;
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0) | (turn / 2 % 2 && f->zero ? LAYER_ZERO : 0), tokens);
    snprintf(l.what, sizeof l.what, "panels, %s, block %d, zeros %d, act %d, up_layout %d, %d tokens, turn %d", f->name,
             c.block, l.w.w_up_zero != NULL, c.act, c.up_layout, tokens, turn);
    if (layer_plan(&l)) {
        scales = f->w_scale.rows == 1 && l.w.w_up_scale && moek_weight_scale(f, c.block).columns;
        repack_by(&l, moek_repack_up, l.w.w_up); repack_by(&l, moek_repack_down, l.w.w_down);
        if (l.w.w_gate) repack_by(&l, moek_repack_up, l.w.w_gate);
        if (scales) {
            repack_by(&l, moek_repack_up_scale, l.w.w_up_scale);
            repack_by(&l, moek_repack_down_scale, l.w.w_down_scale);
            if (l.w.w_gate) repack_by(&l, moek_repack_up_scale, l.w.w_gate_scale);
        }
        if (l.w.w_up_zero && scales) {
            repack_by(&l, moek_repack_up_zero, l.w.w_up_zero); repack_by(&l, moek_repack_down_zero, l.w.w_down_zero);
            if (l.w.w_gate) repack_by(&l, moek_repack_up_zero, l.w.w_gate_zero);
        }
        if ((y = layer_y(&l, moek_run)) != NULL) {
            layer_compare_some(&l, tokens < 12 ? tokens : 12);
            layer_same(&l, by_stages, y, "by stages");
        }
        free(y);
    }
    layer_free(&l);
}
static void test_panels(void)
{
    static const int tokens[] = { 1, 70, 3, 12, 160 };
    int i, t, turn = 0;
    for (i = 0; i < FORMATS && layer_arch < MOEK_ARCH_SM80; i++)
        for (t = 0; t < (quick_set ? 2 : 10); t++, turn++)
            if (format_has(format_at(i), MOEK_OP_UP, MOEK_ARCH_CPU) && !format_at(i)->only_blocks)
                panels_case(format_at(i)->number, tokens[turn % 5], turn);
}
/* Weights of 4 bits on Hopper: all tile heights; layouts, T, biases and activations by turns.  Weights as they come
 * are refused, and zero points that are not aligned. */
static void test_fragments(void)
{
    static const int tokens[] = { 1, 300, 20, 9, 60, 130, 3, 700 };
    static const int acts[] = { MOEK_SILU, MOEK_SWIGLUOAI, MOEK_GELU, MOEK_RELU2_NO_MUL, MOEK_SITU };
    int i, turn = 0;
    for (i = 0; i < FORMATS && layer_arch == 90; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = config_of(f->number);
        moek_plan plan;
        int t;
        if (!format_has(f, MOEK_OP_UP, 90) || !format_in_fragments(f)) continue;
        for (t = 0; t < (quick_set ? 2 : SMALL ? 4 : 16); t++, turn++)
            fragments_case(f->number, acts[turn % 5], tokens[turn % 8], turn, 0);
        c.block = f->blocks ? f->block[0] : 0;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "MOEK_WEIGHTS_TILED"), "%s", plan.why);
        if (f->zero) {
            layer l;
            c.weight_layout = MOEK_WEIGHTS_TILED;
            layer_new(&l, &c, LAYER_ZERO, 1);
            l.w.w_up_zero = (const char *)l.w.w_up_zero + 1;
            CHECK(moek_plan_init(&l.plan, &c) == MOEK_OK && moek_plan_bind(&l.plan, &l.w) == MOEK_E_ARGUMENT &&
                  strstr(l.plan.why, "w_up_zero is not aligned to 16"), "%s", l.plan.why);
            layer_free(&l);
        }
    }
}
/* Weights become e4m3 in a run: the same layers, of many rows an expert. */
static void test_expanded(void)
{
    static const int acts[] = { MOEK_SWIGLUOAI, MOEK_SILU, MOEK_RELU2_NO_MUL, MOEK_SITU };
    int i, turn, other, first = 0;
    for (i = 0; i < FORMATS && layer_arch == 90; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = config_of(f->number);
        moek_plan plan;
        c.hidden = c.inter = 256;
        c.weight_layout = MOEK_WEIGHTS_TILED, c.expand_weights = 1;
        c.block = f->blocks ? f->block[0] : 0;
        if (!f->expands) {
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "expand_weights"), "%s: %s", f->name,
                  plan.why);
            continue;
        }
        for (turn = 0; turn < (quick_set ? 2 : SMALL ? 4 : 12); turn++)        /* from 512 rows on, up quantizes h */
            fragments_case(f->number, acts[(turn + first) % 4], turn % 3 ? 1300 : 900, turn + first, 1);
        first++;
        c.weight_layout = MOEK_WEIGHTS_CHECKPOINT;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "moek_repack_up"), "%s", plan.why);
        c.weight_layout = MOEK_WEIGHTS_TILED, c.batch_invariant = 1;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "batch_invariant"), "%s", plan.why);
        c.batch_invariant = 0, c.max_tokens = 4096, c.prepare_finalize = &moek_batched;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, "expand_weights is for MOEK_STANDARD"),
              "%s", plan.why);
        c.prepare_finalize = NULL;                     /* room for weights only where a run can have the rows */
        if (CHECK(moek_plan_init(&plan, &c) == MOEK_OK && plan.chosen.expanded && plan.chosen.expand, "%s", plan.why)) {
            const size_t with = plan.workspace_size;
            char text[512];
            CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_OK && c.quant == f->number && c.expand_weights &&
                  strstr(text, "(config.expand_weights)"), "%s", text);
            c.max_tokens = 16;
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK && !plan.chosen.expanded &&
                  plan.workspace_size < with, "%s", plan.why);
            for (other = turn = 0; turn < FORMATS; turn++)
                other |= format_at(turn) != f && moek_same_weights(format_at(turn)->number, f->number) &&
                         format_has(format_at(turn), MOEK_OP_UP, 90);
            CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_OK && (c.quant != f->number) == other &&
                  c.expand_weights == !other && (strstr(text, "expand_weights is 0 now") != NULL) == other, "%s", text);
            c.quant = f->number, c.expand_weights = 1;
        }
        c.expand_weights = 2;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "0 or 1"), "%s", plan.why);
    }
}
static void test_tiled(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        moek_plan plan;
        int turn;
        for (turn = 0; turn < 12 && layer_arch == 90; turn++) {
            SKIP_IF_SMALL((turn + q_) % (quick_set ? 12 : 5));
            tiled_case(f->number, turn);
        }
        c.weight_layout = MOEK_WEIGHTS_TILED;
        c.hidden = c.inter = 256;
        if (layer_arch < 90)
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, "only sm90 rows"), "%s", plan.why);
        c.inter = 272;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "inter 272"), "%s", plan.why);
    }
}

/* Gate and up in two arrays: the same bits as from one, whichever way a layer goes. */
static void half_of_up(const layer *l, const void *from, void *to, size_t half, int second)
{
    const size_t n = (size_t)l->plan.local_experts;
    size_t e;
    for (e = 0; e < n; e++) memcpy((char *)to + e * half, (const char *)from + (2 * e + second) * half, half);
}
static const void *take_half(layer *l, const void *from, size_t bytes, int second)
{
    void *const to = from ? layer_array_new(l, bytes * l->plan.local_experts, LAYER_IN) : NULL;
    if (to) half_of_up(l, from, to, bytes, second);
    return to;
}
static void apart_case(int quant, int turn)
{
    static const int tokens[] = { 1, 4, 9, 70, 300, 900 };
    moek_config c = config_of(quant);
    const moek_format *const f = format_with(moek_format_of(quant), c.block);
    size_t scales, half, zeros;
    moek_weights w;
    uint16_t *y;
    layer l;
    int second;
    c.hidden = format_round_up(f, turn % 2 ? 640 : 1152); c.inter = format_round_up(f, turn % 4 < 2 ? 256 : 384);
    c.experts = turn % 3 ? 11 : 6;
    if (format_rows_share(f) && turn % 2) c.inter = 192, c.up_scales = MOEK_UP_SCALES_APART;
    c.max_tokens = tokens[turn % (layer_arch ? 6 : 4)];
    if (quick_set && SMALL && c.max_tokens > 300) c.max_tokens = 300;
    c.up_layout = turn / 6 % 2 ? MOEK_UP_SWAPPED : MOEK_UP_HALVES;
    if (turn % 4 == 3) c.format = MOEK_BATCHED;
    layer_new(&l, &c, LAYER_STATIC | (turn % 3 ? LAYER_BIAS : 0) | (turn % 2 ? LAYER_ZERO : 0), c.max_tokens);
    snprintf(l.what, sizeof l.what, "gate and up apart, %s, turn %d", moek_quant_name(quant), turn);
    if (turn % 3 < 2 && format_has(f, MOEK_OP_LAYER, layer_arch)) layer_state = layer_zeros(moek_state_size());
    y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
    if (y) {
        w = l.w;
        second = c.up_layout == MOEK_UP_HALVES;
        scales = moek_scale_bytes(&f->w_scale, (size_t)c.inter, (size_t)c.hidden);
        half = c.inter * moek_weight_bytes(f, 0, (size_t)c.hidden);
        l.w.w_gate = take_half(&l, w.w_up, half, !second);
        l.w.w_up = take_half(&l, w.w_up, half, second);
        l.w.w_gate_bias = take_half(&l, w.w_up_bias, 2 * (size_t)c.inter, !second);
        l.w.w_up_bias = take_half(&l, w.w_up_bias, 2 * (size_t)c.inter, second);
        zeros = c.inter * layer_zero_row(f, (size_t)c.hidden);
        l.w.w_gate_zero = take_half(&l, w.w_up_zero, zeros, !second);
        l.w.w_up_zero = take_half(&l, w.w_up_zero, zeros, second);
        l.w.w_gate_global_scale = (const float *)take_half(&l, w.w_up_global_scale, 4, !second);
        l.w.w_up_global_scale = (const float *)take_half(&l, w.w_up_global_scale, 4, second);
        l.w.w_gate_scale = w.w_up_scale;               /* one an expert: may be the same */
        if (f->w_scale.rows) {
            l.w.w_gate_scale = (const float *)take_half(&l, w.w_up_scale, scales, !second);
            l.w.w_up_scale = (const float *)take_half(&l, w.w_up_scale, scales, second);
        }
        l.config.up_layout = MOEK_UP_APART;
        l.config.up_scales = 0;
        if (layer_plan(&l)) layer_same(&l, moek_run, y, "gate and up apart");
        CHECK(l.plan.config.up_scales == format_rows_share(f), "%s: up_scales %d", l.what, l.plan.config.up_scales);
        if (layer_arch)
            CHECK(moek_repack_up(&l.plan, y, y + 8, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: it repacks", l.what);
    }
    free(y);
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* A layer cut in shards as tensor parallelism cuts them, some of which begin inside a block of scales: what they give
 * adds up to what the whole gives.  Scales of the whole are by blocks of its own; of a shard they are the blocks that
 * it has a part of, and of w_down those from the group of h on in which it begins: NaN where all columns of a scale are
 * another shard's. */
typedef struct shard_of { const layer *whole; layer *l; int first, all; } shard_of;
/* Rows of w, or columns of w or of h, that share a scale, the most of them: inter_offset is below it. */
static int shard_shared(const moek_format *f, int inter)
{
    const int most = f->w_scale.rows > f->w_scale.columns ? f->w_scale.rows : f->w_scale.columns;
    const int shared = most > f->x_scale.columns ? most : f->x_scale.columns;
    return shared > 1 ? shared : inter;
}
/* Groups of so many columns ahead of the first scale of a row of w_down. */
static size_t shard_skipped(const shard_of *s, int columns)
{
    return columns ? (size_t)((s->first - s->l->config.inter_offset) / columns) : 0;
}
/* Blocks of so many that elements first .. first + n - 1 have a part of; 0: there is one of all. */
static size_t shard_blocks(int first, int n, int block)
{
    return block ? (size_t)((first + n + block - 1) / block - first / block) : 1;
}
static size_t shard_row(const shard_of *s, int columns)               /* of w */
{
    return moek_weight_bytes(s->l->format, 0, (size_t)columns);
}
static const void *shard_rows(const shard_of *s, const void *from, int first_of_expert, int rows_of_expert)
{
    const size_t row = shard_row(s, s->l->config.hidden), bytes = (size_t)s->l->config.inter * row;
    char *const to = (char *)layer_array_new(s->l, bytes * EXPERTS, LAYER_IN);
    int e;
    for (e = 0; e < EXPERTS; e++)
        memcpy(to + e * bytes, (const char *)from + ((size_t)e * rows_of_expert + first_of_expert + s->first) * row,
               bytes);
    return to;
}
/* Rows of scales, `row` bytes each, of its gate or up, from `per_expert` of them an expert to `to_each`. */
static void shard_scales(const shard_of *s, char *to, const char *from, size_t to_each, size_t per_expert, size_t row)
{
    const int share = s->l->format->w_scale.rows;
    const size_t first = (size_t)(s->first / share), blocks = shard_blocks(s->first, s->l->config.inter, share);
    int e;
    for (e = 0; e < EXPERTS; e++)
        memcpy(to + e * to_each * row, from + (e * per_expert + first) * row, blocks * row);
}
/* What the format has on top, of a layer whose gate comes first: second scales are those of the whole. */
static const float *shard_second(const shard_of *s, const float *from, int first, int step, int halves)
{
    float *const to = from ? (float *)layer_array_new(s->l, 4 * (size_t)EXPERTS * halves, LAYER_IN) : NULL;
    int i;
    for (i = 0; to && i < EXPERTS * halves; i++) to[i] = from[i / halves * step + (first + i % halves) % step];
    return to;
}
/* Static scales of x and of h are those of the whole. */
static const float *shard_static(const shard_of *s, const float *from)
{
    float *const to = (float *)layer_array_new(s->l, 4, LAYER_IN);
    *to = *from;
    return to;
}
/* Rows of zero points of gate, of up or of what is not gated: from `first` of so many rows of an expert of the whole to
 * `at` of so many of its own. */
static void shard_zeros(const shard_of *s, void *to, int at, int rows, int first, int whole_rows)
{
    const size_t row = layer_zero_row(s->l->format, (size_t)s->l->config.hidden);
    int e;
    for (e = 0; to && e < EXPERTS; e++)
        memcpy((char *)to + ((size_t)e * rows + at) * row, (const char *)s->whole->w.w_up_zero +
               ((size_t)e * whole_rows + first + s->first) * row, (size_t)s->l->config.inter * row);
}
static void shard_more(const shard_of *s)
{
    moek_weights *const w = &s->l->w;
    const float *const up = s->whole->w.w_up_global_scale;
    const moek_config *const c = &s->l->config;
    const moek_format *const f = s->l->format;
    const int gated = ref_gated(c->act), swapped = c->up_layout == MOEK_UP_SWAPPED, n = c->inter;
    const size_t skipped = shard_skipped(s, f->w_scale.columns);
    const size_t row = layer_zero_row(f, (size_t)(c->inter + c->inter_offset)), all = layer_zero_row(f, (size_t)s->all);
    const ref_number *const number = ref_element(f->w, c->dtype);
    uint8_t *const down = (uint8_t *)(size_t)w->w_down_zero;
    size_t r, g;
    w->w_down_global_scale = shard_second(s, s->whole->w.w_down_global_scale, 0, 1, 1);
    if (s->whole->w.x_scale) w->x_scale = shard_static(s, s->whole->w.x_scale);
    if (s->whole->w.h_scale) w->h_scale = shard_static(s, s->whole->w.h_scale);
    if (c->up_layout == MOEK_UP_APART) {
        w->w_gate_global_scale = shard_second(s, up, 0, 2, 1);
        w->w_up_global_scale = shard_second(s, up, 1, 2, 1);
        shard_zeros(s, (void *)(size_t)w->w_gate_zero, 0, n, 0, 2 * s->all);
        shard_zeros(s, (void *)(size_t)w->w_up_zero, 0, n, s->all, 2 * s->all);
    } else {
        w->w_up_global_scale = shard_second(s, up, swapped, 1 + gated, 1 + gated);
        shard_zeros(s, (void *)(size_t)w->w_up_zero, swapped ? n : 0, n * (1 + gated), 0, s->all * (1 + gated));
        if (gated)
            shard_zeros(s, (void *)(size_t)w->w_up_zero, swapped ? 0 : n, 2 * n, s->all, 2 * s->all);
    }
    for (r = 0; down && r < (size_t)EXPERTS * c->hidden; r++)
        for (g = 0; g < moek_scale_count(&f->w_scale, 1, (size_t)(c->inter + c->inter_offset)); g++)
            ref_put_code(number, down + r * row, g,
                         ref_code(number, (const char *)s->whole->w.w_down_zero + r * all, g + skipped));
}
static void shard_down(const shard_of *s)
{
    const moek_config *c = &s->l->config;
    const moek_scale_shape *const shape = &s->l->format->w_scale;
    const moek_weights *const from = &s->whole->w;
    const ref_number *const type = ref_scale_type(shape->type, c->dtype);
    const size_t one = moek_scale_bytes(shape, 1, 1), rows = EXPERTS * shard_blocks(0, c->hidden, shape->rows);
    const size_t all = shard_blocks(0, s->all, shape->columns);
    const size_t blocks = shard_blocks(0, c->inter_offset + c->inter, shape->columns);
    const size_t row = shard_row(s, c->inter), skipped = shard_row(s, s->first);
    char *const w = (char *)layer_array_new(s->l, (size_t)EXPERTS * c->hidden * row, LAYER_IN);
    char *const scale = (char *)layer_array_new(s->l, rows * blocks * one, LAYER_IN);
    size_t r, g;
    for (r = 0; r < (size_t)EXPERTS * c->hidden; r++)
        memcpy(w + r * row, (const char *)from->w_down + r * shard_row(s, s->all) + skipped, row);
    for (r = 0; r < rows; r++) {
        memcpy(scale + r * blocks * one, (const char *)from->w_down_scale +
               (r * all + shard_skipped(s, shape->columns)) * one, blocks * one);
        for (g = 0; (g + 1) * (size_t)shape->columns <= (size_t)c->inter_offset && shape->columns; g++)
            ref_put(type, scale, r * blocks + g, NAN);
    }
    s->l->w.w_down = w, s->l->w.w_down_scale = (const float *)scale;
}
static void shard_weights(shard_of *s)
{
    const moek_config *c = &s->l->config;
    const moek_scale_shape *const shape = &s->l->format->w_scale;
    const moek_weights *const from = &s->whole->w;
    const char *const scales = (const char *)from->w_up_scale;
    const size_t gk = moek_scale_bytes(shape, 1, (size_t)c->hidden), all = shard_blocks(0, s->all, shape->rows);
    const size_t blocks = shard_blocks(s->first, c->inter, shape->rows), row = shard_row(s, c->hidden);
    const int apart = c->up_layout == MOEK_UP_APART, swapped = c->up_layout == MOEK_UP_SWAPPED;
    const int gated = ref_gated(c->act), halves = gated && !apart ? 2 : 1;
    char *scale = (char *)layer_array_new(s->l, EXPERTS * blocks * halves * gk, LAYER_IN);
    size_t e;
    int i;
    s->l->w.w_up_scale = (const float *)scale;
    if (apart) {
        s->l->w.w_gate = shard_rows(s, from->w_up, 0, 2 * s->all);
        s->l->w.w_up = shard_rows(s, from->w_up, s->all, 2 * s->all);
        shard_scales(s, scale, scales + all * gk, blocks, 2 * all, gk);
        scale = (char *)layer_array_new(s->l, EXPERTS * blocks * gk, LAYER_IN);
        s->l->w.w_gate_scale = (const float *)scale;
        shard_scales(s, scale, scales, blocks, 2 * all, gk);
    } else {
        const size_t half = (size_t)c->inter * row;
        char *const up = (char *)layer_array_new(s->l, EXPERTS * halves * half, LAYER_IN);
        s->l->w.w_up = up;
        for (i = 0; i < halves; i++) {
            const int of = swapped ? 1 - i : i;        /* of the whole, which has gate first */
            for (e = 0; e < EXPERTS; e++)
                memcpy(up + (e * halves + i) * half, (const char *)from->w_up +
                       ((e * halves + of) * (size_t)s->all + s->first) * row, half);
            shard_scales(s, scale + i * blocks * gk, scales + of * all * gk, halves * blocks, halves * all, gk);
        }
    }
    shard_down(s);
    shard_more(s);
}
static void shards_case(const moek_format *f, int shards, int inter, int act, int layout, int format, int tokens)
{
    moek_config c = config_of(f->number), part;
    const int block = shard_shared(format_with(f, c.block), inter);
    const ref_number *const x = ref_element(f->x, MOEK_DTYPE_BF16);
    double *want, *sum, square = 0, error = 0;
    layer whole, l;
    size_t n, i;
    int shard, fine = 1;
    c.inter = shards * inter; c.act = act; c.format = format; c.max_tokens = tokens;
    c.up_scales = format_rows_share(f) ? MOEK_UP_SCALES_APART : 0;
    layer_new(&whole, &c, LAYER_ZERO, tokens);
    snprintf(whole.what, sizeof whole.what, "%s, the whole of %d shards of %d, act %d, layout %d, format %d", f->name,
             shards, inter, act, layout, format);
    if (layer_plan(&whole) && layer_run(&whole, moek_run)) {
        n = layer_y_bytes(&whole) / 2;
        want = layer_ref(&whole);
        sum = (double *)ref_alloc(n * sizeof *sum);
        for (shard = 0; shard < shards; shard++) {
            shard_of s;
            part = c;
            part.inter = inter; part.inter_offset = shard * inter % block; part.up_layout = layout;
            layer_new(&l, &part, LAYER_ZERO, tokens);
            s.whole = &whole, s.l = &l, s.first = shard * inter, s.all = c.inter;
            shard_weights(&s);
            memcpy((void *)(uintptr_t)l.args.x, whole.args.x, 2 * n);
            memcpy(l.args.topk_ids, whole.args.topk_ids, 4 * (size_t)tokens * TOPK);
            memcpy(l.args.topk_weights, whole.args.topk_weights, 4 * (size_t)tokens * TOPK);
            fine &= layer_check(&l, "a shard");
            if (fine) {
                const void *y = layer_got(&l, l.args.y);
                CHECK(!part.inter_offset || (!moek_plan_layer(&l.plan, tokens) && !moek_plan_mlp(&l.plan, tokens)),
                      "%s: a row that quantizes h takes it", l.what);
                CHECK(l.plan.backend == backend, "%s: backend %d", l.what, l.plan.backend);
                for (i = 0; i < n; i++) sum[i] += ref_get_t(y, i, l.plan.config.dtype);
            }
            layer_free(&l);
        }
        for (i = 0; i < n; i++) square += want[i] * want[i], error += (sum[i] - want[i]) * (sum[i] - want[i]);
        /* A block of h in the whole and its part in a shard may have different largest elements, hence different
         * scales. Both round h then: e4m3 by a relative rms of 0.026 each, 0.037 together. */
        if (fine)
            CHECK(sqrt(error / square) < (x->kind == REF_FLOAT && x->bits < 4 ? 0.12 : 0.04),
                  "%s: the shards do not add up: %.2e", whole.what, sqrt(error / square));
        free(want), free(sum);
    }
    layer_free(&whole);
}
static void shards_of(const moek_format *f)
{
    static const int layouts[] = { MOEK_UP_HALVES, MOEK_UP_APART, MOEK_UP_SWAPPED };
    const int g = format_granule(f, layer_arch);
    moek_config c = config_of(f->number);
    moek_plan plan;
    int i;
    for (i = quick_set ? f->number % 3 : 0; i < 3; i += quick_set ? 3 : 1) {
        if (!quick_set || quick_cases++ % 2 == 0) shards_case(f, 2, 192, MOEK_SILU, layouts[i], i % 2, TOKENS);
        if (layer_arch < 90 || g < 64) shards_case(f, 3, (79 / g + 1) * g, MOEK_SILU, layouts[i], i % 2, TOKENS);
        if (!layer_arch) shards_case(f, 4, 35 + (f->granule > 1), MOEK_GELU, layouts[i], i % 2, TOKENS);
    }
    shards_case(f, 2, 64, MOEK_RELU2_NO_MUL, 0, 0, TOKENS);
    if (!SMALL && !quick_set) shards_case(f, 2, 192, MOEK_SILU, MOEK_UP_HALVES, 0, layer_arch ? 1500 : 100);
    c.inter = g + g / 2;
    if (layer_arch && g > 1)
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "shard") &&
              strstr(plan.why, "cut inter in multiples of"), "%s", plan.why);
    c.inter = g; c.hidden += g / 2; c.inter_offset = g / 2; c.up_scales = MOEK_UP_SCALES_APART;
    if (layer_arch && format_rows_share(f))
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "; or, of a shard"), "%s", plan.why);
    c.hidden -= g / 2;
    c.inter = 80; c.inter_offset = 80; c.up_scales = MOEK_UP_SCALES_APART;
    if (layer_arch == 90 && format_rows_share(f))
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "multiple of 64"), "%s", plan.why);
}
static void test_shards(void)
{
    FOR_EACH_FORMAT(f) if (f->w_scale.columns || f->blocks) shards_of(f);
}

/* How far apart they may be, and what else goes with them. */
static void apart_refused(void)
{
    const uint64_t base = (uint64_t)1 << 45;
    moek_config c = config_of(FORMAT_PLAIN);
    moek_plan plan;
    moek_weights w;
    if (sizeof(void *) < 8) return;                    /* nothing is so far apart there */
    memset(&w, 0, sizeof w);
    c.up_layout = MOEK_UP_APART;
    w.w_up = w.w_down = (const void *)(uintptr_t)base;
    w.w_gate = (const void *)(uintptr_t)(base + ((uint64_t)1 << 40));
    if (!CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s", plan.why)) return;
    CHECK(moek_plan_bind(&plan, &w) == (layer_arch == 90 ? MOEK_E_ARGUMENT : MOEK_OK), "2^40 bytes apart: %s",
          plan.why);
    CHECK(layer_arch != 90 || strstr(plan.why, "2^40 bytes apart"), "2^40 bytes apart: %s", plan.why);
    w.w_up = (const void *)(uintptr_t)(base + ((uint64_t)1 << 41) - 16);
    CHECK(moek_plan_bind(&plan, &w) == MOEK_OK, "less than 2^40 bytes apart: %s", plan.why);
}
static void test_apart(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        for (turn = 0; turn < 12; turn++) {
            SKIP_IF_SMALL((turn + 2 * q_) % 6 > (layer_arch == 90) || (layer_arch < 90 && turn % 6 > 3));
            SKIP_IF_SMALL(quick_set && turn >= 6);
            SKIP_IF_QUICK(turn, SMALL ? 2 : 4);
            apart_case(f->number, turn);
        }
    }
    apart_refused();
}

/* Rows of sm90 find rows of x by 32 bits; and no row of a plan for so much h is one that does so with h. */
static void test_large(void)
{
    moek_config c = config_of(FORMAT_PLAIN);
    moek_plan plan;
    if (layer_arch != 90) return;
    c.hidden = 1 << 16; c.max_tokens = 1 << 19;
    CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "64 GiB or more: set chunk_tokens"),
          "x of 64 GiB: %s", plan.why);
    c.chunk_tokens = (1 << 19) - 1;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "x of less than 64 GiB: %s", plan.why);
    c = config_of(FORMAT_PLAIN);
    c.inter = 1 << 21; c.hidden = 4096; c.experts = 64; c.topk = 8; c.max_tokens = 1024;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "h of 64 GiB: %s", plan.why);
    CHECK(moek_plan_mlp(&plan, 512) && !moek_plan_mlp(&plan, 1024), "mlp rows, with h of 64 GiB");
}

/* Without batch_invariant: chunks give the same bits while tiles are the same, which such few tokens see to. */
static void test_chunks(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        uint16_t *y;
        layer l;
        SKIP_IF_SMALL(f->number != FORMAT_PLAIN);
        if (format_by_tensor(f)) continue;             /* its scale is that of the chunk */
        layer_new(&l, &c, LAYER_LOGITS, TOKENS);
        if (layer_check(&l, "in chunks") && (y = layer_y(&l, moek_run)) != NULL) {
            l.config.chunk_tokens = 5;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 5");
            free(y);
        }
        layer_free(&l);
    }
}

/* No tokens: nothing is written. */
static moek_status shared_of_nothing(void *context, int first, int tokens, moek_stream stream)
{
    (void)context; (void)first; (void)stream;
    CHECK(0, "shared experts are called for %d tokens", tokens);
    return MOEK_OK;
}
static void test_no_tokens(void)
{
    FOR_EACH_FORMAT(f) {
        int format;
        for (format = 0; format < 2; format++) {
            moek_config c = config_of(f->number);
            layer l;
            SKIP_IF_SMALL(f->number != FORMAT_TENSOR);
            c.format = format;
            layer_new(&l, &c, 0, TOKENS);
            snprintf(l.what, sizeof l.what, "no tokens, %s, format %d", f->name, format);
            l.args.tokens = 0;
            l.args.shared = shared_of_nothing;
            if (layer_plan(&l) && layer_run(&l, moek_run)) {
                const layer_array *y = layer_find(&l, l.args.y);
                CHECK(!memcmp(y->got, y->host, y->bytes), "%s: y was written", l.what);
                l.args.shared = NULL;                  /* by_stages calls it by itself */
                layer_run(&l, by_stages);
                CHECK(!memcmp(y->got, y->host, y->bytes), "%s: y was written by the stages", l.what);
            }
            layer_free(&l);
        }
    }
}

/* ---- NaN and Inf ------------------------------------------------------------------------------------------------- */

/* A token that is spoilt changes no other's bits.  (Compared with zeros in its place: the dynamic scale of fp8t is that
 * of all finite x, so the token may not have any.) */
static void test_nonfinite(void)
{
    static const uint16_t bad[2][2] = { { 0x7fc0, 0x7f80 }, { 0x7e00, 0x7c00 } };         /* NaN, Inf; bf16, fp16 */
    FOR_EACH_FORMAT(f) {
        int kind;
        for (kind = 0; kind < 3; kind++) {
            moek_config c = config_of(f->number);
            uint16_t *y, *x;
            layer l;
            int j, visible = 0;
            SKIP_IF_SMALL(f->number != FORMAT_TENSOR || kind == 2);
            c.format = kind == 2;
            layer_new(&l, &c, 0, TOKENS);
            x = (uint16_t *)(size_t)l.args.x + 4 * c.hidden;
            memset(x, 0, 2 * (size_t)c.hidden);
            if (layer_check(&l, "a token of zeros") && (y = layer_y(&l, moek_run)) != NULL) {
                for (j = 0; j < c.hidden; j++)           /* all NaN, or one Inf */
                    if (kind != 1 || j == 7) x[j] = bad[l.config.dtype == MOEK_DTYPE_FP16][kind == 1];
                if (layer_run(&l, moek_run)) {
                    uint16_t *got = (uint16_t *)layer_got(&l, l.args.y);
                    for (j = 0; j < c.hidden; j++) {
                        const double v = ref_get_t(got, 4 * c.hidden + j, l.config.dtype);
                        visible += isnan(v) || isinf(v);
                    }
                    memcpy(got + 4 * c.hidden, y + 4 * c.hidden, 2 * (size_t)c.hidden);
                    CHECK(!memcmp(got, y, layer_y_bytes(&l)), "%s: NaN or Inf of a token reaches others", l.what);
                    CHECK(visible, "%s: NaN or Inf of a token is not to be seen", l.what);
                }
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* Element i of x or of weights. */
static void rounding_put(const layer *l, const void *array, size_t i, double value)
{
    ref_put(array == l->args.x ? ref_t(l->config.dtype) : ref_element(l->format->w, l->config.dtype),
            (void *)(size_t)array, i, value);
}
static void rounding_ones(layer *l, const void *scale, int type)
{
    const ref_number *const number = ref_scale_type(type, l->config.dtype);
    size_t i;
    for (i = 0; scale && i < layer_find(l, scale)->bytes * 8 / (size_t)number->width; i++)
        ref_put(number, (void *)(size_t)scale, i, 1);
}
/* Each x is a 1 among zeros, so that h are the weights there, powers of two; those of down are integers, and the
 * router's powers of two: all sums are exact, in any order, and y shows where T rounds.  o of every 16th column is more
 * than fp16 holds. */
static void rounding_fill(layer *l)
{
    const size_t hidden = (size_t)l->config.hidden, inter = (size_t)l->config.inter, all = EXPERTS * hidden * inter;
    const size_t tokens = (size_t)l->args.tokens;
    size_t i;
    for (i = 0; i < tokens * hidden; i++) rounding_put(l, l->args.x, i, i % hidden == i / hidden * 37 % hidden);
    for (i = 0; i < all; i++) rounding_put(l, l->w.w_up, i, 1 << rng_below(4));
    for (i = 0; i < all; i++) rounding_put(l, l->w.w_down, i, i / inter % 16 == 5 ? 448 : 1 + rng_below(15));
    rounding_ones(l, l->w.w_up_scale, l->format->w_scale.type);
    rounding_ones(l, l->w.w_down_scale, l->format->w_scale.type);
    rounding_ones(l, l->w.x_scale, l->format->x_scale.type), rounding_ones(l, l->w.h_scale, l->format->x_scale.type);
    for (i = 0; l->w.w_up_bias && i < EXPERTS * inter; i++) ((uint16_t *)(size_t)l->w.w_up_bias)[i] = 0;
    for (i = 0; l->w.w_down_bias && i < EXPERTS * hidden; i++)
        ((uint16_t *)(size_t)l->w.w_down_bias)[i] = ref_to_t(rng_below(16), l->config.dtype);
    for (i = 0; i < tokens * l->config.topk; i++) l->args.topk_weights[i] = ldexpf(1, -1 - rng_below(4));
}
static void rounding_case(const moek_format *f, const moek_kernel *k, int tokens, int turn)
{
    moek_config c = config_of(f->number);
    const uint16_t *got;
    double *want;
    layer l;
    int i, n, wrong = 0, infinite = 0;
    c.act = MOEK_RELU_NO_MUL;
    c.hidden = k && k->op == MOEK_OP_MLP ? 1024 : turn % 2 ? 256 : format_round_up(f, 320); c.inter = 768;
    c.topk = 1 + turn % 4;
    c.max_tokens = tokens;
    c.kernel = k ? k->name : NULL;
    c.format = !k && turn % 3 == 2;
    c.ue8m0 = f->ue8m0;
    c.dtype = format_dtype_in(f, 1);
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0), tokens);
    rounding_fill(&l);
    snprintf(l.what, sizeof l.what, "rounding of o, %s, %s, %d tokens, turn %d", f->name,
             k ? k->name : "step by step", tokens, turn);
    if (k) layer_state = layer_zeros(moek_state_size());
    if (layer_plan(&l) && layer_run(&l, moek_run)) {
        got = (const uint16_t *)layer_got(&l, l.args.y);
        want = layer_ref(&l);
        for (i = n = 0; i < tokens * c.hidden; i++) {
            const uint16_t right = ref_to_t(want[i], l.config.dtype);
            infinite += isinf(want[i]) != 0;
            n = wrong ? n : i;
            wrong += got[i] != right;
        }
        CHECK(!wrong, "%s: %d are wrong, the first is %.9g, not %.9g, of column %d", l.what, wrong,
              ref_get_t(got, n, l.config.dtype), want[n], n % c.hidden);
        CHECK((infinite > 0) == (l.config.dtype == MOEK_DTYPE_FP16), "%s: %d overflow", l.what, infinite);
        free(want);
    }
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* Scales of e8m0 as small as docs/formats.md says, beside x as large: products of element and scale are exact in bf16
 * down to there, on every row.  (Where tiled weights become e4m3, other limits hold.) */
static void small_case(const moek_format *f, int tiled)
{
    moek_config c = config_of(f->number);
    uint16_t *y;
    layer l;
    size_t i;
    c.act = MOEK_RELU_NO_MUL; c.weight_layout = tiled ? MOEK_WEIGHTS_TILED : 0;
    layer_new(&l, &c, 0, TOKENS);
    snprintf(l.what, sizeof l.what, "scales of 2^-100, %s, layout %d", f->name, tiled);
    for (i = 0; i < (size_t)TOKENS * c.hidden; i++)
        rounding_put(&l, l.args.x, i, ldexp(ref_get_t(l.args.x, i, MOEK_DTYPE_BF16), 100));
    for (i = 0; i < layer_find(&l, l.w.w_up_scale)->bytes; i++)
        ref_put(ref_scale_type(f->w_scale.type, 0), (void *)(size_t)l.w.w_up_scale, i, ldexp(1, -100));
    if (layer_plan(&l)) {
        if (tiled) {
            repack_by(&l, moek_repack_up, l.w.w_up); repack_by(&l, moek_repack_down, l.w.w_down);
            repack_by(&l, moek_repack_up_scale, l.w.w_up_scale);
            repack_by(&l, moek_repack_down_scale, l.w.w_down_scale);
        }
        if ((y = layer_y(&l, moek_run)) != NULL) layer_compare_some(&l, 4);
        free(y);
    }
    layer_free(&l);
}
static void test_small_scales(void)
{
    int i;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int tiled = layer_arch == 90 && format_in_fragments(f);
        if (f->w_scale.type != MOEK_SCALE_TYPE_E8M0 || !format_has(f, MOEK_OP_UP, layer_arch)) continue;
        if (!tiled || f->x_bits == 16) small_case(f, tiled);
    }
}

/* Rows for few tokens that do not round o are in no plan whose T is fp16. */
static void rounding_refused(int quant, const moek_kernel *k)
{
    moek_config c = config_of(quant);
    moek_plan plan;
    int tokens;
    c.dtype = MOEK_DTYPE_FP16;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s", plan.why);
    for (tokens = 1; tokens <= 4; tokens++)
        CHECK(!moek_plan_layer(&plan, tokens) || moek_plan_layer(&plan, tokens)->traits & MOEK_TRAIT_FP16,
              "%s, %d tokens", k->name, tokens);
    c.kernel = k->name;
    CHECK(moek_plan_init(&plan, &c) != MOEK_OK && strstr(plan.why, "does not round"), "%s: %s", k->name, plan.why);
}
/* o is rounded to T before the router's weights, whatever row does it, and however many tokens there are: in fp16 it
 * overflows in each, or in none.  (Where T is bf16, rows for 4 tokens do not round it.) */
static void test_rounding(void)
{
    FOR_EACH_FORMAT(f) {
        int i, n, tokens, turn = 0;
        const moek_kernel *const k = moek_kernels(&n);
        if (format_by_row(f)) continue;                /* (its scales are no powers of two) */
        if (ref_largest(ref_element(f->w, MOEK_DTYPE_BF16)) < 448) continue;
        for (tokens = 1; tokens <= 8; tokens++, turn++) {
            SKIP_IF_QUICK(tokens, 8);
            rounding_case(f, NULL, tokens, turn);
        }
        for (i = 0; i < n; i++) {
            if (k[i].quant != f->number || k[i].arch != layer_arch || (quick_set && !quick_row(&k[i]))) continue;
            if (k[i].op != MOEK_OP_LAYER && k[i].op != MOEK_OP_MLP) continue;
            if (k[i].op == MOEK_OP_LAYER && !(k[i].traits & MOEK_TRAIT_FP16)) {
                if (!format_dtype(f)) rounding_refused(f->number, &k[i]);
                continue;
            }
            for (tokens = 1; tokens <= 8; tokens++, turn++) {
                SKIP_IF_QUICK(i, 3);
                SKIP_IF_SMALL(!k[i].most_tokens && (tokens + i) % (k[i].op == MOEK_OP_MLP || quick_set ? 8 : 3));
                rounding_case(f, &k[i], tokens, turn);
            }
        }
    }
}

/* ---- own parts --------------------------------------------------------------------------------------------------- */

static char events[256];
static void event(char what)
{
    const size_t n = strlen(events);
    if (n + 1 < sizeof events) events[n] = what, events[n + 1] = 0;
}
#define INNER(self) ((const moek_prepare_finalize *)(self)->context)
static moek_status own_prepare_send(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    event('p');
    return INNER(self)->prepare_send(INNER(self), step, stream);
}
static moek_status own_prepare_receive(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    event('r');
    return INNER(self)->prepare_receive(INNER(self), step, stream);
}
static moek_status own_finalize_send(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                     moek_stream stream)
{
    event('s');
    return INNER(self)->finalize_send(INNER(self), step, weight_and_reduce, stream);
}
static moek_status own_finalize_receive(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                        moek_stream stream)
{
    event('f');
    return INNER(self)->finalize_receive(INNER(self), step, weight_and_reduce, stream);
}
static size_t own_workspace(const moek_prepare_finalize *self, const moek_plan *plan)
{
    return INNER(self)->workspace(INNER(self), plan);
}
static moek_prepare_finalize own_around(const moek_prepare_finalize *inner)
{
    moek_prepare_finalize own = *inner;
    own.name = "own";
    own.context = (void *)(size_t)inner;
    own.workspace = own_workspace;
    own.prepare_send = own_prepare_send;
    own.prepare_receive = own_prepare_receive;
    own.finalize_send = own_finalize_send;
    own.finalize_receive = own_finalize_receive;
    return own;
}

/* Shared experts that take their time: y comes when they are called, a chunk at a time, between send and receive. */
typedef struct shared_call { const void *from; void *to; int next, wrong; size_t row; } shared_call;
static moek_status shared_experts(void *context, int first, int tokens, moek_stream stream)
{
    shared_call *s = (shared_call *)context;
    event('S');
    s->wrong |= first != s->next || tokens != (first + 4 > TOKENS ? TOKENS - first : 4);
    s->next = first + tokens;
    layer_copy((char *)s->to + first * s->row, (const char *)s->from + first * s->row, tokens * s->row, stream);
    return MOEK_OK;
}
static moek_status shared_fails(void *context, int first, int tokens, moek_stream stream)
{
    (void)context; (void)first; (void)tokens; (void)stream;
    return MOEK_E_CUDA;
}

static shared_call shared_now;
static moek_status with_shared(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    shared_call s = shared_now;
    moek_status status;
    a.shared = shared_experts;
    a.shared_context = &s;
    s.next = s.wrong = 0;
    events[0] = 0;
    status = moek_run(plan, &a, stream);
    CHECK(!s.wrong && s.next == args->tokens, "the shared experts are called with other tokens");
    return status;
}

/* A user's prepare/finalize is called in order, once a chunk; shared_y is added, and may come late. */
static void test_shared(void)
{
    int format;
    for (format = 0; format < 2; format++) {
        const moek_prepare_finalize own = own_around(format ? &moek_batched : &moek_local);
        moek_config c = config_of(FORMAT_PLAIN);
        char expected[256] = "";
        uint16_t *y;
        void *late;
        int t;
        layer l;
        c.format = format;
        layer_new(&l, &c, 0, TOKENS);
        l.args.shared_y = layer_new_t(&l, TOKENS * HIDDEN, 1);
        if (layer_check(&l, "shared experts") && (y = layer_y(&l, moek_run)) != NULL) {
            shared_now.from = layer_find(&l, l.args.shared_y)->there + LAYER_GUARD;
            shared_now.row = 2 * HIDDEN;
            l.args.shared_y = late = layer_array_new(&l, layer_y_bytes(&l), LAYER_OUT);
            shared_now.to = layer_find(&l, late)->there + LAYER_GUARD;
            l.config.prepare_finalize = &own;
            l.config.chunk_tokens = 4;
            for (t = 0; t < TOKENS; t += 4) strcat(expected, "prsSf");
            if (layer_plan(&l)) layer_same(&l, with_shared, y, "shared experts that come late");
            CHECK(!strcmp(events, expected), "calls are %s, not %s", events, expected);
            free(y);
        }
        layer_free(&l);
    }
}
static void test_failing_part(void)
{
    moek_config c = config_of(FORMAT_PLAIN);
    moek_args a;
    layer l;
    layer_new(&l, &c, 0, TOKENS);
    if (layer_plan(&l)) {
        layer_put(&l);
        a = layer_args(&l);
        a.shared = shared_fails;
        CHECK(moek_run(&l.plan, &a, NULL) == MOEK_E_CUDA && strstr(l.why, "token 0"), "a part's status is lost: %s",
              l.why);
        CHECK(layer_get(&l), "a guard was written to");
    }
    layer_free(&l);
}

static int into_y;                                     /* NOOP experts write y themselves */
/* Experts that give back their input, so y is known exactly: the weighted sum of x over slots that are somebody's. */
static moek_status identity_apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int one = plan->rows_per_expert || self->weight_and_reduce == MOEK_NOOP, times = one ? 1 : plan->slots;
    const int rows = plan->rows_per_expert ? plan->local_experts * plan->rows_per_expert : step->rows;
    const size_t row = 2 * (size_t)plan->config.hidden, from = 2 * step->a_stride;
    size_t to = row;
    int r, k;
    event('e');
    if (self->expects_unquantized) CHECK(!step->a_scale, "quantized rows for experts that quantize themselves");
    if (into_y) {
        step->out = step->args.y;
        if (step->args.y_stride) to = 2 * step->args.y_stride;
    }
    for (r = 0; r < rows; r++)
        for (k = 0; k < times; k++)
            layer_copy((char *)step->out + (r * times + k) * to, (const char *)step->a + r * from, row, stream);
    return MOEK_OK;
}
static size_t some_workspace(const moek_experts *self, const moek_plan *plan) { (void)self; (void)plan; return 1000; }

static void check_identity(layer *l, int kind)
{
    const int dtype = l->config.dtype;
    const void *got = layer_got(l, l->args.y);
    int t, k, j, wrong = 0;
    for (t = 0; t < l->args.tokens; t++) {
        double sum = 0;
        for (k = 0; k < TOPK; k++) if (l->args.topk_ids[t * TOPK + k] >= 0) sum += l->args.topk_weights[t * TOPK + k];
        for (j = 0; j < l->config.hidden; j++) {
            const size_t i = (size_t)t * l->config.hidden + j;
            const double x = ref_get_t(l->args.x, i, dtype), y = ref_get_t(got, i, dtype);
            if (kind == MOEK_NOOP && !l->args.shared_y) wrong += x != y;
            else if (kind == MOEK_NOOP)
                wrong += ref_round_t(x + ref_get_t(l->args.shared_y, i, dtype), dtype) != y;
            else wrong += fabs(x * sum - y) > fabs(x * sum) / 255 + 6e-8;        /* of which 2^-25: fp16 below 2^-14 */
        }
    }
    CHECK(!wrong, "%s: %d entries are wrong", l->what, wrong);
}
static void own_experts_once(int kind, int format, int quant, int shared)
{
    moek_experts own = { "identity", 0, 0, 0, NULL, NULL, some_workspace, identity_apply };
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    int i;
    own.format = format;
    own.weight_and_reduce = kind;
    own.expects_unquantized = format_by_row(moek_format_of(quant));
    c.format = format;
    c.experts_impl = &own;
    c.backend = MOEK_BACKEND_USER;
    if (!layer_arch) c.exclude = MOEK_BACKENDS_GPU;
    layer_new(&l, &c, 0, TOKENS);
    for (i = 0; i < TOKENS * TOPK && kind != MOEK_NOOP; i += 5) l.args.topk_ids[i] = -1;
    snprintf(l.what, sizeof l.what, "own experts, weight_and_reduce %d, format %d, %s", kind, format,
             moek_quant_name(quant));
    if (shared) l.args.shared_y = layer_new_t(&l, TOKENS * HIDDEN, 1);
    events[0] = 0;
    if (layer_plan(&l) && (y = layer_y(&l, moek_run)) != NULL) {
        CHECK(!strcmp(events, "e"), "apply was called not once: %s", events);
        check_identity(&l, kind);
        for (i = 0; i < 4; i++) {
            struct layer_strides s = { HIDDEN + 8, 2 * HIDDEN, HIDDEN + 16, 0, 0 };
            s.in_place = i == 1 && !into_y;            /* (a would be out, in other rows) */
            s.over = i == 2 && shared && !into_y;
            l.config.chunk_tokens = i == 3 ? 4 : 0;
            layer_strides_now = s;
            layer_strided_drive = moek_run;
            if (layer_plan(&l)) layer_same(&l, layer_strided, y, "strides");
        }
        free(y);
    }
    layer_free(&l);
}
static void test_own_experts(void)
{
    const int half = format_of_t(MOEK_DTYPE_FP16);
    own_experts_once(MOEK_DELEGATE, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, half, 1);
    into_y = 1;
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, half, 1);
    into_y = 0;
    own_experts_once(MOEK_CONTIGUOUS, MOEK_STANDARD, half, 0);
    own_experts_once(MOEK_DELEGATE, MOEK_STANDARD, FORMAT_ROW, 0);
    own_experts_once(MOEK_DELEGATE, MOEK_BATCHED, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NAIVE_BATCHED, MOEK_BATCHED, half, 0);
}

/* ---- explain ----------------------------------------------------------------------------------------------------- */

static int in_plan(const moek_plan *p, const moek_kernel *k)
{
    const moek_chosen *const h = &p->chosen;
    int i, found = k == h->route || k == h->map || k == h->sort || k == h->quant || k == h->combine;
    for (i = 0; i < p->chosen.pairs; i++) found |= k == p->chosen.up[i] || k == p->chosen.down[i];
    for (i = 0; i < p->chosen.layers; i++) found |= k == p->chosen.layer[i];
    for (i = 0; i < p->chosen.mlps; i++) found |= k == p->chosen.mlp[i];
    return found;
}
static int arch_of(const char *name)
{
#define ARCH(NAME, its, number) if (!strcmp(name, #its)) return number;
    MOEK_EACH_ARCH(ARCH)
#undef ARCH
    return -1;
}
/* What moek_explain says is what moek_plan_init does: its status and sentence, the backend, each row; and a row of
 * another architecture is told that of the backend taken. */
static void check_explained(const moek_config *c, const char *what)
{
    static char text[1 << 16];
    char want[MOEK_WHY + 128];
    moek_plan p;
    int n, i, wrong = 0, arch = -1;
    const moek_kernel *k = moek_kernels(&n);
    const moek_status status = moek_plan_init(&p, c);
    const size_t length = moek_explain(c, text, sizeof text);
    const char *line;
    snprintf(want, sizeof want, "moek_plan_init: %s%s%s\n", moek_status_name(status), *p.why ? ": " : "", p.why);
    CHECK(length < sizeof text && !strcmp(text + length - strlen(want), want), "%s: no \"%s\" at the end of %s", what,
          want, text);
    CHECK((strstr(text, ": taken\n") != NULL) == (status == MOEK_OK), "%s: %s: %s", what, p.why, text);
#define BACKEND(name, number, its_arch) \
    if (status == MOEK_OK && p.backend == number) { \
        arch = its_arch; \
        CHECK(strstr(text, #name ": taken\n") != NULL, "%s: %s", what, text); \
    }
    MOEK_EACH_BACKEND(BACKEND)
#undef BACKEND
    for (i = 0; status == MOEK_OK && i < n; i++) {
        char of[16], not_of[16];
        snprintf(want, sizeof want, "\n  %s ", k[i].name);
        line = strstr(text, want);
        if (!line) { wrong++; continue; }
        line += strlen(want);
        line += strspn(line, " ");
        wrong += in_plan(&p, &k[i]) != !strncmp(line, "taken\n", 6);
        if (sscanf(line, "its rows are for %15[a-z0-9], not %15[a-z0-9]", of, not_of) == 2)
            wrong += arch_of(of) != k[i].arch || !strcmp(of, not_of) ||
                     (arch >= 0 && arch_of(not_of) != (arch ? arch : p.chosen.cpu));
    }
    CHECK(!wrong, "%s: %d rows are explained as what they are not: %s", what, wrong, text);
}
static void test_explain(void)
{
    static const moek_experts mine = { "mine", MOEK_STANDARD, MOEK_CONTIGUOUS, 0, NULL, NULL, NULL, identity_apply };
    int n, i, at;
    const moek_kernel *k = moek_kernels(&n);
    FOR_EACH_FORMAT(f) {
        for (i = -2; i < n; i++) {                     /* row i is demanded; none; one that is not there */
            if (i >= 0 && k[i].quant != f->number) SKIP_IF_QUICK(i, 6);
            for (at = 0; at <= MOEK_BACKEND_COUNT_; at++) {
                moek_config c = config_of(f->number);
                char what[160];
                c.backend = at;
                c.kernel = i >= 0 ? k[i].name : i == -1 ? NULL : "moek_up_of_another_binary";
                if (at == MOEK_BACKEND_USER) c.experts_impl = &mine;
                snprintf(what, sizeof what, "%s, backend %d, kernel %s", f->name, at,
                         c.kernel ? c.kernel : "any");
                check_explained(&c, what);
                if (i >= 0 && i % 7 != at) continue;
                c.format = MOEK_BATCHED;
                check_explained(&c, what);
                c.batch_invariant = 1;
                check_explained(&c, what);
                c.format = MOEK_STANDARD; c.topk = 1; c.router_weight_on_input = 1;
                check_explained(&c, what);
                c.batch_invariant = 0; c.weight_layout = MOEK_WEIGHTS_TILED; c.exclude = 1u << MOEK_BACKEND_SM90;
                check_explained(&c, what);
                c.hidden += 8; c.tuned = "cpu";
                check_explained(&c, what);
                c.tuned = NULL;
                check_explained(&c, what);
            }
        }
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static const char *wanted = "";                      /* a word of test names */
static double start;                                   /* of the test, in seconds */
static int processes;                                  /* workers.h */

static void say(const char *what) { fprintf(stderr, "%8.2f s  %s\n", seconds() - start, what); }
static void run(const char *backend_name, const char *test_name, void (*test)(void))
{
    const int failed = check_failed;
    if (!strstr(test_name, wanted) || !workers_take()) return;
    if (processes > 1) config_turn = workers_part;     /* whoever runs it */
    rng_seed(1);                                       /* a test gives the same, whatever runs before it */
    layer_worst = layer_worst_element = 0;
    quick_cases = 0;
    start = seconds();
    if (layer_says) layer_says(test_name);
    test();
    printf("%-5s %-18s worst %.3f (element %.3f) of the tolerance, %.1f s  %s\n", backend_name, test_name, layer_worst,
           layer_worst_element, seconds() - start, check_failed == failed ? "ok" : "FAILED");
    fflush(stdout);
}
#define RUN(test) run(name, #test, test)
#define RUN_LONG(test) if (!quick_set || !SMALL || layer_arch != 90) RUN(test)          /* emulated: a minute or more */
static void test_backend(const char *name)
{
    RUN(test_formats);
    RUN(test_sizes);
    RUN(test_pairs);
    RUN(test_tiles);
    RUN(test_wide_alone);
    RUN_LONG(test_wide_ordered);
    RUN(test_tuned);
    RUN(test_routing);
    RUN(test_routing_more);
    RUN(test_masked);
    RUN(test_masked_group);
    RUN(test_spoiled_logits);
    RUN(test_hash_routing);
    RUN(test_wide_ids);
    RUN(test_shared_peeks);
    RUN(test_adversarial);
    RUN(test_expert_map);
    RUN(test_replicas);
    RUN(test_padding);
    RUN(test_options);
    RUN(test_same_bits);
    RUN(test_alignment);
    RUN(test_strides);
    RUN_LONG(test_one_launch);
    RUN(test_mlp);
    RUN(test_tiled);
    RUN(test_fragments);
    RUN(test_panels);
    RUN(test_expanded);
    RUN(test_apart);
    RUN(test_shards);
    RUN(test_large);
    RUN(test_chunks);
    RUN(test_no_tokens);
    RUN(test_nonfinite);
    RUN(test_rounding);
    RUN(test_small_scales);
    RUN(test_shared);
    RUN(test_failing_part);
    RUN(test_own_experts);
    RUN(test_explain);
}

static void try_backend(const char *name, int number, int arch, const char *only)
{
    moek_config c;
    moek_plan plan;
    if (arch < 0 || (only && strcmp(only, name))) return;
    backend = number;
    layer_arch = arch;
    c = config_of(FORMAT_PLAIN);
    if (mem_can_run(arch) && moek_plan_init(&plan, &c) == MOEK_OK) {
        test_backend(name);
        return;
    }
    if (!workers_take()) return;
    printf("%-8s skipped: not for this machine, or not compiled in\n", name);
    check_skipped++;
}
static void test_backends(int argc, char **argv)
{
    const char *const only = argc > 1 ? argv[1] : NULL;
    ref_check();
#define BACKEND(name, number, arch) try_backend(#name, number, arch, only);
    MOEK_EACH_BACKEND(BACKEND)
#undef BACKEND
}
int main(int argc, char **argv)
{
    quick_word(&argc, &argv);
    processes = workers_word(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "-v")) layer_says = say, argc--, argv++;
    if (argc > 2) wanted = argv[2];
    workers_run(processes, test_backends, argc, argv);
    return check_end();
}
