/* moek/plan/bounds.h -- up to how many rows each tile of mma.sync is taken on a GPU that nobody measured, computed from
 * what the device says of itself.  docs/tuning.md has the formula, docs/notes (computed-bounds) how near it comes. */
#ifndef MOEK_BOUNDS_H
#define MOEK_BOUNDS_H
#include <string.h>
#include "arch.h"
#include "check.h"
#include "device_query.h"

/* Products of two T with f32 sums that an SM adds in a clock, by mma.sync; of 8-bit integers, of e4m3.  The vendor's
 * figures, but for sm_90 (measured: mma-sync-ceiling) and sm_100 and 110 (a guess).  sm_86, 89 and 120 have two classes
 * of cards.  gbs: of memory whose clock CUDA does not tell. */
typedef struct moek_rate_ { int arch, t, geforce_t, s8, e4m3, geforce_e4m3, gbs; } moek_rate_;
static const moek_rate_ *moek_rate_of_(int arch)
{
    static const moek_rate_ rates[] = {
        { 80, 1024, 1024, 2048, 1024, 1024, 1555 }, { 86, 512, 256, 1024, 512, 256, 600 },
        { 87, 512, 512, 1024, 512, 512, 205 },      { 89, 512, 256, 1024, 1024, 512, 600 },
        { 90, 1220, 1220, 2440, 1220, 1220, 3350 }, { 100, 1024, 1024, 2048, 1024, 1024, 8000 },
        { 110, 512, 512, 1024, 512, 512, 273 },     { 120, 512, 256, 1024, 1024, 512, 1792 },
        { 121, 256, 256, 1024, 512, 512, 273 }
    };
    int i, found = 0;
    for (i = 0; i < (int)(sizeof rates / sizeof *rates); i++) if (rates[i].arch <= arch) found = i;
    return &rates[found];
}
static int moek_has_classes_(int arch) { return moek_rate_of_(arch)->t != moek_rate_of_(arch)->geforce_t; }
/* What the bounds of rules.toml were measured on. */
enum { MOEK_MEASURED_SMS_ = 132, MOEK_MEASURED_MHZ_ = 1980, MOEK_MEASURED_GBS_ = 4916 };
static int moek_near_(long long a, long long b) { return 4 * a >= 3 * b && 4 * a <= 5 * b; }
static int moek_measured_kind_(const moek_device_ *d)
{
    return moek_near_((long long)d->multiprocessors * d->mhz, (long long)MOEK_MEASURED_SMS_ * MOEK_MEASURED_MHZ_) &&
           moek_near_(d->gbs, MOEK_MEASURED_GBS_);
}
static int moek_gbs_of_(const moek_device_ *d) { return d->gbs ? d->gbs : moek_rate_of_(d->arch)->gbs; }

/* Clocks of a lane for a weight, in hundredths, and the part of mma's rate that is reached, in percent; fitted to an
 * H200 (computed-bounds). */
typedef struct moek_cost_ { int clocks, percent; } moek_cost_;
/* Of weights in blocks of GGUF files, by element: up to 32 rows sums get scales, beyond that weights become T. */
static int moek_block_clocks_(int element, int m)
{
    switch (element) {
    case MOEK_ELEMENT_S8:   return m > 32 ? 800 : 360;
    case MOEK_ELEMENT_U4B8: return m > 32 ? 1300 : 480;
    case MOEK_ELEMENT_IQ4:  return m > 32 ? 1200 : 1070;
    case MOEK_ELEMENT_U5:   return m > 32 ? 1600 : m > 8 ? 1200 : 1500;        /* m 8: one block an SM */
    default:                return m > 32 ? 1600 : m > 8 ? 1200 : 560;
    }
}
/* blocks: weights lie in blocks of files, or did before they were tiled. */
static moek_cost_ moek_cost_of_(const moek_format *f, int fragments, int blocks, int m, int wide)
{
    const int integers = f->x == MOEK_ELEMENT_S8;
    moek_cost_ cost;                                   /* of codes of both sides multiplied as they are, or nearly */
    cost.clocks = 0;
    cost.percent = f->x_bits == 16 ? (wide ? 97 : 87) : integers ? (wide ? 77 : 57) : 68;
    if (fragments || blocks) {
        cost.percent = 75;
        cost.clocks = blocks ? moek_block_clocks_(f->w, m) : 240;
        if (m == 64) cost.clocks *= 2;                 /* its warps convert each weight twice */
    } else if (!moek_quantizes_(f) && f->x != f->w) {
        cost.clocks = 370, cost.percent = 48;          /* x is T, and codes become T */
    }
    return cost;
}
/* Of a layer on a device, and of tile i of a plan: times for an expert, in clocks of all SMs. */
typedef struct moek_bounds_of_ {
    double memory, l2;                                /* weights once from memory, from L2 */
    double x;                                         /* a row of a tile from memory, where L2 does not hold x */
    double tile[MOEK_MAX_TILES];                      /* weights from L2, converted and multiplied: a tile */
    int m[MOEK_MAX_TILES], tiles, shares_l2;
} moek_bounds_of_;

/* With its scales. */
static double moek_bytes_a_weight_(const moek_format *f, const moek_config *c)
{
    const moek_scale_shape scale = moek_weight_scale(f, c->block);
    const size_t rows = (size_t)c->hidden, columns = (size_t)c->inter;
    if (moek_block_columns_(c, MOEK_OP_UP)) return (double)f->file_bytes / f->file_columns;
    return f->w_bits / 8.0 + (double)moek_scale_bytes(&scale, rows, columns) / ((double)rows * (double)columns);
}
static moek_bounds_of_ moek_bounds_begin_(const moek_plan *plan, const moek_device_ *d)
{
    const double memory_part = 0.80, columns = 256;
    const int l2_bytes = 43, l2_bytes_others = 32;
    const moek_config *const c = &plan->config;
    const moek_format *const f = plan->chosen.format;
    const moek_rate_ *const rate = moek_rate_of_(d->arch);
    const double weights = (double)c->hidden * c->inter * (moek_act_gated_(c->act) ? 3 : 2), sms = d->multiprocessors;
    const double bytes = weights * moek_bytes_a_weight_(f, c);
    const double clock = moek_gbs_of_(d) * 1000.0 / d->mhz;           /* bytes of memory */
    const int l2 = rate->t >= 1024 ? l2_bytes : l2_bytes_others;
    moek_bounds_of_ b;
    int i;
    memset(&b, 0, sizeof b);
    b.tiles = plan->chosen.tiles;
    b.memory = bytes / (clock * memory_part);
    b.l2 = bytes / (sms * l2);
    /* Do weights of the tiles that run at once fit in L2?  Then a second tile of an expert finds its weights there. */
    b.shares_l2 = sms * columns * c->hidden * moek_bytes_a_weight_(f, c) <= d->l2_kb * 1024.0;
    b.x = c->hidden * (f->x_bits / 8.0) * (c->inter / columns + 1) / (clock * memory_part);
    for (i = 0; i < b.tiles; i++) {
        const moek_kernel *const k = plan->chosen.up[i];
        const int fragments = (k->reads & MOEK_READS_FRAGMENTS) != 0, m = k->m;
        const int blocks = moek_block_columns_(c, MOEK_OP_UP) != 0, wide = !(k->traits & MOEK_TRAIT_ROW_BLOCKS);
        const moek_cost_ cost = moek_cost_of_(f, fragments, blocks, m, wide);
        const int t = d->geforce ? rate->geforce_t : rate->t, e4m3 = d->geforce ? rate->geforce_e4m3 : rate->e4m3;
        const int products = f->x == MOEK_ELEMENT_S8 ? rate->s8 : moek_arch_adds_(k->arch) ? e4m3 : t;
        b.m[i] = m;
        b.tile[i] = b.l2 + weights * (cost.clocks / 12800.0 + m * 100.0 / (products * (double)cost.percent)) / sms;
    }
    return b;
}
/* Tiles of an expert with so many rows on average, Poisson-distributed, that has one at least: of each height. */
static void moek_count_tiles_(double tiles[MOEK_MAX_TILES], const moek_bounds_of_ *b, int rows)
{
    int count[MOEK_MAX_TILES], n = rows < 64 ? 1 : rows / 2, i;       /* (Of 64 fewer than half are too rare.) */
    double p = 1, all = 0;
    for (i = 0; i < b->tiles; i++) tiles[i] = 0, count[i] = (n + b->m[i] - 1) / b->m[i];
    for (; n <= rows || p > 1e-5 * all; n++) {
        for (i = 0; i < b->tiles; i++) {
            if (n > count[i] * b->m[i]) count[i]++;
            tiles[i] += p * count[i];
        }
        all += p;
        p = p * rows / (n + 1);
    }
    for (i = 0; i < b->tiles; i++) tiles[i] /= all;
}
/* The tile that takes least: what memory and SMs need overlaps, but for a quarter of the less.  One that is lower than
 * `taken` must gain a twentieth. */
static int moek_best_tile_(const moek_bounds_of_ *b, int rows, int x_from_memory, int taken)
{
    const double least_gain = 0.95;
    double tiles[MOEK_MAX_TILES], time[MOEK_MAX_TILES];
    int i, best = 0;
    moek_count_tiles_(tiles, b, rows);
    for (i = 0; i < b->tiles; i++) {
        const double work = tiles[i] * b->tile[i];
        const double x = x_from_memory ? tiles[i] * b->m[i] * b->x : 0;
        const double memory = b->memory * (b->shares_l2 ? 1 : tiles[i]) + x;
        time[i] = memory > work ? memory + work / 4 : work + memory / 4;
        if (time[i] < time[best]) best = i;
    }
    return best < taken && time[best] > least_gain * time[taken] ? taken : best;
}
/* Of each tile: `rows`, up to which none taller takes less, and the longest stretch beyond, from `again` to `last`. */
static void moek_compute_tiles_(moek_plan *plan, const moek_device_ *d)
{
    enum { MOST = 512 };
    moek_chosen *const h = &plan->chosen;
    const moek_config *const c = &plan->config;
    moek_bounds_of_ b;
    int rows, next, i, begun = -1, from = 0, taken = 0;
    h->computed = 1, h->gbs = moek_gbs_of_(d), h->l2_kb = d->l2_kb, h->mhz = d->mhz;
    b = moek_bounds_begin_(plan, d);
    for (rows = 1; rows <= MOST; rows = next) {
        const double x = (double)rows * c->hidden * h->format->x_bits / 8;
        const int best = moek_best_tile_(&b, rows, x > d->l2_kb * 512.0, taken);
        next = rows < 32 ? rows + 1 : rows + rows / 32;
        if (best > taken) taken = best;
        for (i = taken; i < h->tiles; i++) h->bound[i].rows = next - 1;
        if (best != begun) begun = best, from = rows;
        if (best < taken && next - from > h->bound[best].last + 1 - h->bound[best].again)
            h->bound[best].again = from, h->bound[best].last = next - 1;
    }
}
/* Where nothing was measured: on other machines; and of blocks of GGUF files on this kind of machine, too.  Only then
 * is the device asked how fast it is, which takes CUDA more than a millisecond. */
static void moek_compute_bounds_(moek_plan *plan, const moek_device_ *device)
{
    moek_device_ d = *device;
    int known;
    plan->chosen.gbs = MOEK_MEASURED_GBS_;
    if (plan->device < 0 || !plan->chosen.tiles || !moek_by_mma_(plan->chosen.up[0])) return;
    if (!moek_arch_measured_(d.arch)) moek_device_speed_(&d, moek_has_classes_(d.arch));
    known = d.mhz && !moek_measured_kind_(&d);
    if (!known && !moek_block_columns_(&plan->config, MOEK_OP_UP)) return;
    if (!known) {
        d.arch = MOEK_ARCH_SM90, d.multiprocessors = MOEK_MEASURED_SMS_;
        d.mhz = MOEK_MEASURED_MHZ_, d.gbs = MOEK_MEASURED_GBS_, d.l2_kb = 50 << 10, d.geforce = 0;
    }
    moek_compute_tiles_(plan, &d);
}
#endif
