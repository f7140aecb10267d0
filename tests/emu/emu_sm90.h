/* emu_sm90.h -- what the emulator (emu.h) knows of Hopper: stands in for the PTX of moek/kernel/ptx_sm90.h.
 *
 * What a GPU does by itself happens late, at a moment that differs from run to run (moek_emu_seed), so that a wait that
 * is missing shows: a copy by TMA or a counted cp.async lands some rounds after it was asked for, one after another
 * where several are on their way; wgmma reads shared memory and writes its sums at the wait for it, no sooner.  Until
 * then what it will write is poison (NaN).  Now and then a thread dawdles in front of a wait, and others get ahead.
 * Generic and asynchronous writes are in one order here: a proxy fence that is missing does not show.
 * It stops with a sentence at a barrier that gets more arrivals than it counts or was never made, a copy to where it
 * may not go, operands that are not aligned, lanes of a warp that differ in theirs, a block that ends before its copies
 * have landed. */
#ifndef EMU_SM90_H
#define EMU_SM90_H
#ifndef EMU_H
#error "emu.h includes this"
#endif

EMU_STATE uint64_t moek_emu_seed = 1;
EMU_FN unsigned emu_random(unsigned below)
{
    moek_emu_seed = moek_emu_seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(moek_emu_seed >> 33) % below;
}

/* ---- what is on its way ------------------------------------------------------------------------------------------ */

struct emu_happening { int block, thread, group; std::function<void()> happens; };
typedef std::multimap<uint64_t, emu_happening> emu_happenings;        /* by the round in which it happens */
EMU_STATE emu_happenings emu_on_way;
EMU_STATE uint64_t emu_round;
/* This one, now: the one behind it. */
EMU_FN emu_happenings::iterator emu_happen(emu_happenings::iterator i)
{
    emu_enter(i->second.block);
    if (!emu_residents[emu_here].alive) emu_die("the block ended before its copies had landed");
    i->second.happens();
    return emu_on_way.erase(i);
}
EMU_FN int emu_happens_later(int nothing_runs)
{
    const size_t before = emu_on_way.size();
    emu_round++;
    while (!emu_on_way.empty() && (nothing_runs || emu_on_way.begin()->first <= emu_round)) {
        emu_happen(emu_on_way.begin());
        nothing_runs = 0;
    }
    return emu_on_way.size() != before;
}
/* thread: one that may wait for it, as for its cp.async up to a group. */
EMU_FN void emu_add_later(std::function<void()> happens, int thread = -1, int group = 0)
{
    const emu_happening h = { emu_here, thread, group, happens };
    emu_on_way.insert(std::make_pair(emu_round + 1 + emu_random(12), h));
}

/* ---- mbarrier ---------------------------------------------------------------------------------------------------- */

/* In its 8 bytes: bytes that are still to come, arrivals too, of how many, and which phase it is in. */
struct emu_mbar { int32_t bytes; uint16_t left, of : 15, phase : 1; };
static_assert(sizeof(emu_mbar) == 8, "an mbarrier has 8 bytes");
EMU_FN emu_mbar *emu_mbar_at(const void *bar)
{
    emu_mbar *const b = (emu_mbar *)(uintptr_t)bar;
    if ((uintptr_t)bar % 8 || b->left > b->of || !b->of) emu_die("not an mbarrier");
    return b;
}
EMU_FN int emu_mbar_ended(const uint64_t *bar, uint32_t parity) { return emu_mbar_at(bar)->phase != parity % 2; }
EMU_FN void emu_mbar_count(void *bar, int arrivals, int bytes)
{
    emu_mbar *const b = emu_mbar_at(bar);
    b->bytes += bytes;
    if (arrivals > b->left) emu_die("more arrivals than the mbarrier counts");
    if (b->bytes >= 1 << 20 || b->bytes <= -(1 << 20)) emu_die("more bytes than an mbarrier can count");
    b->left = (uint16_t)(b->left - arrivals);
    if (b->left || b->bytes) return;
    b->left = b->of;
    b->phase ^= 1;
    emu_moves++;
}
/* Once in `of` times others are much faster than this thread. */
EMU_FN void emu_dawdle(unsigned of, unsigned most)
{
    unsigned rounds;
    if (emu_random(of)) return;
    for (rounds = emu_random(most); rounds > 0; rounds--) emu_let_others(EMU_PAUSES);
}
EMU_FN void moek_mbar_init_(uint64_t *bar, int arrivals)
{
    emu_mbar b = { 0, (uint16_t)arrivals, (uint16_t)arrivals, 0 };
    if (arrivals < 1 || arrivals > 32767) emu_die("an mbarrier of so many arrivals");
    memcpy(bar, &b, 8);
}
EMU_FN void moek_mbar_init_fence_(void) {}
EMU_FN void moek_mbar_arrive_(uint64_t *bar) { emu_mbar_count(bar, 1, 0); }
EMU_FN void moek_mbar_arrive_expect_(uint64_t *bar, int bytes)
{
    emu_mbar_count(bar, 0, bytes);
    emu_mbar_count(bar, 1, 0);
}
EMU_FN void moek_mbar_wait_(uint64_t *bar, uint32_t parity)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    emu_dawdle(1024, 256);
    if (emu_mbar_ended(bar, parity)) return;
    me->state = EMU_AT_MBARRIER, me->mbarrier = bar, me->parity = parity;
    emu_yield();
}
EMU_FN void moek_mbar_arrive_copied_(uint64_t *bar)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    const std::vector<emu_copy> copies(me->copies, me->copies + me->copies_count);
    me->copies_count = 0;
    emu_add_later([=] {
        for (const emu_copy &c : copies) emu_land(&c);
        emu_mbar_count(bar, 1, 0);
    }, emu_now, me->groups);
}
/* Copies of a thread before group `until`, now: the thread waits for them. */
EMU_FN void emu_land_counted(int thread, int until)
{
    for (emu_happenings::iterator i = emu_on_way.begin(); i != emu_on_way.end();)
        i = i->second.block == emu_here && i->second.thread == thread && i->second.group < until ? emu_happen(i)
                                                                                                : std::next(i);
}
EMU_FN void moek_proxy_fence_(void) {}

/* ---- shared memory by number: a byte of a block's; above bit 24, which block of the cluster ---------------------- */

EMU_FN uint32_t emu_rank(void) { return blockIdx.x % 2; }
EMU_FN uint32_t moek_shared_address_(const void *p)
{
    const ptrdiff_t at = (const char *)p - emu_shared;
    if (at < 0 || at >= EMU_SHARED) emu_die("the address of what is not in dynamic shared memory");
    return (uint32_t)at;
}
/* Of a cluster of two: where `at` lies in block `rank`. */
EMU_FN char *emu_in_cluster(uint32_t at, uint32_t rank)
{
    const int block = emu_here / 2 * 2 + (int)rank;
    if (block >= emu_here_count) emu_die("a block of a cluster that is not there");
    return emu_residents[block].shared + at;
}
EMU_FN uint32_t moek_cluster_address_(uint64_t *bar, int clustered)
{
    return moek_shared_address_(bar) | (clustered ? threadIdx.x % 2 : emu_rank()) << 24;
}
EMU_FN void moek_mbar_arrive_cluster_(uint32_t at, int clustered)
{
    emu_meet(EMU_SYNCWARP, 0xffffffff, __LINE__);
    if ((int)(threadIdx.x % 32) <= clustered) emu_mbar_count(emu_in_cluster(at & 0xffffff, at >> 24), 1, 0);
}
EMU_FN void moek_st_async_peer_(int32_t *to, int32_t x, uint64_t *bar)
{
    char *const there = emu_in_cluster(moek_shared_address_(to), emu_rank() ^ 1);
    char *const counter = emu_in_cluster(moek_shared_address_(bar), emu_rank() ^ 1);
    emu_add_later([=] { memcpy(there, &x, 4); emu_mbar_count(counter, 0, -4); });
}
EMU_FN void moek_cluster_barrier_(void)
{
    const int first = emu_here / 2 * 2;
    int i, k;
    emu_fibres[emu_now].state = EMU_AT_CLUSTER;
    for (k = first; k < first + 2 && k < emu_here_count; k++)
        for (i = 0; i < emu_count; i++)
            if (emu_residents[k].fibres[i].state != EMU_AT_CLUSTER) { emu_yield(); return; }
    for (k = first; k < first + 2 && k < emu_here_count; k++)
        for (i = 0; i < emu_count; i++) emu_residents[k].fibres[i].state = EMU_RUNS;
    emu_moves++;
}
EMU_FN void emu_bar(int id, int threads, int waits)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    int *const arrived = &emu_residents[emu_here].arrived[id & 15];
    int i;
    if (id < 1 || id > 15 || threads % 32 || threads > emu_count) emu_die("bar.sync: a wrong number");
    if (++*arrived < threads) {
        if (!waits) return;
        me->state = EMU_AT_BAR, me->bar = id;
        emu_yield();
        return;
    }
    *arrived = 0;
    emu_moves++;
    for (i = 0; i < emu_count; i++)
        if (emu_fibres[i].state == EMU_AT_BAR && emu_fibres[i].bar == id) emu_fibres[i].state = EMU_RUNS;
}
EMU_FN void moek_named_wait_(int id, int threads) { emu_bar(id, threads, 1); }
EMU_FN void moek_named_arrive_(int id, int threads) { emu_bar(id, threads, 0); }

/* ---- TMA --------------------------------------------------------------------------------------------------------- */

struct __align__(64) CUtensorMap { uint64_t opaque[16]; };
struct emu_map { const char *base; uint64_t stride[5]; uint32_t size[5]; uint16_t box[5], element, rank; };
static_assert(sizeof(emu_map) <= sizeof(CUtensorMap), "a map has 128 bytes");

enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
/* As the driver does, it refuses what the manual of cuTensorMapEncodeTiled does not allow. */
EMU_FN CUresult emu_encode_tiled(CUtensorMap *to, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                 const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                 const cuuint32_t *step, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emu_map m;
    uint64_t bytes;
    cuuint32_t i;
    memset(&m, 0, sizeof m);
    m.base = (const char *)base, m.rank = (uint16_t)rank;
    m.element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
    if (rank < 1 || rank > 5 || (uintptr_t)base % 16 || box[0] * m.element % 16 || box[0] * m.element > 128)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0, bytes = m.element; i < rank; i++) {
        if (!size[i] || size[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || step[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (i && (stride[i - 1] % 16 || stride[i - 1] >= (uint64_t)1 << 40)) return CUDA_ERROR_INVALID_VALUE;
        m.size[i] = (uint32_t)size[i], m.box[i] = (uint16_t)box[i];
        m.stride[i] = i ? stride[i - 1] : m.element;
        bytes *= box[i];
    }
    if (bytes > (uint64_t)EMU_SHARED) return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, &m, sizeof m);
    return CUDA_SUCCESS;
}
#ifndef MOEK_EMU_CUDA                                  /* emu_cuda.h has a driver of its own */
EMU_FN void *moek_driver_function_(const char *name)
{
    return strcmp(name, "cuTensorMapEncodeTiled") ? NULL : (void *)emu_encode_tiled;
}
#endif

/* A place in shared memory, swizzled: bits 4 to 6 of it by bits 7 to 9. */
EMU_FN uint32_t emu_swizzled(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }
EMU_FN size_t emu_box_bytes(const emu_map *m)
{
    size_t bytes = m->element;
    for (int i = 0; i < m->rank; i++) bytes *= m->box[i];
    return bytes;
}
/* A box from there on, 16 bytes at a time, to byte `to` of `shared`.  0 lies outside. */
EMU_FN void emu_box(const emu_map *m, const int *at, char *shared, uint32_t to)
{
    const int elements = 16 / m->element, words = m->box[0] / elements;
    const uint32_t all = (uint32_t)(emu_box_bytes(m) / 16);
    for (uint32_t i = 0; i < all; i++) {
        const char *from = m->base;
        uint32_t rest = i / (uint32_t)words;
        int64_t x = at[0] + (int64_t)(i % (uint32_t)words) * elements;
        int e, d, outside = 0;
        char word[16];
        memset(word, 0, 16);
        for (d = 1; d < m->rank; d++) {
            const int64_t y = at[d] + (int64_t)(rest % m->box[d]);
            rest /= m->box[d];
            if (y < 0 || y >= (int64_t)m->size[d]) outside = 1;
            else from += y * (int64_t)m->stride[d];
        }
        for (e = 0; e < elements && !outside; e++, x++)
            if (x >= 0 && x < (int64_t)m->size[0])
                memcpy(word + e * m->element, from + x * m->element, m->element);
        memcpy(shared + emu_swizzled(to + 16 * i), word, 16);
    }
}
EMU_FN void emu_tma(void *to, const CUtensorMap *map, uint64_t *bar, int rank, int both, const int *at)
{
    emu_map m;
    const uint32_t there = moek_shared_address_(to), counter = moek_shared_address_(bar);
    const std::vector<int> from(at, at + rank);
    uint32_t block;
    memcpy(&m, map, sizeof m);
    if (m.rank != rank) emu_die("TMA: a map of other dimensions");
    if (there % 128 || there + emu_box_bytes(&m) > (size_t)EMU_SHARED) emu_die("TMA: to where it may not go");
    for (block = both ? 0 : emu_rank(); block < 2 && (both || block == emu_rank()); block++) {
        char *const mine = both ? emu_in_cluster(0, block) : emu_shared;
        memset(mine + there, EMU_POISON, emu_box_bytes(&m));
        emu_add_later([=] {
            emu_box(&m, from.data(), mine, there);
            emu_mbar_count(mine + counter, 0, -(int)emu_box_bytes(&m));
        });
    }
}
EMU_FN void moek_tma_once_(void *to, const CUtensorMap *map, uint64_t *bar, uint64_t, int k, int second, int third,
                           int expert)
{
    const int at[5] = { k, 0, second, third, expert };
    emu_tma(to, map, bar, 5, 0, at);
}
EMU_FN void moek_tma_shared_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int group, int expert)
{
    const int at[5] = { k, 0, group, 0, expert };
    emu_tma(to, map, bar, 5, 0, at);
}
EMU_FN void moek_tma_both_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int group, int expert)
{
    const int at[5] = { k, 0, group, 0, expert };
    emu_tma(to, map, bar, 5, 1, at);
}
EMU_FN void moek_tma_rows_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int row)
{
    const int at[2] = { k, row };
    emu_tma(to, map, bar, 2, 0, at);
}
EMU_FN void moek_bulk_(void *to, const void *from, int bytes, uint64_t *bar, uint64_t)
{
    char *const there = (char *)to, *const mine = emu_shared;
    const uint32_t counter = moek_shared_address_(bar);
    if (((uintptr_t)from | moek_shared_address_(to) | (uint32_t)bytes) % 16 || bytes < 16)
        emu_die("bulk copy: not aligned");
    if (moek_shared_address_(to) + (uint32_t)bytes > (uint32_t)EMU_SHARED) emu_die("bulk copy: to where it may not go");
    memset(there, EMU_POISON, (size_t)bytes);
    emu_add_later([=] {
        memcpy(there, from, (size_t)bytes);
        emu_mbar_count(mine + counter, 0, -bytes);
    });
}
/* Always the same lane, but which is not said: nothing may lean on the first. */
EMU_FN int moek_elect_(void) { __syncwarp(); return threadIdx.x % 32 == (moek_emu_backwards ? 21 : 0); }
EMU_FN void moek_tma_prefetch_map_(const CUtensorMap *) {}
EMU_FN uint64_t moek_evict_first_(void) { return 0; }
EMU_FN uint64_t moek_evict_normal_(void) { return 0; }
EMU_FN void moek_store_kept_(void *to, uint2 v) { memcpy(to, &v, 8); }
#define moek_store_words_kept_ moek_store_words_

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

/* word: EMU_MMA_BF16, EMU_MMA_FP16, EMU_MMA_S8 (d: of int32_t); 0: e4m3.  registers: a is there, else in shared memory.
 * before: the sums it begins with, if it is the `first` to change them. */
struct emu_wgmma { void *d; uint64_t a, b; int n, word, add, group, first, of_registers; uint32_t registers[4];
                   float before[128]; };

EMU_FN uint64_t moek_wgmma_operand_(const void *p) { return moek_shared_address_(p) >> 4 | (uint64_t)64 << 32; }
EMU_FN void moek_wgmma_fence_(void) {}
EMU_FN void moek_wgmma_commit_(void) { emu_fibres[emu_now].wgmma_groups++; }
/* Number i of a thread: its sums are poison until it is done, unless an earlier one on its way is to leave them. */
EMU_FN void emu_wgmma_hold(emu_fibre *f, int i)
{
    emu_wgmma *const op = &f->wgmmas[i];
    const size_t bytes = (size_t)op->n / 2 * 4;
    int j;
    for (j = 0; j < i; j++) if (f->wgmmas[j].d == op->d) return;
    if (op->first) return;
    op->first = 1;
    memcpy(op->before, op->d, bytes);
    memset(op->d, op->word == EMU_MMA_S8 ? 0x5a : 0xff, bytes);        /* (no s32 is a NaN) */
}
EMU_FN emu_wgmma *emu_wgmma_add(void *d, int n, const char *kind, uint64_t a, uint64_t b, int add)
{
    enum { MOST = 64 };
    emu_fibre *const me = &emu_fibres[emu_now];
    emu_wgmma *op;
    if (!me->wgmmas) me->wgmmas = (emu_wgmma *)malloc(MOST * sizeof *me->wgmmas);
    if (!me->wgmmas || me->wgmmas_count == MOST) emu_die("more than 64 wgmma on their way");
    op = &me->wgmmas[me->wgmmas_count++];
    op->d = d, op->a = a, op->b = b, op->n = n, op->add = add, op->group = me->wgmma_groups, op->first = 0;
    op->of_registers = 0;
    op->word = strstr(kind, "e4m3") ? 0 : strstr(kind, "s8") ? EMU_MMA_S8
             : strstr(kind, "bf16") ? EMU_MMA_BF16 : EMU_MMA_FP16;
    emu_wgmma_hold(me, me->wgmmas_count - 1);
    return op;
}
EMU_FN void emu_wgmma_issue(void *d, int n, const char *kind, uint64_t a, uint64_t b, int add)
{
    emu_wgmma_add(d, n, kind, a, b, add);
}
EMU_FN void emu_wgmma_issue_of_registers(void *d, int n, const char *kind, const uint32_t a[4], uint64_t b, int add)
{
    emu_wgmma *const op = emu_wgmma_add(d, n, kind, 0, b, add);
    op->of_registers = 1;
    memcpy(op->registers, a, 16);
}
/* 32 bytes of k -> to[k * pitch] */
EMU_FN void emu_wgmma_decode(float *to, int pitch, const unsigned char *bytes, int word)
{
    const float *const e4m3 = emu_all_e4m3();
    uint16_t t;
    if (!word)
        for (int k = 0; k < 32; k++) to[k * pitch] = e4m3[bytes[k]];
    else if (word == EMU_MMA_S8)
        for (int k = 0; k < 32; k++) to[k * pitch] = (int8_t)bytes[k];
    else {
        const float *const fp16 = word == EMU_MMA_FP16 ? emu_all_fp16() : NULL;
        for (int k = 0; k < 16; k++) {
            memcpy(&t, bytes + 2 * k, 2);
            to[k * pitch] = emu_half(fp16, t);
        }
    }
}
/* rows of 32 bytes of k from `operand` on -> to[k][pitch] */
EMU_FN void emu_wgmma_load(float *to, int pitch, uint64_t operand, int first, int rows, int word)
{
    const uint32_t from = (uint32_t)operand << 4;
    if (operand >> 32 != 64) emu_die("wgmma: an operand that is none");
    for (int r = 0; r < rows; r++) {
        const int row = first + r;
        const uint32_t at = emu_swizzled(from + (uint32_t)(row / 8 * 1024 + row % 8 * 128));
        const uint32_t next = emu_swizzled(from + (uint32_t)(row / 8 * 1024 + row % 8 * 128 + 16));
        unsigned char bytes[32];
        if ((at > next ? at : next) + 16 > (uint32_t)EMU_SHARED) emu_die("wgmma: an operand outside of shared memory");
        memcpy(bytes, emu_shared + at, 16);
        memcpy(bytes + 16, emu_shared + next, 16);
        emu_wgmma_decode(to + r, pitch, bytes, word);
    }
}
/* The same of 16 rows, in the registers of a warp: a lane has 4 bytes of k of row g, of row g + 8, and those 16 bytes
 * on. */
EMU_FN void emu_wgmma_gather(float *to, int pitch, const emu_fibre *warp, int which, int word)
{
    for (int r = 0; r < 16; r++) {
        unsigned char bytes[32];
        for (int i = 0; i < 8; i++)
            memcpy(bytes + 4 * i, &warp[r % 8 * 4 + i % 4].wgmmas[which].registers[i / 4 * 2 + r / 8], 4);
        emu_wgmma_decode(to + r, pitch, bytes, word);
    }
}
/* 16 of the 64 rows, by one warp. */
EMU_FN void emu_wgmma_one(emu_fibre *warp, int which)
{
    const emu_wgmma *const op = &warp[0].wgmmas[which];
    const int first = (int)((warp - emu_fibres) / 32 % 4) * 16, steps = op->word && op->word != EMU_MMA_S8 ? 16 : 32;
    static __align__(16) float a[32][16], b[32][256];
    for (int lane = 0; lane < 32; lane++) {
        const emu_wgmma *const other = &warp[lane].wgmmas[which];
        if (warp[lane].wgmmas_count != warp[0].wgmmas_count || other->a != op->a || other->b != op->b ||
            other->n != op->n || other->add != op->add || other->group != op->group ||
            other->of_registers != op->of_registers)
            emu_die("wgmma: lanes of a warp differ");
        if (other->first) memcpy(other->d, other->before, (size_t)op->n / 2 * 4);
    }
    if (op->of_registers) emu_wgmma_gather(a[0], 16, warp, which, op->word);
    else emu_wgmma_load(a[0], 16, op->a, first, 16, op->word);
    emu_wgmma_load(b[0], 256, op->b, 0, op->n, op->word);
    for (int r = 0; r < 16; r++) {
        const emu_fibre *const lanes = warp + r % 8 * 4;               /* of this row: two columns of 8 each */
        for (int c = 0; c < op->n; c += 8) {
            float *d[4];
            emu_4 low = {0}, high = {0};
            for (int i = 0; i < 4; i++) d[i] = (float *)lanes[i].wgmmas[which].d + c / 2 + r / 8 * 2;
            if (op->add && op->word != EMU_MMA_S8) {
                low = (emu_4){ d[0][0], d[0][1], d[1][0], d[1][1] };
                high = (emu_4){ d[2][0], d[2][1], d[3][0], d[3][1] };
            }
            for (int k = 0; k < steps; k++) {
                low += *(const emu_4 *)&b[k][c] * a[k][r];
                high += *(const emu_4 *)&b[k][c + 4] * a[k][r];
            }
            if (op->word == EMU_MMA_S8) {          /* 32 products: a float holds their sum */
                for (int i = 0; i < 8; i++) {
                    uint32_t *const to = (uint32_t *)(void *)d[i / 2] + i % 2;
                    *to = (op->add ? *to : 0) + (uint32_t)(int32_t)(i < 4 ? low[i] : high[i - 4]);
                }
                continue;
            }
            for (int i = 0; i < 2; i++) {
                d[0][i] = low[i], d[1][i] = low[2 + i];
                d[2][i] = high[i], d[3][i] = high[2 + i];
            }
        }
    }
}
EMU_FN void emu_wgmma_work(emu_fibre *warp)
{
    const int until = warp[0].wgmma_groups - (int)warp[0].value;       /* groups before it are waited for */
    int done = 0, lane;
    while (done < warp[0].wgmmas_count && warp[0].wgmmas[done].group < until) emu_wgmma_one(warp, done++);
    if (!done) return;
    for (lane = 0; lane < 32; lane++) {
        emu_fibre *const f = &warp[lane];
        int i;
        f->wgmmas_count -= done;
        memmove(f->wgmmas, f->wgmmas + done, (size_t)f->wgmmas_count * sizeof *f->wgmmas);
        for (i = 0; i < f->wgmmas_count; i++) emu_wgmma_hold(f, i);
    }
}
EMU_FN void emu_wgmma_wait(int n, int line)
{
    if (emu_now % 32 == 0) emu_dawdle(4, 16);
    emu_fibres[emu_now].value = (uint64_t)n;
    emu_meet(EMU_WGMMA, 0xffffffff, line);
}
#define moek_wgmma_wait_(n) emu_wgmma_wait((n), __LINE__)
/* In place of the instruction, in functions that have d, a, b, add. */
#define moek_wgmma_(n, kind, ...) emu_wgmma_issue(d, n, kind, a, b, add)
#define moek_wgmma_of_registers_(n, kind, ...) emu_wgmma_issue_of_registers(d, n, kind, a, b, add)

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

/* setmaxnreg, by each warpgroup once: more than the block was launched with it would wait for without end. */
EMU_FN void emu_registers(int n)
{
    int *const of = emu_residents[emu_here].registers;
    const int groups = emu_count / 128, each = 65536 / emu_count / 8 * 8;
    int i, sum = 0;
    of[emu_now / 128] = n;
    for (i = 0; i < groups; i++) sum += of[i] ? of[i] : 24;            /* the least there is */
    if (n % 8 || sum > groups * each) emu_die("setmaxnreg: more registers than the block has");
}
#define moek_registers_more_(n) emu_registers(n)
#define moek_registers_less_(n) emu_registers(n)
#define moek_keep_(x) ((void)0)
#define moek_keep_s32_(x) ((void)0)
#define moek_keep_4_(a, b, c, d) ((void)0)
EMU_FN float moek_ex2_(float x) { return exp2f(x); }
EMU_FN uint32_t moek_transpose_(uint32_t two)
{
    const int lane = emu_now % 32, g = lane / 4, q = lane % 4;
    const uint32_t low = __shfl_sync(0xffffffff, two, 8 * q + g / 2);
    const uint32_t high = __shfl_sync(0xffffffff, two, 8 * q + 4 + g / 2);
    return (low >> 16 * (g % 2) & 0xffff) | (high >> 16 * (g % 2) << 16);
}
/* Lane 8 i + r points to row r of matrix i. */
EMU_FN void emu_stmatrix(void *shared, const uint32_t *r, int n, int transposed)
{
    const int lane = emu_now % 32;
    int i;
    if (lane < 8 * n && (uintptr_t)shared % 16) emu_die("stmatrix: not aligned");
    for (i = 0; i < n; i++) {
        const uint32_t two = transposed ? moek_transpose_(r[i]) : r[i];
        const uintptr_t row = __shfl_sync(0xffffffff, (uintptr_t)shared, 8 * i + lane / 4);
        memcpy((char *)row + lane % 4 * 4, &two, 4);
    }
}
EMU_FN void moek_stmatrix4_(void *shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    const uint32_t r[4] = { r0, r1, r2, r3 };
    emu_stmatrix(shared, r, 4, 0);
}
EMU_FN void moek_stmatrix4_trans_(void *shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    const uint32_t r[4] = { r0, r1, r2, r3 };
    emu_stmatrix(shared, r, 4, 1);
}
EMU_FN void moek_stmatrix2_trans_(void *shared, uint32_t r0, uint32_t r1)
{
    const uint32_t r[2] = { r0, r1 };
    emu_stmatrix(shared, r, 2, 1);
}
EMU_FN int moek_flag_read_(const int32_t *flag)
{
    emu_let_others(EMU_POLLS);
    return *flag;
}
EMU_FN void moek_flag_add_(int32_t *flag) { ++*flag; }
EMU_FN int moek_flag_next_(int32_t *flag) { return (*flag)++; }
EMU_FN const void *moek_at_(const void *p, uint32_t n, uint32_t bytes) { return (const char *)p + (size_t)n * bytes; }
EMU_FN int moek_opaque_int_(int n) { return n; }
EMU_FN float moek_shared_float_(uint32_t at) { float f; memcpy(&f, emu_shared + at, 4); return f; }
EMU_FN void moek_shared_float2_(float f[2], uint32_t at) { memcpy(f, emu_shared + at, 8); }
#endif
