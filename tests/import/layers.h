/* layers.h -- a part of test_import.c, which includes it once: whole layers, plain weights. */
enum { HIDDEN = 128, INTER = 192, EXPERTS = 4, TOPK = 2, TOKENS = 9, GROUP = 32 };

static moek_config layer_config(int quant, int layout)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.hidden = HIDDEN; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK; c.max_tokens = TOKENS;
    c.act = MOEK_SILU; c.quant = quant; c.dtype = MOEK_DTYPE_BF16; c.up_layout = layout;
    c.block = moek_format_of(quant)->blocks ? GROUP : 0;
    c.backend = MOEK_BACKEND_CPU;
    return c;
}
static size_t aligned(size_t n) { return (n + 255) / 256 * 256; }
/* All arrays that a layer of the format has, in `arrays` (freed by the caller). */
static moek_weights layer_arrays(const moek_config *c, int zeros, void *arrays[12])
{
    const moek_format *const f = format_with(moek_format_of(c->quant), c->block);
    const int apart = c->up_layout == MOEK_UP_SEPARATE;
    size_t up_rows = (size_t)EXPERTS * INTER * (apart ? 1 : 2), rows[3], columns[3], i;
    moek_weights w;
    memset(&w, 0, sizeof w);
    rows[0] = rows[1] = up_rows; rows[2] = (size_t)EXPERTS * HIDDEN;
    columns[0] = columns[1] = HIDDEN; columns[2] = INTER;
    for (i = 0; i < 3; i++) {
        const size_t groups = moek_scale_count(&f->w_scale, 1, columns[i]);
        arrays[4 * i] = mem_alloc(0, aligned(rows[i] * moek_element_bytes(f->w, columns[i])));
        arrays[4 * i + 1] =
            mem_alloc(0, aligned(EXPERTS * moek_scale_bytes(&f->w_scale, rows[i] / EXPERTS, columns[i])));
        arrays[4 * i + 2] = mem_alloc(0, aligned(rows[i] * moek_element_bytes(f->w, groups)));
        arrays[4 * i + 3] = mem_alloc(0, 256);
    }
    w.w_up = arrays[4]; w.w_up_scale = arrays[5]; w.w_down = arrays[8]; w.w_down_scale = arrays[9];
    if (zeros) { w.w_up_zero = arrays[6]; w.w_down_zero = arrays[10]; }
    if (f->global_scale) { w.w_up_global_scale = (float *)arrays[7]; w.w_down_global_scale = (float *)arrays[11]; }
    if (!apart) return w;
    w.w_gate = arrays[0]; w.w_gate_scale = arrays[1];
    if (zeros) w.w_gate_zero = arrays[2];
    if (f->global_scale) w.w_gate_global_scale = (float *)arrays[3];
    return w;
}
static uint16_t *layer_run(const moek_config *config, const moek_weights *w, const char *what)
{
    moek_plan plan;
    moek_args a;
    uint16_t *const x = (uint16_t *)mem_alloc(0, 2 * TOKENS * HIDDEN);
    uint16_t *const y = (uint16_t *)mem_alloc(0, 2 * TOKENS * HIDDEN);
    int32_t ids[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    void *workspace;
    int i;
    memset(&a, 0, sizeof a);
    rng_seed(77);
    for (i = 0; i < TOKENS * HIDDEN; i++) x[i] = ref_to_t(rng_normal(), MOEK_DTYPE_BF16);
    for (i = 0; i < TOKENS * TOPK; i++) {
        ids[i] = (i / TOPK + i % TOPK * 3) % EXPERTS;
        weights[i] = 0.25f + rng_uniform();
    }
    CHECK(moek_plan_init(&plan, config) == MOEK_OK, "%s: %s", what, plan.why);
    CHECK(moek_plan_bind(&plan, w) == MOEK_OK, "%s: %s", what, plan.why);
    workspace = mem_alloc(0, moek_workspace_size(&plan));
    a.tokens = TOKENS; a.x = x; a.y = y; a.topk_ids = ids; a.topk_weights = weights;
    a.workspace = workspace; a.workspace_size = moek_workspace_size(&plan);
    CHECK(moek_run(&plan, &a, 0) == MOEK_OK, "%s: run", what);
    mem_free(0, workspace);
    mem_free(0, x);
    return y;
}
/* Imports a matrix to where it belongs, and writes what its bytes mean to `plain`: row r to first + r * step. */
static void layer_matrix(matrix *m, const moek_config *c, const moek_weights *w, int which, int expert, uint16_t *plain,
                         moek_import_report *report)
{
    moek_import_args a;
    char why[256] = "";
    int n, k;
    memset(&a, 0, sizeof a);
    a.source = m->source;
    if (is_open(m->format) && !gguf_of(m->source)) a.scale_dtype = m->scale_dtype;
    a.report = report; a.why = why; a.why_size = sizeof why;
    CHECK(moek_import_place(c, w, which, expert, &a) == MOEK_OK, "%s: %s", m->what, why);
    CHECK(a.rows == m->rows && a.columns == m->columns, "%s: %d x %d", m->what, a.rows, a.columns);
    a.their_w = m->w; a.their_scale = m->scale_bytes ? m->scale : NULL; a.their_zero = m->has_zero ? m->zero : NULL;
    if (is_nvfp4(m->source)) a.their_global = &m->global;
    a.row_order = m->row_order; a.column_order = m->column_order;
    CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s: %s", m->what, why);
    for (n = 0; n < m->rows; n++)
        for (k = 0; k < m->columns; k++) {
            const int g = m->g_idx ? m->g_idx[k] : k / columns_of_scale(m);
            plain[(size_t)n * (size_t)m->columns + (size_t)k] =
                ref_to_t(source_element(m, source_code(m, n, k), source_zero(m, n, g)) * source_scale(m, n, g) *
                         source_second(m), MOEK_DTYPE_BF16);
        }
}
static matrix layer_source(int i, const moek_format *f, int rows, int columns, int block)
{
    matrix m;
    memset(&m, 0, sizeof m);
    m.source = facts[i].source; m.rows = rows; m.columns = columns; m.block = block; m.step = 1;
    m.format = format_with(f, block);
    m.dtype = MOEK_DTYPE_BF16; m.scale_dtype = facts[i].type;
    m.has_zero = takes_zero(m.source) && m.format->zero;
    m.keep_zero = m.has_zero;
    matrix_sizes(&m);
    matrix_fill(&m, SANE, 0);
    return m;
}
/* act-order of down: groups of columns as g_idx says, and gate and up in down's order. */
static void layer_act_order(matrix m[3], int32_t *g_idx, int block)
{
    int32_t *const shuffled = random_order(INTER), *const order = (int32_t *)ref_alloc(4 * INTER);
    char why[256] = "";
    int k, i, moved = 0;
    for (k = 0; k < INTER; k++) g_idx[shuffled[k]] = k / block;
    CHECK(moek_import_order(g_idx, INTER, block, order, &moved, why, sizeof why) == MOEK_OK && moved, "%s", why);
    m[2].column_order = order;
    m[2].g_idx = g_idx;
    for (i = 0; i < 2; i++) {
        m[i].row_order = (int32_t *)ref_alloc(4 * INTER);
        memcpy(m[i].row_order, order, 4 * INTER);
    }
    free(shuffled);
}
/* The imported layer against a bf16 layer with weights read from the checkpoint's bytes by this file. */
static void test_layer_of(int i, const moek_format *f, int layout, int act_order, int fused)
{
    moek_config c = layer_config(f->number, layout);
    const double most = format_quantizes(f) ? 0.08 : 0.01;
    int plain_quant = 0;
    moek_config p;
    moek_weights w, plain;
    moek_import_report report;
    void *arrays[12], *plain_arrays[12];
    uint16_t *y, *z;
    double *want = (double *)ref_alloc(8 * TOKENS * HIDDEN);
    ref_distance far;
    char what[160], text[512];
    int e, j, n;
    if (format_rows_share(f) && layout != MOEK_UP_SEPARATE) c.up_scales = MOEK_UP_SCALES_SEPARATE;
    while (format_dtype(format_at(plain_quant)) != MOEK_DTYPE_BF16) plain_quant++;
    p = layer_config(format_at(plain_quant)->number, fused ? MOEK_UP_INTERLEAVED : MOEK_UP_GATE_UP);
    snprintf(what, sizeof what, "layer of %s to %s, up_layout %d%s%s", moek_source_name(facts[i].source), f->name,
             layout, act_order ? ", act-order" : "", fused ? ", gate and up in one" : "");
    memset(&report, 0, sizeof report);
    w = layer_arrays(&c, takes_zero(facts[i].source) && f->zero, arrays);
    plain = layer_arrays(&p, 0, plain_arrays);
    plain.w_up_scale = plain.w_down_scale = NULL;
    for (e = 0; e < EXPERTS; e++) {
        uint16_t *const at = (uint16_t *)plain_arrays[4] + (size_t)e * 2 * INTER * HIDDEN;
        matrix m[3];
        int32_t g_idx[INTER];
        for (j = 0; j < 3; j++)
            m[j] = layer_source(i, f, j < 2 ? INTER * (fused ? 2 : 1) : HIDDEN, j < 2 ? HIDDEN : INTER, c.block);
        if (act_order) layer_act_order(m, g_idx, c.block);
        if (!f->w_scale.rows && layout != MOEK_UP_SEPARATE) memcpy(m[1].scale, m[0].scale, m[0].scale_bytes);
        for (j = 0; j < 3; j++) snprintf(m[j].what, sizeof m[j].what, "%.100s, matrix %d", what, j);
        layer_matrix(&m[0], &c, &w, fused ? MOEK_MATRIX_GATE_UP : MOEK_MATRIX_GATE, e, at, &report);
        if (!fused) layer_matrix(&m[1], &c, &w, MOEK_MATRIX_UP, e, at + INTER * HIDDEN, &report);
        layer_matrix(&m[2], &c, &w, MOEK_MATRIX_DOWN, e, (uint16_t *)plain_arrays[8] + (size_t)e * HIDDEN * INTER,
                     &report);
        for (j = 0; j < 3; j++) matrix_free(&m[j]);
    }
    CHECK(moek_import_verdict(&report, text, sizeof text) == MOEK_OK, "%s: %s", what, text);
    CHECK(moek_import_describe(&report, text, sizeof text) == strlen(text) && strstr(text, " scales, "), "%s", text);
    y = layer_run(&c, &w, what);
    z = layer_run(&p, &plain, what);
    for (n = 0; n < TOKENS * HIDDEN; n++) want[n] = ref_get_t(z, (size_t)n, MOEK_DTYPE_BF16);
    far = ref_compare_t(y, want, TOKENS * HIDDEN, MOEK_DTYPE_BF16);
    CHECK(far.rel_l2 < most && far.same_nonfinite, "%s: %g from the bf16 layer", what, far.rel_l2);
    free(want);
    mem_free(0, y); mem_free(0, z);
    for (j = 0; j < 12; j++) { mem_free(0, arrays[j]); mem_free(0, plain_arrays[j]); }
}
static void test_layers(void)
{
    int i, layout = 0;
    for (i = 0; i < SOURCES; i++) {
        static const int layouts[] = { MOEK_UP_GATE_UP, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_SEPARATE };
        const moek_format *const own = moek_format_of(facts[i].quant);
        int n;
        for (n = 0; n < (quick_set ? 1 : 4); n++, layout++)
            if (!format_rows_share(own) || layouts[layout % 4] != MOEK_UP_INTERLEAVED)
                test_layer_of(i, own, layouts[layout % 4], 0, 0);
        if (quick_set && is_nvfp4(facts[i].source)) test_layer_of(i, own, layouts[layout++ % 4], 0, 0);
        layout += quick_set;
        if (facts[i].source == MOEK_FROM_MXFP4) test_layer_of(i, own, MOEK_UP_INTERLEAVED, 0, 1);
        if (facts[i].source == MOEK_FROM_GPTQ_INT4) test_layer_of(i, own, MOEK_UP_INTERLEAVED, 1, 0);
        for (n = 0; n < FORMATS && (facts[i].source == MOEK_FROM_INT4_SIGNED || facts[i].scales == ONE); n++)
            if (fits(i, format_at(n)) && format_at(n) != own) test_layer_of(i, format_at(n), MOEK_UP_GATE_UP, 0, 0);
    }
}

/* ---- plain weights ----------------------------------------------------------------------------------------------- */

/* What moek_import.h says of them, in double. */
typedef struct plain {
    int source, recipe, rows, columns, block, dtype, step;             /* dtype: T */
    const moek_format *format;                                         /* with its block */
    void *from;
    char what[160];
} plain;
static const ref_number *plain_number(const plain *p)
{
    return p->source == MOEK_FROM_F32 ? &ref_numbers[REF_F32]
                                      : ref_t(p->source == MOEK_FROM_FP16 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16);
}
static double plain_at(const plain *p, int n, int k)
{
    return ref_get(plain_number(p), p->from, (size_t)n * (size_t)p->columns + (size_t)k);
}
/* Of the rows and columns from n and k on; NaN: there is a NaN or an Inf. */
static double plain_most(const plain *p, int n, int k, int rows, int columns)
{
    double most = 0;
    int i, j;
    for (i = n; i < n + rows && i < p->rows; i++)
        for (j = k; j < k + columns && j < p->columns; j++) {
            const double v = fabs(plain_at(p, i, j));
            if (!isfinite(v)) return NAN;
            most = v > most ? v : most;
        }
    return most;
}
static int plain_is_int(const plain *p) { return ref_element(p->format->w, 0)->kind != REF_FLOAT; }
static double plain_largest(const plain *p)
{
    const double half = 1 << (p->format->w_bits - 1);
    if (!plain_is_int(p)) return ref_largest(ref_element(p->format->w, p->dtype));
    return p->recipe == MOEK_RECIPE_NARROW ? half - 1 : half - 0.5;
}
static double plain_power(const plain *p, double most)
{
    const double largest = plain_largest(p);
    const int recipe = p->recipe ? p->recipe : p->format->w_bits == 4 ? MOEK_RECIPE_ROUND : MOEK_RECIPE_CEIL;
    int e, of;
    if (!isfinite(most)) return NAN;
    if (most == 0) return ldexp(1, -127);
    frexp(most, &e);
    frexp(largest, &of);
    if (recipe == MOEK_RECIPE_ROUND && most >= ldexp(1.75, e - 1)) e++;
    e -= of;
    if (recipe == MOEK_RECIPE_CEIL) for (; most > ldexp(largest, e); e++) { }
    return ldexp(1, e < -127 ? -127 : e > 127 ? 127 : e);
}
/* most / largest, as an f32; 1 for zeros. */
static double plain_divide(double most, double largest)
{
    const float s = (float)(most / largest);
    return s == 0 ? 1 : s;
}
static double plain_scale(const plain *p, double most, double whole)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    double s;
    if (shape->type == MOEK_SCALE_TYPE_E8M0) return plain_power(p, most);
    if (shape->type == MOEK_SCALE_TYPE_E4M3) {
        const float above = (float)(most / (float)(6 * whole));
        s = most == 0 ? 1 : fmax(above, ldexp(1, -9));
        return isnan(most) || isnan(whole) ? NAN
            : ref_decode(&ref_numbers[REF_E4M3], ref_encode(&ref_numbers[REF_E4M3], s));
    }
    if (isnan(most)) return NAN;
    s = p->recipe == MOEK_RECIPE_CEIL && most > 0 ? plain_power(p, most) : plain_divide(most, plain_largest(p));
    if (shape->type == MOEK_SCALE_TYPE_T) s = ref_round_t(s, p->dtype);
    return s == 0 ? 1 : s;
}
static unsigned plain_code(const plain *p, double w, double scale)
{
    const double half = 1 << (p->format->w_bits - 1);
    const float v = isnan(scale) ? 0 : (float)(w / (float)scale);
    double r;
    if (!plain_is_int(p)) return ref_encode(ref_element(p->format->w, p->dtype), v);
    r = fmax(-half, fmin(half - 1, nearbyint(v)));
    return p->format->w_bits == 4 ? (unsigned)(r + 8) : (unsigned)(int)r & 255;
}

typedef struct planted { unsigned char *w, *scale, *zero; float global; moek_import_report report; } planted;
static void planted_free(planted *g) { free(g->w); free(g->scale); free(g->zero); }
static size_t plain_scales(const plain *p)             /* bytes */
{
    const moek_scale_shape *const s = &p->format->w_scale;
    return s->rows == 1 ? moek_scale_bytes(s, (size_t)(p->rows * p->step), (size_t)p->columns)
                        : moek_scale_bytes(s, (size_t)p->rows, (size_t)p->columns);
}
static planted plain_run(int arch, const plain *p)
{
    const size_t rows = (size_t)(p->rows * p->step), K = (size_t)p->columns;
    const size_t groups = moek_scale_count(&p->format->w_scale, 1, K);
    const size_t zeros = p->format->zero ? rows * moek_element_bytes(p->format->w, groups) : 0;
    const size_t bytes = (size_t)p->rows * K * (size_t)plain_number(p)->width / 8;
    there from = put_there(arch, p->from, bytes), w = put_there(arch, NULL, rows * moek_element_bytes(p->format->w, K));
    there scale = put_there(arch, NULL, plain_scales(p)), zero = put_there(arch, NULL, zeros);
    there global = put_there(arch, NULL, 4), report;
    moek_import_report none;
    moek_import_args a;
    planted g;
    unsigned char *got;
    char why[256] = "";
    memset(&none, 0, sizeof none);
    memset(&a, 0, sizeof a);
    report = put_there(arch, &none, sizeof none);
    a.source = p->source; a.quant = p->format->number; a.recipe = p->recipe; a.rows = p->rows; a.columns = p->columns;
    a.block = p->block; a.dtype = p->dtype; a.row_step = p->step;
    a.their_w = from.at; a.w = w.at; a.scale = scale.at;
    if (zeros) a.zero = zero.at;
    if (p->format->global_scale) a.global = (float *)global.at;
    a.report = (moek_import_report *)report.at; a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(arch, &a, 0) == MOEK_OK, "%s: %s", p->what, why);
    got = take_back(from, p->what);
    CHECK(!memcmp(got, p->from, bytes), "%s: an input was written to", p->what);
    free(got);
    g.w = take_back(w, p->what); g.scale = take_back(scale, p->what); g.zero = take_back(zero, p->what);
    got = take_back(global, p->what); memcpy(&g.global, got, 4); free(got);
    got = take_back(report, p->what); memcpy(&g.report, got, sizeof g.report); free(got);
    return g;
}
/* The group of columns from k on, of rows from n on: its scale and its codes. */
static void plain_check_group(const plain *p, const planted *g, int n, int k, int rows, int columns, double whole)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    const ref_number *const type = ref_scale_type(shape->type, p->dtype);
    const ref_number *const e = ref_element(p->format->w, p->dtype);
    const size_t groups = moek_scale_count(shape, 1, (size_t)p->columns);
    const size_t pitch = moek_element_bytes(p->format->w, (size_t)p->columns);
    const size_t row = shape->rows == 1 ? (size_t)(n * p->step) : shape->rows ? (size_t)(n / shape->rows) : 0;
    const double scale = shape->rows ? plain_scale(p, plain_most(p, n, k, rows, columns), whole) : whole;
    const double got = ref_get(type, g->scale, row * groups + (size_t)(shape->columns ? k / shape->columns : 0));
    const double by = p->format->global_scale ? (float)(scale * whole) : scale;
    int i, j, wrong = 0;
    CHECK(same(got, scale), "%s: scale of [%d][%d] is %g, not %g", p->what, n, k, got, scale);
    for (i = n; i < n + rows && i < p->rows; i++)
        for (j = k; j < k + columns && j < p->columns; j++) {
            const unsigned want = plain_code(p, plain_at(p, i, j), by);
            const unsigned code = ref_code(e, g->w + (size_t)(i * p->step) * pitch, (size_t)j);
            if (code != want && !wrong++)
                CHECK(0, "%s: [%d][%d] is %x, not %x (%g / %g)", p->what, i, j, code, want, plain_at(p, i, j), by);
        }
}
static void plain_check(const plain *p)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    const planted host = plain_run(0, p);
    const size_t pitch = moek_element_bytes(p->format->w, (size_t)p->columns);
    const int rows = shape->rows ? shape->rows : p->rows, columns = shape->columns ? shape->columns : p->columns;
    double whole = 1;
    int n, k;
    uint64_t bad = 0, scales = 0;
    size_t i, untouched = 1;
    if (p->format->global_scale || !shape->rows) {
        const double most = plain_most(p, 0, 0, p->rows, p->columns);
        whole = isnan(most) ? NAN : plain_divide(most, p->format->global_scale ? 6 * 448 : plain_largest(p));
    }
    if (p->format->global_scale) CHECK(same(host.global, whole), "%s: global %g, not %g", p->what, host.global, whole);
    for (n = 0; n < p->rows; n += rows)
        for (k = 0; k < p->columns; k += columns) {
            plain_check_group(p, &host, n, k, rows, columns, whole);
            bad += !isfinite(shape->rows ? plain_scale(p, plain_most(p, n, k, rows, columns), whole) : whole);
            scales++;
        }
    CHECK(host.report.scales == scales && host.report.scales_nan == bad &&
          host.report.globals_bad == (uint64_t)(p->format->global_scale && isnan(whole)),
          "%s: report of %d scales, %d bad", p->what, (int)scales, (int)bad);
    CHECK((moek_import_verdict(&host.report, NULL, 0) != MOEK_OK) == (bad || isnan(whole)), "%s: verdict", p->what);
    for (n = 1; n < p->rows * p->step; n += p->step)
        for (i = 0; p->step == 2 && i < pitch; i++) untouched &= host.w[(size_t)n * pitch + i] == POISON;
    CHECK(untouched, "%s: wrote to a row between", p->what);
    for (n = 0; p->format->zero && n < p->rows; n++)
        for (k = 0; k < p->columns; k += columns)
            CHECK(ref_code(ref_element(p->format->w, 0), host.zero + (size_t)(n * p->step) * moek_element_bytes(
                  p->format->w, moek_scale_count(shape, 1, (size_t)p->columns)), (size_t)(k / columns)) == 8,
                  "%s: zero point of [%d][%d]", p->what, n, k);
    if (mem_can_run(80)) {
        planted there = plain_run(80, p);
        CHECK(!memcmp(there.w, host.w, (size_t)(p->rows * p->step) * pitch), "%s: other elements on a GPU", p->what);
        CHECK(!memcmp(there.scale, host.scale, plain_scales(p)), "%s: other scales on a GPU", p->what);
        CHECK(!memcmp(&there.global, &host.global, 4), "%s: another global scale on a GPU", p->what);
        CHECK(!memcmp(&there.report, &host.report, sizeof host.report), "%s: another report on a GPU", p->what);
        planted_free(&there);
    }
    planted_free((planted *)&host);
}
/* kind 0: ordinary; 1: largest elements at the edges of recipes, the others on ties; 2: zeros, subnormals, huge;
 * 3: NaN, Inf. */
enum { PLAIN_KINDS = 4 };
static void plain_fill(plain *p, int kind)
{
    static const double edges[] = { 1, 1.5, 1.75, 1.9921875, 1.4921875, 1.7421875, 1.7578125, 1.5078125 };
    const ref_number *const number = plain_number(p);
    const int of = p->format->w_scale.columns ? p->format->w_scale.columns : p->columns;
    int n, k, e = 0;
    double edge = 1;
    p->from = ref_alloc((size_t)p->rows * (size_t)p->columns * (size_t)number->width / 8);
    for (n = 0; n < p->rows; n++)
        for (k = 0; k < p->columns; k++) {
            double v = rng_normal() * 0.05;
            if (k % of == 0) { edge = edges[rng_below(8)]; e = rng_below(12) - 6; }
            if (kind == 1) v = ldexp(k % of == 0 ? edge : (rng_below(65) - 32) / 32.0 , e);
            if (kind == 2 && n % 4 == 1) v = k % of < of / 2 ? 0.0 : -0.0;
            if (kind == 2 && n % 4 == 2) v *= number == ref_t(MOEK_DTYPE_FP16) ? 1e-6 : 1e-38;
            if (kind == 2 && n % 4 == 3 && k % 3 == 0) v *= number == ref_t(MOEK_DTYPE_FP16) ? 1e5 : 1e37;
            if (kind == 3 && !rng_below(p->columns)) v = rng_below(2) ? NAN : INFINITY;
            ref_put(number, p->from, (size_t)n * (size_t)p->columns + (size_t)k, v);
        }
}
static int plain_takes(const moek_format *f, int recipe)
{
    if (recipe == MOEK_RECIPE_NARROW) return ref_element(f->w, 0)->kind != REF_FLOAT;
    if (f->w_scale.type == MOEK_SCALE_TYPE_E8M0) return 1;
    return !recipe || (recipe == MOEK_RECIPE_CEIL && f->w_scale.rows > 1);
}
static void test_plain(const moek_format *f, int turns)
{
    static const int rows[] = { 8, 7, 33, 130 };
    int turn, recipe;
    for (recipe = 0; recipe <= MOEK_RECIPE_NARROW; recipe++)
        for (turn = 0; plain_takes(f, recipe) && turn < turns; turn++) {
            plain p;
            memset(&p, 0, sizeof p);
            p.source = MOEK_FROM_BF16 + turn % 3;
            p.recipe = recipe;
            p.block = format_block(f, turn);
            p.format = format_with(f, p.block);
            p.dtype = turn / 12 % 2 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
            p.rows = rows[turn / 4 % 4];
            p.columns = 2 + 2 * rng_below(150) + (f->granule % 2 && turn % 5 == 0);
            p.step = f->w_scale.rows == 1 ? 1 + turn / 3 % 2 : 1;
            snprintf(p.what, sizeof p.what, "%s to %s, recipe %d, %d x %d block %d T %d step %d kind %d",
                     moek_source_name(p.source), f->name, recipe, p.rows, p.columns, p.block, p.dtype, p.step,
                     turn % PLAIN_KINDS);
            plain_fill(&p, turn % PLAIN_KINDS);
            plain_check(&p);
            free(p.from);
        }
}

/* Of formats without scales: where a matrix belongs, for the caller to copy it. */
static void test_place_plain(const moek_config *c, const moek_weights *w, int matrix, int e, const void *want, int step,
                             const char *what)
{
    moek_import_args a;
    char why[256] = "";
    moek_status status;
    memset(&a, 0, sizeof a);
    a.scale = &a; a.why = why; a.why_size = sizeof why;
    status = moek_import_place(c, w, matrix, e, &a);
    CHECK(status == MOEK_OK && a.w == want && !a.scale && a.row_step == step, "%s: matrix %d of expert %d, bf16: %s",
          what, matrix, e, why);
}
/* A layer of plain weights in a format against the bf16 layer: is each matrix, and each scale, where it belongs? */
static void test_plain_layer(const moek_format *f, int layout, int up_scales)
{
    static const int matrices[] = { MOEK_MATRIX_GATE, MOEK_MATRIX_UP, MOEK_MATRIX_DOWN, MOEK_MATRIX_GATE_UP };
    static float static_scale = 1.0f / 256;
    const double most = f->x_bits == 4 ? 0.4 : f->w_bits == 4 ? 0.25 : 0.12;
    moek_config c = layer_config(f->number, layout);
    int plain_quant = 0, e, j, n, both = 0;
    moek_config p;
    moek_weights w, plain;
    moek_import_report report;
    void *arrays[12], *plain_arrays[12];
    uint16_t *y, *z;
    double *want = (double *)ref_alloc(8 * TOKENS * HIDDEN);
    ref_distance far;
    char what[160], why[256];
    while (format_dtype(format_at(plain_quant)) != MOEK_DTYPE_BF16) plain_quant++;
    c.up_scales = up_scales;
    p = layer_config(format_at(plain_quant)->number, layout);
    memset(&report, 0, sizeof report);
    snprintf(what, sizeof what, "plain layer of %s, up_layout %d, up_scales %d", f->name, layout, up_scales);
    w = layer_arrays(&c, 0, arrays);
    plain = layer_arrays(&p, 0, plain_arrays);
    plain.w_up_scale = plain.w_down_scale = plain.w_gate_scale = NULL;
    if (format_x_second(f)) w.x_scale = w.h_scale = &static_scale;
    for (e = 0; e < EXPERTS; e++) {
        const int apart = layout == MOEK_UP_SEPARATE, step = layout == MOEK_UP_INTERLEAVED ? 2 : 1;
        uint16_t *const up = (uint16_t *)plain_arrays[4] + (size_t)e * (apart ? 1 : 2) * INTER * HIDDEN;
        uint16_t *const gate = (uint16_t *)plain_arrays[0] + (size_t)e * INTER * HIDDEN;
        uint16_t *const down = (uint16_t *)plain_arrays[8] + (size_t)e * HIDDEN * INTER;
        uint16_t *const one = (uint16_t *)ref_alloc(2 * INTER * HIDDEN);
        for (n = 0; n < (apart ? 1 : 2) * INTER * HIDDEN; n++)
            up[n] = ref_to_t(rng_normal() * ldexp(1, e - 5 - (n / HIDDEN) % 5), MOEK_DTYPE_BF16);
        for (n = 0; n < INTER * HIDDEN; n++) down[n] = ref_to_t(rng_normal() * ldexp(1, -3 - e), MOEK_DTYPE_BF16);
        for (n = 0; apart && n < INTER * HIDDEN; n++) gate[n] = ref_to_t(rng_normal() / 4, MOEK_DTYPE_BF16);
        for (j = 0; j < 4; j++) {
            const int second = !apart && (matrices[j] == MOEK_MATRIX_UP) == (layout != MOEK_UP_SWAPPED);
            moek_import_args a;
            moek_status status;
            memset(&a, 0, sizeof a);
            a.why = why; a.why_size = sizeof why; a.report = &report; a.source = MOEK_FROM_BF16;
            if (j < 3 || !apart)
                test_place_plain(&p, &plain, matrices[j], e, j == 2 ? down : apart && !j ? gate : j == 3 || apart ? up :
                                 up + (step == 2 ? second : second * INTER) * HIDDEN, j < 2 ? step : 1, what);
            if (j == 3 && !both) break;
            status = moek_import_place(&c, &w, matrices[j], e, &a);
            if (j < 2 && status == MOEK_E_ARGUMENT && strstr(why, "MOEK_MATRIX_GATE_UP has both")) {
                both = 1;
                continue;
            }
            CHECK(status == MOEK_OK, "%s: %s", what, why);
            a.their_w = j == 2 ? down : j == 3 || (apart && j) ? up : apart ? gate : one;
            for (n = 0; a.their_w == one && n < INTER; n++)
                memcpy(one + n * HIDDEN, up + (step == 2 ? 2 * n + second : n + second * INTER) * HIDDEN, 2 * HIDDEN);
            CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s: %s", what, why);
        }
        free(one);
    }
    CHECK(both == (layout != MOEK_UP_SEPARATE && f->w_scale.rows != 1 && !up_scales), "%s: gate and up %s", what,
          both ? "at once" : "one by one");
    CHECK(moek_import_verdict(&report, why, sizeof why) == MOEK_OK, "%s: %s", what, why);
    y = layer_run(&c, &w, what);
    z = layer_run(&p, &plain, what);
    for (n = 0; n < TOKENS * HIDDEN; n++) want[n] = ref_get_t(z, (size_t)n, MOEK_DTYPE_BF16);
    far = ref_compare_t(y, want, TOKENS * HIDDEN, MOEK_DTYPE_BF16);
    CHECK(far.rel_l2 < most && far.same_nonfinite, "%s: %g from the bf16 layer", what, far.rel_l2);
    free(want);
    mem_free(0, y); mem_free(0, z);
    for (j = 0; j < 12; j++) { mem_free(0, arrays[j]); mem_free(0, plain_arrays[j]); }
}
/* Blocks of gate and up, kept apart, are not the blocks of one matrix. */
static void test_scales_separate(const moek_format *f)
{
    moek_config c = layer_config(f->number, MOEK_UP_GATE_UP);
    moek_weights w;
    moek_import_args a;
    char why[256] = "";
    void *arrays[12];
    int i;
    memset(&a, 0, sizeof a);
    c.up_scales = MOEK_UP_SCALES_SEPARATE;
    w = layer_arrays(&c, 0, arrays);
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import_place(&c, &w, MOEK_MATRIX_GATE_UP, 0, &a) == MOEK_E_ARGUMENT &&
          strstr(why, "one after the other"), "%s: \"%s\"", f->name, why);
    for (i = 0; i < 12; i++) mem_free(0, arrays[i]);
}
static void test_plain_layers(void)
{
    static const int layouts[] = { MOEK_UP_GATE_UP, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_SEPARATE };
    int n, j;
    for (n = 0; n < FORMATS; n++)
        for (j = 0; j < 4 && format_scaled(format_at(n)); j++) {
            const moek_format *const f = format_at(n);
            test_plain_layer(f, layouts[j], 0);
            if (format_rows_share(f) && !j) test_scales_separate(f);
            if (format_rows_share(f) && layouts[j] != MOEK_UP_INTERLEAVED && layouts[j] != MOEK_UP_SEPARATE)
                test_plain_layer(f, layouts[j], MOEK_UP_SCALES_SEPARATE);
        }
}
