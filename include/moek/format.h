/* moek/format.h -- what a weight-and-activation format is: the facts of kernels.toml (formats), for host code and for
 * engines, which size their arrays by them.
 *
 *     const moek_format *f = moek_format_of(MOEK_FP8B128);
 *     bytes of w_down        = local_experts * hidden * moek_weight_bytes(f, weight_layout, inter)
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

enum { MOEK_MAX_BLOCKS = 4, MOEK_MAX_PLANES = 2 };

/* A scale for `rows` rows and `columns` columns of an expert's matrix, or of x; 0: for all of them.                  */
typedef struct moek_scale_shape { int type, rows, columns; } moek_scale_shape;

typedef struct moek_format {
    const char *name;                                 /* "fp8b128"                                                    */
    const char *w_about, *x_about;                    /* weights and activations, for people                          */
    int number;                                       /* MOEK_FP8B128                                                 */
    int w, x;                                         /* MOEK_ELEMENT_*                                               */
    int w_bits, x_bits;                               /* of an element, 2 to 16.  x_bits 16: activations stay T       */
    moek_scale_shape w_scale, x_scale;
    int static_x;                                     /* x and h may have a scale each that is known beforehand; where
                                                         x_scale is not one for all: they have, on top of it          */
    int ue8m0;                                        /* config.ue8m0: scales of x rounded up to powers of two        */
    int global_scale;                                 /* weights have an f32 more an expert (w_up_global_scale, ...)  */
    int zero;                                         /* weights may have zero points (w_up_zero, ...)                */
    int granule;                                      /* hidden and inter are multiples of it                         */
    int blocks, block[MOEK_MAX_BLOCKS];               /* > 0: w_scale.columns is one of these, config.block           */
    int expands;                                      /* MOEK_FP8B128, ...: what weights may become in a run of many
                                                         rows (config.expand_weights); 0: nothing                     */
    int tiled;                                        /* MOEK_READS_LINES, _FRAGMENTS: how MOEK_WEIGHTS_TILED lies    */
    int file_type;                                    /* ggml's number of the blocks that GGUF files have of such
                                                         weights, and kernels read (moek_block_of); 0: none           */
    int file_bytes, file_columns;                     /* of such a block: rows are multiples of file_columns          */
    int only_blocks;                                  /* 1: weights come in such blocks alone, with all scales in them:
                                                         weight_layout 0 is MOEK_WEIGHTS_BLOCKS then                  */
} moek_format;

const moek_format *moek_format_of(int quant);         /* NULL: there is none of this number                           */
/* 1 if both formats read the same weights: elements, scales (type, rows, columns), global scales, zero points.  They
 * then differ in x alone, and arrays that are bound for one serve the other: mxfp4_a16 and mxfp4_a8.  (Tiled
 * weights in fragments are repacked for one format, and serve that one alone.)  Scales of another type are other
 * weights: int4_a16 has scales in T, int4_a8 in f32.  Blocks of a file are not asked for where there are arrays: those
 * of mxfp4 are read by mxfp4_a16 alone.  1 for a format and itself; 0 if a number is no format's.
 *  moek_choose_format (moek.h) takes the one that serves best here.                                          */
int moek_same_weights(int a, int b);
moek_scale_shape moek_weight_scale(const moek_format *f, int block);                  /* w_scale, with config.block   */
size_t moek_element_bytes(int element, size_t columns);                               /* of a row, without padding    */
/* Of a row of weights, as config.weight_layout says (MOEK_WEIGHTS_*).                                                */
size_t moek_weight_bytes(const moek_format *f, int weight_layout, size_t columns);
size_t moek_scale_count(const moek_scale_shape *of, size_t rows, size_t columns);     /* of a matrix; 0: it has none  */
size_t moek_scale_bytes(const moek_scale_shape *of, size_t rows, size_t columns);

/* Blocks of a GGUF file: the codes and the scales of some columns of a row, side by side.  With codes of the format's
 * element, as numbers,
 *     w = code * scale * super + sign * min * min_super       scale, min: of the group of columns that c is in
 * The products are exact in f32, so that the sum rounds once.
 *
 * A plane is some bits of each of a list of numbers (of codes, or of scales).  Number n lies in unit n / unit, which is
 * unit * bits / 8 bytes long, from byte `at` of the block on; with i = n % unit in byte i / run * step + i % run of the
 * unit, from bit shift + i / run * by on.  Little-endian.  The next plane has the next bits.                         */
typedef struct moek_plane { int at, bits, unit, run, step, shift, by; } moek_plane;
typedef struct moek_block_scale {
    moek_scale_shape of, top;                         /* top: an f16 for the block, which multiplies; type 0: none    */
    int planes, top_at;                               /* top_at: its byte                                             */
    moek_plane plane[MOEK_MAX_PLANES];
} moek_block_scale;
typedef struct moek_block {
    const char *name;                                 /* as ggml has it: "q4_K"                                       */
    int type, bytes, columns;                         /* its number there; of a block                                 */
    int instead;                                      /* the type that files hold where rows are no multiples of
                                                         columns                                                      */
    int planes, sign;                                 /* sign: of the minimums, -1 or 1; 0: there are none            */
    moek_plane plane[MOEK_MAX_PLANES];
    moek_block_scale scale, min;
} moek_block;
const moek_block *moek_block_of(int file_type);       /* NULL: none that kernels read                                 */
/* The format with activations in T whose weights are of a file's type (also F16 and BF16); NULL: none.               */
const moek_format *moek_format_of_file(int file_type);

#ifdef __cplusplus
}
#endif
#endif
