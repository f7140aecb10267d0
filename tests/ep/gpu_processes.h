/* gpu_processes.h -- a part of test_ep_gpu.c, which includes it once: ranks in processes. */
#if MEM_CUDA
typedef struct board { int turn[RANKS]; char slot[RANKS][256]; } board;           /* a file that all have mapped */
typedef struct seat { board *b; int rank, ranks, turn; } seat;
static int all_at(const seat *s, int turn)
{
    const double start = now_s();
    int p;
    for (p = 0; p < s->ranks; p++)
        while (__atomic_load_n(&s->b->turn[p], __ATOMIC_ACQUIRE) < turn) {
            if (now_s() - start > 20) return 0;
            sched_yield();
        }
    return 1;
}
static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    seat *s = (seat *)context;
    int p;
    if (bytes > sizeof s->b->slot[0] || !all_at(s, s->turn)) return 1;            /* the last gather has been read */
    memcpy(s->b->slot[s->rank], mine, bytes);
    __atomic_store_n(&s->b->turn[s->rank], ++s->turn, __ATOMIC_RELEASE);
    if (!all_at(s, s->turn)) return 1;
    for (p = 0; p < s->ranks; p++) memcpy((char *)all + (size_t)p * bytes, s->b->slot[p], bytes);
    __atomic_store_n(&s->b->turn[s->rank], ++s->turn, __ATOMIC_RELEASE);
    return 0;
}

static double tolerance_of(const scene *s) { return layer_tolerance(&s->whole) + 2e-3; }      /* sums are rounded */

/* A rank that is a process: runs its part of a layer, and compares with one rank on the CPU.  `dies`: rank 1 kills
 * itself, and the others must hear of it. */
static int be_rank(int rank, int ranks, const char *path, int dies)
{
    scene *s = scene_new(1, MOEK_EP_REDUCED, ranks, FORMAT_PLAIN, dies ? "a killed process" : "processes");
    side *k = &s->gpu[rank];
    const size_t at = 256 * (size_t)(rank + 1);        /* of the window, in what cudaMalloc gives */
    seat me;
    double start;
    int r, i, first = 0;
    me.b = (board *)mapped(path, sizeof(board));
    me.rank = rank; me.ranks = ranks; me.turn = 0;
    mem_must(cudaGetDeviceCount(&i));
    if (dies) s->group.timeout_ms = 700;
    s->config.max_tokens = ranks * MOST;
    s->config.backend = MOEK_BACKEND_CPU;
    for (r = 0; r < ranks; r++) s->total += s->tokens[r];
    for (r = 0; r < rank; r++) first += s->tokens[r];
    layer_new(&s->whole, &s->config, 0, s->total);
    if (!layer_plan(&s->whole)) return 1;
    s->y = layer_y(&s->whole, moek_run);
    s->config.max_tokens = MOST; s->config.backend = 0;

    k->gpu = 1; k->device = rank % i;
    k->group = s->group;
    k->group.rank = rank; k->group.transport = MOEK_EP_GPU; k->group.layer = &s->config;
    k->window_size = moek_ep_window_size(&k->group);
    on(k);
    k->window = (unsigned char *)mem_alloc(MEM_DEVICE, k->window_size + at) + at;
    mem_must(cudaMemset(k->window, 0, k->window_size));
    mem_must(cudaHostAlloc(&k->report, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(k->report, 0, MOEK_EP_REPORT);
    k->group.report = k->report;
    mem_must(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
    mem_must(cudaDeviceSynchronize());
    if (!CHECK(moek_ep_ipc_open(rank, ranks, k->window, gather, &me, s->gpu_base, k->why, sizeof k->why) == MOEK_OK,
               "%s: %s", s->what, k->why) ||
        !CHECK(moek_ep_open(&k->ep, &k->group, s->gpu_base) == MOEK_OK, "%s: %s", s->what, k->ep.why) ||
        !planned(s, k, first))
        return 1;
    mem_must(cudaDeviceSynchronize());                 /* planned fills memory on the NULL stream */
    CHECK(k->ep.sharing == (ranks + i - 1 - rank % i) / i || i > ranks, "%s: %d ranks here", s->what, k->ep.sharing);
    for (i = 0; i < 5; i++)
        CHECK(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == MOEK_OK, "%s: %s", s->what, k->why);
    mem_must(cudaStreamSynchronize(k->stream));
    if (dies && rank == 1) raise(SIGKILL);
    start = now_s();
    for (; dies && now_s() - start < 8 && moek_ep_poll(&k->ep, NULL) == MOEK_OK;) {
        moek_run(&k->plan, &k->args, (moek_stream)k->stream);
        mem_must(cudaStreamSynchronize(k->stream));
    }
    if (dies) {
        const moek_status status = moek_ep_poll(&k->ep, NULL);
        CHECK(status == MOEK_E_TIMEOUT || status == MOEK_E_ABORTED, "%s: %s", s->what, moek_status_name(status));
        CHECK(now_s() - start < 5, "%s: %.1f s", s->what, now_s() - start);
    } else {
        const size_t h = (size_t)s->config.hidden, n = h * (size_t)s->tokens[rank];
        uint16_t *y = (uint16_t *)malloc(2 * n);
        double *want = (double *)malloc(8 * n);
        char text[2048];
        ref_distance d;
        size_t j;
        get(k, y, k->args.y, 2 * n);
        for (j = 0; j < n; j++) want[j] = ref_get_t(s->y, (size_t)first * h + j, s->whole.plan.config.dtype);
        d = ref_compare_t(y, want, n, s->whole.plan.config.dtype);
        CHECK(d.rel_l2 < 2 * tolerance_of(s), "%s: rank %d: off by %.2e", s->what, rank, d.rel_l2);
        moek_ep_describe(&k->ep, text, sizeof text);
        CHECK(moek_ep_poll(&k->ep, NULL) == MOEK_OK, "%s: the group has ended: %s", s->what, text);
        gather(&me, &rank, s->host_base, sizeof rank);                        /* nobody closes before all are done */
        free(y); free(want);
    }
    moek_ep_ipc_close(ranks, k->window, s->gpu_base);
    return check_failed != 0;
}

static const char *program;
static void test_processes(void)
{
    processes(program, "rank", 2, -1, sizeof(board));
    processes(program, "dying", 2, 1, sizeof(board));
}

#endif

/* What is refused, and what it says. */
static void test_refused(void)
{
    moek_config c;
    moek_ep_config g;
    moek_ep ep;
    char text[2048];
    void *base[1];
    size_t size;
    memset(&c, 0, sizeof c);
    memset(&g, 0, sizeof g);
    c.hidden = 7168; c.inter = 256; c.experts = 8; c.topk = 2; c.quant = FORMAT_BLOCKED; c.act = MOEK_SILU;
    c.max_tokens = 64;
    g.ranks = 1; g.layer = &c;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "in GPU memory") && strstr(text, ", hidden 7168 baked"), "auto: %s", text);
    c.hidden = 7184;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "low_latency: taken") && !strstr(text, "baked"), "hidden 7184: %s", text);
    c.hidden = 7168;
    g.ranks = 8; c.max_tokens = 4096;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "alltoall: taken") && strstr(text, "allgather: not asked"), "auto: %s", text);
    g.kind = MOEK_EP_ALLTOALL;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "alltoall: taken") && strstr(text, "in GPU memory"), "alltoall: %s", text);
    g.move = cross;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "alltoall: taken") && strstr(text, "at most 32768 rows, 4096 of each"), "alltoall, moved: %s",
          text);
    g.kind = 0;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "alltoall: max_rows leaves room for all") && strstr(text, "(of 32768; 7680 arrive") &&
          strstr(text, "allgather: taken"), "auto, moved: %s", text);
    g.max_rows = 9997;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "alltoall: taken") && strstr(text, "at most 10000 rows, 1250 of each"), "auto, moved: %s", text);
    g.max_rows = 0; g.transport = MOEK_EP_HOST;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "move is for transport"), "host, moved: %s", text);
    g.transport = 0; g.move = NULL;
    g.kind = 0; g.ranks = 1; c.max_tokens = 64;
    c.hidden = 7176;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "multiple of 16") != NULL, "hidden 7176: %s", text);
    c.quant = format_nth(format_x_second, 0); c.hidden = 7184;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "multiple of 32") != NULL, "4-bit x, hidden 7184: %s", text);
    c.hidden = 7200;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, ", 4052 bytes a row") != NULL, "4-bit x, hidden 7200: %s", text);      /* 3600 + 450, and 2 */
    c.quant = FORMAT_BLOCKED; c.hidden = 7168;
    size = moek_ep_window_size(&g);
    mem_must(cudaSetDevice(0));
    base[0] = mem_alloc(0, size);
    if (MEM_CUDA)
        CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "not memory of a GPU"), "host: %s",
              ep.why);
    mem_free(0, base[0]);
    base[0] = mem_alloc(MEM_DEVICE, size);
    mem_must(cudaMemset(base[0], 0, size));
    mem_must(cudaDeviceSynchronize());
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "report is no pinned memory"),
          "report: %s", ep.why);
    mem_must(cudaHostAlloc(&g.report, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(g.report, 0, MOEK_EP_REPORT);
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "open: %s", ep.why);
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "not zeroed"), "twice: %s", ep.why);
    mem_must(cudaFreeHost(g.report));
    mem_free(MEM_DEVICE, base[0]);
}

/* Those that were asked for; all, if none was. */
static int wanted(const char *test, char **words)
{
    int i;
    for (i = 0; words[i]; i++) if (!strcmp(words[i], test)) return 1;
    return !words[0];
}
#define RUN(test) \
    do { \
        const int failed = check_failed; \
        const double start = now_s(); \
        if (!wanted(#test, words)) break; \
        worst = 0; \
        test(); \
        printf("%-20s worst %.3f of the tolerance, %.1f s  %s\n", #test, worst, now_s() - start, \
               check_failed > failed ? "FAILED" : "ok"); \
        fflush(stdout); \
    } while (0)
