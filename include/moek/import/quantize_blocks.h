/* moek/import/quantize_blocks.h -- plain weights to the blocks of GGUF files that have one scale for all their columns,
 * and maybe a minimum: q4_0, q4_1, q5_0, q5_1, q8_0, with the bits of the gguf package.  For host and device. */
#ifndef MOEK_IMPORT_QUANTIZE_BLOCKS_H
#define MOEK_IMPORT_QUANTIZE_BLOCKS_H
#include "quantize.h"

enum { MOEK_QUANTIZED_ = 32 };                         /* columns of such a block */
typedef struct moek_plain_blocks_ {
    const unsigned char *from;                         /* [rows][across * MOEK_QUANTIZED_] */
    int dtype, bits, middle;                           /* of from; of a code; the code of 0, with a minimum: 0 */
    size_t rows, across;                               /* across: blocks of a row */
    unsigned char *w;
    size_t pitch;                                      /* bytes from a row of w to the next */
    moek_block block;
} moek_plain_blocks_;

/* The code of 0 in elements of such blocks; -1: nobody quantizes to them by a formula. */
static int moek_plain_middle_(int element)
{
    switch (element) {
    case MOEK_ELEMENT_U4B8:  return 8;
    case MOEK_ELEMENT_U5B16: return 16;
    case MOEK_ELEMENT_S8: case MOEK_ELEMENT_U4: case MOEK_ELEMENT_U5: return 0;
    default: return -1;
    }
}
/* NULL: none, or blocks of another kind. */
static const moek_block *moek_plain_block_of_(const moek_format *f)
{
    const moek_block *const b = f->only_blocks ? moek_block_of(f->file_type) : NULL;
    return b && b->columns == MOEK_QUANTIZED_ && b->scale.of.columns == b->columns && !b->scale.top.type &&
           b->sign >= 0 && moek_plain_middle_(f->w) >= 0 ? b : NULL;
}

MOEK_FN uint16_t *moek_plain_f16_(const moek_block_scale *s, unsigned char *at)
{
    return (uint16_t *)(void *)(at + s->plane[0].at);
}
/* 1 / d, which the codes are multiples of; 0 where there is none: such a d is 0 as an f16. */
MOEK_FN float moek_plain_inverse_(float d)
{
    const float by = d != 0 ? 1.0f / d : 0.0f;
    return moek_is_finite_(by) ? by : 0.0f;
}
/* Rounded as the package rounds: each product once, to f32, and no sum into a product (an FMA would have other bits).
 * With a middle the sum is of f64, and the whole is cut to an f32.  Above a minimum, trunc(f32(p + 0.5f)) is
 * trunc(p + 0.5) but for the largest f32 below a half, which 2^-25 lifts over it. */
MOEK_FN int moek_plain_block_code_(float w, float by, int middle, int minimum)
{
    const float p = w * by;
    const int q = (int)((double)(p < 0 ? -p : p) + 0.5);
    if (minimum) return (int)((double)p + 0.500000029802322387695312);
    return middle ? (int)(float)((double)w * (double)by + (double)middle + 0.5) : p < 0 ? -q : q;
}
/* What the codes of a block are found by. */
typedef struct moek_plain_found_ { const unsigned char *from; float low, by; int most; } moek_plain_found_;
MOEK_FN int moek_plain_at_(const moek_plain_blocks_ *a, const moek_plain_found_ *g, int i)
{
    const float w = moek_plain_load_(g->from, i, a->dtype);
    const int code = moek_plain_block_code_(a->block.sign ? w - g->low : w, g->by, a->middle, a->block.sign);
    return code > g->most ? g->most : code;
}
/* The bits of the codes from `shift` on.  (Without an array of codes, which a GPU would keep in memory.) */
MOEK_FN void moek_plain_plane_(const moek_plain_blocks_ *a, const moek_plain_found_ *g, const moek_plane *p, int shift,
                               unsigned char *block)
{
    const int mask = (1 << p->bits) - 1;
    int unit, run, i;
    for (unit = 0; unit < MOEK_QUANTIZED_; unit += p->unit)
        for (run = 0; run < p->unit; run += p->run) {
            unsigned char *const to = block + p->at + unit * p->bits / 8 + run / p->run * p->step;
            const int left = p->shift + run / p->run * p->by;
            for (i = 0; i < p->run; i++)
                to[i] = (unsigned char)(to[i] | (moek_plain_at_(a, g, unit + run + i) >> shift & mask) << left);
        }
}
MOEK_FN void moek_plain_block_(const moek_plain_blocks_ *a, size_t row, size_t number)
{
    const moek_block *const b = &a->block;
    const int integers = a->bits == 8;
    unsigned char *const to = a->w + row * a->pitch + number * (size_t)b->bytes;
    moek_plain_found_ g;
    float largest, size = 0, low, high, d;
    int i, shift, bad = 0;
    g.from = a->from + (row * a->across + number) * MOEK_QUANTIZED_ * (a->dtype == MOEK_DTYPE_F32 ? 4 : 2);
    g.most = integers ? 127 : (1 << a->bits) - 1;
    largest = low = high = moek_plain_load_(g.from, 0, a->dtype);      /* (-0 has its sign, too) */
    for (i = 0; i < MOEK_QUANTIZED_; i++) {
        const float w = moek_plain_load_(g.from, i, a->dtype), of = w < 0 ? -w : w;
        bad |= !moek_is_finite_(w);
        if (of > size) size = of, largest = w;         /* of two, the first */
        low = w < low ? w : low;
        high = w > high ? w : high;
    }
    d = b->sign ? (high - low) / (float)g.most : integers ? size / 127.0f : largest / (float)-a->middle;
    bad |= !moek_is_finite_(d);
    g.low = low;
    g.by = bad ? 0.0f : moek_plain_inverse_(d);
    for (i = 0; i < b->bytes; i++) to[i] = 0;
    *moek_plain_f16_(&b->scale, to) = bad ? 0x7e00 : moek_to_t_(d, MOEK_DTYPE_FP16);
    if (b->sign) *moek_plain_f16_(&b->min, to) = bad ? 0x7e00 : moek_to_t_(low, MOEK_DTYPE_FP16);
    for (i = shift = 0; i < b->planes && !bad; shift += b->plane[i++].bits)
        moek_plain_plane_(a, &g, &b->plane[i], shift, to);
}
static void moek_plain_blocks_host_(const void *job, size_t begin, size_t end, uint64_t *n)
{
    const moek_plain_blocks_ *const a = (const moek_plain_blocks_ *)job;
    (void)n;
    for (; begin < end; begin++) moek_plain_block_(a, begin / a->across, begin % a->across);
}
#if MOEK_HAVE_CUDA_
/* A thread a block. */
static __global__ void __launch_bounds__(MOEK_IMPORT_THREADS_) moek_plain_blocks_k_(const moek_plain_blocks_ a)
{
    const size_t i = (size_t)blockIdx.x * MOEK_IMPORT_THREADS_ + threadIdx.x;
    if (i < a.rows * a.across) moek_plain_block_(&a, i / a.across, i % a.across);
}
#endif
static moek_status moek_plain_blocks_run_(int arch, const moek_plain_blocks_ *a, moek_stream stream)
{
    const size_t blocks = a->rows * a->across;
#if MOEK_HAVE_CUDA_
    if (arch) {
        const moek_plain_blocks_ args = *a;
        const size_t grid = (blocks + MOEK_IMPORT_THREADS_ - 1) / MOEK_IMPORT_THREADS_;
        return MOEK_LAUNCH_(moek_plain_blocks_k_, (unsigned)grid, MOEK_IMPORT_THREADS_, 0, stream, args);
    }
#endif
    (void)arch;
    moek_pieces_(stream, moek_plain_blocks_host_, a, blocks, a->across, blocks * MOEK_QUANTIZED_, NULL);
    return MOEK_OK;
}
#endif
