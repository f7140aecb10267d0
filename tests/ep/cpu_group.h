/* cpu_group.h -- a part of test_ep.c, which includes it once: a group, the layer on one rank, opening and running, what
 * must come out. */
typedef struct rank {
    int number, first, tokens;                         /* of the whole layer's tokens, mine */
    moek_ep ep;
    moek_ep_config group;
    moek_config config;
    moek_plan plan;
    moek_weights w;
    moek_args args[2];                                 /* by handle */
    unsigned char *window, *workspace[2], *y, *x, *shared_y;           /* behind a guard; the last two with gaps */
    size_t window_size;
    int64_t *load;
    moek_status status;
    char why[MOEK_WHY];
    int answer;
    pool threads;                                      /* of every second rank */
} rank;

typedef struct scene {
    char what[140];
    moek_ep_config group;
    moek_config config;                                /* of the whole layer; max_tokens: of a rank */
    int options;                                       /* LAYER_* */
    size_t gap;                                        /* elements between rows of x; twice and three times as many
                                                          between rows of y and of shared_y */
    int tokens[RANKS], total;
    int copies;                                        /* physical experts: copies * EXPERTS + 1, if above 1 */
    int physical, logical[4 * EXPERTS];                /* expert of the whole layer, of each physical one */
    int32_t owner[4 * EXPERTS], replicas[EXPERTS * 3], replica_count[EXPERTS];
    void *base[RANKS];
    layer whole;
    uint16_t *one;                                     /* y of one rank */
    rank rank[RANKS];
    moek_status (*drive)(rank *r);
} scene;

static unsigned char *guarded(size_t bytes, int fill)
{
    unsigned char *p = (unsigned char *)mem_alloc(0, bytes + 2 * GUARD);
    memset(p, LAYER_POISON, bytes + 2 * GUARD);
    memset(p + GUARD, fill, bytes);
    return p + GUARD;
}
static int intact(const unsigned char *p, size_t bytes)
{
    int i, ok = 1;
    for (i = 1; i <= GUARD; i++) ok &= p[-i] == LAYER_POISON && p[bytes + (size_t)i - 1] == LAYER_POISON;
    return ok;
}
static void drop(unsigned char *p) { if (p) mem_free(0, p - GUARD); }

typedef struct call { moek_status (*what)(rank *); rank *r; } call;
static void *in_thread(void *p)
{
    call *c = (call *)p;
    int i;
#ifdef _OPENMP
    omp_set_num_threads(1);                            /* ranks are threads enough */
#endif
    for (i = 0; i < c->r->number * 7 % 5; i++) sched_yield();
    c->r->status = c->what(c->r);
    return NULL;
}
/* All ranks but those in `dead` (bits). */
static void each_rank_but(scene *s, unsigned dead, moek_status (*what)(rank *))
{
    pthread_t thread[RANKS];
    call c[RANKS];
    int r;
    for (r = 0; r < s->group.ranks; r++) {
        c[r].what = what; c[r].r = &s->rank[r];
        s->rank[r].why[0] = 0;
        if (!(dead >> r & 1) && pthread_create(&thread[r], NULL, in_thread, &c[r])) abort();
    }
    for (r = 0; r < s->group.ranks; r++) if (!(dead >> r & 1)) pthread_join(thread[r], NULL);
}
static void each_rank(scene *s, moek_status (*what)(rank *)) { each_rank_but(s, 0, what); }

/* ---- the layer on one rank, and its parts ------------------------------------------------------------------------ */

/* Copies of the chosen experts' pieces of an array of `experts` pieces. */
static const void *pieces(const scene *s, const rank *r, const void *from, size_t bytes)
{
    unsigned char *to;
    int i;
    if (!from) return NULL;
    to = (unsigned char *)mem_alloc(0, bytes * (size_t)r->config.local_experts);
    memset(to, 0xff, bytes * (size_t)r->config.local_experts);
    for (i = 0; i < r->config.local_experts; i++) {
        const int p = moek_ep_expert(&r->ep, r->number, i);
        if (p >= 0) memcpy(to + (size_t)i * bytes, (const char *)from + (size_t)s->logical[p] * bytes, bytes);
    }
    return to;
}
static void free_weights(moek_weights *w)
{
    mem_free(0, (void *)(size_t)w->w_up); mem_free(0, (void *)(size_t)w->w_down);
    mem_free(0, (void *)(size_t)w->w_up_scale); mem_free(0, (void *)(size_t)w->w_down_scale);
    mem_free(0, (void *)(size_t)w->w_up_bias); mem_free(0, (void *)(size_t)w->w_down_bias);
    mem_free(0, (void *)(size_t)w->w_up_global_scale); mem_free(0, (void *)(size_t)w->w_down_global_scale);
    mem_free(0, (void *)(size_t)w->w_up_zero); mem_free(0, (void *)(size_t)w->w_down_zero);
}
static void weights_of(const scene *s, rank *r)
{
    const layer *l = &s->whole;
    const moek_format *const f = l->format, *const d = layer_down(l);
    const size_t h = (size_t)s->config.hidden, i = (size_t)s->config.inter, up = (size_t)l->up_rows;
    moek_weights *w = &r->w;
    memset(w, 0, sizeof *w);
    w->w_up = pieces(s, r, l->w.w_up, up * moek_weight_bytes(f, 0, h));
    w->w_down = pieces(s, r, l->w.w_down, h * moek_weight_bytes(d, 0, i));
    w->w_up_scale = (const float *)pieces(s, r, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    w->w_down_scale = (const float *)pieces(s, r, l->w.w_down_scale, moek_scale_bytes(&d->w_scale, h, i));
    w->w_up_global_scale = (const float *)pieces(s, r, l->w.w_up_global_scale, 4 * up / i);
    w->w_down_global_scale = (const float *)pieces(s, r, l->w.w_down_global_scale, 4);
    w->w_up_zero = pieces(s, r, l->w.w_up_zero, up * layer_zero_row(f, h));
    w->w_down_zero = pieces(s, r, l->w.w_down_zero, h * layer_zero_row(d, i));
    w->w_up_bias = pieces(s, r, l->w.w_up_bias, 2 * up);
    w->w_down_bias = pieces(s, r, l->w.w_down_bias, 2 * h);
    w->x_scale = l->w.x_scale; w->h_scale = l->w.h_scale;
    if (s->copies > 1) { w->replicas = s->replicas; w->replica_count = s->replica_count; }
    w->expert_load = r->load;
}

/* The whole layer on one rank; `total` tokens, of which the ranks have theirs in a row. */
static int one_rank(scene *s)
{
    moek_config c = s->config;
    layer *l = &s->whole;
    int r;
    for (s->total = 0, r = 0; r < s->group.ranks; r++) s->total += s->tokens[r];
    c.max_tokens = s->total ? s->total : 1;
    c.chunk_tokens = 0;
    c.backend = MOEK_BACKEND_CPU;
    layer_new(l, &c, s->options, s->total ? s->total : 1);
    l->args.tokens = s->total;
    snprintf(l->what, sizeof l->what, "%s: one rank", s->what);
    return 1;
}
static int run_one_rank(scene *s)
{
    s->one = NULL;
    if (!layer_plan(&s->whole)) return 0;
    return (s->one = layer_y(&s->whole, moek_run)) != NULL;
}

/* ---- opening and running ----------------------------------------------------------------------------------------- */

static moek_status open_rank(rank *r)
{
    scene *s = (scene *)r->group.layer;                /* set below: the scene, whose config is the layer */
    moek_ep_config g = r->group;
    moek_status status;
    g.layer = &s->config;
    status = moek_ep_open(&r->ep, &g, s->base);
    snprintf(r->why, sizeof r->why, "%s", r->ep.why);
    return status;
}
static void new_windows(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++) {
        rank *k = &s->rank[r];
        k->number = r;
        k->group = s->group;
        k->group.rank = r;
        k->group.layer = &s->config;
        drop(k->window);
        k->window_size = moek_ep_window_size(&k->group);
        k->window = guarded(k->window_size, 0);
        s->base[r] = k->window;
        k->group.layer = (const moek_config *)s;
    }
}
static int opened(scene *s)
{
    int r, ok = 1;
    new_windows(s);
    each_rank(s, open_rank);
    for (r = 0; r < s->group.ranks; r++) {
        const rank *k = &s->rank[r];
        if (!CHECK(k->status == MOEK_OK, "%s: rank %d does not open: %s", s->what, r, k->ep.why)) { ok = 0; continue; }
        memset(k->window + k->ep.layout.rows, 0x7b, k->window_size - k->ep.layout.rows);     /* as if long in use */
    }
    return ok;
}

/* Rows with NaN between them, from rows that lie side by side. */
static unsigned char *apart(const uint16_t *from, size_t rows, size_t hidden, size_t gap)
{
    uint16_t *to = (uint16_t *)(void *)guarded(2 * rows * (hidden + gap), 0xff);
    size_t i;
    for (i = 0; i < rows; i++) memcpy(to + i * (hidden + gap), from + i * hidden, 2 * hidden);
    return (unsigned char *)to;
}
static size_t y_row(const scene *s) { return 2 * ((size_t)s->config.hidden + 2 * s->gap); }
static void check_gaps(const scene *s, const rank *r)
{
    const size_t row = y_row(s);
    size_t i, j, written = 0;
    for (i = 0; i < (size_t)s->tokens[r->number]; i++)
        for (j = 2 * (size_t)s->config.hidden; j < row; j++) written += r->y[i * row + j] != LAYER_POISON;
    CHECK(!written, "%s: rank %d: %d bytes between rows of y", s->what, r->number, (int)written);
}

/* The plan and the tokens of a rank. */
static int plan_rank(scene *s, rank *r)
{
    const size_t h = (size_t)s->config.hidden, slots = (size_t)(s->config.topk + s->config.shared_slots);
    const layer *l = &s->whole;
    const int handles = s->group.handles > 1 ? 2 : 1;
    int i;
    r->config = s->config;
    if (!CHECK(moek_ep_join(&r->ep, &r->config) == MOEK_OK, "%s: join", s->what)) return 0;
    if (!CHECK(moek_plan_init(&r->plan, &r->config) == MOEK_OK, "%s: rank %d: %s", s->what, r->number, r->plan.why))
        return 0;
    r->load = (int64_t *)calloc((size_t)r->plan.config.physical_experts, 8);
    weights_of(s, r);
    if (!CHECK(moek_plan_bind(&r->plan, &r->w) == MOEK_OK, "%s: rank %d: %s", s->what, r->number, r->plan.why))
        return 0;
    r->tokens = s->tokens[r->number];
    r->y = guarded(y_row(s) * (size_t)r->tokens, LAYER_POISON);
    if (s->gap) r->x = apart((const uint16_t *)l->args.x + h * (size_t)r->first, (size_t)r->tokens, h, s->gap);
    if (s->gap && l->args.shared_y)
        r->shared_y = apart((const uint16_t *)l->args.shared_y + h * (size_t)r->first, (size_t)r->tokens, h,
                            3 * s->gap);
    for (i = 0; i < handles; i++) {
        moek_args *a = &r->args[i];
        memset(a, 0, sizeof *a);
        a->tokens = r->tokens;
        a->handle = i;
        a->x = (const char *)l->args.x + 2 * h * (size_t)r->first;
        if (s->options & LAYER_LOGITS) {
            a->router_logits = (const float *)l->args.router_logits + (size_t)r->first * (size_t)s->config.experts;
        } else {
            a->topk_ids = l->args.topk_ids + (size_t)r->first * slots;
            a->topk_weights = l->args.topk_weights + (size_t)r->first * slots;
        }
        if (l->args.is_padding) a->is_padding = l->args.is_padding + r->first;
        if (l->args.shared_y) a->shared_y = (const char *)l->args.shared_y + 2 * h * (size_t)r->first;
        a->y = r->y;
        if (s->gap) { a->x = r->x; a->x_stride = h + s->gap; a->y_stride = h + 2 * s->gap; }
        if (r->shared_y) { a->shared_y = r->shared_y; a->shared_y_stride = h + 3 * s->gap; }
        a->workspace_size = moek_workspace_size(&r->plan);
        r->workspace[i] = guarded(a->workspace_size, 0xff);
        a->workspace = r->workspace[i];
        a->why = r->why; a->why_size = sizeof r->why;
        r->threads = pools[r->number % POOLS];
        if (r->number % 2) a->parallel = pool_parallel(&r->threads);
    }
    return 1;
}
static int planned(scene *s)
{
    int r, first = 0, ok = opened(s);
    for (r = 0; r < s->group.ranks && ok; r++) {
        s->rank[r].first = first;
        ok &= plan_rank(s, &s->rank[r]);
        first += s->tokens[r];
    }
    return ok;
}
static void forget(scene *s)
{
    int r, i;
    for (r = 0; r < s->group.ranks; r++) {
        rank *k = &s->rank[r];
        if (k->window) CHECK(intact(k->window, k->window_size), "%s: beside the window of rank %d", s->what, r);
        if (k->y) CHECK(intact(k->y, y_row(s) * (size_t)k->tokens), "%s: beside y", s->what);
        if (k->y) check_gaps(s, k);
        CHECK(!k->threads.wrong, "%s: %lld runs of a pool of rank %d were wrong", s->what, k->threads.wrong, r);
        for (i = 0; i < 2 && k->workspace[i]; i++)
            CHECK(intact(k->workspace[i], k->args[i].workspace_size), "%s: beside the workspace of rank %d", s->what,
                  r);
        drop(k->window); drop(k->y); drop(k->x); drop(k->shared_y); drop(k->workspace[0]); drop(k->workspace[1]);
        free(k->load);
        free_weights(&k->w);
    }
    if (s->whole.arrays) layer_free(&s->whole);
    free(s->one);
    free(s);
}
static moek_status run_rank(rank *r) { return moek_run(&r->plan, &r->args[0], NULL); }
static int ran(scene *s, moek_status (*drive)(rank *))
{
    int r, ok = 1;
    each_rank(s, drive);
    for (r = 0; r < s->group.ranks; r++)
        ok &= CHECK(s->rank[r].status == MOEK_OK, "%s: rank %d: %s: %s", s->what, r,
                    moek_status_name(s->rank[r].status), s->rank[r].why);
    for (r = 0; r < s->group.ranks; r++)
        if (s->rank[r].status == MOEK_E_TIMEOUT) { printf("no use to wait for more\n"); exit(check_end()); }
    return ok;
}

/* ---- what must come out ------------------------------------------------------------------------------------------ */

static uint16_t *all_y(const scene *s)
{
    const size_t row = 2 * (size_t)s->config.hidden;
    char *y = (char *)malloc(row * (size_t)s->total + 1);
    int r, t;
    for (r = 0; r < s->group.ranks; r++)
        for (t = 0; t < s->tokens[r]; t++)
            memcpy(y + row * (size_t)(s->rank[r].first + t), s->rank[r].y + y_row(s) * (size_t)t, row);
    return (uint16_t *)y;
}
/* Dynamic scales of a tensor, of x or of h, are of the rows that a rank received, so the reference must go by rank. */
static int late(const scene *s)
{
    const layer *l = &s->whole;
    return (format_by_tensor(l->format) && !l->w.x_scale) || (format_by_tensor(layer_down(l)) && !l->w.h_scale);
}
static double *ref_by_rank(const scene *s)
{
    const layer *l = &s->whole;
    const size_t h = (size_t)s->config.hidden;
    const int k = l->plan.slots;
    double *want = (double *)ref_alloc(8 * h * (size_t)s->total), *part = (double *)ref_alloc(8 * h * (size_t)s->total);
    uint16_t *x = (uint16_t *)ref_alloc(2 * h * (size_t)s->total);
    int32_t *ids = (int32_t *)ref_alloc(4 * (size_t)(s->total * k)), *at = (int32_t *)ref_alloc(4 * (size_t)s->total);
    float *weights = (float *)ref_alloc(4 * (size_t)(s->total * k));
    const int32_t *whole_ids = (const int32_t *)layer_got((layer *)(size_t)l, l->args.topk_ids);
    const float *whole_weights = (const float *)layer_got((layer *)(size_t)l, l->args.topk_weights);
    int r, t, i, n;
    size_t j;
    for (r = 0; r < s->group.ranks; r++) {
        ref_layer_args a;
        for (n = 0, t = 0; t < s->total; t++) {
            int here = s->rank[r].ep.config.kind == MOEK_EP_ALLGATHER;
            for (i = 0; i < k; i++) {
                const int32_t id = whole_ids[t * k + i];
                int e = s->rank[r].config.local_experts;
                while (--e >= 0 && (id < 0 || moek_ep_expert(&s->rank[r].ep, r, e) != id)) { }
                ids[n * k + i] = e;
                weights[n * k + i] = whole_weights[t * k + i];
                here |= e >= 0;
            }
            if (here) { memcpy(x + (size_t)n * h, (const char *)l->args.x + 2 * h * (size_t)t, 2 * h); at[n++] = t; }
        }
        if (!n) continue;
        a = layer_ref_args((layer *)(size_t)l, ids);
        a.tokens = n; a.experts = s->rank[r].config.local_experts; a.rows_per_expert = 0;
        a.x = x; a.weights = weights; a.w = &s->rank[r].w; a.addend = NULL;
        ref_layer(&a, part);
        for (i = 0; i < n; i++) for (j = 0; j < h; j++) want[(size_t)at[i] * h + j] += part[(size_t)i * h + j];
    }
    for (j = 0; l->args.shared_y && j < h * (size_t)s->total; j++)
        want[j] += ref_get_t(l->args.shared_y, j, l->plan.config.dtype);
    free(part); free(x); free(ids); free(at); free(weights);
    return want;
}

/* On top of layer_tolerance: partial sums that are rounded to T add as much again as y's rounding, at the most. */
static double tolerance(const scene *s)
{
    const double t = layer_tolerance(&s->whole);
    return s->group.combine != MOEK_EP_REDUCED ? t : t + (s->whole.config.dtype == MOEK_DTYPE_FP16 ? 3e-4 : 2e-3);
}
static double worst;

static void compare(scene *s)
{
    double *want = late(s) ? ref_by_rank(s) : layer_ref(&s->whole);
    uint16_t *y = all_y(s);
    const ref_distance d = ref_compare_t(y, want, (size_t)s->total * (size_t)s->config.hidden,
                                         s->whole.plan.config.dtype);
    CHECK(d.rel_l2 < tolerance(s) && d.same_nonfinite, "%s: off by %.2e, at most %.2e", s->what, d.rel_l2, d.max_abs);
    if (d.rel_l2 / tolerance(s) > worst) worst = d.rel_l2 / tolerance(s);
    if (s->group.combine == MOEK_EP_EXACT && !late(s))
        CHECK(!memcmp(y, s->one, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: other bits than on one rank",
              s->what);
    free(want);
    free(y);
}

/* The counters of all ranks against the reference's, rank by rank, since replicas go by the token's number there. */
static void compare_loads(const scene *s, int runs)
{
    const int k = s->whole.plan.slots, n = s->rank[0].plan.config.physical_experts;
    const int32_t *ids = (const int32_t *)layer_got((layer *)(size_t)&s->whole, s->whole.args.topk_ids);
    int32_t *out = (int32_t *)malloc(4 * (size_t)(s->total * k + 1));
    int64_t *load = (int64_t *)malloc(8 * (size_t)n);
    int r, e, wrong = 0;
    for (r = 0; r < s->group.ranks; r++) {
        moek_map_args a;
        memset(&a, 0, sizeof a);
        memset(load, 0, 8 * (size_t)n);
        a.tokens = s->tokens[r]; a.topk = k; a.experts = s->config.experts + s->config.shared_slots; a.physical = n;
        a.max_replicas = 3;
        a.ids = ids + s->rank[r].first * k;
        a.replicas = s->rank[r].w.replicas; a.replica_count = s->rank[r].w.replica_count;
        a.load = load; a.out = out;
        a.is_padding = s->whole.args.is_padding ? s->whole.args.is_padding + s->rank[r].first : NULL;
        ref_map(&a);
        for (e = 0; e < n; e++) wrong += s->rank[r].load[e] != runs * load[e];
    }
    CHECK(!wrong, "%s: %d counters of experts", s->what, wrong);
    free(load);
    free(out);
}

/* Run, compare, run again on other rubbish: the same bits. */
static void checked(scene *s, moek_status (*drive)(rank *))
{
    uint16_t *y, *again;
    int r;
    if (!run_one_rank(s) || !planned(s) || !ran(s, drive)) return;
    if (s->total) compare(s);
    y = all_y(s);
    for (r = 0; r < s->group.ranks; r++) {
        memset(s->rank[r].workspace[0], 0x7b, s->rank[r].args[0].workspace_size);
        memset(s->rank[r].y, LAYER_POISON, y_row(s) * (size_t)s->tokens[r]);
    }
    if (ran(s, drive)) {
        again = all_y(s);
        CHECK(!memcmp(y, again, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: a second run gives other bits",
              s->what);
        free(again);
        compare_loads(s, 2);
    }
    free(y);
}
