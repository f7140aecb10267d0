/* gpu_limits.h -- a part of test_ep_gpu.c, which includes it once: capacity, processes at their own pace, silence, two
 * in flight, the same bits, bounds. */
/* The same in standard format. */
static void test_standard(int standard)
{
    kind = standard;
    test_exchange();
#if MEM_CUDA
    test_layers();
    test_graphs();
#endif
    kind = MOEK_EP_LOW_LATENCY;
}
/* 1 to 4 ranks, each with all routings. */
static void test_ranks(void)
{
    int ranks, pattern;
    kind = MOEK_EP_ALLTOALL;
    for (ranks = 1; ranks <= 4; ranks++)
        for (pattern = 0; pattern < PATTERNS; pattern++)
            for (moved = 0; moved < 2; moved++)
                if (!quick_set || (ranks + 2 * pattern + moved) % 3 == 0)
                    exchange(1, (ranks + pattern) % 3, ranks, format_of_kind(ranks + pattern / 2), pattern, HIDDEN, 0);
    moved = 0;
    kind = MOEK_EP_LOW_LATENCY;
}
static void test_allgather(void) { test_standard(MOEK_EP_ALLGATHER); }
static void test_alltoall(void) { test_standard(MOEK_EP_ALLTOALL); }

/* Is y what it was before?  Nothing was written after the end. */
static int untouched(const scene *s, int r)
{
    const size_t bytes = 2 * (size_t)s->config.hidden * (size_t)s->tokens[r];
    unsigned char *y = (unsigned char *)malloc(bytes + 1);
    size_t i;
    int ok = 1;
    get(&s->gpu[r], y, s->gpu[r].args.y, bytes);
    for (i = 0; i < bytes; i++) ok &= y[i] == LAYER_POISON;
    free(y);
    return ok;
}
/* Of alltoall: one row more than max_rows for the last rank, or just as many (moved: than each rank's share of it). */
static void give_rows(scene *s, int fits)
{
    int32_t ids[TOPK];
    int k, g, r, first = 0;
    for (r = 0; r < (moved ? s->group.ranks : 1); first += s->tokens[r++]) {
        if (s->tokens[r] < s->tokens[0]) continue;
        for (k = 0; k < TOPK; k++) ids[k] = fits ? -1 : s->whole.args.topk_ids[first * TOPK + k];
        for (g = 0; g < 2; g++) {
            side *one = g ? &s->gpu[r] : &s->host[r];
            on(one);
            mem_put(mem_where(g), one->args.topk_ids, ids, sizeof ids);
        }
    }
}
/* Of a rank's window; moved: of what goes out. */
static unsigned char *rows_of(const side *k)
{
    return (k->out ? k->out : k->window) + k->ep.layout.rows + k->ep.layout.x.at;
}
static size_t rows_bytes(const side *k) { return (size_t)k->ep.config.max_rows * (size_t)k->ep.row_bytes; }
/* All that is done of an operation whose rows do not fit, number `operation`; enough: the max_rows that would do. */
static void overflow(scene *s, unsigned operation, int enough)
{
    unsigned char *rows = (unsigned char *)malloc(rows_bytes(&s->gpu[0]));
    moek_ep_error e;
    size_t i;
    int r, written = 0;
    poison_y(s);
    for (r = 0; r < s->group.ranks; r++) refill(&s->gpu[r], rows_of(&s->gpu[r]), rows_bytes(&s->gpu[r]), 0x5b);
    sync_devices(s);
    if (!moved) { start(s, s->host, NULL); start(s, s->host, moek_route); start(s, s->host, moek_prepare_send); }
    for (r = 0; r < s->group.ranks && !moved; r++)
        CHECK(s->host[r].status == MOEK_E_CAPACITY, "%s: rank %d on the CPU: %s", s->what, r, s->host[r].why);
    each(s, s->gpu, NULL); each(s, s->gpu, moek_route);
    each(s, s->gpu, moek_prepare_send); each(s, s->gpu, moek_prepare_receive);
    each(s, s->gpu, moek_experts_apply);
    each(s, s->gpu, moek_finalize_send); each(s, s->gpu, moek_finalize_receive);
    sync_all(s);
    for (r = 0; r < s->group.ranks; r++) {
        CHECK(moek_ep_poll(&s->gpu[r].ep, &e) == MOEK_E_CAPACITY && e.status == MOEK_E_CAPACITY && e.rows == enough &&
              e.peer == s->group.ranks - 1 && e.phase == MOEK_EP_COUNTS && e.operation == operation && !e.handle &&
              e.reporter == r, "%s: rank %d: status %d, %d rows for rank %d, operation %u, not %u", s->what, r,
              (int)e.status, e.rows, e.peer, e.operation, operation);
        CHECK(moek_ep_poll(&s->gpu[r].ep, &e) == MOEK_OK && !e.rows, "%s: rank %d: told twice", s->what, r);
        CHECK(untouched(s, r), "%s: rank %d: y was written", s->what, r);
        get(&s->gpu[r], rows, rows_of(&s->gpu[r]), rows_bytes(&s->gpu[r]));
        if (moved && s->tokens[r] < s->tokens[0]) continue;                    /* its rows did fit */
        for (i = 0; i < rows_bytes(&s->gpu[r]); i++) written += rows[i] != 0x5b;
        CHECK(!written, "%s: rank %d: %d bytes of rows moved", s->what, r, written);
    }
    free(rows);
}
static void capacity(int peers, int combine, int ranks, int quant)
{
    scene *s = scene_new(peers, combine, ranks, quant, "capacity");
    unsigned operation;
    int r, enough;
    give_tokens(s, ONE_RANK);                          /* (rank 0 has most) */
    for (r = enough = 0; r < ranks; r++) enough += s->tokens[moved ? 0 : r];
    s->group.max_rows = enough - 1 - (moved ? ranks - 1 : 0);
    if (staged(s, ONE_RANK))
        for (operation = 1; operation <= 7; operation++) {
            const int fits = operation % 3 == 0;
            give_rows(s, fits);
            if (!fits) overflow(s, operation, enough);
            else if (!exchanged(s)) break;
            alive(s);
        }
    forget(s);
}
static void test_capacity(void)
{
    int ranks;
    kind = MOEK_EP_ALLTOALL;
    for (moved = 0; moved < 2; moved++) {
        for (ranks = 1; ranks <= 4; ranks++) capacity(1, ranks % 3, ranks, format_of_kind(ranks + moved));
        capacity(1, MOEK_EP_REDUCED, 8, FORMAT_BLOCKED);
        if (gpus > 1) capacity(2, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED);
    }
    moved = 0;
    kind = MOEK_EP_LOW_LATENCY;
}

#ifdef MOEK_EMU
/* One rank of `together`, a process: 9 runs at its own pace.  tight (alltoall): rows of every third do not fit. */
static int run_alone(scene *s, int rank, int tight)
{
    side *k = &s->gpu[rank];
    const size_t row = 2 * (size_t)s->config.hidden, bytes = row * (size_t)s->tokens[rank];
    const int failed = check_failed;
    size_t first = 0;
    int i, r;
    for (r = 0; r < rank; r++) first += row * (size_t)s->tokens[r];
    for (i = 0; i < 9; i++) {
        const int fits = !tight || i % 3 != 1;
        moek_status status;
        if (tight && !rank) give_rows(s, fits);
        memset(k->args.y, LAYER_POISON, bytes);
        usleep((unsigned)((rank * 7 + i * 5) % 11 * 300));
        status = moek_run(&k->plan, &k->args, NULL);
        CHECK(status == MOEK_OK, "%s: rank %d, run %d: %s: %s", s->what, rank, i, moek_status_name(status), k->why);
        status = moek_ep_poll(&k->ep, NULL);
        CHECK(status == (fits ? MOEK_OK : MOEK_E_CAPACITY), "%s: rank %d, run %d: poll says %s", s->what, rank, i,
              moek_status_name(status));
        if (fits) CHECK(!memcmp(k->args.y, (char *)s->y + first, bytes), "%s: rank %d, run %d: y", s->what, rank, i);
        else CHECK(untouched(s, rank), "%s: rank %d, run %d: y was written", s->what, rank, i);
    }
    return check_failed > failed;
}
static void together(int ranks, int combine, int quant, int tight)
{
    scene *s = scene_new(1, combine, ranks, quant, "together");
    pid_t child[RANKS];
    int r, status;
    shared = 1;
    give_tokens(s, ONE_RANK);
    for (r = 0; r < ranks && tight; r++) s->group.max_rows += s->tokens[r];
    s->group.max_rows -= tight;
    if (staged(s, tight ? ONE_RANK : UNIFORM)) {
        if (tight) give_rows(s, 1);
        if (layered(s)) {
            fflush(stdout);
            for (r = 0; r < ranks; r++) {
                child[r] = fork();
                if (child[r]) continue;
                status = run_alone(s, r, tight);
                fflush(stdout);
                _exit(status);
            }
            for (r = 0; r < ranks; r++) {
                waitpid(child[r], &status, 0);
                CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: rank %d: status %x", s->what, r, status);
            }
        }
    }
    forget(s);
    shared = 0;
}
static void test_together(void)
{
    together(2, MOEK_EP_REDUCED, FORMAT_BLOCKED, 0);
    kind = MOEK_EP_ALLGATHER;
    together(3, MOEK_EP_EXACT, FORMAT_PLAIN, 0);
    kind = MOEK_EP_ALLTOALL;
    together(2, MOEK_EP_REDUCED, FORMAT_BLOCKED, 0);
    if (!quick_set) together(4, MOEK_EP_REDUCED_F32, FORMAT_TENSOR, 0), together(3, MOEK_EP_EXACT, FORMAT_PLAIN, 1);
    together(4, MOEK_EP_REDUCED, FORMAT_BLOCKED, 1);
    kind = MOEK_EP_LOW_LATENCY;
}
#endif

/* Rank `silent` stops before half `until` (0: prepare_send, 2: finalize_send); or, `aborts`, says so. */
static void silence(int peers, int ranks, int silent, int until, int aborts)
{
    static const half halves[] = { moek_prepare_send, moek_prepare_receive, moek_finalize_send, moek_finalize_receive };
    scene *s = scene_new(peers, MOEK_EP_REDUCED, ranks, FORMAT_BLOCKED, aborts ? "abort" : "a silent rank");
    const double start = now_s();
    moek_ep_error e;
    int r, i, timeouts = 0;
    if (aborts) s->group.timeout_ms = 20000;
    else s->group.timeout_ms = 400;
    if (!staged(s, UNIFORM) || !both(s, NULL) || !both(s, moek_route)) { forget(s); return; }
    for (i = 0; i < 4; i++) {
        hold(halves[i]);
        for (r = 0; r < ranks; r++) {
            side *k = &s->gpu[r];
            if (r == silent && i >= until) continue;
            begin(k, halves[i]);
            if (k->status != MOEK_OK)
                CHECK(k->status == MOEK_E_TIMEOUT || k->status == MOEK_E_ABORTED, "%s: %s", s->what, k->why);
        }
        let_go();
    }
    if (aborts) moek_ep_abort(&s->gpu[silent].ep);
    sync_all(s);
    CHECK(now_s() - start < 10, "%s: took %.1f s", s->what, now_s() - start);
    for (i = until; i < 4 && s->gpu[silent].status == MOEK_OK; i++)           /* too late: it must hear of the end */
        begin(&s->gpu[silent], halves[i]);
    sync_all(s);
    for (r = 0; r < ranks; r++) {
        side *k = &s->gpu[r];
        const moek_status status = moek_ep_poll(&k->ep, &e);
        const int reason = aborts ? MOEK_E_ABORTED : MOEK_E_TIMEOUT;
        CHECK(status == MOEK_E_TIMEOUT || status == MOEK_E_ABORTED, "%s: rank %d: poll says %s", s->what, r,
              moek_status_name(status));
        CHECK((int)e.cause == reason && e.peer == silent, "%s: rank %d: cause %d, peer %d", s->what, r, (int)e.cause,
              e.peer);
        timeouts += status == MOEK_E_TIMEOUT;
        CHECK(untouched(s, r), "%s: rank %d: y was written", s->what, r);
        on(k);
        CHECK(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == status && strstr(k->why, "ended the group"),
              "%s: rank %d: a run after the end: %s", s->what, r, k->why);
    }
    CHECK(aborts ? !timeouts : timeouts > 0, "%s: %d ranks say that they waited in vain", s->what, timeouts);
    forget(s);
}
static void test_silence(void)
{
    silence(1, 2, 1, 0, 0);
    silence(1, 4, 2, 0, 0);
    silence(1, 8, 0, 2, 0);
    if (MEM_CUDA) silence(1, 3, 0, 0, 1);              /* (where kernels wait while the host goes on) */
    if (gpus > 1) silence(2, 2, 0, 0, 0);
    if (gpus > 1) silence(2, 2, 1, 2, 0);
    if (gpus > 1) silence(2, 2, 1, 0, 1);
    if (gpus > 1) silence(2, 4, 3, 2, 0);
    if (gpus > 3) silence(4, 4, 2, 2, 0);
    kind = MOEK_EP_ALLTOALL;
    silence(1, 3, 1, 0, 0);
    silence(1, 2, 0, 2, 0);
    if (gpus > 1) silence(2, 2, 1, 0, 0);
    kind = MOEK_EP_LOW_LATENCY;
}

/* What rank 1 sends is lost from the second operation on: the others find that they have nothing of it, and it that
 * they have ended; nobody waits. */
static void lost(int peers, int ranks)
{
    scene *s = scene_new(peers, MOEK_EP_REDUCED, ranks, FORMAT_PLAIN, "lost");
    const double began = now_s();
    moek_ep_error e;
    int r;
    s->group.timeout_ms = 20000;
    if (!staged(s, UNIFORM) || !exchanged(s)) { forget(s); return; }
    poison_y(s);
    crossing.lost = 2;
    each(s, s->gpu, NULL); each(s, s->gpu, moek_route); each(s, s->gpu, moek_prepare_send);
    start(s, s->gpu, moek_prepare_receive); start(s, s->gpu, moek_finalize_send);
    start(s, s->gpu, moek_finalize_receive);
    sync_all(s);
    crossing.lost = crossing.here = 0;
    for (r = 0; r < ranks; r++) {
        side *k = &s->gpu[r];
        const moek_status status = moek_ep_poll(&k->ep, &e);
        CHECK(status == MOEK_E_TIMEOUT && e.reporter == r && (e.peer == 1) == (r != 1), "%s: rank %d: %s, of rank %d",
              s->what, r, moek_status_name(status), e.peer);
        CHECK(untouched(s, r), "%s: rank %d: y was written", s->what, r);
        on(k);
        CHECK(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == status && strstr(k->why, "brought no rows"),
              "%s: rank %d: a run after the end: %s", s->what, r, k->why);
    }
    CHECK(now_s() - began < 10, "%s: took %.1f s", s->what, now_s() - began);
    forget(s);
}
/* The most rows that a rank has for another one. */
static int fullest(const scene *s)
{
    int most = 0, r, p, t, token = 0;
    for (r = 0; r < s->group.ranks; r++, token += s->tokens[r - 1])
        for (p = 0; p < s->group.ranks; p++) {
            const moek_ep *const ep = &s->host[p].ep;
            int rows = 0, e, k;
            for (t = token; t < token + s->tokens[r]; t++) {
                int goes = 0;
                for (e = 0; e < ep->local_experts; e++)
                    for (k = 0; k < TOPK; k++)
                        goes |= s->whole.args.topk_ids[t * TOPK + k] == moek_ep_expert(ep, p, e);
                rows += goes;
            }
            if (rows > most) most = rows;
        }
    return most;
}
/* Two operations in flight: both sent before either is received, on one workspace each; 9 times.  rows: max_rows; the
 * share of it that would do for a pair of ranks (alltoall). */
static int two_in_flight(int ranks, int rows)
{
    scene *s = scene_new(gpus > 1 ? 2 : 1, MOEK_EP_REDUCED, ranks, FORMAT_PLAIN, "two in flight");
    side other[RANKS];
    uint16_t *y;
    int r, i, most;
    s->group.handles = 2;
    s->group.max_rows = rows;
    rng_seed(23);
    if (!staged(s, UNIFORM) || !layered(s)) { forget(s); return 0; }
    most = fullest(s);
    y = y_of(s, s->gpu);                               /* of handle 1, with these tokens; handle 0 gets others */
    for (r = 0; r < ranks; r++) {
        const moek_args *const a = &s->host[r].args;
        const size_t n = (size_t)s->tokens[r], slots = 4 * (size_t)s->config.topk;
        const void *const x = gift(&s->gpu[r], a->x, 2 * (size_t)s->config.hidden * n);
        const void *const ids = gift(&s->gpu[r], a->topk_ids, slots * n);
        const void *const weights = gift(&s->gpu[r], a->topk_weights, slots * n);
        other[r] = s->gpu[r];
        other[r].args.x = x;
        other[r].args.topk_ids = (int32_t *)(size_t)ids;
        other[r].args.topk_weights = (float *)(size_t)weights;
        other[r].args.handle = 1;
        other[r].args.workspace = guarded(&other[r], other[r].args.workspace_size, 0xff);
        other[r].args.y = guarded(&other[r], 2 * (size_t)s->config.hidden * (size_t)s->tokens[r], LAYER_POISON);
    }
    renew(s);
    if (!layered(s)) abort();
    for (i = 0; i < (quick_set ? 3 : 9); i++) {
        each(s, s->gpu, NULL); each(s, other, NULL);
        each(s, s->gpu, moek_route); each(s, other, moek_route);
        each(s, s->gpu, moek_prepare_send); each(s, other, moek_prepare_send);
        each(s, other, moek_prepare_receive); each(s, s->gpu, moek_prepare_receive);
        each(s, s->gpu, moek_experts_apply); each(s, other, moek_experts_apply);
        each(s, s->gpu, moek_finalize_send); each(s, other, moek_finalize_send);
        each(s, other, moek_finalize_receive); each(s, s->gpu, moek_finalize_receive);
    }
    sync_all(s);
    alive(s);
    same_y(s, "handle 0");
    free(s->y);
    s->y = y;
    y = y_of(s, other);
    CHECK(!memcmp(y, s->y, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: handle 1: other bits", s->what);
    free(y);
    for (r = 0; r < ranks; r++) {
        drop(&other[r], (unsigned char *)other[r].args.workspace, other[r].args.workspace_size, s->what);
        drop(&other[r], (unsigned char *)other[r].args.y, 2 * (size_t)s->config.hidden * (size_t)s->tokens[r], s->what);
    }
    forget(s);
    return most;
}

static void moved_kind(void)
{
    int pattern, combine, i = 0;
    for (pattern = 0; pattern < PATTERNS; pattern++)
        for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++, i++) {
            static const int sizes[] = { 2, 4, 8, 3, 1 };
            if (quick_set && (i + kind) % 4) continue;
            exchange(gpus > 1 && i % 2 ? 2 : 1, combine, sizes[i % 5], format_of_kind(i), pattern, HIDDEN,
                     spoiled_in_turn(i));
        }
    exchange(1, MOEK_EP_EXACT, 4, FORMAT_PLAIN, TWICE, 7168, 0);
    map_once(MOEK_EP_REDUCED, 4, FORMAT_BLOCKED, SOME_MISSING);
    map_once(MOEK_EP_EXACT, 3, FORMAT_PLAIN, UNIFORM);
    if (kind == MOEK_EP_ALLTOALL) {                    /* and in shares that just fit */
        const int most = two_in_flight(4, 0);
        if (CHECK(most > 1 && most < MOST, "a rank has %d rows for another one", most)) two_in_flight(4, 4 * most);
    }
    lost(1, 3);
#if MEM_CUDA
    layers(1, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED, UNIFORM);
    layers(gpus > 1 ? 2 : 1, MOEK_EP_EXACT, 4, FORMAT_PLAIN, SOME_MISSING);
#endif
}
/* y of the same layer (without experts: of the same exchange), moved or not. */
static uint16_t *y_of_layer(int moves, int ranks, int combine, int quant, int experts, size_t *bytes)
{
    scene *s;
    uint16_t *y = NULL;
    moved = moves;
    s = scene_new(1, combine, ranks, quant, "same bits");
    s->bare = !experts;
    rng_seed(11);
    if (staged(s, SOME_MISSING) && (experts ? layered(s) : exchanged(s))) y = y_of(s, s->gpu);
    *bytes = 2 * (size_t)s->total * HIDDEN;
    forget(s);
    return y;
}
static void same_bits(void)
{
    int combine, q;
    for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
        for (q = 0; q < 4; q++) {
            const int experts = MEM_CUDA || q == combine;
            size_t n, m;
            if (quick_set && (q + combine + kind) % 4) continue;
            uint16_t *const want = y_of_layer(0, 3 + q % 2, combine, format_of_kind(q), experts, &n);
            uint16_t *const y = y_of_layer(1, 3 + q % 2, combine, format_of_kind(q), experts, &m);
            CHECK(want && y && n == m && !memcmp(want, y, n), "%s, combine %d, %s: other bits where rows are moved",
                  moek_ep_kind_name(kind), combine, moek_quant_name(format_of_kind(q)));
            free(want); free(y);
        }
}
static void test_moved(void)
{
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) same_bits();
    moved = 1;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) moved_kind();
    kind = MOEK_EP_LOW_LATENCY;
    moved = 0;
}

/* What moek_ep.h says of the ways to combine, entry by entry, as in test_ep.c: the sizes of partial sums are added up
 * in `partials`, from what REDUCED_F32 leaves in the twin's window (slot p: of rank p). */
static uint16_t *combined(int combine, int quant, double *partials, int *n)
{
    scene *s = scene_new(gpus > 3 ? 4 : 1, combine, TOPK, quant, "bounds");
    const size_t h = HIDDEN;
    uint16_t *y = NULL;
    int r, p, t, k, first = 0;
    size_t j;
    rng_seed(7);
    if (staged(s, UNIFORM) && layered(s)) y = y_of(s, s->gpu);
    *n = s->total * HIDDEN;
    for (r = 0; r < TOPK && y && combine == MOEK_EP_REDUCED_F32; first += s->tokens[r++]) {
        const moek_ep *const ep = &s->host[r].ep;
        float *const sums = (float *)malloc(4 * MOST * TOPK * h);
        get(&s->host[r], sums, s->host[r].window + ep->layout.partial, 4 * MOST * TOPK * h);
        for (t = 0; t < s->tokens[r]; t++)
            for (p = 0; p < TOPK; p++) {
                const int32_t *ids = s->whole.args.topk_ids + (first + t) * TOPK;
                int here = 0, e;
                for (e = 0; e < moek_ep_local_experts(ep, p); e++)
                    for (k = 0; k < TOPK; k++) here |= ids[k] == moek_ep_expert(ep, p, e);
                for (j = 0; j < h && here; j++)
                    partials[(size_t)(first + t) * h + j] += fabs(sums[(size_t)(t * TOPK + p) * h + j]);
            }
        free(sums);
    }
    forget(s);
    return y;
}
static void bounds(int quant)
{
    const int dtype = format_dtype(moek_format_of(quant)), fp16 = dtype == MOEK_DTYPE_FP16;
    const double half = ldexp(1, fp16 ? -11 : -8), tiny = ldexp(1, fp16 ? -24 : -130);
    double *partials = (double *)calloc(RANKS * MOST * HIDDEN, 8);
    int n, i, far = 0, far32 = 0, differ = 0;
    uint16_t *f32 = combined(MOEK_EP_REDUCED_F32, quant, partials, &n);
    uint16_t *reduced = combined(MOEK_EP_REDUCED, quant, partials, &n);
    uint16_t *exact = combined(MOEK_EP_EXACT, quant, partials, &n);
    for (i = 0; i < n && f32 && reduced && exact; i++) {
        const double want = ref_get_t(exact, (size_t)i, dtype), sum = partials[i];
        const double rounding = 2 * half * (fabs(want) + half * sum) + 4 * tiny;
        far += fabs(ref_get_t(reduced, (size_t)i, dtype) - want) > half * sum + rounding;
        far32 += fabs(ref_get_t(f32, (size_t)i, dtype) - want) > 1e-6 * sum + rounding;
        differ += reduced[i] != exact[i];
    }
    CHECK(!far && !far32 && differ, "%s, %s: %d entries reduced, %d in f32 are beyond their bounds; %d differ",
          moek_ep_kind_name(kind), moek_quant_name(quant), far, far32, differ);
    free(partials); free(f32); free(reduced); free(exact);
}
static void test_bounds(void)
{
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        if (!quick_set || kind % 2) bounds(FORMAT_PLAIN);
        if (!quick_set || kind % 2 == 0) bounds(format_of_t(MOEK_DTYPE_FP16));
    }
    kind = MOEK_EP_LOW_LATENCY;
}

static void test_two_in_flight(void)
{
    two_in_flight(2, 0);
    kind = MOEK_EP_ALLTOALL;
    two_in_flight(2, 0);
    kind = MOEK_EP_LOW_LATENCY;
}
