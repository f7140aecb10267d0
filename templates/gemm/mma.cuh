/* gemm/mma.cuh -- the grouped GEMM of the experts on tensor cores, Ampere and everything newer.
 *
 *   out[p][j] = f(sum over k of a[row(p)][k] * w[e][j][k])       moek/ops.h: up and down
 *
 * A block owns M rows of one expert and R rows of its weights.  A step covers 128 bytes of each row; cp.async keeps
 * STAGES - 1 steps on their way.  Bound by weight bytes while an expert holds a few dozen rows: blocks an SM x
 * (STAGES - 1) steps x (M + R) x 128 bytes are on their way, and should be 64 KB.  Beyond, bound by mma and by L2: R =
 * 256 reads less.  It runs wherever mma.sync does; rows for one architecture that come before it in kernels.toml win.
 *
 * A row of a stage is 8 chunks of 16 bytes, chunk c of row r at c ^ r % 8: no bank conflicts, cp.async or ldmatrix.
 * e4m3 stays e4m3 there.  It is read as if it were 2-byte elements, which permutes k, for a and w alike, and becomes
 * fp16, exactly, in front of the mma.  s8 goes into the mma as it lies; its sums are s32, and exact: after each 2^16
 * columns, what is above 2^30 moves to bytes of `high`.
 *
 * WHOLE, from sm_89 on: e4m3 goes into the mma as it lies, too.  Its sums are narrow there (ptx.h), so each step has
 * its own, which are added in f32.
 *
 * BLOCKED, f32 scales of 128 x 128 and 1 x 128: the sums of a step are multiplied and added.  FINE, e8m0 scales of 32
 * of k (mxfp8): threads bring the next step's scales as f32 to shared memory; the sums of each 32 of k are multiplied
 * and added.  8 warps for 32 and 64 rows: with 4, registers spill.
 *
 * SCALED, on sm_120 and sm_121: mma.sync by block scale (ptx_sm120.h), twice as fast on GeForce as without.  INSIDE,
 * scales of 32 of k (mxfp8) or 16 (nvfp4_a4, 4 bits a code, a step is 256 of k): they go into it as they lie.  Threads
 * bring them to shared memory, a word of four for each row; a lane has a row of a, and one of w.  Other formats
 * multiply by scales of 1.  Sums of a step are its own, as narrow as WHOLE's, for all that is known.
 *
 * gated up: the first R/2 rows of the weight tile are gate rows, the others the up rows of the same columns.  Otherwise
 * all R are columns.  The sums go through shared memory, which makes the rest a plain loop over the columns of a row:
 * scale, bias, activation, coalesced stores.
 */
#ifndef MOEK_GEMM_MMA_CUH
#define MOEK_GEMM_MMA_CUH
#include "../../include/moek/kernel/ptx_sm120.h"
#include "mma_finish.cuh"

/* A tile of M rows of a and R rows of w: N columns, or of a gated up 2 x N; WARPS a block.  HIDDEN: the hidden size, or
 * 0: a run has the size.  Format: of moek_formats.h.  WHOLE: elements of 8 bits as the mma takes them; 2: SCALED. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, class Format, int WHOLE = 0> struct moek_mma_gemm_ {
    enum {
        UP = OP == MOEK_OP_UP, R = UP ? 2 * N : N, THREADS = 32 * WARPS,
        BITS = Format::W_BITS, INTEGER = Format::INTEGER, C = Format::W_SCALE_COLUMNS,
        SCALED = WHOLE == 2, INSIDE = SCALED && (C == 32 || C == 16),
        FINE = C == 32 && !SCALED, BLOCKED = C == 128,
        APART = BLOCKED || (WHOLE && !FINE),            /* a step's sums are */
        SHIFTED = (BLOCKED || FINE || INSIDE) && !UP,   /* a group of k may begin before k does */
        /* A warp has MI x NI pieces of 16 x 8; the sums lie in the RING later. */
        WARPS_M = M >= (WARPS == 8 ? 64 : 128) ? 2 : 1, WARPS_N = WARPS / WARPS_M,
        MI = M / (16 * WARPS_M), NI = R / (8 * WARPS_N),
        STEP = 128, STAGE = (M + R) * STEP, STEPS = STAGES * STAGE, PITCH = R + 8, SUMS = M * PITCH * 4,
        RING = STEPS > SUMS ? STEPS : SUMS,
        WORDS = C == 16 ? 4 : 1,                        /* INSIDE: of four scales each, of a row in a step */
        ROWS = M + R, SCALES = BLOCKED ? M + R / 8 : FINE ? 4 * ROWS : INSIDE ? WORDS * ROWS : 0,    /* 4 bytes each */
        AT_ROWS = RING + (FINE || INSIDE ? 2 : STAGES) * SCALES * 4,
        SHARED = AT_ROWS + 4 * ROWS,
        REGISTERS = MI * NI * (APART || FINE ? 8 : 4) + (INTEGER ? 80 : FINE ? 92 : 100),    /* about */
        BY_SHARED = MOEK_SM_SHARED_ / (SHARED + 1024),  /* blocks that fit into an SM */
        BY_REGISTERS = 65536 / (THREADS * REGISTERS),
        FIT = BY_SHARED < BY_REGISTERS ? BY_SHARED : BY_REGISTERS,
        BLOCKS = FIT > 3 ? 3 : FIT < 1 ? 1 : FIT,
        PASS = THREADS / 8, COPIES = ROWS / PASS, ROWS_OF_A = M / PASS,
        GROUP = 2048 / M,
        CARRY = (1 << 16) / STEP,                       /* INTEGER: after so many steps */
        BRINGS = (ROWS + THREADS - 1) / THREADS,        /* FINE, INSIDE: rows whose scales a thread brings */
        X_WORDS = (MI + 1) / 2, W_WORDS = (NI + 3) / 4  /* INSIDE: words of scales that a lane has for an mma */
    };
    typedef typename Format::sum_t sum_t;

    /* Of a step's copies, number first .. last - 1 of this thread: 16 bytes, `k_byte` in its row.  Rows that nobody
     * needs are left as they are; behind the end of k (SHIFTED: and before it) there are zeros.  apart: bytes from rows
     * of w in the first half of the tile to the same rows in the other. */
    MOEK_DEVICE void copy(unsigned char *smem, const int32_t *row, const unsigned char *a, const unsigned char *w,
                          ptrdiff_t apart, int a_row_bytes, int row_bytes, int k_byte, int first, int last)
    {
        enum { HALF = ROWS_OF_A + R / 2 / PASS };
        const int bytes = (SHIFTED ? (unsigned)k_byte < (unsigned)row_bytes : k_byte < row_bytes) ? 16 : 0;
        int i;
        a += bytes ? k_byte : 0;
        w += bytes ? k_byte : 0;
        #pragma unroll
        for (i = first; i < last; i++) {
            const uint64_t offset = (uint64_t)(uint32_t)row[i] * (uint32_t)(i < ROWS_OF_A ? a_row_bytes : row_bytes);
            const unsigned char *const source = i < ROWS_OF_A ? a : !UP || i < HALF ? w : w + apart;
            if (row[i] >= 0) moek_cp_async16_(smem + i * PASS * STEP, source + offset, bytes);
        }
    }

    /* FINE, INSIDE: the scales that this thread brings, of rows t, t + THREADS ... of a and w: where they are, NULL:
     * nowhere; and the WORDS of four of a step.  Behind the last group: 1, times zeros. */
    struct scales {
        const uint8_t *source[BRINGS];
        uint32_t four[BRINGS][WORDS];
    };
    MOEK_DEVICE void place_scales(scales *s, const moek_gemm_ *a, const int32_t *row, int e, int groups)
    {
        int i;
        #pragma unroll
        for (i = 0; i < BRINGS; i++) {
            const int r = (int)threadIdx.x + i * THREADS, scaled = r < M + R ? row[r] : -1;
            const int half = UP ? r - M >= R / 2 : 0;                  /* (not gated: both are the same) */
            s->source[i] = scaled < 0 ? NULL : r < M ? (const uint8_t *)a->a_scale + (size_t)scaled * groups
                     : (const uint8_t *)MOEK_HALF_(a->gate_up.scales, half) +
                       ((size_t)e * a->gate_up.rows + scaled) * groups;
        }
    }
    MOEK_DEVICE void fetch(scales *s, int step, int groups)
    {
        enum { ONE = C == 16 ? 0x38 : 0x7f };
        int i, j, b;
        #pragma unroll
        for (i = 0; i < BRINGS; i++) {
            const uint8_t *const of_step = s->source[i] + 4 * WORDS * step;
            if (WORDS == 4 && s->source[i] && 4 * WORDS * step < groups &&
                ((uintptr_t)of_step | (uintptr_t)groups) % (4 * WORDS) == 0) {
                const moek_words_ words = moek_load_words_(of_step);
                #pragma unroll
                for (j = 0; j < WORDS; j++) s->four[i][j] = words.w[j];
                continue;
            }
            #pragma unroll
            for (j = 0; j < WORDS; j++) {
                const int g = 4 * (step * WORDS + j);
                const uint8_t *const codes = s->source[i] + g;
                s->four[i][j] = ONE * 0x01010101u;
                if (!s->source[i] || g >= groups) continue;
                if (((uintptr_t)codes | (uintptr_t)groups) % 4 == 0)
                    s->four[i][j] = *(const uint32_t *)(const void *)codes;
                else for (b = 0; b < 4; b++) if (g + b < groups) s->four[i][j] ^= (uint32_t)(codes[b] ^ ONE) << 8 * b;
            }
        }
    }
    /* smem_scales: [4][M + R], of INSIDE [WORDS][M + R] words. */
    MOEK_DEVICE void put_scales(float *smem_scales, const scales *s)
    {
        int i, b;
        #pragma unroll
        for (i = 0; i < BRINGS; i++) {
            const int r = (int)threadIdx.x + i * THREADS;
            if (r >= ROWS) continue;
            #pragma unroll
            for (b = 0; b < (INSIDE ? WORDS : 4); b++)
                if constexpr (INSIDE) ((uint32_t *)smem_scales)[b * ROWS + r] = s->four[i][b];
                else smem_scales[b * ROWS + r] = moek_from_e8m0_((uint8_t)(s->four[i][0] >> 8 * b));
        }
    }
    /* INSIDE: the scales that this lane has for an mma, of four of each row: of a, lanes 4 g + 2 t + h have row g + 8 h
     * of piece 2 i + t; of w, lanes 4 g + t have row g of piece 4 i + t.  smem_words: of rows of the block. */
    struct lane_scales { uint32_t x[X_WORDS], w[W_WORDS]; };
    MOEK_DEVICE void load_scales(lane_scales *s, const uint32_t *smem_words, int m0, int n0)
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
        int i;
        #pragma unroll
        for (i = 0; i < X_WORDS; i++)
            s->x[i] = smem_words[m0 + min(2 * i + q / 2, MI - 1) * 16 + q % 2 * 8 + g];
        #pragma unroll
        for (i = 0; i < W_WORDS; i++) s->w[i] = smem_words[M + n0 + min(4 * i + q, NI - 1) * 8 + g];
    }
    /* SCALED: part += pieces from number I on, of the 32 bytes of k number J of a step. */
    template <int J, int I = 0>
    MOEK_DEVICE void multiply_scaled(float part[MI][NI][4], const uint32_t xs[MI][4], const uint32_t ws[NI][2],
                                     const lane_scales *s)
    {
        enum { mi = I % MI, ni = I / MI, E4M3 = MOEK_MX_E4M3 };
        if constexpr (BITS == 4)
            moek_mma_mxf4nvf4_<mi % 2, ni % 4>(part[mi][ni], xs[mi], ws[ni], s->x[mi / 2], s->w[ni / 4]);
        else if constexpr (INSIDE)
            moek_mma_mxf8f6f4_<E4M3, E4M3, J, mi % 2, J, ni % 4>(part[mi][ni], xs[mi], ws[ni], s->x[mi / 2],
                                                                 s->w[ni / 4]);
        else
            moek_mma_mxf8f6f4_<E4M3, E4M3, 0, 0, 0, 0>(part[mi][ni], xs[mi], ws[ni], MOEK_MX_ONES, MOEK_MX_ONES);
        if constexpr (I + 1 < MI * NI) multiply_scaled<J, I + 1>(part, xs, ws, s);
    }
    /* j: a constant, once its loop is unrolled. */
    MOEK_DEVICE void multiply_scaled_at(float part[MI][NI][4], const uint32_t xs[MI][4], const uint32_t ws[NI][2],
                                        const lane_scales *s, int j)
    {
        if constexpr (!INSIDE || BITS == 4) multiply_scaled<0>(part, xs, ws, s);
        else if (j == 0) multiply_scaled<0>(part, xs, ws, s);
        else if (j == 1) multiply_scaled<1>(part, xs, ws, s);
        else if (j == 2) multiply_scaled<2>(part, xs, ws, s);
        else multiply_scaled<3>(part, xs, ws, s);
    }
    /* sum += part, of column tile ni, times the scales of its rows and columns. */
    MOEK_DEVICE void promote(float sum[MI][NI][4], const float part[MI][4], int ni, const float *x_scale,
                             const float *w_scale)
    {
        const float w0 = w_scale[ni * 8], w1 = w_scale[ni * 8 + 1];
        int mi;
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            const float x0 = x_scale[mi * 16], x1 = x_scale[mi * 16 + 8];
            sum[mi][ni][0] += part[mi][0] * (x0 * w0); sum[mi][ni][1] += part[mi][1] * (x0 * w1);
            sum[mi][ni][2] += part[mi][2] * (x1 * w0); sum[mi][ni][3] += part[mi][3] * (x1 * w1);
        }
    }

    /* APART: sum += part, of a step; BLOCKED: times the scales of its rows and of 8 columns each. */
    MOEK_DEVICE void add_part(float sum[MI][NI][4], const float part[MI][NI][4], const float *x_scale,
                              const float *w_scale)
    {
        int mi, ni, i;
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            const float sw = BLOCKED ? w_scale[ni] : 1.0f;
            #pragma unroll
            for (mi = 0; mi < MI; mi++) {
                if constexpr (!BLOCKED) {
                    #pragma unroll
                    for (i = 0; i < 4; i++) sum[mi][ni][i] += part[mi][ni][i];
                    continue;
                }
                const float s0 = x_scale[mi * 16] * sw, s1 = x_scale[mi * 16 + 8] * sw;
                sum[mi][ni][0] += part[mi][ni][0] * s0; sum[mi][ni][1] += part[mi][ni][1] * s0;
                sum[mi][ni][2] += part[mi][ni][2] * s1; sum[mi][ni][3] += part[mi][ni][3] * s1;
            }
        }
    }
    /* This lane's sums to their corner of the tile. */
    MOEK_DEVICE void put_sums(float *corner, sum_t sum[MI][NI][4], int32_t high[MI][NI])
    {
        int mi, ni;
        #pragma unroll
        for (mi = 0; mi < MI; mi++)
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                float total[4];
                if constexpr (INTEGER) {
                    Format::total(total, sum[mi][ni], high[mi][ni]);
                } else {
                    total[0] = sum[mi][ni][0]; total[1] = sum[mi][ni][1];
                    total[2] = sum[mi][ni][2]; total[3] = sum[mi][ni][3];
                }
                moek_store2_(corner + mi * 16 * PITCH + ni * 8, total[0], total[1]);
                moek_store2_(corner + (mi * 16 + 8) * PITCH + ni * 8, total[2], total[3]);
            }
    }
    MOEK_DEVICE void run(const moek_gemm_ *a)
    {
        MOEK_SHARED_(unsigned char, shared);           /* [STAGES][M + R][STEP] */
        float *const tile = (float *)shared;           /* [M][PITCH] sums, once the stages are done */
        /* BLOCKED: [STAGES][SCALES]: of rows, then of 8 columns; FINE: [2][4][M + R]: of a, then of w; INSIDE: words,
         * [2][WORDS][M + R]. */
        float *const scales_at = (float *)(shared + RING);
        int32_t *const row = (int32_t *)(shared + AT_ROWS);            /* [M + R] of a, then of w; -1: none */

        const int t = threadIdx.x, lane = t % 32, warp = t / 32, g = lane / 4, q = lane % 4;
        const int n = !UP && HIDDEN ? HIDDEN : a->n, k = UP && HIDDEN ? HIDDEN : a->k;
        const int gated = UP ? a->w_rows > n : 0, columns = gated ? R / 2 : R;

        moek_row_tile_ tile_of;
        int i, k_iter, out = 0;
        if (!moek_find_row_tile_(&tile_of, a, (int)blockIdx.x, (n + columns - 1) / columns, M, GROUP)) return;
        const int e = tile_of.e, row0 = tile_of.row0, end = tile_of.end, j0 = tile_of.j * columns;
        moek_rows_of_mma_<M, R, THREADS>(row, a, t, row0, end, j0, n, gated, columns);

        const int k_offset = SHIFTED ? a->k_offset : 0;
        const int before = k_offset * BITS / 8, row_bytes = k * BITS / 8;      /* bytes of a row, and ahead of it */
        const int steps = (before + row_bytes + STEP - 1) / STEP;
        const unsigned char *const x = (const unsigned char *)a->a;
        const ptrdiff_t apart =
            UP ? (const unsigned char *)a->gate_up.codes[1] - (const unsigned char *)a->gate_up.codes[0] : 0;
        const unsigned char *const w =
            UP ? (const unsigned char *)a->gate_up.codes[0] + (size_t)e * a->gate_up.rows * row_bytes
               : (const unsigned char *)a->w.codes + (size_t)e * a->w_rows * row_bytes;
        const int chunk = t % 8, copy_row = t / 8;                     /* what this thread copies */
        unsigned char *const smem_copy = shared + copy_row * STEP + (chunk ^ copy_row % 8) * 16;
        /* BLOCKED: and each step one scale: of a row of a, or of 8 columns (8 that start at a multiple of 8 share
         * theirs). */
        const int groups = FINE || INSIDE ? (k_offset + k + C - 1) / (C + (C == 0))
                         : SHIFTED ? steps : (k + 127) / 128;
        const float *scale = NULL;
        if constexpr (BLOCKED) {
            const int scaled = t < M ? row[t] : t < SCALES ? row[M + 8 * (t - M)] : -1;
            const int half = UP ? 8 * (t - M) >= R / 2 : 0;            /* (not gated: both are the same) */
            scale = scaled < 0 ? NULL : t < M ? MOEK_F32_(a->a_scale) + (size_t)scaled * groups
                  : MOEK_HALF_(a->gate_up.scales, half) + ((size_t)e * a->gate_up.scale_rows +
                    (MOEK_HALF_(a->gate_up.shift, half) + scaled) / 128) * groups;
        }
        scales thread_scales;

        /* The warp's part of the tile, and what a lane points ldmatrix to: {8 rows, the next 8} x {16 bytes, the next
           16} of a, and the same of w transposed. */
        const int m0 = warp % WARPS_M * (MI * 16), n0 = warp / WARPS_M * (NI * 8);
        const int x_at = (m0 + lane % 16) * STEP + (lane / 16 ^ lane % 8) * 16;
        const int w_at = (M + n0 + lane / 16 * 8 + lane % 8) * STEP + (lane / 8 % 2 ^ lane % 8) * 16;
        sum_t sum[MI][NI][4] = {0};
        int32_t high[MI][NI] = {0};
        int32_t my_row[COPIES];

        if constexpr (FINE || INSIDE) {
            place_scales(&thread_scales, a, row, e, groups);
            fetch(&thread_scales, 0, groups);
            put_scales(scales_at, &thread_scales);
            fetch(&thread_scales, 1, groups);
        }
        for (i = 0; i < COPIES; i++) my_row[i] = row[copy_row + i * PASS];
        for (k_iter = 0; k_iter < STAGES - 1; k_iter++) {
            copy(smem_copy + k_iter * STAGE, my_row, x, w, apart, a->a_row_bytes, row_bytes,
                 k_iter * STEP + chunk * 16 - before, 0, COPIES);
            if (BLOCKED && scale && k_iter < steps) moek_cp_async4_(scales_at + k_iter * SCALES + t, scale + k_iter);
            moek_cp_async_commit_();
        }
        #pragma unroll 1
        for (k_iter = 0; k_iter < steps; k_iter++) {
            const int next = k_iter + STAGES - 1, in = out == 0 ? STAGES - 1 : out - 1;
            const unsigned char *const stage = shared + out * STAGE;
            const float *const x_scale = scales_at + (FINE ? k_iter % 2 : out) * SCALES + m0 + g;
            const float *const w_scale = scales_at + (FINE ? k_iter % 2 : out) * SCALES + M +
                                         (FINE ? n0 + 2 * q : n0 / 8);
            sum_t part[MI][NI][4] = {0};               /* APART */
            int mi, ni, j;
            #pragma unroll
            for (i = 0; i < COPIES; i++) my_row[i] = row[copy_row + i * PASS];     /* again: registers are scarce */
            moek_cp_async_wait_(STAGES - 2);
            __syncthreads();
            if (BLOCKED && scale && next < steps) moek_cp_async4_(scales_at + in * SCALES + t, scale + next);
            if constexpr (FINE || INSIDE) {
                put_scales(scales_at + (k_iter + 1) % 2 * SCALES, &thread_scales);  /* the next step's */
                fetch(&thread_scales, k_iter + 2, groups);
            }
            lane_scales s;
            if constexpr (INSIDE && WORDS == 1)
                load_scales(&s, (const uint32_t *)scales_at + k_iter % 2 * SCALES, m0, n0);
            #pragma unroll
            for (j = 0; j < 4; j++) {
                uint32_t xs[MI][4], ws[NI][2];
                #pragma unroll
                for (mi = 0; mi < MI; mi++) moek_ldmatrix4_(xs[mi], stage + (x_at ^ j * 32) + mi * 16 * STEP);
                #pragma unroll
                for (ni = 0; ni < NI; ni += 2) moek_ldmatrix4_(ws[ni], stage + (w_at ^ j * 32) + ni * 8 * STEP);
                copy(smem_copy + in * STAGE, my_row, x, w, apart, a->a_row_bytes, row_bytes,
                     next * STEP + chunk * 16 - before, COPIES * j / 4, COPIES * (j + 1) / 4);
                if constexpr (INSIDE && WORDS == 4)
                    load_scales(&s, (const uint32_t *)scales_at + k_iter % 2 * SCALES + j * ROWS, m0, n0);
                if constexpr (SCALED) {
                    multiply_scaled_at(part, xs, ws, &s, j);
                } else if constexpr (FINE && WHOLE) {
                    #pragma unroll
                    for (ni = 0; ni < NI; ni++) {
                        float product[MI][4] = {0};
                        #pragma unroll
                        for (mi = 0; mi < MI; mi++) moek_mma_e4m3_(product[mi], xs[mi], ws[ni]);
                        promote(sum, product, ni, x_scale + j * ROWS, w_scale + j * ROWS);
                    }
                } else if constexpr (WHOLE) {
                    #pragma unroll
                    for (ni = 0; ni < NI; ni++)
                        #pragma unroll
                        for (mi = 0; mi < MI; mi++) moek_mma_e4m3_(part[mi][ni], xs[mi], ws[ni]);
                } else if constexpr (FINE) {
                    uint32_t fx[2][MI][4];
                    int half;
                    Format::template x_halves<MI>(fx, xs);
                    #pragma unroll
                    for (ni = 0; ni < NI; ni++) {
                        float product[MI][4] = {0};
                        #pragma unroll
                        for (half = 0; half < 2; half++) Format::template mma_half<MI>(product, fx[half], ws[ni][half]);
                        promote(sum, product, ni, x_scale + j * ROWS, w_scale + j * ROWS);
                    }
                } else if constexpr (BLOCKED) {
                    Format::template mma<MI, NI>(part, xs, ws);
                } else {
                    Format::template mma<MI, NI>(sum, xs, ws);
                }
            }
            moek_cp_async_commit_();
            if constexpr (APART) add_part(sum, part, x_scale, w_scale);
            if constexpr (INTEGER)
                if (k_iter % CARRY == CARRY - 1) {
                    #pragma unroll
                    for (mi = 0; mi < MI; mi++)
                        #pragma unroll
                        for (ni = 0; ni < NI; ni++) Format::carry(sum[mi][ni], &high[mi][ni]);
                }
            out = out + 1 < STAGES ? out + 1 : 0;
        }

        moek_cp_async_wait_(0);                        /* the last copies are zeros, and would fall on the sums */
        __syncthreads();
        put_sums(tile + (m0 + g) * PITCH + n0 + 2 * q, sum, high);
        __syncthreads();
        moek_finish_tile_<UP, M, R, PITCH, 1, THREADS, 0, Format>(a, tile, row, e, row0, end, j0, n);
    }
};

/* Launches such a kernel.  args NULL: makes it ready. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, class Format, int WHOLE = 0>
static MOEK_UNUSED moek_status moek_launch_mma_(const void *args, moek_stream stream, void (*kernel)(moek_gemm_))
{
    typedef moek_mma_gemm_<OP, M, N, STAGES, WARPS, HIDDEN, Format, WHOLE> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    moek_gemm_ found;
    int blocks;
    if (!a)
        return K::SCALED ? MOEK_READY_SM120_(kernel, K::THREADS, K::SHARED)
             : WHOLE ? MOEK_READY_SM89_(kernel, K::THREADS, K::SHARED) : MOEK_READY_(kernel, K::SHARED);
    blocks = moek_blocks_of_mma_(a, K::UP && a->w_rows > a->n ? K::R / 2 : K::R);
    if (blocks == 0) return MOEK_OK;
    if (blocks < 0) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    moek_find_gemm_<Format>(&found, 0);
    return MOEK_LAUNCH_(kernel, blocks, K::THREADS, K::SHARED, stream, found);
}

/* A row of the table: its kernel and the launcher.  SM: SM80, SM89, SM120.  Behind `threads`: the parameters of
 * moek_mma_gemm_. */
#define MOEK_MMA_ROW_(row, SM, threads, ...) \
    static __global__ void __launch_bounds__(MOEK_##SM##_THREADS_(threads), moek_mma_gemm_<__VA_ARGS__>::BLOCKS) \
    row##_k_(const moek_gemm_ args) \
    { \
        MOEK_IN_##SM##_(moek_mma_gemm_<__VA_ARGS__>::run(&args);) \
    } \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_mma_<__VA_ARGS__>(args, stream, row##_k_); \
    }
#endif
