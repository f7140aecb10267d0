/* test_golden.c -- layers of transformers: what its MoE blocks chose and gave (tests/data/layer_golden.txt, which
 * tests/data/make_layer_golden.py made) against moek, on each backend that is here.
 *
 *   cc -std=c99 -O2 -Iinclude tests/layer/test_golden.c -lm -o golden          (GPUs, emulator: as test_layer.c)
 *   ./golden [FILE]
 *
 * Formulas of routing, activations and layouts are those that others wrote, not our reading of them.  Not in the file,
 * for want of a block that has them: SITU, routing by TOPK and by SQRTSOFTPLUS alone.  Each layer runs in each format
 * that takes weights as they are; the block ran in f32.  The same runs are compared with ref.h, as all runs are
 * (layer.h), which tells GELU from GELU_TANH: they differ by less than fp16 rounds. */
#ifdef MOEK_EMU
#include "../emu/emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "layer.h"

enum {
    X, LOGITS, ROUTER_BIAS, EXPERT_SCALE, TABLE, TOKEN_IDS, W_UP, W_GATE, W_DOWN, UP_BIAS, DOWN_BIAS, IDS, WEIGHTS, Y,
    ARRAYS, LINE = 1 << 13, NUMBERS = 1 << 12
};
static const char *const array_names[ARRAYS] = {
    "x", "router_logits", "router_bias", "router_expert_scale", "router_table", "token_ids", "w_up", "w_gate", "w_down",
    "w_up_bias", "w_down_bias", "ids", "weights", "y"
};
typedef struct golden {
    char title[140];                                   /* class and config, as much as fits */
    moek_config config;
    int count[ARRAYS];                                 /* 0: there is none */
    double number[ARRAYS][NUMBERS];
} golden;

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static const struct { const char *name; int number; } words[] = {
#define ROUTING(name, number, score, normalize, eps, group, text) { #name, number },
    MOEK_EACH_ROUTING(ROUTING)
#undef ROUTING
#define ACT(NAME, name, number, gated) { #name, number },
    MOEK_EACH_ACT(ACT)
#undef ACT
    { "HALVES", MOEK_UP_GATE_UP }, { "INTERLEAVED", MOEK_UP_INTERLEAVED }, { "SWAPPED", MOEK_UP_SWAPPED },
    { "APART", MOEK_UP_SEPARATE }, { "TOP2", MOEK_GROUP_SCORE_TOP2 }
};

/* hidden=16, scale=2.5, act=silu: a field of moek_config. */
static void set_field(golden *g, char *text)
{
    char *const value = strchr(text, '=') + 1, name[64];
    size_t at, i;
    snprintf(name, sizeof name, "config.%.*s", (int)(value - 1 - text), text);
    at = moek_offset(name);
    if (!CHECK(at < sizeof g->config, "%s: %s", g->title, name)) return;
    if (strchr("0123456789", *value)) {
        const double x = strtod(value, NULL);
        const float f = (float)x;
        const int n = (int)x, is_float = strpbrk(value, ".e") != NULL;
        memcpy((char *)&g->config + at, is_float ? (const void *)&f : (const void *)&n, 4);
        return;
    }
    for (i = 0; i < sizeof words / sizeof *words && strcmp(words[i].name, value); i++) {}
    if (CHECK(i < sizeof words / sizeof *words, "%s: %s", g->title, value))
        memcpy((char *)&g->config + at, &words[i].number, 4);
}
/* Digits of eighths, or numbers with blanks between. */
static void set_array(golden *g, int array, char *text)
{
    const int digits = array == X || (array >= W_UP && array <= DOWN_BIAS);
    int n = 0;
    for (; *text && n < NUMBERS; n++) {
        if (digits) g->number[array][n] = ((double)(strchr("0123456789abcdef", *text++) - "0123456789abcdef") - 8) / 8;
        else g->number[array][n] = strtod(text, &text);
    }
    CHECK(!*text && n, "%s: %s has more than %d numbers, or none", g->title, array_names[array], NUMBERS);
    g->count[array] = n;
}
/* The next layer; 0: there is none.  `line` is ahead: the first line of the layer after it. */
static int read_layer(FILE *f, golden *g, char *line)
{
    char *field;
    int i;
    memset(g, 0, sizeof *g);
    while (strncmp(line, "layer ", 6)) if (!fgets(line, LINE, f)) return 0;
    snprintf(g->title, sizeof g->title, "%.*s", (int)strcspn(line + 6, "\n"), line + 6);
    while (fgets(line, LINE, f) && strncmp(line, "layer ", 6)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "config ", 7)) {
            snprintf(g->title + strlen(g->title), sizeof g->title - strlen(g->title), " %s", line + 7);
            for (field = strtok(line + 7, " "); field; field = strtok(NULL, " ")) set_field(g, field);
            continue;
        }
        field = strchr(line, ' ');
        if (!CHECK(field != NULL, "%s: %s", g->title, line)) continue;
        *field++ = 0;
        for (i = 0; i < ARRAYS && strcmp(array_names[i], line); i++) {}
        if (CHECK(i < ARRAYS, "%s: %s", g->title, line)) set_array(g, i, field);
    }
    if (!strncmp(line, "layer ", 6)) return 1;
    line[0] = 0;
    return 1;
}

/* ---- a layer of it ----------------------------------------------------------------------------------------------- */

static const void *give_t(layer *l, const golden *g, int array)
{
    uint16_t *to;
    int i;
    if (!g->count[array]) return NULL;
    to = (uint16_t *)layer_array_new(l, 2 * (size_t)g->count[array], LAYER_IN);
    for (i = 0; i < g->count[array]; i++) to[i] = ref_to_t(g->number[array][i], l->config.dtype);
    return to;
}
static const float *give_f32(layer *l, const golden *g, int array)
{
    float *to;
    int i;
    if (!g->count[array]) return NULL;
    to = (float *)layer_array_new(l, 4 * (size_t)g->count[array], LAYER_IN);
    for (i = 0; i < g->count[array]; i++) to[i] = (float)g->number[array][i];
    return to;
}
static const int32_t *give_i32(layer *l, const golden *g, int array)
{
    int32_t *to;
    int i;
    if (!g->count[array]) return NULL;
    to = layer_new_i32(l, (size_t)g->count[array]);
    for (i = 0; i < g->count[array]; i++) to[i] = (int32_t)g->number[array][i];
    return to;
}
static void give(layer *l, const golden *g, const moek_format *format, int backend)
{
    const size_t slots = (size_t)(g->config.topk + g->config.shared_slots);
    memset(l, 0, sizeof *l);
    l->config = g->config;
    l->config.quant = format->number; l->config.dtype = format_dtype(format); l->config.backend = backend;
    l->args.tokens = l->config.max_tokens = g->count[X] / g->config.hidden;
    l->format = format;
    l->options = LAYER_LOGITS;
    l->w.w_up = give_t(l, g, W_UP); l->w.w_gate = give_t(l, g, W_GATE); l->w.w_down = give_t(l, g, W_DOWN);
    l->w.w_up_bias = give_t(l, g, UP_BIAS); l->w.w_down_bias = give_t(l, g, DOWN_BIAS);
    l->w.router_bias = give_f32(l, g, ROUTER_BIAS); l->w.router_expert_scale = give_f32(l, g, EXPERT_SCALE);
    l->w.router_table = give_i32(l, g, TABLE); l->w.router_table_rows = g->count[TABLE] / g->config.topk;
    l->args.x = give_t(l, g, X); l->args.router_logits = give_f32(l, g, LOGITS);
    l->args.token_ids = give_i32(l, g, TOKEN_IDS);
    l->args.topk_ids = (int32_t *)layer_array_new(l, 4 * slots * (size_t)l->args.tokens, LAYER_OUT);
    l->args.topk_weights = (float *)layer_array_new(l, 4 * slots * (size_t)l->args.tokens, LAYER_OUT);
    l->args.y = layer_array_new(l, layer_y_bytes(l), LAYER_OUT);
}

/* The router's choice: of a token the same experts, in any order, and their weights. */
static void compare_route(layer *l, const golden *g)
{
    const int slots = g->config.topk + g->config.shared_slots;
    const int32_t *ids = (const int32_t *)layer_got(l, l->args.topk_ids);
    const float *weights = (const float *)layer_got(l, l->args.topk_weights);
    int t, k, j;
    for (t = 0; t < l->args.tokens; t++)
        for (k = 0; k < g->config.topk; k++) {
            const int want = t * g->config.topk + k;
            const double weight = g->number[WEIGHTS][want];
            for (j = 0; j < g->config.topk - 1 && ids[t * slots + j] != (int)g->number[IDS][want]; j++) {}
            CHECK(ids[t * slots + j] == (int)g->number[IDS][want] &&
                  fabs(weights[t * slots + j] - weight) <= 1e-5 * (1 + fabs(weight)),
                  "%s: token %d has expert %d by %.7g; theirs is %d by %.7g", g->title, t, (int)ids[t * slots + j],
                  weights[t * slots + j], (int)g->number[IDS][want], weight);
        }
}
static double worst[2];                                /* bf16, fp16: relative L2 of a layer */
static void check_golden(const golden *g, const moek_format *format, int backend)
{
    const int fp16 = format_dtype(format) == MOEK_DTYPE_FP16;
    const double bound = fp16 ? 1e-3 : 8e-3;           /* h, o and y are rounded to T: at most 2^-9 and 2^-12 each */
    ref_distance d;
    layer l;
    give(&l, g, format, backend);
    if (layer_check(&l, g->title)) {
        compare_route(&l, g);
        d = ref_compare_t(layer_got(&l, l.args.y), g->number[Y], (size_t)g->count[Y], l.plan.config.dtype);
        CHECK(d.rel_l2 < bound, "%s: y is off by %.2e", g->title, d.rel_l2);
        if (d.rel_l2 > worst[fp16]) worst[fp16] = d.rel_l2;
    }
    layer_free(&l);
}

static void try_backend(const char *path, const char *name, int number, int arch)
{
    static char line[LINE];
    static golden g;
    FILE *const f = fopen(path, "r");
    const int failed = check_failed;
    int layers = 0, i, ran = 0;
    if (!CHECK(f != NULL, "can not read %s", path)) return;
    layer_arch = arch;
    worst[0] = worst[1] = 0;
    for (line[0] = 0; read_layer(f, &g, line); layers++)
        for (i = 0; i < FORMATS; i++)
            if (format_plain(format_at(i)) && format_has(format_at(i), MOEK_OP_UP, arch))
                check_golden(&g, format_at(i), number), ran++;
    fclose(f);
    CHECK(layers >= 30 && ran >= 30, "%s: %d layers", path, layers);
    printf("%-5s %d layers, bf16 off by %.2e at most, fp16 by %.2e  %s\n", name, layers, worst[0], worst[1],
           check_failed == failed ? "ok" : "FAILED");
}
/* 1: there are rows of that architecture, for this machine, of formats that quantize nothing. */
static int is_here(int number, int arch)
{
    moek_config c;
    moek_plan plan;
    int i, plain = 0;
    for (i = 0; i < FORMATS; i++) plain += format_plain(format_at(i)) && format_has(format_at(i), MOEK_OP_UP, arch);
    memset(&c, 0, sizeof c);
    c.hidden = 16; c.inter = 8; c.experts = 8; c.topk = 2; c.max_tokens = 5; c.act = MOEK_SILU;
    c.quant = FORMAT_PLAIN; c.backend = number;
    return arch >= 0 && plain && mem_can_run(arch) && moek_plan_init(&plan, &c) == MOEK_OK;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "tests/data/layer_golden.txt";
#define BACKEND(name, number, arch) \
    if (is_here(number, arch)) try_backend(path, #name, number, arch); \
    else if (arch >= 0) printf("%-5s skipped: not for this machine, or not compiled in\n", #name), check_skipped++;
    MOEK_EACH_BACKEND(BACKEND)
#undef BACKEND
    return check_end();
}
