/* test_ep_nccl.c -- groups over NCCL, a rank a GPU, in threads and in processes: every path gives the same bits, those
 * of one GPU where that is promised, also in graphs; what differs between ranks is found, with its name; and a rank
 * that does not come, or is killed, keeps nobody waiting.  With fewer than two GPUs all of it is skipped.
 *
 *   nvcc -x cu -std=c++17 -O2 -arch=native -Iinclude -Itests tests/test_ep_nccl.c -o ep_nccl -lnccl
 *   ./ep_nccl [RANKS]                                 2 and 4, where there are so many GPUs; or RANKS
 *   c++ -std=c++17 -O2 -DMOEK_EMU -DMOEK_EMU_CUDA -DMOEK_ARCH=80 -Iinclude -Itests -Itests/emu -x c++ -rdynamic \
 *       -pthread tests/test_ep_nccl.c -o ep_nccl
 *
 * The last needs no GPU and no NCCL: both are emulated (emu_cuda.h, emu_nccl.h), and ranks are processes.  It also has
 * what real ones do not do when they are asked: old versions, calls that fail, GPUs that do not reach each other.
 *
 * With MOEK_SPLIT rows are linked from elsewhere, and without MOEK_IMPLEMENTATION the implementation, too (then no rank
 * can say that it is older). */
#ifdef MOEK_EMU
#include "emu_cuda.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#ifdef MOEK_IMPLEMENTATION
static __thread int older;                             /* this rank says that its moek is so much older */
#define MOEK_EP_NCCL_VERSION_ (MOEK_VERSION - older)
#endif
#include "moek_ep_nccl.h"
#include "layer.h"
#include "must_nccl.h"
#include "processes.h"
#include <pthread.h>
#include <time.h>

enum { RANKS = 4, TOPK = 4, INTER = 128, PATHS = 3, SCENES = 10 };
#ifdef MOEK_EMU
enum { EXPERTS = 7, MOST = 5, HIDDEN = 128, RUNS = 2, SILENCE_MS = 2500 };
#else
enum { EXPERTS = 19, MOST = 21, HIDDEN = 512, RUNS = 5, SILENCE_MS = 600 };
#endif

typedef struct scene {
    char what[96];
    moek_config config;
    moek_ep_config group;
    int exact_bits, brings, total, tokens[RANKS];      /* brings: ranks bring their memory */
    layer whole;                                       /* all experts and tokens on one GPU ... */
    uint16_t *one, *y[PATHS];                          /* ... and its y; that of the ranks, by path */
} scene;
typedef struct world {
    int ranks, scenes, window;                         /* window: has NCCL one here? */
    struct scene scene[SCENES];
    ncclUniqueId id;
    pthread_barrier_t *barrier;                        /* of all ranks, or NULL */
    ncclUniqueId *next;                                /* processes: for another communicator; in a file that all map */
} world;
typedef struct rank {
    world *all;
    int number, device, gifts;
    ncclComm_t comm;
    cudaStream_t stream;
    void *given[16], *memory;                          /* memory: brought to the next groups, or NULL */
    size_t memory_size;
    int memory_by;                                     /* the path it was allocated for */
    size_t memory_at;                                  /* where in what was allocated */
    moek_ep ep;
    moek_ep_nccl wire;
    moek_plan plan;
    moek_args args;
    char why[MOEK_WHY];
} rank;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
/* CHECK of a rank: counters are the program's.  (The condition may wait for other ranks: it is not under the lock.) */
#define SAY(condition, ...) \
    do { \
        const int ok_ = (condition) != 0; \
        pthread_mutex_lock(&one_at_a_time); \
        check_(ok_, __FILE__, __LINE__, #condition, __VA_ARGS__); \
        pthread_mutex_unlock(&one_at_a_time); \
    } while (0)
/* What this process has of GPUs; and no error was left behind, nothing freed too early. */
static int held(void)
{
#ifdef MOEK_EMU
    return cudaPeekAtLastError() == cudaSuccess && !emu_gpu.freed_mapped ? emu_held_by_process() : -1;
#else
    return 0;
#endif
}
static void meet(const rank *k) { if (k->all->barrier) pthread_barrier_wait(k->all->barrier); }

/* ---- scenes ------------------------------------------------------------------------------------------------------ */

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
    p = mem_alloc(1, bytes);
    mem_put(1, p, host, bytes);
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
    const moek_format *const f = l->format;
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
    w.w_down = pieces(k, l->w.w_down, h * moek_weight_bytes(f, 0, i));
    w.w_up_scale = (const float *)pieces(k, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    w.w_down_scale = (const float *)pieces(k, l->w.w_down_scale, moek_scale_bytes(&f->w_scale, h, i));
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
    a->y = k->given[k->gifts++] = mem_alloc(1, 2 * h * n);
    a->workspace_size = moek_workspace_size(&k->plan);
    a->workspace = k->given[k->gifts++] = mem_alloc(1, a->workspace_size);
    a->why = k->why; a->why_size = sizeof k->why;
    return 1;
}
static void let_go(rank *k)
{
    while (k->gifts) mem_free(1, k->given[--k->gifts]);
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
        mem_get(1, y, k->args.y, n);
        replay(k, s);
        if (n) {
            uint16_t *again = (uint16_t *)malloc(n);
            mem_get(1, again, k->args.y, n);
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

/* ---- a rank that does not come ----------------------------------------------------------------------------------- */

static void silence(rank *k, int path)
{
    scene *s = &k->all->scene[0];
    const int limit = s->group.timeout_ms, silent = k->number == 1;
    const double most = SILENCE_MS < 1000 ? 6 : 15;
    moek_status status;
    double start;
    meet(k);
    s->group.timeout_ms = SILENCE_MS;
    meet(k);
    if (!opens(k, s, path) || !plan_rank(k, s)) exit(1);
    run(k, s, 2);
    waited(k, s, "before the silence");
    meet(k);
    start = now_s();
    if (!silent) run(k, s, 1);
    status = silent ? MOEK_OK : moek_ep_nccl_wait(&k->wire, &k->ep, (moek_stream)k->stream,
                                                  path == MOEK_EP_NCCL_SENDS ? 0 : 15 * SILENCE_MS);
    SAY(now_s() - start < most, "silence: rank %d waited for %.1f s", k->number, now_s() - start);
    SAY(silent || status == MOEK_E_TIMEOUT || status == MOEK_E_ABORTED, "silence: rank %d: %s", k->number,
        moek_status_name(status));
    if (path == MOEK_EP_NCCL_SENDS)
        SAY((k->wire.comm == NULL) == !silent, "silence: rank %d: the communicator was %saborted", k->number,
            k->wire.comm ? "not " : "");
    meet(k);
    if (!silent)
        SAY(moek_run(&k->plan, &k->args, (moek_stream)k->stream) != MOEK_OK && k->why[0], "silence: rank %d runs on",
            k->number);
    if (silent && path == MOEK_EP_NCCL_SENDS) moek_ep_nccl_abort(&k->wire, &k->ep);   /* nobody answers any more */
    status = moek_ep_nccl_close(&k->wire);
    SAY(status == (path == MOEK_EP_NCCL_SENDS ? MOEK_E_TIMEOUT : MOEK_OK), "silence: rank %d: close: %s", k->number,
        moek_status_name(status));
    if (path == MOEK_EP_NCCL_SENDS) k->comm = k->wire.comm;
    s->group.timeout_ms = limit;
    let_go(k);
    meet(k);
}

/* ---- operations that do not fit, ranks that close early, ranks of another version ------------------------------- */

/* alltoall with room for a row less than it takes: all ranks hear of it, and how much it takes; then only the first
 * token of each rank goes anywhere, and that fits. */
static void too_many(rank *k, int path)
{
    scene s = k->all->scene[5];
    const int moves = path == MOEK_EP_NCCL_SENDS, before = held();
    const size_t n = 2 * HIDDEN * (size_t)s.tokens[k->number];
    uint16_t *const y = (uint16_t *)malloc(n);
    int32_t ids[TOPK * MOST];
    int all, needs = k->all->ranks * fullest(&s, k->all->ranks, &all), i, first = 0, untouched = 1;
    char words[64];
    moek_status status;
    if (!moves) needs = all;
    s.group.max_rows = needs - (moves ? k->all->ranks : 1);
    for (i = 0; i < k->number; i++) first += s.tokens[i];
    if (!opens(k, &s, path) || !plan_rank(k, &s)) exit(1);
    mem_must(cudaMemset(k->args.y, LAYER_POISON, n));
    mem_must(cudaDeviceSynchronize());
    run(k, &s, 1);
    status = moek_ep_nccl_wait(&k->wire, &k->ep, (moek_stream)k->stream, 0);
    snprintf(words, sizeof words, "need max_rows = %d, the group has %d", needs, s.group.max_rows);
    SAY(status == MOEK_E_CAPACITY && strstr(k->wire.text, words), "rank %d: %s: \"%s\" has no \"%s\"", k->number,
        moek_status_name(status), k->wire.text, words);
    mem_get(1, y, k->args.y, n);
    for (i = 0; i < (int)n; i++) untouched &= ((unsigned char *)y)[i] == LAYER_POISON;
    SAY(untouched, "rank %d: y was written", k->number);
    mem_get(1, ids, k->args.topk_ids, sizeof *ids * TOPK * (size_t)s.tokens[k->number]);
    for (i = TOPK; i < TOPK * s.tokens[k->number]; i++) ids[i] = -1;
    mem_put(1, k->args.topk_ids, ids, sizeof *ids * TOPK * (size_t)s.tokens[k->number]);
    run(k, &s, 1);
    waited(k, &s, "behind what did not fit");
    mem_get(1, y, k->args.y, n);
    SAY(!memcmp(y, s.one + HIDDEN * first, 2 * HIDDEN), "rank %d: other bits behind what did not fit", k->number);
    SAY(moek_ep_nccl_close(&k->wire) == MOEK_OK, "rank %d: close", k->number);
    free(y);
    let_go(k);
    SAY(held() == before, "rank %d: holds %d, before %d", k->number, held(), before);
    meet(k);
}
/* The other ranks have all that is theirs, and close, while the last kernel of rank 1 has yet to run: close waits for
 * it, and frees nothing before. */
static void closes_early(rank *k, int path)
{
    scene *s = &k->all->scene[0];
    const int late = k->number == 1, before = held();
    const size_t n = 2 * HIDDEN * (size_t)s->tokens[k->number];
    uint16_t *const y = (uint16_t *)malloc(n);
    double start, before_all;                          /* of any rank: nobody is past meet() yet */
    moek_step step;
    int i, first = 0;
    for (i = 0; i < k->number; i++) first += s->tokens[i];
    if (!opens(k, s, path) || !plan_rank(k, s)) exit(1);
    run(k, s, 1);
    waited(k, s, "before the last run");
    mem_must(cudaMemset(k->args.y, LAYER_POISON, n));
    mem_must(cudaDeviceSynchronize());
    before_all = now_s();
    meet(k);
    start = now_s();
    if (late) {
        const moek_stream on = (moek_stream)k->stream;
        SAY(moek_begin(&k->plan, &k->args, &step) == MOEK_OK && moek_route(&step, on) == MOEK_OK &&
            moek_prepare(&step, on) == MOEK_OK && moek_experts_apply(&step, on) == MOEK_OK &&
            moek_finalize_send(&step, on) == MOEK_OK, "rank %d: %s", k->number, k->why);
        usleep(300000);
        SAY(moek_finalize_receive(&step, on) == MOEK_OK, "rank %d: %s", k->number, k->why);
    } else run(k, s, 1);
    waited(k, s, "the last run");
    SAY(late || path == MOEK_EP_NCCL_SENDS || now_s() - start < 0.25 || MOST < 10, "rank %d waited for %.2f s",
        k->number, now_s() - start);
    SAY(moek_ep_nccl_close(&k->wire) == MOEK_OK && now_s() - before_all > 0.29, "rank %d: close after %.2f s",
        k->number, now_s() - before_all);
    SAY(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == MOEK_E_ARGUMENT && strstr(k->why, "group is not open"),
        "rank %d: runs when it has closed: %s", k->number, k->why);
    mem_get(1, y, k->args.y, n);
    SAY(!memcmp(y, s->one + HIDDEN * first, n), "rank %d: other bits", k->number);
    free(y);
    let_go(k);
    SAY(held() == before, "rank %d: holds %d, before %d", k->number, held(), before);
    meet(k);
}
static void test_versions(rank *k)
{
#ifdef MOEK_IMPLEMENTATION
    moek_ep_config g = k->all->scene[0].group;
    char words[64];
    g.layer = &k->all->scene[0].config;
    older = k->number == 1;
    snprintf(words, sizeof words, "rank 1 has moek %d.%d, rank 0 has %d.%d", MOEK_VERSION - 1,
             (int)MOEK_EP_WIRE_VERSION_, (int)MOEK_VERSION, (int)MOEK_EP_WIRE_VERSION_);
    refused(k, g, 0, MOEK_E_MISMATCH, words);
    older = 0;
#else
    (void)k;
    check_skipped++;
#endif
}
static void test_ends(rank *k)
{
    int path;
    test_versions(k);
    for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++) {
        if (path == MOEK_EP_NCCL_WINDOW && !k->all->window) continue;
        too_many(k, path);
        closes_early(k, path);
    }
}

/* ---- what only emulated ones do ---------------------------------------------------------------------------------- */

#ifdef MOEK_EMU
static void all_well(void)
{
    memset(&emu_nccl, 0, sizeof emu_nccl);
    emu_gpu.no_memory = emu_gpu.no_ipc = emu_gpu.no_peer = emu_gpu.no_range = 0;
    unsetenv("NCCL_HOSTID");
}
/* Opens by `path`, AUTO, and runs: `taken`, and all texts hold `words`. */
static void takes(rank *k, int taken, const char *words)
{
    scene *s = &k->all->scene[0];
    const int before = held();
    moek_ep_config g = s->group;
    moek_status status;
    g.layer = &s->config;
    status = moek_ep_nccl_open_in(&k->wire, &k->ep, &g, k->comm, MOEK_EP_NCCL_AUTO, k->memory, k->memory_size);
    SAY(status == MOEK_OK && k->wire.path == taken && strstr(k->wire.text, words), "rank %d: \"%s\", not %s, \"%s\"",
        k->number, k->wire.text, moek_ep_nccl_path_name(taken), words);
    if (status == MOEK_OK && plan_rank(k, s)) {
        run(k, s, 1);
        waited(k, s, words);
    }
    SAY(!k->wire.path || moek_ep_nccl_close(&k->wire) == MOEK_OK, "rank %d: close: %s", k->number, words);
    let_go(k);
    all_well();
    SAY(held() == before, "rank %d: %s: holds %d, before %d", k->number, words, held(), before);
    if (!k->wire.comm) exit(1);
    meet(k);
}
static void test_paths(rank *k)
{
    const int odd = k->number == 1;
    moek_ep_config g = k->all->scene[0].group;
    char words[64];
    g.layer = &k->all->scene[0].config;
    emu_nccl.version = 22809;                          /* pointers are read by a kernel ... */
    takes(k, MOEK_EP_NCCL_WINDOW, "window: taken");
    emu_nccl.version = 22902;                          /* ... and by NCCL */
    takes(k, MOEK_EP_NCCL_WINDOW, "window: taken");
    emu_nccl.version = 22806;
    takes(k, MOEK_EP_NCCL_IPC, "window: libnccl.so.2 is 2.28.6");
    emu_nccl.version = odd ? 21803 : 0;
    takes(k, MOEK_EP_NCCL_IPC, "window: libnccl.so.2 is 2.18.3, here or on another rank");
    emu_nccl.version = odd ? 22806 : 0;
    refused(k, g, MOEK_EP_NCCL_WINDOW, MOEK_E_BACKEND, "libnccl.so.2 is 2.28.6");
    all_well();
    emu_nccl.no_memory = odd;
    takes(k, MOEK_EP_NCCL_IPC, "window: rank 1: ");
    if (odd) emu_nccl.registers = ncclSystemError;
    takes(k, MOEK_EP_NCCL_IPC, "window: rank 1: ncclCommWindowRegister: unhandled system error");
    emu_nccl.no_window = 1;
    takes(k, MOEK_EP_NCCL_IPC, "window: rank 0: NCCL gives no window");
    emu_nccl.no_window = 2;
    takes(k, MOEK_EP_NCCL_IPC, "window: rank 0: NCCL gives no window");
    emu_nccl.reach = 1;
    snprintf(words, sizeof words, "window: rank 0: NCCL reaches 1 of %d ranks", k->all->ranks);
    takes(k, MOEK_EP_NCCL_IPC, words);
    emu_nccl.version = 22806;
    emu_gpu.no_ipc = odd;
    takes(k, MOEK_EP_NCCL_SENDS, "ipc: rank 0: rank 1 could not map all windows");
    emu_nccl.version = 22806;
    emu_gpu.no_peer = odd;
    takes(k, MOEK_EP_NCCL_SENDS, "ipc: rank 1: device 1 can not reach device 0");
    emu_nccl.version = 22806;
    emu_gpu.no_range = odd;
    takes(k, MOEK_EP_NCCL_SENDS, "ipc: rank 0: the window of rank 1: operation not supported");
    if (odd) setenv("NCCL_HOSTID", "elsewhere", 1);
    takes(k, MOEK_EP_NCCL_SENDS, "ipc: ranks are on several hosts");
    emu_nccl.in_progress = 99;
    takes(k, MOEK_EP_NCCL_WINDOW, "window: taken");
    g.rank = k->number; g.ranks = k->all->ranks;
    bring(k, MOEK_EP_NCCL_WINDOW, moek_ep_nccl_memory_size(&g, 0));
    takes(k, MOEK_EP_NCCL_WINDOW, "window: taken");
    emu_nccl.version = 22806;                          /* in memory of an earlier group */
    takes(k, MOEK_EP_NCCL_SENDS, "ipc: rank 0: memory is not cudaMalloc's");
    take_away(k);
    bring(k, MOEK_EP_NCCL_IPC, moek_ep_nccl_memory_size(&g, 0));
    takes(k, MOEK_EP_NCCL_IPC, "window: rank 0: memory is not ncclMemAlloc's");
    emu_gpu.no_ipc = odd;
    takes(k, MOEK_EP_NCCL_SENDS, "sends: taken");
    take_away(k);
    emu_nccl.version = 22806;
    if (odd) emu_gpu.no_memory = 2;                    /* what it says is had; windows are not */
    refused(k, g, 0, MOEK_E_CUDA, "sends: rank 1: ");
    all_well();
}

/* The communicator has gone; another one. */
static void next_comm(rank *k)
{
    meet(k);
    if (k->number == 0) must_nccl(ncclGetUniqueId(k->all->next));
    meet(k);
    must_nccl(ncclCommInitRank(&k->comm, k->all->ranks, *k->all->next, k->number));
}
/* Opening fails here and there, and all leave: nobody longer than timeout_ms. */
static void leaves(rank *k, int opening, moek_status status, const char *what)
{
    const double start = now_s();
    const int before = held();
    moek_ep_config g = k->all->scene[0].group;
    moek_status got;
    g.layer = &k->all->scene[0].config;
    g.timeout_ms = 700;
    got = opening ? moek_ep_nccl_open(&k->wire, &k->ep, &g, k->comm, 0) : status;
    SAY(got == status && now_s() - start < 5, "rank %d: %s: %s after %.1f s: %s", k->number, what,
        moek_status_name(got), now_s() - start, opening ? k->wire.text : "");
    SAY(!opening || (!k->wire.comm && !k->wire.path && k->wire.text[0]), "rank %d: %s: was not aborted", k->number,
        what);
    all_well();
    SAY(held() == before, "rank %d: %s: holds %d, before %d", k->number, what, held(), before);
    if (!opening) (void)ncclCommAbort(k->comm);
    next_comm(k);
}
static void test_leaves(rank *k)
{
    const int odd = k->number == 1;
    leaves(k, !odd, odd ? MOEK_OK : MOEK_E_TIMEOUT, "a rank does not come");
    if (odd) emu_gpu.no_memory = 1;
    leaves(k, 1, odd ? MOEK_E_CUDA : MOEK_E_TIMEOUT, "a rank has no memory to vote");
    if (odd) emu_nccl.gathers = ncclSystemError;
    leaves(k, 1, MOEK_E_TIMEOUT, "NCCL fails on a rank");
    if (odd) emu_nccl.async = ncclRemoteError;
    if (odd) emu_nccl.in_progress = 1;
    leaves(k, 1, MOEK_E_TIMEOUT, "NCCL fails later on a rank");
}

/* sends: rank 1 is silent, and NCCL says so; or `aborts`, a rank hears it from elsewhere.  Long before the timeout. */
static void ends(rank *k, int aborts)
{
    scene *s = &k->all->scene[0];
    const int silent = k->number == 1, before = held();
    const double start = now_s();
    moek_status status;
    if (!opens(k, s, MOEK_EP_NCCL_SENDS) || !plan_rank(k, s)) exit(1);
    if (!silent) run(k, s, 1);
    if (aborts || silent) {
        moek_ep_nccl_abort(&k->wire, &k->ep);
        status = MOEK_E_TIMEOUT;
    } else {
        emu_nccl.async = ncclRemoteError;
        status = moek_ep_nccl_wait(&k->wire, &k->ep, (moek_stream)k->stream, 0);
    }
    mem_must(cudaStreamSynchronize(k->stream));
    SAY(status == MOEK_E_TIMEOUT && !k->wire.comm && now_s() - start < 5, "rank %d: %s: %s after %.1f s", k->number,
        aborts ? "abort" : "an error of NCCL", moek_status_name(status), now_s() - start);
    SAY(moek_run(&k->plan, &k->args, (moek_stream)k->stream) == MOEK_E_ABORTED, "rank %d runs on: %s", k->number,
        k->why);
    SAY(moek_ep_nccl_close(&k->wire) == MOEK_E_TIMEOUT, "rank %d: close", k->number);
    let_go(k);
    all_well();
    SAY(held() == before, "rank %d: holds %d, before %d", k->number, held(), before);
    next_comm(k);
}
static void test_emulated(rank *k)
{
    test_paths(k);
    test_leaves(k);
    ends(k, 0);
    ends(k, 1);
}
#endif

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static void begin(rank *k)
{
    mem_must(cudaSetDevice(k->device));
    mem_must(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking));
    mem_must(cudaStreamSynchronize(cudaStreamPerThread));        /* (from now on it is there) */
    must_nccl(ncclCommInitRank(&k->comm, k->all->ranks, k->all->id, k->number));
}
static void all_paths(rank *k)
{
    int i, path;
    for (i = 0; i < k->all->scenes; i++)
        for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++) {
            if (path == MOEK_EP_NCCL_WINDOW && !k->all->window) continue;
            on_path(k, &k->all->scene[i], path);
        }
}
static void all_silent(rank *k)
{
    if (k->all->window) silence(k, MOEK_EP_NCCL_WINDOW);
    silence(k, MOEK_EP_NCCL_IPC);
    silence(k, MOEK_EP_NCCL_SENDS);
    if (k->comm) (void)ncclCommAbort(k->comm);
}

static void compare(const scene *s, int path, const uint16_t *one, const uint16_t *y, size_t n)
{
    double *want = (double *)malloc(8 * n + 8);
    ref_distance d;
    size_t i;
    for (i = 0; i < n; i++) want[i] = ref_get_t(one, i, s->whole.plan.config.dtype);
    d = ref_compare_t(y, want, n, s->whole.plan.config.dtype);
    CHECK(!n || d.rel_l2 < 2 * layer_tolerance(&s->whole), "%s: %s: off by %.2e", s->what,
          moek_ep_nccl_path_name(path), d.rel_l2);
    if (s->exact_bits)
        CHECK(!memcmp(y, one, 2 * n), "%s: %s: not the bits of one GPU", s->what, moek_ep_nccl_path_name(path));
    free(want);
}
static void compare_paths(const world *w, const scene *s, size_t first, size_t n)
{
    int path;
    for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++) {
        if (path == MOEK_EP_NCCL_WINDOW && !w->window) { check_skipped++; continue; }
        compare(s, path, s->one + first, s->y[path - 1] + first, n);
        CHECK(!memcmp(s->y[path - 1] + first, s->y[MOEK_EP_NCCL_IPC - 1] + first, 2 * n), "%s: %s: not the bits of ipc",
              s->what, moek_ep_nccl_path_name(path));
    }
}

static int has_window(void)
{
    const char *const cumem = getenv("NCCL_CUMEM_ENABLE");
    int version = 0;
    (void)ncclGetVersion(&version);
    return version >= 22807 && NCCL_VERSION_CODE >= 22807 && !(cumem && cumem[0] == '0');
}
static world *new_world(int ranks)
{
    world *w = (world *)calloc(1, sizeof *w);
    int version = 0;
    w->ranks = ranks;
    w->window = has_window();
    (void)ncclGetVersion(&version);
    printf("%d ranks, NCCL %d.%d.%d (compiled with %d.%d.%d)\n", ranks, version / 10000, version / 100 % 100,
           version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    make_scenes(w);
    return w;
}
#ifndef MOEK_EMU
static void *be_thread(void *p)
{
    rank *k = (rank *)p;
    begin(k);
    test_refused(k);
    test_ends(k);
    all_paths(k);
    all_silent(k);
    mem_must(cudaStreamDestroy(k->stream));
    return NULL;
}
static void threads(int ranks)
{
    static rank k[RANKS];
    static pthread_barrier_t barrier;
    pthread_t thread[RANKS];
    world *w = new_world(ranks);
    int r, i;
    w->barrier = &barrier;
    must_nccl(ncclGetUniqueId(&w->id));
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    memset(k, 0, sizeof k);
    for (r = 0; r < ranks; r++) {
        k[r].all = w; k[r].number = k[r].device = r;
        if (pthread_create(&thread[r], NULL, be_thread, &k[r])) abort();
    }
    for (r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
    mem_must(cudaSetDevice(0));
    for (i = 0; i < w->scenes; i++) compare_paths(w, &w->scene[i], 0, HIDDEN * (size_t)w->scene[i].total);
}
#endif

/* ---- processes --------------------------------------------------------------------------------------------------- */

/* A file that all have mapped. */
typedef struct board { int there; ncclUniqueId id, next; pthread_barrier_t barrier; } board;

static void start_process(rank *k, int number, int ranks, const char *path)
{
    board *b = (board *)mapped(path, sizeof *b);
    mem_must(cudaSetDevice(number));
    k->all = new_world(ranks);
    k->number = k->device = number;
    if (number == 0) {
        pthread_barrierattr_t all;
        pthread_barrierattr_init(&all);
        pthread_barrierattr_setpshared(&all, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&b->barrier, &all, (unsigned)ranks);
        must_nccl(ncclGetUniqueId(&b->id));
        __atomic_store_n(&b->there, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&b->there, __ATOMIC_ACQUIRE)) usleep(1000);
    k->all->id = b->id;
    k->all->barrier = &b->barrier;
    k->all->next = &b->next;
    begin(k);
}
static int be_process(int number, int ranks, const char *path)
{
    static rank k;
    int i, r;
    start_process(&k, number, ranks, path);
#ifdef MOEK_EMU
    test_refused(&k);
#endif
    test_ends(&k);
#ifdef MOEK_EMU
    test_emulated(&k);
#endif
    all_paths(&k);
    for (i = 0; i < k.all->scenes; i++) {
        const scene *s = &k.all->scene[i];
        size_t first = 0;
        for (r = 0; r < number; r++) first += (size_t)s->tokens[r];
        compare_paths(k.all, s, HIDDEN * first, HIDDEN * (size_t)s->tokens[number]);
    }
#ifdef MOEK_EMU
    all_silent(&k);
#else
    must_nccl(ncclCommDestroy(k.comm));
#endif
    return check_end();
}
/* Rank 1 is killed between two runs: the others must hear of it, and come to an end. */
static int be_one_of_the_killed(int number, int ranks, const char *path, int by)
{
    static rank k;
    scene *s;
    moek_status status = MOEK_OK;
    double start;
    start_process(&k, number, ranks, path);
    s = &k.all->scene[0];
    k.all->barrier = NULL;
    s->group.timeout_ms = 2000;
    if (!opens(&k, s, by) || !plan_rank(&k, s)) return 1;
    run(&k, s, 2);
    waited(&k, s, "before the end");
    if (number == 1) raise(SIGKILL);
    for (start = now_s(); status == MOEK_OK && now_s() - start < 20;) {
        status = moek_run(&k.plan, &k.args, (moek_stream)k.stream);
        if (status == MOEK_OK) status = moek_ep_nccl_wait(&k.wire, &k.ep, (moek_stream)k.stream, 0);
    }
    SAY(status == MOEK_E_TIMEOUT || status == MOEK_E_ABORTED, "killed: rank %d, %s: %s", number,
        moek_ep_nccl_path_name(by), moek_status_name(status));
    SAY(now_s() - start < 8, "killed: rank %d, %s: waited for %.1f s", number, moek_ep_nccl_path_name(by),
        now_s() - start);
    status = moek_ep_nccl_close(&k.wire);
    SAY(status == MOEK_E_TIMEOUT && !k.wire.comm && now_s() - start < 16, "killed: rank %d, %s: close: %s after %.1f s",
        number, moek_ep_nccl_path_name(by), moek_status_name(status), now_s() - start);
    let_go(&k);
    return check_end();
}

int main(int argc, char **argv)
{
    int gpus = 0, ranks, path, only = argc == 2 ? atoi(argv[1]) : 0;
    struct cudaDeviceProp p;
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (mem_can_run(80)) mem_must(cudaGetDeviceCount(&gpus));
    if (gpus < 2) {
        printf("needs two GPUs\n");
        check_skipped++;
        return check_end();
    }
    mem_must(cudaGetDeviceProperties(&p, 0));
    layer_arch = p.major == 9 ? 90 : 80;
    alarm(240);
    for (path = MOEK_EP_NCCL_WINDOW; argc == 5 && path <= MOEK_EP_NCCL_SENDS; path++)
        if (!strcmp(argv[1], moek_ep_nccl_path_name(path)))
            return be_one_of_the_killed(atoi(argv[2]), atoi(argv[3]), argv[4], path);
    if (argc == 5) return be_process(atoi(argv[2]), atoi(argv[3]), argv[4]);
    for (ranks = 2; ranks <= gpus && ranks <= RANKS; ranks += 2) {
        const double start = now_s();
        if (only && ranks != only) continue;
        alarm(240);                                    /* should something wait without an end */
        processes(argv[0], "rank", ranks, -1, sizeof(board));
        for (path = MOEK_EP_NCCL_WINDOW; path <= MOEK_EP_NCCL_SENDS; path++)
            if (path != MOEK_EP_NCCL_WINDOW || has_window())
                processes(argv[0], moek_ep_nccl_path_name(path), ranks, 1, sizeof(board));
#ifndef MOEK_EMU
        threads(ranks);
#endif
        printf("%d ranks: %.1f s\n", ranks, now_s() - start);
        fflush(stdout);
    }
    return check_end();
}
