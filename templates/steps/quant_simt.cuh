/* steps/quant_simt.cuh -- rows of T to rows of a format's x.
 *
 *   q = e4m3(x / s)      s from the largest |x| of the tensor (fp8t), the row (fp8c), 128 columns (fp8b128)
 *                        or a power of two from 32 columns (mxfp8)
 *   q = e2m1(x * (1 / (s * g)))                  s, e4m3, from 16 columns; g from the caller (nvfp4_a4)
 *   q = s8(x * (127 / top))                      top: the largest |x| of the row (int8_a8)
 *
 * Bound by the bytes of the rows: 16-byte loads, and few instructions.  Four lanes take 128 columns of a row, a lane
 * eight of each 32: an item.  Items of all rows lie in one list, so that no lane is idle whatever the columns are;
 * blocks walk over it.  Rows that are dead (the device alone knows which) are not in the list: batched, each expert has
 * a list of its own.  Where rows have targets, a source row is quantized once and stored at each.
 * Scales of rows, and the maximum of fp8t: a block a row, a thread eight columns; what is read twice comes from L1 or
 * L2 the second time.  Quotients are IEEE's, or give the same codes: the same bits as on the CPU.
 */
#ifndef MOEK_STEPS_QUANT_SIMT_CUH
#define MOEK_STEPS_QUANT_SIMT_CUH
#include "../../include/moek/kernel/cuda.h"

/* Item i of an expert: group i % groups of row i / groups.  A block goes on by `more` of both.  copies: rows of an
 * item, which all have one source; `row` is then a source row, its rows row * copies and so on.  end, where groups of
 * columns have scales: the column where the last group ends; the first may begin before there are columns. */
typedef struct moek_quant_params_ {
    moek_quant_args a;
    moek_fastdiv over_groups, over_source;
    int experts, expert_rows;                          /* not batched: one expert, all rows */
    int groups, rows_more, groups_more, copies, end;
} moek_quant_params_;

/* HIDDEN: the columns, or 0: a run has them.  Format: of moek_formats.h. */
template <int HIDDEN, int THREADS, class Format> struct moek_quant_simt_ {
    typedef moek_quant_params_ params;
    typedef typename Format::x_codes Codes;             /* of eight columns */
    enum {
        V = 8, LANES = 4, PARTS = 16 / LANES, MOST = 1024,                     /* MOST: threads where blocks are few */
        X_BITS = Format::X_BITS, BY_TENSOR = Format::X_TENSOR, BY_ROW = Format::X_BY_ROW, C = Format::X_SCALE_COLUMNS,
        COPIES = X_BITS == 16,                          /* x stays T */
        BLOCKED = C > 0, FINE = BLOCKED && C < 128,     /* FINE: an item has several groups */
        GLOBAL_SCALE = Format::X_GLOBAL_SCALE,                      /* a static scale on top of the scales of groups */
        INTEGER = Format::X_INTEGER
    };

    /* ---- scales of rows, and the maximum of the tensor ----------------------------------------------------------- */

    MOEK_DEVICE int live(const moek_quant_args *a, int r)
    {
        return !a->counts || r % a->rows_per_expert < a->counts[r / a->rows_per_expert];
    }
    MOEK_DEVICE int rows_of(const moek_quant_args *a)
    {
        return a->row_limit && *a->row_limit < a->rows ? *a->row_limit : a->rows;
    }

    /* Eight T, times the weight of their row and rounded to T. */
    MOEK_DEVICE moek_words_ weigh(moek_words_ x, float row_weight, int dtype)
    {
        float f[8], weight[2];
        int i;
        moek_from_t2_(weight, moek_to_t2_(row_weight, 0.0f, dtype), dtype);
        moek_from_t8_(f, x, dtype);
        #pragma unroll
        for (i = 0; i < 8; i++) f[i] *= weight[0];
        return moek_to_t8_(f, dtype);
    }

    /* Eight columns of row r, weighted; zeros behind the last column. */
    MOEK_DEVICE void load8(float x[8], const moek_quant_args *a, int r, int column)
    {
        const int cols = HIDDEN ? HIDDEN : a->cols, whole = HIDDEN ? 1 : cols % 8 == 0;
        const size_t source = r / a->source_div;
        moek_words_ v = moek_load8_((const uint16_t *)a->x + source * a->x_stride + column, cols - column, whole);
        if (a->row_weight) v = weigh(v, a->row_weight[source], a->dtype);
        moek_from_t8_(x, v, a->dtype);
    }

    /* Eight codes of a row of q, of which n are there. */
    MOEK_DEVICE void store8(uint8_t *q, Codes v, int n, int whole)
    {
        int i;
        if (whole) {
            *(Codes *)q = v;
            return;
        }
        if constexpr (X_BITS == 4) {
            #pragma unroll
            for (i = 0; i < 4; i++) if (2 * i < n) q[i] = (uint8_t)(v >> 8 * i);
        } else {
            #pragma unroll
            for (i = 0; i < 8; i++) if (i < n) q[i] = (uint8_t)((i < 4 ? v.x : v.y) >> 8 * (i % 4));
        }
    }

    /* The largest |x|; NaN is passed over, and of a tensor Inf. */
    MOEK_DEVICE float max8(const float x[8])
    {
        float top = 0;
        int i;
        #pragma unroll
        for (i = 0; i < 8; i++)
            if (!BY_TENSOR || fabsf(x[i]) < INFINITY) top = fmaxf(top, fabsf(x[i]));
        return top;
    }
    /* The largest |x| as bits; NaN is larger than Inf. */
    MOEK_DEVICE uint32_t max8_bits(const float x[8])
    {
        uint32_t top = 0;
        int i;
        #pragma unroll
        for (i = 0; i < 8; i++) top = max(top, moek_bits_(x[i]) & 0x7fffffff);
        return top;
    }

    /* The largest of a block's numbers; `part` is shared, and not used again before the next barrier. */
    MOEK_DEVICE float block_max(float top, float *part)
    {
        const int lane = threadIdx.x % 32;
        top = moek_warp_max_(top);
        if (lane == 0) part[threadIdx.x / 32] = top;
        __syncthreads();
        return moek_warp_max_(lane < THREADS / 32 ? part[lane] : 0.0f);
    }
    MOEK_DEVICE uint32_t block_max(uint32_t top, uint32_t *part)
    {
        const int lane = threadIdx.x % 32;
        top = __reduce_max_sync(0xffffffff, top);
        if (lane == 0) part[threadIdx.x / 32] = top;
        __syncthreads();
        return __reduce_max_sync(0xffffffff, lane < THREADS / 32 ? part[lane] : 0u);
    }

    /* BY_TENSOR: partial[b] = the largest |x| of rows b, b + blocks, ... */
    MOEK_DEVICE void run_max(const moek_quant_args a)
    {
        const int cols = HIDDEN ? HIDDEN : a.cols;
        __shared__ float part[THREADS / 32];
        float top = 0, x[V];
        int rows, r, column;
        if (a.early != 2) moek_grid_wait_();
        rows = rows_of(&a);
        for (r = blockIdx.x; r < rows; r += gridDim.x) {
            if (!live(&a, r)) continue;
            for (column = threadIdx.x * V; column < cols; column += THREADS * V) {
                load8(x, &a, r, column);
                top = fmaxf(top, max8(x));
            }
        }
        top = block_max(top, part);
        if (threadIdx.x == 0) a.partial[blockIdx.x] = top;
        moek_grid_wait_();
    }

    /* BY_ROW */
    MOEK_DEVICE void run_rows(const moek_quant_args a)
    {
        const int cols = HIDDEN ? HIDDEN : a.cols;
        __shared__ typename Format::x_top part[2][THREADS / 32];
        int turn = 0, rows, r, c0, i;
        moek_grid_go_();
        if (a.early != 2) moek_grid_wait_();
        rows = rows_of(&a);
        if (blockIdx.x == 0)
            for (r = threadIdx.x; r < a.zeros; r += THREADS) a.zero[r] = 0;

        for (r = blockIdx.x; r < rows; r += gridDim.x) {
            const int row = !live(&a, r) ? -1 : a.target ? a.target[r] : r;
            uint8_t *const q = (uint8_t *)a.q + (size_t)row * cols;
            typename Format::x_top top = 0;
            float s, factor, x[V];
            if (row < 0) continue;
            for (c0 = threadIdx.x * V; c0 < cols; c0 += THREADS * V) {
                load8(x, &a, r, c0);
                if constexpr (INTEGER) top = max(top, max8_bits(x));
                else top = fmaxf(top, max8(x));
            }
            top = block_max(top, part[turn]);
            turn = !turn;
            if constexpr (INTEGER) {
                s = __fdiv_rn(moek_float_(top), Format::x_largest());
                factor = __fdiv_rn(Format::x_largest(), moek_float_(top));
                if (!(factor < INFINITY)) factor = 0;   /* zeros or nearly, or a NaN, which stays in s */
            } else {
                s = fmaxf(__fdiv_rn(top, 448.0f), 1.0f / (448.0f * 512.0f));
                factor = __fdiv_rn(1.0f, s);
            }
            if (threadIdx.x == 0) ((float *)a.scale)[row] = s;
            for (c0 = threadIdx.x * V; c0 < cols; c0 += THREADS * V) {
                load8(x, &a, r, c0);
                #pragma unroll
                for (i = 0; i < V; i++)
                    if constexpr (INTEGER) x[i] *= factor;
                    else x[i] = moek_by_scale_(x[i], s, factor);
                store8(q + c0, Format::to_x_codes(x), cols - c0, HIDDEN ? 1 : cols % V == 0);
            }
        }
        moek_grid_wait_();                             /* not done before those ahead are (moek/ops.h: early) */
    }

    /* ---- items --------------------------------------------------------------------------------------------------- */

    /* FINE: four scales of an item, of group g and each group behind it, of 16 columns each second one; scales of
     * groups that are not there are 0. */
    MOEK_DEVICE void put_scales(const moek_quant_args *a, size_t row, int g, uint32_t codes)
    {
        enum { GROUP = C > 0 ? C : 1, STEP = 32 / GROUP };
        const int groups = ((HIDDEN ? HIDDEN : a->cols) + a->group_offset + GROUP - 1) / GROUP;
        uint8_t *const bytes = (uint8_t *)a->scale;
        int i;
        if constexpr (!GLOBAL_SCALE)
            if (a->scale_layout == MOEK_SCALE_PACKED) {
                ((uint32_t *)a->scale)[(size_t)(g / 4) * a->scale_stride + row] = codes;
                return;
            }
        #pragma unroll
        for (i = 0; i < 4; i++, g += STEP)
            if (g < groups)
                bytes[a->scale_layout == MOEK_SCALE_ROW ? row * groups + g : (size_t)g * a->scale_stride + row] =
                    (uint8_t)(codes >> 8 * i);
    }
    /* The scale of 128 columns. */
    MOEK_DEVICE void put_scale(const moek_quant_args *a, size_t row, int g, float s)
    {
        const int groups = ((HIDDEN ? HIDDEN : a->cols) + a->group_offset + 127) / 128;
        uint8_t *bytes;
        int i;
        if (a->scale_layout == MOEK_SCALE_ROW) {
            ((float *)a->scale)[row * groups + g] = s;
        } else if (a->scale_layout == MOEK_SCALE_COLUMN) {
            ((float *)a->scale)[(size_t)g * a->scale_stride + row] = s;
        } else {
            bytes = (uint8_t *)a->scale + 4 * ((size_t)(g / 4) * a->scale_stride + row);
            bytes[g % 4] = (uint8_t)(moek_bits_(s) >> 23);
            for (i = g % 4 + 1; g == groups - 1 && i < 4; i++) bytes[i] = 0;
        }
    }

    /* A lane's part of an item, on its way: to `row` (-1: nowhere) and, if it has copies, more; zeros behind the last
     * column, and before the first.  live: 0 if it goes nowhere at all. */
    struct item { moek_words_ x[PARTS]; int row, live; };
    MOEK_DEVICE void fetch(item *it, const params *p, int r, int column, int end, int copies, int whole)
    {
        const moek_quant_args *const a = &p->a;
        const unsigned cols = HIDDEN ? HIDDEN : a->cols, source = moek_fastdiv_(r, p->over_source);
        const uint16_t *const x_row = (const uint16_t *)a->x + (size_t)source * (unsigned)a->x_stride + column;
        int h;
        it->row = r >= end ? -1 : a->target ? a->target[r * copies] : r;
        it->live = r < end && (it->row >= 0 || copies > 1);
        #pragma unroll
        for (h = 0; h < PARTS; h++) {
            const int n = (int)cols - column - h * (8 * LANES);
            it->x[h] = !it->live || (BLOCKED ? (unsigned)(column + h * (8 * LANES)) >= cols : n <= 0)
                     ? moek_zero_words_()
                     : whole ? moek_load_once_(x_row + h * (8 * LANES)) : moek_load8_(x_row + h * (8 * LANES), n, 0);
        }
    }
    /* scale, inverse: of the tensor; GLOBAL_SCALE: the static scale, and 1 / scale, or 0. */
    MOEK_DEVICE void put(const params *p, item *it, int r, int limit, int column, float scale, float inverse,
                         int copies, int whole, int dtype)
    {
        const moek_quant_args *const a = &p->a;
        const unsigned cols = HIDDEN ? HIDDEN : a->cols;
        Codes q[PARTS];
        uint32_t scales = 0;                           /* FINE */
        float s = 0;                                   /* else BLOCKED */
        int h, i;
        if (a->row_weight && it->live) {
            const float weight = a->row_weight[moek_fastdiv_(r, p->over_source)];
            #pragma unroll
            for (h = 0; h < PARTS; h++) it->x[h] = weigh(it->x[h], weight, dtype);
        }
        if constexpr (GLOBAL_SCALE) {
            #pragma unroll
            for (h = 0; h < PARTS; h++)
                scales |= moek_e2m1_codes_(&q[h], it->x[h], scale, inverse, dtype) << 8 * h;
        } else if constexpr (FINE) {
            #pragma unroll
            for (h = 0; h < PARTS; h++) scales |= moek_e8m0_codes_(&q[h], it->x[h], LANES, dtype) << 8 * h;
        } else if constexpr (BLOCKED) {
            s = moek_group_codes_(q, it->x, PARTS, LANES, a->ue8m0, dtype);
        } else if constexpr (BY_TENSOR) {
            #pragma unroll
            for (h = 0; h < PARTS; h++) q[h] = moek_static_codes_(it->x[h], inverse, dtype);
        } else {
            #pragma unroll
            for (h = 0; h < PARTS; h++) {
                float f[8];
                moek_from_t8_(f, it->x[h], dtype);
                it->x[h] = moek_to_t8_(f, dtype);
            }
        }
        if (!it->live) return;
        for (i = 0; i < copies; i++) {
            const int row = !i ? it->row : r * copies + i < limit ? a->target[r * copies + i] : -1;
            const size_t element = (size_t)(unsigned)row * cols + column;
            if (row < 0) continue;
            if constexpr (FINE) {
                if (threadIdx.x % (C / 8) == 0) put_scales(a, row, (column + a->group_offset) / C, scales);
            } else if constexpr (BLOCKED) {
                if (threadIdx.x % LANES == 0) put_scale(a, row, (column + a->group_offset) >> 7, s);
            }
            #pragma unroll
            for (h = 0; h < PARTS; h++) {
                const int n = (int)cols - column - h * (8 * LANES);
                if (BLOCKED ? (unsigned)(column + h * (8 * LANES)) >= cols : n <= 0) continue;
                if constexpr (COPIES)
                    moek_store8_((uint16_t *)a->q + element + h * (8 * LANES), it->x[h], n, whole);
                else
                    store8((uint8_t *)a->q + (X_BITS == 4 ? (ptrdiff_t)element / 2 : element) + h * (LANES * X_BITS),
                           q[h], n, whole);
            }
        }
    }

    /* `whole`: columns are a multiple of 8.  It is a constant, and so are dtype where it counts, and copies if it is
     * 1. */
    MOEK_DEVICE void walk(const params *p, float scale, float inverse, int copies, int whole, int dtype)
    {
        const moek_quant_args *const a = &p->a;
        const int first = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
        const int r0 = moek_fastdiv_(first, p->over_groups);
        const int column0 = (first - r0 * p->groups) * 128 + threadIdx.x % LANES * 8 - (BLOCKED ? a->group_offset : 0);
        int e;
        const int rows = copies > 1 ? p->expert_rows : a->rows;
        for (e = blockIdx.y; e < p->experts; e += gridDim.y) {
            const int begin = e * p->expert_rows, given = a->row_limit ? *a->row_limit : a->rows;
            const int limit = copies > 1 ? min(given, a->rows) : given;
            int r = begin + r0, column = column0, end = rows;
            if (a->counts) end = min(end, begin + min(p->expert_rows, a->counts[e]));
            for (;;) {
                item it;
                fetch(&it, p, r, column, end, copies, whole);
                if (copies == 1) end = min(end, limit);                   /* the first loads did not wait for it */
                else if (r * copies >= limit) end = min(end, r);
                if (!__any_sync(0xffffffff, r < end)) break;
                if (r >= end) it.live = 0;
                if (__any_sync(0xffffffff, it.live))
                    put(p, &it, r, limit, column, scale, inverse, copies, whole, dtype);
                r += p->rows_more, column += p->groups_more * 128;
                if (column >= (BLOCKED ? p->end : p->groups * 128)) r++, column -= p->groups * 128;
            }
        }
    }

    /* several: 1: rows may have copies.  Two kernels, for code of copies would cost the others 1 us (docs/notes:
     * quant-own-kernel). */
    MOEK_DEVICE void run(const params p, int several)
    {
        const int parts = p.a.rows < MOEK_QUANT_PARTIALS ? p.a.rows : MOEK_QUANT_PARTIALS;
        float scale = 0, inverse = 0;
        int i;
        moek_grid_go_();
        if (p.a.early != 2) moek_grid_wait_();
        if (blockIdx.x == 0 && blockIdx.y == 0)
            for (i = threadIdx.x; i < p.a.zeros; i += blockDim.x) p.a.zero[i] = 0;
        if constexpr (BY_TENSOR) {
            __shared__ float part[THREADS / 32];
            float top = 0;
            if (p.a.static_scale) {
                scale = *p.a.static_scale;
            } else {
                for (i = threadIdx.x; i < parts; i += THREADS) top = fmaxf(top, p.a.partial[i]);
                scale = __fdiv_rn(block_max(top, part), 448.0f);
            }
            inverse = __fdiv_rn(1.0f, scale);
            if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *(float *)p.a.scale = scale;
        }
        if constexpr (GLOBAL_SCALE) {
            scale = *p.a.static_scale;
            inverse = __fdiv_rn(1.0f, scale);
            inverse = fabsf(inverse) < INFINITY ? inverse : 0.0f;
        }
        if (!HIDDEN && p.a.cols % 8) walk(&p, scale, inverse, several ? p.copies : 1, 0, p.a.dtype);
        else if (p.a.dtype == MOEK_DTYPE_FP16) walk(&p, scale, inverse, several ? p.copies : 1, 1, MOEK_DTYPE_FP16);
        else walk(&p, scale, inverse, several ? p.copies : 1, 1, MOEK_DTYPE_BF16);
        moek_grid_wait_();                             /* not done before those ahead are (moek/ops.h: early) */
    }
};

/* Launches the kernel of a format whose x has a scale a row.  args NULL: makes it ready. */
template <int HIDDEN, int THREADS, class Format>
static MOEK_UNUSED moek_status moek_launch_quant_rows_(const void *args, moek_stream stream,
                                                       void (*kernel)(moek_quant_args))
{
    enum { BLOCKS = 2048 };
    const moek_quant_args *const a = (const moek_quant_args *)args;
    moek_quant_args given;
    if (!a) return MOEK_READY_(kernel, 0);
    if (a->rows < 1 || a->cols < 1) return MOEK_OK;
    given = *a;
    if (!a->x_stride) given.x_stride = a->cols;
    return MOEK_CHAIN_(kernel, a->rows < BLOCKS ? a->rows : BLOCKS, THREADS, 0, stream, a->early, given);
}

/* The same for the others.  max_kernel: of a tensor's maximum, NULL where x has no scale of the whole tensor. */
template <int HIDDEN, int THREADS, class Format>
static MOEK_UNUSED moek_status moek_launch_quant_simt_(const void *args, moek_stream stream,
                                                       void (*kernel)(moek_quant_params_),
                                                       void (*copies_kernel)(moek_quant_params_),
                                                       void (*max_kernel)(moek_quant_args))
{
    typedef moek_quant_simt_<HIDDEN, THREADS, Format> K;
    /* The most; many of BATCHED find nothing.  Of MANY rows: the row behind a block's last must be below 2^31. */
    enum { BLOCKS = 8192, BATCHED = 2048, FEWER = 64, MANY = 0x7fffffff - (1 << 20) };
    const moek_quant_args *const a = (const moek_quant_args *)args;
    moek_quant_params_ p;
    const int few = a && a->max_blocks && (!max_kernel || a->static_scale), threads = few ? (int)K::MOST : THREADS;
    const int items = threads / K::LANES, parts = !a || a->rows > MOEK_QUANT_PARTIALS ? MOEK_QUANT_PARTIALS : a->rows;
    moek_status status = MOEK_OK;
    long long blocks, most;
    int early;
    dim3 grid(1);
    if (!a && max_kernel && MOEK_READY_(max_kernel, 0) != MOEK_OK) return MOEK_E_ARCH;
    if (!a) return MOEK_READY_(kernel, 0);
    if (a->rows < 1 || a->cols < 1) return MOEK_OK;
    p.a = *a;
    if (!a->x_stride) p.a.x_stride = a->cols;
    if (p.a.source_div > a->rows) p.a.source_div = a->rows;            /* all of row 0, either way */
    p.copies = a->target && !a->counts ? p.a.source_div : 1;
    p.expert_rows = a->counts ? a->rows_per_expert : (a->rows - 1) / p.copies + 1;
    p.experts = a->counts ? (a->rows - 1) / p.expert_rows + 1 : 1;
    p.groups = ((HIDDEN ? HIDDEN : a->cols) + (K::BLOCKED ? a->group_offset : 0) + 127) / 128;
    p.end = p.groups * 128 - (K::BLOCKED ? a->group_offset : 0);
    p.over_groups = moek_fastdiv_of_(p.groups); p.over_source = moek_fastdiv_of_(p.a.source_div / p.copies);
    blocks = ((long long)p.expert_rows * p.groups + items - 1) / items;
    most = a->counts ? BATCHED / p.experts + 1 : a->rows > MANY ? FEWER : BLOCKS;
    if (blocks > most) blocks = most;
    if (few && blocks > a->max_blocks) blocks = a->max_blocks;
    grid = dim3((unsigned)blocks, p.experts < BATCHED ? p.experts : BATCHED);
    p.rows_more = (int)(blocks * items / p.groups); p.groups_more = (int)(blocks * items % p.groups);
    if (max_kernel && !a->static_scale)
        status = MOEK_CHAIN_(max_kernel, parts, THREADS, 0, stream, a->early, p.a);
    if (status != MOEK_OK) return status;
    early = max_kernel ? a->early && a->static_scale : a->early;
    if (p.copies > 1) return MOEK_CHAIN_(copies_kernel, grid, threads, 0, stream, early, p);
    return MOEK_CHAIN_(kernel, grid, threads, 0, stream, early, p);
}
#endif
