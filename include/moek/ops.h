/* moek/ops.h -- the contract of each kernel: one argument struct an operation.
 *
 * moek_run fills these in; read on only to call a kernel by its name, or to write one.  Every kernel of an operation
 * takes the same struct and computes the same thing.  A launcher is
 *
 *     moek_status <kernel>(const void *args, moek_stream stream);     args: the struct of the kernel's op
 *
 * and launches on `stream` only.  Kernels of the CPU take NULL, for OpenMP, or (moek_stream)&parallel, the address of a
 * moek_parallel (enums.h), as their stream, and have done the work on return.  args == NULL makes a kernel ready on the
 * current device (opts in to large shared memory) and returns MOEK_E_ARCH where the binary holds no code for it;
 * moek_plan_init does that, so that no run has to.
 *
 * "T" is dtype, MOEK_DTYPE_BF16 or MOEK_DTYPE_FP16.  A slot is one (token, k) pair: slot = token * topk + k.
 * "device pointer" means host memory for kernels of arch cpu.  Device arrays of T, e4m3 and weights are aligned to 16
 * bytes, scales to their type, and e4m3 scales of 16 columns, of w and of a, to 2 bytes; tiled scales to 16.
 * `early`, on sm_90 and newer, is programmatic dependent launch.  early = 1: launched while the previous kernel of this
 * layer still runs (a GEMM then fetches weights); it finishes only after that kernel, so waiting for it waits for all
 * earlier kernels.  0: launched after the previous kernel.
 * What is not said to be written is not written.  All results are the same bits in every run.                        */
#ifndef MOEK_OPS_H
#define MOEK_OPS_H
#include <stddef.h>
#include <stdint.h>
#include "format.h"

/* route: router logits -> ids and weights of the chosen experts, best first; of equal ones the lower id first.
 *   s = score(logit) in f32:
 *     SOFTMAX       over all experts.  All logits -Inf: all s are 0.  A NaN or +Inf logit leaves no softmax: all s are
 *                   0, too, which decides the ids as ever, but the weights of the ids are NaN, so that y shows it
 *     SIGMOID       of -Inf and NaN 0, of +Inf 1
 *     SQRTSOFTPLUS  of -Inf, NaN and +Inf 0
 *     RAW           the logit; of NaN and Inf -1e38.  SPARSEMIXER: the same
 *   c = s + bias, -Inf if that is NaN.  Masked is an expert whose c is -Inf, or whose s is -1e38 or less (a raw logit).
 *   groups > 1: a group scores its best c, or, TOP2, the sum of its two best (of one expert: its c; NaN: -Inf); the
 *     topk_groups best stay, of equal ones the lower first.  No expert of another group is chosen, whatever those hold.
 *   Of the experts that are left: the topk best by c.  So masked ones are chosen for want of others; their weight
 *     is 0, and no normalization counts them.  All masked: all weights are 0.
 *   w = s of the chosen, then normalize, then * scale, then * expert_scale[id].  SPARSEMIXER (topk 2): see moek.h.
 *   table != NULL: the ids are table[token_ids[t]][k], whatever bias and groups say, and the weights as ever.  An id
 *     outside [0, experts), and each id of a token outside [0, table_rows), becomes -1, with weight 0, not counted.
 *   Then `shared` constant slots: id experts + i, weight shared_weights[t][i] or shared_weight.
 *   is_padding[t]: all its ids are -1, all its weights 0.                                                            */
typedef struct moek_route_args {
    int tokens, experts, topk;
    int score;                      /* MOEK_SCORE_SOFTMAX, _SIGMOID, _SQRTSOFTPLUS, _RAW, _SPARSEMIXER               */
    int normalize;                  /* MOEK_NORM_NONE, _SUM (divide by sum + eps; by 1 if sum + eps <= 0),
                                       _SOFTMAX (softmax over the chosen), _SIGMOID (sigmoid of the chosen),
                                       _SIGMOID_SUM (_SIGMOID, then _SUM)                                            */
    float eps, scale;
    int groups, topk_groups;        /* 0 or 1: no groups; experts % groups == 0; those that stay hold topk experts   */
    const void *logits;             /* [tokens][logits_stride], of which experts each, of logits_dtype               */
    int logits_dtype;               /* MOEK_DTYPE_F32, _BF16, _FP16                                                  */
    const float *bias;              /* [experts] or NULL: for the choice, not in the weights                         */
    const float *expert_scale;      /* [experts] or NULL                                                             */
    const int32_t *table;           /* [table_rows][topk] or NULL                                                    */
    const int32_t *token_ids;       /* [tokens], with table                                                          */
    const unsigned char *is_padding;/* [tokens] or NULL                                                              */
    int shared;                     /* constant slots behind the topk ones                                           */
    float shared_weight;
    int32_t *ids;                   /* written: [tokens][topk + shared]                                              */
    float *weights;                 /* written: [tokens][topk + shared] f32                                          */
    int early;                      /* see above; here the previous kernel in the stream may be any kernel           */
    int group_score;                /* MOEK_GROUP_SCORE_TOP2; any other: the best c                                  */
    int table_rows;                 /* with table: token ids are below it                                            */
    size_t logits_stride;           /* elements from a token's logits to the next one's; 0: experts                  */
    const float *shared_weights;    /* [tokens][shared] f32 or NULL: shared_weight for all                           */
    int64_t *ids64;                 /* written: [tokens][topk + shared], the same as ids; or NULL                    */
} moek_route_args;

/* map: logical expert ids -> ids on this rank.  For each slot, id = ids[slot] or ids64[slot]; outside [0, experts): -1.
 *   ids64:    given[slot] = id, of padding too
 *   replicas: id = replicas[id][(uint32)((first + token) * 2654435769) % replica_count[id]], or -1 where the count is
 *             below 1 or above max_replicas
 *   id outside [0, physical): -1
 *   load:     load[id] += 1 (also for experts that live elsewhere)
 *   map:      id = map[id]                                                                                           */
typedef struct moek_map_args {
    int tokens, topk, experts;      /* experts: the bound of ids                                                     */
    int physical, max_replicas;     /* length of load and map; row length of replicas                                */
    const int32_t *ids;             /* [tokens][topk]; not read if there are ids64                                   */
    const int32_t *replicas;        /* [experts][max_replicas] or NULL                                               */
    const int32_t *replica_count;   /* [experts], with replicas                                                      */
    const int32_t *map;             /* [physical] or NULL                                                            */
    int64_t *load;                  /* [physical] or NULL: added to                                                  */
    int32_t *out;                   /* written: [tokens][topk]; may be ids                                           */
    const unsigned char *is_padding;/* [tokens] or NULL: all slots of such a token become -1, and load nothing       */
    int first;                      /* number of the first token in its run (chunks)                                 */
    const int64_t *ids64;           /* [tokens][topk] or NULL                                                        */
    int32_t *given;                 /* written, with ids64: [tokens][topk]                                           */
} moek_map_args;

/* sort: slots by expert, stable (within an expert in slot order).  Ids outside [0, experts) are dropped.
 *   Standard (rows_per_expert 0): counts, offsets (exclusive prefix sum), order, and the list of row blocks: expert e
 *     has ceil(counts[e] / block_m) blocks, experts ascending; block b covers rows [block_row[b], +block_m) below
 *     offsets[block_expert[b] + 1].  At most  min(slots, experts) + slots / block_m  blocks (moek_max_blocks).
 *     slot_row[slot], if given: the sorted row of the slot, -1 for a dropped slot.
 *   Batched (rows_per_expert = R): counts (at most R: what is beyond is dropped) and
 *     slot_row[slot] = e * R + rank of the slot in its expert, -1 for a dropped slot.  The other arrays are NULL.    */
typedef struct moek_sort_args {
    int slots, experts, block_m, rows_per_expert;
    const int32_t *ids;             /* [slots]                                                                       */
    int32_t *counts;                /* written: [experts]                                                            */
    int32_t *offsets;               /* written: [experts + 1]                                                        */
    int32_t *order;                 /* written: [offsets[experts]]: the slot of each sorted row                      */
    int32_t *block_expert;          /* written: [num_blocks]; NULL: no row blocks, nor the next two                  */
    int32_t *block_row;             /* written: [num_blocks]                                                         */
    int32_t *num_blocks;            /* written: [1]                                                                  */
    int32_t *slot_row;              /* written: [slots]; standard: or NULL                                           */
    int32_t *zero;  int zeros;      /* written: zeros, so many; or NULL, 0                                           */
    int early;                      /* 1: see above; the previous kernel neither writes ids nor reads what the sort
                                       writes.  2: see above                                                         */
} moek_sort_args;
enum { MOEK_SORT_FEW = 16384 };     /* up to so many slots, without row blocks and slot_row, sm80 takes few blocks */

/* quant: rows of T -> rows of the format.  Row r reads source row r / source_div and writes row
 *   (target ? target[r] : r); rows with target < 0 or that are not live are skipped.  Live: r < *row_limit (if given),
 *   and (r % rows_per_expert) < counts[r / rows_per_expert] (if counts is given).
 *   What becomes of a row is its format's: the shape of the scales (moek/format.h), and by it s and q, each a formula
 *   of a table in docs/formats.md (Scales).  T that stays T has no scale.  First x is multiplied by
 *   T(row_weight[source]) and rounded to T, if row_weight is given.
 *   e4m3    rounds to nearest even and saturates to 448; NaN stays NaN (0x7f | sign), and one scale for all rows, also
 *           where it is static, makes NaN of Inf.  Maxima pass over NaN.  One for all rows is of live source rows, and
 *           passes over Inf; in others an Inf counts: s = Inf, its row or group becomes NaN and 0 (ue8m0: 2^127, 448
 *           and 0)
 *   s8, e2m1  round to nearest even and saturate, to 127 and 6 on both sides.  They have no NaN, so a NaN or Inf is
 *           seen in the scale: s = NaN (s8: Inf of an Inf), and q = 0 (e2m1: 6 of the NaN or Inf itself, else 0 of x's
 *           sign).  Where all are zeros: s = 0, q = 0
 *   Where columns share a scale, C of them:
 *   group_offset: group g has columns from C g - group_offset on, C at most.
 *   scale, G = ceil((group_offset + cols) / C) groups, is of the format's type unless packed:
 *     MOEK_SCALE_ROW     scale[row * G + g]
 *     MOEK_SCALE_COLUMN  scale[g * scale_stride + row], scale_stride >= rows; a multiple of 4 for TMA
 *     MOEK_SCALE_PACKED  int32, scale[(g / 4) * scale_stride + row], byte g % 4 (little endian) = exponent + 127;
 *                        bytes of missing groups are 0; needs ue8m0, or e8m0 scales                                  */
typedef struct moek_quant_args {
    int rows, cols, source_div;     /* rows <= 2^31 - 2^20, cols <= 2^24, source_div >= 1                            */
    int dtype;                      /* of x                                                                          */
    const void *x;                  /* [ceil(rows / source_div)][cols] T                                             */
    const float *row_weight;        /* [ceil(rows / source_div)] or NULL                                             */
    const float *static_scale;      /* fp8t: [1] or NULL: dynamic.  nvfp4_a4: [1].  Others have none                 */
    int ue8m0, scale_layout, scale_stride;
    const int32_t *target;          /* [rows] or NULL                                                                */
    const int32_t *row_limit;       /* [1] or NULL                                                                   */
    const int32_t *counts;          /* [rows / rows_per_expert] or NULL                                              */
    int rows_per_expert;
    float *partial;                 /* fp8t dynamic: scratch, MOEK_QUANT_PARTIALS floats                             */
    void *q;                        /* written: rows of cols, T or e4m3                                              */
    void *scale;                    /* written: fp8t [1] (also when static); a scale a row: [rows]; others as above  */
    int32_t *zero;  int zeros;      /* written: zeros, so many; or NULL, 0                                           */
    int early;                      /* 1: see above.  2: the same, and the previous kernel writes nothing that is read
                                       here, and reads nothing that is written here                                  */
    int max_blocks;                 /* > 0: at most so many blocks, of more threads, which leaves SMs to a kernel that
                                       runs beside.  Not for fp8c, nor for fp8t without static_scale                 */
    int x_stride;                   /* elements from a row of x to the next, cols or a multiple of 8; 0: cols      */
    int group_offset;               /* see above; < C, and on GPUs a multiple of 8                                   */
} moek_quant_args;
enum { MOEK_QUANT_PARTIALS = 1024 };

/* up and down: out[p][j] = f(sum over k of a[row(p)][k] * w[e][j][k]), accumulated in f32, rounded to T once.
 *   p runs over the rows of each expert e: standard, the sorted rows [offsets[e], offsets[e+1]); batched
 *   (rows_per_expert = R), rows e*R .. e*R + counts[e] - 1.  Which row it reads, and which it writes: moek_gemm_rows.
 *   up    n = inter.  Gated: g = w rows gate_first + j*w_step, u = w rows up_first + j*w_step;
 *         out = act(g + bias, u + bias).  gate.codes != NULL: g = row j of gate, u = of w, n rows an expert of each.
 *         Not gated: g = w row j; out = act(g + bias).  act: moek.h.
 *   down  n = hidden; out = sum + bias.
 *   Scales multiply in f32, of the shapes that the format says (moek/format.h; docs/formats.md has a table of these,
 *   and of what each format sums by itself): a_scale is [1], [row] or [row][ceil(k/C)], w.scales [experts],
 *   [experts][w_rows] or [experts][ceil(w_rows/R)][ceil(k/C)].  Where columns share a scale of w or of a, C the fewer,
 *   each C of k are summed by themselves (sm90, e2m1 with a in e4m3: each 128; that page says what may change).
 *   R = C = 128, of w: where scales of gate and up are apart, there are ceil((n_offset + n)/128) rows of them for each,
 *   and row j of gate, or of up, takes number (n_offset + j)/128.  k_offset: the groups of k, of a_scale as of w_scale,
 *   are the ceil((k_offset + k)/128) whose number g has k from 128 g - k_offset on.                                  */
/* Weights of a GEMM, of up, gate or down alike, as they lie in memory.  Zero points: the groups of a row begin at a
 * byte, and w - zero counts. */
typedef struct moek_matrix {
    const void *codes;              /* [experts][rows][k] format's w                                                 */
    const void *scales;             /* of the types that the format says (moek/format.h); NULL: it has none          */
    const void *bias;               /* [experts][rows] T, or NULL                                                    */
    const float *global_scale;      /* formats with a global scale: [experts], of gate and up in one array
                                       [experts][2], what comes first in memory first; else NULL                     */
    const void *zero_points;        /* [experts][rows][groups of k], elements as w has, or NULL: there are none.
                                       Tiled, with groups of less than k: as `repack` has them, aligned to 16 bytes   */
    int layout;                     /* of codes.  0: as it comes.  1: as `repack` makes it, for kernels that read it so
                                       (column reads); others ignore it.  Lines: k a multiple of 128 bytes, n of 8.
                                       Fragments, which their kernels read only: weights of 4 bits, and of 8 with a in
                                       T, scales of columns of rows as `repack` has scales; k and w_rows are multiples
                                       of 64.  MOEK_WEIGHTS_PANELS: kernels of CPUs.  gate.layout is not read        */
} moek_matrix;
/* Which rows of a an expert has, as `sort` leaves them, and where the rows of out go. */
typedef struct moek_gemm_rows {
    const int32_t *order;  int div; /* row p of a is  order ? order[p] / div : p                                     */
    const int32_t *out_order;       /* row p of out is  out_order ? out_order[p] : p                                 */
    const int32_t *offsets, *counts;
    const int32_t *block_expert, *block_row, *num_blocks;
} moek_gemm_rows;
typedef struct moek_epilogue {
    int act;  float alpha, beta, limit;                                                          /* up only          */
    int ue8m0;                      /* of q_scale                                                                    */
} moek_epilogue;
/* What a caller of up or down says (fields: moek/gemm_body.h). */
typedef struct moek_gemm_args {
#include "gemm_body.h"
} moek_gemm_args;
enum { MOEK_SPLITS = 256, MOEK_SELF_SORT = 1024 };
enum { MOEK_SM90_APART = 40 };      /* w_gate and w are less than 2^40 bytes apart: a stride of a TMA map            */
/* Bytes of a, at most, for MOEK_TRAIT_GATHERS: by 32-bit offsets in units of 16 bytes. */
#define MOEK_GATHERED ((long long)1 << 36)

/* up_down: up, quant of h and down of the standard format in one launch, each as its op says; not for fp8c, nor for
 *   fp8t without static scales.
 *   written  down.a: h by sorted row, as quant leaves it (bf16, fp16: h itself); fp8b128: down.a_scale
 *   read     of up: a, rows.order, rows.div, ids (as for m = 128), rows.counts, max_blocks, early; of down: out,
 *            rows.out_order, which is written when rows.order is; of both: w and gate, and sizes; fp8t: a_scale, the
 *            static scales
 *   Blocks wait for each other: all of them must be resident at once, one an SM.                                    */
typedef struct moek_up_down_args {
    const moek_gemm_args *up, *down;/* in host memory                                                                */
    int32_t *flags;                 /* scratch: [MOEK_UP_DOWN_FLAGS + up.max_blocks], 0 when rows.order is written    */
    int ue8m0;                      /* of the scales of h                                                            */
} moek_up_down_args;
enum { MOEK_UP_DOWN_FLAGS = 64, MOEK_UP_DOWN_BLOCKS = 1024 }; /* up.max_blocks <= MOEK_UP_DOWN_BLOCKS, or E_ARGUMENT */

/* combine: y[t] = T(sum over k, ascending, of weights[t][k] * rows[row(t, k)] + addend[t]), in f32.
 *   row = slot_row ? slot_row[slot] : slot.  A slot counts only if its id is in [0, experts) and its row >= 0;
 *   the others are not read.  No slot counts: y[t] = addend[t] or 0.
 *   Strides: elements from a row to the next, hidden or more and a multiple of 8; 0: hidden.                         */
typedef struct moek_combine_args {
    int tokens, topk, hidden, experts;
    int dtype;
    const void *rows;               /* [..][hidden] T                                                                */
    const int32_t *ids;             /* [tokens][topk], or NULL: every slot counts                                    */
    const int32_t *slot_row;        /* [tokens][topk] or NULL                                                        */
    const float *weights;           /* [tokens][topk] f32, or NULL: ones                                             */
    const void *addend;             /* [tokens][hidden] T, or NULL                                                   */
    void *y;                        /* written: [tokens][hidden] T; may be addend, or, if topk is 1 and there is no
                                       slot_row, rows: with the same stride                                          */
    int early;                      /* see above                                                                      */
    int discard;                    /* 1: each row is read once, for the last time: rows in L2 need not be written back
                                       to memory, and hold anything afterwards                                       */
    int rows_stride, addend_stride, y_stride;
} moek_combine_args;

/* repack: weights, or scales or zero points of weights of 4 bits, to the order of `tiled` (moek.h: moek_repack_up), or
 *   back.
 *   Row j of w goes to row to(j).  Gated, with F the smaller of gate_first and up_first, S the larger:
 *   to(F + i * w_step) = i / 8 * 16 + i % 8, and to(S + i * w_step) = i / 8 * 16 + 8 + i % 8.  Else to(j) = j.
 *   Five kinds, by `codes`, `group`, `zeros` and `block`:
 *     bytes      (codes 0, group 0) byte b of row j of expert e goes to  ((e * steps + b / 128) * w_rows + to(j)) * 128
 *                + b % 128,  steps = row_bytes / 128.
 *     fragments  (codes: MOEK_ELEMENT_E2M1 or _U4B8, 4 bits) for wgmma with w in registers.  64 rows and 64 of k are
 *                2048 bytes: [experts][w_rows / 64][k / 64][warp 4][lane 32][16 of k: 4] words of 32 bits.  Lane 4g + q
 *                of warp v has rows 16v + g and 16v + 8 + g.  A word has their columns 2q, 2q + 1, 2q + 8 and 2q + 9 of
 *                the 16: code (row, column) is number  row / 8 % 2 + column / 8 * 2  of the low half if the column is
 *                even, else of the high half.  u4b8: number i of a half lies at bits 4i on.  e2m1: bits 0 to 3 of
 *                a code lie at bits 6 7 8 15 of its half, rotated right within 32 bits.  Two words of 32 of k: numbers
 *                0, 1 and 2 of the first are rotated by 0, 4 and 10, of the second by 2, 6 and 12.  Number 3 of the
 *                first is rotated by 14, of the second by 8; of these, bits 0 1 9 10 16 17 25 26 lie in the first
 *                word and the others in the second.
 *                x is MOEK_ELEMENT_E4M3: words lie as before; a word has columns 4q to 4q + 3 of the 16.  u4b8: column
 *                4q + j of row 16v + g has bits 8j to 8j + 3, of row 16v + 8 + g 8j + 4 to 8j + 7.  The lowest is 1 for
 *                a code below 8; those above are 7 - code then, else code - 8.  e2m1: of row 16v + g, bits 0 to 2 lie
 *                at bits 4j on and bit 3 at 8j + 3, of row 16v + 8 + g at 16 + 4j on and 8j + 7; bits 0 to 2 of 1, 2
 *                and 3 become 3, 1 and 2.  If columns is 16, too, word i of lane 4g + q has columns 16q + 4i to
 *                16q + 4i + 3 of the 64.
 *                Codes of 8 bits (MOEK_ELEMENT_E4M3 or _S8), activations in T: 64 rows and 32 of k are 2048 bytes,
 *                [experts][w_rows / 64][k / 32][warp 4][lane 32][16 of k: 2][row 16v + g, row 16v + 8 + g] words, which
 *                have columns 2q, 2q + 1, 2q + 8 and 2q + 9 of the 16, a byte each, the first in the lowest.
 *     scales     (group: bytes of the scales of a row in 64 of k, or of the one scale if it is for more: 2 or 4; of a
 *                scale: scale_bytes) [experts][w_rows / 64][row_bytes / group][warp 4][g 8][scale][rows 16v + g and
 *                16v + 8 + g].
 *     zeros      (group: zero points of a row in 64 of k, 2, or 1 if one is for more; zeros 1) of 4 bits; row_bytes: of
 *                a row, from a byte on.  [experts][w_rows / 64][2 * row_bytes / group][warp 4][g 8][group] bytes, bits
 *                0 to 3 of row 16v + g, bits 4 to 7 of row 16v + 8 + g.
 *     blocks     (block: moek/format.h) of a GGUF file, row_bytes of whole ones, 64 columns or more.  As many bytes,
 *                [experts][w_rows / 64], and of 64 rows [k / 64] units; of blocks of 256 columns behind each four units
 *                their f16: [64 rows] the scale's, or the scale's and the minimum's.  A unit has the planes of codes,
 *                one behind the other, then [64 rows] the scales of 64 of k and the minimums, bit behind bit, in their
 *                width: 12 bits or whole bytes a row.  A plane of b bits: [b / 4, at least 1][warp 4][lane 32][b, at
 *                most 4] words of 32 bits.  Lane 4g + q of warp v has rows 16v + g and 16v + 8 + g, of each 16 of k the
 *                columns 2q, 2q + 1, 2q + 8 and 2q + 9.  Of 16 of k number i, code (row, column) is number
 *                4i + row / 8 % 2 + column / 8 * 2: in word b * number / 16, from bit b * number % 16 on of the low
 *                half if the column is even, else of the high half.  (Rows for GPUs that have a format do this to its
 *                blocks, and nothing else; the row without a format refuses blocks.)
 *   panels (MOEK_WEIGHTS_PANELS): what kernels of CPUs read; rows of cpu do this and blocks, and nothing else; others
 *   refuse it.
 *   n is a multiple of 16.  Gated: to(gate_first + i * w_step) = i / 16 * 32 + i % 16, to(up_first + i * w_step) =
 *   i / 16 * 32 + 16 + i % 16.  Else to(j) = j.  Four kinds:
 *     items      (group: bytes of an item; weights of 8 and 16 bits: 4) [experts][w_rows / 16][row_bytes / group]
 *                [row 16][group] bytes: an item of 16 rows, the next of the same rows, and so on.
 *     codes      (codes: MOEK_ELEMENT_E2M1 or _U4B8) items of 4 bytes.  Byte b of item v of the four of 32 columns has
 *                column 4v + b in bits 0 to 3, column 16 + 4v + b in bits 4 to 7.
 *     zeros      (zeros 1) [experts][w_rows / 16][2 * row_bytes][8] bytes: of a group, byte b has row b in bits 0 to 3
 *                and row 8 + b in bits 4 to 7.
 *     blocks     (block: rows are whole blocks of GGUF files) [experts][w_rows / 16][256 of k, or what is left], and of
 *                these [block] heads, then [block] codes.  Heads: the bytes of a block that are no codes, in their
 *                order, f16 as [row 16] of 2 bytes, others as [row 16] of 1; codes: the others, [row 16] of 4 bytes. */
typedef struct moek_repack_args {
    int experts, w_rows, n;         /* w_rows: 2 * n if gated, else n; n a multiple of 8                             */
    int gate_first, up_first, w_step;                                                            /* gated only       */
    size_t row_bytes;               /* of k; a multiple of 128; fragments: of 32; scales, items: of group            */
    int codes, group, scale_bytes;  /* the kind, see above                                                           */
    int back;                       /* 1: from tiled                                                                 */
    const void *from;               /* all of it apart from `to`                                                     */
    void *to;                       /* written                                                                       */
    int x;                          /* fragments: element of the activations in GEMMs; 0: T                          */
    int zeros;                      /* 1: the kind, see above                                                        */
    int columns;                    /* fragments: of a scale of w                                                    */
    int panels;                     /* 1: the order of CPUs, as above                                                */
    const struct moek_block *block; /* the kind, see above; read by the host                                         */
} moek_repack_args;

/* expand: weights of e2m1 in fragments for activations in e4m3, with their scales, to e4m3 and scales in f32, in the
 *   order in which they lay before `repack`: what up and down of fp8b128 and fp8c read.
 *     columns 32  scales are e8m0 (mxfp4_a8 -> fp8b128).  to_scale [experts][rows of scales][ceil(k/128)], a power of 2
 *                 that brings the largest scale of 128 x 128 to 2^6.  Gated and w_step 1: rows of gate and of up are
 *                 apart (moek_gemm_args.scales_separate), what lies first comes first; else 128 rows of w share one.
 *                 Exact, but for elements whose scale is below 2^-11 of the largest (or of 2^-115): they become 0.
 *                 A scale that is NaN spoils all that share it.
 *     columns 16  scales are e4m3, and there is a global one (nvfp4_a8 -> fp8c).  to_scale [experts][w_rows], with the
 *                 global one in it.  w times its scale rounds to e4m3, times the power of 2 that brings the largest
 *                 scale of the row to 32 .. 60: only +-1.5, 3 and 6 may change.  What that brings below 2^-5 becomes
 *                 0.                                                                                               */
typedef struct moek_expand_args {
    int experts, w_rows, n, k;      /* w_rows: 2 * n if gated, else n; n and k are multiples of 64                   */
    int gate_first, up_first, w_step;                              /* as before `repack`; w_step 1 where not gated   */
    int columns;                    /* of a scale                                                                    */
    const void *w, *w_scale;        /* as `repack` makes them; aligned to 16 bytes                                   */
    const float *w_global_scale;    /* columns 16: [experts], gated [experts][2], what lies first comes first        */
    void *to;                       /* written: [experts][w_rows][k] e4m3, aligned to 16 bytes                       */
    float *to_scale;                /* written                                                                       */
} moek_expand_args;

/* State that launches of layer kernels leave for the next launch; zeros before the first.
 *   flags     rows for more: the first two count on, the others are zeros again at the end of a launch
 *   launches  rows of few tokens: counts the blocks of all launches
 *   h         rows of few tokens: blocks hand h over here, in turns: one half is written and read while the other
 *             becomes zeros */
enum { MOEK_LAYER_FLAGS = 8 + 2 * MOEK_SPLITS + MOEK_SELF_SORT };
enum { MOEK_DECODE_SLOTS = 32, MOEK_DECODE_BYTES = 222 * 1024 /* 227 KB less static */, MOEK_DECODE_RING = 96 * 1024,
       MOEK_DECODE_H = MOEK_DECODE_BYTES - MOEK_DECODE_RING };
typedef struct moek_layer_state {
    int32_t flags[MOEK_LAYER_FLAGS];
    unsigned long long launches[2];
    uint16_t h[2][MOEK_DECODE_H / 2];
} moek_layer_state;

/* layer: all of a layer of few tokens in one launch, in standard format: sort, quant of x, up, quant of h, down and
 *   combine, each as its op says.  tokens * topk <= MOEK_SELF_SORT; not for fp8c, nor for fp8t without static scales.
 *   written  up.a: x as quant leaves it (bf16, fp16: x itself); down.a: h by sorted row; fp8b128: the a_scale of both;
 *            down.out: [slot][hidden] T
 *   read     fp8t: a_scale of both, the static scales.  Ignored: up.out, a_row_bytes, and all order of rows in up, down
 *   Strides: as combine has them.
 *   Rows of few tokens (max_tokens): tokens <= max_tokens and moek_decode_smem_of fits (moek/kernel/decode_smem.h); y
 *   is required; x and h stay inside the kernel, no array above is written.  Weights of 4 bits, and of 8 with
 *   activations in T: tiled, and T is bf16.
 *   In fp16 the rows of a token are added in the order in which ids first name their experts; in other formats rows of
 *   down are weighted and added in f32, without rounding to T.                                                      */
typedef struct moek_layer_args {
    int tokens, topk;
    const int32_t *ids;             /* [tokens][topk]; outside [0, experts): a slot of no expert                     */
    const float *weights;           /* [tokens][topk] f32, or NULL: ones                                             */
    const void *x;                  /* [tokens][hidden] T                                                            */
    int ue8m0;
    const moek_gemm_args *up, *down;/* in host memory                                                                */
    const void *addend;             /* [tokens][hidden] T, or NULL                                                   */
    void *y;                        /* written: [tokens][hidden] T; may be addend, or x, with the same stride.  NULL: no
                                       combine (not few tokens)                                                      */
    float *split;                   /* scratch: the kernel's `scratch` bytes a block, one an SM (not few tokens)      */
    moek_layer_state *state;        /* aligned to 16.  Blocks wait for each other: all of them must be resident at once,
                                       one an SM                                                                     */
    int equal;                      /* 1: equal shares of tiles, none by demand: for tests                           */
    int discard;                    /* 1, with y, not few tokens: rows of down->out in L2 need not be written back to
                                       memory, and hold anything afterwards                                          */
    int x_stride, addend_stride, y_stride;
} moek_layer_args;

#define moek_max_blocks(slots, experts, block_m) \
    (((slots) < (experts) ? (slots) : (experts)) + (slots) / (block_m))

#endif
