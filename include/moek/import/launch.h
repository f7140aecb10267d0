/* moek/import/launch.h -- the loops over words and rows as kernels, and which loops run. */
#ifndef MOEK_IMPORT_LAUNCH_H
#define MOEK_IMPORT_LAUNCH_H
#include "../want.h"
#include "host.h"

#if MOEK_HAVE_CUDA_
#include "../kernel/cuda.h"
enum { MOEK_IMPORT_THREADS_ = MOEK_SQUARE_ * MOEK_SQUARE_ };

/* A block's counters are in shared memory; at its end they go to the report. */
MOEK_DEVICE void moek_tally_open_(uint64_t *block)
{
    if (threadIdx.x < MOEK_TALLY_) block[threadIdx.x] = 0;
    __syncthreads();
}
MOEK_DEVICE void moek_tally_add_(uint64_t *block, int counter, uint32_t n)
{
    if (counter >= 0 && n) atomicAdd((unsigned long long *)block + counter, (unsigned long long)n);
}
MOEK_DEVICE void moek_tally_close_(uint64_t *block, uint64_t *report)
{
    const int t = (int)threadIdx.x;
    __syncthreads();
    if (t >= MOEK_TALLY_ || !report || !block[t]) return;
    if (t < MOEK_COUNTS_) atomicAdd((unsigned long long *)report + t, (unsigned long long)block[t]);
    else atomicMax((unsigned long long *)report + t, (unsigned long long)block[t]);
}
/* A thread a word, a block a square. */
static __global__ void __launch_bounds__(MOEK_IMPORT_THREADS_) moek_recode_k_(const moek_recode_ a)
{
    __shared__ uint64_t block[MOEK_TALLY_];
    const moek_plane_ n = moek_codes_plane_(&a.to);
    const moek_square_ at = moek_square_at_(n, blockIdx.x);
    const size_t p = at.p + threadIdx.x / MOEK_SQUARE_, q = at.q + threadIdx.x % MOEK_SQUARE_;
    moek_recoded_ seen = { 0, 0, 0, 0, 0 };
    moek_tally_open_(block);
    if (p < n.p && q < n.q) moek_recode_word_(&a, n, p, q, &seen);
    moek_tally_add_(block, a.counter, a.others ? seen.others : seen.watched);
    moek_tally_add_(block, a.all, seen.watched + seen.others);
    moek_tally_add_(block, a.counter2, seen.watched2);
    moek_tally_add_(block, MOEK_COUNT_orders_bad_, seen.outside);
    moek_tally_add_(block, MOEK_COUNT_codes_outside_, seen.wide);
    moek_tally_close_(block, a.report);
}
/* A warp a row. */
static __global__ void __launch_bounds__(MOEK_IMPORT_THREADS_) moek_rescale_k_(const moek_rescale_ a)
{
    __shared__ uint64_t block[MOEK_TALLY_];
    const size_t row = (size_t)blockIdx.x * (MOEK_IMPORT_THREADS_ / 32) + threadIdx.x / 32;
    const int lane = (int)(threadIdx.x % 32);
    uint64_t mine[MOEK_TALLY_];
    int i, most = 0;
    moek_tally_open_(block);
    #pragma unroll
    for (i = 0; i < MOEK_TALLY_; i++) mine[i] = 0;
    if (row < a.all_rows) most = moek_rescale_row_(&a, row, (size_t)lane, 32, mine);
    for (i = 16; i; i /= 2) {
        const int other = __shfl_xor_sync(0xffffffff, most, i);
        most = other > most ? other : most;
    }
    if (row < a.rows) moek_rescale_fold_(&a, row, (size_t)lane, 32, most, mine);
    if (a.from_global && !blockIdx.x && !threadIdx.x) moek_rescale_global_(&a, mine);
    #pragma unroll
    for (i = 0; i < MOEK_COUNTS_; i++) moek_tally_add_(block, i, (uint32_t)mine[i]);
    #pragma unroll
    for (i = MOEK_COUNTS_; i < MOEK_TALLY_; i++)
        if (mine[i]) atomicMax((unsigned long long *)block + i, (unsigned long long)mine[i]);
    moek_tally_close_(block, a.report);
}
#endif

static moek_status moek_recode_run_(int arch, const moek_recode_ *a, moek_stream stream)
{
#if MOEK_HAVE_CUDA_
    if (arch) {
        const moek_recode_ args = *a;
        return MOEK_LAUNCH_(moek_recode_k_, (unsigned)moek_square_count_(moek_codes_plane_(&a->to)),
                            MOEK_IMPORT_THREADS_, 0, stream, args);
    }
#endif
    (void)arch;
    moek_recode_host_(a, stream);
    return MOEK_OK;
}
static moek_status moek_rescale_run_(int arch, const moek_rescale_ *a, moek_stream stream)
{
#if MOEK_HAVE_CUDA_
    if (arch) {
        const moek_rescale_ args = *a;
        const size_t warps = MOEK_IMPORT_THREADS_ / 32;
        return MOEK_LAUNCH_(moek_rescale_k_, (unsigned)((a->all_rows + warps - 1) / warps), MOEK_IMPORT_THREADS_, 0,
                            stream, args);
    }
#endif
    (void)arch;
    moek_rescale_host_(a, stream);
    return MOEK_OK;
}
#endif
