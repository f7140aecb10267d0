/* gemm/wide.cuh -- up or down for many rows an expert, on Hopper, of the rows r of each expert:
 * out[r] = act(gate(x[r]), up(x[r])), or out[r] = h[r] . w_down.  For gemm_wide of the table.
 *
 * A grouped GEMM by wgmma, persistent: one block an SM.  It wins where experts have many rows and the tensor cores are
 * the limit.  A tile is M rows of a (wgmma's M, 64 a warpgroup) by N rows of w (its N).  Warps have roles:
 *
 *     scheduler warp (3) - tile_full, head_full -> tiles [4]: expert, rows, columns <--- done --- all others
 *     producer warps (0: TMA; 1, 2: cp.async, where rows of a are gathered; BLOCKED, scales: 1, or 0 if 1 gathers)
 *              | full [4]                                                 ^ empty [4]
 *              v                                                          |
 *     stages [4] of 128 bytes of k: rows of a, BLOCKED scales | rows of w, two halves
 *              |
 *              v
 *     consumer warpgroups (warps 4 .. 7, 8 .. 11): wgmma, then scales, bias, activation, codes -> out
 *
 * - Blocks that run together share rows of a and of w in L2.  Where experts have many rows, two neighbouring blocks, a
 *   cluster, take the same columns of two row blocks in step, and each loads half of the weights for both (multicast).
 * - Tiles: a static stride over the blocks, or by demand if there are flags; then the first block of a cluster asks,
 *   for both.
 * - down: the first stage of weights is loaded before h is there: nothing else stands in the way of the first tile.
 *   up, if the block may count ids: the first BEGUN stages are loaded before x is quantized and sorted.
 * - A half of a stage of weights is 128 rows of w that make whole columns; gated, 64 of gate and 64 of up.  Both
 *   warpgroups multiply a tile of no more than 64 rows, a half each.  Where a last wave of tiles would leave half of
 *   the blocks idle, each of its tiles is cut into two of half the columns (narrow).
 * - T: the last tile of an expert may have TAIL rows more, the tail: as a tile of their own they would cost most of a
 *   tile's time, for the same weights.  There, 64 rows of w are wgmma's M and the tail its N, and each warpgroup takes
 *   a half of the weights; gate and up of a column are then in one thread.
 * - FP8: the tensor cores sum 128 of k (docs/notes: thirteen-bit-sums).  That sum is added in f32, BLOCKED times the
 *   scales of its rows of a and of w.
 * - INTEGER: sums are s32, and exact.  After each 2^16 products, what may become too much for s32 is kept apart (high).
 * - QUANTIZES: a gated tile has 128 columns, a group of h, and a row of them is in four lanes of a warp: codes are made
 *   here.  Then no tile is cut, nor shared by the warpgroups.
 */
#ifndef MOEK_GEMM_WIDE_CUH
#define MOEK_GEMM_WIDE_CUH
#include "../../include/moek/kernel/sm90_schedule.h"
#include "../../include/moek/kernel/act.h"

/* HIDDEN: the hidden size, or 0: a run has the size.  Format: of moek_formats.h. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format> struct moek_wide_ {
    enum {
        UP = OP == MOEK_OP_UP, DTYPE = Format::DTYPE,
        BYTES = Format::W_BITS == 8, INTEGER = Format::INTEGER, FP8 = BYTES && !INTEGER,
        ELEMENT = Format::W_BITS / 8, PER = 128 / ELEMENT,                     /* bytes; PER: elements in a stage */
        BLOCKED = Format::W_SCALE_COLUMNS > 0,         /* scales are for 128 x 128 of w, and 128 columns of a */
        BY_ROW = BYTES && !BLOCKED && Format::W_SCALE_ROWS == 1, BY_TENSOR = BYTES && !BLOCKED && !BY_ROW,
        QUANTIZES = UP && (BLOCKED || BY_TENSOR),
        SHIFTED = BLOCKED && !UP,                      /* a group of 128 of k may begin before k does */
        ONCE = UP && BYTES,                            /* may weights be the first to leave L2?  (T lost by it.) */
        ROUNDS = BYTES && !UP,                         /* biases are loaded eight at a time; others would spill */
        TAIL = BYTES ? 0 : 24,                         /* rows beyond M that an expert's last tile may have */
        ROWS = M + TAIL, A = ROWS * 128, STAGE = (ROWS + N) * 128,
        BOX = N / 2,                                   /* rows of w that one copy brings; of rows of a, AT_ONCE */
        HALF_BYTES = BOX * 128, AT_ONCE = 64,
        BEGUN = 2,                                     /* stages of up whose weights go ahead of the first rows */
        SUM_N = FP8 ? 128 : N,                         /* wgmma's N */
        SUBS = N / 64,                                 /* 64 rows of w share a scale */
        SCALES = BLOCKED ? M + SUBS : 0,
        GATHER = 2,                                    /* warps that gather rows of a, EACH of them for a lane */
        EACH = ROWS / (4 * GATHER),
        CHANNELS = BY_ROW ? N : 0,                     /* scales of rows of w that a tile brings */
        GROUP = 16, GROUP_MANY = 32,                   /* row blocks that share weights at a time; where one expert's */
        MANY = 12,                                     /* mean row blocks of an expert from which on they are */
        CLUSTERS_FROM = 2,                             /* from which on blocks go in pairs */
        PITCH = 144,                                   /* bytes of 64 columns on their way out: no bank twice */
        PAGE_ROWS = TAIL > 0 ? 8 : 16,                 /* of a page, where a warp's rows change places */
        PAGE = PAGE_ROWS * PITCH,
        TILES = 4, PEERS = 8, THREADS = 384,
        CARRY = (1 << 16) / 128                        /* stages */
    };
    /* alone: w, not promoted; rows: of a, M at a time or, last, TAIL. */
    struct params {
        moek_gemm_ a;
        CUtensorMap w, alone, rows[TAIL > 0 ? 2 : 1];
        moek_fastdiv over_div, over_tiles;             /* rows.div; tiles of a row block */
    };
    /* A tile has 2^this columns. */
    MOEK_FN int column_bits(const moek_gemm_ *a) { return UP && a->w_rows > a->n ? 7 : 8; }

#ifdef MOEK_SM90_CODE_
    /* A tile: expert (-1: there are no more), rows [row0, end), columns from j0 on; both: the other block of the
     * cluster has the same weights; narrow: half of the columns; rows of a and of out (-1: none).  In shared memory. */
    struct tile {
        int e, row0, end, j0, both, narrow, pad[2], a_row[ROWS], out_row[ROWS];
        float w_scale[CHANNELS];                       /* (may be none) */
    };

    /* The row of its half of w that makes column i of a tile that begins with j0: of gated ones each 128 are 64 of what
     * lies first in memory of gate and up, then 64 of the other.  A column behind the last is not stored: the last will
     * do. */
    MOEK_DEVICE int w_row(const moek_gemm_ *a, int j0, int i, int n)
    {
        if constexpr (UP) return min(j0 + (a->w_rows > n ? i / 128 * 64 + i % 64 : i), n - 1) * a->gate_up.step;
        else return min(j0 + i, n - 1);
    }

    /* ---- scheduler ----------------------------------------------------------------------------------------------- */

    /* By a warp: finds a tile by its number.  Tiles from number `whole` on are cut in two.  clustered: a cluster of two
     * blocks shares a tile number, and each block takes one of its two tiles.  If a row block has an odd number of
     * tiles, the two are of two row blocks, maybe of two experts; with an odd number of row blocks the last pair has an
     * empty tile.
     * head_full: a barrier that completes when the tile is written, but for its arrays; of up for the first tile of a
     * block that counts ids itself alone (first), for these need the kernel before.  down: out_row[] and scales of w
     * are still being copied (cp.async) when this returns.
     * No divisions: the first tile, and short tiles, wait for this. */
    MOEK_DEVICE void find_tile(const params *p, moek_schedule_ s, int number_of_tile, int whole, int columns,
                               int clustered, tile *tile_found, uint64_t *head_full, int first)
    {
        const moek_gemm_ *const a = &p->a;
        const int narrow = number_of_tile >= whole, second = narrow && (number_of_tile - whole) % 2;
        const int tiles = (a->n + columns - 1) >> column_bits(a), even = a->split_flags ? clustered & ~tiles : 0;
        const int odd = clustered - even;
        const int all = s.block[a->experts], units = (all + odd) >> odd;
        const int number = narrow ? whole + (number_of_tile - whole) / 2 : number_of_tile;
        const int unit = (int)moek_fastdiv_(number << even, p->over_tiles), lane = threadIdx.x % 32;
        /* Row blocks [group0, group0 + size), short of `last`, share weights: all their columns, then the next. */
        int size = GROUP >> odd, begin = 0, last = units, row0, end, i;
        if (all >= MANY * a->experts) {                     /* groups of an expert alone: its weights are read once */
            const int expert = moek_schedule_find_(s, a->experts, unit << odd);
            size = GROUP_MANY >> odd;
            begin = (s.block[expert] + odd) >> odd;
            last = (s.block[expert + 1] + odd) >> odd;
        }
        const int group0 = begin + ((unit - begin) & -size);
        const int group = min(last - group0, size);
        const int within = number - group0 * (tiles >> even), turn = (int)blockIdx.x % 2;
        int column = moek_quotient_(within, group), b = (group0 + within - column * group) << odd;
        int e = moek_schedule_find_(s, a->experts, b), both = 0;
        if (even) {
            /* Row block b, by two columns: with the row block beside it (first or second as b is), or both of b
             * alone. */
            const int late = (b - s.block[e]) & 1;
            both = late || b + 1 < s.block[e + 1];
            column = 2 * column + (both ? late : turn);
            if (both) b += turn - late;
        } else if (odd) {
            both = b + 1 < s.block[e + 1];
            b += turn;
            if (b < all) e = moek_schedule_find_(s, a->experts, b);
        }
        row0 = a->rows_per_expert ? e * a->rows_per_expert : s.row[e];
        end = b < all ? row0 + s.row[e + 1] - s.row[e] : 0;
        row0 += (b - s.block[e]) * M;
        if (TAIL > 0 && b + 1 < s.block[e + 1]) end = row0 + M;
        const int j0 = column * columns + second * (columns / 2);
        if (lane == 0) {
            tile_found->e = e; tile_found->row0 = row0; tile_found->end = end;
            tile_found->both = both; tile_found->narrow = narrow;
            tile_found->j0 = j0;
        }
        if constexpr (!UP) {
            moek_mbar_arrive_warp_(head_full);
        } else if (first) {                                 /* rows are what the kernel before says */
            moek_mbar_arrive_warp_(head_full);
            moek_grid_wait_();
            moek_grid_go_();
        }
        #pragma unroll
        for (i = lane; i < ROWS; i += 32) {
            const int r = row0 + i;
            tile_found->a_row[i] = r >= end ? -1
                                 : a->rows.order ? (int)moek_fastdiv_(a->rows.order[r], p->over_div) : r;
            if constexpr (UP) tile_found->out_row[i] = r >= end ? -1 : a->rows.out_order ? a->rows.out_order[r] : r;
            else if (r < end && a->rows.out_order) moek_cp_async4_(tile_found->out_row + i, a->rows.out_order + r);
            else tile_found->out_row[i] = r >= end ? -1 : r;
        }
        if constexpr (CHANNELS > 0)
            #pragma unroll
            for (i = lane; i < CHANNELS; i += 32) {
                const size_t row = (size_t)e * a->gate_up.rows + w_row(a, j0, i, a->n);
                if constexpr (UP) tile_found->w_scale[i] = MOEK_HALF_(a->gate_up.scales, i / 64 % 2)[row];
                else moek_cp_async4_(tile_found->w_scale + i, MOEK_F32_(a->w.scales) + row);
            }
    }

    /* What all roles of a block know: its shared memory, then facts of the GEMM.  Barriers of tiles are one a place of
     * `list`: tile_full (the tile is written), head_full (written but for its rows), done (all have read it),
     * prefetch_ok (its weights are so far on their way that the next tile may be asked for). */
    struct block {
        unsigned char *ring;                           /* stages */
        uint64_t *full, *empty;                        /* barriers [STAGES] */
        uint64_t *tile_full, *done, *prefetch_ok;      /* barriers [TILES] */
        uint64_t *head_full;                           /* barriers [TILES]; of up: of the first tile alone */
        uint64_t *peer_full;                           /* barriers [PEERS]: of `number`, from the other block */
        int32_t *number;
        tile *list;                                    /* [TILES] */
        float *scales;                                 /* [STAGES]: of rows of a; of 64s of rows of w */
        moek_schedule_ s;
        int lane, n, steps, row_bytes, tiles, clustered;   /* steps: stages of a tile; tiles: of a row block */
        int ask;                                       /* producers: with this step of a tile the next is asked for */
        int gated, columns, cut;                       /* columns: of a tile; cut: may tiles be? */
    };

    /* ---- producers ----------------------------------------------------------------------------------------------- */

    /* What TMA loads of a tile at each stage, computed once: work between a free stage and its loads is time lost.
     * e: the expert, or, tiled, its first stage; group: the first 8 columns; half: the place in a stage; both, narrow:
     * the tile's; boxes, tail: of rows of a, from row0 on.  once: no other block reads these weights. */
    struct bring { int e, group, half, both, narrow, row0, boxes, bytes, tail, once; };

    MOEK_DEVICE bring make_bring(const moek_gemm_ *a, const tile *tile, int steps, int gated, int once)
    {
        const int rows = a->rows.order ? 0 : max(0, tile->end - tile->row0);
        bring loads;
        loads.both = tile->both;
        loads.narrow = tile->narrow;
        /* A tile that two blocks share: each asks for one half, for both; smaller copies cost 7 %. */
        loads.half = loads.both && !loads.narrow ? (int)(blockIdx.x % 2) : 0;
        loads.e = a->w.layout ? tile->e * steps : tile->e;
        loads.group = (tile->j0 + loads.half * (gated ? BOX / 2 : BOX)) / 8;
        loads.row0 = tile->row0;
        loads.boxes = (min(rows, M) + AT_ONCE - 1) / AT_ONCE;
        loads.bytes = (N >> loads.narrow) * 128 + loads.boxes * (AT_ONCE * 128);
        loads.tail = TAIL > 0 && rows > M;
        if constexpr (TAIL > 0) loads.bytes += loads.tail * (TAIL * 128);
        loads.once = once;
        return loads;
    }
    /* By one thread: a stage's bytes are expected, and its weights are on the way, a copy for each half.  Gated, a half
     * is 64 of gate and 64 of up, as they lie in memory. */
    MOEK_DEVICE void weights(const params *p, unsigned char *stage, uint64_t *full, const bring *loads, int step,
                             int gated, int clustered)
    {
        unsigned char *const smem_w = stage + A;
        const int tiled = p->a.w.layout, e = tiled ? loads->e + step : loads->e;
        const int k = tiled ? 0 : step * PER - (SHIFTED ? p->a.k_offset : 0);
        const int next = loads->group + (gated ? BOX / 16 : BOX / 8);
        moek_mbar_arrive_expect_(full, loads->bytes);
        if (loads->both) {                                         /* narrow: the two blocks take turns */
            if (!loads->narrow || step % 2 == (int)(blockIdx.x % 2))
                moek_tma_both_(smem_w + loads->half * HALF_BYTES, &p->w, full, k, loads->group, e);
        } else if (ONCE && loads->once) {
            moek_tma_once_(smem_w, &p->w, full, moek_evict_first_(), k, loads->group, 0, e);
            if (!loads->narrow) moek_tma_once_(smem_w + HALF_BYTES, &p->w, full, moek_evict_first_(), k, next, 0, e);
        } else {
            const CUtensorMap *const w = clustered ? &p->w : &p->alone;
            moek_tma_shared_(smem_w, w, full, k, loads->group, e);
            if (!loads->narrow) moek_tma_shared_(smem_w + HALF_BYTES, w, full, k, next, e);
        }
    }
    /* By the same thread: the stage's rows of a, if they lie side by side. */
    MOEK_DEVICE void rows(const params *p, unsigned char *stage, uint64_t *full, const bring *loads, int step)
    {
        int i;
        #pragma unroll
        for (i = 0; i < M / AT_ONCE; i++)
            if (i < loads->boxes)
                moek_tma_rows_(stage + i * (AT_ONCE * 128), &p->rows[0], full,
                               step * PER - (SHIFTED ? p->a.k_offset : 0), loads->row0 + AT_ONCE * i);
        if constexpr (TAIL > 0)
            if (loads->tail) moek_tma_rows_(stage + M * 128, &p->rows[1], full, step * PER, loads->row0 + M);
    }
    /* Producer of weights, of rows of a that lie side by side, and, BLOCKED, of scales.  Scales are fetched by a warp
     * of its own if one is free, for they hold up copies. */
    MOEK_DEVICE void produce(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x, steps = b->steps, clustered = b->clustered, ask = b->ask;
        const int gated = b->gated;
        const int lane = b->lane, n = b->n, copies = !BLOCKED || t < 32;
        const int fetches = BLOCKED && (a->rows.order || t >= 32);
        int slot = 0, phase = 1, step, q = 0, turn = 0, i;
        /* Experts of one row block: their weights are the first to leave L2, so that rows of a stay. */
        const int once = ONCE ? 8 * b->s.block[moek_opaque_int_(a->experts)] <= 9 * moek_opaque_int_(a->experts) : 0;
        int begun = 0;
        if constexpr (!UP) {
            /* The first stage's weights need not wait for h. */
            if (copies && !a->rows.order) {
                moek_mbar_wait_(b->head_full, 0);
                begun = b->list->e >= 0;
                if (begun && moek_elect_()) {
                    const bring loads = make_bring(a, b->list, steps, gated, once);
                    weights(p, b->ring, b->full, &loads, 0, gated, clustered);
                }
            }
            moek_grid_wait_();
        } else if (a->ids) {
            /* The first stages' weights need not wait until it is known where rows are. */
            moek_mbar_wait_(b->head_full, 0);
            begun = b->list->e >= 0 ? min(steps, (int)BEGUN) : 0;
            if (copies && begun && moek_elect_()) {
                const bring loads = make_bring(a, b->list, steps, gated, once);
                #pragma unroll 1
                for (i = 0; i < begun; i++) {
                    weights(p, b->ring + i * STAGE, b->full + i, &loads, i, gated, clustered);
                    if (loads.both && !loads.narrow && i == ask) moek_mbar_arrive_(b->prefetch_ok);
                }
            }
        }
        for (;;) {
            bring loads;
            int place, asks;                    /* asks: with which step for the next tile */
            int row[M / 32];
            unsigned w_scale = 0;              /* where the first scale of w is, in its half */
            /* Copies of down need not wait until it is known where rows go. */
            if constexpr (UP) moek_mbar_wait_(b->tile_full + q, turn);
            else if constexpr (BLOCKED)
                moek_mbar_wait_((copies && !a->rows.order ? b->head_full : b->tile_full) + q, turn);
            else moek_mbar_wait_(b->head_full + q, turn);
            if (b->list[q].e < 0) break;
            loads = make_bring(a, b->list + q, steps, gated, once);
            asks = loads.both && !loads.narrow ? ask : -1;
            if constexpr (BLOCKED) {
                #pragma unroll
                for (i = 0; i < M / 32; i++) row[i] = fetches ? b->list[q].a_row[lane + 32 * i] : -1;
                if (lane < SUBS) {                         /* of each 64 rows of w of the tile */
                    const int e = b->list[q].e, j0 = b->list[q].j0;
                    const int j = min(j0 + 64 * (gated ? lane / 2 : lane), n - 1);
                    const int shift = MOEK_HALF_(a->gate_up.shift, UP ? lane % 2 : 0);
                    const int w_row = shift + j * a->gate_up.step;
                    w_scale = ((unsigned)e * a->gate_up.scale_rows + (unsigned)w_row / 128) * steps;
                }
            }
            moek_mbar_arrive_warp_(b->done + q);
            place = q;
            moek_next_(q, turn, TILES);
            step = 0;
            if (!UP && begun) {                /* now the rows of that stage */
                if (moek_elect_()) {
                    rows(p, b->ring, b->full, &loads, 0);
                    if (asks == 0) moek_mbar_arrive_(b->prefetch_ok + place);
                }
                begun = 0;
                step = slot = 1;
            }
            for (; step < steps; step++) {
                /* A stage that was begun is not waited for: it may have been multiplied, and be free, by now. */
                const int free = copies && step >= begun;
                unsigned char *const stage = b->ring + slot * STAGE;
                if (fetches || free) moek_mbar_wait_(b->empty + slot, phase);
                if (free && moek_elect_()) {
                    weights(p, stage, b->full + slot, &loads, step, gated, clustered);
                    if (step == asks) moek_mbar_arrive_(b->prefetch_ok + place);
                    rows(p, stage, b->full + slot, &loads, step);
                }
                if (BLOCKED && fetches) {
                    #pragma unroll
                    for (i = 0; i < M / 32; i++)
                        if (row[i] >= 0)
                            moek_cp_async4_(b->scales + slot * SCALES + lane + 32 * i,
                                            MOEK_F32_(a->a_scale) +
                                                (size_t)(uint32_t)row[i] * (uint32_t)steps + step);
                    if (lane < SUBS)
                        moek_cp_async4_(b->scales + slot * SCALES + M + lane, w_scale + step +
                                        MOEK_HALF_(a->gate_up.scales, UP ? lane % 2 : 0));
                    moek_mbar_arrive_copied_(b->full + slot);
                }
                moek_next_(slot, phase, STAGES);
            }
            if constexpr (UP) begun = 0;
            if (t == 0 && !a->rows.order && asks < 0) moek_mbar_arrive_(b->prefetch_ok + place);
        }
    }
    /* Producer of rows of a that are gathered: each thread one row of 4 * GATHER, 16 bytes of 8 lanes each. */
    MOEK_DEVICE void gather(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x, steps = b->steps, ask = b->ask, row_bytes = b->row_bytes;
        int slot = 0, phase = 1, step, q = 0, turn = 0, i;
        const int u = t - 32, r = u / 8, smem_offset = r * 128 + (u % 8 ^ r % 8) * 16;
        const unsigned char *const x = (const unsigned char *)a->a + u % 8 * 16;
        const uint32_t NONE = 0xffffffff;
        uint32_t row[EACH];                    /* where it begins, in 16 bytes */
        if constexpr (!UP) moek_grid_wait_();
        for (;;) {
            moek_mbar_wait_(b->tile_full + q, turn);
            if (b->list[q].e < 0) break;
            #pragma unroll
            for (i = 0; i < EACH; i++) {
                const int row_of_a = b->list[q].a_row[r + 4 * GATHER * i];
                row[i] = row_of_a < 0 ? NONE : (uint32_t)row_of_a * ((uint32_t)a->a_row_bytes / 16);
            }
            uint64_t *const asks = t == 32 && (b->list[q].narrow || !b->list[q].both) ? b->prefetch_ok + q : NULL;
            moek_mbar_arrive_warp_(b->done + q);
            moek_next_(q, turn, TILES);
            for (step = 0; step < steps; step++) {
                unsigned char *const stage = b->ring + slot * STAGE;
                const int at_k = step * 128 - (SHIFTED ? a->k_offset : 0), at_byte = at_k + u % 8 * 16;
                const int bytes = (SHIFTED ? (unsigned)at_byte < (unsigned)row_bytes : at_byte < row_bytes) ? 16 : 0;
                const unsigned char *const x_source = x + (bytes ? at_k : 0);
                moek_mbar_wait_(b->empty + slot, phase);
                if (step == ask && asks) moek_mbar_arrive_(asks);
                #pragma unroll
                for (i = 0; i < EACH; i++)
                    if (row[i] != NONE)
                        moek_cp_async16_(stage + i * (512 * GATHER) + smem_offset, moek_at_(x_source, row[i], 16),
                                         bytes);
                moek_mbar_arrive_copied_(b->full + slot);
                moek_next_(slot, phase, STAGES);
            }
        }
    }

    /* Scheduler: which tile comes next. */
    MOEK_DEVICE void schedule(const params *p, const block *b)
    {
        const moek_gemm_ *const a = &p->a;
        const moek_schedule_ s = b->s;
        const int lane = b->lane, steps = b->steps, clustered = b->clustered, tiles = b->tiles;
        const int columns = b->columns, cut = b->cut;
        int q = 0, turn = 0;
        const int ahead = steps >= 8 ? 1 : steps >= 4 ? 2 : 3;
        const int blocks = s.block[moek_opaque_int_(a->experts)];    /* read again, so that consumers do not keep it */
        const int workers = gridDim.x >> clustered, me = blockIdx.x >> clustered;
        /* With few blocks of rows, each wave of tiles begins one block further on: else a block could get the same
         * rows, few or many, each time.  With many that evens out, and would cost up to 10 % where tiles are short. */
        const int shift = blocks <= GROUP && !clustered;
        const int even = a->split_flags ? clustered & ~tiles : 0, odd = clustered - even;
        int all = ((blocks + odd) >> odd) * (tiles >> even), wave, tile;
        /* A last wave that would leave half of the blocks without a tile: tiles of half the columns, for twice as
         * many. */
        const int in_waves = moek_quotient_(all, workers) * workers;
        const int whole = cut && all < 1 << 23 && 2 * (all - in_waves) <= workers ? in_waves : all;
        all += all - whole;
        for (wave = 0;; wave++) {
            moek_mbar_wait_(b->done + q, turn ^ 1);
            if (!a->split_flags) {
                tile = wave * workers + (me + wave * shift) % workers;
            } else if (!wave) {
                tile = me;
            } else if (clustered && blockIdx.x % 2) {
                /* What the other block says, which is less than PEERS tiles ahead: its stages are read by both. */
                const int slot = wave % PEERS;
                if (lane == 0) moek_mbar_arrive_expect_(b->peer_full + slot, 4);
                moek_mbar_wait_(b->peer_full + slot, (wave / PEERS + !slot) % 2);       /* the first has none */
                tile = b->number[slot];
            } else {
                /* By demand, as late as weights of the tiles before leave time for. */
                const int before = wave - ahead;
                if (before >= 0) moek_mbar_wait_(b->prefetch_ok + before % TILES, before / TILES % 2);
                if (lane == 0) {
                    tile = workers + atomicAdd(a->split_flags, 1);
                    if (clustered) moek_st_async_peer_(b->number + wave % PEERS, tile, b->peer_full + wave % PEERS);
                }
                tile = __shfl_sync(0xffffffff, tile, 0);
            }
            if (tile < all) {
                find_tile(p, s, tile, whole, columns, clustered, b->list + q, b->head_full + q, UP && !wave && a->ids);
            } else {
                if (lane == 0) b->list[q].e = -1;
                moek_mbar_arrive_warp_(b->head_full + q);
                if (UP && !wave && a->ids) {
                    moek_grid_wait_();
                    moek_grid_go_();
                }
            }
            if constexpr (!UP) moek_mbar_arrive_copied_(b->tile_full + q);     /* not waited for: they come behind */
            moek_mbar_arrive_warp_(b->tile_full + q);                          /* stages on their way */
            if (tile >= all) break;
            moek_next_(q, turn, TILES);
        }
    }

    /* ---- consumers: out ------------------------------------------------------------------------------------------ */

    /* 8 T of a row of out.  y is read next, h is not. */
    MOEK_DEVICE void put(uint16_t *out, moek_words_ v)
    {
        if constexpr (UP) moek_store_words_(out, v);
        else moek_store_words_kept_(out, v);
    }
    /* By a warp: its 16 rows of y ([blocks of 8 columns][4]: this lane's pairs of two rows), 64 columns from j on, by
     * way of `page`, so that each store is 128 bytes of a row.  row: where this lane's four go (-1: nowhere). */
    MOEK_DEVICE void store(uint16_t *out, unsigned char *page, const float *y, const int *row, int j, int n, int dtype)
    {
        const int lane = moek_opaque_int_(threadIdx.x % 32), column = j + lane % 8 * 8;
        const unsigned char *const get = page + lane / 8 * PITCH + lane % 8 * 16;
        int h, i;
        if constexpr (PAGE_ROWS == 8) {
            unsigned char *const put_at = page + lane % 8 * PITCH + lane / 8 * 16;
            #pragma unroll
            for (h = 0; h < 2; h++) {                  /* 8 rows */
                __syncwarp();
                #pragma unroll
                for (i = 0; i < 2; i++) {
                    const float *const sums = y + 2 * h + 16 * i;
                    moek_stmatrix4_(put_at + 64 * i, moek_to_t2_(sums[0], sums[1], dtype),
                                    moek_to_t2_(sums[4], sums[5], dtype), moek_to_t2_(sums[8], sums[9], dtype),
                                    moek_to_t2_(sums[12], sums[13], dtype));
                }
                __syncwarp();
                #pragma unroll
                for (i = 0; i < 2; i++) {
                    const moek_words_ v = moek_load_words_(get + i * 4 * PITCH);
                    const int r = row[2 * h + i];
                    if (r >= 0 && column < n) put(out + (size_t)(uint32_t)r * n + column, v);
                }
            }
        } else {
            unsigned char *const put_at = page + lane % 16 * PITCH + lane / 16 * 16;
            __syncwarp();
            #pragma unroll
            for (i = 0; i < 4; i++) {
                const float *const sums = y + 2 * i * 4;
                moek_stmatrix4_(put_at + 32 * i, moek_to_t2_(sums[0], sums[1], dtype),
                                moek_to_t2_(sums[2], sums[3], dtype), moek_to_t2_(sums[4], sums[5], dtype),
                                moek_to_t2_(sums[6], sums[7], dtype));
            }
            __syncwarp();
            #pragma unroll
            for (i = 0; i < 4; i++) {
                const moek_words_ v = moek_load_words_(get + i * 4 * PITCH);
                if (row[i] >= 0 && column < n) put(out + (size_t)(uint32_t)row[i] * n + column, v);
            }
        }
    }
    /* QUANTIZES: the same of all 128 columns from j on, quantized; sum: as gated tiles are finished.  out_row: where
     * the 16 rows go. */
    MOEK_DEVICE void store_codes(const moek_gemm_ *a, unsigned char *page, const float *sum, const int *out_row,
                                 int j, int n, int dtype)
    {
        enum { HALF = N / 4 };
        const int lane = moek_opaque_int_(threadIdx.x % 32), column = j + lane % 8 * 16;
        unsigned char *const put_at = page + lane % 8 * PITCH + lane / 8 * 16;
        const unsigned char *const get = page + lane / 8 * PITCH + lane % 8 * 16;
        int h, i;
        float inverse = 0;
        if constexpr (BY_TENSOR) inverse = __fdiv_rn(1.0f, a->q_scale[0]);
        __syncwarp();
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const int r = out_row[lane / 4 + 8 * h];
            moek_words_ x[4];
            uint2 codes[4];
            #pragma unroll
            for (i = 0; i < 16; i++) {
                const float *const sums = sum + i / 8 * HALF + i % 8 * 4 + 2 * h;
                x[i / 4].w[i % 4] = r < 0 || j + 8 * i >= n ? 0 : moek_to_t2_(sums[0], sums[1], dtype);
            }
            if constexpr (BY_TENSOR) {
                #pragma unroll
                for (i = 0; i < 4; i++) codes[i] = moek_static_codes_(x[i], inverse, dtype);
            } else {
                const float s = moek_group_codes_(codes, x, 4, 4, a->epilogue.ue8m0, dtype);
                if (lane % 4 == 0 && r >= 0)
                    a->q_scale[(size_t)(uint32_t)r * (uint32_t)((n + 127) / 128) + j / 128] = s;
            }
            #pragma unroll
            for (i = 0; i < 4; i += 2)
                moek_stmatrix4_(put_at + 8 * h * PITCH + 32 * i, codes[i].x, codes[i].y, codes[i + 1].x,
                                codes[i + 1].y);
        }
        __syncwarp();
        #pragma unroll
        for (i = 0; i < 4; i++) {
            /* Two codes were an element, so of each 16 codes a lane gave 2 and another 2, 8 further on. */
            const moek_words_ v = moek_load_words_(get + i * 4 * PITCH);
            const int r = out_row[lane / 8 + 4 * i];
            moek_words_ q;
            q.w[0] = __byte_perm(v.w[0], v.w[1], 0x5410); q.w[1] = __byte_perm(v.w[2], v.w[3], 0x5410);
            q.w[2] = __byte_perm(v.w[0], v.w[1], 0x7632); q.w[3] = __byte_perm(v.w[2], v.w[3], 0x7632);
            if (r >= 0 && column < n)
                moek_store_words_((unsigned char *)a->q + (size_t)(uint32_t)r * (uint32_t)n + column, q);
        }
    }
    /* One activation, by its number, of eight sums of the register file's front. */
    template <int ACT, int GATED>
    MOEK_DEVICE void act_of_eight(float *y, const float *sum, float alpha, float beta, float limit)
    {
        enum { HALF = N / 4 };
        int i;
        #pragma unroll
        for (i = 0; i < 8; i++)
            if constexpr (GATED)
                y[i] = moek_act_any_(ACT, sum[i / 4 * HALF + i % 4], sum[i / 4 * HALF + i % 4 + HALF / 2], alpha, beta,
                                     limit);
            else y[i] = moek_act_any_(ACT, sum[i], 0, alpha, beta, limit);
    }
    /* The activation of a tile.  Gated, each half of `sum` is of 64 columns, what lies first in memory of gate and up,
     * then the other; of that becomes the result in the first's place.  single: only the first half of `sum` counts. */
    MOEK_DEVICE void activate(const moek_gemm_ *a, float *sum, int gated, int single)
    {
        enum { HALF = N / 4 };
        int i;
        if (a->epilogue.act == MOEK_SILU && !(a->epilogue.limit > 0)) {
            const int swapped = a->gate_up.swapped;
            #pragma unroll
            for (i = 0; i < 2 * HALF; i += HALF)
                if (i && single) break;
                else if (swapped) moek_fast_silus_(sum + i, sum + i + HALF / 2, sum + i, HALF / 2);
                else moek_fast_silus_(sum + i, sum + i, sum + i + HALF / 2, HALF / 2);
        } else {
            /* Eight at a time, and the registers move on: unrolled, the activations would be a book. */
            const int act = a->epilogue.act, rounds = gated ? HALF / 8 : HALF / 4;
            const float alpha = a->epilogue.alpha, beta = a->epilogue.beta, limit = a->epilogue.limit;
            int round;
            if (a->gate_up.swapped)
                #pragma unroll
                for (i = 0; i < HALF; i++) {
                    const int gate = i / (HALF / 2) * HALF + i % (HALF / 2);
                    const float up = sum[gate];
                    sum[gate] = sum[gate + HALF / 2];
                    sum[gate + HALF / 2] = up;
                }
            #pragma unroll 1
            for (round = 0; round < rounds; round++) {
                float y[8];
                switch (act) {
#define MOEK_ACT_CASE_(NAME, name, number, gated) \
                case number: act_of_eight<number, gated>(y, sum, alpha, beta, limit); break;
                MOEK_EACH_ACT(MOEK_ACT_CASE_)
#undef MOEK_ACT_CASE_
                default:
                    #pragma unroll
                    for (i = 0; i < 8; i++) y[i] = 0;
                }
                if (gated) {                           /* four of each half */
                    #pragma unroll
                    for (i = 0; i < HALF / 2 - 4; i++) {
                        sum[i] = sum[i + 4];
                        sum[i + HALF / 2] = sum[i + HALF / 2 + 4];
                        sum[i + HALF] = sum[i + HALF + 4];
                        sum[i + HALF + HALF / 2] = sum[i + HALF + HALF / 2 + 4];
                    }
                    #pragma unroll
                    for (i = 0; i < 8; i++) sum[i / 4 * HALF + HALF / 2 - 4 + i % 4] = y[i];
                } else {
                    #pragma unroll
                    for (i = 0; i < 2 * HALF - 8; i++) sum[i] = sum[i + 8];
                    #pragma unroll
                    for (i = 0; i < 8; i++) sum[2 * HALF - 8 + i] = y[i];
                }
            }
        }
    }
    /* Scale, bias, activation: this lane's pairs of every 8 columns from j0 on.  BY_ROW: s0, s1, scales of its two rows
     * of a; w_scale, where scales of the tile's columns begin, in shared memory.  single: only the first half of `sum`
     * counts. */
    MOEK_DEVICE void finish(const moek_gemm_ *a, float *sum, int e, int j0, int single, float s0,
                            float s1, uint32_t w_scale, int n, int dtype)
    {
        enum { HALF = N / 4, EIGHT = 8 };
        const int c = moek_opaque_int_(threadIdx.x % 4 * 2);
        const int gated = UP ? a->w_rows > n : 0;
        int i;
        if constexpr (BY_TENSOR && UP) {
            const float s = *MOEK_F32_(a->a_scale);
            const float scale[2] = { s * a->gate_up.scales[0][e], s * a->gate_up.scales[1][e] };
            #pragma unroll
            for (i = 0; i < 2 * HALF; i++) sum[i] *= scale[i / (HALF / 2) % 2];
        } else if constexpr (BY_TENSOR) {
            const float scale = MOEK_F32_(a->a_scale)[0] * MOEK_F32_(a->w.scales)[e];
            #pragma unroll
            for (i = 0; i < 2 * HALF; i++) sum[i] *= scale;
        } else if constexpr (BY_ROW) {
            #pragma unroll
            for (i = 0; i < HALF; i += 2) {
                float w[2];
                if (i == HALF / 2 && single) break;
                moek_shared_float2_(w, w_scale + 4 * (i / 2 * 8 + c));
                sum[2 * i] *= s0 * w[0];
                sum[2 * i + 1] *= s0 * w[1];
                sum[2 * i + 2] *= s1 * w[0];
                sum[2 * i + 3] *= s1 * w[1];
            }
        }
        if (a->w.bias) {
            const size_t w_at = (size_t)e * a->gate_up.rows;
            if constexpr (ROUNDS)
                #pragma unroll
                for (i = 0; i < HALF; i += EIGHT) {        /* not all loads at once: registers */
                    uint16_t bias[EIGHT];
                    int u;
                    #pragma unroll
                    for (u = 0; u < EIGHT; u++)
                        bias[u] = ((const uint16_t *)a->w.bias + w_at)[w_row(a, j0, (i + u) / 2 * 8 + c + u % 2, n)];
                    #pragma unroll
                    for (u = 0; u < EIGHT; u++) {
                        float *const sums = sum + (i + u) / 2 * 4 + u % 2;
                        const float more = moek_from_t_(bias[u], dtype);
                        sums[0] += more;
                        sums[2] += more;
                    }
                    asm volatile("" ::: "memory");
                }
            else
                #pragma unroll
                for (i = 0; i < HALF; i++) {               /* found in place: by a function fp16 spills */
                    const int column = i / 2 * 8 + c + i % 2, reg = i / 2 * 4 + i % 2;
                    const int j = UP ? min(j0 + (gated ? column / 128 * 64 + column % 64 : column),
                                           (TAIL > 0 ? moek_opaque_int_(n) : n) - 1) : min(j0 + column, n - 1);
                    const int row = UP ? j * a->gate_up.step : j;
                    const uint16_t *const biases =
                        (const uint16_t *)(UP ? a->gate_up.bias[i / (HALF / 4) % 2] : a->w.bias) + w_at;
                    const float bias = a->w.bias ? moek_from_t_(biases[row], dtype) : 0;
                    sum[reg] += bias;
                    sum[reg + 2] += bias;
                    if (i % 4 == 3) asm volatile("" ::: "memory");         /* not all loads at once: registers */
                }
        }
        if constexpr (UP) activate(a, sum, gated, single);
        (void)c; (void)single;
    }
    /* Bias and activation of the tail, then stored: rows out_row[] of out, columns from j on, by this warp's 16 rows of
     * each of two 64s of w (gated, what lies first in memory of gate and up, then the other).  sum: of both, rows of w
     * by rows of a, as wgmma leaves it.  No row's result depends on another's: in rows that are nobody's anything may
     * stand. */
    MOEK_DEVICE void finish_tail(const moek_gemm_ *a, unsigned char *page, float *sum, int e, int j,
                                 const int *out_row, int n, int dtype)
    {
        enum { HALF = TAIL / 2, TAIL_PITCH = 48 };
        const int lane = moek_opaque_int_(threadIdx.x % 32), last = moek_opaque_int_(n) - 1;
        const int gated = UP ? a->w_rows > n : 0;
        int u, h, i;
        if (a->w.bias) {
            const size_t w_at = (size_t)e * a->gate_up.rows;
            #pragma unroll
            for (u = 0; u < 2; u++)
                #pragma unroll
                for (h = 0; h < 2; h++) {
                    /* A column behind the last is not stored: any bias will do. */
                    const int column = min(j + (gated ? 0 : 64 * u) + 8 * h + lane / 4, last);
                    const uint16_t *const bias = (const uint16_t *)(UP ? a->gate_up.bias[u] : a->w.bias) + w_at +
                                                 (UP ? column * a->gate_up.step : column);
                    const float more = moek_from_t_(*bias, dtype);
                    #pragma unroll
                    for (i = 0; i < HALF / 2; i++) sum[u * HALF + i / 2 * 4 + 2 * h + i % 2] += more;
                }
        }
        if (UP && gated) {
            float y[TAIL];
            #pragma unroll
            for (i = 0; i < HALF; i++) {
                y[i / 2 * 4 + i % 2] = sum[i];
                y[i / 2 * 4 + i % 2 + 2] = sum[i + HALF];
            }
            moek_act_sums_<2 * TAIL>(a, y, a->gate_up.swapped);
            #pragma unroll
            for (i = 0; i < HALF; i++) sum[i] = y[i / 2 * 4 + i % 2];
        } else if constexpr (UP) {
            moek_act_sums_<2 * TAIL>(a, sum, 0);
        }
        #pragma unroll
        for (u = 0; u < 2; u++) {
            const float *const sums = sum + u * HALF;
            const int column = j + 64 * u + lane % 2 * 8;
            if (UP && u && gated) break;
            __syncwarp();
            #pragma unroll
            for (i = 0; i < TAIL; i += 8)
                moek_stmatrix2_trans_(page + (i + lane % 8) * TAIL_PITCH + lane / 8 % 2 * 16,
                                      moek_to_t2_(sums[i / 2], sums[i / 2 + 1], dtype),
                                      moek_to_t2_(sums[i / 2 + 2], sums[i / 2 + 3], dtype));
            __syncwarp();
            #pragma unroll
            for (i = lane / 2; i < TAIL; i += 16)
                if (out_row[i] >= 0 && column < n)
                    moek_store_words_((uint16_t *)a->out + (size_t)(uint32_t)out_row[i] * n + column,
                                      moek_load_words_(page + i * TAIL_PITCH + lane % 2 * 16));
        }
    }

    /* ---- consumers: products ------------------------------------------------------------------------------------- */

    /* What a warpgroup multiplies: operands of the first stage; where the first barrier `empty` is; BLOCKED, where
     * scales of the first stage are, of this lane's rows of a and of the rows of w. */
    struct operands { uint64_t xs, ws, tail_xs, tail_ws; uint32_t empty, x_scale, w_scale; };

    /* FP8: stage number u, once it is full: one or both halves, multiplied and added. */
    MOEK_DEVICE void stage_fp8(float *sum, const block *b, const operands *stage_0, int halves, int u, int phase)
    {
        const uint64_t xs = stage_0->xs + u * (STAGE / 16), ws = stage_0->ws + u * (STAGE / 16);
        const uint32_t x_scale = stage_0->x_scale + u * SCALES * 4, w_scale = stage_0->w_scale + u * SCALES * 4;
        const uint32_t empty = stage_0->empty + 8 * u;
        float part[SUM_N / 2], s[BLOCKED ? 2 * SUBS : 1];
        int half, i, j;
        moek_mbar_wait_(b->full + u, phase);
        #pragma unroll
        for (half = 0; half < halves; half++) {
            moek_wgmma_fence_();
            #pragma unroll
            for (j = 0; j < 4; j++)
                moek_wgmma_of_shared_<SUM_N, Format::ELEMENT>(part, xs + 2 * j, ws + half * (SUM_N * 128 / 16) + 2 * j,
                                                              j);
            moek_wgmma_commit_();
            if (BLOCKED && half == 0) {                /* now, while the tensor cores are at work */
                const float x0 = moek_shared_float_(x_scale), x1 = moek_shared_float_(x_scale + 32);
                float sw[SUBS];
                #pragma unroll
                for (i = 0; i < halves; i++) moek_shared_float2_(sw + 2 * i, w_scale + 8 * i);
                #pragma unroll
                for (i = 0; i < 2 * halves; i++) {
                    s[2 * i] = x0 * sw[i];
                    s[2 * i + 1] = x1 * sw[i];
                    moek_keep_(s[2 * i]); moek_keep_(s[2 * i + 1]);
                }
            }
            moek_wgmma_wait_(0);
            if (half + 1 == halves) moek_mbar_arrive_cluster_(empty, b->clustered);
            #pragma unroll
            for (i = 0; i < SUM_N / 2; i += 4) {
                float *const out = sum + half * (SUM_N / 2) + i;
                if constexpr (BLOCKED) {
                    const float *const scale = s + half * 4 + i / 32 * 2;
                    out[0] += part[i] * scale[0]; out[1] += part[i + 1] * scale[0];
                    out[2] += part[i + 2] * scale[1]; out[3] += part[i + 3] * scale[1];
                } else {
                    out[0] += part[i]; out[1] += part[i + 1];
                    out[2] += part[i + 2]; out[3] += part[i + 3];
                    moek_keep_4_(out[0], out[1], out[2], out[3]);              /* now, not later */
                }
            }
        }
    }
    /* INTEGER: a stage, once it is full, of WIDE columns. */
    template <int WIDE>
    MOEK_DEVICE void stage_exact(int32_t *exact, uint64_t xs, uint64_t ws, uint64_t *full, int phase)
    {
        int j;
        moek_mbar_wait_(full, phase);
        moek_wgmma_fence_();
        #pragma unroll
        for (j = 0; j < 4; j++) moek_wgmma_of_shared_<WIDE, Format::ELEMENT>(exact, xs + 2 * j, ws + 2 * j, 1);
        moek_wgmma_commit_();
    }
    /* T: stage number u, once it is full, of WIDE columns; LONG: and of the tail (more). */
    template <int WIDE, int LONG>
    MOEK_DEVICE void stage_t(float *sum, float *more, const block *b, const operands *stage_0, int u, int phase)
    {
        const uint64_t xs = stage_0->xs + u * (STAGE / 16), ws = stage_0->ws + u * (STAGE / 16);
        int j;
        moek_mbar_wait_(b->full + u, phase);
        moek_wgmma_fence_();
        #pragma unroll
        for (j = 0; j < 4; j++) moek_wgmma_of_shared_<WIDE, Format::ELEMENT>(sum, xs + 2 * j, ws + 2 * j, 1);
        if constexpr (LONG) {
            const uint64_t ts = stage_0->tail_xs + u * (STAGE / 16), os = stage_0->tail_ws + u * (STAGE / 16);
            #pragma unroll
            for (j = 0; j < 4; j++) {
                moek_wgmma_of_shared_<TAIL, Format::ELEMENT>(more, os + 2 * j, ts + 2 * j, 1);
                moek_wgmma_of_shared_<TAIL, Format::ELEMENT>(more + TAIL / 2, os + 64 * 8 + 2 * j, ts + 2 * j, 1);
            }
        }
        moek_wgmma_commit_();
    }
/* What consume writes three times: a tile, if a condition holds, a stage at a time while the one before is still being
 * multiplied.  u is slot: known, so that addresses need no computing.  (As a function, it costs registers.) */
#define MOEK_WIDE_LOOP_(holds, stage) \
    for (step = 0; step < steps && (holds); ) \
        _Pragma("unroll") \
        for (u = 0; u < STAGES; u++) { \
            if (u != slot || step == steps) continue; \
            stage; \
            moek_wgmma_wait_(1); \
            if (step > 0) moek_mbar_arrive_cluster_(empty_at + 8 * ((u + STAGES - 1) % STAGES), clustered); \
            moek_next_(slot, phase, STAGES); \
            step++; \
        } \
    moek_wgmma_wait_(0); \
    if (holds) moek_mbar_arrive_cluster_(empty_at + 8 * ((slot ? slot : STAGES) - 1), clustered);
/* INTEGER: the same with carries.  Long k has a loop of its own: else each wgmma would be waited for. */
#define MOEK_WIDE_LONG_(wide) \
    _Pragma("unroll 1") \
    for (; step < steps; step++) { \
        const uint64_t xs = stage_0.xs + slot * (STAGE / 16), ws = stage_0.ws + slot * (STAGE / 16); \
        if (step && step % CARRY == 0) \
            _Pragma("unroll") \
            for (i = 0; i < (wide) / 8; i++) Format::carry(exact + 4 * i, high + i); \
        stage_exact<wide>(exact, xs, ws, b->full + slot, phase); \
        moek_wgmma_wait_(0); \
        moek_mbar_arrive_cluster_(empty_at + 8 * slot, clustered); \
        moek_next_(slot, phase, STAGES); \
    }
    /* Consumer: a warpgroup multiplies 64 rows of a tile; of a tile that has no more than 64, one half of the columns.
     * page: of the warp, where its rows of out change places. */
    MOEK_DEVICE void consume(const params *p, const block *b, unsigned char *page)
    {
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x, lane = b->lane, n = b->n, steps = b->steps, clustered = b->clustered;
        const int gated = b->gated, columns = b->columns, cut = b->cut;
        int q = 0, turn = 0, i;
        const int warpgroup = t / 128 - 1, warp = t % 128 / 32;
        const int dtype = BYTES ? a->dtype : DTYPE;
        const uint32_t empty_at = moek_cluster_address_(b->empty, clustered);
        int slot = 0, phase = 0;
        moek_registers_more_(224);
        moek_grid_wait_();
        for (;;) {
            float sum[N / 2], s0 = 0, s1 = 0;
            int32_t exact[INTEGER ? N / 2 : 1], high[INTEGER ? N / 8 : 1] = {0};
            int step, rows, u;
            moek_mbar_wait_(b->tile_full + q, turn);
            if (b->list[q].e < 0) break;
            rows = b->list[q].end - b->list[q].row0;
            #pragma unroll
            for (i = 0; i < N / 2; i++) {
                if constexpr (INTEGER) {
                    exact[i] = 0;
                    moek_keep_s32_(exact[i]);              /* (else the compiler moves zeros behind the fence) */
                } else {
                    sum[i] = 0;
                }
            }
            const int narrow = b->list[q].narrow, shorter = rows <= 64 && cut, single = shorter || narrow;
            if (rows <= 0 || (rows <= 64 && (narrow || !cut) && warpgroup)) {       /* nothing for this warpgroup */
                for (step = 0; step < steps; step++) {
                    moek_mbar_wait_(b->full + slot, phase);
                    moek_mbar_arrive_cluster_(empty_at + 8 * slot, clustered);
                    moek_next_(slot, phase, STAGES);
                }
                moek_mbar_arrive_warp_(b->done + q);
                moek_next_(q, turn, TILES);
                continue;
            }
            const int half = shorter ? warpgroup : 0, first = shorter ? 0 : 64 * warpgroup;
            const int tile_row = first + 16 * warp;
            operands stage_0;
            if constexpr (BY_ROW && !UP) {                 /* scales of rows of a: after k, or before, if k is short */
                const int r0 = b->list[q].a_row[tile_row + lane / 4], r1 = b->list[q].a_row[tile_row + lane / 4 + 8];
                s0 = r0 < 0 ? 0 : MOEK_F32_(a->a_scale)[r0];
                s1 = r1 < 0 ? 0 : MOEK_F32_(a->a_scale)[r1];
            }
            stage_0.empty = empty_at;
            stage_0.xs = moek_uniform_(moek_wgmma_operand_(b->ring + first * 128));
            stage_0.ws = moek_uniform_(moek_wgmma_operand_(b->ring + A + half * HALF_BYTES));
            if constexpr (FP8) {
                stage_0.w_scale = moek_shared_address_(b->scales + M + half * (SUBS / 2));
                stage_0.x_scale = moek_shared_address_(b->scales + tile_row + lane / 4);
                step = 0;
                if (single)
                    #pragma unroll 1
                    for (; step < steps; step++) {
                        u = moek_opaque_int_(slot);
                        stage_fp8(sum, b, &stage_0, 1, u, phase);
                        moek_next_(slot, phase, STAGES);
                    }
                #pragma unroll 1
                for (; step < steps; step++) {
                    /* No branch between one wgmma and the next: what is done there the tensor cores wait for. */
                    if (!slot)
                        #pragma unroll 1
                        for (; steps - step >= STAGES; step += STAGES) {
                            #pragma unroll
                            for (u = 0; u < STAGES; u++) stage_fp8(sum, b, &stage_0, N / SUM_N, u, phase);
                            phase ^= 1;
                        }
                    if (step == steps) break;
                    if (!UP && slot % 2 == 0 && steps - step >= 2) {   /* k need not be a multiple of 512 */
                        if (slot) {
                            stage_fp8(sum, b, &stage_0, N / SUM_N, 2, phase);
                            stage_fp8(sum, b, &stage_0, N / SUM_N, 3, phase);
                            phase ^= 1;
                        } else {
                            stage_fp8(sum, b, &stage_0, N / SUM_N, 0, phase);
                            stage_fp8(sum, b, &stage_0, N / SUM_N, 1, phase);
                        }
                        slot ^= 2;
                        step++;
                        continue;
                    }
                    u = moek_opaque_int_(slot);
                    stage_fp8(sum, b, &stage_0, N / SUM_N, u, phase);
                    moek_next_(slot, phase, STAGES);
                }
            } else if constexpr (INTEGER) {
                if (single) {
                    MOEK_WIDE_LOOP_(steps <= CARRY, (stage_exact<N / 2>(exact, stage_0.xs + u * (STAGE / 16),
                                    stage_0.ws + u * (STAGE / 16), b->full + u, phase)))
                    MOEK_WIDE_LONG_(N / 2)
                } else {
                    MOEK_WIDE_LOOP_(steps <= CARRY, (stage_exact<N>(exact, stage_0.xs + u * (STAGE / 16),
                                    stage_0.ws + u * (STAGE / 16), b->full + u, phase)))
                    MOEK_WIDE_LONG_(N)
                }
                if (steps > CARRY)
                    #pragma unroll
                    for (i = 0; i < N / 8; i++) Format::total(sum + 4 * i, exact + 4 * i, high[i]);
                else
                    #pragma unroll
                    for (i = 0; i < N / 2; i++) sum[i] = (float)exact[i];
            } else if (TAIL > 0 && rows > M) {
                float more[TAIL > 0 ? TAIL : 1] = { 0 };
                stage_0.tail_xs = moek_uniform_(moek_wgmma_operand_(b->ring + M * 128));
                stage_0.tail_ws = moek_uniform_(moek_wgmma_operand_(b->ring + A + warpgroup * HALF_BYTES));
                MOEK_WIDE_LOOP_(1, (stage_t<N, 1>(sum, more, b, &stage_0, u, phase)))
                /* A narrow tile has no second half: what was there was multiplied, but goes nowhere. */
                if (!(narrow && warpgroup))
                    finish_tail(a, page, more, b->list[q].e, b->list[q].j0 + warpgroup * (columns / 2) + 16 * warp,
                                b->list[q].out_row + M, n, dtype);
            } else if (single) {
                MOEK_WIDE_LOOP_(1, (stage_t<N / 2, 0>(sum, NULL, b, &stage_0, u, phase)))
            } else {
                MOEK_WIDE_LOOP_(1, (stage_t<N, 0>(sum, NULL, b, &stage_0, u, phase)))
            }
            const int e = b->list[q].e, wide = columns / 2, j0 = b->list[q].j0 + half * wide;
            int out_row[4];
            if constexpr (BY_ROW && UP) {
                const int r0 = b->list[q].a_row[tile_row + lane / 4], r1 = b->list[q].a_row[tile_row + lane / 4 + 8];
                s0 = r0 < 0 ? 0 : MOEK_F32_(a->a_scale)[r0];
                s1 = r1 < 0 ? 0 : MOEK_F32_(a->a_scale)[r1];
            }
            finish(a, sum, e, j0, single, s0, s1, moek_shared_address_(b->list[q].w_scale + half * BOX), n,
                   dtype);
            #pragma unroll
            for (i = 0; i < 4; i++) out_row[i] = b->list[q].out_row[tile_row + lane / 8 + 4 * i];
            if (QUANTIZES && !cut) {
                if (dtype == MOEK_DTYPE_FP16)
                    store_codes(a, page, sum, b->list[q].out_row + tile_row, j0, n, MOEK_DTYPE_FP16);
                else store_codes(a, page, sum, b->list[q].out_row + tile_row, j0, n, MOEK_DTYPE_BF16);
            }
            moek_mbar_arrive_warp_(b->done + q);
            moek_next_(q, turn, TILES);
            #pragma unroll
            for (i = 0; i < 4; i++)
                if ((!QUANTIZES || cut) && (i < 2 || !single))
                    if (!UP || i % 2 == 0 || !gated)
                        store((uint16_t *)a->out, page, sum + N / 8 * i, out_row, j0 + i / 2 * wide + i % 2 * 64, n,
                              dtype);
        }
    }

#undef MOEK_WIDE_LOOP_
#undef MOEK_WIDE_LONG_

    /* A block. */
    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_1024_(ring);
        const moek_gemm_ *const a = &p->a;
        const int t = threadIdx.x;
        block b;
        b.lane = t % 32;
        b.ring = ring;
        unsigned char *const pages = ring + STAGES * STAGE;            /* [8 warps]: where rows of out change places */
        b.full = (uint64_t *)(pages + 8 * PAGE); b.empty = b.full + STAGES;
        b.tile_full = b.empty + STAGES; b.done = b.tile_full + TILES; b.prefetch_ok = b.done + TILES;
        b.head_full = b.prefetch_ok + TILES;
        b.peer_full = b.head_full + TILES;
        b.number = (int32_t *)(b.peer_full + PEERS);
        b.list = (tile *)(b.number + PEERS);
        b.scales = (float *)(b.list + TILES);
        const int k = UP && HIDDEN ? HIDDEN : a->k;
        b.n = !UP && HIDDEN ? HIDDEN : a->n;
        b.gated = UP ? a->w_rows > b.n : 0;
        b.columns = b.gated ? N / 2 : N;
        b.cut = QUANTIZES ? !a->q : 1;
        b.row_bytes = k * ELEMENT;
        b.tiles = (b.n + b.columns - 1) >> column_bits(a);
        b.steps = ((SHIFTED ? a->k_offset : 0) + b.row_bytes + 127) / 128;

        if (t == 0) {
            moek_tma_prefetch_map_(&p->w);
            if (!a->rows.order) moek_tma_prefetch_map_(&p->rows[0]);
            if (TAIL > 0 && !a->rows.order) moek_tma_prefetch_map_(&p->rows[TAIL > 0 ? 1 : 0]);
        }
        if (t < STAGES) {                              /* TILES: as many; PEERS: twice */
            /* Arrivals: of threads that copy, and of the one that expects TMA's bytes. */
            moek_mbar_init_(b.full + t, (a->rows.order ? 32 * GATHER : 0) + (BLOCKED ? 32 : 0) + 1);
            moek_mbar_init_(b.tile_full + t, UP ? 1 : 33);
            moek_mbar_init_(b.prefetch_ok + t, 1);
            moek_mbar_init_(b.done + t, (a->rows.order ? GATHER : BLOCKED ? 1 : 0) + 1 + 8);
            moek_mbar_init_(b.head_full + t, 1);
            moek_mbar_init_(b.peer_full + t, 1);
            moek_mbar_init_(b.peer_full + t + STAGES, 1);
        }
        int32_t *const tally = (int32_t *)pages;
        if constexpr (!UP) {
            moek_grid_go_();                           /* the schedule is older: the up row waited for it */
        } else if (a->ids) {                           /* older: the schedule is made while the kernel before runs */
            moek_tally_ids_(tally, a->ids, a->slots, a->experts);
        } else {
            moek_grid_wait_();                         /* the schedule is what the kernel before wrote */
            moek_grid_go_();
        }
        /* No tails where blocks go in pairs: a tile that takes longer would hold up two; nor where a row must have
         * the bits of a full tile, whose activations share reciprocals.  Ends with a barrier. */
        b.s = moek_schedule_tails_(b.scales + STAGES * SCALES, UP && a->ids ? tally : a->rows.counts, a->experts, M,
                                   TAIL > 0 && !a->invariant ? TAIL : 0, TAIL > 0 ? CLUSTERS_FROM * a->experts : 0);
        if constexpr (UP && TAIL > 0)
            /* (Found anew, the blocks spill.) */
            b.clustered = moek_opaque_int_(b.s.block[a->experts] >= CLUSTERS_FROM * a->experts);
        else b.clustered = b.s.block[a->experts] >= CLUSTERS_FROM * a->experts;
        /* Few row blocks, of many columns: from 5 / 4 of an expert on, if single ones go in pairs, too. */
        if (TAIL == 0 && a->split_flags && !(b.tiles & 1) && b.s.block[a->experts] < (int)gridDim.x)
            b.clustered |= 4 * b.s.block[a->experts] >= 5 * a->experts;
        if (t < STAGES) {
            moek_mbar_init_(b.empty + t, 8 << b.clustered);                /* warps, of both blocks */
            moek_mbar_init_fence_();
        }
        if (b.clustered) moek_cluster_barrier_();
        else __syncthreads();

        if (t < 128) {
            /* A tile that two blocks share: it is a while until both know the next. */
            b.ask = max(0, b.steps - 9);
            moek_registers_less_(56);
            if (t < 32 || (BLOCKED && t < 64 && !a->rows.order)) produce(p, &b);
            else if ((t < 32 + 32 * GATHER) & (a->rows.order != NULL)) gather(p, &b);  /* (&&: no better) */
            else if (t >= 96) schedule(p, &b);
            moek_cp_async_commit_();
            moek_cp_async_wait_(0);
        } else {
            consume(p, &b, pages + (t / 32 - 4) * PAGE);
        }
        if (b.clustered) moek_cluster_barrier_();             /* the other block may still write here */
    }
#else
    MOEK_DEVICE void run(const params *p) { (void)p; }
#endif
};

/* Launches one of these kernels, of `shared` bytes of shared memory.  args NULL: makes it ready. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_wide_(
    const void *args, moek_stream stream, int shared,
    void (*kernel)(typename moek_wide_<OP, M, N, STAGES, HIDDEN, Format>::params))
{
    typedef moek_wide_<OP, M, N, STAGES, HIDDEN, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    typename K::params p;
    moek_status status;
    if (!a) return MOEK_READY_SM90_(kernel, K::THREADS, shared);
    if (a->max_blocks < 1 || a->experts < 1) return MOEK_OK;
    if (a->experts > MOEK_SM90_EXPERTS) return MOEK_E_ARGUMENT;
    if (a->rows.order && (long long)a->a_rows * a->k * K::ELEMENT >= MOEK_GATHERED) return MOEK_E_ARGUMENT;
    if (a->k_offset && a->w.layout) return MOEK_E_ARGUMENT;
    if (K::UP && a->q && a->n_offset) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&p.a, a);
    moek_find_gemm_<Format>(&p.a, 1);
    p.over_div = moek_fastdiv_of_(a->rows.order ? a->rows.div : 1);
    p.over_tiles = moek_fastdiv_of_((a->n + (1 << K::column_bits(&p.a)) - 1) >> K::column_bits(&p.a));
    status = moek_weight_map_(&p.w, &p.a, K::ELEMENT, K::BOX, 0, 1);
    if (status == MOEK_OK) status = moek_weight_map_(&p.alone, &p.a, K::ELEMENT, K::BOX, 0, 0);
    if (status == MOEK_OK && !a->rows.order) status = moek_rows_map_(&p.rows[0], a, K::ELEMENT, K::AT_ONCE);
    if (K::TAIL > 0 && status == MOEK_OK && !a->rows.order)
        status = moek_rows_map_(&p.rows[K::TAIL > 0 ? 1 : 0], a, K::ELEMENT, K::TAIL);
    if (status != MOEK_OK) return status;
    return MOEK_LAUNCH_PAIRS_(kernel, (moek_multiprocessors_() + 1) / 2 * 2, K::THREADS, shared, stream, a->early, p);
}
#endif
