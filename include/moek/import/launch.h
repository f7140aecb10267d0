/* moek/import/launch.h -- the loops over words and rows: on the host, and as kernels. */
#ifndef MOEK_IMPORT_LAUNCH_H
#define MOEK_IMPORT_LAUNCH_H

/* The first word of square number s. */
typedef struct moek_square_ { size_t p, q; } moek_square_;
MOEK_FN moek_square_ moek_square_at_(moek_plane_ n, size_t s)
{
    const size_t across = moek_squares_(n.q);
    moek_square_ at;
    at.p = s / across * MOEK_SQUARE_;
    at.q = s % across * MOEK_SQUARE_;
    return at;
}
static size_t moek_square_count_(moek_plane_ n) { return moek_squares_(n.p) * moek_squares_(n.q); }
MOEK_FN void moek_recode_tally_(const moek_recode_ *a, const moek_recoded_ *seen, uint64_t *n)
{
    if (a->counter >= 0) n[a->counter] += a->others ? seen->others : seen->watched;
    if (a->all >= 0) n[a->all] += (uint64_t)seen->watched + seen->others;
    if (a->counter2 >= 0) n[a->counter2] += seen->watched2;
    n[MOEK_COUNT_orders_bad_] += seen->outside;
    n[MOEK_COUNT_codes_outside_] += seen->wide;
}

/* n words of row p from word q on, all of them full, where moek_recode_word_ would take them whole or strided: the
 * same, with all but the words themselves found once. */
static void moek_recode_strip_(const moek_recode_ *a, size_t p, size_t q, size_t n, moek_recoded_ *seen)
{
    const size_t row = a->row_order ? (size_t)(uint32_t)a->row_order[p] : p, stride = moek_codes_stride_(&a->from);
    const int bits = a->to.bits, slots = 32 / bits, count = a->counter >= 0 || a->all >= 0 || a->counter2 >= 0;
    const uint32_t mask = (1u << bits) - 1, flip = a->flip * (bits == 4 ? 0x11111111u : 0x01010101u);
    unsigned char *to = a->to.at + p * a->to.pitch + 4 * q;
    const size_t column = q << moek_codes_slots_(&a->to);
    const moek_place_ at = moek_codes_place_(&a->from, row, column);
    const size_t next = stride ? stride * (size_t)slots : a->from.layout == MOEK_CODES_GPTQ ? 4 * a->from.rows : 4;
    const unsigned char *from = a->from.at + at.byte;
    size_t k;
    int i;
    for (k = 0; k < n; k++, from += next, to += 4) {
        uint32_t w = 0;
        if (!stride) memcpy(&w, from, 4);
        for (i = 0; stride && i < slots; i++)
            w |= ((uint32_t)from[(size_t)i * stride] >> at.shift & mask) << bits * i;
        w ^= flip;
        if (count) moek_recode_count_(a, w, 0xffffffffu, seen);
        memcpy(to, &w, 4);
    }
}
/* Words of a row that a strip may have; 0: none. */
static size_t moek_recode_full_(const moek_recode_ *a)
{
    const int layout = a->from.layout;
    if (!a->to.at || !a->from.at || a->column_order || a->add || a->to.layout != MOEK_CODES_ROWS ||
        (!moek_codes_along_(&a->from) && layout != MOEK_CODES_TURNED && layout != MOEK_CODES_AWQ)) return 0;
    return a->to.columns >> moek_codes_slots_(&a->to);
}
static void moek_recode_host_(const moek_recode_ *a)
{
    const size_t full = moek_recode_full_(a);
    const moek_plane_ n = moek_codes_plane_(&a->to);
    const size_t squares = moek_square_count_(n);
    size_t s, p, q;
    for (s = 0; s < squares; s++) {
        const moek_square_ at = moek_square_at_(n, s);
        moek_recoded_ seen = { 0, 0, 0, 0, 0 };
        for (p = at.p; p < at.p + MOEK_SQUARE_ && p < n.p; p++) {
            q = at.q;
            if (q < full && (!a->row_order || (uint32_t)a->row_order[p] < a->from.rows)) {
                const size_t strip = full - q < MOEK_SQUARE_ ? full - q : (size_t)MOEK_SQUARE_;
                moek_recode_strip_(a, p, q, strip, &seen);
                q += strip;
            }
            for (; q < at.q + MOEK_SQUARE_ && q < n.q; q++) moek_recode_word_(a, n, p, q, &seen);
        }
        if (a->report) moek_recode_tally_(a, &seen, a->report);
    }
}
static void moek_rescale_host_(const moek_rescale_ *a)
{
    uint64_t ignored[MOEK_TALLY_] = { 0 }, *const n = a->report ? a->report : ignored;
    size_t row;
    for (row = 0; row < a->all_rows; row++) {
        const int most = moek_rescale_row_(a, row, 0, 1, n);
        moek_rescale_fold_(a, row, 0, 1, most, n);
    }
    if (a->from_global) moek_rescale_global_(a, n);
}

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
    (void)arch; (void)stream;
    moek_recode_host_(a);
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
    (void)arch; (void)stream;
    moek_rescale_host_(a);
    return MOEK_OK;
}
#endif
