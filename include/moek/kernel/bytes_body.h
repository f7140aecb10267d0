/* moek/kernel/bytes_body.h -- the loops of bytes.h for a set of instructions: included by each, with MOEK_V_(x), the
 * name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_VF, MOEK_VI     vectors of f32 and of 32 bits;  MOEK_V_LANES  of such a vector
 *   MOEK_V_WORDS         1: x of s8 is words; but codes of blocks of at most 6 bits are bytes (MOEK_SMALL_)
 *   MOEK_V_(load, store, all, fma, mul, to_f)           of f32: the operations; f32 of s32
 *   MOEK_V_(i_load, i_store, i_all, i_add)              of s32
 *   MOEK_V_(scales)      MOEK_V_LANES of them
 *   MOEK_V_(bytes)       8 vectors of codes of a block, w->element's, without a sign where that is needed; zeros: less
 *                        zero points
 *   MOEK_V_(byte_plus)   with words: codes plus a number each, so that codes of few bits have no sign
 *   MOEK_V_(byte_dots)   their products with x of a block, plus a vector; of the codes of one panel, or of two
 *   MOEK_V_(byte_half)   the same of 16 columns, the first or the second ones
 * and for blocks in panels MOEK_V_FENCE, MOEK_V_UNIT_FACTORS_(name), MOEK_V_(unit_codes, dots, whole) of tile_body.h */

/* A block of a panel, or of two: codes, scales of 32 columns or of each half, minimums. */
typedef struct MOEK_V_(byte_block) {
    MOEK_VI codes[2][8];
    MOEK_VF scale[2][2];
    const float *min[2];
} MOEK_V_(byte_block);
MOEK_V_INLINE void MOEK_V_(byte_block_of)(MOEK_V_(byte_block) *to, const int p, const moek_tile_w_ *w,
                                          const uint8_t *at, size_t g, int h, const int element, const int zeros,
                                          const int exact, const int mins, const int fine)
{
    MOEK_V_(bytes)(to->codes[p], at + 4 * h, element, zeros ? w->zero + 8 * g : NULL, h);
#if MOEK_V_WORDS
    if (MOEK_SMALL_(element)) MOEK_V_(byte_plus)(to->codes[p], w->less);
#endif
    to->scale[p][0] = exact ? MOEK_V_(all)(1) : MOEK_V_(scales)(w, g, h);
    to->scale[p][1] = fine ? MOEK_V_(scales)(w, g + 1, h) : to->scale[p][0];
    to->min[p] = mins ? w->min + MOEK_PANEL * g + (size_t)h : NULL;
}
/* Sums of a row of x become those with a block: of its whole numbers `d`, or of these times scales. */
MOEK_V_INLINE void MOEK_V_(byte_sums)(float *to, MOEK_VI d, MOEK_VF scale, MOEK_VF s, const int exact)
{
    int32_t *const whole = (int32_t *)(void *)to;
    if (exact) MOEK_V_(i_store)(whole, MOEK_V_(i_add)(d, MOEK_V_(i_load)(whole)));
    else MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(d), s), scale, MOEK_V_(load)(to)));
}
MOEK_V_INLINE void MOEK_V_(byte_panels)(float *to, const MOEK_VI d[2], const MOEK_V_(byte_block) *w, const int half,
                                        MOEK_VF s, const int panels, const int exact)
{
    MOEK_V_(byte_sums)(to, d[0], w->scale[0][half], s, exact);
    if (panels > 1) MOEK_V_(byte_sums)(to + MOEK_PANEL, d[1], w->scale[1][half], s, exact);
}
/* Minimums of a group times a sum of x. */
MOEK_V_INLINE void MOEK_V_(byte_mins)(float *to, const MOEK_V_(byte_block) *w, const int half, MOEK_VF low,
                                      const int panels)
{
    int p;
    for (p = 0; p < panels; p++, to += MOEK_PANEL)
        MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(load)(w->min[p] + MOEK_PANEL * half), low, MOEK_V_(load)(to)));
}
/* Sums of a row of x become those with a block, which is block r of x, with columns at `in`.  Of words these are 16,
 * and `last` has the products of the 16 before. */
MOEK_V_INLINE void MOEK_V_(byte_row)(float *to, const MOEK_V_(byte_block) *w, const moek_bytes_x_ *x, int r,
                                     const int8_t *in, const int panels, const int element, const int zeros,
                                     const int exact, const int mins, const int fine, const int32_t *last)
{
    const int words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8;
    const MOEK_VF s = MOEK_V_(all)(exact ? 1 : x->s[r]);
    const MOEK_VI start = MOEK_V_(i_all)(words ? 0 : x->start[r]);
    MOEK_VI d[2];
    if (fine) {
        MOEK_V_(byte_half)(d, MOEK_V_(i_all)(x->half[r]), w->codes[0], w->codes[1], panels, in, 0, element);
        MOEK_V_(byte_panels)(to, d, w, 0, s, panels, 0);
        MOEK_V_(byte_half)(d, start, w->codes[0], w->codes[1], panels, in, 1, element);
    } else {
        MOEK_V_(byte_dots)(d, start, w->codes[0], w->codes[1], panels, in, element, zeros);
    }
    if (words && !exact) d[0] = MOEK_V_(i_add)(d[0], MOEK_V_(i_load)(last));
    MOEK_V_(byte_panels)(to, d, w, fine, s, panels, exact);
    if (mins) MOEK_V_(byte_mins)(to, w, 0, MOEK_V_(all)(x->low[0][r]), panels);
    if (mins && fine) MOEK_V_(byte_mins)(to, w, 1, MOEK_V_(all)(x->low[1][r]), panels);
}
/* All blocks of a panel, or of two, where these are parts of a vector each. */
MOEK_V_INLINE void MOEK_V_(bytes_of)(float *sum, const moek_tile_w_ *w, const int panels, const moek_bytes_x_ *x,
                                     int block0, int rows, const int element, const int zeros, const int exact,
                                     const int mins, const int fine)
{
    /* Words: 16 columns at a time.  Sums that scales multiply wait for the next 16. */
    const int words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8, wait = words && !exact, size = words ? 16 : 32;
    const int fours = element == MOEK_ELEMENT_U4B8 || element == MOEK_ELEMENT_E2M1;
    const int bytes = words ? 256 : fours ? 256 : 512;
    int32_t last[MOEK_V_WORDS ? (int)MOEK_BYTES_ROWS * (int)MOEK_PANEL : 1];
    const uint8_t *at = w->codes, *at1 = w[panels - 1].codes;
    int b, i, r, h;
    for (b = 0; b < 32 / size * w->blocks; b++, at += bytes, at1 += bytes) {
        const size_t g = (size_t)((w->first + size * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        const int first = (block0 + (words ? b / 2 : b)) * rows;
        for (i = 0; i < bytes; i += 64) {
            MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
            if (panels > 1) MOEK_PREFETCH((uintptr_t)at1 + MOEK_TILE_AHEAD + (uintptr_t)i);
        }
        if (!exact) MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
        for (h = 0; h < MOEK_PANEL; h += MOEK_V_LANES) {
            const int8_t *in = x->code + (words ? 64 * first + 32 * (b % 2) : 32 * first);
            float *to = sum + h;
            MOEK_V_(byte_block) block;
            MOEK_V_(byte_block_of)(&block, 0, w, at, g, h, element, zeros, exact, mins, fine);
            if (panels > 1) MOEK_V_(byte_block_of)(&block, 1, w + 1, at1, g, h, element, zeros, exact, mins, fine);
            if (wait && b % 2 == 0)
                for (r = 0; r < rows; r++, in += 64) {
                    MOEK_VI d[2];
                    MOEK_V_(byte_dots)(d, MOEK_V_(i_all)(0), block.codes[0], block.codes[1], 1, in, element, 0);
                    MOEK_V_(i_store)(last + MOEK_PANEL * r + h, d[0]);
                }
            else for (r = 0; r < rows; r++, to += MOEK_STRIP, in += words ? 64 : 32)
                MOEK_V_(byte_row)(to, &block, x, first + r, in, panels, element, zeros, exact, mins, fine,
                                  wait ? last + MOEK_PANEL * r + h : NULL);
        }
    }
}
/* X(name, element, with zero points, exact, with minimums, with scales of 16 columns) */
#define MOEK_BYTES_OF_ARRAYS_(X) \
    X(u4b8, MOEK_ELEMENT_U4B8, 0, 0, 0, 0) X(u4b8_zero, MOEK_ELEMENT_U4B8, 1, 0, 0, 0) \
    X(e2m1, MOEK_ELEMENT_E2M1, 0, 0, 0, 0) X(s8, MOEK_ELEMENT_S8, 0, 1, 0, 0) X(blocks, MOEK_ELEMENT_S8, 0, 0, 0, 0)
#if MOEK_V_WORDS
#define MOEK_BYTES_OF_(X) \
    MOEK_BYTES_OF_ARRAYS_(X) X(four, MOEK_ELEMENT_U4, 0, 0, 0, 0) X(four_min, MOEK_ELEMENT_U4, 0, 0, 1, 0) \
    X(four_fine, MOEK_ELEMENT_U4, 0, 0, 0, 1) X(four_both, MOEK_ELEMENT_U4, 0, 0, 1, 1) \
    X(five, MOEK_ELEMENT_U5, 0, 0, 0, 0) X(five_min, MOEK_ELEMENT_U5, 0, 0, 1, 0) \
    X(six_fine, MOEK_ELEMENT_U6B32, 0, 0, 0, 1)
#else
#define MOEK_BYTES_OF_(X) \
    MOEK_BYTES_OF_ARRAYS_(X) X(blocks_min, MOEK_ELEMENT_S8, 0, 0, 1, 0) X(blocks_fine, MOEK_ELEMENT_S8, 0, 0, 0, 1) \
    X(blocks_both, MOEK_ELEMENT_S8, 0, 0, 1, 1)
#endif
#define MOEK_BYTES_(name, element, zeros, exact, mins, fine) \
    MOEK_V_FN void MOEK_V_(bytes_##name)(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b, \
                                         int rows) \
    { \
        int p; \
        if (MOEK_V_LANES == MOEK_PANEL && panels == 2 && rows > 4) \
            MOEK_V_(bytes_of)(sum, w, MOEK_V_LANES == MOEK_PANEL ? 2 : 1, x, b, rows, element, zeros, exact, mins, \
                              fine); \
        else for (p = 0; p < panels; p++) { \
            float *const to = sum + MOEK_PANEL * p; \
            if (rows == 1) MOEK_V_(bytes_of)(to, w + p, 1, x, b, 1, element, zeros, exact, mins, fine); \
            else MOEK_V_(bytes_of)(to, w + p, 1, x, b, rows, element, zeros, exact, mins, fine); \
        } \
    }
MOEK_BYTES_OF_(MOEK_BYTES_)
#undef MOEK_BYTES_
#define MOEK_BYTES_CASE_(name, of, zeros, is, mins, fine) \
    if (w->element == (of) && !w->zero == !(zeros) && w->exact == (is) && !w->min == !(mins) && \
        (w->log == 4) == (fine)) \
        MOEK_V_(bytes_##name)(sum, w, panels, x, b, rows);
MOEK_V_FN void MOEK_V_(bytes_run)(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b,
                                  int rows)
{
    MOEK_BYTES_OF_(MOEK_BYTES_CASE_)
}
#undef MOEK_BYTES_CASE_
#undef MOEK_BYTES_OF_
#undef MOEK_BYTES_OF_ARRAYS_

/* Part p of a unit, which is block r of x, of which one digit is all. */
MOEK_V_INLINE MOEK_VF MOEK_V_(byte_part)(MOEK_VF sum, const MOEK_VI codes[8], const float *scales, const float *mins,
                                         int p, const moek_bytes_x_ *x, int r, const int element, const int kind)
{
    const int halves = (kind & MOEK_TILE_HALVES) != 0, words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8;
    const int g = (halves ? 2 * p : p) * (int)MOEK_PANEL;
    const int8_t *const in = x->code + (words ? 64 : 32) * r;
    const MOEK_VF s = MOEK_V_(all)(x->s[r]);
    MOEK_VI d[2], whole;
    MOEK_V_(dots)(d, codes, in, 2, element);
    if (halves) {
        whole = MOEK_V_(i_add)(MOEK_V_(whole)(d, NULL, 0, element), MOEK_V_(i_all)(x->half[r]));
        sum = MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(whole), s), MOEK_V_(load)(scales + g), sum);
    }
    whole = MOEK_V_(i_add)(MOEK_V_(whole)(d, NULL, halves ? 1 : 2, element), MOEK_V_(i_all)(x->start[r]));
    if (halves) scales += MOEK_PANEL;
    sum = MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(whole), s), MOEK_V_(load)(scales + g), sum);
    if (!(kind & MOEK_TILE_MIN)) return sum;
    sum = MOEK_V_(fma)(MOEK_V_(load)(mins + g), MOEK_V_(all)(x->low[0][r]), sum);
    return halves ? MOEK_V_(fma)(MOEK_V_(load)(mins + g + MOEK_PANEL), MOEK_V_(all)(x->low[1][r]), sum) : sum;
}
/* A unit as it lies: of `rows` rows of x, 1 to 4, from row r on of `all`. */
MOEK_V_INLINE void MOEK_V_(byte_rows)(float *sum, const uint8_t *unit, const uint8_t *from, int parts,
                                      const moek_bytes_x_ *x, int b, int all, int r, const int rows,
                                      const moek_unit_layout_ *l, const float *scale, const float *min,
                                      const int element, const int kind)
{
    int h, p, i;
    for (h = 0; h < MOEK_PANEL; h += MOEK_V_LANES) {
        float *const to = sum + r * MOEK_STRIP + h;
        MOEK_VF s0 = MOEK_V_(load)(to), s1 = s0, s2 = s0, s3 = s0;
        if (rows > 1) s1 = MOEK_V_(load)(to + MOEK_STRIP);
        if (rows > 2) s2 = MOEK_V_(load)(to + 2 * MOEK_STRIP);
        if (rows > 3) s3 = MOEK_V_(load)(to + 3 * MOEK_STRIP);
        for (p = 0; p < parts; p++) {
            MOEK_VI codes[8];
            MOEK_V_FENCE;
            for (i = 0; i < l->bytes && !h && !r; i += 64)
                MOEK_PREFETCH((uintptr_t)unit + MOEK_TILE_AHEAD + (uintptr_t)(p * l->bytes + i));
            MOEK_V_(unit_codes)(codes, from + 4 * h, l, p, 1);
#define MOEK_PART_(s, i) \
    s = MOEK_V_(byte_part)(s, codes, scale + h, min + h, p, x, (b + p) * all + r + (i), element, kind)
            MOEK_PART_(s0, 0);
            if (rows > 1) MOEK_PART_(s1, 1);
            if (rows > 2) MOEK_PART_(s2, 2);
            if (rows > 3) MOEK_PART_(s3, 3);
#undef MOEK_PART_
        }
        MOEK_V_(store)(to, s0);
        if (rows > 1) MOEK_V_(store)(to + MOEK_STRIP, s1);
        if (rows > 2) MOEK_V_(store)(to + 2 * MOEK_STRIP, s2);
        if (rows > 3) MOEK_V_(store)(to + 3 * MOEK_STRIP, s3);
    }
}
MOEK_V_INLINE void MOEK_V_(byte_unit)(float *sum, const uint8_t *unit, int parts, const moek_bytes_x_ *x, int b,
                                      int rows, const moek_unit_layout_ *l, moek_unit_factors_ *factors,
                                      const int element, const int kind)
{
    MOEK_LINE_ALIGNED_ float scale[2 * MOEK_UNIT_PARTS * MOEK_PANEL];
    MOEK_LINE_ALIGNED_ float min[2 * MOEK_UNIT_PARTS * MOEK_PANEL];
    const uint8_t *const from = moek_unit_begin_(l, unit, parts);
    int r;
    factors(scale, min, unit, parts, 0, parts);
#define MOEK_ROWS_(n) MOEK_V_(byte_rows)(sum, unit, from, parts, x, b, rows, r, n, l, scale, min, element, kind)
    for (r = 0; r + 4 <= rows; r += 4) MOEK_ROWS_(4);
    if (rows - r == 3) MOEK_ROWS_(3);
    else if (rows - r == 2) MOEK_ROWS_(2);
    else if (rows - r == 1) MOEK_ROWS_(1);
#undef MOEK_ROWS_
}
#define MOEK_FEW_(name, element, kind) \
    MOEK_V_FN void MOEK_V_(unit_bytes_##name)(float *sum, const uint8_t *unit, int parts, const moek_bytes_x_ *x, \
                                             int b, int rows) \
    { \
        MOEK_V_(byte_unit)(sum, unit, parts, x, b, rows, &moek_unit_layout_##name##_, MOEK_V_UNIT_FACTORS_(name), \
                           element, kind); \
    }
MOEK_EACH_UNIT_(MOEK_FEW_)
#undef MOEK_FEW_

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
