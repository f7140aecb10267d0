/* moek/plan/table.h -- which rows are wanted, their kernels, and the table of them.  Selection at compile time is this
 * table, filtered by #if; selection at run time is a walk through it. */
#ifndef MOEK_TABLE_H
#define MOEK_TABLE_H
#include <string.h>
#include "../stages.h"
#include "../want.h"

#include "../../../generated/moek_kernels.h"

static const moek_kernel moek_table_[] = {
#define MOEK_KERNEL(op, quant, hidden, granule, m, arch, threads, shared, name, row, block, reads, traits, scratch, \
                    flags, max_tokens, ring, pages, down) \
    { #name, MOEK_OP_##op, quant, hidden, granule, m, arch, threads, shared, name, row, block, reads, traits, scratch, \
      flags, max_tokens, ring, pages, down },
#include "../../../generated/moek_kernels.h"
#undef MOEK_KERNEL
};
enum { MOEK_KERNELS_ = (int)(sizeof moek_table_ / sizeof moek_table_[0]) };

/* What rows of kernels.toml there are, whatever of them is compiled here; by: which option leaves one out, or NULL. */
typedef struct moek_shipped_ { int op, quant, hidden, block, arch; const char *by; } moek_shipped_;
static const moek_shipped_ moek_all_shipped_[] = {
#define MOEK_SHIPPED_KERNEL_(op, quant, hidden, block, arch) \
    { MOEK_OP_##op, quant, hidden, block, arch, \
      (quant) && !(MOEK_WANT_QUANT(quant)) ? "QUANT" : !(MOEK_WANT_HIDDEN(hidden)) ? "HIDDEN" : \
      !(MOEK_WANT_BLOCK(block)) ? "BLOCK" : !(MOEK_WANT_ARCH(arch)) ? "ARCH" : NULL },
    MOEK_EACH_SHIPPED_(MOEK_SHIPPED_KERNEL_)
#undef MOEK_SHIPPED_KERNEL_
};
enum { MOEK_SHIPPED_ = (int)(sizeof moek_all_shipped_ / sizeof moek_all_shipped_[0]) };

const moek_kernel *moek_kernels(int *count)
{
    if (count) *count = MOEK_KERNELS_;
    return moek_table_;
}

const moek_kernel *moek_kernel_find(const char *name)
{
    int i;
    for (i = 0; name && i < MOEK_KERNELS_; i++)
        if (!strcmp(moek_table_[i].name, name)) return &moek_table_[i];
    return NULL;
}
#endif
