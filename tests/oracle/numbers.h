/* numbers.h -- a part of ref.h, which includes it once: numbers, how far apart, activations. */
/* Of elements and of scales, a line each: kind; REF_FLOAT: bits of the significand, the smallest step is 2^low; bits of
 * a code; the largest code without its sign, and whether that is Inf. */
enum { REF_FLOAT, REF_POWER, REF_SIGNED, REF_UNSIGNED, REF_OFFSET, REF_LIST, REF_IS_T };
#define REF_EACH_NUMBER(X) \
    X(BF16, REF_FLOAT,    8,  -133, 16, 0x7f80,     1) \
    X(FP16, REF_FLOAT,    11, -24,  16, 0x7c00,     1) \
    X(F32,  REF_FLOAT,    24, -149, 32, 0x7f800000, 1) \
    X(E4M3, REF_FLOAT,    4,  -9,   8,  0x7e,       0) \
    X(E2M1, REF_FLOAT,    2,  -1,   4,  7,          0) \
    X(E8M0, REF_POWER,    0,  -127, 8,  0xfe,       0)             /* 2^(code - 127), 0xff is NaN */ \
    X(S8,   REF_SIGNED,   0,  0,    8,  127,        0) \
    X(S4,   REF_SIGNED,   0,  0,    4,  7,          0) \
    X(U4,   REF_UNSIGNED, 0,  0,    4,  15,         0) \
    X(U4B8, REF_OFFSET,   0,  0,    4,  15,         0)             /* code - 8 */ \
    X(U2,   REF_UNSIGNED, 0,  0,    2,  3,          0) \
    X(U5,   REF_UNSIGNED, 0,  0,    5,  31,         0) \
    X(U6,   REF_UNSIGNED, 0,  0,    6,  63,         0) \
    X(U3B4, REF_OFFSET,   0,  0,    3,  7,          0) \
    X(U5B16, REF_OFFSET,  0,  0,    5,  31,         0) \
    X(U6B32, REF_OFFSET,  0,  0,    6,  63,         0) \
    X(IQ4,  REF_LIST,     0,  0,    4,  15,         0)             /* ref_list */ \
    X(T,    REF_IS_T,     0,  0,    16, 0,          0)             /* BF16 or FP16, as dtype says */
typedef struct ref_number { const char *name; int kind, bits, low, width; unsigned top; int inf; } ref_number;
#define REF_INDEX_(name, kind, bits, low, width, top, inf) REF_##name,
enum { REF_EACH_NUMBER(REF_INDEX_) REF_NUMBERS };
#define REF_LINE_(name, kind, bits, low, width, top, inf) { #name, kind, bits, low, width, top, inf },
static const ref_number ref_numbers[] = { REF_EACH_NUMBER(REF_LINE_) };

static inline const ref_number *ref_t(int dtype)
{
    return &ref_numbers[dtype == MOEK_DTYPE_FP16 ? REF_FP16 : REF_BF16];
}
/* Of MOEK_ELEMENT_* and MOEK_SCALE_TYPE_*: one without its line above does not compile. */
static inline const ref_number *ref_element(int element, int dtype)
{
#define REF_OF_(name, bits) REF_##name,
    static const int of[] = { REF_T, MOEK_EACH_ELEMENT(REF_OF_) };
    return of[element] == REF_T ? ref_t(dtype) : &ref_numbers[of[element]];
}
static inline const ref_number *ref_scale_type(int type, int dtype)
{
    static const int of[] = { REF_F32, MOEK_EACH_SCALE_TYPE(REF_OF_) };
#undef REF_OF_
    return of[type] == REF_T ? ref_t(dtype) : &ref_numbers[of[type]];
}

static inline unsigned ref_sign_bit(const ref_number *n)
{
    return n->kind == REF_FLOAT || n->kind == REF_SIGNED ? 1u << (n->width - 1) : 0;
}
static inline unsigned ref_nan(const ref_number *n)    /* where there is none: the largest */
{
    return n->kind == REF_FLOAT ? ref_sign_bit(n) - 1 : n->kind == REF_POWER ? 0xff : n->top;
}
/* Is there a NaN among the codes?  Where not, a NaN in x stays in its scale. */
static inline int ref_has_nan(const ref_number *n)
{
    return n->kind == REF_POWER || (n->kind == REF_FLOAT && n->top < ref_sign_bit(n) - 1);
}
static inline double ref_decode_float_(const ref_number *n, unsigned code)
{
    const unsigned magnitude = code & (ref_sign_bit(n) - 1), step = 1u << (n->bits - 1);
    const unsigned exponent = magnitude / step, fraction = magnitude % step;
    double v;
    if (magnitude > n->top) return NAN;
    if (magnitude == n->top && n->inf) v = INFINITY;
    else if (exponent == 0) v = ldexp(fraction, n->low);
    else v = ldexp(fraction + step, n->low + (int)exponent - 1);
    return code & ref_sign_bit(n) ? -v : v;
}
static const signed char ref_list[16] = {             /* llama.cpp: kvalues_iq4nl */
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
};
static inline double ref_decode(const ref_number *n, unsigned code)
{
    switch (n->kind) {
    case REF_FLOAT:  return ref_decode_float_(n, code);
    case REF_POWER:  return code > n->top ? NAN : ldexp(1, n->low + (int)code);
    case REF_SIGNED: return (double)code - (code & ref_sign_bit(n) ? 2.0 * ref_sign_bit(n) : 0);
    case REF_OFFSET: return (double)code - (double)(1u << (n->width - 1));
    case REF_LIST:   return ref_list[code];
    default:         return code;
    }
}
static inline double ref_largest(const ref_number *n) { return ref_decode(n, n->inf ? n->top - 1 : n->top); }
/* To nearest, ties to even; NaN: quiet, of either sign. */
static inline unsigned ref_encode_float_(const ref_number *n, double x)
{
    const unsigned sign = signbit(x) ? ref_sign_bit(n) : 0;
    double steps, code;
    int e, scale;
    if (isnan(x)) return ref_has_nan(n) ? sign | ref_nan(n) : n->top;
    if (isinf(x)) return sign | n->top;
    frexp(x, &e);
    scale = x == 0 || e - n->bits < n->low ? n->low : e - n->bits;
    steps = nearbyint(ldexp(fabs(x), -scale));         /* a carry into the next exponent adds up right by itself */
    code = steps + (double)(scale - n->low) * (1 << (n->bits - 1));
    return sign | (code > n->top ? n->top : (unsigned)code);
}
/* The same from a double's bits, of what has an end; else by the former.  A third of a test's time was spent in frexp,
 * ldexp and nearbyint.  (ref_check compares the two.) */
static inline unsigned ref_encode_bits_(const ref_number *n, double x)
{
    const int shift = 53 - n->bits, least = n->low + n->bits - 1 + 1023;     /* the first normal exponent, a double's */
    const uint64_t half = ((uint64_t)1 << (shift - 1)) - 1, exponents = (uint64_t)(least - 1) << (n->bits - 1);
    const uint64_t whole = (uint64_t)(n->low + 52 + 1023) << 52;             /* a double whose steps are 2^low */
    uint64_t bits, code;
    double steps;
    memcpy(&bits, &x, sizeof bits);
    code = bits & ~(uint64_t)0 >> 1;
    if (code >> 52 == 0x7ff) return ref_encode_float_(n, x);
    if (code >> 52 < (uint64_t)least) {                /* below the normal numbers */
        memcpy(&steps, &whole, sizeof steps);
        steps += fabs(x);
        memcpy(&code, &steps, sizeof code);
        code -= whole;
    } else {
        code = ((code + half + (code >> shift & 1)) >> shift) - exponents;
    }
    return (bits >> 63 ? ref_sign_bit(n) : 0) | (code > n->top ? n->top : (unsigned)code);
}
/* A power of two: the next, if x is none.  Integers: to nearest, as far from 0 on both sides; NaN: 0. */
static inline unsigned ref_encode(const ref_number *n, double x)
{
    int e;
    double steps;
    if (n->kind == REF_FLOAT) return ref_encode_bits_(n, x);
    if (isnan(x) && n->kind != REF_POWER) x = 0;
    if (n->kind == REF_POWER) {
        if (isnan(x)) return ref_nan(n);
        if (isinf(x) || !(x > 0)) return x > 0 ? n->top : 0;
        e = (frexp(x, &e) == 0.5 ? e - 1 : e) - n->low;
        return e < 0 ? 0 : e > (int)n->top ? n->top : (unsigned)e;
    }
    if (n->kind == REF_LIST) {
        for (e = 0; e < (int)n->top && x > (ref_list[e] + ref_list[e + 1]) / 2.0; e++) { }
        return (unsigned)e;
    }
    if (n->kind == REF_OFFSET) {
        steps = nearbyint(x) + (double)(1u << (n->width - 1));
        return steps < 0 ? 0 : steps > n->top ? n->top : (unsigned)steps;
    }
    steps = fabs(nearbyint(x)) < n->top ? nearbyint(x) : x < 0 ? -(double)n->top : n->top;
    if (n->kind == REF_UNSIGNED) return steps < 0 ? 0 : (unsigned)steps;
    return (unsigned)(int)steps & (2 * ref_sign_bit(n) - 1);
}

/* Deviation of random elements that use most codes, and few of which saturate. */
static inline double ref_spread(const ref_number *n)
{
    return n->inf ? 1 : ref_largest(n) / (n->width < 8 ? 3 : 8);
}

static inline size_t ref_bytes(const ref_number *n, size_t count) { return (count * (size_t)n->width + 7) / 8; }
/* Codes in memory; of 4 bits: two a byte, the first in its low half. */
static inline unsigned ref_code(const ref_number *n, const void *array, size_t i)
{
    if (n->width == 32) return ((const uint32_t *)array)[i];
    if (n->width == 16) return ((const uint16_t *)array)[i];
    if (n->width == 8) return ((const uint8_t *)array)[i];
    return ((const uint8_t *)array)[i / 2] >> (i % 2 * 4) & 15u;
}
static inline void ref_put_code(const ref_number *n, void *array, size_t i, unsigned code)
{
    uint8_t *const at = (uint8_t *)array + i / 2;
    if (n->width == 32) ((uint32_t *)array)[i] = code;
    else if (n->width == 16) ((uint16_t *)array)[i] = (uint16_t)code;
    else if (n->width == 8) ((uint8_t *)array)[i] = (uint8_t)code;
    else *at = (uint8_t)(i % 2 ? (*at & 15u) | code << 4 : (*at & 0xf0u) | code);
}
static inline const double *ref_table_(const ref_number *n)           /* all codes, decoded once; not of 32 bits */
{
    static double *tables[REF_NUMBERS];
    double **const table = &tables[n - ref_numbers];
    unsigned code;
    if (*table) return *table;
    *table = (double *)ref_alloc(sizeof **table << n->width);
    for (code = 0; code < 1u << n->width; code++) (*table)[code] = ref_decode(n, code);
    return *table;
}
static inline double ref_get(const ref_number *n, const void *array, size_t i)
{
    const unsigned code = ref_code(n, array, i);
    return n->width == 32 ? ref_decode(n, code) : ref_table_(n)[code];
}
static inline void ref_put(const ref_number *n, void *array, size_t i, double x)
{
    ref_put_code(n, array, i, ref_encode(n, x));
}
static inline double ref_get_t(const void *array, size_t i, int dtype)
{
    return ref_table_(ref_t(dtype))[((const uint16_t *)array)[i]];
}
#include "blocks.h"

/* Made before threads want them. */
static inline void ref_tables_(const moek_format *f, int dtype)
{
    ref_table_(ref_t(dtype)), ref_table_(ref_element(f->w, dtype)), ref_table_(ref_element(f->x, dtype));
    if (f->only_blocks) block_columns_of(moek_block_of(f->file_type));
    if (ref_scale_type(f->w_scale.type, dtype)->width < 32) ref_table_(ref_scale_type(f->w_scale.type, dtype));
    if (ref_scale_type(f->x_scale.type, dtype)->width < 32) ref_table_(ref_scale_type(f->x_scale.type, dtype));
}
static inline uint16_t ref_to_t(double x, int dtype) { return (uint16_t)ref_encode(ref_t(dtype), x); }
static inline double ref_round_t(double x, int dtype)
{
    const uint16_t code = ref_to_t(x, dtype);
    return ref_get_t(&code, 0, dtype);
}

/* ---- how far apart ----------------------------------------------------------------------------------------------- */

/* square: of `want`; the distance of several together is the root of sum(rel_l2^2 * square) / sum(square). */
typedef struct ref_distance { double rel_l2, max_abs, square; int same_nonfinite; } ref_distance;
/* Of `got` (T) to `want`.  What is not finite in `want` must be the same in `got`, and is not in the sums. */
static inline ref_distance ref_compare_t(const void *got, const double *want, size_t n, int dtype)
{
    ref_distance r = { 0, 0, 0, 1 };
    double error = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        const double g = ref_get_t(got, i, dtype), d = g - want[i];
        if (isnan(want[i]) || isinf(want[i])) {
            if (isnan(want[i]) ? !isnan(g) : g != want[i]) r.same_nonfinite = 0;
            continue;
        }
        if (isnan(d)) r.same_nonfinite = 0;
        r.square += want[i] * want[i];
        error += d * d;
        if (fabs(d) > r.max_abs) r.max_abs = fabs(d);
    }
    r.rel_l2 = r.square > 0 ? sqrt(error / r.square) : sqrt(error);
    return r;
}

/* The element that is farthest from `want`, in parts of the rms of its row; of short rows, of all rows'. */
typedef struct ref_worst { double off; int row, column; } ref_worst;
static inline double ref_rms(const double *y, size_t n)
{
    double square = 0;
    size_t i;
    for (i = 0; i < n; i++) if (!isnan(y[i]) && !isinf(y[i])) square += y[i] * y[i];
    return n ? sqrt(square / (double)n) : 0;
}
static inline ref_worst ref_worst_of(const void *got, const double *want, int rows, int columns, int dtype)
{
    const double all = ref_rms(want, (size_t)rows * columns);
    ref_worst w = { 0, 0, 0 };
    int r, j;
    for (r = 0; r < rows; r++) {
        const double *const y = want + (size_t)r * columns;
        const double rms = columns < 64 ? all : ref_rms(y, (size_t)columns);
        for (j = 0; j < columns; j++) {
            const double d = fabs(ref_get_t(got, (size_t)r * columns + j, dtype) - y[j]);
            if (!(d > 0) || isinf(d)) continue;        /* (what is not finite, ref_compare_t compares) */
            if (d <= w.off * rms) continue;
            w.off = rms > 0 ? d / rms : INFINITY, w.row = r, w.column = j;
        }
    }
    return w;
}

/* ---- activations: g the gate or only value, u the up value ------------------------------------------------------- */

REF_BOTH double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
REF_BOTH double ref_below(double x, double limit) { return x > limit ? limit : x; }          /* NaN passes */
REF_BOTH double ref_within(double x, double limit) { return x < -limit ? -limit : ref_below(x, limit); }
REF_BOTH double ref_gelu(double x) { return x * (0.5 * erfc(-x / sqrt(2.0))); }
REF_BOTH double ref_gelu_tanh(double x)
{
    const double pi = 3.14159265358979323846;
    return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}
REF_BOTH int ref_gated(int act)
{
    return act != MOEK_SILU_NO_MUL && act != MOEK_GELU_NO_MUL && act != MOEK_GELU_TANH_NO_MUL &&
        act != MOEK_RELU2_NO_MUL && act != MOEK_RELU_NO_MUL;
}
REF_BOTH double ref_act(int act, double g, double u, double alpha, double beta, double limit)
{
    switch (act) {
    case MOEK_SILU:
        if (limit > 0) g = ref_below(g, limit), u = ref_within(u, limit);
        return g * ref_sigmoid(g) * u;
    case MOEK_GELU:             return ref_gelu(g) * u;
    case MOEK_GELU_TANH:        return ref_gelu_tanh(g) * u;
    case MOEK_SWIGLUOAI:
    case MOEK_SWIGLUOAI_UNINTERLEAVE:
        g = ref_below(g, limit);
        u = ref_within(u, limit);
        return g * ref_sigmoid(alpha * g) * (u + beta);
    case MOEK_SWIGLUSTEP:       return ref_below(g * ref_sigmoid(g), limit) * ref_within(u, limit);
    case MOEK_SITU:
        if (beta > 0) u = beta * tanh(u / beta);
        return alpha * tanh(g / alpha) * ref_sigmoid(g) * u;
    case MOEK_SILU_NO_MUL:      return g * ref_sigmoid(g);
    case MOEK_GELU_NO_MUL:      return ref_gelu(g);
    case MOEK_GELU_TANH_NO_MUL: return ref_gelu_tanh(g);
    case MOEK_RELU2_NO_MUL:     return g < 0 ? 0 : g * g;
    case MOEK_RELU_NO_MUL:      return g < 0 ? 0 : g;
    default:                    return NAN;
    }
}

/* Does y depend on alpha, beta or limit (which: 0, 1, 2)?  Asked of the formula itself. */
static inline int ref_act_depends(int act, int which)
{
    static const double points[][2] = { { 3, 2 }, { 0.5, 4 }, { -3, -2 } };
    int i, depends = 0;
    for (i = 0; i < 3; i++) {
        double of[3] = { 1, 1, 1 };
        const double g = points[i][0], u = points[i][1], y = ref_act(act, g, u, of[0], of[1], of[2]);
        of[which] = 0.75;
        depends |= ref_act(act, g, u, of[0], of[1], of[2]) != y;
    }
    return depends;
}
