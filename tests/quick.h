/* quick.h -- the quick set: a test program's first word `quick` asks for it.
 *
 * It has each op, format, architecture and activation of the table: of the rows that a template has for a format, the
 * first, of down the last (one height of tile each), with each activation once, and a part of the other cases. */
#ifndef QUICK_H
#define QUICK_H
#include <string.h>

static int quick_set;                                  /* 1: it was asked for */
static inline void quick_word(int *argc, char ***argv)
{
    if (*argc < 2 || strcmp((*argv)[1], "quick")) return;
    quick_set = 1;
    (*argv)[1] = (*argv)[0];
    --*argc, ++*argv;
}
/* The template, as the row in kernels.toml has it, up to the comma behind it. */
static inline const char *quick_template(const moek_kernel *k, size_t *length)
{
    const char *const at = strstr(k->row, "template");
    *length = at ? strcspn(at, ",") : 0;
    return at ? at : "";
}
/* 1: no row before it, of down behind it, has the same template for the same op, format and architecture, and room for
 * as many weights on their way.  (Short tiles and tall ones have code that the others do not have.) */
static inline int quick_row(const moek_kernel *k)
{
    int n, i;
    size_t length, other;
    const moek_kernel *const all = moek_kernels(&n);
    const char *const its = quick_template(k, &length);
    const int last = k->op == MOEK_OP_DOWN;
    for (i = last ? (int)(k - all) + 1 : 0; i < n && &all[i] != k; i++) {
        const char *const t = quick_template(&all[i], &other);
        if (all[i].op == k->op && all[i].quant == k->quant && all[i].arch == k->arch && all[i].ring == k->ring &&
            other == length && !memcmp(t, its, length)) return 0;
    }
    return 1;
}
#endif
