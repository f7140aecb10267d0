/* moek/kernel/tile_body.h -- the loops of tile.h for a set of instructions: included by each, with MOEK_V_(x), the name
 * of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_VF, MOEK_VI     vectors of f32 and of 32 bits;  MOEK_V_LANES  of such a vector
 *   MOEK_V_WORDS         1: q of s8 is words
 *   MOEK_V_FENCE         what keeps a compiler from holding digits for the next part, for which there are no registers
 *   MOEK_V_(load, store, all, fma, mul, to_f)           of f32: the operations; f32 of s32
 *   MOEK_V_(i_load, i_store, i_all, i_sub, i_mul, i_add)      of s32
 *   MOEK_V_(codes)       8 vectors of codes
 *   MOEK_V_(dots, whole) their products with a digit, in 2 parts; the sum of such of low and high, or of one digit
 *   MOEK_V_(one)         the products of a vector of codes of four columns
 *   MOEK_V_UNIT_FACTORS_(name)    what makes scales and minimums of a unit of blocks; MOEK_V_(unit_codes) codes
 *   MOEK_V_(scales, zeros)        MOEK_V_LANES of them */

/* A block, or half of one, of codes and a row of x: f32 of its integers.  part: 0, 1: of a half; 2: all. */
MOEK_V_INLINE MOEK_VF MOEK_V_(integers)(const MOEK_VI codes[8], const moek_tile_x_ *x, int b, const int part,
                                        MOEK_VI zero, const int element, const int kind)
{
    const int words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8, at = words ? 64 * b : 32 * b;
    MOEK_VI low[2], high[2], d, less = MOEK_V_(i_all)(x->less[0][3 * b + part]);
    MOEK_VF f;
    MOEK_V_(dots)(low, codes, x->digit[0] + at, part, element);
    if (!words) MOEK_V_(dots)(high, codes, x->digit[1] + at, part, element);
    if (kind & MOEK_TILE_ZERO) less = MOEK_V_(i_mul)(less, zero);
    d = MOEK_V_(i_sub)(MOEK_V_(whole)(low, words ? NULL : high, part, element), less);
    f = MOEK_V_(to_f)(d);
    if (!(kind & MOEK_TILE_DENSE)) return f;
    less = MOEK_V_(i_all)(x->less[1][3 * b + part]);
    if (kind & MOEK_TILE_ZERO) less = MOEK_V_(i_mul)(less, zero);
    MOEK_V_(dots)(low, codes, x->digit[2] + at, part, element);
    d = MOEK_V_(i_sub)(MOEK_V_(whole)(low, NULL, part, element), less);
    return MOEK_V_(fma)(MOEK_V_(to_f)(d), MOEK_V_(all)(0.00390625f), f);
}
/* sum += a block, whose codes are there. */
MOEK_V_INLINE MOEK_VF MOEK_V_(block)(MOEK_VF sum, const MOEK_VI codes[8], const moek_tile_x_ *x, int b,
                                     const MOEK_VF scale[2], MOEK_VI zero, const int element, const int kind)
{
    const MOEK_VF s = MOEK_V_(all)(x->s[b]);
    MOEK_VF f;
    if (kind & MOEK_TILE_HALVES) {
        f = MOEK_V_(mul)(MOEK_V_(integers)(codes, x, b, 0, zero, element, kind), s);
        sum = MOEK_V_(fma)(f, MOEK_V_(mul)(scale[0], MOEK_V_(all)(x->by[2 * b])), sum);
        f = MOEK_V_(mul)(MOEK_V_(integers)(codes, x, b, 1, zero, element, kind), s);
        return MOEK_V_(fma)(f, MOEK_V_(mul)(scale[1], MOEK_V_(all)(x->by[2 * b + 1])), sum);
    }
    f = MOEK_V_(mul)(MOEK_V_(integers)(codes, x, b, 2, zero, element, kind), s);
    return MOEK_V_(fma)(f, MOEK_V_(mul)(scale[0], MOEK_V_(all)(x->by[2 * b])), sum);
}
/* The list of a run. */
MOEK_V_INLINE MOEK_VF MOEK_V_(list)(MOEK_VF sum, const moek_tile_w_ *w, const moek_tile_x_ *x, int h, const int element,
                                    const int kind)
{
    int i;
    for (i = 0; i < x->thirds; i++) {
        const moek_tile_third_ *const t = &x->third[i];
        const size_t g = (size_t)((w->first + 16 * t->group) >> w->log);
        MOEK_VI less = MOEK_V_(i_all)(t->less), d;
        if (kind & MOEK_TILE_ZERO) less = MOEK_V_(i_mul)(less, MOEK_V_(zeros)(w->zero + 8 * g, h));
        d = MOEK_V_(i_sub)(MOEK_V_(one)(w->codes + t->at + 4 * h, t->high, t->digit, element), less);
        sum = MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(d), MOEK_V_(all)(t->s)),
                           MOEK_V_(mul)(MOEK_V_(scales)(w, g, h), MOEK_V_(all)(t->by)), sum);
    }
    return sum;
}
/* After the blocks of a run: its list, and the sums to where these came from. */
MOEK_V_INLINE void MOEK_V_(end)(float *to, MOEK_VF sum, const moek_tile_w_ *w, const moek_tile_x_ *x, int h,
                                const int element, const int kind)
{
    if (!(kind & MOEK_TILE_DENSE) && x->thirds) sum = MOEK_V_(list)(sum, w, x, h, element, kind);
    MOEK_V_(store)(to, sum);
}
#if MOEK_V_LANES == 16
#define MOEK_EACH_PART_(X) X(0)
#elif MOEK_V_LANES == 8
#define MOEK_EACH_PART_(X) X(0) X(1)
#else
#define MOEK_EACH_PART_(X) X(0) X(1) X(2) X(3)
#endif
/* `rows` rows of x, 1, 2 or 4.  (No loop over these, or over parts of a panel, so that sums stay in registers.) */
MOEK_V_INLINE void MOEK_V_(run_of)(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *const *x, const int rows,
                                   const int element, const int kind)
{
    enum { L = MOEK_V_LANES };
    const int bytes = element == MOEK_ELEMENT_S8 ? 512 : 256;
    const moek_tile_x_ *const x0 = x[0], *const x1 = x[rows > 1], *const x2 = x[rows > 2 ? 2 : 0];
    const moek_tile_x_ *const x3 = x[rows > 2 ? 3 : 0];
    const uint8_t *at = w->codes;
    MOEK_VF sums[4][(int)MOEK_PANEL / (int)L];
    int b, i;
#define MOEK_OF_ROW_(h, r) sum + (r) * MOEK_STRIP + L * (h)
#define MOEK_BEGIN_(h) \
    sums[0][h] = MOEK_V_(load)(MOEK_OF_ROW_(h, 0)); \
    if (rows > 1) sums[1][h] = MOEK_V_(load)(MOEK_OF_ROW_(h, 1)); \
    if (rows > 2) sums[2][h] = MOEK_V_(load)(MOEK_OF_ROW_(h, 2)); \
    if (rows > 2) sums[3][h] = MOEK_V_(load)(MOEK_OF_ROW_(h, 3));
    MOEK_EACH_PART_(MOEK_BEGIN_)
#undef MOEK_BEGIN_
    for (b = 0; b < w->blocks; b++, at += bytes) {
        const size_t g = (size_t)((w->first + 32 * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        for (i = 0; i < bytes; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
        MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
#define MOEK_STEP_(h) do { \
            MOEK_VI codes[8], zero = MOEK_V_(i_all)(1); \
            MOEK_VF scale[2]; \
            MOEK_V_FENCE; \
            scale[0] = MOEK_V_(scales)(w, g, L * (h)); \
            scale[1] = kind & MOEK_TILE_HALVES ? MOEK_V_(scales)(w, g + 1, L * (h)) : scale[0]; \
            if (kind & MOEK_TILE_ZERO) zero = MOEK_V_(zeros)(w->zero + 8 * g, L * (h)); \
            MOEK_V_(codes)(codes, at + 4 * L * (h), element); \
            sums[0][h] = MOEK_V_(block)(sums[0][h], codes, x0, b, scale, zero, element, kind); \
            if (rows > 1) sums[1][h] = MOEK_V_(block)(sums[1][h], codes, x1, b, scale, zero, element, kind); \
            if (rows > 2) sums[2][h] = MOEK_V_(block)(sums[2][h], codes, x2, b, scale, zero, element, kind); \
            if (rows > 2) sums[3][h] = MOEK_V_(block)(sums[3][h], codes, x3, b, scale, zero, element, kind); \
        } while (0);
        MOEK_EACH_PART_(MOEK_STEP_)
#undef MOEK_STEP_
    }
#define MOEK_END_(h) \
    MOEK_V_(end)(MOEK_OF_ROW_(h, 0), sums[0][h], w, x0, L * (h), element, kind); \
    if (rows > 1) MOEK_V_(end)(MOEK_OF_ROW_(h, 1), sums[1][h], w, x1, L * (h), element, kind); \
    if (rows > 2) MOEK_V_(end)(MOEK_OF_ROW_(h, 2), sums[2][h], w, x2, L * (h), element, kind); \
    if (rows > 2) MOEK_V_(end)(MOEK_OF_ROW_(h, 3), sums[3][h], w, x3, L * (h), element, kind);
    MOEK_EACH_PART_(MOEK_END_)
#undef MOEK_END_
#undef MOEK_OF_ROW_
}
/* s8 times s8: sums of integers, of one row of x. */
MOEK_V_INLINE void MOEK_V_(exact_of)(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *x, const int element)
{
    enum { L = MOEK_V_LANES };
    const uint8_t *at = w->codes;
    MOEK_VI sums[(int)MOEK_PANEL / (int)L];
    int b, i;
#define MOEK_BEGIN_(h) sums[h] = MOEK_V_(i_load)((const int32_t *)(const void *)(sum + L * (h)));
    MOEK_EACH_PART_(MOEK_BEGIN_)
#undef MOEK_BEGIN_
    for (b = 0; b < w->blocks; b++, at += 512) {
        for (i = 0; i < 512; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
#define MOEK_STEP_(h) do { \
            MOEK_VI codes[8], part[2]; \
            MOEK_V_(codes)(codes, at + 4 * L * (h), element); \
            MOEK_V_(dots)(part, codes, x->digit[0] + (MOEK_V_WORDS ? 64 : 32) * b, 2, element); \
            sums[h] = MOEK_V_(i_add)(sums[h], MOEK_V_(i_sub)(MOEK_V_(whole)(part, NULL, 2, element), \
                                                             MOEK_V_(i_all)(x->less[0][3 * b + 2]))); \
        } while (0);
        MOEK_EACH_PART_(MOEK_STEP_)
#undef MOEK_STEP_
    }
#define MOEK_END_(h) MOEK_V_(i_store)((int32_t *)(void *)(sum + L * (h)), sums[h]);
    MOEK_EACH_PART_(MOEK_END_)
#undef MOEK_END_
}
#undef MOEK_EACH_PART_
#define MOEK_TILE_(name, element, kind) \
    MOEK_V_FN void MOEK_V_(run_##name)(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *const *x, int rows) \
    { \
        const int dense = x[0]->dense; \
        int r; \
        if ((kind) & MOEK_TILE_EXACT) { \
            for (r = 0; r < rows; r++) MOEK_V_(exact_of)(sum + r * MOEK_STRIP, w, x[r], element); \
        } \
        else if (dense && rows == 4) MOEK_V_(run_of)(sum, w, x, 4, element, (kind) | MOEK_TILE_DENSE); \
        else if (dense && rows == 2) MOEK_V_(run_of)(sum, w, x, 2, element, (kind) | MOEK_TILE_DENSE); \
        else if (dense) MOEK_V_(run_of)(sum, w, x, 1, element, (kind) | MOEK_TILE_DENSE); \
        else if (rows == 4) MOEK_V_(run_of)(sum, w, x, 4, element, kind); \
        else if (rows == 2) MOEK_V_(run_of)(sum, w, x, 2, element, kind); \
        else MOEK_V_(run_of)(sum, w, x, 1, element, kind); \
    }
MOEK_TILES_OF_(MOEK_TILE_)
#undef MOEK_TILE_
#define MOEK_TILE_CASE_(name, of, its) \
    if (MOEK_WANTS_ELEMENT_(of) && w->element == (of) && kind == (its)) MOEK_V_(run_##name)(sum, w, x, rows);
MOEK_V_FN void MOEK_V_(run)(float *sum, const moek_tile_w_ *w, const moek_tile_x_ *const *x, int rows)
{
    const int kind = (w->zero ? MOEK_TILE_ZERO : 0) | (w->log == 4 ? MOEK_TILE_HALVES : 0) |
                     (w->exact ? MOEK_TILE_EXACT : 0);
    MOEK_TILES_OF_(MOEK_TILE_CASE_)
}
#undef MOEK_TILE_CASE_

/* Part p of a unit, whose sums lie in vector h, of one row of x. */
MOEK_V_INLINE MOEK_VF MOEK_V_(part)(MOEK_VF sum, const MOEK_VI codes[8], const float *scales, const float *mins, int p,
                                    const moek_tile_x_ *x, int b, const int element, const int kind)
{
    const int g = kind & MOEK_TILE_HALVES ? 2 * p : p, halves = (kind & MOEK_TILE_HALVES) != 0;
    const float *const min = mins + g * MOEK_PANEL;
    MOEK_VF scale[2];
    scale[0] = MOEK_V_(load)(scales + g * MOEK_PANEL);
    scale[1] = halves ? MOEK_V_(load)(scales + (g + 1) * MOEK_PANEL) : scale[0];
    sum = MOEK_V_(block)(sum, codes, x, b, scale, MOEK_V_(i_all)(1), element, kind | MOEK_TILE_DENSE);
    if (!(kind & MOEK_TILE_MIN)) return sum;
    sum = MOEK_V_(fma)(MOEK_V_(load)(min), MOEK_V_(all)(x->low[!halves][2 * b]), sum);
    return halves ? MOEK_V_(fma)(MOEK_V_(load)(min + MOEK_PANEL), MOEK_V_(all)(x->low[0][2 * b + 1]), sum) : sum;
}
/* A unit as it lies, of `rows` rows of x, 1, 2 or 4. */
MOEK_V_INLINE void MOEK_V_(few_of)(float *sum, const uint8_t *unit, int parts, const moek_tile_x_ *const *x, int b,
                                   const int rows, const moek_unit_layout_ *l, moek_unit_factors_ *factors,
                                   const int element, const int kind)
{
    MOEK_LINE_ALIGNED_ float scale[2 * MOEK_UNIT_PARTS * MOEK_PANEL];
    MOEK_LINE_ALIGNED_ float min[2 * MOEK_UNIT_PARTS * MOEK_PANEL];
    const uint8_t *const from = moek_unit_begin_(l, unit, parts);
    int h, p, i;
    factors(scale, min, unit, parts, 0, parts);
    for (h = 0; h < MOEK_PANEL; h += MOEK_V_LANES) {
        float *const to = sum + h;
        MOEK_VF s0 = MOEK_V_(load)(to), s1 = s0, s2 = s0, s3 = s0;
        if (rows > 1) s1 = MOEK_V_(load)(to + MOEK_STRIP);
        if (rows > 2) s2 = MOEK_V_(load)(to + 2 * MOEK_STRIP), s3 = MOEK_V_(load)(to + 3 * MOEK_STRIP);
        for (p = 0; p < parts; p++) {
            MOEK_VI codes[8];
            MOEK_V_FENCE;
            for (i = 0; i < l->bytes && !h; i += 64)
                MOEK_PREFETCH((uintptr_t)unit + MOEK_TILE_AHEAD + (uintptr_t)(p * l->bytes + i));
            MOEK_V_(unit_codes)(codes, from + 4 * h, l, p, 1);
#define MOEK_PART_(s, r) s = MOEK_V_(part)(s, codes, scale + h, min + h, p, x[r], b + p, element, kind)
            MOEK_PART_(s0, 0);
            if (rows > 1) MOEK_PART_(s1, 1);
            if (rows > 2) MOEK_PART_(s2, 2);
            if (rows > 2) MOEK_PART_(s3, 3);
#undef MOEK_PART_
        }
        MOEK_V_(store)(to, s0);
        if (rows > 1) MOEK_V_(store)(to + MOEK_STRIP, s1);
        if (rows > 2) MOEK_V_(store)(to + 2 * MOEK_STRIP, s2), MOEK_V_(store)(to + 3 * MOEK_STRIP, s3);
    }
}
#define MOEK_FEW_OF_(name, n, element, kind) \
    MOEK_V_(few_of)(sum, unit, parts, x, b, n, &moek_unit_layout_##name##_, MOEK_V_UNIT_FACTORS_(name), element, kind)
#define MOEK_FEW_(name, element, kind) \
    MOEK_V_FN void MOEK_V_(few_##name)(float *sum, const uint8_t *unit, int parts, const moek_tile_x_ *const *x, \
                                       int b, int rows) \
    { \
        if (rows == 4) MOEK_FEW_OF_(name, 4, element, kind); \
        else if (rows == 2) MOEK_FEW_OF_(name, 2, element, kind); \
        else MOEK_FEW_OF_(name, 1, element, kind); \
    }
MOEK_EACH_UNIT_(MOEK_FEW_)
#undef MOEK_FEW_
#undef MOEK_FEW_OF_

/* What a set has given is spent. */
#undef MOEK_VF
#undef MOEK_VI
#undef MOEK_V_LANES
#undef MOEK_V_WORDS
#undef MOEK_V_UNIT_FACTORS_
#undef MOEK_V_FENCE
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
