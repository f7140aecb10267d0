/* steps/map_simt.cuh -- logical expert ids -> ids on this rank: a thread a slot.
 *
 *   id -> replicas[id][hash(token) % replica_count[id]] -> load[id] += 1 -> map[id]
 *
 * Two or three dependent loads from small tables: bound by latency.  The lanes of a warp that have the same expert add
 * to its load once, together, so that a hot expert is not a queue.
 */
#ifndef MOEK_STEPS_MAP_SIMT_CUH
#define MOEK_STEPS_MAP_SIMT_CUH
#include "../../include/moek/kernel/cuda.h"

template <int THREADS> struct moek_map_simt_ {
    MOEK_DEVICE void run(const moek_map_args a)
    {
        enum { ALL = -1 };
        const int slots = a.tokens * a.topk, lane = threadIdx.x % 32;
        const int slot = blockIdx.x * THREADS + threadIdx.x;
        int32_t id = -1;

        if (slot < slots && a.ids64) {
            const int64_t wide = a.ids64[slot];
            a.given[slot] = id = wide >= 0 && wide < a.experts ? (int32_t)wide : -1;
        } else if (slot < slots) id = a.ids[slot];
        if (id < 0 || id >= a.experts || (a.is_padding && a.is_padding[slot / a.topk])) id = -1;
        if (id >= 0 && a.replicas) {
            const uint32_t hash = (uint32_t)(a.first + slot / a.topk) * 2654435769u;       /* spreads neighbours */
            const int32_t count = a.replica_count[id], *const replicas = a.replicas + (size_t)id * a.max_replicas;
            id = count < 1 || count > a.max_replicas ? -1 : replicas[hash % (uint32_t)count];
        }
        if (id >= a.physical) id = -1;
        if (a.load) {
            const uint32_t same = __match_any_sync((unsigned)ALL, id);
            if (id >= 0 && lane == __ffs(same) - 1)
                atomicAdd((unsigned long long *)&a.load[id], (unsigned long long)__popc(same));
        }
        if (slot < slots) a.out[slot] = id < 0 ? -1 : a.map ? a.map[id] : id;
    }
};

/* Launches such a kernel.  args NULL: makes it ready. */
template <int THREADS>
static MOEK_UNUSED moek_status moek_launch_map_simt_(const void *args, moek_stream stream,
                                                     void (*kernel)(moek_map_args))
{
    const moek_map_args *const a = (const moek_map_args *)args;
    if (!a) return MOEK_READY_(kernel, 0);
    if (a->tokens < 1 || a->topk < 1) return MOEK_OK;
    return MOEK_LAUNCH_(kernel, (a->tokens * a->topk + THREADS - 1) / THREADS, THREADS, 0, stream, *a);
}
#endif
