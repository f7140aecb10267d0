/* moek/import/api.h -- the types and functions of moek_import.h, which says how they are used. */
#ifndef MOEK_IMPORT_API_H
#define MOEK_IMPORT_API_H
#include "../api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, format, codes, xor, scales, type of their scales, zeros, less, global)
 *     codes, zeros      how elements and zero points lie (moek/import/codes.h)
 *     xor               their codes differ from moek's by it
 *     scales            ROWS [N][G], GROUPS [G][N], ONE: of the matrix, BLOCKS: with the codes
 *     type              of their_scale where the format of moek leaves it open and scale_dtype is 0
 *     less              zero points are stored less 1
 *     global            NONE, TIMES, OVER                                                                            */
#define MOEK_EACH_SOURCE(X) \
    X(MXFP4,          1,  MXFP4_A16, ROWS,     0,    ROWS,   DEFAULT, NONE,   0, NONE) \
    X(MXFP4_GGUF,     2,  MXFP4_A16, GGUF,     0,    BLOCKS, DEFAULT, NONE,   0, NONE) \
    X(NVFP4_MODELOPT, 3,  NVFP4_A16, ROWS,     0,    ROWS,   DEFAULT, NONE,   0, TIMES) \
    X(NVFP4_PACKED,   4,  NVFP4_A16, ROWS,     0,    ROWS,   DEFAULT, NONE,   0, OVER) \
    X(PACKED_INT4,    5,  INT4_A16,  WORDS,    0,    ROWS,   BF16,    ACROSS, 0, NONE) \
    X(PACKED_INT8,    6,  INT8_A16,  WORDS,    0x80, ROWS,   BF16,    ACROSS, 0, NONE) \
    X(GPTQ_INT4,      7,  INT4_A16,  GPTQ,     0,    GROUPS, FP16,    TURNED, 1, NONE) \
    X(GPTQ_INT8,      8,  INT8_A16,  GPTQ,     0x80, GROUPS, FP16,    TURNED, 1, NONE) \
    X(GPTQ_V2_INT4,   9,  INT4_A16,  GPTQ,     0,    GROUPS, FP16,    TURNED, 0, NONE) \
    X(GPTQ_V2_INT8,   10, INT8_A16,  GPTQ,     0x80, GROUPS, FP16,    TURNED, 0, NONE) \
    X(AWQ,            11, INT4_A16,  AWQ,      0,    GROUPS, FP16,    AWQ,    0, NONE) \
    X(INT4_SIGNED,    12, INT4_A16,  ROWS,     8,    ROWS,   F32,     NONE,   0, NONE) \
    X(INT4_BYTES,     16, INT4_A16,  BYTES,    8,    ROWS,   BF16,    NONE,   0, NONE) \
    X(INT8_BYTES,     17, INT8_A16,  ROWS,     0,    ROWS,   BF16,    NONE,   0, NONE) \
    X(FP8_TENSOR,     18, FP8T,      ROWS,     0,    ONE,    F32,     NONE,   0, NONE) \
    X(FP8_CHANNEL,    19, FP8C,      ROWS,     0,    ROWS,   F32,     NONE,   0, NONE) \
    X(FP8_BLOCK,      20, FP8B128,   ROWS,     0,    ROWS,   F32,     NONE,   0, NONE) \
    X(MXFP8,          21, MXFP8,     ROWS,     0,    ROWS,   DEFAULT, NONE,   0, NONE) \
    X(NVFP4_GGUF,     22, NVFP4_A16, GGUF_64,  0,    BLOCKS, DEFAULT, NONE,   0, TIMES) \
    X(Q4_0_GGUF,      23, INT4_A16,  GGUF,     0,    BLOCKS, FP16,    NONE,   0, NONE)
/* Weights that nobody has quantized yet; X(name, number), name as in MOEK_DTYPE_*. */
#define MOEK_EACH_PLAIN_SOURCE(X) X(BF16, 13) X(FP16, 14) X(F32, 15)
#define MOEK_SOURCE_(name, number, quant, codes, flip, scales, type, zeros, less, global) MOEK_FROM_##name = number,
#define MOEK_PLAIN_SOURCE_(name, number) MOEK_FROM_##name = number,
enum { MOEK_EACH_PLAIN_SOURCE(MOEK_PLAIN_SOURCE_) MOEK_EACH_SOURCE(MOEK_SOURCE_) MOEK_SOURCE_COUNT_ };

enum { MOEK_DTYPE_E8M0 = 16 };                        /* scale_dtype of FP8_BLOCK only: powers of two, a byte each */
enum { MOEK_SCALE_ORDER_128X4 = 1 };                  /* scale_order; 0: as the list says */
enum {                                                /* how plain weights find scales; 0: what QUANTIZE says */
    MOEK_RECIPE_FLOOR = 1, MOEK_RECIPE_ROUND, MOEK_RECIPE_CEIL, MOEK_RECIPE_NARROW
};

enum {                                                /* of an expert.  Not gated: UP and DOWN */
    MOEK_MATRIX_GATE, MOEK_MATRIX_UP, MOEK_MATRIX_DOWN,
    MOEK_MATRIX_GATE_UP                               /* rows of both, in the order of up_layout (gpt-oss) */
};

/* What an import met: numbers worth a line of the log.  Zero it once; each import adds.
 *     groups_beyond     mxfp4, nvfp4: Hopper kernels of mxfp4_a8 and nvfp4_a8 fold scales into e4m3, by 128 columns; of
 *                       such a group they may make 0 (docs/formats.md)
 *     codes_lowest      of symmetric int4 and int8: a format of -7 .. 7 or -127 .. 127 has no room for them
 *     zeros_wrapped     GPTQ v1: other zero points of such a word may have been damaged when it was packed
 *     scales_negative   with the sign set; of integers (int4, int8) such a scale is a number as any other
 *     signs_bad         with the sign set in a format whose scales are positive: damaged, or of another type
 *     scales_separate   FP8_TENSOR to fp8t: each is a matrix whose gate and up have two scales
 *     zeros_other       GPTQ: read as 7 (v2) or 9 (v1), where the other version reads 8, the middle                  */
#define MOEK_EACH_IMPORT_COUNT(X) \
    X(scales,          "scales") \
    X(scales_zero,     "scales that are 0") \
    X(scales_nan,      "scales that are NaN or Inf") \
    X(scales_negative, "scales with the sign set") \
    X(scales_rounded,  "scales rounded to T") \
    X(scales_lost,     "scales that are 0 or Inf in T") \
    X(groups_beyond,   "groups more than 11 binades (nvfp4: 10) below the largest of their row") \
    X(codes_lowest,    "codes of the lowest value, -8 or -128") \
    X(zeros,           "zero points") \
    X(zeros_wrapped,   "zero points stored as the largest code and read as 0") \
    X(zeros_lost,      "zero points that there is no array for") \
    X(globals_bad,     "global scales that are 0, negative, NaN or Inf") \
    X(globals_rounded, "global scales whose quotient is not exact") \
    X(orders_bad,      "words or rows that an order takes from outside the matrix") \
    X(signs_bad,       "scales with the sign set where the format has none") \
    X(scales_separate, "scales of up that are not gate's, where the format has one for both") \
    X(codes_outside,   "codes outside -8 .. 7") \
    X(zeros_other,     "zero points that would be the middle in GPTQ's other version")
#define MOEK_COUNT_(name, text) uint64_t name;
typedef struct moek_import_report {
    MOEK_EACH_IMPORT_COUNT(MOEK_COUNT_)
    uint64_t highest_, lowest_;                        /* ask moek_import_exponents                                   */
} moek_import_report;
#undef MOEK_COUNT_

/* What a file says of an array.  shape: its sizes, the slowest first, 0 behind the last; a scalar: { 1 }.  bytes: of
 * the whole array.  0: not known, and not compared.  Of one expert, where the file has all of a layer in one array.  */
enum { MOEK_IMPORT_SIZES = 6 };
typedef struct moek_import_tensor { int64_t shape[MOEK_IMPORT_SIZES]; uint64_t bytes; } moek_import_tensor;

typedef struct moek_import_args {
    int source;                       /* required: MOEK_FROM_*                                                        */
    int rows, columns;                /* of the matrix: N and K                                                       */
    int block;                        /* columns of a scale, as config.block                                          */
    int dtype;                        /* T: MOEK_DTYPE_BF16 (default) or _FP16: moek's scales of int4                 */
    int scale_dtype;                  /* of their_scale, for int4, int8, fp8: MOEK_DTYPE_*; default: as the list says */
    void *their_w, *their_scale;      /* the checkpoint's: an import only reads them.  Aligned as their elements      */
    void *their_zero;                 /* or NULL                                                                      */
    float *their_global;              /* nvfp4: [1]                                                                   */
    void *w, *scale, *zero;           /* moek's: first row of this matrix.  zero: or NULL                             */
    float *global;                    /* nvfp4: [1]                                                                   */
    int row_step;                     /* rows of w, scale and zero from a row of this matrix to the next; 0: 1;
                                         2: gate or up of rows that are interleaved                                   */
    const int32_t *row_order;         /* [rows] or NULL: row j of what is written is row row_order[j] of what is read */
    const int32_t *column_order;      /* [columns] or NULL: the same. Scales and zero points do not move             */
    moek_import_report *report;       /* or NULL; added to                                                            */
    char *why;                        /* NULL, or where a sentence goes if the call is refused                        */
    size_t why_size;
    int quant;                        /* of moek's arrays: MOEK_INT4_A8, ..., with the elements of `becomes`; 0: that.
                                         Required for plain weights                                                   */
    int recipe;                       /* for plain weights: MOEK_RECIPE_*                                             */
    moek_import_tensor w_tensor, scale_tensor, zero_tensor, global_tensor;       /* of their_*; 0: not known (SHAPES) */
    int scale_order;                  /* of their_scale: MOEK_SCALE_ORDER_128X4; 0: as the list says                  */
    int scale_shared;                 /* scale is there already, from gate: it is compared, not written; place says   */
    moek_parallel parallel;           /* on the host: your threads (moek/enums.h); zeros: OpenMP's                    */
} moek_import_args;

/* Sets rows, columns, block, dtype, quant, row_step, scale_shared, w, scale, zero and global, from args->source, what
 * the layer is, and where its arrays are: of expert `expert` of this rank, of local_experts (or, where that is 0,
 * experts and shared_slots).  Host only; reads no array.  Formats without scales, bf16 and fp16: scale becomes NULL;
 * copy the rows of the matrix to w yourself, row_step apart.  OK; E_ARGUMENT, with a sentence in args->why: sizes that
 * no layer has, a matrix or an expert that this layer does not have, an array that is NULL, a config whose shard
 * begins inside a group, or whose weights of mxfp4_a16 or nvfp4_a16 lie in blocks of a file.                         */
moek_status moek_import_place(const moek_config *config, const moek_weights *weights, int matrix, int expert,
                              moek_import_args *args);
/* The checkpoint's arrays -> moek's; and back (w, scale, zero, global are read, their_* written).  arch: 0 for host
 * memory, else the device's.  Written: w, scale, zero and global, of `rows` rows that are row_step apart; *report.  OK;
 * E_ARGUMENT (nothing is written), E_NO_KERNEL (no GPU code here), E_CUDA, with a sentence in args->why.  What is in
 * the numbers is in the report only.                                                                                 */
moek_status moek_import(int arch, const moek_import_args *args, moek_stream stream);
moek_status moek_export(int arch, const moek_import_args *args, moek_stream stream);

/* act-order: g_idx [columns] (host memory) has the group of each column.  order != NULL: sets order[columns] so that,
 * taken as column_order, columns of a group lie side by side.  Do this for down; rows of gate and of up (and of their
 * biases) then take the same order as row_order, which costs nothing at run time.  order == NULL, for gate and up,
 * with the columns of x: E_ARGUMENT if the columns are not in order already.  *moved, if not NULL: 1 if any
 * column moves.  block 0: a whole row.  E_ARGUMENT, too, where a group has not `block` columns; order is then not of
 * use.  why: NULL, or where a sentence goes.                                                                         */
moek_status moek_import_order(const int32_t *g_idx, int columns, int block, int32_t *order, int *moved, char *why,
                              size_t why_size);
/* For moek_export of what was imported with an order: inverse[order[i]] = i.  E_ARGUMENT: no permutation.            */
moek_status moek_import_inverse(const int32_t *order, int n, int32_t *inverse);

/* May weights with this report be run?  OK; E_ARGUMENT, with a sentence: scales that are NaN or Inf, negative in a
 * format that has no such, or 0 or Inf in T; one scale for gate and up that have two; codes outside -8 .. 7; zero
 * points lost, or all of them one off the middle (GPTQ's other version); bad global scales; orders outside the matrix.
 * Host memory.                                                                                                       */
moek_status moek_import_verdict(const moek_import_report *report, char *why, size_t why_size);
/* All counts that are not 0, and the exponents, on one line; returns the length it needs.                            */
size_t      moek_import_describe(const moek_import_report *report, char *text, size_t size);
/* floor(log2(scale)) of the smallest and the largest scale that is neither 0 nor NaN; 0: there is none.              */
int         moek_import_exponents(const moek_import_report *report, int *lowest, int *highest);
const char *moek_source_name(int source);                                        /* "GPTQ_INT4"; NULL: there is none  */

#ifdef __cplusplus
}
#endif
#endif
