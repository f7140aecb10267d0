/* layer/fragments.cuh -- y[t] = the weighted sum over the experts e of token t of
 * act(gate_e(x[t]), up_e(x[t])) . w_down_e: a layer of few tokens, with weights of 4 or 8 bits.  For layer_fragments of
 * the table.
 *
 * Sort, up, down and combine of one to eight tokens in one launch, by mma.sync: one block an SM.  Weights lie in the
 * order of fragments (moek/ops.h: repack), which serves mma's 16 rows, too.  The limit is the bytes
 * of the weights, the instructions that make T of codes, and as much latency.  The plan says where the kernel is taken
 * (rules.toml: few_tokens; moek_decode_smem_of).  Blocks wait for h of other blocks: all must be resident at once.
 * There are no roles: each warp streams weights to itself and multiplies them.  Warps meet where sums do.  Phases:
 *
 * - sort: the experts in use, by each warp for itself.  The first weights of up are asked for.
 * - stage_x: each block brings all of x to shared memory.
 * - multiply, of up, and finish_up: a block has units of 16 rows of w: gated 8 columns of h, else 16.  Its warps share
 *   the k of all of them evenly.  Sums meet in shared memory (pages), in the order of k.  h goes to memory as T.
 * - stage_h: each block brings all of h to shared memory, as h comes.  Memory is 0 where h is not there yet
 *   (moek_layer_state), so that no block waits for the count of another.  The first weights of down are on their way
 *   meanwhile.
 * - multiply, of down, and combine: a block has units of 16 columns of y, with all experts, so that the weighted sum
 *   needs no other block.  All experts are one f32 sum.
 *
 * - Stages: each warp has a ring of STAGES items of its own (layer/items.cuh).  A lane copies, by cp.async, the codes
 *   that the same lane will read, and scales for others: a __syncwarp is the only barrier.
 * - mma's columns are tokens.  x and h lie in shared memory as mma wants them: of 64 of k, a lane's 16 side by side.
 * - Weights of down and of up may have two formats, where neither quantizes activations.
 * - E4M3: each block quantizes x and h for itself.  Codes of both sides are multiplied as fp16 (factors: scales of x,
 *   then of h).  BLOCKED: scales of x and h are for 128 columns.  Else a row has one: T lies in shared memory first,
 *   and becomes codes when the largest of each row is known.
 */
#ifndef MOEK_LAYER_FRAGMENTS_CUH
#define MOEK_LAYER_FRAGMENTS_CUH
#include "../../include/moek/kernel/act.h"
#include "decode.cuh"
#include "items.cuh"


/* BYTES of shared memory, WARPS a block.  PAGES of a warp: 2, for the rows of w with which its part of k begins and
 * ends; it finishes the others alone.  0: a page for each unit and each warp, and all warps finish them.  HOPPER: code
 * for sm_90a alone.  Format, Of_down: of moek_formats.h, of up and of down. */
template <int STAGES, int WARPS, int BYTES, int PAGES, int HOPPER, class Format, class Of_down = Format>
struct moek_layer_fragments_ {
    typedef moek_layer_items_<Format, Format::IN_BLOCKS> Up;
    typedef moek_layer_items_<Of_down, Of_down::IN_BLOCKS> Down;
    enum {
        E4M3 = Up::E4M3, ZERO = Up::ZERO, BLOCKED = Up::BLOCKED, WHOLE = Up::WHOLE,
        SAME = Format::NUMBER == (int)Of_down::NUMBER,
        SCALES = (int)Up::SCALES > (int)Down::SCALES ? (int)Up::SCALES : (int)Down::SCALES,    /* bytes of an item */
        ITEM = (int)Up::ITEM > (int)Down::ITEM ? (int)Up::ITEM : (int)Down::ITEM,
        RING = STAGES * WARPS * ITEM, IN_RING = Format::IN_BLOCKS && Of_down::IN_BLOCKS,       /* scales lie there */
        APART = WHOLE ? 8 : 32,                         /* E4M3: bytes from 4 columns to the 4 next in place_of */
        THREADS = 32 * WARPS, SLOTS = MOEK_DECODE_SLOTS,
        FIRST = 4                                       /* pieces of x or h that a thread has on their way */
    };
    /* Of up or down: columns of x or h that an item meets, and 8s of them. */
    MOEK_DEVICE int k_item(int down) { return down ? (int)Down::K_ITEM : (int)Up::K_ITEM; }
    MOEK_DEVICE int pieces(int down) { return k_item(down) / 8; }
    struct params {
        moek_layer_args a;
        moek_gemm_ up, down;
        int steps[2], units[2], pitch[2];              /* of up, of down: items of 16 rows; units (up: of an expert);
                                                          bytes of a row in shared memory */
        moek_decode_smem fit;
        moek_fastdiv over_blocks, over_units, over_steps[2];
    };

    MOEK_DEVICE const moek_gemm_ *up_of(const params *p) { return &p->up; }
    MOEK_DEVICE const moek_gemm_ *down_of(const params *p) { return &p->down; }

    /* What all phases know: shared memory of the block, then numbers.  A pair is one of the experts in use and a token:
     * 8 * expert + token. */
    struct block {
        unsigned char *act;                            /* rows of x, by token; then of h, by slot */
        float *pages;                                  /* sums of the warps, 16 rows by 8 tokens each */
        unsigned char *ring, *scales;                  /* of the warp: items on their way */
        int *list;                                     /* the experts in use, of this warp */
        const uint16_t *h;                             /* of all slots, in memory: the complement */
        float *factors;                                /* E4M3: scales of rows of x, then of h: [row], BLOCKED
                                                          [row][steps] */
        float *row_max;                                /* E4M3, not BLOCKED: [2][SLOTS], the largest of a row of x,
                                                          of h */
        int *slot_of;                                  /* [8 SLOTS]: of a pair the slot that has it; -1: none */
        int *pair_of;                                  /* [SLOTS]: of a slot the pair; -1: none, or an earlier slot's */
        float *weight_of;                              /* [8 SLOTS]: of pairs */
        int tokens, slots, used, mine;                 /* used: experts; mine: lane d has the d-th of them */
    };

    /* ---- weights ------------------------------------------------------------------------------------------------- */

    /* A block's units of up or down, the items of a unit and of all of them, and a warp's part of these. */
    struct work_range { int unit0, units, each, all, begin, n; };
    /* used: experts. */
    MOEK_DEVICE work_range work_range_of(const params *p, int used, int down)
    {
        work_range s;
        const int warp = threadIdx.x / 32;
        const unsigned units = down ? p->units[1] : used * p->units[0];
        s.unit0 = (int)moek_fastdiv_(units * blockIdx.x, p->over_blocks);
        s.units = (int)moek_fastdiv_(units * (blockIdx.x + 1), p->over_blocks) - s.unit0;
        s.each = down ? used * p->steps[1] : p->steps[0];
        s.all = s.units * s.each;
        s.begin = s.all * warp / WARPS;
        s.n = s.all * (warp + 1) / WARPS - s.begin;
        return s;
    }

    typedef moek_layer_walk_ walk;
    /* To item g of rows (unit, d).  mine: lane d has the number of the d-th expert in use. */
    MOEK_DEVICE void seat(const params *p, walk *at, int g, int mine)
    {
        const int e = __shfl_sync(0xffffffff, mine, at->d);
        if (SAME || !at->down) Up::seat(at->down ? &p->down : &p->up, at, e, g);
        else Down::seat(&p->down, at, e, g);
        at->left = (at->down ? p->down.k : p->up.k) - g * k_item(at->down);
        at->run = p->steps[at->down] - g;
    }
    /* To the next rows, or to this warp's first item of down. */
    MOEK_DEVICE void next(const params *p, walk *at, int mine)
    {
        int g = 0;
        if (at->asks > 0) {
            if (at->down) {
                if (++at->d == at->used) { at->d = 0; at->unit++; }
            } else if (++at->unit == p->units[0]) { at->unit = 0; at->d++; }
        }
        #pragma unroll 1
        while (at->asks == 0 && ++at->down < 2) {
            const work_range s = work_range_of(p, at->used, at->down);
            const int v = (int)moek_fastdiv_(s.begin, p->over_steps[at->down]);
            at->asks = s.n;
            g = s.begin - v * p->steps[at->down];
            if (at->down) {
                const int unit = moek_quotient_(v, max(at->used, 1));
                at->d = v - unit * at->used;
                at->unit = s.unit0 + unit;
            } else {
                at->d = (int)moek_fastdiv_(s.unit0 + v, p->over_units);
                at->unit = s.unit0 + v - at->d * p->units[0];
            }
        }
        if (at->asks > 0) seat(p, at, g, mine);
    }
    /* Ask for the next item, if there is one (the first time there is none), and find the one after it.  zero: there
     * are zero points; a constant, as everywhere. */
    MOEK_DEVICE void ask_next(const params *p, walk *at, const block *b, int zero)
    {
        if (at->asks > 0) {
            unsigned char *const to = b->ring + at->put * ITEM, *const scales = b->scales + at->put * SCALES;
            unsigned char *const zeros = b->scales + STAGES * SCALES + at->put * (SCALES / 4);         /* behind all */
            if (SAME || !at->down) Up::ask(at, to, scales, zeros, zero);
            else Down::ask(at, to, scales, zeros, zero);
            at->left -= k_item(at->down);
            if (++at->put == STAGES) at->put = 0;
            if (--at->asks == 0) at->run = 0;
            else at->run--;
        }
        moek_cp_async_commit_();
        if (at->run == 0 && at->down < 2) next(p, at, b->mine);
    }

    /* ---- sums ---------------------------------------------------------------------------------------------------- */

    /* Format::W_CHECKED: the four sums in the first one, spoiled where a code was a NaN. */
    MOEK_DEVICE void spoil(float c[4][4], uint32_t *odd)
    {
        int i;
        #pragma unroll
        for (i = 0; i < 4; i++) {
            c[0][i] += c[1][i] + (c[2][i] + c[3][i]);
            c[1][i] = c[2][i] = c[3][i] = 0;
        }
        moek_spoil_<1, 8>(c[0], *odd);
        *odd = 0;
    }
    /* The four sums in one, begun anew. */
    MOEK_DEVICE float take(float c[4][4], int i)
    {
        const float sum = c[0][i] + c[1][i] + (c[2][i] + c[3][i]);
        c[0][i] = c[1][i] = c[2][i] = c[3][i] = 0;
        return sum;
    }
    /* A warp's sums of 16 rows to a page [lane][4]: of rows lane / 4, and 8 more, of tokens lane % 4 * 2 and the
     * next. */
    MOEK_DEVICE void put(float *page, float x, float y, float z, float w)
    {
        *(float4 *)(page + threadIdx.x % 32 * 4) = make_float4(x, y, z, w);
    }

    /* ---- x and h ------------------------------------------------------------------------------------------------- */

    /* E4M3: where 4 of 8 columns of a row lie; the others are APART.  Of 64 a lane has 4 of each 16, or WHOLE 16. */
    MOEK_DEVICE int place_of(int column)
    {
        return column / 64 * 128 + (WHOLE ? column % 64 * 2 : column % 16 * 8 + column % 64 / 16 * 8);
    }
    /* 8 columns to a row of shared memory, where mma's lanes have theirs. */
    MOEK_DEVICE void store(unsigned char *row, int column, moek_words_ x)
    {
        if constexpr (E4M3) {
            unsigned char *const to = row + place_of(column);
            *(uint2 *)(void *)to = make_uint2(x.w[0], x.w[1]);
            *(uint2 *)(void *)(to + APART) = make_uint2(x.w[2], x.w[3]);
        } else {
            unsigned char *const to = row + column / 64 * 128 + column % 64 / 8 * 4;
            int i;
            #pragma unroll
            for (i = 0; i < 4; i++) *(uint32_t *)(to + i * 32) = x.w[i];
        }
    }
    /* Of 8 columns, number i of those that are brought to shared memory: their row, and the first of them. */
    MOEK_DEVICE int column_of(const params *p, int down, int i, int *row)
    {
        *row = (int)moek_fastdiv_(i / pieces(down), p->over_steps[down]);
        return (i - *row * pieces(down) * p->steps[down]) * 8;
    }
    /* Where columns of x lie: NULL for what is not there. */
    MOEK_DEVICE const uint16_t *find_x(const params *p, int i)
    {
        int row;
        const int column = column_of(p, 0, i, &row);
        return row < p->a.tokens && column < up_of(p)->k
             ? (const uint16_t *)p->a.x + (size_t)row * p->a.x_stride + column : NULL;
    }

    /* Columns of h as they lie in memory: the complement, and 0 is what is not there yet. */
    MOEK_DEVICE moek_words_ load_h(const params *p, const block *b, const uint16_t *h, int i)
    {
        int row;
        const int column = column_of(p, 1, i, &row);
        const moek_gemm_ *const down = down_of(p);
        if (row >= b->slots || b->pair_of[row] < 0 || column >= down->k) return moek_not_words_(moek_zero_words_());
        return moek_load_relaxed_(h + (size_t)row * down->k + column);
    }

    /* Sort: the experts in use, in the order of their first slots, by each warp; slots and weights of pairs, by one.
     * The first items of up are asked for.  id, weight: of slot `lane`. */
    MOEK_DEVICE void sort(const params *p, block *b, walk *ask, int id, int zero, float weight)
    {
        const int t = threadIdx.x, lane = t % 32, warp = t / 32;
        const int in = (uint32_t)id < (uint32_t)up_of(p)->experts;
        const moek_slot_ slot = moek_experts_in_use_(lane, in, id, b->list, &b->used, &b->mine);
        int i;
        ask->asks = ask->run = ask->put = ask->left = 0; ask->down = -1; ask->used = b->used;
        #pragma unroll 1
        for (i = 0; i < STAGES; i++) ask_next(p, ask, b, zero);
        if (warp == WARPS - 1)
            moek_find_pairs_<8>(slot, lane, p->a.topk, weight, b->slot_of, b->pair_of, b->weight_of);
    }

    /* E4M3, by a warp, 16 lanes a group of 128 columns: 8 columns of T to shared memory.  BLOCKED, as codes; else as
     * they are, and the largest of a row is found.  there: the row is. */
    MOEK_DEVICE void bring(const params *p, const block *b, int down, int row, int there, int column, moek_words_ x)
    {
        const int leads = there && threadIdx.x % 16 == 0;
        unsigned char *const to = b->act + row * p->pitch[down];
        if constexpr (BLOCKED) {
            uint2 codes;
            const float s = moek_group_codes_(&codes, &x, 1, 16, p->a.ue8m0, MOEK_DTYPE_BF16);
            if (there) store(to, column, moek_fp16_of_codes_(codes));
            if (leads) b->factors[row * p->steps[down] + column / 128] = s;
        } else {
            float f[8], row_max = 0;
            int i;
            moek_from_t8_(f, x, MOEK_DTYPE_BF16);
            #pragma unroll
            for (i = 0; i < 8; i++) row_max = fmaxf(row_max, fabsf(f[i]));     /* NaN is passed over */
            #pragma unroll
            for (i = 8; i; i /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, i));
            if (there) store(to, column, x);
            if (leads)
                atomicMax((int *)(void *)(b->row_max + down * MOEK_DECODE_SLOTS + row), (int)moek_bits_(row_max));
        }
    }
    /* E4M3, not BLOCKED, after a barrier: T becomes codes, each 8 columns by the thread that brought them; then a
     * barrier. */
    MOEK_DEVICE void quantize(const params *p, const block *b, int down, int rows)
    {
        int row, i, j;
        #pragma unroll 1
        for (i = threadIdx.x; i < rows * p->steps[down] * 16; i += THREADS) {
            const int column = column_of(p, down, i, &row);
            const float row_max = b->row_max[down * MOEK_DECODE_SLOTS + row];
            const float s = fmaxf(__fdiv_rn(row_max, 448.0f), 1.0f / (448.0f * 512.0f));
            unsigned char *const at = b->act + row * p->pitch[down] + place_of(column);
            const uint2 low = *(const uint2 *)(const void *)at, high = *(const uint2 *)(const void *)(at + APART);
            moek_words_ x;
            uint32_t most;
            uint2 codes;
            if (down && b->pair_of[row] < 0) continue;
            x.w[0] = low.x; x.w[1] = low.y; x.w[2] = high.x; x.w[3] = high.y;
            most = moek_max_t8_(x, MOEK_DTYPE_BF16);
            most = moek_max_t2_(most, most >> 16, MOEK_DTYPE_BF16) & 0x7fff;
            if (moek_finite_t_(most, MOEK_DTYPE_BF16) && row_max < INFINITY) {
                codes = moek_e4m3_of_t8_(x, moek_invert_(s), MOEK_DTYPE_BF16);
            } else {
                const float inverse = __fdiv_rn(1.0f, s);
                float f[8];
                moek_from_t8_(f, x, MOEK_DTYPE_BF16);
                #pragma unroll
                for (j = 0; j < 8; j++) f[j] = moek_by_scale_(f[j], s, inverse);
                codes = moek_to_e4m3x8_(f);
            }
            store(b->act + row * p->pitch[down], column, moek_fp16_of_codes_(codes));
            if (column == 0) b->factors[row] = s;
        }
        __syncthreads();
    }

    /* x to shared memory.  x: of this thread, the first on their way. */
    MOEK_DEVICE void stage_x(const params *p, const block *b, moek_words_ *x)
    {
        const int t = threadIdx.x, lane = t % 32;
        int row, column, i;
        #pragma unroll 1
        for (i = t; (E4M3 ? i - lane : i) < b->tokens * p->steps[0] * pieces(0); i += THREADS) {
            column = column_of(p, 0, i, &row);
            if constexpr (E4M3) bring(p, b, 0, row, row < b->tokens, column, x[0]);
            else store(b->act + row * p->pitch[0], column, x[0]);
            x[0] = x[1]; x[1] = x[2]; x[2] = x[3];
            x[3] = moek_load_or_zeros_(find_x(p, i + FIRST * THREADS));
        }
    }
    /* h to shared memory, as it comes. */
    MOEK_DEVICE void stage_h(const params *p, const block *b, const uint16_t *h)
    {
        const int t = threadIdx.x, lane = t % 32, total = b->slots * p->steps[1] * pieces(1);
        moek_words_ x[FIRST];
        int row, column, i, j;
        #pragma unroll
        for (i = 0; i < FIRST; i++) x[i] = load_h(p, b, h, t + i * THREADS);
        #pragma unroll 1
        for (i = t; i - lane < total; i += THREADS) {
            int tries = 0;
            while (!__all_sync(0xffffffff, moek_all_there_(x[0]))) {
                if (tries++) moek_pause_(tries < 6 ? 16 << tries : 512);
                if (!moek_all_there_(x[0])) x[0] = load_h(p, b, h, i);
            }
            if (tries)
                #pragma unroll
                for (j = 1; j < FIRST; j++)
                    if (!moek_all_there_(x[j])) x[j] = load_h(p, b, h, i + j * THREADS);
            column = column_of(p, 1, i, &row);
            if constexpr (E4M3) {
                bring(p, b, 1, row, row < b->slots && b->pair_of[row] >= 0, column, moek_not_words_(x[0]));
            } else {
                if (row < b->slots && b->pair_of[row] >= 0)
                    store(b->act + row * p->pitch[1], column, moek_not_words_(x[0]));
            }
            x[0] = x[1]; x[1] = x[2]; x[2] = x[3];
            x[3] = load_h(p, b, h, i + FIRST * THREADS);
        }
    }

    /* ---- phases -------------------------------------------------------------------------------------------------- */

    /* BY_ROW: the scale of w, of a column of h or y; of up of what comes first in w, or (j 1) of the other. */
    template <int DOWN> MOEK_DEVICE float row_scale(const moek_gemm_ *args, int j, int e, int column)
    {
        const moek_gate_up_ *const of = &args->gate_up;
        const int of_rows = (DOWN ? (int)Of_down::W_SCALE_ROWS : (int)Format::W_SCALE_ROWS) == 1;
        const size_t i = of_rows ? (size_t)e * of->scale_rows + (size_t)column * of->step : (size_t)e;
        if constexpr (DOWN) return Of_down::w_scale(of->scales[j], i, MOEK_DTYPE_BF16);
        else return Format::w_scale(of->scales[j], i, MOEK_DTYPE_BF16);
    }
    /* BY_ROW, of down: of this lane's two rows of w of a unit. */
    MOEK_DEVICE void row_scales(float by[2], const params *p, const block *b, int d, int unit)
    {
        int i;
        #pragma unroll
        for (i = 0; i < 2; i++)
            by[i] = b->used ? row_scale<1>(&p->down, 0, b->list[d], unit * 16 + threadIdx.x % 32 / 4 + 8 * i) : 0;
    }
    /* sum += c, begun anew: what an expert adds, times its weights for this lane's two tokens.  by: BY_ROW, scales. */
    MOEK_DEVICE void weigh(float sum[4], float c[4][4], const params *p, const block *b, int d, const float *by)
    {
        const int pair = 8 * d + threadIdx.x % 4 * 2;
        float shift_factor = Of_down::shift_factor(MOEK_DTYPE_BF16);
        int i;
        if constexpr (Of_down::GLOBAL_SCALE) shift_factor *= moek_global_scale_of_(&p->down, 0, b->list[d]);
        #pragma unroll
        for (i = 0; i < 4; i++) {
            float of = take(c, i);
            if constexpr (Down::BY_ROW) of *= by[i / 2];
            if (b->slot_of[pair + i % 2] >= 0) sum[i] += b->weight_of[pair + i % 2] * (shift_factor * of);
        }
    }
    /* PAGES: where a warp's sums of 16 rows go that it has not all of k of; begun: the first of k is among them.  This
     * lane's four, as put has them; NULL: of tokens that are not there. */
    MOEK_DEVICE float *page_of(const block *b, int warp, int begun)
    {
        const int lane = threadIdx.x % 32, pairs = (b->tokens + 1) / 2;
        return lane % 4 < pairs ? b->pages + ((2 * warp + begun) * 8 * pairs + lane / 4 * pairs + lane % 4) * 4 : NULL;
    }
    MOEK_DEVICE void put_part(float *page, const float *sum)
    {
        if (page) *(float4 *)page = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }

    /* Of one column of h, of slot `row` and expert in use d: scales of all, bias and activation of its sums y. */
    MOEK_DEVICE void store_h(const params *p, const block *b, uint16_t *h, int d, int row, int column, float first,
                             float other)
    {
        const moek_gemm_ *const a = up_of(p);
        const int gated = a->w_rows > a->n, swapped = a->gate_up.swapped;
        float y[2] = {first, other};
        int j;
        #pragma unroll
        for (j = 0; j < 2; j++) {
            const int e = b->list[d];
            if constexpr (Up::MENDS)
                if (y[j] != y[j] && (!j || gated))
                    y[j] = Up::again(a, e, gated ? column / 8 * 16 + column % 8 + 8 * j : column,
                                     (const uint16_t *)p->a.x + (size_t)(row / p->a.topk) * p->a.x_stride, 0);
            y[j] *= Format::shift_factor(MOEK_DTYPE_BF16);
            if (j && !gated) break;
            if constexpr (Format::GLOBAL_SCALE) y[j] *= moek_global_scale_of_(&p->up, j, e);
            if constexpr (Up::BY_ROW) y[j] *= row_scale<0>(&p->up, j, e, column);
            if (a->w.bias)
                y[j] += moek_from_t_(((const uint16_t *)a->gate_up.bias[j])
                                     [(size_t)e * a->gate_up.rows + (size_t)column * a->gate_up.step],
                                     MOEK_DTYPE_BF16);
        }
        moek_store_relaxed_(h + (size_t)row * a->n + column, moek_not_t_(moek_to_t_(
            moek_epilogue_of_(&a->epilogue, swapped ? y[1] : y[0], swapped ? y[0] : y[1]),
            MOEK_DTYPE_BF16)));
    }
    /* Down::MENDS: the sum of one column of a token, once more. */
    MOEK_DEVICE float again(const params *p, const block *b, int column, int token)
    {
        float sum = 0;
        int d;
        #pragma unroll 1
        for (d = 0; d < b->used; d++) {
            const int pair = 8 * d + token, slot = b->slot_of[pair];
            if (slot >= 0)
                sum += b->weight_of[pair] *
                       Down::again(&p->down, b->list[d], column, b->h + (size_t)slot * p->down.k, 0xffff);
        }
        return sum;
    }
    /* Of one column of a token: y, with biases and what else is added. */
    MOEK_DEVICE void store_y(const params *p, const block *b, int column, int token, float y)
    {
        const moek_layer_args *const a = &p->a;
        const moek_gemm_ *const down = down_of(p);
        int d;
        if constexpr (Down::MENDS)
            if (y != y) y = again(p, b, column, token);
        if (down->w.bias)
            for (d = 0; d < b->used; d++) {
                const size_t row = (size_t)b->list[d] * down->w_rows + column;
                if (b->slot_of[8 * d + token] < 0) continue;
                y += b->weight_of[8 * d + token] *
                     moek_from_t_(((const uint16_t *)down->w.bias)[row], MOEK_DTYPE_BF16);
            }
        if (a->addend)
            y += moek_from_t_(((const uint16_t *)a->addend)[(size_t)token * a->addend_stride + column],
                              MOEK_DTYPE_BF16);
        ((uint16_t *)a->y)[(size_t)token * a->y_stride + column] = moek_to_t_(y, MOEK_DTYPE_BF16);
    }

    /* PAGES, by a warp that has all sums of a unit, as put has them: 8 or 16 columns of h; 16 of y. */
    MOEK_DEVICE void finish_h(const params *p, const block *b, int unit, const float *sum, uint16_t *h)
    {
        const int gated = up_of(p)->w_rows > up_of(p)->n, lane = threadIdx.x % 32;
        const int d = (int)moek_fastdiv_(unit, p->over_units);
        const int column = (unit - d * p->units[0]) * (gated ? 8 : 16) + lane / 4;
        int i;
        #pragma unroll 1
        for (i = 0; i < (gated ? 2 : 4); i++) {
            const int row = b->slot_of[8 * d + lane % 4 * 2 + i % 2];
            const float y = i < 2 ? (i ? sum[1] : sum[0]) : i == 2 ? sum[2] : sum[3];
            if (row >= 0) store_h(p, b, h, d, row, column + i / 2 * 8, y, i ? sum[3] : sum[2]);
        }
    }
    MOEK_DEVICE void finish_y(const params *p, const block *b, int unit, const float *sum)
    {
        const int lane = threadIdx.x % 32;
        int i;
        #pragma unroll 1
        for (i = 0; i < 4; i++) {
            const int token = lane % 4 * 2 + i % 2;
            const float y = i < 2 ? (i ? sum[1] : sum[0]) : i == 2 ? sum[2] : sum[3];
            if (token < b->tokens) store_y(p, b, unit * 16 + lane / 4 + i / 2 * 8, token, y);
        }
    }
    /* PAGES, after a barrier: a unit whose k several warps have, by the second of them; in the order of k. */
    template <int DOWN>
    MOEK_DEVICE void finish_shared(const params *p, const block *b, work_range s, uint16_t *h)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = moek_quotient_(s.begin, max(s.each, 1));
        const int from = unit * s.each, until = from + s.each;
        const int begin = s.all * lane / WARPS, end = s.all * (lane + 1) / WARPS;
        unsigned warps = __ballot_sync(0xffffffff, lane < WARPS && max(begin, from) < min(end, until));
        float sum[4] = {0, 0, 0, 0};
        int begun = 1, i;
        if (DOWN && !s.all)                            /* no expert of the layer's is in use */
            for (i = warp; i < s.units; i += WARPS) finish_y(p, b, s.unit0 + i, sum);
        if (s.begin == from || s.all * (warp - 1) / WARPS > from) return;
        #pragma unroll 1
        for (; warps; warps &= warps - 1) {
            const float *const page = page_of(b, __ffs(warps) - 1, begun);
            const float4 of = page ? *(const float4 *)page : make_float4(0, 0, 0, 0);
            sum[0] += of.x, sum[1] += of.y, sum[2] += of.z, sum[3] += of.w;
            begun = 0;
        }
        if constexpr (DOWN) finish_y(p, b, s.unit0 + unit, sum);
        else finish_h(p, b, s.unit0 + unit, sum, h);
    }

    /* c += the item in place `slot` of the ring, times x or h at b_at. */
    template <int DOWN>
    MOEK_DEVICE void add(float c[4][4], const block *b, int slot, int zero, uint32_t *odd, const unsigned char *b_at)
    {
        unsigned char *const item = b->ring + slot * ITEM, *const scales = b->scales + slot * SCALES;
        const unsigned char *const zeros = b->scales + STAGES * SCALES + slot * (SCALES / 4);
        if constexpr (DOWN) Down::add_t(c, item, scales, zeros, zero, odd, b_at);
        else Up::add_t(c, item, scales, zeros, zero, odd, b_at);
    }
    /* All items of a warp in up or down: sums to pages.  place: in the ring. */
    template <int DOWN>
    MOEK_DEVICE void multiply(const params *p, const block *b, walk *ask, int *place, int zero, work_range s,
                              uint16_t *h)
    {
        const int t = threadIdx.x, lane = t % 32, warp = t / 32;
        const int v = (int)moek_fastdiv_(s.begin, p->over_steps[DOWN]), g = s.begin - v * p->steps[DOWN];
        const int unit = DOWN ? moek_quotient_(v, max(b->used, 1)) : v;
        /* (Nobody looks at the sums of a token that is not there: any row will do.) */
        const unsigned char *const b_first = b->act + (DOWN ? 0 : min(lane / 4, b->tokens - 1) * p->pitch[0]) +
                                             lane % 4 * 32;
        const unsigned char *b_at;
        const float *x_of[2];
        float sum[4] = {0, 0, 0, 0}, c[4][4] = {{0}}, by[2] = {0, 0};
        uint32_t odd = 0;
        int d = DOWN ? v - unit * b->used : 0, page = unit + warp, run = p->steps[DOWN] - g, slot = *place, at = g;
        int begun = d == 0 && g == 0, i, j;
        const int of_row = BLOCKED ? p->steps[DOWN] : 1;
        if constexpr (E4M3 && DOWN) {
            #pragma unroll
            for (j = 0; j < 2; j++) x_of[j] = b->factors + max(b->slot_of[8 * d + lane % 4 * 2 + j], 0) * of_row;
        } else if constexpr (E4M3) {
            x_of[0] = b->factors + min(lane % 4 * 2, b->tokens - 1) * of_row;
            x_of[1] = b->factors + min(lane % 4 * 2 + 1, b->tokens - 1) * of_row;
        }
        b_at = b_first + (DOWN ? max(b->slot_of[8 * d + lane / 4], 0) * p->pitch[1] : 0) + g * (2 * k_item(DOWN));
        if constexpr (DOWN && Down::BY_ROW) row_scales(by, p, b, d, s.unit0 + unit);
        #pragma unroll 1
        for (i = s.n; i > 0; i--) {
            __syncwarp();                              /* what all have read, may be written */
            ask_next(p, ask, b, zero);
            moek_cp_async_wait_(STAGES - 1);
            __syncwarp();
            if constexpr (E4M3)
                Up::add_e4m3(c, b->ring + slot * ITEM + lane * 16, b->scales + slot * SCALES + lane / 4 * Up::EACH,
                             x_of[0][BLOCKED ? at : 0], x_of[1][BLOCKED ? at : 0], b_at);
            else
                add<DOWN>(c, b, slot, zero, &odd, b_at);
            if (++slot == STAGES) slot = 0;
            b_at += 2 * k_item(DOWN);
            at++;
            if (--run == 0 || i == 1) {
                if constexpr (DOWN ? (int)Down::CHECKED : (int)Up::CHECKED) spoil(c, &odd);
                if constexpr (DOWN) {
                    weigh(sum, c, p, b, d, by);
                    if (++d == b->used || i == 1) {
                        if constexpr (PAGES) {
                            if (begun && d == b->used && run == 0) finish_y(p, b, s.unit0 + page - warp, sum);
                            else put_part(page_of(b, warp, begun), sum);
                            begun = 1;
                        } else put(b->pages + page * 128, sum[0], sum[1], sum[2], sum[3]);
                        d = 0;
                        sum[0] = sum[1] = sum[2] = sum[3] = 0;
                        page++;
                    }
                    b_at = b_first + max(b->slot_of[8 * d + lane / 4], 0) * p->pitch[1];
                    if constexpr (Down::BY_ROW) if (i > 1) row_scales(by, p, b, d, s.unit0 + page - warp);
                    if constexpr (E4M3)
                        #pragma unroll
                        for (j = 0; j < 2; j++)
                            x_of[j] = b->factors + max(b->slot_of[8 * d + lane % 4 * 2 + j], 0) * of_row;
                } else {
                    if constexpr (PAGES) {
                        #pragma unroll
                        for (j = 0; j < 4; j++) sum[j] = take(c, j);
                        if (begun && run == 0) finish_h(p, b, s.unit0 + page - warp, sum, h);
                        else put_part(page_of(b, warp, begun), sum);
                        begun = 1;
                    } else put(b->pages + page * 128, take(c, 0), take(c, 1), take(c, 2), take(c, 3));
                    page++;
                    b_at = b_first;
                }
                at = 0;
                run = p->steps[DOWN];
            }
        }
        *place = slot;
    }

    /* Up: scales of all, bias and activation of the block's units, after a barrier; h to memory. */
    MOEK_DEVICE void finish_up(const params *p, const block *b, work_range s, uint16_t *h)
    {
        const moek_gemm_ *const a = &p->up;
        const int gated = a->w_rows > a->n, each = gated ? 64 : 128;
        const int t = threadIdx.x;
        int i;
        #pragma unroll 1
        for (i = t; i < s.units * each; i += THREADS) {
            const int of = i / each, from = of * s.each, unit = s.unit0 + of;
            const int at = gated ? i % 64 / 2 * 4 + i % 2 : i % 128;   /* in the page; of what comes first in w */
            const int token = at / 4 % 4 * 2 + at % 2, d = (int)moek_fastdiv_(unit, p->over_units);
            const int column = (unit - d * p->units[0]) * (gated ? 8 : 16) + at / 16 + (gated ? 0 : at % 4 / 2 * 8);
            const int row = b->slot_of[8 * d + token];
            const float *const page = b->pages + of * 128 + at;
            const float first = moek_sum_of_pages_<WARPS, 0>(page, 128, from, from + s.each, s.all);
            const float other = gated ? moek_sum_of_pages_<WARPS, 0>(page + 2, 128, from, from + s.each, s.all) : 0;
            if (row >= 0) store_h(p, b, h, d, row, column, first, other);
        }
    }
    /* Combine: y of the block's units, after a barrier. */
    MOEK_DEVICE void combine(const params *p, const block *b, work_range s)
    {
        const int t = threadIdx.x;
        int i;
        #pragma unroll 1
        for (i = t; i < s.units * 128; i += THREADS) {       /* y of unit i / 128 */
            const int of = i / 128, at = i % 128, token = at / 4 % 4 * 2 + at % 2;
            const int column = (s.unit0 + of) * 16 + at / 16 + at % 4 / 2 * 8;
            const float y = moek_sum_of_pages_<WARPS, 0>(b->pages + i, 128, of * s.each, (of + 1) * s.each, s.all);
            if (token < b->tokens) store_y(p, b, column, token, y);
        }
    }

    /* A block. */
    MOEK_DEVICE void run(const params *p, int zero)
    {
        MOEK_SHARED_(unsigned char, act);
        __shared__ int list[WARPS][SLOTS], slot_of[8 * SLOTS], pair_of[SLOTS], turn_of;
        __shared__ float weight_of[8 * SLOTS], row_max[2 * SLOTS];     /* row_max: E4M3, not BLOCKED */
        const int t = threadIdx.x, lane = t % 32, warp = t / 32;
        const moek_layer_args *const a = &p->a;
        block block_, *const b = &block_;
        work_range s;
        walk ask;
        uint16_t *h;
        moek_words_ x[FIRST];
        const uint16_t *from[FIRST];
        float weight = 1;
        int id, row, column, turn = 0, slot = 0, i;
        b->act = act;
        b->scales = act + p->fit.act + warp * (STAGES * SCALES / 4 * (zero ? 5 : 4));
        b->pages = (float *)(act + p->fit.act + p->fit.factors);
        b->ring = act + p->fit.act + p->fit.factors + p->fit.pages + warp * (STAGES * ITEM);
        b->list = list[warp]; b->slot_of = slot_of; b->pair_of = pair_of; b->weight_of = weight_of;
        b->tokens = a->tokens; b->slots = b->tokens * a->topk;
        if constexpr (E4M3) {
            b->factors = (float *)(void *)(act + p->fit.act + RING / 8);
            if constexpr (!BLOCKED) {
                b->row_max = row_max;
                if (t < 2 * SLOTS) row_max[t] = 0;
                __syncthreads();
            }
        }

        if (warp == WARPS - 1) for (i = lane; i < 8 * SLOTS; i += 32) { slot_of[i] = -1; weight_of[i] = 0; }
        if (t == 0) {                                  /* on their way to L2 already */
            moek_prefetch_(a->ids);
            if (a->weights) moek_prefetch_(a->weights);
        }
        for (i = blockIdx.x % 32 + 32 * t; ; i += 32 * THREADS) {      /* lines of x */
            row = (int)moek_fastdiv_(i / (pieces(0) / 8), p->over_steps[0]);
            column = (i - row * p->steps[0] * (pieces(0) / 8)) * 64;
            if (row >= b->tokens) break;
            if (column < up_of(p)->k) moek_prefetch_((const uint16_t *)a->x + (size_t)row * a->x_stride + column);
        }
        #pragma unroll
        for (i = 0; i < FIRST; i++) from[i] = (const uint16_t *)moek_opaque_ptr_(find_x(p, t + i * THREADS));
        moek_grid_wait_();
        moek_grid_go_();
        id = lane < b->slots ? a->ids[lane] : -1;
        if (a->weights && lane < b->slots) weight = a->weights[lane];
        #pragma unroll
        for (i = 0; i < FIRST; i++) x[i] = moek_load_or_zeros_(from[i]);
        if (t == 0) turn = moek_turn_(a->state->launches, gridDim.x);
        sort(p, b, &ask, id, zero, weight);
        stage_x(p, b, x);
        if (t == 0) turn_of = turn;
        __syncthreads();
        turn = turn_of;
        if constexpr (E4M3 && !BLOCKED) quantize(p, b, 0, b->tokens);
        b->h = h = a->state->h[turn];

        s = work_range_of(p, b->used, 0);
        multiply<0>(p, b, &ask, &slot, zero, s, h);
        __syncthreads();
        if constexpr (PAGES) finish_shared<0>(p, b, s, h);
        else finish_up(p, b, s, h);
        moek_clear_next_h_(a, turn, t, THREADS);

        s = work_range_of(p, b->used, 1);
        stage_h(p, b, h);
        __syncthreads();
        if constexpr (E4M3 && !BLOCKED) quantize(p, b, 1, b->slots);
        multiply<1>(p, b, &ask, &slot, zero, s, h);
        __syncthreads();
        if constexpr (PAGES) finish_shared<1>(p, b, s, h);
        else combine(p, b, s);
    }
};

/* Launches one of these kernels; zero: the same for zero points.  args NULL: makes them ready. */
template <int STAGES, int WARPS, int BYTES, int PAGES, int HOPPER, class Format, class Of_down = Format>
static MOEK_UNUSED moek_status moek_launch_layer_fragments_(
    const void *args, moek_stream stream,
    void (*kernel)(typename moek_layer_fragments_<STAGES, WARPS, BYTES, PAGES, HOPPER, Format, Of_down>::params),
    void (*zero)(typename moek_layer_fragments_<STAGES, WARPS, BYTES, PAGES, HOPPER, Format, Of_down>::params) = NULL)
{
    typedef moek_layer_fragments_<STAGES, WARPS, BYTES, PAGES, HOPPER, Format, Of_down> K;
    static const moek_decode_room room = { BYTES, K::RING, WARPS, PAGES, 1 + K::IN_RING };
    const moek_layer_args *const a = (const moek_layer_args *)args;
    typename K::params p;
    int zeros = 0, i;
    unsigned blocks;
    if (!a) {
        const moek_status status = moek_ready_layer_<HOPPER>((const void *)kernel, K::THREADS, BYTES);
        return status || !zero ? status : moek_ready_layer_<HOPPER>((const void *)zero, K::THREADS, BYTES);
    }
    if (a->tokens < 1) return MOEK_OK;
    if constexpr (K::ZERO) {
        zeros = a->up->w.zero_points != NULL;
        if (zeros != (a->down->w.zero_points != NULL)) return MOEK_E_ARGUMENT;
        if (zeros) kernel = zero;
    }
    blocks = moek_multiprocessors_();
    p.fit = moek_decode_smem_of(room, a->tokens, a->topk, a->up->experts, a->down->n, a->up->n,
                                a->up->w_rows > a->up->n, Format::W_BITS, K::E4M3 || zeros, (int)blocks);
    if (!p.fit.fits || !a->state || !a->y || a->up->dtype != MOEK_DTYPE_BF16) return MOEK_E_ARGUMENT;
    p.a = *a;
    if (!a->x_stride) p.a.x_stride = a->up->k;
    if (!a->addend_stride) p.a.addend_stride = a->down->n;
    if (!a->y_stride) p.a.y_stride = a->down->n;
    moek_take_gemm_(&p.up, a->up); moek_take_gemm_(&p.down, a->down);
    for (i = 0; i < 2; i++) {
        moek_gemm_ *const to = i ? &p.down : &p.up;
        const moek_gemm_args *const g = i ? a->down : a->up;
        const int k_item = i ? (int)K::Down::K_ITEM : (int)K::Up::K_ITEM;
        const int granule = i ? (int)K::Down::GRANULE : (int)K::Up::GRANULE;
        if (i) moek_find_gemm_<Of_down>(to, 1);
        else moek_find_gemm_<Format>(to, 1);
        if (!g->w.layout || g->gate.codes || g->n_offset || g->k_offset || g->k % granule || g->w_rows % 64)
            return MOEK_E_ARGUMENT;
        p.units[i] = g->w_rows / 16;
        p.steps[i] = (g->k + k_item - 1) / k_item;
        p.pitch[i] = p.steps[i] * (2 * k_item) + 16;        /* no bank twice */
        p.over_steps[i] = moek_fastdiv_of_(p.steps[i]);
    }
    p.over_units = moek_fastdiv_of_(p.units[0]); p.over_blocks = moek_fastdiv_of_(blocks);
    return MOEK_LAUNCH_LAYER_(HOPPER, kernel, blocks, K::THREADS,
                              p.fit.act + p.fit.factors + p.fit.pages + K::RING, stream, p);
}

/* A row of the table: its kernel, or two, the second for zero points, and their launcher.  SM: SM80, SM90.  Behind
 * `threads`: the parameters of moek_layer_fragments_. */
#define MOEK_LAYER_FRAGMENTS_KERNEL_(name, SM, threads, zero, ...) \
    static __global__ void MOEK_##SM##_BOUNDS_(threads) \
    name(const __grid_constant__ moek_layer_fragments_<__VA_ARGS__>::params p) \
    { \
        MOEK_IN_##SM##_(moek_layer_fragments_<__VA_ARGS__>::run(&p, zero);) \
    }
#define MOEK_LAYER_FRAGMENTS_ROW_(row, SM, threads, ...) \
    MOEK_LAYER_FRAGMENTS_KERNEL_(row##_k_, SM, threads, 0, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_layer_fragments_<__VA_ARGS__>(args, stream, row##_k_); \
    }
#define MOEK_LAYER_FRAGMENTS_ZERO_ROW_(row, SM, threads, ...) \
    MOEK_LAYER_FRAGMENTS_KERNEL_(row##_k_, SM, threads, 0, __VA_ARGS__) \
    MOEK_LAYER_FRAGMENTS_KERNEL_(row##_zero_, SM, threads, 1, __VA_ARGS__) \
    MOEK_LAUNCHER row(const void *args, moek_stream stream) \
    { \
        return moek_launch_layer_fragments_<__VA_ARGS__>(args, stream, row##_k_, row##_zero_); \
    }
#endif
