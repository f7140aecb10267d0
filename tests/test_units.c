/* test_units.c -- conversions, activations, and ref.h against itself.
 *
 *   cc -std=c99 -O2 -Iinclude tests/test_units.c -lm -o units            (or as C++, or nvcc -x cu) */
#include "moek.h"
#include "moek/kernel/numbers.h"
#include "check.h"
#include "ref.h"
#include <float.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- conversions ------------------------------------------------------------------------------------------------- */

typedef struct conversion { const char *name; const ref_format *format; } conversion;
enum { C_BF16, C_FP16, C_E4M3, CONVERSIONS };
static const conversion conversions[CONVERSIONS] = {
    { "bf16", &ref_bf16 }, { "fp16", &ref_fp16 }, { "e4m3", &ref_e4m3 },
};

static float from_code(int which, unsigned code)
{
    if (which == C_BF16) return moek_from_bf16_((uint16_t)code);
    return which == C_FP16 ? moek_from_fp16_((uint16_t)code) : moek_from_e4m3_((uint8_t)code);
}
static unsigned to_code(int which, float x)
{
    if (which == C_BF16) return moek_to_bf16_(x);
    return which == C_FP16 ? moek_to_fp16_(x) : moek_to_e4m3_(x);
}
static int same(double a, double b) { return isnan(b) ? isnan(a) : a == b && signbit(a) == signbit(b); }

static void test_from(int which)
{
    const ref_format *f = conversions[which].format;
    unsigned code, wrong = 0;
    for (code = 0; code < (1u << f->width); code++) {
        const double want = ref_decode(f, code);
        wrong += !same(from_code(which, code), want);
        wrong += !isnan(want) && to_code(which, from_code(which, code)) != code;           /* and back */
    }
    CHECK(!wrong, "%s: %u of its codes", conversions[which].name, wrong);
}
static int to_right(int which, float x)
{
    const ref_format *f = conversions[which].format;
    const unsigned have = to_code(which, x), want = ref_encode(f, x);
    if (which == C_E4M3 && isnan(x)) return (have & 0x7f) == 0x7f &&
        (have >> 7) == (signbit(x) != 0);   /* as ops.h says */
    return isnan(x) ? isnan(ref_decode(f, have)) : have == want;
}
static int to_right_around(int which, float x)
{
    const float above = nextafterf(x, INFINITY), below = nextafterf(x, 0);
    return to_right(which, x) && to_right(which, above) && to_right(which, below) &&
           to_right(which, -x) && to_right(which, -above) && to_right(which, -below);
}
static void test_to(int which)
{
    static const float odd[] = { 0, FLT_MAX, FLT_MIN, 1e-45f, 448, 464, 480, 65504, 65519.996f, 65520, 65536,
                                 3.3961e38f, INFINITY, NAN };
    const ref_format *f = conversions[which].format;
    unsigned code, wrong = 0;
    uint32_t bits;
    float x;
    int i;
    for (code = 0; code + 1 < ref_largest_code(f); code++) {
        const double a = ref_decode(f, code), b = ref_decode(f, code + 1);
        wrong += !to_right_around(which, (float)a) + !to_right_around(which, (float)((a + b) / 2));     /* the tie */
    }
    CHECK(!wrong, "to %s: %u places around its codes and ties", conversions[which].name, wrong);
    for (i = 0; i < COUNT(odd); i++)
        CHECK(to_right_around(which, odd[i]), "to %s: %g", conversions[which].name, odd[i]);
    for (wrong = 0, i = 0; i < 2000000; i++) {
        bits = rng_u32();
        memcpy(&x, &bits, 4);
        wrong += !to_right(which, x);
    }
    CHECK(!wrong, "to %s: %u of 2000000 random floats", conversions[which].name, wrong);
}
static void test_ue8m0(void)
{
    uint32_t bits;
    float s;
    int wrong = 0;
    for (bits = 0x00800000; bits < 0x7f800000; bits += 0x3fff) {
        memcpy(&s, &bits, 4);
        wrong += moek_float_(moek_ue8m0_(s) << 23) != ref_power_of_two(s);
    }
    for (bits = 0x00800000; bits < 0x7f800000; bits += 0x00800000) {
        memcpy(&s, &bits, 4);
        wrong += moek_float_(moek_ue8m0_(s) << 23) != s;
    }
    CHECK(!wrong, "%d scales", wrong);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

typedef float (*act_fn)(float g, float u, float alpha, float beta, float limit);
typedef struct act_row { const char *name; int number, gated; } act_row;
#define ACT_ROW(NAME, name, number, gated) { #name, number, gated },
static const act_row acts[] = { MOEK_EACH_ACT(ACT_ROW) };
static float act_named(int act, float g, float u, float alpha, float beta, float limit)
{
    switch (act) {
#define ACT_CASE(NAME, name, number, gated) case number: return moek_act_##name##_(g, u, alpha, beta, limit);
    MOEK_EACH_ACT(ACT_CASE)
    default: return NAN;
    }
}
/* f32: a few units of the result, more where exp takes a large alpha * g; and of g * u, where 1 + erf or 1 + tanh
 * cancels.  exp(88) is the last that is finite; beyond it a sigmoid is 0. */
static double act_allowed(int act, double y, double g, double u, double alpha)
{
    const int gelu = act == MOEK_GELU || act == MOEK_GELU_NO_MUL || act == MOEK_GELU_TANH ||
        act == MOEK_GELU_TANH_NO_MUL;
    return ldexp(fabs(y), -19) + ldexp(fabs(y * alpha * g), -23) +
        (gelu ? ldexp(fabs(g) * (ref_gated(act) ? fabs(u) : 1), -22) : 0) + 1e-35;
}
static void test_act(const act_row *act, float alpha, float beta, float limit)
{
    float g, u;
    int wrong = 0, differ = 0;
    double worst = 0;
    for (g = -30; g <= 30; g += 0.171875f)
        for (u = -12; u <= 12; u += 0.4375f) {
            const double want = ref_act(act->number, g, u, alpha, beta, limit),
                allow = act_allowed(act->number, want, g, u, alpha);
            const float have = act_named(act->number, g, u, alpha, beta, limit);
            const double error = fabs(have - want) / allow;
            if (!(error <= 1)) wrong++;
            if (error > worst) worst = error;
            if (have != moek_act_any_(act->number, g, u, alpha, beta, limit)) differ++;
        }
    CHECK(!wrong, "%s: %d values, error %.3g of what is allowed (alpha %g beta %g limit %g)", act->name, wrong, worst,
          alpha, beta, limit);
    CHECK(!differ, "%s: moek_act_any_ differs", act->name);
    CHECK(isnan(act_named(act->number, NAN, 1, alpha, beta, limit)), "%s loses NaN of g", act->name);
    CHECK(!act->gated || isnan(act_named(act->number, 1, NAN, alpha, beta, limit)), "%s loses NaN of u", act->name);
    CHECK(ref_gated(act->number) == act->gated, "%s: gated?", act->name);
}
static void test_acts(void)
{
    int i;
    for (i = 0; i < COUNT(acts); i++) {
        test_act(&acts[i], 1.702f, 1, 7);
        test_act(&acts[i], 1, 0.5f, 1.5f);
        test_act(&acts[i], 4, 2, 10);
        if (acts[i].number == MOEK_SILU) test_act(&acts[i], 1, 0, 0);
        if (acts[i].number == MOEK_SITU) test_act(&acts[i], 3, 0, 0);
    }
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

static void test_ref_numbers(void)
{
    CHECK(ref_encode(&ref_bf16, 1.0) == 0x3f80 && ref_encode(&ref_bf16, -2.0) == 0xc000, "bf16");
    CHECK(ref_encode(&ref_bf16, 1 + 0x1p-8) == 0x3f80 && ref_encode(&ref_bf16, 1 + 0x3p-8) == 0x3f82, "bf16 ties");
    CHECK(ref_encode(&ref_fp16, 65504.0) == 0x7bff && ref_encode(&ref_fp16, 65520.0) == 0x7c00, "fp16 overflow");
    CHECK(ref_encode(&ref_fp16, 0x1p-24) == 1 && ref_encode(&ref_fp16, 0x1p-25) == 0, "fp16 subnormals");
    CHECK(ref_encode(&ref_e4m3, 448.0) == 0x7e && ref_encode(&ref_e4m3, 1e9) == 0x7e, "e4m3 saturates");
    CHECK(ref_encode(&ref_e4m3, 0x1p-9) == 1 && ref_encode(&ref_e4m3, 1.0) == 0x38 &&
          ref_encode(&ref_e4m3, 17.0) == 0x58, "e4m3");
    CHECK(ref_decode(&ref_e4m3, 0x7e) == 448 && isnan(ref_decode(&ref_e4m3, 0xff)) &&
          ref_decode(&ref_fp16, 0x3c00) == 1, "decode");
}

enum { TOKENS = 13, HIDDEN = 136, INTER = 72, EXPERTS = 5, SLOTS = 3, R = TOKENS * SLOTS };

static void layer_quant(const ref_layer_args *l, moek_quant_args q, const uint16_t *x, int cols, void *to, float *scale)
{
    q.cols = cols, q.dtype = l->dtype, q.x = x, q.ue8m0 = l->ue8m0, q.q = to, q.scale = scale;
    ref_quant(&q, l->quant);
}
static void layer_round(uint16_t *to, const double *from, size_t n, int dtype)
{
    size_t i;
    for (i = 0; i < n; i++) to[i] = ref_to_t(from[i], dtype);
}
/* The same layer in the batched format, of the references of the operations. */
static void layer_batched(const ref_layer_args *l, double *y)
{
    static uint16_t xq[EXPERTS * R * HIDDEN], h[EXPERTS * R * INTER], hq[EXPERTS * R * INTER], o[EXPERTS * R * HIDDEN];
    static double wide[EXPERTS * R * HIDDEN];
    static float x_scale[EXPERTS * R * 2], h_scale[EXPERTS * R * 2];
    int32_t counts[EXPERTS], slot_row[TOKENS * SLOTS];
    moek_sort_args s;
    moek_quant_args q;
    moek_gemm_args g;
    moek_combine_args c;
    memset(&s, 0, sizeof s), memset(&q, 0, sizeof q), memset(&c, 0, sizeof c);
    s.slots = TOKENS * SLOTS, s.experts = EXPERTS, s.rows_per_expert = l->rows_per_expert ? l->rows_per_expert : R;
    s.ids = l->ids, s.counts = counts, s.slot_row = slot_row;
    ref_sort(&s);
    q.rows = TOKENS * SLOTS, q.source_div = SLOTS, q.target = slot_row, q.static_scale = l->w->x_scale;
    layer_quant(l, q, (const uint16_t *)l->x, HIDDEN, xq, x_scale);
    g = ref_layer_gemm(l, NULL, NULL, 1);
    g.rows_per_expert = s.rows_per_expert, g.counts = counts, g.a = xq, g.a_scale = x_scale;
    ref_up(&g, l->quant, wide, NULL);
    layer_round(h, wide, COUNT(h), l->dtype);
    q.rows = EXPERTS * s.rows_per_expert, q.source_div = 1, q.target = NULL;
    q.counts = counts, q.rows_per_expert = s.rows_per_expert;
    q.static_scale = l->w->h_scale;
    layer_quant(l, q, h, INTER, hq, h_scale);
    g = ref_layer_gemm(l, NULL, NULL, 0);
    g.rows_per_expert = s.rows_per_expert, g.counts = counts, g.a = hq, g.a_scale = h_scale;
    ref_down(&g, l->quant, wide, NULL);
    layer_round(o, wide, COUNT(o), l->dtype);
    c.tokens = TOKENS, c.topk = SLOTS, c.hidden = HIDDEN, c.experts = EXPERTS, c.dtype = l->dtype;
    c.rows = o, c.ids = l->ids, c.slot_row = slot_row, c.weights = l->weights, c.addend = l->addend;
    ref_combine(&c, y, NULL);
}
static void test_layer(int quant, int dtype, int act, int layout, int rows_per_expert)
{
    enum { UP = EXPERTS * 2 * INTER * HIDDEN, DOWN = EXPERTS * HIDDEN * INTER };
    static uint16_t x[TOKENS * HIDDEN], w_up[UP], w_down[DOWN];
    static float up_scale[EXPERTS * 2 * INTER], down_scale[EXPERTS * HIDDEN], weights[TOKENS * SLOTS];
    static double one[TOKENS * HIDDEN], two[TOKENS * HIDDEN];
    int32_t ids[TOKENS * SLOTS];
    moek_weights w;
    ref_layer_args l;
    int i, fp8 = quant != MOEK_BF16 && quant != MOEK_FP16;
    memset(&w, 0, sizeof w), memset(&l, 0, sizeof l);
    for (i = 0; i < COUNT(x); i++) x[i] = ref_to_t(rng_normal(), dtype);
    for (i = 0; i < UP; i++) {
        if (fp8) ((uint8_t *)w_up)[i] = (uint8_t)ref_encode(&ref_e4m3, 30 * rng_normal());
        else w_up[i] = ref_to_t(0.1 * rng_normal(), dtype);
    }
    for (i = 0; i < DOWN; i++) {
        if (fp8) ((uint8_t *)w_down)[i] = (uint8_t)ref_encode(&ref_e4m3, 30 * rng_normal());
        else w_down[i] = ref_to_t(0.1 * rng_normal(), dtype);
    }
    for (i = 0; i < COUNT(up_scale); i++) up_scale[i] = (1 + rng_uniform()) / 400;
    for (i = 0; i < COUNT(down_scale); i++) down_scale[i] = (1 + rng_uniform()) / 400;
    for (i = 0; i < COUNT(weights); i++) weights[i] = rng_uniform(), ids[i] = rng_below(EXPERTS + 2) - 1;
    w.w_up = w_up, w.w_down = w_down, w.w_up_scale = up_scale, w.w_down_scale = down_scale;
    l.tokens = TOKENS, l.hidden = HIDDEN, l.inter = INTER, l.slots = SLOTS, l.experts = EXPERTS;
    l.quant = quant, l.dtype = dtype, l.act = act, l.alpha = 1.702f, l.beta = 1, l.limit = 7, l.up_layout = layout;
    l.ue8m0 = quant == MOEK_FP8B128, l.rows_per_expert = rows_per_expert;
    l.x = x, l.ids = ids, l.weights = weights, l.w = &w, l.addend = rows_per_expert ? x : NULL;
    ref_layer(&l, one);
    layer_batched(&l, two);
    CHECK(!memcmp(one, two, sizeof one), "quant %d act %d: ref_layer is not the batched layer", quant, act);
}
static void test_layers(void)
{
    int quant;
    for (quant = MOEK_BF16; quant <= MOEK_FP8B128; quant++) {
        const int dtype = quant == MOEK_FP16 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
        test_layer(quant, dtype, MOEK_SILU, MOEK_UP_HALVES, 0);
        test_layer(quant, dtype, MOEK_SWIGLUOAI, MOEK_UP_INTERLEAVED, 0);
        test_layer(quant, dtype, MOEK_GELU, MOEK_UP_SWAPPED, 4);
        test_layer(quant, dtype, MOEK_RELU2_NO_MUL, MOEK_UP_HALVES, 4);
    }
}

int main(void)
{
    int which;
    test_ref_numbers();
    for (which = 0; which < CONVERSIONS; which++) {
        test_from(which);
        test_to(which);
    }
    test_ue8m0();
    test_acts();
    test_layers();
    return check_end();
}
