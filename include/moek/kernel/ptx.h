/* moek/kernel/ptx.h -- launches, and one function a PTX instruction, named after it.
 *
 * The same kernels also run on a CPU, a fibre a thread: tests/emu/emu.h stands in for the compiler's own words
 * (__global__, threadIdx, __syncthreads, shuffles) and for the PTX below, where MOEK_EMU is defined. */
#ifndef MOEK_PTX_H
#define MOEK_PTX_H
#include "../strict.h"
#include "numbers.h"

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 201703L
#error "moek: GPU kernels are C++17: compile this file with -std=c++17 (what nvcc takes by itself from CUDA 12 on)"
#endif

typedef struct moek_words_ { uint32_t w[4]; } moek_words_;            /* 16 bytes, as one load or store moves them */

#ifndef MOEK_EMU
#include <cuda_runtime_api.h>
#define MOEK_DEVICE static MOEK_UNUSED __device__ __forceinline__

/* Shared memory of an SM, for launch bounds: each block takes 1024 bytes more than it asks for.  A100 and Orin have 164
 * KB, GeForce, L4, L40S and Spark (sm_86, 89, 120, 121) 100 KB, others since Hopper 228 KB, 227 of them a block's. */
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define MOEK_SM_SHARED_ 232448
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
#define MOEK_SM_SHARED_ 167936
#else
#define MOEK_SM_SHARED_ 102400
#endif

/* Every launcher goes through here.  (cudaLaunchKernel would look the kernel up each time: 1 us more.)  What an earlier
 * call left behind would show here, too: moek_run refuses to start on it. */
#define MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args) \
    (kernel<<<(grid), (threads), (shared), (stream)>>>(args), \
     cudaPeekAtLastError() == cudaSuccess ? MOEK_OK : MOEK_E_CUDA)

/* A function of the driver, by way of the runtime: nothing to link.  NULL if the driver has none. */
static MOEK_UNUSED void *moek_driver_function_(const char *name)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t status = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : NULL;
}

/* Of rows of sm80 whose blocks wait for each other: is the driver told so (cooperative launch)?  Then a grid that is
 * not all there at once is an error at launch, and no hang.  0: never, 1: where kernels do not begin early, 2:
 * everywhere.  Here, and nowhere else. */
#ifndef MOEK_COOPERATIVE_
#define MOEK_COOPERATIVE_ 2
#endif

/* The same; `early`: it may start before the kernel ahead of it in the stream is done (programmatic dependent launch),
 * and then calls moek_grid_wait_ before it reads what that kernel wrote, or writes what that reads. */
#define MOEK_CHAIN_(kernel, grid, threads, shared, stream, early, args) \
    ((early) ? moek_launch_with_((const void *)(kernel), (grid), (threads), (shared), (stream), 1, 1, 0, &(args)) \
             : MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args))
/* The same, where blocks wait for blocks with lower numbers, which begin first. */
#define MOEK_CHAIN_ORDERED_(kernel, grid, threads, shared, stream, early, args) \
    MOEK_CHAIN_(kernel, grid, threads, shared, stream, early, args)
/* The same, in clusters of two. */
#define MOEK_LAUNCH_PAIRS_(kernel, grid, threads, shared, stream, early, args) \
    moek_launch_with_((const void *)(kernel), (grid), (threads), (shared), (stream), (early), 2, 0, &(args))
/* The same, of blocks that wait for each other: early, and all of them at once. */
#define MOEK_LAUNCH_TOGETHER_(kernel, grid, threads, shared, stream, args) \
    moek_launch_with_((const void *)(kernel), (grid), (threads), (shared), (stream), 1, 1, 1, &(args))
/* Is this device's code of sm_90 or later?  Older code does not wait for the kernel ahead (moek_grid_wait_). */
static MOEK_UNUSED int moek_code_waits_(void)
{
#ifdef __CUDA_ARCH_LIST__
    static const int list[] = { __CUDA_ARCH_LIST__ };                  /* ascending */
    int device = 0, major = 0, minor = 0, best = 0;
    if (list[0] >= 900) return 1;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) return 0;
    for (const int code : list) if (code <= 100 * major + 10 * minor) best = code;
    return best >= 900;
#else
    return 1;
#endif
}
static MOEK_UNUSED moek_status moek_launch_with_(const void *kernel, dim3 grid, int threads, int shared,
                                                 moek_stream stream, int early, unsigned cluster, int together,
                                                 const void *args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[3] = {};
    void *list[1] = { (void *)args };
    early = early && moek_code_waits_();
    if (together && MOEK_COOPERATIVE_ && (MOEK_COOPERATIVE_ == 2 || !early)) {
        attribute[config.numAttrs].id = cudaLaunchAttributeCooperative;
        attribute[config.numAttrs++].val.cooperative = 1;
    }
    if (early) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {                                 /* blocks side by side, on SMs side by side */
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = cluster;
        attribute[config.numAttrs].val.clusterDim.y = attribute[config.numAttrs].val.clusterDim.z = 1;
        config.numAttrs++;
    }
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    return cudaLaunchKernelExC(&config, kernel, list) == cudaSuccess ? MOEK_OK : MOEK_E_CUDA;
}
/* Until the kernels ahead are done and what they wrote is there.  Nothing to wait for unless launched early. */
MOEK_DEVICE void moek_grid_wait_(void)
{
    MOEK_STRICT_();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
/* From here on the next kernel may start, if it is launched early. */
MOEK_DEVICE void moek_grid_go_(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/* What a launcher does when called with NULL: is there code for this device, and may it have its shared memory? */
#define MOEK_READY_(kernel, shared) moek_ready_((const void *)(kernel), (shared))
static MOEK_UNUSED moek_status moek_ready_(const void *kernel, int shared)
{
    struct cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess ||
        (shared > 48 * 1024 &&
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) != cudaSuccess)) {
        (void)cudaGetLastError();
        return MOEK_E_ARCH;
    }
    return MOEK_OK;
}

/* The same, of blocks of which all SMs have one at once, and wait for each other. */
#define MOEK_READY_TOGETHER_(kernel, threads, shared) moek_ready_together_((const void *)(kernel), (threads), (shared))
static MOEK_UNUSED moek_status moek_ready_together_(const void *kernel, int threads, int shared)
{
    const moek_status status = moek_ready_(kernel, shared);
    int blocks = 0;
    if (status != MOEK_OK) return status;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, (size_t)shared) != cudaSuccess)
        (void)cudaGetLastError();
    return blocks ? MOEK_OK : MOEK_E_ARCH;
}

/* Blocks of a launch that has one an SM. */
static MOEK_UNUSED unsigned moek_multiprocessors_(void)
{
    int device = 0, n = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
    return n < MOEK_SPLITS ? n : MOEK_SPLITS;
}

/* By a thread of each block: until all have come.  The count goes on from launch to launch. */
MOEK_DEVICE void moek_grid_barrier_(unsigned long long *count, unsigned blocks)
{
    unsigned long long have, all;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;\n" : "=l"(have) : "l"(count) : "memory");
    all = (have / blocks + 1) * blocks;
    for (have++; have < all;)
        asm volatile("ld.acquire.gpu.global.b64 %0, [%1];\n" : "=l"(have) : "l"(count) : "memory");
}

/* By a thread of each block: 0 or 1 in turns from launch to launch, the same in all blocks of one. */
MOEK_DEVICE int moek_turn_(unsigned long long *count, unsigned blocks)
{
    unsigned long long have;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;\n" : "=l"(have) : "l"(count) : "memory");
    return (int)(have / blocks & 1);
}

/* Rows of sm90 need code for sm_90a.  Where one is compiled for anything else its kernel is empty and takes 32 threads
 * at most, by which its launcher knows that there is no code. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOEK_SM90_CODE_ 1
#define MOEK_SM90_THREADS_(threads) (threads)
#else
#define MOEK_SM90_THREADS_(threads) 32
#endif
#define MOEK_SM90_BOUNDS_(threads) __launch_bounds__(MOEK_SM90_THREADS_(threads), 1)

#define MOEK_READY_SM90_(kernel, threads, shared) moek_ready_sm90_((const void *)(kernel), (threads), (shared))
static MOEK_UNUSED moek_status moek_ready_sm90_(const void *kernel, int threads, int shared)
{
    struct cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.maxThreadsPerBlock >= threads)
        return moek_ready_(kernel, shared);
    (void)cudaGetLastError();
    return MOEK_E_ARCH;
}

/* Rows of sm89 multiply e4m3 by mma.sync, which sm_89 and later have.  For older devices kernels are empty in the same
 * way. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define MOEK_SM89_CODE_ 1
#define MOEK_SM89_THREADS_(threads) (threads)
#else
#define MOEK_SM89_THREADS_(threads) 32
#endif
#define MOEK_READY_SM89_(kernel, threads, shared) MOEK_READY_SM90_(kernel, threads, shared)

/* Rows of sm120 multiply by block scale, which code for compute_120f, sm_120a, compute_121f and sm_121a has, and code
 * for plain sm_120 and sm_121 has not; __CUDA_ARCH__ is the same for both. */
#if (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 12) || \
    (defined(__CUDA_ARCH_SPECIFIC__) && __CUDA_ARCH_SPECIFIC__ / 100 == 12)
#define MOEK_SM120_CODE_ 1
#define MOEK_SM120_THREADS_(threads) (threads)
#else
#define MOEK_SM120_THREADS_(threads) 32
#endif
#define MOEK_READY_SM120_(kernel, threads, shared) MOEK_READY_SM90_(kernel, threads, shared)

/* Copy 16 bytes to shared memory, asynchronously; only the first `bytes` are read, the rest are zero. */
MOEK_DEVICE void moek_cp_async16_(void *shared, const void *global, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes) : "memory");
}
MOEK_DEVICE void moek_cp_async_commit_(void) { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/* At most `n` (a constant) groups of this thread are still on their way. */
#define moek_cp_async_wait_(n) asm volatile("cp.async.wait_group %0;\n" :: "n"(n) : "memory")

/* 128 bytes around p on their way to L2.  Does no harm if others write them meanwhile. */
MOEK_DEVICE void moek_prefetch_(const void *p) { asm volatile("prefetch.global.L2 [%0];\n" :: "l"(p)); }
/* Nobody reads these 128 bytes (p: a multiple of 128) before they are written again: what L2 has of them need not go to
 * memory.  Until then they may hold anything. */
MOEK_DEVICE void moek_discard_(void *p) { asm volatile("discard.global.L2 [%0], 128;\n" :: "l"(p) : "memory"); }
/* p, reckoned where it stands in the program. */
MOEK_DEVICE const void *moek_opaque_ptr_(const void *p)
{
    asm volatile("" : "+l"(p));
    return p;
}

/* n, reckoned where it stands: the compiler would keep what follows from it in registers, through a loop that needs
 * them all. */
MOEK_DEVICE int moek_opaque_int_(int n)
{
    asm volatile("" : "+r"(n));
    return n;
}

/* Copy 4 or 8 bytes in the same way, through L1. */
MOEK_DEVICE void moek_cp_async4_(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}
MOEK_DEVICE void moek_cp_async8_(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
}
/* bytes: 4, or 0: zeros. */
MOEK_DEVICE void moek_cp_async4_of_(void *shared, const void *global, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes) : "memory");
}

/* The block's dynamic shared memory. */
#define MOEK_SHARED_(type, name) \
    extern __shared__ __align__(128) unsigned char moek_shared_[]; type *const name = (type *)moek_shared_
/* The same, of bytes, aligned to 1024. */
#define MOEK_SHARED_1024_(name) \
    extern __shared__ __align__(1024) unsigned char moek_shared_1024_[]; unsigned char *const name = moek_shared_1024_

/* 16 bytes of memory, aligned to 16. */
MOEK_DEVICE moek_words_ moek_load_words_(const void *shared)
{
    const uint4 v = *(const uint4 *)shared;
    moek_words_ r;
    r.w[0] = v.x; r.w[1] = v.y; r.w[2] = v.z; r.w[3] = v.w;
    return r;
}
MOEK_DEVICE void moek_store_words_(void *to, moek_words_ v)
{
    *(uint4 *)to = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}

/* 16 bytes of device memory that are read this once: in L2, others may take their place first. */
MOEK_DEVICE moek_words_ moek_load_once_(const void *global)
{
    moek_words_ r;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3]) : "l"(global));
    return r;
}

/* What other blocks write, or read, at the same time: each of the eight T comes whole, in no order. */
MOEK_DEVICE moek_words_ moek_load_relaxed_(const void *p)
{
    moek_words_ v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
    return v;
}
MOEK_DEVICE void moek_store_relaxed_(uint16_t *p, uint16_t t)
{
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;\n" :: "l"(p), "h"(t) : "memory");
}
MOEK_DEVICE void moek_pause_(unsigned ns) { asm volatile("nanosleep.u32 %0;\n" :: "r"(ns)); }

/* Four 8 x 8 matrices of 2-byte elements: lane 8 i + r points to row r of matrix i; r[i] of lane 4 g + q is elements 2q
 * and 2q + 1 of row g of matrix i. */
MOEK_DEVICE void moek_ldmatrix4_(uint32_t r[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(shared)));
}

/* Two floats, aligned to 8. */
MOEK_DEVICE void moek_store2_(float *to, float x, float y) { *(float2 *)to = make_float2(x, y); }

/* Four e4m3 -> four fp16 in the same order, exactly; NaN stays NaN. */
MOEK_DEVICE void moek_fp16_of_e4m3_(uint32_t h[2], uint32_t bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi; }\n"
        : "=r"(h[0]), "=r"(h[1]) : "r"(bytes));
#else
    int i;
    for (i = 0; i < 2; i++) {                         /* a byte's value * 2^-8 is its bits in fp16's places */
        const uint32_t high = __byte_perm(bytes, 0, i ? 0x3424 : 0x1404);
        const uint32_t magnitude = (high >> 1) & 0x3f803f80;
        uint32_t nan;                                 /* 0 * (magnitude * 2^15 + 8160): 0; NaN of 480: it overflows */
        asm("{ .reg .b32 t; fma.rn.f16x2 t, %1, %2, %3; mul.rn.f16x2 %0, t, %4; }\n"
            : "=r"(nan) : "r"(magnitude), "r"(0x78007800), "r"(0x6ff86ff8), "r"(0));
        asm("fma.rn.f16x2 %0, %1, %2, %3;\n"
            : "=r"(h[i]) : "r"(magnitude | (high & 0x80008000)), "r"(0x5c005c00), "r"(nan));
    }
#endif
}

/* Two floats -> two T, lo in the low half. */
MOEK_DEVICE uint32_t moek_to_t2_(float lo, float hi, int dtype)
{
    uint32_t two;
    if (dtype == MOEK_DTYPE_FP16) asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(two) : "f"(hi), "f"(lo));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(two) : "f"(hi), "f"(lo));
    return two;
}

/* Two T, lo in the low half -> two floats. */
MOEK_DEVICE void moek_from_t2_(float f[2], uint32_t two, int dtype)
{
    if (dtype == MOEK_DTYPE_FP16) {
        asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }\n"
            : "=f"(f[0]), "=f"(f[1]) : "r"(two));
    } else {
        f[0] = moek_float_(two << 16);
        f[1] = moek_float_(two & 0xffff0000);
    }
}

/* Two floats -> two e4m3, lo in the low byte: the bits of moek_to_e4m3_.  The sign of a NaN is put in by hand. */
MOEK_DEVICE uint32_t moek_to_e4m3x2_(float lo, float hi)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(two) : "f"(hi), "f"(lo));
    return (two & 0x7f7fu) | ((moek_bits_(lo) >> 24) & 0x80) | ((moek_bits_(hi) >> 16) & 0x8000);
#else
    return moek_to_e4m3_(lo) | (uint32_t)moek_to_e4m3_(hi) << 8;
#endif
}

/* The same of four, none of them NaN, the first in the lowest byte. */
MOEK_DEVICE uint32_t moek_numbers_to_e4m3x4_(float a, float b, float c, float d)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t four;
    asm("{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, %2, %1; cvt.rn.satfinite.e4m3x2.f32 hi, %4, %3; "
        "mov.b32 %0, {lo, hi}; }\n" : "=r"(four) : "f"(a), "f"(b), "f"(c), "f"(d));
    return four;
#else
    return moek_to_e4m3x2_(a, b) | moek_to_e4m3x2_(c, d) << 16;
#endif
}

/* The larger |x| of two T, in both halves.  NaN is larger than Inf, and so are its bits. */
MOEK_DEVICE uint32_t moek_max_t2_(uint32_t a, uint32_t b, int dtype)
{
    uint32_t most;
    if (dtype == MOEK_DTYPE_FP16)
        asm("{ .reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.NaN.f16x2 %0, a, b; }\n"
            : "=r"(most) : "r"(a), "r"(b));
    else
        asm("{ .reg .b32 a, b; abs.bf16x2 a, %1; abs.bf16x2 b, %2; max.NaN.bf16x2 %0, a, b; }\n"
            : "=r"(most) : "r"(a), "r"(b));
    return most;
}

/* 1 / s to one unit in its last place, for s and 1 / s that are no subnormals. */
MOEK_DEVICE float moek_about_one_over_(float s)
{
    float f;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(f) : "f"(s));
    return f;
}

/* An 8 x 8 matrix of 2-byte elements, two of a row a lane (lane 4 g + q: row g, columns 2 q, 2 q + 1), transposed. */
MOEK_DEVICE uint32_t moek_transpose_(uint32_t two)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(two));
    return r;
}

/* Counts between blocks of a launch: what it is; one more, after all that this thread knows of was written. */
MOEK_DEVICE int moek_flag_read_(const int32_t *flag)
{
    int have;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(have) : "l"(flag) : "memory");
    return have;
}
MOEK_DEVICE void moek_flag_add_(int32_t *flag)
{
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;\n" :: "l"(flag) : "memory");
}

/* d += a * b, 16 x 8 x 16, f32 sums.  Fragments as the PTX manual draws them (mma.m16n8k16). */
MOEK_DEVICE void moek_mma_bf16_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MOEK_DEVICE void moek_mma_fp16_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* d = a * b + c of T, as above: where c is used again, or 0, it needs no copy. */
MOEK_DEVICE void moek_mma_from_t_(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int dtype)
{
#define MOEK_MMA_(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n" \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), \
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]))
    if (dtype == MOEK_DTYPE_FP16) MOEK_MMA_("f16");
    else MOEK_MMA_("bf16");
#undef MOEK_MMA_
}
/* d += a * b of s8, 16 x 8 x 32, s32 sums, which wrap around. */
MOEK_DEVICE void moek_mma_s8_(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The same with e4m3 and f32 sums, from sm_89 on.  sm_89 and sm_120 keep some 13 bits of a sum: what is longer than 128
 * of k is made of several. */
MOEK_DEVICE void moek_mma_e4m3_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The same, 16 x 8 x 16. */
MOEK_DEVICE void moek_mma_e4m3_k16_(float d[4], const uint32_t a[2], uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}
/* The larger of each half, unsigned (before sm_90 by several instructions); the smaller. */
MOEK_DEVICE uint32_t moek_max_u16_(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return __vmaxu2(a, b);
#else
    uint32_t c;
    asm("max.u16x2 %0, %1, %2;\n" : "=r"(c) : "r"(a), "r"(b));
    return c;
#endif
}
MOEK_DEVICE uint32_t moek_min_u16_(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return __vminu2(a, b);
#else
    uint32_t c;
    asm("min.u16x2 %0, %1, %2;\n" : "=r"(c) : "r"(a), "r"(b));
    return c;
#endif
}
/* Bits of a where mask has them, else of b. */
MOEK_DEVICE uint32_t moek_select_(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;\n" : "=r"(c) : "r"(mask), "r"(a), "r"(b));
    return c;
}
/* (w & mask) | more. */
MOEK_DEVICE uint32_t moek_and_or_(uint32_t w, uint32_t mask, uint32_t more)
{
    uint32_t c;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(c) : "r"(w), "r"(mask), "r"(more));
    return c;
}
/* Two fp16 -> two e4m3, to nearest even, saturating, in the low half; the high half is 0. */
MOEK_DEVICE uint32_t moek_e4m3_of_fp16_(uint32_t two)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint32_t bytes;
    asm("{ .reg .b16 lo, none; mov.b16 none, 0; cvt.rn.satfinite.e4m3x2.f16x2 lo, %1; mov.b32 %0, {lo, none}; }\n"
        : "=r"(bytes) : "r"(two));
    return bytes;
#else
    float f[2];
    moek_from_t2_(f, two, MOEK_DTYPE_FP16);
    return moek_to_e4m3x2_(f[0], f[1]);
#endif
}
/* The low half of a twice, and the high half.  By PTX as it is here, HMUL2 and HFMA2 take such an operand without an
 * instruction for it; __byte_perm would be one. */
MOEK_DEVICE uint32_t moek_low_twice_(uint32_t a)
{
    uint32_t b;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {lo, lo}; }\n" : "=r"(b) : "r"(a));
    return b;
}
MOEK_DEVICE uint32_t moek_high_twice_(uint32_t a)
{
    uint32_t b;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, hi}; }\n" : "=r"(b) : "r"(a));
    return b;
}
/* Of two fp16: all bits of a half where a >= b, else (also of a NaN) none. */
MOEK_DEVICE uint32_t moek_at_least_fp16_(uint32_t a, uint32_t b)
{
    uint32_t mask;
    asm("set.ge.u32.f16x2 %0, %1, %2;\n" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
/* Four of the 8 bytes of low and high, by the nibbles 0 to 7 of the low half of `which`: __byte_perm, which also clears
 * their top bits. */
MOEK_DEVICE uint32_t moek_pick_(uint32_t low, uint32_t high, uint32_t which)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(r) : "r"(low), "r"(high), "r"(which));
    return r;
}
/* From sm_89 on: two e4m3, in the low half of x, as f32. */
MOEK_DEVICE void moek_from_e4m3_2_(float to[2], uint32_t x)
{
    asm("{\n.reg .b32 h;\n.reg .b16 low, high;\ncvt.rn.f16x2.e4m3x2 h, %2;\nmov.b32 {low, high}, h;\n"
        "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n" : "=f"(to[0]), "=f"(to[1]) : "h"((uint16_t)x));
}
/* a * b + c of two T each, rounded once; subnormals count. */
MOEK_DEVICE uint32_t moek_fma_t2_(uint32_t a, uint32_t b, uint32_t c, int dtype)
{
    uint32_t d;
    if (dtype == MOEK_DTYPE_FP16) asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
#else
#define MOEK_SM_SHARED_ 232448
#define MOEK_SM90_CODE_ 1
#define MOEK_SM90_THREADS_(threads) (threads)
#define MOEK_SM90_BOUNDS_(threads)
#define MOEK_READY_SM90_(kernel, threads, shared) MOEK_READY_(kernel, shared)
#define MOEK_SM89_CODE_ 1
#define MOEK_SM89_THREADS_(threads) (threads)
#define MOEK_READY_SM89_(kernel, threads, shared) MOEK_READY_(kernel, shared)
#define MOEK_SM120_CODE_ 1
#define MOEK_SM120_THREADS_(threads) (threads)
#define MOEK_READY_SM120_(kernel, threads, shared) MOEK_READY_(kernel, shared)
#define MOEK_READY_TOGETHER_(kernel, threads, shared) MOEK_READY_(kernel, shared)
#define MOEK_CHAIN_(kernel, grid, threads, shared, stream, early, args) \
    ((void)(early), MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args))
#define MOEK_LAUNCH_TOGETHER_(kernel, grid, threads, shared, stream, args) \
    MOEK_LAUNCH_(kernel, grid, threads, shared, stream, args)
MOEK_FN void moek_grid_wait_(void) {}
MOEK_FN void moek_grid_go_(void) {}
MOEK_FN void moek_prefetch_(const void *p) { (void)p; }
MOEK_FN void moek_discard_(void *p)
{
    if ((uintptr_t)p % 128) emu_die("it discards what is no line of L2");
    memset(p, 0xd1, 128);
}
MOEK_FN const void *moek_opaque_ptr_(const void *p) { return p; }
MOEK_FN unsigned moek_multiprocessors_(void) { return EMU_RESIDENT; }
MOEK_FN void moek_grid_barrier_(unsigned long long *count, unsigned blocks)
{
    const unsigned long long all = ((*count)++ / blocks + 1) * blocks;
    while (*(volatile unsigned long long *)count < all) emu_let_others(EMU_POLLS);
}
MOEK_FN int moek_turn_(unsigned long long *count, unsigned blocks) { return (int)((*count)++ / blocks & 1); }
MOEK_FN moek_words_ moek_load_words_(const void *shared) { moek_words_ r; memcpy(&r, shared, 16); return r; }
MOEK_FN void moek_ldmatrix4_(uint32_t r[4], const void *shared)
{
    int i;
    for (i = 0; i < 4; i++) {
        const uintptr_t row = __shfl_sync(0xffffffff, (uintptr_t)shared, 8 * i + (int)threadIdx.x % 32 / 4);
        memcpy(&r[i], (const char *)row + threadIdx.x % 4 * 4, 4);
    }
}
MOEK_FN void moek_store2_(float *to, float x, float y) { to[0] = x; to[1] = y; }
MOEK_FN void moek_fp16_of_e4m3_(uint32_t h[2], uint32_t bytes)
{
    int i;
    h[0] = h[1] = 0;
    for (i = 0; i < 4; i++)
        h[i / 2] |= (uint32_t)moek_to_fp16_(moek_from_e4m3_((uint8_t)(bytes >> 8 * i))) << 16 * (i % 2);
}
MOEK_FN uint32_t moek_to_t2_(float lo, float hi, int dtype)
{
    return moek_to_t_(lo, dtype) | (uint32_t)moek_to_t_(hi, dtype) << 16;
}
MOEK_FN void moek_from_t2_(float f[2], uint32_t two, int dtype)
{
    f[0] = moek_from_t_((uint16_t)two, dtype);
    f[1] = moek_from_t_((uint16_t)(two >> 16), dtype);
}
MOEK_FN uint32_t moek_to_e4m3x2_(float lo, float hi) { return moek_to_e4m3_(lo) | (uint32_t)moek_to_e4m3_(hi) << 8; }
MOEK_FN void moek_store_words_(void *to, moek_words_ v) { memcpy(to, &v, 16); }
MOEK_FN moek_words_ moek_load_once_(const void *global) { return moek_load_words_(global); }
MOEK_FN moek_words_ moek_load_relaxed_(const void *global)
{
    emu_let_others(EMU_POLLS);
    return moek_load_words_(global);
}
MOEK_FN void moek_store_relaxed_(uint16_t *global, uint16_t t) { *global = t; }
MOEK_FN uint32_t moek_numbers_to_e4m3x4_(float a, float b, float c, float d)
{
    return moek_to_e4m3x2_(a, b) | moek_to_e4m3x2_(c, d) << 16;
}
MOEK_FN uint32_t moek_max_t2_(uint32_t a, uint32_t b, int dtype)
{
    const uint32_t lo = a & 0x7fff, hi = a & 0x7fff0000, other_lo = b & 0x7fff, other_hi = b & 0x7fff0000;
    (void)dtype;
    return (lo > other_lo ? lo : other_lo) | (hi > other_hi ? hi : other_hi);
}
MOEK_FN float moek_about_one_over_(float s) { return 1.0f / s; }
MOEK_FN uint32_t moek_max_u16_(uint32_t a, uint32_t b)
{
    const uint32_t low = a & 0xffff, high = a >> 16, other_low = b & 0xffff, other_high = b >> 16;
    return (low > other_low ? low : other_low) | (high > other_high ? high : other_high) << 16;
}
MOEK_FN uint32_t moek_min_u16_(uint32_t a, uint32_t b) { return a + b - moek_max_u16_(a, b); }
MOEK_FN uint32_t moek_low_twice_(uint32_t a) { return (a & 0xffff) * 0x00010001; }
MOEK_FN uint32_t moek_high_twice_(uint32_t a) { return (a >> 16) * 0x00010001; }
MOEK_FN uint32_t moek_select_(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }
MOEK_FN uint32_t moek_and_or_(uint32_t w, uint32_t mask, uint32_t more) { return (w & mask) | more; }
MOEK_FN uint32_t moek_e4m3_of_fp16_(uint32_t two)
{
    return moek_to_e4m3x2_(moek_from_fp16_((uint16_t)two), moek_from_fp16_((uint16_t)(two >> 16)));
}
MOEK_FN uint32_t moek_at_least_fp16_(uint32_t a, uint32_t b)
{
    const int low = moek_from_fp16_((uint16_t)a) >= moek_from_fp16_((uint16_t)b);
    return (low ? 0xffffu : 0) |
           (moek_from_fp16_((uint16_t)(a >> 16)) >= moek_from_fp16_((uint16_t)(b >> 16)) ? 0xffff0000u : 0);
}
MOEK_FN uint32_t moek_pick_(uint32_t low, uint32_t high, uint32_t which)
{
    if (which & 0x8888) emu_die("prmt: a nibble that repeats a sign");
    return __byte_perm(low, high, which);
}
MOEK_FN void moek_from_e4m3_2_(float to[2], uint32_t x)
{
    to[0] = moek_from_e4m3_((uint8_t)x);
    to[1] = moek_from_e4m3_((uint8_t)(x >> 8));
}
/* (f32 holds the products and sums that kernels ask for exactly.) */
MOEK_FN uint32_t moek_fma_t2_(uint32_t a, uint32_t b, uint32_t c, int dtype)
{
    float x[2], y[2], z[2];
    moek_from_t2_(x, a, dtype);
    moek_from_t2_(y, b, dtype);
    moek_from_t2_(z, c, dtype);
    return moek_to_t2_(fmaf(x[0], y[0], z[0]), fmaf(x[1], y[1], z[1]), dtype);
}
#endif

/* d += a * b of T, 16 x 8 x 16. */
MOEK_DEVICE void moek_mma_t_(float d[4], const uint32_t a[4], const uint32_t b[2], int dtype)
{
    if (dtype == MOEK_DTYPE_FP16) moek_mma_fp16_(d, a, b);
    else moek_mma_bf16_(d, a, b);
}
#ifdef MOEK_EMU
MOEK_FN void moek_mma_from_t_(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int dtype)
{
    memcpy(d, c, 4 * sizeof *d);
    moek_mma_t_(d, a, b, dtype);
}
#endif
/* Eight e4m3 -> eight fp16, exactly. */
MOEK_DEVICE moek_words_ moek_fp16_of_codes_(uint2 codes)
{
    moek_words_ h;
    moek_fp16_of_e4m3_(h.w, codes.x);
    moek_fp16_of_e4m3_(h.w + 2, codes.y);
    return h;
}
/* Fragments of w for wgmma in e4m3, 64 of k (of each 32 rows g and g + 8, four of k, and those 16 on) -> those for mma
 * in fp16, exactly: of each four of k, two of rows g and g + 8, then the other two. */
MOEK_DEVICE void moek_fp16_of_fragment_(uint32_t to[4][4], const uint32_t w[2][4])
{
    int i, j;
    #pragma unroll
    for (i = 0; i < 4; i++)
        #pragma unroll
        for (j = 0; j < 2; j++) {
            uint32_t h[2];
            moek_fp16_of_e4m3_(h, w[i / 2][i % 2 * 2 + j]);
            to[i][j] = h[0];
            to[i][2 + j] = h[1];
        }
}
/* b times the low or the high half of a, in T; a times a half of b, plus that half of c, rounded once. */
MOEK_DEVICE uint32_t moek_times_low_t2_(uint32_t a, uint32_t b, int dtype)
{
    return moek_fma_t2_(moek_low_twice_(a), b, 0x80008000, dtype);
}
MOEK_DEVICE uint32_t moek_times_high_t2_(uint32_t a, uint32_t b, int dtype)
{
    return moek_fma_t2_(moek_high_twice_(a), b, 0x80008000, dtype);
}
MOEK_DEVICE uint32_t moek_fma_low_t2_(uint32_t a, uint32_t b, uint32_t c, int dtype)
{
    return moek_fma_t2_(a, moek_low_twice_(b), moek_low_twice_(c), dtype);
}
MOEK_DEVICE uint32_t moek_fma_high_t2_(uint32_t a, uint32_t b, uint32_t c, int dtype)
{
    return moek_fma_t2_(a, moek_high_twice_(b), moek_high_twice_(c), dtype);
}
MOEK_DEVICE uint32_t moek_rotate_(uint32_t w, int left) { return w << left | w >> (32 - left) % 32; }
/* 8 nibbles: number j goes to the low half of byte j, number 4 + j to its high half.  And back. */
MOEK_DEVICE uint32_t moek_nibbles_apart_(uint32_t w)
{
    uint32_t low = w & 0xffff, high = w >> 16;
    low = (low | low << 8) & 0x00ff00ff, high = (high | high << 8) & 0x00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f, high = (high | high << 4) & 0x0f0f0f0f;
    return low | high << 4;
}
MOEK_DEVICE uint32_t moek_nibbles_together_(uint32_t w)
{
    uint32_t low = w & 0x0f0f0f0f, high = w >> 4 & 0x0f0f0f0f;
    low = (low | low >> 4) & 0x00ff00ff, high = (high | high >> 4) & 0x00ff00ff;
    return ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
}
/* Eight floats -> eight e4m3, the first in the lowest byte. */
MOEK_DEVICE uint2 moek_to_e4m3x8_(const float x[8])
{
    return make_uint2(moek_to_e4m3x2_(x[0], x[1]) | moek_to_e4m3x2_(x[2], x[3]) << 16,
                      moek_to_e4m3x2_(x[4], x[5]) | moek_to_e4m3x2_(x[6], x[7]) << 16);
}

/* What a kernel of a row does: nothing where there is no code for its architecture.  Rows of sm80 have code for all. */
#define MOEK_SM80_THREADS_(threads) threads
#define MOEK_SM80_BOUNDS_(threads) __launch_bounds__(threads, 1)
#define MOEK_IN_SM80_(...) __VA_ARGS__
#if defined(MOEK_SM90_CODE_)
#define MOEK_IN_SM90_(...) __VA_ARGS__
#else
#define MOEK_IN_SM90_(...)
#endif
#if defined(MOEK_SM89_CODE_)
#define MOEK_IN_SM89_(...) __VA_ARGS__
#else
#define MOEK_IN_SM89_(...)
#endif
#if defined(MOEK_SM120_CODE_)
#define MOEK_IN_SM120_(...) __VA_ARGS__
#else
#define MOEK_IN_SM120_(...)
#endif
#endif
