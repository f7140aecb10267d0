/* quant.h -- a part of test_rows.c, which includes it once: quant. */
enum { X_PLAIN, X_ZERO, X_SUBNORMAL, X_HUGE, X_NAN, X_INF, X_ALL_NAN, X_ONE, X_SMALL, X_KINDS };

static double quant_x(int kind, int dtype, int j)
{
    const double x = rng_normal() * 3;
    const double top = format_quantizes(now.format) ? ref_largest(ref_element(now.format->x, dtype)) : 448;
    switch (kind) {
    case X_ZERO:      return j % 2 ? 0.0 : -0.0;
    case X_SUBNORMAL: return x * (dtype == MOEK_DTYPE_FP16 ? 1e-6 : 1e-39);
    case X_HUGE:      return x * (dtype == MOEK_DTYPE_FP16 ? 6e3 : 3e37);
    case X_NAN:       return rng_below(9) ? x : NAN;
    case X_INF:       return rng_below(9) ? x : rng_below(2) ? INFINITY : -INFINITY;
    case X_ALL_NAN:   return NAN;
    case X_ONE:       return j % 16 == 5 ? top : fmin(top, 0.25 * rng_below(40));    /* scale 1: codes on ties */
    case X_SMALL:     return x * (dtype == MOEK_DTYPE_FP16 ? 1e-4 : 1e-12);
    default:          return x;
    }
}
/* A kind for each group of 128 columns of each row.  `calm`: nothing that has no finite maximum. */
static void quant_fill(uint16_t *x, int rows, int cols, int stride, int dtype, int calm, int only)
{
    int r, j, kind = 0;
    for (r = 0; r < rows; r++)
        for (j = 0; j < cols; j++) {
            if (j % 128 == 0) kind = only >= 0 ? only : rng_below(3) ? rng_below(X_KINDS) : X_PLAIN;
            if (calm && (kind == X_NAN || kind == X_INF || kind == X_ALL_NAN)) kind = X_PLAIN;
            x[(size_t)r * stride + j] = ref_to_t(quant_x(kind, dtype, j), dtype);
        }
}
/* per_expert: rows of an expert, with Q_COUNTS; 0: a quarter of all, or one. */
typedef struct quant_case_t {
    int rows, cols, div, dtype, layout, ue8m0, only, per_expert;
    unsigned options;
} quant_case_t;
enum { Q_WEIGHT = 1, Q_TARGET = 2, Q_LIMIT = 4, Q_COUNTS = 8, Q_STATIC = 16, Q_CALM = 32, Q_ZERO = 64 };

static int quant_targets(const quant_case_t *c, moek_quant_args *h)       /* returns the rows that q must have */
{
    const int spare = c->options & Q_TARGET ? 5 : 0;
    int32_t *target;
    int i;
    if (!spare) return c->rows;
    h->target = target = in_i32(c->rows);
    for (i = 0; i < c->rows; i++) {                    /* distinct: 7 is prime, and else they fall */
        target[i] = (c->rows + spare) % 7 ? (i * 7 + 3) % (c->rows + spare) : c->rows + spare - 1 - i;
        if (rng_below(6) == 0) target[i] = -1;
    }
    return c->rows + spare;
}
static void quant_live(const quant_case_t *c, moek_quant_args *h)
{
    int32_t *array;
    int i;
    if (c->options & Q_LIMIT) {
        h->row_limit = array = in_i32(1);
        *array = rng_below(4) ? rng_below(c->rows + 1) : c->rows + 3;
    }
    if (!(c->options & Q_COUNTS)) return;
    h->rows_per_expert = c->per_expert ? c->per_expert : c->rows % 4 ? 1 : c->rows / 4;
    h->counts = array = in_i32(c->rows / h->rows_per_expert);
    for (i = 0; i < c->rows / h->rows_per_expert; i++) array[i] = rng_below(h->rows_per_expert + 1);
}
static size_t quant_scale_bytes(const quant_case_t *c, const moek_quant_args *h, int rows)
{
    const moek_format *const f = now.format;
    const size_t groups = moek_scale_count(&f->x_scale, 1, (size_t)(h->group_offset + c->cols));
    const size_t each = ref_bytes(ref_scale_type(f->x_scale.type, h->dtype), 1);
    if (!format_blocked(f)) return each * (format_by_row(f) ? (size_t)rows : 1);
    if (c->layout == MOEK_SCALE_ROW) return (size_t)rows * groups * each;
    return (size_t)h->scale_stride * (c->layout == MOEK_SCALE_COLUMN ? groups * each : (groups + 3) / 4 * 4);
}
/* Bits, but that a NaN is a NaN: its sign is the machine's choice (Inf / Inf is -NaN on x86, +NaN on a GPU). */
static void quant_same_codes(const char *field, const ref_number *number, const void *host, const void *want, size_t n,
                             int columns)
{
    size_t i, bad = n;
    unsigned g = 0, w = 0;
    for (i = 0; i < n && bad == n; i++) {
        g = ref_code(number, got(host), i), w = ref_code(number, want, i);
        if (g == w) continue;
        if (isnan(ref_decode(number, g)) && isnan(ref_decode(number, w))) continue;
        bad = i;
    }
    CHECK(bad == n, "%s: %s: %s row %d column %d is %x, not %x", now.row->name, now.what, field,
          (int)(bad / (size_t)columns), (int)(bad % (size_t)columns), g, w);
}
static void quant_same(const moek_quant_args *h, int rows, const void *want)
{
    quant_same_codes("q", ref_element(now.format->x, h->dtype), h->q, want, (size_t)rows * h->cols, h->cols);
}
static void quant_check(const moek_quant_args *h, moek_quant_args r, int rows)
{
    const ref_number *const type = ref_scale_type(now.format->x_scale.type, h->dtype);
    r.q = rows_want(h->q), r.scale = rows_want(h->scale);
    ref_quant(&r, now.format);
    quant_same(h, rows, r.q);
    if (h->scale_layout == MOEK_SCALE_PACKED) rows_same("scale", h->scale, r.scale);
    else {
        quant_same_codes("scale", type, h->scale, r.scale, rows_find(h->scale)->bytes * 8 / (size_t)type->width, 1);
        free(r.scale);
    }
    if (h->zero) {
        r.zero = (int32_t *)rows_want(h->zero);
        memset(r.zero, 0, (size_t)h->zeros * 4);
        rows_same("zero", h->zero, r.zero);
    }
    free(r.q);
}
static void quant_case(const quant_case_t *c)
{
    const int sources = (c->rows - 1) / c->div + 1;
    const int given = rows_stride(now.cases, c->cols), stride = given ? given : c->cols;
    moek_quant_args h, d;
    uint16_t *x;
    float *array;
    int rows, late, times;
    memset(&h, 0, sizeof h);
    SAY("rows %d cols %d stride %d div %d dtype %d layout %d ue8m0 %d only %d options %x", c->rows, c->cols, given,
        c->div, c->dtype, c->layout, c->ue8m0, c->only, c->options);
    h.x_stride = given;
    h.rows = c->rows, h.cols = c->cols, h.source_div = c->div, h.dtype = c->dtype;
    h.ue8m0 = c->ue8m0, h.scale_layout = c->layout;
    if (format_blocked(now.format) && now.cases % 3 == 1) {
        const int step = mem_on_gpu(now.row->arch) ? 8 : now.row->granule;
        h.group_offset = step * (1 + now.cases % (now.format->x_scale.columns / step - 1));
    }
    h.x = x = (uint16_t *)in(rows_size(sources, c->cols, stride) * 2);
    quant_fill(x, sources, c->cols, stride, c->dtype, (c->options & Q_CALM) != 0, c->only);
    if (c->options & Q_WEIGHT) h.row_weight = array = in_f32(sources), fill_f32(array, (size_t)sources, -1, 1.5f);
    if (c->options & Q_STATIC || format_x_second(now.format)) {
        h.static_scale = array = in_f32(1);
        *array = c->only == X_ZERO ? 0 : ldexpf(now.cases % 4 == 3 ? 0.5f : 0.3f + rng_uniform(), -rng_below(9));
        if (now.cases % 8 == 6 && !format_by_tensor(now.format)) *array = ldexpf(1, -125);
    }
    rows = quant_targets(c, &h);
    quant_live(c, &h);
    h.scale_stride = round_up(rows, 4) + (c->options & Q_TARGET ? 4 : 0);
    h.partial = (float *)scratch(MOEK_QUANT_PARTIALS * sizeof(float));
    h.q = out((size_t)rows * moek_element_bytes(now.format->x, (size_t)c->cols));
    h.scale = out(quant_scale_bytes(c, &h, rows));
    if (c->options & Q_ZERO) h.zeros = 1 + c->cols % 700, h.zero = out_i32(h.zeros);
    if (c->rows % 2) h.max_blocks = 1 + c->cols % 3;
    d = h;
    MOVE(d.zero);
    MOVE(d.x), MOVE(d.row_weight), MOVE(d.static_scale), MOVE(d.target), MOVE(d.row_limit), MOVE(d.counts);
    MOVE(d.partial), MOVE(d.q), MOVE(d.scale);
    times = sources && now.cases % 3 == 0 && late_can() ? 3 : 1;
    for (late = 0; late < times; late++) {
        d.early = late;
        if (late == 1) late_begin(d.x, h.x);
        if (launch_twice(&d)) quant_check(&h, h, rows);
        if (late == 1) late_end();
    }
    rows_clear();
}
static void test_quant(void)
{
    static const int rows[] = { 1, 5, 12, 37, 64 }, cols[] = { 1, 7, 100, 128, 129, 130, 256, 389, 640, 1000 };
    const moek_format *const f = now.format;
    const int granule = now.row->granule, cases = now.thin ? 20 : SMALL ? 40 : 500;
    const int fixed = f->static_x, blocked = format_blocked(f);
    const int layouts = !blocked ? 1 : f->x_scale.type == MOEK_SCALE_TYPE_E8M0 ? 3 : 2;  /* packed: powers of two */
    int i;
    quant_case_t c;
    for (i = 0; i < cases; i++) {
        c.per_expert = 0;
        c.rows = rows[rng_below(COUNT(rows))], c.cols = round_up(cols[i % COUNT(cols)], granule);
        if (SMALL && (c.rows > 12 || c.cols > 400)) c.rows = 5, c.cols = round_up(130, granule);
        if (now.row->hidden) c.cols = now.row->hidden;
        c.div = rng_below(3) ? 1 : 3;
        c.dtype = format_dtype_in(f, i);
        c.ue8m0 = f->ue8m0 ? rng_below(2) * (1 + i % 3) : 0;           /* 2 and 3 are no less */
        c.layout = layouts > 1 ? rng_below(c.ue8m0 ? 3 : layouts) : 0;
        c.options = rng_u32() & (Q_WEIGHT | Q_TARGET | Q_LIMIT | Q_COUNTS | Q_CALM | Q_ZERO | (fixed ? Q_STATIC : 0));
        c.only = i % 7 ? -1 : rng_below(3) ? X_ZERO : X_PLAIN;
        quant_case(&c);
    }
    /* Rows of one source at several targets, some of them -1; the last source may have fewer. */
    c.per_expert = 0;
    for (i = 0; i < 12; i++) {
        c.rows = rows[i % COUNT(rows)], c.cols = round_up(cols[i % COUNT(cols)], granule), c.div = 1 + i % 8;
        if (SMALL && c.cols > 400) c.cols = round_up(130, granule);
        if (now.row->hidden) c.cols = now.row->hidden;
        c.layout = blocked ? i % 2 : 0, c.ue8m0 = 0, c.only = -1;
        c.options = Q_TARGET | (i % 3 ? Q_LIMIT : 0) | (i % 4 ? 0 : Q_WEIGHT) | (fixed && i % 2 ? Q_STATIC : 0);
        quant_case(&c);
    }
    for (i = 0; i < 4; i++) {                          /* one source for all, however it is said */
        c.rows = 12, c.cols = now.row->hidden ? now.row->hidden : round_up(130, granule);
        c.div = i % 2 ? 0x7fffffff : 0x40000000, c.options = i < 2 ? Q_TARGET : 0;
        quant_case(&c);
    }
    c.div = 1, c.only = -1, c.layout = c.ue8m0 = 0;
    /* More experts than blocks, and more of each than a block takes at once: blocks go on, within a row and beyond. */
    if (now.thin && now.row->quant % 3) return;
    c.per_expert = 13, c.rows = 2055 * c.per_expert, c.options = Q_COUNTS;
    c.cols = now.row->hidden ? now.row->hidden : round_up(264, granule);
    quant_case(&c);
}
