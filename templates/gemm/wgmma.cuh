/* gemm/wgmma.cuh -- up or down for few rows an expert, on Hopper, of the rows r of each expert:
 * out[r] = act(gate(x[r]), up(x[r])), or out[r] = h[r] . w_down.  For gemm_wgmma of the table.
 *
 * A grouped GEMM by wgmma, persistent: one block an SM.  Experts have few rows, so the bytes of the weights are the
 * limit.  The kernel reads each weight once for M rows and keeps enough loads on their way.  The plan takes it up
 * to the mean of rows an expert in rules.toml (tile_rows), where no kernel does up and down in one launch.
 * A tile is M rows of a by N rows of w.  Rows of w are wgmma's M, 64 a warpgroup, and rows of a its N: the
 * other way round, few rows would leave most of M empty.  Warps have roles:
 *
 *     producer thread (0): weights, by TMA     producer warps (1, 2, 3): rows of a, scales, by cp.async
 *              | full [s]                                ^ empty [s]
 *              v                                         |
 *     stages [s] of 128 bytes of k: rows of a | rows of w
 *              |
 *              v
 *     consumer warpgroups (warps 4 .. 7, 8 .. 11): wgmma, exchange of sums, scales, bias, activation -> out
 *
 * - Walk: tiles are numbered expert by expert, row block by row block, and the columns of a row block come one after
 *   the other.  The stages of all tiles, in this order, are cut into equal parts, one a block, so that all blocks read
 *   as many bytes.  A cut may fall inside a tile.  The block with the first stage of a tile then adds the sums of the
 *   blocks after it, by way of global memory (split).  Without that scratch, a block takes whole tiles.
 *   Of tall tiles (TALL) blocks take whole ones in turns: tiles of an expert are then near each other in time.
 * - Weights do not depend on the kernel before in the stream: their loads begin before that kernel has ended.
 * - Two stages that lie side by side in memory are asked for together (docs/notes: two-stages-together).
 * - A gated tile has half as many columns.  Rows of gate and of up alternate, 8 by 8, so that a thread has both of a
 *   column.
 * - For few slots, each block sorts the ids itself, and no kernel before need do so.
 * - FINE, scales are e8m0, for 32 of k on either side: the tensor cores sum 32 of k.  That sum is multiplied by both
 *   scales and added in f32, while the tensor cores make the next.  Rows of scales begin at any byte: their producers
 *   copy words of four, and some stages later (LATE), when those are there, make floats of them in the same place.
 * - FP8, else: the tensor cores sum 128 / SETS of k (docs/notes: thirteen-bit-sums).  That sum is added in f32, BLOCKED
 *   times the scales of its rows of a and of w.
 * - INTEGER: sums are s32, and exact, also where blocks add them.  Of more than 2^16 products, what s32 does not hold
 *   is kept apart (high), and no tile is cut.
 */
#ifndef MOEK_GEMM_WGMMA_CUH
#define MOEK_GEMM_WGMMA_CUH
#include "../../include/moek/kernel/sm90_schedule.h"
#include "../../include/moek/kernel/act.h"

/* HIDDEN: the hidden size, or 0: a run has the size.  Format: of moek_formats.h. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format> struct moek_few_rows_ {
    typedef typename Format::sum_t Sum;
    enum {
        UP = OP == MOEK_OP_UP, DTYPE = Format::DTYPE,
        BYTES = Format::W_BITS == 8, INTEGER = Format::INTEGER, FP8 = BYTES && !INTEGER,
        ELEMENT = Format::W_BITS / 8, PER = 128 / ELEMENT,                     /* bytes; PER: elements in a stage */
        FINE = Format::W_SCALE_COLUMNS == 32,          /* a scale for 32 of k, four in a stage */
        BLOCKED = Format::W_SCALE_COLUMNS == 128,      /* scales are for 128 x 128 of w, and 128 columns of a */
        BY_ROW = BYTES && !FINE && !BLOCKED && Format::W_SCALE_ROWS == 1,
        BY_TENSOR = BYTES && !FINE && !BLOCKED && !BY_ROW,
        SHIFTED = (BLOCKED || FINE) && !UP,            /* a group of k may begin before k does */
        TALL = FINE && M >= 96,
        PART = M > 64 ? 64 : M, PARTS = M / PART,      /* rows of a that a wgmma has */
        SETS = FINE ? (M > 32 ? 2 : 4) : FP8 && UP ? 4 : 1,                    /* of sums of tensor cores at a time; */
        CHAIN = 4 / SETS,                              /* but for FINE: wgmma that make one */
        A = M * 128, STAGE = (M + N) * 128,
        SUBS = N / 64,                                 /* 64 rows of w share a scale */
        ROWS = M + N,                                  /* rows that have scales, BRINGS of them for a thread */
        BRINGS = FINE ? (ROWS + 95) / 96 : 1,
        SCALES = BLOCKED ? M + SUBS : FINE ? 4 * ROWS : 0,
        LATE = TALL ? 2 : 4,
        GATHER = (M + 95) / 96,                        /* rows of a tile, at most, for each of 96 threads */
        CONSUMERS = 256, THREADS = 128 + CONSUMERS,
        CARRY = (1 << 16) / 128                        /* stages */
    };
    struct params { moek_gemm_ a; CUtensorMap w; };

#ifdef MOEK_SM90_CODE_
    /* What all roles of a block know: its shared memory, facts of the GEMM, and the block's range of it. */
    struct block {
        unsigned char *ring;                           /* stages */
        uint64_t *full, *empty;                        /* barriers [STAGES] */
        float *scales;                                 /* [STAGES]: of rows of a; of 64s of rows of w; FINE: [32s of k:
                                                          4]: of rows of a, in an order; of rows of w */
        int *row;                                      /* [M]: the tile's rows of a; [8][M]: slots, a list a warp */
        uint16_t *ids;                                 /* [MOEK_SELF_SORT], where the block sorts */
        moek_work_range_ range;
        int n, row_bytes;
        int gated, columns;                            /* columns: of a tile */
    };

    /* ---- producers ----------------------------------------------------------------------------------------------- */

    /* One stage of weights. */
    MOEK_DEVICE void weights(const params *p, unsigned char *smem_w, uint64_t *full, uint64_t policy,
                             const moek_tile_ *tile, int step)
    {
        moek_tma_stage_(smem_w, &p->w, full, N * 128, policy, &p->a, PER, step, tile->j0, tile->e);
    }
    /* Producer of weights, one thread: weights are there before anything else is. */
    MOEK_DEVICE void produce(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const uint64_t policy = TALL ? moek_evict_normal_() : moek_evict_first_();
        moek_tile_ tile;
        int tile_index, slot = 0, phase = 1, step = b->range.first_step, i;
        tile.e = -1;
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += FINE ? b->range.stride : 1) {
            const int until = tile_index == b->range.last - 1 ? b->range.last_step : b->range.steps;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, b->columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            while (step < until) {
                const int next = slot + 1 == STAGES ? 0 : slot + 1, two = moek_two_(a, step, until);
                moek_mbar_wait_(b->empty + slot, phase);
                if (two) moek_mbar_wait_(b->empty + next, next ? phase : phase ^ 1);
                weights(p, b->ring + slot * STAGE + A, b->full + slot, policy, &tile, step);
                if (two) weights(p, b->ring + next * STAGE + A, b->full + next, policy, &tile, step + 1);
                for (i = 0; i <= two; i++) {
                    step++;
                    moek_next_(slot, phase, STAGES);
                }
            }
            step = 0;
        }
    }
    /* FINE: scales of a stage that this thread has brought: words -> floats.  What is behind the last group meets
     * zeros. */
    MOEK_DEVICE void convert(const block *b, int slot)
    {
        const int u = threadIdx.x - 32;
        int i, k;
        #pragma unroll
        for (i = 0; i < BRINGS; i++) {
            float *const smem_scales = b->scales + slot * SCALES + u + 96 * i;
            const uint32_t *const words = (const uint32_t *)smem_scales;
            if (u + 96 * i >= ROWS) break;
            const uint32_t about = words[2 * ROWS];
            const uint32_t four = (uint32_t)(((uint64_t)words[ROWS] << 32 | words[0]) >> about % 32);
            #pragma unroll
            for (k = 0; k < 4; k++)
                smem_scales[k * ROWS] = k < (int)(about >> 8) ? moek_from_e8m0_((uint8_t)(four >> 8 * k)) : 0;
        }
        moek_mbar_arrive_warp_(b->full + slot);
    }
    /* Producer of rows of a, and of scales, three warps. */
    MOEK_DEVICE void gather(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x, u = t - 32, steps = b->range.steps, row_bytes = b->row_bytes, n = b->n;
        const int gated = b->gated, columns = b->columns;
        const unsigned char *const x = (const unsigned char *)a->a + u % 8 * 16;
        int *const row = b->row;
        int tile_index, slot = 0, phase = 1, step = b->range.first_step, rows = 0, e = -1, row0 = -1, i;
        moek_tile_ tile;
        const float *w_scale = NULL;
        const int groups = ((SHIFTED ? a->k_offset : 0) + row_bytes + 31) / 32;
        const uint8_t *scale[BRINGS];                  /* of rows u, u + 96 ... of a and then of w; NULL: nobody's */
        int brought = 0, late = 0;                     /* stages whose scales are on their way; the first of them */
        tile.e = -1;
        moek_grid_wait_();                             /* now a is there */
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += FINE ? b->range.stride : 1) {
            const int until = tile_index == b->range.last - 1 ? b->range.last_step : steps;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, columns, &tile);
            if (tile.row0 != row0 || tile.e != e) {
                int source[GATHER];
                #pragma unroll
                for (i = 0; i < GATHER; i++) {
                    const int r = tile.row0 + u + 96 * i;
                    source[i] = r >= tile.end ? 0
                              : a->rows.order && (TALL || !a->ids) ? a->rows.order[r] / a->rows.div : r;
                }
                moek_named_wait_(1, 96);               /* the rows before are no longer looked at */
                if (UP && !TALL && a->ids) {
                    if (u < 32)
                        moek_slots_of_(row, b->ids, a->slots, tile.e, tile.row0 - b->range.s.row[tile.e], M,
                                       a->rows.div);
                } else
                    #pragma unroll
                    for (i = 0; i < GATHER; i++) if (u + 96 * i < M) row[u + 96 * i] = source[i];
                moek_named_wait_(1, 96);
                e = tile.e; row0 = tile.row0;
                rows = min(tile.end - tile.row0, M);
            }
            if (BLOCKED && u < SUBS) {                 /* of each 64 rows of w of the tile */
                const int j = min(gated ? tile.j0 : tile.j0 + 64 * u, n - 1);
                w_scale = moek_scales_of_(&a->gate_up, UP ? u : 0, tile.e, j, steps);
            }
            if constexpr (FINE)
                #pragma unroll
                for (i = 0; i < BRINGS; i++) {         /* a row behind the last is not stored */
                    /* Of 16 rows of a: those that a consumer lane wants lie side by side. */
                    const int place = u + 96 * i, v = place - M;
                    const int r = place / 16 * 16 + place % 4 / 2 * 8 + place % 16 / 4 * 2 + place % 2;
                    const int half = gated ? v / 8 % 2 : 0;
                    const int j = min(tile.j0 + (gated ? v / 16 * 8 + v % 8 : v), n - 1);
                    if (v >= 0)
                        scale[i] = (const uint8_t *)MOEK_HALF_(a->gate_up.scales, half) +
                                   ((size_t)tile.e * a->gate_up.rows + (UP ? j * a->gate_up.step : j)) * groups;
                    else
                        scale[i] = r < rows ? (const uint8_t *)a->a_scale + (size_t)(uint32_t)row[r] * groups : NULL;
                }
            for (; step < until; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                const int at_k = step * 128 - (SHIFTED ? a->k_offset : 0), at_byte = at_k + u % 8 * 16;
                const int bytes = (SHIFTED ? (unsigned)at_byte < (unsigned)row_bytes : at_byte < row_bytes) ? 16 : 0;
                const unsigned char *const x_source = x + (bytes ? at_k : 0);
                moek_mbar_wait_(b->empty + slot, phase);
                #pragma unroll 2
                for (i = u / 8; i < rows; i += 12)
                    moek_cp_async16_(stage + i * 128 + (u % 8 ^ i % 8) * 16,
                                     x_source + (size_t)(uint32_t)row[i] * (uint32_t)a->a_row_bytes, bytes);
                if constexpr (BLOCKED) {
                    for (i = u; i < rows; i += 96)
                        moek_cp_async4_(b->scales + slot * SCALES + i,
                                        MOEK_F32_(a->a_scale) + (size_t)(uint32_t)row[i] * steps + step);
                    if (u < SUBS) moek_cp_async4_(b->scales + slot * SCALES + M + u, w_scale + step);
                } else if constexpr (FINE) {
                    #pragma unroll
                    for (i = 0; i < BRINGS; i++) {     /* a word or two, and what of them counts */
                        uint32_t *const words = (uint32_t *)b->scales + slot * SCALES + u + 96 * i;
                        const unsigned char *const codes = scale[i] + 4 * step;
                        const int shift = (int)((uintptr_t)codes % 4), count = min(4, groups - 4 * step);
                        if (u + 96 * i >= ROWS) break;
                        words[2 * ROWS] = scale[i] ? (uint32_t)(8 * shift | count << 8) : 0;
                        if (!scale[i]) continue;
                        moek_cp_async4_(words, codes - shift);
                        if (shift + count > 4) moek_cp_async4_(words + ROWS, codes - shift + 4);
                    }
                }
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
                if constexpr (FINE) {
                    moek_cp_async_commit_();
                    if (++brought == LATE) {
                        moek_cp_async_wait_(LATE - 1);
                        convert(b, late);
                        late = late + 1 == STAGES ? 0 : late + 1;
                        brought--;
                    }
                }
            }
            step = 0;
        }
        moek_cp_async_commit_();
        moek_cp_async_wait_(0);
        for (; FINE && brought; brought--) {
            convert(b, late);
            late = late + 1 == STAGES ? 0 : late + 1;
        }
    }

    /* ---- consumers ----------------------------------------------------------------------------------------------- */

    /* Scale, bias, activation, and out.  sum: this lane's rows of w g and g + 8 (gated: of gate and of up, or the other
     * way round), columns 2q and 2q + 1 of each 8 rows of a.  row: where the lane's rows go. */
    MOEK_DEVICE void finish(const moek_gemm_ *a, float *sum, const moek_tile_ *tile, const int *row, int n,
                            int part, int dtype)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, c = lane % 4 * 2;
        const int gated = UP ? a->w_rows > n : 0, swapped = UP ? a->gate_up.swapped : 0;
        const int j = tile->j0 + (gated ? 32 * part + 8 * warp : 64 * part + 16 * warp);  /* of the warp's row 0 */
        float scale[2] = {1, 1}, bias[2] = {0, 0};
        int i;
        #pragma unroll
        for (i = 0; i < 2; i++) {                                      /* a row behind the last is not stored */
            const int column = min(gated ? j + g : j + g + 8 * i, n - 1);
            const size_t w_at = (size_t)tile->e * a->gate_up.rows + (UP ? column * a->gate_up.step : column);
            if (a->w.bias) bias[i] = moek_from_t_(((const uint16_t *)a->gate_up.bias[i])[w_at], dtype);
            if constexpr (BY_TENSOR) scale[i] = MOEK_F32_(a->a_scale)[0] * a->gate_up.scales[i][tile->e];
            if constexpr (BY_ROW) scale[i] = a->gate_up.scales[i][w_at];
        }
        #pragma unroll
        for (i = 0; i < M / 4; i++) {
            float s = 1;
            if constexpr (BY_ROW) {
                const int p = tile->row0 + i / 2 * 8 + c + i % 2;
                if (p < tile->end) s = MOEK_F32_(a->a_scale)[a->rows.order ? a->rows.order[p] / a->rows.div : p];
            }
            sum[i / 2 * 4 + i % 2] = sum[i / 2 * 4 + i % 2] * (s * scale[0]) + bias[0];
            sum[i / 2 * 4 + i % 2 + 2] = sum[i / 2 * 4 + i % 2 + 2] * (s * scale[1]) + bias[1];
        }
        if constexpr (UP) moek_act_sums_<M>(a, sum, swapped);
        #pragma unroll
        for (i = 0; i < M / 8; i++) {                              /* now a lane has a row of a, and two columns */
            const uint32_t low = moek_transpose_(moek_to_t2_(sum[4 * i], sum[4 * i + 1], dtype));
            const uint32_t high = gated ? 0 : moek_transpose_(moek_to_t2_(sum[4 * i + 2], sum[4 * i + 3], dtype));
            uint16_t *const out = (uint16_t *)a->out + (size_t)(uint32_t)row[i] * n + j + c;
            if (row[i] < 0) continue;
            if (j + c < n) *(uint32_t *)out = low;
            if (!gated && j + c + 8 < n) *(uint32_t *)(out + 8) = high;
        }
    }
    /* FINE: product number i of a stage: of PART rows of a and 32 of k. */
    MOEK_DEVICE void multiply(float *part, uint64_t ws, uint64_t xs, int i)
    {
        ws += i / PARTS * 2;
        xs += i / PARTS * 2 + i % PARTS * (64 * 128 / 16);
        moek_wgmma_of_shared_<PART, Format::ELEMENT>(part, ws, xs, 0);
        moek_wgmma_commit_();
    }
    /* FINE: the product times the scales of its rows of a and of w, added. */
    MOEK_DEVICE void promote(float *sum, const float *part, const float *scales, int number)
    {
        const int t = moek_opaque_int_(threadIdx.x) - 128, q = t % 4;
        const float *const stage_scales = scales + number / PARTS * ROWS;
        const float *const of_x = stage_scales + number % PARTS * PART + 4 * q;
        const float *const of_w = stage_scales + M + t / 32 * 16 + t % 32 / 4;
        const float low = of_w[0], high = of_w[8];
        int i;
        sum += number % PARTS * (PART / 2);
        #pragma unroll
        for (i = 0; i < PART / 16; i++) {
            const float4 x = *(const float4 *)(of_x + 16 * i);
            const float *const p = part + 8 * i;
            float *const out = sum + 8 * i;
            out[0] += p[0] * (x.x * low); out[1] += p[1] * (x.y * low);
            out[2] += p[2] * (x.x * high); out[3] += p[3] * (x.y * high);
            out[4] += p[4] * (x.z * low); out[5] += p[5] * (x.w * low);
            out[6] += p[6] * (x.z * high); out[7] += p[7] * (x.w * high);
        }
    }
    /* FINE: product number J of a stage is waited for and promoted, and the one that takes its registers begun. */
    template <int J>
    MOEK_DEVICE void take(float *sum, float (*part)[PART / 2], const float *scales, uint64_t ws, uint64_t xs)
    {
        if constexpr (J < 4 * PARTS) {
            moek_wgmma_wait_(SETS == 4 ? 3 - J % 4 : J + 1 < 4 * PARTS ? 1 : 0);
            promote(sum, part[J % SETS], scales, J);
        }
        if constexpr (SETS == 2 && J + 2 < 4 * PARTS) {
            moek_wgmma_fence_();
            multiply(part[J % 2], ws, xs, J + 2);
        }
    }
    /* Consumer: a warpgroup multiplies 64 rows of w of a tile. */
    MOEK_DEVICE void consume(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x, warpgroup = t / 128 - 1, steps = b->range.steps;
        const int dtype = BYTES ? a->dtype : DTYPE;
        moek_tile_ tile;
        int tile_index, first_step = b->range.first_step, slot = 0, phase = 0, e = -1, row0 = -1, out_row[M / 8], i;
        tile.e = -1;
        moek_grid_wait_();
        for (tile_index = b->range.tile; tile_index < b->range.last; tile_index += FINE ? b->range.stride : 1) {
            const int until = tile_index == b->range.last - 1 ? b->range.last_step : steps;
            const int first = first_step, whole = first == 0 && until == steps;
            Sum sum[M / 2];
            int32_t high[M / 8] = {0};
            int step;
            if (TALL) moek_tile_at_(a, &b->range, tile_index, M, b->columns, &tile);
            else moek_next_tile_(a, &b->range, tile_index, M, b->columns, &tile);
            if (tile.row0 != row0 || tile.e != e) {
                int *const slots = b->row + (t / 32 - 3) * M;          /* this warp's list */
                if (!UP && !TALL && a->ids)
                    moek_slots_of_(slots, b->ids, a->slots, tile.e, tile.row0 - b->range.s.row[tile.e], M, 1);
                #pragma unroll
                for (i = 0; i < M / 8; i++) {                          /* where this lane's rows go */
                    const int r = tile.row0 + 8 * i + t % 32 / 4;
                    out_row[i] = r >= tile.end ? -1
                          : !UP && !TALL && a->ids ? slots[8 * i + t % 32 / 4]
                          : a->rows.out_order && (TALL || !a->ids) ? a->rows.out_order[r] : r;
                }
                e = tile.e; row0 = tile.row0;
            }
            #pragma unroll
            for (i = 0; i < M / 2; i++) sum[i] = 0;
            for (step = first; step < until; step++) {
                const unsigned char *const stage = b->ring + slot * STAGE;
                const uint64_t ws = moek_wgmma_operand_(stage + A + warpgroup * 8192);
                const uint64_t xs = moek_wgmma_operand_(stage);
                float part[SETS][PART / 2];
                int j;
                if constexpr (INTEGER)
                    if (step && step % CARRY == 0)
                        #pragma unroll
                        for (i = 0; i < M / 8; i++) Format::carry(sum + 4 * i, high + i);
                moek_mbar_wait_(b->full + slot, phase);
                const float *const stage_scales = b->scales + slot * SCALES;
                const float sw0 = BLOCKED ? stage_scales[M + (UP && b->gated ? 0 : warpgroup)] : 0;
                const float sw1 = BLOCKED ? stage_scales[M + (UP && b->gated ? 1 : warpgroup)] : 0;
                moek_wgmma_fence_();
                if constexpr (FINE) {
                    #pragma unroll
                    for (j = 0; j < SETS; j++) multiply(part[j], ws, xs, j);
                    take<0>(sum, part, stage_scales, ws, xs); take<1>(sum, part, stage_scales, ws, xs);
                    take<2>(sum, part, stage_scales, ws, xs); take<3>(sum, part, stage_scales, ws, xs);
                    take<4>(sum, part, stage_scales, ws, xs); take<5>(sum, part, stage_scales, ws, xs);
                    take<6>(sum, part, stage_scales, ws, xs); take<7>(sum, part, stage_scales, ws, xs);
                } else {
                    #pragma unroll
                    for (j = 0; j < 4; j++)
                        if constexpr (FP8)
                            moek_wgmma_of_shared_<M, Format::ELEMENT>(part[j / CHAIN], ws + 2 * j, xs + 2 * j,
                                                                      j % CHAIN);
                        else moek_wgmma_of_shared_<M, Format::ELEMENT>(sum, ws + 2 * j, xs + 2 * j, 1);
                    moek_wgmma_commit_();
                    moek_wgmma_wait_(0);
                    if constexpr (FP8)
                        #pragma unroll
                        for (i = 0; i < M / 2; i++) {
                            float p = part[0][i];
                            if constexpr (SETS == 4) p = (p + part[1][i]) + (part[2][i] + part[3][i]);
                            if constexpr (BLOCKED) sum[i] += p * (stage_scales[i / 4 * 8 + t % 4 * 2 + i % 2] *
                                                                  (i % 4 < 2 ? sw0 : sw1));
                            else sum[i] += p;
                        }
                }
                moek_mbar_arrive_warp_(b->empty + slot);
                moek_next_(slot, phase, STAGES);
            }
            first_step = 0;
            if constexpr (INTEGER) {
                float total[M / 2];
                if (!whole &&
                    moek_split_k_reduce_s32_(a, &b->range, sum, M / 2, CONSUMERS, tile_index, first)) continue;
                if (steps > CARRY)
                    #pragma unroll
                    for (i = 0; i < M / 8; i++) Format::total(total + 4 * i, sum + 4 * i, high[i]);
                else
                    #pragma unroll
                    for (i = 0; i < M / 2; i++) total[i] = (float)sum[i];
                finish(a, total, &tile, out_row, b->n, warpgroup, dtype);
            } else {
                if (!whole && moek_split_k_reduce_(a, &b->range, sum, M / 2, CONSUMERS, tile_index, first)) continue;
                finish(a, sum, &tile, out_row, b->n, warpgroup, dtype);
            }
        }
    }

    /* A block. */
    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_1024_(shared);
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x;
        block b;
        int i;
        b.ring = shared + (1024 - moek_shared_address_(shared) % 1024) % 1024;
        b.full = (uint64_t *)(b.ring + STAGES * STAGE); b.empty = b.full + STAGES;
        b.scales = (float *)(b.empty + STAGES);
        b.row = (int *)(b.scales + STAGES * SCALES);
        b.ids = (uint16_t *)(b.row + 9 * M);
        const int k = UP && HIDDEN ? HIDDEN : a->k;
        b.n = !UP && HIDDEN ? HIDDEN : a->n;
        b.gated = UP ? a->w_rows > b.n : 0;
        b.columns = b.gated ? N / 2 : N;
        b.row_bytes = k * ELEMENT;
        b.range.tiles = (b.n + b.columns - 1) / b.columns;
        b.range.steps = ((SHIFTED ? a->k_offset : 0) + b.row_bytes + 127) / 128;

        if (t == 0) {
            moek_tma_prefetch_map_(&p->w);
            for (i = 0; i < STAGES; i++) {
                /* The bytes of TMA, what threads copied, scales by warps; warps. */
                moek_mbar_init_(b.full + i, 1 + 96 + (FINE ? 3 : 0));
                moek_mbar_init_(b.empty + i, 8);
            }
            moek_mbar_init_fence_();
        }
        moek_work_range_of_(a, &b.range, b.ids, (int *)(b.ids + MOEK_SELF_SORT), M, UP, 0);
        if (t < 128) {
            if (TALL) moek_registers_less_(72);
            if (t == 0) produce(p, &b);
            else if (t >= 32) gather(p, &b);
        } else {
            if (TALL) moek_registers_more_(216);
            consume(p, &b);
        }
    }
#else
    MOEK_DEVICE void run(const params *p) { (void)p; }
#endif
};

/* Launches one of these kernels, of `shared` bytes of shared memory.  args NULL: makes it ready. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_few_rows_(
    const void *args, moek_stream stream, int shared,
    void (*kernel)(typename moek_few_rows_<OP, M, N, STAGES, HIDDEN, Format>::params))
{
    typedef moek_few_rows_<OP, M, N, STAGES, HIDDEN, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    typename K::params p;
    moek_status status;
    long long tiles;
    if (!a) return MOEK_READY_SM90_(kernel, K::THREADS, shared);
    if (a->max_blocks < 1 || a->experts < 1) return MOEK_OK;
    if (a->experts > MOEK_SM90_EXPERTS) return MOEK_E_ARGUMENT;
    if (a->k_offset && a->w.layout) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&p.a, a);
    moek_find_gemm_<Format>(&p.a, 1);
    tiles = (long long)a->max_blocks * (a->rows_per_expert ? a->experts : 1) *
            ((a->n + N / 2 - 1) / (N / 2));                                     /* or half as many */
    if (tiles > 0x3fffffff) return MOEK_E_ARGUMENT;
    if (tiles * (((long long)a->k * K::ELEMENT + 255) / 128) > 0x3fffffff) p.a.split = NULL;
    if (K::TALL) p.a.split = NULL;
    if (K::INTEGER && a->k > 1 << 16) p.a.split = NULL;                 /* s32 would not hold all parts of a sum */
    status = moek_weight_map_(&p.w, &p.a, K::ELEMENT, N, 1, 0);
    if (status != MOEK_OK) return status;
    return MOEK_CHAIN_(kernel, moek_multiprocessors_(), K::THREADS, shared, stream, a->early, p);
}
#endif
