/* combine.h -- a part of test_rows.c, which includes it once: combine, repack, expand. */
enum { C_SLOT_ROW = 1, C_WEIGHTS = 2, C_ADDEND = 4, C_ALIAS = 8, C_NOBODY = 16, C_ANYBODY = 32 };

/* `exact`: integers, whose sums fit in f32 and often lie in the middle between two T. */
static void combine_fill(uint16_t *array, size_t n, int dtype, int exact)
{
    const int most = dtype == MOEK_DTYPE_FP16 ? 1024 : 128;
    size_t i;
    if (!exact) fill_t(array, n, dtype, 2);
    for (i = 0; exact && i < n; i++) array[i] = ref_to_t(rng_below(2 * most + 1) - most / 2, dtype);
}
/* What the stride of a field of combine comes to. */
static int combine_stride(int given, int hidden) { return given ? given : hidden; }

static void combine_case(int tokens, int topk, int hidden, int dtype, unsigned options)
{
    const int experts = 1 + rng_below(20), slots = tokens * topk, most = slots + 7;
    const int exact = !(options & C_WEIGHTS) && rng_below(2);
    const size_t size = (size_t)tokens * hidden;
    moek_combine_args h, d;
    int32_t *ids, *slot_row = NULL;
    uint16_t *rows, *addend;
    float *weights;
    double *y, *slack;
    void *made;
    size_t row_step, rows_all, y_all, addend_all;
    int i, y_step;
    memset(&h, 0, sizeof h);
    h.rows_stride = rows_stride(now.cases, hidden), h.y_stride = rows_stride(now.cases / 2, hidden);
    h.addend_stride = options & C_ALIAS ? h.y_stride : rows_stride(now.cases / 4, hidden);
    row_step = combine_stride(h.rows_stride, hidden), y_step = combine_stride(h.y_stride, hidden);
    rows_all = rows_size(most, hidden, (int)row_step), y_all = rows_size(tokens, hidden, y_step);
    addend_all = rows_size(tokens, hidden, combine_stride(h.addend_stride, hidden));
    SAY("tokens %d topk %d hidden %d strides %d %d %d dtype %d options %x", tokens, topk, hidden, h.rows_stride,
        h.addend_stride, h.y_stride, dtype, options);
    h.tokens = tokens, h.topk = topk, h.hidden = hidden, h.experts = experts, h.dtype = dtype;
    h.ids = ids = in_i32(slots);
    fill_ids(ids, slots, experts, options & C_NOBODY ? IDS_NONE : IDS_RANDOM);
    if (options & C_ANYBODY) h.ids = NULL;
    if (options & C_SLOT_ROW) {
        h.slot_row = slot_row = in_i32(slots);
        for (i = 0; i < slots; i++) slot_row[i] = rng_below(7) ? (i * 5 + 2) % most : -1;
    }
    h.discard = rng_below(2) && (!slot_row || most % 5);               /* (else two slots may have a row) */
    h.rows = rows = (uint16_t *)(h.discard ? scratch : in)(rows_all * 2);
    memset(rows, 0xff, rows_all * 2);
    if (options & C_WEIGHTS) h.weights = weights = in_f32(slots), fill_f32(weights, (size_t)slots, -0.5f, 1.5f);
    for (i = 0; i < slots; i++) {                      /* rows that nobody reads stay NaN, and so do their weights */
        const int row = slot_row ? slot_row[i] : i, used = row >= 0 && (!h.ids || (ids[i] >= 0 && ids[i] < experts));
        if (!used && h.weights) ((float *)h.weights)[i] = NAN;
        if (!used) continue;
        combine_fill(rows + row * row_step, (size_t)hidden, dtype, exact);
        if (rng_below(30)) continue;
        rows[row * row_step + rng_below(hidden)] = ref_to_t(rng_below(2) ? NAN : INFINITY, dtype);
    }
    h.y = out(y_all * 2);
    if (options & C_ADDEND) {
        h.addend = addend = options & C_ALIAS ? (uint16_t *)h.y : (uint16_t *)in(addend_all * 2);
        combine_fill(addend, addend_all, dtype, exact);
    }
    d = h;
    MOVE(d.rows), MOVE(d.ids), MOVE(d.slot_row), MOVE(d.weights), MOVE(d.addend), MOVE(d.y);
    if (launch_twice(&d)) {
        y = (double *)ref_alloc(size * sizeof *y), slack = (double *)ref_alloc(size * sizeof *slack);
        ref_combine(&h, y, slack);
        if (exact) memset(slack, 0, size * sizeof *slack);
        made = rows_dense("y", h.y, tokens, hidden, y_step);
        t_check(made, y, slack, size, hidden, dtype);
        free(y), free(slack), free(made);
    }
    rows_clear();
}
static void test_combine(void)
{
    static const int tokens[] = { 1, 0, 5, 33 }, topk[] = { 1, 2, 8, 10, 33 };
    static const int hidden[] = { 1, 3, 72, 64, 136, 513, 1000, 1032, 1216 };
    unsigned options;
    int t, turn = 0;
    for (options = 0; options < 64; options++)
        for (t = 0; t < COUNT(tokens); t++, turn++) {
            const int g = now.row->granule, dtype = rng_below(2) ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
            int size = hidden[turn % COUNT(hidden)];
            size = now.row->hidden ? now.row->hidden : size < 8 ? g * size : round_up(size, g);
            if (!SMALL || turn % 5 == 0) combine_case(tokens[t], topk[turn % COUNT(topk)], size, dtype, options);
        }
}

/* ---- repack ------------------------------------------------------------------------------------------------------ */

/* There, byte for byte as the contract says, and back: what came, so no byte is lost. */
static const moek_block *repack_block;                /* of the case */
static int repack_to_panels;                          /* ..., in panels */
static void repack_case(int experts, int n, int layout, size_t row_bytes, int codes, int x, int columns, int group,
                        int scale_bytes, int zeros)
{
    const int panels = now.row->arch < MOEK_ARCH_SM80;
    moek_repack_args h, d;
    size_t size, i;
    void *want;
    char *from;
    memset(&h, 0, sizeof h);
    SAY("experts %d n %d layout %d row_bytes %d codes %d x %d columns %d group %d zeros %d", experts, n, layout,
        (int)row_bytes, codes, x, columns, group, zeros);
    h.codes = codes, h.x = x, h.columns = columns, h.group = group, h.scale_bytes = scale_bytes, h.zeros = zeros;
    h.panels = panels && (!repack_block || repack_to_panels), h.block = repack_block;
    h.experts = experts, h.n = n, h.w_rows = layout ? 2 * n : n, h.row_bytes = row_bytes;
    rows_of_up(layout, n, &h.gate_first, &h.up_first, &h.w_step);
    size = (size_t)experts * h.w_rows * row_bytes;
    h.from = from = (char *)in(size), h.to = out(size);
    for (i = 0; i < size; i++) from[i] = (char)rng_u32();
    d = h, want = rows_want(h.to);
    MOVE(d.from), MOVE(d.to);
    if (launch_twice(&d)) {
        d = h, d.to = want;
        ref_repack(&d);
        rows_same("to", h.to, want);
        h.from = in(size), h.to = out(size), h.back = 1;
        memcpy((void *)h.from, rows_find(from)[1].got + ROWS_GUARD, size);               /* `to`, made behind it */
        d = h, want = rows_want(h.to);
        MOVE(d.from), MOVE(d.to);
        memcpy(want, from, size);
        if (launch_twice(&d)) rows_same("from, again", h.to, want);
        else free(want);
    } else free(want);
    rows_clear();
}
static void test_panels(void)
{
    static const int sizes[] = { 16, 32, 48, 272 };
    int i, layout;
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (now.thin ? 4 : 12); i++) {
            const int n = sizes[(i + layout) % COUNT(sizes)], group = 1 << i % 3;
            const size_t units = (size_t)(1 + i * 7 % 11);
            repack_case(1 + i % 3, n, layout, 16 * units, i % 2 ? MOEK_ELEMENT_E2M1 : MOEK_ELEMENT_U4B8, 0, 0, 0, 0, 0);
            repack_case(1 + i % 3, n, layout, (size_t)group * units, 0, 0, 0, group, 0, 0);
            repack_case(1 + i % 3, n, layout, units, 0, 0, 0, 0, 0, 1);
        }
}
/* Blocks of a format, so many a row: of the row's format, or of all that have any.  In blocks of 32 columns an even
 * number.  A row of a GPU: more of them, for it takes 512 columns at a time. */
static void tiled_blocks_case(int i, int layout, int blocks)
{
    const moek_format *const f = moek_format_of(i);
    repack_block = moek_block_of(f->file_type);
    repack_case(1 + (i + layout) % 2, 64 * (1 + (i + layout) % 3), layout,
                (size_t)(blocks * (f->file_columns < 64 ? 2 : 1)) * (size_t)f->file_bytes, 0, 0, 0, 0, 0, 0);
    repack_block = NULL;
}
/* The same in panels, of rows that are no whole units, too. */
static void test_block_panels(void)
{
    int i, layout;
    repack_to_panels = 1;
    for (i = 1; i <= FORMATS; i++) {
        const moek_format *const f = moek_format_of(i);
        if (!f || !f->only_blocks) continue;
        repack_block = moek_block_of(f->file_type);
        for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)
            repack_case(1 + (i + layout) % 2, 16 * (1 + (i + layout) % 3), layout,
                        (size_t)(1 + (i + 5 * layout) % 19) * (size_t)f->file_bytes, 0, 0, 0, 0, 0, 0);
    }
    repack_block = NULL; repack_to_panels = 0;
}
static void test_tiled_blocks(void)
{
    static const int more[] = { 1, 2, 3, 4, 5, 7, 8, 9, 13, 17 };
    int i, j, layout;
    for (i = 1; i <= FORMATS; i++) {
        if (!moek_format_of(i) || !moek_format_of(i)->only_blocks || (now.row->quant && now.row->quant != i)) continue;
        for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)
            if (!now.row->quant) tiled_blocks_case(i, layout, 1 + (i + layout) % 3);
            else
                for (j = layout % 2; j < COUNT(more); j += now.thin ? 3 : 1) tiled_blocks_case(i, layout, more[j]);
    }
}
/* A row for a format's blocks takes no others, nor anything else; a row without a format no blocks.  (Two formats have
 * the blocks of a type: x in T and in s8.) */
static void test_refuses_blocks(void)
{
    moek_repack_args a;
    int i;
    memset(&a, 0, sizeof a);
    a.experts = 1, a.w_rows = a.n = 64, a.from = out(1), a.to = out(1);
    for (i = 1; i <= FORMATS; i++) {
        const moek_format *const f = moek_format_of(i);
        if (!f || !f->only_blocks || (now.row->quant && f->file_type == now.format->file_type)) continue;
        a.block = moek_block_of(f->file_type);
        a.row_bytes = 512u / (unsigned)f->file_columns * (size_t)f->file_bytes;
        CHECK(now.row->launch(&a, NULL) == MOEK_E_ARGUMENT, "%s takes blocks of %s", now.row->name, f->name);
    }
    a.block = NULL, a.row_bytes = 128;
    if (now.row->quant) CHECK(now.row->launch(&a, NULL) == MOEK_E_ARGUMENT, "%s takes lines", now.row->name);
    rows_clear();
}
static void test_repack(void)
{
    static const int sizes[] = { 8, 16, 40, 264, 1032 }, steps[] = { 1, 2, 5, 33, 56 };
    int i, layout;
    if (now.row->arch < MOEK_ARCH_SM80) { test_panels(), test_block_panels(), test_tiled_blocks(); return; }
    test_refuses_blocks();
    if (now.row->quant) { test_tiled_blocks(); return; }
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (now.thin ? 5 : SMALL ? 12 : 25); i++)
            repack_case(1 + i % 3, sizes[i % COUNT(sizes)], layout, 128 * (size_t)steps[(i + i / 5) % COUNT(steps)],
                        0, 0, 0, 0, 0, 0);
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)
        for (i = 0; i < (now.thin ? 4 : 12); i++) {
            const int n = 64 * (1 + i * 5 % 7), group = i % 2 ? 4 : 2;
            const size_t units = (size_t)(1 + i * 7 % 11);
            repack_case(1 + i % 3, n, layout, 32 * units, i % 2 ? MOEK_ELEMENT_E2M1 : MOEK_ELEMENT_U4B8,
                        i / 2 % 2 ? MOEK_ELEMENT_E4M3 : MOEK_ELEMENT_T, (i / 4 + layout) % 2 ? 32 : 16, 0, 0, 0);
            repack_case(1 + i % 3, n, layout, units * (size_t)group, 0, 0, 0, group, i % 4 == 3 ? 4 : 1 + i / 2 % 2,
                        0);
            repack_case(1 + i % 3, n, layout, units, 0, 0, 0, 1 + i % 2, 0, 1);
            repack_case(1 + i % 3, n, layout, 32 * units, i % 2 ? MOEK_ELEMENT_E4M3 : MOEK_ELEMENT_S8,
                        MOEK_ELEMENT_T, 0, 0, 0, 0);
        }
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

static const moek_format *format_that_expands(int columns)
{
    int i = 0;
    while (!format_at(i)->expands || format_at(i)->w_scale.columns != columns) i++;
    return format_at(i);
}
/* spread: of scales, in powers of 2; a NaN among the scales of 32 columns if it is the largest there is. */
static void expand_case(int experts, int n, int k, int layout, int columns, int spread)
{
    const size_t w_rows = layout ? 2 * (size_t)n : (size_t)n, rows = experts * w_rows;
    const size_t groups = (size_t)(k / columns), blocks = rows * 2 * ((size_t)k / 128 + 1);
    uint8_t *const codes = (uint8_t *)ref_alloc(rows * k / 2), *const scales = (uint8_t *)ref_alloc(rows * groups);
    moek_expand_args h, d;
    moek_gemm_args w;
    size_t i;
    void *want, *want_scale;
    memset(&h, 0, sizeof h);
    memset(&w, 0, sizeof w);
    SAY("experts %d n %d k %d layout %d columns %d spread %d", experts, n, k, layout, columns, spread);
    h.experts = experts, h.n = n, h.k = k, h.w_rows = (int)w_rows, h.columns = columns;
    rows_of_up(layout, n, &h.gate_first, &h.up_first, &h.w_step);
    for (i = 0; i < rows * k / 2; i++) codes[i] = (uint8_t)rng_u32();
    for (i = 0; i < rows * groups; i++)
        scales[i] = (uint8_t)(columns == 32 ? 120 + rng_below(spread) : rng_below(8 * spread));
    if (columns == 32 && spread > 30) scales[rng_below((uint32_t)(rows * groups))] = 255, scales[0] = 0;
    if (columns == 16) memset(scales, 0, groups);      /* a row of zeros, and sometimes one with a NaN */
    if (columns == 16 && spread > 9) scales[groups + (size_t)rng_below((int)(rows - 1) * (int)groups)] = 127;
    w.experts = experts, w.n = n, w.k = k, w.w_rows = h.w_rows, w.w.codes = codes, w.w.scales = scales;
    w.gate_first = h.gate_first, w.up_first = h.up_first, w.w_step = h.w_step;
    to_fragments(&w, format_that_expands(columns), 0);
    h.w = w.w.codes, h.w_scale = w.w.scales;
    if (columns == 16) {
        h.w_global_scale = (const float *)in(2 * (size_t)experts * sizeof(float));
        fill_f32((float *)(uintptr_t)h.w_global_scale, 2 * (size_t)experts, 0.5f, 2);
    }
    h.to = out(rows * k), h.to_scale = (float *)out(4 * (columns == 16 ? rows : blocks));
    d = h, want = rows_want(h.to), want_scale = rows_want(h.to_scale);
    MOVE(d.w), MOVE(d.w_scale), MOVE(d.w_global_scale), MOVE(d.to), MOVE(d.to_scale);
    if (launch_twice(&d)) {
        const float *const scale = (const float *)got(h.to_scale);
        d = h, d.to = want, d.to_scale = (float *)want_scale;
        ref_expand(&d, codes, scales);
        for (i = 0; i < (columns == 16 ? rows : blocks); i++)          /* one NaN is as good as another */
            if (scale[i] != scale[i] && d.to_scale[i] != d.to_scale[i]) {
                d.to_scale[i] = scale[i];
                if (columns == 16) memcpy((char *)want + i * k, (const char *)got(h.to) + i * k, (size_t)k);
            }
        rows_same("to", h.to, want);
        rows_same("to_scale", h.to_scale, want_scale);
    } else free(want), free(want_scale);
    free(codes), free(scales);
    rows_clear();
}
static void test_expand(void)
{
    static const int n[] = { 64, 128, 192, 448 }, k[] = { 64, 128, 192, 576, 1024 };
    int i, layout;
    for (layout = 0; layout <= MOEK_UP_SWAPPED; layout++)      /* 0: not gated */
        for (i = 0; i < (now.thin ? 6 : SMALL ? 10 : 20); i++) {
            expand_case(1 + i % 3, n[i % COUNT(n)], k[(i + layout) % COUNT(k)], layout, 32,
                        i % 2 ? 10 : i % 4 ? 20 : 40);
            expand_case(1 + i % 2, n[i % COUNT(n)], k[(i + layout) % COUNT(k)], layout, 16, i % 3 ? 15 : 9);
        }
}
