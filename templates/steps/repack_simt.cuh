/* steps/repack_simt.cuh -- weights from the layout of checkpoints to the tiled one, or back.
 *
 * Bytes, whatever their format:   to[e][k / 128 bytes][row as tiled][128 bytes] = from[e][row][k]
 *   Bound by memory, read and written once: eight lanes copy 128 bytes, a warp four rows of them, a block eight rows of
 *   32 times 128 bytes that lie side by side where rows are whole.
 * Weights of 4 or 8 bits, and scales and zero points of 4 bits, for kernels that take weights from registers
 *   (moek/ops.h draws the order): a thread has two rows, g and g + 8 of 16, and 64 of k (8 bits: 32), or the scales or
 *   zero points of these.
 * Blocks of GGUF files are repack_blocks.cuh's.
 */
#ifndef MOEK_STEPS_REPACK_SIMT_CUH
#define MOEK_STEPS_REPACK_SIMT_CUH
#include "../../include/moek/kernel/cuda.h"
#include "../../include/moek/kernel/file_tiles.h"

template <int THREADS> struct moek_repack_simt_ {
    MOEK_DEVICE void bytes(const moek_repack_args a)
    {
        enum { EACH = 8, UNITS = THREADS / 64 * EACH };
        const int gated = a.w_rows > a.n, first = min(a.gate_first, a.up_first);
        const unsigned steps = (unsigned)(a.row_bytes / 128), groups = a.w_rows / 8;
        const unsigned lane = threadIdx.x % 8, r = threadIdx.x / 8 % 8;
        moek_words_ x[EACH];
        size_t offset[EACH];
        int i;
        #pragma unroll
        for (i = 0; i < EACH; i++) {                       /* of units of 8 rows by 128 bytes, steps first */
            const unsigned unit = blockIdx.x * UNITS + i * (UNITS / EACH) + threadIdx.x / 64;
            const unsigned row_group = unit / steps, step = unit - row_group * steps;
            const unsigned e = row_group / groups, g = row_group - e * groups;
            /* (Gated: groups of what lies first in memory of gate and up, and of the other, in turns.) */
            const int half = gated && g % 2 ? max(a.gate_first, a.up_first) : first;
            const size_t row = gated ? half + (size_t)(g / 2 * 8 + r) * a.w_step : g * 8 + r;
            const size_t plain = ((size_t)e * a.w_rows + row) * a.row_bytes + step * 128 + lane * 16;
            const size_t tiled = (((size_t)e * steps + step) * a.w_rows + g * 8 + r) * 128 + lane * 16;
            if (e >= (unsigned)a.experts) continue;
            offset[i] = a.back ? plain : tiled;
            x[i] = moek_load_once_((const char *)a.from + (a.back ? tiled : plain));
        }
        #pragma unroll
        for (i = 0; i < EACH; i++) {
            const unsigned unit = blockIdx.x * UNITS + i * (UNITS / EACH) + threadIdx.x / 64;
            if (unit / steps / groups < (unsigned)a.experts) moek_store_words_((char *)a.to + offset[i], x[i]);
        }
    }

    /* A thread's place: e, block of 64 rows, unit of k, row 16v + g as 8v + g; rows: the first bytes of both in the
     * unit of `group` bytes.  0: there is none. */
    struct place { size_t unit, rows[2]; int lane; };
    MOEK_DEVICE int find(const moek_repack_args *a, int group, place *here)
    {
        const unsigned long long thread = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
        const unsigned units = (unsigned)(a->row_bytes / group), blocks = (unsigned)a->w_rows / 64;
        const unsigned long long w_block = thread / 32 / units;
        const unsigned e = (unsigned)(w_block / blocks), block = (unsigned)(w_block % blocks);
        int i;
        here->lane = threadIdx.x % 32;
        here->unit = thread / 32;
        if (e >= (unsigned)a->experts) return 0;
        for (i = 0; i < 2; i++) {
            const int j = block * 64 + here->lane / 8 * 16 + i * 8 + here->lane % 8;
            here->rows[i] = ((size_t)e * a->w_rows + moek_file_tile_row_(a, j)) * a->row_bytes +
                            thread / 32 % units * group;
        }
        return 1;
    }

    /* 16 of k of two rows, to a word of each of four lanes, or back: words of row g and g + 8 of the first 8, of the
     * next.  For activations in T: byte q of each is lane q's. */
    MOEK_DEVICE void for_t(uint32_t words[4], uint32_t lanes[4], int back)
    {
        int q, h;
        #pragma unroll
        for (q = 0; q < 4; q++) {
            uint32_t w = back ? lanes[q] : 0;
            #pragma unroll
            for (h = 0; h < 4; h++) {
                if (back) words[h] |= ((w >> 4 * h & 15) | (w >> (16 + 4 * h) & 15) << 4) << 8 * q;
                else w |= (words[h] >> 8 * q & 15) << 4 * h | (words[h] >> (8 * q + 4) & 15) << (16 + 4 * h);
            }
            if (!back) lanes[q] = w;
        }
    }
    /* For activations in e4m3: half q % 2 of the words of number q / 2 is lane q's. */
    MOEK_DEVICE void for_e4m3(uint32_t words[4], uint32_t lanes[4], int e2m1, int back)
    {
        int q;
        #pragma unroll
        for (q = 0; q < 4; q++) {
            uint32_t *const pair = words + q / 2 * 2, w = __byte_perm(pair[0], pair[1], q % 2 ? 0x7632 : 0x5410);
            if (back) {
                w = e2m1 ? moek_rearrange_e4m3_e2m1_(lanes[q]) : moek_rearrange_e4m3_u4b8_(lanes[q]);
                pair[0] |= (w & 0xffff) << q % 2 * 16;
                pair[1] |= w >> 16 << q % 2 * 16;
            } else {
                lanes[q] = e2m1 ? moek_arrange_e4m3_e2m1_(w) : moek_arrange_e4m3_u4b8_(w);
            }
        }
    }
    /* Lane q with 4 of each 16 of k, to lane q with all of the q-th 16; or back. */
    MOEK_DEVICE void turn(moek_words_ lanes[4])
    {
        int q, s;
        #pragma unroll
        for (q = 0; q < 4; q++)
            #pragma unroll
            for (s = 0; s < q; s++) {
                const uint32_t w = lanes[q].w[s];
                lanes[q].w[s] = lanes[s].w[q];
                lanes[s].w[q] = w;
            }
    }
    /* Codes of 8 bits, 16 of k of row g, or of g + 8: half q % 2 of words q / 2 and 2 + q / 2 is lane q's. */
    MOEK_DEVICE void of_bytes(uint32_t words[4], uint32_t lanes[4], int back)
    {
        int q;
        #pragma unroll
        for (q = 0; q < 4; q++) {
            uint32_t *const low = words + q / 2, *const high = words + 2 + q / 2;
            if (back) {
                *low |= (lanes[q] & 0xffff) << q % 2 * 16;
                *high |= lanes[q] >> 16 << q % 2 * 16;
            } else {
                lanes[q] = __byte_perm(*low, *high, q % 2 ? 0x7632 : 0x5410);
            }
        }
    }
    /* 64 of k of two rows, of 8 bits 32, 32 bytes each: to words of four lanes, or back. */
    MOEK_DEVICE void fragments(const moek_repack_args a)
    {
        const int e2m1 = a.codes == MOEK_ELEMENT_E2M1, whole = a.x == MOEK_ELEMENT_E4M3 && a.columns == 16;
        const int pairs = e2m1 && a.x != MOEK_ELEMENT_E4M3;
        place here;
        moek_words_ rows[2][2], lanes[4];
        char *at_rows = (char *)a.from, *at_lanes = (char *)a.to;
        int i, s;
        if (!find(&a, 32, &here)) return;
        if (a.back) { at_rows = (char *)a.to; at_lanes = (char *)a.from; }
        at_lanes += here.unit * 2048 + here.lane * 64;
        #pragma unroll
        for (i = 0; i < 4; i++)
            if (a.back) lanes[i] = moek_load_words_(at_lanes + i * 16);
            else rows[i / 2][i % 2] = moek_load_words_(at_rows + here.rows[i / 2] + i % 2 * 16);
        if (whole && a.back) turn(lanes);
        if (pairs && a.back)
            #pragma unroll
            for (i = 0; i < 8; i++) moek_rearrange_e2m1_(lanes[i / 2].w + i % 2 * 2);
        if (a.codes == MOEK_ELEMENT_E4M3 || a.codes == MOEK_ELEMENT_S8) {
            #pragma unroll
            for (s = 0; s < 4; s++) {                      /* 16 of k of a row */
                uint32_t words[4], per_lane[4];
                #pragma unroll
                for (i = 0; i < 4; i++) {
                    words[i] = a.back ? 0 : rows[s % 2][s / 2].w[i];
                    per_lane[i] = a.back ? lanes[i].w[s] : 0;
                }
                of_bytes(words, per_lane, a.back);
                #pragma unroll
                for (i = 0; i < 4; i++)
                    if (a.back) rows[s % 2][s / 2].w[i] = words[i];
                    else lanes[i].w[s] = per_lane[i];
            }
        } else
        #pragma unroll
        for (s = 0; s < 4; s++) {                          /* 16 of k */
            uint32_t words[4], per_lane[4];
            #pragma unroll
            for (i = 0; i < 4; i++) {
                words[i] = a.back ? 0 : rows[i % 2][s / 2].w[s % 2 * 2 + i / 2];
                per_lane[i] = a.back ? lanes[i].w[s] : 0;
            }
            if (a.x == MOEK_ELEMENT_E4M3) for_e4m3(words, per_lane, e2m1, a.back);
            else for_t(words, per_lane, a.back);
            #pragma unroll
            for (i = 0; i < 4; i++)
                if (a.back) rows[i % 2][s / 2].w[s % 2 * 2 + i / 2] = words[i];
                else lanes[i].w[s] = per_lane[i];
        }
        if (whole && !a.back) turn(lanes);
        if (pairs && !a.back)
            #pragma unroll
            for (i = 0; i < 8; i++) moek_arrange_e2m1_(lanes[i / 2].w + i % 2 * 2);
        #pragma unroll
        for (i = 0; i < 4; i++)
            if (a.back) moek_store_words_(at_rows + here.rows[i / 2] + i % 2 * 16, rows[i / 2][i % 2]);
            else moek_store_words_(at_lanes + i * 16, lanes[i]);
    }

    /* The scales of two rows for 64 of k, or for more if one is: scale by scale of both. */
    MOEK_DEVICE void scales(const moek_repack_args a)
    {
        place here;
        int i, h, b;
        if (!find(&a, a.group, &here)) return;
        for (i = 0; i < a.group; i += a.scale_bytes)
            for (h = 0; h < 2; h++)
                for (b = 0; b < a.scale_bytes; b++) {
                    const size_t plain = here.rows[h] + i + b;
                    const size_t tiled = (here.unit * 32 + here.lane) * 2 * a.group + 2 * i + h * a.scale_bytes + b;
                    ((char *)a.to)[a.back ? plain : tiled] = ((const char *)a.from)[a.back ? tiled : plain];
                }
    }

    /* The zero points of two rows, of 4 bits: two bytes of both. */
    MOEK_DEVICE void zeros(const moek_repack_args a)
    {
        place here;
        unsigned char *at_rows = (unsigned char *)a.from, *at_lanes = (unsigned char *)a.to;
        unsigned char *low, *high, *first, *second;
        if (!find(&a, 1, &here)) return;
        if (a.back) { at_rows = (unsigned char *)a.to; at_lanes = (unsigned char *)a.from; }
        low = at_rows + here.rows[0]; high = at_rows + here.rows[1];
        first = at_lanes + here.unit * 64 + here.lane * a.group;
        second = first + (a.group == 2 ? 1 : 32);
        if (a.back) {
            const unsigned x = *first, y = *second;
            *low = (unsigned char)((x & 15) | (y & 15) << 4);
            *high = (unsigned char)(x >> 4 | (y & 0xf0));
        } else {
            const unsigned x = *low, y = *high;
            *first = (unsigned char)((x & 15) | (y & 15) << 4);
            *second = (unsigned char)(x >> 4 | (y & 0xf0));
        }
    }
};

/* Launches one of such kernels.  args NULL: makes them ready. */
template <int THREADS>
static MOEK_UNUSED moek_status moek_launch_repack_simt_(const void *args, moek_stream stream,
                                                        void (*bytes_kernel)(moek_repack_args),
                                                        void (*fragments_kernel)(moek_repack_args),
                                                        void (*scales_kernel)(moek_repack_args),
                                                        void (*zeros_kernel)(moek_repack_args))
{
    enum { WARPS = THREADS / 32 };
    const moek_repack_args *const a = (const moek_repack_args *)args;
    unsigned long long units;
    if (!a) return MOEK_READY_(bytes_kernel, 0);
    if (a->experts < 1) return MOEK_OK;
    if (a->panels || a->block) return MOEK_E_ARGUMENT;
    if (a->zeros && (a->codes || (a->group != 1 && a->group != 2))) return MOEK_E_ARGUMENT;
    if (a->codes || a->group) {
        const int group = a->codes ? 32 : a->zeros ? 1 : a->group, each = a->scale_bytes;
        const int known = a->codes == MOEK_ELEMENT_E2M1 || a->codes == MOEK_ELEMENT_U4B8 ||
                          a->codes == MOEK_ELEMENT_E4M3 || a->codes == MOEK_ELEMENT_S8;
        if (a->row_bytes < (size_t)group || a->row_bytes % group || a->w_rows < 64 || a->w_rows % 64 || a->n % 32 ||
            (a->codes ? a->group || !known
             : !a->zeros && ((group != 2 && group != 4) || (each != 1 && each != 2 && each != 4) || group % each)))
            return MOEK_E_ARGUMENT;
        units = a->row_bytes / group * (unsigned long long)(a->w_rows / 64) * (unsigned)a->experts;
        if (units > 0x7fffffff) return MOEK_E_ARGUMENT;
        units = (units + WARPS - 1) / WARPS;
        if (a->zeros) return MOEK_LAUNCH_(zeros_kernel, (unsigned)units, THREADS, 0, stream, *a);
        if (a->codes) return MOEK_LAUNCH_(fragments_kernel, (unsigned)units, THREADS, 0, stream, *a);
        return MOEK_LAUNCH_(scales_kernel, (unsigned)units, THREADS, 0, stream, *a);
    }
    if (a->row_bytes < 128 || a->row_bytes % 128 || a->w_rows < 8 || a->n % 8 || a->w_rows % 8)
        return MOEK_E_ARGUMENT;
    units = a->row_bytes / 128 * (unsigned long long)(a->w_rows / 8) * (unsigned)a->experts;
    if (units > 0x7fffffff) return MOEK_E_ARGUMENT;
    return MOEK_LAUNCH_(bytes_kernel, (unsigned)((units + 31) / 32), THREADS, 0, stream, *a);
}
#endif
