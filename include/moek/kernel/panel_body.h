/* moek/kernel/panel_body.h -- the loops of panel.h for a set of instructions: included by each, with MOEK_V_(x), the
 * name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_VF, MOEK_VI     vectors of f32 and of 32 bits;  MOEK_V_LANES  of such a vector
 *   MOEK_V_ROWS          of x at a time: two vectors of sums for each must fit in registers; 6 or 12
 *   MOEK_V_(load, store, words, zero, all, fma, mul, sub)     the operations
 *   MOEK_V_(lift)        a code of each word as f32: moek_lift_ */

MOEK_V_INLINE void MOEK_V_(decode_of)(float *panel, const moek_panel_in_ *in, const int element, const int bits,
                                      const int as_they_come, const int scaled, const int zeros)
{
    const int words = (in->k * bits + 31) / 32;
    int v, h, log = 4;
    while (1 << log < in->group) log++;
    for (v = 0; v < words; v++) {
        const int k = moek_panel_column_(bits, v, 0, as_they_come);
        const int g = (k >> log) * MOEK_PANEL, odd = bits == 4 && !as_they_come ? ((k + 16) >> log) * MOEK_PANEL : g;
        for (h = 0; h < MOEK_PANEL; h += MOEK_V_LANES) {
            const MOEK_VI w = MOEK_V_(words)(in->words + v * MOEK_PANEL + h);
            const MOEK_VF scale0 = scaled ? MOEK_V_(load)(in->scale + g + h) : MOEK_V_(zero)();
            const MOEK_VF scale1 = scaled ? MOEK_V_(load)(in->scale + odd + h) : scale0;
            const MOEK_VF zero0 = zeros ? MOEK_V_(load)(in->zero + g + h) : scale0;
            const MOEK_VF zero1 = zeros ? MOEK_V_(load)(in->zero + odd + h) : scale0;
            float *const to = panel + k * MOEK_WIDE + h;
#define MOEK_CODE_(i) \
            if ((i) < 32 / bits) { \
                const int at = bits == 4 && !as_they_come ? (i) / 2 + (i) % 2 * 16 : (i); \
                MOEK_VF f = MOEK_V_(lift)(w, (i) * bits & 31, element, zeros); \
                if (zeros && element != MOEK_ELEMENT_S8) f = MOEK_V_(sub)(f, (i) % 2 ? zero1 : zero0); \
                if (zeros && element == MOEK_ELEMENT_S8) f = MOEK_V_(fma)(f, scale0, zero0); \
                else if (scaled) f = MOEK_V_(mul)(f, (i) % 2 ? scale1 : scale0); \
                MOEK_V_(store)(to + at * MOEK_WIDE, f); \
            }
            MOEK_CODE_(0) MOEK_CODE_(1) MOEK_CODE_(2) MOEK_CODE_(3)
            MOEK_CODE_(4) MOEK_CODE_(5) MOEK_CODE_(6) MOEK_CODE_(7)
#undef MOEK_CODE_
        }
    }
}
/* X(element, bits, as they come, scaled, with zero points) */
#define MOEK_DECODERS_(X) \
    X(BF16, 16, 0, 0, 0) X(FP16, 16, 0, 0, 0) X(S8, 8, 0, 0, 0) X(S8, 8, 0, 1, 0) X(S8, 8, 0, 1, 1) \
    X(E4M3, 8, 0, 0, 0) X(E4M3, 8, 0, 1, 0) \
    X(E2M1, 4, 0, 1, 0) X(E2M1, 4, 1, 1, 0) \
    X(U4B8, 4, 0, 0, 0) X(U4B8, 4, 0, 1, 0) X(U4B8, 4, 0, 0, 1) X(U4B8, 4, 0, 1, 1) \
    X(U4B8, 4, 1, 0, 0) X(U4B8, 4, 1, 1, 0) X(U4B8, 4, 1, 0, 1) X(U4B8, 4, 1, 1, 1)
#define MOEK_DECODER_(e, bits, as, scaled, zeros) \
    MOEK_V_FN void MOEK_V_(decode_##e##_##as##scaled##zeros)(float *panel, const moek_panel_in_ *in) \
    { \
        MOEK_V_(decode_of)(panel, in, MOEK_ELEMENT_##e, bits, as, scaled, zeros); \
    }
MOEK_DECODERS_(MOEK_DECODER_)
#define MOEK_DECODES_(e, bits, as, with, zeros) \
    if (element == MOEK_ELEMENT_##e && order == (as) && !in->scale == !(with) && !in->zero == !(zeros)) \
        MOEK_V_(decode_##e##_##as##with##zeros)(panel, in);
MOEK_V_FN void MOEK_V_(decode)(float *panel, const moek_panel_in_ *in, int element, int as_they_come)
{
    const int order = as_they_come && (element == MOEK_ELEMENT_E2M1 || element == MOEK_ELEMENT_U4B8);
    MOEK_DECODERS_(MOEK_DECODES_)
}
#undef MOEK_DECODERS_
#undef MOEK_DECODER_
#undef MOEK_DECODES_

/* `rows` rows of x.  (No loop over them, so that sums stay in registers.) */
#define MOEK_EACH_ROW_(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
MOEK_V_INLINE void MOEK_V_(outer_of)(float *sum, const float *panel, const float *x, int k, const int rows, int how,
                                     const float *w_scale, const float *x_scale)
{
    enum { L = MOEK_V_LANES };
    const int chain = how == MOEK_SUM_CHAIN;
    const MOEK_VF none = MOEK_V_(zero)();
    int i;
#define MOEK_BEGIN_(r) \
    MOEK_VF a##r = chain && rows > (r) ? MOEK_V_(load)(sum + (r) * MOEK_STRIP) : none; \
    MOEK_VF b##r = chain && rows > (r) ? MOEK_V_(load)(sum + (r) * MOEK_STRIP + L) : none;
#define MOEK_STEP_(r) \
    if (rows > (r)) { \
        const MOEK_VF in = MOEK_V_(all)(x[(r) * MOEK_PANEL_K + i]); \
        a##r = MOEK_V_(fma)(w0, in, a##r); \
        b##r = MOEK_V_(fma)(w1, in, b##r); \
    }
#define MOEK_END_(r) \
    if (rows > (r)) { \
        float *const to = sum + (r) * MOEK_STRIP; \
        if (how == MOEK_SUM_SCALED) { \
            const MOEK_VF by = MOEK_V_(all)(x_scale[r]); \
            a##r = MOEK_V_(fma)(a##r, MOEK_V_(mul)(MOEK_V_(load)(w_scale), by), MOEK_V_(load)(to)); \
            b##r = MOEK_V_(fma)(b##r, MOEK_V_(mul)(MOEK_V_(load)(w_scale + L), by), MOEK_V_(load)(to + L)); \
        } else if (how == MOEK_SUM_EXACT) { \
            a##r = MOEK_V_(whole)(a##r, to); \
            b##r = MOEK_V_(whole)(b##r, to + L); \
        } \
        MOEK_V_(store)(to, a##r); \
        MOEK_V_(store)(to + L, b##r); \
    }
    MOEK_EACH_ROW_(MOEK_BEGIN_)
    for (i = 0; i < k; i++, panel += MOEK_WIDE) {
        const MOEK_VF w0 = MOEK_V_(load)(panel), w1 = MOEK_V_(load)(panel + L);
        MOEK_EACH_ROW_(MOEK_STEP_)
    }
    MOEK_EACH_ROW_(MOEK_END_)
#undef MOEK_BEGIN_
#undef MOEK_STEP_
#undef MOEK_END_
}
#undef MOEK_EACH_ROW_
#define MOEK_OUTER_(n) \
    MOEK_V_FN void MOEK_V_(outer_##n)(float *sum, const float *panel, const float *x, int k, int how, \
                                      const float *w_scale, const float *x_scale) \
    { \
        MOEK_V_(outer_of)(sum, panel, x, k, n, how, w_scale, x_scale); \
    }
MOEK_OUTER_(1) MOEK_OUTER_(2) MOEK_OUTER_(4) MOEK_OUTER_(6)
#if MOEK_V_ROWS == 12
MOEK_OUTER_(8) MOEK_OUTER_(12)
#endif
MOEK_V_FN void MOEK_V_(outer)(float *sum, const float *panel, const float *x, int k, int rows, int how,
                              const float *w_scale, const float *x_scale)
{
    int r, l, n;
    for (r = 0; r < rows; r += n) {
        const int left = rows - r;
        const float *const from = x + r * MOEK_PANEL_K, *const by = x_scale + r;
        float *const to = sum + r * MOEK_STRIP;
        n = left < 3 ? left : left < 5 || (left < 9 && left > 6 && MOEK_V_ROWS == 6) ? 4 : left < 7 ? 6
          : left < 9 ? 8 : MOEK_V_ROWS;
        for (l = 0; l < MOEK_WIDE; l += 2 * MOEK_V_LANES) {
            const float *const w = panel + l, *const w_by = w_scale + l;
            if (n == 1) MOEK_V_(outer_1)(to + l, w, from, k, how, w_by, by);
            else if (n == 2) MOEK_V_(outer_2)(to + l, w, from, k, how, w_by, by);
            else if (n == 4) MOEK_V_(outer_4)(to + l, w, from, k, how, w_by, by);
#if MOEK_V_ROWS == 12
            else if (n == 8) MOEK_V_(outer_8)(to + l, w, from, k, how, w_by, by);
            else if (n == 12) MOEK_V_(outer_12)(to + l, w, from, k, how, w_by, by);
#endif
            else MOEK_V_(outer_6)(to + l, w, from, k, how, w_by, by);
        }
    }
}
#undef MOEK_OUTER_

/* What a set has given is spent. */
#undef MOEK_VF
#undef MOEK_VI
#undef MOEK_V_LANES
#undef MOEK_V_ROWS
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
