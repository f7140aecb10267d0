/* moek/kernel/bytes_body.h -- the loops of bytes.h for a set of instructions: included by each, with MOEK_V_(x), the
 * name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_VF, MOEK_VI     vectors of f32 and of 32 bits;  MOEK_V_LANES  of such a vector
 *   MOEK_V_WORDS         1: x of s8 is words
 *   MOEK_V_(load, store, all, fma, mul, to_f)           of f32: the operations; f32 of s32
 *   MOEK_V_(i_load, i_store, i_all, i_add)              of s32
 *   MOEK_V_(scales)      MOEK_V_LANES of them
 *   MOEK_V_(bytes)       8 vectors of codes of a block, w->element's, without a sign where that is needed; zeros: less
 *                        zero points
 *   MOEK_V_(byte_dots)   their products with x of a block, plus a vector; of the codes of one panel, or of two
 *   MOEK_V_(byte_half)   the same of 16 columns, the first or the second ones */

/* Sums of a row of x become those with a block of a panel. */
MOEK_V_INLINE void MOEK_V_(byte_sums)(float *to, MOEK_VI d, MOEK_VF scale, MOEK_VF s, const int exact)
{
    int32_t *const whole = (int32_t *)(void *)to;
    if (exact) MOEK_V_(i_store)(whole, MOEK_V_(i_add)(d, MOEK_V_(i_load)(whole)));
    else MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(d), s), scale, MOEK_V_(load)(to)));
}
/* The same of two halves of a block, each with scales of its own. */
MOEK_V_INLINE void MOEK_V_(byte_pair)(float *to, MOEK_VI d, MOEK_VI more, MOEK_VF scale, MOEK_VF next, MOEK_VF s)
{
    const MOEK_VF sum = MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(d), s), scale, MOEK_V_(load)(to));
    MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(more), s), next, sum));
}
/* Minimums of a group times a sum of x. */
MOEK_V_INLINE void MOEK_V_(byte_mins)(float *to, const float *min, float low)
{
    MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(load)(min), MOEK_V_(all)(low), MOEK_V_(load)(to)));
}
/* All blocks of a panel, or of two, where these are parts of a vector each. */
MOEK_V_INLINE void MOEK_V_(bytes_of)(float *sum, const moek_tile_w_ *w, const int panels, const moek_bytes_x_ *x,
                                     int block0, int rows, const int element, const int zeros, const int exact,
                                     const int mins, const int fine)
{
    enum { L = MOEK_V_LANES };
    /* Words of s8: 16 columns at a time where sums are integers; else two halves (of one panel). */
    const int words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8, s8 = element == MOEK_ELEMENT_S8;
    const int halves = words && !exact, alone = words && exact, bytes = s8 && !alone ? 512 : 256;
    const int size = alone ? 16 : 32, blocks = alone ? 2 * w->blocks : w->blocks;
    const moek_tile_w_ *const other = w + panels - 1;
    int b, i, r, h;
    for (b = 0; b < blocks; b++) {
        const size_t g = (size_t)((w->first + size * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        const uint8_t *const at = w->codes + (size_t)b * (size_t)bytes, *const at1 = other->codes + (at - w->codes);
        const int first = (block0 + (alone ? b / 2 : b)) * rows;
        for (i = 0; i < bytes; i += 64) {
            MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
            if (panels > 1) MOEK_PREFETCH((uintptr_t)at1 + MOEK_TILE_AHEAD + (uintptr_t)i);
        }
        if (!exact) MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
        for (h = 0; h < MOEK_PANEL; h += L) {
            const MOEK_VF scale = exact ? MOEK_V_(all)(1) : MOEK_V_(scales)(w, g, h);
            const MOEK_VF scale1 = exact || panels < 2 ? scale : MOEK_V_(scales)(other, g, h);
            const MOEK_VF next = fine ? MOEK_V_(scales)(w, g + 1, h) : scale;
            const MOEK_VF next1 = fine && panels > 1 ? MOEK_V_(scales)(other, g + 1, h) : scale1;
            const int8_t *in = x->code + (words ? 64 * first + (alone ? 32 * (b % 2) : 0) : 32 * first);
            float *to = sum + h;
            MOEK_VI codes[8], codes1[8];
            MOEK_V_(bytes)(codes, at + 4 * h, element, zeros ? w->zero + 8 * g : NULL, h);
            if (panels > 1) MOEK_V_(bytes)(codes1, at1 + 4 * h, element, zeros ? other->zero + 8 * g : NULL, h);
            if (halves) MOEK_V_(bytes)(codes1, at + 256 + 4 * h, element, NULL, h);
            for (r = first; r < first + rows; r++, to += MOEK_STRIP, in += words ? 64 : 32) {
                const MOEK_VF s = MOEK_V_(all)(exact ? 1 : x->s[r]);
                const MOEK_VI start = MOEK_V_(i_all)(words ? 0 : x->start[r]);
                MOEK_VI d[2], more[2];
                if (fine) {
                    const MOEK_VI half = MOEK_V_(i_all)(words ? 0 : x->half[r]);
                    MOEK_V_(byte_half)(d, half, codes, codes1, panels, in, 0);
                    MOEK_V_(byte_half)(more, start, codes, codes1, panels, in, 1);
                    MOEK_V_(byte_pair)(to, d[0], more[0], scale, next, s);
                    if (panels > 1) MOEK_V_(byte_pair)(to + MOEK_PANEL, d[1], more[1], scale1, next1, s);
                    for (i = 0; i < 2 && mins; i++) {
                        const size_t of = (size_t)(MOEK_PANEL * (2 * b + i) + h);
                        MOEK_V_(byte_mins)(to, w->min + of, x->low[i][r]);
                        if (panels > 1) MOEK_V_(byte_mins)(to + MOEK_PANEL, other->min + of, x->low[i][r]);
                    }
                    continue;
                }
                MOEK_V_(byte_dots)(d, start, codes, codes1, panels, in, element, zeros);
                if (halves) {
                    MOEK_V_(byte_dots)(more, start, codes1, codes1, 1, in + 32, element, zeros);
                    d[0] = MOEK_V_(i_add)(d[0], more[0]);
                }
                MOEK_V_(byte_sums)(to, d[0], scale, s, exact);
                if (panels > 1) MOEK_V_(byte_sums)(to + MOEK_PANEL, d[1], scale1, s, exact);
                if (mins) MOEK_V_(byte_mins)(to, w->min + MOEK_PANEL * b + h, x->low[0][r]);
                if (mins && panels > 1)
                    MOEK_V_(byte_mins)(to + MOEK_PANEL, other->min + MOEK_PANEL * b + h, x->low[0][r]);
            }
        }
    }
}
/* X(name, element, with zero points, exact, with minimums, with scales of 16 columns) */
#define MOEK_BYTES_OF_(X) \
    X(u4b8, MOEK_ELEMENT_U4B8, 0, 0, 0, 0) X(u4b8_zero, MOEK_ELEMENT_U4B8, 1, 0, 0, 0) \
    X(e2m1, MOEK_ELEMENT_E2M1, 0, 0, 0, 0) X(s8, MOEK_ELEMENT_S8, 0, 1, 0, 0) \
    X(blocks, MOEK_ELEMENT_S8, 0, 0, 0, 0) X(blocks_min, MOEK_ELEMENT_S8, 0, 0, 1, 0) \
    X(blocks_fine, MOEK_ELEMENT_S8, 0, 0, 0, 1) X(blocks_both, MOEK_ELEMENT_S8, 0, 0, 1, 1)
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

/* What a set has given is spent. */
#undef MOEK_VF
#undef MOEK_VI
#undef MOEK_V_LANES
#undef MOEK_V_WORDS
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
