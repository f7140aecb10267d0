/* moek/import/quantize.h -- plain weights, bf16, fp16 or f32, to a format: the scale of each group, then its codes.
 * For host and device. */
#ifndef MOEK_IMPORT_QUANTIZE_H
#define MOEK_IMPORT_QUANTIZE_H
#include <math.h>
#include <string.h>
#include "launch.h"

typedef struct moek_plain_ {
    const unsigned char *from;                         /* [rows][columns] */
    int dtype, element, bits;                          /* of from; of w */
    size_t rows, columns, group_rows, group_columns;   /* a group has a scale */
    unsigned char *w;
    size_t pitch;                                      /* bytes from a row of w to the next */
    moek_factors_ scale;                               /* by group; at NULL: there is *whole only */
    float *whole;                                      /* or NULL: largest |w| of the matrix, then a scale for all */
    float largest, whole_largest;                      /* what the largest |w| of a group, of the matrix, becomes */
    uint32_t up;                                       /* powers of two: is added to the bits of the largest |w| .. */
    int less;                                          /* .. and this taken off the exponent; 0: any scale */
} moek_plain_;
typedef struct moek_group_ { size_t row, column, rows, columns, scale_row, scale_column; } moek_group_;

MOEK_FN size_t moek_plain_across_(const moek_plain_ *a)
{
    return (a->columns + a->group_columns - 1) / a->group_columns;
}
MOEK_FN size_t moek_plain_groups_(const moek_plain_ *a)
{
    return (a->rows + a->group_rows - 1) / a->group_rows * moek_plain_across_(a);
}
MOEK_FN moek_group_ moek_plain_group_(const moek_plain_ *a, size_t i)
{
    const size_t across = moek_plain_across_(a);
    moek_group_ g;
    g.scale_row = i / across;
    g.scale_column = i - g.scale_row * across;
    g.row = g.scale_row * a->group_rows;
    g.column = g.scale_column * a->group_columns;
    g.rows = a->rows - g.row < a->group_rows ? a->rows - g.row : a->group_rows;
    g.columns = a->columns - g.column < a->group_columns ? a->columns - g.column : a->group_columns;
    return g;
}
/* Row r of the matrix from the group's first column on, and a column of that. */
MOEK_FN const unsigned char *moek_plain_row_(const moek_plain_ *a, moek_group_ g, size_t r)
{
    return a->from + (r * a->columns + g.column) * (a->dtype == MOEK_DTYPE_F32 ? 4 : 2);
}
MOEK_FN float moek_plain_load_(const unsigned char *row, int column, int dtype)
{
    if (dtype == MOEK_DTYPE_F32) return ((const float *)row)[column];
    return moek_from_t_(((const uint16_t *)row)[column], dtype);
}
/* Bits of the largest |w| among columns `first`, `first` + `step`, ..; NaN is above all. */
MOEK_FN uint32_t moek_plain_top_(const moek_plain_ *a, moek_group_ g, int first, int step)
{
    const int columns = (int)g.columns;
    uint32_t top = 0;
    size_t r;
    int c;
    for (r = g.row; r < g.row + g.rows; r++) {
        const unsigned char *const row = moek_plain_row_(a, g, r);
        for (c = first; c < columns; c += step) {
            const uint32_t magnitude = moek_bits_(moek_plain_load_(row, c, a->dtype)) & 0x7fffffff;
            top = magnitude > top ? magnitude : top;
        }
    }
    return top;
}

/* most / largest, in the type of the scales; 0 becomes 1; of a NaN or Inf: NaN. */
MOEK_FN float moek_plain_divide_(float most, float largest)
{
    const float s = most / largest;
    return !moek_is_finite_(most) ? moek_float_(0x7fc00000) : s > 0 ? s : 1.0f;
}
/* e8m0 of a power of two. */
MOEK_FN uint8_t moek_plain_power_(const moek_plain_ *a, uint32_t top)
{
    const int e = (int)((top + a->up) >> 23) - a->less;
    return top >= 0x7f800000 ? 255 : (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}
/* The scale of a group from its largest |w|; stores it if `store`, and returns what w is divided by. */
MOEK_FN float moek_plain_scale_(const moek_plain_ *a, moek_group_ g, uint32_t top, int store)
{
    const float most = moek_float_(top), whole = a->whole ? *a->whole : 1.0f;
    const int type = a->scale.type;
    uint32_t bits;
    if (!a->scale.at) return whole;
    if (type == MOEK_SCALE_TYPE_E8M0) bits = moek_plain_power_(a, top);
    else if (type == MOEK_SCALE_TYPE_E4M3) {
        const float s = most / (a->largest * whole), least = 1.0f / 512;
        bits = !moek_is_finite_(most) ? 0x7f : moek_to_e4m3_(!top ? 1.0f : s < least ? least : s);
    } else {
        float s = moek_plain_divide_(most, a->largest);
        if (a->less && top) s = moek_from_e8m0_(moek_plain_power_(a, top));
        bits = type == MOEK_SCALE_TYPE_T ? moek_to_t_(s, a->scale.dtype) : moek_bits_(s);
        if (!(bits & 0x7fffffff)) bits = type == MOEK_SCALE_TYPE_T ? moek_to_t_(1.0f, a->scale.dtype) : 0x3f800000;
    }
    if (store) moek_factors_store_(&a->scale, g.scale_row, g.scale_column, bits);
    return moek_factors_value_(&a->scale, bits) * whole;
}
/* The whole matrix: from the bits of its largest |w|. */
MOEK_FN void moek_plain_whole_(const moek_plain_ *a) { *a->whole = moek_plain_divide_(*a->whole, a->whole_largest); }

/* To the nearest integer, ties to even, from `low` to -1 - low; of 4 bits + 8. */
MOEK_FN int moek_plain_integer_(float v, float low)
{
    float r = rintf(v);
    r = r > low ? r : low;
    r = r < -1 - low ? r : -1 - low;
    return low == -8.0f ? (int)r + 8 : (int)r & 0xff;
}
MOEK_FN uint32_t moek_plain_code_(const moek_plain_ *a, float w, float scale)
{
    const float v = scale == scale ? w / scale : 0.0f;
    if (a->element == MOEK_ELEMENT_E4M3) return moek_to_e4m3_(v);
    if (a->element == MOEK_ELEMENT_E2M1) return moek_to_e2m1_(v);
    return (uint32_t)moek_plain_integer_(v, a->bits == 4 ? -8.0f : -128.0f);
}
/* Bytes of the group's rows that are number `first` and each `step`th from there. */
MOEK_FN void moek_plain_codes_(const moek_plain_ *a, moek_group_ g, float scale, int first, int step)
{
    const int half = a->bits == 4, bytes = (int)g.columns >> half;
    size_t r;
    int c;
    for (r = g.row; r < g.row + g.rows; r++) {
        const unsigned char *const row = moek_plain_row_(a, g, r);
        unsigned char *const to = a->w + r * a->pitch + (g.column >> half);
        for (c = first; c < bytes; c += step) {
            uint32_t code = moek_plain_code_(a, moek_plain_load_(row, c << half, a->dtype), scale);
            if (half) code |= moek_plain_code_(a, moek_plain_load_(row, 2 * c + 1, a->dtype), scale) << 4;
            to[c] = (unsigned char)code;
        }
    }
}

/* ---- on the host: pieces of a row, in loops that a compiler vectorizes ------------------------------------------- */

enum { MOEK_PLAIN_ = 128 };                            /* columns of a piece, an even number */
static void moek_plain_decode_(const moek_plain_ *a, const unsigned char *at, int n, float *w)
{
    if (a->dtype == MOEK_DTYPE_F32) memcpy(w, at, 4 * (size_t)n);
    else moek_decode_t_(w, (const uint16_t *)(const void *)at, n, a->dtype);
}
static uint32_t moek_plain_top_host_(const moek_plain_ *a, moek_group_ g)
{
    const size_t bytes = a->dtype == MOEK_DTYPE_F32 ? 4 : 2;
    float w[MOEK_PLAIN_];
    uint32_t top = 0;
    size_t r, c, n;
    for (r = g.row; r < g.row + g.rows; r++)
        for (c = 0; c < g.columns; c += n) {
            n = g.columns - c < MOEK_PLAIN_ ? g.columns - c : (size_t)MOEK_PLAIN_;
            moek_plain_decode_(a, moek_plain_row_(a, g, r) + c * bytes, (int)n, w);
            top = moek_top_(top, w, (int)n);
        }
    return top;
}
/* n codes, a byte each. */
static void moek_plain_piece_(const moek_plain_ *a, const float *w, int n, float scale, unsigned char *codes)
{
    const float low = a->bits == 4 ? -8.0f : -128.0f;
    float v[MOEK_PLAIN_];
    int i;
    for (i = 0; i < n; i++) v[i] = scale == scale ? w[i] / scale : 0.0f;
    if (a->element == MOEK_ELEMENT_E4M3) for (i = 0; i < n; i++) codes[i] = moek_to_e4m3_(v[i]);
    else if (a->element == MOEK_ELEMENT_E2M1) for (i = 0; i < n; i++) codes[i] = moek_to_e2m1_(v[i]);
    else for (i = 0; i < n; i++) codes[i] = (unsigned char)moek_plain_integer_(v[i], low);
}
static void moek_plain_codes_host_(const moek_plain_ *a, moek_group_ g, float scale)
{
    const size_t bytes = a->dtype == MOEK_DTYPE_F32 ? 4 : 2;
    const int half = a->bits == 4;
    float w[MOEK_PLAIN_];
    unsigned char codes[MOEK_PLAIN_];
    size_t r, c, n, i;
    for (r = g.row; r < g.row + g.rows; r++) {
        unsigned char *const to = a->w + r * a->pitch + (g.column >> half);
        for (c = 0; c < g.columns; c += n) {
            n = g.columns - c < MOEK_PLAIN_ ? g.columns - c : (size_t)MOEK_PLAIN_;
            moek_plain_decode_(a, moek_plain_row_(a, g, r) + c * bytes, (int)n, w);
            moek_plain_piece_(a, w, (int)n, scale, codes);
            for (i = 0; half && i < n / 2; i++) codes[i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
            memcpy(to + (c >> half), codes, n >> half);
        }
    }
}
static void moek_plain_groups_host_(const void *job, size_t begin, size_t end, uint64_t *n)
{
    const moek_plain_ *const a = (const moek_plain_ *)job;
    (void)n;
    for (; begin < end; begin++) {
        const moek_group_ g = moek_plain_group_(a, begin);
        moek_plain_codes_host_(a, g, moek_plain_scale_(a, g, a->scale.at ? moek_plain_top_host_(a, g) : 0, 1));
    }
}
static void moek_plain_host_(const moek_plain_ *a, moek_stream stream)
{
    if (a->whole) {
        const moek_group_ all = { 0, 0, a->rows, a->columns, 0, 0 };
        *a->whole = moek_float_(moek_plain_top_host_(a, all));
        moek_plain_whole_(a);
    }
    moek_pieces_(stream, moek_plain_groups_host_, a, moek_plain_groups_(a), moek_plain_across_(a),
                 a->rows * a->columns, NULL);
}

#if MOEK_HAVE_CUDA_
static __global__ void moek_plain_clear_k_(const moek_plain_ a) { *a.whole = 0; }
static __global__ void moek_plain_whole_k_(const moek_plain_ a) { moek_plain_whole_(&a); }
MOEK_DEVICE uint32_t moek_plain_warp_(uint32_t top)
{
    int i;
    for (i = 16; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffff, top, i);
        top = other > top ? other : top;
    }
    return top;
}
/* A warp a row. */
static __global__ void __launch_bounds__(MOEK_IMPORT_THREADS_) moek_plain_top_k_(const moek_plain_ a)
{
    const size_t row = (size_t)blockIdx.x * (MOEK_IMPORT_THREADS_ / 32) + threadIdx.x / 32;
    const moek_group_ g = { row, 0, 1, a.columns, 0, 0 };
    uint32_t top;
    if (row >= a.rows) return;
    top = moek_plain_warp_(moek_plain_top_(&a, g, (int)(threadIdx.x % 32), 32));
    if (threadIdx.x % 32 == 0 && top) atomicMax((uint32_t *)a.whole, top);
}
/* A warp a group. */
static __global__ void __launch_bounds__(MOEK_IMPORT_THREADS_) moek_plain_k_(const moek_plain_ a)
{
    const size_t i = (size_t)blockIdx.x * (MOEK_IMPORT_THREADS_ / 32) + threadIdx.x / 32;
    const int lane = (int)(threadIdx.x % 32);
    moek_group_ g;
    uint32_t top = 0;
    if (i >= moek_plain_groups_(&a)) return;
    g = moek_plain_group_(&a, i);
    if (a.scale.at) top = moek_plain_warp_(moek_plain_top_(&a, g, lane, 32));
    moek_plain_codes_(&a, g, moek_plain_scale_(&a, g, top, lane == 0), lane, 32);
}
static moek_status moek_plain_cuda_(const moek_plain_ *of, moek_stream stream)
{
    const size_t warps = MOEK_IMPORT_THREADS_ / 32, groups = moek_plain_groups_(of);
    const moek_plain_ a = *of;
    moek_status status = MOEK_OK;
    if (a.whole) {
        status = MOEK_LAUNCH_(moek_plain_clear_k_, 1, 1, 0, stream, a);
        if (status == MOEK_OK)
            status = MOEK_LAUNCH_(moek_plain_top_k_, (unsigned)((a.rows + warps - 1) / warps), MOEK_IMPORT_THREADS_, 0,
                                  stream, a);
        if (status == MOEK_OK) status = MOEK_LAUNCH_(moek_plain_whole_k_, 1, 1, 0, stream, a);
    }
    if (status != MOEK_OK) return status;
    return MOEK_LAUNCH_(moek_plain_k_, (unsigned)((groups + warps - 1) / warps), MOEK_IMPORT_THREADS_, 0, stream, a);
}
#endif

static moek_status moek_plain_run_(int arch, const moek_plain_ *a, moek_stream stream)
{
#if MOEK_HAVE_CUDA_
    if (arch) return moek_plain_cuda_(a, stream);
#endif
    (void)arch;
    moek_plain_host_(a, stream);
    return MOEK_OK;
}
#endif
