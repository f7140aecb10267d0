/* refusals.h -- a part of test_import.c, which includes it once: bytes that public packers made, in place, refusals. */
static size_t from_hex(const char *hex, unsigned char **bytes)         /* "-": none */
{
    const size_t n = hex[0] == '-' ? 0 : strlen(hex) / 2;
    size_t i;
    *bytes = (unsigned char *)ref_alloc(n);
    for (i = 0; i < n; i++) {
        unsigned b = 0;
        sscanf(hex + 2 * i, "%2x", &b);
        (*bytes)[i] = (unsigned char)b;
    }
    return n;
}
static void test_golden_line(char *line)
{
    char *field[11];
    matrix m;
    unsigned char *second, *values;
    size_t sizes[3];
    imported got;
    int i, n = 0, k, wrong = 0;
    for (i = 0; i < 11; i++) {
        field[i] = line;
        line += strcspn(line, "\t\n");
        if (!CHECK(*line, "import_golden.tsv: %d columns", i)) return;
        *line++ = 0;
    }
    memset(&m, 0, sizeof m);
    for (i = 0; i < SOURCES; i++)
        if (!strcmp(field[0], moek_source_name(facts[i].source))) m.source = facts[n = i].source;
    if (!CHECK(m.source, "import_golden.tsv: source %s", field[0])) return;
    m.rows = atoi(field[1]); m.columns = atoi(field[2]); m.block = atoi(field[3]);
    m.dtype = atoi(field[4]); m.scale_dtype = atoi(field[5]);
    m.format = format_with(moek_format_of(facts[n].quant), m.block);
    m.step = 1; m.has_zero = field[8][0] != '-'; m.keep_zero = m.has_zero && m.format->zero;
    snprintf(m.what, sizeof m.what, "golden %s %d x %d", field[0], m.rows, m.columns);
    matrix_sizes(&m);
    sizes[0] = from_hex(field[6], &m.w); sizes[1] = from_hex(field[7], &m.scale);
    sizes[2] = from_hex(field[8], &m.zero);
    CHECK(sizes[0] == m.w_bytes && sizes[1] == m.scale_bytes && sizes[2] == m.zero_bytes, "%s: sizes", m.what);
    if (from_hex(field[9], &second) == 4) memcpy(&m.global, second, 4);
    from_hex(field[10], &values);
    got = run(0, &m, 0, NULL);
    for (n = 0; n < m.rows; n++)
        for (k = 0; k < m.columns; k++)
            wrong += our_value(&m, &got, n, k) != ref_get_t(values, (size_t)n * (size_t)m.columns + (size_t)k,
                                                            MOEK_DTYPE_BF16);
    CHECK(!wrong, "%s: %d values are not those that were packed", m.what, wrong);
    imported_free(&got);
    check_matrix(&m, SANE);
    free(second); free(values);
    matrix_free(&m);
}
static void test_golden(const char *folder, const char *name, int least, void (*test)(char *line))
{
    static char line[1 << 16], path[512];
    FILE *f;
    int lines = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "r");
    if (!CHECK(f != NULL, "can not read %s", path)) return;
    for (; fgets(line, sizeof line, f); lines++) test(line);
    CHECK(lines >= least, "%s: %d lines", path, lines);
    fclose(f);
}

/* What public packages made of weights. */
static void test_quantized_line(char *line)
{
    char *field[11];
    plain p;
    planted got;
    unsigned char *w, *scale, *second;
    size_t groups, pitch, bytes[3];
    int i, k, n, wrong = 0;
    for (i = 0; i < 11; i++) {
        field[i] = line;
        line += strcspn(line, "\t\n");
        if (!CHECK(*line, "quantize_golden.tsv: %d columns", i)) return;
        *line++ = 0;
    }
    memset(&p, 0, sizeof p);
    p.source = strcmp(field[0], "F32") ? MOEK_FROM_BF16 : MOEK_FROM_F32;
    p.recipe = atoi(field[2]); p.rows = atoi(field[3]); p.columns = atoi(field[4]); p.block = atoi(field[5]);
    p.dtype = atoi(field[6]); p.step = 1;
    for (i = 0; i < FORMATS; i++)
        if (!strcmp(field[1], format_at(i)->name)) p.format = format_with(format_at(i), p.block);
    if (!CHECK(p.format, "quantize_golden.tsv: format %s", field[1])) return;
    snprintf(p.what, sizeof p.what, "golden %s, recipe %d, block %d", field[1], p.recipe, p.block);
    from_hex(field[7], (unsigned char **)&p.from);
    bytes[0] = from_hex(field[8], &w); bytes[1] = from_hex(field[9], &scale); bytes[2] = from_hex(field[10], &second);
    pitch = moek_element_bytes(p.format->w, (size_t)p.columns);
    groups = plain_scales(&p);
    if (!CHECK(bytes[0] == (size_t)p.rows * pitch && bytes[1] == groups &&
               bytes[2] == (p.format->global_scale ? 4u : 0u),
               "%s: sizes", p.what)) return;
    got = plain_run(0, &p);
    CHECK(!memcmp(got.scale, scale, groups), "%s: other scales", p.what);
    CHECK(!bytes[2] || !memcmp(&got.global, second, 4), "%s: another global scale", p.what);
    for (n = 0; n < p.rows; n++)
        for (k = 0; k < p.columns; k++) {
            const ref_number *const e = ref_element(p.format->w, p.dtype);
            wrong += ref_decode(e, ref_code(e, got.w + (size_t)n * pitch, (size_t)k)) !=
                     ref_decode(e, ref_code(e, w + (size_t)n * pitch, (size_t)k));
        }
    CHECK(!wrong, "%s: %d codes differ", p.what, wrong);
    plain_check(&p);
    planted_free(&got);
    free(p.from); free(w); free(scale); free(second);
}
/* ---- in place, refusals ------------------------------------------------------------------------------------------ */

static void test_in_place(int i, int arch)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    matrix m = layer_source(i, f, 24, 64, f->blocks ? 32 : 0);
    const int can = m.w_bytes == m.our_w && !is_gptq(m.source) && m.source != MOEK_FROM_AWQ;
    moek_import_args a = matrix_args(&m);
    there w = put_there(arch, m.w, m.w_bytes), scale = put_there(arch, m.scale, m.scale_bytes);
    there out = put_there(arch, NULL, m.our_scale), global = put_there(arch, &m.global, 4);
    char why[256] = "";
    imported host;
    unsigned char *got;
    m.has_zero = m.keep_zero = 0;
    matrix_sizes(&m);
    host = run(0, &m, 0, NULL);
    a.w = a.their_w = w.at; a.scale = out.at; a.their_scale = m.scale_bytes ? scale.at : NULL;
    if (is_nvfp4(m.source)) a.global = a.their_global = (float *)global.at;
    if (scale_same_type(&m) && m.scale_bytes && !is_gptq(m.source) && m.source != MOEK_FROM_AWQ) a.scale = scale.at;
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(arch, &a, 0) == (can ? MOEK_OK : MOEK_E_ARGUMENT) && (*why == 0) == can, "%s in place: %s",
          moek_source_name(m.source), why);
    got = take_back(w, "in place");
    CHECK(!memcmp(got, can ? host.w : m.w, m.w_bytes), "%s: elements in place", moek_source_name(m.source));
    free(got);
    got = take_back(scale, "in place");
    if (a.scale == scale.at && can)
        CHECK(!memcmp(got, host.scale, m.our_scale), "%s: scales in place", moek_source_name(m.source));
    free(got);
    free(take_back(out, "in place")); free(take_back(global, "in place"));
    imported_free(&host);
    matrix_free(&m);
}

/* Refused, with a sentence that has these words; nothing is written. */
static void refused(moek_import_args a, const char *words, int line)
{
    char why[256] = "";
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(0, &a, 0) == MOEK_E_ARGUMENT, "line %d: not refused", line);
    CHECK(strstr(why, words) != NULL, "line %d: \"%s\" does not say \"%s\"", line, why, words);
}
/* Each array of each source in a shape that it has not: transposed, of another length, of other bytes.  As it is, and
 * with sizes of 1, or as one size: taken. */
static void test_shapes(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    static unsigned char out[1 << 16];
    matrix m = layer_source(i, f, 40, 256, !f->blocks ? 0 : gguf_of(facts[i].source) ? 32 : 64);
    moek_import_args good = matrix_args(&m);
    int which, kind;
    char why[256] = "";
    m.zero_bytes = m.has_zero ? m.zero_bytes : 0;
    good.their_w = m.w; good.their_scale = m.scale_bytes ? m.scale : NULL;
    good.their_zero = m.has_zero ? m.zero : NULL;
    good.w = out; good.scale = out + (1 << 15);
    if (m.keep_zero) good.zero = out + (1 << 15) + (1 << 14);
    if (is_nvfp4(m.source)) { good.their_global = &m.global; good.global = (float *)(void *)(out + sizeof out - 4); }
    good.why = why; good.why_size = sizeof why;
    matrix_tensors(&m, &good);
    CHECK(moek_import(0, &good, 0) == MOEK_OK, "%s: %s", moek_source_name(m.source), why);
    for (which = 0; which < 4; which++)
        for (kind = 0; kind < 6; kind++) {
            static const char *const names[] = { "their_w is [", "their_scale is [", "their_zero is [",
                                                 "their_global is [" };
            moek_import_args a = good;
            moek_import_tensor *const all[4] = { &a.w_tensor, &a.scale_tensor, &a.zero_tensor, &a.global_tensor };
            moek_import_tensor *const t = all[which];
            int64_t slow = t->shape[0], fast = t->shape[1] ? t->shape[1] : 1;
            if ((which == 1 && !m.scale_bytes) || (which == 2 && !m.has_zero) || (which == 3 && !is_nvfp4(m.source)))
                continue;
            if (which == 1 && m.source == MOEK_FROM_FP8_BLOCK) fast = m.groups;
            if (which == 0 && m.source == MOEK_FROM_MXFP4) fast *= 16;
            memset(t->shape, 0, sizeof t->shape);
            t->shape[0] = slow; t->shape[1] = fast;
            if (kind == 0 && slow == fast) continue;   /* no one can tell */
            if (kind == 0) { t->shape[0] = fast; t->shape[1] = slow; }
            if (kind == 1) t->shape[1] = fast + 1;
            if (kind == 2) { t->shape[1] = fast; t->shape[2] = 2; }
            if (kind == 3) t->bytes += 1;
            if (kind == 4) { t->shape[0] = 1; t->shape[1] = slow; t->shape[2] = 1; t->shape[3] = fast; }
            if (kind == 5) { t->shape[0] = slow * fast; t->shape[1] = 0; }
            if (kind >= 4 || (kind == 0 && (slow == 1 || fast == 1)))
                CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s, array %d, shape %d: %s", moek_source_name(m.source),
                      which, kind, why);
            else {
                memset(out, POISON, 64);
                refused(a, names[which], __LINE__);
                refused(a, moek_source_name(m.source), __LINE__);
                if (kind == 0) refused(a, "is it transposed?", __LINE__);
                CHECK(out[0] == POISON, "%s: something was written", moek_source_name(m.source));
            }
        }
    matrix_free(&m);
}
/* Whole matrices that are another source: two elements a byte, and one. */
static void test_wrong_source(void)
{
    static unsigned char some[64 * 64], to[64 * 64];
    static float scale[64];
    moek_import_args a;
    memset(&a, 0, sizeof a);
    a.rows = 16; a.columns = 64; a.block = 32; a.source = MOEK_FROM_INT4_SIGNED;
    a.their_w = some; a.w = to; a.their_scale = scale; a.scale = to + 2048;
    a.w_tensor.shape[0] = 16; a.w_tensor.shape[1] = 64;
    refused(a, "MOEK_FROM_INT4_BYTES", __LINE__);
    a.source = MOEK_FROM_INT4_BYTES; a.w_tensor.shape[1] = 32;
    refused(a, "two elements a byte", __LINE__);
    a.w_tensor.shape[1] = 64; a.scale_tensor.shape[0] = 16; a.scale_tensor.shape[1] = 1;
    refused(a, "config.block", __LINE__);
    a.scale_tensor.shape[1] = -2;
    refused(a, "their_scale is [16][-2]", __LINE__);
    a.scale_tensor.shape[0] = a.scale_tensor.shape[1] = (int64_t)1 << 62;
    refused(a, "their_scale is [", __LINE__);
    memset(&a.scale_tensor, 0, sizeof a.scale_tensor);
    a.scale_tensor.bytes = 16 * 2 * 4;                 /* f32, where the call says bf16 */
    refused(a, "their_scale is 128 bytes", __LINE__);
    memset(&a.scale_tensor, 0, sizeof a.scale_tensor);
    a.scale_order = MOEK_SCALE_ORDER_128X4;
    refused(a, "scale_order is 1", __LINE__);
    a.source = MOEK_FROM_BF16; a.scale_order = 0; a.their_scale = NULL;
    a.quant = facts[source_at(MOEK_FROM_INT4_BYTES)].quant;
    a.w_tensor.shape[0] = 64; a.w_tensor.shape[1] = 16;
    refused(a, "is it transposed?", __LINE__);
}

/* A format that the source may become, or not, and does not by itself. */
static int other_format(int source, int fitting)
{
    int i = 0, n = 0;
    while (facts[i].source != source) i++;
    while (fits(i, format_at(n)) != fitting || format_at(n)->number == facts[i].quant) n++;
    return format_at(n)->number;
}
static void test_refusals(void)
{
    static uint32_t some[4096];
    static float second[2];
    static const int32_t order[64] = { 0 };
    moek_import_args good, a;
    memset(&good, 0, sizeof good);
    good.source = MOEK_FROM_AWQ; good.rows = 16; good.columns = 64; good.block = 32;
    good.their_w = some; good.their_scale = some + 512; good.their_zero = some + 1024;
    good.w = some + 2048; good.scale = some + 2560; good.zero = some + 3072;
    CHECK(moek_import(0, &good, 0) == MOEK_OK && moek_import(0, NULL, 0) == MOEK_E_ARGUMENT, "arguments");
#define REFUSED(change, words) do { a = good; change; refused(a, words, __LINE__); } while (0)
    REFUSED(a.source = 0, "source is 0");
    REFUSED(a.source = MOEK_SOURCE_COUNT_, "MOEK_FROM_");
    REFUSED(a.quant = 999, "quant is 999");
    REFUSED(a.quant = other_format(MOEK_FROM_AWQ, 0); a.block = 0, "AWQ becomes int4_a16");
    REFUSED(a.source = MOEK_FROM_MXFP4; a.quant = other_format(MOEK_FROM_NVFP4_PACKED, 1); a.block = 0,
            "MXFP4 becomes mxfp4_a16");
    REFUSED(a.quant = other_format(MOEK_FROM_AWQ, 1), "block is 32");
    REFUSED(a.rows = 0, "rows are 0");
    REFUSED(a.rows = 12, "AWQ packs 8");
    REFUSED(a.columns = -4, "columns");
    REFUSED(a.columns = 33, "multiples of");
    REFUSED(a.block = 48, "block is 48");
    REFUSED(a.source = MOEK_FROM_GPTQ_INT8; a.block = 32, "block is 32");
    REFUSED(a.source = MOEK_FROM_MXFP4_GGUF; a.block = 0; a.columns = 48, "blocks of GGUF");
    REFUSED(a.dtype = MOEK_DTYPE_F32, "dtype");
    REFUSED(a.scale_dtype = 9, "scale_dtype is 9");
    REFUSED(a.source = MOEK_FROM_MXFP4; a.block = 0; a.scale_dtype = MOEK_DTYPE_F32, "leave it 0");
    REFUSED(a.row_step = -1, "row_step");
    REFUSED(a.w = NULL, "w or their_w is NULL");
    REFUSED(a.their_w = (char *)a.their_w + 2, "aligned");
    REFUSED(a.scale = (char *)a.scale + 1, "aligned");
    REFUSED(a.their_scale = NULL, "their_scale is NULL");
    REFUSED(a.their_zero = (char *)a.their_zero + 2, "their_zero");
    REFUSED(a.source = MOEK_FROM_INT4_SIGNED, "no zero points");
    REFUSED(a.source = MOEK_FROM_GPTQ_INT8; a.block = 0, "has none");
    REFUSED(a.global = second, "leave both NULL");
    REFUSED(a.source = MOEK_FROM_NVFP4_PACKED; a.block = 0; a.zero = a.their_zero = NULL; a.global = second,
            "an f32 each");
    REFUSED(a.zero = a.their_zero, "zero is their_zero");
    REFUSED(a.scale = a.their_scale, "scale is their_scale");
    REFUSED(a.recipe = MOEK_RECIPE_CEIL, "quantized already");
    REFUSED(a.source = MOEK_FROM_PACKED_INT4; a.w = a.their_w; a.row_order = order, "there is an order");
    REFUSED(a.source = MOEK_FROM_PACKED_INT4; a.w = a.their_w; a.row_step = 2, "side by side");
    memset(&a, 0, sizeof a);
    a.source = MOEK_FROM_BF16; a.rows = 16; a.columns = 64; a.quant = format_nth(format_by_row, 0);
    a.their_w = some; a.w = some + 2048; a.scale = some + 2560;
    good = a;
    CHECK(moek_import(0, &good, 0) == MOEK_OK, "plain weights");
    a.why = NULL;
    CHECK(moek_export(0, &good, 0) == MOEK_E_ARGUMENT, "plain weights back");
    REFUSED(a.quant = 0, "quant is 0, no format");
    REFUSED(a.quant = FORMAT_PLAIN, "a format with scales");
    REFUSED(a.rows = 0, "rows are 0");
    REFUSED(a.block = 32, "block is 32");
    REFUSED(a.recipe = MOEK_RECIPE_CEIL, "recipe is 3: ");
    REFUSED(a.recipe = 5, "recipe is 5: ");
    REFUSED(a.quant = format_nth(format_rows_share, 0); a.recipe = MOEK_RECIPE_FLOOR, "takes 0 or MOEK_RECIPE_CEIL");
    REFUSED(a.quant = format_nth(format_rows_share, 0); a.row_step = 2, "side by side");
    REFUSED(a.their_scale = some, "leave them 0");
    REFUSED(a.row_order = order, "leave them 0");
    REFUSED(a.scale_dtype = MOEK_DTYPE_F32, "leave them 0");
    REFUSED(a.their_w = NULL, "is NULL");
    REFUSED(a.their_w = (char *)some + 1, "not aligned");
    REFUSED(a.source = MOEK_FROM_F32; a.their_w = (char *)some + 2, "not aligned");
    REFUSED(a.w = a.their_w, "another of them");
    REFUSED(a.scale = (char *)a.scale + 2, "not aligned");
    REFUSED(a.global = second, "global: ");
    REFUSED(a.quant = format_nth(format_x_second, 0), "has one, an f32");
    REFUSED(a.zero = some, "zero: ");
#undef REFUSED
}
/* Each count that makes weights unfit is refused by the verdict; orders outside are counted. */
static void test_verdicts(void)
{
    static uint32_t words[64], to[64];
    static uint16_t scales[16], out[16];
    int32_t order[8] = { 0, 1, 2, 3, 4, 5, 6, 8 }, g_idx[64], moved = -1;
    moek_import_report r;
    moek_import_args a;
    char why[256];
    uint64_t *const counts = (uint64_t *)&r;
    unsigned i;
    memset(&r, 0, sizeof r);
    CHECK(moek_import_verdict(&r, why, sizeof why) == MOEK_OK && moek_import_verdict(NULL, NULL, 0), "verdict");
    for (i = 0; i < sizeof r / 8 - 2; i++) {
        int bad;
        memset(&r, 0, sizeof r);
        counts[i] = 3;
        bad = r.scales_nan || r.signs_bad || r.scales_lost || r.zeros_lost || r.globals_bad || r.orders_bad ||
              r.scales_separate || r.codes_outside;
        why[0] = 0;
        CHECK((moek_import_verdict(&r, why, sizeof why) != MOEK_OK) == bad && (strchr(why, '3') != NULL) == bad,
              "count %u: \"%s\"", i, why);
        CHECK(moek_import_describe(&r, why, sizeof why) > 4 && why[0] == '3', "count %u: \"%s\"", i, why);
    }
    memset(&a, 0, sizeof a);
    memset(&r, 0, sizeof r);
    a.source = MOEK_FROM_GPTQ_INT4; a.rows = 8; a.columns = 32; a.block = 32; a.report = &r;
    a.their_w = words; a.their_scale = scales; a.w = to; a.scale = out; a.row_order = order;
    CHECK(moek_import(0, &a, 0) == MOEK_OK && r.orders_bad, "an order that leads outside");
    for (i = 0; i < 64; i++) g_idx[i] = (int)i / 32;
    CHECK(moek_import_order(g_idx, 64, 32, NULL, &moved, NULL, 0) == MOEK_OK && !moved, "in order");
    g_idx[3] = 1;
    CHECK(moek_import_order(g_idx, 64, 32, NULL, &moved, why, sizeof why) && moved && strstr(why, "g_idx[3] is 1"),
          "%s", why);
    CHECK(moek_import_order(g_idx, 64, 32, (int32_t *)words, NULL, why, sizeof why) && strstr(why, "has 31 columns"),
          "%s", why);
    CHECK(moek_import_inverse(order, 8, (int32_t *)words) == MOEK_E_ARGUMENT, "no permutation");
    CHECK(!moek_source_name(0) && !moek_source_name(MOEK_SOURCE_COUNT_), "names");
}

/* What a report says of checkpoints that are read as something else, or of damaged ones. */
static moek_import_report report_of(matrix *m, const char *what)
{
    imported got;
    moek_import_report r;
    snprintf(m->what, sizeof m->what, "%s: %.60s", moek_source_name(m->source), what);
    got = run(0, m, 0, NULL);
    r = got.report;
    imported_free(&got);
    return r;
}
static void test_reports(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    matrix m = layer_source(i, f, 24, 256, !f->blocks ? 0 : gguf_of(facts[i].source) ? 32 : 64);
    const int middle = 1 << (f->w_bits - 1), v1 = is_v1(m.source);
    moek_import_report r;
    char why[300] = "";
    int n;
    r = report_of(&m, "sane");
    CHECK(moek_import_verdict(&r, why, sizeof why) == MOEK_OK, "%s: %s", m.what, why);
    CHECK((r.scales_negative > 0) == is_int(&m), "%s: %d negative scales", m.what, (int)r.scales_negative);
    if (is_gptq(m.source)) {                           /* one off the middle, all of them: as the other version */
        m.has_zero = 1;
        m.keep_zero = f->zero;
        matrix_free(&m);
        matrix_sizes(&m);
        matrix_fill(&m, SANE, 1);
        r = report_of(&m, "symmetric");
        CHECK(!r.zeros_other && r.zeros && moek_import_verdict(&r, why, sizeof why) == MOEK_OK, "%s", m.what);
        memset(m.zero, f->w_bits == 8 ? v1 ? middle : middle - 1 : (v1 ? middle : middle - 1) * 0x11, m.zero_bytes);
        clear_unused(&m);
        r = report_of(&m, "the other version");
        CHECK(r.zeros_other == r.zeros && r.zeros, "%s: %d of %d", m.what, (int)r.zeros_other, (int)r.zeros);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "GPTQ's other version"), "%s", why);
    }
    if (!is_int(&m) && f->w_scale.type != MOEK_SCALE_TYPE_E8M0) {      /* a sign that the format has not */
        const int last = scale_size(&m) - 1;
        scale_place(&m, 0)[last] |= 0x80;
        r = report_of(&m, "a sign");
        CHECK(r.signs_bad && r.signs_bad == r.scales_negative, "%s: %d", m.what, (int)r.signs_bad);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "sign"), "%s", why);
    }
    if (m.source == MOEK_FROM_INT4_BYTES) {
        static const signed char bad[] = { -9, 8, 127, -128 };
        for (n = 0; n < 4; n++) m.w[7 * n] = (unsigned char)bad[n];
        m.w[70] = 7; m.w[71] = (unsigned char)-8;
        r = report_of(&m, "weights of 8 bits");
        CHECK(r.codes_outside == 4, "%s: %d outside", m.what, (int)r.codes_outside);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "outside -8 .. 7"), "%s", why);
    }
    matrix_free(&m);
}
/* A scale a tensor where gate's is not up's: one array of scales for both is refused by the verdict, up apart and a
 * format of a scale a row are not. */
static void test_scales_of_tensors(void)
{
    static const int layouts[] = { MOEK_UP_GATE_UP, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_SEPARATE };
    const int i = source_at(MOEK_FROM_FP8_TENSOR);
    int n, j, equal;
    for (n = 0; n < FORMATS; n++)
        for (j = 0; j < 8 && fits(i, format_at(n)); j++) {
            const moek_format *const f = format_at(n);
            moek_config c = layer_config(f->number, layouts[j / 2]);
            const int one = !f->w_scale.rows && c.up_layout != MOEK_UP_SEPARATE;
            void *arrays[12];
            moek_weights w = layer_arrays(&c, 0, arrays);
            moek_import_report r;
            char why[300] = "";
            uint16_t *plain = (uint16_t *)ref_alloc(2 * INTER * HIDDEN);
            matrix m[2];
            int k;
            equal = j % 2;
            if (format_rows_share(f) && c.up_layout != MOEK_UP_SEPARATE) c.up_scales = MOEK_UP_SCALES_SEPARATE;
            memset(&r, 0, sizeof r);
            for (k = 0; k < 2 && !(format_rows_share(f) && c.up_layout == MOEK_UP_INTERLEAVED); k++) {
                m[k] = layer_source(i, f, INTER, HIDDEN, 0);
                put_scale(&m[k], 0, ref_encode(&ref_numbers[REF_F32], equal || !k ? 0.0625 : 0.046875));
                snprintf(m[k].what, sizeof m[k].what, "a scale a tensor, %s, up_layout %d", f->name, c.up_layout);
                layer_matrix(&m[k], &c, &w, k ? MOEK_MATRIX_UP : MOEK_MATRIX_GATE, 1, plain, &r);
                CHECK(r.scales_separate == (uint64_t)(k && one && !equal), "%s: %d apart", m[k].what,
                      (int)r.scales_separate);
                CHECK((moek_import_verdict(&r, why, sizeof why) != MOEK_OK) == (k && one && !equal), "%s: %s",
                      m[k].what, why);
                CHECK(!r.scales_separate || strstr(why, "MOEK_UP_SEPARATE"), "%s", why);
                matrix_free(&m[k]);
            }
            free(plain);
            for (k = 0; k < 12; k++) mem_free(0, arrays[k]);
        }
}
/* Layers that there are not. */
static void test_places(void)
{
    const int formats[] = { FORMAT_ROW, FORMAT_PLAIN, facts[source_at(MOEK_FROM_NVFP4_PACKED)].quant };
    int i, n, in_blocks = 0;
    for (i = 0; i < 3; i++) {
        moek_config good = layer_config(formats[i], 0), c;
        const int blocks = moek_block_of(moek_format_of(formats[i])->file_type) != NULL;
        void *arrays[12];
        moek_weights w = layer_arrays(&good, 0, arrays);
        moek_import_args a;
        char why[256] = "";
        memset(&a, 0, sizeof a);
        a.why = why; a.why_size = sizeof why;
        good.experts = 4; good.local_experts = 0;
        CHECK(moek_import_place(&good, &w, MOEK_MATRIX_UP, EXPERTS - 1, &a) == MOEK_OK, "%s", why);
#define NO_PLACE(change, matrix, expert, words) do {                                                      \
            c = good;                                                                                     \
            change;                                                                                       \
            a.w = NULL; why[0] = 0;                                                                       \
            CHECK(moek_import_place(&c, &w, matrix, expert, &a) == MOEK_E_ARGUMENT && !a.w &&             \
                  strstr(why, words), "line %d: %s", __LINE__, why);                                      \
        } while (0)
        for (n = MOEK_MATRIX_GATE; n <= MOEK_MATRIX_DOWN; n++) {
            NO_PLACE(c.inter = 0, n, 0, "config.hidden is 128 and inter 0");
            NO_PLACE(c.hidden = -128, n, 0, "config.hidden is -128");
            NO_PLACE(c.inter = INT_MAX, n, 0, "config.hidden is 128 and inter 2147483647");
            NO_PLACE(c.inter = 1 << 30, n, 0, "config.hidden is 128 and inter");
            NO_PLACE((void)0, n, EXPERTS, "expert is 4: this rank has 4");
            NO_PLACE((void)0, n, 1000, "expert is 1000");
            NO_PLACE((void)0, n, -1, "expert is -1");
            NO_PLACE(c.local_experts = 2, n, 2, "this rank has 2");
            NO_PLACE(c.experts = INT_MAX; c.shared_slots = INT_MAX, n, INT_MAX, "expert is");
            NO_PLACE(c.block = 48, n, 0, "config.block is 48");
            NO_PLACE(c.act = 99, n, 0, "config.act is 99");
            NO_PLACE(c.up_layout = 99, n, 0, "config.up_layout is 99");
            NO_PLACE(c.quant = 0, n, 0, "config.quant is 0");
            if (blocks) NO_PLACE(c.weight_layout = MOEK_WEIGHTS_BLOCKS, n, 0, "arrays of codes and scales");
        }
        in_blocks += blocks;
        c = good; c.shared_slots = 2;
        CHECK(moek_import_place(&c, &w, MOEK_MATRIX_UP, EXPERTS + 1, &a) == MOEK_OK, "shared experts: %s", why);
        NO_PLACE((void)0, 9, 0, "there is none");
#undef NO_PLACE
        for (n = 0; n < 12; n++) mem_free(0, arrays[n]);
    }
    CHECK(in_blocks, "no format that has blocks, too");
}
/* Group sizes that no int holds the sum of. */
static void test_orders(void)
{
    const int32_t in_order[4] = { 0, 0, 0, 0 }, wrong[4] = { 3, 1, 7, 2 };
    int32_t order[4] = { -9, -9, -9, -9 };
    int moved = -1;
    char why[200] = "";
    CHECK(moek_import_order(in_order, 4, INT_MAX, order, &moved, why, sizeof why) == MOEK_OK && !moved && order[3] == 3,
          "block %d: %s", INT_MAX, why);
    CHECK(moek_import_order(wrong, 4, INT_MAX, order, &moved, why, sizeof why) == MOEK_E_ARGUMENT &&
          strstr(why, "has 0 columns, not 4"), "%s", why);
    CHECK(moek_import_order(in_order, 4, -1, order, &moved, why, sizeof why) == MOEK_E_ARGUMENT, "block -1");
}
