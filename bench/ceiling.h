/* ceiling.h -- what this machine can do at most: copying, reading, and multiplying by wgmma (sm_90a) and by mma.sync.
 * CUDA C++. */
#ifndef CEILING_H
#define CEILING_H
#include "../include/moek/kernel/sm90.h"
#include "../tests/mem.h"
#include "fill.h"
#include "measure.h"

enum { CEILING_THREADS = 256, CEILING_STAGES = 4, CEILING_LOOPS = 2000, CEILING_RUNS = 31 };
enum { CEILING_MMA_LOOPS = 4000, CEILING_MMA_SHARED = (128 + 256) * 64 };
enum { CEILING_STAGE = (2 * 64 + 256) * 128, CEILING_SHARED = CEILING_STAGES * CEILING_STAGE + 1024 };

static __global__ void ceiling_read_k(const uint4 *p, size_t n, uint4 *out)
{
    uint4 sum = make_uint4(0, 0, 0, 0);
    const size_t step = (size_t)gridDim.x * blockDim.x * 8;
    for (size_t i = blockIdx.x * (size_t)blockDim.x * 8 + threadIdx.x; i + 7 * blockDim.x < n; i += step) {
        uint4 v[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(p + i + j * blockDim.x);
        #pragma unroll
        for (int j = 0; j < 8; j++) { sum.x ^= v[j].x; sum.y ^= v[j].y; sum.z ^= v[j].z; sum.w ^= v[j].w; }
    }
    if (sum.x == 0x12345678 && sum.y == 0x9abcdef0) *out = sum;
}

/* Two warpgroups, 64 x 256 sums each, random operands that lie in shared memory from the start: nothing but wgmma. */
/* Of a normal distribution of deviation 64: all exponents occur, none saturates. */
static __device__ unsigned ceiling_e4m3(uint64_t i) { return moek_to_e4m3_(fill_normal(i, 1) * 64.0f); }
template <int fp8> static __global__ void MOEK_SM90_BOUNDS_(CEILING_THREADS) ceiling_wgmma_k(float *out)
{
#ifdef MOEK_SM90_CODE_
    extern __shared__ unsigned char ceiling_shared[];
    unsigned char *const at = (unsigned char *)(((uintptr_t)ceiling_shared + 1023) / 1024 * 1024);
    const int warpgroup = threadIdx.x / 128;
    const uint64_t mine = (uint64_t)blockIdx.x * (CEILING_STAGES * CEILING_STAGE);
    float d[128];
    for (int i = threadIdx.x; i < CEILING_STAGES * CEILING_STAGE / 2; i += CEILING_THREADS)
        ((uint16_t *)at)[i] = fp8 ? (uint16_t)(ceiling_e4m3(mine + 2 * i) | ceiling_e4m3(mine + 2 * i + 1) << 8)
                                  : moek_to_t_(fill_normal(mine + i, 1), MOEK_DTYPE_BF16);
    #pragma unroll
    for (int i = 0; i < 128; i++) d[i] = 0;
    moek_proxy_fence_();                                               /* wgmma reads what threads have written */
    __syncthreads();
    for (int loop = 0; loop < CEILING_LOOPS; loop++) {
        moek_wgmma_fence_();
        #pragma unroll
        for (int i = 0; i < 4 * CEILING_STAGES; i++) {
            const unsigned char *const stage = at + i / 4 * CEILING_STAGE;
            const uint64_t a = moek_wgmma_operand_(stage + warpgroup * (64 * 128)) + i % 4 * 2;
            const uint64_t b = moek_wgmma_operand_(stage + 2 * 64 * 128) + i % 4 * 2;
            if (fp8) moek_wgmma_n256_e4m3_(d, a, b, 1);
            else moek_wgmma_n256_bf16_(d, a, b, 1);
        }
        moek_wgmma_commit_();
        moek_wgmma_wait_(0);
    }
    #pragma unroll
    for (int i = 1; i < 128; i++) d[0] += d[i];
    out[blockIdx.x * CEILING_THREADS + threadIdx.x] = d[0];
#endif
}

/* Eight warps, 64 x 64 sums each, by mma.sync: operands come by ldmatrix, 32 bytes of k while those before are
 * multiplied, as in gemm/wide_mma.cuh, from shared memory where they lie from the start. */
static __device__ __forceinline__ void ceiling_load(uint32_t x[8][2], uint32_t w[4], int j, int i)
{
    extern __shared__ unsigned char ceiling_shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = lane % 8 / 2 ^ i * 2;
    uint32_t of[4];
    moek_ldmatrix4_(w, ceiling_shared + (128 + warp % 4 * 64 + j * 16 + lane % 16) * 64 + (lane / 16 ^ chunk) * 16);
    moek_ldmatrix4_(of, ceiling_shared + (warp / 4 * 64 + j * 16 + lane / 16 * 8 + lane % 8) * 64 +
                        (lane / 8 % 2 ^ chunk) * 16);
    x[2 * j][0] = of[0]; x[2 * j][1] = of[1];
    x[2 * j + 1][0] = of[2]; x[2 * j + 1][1] = of[3];
}
template <class Format> static __global__ void __launch_bounds__(CEILING_THREADS, 1) ceiling_mma_k(float *out)
{
    extern __shared__ unsigned char ceiling_shared[];
    typename Format::sum_t sum[4][8][4] = {{{0}}};
    uint32_t x[2][8][2], w[2][4][4];
    for (int i = threadIdx.x; i < CEILING_MMA_SHARED / 2; i += CEILING_THREADS) {
        const uint64_t mine = (uint64_t)blockIdx.x * CEILING_MMA_SHARED + 2 * i;
        const float f = fill_normal(mine, 1);
        const int s8 = ((int)(f * 40) & 255) | (int)(fill_normal(mine + 1, 1) * 40) << 8;
        ((uint16_t *)ceiling_shared)[i] = Format::INTEGER ? (uint16_t)s8 : moek_to_t_(f, MOEK_DTYPE_BF16);
    }
    __syncthreads();
    #pragma unroll
    for (int j = 0; j < 4; j++) ceiling_load(x[0], w[0][j], j, 0);
    #pragma unroll 1
    for (int loop = 0; loop < CEILING_MMA_LOOPS; loop++)
        #pragma unroll
        for (int i = 0; i < 2; i++)
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                ceiling_load(x[1 - i], w[1 - i][j], j, 1 - i);
                Format::template mma<1, 8>(&sum[j], &w[i][j], x[i]);
            }
    #pragma unroll
    for (int i = 1; i < 128; i++) sum[0][0][0] += sum[i / 32][i / 4 % 8][i % 4];
    out[blockIdx.x * CEILING_THREADS + threadIdx.x] = (float)sum[0][0][0];
}

static double ceiling_seconds(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    mem_must(cudaEventSynchronize(b));
    mem_must(cudaEventElapsedTime(&ms, a, b));
    return 1e-3 * ms;
}

/* TFLOPS of a kernel that has so many FLOPs a block, a block an SM: the median of launches of some milliseconds each,
 * at the clocks that the card keeps up. */
static double ceiling_tflops(void (*kernel)(float *), int shared, double flops, int multiprocessors, cudaEvent_t e0,
                             cudaEvent_t e1)
{
    double t[CEILING_RUNS];
    float *const out = (float *)mem_alloc(80, 4 * (size_t)multiprocessors * CEILING_THREADS);
    for (int i = 0; i < CEILING_RUNS; i++) {
        mem_must(cudaEventRecord(e0));
        kernel<<<multiprocessors, CEILING_THREADS, shared>>>(out);
        mem_must(cudaEventRecord(e1));
        t[i] = ceiling_seconds(e0, e1);
    }
    mem_must(cudaGetLastError());
    mem_free(80, out);
    qsort(t, CEILING_RUNS, sizeof t[0], ascending);
    return 1e-12 * multiprocessors * flops / t[CEILING_RUNS / 2];
}
/* 0: no wgmma here. */
static double ceiling_wgmma(int fp8, int multiprocessors, cudaEvent_t e0, cudaEvent_t e1)
{
    void (*const kernel)(float *) = fp8 ? ceiling_wgmma_k<1> : ceiling_wgmma_k<0>;
    if (MOEK_READY_SM90_(kernel, CEILING_THREADS, CEILING_SHARED) != MOEK_OK) return 0;
    return ceiling_tflops(kernel, CEILING_SHARED,
                          2.0 * CEILING_LOOPS * 4 * CEILING_STAGES * 2 * 64 * 256 * (fp8 ? 32 : 16),
                          multiprocessors, e0, e1);
}
static double ceiling_mma(int s8, int multiprocessors, cudaEvent_t e0, cudaEvent_t e1)
{
    return ceiling_tflops(s8 ? ceiling_mma_k<moek_format_int8_a8_> : ceiling_mma_k<moek_format_bf16_>,
                          CEILING_MMA_SHARED, 2.0 * CEILING_MMA_LOOPS * 2 * 8 * 64 * 64 * (s8 ? 32 : 16),
                          multiprocessors, e0, e1);
}

/* Everything in a line of text. */
static void ceiling_all(char *text, size_t size, int multiprocessors, cudaEvent_t e0, cudaEvent_t e1)
{
    const size_t bytes = (size_t)4 << 30;
    char *a = (char *)mem_alloc(80, bytes), *b = (char *)mem_alloc(80, bytes), tflops[2][16];
    double copy = 1e9, read = 1e9;
    for (int i = 0; i < 6; i++) {
        mem_must(cudaEventRecord(e0));
        mem_must(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice));
        mem_must(cudaEventRecord(e1));
        copy = fmin(copy, ceiling_seconds(e0, e1));
        mem_must(cudaEventRecord(e0));
        ceiling_read_k<<<multiprocessors * 4, 512>>>((const uint4 *)a, bytes / 16, (uint4 *)b);
        mem_must(cudaEventRecord(e1));
        read = fmin(read, ceiling_seconds(e0, e1));
    }
    mem_must(cudaGetLastError());
    mem_free(80, a);
    mem_free(80, b);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        const double rate = ceiling_wgmma(fp8, multiprocessors, e0, e1);
        snprintf(tflops[fp8], sizeof tflops[fp8], rate > 0 ? "%.0f" : "-", rate);
    }
    snprintf(text, size, "copy %.2f TB/s (read plus written), pure read %.2f TB/s, wgmma %s TFLOPS bf16, %s fp8, "
             "mma.sync %.0f bf16, %.0f s8", 2e-12 * bytes / copy, 1e-12 * bytes / read, tflops[0], tflops[1],
             ceiling_mma(0, multiprocessors, e0, e1), ceiling_mma(1, multiprocessors, e0, e1));
}
#endif
