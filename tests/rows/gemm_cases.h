/* gemm_cases.h -- a part of test_rows.c, which includes it once: up and down: launches and cases. */
static struct { double *y, *slack; } gemm_want;       /* of the case: made for its first launch */
/* Where weights become T in front of the product, bf16 sums are made 2^32 times too small, and terms below 2^-117 are
 * lost.  (gemm_codes has 64 of them.) */
static double gemm_lost(void)
{
    return ref_w_in_t && !format_plain(now.format) && !format_quantizes(now.format) ? ldexp(1, -117 + 6) : 0;
}
/* Elements of T that differ.  (A NaN may have any sign.) */
static size_t gemm_others(const uint16_t *made, const uint16_t *want, size_t n, int dtype)
{
    size_t i, other = 0;
    for (i = 0; i < n; i++)
        other += made[i] != want[i] && !(isnan(ref_get_t(made, i, dtype)) && isnan(ref_get_t(want, i, dtype)));
    return other;
}
/* The case by the kernels for sets of instructions, each compared with the oracle, and with the first of its height:
 * the same bits. */
static void gemm_sets(const moek_gemm_args *of, const moek_gemm_args *h, size_t size)
{
    const moek_kernel *const own = now.row;
    const double worst = now.worst;
    const int cases = now.cases;
    const uint16_t *const made = (const uint16_t *)got(h->out);
    uint16_t *result[1 + COUNT(gemm_set)];             /* of the row, and of each set */
    int i, j;
    for (i = 0; i < COUNT(result); i++) result[i] = (uint16_t *)ref_alloc(size * 2);
    memcpy(result[0], made, size * 2);
    for (i = 0; i < gemm_sets_there; i++) {
        moek_gemm_args d = *of;
        now.row = gemm_set[i].row, now.cases = cases - 1, now.worst = gemm_set[i].worst;
        if (now.row->m != own->m && d.rows.block_expert) {
            d.rows.block_expert = gemm_set_blocks.block_expert, d.rows.block_row = gemm_set_blocks.block_row;
            d.rows.num_blocks = gemm_set_blocks.num_blocks;
            MOVE(d.rows.block_expert), MOVE(d.rows.block_row), MOVE(d.rows.num_blocks);
        }
        if (launch_twice(&d)) {
            t_check(made, gemm_want.y, gemm_want.slack, size, h->n, h->dtype);
            for (j = 0; (j ? gemm_set[j - 1].row : own)->m != now.row->m; j++) continue;
            if (j <= i) {
                const size_t other = gemm_others(made, result[j], size, h->dtype);
                CHECK(!other, "%s: %s: %lu of %lu elements of out have other bits than by %s", now.row->name, now.what,
                      (unsigned long)other, (unsigned long)size, (j ? gemm_set[j - 1].row : own)->name);
            }
            gemm_set[i].worst = now.worst, gemm_set[i].cases++;
        }
        memcpy(result[i + 1], made, size * 2);
    }
    now.row = own, now.worst = worst, now.cases = cases;
    memcpy(got(h->out), result[0], size * 2);
    for (i = 0; i < COUNT(result); i++) free(result[i]);
}
/* `exact`: all sums fit in f32, so only the rounding to T may show, and other neighbours of weights. */
static void gemm_launch_as(const moek_gemm_args *as, const moek_gemm_args *h, int up, size_t size, int exact)
{
    const moek_gemm_args d = gemm_moved(as);
    size_t i;
    if (!launch_twice(&d)) return;
    if (!gemm_want.y) {
        gemm_want.y = (double *)ref_alloc(size * sizeof(double));
        gemm_want.slack = (double *)ref_alloc(size * sizeof(double));
        for (i = 0; i < size; i++) gemm_want.y[i] = REF_UNWRITTEN;
        rows_say("the reference");
        (up ? ref_up : ref_down)(h, now.format, gemm_want.y, gemm_want.slack);
        for (i = 0; exact && !ref_may_be_off(now.format, up, h->dtype) && i < size; i++)
            gemm_want.slack[i] = gemm_lost();
    }
    t_check(got(h->out), gemm_want.y, gemm_want.slack, size, h->n, h->dtype);
    if (gemm_sets_there) gemm_sets(&d, h, size);
}
static void gemm_clear(void)
{
    free(gemm_want.y), free(gemm_want.slack);
    gemm_want.y = gemm_want.slack = NULL;
    rows_clear();
}
static void gemm_launch(const moek_gemm_args *h, int up, size_t size, int exact)
{
    moek_gemm_args as = *h;                            /* as the row reads weights */
    if (gemm_in_fragments()) gemm_to_fragments(&as);
    if (gemm_in_panels()) gemm_to_panels(&as);
    gemm_launch_as(&as, h, up, size, exact);
}
#if MEM_CUDA
/* Launched early, behind a kernel that has not written a and its scales yet (nor a_order, if the row counts slots): the
 * same bits. */
static void gemm_late(const moek_gemm_args *h)
{
    moek_gemm_args d = gemm_moved(h);
    d.early = 1;
    late_begin(d.a, h->a);
    if (h->a_scale) late_begin(d.a_scale, h->a_scale);
    if (h->slots) late_begin(d.rows.order, h->rows.order);
    rows_again("out behind a late kernel", &d, h->out);
    late_end();
}
#endif
/* w of a GEMM as a tiled one; NULL: it cannot be. */
static const void *gemm_tiles(const moek_gemm_args *h)
{
    moek_repack_args r;
    memset(&r, 0, sizeof r);
    r.row_bytes = moek_element_bytes(now.format->w, (size_t)h->k);
    if (r.row_bytes % 128 || h->n % 8 || h->gate.codes || h->k_offset) return NULL;
    r.experts = h->experts, r.w_rows = h->w_rows, r.n = h->n;
    r.gate_first = h->gate_first, r.up_first = h->up_first, r.w_step = h->w_step;
    r.from = h->w.codes, r.to = in((size_t)h->experts * h->w_rows * r.row_bytes);
    ref_repack(&r);
    return r.to;
}
/* The same bits from tiled weights, on sm90. */
static void gemm_tiled(const moek_gemm_args *h)
{
    moek_gemm_args tiled = *h;
    moek_gemm_args d;
    const int blocks = h->w.layout == MOEK_WEIGHTS_BLOCKS;
    if (now.row->reads & MOEK_READS_PANELS && !(blocks && format_has_arrays(now.format)) && h->n % 16 == 0 &&
        h->k % 32 == 0 && h->k_offset % 32 == 0) {
        gemm_to_panels(&tiled);
        d = gemm_moved(&tiled);
        rows_again("out of panels", &d, h->out);
    }
    if (blocks || !(now.row->reads & MOEK_READS_LINES) || !(tiled.w.codes = gemm_tiles(h))) return;
    tiled.w.layout = 1;
    d = gemm_moved(&tiled);
    rows_again("out of tiled weights", &d, h->out);
}
/* The row quantizes by itself: the codes of what it made before, and nothing else. */
static void gemm_requantized(const moek_gemm_args *h, int rows)
{
    moek_gemm_args d = *h;
    moek_quant_args made, want;
    int32_t *const target = (int32_t *)ref_alloc((size_t)rows * 4);
    void *const x = ref_alloc((size_t)rows * h->n * 2);
    int e, p;
    memcpy(x, got(h->out), (size_t)rows * h->n * 2);
    memset(target, 0xff, (size_t)rows * 4);
    for (e = 0; e < h->experts; e++) {
        const int begin = h->rows_per_expert ? e * h->rows_per_expert : h->rows.offsets[e];
        for (p = begin; p < begin + h->rows.counts[e]; p++) {
            const int row = h->rows.out_order ? h->rows.out_order[p] : p;
            target[row] = row;
        }
    }
    memset(&made, 0, sizeof made);
    made.rows = rows, made.cols = h->n, made.source_div = 1, made.dtype = h->dtype, made.x = x, made.target = target;
    made.ue8m0 = d.epilogue.ue8m0 = now.format->ue8m0 && now.cases % 2;
    made.q = d.q = out((size_t)rows * moek_element_bytes(now.format->x, (size_t)h->n));
    if (format_by_tensor(now.format)) {
        d.q_scale = in_f32(1);
        *d.q_scale = ldexpf(0.3f + rng_uniform(), -rng_below(9));
        made.static_scale = d.q_scale;
    } else {
        made.scale = d.q_scale = (float *)out((size_t)rows * moek_scale_bytes(&now.format->x_scale, 1, (size_t)h->n));
    }
    want = made;
    want.q = rows_want(made.q);
    want.scale = made.scale ? rows_want(made.scale) : ref_alloc(4);
    gemm_move(&d);
    if (launch_twice(&d)) {
        ref_quant(&want, now.format);
        quant_same(&made, rows, want.q);
        if (made.scale) rows_same("scale", made.scale, want.scale);
        else free(want.scale);
        rows_same("out", h->out, rows_want(h->out));
    }
    free(want.q), free(target), free(x);
}
static void gemm_case(const gemm_case_t *c)
{
    const moek_format *const f = now.format;
    const int columns = ref_columns(f);
    moek_gemm_args h, as;                              /* as: as the row reads weights */
    size_t rows;
    memset(&h, 0, sizeof h);
    SAY("turn %d n %d k %d act %d layout %d bias %d experts %d topk %d slots %d batched %d kind %d order %d bad %d "
        "dtype %d", c->turn, c->n, c->k, c->act, c->layout, c->bias, c->experts, c->topk, c->slots, c->batched, c->kind,
        c->order, c->bad, c->dtype);
    h.n = c->n, h.k = c->k, h.dtype = c->dtype, h.w_rows = c->up && ref_gated(c->act) ? 2 * c->n : c->n;
    gemm_rows(c, &h);
    if (c->up) gemm_act(c, &h);
    else if (columns && c->turn % 4 == 2 && !gemm_in_fragments()) h.k_offset = gemm_offset(c->turn / 4, columns);
    if (gemm_in_panels() || (now.row->reads & MOEK_READS_PANELS && c->turn % 8 == 6)) h.k_offset -= h.k_offset % 32;
    gemm_a(c, &h);
    gemm_w(c, &h);
    if (format_x_second(f)) {
        float *const second = in_f32(1);
        fill_f32(second, 1, 0.5f, 2);
        h.a_global_scale = second;
    }
    if (c->a_power) gemm_power(h.a_scale, ref_scale_type(f->x_scale.type, c->dtype), c->a_power);
    if (c->w_power) gemm_power(h.w.scales, ref_scale_type(f->w_scale.type, c->dtype), c->w_power);
    if (c->spread) {                                   /* and one is NaN */
        const ref_number *const type = ref_scale_type(f->w_scale.type, c->dtype);
        gemm_spread(h.w.scales, type, c->spread);
        ref_put_code(type, (void *)h.w.scales, (size_t)rng_below((int)rows_find(h.w.scales)->bytes * 8 / type->width),
                     ref_nan(type));
    }
    rows = c->batched ? (size_t)c->experts * h.rows_per_expert : (size_t)c->slots;
    h.out = out(rows * c->n * 2);
    if (c->turn % 3 == 0) gemm_split(&h);
    as = h;
    if (gemm_in_fragments()) gemm_to_fragments(&as);
    if (gemm_in_panels()) gemm_to_panels(&as);
    if (h.ids) {                                       /* it sorts by itself; no result of sort is there to be read */
        moek_gemm_args self = as;
        self.slots = c->slots;
        self.rows.counts = self.rows.offsets = NULL;
        if (row_does(MOEK_TRAIT_SORTS_IDS)) self.rows.order = self.rows.out_order = NULL;
        gemm_launch_as(&self, &h, c->up, rows * c->n, 0);
#if MEM_CUDA
        if (row_does(MOEK_TRAIT_COUNTS_IDS) && c->slots < 1000) gemm_late(&self);
#endif
    }
    h.ids = as.ids = NULL;
    gemm_launch_as(&as, &h, c->up, rows * c->n, 0);
    if (!as.w.layout || as.w.layout == MOEK_WEIGHTS_BLOCKS) gemm_tiled(&h);
#if MEM_CUDA
    if (row_does(MOEK_TRAIT_EARLY) && c->turn % 2 && c->slots < 1000) gemm_late(&as);
#endif
    if (c->up && h.w_rows > h.n && !h.n_offset && row_does(MOEK_TRAIT_QUANTIZES_OUT))
        gemm_requantized(&h, (int)rows);
    gemm_clear();
}
/* What the row wants sizes to be multiples of, or blocks of a format that has arrays, too. */
static int gemm_sizes(void)
{
    return now.format->only_blocks ? round_up(now.row->granule, now.format->granule) : now.row->granule;
}
/* The same, so that weights can be in panels if the row wants that. */
static int gemm_granule(void) { return gemm_in_panels() ? round_up(gemm_sizes(), 32) : gemm_sizes(); }
/* Sizes that are a multiple of the row's granule, and as little more as can be. */
static int gemm_size(int turn, int largest)
{
    static const int sizes[] = { 72, 1, 136, 3, 264, 392, 128, 520 };
    const int g = gemm_sizes(), size = sizes[turn % COUNT(sizes)];
    const int n = size < 8 ? g * size : round_up(size, g);
    return n <= round_up(largest, g) ? n : round_up(72, g);
}
/* With the hidden size of a row that has one baked in. */
static void gemm_run(gemm_case_t *c)
{
    if (now.row->hidden && c->up) c->k = now.row->hidden;
    if (now.row->hidden && !c->up) c->n = now.row->hidden;
    if (now.row->arch == 90 && now.cases % 3 == 0) c->k = round_up(c->k, 128);           /* whole steps: also tiled */
    if (gemm_in_panels() || (now.row->reads & MOEK_READS_PANELS && now.cases % 2))
        c->k = round_up(c->k, 32), c->n = round_up(c->n, 16);
    if (gemm_in_fragments() && c->layout == MOEK_UP_SEPARATE) c->layout = MOEK_UP_SWAPPED;
    if (now.thin && SMALL && (double)c->slots * c->n * c->k > 1e8) return;             /* a second or more, emulated */
    gemm_case(c);
}
static void gemm_one(int up, int act, int layout, int turn)
{
    static const int slots[] = { 40, 1, 17, 64, 9, 33 };
    const int batched = turn % 3 == 2;
    gemm_case_t c;
    memset(&c, 0, sizeof c);
    c.up = up, c.act = act, c.layout = layout, c.turn = turn;
    c.dtype = format_dtype(now.format) ? format_dtype(now.format) : format_dtype_in(now.format, rng_below(2));
    c.bias = rng_below(2), c.batched = batched, c.experts = 1 + rng_below(SMALL ? 4 : 9), c.topk = 1 + rng_below(3);
    c.slots = slots[turn % COUNT(slots)] * (SMALL ? 1 : 1 + rng_below(2));
    c.kind = rng_below(IDS_KINDS), c.order = rng_below(4), c.bad = rng_below(5) ? 0 : 1 + rng_below(2);
    c.n = gemm_size(rng_below(8), SMALL ? 136 : 264), c.k = gemm_size(rng_below(8), SMALL ? 264 : 520);
    gemm_run(&c);
}
/* A gated layer of at least n x k, rows in the order that a layer has. */
static gemm_case_t gemm_plain(int up, int kind, int experts, int slots, int n, int k)
{
    gemm_case_t c;
    memset(&c, 0, sizeof c);
    c.up = up, c.act = MOEK_SILU, c.layout = MOEK_UP_GATE_UP, c.turn = 1, c.experts = experts, c.topk = 2;
    c.slots = slots, c.kind = kind, c.order = up ? ORDER_IN : ORDER_OUT;
    c.dtype = format_dtype_in(now.format, 0);
    c.n = round_up(n, gemm_sizes()), c.k = round_up(k, gemm_sizes());
    return c;
}
/* Large enough for every tile, stage and warp to be in use: a hot expert among empty and small ones. */
static void gemm_large(int up, int batched)
{
    gemm_case_t c = gemm_plain(up, IDS_SKEWED, 7, 2 * (now.row->m > 64 ? now.row->m : 64) + 13, SMALL ? 72 : 328,
                               SMALL ? 136 : 648);
    if (now.thin && (up + batched + now.row->quant) % 2) return;
    c.batched = batched;
    gemm_run(&c);
}
/* One expert with two full row blocks and a third that is not: blocks that go in pairs, and an odd one. */
static void gemm_odd(int up)
{
    const int m = now.row->m ? now.row->m : 16;
    int i;
    if (!mem_on_gpu(now.row->arch)) return;
    for (i = 0; i < 16; i++) {                         /* an odd number of columns of wide tiles, and an even one */
        gemm_case_t c = gemm_plain(up, IDS_ONE, 1, 2 * m + m / 2 + 1 - i % 2, i < 8 ? 328 : 392, 648);
        c.order = i / 2 % 4;
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 4; i++) {                          /* experts with two row blocks and three, in any order */
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 9, 9 * 2 * m, 392, 72);
        c.turn = i;
        c.batched = i == 3;
        if (!leave_out(i, 3)) gemm_run(&c);
    }
    for (i = 0; i < 6; i++) {                          /* one row block and two, the last half full or a row more */
        gemm_case_t c = gemm_plain(up, IDS_ONE, 3, i / 2 % 2 * m + m / 2 + i % 2, 328, i < 4 ? 648 : 136);
        if (!leave_out(i, 7)) gemm_run(&c);
    }
}
/* Experts with one row block and a few rows more, which a tile may take along, or some too many. */
static void gemm_tails(int up)
{
    static const int more[] = { 1, 8, 9, 16, 17, 24, 25, 33 };
    const int m = now.row->m ? now.row->m : 16;
    int i;
    if (now.row->arch != 90 || m < 128) return;
    for (i = 0; i < 3 * COUNT(more); i++) {            /* one expert, or three with as many rows */
        const int experts = i % 3 ? 3 : 1;
        gemm_case_t c = gemm_plain(up, IDS_SORTED, experts, experts * (m + more[i / 3]), gemm_size(i, 520),
                                   i % 2 ? 648 : 136 + 64 * (i % 5));
        c.k = round_up(c.k, gemm_sizes()), c.n = round_up(c.n, gemm_sizes());
        c.turn = i, c.order = i % 4, c.batched = i % 5 == 4, c.bias = i / 2 % 2, c.bad = i % 7 == 6;
        if (up) c.act = MOEK_SILU + i % 11, c.layout = i / 3 % 5;
        c.dtype = format_dtype_in(now.format, i);
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 12; i++) {                         /* tiles enough that none is cut in two; two blocks and a tail */
        const int experts = (i < 11 ? 40 : 20) / (SMALL ? 8 : 1), rows = (i < 11 ? m : 2 * m) + more[i % COUNT(more)];
        gemm_case_t c = gemm_plain(up, IDS_SORTED, experts, experts * rows, up ? 136 : 264, 72);
        c.k = round_up(c.k, gemm_sizes()), c.n = round_up(c.n, gemm_sizes());
        c.turn = i, c.order = i % 4, c.batched = i % 4 == 3, c.bias = i / 2 % 2, c.bad = i == 6;
        if (up) c.act = i < 8 ? MOEK_SILU : MOEK_SILU + i % 11, c.layout = i % 5;
        if (!leave_out(i, 7)) gemm_run(&c);
    }
    for (i = 0; i < 6; i++) {                          /* some with tails, some without, some empty or of two blocks */
        const int slots = 9 * (m + 8 * (i - 2));
        gemm_case_t c = gemm_plain(up, i % 2 ? IDS_SKEWED : IDS_RANDOM, 9, slots, i < 3 ? 328 : 72, 392);
        c.turn = i;
        if (!leave_out(i, 3)) gemm_run(&c);
    }
}
/* More row blocks than a GPU has multiprocessors, all but a few of them short. */
static void gemm_blocks(int up, int act, int layout, int turn)
{
    gemm_case_t c = gemm_plain(up, IDS_SKEWED, 150, 600, 136, turn % 3 ? 72 : 264);
    if (leave_out(turn, 13) || !mem_on_gpu(now.row->arch) || now.row->m < 128) return;
    c.act = act, c.layout = layout, c.turn = turn, c.bias = turn % 2;
    gemm_run(&c);
}
/* 4096 tokens (or 4096 of top-2), but few columns: a hot expert beside smaller ones, and one that gets them all.  More
 * tiles than a GPU has multiprocessors, so that persistent blocks take several. */
static void gemm_many(int up, int kind, int topk, int batched, int turn)
{
    const int n = now.row->m < 128 ? 136 : turn < 3 ? 264 : turn < 8 ? 520 : 392;
    gemm_case_t c = gemm_plain(up, kind, 5, (SMALL ? 500 : 4096) * topk, n, 72);
    if (leave_out(turn, 2) || !mem_on_gpu(now.row->arch)) return;
    c.topk = topk, c.batched = batched, c.turn = turn;
    if (turn >= 6) c.k = round_up(turn == 7 ? 1700 : 200, gemm_sizes());        /* 1700: 14 or 27 steps */
    gemm_run(&c);
}
static void gemm_many_tokens(int up)
{
    if (now.row->arch == 90 && now.row->m == 128) {   /* blocks in pairs that take several tiles, by demand */
        gemm_many(up, IDS_SKEWED, 2, 0, 3);
        gemm_many(up, IDS_EVEN, 2, 0, 6);
        gemm_many(up, IDS_SKEWED, 2, 0, 7);
        gemm_many(up, IDS_SKEWED, 2, 0, 8);
        gemm_many(up, IDS_EVEN, 2, 0, 9);
    }
    gemm_many(up, IDS_SKEWED, 2, 0, 0);
    gemm_many(up, IDS_ONE, 1, 0, 1);
    gemm_many(up, IDS_SKEWED, 1, 1, 2);
}
/* Scales near the ends of f32, whose products are ordinary; and results that nearly are too large, or too small. */
static void gemm_extremes(int up)
{
    static const int powers[][2] = { { 124, -113 }, { -113, 124 }, { 118, -100 }, { 60, 59 }, { -60, -40 } };
    int i;
    if (now.format->x_scale.type != MOEK_SCALE_TYPE_F32 || now.format->w_scale.type != MOEK_SCALE_TYPE_F32) return;
    for (i = now.thin ? up : 0; i < COUNT(powers); i += now.thin ? 3 : 1) {
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 3, now.row->m + 9, 72, 392);
        c.act = MOEK_RELU_NO_MUL, c.a_power = powers[i][0], c.w_power = powers[i][1];
        gemm_run(&c);
    }
}
/* May a row put scales of w into its elements: powers of two, or what e4m3 may take in? */
static int gemm_has_powers(void)
{
    return ref_rounded(now.format) ||
           (now.format->w_scale.type == MOEK_SCALE_TYPE_E8M0 && format_quantizes(now.format));
}
/* Such scales, where 128 columns have several: some far apart. */
static void gemm_powers(int up)
{
    int i;
    if (!gemm_has_powers()) return;
    for (i = 0; i < (now.thin ? 2 : 6); i++) {
        gemm_case_t c = gemm_plain(up, IDS_RANDOM, 3, now.row->m + 9, 136, i % 2 ? 392 : 136);
        c.act = MOEK_RELU_NO_MUL, c.spread = i % 3 ? 40 : 11, c.turn = i;
        gemm_run(&c);
    }
}
/* Every code of w, or of a, once, times 1: down must give it back.  (NaN times 0 spoils a sum, but few have one.)
 * Or integers in both, whose sums often lie in the middle between two T.  Or codes of w, with scales that are powers of
 * two, up to 2^40 apart; or e4m3, 2^17. */
enum { CODES_IN_A, CODES_IN_W, INTEGERS, POWERS };
static void gemm_codes(int mode)
{
    const int each = mode == POWERS ? 128 : 64;        /* of k */
    const moek_format *const f = now.format;
    const int k = round_up(each, gemm_granule()), dtype = format_dtype_in(f, 0);
    const ref_number *const of_a = ref_element(f->x, dtype), *const of_w = ref_element(f->w, dtype);
    const ref_number *const of_scale = ref_scale_type(f->w_scale.type, dtype);
    const int in_w = mode == CODES_IN_W || mode == POWERS;
    const ref_number *const of = in_w ? of_w : of_a, *const other = in_w ? of_a : of_w;
    const int skip = SMALL && of->width > 8 ? 8 : 1;
    const int codes = mode == POWERS ? each : of->width < 8 ? 1 : (1 << of->width) / skip / each;
    gemm_case_t c;
    moek_gemm_args h;
    void *a, *w, *a_scale, *w_scale;
    float *second;
    size_t size, scales, i;
    if (f->only_blocks && mode != CODES_IN_W) return;  /* (not each has 0 and 1) */
    memset(&c, 0, sizeof c), memset(&h, 0, sizeof h);
    SAY(mode == INTEGERS ? "integers" : mode == POWERS ? "powers of two" : in_w ? "every code of w"
                                                                               : "every code of a");
    c.experts = 1, c.topk = 1, c.kind = IDS_ONE, c.slots = mode == CODES_IN_A ? codes : each;
    h.dtype = dtype, h.k = k;
    h.n = h.w_rows = in_w ? round_up(codes, gemm_granule()) : k;
    gemm_rows(&c, &h);
    h.a_rows = c.slots, h.a = a = in(c.slots * moek_element_bytes(f->x, (size_t)k));
    h.w.codes = w = in(h.n * moek_weight_bytes(f, 0, (size_t)k));
    for (i = 0; i < (size_t)c.slots * k; i++) ref_put_code(of_a, a, i, ref_encode(of_a, 0));
    if (f->only_blocks) h.w.layout = MOEK_WEIGHTS_BLOCKS, block_fill(f, w, (size_t)h.n, (size_t)k, 1, 7);
    for (i = 0; !f->only_blocks && i < (size_t)h.n * k; i++) ref_put_code(of_w, w, i, ref_encode(of_w, 0));
    for (i = 0; !f->only_blocks && mode != INTEGERS && i < (size_t)each * codes; i++)
        ref_put_code(of, in_w ? w : a, i / each * k + i % each,
                     ((unsigned)i * skip + (unsigned)rng_below(skip)) % (1u << of->width));
    for (i = 0; mode != INTEGERS && i < (size_t)each; i++) ref_put(other, in_w ? a : w, i * k + i, 1);
    for (i = 0; mode == INTEGERS && i < (size_t)each * k; i++) {
        ref_put(of_a, a, i, rng_below(33) - 16);       /* 17 .. are not e4m3 */
        ref_put(of_w, w, i, rng_below(33) - 16);
    }
    scales = (size_t)(h.n + c.slots) * (size_t)k;
    a_scale = in(scales * 4), w_scale = in(scales * 4);
    fill_scales(a_scale, scales, ref_scale_type(f->x_scale.type, dtype), 1, 1);
    fill_scales(w_scale, scales, of_scale, 1, 1);
    if (mode == POWERS && ref_rounded(f)) fill_scales(w_scale, scales, of_scale, 128, 448);
    if (mode == POWERS) gemm_spread(w_scale, of_scale, ref_rounded(f) ? 17 : 40);
    if (f->x_scale.type) h.a_scale = (const float *)a_scale;
    if (f->w_scale.type) h.w.scales = (const float *)w_scale;
    if (f->global_scale) h.w.global_scale = second = in_f32(1), *second = 1;
    if (format_x_second(f)) h.a_global_scale = second = in_f32(1), *second = 1;
    size = (size_t)c.slots * h.n;
    h.out = out(size * 2);
    gemm_launch(&h, 0, size, mode != POWERS && !(f->only_blocks && moek_block_of(f->file_type)->sign));
    gemm_clear();
}
/* Blocks of GGUF files with f16s, or scales of a byte, from end to end of their range, negative ones, subnormal ones, 0
 * and NaN, all else random: each weight of 16 rows times 1. */
static void gemm_block_extremes(void)
{
    static const unsigned halves[] = { 0x0001, 0x03ff, 0x7bff, 0xfbff, 0x8001, 0x0000, 0x3c00, 0xb555, 0x0400 };
    static const unsigned of_a_byte[] = { 0x00, 0x01, 0x02, 0x7e, 0x7f, 0x80, 0xfb, 0xfc, 0xff };
    const moek_format *const f = now.format;
    const moek_block *const b = moek_block_of(f->file_type);
    float *second;
    const int k = f->only_blocks ? round_up(64, gemm_granule()) : 0, n = round_up(16, gemm_granule());
    gemm_case_t c;
    moek_gemm_args h;
    uint8_t *w;
    void *a, *a_scale;
    size_t i, size, blocks, scales;
    if (!f->only_blocks) return;
    memset(&c, 0, sizeof c), memset(&h, 0, sizeof h);
    SAY("extreme blocks");
    c.experts = 1, c.topk = 1, c.kind = IDS_ONE, c.slots = k;
    h.dtype = MOEK_DTYPE_BF16, h.k = k, h.n = h.w_rows = n;
    gemm_rows(&c, &h);
    size = (size_t)k * moek_element_bytes(f->x, (size_t)k);
    scales = moek_scale_count(&f->x_scale, (size_t)k, (size_t)k);
    h.a_rows = k, h.a = a = in(size), memset(a, 0, size);
    for (i = 0; i < (size_t)k; i++) ref_put(ref_element(f->x, h.dtype), a, i * k + i, 1);
    if (scales) {
        h.a_scale = (const float *)(a_scale = in(scales * 4));
        fill_scales(a_scale, scales, ref_scale_type(f->x_scale.type, h.dtype), 1, 1);
    }
    h.w.codes = w = (uint8_t *)in((size_t)n * moek_weight_bytes(f, 0, (size_t)k));
    block_fill(f, w, (size_t)n, (size_t)k, 1, rng_u32());
    blocks = (size_t)n * moek_weight_bytes(f, 0, (size_t)k) / (size_t)b->bytes;
    for (i = 0; i < blocks; i++) {
        uint8_t *const block = w + i * (size_t)b->bytes;
        const moek_block_scale *const of[] = { &b->scale, &b->min };
        int s, g, j;
        for (j = 0; j < b->bytes; j++) block[j] = (uint8_t)rng_u32();
        for (s = 0; s < 1 + (b->sign != 0); s++) {
            const int bytes = of[s]->of.type == MOEK_SCALE_TYPE_E8M0 || of[s]->of.type == MOEK_SCALE_TYPE_E4M3;
            const unsigned half = (bytes ? of_a_byte : halves)[(i + (size_t)s * 4) % COUNT(halves)];
            if (of[s]->top.type) block[of[s]->top_at] = (uint8_t)half, block[of[s]->top_at + 1] = (uint8_t)(half >> 8);
            for (g = 0; !of[s]->top.type && g < b->columns / of[s]->of.columns; g++)
                block_put(of[s]->plane, of[s]->planes, block, g, half);
        }
    }
    if (f->global_scale) h.w.global_scale = second = in_f32(1), *second = 1;
    h.w.layout = MOEK_WEIGHTS_BLOCKS;
    size = (size_t)k * n;
    h.out = out(size * 2);
    gemm_launch(&h, 0, size, 0);
    gemm_clear();
}
/* Integers on both sides whose partial sums need more than the 24 bits of f32, and whose sums do not; or, of long k,
 * whose sums need 33 bits, the low nine of which are 0: all of it must be exact, also where tiles are cut along k. */
static void gemm_exact(int most, int rows, int longer)
{
    enum { N = 64 };
    const moek_format *const f = now.format;
    const int half = round_up(most, gemm_granule()), n = round_up(N, gemm_granule());
    const ref_number *const of_a = ref_element(f->x, MOEK_DTYPE_FP16), *const of_w = ref_element(f->w, MOEK_DTYPE_FP16);
    gemm_case_t c;
    moek_gemm_args h;
    uint8_t *a, *w;
    void *a_scale, *w_scale;
    size_t i, j;
    if (of_a->kind != REF_SIGNED || of_w->kind != REF_SIGNED || ref_columns(f)) return;
    memset(&c, 0, sizeof c), memset(&h, 0, sizeof h);
    SAY("sums of %d integers", 2 * half);
    c.experts = 1, c.topk = 1, c.kind = IDS_ONE, c.slots = rows;
    h.dtype = MOEK_DTYPE_FP16, h.k = 2 * half, h.n = h.w_rows = n;
    gemm_rows(&c, &h);
    h.a_rows = rows, h.a = a = (uint8_t *)in((size_t)rows * h.k), h.w.codes = w = (uint8_t *)in((size_t)n * h.k);
    for (i = 0; i < (size_t)rows; i++)
        for (j = 0; j < (size_t)half; j++) {
            const int v = longer ? 80 + 16 * rng_below(3) : 100 + rng_below(28);
            ref_put(of_a, a, i * h.k + j, v);                          /* what is left: 16 * 127 */
            ref_put(of_a, a, i * h.k + half + j, longer ? v : -v + (j ? 0 : rng_below(17)));
        }
    for (i = 0; i < (size_t)n; i++)
        for (j = 0; j < (size_t)half; j++) {
            const int v = longer ? i % 2 ? 96 : -96 : 100 + rng_below(28);
            ref_put(of_w, w, i * h.k + j, v), ref_put(of_w, w, i * h.k + half + j, v);
        }
    h.a_scale = a_scale = in((size_t)rows * 4), h.w.scales = w_scale = in((size_t)n * 4);
    fill_scales(a_scale, (size_t)rows, ref_scale_type(f->x_scale.type, h.dtype), 1, 1);
    if (longer) gemm_power(a_scale, ref_scale_type(f->x_scale.type, h.dtype), -20);
    fill_scales(w_scale, (size_t)n, ref_scale_type(f->w_scale.type, h.dtype), 1, 1);
    h.out = out((size_t)rows * n * 2);
    gemm_split(&h);
    gemm_launch(&h, 0, (size_t)rows * n, 1);
    gemm_clear();
}
#define UP_ACT(NAME, name, number, gated) { number, gated },
static void test_up(void)
{
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, again, turn = 0;
    for (again = 0; again < (SMALL || now.thin ? 1 : 4); again++)
        for (i = 0; i < COUNT(acts); i++)
            for (layout = MOEK_UP_GATE_UP; layout <= (acts[i][1] ? MOEK_UP_SEPARATE : MOEK_UP_GATE_UP); layout++)
                if (each_act(i, layout, acts[i][1]) || !now.thin) gemm_one(1, acts[i][0], layout, turn++);
    each_act_end();
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_GATE_UP; layout <= (acts[i][1] ? MOEK_UP_SEPARATE : MOEK_UP_GATE_UP); layout++)
            gemm_blocks(1, acts[i][0], layout, turn++);
    gemm_large(1, 0);
    gemm_large(1, 1);
    gemm_odd(1);
    gemm_tails(1);
    gemm_many_tokens(1);
    gemm_extremes(1);
    gemm_powers(1);
}
static void test_down(void)
{
    int turn;
    for (turn = 0; turn < (now.thin ? 9 : SMALL ? 18 : 100); turn++) gemm_one(0, 0, 0, turn);
    for (turn = 0; turn < 4; turn++) gemm_blocks(0, MOEK_SILU, MOEK_UP_GATE_UP, turn);
    gemm_large(0, 0);
    gemm_large(0, 1);
    gemm_odd(0);
    gemm_tails(0);
    gemm_many_tokens(0);
    gemm_extremes(0);
    gemm_powers(0);
    if (!now.row->hidden) gemm_codes(CODES_IN_A), gemm_codes(CODES_IN_W), gemm_codes(INTEGERS), gemm_exact(4096, 40, 0);
    if (!now.row->hidden && gemm_has_powers()) gemm_codes(POWERS);
    gemm_block_extremes();
    if (!now.row->hidden && (quick_row(now.row) || !SMALL)) gemm_exact((now.thin ? 2 : 3) << 16, 5, 1);
}
