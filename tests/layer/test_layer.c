/* test_layer.c -- whole layers through moek_plan_init, bind and run, against ref_layer, on each backend that is here.
 *
 *   cc -std=c99 -O2 -Iinclude tests/layer/test_layer.c -lm -o layer                       the CPU rows
 *   nvcc -x cu -std=c++17 -O2 -Iinclude tests/layer/test_layer.c -o layer                 this GPU's rows, too
 *   c++ -std=c++17 -O2 -DMOEK_EMU -Iinclude -x c++ tests/layer/test_layer.c -o layer      GPU rows on the CPU
 *                                                                (-DMOEK_EMU_ARCH=90: of a GPU that has sm90)
 *   ./layer [quick | broad] [-jN] [apart] [-v] [SM90,SM80 | CPU [WORD]]   these backends only, and tests whose names
 *                       hold the word; quick, broad: these sets (quick.h); -j: in N processes; apart: for
 *                       compute-sanitizer (areas.h)
 *
 * -v: tells each run before it, and when.
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  Tolerances: layer.h, layer_tolerance. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L                        /* clock_gettime */
#endif
#ifdef MOEK_EMU
#include "../emu/emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "../../bench/clock.h"
#include "layer.h"
#include "../quick.h"
#include "../oracle/ref_check.h"
#include "../workers.h"

/* Emulation is 100 times slower: fewer combinations, and smaller layers. */
enum {
#if defined(MOEK_EMU) || defined(TEST_SMALL)
    SMALL = 1, HIDDEN = 128, INTER = 64, TOKENS = 9,
#else
    SMALL = 0, HIDDEN = 256, INTER = 128, TOKENS = 33,
#endif
    EXPERTS = 8, TOPK = 2, PHYSICAL = 12, REPLICAS = 3
};

static int backend;                                    /* under test */

/* Where the format leaves columns of scales open, each of its choices by turns. */
static int config_turn;
/* The format under test, if it has arrays, and its weights lie in blocks of a file (format_in_blocks). */
static const moek_format *config_in_blocks;
static moek_config config_of(int quant)
{
    const int in_blocks = config_in_blocks && config_in_blocks->number == quant;
    const moek_format *const f = in_blocks ? config_in_blocks : moek_format_of(quant);
    moek_config c;
    memset(&c, 0, sizeof c);
    c.block = format_block(f, config_turn++);
    c.hidden = format_round_up(f, HIDDEN); c.inter = format_round_up(f, INTER);
    c.weight_layout = in_blocks ? MOEK_WEIGHTS_BLOCKS : 0;
    c.experts = EXPERTS; c.topk = TOPK;
    c.quant = quant; c.act = MOEK_SILU; c.max_tokens = TOKENS;
    c.backend = backend;
    return c;
}
/* Blocks of GGUF files differ in little: of the quick set, each test has another quarter of them. */
static int quick_blocks;
/* Of one that has arrays, blocks in their place, where kernels read them; else NULL. */
static const moek_format *layer_in_blocks(const moek_format *f)
{
    return format_in_blocks(f) != f && format_reads(f, layer_arch, MOEK_READS_BLOCKS) ? format_in_blocks(f) : NULL;
}
/* Number i of all formats, then of those that may lie in blocks, too, or NULL; behind the last 0. */
static int next_format(int i, const moek_format **f)
{
    if (i < FORMATS) *f = format_at(i), config_in_blocks = NULL;
    else *f = config_in_blocks = i < 2 * FORMATS ? layer_in_blocks(format_at(i - FORMATS)) : NULL;
    return i < 2 * FORMATS;
}
/* Every format that the backend serves, of weights as they come: its descriptor.  (Others: test_fragments.) */
#define FOR_EACH_FORMAT(f) \
    const moek_format *f; \
    int q_, test_ = quick_blocks++; \
    for (q_ = 0; next_format(q_, &f); q_++) \
        if (f && format_has(f, MOEK_OP_UP, layer_arch) && !(layer_arch == 90 && format_in_fragments(f)) && \
            !(quick_set && f->only_blocks && (q_ + test_) % 4))
/* A row of the format that a plan for weights as they come, or in blocks, may demand on this device. */
static int row_of(const moek_kernel *k, const moek_format *f)
{
    const int reads = f == config_in_blocks ? MOEK_READS_BLOCKS : MOEK_READS_CHECKPOINT;
    return k->quant == f->number && k->arch == layer_arch && (k->reads & reads) != 0 &&
           k->launch(NULL, NULL) == MOEK_OK;
}
/* One format for what does not depend on it; under emulation one for all. */
#define SKIP_IF_SMALL(condition) if (SMALL && (condition)) continue
/* Of the quick set: one turn in so many, of each format others. */
#define SKIP_IF_QUICK(turn, of) if (quick_set && ((turn) + q_) % (of)) continue
/* What formats do not change, of the quick set: of all cases of a test one in so many, whatever their format. */
static int quick_cases;                                /* of this test, until now */
#define SKIP_IF_QUICK_OF_ALL(of) if (quick_set && quick_cases++ % (of)) continue

#include "kinds.h"
#include "routing.h"
#include "same_bits.h"
#include "tiled.h"
#include "shards.h"
#include "spoiled.h"
#include "mixes.h"

/* ---- all --------------------------------------------------------------------------------------------------------- */

static const char *wanted = "";                      /* a word of test names */
static double start;                                   /* of the test, in seconds */
static int processes;                                  /* workers.h */

static void say(const char *what) { fprintf(stderr, "%8.2f s  %s\n", seconds() - start, what); }
static void run(const char *backend_name, const char *test_name, void (*test)(void))
{
    const int failed = check_failed;
    if (!strstr(test_name, wanted) || !workers_take()) return;
    if (processes > 1) config_turn = workers_part;     /* whoever runs it */
    rng_seed(1);                                       /* a test gives the same, whatever runs before it */
    layer_worst = layer_worst_element = 0;
    quick_cases = 0;
    config_in_blocks = NULL;
    start = seconds();
    if (layer_says) layer_says(test_name);
    test();
    printf("%-5s %-18s worst %.3f (element %.3f) of the tolerance, %.1f s  %s\n", backend_name, test_name, layer_worst,
           layer_worst_element, seconds() - start, check_failed == failed ? "ok" : "FAILED");
    fflush(stdout);
}
#define RUN(test) run(name, #test, test)
#define RUN_LONG(test) if (!quick_set || !SMALL || layer_arch != 90) RUN(test)      /* emulated: minutes */
/* Explanations are of all backends, whichever is under test: of those that one GPU has, once. */
static int explains_here(void) { return !MEM_CUDA || layer_arch == 80 || !mem_on_gpu(layer_arch); }
static void test_backend(const char *name)
{
    if (explains_here()) RUN(test_explain);            /* first, for it takes the longest */
    RUN(test_formats);
    RUN(test_two_formats);
    RUN(test_two_sizes);
    RUN(test_two_tiled);
    RUN(test_two_in_one_launch);
    RUN(test_sizes);
    RUN(test_pairs);
    RUN(test_tiles);
    RUN(test_wide_alone);
    RUN_LONG(test_wide_ordered);
    RUN(test_tuned);
    RUN(test_routing);
    RUN(test_routing_more);
    RUN(test_masked);
    RUN(test_masked_group);
    RUN(test_spoiled_logits);
    RUN(test_hash_routing);
    RUN(test_wide_ids);
    RUN(test_shared_peeks);
    RUN(test_adversarial);
    RUN(test_expert_map);
    RUN(test_replicas);
    RUN(test_padding);
    RUN(test_options);
    RUN(test_same_bits);
    RUN(test_alignment);
    RUN(test_strides);
    RUN_LONG(test_one_launch);
    RUN(test_up_down);
    RUN(test_tiled);
    RUN(test_fragments);
    RUN(test_panels);
    RUN(test_expanded);
    RUN(test_apart);
    RUN(test_shards);
    RUN(test_large);
    RUN(test_chunks);
    RUN(test_no_tokens);
    RUN(test_nonfinite);
    RUN(test_rounding);
    RUN(test_small_scales);
    RUN(test_shared);
    RUN(test_failing_part);
    RUN(test_own_experts);
}

static void try_backend(const char *name, int number, int arch, const char *only)
{
    moek_config c;
    moek_plan plan;
    if (arch < 0 || (only && !strstr(only, name))) return;
    backend = number;
    layer_arch = arch;
    if (broad_set) quick_set = SMALL && arch >= 89;    /* emulated: all cases by sm80, of others the quick set's */
    c = config_of(FORMAT_PLAIN);
    if (mem_can_run(arch) && moek_plan_init(&plan, &c) == MOEK_OK) {
        test_backend(name);
        return;
    }
    if (!workers_take()) return;
    printf("%-8s skipped: not for this machine, or not compiled in\n", name);
    check_skipped++;
}
static void test_backends(int argc, char **argv)
{
    const char *const only = argc > 1 ? argv[1] : NULL;
    ref_check();
#define BACKEND(name, number, arch) try_backend(#name, number, arch, only);
    MOEK_EACH_BACKEND(BACKEND)
#undef BACKEND
}
int main(int argc, char **argv)
{
    quick_word(&argc, &argv);
    processes = workers_word(&argc, &argv);
    areas_word(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "-v")) layer_says = say, argc--, argv++;
    if (argc > 2) wanted = argv[2];
    workers_run(processes, test_backends, argc, argv);
    return check_end();
}
