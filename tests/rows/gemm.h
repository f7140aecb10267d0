/* gemm.h -- a part of test_rows.c, which includes it once: up and down: arrays of a case. */
/* How far y must move for T(y) to be this code: beyond the middle between it and its neighbour nearer y; -1: it is. */
static double t_needed(double y, unsigned code, int dtype)
{
    const ref_number *f = ref_t(dtype);
    const double *const values = ref_table_(f), g = values[code];
    unsigned neighbour = fabs(g) > fabs(y) ? code - 1 : code + 1;
    if (g == ref_round_t(y, dtype)) return -1;
    if (g == 0) neighbour = y < 0 ? ref_sign_bit(f) + 1 : 1;
    return fabs(y - 0.5 * (g + values[neighbour]));
}
/* In parts of what is allowed, where y may be off by slack before it is rounded once, to nearest; below 1: right. */
static double t_error(unsigned code, double y, double slack, int dtype)
{
    const double g = ref_table_(ref_t(dtype))[code];
    double needed;
    if (y == REF_UNWRITTEN) return code == (ROWS_POISON << 8 | ROWS_POISON) ? 0 : INFINITY;
    if (isnan(y)) return isnan(g) ? 0 : INFINITY;
    if (isinf(y)) return g == y ? 0 : INFINITY;
    needed = t_needed(y, code, dtype);
    return needed < 0 && needed < slack ? 0 : needed / slack;
}
static void t_check(const void *result, const double *y, const double *slack, size_t n, int columns, int dtype)
{
    const uint16_t *const code = (const uint16_t *)result;
    size_t i, bad = n;
    double most = 0;
    int ok = 0;
#ifdef _OPENMP
#pragma omp parallel for reduction(max : most) reduction(min : bad) if (n > 10000)
#endif
    for (i = 0; i < n; i++) {
        const double error = t_error(code[i], y[i], slack[i], dtype);
        if (error > most) most = error;
        if (!(error < 1) && i < bad) bad = i;
    }
    worse(most);
    if (!n) return;
    if (bad == n) bad = 0, ok = 1;
    CHECK(ok, "%s: %s: row %d column %d is %.9g, not %.9g (off by at most %.3g before rounding)%s", now.row->name,
          now.what, (int)(bad / (size_t)columns), (int)(bad % (size_t)columns), ref_get_t(result, bad, dtype), y[bad],
          slack[bad], y[bad] == REF_UNWRITTEN ? ": nobody's row" : "");
}

enum { ORDER_IN = 1, ORDER_OUT = 2 };
typedef struct gemm_case_t {
    int up, dtype, act, layout, bias, experts, topk, slots, batched, n, k, kind, order, bad, turn;
    int a_power, w_power;                              /* scales are 2^this larger */
    int spread;                                        /* scales of w are up to 2^this smaller, each by itself */
} gemm_case_t;

/* What the table says of the row (codegen/columns.py). */
static int row_does(int trait) { return (now.row->traits & trait) != 0; }

/* Kernels for sets of instructions of CPUs that do what the row does, which is plain C: they take its cases, for most
 * of the time goes into the oracle.  Blocks of such a kernel, where its height is another. */
static struct gemm_set { const moek_kernel *row; double worst; int cases; } gemm_set[6];
static int gemm_sets_there;
static moek_sort_args gemm_set_blocks;

/* The sorted rows of each expert, as the row will get them: offsets, order, counts and the blocks, or counts only. */
static void gemm_rows(const gemm_case_t *c, moek_gemm_args *h)
{
    const int self = row_does(MOEK_TRAIT_COUNTS_IDS) ||
                     (row_does(MOEK_TRAIT_SORTS_IDS) && c->slots <= MOEK_SELF_SORT);
    const int block_m = now.row->m ? now.row->m : 16, blocks = moek_max_blocks(c->slots, c->experts, block_m);
    moek_sort_args s;
    int32_t *ids = (int32_t *)ref_alloc((size_t)c->slots * 4);
    memset(&s, 0, sizeof s);
    h->experts = c->experts;
    s.slots = c->slots, s.experts = c->experts, s.block_m = block_m, s.ids = ids, s.counts = in_i32(c->experts);
    fill_ids(ids, c->slots, c->experts, c->kind);
    h->rows.counts = s.counts;
    if (!c->batched && c->order == (c->up ? ORDER_IN : ORDER_OUT) && self) {
        int32_t *own = in_i32(c->slots);
        memcpy(own, ids, (size_t)c->slots * 4);
        h->ids = own;
    }
    if (c->batched) {
        h->rows_per_expert = s.rows_per_expert = 1 + c->slots / 2;
        h->max_blocks = (h->rows_per_expert + block_m - 1) / block_m;
        s.slot_row = (int32_t *)ref_alloc((size_t)c->slots * 4);
        ref_sort(&s);
        free(s.slot_row);
    } else {
        s.offsets = in_i32(c->experts + 1), s.order = in_i32(c->slots), s.num_blocks = in_i32(1);
        s.block_expert = in_i32(blocks), s.block_row = in_i32(blocks);
        ref_sort(&s);
        h->rows.offsets = s.offsets, h->rows.block_expert = s.block_expert, h->rows.block_row = s.block_row;
        h->rows.num_blocks = s.num_blocks, h->max_blocks = blocks;
        h->rows.div = 1;
        if (c->order & ORDER_IN) h->rows.order = s.order, h->rows.div = c->topk;
        if (c->order & ORDER_OUT) h->rows.out_order = s.order;
        if (gemm_sets_there) {
            const int more = moek_max_blocks(c->slots, c->experts, gemm_set[0].row->m);
            s.block_m = gemm_set[0].row->m, s.num_blocks = in_i32(1);
            s.block_expert = in_i32(more), s.block_row = in_i32(more);
            ref_sort(&s);
            gemm_set_blocks = s;
        }
    }
    free(ids);
}
/* Elements that are 1 on average, and scales that leave them so. */
static void gemm_a_row(const moek_gemm_args *h, void *a, size_t row_bytes, void *scale, int row)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->x, h->dtype), *type = ref_scale_type(f->x_scale.type, h->dtype);
    const size_t groups = moek_scale_count(&f->x_scale, 1, (size_t)(h->k_offset + h->k));
    const double size = 1 / ref_spread(number);
    fill_codes((uint8_t *)a + row * row_bytes, (size_t)h->k, number, ref_spread(number));
    if (format_by_tensor(f)) fill_scales(scale, 1, type, size, size);
    else if (groups) fill_scales((char *)scale + row * ref_bytes(type, groups), groups, type, size * 0.5, size * 1.5);
}
/* a: rows that nobody reads stay NaN.  `bad`: one row gets a NaN (or an Inf), which must stay in what is made of it. */
static void gemm_a(const gemm_case_t *c, moek_gemm_args *h)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->x, h->dtype);
    const int rows = c->batched ? c->experts * h->rows_per_expert : c->slots;
    const size_t k_bytes = moek_element_bytes(f->x, (size_t)h->k);
    const size_t row_bytes = now.cases % 3 == 1 ? k_bytes + 16 - k_bytes % 16 + 16 * (now.cases % 5) : k_bytes;
    uint8_t *a = (uint8_t *)in(rows ? (rows - 1) * row_bytes + k_bytes : 0);
    void *scale = f->x_scale.type ? in((size_t)(rows + 1) * moek_scale_bytes(&f->x_scale, 1,
                                                                            (size_t)(h->k_offset + h->k))) : NULL;
    int e, p, bad = -1;
    h->a_rows = rows, h->a = a, h->a_scale = (const float *)scale;
    h->a_row_bytes = row_bytes == k_bytes ? 0 : (int)row_bytes;
    for (e = 0; e < h->experts; e++) {
        const int begin = c->batched ? e * h->rows_per_expert : h->rows.offsets[e];
        const int end = c->batched ? begin + h->rows.counts[e] : h->rows.offsets[e + 1];
        for (p = begin; p < end; p++) {
            const int row = h->rows.order ? h->rows.order[p] / h->rows.div : p;
            gemm_a_row(h, a, row_bytes, scale, row);
            if (bad < 0 || rng_below(3) == 0) bad = row;
        }
    }
    if (!c->bad || bad < 0) return;
    ref_put_code(number, a + bad * row_bytes, (size_t)rng_below(h->k),
                 number->inf && c->bad != 1 ? number->top : ref_nan(number));
}
/* Where gate and up lie among n rows each. */
static void rows_of_up(int layout, int n, int *gate_first, int *up_first, int *w_step)
{
    *w_step = layout == MOEK_UP_INTERLEAVED ? 2 : 1;
    *gate_first = layout == MOEK_UP_SWAPPED ? n : 0;
    *up_first = layout == MOEK_UP_SWAPPED ? 0 : layout == MOEK_UP_INTERLEAVED ? 1 : n;
}
/* Does the row read weights as fragments only? */
static int gemm_in_fragments(void) { return now.row->reads == MOEK_READS_FRAGMENTS; }
static int gemm_in_panels(void) { return now.row->reads == MOEK_READS_PANELS; }
/* w and w_scale of the row, from a checkpoint's; of format f and its block. */
static void to_fragments(moek_gemm_args *h, const moek_format *f, int block)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    const size_t rows = (size_t)h->experts * h->w_rows;
    moek_repack_args r;
    memset(&r, 0, sizeof r);
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = moek_weight_bytes(f, MOEK_WEIGHTS_TILED, (size_t)h->k), r.codes = f->w, r.x = f->x;
    r.columns = of.columns;
    if (f->only_blocks) r.block = moek_block_of(f->file_type), r.codes = 0;
    r.from = h->w.codes, r.to = in(rows * r.row_bytes);
    ref_repack(&r);
    h->w.codes = r.to;
    h->w.layout = 1;
    if (!of.columns || of.rows != 1) return;           /* scales act on sums: as they come */
    r.codes = 0, r.row_bytes = moek_scale_bytes(&of, 1, (size_t)h->k);
    r.scale_bytes = ref_scale_type(of.type, h->dtype)->width / 8;
    r.group = r.scale_bytes * (of.columns < 64 ? 64 / of.columns : 1);
    r.from = h->w.scales, r.to = in(rows * r.row_bytes);
    ref_repack(&r);
    h->w.scales = r.to;
}
/* Zero points, as to_fragments has weights. */
static const void *gemm_tiled_zeros(const moek_gemm_args *h, const void *zero)
{
    const moek_scale_shape of = moek_weight_scale(now.format, now.row->block);
    moek_repack_args r;
    if (!zero || !of.columns) return zero;
    memset(&r, 0, sizeof r);
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = moek_element_bytes(now.format->w, moek_scale_count(&of, 1, (size_t)h->k));
    r.zeros = 1, r.group = of.columns < 64 ? 64 / of.columns : 1;
    r.from = zero, r.to = in((size_t)h->experts * h->w_rows * r.row_bytes);
    ref_repack(&r);
    return r.to;
}
static void gemm_to_fragments(moek_gemm_args *h)
{
    h->w.zero_points = gemm_tiled_zeros(h, h->w.zero_points);
    to_fragments(h, now.format, now.row->block);
}
/* An array of rows of w, of scales or of zero points, in panels; apart: of gate or of up alone. */
static const void *gemm_panels_of(const moek_gemm_args *h, const void *from, size_t row_bytes, int codes, int group,
                                  int zeros)
{
    moek_repack_args r;
    if (!from) return NULL;
    memset(&r, 0, sizeof r);
    r.panels = 1, r.experts = h->experts, r.w_rows = h->gate.codes ? h->n : h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.row_bytes = row_bytes, r.codes = codes, r.group = group, r.zeros = zeros;
    if (now.format->only_blocks) r.block = moek_block_of(now.format->file_type), r.codes = r.group = 0;
    r.from = from, r.to = in((size_t)h->experts * r.w_rows * row_bytes);
    ref_repack(&r);
    return r.to;
}
static void gemm_to_panels(moek_gemm_args *h)
{
    const moek_format *const f = now.format;
    const moek_scale_shape of = moek_weight_scale(f, now.row->block);
    const size_t row = moek_weight_bytes(f, MOEK_WEIGHTS_PANELS, (size_t)h->k);
    const moek_gemm_args was = *h;
    const int codes = f->w_bits == 4 ? f->w : 0;
    size_t zeros, scales;
    int each;
    h->w.layout = MOEK_WEIGHTS_PANELS;
    h->w.codes = gemm_panels_of(&was, was.w.codes, row, codes, 4, 0);
    h->gate.codes = gemm_panels_of(&was, was.gate.codes, row, codes, 4, 0);
    if (!of.columns) return;                           /* as they come */
    zeros = moek_element_bytes(f->w, moek_scale_count(&of, 1, (size_t)(h->k + h->k_offset)));
    h->w.zero_points = gemm_panels_of(&was, was.w.zero_points, zeros, 0, 1, 1);
    h->gate.zero_points = gemm_panels_of(&was, was.gate.zero_points, zeros, 0, 1, 1);
    if (of.rows != 1) return;
    scales = moek_scale_bytes(&of, 1, (size_t)(h->k + h->k_offset));
    each = ref_scale_type(of.type, h->dtype)->width / 8;
    h->w.scales = gemm_panels_of(&was, was.w.scales, scales, 0, each, 0);
    h->gate.scales = gemm_panels_of(&was, was.gate.scales, scales, 0, each, 0);
}
/* Of so many rows of w, of an expert, and matrices in them; a global scale leaves the others an eighth. */
enum { GLOBAL_SCALE = 8 };
static void gemm_w_more(const gemm_case_t *c, moek_gemm_args *h, int of_expert, int matrices)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->w, h->dtype);
    const size_t groups = moek_scale_count(&f->w_scale, 1, (size_t)(h->k_offset + h->k));
    const size_t row = moek_element_bytes(f->w, groups), rows = (size_t)h->experts * of_expert;
    float *second;
    uint8_t *zero;
    size_t r, g;
    if (f->global_scale) {
        h->w.global_scale = second = in_f32(h->experts * matrices);
        fill_f32(second, (size_t)h->experts * matrices, 0.5f / GLOBAL_SCALE, 2.0f / GLOBAL_SCALE);
    }
    if (!f->zero || c->turn % 3 == 0) return;
    h->w.zero_points = zero = (uint8_t *)in(rows * row);
    for (r = 0; r < rows; r++)
        for (g = 0; g < groups; g++)
            ref_put_code(number, zero + r * row, g, (unsigned)rng_below(1 << number->width));
}
/* So many rows of w, of an expert, and so many rows of scales that rows share, to h->w. */
static void gemm_w_array(const gemm_case_t *c, moek_gemm_args *h, int of_expert, int scale_rows, int matrices)
{
    const moek_format *const f = now.format;
    const ref_number *const number = ref_element(f->w, h->dtype), *type = ref_scale_type(f->w_scale.type, h->dtype);
    const size_t rows = (size_t)h->experts * of_expert;
    const size_t groups = moek_scale_count(&f->w_scale, 1, (size_t)(h->k_offset + h->k));
    const size_t scales = groups * (f->w_scale.rows == 0 ? (size_t)h->experts : f->w_scale.rows == 1 ? rows :
                                    (size_t)h->experts * scale_rows);
    const double size = 1.5 / sqrt((double)h->k);
    const double scale = size / ref_spread(number) * (f->global_scale ? GLOBAL_SCALE : 1);
    void *w, *bias, *scaled;
    if (c->bias) h->w.bias = bias = in(rows * 2), fill_t(bias, rows, h->dtype, 0.5);
    h->w.codes = w = in(rows * moek_weight_bytes(f, 0, (size_t)h->k));
    if (f->only_blocks) {
        h->w.layout = MOEK_WEIGHTS_BLOCKS;
        block_fill(f, w, rows, (size_t)h->k, size * (f->global_scale ? GLOBAL_SCALE : 1), rng_u32());
        gemm_w_more(c, h, of_expert, matrices);
        return;
    }
    fill_codes(w, rows * h->k, number, scales ? ref_spread(number) : size);
    if (!scales) return;
    scaled = in(ref_bytes(type, scales));
    fill_scales(scaled, scales, type, scale * 0.5, scale * 1.5);
    if (format_integers(f)) fill_signs(scaled, scales, type);
    h->w.scales = (const float *)scaled;
    gemm_w_more(c, h, of_expert, matrices);
}
/* Rows of scales that so many rows have, where rows share them. */
static int gemm_blocks_of(int rows)
{
    const int share = now.format->w_scale.rows;
    return share ? (rows + share - 1) / share : 1;
}
static void gemm_w(const gemm_case_t *c, moek_gemm_args *h)
{
    const int gated = h->w_rows > h->n, apart = gated && c->layout == MOEK_UP_SEPARATE;
    const int blocks = gemm_blocks_of(h->n_offset + h->n);
    moek_gemm_args gate = *h;
    if (!apart) {
        gemm_w_array(c, h, h->w_rows,
                     gated && !h->scales_separate ? gemm_blocks_of(h->w_rows) : blocks * (1 + gated), 1 + gated);
        return;
    }
    gemm_w_array(c, c->turn / 2 % 2 ? &gate : h, h->n, blocks, 1);      /* either may lie first in memory */
    gemm_w_array(c, c->turn / 2 % 2 ? h : &gate, h->n, blocks, 1);
    h->gate = gate.w;
}
/* Scales by a power of two. */
static void gemm_power(const void *scale, const ref_number *type, int power)
{
    const size_t n = rows_find(scale)->bytes * 8 / (size_t)type->width;
    size_t i;
    for (i = 0; i < n; i++) ref_put(type, (void *)scale, i, ldexp(ref_get(type, scale, i), power));
}
/* Scales of w by powers of two up to 2^-spread: a third as they are, a third by about 2^-11. */
static void gemm_spread(const void *scale, const ref_number *type, int spread)
{
    const size_t n = rows_find(scale)->bytes * 8 / (size_t)type->width;
    size_t i;
    for (i = 0; i < n; i++) {
        const int kind = rng_below(3), by = !kind ? 0 : kind == 1 ? 9 + rng_below(5) : rng_below(spread + 1);
        ref_put(type, (void *)scale, i, ldexp(ref_get(type, scale, i), -by));
    }
}
/* Of a shard in its block of so many rows or columns: as the row takes them. */
static int gemm_offset(int turn, int block)
{
    const int g = now.row->granule;
    return block > g ? g * (1 + turn % ((block - 1) / g)) : 0;
}
static void gemm_act(const gemm_case_t *c, moek_gemm_args *h)
{
    const int gated = ref_gated(c->act);
    h->epilogue.act = c->act;
    now.acts |= 1u << c->act;
    h->epilogue.alpha = c->turn % 2 ? 1.702f : 1, h->epilogue.beta = c->turn % 3 ? 1 : 0.5f;
    h->epilogue.limit = c->turn % 4 ? 1.5f : 7;
    if (c->act == MOEK_SILU && c->turn % 2) h->epilogue.limit = 0;
    if (c->act == MOEK_SITU && c->turn % 2) h->epilogue.beta = 0;
    rows_of_up(c->layout, h->n, &h->gate_first, &h->up_first, &h->w_step);
    if (c->layout == MOEK_UP_SEPARATE) h->gate_first = h->up_first = h->w_step = -7;     /* not to be read */
    if (!format_rows_share(now.format) || c->layout == MOEK_UP_INTERLEAVED) return;
    h->scales_separate = gated && c->layout != MOEK_UP_SEPARATE && c->turn % 3 == 1;
    if (now.row->op == MOEK_OP_UP && (!gated || h->scales_separate || c->layout == MOEK_UP_SEPARATE) && c->turn / 3 % 2)
        h->n_offset = gemm_offset(c->turn, now.format->w_scale.rows);
}
static void gemm_move_matrix(moek_matrix *m)
{
    MOVE(m->codes), MOVE(m->scales), MOVE(m->bias), MOVE(m->global_scale), MOVE(m->zero_points);
}
/* All that a row takes, on its side. */
static void gemm_move(moek_gemm_args *d)
{
    moek_gemm_rows *const rows = &d->rows;
    gemm_move_matrix(&d->w), gemm_move_matrix(&d->gate);
    MOVE(d->a), MOVE(d->a_scale), MOVE(d->a_global_scale), MOVE(d->out), MOVE(d->q), MOVE(d->q_scale);
    MOVE(rows->order), MOVE(rows->out_order), MOVE(rows->offsets), MOVE(rows->counts), MOVE(rows->block_expert);
    MOVE(rows->block_row), MOVE(rows->num_blocks), MOVE(d->ids), MOVE(d->split), MOVE(d->split_flags);
}
/* What lets a row of sm90 cut tiles along k, or count tiles that are taken. */
static void gemm_split(moek_gemm_args *h)
{
    if (now.row->scratch) h->split = (float *)scratch((size_t)MOEK_SPLITS * now.row->scratch);
    if (!now.row->flags) return;
    h->split_flags = (int32_t *)scratch((size_t)now.row->flags * 4);
    memset(h->split_flags, 0, (size_t)now.row->flags * 4);
}
static moek_gemm_args gemm_moved(const moek_gemm_args *h)
{
    moek_gemm_args d = *h;
    gemm_move(&d);
    return d;
}
