/* tiled.h -- a part of test_layer.c, which includes it once: the same bits from other orders of weights: tiled,
 * fragments, gate and up apart. */
/* Tiled weights, made by the library: the same bits from rows of every kind; and back again.  Rows that read them not
 * say so. */
static void *repacked(layer *l, int down, const void *from, int back)
{
    const layer_array *a = layer_find(l, from);
    const int n = l->plan.local_experts;
    char *const of = (char *)mem_alloc(layer_arch, a->bytes), *const to = (char *)mem_alloc(layer_arch, a->bytes);
    void *const got = malloc(a->bytes);
    int e;
    mem_put(layer_arch, of, from, a->bytes);
    for (e = 0; e < n; e += 3) {                       /* some experts at a time */
        const size_t at = a->bytes / (size_t)n * (size_t)e;
        const int some = n - e < 3 ? n - e : 3;
        const moek_status s = (down ? moek_repack_down : moek_repack_up)(&l->plan, of + at, to + at, some, back, NULL);
        CHECK(s == MOEK_OK, "%s: repack: %s", l->what, moek_status_name(s));
    }
    mem_get(layer_arch, got, to, a->bytes);
    mem_free(layer_arch, of); mem_free(layer_arch, to);
    return got;
}
static void tiled_case(int quant, int turn)
{
    static const int tokens[] = { 1, 4, 9, 70, 300, 900 };
    const int many = quick_set && SMALL && turn % 6 == 5 ? 300 : tokens[turn % 6];
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    c.hidden = turn % 2 ? 640 : 1152; c.inter = turn % 4 < 2 ? 256 : 384; c.experts = turn % 3 ? 11 : 6; c.topk = 2;
    c.max_tokens = many;
    c.up_layout = turn % 4;
    if (turn % 5 == 4) c.act = MOEK_RELU2_NO_MUL, c.up_layout = 0;
    if (turn == 7) c.format = MOEK_BATCHED;
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0), many);
    snprintf(l.what, sizeof l.what, "tiled weights, %s, turn %d", l.format->name, turn);
    if (turn % 3 && format_has(l.format, MOEK_OP_LAYER, layer_arch)) layer_state = layer_zeros(moek_state_size());
    y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
    if (y && c.format == MOEK_STANDARD) layer_compare_some(&l, many < 10 ? many : 10);
    if (y) {
        void *const up = repacked(&l, 0, l.w.w_up, 0), *const down = repacked(&l, 1, l.w.w_down, 0), *was;
        layer_array *const a = layer_find(&l, l.w.w_up), *const b = layer_find(&l, l.w.w_down);
        void *const first = malloc(a->bytes);
        memcpy(first, l.w.w_up, a->bytes);
        memcpy((void *)(uintptr_t)l.w.w_up, up, a->bytes);
        memcpy((void *)(uintptr_t)l.w.w_down, down, b->bytes);
        l.config.weight_layout = MOEK_WEIGHTS_TILED;
        if (layer_plan(&l)) layer_same(&l, moek_run, y, "tiled");
        was = repacked(&l, 0, l.w.w_up, 1);
        CHECK(!memcmp(was, first, a->bytes), "%s: back are other weights", l.what);
        free(up); free(down); free(was); free(first);
    }
    free(y);
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* Weights at addresses that are no more aligned than moek_alignment says: the same bits, where kernels load no more at
 * once.  (Of a GPU a misaligned load fails.)  Less aligned ones are refused, by name. */
static layer *least_of;                                /* whose weights they are */
static moek_status at_least_alignment(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    static const char *const names[] = {
        "w_up", "w_down", "w_gate", "w_up_scale", "w_down_scale", "w_gate_scale", "w_up_zero", "w_down_zero",
        "w_gate_zero", "w_up_bias", "w_down_bias", "w_gate_bias", "w_up_global_scale", "w_down_global_scale",
        "w_gate_global_scale", "x_scale", "h_scale"
    };
    enum { NAMES = sizeof names / sizeof *names };
    void *there[NAMES] = {0};
    moek_plan p = *plan;
    moek_weights w = plan->weights;
    moek_status status;
    int i, j;
    for (i = 0; i < NAMES; i++) {
        char field[48], *to, *from;
        void *at;
        size_t bytes;
        snprintf(field, sizeof field, "weights.%s", names[i]);
        bytes = moek_alignment(plan, field);
        at = (char *)&w + moek_offset(field);
        memcpy(&from, at, sizeof from);
        if (!from) continue;
        for (j = 0; least_of->array[j].there + LAYER_GUARD != (unsigned char *)from; j++)
            if (j == least_of->arrays - 1) abort();
        there[i] = mem_alloc(layer_arch, least_of->array[j].bytes + 64);
        to = (char *)there[i] + bytes / 2;
        memcpy(at, &to, sizeof to);
        if (bytes > 1)
            CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && strstr(p.why, field), "%s: %s is accepted: %s",
                  least_of->what, field, p.why);
        to = (char *)there[i] + bytes;
        memcpy(at, &to, sizeof to);
        layer_copy(to, from, least_of->array[j].bytes, stream);
    }
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s: %s", least_of->what, p.why);
    status = moek_run(&p, args, stream);
#if MEM_CUDA
    if (layer_arch) mem_must(cudaDeviceSynchronize());
#endif
    for (i = 0; i < NAMES; i++) mem_free(layer_arch, there[i]);
    return status;
}
static void test_alignment(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        for (turn = 0; turn < 2; turn++) {
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            SKIP_IF_QUICK(turn, 2);
            c.up_layout = turn ? MOEK_UP_SEPARATE : 0;
            layer_new(&l, &c, LAYER_BIAS | LAYER_STATIC | LAYER_ZERO, TOKENS);
            snprintf(l.what, sizeof l.what, "alignment, %s, layout %d", f->name, c.up_layout);
            y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
            least_of = &l;
            if (y) layer_same(&l, at_least_alignment, y, "other addresses");
            free(y);
            layer_free(&l);
        }
    }
}

/* In place of an array of the layer, what the library makes of it. */
typedef moek_status (*repacker)(const moek_plan *plan, const void *from, void *to, int experts, int back,
                                moek_stream stream);
static void repack_by(layer *l, repacker repack, const void *host)
{
    layer_array *const a = layer_find(l, host);
    const size_t each = a->bytes / (size_t)l->plan.local_experts;
    char *const of = (char *)mem_alloc(layer_arch, a->bytes), *const to = (char *)mem_alloc(layer_arch, a->bytes);
    char *const again = (char *)mem_alloc(layer_arch, a->bytes);
    unsigned char *const got = (unsigned char *)malloc(a->bytes);
    int e, done = 1;
    mem_put(layer_arch, of, host, a->bytes);
    for (e = 0; e < l->plan.local_experts; e += 3) {   /* some experts at a time */
        const int some = l->plan.local_experts - e < 3 ? l->plan.local_experts - e : 3;
        const size_t at = each * (size_t)e;
        done &= repack(&l->plan, of + at, to + at, some, 0, NULL) == MOEK_OK &&
                repack(&l->plan, to + at, again + at, some, 1, NULL) == MOEK_OK;
    }
    mem_get(layer_arch, got, again, a->bytes);
    CHECK(done && !memcmp(got, host, a->bytes), "%s: repacked and back it is something else", l->what);
    a->repacked = (unsigned char *)malloc(a->bytes + 2 * LAYER_GUARD);
    memcpy(a->repacked, a->host, a->bytes + 2 * LAYER_GUARD);
    mem_get(layer_arch, a->repacked + LAYER_GUARD, to, a->bytes);
    mem_free(layer_arch, of); mem_free(layer_arch, to); mem_free(layer_arch, again);
    free(got);
}
/* expands: with config.expand_weights, which so many rows an expert then take. */
static void fragments_case(int quant, int act, int tokens, int turn, int expands)
{
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    if (moek_format_of(quant)->blocks) c.block = moek_format_of(quant)->block[turn % moek_format_of(quant)->blocks];
    c.hidden = turn % 2 ? 320 : 128; c.inter = turn % 4 < 2 ? 192 : 128; c.experts = turn % 3 ? 7 : 3;
    c.hidden = format_round_up(moek_format_of(quant), c.hidden);
    c.inter = format_round_up(moek_format_of(quant), c.inter);
    if (expands) c.hidden = turn % 2 ? 576 : 320, c.inter = turn % 4 < 2 ? 448 : 256;
    c.dtype = turn % 3 == 1 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    c.max_tokens = tokens;
    c.act = act;
    c.up_layout = ref_gated(act) ? turn % 4 : 0;       /* all but APART */
    c.batch_invariant = turn % 5 == 3 && !expands;
    if (turn % 7 == 6 && !expands) c.format = MOEK_BATCHED;
    c.weight_layout = MOEK_WEIGHTS_TILED;
    c.expand_weights = expands;
    layer_new(&l, &c, (turn % 2 ? LAYER_BIAS : 0) | (turn / 2 % 2 ? LAYER_ZERO : 0), tokens);
    if (turn % 3 != 1 && c.format == MOEK_STANDARD && format_has(l.format, MOEK_OP_LAYER, layer_arch))
        layer_state = layer_zeros(moek_state_size());  /* up to 8 tokens: in one launch */
    snprintf(l.what, sizeof l.what, "fragments, %s, block %d, zeros %d, act %d, %d tokens, turn %d, expands %d",
             l.format->name, c.block, l.w.w_up_zero != NULL, act, tokens, turn, expands);
    if (layer_plan(&l)) {
        CHECK(moek_selection_of(&l.plan, tokens, MOEK_FUSE_LAYER).details.expands == expands, "%s: it does not",
              l.what);
        repack_by(&l, moek_repack_up, l.w.w_up); repack_by(&l, moek_repack_down, l.w.w_down);
        const int scales = l.format->w_scale.rows == 1 && l.format->w_scale.columns;
        if (scales) {                                  /* (others, and zero points of rows, stay) */
            repack_by(&l, moek_repack_up_scale, l.w.w_up_scale);
            repack_by(&l, moek_repack_down_scale, l.w.w_down_scale);
        }
        if (l.w.w_up_zero && scales) {
            repack_by(&l, moek_repack_up_zero, l.w.w_up_zero); repack_by(&l, moek_repack_down_zero, l.w.w_down_zero);
        }
        if ((y = layer_y(&l, moek_run)) != NULL) {
            layer_compare_some(&l, tokens < 12 ? tokens : 12);
            if (!layer_state) layer_same(&l, by_stages, y, "by stages");       /* (in one launch o is not rounded) */
            least_of = &l;
            layer_same(&l, at_least_alignment, y, "other addresses");
#if MEM_CUDA
            layer_same(&l, by_graph, y, "a graph");
#endif
        }
        free(y);
    }
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* What belongs to an op's weights, of this format, in the order of the plan: panels, or tiled for Hopper, where scales
 * are repacked for fragments alone. */
static void repack_op(layer *l, const moek_format *f, int down)
{
    const moek_weights *const w = &l->w;
    const void *const scale = down ? w->w_down_scale : w->w_up_scale;
    const void *const zero = down ? w->w_down_zero : w->w_up_zero;
    const int scales = f->w_scale.rows == 1 && scale && moek_weight_scale(f, l->config.block).columns &&
                       (!layer_arch || format_in_fragments(f));
    repack_by(l, down ? moek_repack_down : moek_repack_up, down ? w->w_down : w->w_up);
    if (scales) repack_by(l, down ? moek_repack_down_scale : moek_repack_up_scale, scale);
    if (zero && scales) repack_by(l, down ? moek_repack_down_zero : moek_repack_up_zero, zero);
    if (down || !w->w_gate) return;
    repack_by(l, moek_repack_up, w->w_gate);
    if (scales) repack_by(l, moek_repack_up_scale, w->w_gate_scale);
    if (zero && scales) repack_by(l, moek_repack_up_zero, w->w_gate_zero);
}
/* Weights in panels, on the CPU: all that belongs to them is repacked. */
static void panels_case(int quant, int tokens, int turn)
{
    static const int acts[] = { MOEK_SILU, MOEK_SWIGLUOAI, MOEK_RELU2_NO_MUL };
    const moek_format *const f = moek_format_of(quant);
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    if (f->blocks) c.block = f->block[turn % f->blocks];
    c.hidden = format_round_up(f, turn % 2 ? 160 : 128); c.inter = format_round_up(f, turn % 4 < 2 ? 96 : 192);
    if (turn % 3 == 1) c.hidden *= 2;
    c.experts = 3;
    c.dtype = format_dtype_in(f, turn);
    c.max_tokens = tokens;
    c.act = acts[turn % 3];
    c.up_layout = ref_gated(c.act) ? turn % 5 : 0;
    if (turn % 7 == 6) c.format = MOEK_BATCHED;
    c.weight_layout = MOEK_WEIGHTS_PANELS;
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0) | (turn / 2 % 2 && f->zero ? LAYER_ZERO : 0), tokens);
    snprintf(l.what, sizeof l.what, "panels, %s, block %d, zeros %d, act %d, up_layout %d, %d tokens, turn %d", f->name,
             c.block, l.w.w_up_zero != NULL, c.act, c.up_layout, tokens, turn);
    if (layer_plan(&l)) {
        repack_op(&l, f, 0), repack_op(&l, f, 1);
        if ((y = layer_y(&l, moek_run)) != NULL) {
            layer_compare_some(&l, tokens < 12 ? tokens : 12);
            layer_same(&l, by_stages, y, "by stages");
        }
        free(y);
    }
    layer_free(&l);
}
static void test_panels(void)
{
    static const int tokens[] = { 1, 70, 3, 12, 160 };
    int i, t, turn = 0;
    for (i = 0; i < FORMATS && layer_arch < MOEK_ARCH_SM80; i++)
        for (t = 0; t < (quick_set ? 2 : 10); t++, turn++)
            if (format_has(format_at(i), MOEK_OP_UP, MOEK_ARCH_CPU))
                panels_case(format_at(i)->number, tokens[turn % 5], turn);
}
/* Weights as fragments: all tile heights; layouts, T, biases and activations by turns.  Weights as they come are
 * refused where no kernel reads them, and zero points that are not aligned. */
static void test_fragments(void)
{
    static const int tokens[] = { 1, 300, 20, 9, 60, 130, 3, 700 };
    static const int acts[] = { MOEK_SILU, MOEK_SWIGLUOAI, MOEK_GELU, MOEK_RELU2_NO_MUL, MOEK_SITU };
    int i, turn = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = config_of(f->number);
        moek_plan plan;
        int t;
        if (!format_reads(f, layer_arch, MOEK_READS_FRAGMENTS)) continue;
        for (t = 0; t < (quick_set ? 2 : SMALL ? 4 : 16); t++, turn++)
            fragments_case(f->number, acts[turn % 5], tokens[turn % 8], turn, 0);
        c.block = f->blocks ? f->block[0] : 0;
        if (format_reads(f, layer_arch, MOEK_READS_CHECKPOINT | MOEK_READS_BLOCKS))
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s", plan.why);
        else
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "MOEK_WEIGHTS_TILED"), "%s",
                  plan.why);
        if (f->zero) {
            layer l;
            c.weight_layout = MOEK_WEIGHTS_TILED;
            layer_new(&l, &c, LAYER_ZERO, 1);
            l.w.w_up_zero = (const char *)l.w.w_up_zero + 1;
            CHECK(moek_plan_init(&l.plan, &c) == MOEK_OK && moek_plan_bind(&l.plan, &l.w) == MOEK_E_ARGUMENT &&
                  strstr(l.plan.why, "w_up_zero is not aligned to 16"), "%s", l.plan.why);
            layer_free(&l);
        }
    }
}
/* Weights become e4m3 in a run: the same layers, of many rows an expert. */
static void test_expanded(void)
{
    static const int acts[] = { MOEK_SWIGLUOAI, MOEK_SILU, MOEK_RELU2_NO_MUL, MOEK_SITU };
    int i, turn, other, first = 0;
    for (i = 0; i < FORMATS && layer_arch == 90; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = config_of(f->number);
        moek_plan plan;
        c.hidden = c.inter = 256;
        c.weight_layout = MOEK_WEIGHTS_TILED, c.expand_weights = 1;
        c.block = f->blocks ? f->block[0] : 0;
        if (f->only_blocks) continue;                  /* (others are refused with another sentence) */
        if (!f->expands) {
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "expand_weights"), "%s: %s", f->name,
                  plan.why);
            continue;
        }
        for (turn = 0; turn < (quick_set ? 2 : SMALL ? 4 : 12); turn++)        /* from 512 rows on, up quantizes h */
            fragments_case(f->number, acts[(turn + first) % 4], turn % 3 ? 1300 : 900, turn + first, 1);
        first++;
        c.weight_layout = MOEK_WEIGHTS_CHECKPOINT;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "moek_repack_up"), "%s", plan.why);
        c.weight_layout = MOEK_WEIGHTS_TILED, c.batch_invariant = 1;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "batch_invariant"), "%s", plan.why);
        c.batch_invariant = 0, c.max_tokens = 4096, c.prepare_finalize = &moek_batched;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, "expand_weights is for MOEK_STANDARD"),
              "%s", plan.why);
        c.prepare_finalize = NULL;                     /* room for weights only where a run can have the rows */
        if (CHECK(moek_plan_init(&plan, &c) == MOEK_OK && plan.chosen.expanded && plan.chosen.expand, "%s", plan.why)) {
            const size_t with = plan.workspace_size;
            char text[512];
            CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_OK && c.quant == f->number && c.expand_weights &&
                  strstr(text, "(config.expand_weights)"), "%s", text);
            c.max_tokens = 16;
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK && !plan.chosen.expanded &&
                  plan.workspace_size < with, "%s", plan.why);
            for (other = turn = 0; turn < FORMATS; turn++)
                other |= format_at(turn) != f && moek_same_weights(format_at(turn)->number, f->number) &&
                         format_has(format_at(turn), MOEK_OP_UP, 90);
            CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_OK && (c.quant != f->number) == other &&
                  c.expand_weights == !other && (strstr(text, "expand_weights is 0 now") != NULL) == other, "%s", text);
            c.quant = f->number, c.expand_weights = 1;
        }
        c.expand_weights = 2;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "0 or 1"), "%s", plan.why);
    }
}
static void test_tiled(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        moek_plan plan;
        int turn;
        if (f->only_blocks) continue;                  /* (as fragments alone: test_fragments) */
        for (turn = 0; turn < 12 && layer_arch == 90; turn++) {
            SKIP_IF_SMALL((turn + q_) % (quick_set ? 12 : 5));
            tiled_case(f->number, turn);
        }
        c.weight_layout = MOEK_WEIGHTS_TILED;
        c.hidden = c.inter = 256;
        if (!format_reads(f, layer_arch, MOEK_READS_LINES | MOEK_READS_FRAGMENTS))
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, "that read such weights"),
                  "%s", plan.why);
        c.inter = 272;
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "inter 272"), "%s", plan.why);
    }
}

/* Gate and up in two arrays: the same bits as from one, whichever way a layer goes. */
static void half_of_up(const layer *l, const void *from, void *to, size_t half, int second)
{
    const size_t n = (size_t)l->plan.local_experts;
    size_t e;
    for (e = 0; e < n; e++) memcpy((char *)to + e * half, (const char *)from + (2 * e + second) * half, half);
}
static const void *take_half(layer *l, const void *from, size_t bytes, int second)
{
    void *const to = from ? layer_array_new(l, bytes * l->plan.local_experts, LAYER_IN) : NULL;
    if (to) half_of_up(l, from, to, bytes, second);
    return to;
}
static void apart_case(int quant, int turn)
{
    static const int tokens[] = { 1, 4, 9, 70, 300, 900 };
    moek_config c = config_of(quant);
    const moek_format *const f = format_lying(&c, quant);
    size_t scales, half, zeros;
    moek_weights w;
    uint16_t *y;
    layer l;
    int second;
    c.hidden = format_round_up(f, turn % 2 ? 640 : 1152); c.inter = format_round_up(f, turn % 4 < 2 ? 256 : 384);
    c.experts = turn % 3 ? 11 : 6;
    if (format_rows_share(f) && turn % 2) c.inter = 192, c.up_scales = MOEK_UP_SCALES_SEPARATE;
    c.max_tokens = tokens[turn % (layer_arch ? 6 : 4)];
    if (quick_set && SMALL && c.max_tokens > 300) c.max_tokens = 300;
    c.up_layout = turn / 6 % 2 ? MOEK_UP_SWAPPED : MOEK_UP_GATE_UP;
    if (turn % 4 == 3) c.format = MOEK_BATCHED;
    layer_new(&l, &c, LAYER_STATIC | (turn % 3 ? LAYER_BIAS : 0) | (turn % 2 ? LAYER_ZERO : 0), c.max_tokens);
    snprintf(l.what, sizeof l.what, "gate and up apart, %s, turn %d", moek_quant_name(quant), turn);
    if (turn % 3 < 2 && format_has(f, MOEK_OP_LAYER, layer_arch)) layer_state = layer_zeros(moek_state_size());
    y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
    if (y) {
        w = l.w;
        second = c.up_layout == MOEK_UP_GATE_UP;
        scales = moek_scale_bytes(&f->w_scale, (size_t)c.inter, (size_t)c.hidden);
        half = c.inter * moek_weight_bytes(f, 0, (size_t)c.hidden);
        l.w.w_gate = take_half(&l, w.w_up, half, !second);
        l.w.w_up = take_half(&l, w.w_up, half, second);
        l.w.w_gate_bias = take_half(&l, w.w_up_bias, 2 * (size_t)c.inter, !second);
        l.w.w_up_bias = take_half(&l, w.w_up_bias, 2 * (size_t)c.inter, second);
        zeros = c.inter * layer_zero_row(f, (size_t)c.hidden);
        l.w.w_gate_zero = take_half(&l, w.w_up_zero, zeros, !second);
        l.w.w_up_zero = take_half(&l, w.w_up_zero, zeros, second);
        l.w.w_gate_global_scale = (const float *)take_half(&l, w.w_up_global_scale, 4, !second);
        l.w.w_up_global_scale = (const float *)take_half(&l, w.w_up_global_scale, 4, second);
        l.w.w_gate_scale = w.w_up_scale;               /* one an expert: may be the same */
        if (f->w_scale.rows) {
            l.w.w_gate_scale = (const float *)take_half(&l, w.w_up_scale, scales, !second);
            l.w.w_up_scale = (const float *)take_half(&l, w.w_up_scale, scales, second);
        }
        l.config.up_layout = MOEK_UP_SEPARATE;
        l.config.up_scales = 0;
        if (layer_plan(&l)) layer_same(&l, moek_run, y, "gate and up apart");
        CHECK(l.plan.config.up_scales == format_rows_share(f), "%s: up_scales %d", l.what, l.plan.config.up_scales);
        if (layer_arch)
            CHECK(moek_repack_up(&l.plan, y, y + 8, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: it repacks", l.what);
    }
    free(y);
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
