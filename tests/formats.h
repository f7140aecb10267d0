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
static inline int format_scaled(const moek_format *f) { return f->w_scale.type != MOEK_SCALE_TYPE_NONE; }
/* Rows of w share a scale, so that gate and up may have theirs apart. */
static inline int format_rows_share(const moek_format *f) { return f->w_scale.rows > 1; }
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
#define FORMAT_PLAIN   format_nth(format_plain, 0)
#define FORMAT_TENSOR  format_nth(format_by_tensor, 0)
#define FORMAT_ROW     format_nth(format_by_row, 0)
#define FORMAT_BLOCKED format_nth(format_blocked, 0)
#endif
