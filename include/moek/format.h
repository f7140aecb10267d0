/* moek/format.h -- what a weight-and-activation format is: the facts of kernels.toml (formats), for host code and for
 * engines, which size their arrays by them.
 *
 *     const moek_format *f = moek_format_of(MOEK_FP8B128);
 *     bytes of w_down        = local_experts * hidden * moek_element_bytes(f->w, inter)
 *     bytes of w_down_scale  = local_experts * moek_scale_bytes(&f->w_scale, hidden, inter)
 *
 * (Of shards with inter_offset or up_scales: as many scales as moek.h says at moek_weights.) */
#ifndef MOEK_FORMAT_H
#define MOEK_FORMAT_H
#include <stddef.h>
#include "enums.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {                                                /* MOEK_ELEMENT_BF16, ...: of weights and activations */
    MOEK_ELEMENT_NONE,
#define MOEK_ELEMENT_(name, bits) MOEK_ELEMENT_##name,
    MOEK_EACH_ELEMENT(MOEK_ELEMENT_)
#undef MOEK_ELEMENT_
    MOEK_ELEMENT_COUNT_
};
enum {                                                /* MOEK_SCALE_TYPE_F32, ... */
    MOEK_SCALE_TYPE_NONE,
#define MOEK_SCALE_TYPE_(name, bits) MOEK_SCALE_TYPE_##name,
    MOEK_EACH_SCALE_TYPE(MOEK_SCALE_TYPE_)
#undef MOEK_SCALE_TYPE_
    MOEK_SCALE_TYPE_COUNT_
};

enum { MOEK_MAX_BLOCKS = 4 };

/* A scale for `rows` rows and `columns` columns of an expert's matrix, or of x; 0: for all of them.                  */
typedef struct moek_scale_shape { int type, rows, columns; } moek_scale_shape;

typedef struct moek_format {
    const char *name;                                 /* "fp8b128"                                                    */
    const char *w_about, *x_about;                    /* weights and activations, for people                          */
    int number;                                       /* MOEK_FP8B128                                                 */
    int w, x;                                         /* MOEK_ELEMENT_*                                               */
    int w_bits, x_bits;                               /* of an element, 4 to 16.  x_bits 16: activations stay T       */
    moek_scale_shape w_scale, x_scale;
    int static_x;                                     /* x and h may have a scale each that is known beforehand; where
                                                         x_scale is not one for all: they have, on top of it          */
    int ue8m0;                                        /* config.ue8m0: scales of x rounded up to powers of two        */
    int second;                                       /* weights have an f32 more an expert (w_up_global_scale, ...)  */
    int zero;                                         /* weights may have zero points (w_up_zero, ...)                */
    int granule;                                      /* hidden and inter are multiples of it                         */
    int blocks, block[MOEK_MAX_BLOCKS];               /* > 0: w_scale.columns is one of these, config.block           */
    int expands;                                      /* MOEK_FP8B128, ...: what weights may become in a run of many
                                                         rows (config.expand_weights); 0: nothing                     */
    int tiled;                                        /* MOEK_READS_LINES, _FRAGMENTS: how MOEK_WEIGHTS_TILED lies    */
} moek_format;

const moek_format *moek_format_of(int quant);         /* NULL: there is none of this number                           */
/* 1 if both formats read the same weights: elements, scales (type, rows, columns), second scales, zero points.  They
 * then differ in x alone, and arrays that are bound for one serve the other: mxfp4_a16 and mxfp4_a8.  (Tiled
 * weights in fragments are repacked for one format, and serve that one alone.)  Scales of another type are other
 * weights: int4_a16 has scales in T, int4_a8 in f32.  1 for a format and itself; 0 if a number is no format's.
 *  moek_choose_pair (moek.h) takes the one that serves best here.                                          */
int moek_same_weights(int a, int b);
moek_scale_shape moek_weight_scale(const moek_format *f, int block);                  /* w_scale, with config.block   */
size_t moek_element_bytes(int element, size_t columns);                               /* of a row, without padding    */
size_t moek_scale_count(const moek_scale_shape *of, size_t rows, size_t columns);     /* of a matrix; 0: it has none  */
size_t moek_scale_bytes(const moek_scale_shape *of, size_t rows, size_t columns);

#ifdef __cplusplus
}
#endif
#endif
