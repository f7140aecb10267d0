/* test_api.c -- what moek.h says no to, and how: every status, every sentence, and nothing written on the way.
 *
 *   cc -std=c99 -Iinclude tests/api/test_api.c -lm -o test_api && ./test_api
 *
 * Needs no GPU, and passes on a machine with one: whatever runs, runs on host memory (config.backend).
 * With -DMOEK_QUANT=MOEK_FP8B128 -DMOEK_ARCH=0 it also walks into the sentences for a row that is not compiled in.
 * With MOEK_SPLIT the implementation is linked from elsewhere.  C99, C++ and CUDA C++.                               */
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#ifdef MOEK_QUANT                                      /* as if kernels.toml had these alone: others are rows to add */
#define MOEK_EACH_SHIPPED_(X) \
    X(UP, MOEK_QUANT, 0, 0, 0) X(UP, (MOEK_QUANT) + 1, 0, 0, 0) X(UP, (MOEK_QUANT) + 2, 0, 0, 80) \
    X(DOWN, (MOEK_QUANT) + 1, 0, 0, 0)
#endif
#endif
#include "moek.h"
#include "moek/kernel/isa.h"
#include <limits.h>
#include "../check.h"
#include "../mem.h"
#include "../oracle/ref.h"

#ifdef MOEK_QUANT
#define QUANT MOEK_QUANT
#else
#define QUANT FORMAT_PLAIN
#endif
enum { HIDDEN = 64, INTER = 32, EXPERTS = 8, TOPK = 2, TOKENS = 4, BIG = 1 << 18 };

static int has_text(const char *text, const char *part) { return strstr(text, part) != NULL; }
/* A sentence with the name of a format in it. */
static const char *of_format(const char *sentence, int quant)
{
    static char text[128];
    snprintf(text, sizeof text, sentence, moek_quant_name(quant));
    return text;
}
static int scaled(int quant) { return format_scaled(moek_format_of(quant)); }

/* A config that the CPU rows serve; the cases break one thing of it at a time. */
static moek_config good(void)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.hidden = HIDDEN; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK;
    c.quant = QUANT; c.act = MOEK_SILU; c.max_tokens = TOKENS;
    c.backend = MOEK_BACKEND_CPU;
    return c;
}
/* The config in another format, whose sizes are whole blocks where it comes in such. */
static void of_quant(moek_config *c, int quant)
{
    const moek_format *const f = moek_format_of(quant);
    int i = 0;
    c->quant = quant;
    while (i < f->blocks && f->block[i] != c->block) i++;
    if (f->blocks && i == f->blocks) c->block = f->block[0];
    c->hidden = format_round_up(f, c->hidden);
    c->inter = format_round_up(f, c->inter);
}

/* ---- formats of the same weights --------------------------------------------------------------------------------- */

/* The table describes weights twice: by facts, which the function asks, and for people (w_about). */
static void test_same_weights(void)
{
    int i, j, pairs = 0;
    for (i = 0; i < FORMATS; i++)
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const f = format_at(i), *const g = format_at(j);
            const int same = moek_same_weights(f->number, g->number);
            CHECK(same == !strcmp(f->w_about, g->w_about), "%s and %s: %d", f->name, g->name, same);
            CHECK(same == moek_same_weights(g->number, f->number), "%s and %s: not the same both ways", f->name,
                  g->name);
            pairs += same && i < j;
        }
    CHECK(pairs >= 6, "%d pairs", pairs);
    CHECK(!moek_same_weights(0, 0) && !moek_same_weights(QUANT, 0) && !moek_same_weights(999, QUANT), "no formats");
}

static int served(int quant)                           /* by the CPU, as this was compiled */
{
    return format_has(moek_format_of(quant), MOEK_OP_UP, 0);
}
/* On the CPU x stays T, where that format is compiled in; else the format that is. */
static void test_choose_pair(void)
{
    char text[2048], other[64];
    moek_config c, before;
    int i, j;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        int want = 0;
        c = good();
        of_quant(&c, f->number);
        before = c;
        c.block = before.block = format_block(f, i);
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const g = format_at(j);
            if (!moek_same_weights(f->number, g->number) || !served(g->number)) continue;
            if (!want || !format_quantizes(g)) want = g->number;
        }
        if (!want) {
            CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_E_NO_KERNEL && has_text(text, f->name) &&
                  has_text(text, ": ") && !memcmp(&c, &before, sizeof c), "%s: %s", f->name, text);
            continue;
        }
        CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_OK && c.quant == want, "%s: %s", f->name, text);
        CHECK(!strncmp(text, moek_quant_name(want), strlen(moek_quant_name(want))), "%s: %s", f->name, text);
        CHECK(!f->only_blocks || !has_text(text, "widen"), "%s: kernels of s8 widen nothing: %s", f->name, text);
        for (j = 0; j < FORMATS; j++) {                /* each other one is named */
            const moek_format *const g = format_at(j);
            snprintf(other, sizeof other, "; %s %s", g->name, served(g->number) ? "would run" : "does not run");
            if (moek_same_weights(f->number, g->number) && g->number != want)
                CHECK(has_text(text, other), "%s: %s", f->name, text);
        }
        CHECK(has_text(text, "x_scale and h_scale are required") == format_x_second(moek_format_of(want)), "%s: %s",
              f->name, text);
        before.quant = want;
        CHECK(!memcmp(&c, &before, sizeof c), "%s: something else changed", f->name);
    }
    for (i = 0; i < FORMATS; i++) {                    /* powers of two of x go where x has no scales */
        const moek_format *const f = format_at(i);
        c = good();
        c.quant = f->number; c.ue8m0 = 1;
        if (!f->ue8m0 || moek_choose_format(&c, text, sizeof text) != MOEK_OK) continue;
        CHECK(c.ue8m0 == moek_format_of(c.quant)->ue8m0 && has_text(text, "ue8m0 is 0 now") == !c.ue8m0, "%s: %s",
              f->name, text);
    }
    c = before = good();
    c.hidden = before.hidden = 0;
    CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config.hidden is 0") &&
          !memcmp(&c, &before, sizeof c), "hidden 0: %s", text);
    c = good();
    c.quant = 999;
    CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config.quant is 999"), "%s",
          text);
    CHECK(moek_choose_format(NULL, text, sizeof text) == MOEK_E_ARGUMENT && has_text(text, "config is NULL"), "%s",
          text);
    c = good();
    CHECK(moek_choose_format(&c, NULL, 0) == MOEK_OK, "without a text");
    CHECK(moek_choose_format_(&c, text, sizeof text, sizeof c - 4, MOEK_VERSION) == MOEK_E_VERSION &&
          moek_choose_format_(&c, text, sizeof text, sizeof c, MOEK_VERSION + 1) == MOEK_E_VERSION, "version");
}

#include "plan.h"
#include "table.h"
#include "bind.h"
#include "mixes.h"
#include "run.h"

int main(void)
{
    memory = (char *)mem_alloc(0, BIG);
    memset(memory, 0, BIG);
    test_sizes();
    test_kinds();
    test_routing();
    test_routing_fields();
    test_routing_described();
    test_filled_in();
    test_defaults();
    test_acts();
    test_same_weights();
    test_choose_pair();
    test_version();
    test_misuse();
    test_backends();
    test_file_blocks();
    test_two_formats();
    test_two_bound();
    test_two_demanded();
    test_no_device();
    test_demanded();
    test_sets_serve();
    test_table();
    test_sets();
    test_missing_row();
    test_names();
    test_offsets();
    test_models();
    test_texts();
    test_describe();
    test_tuned_refused();
    test_tuned_choices();
    test_tuned_lines();
    test_tuned_tile();
    test_bind();
    test_repack();
    test_repack_blocks();
    test_panels();
    test_orders();
    test_bind_apart();
    test_bind_formats();
    test_blocks();
    test_alignment();
    fixture();
    test_run_refused();
    test_args_alignment();
    test_overlap();
    test_run_accepted();
    test_begin();
    test_quantize();
    return check_end();
}
