/* test_ep_gpu.c -- the exchange on GPUs: N ranks on one of them (loopback) and, where there are two, by peer access,
 * against the same group in host memory, half by half: what arrives to the bit, y to its rounding.  And
 * graphs, runs in threads, ranks in processes, what a rank that is silent or killed does to the others, and what is
 * refused.
 *
 *   nvcc -x cu -std=c++17 -O2 -arch=native -Iinclude tests/ep/test_ep_gpu.c -o ep_gpu && ./ep_gpu
 *   ./ep_gpu [quick] [loopback] [TESTS]                        all but one GPU left out; these tests only
 *   ./ep_gpu [loopback] soak OPERATIONS                so many with low_latency, a tenth of them with the other kinds,
 *                                                      a hundredth with three and four ranks
 *   c++ -std=c++17 -O2 -DMOEK_EMU -DMOEK_EMU_ARCH=90 -Iinclude -x c++ tests/ep/test_ep_gpu.c -o ep_gpu
 *
 * The last runs the kernels on the CPU, one after the other: halves of the exchange, and the ends of groups; and
 * whole layers of ranks that are processes, so that their kernels wait for each other as on GPUs.
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  A scene has each rank twice: in host memory and on a
 * GPU.  One thread drives all ranks, half by half, but where that is what is tested.  Windows are rubbish where they
 * may be, y and workspaces always; y and windows lie between guards.  Where rows are moved (config.move) ranks on GPUs
 * know no window but their own, and `cross` copies. */
#ifdef MOEK_EMU
#include "../emu/emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek_ep.h"
#include "../layer/layer.h"
#include "ep_fields.h"
#include "processes.h"
#include "../quick.h"
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
static int cudaMemset(void *p, int value, size_t n) { emu_set_bytes(p, value, n); return 0; }
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
                                                          between rows of y and of shared_y */
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

#include "gpu_scene.h"
#include "gpu_exchange.h"
#include "gpu_graphs.h"
#include "gpu_limits.h"
#include "gpu_processes.h"

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
