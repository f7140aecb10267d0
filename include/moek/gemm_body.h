/* moek/gemm_body.h -- the fields of moek_gemm_args (ops.h), which a kernel's own struct begins with, too
 * (kernel/gemm.h).  The compiler loads neighbours at once, and what it makes of a kernel hangs on which those are:
 * the order of fields, and that none lies in a struct of its own, is part of the machine code. */
    int n, k, w_rows;               /* w_rows: rows of w an expert holds (up: 2 * inter if gated; down: hidden)       */
    int experts, max_blocks;        /* experts on this rank; the most row blocks there can be: standard, of all experts;
                                       batched, of one: ceil(most live rows of an expert / m)                         */
    int a_rows;                     /* rows of a in memory                                                           */
    const void *a;                  /* [a_rows][k] format's x                                                        */
    const void *a_scale;            /* of the type that the format says                                              */
    moek_matrix w;                  /* down; up; gate and up in one array, with gate.codes NULL                      */
    moek_matrix gate;               /* up, gated: gate alone, and w is up alone, of the same shape: [experts][n][k].
                                       gate_first, up_first and w_step are not read then, and the scales of fp8b128 are
                                       apart.  sm90 rows: not tiled.  gate.codes NULL: both are in w                 */
    int scales_separate;            /* up of fp8b128, gated, w_step 1, no gate: 1: w.scales is [experts][2][rows of
                                       scales][ceil(k/128)], first of what lies first in w                           */
    int n_offset;                   /* fp8b128, scales apart or not gated: see above; < 128.  sm80: a multiple of 8;
                                       sm90: of 64, and 0 for rows that quantize h                                   */
    int k_offset;                   /* down of fp8b128: see above; < 128.  sm80: a multiple of 16; sm90: of 64, not
                                       tiled, and 0 for rows that quantize h                                         */
    int gate_first, up_first, w_step;                                                            /* up, gated only   */
    void *out;                      /* written: rows of n, T                                                         */
    int dtype;                      /* T                                                                             */
    moek_gemm_rows rows;
    int rows_per_expert;            /* 0: standard                                                                   */
    moek_epilogue epilogue;
    int invariant;                  /* a row's bits must not depend on how many rows other experts have              */
    int early;                      /* see above                                                                     */
    const int32_t *ids;             /* or NULL.  [slots] expert of each slot, as `sort` takes them; complete before the
                                       previous kernel begins, even if early.  Standard format.
                                       MOEK_TRAIT_SORTS_IDS, slots <= MOEK_SELF_SORT: with ids set, the kernel sorts
                                         the slots itself; counts, offsets and order are ignored.  up reads row
                                         slot / div and writes sorted rows; down reads sorted rows and writes slots.
                                       MOEK_TRAIT_COUNTS_IDS: the kernel counts the ids itself; counts and offsets are
                                         ignored.  order must be given, and may be written by the previous kernel,
                                         as a may                                                                     */
    int slots;                      /* with ids                                                                      */
    float *split;                   /* scratch, MOEK_SPLITS times the kernel's `scratch` bytes, or NULL.  With it, tiles
                                       are split along k, so that all blocks read as many bytes; the order of the sums
                                       then depends on counts                                                        */
    int32_t *split_flags;           /* [the kernel's `flags`], zeros before.  m = 128: the first counts the tiles that
                                       blocks, or pairs of blocks, have taken.  down, m = 128: these zeros, counts,
                                       order and out_order are complete before the previous kernel begins, even if
                                       early                                                                         */
    void *q;                        /* MOEK_TRAIT_QUANTIZES_OUT, gated; else NULL.  Not NULL: written, rows of n e4m3:
                                       what quant makes of out, which is not written                                 */
    float *q_scale;                 /* fp8t: [1], the static scale, read.  fp8b128: written, as MOEK_SCALE_ROW        */
    int a_row_bytes;                /* from a row of a to the next, a multiple of 16; 0: the bytes of k elements     */
    const float *a_global_scale;    /* of a, on top of a_scale: [1], where the format has that; else NULL            */
