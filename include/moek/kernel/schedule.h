/* moek/kernel/schedule.h -- which tile a block of a persistent kernel takes: rows of experts cut into row blocks of m,
 * their tiles shared by all blocks of a launch, and the slots of few tokens sorted by the kernel itself. */
#ifndef MOEK_SCHEDULE_H
#define MOEK_SCHEDULE_H
#include "cuda.h"

enum { MOEK_SCHEDULE_EXPERTS = 1024 };                /* the most of a rank: MOEK_MAX_EXPERTS_ */

/* Before expert e: blocks of m rows, and rows.  In shared memory. */
typedef struct moek_schedule_ { int *block, *row; } moek_schedule_;

/* Does an expert with n rows have so few in its last block of m that the block before takes them along? */
MOEK_DEVICE int moek_has_tail_(int n, int m, int tail) { return tail && n > m && (n - 1) % m < tail; }

/* By all threads of the block (a multiple of 32, at most 736); ends with a barrier.  tail: the last block of an expert
 * may have up to so many rows more than m, if experts then have fewer than `most` blocks in all. */
MOEK_DEVICE moek_schedule_ moek_schedule_tails_(void *shared, const int32_t *counts, int experts, int m, int tail,
                                                int most)
{
    moek_schedule_ s;
    const int t = threadIdx.x, warps = blockDim.x / 32, lane = t % 32, each = (experts + blockDim.x - 1) / blockDim.x;
    int2 *const warp_sum = (int2 *)((int *)shared + 2 * (MOEK_SCHEDULE_EXPERTS + 1));
    int *const warp_long = (int *)(warp_sum + warps);
    int rows = 0, blocks = 0, longs = 0, i, by, my_rows, my_blocks, my_longs;      /* longs: blocks saved */
    s.block = (int *)shared;
    s.row = s.block + MOEK_SCHEDULE_EXPERTS + 1;
    for (i = t * each; i < t * each + each && i < experts; i++) {
        const int n = counts[i];
        s.row[i] = n;
        rows += n;
        blocks += (n + m - 1) / m;
        longs += moek_has_tail_(n, m, tail);
    }
    my_rows = rows; my_blocks = blocks; my_longs = longs;
    #pragma unroll
    for (by = 1; by < 32; by *= 2) {
        const int r = __shfl_up_sync(0xffffffff, rows, by), b = __shfl_up_sync(0xffffffff, blocks, by);
        const int l = tail ? __shfl_up_sync(0xffffffff, longs, by) : 0;
        if (lane >= by) { rows += r; blocks += b; longs += l; }
    }
    if (lane == 31) {
        warp_sum[t / 32] = make_int2(rows, blocks);
        if (tail) warp_long[t / 32] = longs;
    }
    __syncthreads();
    rows -= my_rows; blocks -= my_blocks; longs -= my_longs;
    {
        const int2 before = lane < warps && lane < t / 32 ? warp_sum[lane] : make_int2(0, 0);
        rows += __reduce_add_sync(0xffffffff, before.x);
        blocks += __reduce_add_sync(0xffffffff, before.y);
    }
    if (tail) {
        longs += __reduce_add_sync(0xffffffff, lane < t / 32 ? warp_long[lane] : 0);
        const int all = lane < warps ? warp_sum[lane].y - warp_long[lane] : 0;
        if (__reduce_add_sync(0xffffffff, all) < most) blocks -= longs;
        else tail = 0;
    }
    for (i = t * each; i < t * each + each && i < experts; i++) {
        const int n = s.row[i];
        s.row[i] = rows;
        s.block[i] = blocks;
        rows += n;
        blocks += (n + m - 1) / m - moek_has_tail_(n, m, tail);
        if (i == experts - 1) { s.row[experts] = rows; s.block[experts] = blocks; }
    }
    __syncthreads();
    return s;
}
MOEK_DEVICE moek_schedule_ moek_schedule_of_(void *shared, const int32_t *counts, int experts, int m)
{
    return moek_schedule_tails_(shared, counts, experts, m, 0, 0);
}

/* By all threads: ids of at most MOEK_SELF_SORT slots to shared memory (0xffff: nobody's), and how many of each. */
MOEK_DEVICE void moek_count_ids_(uint16_t *to, int *counts, const int32_t *ids, int slots, int experts)
{
    int32_t next = (int)threadIdx.x < slots ? ids[threadIdx.x] : -1;         /* on its way meanwhile */
    int i;
    for (i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (i = threadIdx.x; i < slots; i += blockDim.x) {
        const int32_t id = next;
        const int in = (uint32_t)id < (uint32_t)experts;
        to[i] = in ? (uint16_t)id : 0xffff;
        if (in) atomicAdd(&counts[id], 1);
        next = i + (int)blockDim.x < slots ? ids[i + blockDim.x] : -1;
    }
    __syncthreads();
}

/* By all threads: how many slots each expert has. */
MOEK_DEVICE void moek_tally_ids_(int *counts, const int32_t *ids, int slots, int experts)
{
    enum { DEPTH = 4 };
    const int aligned = ((size_t)ids & 15) == 0;
    int i, d;
    for (i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (i = 4 * threadIdx.x; i < slots; i += 4 * DEPTH * blockDim.x) {
        int4 id[DEPTH];
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            const int at = i + 4 * d * (int)blockDim.x;
            id[d] = make_int4(-1, -1, -1, -1);
            if (aligned && at + 4 <= slots) {
                id[d] = __ldcg((const int4 *)(ids + at));
            } else {
                if (at < slots) id[d].x = __ldcg(ids + at);
                if (at + 1 < slots) id[d].y = __ldcg(ids + at + 1);
                if (at + 2 < slots) id[d].z = __ldcg(ids + at + 2);
                if (at + 3 < slots) id[d].w = __ldcg(ids + at + 3);
            }
        }
        #pragma unroll
        for (d = 0; d < DEPTH; d++) {
            if ((uint32_t)id[d].x < (uint32_t)experts) atomicAdd(&counts[id[d].x], 1);
            if ((uint32_t)id[d].y < (uint32_t)experts) atomicAdd(&counts[id[d].y], 1);
            if ((uint32_t)id[d].z < (uint32_t)experts) atomicAdd(&counts[id[d].z], 1);
            if ((uint32_t)id[d].w < (uint32_t)experts) atomicAdd(&counts[id[d].w], 1);
        }
    }
    __syncthreads();
}

/* By a warp: the slots of expert e in their order, from number `first` on, at most m, each divided by `div`. */
MOEK_DEVICE void moek_slots_of_(int *list, const uint16_t *ids, int slots, int e, int first, int m, int div)
{
    const int lane = threadIdx.x % 32;
    int at = -first, i;
    __syncwarp();                                     /* the list before is no longer looked at */
    for (i = 0; i < slots && at < m; i += 32) {
        const int mine = i + lane < slots && ids[i + lane] == e;
        const unsigned all = __ballot_sync(0xffffffff, mine);
        const int my = at + __popc(all & ((1u << lane) - 1));
        if (mine && my >= 0 && my < m) list[my] = (i + lane) / div;
        at += __popc(all);
    }
    __syncwarp();
}

/* By a warp: all slots by expert, stable.  cursor: scratch, an int an expert. */
MOEK_DEVICE void moek_order_of_(uint16_t *order, int *cursor, const uint16_t *ids, int slots, const int *row,
                                int experts)
{
    const int lane = threadIdx.x % 32;
    int i;
    for (i = lane; i < experts; i += 32) cursor[i] = row[i];
    __syncwarp();
    for (i = 0; i < slots; i += 32) {
        const unsigned id = i + lane < slots ? ids[i + lane] : 0xffff;
        const unsigned same = __match_any_sync(0xffffffff, id), before = same & ((1u << lane) - 1);
        if (id != 0xffff) order[cursor[id] + __popc(before)] = (uint16_t)(i + lane);
        __syncwarp();
        if (id != 0xffff && !before) cursor[id] += __popc(same);
        __syncwarp();
    }
}

/* The same where each slot has a number among its expert's, `place`, in two steps with a barrier between, each
 * by `threads` threads, of which this is t.  First slots are listed by expert, in any order; 1: an expert has so many
 * that moek_order_of_ must do it.  Then each of the slots [from, until) gets its place: its rank among the slots of its
 * expert is counted, so they must be few. */
MOEK_DEVICE int moek_order_list_(const uint16_t *place, uint16_t *list, const uint16_t *ids, int slots, const int *row,
                                 int t, int threads)
{
    int i, alike = 0;
    for (i = t; i < slots; i += threads) {
        const int e = ids[i];
        if (e == 0xffff) continue;
        list[row[e] + place[i]] = (uint16_t)i;
        alike |= row[e + 1] - row[e] > 64;
    }
    return alike;
}
MOEK_DEVICE void moek_order_rank_(uint16_t *order, const uint16_t *list, const uint16_t *ids, int from, int until,
                                  const int *row, int t, int threads)
{
    int i, j;
    for (i = from + t; i < until; i += threads) {
        const int e = ids[i], first = e != 0xffff ? row[e] : 0, end = e != 0xffff ? row[e + 1] : 0;
        int before = 0;
        for (j = first; j < end; j++) before += list[j] < i;
        if (first < end) order[first + before] = (uint16_t)i;
    }
}

/* The expert of row block b, which is below s.block[experts]. */
MOEK_DEVICE int moek_schedule_find_(moek_schedule_ s, int experts, int b)
{
    int low = 0, high = experts;                      /* block[low] <= b < block[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (s.block[middle] <= b) low = middle;
        else high = middle;
    }
    return low;
}

/* ---- tiles, in parts as equal as can be -------------------------------------------------------------------------- */

/* Where a tile lies: expert, rows [row0, end), columns from j0 on; row block b, and which of its tiles. */
typedef struct moek_tile_ { int e, row0, end, j0, b, j; } moek_tile_;

/* A block's range of all tiles: tiles [tile, last), the first of them from stage first_step on, the last up to stage
 * last_step.  steps: stages of a tile; tiles: of a row block.  m >= 96: each so many tiles, whole ones. */
typedef struct moek_work_range_ {
    moek_schedule_ s;
    int steps, tiles, tile, last, first_step, last_step;
    int stride;                                        /* moek_stride_of_ */
} moek_work_range_;

/* Of row blocks of m rows.  at: the tile before, or e < 0. */
MOEK_DEVICE void moek_next_tile_(const moek_gemm_ *a, const moek_work_range_ *p, int tile, int m, int columns,
                                 moek_tile_ *at)
{
    int b, j, first;
    if (at->e < 0) {
        b = tile / p->tiles; j = tile % p->tiles;
        at->e = moek_schedule_find_(p->s, a->experts, b);
    } else {
        b = at->b; j = at->j + 1;
        if (j == p->tiles) { j = 0; b++; }
        while (b >= p->s.block[at->e + 1]) at->e++;
    }
    at->b = b; at->j = j;
    first = a->rows_per_expert ? at->e * a->rows_per_expert : p->s.row[at->e];
    at->row0 = first + (b - p->s.block[at->e]) * m;
    at->end = first + p->s.row[at->e + 1] - p->s.row[at->e];
    at->j0 = j * columns;
}
/* The same of any tile behind the one before: as if that was the last but one. */
MOEK_DEVICE void moek_tile_at_(const moek_gemm_ *a, const moek_work_range_ *p, int tile, int m, int columns,
                               moek_tile_ *at)
{
    if (at->e >= 0 && tile) {
        at->b = (tile - 1) / p->tiles;
        at->j = (tile - 1) % p->tiles;
    }
    moek_next_tile_(a, p, tile, m, columns, at);
}

/* The first stage of a block's range: all stages of all tiles in parts as equal as can be, one after the other.
 * Without scratch for sums, the first tile: their stages may be more than 32 bits count. */
MOEK_DEVICE unsigned moek_first_stage_of_(const moek_gemm_ *a, const moek_work_range_ *p, unsigned block)
{
    const unsigned all = (unsigned)p->s.block[a->experts] * p->tiles * (a->split ? p->steps : 1);
    const unsigned each = all / gridDim.x, more = all % gridDim.x;
    return each * block + (block < more ? block : more);
}

/* From a tile of a range to the next, with row blocks of m rows: tall ones go to blocks in turns. */
MOEK_DEVICE int moek_stride_of_(int m) { return m < 96 ? 1 : (int)gridDim.x; }

/* The number of a block's share of all stages.  falling (a constant): the last block has the first share.  (A parameter
 * in place of it would make the compiler order registers in another way.) */
#define MOEK_SHARE_(falling) ((falling) ? gridDim.x - 1 - blockIdx.x : blockIdx.x)

/* Schedule and range of the block, of which steps and tiles are known; by all threads, ends with a barrier.  ids:
 * [MOEK_SELF_SORT], where the block sorts.  counts: scratch, [MOEK_SCHEDULE_EXPERTS]; behind it comes the schedule.
 * Tall tiles go to blocks in turns, others in shares. */
MOEK_DEVICE void moek_work_range_of_(const moek_gemm_ *a, moek_work_range_ *p, uint16_t *ids, int *counts, int m,
                                      int up, int falling)
{
    void *const schedule = counts + MOEK_SCHEDULE_EXPERTS;
    unsigned begin, end;
    if (a->ids) {                                  /* older than the kernel before */
        moek_grid_go_();
        if (m < 128) moek_count_ids_(ids, counts, a->ids, a->slots, a->experts);
        else moek_tally_ids_(counts, a->ids, a->slots, a->experts);
        p->s = moek_schedule_of_(schedule, counts, a->experts, m);
    } else {
        if (up) moek_grid_wait_();                 /* the schedule is what the kernel before wrote */
        moek_grid_go_();                           /* down: it is older, the up row waited for it */
        p->s = moek_schedule_of_(schedule, a->rows.counts, a->experts, m);  /* ends with a barrier, as above */
    }
    p->stride = moek_stride_of_(m);
    if (m >= 96) {
        p->tile = (int)blockIdx.x; p->last = p->s.block[a->experts] * p->tiles;
        p->first_step = 0; p->last_step = p->steps;
        return;
    }
    begin = moek_first_stage_of_(a, p, MOEK_SHARE_(falling));
    end = moek_first_stage_of_(a, p, MOEK_SHARE_(falling) + 1);
    if (a->split) {
        p->tile = (int)(begin / p->steps); p->last = (int)((end + p->steps - 1) / p->steps);
        p->first_step = (int)(begin % p->steps); p->last_step = (int)end - (p->last - 1) * p->steps;
    } else {
        p->tile = (int)begin; p->last = (int)end;
        p->first_step = 0; p->last_step = p->steps;
    }
}

/* By a warp: sums of its 16 rows of w, times m rows of a, to out [rows][n] in T, from column j on.  A lane has columns
 * g and g + 8 (gated: g alone) of rows 2q and 2q + 1 of each 8 of a, and stores two columns of a row.  rows: where rows
 * of a go, or -1: such addresses go nowhere, and no branch stands between stores. */
MOEK_DEVICE void moek_store_turned_(const float *sum, int m, int gated, const int *rows, void *out, int n, int j,
                                    int dtype)
{
    const int lane = threadIdx.x % 32, g = lane / 4;
    const unsigned row_bytes = (unsigned)n * 2;
    unsigned char *const at = (unsigned char *)moek_opaque_ptr_((const unsigned char *)out +
                                                                (size_t)(j + lane % 4 * 2) * 2);
    int i;
    #pragma unroll
    for (i = 0; i < m / 8; i++) {
        const uint32_t low = moek_transpose_(moek_to_t2_(sum[4 * i], sum[4 * i + 1], dtype));
        const uint32_t high = gated ? 0 : moek_transpose_(moek_to_t2_(sum[4 * i + 2], sum[4 * i + 3], dtype));
        const int row = rows[8 * i + g];
        unsigned char *const to = at + (size_t)(uint32_t)row * row_bytes;
        if (row >= 0) *(uint32_t *)(void *)to = low;
        if (row >= 0 && !gated) *(uint32_t *)(void *)(to + 16) = high;
    }
}
#endif
