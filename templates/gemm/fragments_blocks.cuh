/* gemm/fragments_blocks.cuh -- weights in blocks of GGUF files in the order of fragments (moek/ops.h: repack), for
 * kernels that take 16 rows of w as the first operand of mma.sync: where codes and scales of 64 rows and 64 of k lie,
 * and what becomes of them.  A format without blocks has nothing of that: all is 0. */
#ifndef MOEK_GEMM_FRAGMENTS_BLOCKS_CUH
#define MOEK_GEMM_FRAGMENTS_BLOCKS_CUH
#include "../../include/moek/kernel/cuda.h"

template <class Format, int IN_BLOCKS> struct moek_tiled_blocks_ {
    enum {
        PLANE = Format::W_BITS, MORE = 0, BITS = PLANE, COLUMNS = 64, GROUPS = 1, MINIMUM = 0, EACH = 1, UNIT = 0,
        TOP = 0, UNITS = 1, HEAD = 0, WORDS_16 = PLANE / 4
    };
    struct raw { uint32_t none; };
    MOEK_DEVICE size_t of_rows(int) { return 0; }
    MOEK_DEVICE size_t of_step(int) { return 0; }
};
template <class Format> struct moek_tiled_blocks_<Format, 1> {
    enum {
        PLANE = Format::PLANE_BITS, MORE = Format::MORE_BITS, BITS = Format::CODE_BITS, MINIMUM = Format::MINIMUM,
        COLUMNS = Format::SCALE_COLUMNS, GROUPS = 64 / COLUMNS,        /* of a scale; scales of a row in 64 of k */
        EACH = 1 + MINIMUM,                             /* numbers of a group: its scale, and its minimum */
        ROW_BITS = GROUPS * EACH * Format::SCALE_BITS,
        CODES = 512 * (PLANE + MORE), UNIT = CODES + 8 * ROW_BITS,     /* bytes of 64 rows and 64 of k; less scales */
        TOP = 128 * Format::TOPS,                       /* bytes of the f16 of 64 rows, for UNITS times 64 of k */
        UNITS = Format::TOPS > 0 ? Format::BLOCK_COLUMNS / 64 : 1,
        WORDS = PLANE < 4 ? PLANE : 4,                  /* of a lane that lie side by side */
        WORDS_16 = PLANE == 8 ? 2 : 1,                  /* 16s of bytes of codes of a lane, of 16 rows and 64 of k */
        HEAD = GROUPS * EACH                            /* numbers of a row */
    };

    /* What makes the integer of a code in T. */
    MOEK_DEVICE float by(int dtype) { return BITS == 8 && dtype == MOEK_DTYPE_BF16 ? 64.0f : 1.0f; }
    /* Codes of fewer bits, as `pairs` leaves them, are 2^BITS and the middle more than the integer.  less: minus that,
     * as T, twice. */
    MOEK_DEVICE int up(int dtype) { return (dtype == MOEK_DTYPE_FP16 ? 10 : 7) - BITS; }
    MOEK_DEVICE uint32_t base(int dtype)
    {
        return (uint32_t)(dtype == MOEK_DTYPE_FP16 ? 0x3c00 + (BITS << 10) : 0x3f80 + (BITS << 7)) * 0x00010001u;
    }
    MOEK_DEVICE uint32_t less(int dtype)
    {
        return base(dtype) | (uint32_t)(Format::MIDDLE << up(dtype)) * 0x00010001u | 0x80008000u;
    }
    MOEK_DEVICE uint32_t shifted(uint32_t w, int up) { return up < 0 ? w >> -up : w << up; }

    /* Four codes of a byte each, 128 more than their integers -> bytes 0 and 2, or 1 and 3, AS_T or as they lie. */
    template <int AS_T> MOEK_DEVICE uint32_t pair_of_bytes(uint32_t four, int first, int dtype)
    {
        const uint32_t which = first ? 0x4341 : 0x4240;
        if constexpr (!AS_T) return __byte_perm(four, 0, which);
        if (dtype == MOEK_DTYPE_FP16)                   /* on top of 1024 */
            return moek_fma_t2_(__byte_perm(four, 0x64646464, which), 0x3c003c00, 0xe480e480 /* -1152 */, dtype);
        return moek_fma_t2_(__byte_perm(four, 0, which), 0x7f007f00 /* 2^127 */, 0xc000c000 /* -2 */, dtype);
    }
    /* Of 16 of k, number i of 64, four codes of a byte each, 128 more than their integers. */
    MOEK_DEVICE uint32_t four_of(const moek_words_ *codes, int i, int n)
    {
        const int word = PLANE == 8 ? 2 * i + n : i;
        const uint32_t w = codes[word / 4].w[word % 4];
        if constexpr (PLANE == 8) return w ^ 0x80808080;
        else return Format::codebook(w >> 4 * n & 0x0f0f0f0f);
    }
    /* All of them in pairs: of rows g, g + 8, and of both 8 columns on. */
    template <int AS_T> MOEK_DEVICE void pairs_of_bytes(uint32_t to[4], const moek_words_ *codes, int i, int dtype)
    {
        int n;
        #pragma unroll
        for (n = 0; n < 2; n++) {
            const uint32_t four = four_of(codes, i, n);
            to[PLANE == 8 ? 2 * n : n] = pair_of_bytes<AS_T>(four, 0, dtype);
            to[PLANE == 8 ? 2 * n + 1 : n + 2] = pair_of_bytes<AS_T>(four, 1, dtype);
        }
    }
    /* Of 16 of k, number i of 64, a lane's codes as pairs of T, in the same order.  EXACT: integers, over `by`; else
     * they are more. */
    template <int EXACT>
    MOEK_DEVICE void pairs(uint32_t to[4], const moek_words_ *codes, const uint32_t *more, int i, int dtype)
    {
        int n;
        if constexpr (BITS == 8) pairs_of_bytes<1>(to, codes, i, dtype);
        else {
            const int u = up(dtype);
            #pragma unroll
            for (n = 0; n < 4; n++) {
                const int at = (4 * i + n) * PLANE, above = (4 * i + n) * MORE;
                uint32_t v = moek_and_or_(shifted(codes->w[at / 16], u - at % 16),
                                          (uint32_t)(((1 << PLANE) - 1) << u) * 0x00010001u, base(dtype));
                if constexpr (MORE > 0)
                    v = moek_and_or_(shifted(more[above / 16], u + PLANE - above % 16),
                                     (uint32_t)(((1 << MORE) - 1) << (u + PLANE)) * 0x00010001u, v);
                to[n] = EXACT ? moek_fma_t2_(v, dtype == MOEK_DTYPE_FP16 ? 0x3c003c00 : 0x3f803f80, less(dtype), dtype)
                              : v;
            }
        }
    }

    /* Scales and minimums of a row of 64, for 64 of k, as they lie; and times these: [GROUPS][EACH]. */
    struct raw { uint32_t w[2], top; };
    MOEK_DEVICE raw raw_of(const unsigned char *unit, const unsigned char *top, int row)
    {
        const unsigned char *const at = unit + CODES + row * ROW_BITS / 8;
        raw r = {{0, 0}, 0};
        if constexpr (ROW_BITS == 64) r.w[1] = *(const uint32_t *)(const void *)(at + 4);
        if constexpr (ROW_BITS % 32 == 0) r.w[0] = *(const uint32_t *)(const void *)at;
        else if constexpr (ROW_BITS == 24) {            /* (what lies behind is there: f16 or another unit) */
            const uint32_t *const two = (const uint32_t *)(const void *)(at - row * 3 % 4);
            r.w[0] = (uint32_t)(((uint64_t)two[1] << 32 | two[0]) >> row * 3 % 4 * 8);
        }
        else r.w[0] = (at[0] | (uint32_t)at[1] << 8) >> row * ROW_BITS % 8;
        if constexpr (Format::TOPS == 2) r.top = ((const uint32_t *)(const void *)top)[row];
        if constexpr (Format::TOPS == 1) r.top = ((const uint16_t *)(const void *)top)[row];
        return r;
    }
    MOEK_DEVICE void head(float *to, const raw *r, float times, float times_min)
    {
        float d[2] = { 1, 1 };
        int i;
        if constexpr (Format::TOPS > 0) moek_from_t2_(d, r->top, MOEK_DTYPE_FP16);
        #pragma unroll
        for (i = 0; i < GROUPS; i++) {
            const int of_scale = i * Format::SCALE_BITS, of_min = (GROUPS + i) * Format::SCALE_BITS;
            const float s = d[0] * Format::tiled_scale(r->w[of_scale / 32] >> of_scale % 32);
            to[i * EACH] = s * times;
            if constexpr (MINIMUM)
                to[i * EACH + 1] = d[1] * Format::tiled_scale(r->w[of_min / 32] >> of_min % 32) * times_min;
        }
    }
    MOEK_DEVICE void head(float *to, const unsigned char *unit, const unsigned char *top, int row, float times,
                          float times_min)
    {
        const raw r = raw_of(unit, top, row);
        head(to, &r, times, times_min);
    }

    /* Weights in T, two at a time.
     * fp16: code * scale + minimum in f32, and then in T.
     * bf16: all in bf16.  A code as it lies is a subnormal, and becomes c = (code - zero) * 2^-6, exactly.  A scale is
     * the sum of two bf16, and w = c * high + (c * low + rest), rounded once; the sum in brackets is rounded before,
     * and is little beside w.  With a minimum, zero is next to the code of w = 0: a whole number, or with 8 bits in all
     * where zero is among the codes.  rest: the minimum less what zero times the scale takes from w.
     * lift_of: by so many bits a code of that row lies higher than its integer. */
    MOEK_DEVICE int lift_of(int row) { return MINIMUM ? 8 - BITS : BITS == 4 && row & 8 ? 4 : 0; }
    /* What `weights` takes of a row: of each group the scale (bf16: high below, low above), and of a minimum (bf16:
     * the rest below, minus zero above). */
    MOEK_DEVICE void factors(uint32_t to[HEAD], const raw *r, int row, int dtype)
    {
        const float by_code = 64.0f / (float)(1 << lift_of(row));
        float f[HEAD];
        int i;
        if (dtype == MOEK_DTYPE_FP16) {
            head(f, r, by(MOEK_DTYPE_BF16), (float)Format::SIGN);
            #pragma unroll
            for (i = 0; i < HEAD; i++) to[i] = moek_bits_(f[i]);
            return;
        }
        head(f, r, 1, (float)Format::SIGN);
        #pragma unroll
        for (i = 0; i < HEAD; i += EACH) {
            const float s = f[i] * by_code;
            const uint32_t high = moek_to_t2_(s, s, dtype);
            to[i] = moek_to_t2_(s, s - moek_float_(high & 0xffff0000), dtype);
            if constexpr (MINIMUM) {
                enum { HALF = 1 << (BITS - 1), FINE = 1 << (8 - BITS) };
                const float magic = 12582912.0f /* 1.5 * 2^23 */;
                const float at = fminf(fmaxf(-f[i + 1] * moek_about_one_over_(f[i]), -200), 200);
                const int among = fabsf(at - HALF) <= HALF;
                const float zero = (fmaf(at, among ? FINE : 1, magic) - magic) * (among ? 1.0f / FINE : 1);
                to[i + 1] = moek_to_t2_(fmaf(zero, f[i], f[i + 1]), zero * -(FINE / 64.0f), dtype);
            }
        }
    }
    /* Factors to shared memory, and two of them from there. */
    MOEK_DEVICE void put(uint32_t *to, const uint32_t from[HEAD])
    {
        int i;
        #pragma unroll
        for (i = 0; i < HEAD; i += 2) {
            const uint2 two = { from[i], from[i + 1] };
            *(uint2 *)(void *)(to + i) = two;
        }
    }
    MOEK_DEVICE void get(uint32_t to[2], const uint32_t *from)
    {
        const uint2 two = *(const uint2 *)(const void *)from;
        to[0] = two.x, to[1] = two.y;
    }
    /* Of 16 of k, number i of 64, a lane's codes as they lie, in pairs. */
    MOEK_DEVICE void codes_of(uint32_t to[4], const moek_words_ *codes, const uint32_t *more, int i)
    {
        int n;
        if constexpr (BITS == 8) pairs_of_bytes<0>(to, codes, i, MOEK_DTYPE_BF16);
        else {
            #pragma unroll
            for (n = 0; n < 4; n++) {
                const int at = (4 * i + n) * PLANE, above = (4 * i + n) * MORE, lift = lift_of(8 * (n % 2));
                to[n] = shifted(codes->w[at / 16], lift - at % 16) &
                        (uint32_t)(((1 << PLANE) - 1) << lift) * 0x00010001u;
                if constexpr (MORE > 0)
                    to[n] = moek_and_or_(shifted(more[above / 16], lift + PLANE - above % 16),
                                         (uint32_t)(((1 << MORE) - 1) << (lift + PLANE)) * 0x00010001u, to[n]);
            }
        }
    }
    /* 16 of k of a lane's 16 rows of w, in T.  by: the group's factors [EACH], of rows g and g + 8. */
    MOEK_DEVICE void weights(uint32_t to[4], const moek_words_ *codes, const uint32_t *more,
                             const uint32_t *const by[2], int i, int dtype)
    {
        enum { LOG = BITS - 1 };                        /* of the middle of codes without a minimum */
        uint32_t v[4];
        int n;
        if (dtype == MOEK_DTYPE_FP16) pairs<1>(v, codes, more, i, MOEK_DTYPE_BF16);    /* (which has all codes) */
        else codes_of(v, codes, more, i);
        #pragma unroll
        for (n = 0; n < 4; n++) {
            const uint32_t s = by[n % 2][0], m = MINIMUM ? by[n % 2][MINIMUM] : 0;
            if (dtype == MOEK_DTYPE_FP16) {
                const float scale = moek_float_(s), min = moek_float_(m);
                to[n] = moek_to_t2_(fmaf(moek_float_(v[n] << 16), scale, min),
                                    fmaf(moek_float_(v[n] & 0xffff0000), scale, min), dtype);
            } else {
                /* -MIDDLE * 2^-6 of codes where they lie: a power of 2. */
                const uint32_t middle = 0xbc80u + ((uint32_t)(LOG + lift_of(8 * (n % 2))) << 7);
                const uint32_t zero = MINIMUM ? moek_high_twice_(m) : middle * 0x00010001u;
                const uint32_t c = moek_fma_t2_(v[n], 0x7f007f00 /* 2^127 */, zero, dtype);
                const uint32_t rest = MINIMUM ? moek_low_twice_(m) : 0x80008000u;
                to[n] = moek_fma_t2_(c, moek_low_twice_(s), moek_fma_t2_(c, moek_high_twice_(s), rest, dtype), dtype);
            }
        }
    }

    /* Where 64 rows begin, which is a multiple of what they have in k columns; unit `step` of theirs, its f16. */
    MOEK_DEVICE size_t of_rows(int k) { return (size_t)((unsigned)k / 64 / UNITS) * (UNITS * UNIT + TOP); }
    MOEK_DEVICE size_t of_step(int step) { return (size_t)(step / UNITS) * (UNITS * UNIT + TOP) + step % UNITS * UNIT; }
    MOEK_DEVICE int to_top(int step) { return (UNITS - step % UNITS) * UNIT; }

    /* Bits of column c of row `row` of a unit: of a plane of N bits a code. */
    template <int N> MOEK_DEVICE int bits_of(const unsigned char *plane, int row, int c)
    {
        enum { SIDE_BY_SIDE = N < 4 ? N : 4 };
        const int number = c / 16 * 4 + row / 8 % 2 + c % 16 / 8 * 2, word = number * N / 16;
        const int lane = row / 16 * 32 + row % 8 * 4 + c % 8 / 2;
        const uint32_t w = *(const uint32_t *)(const void *)(plane + word / 4 * 2048 + lane * 4 * SIDE_BY_SIDE +
                                                             word % 4 * 4);
        return (int)(w >> (number * N % 16 + c % 2 * 16) & ((1u << N) - 1));
    }
    /* The product of a row of w, of the 64 rows at w, and of x, once more, of weights with their minimums.  flip: x has
     * these bits the other way round. */
    MOEK_DEVICE float sum_again(const unsigned char *w, int row, const unsigned char *x, int k, int dtype, int flip = 0)
    {
        float sum = 0, head_of[GROUPS * EACH];
        int step, j, c;
        #pragma unroll 1
        for (step = 0; step < k / 64; step++) {
            const unsigned char *const unit = w + of_step(step);
            head(head_of, unit, unit + to_top(step), row, 1, (float)Format::SIGN);
            #pragma unroll
            for (j = 0; j < GROUPS; j++)
                #pragma unroll 1
                for (c = j * COLUMNS; c < (j + 1) * COLUMNS; c++) {
                    const uint16_t t = (uint16_t)(((const uint16_t *)(const void *)x)[step * 64 + c] ^ flip);
                    int code = bits_of<PLANE>(unit, row, c);
                    if constexpr (MORE > 0) code |= bits_of<MORE>(unit + 512 * PLANE, row, c) << PLANE;
                    sum = fmaf(fmaf((float)(code - Format::MIDDLE), head_of[j * EACH],
                                    MINIMUM ? head_of[j * EACH + MINIMUM] : 0), moek_from_t_(t, dtype), sum);
                }
        }
        return sum;
    }
};
#endif
