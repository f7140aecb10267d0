/* moek/plan/choose.h -- formats that have the same weights and differ in activations: which of them this device runs
 * best.  Everything about a format comes from its descriptor (moek/format.h). */
#ifndef MOEK_CHOOSE_H
#define MOEK_CHOOSE_H
#include <stdio.h>
#include "arch.h"
#include "check.h"

int moek_same_weights(int a, int b)
{
    const moek_format *const f = moek_format_of(a), *const g = moek_format_of(b);
    int i, same = f && g && f->w == g->w && f->blocks == g->blocks &&
                  f->global_scale == g->global_scale && f->zero == g->zero;
    same = same && f->w_scale.type == g->w_scale.type && f->w_scale.rows == g->w_scale.rows &&
           f->w_scale.columns == g->w_scale.columns;
    same = same && f->only_blocks == g->only_blocks && (!f->only_blocks || f->file_type == g->file_type);
    for (i = 0; same && i < f->blocks; i++) same = f->block[i] == g->block[i];
    return same;
}

static const int moek_quants_[] = {
#define MOEK_NUMBER_(NAME, name, number) number,
    MOEK_EACH_QUANT(MOEK_NUMBER_)
#undef MOEK_NUMBER_
};
enum { MOEK_QUANTS_ = (int)(sizeof moek_quants_ / sizeof moek_quants_[0]) };

/* The smaller, the better.  0: tensor cores multiply both sides as they are: 8-bit integers; e4m3 from sm_89 on.  1: x
 * stays T.  2: x is quantized, and kernels widen both sides to 16 bits or more; or they do not, as with tiled weights
 * of 4 bits on Hopper, but gain little (docs/formats.md).  expands: not 0: weights become e4m3, as x is. */
static int moek_format_rank_(const moek_format *f, int arch, int expands)
{
    const int from = f->x != f->w ? 0 : f->x == MOEK_ELEMENT_S8 ? 80 : f->x == MOEK_ELEMENT_E4M3 ? 89 : 0;
    return f->x_bits == 16 ? 1 : (from && arch >= from) || expands ? 0 : 2;
}
/* The config with another format of the same weights. */
static moek_config moek_paired_(const moek_config *config, const moek_format *f)
{
    moek_config c = *config;
    c.quant = f->number;
    if (!f->ue8m0) c.ue8m0 = 0;
    if (!f->expands) c.expand_weights = 0;
    return c;
}
/* Does it run?  *rank: moek_format_rank_, more where it is for the CPU. */
static moek_status moek_try_format_(const moek_config *config, const moek_format *f, moek_plan *plan, int *rank)
{
    const moek_config c = moek_paired_(config, f);
    const moek_status status = moek_plan_init_(plan, &c, sizeof c, sizeof *plan, MOEK_VERSION);
    if (status == MOEK_OK) *rank = moek_format_rank_(f, plan->arch, plan->chosen.expanded) + (plan->device < 0 ? 3 : 0);
    return status;
}

/* Why the best one is the best, and what became of the others.  arch: 0, the CPU. */
static void moek_append_format_(const moek_config *config, const moek_format *best, int arch, int expands,
                                moek_text_ *t)
{
    const int rank = moek_format_rank_(best, arch, expands);
    const int fragments = config->weight_layout == MOEK_WEIGHTS_TILED && moek_in_fragments_(best);
    char where[24] = "the CPU";
    moek_plan plan;
    int i, unused, others = 0, named = 0;              /* named: taken by name alone */
    if (!moek_arch_is_host_(arch)) snprintf(where, sizeof where, "sm_%d", arch);
    for (i = 0; i < MOEK_QUANTS_; i++) {
        if (!moek_same_weights(moek_quants_[i], best->number)) continue;
        if (moek_sums_bytes_(moek_format_of(moek_quants_[i]))) named++;
        else others++;
    }
    moek_append_(t, "%s: ", best->name);
    if (moek_sums_bytes_(best)) moek_append_(t, "x gets 8 bits, as config.quant asks");
    else if (others < 2 && named) moek_append_(t, "x stays T, as x in s8 is for those who name such a format");
    else if (others < 2) moek_append_(t, "no other format has these weights");
    else if (expands)
        moek_append_(t, "x gets %d bits, as weights do in runs of many rows (config.expand_weights)", best->x_bits);
    else if (!rank)
        moek_append_(t, "x gets %d bits, as the weights have, and %s multiplies both as they are", best->x_bits, where);
    else if (rank == 1 && fragments)
        moek_append_(t, "x stays T: with tiled weights a quantized x gains less than a sixth of the time here");
    else if (rank == 1) moek_append_(t, "x stays T, because kernels of %s would widen a quantized x again", where);
    else if (fragments)
        moek_append_(t, "x gets %d bits, though with tiled weights that gains less than a sixth of the time here",
                     best->x_bits);
    else moek_append_(t, "x gets %d bits, which kernels of %s widen again", best->x_bits, where);
    for (i = 0; i < MOEK_QUANTS_; i++) {
        const moek_format *const f = moek_format_of(moek_quants_[i]);
        if (f == best || !moek_same_weights(f->number, best->number)) continue;
        moek_append_(t, "; %s %s", f->name, moek_try_format_(config, f, &plan, &unused) == MOEK_OK
                                            ? "would run, too" : "does not run here (moek_explain says why)");
    }
    if (config->ue8m0 && !best->ue8m0) moek_append_(t, "; ue8m0 is 0 now, because x has no f32 scales");
    if (config->expand_weights && !best->expands) moek_append_(t, "; expand_weights is 0 now");
    if (moek_x_global_scale_(best)) moek_append_(t, "; weights.x_scale and h_scale are required");
}

moek_status moek_choose_format_(moek_config *config, char *text, size_t size, size_t config_size, int version)
{
    moek_text_ t = moek_text_in_(text, size);
    const moek_format *best = NULL;
    moek_status first = MOEK_E_NO_KERNEL;
    int i, rank, least = 0, arch = 0, expands = 0, tried = 0;
    moek_plan plan;
    if (version != MOEK_VERSION || config_size != sizeof *config)
        MOEK_FAIL_(&t, MOEK_E_VERSION, MOEK_VERSION_TEXT_, version, MOEK_VERSION);
    if (!config) MOEK_FAIL_(&t, MOEK_E_ARGUMENT, "config is NULL");
    if (!moek_format_of(config->quant))
        MOEK_FAIL_(&t, MOEK_E_ARGUMENT, "config.quant is %d, which is no format; MOEK_BF16, MOEK_FP8B128, ...",
                   config->quant);
    for (i = 0; i < MOEK_QUANTS_; i++) {
        const moek_format *const f = moek_format_of(moek_quants_[i]);
        moek_status status;
        if (!moek_same_weights(f->number, config->quant)) continue;
        if (moek_two_formats_(config) && f->number != config->quant) continue;        /* of two formats: as asked */
        if (moek_sums_bytes_(f) && f->number != config->quant) continue;      /* by name alone */
        status = moek_try_format_(config, f, &plan, &rank);
        if (f->number == config->quant) first = status;
        if (status != MOEK_OK) moek_append_(&t, "%s%s: %s", tried++ ? "\n" : "", f->name, plan.why);
        else if (!best || rank < least) { best = f; least = rank; arch = plan.arch; expands = plan.chosen.expanded; }
    }
    if (!best) return first;
    moek_clear_(&t);
    moek_append_format_(config, best, arch, expands, &t);
    *config = moek_paired_(config, best);
    return MOEK_OK;
}
#endif
