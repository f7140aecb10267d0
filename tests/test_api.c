/* test_api.c -- what moek.h says no to, and how: every status, every sentence, and nothing written on the way.
 *
 *   cc -std=c99 -Iinclude -Itests tests/test_api.c -lm -o test_api && ./test_api
 *
 * Needs no GPU, and passes on a machine with one: whatever runs, runs on host memory (config.backend).
 * With -DMOEK_QUANT=MOEK_FP8B128 -DMOEK_ARCH=0 it also walks into the sentences for a row that is not compiled in.
 * With MOEK_SPLIT the implementation is linked from elsewhere.  C99, C++ and CUDA C++.                               */
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#ifdef MOEK_QUANT                                      /* as if kernels.toml had these alone: others are rows to add */
#define MOEK_EACH_SHIPPED_(X) \
    X(UP, MOEK_QUANT, 0, 0, 0) X(UP, (MOEK_QUANT) + 1, 0, 0, 0) X(UP, (MOEK_QUANT) + 2, 0, 0, 80)
#endif
#endif
#include "moek.h"
#include <limits.h>
#include "check.h"
#include "mem.h"
#include "ref.h"

#ifdef MOEK_QUANT
#define QUANT MOEK_QUANT
#else
#define QUANT FORMAT_PLAIN
#endif
enum { HIDDEN = 64, INTER = 32, EXPERTS = 8, TOPK = 2, TOKENS = 4, BIG = 1 << 16 };

static int has_text(const char *text, const char *part) { return strstr(text, part) != NULL; }
/* A sentence with the name of a format in it. */
static const char *of_format(const char *sentence, int quant)
{
    static char text[128];
    snprintf(text, sizeof text, sentence, moek_quant_name(quant));
    return text;
}
static int scaled(int quant) { return format_scaled(moek_format_of(quant)); }

/* A config that the CPU rows serve; the cases break one thing of it at a time. */
static moek_config good(void)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.hidden = HIDDEN; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK;
    c.quant = QUANT; c.act = MOEK_SILU; c.max_tokens = TOKENS;
    c.backend = MOEK_BACKEND_CPU;
    return c;
}
/* The config in another format, whose sizes are whole blocks where it comes in such. */
static void of_quant(moek_config *c, int quant)
{
    const moek_format *const f = moek_format_of(quant);
    c->quant = quant;
    c->hidden = format_round_up(f, c->hidden);
    c->inter = format_round_up(f, c->inter);
}

/* ---- formats of the same weights --------------------------------------------------------------------------------- */

/* The table describes weights twice: by facts, which the function asks, and for people (w_about). */
static void test_same_weights(void)
{
    int i, j, pairs = 0;
    for (i = 0; i < FORMATS; i++)
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const f = format_at(i), *const g = format_at(j);
            const int same = moek_same_weights(f->number, g->number);
            CHECK(same == !strcmp(f->w_about, g->w_about), "%s and %s: %d", f->name, g->name, same);
            CHECK(same == moek_same_weights(g->number, f->number), "%s and %s: not the same both ways", f->name,
                  g->name);
            pairs += same && i < j;
        }
    CHECK(pairs >= 6, "%d pairs", pairs);
    CHECK(!moek_same_weights(0, 0) && !moek_same_weights(QUANT, 0) && !moek_same_weights(999, QUANT), "no formats");
}

static int served(int quant)                           /* by the CPU, as this was compiled */
{
    return format_has(moek_format_of(quant), MOEK_OP_UP, 0);
}
/* On the CPU x stays T, where that format is compiled in; else the format that is. */
static void test_choose_pair(void)
{
    char text[2048], other[64];
    moek_config c, before;
    int i, j;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        int want = 0;
        c = good();
        of_quant(&c, f->number);
        before = c;
        c.block = before.block = format_block(f, i);
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const g = format_at(j);
            if (!moek_same_weights(f->number, g->number) || !served(g->number)) continue;
            if (!want || !format_quantizes(g)) want = g->number;
        }
        if (!want) {
            CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_E_NO_KERNEL && has_text(text, f->name) &&
                  has_text(text, ": ") && !memcmp(&c, &before, sizeof c), "%s: %s", f->name, text);
            continue;
        }
        CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_OK && c.quant == want, "%s: %s", f->name, text);
        CHECK(!strncmp(text, moek_quant_name(want), strlen(moek_quant_name(want))), "%s: %s", f->name, text);
        for (j = 0; j < FORMATS; j++) {                /* each other one is named */
            const moek_format *const g = format_at(j);
            snprintf(other, sizeof other, "; %s %s", g->name, served(g->number) ? "would run" : "does not run");
            if (moek_same_weights(f->number, g->number) && g->number != want)
                CHECK(has_text(text, other), "%s: %s", f->name, text);
        }
        CHECK(has_text(text, "x_scale and h_scale are required") == format_x_second(moek_format_of(want)), "%s: %s",
              f->name, text);
        before.quant = want;
        CHECK(!memcmp(&c, &before, sizeof c), "%s: something else changed", f->name);
    }
    for (i = 0; i < FORMATS; i++) {                    /* powers of two of x go where x has no scales */
        const moek_format *const f = format_at(i);
        c = good();
        c.quant = f->number; c.ue8m0 = 1;
        if (!f->ue8m0 || moek_choose_pair(&c, text, sizeof text) != MOEK_OK) continue;
        CHECK(c.ue8m0 == moek_format_of(c.quant)->ue8m0 && has_text(text, "ue8m0 is 0 now") == !c.ue8m0, "%s: %s",
              f->name, text);
    }
    c = before = good();
    c.hidden = before.hidden = 0;
    CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config.hidden is 0") &&
          !memcmp(&c, &before, sizeof c), "hidden 0: %s", text);
    c = good();
    c.quant = 999;
    CHECK(moek_choose_pair(&c, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config.quant is 999"), "%s",
          text);
    CHECK(moek_choose_pair(NULL, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config is NULL"), "%s", text);
    c = good();
    CHECK(moek_choose_pair(&c, NULL, 0) == MOEK_OK, "without a text");
    CHECK(moek_choose_pair_(&c, text, sizeof text, sizeof c - 4, MOEK_VERSION) == MOEK_E_VERSION &&
          moek_choose_pair_(&c, text, sizeof text, sizeof c, MOEK_VERSION + 1) == MOEK_E_VERSION, "version");
}

/* ---- moek_plan_init ---------------------------------------------------------------------------------------------- */

/* moek_explain ends with what moek_plan_init returned, and its sentence. */
static void explained(const moek_config *c, moek_status status, const char *why, const char *change, int line)
{
    static char text[BIG], want[MOEK_WHY + 64];
    const size_t length = moek_explain(c, text, sizeof text);
    snprintf(want, sizeof want, "moek_plan_init: %s%s%s\n", moek_status_name(status), *why ? ": " : "", why);
    check_(length < sizeof text && length >= strlen(want) && !strcmp(text + length - strlen(want), want), __FILE__,
           line, change, "moek_explain does not end with %s", want);
    check_((status == MOEK_OK) == has_text(text, ": taken\n"), __FILE__, line, change, "a backend is taken, or not: %s",
           text);
}

static void refused(const moek_config *c, moek_status status, const char *sentence, const char *change, int line)
{
    struct { moek_plan plan; char canary[64]; } p;
    moek_status got;
    int i, intact = 1;
    memset(&p, 0xa5, sizeof p);
    got = moek_plan_init(&p.plan, c);
    for (i = 0; i < 64; i++) intact &= p.canary[i] == (char)0xa5;
    check_(got == status, __FILE__, line, change, "%s, not %s; %s", moek_status_name(got), moek_status_name(status),
           p.plan.why);
    check_(has_text(p.plan.why, sentence), __FILE__, line, change, "says \"%s\", nothing of \"%s\"", p.plan.why,
           sentence);
    check_(strlen(p.plan.why) > 10 && strlen(p.plan.why) < MOEK_WHY && intact, __FILE__, line, change,
           "no sentence, or too long");
    check_(moek_workspace_size(&p.plan) == 0 && !p.plan.backend, __FILE__, line, change, "the plan looks initialized");
    explained(c, got, p.plan.why, change, line);
}
#define REFUSED(change, status, sentence) \
    do { moek_config c = good(); change; refused(&c, MOEK_##status, sentence, #change, __LINE__); } while (0)
#define ACCEPTED(change) \
    do {                                                                                            \
        moek_config c = good();                                                                     \
        moek_plan p;                                                                                \
        change;                                                                                     \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK && !p.why[0], "%s: %s", #change, p.why);            \
        explained(&c, MOEK_OK, "", #change, __LINE__);                                              \
    } while (0)
/* A plan of gigabytes: where size_t has 32 bits, no workspace is so large. */
#define LARGE(change) \
    do {                                                                                            \
        if (sizeof(size_t) > 4) ACCEPTED(change);                                                   \
        else REFUSED(change, E_ARGUMENT, "more bytes than size_t can count (32 bits)");             \
    } while (0)

static void test_sizes(void)
{
    ACCEPTED((void)0);
#define NOT_POSITIVE(field) \
    REFUSED(c.field = 0, E_ARGUMENT, "config." #field " is 0"); \
    REFUSED(c.field = -7, E_ARGUMENT, "config." #field " is -7")
    NOT_POSITIVE(hidden); NOT_POSITIVE(inter); NOT_POSITIVE(experts); NOT_POSITIVE(topk); NOT_POSITIVE(max_tokens);
#define NEGATIVE(field) \
    REFUSED(c.field = -1, E_ARGUMENT, "config." #field " is -1"); \
    REFUSED(c.field = INT_MIN, E_ARGUMENT, "config." #field " is -2147483648")
    NEGATIVE(shared_slots); NEGATIVE(local_experts); NEGATIVE(physical_experts); NEGATIVE(max_replicas);
    NEGATIVE(chunk_tokens);
    NEGATIVE(max_rows_per_expert); NEGATIVE(groups); NEGATIVE(topk_groups);
    ACCEPTED(c.experts = 1024);
    REFUSED(c.experts = 1025, E_ARGUMENT, "at most 1024");
    REFUSED(c.experts = 1020; c.shared_slots = 5, E_ARGUMENT, "is 1025");
    REFUSED(c.experts = INT_MAX; c.shared_slots = INT_MAX, E_ARGUMENT, "at most 1024");
    REFUSED(c.shared_slots = INT_MAX, E_ARGUMENT, "at most 1024");
    ACCEPTED(c.topk = EXPERTS);
    REFUSED(c.topk = EXPERTS + 1, E_ARGUMENT, "config.topk is 9");
    ACCEPTED(c.experts = 64; c.topk = 32);
    REFUSED(c.experts = 64; c.topk = 33, E_ARGUMENT, "at most 32");
    REFUSED(c.experts = 64; c.topk = 31; c.shared_slots = 2, E_ARGUMENT, "at most 32");
    REFUSED(c.local_experts = 1025, E_ARGUMENT, "config.local_experts is 1025");
    REFUSED(c.physical_experts = 65537, E_ARGUMENT, "physical_experts 65537");
    REFUSED(c.max_tokens = INT_MAX, E_ARGUMENT, "overflow");
    LARGE(c.max_tokens = (0x7ff00000) / TOPK);
    REFUSED(c.max_tokens = (0x7ff00000) / TOPK + 1, E_ARGUMENT, "make max_tokens smaller");
    ACCEPTED(c.hidden = c.inter = 1 << 24);
    REFUSED(c.hidden = (1 << 24) + 1, E_ARGUMENT, "config.hidden is 16777217 and inter 32; each is at most 2^24");
    REFUSED(c.inter = (1 << 24) + 1, E_ARGUMENT, "config.hidden is 64 and inter 16777217; each is at most 2^24");
    REFUSED(c.hidden = INT_MAX, E_ARGUMENT, "config.hidden is 2147483647");
    REFUSED(c.inter = INT_MAX, E_ARGUMENT, "inter 2147483647");
    REFUSED(c.format = MOEK_BATCHED; c.max_rows_per_expert = INT_MAX, E_ARGUMENT, "overflow 31 bits");
    REFUSED(c.format = MOEK_BATCHED; c.max_rows_per_expert = INT_MAX; c.local_experts = 1, E_ARGUMENT,
            "overflow 31 bits");
    LARGE(c.format = MOEK_BATCHED; c.max_rows_per_expert = 0x7ff00000; c.local_experts = 1);
    REFUSED(c.experts = 1024; c.format = MOEK_BATCHED; c.max_tokens = 1 << 22, E_ARGUMENT, "overflow 31 bits");
}

static void test_kinds(void)
{
    REFUSED(c.quant = 0, E_ARGUMENT, "config.quant is 0");
    REFUSED(c.quant = 99, E_ARGUMENT, "config.quant is 99");
    REFUSED(c.quant = -1, E_ARGUMENT, "config.quant is -1");
    REFUSED(c.act = 0, E_ARGUMENT, "config.act is 0");
    REFUSED(c.act = 99, E_ARGUMENT, "config.act is 99");
    REFUSED(c.dtype = 4, E_ARGUMENT, "config.dtype is 4");
    REFUSED(c.dtype = -1, E_ARGUMENT, "config.dtype is -1");
    REFUSED(c.dtype = MOEK_DTYPE_F32, E_ARGUMENT, "config.dtype is 3");
    REFUSED(c.quant = FORMAT_PLAIN; c.dtype = MOEK_DTYPE_FP16, E_ARGUMENT, "config.dtype is fp16 but quant is bf16");
    REFUSED(c.quant = format_of_t(MOEK_DTYPE_FP16); c.dtype = MOEK_DTYPE_BF16, E_ARGUMENT,
            "config.dtype is bf16 but quant is fp16");
    REFUSED(c.logits_dtype = 4, E_ARGUMENT, "config.logits_dtype is 4");
    REFUSED(c.logits_dtype = -1, E_ARGUMENT, "config.logits_dtype is -1");
    REFUSED(c.up_layout = 5, E_ARGUMENT, "config.up_layout is 5");
    REFUSED(c.up_layout = MOEK_UP_APART; c.act = MOEK_RELU2_NO_MUL, E_ARGUMENT, "relu2_no_mul is not gated");
    REFUSED(c.up_layout = MOEK_UP_APART; c.weight_layout = MOEK_WEIGHTS_TILED; c.hidden = c.inter = 256, E_ARGUMENT,
            "up_layout is MOEK_UP_APART: leave one of them 0");
    REFUSED(c.up_scales = 2, E_ARGUMENT, "config.up_scales is 2");
    REFUSED(c.up_scales = -1, E_ARGUMENT, "config.up_scales is -1");
    REFUSED(c.up_scales = 1; c.quant = FORMAT_ROW, E_ARGUMENT, of_format("those of %s are e4m3, one", FORMAT_ROW));
    REFUSED(c.up_scales = 1; c.quant = FORMAT_BLOCKED; c.act = MOEK_SWIGLUOAI, E_ARGUMENT, "are interleaved");
    REFUSED(c.up_scales = 1; c.quant = FORMAT_BLOCKED; c.up_layout = MOEK_UP_INTERLEAVED, E_ARGUMENT,
            "are interleaved");
    REFUSED(c.inter_offset = 128; c.quant = FORMAT_BLOCKED, E_ARGUMENT, "config.inter_offset is 128");
    REFUSED(c.inter_offset = -1; c.quant = FORMAT_BLOCKED, E_ARGUMENT, "config.inter_offset is -1");
    REFUSED(c.block = 32, E_ARGUMENT, "config.block is 32, but");
    REFUSED(c.inter_offset = 64; c.quant = FORMAT_TENSOR, E_ARGUMENT, of_format("%s has no scales", FORMAT_TENSOR));
    REFUSED(c.inter_offset = 64; c.quant = FORMAT_TENSOR, E_ARGUMENT, "w: e4m3, one scale an expert; x: e4m3, one");
    REFUSED(c.inter_offset = 64; c.quant = FORMAT_BLOCKED, E_ARGUMENT, "set up_scales = MOEK_UP_SCALES_APART");
    REFUSED(c.inter_offset = 64; c.quant = FORMAT_BLOCKED; c.up_scales = 1; c.weight_layout = MOEK_WEIGHTS_TILED;
            c.hidden = c.inter = 256, E_ARGUMENT, "inter_offset is 64: leave weight_layout 0, or cut shards by");
    REFUSED(c.up_layout = -1, E_ARGUMENT, "config.up_layout is -1");
    REFUSED(c.format = 2, E_ARGUMENT, "config.format is 2");
    REFUSED(c.format = -1, E_ARGUMENT, "config.format is -1");
    REFUSED(c.quant = FORMAT_ROW; c.ue8m0 = 1, E_ARGUMENT, of_format("of %s x is e4m3, one scale a", FORMAT_ROW));
    REFUSED(c.limit = -2, E_ARGUMENT, "config.limit is -2");
    REFUSED(c.limit = NAN, E_ARGUMENT, "config.limit is");
    ACCEPTED(c.limit = MOEK_NO_LIMIT);
    REFUSED(c.scale = NAN, E_ARGUMENT, "is not finite");
    REFUSED(c.alpha = INFINITY, E_ARGUMENT, "must be finite");
    REFUSED(c.act = MOEK_SITU; c.beta = -1, E_ARGUMENT, "config.beta is -1");
    REFUSED(c.shared_weight = -INFINITY, E_ARGUMENT, "is not finite");
    REFUSED(c.router_weight_on_input = 1, E_ARGUMENT, "router_weight_on_input needs topk 1");
    REFUSED(c.router_weight_on_input = 1; c.topk = 1; c.shared_slots = 1, E_ARGUMENT, "no shared slots, not 2");
    ACCEPTED(c.router_weight_on_input = 1; c.topk = 1);
}

static void test_routing(void)
{
    REFUSED(c.routing = 99, E_ARGUMENT, "config.routing is 99");
    REFUSED(c.routing = -1, E_ARGUMENT, "config.routing is -1");
    REFUSED(c.routing = 9, E_ARGUMENT, "config.routing is 9");
    REFUSED(c.groups = 3; c.topk_groups = 1, E_ARGUMENT, "config.groups 3");
    REFUSED(c.groups = 4, E_ARGUMENT, "topk_groups 0");
    REFUSED(c.groups = 4; c.topk_groups = 5, E_ARGUMENT, "topk_groups 5");
    REFUSED(c.groups = 4; c.topk_groups = 1; c.topk = 3, E_ARGUMENT, "hold topk");
    ACCEPTED(c.groups = 4; c.topk_groups = 2; c.topk = 4);
    ACCEPTED(c.groups = 1; c.topk_groups = 1);
    REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER; c.topk = 3, E_ARGUMENT, "SPARSEMIXER needs topk 2");
    REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER; c.groups = 2; c.topk_groups = 1, E_ARGUMENT, "no groups");
#define KNOWN(name, number, score, normalize, eps, group, text) ACCEPTED(c.routing = MOEK_ROUTE_##name);
    MOEK_EACH_ROUTING(KNOWN)
#undef KNOWN
}

/* Fields that say more than the method does, and those that cannot act. */
static void test_routing_fields(void)
{
    REFUSED(c.topk_groups = 2, E_ARGUMENT, "config.topk_groups is 2, but groups is 0, which is none");
    REFUSED(c.groups = 1; c.topk_groups = 2, E_ARGUMENT, "config.topk_groups is 2, but groups is 1");
    ACCEPTED(c.topk_groups = 1);
    REFUSED(c.group_score = MOEK_GROUP_SCORE_MAX, E_ARGUMENT, "config.group_score is given, but groups is 0");
    REFUSED(c.groups = 1; c.group_score = MOEK_GROUP_SCORE_TOP2, E_ARGUMENT, "but groups is 1");
    REFUSED(c.groups = 4; c.topk_groups = 2; c.group_score = 3, E_ARGUMENT, "config.group_score is 3");
    REFUSED(c.groups = 4; c.topk_groups = 2; c.group_score = -1, E_ARGUMENT, "config.group_score is -1");
    REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER; c.group_score = 1, E_ARGUMENT, "config.group_score is given");
    REFUSED(c.shared_weight = 0.5f, E_ARGUMENT, "config.shared_weight is 0.5, but shared_slots is 0");
    ACCEPTED(c.shared_slots = 1; c.shared_weight = 0.5f);
#define SUMS(name) (MOEK_ROUTE_##name == MOEK_ROUTE_DEEPSEEK_V3 || MOEK_ROUTE_##name == MOEK_ROUTE_SOFTMAX_RENORM || \
                    MOEK_ROUTE_##name == MOEK_ROUTE_SIGMOID_RENORM || MOEK_ROUTE_##name == MOEK_ROUTE_MINIMAX2 ||  \
                    MOEK_ROUTE_##name == MOEK_ROUTE_DEEPSEEK_V4 || MOEK_ROUTE_##name == MOEK_ROUTE_LLAMA4_RENORM)
#define FIELDS(name, number, score, normalize, eps, group, text)                                                      \
    REFUSED(c.routing = number; c.router_eps = -1e-6f, E_ARGUMENT, "config.router_eps is -1e-06");                    \
    REFUSED(c.routing = number; c.router_eps = NAN, E_ARGUMENT, "must be finite");                                    \
    REFUSED(c.routing = number; c.router_eps = INFINITY, E_ARGUMENT, "must be finite");                               \
    if (SUMS(name)) ACCEPTED(c.routing = number; c.router_eps = 1e-6f);                                               \
    else REFUSED(c.routing = number; c.router_eps = 1e-6f, E_ARGUMENT, "MOEK_ROUTE_" #name " (" text ") divides by"); \
    if (number != MOEK_ROUTE_SPARSEMIXER)                                                                             \
        ACCEPTED(c.routing = number; c.groups = 4; c.topk_groups = 2; c.group_score = MOEK_GROUP_SCORE_TOP2);
    MOEK_EACH_ROUTING(FIELDS)
#undef FIELDS
#undef SUMS
}

/* What zero stands for. */
static moek_plan planned(const moek_config *c)
{
    moek_plan p;
    CHECK(moek_plan_init(&p, c) == MOEK_OK, "%s", p.why);
    return p;
}
/* The line of moek_describe: the method, its formula, and what is this layer's own. */
static char *memory;                                   /* BIG bytes, stands for any array of weights */
static moek_weights good_weights(int quant);
static const char *route_line(const moek_plan *p)
{
    static char text[4000];
    char *line, *end;
    moek_describe(p, text, sizeof text);
    line = strstr(text, "route     ");
    if (!line || (end = strchr(line, '\n')) == NULL) return "";
    *end = 0;
    return line;
}
static void route_bound(moek_plan *p, const float *bias)
{
    moek_weights w = good_weights(QUANT);
    w.router_bias = bias;
    CHECK(moek_plan_bind(p, &w) == MOEK_OK, "%s", p->why);
}
#define TOLD(part) CHECK(has_text(route_line(&p), part), "%s: nothing of %s", route_line(&p), part)
static void method_described(int method, const char *formula, int two)
{
    const int grouped = method != MOEK_ROUTE_SPARSEMIXER;
    moek_config c = good();
    moek_plan p;
    c.routing = method;
    if (grouped) c.groups = 4, c.topk_groups = 2;
    p = planned(&c);
    TOLD(p.chosen.route->name); TOLD(formula);
    CHECK(!has_text(route_line(&p), "router_bias"), "tells of a bias that nobody knows of");
    route_bound(&p, NULL);
    TOLD("; no router_bias");
    CHECK(has_text(route_line(&p), "; 2 of 4 groups, by ") == grouped, "%s", route_line(&p));
    CHECK(has_text(route_line(&p), "the sum of their two best") == (grouped && two), "%s", route_line(&p));
    if (!grouped) return;
    route_bound(&p, (const float *)memory);
    TOLD("the sum of their two best"); TOLD("; with router_bias");
}
static void test_routing_described(void)
{
    moek_config c = good();
    moek_plan p;
#define METHOD(name, number, score, normalize, eps, group, text) \
    method_described(number, ", MOEK_ROUTE_" #name ": " text, MOEK_GROUP_SCORE_##group == MOEK_GROUP_SCORE_TOP2);
    MOEK_EACH_ROUTING(METHOD)
#undef METHOD
    p = planned(&c);
    TOLD("not renormalized"); TOLD("; scale 1");
    CHECK(!has_text(route_line(&p), "eps"), "%s", route_line(&p));
    c.routing = MOEK_ROUTE_DEEPSEEK_V3; c.scale = 2.5f; c.shared_slots = 1; c.shared_weight = 0.25f;
    p = planned(&c);
    TOLD("; eps 1e-20; scale 2.5; 1 shared slots, weight 0.25");
    c.groups = 4; c.topk_groups = 2; c.group_score = MOEK_GROUP_SCORE_MAX; c.router_eps = 1e-6f;
    p = planned(&c);
    route_bound(&p, (const float *)memory);
    TOLD("; 2 of 4 groups, by their best; eps 1e-06;");
}
#undef TOLD
/* Defaults that are filled in are fields that act. */
static void test_filled_in(void)
{
#define METHOD(name, number, score, normalize, eps, group, text) {                                              \
        moek_config c = good();                                                                                 \
        moek_plan p;                                                                                            \
        c.routing = number;                                                                                     \
        p = planned(&c);                                                                                        \
        c = p.config;                                                                                           \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s: a plan's own config is refused: %s", #name, p.why);       \
    }
    MOEK_EACH_ROUTING(METHOD)
#undef METHOD
}

static void test_defaults(void)
{
    moek_config c = good();
    moek_plan p = planned(&c);
    CHECK(p.config.dtype == format_dtype_in(moek_format_of(QUANT), 0), "dtype %d", p.config.dtype);
    CHECK(p.config.logits_dtype == MOEK_DTYPE_F32 && p.config.up_layout == MOEK_UP_HALVES, "logits_dtype, up_layout");
    CHECK(p.config.scale == 1 && p.config.shared_weight == 0 && p.config.limit == 0, "scale, shared_weight, limit");
    CHECK(p.config.physical_experts == EXPERTS && p.local_experts == EXPERTS, "experts");
    CHECK(p.slots == TOPK && p.chunk == TOKENS && p.rows == TOKENS && p.rows_per_expert == 0, "slots, chunk, rows");
    CHECK(p.backend == MOEK_BACKEND_CPU && p.device == -1 && p.arch == 0 && !p.bound, "backend");
    CHECK(p.prepare_finalize == &moek_local && p.chosen.tiles >= 1 &&
          p.chosen.up[0]->m == p.chosen.down[0]->m, "parts");
    c.format = MOEK_BATCHED; c.shared_slots = 2; c.chunk_tokens = 3; c.scale = 2.5f; c.shared_weight = 0.5f;
    p = planned(&c);
    CHECK(p.prepare_finalize == &moek_batched && p.rows_per_expert == 3 && p.chunk == 3, "batched");
    CHECK(p.slots == TOPK + 2 && p.local_experts == EXPERTS + 2 && p.config.physical_experts == EXPERTS + 2,
          "shared slots");
    CHECK(p.config.scale == 2.5f && p.config.shared_weight == 0.5f, "scale, shared_weight");
    c.max_rows_per_expert = 7; c.local_experts = 5;
    p = planned(&c);
    CHECK(p.rows_per_expert == 7 && p.local_experts == 5, "max_rows_per_expert, local_experts");
    c.act = MOEK_SWIGLUOAI;
    p = planned(&c);
    CHECK(p.config.alpha == 1.702f && p.config.beta == 1 && p.config.limit == 7, "swigluoai");
    CHECK(p.config.up_layout == MOEK_UP_INTERLEAVED, "the layout of swigluoai");
    c.alpha = 2; c.beta = 3; c.limit = 4; c.up_layout = MOEK_UP_SWAPPED;
    p = planned(&c);
    CHECK(p.config.alpha == 2 && p.config.beta == 3 && p.config.limit == 4, "alpha, beta, limit");
    CHECK(p.config.up_layout == MOEK_UP_SWAPPED, "up_layout");
    c = good();
    c.batch_invariant = 1;
    CHECK(planned(&c).chosen.tiles == 1, "batch_invariant");
}

/* Each activation with each of its parameters: taken where the formula has it, else refused by name; 0, none, and what
 * a plan made of them. */
static void test_act(int act)
{
    static const struct { int act; float alpha, beta, limit; } defaults[] = {       /* moek.h; HUGE_VALF: no clamp */
        { MOEK_SILU, 0, 0, 0 }, { MOEK_SWIGLUSTEP, 0, 0, HUGE_VALF }, { MOEK_SWIGLUOAI, 1.702f, 1, 7 },
        { MOEK_SWIGLUOAI_UNINTERLEAVE, 1.702f, 1, 7 }, { MOEK_SITU, 1, 0, 0 }
    };
    static const char *const names[] = { "config.alpha is 0.5", "beta 0.5", "config.limit is 0.5" };
    moek_config c = good();
    moek_plan p, again;
    int i, which;
    c.act = act;
    p = planned(&c);
    for (i = 0; i < (int)(sizeof defaults / sizeof *defaults); i++)
        if (defaults[i].act == act)
            CHECK(p.config.alpha == defaults[i].alpha && p.config.beta == defaults[i].beta &&
                  p.config.limit == defaults[i].limit, "%s: alpha %g, beta %g, limit %g", moek_act_name(act),
                  (double)p.config.alpha, (double)p.config.beta, (double)p.config.limit);
    for (which = 0; which < 3; which++) {
        float *const field = which == 0 ? &c.alpha : which == 1 ? &c.beta : &c.limit;
        c = good();
        c.act = act;
        *field = 0.5f;
        if (ref_act_depends(act, which)) {
            p = planned(&c);
            CHECK((which == 0 ? p.config.alpha : which == 1 ? p.config.beta : p.config.limit) == 0.5f, "%s: %s",
                  moek_act_name(act), names[which]);
        } else refused(&c, MOEK_E_ARGUMENT, names[which], moek_act_name(act), __LINE__);
    }
    c = good();
    c.act = act;
    c.limit = MOEK_NO_LIMIT;
    p = planned(&c);
    CHECK(!ref_act_depends(act, 2) || p.config.limit == (act == MOEK_SILU ? 0 : HUGE_VALF), "%s: limit none is %g",
          moek_act_name(act), (double)p.config.limit);
    again = planned(&p.config);                        /* defaults that are filled in are taken as they are */
    CHECK(!memcmp(&again.config, &p.config, sizeof p.config), "%s: a plan made of plan.config", moek_act_name(act));
    c = good();
    c.act = act;
    c.up_layout = MOEK_UP_HALVES;
    if (ref_gated(act)) planned(&c);
    else refused(&c, MOEK_E_ARGUMENT, "is not gated", moek_act_name(act), __LINE__);
}
static void test_acts(void)
{
#define ACT(NAME, name, number, gated) test_act(number);
    MOEK_EACH_ACT(ACT)
#undef ACT
}

static const char *cpu_row(int op)
{
    int n, i;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) if (k[i].op == op && !k[i].arch && k[i].quant == QUANT) return k[i].name;
    return "none";
}

/* Whatever takes a plan takes one of zeros, and one that was refused, wherever moek_plan_init stopped. */
static void check_misuse(moek_plan *p, const char *what)
{
    static char bytes[1 << 12];
    moek_weights w;
    moek_args a;
    moek_step step;
    char text[200];
    int i;
    memset(&w, 0, sizeof w);
    memset(&a, 0, sizeof a);
    memset(&step, 0, sizeof step);
    CHECK(moek_workspace_size(p) == 0, "%s", what);
    for (i = -1; i < 100; i += 33) {
        CHECK(moek_plan_tile(p, i) == 0, "%s: tile", what);
        CHECK(!moek_plan_layer(p, i) && !moek_plan_mlp(p, i), "%s: layer, mlp", what);
    }
    CHECK(moek_repack_up(p, bytes, bytes, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: repack_up", what);
    CHECK(moek_repack_down(p, bytes, bytes, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: repack_down", what);
    CHECK(moek_run(p, &a, NULL) == MOEK_E_ARGUMENT && moek_run(p, NULL, NULL) == MOEK_E_ARGUMENT, "%s: run", what);
    CHECK(moek_begin(p, &a, &step) == MOEK_E_ARGUMENT && !step.plan, "%s: begin", what);
    CHECK(moek_describe(p, text, sizeof text) > 10, "%s: describe", what);
    for (i = 0; i < 2; i++, step.plan = p) {
        moek_step *const s = &step;
        CHECK(moek_route(s, NULL) == MOEK_E_ARGUMENT && moek_prepare(s, NULL) == MOEK_E_ARGUMENT &&
              moek_prepare_send(s, NULL) == MOEK_E_ARGUMENT && moek_prepare_receive(s, NULL) == MOEK_E_ARGUMENT &&
              moek_experts_apply(s, NULL) == MOEK_E_ARGUMENT && moek_finalize(s, NULL) == MOEK_E_ARGUMENT &&
              moek_finalize_send(s, NULL) == MOEK_E_ARGUMENT && moek_finalize_receive(s, NULL) == MOEK_E_ARGUMENT,
              "%s: a step", what);
    }
    CHECK(moek_plan_bind(p, &w) == MOEK_E_ARGUMENT && moek_plan_bind(p, NULL) == MOEK_E_ARGUMENT, "%s: bind", what);
}
#define MISUSE(change) do {                                                                  \
        moek_config c = good(); moek_plan p;                                                 \
        memset(&p, 0xa5, sizeof p);                                                          \
        change;                                                                              \
        CHECK(moek_plan_init(&p, &c) != MOEK_OK, "%s", #change);                             \
        check_misuse(&p, #change);                                                           \
    } while (0)
static void test_misuse(void)
{
    static char huge[2000];
    moek_plan zeros;
    memset(&zeros, 0, sizeof zeros);
    memset(huge, 'x', sizeof huge - 1);
    check_misuse(&zeros, "zeros");
    check_misuse(NULL, "NULL");
    MISUSE(memset(&c, 0, sizeof c));
    MISUSE(c.topk = 0);
    MISUSE(c.act = 0);
    MISUSE(c.routing = 99);
    MISUSE(c.tuned = huge);
    MISUSE(c.kernel = huge);
    MISUSE(c.backend = 0; c.exclude = ~0u);
    MISUSE(c.local_experts = 9);
    MISUSE(c.format = MOEK_BATCHED; c.max_rows_per_expert = INT_MAX);
    MISUSE(c.kernel = cpu_row(MOEK_OP_UP); c.quant = QUANT == FORMAT_ROW ? FORMAT_TENSOR : FORMAT_ROW);
    CHECK(moek_plan_init(&zeros, NULL) == MOEK_E_ARGUMENT, "no config");
    check_misuse(&zeros, "no config");
    CHECK(moek_route(NULL, NULL) == MOEK_E_ARGUMENT && moek_finalize(NULL, NULL) == MOEK_E_ARGUMENT &&
          moek_experts_apply(NULL, NULL) == MOEK_E_ARGUMENT && moek_prepare(NULL, NULL) == MOEK_E_ARGUMENT, "no step");
}

static void test_version(void)
{
    moek_config c = good();
    moek_plan p, before;
    CHECK(moek_plan_init(NULL, &c) == MOEK_E_ARGUMENT, "no plan");
    CHECK(moek_plan_init(&p, NULL) == MOEK_E_ARGUMENT && has_text(p.why, "config is NULL"), "%s", p.why);
    CHECK(moek_plan_init_(&p, &c, sizeof c, sizeof p, MOEK_VERSION + 1) == MOEK_E_VERSION &&
          has_text(p.why, "compile both with the same"), "%s", p.why);
    CHECK(moek_plan_init_(&p, &c, sizeof c - 8, sizeof p, MOEK_VERSION) == MOEK_E_VERSION && p.why[0], "%s", p.why);
    CHECK(!moek_workspace_size(&p), "initialized");
    memset(&p, 0xa5, sizeof p);
    before = p;
    CHECK(moek_plan_init_(&p, &c, sizeof c, sizeof p - 8, MOEK_VERSION) == MOEK_E_VERSION, "a smaller plan");
    CHECK(!memcmp(&p, &before, sizeof p), "a plan of another size was written to");
    CHECK(moek_version() == MOEK_VERSION && moek_workspace_size(NULL) == 0, "version");
    CHECK(moek_state_size() >= 256, "%lu bytes of state", (unsigned long)moek_state_size());
}

/* ---- backends and kernels ---------------------------------------------------------------------------------------- */

static int no_reason(const moek_experts *self, const moek_config *c, char *why, size_t size)
{
    (void)self; (void)c;
    if (size) snprintf(why, size, "Tuesdays");
    return 0;
}
static size_t bytes_wanted[2];                         /* of prepare/finalize, of experts */
static size_t wants_first(const moek_prepare_finalize *self, const moek_plan *p)
{
    (void)self; (void)p;
    return bytes_wanted[0];
}
static size_t wants_second(const moek_experts *self, const moek_plan *p)
{
    (void)self; (void)p;
    return bytes_wanted[1];
}
static int no_prepare(const moek_prepare_finalize *self, const moek_config *c, char *why, size_t size)
{
    (void)self; (void)c;
    if (size) snprintf(why, size, "hidden %d", c->hidden);
    return 0;
}
static moek_status apply_nothing(const moek_experts *self, moek_step *step, moek_stream stream)
{
    (void)self; (void)step; (void)stream;
    return MOEK_OK;
}

/* On the host's memory also where there is a GPU: the rows that a user's experts take follow exclude. */
#define USER(experts) c.backend = 0; c.exclude = MOEK_BACKENDS_GPU; c.experts_impl = &(experts)

static void test_backends(void)
{
    moek_experts mine = { "mine", MOEK_STANDARD, MOEK_DELEGATE, 0, NULL, NULL, NULL, apply_nothing };
    moek_experts picky = mine, batched = mine, raw = mine, none = mine, odd = mine;
    moek_experts greedy = mine;
    moek_prepare_finalize pf = moek_local, small = moek_local, hasty = moek_local, hollow = moek_local;
    moek_prepare_finalize roomy = moek_local, less = moek_local;
    int i;
    const unsigned all = 1u << MOEK_BACKEND_USER | MOEK_BACKENDS_GPU | 1u << MOEK_BACKEND_CPU;
    picky.supports = no_reason; batched.format = MOEK_BATCHED; raw.expects_unquantized = 1; none.apply = NULL;
    odd.weight_and_reduce = MOEK_NAIVE_BATCHED;
    hollow.finalize_receive = NULL;
    pf.supports = no_prepare; small.max_tokens_per_rank = 3; hasty.cannot_defer = 1;
    REFUSED(c.backend = 99, E_ARGUMENT, "config.backend is 99");
    REFUSED(c.backend = INT_MAX, E_ARGUMENT, "config.backend is 2147483647");
    REFUSED(c.backend = 32, E_ARGUMENT, "config.backend is 32");
    REFUSED(c.backend = 5, E_ARGUMENT, "config.backend is 5");
    REFUSED(c.backend = -1, E_ARGUMENT, "config.backend is -1");
    REFUSED(c.backend = MOEK_BACKEND_USER, E_BACKEND, "USER: config.experts_impl is NULL");
    REFUSED(c.backend = 0; c.exclude = all, E_BACKEND, "CPU: excluded by config.exclude");
    REFUSED(c.backend = 0; c.exclude = ~0u, E_BACKEND, "SM80: excluded by config.exclude");
    REFUSED(c.exclude = all, E_ARGUMENT, "config.backend demands MOEK_BACKEND_CPU, and config.exclude has its bit");
    REFUSED(c.exclude = 1u << MOEK_BACKEND_CPU, E_ARGUMENT, "or clear 1u << MOEK_BACKEND_CPU");
    ACCEPTED(c.exclude = all & ~(1u << MOEK_BACKEND_CPU));
    ACCEPTED(c.backend = 0; c.exclude = MOEK_BACKENDS_GPU);
    ACCEPTED(USER(mine));
    ACCEPTED(USER(mine); c.backend = MOEK_BACKEND_USER);
    REFUSED(USER(mine); c.exclude = all, E_BACKEND, "USER: excluded by config.exclude");
    REFUSED(USER(mine); c.exclude = all; c.backend = MOEK_BACKEND_USER, E_ARGUMENT, "demands MOEK_BACKEND_USER");
    REFUSED(USER(mine); c.exclude = all & ~(1u << MOEK_BACKEND_USER); c.backend = MOEK_BACKEND_USER, E_BACKEND,
            "config.exclude leaves none");
    REFUSED(USER(picky); c.backend = MOEK_BACKEND_USER, E_BACKEND, "experts mine: kernel does not support Tuesdays");
    REFUSED(USER(none); c.backend = MOEK_BACKEND_USER, E_BACKEND, "apply is NULL");
    REFUSED(USER(odd); c.backend = MOEK_BACKEND_USER, E_BACKEND, "weight_and_reduce");
    REFUSED(USER(picky), E_BACKEND, "experts mine: kernel does not support Tuesdays");       /* given is meant */
    ACCEPTED(USER(picky); c.exclude = 1u << MOEK_BACKEND_USER);
    REFUSED(c.prepare_finalize = &hollow, E_BACKEND, "has no finalize_receive, or neither half of prepare");
    REFUSED(USER(batched); c.backend = MOEK_BACKEND_USER, E_BACKEND,
            "kernel does not support standard activation format");
    REFUSED(c.prepare_finalize = &pf, E_BACKEND, "prepare/finalize local does not support hidden 64");
    REFUSED(c.prepare_finalize = &small, E_BACKEND, "takes 3 tokens a rank, config.max_tokens is 4: set chunk_tokens");
    ACCEPTED(c.prepare_finalize = &small; c.chunk_tokens = 3);
    ACCEPTED(c.prepare_finalize = &small; c.max_tokens = 3);
    REFUSED(c.prepare_finalize = &small; c.max_tokens = 9; c.chunk_tokens = 8, E_BACKEND, "takes 3 tokens a rank");
    for (i = 0; i < 4; i++) {                          /* more bytes than there are numbers for */
        static const size_t all_bytes = (size_t)-1;
        bytes_wanted[0] = i == 0 ? all_bytes : i == 1 ? all_bytes - 300 : i == 2 ? all_bytes / 2 + 1 : 0;
        bytes_wanted[1] = i == 2 ? all_bytes / 2 - 1000 : i == 3 ? all_bytes : 0;
        greedy.workspace = wants_second; roomy.workspace = wants_first;
        REFUSED(USER(greedy); c.prepare_finalize = &roomy, E_ARGUMENT, "more bytes than size_t can count");
    }
    bytes_wanted[0] = 1000; bytes_wanted[1] = 5000;
    ACCEPTED(USER(greedy); c.prepare_finalize = &roomy);
    less.max_rows = -1;
    REFUSED(c.prepare_finalize = &less, E_BACKEND, "has max_rows -1");
    less.max_rows = 0; less.max_tokens_per_rank = -1;
    REFUSED(c.prepare_finalize = &less, E_BACKEND, "max_tokens_per_rank -1");
    less.max_tokens_per_rank = INT_MAX; less.num_dispatchers = INT_MAX;
    REFUSED(c.prepare_finalize = &less, E_ARGUMENT, "overflow 31 bits");
    REFUSED(USER(raw); c.backend = MOEK_BACKEND_USER; c.prepare_finalize = &hasty; c.quant = FORMAT_ROW, E_BACKEND,
            "cannot defer quantization");
    REFUSED(c.local_experts = 9, E_BACKEND, "config.local_experts is 9, more than physical_experts, which is 8");
    REFUSED(c.physical_experts = 7, E_BACKEND, "config.physical_experts is 7, for 8 logical experts");
    ACCEPTED(c.physical_experts = 7; c.max_replicas = 1);
}

/* Blocks of GGUF files: rows are whole blocks, scales lie in them, GPUs have none. */
static void file_blocks_of(const moek_format *f)
{
    const moek_format *const instead = moek_format_of_file(moek_block_of(f->file_type)->instead);
    char text[4096], says[160];
    moek_config c = good();
    moek_weights w;
    moek_plan p;
    CHECK(moek_format_of_file(f->file_type) == f && instead && instead->file_columns < f->file_columns, "%s", f->name);
    snprintf(says, sizeof says, "of %s they must be multiples of %d, the columns of a block.  Files hold rows of other "
             "lengths as other types, such as %s", f->name, f->file_columns, instead->name);
    REFUSED(of_quant(&c, f->number); c.inter += f->file_columns / 2, E_ARGUMENT, says);
    REFUSED(of_quant(&c, f->number); c.hidden += 8, E_ARGUMENT, says);
    REFUSED(of_quant(&c, f->number); c.inter_offset = f->file_columns, E_ARGUMENT, "begin with a block of");
    REFUSED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_TILED, E_ARGUMENT,
            "in blocks of GGUF files alone");
    if (!served(f->number)) return;
    ACCEPTED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_BLOCKS);
    ACCEPTED(of_quant(&c, f->number));
    if (mem_can_run(80))
        REFUSED(of_quant(&c, f->number); c.backend = MOEK_BACKEND_SM80, E_NO_KERNEL, "not on GPUs yet");
    of_quant(&c, f->number);
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.config.weight_layout == MOEK_WEIGHTS_BLOCKS, "%s", p.why);
    snprintf(says, sizeof says, "%s (blocks of a GGUF file, in place)", f->name);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, says), "%s", text);
    memset(&w, 0, sizeof w);
    w.w_up = w.w_down = w.w_up_scale = text + (16 - (size_t)(uintptr_t)text % 16);
    CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, "which has none beside its blocks"), "%s",
          p.why);
    w.w_up_scale = NULL;
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s", p.why);
}
static void test_file_blocks(void)
{
    int i, blocks = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (f->only_blocks) file_blocks_of(f), blocks++;
        else if (!f->file_columns)
            REFUSED(c.quant = f->number; c.block = format_block(f, 0); c.weight_layout = MOEK_WEIGHTS_BLOCKS,
                    E_ARGUMENT, "have no blocks of");
    }
    CHECK(blocks, "no format in blocks");
}

/* Demanding the GPU where there is none. */
static void test_no_device(void)
{
    moek_config c = good();
    moek_plan p;
    if (mem_can_run(80)) { check_skipped++; return; }
    REFUSED(c.backend = MOEK_BACKEND_SM80, E_ARCH, "kernel does not support current device: there is no CUDA device");
    REFUSED(c.backend = 0; c.exclude = 1u << MOEK_BACKEND_CPU, E_ARCH, "CPU: excluded by config.exclude");
    c.backend = 0;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.backend == MOEK_BACKEND_CPU && p.device == -1, "%s", p.why);
}

static int in_plan(const moek_plan *p, const moek_kernel *k)
{
    const moek_chosen *const h = &p->chosen;
    int i, found = k == h->route || k == h->map || k == h->sort || k == h->quant || k == h->combine;
    for (i = 0; i < p->chosen.pairs; i++) found |= k == p->chosen.up[i] || k == p->chosen.down[i];
    return found;
}

/* Every row of the CPU can be demanded, and says no where it does not fit. */
#ifdef MOEK_QUANT
#define WRONG_QUANT(name) "CPU: "                      /* that row, or another of that format which is missing */
#else
#define WRONG_QUANT(name) (name)
#endif
static void test_demanded(void)
{
    int n, i, wrong_quant, wrong_hidden;
    const moek_kernel *k = moek_kernels(&n);
    char name[3000];
    REFUSED(c.kernel = "moek_up_nothing", E_NO_KERNEL, "config.kernel moek_up_nothing is not compiled in");
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    REFUSED(c.kernel = name, E_NO_KERNEL, "config.kernel xxx");
    for (i = 0; i < n; i++, k++) {
        moek_config c = good();
        moek_plan p;
        if (k->arch >= 80 || k->op == MOEK_OP_REPACK || k->launch(NULL, NULL) != MOEK_OK) continue;
        if (k->quant) of_quant(&c, k->quant);
        if (k->reads == MOEK_READS_PANELS) c.weight_layout = MOEK_WEIGHTS_PANELS;
        if (k->hidden) c.hidden = k->hidden;
        c.block = k->block;
        c.kernel = k->name;
        CHECK(moek_plan_init(&p, &c) == MOEK_OK && in_plan(&p, k), "%s: %s", k->name, p.why);
        c.backend = 0;
        CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.backend == MOEK_BACKEND_CPU && in_plan(&p, k), "%s: %s", k->name,
              p.why);
        wrong_quant = k->quant == FORMAT_ROW ? FORMAT_TENSOR : FORMAT_ROW;
        wrong_hidden = k->hidden ? k->hidden + 1 : k->granule > 1 ? k->granule + 1 : 0;
        if (wrong_hidden && moek_format_of(k->quant)->granule > 1)
            REFUSED(c.quant = k->quant; c.hidden = wrong_hidden, E_ARGUMENT, "they must be multiples of");
        else if (wrong_hidden)
            REFUSED(c.quant = k->quant; c.kernel = k->name; c.hidden = wrong_hidden, E_NO_KERNEL, k->name);
        if (k->quant) REFUSED(c.quant = wrong_quant; c.kernel = k->name, E_NO_KERNEL, WRONG_QUANT(k->name));
    }
}

/* ---- the table, and rows that are missing ------------------------------------------------------------------------ */

/* Is it  { key = "word", key = number, ... },  as TOML has it?  The value of `key` goes to value. */
static int toml_row(const char *p, const char *key, char *value, size_t size)
{
    char name[32], word[64];
    int n;
    *value = 0;
    if (strncmp(p, "{ ", 2)) return 0;
    for (p += 2; ; p += 2) {
        if (sscanf(p, "%31[a-z0-9] = %n", name, &n) != 1) return 0;
        p += n;
        if (sscanf(p, "\"%63[a-z0-9_]\"%n", word, &n) != 1 && sscanf(p, "%63[0-9]%n", word, &n) != 1) return 0;
        p += n;
        if (!strcmp(name, key)) snprintf(value, size, "%s", word);
        if (!strncmp(p, " },", 3)) return 1;
        if (strncmp(p, ", ", 2)) return 0;
    }
}

static const char *op_name(int op)
{
#define OP(NAME, name, number) if (op == number) return #name;
    MOEK_EACH_OP(OP)
#undef OP
    return "?";
}

static void test_table(void)
{
    int n, i, j;
    const moek_kernel *k = moek_kernels(&n);
    char value[64];
    CHECK(n > 0 && moek_kernels(NULL) == k, "%d rows", n);
    CHECK(!moek_kernel_find(NULL) && !moek_kernel_find("") && !moek_kernel_find("moek"), "found what is not there");
    for (i = 0; i < n; i++) {
        CHECK(moek_kernel_find(k[i].name) == &k[i], "%s is there twice, or not at all", k[i].name);
        CHECK(k[i].launch && k[i].granule >= 1, "%s", k[i].name);
        CHECK(k[i].arch != MOEK_ARCH_CPU || k[i].launch(NULL, NULL) == MOEK_OK, "%s is not ready", k[i].name);
        CHECK(toml_row(k[i].row, "op", value, sizeof value) && !strcmp(value, op_name(k[i].op)), "%s", k[i].row);
        CHECK(toml_row(k[i].row, "quant", value, sizeof value) &&
              !strcmp(value, k[i].quant ? moek_quant_name(k[i].quant) : ""), "%s", k[i].row);
        for (j = 0; j < i; j++)
            CHECK(k[i].arch <= k[j].arch || k[i].op != k[j].op, "%s is behind a worse one", k[i].name);
    }
}

/* The sets of this processor: as the compiler knows it, so by no code of the library.  Rows of each are there, are
 * taken where config.cpu asks for them, and are named; those of another set are refused with a sentence. */
static void test_sets(void)
{
    static const struct { int arch; const char *name; } sets[] = {
        { MOEK_ARCH_AVX512, "avx512" }, { MOEK_ARCH_AVX2, "avx2" }, { MOEK_ARCH_NEON, "neon" } };
    moek_config c = good();
    moek_plan p;
    char text[1 << 16];
    size_t i;
    int n, j, best = MOEK_ARCH_CPU;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < sizeof sets / sizeof *sets; i++) {
        int rows = 0, ready = 0;
        for (j = 0; j < n; j++)
            if (k[j].arch == sets[i].arch) rows++, ready += k[j].launch(NULL, NULL) == MOEK_OK;
        CHECK(!ready || ready == rows, "%s: %d of %d rows are ready", sets[i].name, ready, rows);
        if (ready && !best) best = sets[i].arch;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MOEK_QUANT)
        if (sets[i].arch == MOEK_ARCH_AVX2)
            CHECK(rows > 0 && (ready > 0) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")),
                  "%d rows of avx2, of which %d are ready", rows, ready);
#endif
        c.cpu = sets[i].arch;
        if (!ready && !rows) {
            CHECK(moek_plan_init(&p, &c) != MOEK_OK || p.chosen.cpu == c.cpu, "%s without rows", sets[i].name);
        } else if (!ready) {
            refused(&c, MOEK_E_ARCH, "config.cpu asks for", sets[i].name, __LINE__);
        } else {
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == c.cpu && p.arch == 0, "%s: %s", sets[i].name,
                  p.why);
            moek_describe(&p, text, sizeof text);
            CHECK(has_text(text, sets[i].name), "%s: %s", sets[i].name, text);
        }
    }
    c.cpu = MOEK_CPU_PLAIN;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == MOEK_ARCH_CPU, "plain C: %s", p.why);
    for (j = 0; j < p.chosen.pairs; j++)
        CHECK(p.chosen.up[j]->arch == MOEK_ARCH_CPU && p.chosen.down[j]->arch == MOEK_ARCH_CPU, "plain C: %s",
              p.chosen.up[j]->name);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "kernels of cpu") && (!best || has_text(text, ": config.cpu")), "%s", text);
    c.cpu = 0;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == best, "the best is %d, not %d: %s", best, p.chosen.cpu,
          p.why);
    c.cpu = 77;
    refused(&c, MOEK_E_ARGUMENT, "config.cpu is 77", "MOEK_CPU_PLAIN", __LINE__);
}

static void check_row_text(const char *why, int quant)
{
    const char *row = strstr(why, "add to kernels.toml:  ");
    char value[64];
    if (!CHECK(row && has_text(why, "./moek gen"), "no row to add: %s", why)) return;
    CHECK(toml_row(row + 22, "quant", value, sizeof value) && !strcmp(value, moek_quant_name(quant)), "%s", row);
    CHECK(toml_row(row + 22, "op", value, sizeof value) && !strcmp(value, "up"), "%s", row);
    CHECK(toml_row(row + 22, "template", value, sizeof value) && value[0], "%s", row);
}

static int has_up(int quant)
{
    int n, i, have = 0;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) have |= k[i].op == MOEK_OP_UP && !k[i].arch && k[i].quant == quant;
    return have;
}
/* Formats that are not here.  kernels.toml has a row: the option that left it out is said; else the row to add. */
static void test_missing_row(void)
{
    int missing = 0;
    moek_plan p;
#define FORMAT(NAME, name, number) {                                                                          \
        moek_config c = good();                                                                               \
        of_quant(&c, number);                                                                                 \
        CHECK(moek_plan_init(&p, &c) == (has_up(number) ? MOEK_OK : MOEK_E_NO_KERNEL), "%s: %s", #name, p.why); \
        if (!has_up(number)) {                                                                                \
            missing++;                                                                                        \
            if (number != QUANT + 1) check_row_text(p.why, number);                                           \
            else CHECK(has_text(p.why, "this build left them out") && has_text(p.why, "without MOEK_QUANT") && \
                       !has_text(p.why, "add to kernels.toml"), "%s", p.why);                                 \
            REFUSED(of_quant(&c, number), E_NO_KERNEL, "no kernel: up " #name " hidden=");                    \
        }                                                                                                     \
    }
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
    if (!missing) check_skipped++;
}

static void test_names(void)
{
#define STATUS(name, number, text) \
    CHECK(!strcmp(moek_status_name(MOEK_##name), "MOEK_" #name) && MOEK_##name == number, "%d", number); \
    CHECK(!strcmp(moek_status_text(MOEK_##name), text), "%d", number);
    MOEK_EACH_STATUS(STATUS)
#undef STATUS
    CHECK(moek_status_name(MOEK_STATUS_COUNT_)[0] && moek_status_text(MOEK_STATUS_COUNT_)[0], "an unknown status");
#define FORMAT(NAME, name, number) CHECK(!strcmp(moek_quant_name(MOEK_##NAME), #name), "%d", number);
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
#define ACT(NAME, name, number, gated) CHECK(!strcmp(moek_act_name(MOEK_##NAME), #name), "%d %d", number, gated);
    MOEK_EACH_ACT(ACT)
#undef ACT
    CHECK(!moek_quant_name(0) && !moek_quant_name(99) && !moek_quant_name(-1), "a format that is none");
    CHECK(!moek_act_name(0) && !moek_act_name(99) && !moek_act_name(-1), "an activation that is none");
    CHECK(moek_hidden_round_up(1) == 2048 && moek_hidden_round_up(2048) == 2048 && moek_hidden_round_up(2049) == 2560,
          "round up");
    CHECK(moek_hidden_round_up(7169) == 8192 && moek_hidden_round_up(8193) == 0 && moek_hidden_round_up(INT_MAX) == 0,
          "round up");
}

/* For callers without this header; codegen/test_moegen.py sees to it that all fields are there. */
static void test_offsets(void)
{
    static const char *const nothing[] = {
        "", ".", "config.", "config.topk ", "config.nothing", ".topk", "conf", "nothing", "nothing.topk",
        "config.topk.x", "moek_config", "args.hidden", " config"
    };
    size_t i;
#define AT(of, field) CHECK(moek_offset(#of "." #field) == offsetof(moek_##of, field), "%s", #of "." #field)
#define SIZE(of) CHECK(moek_offset(#of) == sizeof(moek_##of), "%s", #of)
    AT(config, hidden); AT(config, kernel); AT(config, inter_offset); AT(weights, w_up);
    AT(weights, router_table_rows);
    AT(args, tokens); AT(args, x); AT(args, router_logits_stride); AT(plan, config); AT(plan, why);
    AT(plan, chosen);
    AT(step, out); AT(step, routed); AT(kernel, name); AT(kernel, row); AT(quant_args, few);
    AT(prepare_finalize, max_rows); AT(experts, apply);
    SIZE(config); SIZE(weights); SIZE(args); SIZE(plan); SIZE(step); SIZE(kernel); SIZE(selection); SIZE(quant_args);
    SIZE(prepare_finalize); SIZE(experts);
    CHECK(moek_config_size() == sizeof(moek_config) && moek_plan_size() == sizeof(moek_plan), "sizes");
    CHECK(moek_offset(NULL) == (size_t)-1, "NULL");
    for (i = 0; i < sizeof nothing / sizeof nothing[0]; i++)
        CHECK(moek_offset(nothing[i]) == (size_t)-1, "\"%s\" is at %lu", nothing[i],
              (unsigned long)moek_offset(nothing[i]));
}

static void test_models(void)
{
    moek_plan p;
#define MODEL(NAME, name) {                                                                         \
        moek_config c = MOEK_##NAME;                                                                \
        CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "max_tokens"), "%s: %s", #name, p.why); \
        c.max_tokens = 64; c.backend = MOEK_BACKEND_CPU;                                            \
        MODEL_QUANT                                                                                 \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s: %s", #name, p.why);                           \
        CHECK(moek_workspace_size(&p) > 64 * 2 * (size_t)c.hidden, "%s", #name);                    \
        c.format = MOEK_BATCHED;                                                                    \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s batched: %s", #name, p.why);                   \
    }
#ifdef MOEK_QUANT
#define MODEL_QUANT c.quant = MOEK_QUANT; c.block = 0;
#else
#define MODEL_QUANT
#endif
    MOEK_EACH_MODEL(MODEL)
#undef MODEL
}

/* ---- texts never overflow ---------------------------------------------------------------------------------------- */

typedef size_t (*text_fn)(const void *of, char *text, size_t size);
static size_t explain(const void *c, char *text, size_t size)
{
    return moek_explain((const moek_config *)c, text, size);
}
static size_t describe(const void *p, char *text, size_t size)
{
    return moek_describe((const moek_plan *)p, text, size);
}

/* Every size from none to one too many: a prefix, ended, and nothing behind it. */
static void check_text(text_fn write, const void *of, const char *what)
{
    const size_t length = write(of, NULL, 0);
    char *all = (char *)malloc(length + 2), *some = (char *)malloc(length + 10);
    size_t size, i, good_sizes = 0;
    CHECK(write(of, all, length + 1) == length && strlen(all) == length, "%s: %d is not its length", what, (int)length);
    CHECK(write(of, NULL, 100) == length, "%s: NULL with a size", what);
    for (size = 0; size <= length + 2; size++) {
        int ok;
        memset(some, 0x5a, length + 10);
        ok = write(of, some, size) == length;
        for (i = size; i < length + 10; i++) ok &= some[i] == 0x5a;
        if (size) ok &= strlen(some) == (size - 1 < length ? size - 1 : length) && !strncmp(some, all, size - 1);
        good_sizes += ok != 0;
    }
    CHECK(good_sizes == length + 3, "%s: %d of %d sizes are wrong", what, (int)(length + 3 - good_sizes),
          (int)(length + 3));
    free(all); free(some);
}

static void test_texts(void)
{
    moek_config c = good();
    moek_plan p;
    char text[BIG];
    int n, i;
    const moek_kernel *k = moek_kernels(&n);
    memset(&p, 0, sizeof p);
    check_text(explain, &c, "explain");
    check_text(explain, NULL, "explain NULL");
    check_text(describe, NULL, "describe NULL");
    check_text(describe, &p, "describe an empty plan");
    CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s", p.why);
    check_text(describe, &p, "describe");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, p.chosen.route->name) && has_text(text, p.chosen.up[0]->name) &&
          has_text(text, p.chosen.down[0]->name) &&
          has_text(text, p.chosen.combine->name) && has_text(text, "hidden 64"), "%s", text);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "CPU: taken") && has_text(text, "SM90: not demanded"), "%s", text);
    for (i = 0; i < n; i++) CHECK(has_text(text, k[i].name), "%s is not explained", k[i].name);
    c.backend = 0; c.exclude = ~0u;
    check_text(explain, &c, "explain all excluded");
    c.hidden = -1;
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "config.hidden is -1"), "%s", text);
    moek_plan_init(&p, &c);
    check_text(describe, &p, "describe a refused plan");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "config.hidden is -1"), "%s", text);
}

/* Numbers in force, also those that the config left to be what they are by default. */
static void describes(const moek_config *c, const char *part)
{
    moek_plan p;
    char text[4000];
    CHECK(moek_plan_init(&p, c) == MOEK_OK, "%s", p.why);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, part), "nothing of \"%s\" in %s", part, text);
}
#define DESCRIBES(change, part) do { moek_config c = good(); change; describes(&c, part); } while (0)
static void test_describe(void)
{
#define ACT(NAME, name, number, gated) \
    DESCRIBES(c.act = number, "\nact       " #name); \
    DESCRIBES(c.act = number, (gated) ? "; rows of w_up: gate" : "; not gated\n");
    MOEK_EACH_ACT(ACT)
#undef ACT
#define KNOWN(name, number, score, normalize, eps, group, text) \
    DESCRIBES(c.routing = number, ", MOEK_ROUTE_" #name ": " text);
    MOEK_EACH_ROUTING(KNOWN)
#undef KNOWN
    DESCRIBES((void)0, "act       silu, limit none; rows of w_up: gate, then up\n");
    DESCRIBES(c.limit = 10; c.up_layout = MOEK_UP_SWAPPED, "act       silu, limit 10; rows of w_up: up, then gate\n");
    DESCRIBES(c.act = MOEK_SWIGLUOAI, "swigluoai, alpha 1.702, beta 1, limit 7; rows of w_up: gate and up inter");
    DESCRIBES(c.act = MOEK_SWIGLUOAI; c.alpha = 2; c.beta = 0.5f; c.limit = 3, "alpha 2, beta 0.5, limit 3;");
    DESCRIBES(c.act = MOEK_SITU, "situ, alpha 1, beta none;");
    DESCRIBES(c.act = MOEK_SITU; c.alpha = 4; c.beta = 5, "situ, alpha 4, beta 5;");
    DESCRIBES(c.act = MOEK_GELU, "act       gelu; rows");
    DESCRIBES(c.groups = 4; c.topk_groups = 2; c.scale = 2.5f; c.shared_slots = 1,
              "; 2 of 4 groups, by their best; scale 2.5; 1 sh");
    DESCRIBES(c.act = MOEK_SWIGLUSTEP, "swiglustep, limit none;");
}

/* ---- measured choices: config.tuned ------------------------------------------------------------------------------ */

static char tuned[BIG];                                /* a file; tuned_line adds to it */

static void tuned_line(const char *device, int quant, int hidden, int experts, int topk, int tokens, const char *row)
{
    const size_t length = strlen(tuned);
    snprintf(tuned + length, sizeof tuned - length, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t12.50\t13\n", device,
             moek_quant_name(quant), hidden, INTER, experts, topk, tokens, row);
}
static void tuned_start(void)
{
    snprintf(tuned, sizeof tuned, "# ./moek tune\ndevice\tquant\thidden\tinter\texperts\ttopk\ttokens\tup_row\tus\t"
             "built_in_us\n\r\n\n");
}
/* Lines for the layer of good(), on the CPU, from the fifth on. */
static void tuned_mine(int tokens, const char *row) { tuned_line("cpu", QUANT, HIDDEN, EXPERTS, TOPK, tokens, row); }

static void check_choice(const moek_plan *p, int i, int tokens, int pair)
{
    if (CHECK(i < p->chosen.choices, "%d choices", p->chosen.choices))
        CHECK(p->chosen.choice[i].tokens == tokens && p->chosen.choice[i].pair == pair,
              "choice %d: up to %d, not %d, pair %d, not %d", i, p->chosen.choice[i].tokens, tokens,
               p->chosen.choice[i].pair, pair);
}

static void test_tuned_refused(void)
{
#define FIRST "cpu\tbf16\t"
    REFUSED(c.tuned = "nonsense", E_ARGUMENT, "config.tuned, line 1 has 1 columns; it must have 10");
    REFUSED(c.tuned = "# a\n\n" FIRST "1\t1\t1\t1\t1\trow\t1\n", E_ARGUMENT, "config.tuned, line 3 has 9 columns");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1\t1\t", E_ARGUMENT, "line 1 has 11 columns");
    REFUSED(c.tuned = "\tbf16\t1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "line 1: device is \"\"; it must be a name");
    REFUSED(c.tuned = "cpu\tint5\t1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "quant is \"int5\"; it must be a format");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t0\trow\t1\t1", E_ARGUMENT, "tokens is \"0\"; it must be a whole number");
    REFUSED(c.tuned = FIRST "-1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "hidden is \"-1\"");
    REFUSED(c.tuned = FIRST "1\t2147483648\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "inter is \"2147483648\"");
    REFUSED(c.tuned = FIRST "1\t1\t99999999999999999999\t1\t1\trow\t1\t1", E_ARGUMENT, "experts is \"9999");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1x\t1\trow\t1\t1", E_ARGUMENT, "topk is \"1x\"");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\t\t1\t1", E_ARGUMENT, "up_row is \"\"");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1,5\t1", E_ARGUMENT, "us is \"1,5\"; it must be a time, as 12.5");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1\t.\r\n", E_ARGUMENT, "built_in_us is \".\"");
    REFUSED(tuned_start(); tuned_mine(1, "row"); strcat(tuned, FIRST); c.tuned = tuned, E_ARGUMENT,
            "config.tuned, line 6 has 3 columns");                            /* line 5 is good */
    memset(tuned, 'x', 3000), tuned[3000] = 0;
    REFUSED(c.tuned = tuned, E_ARGUMENT, "line 1 has 1 columns");
    memset(tuned, '\t', 3000);
    REFUSED(c.tuned = tuned, E_ARGUMENT, "line 1 has 3001 columns");
    ACCEPTED(c.tuned = "");
    ACCEPTED(c.tuned = "# nothing\n\r\n");
    ACCEPTED(c.tuned = "device\tand whatever\n");
}

/* The thresholds: geometric middles, half below, twice above; rows that are not there leave the built-in rule. */
static void test_tuned_choices(void)
{
    const char *const up = cpu_row(MOEK_OP_UP);
    moek_config c = good();
    char text[BIG];
    moek_plan p = planned(&c);
    const size_t size = moek_workspace_size(&p);
    int i;
    CHECK(p.chosen.pairs == p.chosen.tiles && !p.chosen.choices && !p.note[0], "without a file");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "choice    built-in rule\n"), "%s", text);
    tuned_start();
    tuned_mine(256, up); tuned_mine(16, "moek_up_of_another_binary"); tuned_mine(1, "not_yet"); tuned_mine(1, up);
    c.tuned = tuned;
    p = planned(&c);
    memset(tuned, 'x', 500);                           /* the caller's again: the plan looks at it no more */
    CHECK(!p.config.tuned && p.chosen.choices == 3 && moek_workspace_size(&p) == size, "%d choices", p.chosen.choices);
    check_choice(&p, 0, 4, 0); check_choice(&p, 1, 64, -1); check_choice(&p, 2, 512, 0);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "choice    measured") && has_text(text, "up to 64 tokens: the built-in rule") &&
          has_text(text, up) && has_text(text, "line 6: moek_up_of_another_binary is not compiled in"), "%s", text);
    check_text(describe, &p, "describe measured choices");
    tuned_start();
    tuned_mine(64, cpu_row(MOEK_OP_DOWN)); tuned_mine(128, up); tuned_mine(64, up);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "tuned: line 5: moek_down_") && has_text(text, "is no up row"), "%s", text);
    check_text(explain, &c, "explain measured choices");
    p = planned(&c);
    CHECK(p.chosen.choices == 2, "%d choices", p.chosen.choices);
    check_choice(&p, 0, 31, -1); check_choice(&p, 1, 256, 0);
    tuned_start();
    for (i = 0; i < 31; i++) tuned_mine(1 << i, i % 2 ? "a_row_whose_name_is_long_so_that_the_note_ends" : up);
    p = planned(&c);
    CHECK(p.chosen.choices == 31 && p.chosen.choice[30].tokens == INT_MAX, "%d choices", p.chosen.choices);
    tuned_start();
    for (i = 1; i < 100; i++) tuned_mine(3 * i, i % 2 ? up : "none");
    p = planned(&c);
    CHECK(p.chosen.choices == MOEK_MAX_CHOICES && has_text(p.note, "none is not compiled in"), "%d choices",
          p.chosen.choices);
    c.batch_invariant = 1;
    p = planned(&c);
    CHECK(!p.chosen.choices && has_text(p.note, "batch_invariant"), "%s", p.note);
}

/* Whose lines they are. */
static void test_tuned_lines(void)
{
    const char *const up = cpu_row(MOEK_OP_UP);
    moek_config c = good();
    moek_plan p;
    c.tuned = tuned;
    tuned_start();
    tuned_line("NVIDIA H200", QUANT, HIDDEN, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", FORMAT_TENSOR, HIDDEN, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN + 8, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN, EXPERTS + 1, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN, EXPERTS, TOPK + 2, 4, up);
    p = planned(&c);
    CHECK(!p.chosen.choices && has_text(p.note, "no line is for cpu (cpu), ") &&
          has_text(p.note, "8 experts, 2 slots"), "%s",
          p.note);
    c.shared_slots = 2; c.experts = EXPERTS - 2;
    p = planned(&c);
    CHECK(p.chosen.choices == 2 && !p.note[0], "shared slots count: %s", p.note);
    c.shared_slots = 0; c.experts = 4 * EXPERTS + 4; c.local_experts = EXPERTS + 1;       /* a quarter is here */
    p = planned(&c);
    CHECK(p.chosen.choices == 2, "local experts count: %s", p.note);
    check_choice(&p, 0, 4, -1); check_choice(&p, 1, 32, 0);
}

/* What the choices do at run time; the pairs are made up. */
static void test_tuned_tile(void)
{
    moek_config c = good();
    moek_plan p = planned(&c);
    const int built_in = 0;
    p.chosen.pairs = 3; p.chosen.choices = 3; p.chosen.tiles = 1;
    p.chosen.up[1] = p.chosen.up[2] = p.chosen.up[0]; p.chosen.down[1] = p.chosen.down[2] = p.chosen.down[0];
    p.chosen.choice[0].tokens = 2; p.chosen.choice[0].pair = 2;
    p.chosen.choice[1].tokens = 7; p.chosen.choice[1].pair = -1;
    p.chosen.choice[2].tokens = 9; p.chosen.choice[2].pair = 1;
    CHECK(moek_plan_tile(&p, 0) == 2 && moek_plan_tile(&p, 1) == 2 && moek_plan_tile(&p, 2) == 2, "the first");
    CHECK(moek_plan_tile(&p, 3) == built_in && moek_plan_tile(&p, 7) == built_in, "none");
    CHECK(moek_plan_tile(&p, 8) == 1 && moek_plan_tile(&p, 9) == 1, "the last");
    CHECK(moek_plan_tile(&p, 10) == moek_plan_tile(&p, INT_MAX), "beyond");
}

/* ---- moek_plan_bind ---------------------------------------------------------------------------------------------- */

static moek_weights good_weights(int quant)
{
    moek_weights w;
    memset(&w, 0, sizeof w);
    w.w_up = w.w_down = memory;
    if (scaled(quant)) w.w_up_scale = w.w_down_scale = (const float *)memory;
    if (moek_format_of(quant)->second) w.w_up_global_scale = w.w_down_global_scale = (const float *)memory;
    if (format_x_second(moek_format_of(quant))) w.x_scale = w.h_scale = (const float *)memory;
    return w;
}
static moek_weights apart_weights(int quant)
{
    moek_weights w = good_weights(quant);
    w.w_gate = memory + 16;
    w.w_gate_scale = w.w_up_scale, w.w_gate_global_scale = w.w_up_global_scale;
    return w;
}
static void bind_refused(moek_plan *p, const moek_weights *w, const char *sentence, const char *change, int line)
{
    moek_weights fine = good_weights(p->config.quant);
    if (p->config.up_layout == MOEK_UP_APART) fine = apart_weights(p->config.quant);
    fine.expert_map = fine.replicas = fine.replica_count = (const int32_t *)memory;
    if (!p->config.max_replicas) fine.replicas = fine.replica_count = NULL;
    if (moek_format_of(p->config.quant)->static_x) fine.x_scale = fine.h_scale = (const float *)memory;
    check_(moek_plan_bind(p, &fine) == MOEK_OK && p->bound && !p->why[0], __FILE__, line, change,
           "the good weights are refused: %s", p->why);
    check_(moek_plan_bind(p, w) == MOEK_E_ARGUMENT, __FILE__, line, change, "accepted");
    check_(has_text(p->why, sentence), __FILE__, line, change, "says \"%s\", nothing of \"%s\"", p->why, sentence);
    check_(!p->bound, __FILE__, line, change, "bound, to what it was before");
}
/* configure: of the plan; change: of the weights. */
#define BIND_REFUSED(configure, change, sentence) do {                                       \
        moek_config c = good(); moek_plan p; moek_weights w;                                 \
        configure;                                                                           \
        if (!CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s", p.why)) break;                   \
        w = good_weights(c.quant);                                                           \
        change;                                                                              \
        bind_refused(&p, &w, sentence, #change, __LINE__);                                   \
    } while (0)
#define BESIDE(field) w.field = (const float *)(memory + 1)

/* moek_repack_up, _down: what is refused, of a plan for the CPU. */
static void test_repack(void)
{
    moek_config c = good();
    moek_plan p;
    memset(&p, 0, sizeof p);
    CHECK(moek_repack_up(NULL, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "no plan");
    CHECK(moek_repack_down(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "a plan not initialized");
    c.exclude = MOEK_BACKENDS_GPU;
    if (moek_plan_init(&p, &c) != MOEK_OK) return;
    CHECK(moek_repack_up(&p, memory, memory + 64, 1, 0, (moek_stream)memory) == MOEK_E_ARGUMENT, "a stream on the CPU");
    CHECK(moek_repack_up(&p, NULL, memory, 1, 0, NULL) == MOEK_E_ARGUMENT, "from is NULL");
    CHECK(moek_repack_up(&p, memory, NULL, 1, 0, NULL) == MOEK_E_ARGUMENT, "to is NULL");
    CHECK(moek_repack_down(&p, memory, memory + 8, 1, 0, NULL) == MOEK_E_ARGUMENT, "to is not aligned");
    CHECK(moek_repack_down(&p, memory, memory + 64, -1, 0, NULL) == MOEK_E_ARGUMENT, "-1 experts");
    c.weight_layout = MOEK_WEIGHTS_BLOCKS + 1;
    CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "config.weight_layout is"), "%s", p.why);
}
#define BESIDE_INT(field) w.field = (int32_t *)(memory + 1)
#define TABLE w.router_table = (const int32_t *)memory; w.router_table_rows = 9

static void test_bind(void)
{
    moek_config c = good();
    moek_weights w = good_weights(QUANT);
    moek_plan p;
    CHECK(moek_plan_bind(NULL, &w) == MOEK_E_ARGUMENT, "no plan");
    memset(&p, 0, sizeof p);
    CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, "not initialized"), "%s", p.why);
    moek_plan_init(&p, &c);
    CHECK(moek_plan_bind(&p, NULL) == MOEK_E_ARGUMENT && has_text(p.why, "weights is NULL"), "%s", p.why);
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK && p.bound && !p.why[0], "%s", p.why);
    CHECK(moek_plan_bind(&p, &p.weights) == MOEK_OK && p.bound, "to itself: %s", p.why);
    BIND_REFUSED((void)0, w.w_up = NULL, "weights.w_up is NULL");
    BIND_REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER; c.topk = 2, w.router_bias = (const float *)memory,
                 "MOEK_ROUTE_SPARSEMIXER has neither");
    BIND_REFUSED((void)0, w.w_down = NULL, "weights.w_down is NULL");
    BIND_REFUSED((void)0, w.w_up = memory + 1, "weights.w_up is not aligned to 16");
    BIND_REFUSED((void)0, w.w_down = memory + 8, "weights.w_down is not aligned to 16");
    BIND_REFUSED((void)0, w.w_up_bias = memory + 1, "weights.w_up_bias is not aligned");
    BIND_REFUSED((void)0, w.w_down_bias = memory + 1, "weights.w_down_bias is not aligned");
    BIND_REFUSED((void)0, BESIDE(router_bias), "weights.router_bias is not aligned to 4");
    BIND_REFUSED((void)0, BESIDE(router_expert_scale), "weights.router_expert_scale is not aligned");
    BIND_REFUSED((void)0, BESIDE_INT(router_table), "weights.router_table is not aligned");
    BIND_REFUSED((void)0, w.router_table = (const int32_t *)memory, "weights.router_table_rows is 0");
    BIND_REFUSED((void)0, TABLE; w.router_table_rows = -3, "weights.router_table_rows is -3");
    BIND_REFUSED((void)0, w.router_table_rows = 9, "weights.router_table_rows is 9, but router_table is NULL");
    BIND_REFUSED((void)0, TABLE; w.router_bias = (const float *)memory, "router_bias is given beside router_table");
    BIND_REFUSED(c.groups = 4; c.topk_groups = 2, TABLE, "config.groups is 4");
    BIND_REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER, TABLE, "MOEK_ROUTE_SPARSEMIXER has neither");
    BIND_REFUSED((void)0, w.replica_count = (const int32_t *)memory, "weights.replica_count is given, but replicas");
    BIND_REFUSED((void)0, w.expert_load = (int64_t *)(memory + 4), "weights.expert_load is not aligned to 8");
    BIND_REFUSED((void)0, BESIDE_INT(expert_map), "weights.expert_map is not aligned");
    BIND_REFUSED(c.local_experts = 4, (void)0, "weights.expert_map is NULL");
    BIND_REFUSED((void)0, w.replicas = w.replica_count = (const int32_t *)memory, "config.max_replicas is 0");
    BIND_REFUSED(c.max_replicas = 2, w.replicas = (const int32_t *)memory, "weights.replica_count is NULL");
    BIND_REFUSED(c.max_replicas = 2; c.physical_experts = 6, (void)0, "weights.replicas is NULL");
}

static void test_bind_apart(void)
{
    const int quant = good().quant;
#define APART_REFUSED(change, sentence) \
    BIND_REFUSED(c.up_layout = MOEK_UP_APART, w = apart_weights(quant); change, sentence)
    BIND_REFUSED((void)0, w.w_gate = memory + 16, "w_gate is given, but config.up_layout is not MOEK_UP_APART");
    BIND_REFUSED((void)0, w.w_gate_scale = (const float *)memory, "w_gate_scale is given, but config.up_layout");
    BIND_REFUSED((void)0, w.w_gate_bias = memory, "w_gate_bias is given, but config.up_layout");
    APART_REFUSED(w.w_gate = NULL, "weights.w_gate is NULL");
    APART_REFUSED(w.w_gate = w.w_up, "the same array");
    APART_REFUSED(w.w_gate = memory + 8, "weights.w_gate is not aligned to 16");
    APART_REFUSED(w.w_gate_bias = memory, "weights.w_up_bias is NULL and w_gate_bias is given");
    APART_REFUSED(w.w_up_bias = memory, "weights.w_gate_bias is NULL and w_up_bias is given");
    APART_REFUSED(w.w_up_bias = memory; w.w_gate_bias = memory + 8, "weights.w_gate_bias is not aligned to 16");
    if (scaled(quant)) APART_REFUSED(w.w_gate_scale = NULL, "weights.w_gate_scale is NULL and w_up_scale is given");
    else APART_REFUSED(w.w_gate_scale = (const float *)memory, "weights.w_up_scale is NULL and w_gate_scale is given");
    if (scaled(quant)) APART_REFUSED(BESIDE(w_gate_scale), "weights.w_gate_scale is not aligned to 4");
#undef APART_REFUSED
}

/* Second scales and zero points, of a format that has them. */
static void test_bind_more(const moek_format *f)
{
    const int quant = f->number;
#define APART c.quant = quant; c.up_layout = MOEK_UP_APART
    if (f->second) {
        BIND_REFUSED(c.quant = quant, w.w_up_global_scale = NULL, "weights.w_up_global_scale is NULL");
        BIND_REFUSED(c.quant = quant, w.w_down_global_scale = NULL, "weights.w_down_global_scale is NULL");
        BIND_REFUSED(c.quant = quant, BESIDE(w_up_global_scale), "weights.w_up_global_scale is not aligned to 4");
        BIND_REFUSED(c.quant = quant, w.w_gate_global_scale = w.w_up_global_scale, "has that of gate, too");
        BIND_REFUSED(APART, w = apart_weights(quant); w.w_gate_global_scale = NULL,
                     "weights.w_gate_global_scale is NULL");
    }
    if (format_x_second(f)) {
        BIND_REFUSED(c.quant = quant, w.x_scale = NULL, "weights.x_scale is NULL");
        BIND_REFUSED(c.quant = quant, w.h_scale = NULL, "weights.h_scale is NULL");
    }
    if (f->zero) {
        BIND_REFUSED(c.quant = quant, w.w_up_zero = memory, "w_up_zero and w_down_zero go together");
        BIND_REFUSED(c.quant = quant, w.w_down_zero = memory, "w_up_zero and w_down_zero go together");
        BIND_REFUSED(c.quant = quant, w.w_up_zero = w.w_down_zero = w.w_gate_zero = memory, "and only there");
        BIND_REFUSED(APART, w = apart_weights(quant); w.w_up_zero = w.w_down_zero = memory, "w_gate_zero with them");
    }
#undef APART
}
/* config.block: one of the format's, where there is a choice. */
static void test_blocks(void)
{
    int i, j;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = good();
        moek_plan p;
        c.quant = f->number;
        if (moek_plan_init(&p, &c) != MOEK_OK) continue;
        if (!f->blocks)
            REFUSED(c.quant = f->number; c.block = 64, E_ARGUMENT, "says itself how many columns have a scale");
        else REFUSED(c.quant = f->number; c.block = 65, E_ARGUMENT, "config.block is 65; of");
        for (j = 0; j < f->blocks; j++) {
            c.block = f->block[j];
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.up[0]->block == c.block &&
                  p.chosen.down[0]->block == c.block,
                  "%s, block %d: %s", f->name, c.block, p.why);
        }
    }
}

/* ---- alignment --------------------------------------------------------------------------------------------------- */

static const char *const weights_addresses[] = {
    "w_up", "w_down", "w_gate", "w_up_bias", "w_down_bias", "w_gate_bias", "w_up_scale", "w_down_scale", "w_gate_scale",
    "w_up_zero", "w_down_zero", "w_gate_zero", "w_up_global_scale", "w_down_global_scale", "w_gate_global_scale",
    "x_scale", "h_scale", "router_bias", "router_expert_scale", "router_table", "replicas", "replica_count",
    "expert_map", "expert_load"
};
static const char *const args_addresses[] = {
    "workspace", "state", "x", "y", "shared_y", "router_logits", "topk_ids", "topk_ids64", "topk_weights", "token_ids",
    "shared_weights", "is_padding"
};
static const char *field_of(const char *of, const char *name)
{
    static char field[64];
    snprintf(field, sizeof field, "%s.%s", of, name);
    return field;
}
/* A pointer field of a struct. */
static const void *address_of(const void *fields, const char *field)
{
    const void *address;
    memcpy(&address, (const char *)fields + moek_offset(field), sizeof address);
    return address;
}
static void set_address(void *fields, const char *field, const void *address)
{
    memcpy((char *)fields + moek_offset(field), &address, sizeof address);
}
/* As if planned for a format, an architecture and a layout. */
static moek_plan plan_as(const moek_format *f, int block, int arch, int layout)
{
    moek_config c = good();
    moek_plan p = planned(&c);
    p.arch = arch;
    p.config.quant = f->number; p.config.block = block; p.config.weight_layout = layout;
    p.config.up_layout = MOEK_UP_APART; p.config.max_replicas = 1;
    return p;
}
/* All that the format may have, so that one address at a time can be wrong; but a table or a bias of the router. */
static moek_weights full_weights(const moek_format *f, int table)
{
    moek_weights w = apart_weights(f->number);
    w.w_up_bias = w.w_down_bias = w.w_gate_bias = memory;
    if (f->zero) w.w_up_zero = w.w_down_zero = w.w_gate_zero = memory;
    if (f->static_x) w.x_scale = w.h_scale = (const float *)memory;
    if (table) w.router_table = (const int32_t *)memory, w.router_table_rows = 1;
    else w.router_bias = (const float *)memory;
    w.router_expert_scale = (const float *)memory;
    w.replicas = w.replica_count = w.expert_map = (const int32_t *)memory;
    w.expert_load = (int64_t *)memory;
    return w;
}
/* Bind accepts each address that moek_alignment allows, and refuses others by name. */
static int bind_by_alignment(const moek_format *f, int block, int arch, int layout)
{
    const size_t n = sizeof weights_addresses / sizeof *weights_addresses;
    moek_plan p = plan_as(f, block, arch, layout);
    int wrong = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        const char *const name = weights_addresses[i], *const field = field_of("weights", name);
        moek_weights w = full_weights(f, !strcmp(name, "router_table"));
        const size_t bytes = moek_alignment(&p, field);
        char why[128];
        CHECK(bytes && bytes <= 16 && !(bytes & (bytes - 1)), "%s, %s: %d bytes", f->name, field, (int)bytes);
        if (!address_of(&w, field)) continue;          /* not of this format */
        set_address(&w, field, memory + 64 + bytes);
        CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s, arch %d, layout %d, %s: %s", f->name, arch, layout, field, p.why);
        if (bytes == 1) continue;
        snprintf(why, sizeof why, "%s is not aligned to %d bytes", field, (int)bytes);
        set_address(&w, field, memory + 64 + bytes / 2);
        CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, why), "%s, arch %d, layout %d: %s", f->name,
              arch, layout, p.why);
        wrong++;
    }
    return wrong;
}
/* docs/formats.md has the table, line by line. */
static void test_alignment_page(void)
{
    FILE *const file = fopen("docs/formats.md", "rb");
    char *page, line[128];
    size_t n;
    int i;
    if (!file) { check_skipped++; return; }            /* started elsewhere */
    page = (char *)mem_alloc(0, BIG);
    n = fread(page, 1, BIG - 1, file);
    page[n] = 0;
    fclose(file);
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int block = format_block(f, 0);
        const moek_plan cpu = plan_as(f, block, 0, 0), gpu = plan_as(f, block, 80, 0), tiled = plan_as(f, block, 90, 1);
        if (!format_scaled(f)) continue;
        n = (size_t)snprintf(line, sizeof line, "| `%s` | %d | %d | %d |", f->name,
                             (int)moek_alignment(&cpu, "weights.w_up_scale"),
                             (int)moek_alignment(&gpu, "weights.w_up_scale"),
                             (int)moek_alignment(&tiled, "weights.w_up_scale"));
        if (f->zero) snprintf(line + n, sizeof line - n, " zero points %d, tiled %d |",
                              (int)moek_alignment(&gpu, "weights.w_up_zero"),
                              (int)moek_alignment(&tiled, "weights.w_up_zero"));
        else snprintf(line + n, sizeof line - n, " |");
        CHECK(has_text(page, line), "docs/formats.md, Alignment, has no line %s", line);
    }
    mem_free(0, page);
}
static void test_alignment(void)
{
    static const char *const nothing[] = {
        "", "w_up", "weights.", "weights.w_up ", "weights.nothing", "args", "args.why", "config.hidden", "args.w_up",
        "weightsxw_up"
    };
    const moek_plan p = plan_as(moek_format_of(FORMAT_BLOCKED), 0, 80, 0);
    moek_plan none;
    int i, j, arch, wrong = 0;
    memset(&none, 0, sizeof none);
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++)
            for (arch = 0; arch <= 160; arch += 80) wrong += bind_by_alignment(f, f->block[j], arch, arch > 80);
    }
    CHECK(wrong > 500, "only %d addresses were refused", wrong);
    for (i = 0; i < (int)(sizeof nothing / sizeof *nothing); i++)
        CHECK(!moek_alignment(&p, nothing[i]), "\"%s\" has an alignment", nothing[i]);
    CHECK(!moek_alignment(NULL, "weights.w_up") && !moek_alignment(&p, NULL) && !moek_alignment(&none, "weights.w_up"),
          "no plan, or no field");
    /* What kernels load at once, and not what a scale is: two e4m3 of 16 columns; 16 bytes of tiles. */
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const moek_plan gpu = plan_as(f, format_block(f, 0), 80, 0), tiled = plan_as(f, format_block(f, 0), 90, 1);
        const int pair = f->w_scale.columns == 16;
        if (!format_scaled(f)) continue;
        CHECK(moek_alignment(&gpu, "weights.w_up_scale") ==
              (size_t)(pair ? 2 : 1) * moek_scale_bytes(&f->w_scale, 1, 1), "%s", f->name);
        CHECK((moek_alignment(&tiled, "weights.w_down_scale") == 16) == (f->w_bits == 4), "%s, tiled", f->name);
    }
    test_alignment_page();
}

/* What a format needs, and what it must not be given; for the formats that are compiled in. */
static void test_bind_formats(void)
{
    int i;
    moek_config c = good();
    moek_plan p;
#define HAVE(number) (c.quant = (number), moek_plan_init(&p, &c) == MOEK_OK)
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int number = f->number;
        if (!HAVE(number)) continue;
        if (format_scaled(f)) {
            BIND_REFUSED(c.quant = number, w.w_up_scale = NULL, "weights.w_up_scale is NULL");
            BIND_REFUSED(c.quant = number, w.w_down_scale = NULL, "weights.w_down_scale is NULL");
        } else {
            BIND_REFUSED(c.quant = number, w.w_up_scale = (const float *)memory,
                         of_format("but config.quant is %s", number));
            BIND_REFUSED(c.quant = number, w.w_down_scale = (const float *)memory, "which has none");
        }
        if (moek_scale_bytes(&f->w_scale, 1, 1) > 1) {
            BIND_REFUSED(c.quant = number, BESIDE(w_up_scale), "weights.w_up_scale is not aligned to");
            BIND_REFUSED(c.quant = number, BESIDE(w_down_scale), "weights.w_down_scale is not aligned to");
        }
        test_bind_more(f);
        if (!f->second) {
            BIND_REFUSED(c.quant = number, w.w_up_global_scale = (const float *)memory, "which has no second scale");
            BIND_REFUSED(c.quant = number, w.w_down_global_scale = (const float *)memory, "which has no second scale");
            BIND_REFUSED(c.quant = number, w.w_gate_global_scale = (const float *)memory, "which has no second scale");
        }
        if (!f->zero) {
            BIND_REFUSED(c.quant = number, w.w_up_zero = memory, "which has no zero points");
            BIND_REFUSED(c.quant = number, w.w_down_zero = memory, "which has no zero points");
            BIND_REFUSED(c.quant = number, w.w_gate_zero = memory, "which has no zero points");
        }
        if (f->static_x) continue;
        BIND_REFUSED(c.quant = number, w.x_scale = (const float *)memory, of_format("not %s", number));
        BIND_REFUSED(c.quant = number, w.h_scale = (const float *)memory, of_format("not %s", number));
    }
    if (!HAVE(FORMAT_TENSOR)) return;
    BIND_REFUSED(c.quant = FORMAT_TENSOR, BESIDE(x_scale), "weights.x_scale is not aligned");
    BIND_REFUSED(c.quant = FORMAT_TENSOR, BESIDE(h_scale), "weights.h_scale is not aligned");
    BIND_REFUSED(c.quant = FORMAT_TENSOR; c.batch_invariant = 1, w.x_scale = (const float *)memory, "batch invariance");
}

/* ---- moek_run ---------------------------------------------------------------------------------------------------- */

enum { POISON = 0x5b };
static struct {
    moek_plan plan;
    char *x, *y, *logits, *workspace;
    int32_t *ids;
    float *weights;
    size_t size;
    char why[MOEK_WHY];
} fix;

static void fixture(void)
{
    const moek_config c = good();
    const moek_weights w = good_weights(QUANT);
    CHECK(moek_plan_init(&fix.plan, &c) == MOEK_OK && moek_plan_bind(&fix.plan, &w) == MOEK_OK, "%s", fix.plan.why);
    fix.size = moek_workspace_size(&fix.plan);
    fix.x = (char *)mem_alloc(0, 2 * TOKENS * HIDDEN + 256);
    fix.y = (char *)mem_alloc(0, 2 * TOKENS * HIDDEN + 256);
    fix.logits = (char *)mem_alloc(0, 4 * TOKENS * EXPERTS + 256);
    fix.ids = (int32_t *)mem_alloc(0, 4 * TOKENS * TOPK + 256);
    fix.weights = (float *)mem_alloc(0, 4 * TOKENS * TOPK + 256);
    fix.workspace = (char *)mem_alloc(0, fix.size + 256 + moek_state_size());   /* a state laid there ends there */
    memset(fix.x, 0, 2 * TOKENS * HIDDEN);
    memset(fix.logits, 0, 4 * TOKENS * EXPERTS);
}
static void poison(void)
{
    memset(fix.y, POISON, 2 * TOKENS * HIDDEN + 256);
    memset(fix.ids, POISON, 4 * TOKENS * TOPK + 256);
    memset(fix.weights, POISON, 4 * TOKENS * TOPK + 256);
    memset(fix.workspace, POISON, fix.size + 256);
}
static int still(const void *p, size_t bytes)
{
    const char *c = (const char *)p;
    size_t i;
    for (i = 0; i < bytes; i++) if (c[i] != POISON) return 0;
    return 1;
}
static int untouched(void)
{
    return still(fix.y, 2 * TOKENS * HIDDEN + 256) && still(fix.ids, 4 * TOKENS * TOPK + 256) &&
           still(fix.weights, 4 * TOKENS * TOPK + 256) && still(fix.workspace, fix.size + 256);
}
static moek_args good_args(void)
{
    moek_args a;
    memset(&a, 0, sizeof a);
    a.tokens = TOKENS; a.x = fix.x; a.y = fix.y;
    a.router_logits = fix.logits; a.topk_ids = fix.ids; a.topk_weights = fix.weights;
    a.workspace = fix.workspace; a.workspace_size = fix.size;
    return a;
}

/* Refused by run and by begin, with the sentence in buffers of every size, and nothing written. */
static void run_refused(const moek_plan *p, moek_args a, moek_status status, const char *sentence, const char *change,
                        int line)
{
    char why[MOEK_WHY], some[64];
    moek_step step;
    moek_status got;
    size_t size;
    int i, overflow = 0;
    poison();
    a.why = why; a.why_size = sizeof why;
    got = moek_run(p, &a, NULL);
    check_(got == status, __FILE__, line, change, "%s, not %s; %s", moek_status_name(got), moek_status_name(status),
           why);
    check_(has_text(why, sentence), __FILE__, line, change, "says \"%s\", nothing of \"%s\"", why, sentence);
    for (size = 0; size < 40; size++) {
        memset(some, POISON, sizeof some);
        a.why = some; a.why_size = size;
        moek_run(p, &a, NULL);
        for (i = (int)size; i < 64; i++) overflow |= some[i] != POISON;
        overflow |= size && (memchr(some, 0, size) == NULL || strncmp(some, why, size - 1) != 0);
    }
    check_(!overflow, __FILE__, line, change, "a small args.why overflows, or is not ended");
    a.why = NULL; a.why_size = 100;
    check_(moek_run(p, &a, NULL) == status && moek_begin(p, &a, &step) == status, __FILE__, line, change,
           "begin says otherwise");
    check_(untouched(), __FILE__, line, change, "something was written");
}
#define RUN_REFUSED(change, status, sentence) \
    do {                                                                                            \
        moek_args a = good_args();                                                                  \
        moek_plan p = fix.plan;                                                                     \
        change;                                                                                     \
        run_refused(&p, a, MOEK_##status, sentence, #change, __LINE__);                             \
    } while (0)
#define GIVEN(slot, id) a.router_logits = NULL; a.topk_ids = given; memset(given, 0, sizeof given); given[slot] = (id)

/* A prepare/finalize that has something against the run. */
static moek_status no_run(const moek_prepare_finalize *self, const moek_plan *plan, const moek_args *args)
{
    (void)plan;
    if (self->context && args->why && args->why_size) snprintf(args->why, args->why_size, "not on a Sunday");
    return MOEK_E_CAPACITY;
}

#define WIDE(id) \
    a.router_logits = NULL; a.topk_ids = NULL; a.topk_ids64 = wide; memset(wide, 0, sizeof wide); wide[3] = (id)

static void test_run_refused(void)
{
    moek_args none = good_args();
    int32_t given[TOKENS * TOPK], tokens[TOKENS];
    int64_t wide[TOKENS * TOPK];
    moek_prepare_finalize silent = moek_local, wordy = moek_local;
    CHECK(moek_run(&fix.plan, &none, (moek_stream)&none) == MOEK_E_ARGUMENT, "a stream on the CPU");
    CHECK(moek_run(NULL, &none, NULL) == MOEK_E_ARGUMENT && moek_run(&fix.plan, NULL, NULL) == MOEK_E_ARGUMENT, "NULL");
    silent.check = wordy.check = no_run;
    silent.name = "silent";
    wordy.context = &wordy;
    RUN_REFUSED(p.prepare_finalize = &silent, E_CAPACITY, "prepare/finalize silent refuses the run: a rank would");
    RUN_REFUSED(p.prepare_finalize = &wordy, E_CAPACITY, "not on a Sunday");
    RUN_REFUSED(p.prepare_finalize = &wordy; a.tokens = 0, E_CAPACITY, "not on a Sunday");
    RUN_REFUSED(memset(&p, 0, sizeof p), E_ARGUMENT, "the plan is not initialized");
    RUN_REFUSED(p.bound = 0, E_UNBOUND, "call moek_plan_bind after moek_plan_init");
    RUN_REFUSED(a.tokens = -1, E_ARGUMENT, "args.tokens is -1");
    RUN_REFUSED(a.tokens = TOKENS + 1, E_ARGUMENT, "made for 0 to 4 (config.max_tokens)");
    RUN_REFUSED(a.tokens = INT_MIN, E_ARGUMENT, "args.tokens is");
    RUN_REFUSED(a.handle = 2, E_ARGUMENT, "args.handle is 2; 0 or 1");
    RUN_REFUSED(a.handle = -1, E_ARGUMENT, "args.handle is -1");
    RUN_REFUSED(a.workspace = NULL, E_WORKSPACE, "args.workspace is NULL");
    RUN_REFUSED(a.workspace_size -= 1, E_WORKSPACE, "args.workspace_size is");
    RUN_REFUSED(a.workspace_size = 0, E_WORKSPACE, "args.workspace_size is 0");
    RUN_REFUSED(a.workspace = fix.workspace + 1, E_WORKSPACE, "not aligned to 256");
    RUN_REFUSED(a.workspace = fix.workspace + 128, E_WORKSPACE, "not aligned to 256");
    RUN_REFUSED(a.state = fix.workspace + 8, E_WORKSPACE, "args.state is not aligned to 256");
    RUN_REFUSED(a.x = NULL, E_ARGUMENT, "args.x is NULL");
    RUN_REFUSED(a.y = NULL, E_ARGUMENT, "args.y is NULL");
    RUN_REFUSED(a.x = fix.x + 1, E_ARGUMENT, "args.x is not aligned to 16");
    RUN_REFUSED(a.y = fix.y + 2, E_ARGUMENT, "args.y is not aligned to 16");
    RUN_REFUSED(a.shared_y = fix.x + 8, E_ARGUMENT, "args.shared_y is not aligned to 16");
    RUN_REFUSED(a.x_stride = HIDDEN - 8, E_ARGUMENT, "args.x_stride is 56 elements; 0 (hidden), 64 (hidden), or m");
    RUN_REFUSED(a.y_stride = HIDDEN + 4, E_ARGUMENT, "args.y_stride is 68 elements");
    RUN_REFUSED(a.shared_y = fix.x; a.shared_y_stride = 8, E_ARGUMENT, "args.shared_y_stride is 8 elements");
    RUN_REFUSED(a.x_stride = (size_t)1 << 30, E_ARGUMENT, "args.x_stride is 1073741824 elements, for 4 tokens a chunk");
    RUN_REFUSED(a.y_stride = (size_t)-8, E_ARGUMENT, "args.y_stride is");
    RUN_REFUSED(p.config.max_tokens = p.chunk = a.tokens = 1 << 20; a.x_stride = (1 << 15) + 8, E_ARGUMENT,
                "args.x_stride is 32776 elements, for 1048576 tokens a chunk");
    RUN_REFUSED(a.y = fix.x; a.y_stride = 72, E_ARGUMENT, "args.y is x, whose rows are 64 elements apart, and args.y");
    RUN_REFUSED(a.y = fix.x; a.x_stride = 72, E_ARGUMENT, "args.y_stride says 64: give both the same stride");
    RUN_REFUSED(a.shared_y = fix.y; a.y_stride = 72, E_ARGUMENT, "args.y is shared_y, whose rows are 64 elements");
    RUN_REFUSED(a.shared_y = fix.y; a.shared_y_stride = 80; a.y_stride = 72, E_ARGUMENT, "args.y is shared_y");
    RUN_REFUSED(a.router_logits = fix.logits + 1, E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.topk_ids = (int32_t *)((char *)fix.ids + 1), E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.topk_weights = (float *)((char *)fix.weights + 2), E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids = NULL, E_ARGUMENT, "topk_ids is NULL");
    RUN_REFUSED(a.router_logits = NULL; a.topk_weights = NULL, E_ARGUMENT, "topk_weights is NULL");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids = NULL; a.topk_weights = NULL, E_ARGUMENT, "is NULL");
    RUN_REFUSED(GIVEN(3, EXPERTS), E_ARGUMENT, "args.topk_ids[1][1] is 8; ids are -1 to 7");
    RUN_REFUSED(GIVEN(0, -2), E_ARGUMENT, "args.topk_ids[0][0] is -2");
    RUN_REFUSED(GIVEN(TOKENS * TOPK - 1, INT_MAX), E_ARGUMENT, "args.topk_ids[3][1]");
    RUN_REFUSED(p.weights.router_table = given, E_ARGUMENT, "args.token_ids must be");
    RUN_REFUSED(p.config.physical_experts = 12; GIVEN(2, 12), E_ARGUMENT, "ids are -1 to 11");
    RUN_REFUSED(p.config.physical_experts = 12; p.weights.replicas = given; GIVEN(2, 8), E_ARGUMENT, "ids are -1 to 7");
    RUN_REFUSED(p.weights.router_table = given; p.weights.router_table_rows = 9; memset(tokens, 0, sizeof tokens);
                a.token_ids = tokens; tokens[2] = 9, E_ARGUMENT,
                "args.token_ids[2] is 9; weights.router_table has rows 0 to 8");
    RUN_REFUSED(p.weights.router_table = given; p.weights.router_table_rows = 9; memset(tokens, 0, sizeof tokens);
                a.token_ids = tokens; tokens[3] = -1, E_ARGUMENT, "args.token_ids[3] is -1");
    RUN_REFUSED(a.topk_ids64 = wide, E_ARGUMENT, "args.topk_ids and topk_ids64 are both given");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids64 = wide, E_ARGUMENT, "are both given");
    RUN_REFUSED(WIDE(0); a.topk_ids64 = (int64_t *)((char *)wide + 4), E_ARGUMENT, "not aligned");
    RUN_REFUSED(WIDE(0); a.topk_weights = NULL, E_ARGUMENT, "topk_weights is NULL");
    RUN_REFUSED(WIDE(EXPERTS), E_ARGUMENT, "args.topk_ids64[1][1] is 8; ids are -1 to 7");
    RUN_REFUSED(WIDE(-2), E_ARGUMENT, "args.topk_ids64[1][1] is -2");
    RUN_REFUSED(WIDE(((int64_t)1 << 32) + 1), E_ARGUMENT, "args.topk_ids64[1][1] is 4294967297; ids are -1 to 7");
    RUN_REFUSED(WIDE(INT64_MIN), E_ARGUMENT, "args.topk_ids64[1][1] is -9223372036854775808");
    RUN_REFUSED(a.shared_weights = fix.weights, E_ARGUMENT,
                "args.shared_weights is given, but config.shared_slots is 0");
    RUN_REFUSED(p.config.shared_slots = 1; a.shared_weights = fix.weights; GIVEN(0, 0), E_ARGUMENT,
                "args.shared_weights is given, but router_logits is NULL");
    RUN_REFUSED(p.config.shared_slots = 1; a.shared_weights = (float *)((char *)fix.weights + 2), E_ARGUMENT,
                "not aligned");
    RUN_REFUSED(a.router_logits_stride = EXPERTS - 1, E_ARGUMENT, "args.router_logits_stride is 7 elements");
    RUN_REFUSED(a.router_logits_stride = EXPERTS; GIVEN(0, 0), E_ARGUMENT, "but router_logits is NULL");
}

/* An address that is not aligned, by name. */
static void test_args_alignment(void)
{
    size_t i;
    for (i = 0; i < sizeof args_addresses / sizeof *args_addresses; i++) {
        const char *const field = field_of("args", args_addresses[i]);
        const size_t bytes = moek_alignment(&fix.plan, field);
        moek_args a = good_args();
        char why[128];
        CHECK(bytes && bytes <= 256, "%s: %d bytes", field, (int)bytes);
        if (bytes == 1) continue;
        snprintf(why, sizeof why, "%s is not aligned to %d bytes", field, (int)bytes);
        set_address(&a, field, (const char *)fix.x + bytes / 2);
        run_refused(&fix.plan, a, bytes == 256 ? MOEK_E_WORKSPACE : MOEK_E_ARGUMENT, why, field, __LINE__);
    }
}

enum { ROW = 2 * HIDDEN };                             /* bytes */
/* Arrays that lie in each other, one of them written. */
static void test_overlap(void)
{
    moek_args a;
    RUN_REFUSED(a.y = fix.x + ROW, E_ARGUMENT, "args.y and x lie in the same memory (y begins 128 bytes behind x)");
    RUN_REFUSED(a.y = fix.x + (TOKENS - 1) * ROW, E_ARGUMENT, "or both the same address and stride");
    RUN_REFUSED(a.x = fix.y + 16, E_ARGUMENT, "args.y and x lie in the same memory (y begins -16 bytes");
    RUN_REFUSED(a.x = fix.y + ROW; a.x_stride = a.y_stride = HIDDEN + 8, E_ARGUMENT, "args.y and x lie");
    RUN_REFUSED(a.tokens = 2; a.y = fix.x + 2 * ROW; a.x_stride = 2 * HIDDEN + 8, E_ARGUMENT, "args.y and x lie");
    RUN_REFUSED(a.shared_y = fix.y + ROW, E_ARGUMENT, "args.y and shared_y lie in the same memory");
    RUN_REFUSED(a.y = fix.workspace, E_ARGUMENT, "args.y and workspace lie in the same memory");
    RUN_REFUSED(a.x = fix.workspace + 256, E_ARGUMENT, "args.x and workspace lie in the same memory");
    RUN_REFUSED(a.y = fix.workspace + (fix.size - 1) / 16 * 16, E_ARGUMENT, "args.y and workspace");
    RUN_REFUSED(a.router_logits = fix.y, E_ARGUMENT, "args.y and router_logits lie in the same memory");
    RUN_REFUSED(a.topk_ids = (int32_t *)fix.workspace, E_ARGUMENT, "args.workspace and topk_ids lie");
    RUN_REFUSED(a.topk_weights = (float *)fix.ids, E_ARGUMENT, "args.topk_ids and topk_weights lie in the same memory");
    RUN_REFUSED(a.is_padding = (unsigned char *)fix.y + 8, E_ARGUMENT, "args.y and is_padding lie in the same memory");
    RUN_REFUSED(a.state = fix.workspace, E_ARGUMENT, "args.workspace and state lie in the same memory");
#define RUNS(change) do {                                                                                       \
        a = good_args();                                                                                        \
        change;                                                                                                 \
        a.why = fix.why; a.why_size = sizeof fix.why;                                                           \
        CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "%s: %s", #change, fix.why);                            \
    } while (0)
    memset(fix.y, 0, 2 * TOKENS * HIDDEN + 256);
    RUNS(a.y = fix.x);                                 /* row for row */
    RUNS(a.shared_y = fix.y);
    RUNS(a.tokens = 2; a.y = fix.x + ROW; a.x_stride = a.y_stride = 2 * HIDDEN);       /* between the rows of x */
    RUNS(a.tokens = 2; a.x = fix.y + ROW; a.x_stride = a.y_stride = 2 * HIDDEN);
    RUNS(a.tokens = 1; a.y = fix.x + ROW);             /* behind the rows that the run has */
    RUNS(a.token_ids = (const int32_t *)fix.y);        /* which are not read */
    memset(fix.x, 0, 2 * TOKENS * HIDDEN);
#undef RUNS
}

/* Accepted: the same arguments unbroken, ids of -1, no tokens (and then no pointers), more workspace than needed. */
static void test_run_accepted(void)
{
    moek_args a = good_args();
    int64_t wide[TOKENS * TOPK];
    moek_step step;
    poison();
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK && !untouched(), "the good run is refused");
    CHECK(still(fix.y + 2 * TOKENS * HIDDEN, 256) && still(fix.ids + TOKENS * TOPK, 256) &&
          still(fix.workspace + fix.size, 256), "beyond");
    a.router_logits = NULL;
    memset(fix.ids, 0xff, 4 * TOKENS * TOPK);
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "ids of -1 are refused");
    memset(wide, 0xff, sizeof wide);
    a.topk_ids = NULL; a.topk_ids64 = wide;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "ids of -1, of 64 bits, are refused");
    a.topk_ids = fix.ids; a.topk_ids64 = NULL;
    a.workspace_size += 1;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "a larger workspace is refused");
    a.x_stride = HIDDEN; a.shared_y_stride = 3;        /* nobody's: there is no shared_y */
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "x_stride is hidden: refused");
    a.x = a.shared_y = a.y;
    a.y_stride = a.shared_y_stride = HIDDEN;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "all in one place, with one stride: refused");
    poison();
    a.tokens = 0;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK && still(fix.y, 2 * TOKENS * HIDDEN), "no tokens: y was written");
    a.x = a.y = NULL; a.topk_ids = NULL; a.topk_weights = NULL;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "no tokens, no pointers: refused");
    CHECK(moek_begin(&fix.plan, &a, &step) == MOEK_OK, "begin");
}

static void test_begin(void)
{
    moek_args a = good_args();
    moek_config c = good();
    moek_weights w = good_weights(QUANT);
    moek_plan p;
    moek_step step;
    char why[200];
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_begin(&fix.plan, &a, NULL) == MOEK_E_ARGUMENT && has_text(why, "step is NULL"), "%s", why);
    c.chunk_tokens = 3;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chunk == 3 && moek_plan_bind(&p, &w) == MOEK_OK, "%s", p.why);
    CHECK(moek_workspace_size(&p) <= fix.size, "chunks need more workspace than the whole");
    CHECK(moek_begin(&p, &a, &step) == MOEK_E_ARGUMENT && has_text(why, "plan.chunk = 3"), "%s", why);
    a.tokens = 3;
    CHECK(moek_begin(&p, &a, &step) == MOEK_OK && step.tokens == 3 && step.first == 0 && step.plan == &p, "begin");
}

/* ---- moek_quantize ----------------------------------------------------------------------------------------------- */

static void test_quantize(void)
{
    static float scale[8 * 4], partial[MOEK_QUANT_PARTIALS];
    moek_quant_args good_quant;
    int i;
    memset(&good_quant, 0, sizeof good_quant);
    good_quant.rows = TOKENS; good_quant.cols = HIDDEN; good_quant.source_div = 1;
    good_quant.dtype = format_dtype_in(moek_format_of(QUANT), 0);
    good_quant.x = fix.x; good_quant.q = fix.y; good_quant.scale = scale; good_quant.partial = partial;
#define QUANTIZE(change, quant, arch, status) do {                                                        \
        moek_quant_args a = good_quant;                                                                   \
        change;                                                                                           \
        CHECK(moek_quantize(quant, arch, &a, NULL) == MOEK_##status, "%s, %s", #change, #quant);          \
        if (MOEK_##status != MOEK_OK) CHECK(untouched(), "%s: something was written", #change);           \
    } while (0)
    poison();
    CHECK(moek_quantize(QUANT, 0, NULL, NULL) == MOEK_E_ARGUMENT, "NULL");
    QUANTIZE(a.rows = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.source_div = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.rows = INT_MAX, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = (1 << 24) + 1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = INT_MAX, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.source_div = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.zeros = 4, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.zeros = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.few = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.early = 3, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x = fix.x + 1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.q = fix.y + 8, QUANT, 80, E_ARGUMENT);
    QUANTIZE(a.scale = (char *)scale + 2, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.target = (const int32_t *)(fix.x + 1), QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.ue8m0 = 1, FORMAT_ROW, 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++)
        if (!format_at(i)->ue8m0)
            QUANTIZE(a.ue8m0 = 1; a.static_scale = scale; a.dtype = format_dtype_in(format_at(i), 0),
                     format_numbers[i], 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++) {
        static const float below = -0.25f;
        if (format_at(i)->static_x) QUANTIZE(a.static_scale = &below, format_numbers[i], 0, E_ARGUMENT);
    }
    QUANTIZE(a.x_stride = HIDDEN - 8, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x_stride = HIDDEN + 4, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x_stride = -8, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x = NULL, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.q = NULL, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.dtype = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.dtype = MOEK_DTYPE_F32, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = 3, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS - 1, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_TENSOR, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.partial = NULL, FORMAT_TENSOR, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 16, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = -1, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 128, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 4, FORMAT_BLOCKED, 80, E_ARGUMENT);
    QUANTIZE(a.counts = fix.ids, FORMAT_BLOCKED, 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++) {
        if (!format_x_second(format_at(i))) continue;
        QUANTIZE((void)0, format_numbers[i], 0, E_ARGUMENT);
        QUANTIZE(a.static_scale = scale; a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS,
                 format_numbers[i], 0, E_ARGUMENT);
    }
    QUANTIZE((void)0, 0, 0, E_NO_KERNEL);
    QUANTIZE((void)0, 99, 0, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, 75, E_NO_KERNEL);
    QUANTIZE((void)0, INT_MAX, 0, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, -1, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, INT_MIN, E_NO_KERNEL);
    QUANTIZE(a.rows = 0, QUANT, 0, OK);
    CHECK(untouched(), "no rows: something was written");
    QUANTIZE((void)0, QUANT, 0, OK);
    CHECK(!untouched() && still(fix.y + moek_element_bytes(moek_format_of(QUANT)->x, TOKENS * HIDDEN), 256), "rows");
#ifndef MOEK_QUANT
    QUANTIZE(a.rows = 0; a.source_div = INT_MAX, FORMAT_TENSOR, 0, OK);
    QUANTIZE((void)0, FORMAT_TENSOR, 0, OK);
    QUANTIZE(a.partial = NULL; a.static_scale = scale, FORMAT_TENSOR, 0, OK);
    for (i = 0; i < FORMATS; i++)
        if (format_x_second(format_at(i))) QUANTIZE(a.static_scale = scale, format_numbers[i], 0, OK);
    QUANTIZE((void)0, FORMAT_ROW, 0, OK);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS, FORMAT_BLOCKED, 0, OK);
    QUANTIZE(a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS; a.ue8m0 = 1, FORMAT_BLOCKED, 0, OK);
#endif
}
/* There and back, of an array with guards: what came; and in panels something else, if that is more than a group. */
typedef moek_status (*repacker)(const moek_plan *, const void *, void *, int, int, moek_stream);
static void repack_back(const moek_plan *p, repacker repack, const char *what, size_t bytes, int experts)
{
    enum { GUARD = 64 };
    const size_t all = bytes + 2 * GUARD;
    unsigned char *const a = (unsigned char *)malloc(3 * all), *const b = a + all, *const again = b + all;
    size_t i;
    for (i = 0; i < all; i++) a[i] = (unsigned char)rng_u32();
    memset(b, 0x5a, 2 * all);
    CHECK(repack(p, a + GUARD, b + GUARD, experts, 0, NULL) == MOEK_OK &&
          repack(p, b + GUARD, again + GUARD, experts, 1, NULL) == MOEK_OK, "%s: refused", what);
    CHECK(!memcmp(a + GUARD, again + GUARD, bytes), "%s: panels and back it is something else", what);
    CHECK(bytes < 16384 || memcmp(a + GUARD, b + GUARD, bytes), "%s: nothing was repacked", what);
    for (i = 0; i < GUARD; i++)
        CHECK(b[i] == 0x5a && b[all - 1 - i] == 0x5a && again[i] == 0x5a && again[all - 1 - i] == 0x5a,
              "%s: wrote outside", what);
    free(a);
}
/* MOEK_WEIGHTS_PANELS: all that is repacked of a format, whatever the activation and the order of gate and up. */
static void test_panels_of(const moek_format *f, int block, int up_layout, int act, int offset)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    const int scales = of.rows == 1 && of.columns, gated = act != MOEK_RELU2_NO_MUL;
    const size_t experts = 3, hidden = 96, inter = 160;
    const size_t up_rows = gated && up_layout != MOEK_UP_APART ? 2 * inter : inter;
    char what[96];
    moek_config c = good();
    moek_plan p;
    c.exclude = MOEK_BACKENDS_GPU; c.quant = f->number; c.block = block; c.act = act; c.up_layout = up_layout;
    c.hidden = (int)hidden; c.inter = (int)inter; c.inter_offset = offset; c.dtype = format_dtype(f);
    snprintf(what, sizeof what, "%s, block %d, up_layout %d, act %d", f->name, block, up_layout, act);
    if (moek_plan_init(&p, &c) != MOEK_OK) { CHECK(0, "%s: %s", what, p.why); return; }
    repack_back(&p, moek_repack_up, what, experts * up_rows * moek_element_bytes(f->w, hidden), 3);
    repack_back(&p, moek_repack_down, what, experts * hidden * moek_element_bytes(f->w, inter), 3);
    if (scales) {
        const size_t up = moek_scale_count(&of, 1, hidden), down = moek_scale_count(&of, 1, inter + (size_t)offset);
        repack_back(&p, moek_repack_up_scale, what, experts * up_rows * moek_scale_bytes(&of, 1, hidden), 3);
        repack_back(&p, moek_repack_down_scale, what,
                    experts * hidden * moek_scale_bytes(&of, 1, inter + (size_t)offset), 3);
        if (!f->zero) return;
        repack_back(&p, moek_repack_up_zero, what, experts * up_rows * moek_element_bytes(f->w, up), 3);
        repack_back(&p, moek_repack_down_zero, what, experts * hidden * moek_element_bytes(f->w, down), 3);
    } else {
        CHECK(moek_repack_up_scale(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: scales", what);
        CHECK(moek_repack_down_zero(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: zeros", what);
    }
}
static void test_panels(void)
{
    static const int sizes[][3] = { { 48, 64, 0 }, { 64, 80, 0 }, { 128, 128, 16 } };
    moek_config c = good();
    moek_plan p;
    int i, j, layout;
    c.exclude = MOEK_BACKENDS_GPU;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (!HAVE(f->number) || f->only_blocks) continue;
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++)
            for (layout = MOEK_UP_HALVES; layout <= MOEK_UP_APART; layout++)
                test_panels_of(f, format_block(f, j), layout, MOEK_SILU,
                               layout == MOEK_UP_HALVES && f->w_scale.rows == 1 && f->w_scale.columns == 128 ? 32 : 0);
        test_panels_of(f, format_block(f, 0), 0, MOEK_RELU2_NO_MUL, 0);
    }
    for (i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        c = good();
        if (sizes[i][2] && !HAVE(FORMAT_BLOCKED)) continue;
        if (sizes[i][2]) c.up_scales = 1;
        c.exclude = MOEK_BACKENDS_GPU; c.hidden = sizes[i][0]; c.inter = sizes[i][1]; c.inter_offset = sizes[i][2];
        c.weight_layout = MOEK_WEIGHTS_PANELS;
        CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "no multiple of 32: leave weight_layout 0"),
              "%s", p.why);
        c.weight_layout = 0;
        if (moek_plan_init(&p, &c) != MOEK_OK) { CHECK(0, "%s", p.why); continue; }
        CHECK(moek_repack_down(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "sizes that do not fit");
    }
}
/* Each order is refused by the other's plans. */
static void test_orders(void)
{
    moek_config c = good();
    moek_plan p;
    char text[16384];
    c.hidden = c.inter = 256;
    c.weight_layout = MOEK_WEIGHTS_TILED; c.exclude = MOEK_BACKENDS_GPU; c.backend = 0;
    CHECK(moek_plan_init(&p, &c) == MOEK_E_BACKEND && has_text(p.why, "or set MOEK_WEIGHTS_PANELS, the order of CPUs"),
          "%s", p.why);
    c.weight_layout = MOEK_WEIGHTS_PANELS; c.exclude = 1u << MOEK_BACKEND_CPU; c.backend = 0;
    CHECK(moek_plan_init(&p, &c) != MOEK_OK, "panels on a GPU");
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "only rows of CPUs read such weights") || has_text(text, "there is no CUDA device"), "%s",
          text);
}

int main(void)
{
    memory = (char *)mem_alloc(0, BIG);
    memset(memory, 0, BIG);
    test_sizes();
    test_kinds();
    test_routing();
    test_routing_fields();
    test_routing_described();
    test_filled_in();
    test_defaults();
    test_acts();
    test_same_weights();
    test_choose_pair();
    test_version();
    test_misuse();
    test_backends();
    test_file_blocks();
    test_no_device();
    test_demanded();
    test_table();
    test_sets();
    test_missing_row();
    test_names();
    test_offsets();
    test_models();
    test_texts();
    test_describe();
    test_tuned_refused();
    test_tuned_choices();
    test_tuned_lines();
    test_tuned_tile();
    test_bind();
    test_repack();
    test_panels();
    test_orders();
    test_bind_apart();
    test_bind_formats();
    test_blocks();
    test_alignment();
    fixture();
    test_run_refused();
    test_args_alignment();
    test_overlap();
    test_run_accepted();
    test_begin();
    test_quantize();
    return check_end();
}
