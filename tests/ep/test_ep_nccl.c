/* test_ep_nccl.c -- groups over NCCL, a rank a GPU, in threads and in processes: every path gives the same bits, those
 * of one GPU where that is promised, also in graphs; what differs between ranks is found, with its name; and a rank
 * that does not come, or is killed, keeps nobody waiting.  With fewer than two GPUs all of it is skipped.
 *
 *   nvcc -x cu -std=c++17 -O2 -arch=native -Iinclude tests/ep/test_ep_nccl.c -o ep_nccl -lnccl
 *   ./ep_nccl [RANKS]                                 2 and 4, where there are so many GPUs; or RANKS
 *   c++ -std=c++17 -O2 -DMOEK_EMU -DMOEK_EMU_CUDA -DMOEK_ARCH=80 -Iinclude -Itests/emu/include -x c++ -rdynamic \
 *       -pthread tests/ep/test_ep_nccl.c -o ep_nccl
 *
 * The last needs no GPU and no NCCL: both are emulated (emu_cuda.h, emu_nccl.h), and ranks are processes.  It also has
 * what real ones do not do when they are asked: old versions, calls that fail, GPUs that do not reach each other.
 *
 * With MOEK_SPLIT rows are linked from elsewhere, and without MOEK_IMPLEMENTATION the implementation, too (then no rank
 * can say that it is older). */
#ifdef MOEK_EMU
#include "../emu/emu_cuda.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#ifdef MOEK_IMPLEMENTATION
static __thread int older;                             /* this rank says that its moek is so much older */
#define MOEK_EP_NCCL_VERSION_ (MOEK_VERSION - older)
#endif
#include "moek_ep_nccl.h"
#include "../layer/layer.h"
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
    uint16_t *one, *y[PATHS];                          /* ... and its y; y of the ranks, by path */
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

#include "nccl_scenes.h"

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
    mem_get(MEM_DEVICE, y, k->args.y, n);
    for (i = 0; i < (int)n; i++) untouched &= ((unsigned char *)y)[i] == LAYER_POISON;
    SAY(untouched, "rank %d: y was written", k->number);
    mem_get(MEM_DEVICE, ids, k->args.topk_ids, sizeof *ids * TOPK * (size_t)s.tokens[k->number]);
    for (i = TOPK; i < TOPK * s.tokens[k->number]; i++) ids[i] = -1;
    mem_put(MEM_DEVICE, k->args.topk_ids, ids, sizeof *ids * TOPK * (size_t)s.tokens[k->number]);
    run(k, &s, 1);
    waited(k, &s, "behind what did not fit");
    mem_get(MEM_DEVICE, y, k->args.y, n);
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
    mem_get(MEM_DEVICE, y, k->args.y, n);
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
