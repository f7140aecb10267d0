/* accuracy.c -- what each format costs: y of a layer against double precision with weights that nobody has quantized.
 *
 *     cc -O2 -fopenmp -march=native -Iinclude bench/accuracy.c -lm -o accuracy
 *     ./accuracy > bench/results/accuracy.tsv
 *
 * 8 experts, 4 a token, SiLU, 32 tokens; hidden and inter as on the first line.  Weights and x are normal.  moek_import
 * makes each format's weights of the same f32 ones; moek_run runs the CPU kernels, whose sums are f32 and which round
 * only where the format says: to codes, and y to bf16.
 *   bits   of a weight of down, scales included
 *   off    relative L2 of y
 * "nvfp4_a8, folded" is nvfp4_a8 as Hopper kernels multiply it: weights rounded to e4m3 with their scale (moek/ops.h),
 * in double precision.  The comment in front of it: the same without that, which should be what the CPU kernels give.
 * Behind it: what the rounding moves weights by, relative L2. */
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include "moek_import.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 2048, INTER = 768, EXPERTS = 8, TOPK = 4, TOKENS = 32, GATED = 2 * INTER };

static float gate[EXPERTS][INTER][HIDDEN], up[EXPERTS][INTER][HIDDEN], down[EXPERTS][HIDDEN][INTER];
static uint16_t x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
static int32_t ids[TOKENS][TOPK];
static float share[TOKENS][TOPK];
static double want[TOKENS][HIDDEN], largest_h;

static uint64_t seed = 88172645463325252u;
static double uniform(void)
{
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return (double)((seed >> 11) + 1) / 9007199254740993.0;
}
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }
static void *must(void *p)
{
    if (!p) { fputs("no memory\n", stderr); exit(1); }
    return p;
}
static void sure(moek_status status, const char *why)
{
    if (status) { fprintf(stderr, "%s: %s\n", moek_status_name(status), why); exit(1); }
}

typedef struct layer { const float *gate, *up, *down; size_t each; } layer;    /* each: to gate of the next expert */
/* e4m3 with a scale for all n, as nvfp4_a8 has x and h. */
static void as_a8(double *v, int n)
{
    double most = 0;
    float s;
    int i;
    for (i = 0; i < n; i++) most = fmax(most, fabs(v[i]));
    s = fmaxf((float)most / 448, 1.0f / (448 * 512));
    for (i = 0; i < n; i++) v[i] = (double)s * moek_from_e4m3_(moek_to_e4m3_((float)v[i] / s));
}
/* y in double precision; a8: of x and h in T, then as_a8.  Returns the largest |h|. */
static double layer_of(layer l, int a8, double (*to)[HIDDEN])
{
    double largest = 0;
    int t;
    #pragma omp parallel for reduction(max : largest)
    for (t = 0; t < TOKENS; t++) {
        double h[INTER], v[HIDDEN];
        int i, j, k;
        for (k = 0; k < HIDDEN; k++) v[k] = moek_from_bf16_(x[t][k]), to[t][k] = 0;
        if (a8) as_a8(v, HIDDEN);
        for (i = 0; i < TOPK; i++) {
            const size_t e = ids[t][i] * l.each, e_down = (size_t)ids[t][i] * INTER * HIDDEN;
            for (j = 0; j < INTER; j++) {
                double g = 0, u = 0;
                for (k = 0; k < HIDDEN; k++) {
                    g += v[k] * l.gate[e + (size_t)j * HIDDEN + k];
                    u += v[k] * l.up[e + (size_t)j * HIDDEN + k];
                }
                h[j] = g / (1 + exp(-g)) * u;
                if (a8) h[j] = moek_from_bf16_(moek_to_bf16_((float)h[j]));
                largest = fmax(largest, fabs(h[j]));
            }
            if (a8) as_a8(h, INTER);
            for (j = 0; j < HIDDEN; j++) {
                double sum = 0;
                for (k = 0; k < INTER; k++) sum += h[k] * l.down[e_down + (size_t)j * INTER + k];
                to[t][j] += share[t][i] * sum;
            }
        }
    }
    return largest;
}

static void make_layer(void)
{
    const layer l = { gate[0][0], up[0][0], down[0][0], (size_t)INTER * HIDDEN };
    int i, j, k, t;
    for (i = 0; i < EXPERTS; i++) {
        for (j = 0; j < INTER; j++)
            for (k = 0; k < HIDDEN; k++) {
                gate[i][j][k] = (float)(normal() / sqrt(HIDDEN));
                up[i][j][k] = (float)(normal() / sqrt(HIDDEN));
            }
        for (j = 0; j < HIDDEN; j++) for (k = 0; k < INTER; k++) down[i][j][k] = (float)(normal() / sqrt(INTER));
    }
    for (t = 0; t < TOKENS; t++) {
        for (k = 0; k < HIDDEN; k++) x[t][k] = moek_to_bf16_((float)normal());
        for (k = 0; k < TOPK; k++) ids[t][k] = (t + 3 * k) % EXPERTS, share[t][k] = 1.0f / TOPK;
    }
    largest_h = layer_of(l, 0, want);
}

/* moek_weights of a format, from the f32 ones; and what they mean, in bf16. */
static moek_weights weights_of(const moek_format *f, moek_config *config)
{
    const moek_scale_shape scale = moek_weight_scale(f, config->block);
    const float *const of[3] = { gate[0][0], up[0][0], down[0][0] };
    moek_weights w;
    int e, m;
    memset(&w, 0, sizeof w);
    w.w_up = must(calloc(EXPERTS * GATED, moek_element_bytes(f->w, HIDDEN)));
    w.w_down = must(calloc(EXPERTS * HIDDEN, moek_element_bytes(f->w, INTER)));
    if (scale.type) {
        w.w_up_scale = must(calloc(EXPERTS, moek_scale_bytes(&scale, GATED, HIDDEN)));
        w.w_down_scale = must(calloc(EXPERTS, moek_scale_bytes(&scale, HIDDEN, INTER)));
    }
    if (f->global_scale) {
        w.w_up_global_scale = must(calloc(EXPERTS * 2, sizeof(float)));
        w.w_down_global_scale = must(calloc(EXPERTS, sizeof(float)));
    }
    for (e = 0; e < EXPERTS; e++)
        for (m = MOEK_MATRIX_GATE; m <= MOEK_MATRIX_DOWN; m++) {
            const float *const from = of[m] + (size_t)e * INTER * HIDDEN;
            char why[256] = "";
            moek_import_args a;
            size_t i;
            memset(&a, 0, sizeof a);
            a.source = MOEK_FROM_F32; a.why = why; a.why_size = sizeof why;
            const int both = f->w_scale.type && !f->w_scale.rows && m != MOEK_MATRIX_DOWN;  /* one scale */
            float *rows = NULL;
            if (both && m == MOEK_MATRIX_UP) continue;
            sure(moek_import_place(config, &w, both ? MOEK_MATRIX_GATE_UP : m, e, &a), why);
            for (i = 0; !scale.type && i < (size_t)INTER * HIDDEN; i++) ((uint16_t *)a.w)[i] = moek_to_bf16_(from[i]);
            if (!scale.type) continue;
            if (both) {
                rows = must(malloc(sizeof(float) * GATED * HIDDEN));
                memcpy(rows, gate[e], sizeof gate[e]);
                memcpy(rows + INTER * HIDDEN, up[e], sizeof up[e]);
            }
            a.their_w = rows ? rows : (void *)(uintptr_t)from;
            sure(moek_import(0, &a, 0), why);
            free(rows);
        }
    return w;
}

/* Rows of nvfp4 weights as f32; folded: rounded to e4m3, times the power of two that brings the largest scale of 128
 * columns to 32 up to 60, and 0 of a scale that this brings below 2^-5.  Adds to moved[0], [1]: squares of what that
 * moves, of all. */
static float *nvfp4_rows(const void *codes, const void *scales, const float *global, int rows, int each, int columns,
                         int folded, double moved[2])
{
    float *const to = must(malloc(sizeof(float) * rows * columns));
    int r, k, i, power;
    for (r = 0; r < rows; r++)
        for (k = 0; k < columns; k += 128) {
            const uint8_t *const scale = (const uint8_t *)scales + ((size_t)r * columns + k) / 16;
            float most = 0;
            for (i = 0; i < 8; i++) most = fmaxf(most, moek_from_e4m3_(scale[i]));
            frexpf(most, &power);
            for (i = 0; i < 128; i++) {
                const size_t at = (size_t)r * columns + k + i;
                const float s = moek_from_e4m3_(scale[i / 16]), lifted = ldexpf(s, 6 - power);
                const float w = moek_from_e2m1_((uint8_t)(((const uint8_t *)codes)[at / 2] >> i % 2 * 4 & 15));
                const float v = !folded ? w * s : lifted < 0.03125f ? 0
                              : ldexpf(moek_from_e4m3_(moek_to_e4m3_(w * lifted)), power - 6);
                to[at] = v * global[r / each];
                moved[0] += pow((v - w * s) * (double)global[r / each], 2);
                moved[1] += pow(w * s * (double)global[r / each], 2);
            }
        }
    return to;
}

static double off(void)
{
    double d = 0, all = 0;
    int t, i;
    for (t = 0; t < TOKENS; t++)
        for (i = 0; i < HIDDEN; i++) {
            const double e = moek_from_bf16_(y[t][i]) - want[t][i];
            d += e * e, all += want[t][i] * want[t][i];
        }
    return sqrt(d / all);
}

/* As Hopper kernels of nvfp4_a8 see the weights; not folded: as they are. */
static void run_folded(const moek_weights *w, int folded)
{
    static double got[TOKENS][HIDDEN];
    double moved[2] = { 0, 0 };
    float *const both = nvfp4_rows(w->w_up, w->w_up_scale, w->w_up_global_scale, EXPERTS * GATED, INTER, HIDDEN, folded,
                                   moved);
    float *const last = nvfp4_rows(w->w_down, w->w_down_scale, w->w_down_global_scale, EXPERTS * HIDDEN, HIDDEN, INTER,
                                   folded, moved);
    const layer l = { both, both + (size_t)INTER * HIDDEN, last, (size_t)GATED * HIDDEN };
    int t, i;
    layer_of(l, 1, got);
    for (t = 0; t < TOKENS; t++) for (i = 0; i < HIDDEN; i++) y[t][i] = moek_to_bf16_((float)got[t][i]);
    printf("%s\t0\t4.50\t%.2e\n", folded ? "nvfp4_a8, folded" : "# nvfp4_a8, unfolded", off());
    if (folded) printf("# weights moved by\t\t\t%.2e\n", sqrt(moved[0] / moved[1]));
    free(both), free(last);
}

static double run(const moek_format *f, int block, moek_weights *made)
{
    static float x_scale, h_scale;
    moek_config config;
    moek_weights w;
    moek_plan plan;
    moek_args args;
    void *room;
    char why[256] = "";
    memset(&config, 0, sizeof config), memset(&args, 0, sizeof args);
    config.hidden = HIDDEN; config.inter = INTER; config.experts = EXPERTS; config.topk = TOPK;
    config.max_tokens = TOKENS; config.quant = f->number; config.act = MOEK_SILU; config.block = block;
    config.dtype = MOEK_DTYPE_BF16;
    config.exclude = MOEK_BACKENDS_GPU;
    w = weights_of(f, &config);
    if (f->static_x && f->x_scale.columns) {   /* nvfp4_a4: the largest of x and of h, as calibration finds it */
        int t, i;
        double most = 0;
        for (t = 0; t < TOKENS; t++)
            for (i = 0; i < HIDDEN; i++) most = fmax(most, fabs(moek_from_bf16_(x[t][i])));
        x_scale = (float)(most / (6 * 448)), h_scale = (float)(largest_h / (6 * 448));
        w.x_scale = &x_scale, w.h_scale = &h_scale;
    }
    sure(moek_plan_init(&plan, &config), plan.why);
    sure(moek_plan_bind(&plan, &w), plan.why);
    args.tokens = TOKENS; args.x = x; args.topk_ids = ids[0]; args.topk_weights = share[0]; args.y = y;
    args.workspace_size = moek_workspace_size(&plan);
    room = must(malloc(args.workspace_size + 255));
    args.workspace = (void *)(((uintptr_t)room + 255) / 256 * 256);
    args.why = why; args.why_size = sizeof why;
    sure(moek_run(&plan, &args, 0), why);
    free(room);
    *made = w;
    return off();
}

int main(void)
{
    int i, b;
    make_layer();
    printf("# cc -O2 -fopenmp -march=native -Iinclude bench/accuracy.c; hidden %d, inter %d, %d experts, %d a token, "
           "%d tokens, normal weights and x\nformat\tblock\tbits\toff\n", HIDDEN, INTER, EXPERTS, TOPK, TOKENS);
    for (i = 1; moek_format_of(i); i++) {
        const moek_format *const f = moek_format_of(i);
        if (f->w == MOEK_ELEMENT_FP16) continue;       /* T is bf16 here */
        if (f->only_blocks) continue;                  /* (nothing here quantizes to those) */
        for (b = 0; b < (f->blocks ? f->blocks : 1); b++) {
            const int block = f->blocks ? f->block[b] : 0;
            const moek_scale_shape s = moek_weight_scale(f, block);
            moek_weights made;
            const double bytes = (double)HIDDEN * moek_element_bytes(f->w, INTER) +
                                 (s.type ? (double)moek_scale_bytes(&s, HIDDEN, INTER) : 0);
            printf("%s\t%d\t%.2f\t%.2e\n", f->name, block, 8 * bytes / HIDDEN / INTER, run(f, block, &made));
            if (f->w_scale.type == MOEK_SCALE_TYPE_E4M3 && f->x == MOEK_ELEMENT_E4M3)
                run_folded(&made, 0), run_folded(&made, 1);
            fflush(stdout);
        }
    }
    return 0;
}
