/* moek/kernel/digits_body.h -- the loops of digits.h over rows of w, for a set of instructions: included by each, with
 * MOEK_V_(x), the name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 * MOEK_V_(dot_row), a run of a row of w and of 1, 2 or 4 rows of x. */

/* The same of one row of x, of whose neighbours some have another kind of third digits. */
#define MOEK_DOT_ALONE_(name, element, kind) \
    MOEK_V_FN void MOEK_V_(dot_##name)(double *sum, const moek_w_run_ *w, const moek_w_one_ *one, \
        const float *scale, const int32_t *zero, const moek_lane_scales_ *spread, const moek_x_run_ *const *x) \
    { \
        if (x[0]->dense) MOEK_V_(dot_row)(sum, w, one, scale, zero, spread, x, 1, element, (kind) | MOEK_DOTS_DENSE); \
        else MOEK_V_(dot_row)(sum, w, one, scale, zero, spread, x, 1, element, kind); \
    }
MOEK_DOTS_OF_(MOEK_DOT_ALONE_)
typedef void MOEK_V_(dot_alone)(double *sum, const moek_w_run_ *w, const moek_w_one_ *one, const float *scale,
                                  const int32_t *zero, const moek_lane_scales_ *spread, const moek_x_run_ *const *x);
/* All rows and runs of w, and rows r to r + rows - 1 of `all` of x. */
MOEK_V_INLINE void MOEK_V_(dots_of)(const moek_w_run_ *w, const moek_x_run_ *const *x, int all, int r,
                                         MOEK_V_(dot_alone) *alone, const int rows, const int element, const int kind)
{
    const int each = element == MOEK_ELEMENT_S8 ? 4 : 8;
    moek_lane_scales_ spread;
    float scale[MOEK_RUN_SCALES] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    int32_t zero[MOEK_RUN_SCALES];
    int i, run, g, j;
    for (g = 0; g < MOEK_LANES; g++) spread.at[g] = w->columns ? g * each / w->columns : 0;
    if (kind & MOEK_DOTS_ZERO) memset(zero, 0, sizeof zero);
    for (i = 0; i < w->rows; i++)
        for (run = 0; run < w->runs; run++) {
            const moek_w_one_ one = moek_w_one_of_(w, i, run);
            const moek_x_run_ *const *const in = x + run * all + r;
            double *const sum = w->sum[(size_t)i * w->sum_step] + r;
            int dense = in[0]->dense;
            for (j = 1; j < rows; j++) dense += in[j]->dense;
            if (one.scale) MOEK_V_(run_scales)(scale, w, one.scale, one.scales);
            for (g = 0; g < one.others; g++) scale[g] = 0;
            for (g = 0; kind & MOEK_DOTS_ZERO && g < one.scales; g++) zero[g] = moek_zero_(one.zero, g);
            for (; kind & MOEK_DOTS_ZERO && g < one.scales + 8; g++) zero[g] = 0;
            if (!dense) MOEK_V_(dot_row)(sum, w, &one, scale, zero, &spread, in, rows, element, kind);
            else if (dense == rows)
                MOEK_V_(dot_row)(sum, w, &one, scale, zero, &spread, in, rows, element, kind | MOEK_DOTS_DENSE);
            else for (j = 0; j < rows; j++) alone(sum + j, w, &one, scale, zero, &spread, in + j);
        }
}
#define MOEK_DOTS_SET_(name, element, kind) \
    MOEK_V_FN void MOEK_V_(dots_##name)(const moek_w_run_ *w, const moek_x_run_ *const *x, int all, int r, int rows) \
    { \
        if (rows == 4) MOEK_V_(dots_of)(w, x, all, r, MOEK_V_(dot_##name), 4, element, kind); \
        else if (rows == 2) MOEK_V_(dots_of)(w, x, all, r, MOEK_V_(dot_##name), 2, element, kind); \
        else MOEK_V_(dots_of)(w, x, all, r, MOEK_V_(dot_##name), 1, element, kind); \
    }
MOEK_DOTS_OF_(MOEK_DOTS_SET_)
/* Rows of x by fours, twos and ones. */
#define MOEK_DOTS_CASE_(name, of, its) \
    if (MOEK_WANTS_ELEMENT_(of) && w->element == (of) && kind == (its)) MOEK_V_(dots_##name)(w, x, rows, r, n);
MOEK_V_FN void MOEK_V_(dots)(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows)
{
    const int kind = (w->zero ? MOEK_DOTS_ZERO : 0) | (w->scaled ? MOEK_DOTS_SCALED : 0);
    int r, n;
    for (r = 0; r < rows; r += n) {
        n = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        MOEK_DOTS_OF_(MOEK_DOTS_CASE_)
    }
}
#undef MOEK_DOT_ALONE_
#undef MOEK_DOTS_SET_
#undef MOEK_DOTS_CASE_

/* What a set has given is spent. */
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
