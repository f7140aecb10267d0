/* test_rows.c -- every row of the kernel table against ref.h, by operation.
 *
 *   cc -std=c99 -O2 -Iinclude tests/rows/test_rows.c -lm -o rows              the CPU rows
 *   nvcc -x cu -std=c++17 -O2 -Iinclude tests/rows/test_rows.c -o rows        this GPU's rows, too
 *   c++ -std=c++17 -O2 -DMOEK_EMU -Iinclude -x c++ tests/rows/test_rows.c -o rows
 *                                                        GPU rows on the CPU, in small cases:
 *                                      those for sm80; for sm90 with -DMOEK_EMU_ARCH=90 '-DMOEK_WANT_ARCH(a)=((a)==90)'
 *   ./rows [quick | broad] [-jN] [apart] [-v] [WORD ...]   only rows whose name holds every word; -v: tells each case
 *                       before it, and when; quick, broad: these sets (quick.h); -j: in N processes (workers.h); apart:
 *                       for compute-sanitizer (areas.h)
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  Prints a line a row: its cases, and the worst error in
 * parts of what is allowed (where not all must be exact), and its seconds. */
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
#include "moek/plan/decode.h"                       /* moek_decode_room_of */
#include "rows.h"
#include "../quick.h"
#include "../oracle/ref_check.h"
#include "../workers.h"

/* Emulation is 100 times slower: fewer and smaller cases, but each kind of them.  -DTEST_ALL: all the same. */
#if (defined(MOEK_EMU) || defined(TEST_SMALL)) && !defined(TEST_ALL)
enum { SMALL = 1 };
#else
enum { SMALL = 0 };
#endif
/* The rows of another emulated device, with other SMs: in the broad set each height and each format of a template. */
#ifdef EMU_SMS
enum { OTHER_DEVICE = 1 };
#else
enum { OTHER_DEVICE = 0 };
#endif
/* Are sums of e4m3 by mma.sync narrow?  On a Hopper they are not, and on the GPUs for which such rows are.  Sums by
 * block scale are taken for as narrow: nothing is known of them. */
#ifdef MOEK_EMU
#define TEST_NARROW emu_narrow
#else
#define TEST_NARROW 1
#endif
/* Of large cases, emulated: of a row for Hopper, or of few tokens, one of so many (of thin rows: fewer, of each
 * format others, and fewer still of those that share cases), of others none. */
static int always;                                     /* 1: this case is not left out */
static int asked;                                      /* of thin rows: how often this was asked */
static int leave_out(int i, int of)
{
    if (now.thin) i = asked++, of *= now.sharers > 1 ? 10 : 5;
    return SMALL && !always && ((now.row->arch != 90 && !now.row->max_tokens) || i % of);
}
/* Of cases that rows share: is number i this row's? */
static int my_turn(int i) { return i % now.sharers == now.share; }
/* Until each_act_end: a case of each activation stays, in a layout that it has; 0: this one may be left out. */
static int each_act(int i, int layout, int gated)
{
    return always = (now.thin || quick_row(now.row)) && my_turn(i) &&
                    layout == MOEK_UP_GATE_UP + (gated ? i % MOEK_UP_SEPARATE : 0);
}
static void each_act_end(void) { always = 0; }
static int turns;                                      /* begins elsewhere for each row: these leave out other cases */
#define SAY(...) snprintf(now.what, sizeof now.what, __VA_ARGS__)
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void worse(double error) { if (error > now.worst || isnan(error)) now.worst = error; }

/* ---- launched early ---------------------------------------------------------------------------------------------- */

/* 1: this case is to run again, launched early behind a kernel that has not written its input yet. */
#if MEM_CUDA
static int late_can(void)
{
    int device, major = 0;
    if (!mem_on_gpu(now.row->arch)) return 0;
    mem_must(cudaGetDevice(&device));
    mem_must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
}
typedef struct late_array { unsigned char *at, *there; size_t bytes; } late_array;   /* an input, and what is in it */
typedef struct late_arrays { late_array of[4]; int count; } late_arrays;
/* A kernel that lets the next one begin at once, and writes only 20 us later what that one reads. */
static __global__ void late_k(late_arrays late)
{
    size_t i;
    int j;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    for (i = 0; i < 20; i++) __nanosleep(1000);
#endif
    for (j = 0; j < late.count; j++)
        for (i = threadIdx.x; i < late.of[j].bytes; i += blockDim.x) late.of[j].at[i] = late.of[j].there[i];
}
static late_arrays late;
static void late_before(const void *args)
{
    int j;
    (void)args;
    for (j = 0; j < late.count; j++) {
        mem_must(cudaMemcpy(late.of[j].there, late.of[j].at, late.of[j].bytes, cudaMemcpyDeviceToDevice));
        mem_must(cudaMemset(late.of[j].at, 0xff, late.of[j].bytes));
    }
    mem_must(cudaDeviceSynchronize());
    late_k<<<1, 1024, 0, (cudaStream_t)now.stream>>>(late);
    mem_must(cudaGetLastError());
}
/* Until late_end: what `host` stands for, and lies at `there`, is late; up to three of them. */
static void late_begin(const void *there, const void *host)
{
    static cudaStream_t stream;
    late_array *const a = &late.of[late.count++];
    if (!stream) mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    a->at = (unsigned char *)there;
    a->bytes = rows_find(host)->bytes;
    a->there = (unsigned char *)mem_alloc(now.row->arch, a->bytes);
    now.before = late_before, now.stream = stream;
}
static void late_end(void)
{
    now.before = NULL, now.stream = NULL;
    while (late.count) mem_free(now.row->arch, late.of[--late.count].there);
}
#else
static int late_can(void) { return 0; }
static void late_begin(const void *there, const void *host) { (void)there, (void)host; }
static void late_end(void) {}
#endif

#include "steps.h"
#include "quant.h"
#include "gemm.h"
#include "gemm_cases.h"
#include "combine.h"
#include "fused.h"

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

/* A word stands in the name; one behind a minus does not. */
static int wanted(const char *name, int words, char **word)
{
    int i;
    for (i = 0; i < words; i++)
        if (word[i][0] == '-' ? !!strstr(name, word[i] + 1) : !strstr(name, word[i])) return 0;
    return 1;
}
/* Emulated, fragments that differ in the columns of a scale alone take turns: of four such formats and six heights of
 * tile, each height once or twice, each format twice. */
static int takes_turn(const moek_kernel *rows, const moek_kernel *k)
{
    const moek_kernel *of;
    int height = 0, block = 0;
    if ((k->arch != 90 && !broad_set) || !k->block || (k->op != MOEK_OP_UP && k->op != MOEK_OP_DOWN)) return 1;
    for (of = rows; of < k; of++) {
        if (of->op != k->op || of->quant != k->quant || of->arch != k->arch) continue;
        height += of->block == k->block && of->m < k->m;
        block += of->m == k->m;
    }
    return (height + block) % 3 == 0;
}
/* Names of the rows that are to run: words of the command line. */
static int words_given;
static char **words;
static int asked_for(const moek_kernel *k)
{
    if (broad_set && OTHER_DEVICE && !broad_turn(k, 0) && !broad_turn(k, 1)) return 0;
    return wanted(k->name, words_given, words) && !(quick_set && !quick_row(k));
}
static int can_run(const moek_kernel *k) { return mem_can_run(k->arch) && k->launch(NULL, NULL) == MOEK_OK; }
static int does_the_same(const moek_kernel *plain, const moek_kernel *k)
{
    return !plain->arch && k->arch && !mem_on_gpu(k->arch) && plain->op == k->op && plain->quant == k->quant &&
           plain->hidden == k->hidden && plain->block == k->block &&
           (plain->reads & k->reads) == plain->reads && asked_for(plain) && asked_for(k) && can_run(k);
}
/* Will this row of plain C, a GEMM, be tested, and take that kernel for a set of instructions along?  The one of its
 * height, if there is one that reads weights as this row does. */
static int takes_along(const moek_kernel *plain, const moek_kernel *k)
{
    int count, i;
    const moek_kernel *const all = moek_kernels(&count);
    if ((k->op != MOEK_OP_UP && k->op != MOEK_OP_DOWN) || !does_the_same(plain, k)) return 0;
    for (i = 0; i < count && plain->m != k->m; i++)
        if (all[i].m == k->m && all[i].reads & plain->reads && does_the_same(&all[i], k)) return 0;
    return 1;
}
static void say_row(const char *name, int cases, double worst, const char *time, int failed)
{
    printf("%-44s %5d cases  worst %.3f", name, cases, worst);
    if (now.worst_element > 0) printf(" (element %.3f)", now.worst_element);
    printf(", %s  %s\n", time, check_failed == failed ? "ok" : "FAILED");
#define SAY_ACT(NAME, name, number, gated) if (now.acts >> number & 1) printf(" %s", #name);
    if (now.acts) {                                    /* tests/rows/cells.py reads both lines */
        printf("acts of %s:", name);
        MOEK_EACH_ACT(SAY_ACT)
        printf("\n");
    }
}
/* The kernels that a row of plain C takes along.  in_blocks: kernels of another height, too, that read blocks as
 * the row does, if the row of their height does not. */
static void take_sets(const moek_kernel *row, int in_blocks)
{
    int count, i, j;
    const moek_kernel *const all = moek_kernels(&count);
    for (i = 0; i < count; i++) {
        const moek_kernel *const k = &all[i];
        if (!takes_along(row, k) && !(in_blocks && k->reads & MOEK_READS_BLOCKS && does_the_same(row, k))) continue;
        for (j = 0; j < gemm_sets_there && gemm_set[j].row != k; j++) continue;
        if (j == gemm_sets_there && CHECK(j < COUNT(gemm_set), "%s: too many sets", row->name))
            gemm_set[gemm_sets_there++].row = k;
    }
}
/* In the quick set, rows that a template has for a format (for other rings, other formats of down) have each activation
 * and each oddity once among them; on another device, rows that the template has for all formats. */
static void share_cases(const moek_kernel *row)
{
    int count, i;
    const moek_kernel *const all = moek_kernels(&count);
    now.sharers = 1;
    for (i = 0; quick_set && i < count; i++) {
        const moek_kernel *const k = &all[i];
        if (k == row || !quick_relative(row, k) || !(OTHER_DEVICE || k->quant == row->quant)) continue;
        if (!quick_row(k) || !can_run(k)) continue;
        now.sharers++, now.share += k < row;
    }
}
static void test_row(const moek_kernel *row)
{
    const int failed = check_failed, by_mma = row->arch == 89 || row->arch == 120;
    char time[24];
    int i;
    memset(&now, 0, sizeof now);
    memset(gemm_set, 0, sizeof gemm_set);
    gemm_sets_there = 0;
    take_sets(row, 0);
    now.row = row;
    now.thin = quick_set || (broad_set && (OTHER_DEVICE || !broad_row(row)));
    now.format = format_with(moek_format_of(row->quant), row->block);
    now.start = seconds();
    share_cases(row);
    turns = row->m / 8 + 3 * row->quant, asked = 7 * row->quant;
    rng_seed(1);                                       /* a row gives the same, whatever runs before it */
    /* (The most seen: 1.59.  sm120, where each 32 of k of a sum have scales of their own inside: 1.95, for the group of
     * the largest scales makes most of the products, and the others cut off as much.) */
    ref_products_error = (row->arch == 90 || (by_mma && TEST_NARROW)) && row->quant && format_quantizes(now.format)
                       ? ldexp(row->arch == 120 && now.format->w_scale.columns == 32 ? 3 : 2, -12) : 0;
    ref_w_in_t = mem_on_gpu(row->arch);
    ref_blocks_in_t = 3 * ref_makes_t(row);
    ref_w_in_e4m3 = row->quant && gemm_in_fragments() && format_quantizes(now.format);
    ref_w_unit = row->m >= 96 ? 0 : 128;               /* tall tiles: of the row up to there */
    if (row->reads == MOEK_READS_BLOCKS) now.format = format_in_blocks(now.format);
    switch (row->op) {
    case MOEK_OP_ROUTE:   test_route(); break;
    case MOEK_OP_MAP:     test_map(); break;
    case MOEK_OP_SORT:    test_sort(); break;
    case MOEK_OP_QUANT:   test_quant(); break;
    case MOEK_OP_UP:      test_up(); break;
    case MOEK_OP_DOWN:    test_down(); break;
    case MOEK_OP_COMBINE: test_combine(); break;
    case MOEK_OP_REPACK:  test_repack(); break;
    case MOEK_OP_EXPAND:  test_expand(); break;
    case MOEK_OP_LAYER:   now.row->max_tokens ? test_layer_few() : test_layer(); break;
    case MOEK_OP_UP_DOWN:     test_up_down(); break;
    default:              CHECK(0, "%s: no test for op %d", row->name, row->op);
    }
    if (row->reads & MOEK_READS_BLOCKS && !now.format->only_blocks) {  /* both orders */
        now.format = format_in_blocks(now.format);
        take_sets(row, 1);
        row->op == MOEK_OP_UP ? test_up() : test_down();
    }
    snprintf(time, sizeof time, "%.1f s", seconds() - now.start);
    say_row(row->name, now.cases, now.worst, time, failed);
    for (i = 0; i < gemm_sets_there; i++)
        say_row(gemm_set[i].row->name, gemm_set[i].cases, gemm_set[i].worst, "in that time", failed);
    fflush(stdout);
}
static void test_rows(int argc, char **argv)
{
    int count, i, j, asked = 0, rows_named = 0;        /* by more than an op */
    const moek_kernel *const rows = moek_kernels(&count);
    ref_check();
    for (i = 1; i < argc; i++) rows_named |= argv[i][0] != '-' && strcmp(argv[i], "moek_up");
    words_given = argc - 1, words = argv + 1;
    for (i = 0; i < count; i++) {
        if (!asked_for(&rows[i])) continue;
        asked++;
        for (j = 0; j < count && !takes_along(&rows[j], &rows[i]); j++) continue;
        if (j < count) continue;
        if ((SMALL && !rows_named && !takes_turn(rows, &rows[i])) || !workers_take()) continue;
        if (can_run(&rows[i])) test_row(&rows[i]);
        else {
            check_skipped++;
            printf("%-44s skipped: not for this machine\n", rows[i].name);
        }
    }
    if (!asked) {
        check_skipped++;
        printf("no row here has all of these words in its name%s\n", SMALL ? ", and is in this set" : "");
    }
}
int main(int argc, char **argv)
{
    int processes;
    quick_word(&argc, &argv);
    processes = workers_word(&argc, &argv);
    areas_word(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "-v")) rows_tell = 1, argc--, argv++;
    workers_run(processes, test_rows, argc, argv);
    return check_end();
}
