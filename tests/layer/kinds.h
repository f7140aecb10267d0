/* kinds.h -- a part of test_layer.c, which includes it once: formats, activations, layouts of w. */
/* Every format with every activation; layouts, biases, T of fp8, ue8m0, static scales and entries take turns. */
static void test_formats(void)
{
    static const int acts[] = {
#define ACT(NAME, name, number, gated) number,
        MOEK_EACH_ACT(ACT)
#undef ACT
    };
    const int n = (int)(sizeof acts / sizeof *acts);
    FOR_EACH_FORMAT(f) {
        int turn, options;
        for (turn = 0; turn < 2 * n; turn++) {
            const int format = turn / n, i = turn % n;
            moek_config c = config_of(f->number);
            char what[64];
            layer l;
            SKIP_IF_SMALL((i + 3 * q_ + 5 * format) % n > 1);
            if (!SMALL) SKIP_IF_QUICK(i + format, 2);
            c.act = acts[i];
            c.format = format;
            if (ref_act_depends(c.act, 2)) c.limit = i % 4 == 1 ? MOEK_NO_LIMIT : i % 4 == 2 ? 0 : 1.5f;
            if (ref_act_depends(c.act, 0)) c.alpha = turn % 2 ? 1.25f : 0;
            if (ref_act_depends(c.act, 1)) c.beta = turn % 2 ? 0.5f : 0;
            c.dtype = format_dtype_in(f, i);
            c.ue8m0 = f->ue8m0 && i % 3 == 1;
            c.up_layout = ref_gated(c.act) ? (i + q_) % 5 : 0;
            if (c.up_layout == MOEK_UP_SWAPPED && format_rows_share(f)) c.up_scales = MOEK_UP_SCALES_SEPARATE;
            snprintf(what, sizeof what, "%s, layout %d, turn %d", moek_act_name(c.act), c.up_layout, turn);
            options = (i % 2 ? LAYER_BIAS : 0) | (i % 3 == 2 ? LAYER_STATIC : 0);
            if ((i + format) % 2) options |= LAYER_LOGITS;
            if (i % 3) options |= LAYER_ZERO;
            layer_new(&l, &c, options, TOKENS);
            layer_check(&l, what);
            layer_free(&l);
        }
    }
}

/* The same weights by two formats: each layer is what its own reference says, and the two are as far apart as x and h
 * are rounded.  Of a normal entry a code is off by rms 2.6e-2 in e4m3, 1e-1 in e2m1 under scales of 16 columns, and
 * 2^-7 of a few deviations in 8-bit integers; x and h, gate and up, add to about twice that. */
static double pair_apart(const moek_format *f)
{
    return f->x_bits < 8 ? 0.2 : f->x == MOEK_ELEMENT_E4M3 ? 0.06 : 0.02;
}
static void test_pair(const moek_format *quantized, const moek_format *plain, int options)
{
    const double most = 2 * pair_apart(quantized);
    moek_config c = config_of(quantized->number);
    layer l;
    ref_distance d;
    double *want;
    uint16_t *y;
    size_t n, i;
    c.format = options & LAYER_BIAS ? MOEK_BATCHED : MOEK_STANDARD;
    layer_new(&l, &c, options, TOKENS);
    n = (size_t)TOKENS * (size_t)c.hidden;
    if (layer_check(&l, "of a pair") && (y = layer_y(&l, moek_run)) != NULL) {
        want = (double *)ref_alloc(8 * n);
        for (i = 0; i < n; i++) want[i] = ref_get_t(y, i, l.plan.config.dtype);
        free(y);
        l.config.quant = plain->number;
        l.format = format_with(plain, c.block);
        l.w.x_scale = l.w.h_scale = NULL;
        if (layer_check(&l, "of a pair, x in T")) {
            d = ref_compare_t(layer_got(&l, l.args.y), want, n, l.plan.config.dtype);
            CHECK(d.rel_l2 < most && d.rel_l2 > most / 20, "%s and %s: %.2e apart, at most %.2e", quantized->name,
                  plain->name, d.rel_l2, most);
        }
        free(want);
    }
    layer_free(&l);
}
static void test_pairs(void)
{
    int i;
    FOR_EACH_FORMAT(f) {
        for (i = 0; i < FORMATS; i++) {
            const moek_format *const g = format_at(i);
            if (config_in_blocks || f->x_bits != 16 || g == f || !moek_same_weights(f->number, g->number)) continue;
            if (!format_has(g, MOEK_OP_UP, layer_arch)) continue;
            test_pair(g, f, 0);
            if (!quick_set) test_pair(g, f, LAYER_BIAS);
        }
    }
}

/* No tokens, one, and sizes at the edges of what tiles and vectors hold. */
static void test_sizes(void)
{
    static const int odd[][2] = { { 100, 36 }, { 1, 1 }, { 129, 257 }, { 130, 3 }, { 17, 128 } };
    static const int even[][2] = { { 16, 16 }, { 144, 272 }, { 320, 48 } };
    int i;
    FOR_EACH_FORMAT(f) {
        for (i = 0; i < (layer_arch ? 3 : 5); i++) {
            moek_config c = config_of(f->number);
            const int *size = layer_arch ? even[i] : odd[i], g = format_granule(f, layer_arch);
            layer l;
            SKIP_IF_SMALL((i + q_) % 3);
            c.hidden = (size[0] + g - 1) / g * g; c.inter = (size[1] + g - 1) / g * g;
            c.format = i % 2;
            layer_new(&l, &c, LAYER_BIAS | (i % 2 ? LAYER_ZERO : 0), i == 2 ? 1 : 5);
            if (layer_check(&l, "odd sizes")) {
                uint16_t *y = layer_y(&l, moek_run);
                l.config.chunk_tokens = 2;             /* rows that start anywhere */
                if (!format_by_tensor(f) && layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 2 of an odd size");
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* The arguments of one token out of many. */
static moek_args token_of(const moek_plan *plan, const moek_args *args, int t)
{
    moek_args a = *args;
    const size_t row = 2 * (size_t)t * plan->config.hidden;
    a.tokens = 1;
    a.x = (const char *)args->x + row;
    a.y = (char *)args->y + row;
    a.topk_ids += t * plan->slots;
    a.topk_weights += t * plan->slots;
    return a;
}
static moek_status token_by_token(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_status s = MOEK_OK;
    int t;
    for (t = 0; t < args->tokens && s == MOEK_OK; t++) {
        const moek_args a = token_of(plan, args, t);
        s = moek_run(plan, &a, stream);
    }
    return s;
}

/* Many rows an expert, many experts, large topk: the other tiles. */
static void test_tiles(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        layer l;
        int batched;
        SKIP_IF_SMALL(f->number != FORMAT_BLOCKED);
        c.hidden = format_round_up(f, 128); c.inter = format_round_up(f, 64);
        for (batched = 0; batched < 2; batched++) {
            c.format = batched;
            c.experts = 2; c.topk = 1; c.max_tokens = SMALL ? 40 : 1100;
            layer_new(&l, &c, LAYER_LOGITS | LAYER_STATIC, c.max_tokens);
            layer_check(&l, "many rows an expert");
            layer_free(&l);
            c.batch_invariant = 1; c.max_tokens = SMALL ? 40 : 300;
            layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
            if (layer_check(&l, "many rows an expert, batch invariant")) {
                uint16_t *y = layer_y(&l, moek_run);
                layer_same(&l, token_by_token, y, "a token alone");
                free(y);
            }
            layer_free(&l);
            c.batch_invariant = 0;
            c.experts = SMALL ? 20 : 64; c.topk = SMALL ? 5 : 20; c.max_tokens = 7;
            layer_new(&l, &c, LAYER_LOGITS, 7);
            layer_check(&l, "many experts");
            layer_free(&l);
        }
    }
}

/* The row for many tokens of a format, of weights as they come: up by tiles of 128 rows, NULL: none. */
static const char *wide_row(const moek_format *f)
{
    int n, i;
    const moek_kernel *const k = moek_kernels(&n);
    for (i = 0; i < n; i++)
        if (k[i].quant == f->number && k[i].reads & MOEK_READS_CHECKPOINT && k[i].traits & MOEK_TRAIT_SORTED_X)
            return k[i].name;
    return NULL;
}
/* The rows for many tokens, if a token's bits must be its own: about 150 rows an expert, so some behind a full tile. */
static void test_wide_alone(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        layer l;
        if (layer_arch != 90 || (quick_set && f->number != FORMAT_BLOCKED) || !wide_row(f)) continue;
        c.hidden = format_round_up(f, 128); c.inter = format_round_up(f, 64);
        c.experts = quick_set ? 1 : 2; c.topk = 1; c.max_tokens = 150 * c.experts;
        c.kernel = wide_row(f); c.batch_invariant = 1;
        layer_new(&l, &c, LAYER_STATIC, c.max_tokens);
        if (layer_check(&l, "tiles of 128, batch invariant")) {
            uint16_t *y = layer_y(&l, moek_run);
            layer_same(&l, token_by_token, y, "a token alone");
            free(y);
        }
        layer_free(&l);
    }
}

/* Wide experts with many rows: x is written in sorted order, and up reads it by TMA.  In chunks with fewer rows an
 * expert, up gathers: the same bits. */
static void test_wide_ordered(void)
{
    FOR_EACH_FORMAT(f) {
        int i;
        if (layer_arch != 90 || !wide_row(f)) continue;
        for (i = 0; i < 3; i++) {
            const struct layer_strides strides = { 520, 1024, 0, 0, 0 };
            moek_config c = config_of(f->number);
            uint16_t *y;
            layer l;
            int slot;
            SKIP_IF_SMALL((i + q_) % 3 < 2);
            c.hidden = 512; c.inter = 4096; c.kernel = wide_row(f); c.batch_invariant = 1;
            c.experts = i < 2 ? 3 : 1; c.topk = i < 2 ? 2 : 1; c.max_tokens = i < 2 ? 800 : 515;
            c.router_weight_on_input = i == 2;
            c.ue8m0 = f->ue8m0 && i == 1;
            layer_new(&l, &c, LAYER_STATIC | (i == 1 ? LAYER_LOGITS : 0), c.max_tokens);
            snprintf(l.what, sizeof l.what, "rows of x in order, %s, turn %d", f->name, i);
            for (slot = 3; i == 0 && slot < 2 * c.max_tokens; slot += 97) l.args.topk_ids[slot] = -1;
            y = layer_plan(&l) ? layer_y(&l, moek_run) : NULL;
            if (y) layer_compare_some(&l, SMALL ? 4 : 9);
            layer_same(&l, moek_run, y, "a second run");
            layer_strides_now = strides;
            layer_strided_drive = moek_run;
            if (!SMALL || f->number == format_of_t(MOEK_DTYPE_FP16)) layer_same(&l, layer_strided, y, "strides");
            l.config.chunk_tokens = i < 2 ? 300 : 200;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "gathered");
            free(y);
            layer_free(&l);
        }
    }
}

/* Each row by a measured choice, also rows of an older architecture, beside what the plan would have taken. */
static void test_tuned(void)
{
    char line[256], device[16];
    int n, i;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) {
        moek_config c;
        moek_plan plan;
        layer l;
        if (k[i].op != MOEK_OP_UP || mem_on_gpu(k[i].arch) != mem_on_gpu(layer_arch)) continue;
        if (layer_arch ? k[i].arch > layer_arch : k[i].launch(NULL, NULL) != MOEK_OK) continue;
        if (!(k[i].reads & MOEK_READS_CHECKPOINT)) continue;
        SKIP_IF_SMALL(quick_set && k[i].quant != FORMAT_BLOCKED);
        c = config_of(k[i].quant);
        if (k[i].hidden) c.hidden = k[i].hidden;
        c.block = k[i].block;
        c.cpu = mem_on_gpu(k[i].arch) ? 0 : k[i].arch;         /* (plain C may be as fast as a set) */
        c.backend = 0;
        c.exclude = layer_arch ? 1u << MOEK_BACKEND_CPU : MOEK_BACKENDS_GPU;
        if (layer_arch && layer_arch < MOEK_ARCH_SM90) c.exclude |= 1u << MOEK_BACKEND_SM90;
        if (layer_arch == MOEK_ARCH_SM80) c.exclude |= 1u << MOEK_BACKEND_SM89;
        if (layer_arch && layer_arch < MOEK_ARCH_SM90) c.exclude |= 1u << MOEK_BACKEND_SM120;
        if (!CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s: %s", k[i].name, plan.why)) continue;
        snprintf(device, sizeof device, layer_arch ? "sm%d" : "cpu", plan.arch);
        snprintf(line, sizeof line, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t1\t1", device, moek_quant_name(c.quant), c.hidden,
                 c.inter, c.experts, c.topk, TOKENS, k[i].name);
        c.tuned = line;
        c.format = i % 2;
        layer_new(&l, &c, LAYER_BIAS, TOKENS);
        layer_check(&l, k[i].name);
        CHECK(l.plan.chosen.choices && l.plan.chosen.up[moek_plan_tile(&l.plan, TOKENS)] == &k[i] && !l.plan.note[0],
              "%s is not chosen: %s", k[i].name, l.plan.note);
        layer_free(&l);
    }
}
