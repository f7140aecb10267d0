/* moek/kernel/blocks_body.h -- rows of w in blocks of GGUF files times few rows of x (digits.h), for a set of
 * instructions: included by each, with MOEK_V_(x), the name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its
 * functions begin with, and
 *   MOEK_VF, MOEK_VI     lanes of f32; codes of 4 columns a lane;  MOEK_V_LANES  of such lanes
 *   MOEK_V_FACTORS       scales and minimums of 256 columns of w
 *   MOEK_V_BY            scales of w times units of x;  MOEK_V_LOW  8 f32: minimums times sums of x
 *   MOEK_V_(block_zero, block_none)       lanes, and the 8 f32, of 0
 *   MOEK_V_(block_by)    of factors, and of units and sums of x: *by, and what is added to *low
 *   MOEK_V_(block_add)   lanes plus codes times columns of x, which is part h of a chunk, times their scales
 *   MOEK_V_(block_end)   a sum, plus all lanes and the 8 f32 times `back`
 *
 * 256 columns are a unit.  Codes go from a unit's planes to registers (`codes`, which the generator writes from
 * kernels.toml), and are multiplied there.  One row of x: two rows of w at a time, since a chain of FMAs alone would
 * wait for itself; but not where x is s8 and codes have 5 bits or more, and one row after the other comes faster. */

typedef MOEK_VI MOEK_V_(block_codes)(const uint8_t *b, const int part);
typedef void MOEK_V_(block_factors)(MOEK_V_FACTORS *to, const uint8_t *b);
#if MOEK_V_LANES == 16
#define MOEK_EACH_PART_(X) X(0) X(1) X(2) X(3)
#else
#define MOEK_EACH_PART_(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif
/* One unit of `rows` rows of x (1, 2 or 4) and a row of w, or of one row of x and two of w (`pair`). */
MOEK_V_INLINE void MOEK_V_(block_unit)(MOEK_VF (*lanes)[16 / MOEK_V_LANES], MOEK_V_LOW *low, const uint8_t *const *b,
                                       const moek_x_run_ *const *x, int unit, const int rows, const int pair,
                                       MOEK_V_(block_codes) *codes, MOEK_V_(block_factors) *factors, const int bytes,
                                       const int kind)
{
    enum { PARTS = 16 / MOEK_V_LANES };                /* of a chunk */
    const int group = unit * (kind & MOEK_BLOCK_FINE ? 32 : 16);
    const moek_x_chunk_ *const x0 = x[0]->chunk + 4 * unit, *const x1 = x[rows > 1]->chunk + 4 * unit;
    const moek_x_chunk_ *const x2 = x[rows > 2 ? 2 : 0]->chunk + 4 * unit;
    const moek_x_chunk_ *const x3 = x[rows > 2 ? 3 : 0]->chunk + 4 * unit;
    MOEK_V_FACTORS of[2];
    MOEK_V_BY by[4];
#define MOEK_BEGIN_(i) do { \
        MOEK_PREFETCH((uintptr_t)b[i] + MOEK_BLOCK_AHEAD); \
        MOEK_PREFETCH((uintptr_t)b[i] + MOEK_BLOCK_AHEAD + 64); \
        if (bytes > 128) MOEK_PREFETCH((uintptr_t)b[i] + MOEK_BLOCK_AHEAD + 128); \
        if (bytes > 192) MOEK_PREFETCH((uintptr_t)b[i] + MOEK_BLOCK_AHEAD + 192); \
        if (bytes > 256) MOEK_PREFETCH((uintptr_t)b[i] + MOEK_BLOCK_AHEAD + 256); \
        factors(&of[i], b[i]); \
    } while (0)
    MOEK_BEGIN_(0);
    if (pair) MOEK_BEGIN_(1);
#undef MOEK_BEGIN_
    MOEK_V_(block_by)(&by[0], &low[0], &of[0], x[0]->group + group, kind);
    if (pair) MOEK_V_(block_by)(&by[1], &low[1], &of[1], x[0]->group + group, kind);
    if (rows > 1) MOEK_V_(block_by)(&by[1], &low[1], &of[0], x[1]->group + group, kind);
    if (rows > 2) MOEK_V_(block_by)(&by[2], &low[2], &of[0], x[2]->group + group, kind);
    if (rows > 2) MOEK_V_(block_by)(&by[3], &low[3], &of[0], x[3]->group + group, kind);
#define MOEK_ADD_(n, p, codes, x) \
    lanes[n][(p) % PARTS] = \
        MOEK_V_(block_add)(lanes[n][(p) % PARTS], codes, (x) + (p) / PARTS, (p) % PARTS, &by[n], p, kind)
#define MOEK_STEP_(p) do { \
        const MOEK_VI c = codes(b[0], p); \
        MOEK_ADD_(0, p, c, x0); \
        if (pair) MOEK_ADD_(1, p, codes(b[1], p), x0); \
        if (rows > 1) MOEK_ADD_(1, p, c, x1); \
        if (rows > 2) MOEK_ADD_(2, p, c, x2); \
        if (rows > 2) MOEK_ADD_(3, p, c, x3); \
    } while (0);
    MOEK_EACH_PART_(MOEK_STEP_)
#undef MOEK_STEP_
#undef MOEK_ADD_
}
/* A run of a row of w, or of two, and of rows of x; b: where these rows of w go on; to: their sums, one for each row of
 * x. */
MOEK_V_INLINE void MOEK_V_(block_run)(double *const *to, const uint8_t **b, int columns, const moek_x_run_ *const *x,
                                      const int rows, const int pair, MOEK_V_(block_codes) *codes,
                                      MOEK_V_(block_factors) *factors, const int bytes, const int kind)
{
    enum { PARTS = 16 / MOEK_V_LANES };
    MOEK_VF lanes[4][PARTS];
    MOEK_V_LOW low[4];
    uint8_t last[2][8 * 64];                           /* blocks of 32 columns, of which a unit has fewer than 8 */
    int unit, i;
#define MOEK_BEGIN_(n) \
    lanes[n][0] = MOEK_V_(block_zero)(); \
    lanes[n][PARTS - 1] = MOEK_V_(block_zero)(); \
    low[n] = MOEK_V_(block_none)();
    MOEK_BEGIN_(0) MOEK_BEGIN_(1) MOEK_BEGIN_(2) MOEK_BEGIN_(3)
#undef MOEK_BEGIN_
    for (unit = 0; 256 * unit < columns; unit++) {
        if (kind & MOEK_BLOCK_SHORT && 256 * unit + 256 > columns)
            for (i = 0; i <= pair; i++) {
                memset(last[i], 0, (size_t)bytes);
                memcpy(last[i], b[i], (size_t)((columns - 256 * unit) / 32 * (bytes / 8)));
                b[i] = last[i];
            }
        MOEK_V_(block_unit)(lanes, low, b, x, unit, rows, pair, codes, factors, bytes, kind);
        b[0] += bytes; b[1] += bytes;
    }
#define MOEK_END_(n) do { \
        double *const sum = pair ? to[n] : to[0] + (n); \
        *sum = MOEK_V_(block_end)((float)*sum, lanes[n], low[n], x[pair ? 0 : (n)]->back, kind); \
    } while (0)
    MOEK_END_(0);
    if (pair || rows > 1) MOEK_END_(1);
    if (rows > 2) MOEK_END_(2);
    if (rows > 2) MOEK_END_(3);
#undef MOEK_END_
}
/* All rows and runs of w, and rows r to r + rows - 1 of `all` of x. */
MOEK_V_INLINE void MOEK_V_(block_rows)(const moek_w_run_ *w, const moek_x_run_ *const *x, int all, int r,
                                       const int rows, const int pair, MOEK_V_(block_codes) *codes,
                                       MOEK_V_(block_factors) *factors, const int bytes, const int kind)
{
    double none[MOEK_X_RUNS] = { 0 };
    const uint8_t *at = w->codes;
    int i, run;
    for (i = 0; i < w->rows; i += 1 + pair, at += (size_t)(1 + pair) * w->codes_step) {
        const int other = pair && i + 1 < w->rows;     /* (an odd row is done twice) */
        double *const sum[2] = { w->sum[(size_t)i * w->sum_step] + r,
                                 other ? w->sum[(size_t)(i + 1) * w->sum_step] + r : none };
        const uint8_t *b[2];
        b[0] = at; b[1] = other ? at + w->codes_step : at;
        for (run = 0; run < w->runs; run++) {
            const int left = w->scales * w->columns - run * MOEK_RUN * MOEK_CHUNK;
            MOEK_V_(block_run)(sum, b, left < MOEK_RUN * MOEK_CHUNK ? left : MOEK_RUN * MOEK_CHUNK, x + run * all + r,
                               rows, pair, codes, factors, bytes, kind);
        }
    }
}
/* Rows of x by fours, twos and ones. */
MOEK_V_INLINE void MOEK_V_(block_dots)(const moek_w_run_ *w, const moek_x_run_ *const *x, int rows,
                                       MOEK_V_(block_codes) *codes, MOEK_V_(block_factors) *factors,
                                       const int bytes, const int kind)
{
    const int pair = !(kind & MOEK_BLOCK_BYTES) || bytes <= 160;
    int r, n;
    for (r = 0; r < rows; r += n) {
        n = rows - r >= 4 ? 4 : rows - r >= 2 ? 2 : 1;
        if (n == 4) MOEK_V_(block_rows)(w, x, rows, r, 4, 0, codes, factors, bytes, kind);
        else if (n == 2) MOEK_V_(block_rows)(w, x, rows, r, 2, 0, codes, factors, bytes, kind);
        else MOEK_V_(block_rows)(w, x, rows, r, 1, pair, codes, factors, bytes, kind);
    }
}
#undef MOEK_EACH_PART_

/* What a set has given is spent. */
#undef MOEK_VF
#undef MOEK_VI
#undef MOEK_V_LANES
#undef MOEK_V_FACTORS
#undef MOEK_V_BY
#undef MOEK_V_LOW
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
