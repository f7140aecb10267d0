/* layer/decode.cuh -- what kernels of a whole layer of one to eight tokens have in common, layer/mma.cuh and
 * layer/fragments.cuh: which experts are in use, and sums of the warps in pages of shared memory.  A slot is a lane. */
#ifndef MOEK_LAYER_DECODE_CUH
#define MOEK_LAYER_DECODE_CUH
#include "../../include/moek/kernel/cuda.h"
#include "../../include/moek/kernel/decode_smem.h"

/* Of a slot: is its expert one of the layer's; the slots before this one, those with the same expert, and those that
 * name an expert first. */
struct moek_slot_ { int in; unsigned before, same, leaders; };

/* The experts in use, in the order of their first slots.  id: of this lane's slot; in: is the slot's expert one of the
 * layer's?  list: of this warp; *used: how many; *mine: lane d has the d-th of them. */
MOEK_DEVICE moek_slot_ moek_experts_in_use_(int lane, int in, int id, int *list, int *used, int *mine)
{
    moek_slot_ slot;
    int leads;
    slot.in = in;
    slot.before = (1u << lane) - 1;
    slot.same = __match_any_sync(0xffffffff, slot.in ? id : -1);
    leads = slot.in && !(slot.same & slot.before);
    slot.leaders = __ballot_sync(0xffffffff, leads);
    *used = __popc(slot.leaders);
    if (leads) list[__popc(slot.leaders & slot.before)] = id;
    __syncwarp();
    *mine = list[min(lane, max(*used - 1, 0))];
    return slot;
}
/* Behind that, by one warp: slots and weights of pairs, which are  TOKENS * expert in use + token. */
template <int TOKENS>
MOEK_DEVICE void moek_find_pairs_(moek_slot_ slot, int lane, int topk, float weight, int *slot_of, int *pair_of,
                                  float *weight_of)
{
    const int leader = __popc(slot.leaders & ((1u << (__ffs(slot.same) - 1)) - 1));
    const int pair = slot.in ? TOKENS * leader + lane / topk : -1;
    const unsigned all_same = __match_any_sync(0xffffffff, pair);
    int i;
    if (__any_sync(0xffffffff, slot.in && all_same & slot.before)) {           /* a token names an expert twice */
        float weights = 0;
        #pragma unroll 1
        for (i = 0; i < MOEK_DECODE_SLOTS; i++) {
            const float other = __shfl_sync(0xffffffff, weight, i);
            if (all_same >> i & 1) weights += other;
        }
        weight = weights;
    }
    if (slot.in && !(all_same & slot.before)) { slot_of[pair] = lane; weight_of[pair] = weight; }
    pair_of[lane] = slot.in && !(all_same & slot.before) ? pair : -1;
}

/* What WARPS warps have put in pages for items [from, until) of the block's, in the order of k: warp w `pitch` floats
 * behind warp w - 1, if it has such an item.  All lanes of a warp come here together, each for one of the sums of a
 * page: BY_LANE of number `lane`, else of the one that pages points to. */
template <int WARPS, int BY_LANE>
MOEK_DEVICE float moek_sum_of_pages_(const float *pages, const int pitch, int from, int until, int all)
{
    const int lane = threadIdx.x % 32, begin = all * lane / WARPS, end = all * (lane + 1) / WARPS;
    const unsigned warps = __ballot_sync(0xffffffff, lane < WARPS && max(begin, from) < min(end, until));
    float sum = 0, x[WARPS];
    int w;
    #pragma unroll
    for (w = 0; w < WARPS; w++) x[w] = pages[w * pitch + (BY_LANE ? lane : 0)];        /* all at once, any warp's */
    #pragma unroll
    for (w = 0; w < WARPS; w++) sum = warps >> w & 1 ? sum + x[w] : sum;
    return sum;
}

/* 8 columns of x; zeros where there are none. */
MOEK_DEVICE moek_words_ moek_load_or_zeros_(const uint16_t *from)
{
    return from ? moek_load_relaxed_(from) : moek_zero_words_();
}
/* By a block, of which this is thread t: memory of h for the next launch, zeros again. */
MOEK_DEVICE void moek_clear_next_h_(const moek_layer_args *a, int turn, int t, const int threads)
{
    int i;
    for (i = blockIdx.x * threads + t; i < MOEK_DECODE_H / 16; i += gridDim.x * threads)
        moek_store_words_(a->state->h[turn ^ 1] + i * 8, moek_zero_words_());
}

/* Makes a kernel ready, or launches it.  HOPPER: its code is for sm_90a. */
template <int HOPPER> static MOEK_UNUSED moek_status moek_ready_layer_(const void *kernel, int threads, int bytes)
{
    if constexpr (HOPPER) return MOEK_READY_SM90_(kernel, threads, bytes);
    else return MOEK_READY_TOGETHER_(kernel, threads, bytes);
}
#define MOEK_LAUNCH_LAYER_(hopper, kernel, blocks, threads, bytes, stream, args) \
    ((hopper) ? MOEK_CHAIN_(kernel, blocks, threads, bytes, stream, 1, args) \
              : MOEK_LAUNCH_TOGETHER_(kernel, blocks, threads, bytes, stream, args))
#endif
