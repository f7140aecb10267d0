/* steps/expand_fragments.cuh -- weights of e2m1 as fragments, with their scales -> e4m3, row by row, with scales of f32
 * (moek/ops.h: expand).
 *
 * Bound by memory: half a byte is read and a byte written for each weight.  A warp has 16 of 64 rows, as wgmma does:
 * lane 4g + q has rows g and g + 8, and makes e4m3 of them as gemm/fragments.cuh does.  Its two rows then go to memory
 * by 16 bytes.
 * - A scale for 128 x 128 (blocks): a block has 128 rows, 128 of gate and 128 of up if these are apart, and 128 of k.
 * - A scale for each row (rows): a block has 16 of 64 rows and all of k, and reads the scales twice.
 */
#ifndef MOEK_STEPS_EXPAND_FRAGMENTS_CUH
#define MOEK_STEPS_EXPAND_FRAGMENTS_CUH
#include "../../include/moek/kernel/sm90_schedule.h"

/* Format: one whose global scales go into the scales of rows. */
template <int THREADS, class Format> struct moek_expand_fragments_ {
#ifdef MOEK_SM90_CODE_
    /* Where the rows of lane 4g + q go, warp v of the 64 rows with number `block` of an expert. */
    MOEK_DEVICE void rows_of(const moek_expand_args *a, int block, int v, int row[2])
    {
        const int g = threadIdx.x % 32 / 4, gated = a->w_rows > a->n, i = block * 32 + v * 8 + g;
        row[0] = gated ? min(a->gate_first, a->up_first) + i * a->w_step : block * 64 + v * 16 + g;
        row[1] = gated ? max(a->gate_first, a->up_first) + i * a->w_step : row[0] + 8;
    }
    /* Of four lanes and four words: word i of lane q becomes word q of lane i. */
    MOEK_DEVICE void turn(uint32_t w[4])
    {
        const int q = threadIdx.x % 4;
        int distance, i;
        #pragma unroll
        for (distance = 1; distance <= 2; distance *= 2)
            #pragma unroll
            for (i = 0; i < 4; i++) {
                uint32_t got;
                if (i & distance) continue;
                got = __shfl_xor_sync(0xffffffff, q & distance ? w[i] : w[i | distance], distance);
                if (q & distance) w[i] = got;
                else w[i | distance] = got;
            }
    }
    /* 64 of k of row g (h: 0) or of row g + 8 (1), of what a fragment became: this lane's 16 bytes. */
    MOEK_DEVICE moek_words_ row_of(const uint32_t fragment[2][4], int h)
    {
        moek_words_ row;
        int i;
        #pragma unroll
        for (i = 0; i < 4; i++) row.w[i] = fragment[i / 2][i % 2 * 2 + h];
        return row;
    }

    MOEK_DEVICE void blocks(const moek_expand_args a)
    {
        enum { MOST = 2 };                                 /* of 64 rows, for a warp */
        __shared__ int top[2];                         /* the largest scales, of what lies first, and of the other */
        const int apart = a.w_rows > a.n && a.w_step == 1;
        const int units = a.k / 64, parts = (a.k + 127) / 128, all = a.w_rows / 64;
        const int blocks = apart ? 4 : 2, groups = (all + blocks - 1) / blocks;
        const int t = threadIdx.x, v = t / 32 % 4, two = t / 128, lane = t % 32;
        const int part = (int)(blockIdx.x % parts), group = (int)(blockIdx.x / parts % groups);
        const size_t e = blockIdx.x / parts / groups;
        moek_words_ codes[MOST][2];
        uint32_t scales[MOST][2], most = moek_lowest_e8m0_e2m1_;
        int i, u, h;
        if (t < 2) top[t] = 0;
        __syncthreads();
        #pragma unroll
        for (i = 0; i < MOST; i++) {
            const int block = group * blocks + 2 * i + two;
            #pragma unroll
            for (u = 0; u < 2; u++) {
                const size_t unit = (e * all + block) * units + part * 2 + u;
                scales[i][u] = 0;
                if (2 * i + two >= blocks || block >= all || part * 2 + u >= units) continue;
                codes[i][u] = moek_load_once_((const char *)a.w + unit * 2048 + (v * 32 + lane) * 16);
                scales[i][u] = ((const uint32_t *)a.w_scale)[unit * 32 + v * 8 + lane / 4];
                #pragma unroll
                for (h = 0; h < 2; h++)
                    most = moek_max_u16_(most, __byte_perm(scales[i][u], 0, h ? 0x4342 : 0x4140));
            }
        }
        #pragma unroll
        for (i = 4; i < 32; i *= 2) most = moek_max_u16_(most, __shfl_xor_sync(0xffffffff, most, i));
        if (lane < 2) atomicMax(top + (apart ? lane : 0), (int)(lane ? most >> 16 : most & 0xffff));
        __syncthreads();
        most = (uint32_t)top[0] | (uint32_t)top[apart] << 16;
        #pragma unroll
        for (i = 0; i < MOST; i++) {
            const int block = group * blocks + 2 * i + two;
            moek_folded_e8m0_e2m1_ powers;
            int row[2];
            if (2 * i + two >= blocks || block >= all) continue;
            rows_of(&a, block, v, row);
            moek_powers_e8m0_e2m1_(&powers, scales[i], most);
            #pragma unroll
            for (u = 0; u < 2; u++) {
                uint32_t w[2][4];
                if (part * 2 + u >= units) continue;
                moek_fragment_e4m3_e8m0_e2m1_(w, &codes[i][u], &powers, u);
                #pragma unroll
                for (h = 0; h < 2; h++) {
                    moek_words_ row_words = row_of(w, h);
                    turn(row_words.w);
                    moek_store_words_((char *)a.to + (e * a.w_rows + row[h]) * a.k + part * 128 + u * 64 +
                                      lane % 4 * 16, row_words);
                }
            }
        }
        if (t <= apart) {
            float scale[2];
            moek_by_e8m0_e2m1_(scale, most);
            a.to_scale[((e * (1 + apart) + t) * groups + group) * parts + part] = scale[t];
        }
    }

    MOEK_DEVICE void rows(const moek_expand_args a)
    {
        enum { WARPS = THREADS / 32 };
        __shared__ uint32_t top[WARPS][8];
        const int units = a.k / 64, all = a.w_rows / 64, t = threadIdx.x, warp = t / 32, lane = t % 32;
        const int v = (int)(blockIdx.x % 4), block = (int)(blockIdx.x / 4 % all);
        const size_t e = blockIdx.x / 4 / all;
        const char *const codes_at = (const char *)a.w + ((e * all + block) * units * 128 + v * 32 + lane) * 16;
        const uint16_t *const scales_at = (const uint16_t *)a.w_scale + (e * all + block) * units * 128 + v * 32 + lane;
        uint32_t most = 0, h[2][2];
        moek_folded_e4m3_e2m1_ folded;
        int row[2], u, i, j;
        rows_of(&a, block, v, row);
        #pragma unroll 4
        for (u = warp; u < units; u += WARPS) {
            moek_fp16_of_e4m3_(h[0], scales_at[(size_t)u * 128]);
            most = moek_max_t2_(most, h[0][0], MOEK_DTYPE_FP16);
        }
        most = moek_max_of_lanes_e2m1_(most);
        top[warp][lane / 4] = most;
        __syncthreads();
        #pragma unroll
        for (i = 0; i < WARPS; i++) most = moek_max_t2_(most, top[i][lane / 4], MOEK_DTYPE_FP16);
        for (u = 2 * warp; u < units; u += 2 * WARPS) {
            const int one = u + 1 < units;
            moek_words_ codes[2];
            uint32_t s[2];
            codes[0] = codes[1] = moek_load_once_(codes_at + (size_t)u * 2048);
            if (one) codes[1] = moek_load_once_(codes_at + (size_t)(u + 1) * 2048);
            #pragma unroll
            for (i = 0; i < 2; i++) {
                moek_fp16_of_e4m3_(h[i], scales_at[(size_t)(u + i * one) * 128]);
                s[i] = h[i][0];
            }
            moek_fold_scale_onto_e4m3_e2m1_(&folded, s, most);
            #pragma unroll
            for (i = 0; i < 2; i++) {
                uint32_t w[2][4];
                if (i && !one) continue;
                moek_fragment_e4m3_e4m3_e2m1_(w, codes + i, &folded, i);
                #pragma unroll
                for (j = 0; j < 2; j++)
                    moek_store_words_((char *)a.to + (e * a.w_rows + row[j]) * a.k + (u + i) * 64 + lane % 4 * 16,
                                      row_of(w, j));
            }
        }
        if (!warp && lane % 4 == 0) {
            const int gated = a.w_rows > a.n;
            const uint32_t largest[2] = { most, most };
            moek_fold_scale_onto_e4m3_e2m1_(&folded, largest, most);
            for (j = 0; j < 2; j++)
                a.to_scale[e * a.w_rows + row[j]] = folded.by[j] * Format::shift_factor(0) *
                                                    a.w_global_scale[e * (1 + gated) + (gated ? j : 0)];
        }
    }
#else
    MOEK_DEVICE void blocks(const moek_expand_args a) { (void)a; }
    MOEK_DEVICE void rows(const moek_expand_args a) { (void)a; }
#endif
};

/* Launches one of such kernels.  args NULL: makes them ready. */
template <int THREADS, class Format>
static MOEK_UNUSED moek_status moek_launch_expand_fragments_(const void *args, moek_stream stream,
                                                             void (*blocks_kernel)(moek_expand_args),
                                                             void (*rows_kernel)(moek_expand_args))
{
    const moek_expand_args *const a = (const moek_expand_args *)args;
    const int by_row = a && a->columns == 16, rows = !a ? 0 : a->w_step == 1 ? a->n : a->w_rows;
    unsigned long long blocks;
    if (!a) return MOEK_READY_SM90_(blocks_kernel, THREADS, 0);
    if (a->experts < 1) return MOEK_OK;
    if (a->k < 64 || a->k % 64 || a->w_rows < 64 || a->w_rows % 64 || a->n % 64 || (!by_row && a->columns != 32) ||
        (a->w_rows != a->n && a->w_rows != 2 * a->n)) return MOEK_E_ARGUMENT;
    blocks = (unsigned long long)(unsigned)a->experts;
    if (by_row) blocks *= (unsigned)(a->w_rows / 16);
    else blocks *= (unsigned long long)((rows + 127) / 128) * (unsigned)((a->k + 127) / 128);
    if (blocks > 0x7fffffff) return MOEK_E_ARGUMENT;
    if (by_row) return MOEK_LAUNCH_(rows_kernel, (unsigned)blocks, THREADS, 0, stream, *a);
    return MOEK_LAUNCH_(blocks_kernel, (unsigned)blocks, THREADS, 0, stream, *a);
}
#endif
