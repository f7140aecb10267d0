/* moek/kernel/sm90_schedule.h -- what becomes of the sums of a tile in the sm90 kernels: parts of tiles that are cut
 * along k, scales, and the way to memory.  Which tile a block takes: schedule.h. */
#ifndef MOEK_SM90_SCHEDULE_H
#define MOEK_SM90_SCHEDULE_H
#include "sm90.h"
#include "act.h"
#include "schedule.h"

enum { MOEK_SM90_EXPERTS = MOEK_SCHEDULE_EXPERTS };

#ifdef MOEK_SM90_CODE_
/* The sums of a tile that is cut along k: the block with its first stage adds the others' sums.  By `consumers`
 * threads, from number 128 on, n sums each.  first: this block's first stage of the tile.  1: the tile is another
 * block's. */
MOEK_DEVICE int moek_split_k_reduce_(const moek_gemm_ *a, const moek_work_range_ *p, float *sum, int n,
                                     int consumers, int tile, int first)
{
    float *const partials = a->split + (threadIdx.x - 128);            /* [blocks][n][consumers] */
    int i, j;
    if (first > 0) {
        #pragma unroll
        for (i = 0; i < n; i++) __stcg(partials + ((size_t)blockIdx.x * n + i) * consumers, sum[i]);
        __threadfence();
        moek_named_wait_(3, consumers);
        if (threadIdx.x == 128) moek_flag_add_(a->split_flags + blockIdx.x);
        return 1;
    }
    for (i = blockIdx.x + 1; ; i++) {              /* those after it have begun with theirs, and are long done */
        moek_flag_reach_(a->split_flags + i, 1);
        #pragma unroll
        for (j = 0; j < n; j++) sum[j] += __ldcg(partials + ((size_t)i * n + j) * consumers);
        if (moek_first_stage_of_(a, p, i + 1) >= (unsigned)(tile + 1) * p->steps) break;
    }
    return 0;
}
/* The same of sums of s32. */
MOEK_DEVICE int moek_split_k_reduce_s32_(const moek_gemm_ *a, const moek_work_range_ *p, int32_t *sum, int n,
                                         int consumers, int tile, int first)
{
    int32_t *const partials = (int32_t *)a->split + (threadIdx.x - 128);   /* [blocks][n][consumers] */
    int i, j;
    if (first > 0) {
        #pragma unroll
        for (i = 0; i < n; i++) __stcg(partials + ((size_t)blockIdx.x * n + i) * consumers, sum[i]);
        __threadfence();
        moek_named_wait_(3, consumers);
        if (threadIdx.x == 128) moek_flag_add_(a->split_flags + blockIdx.x);
        return 1;
    }
    for (i = blockIdx.x + 1; ; i++) {
        moek_flag_reach_(a->split_flags + i, 1);
        #pragma unroll
        for (j = 0; j < n; j++) sum[j] += __ldcg(partials + ((size_t)i * n + j) * consumers);
        if (moek_first_stage_of_(a, p, i + 1) >= (unsigned)(tile + 1) * p->steps) break;
    }
    return 0;
}

/* Scale and bias of 64 rows of w, for m rows of a: sum is of rows w_row[0] and w_row[1], gated of what lies first in
 * memory and of the other, columns 2q and 2q + 1 of each 8 rows of a.  by_tensor: a has a scale, and an expert's w. */
MOEK_DEVICE void moek_scale_sums_(const moek_gemm_ *a, float *sum, int m, int by_tensor, int e, const int *w_row,
                                  int dtype)
{
    float bias[2] = {0, 0};
    int i;
    if (a->w.bias)
        #pragma unroll
        for (i = 0; i < 2; i++)
            bias[i] = moek_from_t_(((const uint16_t *)a->gate_up.bias[i])[(size_t)e * a->gate_up.rows + w_row[i]],
                                   dtype);
    if (by_tensor) {
        const float s = *MOEK_F32_(a->a_scale);
        const float scale[2] = { s * a->gate_up.scales[0][e], s * a->gate_up.scales[1][e] };
        #pragma unroll
        for (i = 0; i < m / 2; i++) sum[i] = sum[i] * scale[i / 2 % 2] + bias[i / 2 % 2];
    } else {
        #pragma unroll
        for (i = 0; i < m / 2; i++) sum[i] += bias[i / 2 % 2];
    }
}
/* By a warp: sums of its 16 rows of w, times m rows of a, to out [rows][n] in T, from column j on.  A lane has columns
 * g and g + 8 (gated: g alone) of rows 2q and 2q + 1 of each 8 of a.  rows: where rows of a go, or -1.  page: 512 bytes
 * of shared memory, from m = 64 on. */
MOEK_DEVICE void moek_store_sums_(const float *sum, int m, int gated, unsigned char *page, const int *rows, void *out,
                                  int n, int j, int dtype)
{
    const int lane = threadIdx.x % 32;
    const unsigned row_bytes = (unsigned)n * 2;
    int i;
    if (m >= 64) {
        /* Of 16 rows of a and 16 columns, gated 32 and 8, each row goes to a part of the page, and from there a lane
         * stores 16 bytes of a row. */
        const int at_row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
        unsigned char *const put = page + (gated ? lane * 16 : at_row * 32 + (half ^ lane / 4 % 2) * 16);
        const unsigned char *const get = page + (gated ? lane : lane ^ lane / 8 % 2) * 16;
        const int *const row_of = rows + (gated ? lane : lane / 2);
        unsigned char *const at = (unsigned char *)moek_opaque_ptr_((const unsigned char *)out +
                                                                    (size_t)(gated ? j : j + lane % 2 * 8) * 2);
        #pragma unroll
        for (i = 0; i < m / 16; i++) {
            const float *const of = sum + 8 * i, *const next = sum + 8 * (i + 1);
            int row;
            if (gated && i % 2) continue;
            __syncwarp();                          /* the page before has been read */
            if (gated)
                moek_stmatrix4_trans_(put, moek_to_t2_(of[0], of[1], dtype), moek_to_t2_(of[4], of[5], dtype),
                                      moek_to_t2_(next[0], next[1], dtype), moek_to_t2_(next[4], next[5], dtype));
            else
                moek_stmatrix4_trans_(put, moek_to_t2_(of[0], of[1], dtype), moek_to_t2_(of[2], of[3], dtype),
                                      moek_to_t2_(of[4], of[5], dtype), moek_to_t2_(of[6], of[7], dtype));
            __syncwarp();
            row = row_of[16 * i];
            if (row >= 0) moek_store_words_(at + (size_t)(uint32_t)row * row_bytes, moek_load_words_(get));
        }
    } else {
        moek_store_turned_(sum, m, gated, rows, out, n, j, dtype);
    }
}
#endif

/* A row of the table whose body is moek_FAMILY_: its kernel, with maps for TMA beside the arguments, and its launcher.
 * Behind `shared`: the parameters of the body. */
#define MOEK_WGMMA_ROW_(row, family, threads, shared, ...) \
    static __global__ void MOEK_SM90_BOUNDS_(threads) \
    row##_k_(const __grid_constant__ moek_##family##_<__VA_ARGS__>::params p) \
    { \
        moek_##family##_<__VA_ARGS__>::run(&p); \
    } \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_##family##_<__VA_ARGS__>(args, stream, shared, row##_k_); \
    }
#endif
