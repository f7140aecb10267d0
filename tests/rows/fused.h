/* fused.h -- a part of test_rows.c, which includes it once: rows that are a whole layer, or up and down. */
static int multiprocessors(void)
{
    int n = 1;
#ifdef MOEK_EMU
    n = EMU_RESIDENT;
#endif
#if MEM_CUDA
    mem_must(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
#endif
    return n;
}
/* What a case has besides: scales of 0 in every other 128 of k; a token of NaN that its router gave no weight; a NaN in
 * an expert's bias, which others must not see; no weights at all; an Inf in x, another in a bias of up, so in h. */
enum { LAYER_PLAIN, LAYER_ZERO_SCALES, LAYER_NAN_TOKEN, LAYER_NAN_BIAS, LAYER_NO_WEIGHTS, LAYER_INF, LAYER_ODDITIES };
static void layer_odd(int odd, moek_layer_args *h, moek_gemm_args *up, moek_gemm_args *down)
{
    const moek_scale_shape *const shape = &now.format->w_scale;
    const moek_gemm_args *both[2];
    int g, i, k;
    both[0] = up, both[1] = down;
    for (g = 0; odd == LAYER_ZERO_SCALES && g < 2; g++) {
        const int groups = (int)moek_scale_count(shape, 1, (size_t)both[g]->k);
        const int blocks = both[g]->experts * gemm_blocks_of(both[g]->w_rows);
        for (i = 0; i < blocks * groups; i++) if (i % groups % 2 == 0) ((float *)both[g]->w.scales)[i] = 0;
    }
    for (k = 0; odd == LAYER_NAN_TOKEN && k < h->topk; k++) ((float *)h->weights)[k] = 0;
    for (i = 0; odd == LAYER_NAN_TOKEN && i < up->k; i++) ((uint16_t *)h->x)[i] = 0x7fff;
    if (odd == LAYER_NAN_BIAS && h->ids[0] >= 0 && h->ids[0] < down->experts)
        ((uint16_t *)down->w.bias)[(size_t)h->ids[0] * down->w_rows] = 0x7fff;
    if (odd == LAYER_NO_WEIGHTS) h->weights = NULL;
    if (odd == LAYER_INF) {                            /* (a token's weights of one expert are added before: no sign) */
        for (k = 0; k < h->tokens * h->topk; k++) ((float *)h->weights)[k] = fabsf(h->weights[k]);
        ((uint16_t *)h->x)[rng_below(up->k)] = ref_to_t(INFINITY, up->dtype);
        if (h->ids[h->topk] >= 0 && h->ids[h->topk] < up->experts)
            ((uint16_t *)up->w.bias)[(size_t)h->ids[h->topk] * up->w_rows + 3] = ref_to_t(INFINITY, up->dtype);
    }
}
/* A row of few tokens leaves its count, and zeros where the next will write h; another zeros but for its count. */
static void layer_left(const moek_layer_state *was, const moek_layer_state *is, int blocks)
{
    const int few = now.row->max_tokens > 0, turn = few && was->launches[0];
    int i, flags = 0, h = 0;
    for (i = few ? 0 : 2; i < MOEK_LAYER_FLAGS; i++) flags += is->flags[i] != 0;
    for (i = 0; i < MOEK_DECODE_H / 2; i++) h += is->h[few ? turn ^ 1 : i % 2][i] != 0;
    CHECK(!flags && !h && (few ? (int)(is->launches[0] - was->launches[0]) : is->flags[0]) == blocks,
          "%s: %s: the state is left with %d flags, %d of h, count %d", now.row->name, now.what, flags, h,
          few ? (int)(is->launches[0] - was->launches[0]) : is->flags[0]);
}
/* y of a whole layer, or of slots: in relative L2, and each element. */
static void layer_compare(const void *y, const double *want, int rows, int hidden, int inter, int dtype,
                          double tolerance)
{
    const ref_distance off = ref_compare_t(y, want, (size_t)rows * hidden, dtype);
    const ref_worst w = ref_worst_of(y, want, rows, hidden, dtype);
    const double bound = ref_bound(now.format, dtype, inter, now.row->arch);
    worse(off.rel_l2 / tolerance);
    if (w.off / bound > now.worst_element) now.worst_element = w.off / bound;
    CHECK(off.rel_l2 < tolerance && off.same_nonfinite, "%s: %s: off by %.2e, at most %.2e", now.row->name, now.what,
          off.rel_l2, off.max_abs);
    CHECK(w.off < bound, "%s: %s: row %d column %d is off by %.3f of its row's rms", now.row->name, now.what, w.row,
          w.column, w.off);
}
/* x and h have scales that are known before, if the format has such. */
static void layer_static(moek_gemm_args *up, moek_gemm_args *down)
{
    const float most = 4.5f / (float)ref_largest(ref_element(now.format->x, up->dtype));
    if (!now.format->static_x) return;
    up->a_scale = in_f32(1), down->a_scale = in_f32(1);
    fill_f32((float *)up->a_scale, 1, 0.9f * most, most), fill_f32((float *)down->a_scale, 1, 0.9f * most, most);
}
/* For `rows` quantized rows, where columns share scales. */
static const float *layer_scales(int rows, int columns)
{
    const moek_scale_shape *const shape = &now.format->x_scale;
    return (const float *)scratch((size_t)rows * moek_scale_bytes(shape, 1, (size_t)columns));
}
/* The format of down; and what is made for down, in that format. */
static const moek_format *layer_down(void)
{
    return now.row->down_quant ? moek_format_of(now.row->down_quant) : now.format;
}
static void layer_w(const gemm_case_t *c, moek_gemm_args *h, int fragments)
{
    const moek_format *const f = now.format;
    now.format = layer_down();
    if (fragments) gemm_to_fragments(h);
    else gemm_w(c, h);
    now.format = f;
}
/* Is there shared memory for so many tokens? */
static int layer_fits(const moek_layer_args *h, const moek_gemm_args *up, const moek_gemm_args *down, int zeros)
{
    return !now.row->max_tokens ||
           moek_decode_smem_of(moek_decode_room_of(now.row), h->tokens, h->topk, up->experts, down->n, up->n,
                               up->w_rows > up->n, now.format->w_bits, zeros || format_quantizes(now.format),
                               multiprocessors()).fits;
}
/* Emulated, of thin rows: as many experts as have three million weights, for more would take most of the time. */
static int layer_experts(int experts, int hidden, int inter)
{
    const int some = 1000000 / hidden / inter, most = some < 3 ? 3 : some;
    return now.thin && SMALL && experts > most ? most : experts;
}
static void layer_odd_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                           int kind, int odd)
{
    const moek_format *const f = now.format;
    const int fp8 = format_quantizes(f), slots = tokens * topk, fragments = gemm_in_fragments();
    const int blocks = multiprocessors();
    /* A code of h that falls to its neighbour counts for more, the fewer there are, and so does a rounded y. */
    const double all = (double)tokens * hidden;
    const double tolerance = (fp8 ? 9e-3 : 3e-3) * (fp8 && all < 1e4 ? 4 : all < 100 ? 2 : 1);
    gemm_case_t c;
    moek_gemm_args up, down, d_up, d_down;
    moek_layer_args h, d;
    moek_weights w;
    ref_layer_args r;
    int32_t *ids;
    double *want;
    void *made;
    size_t x_all, y_all, addend_all;
    int i, y_step;
    memset(&c, 0, sizeof c), memset(&up, 0, sizeof up), memset(&down, 0, sizeof down);
    memset(&h, 0, sizeof h), memset(&w, 0, sizeof w), memset(&r, 0, sizeof r);
    if (turn % 3 == 2 || turn % 7 == 0) hidden = round_up(hidden, 128), inter = round_up(inter, 128);  /* also tiled */
    hidden = round_up(hidden, f->granule), inter = round_up(inter, layer_down()->granule);
    experts = layer_experts(experts, hidden, inter);
    SAY("tokens %d topk %d experts %d hidden %d inter %d act %d layout %d kind %d turn %d odd %d", tokens, topk,
        experts, hidden, inter, act, layout, kind, turn, odd);
    h.x_stride = rows_stride(turn, hidden), h.y_stride = rows_stride(turn / 2, hidden);
    h.addend_stride = turn % 2 ? h.y_stride : rows_stride(turn / 4, hidden);
    y_step = h.y_stride ? h.y_stride : hidden;
    x_all = rows_size(tokens, hidden, h.x_stride ? h.x_stride : hidden), y_all = rows_size(tokens, hidden, y_step);
    addend_all = rows_size(tokens, hidden, h.addend_stride ? h.addend_stride : hidden);
    c.act = act, c.layout = layout, c.turn = turn, c.bias = turn % 3 == 1 || odd == LAYER_NAN_BIAS || odd == LAYER_INF;
    up.dtype = down.dtype = fragments ? MOEK_DTYPE_BF16 : format_dtype_in(f, turn);
    up.experts = down.experts = experts;
    up.n = down.k = inter, up.k = down.n = down.w_rows = hidden, up.w_rows = ref_gated(act) ? 2 * inter : inter;
    if (fragments && c.layout == MOEK_UP_SEPARATE) c.layout = layout = MOEK_UP_SWAPPED;
    gemm_act(&c, &up);
    gemm_w(&c, &up);
    layer_w(&c, &down, 0);
    h.tokens = tokens, h.topk = topk, h.ue8m0 = f->ue8m0 && turn % 4 == 3;
    h.ids = ids = in_i32(slots);
    fill_ids(ids, slots, experts, kind);
    h.weights = in_f32(slots);
    fill_f32((float *)h.weights, (size_t)slots, -0.5f, 1.5f);
    h.x = in(x_all * 2);
    for (i = 0; i < tokens; i++)                       /* between them they stay NaN */
        fill_t((uint16_t *)h.x + (size_t)i * (h.x_stride ? h.x_stride : hidden), (size_t)hidden, up.dtype, 1);
    h.y = out(y_all * 2);
    if (turn % 5 == 2) {
        h.addend = turn % 2 ? h.y : in(addend_all * 2);
        fill_t((void *)h.addend, addend_all, up.dtype, 1);
    }
    layer_static(&up, &down);
    r.tokens = tokens, r.slots = topk, r.experts = experts, r.hidden = hidden, r.inter = inter;
    r.format = f, r.down = now.row->down_quant ? layer_down() : NULL, r.dtype = up.dtype, r.act = act;
    r.alpha = up.epilogue.alpha, r.beta = up.epilogue.beta, r.limit = up.epilogue.limit;
    r.up_layout = layout, r.ue8m0 = h.ue8m0, r.x = h.x, r.ids = ids, r.weights = h.weights, r.w = &w;
    r.addend = h.addend, r.x_stride = h.x_stride, r.addend_stride = h.addend_stride;
    w.w_up = up.w.codes, w.w_up_scale = up.w.scales, w.w_up_bias = up.w.bias, w.x_scale = (const float *)up.a_scale;
    w.w_gate = up.gate.codes, w.w_gate_scale = up.gate.scales, w.w_gate_bias = up.gate.bias;
    r.up_scales = up.scales_separate;
    w.w_down = down.w.codes, w.w_down_scale = down.w.scales, w.w_down_bias = down.w.bias;
    w.w_up_global_scale = up.w.global_scale, w.w_down_global_scale = down.w.global_scale;
    w.w_up_zero = up.w.zero_points, w.w_down_zero = down.w.zero_points;
    w.h_scale = (const float *)down.a_scale;
    layer_odd(odd, &h, &up, &down);
    r.weights = h.weights;
    up.a = fp8 ? scratch(tokens * moek_element_bytes(f->x, (size_t)hidden)) : h.x;
    down.a = scratch((size_t)slots * inter * 2);
    if (format_blocked(f)) up.a_scale = layer_scales(tokens, hidden), down.a_scale = layer_scales(slots, inter);
    down.out = scratch((size_t)slots * hidden * 2);
    h.split = now.row->scratch ? (float *)scratch((size_t)blocks * now.row->scratch) : NULL;
    h.equal = turn % 3 == 0;
    h.discard = turn / 2 % 2;
    h.state = (moek_layer_state *)scratch(sizeof *h.state);
    memset(h.state, 0, sizeof *h.state);
    if (now.row->max_tokens && turn % 2) {         /* the second launch, behind one that left its h */
        h.state->launches[0] = (unsigned long long)blocks;
        memset(h.state->h[0], 0x5a, sizeof h.state->h[0]);
    }
    d = h, d_up = up, d_down = down;
    if (fragments) gemm_to_fragments(&d_up), layer_w(&c, &d_down, 1);
    d.up = &d_up, d.down = &d_down;
    MOVE(d.ids), MOVE(d.weights), MOVE(d.x), MOVE(d.addend), MOVE(d.y), MOVE(d.split), MOVE(d.state);
    gemm_move(&d_up);
    gemm_move(&d_down);
    if (!layer_fits(&h, &up, &down, up.w.zero_points != NULL))
        CHECK(now.row->launch(&d, now.stream) == MOEK_E_ARGUMENT, "%s: %s: it ran without room", now.row->name,
              now.what);
    else if (launch_twice(&d)) {
        want = (double *)ref_alloc((size_t)tokens * hidden * sizeof *want);
        ref_layer(&r, want);
        made = rows_dense("y", h.y, tokens, hidden, y_step);
        layer_compare(made, want, tokens, hidden, inter, up.dtype, tolerance);
        free(made);
        layer_left(h.state, (const moek_layer_state *)got(h.state), blocks);
        free(want);
        if (!fragments && (d_up.w.codes = gemm_tiles(&up)) && (d_down.w.codes = gemm_tiles(&down))) {
            MOVE(d_up.w.codes), MOVE(d_down.w.codes);
            d_up.w.layout = d_down.w.layout = 1;
            rows_again("y of tiled weights", &d, h.y);
        }
    }
    rows_clear();
}
static void layer_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                       int kind)
{
    if (!leave_out(turns++, now.row->max_tokens ? 1 : 11))
        layer_odd_case(turn, act, layout, tokens, topk, experts, hidden, inter, kind, LAYER_PLAIN);
}
/* Rows with m = 4. */
static void test_layer_few(void)
{
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    const int m = now.row->m;
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_GATE_UP; layout <= (acts[i][1] ? MOEK_UP_SEPARATE : MOEK_UP_GATE_UP); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            layer_case(turn, acts[i][0], layout, 1 + turn % m, 1 + rng_below(32 / m), 4 + rng_below(9),
                       gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < (SMALL ? 2 : 8); i++)              /* (IDS_ONE: a token names one expert more than once) */
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            layer_case(turn, MOEK_SILU, i % 2 ? MOEK_UP_GATE_UP : MOEK_UP_INTERLEAVED, 1 + i % m,
                       1 + turn % (32 / m), 2 + turn % 20, gemm_size(turn, 520), gemm_size(turn / 3, 392), kind);
    for (i = LAYER_PLAIN + 1; i < LAYER_ODDITIES; i++, turn++)
        if (my_turn(i) && (i != LAYER_ZERO_SCALES || format_rows_share(now.format)))
            layer_odd_case(turn, MOEK_SILU, MOEK_UP_GATE_UP, 3, 2, 9, round_up(328, now.row->granule),
                           round_up(264, now.row->granule), IDS_RANDOM, i);
    /* Fewer items than warps. */
    layer_case(4, MOEK_SILU, MOEK_UP_GATE_UP, 1, 1, 3, round_up(520, now.row->granule), now.row->granule, IDS_RANDOM);
    layer_case(3, MOEK_SILU, MOEK_UP_GATE_UP, 1, 1, 3, now.row->granule, now.row->granule, IDS_RANDOM);
    /* Wide experts: in halves, whatever the format. */
    layer_case(1, MOEK_SILU, MOEK_UP_GATE_UP, 1, 2, 7, round_up(136, now.row->granule),
               round_up(1100, now.row->granule), IDS_RANDOM);
    if (multiprocessors() < 100) return;               /* they would not fit */
    /* Many experts; a k of many items; more than a block's threads in a row of x. */
    layer_case(1, MOEK_SILU, MOEK_UP_GATE_UP, 4, 8, 1000, round_up(64, now.row->granule),
               round_up(64, now.row->granule), IDS_RANDOM);
    layer_case(2, MOEK_SILU, MOEK_UP_GATE_UP, 1, 2, 4, round_up(1024, now.row->granule),
               round_up(6200, now.row->granule), IDS_RANDOM);
    layer_case(4, MOEK_SILU, MOEK_UP_GATE_UP, 3, 4, 9, round_up(7168, now.row->granule),
               round_up(200, now.row->granule), IDS_SKEWED);
}
static void test_layer(void)
{
    static const int tokens[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 127, 128 };
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_GATE_UP; layout <= (acts[i][1] ? MOEK_UP_SEPARATE : MOEK_UP_GATE_UP); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            layer_case(turn, acts[i][0], layout, tokens[turn % COUNT(tokens)], 1 + rng_below(2), 4 + rng_below(9),
                       gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < COUNT(tokens); i++)                /* (the reference takes 10 ns for a product) */
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            layer_case(turn, MOEK_SILU, MOEK_UP_GATE_UP, tokens[i], 1 + turn % (tokens[i] > 20 ? 3 : 8), 8 + turn % 60,
                       gemm_size(turn, tokens[i] > 20 ? 136 : 520), gemm_size(turn / 3, tokens[i] > 20 ? 72 : 392),
                       kind);
    if (now.thin && SMALL) return;                    /* (a case takes up to ten seconds) */
    /* Tiles by demand, more than one a block; then runs cut in many places. */
    layer_case(1, MOEK_SILU, MOEK_UP_GATE_UP, 128, 8, 60, round_up(520, now.row->granule),
               round_up(24, now.row->granule), IDS_RANDOM);
    layer_case(2, MOEK_SILU, MOEK_UP_GATE_UP, 120, 8, 60, round_up(776, now.row->granule),
               round_up(24, now.row->granule), IDS_SKEWED);
    layer_case(3, MOEK_SILU, MOEK_UP_GATE_UP, 16, 8, 16, round_up(1000, now.row->granule),
               round_up(300, now.row->granule), IDS_RANDOM);
    layer_case(4, MOEK_SILU, MOEK_UP_GATE_UP, 30, 8, 1000, round_up(64, now.row->granule),
               round_up(64, now.row->granule), IDS_RANDOM);
    layer_case(5, MOEK_SILU, MOEK_UP_GATE_UP, 128, 8, 9, round_up(128, now.row->granule),
               round_up(64, now.row->granule), IDS_ONE);
    /* Tiles of up in 4 pieces, and in 3. */
    layer_case(10, MOEK_SILU, MOEK_UP_GATE_UP, 8, 8, 30, round_up(2700, now.row->granule),
               round_up(72, now.row->granule), IDS_RANDOM);
    layer_case(7, MOEK_RELU2_NO_MUL, MOEK_UP_GATE_UP, 8, 8, 30, round_up(2700, now.row->granule),
               round_up(72, now.row->granule), IDS_RANDOM);
    layer_case(11, MOEK_SILU, MOEK_UP_INTERLEAVED, 18, 8, 140, 1056 * 16 / now.format->w_bits,
               round_up(16, now.row->granule), IDS_SORTED);
}

/* ---- up_down ----------------------------------------------------------------------------------------------------- */

/* Each slot is a token of a layer with one slot a token and no weights: its y is the slot's row. */
static void up_down_want(const moek_up_down_args *h, const void *x, int stride, const int32_t *ids, int slots, int topk,
                         int layout, double *want)
{
    const size_t row = (size_t)h->up->k * 2;
    char *const every = (char *)ref_alloc((size_t)slots * row);
    moek_weights w;
    ref_layer_args r;
    int i;
    memset(&w, 0, sizeof w), memset(&r, 0, sizeof r);
    for (i = 0; i < slots; i++) memcpy(every + i * row, (const uint16_t *)x + i / topk * (size_t)stride, row);
    r.tokens = slots, r.slots = 1, r.experts = h->up->experts, r.hidden = h->up->k, r.inter = h->up->n;
    r.format = now.format, r.dtype = h->up->dtype, r.act = h->up->epilogue.act;
    r.alpha = h->up->epilogue.alpha, r.beta = h->up->epilogue.beta, r.limit = h->up->epilogue.limit;
    r.up_layout = layout, r.ue8m0 = h->ue8m0, r.x = every, r.ids = ids, r.w = &w;
    w.w_up = h->up->w.codes, w.w_up_scale = h->up->w.scales, w.w_up_bias = h->up->w.bias;
    w.w_gate = h->up->gate.codes, w.w_gate_scale = h->up->gate.scales, w.w_gate_bias = h->up->gate.bias;
    r.up_scales = h->up->scales_separate;
    w.w_down = h->down->w.codes, w.w_down_scale = h->down->w.scales, w.w_down_bias = h->down->w.bias;
    if (now.format->static_x) w.x_scale = (const float *)h->up->a_scale, w.h_scale = (const float *)h->down->a_scale;
    ref_layer(&r, want);
    free(every);
}
static void up_down_move(moek_up_down_args *d, moek_gemm_args *up, moek_gemm_args *down)
{
    d->up = up, d->down = down;
    MOVE(d->flags);
    gemm_move(up);
    gemm_move(down);
}
/* x -> a of up: what quant makes of it. */
static void up_down_quantize(moek_gemm_args *up, const void *x, int tokens, int ue8m0)
{
    moek_quant_args q;
    memset(&q, 0, sizeof q);
    up->a = x;
    if (!format_quantizes(now.format)) return;
    q.rows = tokens, q.cols = up->k, q.source_div = 1, q.dtype = up->dtype, q.x = x, q.ue8m0 = ue8m0;
    up->a = q.q = in(tokens * moek_element_bytes(now.format->x, (size_t)up->k));
    if (now.format->static_x) q.static_scale = (const float *)up->a_scale, q.scale = ref_alloc(4);
    else q.scale = in(tokens * moek_scale_bytes(&now.format->x_scale, 1, (size_t)up->k));
    ref_quant(&q, now.format);
    if (now.format->static_x) free(q.scale);
    else up->a_scale = (const float *)q.scale;
}
/* What a case has besides: a token of NaN, or of Inf; gates so far below 0 that two have no reciprocal in common. */
enum { UP_DOWN_PLAIN, UP_DOWN_NAN, UP_DOWN_INF, UP_DOWN_FAR, UP_DOWN_ODDITIES };
static void up_down_odd_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                             int kind, int odd)
{
    const moek_format *const f = now.format;
    const int fp8 = format_quantizes(f), slots = tokens * topk, by_slot = rng_below(4) != 1;
    const int self = rng_below(2);                     /* the row counts by itself */
    const double all = (double)slots * hidden, codes = (double)slots * inter;
    /* (Few rows of a group or two: the scale of the largest h may be another power of 2, or h another bf16.) */
    const double few = all < 1e3 ? 8 : all < 1e4 ? 4 : codes < 1e4 ? 2 : 1;      /* (3,200 codes: 1.05e-2 on an H200) */
    const double tolerance = fp8 ? 9e-3 * few : 3e-3 * (all < 100 ? 2 : 1);
    gemm_case_t c;
    moek_gemm_args up, down, d_up, d_down;
    moek_up_down_args h, d;
    const int32_t *ids;
    const uint16_t *made, *before;
    uint16_t *x, *of_slot;
    double *want;
    int i, p, stride, touched = 0;
    if (leave_out(turns++, 11)) return;
    memset(&c, 0, sizeof c), memset(&up, 0, sizeof up), memset(&down, 0, sizeof down), memset(&h, 0, sizeof h);
    if (rng_below(5) < 2) hidden = round_up(hidden, 128), inter = round_up(inter, 128);              /* also tiled */
    c.act = act, c.layout = layout, c.turn = turn, c.bias = rng_below(3) == 1;
    SAY("tokens %d topk %d experts %d hidden %d inter %d act %d layout %d bias %d kind %d turn %d odd %d", tokens, topk,
        experts, hidden, inter, act, layout, c.bias, kind, turn, odd);
    c.up = 1, c.experts = experts, c.slots = slots, c.topk = topk, c.kind = kind, c.order = ORDER_IN;
    up.dtype = down.dtype = format_dtype(f) ? format_dtype(f) : format_dtype_in(f, rng_below(2));
    up.n = down.k = inter, up.k = down.n = down.w_rows = hidden, up.w_rows = ref_gated(act) ? 2 * inter : inter;
    down.experts = experts;
    gemm_rows(&c, &up);
    ids = up.ids;
    up.slots = slots;
    gemm_act(&c, &up);
    gemm_w(&c, &up);
    gemm_w(&c, &down);
    stride = rows_stride(turn, hidden);
    up.a_row_bytes = fp8 ? 0 : 2 * stride;             /* (fp8: x is quantized before, side by side) */
    if (!stride || fp8) stride = hidden;
    x = (uint16_t *)in(rows_size(tokens, hidden, stride) * 2);
    for (i = 0; i < tokens; i++)
        fill_t(x + (size_t)i * stride, (size_t)hidden, up.dtype, odd == UP_DOWN_FAR ? 30 : 1);
    p = odd == UP_DOWN_NAN || odd == UP_DOWN_INF ? rng_below(tokens) * stride : 0;
    for (i = 0; odd == UP_DOWN_NAN && i < hidden; i++) x[p + i] = 0x7fff;
    if (odd == UP_DOWN_INF) x[p + rng_below(hidden)] = ref_to_t(INFINITY, up.dtype);
    layer_static(&up, &down);
    /* (Inf: 448 times 2^127, which a double is and a float is not.) */
    h.ue8m0 = f->ue8m0 && rng_below(4) == 3 && odd != UP_DOWN_INF;
    up_down_quantize(&up, x, tokens, h.ue8m0);
    down.a = scratch((size_t)slots * inter * 2);
    if (format_blocked(f)) down.a_scale = layer_scales(slots, inter);
    down.out = out((size_t)slots * hidden * 2);
    if (by_slot) down.rows.out_order = up.rows.order;
    h.flags = (int32_t *)scratch((size_t)(MOEK_UP_DOWN_FLAGS + up.max_blocks) * 4);
    memset(h.flags, 0, (size_t)(MOEK_UP_DOWN_FLAGS + up.max_blocks) * 4);
    h.up = &up, h.down = &down;
    if (!self) up.ids = NULL;
    d = h, d_up = up, d_down = down;
    up_down_move(&d, &d_up, &d_down);
    if (launch_twice(&d)) {
        want = (double *)ref_alloc((size_t)slots * hidden * sizeof *want);
        of_slot = (uint16_t *)ref_alloc((size_t)slots * hidden * 2);
        memset(of_slot, 0, (size_t)slots * hidden * 2);
        made = (const uint16_t *)got(down.out), before = (const uint16_t *)rows_want(down.out);
        rows_say("the reference");
        up_down_want(&h, x, stride, ids, slots, topk, layout, want);
        for (p = 0; p < up.rows.offsets[experts]; p++) {
            const int slot = up.rows.order[p];
            memcpy(of_slot + (size_t)slot * hidden, made + (size_t)(by_slot ? slot : p) * hidden, (size_t)hidden * 2);
        }
        layer_compare(of_slot, want, slots, hidden, inter, up.dtype, tolerance);
        for (i = 0; i < slots; i++) {                  /* nobody's rows */
            const int nobody = by_slot ? ids[i] < 0 || ids[i] >= experts : i >= up.rows.offsets[experts];
            touched += nobody && memcmp(made + (size_t)i * hidden, before + (size_t)i * hidden, (size_t)hidden * 2);
        }
        CHECK(!touched, "%s: %s: %d rows that are nobody's were written", now.row->name, now.what, touched);
        free(want), free(of_slot), free((void *)before);
#if MEM_CUDA
        if (slots < 3000) {                            /* behind a kernel that has not written a, or its order, yet */
            d = h, d_up = up, d_down = down;
            d_up.early = 1;
            up_down_move(&d, &d_up, &d_down);
            late_begin(d_up.a, up.a);
            late_begin(d_up.rows.order, up.rows.order);
            late_begin(d.flags, h.flags);
            if (fp8 && !f->static_x) late_begin(d_up.a_scale, up.a_scale);
            rows_again("out behind a late kernel", &d, down.out);
            late_end();
        }
#endif
        d = h, d_up = up, d_down = down;
        if ((d_up.w.codes = gemm_tiles(&up)) && (d_down.w.codes = gemm_tiles(&down))) {
            d_up.w.layout = d_down.w.layout = 1;
            up_down_move(&d, &d_up, &d_down);
            rows_again("out of tiled weights", &d, down.out);
        }
    }
    rows_clear();
}
static void up_down_case(int turn, int act, int layout, int tokens, int topk, int experts, int hidden, int inter,
                         int kind)
{
    up_down_odd_case(turn, act, layout, tokens, topk, experts, hidden, inter, kind, UP_DOWN_PLAIN);
}
static void test_up_down(void)
{
    static const int tokens[] = { 1, 3, 9, 17, 33, 64, 65, 127, 200, 255 };
    static const int acts[][2] = { MOEK_EACH_ACT(UP_ACT) };
    int i, layout, kind, turn = 0;
    for (i = 0; i < COUNT(acts); i++)
        for (layout = MOEK_UP_GATE_UP; layout <= (acts[i][1] ? MOEK_UP_SEPARATE : MOEK_UP_GATE_UP); layout++, turn++) {
            each_act(i, layout, acts[i][1]);
            up_down_case(turn, acts[i][0], layout, tokens[turn % COUNT(tokens)], 1 + rng_below(2), 1 + rng_below(9),
                         gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 136), IDS_RANDOM);
        }
    each_act_end();
    for (i = 0; i < COUNT(tokens); i++)
        for (kind = 0; kind < IDS_KINDS; kind++, turn++)
            up_down_case(turn, MOEK_SILU, MOEK_UP_GATE_UP, tokens[i], 1 + turn % (tokens[i] > 20 ? 3 : 8),
                         1 + turn % 60, gemm_size(turn, tokens[i] > 20 ? 136 : 520),
                         gemm_size(turn / 3, tokens[i] > 20 ? 72 : 392), kind);
    for (i = 0; i < 4 * UP_DOWN_ODDITIES; i++, turn++)
        up_down_odd_case(turn, acts[i / 2 % COUNT(acts)][0], MOEK_UP_GATE_UP, 20 + 37 * (i % 3), 2, 5,
                         gemm_size(rng_below(8), 264), gemm_size(rng_below(8), 264), IDS_RANDOM, i % UP_DOWN_ODDITIES);
    /* Several tiles a block of up and of down, in the ring many times over; the most experts, of which not all have
     * rows; the most row blocks there may be, an expert's side by side, more slots than few blocks sort. */
    for (kind = 0; kind < IDS_KINDS; kind++, turn++)
        up_down_case(turn, MOEK_SILU, MOEK_UP_GATE_UP, 400, 2, 40, round_up(700, now.row->granule),
                     round_up(264, now.row->granule), kind);
    up_down_case(1, MOEK_SILU, MOEK_UP_GATE_UP, 700, 1, 1000, round_up(72, now.row->granule),
                 round_up(16, now.row->granule), IDS_RANDOM);
    for (i = 0; i < 2; i++)
        up_down_case(2 + i, MOEK_SILU, MOEK_UP_SWAPPED, (SMALL ? 60 : 500) * now.row->m, 2, 3, now.row->granule,
                     now.row->granule, IDS_EVEN);
}
