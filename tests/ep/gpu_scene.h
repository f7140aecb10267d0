/* gpu_scene.h -- a part of test_ep_gpu.c, which includes it once: memory, rows that are moved, a scene, its halves. */
/* `bytes` of `fill` between guards, wherever the side lives.  shared: processes to come see it, too. */
static int shared;
static unsigned char *guarded(const side *k, size_t bytes, int fill)
{
    unsigned char *p;
    on(k);
    if (!shared) p = (unsigned char *)mem_alloc(mem_where(k->gpu), bytes + 2 * GUARD);
    else p = (unsigned char *)mmap(NULL, bytes + 2 * GUARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    if (k->gpu) {
        mem_must(cudaMemset(p, LAYER_POISON, bytes + 2 * GUARD));
        mem_must(cudaMemset(p + GUARD, fill, bytes));
    } else {
        memset(p, LAYER_POISON, bytes + 2 * GUARD);
        memset(p + GUARD, fill, bytes);
    }
    return p + GUARD;
}
static void refill(const side *k, void *p, size_t bytes, int fill)
{
    on(k);
    if (k->gpu) mem_must(cudaMemset(p, fill, bytes));
    else memset(p, fill, bytes);
}
static void drop(const side *k, unsigned char *p, size_t bytes, const char *what)
{
    unsigned char guard[2 * GUARD];
    int i, ok = 1;
    if (!p) return;
    on(k);
    mem_get(mem_where(k->gpu), guard, p - GUARD, GUARD);
    mem_get(mem_where(k->gpu), guard + GUARD, p + bytes, GUARD);
    for (i = 0; i < 2 * GUARD; i++) ok &= guard[i] == LAYER_POISON;
    CHECK(ok, "%s: something was written beside an array", what);
    if (!shared) mem_free(mem_where(k->gpu), p - GUARD);
    else munmap(p - GUARD, bytes + 2 * GUARD);
}
static void *room(side *k, size_t bytes)
{
    on(k);
    if (k->gifts == 64) abort();
    return k->given[k->gifts++] = mem_alloc(mem_where(k->gpu), bytes);
}
static const void *gift(side *k, const void *host, size_t bytes)
{
    void *p;
    if (!host) return NULL;
    p = room(k, bytes);
    mem_put(mem_where(k->gpu), p, host, bytes);
    return p;
}

/* ---- rows that are moved ----------------------------------------------------------------------------------------- */

static int moved;                                      /* ranks on GPUs of the scenes to come do not reach each other */
static struct crossing {
    moek_ep_piece piece[RANKS][7 * RANKS];
    int count[RANKS], ranks, here;
    int threads;                                       /* each rank is in one of its own, and waits for the others */
    int lost;                                          /* bit r: nothing of rank r arrives */
    int gathers, every;                                /* pieces for every rank: may there be any; so many came */
    pthread_barrier_t barrier;
} crossing;

static void copy(void *to, const void *from, size_t bytes)
{
#if MEM_CUDA
    mem_must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread));
    mem_must(cudaStreamSynchronize(cudaStreamPerThread));
#else
    emu_copy_bytes(to, from, bytes);
#endif
}
/* All that goes to rank r: the n-th piece of a pair from the n-th. */
static void bring(int r)
{
    int taken[RANKS] = { 0 }, i, j, p;
    for (i = 0; i < crossing.count[r]; i++) {
        const moek_ep_piece *const to = &crossing.piece[r][i], *from;
        if (to->rank == MOEK_EP_EVERY) {
            CHECK(crossing.gathers && (!i || to[-1].rank == MOEK_EP_EVERY), "rank %d: piece %d is for every rank", r,
                  i);
            __atomic_add_fetch(&crossing.every, 1, __ATOMIC_RELAXED);
            CHECK(to->from == (char *)to->to + (size_t)r * to->bytes, "rank %d: not in place", r);
            for (p = 0; p < crossing.ranks; p++) {
                from = &crossing.piece[p][i];
                CHECK(from->rank == MOEK_EP_EVERY && from->bytes == to->bytes, "pieces of ranks %d and %d", r, p);
                if (p != r && !(crossing.lost >> p & 1))
                    copy((char *)to->to + (size_t)p * to->bytes, from->from, to->bytes);
            }
            continue;
        }
        from = crossing.piece[to->rank];
        for (j = taken[to->rank]; from->rank != r || j--; from++) { }
        taken[to->rank]++;
        if (CHECK(from->bytes == to->bytes, "pieces of ranks %d and %d", r, to->rank) &&
            !(crossing.lost >> to->rank & 1))
            copy(to->to, from->from, to->bytes);
    }
}
static int cross(void *context, const moek_ep_piece *piece, int count, moek_stream stream)
{
    const side *k = (const side *)context;
    int r;
    mem_must(cudaStreamSynchronize((cudaStream_t)stream));
    memcpy(crossing.piece[k->group.rank], piece, sizeof *piece * (size_t)count);
    crossing.count[k->group.rank] = count;
    if (crossing.threads) {
        pthread_barrier_wait(&crossing.barrier);
        bring(k->group.rank);
        pthread_barrier_wait(&crossing.barrier);
    } else if (++crossing.here == crossing.ranks)
        for (crossing.here = r = 0; r < crossing.ranks; r++) bring(r);
    return 0;
}
static void cross_in_threads(int ranks)                /* 0: no longer */
{
    if (!moved) return;
    if (ranks) pthread_barrier_init(&crossing.barrier, NULL, (unsigned)ranks);
    else pthread_barrier_destroy(&crossing.barrier);
    crossing.threads = ranks > 0;
}

/* ---- a scene ----------------------------------------------------------------------------------------------------- */

static int kind = MOEK_EP_LOW_LATENCY, scenes;         /* of the scenes to come; how many have moved rows */
static scene *scene_new(int peers, int combine, int ranks, int quant, const char *what)
{
    scene *s = (scene *)calloc(1, sizeof *s);
    int r;
    s->peers = peers;
    s->group.kind = kind; s->group.combine = combine; s->group.ranks = ranks;
    s->group.timeout_ms = 10000;
    s->group.move_gathers = moved && scenes++ % 2;
    s->config.hidden = format_round_up(moek_format_of(quant), HIDDEN);
    s->config.inter = format_round_up(moek_format_of(quant), INTER);
    s->config.experts = EXPERTS; s->config.topk = TOPK;
    s->config.quant = quant; s->config.act = MOEK_SILU; s->config.max_tokens = MOST;
    for (r = 0; r < RANKS; r++) s->tokens[r] = MOST;
    crossing.ranks = ranks;
    crossing.gathers = s->group.move_gathers && kind == MOEK_EP_ALLGATHER && ranks > 1;
    snprintf(s->what, sizeof s->what, "%s%s, %s, combine %d, %d ranks, %s, %s", moek_ep_kind_name(kind),
             moved ? ", moved" : "", peers > 1 ? "peers" : "loopback", combine, ranks, moek_quant_name(quant), what);
    return s;
}

enum { UNIFORM, ONE_RANK, SOME_MISSING, NOBODY, HOT_EXPERT, TWICE, SOME_EMPTY, NO_TOKENS, PATTERNS };
static const char *const patterns[] = { "uniform", "all to one rank", "some -1", "nobody", "a hot expert",
                                        "an expert twice", "some ranks empty", "no tokens" };
static void give_tokens(scene *s, int pattern)
{
    int r;
    for (r = 0; r < RANKS; r++)
        s->tokens[r] = pattern == NO_TOKENS ? 0 : pattern == SOME_EMPTY ? (r % 3 == 1 ? MOST : r % 3) : MOST - r % 4;
}
static void give_ids(scene *s, int pattern)
{
    const int k = s->config.topk;
    int i;
    for (i = 0; i < s->total * k; i++) {
        int32_t *id = &s->whole.args.topk_ids[i];
        if (pattern == ONE_RANK) *id = i % k < 2 ? EXPERTS - 1 - i % k : -1;
        if (pattern == SOME_MISSING && i % 3 == 1) *id = -1;
        if (pattern == NOBODY) *id = -1;
        if (pattern == HOT_EXPERT && i % k == 0) *id = 7;
        if (pattern == TWICE && i % k == 1) *id = id[-1];
    }
}

/* PHYSICAL experts: expert e has 1 to 3 replicas, wherever they come to lie; on ranks by a table that no rule has, in
 * which rank 1 (if there is one) has none. */
static void map_experts(scene *s)
{
    int p;
    s->mapped = 1;
    s->config.physical_experts = PHYSICAL;
    s->config.max_replicas = 3;
    for (p = 0; p < PHYSICAL; p++) {
        const int e = p * 3 % EXPERTS;
        s->logical[p] = e;
        s->replicas[3 * e + s->replica_count[e]++] = p;
        s->owner[p] = (p * 5 + 2) % s->group.ranks;
        if (s->owner[p] == 1) s->owner[p] = 0;
    }
    s->group.owner = s->owner;
}

/* Experts of rank r, of an array of `bytes` an expert. */
static const void *pieces(side *k, const void *from, size_t bytes)
{
    const scene *s = (const scene *)k->group.layer;
    unsigned char *to;
    const void *p;
    int i;
    if (!from) return NULL;
    if (s->bare) return gift(k, from, bytes);
    to = (unsigned char *)calloc((size_t)k->ep.local_experts, bytes);
    for (i = 0; i < k->ep.local_experts; i++) {
        const int e = moek_ep_expert(&k->ep, k->group.rank, i);
        if (e < 0) continue;
        memcpy(to + (size_t)i * bytes, (const char *)from + (size_t)(s->mapped ? s->logical[e] : e) * bytes, bytes);
    }
    p = gift(k, to, bytes * (size_t)k->ep.local_experts);
    free(to);
    return p;
}
static void give_weights(const scene *s, side *k)
{
    const layer *l = &s->whole;
    const moek_format *const f = l->format, *const d = layer_down(l);
    const size_t h = (size_t)s->config.hidden, i = (size_t)s->config.inter, up = (size_t)l->up_rows;
    static const int64_t zeros[PHYSICAL] = { 0 };
    memset(&k->w, 0, sizeof k->w);
    k->w.w_up = pieces(k, l->w.w_up, up * moek_weight_bytes(f, 0, h));
    k->w.w_down = pieces(k, l->w.w_down, h * moek_weight_bytes(d, 0, i));
    k->w.w_up_scale = (const float *)pieces(k, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    k->w.w_down_scale = (const float *)pieces(k, l->w.w_down_scale, moek_scale_bytes(&d->w_scale, h, i));
    k->w.w_up_global_scale = (const float *)pieces(k, l->w.w_up_global_scale, 4 * up / i);
    k->w.w_down_global_scale = (const float *)pieces(k, l->w.w_down_global_scale, 4);
    k->w.x_scale = (const float *)gift(k, l->w.x_scale, 4);
    k->w.h_scale = (const float *)gift(k, l->w.h_scale, 4);
    if (!s->mapped) return;
    k->w.replicas = (const int32_t *)gift(k, s->replicas, sizeof s->replicas);
    k->w.replica_count = (const int32_t *)gift(k, s->replica_count, sizeof s->replica_count);
    k->w.expert_load = (int64_t *)(size_t)gift(k, zeros, sizeof zeros);
}

static void *open_side(void *p)
{
    side *k = (side *)p;
    scene *s = (scene *)k->group.layer;                /* the scene, whose config is the layer */
    moek_ep_config g = k->group;
    void *base[RANKS];
    int r;
    on(k);
    g.layer = &s->config;
    for (r = 0; r < RANKS; r++) base[r] = r == g.rank ? k->window : k->out;
    k->status = moek_ep_open(&k->ep, &g, k->out ? base : k->gpu ? s->gpu_base : s->host_base);
    return NULL;
}
/* low_latency on GPUs: of what comes back, that which has not come yet is 0. */
static int leaves_zeros(const side *k) { return k->gpu && !k->out && k->group.kind == MOEK_EP_LOW_LATENCY; }
static void check_zeros(const scene *s, const side *k)
{
    const size_t at = k->ep.layout.partial, n = k->window_size - at;
    unsigned char *rows;
    size_t i;
    if (!leaves_zeros(k)) return;
    rows = (unsigned char *)malloc(n);
    on(k);
    mem_get(MEM_DEVICE, rows, k->window + at, n);
    for (i = 0; i < n && !rows[i]; i++) { }
    CHECK(i == n, "%s: rank %d left byte %lu of what came back", s->what, k->group.rank, (unsigned long)i);
    free(rows);
}

/* Opens all ranks of one kind of side; 0 if one does not. */
static int opened(scene *s, side *sides)
{
    pthread_t thread[RANKS];
    int r, ok = 1;
    for (r = 0; r < s->group.ranks; r++) {
        side *k = &sides[r];
        k->gpu = sides == s->gpu;
        k->device = s->peers > 1 ? r % s->peers : 0;
        k->group = s->group;
        k->group.rank = r;
        k->group.transport = k->gpu ? MOEK_EP_GPU : MOEK_EP_HOST;
        k->group.move = k->gpu && moved ? cross : NULL;
        if (moved && !k->gpu) k->group.max_rows = 0;   /* means rows of all ranks together there */
        k->group.move_context = k;
        k->group.layer = &s->config;
        k->window_size = moek_ep_window_size(&k->group);
        if (!CHECK(k->window_size > 0, "%s: no window", s->what)) return 0;
        k->group.layer = (const moek_config *)s;
        k->window = guarded(k, k->window_size, 0);
        (k->gpu ? s->gpu_base : s->host_base)[r] = k->window;
        if (!k->gpu) continue;
        mem_must(cudaHostAlloc(&k->report, MOEK_EP_REPORT, cudaHostAllocPortable));
        memset(k->report, 0, MOEK_EP_REPORT);
        k->group.report = k->report;
        mem_must(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
        if (moved) k->out = guarded(k, k->window_size, 0);
    }
    if (sides == s->gpu) for (r = 0; r < s->group.ranks; r++) { on(&sides[r]); mem_must(cudaDeviceSynchronize()); }
    if (sides == s->gpu) cross_in_threads(s->group.ranks);
    for (r = 0; r < s->group.ranks; r++) if (pthread_create(&thread[r], NULL, open_side, &sides[r])) abort();
    for (r = 0; r < s->group.ranks; r++) pthread_join(thread[r], NULL);
    if (sides == s->gpu) cross_in_threads(0);
    for (r = 0; r < s->group.ranks; r++)
        ok &= CHECK(sides[r].status == MOEK_OK, "%s: rank %d does not open: %s", s->what, r, sides[r].ep.why);
    for (r = 0; r < s->group.ranks && ok; r++) {       /* as if long in use */
        const moek_ep_layout *l = &sides[r].ep.layout;
        const size_t at = l->rows, end = leaves_zeros(&sides[r]) ? l->partial : sides[r].window_size;
        refill(&sides[r], sides[r].window + at, end - at, 0x7b);
        if (sides[r].out) refill(&sides[r], sides[r].out + at, sides[r].window_size - at, 0x6a);
    }
    return ok;
}

/* A gift of rows with NaN between them, from rows that lie side by side. */
static const void *gift_apart(side *k, const void *from, size_t rows, size_t hidden, size_t gap)
{
    const size_t row = 2 * (hidden + gap);
    char *const to = (char *)malloc(rows * row + 1);
    const void *p;
    size_t i;
    memset(to, 0xff, rows * row);
    for (i = 0; i < rows; i++) memcpy(to + i * row, (const char *)from + 2 * hidden * i, 2 * hidden);
    p = gift(k, to, rows * row);
    free(to);
    return p;
}
static size_t y_row(const scene *s) { return 2 * ((size_t)s->config.hidden + 2 * s->gap); }

static int planned(scene *s, side *k, int first)
{
    const layer *l = &s->whole;
    const size_t h = (size_t)s->config.hidden, slots = (size_t)s->config.topk;
    const int n = s->tokens[k->group.rank];
    moek_args *a = &k->args;
    on(k);
    k->config = s->config;
    moek_ep_join(&k->ep, &k->config);
    if (!CHECK(moek_plan_init(&k->plan, &k->config) == MOEK_OK, "%s: %s", s->what, k->plan.why)) return 0;
    give_weights(s, k);
    if (!CHECK(moek_plan_bind(&k->plan, &k->w) == MOEK_OK, "%s: %s", s->what, k->plan.why)) return 0;
    memset(a, 0, sizeof *a);
    a->tokens = n;
    a->x = gift_apart(k, (const char *)l->args.x + 2 * h * (size_t)first, (size_t)n, h, s->gap);
    a->topk_ids = (int32_t *)(size_t)gift(k, l->args.topk_ids + (size_t)first * slots, 4 * slots * (size_t)n);
    a->topk_weights = (float *)(size_t)gift(k, l->args.topk_weights + (size_t)first * slots, 4 * slots * (size_t)n);
    if (l->args.shared_y)
        a->shared_y = gift_apart(k, (const char *)l->args.shared_y + 2 * h * (size_t)first, (size_t)n, h, 3 * s->gap);
    a->y = guarded(k, y_row(s) * (size_t)n, LAYER_POISON);
    if (s->gap) { a->x_stride = h + s->gap; a->y_stride = h + 2 * s->gap; a->shared_y_stride = h + 3 * s->gap; }
    a->workspace_size = moek_workspace_size(&k->plan);
    a->workspace = guarded(k, a->workspace_size, 0xff);
    a->why = k->why; a->why_size = sizeof k->why;
    return 1;
}

/* Inputs, then both groups.  pattern also says which ranks have tokens. */
static int staged(scene *s, int pattern)
{
    moek_config c = s->config;
    int r, first = 0, ok;
    give_tokens(s, pattern);
    for (s->total = 0, r = 0; r < s->group.ranks; r++) s->total += s->tokens[r];
    c.max_tokens = s->total ? s->total : 1;
    c.physical_experts = c.max_replicas = 0;           /* of one rank: replicas are copies */
    c.local_experts = s->bare;
    layer_new(&s->whole, &c, s->options, c.max_tokens);
    give_ids(s, pattern);
    if (pattern % 2) {
        const size_t n = (size_t)c.max_tokens * (size_t)c.hidden;
        s->shared = (uint16_t *)malloc(2 * n);
        layer_fill_t(s->shared, n, 1, s->whole.config.dtype);
        s->whole.args.shared_y = s->shared;
    }
    ok = opened(s, s->host) && opened(s, s->gpu);
    for (r = 0; r < s->group.ranks && ok; r++) {
        ok = planned(s, &s->host[r], first) && planned(s, &s->gpu[r], first);
        first += s->tokens[r];
    }
    sync_devices(s);                                   /* planned fills memory on the NULL stream */
    return ok;
}
/* What planned gave to both sides of a rank, once more, as it is now in `whole`. */
static void hand_out(scene *s)
{
    const moek_args *l = &s->whole.args;
    const size_t row = 2 * (size_t)s->config.hidden, slots = 4 * (size_t)s->config.topk;
    size_t first = 0, n;
    int r, g;
    size_t t;
    for (r = 0; r < s->group.ranks; r++, first += n) {
        n = (size_t)s->tokens[r];
        for (g = 0; g < 2; g++) {
            const moek_args *a = g ? &s->gpu[r].args : &s->host[r].args;
            on(g ? &s->gpu[r] : &s->host[r]);
            for (t = 0; t < n; t++)
                mem_put(mem_where(g), (char *)(size_t)a->x + t * (row + 2 * s->gap),
                        (const char *)l->x + (first + t) * row, row);
            mem_put(mem_where(g), a->topk_ids, (const char *)l->topk_ids + first * slots, n * slots);
            mem_put(mem_where(g), a->topk_weights, (const char *)l->topk_weights + first * slots, n * slots);
        }
    }
}
/* Other tokens: what is left over from the operation before must show. */
static void renew(scene *s)
{
    const moek_args *l = &s->whole.args;
    const size_t slots = (size_t)s->config.topk;
    size_t first = 0, i;
    int r;
    layer_fill_t((void *)(size_t)l->x, (size_t)s->total * (size_t)s->config.hidden, 1, s->host[0].plan.config.dtype);
    for (i = 0; i < (size_t)s->total * slots; i++) l->topk_weights[i] = (float)(0.2 + rng_uniform());
    for (r = 0; r < s->group.ranks; first += (size_t)s->tokens[r++]) {         /* ids: of the token behind it */
        int32_t *const ids = l->topk_ids + first * slots, kept[TOPK];
        if (s->tokens[r] < 2) continue;
        memcpy(kept, ids, 4 * slots);
        memmove(ids, ids + slots, 4 * slots * (size_t)(s->tokens[r] - 1));
        memcpy(ids + slots * (size_t)(s->tokens[r] - 1), kept, 4 * slots);
    }
    hand_out(s);
}
static void forget(scene *s)
{
    int r, i, g;
    sync_all(s);
    for (r = 0; r < s->group.ranks; r++)
        for (g = 0; g < 2; g++) {
            side *k = g ? &s->gpu[r] : &s->host[r];
            drop(k, k->window, k->window_size, s->what);
            drop(k, k->out, k->window_size, s->what);
            drop(k, (unsigned char *)k->args.y, y_row(s) * (size_t)s->tokens[r], s->what);
            drop(k, (unsigned char *)k->args.workspace, k->args.workspace_size, s->what);
            for (i = 0; i < k->gifts; i++) { on(k); mem_free(mem_where(k->gpu), k->given[i]); }
            if (k->report) cudaFreeHost(k->report);
            if (k->stream) { on(k); mem_must(cudaStreamDestroy(k->stream)); }
        }
    layer_free(&s->whole);
    free(s->y); free(s->shared);
    free(s);
}

/* ---- half by half ------------------------------------------------------------------------------------------------ */

typedef moek_status (*half)(moek_step *, moek_stream);
static void begin(side *k, half what)
{
    on(k);
    if (what) k->status = what(&k->step, (moek_stream)k->stream);
    else k->status = moek_begin(&k->plan, &k->args, &k->step);
}
/* alltoall: each rank waits for what the others send in the same half: on the CPU ranks are threads then; in the
 * emulator kernels that wait are held until all ranks have launched theirs.  (Where rows are moved none waits.) */
static int waits(half what) { return kind == MOEK_EP_ALLTOALL && what == moek_prepare_send; }
static void *send_in_thread(void *p) { begin((side *)p, moek_prepare_send); return NULL; }
static void hold(half what)
{
#ifdef MOEK_EMU
    moek_emu_hold = waits(what) && !moved ? "moek_ep_dispatch_send" : NULL;
#else
    (void)what;
#endif
}
static void let_go(void)
{
#ifdef MOEK_EMU
    moek_emu_let_go();
#endif
}
/* The same on all ranks, one after the other. */
static void start(scene *s, side *sides, half what)
{
    const int in_threads = waits(what) && !sides->gpu;
    pthread_t thread[RANKS];
    int r;
    if (sides->gpu) hold(what);
    for (r = 0; r < s->group.ranks; r++)
        if (!in_threads) begin(&sides[r], what);
        else if (pthread_create(&thread[r], NULL, send_in_thread, &sides[r])) abort();
    for (r = 0; r < s->group.ranks && in_threads; r++) pthread_join(thread[r], NULL);
    if (sides->gpu) let_go();
}
static int each(scene *s, side *sides, half what)
{
    int r, ok = 1;
    start(s, sides, what);
    for (r = 0; r < s->group.ranks; r++)
        ok &= CHECK(sides[r].status == MOEK_OK, "%s: rank %d: %s: %s", s->what, r, moek_status_name(sides[r].status),
                    sides[r].why);
    return ok;
}
static int both(scene *s, half what) { return each(s, s->host, what) & each(s, s->gpu, what); }
static void get(const side *k, void *host, const void *there, size_t bytes)
{
    on(k);
    mem_get(mem_where(k->gpu), host, there, bytes);
}

/* The same codes.  A NaN in e4m3 may have either sign, whatever rows share a scale: products of GPUs are positive NaN,
 * products of CPUs keep the sign of the NaN in x. */
static int same_row(const char *a, const char *b, size_t bytes, const moek_format *f)
{
    const int e4m3 = f->x == MOEK_ELEMENT_E4M3;
    size_t i;
    for (i = 0; i < bytes; i++)
        if (a[i] != b[i] && !(e4m3 && (a[i] & 0x7f) == 0x7f && (b[i] & 0x7f) == 0x7f)) return 0;
    return 1;
}

/* Bytes of the scales of a row of x, where rows have their own. */
static size_t scales_of_row(const scene *s)
{
    const moek_scale_shape *const of = &s->whole.format->x_scale;
    return of->rows ? moek_scale_bytes(of, 1, (size_t)s->config.hidden) : 0;
}
/* What arrived at a rank, and at its twin: the same bytes. */
static void compare_arrived(scene *s, int r)
{
    const side *h = &s->host[r], *g = &s->gpu[r];
    const int e_end = h->plan.local_experts, limit = h->plan.rows_per_expert;
    const moek_format *const f = s->whole.format;
    const size_t row = moek_element_bytes(f->x, (size_t)s->config.hidden), scale = scales_of_row(s);
    const size_t rows = (size_t)e_end * (size_t)limit;
    int32_t *counts = (int32_t *)malloc(4 * (size_t)e_end);
    char *a = (char *)malloc(rows * row + 1), *scales = (char *)malloc(rows * scale + 4);
    int e, i, wrong_rows = 0, wrong_scales = 0;
    get(g, counts, g->step.expert_tokens, 4 * (size_t)e_end);
    get(g, a, g->step.a, rows * row);
    if (g->step.a_scale) get(g, scales, g->step.a_scale, scale ? rows * scale : 4);
    CHECK(!memcmp(counts, h->step.expert_tokens, 4 * (size_t)e_end), "%s: rank %d: rows of experts", s->what, r);
    for (e = 0; e < e_end; e++)
        for (i = 0; i < h->step.expert_tokens[e]; i++) {
            const size_t at = (size_t)e * (size_t)limit + (size_t)i;
            wrong_rows += !same_row(a + at * row, (const char *)h->step.a + at * row, row, f);
            wrong_scales += scale && memcmp(scales + at * scale, (const char *)h->step.a_scale + at * scale, scale);
        }
    if (format_by_tensor(f)) wrong_scales += memcmp(scales, h->step.a_scale, 4) != 0;
    CHECK(!wrong_rows && !wrong_scales, "%s: rank %d: %d rows and %d scales are not those of the CPU", s->what, r,
          wrong_rows, wrong_scales);
    free(counts); free(a); free(scales);
}

/* Of alltoall: rows of rank `from` that arrived at a rank in host memory. */
static int rows_of_rank(const side *k, int from)
{
    const moek_ep_layout *l = &k->ep.layout;
    return (int)((const uint32_t *)(k->window + l->counts + (size_t)from * l->counts_stride))[k->group.rank];
}
/* Where the row lies on the GPU that is row i in host memory: the same; alltoall where rows are moved: each rank has
 * its share of max_rows. */
static int place_of_row(const scene *s, const side *h, const side *g, int i)
{
    int p = 0, n;
    if (!moved || kind != MOEK_EP_ALLTOALL) return i;
    for (; i >= (n = rows_of_rank(h, p)); p++) i -= n;
    return p * (g->ep.config.max_rows / s->group.ranks) + i;
}
/* The same in standard format.  allgather: rows of all tokens, ids of -1 behind each rank's rows; alltoall: the rows
 * that arrived, and on the GPU ids of -1 behind them, up to max_rows. */
static void compare_standard(scene *s, int r)
{
    const side *h = &s->host[r], *g = &s->gpu[r];
    const int k = s->config.topk, rows = h->step.rows, gather = kind == MOEK_EP_ALLGATHER;
    const int all = g->step.rows;
    const moek_format *const f = s->whole.format;
    const size_t row = moek_element_bytes(f->x, (size_t)s->config.hidden), scale = scales_of_row(s);
    int32_t *ids = (int32_t *)malloc(4 * (size_t)all * (size_t)k);
    float *weights = (float *)malloc(4 * (size_t)all * (size_t)k + 1);
    char *a = (char *)malloc((size_t)all * row + 1), *scales = (char *)malloc((size_t)all * scale + 4);
    int i, j, wrong = 0;
    CHECK(all == (gather ? rows : g->ep.config.max_rows) && all >= rows, "%s: rank %d: %d rows", s->what, r, all);
    get(g, ids, g->step.expert_ids, 4 * (size_t)all * (size_t)k);
    get(g, weights, g->step.expert_weights, 4 * (size_t)all * (size_t)k);
    get(g, a, g->step.a, (size_t)all * row);
    if (g->step.a_scale) get(g, scales, g->step.a_scale, scale ? (size_t)all * scale : 4);
    for (i = 0; i < rows; i++) {
        const size_t at = (size_t)place_of_row(s, h, g, i), n = (size_t)i;
        wrong += memcmp(ids + at * k, h->step.expert_ids + n * k, 4 * (size_t)k) != 0;
        memset(ids + at * k, 0xff, 4 * (size_t)k);
    }
    CHECK(!wrong, "%s: rank %d: ids of %d rows", s->what, r, wrong);
    for (i = 0; i < all * k; i++) wrong += ids[i] != -1;
    CHECK(!wrong, "%s: rank %d: %d ids of no rows are not -1", s->what, r, wrong);
    for (i = 0; i < rows; i++) {
        const size_t at = (size_t)place_of_row(s, h, g, i), n = (size_t)i;
        if (gather && i % MOST >= s->tokens[i / MOST]) continue;
        for (j = 0; j < k; j++) wrong += weights[at * k + j] != h->step.expert_weights[n * k + j];
        wrong += !same_row(a + at * row, (const char *)h->step.a + n * row, row, f);
        wrong += scale && memcmp(scales + at * scale, (const char *)h->step.a_scale + n * scale, scale);
    }
    if (format_by_tensor(f) && rows) wrong += memcmp(scales, h->step.a_scale, 4) != 0;
    CHECK(!wrong, "%s: rank %d: %d rows, scales or weights are not those of the CPU", s->what, r, wrong);
    free(ids); free(weights); free(a); free(scales);
}

/* The same random rows in the place of what experts give. */
static void give_out(scene *s, int r)
{
    side *h = &s->host[r], *g = &s->gpu[r];
    const int slots = h->plan.rows_per_expert ? 1 : s->config.topk;
    const int rows = h->plan.rows_per_expert ? h->plan.local_experts * h->plan.rows_per_expert : h->step.rows;
    const size_t row = 2 * (size_t)slots * (size_t)s->config.hidden;
    int i, n;
    layer_fill_t(h->step.out, (size_t)rows * row / 2, 1, h->plan.config.dtype);
    on(g);
    for (i = 0; i < rows; i += n) {                    /* as many as lie together on both sides */
        const size_t at = (size_t)place_of_row(s, h, g, i);
        for (n = 1; i + n < rows && (size_t)place_of_row(s, h, g, i + n) == at + (size_t)n; n++) { }
        mem_put(MEM_DEVICE, (char *)g->step.out + at * row, (char *)h->step.out + (size_t)i * row, (size_t)n * row);
    }
}

static uint16_t *y_of(scene *s, const side *sides)
{
    const size_t row = 2 * (size_t)s->config.hidden;
    char *y = (char *)malloc(row * (size_t)s->total + 1), *some = (char *)malloc(y_row(s) * MOST + 1);
    size_t at = 0, i, written = 0;
    int r, t;
    for (r = 0; r < s->group.ranks; r++) {
        get(&sides[r], some, sides[r].args.y, y_row(s) * (size_t)s->tokens[r]);
        for (t = 0; t < s->tokens[r]; t++, at += row) {
            memcpy(y + at, some + y_row(s) * (size_t)t, row);
            for (i = row; i < y_row(s); i++) written += (unsigned char)some[y_row(s) * (size_t)t + i] != LAYER_POISON;
        }
    }
    CHECK(!written, "%s: %d bytes between rows of y", s->what, (int)written);
    free(some);
    return (uint16_t *)y;
}
static void poison_y(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++)
        refill(&s->gpu[r], s->gpu[r].args.y, y_row(s) * (size_t)s->tokens[r], LAYER_POISON);
    sync_devices(s);
}
static int gpu_arch = 80;                              /* of the rows that GPUs here take: 90 on Hopper */
static double worst;
static void compare_y(scene *s, double tolerance)
{
    const size_t n = (size_t)s->total * (size_t)s->config.hidden;
    const int dtype = s->host[0].plan.config.dtype;
    uint16_t *want = y_of(s, s->host);
    double *w = (double *)calloc(n + 1, 8);
    ref_distance d;
    size_t i;
    free(s->y);
    s->y = y_of(s, s->gpu);
    for (i = 0; i < n; i++) w[i] = ref_get_t(want, i, dtype);
    d = ref_compare_t(s->y, w, n, dtype);
    CHECK(!n || (d.rel_l2 < tolerance && d.same_nonfinite), "%s: y is off by %.2e, at most %.2e", s->what, d.rel_l2,
          d.max_abs);
    if (n && d.rel_l2 / tolerance > worst) worst = d.rel_l2 / tolerance;
    free(want); free(w);
}

static int prepared(scene *s)
{
    return both(s, NULL) && both(s, moek_route) && both(s, moek_prepare_send) && both(s, moek_prepare_receive);
}
static int finalized(scene *s) { return both(s, moek_finalize_send) && both(s, moek_finalize_receive); }

/* The exchange alone, to the bit; y: f32 sums in the same order, but with one rounding less (fma). */
static int exchanged(scene *s)
{
    const int scales = scales_of_row(s) > 0;
    int r;
    crossing.every = 0;
    if (!prepared(s)) return 0;
    sync_all(s);
    CHECK(crossing.every == (crossing.gathers ? s->group.ranks * (1 + scales) : 0), "%s: %d pieces for every rank",
          s->what, crossing.every);
    for (r = 0; r < s->group.ranks; r++)
        if (kind == MOEK_EP_LOW_LATENCY) compare_arrived(s, r);
        else compare_standard(s, r);
    for (r = 0; r < s->group.ranks; r++) give_out(s, r);
    sync_devices(s);                                   /* a copy may still be on its way when the call returns */
    if (!finalized(s)) return 0;
    sync_all(s);
    compare_y(s, s->host[0].plan.config.dtype == MOEK_DTYPE_FP16 ? 1e-4 : 6e-4);
    for (r = 0; r < s->group.ranks; r++) check_zeros(s, &s->gpu[r]);
    return 1;
}
/* Each may be as far from the reference as layer.h says: the twin's rows of the CPU, and rows of the GPU, which sum in
 * another order and, on Hopper, to fewer bits.  So they may be as far apart as both together. */
static double apart(const layer *l)
{
    const int arch = layer_arch;
    double most;
    layer_arch = 0;
    most = layer_tolerance(l);
    layer_arch = gpu_arch;
    most += layer_tolerance(l);
    layer_arch = arch;
    return most;
}
/* The whole layer. */
static int layered(scene *s)
{
    if (!prepared(s) || !both(s, moek_experts_apply) || !finalized(s)) return 0;
    sync_all(s);
    compare_y(s, apart(&s->whole));
    return 1;
}
static void same_y(scene *s, const char *how)
{
    uint16_t *y = y_of(s, s->gpu);
    CHECK(!memcmp(y, s->y, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: %s gives other bits", s->what, how);
    free(y);
}
static void alive(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++)
        CHECK(moek_ep_poll(&s->gpu[r].ep, NULL) == MOEK_OK, "%s: rank %d says that the group has ended", s->what, r);
}
