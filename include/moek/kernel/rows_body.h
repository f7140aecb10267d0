/* moek/kernel/rows_body.h -- whole rows of gemm_cpu.h (moek_cpu_rows_) for a set of instructions: included by each,
 * with MOEK_V_(x), the name of x for the set, MOEK_V_FN and MOEK_V_INLINE, what its functions begin with, and
 *   MOEK_V_(row_of)                        a row of w times 1, 2 or 4 rows of x, with scales of 128 columns or without
 *   MOEK_V_X_HALVES, MOEK_V_X_QUARTERS     pieces of x in the order of weights of 16 bits, and of 8 */

/* Rows of x by fours, twos and ones. */
#define MOEK_ROW_(name, ELEMENT) \
    MOEK_V_INLINE void MOEK_V_(some_##name)(float *sum, const void *w, int n, float unit, moek_dots_ a, \
                                            const int scaled) \
    { \
        int r, k; \
        for (r = 0; r < a.rows; r += k) { \
            moek_dots_ b = a; \
            b.x += (size_t)r * a.x_row; \
            if (a.x_scale) b.x_scale += (size_t)r * a.x_scale_row; \
            k = a.rows - r >= 4 ? 4 : a.rows - r >= 2 ? 2 : 1; \
            if (k == 4) MOEK_V_(row_of)(sum + r, w, n, unit, b, 4, scaled, ELEMENT); \
            else if (k == 2) MOEK_V_(row_of)(sum + r, w, n, unit, b, 2, scaled, ELEMENT); \
            else MOEK_V_(row_of)(sum + r, w, n, unit, b, 1, scaled, ELEMENT); \
        } \
    } \
    MOEK_V_FN void MOEK_V_(row_##name)(float *sum, const void *w, int n, float unit, moek_dots_ a) \
    { \
        if ((ELEMENT) == MOEK_ELEMENT_E4M3 && a.scale) MOEK_V_(some_##name)(sum, w, n, unit, a, 1); \
        else MOEK_V_(some_##name)(sum, w, n, unit, a, 0); \
    }
MOEK_ROW_(bf16, MOEK_ELEMENT_BF16)
MOEK_ROW_(fp16, MOEK_ELEMENT_FP16)
MOEK_ROW_(e4m3, MOEK_ELEMENT_E4M3)
#undef MOEK_ROW_
static MOEK_UNUSED const moek_cpu_rows_ MOEK_V_(rows_bf16) = { MOEK_V_(row_bf16), MOEK_V_X_HALVES };
static MOEK_UNUSED const moek_cpu_rows_ MOEK_V_(rows_fp16) = { MOEK_V_(row_fp16), MOEK_V_X_HALVES };
static MOEK_UNUSED const moek_cpu_rows_ MOEK_V_(rows_e4m3) = { MOEK_V_(row_e4m3), MOEK_V_X_QUARTERS };

/* What a set has given is spent. */
#undef MOEK_V_
#undef MOEK_V_FN
#undef MOEK_V_INLINE
#undef MOEK_V_X_HALVES
#undef MOEK_V_X_QUARTERS
