/* layer/mma.cuh -- y[t] = the weighted sum over the experts e of token t of
 * act(gate_e(x[t]), up_e(x[t])) . w_down_e: a layer of one to four tokens.  For layer_mma of the table.
 *
 * Sort, up, down and combine of one to four tokens in one launch, by mma.sync: one block an SM.  The limit is the bytes
 * of the weights, and as much latency.  The plan takes the kernel for one token, and for up to four where experts are
 * narrow (rules.toml: few_tokens; moek_decode_smem_of).  Blocks wait for h of other blocks: all must be resident.
 * There are no roles: each warp streams weights to itself and multiplies them.  Warps meet where sums do.  Phases:
 *
 * - sort: the experts in use, by each warp for itself.  The first weights of up are asked for.
 * - stage_x: each block brings all of x to shared memory, FP8 quantized.
 * - multiply, of up, and finish_up: a block has units of 8 columns of h, which are 8 rows of w, gated twice as many.
 *   Its warps share the k of all of them evenly.  Sums meet in shared memory (pages), in the order of k.  h goes to
 *   memory as T.
 * - stage_h: each block brings all of h to shared memory, FP8 quantized, as h comes.  Memory is 0 where h is not there
 *   yet (moek_layer_state), so that no block waits for the count of another.  The first weights of down are on their
 *   way meanwhile.
 * - multiply, of down, and combine: a block has units of 8 columns of y, with all experts, so that the weighted sum
 *   needs no other block.  The weights of the experts are factors of h, and all experts are one f32 sum.
 *   ROUNDS, in fp16: the sum of an expert is rounded, weighted and added by the warp that has all of the expert's k.
 *   Where warps share an expert, the last of these warps does so when all are done (split_k_reduce).  That takes a
 *   microsecond.  An output of an expert beyond the largest fp16 is Inf, as in all other kernels.
 *
 * Blocks do not finish up at the same time, and then h takes microseconds to go around.  Where there is enough to do,
 * the experts in use are halved: up of the first half, up of the second, down of the first, down of the second.  What
 * down reads was then made long ago.
 *
 * - Stages: each warp has a ring of STAGES items of its own.  Each lane copies, by cp.async, what the same lane will
 *   read: no barrier is needed.
 * - An item is 8 rows of w by 256 bytes of k, in two halves of 128.  mma's 16 rows are these 8 with the first 64 bytes
 *   of a half, then with the last.  Its 8 columns are 4 tokens, twice.  Of its sums two quarters count.
 * - A lane has 16 bytes of k side by side, where mma expects others.  Both operands are permuted alike, so that the sum
 *   is the same.
 * - An item of each warp takes about 1 us.  That is time for 450 instructions: walk counts instead of dividing.
 * - FP8: e4m3 becomes fp16, exactly, ahead of the mma; sums are f32.
 */
#ifndef MOEK_LAYER_MMA_CUH
#define MOEK_LAYER_MMA_CUH
#include "decode.cuh"

/* BYTES of shared memory, WARPS a block.  HOPPER: code for sm_90a alone.  Format: of moek_formats.h. */
template <int STAGES, int WARPS, int BYTES, int HOPPER, class Format> struct moek_layer_mma_ {
    enum {
        FP8 = Format::W_BITS == 8, DTYPE = Format::DTYPE, ELEMENT = Format::W_BITS / 8,        /* bytes */
        BLOCKED = Format::W_SCALE_COLUMNS > 0,         /* scales are for 128 x 128 of w, and 128 columns of a */
        BY_TENSOR = FP8 && !BLOCKED,
        ROUNDS = (int)DTYPE == MOEK_DTYPE_FP16,        /* each expert's row of down, before its weight */
        PAGES = ROUNDS ? 3 : 1,                        /* of a warp in down */
        WIDE = 2 / ELEMENT,                            /* bytes of b, which is of 16 bits, for one of w */
        LANES = 8,                                     /* that bring what 128 bytes of w are multiplied with: */
        PARTS = 2 / ELEMENT,                           /* times 8 columns, 64 apart */
        ITEM = 2048,                                   /* bytes of an item in the ring */
        RING = STAGES * WARPS * ITEM,
        THREADS = 32 * WARPS, SLOTS = MOEK_DECODE_SLOTS,
        FIRST = 2 / PARTS, FIRST_X = 4 / PARTS         /* pieces of h and of x that a thread has on their way */
    };
    struct params {
        moek_layer_args a;
        moek_gemm_ up, down;
        int steps[2], units[2], pitch[2];              /* of up, of down: items of a row; units (up: of an expert) */
        int parts;                                     /* gated: 2 */
        moek_decode_smem fit;
        moek_fastdiv over_blocks, over_units, over_steps[2];
    };

    /* ---- weights ------------------------------------------------------------------------------------------------- */

    /* The experts in use: the first `split` of them, then the others, up to `used`. */
    struct halves_ { int used, split; };
    /* A block's units, the items of a unit and of all of them, and a warp's part of these; experts [d0, d1). */
    struct work_range { int unit0, units, each, all, begin, n, d0, d1; };
    /* Of up (parts 0 and 1: halves of the experts) and of down (2 and 3). */
    MOEK_DEVICE work_range work_range_of(const params *p, halves_ of, int part)
    {
        work_range s;
        const int warp = threadIdx.x / 32, second = part & 1, down = part >> 1;
        /* (In the second half rounding begins in the middle: warps that had more units before have fewer.) */
        const unsigned shift = second && !down ? gridDim.x / 2 : 0;
        unsigned units;
        s.d0 = second ? of.split : 0; s.d1 = second ? of.used : of.split;
        units = down ? p->units[1] : (s.d1 - s.d0) * p->units[0];
        s.unit0 = (int)moek_fastdiv_(units * blockIdx.x + shift, p->over_blocks);
        s.units = (int)moek_fastdiv_(units * (blockIdx.x + 1) + shift, p->over_blocks) - s.unit0;
        s.each = down ? (s.d1 - s.d0) * p->steps[1] : p->parts * p->steps[0];
        s.all = s.units * s.each;
        s.begin = s.all * warp / WARPS;
        s.n = s.all * (warp + 1) / WARPS - s.begin;
        return s;
    }

    /* What a warp asks for: of 8 rows of w, with all of their k, an item after the other, part by part.  The order of
     * such rows: in up the columns of h, of gate and then of up (half 1), expert by expert; in down the columns of y,
     * for one expert after the other.  asks: items to ask for of this part; run: until other rows begin. */
    struct walk {
        const unsigned char *w;                        /* this lane's first 16 bytes of the next item */
        const float *scale;                            /* FP8: of its half lane % 2 */
        int left;                                      /* bytes of k from the next item on */
        int apart;                                     /* in memory, 128 bytes of k from the next */
        int unit, d, half, part, asks, run, put;
        halves_ of;
    };

    /* To item g of rows (unit, d, half).  mine: lane d has the number of the d-th expert in use. */
    MOEK_DEVICE void seat(const params *p, walk *at, int g, int mine)
    {
        const int down = at->part >> 1, gated = !down && p->parts == 2, lane = threadIdx.x % 32;
        const moek_gemm_ *const a = down ? &p->down : &p->up;
        const int e = __shfl_sync(0xffffffff, mine, at->d), bytes = a->k * ELEMENT;
        const int half = gated && at->half, j = 8 * at->unit;
        if (a->w.layout) {
            const int eight = gated ? 2 * at->unit + (half ^ (a->gate_first > a->up_first)) : at->unit;
            at->apart = a->w_rows * 128;
            at->w = (const unsigned char *)a->w.codes + lane / 4 * 128 + lane % 4 * 16 + eight * 1024 +
                    ((size_t)e * (bytes / 128) + 2 * g) * (size_t)at->apart;
        } else {
            at->apart = 128;
            at->w = (const unsigned char *)MOEK_HALF_(a->gate_up.codes, half) + g * 256 + lane % 4 * 16 +
                    ((size_t)e * a->gate_up.rows + min(j + lane / 4, a->n - 1) * a->gate_up.step) * (size_t)bytes;
        }
        at->left = bytes - g * 256;
        at->run = p->steps[down] - g;
        if constexpr (BLOCKED)
            at->scale = moek_scales_of_(&a->gate_up, half, e, j, (a->k + 127) / 128) + 2 * g + lane % 2;
        else if constexpr (FP8) at->scale = MOEK_HALF_(a->gate_up.scales, half) + e;
    }
    /* To the next rows, or to this warp's first item of the next part that has one. */
    MOEK_DEVICE void next(const params *p, walk *at, int mine)
    {
        int g = 0;
        if (at->asks > 0) {
            if (at->part >> 1) {
                if (++at->d == (at->part == 2 ? at->of.split : at->of.used)) {
                    at->d = at->part == 2 ? 0 : at->of.split;
                    at->unit++;
                }
            } else if (p->parts == 2 && !at->half) {
                at->half = 1;
            } else {
                at->half = 0;
                if (++at->unit == p->units[0]) { at->unit = 0; at->d++; }
            }
        }
        #pragma unroll 1
        while (at->asks == 0 && ++at->part < 4) {
            const work_range s = work_range_of(p, at->of, at->part);
            const int down = at->part >> 1, nd = max(s.d1 - s.d0, 1);
            int v = (int)moek_fastdiv_(s.begin, p->over_steps[down]);
            at->asks = s.n;
            g = s.begin - v * p->steps[down];
            at->half = !down && p->parts == 2 ? v & 1 : 0;
            if (!down) v = (v >> (p->parts - 1)) + s.unit0;
            at->unit = down ? moek_quotient_(v, nd) : (int)moek_fastdiv_(v, p->over_units);
            at->d = v - at->unit * (down ? nd : p->units[0]);
            if (down) at->unit += s.unit0;
            else {
                const int d = at->unit;
                at->unit = at->d;
                at->d = d;
            }
            at->d += s.d0;
        }
        if (at->asks > 0) seat(p, at, g, mine);
    }
    /* Ask for the next item, if there is one (the first time there is none), and find the one after it.  ring: this
     * lane's 16 bytes of each 64 of k, 512 apart.  scales: FP8. */
    MOEK_DEVICE void ask_next(const params *p, walk *at, unsigned char *ring, float *scales, int mine)
    {
        const int lane = threadIdx.x % 32;
        unsigned char *const to = ring + at->put * ITEM;
        int i;
        if (at->asks > 0) {
            if (at->left >= 256) {
                #pragma unroll
                for (i = 0; i < 4; i++) moek_cp_async16_(to + i * 512, at->w + i / 2 * at->apart + i % 2 * 64, 16);
                if constexpr (FP8) { if (lane < 2) moek_cp_async4_(scales + at->put * 2 + lane, at->scale); }
            } else {
                #pragma unroll
                for (i = 0; i < 4; i++) {
                    const int in = lane % 4 * 16 + i * 64 < at->left;
                    moek_cp_async16_(to + i * 512, in ? at->w + i / 2 * at->apart + i % 2 * 64
                                                      : (const unsigned char *)p->up.w.codes, in ? 16 : 0);
                }
                if constexpr (FP8) {
                    if (lane < 2)
                        moek_cp_async4_(scales + at->put * 2 + lane,
                                        at->scale - (BLOCKED ? lane == 1 && at->left <= 128 : 0));
                }
            }
            at->w += 2 * at->apart;
            at->left -= 256;
            if constexpr (BLOCKED) at->scale += 2;
            if (++at->put == STAGES) at->put = 0;
            if (--at->asks == 0) at->run = 0;
            else at->run--;
        }
        moek_cp_async_commit_();
        if (at->run == 0 && at->part < 4) next(p, at, mine);
    }

    /* ---- sums ---------------------------------------------------------------------------------------------------- */

    /* sum += item * b: all quarters that mma makes.  f_at: factors of this lane's two tokens, for each half. */
    MOEK_DEVICE void add(float sum[4], const unsigned char *item, const unsigned char *b_at, const float *f_at,
                         const float *scales, int live)
    {
        float c[2][4] = {{0}};
        float2 f[2];
        int h, i;
        f[0] = *(const float2 *)f_at;
        f[1] = BLOCKED ? *(const float2 *)(f_at + 4) : f[0];
        if constexpr (FP8) {
            const float2 s = *(const float2 *)scales;
            f[0].x *= s.x; f[0].y *= s.x; f[1].x *= s.y; f[1].y *= s.y;
        }
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const moek_words_ first = moek_load_words_(item + h * 1024), last = moek_load_words_(item + h * 1024 + 512);
            if constexpr (FP8) {
                #pragma unroll
                for (i = 0; i < 4; i++) {
                    const moek_words_ b = moek_load_words_(b_at + h * 256 + i / 2 * 16);
                    uint32_t u[2], v[2], w[4];
                    moek_fp16_of_e4m3_(u, first.w[i]);
                    moek_fp16_of_e4m3_(v, last.w[i]);
                    w[0] = u[0]; w[1] = v[0]; w[2] = u[1]; w[3] = v[1];
                    moek_mma_fp16_(c[h], w, b.w + i % 2 * 2);
                }
            } else {
                const moek_words_ b = moek_load_words_(b_at + h * 128);
                #pragma unroll
                for (i = 0; i < 2; i++) {
                    const uint32_t w[4] = { first.w[2 * i], last.w[2 * i], first.w[2 * i + 1], last.w[2 * i + 1] };
                    if constexpr (ROUNDS) moek_mma_fp16_(c[h], w, b.w + 2 * i);
                    else moek_mma_bf16_(c[h], w, b.w + 2 * i);
                }
            }
        }
        if (live & 1) {
            sum[0] = fmaf(c[1][0], f[1].x, fmaf(c[0][0], f[0].x, sum[0]));
            sum[2] = fmaf(c[1][2], f[1].x, fmaf(c[0][2], f[0].x, sum[2]));
        }
        if (live & 2) {
            sum[1] = fmaf(c[1][1], f[1].y, fmaf(c[0][1], f[0].y, sum[1]));
            sum[3] = fmaf(c[1][3], f[1].y, fmaf(c[0][3], f[0].y, sum[3]));
        }
    }

    /* Which of a lane's two tokens have this expert: their bits. */
    MOEK_DEVICE int live_of(const int *slot_of)
    {
        const int i = threadIdx.x % 2 * 2;
        return (slot_of[i] >= 0) | (slot_of[i + 1] >= 0) << 1;
    }
    /* A warp's sums of 8 rows, begun anew: of lane / 4, of its two tokens. */
    MOEK_DEVICE float2 take(float sum[4])
    {
        const int upper = threadIdx.x & 2;
        float2 of = upper ? make_float2(sum[2], sum[3]) : make_float2(sum[0], sum[1]);
        of.x += __shfl_xor_sync(0xffffffff, of.x, 2);
        of.y += __shfl_xor_sync(0xffffffff, of.y, 2);
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
        return of;
    }
    /* Where they lie in page[row][4 tokens]; the lanes with `upper` have them, too, and leave them to the others. */
    MOEK_DEVICE float *place_in(float *page)
    {
        const int lane = threadIdx.x % 32;
        return lane & 2 ? NULL : page + lane / 4 * 4 + lane % 2 * 2;
    }
    MOEK_DEVICE void put(float *page, float sum[4])
    {
        const float2 of = take(sum);
        float *const at = place_in(page);
        if (at) moek_store2_(at, of.x, of.y);
    }
    MOEK_DEVICE void clear(float *page)
    {
        float *const at = place_in(page);
        if (at) moek_store2_(at, 0, 0);
    }
    /* ROUNDS: a row of down, as combine gets it. */
    MOEK_DEVICE float rounded(float x, uint16_t bias, int dtype)
    {
        return moek_from_t_(moek_to_t_(x + moek_from_t_(bias, dtype), dtype), dtype);
    }
    /* ROUNDS: page += the sums of an expert, rounded, times the weights of its tokens. */
    MOEK_DEVICE void weigh(float *page, float sum[4], const float *weights, int live, uint16_t bias, int dtype)
    {
        const float2 of = take(sum);
        float *const at = place_in(page);
        if (at) {
            const float2 weight = *(const float2 *)(weights + threadIdx.x % 2 * 2);
            float2 y = *(const float2 *)at;
            if (live & 1) y.x += weight.x * rounded(of.x, bias, dtype);
            if (live & 2) y.y += weight.y * rounded(of.y, bias, dtype);
            moek_store2_(at, y.x, y.y);
        }
    }
    /* ROUNDS: of expert e, for this lane's row of a unit; 0 if there is none. */
    MOEK_DEVICE uint16_t bias_of(const moek_gemm_ *a, int e, int column)
    {
        return a->w.bias && column < a->n ? ((const uint16_t *)a->w.bias)[(size_t)e * a->w_rows + column] : (uint16_t)0;
    }
    /* ROUNDS: in down a warp has page unit + 3 * warp for what it adds to an expert's k that another warp began with,
     * of its first unit; the next page for y, of each unit; the one behind for an expert's k that it begins and another
     * goes on with, of its last unit.  Here: the expert whose k ends with this warp, and began with another, is
     * weighed.  A lane has one of the 32 sums. */
    MOEK_DEVICE void split_k_reduce(float *pages, const params *p, work_range s, const int *list, const int *slot_of,
                                    const float *weight_of, int dtype)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, v = (int)moek_fastdiv_(s.begin, p->over_steps[1]);
        const int first = v * p->steps[1], nd = max(s.d1 - s.d0, 1), unit = moek_quotient_(v, nd);
        const int d = s.d0 + v - unit * nd;
        float *const of = pages + unit * 32 + lane;
        float sum;
        int w = warp;
        if (first == s.begin || first + p->steps[1] > s.begin + s.n) return;
        while (s.all * w / WARPS > first) w--;                         /* the one that has its first item */
        sum = of[(3 * w + 2) * 32];
        for (w++; w <= warp; w++)                      /* (of few items, some warps have none) */
            if (s.all * w / WARPS < s.all * (w + 1) / WARPS) sum += of[3 * w * 32];
        if (slot_of[4 * d + lane % 4] >= 0) {
            const uint16_t bias = bias_of(&p->down, list[d], (s.unit0 + unit) * 8 + lane / 4);
            of[(3 * warp + 1) * 32] += weight_of[4 * d + lane % 4] * rounded(sum, bias, dtype);
        }
    }

    /* ---- x and h ------------------------------------------------------------------------------------------------- */

    /* The first 8 columns of number i of the lanes that bring x or h to shared memory: their row, and which 128 bytes
     * of w they are for. */
    MOEK_DEVICE int column_of(const params *p, int down, int i, int *row, int *group)
    {
        const int part = i / LANES;
        *row = (int)moek_fastdiv_(part / 2, p->over_steps[down]);
        *group = part - *row * 2 * p->steps[down];
        return *group * (8 * LANES * PARTS) + i % LANES * 8;
    }
    /* Where columns of x lie, 64 * part behind those: NULL for what is not there. */
    MOEK_DEVICE const uint16_t *find_x(const params *p, int i, int part)
    {
        int row, group;
        const int column = column_of(p, 0, i, &row, &group) + 64 * part;
        return row < p->a.tokens && column < p->up.k ? (const uint16_t *)p->a.x + (size_t)row * p->a.x_stride + column
                                                     : NULL;
    }
    /* Columns of h as they lie in memory: the complement, and 0 is what is not there yet. */
    MOEK_DEVICE void load_h(moek_words_ *x, const params *p, const uint16_t *h, int i, int slots, const int *pair_of,
                            work_range s)
    {
        int row, group, j;
        const int column = column_of(p, 1, i, &row, &group);
        const int ours = row < slots && (unsigned)(pair_of[row] - 4 * s.d0) < 4u * (unsigned)(s.d1 - s.d0);
        #pragma unroll
        for (j = 0; j < PARTS; j++)
            x[j] = ours && column + 64 * j < p->down.k
                 ? moek_load_relaxed_(h + (size_t)row * p->down.k + column + 64 * j)
                 : moek_not_words_(moek_zero_words_());
    }
    MOEK_DEVICE int all_there(const moek_words_ *x)
    {
        int there = 1, j;
        #pragma unroll
        for (j = 0; j < PARTS; j++) there &= moek_all_there_(x[j]);
        return there;
    }

    /* What all phases know: shared memory of the block, then numbers.  A pair is one of the experts in use and a token:
     * 4 * expert + token. */
    struct block {
        unsigned char *act;                            /* rows of x, by token; then of h, by slot: 16 bits */
        /* What the sums of an item are multiplied with: x [4 tokens], then h [experts in use][4 tokens]; BLOCKED, x
         * [128 of k][4 tokens], then h [experts in use][128 of k][4 tokens]. */
        float *factors;
        float *pages;                                  /* sums of the warps, 8 rows by 4 tokens each */
        unsigned char *ring;                           /* this lane's first 16 bytes of the warp's stages */
        float *scales;                                 /* FP8: [STAGES][2]: of the items in the ring */
        int t_dtype;                                   /* FP8 */
        int *list;                                     /* the experts in use, of this warp */
        int *slot_of;                                  /* [4 SLOTS]: of a pair the slot that has it; -1: none */
        int *pair_of;                                  /* [SLOTS]: of a slot the pair; -1: none, or an earlier slot's */
        float *weight_of;                              /* [4 SLOTS]: of pairs */
        float inverse;                                 /* BY_TENSOR: of the scale of x, then of h */
        int tokens, slots, used, mine;                 /* used: experts; mine: lane d has the d-th of them */
        int token, bytes;                              /* a lane's part of b */
        halves_ of;
    };

    /* Sort: the experts in use, in the order of their first slots, by each warp; slots and weights of pairs, by one.
     * The first items of up are asked for.  id, weight: of slot `lane`. */
    MOEK_DEVICE void sort(const params *p, block *b, walk *ask, int id, float weight)
    {
        const int t = threadIdx.x, lane = t % 32, warp = t / 32;
        const int in = (uint32_t)id < (uint32_t)p->up.experts;
        const moek_slot_ slot = moek_experts_in_use_(lane, in, id, b->list, &b->used, &b->mine);
        int i;
        /* Measured: with narrow experts of fp8, what a half costs is more than what it saves. */
        b->of.used = b->used;
        b->of.split = !FP8 || p->down.k > 1024 ? (b->used + 1) / 2 : b->used;
        ask->asks = ask->run = ask->put = 0; ask->part = -1; ask->of = b->of;
        #pragma unroll 1
        for (i = 0; i < STAGES; i++) ask_next(p, ask, b->ring, b->scales, b->mine);
        if (warp == WARPS - 1)
            moek_find_pairs_<4>(slot, lane, p->a.topk, weight, b->slot_of, b->pair_of, b->weight_of);
    }

    /* Columns of x or H of a whole warp -> act, and the scale of 128 -> factors.  live: are they?  H: of this pair. */
    template <int H>
    MOEK_DEVICE void stage(const params *p, const block *b, moek_words_ *x, int live, int row, int column, int group,
                           int pair, int pitch, int dtype)
    {
        int j;
        if constexpr (BLOCKED) {
            uint2 codes[PARTS];
            const float s = moek_group_codes_(codes, x, PARTS, LANES, p->a.ue8m0, dtype);
            if (live) {
                #pragma unroll
                for (j = 0; j < PARTS; j++)
                    moek_store_words_(b->act + row * pitch + column * 2 + 128 * j, moek_fp16_of_codes_(codes[j]));
                if (threadIdx.x % LANES == 0)
                    b->factors[H ? 4 * (pair / 4 * p->steps[1] * 2 + group) + pair % 4 : 4 * group + row] =
                        s * (H ? b->weight_of[pair] : 1.0f);
            }
        } else if (live) {
            #pragma unroll
            for (j = 0; j < PARTS; j++)
                moek_store_words_(b->act + row * pitch + column * 2 + 128 * j,
                                  FP8 ? moek_fp16_of_codes_(moek_static_codes_(x[j], b->inverse, dtype)) : x[j]);
        }
    }
    /* x to shared memory, FP8 quantized.  x: of this thread, the first on their way. */
    MOEK_DEVICE void stage_x(const params *p, const block *b, moek_words_ (*x)[PARTS])
    {
        const int t = threadIdx.x, lane = t % 32, dtype = FP8 ? b->t_dtype : DTYPE;
        const int pitch = p->pitch[0];
        int row, column, i, j;
        #pragma unroll 1
        for (i = t; i - lane < b->tokens * p->steps[0] * 2 * LANES; i += THREADS) {
            int group;
            column = column_of(p, 0, i, &row, &group);
            stage<0>(p, b, x[0], row < b->tokens, row, column, group, 0, pitch, dtype);
            #pragma unroll
            for (j = 0; j < PARTS; j++) {
                int to;
                #pragma unroll
                for (to = 1; to < FIRST_X; to++) x[to - 1][j] = x[to][j];
                x[FIRST_X - 1][j] = moek_load_or_zeros_(find_x(p, i + FIRST_X * THREADS, j));
            }
        }
    }
    /* h to shared memory, FP8 quantized, as it comes. */
    MOEK_DEVICE void stage_h(const params *p, const block *b, moek_words_ (*x)[PARTS], work_range s, const uint16_t *h)
    {
        const int t = threadIdx.x, lane = t % 32, dtype = FP8 ? b->t_dtype : DTYPE;
        const int total = b->slots * p->steps[1] * 2 * LANES, pitch = p->pitch[1];
        int row, column, i, j;
        #pragma unroll
        for (i = 0; i < FIRST; i++) load_h(x[i], p, h, t + i * THREADS, b->slots, b->pair_of, s);
        #pragma unroll 1
        for (i = t; i - lane < total; i += THREADS) {
            int group, pair, ours, tries = 0;
            while (!__all_sync(0xffffffff, all_there(x[0]))) {
                if (tries++) moek_pause_(tries < 6 ? 16 << tries : 512);
                if (!all_there(x[0])) load_h(x[0], p, h, i, b->slots, b->pair_of, s);
            }
            if (tries)
                #pragma unroll
                for (j = 1; j < FIRST; j++)
                    if (!all_there(x[j])) load_h(x[j], p, h, i + j * THREADS, b->slots, b->pair_of, s);
            column = column_of(p, 1, i, &row, &group);
            pair = row < b->slots ? b->pair_of[row] : -1;
            ours = (unsigned)(pair - 4 * s.d0) < 4u * (unsigned)(s.d1 - s.d0);
            if (__any_sync(0xffffffff, ours)) {
                #pragma unroll
                for (j = 0; j < PARTS; j++) x[0][j] = moek_not_words_(x[0][j]);
                stage<1>(p, b, x[0], ours, row, column, group, pair, pitch, dtype);
            }
            #pragma unroll
            for (j = 0; j < PARTS; j++) {
                int to;
                #pragma unroll
                for (to = 1; to < FIRST; to++) x[to - 1][j] = x[to][j];
            }
            load_h(x[FIRST - 1], p, h, i + FIRST * THREADS, b->slots, b->pair_of, s);
        }
    }

    /* ---- phases -------------------------------------------------------------------------------------------------- */

    /* All items of a warp in up or down: sums to pages.  place: in the ring. */
    template <int DOWN>
    MOEK_DEVICE void multiply(const params *p, const block *b, walk *ask, float *sum, int *place, work_range s,
                              int pages0)
    {
        const int t = threadIdx.x, lane = t % 32, warp = t / 32, dtype = FP8 ? b->t_dtype : DTYPE;
        const int v = (int)moek_fastdiv_(s.begin, p->over_steps[DOWN]), g = s.begin - v * p->steps[DOWN];
        /* (Nobody looks at the sums of a token that is not there: any row will do.) */
        const unsigned char *const b_first =
            b->act + (DOWN ? 0 : min(b->token, b->tokens - 1) * p->pitch[0]) + b->bytes, *b_at;
        const float *const f_first = b->factors + lane % 2 * 2, *f_at;
        const int unit = DOWN ? moek_quotient_(v, max(s.d1 - s.d0, 1)) : v;
        const float *const f_part = f_first + (BLOCKED ? 8 * s.d0 * p->steps[1] : 4 * s.d0);
        int d = DOWN ? s.d0 + v - unit * (s.d1 - s.d0) : 0;
        int page = pages0 + unit + (DOWN && ROUNDS ? 3 * warp + 1 : warp);
        int whole = g == 0;                            /* does this warp have all of an expert's k? */
        int run = p->steps[DOWN] - g, slot = *place, live, i;
        uint16_t bias = 0;
        b_at = b_first + (DOWN ? max(b->slot_of[4 * d + b->token], 0) * p->pitch[1] : 0) + g * (256 * WIDE);
        f_at = f_first;
        if constexpr (DOWN && !ROUNDS) f_at += BLOCKED ? 8 * (d * p->steps[1] + g) : 4 * d;
        if constexpr (!DOWN && BLOCKED) f_at += 8 * g;
        live = DOWN ? live_of(b->slot_of + 4 * d) : 3;
        if constexpr (DOWN && ROUNDS) {
            if (s.n > 0) {
                bias = bias_of(&p->down, b->list[d], (s.unit0 + unit) * 8 + lane / 4);
                clear(b->pages + page * 32);
            }
        }
        #pragma unroll 1
        for (i = s.n; i > 0; i--) {
            __syncwarp();                              /* what all have read, may be written */
            ask_next(p, ask, b->ring, b->scales, b->mine);
            moek_cp_async_wait_(STAGES - 1);
            __syncwarp();
            add(sum, b->ring + slot * ITEM, b_at, f_at, b->scales + 2 * slot, live);
            if (++slot == STAGES) slot = 0;
            b_at += 256 * WIDE;
            if constexpr (BLOCKED) f_at += 8;
            if (--run == 0) {
                if constexpr (!DOWN) {
                    put(b->pages + page * 32, sum);
                    page++;
                    b_at = b_first;
                    f_at = f_first;
                } else if constexpr (ROUNDS) {
                    if (whole) weigh(b->pages + page * 32, sum, b->weight_of + 4 * d, live, bias, dtype);
                    else put(b->pages + (page - 1) * 32, sum);
                    whole = 1;
                    if (++d == s.d1) {
                        d = s.d0;
                        page++;
                        if (i > 1) clear(b->pages + page * 32);
                    }
                } else {
                    if (++d == s.d1) {
                        d = s.d0;
                        f_at = f_part;
                        put(b->pages + page * 32, sum);
                        page++;
                    } else {
                        if constexpr (!BLOCKED) f_at += 4;
                        if (i == 1) put(b->pages + page * 32, sum);
                    }
                }
                if constexpr (DOWN) {
                    b_at = b_first + max(b->slot_of[4 * d + b->token], 0) * p->pitch[1];
                    live = live_of(b->slot_of + 4 * d);
                    if constexpr (ROUNDS)
                        bias = bias_of(&p->down, b->list[d],
                                       (s.unit0 + page - pages0 - 3 * warp - 1) * 8 + lane / 4);
                }
                run = p->steps[DOWN];
            } else if (i == 1) put(b->pages + (DOWN && ROUNDS ? page - 1 + 2 * whole : page) * 32, sum);
        }
        *place = slot;
    }

    /* Up: bias and activation of the block's units, after a barrier; h to memory. */
    MOEK_DEVICE void finish_up(const params *p, const block *b, work_range s, int pages0, uint16_t *h)
    {
        const int t = threadIdx.x, dtype = FP8 ? b->t_dtype : DTYPE;
        int row, column, d, i;
        #pragma unroll 1
        for (i = t; i < s.units * 32; i += THREADS) {  /* h of unit i / 32 */
            const int from = i / 32 * s.each, until = from + s.each, half = from + p->steps[0], gated = p->parts == 2;
            const int unit = s.unit0 + i / 32;
            const float *const first = b->pages + (pages0 + i / 32 * p->parts) * 32;
            float gate = moek_sum_of_pages_<WARPS, 1>(first, 32, from, half, s.all), other = 0;
            if (gated) other = moek_sum_of_pages_<WARPS, 1>(first + 32, 32, half, until, s.all);
            d = (int)moek_fastdiv_(unit, p->over_units);
            column = (unit - d * p->units[0]) * 8 + i % 32 / 4;
            d += s.d0;
            row = b->slot_of[4 * d + i % 4];
            if (row >= 0 && column < p->up.n) {
                if (p->up.w.bias) {
                    const size_t at = (size_t)b->list[d] * p->up.gate_up.rows + column * p->up.gate_up.step;
                    gate += moek_from_t_(((const uint16_t *)p->up.gate_up.bias[0])[at], dtype);
                    if (gated) other += moek_from_t_(((const uint16_t *)p->up.gate_up.bias[1])[at], dtype);
                }
                moek_store_relaxed_(h + (size_t)row * p->up.n + column, moek_not_t_(
                    moek_to_t_(moek_epilogue_of_(&p->up.epilogue, gate, other), dtype)));
            }
        }
    }
    /* Combine: y of the block's units, after a barrier.  s: the range of the last half; pages0: where its pages
     * begin. */
    MOEK_DEVICE void combine(const params *p, const block *b, work_range s, int halves, int pages0)
    {
        const int t = threadIdx.x, dtype = FP8 ? b->t_dtype : DTYPE;
        const moek_layer_args *const a = &p->a;
        const work_range first = work_range_of(p, b->of, 2);
        int column, d, i;
        #pragma unroll 1
        for (i = t; i < s.units * 32; i += THREADS) {  /* y of unit i / 32 */
            const int unit = i / 32;
            const float *const page = b->pages + (ROUNDS ? unit + 1 : unit) * 32;
            float y = moek_sum_of_pages_<WARPS, 1>(page, 32 * PAGES, unit * first.each, (unit + 1) * first.each,
                                                   first.all);
            if (halves > 1)
                y += moek_sum_of_pages_<WARPS, 1>(page + pages0 * 32, 32 * PAGES, unit * s.each, (unit + 1) * s.each,
                                                  s.all);
            column = (s.unit0 + i / 32) * 8 + i % 32 / 4;
            if (i % 4 < b->tokens && column < p->down.n) {
                const uint16_t *const addend = (const uint16_t *)a->addend + (size_t)(i % 4) * a->addend_stride;
                if constexpr (!ROUNDS)
                    if (p->down.w.bias)
                        for (d = 0; d < b->used; d++) {
                            if (b->slot_of[4 * d + i % 4] < 0) continue;
                            const uint16_t *const bias =
                                (const uint16_t *)p->down.w.bias + (size_t)b->list[d] * p->down.w_rows;
                            y += b->weight_of[4 * d + i % 4] * moek_from_t_(bias[column], dtype);
                        }
                if (a->addend) y += moek_from_t_(addend[column], dtype);
                ((uint16_t *)a->y)[(size_t)(i % 4) * a->y_stride + column] = moek_to_t_(y, dtype);
            }
        }
    }

    /* A block. */
    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_(unsigned char, act);
        __shared__ int list[WARPS][SLOTS], slot_of[4 * SLOTS], pair_of[SLOTS];
        __shared__ __align__(8) float weight_of[4 * SLOTS];
        __shared__ int turn_of;
        __shared__ __align__(8) float scale_of[WARPS][STAGES][2];      /* FP8 */
        const moek_layer_args *const a = &p->a;
        block block_, *const b = &block_;
        b->act = act;
        b->factors = (float *)(act + p->fit.act);
        b->pages = (float *)(act + p->fit.act + p->fit.factors);
        b->ring = act + p->fit.act + p->fit.factors + p->fit.pages + threadIdx.x / 32 * (STAGES * ITEM) +
                  threadIdx.x % 32 * 16;
        if constexpr (FP8) b->t_dtype = p->up.dtype;
        const int t = threadIdx.x, lane = t % 32, warp = t / 32, dtype = FP8 ? b->t_dtype : DTYPE;
        work_range s;
        walk ask;
        uint16_t *h;
        moek_words_ x[FIRST_X][PARTS];
        const uint16_t *from[FIRST_X][PARTS];
        float weight = 1, sum[4] = {0, 0, 0, 0};
        int id, row, column, pages0 = 0, turn = 0, slot = 0, halves, second, i, j;
        b->scales = FP8 ? scale_of[warp][0] : NULL;
        b->list = list[warp]; b->slot_of = slot_of; b->pair_of = pair_of; b->weight_of = weight_of;
        b->tokens = a->tokens; b->slots = b->tokens * a->topk;
        b->token = lane / 4 % 4; b->bytes = lane / 16 * (64 * WIDE) + lane % 4 * (16 * WIDE);

        if (warp == WARPS - 1) for (i = lane; i < 4 * SLOTS; i += 32) { slot_of[i] = -1; weight_of[i] = 0; }
        if (t == 0) {                                  /* on their way to L2 already */
            moek_prefetch_(a->ids);
            if (a->weights) moek_prefetch_(a->weights);
        }
        for (i = blockIdx.x % 32 + 32 * t; ; i += 32 * THREADS) {      /* lines of x */
            row = (int)moek_fastdiv_(i / (2 * WIDE), p->over_steps[0]);
            column = (i - row * p->steps[0] * (2 * WIDE)) * 64;
            if (row >= b->tokens) break;
            if (column < p->up.k) moek_prefetch_((const uint16_t *)a->x + (size_t)row * a->x_stride + column);
        }
        #pragma unroll
        for (i = 0; i < FIRST_X; i++)
            #pragma unroll
            for (j = 0; j < PARTS; j++) {
                from[i][j] = (const uint16_t *)moek_opaque_ptr_(find_x(p, t + i * THREADS, j));
            }
        moek_grid_wait_();
        moek_grid_go_();
        id = lane < b->slots ? a->ids[lane] : -1;
        if (a->weights && lane < b->slots) weight = a->weights[lane];
        #pragma unroll
        for (i = 0; i < FIRST_X; i++)
            #pragma unroll
            for (j = 0; j < PARTS; j++) x[i][j] = moek_load_or_zeros_(from[i][j]);
        if (t == 0) turn = moek_turn_(a->state->launches, gridDim.x);
        if constexpr (BY_TENSOR) b->inverse = __fdiv_rn(1.0f, *MOEK_F32_(p->up.a_scale));
        sort(p, b, &ask, id, weight);
        stage_x(p, b, x);
        if (!BLOCKED && t < 4) b->factors[t] = FP8 ? *MOEK_F32_(p->up.a_scale) : 1;
        if (t == 0) turn_of = turn;
        __syncthreads();
        turn = turn_of;
        halves = b->of.split < b->used ? 2 : 1;
        h = a->state->h[turn];

        #pragma unroll 1
        for (second = 0; second < halves; second++) {
            s = work_range_of(p, b->of, second);
            multiply<0>(p, b, &ask, sum, &slot, s, pages0);
            __syncthreads();
            finish_up(p, b, s, pages0, h);
            pages0 = s.units * p->parts + WARPS;       /* of the second half */
        }
        if constexpr (!BLOCKED && !ROUNDS)
            for (i = t; i < 4 * b->used; i += THREADS)
                b->factors[i] = FP8 ? weight_of[i] * *MOEK_F32_(p->down.a_scale) : weight_of[i];
        if constexpr (BY_TENSOR) b->inverse = __fdiv_rn(1.0f, *MOEK_F32_(p->down.a_scale));
        moek_clear_next_h_(a, turn, t, THREADS);

        pages0 = 0;
        #pragma unroll 1
        for (second = 0; second < halves; second++) {
            s = work_range_of(p, b->of, 2 + second);
            stage_h(p, b, x, s, h);
            __syncthreads();
            multiply<1>(p, b, &ask, sum, &slot, s, pages0);
            pages0 = s.units + PAGES * WARPS;
        }
        if constexpr (ROUNDS) {
            __syncthreads();
            #pragma unroll 1
            for (second = 0; second < halves; second++)
                split_k_reduce(b->pages + second * pages0 * 32, p, work_range_of(p, b->of, 2 + second), b->list,
                               slot_of, weight_of, dtype);
        }
        __syncthreads();
        combine(p, b, s, halves, pages0);
    }
};

/* Launches such a kernel.  args NULL: makes it ready. */
template <int STAGES, int WARPS, int BYTES, int HOPPER, class Format>
static MOEK_UNUSED moek_status moek_launch_layer_mma_(
    const void *args, moek_stream stream,
    void (*kernel)(typename moek_layer_mma_<STAGES, WARPS, BYTES, HOPPER, Format>::params))
{
    typedef moek_layer_mma_<STAGES, WARPS, BYTES, HOPPER, Format> K;
    static const moek_decode_room room = { BYTES, K::RING, WARPS, 0, 0 };
    const moek_layer_args *const a = (const moek_layer_args *)args;
    typename K::params p;
    unsigned blocks;
    int i;
    if (!a) return moek_ready_layer_<HOPPER>((const void *)kernel, K::THREADS, BYTES);
    if (a->tokens < 1) return MOEK_OK;
    blocks = moek_multiprocessors_();
    p.fit = moek_decode_smem_of(room, a->tokens, a->topk, a->up->experts, a->down->n, a->up->n,
                                a->up->w_rows > a->up->n, Format::W_BITS, 0, (int)blocks);
    if (!p.fit.fits || !a->state || !a->y || a->up->n_offset || a->down->k_offset) return MOEK_E_ARGUMENT;
    p.a = *a;
    moek_take_gemm_(&p.up, a->up); moek_take_gemm_(&p.down, a->down);
    if (!a->x_stride) p.a.x_stride = a->up->k;
    if (!a->addend_stride) p.a.addend_stride = a->down->n;
    if (!a->y_stride) p.a.y_stride = a->down->n;
    p.parts = a->up->w_rows > a->up->n ? 2 : 1;
    for (i = 0; i < 2; i++) {
        const moek_gemm_args *const g = i ? a->down : a->up;
        moek_find_gate_up_of_(i ? &p.down : &p.up, Format::W_BITS, Format::W_SCALE_BITS, Format::W_SCALE_ROWS,
                             Format::W_SCALE_COLUMNS, 0);
        if (g->w.layout && (g->k * K::ELEMENT % 128 || g->n % 8 || g->gate.codes)) return MOEK_E_ARGUMENT;
        p.units[i] = (g->n + 7) / 8;
        p.steps[i] = (g->k * K::ELEMENT + 255) / 256;
        p.pitch[i] = p.steps[i] * (256 * K::WIDE) + (K::FP8 ? 16 : 64);        /* no bank twice */
        p.over_steps[i] = moek_fastdiv_of_(p.steps[i]);
    }
    p.over_units = moek_fastdiv_of_(p.units[0]); p.over_blocks = moek_fastdiv_of_(blocks);
    return MOEK_LAUNCH_LAYER_(HOPPER, kernel, blocks, K::THREADS,
                              p.fit.act + p.fit.factors + p.fit.pages + K::RING, stream, p);
}
#endif
