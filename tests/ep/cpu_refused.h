/* cpu_refused.h -- a part of test_ep.c, which includes it once: what is refused, own experts. */
#define EXPLAINS(change, words) do { \
        moek_config layer_ = c; \
        moek_ep_config g_ = g; \
        char text_[4000]; \
        g_.layer = &layer_; \
        change; \
        moek_ep_explain(&g_, text_, sizeof text_); \
        CHECK(strstr(text_, words) != NULL, "%s: explain says: %s", #change, text_); \
        CHECK((moek_ep_window_size(&g_) > 0) == (strstr(text_, "window") != NULL), "%s: window size", #change); \
    } while (0)

static void test_selection(void)
{
    moek_experts own = { "mine", MOEK_STANDARD, MOEK_NOOP, 0, NULL, NULL, NULL, NULL };
    moek_ep_config g;
    moek_config c;
    memset(&g, 0, sizeof g);
    memset(&c, 0, sizeof c);
    c.hidden = 7168; c.inter = 2048; c.experts = 256; c.topk = 8; c.quant = FORMAT_BLOCKED; c.act = MOEK_SILU;
    c.max_tokens = 128;
    g.ranks = 4;
    EXPLAINS((void)0, "low_latency: taken");
    EXPLAINS((void)0, "alltoall: not asked, a better one was taken");
    EXPLAINS((void)0, "4 ranks, in host memory, 256 experts (64 here)");
    EXPLAINS(layer_.max_tokens = 4096, "low_latency: for up to 256 tokens a rank, not 4096");
    EXPLAINS(layer_.max_tokens = 4096, "alltoall: taken");
    EXPLAINS(layer_.max_tokens = 4096; layer_.chunk_tokens = 64, "low_latency: taken");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2, "alltoall: 8 slots reach 100 % of 2 ranks");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2, "allgather: taken");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2; g_.max_rows = 5000, "alltoall: taken");
    EXPLAINS(g_.kind = MOEK_EP_ALLGATHER, "low_latency: not demanded");
    EXPLAINS(g_.kind = MOEK_EP_ALLGATHER, "allgather: taken");
    EXPLAINS(g_.kind = MOEK_EP_LOW_LATENCY; layer_.max_tokens = 300, "low_latency: taken");
    EXPLAINS(layer_.experts_impl = &own, "low_latency: experts mine take standard format");
    EXPLAINS(layer_.experts_impl = &own; g_.combine = MOEK_EP_EXACT, "alltoall: experts mine add up by themselves");
    EXPLAINS(layer_.format = MOEK_BATCHED; g_.kind = MOEK_EP_ALLTOALL, "alltoall: layer.format is MOEK_BATCHED");
    EXPLAINS(g_.ranks = 0, "rank is 0 of 0 ranks");
    EXPLAINS(g_.rank = 4, "rank is 4 of 4 ranks");
    EXPLAINS(g_.ranks = 65, "rank is 0 of 65 ranks");
    EXPLAINS(g_.layer = NULL, "layer is NULL");
    EXPLAINS(g_.kind = 9, "kind is 9");
    EXPLAINS(g_.combine = 9, "combine is 9");
    EXPLAINS(g_.placement = 9, "placement is 9");
    EXPLAINS(g_.handles = 3, "handles is 3; 1 or 2");
    EXPLAINS(g_.timeout_ms = -1, "timeout_ms -1");
    EXPLAINS(g_.transport = 3, "transport is 3; MOEK_EP_HOST or MOEK_EP_GPU");
    if (!MEM_CUDA) EXPLAINS(g_.transport = MOEK_EP_GPU, "compiled without nvcc");
    EXPLAINS(layer_.hidden = 0, "config.hidden is 0");
    EXPLAINS(layer_.quant = 77, "config.quant is 77");
    EXPLAINS(layer_.max_tokens = 100000000, "overflow 31 bits");
    CHECK(moek_ep_explain(NULL, NULL, 0) > 0 && !moek_ep_window_size(NULL), "explain of NULL");
    {
        const int32_t owner[256] = { 0, 1, 2, 4 };
        EXPLAINS(g_.owner = owner, "owner[3] is 4; ranks are 0 to 3");
    }
}

/* What the exchange rests on: no layer of a group may differ in it. */
static int plan_rests_on(const char *field)
{
    static const char *const all[] = {
        "hidden", "experts", "topk", "shared_slots", "quant", "dtype", "ue8m0", "router_weight_on_input",
        "physical_experts", "max_rows_per_expert", "chunks of a run (max_tokens by chunk_tokens)"
    };
    int i, is = 0;
    for (i = 0; i < (int)(sizeof all / sizeof *all); i++) is |= !strcmp(field, all[i]);
    return is;
}
/* A plan that is made later has the fields that ranks compared; with mixed_layers, those that the exchange rests on. */
static void test_plan_field(int i, int mixed)
{
    const ep_field *const f = &ep_fields[i];
    moek_ep_config g;
    moek_config layer, c;
    moek_plan plan;
    moek_ep ep;
    void *base[1];
    size_t size;
    char words[80];
    memset(&g, 0, sizeof g);
    g.ranks = 1; g.kind = MOEK_EP_ALLTOALL; g.transport = MOEK_EP_HOST; g.mixed_layers = mixed;
    ep_fields_layer(f->layer, &g, &layer);
    g.layer = &layer;
    size = moek_ep_window_size(&g);
    base[0] = memset(mem_alloc(0, size), 0, size);
    if (CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "%s: %s", f->name, ep.why)) {
        c = layer;
        moek_ep_join(&ep, &c);
        CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s: %s", f->name, plan.why);
        ep_fields_change(i, &g, &c);
        snprintf(words, sizeof words, "%s ", strcmp(f->name, "chunks of a run (max_tokens by chunk_tokens)")
                                             ? f->name : "max_tokens 65 by chunk_tokens 1, 65 chunks");
        if (mixed && !plan_rests_on(f->name))
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s, mixed layers: %s", f->name, plan.why);
        else
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, words) &&
                  strstr(plan.why, "(the group was opened with "), "%s: %s", f->name, plan.why);
    }
    mem_free(0, base[0]);
}
static void test_plan_fields(void)
{
    int i;
    for (i = 0; i < 2 * EP_FIELDS; i++) if (ep_fields[i / 2].plan) test_plan_field(i / 2, i % 2);
}

/* What means the same is no mismatch: a default that one rank says. */
static void test_same(void)
{
    int i;
    for (i = 0; i < 8; i++) {
        static const int layers[8] = { EP_OAI, EP_PLAIN, EP_PLAIN, EP_GROUPS, EP_FP8, EP_FEW, EP_PLAIN, EP_PLAIN };
        ep_fields_rank rank[EP_FIELDS_RANKS];
        void *window[2 * EP_FIELDS_RANKS + 1];
        int r;
        memset(rank, 0, sizeof rank);
        for (r = 0; r < EP_FIELDS_RANKS; r++) {
            moek_ep_config *g = &rank[r].group;
            moek_config *c = &rank[r].config;
            g->rank = r; g->ranks = EP_FIELDS_RANKS; g->transport = MOEK_EP_HOST; g->timeout_ms = 5000;
            ep_fields_layer(layers[i], g, c);
            if (i == 4) c->ue8m0 = 1;
            if (r != EP_FIELDS_ODD) continue;
            if (i == 0) { c->limit = 7; c->alpha = 1.702f; c->beta = 1; c->up_layout = MOEK_UP_INTERLEAVED; }
            if (i == 1) { c->scale = 1; c->dtype = MOEK_DTYPE_BF16; c->up_layout = MOEK_UP_GATE_UP; c->groups = 1; }
            if (i == 2) { c->physical_experts = 12; c->chunk_tokens = 6; c->logits_dtype = MOEK_DTYPE_F32; }
            if (i == 3) { c->router_eps = 1e-20f; c->group_score = MOEK_GROUP_SCORE_TOP2; }
            if (i == 4) c->ue8m0 = 512;
            if (i == 5) c->max_rows_per_expert = 18;
            if (i == 6) { c->beta = -0.0f; c->exclude = MOEK_BACKENDS_GPU; c->batch_invariant = 0; }
            if (i == 7) { g->max_rows = 18; g->handles = 1; g->max_tokens = 6; }
        }
        ep_fields_open_all(rank, window, 0);
        for (r = 0; r < EP_FIELDS_RANKS; r++)
            CHECK(rank[r].status == MOEK_OK, "the same, %d: rank %d: %s", i, r, rank[r].ep.why);
        for (r = 0; r < 2 * EP_FIELDS_RANKS + 1; r++) mem_free(0, window[r]);
    }
}

/* Configs that no plan has looked at, with some fields as large or small as they can be: sizes that are right or 0, and
 * a sentence.  (To run with -fsanitize=undefined,address.) */
static void spoil(moek_ep_config *g, moek_config *c)
{
    static const int extremes[] = { INT_MIN, INT_MIN + 1, -129, -1, 0, 1, 2, 3, 16, 32, 64, 127, 1024, 65535, 65536,
                                    65537, 1 << 20, (1 << 24) - 8, 1 << 24, (1 << 24) + 1, 1 << 30, INT_MAX - 127,
                                    INT_MAX - 1, INT_MAX };
    static const float floats[] = { -1, 0, 1e-38f, 3.4e38f, INFINITY, NAN };
    int *const ints[] = {
        &c->hidden, &c->inter, &c->experts, &c->topk, &c->quant, &c->act, &c->max_tokens, &c->dtype, &c->up_layout,
        &c->ue8m0, &c->router_weight_on_input, &c->routing, &c->groups, &c->topk_groups, &c->logits_dtype,
        &c->shared_slots, &c->local_experts, &c->physical_experts, &c->max_replicas, &c->chunk_tokens, &c->format,
        &c->max_rows_per_expert, &c->batch_invariant, &c->weight_layout, &c->group_score, &c->up_scales,
        &c->inter_offset, &c->max_tokens, &c->hidden, &g->rank, &g->ranks, &g->kind, &g->combine, &g->placement,
        &g->max_tokens, &g->max_rows, &g->handles, &g->timeout_ms, &g->max_tokens, &g->ranks
    };
    float *const of[] = { &c->alpha, &c->beta, &c->limit, &c->scale, &c->shared_weight, &c->router_eps };
    int n;
    for (n = 1 + rng_below(4); n; n--)
        if (rng_below(6)) *ints[rng_below((int)(sizeof ints / sizeof *ints))] = extremes[rng_below(24)];
        else *of[rng_below(6)] = floats[rng_below(6)];
}
static void test_extremes(void)
{
    int i, opened_ = 0, refused = 0;
    for (i = 0; i < (quick ? 8000 : 40000); i++) {
        moek_ep_config g;
        moek_config c;
        moek_plan plan;
        moek_ep ep;
        char text[4000];
        void *base[1];
        double least;
        size_t size;
        memset(&g, 0, sizeof g);
        g.ranks = 1 + rng_below(8); g.kind = rng_below(4); g.combine = rng_below(3); g.transport = MOEK_EP_HOST;
        ep_fields_layer(rng_below(EP_CHUNKS), &g, &c);
        spoil(&g, &c);
        g.layer = &c;
        size = moek_ep_window_size(&g);
        moek_ep_explain(&g, text, sizeof text);
        CHECK((size > 0) == (strstr(text, "\nwindow ") != NULL), "%lu bytes, and explain says: %s", (unsigned long)size,
              text);
        refused += !size;
        if (!size) continue;
        least = g.max_tokens ? g.max_tokens : c.chunk_tokens && c.chunk_tokens < c.max_tokens ? c.chunk_tokens
              : c.max_tokens;                          /* of a token: a row of T that comes back for it */
        least *= 2.0 * c.hidden * (g.handles ? g.handles : 1);
        CHECK((double)size >= least && size % 4096 == 0, "%lu bytes, at least %.0f: %s", (unsigned long)size, least,
              text);
        if (size > 1 << 22) continue;
        g.ranks = 1; g.rank = 0;                       /* (a group of one: nobody has to come) */
        if ((size = moek_ep_window_size(&g)) == 0 || size > 1 << 22) continue;
        base[0] = memset(mem_alloc(0, size), 0, size);
        if (CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "%s", ep.why)) {
            moek_ep_join(&ep, &c);
            opened_++;
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK || plan.why[0], "refused without a sentence");
        }
        mem_free(0, base[0]);
    }
    CHECK(opened_ > 1000 && refused > 1000, "%d configs open, %d do not", opened_, refused);
}

/* Ranks that were given different things: all of them learn it, at open. */
static void mismatch(void (*change)(rank *), const char *words)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_REDUCED, 3, FORMAT_PLAIN);
    int r, said = 0;
    s->group.timeout_ms = 5000;
    say(s, words);
    new_windows(s);
    change(&s->rank[2]);
    each_rank(s, open_rank);
    for (r = 0; r < 3; r++) {
        const moek_status status = s->rank[r].status;
        CHECK(status == MOEK_E_MISMATCH, "%s: rank %d: %s: %s", s->what, r, moek_status_name(status),
              s->rank[r].ep.why);
        CHECK(moek_run(&s->rank[r].plan, &s->rank[r].args[0], NULL) == MOEK_E_ARGUMENT, "%s: runs", s->what);
        said += strstr(s->rank[r].ep.why, words) != NULL;
    }
    CHECK(said == 3, "%s: not all say it: %s / %s / %s", s->what, s->rank[0].ep.why, s->rank[1].ep.why,
          s->rank[2].ep.why);
    forget(s);
}
static void other_combine(rank *r) { r->group.combine = MOEK_EP_REDUCED_F32; }
static void other_rows(rank *r) { r->group.max_rows = 3; }
static void other_placement(rank *r) { r->group.placement = MOEK_EP_ROUND_ROBIN; }

/* A rank that never comes. */
static void test_absent(void)
{
    scene *s = scene_new(MOEK_EP_LOW_LATENCY, MOEK_EP_REDUCED, 4, FORMAT_PLAIN);
    int r;
    s->group.timeout_ms = SOON;
    say(s, "a rank does not open");
    new_windows(s);
    each_rank_but(s, 4, open_rank);
    for (r = 0; r < 4; r++) {
        const moek_ep *ep = &s->rank[r].ep;
        if (r == 2) continue;
        CHECK((s->rank[r].status == MOEK_E_TIMEOUT || s->rank[r].status == MOEK_E_ABORTED) &&
              strstr(ep->why, "rank 2 did not answer within 700 ms") && !ep->open, "%s: rank %d: %s", s->what, r,
              ep->why);
    }
    forget(s);
}

static int again_on(scene *s)                          /* with windows that are in use */
{
    moek_ep ep;
    moek_ep_config g = s->group;
    g.layer = &s->config;
    return CHECK(moek_ep_open(&ep, &g, s->base) == MOEK_E_ARGUMENT && strstr(ep.why, "not zeroed"), "opened twice: %s",
                 ep.why);
}
static void test_refused(void)
{
    scene *s = scene_new(MOEK_EP_LOW_LATENCY, MOEK_EP_REDUCED, 2, FORMAT_PLAIN);
    rank *k = &s->rank[0];
    moek_config c;
    moek_plan plan;
    moek_weights w;
    moek_step step;
    moek_ep ep;
    moek_ep_config g;
    void *base[2];
    mismatch(other_combine, "combine: rank");
    mismatch(other_rows, "max_rows: rank");
    mismatch(other_placement, "the owners of experts");
    whole_of(s);
    if (!run_one_rank(s) || !planned(s)) { forget(s); return; }
    again_on(s);
    g = s->group; g.layer = &s->config;
    CHECK(moek_ep_open(&ep, NULL, s->base) == MOEK_E_ARGUMENT && moek_ep_open(NULL, &g, s->base) == MOEK_E_ARGUMENT &&
          moek_ep_open(&ep, &g, NULL) == MOEK_E_ARGUMENT, "open of NULL");
    base[0] = NULL; base[1] = s->base[1];
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "base[0] is NULL"), "%s", ep.why);
    base[0] = (char *)s->base[0] + 8;
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "base[0] is not aligned"), "%s", ep.why);
    c = s->config;
    CHECK(moek_ep_join(&ep, &c) == MOEK_E_ARGUMENT && moek_ep_join(NULL, &c) == MOEK_E_ARGUMENT &&
          moek_ep_join(&k->ep, NULL) == MOEK_E_ARGUMENT, "join of what is not open");
#define NO_PLAN(change, words) \
    c = s->config; moek_ep_join(&k->ep, &c); change; \
    CHECK(moek_plan_init(&plan, &c) != MOEK_OK && strstr(plan.why, words), "%s: %s", #change, plan.why)
    NO_PLAN((c.backend = 0, c.exclude = 0), "the group is in host memory");
    NO_PLAN(c.hidden = 256, "hidden 256 (the group was opened with 128)");
    NO_PLAN(c.topk = 2, "topk 2 (the group was opened with 3)");
    NO_PLAN(c.quant = format_of_t(MOEK_DTYPE_FP16), "dtype");
    NO_PLAN(c.local_experts = 3, "local_experts 3");
    NO_PLAN(c.max_tokens = 100, "low_latency takes 6 tokens a rank, config.max_tokens is 100: set chunk_tokens");
#undef NO_PLAN
    w = k->w;
    w.expert_map = s->owner;
    plan = k->plan;
    CHECK(moek_plan_bind(&plan, &w) == MOEK_E_ARGUMENT && strstr(plan.why, "knows where experts are"), "%s", plan.why);
    k->args[0].handle = 1;
    CHECK(run_rank(k) == MOEK_E_ARGUMENT && strstr(k->why, "opened with handles = 1"), "handle 1: %s", k->why);
    k->args[0].handle = 0;
    CHECK(moek_begin(&k->plan, &k->args[0], &step) == MOEK_OK && moek_route(&step, NULL) == MOEK_OK &&
          moek_prepare_receive(&step, NULL) == MOEK_E_ARGUMENT && strstr(k->why, "where prepare_send comes next"),
          "receive before send: %s", k->why);
    CHECK(moek_prepare_send(&step, NULL) == MOEK_OK, "send: %s", k->why);
    CHECK(run_rank(k) == MOEK_E_ARGUMENT && strstr(k->why, "(prepare_receive comes next)"), "a second one: %s", k->why);
    CHECK(moek_ep_poll(&k->ep, NULL) == MOEK_OK && moek_ep_poll(NULL, NULL) == MOEK_E_ARGUMENT, "poll");
    forget(s);
}

/* A run that a group refuses has written nothing, of a caller's arrays or of the workspace: nor has a step that was
 * begun before. */
enum { NO_HANDLE, UNDER_WAY, ABORTED, CLOSED, OTHER_DEVICE, REFUSALS };
static moek_status send_only(rank *r)
{
    moek_step step;
    moek_status status = moek_begin(&r->plan, &r->args[0], &step);
    if (status == MOEK_OK) status = moek_route(&step, NULL);
    return status == MOEK_OK ? moek_prepare_send(&step, NULL) : status;
}
static void refuses(scene *s, int how)
{
    static const moek_status statuses[] = { MOEK_E_ARGUMENT, MOEK_E_ARGUMENT, MOEK_E_ABORTED, MOEK_E_ARGUMENT,
                                            MOEK_E_ARGUMENT };
    static const char *const words[] = { "opened with handles = 1", "(prepare_receive comes next)",
                                         "moek_ep_abort was called", "the group is not open",
                                         "the group was opened on 3" };
    rank *r = &s->rank[0];
    const size_t slots = (size_t)(r->tokens * TOPK), y = 2 * HIDDEN * (size_t)r->tokens;
    const size_t n[] = { 4 * slots, 4 * slots, y, r->args[0].workspace_size, 4 * EXPERTS };
    unsigned char *const ids = guarded(n[0], LAYER_POISON), *const weights = guarded(n[1], LAYER_POISON);
    unsigned char *const at[] = { ids, weights, r->y, r->workspace[0], (unsigned char *)r->load };
    unsigned char *before[5];
    moek_args a = r->args[0];
    moek_step begun, step;
    int i, k, written = 0;
    a.topk_ids = (int32_t *)(void *)ids; a.topk_weights = (float *)(void *)weights;
    CHECK(moek_begin(&r->plan, &a, &begun) == MOEK_OK, "%s: %s", s->what, r->why);
    if (how == NO_HANDLE) a.handle = begun.args.handle = 1;
    if (how == UNDER_WAY) ran(s, send_only);
    if (how == ABORTED) moek_ep_abort(&r->ep);
    if (how == CLOSED) r->ep.open = 0;
    if (how == OTHER_DEVICE) r->ep.device = 3;
    for (i = 0; i < 5; i++) before[i] = (unsigned char *)memcpy(malloc(n[i]), at[i], n[i]);
    for (i = 0; i < 4; i++) {
        moek_status status;
        snprintf(r->why, sizeof r->why, "nothing");
        status = i == 0 ? moek_run(&r->plan, &a, NULL) : i == 1 ? moek_begin(&r->plan, &a, &step)
               : i == 2 ? moek_route(&begun, NULL) : (a.tokens = 0, moek_run(&r->plan, &a, NULL));
        CHECK(status == statuses[how] && strstr(r->why, words[how]), "%s, %d: %s: %s", s->what,
              i, moek_status_name(status), r->why);
        for (k = 0; k < 5; k++) written |= memcmp(before[k], at[k], n[k]) != 0;
    }
    CHECK(!written, "%s: something was written", s->what);
    if (how == CLOSED) r->ep.open = 1;
    if (how == OTHER_DEVICE) r->ep.device = -1;
    for (i = 0; i < 5; i++) free(before[i]);
    drop(ids); drop(weights);
}
static void test_refused_first(void)
{
    static const char *const names[] = { "handle 1 of 1", "one under way", "aborted", "closed", "another device" };
    int kind, how;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (how = 0; how < REFUSALS; how++) {
            scene *s = scene_new(kind, MOEK_EP_REDUCED, 2, FORMAT_PLAIN);
            s->options = LAYER_LOGITS;
            s->config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
            say(s, names[how]);
            whole_of(s);
            if (planned(s)) refuses(s, how);
            forget(s);
        }
}

/* ue8m0: a byte a scale on the wire, four to a word; and the group's layers all have it, or none. */
static void test_packed_scales(void)
{
    int ue8m0;
    for (ue8m0 = 0; ue8m0 < 2; ue8m0++) {
        scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED);
        moek_config wide = s->config, c;
        moek_ep_config g = s->group;
        moek_plan plan;
        char text[2048];
        s->config.ue8m0 = wide.ue8m0 = ue8m0;
        wide.hidden = 640;
        g.layer = &wide;
        moek_ep_explain(&g, text, sizeof text);
        CHECK(strstr(text, ue8m0 ? ", 648 bytes a row" : ", 660 bytes a row"), "ue8m0 %d: %s", ue8m0, text);
        whole_of(s);
        if (run_one_rank(s) && planned(s)) {
            c = s->config;
            moek_ep_join(&s->rank[0].ep, &c);
            c.ue8m0 = !ue8m0;
            CHECK(moek_plan_init(&plan, &c) != MOEK_OK && strstr(plan.why, "ue8m0"), "ue8m0 %d: %s", ue8m0, plan.why);
        }
        forget(s);
    }
}

/* Every format: a row on the wire is as long as the format says, codes and scales; what arrives has the bits of one
 * rank.  hidden: scales of bytes fill words, or not. */
static int wire_bytes(const moek_format *f, int hidden, int ue8m0)
{
    const size_t h = (size_t)hidden, scales = moek_scale_bytes(&f->x_scale, 1, h) / (ue8m0 ? 4 : 1);
    if (!format_own_scales(f)) return 2 * hidden;       /* T, or maybe T */
    return (int)(moek_element_bytes(f->x, h) + (scales + 3) / 4 * 4);
}
static void wire_of(const flavour *is, int kind, int hidden)
{
    scene *s = scene_new(kind, MOEK_EP_EXACT, 3, is->f->number);
    char text[2048], words[40];
    moek_ep_config g = s->group;
    s->config.hidden = hidden; s->config.ue8m0 = is->ue8m0; s->config.block = format_block(is->f, kind);
    s->options = is->options;
    g.layer = &s->config;
    moek_ep_explain(&g, text, sizeof text);
    snprintf(words, sizeof words, ", %d bytes a row", wire_bytes(is->f, hidden, is->ue8m0));
    CHECK(strstr(text, words) != NULL, "%s, hidden %d: not%s: %s", s->what, hidden, words, text);
    snprintf(words, sizeof words, "hidden %d", hidden);
    say(s, words);
    if (is->ue8m0) say(s, "ue8m0");
    give_tokens(s, UNEVEN);
    whole_of(s);
    if (!by_rank(s)) checked(s, run_rank);
    forget(s);
}
static void test_wire(void)
{
    static const int hidden[] = { 128, 144, 176 };
    flavour all[3 * FORMATS];
    const int n = flavours(all);
    int i, kind, k;
    for (i = 0; i < n; i++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
            if (sample && quick && (i / 3 + kind) % 3) continue;       /* each flavour once */
            for (k = 0; k < 3; k++)
                if (!fewer || (i + kind + k) % 3 == 0) wire_of(&all[i], kind, format_round_up(all[i].f, hidden[k]));
        }
}

/* A static scale of x that ranks do not share: refused when they open; and in host memory a plan that has another. */
static void other_scale(rank *r) { r->group.x_scale = 0.25f; }
static void test_static_scale(void)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_EXACT, 3, format_nth(format_x_second, 0));
    moek_config c;
    moek_ep_config g;
    char text[2048];
    float other, given;
    int r;
    whole_of(s);
    s->group.timeout_ms = 5000;
    s->group.x_scale = given = *s->whole.w.x_scale;
    if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
        compare(s);
        other = nextafterf(given, 1);
        for (r = 0; r < 3; r++) s->rank[r].plan.weights.x_scale = &other;
        each_rank(s, run_rank);
        for (r = 0; r < 3; r++)
            CHECK(s->rank[r].status == MOEK_E_ARGUMENT && strstr(s->rank[r].why, "the group was opened with x_scale"),
                  "rank %d: %s: %s", r, moek_status_name(s->rank[r].status), s->rank[r].why);
    }
    new_windows(s);
    other_scale(&s->rank[1]);
    each_rank(s, open_rank);
    for (r = 0; r < 3; r++)
        CHECK(s->rank[r].status == MOEK_E_MISMATCH && strstr(s->rank[r].ep.why, "x_scale: rank ") &&
              strstr(s->rank[r].ep.why, "0.25"), "rank %d: %s: %s", r, moek_status_name(s->rank[r].status),
              s->rank[r].ep.why);
    g = s->group; c = s->config; g.layer = &c;
    c.quant = FORMAT_PLAIN;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "x of bf16 has no static scale: leave it 0"), "%s", text);
    c.quant = s->config.quant; g.x_scale = NAN;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "it must be finite"), "%s", text);
    forget(s);
}

/* ---- own experts ------------------------------------------------------------------------------------------------- */

/* They add up by themselves: out [rows] = sum over k here of weight * x; and want x unquantized. */
static moek_status sum_apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const int slots = step->plan->slots, hidden = step->plan->config.hidden;
    const uint16_t *x = (const uint16_t *)step->a;
    int row, k, j;
    (void)self; (void)stream;
    for (row = 0; row < step->rows; row++) {
        float weight = 0;
        for (k = 0; k < slots; k++)
            if (step->expert_ids[row * slots + k] >= 0) weight += step->expert_weights[row * slots + k];
        for (j = 0; j < hidden; j++) {
            const size_t i = (size_t)row * (size_t)hidden + (size_t)j;
            ((uint16_t *)step->out)[i] = ref_to_t(weight * ref_get_t(x, i, MOEK_DTYPE_BF16), MOEK_DTYPE_BF16);
        }
    }
    return step->a_scale ? MOEK_E_ARGUMENT : MOEK_OK;
}
static void test_own_experts(void)
{
    static const moek_experts own = { "sum", MOEK_STANDARD, MOEK_NOOP, 1, NULL, NULL, NULL, sum_apply };
    int kind;
    for (kind = MOEK_EP_ALLTOALL; kind <= MOEK_EP_ALLGATHER; kind++) {
        scene *s = scene_new(kind, MOEK_EP_REDUCED, 4, FORMAT_BLOCKED);
        int t, k, j, r, far = 0;
        say(s, "own experts");
        give_tokens(s, UNEVEN);
        whole_of(s);
        give_ids(s, SOME_MISSING);
        s->config.experts_impl = &own;
        if (planned(s) && ran(s, run_rank)) {
            for (r = 0; r < 4; r++) {
                for (t = 0; t < s->tokens[r]; t++) {
                    const int row = s->rank[r].first + t;
                    double weight = 0;
                    for (k = 0; k < TOPK; k++)
                        if (s->whole.args.topk_ids[row * TOPK + k] >= 0)
                            weight += s->whole.args.topk_weights[row * TOPK + k];
                    for (j = 0; j < HIDDEN; j++) {
                        const double want = weight * ref_get_t(s->whole.args.x, (size_t)(row * HIDDEN + j),
                                                               MOEK_DTYPE_BF16);
                        const double got = ref_get_t(s->rank[r].y, (size_t)(t * HIDDEN + j), MOEK_DTYPE_BF16);
                        far += fabs(got - want) > fabs(want) / 100;
                    }
                }
            }
            CHECK(!far, "%s: %d entries", s->what, far);
        }
        forget(s);
    }
}
