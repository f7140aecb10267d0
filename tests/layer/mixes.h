/* mixes.h -- a part of test_layer.c, which includes it once: gate and up in one format, down in another. */
static int mix_serves(const moek_format *f, int op)
{
    return format_has(f, op, layer_arch) && !(layer_arch == 90 && format_in_fragments(f));
}
/* May they meet?  One T, and of formats that leave the columns of a scale open no two. */
static int mix_goes(const moek_format *up, const moek_format *down)
{
    const int a = format_dtype(up), b = format_dtype(down);
    return up->number != down->number && !(a && b && a != b) && !(up->blocks && down->blocks);
}
/* Is it a row for these weights as they come, on this architecture? */
static int mix_reads(const moek_kernel *k, int op, const moek_format *f)
{
    return k->op == op && k->quant == f->number && k->arch == layer_arch &&
           k->reads & (f->only_blocks ? MOEK_READS_BLOCKS : MOEK_READS_CHECKPOINT);
}
static int mix_heights_meet(const moek_format *up, const moek_format *down)
{
    int i, j, n;
    const moek_kernel *const k = moek_kernels(&n);
    if (!layer_arch) return 1;                         /* on a CPU they need not */
    for (i = 0; i < n; i++)
        for (j = 0; j < n && mix_reads(&k[i], MOEK_OP_UP, up); j++)
            if (mix_reads(&k[j], MOEK_OP_DOWN, down) && k[i].m == k[j].m) return 1;
    return 0;
}
/* A format as a file has it: in blocks, if kernels read such. */
static const moek_format *mix_as_file(const moek_format *f)
{
    const moek_format *const in_blocks = layer_in_blocks(f);
    return in_blocks ? in_blocks : f;
}
/* A config of both.  Rows of each are whole blocks of its own, of no other's: of q4_0 and q4_K, hidden is 288. */
static moek_config mix_of(const moek_format *up, const moek_format *down, int turn)
{
    static const int acts[] = { MOEK_SILU, MOEK_SWIGLUOAI, MOEK_RELU2_NO_MUL };
    moek_config c = config_of(up->number);
    c.down_quant = down->number;
    c.block = format_block(up->blocks ? up : down, turn);
    c.hidden = format_round_up(up, up->only_blocks ? HIDDEN + 1 : HIDDEN);
    c.inter = format_round_up(down, down->only_blocks ? INTER + 1 : INTER);
    if ((up->only_blocks && format_has_arrays(up)) || (down->only_blocks && format_has_arrays(down)))
        c.weight_layout = MOEK_WEIGHTS_BLOCKS;
    c.act = acts[turn % 3];
    if (ref_gated(c.act)) c.up_layout = turn / 2 % 5;
    if (c.up_layout == MOEK_UP_SWAPPED && format_rows_share(up)) c.up_scales = MOEK_UP_SCALES_SEPARATE;
    c.format = turn % 4 == 3;
    c.dtype = format_dtype(up) ? format_dtype(up) : format_dtype_in(down, turn);
    c.ue8m0 = (up->ue8m0 || down->ue8m0) && turn % 3 == 1;
    return c;
}
static void mix_case(const moek_format *up, const moek_format *down, int turn)
{
    const int options = (turn % 2 ? LAYER_BIAS : LAYER_LOGITS) | (turn % 3 ? LAYER_ZERO : 0) |
                        (turn % 5 < 2 ? LAYER_STATIC : 0);
    moek_config c = mix_of(up, down, turn);
    const int panels = !layer_arch && turn % 4 == 2 && c.weight_layout != MOEK_WEIGHTS_BLOCKS;
    char what[96];
    uint16_t *y;
    layer l;
    snprintf(what, sizeof what, "%s, layout %d, turn %d%s", moek_act_name(c.act), c.up_layout, turn,
             panels ? ", in panels" : "");
    layer_new(&l, &c, options, TOKENS);
    if (layer_check(&l, what) && panels) {             /* the same layer */
        l.config.weight_layout = MOEK_WEIGHTS_PANELS;
        if (layer_plan(&l)) {
            repack_op(&l, format_with(up, c.block), 0);
            repack_op(&l, format_with(down, c.block), 1);
            if ((y = layer_y(&l, moek_run)) != NULL) {
                layer_compare(&l);
                layer_same(&l, by_stages, y, "by stages");
            }
            free(y);
        }
    }
    layer_free(&l);
}
/* All formats with all, by turns.  Where no kernels of both have tiles of one height, that is said. */
static void test_two_formats(void)
{
    FOR_EACH_FORMAT(f) {
        int i, turn = q_;
        for (i = 1; i < FORMATS; i++) {
            const moek_format *g = format_at((q_ + i) % FORMATS);
            if (f->only_blocks && (config_in_blocks || turn % 2)) g = mix_as_file(g);
            if (!mix_serves(f, MOEK_OP_UP) || !mix_serves(g, MOEK_OP_DOWN) || !mix_goes(f, g)) continue;
            if (turn++ % (SMALL ? 12 : quick_set ? 7 : 2)) continue;
            if (mix_heights_meet(f, g)) mix_case(f, g, turn);
            else {
                moek_config c = mix_of(f, g, turn);
                moek_plan plan;
                CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "rows of up and of down share"),
                      "%s, %s: %s", f->name, g->name, plan.why);
            }
        }
    }
}
/* One token, no token, many tokens, large sizes, tokens alone, of mixes as files have them. */
static int mix_in_file(const moek_format *f) { return f->only_blocks || format_plain(f); }
static void test_two_sizes(void)
{
    static const int tokens[] = { 0, 1, 3, 70 };
    int i, j, t, turn = 0;
    for (i = 0; i < FORMATS; i++) {
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const f = mix_as_file(format_at(i)), *const g = mix_as_file(format_at(j));
            moek_config c;
            if (!mix_serves(f, MOEK_OP_UP) || !mix_serves(g, MOEK_OP_DOWN) || !mix_goes(f, g)) continue;
            if (!layer_arch && !(mix_in_file(f) && mix_in_file(g))) continue;
            if (turn++ % (SMALL ? 40 : quick_set ? 9 : 3) || !mix_heights_meet(f, g)) continue;
            c = mix_of(f, g, turn);
            for (t = 0; t < 4; t++) {
                layer l;
                uint16_t *y;
                if (SMALL && t != turn % 4) continue;
                c.max_tokens = tokens[t] ? tokens[t] : 1;
                c.batch_invariant = t == 2;
                layer_new(&l, &c, LAYER_BIAS | LAYER_STATIC, tokens[t]);
                if (tokens[t] && layer_check(&l, "of two formats") && c.batch_invariant) {
                    y = layer_y(&l, moek_run);
                    layer_same(&l, token_by_token, y, "a token alone");
                    free(y);
                } else if (!tokens[t] && layer_plan(&l)) layer_run(&l, moek_run);
                layer_free(&l);
            }
        }
    }
}
/* Few tokens in one launch: each row that has two formats. */
static void test_two_in_one_launch(void)
{
    int count, i;
    const moek_kernel *const k = moek_kernels(&count);
    for (i = 0; i < count; i++) {
        const moek_format *f, *g;
        const int tokens = 1 + i % 4;
        moek_config c;
        layer l;
        if (!k[i].down_quant || k[i].arch != layer_arch || k[i].launch(NULL, NULL) != MOEK_OK) continue;
        SKIP_IF_SMALL(i % 2);
        f = moek_format_of(k[i].quant), g = moek_format_of(k[i].down_quant);
        c = mix_of(f, g, 2 * i);
        c.hidden = format_round_up(f, 320), c.inter = format_round_up(g, 192), c.experts = 7, c.topk = 2;
        c.dtype = MOEK_DTYPE_BF16, c.max_tokens = 9, c.format = MOEK_STANDARD, c.weight_layout = MOEK_WEIGHTS_TILED;
        if (c.up_layout == MOEK_UP_SEPARATE) c.up_layout = MOEK_UP_GATE_UP;
        c.kernel = k[i].name;
        layer_new(&l, &c, LAYER_BIAS, tokens);
        snprintf(l.what, sizeof l.what, "%s, %d tokens", k[i].name, tokens);
        layer_state = layer_zeros(moek_state_size());
        if (layer_plan(&l)) {
            CHECK(moek_plan_layer(&l.plan, tokens) == &k[i], "%s: another row takes it", l.what);
            repack_op(&l, format_with(f, c.block), 0), repack_op(&l, format_with(g, c.block), 1);
            if (layer_run(&l, moek_run)) layer_compare(&l);
        }
        mem_free(layer_arch, layer_state);
        layer_state = NULL;
        layer_free(&l);
    }
}
/* Tiled weights of two formats: on Hopper lines and fragments meet, elsewhere fragments one of which are of a file. */
static int mix_tiles(const moek_format *up, const moek_format *down)
{
    if (layer_arch == 90) return format_has(up, MOEK_OP_UP, 90) && format_has(down, MOEK_OP_DOWN, 90);
    return (up->only_blocks || down->only_blocks) && format_reads(up, layer_arch, MOEK_READS_FRAGMENTS) &&
           format_reads(down, layer_arch, MOEK_READS_FRAGMENTS);
}
static void test_two_tiled(void)
{
    int i, j, turn = 0, ran = 0;
    for (i = 0; i < FORMATS && layer_arch >= MOEK_ARCH_SM80; i++) {
        for (j = 0; j < FORMATS; j++) {
            const moek_format *const f = format_at(i), *const g = format_at(j);
            moek_config c;
            layer l;
            if (!mix_tiles(f, g) || !mix_goes(f, g)) continue;
            if (format_quantizes(f) || format_quantizes(g) || turn++ % (quick_set ? 6 : 2)) continue;
            c = mix_of(f, g, turn);
            c.hidden = format_round_up(f, 128), c.inter = format_round_up(g, 128);
            c.weight_layout = MOEK_WEIGHTS_TILED;
            if (c.up_layout == MOEK_UP_SEPARATE) c.up_layout = MOEK_UP_GATE_UP;
            layer_new(&l, &c, LAYER_BIAS | (turn % 2 ? LAYER_ZERO : 0), TOKENS);
            snprintf(l.what, sizeof l.what, "tiled, %s / %s, turn %d", f->name, g->name, turn);
            if (moek_plan_init(&l.plan, &l.config) == MOEK_E_NO_KERNEL)
                CHECK(strstr(l.plan.why, "rows of up and of down share"), "%s: %s", l.what, l.plan.why);
            else if (layer_plan(&l)) {
                repack_op(&l, format_with(f, c.block), 0), repack_op(&l, format_with(g, c.block), 1);
                if (layer_run(&l, moek_run)) layer_compare(&l), ran++;
            }
            layer_free(&l);
        }
    }
    CHECK(layer_arch < MOEK_ARCH_SM80 || turn < 6 || ran, "no two formats have tiles of one height");
}
