/* moek/plan/table.h -- which rows are wanted, their kernels, and the table of them.  Selection at compile time is this
 * table, filtered by #if; selection at run time is a walk through it. */
#ifndef MOEK_TABLE_H
#define MOEK_TABLE_H

#ifndef MOEK_WANT_HIDDEN
#ifdef MOEK_HIDDEN
#define MOEK_WANT_HIDDEN(h) ((h) == 0 || (h) == (MOEK_HIDDEN))
#else
#define MOEK_WANT_HIDDEN(h) 1
#endif
#endif
#ifndef MOEK_WANT_BLOCK
#ifdef MOEK_BLOCK
#define MOEK_WANT_BLOCK(b) ((b) == 0 || (b) == (MOEK_BLOCK))
#else
#define MOEK_WANT_BLOCK(b) 1
#endif
#endif
#ifndef MOEK_WANT_QUANT
#ifdef MOEK_QUANT
#define MOEK_WANT_QUANT(q) ((q) == (MOEK_QUANT))
#else
#define MOEK_WANT_QUANT(q) 1
#endif
#endif
#ifndef MOEK_WANT_ARCH
#ifdef MOEK_ARCH
#define MOEK_WANT_ARCH(a) ((a) == (MOEK_ARCH))
#else
#define MOEK_WANT_ARCH(a) 1
#endif
#endif
#define MOEK_WANT_(quant, hidden, block, arch) \
    (((quant) == 0 || MOEK_WANT_QUANT(quant)) && MOEK_WANT_HIDDEN(hidden) && MOEK_WANT_BLOCK(block) && \
     MOEK_WANT_ARCH(arch) && ((arch) == 0 || MOEK_HAVE_CUDA_))

#include "../../../generated/moek_kernels.h"

static const moek_kernel moek_table_[] = {
#define MOEK_KERNEL(op, quant, hidden, granule, m, arch, threads, shared, name, row, block) \
    { #name, MOEK_OP_##op, quant, hidden, granule, m, arch, threads, shared, name, row, block },
#include "../../../generated/moek_kernels.h"
#undef MOEK_KERNEL
};
enum { MOEK_ROWS_ = (int)(sizeof moek_table_ / sizeof moek_table_[0]) };

const moek_kernel *moek_kernels(int *count)
{
    if (count) *count = MOEK_ROWS_;
    return moek_table_;
}

const moek_kernel *moek_kernel_find(const char *name)
{
    int i;
    for (i = 0; name && i < MOEK_ROWS_; i++)
        if (!strcmp(moek_table_[i].name, name)) return &moek_table_[i];
    return NULL;
}
#endif
