/* gemm/blocks.cuh -- the grouped GEMM of the experts with weights in blocks of GGUF files, as they lie in the file, and
 * activations in T, on tensor cores, Ampere and everything newer.
 *
 *   out[p][j] = f(sum over k of a[row(p)][k] * w[e][j][k])       moek/ops.h: up and down
 *
 * Codes are integers of at most 8 bits, or floats of 4 (FLOATS), which T holds exactly, and are the first operand of
 * mma.sync: 16 rows of w times 8 tokens.  Scales, in f32, multiply the sums of the 16 or 32 columns that have them, and
 * minimums the sums of x there, which are the product with ones.  So w is not rounded at all.  A code becomes T by
 * __byte_perm alone: an integer is a subnormal in fp16, and in bf16 1 with the code's bits as the mantissa
 * (moek/kernel/blocks.h).  What that is more than the integer, times the sum of x, is what a sum begins with.
 *   A block owns M tokens of one expert and R rows of its weights.  A step covers 256 of k; cp.async keeps STAGES - 1
 *   steps on their way.  Each warp has 64 of k (WK) of a part of the rows (WR), and all tokens; the sums of the WK are
 *   added in the epilogue, in order.
 *
 * Order of k: of 16 columns, lane q of each four has columns 4q to 4q + 3, which are 4 bytes of codes and 8 of x.
 *   x in a stage: [M][256 columns, 32 bytes more]
 *   w in a stage: [R][W_PITCH], a row from the multiple of 16 bytes on that it begins behind.  A row may begin
 *     at any address that its blocks have (MISPLACED), and differently each step (MOVES).
 * W_PITCH is an odd multiple of 16 bytes: eight rows are in banks of their own, as they are in x.
 * heads: scales and minimums of a warp's 64 of k, in f32, which its lanes take apart once a step: [scale][R].
 */
#ifndef MOEK_GEMM_BLOCKS_CUH
#define MOEK_GEMM_BLOCKS_CUH
#include "mma_finish.cuh"

/* A tile of M tokens and R rows of w: N columns, or of a gated up 2 x N.  HIDDEN: the hidden size, or 0: a run has
 * the size.  Format: of moek_formats.h, with blocks. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, class Format> struct moek_block_gemm_ {
    enum {
        UP = OP == MOEK_OP_UP, R = UP ? 2 * N : N, THREADS = 32 * WARPS, STEP = 256,
        WK = 4, WR = WARPS / WK,                        /* warps by 64 of k, and by rows of w */
        BYTES = Format::BLOCK_BYTES, COLUMNS = Format::BLOCK_COLUMNS, MINIMUM = Format::MINIMUM,
        STEP_BYTES = STEP / COLUMNS * BYTES,
        ALIGN = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1,
        MISPLACED = ALIGN < 16, MOVES = STEP_BYTES % 16 != 0,
        X_CHUNKS = STEP / 8, X_PITCH = STEP * 2 + 32, X_PASS = THREADS / X_CHUNKS, X_COPIES = M / X_PASS,
        W_CHUNKS = (STEP_BYTES + 16 - ALIGN + 15) / 16, W_PITCH = 16 * (W_CHUNKS | 1),
        ROW_THREADS = THREADS / R,                      /* that copy a row of w */
        BEHIND = 16 * W_CHUNKS - STEP_BYTES > BYTES,    /* a step's chunks may end behind the first block of the next */
        STAGE = M * X_PITCH + R * W_PITCH,
        ROWS = R / WR, MI = ROWS / 16, NI = M / 8, GROUPS = STEP / 32 / WK,        /* groups: 32 columns */
        PARTS = Format::SCALE_COLUMNS == 16 ? 2 : 1,    /* of a group, with scales of their own */
        RING = STAGES * STAGE,                          /* the sums, [WK][M][R + 4], lie there later */
        HEAD = GROUPS * PARTS * ROWS * (1 + MINIMUM),      /* numbers of a warp */
        SHARED = RING + 4 * (M + R) + 4 * R + 4 * WARPS * HEAD,
        REGISTERS = MI * NI * 4 + NI * (8 + 8 * PARTS) + 90,           /* about */
        BY_SHARED = MOEK_SM_SHARED_ / (SHARED + 1024),  /* blocks that fit into an SM */
        BY_REGISTERS = 65536 / (THREADS * REGISTERS),
        BLOCKS = BY_SHARED < BY_REGISTERS ? BY_SHARED : BY_REGISTERS,
        GROUP = 2048 / M
    };

    /* An expert's rows of w; of a gated up the rows of gate and of up. */
    struct halves { const unsigned char *first, *second; };

    /* ---- copies -------------------------------------------------------------------------------------------------- */

    /* Where a thread's row of w begins, of which it copies chunks in each step; NULL: nobody needs the row, and what
     * lies in its place is left there. */
    struct copies { const unsigned char *w; };
    /* j: the thread's row of w in its half, or -1.  start: [R], of each row how far behind a multiple of 16 bytes it
     * begins. */
    MOEK_DEVICE void place_w(copies *c, int32_t *start, int j, const halves *w, size_t row_bytes)
    {
        const int r = (int)threadIdx.x / ROW_THREADS;
        const unsigned char *const half = UP && r >= R / 2 ? w->second : w->first;
        c->w = j < 0 ? NULL : half + (size_t)j * row_bytes;
        if (threadIdx.x % ROW_THREADS == 0) start[r] = (int32_t)((uintptr_t)c->w & 15);
    }
    /* Copies of step k_iter to its stage; beyond k, and beyond the end of a row: zeros.  WHOLE: behind the step lie all
     * bytes that its last chunk has: a block of the next step, or (BEHIND) more. */
    template <int WHOLE>
    MOEK_DEVICE void copy_x(unsigned char *stage, const int32_t *row, int x_row_bytes, const unsigned char *x, int k,
                            int k_iter)
    {
        const int t = (int)threadIdx.x, chunk = t % X_CHUNKS, x_k = k_iter * STEP + chunk * 8;
        const int bytes = WHOLE || x_k < k ? 16 : 0;
        const unsigned char *const source = x + (bytes ? (size_t)x_k * 2 : 0);
        int i;
        #pragma unroll
        for (i = 0; i < X_COPIES; i++) {
            const int r = t / X_CHUNKS + i * X_PASS, from = row[r];
            if (from >= 0)
                moek_cp_async16_(stage + r * X_PITCH + chunk * 16, source + (size_t)from * (unsigned)x_row_bytes,
                                 bytes);
        }
    }
    template <int WHOLE>
    MOEK_DEVICE void copy_w(unsigned char *stage, const copies *c, int row_bytes, int k_iter)
    {
        const int t = (int)threadIdx.x, first = t % ROW_THREADS * 16;
        const unsigned char *const at = c->w + (size_t)k_iter * STEP_BYTES;
        const int before = MISPLACED ? (int)((uintptr_t)at & 15) : 0;
        const unsigned char *const from = at - before + first;
        unsigned char *const to = stage + M * X_PITCH + t / ROW_THREADS * W_PITCH + first;
        const int left = row_bytes - k_iter * STEP_BYTES + before - first;
        int i;
        if (!c->w) return;
        #pragma unroll
        for (i = 0; i < W_CHUNKS * 16; i += ROW_THREADS * 16)
            if (W_CHUNKS % ROW_THREADS == 0 || first + i < W_CHUNKS * 16) {
                if constexpr (WHOLE) moek_cp_async16_(to + i, from + i, 16);
                else moek_cp_async16_(to + i, left > i ? from + i : c->w - ((uintptr_t)c->w & 15),
                                      left < i ? 0 : left - i < 16 ? left - i : 16);
            }
    }
    /* Where in its place of a stage a row of w lies in step k_iter, which begins `start` bytes behind a multiple of
     * 16. */
    MOEK_DEVICE int row_at(int start, int k_iter)
    {
        return !MISPLACED ? 0 : MOVES ? (start + k_iter * (STEP_BYTES % 16)) & 15 : start;
    }

    /* ---- scales -------------------------------------------------------------------------------------------------- */

    /* Number i of a warp's groups, among the eight of a step: those that share words of codes, of one warp. */
    MOEK_DEVICE int group_of(int warp, int i)
    {
        if constexpr (Format::SHARED_WORDS == 2) return warp / 2 * 4 + warp % 2 + 2 * i;
        else return warp * GROUPS + i;
    }
    /* The block of group j of a step, and its number there. */
    MOEK_DEVICE int block_of(int j) { return j * 32 / COLUMNS * BYTES; }
    MOEK_DEVICE int in_block(int j) { return j % (COLUMNS / 32); }
    /* A warp's scales and minimums of a step.  w: its rows in the stage. */
    MOEK_DEVICE void take_heads(float *heads, const unsigned char *w, const int32_t *start, int k_iter, int dtype)
    {
        const int warp = (int)threadIdx.x / 32 % WK, lane = (int)threadIdx.x % 32;
        const int first = group_of(warp, 0);
        const float by = Format::block_by(dtype);
        int n_row, i, p;
        #pragma unroll
        for (n_row = 0; n_row < ROWS / 32; n_row++) {
            const int r = n_row * 32 + lane;
            const unsigned char *const at = w + r * W_PITCH + row_at(MISPLACED ? start[r] : 0, k_iter);
            const unsigned char *const b = at + block_of(first);
            #pragma unroll
            for (i = 0; i < PARTS; i++) {              /* two numbers at a time */
                const int n = PARTS == 1 ? in_block(first) : in_block(group_of(warp, i)) * 2;
                float s[2], m[2] = {0};
                Format::factors(s, m, by, b, COLUMNS == 32 ? b + BYTES : b, n);
                #pragma unroll
                for (p = 0; p < 2; p++)
                    if constexpr (MINIMUM) moek_store2_(heads + ((2 * i + p) * ROWS + r) * 2, s[p], m[p]);
                    else heads[(2 * i + p) * ROWS + r] = s[p];
            }
        }
    }
    /* Of the rows g and g + 8 of 16. */
    struct factors { float scale[PARTS][2], min[PARTS][2]; };
    MOEK_DEVICE void get_factors(factors *f, const float *heads, int i, int row)
    {
        int p, h;
        #pragma unroll
        for (p = 0; p < PARTS; p++)
            #pragma unroll
            for (h = 0; h < 2; h++) {
                const float *const at = heads + ((i * PARTS + p) * ROWS + row + 8 * h) * (1 + MINIMUM);
                if constexpr (MINIMUM) {
                    const float2 both = *(const float2 *)at;
                    f->scale[p][h] = both.x, f->min[p][h] = both.y;
                } else {
                    f->scale[p][h] = *at;
                }
            }
    }

    /* ---- the GEMM ------------------------------------------------------------------------------------------------ */

    /* sum += 16 rows of w times 8 tokens, NI times, over 32 of k.  less: what sums begin with; of_x: minus the sums of
     * x, which minimums multiply. */
    MOEK_DEVICE void multiply(float sum[NI][4], uint32_t ws[2][4], uint32_t xs[2][NI][2], float less[PARTS][NI][4],
                              float of_x[PARTS][NI][4], const factors *f, int dtype)
    {
        int ni, p, h;
        #pragma unroll
        for (ni = 0; ni < NI; ni++)
            #pragma unroll
            for (p = 0; p < PARTS; p++) {
                float part[4];
                #pragma unroll
                for (h = 0; h < 4; h++) part[h] = less[p][ni][h];
                moek_mma_t_(part, ws[p], xs[p][ni], dtype);
                if constexpr (PARTS == 1) moek_mma_t_(part, ws[1], xs[1][ni], dtype);
                #pragma unroll
                for (h = 0; h < 4; h++) {
                    sum[ni][h] = fmaf(part[h], f->scale[p][h / 2], sum[ni][h]);
                    if constexpr (MINIMUM) sum[ni][h] = fmaf(of_x[p][ni][h], f->min[p][h / 2], sum[ni][h]);
                }
            }
    }
    /* `by` times the sums of x over the 16 or 32 of k that have a scale, as sums of 16 equal rows. */
    MOEK_DEVICE void sum_x(float to[PARTS][NI][4], uint32_t by, uint32_t xs[2][NI][2], int dtype)
    {
        const uint32_t rows[4] = { by, by, by, by };
        int ni, p, h;
        #pragma unroll
        for (p = 0; p < PARTS; p++)
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                #pragma unroll
                for (h = 0; h < 4; h++) to[p][ni][h] = 0;
                if (by) moek_mma_t_(to[p][ni], rows, xs[p][ni], dtype);
                if (by && PARTS == 1) moek_mma_t_(to[p][ni], rows, xs[1][ni], dtype);
            }
    }
    /* x of a group as operands, and its sums, which are one where codes are 1 more than their integers. */
    MOEK_DEVICE void take_x(uint32_t xs[2][NI][2], float less[PARTS][NI][4], float of_x[PARTS][NI][4],
                            const unsigned char *x, int dtype)
    {
        const int g = (int)threadIdx.x % 32 / 4, q = (int)threadIdx.x % 4;
        const uint32_t by = Format::block_less(dtype);
        int ni, p, h;
        #pragma unroll
        for (p = 0; p < 2; p++)
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                const uint2 v = *(const uint2 *)(x + (ni * 8 + g) * X_PITCH + (16 * p + 4 * q) * 2);
                xs[p][ni][0] = v.x, xs[p][ni][1] = v.y;
            }
        sum_x(less, by, xs, dtype);
        if (MINIMUM && !by) sum_x(of_x, minus_one(dtype), xs, dtype);
        else
            #pragma unroll
            for (p = 0; p < PARTS; p++)
                #pragma unroll
                for (ni = 0; ni < NI; ni++)
                    #pragma unroll
                    for (h = 0; h < 4; h++) of_x[p][ni][h] = less[p][ni][h];
    }
    MOEK_DEVICE uint32_t minus_one(int dtype) { return dtype == MOEK_DTYPE_FP16 ? 0xbc00bc00 : 0xbf80bf80; }
    /* Both groups of a warp, of a row of w in the stage. */
    MOEK_DEVICE void take_codes(uint32_t codes[2][2], const unsigned char *b, const int at[2], const int by[2],
                                int dtype)
    {
        const unsigned char *const b1 = COLUMNS == 32 ? b + BYTES : b;
        enum { AS_THEY_ARE = Format::CODE_BITS == 8 || Format::FLOATS };
        if (dtype == MOEK_DTYPE_FP16 || AS_THEY_ARE) Format::template codes<0, 0>(codes, b, b1, at, by);
        else Format::template codes<(7 - Format::CODE_BITS) & 7, 0x80808080>(codes, b, b1, at, by);
    }
    /* Groups `first` to `end` - 1 of a warp's part of a step.  starts: of the lane's rows. */
    MOEK_DEVICE void do_groups(float sum[MI][NI][4], const unsigned char *x, const unsigned char *w,
                               const int32_t *starts, const int at[2], const int by[2], const float *heads, int k_iter,
                               int first, int end, int dtype)
    {
        const int warp = (int)threadIdx.x / 32 % WK, g = (int)threadIdx.x % 32 / 4;
        uint32_t xs[GROUPS][2][NI][2];
        float of_x[GROUPS][PARTS][NI][4], less[GROUPS][PARTS][NI][4];
        int i, mi, h, p;
        #pragma unroll
        for (i = first; i < end; i++) take_x(xs[i], less[i], of_x[i], x + group_of(warp, i) * 64, dtype);
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            uint32_t codes[2][GROUPS][2];              /* rows g and g + 8 */
            if (NI > 1) __syncwarp();                  /* nothing is loaded ahead, to have registers */
            #pragma unroll
            for (h = 0; h < 2; h++)
                take_codes(codes[h], w + (mi * 16 + h * 8 + g) * W_PITCH + row_at(MISPLACED ? starts[2 * mi + h] : 0,
                                                                                  k_iter), at, by, dtype);
            #pragma unroll
            for (i = first; i < end; i++) {
                uint32_t ws[2][4];
                factors f;
                get_factors(&f, heads, i, mi * 16 + g);
                #pragma unroll
                for (h = 0; h < 2; h++)
                    #pragma unroll
                    for (p = 0; p < 2; p++) {
                        uint32_t pair[2];
                        Format::block_pairs(pair, codes[h][i][p], dtype);
                        ws[p][h] = pair[0], ws[p][2 + h] = pair[1];
                    }
                multiply(sum[mi], ws, xs[i], less[i], of_x[i], &f, dtype);
            }
        }
    }
    /* A warp's part of a step: both groups at once, for they share words, or one after the other, to have registers. */
    MOEK_DEVICE void do_step(float sum[MI][NI][4], const unsigned char *x, const unsigned char *w,
                             const int32_t *starts, const int at[2], const int by[2], const float *heads, int k_iter,
                             int dtype)
    {
        if constexpr (NI == 1) {
            do_groups(sum, x, w, starts, at, by, heads, k_iter, 0, 2, dtype);
        } else {
            do_groups(sum, x, w, starts, at, by, heads, k_iter, 0, 1, dtype);
            __syncwarp();                              /* what is read again is not kept */
            do_groups(sum, x, w, starts, at, by, heads, k_iter, 1, 2, dtype);
        }
    }
    /* A warp's sums to its part of the tile.  Is one of them NaN? */
    MOEK_DEVICE int put_sums(float *tile, float sum[MI][NI][4])
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
        float *const corner = tile + 2 * q * (R + 4) + g;
        int mi, ni, h, odd = 0;
        #pragma unroll
        for (mi = 0; mi < MI; mi++)
            #pragma unroll
            for (ni = 0; ni < NI; ni++)
                #pragma unroll
                for (h = 0; h < 4; h++) {
                    odd |= sum[mi][ni][h] != sum[mi][ni][h];
                    corner[(ni * 8 + h % 2) * (R + 4) + mi * 16 + h / 2 * 8] = sum[mi][ni][h];
                }
        return odd;
    }
    /* An Inf in x may make a NaN of two sums, where w times Inf is Inf: sums that are NaN are made again, of weights
     * with their minimums. */
    MOEK_DEVICE float sum_again(const unsigned char *x, const unsigned char *w, int k, int dtype)
    {
        enum { WHOLE = COLUMNS == 32, OF_BLOCK = COLUMNS > 64 ? COLUMNS / 64 : 1, OF_WARP = WHOLE ? 1 : GROUPS };
        float sum = 0;
        int c, n, i, h, j;
        #pragma unroll 1
        for (c = 0; c < k; c += COLUMNS)
            #pragma unroll 1
            for (n = 0; n < OF_BLOCK * 4; n++) {       /* a warp's groups, lane q */
                const unsigned char *const b = w + c / COLUMNS * BYTES;
                const int q = n % 4, first = WHOLE ? 0 : group_of(n / 4, 0);
                uint32_t codes[2][2];
                int at[2], by[2];
                Format::place(at, by, first, q);
                Format::template codes<0, 0>(codes, b, b, at, by);
                for (i = 0; i < OF_WARP; i++) {
                    const int group = WHOLE ? 0 : group_of(n / 4, i);
                    float s[2], m[2] = {0};
                    Format::factors(s, m, 1, b, b, PARTS == 2 ? group * 2 : first);
                    for (h = 0; h < 2; h++)
                        for (j = 0; j < 4; j++) {
                            const float code = Format::block_number(codes[i][h] >> 8 * j & 0xff);
                            const int p = PARTS == 2 ? h : i;
                            const uint16_t t = ((const uint16_t *)x)[c + 32 * group + 16 * h + 4 * q + j];
                            sum = fmaf(fmaf(code, s[p], -m[p]), moek_from_t_(t, dtype), sum);
                        }
                }
            }
        return sum;
    }
    MOEK_DEVICE void mend_sums(float *tile, const int32_t *row, const unsigned char *x, int x_row_bytes,
                               const halves *w, size_t row_bytes, int k, int dtype)
    {
        int i, s;
        for (i = (int)threadIdx.x; i < M * R; i += THREADS) {
            const int p = i / R, r = i % R;
            float *const at = tile + p * (R + 4) + r, sum = moek_sum_of_slices_<WK, M * (R + 4)>(at);
            if (sum == sum || row[p] < 0 || row[M + r] < 0) continue;
            *at = sum_again(x + (size_t)row[p] * x_row_bytes,
                            (UP && r >= R / 2 ? w->second : w->first) + (size_t)row[M + r] * row_bytes, k, dtype);
            for (s = 1; s < WK; s++) at[s * M * (R + 4)] = 0;
        }
    }

    /* A block's tile. */
    MOEK_DEVICE void run(const moek_gemm_ *a, int dtype)
    {
        MOEK_SHARED_(unsigned char, shared);           /* [STAGES] {x, w} */
        float *const tile = (float *)shared;           /* [WK][M][R + 4] sums, once stages are done */
        int32_t *const row = (int32_t *)(shared + RING);               /* [M + R] of a, of the expert's w; -1: none */
        int32_t *const start = row + M + R;            /* [R] */
        float *const heads = (float *)(start + R) + threadIdx.x / 32 * HEAD;
        const unsigned char *const x = (const unsigned char *)a->a;
        const int t = threadIdx.x, g = t % 32 / 4, of_k = t / 32 % WK, r0 = t / 32 / WK * ROWS;
        const int n = !UP && HIDDEN ? HIDDEN : a->n, k = UP && HIDDEN ? HIDDEN : a->k;
        const int gated = UP ? a->w_rows > n : 0, columns = gated ? R / 2 : R;
        const int steps = (k + STEP - 1) / STEP, row_bytes = k / COLUMNS * BYTES;

        moek_row_tile_ tile_of;
        int i, k_iter, out = 0;
        if (!moek_find_row_tile_(&tile_of, a, (int)blockIdx.x, (n + columns - 1) / columns, M, GROUP)) return;
        const int e = tile_of.e, row0 = tile_of.row0, end = tile_of.end, j0 = tile_of.j * columns;
        const size_t expert = (size_t)e * a->gate_up.rows * row_bytes;
        const halves w = { (const unsigned char *)a->gate_up.codes[0] + expert,
                           (const unsigned char *)a->gate_up.codes[1] + expert };
        copies copied;
        float sum[MI][NI][4] = {{{0}}};
        int32_t starts[2 * MI];
        int at[2], by[2];
        i = j0 + t / ROW_THREADS % columns;            /* w first, for rows of a are known later */
        place_w(&copied, start, i >= n ? -1 : i * a->gate_up.step, &w, (size_t)row_bytes);
        for (k_iter = 0; k_iter < STAGES - 1; k_iter++) copy_w<0>(shared + k_iter * STAGE, &copied, row_bytes, k_iter);
        moek_rows_of_mma_<M, R, THREADS>(row, a, t, row0, end, j0, n, gated, columns);
        for (k_iter = 0; k_iter < STAGES - 1; k_iter++) {
            copy_x<0>(shared + k_iter * STAGE, row, a->a_row_bytes, x, k, k_iter);
            moek_cp_async_commit_();
        }
        #pragma unroll
        for (i = 0; MISPLACED && i < 2 * MI; i++) starts[i] = start[r0 + i * 8 + g];
        Format::place(at, by, in_block(group_of(of_k, 0)), t % 4);
        for (i = 0; i < 2; i++) at[i] += block_of(group_of(of_k, 0));
        #pragma unroll 1
        for (k_iter = 0; k_iter < steps; k_iter++) {
            const int in = out == 0 ? STAGES - 1 : out - 1;
            const unsigned char *const x_at = shared + out * STAGE, *const w_at = x_at + M * X_PITCH + r0 * W_PITCH;
            moek_cp_async_wait_(STAGES - 2);
            __syncthreads();
            if (k_iter + STAGES + BEHIND < steps) {
                copy_w<1>(shared + in * STAGE, &copied, row_bytes, k_iter + STAGES - 1);
                copy_x<1>(shared + in * STAGE, row, a->a_row_bytes, x, k, k_iter + STAGES - 1);
            } else {
                copy_w<0>(shared + in * STAGE, &copied, row_bytes, k_iter + STAGES - 1);
                copy_x<0>(shared + in * STAGE, row, a->a_row_bytes, x, k, k_iter + STAGES - 1);
            }
            moek_cp_async_commit_();
            take_heads(heads, w_at, start + r0, k_iter, dtype);
            __syncwarp();
            do_step(sum, x_at, w_at, starts, at, by, heads, k_iter, dtype);
            out = out + 1 < STAGES ? out + 1 : 0;
        }

        moek_cp_async_wait_(0);                        /* the last copies are zeros, and would fall on the sums */
        __syncthreads();
        i = put_sums(tile + of_k * M * (R + 4) + r0, sum);
        if (__syncthreads_or(i)) mend_sums(tile, row, x, a->a_row_bytes, &w, (size_t)row_bytes, k, dtype);
        __syncthreads();
        moek_finish_tile_<UP, M, R, R + 4, WK, THREADS, 0, Format>(a, tile, row, e, row0, end, j0, n);
    }
};

/* Launches one of these kernels, of bf16 or of fp16.  args NULL: makes them ready. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_blocks_(const void *args, moek_stream stream, void (*bf16)(moek_gemm_),
                                                  void (*fp16)(moek_gemm_))
{
    typedef moek_block_gemm_<OP, M, N, STAGES, WARPS, HIDDEN, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    moek_gemm_ found;
    int blocks;
    if (!a) {
        const moek_status status = MOEK_READY_(bf16, K::SHARED);
        return status ? status : MOEK_READY_(fp16, K::SHARED);
    }
    blocks = moek_blocks_of_mma_(a, K::UP && a->w_rows > a->n ? K::R / 2 : K::R);
    if (blocks == 0) return MOEK_OK;
    if (blocks < 0) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    if (!found.a_row_bytes) found.a_row_bytes = a->k * 2;
    moek_find_gate_up_by_(&found, (size_t)(a->k / K::COLUMNS) * K::BYTES, 32, 0, 0, 0);
    if (a->dtype == MOEK_DTYPE_FP16) return MOEK_LAUNCH_(fp16, blocks, K::THREADS, K::SHARED, stream, found);
    return MOEK_LAUNCH_(bf16, blocks, K::THREADS, K::SHARED, stream, found);
}

/* A row of the table: its kernels and their launcher.  Behind `threads`: the parameters of moek_block_gemm_. */
#define MOEK_BLOCKS_KERNEL_(name, threads, dtype, ...) \
    static __global__ void __launch_bounds__(threads, moek_block_gemm_<__VA_ARGS__>::BLOCKS) \
    name(const moek_gemm_ args) \
    { \
        moek_block_gemm_<__VA_ARGS__>::run(&args, dtype); \
    }
#define MOEK_BLOCKS_ROW_(row, threads, ...) \
    MOEK_BLOCKS_KERNEL_(row##_bf16_, threads, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_BLOCKS_KERNEL_(row##_fp16_, threads, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_blocks_<__VA_ARGS__>(args, stream, row##_bf16_, row##_fp16_); \
    }
#endif
