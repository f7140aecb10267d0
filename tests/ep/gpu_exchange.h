/* gpu_exchange.h -- a part of test_ep_gpu.c, which includes it once: exchange of rows in all formats and sizes, tiled
 * weights. */
static int gpus;

static void spoil_inputs(scene *s)                     /* Inf and NaN, in some group of every third token */
{
    const size_t h = (size_t)s->config.hidden;
    uint16_t *x = (uint16_t *)(size_t)s->whole.args.x;
    int t;
    for (t = 0; t < s->total; t += 3) {
        x[(size_t)t * h + 5] = 0x7f80;
        x[(size_t)t * h + 130] = 0xffc1;
        x[(size_t)t * h + h - 1] = 0xff80;
    }
}
/* Of each format_of_kind() every second case, and so of each kind in the quick set. */
static int spoiled_in_turn(int i) { return (i + i / 4) % 2; }
static void exchange(int peers, int combine, int ranks, int quant, int pattern, int hidden, int spoiled)
{
    const moek_format *const f = moek_format_of(quant);
    scene *s = scene_new(peers, combine, ranks, quant, patterns[pattern]);
    int turn;
    s->bare = 1;
    s->config.hidden = hidden;
    s->config.ue8m0 = f->ue8m0 && pattern % 2;
    s->gap = (pattern + combine) % 2 ? 8 * (size_t)(1 + combine + pattern) : 0;
    s->group.placement = pattern % 2;
    s->options = f->static_x && pattern % 2 ? LAYER_STATIC : 0;
    if (!format_dtype(f) && pattern % 3 == 1) s->config.dtype = MOEK_DTYPE_FP16;
    if (pattern == HOT_EXPERT && combine != MOEK_EP_REDUCED) s->config.max_rows_per_expert = 5;
    if (staged(s, pattern)) {
        if (spoiled) {
            spoil_inputs(s);
            hand_out(s);
        }
        for (turn = 0; turn < 3 && exchanged(s); turn++) renew(s);
        alive(s);
    }
    forget(s);
}
/* A slot that does not count is never multiplied: whatever its weight is, y has the same bits.  Such a slot has no
 * expert or, low_latency, one that had no room for it. */
static void without(int combine, int dropped, float bad)
{
    const int quant = combine % 2 ? format_of_t(MOEK_DTYPE_FP16) : FORMAT_BLOCKED;
    scene *s = scene_new(1, combine, 3, quant, dropped ? "no room" : "no expert");
    int i, n;
    s->bare = 1;
    if (dropped) s->config.max_rows_per_expert = 3;
    if (staged(s, dropped ? HOT_EXPERT : SOME_MISSING) && exchanged(s)) {
        float *const weights = s->whole.args.topk_weights;
        int32_t *const ids = s->whole.args.topk_ids;
        n = s->total * TOPK;
        for (i = 0; i < n; i++)                        /* (of HOT_EXPERT's tokens the first three have room) */
            if (dropped ? i % TOPK == 0 && i >= 3 * TOPK : ids[i] < 0) weights[i] = bad;
        hand_out(s);
        if (prepared(s) && finalized(s)) {             /* (what experts gave is still there) */
            sync_all(s);
            same_y(s, "the weight of a slot without an expert");
        }
        alive(s);
    }
    forget(s);
}
static void test_slots_without(void)
{
    int combine, bad;
    for (moved = 0; moved < 2; moved++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
            for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
                for (bad = 0; bad < 2; bad++) {
                    if (quick_set && (bad + kind + combine + moved) % 2) continue;
                    without(combine, 0, bad ? INFINITY : NAN);
                    if (kind == MOEK_EP_LOW_LATENCY) without(combine, 1, bad ? INFINITY : NAN);
                }
    kind = MOEK_EP_LOW_LATENCY;
    moved = 0;
}

/* A run that a group refuses has written nothing, of a caller's arrays or of the workspace. */
enum { NO_HANDLE, UNDER_WAY, ABORTED, CLOSED, REFUSALS };
static void refused_first(int how)
{
    static const char *const names[] = { "handle 1 of 1", "one under way", "aborted", "closed" };
    static const char *const words[] = { "opened with handles = 1", "has not ended", "moek_ep_abort was called",
                                         "the group is not open" };
    scene *s = scene_new(1, MOEK_EP_REDUCED, 2, FORMAT_PLAIN, names[how]);
    side *k = &s->gpu[0];
    moek_step begun, step;
    int i;
    s->bare = 1;
    map_experts(s);
    if (staged(s, UNIFORM)) {
        const size_t n = k->args.workspace_size, y = y_row(s) * (size_t)s->tokens[0];
        char *const before = (char *)malloc(n), *const after = (char *)malloc(n);
        int32_t load[2][PHYSICAL];
        moek_args a = k->args;
        on(k);
        CHECK(moek_begin(&k->plan, &a, &begun) == MOEK_OK, "%s: %s", s->what, k->why);
        if (how == NO_HANDLE) a.handle = begun.args.handle = 1;
        if (how == UNDER_WAY)
            CHECK(each(s, s->gpu, NULL) && each(s, s->gpu, moek_route) && each(s, s->gpu, moek_prepare_send), "sends");
        if (how == ABORTED) moek_ep_abort(&k->ep);
        if (how == CLOSED) k->ep.open = 0;
        sync_all(s);
        get(k, before, a.workspace, n);
        get(k, load[0], k->w.expert_load, sizeof load[0]);
        for (i = 0; i < 4; i++) {
            moek_status status;
            snprintf(k->why, sizeof k->why, "nothing");
            status = i == 0 ? moek_run(&k->plan, &a, (moek_stream)k->stream) : i == 1 ? moek_begin(&k->plan, &a, &step)
                   : i == 2 ? moek_route(&begun, (moek_stream)k->stream)
                            : (a.tokens = 0, moek_run(&k->plan, &a, (moek_stream)k->stream));
            CHECK(status == (how == ABORTED ? MOEK_E_ABORTED : MOEK_E_ARGUMENT) && strstr(k->why, words[how]),
                  "%s, %d: %s: %s", s->what, i, moek_status_name(status), k->why);
        }
        sync_all(s);
        get(k, after, a.workspace, n);
        get(k, load[1], k->w.expert_load, sizeof load[1]);
        CHECK(!memcmp(before, after, n) && !memcmp(load[0], load[1], sizeof load[0]), "%s: something was written",
              s->what);
        get(k, after, a.y, y);
        for (i = 0; i < (int)y && (unsigned char)after[i] == LAYER_POISON; i++) { }
        CHECK(i == (int)y, "%s: y was written", s->what);
        k->ep.open = 1;
        free(before); free(after);
    }
    forget(s);
}
static void test_refused_first(void)
{
    int how;
    for (moved = 0; moved < 2; moved++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
            for (how = 0; how < REFUSALS; how++) refused_first(how);
    kind = MOEK_EP_LOW_LATENCY;
    moved = 0;
}

/* What ranks compare when they open.  (Of rows that are moved the harness must know how many ranks there are; memory of
 * a GPU is the host's only where it is emulated.) */
static void test_fields(void)
{
    side context[EP_FIELDS_RANKS];
    ep_fields_place place;
    int i;
    memset(context, 0, sizeof context);
    memset(&place, 0, sizeof place);
    place.gpu = 1;
    mem_must(cudaHostAlloc((void **)&place.report, MOEK_EP_REPORT * EP_FIELDS_RANKS, cudaHostAllocPortable));
    for (i = 0; i < EP_FIELDS_RANKS; i++) {
        context[i].group.rank = i;
        place.context[i] = &context[i];
    }
    /* (A rank in host memory among others reaches what a strict emulator closes.) */
    for (i = 0; i < EP_EMULATED + (!MEM_CUDA && !getenv("EMU_STRICT")); i++) ep_fields_test(i, &place);
    place.move = cross;
    moved = 1;
    crossing.ranks = EP_FIELDS_RANKS;
    cross_in_threads(EP_FIELDS_RANKS);
    for (i = 0; i < EP_FIELDS; i++)
        if (i != EP_EMULATED && strcmp(ep_fields[i].name, "ranks")) ep_fields_test(i, &place);
    cross_in_threads(0);
    moved = 0;
    mem_must(cudaFreeHost(place.report));
}

/* Replicas and counters, and owners by a table. */
static void map_once(int combine, int ranks, int quant, int pattern)
{
    scene *s = scene_new(gpus >= ranks ? ranks : 1, combine, ranks, quant, "replicas");
    int64_t load[2][PHYSICAL];
    int turn, r;
    s->bare = 1;
    map_experts(s);
    if (staged(s, pattern)) {
        for (turn = 0; turn < 3 && exchanged(s); turn++) renew(s);
        alive(s);
        for (r = 0; r < ranks; r++) {
            get(&s->host[r], load[0], s->host[r].w.expert_load, sizeof load[0]);
            get(&s->gpu[r], load[1], s->gpu[r].w.expert_load, sizeof load[1]);
            CHECK(!memcmp(load[0], load[1], sizeof load[0]), "%s: rank %d: counters of experts", s->what, r);
        }
    }
    forget(s);
}
static void test_maps(void)
{
    static const int sizes[] = { 2, 4, 8, 3, 5 };
    int pattern, i = 0;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (pattern = 0; pattern < PATTERNS; pattern++, i++)
            if (!quick_set || i % 3 == 0) map_once((pattern + kind) % 3, sizes[i % 5], format_of_kind(i), pattern);
    kind = MOEK_EP_LOW_LATENCY;
}
static void test_exchange(void)
{
    static const int sizes[] = { 2, 4, 8, 3, 1 };
    int pattern, i = 0;
    for (pattern = 0; pattern < PATTERNS; pattern++) {
        int combine;
        for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++, i++)
            if (!quick_set || i % 4 % 3 == 0)
                exchange(1, combine, sizes[i % 5], format_of_kind(i), pattern, HIDDEN, spoiled_in_turn(i));
        if (gpus > 1) exchange(2, pattern % 3, 2, format_of_kind(pattern), pattern, HIDDEN, 0);
        if (gpus > 1) exchange(2, pattern % 3, 4, format_of_kind(pattern + 1), pattern, HIDDEN, 0);
        if (gpus > 3) exchange(4, (pattern + 1) % 3, 4, format_of_kind(pattern + 2), pattern, HIDDEN, 0);
    }
    exchange(1, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED, UNIFORM, 7168, 0);
    exchange(1, MOEK_EP_EXACT, 4, FORMAT_PLAIN, TWICE, 7168, 0);
    exchange(1, MOEK_EP_REDUCED_F32, 3, FORMAT_BLOCKED, SOME_MISSING, 8400, 1);   /* beyond what a block does at once */
    exchange(1, MOEK_EP_REDUCED, 2, format_of_t(MOEK_DTYPE_FP16), UNIFORM, 8400, 0);
}

/* The hidden sizes of real models, in each format. */
static void test_sizes(void)
{
    static const int hidden[] = { 2048, 2560, 2880, 3072, 4096, 5120, 6144, 7168, 8192 };
    int i, q;
    for (i = 0; i < 9; i++)
        for (q = 0; q < 4; q++)
            if (MEM_CUDA || (i + q) % 3 == 0)
                exchange(gpus > 1 ? 2 : 1, (i + q) % 3, 2, format_of_kind(q), i % 2 ? SOME_MISSING : UNIFORM, hidden[i],
                         0);
}

/* Every format whose rows travel with scales of their own: the exchange, by each kind, moved or not; and a whole layer.
 * hidden: scales of bytes fill words of four, or not. */
static void layer_of(int quant, int ranks)
{
    scene *s = scene_new(1, MOEK_EP_REDUCED, ranks, quant, "a layer");
    s->group.timeout_ms = 60000;
    if (staged(s, SOME_MISSING) && layered(s)) alive(s);
    forget(s);
}
static void test_formats(void)
{
    static const int hidden[] = { HIDDEN, HIDDEN + 32 };
    int i, k, n = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (!format_own_scales(f) || !format_on_gpu(f)) continue;
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
            for (moved = 0; moved < 2; moved++, n++) {
                for (k = 0; k < 2; k++)
                    if (!quick_set || (n + k) % 2 == 0)
                        exchange(gpus > 1 && n % 2 ? 2 : 1, n % 3, 1 + n % 4, f->number, (n + 3 * k) % PATTERNS,
                                 hidden[k], f->x == MOEK_ELEMENT_E4M3 && n % 4 == 1);
                if (MEM_CUDA || n % 6 == (i + 1) % 6) layer_of(f->number, 2);
            }
    }
    moved = 0;
    kind = MOEK_EP_LOW_LATENCY;
}

/* low_latency has kernels for some hidden sizes: y of an exchange by them or, any, by those for all sizes. */
static uint16_t *y_of_size(int hidden, int quant, int ue8m0, int any, size_t *bytes)
{
    scene *s = scene_new(1, MOEK_EP_REDUCED, 3, quant, any ? "kernels for any size" : "kernels of a size");
    const int fp16 = format_dtype(moek_format_of(quant)) == MOEK_DTYPE_FP16;
    const int listed = !fp16 && hidden == moek_hidden_round_up(hidden);
    uint16_t *y = NULL;
    int r, ok;
    s->bare = 1;
    s->config.hidden = hidden; s->config.ue8m0 = ue8m0;
    rng_seed(13);
    ok = staged(s, SOME_MISSING);
    for (r = 0; r < s->group.ranks && ok; r++) {
        CHECK(s->gpu[r].ep.baked == (listed ? hidden : 0) && !s->host[r].ep.baked, "%s: hidden %d: %d is baked",
              s->what, hidden, s->gpu[r].ep.baked);
        if (any) s->gpu[r].ep.baked = 0;
    }
    if (ok && exchanged(s)) y = y_of(s, s->gpu);
    *bytes = 2 * (size_t)s->total * (size_t)hidden;
    forget(s);
    return y;
}
static void test_baked(void)
{
    static const int hidden[] = {
#define SIZE(h) h,
        MOEK_EACH_HIDDEN(SIZE) 2064
#undef SIZE
    };
    const int quants[] = { FORMAT_BLOCKED, FORMAT_PLAIN, FORMAT_BLOCKED, format_of_t(MOEK_DTYPE_FP16), FORMAT_ROW };
    int i, q;
    for (i = 0; i < (int)(sizeof hidden / sizeof *hidden); i++)
        for (q = 0; q < 5; q++) {
            size_t n, m;
            uint16_t *y, *want;
            if ((!MEM_CUDA && (i + q) % 3) || (q > 2 && i % 4)) continue;      /* (those are baked in part, or not) */
            want = y_of_size(hidden[i], quants[q], q == 2, 1, &n);
            y = y_of_size(hidden[i], quants[q], q == 2, 0, &m);
            CHECK(want && y && n == m && !memcmp(want, y, n), "hidden %d, %s: kernels of that size give other bits",
                  hidden[i], moek_quant_name(quants[q]));
            free(want); free(y);
        }
}

/* The same weights, tiled. */
static int tile(scene *s, side *k)
{
    const size_t n = (size_t)k->ep.local_experts, h = (size_t)s->config.hidden, i = (size_t)s->config.inter;
    const int w = s->whole.format->w;
    void *const up = room(k, n * (size_t)s->whole.up_rows * moek_element_bytes(w, h));
    void *const down = room(k, n * h * moek_element_bytes(w, i));
    k->config.weight_layout = MOEK_WEIGHTS_TILED;
    if (!CHECK(moek_plan_init(&k->plan, &k->config) == MOEK_OK, "%s: %s", s->what, k->plan.why)) return 0;
    CHECK(moek_repack_up(&k->plan, k->w.w_up, up, (int)n, 0, (moek_stream)k->stream) == MOEK_OK &&
          moek_repack_down(&k->plan, k->w.w_down, down, (int)n, 0, (moek_stream)k->stream) == MOEK_OK, "%s: repack",
          s->what);
    k->w.w_up = up; k->w.w_down = down;
    return CHECK(moek_plan_bind(&k->plan, &k->w) == MOEK_OK, "%s: %s", s->what, k->plan.why) &&
           CHECK(moek_workspace_size(&k->plan) <= k->args.workspace_size, "%s: more workspace", s->what);
}
static void tiled(int quant)
{
    static const half halves[] = { NULL, moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
                                   moek_finalize_send, moek_finalize_receive };
    scene *s = scene_new(gpus > 1 ? 2 : 1, MOEK_EP_REDUCED, 2, quant, "tiled weights");
    int r, i, ok = staged(s, UNIFORM) && layered(s);
    for (r = 0; r < s->group.ranks && ok; r++) ok = tile(s, &s->gpu[r]);
    if (ok) {
        poison_y(s);
        for (i = 0; i < 7 && ok; i++) ok = each(s, s->gpu, halves[i]);
        sync_all(s);
        same_y(s, "tiled");
        alive(s);
    }
    forget(s);
}
static void test_tiled(void)
{
    if (gpu_arch < 90) {
        printf("tiled weights: only sm90 rows read them\n");
        check_skipped++;
        return;
    }
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        tiled(FORMAT_BLOCKED);
        tiled(FORMAT_PLAIN);
    }
    kind = MOEK_EP_LOW_LATENCY;
}
