/* gemm/fragments_mma.cuh -- up or down with weights in the order of fragments, on Ampere and everything newer, of the
 * rows r of each expert: out[r] = act(gate(x[r]), up(x[r])), or out[r] = h[r] . w_down.  For gemm_fragments_mma of the
 * table.
 *
 * A grouped GEMM by mma.sync, persistent: BLOCKS blocks an SM.  Weights have 4 or 8 bits and lie in the order of
 * fragments (moek/ops.h: repack), which is mma's order of 16 rows, too.  A tile is M rows of a by N rows of w.  Rows of
 * w are mma's 16 rows: a lane loads 16 bytes of codes, and makes T of them.  Rows of a are mma's columns, and come by
 * ldmatrix.
 *
 * - Walk: tiles are numbered expert by expert, row block by row block, column by column; their stages are cut into
 *   equal shares, one a block (include/moek/kernel/schedule.h).  Of tall tiles (M >= 96) blocks take whole ones in
 *   turns.  Shares are dealt from the last block down, and the block that has the first stage of a tile adds the sums
 *   of the others, in the order of k.  So a block waits only for blocks with lower numbers, which began before: a
 *   launch may have more blocks than are resident.
 * - A stage is 64 of k: rows of a, swizzled | codes of 64 rows of w each | their scales | zero points.  All threads
 *   copy, by cp.async.  A stage has one barrier, ahead of its last 16 of k: all warps have then loaded what they need
 *   of this stage, and the next one is there.  (Blocks of GGUF files, from 32 rows on: 16 of k earlier, and scales
 *   and minimums of the next stage become factors while those 16 are multiplied.)
 * - Warps share a tile by rows of w, and from 64 rows of a on by these as well.
 * - Operands lie in registers twice: 16 of k are loaded and converted while those before are multiplied.  (A tile
 *   begins with the conversion of its first ones.)
 * - A gated tile has half as many columns.  Rows of gate and of up alternate, 8 by 8, so that a thread has both of a
 *   column.
 * - Scales for 128 x 128: 128 of k are summed by themselves, and added times their scale.
 * - Other elements times their scales are w * 2^-shift (templates/element/), so that they fit in T.  The epilogue
 *   multiplies by 2^shift.
 */
#ifndef MOEK_GEMM_FRAGMENTS_MMA_CUH
#define MOEK_GEMM_FRAGMENTS_MMA_CUH
#include "../../include/moek/kernel/act.h"
#include "fragments_blocks.cuh"
#include "fragments_finish.cuh"

/* Blocks of GGUF files: up to so many rows of a, scales and minimums act in sums.  (docs/notes: blocks-two-parts) */
#ifndef MOEK_BLOCKS_IN_SUMS
#define MOEK_BLOCKS_IN_SUMS 32
#endif

/* HIDDEN: the hidden size, or 0: a run has the size.  Format: of moek_formats.h. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format> struct moek_fragments_mma_ {
    typedef moek_tiled_blocks_<Format, Format::IN_BLOCKS> File;
    enum {
        UP = OP == MOEK_OP_UP, THREADS = 256,
        OF_FILE = Format::IN_BLOCKS,                    /* blocks of GGUF files: codes, scales and f16 side by side */
        COLUMNS = Format::W_SCALE_COLUMNS,              /* of a scale; 0: all, and then it acts in the epilogue */
        BY_ROW = COLUMNS == 0 && !OF_FILE, ZERO = Format::ZERO,        /* ZERO: there may be zero points */
        BYTES = Format::W_BITS == 8 && !OF_FILE, BY_BLOCK = BYTES && !BY_ROW,          /* scales are for 128 x 128 */
        TALL = M >= 96,
        WM = M >= 64 ? 2 : 1, WN = 8 / WM,              /* warps by rows of a, by rows of w; 8s and 16s of each warp: */
        NI = M / (8 * WM), MI = N / (16 * WN), SUMS = MI * NI * 4,
        /* Scales of a row in 64 of k; bytes of two rows' scales; bytes of 64 rows; so many times in 128 of k. */
        G = !BY_ROW && !OF_FILE && COLUMNS < 64 ? 64 / (COLUMNS + BY_ROW + OF_FILE) : 1,
        EACH = BY_ROW || BYTES || OF_FILE ? 0 : 2 * G * Format::W_SCALE_BITS / 8, WORDS = EACH > 0 ? EACH / 4 : 1,
        OF_64 = 32 * EACH, ZEROS_64 = ZERO ? OF_64 / 4 : 0, UNITS = COLUMNS < 128 ? 2 : 1,
        WORDS_16 = OF_FILE ? File::WORDS_16 : BYTES ? 2 : 1,  /* 16s of bytes of codes of a lane: 16 rows, 64 of k */
        W_64 = OF_FILE ? File::UNIT + File::TOP : 2048 * WORDS_16,     /* bytes of codes of 64 rows of w */
        X_64 = 128,                                     /* of a row of a */
        CODES = M * X_64, SCALES = CODES + N / 64 * W_64,     /* in a stage */
        ZEROS = SCALES + (BY_BLOCK ? N / 8 : N / 64 * OF_64),
        STAGE = ZEROS + N / 64 * ZEROS_64, RING = STAGES * STAGE,
        SCHEDULE = 8448, ORDER = 2 * MOEK_SELF_SORT,
        /* Of blocks: short tiles multiply sums of a group by its scale, and sums of x by its minimum; others weights,
         * which are rounded once.  LESS: codes are more than integers, and sums begin with so much less. */
        IN_SUMS = OF_FILE && M <= MOEK_BLOCKS_IN_SUMS, LESS = IN_SUMS && NI == 1 && File::BITS < 8,
        IN_WEIGHTS = OF_FILE && !IN_SUMS,
        OF_X = LESS || (IN_SUMS && File::MINIMUM),      /* sums of x are needed */
        HEAD = File::HEAD, HEADS = OF_FILE ? 8 * MI * 16 * HEAD * 4 : 0, LANES_ROWS = MI / 2,
        /* Ahead of which 16 of k the next stage is waited for.  EARLY: factors are made one stage ahead. */
        EARLY = OF_FILE && M >= 32, BARRIER = EARLY ? 2 : 3,
        SHARED = RING + SCHEDULE + ORDER + 4 * M + HEADS,
        BLOCKS = SHARED <= 50176 ? 2 : 1,               /* of an SM of 100 KB, of which each takes 1 KB more */
        X_SETS = NI == 1 ? 4 : 2,                       /* 16s of k of a in registers: ldmatrix brings two at a time */
        ROWS = (M * 8 + THREADS - 1) / THREADS          /* rows of a of which a thread copies 16 bytes */
    };

    /* What a block knows: its shared memory, where a lane's operands lie in a stage, facts of the GEMM, and the block's
     * range of it. */
    struct block {
        unsigned char *ring;
        int x_at, codes_at, more_at, scales_at, zeros_at;
        uint32_t *heads;                                /* OF_FILE: factors, [rows of the warp][HEAD] */
        uint16_t *order;                                /* [slots]: by expert, where the block sorts */
        int *rows;                                      /* [M]: where the tile's rows go, or -1 */
        moek_work_range_ range;
        int n, k, columns;                              /* columns: of a tile */
        unsigned share;
    };
    /* What a thread copies next: of a tile, its 16 bytes of codes of the first 64 rows of w (and so many bytes on, of
     * others), of scales and of zero points, and of rows of a in units of 16 bytes. */
    struct copies {
        const unsigned char *codes, *scales, *zeros, *x;
        unsigned apart, row[ROWS];
        int tile_index, step, until, rows, last;        /* rows: of the tile; last: of its 64s of w; -1: no tile */
    };
    enum {
        PASS = OF_FILE ? N / 64 : 16 * THREADS / W_64,  /* 64s of w that all threads copy at once */
        PASSES = N / 64 / PASS,
        OF_64_THREADS = OF_FILE ? THREADS / (N / 64) : W_64 / 16,      /* that copy of the same 64 rows of w */
        SCALES_FROM = THREADS - N / 64 * OF_64 / 16, ZEROS_FROM = THREADS / 2,         /* the first threads that do */
        OF_SCALES = OF_64 > 0 ? OF_64 / 16 : 1, OF_ZEROS = ZEROS_64 > 0 ? ZEROS_64 / 16 : 1       /* threads of 64 */
    };
    /* Operands of 16 of k, twice; and of 64 of k of w, before they are T. */
    struct operands {
        uint32_t x[X_SETS][NI][2], w[2][MI][4];
        moek_words_ codes[MI][WORDS_16];
        float by[2];                                    /* BY_BLOCK: scales of rows g and g + 8, of the last 128 of k */
        uint32_t more[MI][File::MORE ? File::MORE : 1];                /* OF_FILE: the second plane */
        uint32_t scales[MI][WORDS], zeros[MI], odd;     /* odd: of 8 bits, rows with a NaN */
    };

    /* ---- copies -------------------------------------------------------------------------------------------------- */

    MOEK_DEVICE const unsigned char *zeros_of(const moek_gemm_ *args)
    {
        if constexpr (ZERO) return (const unsigned char *)args->w.zero_points;
        else return NULL;
    }
    /* The row of a of sorted row p. */
    MOEK_DEVICE int source_of(const moek_gemm_ *a, const block *b, int p)
    {
        if (a->ids) return UP ? b->order[p] / a->rows.div : p;
        return a->rows.order ? a->rows.order[p] / a->rows.div : p;
    }
    /* To stage `step` of tile c->tile_index, if there is such a tile. */
    MOEK_DEVICE void seat(const moek_gemm_ *args, const block *b, copies *c, moek_tile_ *tile, int step)
    {
        enum { TWO = COLUMNS > 0 ? 2 * COLUMNS : 1 };
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int t = threadIdx.x, scales_t = t - SCALES_FROM, zeros_t = t - ZEROS_FROM;
        const unsigned blocks = (unsigned)a->w_rows / 64;
        const unsigned codes_row = (unsigned)b->k / 64 * W_64;
        const unsigned scales_row = ((unsigned)b->k * UNITS + 127) / 128 * OF_64;
        const unsigned zeros_row = ((unsigned)b->k + TWO - 1) / TWO * 64;
        size_t first;
        int i;
        c->last = -1;
        if (c->tile_index >= b->range.last) return;
        if (TALL) moek_tile_at_(a, &b->range, c->tile_index, M, b->columns, tile);
        else moek_next_tile_(a, &b->range, c->tile_index, M, b->columns, tile);
        c->step = step;
        c->until = !TALL && c->tile_index == b->range.last - 1 ? b->range.last_step : b->range.steps;
        c->rows = min(tile->end - tile->row0, M);
        c->last = min(N / 64 - 1, (int)blocks - 1 - tile->j * (N / 64));
        first = (size_t)tile->e * blocks + (unsigned)tile->j * (N / 64);
        c->apart = PASS * codes_row;
        if constexpr (OF_FILE)
            c->codes = (const unsigned char *)a->w.codes + (first + (unsigned)t / OF_64_THREADS) * File::of_rows(b->k) +
                       File::of_step(step) + t % OF_64_THREADS * 16;
        else
            c->codes = (const unsigned char *)a->w.codes + (first + (unsigned)t / OF_64_THREADS) * codes_row +
                       (unsigned)step * W_64 + t % OF_64_THREADS * 16;
        if constexpr (BY_BLOCK) {                       /* half t % 2 of 64 rows of w: their scales */
            const moek_gate_up_ *const h = &a->gate_up;
            const int column = tile->j0 + t / 2 * (UP && a->w_rows > b->n ? 32 : 64);
            const size_t row = (size_t)tile->e * h->scale_rows +
                               (MOEK_HALF_(h->shift, t % 2) + min(column, b->n - 1) * h->step) / 128;
            c->scales = (const unsigned char *)(MOEK_HALF_(h->scales, t % 2) + row * (((unsigned)b->k + 127) / 128) +
                                                step / 2);
        } else if constexpr (!BY_ROW && !OF_FILE)
            c->scales = (const unsigned char *)a->w.scales +
                        (first + (size_t)max(scales_t, 0) / OF_SCALES) * scales_row +
                        (unsigned)(step / (3 - UNITS)) * OF_64 + max(scales_t, 0) % OF_SCALES * 16;
        if constexpr (ZERO && !BY_ROW)
            c->zeros = zeros_of(args) + (first + (size_t)max(zeros_t, 0) / OF_ZEROS) * zeros_row +
                       (unsigned)(step / (3 - UNITS)) * ZEROS_64 + max(zeros_t, 0) % OF_ZEROS * 16;
        c->x = (const unsigned char *)a->a + (size_t)step * X_64;
        #pragma unroll
        for (i = 0; i < ROWS; i++) {
            const int r = t / 8 + i * (THREADS / 8);
            if (r < c->rows)
                c->row[i] = (unsigned)source_of(a, b, tile->row0 + r) * ((unsigned)a->a_row_bytes / 16) + t % 8;
        }
    }
    /* OF_FILE: a stage's codes and scales, and the f16 of the blocks behind them, which stages of a block share. */
    MOEK_DEVICE void copy_units(unsigned char *stage, const copies *c)
    {
        enum { AT_ONCE = 16 * OF_64_THREADS };
        const int of_64 = threadIdx.x / OF_64_THREADS, at = threadIdx.x % OF_64_THREADS * 16;
        const int apart = File::to_top(c->step) - File::UNIT;
        unsigned char *const to = stage + CODES + of_64 * W_64 + at;
        int i;
        if (of_64 > c->last) return;
        #pragma unroll
        for (i = 0; i < W_64; i += AT_ONCE)
            if (i + AT_ONCE <= W_64 || at + i < W_64)
                moek_cp_async16_(to + i, c->codes + i + (i + AT_ONCE > File::UNIT && at + i >= File::UNIT ? apart : 0),
                                 16);
    }
    /* A stage is asked for, if there is one, and a group closed. */
    MOEK_DEVICE void ask(const moek_gemm_ *args, const block *b, copies *c, moek_tile_ *tile, unsigned char *stage,
                         int zero)
    {
        const int t = threadIdx.x, scales_t = t - SCALES_FROM, zeros_t = t - ZEROS_FROM;
        int i;
        if (c->last >= 0) {
            const int new_unit = UNITS == 2 || c->step % 2;            /* the next 64 of k have other scales */
            unsigned char *const codes_to = stage + CODES + t * 16, *const x_to = stage + t / 8 * X_64 +
                                                                                  (t % 8 ^ t / 8 % 8) * 16;
            if constexpr (OF_FILE) copy_units(stage, c);
            #pragma unroll
            for (i = 0; i < PASSES && !OF_FILE; i++)
                if (t / OF_64_THREADS + i * PASS <= c->last)
                    moek_cp_async16_(codes_to + i * THREADS * 16, c->codes + (size_t)i * c->apart, 16);
            if constexpr (BY_BLOCK) {
                if (t < N / 32) moek_cp_async4_(stage + SCALES + t * 4, c->scales);
                if (new_unit) c->scales += 4;
            } else if constexpr (!BY_ROW && !OF_FILE) {
                if (scales_t >= 0 && scales_t / OF_SCALES <= c->last)
                    moek_cp_async16_(stage + SCALES + scales_t * 16, c->scales, 16);
                if (new_unit) c->scales += OF_64;
            }
            if constexpr (ZERO && !BY_ROW)
                if (zero) {
                    if (zeros_t >= 0 && zeros_t < N / 64 * OF_ZEROS && zeros_t / OF_ZEROS <= c->last)
                        moek_cp_async16_(stage + ZEROS + zeros_t * 16, c->zeros, 16);
                    if (new_unit) c->zeros += ZEROS_64;
                }
            #pragma unroll
            for (i = 0; i < ROWS; i++)
                if (t / 8 + i * (THREADS / 8) < c->rows)
                    moek_cp_async16_(x_to + i * (THREADS / 8) * X_64, c->x + (size_t)c->row[i] * 16, 16);
            if constexpr (OF_FILE) c->codes += File::UNIT + (c->step % File::UNITS == File::UNITS - 1 ? File::TOP : 0);
            else c->codes += W_64;
            c->x += X_64;
            if (++c->step == c->until) {
                c->tile_index += b->range.stride;
                seat(args, b, c, tile, 0);
            }
        }
        moek_cp_async_commit_();
    }

    /* ---- operands ------------------------------------------------------------------------------------------------ */

    /* Which of the tile's 16s of rows of w is number mi of this warp; its first row of a. */
    MOEK_DEVICE int m16_of(int mi) { return (int)threadIdx.x / 32 % WN * MI + mi; }
    MOEK_DEVICE int x_row(void) { return (int)threadIdx.x / 32 / WN * (M / WM); }
    /* Where a lane's operands lie in a stage.  (Short tiles have registers for these numbers; the compiler would reckon
     * them again in each stage.) */
    MOEK_DEVICE int kept(int at)
    {
        if constexpr (TALL) return at;
        else return moek_opaque_int_(at);
    }
    MOEK_DEVICE void place_operands(block *b)
    {
        const int lane = threadIdx.x % 32, r = lane % 8, matrix = lane / 8;
        b->x_at = kept(NI == 1 ? r * X_64 + (matrix ^ r) * 16
                               : (x_row() + matrix / 2 * 8 + r) * X_64 + (matrix % 2 ^ r) * 16);
        b->codes_at = kept(CODES + m16_of(0) / 4 * W_64 + m16_of(0) % 4 * 512 + lane * 16);
        if constexpr (OF_FILE) {
            const int m16 = m16_of(0), first = CODES + m16 / 4 * W_64;
            b->codes_at = kept(first + (m16 % 4 * 32 + lane) * 4 * File::WORDS);
            b->more_at = kept(first + 512 * File::PLANE + (m16 % 4 * 32 + lane) * 4 * File::MORE);
            b->heads = (uint32_t *)(void *)(b->ring + RING + SCHEDULE + ORDER + 4 * M) +
                       threadIdx.x / 32 * (MI * 16 * HEAD);
        }
        b->scales_at = kept(SCALES + (BY_BLOCK ? m16_of(0) / 4 * 8 : (m16_of(0) * 8 + lane / 4) * EACH));
        b->zeros_at = kept(ZEROS + (m16_of(0) * 8 + lane / 4) * (EACH / 4));
    }
    /* Codes, scales and zero points of a stage. */
    MOEK_DEVICE void load_codes(operands *o, const block *b, const unsigned char *stage, int zero)
    {
        int mi, i;
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            #pragma unroll
            for (i = 0; i < WORDS_16 && File::PLANE >= 4; i++)
                o->codes[mi][i] = moek_load_words_(stage + b->codes_at + mi * 512 + i * 2048);
            #pragma unroll
            for (i = 0; i < File::PLANE && File::PLANE < 4; i++)
                o->codes[mi][0].w[i] =
                    ((const uint32_t *)(const void *)(stage + b->codes_at + mi * (128 * File::PLANE)))[i];
            #pragma unroll
            for (i = 0; i < File::MORE; i++)
                o->more[mi][i] = ((const uint32_t *)(const void *)(stage + b->more_at + mi * (128 * File::MORE)))[i];
            if constexpr (!BY_ROW && !BY_BLOCK && !OF_FILE) {
                const unsigned char *const scales = stage + b->scales_at + mi * (8 * EACH);
                #pragma unroll
                for (i = 0; i < WORDS; i++) o->scales[mi][i] = ((const uint32_t *)(const void *)scales)[i];
                if (ZERO && zero) {
                    const unsigned char *const zeros = stage + b->zeros_at + mi * (2 * EACH);
                    o->zeros[mi] = G == 2 ? *(const uint16_t *)(const void *)zeros : *zeros;
                }
            }
        }
    }
    /* 16 of k of rows of a, number i of a stage. */
    MOEK_DEVICE void load_x(operands *o, const block *b, const unsigned char *stage, int i)
    {
        const unsigned char *const at = stage + (b->x_at ^ i * 32);
        int ni;
        if constexpr (NI == 1) {                        /* two at a time */
            uint32_t of[4];
            if (i % 2) return;
            moek_ldmatrix4_(of, at);
            o->x[i][0][0] = of[0]; o->x[i][0][1] = of[1]; o->x[i + 1][0][0] = of[2]; o->x[i + 1][0][1] = of[3];
        } else {
            #pragma unroll
            for (ni = 0; ni < NI; ni += 2) {
                uint32_t of[4];
                moek_ldmatrix4_(of, at + ni * (8 * X_64));
                o->x[i % 2][ni][0] = of[0]; o->x[i % 2][ni][1] = of[1];
                o->x[i % 2][ni + 1][0] = of[2]; o->x[i % 2][ni + 1][1] = of[3];
            }
        }
    }
    /* 16 of k, number i of a stage, of 16 rows of w become T.  (What is not used of the 64 is not made.) */
    MOEK_DEVICE void convert(operands *o, const block *b, int mi, int i, int zero, int dtype)
    {
        uint32_t *const to = o->w[i % 2][mi];
        if constexpr (IN_SUMS) {
            File::template pairs<!LESS>(to, o->codes[mi], o->more[mi], i, dtype);
        } else if constexpr (IN_WEIGHTS) {
            const factors f = factors_of(b, mi, i * 16 / File::COLUMNS);
            const uint32_t *const by[2] = { f.of[0], f.of[1] };
            File::weights(to, o->codes[mi], o->more[mi], by, i, dtype);
        } else if constexpr (BYTES) {
            uint32_t pairs[4];
            Format::w_pairs(pairs, o->codes[mi][i / 2].w + i % 2 * 2, 0, 0, dtype);
            to[0] = pairs[0]; to[1] = pairs[2]; to[2] = pairs[1]; to[3] = pairs[3];
        } else {
            uint32_t w[4][4];
            int j;
            Format::fragment(w, o->codes[mi], o->scales[mi], zero ? o->zeros[mi] : 0, zero, dtype);
            #pragma unroll
            for (j = 0; j < 4; j++) to[j] = w[i][j];
        }
    }
    /* OF_FILE: scales and minimums of a stage, of this warp's rows of w, as they lie; and as factors.  (A lane reads
     * factors of any of 16 rows.) */
    struct heads { typename File::raw of[LANES_ROWS]; };
    MOEK_DEVICE void load_heads(heads *h, const unsigned char *stage)
    {
        int i;
        #pragma unroll
        for (i = 0; i < LANES_ROWS; i++) {
            const int row = m16_of(0) * 16 + threadIdx.x % 32 + 32 * i;
            const unsigned char *const unit = stage + CODES + row / 64 * W_64;
            h->of[i] = File::raw_of(unit, unit + File::UNIT, row % 64);
        }
    }
    MOEK_DEVICE void keep_heads(const block *b, const heads *h, int dtype)
    {
        const float by_min = (float)Format::SIGN * (LESS ? -1.0f / (1 << File::BITS) : 1.0f);
        uint32_t f[LANES_ROWS][HEAD];
        int i, j;
        #pragma unroll
        for (i = 0; i < LANES_ROWS; i++) {
            if constexpr (IN_SUMS) {
                float s[HEAD];
                File::head(s, &h->of[i], File::by(dtype), by_min);
                #pragma unroll
                for (j = 0; j < HEAD; j++) f[i][j] = moek_bits_(s[j]);
            } else {
                File::factors(f[i], &h->of[i], threadIdx.x % 16, dtype);
            }
        }
        __syncwarp();                                   /* all lanes are done with the stage before */
        #pragma unroll
        for (i = 0; i < LANES_ROWS; i++) File::put(b->heads + (threadIdx.x % 32 + 32 * i) * HEAD, f[i]);
        __syncwarp();
    }
    /* Short tiles: both at once, at a stage's beginning.  (By the two functions above 64 tokens of q6_K took 238 us for
     * 191; why is not known.) */
    MOEK_DEVICE void take_heads(const block *b, const unsigned char *stage, int dtype)
    {
        const float by_min = (float)Format::SIGN * (LESS ? -1.0f / (1 << File::BITS) : 1.0f);
        int r;
        #pragma unroll
        for (r = threadIdx.x % 32; r < MI * 16; r += 32) {
            const int row = m16_of(0) * 16 + r;
            const unsigned char *const unit = stage + CODES + row / 64 * W_64;
            File::head((float *)(void *)(b->heads + r * HEAD), unit, unit + File::UNIT, row % 64, File::by(dtype),
                       by_min);
        }
        __syncwarp();
    }
    /* The factors of group j of this lane's rows g and g + 8 of 16: [EACH] of each. */
    struct factors { uint32_t of[2][File::EACH]; };
    MOEK_DEVICE factors factors_of(const block *b, int mi, int j)
    {
        factors f;
        int h;
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const int g = (TALL ? moek_opaque_int_(threadIdx.x) : threadIdx.x) % 32 / 4;
            const uint32_t *const at = b->heads + (mi * 16 + h * 8 + g) * HEAD + j * File::EACH;
            f.of[h][0] = at[0];
            if constexpr (File::MINIMUM) {
                const uint2 both = *(const uint2 *)(const void *)at;
                f.of[h][0] = both.x, f.of[h][File::MINIMUM] = both.y;
            }
        }
        return f;
    }
    /* Codes of 8 bits of a stage: is there a NaN, which bf16 would not show?  (o->odd: as moek_spoil_ takes it.) */
    MOEK_DEVICE void look(operands *o, int dtype)
    {
        int mi, i, half;
        if constexpr (BYTES && Format::W_CHECKED)
            #pragma unroll
            for (mi = 0; mi < MI && dtype == MOEK_DTYPE_BF16; mi++)
                #pragma unroll
                for (i = 0; i < 2; i++)
                    #pragma unroll
                    for (half = 0; half < 2; half++) {
                        const uint32_t both[2] = { o->codes[mi][half].w[i], o->codes[mi][half].w[i + 2] };
                        o->odd |= Format::w_nan(both) >> (2 * mi + i);
                    }
    }

    /* ---- sums ---------------------------------------------------------------------------------------------------- */

    /* Of a tile that is cut along k: the block with its first stage adds the sums of the others.  first: this block's
     * first stage of the tile.  1: the tile is another block's. */
    MOEK_DEVICE int reduce(const moek_gemm_ *a, const block *b, float *sum, int tile_index, int first)
    {
        float *const parts = a->split + threadIdx.x;    /* [shares][SUMS][THREADS] */
        int i, j;
        if (first > 0) {
            #pragma unroll
            for (i = 0; i < SUMS; i++) __stcg(parts + ((size_t)b->share * SUMS + i) * THREADS, sum[i]);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) moek_flag_add_(a->split_flags + b->share);
            return 1;
        }
        for (i = (int)b->share + 1; ; i++) {            /* their blocks began before this one, and with these sums */
            moek_flag_reach_(a->split_flags + i, 1);
            #pragma unroll
            for (j = 0; j < SUMS; j++) sum[j] += __ldcg(parts + ((size_t)i * SUMS + j) * THREADS);
            if (moek_first_stage_of_(a, &b->range, i + 1) >= (unsigned)(tile_index + 1) * b->range.steps) break;
        }
        return 0;
    }
    /* OF_X: an Inf in x may make a NaN of two sums, where w times Inf is Inf: sums that are NaN are made again. */
    MOEK_DEVICE void mend(const moek_gemm_ *a, const block *b, float *sum, const moek_tile_ *tile, int m16,
                          int dtype)
    {
        const int row = tile->j * N + m16 * 16 + threadIdx.x % 32 / 4;
        const size_t blocks = (size_t)tile->e * ((unsigned)a->w_rows / 64);
        int i, j, odd = 0;
        #pragma unroll
        for (i = 0; i < NI * 4; i++) odd |= (sum[i] != sum[i]) << i;
        #pragma unroll 1
        for (i = 0; odd >> i; i++) {                    /* (the code is there once, or all the others would be slow) */
            const int r = x_row() + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, at = row + i % 4 / 2 * 8;
            float again;
            if (!(odd >> i & 1) || b->rows[r] < 0 || at >= a->w_rows) continue;
            again = File::sum_again((const unsigned char *)a->w.codes + (blocks + at / 64) * File::of_rows(b->k),
                                    at % 64, (const unsigned char *)a->a +
                                    (size_t)source_of(a, b, tile->row0 + r) * (unsigned)a->a_row_bytes, b->k, dtype);
            #pragma unroll
            for (j = 0; j < NI * 4; j++) if (j == i) sum[j] = again;
        }
    }
    /* Scale, bias, activation, and out, of 16 rows of w.  sum: of rows g and g + 8 (gated: of gate and of up, or the
     * other way round), columns 2q and 2q + 1 of each 8 rows of a. */
    MOEK_DEVICE void finish(const moek_gemm_ *args, const block *b, float *sum, const moek_tile_ *tile, int m16,
                            int dtype)
    {
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int n = b->n;
        const int gated = UP ? a->w_rows > n : 0, swapped = UP ? a->gate_up.swapped : 0;
        const int j = tile->j0 + (gated ? 8 : 16) * m16;
        const float shift_factor = Format::shift_factor(dtype);      /* sums are too small by it */
        float scale[2] = { shift_factor, shift_factor }, bias[2] = {0, 0};
        int i;
        if (j >= n) return;
        if constexpr (OF_X) mend(a, b, sum, tile, m16, dtype);
        moek_scale_and_bias_<UP, BY_ROW, Format>(scale, bias, args, tile->e, j, gated, dtype);
        #pragma unroll
        for (i = 0; i < NI * 4; i++) sum[i] = sum[i] * scale[i % 4 / 2] + bias[i % 4 / 2];
        if constexpr (UP) moek_act_sums_<NI * 8>(a, sum, swapped);
        moek_store_turned_(sum, NI * 8, gated, b->rows + x_row(), a->out, n, j, dtype);
    }

    /* BY_BLOCK: sums of 128 of k, times their scales, to the sums before; then they begin anew. */
    MOEK_DEVICE void promote(float *sum, float *part, const float by[2])
    {
        int i;
        #pragma unroll
        for (i = 0; i < SUMS; i++) {
            sum[i] += part[i] * by[i % 4 / 2];
            part[i] = 0;
        }
    }

    /* IN_SUMS: what 16 of k give.  part: sums of a group; of_x: its sums of x, of 16 equal rows; LESS: times what codes
     * are more than integers, and negative. */
    struct parts { float part[IN_SUMS ? MI : 1][NI][4], of_x[OF_X ? NI : 1][4]; };
    MOEK_DEVICE int first_of(int i) { return i * 16 % File::COLUMNS == 0; }
    MOEK_DEVICE uint32_t x_times(int dtype)
    {
        if constexpr (LESS) return File::less(dtype);
        else return dtype == MOEK_DTYPE_FP16 ? 0x3c003c00 : 0x3f803f80;
    }
    MOEK_DEVICE void sum_x(parts *p, const operands *o, int i, int dtype)
    {
        enum { AT_ONCE = LESS ? File::COLUMNS / 16 : 1 };              /* 16s of k, which are in registers */
        const float none[4] = {0, 0, 0, 0};
        int ni, j;
        if constexpr (OF_X) {
            const uint32_t w = x_times(dtype), rows[4] = { w, w, w, w };
            #pragma unroll
            for (ni = 0; ni < NI && (!LESS || first_of(i)); ni++)
                #pragma unroll
                for (j = i; j < i + AT_ONCE; j++)
                    moek_mma_from_t_(p->of_x[ni], rows, o->x[j % X_SETS][ni], first_of(j) ? none : p->of_x[ni], dtype);
        }
    }
    MOEK_DEVICE void add_part(parts *p, float sum[NI][4], const block *b, const operands *o, int mi, int i, int dtype)
    {
        const float none[4] = {0, 0, 0, 0};
        int ni, h;
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            const float *const before = !first_of(i) ? p->part[mi][ni] : LESS ? p->of_x[LESS ? ni : 0] : none;
            moek_mma_from_t_(p->part[mi][ni], o->w[i % 2][mi], o->x[i % X_SETS][ni], before, dtype);
        }
        if (first_of(i + 1)) {
            const factors f = factors_of(b, mi, i * 16 / File::COLUMNS);
            #pragma unroll
            for (ni = 0; ni < NI; ni++)
                #pragma unroll
                for (h = 0; h < 4; h++) {
                    sum[ni][h] = fmaf(p->part[mi][ni][h], moek_float_(f.of[h / 2][0]), sum[ni][h]);
                    if constexpr (File::MINIMUM)
                        sum[ni][h] = fmaf(p->of_x[ni][h], moek_float_(f.of[h / 2][File::MINIMUM]), sum[ni][h]);
                }
        }
    }

    /* ---- a block ------------------------------------------------------------------------------------------------- */

    /* A stage: 64 of k.  o: its codes, and operands of its first 16 of k; then the next stage's.  slot: the stage's
     * place in the ring; returns the place of the next stage. */
    MOEK_DEVICE int multiply(const moek_gemm_ *args, const block *b, copies *c, moek_tile_ *tile, operands *o,
                             float sum[MI][NI][4], int slot, int zero, int dtype)
    {
        unsigned char *const stage = b->ring + slot;
        const unsigned char *next = stage;
        heads h;
        parts p;
        int i, mi, ni;
        look(o, dtype);
        if constexpr (OF_FILE && !EARLY) {
            __syncwarp();                               /* all lanes are done with the stage before */
            take_heads(b, stage, dtype);
        }
        if constexpr (BY_BLOCK)
            #pragma unroll
            for (i = 0; i < 2; i++) o->by[i] = ((const float *)(const void *)(stage + b->scales_at))[i];
        #pragma unroll
        for (i = 0; i < 4; i++) {
            if (EARLY && i < 3) load_x(o, b, stage, i + 1);
            if (i == BARRIER) {
                if ((slot += STAGE) == RING) slot = 0;
                next = b->ring + slot;
                moek_cp_async_wait_(STAGES - 2);
                __syncthreads();
                if constexpr (EARLY && !TALL) load_heads(&h, next);
                ask(args, b, c, tile, stage, zero);
            }
            if (i == 3) load_codes(o, b, next, zero);
            if (!EARLY || i == 3) load_x(o, b, next, (i + 1) % 4);
            sum_x(&p, o, i, dtype);
            #pragma unroll
            for (mi = 0; mi < MI; mi++) {
                if constexpr (IN_SUMS) add_part(&p, sum[mi], b, o, mi, i, dtype);
                else
                    #pragma unroll
                    for (ni = 0; ni < NI; ni++) moek_mma_t_(sum[mi][ni], o->w[i % 2][mi], o->x[i % X_SETS][ni], dtype);
                convert(o, b, mi, (i + 1) % 4, zero, dtype);
            }
            if constexpr (EARLY)
                if (i == (IN_SUMS ? 3 : 2)) {
                    if constexpr (TALL) load_heads(&h, next);          /* (no registers until here) */
                    keep_heads(b, &h, dtype);
                }
        }
        return slot;
    }
    MOEK_DEVICE void run(const moek_gemm_ *args, int zero, int dtype)
    {
        MOEK_SHARED_(unsigned char, shared);
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int t = threadIdx.x;
        moek_tile_ tile, of_copies;
        operands o;
        copies c;
        block b;
        int tile_index, slot = 0, i, j, step;
        b.ring = shared;
        b.order = (uint16_t *)(void *)(shared + RING + SCHEDULE);
        b.rows = (int *)(void *)(shared + RING + SCHEDULE + ORDER);
        b.k = UP && HIDDEN ? HIDDEN : a->k; b.n = !UP && HIDDEN ? HIDDEN : a->n;
        b.columns = UP && a->w_rows > b.n ? N / 2 : N;
        b.range.tiles = (b.n + b.columns - 1) / b.columns;
        b.range.steps = b.k / 64;
        b.share = MOEK_SHARE_(1);
        {
            int *const counts = (int *)(void *)(shared + RING) - MOEK_SCHEDULE_EXPERTS;        /* (before any stage) */
            uint16_t *const ids = (uint16_t *)(void *)shared;
            moek_work_range_of_(a, &b.range, ids, counts, M, UP, 1);
            if (a->ids) {
                if (t < 32) moek_order_of_(b.order, counts, ids, a->slots, b.range.s.row, a->experts);
                __syncthreads();
            }
        }
        if (b.range.tile >= b.range.last) return;
        place_operands(&b);
        moek_grid_wait_();                              /* now a is there */
        tile.e = of_copies.e = -1;
        c.tile_index = b.range.tile;
        seat(args, &b, &c, &of_copies, TALL ? 0 : b.range.first_step);
        for (i = 0; i < STAGES; i++) ask(args, &b, &c, &of_copies, b.ring + i * STAGE, zero);
        moek_cp_async_wait_(STAGES - 1);
        __syncthreads();
        for (tile_index = b.range.tile; tile_index < b.range.last; tile_index += b.range.stride) {
            const int first = !TALL && tile_index == b.range.tile ? b.range.first_step : 0;
            const int until = !TALL && tile_index == b.range.last - 1 ? b.range.last_step : b.range.steps;
            float sum[MI][NI][4] = {{{0}}}, total[BY_BLOCK ? SUMS : 1] = {0};
            int row = -1;
            if (TALL) moek_tile_at_(a, &b.range, tile_index, M, b.columns, &tile);
            else moek_next_tile_(a, &b.range, tile_index, M, b.columns, &tile);
            if (t < M && tile.row0 + t < tile.end) {
                row = tile.row0 + t;
                if (!UP && a->ids) row = b.order[row];
                else if (a->rows.out_order) row = a->rows.out_order[row];
            }
            if constexpr (ZERO && BY_ROW)
                if (zero)
                    #pragma unroll
                    for (i = 0; i < MI; i++) {
                        const int gated = UP ? a->w_rows > b.n : 0;
                        o.zeros[i] = moek_row_zeros_(args, &tile, b.n, tile.j0 + (gated ? 8 : 16) * m16_of(i), gated);
                    }
            load_codes(&o, &b, b.ring + slot, zero);
            load_x(&o, &b, b.ring + slot, 0);
            if constexpr (EARLY) {
                heads h;
                load_heads(&h, b.ring + slot);
                keep_heads(&b, &h, dtype);
            }
            #pragma unroll
            for (i = 0; i < MI; i++) convert(&o, &b, i, 0, zero, dtype);
            o.odd = 0;
            #pragma unroll 1
            for (step = first; step < until; step++) {
                slot = multiply(args, &b, &c, &of_copies, &o, sum, slot, zero, dtype);
                if constexpr (BY_BLOCK) if (step % 2 || step == until - 1) promote(total, sum[0][0], o.by);
            }
            if constexpr (BY_BLOCK)
                #pragma unroll
                for (i = 0; i < SUMS; i++) sum[i / (NI * 4)][i / 4 % NI][i % 4] = total[i];
            if constexpr (BYTES && Format::W_CHECKED) moek_spoil_<MI, NI * 8>(sum[0][0], o.odd);
            if (!TALL && (first > 0 || until < b.range.steps) && reduce(a, &b, sum[0][0], tile_index, first)) continue;
            if (t < M) b.rows[t] = row;
            __syncthreads();
            #pragma unroll
            for (j = 0; j < MI; j++) finish(args, &b, sum[j][0], &tile, m16_of(j), dtype);
        }
    }
};

/* Launches one of these kernels: of bf16, of fp16, and the same for zero points.  args NULL: makes them ready. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format>
static MOEK_UNUSED moek_status moek_launch_fragments_mma_(const void *args, moek_stream stream,
                                                          void (*bf16)(moek_gemm_),
                                                          void (*fp16)(moek_gemm_),
                                                          void (*bf16_zero)(moek_gemm_) = NULL,
                                                          void (*fp16_zero)(moek_gemm_) = NULL)
{
    typedef moek_fragments_mma_<OP, M, N, STAGES, HIDDEN, Format> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    void (*const kernels[4])(moek_gemm_) = { bf16, fp16, bf16_zero, fp16_zero };
    moek_gemm_ found;
    moek_gemm_ *const g = &found;
    unsigned blocks;
    long long tiles;
    int i;
    if (!a) {
        moek_status status = MOEK_OK;
        for (i = 0; i < 4 && status == MOEK_OK; i++) if (kernels[i]) status = MOEK_READY_(kernels[i], K::SHARED);
        return status;
    }
    if (a->max_blocks < 1 || a->experts < 1) return MOEK_OK;
    if (a->experts > MOEK_SCHEDULE_EXPERTS || !a->w.layout || a->gate.codes || a->k_offset ||
        a->k % (64 * K::File::UNITS) || a->w_rows % 64)
        return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    moek_find_gemm_<Format>(&found, 1);
    tiles = (long long)a->max_blocks * (a->rows_per_expert ? a->experts : 1) * ((a->n + N / 2 - 1) / (N / 2));
    if (tiles > 0x3fffffff) return MOEK_E_ARGUMENT;                            /* (or half as many tiles) */
    if (K::TALL || tiles * (a->k / 64) > 0x3fffffff) g->split = NULL;
    blocks = K::BLOCKS * moek_multiprocessors_();
    i = a->dtype == MOEK_DTYPE_FP16;
    if constexpr (Format::ZERO) if (found.w.zero_points) i += 2;
    return MOEK_CHAIN_ORDERED_(kernels[i], blocks, K::THREADS, K::SHARED, stream, a->early, found);
}

/* A row of the table: its kernels and their launcher.  Behind `threads`: the parameters of moek_fragments_mma_. */
#define MOEK_FRAGMENTS_MMA_KERNEL_(name, threads, zero, dtype, ...) \
    static __global__ void __launch_bounds__(threads, moek_fragments_mma_<__VA_ARGS__>::BLOCKS) \
    name(const __grid_constant__ moek_gemm_ args) \
    { \
        moek_fragments_mma_<__VA_ARGS__>::run(&args, zero, dtype); \
    }
#define MOEK_FRAGMENTS_MMA_ROW_(row, threads, ...) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_bf16_, threads, 0, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_fp16_, threads, 0, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_fragments_mma_<__VA_ARGS__>(args, stream, row##_bf16_, row##_fp16_); \
    }
#define MOEK_FRAGMENTS_MMA_ZERO_ROW_(row, threads, ...) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_bf16_, threads, 0, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_fp16_, threads, 0, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_bf16_zero_, threads, 1, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_FRAGMENTS_MMA_KERNEL_(row##_fp16_zero_, threads, 1, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_fragments_mma_<__VA_ARGS__>(args, stream, row##_bf16_, row##_fp16_, \
                                                       row##_bf16_zero_, row##_fp16_zero_); \
    }
#endif
