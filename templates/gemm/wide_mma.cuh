/* gemm/wide_mma.cuh -- up or down of many rows an expert, with the same element on both sides: bf16, fp16, or s8 with
 * scales of rows; on Ampere and everything newer.  For gemm_wide_mma of the table; fewer rows: gemm/mma.cuh.
 *
 * A grouped GEMM by mma.sync, persistent: a tile is M rows of a by N rows of w, and blocks take whole tiles in turns,
 * in an order in which a turn's tiles share rows of a and of w in L2.  Rows of w are mma's 16 rows, rows of a its
 * columns.  A warp has 64 x 64 sums.
 *
 * - A stage is 64 bytes of k of all rows, which all threads copy by cp.async, swizzled.  Behind the end of k there
 *   are zeros.  A stage has one barrier, ahead of its last 32 bytes of k: all warps have then loaded what they need of
 *   this stage, and the next one is there.
 * - Operands lie in registers twice: 32 bytes of k are loaded while those before are multiplied.
 * - Rows of w lie in a stage so that a thread of the epilogue has eight columns side by side (column_of), and of a
 *   gated up gate and up of a column.
 * - Sums of s8 are s32, and exact to 2^16 of k.  LONG, for more: after each 2^16 what s32 might not hold moves to bytes
 *   of `high`, in the registers of the second set of operands.
 */
#ifndef MOEK_GEMM_WIDE_MMA_CUH
#define MOEK_GEMM_WIDE_MMA_CUH
#include "../../include/moek/kernel/act.h"
#include "fragments_finish.cuh"
#include "mma_finish.cuh"

/* HIDDEN: the hidden size, or 0: a run has the size.  Format: of moek_formats.h. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, int LONG, class Format>
struct moek_wide_mma_ {
    typedef typename Format::sum_t sum_t;
    enum {
        UP = OP == MOEK_OP_UP, THREADS = 32 * WARPS, INTEGER = Format::INTEGER, BY_ROW = Format::X_BY_ROW,
        WN = N / 64, MI = 4, NI = 8,                    /* warps by rows of w; 16s and 8s of each */
        ELEMENT = Format::W_BITS / 8, STEP = 64, CHUNKS = STEP / 16, K32 = STEP / 32,
        STAGE = (M + N) * STEP, RING = STAGES * STAGE,
        AHEAD = 8,                                      /* tiles that copies may be ahead: of one stage each, STAGES */
        SHARED = RING + 2 * 4 * M * (1 + BY_ROW) + 16 * AHEAD,
        BLOCKS = 8 / WARPS,                             /* of an SM */
        PASS = THREADS / CHUNKS, X_COPIES = M / PASS, W_COPIES = N / PASS,     /* rows that all threads copy at once */
        GROUP = 2048 / M, SETS = LONG ? 1 : 2,
        CARRY = (1 << 16) / STEP                        /* LONG: after so many stages */
    };

    /* What a block knows: its shared memory, where a lane's operands lie in a stage, and facts of the GEMM. */
    struct block {
        unsigned char *ring;
        int *rows;                                      /* [2][M] of a tile: where its rows go, or -1 */
        float *x_scales;                                /* [2][M] */
        moek_row_tile_ *ahead;                          /* [AHEAD] tiles as they are copied; behind the last: e < 0 */
        int x_at, w_at;
        int n, row_bytes, gated, columns, tiles, all;   /* row_bytes: of w; columns: of 64 rows of w in a tile; tiles:
                                                           of a row block; all: of the launch */
    };
    /* What a thread copies next: 16 bytes of X_COPIES rows of a and of W_COPIES rows of w. */
    struct copies {
        const unsigned char *w;                         /* its first row; 64 rows of a stage on: so many bytes */
        unsigned apart, row[X_COPIES];                  /* row: of a, in units of 16 bytes */
        int number, tile, at, xs, ws;                   /* number: of tiles before, tile: among the launch's tiles, or
                                                           -1; at: byte in a row; so many rows of a, and 64s of rows of
                                                           w, are there */
    };
    struct operands { uint32_t x[SETS][NI][2], w[SETS][MI][4]; };

    /* ---- tiles and copies ---------------------------------------------------------------------------------------- */

    /* 16 bytes of a row of a stage, which is number r of rows that begin at a multiple of 8. */
    MOEK_DEVICE int place(int r, int chunk) { return r * STEP + (chunk ^ r / 2 % 4) * 16; }
    /* Of 64 rows of w in a stage, which of 32 columns row r is (r % 16 >= 8: of up, or not gated, 32 columns on).  Of
     * mma's sums lane 4g + q has number g of each 8 rows; once they are transposed, numbers 2q and 2q + 1. */
    MOEK_DEVICE int column_of(int r) { return r % 8 / 2 * 8 + r / 16 % 4 * 2 + r % 2; }
    /* To the first stage of a tile. */
    MOEK_DEVICE void seat(const moek_gemm_ *a, const block *b, copies *c)
    {
        const int r = (int)threadIdx.x / CHUNKS, half = r / 8 % 2;
        moek_row_tile_ tile;
        int i;
        for (; c->tile < b->all; c->tile += (int)gridDim.x)
            if (moek_find_row_tile_(&tile, a, c->tile, b->tiles, M, GROUP)) break;
        if (c->tile >= b->all) c->tile = tile.e = -1;
        if (threadIdx.x == 0) b->ahead[c->number % AHEAD] = tile;
        c->number++;
        c->xs = c->ws = 0;
        if (c->tile < 0) return;
        c->at = (int)threadIdx.x % CHUNKS * 16;
        c->xs = (tile.end - tile.row0 - r + PASS - 1) / PASS;
        i = tile.j * (N / 64) * b->columns + column_of(r) + (b->gated ? 0 : 32 * half);
        c->ws = (b->n - i + b->columns - 1) / b->columns;
        c->w = (const unsigned char *)MOEK_HALF_(a->gate_up.codes, b->gated && half) +
               ((size_t)tile.e * a->gate_up.rows + (size_t)i * a->gate_up.step) * b->row_bytes;
        #pragma unroll
        for (i = 0; i < X_COPIES; i++)
            if (i < c->xs) {
                const int p = tile.row0 + r + i * PASS;
                c->row[i] = (unsigned)(a->rows.order ? a->rows.order[p] / a->rows.div : p) *
                            ((unsigned)a->a_row_bytes / 16);
            }
    }
    /* A quarter of a stage is asked for, if there is one; with the last a group is closed. */
    MOEK_DEVICE void ask(const moek_gemm_ *a, const block *b, copies *c, unsigned char *stage, int quarter)
    {
        const int t = threadIdx.x, in = c->at < b->row_bytes, bytes = in ? 16 : 0, skip = in ? c->at : 0;
        const unsigned near = c->apart / (b->gated ? 8 : 16);          /* 32 rows of a stage on: 4 columns */
        unsigned char *const to = stage + place(t / CHUNKS, t % CHUNKS);
        int i;
        #pragma unroll
        for (i = quarter * W_COPIES / 4; i < (quarter + 1) * W_COPIES / 4; i++)
            if (i * PASS / 64 < c->ws)
                moek_cp_async16_(to + (M + i * PASS) * STEP,
                                 c->w + skip + (size_t)(i * PASS / 64) * c->apart + (i * PASS % 64 ? near : 0), bytes);
        #pragma unroll
        for (i = quarter * X_COPIES / 4; i < (quarter + 1) * X_COPIES / 4; i++)
            if (i < c->xs)
                moek_cp_async16_(to + i * PASS * STEP,
                                 (const unsigned char *)a->a + skip + (size_t)c->row[i] * 16, bytes);
        if (quarter < 3) return;
        c->at += STEP;
        if (c->tile >= 0 && c->at / STEP * STEP >= b->row_bytes) {
            c->tile += (int)gridDim.x;
            seat(a, b, c);
        }
        moek_cp_async_commit_();
    }

    /* ---- operands and sums --------------------------------------------------------------------------------------- */

    MOEK_DEVICE int warp_row(void) { return (int)threadIdx.x / 32 / WN * 64; }         /* of a */
    MOEK_DEVICE int warp_64(void) { return (int)threadIdx.x / 32 % WN; }               /* which 64 rows of w */
    /* A quarter of 32 bytes of k, number i of a stage. */
    MOEK_DEVICE void load(operands *o, const block *b, const unsigned char *stage, int i, int set, int quarter)
    {
        uint32_t of[4];
        moek_ldmatrix4_(o->w[set][quarter], stage + (b->w_at ^ i * 32) + quarter * (16 * STEP));
        moek_ldmatrix4_(of, stage + (b->x_at ^ i * 32) + quarter * (16 * STEP));
        o->x[set][2 * quarter][0] = of[0]; o->x[set][2 * quarter][1] = of[1];
        o->x[set][2 * quarter + 1][0] = of[2]; o->x[set][2 * quarter + 1][1] = of[3];
    }
    MOEK_DEVICE void load_all(operands *o, const block *b, const unsigned char *stage, int i)
    {
        int j;
        #pragma unroll
        for (j = 0; j < 4; j++) load(o, b, stage, i, 0, j);
    }
    /* A stage.  slot: where it lies in the ring; returns where the next one does.  LIVE 0: the warp has no rows of
     * a. */
    template <int LIVE>
    MOEK_DEVICE int multiply(const moek_gemm_ *a, const block *b, copies *c, operands *o, sum_t sum[MI][NI][4],
                             int slot)
    {
        unsigned char *const stage = b->ring + slot;
        const unsigned char *next = stage;
        int i, mi;
        #pragma unroll
        for (i = 0; i < K32; i++) {
            if (LIVE && LONG) load_all(o, b, stage, i);
            if (i == K32 - 1) {
                if ((slot += STAGE) == RING) slot = 0;
                next = b->ring + slot;
                moek_cp_async_wait_(STAGES - 2);
                __syncthreads();
            }
            #pragma unroll
            for (mi = 0; mi < MI; mi++) {
                if (LIVE && !LONG) load(o, b, next, (i + 1) % K32, (i + 1) % SETS, mi);
                if (i == K32 - 1) ask(a, b, c, stage, mi);
                if (LIVE) Format::template mma<1, NI>(&sum[mi], &o->w[i % SETS][mi], o->x[i % SETS]);
            }
        }
        return slot;
    }
    /* Sums times their scales, plus the bias.  of: of rows g and g + 8 of each 16 of w, columns 2q and 2q + 1 of each 8
     * rows of a. */
    MOEK_DEVICE void scale_sums(const moek_gemm_ *a, const block *b, float sum[MI][NI * 4],
                                const sum_t of[MI][NI][4], const int32_t high[LONG ? MI : 1][NI],
                                const moek_row_tile_ *tile, int column, int turn, int dtype)
    {
        const int g = (int)threadIdx.x % 32 / 4;
        const float *const x_scale = b->x_scales + turn % 2 * M + warp_row() + (int)threadIdx.x % 4 * 2;
        int mi, ni, i;
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            float scale[2], bias[2];
            #pragma unroll
            for (i = 0; i < 2; i++) {                   /* rows g, then g + 8 */
                const int j = min(column + column_of(16 * mi + g) + (b->gated ? 0 : 32 * i), b->n - 1);
                float by[2] = {1, 1}, add[2] = {0, 0};
                moek_scale_and_bias_<UP, BY_ROW, Format>(by, add, a, tile->e, j - g, 1, dtype);
                scale[i] = by[i]; bias[i] = add[i];
            }
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                float *const s = sum[mi] + 4 * ni;
                #pragma unroll
                for (i = 0; i < 4; i++) s[i] = (float)of[mi][ni][i];
                if constexpr (LONG) Format::total(s, of[mi][ni], high[mi][ni]);
                #pragma unroll
                for (i = 0; i < 4; i++) {
                    float by = scale[i / 2];
                    if constexpr (BY_ROW) by *= x_scale[8 * ni + i % 2];
                    s[i] = s[i] * by + bias[i / 2];
                }
            }
        }
        (void)high; (void)x_scale;
    }
    /* The activation, in place. */
    MOEK_DEVICE void act(const moek_gemm_ *a, float sum[MI][NI * 4])
    {
        int mi, i, j;
        if (a->epilogue.act == MOEK_SILU && !(a->epilogue.limit > 0)) {
            #pragma unroll
            for (mi = 0; mi < MI; mi++)
                #pragma unroll
                for (i = 0; i < NI * 4; i++)
                    if (i % 4 < 2) sum[mi][i] = moek_fast_silu_(sum[mi][i], sum[mi][i + 2]);
            return;
        }
        #pragma unroll 1
        for (mi = 0; mi < MI; mi++) {                   /* all activations once: sums take turns in the first place */
            moek_act_sums_<NI * 8>(a, sum[0], 0);
            #pragma unroll
            for (i = 0; i < NI * 4; i++) {
                const float first = sum[0][i];
                #pragma unroll
                for (j = 1; j < MI; j++) sum[j - 1][i] = sum[j][i];
                sum[MI - 1][i] = first;
            }
        }
    }
    /* Scale, bias, activation, and out: of each 8 rows of a a lane has 8 columns of one. */
    MOEK_DEVICE void finish(const moek_gemm_ *a, const block *b, const sum_t of[MI][NI][4],
                            const int32_t high[LONG ? MI : 1][NI], const moek_row_tile_ *tile, int turn)
    {
        const int dtype = Format::DTYPE > 0 ? (int)Format::DTYPE : a->dtype, lane = threadIdx.x % 32;
        const int column = (tile->j * (N / 64) + warp_64()) * b->columns, j = column + lane % 4 * 8;
        const int *const rows = b->rows + turn % 2 * M + warp_row() + lane / 4;
        float sum[MI][NI * 4];
        int mi, ni, i;
        scale_sums(a, b, sum, of, high, tile, column, turn, dtype);
        if constexpr (UP) act(a, sum);
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            uint16_t *const to = (uint16_t *)a->out + (size_t)(uint32_t)rows[8 * ni] * (uint32_t)b->n + j;
            #pragma unroll
            for (i = 0; i < 2; i++) {
                moek_words_ eight;
                if (i && b->gated) break;
                #pragma unroll
                for (mi = 0; mi < MI; mi++)
                    eight.w[mi] = moek_transpose_(moek_to_t2_(sum[mi][4 * ni + 2 * i], sum[mi][4 * ni + 2 * i + 1],
                                                              dtype));
                if (rows[8 * ni] >= 0 && j + 32 * i < b->n) moek_store_words_(to + 32 * i, eight);
            }
        }
    }

    /* ---- a block ------------------------------------------------------------------------------------------------- */

    /* Where the rows of a tile go, and their scales, are asked for: they are there after STAGES stages. */
    MOEK_DEVICE void ask_rows(const moek_gemm_ *a, const block *b, const moek_row_tile_ *tile, int turn)
    {
        const int t = threadIdx.x, p = tile->row0 + t, at = turn % 2 * M + t;
        if (t >= M) return;
        if (p >= tile->end) b->rows[at] = -1;
        else if (a->rows.out_order) moek_cp_async4_(b->rows + at, a->rows.out_order + p);
        else b->rows[at] = p;
        if constexpr (BY_ROW)
            if (p < tile->end)
                moek_cp_async4_(b->x_scales + at,
                                (const float *)a->a_scale + (a->rows.order ? a->rows.order[p] / a->rows.div : p));
    }
    /* After so many stages of a tile: what ask_rows asked for is there. */
    MOEK_DEVICE void settle(int stages)
    {
        if (stages >= STAGES) return;
        moek_cp_async_wait_(0);
        __syncthreads();
    }
    MOEK_DEVICE void run(const moek_gemm_ *a)
    {
        MOEK_SHARED_(unsigned char, shared);            /* [STAGES][M + N][STEP] */
        const int lane = threadIdx.x % 32;
        operands o;
        copies c;
        block b;
        int slot = 0, turn, i, j, step;
        b.ring = shared;
        b.rows = (int *)(void *)(shared + RING);
        b.ahead = (moek_row_tile_ *)(void *)(b.rows + 2 * M);
        b.x_scales = (float *)(void *)(b.ahead + AHEAD);
        b.x_at = place(lane / 16 * 8 + lane % 8, lane / 8 % 2) + warp_row() * STEP;
        b.w_at = place(lane % 16, lane / 16) + (M + warp_64() * 64) * STEP;
        b.n = !UP && HIDDEN ? HIDDEN : a->n;
        b.row_bytes = (UP && HIDDEN ? HIDDEN : a->k) * ELEMENT;
        b.gated = UP ? a->w_rows > b.n : 0;
        b.columns = b.gated ? 32 : 64;
        b.tiles = (b.n + N / 64 * b.columns - 1) / (N / 64 * b.columns);
        b.all = moek_row_blocks_(a) * b.tiles;
        c.apart = (unsigned)b.row_bytes * a->gate_up.step * b.columns;
        c.number = 0;
        c.tile = (int)blockIdx.x;
        seat(a, &b, &c);
        for (i = 0; i < STAGES; i++)
            #pragma unroll
            for (j = 0; j < 4; j++) ask(a, &b, &c, b.ring + i * STAGE, j);
        moek_cp_async_wait_(STAGES - 1);
        __syncthreads();
        for (turn = 0; ; turn++) {
            const moek_row_tile_ *const tile = &b.ahead[turn % AHEAD];
            sum_t sum[MI][NI][4] = {{{0}}};
            int32_t high[LONG ? MI : 1][NI] = {{0}};
            int mi, ni;
            if (tile->e < 0) break;
            ask_rows(a, &b, tile, turn);
            if (warp_row() >= tile->end - tile->row0) {  /* others have the tensor cores to themselves */
                #pragma unroll 1
                for (step = 0; step * STEP < b.row_bytes; step++) slot = multiply<0>(a, &b, &c, &o, sum, slot);
                settle(step);
                continue;
            }
            if (!LONG) load_all(&o, &b, b.ring + slot, 0);
            #pragma unroll 1
            for (step = 0; step * STEP < b.row_bytes; step++) {
                slot = multiply<1>(a, &b, &c, &o, sum, slot);
                if constexpr (LONG)
                    if (step % CARRY == CARRY - 1)
                        #pragma unroll
                        for (mi = 0; mi < MI; mi++)
                            #pragma unroll
                            for (ni = 0; ni < NI; ni++) Format::carry(sum[mi][ni], &high[mi][ni]);
            }
            settle(step);
            finish(a, &b, sum, high, tile, turn);
            (void)mi; (void)ni;
        }
    }
};

/* Launches such a kernel, of `exact` (INTEGER) if k is long.  args NULL: makes them ready. */
template <int OP, int M, int N, int STAGES, int WARPS, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_wide_mma_(const void *args, moek_stream stream,
                                                     void (*kernel)(moek_gemm_),
                                                     void (*exact)(moek_gemm_) = NULL)
{
    typedef moek_wide_mma_<OP, M, N, STAGES, WARPS, HIDDEN, 0, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    moek_gemm_ found;
    int blocks, most;
    if (!a) {
        const moek_status status = MOEK_READY_(kernel, K::SHARED);
        return status == MOEK_OK && exact ? MOEK_READY_(exact, K::SHARED) : status;
    }
    blocks = moek_blocks_of_mma_(a, K::UP && a->w_rows > a->n ? N / 2 : N);
    if (blocks == 0) return MOEK_OK;
    if (blocks < 0 || blocks > 0x3fffffff || (size_t)a->k * K::ELEMENT > 0x7fffffff / 128) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    moek_find_gemm_<Format>(&found, 0);
    most = K::BLOCKS * (int)moek_multiprocessors_();
    if (exact && a->k > 1 << 16) kernel = exact;
    return MOEK_LAUNCH_(kernel, blocks < most ? blocks : most, K::THREADS, K::SHARED, stream, found);
}
#endif
