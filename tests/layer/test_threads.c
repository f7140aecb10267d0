/* test_threads.c -- threads of the caller (moek_parallel) in the place of OpenMP's: whole layers on the CPU, repacked
 * and imported weights have the same bits, whatever the threads and the order of tasks.
 *
 *   cc -std=c99 -O2 -Iinclude tests/layer/test_threads.c -pthread -lm -o threads && ./threads [quick]
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere: with OpenMP, or without and with ThreadSanitizer. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include "layer.h"
#include "../quick.h"
#include "../pool.h"

enum { HIDDEN = 256, INTER = 160, EXPERTS = 6, TOPK = 3, TOKENS = 21 };

static pool *pool_now;
static moek_status run_on_pool(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    a.parallel = pool_parallel(pool_now);
    return moek_run(plan, &a, stream);
}
static moek_status stages_on_pool(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    moek_step step;
    moek_status s;
    a.parallel = pool_parallel(pool_now);
    s = moek_begin(plan, &a, &step);
    if (s == MOEK_OK) s = moek_route(&step, stream);
    if (s == MOEK_OK) s = moek_prepare(&step, stream);
    if (s == MOEK_OK) s = moek_experts_apply(&step, stream);
    return s == MOEK_OK ? moek_finalize(&step, stream) : s;
}

static moek_config config_of(const moek_format *f, int turn)
{
    static const int tokens[] = { TOKENS, 1, 4 };
    moek_config c;
    memset(&c, 0, sizeof c);
    c.block = format_block(f, turn);
    c.hidden = format_round_up(f, HIDDEN); c.inter = format_round_up(f, INTER);
    c.experts = EXPERTS; c.topk = TOPK; c.shared_slots = 1;
    c.quant = f->number; c.act = MOEK_SILU; c.max_tokens = tokens[turn % 3];
    c.backend = MOEK_BACKEND_CPU;
    c.format = turn / 3 % 2 ? MOEK_BATCHED : MOEK_STANDARD;
    return c;
}
/* All formats, with few and many tokens, in both orders of rows, by all kernels of this processor. */
static void test_layers(void)
{
    int q, turn, p;
    for (q = 0; q < FORMATS; q++)
        for (turn = 0; turn < 6; turn++) {
            const moek_format *const f = format_at(q);
            moek_config c = config_of(f, turn);
            uint16_t *y;
            layer l;
            if (quick_set && (turn + q) % 6) continue;
            if (turn % 2) c.cpu = MOEK_CPU_PLAIN;
            layer_new(&l, &c, LAYER_BIAS | LAYER_ZERO | LAYER_LOGITS | (turn % 2 ? LAYER_STATIC : 0), c.max_tokens);
            snprintf(l.what, sizeof l.what, "%s, %d tokens, turn %d", f->name, c.max_tokens, turn);
            y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
            for (p = 0; y && p < POOLS; p++) {
                const long long runs = pools[p].runs;
                if (quick_set && (p + q) % 3) continue;
                pool_now = &pools[p];
                layer_same(&l, p % 2 ? stages_on_pool : run_on_pool, y, pools[p].name);
                /* route, up, down and combine at least */
                CHECK(pools[p].runs >= runs + 4, "%s: %lld runs", l.what, pools[p].runs - runs);
                /* The plan's; and a run's own, ahead of the plan's. */
                l.config.parallel = pool_parallel(&pools[p]);
                if (layer_plan(&l)) layer_same(&l, moek_run, y, "config.parallel");
                l.config.parallel = pool_parallel(&pools[!p]);
                if (layer_plan(&l)) layer_same(&l, run_on_pool, y, "both");
                memset(&l.config.parallel, 0, sizeof l.config.parallel);
                layer_plan(&l);
            }
            free(y);
            layer_free(&l);
        }
}

/* An array of each kind that is repacked, by the pool of a plan. */
typedef moek_status (*repacker)(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                moek_stream stream);
static void repack_on_pool(layer *l, repacker repack, const void *from, const char *what)
{
    const size_t bytes = from ? layer_find(l, from)->bytes : 0;
    char *const of = (char *)mem_alloc(0, bytes), *const want = (char *)mem_alloc(0, bytes);
    char *const got = (char *)mem_alloc(0, bytes);
    const int n = l->plan.local_experts;
    int p;
    if (from) memcpy(of, from, bytes);
    for (p = 0; from && p < POOLS; p++) {
        const moek_status s = repack(&l->plan, of, want, n, 0, NULL);
        const long long runs = pools[p].runs;
        moek_config c = l->config;
        moek_plan plan;
        c.parallel = pool_parallel(&pools[p]);
        if (!CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s: %s", l->what, plan.why)) continue;
        memset(got, 0x55, bytes);
        CHECK(repack(&plan, of, got, n, 0, NULL) == s && s == MOEK_OK && !memcmp(got, want, bytes),
              "%s, %s: %s", l->what, what, pools[p].name);
        CHECK(repack(&plan, want, got, n, 1, NULL) == s && !memcmp(got, of, bytes), "%s, %s, back: %s", l->what, what,
              pools[p].name);
        CHECK(pools[p].runs == runs + 2, "%s, %s: %s does not run", l->what, what, pools[p].name);
    }
    mem_free(0, of); mem_free(0, want); mem_free(0, got);
}
static void test_repacked(void)
{
    int q;
    for (q = 0; q < FORMATS; q++) {
        const moek_format *const f = format_at(q);
        moek_config c = config_of(f, q % 3);
        layer l;
        if (f->only_blocks) continue;
        layer_new(&l, &c, LAYER_ZERO, 1);
        snprintf(l.what, sizeof l.what, "%s", f->name);
        if (layer_plan(&l)) {
            const moek_scale_shape of = moek_weight_scale(f, c.block);
            repack_on_pool(&l, moek_repack_up, l.w.w_up, "w_up");
            repack_on_pool(&l, moek_repack_down, l.w.w_down, "w_down");
            if (of.rows == 1 && of.columns) {
                repack_on_pool(&l, moek_repack_up_scale, l.w.w_up_scale, "w_up_scale");
                repack_on_pool(&l, moek_repack_down_scale, l.w.w_down_scale, "w_down_scale");
                repack_on_pool(&l, moek_repack_up_zero, l.w.w_up_zero, "w_up_zero");
                repack_on_pool(&l, moek_repack_down_zero, l.w.w_down_zero, "w_down_zero");
            }
        }
        layer_free(&l);
    }
}

/* Checkpoints of every source to moek's arrays, of random bytes: also what the report counts. */
struct source { int number, quant, scales; };          /* scales: 0: with the codes; below 0: none */
enum { ROWS = 640, COLUMNS = 2048, BYTES = ROWS * COLUMNS * 2 };
static int import_on_pools(const struct source *of, int block, void *const their[2], unsigned char *want,
                           unsigned char *got)
{
    const int source = of->number, second = moek_format_of(of->quant)->global_scale;
    const size_t at = BYTES;                           /* of scales */
    moek_import_report report, first;
    float global = 0.5f, their_global = 2;
    char why[256] = "";
    moek_import_args a;
    int p;
    memset(&a, 0, sizeof a);
    memset(&first, 0, sizeof first);
    a.source = source; a.quant = of->quant; a.rows = ROWS; a.columns = COLUMNS; a.block = block;
    a.their_w = their[0]; a.their_scale = of->scales > 0 ? their[1] : NULL;
    if (second) a.global = &global;
    if (second && of->scales >= 0) a.their_global = &their_global;
    a.report = &report; a.why = why; a.why_size = sizeof why;
    for (p = -1; p < POOLS; p++) {
        const long long runs = p < 0 ? 0 : pools[p].runs;
        unsigned char *const to = p < 0 ? want : got;
        memset(&report, 0, sizeof report);
        memset(to, 0xa5, 2 * BYTES);
        a.w = to; a.scale = to + at;
        if (p >= 0) a.parallel = pool_parallel(&pools[p]);
        if (moek_import(0, &a, NULL) != MOEK_OK) {
            CHECK(p < 0 && *why, "%s, block %d: %s", moek_source_name(source), block, why);
            return 0;
        }
        if (p < 0) first = report;
        else CHECK(pools[p].runs > runs && !memcmp(want, got, 2 * BYTES) && !memcmp(&report, &first, sizeof report),
                   "%s, block %d: %s has other bits, or ran nothing", moek_source_name(source), block, pools[p].name);
    }
    a.parallel.run = NULL;
    CHECK(moek_import(0, &a, NULL) == MOEK_E_ARGUMENT && strstr(why, "parallel.run is NULL"), "%s", why);
    return 1;
}
#define SOURCE_(name, number, quant, codes, flip, scales, type, zeros, less, global) \
    { number, MOEK_##quant, SCALES_##scales },
enum { SCALES_BLOCKS, SCALES_ROWS, SCALES_GROUPS, SCALES_ONE };
static void test_imported(void)
{
    static const struct source sources[] = { MOEK_EACH_SOURCE(SOURCE_) };
    static const int blocks[] = { 0, 32 };
    enum { SOURCES = sizeof sources / sizeof *sources, BLOCKS = 2 };
    struct source plain = { MOEK_FROM_BF16, 0, -1 };
    void *their[2];
    unsigned char *const want = (unsigned char *)malloc(2 * BYTES), *const got = (unsigned char *)malloc(2 * BYTES);
    int i, j, q, done = 0;
    their[0] = malloc(BYTES); their[1] = malloc(BYTES);
    for (i = 0; i < BYTES / 2; i++) {
        ((uint16_t *)their[0])[i] = (uint16_t)(0x3000 + rng_u32() % 0x1000);
        ((uint16_t *)their[1])[i] = (uint16_t)(0x2c00 + rng_u32() % 0x1000);
    }
    for (i = 0; i < SOURCES; i++, done = 0) {
        for (j = 0; j < BLOCKS; j++) done += import_on_pools(&sources[i], blocks[j], their, want, got);
        CHECK(done, "%s: nothing was imported", moek_source_name(sources[i].number));
    }
    for (q = 0; q < FORMATS; q++) {
        plain.quant = format_at(q)->number;
        for (j = 0; j < BLOCKS; j++) done += import_on_pools(&plain, blocks[j], their, want, got);
    }
    CHECK(done > FORMATS / 3, "%d imports of plain weights", done);
    free(their[0]); free(their[1]); free(want); free(got);
}

/* A pool without the function, of the config and of a run. */
static void test_refused(void)
{
    moek_config c = config_of(format_at(0), 0);
    layer l;
    layer_new(&l, &c, 0, 1);
    if (layer_plan(&l)) {
        moek_args a = layer_args(&l);
        moek_plan plan;
        layer_put(&l);
        a.parallel.pool = &pools[0];
        CHECK(moek_run(&l.plan, &a, NULL) == MOEK_E_ARGUMENT && strstr(a.why, "args.parallel.run is NULL"), "%s",
              a.why);
        c.parallel.pool = &pools[0];
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "config.parallel.run is NULL"), "%s",
              plan.why);
    }
    layer_free(&l);
}

int main(int argc, char **argv)
{
    int p;
    quick_word(&argc, &argv);
    layer_arch = MOEK_ARCH_CPU;
    test_layers();
    test_repacked();
    test_imported();
    test_refused();
    for (p = 0; p < POOLS; p++)
        CHECK(pools[p].runs > 0 && !pools[p].wrong, "%s: %lld runs, %lld of them wrong", pools[p].name, pools[p].runs,
              pools[p].wrong);
    return check_end();
}
