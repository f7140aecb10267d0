/* steps/sort_block.cuh -- slots by expert, stable, in one launch: a block an expert.
 *
 * Each block counts all ids below its own, which gives the place of its rows; where row blocks are asked for, it counts
 * by expert (in COPIES of shared counters, against queues at a hot one), which gives theirs.  Then each warp places the
 * slots of its own stretch, in slot order.  No block waits for another.  Three barriers: bound by latency for few
 * slots, later by experts * slots id loads from L2.  It wins until those take longer than two more launches, some
 * 100 000 slots.  Without row blocks there are two kernels more: up to 1024 slots, one barrier behind the ids
 * (run_few); up to MOEK_SORT_FEW, of few blocks (run_eights).
 */
#ifndef MOEK_STEPS_SORT_BLOCK_CUH
#define MOEK_STEPS_SORT_BLOCK_CUH
#include "../../include/moek/kernel/cuda.h"

template <int THREADS> struct moek_sort_block_ {
    enum { WARPS = THREADS / 32, COPIES = 4, STEP = 128 };

    /* Four ids from `slot` on; -1 for those at `end` and behind. */
    MOEK_DEVICE void load4(int32_t id[4], const int32_t *ids, int slot, int end, int aligned)
    {
        int j;
        if (aligned && slot + 4 <= end) {
            const int4 v = *(const int4 *)(ids + slot);
            id[0] = v.x; id[1] = v.y; id[2] = v.z; id[3] = v.w;
            return;
        }
        #pragma unroll
        for (j = 0; j < 4; j++) id[j] = slot + j < end ? ids[slot + j] : -1;
    }

    MOEK_DEVICE void run(const moek_sort_args a)
    {
        enum { DEPTH = 4, KEPT = 16 };
        const unsigned all = 0xffffffff;
        MOEK_SHARED_(int32_t, count);                                    /* [COPIES][experts] */
        __shared__ unsigned rows_before[WARPS], blocks_before[WARPS], own_of_warp[WARPS];

        const int e = blockIdx.x, tid = threadIdx.x, lane = tid % 32, warp = tid / 32, batched = a.rows_per_expert > 0;
        const int threads = blockDim.x, warps = threads / 32, marks = a.slot_row && e == 0;
        const int stretch = (a.slots + warps * STEP - 1) / (warps * STEP) * STEP;          /* of a warp: [begin, end) */
        const int begin = warp * stretch < a.slots ? warp * stretch : a.slots;
        const int end = begin + stretch < a.slots ? begin + stretch : a.slots;
        const int aligned = ((size_t)a.ids & 15) == 0;
        const int keeps = stretch <= (int)KEPT * STEP && !marks;
        int32_t *const my_count = count + lane % COPIES * a.experts;
        uint64_t hits = 0;                             /* keeps: four bits a step, which ids are this block's */
        int32_t id[DEPTH][4];
        const int lists = a.block_expert != NULL;                        /* row blocks are asked for */
        unsigned own = 0, rows = 0, blocks = 0, first_row, first_block, rank, total;
        int slot, d, j, i;
        moek_grid_go_();
        if (a.early == 2) moek_grid_wait_();
        for (i = e * threads + tid; i < a.zeros; i += gridDim.x * threads) a.zero[i] = 0;

        /* 1. How many slots has each expert below mine, how many have I? */
        for (i = tid; lists && i < COPIES * a.experts; i += threads) count[i] = 0;
        __syncthreads();
        for (slot = begin; slot < end; slot += (int)DEPTH * STEP) {
            #pragma unroll
            for (d = 0; d < DEPTH; d++)
                load4(id[d], a.ids, slot + d * STEP + 4 * lane, end, aligned);
            #pragma unroll
            for (d = 0; d < DEPTH; d++) {
                unsigned m = 0;
                #pragma unroll
                for (j = 0; j < 4; j++) {
                    const int below = (uint32_t)id[d][j] < (uint32_t)e;
                    m |= (unsigned)(id[d][j] == e) << j;
                    if (lists) { if (below) atomicAdd(&my_count[id[d][j]], 1); }
                    else rows += below;
                }
                own += __popc(m);
                if (keeps) hits |= (uint64_t)m << ((slot - begin) / (STEP / 4) + 4 * d);
            }
        }
        own = __reduce_add_sync(all, own);
        __syncthreads();

        /* 2. My first row, my first row block, and my warp's first rank. */
        for (i = tid; lists && i < e; i += threads) {
            unsigned n = 0;
            for (j = 0; j < COPIES; j++) n += count[j * a.experts + i];
            rows += n;
            blocks += (n + a.block_m - 1) / a.block_m;
        }
        rows = __reduce_add_sync(all, rows);
        blocks = __reduce_add_sync(all, blocks);
        if (lane == 0) {
            rows_before[warp] = rows;
            blocks_before[warp] = blocks;
            own_of_warp[warp] = own;
        }
        __syncthreads();
        first_row = __reduce_add_sync(all, lane < warps ? rows_before[lane] : 0u);
        first_block = __reduce_add_sync(all, lane < warps ? blocks_before[lane] : 0u);
        total = __reduce_add_sync(all, lane < warps ? own_of_warp[lane] : 0u);
        rank = __reduce_add_sync(all, lane < warp ? own_of_warp[lane] : 0u);

        if (batched) {
            if (tid == 0) a.counts[e] = total < (unsigned)a.rows_per_expert ? total : a.rows_per_expert;
        } else {
            const int n = lists ? (int)(total + a.block_m - 1) / a.block_m : 0;
            for (i = tid; i < n; i += threads) {
                a.block_expert[first_block + i] = e;
                a.block_row[first_block + i] = first_row + i * a.block_m;
            }
            if (tid == 0) {
                a.counts[e] = total;
                a.offsets[e] = first_row;
                if (e == a.experts - 1) {
                    a.offsets[a.experts] = first_row + total;
                    if (lists) a.num_blocks[0] = first_block + n;
                }
            }
        }

        /* 3. Place them.  Slots of nobody are expert 0's to mark. */
        if (own == 0 && !marks) slot = end;
        else slot = begin;
        for (; slot < end; slot += STEP) {
            const int my_slot = slot + 4 * lane;
            unsigned m = (unsigned)hits & 15, next_rank = rank;
            hits >>= 4;
            if (!keeps) {
                load4(id[0], a.ids, my_slot, end, aligned);
                m = 0;
                #pragma unroll
                for (j = 0; j < 4; j++) {
                    m |= (unsigned)(id[0][j] == e) << j;
                    if (marks && my_slot + j < end && (uint32_t)id[0][j] >= (uint32_t)a.experts)
                        a.slot_row[my_slot + j] = -1;
                }
            }
            if (!__any_sync(all, m)) continue;
            #pragma unroll
            for (j = 0; j < 4; j++) {
                const unsigned votes = __ballot_sync(all, m >> j & 1);
                next_rank += __popc(votes & ((1u << lane) - 1));
                rank += __popc(votes);
            }
            #pragma unroll
            for (j = 0; j < 4; j++) {
                if (!(m >> j & 1)) continue;
                if (batched)
                    a.slot_row[my_slot + j] =
                        next_rank < (unsigned)a.rows_per_expert ? e * a.rows_per_expert + (int)next_rank : -1;
                else {
                    a.order[first_row + next_rank] = my_slot + j;
                    if (a.slot_row) a.slot_row[my_slot + j] = (int)(first_row + next_rank);
                }
                next_rank++;
            }
        }
        moek_grid_wait_();                             /* not done before those ahead are (moek/ops.h: early) */
    }

    /* Few slots, no row blocks: the row of a slot is the number of keys below its own, and the first row of an expert
     * the number below the expert's first key.  A block counts for 32 of them (of experts 31, and the next one), a lane
     * each; a warp among 32 keys. */
    MOEK_DEVICE void run_few(const moek_sort_args a)
    {
        enum { FEW = THREADS };
        __shared__ __align__(16) uint32_t keys[FEW];
        __shared__ unsigned below[32];
        const int tid = threadIdx.x, lane = tid % 32, slot = blockIdx.x * 32 + lane;
        const int block = (int)blockIdx.x - (a.slots + 31) / 32, e = block * 31 + lane;      /* block < 0: of slots */
        unsigned n = 0, next;
        uint32_t key;
        int id, i;
        if (tid < 32) below[tid] = 0;
        __syncthreads();
        moek_grid_go_();
        if (a.early == 2) moek_grid_wait_();
        for (i = blockIdx.x * blockDim.x + tid; i < a.zeros; i += gridDim.x * blockDim.x) a.zero[i] = 0;
        id = tid < a.slots ? a.ids[tid] : -1;
        key = block >= 0 ? e : slot < a.slots ? a.ids[slot] : -1;
        keys[tid] = (uint32_t)id < (uint32_t)a.experts ? (uint32_t)id * FEW + tid : 0xffffffff;
        if (block < 0 && key >= (uint32_t)a.experts) key = 0xffffffff;                               /* of nobody */
        else key = key * FEW + (block < 0 ? slot : 0);
        __syncwarp();
        #pragma unroll
        for (i = 0; i < 32; i += 4) {
            const moek_words_ k = moek_load_words_(&keys[tid - lane + i]);
            n += (k.w[0] < key) + (k.w[1] < key) + (k.w[2] < key) + (k.w[3] < key);
        }
        atomicAdd(&below[lane], n);
        __syncthreads();
        if (tid < 32) {
            n = below[lane];
            next = __shfl_down_sync(0xffffffff, n, 1);
            if (block < 0) {
                if (key != 0xffffffff) a.order[n] = slot;
                if (a.slot_row && slot < a.slots) a.slot_row[slot] = key != 0xffffffff ? (int)n : -1;
            } else if (lane < 31) {
                if (e <= a.experts) a.offsets[e] = n;
                if (e < a.experts) a.counts[e] = next - n;
            }
        }
        moek_grid_wait_();
    }

    /* The same where up starts beside it and no row blocks are asked for: few blocks, of 8 experts each, so that most
     * SMs are free.  A thread has `each` ids (up to 16) side by side, and sums over the threads before give the
     * places: of a thread 8 bits an expert, of more 16.  Short: its code comes from memory. */
    MOEK_DEVICE void run_eights(const moek_sort_args a)
    {
        enum { EXPERTS = 8, WORDS = 4 };
        const unsigned all = 0xffffffff, pair = 0x00ff00ff;
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, e0 = blockIdx.x * EXPERTS;
        const int each = (a.slots + THREADS * 4 - 1) / (THREADS * 4) * 4, first = tid * each;
        const int end = first + each < a.slots ? first + each : a.slots, aligned = ((size_t)a.ids & 15) == 0;
        __shared__ unsigned of_warp[WARPS][WORDS + 1];
        __shared__ int place[EXPERTS];
        unsigned n[WORDS], below = 0;                      /* experts 0, 2; 4, 6; 1, 3; 5, 7 */
        uint64_t counts = 0, before[2];
        int32_t id[4];
        int slot, i, j;
        moek_grid_go_();
        if (a.early == 2) moek_grid_wait_();
        for (i = blockIdx.x * THREADS + tid; i < a.zeros; i += gridDim.x * THREADS) a.zero[i] = 0;
        #pragma unroll 1
        for (slot = first; slot < end; slot += 4) {
            load4(id, a.ids, slot, end, aligned);
            #pragma unroll
            for (i = 0; i < 4; i++) {
                const unsigned expert = (unsigned)(id[i] - e0);
                below += (unsigned)id[i] < (unsigned)e0;
                if (expert < EXPERTS) counts += (uint64_t)1 << 8 * expert;
            }
        }
        for (j = 0; j < WORDS; j++) n[j] = (unsigned)(counts >> 32 * (j % 2)) >> 8 * (j / 2) & pair;
        below = __reduce_add_sync(all, below);
        #pragma unroll 1
        for (i = 1; i < 32; i *= 2)
            #pragma unroll
            for (j = 0; j < WORDS; j++) {
                const unsigned more = __shfl_up_sync(all, n[j], i);
                if (lane >= i) n[j] += more;
            }
        if (lane == 31) {
            for (j = 0; j < WORDS; j++) of_warp[warp][j] = n[j];
            of_warp[warp][WORDS] = below;
        }
        __syncthreads();
        #pragma unroll
        for (j = 0; j < WORDS; j++)
            n[j] += __reduce_add_sync(all, lane < warp ? of_warp[lane][j] : 0u) -
                    ((unsigned)(counts >> 32 * (j % 2)) >> 8 * (j / 2) & pair);
        if (warp == 0) {
            const int word = lane % 8 % 2 * 2 + lane % 8 / 4, e = e0 + lane;
            int rows = 0, first_row;
            #pragma unroll
            for (j = 0; j < WORDS; j++) {
                const unsigned sum = __reduce_add_sync(all, of_warp[lane][j]);
                if (j == word) rows = (int)(sum >> 16 * (lane % 4 / 2) & 0xffff);
            }
            first_row = rows;
            for (i = 1; i < EXPERTS; i *= 2) {
                const int more = __shfl_up_sync(all, first_row, i);
                if (lane >= i) first_row += more;
            }
            first_row += (int)__reduce_add_sync(all, of_warp[lane][WORDS]) - rows;
            if (lane < EXPERTS) {
                place[lane] = first_row;
                if (e < a.experts) {
                    a.counts[e] = rows;
                    a.offsets[e] = first_row;
                }
                if (e == a.experts - 1) a.offsets[e + 1] = first_row + rows;
            }
        }
        before[0] = (uint64_t)n[1] << 32 | n[0];
        before[1] = (uint64_t)n[3] << 32 | n[2];
        counts = 0;
        __syncthreads();
        #pragma unroll 1
        for (slot = first; slot < end; slot += 4) {
            load4(id, a.ids, slot, end, aligned);
            #pragma unroll
            for (i = 0; i < 4; i++) {
                const unsigned expert = (unsigned)(id[i] - e0);
                if (expert >= EXPERTS || id[i] >= a.experts) continue;
                a.order[place[expert] + (int)((expert % 2 ? before[1] : before[0]) >> 16 * (expert / 2) & 0xffff) +
                        (int)(counts >> 8 * expert & 0xff)] = slot + i;
                counts += (uint64_t)1 << 8 * expert;
            }
        }
        moek_grid_wait_();                             /* not done before those ahead are (moek/ops.h: early) */
    }
};

/* Launches such kernels.  args NULL: makes them ready. */
template <int THREADS>
static MOEK_UNUSED moek_status moek_launch_sort_block_(const void *args, moek_stream stream,
                                                       void (*kernel)(moek_sort_args),
                                                       void (*few_kernel)(moek_sort_args),
                                                       void (*eights_kernel)(moek_sort_args))
{
    typedef moek_sort_block_<THREADS> K;
    enum { AT_ONCE = 512, LEAST = 128, FEW = 256, MOST = THREADS };
    const moek_sort_args *const a = (const moek_sort_args *)args;
    int threads, most;
    if (!a) {
        const moek_status few = MOEK_READY_(few_kernel, 0), eights = MOEK_READY_(eights_kernel, 0);
        return few != MOEK_OK ? few : eights != MOEK_OK ? eights : MOEK_READY_(kernel, 0);
    }
    if (a->experts < 1) return MOEK_OK;
    if (a->slots <= MOST && !a->block_expert && !a->rows_per_expert)
        return MOEK_CHAIN_(few_kernel, dim3((a->slots + 31) / 32 + (a->experts + 31) / 31),
                           a->slots < 1 ? 32 : (a->slots + 31) / 32 * 32, 0, stream, a->early, *a);
    if (!a->block_expert && !a->slot_row && !a->rows_per_expert && a->slots <= MOEK_SORT_FEW)
        return MOEK_CHAIN_(eights_kernel, (a->experts + 7) / 8, THREADS, 0, stream, a->early, *a);
    threads = (a->slots + K::STEP - 1) / K::STEP * 32;               /* a step a warp, as long as they are few */
    most = (a->slots + AT_ONCE - 1) / AT_ONCE * 32;                  /* then the DEPTH steps that it has on their way */
    most = most < FEW ? FEW : most > MOST ? MOST : most;
    threads = threads < LEAST ? LEAST : threads > most ? most : threads;
    return MOEK_CHAIN_(kernel, a->experts, threads, K::COPIES * 4 * a->experts, stream, a->early, *a);
}
#endif
