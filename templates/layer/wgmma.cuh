/* layer/wgmma.cuh -- a layer of few tokens in one launch, on Hopper:
 * y[t] = the weighted sum over the experts e of token t of act(gate_e(x[t]), up_e(x[t])) . w_down_e.  For layer_wgmma
 * of the table.
 *
 * Sort, FP8 quantization of x, up, FP8 quantization of h, down and combine in one persistent launch: one block an SM.
 * The limit is the bytes of the weights, then latency: each block streams its share of w_up and, with no pause, of
 * w_down, and weights are on their way while their other factor is still being made.  The plan takes the kernel for
 * few tokens (rules.toml: one_launch, tile_rows) and at most MOEK_SELF_SORT slots.  Blocks wait for each other: all
 * blocks must be resident at once.
 * A tile is M rows of a by N rows of w.  Rows of w are wgmma's M, 128 a warpgroup, and rows of a its N.
 * Gate and up alternate, 8 by 8, so that a thread has both of a column.  Warps have roles:
 *
 *     scheduler, producer (warp 0): takes tiles; weights, by TMA, and their scales
 *     producer warps (1, 2, 3): sort; rows of a, scales, by cp.async
 *              | full_w, full [s]                           ^ empty [s]
 *              v                                            |
 *     stages [s] of 128 bytes of k: rows of a, scales | rows of w
 *              |
 *              v
 *     consumer warpgroups (warps 4 .. 7, 8 .. 11): quantization of x; wgmma, exchange of sums, then
 *         up: scales, bias, activation, codes -> h     down: scales, bias -> rows    combine: rows -> y
 *
 * - Sort: each block for itself, in shared memory, by the producer warpgroup.  The thread that finds the expert of the
 *   block's first tile asks for the first weights of that tile at once.
 * - FP8: x is quantized by the consumers of all blocks together.  state->flags[2] counts the blocks that are done with
 *   x.
 * - Walk, with many tiles: whole tiles by demand (flags[3], flags[4]), for blocks that read as many bytes do not end at
 *   the same time.  Few tiles of up with much k: by demand in 3 or 4 pieces of k.  Sums of pieces go to `split`, and
 *   the block with the last piece adds them (flags[8 + tile] counts), so that no block waits for another.  Few tiles of
 *   down: a block takes a run of neighbouring tiles, cut anywhere along k, so that all blocks read as many bytes.  Sums
 *   of a cut tile meet in `split`: the block with the first stage adds them.
 * - h: a tile of up has 128 columns of h if gated, else 256: all that a block scale needs.
 *   ready[row block] counts its tiles, and down waits for that count.
 * - Combine begins when all blocks have met (flags[0], which is never reset: each launch counts on).
 * - What an SM asks for comes behind all that the SM asked for before: 6 us later, with 192 KB on their way.  So x is
 *   asked for first, and no more weights are on their way than the rate of memory needs: two stages at first, up to
 *   four later, and next to none while sums of up meet.
 * - Later, two stages that lie side by side in memory are asked for together (docs/notes: two-stages-together).
 * - FP8: the tensor cores sum 32 of k in up, 128 in down (docs/notes: thirteen-bit-sums).  That sum is added in f32,
 *   BLOCKED times the scales of its rows of a and of w.
 */
#ifndef MOEK_LAYER_WGMMA_CUH
#define MOEK_LAYER_WGMMA_CUH
#include "../../include/moek/kernel/sm90_schedule.h"
#include "../../include/moek/kernel/act.h"

/* Format: of moek_formats.h. */
template <int M, int N, int STAGES, class Format> struct moek_layer_wgmma_ {
    enum {
        FP8 = Format::W_BITS == 8, DTYPE = Format::DTYPE,
        ELEMENT = Format::W_BITS / 8, PER = 128 / ELEMENT,                     /* bytes; PER: elements in a stage */
        BLOCKED = Format::W_SCALE_COLUMNS > 0,         /* scales are for 128 x 128 of w, and 128 columns of a */
        BY_TENSOR = FP8 && !BLOCKED,
        A = M * 128, STAGE = (M + N) * 128,            /* bytes of rows of a, and of w, too */
        SCALES = BLOCKED ? M + 4 : 0,
        CLAIMS = 16, PIECES = 4,
        FIRST = 4,                                     /* 128 columns of x that 16 lanes load ahead */
        AHEAD = 2,                                     /* stages of up that are asked for as soon as a tile is known */
        WEIGHERS = BLOCKED ? 4 : 1,                    /* threads that produce weights */
        CONSUMERS = 256, THREADS = 128 + CONSUMERS
    };
    /* Of up and of down: columns of a tile, tiles of a row block, stages of a tile. */
    struct size_ { int columns, tiles, steps; moek_fastdiv over_tiles, over_steps; };
    struct params {
        moek_layer_args a;
        moek_gemm_ up, down;
        size_ sizes[2];
        moek_fastdiv blocks, topk, tokens;
        CUtensorMap w_up, w_down;
    };

#ifdef MOEK_SM90_CODE_
    /* How tiles of up and down are taken: how many there are, whether by demand; pieces of k of a tile of up;
     * stages that may be on their way. */
    struct plan_ { int all[2], demand[2], pieces, inflight; };
    MOEK_DEVICE plan_ make_plan(const params *p, int row_blocks)
    {
        const int blocks = (int)gridDim.x, up = row_blocks * p->sizes[0].tiles, down = row_blocks * p->sizes[1].tiles;
        plan_ plan;
        plan.all[0] = up; plan.all[1] = down;
        plan.demand[1] = down >= 2 * blocks && !p->a.equal;
        plan.demand[0] = up >= (plan.demand[1] ? 1 : 6) * blocks && !p->a.equal;     /* is there what to go on with? */
        plan.pieces = !plan.demand[1] || p->sizes[0].steps < 16 || p->sizes[0].steps >= 1 << 14 ||
                      3 * up > PIECES * blocks ? 1 : up <= blocks ? PIECES : 3;
        if (plan.pieces > 1) plan.demand[0] = 1;
        plan.inflight = !FP8 || (plan.demand[0] && plan.pieces == 1) ? 4 : 2;
        return plan;
    }
    /* n / pieces, which are 3 or 4; n < 2^16. */
    MOEK_DEVICE int divided(int n, int pieces) { return (int)((unsigned)n * (pieces == 3 ? 43691 : 32768) >> 17); }

    /* A block's share of up or down: tiles [tile, last), the first from stage `first` on, the last up to stage
     * `until`. */
    struct walk { int tile, last, first, until; };

    /* First rows and row blocks of the experts, [experts + 1]; the expert of each row block. */
    struct schedule_ { const int *row, *block; const uint16_t *expert; };

    /* Where a tile lies: expert, number b of its row block, rows [row0, end), columns from j0 on.  e < 0: not next to
     * the one before. */
    struct tile { int e, b, j, row0, end, j0; };

    /* The first stage of a block: all stages of all tiles in parts as equal as can be.  What is left over goes to the
     * first blocks in up, to the last in down. */
    MOEK_DEVICE unsigned first_stage_of(const params *p, unsigned all, int down, unsigned block)
    {
        const unsigned each = moek_fastdiv_(all, p->blocks), more = all - each * gridDim.x, before = gridDim.x - more;
        return each * block + (!down ? min(block, more) : block > before ? block - before : 0);
    }
    MOEK_DEVICE walk start_walk(const params *p, int tiles, int down)
    {
        const size_ *const z = &p->sizes[down];
        const unsigned all = (unsigned)tiles * z->steps;
        const unsigned begin = first_stage_of(p, all, down, blockIdx.x);
        const unsigned end = first_stage_of(p, all, down, blockIdx.x + 1);
        walk w;
        w.tile = (int)moek_fastdiv_(begin, z->over_steps);
        w.last = (int)moek_fastdiv_(end + z->steps - 1, z->over_steps);
        w.first = (int)begin - w.tile * z->steps; w.until = (int)end - (w.last - 1) * z->steps;
        return w;
    }
    MOEK_DEVICE void find_tile(const params *p, schedule_ s, int number, int down,
                               tile *at)
    {
        const size_ *const z = &p->sizes[down];
        if (at->e < 0) {
            at->b = (int)moek_fastdiv_(number, z->over_tiles); at->j = number - at->b * z->tiles;
            at->e = s.expert[at->b];
        } else if (++at->j == z->tiles) {
            at->j = 0;
            at->b++;
            while (at->b >= s.block[at->e + 1]) at->e++;
        }
        at->row0 = s.row[at->e] + (at->b - s.block[at->e]) * M;
        at->end = s.row[at->e + 1];
        at->j0 = at->j * z->columns;
    }

    /* FP8: x -> up.a, by all blocks together: 16 lanes 128 columns, a stage of up.  Part number i
     * of these lanes; *column: of this lane. */
    MOEK_DEVICE int part_of_x(const params *p, int t, int i, int *row, int *column)
    {
        const int part = blockIdx.x + (16 * i + t / 16) * gridDim.x;
        *row = (int)moek_fastdiv_(part, p->sizes[0].over_steps);
        *column = (part - *row * p->sizes[0].steps) * 128 + t % 16 * 8;
        return *row < p->a.tokens;
    }
    MOEK_DEVICE moek_words_ load_x(const params *p, int row, int column)
    {
        return column < p->up.k ? moek_load_words_((const uint16_t *)p->a.x + (size_t)row * p->a.x_stride + column)
                                : moek_zero_words_();
    }
    MOEK_DEVICE void quantize(const params *p, int t, moek_words_ x, int row, int column)
    {
        const int k = p->up.k;
        float y[8], s = BLOCKED ? 0 : *MOEK_F32_(p->up.a_scale), inverse;
        int j;
        moek_from_t8_(y, x, p->up.dtype);
        if constexpr (BLOCKED) {
            #pragma unroll
            for (j = 0; j < 8; j++) s = fmaxf(s, fabsf(y[j]));
            #pragma unroll
            for (j = 8; j; j /= 2) s = fmaxf(s, __shfl_xor_sync(0xffff << (t & 16), s, j));
            s = moek_group_scale_(s, p->a.ue8m0);
            if (column < k && t % 16 == 0) ((float *)p->up.a_scale)[(size_t)row * p->sizes[0].steps + column / 128] = s;
        }
        inverse = __fdiv_rn(1.0f, s);
        #pragma unroll
        for (j = 0; j < 8; j++)
            y[j] = BLOCKED ? moek_by_scale_(y[j], s, inverse) : moek_by_static_(y[j], inverse);
        if (column < k) *(uint2 *)((uint8_t *)p->up.a + (size_t)row * k + column) = moek_to_e4m3x8_(y);
    }

    /* By 128 threads, of which this is t: counts -> rows, row blocks, [MOEK_SM90_EXPERTS + 1] each; the expert of each
     * row block.  The thread with the expert of the block's first tile asks for its first weights, if tiles are taken
     * by demand. */
    MOEK_DEVICE void make_schedule(const params *p, const int *counts, int *row, uint16_t *expert,
                                   unsigned char *ring, uint64_t *landed, int t)
    {
        int *const block = row + MOEK_SM90_EXPERTS + 1;
        int2 *const sums = (int2 *)(block + MOEK_SM90_EXPERTS + 1);            /* of a warp each */
        const int experts = p->up.experts, lane = t % 32, each = (experts + 127) / 128;
        int rows = 0, blocks = 0, my_rows, my_blocks, at = -1, j0 = 0, step = 0, until = p->sizes[0].steps, i, n, by;
        plan_ plan;
        for (i = t * each; i < t * each + each && i < experts; i++) {
            n = counts[i];
            rows += n;
            blocks += (n + M - 1) / M;
        }
        my_rows = rows; my_blocks = blocks;
        #pragma unroll
        for (by = 1; by < 32; by *= 2) {
            const int r = __shfl_up_sync(0xffffffff, rows, by), b = __shfl_up_sync(0xffffffff, blocks, by);
            if (lane >= by) { rows += r; blocks += b; }
        }
        if (lane == 31) sums[t / 32] = make_int2(rows, blocks);
        moek_named_wait_(4, 128);
        rows -= my_rows; blocks -= my_blocks;
        n = 0;
        #pragma unroll
        for (i = 0; i < 4; i++) {
            const int2 sum = sums[i];
            if (i < t / 32) { rows += sum.x; blocks += sum.y; }
            n += sum.y;
        }
        plan = make_plan(p, n);
        if (plan.demand[0] && (int)blockIdx.x < plan.all[0] * plan.pieces) {
            int tile = blockIdx.x;
            if (plan.pieces > 1) {
                const int part = tile - divided(tile, plan.pieces) * plan.pieces;
                tile = divided(tile, plan.pieces);
                step = divided(until * part, plan.pieces);
                until = divided(until * (part + 1), plan.pieces);
            }
            at = (int)moek_fastdiv_(tile, p->sizes[0].over_tiles);
            j0 = (tile - at * p->sizes[0].tiles) * p->sizes[0].columns;
        }
        for (i = t * each; i < t * each + each && i < experts; i++) {
            row[i] = rows;
            block[i] = blocks;
            n = counts[i];
            rows += n;
            n = (n + M - 1) / M;
            if (at >= blocks && at < blocks + n) {
                const uint64_t policy = moek_evict_first_();
                #pragma unroll 1
                for (by = 0; by < min((int)AHEAD, until - step); by++) {
                    moek_tma_stage_(ring + by * STAGE + M * 128, &p->w_up, landed + by, N * 128,
                                    policy, &p->up, PER, step + by, j0, i);
                }
            }
            for (; n; n--) expert[blocks++] = (uint16_t)i;
            if (i == experts - 1) { row[experts] = rows; block[experts] = blocks; }
        }
    }

    /* h of a tile -> down.a, FP8 quantized.  BLOCKED: row_max: shared, [M][8 warps]. */
    MOEK_DEVICE void up_finish(const params *p, float (*sum)[M / 2],
                               const tile *at, float *row_max, int mine, int dtype)
    {
        const moek_gemm_ *const a = &p->up;
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, c = lane % 4 * 2, n = a->n;
        const int gated = a->w_rows > n, swapped = a->gate_up.swapped;
        uint32_t word[2][2][M / 8];             /* of a row of a, two columns of each 8 (not gated: of each 16) */
        int b, i, h;
        const int groups = (n + 127) / 128;
        float inverse = 0, s = 0;
        if constexpr (BY_TENSOR) inverse = __fdiv_rn(1.0f, *MOEK_F32_(p->down.a_scale));
        #pragma unroll
        for (b = 0; b < 2; b++) {
            const int j = gated ? at->j0 + 64 * mine + 32 * b + 8 * warp : at->j0 + 128 * mine + 64 * b + 16 * warp;
            int w_row[2];
            #pragma unroll
            for (i = 0; i < 2; i++) {                  /* a column behind the last is not stored: any bias will do */
                const int column = min(gated ? j + g : j + g + 8 * i, n - 1);
                w_row[i] = column * a->gate_up.step;
            }
            moek_scale_sums_(a, sum[b], M, BY_TENSOR, at->e, w_row, dtype);
            moek_act_sums_<M>(a, sum[b], swapped);
            #pragma unroll
            for (i = 0; i < M / 8; i++) {       /* now a lane has a row of a, and two columns */
                word[b][0][i] = moek_transpose_(moek_to_t2_(sum[b][4 * i], sum[b][4 * i + 1], dtype));
                word[b][1][i] = gated ? 0 : moek_transpose_(moek_to_t2_(sum[b][4 * i + 2], sum[b][4 * i + 3], dtype));
                if (j + c >= n) word[b][0][i] = 0;
                if (j + c + 8 >= n) word[b][1][i] = 0;
            }
        }
        if constexpr (BLOCKED) {
            #pragma unroll
            for (i = 0; i < M / 8; i++) {           /* the largest of 128 columns: over the warps that have them */
                float x[2], most = 0;
                #pragma unroll
                for (b = 0; b < 4; b++) {
                    moek_from_t2_(x, word[b / 2][b % 2][i], dtype);
                    most = fmaxf(most, fmaxf(fabsf(x[0]), fabsf(x[1])));
                }
                most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
                if (c == 0) row_max[(8 * i + g) * 8 + mine * 4 + warp] = most;
            }
            moek_named_wait_(3, 256);
        }
        #pragma unroll
        for (i = 0; i < M / 8; i++) {
            const int row = at->row0 + 8 * i + g;
            if constexpr (BLOCKED) {
                const float4 low = *(const float4 *)(row_max + (8 * i + g) * 8 + (gated ? 0 : mine * 4));
                const float4 high = *(const float4 *)(row_max + (8 * i + g) * 8 + (gated ? 4 : mine * 4));
                s = moek_group_scale_(fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)),
                                                        fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w))),
                                      p->a.ue8m0);
                inverse = __fdiv_rn(1.0f, s);
                const int group = gated ? at->j0 / 128 : at->j0 / 128 + mine;
                if (row < at->end && warp == 0 && c == 0 && (!gated || mine == 0) && group < groups)
                    ((float *)p->down.a_scale)[(size_t)row * groups + group] = s;
            }
            if (row >= at->end) continue;
            #pragma unroll
            for (b = 0; b < 2; b++)
                #pragma unroll
                for (h = 0; h < 2; h++) {
                    const int j = (gated ? at->j0 + 64 * mine + 32 * b + 8 * warp
                                         : at->j0 + 128 * mine + 64 * b + 16 * warp + 8 * h) + c;
                    const size_t to = (size_t)row * n + j;
                    if ((gated && h) || j >= n) continue;
                    if constexpr (FP8) {
                        float x[2];
                        moek_from_t2_(x, word[b][h][i], dtype);
                        x[0] = BLOCKED ? moek_by_scale_(x[0], s, inverse) : moek_by_static_(x[0], inverse);
                        x[1] = BLOCKED ? moek_by_scale_(x[1], s, inverse) : moek_by_static_(x[1], inverse);
                        *(uint16_t *)((uint8_t *)p->down.a + to) = (uint16_t)moek_to_e4m3x2_(x[0], x[1]);
                    } else {
                        *(uint32_t *)((uint16_t *)p->down.a + to) = word[b][h][i];
                    }
                }
        }
    }

    /* y of a tile -> down.out, a row a slot.  to: of the slots, [m / 8]. */
    MOEK_DEVICE void down_finish(const params *p, float (*sum)[M / 2],
                                 const tile *at, const int *to, int mine, int dtype)
    {
        const moek_gemm_ *const a = &p->down;
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, g = lane / 4, c = lane % 4 * 2, n = a->n;
        int b, i;
        #pragma unroll
        for (b = 0; b < 2; b++) {
            const int j = at->j0 + 128 * mine + 64 * b + 16 * warp;
            const int w_row[2] = { min(j + g, n - 1), min(j + g + 8, n - 1) };
            moek_scale_sums_(a, sum[b], M, BY_TENSOR, at->e, w_row, dtype);
            #pragma unroll
            for (i = 0; i < M / 8; i++) {       /* now a lane has a row of a, and two columns */
                const uint32_t low = moek_transpose_(moek_to_t2_(sum[b][4 * i], sum[b][4 * i + 1], dtype));
                const uint32_t high = moek_transpose_(moek_to_t2_(sum[b][4 * i + 2], sum[b][4 * i + 3], dtype));
                uint16_t *const out = (uint16_t *)a->out + (size_t)(uint32_t)to[i] * n + j + c;
                if (to[i] < 0) continue;
                if (j + c < n) *(uint32_t *)out = low;
                if (j + c + 8 < n) *(uint32_t *)(out + 8) = high;
            }
        }
    }
    /* y, when all rows are there: a warp 256 columns of a token, sums in the order of combine.  Rows come by way of the
     * ring, PARTS - 1 times DEPTH of them ahead.  No branch stands between loads, or between sums: a row that is
     * nobody's is zeros, and its weight 0.  dtype: of rows and y, a constant. */
    MOEK_DEVICE void combine(const params *p, const uint16_t *ids, const float *weights,
                             unsigned char *ring, int t, const int dtype)
    {
        enum { DEPTH = 8, PARTS = 6, BYTES = DEPTH * 512 };
        const moek_layer_args *const a = &p->a;
        const int hidden = p->down.n, topk = a->topk, tokens = a->tokens, by = 8 * gridDim.x;
        const int all = p->sizes[1].tiles * tokens;
        unsigned char *const mine = ring + t / 32 * PARTS * BYTES + t % 32 * 16;
        int next = blockIdx.x + t / 32 * gridDim.x, next_k = 0, put = 0;       /* asked for next */
        int item = next, k = 0, got = 0, ahead, d, j;
        float sum[8] = {0}, x[8];
        #pragma unroll 1
        for (ahead = 0; item < all; ahead++) {
            if (next < all) {
                const int part = (int)moek_fastdiv_(next, p->tokens), token = next - part * tokens;
                const int column = part * 256 + t % 32 * 8;
                #pragma unroll
                for (d = 0; d < DEPTH; d++) {
                    const int slot = token * topk + min(next_k + d, topk - 1);
                    const int there = next_k + d < topk && column < hidden && ids[slot] != 0xffff;
                    moek_cp_async16_(mine + put * BYTES + d * 512,
                                     (const uint16_t *)p->down.out + (size_t)slot * hidden +
                                     (column < hidden ? column : 0), there ? 16 : 0);
                }
                if (++put == PARTS) put = 0;
                next_k += DEPTH;
                if (next_k >= topk) { next_k = 0; next += by; }
            }
            moek_cp_async_commit_();
            if (ahead < PARTS - 1) continue;
            moek_cp_async_wait_(PARTS - 1);
            {
                const int part = (int)moek_fastdiv_(item, p->tokens), token = item - part * tokens;
                const int column = part * 256 + t % 32 * 8;
                float weight[DEPTH];
                #pragma unroll
                for (d = 0; d < DEPTH; d++)
                    weight[d] = k + d < topk ? weights[token * topk + min(k + d, topk - 1)] : 0;
                #pragma unroll
                for (d = 0; d < DEPTH; d++) {
                    moek_from_t8_(x, *(const moek_words_ *)(mine + got * BYTES + d * 512), dtype);
                    #pragma unroll
                    for (j = 0; j < 8; j++) sum[j] += weight[d] * x[j];
                }
                if (++got == PARTS) got = 0;
                if (a->discard) {                          /* a lane a line: four of each row */
                    const int slot = token * topk + k + t % 32 / 4, at = part * 256 + t % 4 * 64;
                    __syncwarp();
                    if (k + t % 32 / 4 < topk && at < hidden && ids[slot] != 0xffff)
                        moek_discard_((uint16_t *)p->down.out + (size_t)slot * hidden + at);
                }
                k += DEPTH;
                if (k < topk) continue;
                if (column < hidden) {
                    if (a->addend) {
                        const size_t at = (size_t)token * a->addend_stride + column;
                        moek_from_t8_(x, moek_load_words_((const uint16_t *)a->addend + at), dtype);
                        #pragma unroll
                        for (j = 0; j < 8; j++) sum[j] += x[j];
                    }
                    moek_store_words_((uint16_t *)a->y + (size_t)token * a->y_stride + column, moek_to_t8_(sum, dtype));
                }
                #pragma unroll
                for (j = 0; j < 8; j++) sum[j] = 0;
                k = 0;
                item += by;
            }
        }
    }
    /* What all roles of a block know: its shared memory, then the launch. */
    struct block {
        unsigned char *ring;                           /* stages */
        float *row_max;                                /* [2][M][8 warps] */
        uint64_t *full, *full_w, *empty;               /* barriers [STAGES]: of rows of a, of rows of w, of both */
        uint64_t *finished;                            /* a barrier: the block has no tile of up left */
        uint64_t *claimed;                             /* barriers [CLAIMS]: of `claim` */
        int *claim;                                    /* [CLAIMS]: tiles taken by demand */
        float *scales;                                 /* [STAGES]: of rows of a; of 64s of rows of w */
        int *last;                                     /* is this the last piece of a tile? */
        int *alike;                                    /* has an expert many slots? */
        uint16_t *order;                               /* [MOEK_SELF_SORT] slots, sorted */
        uint16_t *ids;                                 /* [MOEK_SELF_SORT] */
        int *counts;                                   /* [MOEK_SM90_EXPERTS]; then weights of slots */
        schedule_ s;
        plan_ plan;
        int32_t *flags, *ready;                        /* of cut tiles of up, of down; of row blocks of h */
        int slots, experts, early;                     /* early: slots ordered by the producer warps */
        int gated;
    };
    /* How far a role is: its place in the ring, the phase of the barriers there, tiles taken by demand so far.
     * Producers of weights also know their stages so far, how many make_schedule asked for, and whether the next one
     * was asked for already, together with the one before. */
    struct place { int slot, phase, n, issued, asked, two; };

    /* By all threads: barriers; ids, weights and x are on their way to L2. */
    MOEK_DEVICE void start(const params *p, const block *b, int t)
    {
        const moek_layer_args *const a = &p->a;
        int i;
        if (t == 0) {
            moek_tma_prefetch_map_(&p->w_up);
            moek_tma_prefetch_map_(&p->w_down);
            for (i = 0; i < STAGES; i++) {
                moek_mbar_init_(b->full_w + i, BLOCKED ? 1 + 4 : 1);
                moek_mbar_init_(b->full + i, 96);
                moek_mbar_init_(b->empty + i, 8);      /* warps */
            }
            for (i = 0; i < CLAIMS; i++) moek_mbar_init_(b->claimed + i, 1);
            moek_mbar_init_(b->finished, 1);
            *b->alike = 0;
            moek_mbar_init_fence_();
        }
        if (t * 32 < b->slots) {
            moek_prefetch_(a->ids + t * 32);
            if (a->weights) moek_prefetch_(a->weights + t * 32);
        }
        for (i = blockIdx.x % 32 + 32 * t; ; i += 32 * THREADS) {    /* lines of x */
            const int row = (int)moek_fastdiv_(FP8 ? i / 2 : i, p->sizes[0].over_steps);
            const int column = (i - row * p->sizes[0].steps * (FP8 ? 2 : 1)) * 64;
            if (row >= a->tokens) break;
            if (column < p->up.k) moek_prefetch_((const uint16_t *)a->x + (size_t)row * a->x_stride + column);
        }
        for (i = t; i < b->experts; i += THREADS) b->counts[i] = 0;
        __syncthreads();
    }

    /* Sort, the part of the producer warps: slots are listed by expert, and the first get their places. */
    MOEK_DEVICE void sort(const block *b, int u)
    {
        if (moek_order_list_(b->order, (uint16_t *)b->counts, b->ids, b->slots, b->s.row, u, 96)) *b->alike = 1;
        moek_named_wait_(5, 96);
        moek_named_arrive_(6, 96 + CONSUMERS - 32);
        if (!*b->alike) moek_order_rank_(b->order, (const uint16_t *)b->counts, b->ids, 0, b->early, b->s.row, u, 96);
        else if (u < 32) moek_order_of_(b->order, b->counts, b->ids, b->slots, b->s.row, b->experts);
        moek_named_wait_(2, 96 + CONSUMERS);
    }

    /* ---- producers ----------------------------------------------------------------------------------------------- */

    /* Scheduler, which takes tiles by demand, and producer of weights, BLOCKED with their scales: WEIGHERS threads. */
    template <int UP> MOEK_DEVICE void produce(const params *p, const block *b, place *of, uint64_t policy)
    {
        const int t = threadIdx.x;
        tile at;
        walk w = {0, 0, 0, 0};
        int slot = of->slot, phase = of->phase, n = of->n, issued = of->issued, asked = of->asked, two = of->two, step;
        /* Down: sums of up meet first: those wait behind weights. */
        const int hold = b->plan.demand[0] ? -1 : issued + 2;
        const float *w_scale;
        const moek_gemm_ *const a = UP ? &p->up : &p->down;
        if (!b->plan.demand[!UP]) w = start_walk(p, b->plan.all[!UP], !UP);
        at.e = -1;
        for (;; w.tile++) {
            int until = p->sizes[!UP].steps;
            if (b->plan.demand[!UP]) {
                if (t == 0) {
                    if constexpr (UP)
                        w.tile = n == 0 ? blockIdx.x : (int)gridDim.x + atomicAdd(p->a.state->flags + 3, 1);
                    else w.tile = atomicAdd(p->a.state->flags + 4, 1);
                    b->claim[n % CLAIMS] = w.tile;
                    moek_mbar_arrive_(b->claimed + n % CLAIMS);
                }
                n++;
                if constexpr (BLOCKED) w.tile = __shfl_sync(0xf, w.tile, 0);
                if (w.tile >= b->plan.all[!UP] * (UP ? b->plan.pieces : 1)) break;
                w.first = 0;
                at.e = -1;
                if (UP && b->plan.pieces > 1) {
                    const int number = divided(w.tile, b->plan.pieces), part = w.tile - number * b->plan.pieces;
                    w.first = divided(until * part, b->plan.pieces);
                    until = divided(until * (part + 1), b->plan.pieces);
                    w.tile = number;
                }
            } else {
                if (w.tile >= w.last) break;
                if (w.tile == w.last - 1) until = w.until;
            }
            find_tile(p, b->s, w.tile, !UP, &at);
            if constexpr (BLOCKED) {                   /* of each 64 rows of w of the tile */
                const int j = at.j0 + 64 * (UP && b->gated ? t / 2 : t);
                w_scale = moek_scales_of_(&a->gate_up, UP ? t % 2 : 0, at.e, min(j, a->n - 1), p->sizes[!UP].steps);
            }
            if (UP && issued == 0 && b->plan.demand[0]) asked = min((int)AHEAD, until - w.first);
            for (step = w.first; step < until; step++) {
                if (two) {
                    two = 0;
                } else {
                    const int next = slot + 1 == STAGES ? 0 : slot + 1;
                    int before;                        /* more are not on their way */
                    two = moek_two_(a, step, until) && issued >= 2 * STAGES;
                    before = issued + two - max(issued < 2 * STAGES ? 2 : b->plan.inflight, 2 + two);
                    /* (What was asked for before may have been multiplied already: empty a second time.) */
                    if (issued >= asked) moek_mbar_wait_(b->empty + slot, phase);
                    if (two) moek_mbar_wait_(b->empty + next, next ? phase : phase ^ 1);
                    if (before >= 0) moek_mbar_wait_(b->full_w + before % STAGES, before / STAGES % 2);
                    if (!UP && (issued == hold || issued + two == hold)) moek_mbar_wait_(b->finished, 0);
                    if (t == 0 && issued >= asked) {
                        moek_tma_stage_(b->ring + slot * STAGE + A, UP ? &p->w_up : &p->w_down, b->full_w + slot,
                                        N * 128, policy, a, PER, step, at.j0, at.e);
                        if (two)
                            moek_tma_stage_(b->ring + next * STAGE + A, UP ? &p->w_up : &p->w_down, b->full_w + next,
                                            N * 128, policy, a, PER, step + 1, at.j0, at.e);
                    }
                }
                if constexpr (BLOCKED) {
                    moek_cp_async4_(b->scales + slot * SCALES + M + t, w_scale + step);
                    moek_mbar_arrive_copied_(b->full_w + slot);
                }
                issued++;
                moek_next_(slot, phase, STAGES);
            }
            w.first = 0;
        }
        of->slot = slot; of->phase = phase; of->n = n; of->issued = issued; of->asked = asked; of->two = two;
    }
    /* Producer of rows of a, BLOCKED with their scales: three warps. */
    template <int UP> MOEK_DEVICE void gather(const params *p, const block *b, place *of, int u)
    {
        const moek_layer_args *const a = &p->a;
        tile at;
        walk w = {0, 0, 0, 0};
        const int row_bytes = (UP ? &p->up : &p->down)->k * ELEMENT, steps = p->sizes[!UP].steps;
        const unsigned char *const x = (const unsigned char *)(UP ? &p->up : &p->down)->a + u % 8 * 16;
        int slot = of->slot, phase = of->phase, n = of->n, step, i;
        int begun = 0;
        const int32_t *const ready = b->ready;
        const int row_blocks = UP ? 0 : b->s.block[b->experts];
        int from_b = 0, known = 0;                     /* row blocks from_b .. known - 1 are ready */
        int rows;
        if (!b->plan.demand[!UP]) w = start_walk(p, b->plan.all[!UP], !UP);
        at.e = -1;
        for (;; w.tile++) {
            int until = steps;
            if (b->plan.demand[!UP]) {
                moek_mbar_wait_(b->claimed + n % CLAIMS, n / CLAIMS % 2);
                w.tile = b->claim[n++ % CLAIMS];
                __syncwarp();                          /* wgmma wants the warp together */
                if (w.tile >= b->plan.all[!UP] * (UP ? b->plan.pieces : 1)) break;
                w.first = 0;
                at.e = -1;
                if (UP && b->plan.pieces > 1) {
                    const int number = divided(w.tile, b->plan.pieces), part = w.tile - number * b->plan.pieces;
                    w.first = divided(until * part, b->plan.pieces);
                    until = divided(until * (part + 1), b->plan.pieces);
                    w.tile = number;
                }
            } else {
                if (w.tile >= w.last) break;
                if (w.tile == w.last - 1) until = w.until;
            }
            find_tile(p, b->s, w.tile, !UP, &at);
            rows = min(at.end - at.row0, M);
            if constexpr (UP) {
                if (!begun) {                          /* (A block with no tile must not: others clear it.) */
                    if (u % 32 == 0) moek_flag_reach_(a->state->flags + 2, (int)gridDim.x);
                    __syncwarp();
                    begun = 1;
                }
            } else {
                while (at.b < from_b || at.b >= known) {           /* look at 32 row blocks at once */
                    const int other = at.b + u % 32;
                    const int is = other < row_blocks && moek_flag_read_(ready + other) >= p->sizes[0].tiles;
                    from_b = at.b;
                    known = at.b + __ffs(~__ballot_sync(0xffffffff, is)) - 1;
                    if (known < at.b) known = at.b + 32;           /* all of them */
                }
                __syncwarp();                          /* what one lane saw, all may read */
            }
            for (step = w.first; step < until; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                const int bytes = step * 128 + u % 8 * 16 < row_bytes ? 16 : 0;
                const unsigned char *const from = x + (bytes ? step * 128 : 0);
                moek_mbar_wait_(b->empty + slot, phase);
                #pragma unroll 2
                for (i = u / 8; i < rows; i += 12) {
                    const unsigned r = UP ? moek_fastdiv_(b->order[at.row0 + i], p->topk) : at.row0 + i;
                    moek_cp_async16_(stage + i * 128 + (u % 8 ^ i % 8) * 16,
                                     from + (size_t)r * (unsigned)(FP8 || !UP ? row_bytes : a->x_stride * 2), bytes);
                }
                if constexpr (BLOCKED) {
                    for (i = u; i < rows; i += 96) {
                        const unsigned r = UP ? moek_fastdiv_(b->order[at.row0 + i], p->topk) : at.row0 + i;
                        moek_cp_async4_(b->scales + slot * SCALES + i,
                                        MOEK_F32_((UP ? &p->up : &p->down)->a_scale) + (size_t)r * steps + step);
                    }
                }
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
            }
            w.first = 0;
        }
        of->slot = slot; of->phase = phase; of->n = n;
        (void)a;
    }

    /* ---- consumers ----------------------------------------------------------------------------------------------- */

    /* Sums of a piece of a tile of up go to memory; *b->last: this is the last piece of the tile. */
    MOEK_DEVICE void put_piece(const params *p, const block *b, float (*sum)[M / 2], int t, int tile, int piece)
    {
        float4 *const part = (float4 *)p->a.split + (t - 128);             /* [tiles][pieces][M / 4][CONSUMERS] */
        int i;
        #pragma unroll
        for (i = 0; i < M / 4; i++) {
            const float *const four = &sum[i / (M / 8)][i % (M / 8) * 4];
            __stcg(part + (piece * (M / 4) + i) * CONSUMERS, make_float4(four[0], four[1], four[2], four[3]));
        }
        moek_named_wait_(3, CONSUMERS);
        if (t == 128) *b->last = moek_flag_next_(b->flags + tile) == b->plan.pieces - 1;
        moek_named_wait_(3, CONSUMERS);
    }

    /* Sums of a tile that is cut along k, where blocks have runs of tiles, to memory, by a block without the first
     * stage of the tile.  partials: of this thread, [blocks][M][CONSUMERS]; flag: [blocks]. */
    MOEK_DEVICE void put_partials(float (*sum)[M / 2], int t, float *partials, int32_t *flag)
    {
        int i;
        #pragma unroll
        for (i = 0; i < M; i++)
            __stcg(partials + ((size_t)blockIdx.x * M + i) * CONSUMERS, sum[i / (M / 2)][i % (M / 2)]);
        moek_named_wait_(3, CONSUMERS);
        if (t == 128) moek_flag_add_(flag + blockIdx.x);
    }
    /* The block with the first stage adds the sums of the blocks after it, up to the one with the last stage. */
    MOEK_DEVICE void add_partials(const params *p, const block *b, float (*sum)[M / 2], int t, int down,
                                  const float *partials, const int32_t *flag, int tile)
    {
        const int steps = p->sizes[down].steps;
        int i, j;
        for (j = blockIdx.x + 1; ; j++) {              /* those after it have begun with theirs */
            if (t % 32 == 0) moek_flag_reach_(flag + j, 1);
            __syncwarp();
            #pragma unroll
            for (i = 0; i < M; i++) sum[i / (M / 2)][i % (M / 2)] += __ldcg(partials + ((size_t)j * M + i) * CONSUMERS);
            if (first_stage_of(p, (unsigned)b->plan.all[down] * steps, down, j + 1) >= (unsigned)(tile + 1) * steps)
                break;
        }
    }

    /* FP8: takes the sums of half HALF of a stage's rows of w, times scales.  of: scales of the stage. */
    template <int UP, int HALF>
    MOEK_DEVICE void add(float *sum, float (*part)[M / 2], const float *of, float first, float second, int gated, int t)
    {
        int i;
        moek_wgmma_wait_(1 - HALF);
        #pragma unroll
        for (i = 0; i < M / 2; i++) {
            float y = part[0][i];
            if constexpr (UP) y = y + part[1][i] + (part[2][i] + part[3][i]);
            if constexpr (BLOCKED) {
                const float of_w = (UP && gated ? i % 4 >= 2 : HALF) ? second : first;
                sum[i] += y * (of[i / 4 * 8 + t % 4 * 2 + i % 2] * of_w);
            } else {
                sum[i] += y;
            }
        }
    }
    /* A stage, in place `slot` of the ring: 128 rows of w.  FP8: both halves at once; up sums 32 of k by the tensor
     * cores, down 128.  part: [2][UP ? 4 : 1]. */
    template <int UP>
    MOEK_DEVICE void multiply(float (*sum)[M / 2], float (*part)[M / 2], const block *b, int slot, int phase, int mine,
                              int gated, int t)
    {
        const unsigned char *const stage = b->ring + slot * STAGE;
        const uint64_t ws = moek_wgmma_operand_(stage + A + mine * 16384);
        const uint64_t xs = moek_wgmma_operand_(stage);
        int j;
        moek_mbar_wait_(b->full_w + slot, phase);
        moek_mbar_wait_(b->full + slot, phase);
        if constexpr (FP8) {
            enum { SETS = UP ? 4 : 1, CHAIN = 4 / SETS };
            const float *const of = b->scales + slot * SCALES;
            const float first = BLOCKED ? of[M + 2 * mine] : 0, second = BLOCKED ? of[M + 2 * mine + 1] : 0;
            moek_wgmma_fence_();
            #pragma unroll
            for (j = 0; j < 4; j++)
                moek_wgmma_of_shared_<M, Format::ELEMENT>(part[j / CHAIN], ws + 2 * j, xs + 2 * j, j % CHAIN);
            moek_wgmma_commit_();
            #pragma unroll
            for (j = 0; j < 4; j++)
                moek_wgmma_of_shared_<M, Format::ELEMENT>(part[SETS + j / CHAIN], ws + 512 + 2 * j, xs + 2 * j,
                                                          j % CHAIN);
            moek_wgmma_commit_();
            add<UP, 0>(sum[0], part, of, first, second, gated, t);
            add<UP, 1>(sum[1], part + SETS, of, first, second, gated, t);
        } else {
            moek_wgmma_fence_();
            #pragma unroll
            for (j = 0; j < 4; j++) moek_wgmma_of_shared_<M, Format::ELEMENT>(sum[0], ws + 2 * j, xs + 2 * j, 1);
            #pragma unroll
            for (j = 0; j < 4; j++) moek_wgmma_of_shared_<M, Format::ELEMENT>(sum[1], ws + 512 + 2 * j, xs + 2 * j, 1);
            moek_wgmma_commit_();
            moek_wgmma_wait_(0);
        }
    }
    /* Consumer: a warpgroup multiplies 128 rows of w of a tile. */
    template <int UP> MOEK_DEVICE void consume(const params *p, const block *b, place *of, int t, int mine, int dtype)
    {
        tile at;
        walk w = {0, 0, 0, 0};
        float *const partials = p->a.split + (t - 128) + (UP ? 0 : (size_t)gridDim.x * M * CONSUMERS);
        int32_t *const flag = b->flags + (UP ? 0 : MOEK_SPLITS);
        const int steps = p->sizes[!UP].steps, gated = UP && BLOCKED ? b->gated : 0;
        int slot = of->slot, phase = of->phase, n = of->n, i, j, to[M / 8], piece = 0;
        int turn = 0;
        if (!b->plan.demand[!UP]) w = start_walk(p, b->plan.all[!UP], !UP);
        at.e = -1;
        for (;; w.tile++) {
            float sum[2][M / 2];
            int step, until = steps, first;
            if (b->plan.demand[!UP]) {
                moek_mbar_wait_(b->claimed + n % CLAIMS, n / CLAIMS % 2);
                w.tile = b->claim[n++ % CLAIMS];
                __syncwarp();                          /* wgmma wants the warp together */
                if (w.tile >= b->plan.all[!UP] * (UP ? b->plan.pieces : 1)) break;
                w.first = 0;
                at.e = -1;
                if (UP && b->plan.pieces > 1) {
                    const int number = divided(w.tile, b->plan.pieces), part = w.tile - number * b->plan.pieces;
                    w.first = divided(until * part, b->plan.pieces);
                    until = divided(until * (part + 1), b->plan.pieces);
                    piece = w.tile;
                    w.tile = number;
                }
            } else {
                if (w.tile >= w.last) break;
                if (w.tile == w.last - 1) until = w.until;
            }
            first = w.first;
            find_tile(p, b->s, w.tile, !UP, &at);
            if constexpr (!UP) {
                #pragma unroll
                for (i = 0; i < M / 8; i++) {          /* where this lane's rows go */
                    const int r = at.row0 + 8 * i + t % 32 / 4;
                    to[i] = r < at.end ? b->order[r] : -1;
                }
            }
            #pragma unroll
            for (i = 0; i < M; i++) {
                sum[i / (M / 2)][i % (M / 2)] = 0;
                if constexpr (!FP8) moek_keep_(sum[i / (M / 2)][i % (M / 2)]); /* (else zeros move behind the fence) */
            }
            for (step = w.first; step < until; step++) {
                float part[FP8 ? UP ? 8 : 2 : 1][M / 2];
                multiply<UP>(sum, part, b, slot, phase, mine, gated, t);
                moek_mbar_arrive_warp_(b->empty + slot);
                moek_next_(slot, phase, STAGES);
            }
            w.first = 0;
            if (UP && b->plan.pieces > 1) {
                put_piece(p, b, sum, t, w.tile, piece);
                if (!*b->last) continue;
                const float4 *const part = (const float4 *)p->a.split + (t - 128);
                float4 from[PIECES][M / 4];            /* the last piece: the sums of all are added, in their order */
                #pragma unroll
                for (j = 0; j < PIECES; j++)
                    #pragma unroll
                    for (i = 0; i < M / 4; i++)
                        if (j < b->plan.pieces)
                            from[j][i] = __ldcg(part + ((w.tile * b->plan.pieces + j) * (M / 4) + i) * CONSUMERS);
                #pragma unroll
                for (i = 0; i < M; i++) sum[i / (M / 2)][i % (M / 2)] = 0;
                #pragma unroll
                for (j = 0; j < PIECES; j++)
                    #pragma unroll
                    for (i = 0; i < M; i++)
                        if (j < b->plan.pieces) sum[i / (M / 2)][i % (M / 2)] += (&from[j][i / 4].x)[i % 4];
                first = 0;
                until = steps;
            }
            if (first > 0) {                           /* the tile is another block's: the one with its first stage */
                put_partials(sum, t, partials, flag);
                continue;
            }
            if (until < steps) add_partials(p, b, sum, t, !UP, partials, flag, w.tile);
            if constexpr (UP) {
                up_finish(p, sum, &at, b->row_max + turn * 8 * M, mine, dtype);
                if constexpr (BLOCKED) turn ^= 1;
                moek_named_wait_(3, CONSUMERS);
                if (t == 128) moek_flag_add_(b->ready + at.b);
            } else {
                down_finish(p, sum, &at, to, mine, dtype);
            }
        }
        of->slot = slot; of->phase = phase; of->n = n;
    }

    /* A block. */
    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_1024_(shared);
        const moek_layer_args *const a = &p->a;
        const int t = threadIdx.x;
        float weight[4] = {1, 1, 1, 1};
        moek_words_ x[FP8 ? FIRST : 1];
        int x_row, x_column, j;
        int32_t id[(int)MOEK_SELF_SORT / THREADS + 1];
        int i;
        place of = { 0, 0, 0, 0, 0, 0 };
        block b;
        b.ring = shared + (1024 - moek_shared_address_(shared) % 1024) % 1024;
        b.row_max = (float *)(b.ring + STAGES * STAGE);
        b.full = (uint64_t *)(b.row_max + 16 * M); b.empty = b.full + STAGES; b.full_w = b.empty + STAGES;
        b.finished = b.full_w + STAGES;
        b.scales = (float *)(b.finished + 1);
        b.claimed = (uint64_t *)((uintptr_t)(b.scales + STAGES * SCALES + 1) / 8 * 8);
        b.claim = (int *)(b.claimed + CLAIMS);
        b.last = b.claim + CLAIMS; b.alike = b.last + 1;
        b.order = (uint16_t *)(b.last + 2); b.ids = b.order + MOEK_SELF_SORT;
        uint16_t *const expert = b.ids + MOEK_SELF_SORT;                   /* [MOEK_SELF_SORT] of row blocks */
        b.counts = (int *)(expert + MOEK_SELF_SORT);
        int *const schedule = b.counts + MOEK_SM90_EXPERTS;
        b.s.row = schedule; b.s.block = b.s.row + MOEK_SM90_EXPERTS + 1; b.s.expert = expert;
        b.slots = a->tokens * a->topk;
        b.experts = p->up.experts;
        b.early = b.slots > 256 ? b.slots * 3 / 8 : b.slots;
        b.flags = a->state->flags + 8; b.ready = b.flags + 2 * MOEK_SPLITS;
        b.gated = p->up.w_rows > p->up.n;
        start(p, &b, t);
        moek_grid_wait_();
        moek_grid_go_();
        if constexpr (FP8) {
            if (t >= 128)
                #pragma unroll
                for (i = 0; i < FIRST; i++)
                    if (part_of_x(p, t - 128, i, &x_row, &x_column)) x[i] = load_x(p, x_row, x_column);
        }
        #pragma unroll
        for (i = 0; i * THREADS < MOEK_SELF_SORT; i++)
            id[i] = i * THREADS + t < b.slots ? a->ids[i * THREADS + t] : -1;
        if ((t >= 128) & (a->weights != NULL))
            #pragma unroll
            for (i = 0; i < 4; i++) if (t - 128 + 256 * i < b.slots) weight[i] = a->weights[t - 128 + 256 * i];
        #pragma unroll
        for (i = 0; i * THREADS < MOEK_SELF_SORT; i++) {
            const int slot = i * THREADS + t, in = (uint32_t)id[i] < (uint32_t)b.experts;
            if (slot >= b.slots) break;
            b.ids[slot] = in ? (uint16_t)id[i] : 0xffff;
            if (in) b.order[slot] = (uint16_t)atomicAdd(&b.counts[id[i]], 1);      /* its number in its expert */
        }

        if (t < 128) {
            of.phase = 1;
            moek_registers_less_(72);
            moek_named_wait_(1, THREADS);
            make_schedule(p, b.counts, schedule, expert, b.ring, b.full_w, t);
            moek_named_wait_(4, 128);
            b.plan = make_plan(p, b.s.block[b.experts]);
            if (t < WEIGHERS) {
                const uint64_t policy = moek_evict_first_();
                produce<1>(p, &b, &of, policy);
                produce<0>(p, &b, &of, policy);
            } else if (t >= 32) {
                const int u = t - 32;
                sort(&b, u);
                gather<1>(p, &b, &of, u);
                gather<0>(p, &b, &of, u);
            }
            moek_cp_async_commit_();
            moek_cp_async_wait_(0);
        } else {
            const int mine = t / 128 - 1, dtype = FP8 ? p->up.dtype : DTYPE;
            moek_named_arrive_(1, THREADS);
            if constexpr (FP8) {
                #pragma unroll 1                           /* (less code arrives sooner) */
                for (i = 0; part_of_x(p, t - 128, i, &x_row, &x_column); i++) {
                    if (i >= FIRST) x[0] = load_x(p, x_row, x_column);
                    quantize(p, t, x[0], x_row, x_column);
                    #pragma unroll
                    for (j = 1; j < FIRST; j++) x[j - 1] = x[j];
                }
            }
            moek_named_wait_(3, CONSUMERS);
            if (t == 128) moek_flag_add_(a->state->flags + 2);
            moek_registers_more_(216);
            if (t >= 160) {                            /* (the fence before that flag takes microseconds) */
                moek_named_wait_(6, 96 + CONSUMERS - 32);
                if (!*b.alike)
                    moek_order_rank_(b.order, (const uint16_t *)b.counts, b.ids, b.early, b.slots, b.s.row, t - 160,
                                     CONSUMERS - 32);
            }
            moek_named_wait_(2, 96 + CONSUMERS);       /* order is there, counts no longer needed */
            b.plan = make_plan(p, b.s.block[b.experts]);
            #pragma unroll
            for (i = 0; i < 4; i++)
                ((float *)b.counts)[t - 128 + 256 * i] = b.ids[t - 128 + 256 * i] != 0xffff ? weight[i] : 0;
            consume<1>(p, &b, &of, t, mine, dtype);
            if (t == 128) moek_mbar_arrive_(b.finished);
            consume<0>(p, &b, &of, t, mine, dtype);
            moek_named_wait_(3, CONSUMERS);
            if (t == 128) moek_grid_barrier_((unsigned long long *)a->state->flags, gridDim.x);
            moek_named_wait_(3, CONSUMERS);
            if constexpr (FP8) {
                if (a->y && dtype == MOEK_DTYPE_BF16)
                    combine(p, b.ids, (const float *)b.counts, b.ring, t - 128, MOEK_DTYPE_BF16);
                if (a->y && dtype == MOEK_DTYPE_FP16)
                    combine(p, b.ids, (const float *)b.counts, b.ring, t - 128, MOEK_DTYPE_FP16);
            } else if (a->y) {
                combine(p, b.ids, (const float *)b.counts, b.ring, t - 128, DTYPE);
            }
            for (i = 2 + blockIdx.x * CONSUMERS + t - 128; i < MOEK_LAYER_FLAGS; i += gridDim.x * CONSUMERS)
                a->state->flags[i] = 0;
        }
    }
#else
    MOEK_DEVICE void run(const params *p) { (void)p; }
#endif
};

/* Launches one of these kernels, of `shared` bytes of shared memory.  args NULL: makes it ready. */
template <int M, int N, int STAGES, class Format>
static MOEK_UNUSED moek_status moek_launch_layer_wgmma_(
    const void *args, moek_stream stream, int shared,
    void (*kernel)(typename moek_layer_wgmma_<M, N, STAGES, Format>::params))
{
    typedef moek_layer_wgmma_<M, N, STAGES, Format> K;
    const moek_layer_args *a = (const moek_layer_args *)args;
    typename K::params p;
    moek_status status;
    unsigned blocks;
    int i;
    if (!a) return MOEK_READY_SM90_(kernel, K::THREADS, shared);
    if (a->tokens < 1) return MOEK_OK;
    if (a->up->experts < 1 || a->up->experts > MOEK_SM90_EXPERTS || !a->state || !a->split ||
        (long long)a->tokens * a->topk > MOEK_SELF_SORT || a->up->n_offset || a->down->k_offset) return MOEK_E_ARGUMENT;
    p.a = *a;
    moek_take_gemm_(&p.up, a->up); moek_take_gemm_(&p.down, a->down);
    if (!a->x_stride) p.a.x_stride = a->up->k;
    if (!a->addend_stride) p.a.addend_stride = a->down->n;
    if (!a->y_stride) p.a.y_stride = a->down->n;
    p.a.discard = a->discard && moek_whole_lines_(a->down->out, (size_t)a->down->n * 2);
    for (i = 0; i < 2; i++) {
        const moek_gemm_args *const g = i ? a->down : a->up;
        typename K::size_ *const z = &p.sizes[i];
        moek_find_gate_up_of_(i ? &p.down : &p.up, Format::W_BITS, Format::W_SCALE_BITS, Format::W_SCALE_ROWS,
                             Format::W_SCALE_COLUMNS, 1);
        z->columns = g->w_rows > g->n ? 128 : 256;
        z->tiles = (g->n + z->columns - 1) / z->columns;
        z->steps = (g->k * K::ELEMENT + 127) / 128;
        z->over_tiles = moek_fastdiv_of_(z->tiles);
        z->over_steps = moek_fastdiv_of_(z->steps);
    }
    blocks = moek_multiprocessors_();
    p.blocks = moek_fastdiv_of_(blocks); p.topk = moek_fastdiv_of_(a->topk); p.tokens = moek_fastdiv_of_(a->tokens);
    status = moek_weight_map_(&p.w_up, &p.up, K::ELEMENT, 256, 1, 0);
    if (status == MOEK_OK) status = moek_weight_map_(&p.w_down, &p.down, K::ELEMENT, 256, 1, 0);
    if (status != MOEK_OK) return status;
    return MOEK_CHAIN_(kernel, blocks, K::THREADS, shared, stream, 1, p);
}
#endif
