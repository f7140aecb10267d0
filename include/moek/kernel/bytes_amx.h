/* moek/kernel/bytes_amx.h -- bytes.h with AMX, whose tiles of 16 rows by 64 bytes multiply 16 rows of x by a panel
 * (moek/kernel/isa.h).  Fewer rows than 16 go by AVX-512.
 *
 * A vector of a panel, 4 columns of 16 rows of w, is a row of the tile B as it lies.  Both sides have signs, so no
 * offset is taken from codes, and moek_bytes_x_.start is not looked at.
 *   s8       64 columns a product; sums of 32 rows of x and two panels stay in four tiles, for all columns of a task
 *   4 bits   32 columns a product, whose sums become f32 at once: a panel is unpacked to s8, 16 blocks ahead, and sums
 *            of 16 rows stay in registers
 * Compilers do not know what loads of tiles read: MOEK_AMX_FENCE_ stands between stores and them.                    */
#include "bytes_avx512.h"
#ifndef MOEK_BYTES_AMX_H
#define MOEK_BYTES_AMX_H
#if MOEK_HAVE_AMX_

enum { MOEK_AMX_BLOCKS = 16 };                         /* of a panel, unpacked at a time */
#define MOEK_AMX_FENCE_ __asm__ volatile ("" ::: "memory")

/* What ldtilecfg reads: palette 1, bytes of a row and rows of each tile. */
typedef struct moek_amx_config_ {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} moek_amx_config_;
/* Tiles 0 to 3: sums.  4 and 5: x.  6 and 7: w.  For whole rows of s8, and for blocks of 32 columns. */
MOEK_AMX_FN void moek_amx_begin_(int exact)
{
    static const moek_amx_config_ wide = {
        1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 }
    }, narrow = { 1, 0, { 0 }, { 64, 64, 64, 64, 32, 32, 64, 64 }, { 16, 16, 16, 16, 16, 16, 8, 8 } };
    _tile_loadconfig(exact ? &wide : &narrow);
}
MOEK_AMX_FN void moek_amx_end_(void) { _tile_release(); }

/* As moek_byte_set_ says; of two blocks in one step of `step` twice: no start. */
MOEK_AMX_FN void moek_amx_place_(int8_t *to, size_t step, int32_t *start, int rows, const int8_t *x, int blocks,
                                 int offset, int order)
{
    if (order != MOEK_BYTES_PAIRS) {
        moek_bytes_place_avx2_(to, step, start, rows, x, blocks, offset, order);
        return;
    }
    for (; blocks > 1; blocks -= 2, to += 2 * step, x += 64) _mm512_storeu_si512(to, _mm512_loadu_si512(x));
    if (blocks) _mm256_storeu_si256((__m256i *)(void *)to, _mm256_loadu_si256((const __m256i *)(const void *)x));
}
/* Whole rows of s8: 64 columns from x and w, of 16 or 32 rows of x (tall) and one or two panels (broad). */
MOEK_AMX_INLINE void moek_amx_step_(const int8_t *x, const uint8_t *w, const uint8_t *w1, const int tall,
                                    const int broad)
{
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(0, 4, 6);
    if (broad) {
        _tile_loadd(7, w1, 64);
        _tile_dpbssd(1, 4, 7);
    }
    if (tall) {
        _tile_loadd(5, x + 1024, 64);
        _tile_dpbssd(2, 5, 6);
        if (broad) _tile_dpbssd(3, 5, 7);
    }
}
/* (first: these rows of x are the first ones, for which w comes from memory.) */
MOEK_AMX_INLINE void moek_amx_whole_(float *sum, const moek_tile_w_ *w, const int8_t *x, int rows, int first,
                                     const int tall, const int broad)
{
    enum { STEP = (int)MOEK_STRIP * (int)sizeof(float) };
    const uint8_t *at = w->codes, *at1 = w[broad].codes;
    float *const below = sum + 16 * MOEK_STRIP;
    uint8_t last[2][1024];
    int b, i;
    _tile_loadd(0, sum, STEP);
    if (broad) _tile_loadd(1, sum + MOEK_PANEL, STEP);
    if (tall) _tile_loadd(2, below, STEP);
    if (tall && broad) _tile_loadd(3, below + MOEK_PANEL, STEP);
    for (b = 0; b + 1 < w->blocks; b += 2, at += 1024, at1 += 1024, x += 64 * rows) {
        for (i = 0; i < 1024 && first; i += 64) {
            MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
            if (broad) MOEK_PREFETCH((uintptr_t)at1 + MOEK_TILE_AHEAD + (uintptr_t)i);
        }
        moek_amx_step_(x, at, at1, tall, broad);
    }
    if (b < w->blocks) {                               /* half a step: zeros behind it */
        memset(last, 0, sizeof last);
        memcpy(last[0], at, 512);
        memcpy(last[1], at1, 512);
        MOEK_AMX_FENCE_;
        moek_amx_step_(x, last[0], last[1], tall, broad);
    }
    _tile_stored(0, sum, STEP);
    if (broad) _tile_stored(1, sum + MOEK_PANEL, STEP);
    if (tall) _tile_stored(2, below, STEP);
    if (tall && broad) _tile_stored(3, below + MOEK_PANEL, STEP);
}
MOEK_AMX_FN void moek_amx_exact_(float *sum, const moek_tile_w_ *w, int panels, const int8_t *x, int rows)
{
    int r;
    for (r = 0; r < rows; r += 32, sum += 32 * MOEK_STRIP, x += 32 * 64) {
        if (r + 16 < rows && panels == 2) moek_amx_whole_(sum, w, x, rows, !r, 1, 1);
        else if (panels == 2) moek_amx_whole_(sum, w, x, rows, !r, 0, 1);
        else if (r + 16 < rows) moek_amx_whole_(sum, w, x, rows, !r, 1, 0);
        else moek_amx_whole_(sum, w, x, rows, !r, 0, 0);
    }
}

/* ---- codes of 4 bits --------------------------------------------------------------------------------------------- */

/* Blocks of a panel from `block` on, as signed bytes, and their scales. */
MOEK_AMX_INLINE void moek_amx_unpack_(int8_t *to, float *scale, const moek_tile_w_ *w, int block, int blocks,
                                      const int element, const int zeros)
{
    const __m512i less = _mm512_set1_epi8(zeros ? MOEK_BYTES_ZERO : element == MOEK_ELEMENT_U4B8 ? 8 : 12);
    int b, i;
    for (b = block; b < block + blocks; b++, to += 512, scale += MOEK_PANEL) {
        const size_t g = (size_t)((w->first + 32 * b) >> w->log), scales = g * MOEK_PANEL * (size_t)w->scale_bytes;
        const uint8_t *const at = w->codes + 256 * (size_t)b;
        __m512i codes[8];
        for (i = 0; i < 256; i += 64) MOEK_PREFETCH((uintptr_t)at + MOEK_TILE_AHEAD + (uintptr_t)i);
        MOEK_PREFETCH((uintptr_t)w->scale + (uintptr_t)scales + MOEK_TILE_AHEAD_SCALES);
        moek_tile_bytes_avx512_(codes, at, element, zeros ? w->zero + 8 * g : NULL, 0);
#define MOEK_SIGNED_(v) _mm512_store_si512(to + 64 * (v), _mm512_sub_epi8(codes[v], less));
        MOEK_SIGNED_(0) MOEK_SIGNED_(1) MOEK_SIGNED_(2) MOEK_SIGNED_(3)
        MOEK_SIGNED_(4) MOEK_SIGNED_(5) MOEK_SIGNED_(6) MOEK_SIGNED_(7)
#undef MOEK_SIGNED_
        _mm512_store_ps(scale, moek_tile_scales_avx512_(w, g, 0));
    }
}
#define MOEK_AMX_ROWS_(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
/* d[16][16] = a block of 16 rows of x times one of w, by tile `of`. */
#define MOEK_AMX_BLOCK_(of, d, x, w) do { \
        _tile_zero(of); \
        _tile_loadd(4, x, 32); \
        _tile_loadd(6, w, 64); \
        _tile_dpbssd(of, 4, 6); \
        _tile_stored(of, d, 64); \
    } while (0)
/* The sums of 16 rows of x and a panel: unpacked blocks, whose x begins in the sums' rows, `rows` from block to block.
 */
MOEK_AMX_FN void moek_amx_blocks_(float *sum, const int8_t *w, const float *scale, const int8_t *x, const float *s,
                                  int blocks, int rows)
{
    MOEK_LINE_ALIGNED_ int32_t d[2][256];
    int b;
#define MOEK_SUM_(i) __m512 f##i = _mm512_loadu_ps(sum + (i) * MOEK_STRIP);
    MOEK_AMX_ROWS_(MOEK_SUM_)
#undef MOEK_SUM_
#define MOEK_ADD_(i) f##i = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(from + 16 * (i))), \
                                                          _mm512_set1_ps(s[i])), of_w, f##i);
    for (b = 0; b < blocks; b++, x += 32 * rows, s += rows, w += 512, scale += MOEK_PANEL) {
        const int32_t *const from = d[b % 2];
        const __m512 of_w = _mm512_load_ps(scale);
        if (b == 0) MOEK_AMX_BLOCK_(0, d[0], x, w);
        if (b + 1 < blocks && b % 2) MOEK_AMX_BLOCK_(0, d[0], x + 32 * rows, w + 512);
        if (b + 1 < blocks && b % 2 == 0) MOEK_AMX_BLOCK_(1, d[1], x + 32 * rows, w + 512);
        MOEK_AMX_ROWS_(MOEK_ADD_)
    }
#undef MOEK_ADD_
#define MOEK_SUM_(i) _mm512_storeu_ps(sum + (i) * MOEK_STRIP, f##i);
    MOEK_AMX_ROWS_(MOEK_SUM_)
#undef MOEK_SUM_
}
MOEK_AMX_INLINE void moek_amx_panel_(float *sum, const moek_tile_w_ *w, const moek_bytes_x_ *x, int block0, int rows,
                                     const int element, const int zeros)
{
    MOEK_LINE_ALIGNED_ int8_t codes[(int)MOEK_AMX_BLOCKS * 512];
    MOEK_LINE_ALIGNED_ float scale[(int)MOEK_AMX_BLOCKS * (int)MOEK_PANEL];
    int b, r;
    for (b = 0; b < w->blocks; b += MOEK_AMX_BLOCKS) {
        const int blocks = w->blocks - b < MOEK_AMX_BLOCKS ? w->blocks - b : (int)MOEK_AMX_BLOCKS;
        moek_amx_unpack_(codes, scale, w, b, blocks, element, zeros);
        MOEK_AMX_FENCE_;
        for (r = 0; r < rows; r += 16) {
            const int at = (block0 + b) * rows + r;
            moek_amx_blocks_(sum + r * MOEK_STRIP, codes, scale, x->code + 32 * at, x->s + at, blocks, rows);
        }
    }
}
#define MOEK_AMX_OF_(name, element, zeros) \
    MOEK_AMX_FN void moek_amx_##name##_(float *sum, const moek_tile_w_ *w, const moek_bytes_x_ *x, int b, int rows) \
    { \
        moek_amx_panel_(sum, w, x, b, rows, element, zeros); \
    }
MOEK_AMX_OF_(u4b8, MOEK_ELEMENT_U4B8, 0)
MOEK_AMX_OF_(u4b8_zero, MOEK_ELEMENT_U4B8, 1)
MOEK_AMX_OF_(e2m1, MOEK_ELEMENT_E2M1, 0)
#undef MOEK_AMX_OF_
#undef MOEK_AMX_BLOCK_
#undef MOEK_AMX_ROWS_

MOEK_AMX_FN void moek_bytes_run_amx_(float *sum, const moek_tile_w_ *w, int panels, const moek_bytes_x_ *x, int b,
                                     int rows)
{
    int p;
    if (rows < 16) moek_tile_bytes_run_avx512_(sum, w, panels, x, b, rows);
    else if (w->exact) moek_amx_exact_(sum, w, panels, x->code + 32 * b * rows, rows);
    else for (p = 0; p < panels; p++, w++, sum += MOEK_PANEL) {
        if (w->element == MOEK_ELEMENT_E2M1) moek_amx_e2m1_(sum, w, x, b, rows);
        else if (w->zero) moek_amx_u4b8_zero_(sum, w, x, b, rows);
        else moek_amx_u4b8_(sum, w, x, b, rows);
    }
}
static MOEK_UNUSED const moek_byte_set_ moek_byte_set_amx_ = {
    &moek_panel_set_avx512_, moek_amx_place_, moek_bytes_run_amx_, 12, 128, 0, 0, 16, moek_amx_begin_,
    moek_amx_end_
};
#endif
#endif
