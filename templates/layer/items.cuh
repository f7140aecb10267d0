/* layer/items.cuh -- what warps of layer/fragments.cuh stream, by the format of the weights: how an item is asked for,
 * and what it adds to sums of x or h.
 *
 * - An item is 16 rows of w by 128 of k (of 8 bits by 64): two times 512 bytes of codes.  Where k ends with 64, the
 *   last item of 128 has these twice; the second ones meet zeros of x or h.
 * - a is T: elements times scales are w * 2^-shift (templates/element/), so that they fit in T; sums are multiplied by
 *   2^shift.
 * - E4M3, a is e4m3, which fp16 holds exactly.  The sum of an item is multiplied by the scales of both sides.
 *   WHOLE: scales of w are for 16 columns, and a lane has all of them, as gemm/fragments.cuh says.
 * - EIGHT, codes have 8 bits and a is T.  BY_ROW: a scale is for a row of w, or for all of an expert, and multiplies
 *   the whole sum.  BY_BLOCK: a scale is for 128 x 128 and multiplies the sum of an item.  A code that is a NaN, which
 *   bf16 would not show, spoils the sums of its row.
 * - Blocks of GGUF files (gemm/fragments_blocks.cuh): codes, scales and the f16 of a block lie side by side.  Sums of a
 *   group of columns are multiplied by its scale, sums of x by its minimum, in f32.
 */
#ifndef MOEK_LAYER_ITEMS_CUH
#define MOEK_LAYER_ITEMS_CUH
#include "../gemm/fragments_blocks.cuh"

/* What a warp asks for: of 16 rows of w, with all of their k, an item after the other, first up, then down.  The order
 * of such rows: in up the units of an expert, expert by expert; in down the units of y, each for one expert after the
 * other.  down: -1 before the first.  asks: items to ask for of up or down; run: until other rows begin. */
struct moek_layer_walk_ {
    const unsigned char *w, *scale;                    /* this lane's bytes of the next item */
    int left;                                          /* of k, from the next item on */
    int unit, d, down, asks, run, put, used, odd;      /* odd: BY_BLOCK, the next item's k, of 64s; of a file's blocks,
                                                          the place in a block */
    const unsigned char *zeros;                        /* as w and scale; of a file's blocks, the second plane */
};

/* Weights in arrays of codes and of scales. */
template <class Format, int OF_FILE> struct moek_layer_items_ {
    enum {
        E4M3 = Format::X_BITS == 8, ZERO = Format::ZERO, MENDS = 0, GRANULE = 64,
        EIGHT = Format::W_BITS == 8, PIECE = EIGHT ? 32 : 64, K_ITEM = 2 * PIECE,      /* of k: 512 bytes; an item */
        COLUMNS = Format::W_SCALE_COLUMNS,             /* of a scale; scales of a row in 64 of k: */
        BY_BLOCK = EIGHT && COLUMNS > 0, BY_ROW = EIGHT && !BY_BLOCK, CHECKED = EIGHT && Format::W_CHECKED,
        G = !EIGHT && COLUMNS < 64 ? 64 / (COLUMNS + EIGHT) : 1,
        EACH = EIGHT ? 0 : 2 * G * Format::W_SCALE_BITS / 8,   /* bytes of scales, two rows; so many times in 128 of
                                                                  k: */
        UNITS = !EIGHT && COLUMNS < 128 ? 2 : 1,
        OF_16 = BY_BLOCK ? 8 : 8 * EACH,               /* bytes of scales of 16 rows, once */
        BLOCKED = Format::X_SCALE_COLUMNS > 0, WHOLE = E4M3 && COLUMNS == 16,
        ITEM = 1024, SCALES = UNITS * OF_16            /* bytes */
    };
    typedef moek_layer_walk_ walk;

    MOEK_DEVICE const void *zeros_of(const moek_gemm_ *a)
    {
        if constexpr (ZERO) return a->w.zero_points;
        else return NULL;
    }
    /* To item g of rows at->unit of expert e. */
    MOEK_DEVICE void seat(const moek_gemm_ *a, walk *at, int e, int g)
    {
        const int lane = threadIdx.x % 32;
        const unsigned char *const w_zero = (const unsigned char *)zeros_of(a);
        const unsigned zeros_row = ZERO ? ((unsigned)a->k + 2 * COLUMNS - 1) / (2 * COLUMNS) * 64 : 0;
        const size_t of_64 = (size_t)e * (unsigned)(a->w_rows / 64) + (unsigned)at->unit / 4;
        at->w = (const unsigned char *)a->w.codes + (of_64 * (unsigned)(a->k / PIECE) + (unsigned)(2 * g)) * 2048 +
                at->unit % 4 * 512 + lane * 16;
        if constexpr (BY_BLOCK) {                      /* of the rows that come first in w, and of the others */
            const moek_gate_up_ *const of = &a->gate_up;
            const int column = at->unit * (a->w_rows > a->n ? 8 : 16);
            const size_t row = (size_t)e * of->scale_rows +
                               (MOEK_HALF_(of->shift, lane % 2) + min(column, a->n - 1) * of->step) / 128;
            at->scale = (const unsigned char *)(MOEK_HALF_(of->scales, lane % 2) +
                                                row * (((unsigned)a->k + 127) / 128) + g / 2);
            at->odd = g % 2;
        } else if constexpr (!EIGHT) {
            const unsigned scales = ((unsigned)a->k * UNITS + 127) / 128;
            at->scale = (const unsigned char *)a->w.scales + (of_64 * scales + (unsigned)(UNITS * g)) * (4 * OF_16) +
                        at->unit % 4 * OF_16 + lane % (OF_16 / 4) * 4;
        }
        if constexpr (ZERO) {
            at->zeros = w_zero + of_64 * zeros_row + (unsigned)(UNITS * g) * OF_16 + at->unit % 4 * (OF_16 / 4) +
                        lane % (OF_16 / 16) * 4;
        }
    }
    /* Ask for the next item, to place `to` of the ring, and of its scales and zero points to a place of these; seat
     * behind it. */
    MOEK_DEVICE void ask(walk *at, unsigned char *to, unsigned char *scales, unsigned char *zeros, int zero)
    {
        const int lane = threadIdx.x % 32, both = at->left > PIECE;
        moek_cp_async16_(to + lane * 16, at->w, 16);
        moek_cp_async16_(to + lane * 16 + 512, at->w + (both ? 2048 : 0), 16);
        if constexpr (BY_BLOCK) {
            if (lane < 2) moek_cp_async4_(scales + lane * 4, at->scale);
            at->scale += 4 * at->odd;
            at->odd ^= 1;
        } else if constexpr (!EIGHT) {
            if (lane < UNITS * OF_16 / 4)
                moek_cp_async4_(scales + lane * 4, at->scale + (both ? lane / (OF_16 / 4) * (4 * OF_16) : 0));
            at->scale += UNITS * 4 * OF_16;
        }
        if constexpr (ZERO) {
            if (zero && lane < UNITS * OF_16 / 16)
                moek_cp_async4_(zeros + lane * 4, at->zeros + (both ? lane / (OF_16 / 16) * OF_16 : 0));
            at->zeros += UNITS * OF_16;
        }
        at->w += 4096;
    }

    /* E4M3: c[0] += item * b, times the scales of both sides.  x, y: scales of this lane's two tokens; b: this lane's
     * part of a row of x or h. */
    MOEK_DEVICE void add_e4m3(float c[4][4], const unsigned char *item, const unsigned char *scales, float x, float y,
                              const unsigned char *b)
    {
        moek_words_ codes[2];
        uint32_t of[2];
        float part[2][4] = {{0}};
        typename Format::folded by;
        int h, i;
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const unsigned char *const at = scales + h * (UNITS == 2 ? OF_16 : 4);
            codes[h] = moek_load_words_(item + h * 512);
            of[h] = WHOLE ? *(const uint16_t *)(const void *)(at + threadIdx.x % 4 * 2)
                          : *(const uint32_t *)(const void *)at;
        }
        Format::fold_scale(&by, of);
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const moek_words_ low = moek_load_words_(b + h * 128), high = moek_load_words_(b + h * 128 + 16);
            uint32_t w[2][4], a[4][4];
            Format::fragment_e4m3(w, &codes[h], &by, h);
            moek_fp16_of_fragment_(a, w);
            moek_mma_fp16_(part[0], a[0], low.w);
            moek_mma_fp16_(part[1], a[1], low.w + 2);
            moek_mma_fp16_(part[0], a[2], high.w);
            moek_mma_fp16_(part[1], a[3], high.w + 2);
        }
        #pragma unroll
        for (i = 0; i < 4; i++) c[0][i] += (part[0][i] + part[1][i]) * (by.by[i / 2] * (i % 2 ? y : x));
    }
    /* c += item * b, in four sums that do not wait for each other. */
    MOEK_DEVICE void add(float c[4][4], const unsigned char *item, const unsigned char *scales,
                         const unsigned char *zeros, int zero, const unsigned char *b)
    {
        enum { WORDS = EACH / 4 };
        int h, i;
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const moek_words_ codes = moek_load_words_(item + h * 512);
            const moek_words_ low = moek_load_words_(b + h * 128), high = moek_load_words_(b + h * 128 + 16);
            uint32_t of[WORDS], of_zeros = 0, a[4][4];
            #pragma unroll
            for (i = 0; i < WORDS; i++) of[i] = *(const uint32_t *)(scales + (UNITS == 2 ? h : 0) * OF_16 + i * 4);
            if (zero) {
                const unsigned char *const at = zeros + (UNITS == 2 ? h : 0) * (OF_16 / 4);
                of_zeros = G == 2 ? *(const uint16_t *)(const void *)at : *at;
            }
            Format::fragment(a, &codes, of, of_zeros, zero, MOEK_DTYPE_BF16);
            moek_mma_bf16_(c[0], a[0], low.w);
            moek_mma_bf16_(c[1], a[1], low.w + 2);
            moek_mma_bf16_(c[2], a[2], high.w);
            moek_mma_bf16_(c[3], a[3], high.w + 2);
        }
    }
    /* EIGHT: c += item * b, BY_BLOCK times its scales.  odd: was there a NaN (moek_spoil_)? */
    MOEK_DEVICE void add_bytes(float c[4][4], const unsigned char *item, const unsigned char *scales, uint32_t *odd,
                               const unsigned char *b)
    {
        float part[4][4] = {{0}};
        int h, i;
        #pragma unroll
        for (h = 0; h < 2; h++) {
            const moek_words_ codes = moek_load_words_(item + h * 512), x = moek_load_words_(b + h * 16);
            #pragma unroll
            for (i = 0; i < 2; i++) {
                uint32_t pairs[4], w[4];
                Format::w_pairs(pairs, codes.w + i * 2, 0, 0, MOEK_DTYPE_BF16);
                w[0] = pairs[0]; w[1] = pairs[2]; w[2] = pairs[1]; w[3] = pairs[3];
                moek_mma_bf16_(BY_BLOCK ? part[2 * h + i] : c[2 * h + i], w, x.w + i * 2);
                if constexpr (Format::W_CHECKED) {
                    const uint32_t both[2] = { codes.w[i], codes.w[i + 2] };
                    *odd |= Format::w_nan(both) >> i;
                }
            }
        }
        if constexpr (BY_BLOCK) {
            const float *const by = (const float *)(const void *)scales;
            #pragma unroll
            for (i = 0; i < 4; i++) c[0][i] += (part[0][i] + part[1][i] + (part[2][i] + part[3][i])) * by[i / 2];
        }
    }
    /* c += item * b: of T. */
    MOEK_DEVICE void add_t(float c[4][4], unsigned char *item, const unsigned char *scales, const unsigned char *zeros,
                           int zero, uint32_t *odd, const unsigned char *b)
    {
        const int lane = threadIdx.x % 32;
        if constexpr (EIGHT) add_bytes(c, item + lane * 16, scales, odd, b);
        else add(c, item + lane * 16, scales + lane / 4 * EACH, zeros + lane / 4 * (EACH / 4), zero, b);
    }
    MOEK_DEVICE float again(const moek_gemm_ *, int, int, const uint16_t *, int) { return 0; }
};

/* Blocks of GGUF files. */
template <class Format> struct moek_layer_items_<Format, 1> {
    typedef moek_tiled_blocks_<Format, 1> File;
    typedef moek_layer_walk_ walk;
    enum {
        E4M3 = 0, ZERO = 0, EIGHT = 0, BY_BLOCK = 0, BY_ROW = 0, CHECKED = 0, BLOCKED = 0, WHOLE = 0, EACH = 0,
        HALVES = File::PLANE == 8 ? 1 : 2, PIECE = 64, K_ITEM = PIECE * HALVES,        /* of k: a unit; an item */
        BESIDE = File::PLANE < 4 ? 4 * File::PLANE : 16,               /* bytes of a lane of a unit, side by side, of
                                                                          the first plane; of the second: */
        MORE = 4 * File::MORE,
        CODES = 128 * File::PLANE, HALF = CODES + 128 * File::MORE,    /* bytes of 16 rows of a unit */
        OF_16 = 2 * File::ROW_BITS, TOP = File::TOP / 4,
        GRAIN = OF_16 % 16 == 0 ? 16 : 8, SCALE_LANES = OF_16 / GRAIN, TOP_LANES = TOP / GRAIN,
        HEAD = File::GROUPS * File::EACH, HEADS = HALVES * 16 * HEAD * 4,      /* of a row; an item's bytes */
        PUT = HALVES * (HALF + OF_16) + TOP, ITEM = ((PUT > HEADS ? PUT : HEADS) + 15) / 16 * 16, SCALES = 0,
        GRANULE = 64 * File::UNITS,
        LESS = File::BITS < 8,                         /* codes are more than integers; sums begin with so much less */
        OF_X = LESS || File::MINIMUM, MENDS = OF_X
    };

    MOEK_DEVICE const void *zeros_of(const moek_gemm_ *) { return NULL; }
    MOEK_DEVICE void seat(const moek_gemm_ *a, walk *at, int e, int g)
    {
        const int lane = threadIdx.x % 32, m16 = at->unit % 4, step = g * HALVES;
        const size_t of_64 = (size_t)e * (unsigned)(a->w_rows / 64) + (unsigned)at->unit / 4;
        const unsigned char *const unit = (const unsigned char *)a->w.codes + of_64 * File::of_rows(a->k) +
                                          File::of_step(step);
        at->odd = step % File::UNITS;
        at->w = unit + (m16 * 32 + lane) * BESIDE;
        at->zeros = unit + 512 * File::PLANE + (m16 * 32 + lane) * MORE;
        at->scale = lane < HALVES * SCALE_LANES
                  ? unit + File::CODES + m16 * OF_16 + lane % SCALE_LANES * GRAIN
                  : unit + File::to_top(step) + m16 * TOP + (lane - HALVES * SCALE_LANES) * GRAIN;
    }
    template <int BYTES> MOEK_DEVICE void copy(unsigned char *to, const unsigned char *from)
    {
        if constexpr (BYTES == 16) moek_cp_async16_(to, from, 16);
        else if constexpr (BYTES == 8) moek_cp_async8_(to, from);
        else moek_cp_async4_(to, from);
    }
    MOEK_DEVICE void ask(walk *at, unsigned char *to, unsigned char *, unsigned char *, int)
    {
        const int lane = threadIdx.x % 32, both = at->left > PIECE, of_scales = lane < HALVES * SCALE_LANES;
        const int ends = File::UNITS > 1 && at->odd + HALVES == File::UNITS;           /* a block ends */
        const int by = HALVES * File::UNIT + (ends ? File::TOP : 0);
        int h;
        #pragma unroll
        for (h = 0; h < HALVES; h++) {
            const int unit = h && both ? File::UNIT : 0;
            copy<BESIDE>(to + h * HALF + lane * BESIDE, at->w + unit);
            if constexpr (File::PLANE == 8) copy<16>(to + h * HALF + 512 + lane * 16, at->w + unit + 2048);
            if constexpr (MORE > 0) copy<MORE>(to + h * HALF + CODES + lane * MORE, at->zeros + unit);
        }
        if (lane < HALVES * SCALE_LANES + TOP_LANES)
            copy<GRAIN>(to + HALVES * HALF + lane * GRAIN,
                        at->scale + (HALVES > 1 && both && of_scales && lane >= SCALE_LANES ? File::UNIT : 0));
        at->w += by;
        if constexpr (MORE > 0) at->zeros += by;
        at->scale += of_scales ? by : ends ? File::UNITS * File::UNIT + File::TOP : 0;
        at->odd = ends || File::UNITS == 1 ? 0 : at->odd + HALVES;
    }

    /* Scales and minimums of the rows of an item, each by a lane, in place of its codes, which are in registers. */
    MOEK_DEVICE void take_heads(unsigned char *item)
    {
        const int lane = threadIdx.x % 32, h = HALVES > 1 ? lane / 16 : 0;
        const float by_min = (float)Format::SIGN * (LESS ? -1.0f / (1 << File::BITS) : 1.0f);
        const unsigned char *const scales = item + HALVES * HALF;
        float head[HEAD], *const to = (float *)(void *)(item + lane * (HEAD * 4));
        int i;
        if (lane < 16 * HALVES)
            File::head(head, scales + h * OF_16 - File::CODES, scales + HALVES * OF_16, lane % 16,
                       File::by(MOEK_DTYPE_BF16), by_min);
        __syncwarp();
        if (lane < 16 * HALVES) {
            #pragma unroll
            for (i = 0; i < HEAD; i += HEAD > 2 ? 4 : 2) {
                if constexpr (HEAD > 2)
                    *(float4 *)(void *)(to + i) = make_float4(head[i], head[i + 1], head[i + 2], head[i + 3]);
                else *(float2 *)(void *)(to + i) = make_float2(head[i], head[i + 1]);
            }
        }
        __syncwarp();
    }
    MOEK_DEVICE void load_heads(float *to, const unsigned char *from)
    {
        int i;
        #pragma unroll
        for (i = 0; i < HEAD; i += HEAD > 2 ? 4 : 2) {
            if constexpr (HEAD > 2) {
                const float4 four = *(const float4 *)(const void *)(from + i * 4);
                to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
            } else {
                const float2 two = *(const float2 *)(const void *)(from + i * 4);
                to[i] = two.x, to[i + 1] = two.y;
            }
        }
    }
    MOEK_DEVICE int first_of(int i) { return i * 16 % File::COLUMNS == 0; }
    /* sum += half h of an item * b, of 64 of k: each group's by itself. */
    MOEK_DEVICE void add_half(float sum[4], const moek_words_ *codes, const uint32_t *more, const unsigned char *heads,
                              const uint32_t *b)
    {
        const uint32_t all = File::less(MOEK_DTYPE_BF16), rows[4] = { all, all, all, all };
        const float none[4] = {0, 0, 0, 0};
        float part[4], of_x[4] = {0, 0, 0, 0}, head[2][HEAD];
        int i, j;
        load_heads(head[0], heads);
        load_heads(head[1], heads + 8 * HEAD * 4);
        #pragma unroll
        for (i = 0; i < 4; i++) {
            uint32_t w[4];
            File::template pairs<!LESS>(w, codes, more, i, MOEK_DTYPE_BF16);
            if constexpr (OF_X)
                #pragma unroll
                for (j = i; first_of(i) && j < i + File::COLUMNS / 16; j++)
                    moek_mma_from_t_(of_x, rows, b + 2 * j, first_of(j) ? none : of_x, MOEK_DTYPE_BF16);
            moek_mma_from_t_(part, w, b + 2 * i, !first_of(i) ? part : OF_X ? of_x : none, MOEK_DTYPE_BF16);
            if (first_of(i + 1)) {
                const int at = i * 16 / File::COLUMNS * File::EACH;
                #pragma unroll
                for (j = 0; j < 4; j++) {
                    sum[j] = fmaf(part[j], head[j / 2][at], sum[j]);
                    if constexpr (File::MINIMUM) sum[j] = fmaf(of_x[j], head[j / 2][at + File::MINIMUM], sum[j]);
                }
            }
        }
    }
    MOEK_DEVICE void add_t(float c[4][4], unsigned char *item, const unsigned char *, const unsigned char *, int,
                           uint32_t *, const unsigned char *b)
    {
        const int lane = threadIdx.x % 32;
        moek_words_ codes[HALVES][File::PLANE == 8 ? 2 : 1];
        uint32_t more[HALVES][MORE > 0 ? File::MORE : 1];
        int h, i;
        #pragma unroll
        for (h = 0; h < HALVES; h++) {
            const unsigned char *const at = item + h * HALF + lane * BESIDE;
            if constexpr (BESIDE == 16) codes[h][0] = moek_load_words_(at);
            else
                #pragma unroll
                for (i = 0; i < BESIDE / 4; i++) codes[h][0].w[i] = ((const uint32_t *)(const void *)at)[i];
            if constexpr (File::PLANE == 8) codes[h][File::PLANE / 8] = moek_load_words_(at + 512);
            #pragma unroll
            for (i = 0; i < File::MORE; i++)
                more[h][i] = ((const uint32_t *)(const void *)(item + h * HALF + CODES + lane * MORE))[i];
        }
        take_heads(item);
        #pragma unroll
        for (h = 0; h < HALVES; h++) {
            const moek_words_ low = moek_load_words_(b + h * 128), high = moek_load_words_(b + h * 128 + 16);
            const uint32_t x[8] = { low.w[0], low.w[1], low.w[2], low.w[3], high.w[0], high.w[1], high.w[2],
                                    high.w[3] };
            add_half(c[h], codes[h], more[h], item + (h * 16 + lane / 4) * (HEAD * 4), x);
        }
    }
    /* Row `row` of expert e times x, whose bits are those at x ^ flip, once more: an Inf in x may make a NaN of two
     * sums, where w times Inf is Inf. */
    MOEK_DEVICE float again(const moek_gemm_ *a, int e, int row, const uint16_t *x, int flip)
    {
        const size_t of_64 = (size_t)e * (unsigned)(a->w_rows / 64) + (unsigned)row / 64;
        return File::sum_again((const unsigned char *)a->w.codes + of_64 * File::of_rows(a->k), row % 64,
                               (const unsigned char *)x, a->k, MOEK_DTYPE_BF16, flip);
    }
};
#endif
