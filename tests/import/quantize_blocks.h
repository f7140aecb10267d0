/* quantize_blocks.h -- a part of test_import.c, which includes it once: plain weights to blocks of GGUF files. */

/* Of weights at `from`: blocks of rows that are `step` apart, what lies between them stays POISON; the caller frees. */
static unsigned char *blocks_made(int arch, const moek_format *f, int source, const void *from, int rows, int columns,
                                  int step, moek_import_report *report)
{
    const size_t bytes = (size_t)rows * (size_t)columns * (source == MOEK_FROM_F32 ? 4 : 2);
    const size_t row = moek_weight_bytes(f, MOEK_WEIGHTS_BLOCKS, (size_t)columns), all = row * (size_t)(rows * step);
    unsigned char *const poison = (unsigned char *)ref_alloc(all), *back;
    there their_w = put_there(arch, from, bytes), w, counts = put_there(arch, report, sizeof *report);
    moek_import_args a;
    char why[256] = "";
    memset(poison, POISON, all);
    w = put_there(arch, poison, all);
    memset(&a, 0, sizeof a);
    a.source = source; a.quant = f->number; a.rows = rows; a.columns = columns; a.row_step = step;
    a.their_w = their_w.at; a.w = w.at; a.report = (moek_import_report *)counts.at;
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(arch, &a, 0) == MOEK_OK, "%s: %s", f->name, why);
    free(take_back(their_w, f->name));
    back = take_back(counts, f->name); memcpy(report, back, sizeof *report); free(back);
    free(poison);
    return take_back(w, f->name);
}
static const moek_format *blocks_format(const char *type)
{
    const moek_format *found = NULL;
    int i;
    for (i = 0; i < FORMATS; i++)
        if (format_at(i)->only_blocks && !strcmp(moek_block_of(format_at(i)->file_type)->name, type))
            found = format_at(i);
    return found;
}
/* What the gguf package makes of f32 weights: the same bytes, on each machine, rows apart or not. */
static void test_blocks_line(char *line)
{
    char *field[5];
    const moek_format *f;
    moek_import_report report, on_gpu;
    unsigned char *from, *want, *got, *there;
    size_t row, bytes;
    int rows, columns, i, step, wrong;
    for (i = 0; i < 5; i++) {
        field[i] = line;
        line += strcspn(line, "\t\n");
        if (!CHECK(*line, "gguf_quantize_golden.tsv: %d columns", i)) return;
        *line++ = 0;
    }
    f = blocks_format(field[0]);
    if (!f) return;                                    /* not compiled in */
    rows = atoi(field[1]); columns = atoi(field[2]);
    from_hex(field[3], &from);
    bytes = from_hex(field[4], &want);
    row = moek_weight_bytes(f, 0, (size_t)columns);
    if (!CHECK(bytes == row * (size_t)rows, "%s: sizes", f->name)) return;
    for (step = 1; step < 3; step++) {
        memset(&report, 0, sizeof report);
        got = blocks_made(0, f, MOEK_FROM_F32, from, rows, columns, step, &report);
        for (i = wrong = 0; i < rows; i++)
            wrong += memcmp(got + (size_t)(i * step) * row, want + (size_t)i * row, row) != 0;
        CHECK(!wrong, "%s: %d rows of %d are not the package's", f->name, wrong, rows);
        for (i = wrong = 0; i < rows * (step - 1); i++) wrong += got[row + (size_t)(i * step) * row] != POISON;
        CHECK(!wrong, "%s: %d rows of another matrix were written", f->name, wrong);
        CHECK(report.scales == (uint64_t)(rows * columns / 32) && report.scales_zero && !report.scales_nan &&
              !report.signs_bad, "%s: the report", f->name);
        if (mem_can_run(80)) {
            memset(&on_gpu, 0, sizeof on_gpu);
            there = blocks_made(80, f, MOEK_FROM_F32, from, rows, columns, step, &on_gpu);
            CHECK(!memcmp(there, got, row * (size_t)(rows * step)) && !memcmp(&on_gpu, &report, sizeof report),
                  "%s: other blocks on a GPU, or another report", f->name);
            free(there);
        }
        free(got);
    }
    free(from); free(want);
}
/* bf16 and fp16 are their f32; a NaN or an Inf makes its block NaN, and the verdict says so. */
static void test_blocks_of(const moek_format *f)
{
    enum { ROWS_ = 7, COLUMNS_ = 64 };
    static const int source[] = { MOEK_FROM_BF16, MOEK_FROM_FP16 }, dtype[] = { MOEK_DTYPE_BF16, MOEK_DTYPE_FP16 };
    uint16_t t[ROWS_ * COLUMNS_];
    float wide[ROWS_ * COLUMNS_];
    moek_import_report report, same;
    unsigned char *of_t, *of_wide;
    char why[256] = "";
    int i, n;
    for (n = 0; n < 2; n++) {
        for (i = 0; i < ROWS_ * COLUMNS_; i++) {
            t[i] = ref_to_t(ldexp(rng_below(4001) - 2000, -11), dtype[n]);
            wide[i] = (float)ref_get_t(t, (size_t)i, dtype[n]);
        }
        memset(&report, 0, sizeof report), memset(&same, 0, sizeof same);
        of_t = blocks_made(0, f, source[n], t, ROWS_, COLUMNS_, 1, &report);
        of_wide = blocks_made(0, f, MOEK_FROM_F32, wide, ROWS_, COLUMNS_, 1, &same);
        CHECK(!memcmp(of_t, of_wide, ROWS_ * moek_weight_bytes(f, 0, COLUMNS_)) &&
              !memcmp(&report, &same, sizeof same), "%s: weights of 16 bits are not their f32", f->name);
        CHECK(moek_import_verdict(&report, why, sizeof why) == MOEK_OK, "%s: %s", f->name, why);
        free(of_t); free(of_wide);
    }
    wide[3] = INFINITY, wide[COLUMNS_ + 40] = NAN;
    memset(&report, 0, sizeof report);
    of_wide = blocks_made(0, f, MOEK_FROM_F32, wide, ROWS_, COLUMNS_, 1, &report);
    CHECK(report.scales_nan == 2 && moek_import_verdict(&report, why, sizeof why) == MOEK_E_ARGUMENT &&
          strstr(why, "NaN"), "%s: %d scales are NaN: %s", f->name, (int)report.scales_nan, why);
    free(of_wide);
}
/* A layer by moek_import_place: gate and up of an expert, each row where the plan's kernels look for it. */
static void test_blocks_place(const moek_format *f, int layout)
{
    moek_config c = layer_config(f->number, layout);
    const int halves = layout != MOEK_UP_SEPARATE;
    const size_t row = moek_weight_bytes(f, 0, HIDDEN), expert = row * (size_t)(INTER * (1 + halves));
    float *const from[2] = { (float *)ref_alloc(4 * INTER * HIDDEN), (float *)ref_alloc(4 * INTER * HIDDEN) };
    unsigned char *const up = (unsigned char *)ref_alloc(EXPERTS * expert), *alone;
    unsigned char *const gate = (unsigned char *)ref_alloc(EXPERTS * expert);
    moek_import_args a;
    moek_import_report report;
    moek_weights w;
    char why[256] = "";
    int m, i, n, wrong = 0;
    memset(&w, 0, sizeof w), memset(&report, 0, sizeof report);
    w.w_up = up; w.w_down = up;
    if (!halves) w.w_gate = gate;
    for (m = 0; m < 2; m++) {
        for (i = 0; i < INTER * HIDDEN; i++) from[m][i] = (float)(rng_below(2001) - 1000) / 512;
        memset(&a, 0, sizeof a);
        a.source = MOEK_FROM_F32; a.why = why; a.why_size = sizeof why; a.report = &report;
        if (!CHECK(moek_import_place(&c, &w, m ? MOEK_MATRIX_UP : MOEK_MATRIX_GATE, 1, &a) == MOEK_OK, "%s", why))
            return;
        a.their_w = from[m];
        CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s: %s", f->name, why);
    }
    for (m = 0; m < 2; m++) {
        unsigned char *const at = (!halves && !m ? gate : up) + expert;
        alone = blocks_made(0, f, MOEK_FROM_F32, from[m], INTER, HIDDEN, 1, &report);
        for (n = 0; n < INTER; n++) {
            const int second = m != (layout == MOEK_UP_SWAPPED);
            const int r = !halves ? n : layout == MOEK_UP_INTERLEAVED ? 2 * n + second : n + second * INTER;
            wrong += memcmp(at + (size_t)r * row, alone + (size_t)n * row, row) != 0;
        }
        free(alone);
    }
    CHECK(!wrong, "%s: %d rows of a layer are elsewhere, up_layout %d", f->name, wrong, layout);
    free(from[0]); free(from[1]); free(up); free(gate);
}
static void blocks_refused(const moek_format *f, const moek_import_args *of, const char *want)
{
    moek_import_args a = *of;
    char why[256] = "";
    a.why = why; a.why_size = sizeof why; a.quant = f->number;
    CHECK(moek_import(0, &a, 0) == MOEK_E_ARGUMENT && strstr(why, want), "%s: \"%s\" has no \"%s\"", f->name, why,
          want);
}
static void test_quantized_blocks(void)
{
    static uint16_t w[1024];
    static float from[512];
    moek_import_args a, b;
    int i, layout, offered = 0;
    memset(&a, 0, sizeof a);
    a.source = MOEK_FROM_F32; a.their_w = from; a.w = w; a.rows = 2; a.columns = 256;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (!f->only_blocks) continue;
        b = a, b.quant = f->number;
        if (moek_import(0, &b, 0) != MOEK_OK) { blocks_refused(f, &a, "llama-quantize"); continue; }
        offered++;
        test_blocks_of(f);
        for (layout = MOEK_UP_GATE_UP; layout <= MOEK_UP_SEPARATE; layout++) test_blocks_place(f, layout);
        b = a, b.columns = 40; blocks_refused(f, &b, "columns are 40");
        b = a, b.w = (char *)w + 1; blocks_refused(f, &b, "not aligned");
        b = a, b.scale = from; blocks_refused(f, &b, "scales in its blocks");
        b = a, b.recipe = MOEK_RECIPE_NARROW; blocks_refused(f, &b, "recipe");
        b = a, b.their_scale = from; blocks_refused(f, &b, "plain weights have none");
    }
#ifndef MOEK_QUANT
    CHECK(offered == 10, "%d formats of blocks are quantized to, of 5 types with x in T and in s8", offered);
#endif
}
