/* formats.h -- which formats there are, and what a test asks of one: all from its descriptor (moek/format.h), so that a
 * new line of kernels.toml is tested without a test that names it. */
#ifndef FORMATS_H
#define FORMATS_H
#include <stdlib.h>
#include "moek.h"

#define FORMAT_NUMBER_(NAME, name, number) number,
static const int format_numbers[] = { MOEK_EACH_QUANT(FORMAT_NUMBER_) };
#undef FORMAT_NUMBER_
enum { FORMATS = sizeof format_numbers / sizeof *format_numbers };
static inline const moek_format *format_at(int i) { return moek_format_of(format_numbers[i]); }

/* x and h become something else than T. */
static inline int format_quantizes(const moek_format *f) { return f->x_bits < 16; }
/* One scale for all of x; for a row; for some columns of a row. */
static inline int format_by_tensor(const moek_format *f) { return f->x_scale.type && !f->x_scale.rows; }
static inline int format_by_row(const moek_format *f) { return f->x_scale.rows && !f->x_scale.columns; }
static inline int format_blocked(const moek_format *f) { return f->x_scale.columns > 0; }
/* x has a static scale on top of those. */
static inline int format_x_second(const moek_format *f) { return f->static_x && !format_by_tensor(f); }
/* Rows of x have scales of their own; such that are bytes. */
static inline int format_own_scales(const moek_format *f) { return f->x_scale.rows > 0; }
static inline int format_byte_scales(const moek_format *f)
{
    return format_own_scales(f) && f->x_scale.type != MOEK_SCALE_TYPE_F32;
}
static inline int format_scaled(const moek_format *f) { return f->w_scale.type != MOEK_SCALE_TYPE_NONE; }
/* Rows of w share a scale, so that gate and up may have theirs apart. */
static inline int format_rows_share(const moek_format *f) { return f->w_scale.rows > 1; }
/* Elements are integers: a scale of theirs may be negative, as quantizers write it that give -8 to the larger end. */
static inline int format_integers(const moek_format *f)
{
    return !f->only_blocks && (f->w == MOEK_ELEMENT_U4B8 || f->w == MOEK_ELEMENT_S8);
}
/* Elements are 16 bits as they are: neither scales nor another element. */
static inline int format_plain(const moek_format *f) { return f->w_bits == 16 && !format_scaled(f); }
/* T of a format whose elements are T; 0: T is free. */
static inline int format_dtype(const moek_format *f)
{
    return f->x == MOEK_ELEMENT_BF16 ? MOEK_DTYPE_BF16 : f->x == MOEK_ELEMENT_FP16 ? MOEK_DTYPE_FP16 : 0;
}
/* T that it has, or one of both, by turns. */
static inline int format_dtype_in(const moek_format *f, int turn)
{
    return format_dtype(f) ? format_dtype(f) : turn % 2 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
}

/* Columns of a scale of w: where the format leaves them open, one of its choices, by turns (config.block). */
static inline int format_block(const moek_format *f, int turn)
{
    return f && f->blocks ? f->block[turn % f->blocks] : 0;
}
/* The format with these. */
static inline const moek_format *format_with(const moek_format *f, int block)
{
    static moek_format with[FORMATS][MOEK_MAX_BLOCKS];
    int i = 0, j = 0;
    if (!f || !f->blocks) return f;
    while (format_numbers[i] != f->number) i++;
    while (j < f->blocks - 1 && f->block[j] != block) j++;
    with[i][j] = *f;
    with[i][j].w_scale = moek_weight_scale(f, f->block[j]);
    return &with[i][j];
}

/* Of one that has arrays and blocks, the format as it lies in these; of others the format. */
static inline const moek_format *format_in_blocks(const moek_format *f)
{
    static moek_format in_blocks[FORMATS];
    moek_format *const to = &in_blocks[f->number % FORMATS];
    if (f->only_blocks || !moek_block_of(f->file_type)) return f;
    *to = *f;
    memset(&to->w_scale, 0, sizeof to->w_scale);
    to->blocks = to->zero = to->expands = 0;
    to->only_blocks = 1, to->granule = f->file_columns;
    return to;
}

/* A format of a config, with its columns of a scale, and as its weights lie. */
static inline const moek_format *format_lying(const moek_config *c, int quant)
{
    const moek_format *const f = format_with(moek_format_of(quant), c->block);
    return c->weight_layout == MOEK_WEIGHTS_BLOCKS ? format_in_blocks(f) : f;
}
/* Has it arrays, too?  (One that format_in_blocks makes, that is.) */
static inline int format_has_arrays(const moek_format *f) { return !moek_format_of(f->number)->only_blocks; }

/* So many columns, or more: whole blocks, where it comes in such alone. */
static inline int format_round_up(const moek_format *f, int columns)
{
    return f->only_blocks ? (columns + f->file_columns - 1) / f->file_columns * f->file_columns : columns;
}

/* Is there a row of the op for it, of that architecture?  MOEK_OP_UP: is it served there at all? */
static inline int format_has(const moek_format *f, int op, int arch)
{
    int i, n;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++) if (k[i].op == op && k[i].quant == f->number && k[i].arch == arch) return 1;
    return 0;
}
/* Do kernels of up of that architecture read its weights in such an order: one of MOEK_READS_*? */
static inline int format_reads(const moek_format *f, int arch, int order)
{
    int i, n, reads = 0;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++)
        if (k[i].op == MOEK_OP_UP && k[i].quant == f->number && k[i].arch == arch) reads |= k[i].reads;
    return (reads & order) != 0;
}
/* Do kernels of Hopper read its weights as fragments, and no others (MOEK_WEIGHTS_TILED)? */
static inline int format_in_fragments(const moek_format *f)
{
    return f->tiled == MOEK_READS_FRAGMENTS;
}
/* Has a GPU, of any kind, kernels for it? */
static inline int format_on_gpu(const moek_format *f)
{
    return format_has(f, MOEK_OP_UP, 80) || format_has(f, MOEK_OP_UP, 90);
}
/* Sizes that all of its GEMMs there take are multiples of it, of weights as they come where kernels read such. */
static inline int format_granule(const moek_format *f, int arch)
{
    const int in_blocks = f->only_blocks && format_has_arrays(f);
    const int order = in_blocks ? MOEK_READS_BLOCKS : MOEK_READS_CHECKPOINT, as_is = format_reads(f, arch, order);
    int i, n, granule = in_blocks ? f->granule : 1;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++)
        if (k[i].quant == f->number && k[i].arch == arch && k[i].op != MOEK_OP_LAYER && k[i].granule > granule &&
            (!k[i].reads || !as_is || k[i].reads & order)) granule = k[i].granule;
    return granule;
}

/* The number of the n-th format, from 0 on and round again, of which all of `is` holds, NULL: of all.  Where any of a
 * kind will do, or where all of them would take too long. */
typedef int (*format_is)(const moek_format *f);
static inline int format_nth(format_is is, int n)
{
    int i, found = 0;
    for (i = 0; i < FORMATS; i++) found += !is || is(format_at(i));
    if (!found) abort();
    for (i = 0, n %= found; n >= 0; i++) n -= !is || is(format_at(i));
    return format_numbers[i - 1];
}
/* The plain one of that T. */
static inline int format_of_t(int dtype)
{
    int n = 0;
    while (format_dtype(moek_format_of(format_nth(format_plain, n))) != dtype) n++;
    return format_nth(format_plain, n);
}
#define FORMAT_PLAIN   format_of_t(MOEK_DTYPE_BF16)
#define FORMAT_TENSOR  format_nth(format_by_tensor, 0)
#define FORMAT_ROW     format_nth(format_by_row, 0)
#define FORMAT_BLOCKED format_nth(format_blocked, 0)
/* One of each kind, by turns. */
enum { FORMAT_KINDS = 4 };
static inline int format_of_kind(int turn)
{
    return turn % 4 == 0 ? FORMAT_BLOCKED : turn % 4 == 1 ? FORMAT_PLAIN : turn % 4 == 2 ? FORMAT_TENSOR : FORMAT_ROW;
}
#endif
