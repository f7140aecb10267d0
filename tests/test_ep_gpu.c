/* test_ep_gpu.c -- the exchange on GPUs: N ranks on one of them (loopback) and, where there are two, by peer access,
 * against the same group in host memory, half by half: what arrives to the bit, y to its rounding.  And
 * graphs, runs in threads, ranks in processes, what a rank that is silent or killed does to the others, and what is
 * refused.
 *
 *   nvcc -x cu -std=c++17 -O2 -arch=native -Iinclude -Itests tests/test_ep_gpu.c -o ep_gpu && ./ep_gpu
 *   ./ep_gpu [quick] [loopback] [TESTS]                        all but one GPU left out; these tests only
 *   ./ep_gpu [loopback] soak OPERATIONS                so many with low_latency, a tenth of them with the other kinds,
 *                                                      a hundredth with three and four ranks
 *   c++ -std=c++17 -O2 -DMOEK_EMU -DMOEK_EMU_ARCH=90 -Iinclude -Itests -x c++ tests/test_ep_gpu.c -o ep_gpu
 *
 * The last runs the kernels on the CPU, one after the other: halves of the exchange, and the ends of groups; and
 * whole layers of ranks that are processes, so that their kernels wait for each other as on GPUs.
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  A scene has each rank twice: in host memory and on a
 * GPU.  One thread drives all ranks, half by half, but where that is what is tested.  Windows are rubbish where they
 * may be, y and workspaces always; y and windows lie between guards.  Where rows are moved (config.move) ranks on GPUs
 * know no window but their own, and `cross` copies. */
#ifdef MOEK_EMU
#include "emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek_ep.h"
#include "layer.h"
#include "ep_fields.h"
#include "processes.h"
#include "quick.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

#if !MEM_CUDA                                          /* the emulator: a kernel is done when it has been launched */
typedef moek_stream cudaStream_t;
enum { cudaHostAllocPortable, cudaStreamNonBlocking };
static void mem_must(int status) { (void)status; }
static int cudaSetDevice(int device) { return device; }
static int cudaGetDeviceCount(int *n) { return *n = 1; }
static int cudaDeviceSynchronize(void) { return 0; }
static int cudaMemset(void *p, int value, size_t n) { memset(p, value, n); return 0; }
static int cudaHostAlloc(void **p, size_t n, int flags) { *p = malloc(n); return flags; }
static int cudaFreeHost(void *p) { free(p); return 0; }
static int cudaStreamCreateWithFlags(cudaStream_t *s, int flags) { *s = NULL; return flags; }
static int cudaStreamSynchronize(cudaStream_t s) { return s != NULL; }
static int cudaStreamDestroy(cudaStream_t s) { return s != NULL; }
#endif

enum { RANKS = 8, EXPERTS = 19, PHYSICAL = 2 * EXPERTS + 1, TOPK = 4, MOST = 9, HIDDEN = 384, INTER = 128 };
enum { GUARD = 256 };

typedef struct side {                                  /* one rank, in host memory or on a GPU */
    int gpu, device;
    moek_ep ep;
    moek_ep_config group;
    moek_config config;
    moek_plan plan;
    moek_args args;
    moek_step step;
    moek_weights w;
    unsigned char *window, *out;                       /* out: where rows are moved */
    size_t window_size;
    void *report;
    cudaStream_t stream;
    void *given[64];                                   /* to be freed */
    int gifts;
    char why[MOEK_WHY];
    moek_status status;
} side;

typedef struct scene {
    char what[160];
    int peers;                                         /* GPUs */
    moek_ep_config group;
    moek_config config;
    layer whole;
    int options, total, tokens[RANKS];
    side host[RANKS], gpu[RANKS];
    void *host_base[RANKS], *gpu_base[RANKS];
    uint16_t *y;                                       /* of the twins, once they have run */
    uint16_t *shared;                                  /* shared_y of all tokens, or NULL */
    size_t gap;                                        /* elements between rows of x; twice and three times as many
                                                          between those of y and shared_y */
    int bare;                                          /* experts do not run: their weights are of one, whose ever */
    int mapped;                                        /* replicas, and what follows */
    int32_t owner[PHYSICAL], logical[PHYSICAL], replicas[3 * EXPERTS], replica_count[EXPERTS];
} scene;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void on(const side *k) { if (k->gpu) mem_must(cudaSetDevice(k->device)); }
static void sync_all(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++) { on(&s->gpu[r]); mem_must(cudaStreamSynchronize(s->gpu[r].stream)); }
}

static void sync_devices(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++) { on(&s->gpu[r]); mem_must(cudaDeviceSynchronize()); }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* `bytes` of `fill` between guards, wherever the side lives.  shared: processes to come see it, too. */
static int shared;
static unsigned char *guarded(const side *k, size_t bytes, int fill)
{
    unsigned char *p;
    on(k);
    if (!shared) p = (unsigned char *)mem_alloc(k->gpu, bytes + 2 * GUARD);
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
    mem_get(k->gpu, guard, p - GUARD, GUARD);
    mem_get(k->gpu, guard + GUARD, p + bytes, GUARD);
    for (i = 0; i < 2 * GUARD; i++) ok &= guard[i] == LAYER_POISON;
    CHECK(ok, "%s: something was written beside an array", what);
    if (!shared) mem_free(k->gpu, p - GUARD);
    else munmap(p - GUARD, bytes + 2 * GUARD);
}
static void *room(side *k, size_t bytes)
{
    on(k);
    if (k->gifts == 64) abort();
    return k->given[k->gifts++] = mem_alloc(k->gpu, bytes);
}
static const void *gift(side *k, const void *host, size_t bytes)
{
    void *p;
    if (!host) return NULL;
    p = room(k, bytes);
    mem_put(k->gpu, p, host, bytes);
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
    memcpy(to, from, bytes);
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
    const moek_format *const f = l->format;
    const size_t h = (size_t)s->config.hidden, i = (size_t)s->config.inter, up = (size_t)l->up_rows;
    static const int64_t zeros[PHYSICAL] = { 0 };
    memset(&k->w, 0, sizeof k->w);
    k->w.w_up = pieces(k, l->w.w_up, up * moek_weight_bytes(f, 0, h));
    k->w.w_down = pieces(k, l->w.w_down, h * moek_weight_bytes(f, 0, i));
    k->w.w_up_scale = (const float *)pieces(k, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    k->w.w_down_scale = (const float *)pieces(k, l->w.w_down_scale, moek_scale_bytes(&f->w_scale, h, i));
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
    mem_get(1, rows, k->window + at, n);
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

/* Inputs, then both groups.  pattern also says who has tokens. */
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
                mem_put(g, (char *)(size_t)a->x + t * (row + 2 * s->gap), (const char *)l->x + (first + t) * row, row);
            mem_put(g, a->topk_ids, (const char *)l->topk_ids + first * slots, n * slots);
            mem_put(g, a->topk_weights, (const char *)l->topk_weights + first * slots, n * slots);
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
            for (i = 0; i < k->gifts; i++) { on(k); mem_free(k->gpu, k->given[i]); }
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
    moek_emu_hold = waits(what) && !moved ? "moek_ep_send" : NULL;
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
    mem_get(k->gpu, host, there, bytes);
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
/* The same in standard format.  allgather: rows of all tokens, ids of -1 behind those of each rank; alltoall: the rows
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
        mem_put(1, (char *)g->step.out + at * row, (char *)h->step.out + (size_t)i * row, (size_t)n * row);
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
/* Each may be as far from the reference as layer.h says: the twin's rows of the CPU, and those of the GPU, which sum in
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

/* ---- tests ------------------------------------------------------------------------------------------------------- */

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
    for (i = 0; i < EP_EMULATED + !MEM_CUDA; i++) ep_fields_test(i, &place);
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
            mem_put(g, one->args.topk_ids, ids, sizeof ids);
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

/* ---- ranks in processes ------------------------------------------------------------------------------------------ */

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
    k->window = (unsigned char *)mem_alloc(1, k->window_size + at) + at;
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
    base[0] = mem_alloc(1, size);
    mem_must(cudaMemset(base[0], 0, size));
    mem_must(cudaDeviceSynchronize());
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "report is no pinned memory"),
          "report: %s", ep.why);
    mem_must(cudaHostAlloc(&g.report, MOEK_EP_REPORT, cudaHostAllocPortable));
    memset(g.report, 0, MOEK_EP_REPORT);
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "open: %s", ep.why);
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "not zeroed"), "twice: %s", ep.why);
    mem_must(cudaFreeHost(g.report));
    mem_free(1, base[0]);
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

int main(int argc, char **argv)
{
    char **words;
    quick_word(&argc, &argv);
    words = argv + 1;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);    /* a queue for each rank's stream: kernels in them wait */
#if MEM_CUDA
    if (argc == 5 && (!strcmp(argv[1], "rank") || !strcmp(argv[1], "dying")))
        return be_rank(atoi(argv[2]), atoi(argv[3]), argv[4], argv[1][0] == 'd');
    program = argv[0];
#endif
    if (!mem_can_run(80)) {
        printf("no GPU\n");
        check_skipped++;
        return check_end();
    }
    mem_must(cudaGetDeviceCount(&gpus));
#if MEM_CUDA
    {
        struct cudaDeviceProp p;
        mem_must(cudaGetDeviceProperties(&p, 0));
        if (p.major == 9) gpu_arch = 90;
    }
#endif
    if (argc > 1 && !strcmp(argv[1], "loopback")) { gpus = 1; words++; }
    printf("%d GPU%s\n", gpus, gpus > 1 ? "s" : "");
#if MEM_CUDA
    if (words[0] && words[1] && !strcmp(words[0], "soak")) {
        soak_kinds(atol(words[1]));
        return check_end();
    }
#endif
    RUN(test_refused);
    RUN(test_fields);
    RUN(test_refused_first);
    RUN(test_slots_without);
    RUN(test_exchange);
    RUN(test_maps);
    RUN(test_sizes);
    RUN(test_formats);
    RUN(test_baked);
    RUN(test_tiled);
#ifdef MOEK_EMU
    moek_emu_backwards = 1;                            /* blocks and lanes in falling order: the same */
    if (!quick_set) RUN(test_exchange);
    moek_emu_backwards = 0;
#endif
#if MEM_CUDA
    RUN(test_layers);
    RUN(test_graphs);
#endif
    RUN(test_allgather);
    RUN(test_alltoall);
    RUN(test_ranks);
    RUN(test_capacity);
#ifdef MOEK_EMU
    moek_emu_backwards = 1;
    if (!quick_set) RUN(test_ranks);
    if (!quick_set) RUN(test_capacity);
    moek_emu_backwards = 0;
#endif
#ifdef MOEK_EMU
    RUN(test_together);
#endif
    RUN(test_moved);
    RUN(test_bounds);
    RUN(test_two_in_flight);
    RUN(test_silence);
#if MEM_CUDA
    RUN(test_processes);
#endif
    return check_end();
}
