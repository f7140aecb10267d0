/* moek/kernel/bytes_body.h -- the loops of bytes.h for a set of instructions: included by each, with MOEK_V_(x), the
 * name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_VF, MOEK_VI     vectors of f32 and of 32 bits;  MOEK_V_LANES  of such a vector
 *   MOEK_V_WORDS         1: x of s8 is words
 *   MOEK_V_(load, store, all, fma, mul, to_f)           of f32: the operations; f32 of s32
 *   MOEK_V_(i_load, i_store, i_all, i_add)              of s32
 *   MOEK_V_(scales)      MOEK_V_LANES of them
 *   MOEK_V_(bytes)       8 vectors of codes of a block, w->element's, without a sign where that is needed; zeros: less
 *                        zero points
 *   MOEK_V_(byte_dots)   their products with x of a block, plus a vector; of the codes of one panel, or of two */

/* Sums of a row of x become those with a block of a panel. */
MOEK_V_INLINE void MOEK_V_(byte_sums)(float *to, MOEK_VI d, MOEK_VF scale, MOEK_VF s, const int exact)
{
    int32_t *const whole = (int32_t *)(void *)to;
    if (exact) MOEK_V_(i_store)(whole, MOEK_V_(i_add)(d, MOEK_V_(i_load)(whole)));
    else MOEK_V_(store)(to, MOEK_V_(fma)(MOEK_V_(mul)(MOEK_V_(to_f)(d), s), scale, MOEK_V_(load)(to)));
}
/* All blocks of a panel, or of two, where these are parts of a vector each. */
MOEK_V_INLINE void MOEK_V_(bytes_of)(float *sum, const moek_tile_w_ *w, const int panels, const moek_bytes_x_ *x,
                                     int block0, int rows, const int element, const int zeros, const int exact)
{
    enum { L = MOEK_V_LANES };
    const int words = MOEK_V_WORDS && element == MOEK_ELEMENT_S8, s8 = element == MOEK_ELEMENT_S8;
    const int bytes = s8 && !words ? 512 : 256, size = words ? 16 : 32, blocks = words ? 2 * w->blocks : w->blocks;
    const moek_tile_w_ *const other = w + panels - 1;
    int b, i, r, h;
    for (b = 0; b < blocks; b++) {
        const size_t g = (size_t)((w->first + size * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        const uint8_t *const at = w->codes + (size_t)b * (size_t)bytes, *const at1 = other->codes + (at - w->codes);
        const int first = (block0 + (words ? b / 2 : b)) * rows;
        for (i = 0; i < bytes; i += 64) {
            MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
            if (panels > 1) MOEK_PREFETCH((uintptr_t)at1 + MOEK_TILE_AHEAD + (uintptr_t)i);
        }
        if (!exact) MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
        for (h = 0; h < MOEK_PANEL; h += L) {
            const MOEK_VF scale = exact ? MOEK_V_(all)(1) : MOEK_V_(scales)(w, g, h);
            const MOEK_VF scale1 = exact || panels < 2 ? scale : MOEK_V_(scales)(other, g, h);
            const int8_t *in = x->code + (words ? 64 * first + 32 * (b % 2) : 32 * first);
            float *to = sum + h;
            MOEK_VI codes[8], codes1[8];
            MOEK_V_(bytes)(codes, at + 4 * h, element, zeros ? w->zero + 8 * g : NULL, h);
            if (panels > 1) MOEK_V_(bytes)(codes1, at1 + 4 * h, element, zeros ? other->zero + 8 * g : NULL, h);
            for (r = first; r < first + rows; r++, to += MOEK_STRIP, in += words ? 64 : 32) {
                const MOEK_VF s = MOEK_V_(all)(exact ? 1 : x->s[r]);
                const MOEK_VI start = MOEK_V_(i_all)(words ? 0 : x->start[r]);
                MOEK_VI d[2];
                MOEK_V_(byte_dots)(d, start, codes, codes1, panels, in, element, zeros);
                MOEK_V_(byte_sums)(to, d[0], scale, s, exact);
                if (panels > 1) MOEK_V_(byte_sums)(to + MOEK_PANEL, d[1], scale1, s, exact);
            }
        }
    }
}
/* X(name, element, with zero points, exact) */
#define MOEK_BYTES_OF_(X) \
    X(u4b8, MOEK_ELEMENT_U4B8, 0, 0) X(u4b8_zero, MOEK_ELEMENT_U4B8, 1, 0) X(e2m1, MOEK_ELEMENT_E2M1, 0, 0) \
    X(s8, MOEK_ELEMENT_S8, 0, 1)
#define MOEK_BYTES_(name, element, zeros, exact) \
    MOEK_V_FN void MOEK_V_(bytes_##name)(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b, \
                                         int rows) \
    { \
        int p; \
        if (MOEK_V_LANES == MOEK_PANEL && panels == 2 && rows > 4) \
            MOEK_V_(bytes_of)(sum, w, MOEK_V_LANES == MOEK_PANEL ? 2 : 1, x, b, rows, element, zeros, exact); \
        else for (p = 0; p < panels; p++) { \
            float *const to = sum + MOEK_PANEL * p; \
            if (rows == 1) MOEK_V_(bytes_of)(to, w + p, 1, x, b, 1, element, zeros, exact); \
            else MOEK_V_(bytes_of)(to, w + p, 1, x, b, rows, element, zeros, exact); \
        } \
    }
MOEK_BYTES_OF_(MOEK_BYTES_)
#undef MOEK_BYTES_
#define MOEK_BYTES_CASE_(name, of, zeros, is) \
    if (w->element == (of) && !w->zero == !(zeros) && w->exact == (is)) \
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
