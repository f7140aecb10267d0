/* moek/plan/tuned.h -- measured choices (config.tuned): reads the text, keeps in the plan what is of its device and
 * shape.
 *
 * A line has ten columns, separated by tabs:  device quant hidden inter experts topk tokens up_row us built_in_us.
 *   device     its name ("NVIDIA H200"), or "sm90", "cpu"
 *   experts    all of them on one rank: config.local_experts;  topk: the slots of a token, shared ones too
 *   tokens     of the run that was measured.  Between two lines the geometric middle divides; where there is no other,
 *              a line counts down to half its tokens and up to twice as many.  Further off the built-in rule decides
 *   up_row     the fastest; the down row is the first of the same tile.  Or a row that is a whole layer, or both GEMMs;
 *              where that can not serve a run (no args.state, say), the built-in rule decides
 *   us         what it took, and what the row took that the built-in rule has: for the reader
 * Empty lines, lines with # in front and the line of column names are passed over.  Of two lines for the same tokens
 * the last counts.  A line whose row cannot serve leaves its tokens to the built-in rule, and plan.note says so. */
#ifndef MOEK_TUNED_H
#define MOEK_TUNED_H
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels.h"

enum {
    MOEK_AT_DEVICE_, MOEK_AT_QUANT_, MOEK_AT_HIDDEN_, MOEK_AT_INTER_, MOEK_AT_EXPERTS_, MOEK_AT_TOPK_, MOEK_AT_TOKENS_,
    MOEK_AT_ROW_, MOEK_AT_US_, MOEK_AT_BUILT_IN_, MOEK_COLUMNS_
};
static const char *const moek_columns_[] = {
    "device", "quant", "hidden", "inter", "experts", "topk", "tokens", "up_row", "us", "built_in_us"
};

typedef struct moek_cell_ { const char *at; int length; } moek_cell_;          /* lies in config.tuned: no end mark */
typedef struct moek_tuned_line_ {
    const char *next;                                 /* what is not yet read */
    int number, cells;
    moek_cell_ cell[MOEK_COLUMNS_];
} moek_tuned_line_;

static int moek_cell_is_(moek_cell_ w, const char *text)
{
    return (size_t)w.length == strlen(text) && !memcmp(w.at, text, (size_t)w.length);
}

/* Decimal, 1 to 2^31 - 1; anything else: 0. */
static int moek_cell_number_(moek_cell_ w)
{
    long long n = 0;
    int i;
    for (i = 0; i < w.length; i++) {
        if (w.at[i] < '0' || w.at[i] > '9' || n > 0x7fffffff / 10) return 0;
        n = 10 * n + (w.at[i] - '0');
    }
    return n > 0x7fffffff ? 0 : (int)n;
}

/* Digits, with one point at most: 12 or 12.5, in any locale. */
static int moek_cell_is_time_(moek_cell_ w)
{
    int i, digits = 0, points = 0;
    for (i = 0; i < w.length; i++) {
        digits += w.at[i] >= '0' && w.at[i] <= '9';
        points += w.at[i] == '.';
    }
    return digits && points <= 1 && digits + points == w.length;
}

static int moek_cell_quant_(moek_cell_ w)
{
#define MOEK_CASE_(NAME, name, number) if (moek_cell_is_(w, #name)) return number;
    MOEK_EACH_QUANT(MOEK_CASE_)
#undef MOEK_CASE_
    return 0;
}

/* To the next line that says something; 0: there is none.  Counts all its cells, keeps the cells of the columns. */
static int moek_tuned_next_(moek_tuned_line_ *line)
{
    while (*line->next) {
        const char *p = line->next, *const end = p + strcspn(p, "\n"), *last = end;
        line->next = *end ? end + 1 : end;
        line->number++;
        if (last > p && last[-1] == '\r') last--;
        if (last == p || *p == '#') continue;
        line->cells = 0;
        for (; p <= last; p++) {
            moek_cell_ w;
            w.at = p;
            while (p < last && *p != '\t') p++;
            w.length = (int)(p - w.at);
            if (line->cells < MOEK_COLUMNS_) line->cell[line->cells] = w;
            line->cells++;
        }
        if (!moek_cell_is_(line->cell[0], moek_columns_[0])) return 1;
    }
    return 0;
}

static moek_tuned_line_ moek_tuned_of_(const char *text)
{
    moek_tuned_line_ line;
    memset(&line, 0, sizeof line);
    line.next = text ? text : "";
    return line;
}

/* What a column wants, if this is not it. */
static const char *moek_cell_wants_(int column, moek_cell_ w)
{
    switch (column) {
    case MOEK_AT_DEVICE_:
    case MOEK_AT_ROW_:      return w.length ? NULL : "a name";
    case MOEK_AT_QUANT_:    return moek_cell_quant_(w) ? NULL : "a format, as bf16 or fp8b128";
    case MOEK_AT_US_:
    case MOEK_AT_BUILT_IN_: return moek_cell_is_time_(w) ? NULL : "a time, as 12.5";
    default:                return moek_cell_number_(w) ? NULL : "a whole number of at least 1";
    }
}

/* Every line, also those for others: a file that is damaged says so wherever it is used. */
static moek_status moek_check_tuned_(const moek_config *c, moek_text_ *why)
{
    moek_tuned_line_ line = moek_tuned_of_(c->tuned);
    int i;
    while (moek_tuned_next_(&line)) {
        if (line.cells != MOEK_COLUMNS_)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.tuned, line %d has %d columns; it must have %d, with tabs "
                       "between: device quant hidden inter experts topk tokens up_row us built_in_us",
                       line.number, line.cells, MOEK_COLUMNS_);
        for (i = 0; i < MOEK_COLUMNS_; i++) {
            const moek_cell_ w = line.cell[i];
            const char *const wants = moek_cell_wants_(i, w);
            if (wants)
                MOEK_FAIL_(why, MOEK_E_ARGUMENT, "config.tuned, line %d: %s is \"%.*s\"; it must be %s",
                           line.number, moek_columns_[i], w.length < 60 ? w.length : 60, w.at, wants);
        }
    }
    return MOEK_OK;
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

static int moek_tuned_fits_(const moek_tuned_line_ *line, const moek_plan *plan, const char *name, const char *arch)
{
    const moek_cell_ *w = line->cell;
    const moek_config *c = &plan->config;
    return (moek_cell_is_(w[MOEK_AT_DEVICE_], name) || moek_cell_is_(w[MOEK_AT_DEVICE_], arch)) &&
           moek_cell_quant_(w[MOEK_AT_QUANT_]) == c->quant && !moek_two_formats_(c) &&
           moek_cell_number_(w[MOEK_AT_HIDDEN_]) == c->hidden && moek_cell_number_(w[MOEK_AT_INTER_]) == c->inter &&
           moek_cell_number_(w[MOEK_AT_EXPERTS_]) == plan->local_experts &&
           moek_cell_number_(w[MOEK_AT_TOPK_]) == plan->slots;
}

/* Why an up row, which is compiled in, cannot be a choice of this plan; NULL: it can, and *down is its partner. */
static const char *moek_choice_refuses_(const moek_request_ *o, const moek_plan *plan, const moek_kernel *up,
                                        const moek_kernel **down, char *why, size_t size)
{
    const moek_config *c = o->config;
    const int host = c->cpu ? plan->chosen.cpu : up->arch;    /* any set of this processor, or what is demanded */
    const int arch = plan->device < 0 ? host : moek_arch_is_host_(up->arch) ? plan->arch : up->arch;
    int i;
    if (up->op != MOEK_OP_UP) return "is no up row, nor one of several steps that this plan can take";
    if (moek_kernel_refuses_(up, o, arch, why, size)) return why;
    for (i = 0; i < MOEK_BACKENDS_; i++) {
        const moek_backend_ *b = &moek_backends_[i];
        const int of = b->arch == (moek_arch_is_host_(up->arch) ? MOEK_ARCH_CPU : up->arch);
        if (of && c->backend && c->backend != b->number) return "is not of the demanded backend";
        if (of && !c->backend && c->exclude & 1u << b->number) return "is of an excluded backend";
    }
    if (!moek_demanded_(up, c)) return "is not the demanded kernel";
    if (!(*down = moek_first_(o, MOEK_OP_DOWN, arch, up->m))) return "has no down row of its tile";
    if (up->launch(NULL, NULL) != MOEK_OK || (*down)->launch(NULL, NULL) != MOEK_OK)
        return "has no code for this device in the binary";
    return NULL;
}

/* The pair of a line's up row, put into the plan if it is not there yet; or MOEK_CHOICE_LAYER - i, or
 * MOEK_CHOICE_UP_DOWN - i.  MOEK_CHOICE_RULE: none of these, and the note says why. */
static int moek_choice_gemms_(const moek_request_ *o, moek_plan *plan, const moek_tuned_line_ *line, moek_text_ *note)
{
    const moek_cell_ w = line->cell[MOEK_AT_ROW_];
    const moek_kernel *up = NULL, *down = NULL;
    char why[160];
    const char *no = "is not compiled in";
    int i;
    for (i = 0; i < MOEK_KERNELS_ && !up; i++) if (moek_cell_is_(w, moek_table_[i].name)) up = &moek_table_[i];
    for (i = 0; i < plan->chosen.layers; i++) if (up == plan->chosen.layer[i]) return MOEK_CHOICE_LAYER - i;
    for (i = 0; i < plan->chosen.up_downs; i++) if (up == plan->chosen.up_down[i]) return MOEK_CHOICE_UP_DOWN - i;
    for (i = 0; i < plan->chosen.gemms; i++) if (plan->chosen.up[i] == up) return i;
    if (up) no = moek_choice_refuses_(o, plan, up, &down, why, sizeof why);
    if (!no && plan->chosen.gemms == MOEK_MAX_TILES) no = "is one too many";
    if (no) {
        moek_append_(note, "%sline %d: %.*s %s", note->length ? "; " : "", line->number, w.length < 80 ? w.length : 80,
                     w.at, no);
        return MOEK_CHOICE_RULE;
    }
    plan->chosen.up[plan->chosen.gemms] = up;
    plan->chosen.down[plan->chosen.gemms] = down;
    return plan->chosen.gemms++;
}

/* Up to so many tokens of a run with all experts here: as rows of this plan, which may have a part of them. */
static void moek_choice_add_(moek_plan *plan, double tokens, int gemms)
{
    const double rows = floor(tokens) * plan->config.physical_experts / plan->local_experts;
    moek_choice *last = plan->chosen.choices ? &plan->chosen.choice[plan->chosen.choices - 1] : NULL;
    if (!last || last->gemms != gemms) last = &plan->chosen.choice[plan->chosen.choices++];
    last->tokens = rows < 0x7fffffff ? (int)rows : 0x7fffffff;
    last->gemms = gemms;
}

static void moek_choose_tuned_(const moek_request_ *o, moek_plan *plan)
{
    moek_tuned_line_ line = moek_tuned_of_(o->config->tuned);
    moek_text_ note = moek_text_in_(plan->note, sizeof plan->note);
    moek_choice got[MOEK_MAX_CHOICES - 1];            /* as measured, fewest tokens first */
    char name[256] = "cpu", arch[16] = "cpu";
    int i, n = 0;
    plan->chosen.choices = 0;
    if (!o->config->tuned || !plan->chosen.tiles) return;
    if (o->config->batch_invariant) {
        moek_append_(&note, "all lines: config.batch_invariant wants one tile");
        return;
    }
    if (plan->device >= 0) {
        moek_device_name_(plan->device, name, sizeof name);
        snprintf(arch, sizeof arch, "sm%d", plan->arch);
    }
    while (moek_tuned_next_(&line)) {
        const int tokens = moek_cell_number_(line.cell[MOEK_AT_TOKENS_]);
        if (!moek_tuned_fits_(&line, plan, name, arch)) continue;
        for (i = n; i > 0 && got[i - 1].tokens >= tokens; i--) {}
        if (i == n || got[i].tokens != tokens) {
            if (n == MOEK_MAX_CHOICES - 1) {
                moek_append_(&note, "%sline %d: more than %d counts of tokens", note.length ? "; " : "", line.number,
                             n);
                continue;
            }
            memmove(&got[i + 1], &got[i], (size_t)(n++ - i) * sizeof *got);
        }
        got[i].tokens = tokens;
        got[i].gemms = moek_choice_gemms_(o, plan, &line, &note);
    }
    if (!n)
        moek_append_(&note, "no line is for %s (%s), %s, hidden %d, inter %d, %d experts, %d slots", name, arch,
                     moek_quant_name(plan->config.quant), plan->config.hidden, plan->config.inter, plan->local_experts,
                     plan->slots);
    if (n && got[0].tokens > 2) moek_choice_add_(plan, (got[0].tokens - 1) / 2, MOEK_CHOICE_RULE);
    for (i = 0; i < n; i++)
        moek_choice_add_(plan, i + 1 < n ? sqrt((double)got[i].tokens * got[i + 1].tokens) : 2.0 * got[i].tokens,
                         got[i].gemms);
    while (plan->chosen.choices && plan->chosen.choice[plan->chosen.choices - 1].gemms == MOEK_CHOICE_RULE)
        plan->chosen.choices--;
}
#endif
