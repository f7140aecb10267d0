/* mixes.h -- a part of test_api.c, which includes it once: gate and up in one format, down in another
 * (config.down_quant). */
static int in_t(const moek_format *f) { return !format_quantizes(f) && served(f->number) && !f->blocks; }
static int scaled_in_t(const moek_format *f) { return in_t(f) && format_scaled(f) && !f->global_scale; }
static int blocks_in_t(const moek_format *f) { return in_t(f) && f->only_blocks; }
static int zeros_in_t(const moek_format *f) { return !format_quantizes(f) && served(f->number) && f->zero; }
static int with_second(const moek_format *f) { return served(f->number) && f->global_scale && format_quantizes(f); }
/* A config of both, of sizes that are whole blocks of each. */
static moek_config mixed(int up, int down)
{
    moek_config c = good();
    const moek_format *const f = moek_format_of(up), *const d = moek_format_of(down);
    c.quant = up; c.down_quant = down;
    c.block = format_block(f->blocks ? f : d, 0);
    c.hidden = format_round_up(f, HIDDEN); c.inter = format_round_up(d, INTER);
    return c;
}
#ifndef MOEK_QUANT
#define MIX_REFUSED(up, down, change, status, sentence) REFUSED(c = mixed(up, down); change, status, sentence)

/* What goes together, and what is said of it. */
static void test_two_formats(void)
{
    const int scaled = format_nth(scaled_in_t, 0), blocks = format_nth(blocks_in_t, 1);
    const int other = format_nth(blocks_in_t, 2);
    const int bf16 = format_of_t(MOEK_DTYPE_BF16), fp16 = format_of_t(MOEK_DTYPE_FP16);
    const moek_format *const f = moek_format_of(blocks);
    char text[4096], says[160];
    moek_config c = good(), again;
    moek_plan p;
    REFUSED(c.down_quant = 999, E_ARGUMENT, "config.down_quant is 999, which is no format");
    REFUSED(c.down_quant = -1, E_ARGUMENT, "config.down_quant is -1, which is no format");
    MIX_REFUSED(bf16, fp16, (void)0, E_ARGUMENT, "a layer has one T");
    MIX_REFUSED(scaled, fp16, c.dtype = MOEK_DTYPE_BF16, E_ARGUMENT, "config.dtype is bf16 but down_quant is fp16");
    MIX_REFUSED(scaled, blocks, c.weight_layout = MOEK_WEIGHTS_TILED; c.inter = c.hidden = 512, E_BACKEND,
                "does not support MOEK_WEIGHTS_TILED");
    ACCEPTED(c = mixed(blocks, other); c.weight_layout = MOEK_WEIGHTS_PANELS; c.backend = MOEK_BACKEND_CPU);
    MIX_REFUSED(scaled, bf16, c.weight_layout = MOEK_WEIGHTS_BLOCKS; c.quant = FORMAT_ROW; c.down_quant = FORMAT_TENSOR,
                E_ARGUMENT, "have no blocks of");
    MIX_REFUSED(scaled, blocks, c.inter_offset = 1, E_ARGUMENT, "begin with whole groups");
    MIX_REFUSED(scaled, blocks, c.expand_weights = 1, E_ARGUMENT, "it is for one format");
    MIX_REFUSED(scaled, bf16, c.block = 64, E_ARGUMENT, "says itself how many columns have a scale");
    MIX_REFUSED(scaled, bf16, c.ue8m0 = 1, E_ARGUMENT, "config.ue8m0 rounds");
    /* Rows of up have hidden columns, rows of down inter. */
    MIX_REFUSED(scaled, blocks, c.inter += f->granule / 2, E_ARGUMENT, "config.inter is ");
    MIX_REFUSED(blocks, scaled, c.hidden += f->granule / 2, E_ARGUMENT, "config.hidden is ");
    ACCEPTED(c = mixed(scaled, blocks); c.hidden += f->granule / 2);
    ACCEPTED(c = mixed(blocks, scaled); c.inter += f->granule / 2);
    ACCEPTED(c = mixed(scaled, fp16));
    ACCEPTED(c = mixed(bf16, scaled));
    ACCEPTED(c = mixed(blocks, other); c.weight_layout = MOEK_WEIGHTS_BLOCKS);
    ACCEPTED(c = mixed(scaled, blocks); c.weight_layout = MOEK_WEIGHTS_BLOCKS);    /* up as a checkpoint has it */
    ACCEPTED(c = mixed(FORMAT_BLOCKED, scaled); c.ue8m0 = 1);
    ACCEPTED(c = mixed(scaled, FORMAT_BLOCKED); c.ue8m0 = 1);
    c = mixed(scaled, fp16);
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.config.dtype == MOEK_DTYPE_FP16, "T of down: %s", p.why);
    c.down_quant = scaled;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && !p.config.down_quant && p.config.dtype == MOEK_DTYPE_BF16, "twice the "
          "same: %s", p.why);
    c = mixed(scaled, blocks);
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.up[0]->quant == scaled && p.chosen.down[0]->quant == blocks &&
          !p.chosen.layers && !p.chosen.up_downs, "%s", p.why);
    again = p.config;
    CHECK(moek_plan_init(&p, &again) == MOEK_OK && !memcmp(&again, &p.config, sizeof again), "filled in, and again: %s",
          p.why);
    snprintf(says, sizeof says, ", up %s, down %s (blocks of a GGUF file, in place), T bf16", moek_quant_name(scaled),
             f->name);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, says), "%s", text);
    CHECK(moek_choose_format(&c, text, sizeof text) == MOEK_OK && c.quant == scaled && c.down_quant == blocks, "%s",
          text);
}

/* Each side has the scales, global scales, zero points and static scales of its format. */
static void mix_binds(int up, int down, int c_block, const moek_weights *w, const char *sentence)
{
    moek_config c = mixed(up, down);
    moek_plan p;
    c.block = c_block;
    if (!CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s", p.why)) return;
    if (!sentence)
        CHECK(moek_plan_bind(&p, w) == MOEK_OK, "%s, %s: %s", moek_quant_name(up), moek_quant_name(down), p.why);
    else CHECK(moek_plan_bind(&p, w) == MOEK_E_ARGUMENT && has_text(p.why, sentence), "%s: %s", sentence, p.why);
}
static void test_two_bound(void)
{
    const int scaled = format_nth(scaled_in_t, 0), blocks = format_nth(blocks_in_t, 1);
    const int zeros = format_nth(zeros_in_t, 0), second = format_nth(with_second, 0);
    const int block = format_block(moek_format_of(zeros), 0);
    const float *const scale = (const float *)memory;
    moek_weights w;
    memset(&w, 0, sizeof w);
    w.w_up = w.w_down = memory;
    mix_binds(scaled, blocks, 0, &w, "weights.w_up_scale is NULL");
    mix_binds(blocks, scaled, 0, &w, "weights.w_down_scale is NULL");
    w.w_up_scale = w.w_down_scale = scale;
    mix_binds(scaled, blocks, 0, &w, "weights.w_down_scale is given, but config.down_quant is ");
    mix_binds(blocks, scaled, 0, &w, "weights.w_up_scale is given, but config.quant is ");
    w.w_down_scale = NULL;
    mix_binds(scaled, blocks, 0, &w, NULL);
    w.w_down_global_scale = scale;
    mix_binds(scaled, blocks, 0, &w, "but config.down_quant is ");
    w.w_down_scale = scale;
    w.h_scale = moek_format_of(second)->static_x ? scale : NULL;
    mix_binds(scaled, second, 0, &w, NULL);
    if (format_x_second(moek_format_of(second))) {
        w.x_scale = scale;
        mix_binds(scaled, second, 0, &w, "weights.x_scale is given");
        w.x_scale = w.h_scale = NULL;
        mix_binds(scaled, second, 0, &w, "weights.h_scale is NULL");
    }
    w.h_scale = NULL; w.w_down_global_scale = NULL;
    mix_binds(scaled, zeros, block, &w, NULL);
    w.w_down_zero = memory;
    mix_binds(scaled, zeros, block, &w, NULL);         /* of down alone: up has none */
    w.w_up_zero = memory;
    mix_binds(scaled, zeros, block, &w, "config.quant is ");
    w.w_down_zero = NULL;
    mix_binds(zeros, scaled, block, &w, NULL);
    w.w_gate_zero = memory;
    mix_binds(zeros, scaled, block, &w, "and only there");
    w.w_gate_zero = NULL; w.w_down_zero = memory;
    mix_binds(zeros, scaled, block, &w, "config.down_quant is ");
}

/* A row that is demanded is one of up's format, or of down's; of the quantization, of x's or of h's. */
static void test_two_demanded(void)
{
    int n, i, quants = 0;
    const moek_kernel *const k = moek_kernels(&n);
    const int up = FORMAT_ROW, down = FORMAT_BLOCKED;
    for (i = 0; i < n; i++) {
        const int op = k[i].op, fits = op == MOEK_OP_UP ? k[i].quant == up : op == MOEK_OP_DOWN ? k[i].quant == down
                                     : op == MOEK_OP_QUANT && (k[i].quant == up || k[i].quant == down);
        moek_config c = mixed(up, down);
        moek_plan p;
        if (k[i].arch || k[i].reads == MOEK_READS_PANELS) continue;
        if (op != MOEK_OP_UP && op != MOEK_OP_DOWN && op != MOEK_OP_QUANT) continue;
        c.kernel = k[i].name;
        quants += fits && op == MOEK_OP_QUANT;
        if (fits)
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && (in_plan(&p, &k[i]) || p.chosen.h_quant == &k[i]), "%s: %s",
                  k[i].name, p.why);
        else CHECK(moek_plan_init(&p, &c) == MOEK_E_NO_KERNEL && has_text(p.why, k[i].name), "%s: %s", k[i].name,
                   p.why);
    }
    CHECK(quants == 2, "%d rows quantize", quants);
}
#else
/* The second format is left out of this build: what would have both. */
static void test_two_formats(void)
{
    char text[160];
    moek_config c = mixed(QUANT, QUANT + 1);
    moek_plan p;
    (void)in_t; (void)scaled_in_t; (void)blocks_in_t; (void)zeros_in_t; (void)with_second;
    snprintf(text, sizeof text, "MOEK_WANT_QUANT(q) as ((q) == %d || (q) == %d)", QUANT, QUANT + 1);
    CHECK(moek_plan_init(&p, &c) == MOEK_E_NO_KERNEL && has_text(p.why, text) && has_text(p.why, "no kernel: down "),
          "%s", p.why);
}
static void test_two_bound(void) { }
static void test_two_demanded(void) { }
#endif
