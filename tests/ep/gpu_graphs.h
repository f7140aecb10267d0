/* gpu_graphs.h -- a part of test_ep_gpu.c, which includes it once: whole layers, graphs, many operations. */
#if MEM_CUDA
typedef struct call { side *k; int runs; } call;
static void *run_side(void *p)
{
    call *c = (call *)p;
    int i;
    on(c->k);
    for (i = 0; i < c->runs; i++) {
        c->k->status = moek_run(&c->k->plan, &c->k->args, (moek_stream)c->k->stream);
        if (c->k->status != MOEK_OK) break;
    }
    return NULL;
}
/* Whole layers: half by half, then moek_run of each rank in a thread of its own, several times without a pause. */
static void layers(int peers, int combine, int ranks, int quant, int pattern)
{
    scene *s = scene_new(peers, combine, ranks, quant, "layers");
    pthread_t thread[RANKS];
    call c[RANKS];
    int r;
    if (!staged(s, pattern) || !layered(s)) { forget(s); return; }
    poison_y(s);
    cross_in_threads(ranks);
    for (r = 0; r < ranks; r++) {
        c[r].k = &s->gpu[r]; c[r].runs = 7;
        if (pthread_create(&thread[r], NULL, run_side, &c[r])) abort();
    }
    for (r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
    cross_in_threads(0);
    sync_all(s);
    for (r = 0; r < ranks; r++)
        CHECK(s->gpu[r].status == MOEK_OK, "%s: rank %d: %s", s->what, r, s->gpu[r].why);
    alive(s);
    same_y(s, "moek_run in threads");
    forget(s);
}
static void test_layers(void)
{
    layers(1, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED, UNIFORM);
    layers(1, MOEK_EP_EXACT, 4, FORMAT_PLAIN, SOME_MISSING);
    layers(1, MOEK_EP_REDUCED_F32, 8, FORMAT_BLOCKED, SOME_EMPTY);
    if (gpus > 1) layers(2, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED, UNIFORM);
    if (gpus > 1) layers(2, MOEK_EP_EXACT, 2, FORMAT_PLAIN, SOME_EMPTY);
    if (gpus > 1) layers(2, MOEK_EP_REDUCED, 4, FORMAT_BLOCKED, SOME_MISSING);   /* two ranks a GPU ... */
    if (gpus > 1) layers(2, MOEK_EP_EXACT, 3, FORMAT_PLAIN, UNIFORM);             /* ... two and one */
    if (gpus > 3) layers(4, MOEK_EP_REDUCED, 4, FORMAT_BLOCKED, SOME_MISSING);
}

/* Three operations a graph, replayed five times: epochs are on the device. */
static void graphs(int peers, int ranks)
{
    scene *s = scene_new(peers, MOEK_EP_REDUCED, ranks, FORMAT_BLOCKED, "graphs");
    cudaGraphExec_t exec[RANKS];
    int r, i;
    if (!staged(s, UNIFORM) || !layered(s)) { forget(s); return; }
    for (r = 0; r < ranks; r++) {
        side *k = &s->gpu[r];
        cudaGraph_t graph;
        on(k);
        mem_must(cudaStreamBeginCapture(k->stream, cudaStreamCaptureModeThreadLocal));
        for (i = 0; i < 3; i++)
            CHECK(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == MOEK_OK, "%s: %s", s->what, k->why);
        mem_must(cudaStreamEndCapture(k->stream, &graph));
        mem_must(cudaGraphInstantiate(&exec[r], graph, 0));
        mem_must(cudaGraphDestroy(graph));
        mem_must(cudaGraphUpload(exec[r], k->stream));
    }
    sync_all(s);
    for (i = 0; i < 5; i++) {
        poison_y(s);
        for (r = 0; r < ranks; r++) { on(&s->gpu[r]); mem_must(cudaGraphLaunch(exec[r], s->gpu[r].stream)); }
        sync_all(s);
        same_y(s, "a replay");
    }
    alive(s);
    for (r = 0; r < ranks; r++) { on(&s->gpu[r]); mem_must(cudaGraphExecDestroy(exec[r])); }
    forget(s);
}
static void test_graphs(void)
{
    graphs(1, 2);
    graphs(1, 4);
    if (gpus > 1) graphs(2, 2);
    if (gpus > 1) graphs(2, 3);
    if (gpus > 1) graphs(2, 4);
    if (gpus > 3) graphs(4, 4);
}

/* Many operations, in graphs that are replayed in random order: other routings, other counts of tokens, ranks without
 * any, ranks that come up to 300 us later than others.  One graph in 32, and the last ones, are compared to the bit. */
enum { SETS = 8, GRAPHS = 3 };
static __global__ void later_k(unsigned ns)            /* a rank that comes so much later */
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;\n" : "=l"(now)); while (now - start < ns);
}
typedef struct soaked { moek_args args[RANKS]; uint16_t *y; } soaked;
static int in_graph(int graph, int i)                  /* set of its operation i, or -1: it has no more */
{
    if (graph == 0) return i < SETS ? i : -1;
    return graph == 1 ? (i < 5 ? (3 * i + 1) % SETS : -1) : i < 1 ? SETS - 1 : -1;
}
static void soak_set(scene *s, soaked *set, int j, const int32_t *ids)
{
    const size_t row = 2 * (size_t)s->config.hidden, slots = 4 * (size_t)s->config.topk;
    int r, first = 0;
    memcpy(s->whole.args.topk_ids, ids, slots * (size_t)s->total);
    renew(s);
    give_ids(s, j % SOME_EMPTY);
    hand_out(s);
    poison_y(s);
    for (r = 0; r < s->group.ranks; first += s->tokens[r++]) {
        const char *const x = (const char *)s->whole.args.x + row * (size_t)first;
        side *const k = &s->gpu[r];
        k->args.tokens = s->host[r].args.tokens = j % 3 == 2 && r == j % s->group.ranks ? 0 : s->tokens[r] - j % 2;
        memset(s->host[r].args.y, LAYER_POISON, row * (size_t)s->tokens[r]);
        set->args[r] = k->args;
        set->args[r].x = gift(k, x, row * (size_t)s->tokens[r]);
        set->args[r].topk_ids = (int32_t *)(size_t)gift(k, s->whole.args.topk_ids + first * s->config.topk,
                                                          slots * (size_t)s->tokens[r]);
        set->args[r].topk_weights = (float *)(size_t)gift(k, s->whole.args.topk_weights + first * s->config.topk,
                                                          slots * (size_t)s->tokens[r]);
        set->args[r].y = (void *)(size_t)gift(k, x, row * (size_t)s->tokens[r]);
    }
    if (layered(s)) set->y = y_of(s, s->gpu);
}
static void soak_check(scene *s, const soaked *sets, int graph)
{
    const size_t row = 2 * (size_t)s->config.hidden;
    size_t at = 0;
    int r, i, j, wrong = 0;
    sync_all(s);
    for (r = 0; r < s->group.ranks; at += row * (size_t)s->tokens[r++]) {
        char *const y = (char *)malloc(row * (size_t)s->tokens[r]);
        for (i = 0; (j = in_graph(graph, i)) >= 0; i++) {
            get(&s->gpu[r], y, sets[j].args[r].y, row * (size_t)s->tokens[r]);
            wrong += memcmp(y, (char *)sets[j].y + at, row * (size_t)s->tokens[r]) != 0;
        }
        free(y);
    }
    CHECK(!wrong, "%s: %d results are wrong", s->what, wrong);
}
static void soak(int peers, int ranks, long operations)
{
    scene *s = scene_new(peers, MOEK_EP_REDUCED, ranks, FORMAT_BLOCKED, "soak");
    cudaGraphExec_t exec[GRAPHS][RANKS];
    soaked sets[SETS];
    int32_t *ids;
    long done = 0, replays = 0, checks = 0;
    double start;
    int r, i, j, graph;
    memset(sets, 0, sizeof sets);
    if (!staged(s, UNIFORM)) { forget(s); return; }
    ids = (int32_t *)malloc(4 * (size_t)s->total * TOPK);
    memcpy(ids, s->whole.args.topk_ids, 4 * (size_t)s->total * TOPK);
    for (j = 0; j < SETS; j++) {
        soak_set(s, &sets[j], j, ids);
        if (!sets[j].y) abort();
    }
    for (graph = 0; graph < GRAPHS; graph++)
        for (r = 0; r < ranks; r++) {
            side *k = &s->gpu[r];
            cudaGraph_t g;
            on(k);
            mem_must(cudaStreamBeginCapture(k->stream, cudaStreamCaptureModeThreadLocal));
            for (i = 0; (j = in_graph(graph, i)) >= 0; i++)
                CHECK(moek_run(&k->plan, &sets[j].args[r], (moek_stream)k->stream) == MOEK_OK, "%s: %s", s->what,
                      k->why);
            mem_must(cudaStreamEndCapture(k->stream, &g));
            mem_must(cudaGraphInstantiate(&exec[graph][r], g, 0));
            mem_must(cudaGraphDestroy(g));
            mem_must(cudaGraphUpload(exec[graph][r], k->stream));
        }
    for (r = 0; r < ranks; r++) {                      /* what is launched first is loaded, and waits for the GPU */
        on(&s->gpu[r]);
        later_k<<<1, 1, 0, s->gpu[r].stream>>>(0);
    }
    sync_all(s);
    start = now_s();
    while (done < operations) {
        const int check = replays++ % 32 == 0 || done + SETS >= operations;
        graph = rng_below(GRAPHS);
        for (r = 0; r < ranks; r++) {
            side *k = &s->gpu[r];
            on(k);
            for (i = 0; check && (j = in_graph(graph, i)) >= 0; i++)
                mem_must(cudaMemsetAsync(sets[j].args[r].y, LAYER_POISON,
                                         2 * (size_t)s->config.hidden * (size_t)s->tokens[r], k->stream));
            if (rng_below(4) == 0) later_k<<<1, 1, 0, k->stream>>>((unsigned)rng_below(300000));
            mem_must(cudaGraphLaunch(exec[graph][r], k->stream));
        }
        for (i = 0; in_graph(graph, i) >= 0; i++) done++;
        if (!check) continue;
        soak_check(s, sets, graph);
        checks++;
        alive(s);
        if (check_failed) break;
    }
    printf("%s: %ld operations, %ld graphs, of which %ld were compared, in %.1f s\n", s->what, done, replays, checks,
           now_s() - start);
    for (graph = 0; graph < GRAPHS; graph++)
        for (r = 0; r < ranks; r++) { on(&s->gpu[r]); mem_must(cudaGraphExecDestroy(exec[graph][r])); }
    for (j = 0; j < SETS; j++) free(sets[j].y);
    free(ids);
    forget(s);
}
static void soak_kinds(long operations)
{
    const int ranks = gpus > 3 ? 4 : 2;
    soak(gpus < ranks ? 1 : ranks, ranks, operations);
    kind = MOEK_EP_ALLTOALL;
    soak(gpus < ranks ? 1 : ranks, ranks, operations / 10);
    kind = MOEK_EP_ALLGATHER;
    soak(gpus < ranks ? 1 : ranks, ranks, operations / 10);
    kind = MOEK_EP_LOW_LATENCY;
    if (gpus > 3 || operations < 1000) return;
    soak(gpus > 1 ? 2 : 1, 3, operations / 100);       /* ranks that share a GPU */
    soak(gpus > 1 ? 2 : 1, 4, operations / 100);
}

#endif
