/* moek_import.h -- weights of published checkpoints -> the arrays of moek_weights, and back.  Opt-in.
 *
 * Do this, in the ONE file that holds the implementation, behind moek.h (or moek_ep.h):
 *
 *     #define MOEK_IMPLEMENTATION
 *     #include "moek.h"
 *     #include "moek_import.h"
 *
 * and for each matrix (gate, up, down) of each expert, while the file is read:
 *
 *     moek_import_report report = {0};                                  one for as many matrices as you like
 *     moek_import_args a = {0};
 *     a.source = MOEK_FROM_GPTQ_INT4;                                   1. what the checkpoint is
 *     moek_import_place(&config, &weights, MOEK_MATRIX_GATE, e, &a);    2. where the matrix belongs: sizes, pointers
 *     a.their_w = qweight;  a.their_scale = scales;                     3. what was read
 *     a.their_zero = qzeros;  a.report = &report;
 *     moek_import(0, &a, 0);                                            4. one pass, no workspace
 *     ...
 *     moek_import_verdict(&report, text, sizeof text);                  5. in the end: may these weights be run?
 *
 * On a GPU all pointers, the report's too, are of its memory; the call is kernel launches on `stream`.  Then only the
 * matrix that is being imported lies there twice.  On the host the call uses the threads of args.parallel,
 * or OpenMP's, where the implementation is compiled with OpenMP.  Threads may import different matrices at once, with a
 * report each.
 *
 * SOURCES, MOEK_EACH_SOURCE.  Shapes are C arrays; N rows (outputs), K columns (inputs) of the matrix, g the columns of
 * a scale (block; a whole row: one group), G = ceil(K / g), "words": u32, elements from the lowest bits up.
 *
 *     source          their_w                    their_scale      their_zero                 becomes
 *     MXFP4           u8 [N][K / 2]              e8m0 [N][G]      -                          mxfp4_a16
 *     MXFP4_GGUF      blocks [N][K / 32][17]     (in the blocks)  -                          mxfp4_a16
 *     NVFP4_GGUF      blocks [N][K / 64][36]     (in the blocks)  -                          nvfp4_a16
 *     Q4_0_GGUF       blocks [N][K / 32][18]     (in the blocks)  -                          int4_a16, block 32
 *     MXFP8           e4m3 [N][K]                e8m0 [N][G]      -                          mxfp8
 *     NVFP4_MODELOPT  u8 [N][K / 2]              e4m3 [N][G]      -                          nvfp4_a16
 *     NVFP4_PACKED    u8 [N][K / 2]              e4m3 [N][G]      -                          nvfp4_a16
 *     FP8_TENSOR      e4m3 [N][K]                [1]              -                          fp8t
 *     FP8_CHANNEL     e4m3 [N][K]                [N]              -                          fp8c
 *     FP8_BLOCK       e4m3 [N][K]        [ceil(N / 128)][ceil(K / 128)]                      fp8b128
 *     PACKED_INT4     words [N][ceil(K / 8)]     [N][G]           words [ceil(N / 8)][G]     int4_a16
 *     PACKED_INT8     words [N][ceil(K / 4)]     [N]              words [ceil(N / 4)][1]     int8_a16
 *     GPTQ_INT4       words [ceil(K / 8)][N]     [G][N]           words [G][ceil(N / 8)]     int4_a16
 *     GPTQ_INT8       words [ceil(K / 4)][N]     [1][N]           words [1][ceil(N / 4)]     int8_a16
 *     GPTQ_V2_INT4, GPTQ_V2_INT8                 the same, zero points as they are instead of less 1
 *     AWQ             words [K][N / 8]           [G][N]           words [G][N / 8]           int4_a16
 *     INT4_SIGNED     u8 [N][K / 2]              [N][G]           -                          int4_a16
 *     INT4_BYTES      s8 [N][K], -8 .. 7         [N][G]           -                          int4_a16
 *     INT8_BYTES      s8 [N][K]                  [N]              -                          int8_a16
 *     BF16, FP16, F32 [N][K]                     -                -                          any (quant), QUANTIZE
 *
 * MXFP4: gpt-oss, DeepSeek-V4, compressed-tensors, ModelOpt.  Scales are the file's bytes: no cast to a number type.
 * MXFP4_GGUF: a block is a scale, then 16 bytes; byte j has element j in its low half and element j + 16 in its high.
 * Q4_0_GGUF: the same with a scale in fp16, so that a layer in fp16 keeps the scales, and one in bf16 rounds them.
 * NVFP4_GGUF: a block is 4 scales, then 8 bytes for each; byte j has element j in its low half, j + 8 in its high.
 * NVFP4: their_global is f32 [1], which multiplies (MODELOPT: weight_scale_2; GGUF: the tensor .scale, or 1) or divides
 * (PACKED, compressed-tensors: weight_global_scale).
 * FP8_*: scales multiply, also where they are called weight_scale_inv.  FP8_TENSOR becomes any fp8 format with f32
 * scales: each of them is the tensor's.  fp8t has one scale for gate and up, unless they lie apart: import gate first;
 * the report counts in scales_separate where the scale of up is another one, and the verdict refuses that.
 * PACKED_*: compressed-tensors pack-quantized; its symmetric int4 is moek's bytes.  INT4_SIGNED: two elements a byte,
 * two's complement, low half first.  INT4_BYTES, INT8_BYTES: an element a byte, as compressed-tensors stores integer
 * weights of quantized activations (naive-quantized, int-quantized).
 * GPTQ, AWQ: their_zero may be NULL, for weights that are known to be symmetric.  AWQ: the order "gemm", in which bits
 * 4 n of a word hold element 0, 2, 4, 6, 1, 3, 5, 7.
 * "becomes" says what is written by default.  A format of the same elements (quant) has the same, or, int4_a8, scales
 * of another type: f32, which hold bf16 and fp16.
 * Scales of integers may be negative; the report counts them.  Scales of other formats may not.
 * Formats without zero points, and `zero` NULL: zero points must be the middle of the codes (8 or 128); the report
 * counts others as lost, and the verdict refuses them.  `zero` given and their_zero NULL: zero points become 8.
 *
 * SHAPES.  Say what the file says of each array (w_tensor, scale_tensor, zero_tensor, global_tensor), and a call whose
 * arrays are not in the table is refused with a sentence: another group size, a transposed matrix, a byte an
 * element where two are packed.  Sizes of 1 may be left out or be more; an array may have one size for two of the
 * table's, or several for one ([N][K / 32][16] for [N][K / 2]), as long as order and products are as in the table.
 *
 * SWIZZLED SCALES.  scale_order = MOEK_SCALE_ORDER_128X4: scales of a byte (MXFP4, MXFP8, NVFP4_*) as Blackwell's
 * tensor cores read them: blocks of 128 rows by 4 groups, [ceil(N / 128)][ceil(G / 4)][32][4][4], where row n, group k
 * is at [n / 128][k / 4][n % 32][n / 32 % 4][k % 4].  An export fills blocks up with 0.
 *
 * IN PLACE.  w may be their_w, and scale their_scale, where the two have equal sizes and rows lie side by side: MXFP4,
 * MXFP8, NVFP4_*, FP8_*, PACKED_* with K a multiple of a word's elements, INT4_SIGNED, INT8_BYTES; scales, if neither
 * type nor order changes.
 * EXACT.  moek_export is the inverse, bit for bit, but where the import has rounded, which the report counts: scales
 * that became T, the quotient of NVFP4_PACKED.  (Words that are not full must be 0 in their unused bits.)
 *
 * QUANTIZE.  Plain weights (BF16, FP16, F32) become any format with scales, in f32, every operation rounded as IEEE
 * says, the same bits on the host and on a GPU.  A group's scale s, from its largest |w|, `most`; codes are w / s, to
 * nearest, ties to even, saturated:
 *     f32 or T scales  s = most / 448 (e4m3), 7.5 (int4), 127.5 (int8), in the type of the scale
 *                      NARROW, integers: 7, 127: codes without -8, -128.  CEIL, fp8b128: the next power of two
 *     mxfp4, mxfp8     s = 2^(floor(log2(most)) - 2), - 8:  FLOOR (OCP): the largest may saturate;  ROUND: `most` is
 *                      rounded up to a power of two first where it is 1.75 times one or more;  CEIL: none saturates.
 *                      Default: ROUND for mxfp4, CEIL for mxfp8
 *     nvfp4            global g = most of the matrix / (6 * 448); s = e4m3(most / (6 * g)), at least 2^-9; codes are
 *                      w / (s * g)
 *     blocks of files  q4_0, q4_1, q5_0, q5_1, q8_0, as the gguf package makes them, scales and all: w is the blocks,
 *                      scale NULL.  d = most / 127 (q8_0), the element with the largest |w| / -8, / -16 (q4_0, q5_0),
 *                      (highest - lowest) / 15, / 31 above the lowest (q4_1, q5_1); an f16, which codes were made
 *                      ahead of.  Other types are found by a search, and refused
 * A group of zeros has s = 1 (e8m0: 2^-127, blocks: 0), also where most / 448 is 0 in the type of the scale.  A NaN or
 * Inf makes the scale of its group NaN (nvfp4, fp8t: of the matrix), which the report counts; its codes mean 0.
 * Scales that gate and up share (fp8t; blocks of fp8b128 with rows of both): MOEK_MATRIX_GATE_UP, or in two arrays.
 * moek_export does not know what the weights were.                                                                   */
#include "moek.h"
#include "moek/import/api.h"

#ifdef MOEK_IMPLEMENTATION
#include "moek/import/codes.h"
#include "moek/import/scales.h"
#include "moek/import/host.h"
#include "moek/import/launch.h"
#include "moek/import/quantize.h"
#include "moek/import/quantize_blocks.h"
#include "moek/import/shape.h"
#include "moek/import/import.h"
#endif
