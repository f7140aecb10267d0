/* moek/kernel/ptx_sm90.h -- instructions that Hopper adds: mbarrier, TMA, wgmma, registers by warpgroup.
 *
 * wgmma needs code for sm_90a (ptx.h: MOEK_SM90_CODE_). */
#ifndef MOEK_PTX_SM90_H
#define MOEK_PTX_SM90_H
#include "cuda.h"
#ifndef MOEK_EMU
#include <cuda.h>
#endif

/* ---- TMA: the weights as a tensor of five dimensions, so that a box never reaches into another expert ------------ */

typedef CUresult (*moek_encode_tiled_)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                       const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                       CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill);

static MOEK_UNUSED moek_encode_tiled_ moek_find_encode_tiled_(void)
{
    return (moek_encode_tiled_)moek_driver_function_("cuTensorMapEncodeTiled");
}

/* Weights of a, whose halves are found.  Dimensions: k; row of 8; half (what lies first in memory of gate and up, then
 * the other; 1 if not gated) and group of 8 rows (of gate or up, w_step apart), in this order with `by_8`, else the
 * other way round; expert.  A box is 128 bytes of k by `rows` rows, swizzled by 128 bytes: gated, gate and up together,
 * 8 by 8, or half of them of what lies first, then of the other.  0 lies outside.  Tiled weights: k is below 128 bytes,
 * and an expert counts for as many as it has steps of that; a box is contiguous.  promote: L2 asks memory for 256 bytes
 * where a box has 128.  That is faster where blocks go in pairs or weights leave L2 first, else slower
 * (docs/notes: promotion-blocks-alone); tiled, it is not done. */
static MOEK_UNUSED moek_status moek_weight_map_(CUtensorMap *map, const moek_gemm_ *a, int element, int rows,
                                                int by_8, int promote)
{
    static const moek_encode_tiled_ encode = moek_find_encode_tiled_();
    const int gated = a->w_rows > a->n, halves = gated ? 2 : 1, half = by_8 ? 1 : 2, group = 3 - half;
    const moek_gate_up_ *const h = &a->gate_up;
    const cuuint64_t apart = (cuuint64_t)((uintptr_t)h->codes[1] - (uintptr_t)h->codes[0]);
    const cuuint64_t k = 128u / (cuuint32_t)element, steps = (cuuint64_t)a->k / k, w_rows = (cuuint64_t)a->w_rows;
    const cuuint64_t row = (cuuint64_t)a->k * (cuuint64_t)element, next = row * (cuuint64_t)h->step;
    const cuuint32_t one[5] = { 1, 1, 1, 1, 1 };
    cuuint64_t size[5] = { (cuuint64_t)a->k, 8, 0, 0, (cuuint64_t)a->experts };
    cuuint64_t stride[4] = { next, 0, 0, row * (cuuint64_t)h->rows };
    cuuint32_t box[5] = { (cuuint32_t)k, 8, 0, 0, 1 };
    size[1 + half] = (cuuint64_t)halves;
    size[1 + group] = ((cuuint64_t)a->n + 7) / 8;
    box[1 + half] = (cuuint32_t)halves;
    box[1 + group] = (cuuint32_t)(rows / halves / 8);
    stride[half] = gated ? apart : row * w_rows;
    stride[group] = 8 * next;
    if (a->w.layout) {
        size[0] = k;
        size[4] *= steps;
        stride[0] = 128;
        stride[half] = 1024;
        stride[group] = 1024 * (cuuint64_t)halves;
        stride[3] = 128 * w_rows;
    }
    if (!encode) return MOEK_E_CUDA;
    if (a->w.layout && (row % 128 || a->n % 8 || a->gate.codes)) return MOEK_E_ARGUMENT;
    if (gated && (apart % 16 || apart >> MOEK_SM90_APART)) return MOEK_E_ARGUMENT;
    return encode(map, element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 5,
                  (void *)h->codes[0], size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B,
                  promote && !a->w.layout ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
         ? MOEK_OK : MOEK_E_ARGUMENT;
}

/* Rows of a: a box is 128 bytes of k by `rows` rows, swizzled by 128 bytes.  0 lies outside. */
static MOEK_UNUSED moek_status moek_rows_map_(CUtensorMap *map, const moek_gemm_args *a, int element, int rows)
{
    static const moek_encode_tiled_ encode = moek_find_encode_tiled_();
    const cuuint64_t size[2] = { (cuuint64_t)a->k, (cuuint64_t)a->a_rows };
    const cuuint64_t stride = a->a_row_bytes ? (cuuint64_t)a->a_row_bytes : (cuuint64_t)a->k * (cuuint64_t)element;
    const cuuint32_t box[2] = { 128u / (cuuint32_t)element, (cuuint32_t)rows }, one[2] = { 1, 1 };
    if (!encode) return MOEK_E_CUDA;
    return encode(map, element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)a->a,
                  size, &stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
         ? MOEK_OK : MOEK_E_ARGUMENT;
}

#ifdef MOEK_SM90_CODE_
#ifndef MOEK_EMU                                      /* tests/emu/emu_sm90.h has them, too */
MOEK_DEVICE uint32_t moek_shared_address_(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* A box of a map of weights -> shared memory (aligned to 1024); `bar` counts the bytes.  second, third: where it begins
 * in the dimensions behind rows. */
MOEK_DEVICE void moek_tma_once_(void *to, const CUtensorMap *map, uint64_t *bar, uint64_t policy, int k, int second,
                                int third, int expert)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %7, %4, %5, %6}], [%2], %8;\n"
                 :: "r"(moek_shared_address_(to)), "l"(map), "r"(moek_shared_address_(bar)),
                    "r"(k), "r"(second), "r"(third), "r"(expert), "r"(0), "l"(policy) : "memory");
}
/* Of a map not by_8, weights that several row blocks read: no hint to L2.  Then: to both blocks of a
 * cluster, at the same place in each, where each one's `bar` counts the bytes. */
MOEK_DEVICE void moek_tma_shared_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int group, int expert)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %6, %4, %6, %5}], [%2];\n"
                 :: "r"(moek_shared_address_(to)), "l"(map), "r"(moek_shared_address_(bar)),
                    "r"(k), "r"(group), "r"(expert), "r"(0) : "memory");
}
MOEK_DEVICE void moek_tma_both_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int group, int expert)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %6, %4, %6, %5}], [%2], %7;\n"
                 :: "r"(moek_shared_address_(to)), "l"(map), "r"(moek_shared_address_(bar)),
                    "r"(k), "r"(group), "r"(expert), "r"(0), "h"((uint16_t)3) : "memory");
}
/* Rows of a, by moek_rows_map_. */
MOEK_DEVICE void moek_tma_rows_(void *to, const CUtensorMap *map, uint64_t *bar, int k, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];\n"
                 :: "r"(moek_shared_address_(to)), "l"(map), "r"(moek_shared_address_(bar)), "r"(k), "r"(row)
                 : "memory");
}
/* So many bytes, a multiple of 16, as they lie; to and from aligned to 16. */
MOEK_DEVICE void moek_bulk_(void *to, const void *from, int bytes, uint64_t *bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;\n"
                 :: "r"(moek_shared_address_(to)), "l"(from), "r"(bytes), "r"(moek_shared_address_(bar)), "l"(policy)
                 : "memory");
}
/* In one lane of a warp, which all its lanes ask: 1.  Behind this, unlike behind a comparison of lanes, the compiler
 * knows that a copy is asked for once, and needs no loop over lanes for its operands. */
MOEK_DEVICE int moek_elect_(void)
{
    int is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(is));
    return is;
}
MOEK_DEVICE void moek_tma_prefetch_map_(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];\n" :: "l"(map) : "memory");
}
/* L2: weights read once are the first to go. */
MOEK_DEVICE uint64_t moek_evict_first_(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}
/* Weights that other blocks read, too. */
MOEK_DEVICE uint64_t moek_evict_normal_(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}

/* Rows of y: the next kernel reads them and has them discarded, so what stays in L2 until then is never written to
 * memory.  All of them may be more than it holds: half of their lines are the last to go. */
MOEK_DEVICE uint64_t moek_evict_last_half_(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 0.5;\n" : "=l"(policy));
    return policy;
}
MOEK_DEVICE void moek_store_kept_(void *to, uint2 v)
{
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;\n"
                 :: "l"(to), "r"(v.x), "r"(v.y), "l"(moek_evict_last_half_()) : "memory");
}
MOEK_DEVICE void moek_store_words_kept_(void *to, moek_words_ v)
{
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;\n"
                 :: "l"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "l"(moek_evict_last_half_())
                 : "memory");
}

/* ---- mbarrier ---------------------------------------------------------------------------------------------------- */

MOEK_DEVICE void moek_mbar_init_(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n"
                 :: "r"(moek_shared_address_(bar)), "r"(arrivals) : "memory");
}
/* After the inits, before anyone uses them: for TMA, too. */
MOEK_DEVICE void moek_mbar_init_fence_(void) { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }
MOEK_DEVICE void moek_mbar_arrive_(uint64_t *bar)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }\n"
                 :: "r"(moek_shared_address_(bar)) : "memory");
}
/* The same barrier of both blocks of a cluster, or only this block's: `at` as moek_cluster_address_ of that barrier
 * says, or of one before it in memory, so many bytes on. */
MOEK_DEVICE uint32_t moek_cluster_address_(uint64_t *bar, int clustered)
{
    uint32_t at, mine;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(mine));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                 : "=r"(at) : "r"(moek_shared_address_(bar)), "r"(clustered ? threadIdx.x % 2 : mine));
    return at;
}
MOEK_DEVICE void moek_mbar_arrive_cluster_(uint32_t at, int clustered)
{
    /* What is released was read, not written: release at the scope of the cluster would cost a MEMBAR.GPU. */
    __syncwarp();
    if ((int)(threadIdx.x % 32) <= clustered)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" :: "r"(at) : "memory");
}
/* x to the same place in shared memory of the other block of a cluster, whose `bar` there counts the 4 bytes. */
MOEK_DEVICE void moek_st_async_peer_(int32_t *to, int32_t x, uint64_t *bar)
{
    asm volatile("{\n.reg .b32 other, at, counter;\n"
                 "mov.u32 other, %%cluster_ctarank;\n"
                 "xor.b32 other, other, 1;\n"
                 "mapa.shared::cluster.u32 at, %0, other;\n"
                 "mapa.shared::cluster.u32 counter, %2, other;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [at], %1, [counter];\n}\n"
                 :: "r"(moek_shared_address_(to)), "r"(x), "r"(moek_shared_address_(bar)) : "memory");
}
/* By all threads of both blocks of a cluster. */
MOEK_DEVICE void moek_cluster_barrier_(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
MOEK_DEVICE void moek_mbar_arrive_expect_(uint64_t *bar, int bytes)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }\n"
                 :: "r"(moek_shared_address_(bar)), "r"(bytes) : "memory");
}
MOEK_DEVICE void moek_mbar_wait_(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}\n" :: "r"(moek_shared_address_(bar)), "r"(parity) : "memory");
}
/* Arrive when the cp.async of this thread so far have landed.  wgmma then sees them without a proxy fence: they are in
 * shared memory, not on their way out of a thread.  (CUTLASS's and others' cp.async main loops rest on that, too; a
 * fence of each reader would wait for its older stores, and cost up to 7 % of a layer.) */
MOEK_DEVICE void moek_mbar_arrive_copied_(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" :: "r"(moek_shared_address_(bar)) : "memory");
}

/* Shared memory that this thread wrote is from here on there for wgmma and TMA, too.  (With it comes a
 * MEMBAR: ask for what is next after it, not before.) */
MOEK_DEVICE void moek_proxy_fence_(void) { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

/* Operand in shared memory: rows of 128 bytes of k, swizzled by 128 bytes, 8 rows every 1024 bytes.  The next 32 bytes
 * of k: + 2. */
MOEK_DEVICE uint64_t moek_wgmma_operand_(const void *p)
{
    return (uint64_t)(moek_shared_address_(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
MOEK_DEVICE void moek_wgmma_fence_(void) { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
MOEK_DEVICE void moek_wgmma_commit_(void) { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
#define moek_wgmma_wait_(n) asm volatile("wgmma.wait_group.sync.aligned %0;\n" :: "n"(n) : "memory")
/* A wgmma of 64 x n and 32 bytes of k, where `registers` are its sums and operands, and number `add` (0: d = a * b,
 * else d += a * b) comes behind them. */
#define moek_wgmma_(n, kind, registers, add, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n kind " " registers ";\n}\n" : __VA_ARGS__)

/* The same with a in registers. */
#define moek_wgmma_of_registers_ moek_wgmma_

#define moek_registers_more_(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" :: "n"(n))
#define moek_registers_less_(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" :: "n"(n))

/* A barrier of some warps, by number. */
MOEK_DEVICE void moek_named_wait_(int id, int threads)
{
    asm volatile("bar.sync %0, %1;\n" :: "r"(id), "r"(threads) : "memory");
}
/* The same without a wait: threads that wait there see what this one did before. */
MOEK_DEVICE void moek_named_arrive_(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;\n" :: "r"(id), "r"(threads) : "memory");
}

/* ---- registers, matrices, flags, addresses ----------------------------------------------------------------------- */

/* Floats that are in their registers here: the compiler moves nothing of them past this. */
#define moek_keep_(x) asm volatile("" : "+f"(x))
#define moek_keep_s32_(x) asm volatile("" : "+r"(x))
#define moek_keep_4_(a, b, c, d) asm volatile("" : "+f"(a), "+f"(b), "+f"(c), "+f"(d))

MOEK_DEVICE float moek_ex2_(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}
/* Four 8 x 8 matrices of 2-byte elements to shared memory: the inverse of moek_ldmatrix4_. */
MOEK_DEVICE void moek_stmatrix4_(void *shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n"
                 :: "r"(moek_shared_address_(shared)), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
/* The same, each transposed: a row of `shared` gets a column. */
MOEK_DEVICE void moek_stmatrix4_trans_(void *shared, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n"
                 :: "r"(moek_shared_address_(shared)), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
/* Two. */
MOEK_DEVICE void moek_stmatrix2_trans_(void *shared, uint32_t r0, uint32_t r1)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};\n"
                 :: "r"(moek_shared_address_(shared)), "r"(r0), "r"(r1) : "memory");
}

/* As moek_flag_add_, and how many there were before. */
MOEK_DEVICE int moek_flag_next_(int32_t *flag)
{
    int had;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(had) : "l"(flag) : "memory");
    return had;
}

/* p + n * bytes, in one instruction where it stands: the compiler would keep 64 bits for each of many n. */
MOEK_DEVICE const void *moek_at_(const void *p, uint32_t n, uint32_t bytes)
{
    uint64_t r;
    asm("mad.wide.u32 %0, %1, %2, %3;\n" : "=l"(r) : "r"(n), "r"(bytes), "l"((uint64_t)p));
    return (const void *)r;
}
/* Floats at an address in shared memory, loaded where it stands in the program.  (By a pointer, the compiler may find
 * the address anew, and wait for it between two wgmma.) */
MOEK_DEVICE float moek_shared_float_(uint32_t at)
{
    float f;
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(f) : "r"(at) : "memory");
    return f;
}
MOEK_DEVICE void moek_shared_float2_(float f[2], uint32_t at)
{
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(f[0]), "=f"(f[1]) : "r"(at) : "memory");
}
#endif
#endif
#endif
