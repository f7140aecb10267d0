/* test_units.c -- conversions, activations, and ref.h against itself.
 *
 *   cc -std=c99 -O2 -Iinclude tests/api/test_units.c -lm -o units            (or as C++, or nvcc -x cu) */
#include "moek.h"
#include "moek/kernel/numbers.h"
#include "moek/kernel/parallel.h"
#include "../check.h"
#include "../oracle/ref.h"
#include <float.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- conversions ------------------------------------------------------------------------------------------------- */

typedef struct conversion { const char *name; const ref_number *number; } conversion;
enum { C_BF16, C_FP16, C_E4M3, CONVERSIONS };
static const conversion conversions[CONVERSIONS] = {
    { "bf16", &ref_numbers[REF_BF16] }, { "fp16", &ref_numbers[REF_FP16] }, { "e4m3", &ref_numbers[REF_E4M3] },
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
    const ref_number *f = conversions[which].number;
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
    const ref_number *f = conversions[which].number;
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
    const ref_number *f = conversions[which].number;
    unsigned code, wrong = 0;
    uint32_t bits;
    float x;
    int i;
    for (code = 0; code + 1 < f->top; code++) {
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

static unsigned code_of(int number, double x) { return ref_encode(&ref_numbers[number], x); }
static double value_of(int number, unsigned code) { return ref_decode(&ref_numbers[number], code); }
static void test_ref_numbers(void)
{
    CHECK(code_of(REF_BF16, 1.0) == 0x3f80 && code_of(REF_BF16, -2.0) == 0xc000, "bf16");
    CHECK(code_of(REF_BF16, 1 + 0x1p-8) == 0x3f80 && code_of(REF_BF16, 1 + 0x3p-8) == 0x3f82, "bf16 ties");
    CHECK(code_of(REF_FP16, 65504.0) == 0x7bff && code_of(REF_FP16, 65520.0) == 0x7c00, "fp16 overflow");
    CHECK(code_of(REF_FP16, 0x1p-24) == 1 && code_of(REF_FP16, 0x1p-25) == 0, "fp16 subnormals");
    CHECK(code_of(REF_F32, 1.0) == 0x3f800000 && value_of(REF_F32, 0xff7fffff) == -FLT_MAX, "f32");
    CHECK(code_of(REF_E4M3, 448.0) == 0x7e && code_of(REF_E4M3, 1e9) == 0x7e, "e4m3 saturates");
    CHECK(code_of(REF_E4M3, 0x1p-9) == 1 && code_of(REF_E4M3, 1.0) == 0x38 && code_of(REF_E4M3, 17.0) == 0x58, "e4m3");
    CHECK(value_of(REF_E4M3, 0x7e) == 448 && isnan(value_of(REF_E4M3, 0xff)) && value_of(REF_FP16, 0x3c00) == 1,
          "decode");
    CHECK(value_of(REF_E2M1, 1) == 0.5 && value_of(REF_E2M1, 7) == 6 && value_of(REF_E2M1, 0xd) == -3 &&
          code_of(REF_E2M1, 100) == 7 && code_of(REF_E2M1, 2.5) == 4 && code_of(REF_E2M1, -5) == 0xe, "e2m1");
    CHECK(value_of(REF_E8M0, 127) == 1 && value_of(REF_E8M0, 0) == 0x1p-127 && isnan(value_of(REF_E8M0, 255)) &&
          code_of(REF_E8M0, 1) == 127 && code_of(REF_E8M0, 1.01) == 128 && code_of(REF_E8M0, INFINITY) == 254 &&
          code_of(REF_E8M0, 0) == 0, "e8m0");
    CHECK(value_of(REF_S4, 0xf) == -1 && value_of(REF_U4, 0xf) == 15 && value_of(REF_S8, 0x81) == -127 &&
          code_of(REF_S4, -9) == 9 && code_of(REF_U4, -9) == 0 && code_of(REF_S8, 2.5) == 2, "integers");
}
/* Every code, as it lies in memory, and its neighbours there as they were. */
static void test_ref_memory(const ref_number *n)
{
    const unsigned codes = n->width > 8 ? 65536 : 1u << n->width;
    uint32_t array[3];
    unsigned code, wrong = 0;
    if (n->width < 8 && n->width != 4) return;         /* in blocks alone (blocks.h) */
    for (code = 0; code < codes; code++) {
        const size_t at = code % 3;
        const unsigned kept = n->width < 8 ? 10 : 0xa5;
        size_t i;
        for (i = 0; i < 3; i++) ref_put_code(n, array, i, kept);
        ref_put_code(n, array, at, code);
        for (i = 0; i < 3; i++) wrong += ref_code(n, array, i) != (i == at ? code : kept);
        if (isnan(ref_decode(n, code)) || (n->kind == REF_SIGNED && code == ref_sign_bit(n))) continue;
        ref_put(n, array, 1, ref_get(n, array, at));
        wrong += ref_code(n, array, 1) != code;
    }
    CHECK(!wrong, "%s: %u codes in memory", n->name, wrong);
}

enum { TOKENS = 13, HIDDEN = 136, INTER = 72, EXPERTS = 5, SLOTS = 3, R = TOKENS * SLOTS };

static void layer_quant(const ref_layer_args *l, moek_quant_args q, const uint16_t *x, int cols, void *to, void *scale)
{
    q.cols = cols, q.dtype = l->dtype, q.x = x, q.ue8m0 = l->ue8m0, q.q = to, q.scale = scale;
    ref_quant(&q, l->format);
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
    static float x_scale[EXPERTS * R * HIDDEN], h_scale[EXPERTS * R * INTER];
    int32_t counts[EXPERTS], slot_row[TOKENS * SLOTS];
    moek_sort_args s;
    moek_quant_args q;
    moek_gemm_args more, *const g = &more;
    moek_combine_args c;
    memset(&s, 0, sizeof s), memset(&q, 0, sizeof q), memset(&c, 0, sizeof c);
    s.slots = TOKENS * SLOTS, s.experts = EXPERTS, s.rows_per_expert = l->rows_per_expert ? l->rows_per_expert : R;
    s.ids = l->ids, s.counts = counts, s.slot_row = slot_row;
    ref_sort(&s);
    q.rows = TOKENS * SLOTS, q.source_div = SLOTS, q.target = slot_row, q.static_scale = l->w->x_scale;
    layer_quant(l, q, (const uint16_t *)l->x, HIDDEN, xq, x_scale);
    more = ref_layer_gemm(l, NULL, NULL, 1);
    g->rows_per_expert = s.rows_per_expert, g->rows.counts = counts, g->a = xq, g->a_scale = x_scale;
    ref_up(g, l->format, wide, NULL);
    layer_round(h, wide, COUNT(h), l->dtype);
    q.rows = EXPERTS * s.rows_per_expert, q.source_div = 1, q.target = NULL;
    q.counts = counts, q.rows_per_expert = s.rows_per_expert;
    q.static_scale = l->w->h_scale;
    layer_quant(l, q, h, INTER, hq, h_scale);
    more = ref_layer_gemm(l, NULL, NULL, 0);
    g->rows_per_expert = s.rows_per_expert, g->rows.counts = counts, g->a = hq, g->a_scale = h_scale;
    ref_down(g, l->format, wide, NULL);
    layer_round(o, wide, COUNT(o), l->dtype);
    c.tokens = TOKENS, c.topk = SLOTS, c.hidden = HIDDEN, c.experts = EXPERTS, c.dtype = l->dtype;
    c.rows = o, c.ids = l->ids, c.slot_row = slot_row, c.weights = l->weights, c.addend = l->addend;
    ref_combine(&c, y, NULL);
}
static void fill(const ref_number *number, void *array, size_t n, double size)
{
    size_t i;
    for (i = 0; i < n; i++) ref_put(number, array, i, rng_normal() * size);
}
/* Scales: from size to twice that. */
static void fill_scales(const ref_number *type, void *array, size_t n, double size)
{
    size_t i;
    for (i = 0; i < n; i++) ref_put(type, array, i, (1 + rng_uniform()) * size);
}
static void test_layer(const moek_format *f, int act, int layout, int rows_per_expert)
{
    enum { UP = EXPERTS * 2 * INTER * HIDDEN, DOWN = EXPERTS * HIDDEN * INTER };
    static uint16_t x[TOKENS * HIDDEN], w_up[UP], w_down[DOWN];
    static float up_scale[UP], down_scale[DOWN], weights[TOKENS * SLOTS], second[2 * EXPERTS];
    static uint8_t zero[UP];
    static double one[TOKENS * HIDDEN], two[TOKENS * HIDDEN];
    const int dtype = format_dtype_in(f, 0);
    const ref_number *const element = ref_element(f->w, dtype), *const type = ref_scale_type(f->w_scale.type, dtype);
    const double size = format_scaled(f) ? ref_spread(element) / 2 : 0.1, scale = 0.1 / ref_spread(element);
    int32_t ids[TOKENS * SLOTS];
    moek_weights w;
    ref_layer_args l;
    int i;
    memset(&w, 0, sizeof w), memset(&l, 0, sizeof l);
    for (i = 0; i < COUNT(x); i++) x[i] = ref_to_t(rng_normal(), dtype);
    fill(element, w_up, UP, size), fill(element, w_down, DOWN, size);
    fill_scales(type, up_scale, EXPERTS * moek_scale_count(&f->w_scale, 2 * INTER, HIDDEN), scale);
    fill_scales(type, down_scale, EXPERTS * moek_scale_count(&f->w_scale, HIDDEN, INTER), scale);
    for (i = 0; i < COUNT(weights); i++) weights[i] = rng_uniform(), ids[i] = rng_below(EXPERTS + 2) - 1;
    w.w_up = w_up, w.w_down = w_down, w.w_up_scale = up_scale, w.w_down_scale = down_scale;
    for (i = 0; i < COUNT(second); i++) second[i] = 0.5f + rng_uniform();
    for (i = 0; i < COUNT(zero); i++) zero[i] = (uint8_t)rng_below(256);
    if (f->global_scale) w.w_up_global_scale = second, w.w_down_global_scale = second + 1;
    if (format_x_second(f)) w.x_scale = w.h_scale = second + 2;
    if (f->zero) w.w_up_zero = zero, w.w_down_zero = zero + 1;
    l.tokens = TOKENS, l.hidden = HIDDEN, l.inter = INTER, l.slots = SLOTS, l.experts = EXPERTS;
    l.format = f, l.dtype = dtype, l.act = act, l.alpha = 1.702f, l.beta = 1, l.limit = 7, l.up_layout = layout;
    l.ue8m0 = f->ue8m0, l.rows_per_expert = rows_per_expert;
    l.x = x, l.ids = ids, l.weights = weights, l.w = &w, l.addend = rows_per_expert ? x : NULL;
    ref_layer(&l, one);
    layer_batched(&l, two);
    CHECK(!memcmp(one, two, sizeof one), "%s act %d: ref_layer is not the batched layer", f->name, act);
}
static void test_layers(void)
{
    int i;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (f->only_blocks) continue;                  /* (other sizes) */
        test_layer(format_with(f, format_block(f, 0)), MOEK_SILU, MOEK_UP_GATE_UP, 0);
        test_layer(format_with(f, format_block(f, 1)), MOEK_SWIGLUOAI, MOEK_UP_INTERLEAVED, 0);
        test_layer(format_with(f, format_block(f, 2)), MOEK_GELU, MOEK_UP_SWAPPED, 4);
        test_layer(format_with(f, format_block(f, 3)), MOEK_RELU2_NO_MUL, MOEK_UP_GATE_UP, 4);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* One task is done by the calling thread: others would only be waited for, on a busy machine a tick of its clock. */
#if defined(_OPENMP)
static void level_of_task(const void *data, long long task)
{
    ((int *)(uintptr_t)data)[task] = omp_get_level();
}
static void test_one_task(void)
{
    int level[3] = { 7, 7, 7 };
    moek_parallel_for_(NULL, 1, level_of_task, level);
    CHECK(level[0] == 0 && level[1] == 7, "one task is at level %d of OpenMP", level[0]);
    moek_parallel_for_(NULL, 2, level_of_task, level);
    CHECK(level[0] == 1 && level[1] == 1 && level[2] == 7, "two tasks are at levels %d and %d", level[0], level[1]);
}
#else
static void test_one_task(void) {}
#endif

int main(void)
{
    int which;
    test_ref_numbers();
    for (which = 0; which < REF_NUMBERS; which++)
        if (ref_numbers[which].kind != REF_IS_T) test_ref_memory(&ref_numbers[which]);
    for (which = 0; which < CONVERSIONS; which++) {
        test_from(which);
        test_to(which);
    }
    test_ue8m0();
    test_acts();
    test_one_task();
    test_layers();
    return check_end();
}
