/* ref.h -- what the kernels must compute: plain loops in double, written from moek.h and moek/ops.h, not from kernels.
 *
 * It shares nothing with them: numbers are made here by frexp and nearbyint.  What a format is, its descriptor says
 * (moek/format.h).  The functions take the structs of moek/ops.h with host pointers; up, down and combine write
 * doubles, before the rounding to T.
 *
 * Quantization is f32 arithmetic whose bits matter, so ref_quant does it in float, one operation a statement: no
 * product is followed by a sum, so that -ffp-contract cannot change it.  Not for -ffast-math, nor for x87. */
#ifndef REF_H
#define REF_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "formats.h"
#include "moek.h"

/* Compiled by nvcc, behind mem.h: up and down run on the GPU, if there is one.  (Not in the emulator.) */
#if defined(__CUDACC__) && !defined(MOEK_EMU) && defined(MEM_CUDA) && MEM_CUDA
#define REF_CUDA 1
#define REF_BOTH static inline __host__ __device__
#else
#define REF_CUDA 0
#define REF_BOTH static inline
#endif

#define REF_UNWRITTEN (-1e300)                         /* fill outputs with it to see which rows somebody owns */

/* Zeros; never NULL. */
static inline void *ref_alloc(size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    if (!p) abort();
    return p;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

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

/* ---- route ------------------------------------------------------------------------------------------------------- */

#define REF_MASKED (-(double)1e38f)                    /* a raw logit that is not finite */

static inline double ref_logit(const moek_route_args *a, int t, int e)
{
    const size_t i = (size_t)t * (a->logits_stride ? a->logits_stride : (size_t)a->experts) + (size_t)e;
    return a->logits_dtype == MOEK_DTYPE_F32 ? ((const float *)a->logits)[i] : ref_get_t(a->logits, i, a->logits_dtype);
}
static inline int ref_raw(const moek_route_args *a)
{
    return a->score == MOEK_SCORE_RAW || a->score == MOEK_SCORE_SPARSEMIXER;
}
static inline double ref_score_one(int score, double x)
{
    if (score == MOEK_SCORE_SIGMOID) return isnan(x) ? 0 : ref_sigmoid(x);
    if (score == MOEK_SCORE_SQRTSOFTPLUS) return isnan(x) || isinf(x) ? 0 : sqrt(x > 40 ? x : log1p(exp(x)));
    return isnan(x) || isinf(x) ? REF_MASKED : x;
}
/* s[experts] of a token.  Returns 0 if its logits have no softmax. */
static inline int ref_scores(const moek_route_args *a, int t, double *s)
{
    double top = -INFINITY, sum = 0;
    int e, spoiled = 0;
    for (e = 0; e < a->experts; e++) {
        const double x = ref_logit(a, t, e);
        s[e] = a->score == MOEK_SCORE_SOFTMAX ? x : ref_score_one(a->score, x);
        if (isnan(x) || x == INFINITY) spoiled = 1;
        if (x > top) top = x;
    }
    if (a->score != MOEK_SCORE_SOFTMAX) return 1;
    for (e = 0; e < a->experts; e++) sum += s[e] = spoiled || s[e] == -INFINITY ? 0 : exp(s[e] - top);
    for (e = 0; e < a->experts && sum > 0; e++) s[e] /= sum;
    return !spoiled;
}
/* What expert e is chosen by; -Inf: masked, at least by the bias. */
static inline double ref_choice(const moek_route_args *a, const double *s, int e)
{
    const double c = s[e] + (a->bias ? a->bias[e] : 0);
    return isnan(c) ? -INFINITY : c;
}
static inline int ref_is_masked(const moek_route_args *a, const double *s, int e)
{
    return (ref_raw(a) && s[e] <= REF_MASKED) || (!a->table && ref_choice(a, s, e) == -INFINITY);
}
/* score[g] of each group, for the choice of groups. */
static inline void ref_group_scores(const moek_route_args *a, const double *s, double *score)
{
    const int size = a->experts / a->groups;
    int g, i;
    for (g = 0; g < a->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (i = g * size; i < (g + 1) * size; i++) {
            const double c = ref_choice(a, s, i);
            if (c > best) second = best, best = c;
            else if (c > second) second = c;
        }
        score[g] = a->group_score == MOEK_GROUP_SCORE_TOP2 && size > 1 ? best + second : best;
        if (isnan(score[g])) score[g] = -INFINITY;
    }
}
/* allowed[experts]: 1 where the expert's group stays. */
static inline void ref_groups(const moek_route_args *a, const double *s, unsigned char *allowed)
{
    const int grouped = a->groups > 1;
    double score[1024];
    unsigned char stays[1024] = { 0 };
    int e, g, k;
    for (e = 0; e < a->experts; e++) allowed[e] = (unsigned char)!grouped;
    if (!grouped) return;
    ref_group_scores(a, s, score);
    for (k = 0; k < a->topk_groups; k++) {
        int best = -1;
        for (g = 0; g < a->groups; g++) if (!stays[g] && (best < 0 || score[g] > score[best])) best = g;
        stays[best] = 1;
    }
    for (e = 0; e < a->experts; e++) allowed[e] = stays[e / (a->experts / a->groups)];
}
/* weight of expert `at` by the rule of SPARSEMIXER; without expert `without` (or -1). */
static inline double ref_sparsemixer(const double *s, int experts, int at, int without)
{
    double sum = 0;
    int e;
    for (e = 0; e < experts; e++) {
        const double factor = fabs(s[e]) > s[at] ? fabs(s[e]) : s[at];
        if (e != without && s[at] - s[e] <= 0.02 * factor) sum += exp(s[e] - s[at]);  /* no 0 / 0 where s is 0 */
    }
    return 1 / sum;
}
/* w[topk] of given ids, before `shared`; id -1: nobody.  sound: what ref_scores returned. */
static inline void ref_route_weights(const moek_route_args *a, const double *s, const int32_t *ids, int sound,
                                     double *w)
{
    const int sigmoid = a->normalize == MOEK_NORM_SIGMOID || a->normalize == MOEK_NORM_SIGMOID_SUM;
    double sum = 0, top = -INFINITY;
    int k, counts[32];
    for (k = 0; k < a->topk; k++) {
        counts[k] = ids[k] >= 0 && !ref_is_masked(a, s, ids[k]);
        if (counts[k] && s[ids[k]] > top) top = s[ids[k]];
    }
    for (k = 0; k < a->topk; k++) {
        w[k] = 0;
        if (!counts[k]) continue;
        w[k] = s[ids[k]];
        if (a->score == MOEK_SCORE_SPARSEMIXER) w[k] = ref_sparsemixer(s, a->experts, ids[k], k ? ids[0] : -1);
        if (sigmoid) w[k] = ref_sigmoid(w[k]);
        if (a->normalize == MOEK_NORM_SOFTMAX) w[k] = exp(w[k] - top);
        sum += w[k];
    }
    if (a->normalize == MOEK_NORM_SUM || a->normalize == MOEK_NORM_SIGMOID_SUM) sum += a->eps;
    else if (a->normalize != MOEK_NORM_SOFTMAX) sum = 1;
    for (k = 0; k < a->topk; k++) {
        if (sum > 0) w[k] /= sum;
        if (ids[k] >= 0 && !sound) w[k] = NAN;
        w[k] *= a->scale * (a->expert_scale && ids[k] >= 0 ? a->expert_scale[ids[k]] : 1.0);
    }
}
/* The best by s + bias, lower ids first among equals. */
static inline void ref_pick(const moek_route_args *a, const double *s, const unsigned char *allowed, int32_t *ids)
{
    unsigned char taken[1024];
    int e, k;
    for (e = 0; e < a->experts; e++) taken[e] = !allowed[e];
    for (k = 0; k < a->topk; k++) {
        int best = -1;
        double c, most = 0;
        for (e = 0; e < a->experts; e++) {
            if (taken[e]) continue;
            c = ref_choice(a, s, e);
            if (best < 0 || c > most) best = e, most = c;
        }
        ids[k] = best;
        if (best >= 0) taken[best] = 1;
    }
}
/* ids[topk] by the table. */
static inline void ref_look_up(const moek_route_args *a, int t, int32_t *ids)
{
    const int32_t row = a->token_ids[t];
    int k;
    for (k = 0; k < a->topk; k++) {
        ids[k] = row < 0 || row >= a->table_rows ? -1 : a->table[(size_t)row * a->topk + k];
        if (ids[k] < 0 || ids[k] >= a->experts) ids[k] = -1;
    }
}
static inline void ref_route_token(const moek_route_args *a, int t, int32_t *ids, float *weights)
{
    double s[1024], w[1024];
    unsigned char allowed[1024];
    const int sound = ref_scores(a, t, s);
    int k;
    if (a->table) ref_look_up(a, t, ids);
    else ref_groups(a, s, allowed), ref_pick(a, s, allowed, ids);
    ref_route_weights(a, s, ids, sound, w);
    for (k = 0; k < a->topk; k++) weights[k] = (float)w[k];
    for (k = 0; k < a->shared; k++) {
        ids[a->topk + k] = a->experts + k;
        weights[a->topk + k] = a->shared_weights ? a->shared_weights[(size_t)t * a->shared + k] : a->shared_weight;
    }
}
static inline void ref_route(const moek_route_args *a)
{
    const int slots = a->topk + a->shared;
    int t, k;
    for (t = 0; t < a->tokens; t++) {
        const size_t to = (size_t)t * slots;
        if (a->is_padding && a->is_padding[t]) for (k = 0; k < slots; k++) a->ids[to + k] = -1, a->weights[to + k] = 0;
        else ref_route_token(a, t, a->ids + to, a->weights + to);
        for (k = 0; a->ids64 && k < slots; k++) a->ids64[to + k] = a->ids[to + k];
    }
}

/* ---- map, sort --------------------------------------------------------------------------------------------------- */

static inline void ref_map(const moek_map_args *a)
{
    int i;
    for (i = 0; i < a->tokens * a->topk; i++) {
        int32_t id;
        if (a->ids64) a->given[i] = a->ids64[i] < 0 || a->ids64[i] >= a->experts ? -1 : (int32_t)a->ids64[i];
        id = a->ids64 ? a->given[i] : a->ids[i];
        if (id < 0 || id >= a->experts || (a->is_padding && a->is_padding[i / a->topk])) id = -1;
        if (id >= 0 && a->replicas) {
            const uint32_t hash = (uint32_t)(a->first + i / a->topk) * 2654435769u;
            const int32_t n = a->replica_count[id];
            id = n < 1 || n > a->max_replicas ? -1 : a->replicas[(size_t)id * a->max_replicas + hash % (uint32_t)n];
        }
        if (id < 0 || id >= a->physical) id = -1;
        if (id >= 0 && a->load) a->load[id]++;
        if (id >= 0 && a->map) id = a->map[id];
        a->out[i] = id;
    }
}

static inline void ref_sort(const moek_sort_args *a)
{
    const int batched = a->rows_per_expert > 0;
    int e, i, at = 0, blocks = 0;
    for (i = 0; a->slot_row && i < a->slots; i++) a->slot_row[i] = -1;
    for (i = 0; i < a->zeros; i++) a->zero[i] = 0;
    for (e = 0; e < a->experts; e++) {
        int n = 0, row;
        if (!batched) a->offsets[e] = at;
        for (i = 0; i < a->slots; i++) {
            if (a->ids[i] != e || (batched && n == a->rows_per_expert)) continue;
            if (a->slot_row) a->slot_row[i] = (batched ? e * a->rows_per_expert : at) + n;
            if (!batched) a->order[at + n] = i;
            n++;
        }
        a->counts[e] = n;
        for (row = 0; !batched && a->block_expert && row < n; row += a->block_m) {
            a->block_expert[blocks] = e;
            a->block_row[blocks++] = at + row;
        }
        at += n;
    }
    if (batched) return;
    a->offsets[a->experts] = at;
    if (a->block_expert) *a->num_blocks = blocks;
}

/* ---- quant: float, see the top ----------------------------------------------------------------------------------- */

/* x: T, weighted and rounded to T; exact in a float. */
static inline float ref_quant_x(const moek_quant_args *a, int source, int column)
{
    const size_t stride = (size_t)(a->x_stride ? a->x_stride : a->cols);
    const float x = (float)ref_get_t(a->x, source * stride + column, a->dtype);
    float w, product;
    if (!a->row_weight) return x;
    w = (float)ref_round_t(a->row_weight[source], a->dtype);
    product = x * w;
    return (float)ref_round_t(product, a->dtype);
}
static inline int ref_quant_live(const moek_quant_args *a, int r)
{
    if (a->row_limit && r >= *a->row_limit) return 0;
    return !a->counts || r % a->rows_per_expert < a->counts[r / a->rows_per_expert];
}
/* The largest |x|, NaN passed over; Inf too if `finite`. */
static inline float ref_amax(const moek_quant_args *a, int source, int begin, int end, int finite)
{
    float most = 0;
    int j;
    for (j = begin; j < end; j++) {
        const float x = fabsf(ref_quant_x(a, source, j));
        if (x > most && !(finite && isinf(x))) most = x;
    }
    return most;
}
/* The same, but a NaN stays where the codes of x have none. */
static inline float ref_amax_or_nan(const moek_quant_args *a, const moek_format *f, int source, int begin, int end)
{
    int j;
    for (j = begin; j < end; j++)
        if (isnan(ref_quant_x(a, source, j)) && !ref_has_nan(ref_element(f->x, a->dtype))) return NAN;
    return ref_amax(a, source, begin, end, 0);
}
/* 2^ceil(log2(s)), kept below the 255 that UE8M0 means NaN by. */
static inline float ref_power_of_two(float s)
{
    return (float)ref_decode(&ref_numbers[REF_E8M0], ref_encode(&ref_numbers[REF_E8M0], s));
}
/* Of columns begin .. end - 1, as its type holds it. */
static inline float ref_group_scale(const moek_quant_args *a, const moek_format *f, int source, int begin, int end)
{
    const ref_number *const type = ref_scale_type(f->x_scale.type, a->dtype);
    float s = ref_amax(a, source, begin, end, 0);
    if (type->width == 32 && s < 1e-10f) s = 1e-10f;
    s = s / (float)ref_largest(ref_element(f->x, a->dtype));
    if (type->width < 32) return (float)ref_decode(type, ref_encode(type, s));
    if (!a->ue8m0) return s;
    if (s < 1e-10f) s = 1e-10f;
    return ref_power_of_two(s);
}
static inline void ref_put_group_scale(const moek_quant_args *a, const moek_format *f, int row, int g, float s)
{
    const ref_number *const type = ref_scale_type(f->x_scale.type, a->dtype);
    const int columns = f->x_scale.columns, groups = (a->group_offset + a->cols + columns - 1) / columns;
    int e;
    if (a->scale_layout == MOEK_SCALE_ROW) ref_put(type, a->scale, (size_t)row * groups + g, s);
    else if (a->scale_layout == MOEK_SCALE_COLUMN) ref_put(type, a->scale, (size_t)g * a->scale_stride + row, s);
    else {
        uint32_t *word = (uint32_t *)a->scale + (size_t)(g / 4) * a->scale_stride + row;
        frexpf(s, &e);                                 /* s = 2^(e - 1) */
        if (g % 4 == 0) *word = 0;
        *word |= (uint32_t)(e - 1 + 127) << (8 * (g % 4));
    }
}
/* What x is multiplied by to become an integer; 0 where f32 does not hold it. */
static inline float ref_integer_factor(const ref_number *x, float amax)
{
    const float factor = (float)(ref_largest(x) / (double)amax);       /* (a double holds more than twice the bits) */
    return isinf(factor) || isnan(factor) ? 0 : factor;
}
/* The e4m3 scale of a group under the scale g of all, and what x is multiplied by: both by f32 operations, which
 * doubles round right. */
static inline float ref_scale_under(const ref_number *x, const ref_number *type, float g, float amax, float *factor)
{
    const double most = ref_decode(&ref_numbers[REF_F32], 0x7f7fffff), sixth = (float)(1 / ref_largest(x));
    const float over = (float)(1 / (double)g), part = (float)(amax * sixth);
    const float under = (float)((isinf(over) || isnan(over) ? 0.0 : over) * part);
    const float s = isinf(amax) || isnan(amax) ? NAN : (float)ref_decode(type, ref_encode(type, under));
    const float product = (float)((double)s * g);
    const double inverse = 1 / (double)product;
    *factor = (float)(!(s > 0) ? 0 : inverse > most ? most : inverse);
    return s;
}
/* x / s; of one scale for all, by its reciprocal. */
static inline float ref_scaled_down(const moek_format *f, float x, float s)
{
    float reciprocal;
    if (!format_by_tensor(f)) return x / s;
    reciprocal = 1.0f / s;
    return isinf(x) ? NAN : isnan(x) ? x : isinf(reciprocal) ? 0 : x * reciprocal;
}
/* s: of the tensor. */
static inline void ref_quant_row(const moek_quant_args *a, const moek_format *f, int r, float s)
{
    const ref_number *const x = ref_element(f->x, a->dtype);
    const int source = r / a->source_div, row = a->target ? a->target[r] : r, columns = f->x_scale.columns;
    const float largest = (float)ref_largest(x), least = 1.0f / (largest * 512.0f);
    char *const q = (char *)a->q + (size_t)row * ref_bytes(x, (size_t)a->cols);
    float factor = 0;
    int j;
    if (format_by_row(f)) {
        const float amax = ref_amax_or_nan(a, f, source, 0, a->cols);
        s = amax / largest;
        if (x->kind == REF_SIGNED) factor = ref_integer_factor(x, amax);
        else if (s < least) s = least;
        ref_put(ref_scale_type(f->x_scale.type, a->dtype), a->scale, (size_t)row, s);
    }
    for (j = 0; j < a->cols; j++) {
        const float value = ref_quant_x(a, source, j);
        if (columns && (j == 0 || (a->group_offset + j) % columns == 0)) {
            const int g = (a->group_offset + j) / columns, end = columns * (g + 1) - a->group_offset;
            if (format_x_second(f))
                s = ref_scale_under(x, ref_scale_type(f->x_scale.type, a->dtype), a->static_scale[0],
                                    ref_amax_or_nan(a, f, source, j, end < a->cols ? end : a->cols), &factor);
            else s = ref_group_scale(a, f, source, j, end < a->cols ? end : a->cols);
            ref_put_group_scale(a, f, row, g, s);
        }
        if (!ref_has_nan(x)) ref_put(x, q, (size_t)j, (float)((double)value * factor));
        else ref_put(x, q, (size_t)j, format_quantizes(f) ? ref_scaled_down(f, value, s) : value);
    }
}
static inline void ref_quant(const moek_quant_args *a, const moek_format *f)
{
    float s = 0, m;
    int r;
    ref_tables_(f, a->dtype);
    if (format_by_tensor(f)) {
        for (r = 0; r < a->rows && !a->static_scale; r++) {
            if (!ref_quant_live(a, r)) continue;
            m = ref_amax(a, r / a->source_div, 0, a->cols, 1);
            if (m > s) s = m;
        }
        s = a->static_scale ? *a->static_scale : s / (float)ref_largest(ref_element(f->x, a->dtype));
        *(float *)a->scale = s;
    }
#ifdef _OPENMP
#pragma omp parallel for if (a->rows > 100)                            /* (no two rows have one target) */
#endif
    for (r = 0; r < a->rows; r++)
        if (ref_quant_live(a, r) && (!a->target || a->target[r] >= 0)) ref_quant_row(a, f, r, s);
}

/* ---- up, down ---------------------------------------------------------------------------------------------------- */

enum { REF_ALL, REF_GATE, REF_UP };                    /* rows of w: not gated, or of what */
/* size: the sum of |terms|, for error bounds; lost: of those that may count as 0. */
typedef struct ref_sum { double value, size, lost; } ref_sum;

/* to[k] = from[row][k]: once for all sums that the row is in.  row_bytes: 0 if rows lie side by side. */
static inline void ref_decode_row(const ref_number *n, const void *from, int row_bytes, size_t row, int columns,
                                  double *to)
{
    const double *const table = ref_table_(n);
    int k;
    from = (const char *)from + row * (row_bytes ? (size_t)row_bytes : ref_bytes(n, (size_t)columns));
    for (k = 0; k < columns; k++) to[k] = table[ref_code(n, from, (size_t)k)];
}
/* Groups of k, each with a scale, of `columns`; 0: one of all. */
static inline size_t ref_groups_of(const moek_gemm_args *a, int columns)
{
    return columns ? (size_t)((a->k_offset + a->k + columns - 1) / columns) : 1;
}
/* Row of scales, of all of them in their array, for row wrow of an expert's, where `share` rows have one. */
static inline size_t ref_scale_row(const moek_gemm_args *a, int share, int of, int expert, int wrow)
{
    const size_t blocks = (size_t)((a->n_offset + a->n + share - 1) / share), e = (size_t)expert;
    const int swapped = a->gate_first > a->up_first;
    if (of == REF_ALL || a->w_gate) return e * blocks + (size_t)((a->n_offset + wrow) / share);
    if (!a->scales_apart) return e * (size_t)((a->w_rows + share - 1) / share) + (size_t)(wrow / share);
    return e * 2 * blocks + ((of == REF_GATE) == swapped ? blocks : 0) + (size_t)((a->n_offset + wrow % a->n) / share);
}
/* What is behind the arguments of formats that have more; NULL: nothing. */
static inline const moek_gemm_more_args *ref_more(const moek_gemm_args *a, const moek_format *f)
{
    return f->second || f->zero || format_x_second(f) ? (const moek_gemm_more_args *)a : NULL;
}
/* The second scale of gate or up, or of all; 1: there is none. */
static inline double ref_second(const moek_gemm_args *a, const moek_format *f, int of, int expert)
{
    const moek_gemm_more_args *const more = ref_more(a, f);
    const int swapped = a->gate_first > a->up_first;
    if (!f->second) return 1;
    if (a->w_gate && of == REF_GATE) return more->gate_global_scale[expert];
    if (a->w_gate || of == REF_ALL) return more->w_global_scale[expert];
    return more->w_global_scale[2 * expert + ((of == REF_GATE) == swapped)];
}
/* w_k, row wrow of an expert's, less the zero points of its groups, if there are any. */
static inline void ref_less_zeros(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow,
                                  double *w_k)
{
    const moek_gemm_more_args *const more = ref_more(a, f);
    const ref_number *const number = ref_element(f->w, a->dtype);
    const int columns = f->w_scale.columns;
    const size_t row = (size_t)expert * (a->w_gate ? a->n : a->w_rows) + wrow;
    const void *const all = !more ? NULL : a->w_gate && of == REF_GATE ? more->gate_zero : more->w_zero;
    const char *const zeros = all ? (const char *)all + row * ref_bytes(number, ref_groups_of(a, columns)) : NULL;
    int k;
    for (k = 0; zeros && k < a->k; k++)
        w_k[k] -= ref_get(number, zeros, (size_t)(columns ? (a->k_offset + k) / columns : 0));
}
/* Of row wrow of an expert's and column k, counted from where the groups of k begin; 1: there are none. */
static inline double ref_w_scale_of(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    const moek_scale_shape *const s = &f->w_scale;
    const size_t w_row = (size_t)expert * (a->w_gate ? a->n : a->w_rows) + wrow;
    const size_t row = !s->rows ? (size_t)expert : s->rows == 1 ? w_row : ref_scale_row(a, s->rows, of, expert, wrow);
    const void *const scales = a->w_gate && of == REF_GATE ? a->gate_scale : a->w_scale;
    if (!s->type) return 1;
    return ref_get(ref_scale_type(s->type, a->dtype), scales,
                   row * ref_groups_of(a, s->columns) + (size_t)(s->columns ? k / s->columns : 0));
}
/* Where x stays T, rows of GPUs make T of weights that have a scale for some columns of a row (w - zero times the
 * scale, rounded once) and multiply those.  Set by the test of a row. */
static int ref_w_in_t;
/* Rows of Hopper put scales of w of fewer than 128 columns into e4m3.  Set by the test of a row.  Scales that are e4m3
 * themselves: w times its scale rounds to e4m3, times the power of 2 that brings the largest scale of 128 columns to 32
 * up to 60; and is 0 where that brings its scale below 2^-5.  ref_w_expanded: the largest of the whole row (expand). */
static int ref_w_in_e4m3, ref_w_expanded;
static inline int ref_rounded(const moek_format *f)
{
    return ref_w_in_e4m3 && f->w_scale.type == MOEK_SCALE_TYPE_E4M3 && format_quantizes(f);
}
static inline double ref_round_e4m3(double v)
{
    return ref_decode(&ref_numbers[REF_E4M3], ref_encode(&ref_numbers[REF_E4M3], v));
}
static inline void ref_fold_e4m3(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow,
                                 double *w_k)
{
    const int unit = ref_w_expanded ? a->k : 128;
    int k, first, power;
    for (first = 0; first < a->k; first += unit) {
        const int end = first + unit < a->k ? first + unit : a->k;
        double most = 0;
        for (k = first; k < end; k++) {
            const double s = ref_w_scale_of(a, f, of, expert, wrow, k);
            if (most == most && !(s <= most)) most = s;                /* a NaN stays: it spoils all 128 */
        }
        frexp(most == most ? most : 1, &power);        /* most: 0.5 up to 1 times 2^power */
        for (k = first; k < end; k++) {
            const double s = ldexp(ref_w_scale_of(a, f, of, expert, wrow, k), 6 - power);
            w_k[k] = most != most ? most : s < ldexp(1, -5) ? 0 : ldexp(ref_round_e4m3(w_k[k] * s), power - 6);
        }
    }
}
static inline int ref_folded(const moek_format *f)
{
    return ref_rounded(f) || (ref_w_in_t && f->w_scale.rows == 1 && f->w_scale.columns && !format_quantizes(f));
}
static inline void ref_fold(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, double *w_k)
{
    double scale = 1;
    int k;
    if (ref_rounded(f)) { ref_fold_e4m3(a, f, of, expert, wrow, w_k); return; }
    for (k = 0; ref_folded(f) && k < a->k; k++) {
        const int at = a->k_offset + k;
        if (!k || at % f->w_scale.columns == 0) scale = ref_w_scale_of(a, f, of, expert, wrow, at);
        w_k[k] = ref_round_t(w_k[k] * scale, a->dtype);
    }
}
/* What the products of column k are multiplied by. */
static inline double ref_w_scale(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    return ref_second(a, f, of, expert) * (ref_folded(f) ? 1 : ref_w_scale_of(a, f, of, expert, wrow, k));
}
static inline double ref_x_scale(const moek_gemm_args *a, const moek_format *f, int row, int k)
{
    const moek_scale_shape *const s = &f->x_scale;
    if (!s->type) return 1;
    return (format_x_second(f) ? ref_more(a, f)->a_global_scale[0] : 1.0) *
           ref_get(ref_scale_type(s->type, a->dtype), a->a_scale,
                   (s->rows ? (size_t)row : 0) * ref_groups_of(a, s->columns) +
                   (size_t)(s->columns ? k / s->columns : 0));
}
/* Columns of k that have the same scales on both sides; 0: all. */
static inline int ref_columns(const moek_format *f)
{
    const int w = f->w_scale.columns, x = f->x_scale.columns;
    return !w || (x && x < w) ? x : w;
}
/* Scales of w that are powers of 2, there, of the ref_w_unit columns with column k: terms of a scale up to this one may
 * count as 0.  It is below 2^-11 of the largest of them, or 2^-127.  Else -1. */
static int ref_w_unit = 128;                           /* 0: all columns of a row */
static inline double ref_may_lose(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    const int columns = f->w_scale.columns, unit = ref_w_unit ? ref_w_unit : a->k, first = k / unit * unit;
    double most = 0;
    int i;
    if (!ref_w_in_e4m3 || f->w_scale.type != MOEK_SCALE_TYPE_E8M0 || columns >= 128) return -1;
    for (i = first; i < first + unit && i < a->k; i += columns) {
        const double s = ref_w_scale_of(a, f, of, expert, wrow, i);
        if (s > most) most = s;
    }
    return ldexp(most, -12) > ldexp(1, -127) ? ldexp(most, -12) : ldexp(1, -127);
}
/* What the unit that multiplies adds to that: fp8 wgmma keeps 13 bits below its largest term, and drops the rest.
 * Set by the test of a row. */
static double ref_products_error;
/* What f32 sums of k terms may be off by, where the |terms| add up to 1.  The worst case is k * 2^-24; an eighth of it,
 * and some for the scales, is still far from what sums do (tensor cores truncate,
                                                            but add 8 or 16 products at a time). */
static inline double ref_f32_error(int k) { return (k / 16 + 16) * ldexp(1, -23) + ref_products_error; }

/* Sums are made of rows that are decoded before, each once: the same for a loop on the CPU and a kernel on a GPU.  What
 * a value is held in has all its bits: elements, and weights that are rounded to T or e4m3, are floats, too. */
#if REF_CUDA
typedef float ref_held;
#else
typedef double ref_held;
#endif
enum { REF_STRIP = REF_CUDA ? 8 : 32, REF_PIECES = 1024 };
/* A batch is at most so many held values of each side, and so many sums; or else one strip. */
#define REF_HELD ((size_t)1 << (REF_CUDA ? 24 : 20))
#define REF_OUT ((size_t)1 << (REF_CUDA ? 23 : 20))
/* Rows of a that belong to one expert, and columns of its w; out: where y of the first of both is. */
typedef struct ref_strip { int row, rows, column, columns; size_t out; } ref_strip;
typedef struct ref_batch {
    moek_gemm_args gemm;                               /* of it: n, k, k_offset, act, alpha, beta, limit */
    double error;                                      /* ref_f32_error */
    int up, sides, share, groups;                      /* sides: rows of w a column; share: columns of k a scale */
    int rows, columns, strips, most;                   /* in all; most: columns of a strip */
    ref_held *a_k, *w_k;                               /* [row][k], [column][side][k] */
    double *a_scale, *w_scale;                         /* [row][group], [column][side][group] */
    double *bias;                                      /* [column][side]; -0: none, which changes no sum */
    unsigned char *lost;                               /* as w_scale: may terms of the group count as 0? */
    ref_strip *strip;
    double *y, *slack;                                 /* see strip */
    size_t out;                                        /* how many */
} ref_batch;

REF_BOTH int ref_group_end(const ref_batch *b, int k0)
{
    const int k = b->gemm.k, at = b->gemm.k_offset + k0;
    const int end = b->share ? (at / b->share + 1) * b->share - b->gemm.k_offset : k;
    return end < k ? end : k;
}
/* A group's sums, scaled. */
REF_BOTH void ref_add_group(ref_sum *sum, double part, double size, double scale, int lost)
{
    sum->value += part * scale;
    sum->size += size * fabs(scale);
    if (lost) sum->lost += size * fabs(scale);
}
REF_BOTH void ref_add_bias(ref_sum *sum, double bias)
{
    sum->value += bias;
    sum->size += fabs(bias);
}
/* sum over k of a[row][k] * w[w_row][k], scaled, plus bias; w_row: 2 * column + side, if there are two. */
static inline ref_sum ref_dot(const ref_batch *b, size_t row, size_t w_row)
{
    const ref_held *const a_k = b->a_k + row * b->gemm.k, *const w_k = b->w_k + w_row * b->gemm.k;
    const double *const a_scale = b->a_scale + row * b->groups, *const w_scale = b->w_scale + w_row * b->groups;
    ref_sum sum = { 0, 0, 0 };
    int k0, k, end, g = 0;
    for (k0 = 0; k0 < b->gemm.k; k0 = end, g++) {
        double part = 0, size = 0;
        end = ref_group_end(b, k0);
#ifdef _OPENMP
#pragma omp simd reduction(+ : part, size)
#endif
        for (k = k0; k < end; k++) {
            const double term = (double)a_k[k] * w_k[k];
            part += term;
            size += fabs(term);
        }
        ref_add_group(&sum, part, size, a_scale[g] * w_scale[g], b->lost[w_row * b->groups + g]);
    }
    ref_add_bias(&sum, b->bias[w_row]);
    return sum;
}
/* The same of all rows of a strip. */
REF_BOTH void ref_dots(const ref_batch *b, const ref_strip *s, size_t w_row, ref_sum *sum)
{
    const ref_held *const w_k = b->w_k + w_row * b->gemm.k, *a_k[REF_STRIP];
    const double *const w_scale = b->w_scale + w_row * b->groups;
    int i, k0, k, end, g = 0;
    for (i = 0; i < REF_STRIP; i++) {                  /* (beyond the last row: the last once more) */
        a_k[i] = b->a_k + (size_t)(s->row + (i < s->rows ? i : s->rows - 1)) * b->gemm.k;
        sum[i].value = sum[i].size = sum[i].lost = 0;
    }
    for (k0 = 0; k0 < b->gemm.k; k0 = end, g++) {
        double part[REF_STRIP] = { 0 }, size[REF_STRIP] = { 0 };
        end = ref_group_end(b, k0);
        for (k = k0; k < end; k++)
            for (i = 0; i < REF_STRIP; i++) {
                const double term = (double)a_k[i][k] * w_k[k];
                part[i] += term;
                size[i] += fabs(term);
            }
        for (i = 0; i < REF_STRIP; i++) {
            const size_t row = (size_t)(s->row + (i < s->rows ? i : s->rows - 1));
            ref_add_group(&sum[i], part[i], size[i], b->a_scale[row * b->groups + g] * w_scale[g],
                          b->lost[w_row * b->groups + g]);
        }
    }
    for (i = 0; i < REF_STRIP; i++) ref_add_bias(&sum[i], b->bias[w_row]);
}

/* out of up before rounding; g: the sum for the gate or only value, u: for the up value; *slack: how far f32 arithmetic
 * may be from it, if sums are off by `e` of their |terms|. */
REF_BOTH double ref_up_one(const moek_gemm_args *a, ref_sum g, ref_sum u, double e, double *slack)
{
    const int gated = ref_gated(a->act);
    const double y = ref_act(a->act, g.value, u.value, a->alpha, a->beta, a->limit);
    const int gelu = a->act == MOEK_GELU || a->act == MOEK_GELU_NO_MUL || a->act == MOEK_GELU_TANH ||
        a->act == MOEK_GELU_TANH_NO_MUL;
    int i;
    *slack = 0;
    for (i = 0; i < 4; i++) {                          /* what the errors of g and u do to y */
        const double of_g = e * g.size + g.lost, of_u = e * u.size + u.lost;
        const double moved = ref_act(a->act, g.value + (i & 1 ? of_g : -of_g), u.value + (i & 2 ? of_u : -of_u),
                                     a->alpha, a->beta, a->limit);
        if (fabs(moved - y) > *slack) *slack = fabs(moved - y);
    }
    *slack += ldexp(fabs(y), -18);                     /* f32 exp, tanh, erf and the products after them */
    if (gelu) *slack += ldexp(fabs(g.value) * (gated ? fabs(u.value) : 1), -22);       /* 1 + erf cancels for g < 0 */
    return y;
}
REF_BOTH double ref_down_one(ref_sum sum, double e, double *slack)
{
    *slack = sum.size * e + sum.lost;
    return sum.value;
}
/* y and slack of row i and column j of a strip. */
REF_BOTH void ref_put_sums(const ref_batch *b, const ref_strip *s, int i, int j, ref_sum g, ref_sum u)
{
    const size_t at = s->out + (size_t)i * s->columns + j;
    double *const slack = &b->slack[at];
    b->y[at] = b->up ? ref_up_one(&b->gemm, g, u, b->error, slack) : ref_down_one(g, b->error, slack);
}
/* Column j of a strip, as the kernel makes it. */
REF_BOTH void ref_strip_column(const ref_batch *b, const ref_strip *s, int j)
{
    const size_t w_row = (size_t)(s->column + j) * b->sides;
    ref_sum g[REF_STRIP], u[REF_STRIP];
    int i;
    ref_dots(b, s, w_row, g);
    for (i = 0; i < REF_STRIP; i++) u[i].value = u[i].size = u[i].lost = 0;
    if (b->sides > 1) ref_dots(b, s, w_row + 1, u);
    for (i = 0; i < REF_STRIP; i++) if (i < s->rows) ref_put_sums(b, s, i, j, g[i], u[i]);
}
static inline void ref_on_cpu(const ref_batch *b)
{
    int s, j;
    for (s = 0; s < b->strips; s++) {
        const ref_strip *const at = &b->strip[s];
#ifdef _OPENMP
#pragma omp parallel for
#endif
        for (j = 0; j < at->columns; j++) {
            const size_t w_row = (size_t)(at->column + j) * b->sides;
            const ref_sum zero = { 0, 0, 0 };
            int i;
            for (i = 0; i < at->rows; i++) {
                const ref_sum g = ref_dot(b, (size_t)(at->row + i), w_row);
                ref_put_sums(b, at, i, j, g, b->sides > 1 ? ref_dot(b, (size_t)(at->row + i), w_row + 1) : zero);
            }
        }
    }
}
/* Its arrays, one behind the other from `base`; what is computed comes last.  Returns bytes, and of them those before
 * y. */
static inline void *ref_place_(char *base, size_t *at, size_t bytes)
{
    void *const p = base ? base + *at : NULL;
    *at += (bytes + 15) / 16 * 16;
    return p;
}
static inline size_t ref_places(ref_batch *b, void *memory, size_t *inputs)
{
    const size_t rows = (size_t)b->rows, w_rows = (size_t)b->columns * b->sides, groups = (size_t)b->groups;
    char *const base = (char *)memory;                 /* NULL: only the sizes */
    size_t at = 0;
    b->a_k = (ref_held *)ref_place_(base, &at, rows * b->gemm.k * sizeof(ref_held));
    b->w_k = (ref_held *)ref_place_(base, &at, w_rows * b->gemm.k * sizeof(ref_held));
    b->a_scale = (double *)ref_place_(base, &at, rows * groups * sizeof(double));
    b->w_scale = (double *)ref_place_(base, &at, w_rows * groups * sizeof(double));
    b->bias = (double *)ref_place_(base, &at, w_rows * sizeof(double));
    b->lost = (unsigned char *)ref_place_(base, &at, w_rows * groups);
    b->strip = (ref_strip *)ref_place_(base, &at, (size_t)b->strips * sizeof(ref_strip));
    *inputs = at;
    b->y = (double *)ref_place_(base, &at, b->out * sizeof(double));
    b->slack = (double *)ref_place_(base, &at, b->out * sizeof(double));
    return at;
}
#if REF_CUDA
static __global__ void ref_kernel(const __grid_constant__ ref_batch b)
{
    const int j = (int)(blockIdx.y * blockDim.x + threadIdx.x), s = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    if (s < b.strips && j < b.strip[s].columns) ref_strip_column(&b, &b.strip[s], j);
}
/* Of the host (page-locked) or the device, at least so many bytes; the next batch gets the same again. */
static inline void *ref_memory(int device, size_t bytes)
{
    static struct { void *at; size_t bytes; } has[2];
    if (has[device].bytes >= bytes) return has[device].at;
    bytes += bytes / 2;
    if (has[device].at) mem_must(device ? cudaFree(has[device].at) : cudaFreeHost(has[device].at));
    mem_must(device ? cudaMalloc(&has[device].at, bytes) : cudaMallocHost(&has[device].at, bytes));
    has[device].bytes = bytes;
    return has[device].at;
}
static inline void ref_on_gpu(const ref_batch *b)
{
    ref_batch there = *b;
    const dim3 threads(32, 4), blocks((b->strips + 3) / 4, (b->most + 31) / 32);
    size_t inputs, all = ref_places(&there, NULL, &inputs);
    void *const device = ref_memory(1, all);
    ref_places(&there, device, &inputs);
    mem_must(cudaMemcpy(device, b->a_k, inputs, cudaMemcpyHostToDevice));
    ref_kernel<<<blocks, threads>>>(there);
    mem_must(cudaGetLastError());
    mem_must(cudaMemcpy(b->y, there.y, all - inputs, cudaMemcpyDeviceToHost));
}
static inline int ref_has_gpu(void)
{
    static int has;                                    /* 1: no, 2: yes */
    if (!has) has = 1 + mem_can_run(80);
    return has == 2;
}
#endif
/* b, placed in host memory; `own`: by the kernel's code, where it does not run on a GPU, too. */
static inline void ref_sums(const ref_batch *b, int own)
{
    int s, j;
#if REF_CUDA
    if (ref_has_gpu()) { ref_on_gpu(b); return; }
#endif
    if (!own) { ref_on_cpu(b); return; }
    for (s = 0; s < b->strips; s++)
        for (j = 0; j < b->strip[s].columns; j++) ref_strip_column(b, &b->strip[s], j);
}
static inline void *ref_batch_memory(size_t bytes)
{
#if REF_CUDA
    if (ref_has_gpu()) return ref_memory(0, bytes);
#endif
    return ref_alloc(bytes);
}
static inline void ref_batch_free(void *memory)
{
#if REF_CUDA
    if (ref_has_gpu()) return;                         /* (kept for the next one) */
#endif
    free(memory);
}

/* A part of one expert's rows and columns, as the batch has it: from sorted row `first`, and column j, on. */
typedef struct ref_piece { int expert, first, rows, row, j, columns, column; size_t out; } ref_piece;
typedef struct ref_pieces { ref_piece of[REF_PIECES]; int count; } ref_pieces;

static inline void ref_hold(const double *from, int k, ref_held *to)
{
    int i;
    for (i = 0; i < k; i++) to[i] = (ref_held)from[i];
}
/* Row p of those that are sorted. */
static inline void ref_a_row_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int p, size_t row)
{
    const int from = a->a_order ? a->a_order[p] / a->a_div : p;
    double *const a_k = (double *)ref_alloc((size_t)a->k * sizeof *a_k);
    int k0, g = 0;
    ref_decode_row(ref_element(f->x, a->dtype), a->a, a->a_row_bytes, (size_t)from, a->k, a_k);
    ref_hold(a_k, a->k, b->a_k + row * a->k);
    for (k0 = 0; k0 < a->k; k0 = ref_group_end(b, k0), g++)
        b->a_scale[row * b->groups + g] = ref_x_scale(a, f, from, a->k_offset + k0);
    free(a_k);
}
/* Row wrow of w, or of gate or up in it, to row w_row of the batch. */
static inline void ref_w_row_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int of, int expert,
                              int wrow, size_t w_row)
{
    const int gate = a->w_gate && of == REF_GATE;
    const size_t row = (size_t)expert * (a->w_gate ? a->n : a->w_rows) + wrow;
    const void *const bias = gate ? a->gate_bias : a->bias;
    double *const w_k = (double *)ref_alloc((size_t)a->k * sizeof *w_k), lost = -1;
    int k0, g = 0;
    if (f->only_blocks) block_row(f, gate ? a->w_gate : a->w, row, a->k, w_k);
    else ref_decode_row(ref_element(f->w, a->dtype), gate ? a->w_gate : a->w, 0, row, a->k, w_k);
    ref_less_zeros(a, f, of, expert, wrow, w_k);
    ref_fold(a, f, of, expert, wrow, w_k);
    ref_hold(w_k, a->k, b->w_k + w_row * a->k);
    for (k0 = 0; k0 < a->k; k0 = ref_group_end(b, k0), g++) {
        const int at = a->k_offset + k0;
        b->w_scale[w_row * b->groups + g] = ref_w_scale(a, f, of, expert, wrow, at);
        if (!k0 || (ref_w_unit && at % ref_w_unit == 0)) lost = ref_may_lose(a, f, of, expert, wrow, at);
        b->lost[w_row * b->groups + g] = lost >= 0 && ref_w_scale_of(a, f, of, expert, wrow, at) <= lost;
    }
    b->bias[w_row] = bias ? ref_get_t(bias, row, a->dtype) : -0.0;
    free(w_k);
}
/* Column j of up or down: its row of w, or two. */
static inline void ref_w_column_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int expert, int j,
                                 size_t column)
{
    const int gated = b->sides > 1, apart = gated && a->w_gate, step = apart ? 1 : a->w_step;
    const int gate_row = !gated || apart ? j : a->gate_first + j * step;
    ref_w_row_(b, a, f, gated ? REF_GATE : REF_ALL, expert, gate_row, column * b->sides);
    if (gated) ref_w_row_(b, a, f, REF_UP, expert, apart ? j : a->up_first + j * step, column * b->sides + 1);
}
static inline void ref_strips_(const ref_batch *b, const ref_pieces *pieces)
{
    int i, r, s = 0;
    for (i = 0; i < pieces->count; i++) {
        const ref_piece *const piece = &pieces->of[i];
        for (r = 0; r < piece->rows; r += REF_STRIP) {
            ref_strip *const strip = &b->strip[s++];
            strip->row = piece->row + r, strip->rows = piece->rows - r < REF_STRIP ? piece->rows - r : REF_STRIP;
            strip->column = piece->column, strip->columns = piece->columns;
            strip->out = piece->out + (size_t)r * piece->columns;
        }
    }
}
/* Sums of all pieces, to y and slack as ref_gemm_ has them; none is left. */
static inline void ref_flush_(ref_batch *b, ref_pieces *pieces, const moek_gemm_args *a, const moek_format *f,
                              double *y, double *slack)
{
    int *const of_column = (int *)ref_alloc(((size_t)b->columns + b->rows) * sizeof *of_column);
    int *const of_row = of_column + b->columns;
    void *memory;
    size_t inputs;
    int i, j, r;
    for (i = 0; i < pieces->count; i++) {
        const ref_piece *const piece = &pieces->of[i];
        for (j = 0; j < piece->columns; j++) of_column[piece->column + j] = i;
        for (r = 0; r < piece->rows; r++) of_row[piece->row + r] = i;
    }
    memory = ref_batch_memory(ref_places(b, NULL, &inputs));
    ref_places(b, memory, &inputs);
    ref_strips_(b, pieces);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 8)
#endif
    for (j = 0; j < b->columns + b->rows; j++) {       /* rows of w, then of a */
        const ref_piece *const piece = &pieces->of[of_column[j]];
        const int at = j - b->columns;
        if (at < 0) ref_w_column_(b, a, f, piece->expert, piece->j + j - piece->column, (size_t)j);
        else ref_a_row_(b, a, f, piece->first + at - piece->row, (size_t)at);
    }
    ref_sums(b, 0);
#ifdef _OPENMP
#pragma omp parallel for if (b->out > 100000)
#endif
    for (r = 0; r < b->rows; r++) {
        const ref_piece *const piece = &pieces->of[of_row[r]];
        const int p = piece->first + r - piece->row;
        const size_t to = (size_t)(a->out_order ? a->out_order[p] : p) * a->n + piece->j;
        const size_t from = piece->out + (size_t)(r - piece->row) * piece->columns, bytes = piece->columns * sizeof *y;
        memcpy(y + to, b->y + from, bytes);
        if (slack) memcpy(slack + to, b->slack + from, bytes);
    }
    ref_batch_free(memory);
    free(of_column);
    b->rows = b->columns = b->strips = b->most = pieces->count = 0;
    b->out = 0;
}
static inline void ref_add_piece_(ref_batch *b, ref_pieces *pieces, int expert, int first, int rows, int j, int columns)
{
    ref_piece *const piece = &pieces->of[pieces->count++];
    piece->expert = expert, piece->first = first, piece->rows = rows, piece->row = b->rows;
    piece->j = j, piece->columns = columns, piece->column = b->columns, piece->out = b->out;
    b->rows += rows, b->columns += columns, b->strips += (rows + REF_STRIP - 1) / REF_STRIP;
    b->out += (size_t)rows * columns;
    if (columns > b->most) b->most = columns;
}
static inline ref_batch ref_batch_of(const moek_gemm_args *a, int up, int share)
{
    ref_batch b;
    memset(&b, 0, sizeof b);
    b.gemm = *a, b.up = up, b.share = share;
    b.sides = 1 + (up && ref_gated(a->act)), b.error = ref_f32_error(a->k);
    b.groups = share ? (a->k_offset + a->k + share - 1) / share - a->k_offset / share : 1;
    return b;
}
/* Of so many, at once; not too few. */
static inline int ref_at_once_(int all, size_t fit)
{
    const size_t least = REF_STRIP, some = fit < least ? least : fit;
    return all < 1 ? 1 : (size_t)all < some ? all : (int)some;
}
/* y and slack (or NULL): rows of n doubles, indexed as `out`; rows that nobody owns are left alone.  Of formats with a
 * second scale (of w or x) or zero points, a is the first part of a moek_gemm_more_args. */
static inline void ref_gemm_(const moek_gemm_args *a, const moek_format *f, int up, double *y, double *slack)
{
    const int R = a->rows_per_expert;
    ref_batch b = ref_batch_of(a, up, ref_columns(f));
    const size_t w_k = (size_t)a->k * b.sides;
    ref_pieces *const pieces = (ref_pieces *)ref_alloc(sizeof *pieces);
    int e, first, j;
    ref_tables_(f, a->dtype);
    for (e = 0; e < a->experts; e++) {
        const int begin = R ? e * R : a->offsets[e], end = R ? begin + a->counts[e] : a->offsets[e + 1];
        const int rows = ref_at_once_(end - begin, REF_HELD / a->k);
        const int columns = ref_at_once_(ref_at_once_(a->n, REF_HELD / w_k), REF_OUT / rows);
        for (j = 0; j < a->n; j += columns)
            for (first = begin; first < end; first += rows) {
                const int some = end - first < rows ? end - first : rows;
                const int wide = a->n - j < columns ? a->n - j : columns;
                if (pieces->count == REF_PIECES || (pieces->count && (b.rows + (size_t)some) * a->k > REF_HELD) ||
                    (pieces->count && (b.columns + (size_t)wide) * w_k > REF_HELD) ||
                    (pieces->count && b.out + (size_t)some * wide > REF_OUT))
                    ref_flush_(&b, pieces, a, f, y, slack);
                ref_add_piece_(&b, pieces, e, first, some, j, wide);
            }
    }
    if (pieces->count) ref_flush_(&b, pieces, a, f, y, slack);
    free(pieces);
}
static inline void ref_up(const moek_gemm_args *a, const moek_format *f, double *y, double *slack)
{
    ref_gemm_(a, f, 1, y, slack);
}
static inline void ref_down(const moek_gemm_args *a, const moek_format *f, double *y, double *slack)
{
    ref_gemm_(a, f, 0, y, slack);
}

/* ---- repack ------------------------------------------------------------------------------------------------------ */

/* Row j as a tiled one. */
static inline int ref_tiled_row_(const moek_repack_args *a, int j)
{
    const int low = a->gate_first < a->up_first ? a->gate_first : a->up_first, high = a->gate_first + a->up_first - low;
    const int other = a->w_step == 1 ? j >= high : (j - high) % 2 == 0;
    const int i = a->w_rows > a->n ? (j - (other ? high : low)) / a->w_step : 0;
    return a->w_rows > a->n ? i / 8 * 16 + (other ? 8 : 0) + i % 8 : j;    /* row i of what lies first, or the other */
}
/* The same for activations of 8 bits, code by code. */
static inline void ref_fragments_8_(const moek_repack_args *a)
{
    static const uint8_t places[8] = { 0, 3, 1, 2, 4, 5, 6, 7 }, magnitudes[8] = { 0, 2, 3, 1, 4, 5, 6, 7 };
    const size_t columns = a->row_bytes * 2, w_rows = (size_t)a->w_rows;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, k;
    int j;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (k = 0; k < columns; k++) {
                const int row = ref_tiled_row_(a, j), other = row / 8 % 2, column = (int)(k % 4);
                const size_t unit = (e * (w_rows / 64) + (size_t)row / 64) * (columns / 64) + k / 64;
                const size_t q = a->columns == 16 ? k / 16 % 4 : k % 16 / 4;
                const size_t i = a->columns == 16 ? k % 16 / 4 : k / 16 % 4;
                const size_t lane = (size_t)(row / 16 % 4 * 32 + row % 8 * 4) + q, word = (unit * 128 + lane) * 4 + i;
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + k / 2;
                const int shift = (int)(k % 2) * 4, e2m1 = a->codes == MOEK_ELEMENT_E2M1;
                uint8_t *const tiled = a->back ? (uint8_t *)from + word * 4 : to + word * 4;
                uint8_t *const low = tiled + column / 2 + 2 * other, *const high = tiled + column;
                unsigned code = from[plain] >> shift & 15;
                if (e2m1 && a->back) {
                    code = magnitudes[*low >> column % 2 * 4 & 7] | (*high >> (3 + 4 * other) & 1) << 3;
                } else if (e2m1) {
                    *low |= (uint8_t)(places[code & 7] << column % 2 * 4);
                    *high |= (uint8_t)(code >> 3 << (3 + 4 * other));
                } else if (a->back) {
                    code = *high >> 4 * other & 15;
                    code = code % 2 ? 7 - code / 2 : 8 + code / 2;
                } else {
                    *high |= (uint8_t)((code < 8 ? 1 + 2 * (7 - code) : 2 * (code - 8)) << 4 * other);
                }
                if (a->back) to[plain] |= (uint8_t)(code << shift);
            }
}
/* Codes of 8 bits. */
static inline void ref_fragments_of_bytes_(const moek_repack_args *a)
{
    const size_t columns = a->row_bytes, w_rows = (size_t)a->w_rows;
    size_t e, k;
    int j;
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (k = 0; k < columns; k++) {
                const size_t row = (size_t)ref_tiled_row_(a, j), in16 = k % 16;
                const size_t unit = (e * (w_rows / 64) + row / 64) * (columns / 32) + k / 32;
                const size_t lane = row / 16 % 4 * 32 + row % 8 * 4 + in16 % 8 / 2;
                const size_t word = (unit * 128 + lane) * 4 + k / 16 % 2 * 2 + row / 8 % 2;
                const size_t plain = (e * w_rows + (size_t)j) * columns + k, tiled = word * 4 + in16 / 8 * 2 + k % 2;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
}
/* Where bit b of a code goes, of those that a lane has of 16 columns: the word of two, and the bit in it.  second: of
 * the other 16 columns of 32; odd: the column; number: 0 up to 3. */
typedef struct ref_bit_place { unsigned char word, bit; } ref_bit_place;
static inline ref_bit_place ref_bit_place_of(const moek_repack_args *a, int second, int odd, int number, int b)
{
    static const uint8_t e2m1_bit[4] = { 6, 7, 8, 15 }, e2m1_right[2][4] = { { 0, 4, 10, 14 }, { 2, 6, 12, 8 } };
    ref_bit_place to;
    int bit = odd * 16 + 4 * number + b, word = second;
    if (a->codes == MOEK_ELEMENT_E2M1) {
        bit = (odd * 16 + e2m1_bit[b] + 32 - e2m1_right[second][number]) % 32;
        if (number == 3) word = !(bit % 16 < 2 || bit % 16 == 9 || bit % 16 == 10);
    }
    to.word = (unsigned char)word, to.bit = (unsigned char)bit;
    return to;
}
/* Code by code, bit by bit, of one expert's row j and columns first .. end - 1; place: [second][odd][number][bit]. */
static inline void ref_fragments_part_(const moek_repack_args *a, const ref_bit_place *place, size_t e, int j,
                                       size_t first, size_t end)
{
    const size_t columns = a->row_bytes * 2, w_rows = (size_t)a->w_rows, row = (size_t)ref_tiled_row_(a, j);
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t k, b;
    for (k = first; k < end; k++) {
        const size_t in16 = k % 16, number = row / 8 % 2 + in16 / 8 * 2;
        const size_t unit = (e * (w_rows / 64) + row / 64) * (columns / 64) + k / 64;
        const size_t lane = row / 16 % 4 * 32 + row % 8 * 4 + in16 % 8 / 2;
        const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + k / 2;
        const size_t word = (unit * 128 + lane) * 4 + k / 32 % 2 * 2;
        const ref_bit_place *const at = place + (k / 16 % 2 * 8 + k % 2 * 4 + number) * 4;
        for (b = 0; b < 4; b++) {
            const size_t tiled = (word + at[b].word) * 4 + at[b].bit / 8u, in_byte = k % 2 * 4 + b;
            if (a->back) to[plain] |= (uint8_t)((from[tiled] >> at[b].bit % 8 & 1) << in_byte);
            else to[tiled] |= (uint8_t)((from[plain] >> in_byte & 1) << at[b].bit % 8);
        }
    }
}
/* (No two parts of 64 columns have a byte in common, rows have.) */
static inline void ref_fragments_(const moek_repack_args *a)
{
    const int columns = (int)a->row_bytes * 2;
    ref_bit_place place[64];
    int part;
    for (part = 0; part < 64; part++)
        place[part] = ref_bit_place_of(a, part / 32, part / 16 % 2, part / 4 % 4, part % 4);
    memset(a->to, 0, (size_t)a->experts * a->w_rows * a->row_bytes);
#ifdef _OPENMP
#pragma omp parallel for if (columns % 64 == 0)
#endif
    for (part = 0; part < columns; part += 64) {
        const int end = part + 64 < columns ? part + 64 : columns;
        int e, j;
        for (e = 0; e < a->experts; e++)
            for (j = 0; j < a->w_rows; j++) ref_fragments_part_(a, place, (size_t)e, j, (size_t)part, (size_t)end);
    }
}
static inline void ref_tiled_scales_(const moek_repack_args *a)
{
    const size_t w_rows = (size_t)a->w_rows, size = (size_t)a->scale_bytes, group = (size_t)a->group;
    size_t e, b;
    int j;
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (b = 0; b < a->row_bytes; b++) {
                const size_t row = (size_t)ref_tiled_row_(a, j), unit = b / group, scale = b % group / size;
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + b;
                size_t tiled = (e * (w_rows / 64) + row / 64) * (a->row_bytes / group) + unit;
                tiled = ((tiled * 4 + row / 16 % 4) * 8 + row % 8) * (group / size) + scale;
                tiled = (tiled * 2 + row / 8 % 2) * size + b % size;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
}
/* Zero points of 4 bits, one by one. */
static inline void ref_tiled_zeros_(const moek_repack_args *a)
{
    const size_t w_rows = (size_t)a->w_rows, group = (size_t)a->group;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, g;
    int j;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (g = 0; g < 2 * a->row_bytes; g++) {
                const size_t row = (size_t)ref_tiled_row_(a, j);
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + g / 2;
                const size_t unit = (e * (w_rows / 64) + row / 64) * (2 * a->row_bytes / group) + g / group;
                const size_t tiled = ((unit * 4 + row / 16 % 4) * 8 + row % 8) * group + g % group;
                const int at = g % 2 ? 4 : 0, tiled_at = row / 8 % 2 ? 4 : 0;
                if (a->back) to[plain] |= (uint8_t)((from[tiled] >> tiled_at & 15) << at);
                else to[tiled] |= (uint8_t)((from[plain] >> at & 15) << tiled_at);
            }
}
/* Panels: nibble by nibble, and every byte has two. */
static inline void ref_panels_(const moek_repack_args *a)
{
    const size_t nibbles = 2 * a->row_bytes, w_rows = (size_t)a->w_rows;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, i;
    int row;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (row = 0; row < a->w_rows; row++)              /* of the order of panels */
            for (i = 0; i < nibbles; i++) {
                const int gated = a->w_rows > a->n, first = row / 16 % 2 ? a->up_first : a->gate_first;
                const size_t j = (size_t)(gated ? first + (row / 32 * 16 + row % 16) * a->w_step : row);
                const size_t panel = (e * (w_rows / 16) + (size_t)(row / 16)) * 16 * nibbles, r = (size_t)(row % 16);
                const size_t each = 2 * (size_t)a->group, c = i % 32;
                const size_t plain = (e * w_rows + j) * nibbles + i;
                const size_t in = a->zeros ? panel + (i * 8 + r % 8) * 2 + r / 8
                                : a->codes ? panel + ((i / 32 * 4 + c % 16 / 4) * 64 + r * 4 + c % 4) * 2 + c / 16
                                : panel + (i / each * 16 + r) * each + i % each;
                const size_t source = a->back ? in : plain, target = a->back ? plain : in;
                to[target / 2] |= (uint8_t)((from[source / 2] >> 4 * (source % 2) & 15) << 4 * (target % 2));
            }
}
static inline void ref_repack(const moek_repack_args *a)
{
    const size_t steps = a->row_bytes / 128, w_rows = (size_t)a->w_rows;
    size_t e, b;
    int j;
    if (a->panels) { ref_panels_(a); return; }
    if (a->codes == MOEK_ELEMENT_E4M3 || a->codes == MOEK_ELEMENT_S8) { ref_fragments_of_bytes_(a); return; }
    if (a->codes && a->x == MOEK_ELEMENT_E4M3) { ref_fragments_8_(a); return; }
    if (a->codes) { ref_fragments_(a); return; }
    if (a->zeros) { ref_tiled_zeros_(a); return; }
    if (a->group) { ref_tiled_scales_(a); return; }
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++) {
            const int to = ref_tiled_row_(a, j);
            for (b = 0; b < a->row_bytes; b++) {
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + b;
                const size_t tiled = ((e * steps + b / 128) * w_rows + (size_t)to) * 128 + b % 128;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
        }
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

/* codes, scales: as checkpoints have them (a->w, a->w_scale are not read).  Code by code; the scales of a block, or of
 * a row, are looked through for each of its rows anew. */
static inline double ref_expand_scale_(const moek_expand_args *a, const uint8_t *scales, size_t row, int k)
{
    const size_t groups = (size_t)a->k / (size_t)a->columns;
    return ref_decode(&ref_numbers[a->columns == 16 ? REF_E4M3 : REF_E8M0],
                      scales[row * groups + (size_t)(k / a->columns)]);
}
static inline void ref_expand(const moek_expand_args *a, const uint8_t *codes, const uint8_t *scales)
{
    const int blocks = a->columns == 32, gated = a->w_rows > a->n, apart = gated && a->w_step == 1;
    const int of = apart ? a->n : a->w_rows, parts = (a->k + 127) / 128, groups = (of + 127) / 128;
    uint8_t *const to = (uint8_t *)a->to;
    int e, j, k, from, i, c;
    for (e = 0; e < a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (from = 0; from < a->k; from += blocks ? 128 : a->k) {
                const size_t row = (size_t)e * a->w_rows + j, base = (size_t)e * a->w_rows + (size_t)(j / of * of);
                const int group = j % of / 128, first = blocks ? group * 128 : j % of;
                const int until = blocks ? from + 128 : a->k;
                const int second = a->w_step == 2 ? j % 2 : gated && j >= a->n;
                double most = 0, unit;
                int power;
                for (i = first; i < (blocks ? first + 128 : first + 1) && i < of; i++)
                    for (c = from; c < until && c < a->k; c += a->columns) {
                        const double s = ref_expand_scale_(a, scales, base + (size_t)i, c);
                        if (most == most && !(s <= most)) most = s;
                    }
                frexp(most == most ? most : 1, &power);
                if (blocks && most < ldexp(1, -115)) power = -114;     /* 2^-115 = half of 2^-114 */
                unit = most != most ? most : ldexp(most || blocks ? 1 : 0, blocks ? power - 7 : power - 6);
                if (blocks)
                    a->to_scale[(((size_t)e * (1 + apart) + (size_t)(j / of)) * groups + group) * parts + from / 128] =
                        (float)unit;
                else a->to_scale[row] = (float)unit * a->w_global_scale[e * (1 + gated) + second];
                for (k = from; k < until && k < a->k; k++) {
                    const uint8_t code = codes[(row * a->k + (size_t)k) / 2] >> k % 2 * 4 & 15;
                    double s = ref_expand_scale_(a, scales, row, k);
                    if (blocks && most != most) s = s != s ? 64 : 0;
                    else if (blocks) s = s < ldexp(1, power - 12) ? 0 : ldexp(s, 7 - power);
                    else s = ldexp(s, 6 - power) < ldexp(1, -5) ? 0 : ldexp(s, 6 - power);
                    to[row * a->k + (size_t)k] = (uint8_t)(code / 8 << 7 |
                        ref_encode(&ref_numbers[REF_E4M3], s * ref_decode(&ref_numbers[REF_E2M1], code & 7)));
                }
            }
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* y and slack: [tokens][hidden], whatever y_stride. */
static inline void ref_combine(const moek_combine_args *a, double *y, double *slack)
{
    const size_t rows = (size_t)(a->rows_stride ? a->rows_stride : a->hidden);
    const size_t addend = (size_t)(a->addend_stride ? a->addend_stride : a->hidden);
    int t;
    ref_table_(ref_t(a->dtype));
#ifdef _OPENMP
#pragma omp parallel for if (a->tokens > 16)
#endif
    for (t = 0; t < a->tokens; t++) {
        int j, k;
        for (j = 0; j < a->hidden; j++) {
            const size_t at = (size_t)t * a->hidden + j;
            double sum = a->addend ? ref_get_t(a->addend, t * addend + j, a->dtype) : 0, size = fabs(sum);
            for (k = 0; k < a->topk; k++) {
                const size_t slot = (size_t)t * a->topk + k;
                const int32_t row = a->slot_row ? a->slot_row[slot] : (int32_t)slot;
                const int32_t id = a->ids ? a->ids[slot] : 0;
                double term;
                if (row < 0 || id < 0 || (a->ids && id >= a->experts)) continue;
                term = ref_get_t(a->rows, row * rows + j, a->dtype);
                if (a->weights) term *= a->weights[slot];
                sum += term;
                size += fabs(term);
            }
            y[at] = sum;
            if (slack) slack[at] = size * (a->topk + 2) * ldexp(1, -24);     /* a product and a sum each: the worst */
        }
    }
}

/* ---- a whole layer ----------------------------------------------------------------------------------------------- */

typedef struct ref_layer_args {
    int tokens, hidden, inter, slots, experts;    /* slots: of a token; experts: in the weights */
    const moek_format *format;
    int dtype, act;
    float alpha, beta, limit;                     /* defaults filled in */
    int up_layout;                                /* MOEK_UP_HALVES, _INTERLEAVED, _SWAPPED, _APART */
    int up_scales, inter_offset;                  /* moek.h */
    int ue8m0, router_weight_on_input;
    int rows_per_expert;                          /* slots beyond it are dropped; 0: none */
    const void *x;                                /* [tokens][hidden] T */
    const int32_t *ids;                           /* [tokens][slots]: row of the weights, or nobody */
    const float *weights;                         /* [tokens][slots] */
    const moek_weights *w;
    const void *addend;                           /* [tokens][hidden] T or NULL: shared_y */
    int x_stride, addend_stride;                  /* elements from a row to the next; 0: hidden */
} ref_layer_args;

/* How far an element of y may be from ref_layer, in parts of the rms of its row.  ref_layer rounds and quantizes where
 * the kernels do, so that what is left is
 *   - y rounded to T, 2^-bits of an entry that is up to 6 times the rms, and twice that where o falls to the next T;
 *   - the few h that f32 sums push over to the next code: a step of 2^(1 - bits) of h, in a sum over inter of which a
 *     term of twice the usual h and w is 4 / sqrt(inter) of the rms.  An integer's step is a 127th of the largest h,
 *     that is 2^-5 of a usual one.
 * That is four to six times the worst seen on the CPU.  fp8 wgmma sums to 13 bits, which moves more h (sm90), and
 * where a row has one scale, that scale (layer.h).  The worst seen on an H100: half of these bounds. */
static inline double ref_bound(const moek_format *f, int dtype, int inter, int arch)
{
    const ref_number *const h = ref_element(f->x, dtype);
    const double of_t = ldexp(18, -ref_t(dtype)->bits);
    const double of_h = ldexp(4, 1 - (h->kind == REF_FLOAT ? h->bits : h->width - 2)) / sqrt((double)inter);
    return of_t + of_h * (arch < 90 || !format_quantizes(f) ? 1 : format_by_row(f) ? 14 : 6);
}

/* Rows of T -> what up and down read; the scales go to *scale.  The caller frees both. */
static inline void *ref_layer_quant(const ref_layer_args *l, const void *x, int stride, int rows, int cols, int offset,
                                    const float *weight, const float *fixed, void **scale)
{
    const int columns = l->format->x_scale.columns, groups = columns ? (offset + cols + columns - 1) / columns : 1;
    moek_quant_args q;
    memset(&q, 0, sizeof q);
    q.x_stride = stride;
    q.rows = rows, q.cols = cols, q.source_div = 1, q.dtype = l->dtype, q.x = x, q.row_weight = weight;
    q.static_scale = fixed, q.ue8m0 = l->ue8m0, q.group_offset = offset;
    q.q = ref_alloc((size_t)rows * cols * 2);
    q.scale = *scale = ref_alloc(((size_t)rows * groups + 1) * sizeof(float));
    ref_quant(&q, l->format);
    return q.q;
}
static inline moek_gemm_more_args ref_layer_gemm(const ref_layer_args *l, const int32_t *offsets,
                                                 const int32_t *order, int up)
{
    const int gated = ref_gated(l->act), inter = l->inter;
    moek_gemm_more_args more;
    moek_gemm_args g;
    memset(&more, 0, sizeof more), memset(&g, 0, sizeof g);
    g.n = up ? inter : l->hidden, g.k = up ? l->hidden : inter, g.w_rows = up ? inter * (1 + gated) : l->hidden;
    g.experts = l->experts, g.dtype = l->dtype, g.offsets = offsets;
    g.w = up ? l->w->w_up : l->w->w_down, g.w_scale = up ? l->w->w_up_scale : l->w->w_down_scale;
    g.bias = up ? l->w->w_up_bias : l->w->w_down_bias;
    g.a_order = up ? order : NULL, g.a_div = l->slots, g.out_order = up ? NULL : order;
    g.act = l->act, g.alpha = l->alpha, g.beta = l->beta, g.limit = l->limit;
    g.scales_apart = up && gated && l->up_scales, g.n_offset = up ? l->inter_offset : 0;
    g.k_offset = up ? 0 : l->inter_offset;
    if (up && l->up_layout == MOEK_UP_APART)
        g.w_gate = l->w->w_gate, g.gate_scale = l->w->w_gate_scale, g.gate_bias = l->w->w_gate_bias;
    g.w_step = l->up_layout == MOEK_UP_INTERLEAVED ? 2 : 1;
    g.gate_first = l->up_layout == MOEK_UP_SWAPPED ? inter : 0;
    g.up_first = l->up_layout == MOEK_UP_SWAPPED ? 0 : l->up_layout == MOEK_UP_INTERLEAVED ? 1 : inter;
    more.gemm = g;
    more.w_global_scale = up ? l->w->w_up_global_scale : l->w->w_down_global_scale;
    more.w_zero = up ? l->w->w_up_zero : l->w->w_down_zero;
    if (format_x_second(l->format)) more.a_global_scale = up ? l->w->x_scale : l->w->h_scale;
    if (g.w_gate) more.gate_global_scale = l->w->w_gate_global_scale, more.gate_zero = l->w->w_gate_zero;
    return more;
}
/* Sorted rows of each expert, as ref_sort gives them, less what overflows rows_per_expert.  Returns their number. */
static inline int ref_layer_sort(const ref_layer_args *l, int32_t *offsets, int32_t *order)
{
    const int slots = l->tokens * l->slots;
    int e, i, n, at = 0;
    for (e = 0; e < l->experts; e++) {
        offsets[e] = at;
        for (i = 0, n = 0; i < slots; i++)
            if (l->ids[i] == e && (!l->rows_per_expert || n < l->rows_per_expert)) order[at++] = i, n++;
    }
    return offsets[l->experts] = at;
}
/* up or down of all sorted rows, rounded to T. */
static inline uint16_t *ref_layer_step(const ref_layer_args *l, const moek_gemm_args *g, int up, int rows)
{
    const size_t n = (size_t)rows * g->n;
    double *y = (double *)ref_alloc(n * sizeof(double));
    uint16_t *t = (uint16_t *)ref_alloc(n * 2);
    size_t i;
    ref_gemm_(g, l->format, up, y, NULL);
#ifdef _OPENMP
#pragma omp parallel for if (n > 10000)
#endif
    for (i = 0; i < n; i++) t[i] = ref_to_t(y[i], l->dtype);
    free(y);
    return t;
}
/* y: [tokens][hidden], before the rounding to T.  x and h are quantized as the kernels do it, h and o rounded to T
 * once; so it is off only by f32 sums, and by the few h and o that these round to the next T. */
static inline void ref_layer(const ref_layer_args *l, double *y)
{
    const int slots = l->tokens * l->slots;
    int32_t *offsets = (int32_t *)ref_alloc(((size_t)l->experts + 1) * 4);
    int32_t *order = (int32_t *)ref_alloc((size_t)slots * 4);
    int32_t *kept = (int32_t *)ref_alloc((size_t)slots * 4);
    const int rows = ref_layer_sort(l, offsets, order);
    void *x_scale, *h_scale;
    void *x = ref_layer_quant(l, l->x, l->x_stride, l->tokens, l->hidden, 0,
                              l->router_weight_on_input ? l->weights : NULL, l->w->x_scale, &x_scale);
    moek_gemm_more_args up = ref_layer_gemm(l, offsets, order, 1), down = ref_layer_gemm(l, offsets, order, 0);
    moek_combine_args c;
    uint16_t *h, *o;
    void *hq;
    int i;
    up.gemm.a = x, up.gemm.a_scale = x_scale;
    h = ref_layer_step(l, &up.gemm, 1, rows);
    hq = ref_layer_quant(l, h, 0, rows, l->inter, l->inter_offset, NULL, l->w->h_scale, &h_scale);
    down.gemm.a = hq, down.gemm.a_scale = h_scale;
    for (i = 0; i < slots; i++) kept[i] = -1;
    for (i = 0; i < rows; i++) kept[order[i]] = l->ids[order[i]];
    o = ref_layer_step(l, &down.gemm, 0, slots);
    memset(&c, 0, sizeof c);
    c.tokens = l->tokens, c.topk = l->slots, c.hidden = l->hidden, c.experts = l->experts, c.dtype = l->dtype;
    c.rows = o, c.ids = kept, c.weights = l->router_weight_on_input ? NULL : l->weights, c.addend = l->addend;
    c.addend_stride = l->addend_stride;
    ref_combine(&c, y, NULL);
    free(offsets), free(order), free(kept), free(x), free(x_scale), free(h), free(hq), free(h_scale), free(o);
}
#endif
