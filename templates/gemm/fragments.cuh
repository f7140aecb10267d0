/* gemm/fragments.cuh -- up or down with weights in the order of fragments, on Hopper, of the rows r of each expert:
 * out[r] = act(gate(x[r]), up(x[r])), or out[r] = h[r] . w_down.  For gemm_fragments, gemm_fragments_bytes and
 * gemm_fragments_e4m3 of the table.
 *
 * A grouped GEMM by wgmma, persistent: one block an SM.  Weights have 4 or 8 bits and lie in the order of fragments
 * (moek/ops.h: repack).  A tile is M rows of a by N rows of w.  Rows of w are wgmma's M, and come from registers: a
 * lane loads 16 bytes of codes, makes T or e4m3 of them, and hands them to the tensor cores.  Rows of a are wgmma's N,
 * and come from shared memory.  Warps have roles:
 *
 *     producer warp (0): codes, scales of 4    producer warps (1, 2, 3): rows of a, their scales, and scales of w of
 *     bits, zero points                        8 bits, by cp.async
 *              | full [s]                                   ^ empty [s]
 *              v                                            |
 *     stages [s] of 128 of k: rows of a, of T two times 64 of k | codes of 64 rows each | scales of w | scales of a
 *              |
 *              v
 *     two, three or four consumer warpgroups (from warp 4 on): codes -> T or e4m3, wgmma, scales, exchange of sums,
 *                                                  bias, activation -> out
 *
 * - Walk: as in gemm_wgmma.  Tiles are numbered expert by expert, row block by row block, column by column; their
 *   stages are cut into equal parts, one a block.  Of tall tiles (M >= 96) blocks take whole ones in turns: tiles
 *   of an expert, which share rows of w and of a, are near each other in time, and L2 holds both.
 * - A last stage with 64 of k has its codes twice; the second ones meet zeros of a.
 * - A gated tile has half as many columns.  Rows of gate and of up alternate, 8 by 8, so that a thread has both of a
 *   column.
 * - a is T, scales of w are not for 128 x 128: conversion runs beside the tensor cores.  Registers for the next 64 of k
 *   are made while the 64 before are read.  From 32 rows on, registers for a stage's first 64 of k are made in the
 *   stage before, so that no stage begins with conversion.  Elements, of 4 bits times their scales, are w * 2^-shift
 *   (templates/element/), so that they fit in T.  The epilogue multiplies by 2^shift.
 * - BY_BLOCK, a is T and scales of w are for 128 x 128: the tensor cores sum 128 of k and up to 32 rows of a at a time.
 *   These sums are multiplied by the scales of w and added in f32.  Conversion of one warpgroup runs beside the tensor
 *   cores, which another one keeps busy.  Tall tiles have but two: each has two sets of such sums, and adds one while
 *   the tensor cores make the other.
 * - E4M3, a is e4m3: the tensor cores sum 128 of k and up to 96 rows of a at a time.  These sums are multiplied by
 *   scales and added in f32: sums of e4m3 keep few bits (docs/notes: thirteen-bit-sums).
 *   BLOCKED: scales of a are for 128 columns, and in the stages.  Else a row of a has one, for the sums of a tile.
 *   WHOLE: scales of w are e4m3, for 16 columns.  Elements take them in, times the power of 2 that brings the largest
 *   of 128 of k to 32 .. 60, and round to e4m3: only 1.5, 3 and 6 may differ then.  A scale that is below 2^-5 so
 *   counts as 0.  A lane has all 16 columns of a scale, so that one table serves 16 elements.  So the codes of a lane
 *   lie, and words of 4 of k of a: word 4q + i of 16 is word q of chunk i.
 *   Scales of w for 32 columns are powers of 2.  Elements take in how much they are below the largest of 128 of k, in
 *   tall tiles of the row up to there: exact to 2^-11, and 0 below.  So sums of tall tiles have one unit (RISES).
 *   Scales of w for 128 columns are multiplied by what the tensor cores sum.
 */
#ifndef MOEK_GEMM_FRAGMENTS_CUH
#define MOEK_GEMM_FRAGMENTS_CUH
#include "../../include/moek/kernel/sm90_schedule.h"
#include "../../include/moek/kernel/act.h"
#include "fragments_blocks.cuh"
#include "fragments_finish.cuh"

/* HIDDEN: the hidden size, or 0: a run has the size.  Format: of moek_formats.h. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format> struct moek_fragments_ {
    typedef moek_tiled_blocks_<Format, Format::IN_BLOCKS> File;
    enum {
        UP = OP == MOEK_OP_UP,
        OF_FILE = Format::IN_BLOCKS,                    /* blocks of GGUF files: codes, scales and f16 side by side */
        BYTES = Format::W_BITS == 8 && !OF_FILE, E4M3 = Format::X_BITS == 8,
        COLUMNS = Format::W_SCALE_COLUMNS,              /* of a scale; 0: all, and then it acts in the epilogue */
        BY_ROW = COLUMNS == 0 && !OF_FILE, BY_BLOCK = BYTES && COLUMNS > 0,
        ZERO = Format::ZERO,                            /* there may be zero points */
        TALL = M >= (BY_BLOCK || OF_FILE ? 64 : 96),
        GROUPS = !TALL ? 4 : E4M3 ? 3 : 2,              /* consumer warpgroups; 64s of w of each: */
        MI = N / 64 / GROUPS, CONSUMERS = 128 * GROUPS, THREADS = 128 + CONSUMERS,
        /* Bytes of a warp where its sums change lanes, and where factors lie of 32 rows in 64 of k; of all warps. */
        HEADS = 128 * File::HEAD, PAGE = M < 64 || HEADS > 512 ? HEADS : 512, ALL_PAGES = 4 * GROUPS * PAGE,
        PAGES = M == 128 && ALL_PAGES <= 6144 ? 0 : ALL_PAGES,         /* (M = 128 never sorts.) */
        X_SIZE = E4M3 ? 1 : 2,                          /* bytes of an element of a */
        /* Bytes of codes of 64 rows of w, of 128 of k; of blocks, two units and the f16 of these. */
        W_64 = OF_FILE ? 2 * File::UNIT + File::TOP : 1024 * Format::W_BITS,
        CODES = M * 128 * X_SIZE, SCALES = CODES + N / 64 * W_64,              /* in a stage: where they begin */
        /* Of 4 bits: scales of a row in 64 of k; their bytes, two rows; so many times in 128 of k; bytes of 64 rows. */
        G = !BY_ROW && !OF_FILE && COLUMNS < 64 ? 64 / (COLUMNS + BY_ROW + OF_FILE) : 1,
        EACH = BYTES || BY_ROW || OF_FILE ? 0 : 2 * G * Format::W_SCALE_BITS / 8,
        UNITS = !BY_ROW && COLUMNS < 128 ? 2 : 1,
        OF_64 = 32 * EACH,
        ZEROS = ZERO ? N / 64 * UNITS * OF_64 / 4 : 0,  /* bytes of zero points of a stage */
        X_SCALES = SCALES + (BY_BLOCK ? N / 8 : N / 64 * OF_64 * UNITS),
        BLOCKED = Format::X_SCALE_COLUMNS > 0, WHOLE = E4M3 && COLUMNS == 16, RISES = TALL && BLOCKED,
        STAGE = (X_SCALES + (BLOCKED ? 4 * M : 0) + 1023) / 1024 * 1024,
        PIPED = M >= 32,                                /* an item becomes T while another one is multiplied */
        AHEAD = M != 64 || TALL,                        /* 64 rows have no registers for the item behind the next */
        PART = E4M3 ? (M == 128 || M == 64 ? M / 2 : M) : M > 32 ? 32 : M,     /* rows of a of a sum of tensor cores */
        SETS = TALL ? 2 : 1                             /* BY_BLOCK: of such sums */
    };

#ifdef MOEK_SM90_CODE_
    /* What all roles of a block know: its shared memory, facts of the GEMM, and the block's range of it. */
    struct block {
        unsigned char *ring;                           /* stages */
        uint64_t *full, *empty;                        /* barriers [STAGES] */
        int *row;                                      /* [M]: the tile's rows of a; slots, [M] a warp */
        uint16_t *ids;                                 /* [MOEK_SELF_SORT], where the block sorts */
        unsigned char *page;                           /* of warps: where sums change lanes, and factors lie */
        unsigned char *zeros;                          /* of stages, where there are such */
        moek_work_range_ range;
        int n, k, columns;                             /* columns: of a tile */
    };
    /* What a lane converts at a time, to T: of 64 rows of w and 64 of k. */
    struct item {
        moek_words_ codes[File::WORDS_16];
        uint32_t more[File::MORE > 0 ? File::MORE : 1];                /* OF_FILE: the second plane */
        uint32_t scales[EACH > 0 ? EACH / 4 : 1], zeros;
    };

    /* ---- producers ----------------------------------------------------------------------------------------------- */

    /* OF_FILE: a stage of codes with scales, and the f16 that act on those.  apart: bytes of 64 rows. */
    MOEK_DEVICE void ask_units(unsigned char *to, const unsigned char *from, unsigned last, unsigned apart, int step,
                               int k, uint64_t *full, uint64_t policy)
    {
        const int once = 128 * step + 64 == k;          /* there are 64 of k: twice */
        unsigned i;
        #pragma unroll
        for (i = 0; i < N / 64; i++) {
            const unsigned char *const at = from + (size_t)(min(i, last) * apart);
            moek_bulk_(to + i * W_64, at, once ? File::UNIT : 2 * File::UNIT, full, policy);
            if (once) moek_bulk_(to + i * W_64 + File::UNIT, at, File::UNIT, full, policy);
            if constexpr (File::TOP > 0)
                moek_bulk_(to + i * W_64 + 2 * File::UNIT, at + File::to_top(2 * step), File::TOP, full, policy);
        }
    }
    /* Producer of codes, and of scales of 4 bits, one thread: weights are there before anything else is. */
    MOEK_DEVICE void produce(const moek_gemm_ *args, const block *b, int zero)
    {
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const uint64_t policy = TALL ? moek_evict_normal_() : moek_evict_first_();
        /* Bytes of 64 rows.  (Zero points of a row have a byte.) */
        enum { TWO = COLUMNS > 0 ? 2 * COLUMNS : 1 };
        const unsigned blocks = (unsigned)a->w_rows / 64;
        const unsigned codes_row = OF_FILE ? (unsigned)File::of_rows(b->k) : (unsigned)b->k / 64 * (W_64 / 2);
        const unsigned scales_row = ((unsigned)b->k * UNITS + 127) / 128 * OF_64;
        const unsigned zeros_row = ((unsigned)b->k + TWO - 1) / TWO * 64;
        moek_tile_ tile;
        int tile_index, slot = 0, phase = 1, step = TALL ? 0 : b->range.first_step, i;
        tile.e = -1;
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += moek_stride_of_(M)) {
            const unsigned char *codes, *scales = NULL, *zeros = NULL;
            const int until = !TALL && tile_index == b->range.last - 1 ? b->range.last_step : b->range.steps;
            size_t first;
            unsigned last;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, b->columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            first = (size_t)tile.e * blocks + (unsigned)tile.j * (N / 64);
            last = min(N / 64 - 1, blocks - 1 - tile.j * (N / 64));      /* (behind it: the last again, in vain) */
            codes = (const unsigned char *)a->w.codes + first * codes_row +
                    (OF_FILE ? File::of_step(2 * step) : (unsigned)step * W_64);
            if constexpr (!BYTES && !OF_FILE)
                scales = (const unsigned char *)a->w.scales + first * scales_row + (unsigned)step * (UNITS * OF_64);
            if constexpr (ZERO)
                zeros = (const unsigned char *)args->w.zero_points + first * zeros_row +
                        (unsigned)step * (UNITS * OF_64 / 4);
            for (; step < until; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                unsigned char *const smem_codes = stage + CODES, *const scales_to = stage + SCALES;
                uint64_t *const full = b->full + slot;
                moek_mbar_wait_(b->empty + slot, phase);
                moek_mbar_arrive_expect_(full, N / 64 * (W_64 + UNITS * OF_64) + (zero ? ZEROS : 0));
                if constexpr (OF_FILE) {
                    ask_units(smem_codes, codes, last, codes_row, step, b->k, full, policy);
                } else if (128 * step + 64 != b->k) {
                    #pragma unroll
                    for (i = 0; i < N / 64; i++) {
                        moek_bulk_(smem_codes + i * W_64, codes + min(i, last) * codes_row, W_64, full, policy);
                        if (BYTES || BY_ROW) continue;
                        moek_bulk_(scales_to + i * (UNITS * OF_64), scales + min(i, last) * scales_row, UNITS * OF_64,
                                   full, policy);
                        if (zero)
                            moek_bulk_(b->zeros + slot * ZEROS + i * (UNITS * OF_64 / 4),
                                       zeros + min(i, last) * zeros_row, UNITS * OF_64 / 4, full, policy);
                    }
                } else {                                               /* there are 64 of k: twice */
                    #pragma unroll 1
                    for (i = 0; i < N / 64 * 2; i++)
                        moek_bulk_(smem_codes + i * (W_64 / 2), codes + min(i / 2, last) * codes_row, W_64 / 2, full,
                                   policy);
                    #pragma unroll 1
                    for (i = 0; !BYTES && !BY_ROW && i < N / 64 * UNITS; i++)
                        moek_bulk_(scales_to + i * OF_64, scales + min(i / UNITS, last) * scales_row, OF_64, full,
                                   policy);
                    #pragma unroll 1
                    for (i = 0; zero && !BY_ROW && i < N / 64 * UNITS; i++)
                        moek_bulk_(b->zeros + slot * ZEROS + i * (OF_64 / 4), zeros + min(i / UNITS, last) * zeros_row,
                                   OF_64 / 4, full, policy);
                }
                if (OF_FILE) codes += File::of_step(2 * step + 2) - File::of_step(2 * step);
                else codes += W_64;
                scales += UNITS * OF_64;
                zeros += UNITS * OF_64 / 4;
                moek_next_(slot, phase, STAGES);
            }
            step = 0;
        }
    }

    /* By the producers of rows of a, u of 96: the list of a tile's rows of expert e, [row0, end), each times pitch.
     * Returns how many. */
    MOEK_DEVICE int list_rows(const moek_gemm_ *a, const block *b, int e, int row0, int end, unsigned u,
                              unsigned pitch)
    {
        int *const row = b->row;
        int source[(M + 95) / 96];
        unsigned i;
        #pragma unroll
        for (i = 0; i < (M + 95) / 96; i++) {
            const int r = row0 + (int)(u + 96 * i);
            source[i] = r >= end ? 0 : a->rows.order && (M == 128 || !a->ids) ? a->rows.order[r] / a->rows.div : r;
        }
        moek_named_wait_(1, 96);                       /* the rows before are no longer looked at */
        if (UP && M < 128 && a->ids) {
            if (u < 32)
                moek_slots_of_(row, b->ids, a->slots, e, row0 - b->range.s.row[e], M, a->rows.div);
            if constexpr (WHOLE)
                for (i = u; i < M && u < 32; i += 32) row[i] *= pitch;
        } else
            #pragma unroll
            for (i = 0; i < (M + 95) / 96; i++)
                if (u + 96 * i < M) row[u + 96 * i] = source[i] * (int)pitch;
        moek_named_wait_(1, 96);
        return min(end - row0, M);
    }
    /* Producer of rows of a, three warps.  Rows lie in a stage as they lie in memory, 128 bytes of each, with wgmma's
     * swizzle. */
    MOEK_DEVICE void gather(const moek_gemm_ *a, const block *b)
    {
        enum { ROWS = (M + 11) / 12 };
        /* A lane copies 16 bytes of each 128 of the rows first, first + 12, ... */
        const unsigned u = threadIdx.x - 32, chunk = u % 8, first = u / 8;
        const unsigned smem_offset = first * 128 + (chunk ^ first % 8) * 16;
        unsigned x_offset[ROWS];                       /* where they are, in 16 bytes */
        const int row_bytes = b->k * X_SIZE;
        int *const row = b->row;
        int tile_index, slot = 0, phase = 1, step = TALL ? 0 : b->range.first_step, rows = 0, row0 = -1;
        const float *w_scale = NULL;
        unsigned i;
        moek_tile_ tile;
        tile.e = -1;
        moek_grid_wait_();                             /* now a is there */
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += moek_stride_of_(M)) {
            const int until = !TALL && tile_index == b->range.last - 1 ? b->range.last_step : b->range.steps;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, b->columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            if (tile.row0 != row0) {
                rows = list_rows(a, b, tile.e, tile.row0, tile.end, u, 1);
                row0 = tile.row0;
                #pragma unroll
                for (i = 0; i < ROWS; i++)
                    x_offset[i] = first + 12 * i >= (unsigned)rows ? 0
                            : (unsigned)row[first + 12 * i] * ((unsigned)a->a_row_bytes / 16) + chunk;
            }
            if (BY_BLOCK && u < N / 32) {              /* half u % 2 of 64 rows of w: their scale, of the first 128 */
                const int w_column = tile.j0 + u / 2 * (UP && a->w_rows > b->n ? 32 : 64);
                const moek_gate_up_ *const h = &a->gate_up;
                w_scale = h->scales[u % 2] + ((size_t)tile.e * h->scale_rows +
                          (h->shift[u % 2] + min(w_column, b->n - 1) * h->step) / 128) * (size_t)b->range.steps;
            }
            for (; step < until; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                const int k_byte = step * (128 * X_SIZE);
                const unsigned char *const at_k = (const unsigned char *)a->a + k_byte;
                const int bytes = k_byte + (int)chunk * 16 < row_bytes ? 16 : 0;
                const int bytes_64 = k_byte + 128 + (int)chunk * 16 < row_bytes ? 16 : 0;      /* of the next 64 of k */
                moek_mbar_wait_(b->empty + slot, phase);
                #pragma unroll
                for (i = 0; i < ROWS; i++)                             /* 12 rows on, the swizzle is 4 chunks on */
                    if (first + 12 * i < (unsigned)rows) {
                        unsigned char *const smem_x = stage + i * (12 * 128) + (smem_offset ^ i % 2 * 64);
                        moek_cp_async16_(smem_x, at_k + (size_t)x_offset[i] * 16, bytes);
                        if (!E4M3) moek_cp_async16_(smem_x + M * 128, at_k + (size_t)x_offset[i] * 16 + 128, bytes_64);
                    }
                if (BY_BLOCK && u < N / 32) moek_cp_async4_(b->ring + slot * STAGE + SCALES + u * 4, w_scale + step);
                for (i = u; BLOCKED && i < (unsigned)rows; i += 96)
                    moek_cp_async4_(stage + X_SCALES + i * 4, MOEK_F32_(a->a_scale) +
                                    (size_t)(uint32_t)row[i] * (uint32_t)b->range.steps + step);
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
            }
            step = 0;
        }
        moek_cp_async_commit_();
        moek_cp_async_wait_(0);
    }
    /* WHOLE: the same by words, into another order. */
    MOEK_DEVICE void gather_words(const moek_gemm_ *a, const block *b)
    {
        const unsigned u = threadIdx.x - 32, word = u % 32, chunk = word / 16 * 4 + word % 4;      /* from, to */
        const int row_bytes = b->k;
        const unsigned char *const x = (const unsigned char *)a->a + word * 4;
        int *const row = b->row;
        int tile_index, slot = 0, phase = 1, step = TALL ? 0 : b->range.first_step, rows = 0, row0 = -1;
        const unsigned pitch = (unsigned)a->a_row_bytes / 16;          /* row: where rows begin, in 16 bytes */
        unsigned at_word[8], i, j;                                     /* in eight rows of a stage */
        moek_tile_ tile;
        #pragma unroll
        for (j = 0; j < 8; j++) at_word[j] = j * 128 + (chunk ^ j) * 16 + word % 16 / 4 * 4;
        tile.e = -1;
        moek_grid_wait_();                             /* now a is there */
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += moek_stride_of_(M)) {
            const int until = !TALL && tile_index == b->range.last - 1 ? b->range.last_step : b->range.steps;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, b->columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            if (tile.row0 != row0) {
                rows = list_rows(a, b, tile.e, tile.row0, tile.end, u, pitch);
                row0 = tile.row0;
            }
            for (; step < until; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                const int k_byte = step * 128;
                const int bytes = k_byte + (int)word * 4 < row_bytes ? 4 : 0;
                const unsigned char *const at_k = (const unsigned char *)moek_opaque_ptr_(x + (bytes ? k_byte : 0));
                moek_mbar_wait_(b->empty + slot, phase);
                #pragma unroll 1
                for (i = u / 32 * 8; i < (unsigned)rows; i += 24) {    /* a warp copies eight rows, one by one */
                    const moek_words_ offsets[2] = { moek_load_words_(row + i), moek_load_words_(row + i + 4) };
                    const unsigned left = (unsigned)rows - i;
                    #pragma unroll
                    for (j = 0; j < 8; j++)
                        if (j < left)
                            moek_cp_async4_of_(stage + i * 128 + at_word[j],
                                               at_k + (size_t)offsets[j / 4].w[j % 4] * 16, bytes);
                }
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
            }
            step = 0;
        }
        moek_cp_async_commit_();
        moek_cp_async_wait_(0);
    }

    /* ---- consumers, a is T: conversion ahead --------------------------------------------------------------------- */

    /* d (+)= 64 rows of w in registers times R rows of a, 16 of k, of e4m3 32. */
    template <int R> MOEK_DEVICE void multiply(float *d, const uint32_t w[4], uint64_t xs, int add, int dtype)
    {
        if (E4M3) moek_wgmma_of_registers_e4m3_<R>(d, w, xs, add);
        else if (dtype == MOEK_DTYPE_FP16) moek_wgmma_of_registers_fp16_<R>(d, w, xs, add);
        else moek_wgmma_of_registers_bf16_<R>(d, w, xs, add);
    }
    /* 8 bits: 32 of k of this lane's two rows -> T.  odd: for a NaN in row g of 64 rows `m64`, bit 7 - 2 * m64 of a
     * byte; in row g + 8, the one below.  (fp16 shows it.) */
    MOEK_DEVICE void convert(uint32_t fragment[2][4], const moek_words_ *codes, uint32_t *odd, int m64, int dtype)
    {
        int i;
        #pragma unroll
        for (i = 0; i < 2; i++) {                      /* 16 of k: 4 of row g, 4 of row g + 8 */
            uint32_t pairs[4];
            Format::w_pairs(pairs, codes->w + 2 * i, 0, 0, dtype);
            fragment[i][0] = pairs[0]; fragment[i][1] = pairs[2]; fragment[i][2] = pairs[1]; fragment[i][3] = pairs[3];
        }
        #pragma unroll
        for (i = 0; i < 2 && dtype == MOEK_DTYPE_BF16; i++) {
            const uint32_t both[2] = { codes->w[i], codes->w[i + 2] };
            *odd |= Format::w_nan(both) >> (2 * m64 + i);
        }
    }
    /* Item i of a stage: all rows of w of the first 64 of k come first. */
    MOEK_DEVICE void load(item *loaded, const block *b, int slot, int warpgroup, const uint32_t *row_zeros, int zero,
                          int i)
    {
        const unsigned char *const stage = b->ring + slot * STAGE;
        const int m64 = i % MI, half = i / MI, block = warpgroup * MI + m64, t = threadIdx.x % 128;
        int k;
        if constexpr (OF_FILE) {
            const unsigned char *const unit = stage + CODES + block * W_64 + half * File::UNIT;
            #pragma unroll
            for (k = 0; k < File::WORDS_16 && File::PLANE >= 4; k++)
                loaded->codes[k] = moek_load_words_(unit + k * 2048 + t * 16);
            #pragma unroll
            for (k = 0; k < File::PLANE && File::PLANE < 4; k++)
                loaded->codes[0].w[k] = ((const uint32_t *)(const void *)(unit + t * (4 * File::PLANE)))[k];
            #pragma unroll
            for (k = 0; k < File::MORE; k++)
                loaded->more[k] = ((const uint32_t *)(const void *)(unit + 512 * File::PLANE +
                                                                    t * (4 * File::MORE)))[k];
        } else {
            #pragma unroll
            for (k = 0; k < Format::W_BITS / 4; k++)
                loaded->codes[k] = moek_load_words_(stage + CODES + block * W_64 +
                                                    ((BYTES ? 2 * half : half) + k) * 2048 + t * 16);
        }
        #pragma unroll
        for (k = 0; k < EACH / 4; k++)
            loaded->scales[k] = ((const uint32_t *)(const void *)(stage + SCALES + (block * UNITS + half % UNITS) *
                                                                  OF_64 + t / 4 * EACH))[k];
        if (zero) {
            const unsigned char *const zeros = b->zeros + slot * ZEROS + (block * UNITS + half % UNITS) * (OF_64 / 4) +
                                            t / 4 * (EACH / 4);
            if (BY_ROW) loaded->zeros = row_zeros[m64];
            else loaded->zeros = G == 2 ? *(const uint16_t *)(const void *)zeros : *zeros;
        }
    }
    /* OF_FILE: a lane makes the factors of one of the warp's rows of w in 64 of k: of its 16 rows in half 0 or 1 of a
     * stage, or with two 64s of rows of 32 rows in one half.  That is 16 rows of two items, number i and the next. */
    MOEK_DEVICE uint32_t *heads_of(const block *b, int i)
    {
        return (uint32_t *)(void *)(b->page + (threadIdx.x / 32 - 4) * PAGE) + i % 2 * (16 * File::HEAD);
    }
    MOEK_DEVICE typename File::raw load_heads(const block *b, int slot, int warpgroup, int i)
    {
        const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16, item = i + lane / 16;
        const unsigned char *const rows = b->ring + slot * STAGE + CODES + (warpgroup * MI + item % MI) * W_64;
        return File::raw_of(rows + item / MI * File::UNIT, rows + 2 * File::UNIT, row);
    }
    MOEK_DEVICE void keep_heads(const block *b, const typename File::raw *raw, int dtype)
    {
        const int lane = threadIdx.x % 32;
        uint32_t f[File::HEAD];
        File::factors(f, raw, lane % 16, dtype);
        __syncwarp();                                   /* all lanes are done with those before */
        File::put(heads_of(b, 0) + lane * File::HEAD, f);
        __syncwarp();
    }
    /* Item i of a stage becomes T. */
    MOEK_DEVICE void to_t(uint32_t w[4][4], const item *it, const block *b, int i, uint32_t *odd, int zero, int dtype)
    {
        int k;
        if constexpr (OF_FILE) {
            const uint32_t *const g = heads_of(b, i) + moek_opaque_int_(threadIdx.x) % 32 / 4 * File::HEAD;
            uint32_t two[2][2];                        /* factors of rows g and g + 8 */
            #pragma unroll
            for (k = 0; k < 4; k++) {
                const int j = k * 16 / File::COLUMNS * File::EACH;
                const uint32_t *const by[2] = { two[0] + j % 2, two[1] + j % 2 };
                if (j % 2 == 0 && k * 16 % File::COLUMNS == 0)
                    File::get(two[0], g + j), File::get(two[1], g + 8 * File::HEAD + j);
                File::weights(w[k], it->codes, it->more, by, k, dtype);
            }
        } else if constexpr (BYTES) {
            #pragma unroll
            for (k = 0; k < 2; k++) convert(w + 2 * k, it->codes + k, odd, i % MI, dtype);
        } else {
            Format::fragment(w, it->codes, it->scales, zero ? it->zeros : 0, zero, dtype);
        }
    }
    /* A stage, 64 of k and 64 rows of w at a time.  The last multiplication is not waited for; the one of the stage
     * before is, and then that stage (if `had`) given back.
     * From 32 rows on, the next item becomes T while one is multiplied: w has this stage's first item, and then the
     * next stage's (`next`, whose barrier has that phase); it: the one behind that. */
    MOEK_DEVICE void step_ahead(float sum[MI][M / 2], uint32_t w[2][4][4], item *it, const block *b, int slot,
                                int next, int next_phase, int had, int warpgroup, uint32_t *odd,
                                const uint32_t *row_zeros, int zero, int dtype)
    {
        enum { ITEMS = 2 * MI };
        const uint64_t xs = moek_uniform_(moek_wgmma_operand_(b->ring + slot * STAGE));
        item items[PIPED ? 1 : ITEMS];
        int i, k;
        if constexpr (!PIPED)
            #pragma unroll
            for (i = 0; i < ITEMS; i++) load(items + i, b, slot, warpgroup, row_zeros, zero, i);
        if constexpr (!PIPED && OF_FILE) {
            const typename File::raw raw = load_heads(b, slot, warpgroup, 0);
            keep_heads(b, &raw, dtype);
        }
        #pragma unroll
        for (i = 0; i < ITEMS; i++) {
            if constexpr (!PIPED) to_t(w[i % 2], items + i, b, i, odd, zero, dtype);
            moek_wgmma_fence_();
            #pragma unroll
            for (k = 0; k < 4; k++)
                multiply<M>(sum[i % MI], w[i % 2][k], xs + i / MI * (M * 128 / 16) + 2 * k, 1, dtype);
            moek_wgmma_commit_();
            moek_wgmma_wait_(1);
            if (i == 0 && had) moek_mbar_arrive_warp_(b->empty + (slot ? slot : STAGES) - 1);
            if constexpr (PIPED) {
                const int heads = OF_FILE && (i == ITEMS - 2 || i == 0);       /* of two items: as AHEAD */
                typename File::raw raw;
                if constexpr (OF_FILE) {
                    if (i == ITEMS - 2) moek_mbar_wait_(b->full + next, next_phase);
                    if (heads) raw = load_heads(b, i < ITEMS - 2 ? slot : next, warpgroup, (i + 2) % ITEMS);
                }
                if (AHEAD) to_t(w[(i + 1) % 2], it, b, (i + 1) % ITEMS, odd, zero, dtype);
                if (!OF_FILE && i == ITEMS - 1 - AHEAD) moek_mbar_wait_(b->full + next, next_phase);
                if constexpr (OF_FILE) if (heads) keep_heads(b, &raw, dtype);
                load(it, b, i < ITEMS - 1 - AHEAD ? slot : next, warpgroup, row_zeros, zero, (i + 1 + AHEAD) % ITEMS);
                if (!AHEAD) to_t(w[(i + 1) % 2], it, b, (i + 1) % ITEMS, odd, zero, dtype);
            }
        }
    }

    /* ---- consumers, sums of 128 of k with scales ----------------------------------------------------------------- */

    /* BY_BLOCK: sums of 128 of k, times the scales of rows g and g + 8, to the sums of the stages before: of 64 rows
     * of w and of rows p * PART on of a. */
    MOEK_DEVICE void add(float *sum, const float *part, const float scale[2], int p)
    {
        int i;
        #pragma unroll
        for (i = 0; i < PART / 4; i++) {               /* rows 2q and 2q + 1 of a of each 8, rows g and g + 8 of w */
            const int part_reg = i / 2 * 4 + i % 2, sum_reg = p * (PART / 2) + part_reg;
            sum[sum_reg] += part[part_reg] * scale[0];
            sum[sum_reg + 2] += part[part_reg + 2] * scale[1];
        }
    }
    /* BY_BLOCK: a stage.  This lane's codes become T, 64 of k and 64 rows of w at a time, and are multiplied.  The sums
     * are scaled and added to the sums of earlier stages, and the stage is given back. */
    MOEK_DEVICE void step_by_block(float sum[MI][M / 2], const block *b, int slot, uint32_t *odd, int warpgroup,
                                   int dtype)
    {
        const unsigned char *const stage = b->ring + slot * STAGE;
        const unsigned char *const codes_at = stage + CODES + warpgroup * (MI * 8192) + threadIdx.x % 128 * 16;
        const uint64_t xs = moek_uniform_(moek_wgmma_operand_(stage));
        int i, k, p, c;
        #pragma unroll
        for (i = 0; i < MI; i++) {
            uint32_t w[8][4];
            float part[SETS][PART / 2], scale[2];
            #pragma unroll
            for (k = 0; k < 2; k++)
                scale[k] = ((const float *)(const void *)(stage + SCALES))[(warpgroup * MI + i) * 2 + k];
            #pragma unroll
            for (p = 0; p < M / PART; p++) {
                #pragma unroll
                for (k = 0; k < 8; k++) {              /* of 16 of k */
                    if (p == 0 && k % 4 == 0)
                        #pragma unroll
                        for (c = 0; c < 2; c++) {
                            const moek_words_ codes = moek_load_words_(codes_at + i * 8192 + (k / 2 + c) * 2048);
                            convert(w + k + 2 * c, &codes, odd, i, dtype);
                        }
                    if (k == 0 || (p == 0 && k == 4)) moek_wgmma_fence_();
                    multiply<PART>(part[p % SETS], w[k],
                                   xs + p * (PART * 128 / 16) + k / 4 * (M * 128 / 16) + 2 * (k % 4), k > 0, dtype);
                    if (p == 0 && k == 3) {
                        moek_wgmma_commit_();
                        moek_wgmma_wait_(1);
                    }
                }
                moek_wgmma_commit_();
                if (p >= SETS - 1) {                   /* with two sets, these are made while those before are added */
                    moek_wgmma_wait_(SETS - 1);
                    add(sum[i], part[(p + 1) % SETS], scale, p + 1 - SETS);
                }
            }
            if (SETS > 1) {
                moek_wgmma_wait_(0);
                add(sum[i], part[(p + 1) % SETS], scale, p + 1 - SETS);
            }
        }
        moek_mbar_arrive_warp_(b->empty + slot);
    }
    /* E4M3: as add. */
    MOEK_DEVICE void add_e4m3(float *sum, const float *part, const float *scale, const unsigned char *stage, int p)
    {
        int i;
        #pragma unroll
        for (i = 0; i < PART / 4; i++) {
            const int part_reg = i / 2 * 4 + i % 2, sum_reg = p * (PART / 2) + part_reg;
            if (BLOCKED) {
                const float x = ((const float *)(const void *)(stage + X_SCALES))
                                [p * PART + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2];
                sum[sum_reg] += part[part_reg] * (RISES ? x : x * scale[0]);
                sum[sum_reg + 2] += part[part_reg + 2] * (RISES ? x : x * scale[1]);
            } else {
                sum[sum_reg] += part[part_reg] * scale[0];
                sum[sum_reg + 2] += part[part_reg + 2] * scale[1];
            }
        }
    }
    /* E4M3: a stage.  This lane's codes become e4m3, 64 of k and 64 rows of w at a time, and are multiplied.  The sums
     * are scaled and added to the sums of earlier stages, and the stage is given back.  top: RISES; see consume. */
    MOEK_DEVICE void step_e4m3(float sum[MI][M / 2], const block *b, int slot, uint32_t *top, int warpgroup)
    {
        const unsigned char *const stage = b->ring + slot * STAGE;
        const unsigned char *const codes_at = stage + CODES + warpgroup * (MI * 4096) + threadIdx.x % 128 * 16;
        const unsigned char *const scales_at = stage + SCALES + warpgroup * (MI * UNITS * OF_64) +
            (WHOLE ? threadIdx.x % 128 * 2 : threadIdx.x % 128 / 4 * EACH);
        const uint64_t xs = moek_uniform_(moek_wgmma_operand_(stage));
        int i, k, p;
        #pragma unroll
        for (i = 0; i < MI; i++) {
            moek_words_ codes[2];
            uint32_t scales[2], w[4][4];
            float part[PART / 2];
            typename Format::folded folded;
            #pragma unroll
            for (k = 0; k < 2; k++) {
                codes[k] = moek_load_words_(codes_at + i * 4096 + k * 2048);
                {
                    const void *const codes_scales = scales_at + i * (UNITS * OF_64) + k * (UNITS == 2 ? OF_64 : 4);
                    scales[k] = WHOLE ? *(const uint16_t *)codes_scales : *(const uint32_t *)codes_scales;
                }
            }
            if constexpr (RISES) {
                float rescale[2];
                if (Format::rescale_up(&folded, scales, top + i, rescale))         /* seldom */
                    #pragma unroll
                    for (p = 0; p < M / 2; p++) sum[i][p] *= rescale[p % 4 / 2];
            } else {
                Format::fold_scale(&folded, scales);
            }
            #pragma unroll
            for (p = 0; p < M / PART; p++) {
                #pragma unroll
                for (k = 0; k < 4; k++) {              /* of 32 of k */
                    if (p == 0 && k % 2 == 0) Format::fragment_e4m3(w + k, &codes[k / 2], &folded, k / 2);
                    if (k == 0 || (p == 0 && k == 2)) moek_wgmma_fence_();
                    multiply<PART>(part, w[k], xs + p * (PART * 128 / 16) + 2 * k, k > 0, 0);
                    if (p == 0 && k == 1) {
                        moek_wgmma_commit_();
                        moek_wgmma_wait_(1);
                    }
                }
                moek_wgmma_commit_();
                moek_wgmma_wait_(0);
                add_e4m3(sum[i], part, folded.by, stage, p);
            }
        }
        moek_mbar_arrive_warp_(b->empty + slot);
    }

    /* ---- consumers ----------------------------------------------------------------------------------------------- */

    /* The first column of the warp's 16 rows of w.  block: of 64 rows of w of the tile. */
    MOEK_DEVICE int first_column(const moek_gemm_ *a, const moek_tile_ *tile, int n, int block)
    {
        const int warp = threadIdx.x % 128 / 32;
        return tile->j0 + (UP && a->w_rows > n ? 32 * block + 8 * warp : 64 * block + 16 * warp);
    }
    /* Scale, bias, activation, and out.  sum: this lane's rows of w g and g + 8 (gated: of gate and of up, or the other
     * way round), columns 2q and 2q + 1 of each 8 rows of a.  block: of 64 rows of w of the tile.  rows: where its rows
     * of a go, or -1.  a_scales: E4M3, not BLOCKED: of the tile's rows lane, lane + 32, ... of a. */
    MOEK_DEVICE void finish(const moek_gemm_ *args, float *sum, const moek_tile_ *tile, const int *rows,
                            const float *a_scales, unsigned char *page, int n, int block, int dtype)
    {
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int lane = threadIdx.x % 32;
        const int gated = UP ? a->w_rows > n : 0, swapped = UP ? a->gate_up.swapped : 0;
        const int j = first_column(a, tile, n, block);
        const float shift_factor = Format::shift_factor(dtype);      /* sums are too small by it */
        float scale[2] = { shift_factor, shift_factor }, bias[2] = {0, 0};
        int i;
        if (j >= n) return;
        moek_scale_and_bias_<UP, !E4M3 && BY_ROW, Format>(scale, bias, args, tile->e, j, gated, dtype);
        #pragma unroll
        for (i = 0; i < M / 2; i += E4M3 && !BLOCKED ? 2 : 1) {
            if (E4M3 && !BLOCKED) {                    /* a row of a: its scale */
                const int r = i / 4 * 8 + i / 2 % 2, sum_reg = i / 4 * 4 + i / 2 % 2;
                const float s = __shfl_sync(0xffffffff, a_scales[r / 32], r % 32 + moek_opaque_int_(lane % 4 * 2));
                sum[sum_reg] = sum[sum_reg] * s * scale[0] + bias[0];
                sum[sum_reg + 2] = sum[sum_reg + 2] * s * scale[1] + bias[1];
            } else {
                sum[i] = sum[i] * scale[i % 4 / 2] + bias[i % 4 / 2];
            }
        }
        if constexpr (UP) moek_act_sums_<M>(a, sum, swapped);
        moek_store_sums_(sum, M, gated, page + (threadIdx.x / 32 - 4) * PAGE, rows, a->out, n, j, dtype);
    }
    /* A warpgroup multiplies its rows of w of a tile. */
    MOEK_DEVICE void consume(const moek_gemm_ *args, const block *b, int zero, int dtype)
    {
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int t = threadIdx.x, warpgroup = t / 128 - 1, steps = b->range.steps;
        moek_tile_ tile;
        int tile_index, first_step = TALL ? 0 : b->range.first_step, slot = 0, phase = 0, row0 = -1, i, j;
        int *const rows = b->row + (t / 32 - 3) * M;   /* of this warp: where the tile's rows go, or -1 */
        uint32_t w[2][4][4], row_zeros[MI] = {0}, odd;
        item it;
        float a_scales[(M + 31) / 32];                 /* of the tile's rows of a, 32 apart, if not BLOCKED */
        tile.e = -1;
        moek_grid_wait_();
        for (tile_index = b->range.tile;
             tile_index < (M >= 96 ? b->range.s.block[moek_opaque_int_(a->experts)] * b->range.tiles : b->range.last);
             tile_index += moek_stride_of_(M)) {
            const int until = !TALL && tile_index == b->range.last - 1 ? b->range.last_step : steps;
            const int first = first_step, whole = first == 0 && until == steps;
            float sum[MI][M / 2];
            int step;
            if (TALL)
                moek_tile_at_(a, &b->range, tile_index, M,
                                UP && moek_opaque_int_(a->w_rows) > b->n ? N / 2 : N, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            if (tile.row0 != row0) {
                const int tile_rows = min(tile.end - tile.row0, M);
                if (!UP && M < 128 && a->ids) {
                    moek_slots_of_(rows, b->ids, a->slots, tile.e, tile.row0 - b->range.s.row[tile.e], M, 1);
                } else {
                    __syncwarp();                      /* the list before is no longer looked at */
                    for (i = t % 32; i < tile_rows; i += 32)
                        if (a->rows.out_order && (M == 128 || !a->ids))
                            moek_cp_async4_(rows + i, a->rows.out_order + tile.row0 + i);
                        else rows[i] = tile.row0 + i;
                }
                for (i = tile_rows + t % 32; i < M; i += 32) rows[i] = -1;
                __syncwarp();
                #pragma unroll
                for (i = 0; E4M3 && !BLOCKED && i < (M + 31) / 32; i++) {
                    const int r = tile.row0 + 32 * i + t % 32;
                    a_scales[i] = r >= tile.end ? 0
                                : MOEK_F32_(a->a_scale)[a->rows.order ? a->rows.order[r] / a->rows.div : r];
                }
                row0 = tile.row0;
            }
            #pragma unroll
            for (i = 0; i < MI; i++)
                #pragma unroll
                for (j = 0; j < M / 2; j++) sum[i][j] = 0;
            odd = 0;
            if constexpr (E4M3) {
                uint32_t top[MI];                      /* the largest scale of w up to here, of rows g and g + 8 */
                if constexpr (RISES)
                    #pragma unroll
                    for (i = 0; i < MI; i++) top[i] = Format::lowest;
                for (step = first; step < until; step++) {
                    moek_mbar_wait_(b->full + slot, phase);
                    step_e4m3(sum, b, slot, top, warpgroup);
                    moek_next_(slot, phase, STAGES);
                }
                if constexpr (RISES)
                    #pragma unroll
                    for (i = 0; i < MI; i++) {
                        float scale[2];
                        Format::by(scale, top[i]);
                        #pragma unroll
                        for (j = 0; j < M / 2; j++) sum[i][j] *= scale[j % 4 / 2];
                    }
            } else if constexpr (BY_BLOCK) {
                for (step = first; step < until; step++) {
                    moek_mbar_wait_(b->full + slot, phase);
                    step_by_block(sum, b, slot, &odd, warpgroup, dtype);
                    moek_next_(slot, phase, STAGES);
                }
            } else {
                if constexpr (ZERO && BY_ROW)
                    if (zero)
                        #pragma unroll
                        for (i = 0; i < MI; i++)
                            row_zeros[i] = moek_row_zeros_(args, &tile, b->n,
                                                           first_column(a, &tile, b->n, warpgroup * MI + i),
                                                           UP ? a->w_rows > b->n : 0);
                if (PIPED && first < until) {
                    moek_mbar_wait_(b->full + slot, phase);
                    if constexpr (OF_FILE) {
                        const typename File::raw raw = load_heads(b, slot, warpgroup, 0);
                        keep_heads(b, &raw, dtype);
                    }
                    load(&it, b, slot, warpgroup, row_zeros, zero, 0);
                    to_t(w[0], &it, b, 0, &odd, zero, dtype);
                    if (AHEAD) load(&it, b, slot, warpgroup, row_zeros, zero, 1);
                }
                for (step = first; step < until; step++) {
                    const int this_slot = slot, this_phase = phase, last = step == until - 1;
                    if (!PIPED) moek_mbar_wait_(b->full + slot, phase);
                    moek_next_(slot, phase, STAGES);
                    /* Behind the last stage comes itself: there, and converted in vain. */
                    step_ahead(sum, w, &it, b, this_slot, last ? this_slot : slot, last ? this_phase : phase,
                               step > first, warpgroup, &odd, row_zeros, zero, dtype);
                }
                moek_wgmma_wait_(0);
                if (until > first) moek_mbar_arrive_warp_(b->empty + (slot ? slot : STAGES) - 1);
            }
            if constexpr (Format::W_CHECKED && BYTES) moek_spoil_<MI, M>(sum[0], odd);
            moek_cp_async_commit_();                   /* rows */
            moek_cp_async_wait_(0);
            __syncwarp();
            first_step = 0;
            if (!TALL && !whole &&
                moek_split_k_reduce_(a, &b->range, sum[0], M / 2, CONSUMERS, tile_index, first)) continue;
            #pragma unroll
            for (i = 0; i < MI; i++)
                finish(args, sum[i], &tile, rows, a_scales, b->page, b->n, warpgroup * MI + i, dtype);
        }
    }

    /* A block.  zero: there are zero points; a constant, as dtype is where a is T. */
    MOEK_DEVICE void run(const moek_gemm_ *args, int zero, int dtype)
    {
        MOEK_SHARED_1024_(shared);
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int t = threadIdx.x;
        block b;
        int i;
        b.ring = shared + (1024 - moek_shared_address_(shared) % 1024) % 1024;
        b.full = (uint64_t *)(b.ring + STAGES * STAGE); b.empty = b.full + STAGES;
        b.row = (int *)(b.empty + STAGES);
        b.ids = (uint16_t *)(b.row + (1 + CONSUMERS / 32) * M);
        b.page = (unsigned char *)b.ids + (PAGES > 0 ? 6144 + 8448 : 0);
        b.zeros = (unsigned char *)b.ids + 6144 + 8448 + PAGES;
        b.k = UP && HIDDEN ? HIDDEN : a->k; b.n = !UP && HIDDEN ? HIDDEN : a->n;
        b.columns = UP && a->w_rows > b.n ? N / 2 : N;
        b.range.tiles = (b.n + b.columns - 1) / b.columns;
        b.range.steps = (b.k + 127) / 128;
        if (t == 0) {
            for (i = 0; i < STAGES; i++) {
                moek_mbar_init_(b.full + i, 1 + 96);   /* the bytes of bulk copies, what threads copied */
                moek_mbar_init_(b.empty + i, CONSUMERS / 32);
            }
            moek_mbar_init_fence_();
        }
        moek_work_range_of_(a, &b.range, b.ids, (int *)(b.ids + MOEK_SELF_SORT), M, UP, 0);
        if (t < 128) {
            if constexpr (TALL) moek_registers_less_(E4M3 ? 80 : 72);
            else if (M >= 32) moek_registers_less_(64);
            if (t >= 32) {
                if constexpr (WHOLE) gather_words(a, &b);
                else gather(a, &b);
            } else if (moek_elect_()) {
                produce(args, &b, zero);
            }
        } else {
            if constexpr (TALL) moek_registers_more_(E4M3 ? 144 : 216);
            else if (M >= 32) moek_registers_more_(104);
            consume(args, &b, zero, dtype);
        }
    }
#else
    MOEK_DEVICE void run(const moek_gemm_ *args, int zero, int dtype) { (void)args; (void)zero; (void)dtype; }
#endif
};

/* Launches one of these kernels, of `shared` bytes of shared memory: of bf16 (with e4m3, of either T), of fp16, and the
 * same for zero points.  args NULL: makes them ready. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_fragments_(const void *args, moek_stream stream, int shared,
                                                      void (*bf16)(moek_gemm_),
                                                      void (*fp16)(moek_gemm_) = NULL,
                                                      void (*bf16_zero)(moek_gemm_) = NULL,
                                                      void (*fp16_zero)(moek_gemm_) = NULL)
{
    typedef moek_fragments_<OP, M, N, STAGES, HIDDEN, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    void (*const kernels[4])(moek_gemm_) = { bf16, fp16, bf16_zero, fp16_zero };
    const int plain = shared - STAGES * K::ZEROS;      /* bytes, without zero points */
    moek_gemm_ found;
    moek_gemm_ *const g = &found;
    long long tiles;
    int i;
    if (!a) {
        moek_status status = MOEK_OK;
        for (i = 0; i < 4 && status == MOEK_OK; i++)
            if (kernels[i]) status = MOEK_READY_SM90_(kernels[i], K::THREADS, i < 2 ? plain : shared);
        return status;
    }
    if (a->max_blocks < 1 || a->experts < 1) return MOEK_OK;
    if (a->experts > MOEK_SM90_EXPERTS || !a->w.layout || a->gate.codes || a->k_offset ||
        a->k % (64 * K::File::UNITS) || a->w_rows % 64)
        return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    moek_find_gemm_<Format>(&found, 1);
    tiles = (long long)a->max_blocks * (a->rows_per_expert ? a->experts : 1) * ((a->n + N / 2 - 1) / (N / 2));
    if (tiles > 0x3fffffff) return MOEK_E_ARGUMENT;                            /* (or half as many tiles) */
    if (K::TALL || tiles * ((a->k + 127) / 128) > 0x3fffffff) g->split = NULL;
    i = fp16 && a->dtype == MOEK_DTYPE_FP16;
    if constexpr (Format::ZERO)
        if (found.w.zero_points)
            return MOEK_CHAIN_(kernels[2 + i], moek_multiprocessors_(), K::THREADS, shared, stream, a->early, found);
    return MOEK_CHAIN_(kernels[i], moek_multiprocessors_(), K::THREADS, plain, stream, a->early, found);
}

/* A row of the table: its kernels and their launcher.  Behind `shared`: the parameters of moek_fragments_.  Kernels are
 * one of bf16 and one of fp16; ZERO: both also for zero points; EITHER: one that asks args for T. */
#define MOEK_FRAGMENTS_KERNEL_(name, threads, zero, dtype, ...) \
    static __global__ void MOEK_SM90_BOUNDS_(threads) name(const __grid_constant__ moek_gemm_ args) \
    { \
        moek_fragments_<__VA_ARGS__>::run(&args, zero, dtype); \
    }
#define MOEK_FRAGMENTS_ROW_(row, threads, shared, ...) \
    MOEK_FRAGMENTS_KERNEL_(row##_bf16_, threads, 0, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_KERNEL_(row##_fp16_, threads, 0, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_fragments_<__VA_ARGS__>(args, stream, shared, row##_bf16_, row##_fp16_); \
    }
#define MOEK_FRAGMENTS_ZERO_ROW_(row, threads, shared, ...) \
    MOEK_FRAGMENTS_KERNEL_(row##_bf16_, threads, 0, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_KERNEL_(row##_fp16_, threads, 0, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_FRAGMENTS_KERNEL_(row##_bf16_zero_, threads, 1, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_KERNEL_(row##_fp16_zero_, threads, 1, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_fragments_<__VA_ARGS__>(args, stream, shared, row##_bf16_, row##_fp16_, \
                                                   row##_bf16_zero_, row##_fp16_zero_); \
    }
#define MOEK_FRAGMENTS_EITHER_ROW_(row, threads, shared, ...) \
    MOEK_FRAGMENTS_KERNEL_(row##_k_, threads, 0, args.dtype, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_fragments_<__VA_ARGS__>(args, stream, shared, row##_k_); \
    }
#endif
