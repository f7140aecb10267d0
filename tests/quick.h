/* quick.h -- the quick set and the broad set: a test program's first word, `quick` or `broad`, asks for it.
 *
 * The quick set has each op, format, architecture and activation of the table: of the rows that a template has for a
 * format, the first, of down the last (one height of tile each; rows with other rings or other formats of down, too),
 * with each activation once among them, and a part of the other cases.  The broad set has each row: of a template and a
 * height of tile one with all cases, for each height of another format, and the others with the cases of the quick
 * set. */
#ifndef QUICK_H
#define QUICK_H
#include <string.h>

static int quick_set, broad_set;                       /* 1: it was asked for */
static inline void quick_word(int *argc, char ***argv)
{
    if (*argc < 2) return;
    quick_set = !strcmp((*argv)[1], "quick"), broad_set = !strcmp((*argv)[1], "broad");
    if (!quick_set && !broad_set) return;
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
/* Has that row the template of this one, and its op and architecture? */
static inline int quick_relative(const moek_kernel *k, const moek_kernel *of)
{
    size_t length, other;
    const char *const its = quick_template(k, &length), *const t = quick_template(of, &other);
    return of->op == k->op && of->arch == k->arch && other == length && !memcmp(t, its, length);
}
/* 1: no row before it, of down behind it, has the same template for the same op, format and architecture, and room for
 * as many weights on their way.  (Short tiles and tall ones have code that the others do not have.) */
static inline int quick_row(const moek_kernel *k)
{
    int n, i;
    const moek_kernel *const all = moek_kernels(&n);
    const int last = k->op == MOEK_OP_DOWN;
    for (i = last ? (int)(k - all) + 1 : 0; i < n && &all[i] != k; i++)
        if (all[i].ring == k->ring && all[i].quant == k->quant && quick_relative(k, &all[i])) return 0;
    return 1;
}
/* 1: it is this row's turn among those of a template that have its height, or its format and columns of a scale. */
static inline int broad_turn(const moek_kernel *k, int of_height)
{
    int n, i, before = 0, rows = 0;
    const moek_kernel *const all = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        if (!quick_relative(k, &all[i])) continue;
        if (of_height ? all[i].m != k->m : all[i].quant != k->quant || all[i].block != k->block) continue;
        before += &all[i] < k, rows++;
    }
    return (before + (of_height ? k->m / 8 : k->quant + k->block / 32)) % rows == 0;
}
/* 1: of the broad set it has all cases. */
static inline int broad_row(const moek_kernel *k) { return broad_turn(k, 1); }
#endif
