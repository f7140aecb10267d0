/* moek/kernel/quant_avx2.h -- rows of T to s8, with a scale a row or for 32 columns, by AVX2 (moek/kernel/isa.h).  The
 * bits are as in plain C (templates/quant_cpu.h.j2). */
#include "avx2.h"
#include "quant.h"
#ifndef MOEK_QUANT_AVX2_H
#define MOEK_QUANT_AVX2_H
#if MOEK_HAVE_X86_

enum { MOEK_QUANT_TURN = 128 };                        /* columns of a row at a time */

/* n numbers times a factor to s8; NaN to 0. */
MOEK_AVX2_INLINE __m256i moek_eight_s8_avx2_(const float *x, __m256 factor)
{
    const __m256 f = _mm256_mul_ps(_mm256_loadu_ps(x), factor);
    const __m256 there = _mm256_and_ps(f, _mm256_cmp_ps(f, f, _CMP_ORD_Q));
    const __m256 within = _mm256_max_ps(_mm256_min_ps(there, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
    const __m256 shifted = _mm256_add_ps(within, _mm256_set1_ps(12582912.0f));
    return _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
}
MOEK_AVX2_INLINE void moek_quant_s8_avx2_(uint8_t *to, float *x, int n, float by)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 factor = _mm256_set1_ps(by);
    int i, j;
    for (i = 0; i + 32 <= n; i += 32) {
        const __m256i a = _mm256_packs_epi32(moek_eight_s8_avx2_(x + i, factor),
                                             moek_eight_s8_avx2_(x + i + 8, factor));
        const __m256i b = _mm256_packs_epi32(moek_eight_s8_avx2_(x + i + 16, factor),
                                             moek_eight_s8_avx2_(x + i + 24, factor));
        _mm256_storeu_si256((__m256i *)(void *)(to + i),
                            _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
    }
    for (j = i; j < n; j++) x[j] *= by;
    moek_encode_s8_(to + i, x + i, n - i);
}
/* Columns j to j + n - 1 of a source row as f32; returns the bits of their largest |x|. */
MOEK_AVX2_INLINE uint32_t moek_quant_load_avx2_(const moek_quant_args *a, float *x, size_t source, int j, int n)
{
    uint32_t top = 0;
    int i;
    moek_decode_avx2_(x, moek_quant_from_(a, source, j, a->cols), n, a->dtype);
    if (a->row_weight) moek_quant_weigh_(a, x, source, n);
    for (i = 0; i + 32 <= n; i += 32) {
        const uint32_t most = moek_top_avx2_(x + i);
        top = most > top ? most : top;
    }
    return moek_top_(top, x + i, n - i);
}
/* The scale, and what x is multiplied by, of the largest |x|. */
MOEK_CPU_FN float moek_quant_scale_s8_(uint32_t top, float *factor)
{
    const float most = moek_float_(top), all = 127.0f / most;
    *factor = moek_finite_(all) ? all : 0.0f;
    return most / 127.0f;
}
/* The scale of group g of a row with scales of 32 columns. */
MOEK_CPU_FN void moek_quant_put_(const moek_quant_args *a, size_t row, int g, float s)
{
    const size_t groups = ((size_t)a->cols + (size_t)a->group_offset + 31) / 32, stride = (size_t)a->scale_stride;
    ((float *)a->scale)[a->scale_layout == MOEK_SCALE_COLUMN ? (size_t)g * stride + row : row * groups + (size_t)g] = s;
}
MOEK_AVX2_FN void moek_quant_row_avx2_(const moek_quant_args *a, size_t source, size_t row)
{
    uint8_t *const q = (uint8_t *)a->q + row * (size_t)a->cols;
    float x[MOEK_QUANT_TURN], factor;
    uint32_t top = 0;
    int j, n;
    for (j = 0; j < a->cols; j += n) {
        uint32_t most;
        n = a->cols - j < MOEK_QUANT_TURN ? a->cols - j : (int)MOEK_QUANT_TURN;
        most = moek_quant_load_avx2_(a, x, source, j, n);
        top = most > top ? most : top;
    }
    ((float *)a->scale)[row] = moek_quant_scale_s8_(top, &factor);
    for (j = 0; j < a->cols; j += n) {
        n = a->cols - j < MOEK_QUANT_TURN ? a->cols - j : (int)MOEK_QUANT_TURN;
        moek_quant_load_avx2_(a, x, source, j, n);
        moek_quant_s8_avx2_(q + j, x, n, factor);
    }
}
MOEK_AVX2_FN void moek_quant_blocks_avx2_(const moek_quant_args *a, size_t source, size_t row)
{
    uint8_t *const q = (uint8_t *)a->q + row * (size_t)a->cols;
    float x[32], factor, s;
    int j, n;
    for (j = 0; j < a->cols; j += n) {
        const int most = j ? 32 : 32 - a->group_offset % 32;
        n = a->cols - j < most ? a->cols - j : most;
        s = moek_quant_scale_s8_(moek_quant_load_avx2_(a, x, source, j, n), &factor);
        moek_quant_put_(a, row, (j + a->group_offset) / 32, s);
        moek_quant_s8_avx2_(q + j, x, n, factor);
    }
}
#define MOEK_QUANT_TASK_(name) \
    static MOEK_UNUSED void moek_quant_##name##_task_avx2_(const void *data, long long task) \
    { \
        const moek_quant_args *const a = (const moek_quant_args *)data; \
        const int r = (int)task, target = a->target ? a->target[r] : r; \
        if (target >= 0 && moek_quant_live_(a, r)) \
            moek_quant_##name##_avx2_(a, (size_t)(r / a->source_div), (size_t)target); \
    }
MOEK_QUANT_TASK_(row)
MOEK_QUANT_TASK_(blocks)
#undef MOEK_QUANT_TASK_
/* A row of the table; name: row, blocks. */
#define MOEK_QUANT_S8_ROW_(of, name) \
    MOEK_LAUNCHER of(const void *args, moek_stream stream) \
    { \
        if (!args) return moek_lacks_(MOEK_ARCH_AVX2) ? MOEK_E_ARCH : MOEK_OK; \
        return moek_quant_launch_((const moek_quant_args *)args, stream, moek_quant_##name##_task_avx2_); \
    }
#endif
#endif
