/* test_rule.c -- which kernels moek_run launches, by shape, format, device and count of tokens, without any kernel.
 *
 *   cc -std=c99 -Iinclude tests/layer/test_rule.c -lm -o test_rule
 *   ./test_rule tests/data/rule.tsv          compares: a difference is a change of the rule
 *   ./test_rule -w tests/data/rule.tsv       writes the file anew: ./moek rule
 *   ./test_rule -d COUNT [SEED]         a digest of COUNT random plans and counts of tokens: two versions of the code
 *                                       that choose the same print the same
 *   ./test_rule -t COUNT                what the host takes for moek_begin and moek_run, without kernels
 *
 * Launchers are stubs that write down what they were asked for; the device is a number of SMs.  So this takes seconds
 * on any machine, and a reviewer reads a change of the rule as a diff of the file. */
#define _POSIX_C_SOURCE 199309L                        /* clock_gettime */
#define MOEK_SPLIT
#define MOEK_EMU
#define MOEK_EMU_ARCH device_arch
#define EMU_RESIDENT device_sms
#define EMU_KB device_kb
#define EMU_SPEED(d) ((d)->mhz = card.mhz, (d)->gbs = card.gbs, (d)->l2_kb = card.l2_kb, (d)->geforce = card.geforce)
static int device_arch, device_sms, device_kb;         /* device_kb 0: what sm_80 or sm_90 has a block */
/* Facts of a card by which bounds are computed; mhz 0: those measured on an H200 serve. */
typedef struct speed { const char *name; int arch, sms, kb, mhz, gbs, l2_kb, geforce; } speed;
static speed card;
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include <stdlib.h>
#include "../../bench/clock.h"
#include "../check.h"
#include "../oracle/formats.h"

/* ---- stubs ------------------------------------------------------------------------------------------------------- */

static char launched[1024];                            /* of one run, in order */
static int silent;                                     /* 1: nothing is written down */
static int without;                                    /* the binary has no code of rows of this architecture */
static void say(const char *format, ...)
{
    const size_t used = strlen(launched);
    va_list list;
    va_start(list, format);
    vsnprintf(launched + used, sizeof launched - used, format, list);
    va_end(list);
}
static void say_gemm(const moek_gemm_args *a)
{
    say("%s%s%s%s%s%s", a->ids ? ",ids" : "", a->rows.order ? ",order" : "", a->split ? ",split" : "",
        a->q ? ",requantizes" : "", a->early ? ",early" : "", a->rows_per_expert ? ",batched" : "");
}
/* ROUTE ... are spelled as the table spells them. */
static moek_status stub(int op, int m, const void *args)
{
    if (!args || silent) return MOEK_OK;               /* made ready */
    say("%s%s", *launched ? " " : "", moek_op_name_(op));
    if (m) say("%d", m);
    if (op == MOEK_OP_SORT) {
        const moek_sort_args *a = (const moek_sort_args *)args;
        say("(%d%s%s,early%d)", a->block_m, a->zero ? ",zero" : "", a->slot_row ? ",slot_row" : "", a->early);
    } else if (op == MOEK_OP_QUANT) {
        const moek_quant_args *a = (const moek_quant_args *)args;
        say("(max_blocks%d%s%s,early%d)", a->max_blocks, a->zero ? ",zero" : "", a->target ? ",target" : "", a->early);
    } else if (op == MOEK_OP_UP || op == MOEK_OP_DOWN) {
        say("(");
        say_gemm((const moek_gemm_args *)args);
        say(")");
    } else if (op == MOEK_OP_UP_DOWN) {
        say("(");
        say_gemm(((const moek_up_down_args *)args)->up);
        say(")");
    } else if (op == MOEK_OP_COMBINE) {
        say("(discard%d)", ((const moek_combine_args *)args)->discard);
    }
    return MOEK_OK;
}
#define MOEK_KERNEL(op, quant, hidden, granule, m, arch, threads, shared, name, row, block, ...) \
    moek_status name(const void *args, moek_stream stream) \
    { \
        (void)stream; \
        return !args && without && without == (arch) ? MOEK_E_ARCH : stub(MOEK_OP_##op, m, args); \
    }
#include "../../generated/moek_kernels.h"
#undef MOEK_KERNEL

/* ---- one run ----------------------------------------------------------------------------------------------------- */

/* Addresses of arrays that no one looks at, terabytes apart: a run refuses arrays that lie in each other. */
static void *at(uintptr_t n) { return (void *)(n << 40); }

static void run_args(moek_args *a, int tokens, int state)
{
    memset(a, 0, sizeof *a);
    a->tokens = tokens;
    a->x = at(1); a->router_logits = at(2); a->y = at(3); a->workspace = at(4); a->workspace_size = (size_t)-1;
    a->state = state ? at(5) : NULL;
}
static int run(moek_plan *plan, int tokens, int state)
{
    moek_args a;
    run_args(&a, tokens, state);
    launched[0] = 0;
    return moek_run(plan, &a, NULL) == MOEK_OK;
}
static int make(moek_plan *plan, const moek_config *c, int fixed)
{
    const moek_format *const down = moek_format_of(c->down_quant ? c->down_quant : c->quant);
    moek_weights w;
    memset(&w, 0, sizeof w);
    if (moek_plan_init(plan, c) != MOEK_OK) return 0;
    w.w_up = at(10); w.w_down = at(11);
    if (moek_format_of(c->quant)->w_scale.type)
        w.w_up_scale = (const float *)at(12);
    if (down->w_scale.type) w.w_down_scale = (const float *)at(13);
    if (moek_format_of(c->quant)->static_x && fixed)
        w.x_scale = (const float *)at(14), w.h_scale = (const float *)at(15);
    if (moek_format_of(c->quant)->global_scale)
        w.w_up_global_scale = (const float *)at(16);
    if (down->global_scale) w.w_down_global_scale = (const float *)at(17);
    return moek_plan_bind(plan, &w) == MOEK_OK;
}

/* ---- the golden file --------------------------------------------------------------------------------------------- */

enum { MOST = 8192 };
static FILE *golden;
static int writes, lines, differ;

static void golden_line(const char *line)
{
    char want[1400];
    lines++;
    if (writes) {
        fputs(line, golden);
        return;
    }
    if (!fgets(want, sizeof want, golden)) want[0] = 0;
    if (strcmp(want, line) && differ++ < 5) printf("is       %swas      %s%s", line, want, *want ? "" : "nothing\n");
}
/* All counts below 80, then steps of 2.5 %, and the last. */
static int next_tokens(int tokens)
{
    return tokens < 80 || tokens >= MOST ? tokens + 1 : tokens + tokens / 40 < MOST ? tokens + tokens / 40 : MOST;
}
/* A line for each span of tokens that launches the same. */
static void golden_plan(const char *shape, const moek_config *c)
{
    char before[sizeof launched] = "", line[1400];
    const char *const tiled = c->expand_weights ? ",tiled,expanded" : c->weight_layout ? ",tiled" : "";
    moek_plan plan;
    int tokens, from = 1, last = 1;
    if (!make(&plan, c, 1)) {
        snprintf(line, sizeof line, "%s\t%s%s\t%d\t%d\t-\t%.60s\n", shape, moek_quant_name(c->quant), tiled,
                 device_arch, device_sms, "no plan");
        golden_line(line);
        return;
    }
    for (tokens = 1; tokens <= MOST + 1; last = tokens, tokens = next_tokens(tokens)) {
        if (tokens <= MOST && !run(&plan, tokens, 1)) snprintf(launched, sizeof launched, "refused");
        if (tokens <= MOST && (!*before || !strcmp(before, launched))) {
            if (!*before) strcpy(before, launched);
            continue;
        }
        snprintf(line, sizeof line, "%s\t%s%s\t%d\t%d\t%d-%d\t%s\n", shape, moek_quant_name(c->quant), tiled,
                 device_arch, device_sms, from, last, before);
        golden_line(line);
        from = tokens;
        strcpy(before, launched);
    }
}
static const struct { const char *name; int hidden, inter, experts, local, topk; } shapes[] = {       /* of the bench */
    { "qwen3-30b-a3b", 2048, 768, 128, 128, 8 }, { "deepseek-v3-tp8", 7168, 256, 256, 256, 8 },
    { "deepseek-v3-32-local", 7168, 2048, 32, 32, 8 }, { "mixtral-8x7b", 4096, 14336, 8, 8, 2 },
    { "qwen3-235b-tp4", 4096, 384, 128, 128, 8 }
};
#define MODEL(NAME, name) static const moek_config model_##name = MOEK_##NAME;
MOEK_EACH_MODEL(MODEL)
#undef MODEL

static void golden_formats(const char *shape, moek_config c)
{
    static const int devices[][2] = { { 80, 108 }, { 90, 78 }, { 90, 108 }, { 90, 132 } };
    int i;
    c.max_tokens = MOST;
    c.exclude = 1u << MOEK_BACKEND_CPU;
    for (i = 0; i < 4; i++) {
        device_arch = devices[i][0]; device_sms = devices[i][1];
#define FORMAT(NAME, name, number) c.quant = number; if (format_on_gpu(moek_format_of(number))) golden_plan(shape, &c);
        MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
    }
    c.weight_layout = MOEK_WEIGHTS_TILED;              /* as fragments: other kernels, other bounds */
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        c.quant = f->number, c.block = format_block(f, 0);
        if (format_in_fragments(f) && format_has(f, MOEK_OP_UP, 90)) golden_plan(shape, &c);
        c.expand_weights = 1;
        if (f->expands) golden_plan(shape, &c);
        c.expand_weights = 0;
    }
}
/* Devices that nobody measured, and what they say of themselves; the last is an H200 by its kernels of sm_80.  (Spark's
 * memory has no clock that CUDA tells.) */
static const speed cards[] = {
    { "A100", 80, 108, 163, 1410, 1935, 40 << 10, 0 }, { "RTX 3090", 86, 82, 99, 1695, 936, 6 << 10, 1 },
    { "Orin", 87, 16, 163, 1300, 205, 4 << 10, 0 }, { "L4", 89, 58, 99, 2040, 300, 48 << 10, 0 },
    { "RTX 4090", 89, 128, 99, 2520, 1008, 72 << 10, 1 }, { "RTX 5090", 120, 170, 99, 2407, 1792, 96 << 10, 1 },
    { "Spark", 121, 48, 99, 2418, 0, 24 << 10, 0 }, { "H200", 80, 132, 99, 1980, 4916, 50 << 10, 0 }
};
enum { CARDS = sizeof cards / sizeof *cards };
static void take_card(int i)
{
    card = cards[i];
    device_arch = card.arch, device_sms = card.sms, device_kb = card.kb;
}
static void no_card(void) { memset(&card, 0, sizeof card), device_kb = 0; }
static moek_config config_of(int shape, const moek_format *f)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.hidden = shapes[shape].hidden; c.inter = shapes[shape].inter; c.experts = shapes[shape].experts;
    c.topk = shapes[shape].topk; c.local_experts = shapes[shape].local; c.act = MOEK_SILU;
    c.quant = f->number, c.block = format_block(f, 0);
    c.max_tokens = MOST, c.exclude = 1u << MOEK_BACKEND_CPU;
    return c;
}
static void golden_cards(void)
{
    char name[64];
    int d, s, q;
    for (d = 0; d < CARDS; d++)
        for (s = 0; s < 3; s++)
            for (q = 0; q < FORMATS; q++) {
                const moek_format *const f = format_at(q);
                moek_config c = config_of(s, f);
                if (!format_on_gpu(f)) continue;
                take_card(d);
                snprintf(name, sizeof name, "%s,%s", shapes[s].name, card.name);
                if (q % 2 == 0 || f->x == MOEK_ELEMENT_S8) golden_plan(name, &c);
                c.weight_layout = MOEK_WEIGHTS_TILED;
                if (format_in_fragments(f)) golden_plan(name, &c);
            }
    no_card();
}
static void golden_all(void)
{
    int i;
    for (i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        moek_config c;
        memset(&c, 0, sizeof c);
        c.hidden = shapes[i].hidden; c.inter = shapes[i].inter; c.experts = shapes[i].experts; c.topk = shapes[i].topk;
        c.local_experts = shapes[i].local; c.act = MOEK_SILU;
        golden_formats(shapes[i].name, c);
    }
#define MODEL(NAME, name) golden_formats(#name, model_##name);
    MOEK_EACH_MODEL(MODEL)
#undef MODEL
    golden_cards();
}

/* ---- a digest of random plans ------------------------------------------------------------------------------------ */

static uint64_t random_state;
static int below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (unsigned)n);
}
static int size_of(int most) { return below(3) ? 64 << below(9) : 64 * (1 + below(most / 64)); }
static moek_config random_config(void)
{
    static const int sms[] = { 78, 108, 132, 148, 40 };
    int quants[64], n = 0;
    moek_config c;
#define FORMAT(NAME, name, number) if (format_on_gpu(moek_format_of(number))) quants[n++] = number;
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
    memset(&c, 0, sizeof c);
    device_arch = below(4) ? 90 : 80;
    device_sms = sms[below(5)];
    c.hidden = size_of(8192); c.inter = size_of(4096);
    c.experts = 1 + below(below(2) ? 16 : 300);
    c.topk = 1 + below(c.experts < 10 ? c.experts : 10);
    c.quant = quants[below(n)];
    c.act = below(4) ? MOEK_SILU : MOEK_RELU2_NO_MUL;
    c.max_tokens = 1 + below(9000);
    if (!below(6)) c.chunk_tokens = 1 + below(2000);
    if (!below(8)) c.format = MOEK_BATCHED;
    if (!below(8)) c.batch_invariant = 1;
    if (!below(8) && c.topk == 1) c.router_weight_on_input = 1;
    if (!below(8)) c.shared_slots = 1 + below(2);
    if (!below(8) && device_arch == 90) c.weight_layout = MOEK_WEIGHTS_TILED;
    c.exclude = 1u << MOEK_BACKEND_CPU;
    return c;
}
static uint64_t digest(long count, long *plans)
{
    uint64_t hash = 14695981039346656037u;
    long n = 0;
    while (n < count) {
        const moek_config c = random_config();
        moek_plan plan;
        int i;
        if (!make(&plan, &c, below(3))) { n++; continue; }
        ++*plans;
        for (i = 0; i < 12; i++, n++) {
            const char *p;
            run(&plan, 1 + below(below(3) ? (c.max_tokens < 300 ? c.max_tokens : 300) : c.max_tokens), below(4) != 0);
            for (p = launched; ; p++) {
                hash = (hash ^ (unsigned char)*p) * 1099511628211u;
                if (!*p) break;
            }
        }
    }
    return hash;
}

/* ---- what the host takes ----------------------------------------------------------------------------------------- */

/* In nanoseconds, the best of nine times `count` calls; Qwen3-30B-A3B. */
static void host_time(const char *what, int quant, int tokens, int state, long count)
{
    moek_config c = model_qwen3_30b_a3b;
    double begin = 1e9, run = 1e9;
    moek_plan plan;
    moek_args a;
    moek_step step;
    int i, launches = 1;
    const char *p;
    c.quant = quant, c.max_tokens = MOST, c.exclude = 1u << MOEK_BACKEND_CPU;
    c.block = format_block(moek_format_of(quant), 0);
    if (device_arch == 90 && format_in_fragments(moek_format_of(quant))) c.weight_layout = MOEK_WEIGHTS_TILED;
    if (!make(&plan, &c, 1)) return;
    run_args(&a, tokens, state);
    launched[0] = 0, silent = 0;
    moek_run(&plan, &a, NULL);
    for (p = launched; *p; p++) launches += *p == ' ';
    silent = 1;
    for (i = 0; i < 9; i++) {
        const double start = seconds();
        double middle;
        long n;
        for (n = 0; n < count; n++) moek_begin(&plan, &a, &step);
        middle = seconds();
        for (n = 0; n < count; n++) moek_run(&plan, &a, NULL);
        if ((middle - start) / count < begin) begin = (middle - start) / count;
        if ((seconds() - middle) / count < run) run = (seconds() - middle) / count;
    }
    printf("%-10s sm_%d %5d tokens%s  moek_begin %4.0f ns  moek_run %4.0f ns, %d launches\n", what, device_arch, tokens,
           state ? ", state" : "       ", 1e9 * begin, 1e9 * run, launches);
}
static void host_times(long count)
{
    static const int tokens[] = { 1, 64, 2048 };
    int i, j;
    for (i = 0; i < FORMATS; i++)
        for (j = 0; j < 6; j++) {
            device_arch = 90, device_sms = 132;
            if (format_has(format_at(i), MOEK_OP_UP, 90))
                host_time(format_at(i)->name, format_at(i)->number, tokens[j / 2], j % 2, count);
        }
}

/* A format without kernels for a GPU: which ones have some. */
static void refused(void)
{
    moek_config c = model_qwen3_30b_a3b;
    moek_plan plan;
    int i, n;
    const moek_kernel *const k = moek_kernels(&n);
    device_arch = 90, device_sms = 132;
    c.exclude = 1u << MOEK_BACKEND_CPU, c.max_tokens = 1;
    for (i = 0; i < n; i++) {
        if (k[i].op != MOEK_OP_UP || format_on_gpu(moek_format_of(k[i].quant))) continue;
        c.quant = k[i].quant, c.block = k[i].block;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL &&
              strstr(plan.why, "has kernels on cpu; on sm90 there are bf16") &&
              strstr(plan.why, "on sm80 there are bf16"), "%s: %s", k[i].name, plan.why);
    }
}

/* Formats of the same weights, by device: 8 bits on both sides, where tensor cores multiply them as they are; else x in
 * T; and x that kernels widen only where nothing else serves. */
static void paired(void)
{
    static const int archs[] = { 80, 86, 89, 90, 100 };
    int a, i, j, tried = 0;
    for (a = 0; a < (int)(sizeof archs / sizeof *archs); a++)
        for (i = 0; i < FORMATS; i++) {
            const moek_format *const f = format_at(i);
            moek_config c = model_qwen3_30b_a3b;
            char text[2048];
            int want = 0;
            if (!format_on_gpu(f)) continue;
            device_arch = archs[a], device_sms = 132;
            c.max_tokens = 64, c.quant = f->number, c.block = format_block(f, 0);
            for (j = 0; j < FORMATS && !want; j++) {
                const moek_format *const g = format_at(j);
                const int integers = g->x_bits == 8 && g->x_scale.columns == 0 && g->x != MOEK_ELEMENT_E4M3;
                if (moek_same_weights(f->number, g->number) && g->x == g->w && g->x_bits == 8 && format_on_gpu(g) &&
                    (integers || archs[a] >= 89)) want = g->number;
            }
            for (j = 0; j < FORMATS && !want; j++)
                if (moek_same_weights(f->number, format_at(j)->number) && format_at(j)->x_bits == 16)
                    want = format_at(j)->number;
            if (!want) want = f->number;               /* alone */
            CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_OK && c.quant == want, "sm_%d, %s: %s", archs[a],
                  f->name, text);
            CHECK(!strncmp(text, moek_quant_name(want), strlen(moek_quant_name(want))), "%s", text);
            tried++;
        }
    CHECK(tried > 60, "%d formats and devices", tried);
    for (i = 0; i < FORMATS; i++) {                    /* tiled weights: some of a pair have kernels */
        const moek_format *const f = format_at(i);
        moek_config c = model_qwen3_30b_a3b;
        moek_plan plan;
        char text[2048], runs[64];
        device_arch = 90;
        c.max_tokens = 64, c.quant = f->number, c.block = format_block(f, 0), c.weight_layout = MOEK_WEIGHTS_TILED;
        c.exclude = 1u << MOEK_BACKEND_CPU;
        if (moek_choose_format(&c, text, sizeof text) != MOEK_OK) continue;
        CHECK(moek_plan_init(&plan, &c) == MOEK_OK &&
              plan.backend == MOEK_BACKEND_SM90, "%s: %s", f->name, text);
        snprintf(runs, sizeof runs, "; %s would run", f->name);
        if (c.quant != f->number && format_in_fragments(f))
            CHECK((strstr(text, runs) != NULL) == format_has(f, MOEK_OP_UP, 90), "%s, tiled: %s", f->name, text);
    }
}

/* Is there a row of that architecture with so many tokens a tile? */
static int has_tile(int arch, int op, int quant, int m)
{
    int i, n;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++) if (k[i].arch == arch && k[i].op == op && k[i].quant == quant && k[i].m == m) return 1;
    return 0;
}
/* Rows of sm89, of sm120: on devices of their list unasked, on other newer ones where the backend or a row of theirs is
 * demanded, beside rows of what is below; on older ones never.  Formats without such rows have rows of what is
 * below. */
typedef struct adding { int arch, backend, below; const char *says[3]; } adding;
static void adds_on(const adding *a, const moek_format *f, int device, int unasked)
{
    const int has = format_has(f, MOEK_OP_UP, a->arch), newer = device >= a->arch;
    const unsigned others = 1u << MOEK_BACKEND_CPU | 1u << MOEK_BACKEND_SM90 |
                            (a->arch == 89 ? 1u << MOEK_BACKEND_SM120 : 0);
    moek_config c = model_qwen3_30b_a3b;
    moek_plan plan;
    int n, j;
    const moek_kernel *const k = moek_kernels(&n);
    device_arch = device, device_sms = 132, device_kb = 99;
    memset(&plan, 0, sizeof plan);
    c.max_tokens = MOST, c.quant = f->number, c.block = format_block(f, 0);
    c.exclude = others;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK && (plan.backend == a->backend) == (has && unasked),
          "%s on sm_%d: backend %d, %s", f->name, device, plan.backend, plan.why);
    for (j = 0; j < plan.chosen.gemms; j++) {
        const moek_kernel *const up = plan.chosen.up[j];
        CHECK((up->arch == a->arch) == (has && unasked && has_tile(a->arch, MOEK_OP_UP, f->number, up->m)) &&
              up->arch == plan.chosen.down[j]->arch, "%s on sm_%d: %s, %s", f->name, device, up->name,
              plan.chosen.down[j]->name);
    }
    c.exclude = 0, c.backend = a->backend;
    CHECK(moek_plan_init(&plan, &c) == (newer ? MOEK_OK : MOEK_E_ARCH) && (newer || strstr(plan.why, a->says[0])),
          "%s, demanded on sm_%d: %s", f->name, device, plan.why);
    c.backend = 0, c.exclude = others | (unsigned)a->below;
    if (has && newer && !unasked)
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARCH && strstr(plan.why, a->says[1]), "%s", plan.why);
    if (!has && unasked)
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, a->says[2]), "%s", plan.why);
    for (j = 0; j < n && newer; j++) {
        if (k[j].arch != a->arch || k[j].quant != f->number) continue;
        c.exclude = others, c.kernel = k[j].name;
        CHECK(moek_plan_init(&plan, &c) == MOEK_OK && plan.backend == a->backend, "%s: %s", k[j].name, plan.why);
    }
    device_kb = 0;
}
static void adds(void)
{
    static const adding archs[] = {
        { 89, MOEK_BACKEND_SM89, 1 << MOEK_BACKEND_SM80,
          { "it needs sm_89 or newer",
            "rows of sm89 are for sm_89 sm_120 sm_121, elsewhere only where config.backend demands them",
            "sm89 has no rows of its own" } },
        { 120, MOEK_BACKEND_SM120, 1 << MOEK_BACKEND_SM80 | 1 << MOEK_BACKEND_SM89,
          { "it needs sm_120 or newer",
            "rows of sm120 are for sm_120 sm_121, elsewhere only where config.backend demands them",
            "sm120 has no rows of its own" } } };
    static const struct { int arch, unasked[2]; } devices[] = {       /* (130: one that is not there yet) */
        { 80, { 0, 0 } }, { 86, { 0, 0 } }, { 89, { 1, 0 } }, { 90, { 0, 0 } }, { 100, { 0, 0 } }, { 120, { 1, 1 } },
        { 121, { 1, 1 } }, { 130, { 0, 0 } } };
    int a, d, i;
    for (a = 0; a < 2; a++)
        for (d = 0; d < (int)(sizeof devices / sizeof *devices); d++)
            for (i = 0; i < FORMATS; i++)
                if (format_on_gpu(format_at(i)))
                    adds_on(&archs[a], format_at(i), devices[d].arch, devices[d].unasked[a]);
}

/* A binary without code of sm120's rows, as of plain sm_120: a plan has rows of what is below, and the text says what
 * to compile; where they are demanded, so does the error. */
static void no_code(void)
{
    static const char says[] = "the binary holds no code for sm_120f; compile with -gencode arch=compute_120f,code="
                               "sm_120f (code for plain sm_120 has no mma.sync by block scale)";
    static char text[1 << 18];
    int i, device, tried = 0;
    for (device = 120; device <= 121; device++)
        for (i = 0; i < FORMATS; i++) {
            const moek_format *const f = format_at(i);
            moek_config c = model_qwen3_30b_a3b;
            moek_plan plan;
            if (!format_has(f, MOEK_OP_UP, 120)) continue;
            memset(&plan, 0, sizeof plan);
            device_arch = device, device_sms = 170, device_kb = 99, without = 120;
            c.max_tokens = MOST, c.quant = f->number, c.block = format_block(f, 0);
            c.exclude = 1u << MOEK_BACKEND_CPU;
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK && plan.backend == (format_has(f, MOEK_OP_UP, 89)
                  ? MOEK_BACKEND_SM89 : MOEK_BACKEND_SM80), "%s: backend %d, %s", f->name, plan.backend, plan.why);
            moek_explain(&c, text, sizeof text);
            CHECK(strstr(text, says) != NULL, "%s: %.2000s", f->name, text);
            c.backend = MOEK_BACKEND_SM120;
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARCH && strstr(plan.why, says), "%s: %s", f->name, plan.why);
            tried++;
        }
    CHECK(tried == 12, "%d formats and devices", tried);
    device_kb = without = 0;
}

/* Rows of few tokens for GPUs before Hopper, each demanded: where a block has room for them, plans of GPUs of all ages
 * take them, for as many tokens as fit in, and say so; else they say what lacks. */
static void rooms(void)
{
    static const int devices[][3] = { { 86, 82, 99 }, { 121, 48, 99 }, { 80, 108, 163 }, { 90, 132, 227 } };
    int n, i, d, most, few = 0;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++)
        for (d = 0; d < 4; d++) {
            char text[4096], says[32];
            moek_config c;
            moek_plan plan;
            if (k[i].arch != 80 || !k[i].max_tokens) continue;
            memset(&c, 0, sizeof c);
            device_arch = devices[d][0], device_sms = devices[d][1], device_kb = devices[d][2];
            c.hidden = 2048, c.inter = 768, c.experts = 128, c.topk = 8, c.act = MOEK_SILU, c.max_tokens = 64;
            c.quant = k[i].quant, c.down_quant = k[i].down_quant, c.block = k[i].block, c.kernel = k[i].name;
            c.weight_layout = k[i].reads & MOEK_READS_CHECKPOINT ? 0 : MOEK_WEIGHTS_TILED;
            if (!make(&plan, &c, 1)) {
                /* (Without GEMMs that read tiled weights there is no plan.) */
                CHECK(k[i].shared_bytes > device_kb * 1024 ? strstr(plan.why, "the device has") != NULL ||
                      c.weight_layout : c.weight_layout && device_kb < 227, "%s, %d KB: %s", k[i].name, device_kb,
                      plan.why);
                continue;
            }
            few++;
            most = moek_decode_most_(&plan, &k[i], 0);
            snprintf(says, sizeof says, "(up to %d tokens", most);
            moek_describe(&plan, text, sizeof text);
            CHECK(k[i].shared_bytes <= device_kb * 1024 && most >= 1 && moek_plan_layer(&plan, most) == &k[i] &&
                  !moek_plan_layer(&plan, most + 1) && strstr(text, says), "%s, %d KB, %d tokens: %s", k[i].name,
                  device_kb, most, text);
            c.hidden = 64 * 1024;                      /* not one token */
            if (make(&plan, &c, 1)) moek_describe(&plan, text, sizeof text);
            CHECK(strstr(text, "for no number of tokens"), "%s, %d KB: %s", k[i].name, device_kb, text);
        }
    CHECK(few >= 40, "%d plans", few);
    device_kb = 0;
}

/* Computed for an H200, tiles are those that were measured there, or their neighbours; for other cards a plan says so,
 * and for an H200 that bounds are measured. */
static void computed(void)
{
    int d, q, s, rows, cells = 0, same = 0, far = 0;
    for (s = 0; s < 3; s++)
        for (q = 0; q < FORMATS; q++) {
            const moek_format *const f = format_at(q);
            moek_config c = config_of(s, f);
            moek_plan plan, other;
            if (!format_on_gpu(f)) continue;
            c.weight_layout = format_in_fragments(f) ? MOEK_WEIGHTS_TILED : 0;
            take_card(CARDS - 1);
            if (!make(&plan, &c, 1)) continue;
            CHECK(plan.chosen.computed == f->only_blocks, "%s", f->name);
            if (f->only_blocks) continue;
            other = plan;
            moek_compute_tiles_(&other, &(moek_device_){ 0, 80, 0, card.sms, card.mhz, card.gbs, card.l2_kb, 0 });
            for (rows = 1; rows <= 192; rows++, cells++) {
                moek_facts_ a = moek_facts_of_(&plan, 1), b = moek_facts_of_(&other, 1);
                int i, j;
                a.mean = b.mean = rows;
                for (i = 0; i < plan.chosen.tiles - 1; i++) if (moek_tile_holds_(&a, &plan, plan.chosen.up[i])) break;
                for (j = 0; j < plan.chosen.tiles - 1; j++) if (moek_tile_holds_(&b, &other, plan.chosen.up[j])) break;
                same += i == j, far += i - j > 1 || j - i > 1;
            }
        }
    CHECK(!far && cells, "%d of %d counts of rows are more than a tile off, %d the same", far, cells, same);
    printf("computed for an H200: of %d shapes, formats and rows %d take the tile that was measured\n", cells, same);
    for (d = 0; d < CARDS; d++)
        for (q = 0; q < FORMATS; q++) {
            const moek_format *const f = format_at(q);
            moek_config c = config_of(0, f);
            moek_plan plan;
            char text[8192], says[96];
            take_card(d);
            if (!format_on_gpu(f) || !make(&plan, &c, 1)) continue;
            if (d < CARDS - 1 || f->only_blocks)
                snprintf(says, sizeof says, "bounds computed for sm_%d, %d SMs of %d MHz, %d GB/s", card.arch, card.sms,
                         card.mhz, card.gbs ? card.gbs : 273);
            else snprintf(says, sizeof says, "bounds measured on H200\n");
            moek_describe(&plan, text, sizeof text);
            CHECK(plan.chosen.computed == (d < CARDS - 1 || f->only_blocks) && strstr(text, says), "%s, %s: %s",
                  card.name, f->name, text);
            moek_explain(&c, text, sizeof text);
            CHECK(strstr(text, "rule: ") && strstr(text, says), "%s, %s: %s", card.name, f->name, text);
        }
    no_card();
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "-d")) {
        long plans = 0;
        uint64_t hash;
        random_state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
        hash = digest(atol(argv[2]), &plans);
        printf("%ld plans, digest %016llx\n", plans, (unsigned long long)hash);
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "-t")) {
        host_times(atol(argv[2]));
        return 0;
    }
    writes = argc > 2 && !strcmp(argv[1], "-w");
    if (argc < 2 + writes || !(golden = fopen(argv[1 + writes], writes ? "w" : "r"))) {
        fprintf(stderr, "%s: cannot open %s\n", argv[0], argc > 1 + writes ? argv[1 + writes] : "(no file named)");
        return 2;
    }
    golden_line("shape\tformat\tarch\tsms\ttokens\tlaunches\n");
    golden_all();
    if (!writes && fgetc(golden) != EOF) differ++;
    fclose(golden);
    refused();
    paired();
    adds();
    no_code();
    rooms();
    computed();
    CHECK(!differ, "%d of %d lines differ: a change of the rule.  If it is meant: ./moek rule", differ, lines);
    return check_end();
}
