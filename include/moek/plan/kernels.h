/* moek/plan/kernels.h -- which kernels of the table can serve a config, and a sentence for each that cannot. */
#ifndef MOEK_KERNELS_H
#define MOEK_KERNELS_H
#include <string.h>
#include "arch.h"
#include "check.h"
#include "device_query.h"
#include "table.h"

typedef struct moek_request_ {
    moek_device_ device;
    const moek_config *config;
    moek_text_ *why;
    int arch;                                         /* of the rows that the backend taken has asked for */
    int cpu;                                          /* the best set of this processor, or what config.cpu says */
    const char *lacks[MOEK_SETS_];                    /* of each of moek_sets_: what this processor lacks, or NULL */
} moek_request_;

static int moek_is_gemm_(int op)
{
    return op == MOEK_OP_UP || op == MOEK_OP_DOWN || op == MOEK_OP_LAYER || op == MOEK_OP_UP_DOWN;
}

/* Has the table rows of it? */
static int moek_set_compiled_(int arch)
{
    int i;
    for (i = 0; i < MOEK_KERNELS_; i++) if (moek_table_[i].arch == arch) return 1;
    return 0;
}
/* Of the formats of this config? */
static int moek_set_serves_(const moek_config *c, int arch)
{
    int i;
    for (i = 0; i < MOEK_KERNELS_; i++)
        if (moek_table_[i].arch == arch && moek_is_gemm_(moek_table_[i].op) &&
            moek_table_[i].quant == moek_quant_at_(c, moek_table_[i].op)) return 1;
    return 0;
}
/* What this processor lacks of a set.  Permissions are asked for where rows would be taken, and not otherwise. */
static const char *moek_lacks_here_(const moek_config *c, int arch)
{
    if (!moek_arch_asks_(arch) || c->cpu == arch) return moek_lacks_(arch);
    if (c->cpu) return "config.cpu leaves it out";
    return moek_set_serves_(c, arch) ? moek_lacks_(arch) : "it has no kernel of this format";
}
/* Asked once for a plan, for a question takes microseconds.  The best set has rows of the format. */
static void moek_ask_cpu_(moek_request_ *o)
{
    const int cpu = o->config->cpu;
    int i, best = MOEK_SETS_ - 1;
    for (i = MOEK_SETS_ - 1; i >= 0; i--) {
        o->lacks[i] = moek_lacks_here_(o->config, moek_sets_[i]);
        if (!o->lacks[i] && moek_set_serves_(o->config, moek_sets_[i])) best = i;
    }
    o->cpu = cpu == MOEK_CPU_PLAIN ? MOEK_ARCH_CPU : cpu ? cpu : moek_sets_[best];
}
/* What this processor lacks of a set; NULL: nothing, or it is no set of a CPU. */
static const char *moek_lacks_of_(const moek_request_ *o, int arch)
{
    int i;
    for (i = 0; i < MOEK_SETS_; i++) if (moek_sets_[i] == arch) return o->lacks[i];
    return NULL;
}

/* Why a row cannot serve its op in this plan: NULL if it can. */
static const char *moek_kernel_refuses_(const moek_kernel *k, const moek_request_ *o, int arch, char *why, size_t size)
{
    const moek_config *c = o->config;
    const int gemm = moek_is_gemm_(k->op), quant = moek_quant_at_(c, k->op), layout = moek_layout_at_(c, k->op);
    const int blocks = layout == MOEK_WEIGHTS_BLOCKS, reads = moek_reads_(k->reads, layout);
    /* A whole layer that is demanded may be for an older machine: the plan has its own tiles beside it. */
    const int demanded = k->op == MOEK_OP_LAYER && c->kernel && !strcmp(c->kernel, k->name);
    /* Columns of its matrix alone count where rows are of whole blocks; GPUs have tiles of rows, too. */
    const int only = moek_block_columns_(c, k->op), of_x = k->op != MOEK_OP_DOWN, of_h = k->op != MOEK_OP_UP;
    moek_text_ t = moek_text_in_(why, size);
    if (moek_lacks_of_(o, k->arch))
        moek_append_(&t, "needs %s, and %s", moek_arch_name_(k->arch), moek_lacks_of_(o, k->arch));
    else if (!moek_arch_below_(k->arch, arch, gemm && !demanded))
        moek_append_(&t, "its rows are for %s, not %s", moek_arch_name_(k->arch), moek_arch_name_(arch));
    else if (!moek_arch_is_host_(k->arch) && k->shared_bytes > o->device.shared_bytes)
        moek_append_(&t, "needs %d bytes of shared memory a block, the device has %d",
                     k->shared_bytes, o->device.shared_bytes);
    else if (gemm && blocks && !reads) moek_append_(&t, "reads no blocks of GGUF files");
    else if (gemm && !blocks && k->reads == MOEK_READS_BLOCKS)
        moek_append_(&t, "reads only blocks of GGUF files (MOEK_WEIGHTS_BLOCKS)");
    else if (gemm && layout == MOEK_WEIGHTS_TILED && !reads)
        moek_append_(&t, "reads no weights of MOEK_WEIGHTS_TILED");
    else if (MOEK_PLAIN_IS_WIDE_ && k->traits & MOEK_TRAIT_AS_PLAIN && !blocks && !c->cpu && !c->kernel)
        moek_append_(&t, "plain C is compiled for AVX-512 here, and as fast (config.cpu demands a set)");
    else if (gemm && layout == MOEK_WEIGHTS_PANELS && !reads)
        moek_append_(&t, "reads no weights of MOEK_WEIGHTS_PANELS");
    else if (k->quant && k->quant != quant) moek_append_(&t, "is for %s", moek_quant_name(k->quant));
    else if (k->down_quant && k->down_quant != moek_down_quant_(c))
        moek_append_(&t, "is for %s with w_down in %s", moek_quant_name(k->quant), moek_quant_name(k->down_quant));
    else if ((k->op == MOEK_OP_LAYER || k->op == MOEK_OP_UP_DOWN) && moek_two_formats_(c) && !k->down_quant)
        moek_append_(&t, "up is %s, down is %s; this row has one format", moek_quant_name(c->quant),
                     moek_quant_name(c->down_quant));
    else if (gemm && !layout && !reads)
        moek_append_(&t, "reads only weights of MOEK_WEIGHTS_%s (moek_repack_up)",
                  k->reads & MOEK_READS_PANELS ? "PANELS" : "TILED");
    else if (k->hidden && k->hidden != c->hidden) moek_append_(&t, "is for hidden %d", k->hidden);
    else if (gemm && k->block != c->block && moek_format_of(quant)->blocks && k->block)
        moek_append_(&t, "is for scales of %d columns (block)", k->block);
    else if (gemm && k->block != c->block && moek_format_of(quant)->blocks)
        moek_append_(&t, "is for scales of whole rows (block 0)");
    else if (k->op == MOEK_OP_LAYER && c->dtype == MOEK_DTYPE_FP16 && !(k->traits & MOEK_TRAIT_FP16))
        moek_append_(&t, "does not round rows of down to fp16, which may overflow, before their weights");
    else if (k->granule > 1 && (of_x || !only) && c->hidden % k->granule)
        moek_append_(&t, "hidden %d is no multiple of %d", c->hidden, k->granule);
    else if (k->granule > 1 && (of_h || !only) && (gemm || k->op == MOEK_OP_QUANT) && c->inter % k->granule)
        moek_append_(&t, "inter %d is no multiple of %d", c->inter, k->granule);
    else if (gemm && k->granule > 1 && c->inter_offset % k->granule)
        moek_append_(&t, "inter_offset %d is no multiple of %d", c->inter_offset, k->granule);
    else if (c->inter_offset && (k->op == MOEK_OP_LAYER || k->op == MOEK_OP_UP_DOWN))
        moek_append_(&t, "takes groups of columns that begin with the shard; inter_offset is %d", c->inter_offset);
    return t.length ? why : NULL;
}

static int moek_demanded_(const moek_kernel *k, const moek_config *c)
{
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    return !demanded || demanded->op != k->op || demanded == k;
}

static const moek_kernel *moek_first_(const moek_request_ *o, int op, int arch, int m)
{
    char why[160];
    int i;
    for (i = 0; i < MOEK_KERNELS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op == op && (m < 0 || k->m == m) && moek_demanded_(k, o->config) &&
            !moek_kernel_refuses_(k, o, arch, why, sizeof why))
            return k;
    }
    return NULL;
}

/* The row to add: the nearest row's text with this config's format, and its hidden size if that was baked in. */
static void moek_append_kernel_(moek_text_ *t, const moek_kernel *nearest, const moek_config *c)
{
    const char *p = nearest->row;
    moek_append_(t, "add to kernels.toml:  ");
    while (*p) {
        if (!strncmp(p, "quant = \"", 9)) {
            moek_append_(t, "quant = \"%s", moek_quant_name(moek_quant_at_(c, nearest->op)));
            p = strchr(p + 9, '"');
        } else if (nearest->hidden && !strncmp(p, "hidden = ", 9)) {
            moek_append_(t, "hidden = %d", c->hidden);
            p += 9 + strspn(p + 9, "0123456789");
        } else if (moek_format_at_(c, nearest->op)->blocks && !strncmp(p, "block = ", 8)) {
            moek_append_(t, "block = %d", c->block);
            p += 8 + strspn(p + 8, "0123456789");
        } else {
            moek_append_(t, "%c", *p++);
        }
    }
    moek_append_(t, "\nthen:  ./moek gen");
}

/* A format that another architecture has, and this one not at all: which are here.  Returns 0 if it is not so. */
static int moek_append_formats_(moek_text_ *t, int op, int quant, int arch)
{
    int i, j, here = 0, there = -1;
    for (i = 0; i < MOEK_KERNELS_; i++) {
        if (moek_table_[i].op != op || moek_table_[i].quant != quant) continue;
        if (moek_arch_below_(moek_table_[i].arch, arch, 0)) here = 1;
        there = moek_table_[i].arch;
    }
    if (here || there < 0) return 0;
    moek_append_(t, "  %s has kernels on %s; on %s there are", moek_quant_name(quant), moek_arch_name_(there),
                 moek_arch_name_(arch));
    for (i = 0; i < MOEK_KERNELS_; i++) {
        const moek_kernel *const k = &moek_table_[i];
        for (j = 0; j < i; j++)
            if (moek_table_[j].op == op && moek_table_[j].arch == arch && moek_table_[j].quant == k->quant) break;
        if (k->op == op && k->arch == arch && j == i) moek_append_(t, " %s", moek_quant_name(k->quant));
    }
    return 1;
}

/* Does a row of these facts do op for the config on arch, whatever sizes the row takes? */
static int moek_facts_serve_(const moek_shipped_ *k, const moek_config *c, int op, int arch)
{
    const int gemm = moek_is_gemm_(op), quant = moek_quant_at_(c, op);
    return k->op == op && moek_arch_below_(k->arch, arch, gemm) && (!k->quant || k->quant == quant) &&
           (!k->hidden || k->hidden == c->hidden) && (!gemm || k->block == c->block || !moek_format_of(quant)->blocks);
}
/* A row that kernels.toml has and this build has not: by which of its options.  Returns 0 if it is not so. */
static int moek_append_left_out_(moek_text_ *t, const moek_config *c, int op, int arch)
{
    const moek_shipped_ *left = NULL;
    int i;
    for (i = 0; i < MOEK_KERNELS_; i++) {
        const moek_kernel *const k = &moek_table_[i];
        const moek_shipped_ here = { k->op, k->quant, k->hidden, k->block, k->arch, NULL };
        if (moek_facts_serve_(&here, c, op, arch)) return 0;
    }
    for (i = 0; i < MOEK_SHIPPED_ && !left; i++)
        if (moek_facts_serve_(&moek_all_shipped_[i], c, op, arch)) left = &moek_all_shipped_[i];
    if (!left) return 0;
    moek_append_(t, "  kernels.toml has such kernels, and this build left them out: ");
    if (left->by && !strcmp(left->by, "QUANT") && moek_two_formats_(c))
        moek_append_(t, "the layer has two formats, so define MOEK_WANT_QUANT(q) as ((q) == %d || (q) == %d) in place "
                     "of MOEK_QUANT where MOEK_IMPLEMENTATION is compiled", c->quant, c->down_quant);
    else if (left->by)
        moek_append_(t, "compile the file with MOEK_IMPLEMENTATION without MOEK_%s (or MOEK_WANT_%s), or with another "
                     "value", left->by, left->by);
    else moek_append_(t, "it is a bundle without them.  Make the bundle again with %s and %s",
                      moek_quant_name(moek_quant_at_(c, op)), moek_arch_name_(arch));
    return 1;
}

/* Sizes that are no multiples of what kernels take: padded, or a shard's that is cut elsewhere. */
static void moek_append_sizes_(moek_text_ *t, const moek_config *c, int granule)
{
    const int shard = c->inter % granule || c->inter_offset % granule;
    const int pad = c->hidden % granule || c->inter % granule;
    if (pad) moek_append_(t, "pad hidden and inter to multiples of %d", granule);
    if (shard && moek_scale_group_(moek_format_of(c->quant), c->block))
        moek_append_(t, "%sa shard of tensor parallelism, cut inter in multiples of %d, by whole groups of scales, so "
                     "that ranks differ in inter (docs/formats.md)", pad ? "; or, of " : "of ", granule);
}

/* Into a list by tile height, unless one of its height is there, which was better. */
static void moek_add_tile_(const moek_kernel **list, int *count, const moek_kernel *k)
{
    int i;
    for (i = 0; i < *count; i++) if (list[i]->m == k->m) return;
    if (*count == MOEK_MAX_TILES) return;
    for (i = (*count)++; i > 0 && list[i - 1]->m > k->m; i--) list[i] = list[i - 1];
    list[i] = k;
}

/* The best row of op for each tile height. */
static void moek_add_kernels_(const moek_request_ *o, int op, int arch, const moek_kernel **list, int *count)
{
    char why[160];
    int i;
    for (i = 0; i < MOEK_KERNELS_; i++) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op == op && moek_demanded_(k, o->config) && !moek_kernel_refuses_(k, o, arch, why, sizeof why))
            moek_add_tile_(list, count, k);
    }
}

/* Heights of the tiles of an op. */
static void moek_append_heights_(const moek_request_ *o, int op, int arch)
{
    const moek_kernel *tiles[MOEK_MAX_TILES];
    int i, count = 0;
    moek_add_kernels_(o, op, arch, tiles, &count);
    moek_append_(o->why, "%s %s", moek_op_name_(op), moek_quant_name(moek_quant_at_(o->config, op)));
    for (i = 0; i < count; i++) moek_append_(o->why, "%s %d", i ? "," : "", tiles[i]->m);
}

/* How near a kernel is to what was asked for: the arch first, then the format, its block, the order of weights. */
static int moek_likeness_(const moek_kernel *k, const moek_config *c, int arch)
{
    const int format = k->quant == moek_quant_at_(c, k->op), reads = moek_reads_(k->reads, moek_layout_at_(c, k->op));
    return 8 * (k->arch == arch) + (format ? 4 + 2 * (k->block == c->block) + reads : 0);
}

static moek_status moek_no_kernel_(const moek_request_ *o, int op, int arch)
{
    const moek_config *c = o->config;
    const moek_kernel *nearest = NULL;
    const moek_kernel *demanded = moek_kernel_find(c->kernel);
    const int base = moek_arch_is_host_(arch) ? MOEK_ARCH_CPU : arch;   /* of plain C: the row that is easy to add */
    const int quant = moek_quant_at_(c, op);
    char reason[160] = "";
    int i;
    if (demanded && demanded->op == op && moek_kernel_refuses_(demanded, o, arch, reason, sizeof reason))
        MOEK_FAIL_(o->why, MOEK_E_NO_KERNEL, "config.kernel %s cannot serve: %s", c->kernel, reason);
    for (i = MOEK_KERNELS_ - 1; i >= 0; i--) {
        const moek_kernel *k = &moek_table_[i];
        if (k->op == op && (!nearest || moek_likeness_(k, c, base) >= moek_likeness_(nearest, c, base))) nearest = k;
    }
    if (op == MOEK_OP_DOWN && moek_two_formats_(c) && moek_first_(o, op, arch, -1)) {
        moek_append_(o->why, "no kernel: rows of up and of down share tiles, and of these formats none has the height "
                     "of one of the other: ");
        moek_append_heights_(o, MOEK_OP_UP, arch);
        moek_append_(o->why, "; ");
        moek_append_heights_(o, MOEK_OP_DOWN, arch);
        return MOEK_E_NO_KERNEL;
    }
    moek_append_(o->why, "no kernel: %s %s hidden=%d inter=%d on %s.", moek_op_name_(op), moek_quant_name(quant),
                 c->hidden, c->inter, moek_arch_name_(base));
    if (moek_append_left_out_(o->why, c, op, base)) return MOEK_E_NO_KERNEL;
    if (nearest && nearest->arch == base && moek_append_formats_(o->why, op, quant, base)) return MOEK_E_NO_KERNEL;
    if (!nearest)
        MOEK_FAIL_(o->why, MOEK_E_NO_KERNEL, "  No row of this op is compiled in; "
                   "./moek gen list shows what there is.");
    moek_kernel_refuses_(nearest, o, arch, reason, sizeof reason);
    moek_append_(o->why, "  Nearest: %s (%s).\n", nearest->name, reason);
    if (nearest->arch == base && (!nearest->quant || nearest->quant == quant) && !nearest->hidden &&
        (nearest->block == c->block || !moek_format_of(quant)->blocks)) {
        moek_append_sizes_(o->why, c, nearest->granule);
        return MOEK_E_NO_KERNEL;
    }
    moek_append_kernel_(o->why, nearest, c);
    return MOEK_E_NO_KERNEL;
}

/* The down row of an up row: of its height.  On a CPU lists of row blocks say only which experts have rows; so of two
 * formats the heights may differ there, and the row is the tallest below, or the shortest of all. */
static const moek_kernel *moek_partner_(const moek_request_ *o, const moek_kernel *up, int arch)
{
    const moek_kernel *const down = moek_first_(o, MOEK_OP_DOWN, arch, up->m);
    const moek_kernel *tiles[MOEK_MAX_TILES];
    int i, count = 0;
    if (down || !moek_arch_is_host_(arch) || !moek_two_formats_(o->config)) return down;
    moek_add_kernels_(o, MOEK_OP_DOWN, arch, tiles, &count);
    for (i = count - 1; i > 0 && tiles[i]->m > up->m; i--) {}
    return count ? tiles[i] : NULL;
}

/* The tallest tile of a format other than the config's, for weights as checkpoints have them: up, and *down; or NULL.
 */
static const moek_kernel *moek_tallest_of_(const moek_request_ *o, int quant, int arch, const moek_kernel **down)
{
    moek_config c = *o->config;
    moek_request_ of = *o;
    const moek_kernel *tiles[MOEK_MAX_TILES];
    int count = 0;
    c.quant = quant; c.down_quant = 0; c.weight_layout = MOEK_WEIGHTS_CHECKPOINT; c.kernel = NULL;
    of.config = &c;
    moek_add_kernels_(&of, MOEK_OP_UP, arch, tiles, &count);
    if (!count || !(*down = moek_first_(&of, MOEK_OP_DOWN, arch, tiles[count - 1]->m))) return NULL;
    return tiles[count - 1];
}

/* The row that quantizes x, or h: rows of so many columns.  Of two formats each asks for its own alone; one that is
 * demanded (config.kernel) may be of the other.  NULL, with a sentence: there is none. */
static const moek_kernel *moek_quant_row_(const moek_request_ *o, int arch, int quant, int columns)
{
    const moek_kernel *const demanded = moek_kernel_find(o->config->kernel), *row;
    moek_config c = *o->config;
    moek_request_ of = *o;
    if (moek_two_formats_(&c)) {
        c.hidden = c.inter = columns;
        if (demanded && demanded->quant != quant) c.kernel = NULL;
    }
    c.quant = quant; c.down_quant = 0;
    of.config = &c;
    if (!(row = moek_first_(&of, MOEK_OP_QUANT, arch, -1))) moek_no_kernel_(&of, MOEK_OP_QUANT, arch);
    return row;
}
#endif
