/* nccl_scenes.h -- a part of test_ep_nccl.c, which includes it once: scenes, and a rank in one. */
/* The most rows that a rank has for another one; all: that all together have for one. */
static int fullest(const scene *s, int ranks, int *all)
{
    int rows[RANKS], sum[RANKS] = { 0 }, most = 0, r, p, t, k, n, token = 0;
    *all = 0;
    for (r = 0; r < ranks; r++) {
        memset(rows, 0, sizeof rows);
        for (t = 0; t < s->tokens[r]; t++, token++) {
            unsigned to = 0;
            for (k = 0; k < TOPK; k++) {
                int e = s->whole.args.topk_ids[token * TOPK + k];
                for (p = 0; e >= (n = EXPERTS / ranks + (p < EXPERTS % ranks)); p++) e -= n;
                to |= 1u << p;
            }
            for (p = 0; p < ranks; p++) {
                if (!(to >> p & 1)) continue;
                if (++rows[p] > most) most = rows[p];
                if (++sum[p] > *all) *all = sum[p];
            }
        }
    }
    return most;
}
static void add_scene(world *w, int kind, int combine, int quant, int alone)
{
    scene *s = &w->scene[w->scenes++];
    int r, all;
    snprintf(s->what, sizeof s->what, "%s, combine %d, %s, %d ranks%s", moek_ep_kind_name(kind), combine,
             moek_quant_name(quant), w->ranks, alone ? ", one without tokens" : "");
    s->config.hidden = HIDDEN; s->config.inter = INTER; s->config.experts = EXPERTS; s->config.topk = TOPK;
    s->config.quant = quant; s->config.act = MOEK_SILU; s->config.exclude = 1u << MOEK_BACKEND_CPU;
    s->config.batch_invariant = 1;
    s->group.kind = kind; s->group.combine = combine;
    s->group.timeout_ms = 10000;
    if (kind == MOEK_EP_LOW_LATENCY) s->config.format = MOEK_BATCHED;              /* of the one GPU, too */
    s->exact_bits = combine == MOEK_EP_EXACT;
    s->brings = w->scenes % 2;
    for (r = 0; r < w->ranks; r++) s->total += s->tokens[r] = r == 1 && alone ? 0 : MOST - r % 3;
    s->config.max_tokens = s->total;
    layer_new(&s->whole, &s->config, 0, s->total);
    memcpy(s->whole.what, s->what, sizeof s->what);
    if (!layer_plan(&s->whole) || !(s->one = layer_y(&s->whole, moek_run))) exit(1);
    s->config.max_tokens = MOST;
    if (kind == MOEK_EP_ALLTOALL && alone)             /* just fits: sends */
        s->group.max_rows = w->ranks * fullest(s, w->ranks, &all);
    for (r = 0; r < PATHS; r++) s->y[r] = (uint16_t *)calloc((size_t)s->total, 2 * HIDDEN);
}
static void make_scenes(world *w)
{
    const int quants[] = {
#ifdef MOEK_QUANT
        MOEK_QUANT, MOEK_QUANT
#else
        FORMAT_PLAIN, FORMAT_BLOCKED
#endif
    };
    add_scene(w, MOEK_EP_ALLGATHER, MOEK_EP_EXACT, quants[0], 0);
    add_scene(w, MOEK_EP_ALLGATHER, MOEK_EP_EXACT, quants[1], 1);
    add_scene(w, MOEK_EP_ALLGATHER, MOEK_EP_REDUCED_F32, quants[0], 0);
    add_scene(w, MOEK_EP_LOW_LATENCY, MOEK_EP_REDUCED, quants[1], 0);
    add_scene(w, MOEK_EP_LOW_LATENCY, MOEK_EP_EXACT, quants[0], 1);
    add_scene(w, MOEK_EP_ALLTOALL, MOEK_EP_EXACT, quants[1], 0);
    add_scene(w, MOEK_EP_ALLTOALL, MOEK_EP_REDUCED, quants[0], 1);
#ifndef MOEK_QUANT
    add_scene(w, MOEK_EP_ALLGATHER, MOEK_EP_EXACT, format_nth(format_byte_scales, 0), 0);
    add_scene(w, MOEK_EP_LOW_LATENCY, MOEK_EP_EXACT, format_nth(format_byte_scales, 1), 0);
    add_scene(w, MOEK_EP_ALLTOALL, MOEK_EP_EXACT, format_nth(format_x_second, 0), 0);
#endif
}

/* ---- a rank in a scene ------------------------------------------------------------------------------------------- */

static const void *gift(rank *k, const void *host, size_t bytes)
{
    void *p;
    if (!host) return NULL;
    p = mem_alloc(MEM_DEVICE, bytes);
    mem_put(MEM_DEVICE, p, host, bytes);
    if (k->gifts == 16) abort();
    return k->given[k->gifts++] = p;
}
static const void *pieces(rank *k, const void *from, size_t bytes)
{
    unsigned char *to;
    const void *p;
    int i;
    if (!from) return NULL;
    to = (unsigned char *)calloc((size_t)k->ep.local_experts, bytes);
    for (i = 0; i < k->ep.local_experts; i++) {
        const int e = moek_ep_expert(&k->ep, k->number, i);
        if (e >= 0) memcpy(to + (size_t)i * bytes, (const char *)from + (size_t)e * bytes, bytes);
    }
    p = gift(k, to, bytes * (size_t)k->ep.local_experts);
    free(to);
    return p;
}
static int plan_rank(rank *k, const scene *s)
{
    const layer *l = &s->whole;
    const moek_format *const f = l->format, *const d = layer_down(l);
    const size_t h = HIDDEN, i = INTER, up = (size_t)l->up_rows;
    moek_config c = s->config;
    moek_weights w;
    moek_args *a = &k->args;
    size_t first = 0, n = (size_t)s->tokens[k->number];
    int r, ok;
    for (r = 0; r < k->number; r++) first += (size_t)s->tokens[r];
    moek_ep_join(&k->ep, &c);
    memset(&w, 0, sizeof w);
    w.w_up = pieces(k, l->w.w_up, up * moek_weight_bytes(f, 0, h));
    w.w_down = pieces(k, l->w.w_down, h * moek_weight_bytes(d, 0, i));
    w.w_up_scale = (const float *)pieces(k, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    w.w_down_scale = (const float *)pieces(k, l->w.w_down_scale, moek_scale_bytes(&d->w_scale, h, i));
    w.w_up_global_scale = (const float *)pieces(k, l->w.w_up_global_scale, 4 * up / i);
    w.w_down_global_scale = (const float *)pieces(k, l->w.w_down_global_scale, 4);
    w.x_scale = (const float *)gift(k, l->w.x_scale, 4);
    w.h_scale = (const float *)gift(k, l->w.h_scale, 4);
    ok = moek_plan_init(&k->plan, &c) == MOEK_OK && moek_plan_bind(&k->plan, &w) == MOEK_OK;
    SAY(ok, "%s: %s", s->what, k->plan.why);
    if (!ok) return 0;
    memset(a, 0, sizeof *a);
    a->tokens = (int)n;
    a->x = gift(k, (const char *)l->args.x + 2 * h * first, 2 * h * n);
    a->topk_ids = (int32_t *)(size_t)gift(k, l->args.topk_ids + first * TOPK, 4 * TOPK * n);
    a->topk_weights = (float *)(size_t)gift(k, l->args.topk_weights + first * TOPK, 4 * TOPK * n);
    a->y = k->given[k->gifts++] = mem_alloc(MEM_DEVICE, 2 * h * n);
    a->workspace_size = moek_workspace_size(&k->plan);
    a->workspace = k->given[k->gifts++] = mem_alloc(MEM_DEVICE, a->workspace_size);
    a->why = k->why; a->why_size = sizeof k->why;
    return 1;
}
static void let_go(rank *k)
{
    while (k->gifts) mem_free(MEM_DEVICE, k->given[--k->gifts]);
}
static void run(rank *k, const scene *s, int runs)
{
    int i;
    for (i = 0; i < runs; i++) {
        const moek_status status = moek_run(&k->plan, &k->args, (moek_stream)k->stream);
        SAY(status == MOEK_OK, "%s: rank %d: %s", s->what, k->number, k->why);
    }
}
static void waited(rank *k, const scene *s, const char *how)
{
    const moek_status status = moek_ep_nccl_wait(&k->wire, &k->ep, (moek_stream)k->stream, 0);
    SAY(status == MOEK_OK, "%s: rank %d: %s: %s", s->what, k->number, how, moek_status_name(status));
}
/* Runs in a graph, replayed three times. */
static void replay(rank *k, const scene *s)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int i;
    mem_must(cudaStreamBeginCapture(k->stream, cudaStreamCaptureModeThreadLocal));
    run(k, s, RUNS > 3 ? 3 : RUNS);
    mem_must(cudaStreamEndCapture(k->stream, &graph));
    mem_must(cudaGraphInstantiate(&exec, graph, 0));
    mem_must(cudaMemsetAsync(k->args.y, LAYER_POISON, 2 * HIDDEN * (size_t)k->args.tokens, k->stream));
    for (i = 0; i < 3; i++) mem_must(cudaGraphLaunch(exec, k->stream));
    waited(k, s, "graph");
    meet(k);
    mem_must(cudaGraphExecDestroy(exec));
    mem_must(cudaGraphDestroy(graph));
}

/* Memory that the caller brings: rubbish, `at` bytes into what was allocated. */
static void bring_at(rank *k, int path, size_t bytes, size_t at)
{
    if (path == MOEK_EP_NCCL_WINDOW) must_nccl(ncclMemAlloc(&k->memory, at + bytes));
    else mem_must(cudaMalloc(&k->memory, at + bytes));
    mem_must(cudaMemset(k->memory, LAYER_POISON, at + bytes));
    mem_must(cudaDeviceSynchronize());
    k->memory = (char *)k->memory + at;
    k->memory_size = bytes; k->memory_by = path; k->memory_at = at;
}
static void bring(rank *k, int path, size_t bytes) { bring_at(k, path, bytes, 0); }
static void take_away(rank *k)
{
    void *const start = k->memory ? (char *)k->memory - k->memory_at : NULL;
    if (start && k->memory_by == MOEK_EP_NCCL_WINDOW) must_nccl(ncclMemFree(start));
    else if (start) mem_must(cudaFree(start));
    k->memory = NULL; k->memory_size = 0;
}
static int opens(rank *k, const scene *s, int path)
{
    moek_ep_config g = s->group;
    moek_status status;
    g.layer = &s->config;
    status = moek_ep_nccl_open_in(&k->wire, &k->ep, &g, k->comm, path, k->memory, k->memory_size);
    SAY(!k->memory || k->wire.window == k->memory, "%s: rank %d: not in its memory", s->what, k->number);
    SAY(status == MOEK_OK && k->wire.path == path, "%s: rank %d: %s: %s", s->what, k->number,
        moek_ep_nccl_path_name(path), k->wire.text);
    return status == MOEK_OK;
}
/* Processes: moek, not NCCL, takes ranks for two hosts (from now on); or for one again. */
static void hosts(const rank *k, int two)
{
    if (!k->all->next) return;
    if (two) setenv("NCCL_HOSTID", k->number % 2 ? "odd" : "even", 1);
    else unsetenv("NCCL_HOSTID");
}
static void on_path(rank *k, scene *s, int path)
{
    const size_t n = 2 * HIDDEN * (size_t)s->tokens[k->number];
    uint16_t *y = s->y[path - 1];
    const size_t elsewhere = ((size_t)2 << 20) * (size_t)k->number + 256 * (size_t)(s->total % 7);
    const int before = held();
    moek_ep_config g = s->group;
    int r;
    g.layer = &s->config; g.rank = k->number; g.ranks = k->all->ranks;
    if (s->brings)                                     /* ipc, sends: wherever it is, on each rank elsewhere */
        bring_at(k, path, moek_ep_nccl_memory_size(&g, path), path == MOEK_EP_NCCL_WINDOW ? 0 : elsewhere);
    hosts(k, path == MOEK_EP_NCCL_SENDS && s != &k->all->scene[0]);
    if (!opens(k, s, path)) return;
    SAY(k->ep.config.move_gathers == (k->all->next && path == MOEK_EP_NCCL_SENDS && s != &k->all->scene[0]),
        "%s: rank %d: move_gathers is %d", s->what, k->number, k->ep.config.move_gathers);
    hosts(k, 0);
    for (r = 0; r < k->number; r++) y += HIDDEN * (size_t)s->tokens[r];
    if (plan_rank(k, s)) {
        run(k, s, RUNS);
        waited(k, s, "runs");
        mem_get(MEM_DEVICE, y, k->args.y, n);
        replay(k, s);
        if (n) {
            uint16_t *again = (uint16_t *)malloc(n);
            mem_get(MEM_DEVICE, again, k->args.y, n);
            SAY(!memcmp(again, y, n), "%s: rank %d: %s: a graph gives other bits", s->what, k->number,
                moek_ep_nccl_path_name(path));
            free(again);
        }
    }
    SAY(moek_ep_nccl_close(&k->wire) == MOEK_OK, "%s: rank %d: close", s->what, k->number);
    let_go(k);
    take_away(k);
    SAY(held() == before, "%s: rank %d: %s: holds %d, before %d", s->what, k->number, moek_ep_nccl_path_name(path),
        held(), before);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* All ranks are told `status`, and all texts hold `words`. */
static void refused(rank *k, moek_ep_config g, int path, moek_status status, const char *words)
{
    const int before = held();
    const moek_status got = moek_ep_nccl_open_in(&k->wire, &k->ep, &g, k->comm, path, k->memory, k->memory_size);
    SAY(got == status && strstr(k->wire.text, words) && !k->wire.path && !k->wire.window,
        "rank %d: %s, not %s: \"%s\" has no \"%s\"", k->number, moek_status_name(got), moek_status_name(status),
        k->wire.text, words);
    SAY(held() == before, "rank %d: refused, but holds %d, before %d", k->number, held(), before);
    if (!k->wire.comm) exit(1);
    meet(k);
}
/* Memory that is too little, of another size on a rank, on one alone, none at all, of the wrong kind. */
static void test_memory(rank *k)
{
    const int odd = k->number == 1;
    scene *s = &k->all->scene[0];
    moek_ep_config g = s->group;
    size_t one, two;
    char words[96];
    static char host[256];
    g.layer = &s->config; g.rank = k->number; g.ranks = k->all->ranks;
    one = moek_ep_nccl_memory_size(&g, MOEK_EP_NCCL_IPC);
    two = moek_ep_nccl_memory_size(&g, MOEK_EP_NCCL_SENDS);
    SAY(one >= 4096 && moek_ep_nccl_memory_size(&g, MOEK_EP_NCCL_WINDOW) == one && two > one && two % 4096 == 0 &&
        moek_ep_nccl_memory_size(&g, MOEK_EP_NCCL_AUTO) == two, "sizes are %lu and %lu", (unsigned long)one,
        (unsigned long)two);
    bring(k, MOEK_EP_NCCL_SENDS, two);
    k->memory_size = two - 4096;
    snprintf(words, sizeof words, "sends: rank 0: memory is of %lu bytes, this path needs %lu",
             (unsigned long)two - 4096, (unsigned long)two);
    refused(k, g, MOEK_EP_NCCL_SENDS, MOEK_E_BACKEND, words);
    k->memory_size = two - (odd ? 256 : 0);
    snprintf(words, sizeof words, "memory: rank 1 brings %lu bytes, rank 0 %lu", (unsigned long)two - 256,
             (unsigned long)two);
    refused(k, g, 0, MOEK_E_MISMATCH, words);
    if (!odd) take_away(k);
    k->memory_size = odd ? two : 0;
    snprintf(words, sizeof words, "memory: rank 1 brings %lu bytes, rank 0 0", (unsigned long)two);
    refused(k, g, 0, MOEK_E_MISMATCH, words);
    take_away(k);
    k->memory_size = odd ? two : 0;
    refused(k, g, 0, MOEK_E_ARGUMENT, "rank 1: memory is NULL");
    bring(k, MOEK_EP_NCCL_IPC, two);
    if (k->all->window)
        refused(k, g, MOEK_EP_NCCL_WINDOW, MOEK_E_BACKEND, "window: rank 0: memory is not ncclMemAlloc's");
    if (odd) k->memory = (char *)k->memory + 64;
    refused(k, g, 0, MOEK_E_ARGUMENT, "rank 1: memory is no memory of device 1, or not aligned to 256");
    if (odd) k->memory = (char *)k->memory - 64;
    take_away(k);
    if (odd) k->memory = host;
    else bring(k, MOEK_EP_NCCL_IPC, two);
    k->memory_size = two;
    refused(k, g, 0, MOEK_E_ARGUMENT, "rank 1: memory is no memory of device 1");
    if (odd) k->memory = NULL;
    take_away(k);
    if (!k->all->window) return;
    bring(k, MOEK_EP_NCCL_WINDOW, two);
    refused(k, g, MOEK_EP_NCCL_IPC, MOEK_E_BACKEND, "ipc: rank 0: memory is not cudaMalloc's");
    if (odd) k->memory = (char *)k->memory + 256;
    k->memory_size = one;
    refused(k, g, MOEK_EP_NCCL_WINDOW, MOEK_E_BACKEND, "window: rank 1: memory is not aligned to 4096 bytes");
    if (odd) k->memory = (char *)k->memory - 256;
    take_away(k);
}
static void test_refused(rank *k)
{
    const int odd = k->number == 1;
    scene *s = &k->all->scene[0];
    moek_config c = s->config;
    moek_ep_config g = s->group, h;
    char words[64];
    g.layer = &c;
    c.topk += odd;
    refused(k, g, 0, MOEK_E_MISMATCH, "topk: rank 1 has 5, rank 0 has 4");
    c.topk -= odd;
    c.max_tokens += odd;
    snprintf(words, sizeof words, "max_tokens: rank 1 has %d, rank 0 has %d", MOST + 1, (int)MOST);
    refused(k, g, MOEK_EP_NCCL_IPC, MOEK_E_MISMATCH, words);
    c.max_tokens -= odd;
    refused(k, g, odd ? MOEK_EP_NCCL_IPC : MOEK_EP_NCCL_SENDS, MOEK_E_MISMATCH,
            "path: rank 1 has 2, rank 0 has 3");
    h = g;
    if (odd) { h.rank = 0; h.ranks = k->all->ranks; }
    refused(k, h, 0, MOEK_E_ARGUMENT, "rank 1: group says rank 0");
    h = g;
    h.handles = odd ? 3 : 0;
    refused(k, h, 0, MOEK_E_ARGUMENT, "rank 1: handles is 3");
    if (odd) mem_must(cudaSetDevice(0));
    refused(k, g, 0, MOEK_E_ARGUMENT, "rank 1: the communicator is for device");
    mem_must(cudaSetDevice(k->device));
    if (!k->all->window) refused(k, g, MOEK_EP_NCCL_WINDOW, MOEK_E_BACKEND, "window: ");
    SAY(moek_ep_nccl_open(&k->wire, &k->ep, &g, k->comm, 0) == MOEK_OK &&
        k->wire.path == (k->all->window ? MOEK_EP_NCCL_WINDOW : MOEK_EP_NCCL_IPC), "auto: %s", k->wire.text);
    if (k->number == 0) printf("%s", k->wire.text);
    meet(k);
    SAY(moek_ep_nccl_close(&k->wire) == MOEK_OK, "rank %d: close", k->number);
    test_memory(k);
}
