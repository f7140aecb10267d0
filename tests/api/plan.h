/* plan.h -- a part of test_api.c, which includes it once: moek_plan_init, backends and kernels. */
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
    REFUSED(c.up_layout = MOEK_UP_SEPARATE; c.act = MOEK_RELU2_NO_MUL, E_ARGUMENT, "relu2_no_mul is not gated");
    REFUSED(c.up_layout = MOEK_UP_SEPARATE; c.weight_layout = MOEK_WEIGHTS_TILED; c.hidden = c.inter = 256, E_ARGUMENT,
            "up_layout is MOEK_UP_SEPARATE: leave one of them 0");
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
    REFUSED(c.inter_offset = 64; c.quant = FORMAT_BLOCKED, E_ARGUMENT, "set up_scales = MOEK_UP_SCALES_SEPARATE");
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
    CHECK(p.config.logits_dtype == MOEK_DTYPE_F32 && p.config.up_layout == MOEK_UP_GATE_UP, "logits_dtype, up_layout");
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
    c.up_layout = MOEK_UP_GATE_UP;
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
        CHECK(!moek_plan_layer(p, i) && !moek_plan_up_down(p, i), "%s: layer, up_down", what);
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
    REFUSED(c.backend = 7, E_ARGUMENT, "config.backend is 7");
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

/* Blocks of GGUF files: rows are whole blocks, and scales lie in them. */
static void file_blocks_of(const moek_format *f)
{
    const moek_format *const instead = moek_format_of_file(moek_block_of(f->file_type)->instead);
    const moek_format *const of_file = moek_format_of_file(f->file_type);
    char text[4096], says[160];
    moek_config c = good();
    moek_weights w;
    moek_plan p;
    CHECK(of_file && of_file->x_bits == 16 && moek_same_weights(of_file->number, f->number) &&
          (of_file == f) == (f->x_bits == 16), "%s", f->name);
    CHECK(instead && instead->file_columns < f->file_columns, "%s", f->name);
    snprintf(says, sizeof says, "of %s it must be a multiple of %d, the columns of a block.  Files hold rows of other "
             "lengths as other types, such as %s", f->name, f->file_columns, instead->name);
    REFUSED(of_quant(&c, f->number); c.inter += f->file_columns / 2, E_ARGUMENT, says);
    REFUSED(of_quant(&c, f->number); c.hidden += 8, E_ARGUMENT, says);
    REFUSED(of_quant(&c, f->number); c.inter_offset = f->file_columns, E_ARGUMENT, "begin with a block of");
    if (f->tiled == MOEK_READS_FRAGMENTS && format_has(f, MOEK_OP_UP, 0))      /* (this build may leave it out) */
        REFUSED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_TILED; c.inter = c.hidden = 512; c.backend =
                MOEK_BACKEND_CPU, E_BACKEND, "does not support MOEK_WEIGHTS_TILED");
    if (f->tiled != MOEK_READS_FRAGMENTS)
        REFUSED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_TILED, E_ARGUMENT,
                "or, on a CPU, set MOEK_WEIGHTS_PANELS (2)");
    CHECK(moek_weight_bytes(f, MOEK_WEIGHTS_TILED, 512) == moek_weight_bytes(f, 0, 512) &&
          moek_weight_bytes(f, 0, 512) == 512 / (size_t)f->file_columns * (size_t)f->file_bytes, "%s: tiled", f->name);
    if (!served(f->number)) return;
    ACCEPTED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_BLOCKS);
    ACCEPTED(of_quant(&c, f->number); c.weight_layout = MOEK_WEIGHTS_PANELS; c.backend = MOEK_BACKEND_CPU);
    ACCEPTED(of_quant(&c, f->number));
    if (mem_can_run(80) && format_has(f, MOEK_OP_UP, 80))
        ACCEPTED(of_quant(&c, f->number); c.backend = MOEK_BACKEND_SM80);
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
/* Of formats that have arrays: the same, where config.weight_layout says so, and only there. */
static void in_blocks(moek_config *c, const moek_format *f)
{
    of_quant(c, f->number);
    c->weight_layout = MOEK_WEIGHTS_BLOCKS;
    c->hidden = c->inter = 2 * f->file_columns;
}
static void blocks_or_arrays_of(const moek_format *f)
{
    const int blocks = MOEK_WEIGHTS_BLOCKS, columns = f->file_columns, second = f->global_scale;
    char text[4096], says[160];
    moek_config c = good();
    moek_weights w;
    moek_plan p;
    CHECK(moek_format_of_file(f->file_type) == f && moek_weight_bytes(f, 0, 512) == moek_element_bytes(f->w, 512) &&
          moek_weight_bytes(f, blocks, 512) == 512 / (size_t)columns * (size_t)f->file_bytes, "%s", f->name);
    snprintf(says, sizeof says, "of %s it must be a multiple of %d, the columns of a block", f->name, columns);
    REFUSED(in_blocks(&c, f); c.inter += columns / 2, E_ARGUMENT, says);
    REFUSED(in_blocks(&c, f); c.hidden += columns / 2, E_ARGUMENT, says);
    REFUSED(in_blocks(&c, f); c.inter_offset = f->granule, E_ARGUMENT,
            "begin with a block of");
    if (!served(f->number)) return;
    ACCEPTED(of_quant(&c, f->number); c.inter += columns / 2);
    ACCEPTED(of_quant(&c, f->number); c.inter_offset = f->granule);
    if (mem_can_run(80)) ACCEPTED(in_blocks(&c, f); c.backend = MOEK_BACKEND_SM80);
    in_blocks(&c, f);
    c.backend = MOEK_BACKEND_CPU;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.config.weight_layout == blocks, "%s", p.why);
    CHECK(moek_alignment(&p, "weights.w_up") == 1 && moek_alignment(&p, "weights.w_down") == 1, "%s", f->name);
    snprintf(says, sizeof says, "%s (blocks of a GGUF file, in place)", f->name);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, says), "%s", text);
    memset(&w, 0, sizeof w);
    w.w_up = w.w_down = w.w_up_scale = text + (16 - (size_t)(uintptr_t)text % 16);
    if (second) w.w_up_global_scale = w.w_down_global_scale = (const float *)w.w_up;
    CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, "which has none beside its blocks"), "%s",
          p.why);
    w.w_up_scale = NULL;
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s", p.why);
    w.w_down_global_scale = NULL;
    CHECK(moek_plan_bind(&p, &w) == (second ? MOEK_E_ARGUMENT : MOEK_OK), "%s", p.why);
}
static void test_file_blocks(void)
{
    int i, blocks = 0, both = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (f->only_blocks) file_blocks_of(f), blocks++;
        else if (moek_block_of(f->file_type)) blocks_or_arrays_of(f), both++;
        else if (!f->file_columns)
            REFUSED(c.quant = f->number; c.block = format_block(f, 0); c.weight_layout = MOEK_WEIGHTS_BLOCKS,
                    E_ARGUMENT, "have no blocks of");
    }
    CHECK(blocks && both, "no format in blocks, or none that has arrays, too");
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
    for (i = 0; i < p->chosen.gemms; i++) found |= k == p->chosen.up[i] || k == p->chosen.down[i];
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
        c.block = k->block;
        if (k->quant) of_quant(&c, k->quant);
        if (k->reads == MOEK_READS_PANELS) c.weight_layout = MOEK_WEIGHTS_PANELS;
        if (k->hidden) c.hidden = k->hidden;
        c.kernel = k->name;
        CHECK(moek_plan_init(&p, &c) == MOEK_OK && in_plan(&p, k), "%s: %s", k->name, p.why);
        c.backend = 0;
        CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.backend == MOEK_BACKEND_CPU && in_plan(&p, k), "%s: %s", k->name,
              p.why);
        wrong_quant = k->quant == FORMAT_ROW ? FORMAT_TENSOR : FORMAT_ROW;
        wrong_hidden = k->hidden ? k->hidden + 1 : k->granule > 1 ? k->granule + 1 : 0;
        if (wrong_hidden && moek_format_of(k->quant)->granule > 1)
            REFUSED(of_quant(&c, k->quant); c.hidden = wrong_hidden, E_ARGUMENT,
                    moek_format_of(k->quant)->only_blocks ? "it must be a multiple of" : "they must be multiples of");
        else if (wrong_hidden)
            REFUSED(c.quant = k->quant; c.kernel = k->name; c.hidden = wrong_hidden, E_NO_KERNEL, k->name);
        if (k->quant) REFUSED(c.quant = wrong_quant; c.kernel = k->name, E_NO_KERNEL, WRONG_QUANT(k->name));
    }
}

/* Where this processor has a set of instructions, its rows serve few rows an expert and many, of every format that has
 * rows of a set (each alone in experts of one, so that rows an expert are tokens).  Some formats have one row for both.
 * Where the compiler may use AVX-512 in plain C, plans take that with few rows. */
static void test_sets_serve(void)
{
    static const int tokens[] = { 1, 2, 4, 5, 8, 9, 48, 64, 500 };
    int n, i, t;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        moek_config c = good();
        moek_plan p;
        if (k[i].op != MOEK_OP_UP || !k[i].arch || k[i].arch >= 80 || k[i].launch(NULL, NULL) != MOEK_OK ||
            !(k[i].reads & (MOEK_READS_CHECKPOINT | MOEK_READS_BLOCKS)) || k[i].m < 48) continue;
        c.block = k[i].block; c.experts = c.topk = 1; c.max_tokens = 512; c.cpu = k[i].arch;
        of_quant(&c, k[i].quant);
        if (!CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s: %s", k[i].name, p.why)) continue;
        for (t = 0; t < (int)(sizeof tokens / sizeof *tokens); t++) {
            const moek_selection s = moek_selection_of(&p, tokens[t], MOEK_FUSE_NONE);
            CHECK((s.up->arch && s.down->arch) || (MOEK_PLAIN_IS_WIDE_ && tokens[t] <= 8),
                  "%s, %d rows an expert: %s and %s are taken", k[i].name, tokens[t], s.up->name, s.down->name);
        }
    }
}
