/* same_bits.h -- a part of test_layer.c, which includes it once: the same bits by another way: in stages, in place, by
 * graphs, with strides, in one launch. */
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
/* A plan is a value: a copy runs as well, also when the first is gone. */
static moek_status by_copy(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_plan *const first = (moek_plan *)(uintptr_t)plan, copy = *plan;       /* (a layer's own, and no constant) */
    moek_status s;
    memset(first, 0x5b, sizeof *first);
    s = moek_run(&copy, args, stream);
    *first = copy;
    return s;
}
/* Bound anew: what was bound before, and is not there now, is gone. */
static moek_weights without_biases(const moek_plan *plan)
{
    moek_weights w = plan->weights;
    w.w_up_bias = w.w_gate_bias = w.w_down_bias = NULL;
    return w;
}
static moek_status bound_again(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const moek_weights w = without_biases(plan);
    moek_plan copy = *plan;
    moek_status s = moek_plan_bind(&copy, &w);
    if (s == MOEK_OK) s = moek_plan_bind(&copy, &plan->weights);
    return s == MOEK_OK ? moek_run(&copy, args, stream) : s;
}
static moek_status bound_without(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const moek_weights w = without_biases(plan);
    moek_plan fresh;
    moek_status s = moek_plan_init(&fresh, &plan->config);
    if (s == MOEK_OK) s = moek_plan_bind(&fresh, &w);
    return s == MOEK_OK ? moek_run(&fresh, args, stream) : s;
}
static moek_status bound_with_and_without(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const moek_weights w = without_biases(plan);
    moek_plan copy = *plan;
    const moek_status s = moek_plan_bind(&copy, &w);
    return s == MOEK_OK ? moek_run(&copy, args, stream) : s;
}
static void same_bound_again(layer *l, const uint16_t *y)
{
    uint16_t *const plain = l->w.w_down_bias ? layer_y(l, bound_without) : NULL;
    layer_same(l, bound_again, y, "weights bound again");
    if (!plain) return;
    layer_same(l, bound_with_and_without, plain, "weights bound again, without biases");
    CHECK(memcmp(plain, y, layer_y_bytes(l)), "%s: biases do not matter", l->what);
    free(plain);
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
                same_bound_again(&l, y);
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
            if (!layer_arch || !row_of(&k[i], f)) continue;
            if (quick_set && !quick_row(&k[i])) continue;
            if (k[i].op != MOEK_OP_UP && k[i].op != MOEK_OP_LAYER && k[i].op != MOEK_OP_UP_DOWN) continue;
            SKIP_IF_SMALL(k[i].op != MOEK_OP_LAYER && (i + q_) % 4);
            SKIP_IF_QUICK(i, 4);
            c.kernel = k[i].name; c.block = k[i].block;
            c.hidden = k[i].op == MOEK_OP_UP_DOWN ? 1024 : 256; c.inter = k[i].op == MOEK_OP_UP_DOWN ? 256 : 128;
            c.max_tokens = k[i].op == MOEK_OP_LAYER ? k[i].max_tokens ? 3 : 9 : wide && !SMALL ? 300 : 20;
            layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
            l.args.shared_y = layer_new_t(&l, (size_t)c.max_tokens * c.hidden, 1);
            if (k[i].op != MOEK_OP_UP) layer_state = layer_zeros(moek_state_size());
            strides_of(&l, k[i].name);
            if (k[i].op != MOEK_OP_UP)
                CHECK(k[i].op == MOEK_OP_LAYER ? moek_plan_layer(&l.plan, c.max_tokens) == &k[i]
                                               : moek_plan_up_down(&l.plan, c.max_tokens) == &k[i],
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
                same_bound_again(&l, y);
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
static void up_down_case(int quant, const char *row, int tokens, int turn)
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
    if (!layer_check(&l, row ? row : "the plan's up_down row") || !CHECK(layer_state, "%s: no state", l.what) ||
        !CHECK(moek_plan_up_down(&l.plan, tokens) != NULL && !moek_plan_layer(&l.plan, tokens), "%s: no row takes it",
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
static void test_up_down(void)
{
    FOR_EACH_FORMAT(f) {
        int n, i, turn = 0;
        const moek_kernel *k = moek_kernels(&n);
        if (!format_has(f, MOEK_OP_UP_DOWN, layer_arch)) continue;
        for (i = 0; i < n; i++)
            if (k[i].op == MOEK_OP_UP_DOWN && k[i].quant == f->number && !(quick_set && !quick_row(&k[i]))) {
                up_down_case(f->number, k[i].name, 40, turn);
                turn += 2;
                SKIP_IF_SMALL((turn + q_) % 8 > 1 || quick_set);
                up_down_case(f->number, k[i].name, 300, turn - 1);
            }
        SKIP_IF_SMALL(f->number != FORMAT_BLOCKED || quick_set);
        up_down_case(f->number, NULL, 300 + 300 * (f->number % 3), f->number);
    }
}
