/* steps/repack_blocks.cuh -- blocks of GGUF files to the order of fragments, or back (moek/ops.h: repack).
 *
 * Bound by memory, read and written once.  A block of threads has 64 rows of the tiled order and some 256s of columns,
 * which lie tiled in one piece.  In the file they are 64 pieces of rows: these come to shared memory, or go from
 * there, by 16 bytes as memory has them, wherever a row begins.  128 threads have 256 columns, a thread the codes of a
 * lane of mma: of rows g and g + 8 of 16 the columns 2q, 2q + 1, 2q + 8 and 2q + 9 of each 16.  Columns that share a
 * byte in the file are then one thread's, so that nothing is read twice, and two neighbours are one access.  Codes are
 * 4 to 16 bytes of a lane in the tiled order, one behind the other, and need no shared memory there.  Scales and f16
 * are a thread a row's, and take the way through shared memory on both sides. */
#ifndef MOEK_STEPS_REPACK_BLOCKS_CUH
#define MOEK_STEPS_REPACK_BLOCKS_CUH
#include "../gemm/fragments_blocks.cuh"
#include "../../include/moek/kernel/file_tiles.h"

template <int THREADS, class Format> struct moek_repack_blocks_ {
    typedef moek_tiled_blocks_<Format, 1> File;
    enum {
        COLUMNS = 256, GROUPS = THREADS / 128,         /* 128 threads are a group */
        /* Bytes of a row: of the least that lies alone, which has File::UNITS times 64 columns; of a group. */
        PIECE = File::UNITS * 64 / Format::BLOCK_COLUMNS * Format::BLOCK_BYTES, BYTES = 4 / File::UNITS * PIECE,
        WORDS = (GROUPS * BYTES + 14 + 15) / 16,       /* of 16 bytes, of a row that begins at any even byte */
        STRIDE = 16 * (WORDS | 1),                     /* eight rows apart: other banks */
        HEADS = 8 * File::ROW_BITS, BESIDE = 4 * HEADS + File::TOP /* of a group: scales of its units; f16 */
    };
    /* ---- Rows of the file ---- */

    MOEK_DEVICE void load_rows(const moek_repack_args *a, unsigned char *rows, const size_t *first, int bytes)
    {
        const size_t all = (size_t)a->experts * (size_t)a->w_rows * a->row_bytes;
        int i;
        for (i = threadIdx.x; i < 64 * WORDS; i += THREADS) {
            const int r = i / WORDS, at = i % WORDS * 16, before = (int)(first[r] % 16);
            const size_t from = first[r] - before + at;
            if (at < before + bytes)                   /* (behind the last row there may be nothing) */
                moek_cp_async16_(rows + r * STRIDE + at, (const char *)a->from + from,
                                 all - from < 16 ? (int)(all - from) : 16);
        }
    }
    MOEK_DEVICE void store_rows(const moek_repack_args *a, const unsigned char *rows, const size_t *first, int bytes)
    {
        int i, b;
        for (i = threadIdx.x; i < 64 * WORDS; i += THREADS) {
            const int r = i / WORDS, at = i % WORDS * 16, before = (int)(first[r] % 16);
            const unsigned char *const word = rows + r * STRIDE + at;
            char *const to = (char *)a->to + (first[r] - before + at);
            if (at >= before && at + 16 <= before + bytes) moek_store_words_(to, moek_load_words_(word));
            else                                       /* others have the rest */
                #pragma unroll
                for (b = 0; b < 16; b += 2)
                    if (at + b >= before && at + b < before + bytes)
                        *(uint16_t *)(void *)(to + b) = *(const uint16_t *)(const void *)(word + b);
        }
    }

    /* ---- Codes ---- */

    /* Where columns c to c + 7 of a group begin in a row, c a multiple of 8. */
    MOEK_DEVICE int byte_of(const moek_plane &p, int c)
    {
        return c / Format::BLOCK_COLUMNS * Format::BLOCK_BYTES + moek_plane_byte_(&p, c % Format::BLOCK_COLUMNS);
    }
    /* Two bytes, one 16 bits up; and back. */
    MOEK_DEVICE uint32_t apart(uint32_t two) { return __byte_perm(two, 0, 0x4140); }
    MOEK_DEVICE uint16_t together(uint32_t two) { return (uint16_t)__byte_perm(two, 0, 0x4420); }
    MOEK_DEVICE uint32_t moved(uint32_t w, int up) { return up < 0 ? w >> -up : w << up; }

    /* A plane of 64 columns, number u of the group's 256, of rows g and g + 8: a lane's words. */
    template <int P> MOEK_DEVICE void codes(unsigned char *to, const unsigned char *const row[2], int u, int lane)
    {
        enum { BITS = P ? File::MORE : File::PLANE, BESIDE_EACH_OTHER = BITS < 4 ? BITS : 4 };
        const moek_plane p = Format::block().plane[P];
        uint32_t w[BITS];
        int i;
        #pragma unroll
        for (i = 0; i < BITS; i++) w[i] = 0;
        #pragma unroll
        for (i = 0; i < 16; i++) {
            const int c = u * 64 + i / 4 * 16 + i % 4 / 2 * 8, q = lane % 4, at = i * BITS % 16;
            const unsigned char *const from = row[i % 2] + byte_of(p, c);
            uint32_t two;
            if (p.run == 1) {                          /* eight columns a byte: its bits 2q and 2q + 1 */
                const uint32_t eight = from[0];
                two = moved((eight | eight << 15) >> 2 * q, at);
            } else {
                two = moved(apart(*(const uint16_t *)(const void *)(from + 2 * q)), at - moek_plane_bit_(&p, c));
            }
            w[i * BITS / 16] = moek_and_or_(two, (uint32_t)(((1 << BITS) - 1) << at) * 0x00010001u,
                                            w[i * BITS / 16]);
        }
        to += lane * 4 * BESIDE_EACH_OTHER;
        #pragma unroll
        for (i = 0; i < BITS; i += 4) {
            if constexpr (BITS == 1) *(uint32_t *)(void *)to = w[0];
            else if constexpr (BITS == 2) *(uint2 *)(void *)to = make_uint2(w[0], w[1]);
            else {
                const moek_words_ four = {{ w[i], w[i + 1], w[i + 2], w[i + 3] }};
                moek_store_words_(to + i / 4 * 2048, four);
            }
        }
    }
    /* A lane's words of a plane, of `units` times 64 columns. */
    template <int P> MOEK_DEVICE void words(uint32_t *w, const unsigned char *from, int units, int lane)
    {
        enum { BITS = P ? File::MORE : File::PLANE, BESIDE_EACH_OTHER = BITS < 4 ? BITS : 4 };
        int u, i, j;
        from += lane * 4 * BESIDE_EACH_OTHER;
        #pragma unroll
        for (u = 0; u < 4; u++)
            #pragma unroll
            for (i = 0; i < BITS; i += BESIDE_EACH_OTHER) {
                moek_words_ got = {{ 0, 0, 0, 0 }};
                const unsigned char *const at = from + u * File::UNIT + i / 4 * 2048;
                if (u < units) {
                    if constexpr (BITS == 1) got.w[0] = *(const uint32_t *)(const void *)at;
                    else if constexpr (BITS == 2) {
                        const uint2 two = *(const uint2 *)(const void *)at;
                        got.w[0] = two.x, got.w[1] = two.y;
                    } else got = moek_load_words_(at);
                }
                #pragma unroll
                for (j = 0; j < BESIDE_EACH_OTHER; j++) w[u * BITS + i + j] = got.w[j];
            }
    }
    /* Of a lane's words of 256 columns the codes of columns c + 2q and c + 2q + 1, c a multiple of 8.  h: row g + 8. */
    template <int BITS> MOEK_DEVICE uint32_t pair(const uint32_t *w, int c, int h, int up)
    {
        const int number = c % 64 / 16 * 4 + c % 16 / 8 * 2 + h, at = number * BITS % 16;
        return moved(w[c / 64 * BITS + number * BITS / 16], up - at) &
               (uint32_t)(((1 << BITS) - 1) << up) * 0x00010001u;
    }
    /* A plane of 256 columns of rows g and g + 8, as the file has it. */
    template <int P> MOEK_DEVICE void plain(unsigned char *const row[2], const uint32_t *w, int lane)
    {
        enum { BITS = P ? File::MORE : File::PLANE };
        const moek_plane p = Format::block().plane[P];
        const int q = lane % 4;
        int h, c, i;
        #pragma unroll
        for (h = 0; h < 2; h++)
            #pragma unroll
            for (c = 0; c < COLUMNS; c += 8) {
                uint32_t v = 0;
                if (p.run == 1) {                      /* four bytes, of each two bits of each lane */
                    if (c % 32) continue;
                    #pragma unroll
                    for (i = 0; i < 4; i++) {
                        const uint32_t two = pair<BITS>(w, c + 8 * i, h, 0);
                        v |= ((two | two >> 15) & 3) << 8 * i;
                    }
                    v <<= 2 * q;
                    v |= __shfl_xor_sync(0xffffffff, v, 1);
                    v |= __shfl_xor_sync(0xffffffff, v, 2);
                    if (q < 2) *(uint16_t *)(void *)(row[h] + byte_of(p, c) + 2 * q) = (uint16_t)(v >> 16 * q);
                } else {
                    if (c % p.unit / p.run) continue;
                    #pragma unroll
                    for (i = 0; i < p.unit / p.run; i++)
                        v |= pair<BITS>(w, c + i * p.run, h, moek_plane_bit_(&p, c + i * p.run));
                    *(uint16_t *)(void *)(row[h] + byte_of(p, c) + 2 * q) = together(v);
                }
            }
    }

    /* ---- Scales, minimums and f16 of a row ---- */

    /* A scale (kind 0) or minimum of a block.  (One loop, for the compiler then sees each byte as a constant's.) */
    MOEK_DEVICE uint32_t scale_of(const unsigned char *block, int kind, int n)
    {
        const moek_block_scale s = kind ? Format::block().min : Format::block().scale;
        return moek_planes_get_(s.plane, s.planes, block, n);
    }
    MOEK_DEVICE void put_scale(unsigned char *block, int kind, int n, uint32_t bits)
    {
        const moek_block_scale s = kind ? Format::block().min : Format::block().scale;
        moek_planes_put_(s.plane, s.planes, block, n, bits);
    }
    /* Number n of a row in unit u of a group: block and number there. */
    MOEK_DEVICE int block_at(int u, int n)
    {
        return (u * 64 + n % File::GROUPS * File::COLUMNS) / Format::BLOCK_COLUMNS * Format::BLOCK_BYTES;
    }
    MOEK_DEVICE int number_at(int u, int n)
    {
        return (u * 64 + n % File::GROUPS * File::COLUMNS) % Format::BLOCK_COLUMNS / File::COLUMNS;
    }
    /* Where the f16 of scales, of minimums lie in a block of 256 columns. */
    MOEK_DEVICE int top_at(int kind) { return kind ? Format::block().min.top_at : Format::block().scale.top_at; }

    /* All of row r of 64, of four units: to where they lie side by side as tiled.  All lanes of a warp take part. */
    MOEK_DEVICE void heads(unsigned char *beside, const unsigned char *row, int r)
    {
        uint32_t w[4][2];
        int u, n;
        #pragma unroll
        for (u = 0; u < 4; u++) {
            w[u][0] = w[u][1] = 0;
            #pragma unroll
            for (n = 0; n < File::HEAD; n++)
                w[u][n * Format::SCALE_BITS / 32] |=
                    scale_of(row + block_at(u, n), n / File::GROUPS, number_at(u, n)) << n * Format::SCALE_BITS % 32;
        }
        #pragma unroll
        for (u = 0; u < 4; u++) {
            unsigned char *const to = beside + u * HEADS + r * File::ROW_BITS / 8;
            if constexpr (File::ROW_BITS == 64) *(uint2 *)(void *)to = make_uint2(w[u][0], w[u][1]);
            else if constexpr (File::ROW_BITS == 32) *(uint32_t *)(void *)to = w[u][0];
            else if constexpr (File::ROW_BITS == 24)
                to[0] = (uint8_t)w[u][0], to[1] = (uint8_t)(w[u][0] >> 8), to[2] = (uint8_t)(w[u][0] >> 16);
            else {                                     /* 12 bits: two rows have three bytes */
                const uint32_t next = __shfl_xor_sync(0xffffffff, w[u][0], 1);
                if (r % 2) to[1] = (uint8_t)(w[u][0] >> 4);
                else to[0] = (uint8_t)w[u][0], to[1] = (uint8_t)(w[u][0] >> 8 | next << 4);
            }
        }
        #pragma unroll
        for (n = 0; n < Format::TOPS; n++)
            *(uint16_t *)(void *)(beside + 4 * HEADS + (r * Format::TOPS + n) * 2) =
                *(const uint16_t *)(const void *)(row + top_at(n));
    }
    MOEK_DEVICE void plain_heads(unsigned char *row, const unsigned char *beside, int r)
    {
        enum { FIRST = Format::HEAD_FIRST, END = Format::HEAD_END };
        int block, u, n, i;
        #pragma unroll
        for (block = 0; block < BYTES; block += Format::BLOCK_BYTES) {
            unsigned char bytes[END];
            #pragma unroll
            for (i = 0; i < END; i++) bytes[i] = 0;
            #pragma unroll
            for (u = 0; u < 4; u++) {
                const int first = r * File::ROW_BITS % 8;
                const unsigned char *const from = beside + u * HEADS + r * File::ROW_BITS / 8;
                uint32_t w[2] = { 0, 0 };
                if (block_at(u, 0) > block || block_at(u, File::GROUPS - 1) < block) continue;
                if constexpr (File::ROW_BITS == 64) w[1] = ((const uint32_t *)(const void *)from)[1];
                if constexpr (File::ROW_BITS % 32 == 0) w[0] = *(const uint32_t *)(const void *)from;
                else if constexpr (File::ROW_BITS == 24) w[0] = from[0] | from[1] << 8 | from[2] << 16;
                else w[0] = (from[0] | from[1] << 8) >> first;
                #pragma unroll
                for (n = 0; n < File::HEAD; n++)
                    if (block_at(u, n) == block)
                        put_scale(bytes, n / File::GROUPS, number_at(u, n),
                                  w[n * Format::SCALE_BITS / 32] >> n * Format::SCALE_BITS % 32 &
                                  (uint32_t)((1ull << Format::SCALE_BITS) - 1));
            }
            #pragma unroll
            for (i = FIRST; i < END; i += 2)
                *(uint16_t *)(void *)(row + block + i) = (uint16_t)(bytes[i] | bytes[i + 1] << 8);
        }
        #pragma unroll
        for (n = 0; n < Format::TOPS; n++)
            *(uint16_t *)(void *)(row + top_at(n)) =
                *(const uint16_t *)(const void *)(beside + 4 * HEADS + (r * Format::TOPS + n) * 2);
    }
    /* What lies beside codes, of `units` units: all groups' to the tiled order at `tiles`, or from there. */
    MOEK_DEVICE void move_beside(unsigned char *tiles, unsigned char *beside, int units, int back)
    {
        enum { EACH = HEADS / 16, OF_GROUP = BESIDE / 16 };
        int i;
        for (i = threadIdx.x; i < GROUPS * OF_GROUP; i += THREADS) {
            const int group = i / OF_GROUP, n = i % OF_GROUP, u = n / EACH < 4 ? n / EACH : 3;
            unsigned char *const tile = tiles + (size_t)group * (64 * BYTES) + (u + 1) * File::UNIT - HEADS +
                                        (n - u * EACH) * 16;
            if (4 * group + u >= units) continue;
            if (back) moek_cp_async16_(beside + i * 16, tile, 16);
            else moek_store_words_(tile, moek_load_words_(beside + i * 16));
        }
    }

    /* ---- A block of threads ---- */

    MOEK_DEVICE void run(const moek_repack_args *a, int back)
    {
        __shared__ __align__(16) unsigned char rows[64 * STRIDE], beside[GROUPS * BESIDE];
        __shared__ size_t first[64];                   /* where the rows begin in the file */
        const unsigned blocks = (unsigned)a->w_rows / 64, t = threadIdx.x, lane = t % 128, group = t / 128;
        const unsigned chunks = (unsigned)((a->row_bytes + GROUPS * BYTES - 1) / (GROUPS * BYTES));
        const unsigned w_block = blockIdx.x / chunks;
        const size_t at = (size_t)(blockIdx.x % chunks) * (GROUPS * BYTES), left = a->row_bytes - at;
        const int bytes = left < GROUPS * BYTES ? (int)left : (int)(GROUPS * BYTES);
        const int units = bytes / PIECE * File::UNITS, mine = units - (int)group * 4;
        unsigned char *const tiles = (unsigned char *)(back ? (void *)(uintptr_t)a->from : a->to) +
                                     ((size_t)w_block * a->row_bytes + at) * 64;
        unsigned char *const my_tiles = tiles + (size_t)group * (64 * BYTES), *row[2];
        const int r = (int)(lane / 32 * 16 + lane % 32 / 4);
        int u;
        if (t < 64)
            first[t] = ((size_t)(w_block / blocks) * (size_t)a->w_rows +
                        moek_file_tile_row_(a, (int)(w_block % blocks * 64 + t))) * a->row_bytes + at;
        __syncthreads();
        for (u = 0; u < 2; u++) row[u] = rows + (r + 8 * u) * STRIDE + first[r + 8 * u] % 16 + group * BYTES;
        unsigned char *const head = rows + lane % 64 * STRIDE + first[lane % 64] % 16 + group * BYTES;
        if (back) {
            uint32_t w[4 * File::PLANE], more[4 * File::MORE + 1];
            words<0>(w, my_tiles, mine, (int)lane);
            if constexpr (File::MORE > 0) words<1>(more, my_tiles + 512 * File::PLANE, mine, (int)lane);
            move_beside(tiles, beside, units, 1);
            moek_cp_async_commit_();
            plain<0>(row, w, (int)lane);
            if constexpr (File::MORE > 0) plain<1>(row, more, (int)lane);
            moek_cp_async_wait_(0);
            __syncthreads();
            if (lane < 64) plain_heads(head, beside + group * BESIDE, (int)lane);
            __syncthreads();
            store_rows(a, rows, first, bytes);
        } else {
            load_rows(a, rows, first, bytes);
            moek_cp_async_commit_();
            moek_cp_async_wait_(0);
            __syncthreads();
            #pragma unroll
            for (u = 0; u < 4; u++)
                if (u < mine) {
                    codes<0>(my_tiles + u * File::UNIT, row, u, (int)lane);
                    if constexpr (File::MORE > 0)
                        codes<1>(my_tiles + u * File::UNIT + 512 * File::PLANE, row, u, (int)lane);
                }
            if (lane < 64) heads(beside + group * BESIDE, head, (int)lane);
            __syncthreads();
            move_beside(tiles, beside, units, 0);
        }
    }
};

/* Launches one of such kernels, to the order of fragments or back.  args NULL: makes them ready. */
template <int THREADS, class Format>
static MOEK_UNUSED moek_status moek_launch_repack_blocks_(const void *args, moek_stream stream,
                                                          void (*kernel)(moek_repack_args),
                                                          void (*back_kernel)(moek_repack_args))
{
    typedef moek_repack_blocks_<THREADS, Format> K;
    const moek_repack_args *const a = (const moek_repack_args *)args;
    unsigned long long chunks;
    if (!a) {
        const moek_status status = MOEK_READY_(kernel, 0);
        return status == MOEK_OK ? MOEK_READY_(back_kernel, 0) : status;
    }
    if (a->experts < 1) return MOEK_OK;
    if (!a->block || a->block->type != Format::BLOCK_TYPE || !moek_file_tiles_take_(a, a->block))
        return MOEK_E_ARGUMENT;
    chunks = (a->row_bytes + K::GROUPS * K::BYTES - 1) / (K::GROUPS * K::BYTES) * (unsigned long long)(a->w_rows / 64) *
             (unsigned)a->experts;
    if (chunks > 0x7fffffff) return MOEK_E_ARGUMENT;
    if (a->back) return MOEK_LAUNCH_(back_kernel, (unsigned)chunks, THREADS, 0, stream, *a);
    return MOEK_LAUNCH_(kernel, (unsigned)chunks, THREADS, 0, stream, *a);
}
#endif
