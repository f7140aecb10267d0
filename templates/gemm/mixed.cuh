/* gemm/mixed.cuh -- the grouped GEMM of the experts with weights of 4 or 8 bits and activations in T, or with different
 * elements of at most 8 bits, on tensor cores, Ampere and everything newer (mixed-input GEMM).
 *
 *   out[p][j] = f(sum over k of a[row(p)][k] * w[e][j][k])       moek/ops.h: up and down
 *
 * Weights become T in registers, in front of mma.sync, and are its first operand: 16 rows of w times 8 tokens.
 *   A block owns M tokens of one expert and R rows of its weights.  A step covers SLICES slices of 128 of k; cp.async
 *   keeps STAGES - 1 steps on their way.  Warps share a block by rows (WR) and by slices of k (WK).
 *   Few tokens: WK = 4, since a warp then reads x of its own slice only.  The sums of the WK are added in the epilogue,
 *   in order.
 *
 * Order of k: within a slice, lane q of each four has 32 of k that follow each other, of w and of x alike.  So a lane
 * reads 16 bytes at a time, and the scale of a group of 32 is one number in one lane.
 *   x in a stage: [M][SLICES][16 chunks of 16 bytes]; chunk c of row r lies at (c / 4 + c % 4 * 4) ^ (r % 2 * 4)
 *   w in a stage: [R][chunks of 16 bytes of SLICES]; chunk c of row r lies at c ^ (r % 2 * 4), of 8 bits c ^ r % 2
 *   x of fewer bits than T: as w
 * No bank conflicts, and a row of w is read in pieces of 128 bytes or more.
 *
 * Scales, by their shape:
 *   FOLDED, of blocks of 16 to 128 of k, f32 excepted: times the element, rounded to T once (e2m1 times a power of two
 *     or an e4m3: exact); a lane fetches the scales of the next step during this one
 *   PROMOTED, of 128 columns, f32: the sums of 128 of k are multiplied and added
 *   of a row or a matrix, and global scales: in the epilogue
 * Where x is quantized, both sides become bf16 or fp16 in registers (Format::INNER), whichever holds them exactly,
 * whatever T is.  Its scales:
 *   X_FOLDED, of 16 of k: times the element
 *   X_PROMOTED, of 128 of k: times the sums of 128 of k, with scales of w
 *   of a row: where such sums are multiplied anyway, there, since both may be extreme (X_EARLY); else in the epilogue
 * WHOLE, from sm_89 on, of 4-bit weights and x in e4m3: weights become e4m3 in registers, exactly and without their
 * scales, and x goes into the mma as it lies.  A lane has 8 of each 32 of k, so that the sums of an mma are of one
 * group, or of 16 of k, by an mma each.  Their scale multiplies them in f32, before they are added.
 *   w: chunk c of row r lies at c ^ r % 8; x: pair p of chunks at p ^ r % 4
 * SCALED, on sm_120 and sm_121, of e2m1 with e8m0 scales: the same by block scale (ptx_sm120.h).  Weights are spread to
 * a byte each, and their scales go into the mma: a lane has a word of four for a row.  Sums of a slice are multiplied
 * by scales of x.
 * Elements may come as w * 2^-shift (templates/element/), so that bits of theirs are a subnormal T: the epilogue
 * multiplies by 2^shift.
 */
#ifndef MOEK_GEMM_MIXED_CUH
#define MOEK_GEMM_MIXED_CUH
#include "../../include/moek/kernel/ptx_sm120.h"
#include "mma_finish.cuh"

/* A tile of M tokens and R rows of w: N columns, or of a gated up 2 x N.  HIDDEN: the hidden size, or 0: a run has
 * the size.  Format: of moek_formats.h.  WHOLE: 1, or 2: SCALED. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format, int WHOLE = 0> struct moek_mixed_ {
    enum {
        UP = OP == MOEK_OP_UP, R = UP ? 2 * N : N, THREADS = 128,
        W_BITS = Format::W_BITS, X_BITS = Format::X_BITS, BOTH = Format::INNER > 0, ZERO = Format::ZERO,
        C = Format::W_SCALE_COLUMNS, XC = Format::X_SCALE_COLUMNS,
        PROMOTED = C > 0 && Format::W_SCALE_F32, FOLDED = C > 0 && !PROMOTED,
        SCALED = WHOLE == 2,
        BY_BLOCK = PROMOTED && Format::W_SCALE_ROWS == 128,                    /* one scale for all 16 rows */
        PAIR = FOLDED && C == 16,                       /* two scales for the 32 of k of a lane */
        X_FOLDED = BOTH && XC > 0 && XC < 128, X_PROMOTED = BOTH && XC == 128,
        X_BY_ROW = BOTH && XC == 0, X_EARLY = PROMOTED && X_BY_ROW,
        APART = PROMOTED || X_PROMOTED,                 /* the sums of a slice are */
        FETCHED = (FOLDED && !SCALED) || PROMOTED || ZERO, X_FETCHED = X_FOLDED || X_PROMOTED,
        SHIFT = SCALED ? 0 : 1 + WHOLE,                 /* of sums, in the epilogue */
        SHIFTED = C > 0 && !UP,                         /* a group of k may begin before k does, */
        OUTSIDE = SHIFTED && C < XC,                    /* and groups of w lie before it altogether */
        CHECKS = W_BITS == 8 && !BOTH,                 /* NaN is looked for where T is bf16 */
        X_CHECKS = Format::X_CHECKED && Format::INNER_BF16 && !WHOLE,
        PLAIN = Format::W_SCALED && !FOLDED && !ZERO,   /* elements that could take a scale, and have none */
        /* R is shared by WR warps, k by WK, of which a warp has U slices of 128 in a step; MI x NI pieces of 16 rows
         * and 8 tokens of a warp. */
        WR = M == 64 ? 4 : M == 32 ? 2 : 1, WK = 4 / WR, U = W_BITS == 4 && M == 64 ? 2 : 1, SLICES = WK * U,
        MI = R / (16 * WR), NI = M / 8,
        GRANULE = 128 / W_BITS,                         /* 16 bytes of w */
        X_CHUNKS = X_BITS * SLICES, W_CHUNKS = W_BITS * SLICES, X_PITCH = 16 * X_CHUNKS, W_PITCH = 16 * W_CHUNKS,
        X_SWAP = X_BITS == 8 ? 1 : 4, W_SWAP = W_BITS == 4 ? 4 : 1,
        X_PASS = THREADS / X_CHUNKS, W_PASS = THREADS / W_CHUNKS, X_COPIES = M / X_PASS, W_COPIES = R / W_PASS,
        STAGE = M * X_PITCH + R * W_PITCH, STEP = 128 * SLICES,
        RING = STAGES * STAGE,                          /* the sums, [WK][M][R + 4], lie there later */
        SHARED = RING + 4 * (M + R),
        REGISTERS = MI * NI * (APART ? 8 : 4) + (WHOLE ? 170 : 110),   /* about */
        BY_SHARED = MOEK_SM_SHARED_ / (SHARED + 1024),  /* blocks that fit into an SM */
        BY_REGISTERS = 65536 / (THREADS * REGISTERS),
        BLOCKS = BY_SHARED < BY_REGISTERS ? BY_SHARED : BY_REGISTERS,
        WORDS = (MI + 1) / 2,                           /* SCALED: of scales that a lane has for a slice */
        GROUP = 2048 / M, NOBODY = -1
    };

    /* ---- epilogue ------------------------------------------------------------------------------------------------ */

    /* ---- copies -------------------------------------------------------------------------------------------------- */

    /* What a thread copies in each step: chunks of rows, offsets in units of 16 bytes (NOBODY: a row that nobody needs,
     * left as it is); the chunks' k in a step, and where they lie in a stage. */
    struct copies {
        uint32_t x[X_COPIES], w[W_COPIES];
        int x_k, w_k, x_to, w_to;
    };
    MOEK_DEVICE void place_copies(copies *c, const int32_t *row, int x_row_bytes, int k)
    {
        const int t = (int)threadIdx.x, x_from = t / X_CHUNKS, w_from = t / W_CHUNKS;
        const int x_chunk = t % X_CHUNKS, place = BOTH ? x_chunk ^ x_from % 2 * X_SWAP : x_chunk;
        const int x_place = place ^ x_from % 2 * 4, w_chunk = t % W_CHUNKS;
        int i;
        c->x_k = BOTH ? x_chunk * (128 / X_BITS) : x_place / 16 * 128 + (x_place % 4 * 4 + x_place / 4 % 4) * 8;
        c->w_k = w_chunk * GRANULE;
        c->x_to = x_from * X_PITCH + (WHOLE ? x_chunk ^ x_from % 4 * 2 : place) * 16;
        c->w_to = M * X_PITCH + w_from * W_PITCH + (w_chunk ^ (WHOLE ? w_from % 8 : w_from % 2 * W_SWAP)) * 16;
        #pragma unroll
        for (i = 0; i < X_COPIES; i++) {
            const int r = row[x_from + i * X_PASS];
            c->x[i] = r < 0 ? (uint32_t)NOBODY : (uint32_t)r * (uint32_t)(x_row_bytes / 16);
        }
        #pragma unroll
        for (i = 0; i < W_COPIES; i++) {
            const int r = row[M + w_from + i * W_PASS];
            c->w[i] = r < 0 ? (uint32_t)NOBODY : (uint32_t)r * (uint32_t)(k / GRANULE);
        }
    }
    /* Copies of a step to its stage, k from `k_first` on (SHIFTED: which may be before the first); beyond k: zeros.
     * apart: from a row of w to the same row of the other half of the tile. */
    MOEK_DEVICE void copy(unsigned char *stage, const copies *c, const unsigned char *x, const unsigned char *w,
                          ptrdiff_t apart, int k, int k_first)
    {
        const int x_k = k_first + c->x_k, w_k = k_first + c->w_k;
        const int x_bytes = (unsigned)x_k < (unsigned)k ? 16 : 0, w_bytes = (unsigned)w_k < (unsigned)k ? 16 : 0;
        const unsigned char *x_source = x;
        if constexpr (X_BITS == 16) x_source += x_bytes ? (ptrdiff_t)x_k * 2 : 0;
        else x_source += x_bytes ? X_BITS == 4 ? x_k / 2 : x_k : 0;
        const unsigned char *const first = w + (w_bytes ? W_BITS == 4 ? w_k / 2 : w_k : 0);
        const unsigned char *const second = first + apart;             /* rows of the other half of the tile */
        int i;
        #pragma unroll
        for (i = 0; i < X_COPIES; i++)
            if (c->x[i] != (uint32_t)NOBODY)
                moek_cp_async16_(stage + c->x_to + i * X_PASS * X_PITCH, x_source + (uint64_t)c->x[i] * 16, x_bytes);
        #pragma unroll
        for (i = 0; i < W_COPIES; i++)
            if (c->w[i] != (uint32_t)NOBODY)
                moek_cp_async16_(stage + c->w_to + i * W_PASS * W_PITCH,
                                 (!UP || i < W_COPIES / 2 ? first : second) + (uint64_t)c->w[i] * 16, w_bytes);
    }

    /* ---- scales -------------------------------------------------------------------------------------------------- */

    /* Scales and zero points of the rows of a lane, which are 16 mi + 8 i on from its first: where the scales of
     * each 16 begin, and what the lane needs of them in a step.  (Structs of their own: with members that a format
     * has not, the compiler orders registers in another way.) */
    struct scales_at { const void *scale[MI]; };
    struct lanes { unsigned lane[2]; };                /* of them: from the 16 rows' first to the lane's */
    struct zeros_at { const uint8_t *zero[MI]; unsigned lane[2]; };            /* all NULL: there are none */
    struct folded_scales { uint32_t scale[U][MI][2]; };
    struct promoted_scales { float scale[U][MI][BY_BLOCK ? 1 : 2]; };
    struct zeros { uint32_t zero[U][MI][2]; };
    /* row: of w, for the first row of the warp.  n is a multiple of 16, so that all of 16 rows are needed, or none. */
    MOEK_DEVICE void place_scales(scales_at *places, lanes *to_lanes, zeros_at *to_zeros, const moek_gemm_ *args,
                                  const int32_t *row, int r0, int e, int groups)
    {
        const moek_gate_up_ *const h = &args->gate_up;
        const unsigned g = threadIdx.x % 32 / 4 * (unsigned)h->step;
        int mi;
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            const int j = row[mi * 16] < 0 ? 0 : row[mi * 16];         /* nobody's: as the first */
            const int half = UP ? r0 + mi * 16 >= R / 2 : 0;
            if constexpr (C > 0) {
                const size_t first_scale =
                    (size_t)e * h->scale_rows + (BY_BLOCK ? (MOEK_HALF_(h->shift, half) + j) / 128 : j);
                const void *const scales = MOEK_HALF_(h->scales, half);
                places->scale[mi] =
                    Format::W_SCALE_F32 ? (const void *)((const float *)scales + first_scale * groups)
                    : Format::W_SCALE_BITS == 16 ? (const void *)((const uint16_t *)scales + first_scale * groups)
                    : (const uint8_t *)scales + first_scale * groups;
            }
            if constexpr (ZERO)
                to_zeros->zero[mi] = !h->zero_points[0] ? NULL : (const uint8_t *)MOEK_HALF_(h->zero_points, half) +
                                     ((size_t)e * h->rows + j) * ((groups + 1) / 2);
        }
        if (C > 0 && !BY_BLOCK) {
            to_lanes->lane[0] = g * (unsigned)(PAIR ? groups / 2 : groups);
            to_lanes->lane[1] = to_lanes->lane[0] + 8 * (unsigned)((PAIR ? groups / 2 : groups) * h->step);
        }
        if (ZERO) {
            to_zeros->lane[0] = g * (unsigned)((groups + 1) / 2);
            to_zeros->lane[1] = to_zeros->lane[0] + 8 * (unsigned)((groups + 1) / 2 * h->step);
        }
    }
    /* p: k of the lane's first slice, from where the groups begin.  Behind the last group: the last, times zeros.
     * OUTSIDE: ahead of `first`, the group of the first column: this one, since those are of another shard, and may be
     * NaN. */
    MOEK_DEVICE void fetch(folded_scales *folded, promoted_scales *promoted, zeros *to_zeros, const scales_at *places,
                           const lanes *at_lanes, const zeros_at *at_zeros, int p, int first, int groups)
    {
        int u, mi, i;
        #pragma unroll
        for (u = 0; u < U; u++) {
            int g = 0;
            if constexpr (C > 0) {
                enum { COLUMNS = PAIR ? 32 : C };
                g = OUTSIDE ? max(first, min((p + u * 128) / COLUMNS, groups - 1))
                            : min((p + u * 128) / COLUMNS, (PAIR ? groups / 2 : groups) - 1);
                #pragma unroll
                for (mi = 0; mi < MI; mi++) {
                    const void *const w_scales = places->scale[mi];
                    if constexpr (BY_BLOCK) {
                        promoted->scale[u][mi][0] = ((const float *)w_scales)[g];
                    } else {
                        #pragma unroll
                        for (i = 0; i < 2; i++) {
                            const unsigned n = at_lanes->lane[i] + (unsigned)g;
                            if constexpr (PROMOTED) promoted->scale[u][mi][i] = ((const float *)w_scales)[n];
                            else if constexpr (PAIR || Format::W_SCALE_BITS == 16)
                                folded->scale[u][mi][i] = ((const uint16_t *)w_scales)[n];
                            else folded->scale[u][mi][i] = ((const uint8_t *)w_scales)[n];
                        }
                    }
                }
            }
            if constexpr (ZERO) {
                #pragma unroll
                for (mi = 0; mi < MI; mi++)
                    #pragma unroll
                    for (i = 0; i < 2; i++) to_zeros->zero[u][mi][i] = Format::NO_ZERO;
                if (at_zeros->zero[0])
                    #pragma unroll
                    for (mi = 0; mi < MI; mi++)
                        #pragma unroll
                        for (i = 0; i < 2; i++)
                            to_zeros->zero[u][mi][i] =
                                at_zeros->zero[mi][at_zeros->lane[i] + (unsigned)g / 2] >> 4 * (g % 2) & 15;
            }
        }
        (void)p; (void)first; (void)groups;
    }
    /* SCALED: the rows whose scales this lane has, 4 for each 128 of k: lanes 4 g + 2 t + h have row g + 8 h of 16
     * rows number 2 i + t. */
    struct words_at { const uint8_t *word[WORDS]; };
    struct scale_words { uint32_t word[U][WORDS]; };
    MOEK_DEVICE void place_words(words_at *places, const moek_gemm_ *args, const int32_t *row, int r0, int e,
                                 int groups)
    {
        const moek_gate_up_ *const h = &args->gate_up;
        const int lane = (int)threadIdx.x % 32, below = lane / 4 + lane % 2 * 8;
        int i;
        #pragma unroll
        for (i = 0; i < WORDS; i++) {
            const int mi = min(2 * i + lane % 4 / 2, MI - 1), j = row[mi * 16] < 0 ? 0 : row[mi * 16];
            const int half = UP ? r0 + mi * 16 >= R / 2 : 0;
            places->word[i] = (const uint8_t *)MOEK_HALF_(h->scales, half) +
                              ((size_t)e * h->scale_rows + j + below * h->step) * groups;
        }
    }
    /* p: k of the warp's first slice, from where the groups begin.  Outside the groups as fetch. */
    MOEK_DEVICE void fetch_words(scale_words *to, const words_at *places, int p, int first, int groups)
    {
        int u, i, b;
        #pragma unroll
        for (u = 0; u < U; u++)
            #pragma unroll
            for (i = 0; i < WORDS; i++) {
                const uint8_t *const from = places->word[i];
                const int g = (p + u * 128) / C;
                if (first == 0 && ((uintptr_t)from | (uintptr_t)groups) % 4 == 0) {
                    to->word[u][i] = *(const uint32_t *)(const void *)(from + min(g, groups - 4));
                    continue;
                }
                to->word[u][i] = 0;
                #pragma unroll
                for (b = 0; b < 4; b++)
                    to->word[u][i] |= (uint32_t)from[max(first, min(g + b, groups - 1))] << 8 * b;
            }
    }
    /* The same of x.  X_FOLDED: scales of the token g of each 8, two for the 32 of k of a lane; else of the tokens 2q
     * and 2q + 1 of each 8, as sums have them. */
    struct x_scales_at { const void *scale[NI][X_FOLDED ? 1 : 2]; };
    struct x_folded_scales { uint16_t scale[U][NI]; };
    struct x_promoted_scales { float scale[U][NI][2]; };
    /* row: of a; the first has somebody. */
    MOEK_DEVICE void place_x_scales(x_scales_at *places, const moek_gemm_ *a, const int32_t *row, int groups)
    {
        int ni, i;
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            if constexpr (X_FOLDED) {
                const int r = row[ni * 8 + threadIdx.x % 32 / 4];
                places->scale[ni][0] = (const uint16_t *)a->a_scale + (size_t)(r < 0 ? *row : r) * (groups / 2);
            } else {
                #pragma unroll
                for (i = 0; i < 2; i++) {
                    const int r = row[ni * 8 + threadIdx.x % 4 * 2 + i];
                    places->scale[ni][i] = (const float *)a->a_scale + (size_t)(r < 0 ? *row : r) * groups;
                }
            }
        }
    }
    MOEK_DEVICE void fetch_x(x_folded_scales *folded, x_promoted_scales *promoted, const x_scales_at *places, int p,
                             int groups)
    {
        int u, ni, i;
        #pragma unroll
        for (u = 0; u < U; u++) {
            const int g = min((p + u * 128) / (X_FOLDED ? 32 : 128), (X_FOLDED ? groups / 2 : groups) - 1);
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                if constexpr (X_FOLDED) {
                    folded->scale[u][ni] = ((const uint16_t *)places->scale[ni][0])[g];
                } else {
                    #pragma unroll
                    for (i = 0; i < 2; i++) promoted->scale[u][ni][i] = ((const float *)places->scale[ni][i])[g];
                }
            }
        }
    }
    /* SCALED: of the tokens 2q and 2q + 1 of each 8, of a slice, k from p on.  Where they are is found anew each time,
     * since registers are scarce, and this slice's mma are ahead of their use. */
    MOEK_DEVICE void fetch_x_slice(float scale[NI][2], const moek_gemm_ *a, const int32_t *row, int p, int groups)
    {
        const int g = min(p / 128, groups - 1);
        int ni, i;
        #pragma unroll
        for (ni = 0; ni < NI; ni++)
            #pragma unroll
            for (i = 0; i < 2; i++) {
                const int r = row[ni * 8 + threadIdx.x % 4 * 2 + i];
                scale[ni][i] = MOEK_F32_(a->a_scale)[(size_t)max(r, 0) * groups + g];  /* nobody's: as any */
            }
    }
    /* Scales and zero points as the elements are multiplied by them. */
    struct factors { uint32_t scale[MI][2][PAIR ? 2 : 1]; };
    struct zero_factors { uint32_t zero[MI][2]; };
    struct x_factors { uint32_t x[NI][2]; };
    MOEK_DEVICE void convert(factors *w_factors, zero_factors *to_zeros, x_factors *to_x,
                             const folded_scales *raw_scales, const zeros *from_zeros, const x_folded_scales *x, int u,
                             int dtype)
    {
        int mi, i;
        if constexpr (X_FOLDED) {
            int ni;
            #pragma unroll
            for (ni = 0; ni < NI; ni++)
                #pragma unroll
                for (i = 0; i < 2; i++)
                    to_x->x[ni][i] = Format::x_factor(Format::x_scale_of(x->scale[u][ni] >> 8 * i, dtype), dtype);
        }
        #pragma unroll
        for (mi = 0; mi < MI; mi++)
            #pragma unroll
            for (i = 0; i < 2; i++) {
                if constexpr (!FOLDED) {
                    w_factors->scale[mi][i][0] = Format::w_factor(1, dtype);
                } else {
                    const uint32_t raw = raw_scales->scale[u][mi][i];
                    w_factors->scale[mi][i][0] = Format::w_factor(Format::w_scale_of(raw, dtype), dtype);
                    if constexpr (PAIR)
                        w_factors->scale[mi][i][1] = Format::w_factor(Format::w_scale_of(raw >> 8, dtype), dtype);
                }
                if constexpr (ZERO) to_zeros->zero[mi][i] = Format::w_zero(from_zeros->zero[u][mi][i], dtype);
            }
    }

    /* ---- the GEMM ------------------------------------------------------------------------------------------------ */

    /* sum += 16 rows of w times 8 tokens, MI x NI times, over a slice of k.  odd, x_odd: CHECKS, X_CHECKS: not 0 where
     * a code of a row, of a token is NaN. */
    MOEK_DEVICE void multiply(float sum[MI][NI][4], const unsigned char *x, const unsigned char *w,
                              const factors *w_factors, const zero_factors *by_zeros, const x_factors *by_x,
                              uint32_t odd[MI][2], uint32_t x_odd[NI], int slice, int dtype)
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
        moek_words_ codes[MI][2];                      /* 128 / W_BITS of k of this lane */
        moek_words_ x_codes[NI];
        const uint32_t one = PLAIN ? Format::w_factor(1, dtype) : 0;
        const uint32_t none = PLAIN ? Format::w_zero(Format::NO_ZERO, dtype) : 0;
        int mi, ni, h, i;
        #pragma unroll
        for (i = 0; i < 4; i++) {                      /* 8 of k of each lane: two k16 of mma */
            uint32_t xs[NI][4];
            if (i % (16 / W_BITS) == 0)
                #pragma unroll
                for (mi = 0; mi < MI; mi++)
                    #pragma unroll
                    for (h = 0; h < 2; h++)
                        codes[mi][h] = moek_load_words_(w + (mi * 16 + h * 8) * W_PITCH +
                            ((W_BITS == 4 ? slice * 4 + q : slice * 8 + 2 * q + i / 2) ^ g % 2 * W_SWAP) * 16);
            if (BOTH && i % (16 / X_BITS) == 0)
                #pragma unroll
                for (ni = 0; ni < NI; ni++)
                    x_codes[ni] = moek_load_words_(x + ni * 8 * X_PITCH +
                        ((X_BITS == 4 ? slice * 4 + q : slice * 8 + 2 * q + i / 2) ^ g % 2 * X_SWAP) * 16);
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                const uint32_t *const word = x_codes[ni].w + (X_BITS == 4 ? i : i % 2 * 2);
                if constexpr (BOTH && Format::X_SPLIT && Format::W_SPLIT) {
                    Format::x_pairs(xs[ni], word, by_x->x[ni][i / 2], dtype);
                } else {
                    moek_words_ v;
                    if constexpr (BOTH) Format::x_pairs(v.w, word, 0, dtype);
                    else
                        v = moek_load_words_(x + ni * 8 * X_PITCH + slice * 256 + ((q + i * 4) ^ g % 2 * 4) * 16);
                    if constexpr (X_CHECKS) x_odd[ni] |= Format::x_nan(word);
                    if constexpr (Format::W_SPLIT) {
                        xs[ni][0] = __byte_perm(v.w[0], v.w[2], 0x5410);
                        xs[ni][1] = __byte_perm(v.w[0], v.w[2], 0x7632);
                        xs[ni][2] = __byte_perm(v.w[1], v.w[3], 0x5410);
                        xs[ni][3] = __byte_perm(v.w[1], v.w[3], 0x7632);
                    } else {
                        xs[ni][0] = v.w[0]; xs[ni][1] = v.w[1]; xs[ni][2] = v.w[2]; xs[ni][3] = v.w[3];
                    }
                }
            }
            #pragma unroll
            for (mi = 0; mi < MI; mi += 2) {           /* two at a time: mma.sync that wait for none */
                uint32_t ws[2][2][4];
                int two;
                #pragma unroll
                for (h = 0; h < 4; h++) {
                    const uint32_t *const word = codes[mi + h / 2][h % 2].w + (W_BITS == 4 ? i : i % 2 * 2);
                    two = h / 2;
                    Format::w_pairs(ws[two][h % 2], word,
                                    PLAIN || W_BITS == 8 ? one : w_factors->scale[mi + two][h % 2][PAIR ? i / 2 : 0],
                                    !ZERO ? none : by_zeros->zero[mi + two][h % 2], dtype);
                    if constexpr (CHECKS)
                        if (dtype == MOEK_DTYPE_BF16) odd[mi + two][h % 2] |= Format::w_nan(word);
                }
                #pragma unroll
                for (h = 0; h < 4; h += 2)             /* the pairs of each k16 */
                    #pragma unroll
                    for (two = 0; two < 2; two++) {
                        const uint32_t a[4] = { ws[two][0][h], ws[two][1][h], ws[two][0][h + 1], ws[two][1][h + 1] };
                        #pragma unroll
                        for (ni = 0; ni < NI; ni++) moek_mma_t_(sum[mi + two][ni], a, xs[ni] + h, dtype);
                    }
            }
        }
    }
    /* SCALED: sum += 16 rows of w, of a word of codes each, times 8 tokens, of 8 of k a lane.  byte, thread: of scales;
     * constants, once loops are unrolled. */
    MOEK_DEVICE void multiply_scaled(float sum[4], const uint32_t a[4], const uint32_t xs[2], uint32_t scales, int byte,
                                     int thread)
    {
        switch (byte + 4 * thread) {
#define MOEK_SCALED_(n) \
        case n: \
            moek_mma_mxf8f6f4_<MOEK_MX_E2M1, MOEK_MX_E4M3, n % 4, n / 4, 0, 0>(sum, a, xs, scales, MOEK_MX_ONES); \
            break;
        MOEK_SCALED_(0) MOEK_SCALED_(1) MOEK_SCALED_(2) MOEK_SCALED_(3)
        MOEK_SCALED_(4) MOEK_SCALED_(5) MOEK_SCALED_(6) MOEK_SCALED_(7)
#undef MOEK_SCALED_
        }
    }
    /* WHOLE: e4m3 of 16 rows of w, of a word of codes each, times 8 tokens, of 8 of k a lane; PAIR: of 4, those at even
     * places.  by: FOLDED: what the sums of rows g and g + 8 are multiplied by. */
    MOEK_DEVICE void multiply_group(float sum[NI][4], const uint32_t codes[2], const uint32_t xs[NI][2],
                                    const float by[2])
    {
        uint32_t ws[2][2];
        int ni, h;
        Format::whole(ws[0], codes[0]);
        Format::whole(ws[1], codes[1]);
        #pragma unroll
        for (ni = 0; ni < NI; ni++) {
            const uint32_t a[4] = { ws[0][0], ws[1][0], ws[0][1], ws[1][1] };
            if constexpr (FOLDED) {
                float product[4] = {0};
                if constexpr (PAIR) moek_mma_e4m3_k16_(product, a, xs[ni][0]);
                else moek_mma_e4m3_(product, a, xs[ni]);
                #pragma unroll
                for (h = 0; h < 4; h++) sum[ni][h] += product[h] * by[h / 2];
            } else {
                moek_mma_e4m3_(sum[ni], a, xs[ni]);
            }
        }
    }
    /* WHOLE: sum += 16 rows of w times 8 tokens, MI x NI times, over a slice of k. */
    MOEK_DEVICE void multiply_whole(float sum[MI][NI][4], const unsigned char *x, const unsigned char *w,
                                    const folded_scales *folded, const scale_words *words, int u, int slice, int dtype)
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4, odd = PAIR ? q % 2 : 0;
        int mi, ni, i, h;
        #pragma unroll
        for (i = 0; i < (PAIR ? 8 : 4); i++) {         /* groups */
            const int word = PAIR ? i % 2 * 2 + q / 2 : q, four = PAIR ? i / 2 : i;    /* of the 16 bytes of 32 of k */
            uint32_t xs[NI][2];
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                const uint2 v = *(const uint2 *)(const void *)
                    (x + ni * 8 * X_PITCH + ((slice * 8 + 2 * four + word / 2) ^ g % 4 * 2) * 16 + word % 2 * 8);
                xs[ni][0] = __byte_perm(v.x, v.y, odd ? 0x7531 : 0x6420);
                xs[ni][1] = __byte_perm(v.x, v.y, 0x7531);
            }
            #pragma unroll
            for (mi = 0; mi < MI; mi++) {
                uint32_t codes[2];
                float by[2] = {1, 1};
                #pragma unroll
                for (h = 0; h < 2; h++)
                    codes[h] = *(const uint32_t *)(const void *)
                        (w + (mi * 16 + h * 8) * W_PITCH + ((slice * 4 + four) ^ g) * 16 + word * 4) >> 4 * odd;
                if constexpr (SCALED) {
                    uint32_t ws[2][2];
                    Format::padded(ws[0], codes[0]);
                    Format::padded(ws[1], codes[1]);
                    const uint32_t a[4] = { ws[0][0], ws[1][0], ws[0][1], ws[1][1] };
                    #pragma unroll
                    for (ni = 0; ni < NI; ni++)
                        multiply_scaled(sum[mi][ni], a, xs[ni], words->word[u][mi / 2], i, mi % 2);
                    continue;
                }
                if constexpr (FOLDED) {                /* lane number `four` of each four has the scales */
                    const uint32_t raw = __shfl_sync(0xffffffff, folded->scale[u][mi][0] |
                                                     folded->scale[u][mi][1] << 16, lane / 4 * 4 + four);
                    by[0] = Format::w_scale_of(raw >> (PAIR ? i % 2 * 8 : 0) & 255, dtype);
                    by[1] = Format::w_scale_of(raw >> (PAIR ? 16 + i % 2 * 8 : 16) & 255, dtype);
                }
                multiply_group(sum[mi], codes, xs, by);
            }
        }
    }
    /* A warp's sums to its slice of the tile. */
    MOEK_DEVICE void put_sums(float *tile, float sum[MI][NI][4], uint32_t odd[MI][2], uint32_t x_odd[NI])
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
        float *const corner = tile + 2 * q * (R + 4) + g;
        int mi, ni, h;
        uint32_t bad[NI][2];                           /* of the tokens 2q and 2q + 1 of each 8 */
        if constexpr (X_CHECKS) {
            #pragma unroll
            for (ni = 0; ni < NI; ni++) {
                x_odd[ni] |= __shfl_xor_sync(0xffffffff, x_odd[ni], 1);
                x_odd[ni] |= __shfl_xor_sync(0xffffffff, x_odd[ni], 2);
                #pragma unroll
                for (h = 0; h < 2; h++) bad[ni][h] = __shfl_sync(0xffffffff, x_odd[ni], (2 * q + h) * 4);
            }
        }
        #pragma unroll
        for (mi = 0; mi < MI; mi++) {
            if constexpr (CHECKS && Format::W_CHECKED) {
                #pragma unroll
                for (h = 0; h < 2; h++) {
                    odd[mi][h] |= __shfl_xor_sync(0xffffffff, odd[mi][h], 1);
                    odd[mi][h] |= __shfl_xor_sync(0xffffffff, odd[mi][h], 2);
                }
            }
            #pragma unroll
            for (ni = 0; ni < NI; ni++)
                #pragma unroll
                for (h = 0; h < 4; h++)
                    corner[(ni * 8 + h % 2) * (R + 4) + mi * 16 + h / 2 * 8] =
                        (CHECKS && Format::W_CHECKED && odd[mi][h / 2]) || (X_CHECKS && bad[ni][h % 2])
                        ? moek_float_(0x7fc00000) : sum[mi][ni][h];
        }
    }

    /* A block's tile. */
    MOEK_DEVICE void run(const moek_gemm_ *args, int dtype)
    {
        MOEK_SHARED_(unsigned char, shared);           /* [STAGES] {x, w} */
        float *const tile = (float *)shared;           /* [WK][M][R + 4] sums, once stages are done */
        int32_t *const row = (int32_t *)(shared + RING);               /* [M + R] of a, of the expert's w; -1: none */
        const moek_gemm_ *const a = (const moek_gemm_ *)args;
        const int t = threadIdx.x, warp = t / 32, g = t % 32 / 4;
        const int n = !UP && HIDDEN ? HIDDEN : a->n, k = UP && HIDDEN ? HIDDEN : a->k;
        const int gated = UP ? a->w_rows > n : 0, columns = gated ? R / 2 : R;

        moek_row_tile_ tile_of;
        int i, k_iter, out = 0;
        if (!moek_find_row_tile_(&tile_of, a, (int)blockIdx.x, (n + columns - 1) / columns, M, GROUP)) return;
        const int e = tile_of.e, row0 = tile_of.row0, end = tile_of.end, j0 = tile_of.j * columns;
        moek_rows_of_mma_<M, R, THREADS>(row, a, t, row0, end, j0, n, gated, columns);

        const unsigned char *const x = (const unsigned char *)a->a;
        const unsigned char *const w = (const unsigned char *)a->gate_up.codes[0] +
                                       (size_t)e * a->gate_up.rows * k / (8 / W_BITS);
        const ptrdiff_t apart =
            UP ? (const unsigned char *)a->gate_up.codes[1] - (const unsigned char *)a->gate_up.codes[0] : 0;
        const int of_k = warp % WK, r0 = warp / WK * (MI * 16);
        const int k_offset = SHIFTED ? a->k_offset : 0, steps = (k_offset + k + STEP - 1) / STEP;
        copies copied;
        float sum[MI][NI][4] = {0};
        const int groups = C > 0 ? (k_offset + k + C - 1) / (C + (C == 0)) : 1;
        const int p = of_k * (128 * U) + (BY_BLOCK ? 0 : t % 4 * 32);
        const int first_group = OUTSIDE ? k_offset / (C + (C == 0)) : 0;
        zeros_at at_zeros;
        scales_at w_places;
        lanes at_lanes;
        zeros next_zeros;
        folded_scales next;
        promoted_scales next_promoted;
        const int x_groups = X_FETCHED ? (k_offset + k + XC - 1) / (XC + (XC == 0)) : 0;
        x_scales_at x_at_scales;
        x_folded_scales x_next;
        x_promoted_scales x_next_promoted;
        float x_scale[NI][2];                          /* X_EARLY: of the tokens 2q and 2q + 1 of each 8, as sums */
        uint32_t odd[MI][2] = {{0}};
        uint32_t x_odd[NI] = {0};

        words_at at_words;
        scale_words next_words;

        place_copies(&copied, row, a->a_row_bytes, k);
        if constexpr (SCALED) {
            place_words(&at_words, args, row + M + r0, r0, e, groups);
            fetch_words(&next_words, &at_words, of_k * (128 * U), first_group, groups);
        }
        if constexpr (FETCHED) {
            place_scales(&w_places, &at_lanes, &at_zeros, args, row + M + r0, r0, e, groups);
            fetch(&next, &next_promoted, &next_zeros, &w_places, &at_lanes, &at_zeros, p, first_group, groups);
        }
        if constexpr (X_FETCHED && !SCALED) {
            place_x_scales(&x_at_scales, a, row, x_groups);
            fetch_x(&x_next, &x_next_promoted, &x_at_scales, p, x_groups);
        } else if constexpr (X_EARLY) {
            #pragma unroll
            for (i = 0; i < 2 * NI; i++) {
                const int r = row[i / 2 * 8 + t % 4 * 2 + i % 2];
                x_scale[i / 2][i % 2] = r < 0 ? 0 : ((const float *)a->a_scale)[r];
            }
        }
        for (k_iter = 0; k_iter < STAGES - 1; k_iter++) {
            copy(shared + k_iter * STAGE, &copied, x, w, apart, k, k_iter * STEP - k_offset);
            moek_cp_async_commit_();
        }
        #pragma unroll 1
        for (k_iter = 0; k_iter < steps; k_iter++) {
            const int in = out == 0 ? STAGES - 1 : out - 1;
            const unsigned char *const x_at = shared + out * STAGE + g * X_PITCH;
            const unsigned char *const w_at = shared + out * STAGE + M * X_PITCH + (r0 + g) * W_PITCH;
            const folded_scales current = next;
            const promoted_scales promoted = next_promoted;
            const zeros these_zeros = next_zeros;
            const x_folded_scales of_x = x_next;
            x_promoted_scales x_promoted = x_next_promoted;
            const scale_words words = next_words;
            moek_cp_async_wait_(STAGES - 2);
            __syncthreads();
            if constexpr (SCALED && M == 64)           /* again: registers are scarce */
                place_copies(&copied, row, a->a_row_bytes, k);
            copy(shared + in * STAGE, &copied, x, w, apart, k, (k_iter + STAGES - 1) * STEP - k_offset);
            moek_cp_async_commit_();
            if constexpr (FETCHED)
                fetch(&next, &next_promoted, &next_zeros, &w_places, &at_lanes, &at_zeros, (k_iter + 1) * STEP + p,
                      first_group, groups);
            if constexpr (SCALED)
                fetch_words(&next_words, &at_words, (k_iter + 1) * STEP + of_k * (128 * U), first_group, groups);
            if constexpr (X_FETCHED && !SCALED)
                fetch_x(&x_next, &x_next_promoted, &x_at_scales, (k_iter + 1) * STEP + p, x_groups);
            #pragma unroll
            for (i = 0; i < U; i++) {
                factors w_factors;
                zero_factors by_zeros;
                x_factors by_x;
                if constexpr ((FOLDED || ZERO) && !WHOLE)
                    convert(&w_factors, &by_zeros, &by_x, &current, &these_zeros, &of_x, i, dtype);
                if constexpr (APART) {
                    float part[MI][NI][4] = {0};
                    int mi, ni, h;
                    if constexpr (SCALED)
                        fetch_x_slice(x_promoted.scale[i], a, row, k_iter * STEP + (of_k * U + i) * 128, x_groups);
                    if constexpr (WHOLE) multiply_whole(part, x_at, w_at, &current, &words, i, of_k * U + i, dtype);
                    else multiply(part, x_at, w_at, &w_factors, &by_zeros, &by_x, odd, x_odd, of_k * U + i, dtype);
                    #pragma unroll
                    for (mi = 0; mi < MI; mi++)
                        #pragma unroll
                        for (ni = 0; ni < NI; ni++)
                            #pragma unroll
                            for (h = 0; h < 4; h++) {
                                enum { W_HALF = !BY_BLOCK };           /* rows 8 on have scales of their own */
                                if constexpr (X_PROMOTED && PROMOTED)
                                    sum[mi][ni][h] += part[mi][ni][h] * (promoted.scale[i][mi][W_HALF * (h / 2)] *
                                                                         x_promoted.scale[i][ni][h % 2]);
                                else if constexpr (X_EARLY)
                                    sum[mi][ni][h] += part[mi][ni][h] * (promoted.scale[i][mi][W_HALF * (h / 2)] *
                                                                         x_scale[ni][h % 2]);
                                else if constexpr (PROMOTED)
                                    sum[mi][ni][h] += part[mi][ni][h] * promoted.scale[i][mi][W_HALF * (h / 2)];
                                else
                                    sum[mi][ni][h] += part[mi][ni][h] * x_promoted.scale[i][ni][h % 2];
                            }
                } else if constexpr (WHOLE) {
                    multiply_whole(sum, x_at, w_at, &current, &words, i, of_k * U + i, dtype);
                } else {
                    multiply(sum, x_at, w_at, &w_factors, &by_zeros, &by_x, odd, x_odd, of_k * U + i, dtype);
                }
            }
            out = out + 1 < STAGES ? out + 1 : 0;
        }

        moek_cp_async_wait_(0);                        /* the last copies are zeros, and would fall on the sums */
        __syncthreads();
        put_sums(tile + of_k * M * (R + 4) + r0, sum, odd, x_odd);
        __syncthreads();
        moek_finish_tile_<UP, M, R, R + 4, WK, THREADS, SHIFT, Format>(a, tile, row, e, row0, end, j0, n);
    }
};

/* Launches one of these kernels: of bf16 (where Format::INNER says the type, of that), of fp16.  args NULL: makes them
 * ready. */
template <int OP, int M, int N, int STAGES, int HIDDEN, class Format, int WHOLE = 0>
static MOEK_UNUSED moek_status moek_launch_mixed_(const void *args, moek_stream stream,
                                                  void (*bf16)(moek_gemm_),
                                                  void (*fp16)(moek_gemm_) = NULL)
{
    typedef moek_mixed_<OP, M, N, STAGES, HIDDEN, Format, WHOLE> K;
    const moek_gemm_args *const a = (const moek_gemm_args *)args;
    moek_gemm_ found;
    int blocks;
    if (!a) {
        const moek_status status =
            K::SCALED ? MOEK_READY_SM120_(bf16, K::THREADS, K::SHARED)
            : WHOLE ? MOEK_READY_SM89_(bf16, K::THREADS, K::SHARED) : MOEK_READY_(bf16, K::SHARED);
        return status || !fp16 ? status : MOEK_READY_(fp16, K::SHARED);
    }
    blocks = moek_blocks_of_mma_(a, K::UP && a->w_rows > a->n ? K::R / 2 : K::R);
    if (blocks == 0) return MOEK_OK;
    if (blocks < 0) return MOEK_E_ARGUMENT;
    moek_take_gemm_(&found, a);
    moek_find_gemm_<Format>(&found, 0);
    if (fp16 && a->dtype == MOEK_DTYPE_FP16)
        return MOEK_LAUNCH_(fp16, blocks, K::THREADS, K::SHARED, stream, found);
    return MOEK_LAUNCH_(bf16, blocks, K::THREADS, K::SHARED, stream, found);
}

/* A row of the table: its kernels, of bf16 and fp16 or of one of them, and their launcher.  SM: SM80, SM89, SM120.
 * Behind `threads`, or `dtype`: the parameters of moek_mixed_. */
#define MOEK_MIXED_KERNEL_(name, SM, threads, dtype, ...) \
    static __global__ void __launch_bounds__(MOEK_##SM##_THREADS_(threads), moek_mixed_<__VA_ARGS__>::BLOCKS) \
    name(const moek_gemm_ args) \
    { \
        MOEK_IN_##SM##_(moek_mixed_<__VA_ARGS__>::run(&args, dtype);) \
    }
#define MOEK_MIXED_ROW_(row, SM, threads, ...) \
    MOEK_MIXED_KERNEL_(row##_bf16_, SM, threads, MOEK_DTYPE_BF16, __VA_ARGS__) \
    MOEK_MIXED_KERNEL_(row##_fp16_, SM, threads, MOEK_DTYPE_FP16, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_mixed_<__VA_ARGS__>(args, stream, row##_bf16_, row##_fp16_); \
    }
#define MOEK_MIXED_ONE_ROW_(row, SM, threads, t, dtype, ...) \
    MOEK_MIXED_KERNEL_(row##_##t##_, SM, threads, dtype, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_mixed_<__VA_ARGS__>(args, stream, row##_##t##_); \
    }
#endif
