/* run.h -- a part of test_api.c, which includes it once: moek_run, moek_quantize. */
enum { POISON = 0x5b };
static struct {
    moek_plan plan;
    char *x, *y, *logits, *workspace;
    int32_t *ids;
    float *weights;
    size_t size;
    char why[MOEK_WHY];
} fix;

static void fixture(void)
{
    const moek_config c = good();
    const moek_weights w = good_weights(QUANT);
    CHECK(moek_plan_init(&fix.plan, &c) == MOEK_OK && moek_plan_bind(&fix.plan, &w) == MOEK_OK, "%s", fix.plan.why);
    fix.size = moek_workspace_size(&fix.plan);
    fix.x = (char *)mem_alloc(0, 2 * TOKENS * HIDDEN + 256);
    fix.y = (char *)mem_alloc(0, 2 * TOKENS * HIDDEN + 256);
    fix.logits = (char *)mem_alloc(0, 4 * TOKENS * EXPERTS + 256);
    fix.ids = (int32_t *)mem_alloc(0, 4 * TOKENS * TOPK + 256);
    fix.weights = (float *)mem_alloc(0, 4 * TOKENS * TOPK + 256);
    fix.workspace = (char *)mem_alloc(0, fix.size + 256 + moek_state_size());   /* a state laid there ends there */
    memset(fix.x, 0, 2 * TOKENS * HIDDEN);
    memset(fix.logits, 0, 4 * TOKENS * EXPERTS);
}
static void poison(void)
{
    memset(fix.y, POISON, 2 * TOKENS * HIDDEN + 256);
    memset(fix.ids, POISON, 4 * TOKENS * TOPK + 256);
    memset(fix.weights, POISON, 4 * TOKENS * TOPK + 256);
    memset(fix.workspace, POISON, fix.size + 256);
}
static int still(const void *p, size_t bytes)
{
    const char *c = (const char *)p;
    size_t i;
    for (i = 0; i < bytes; i++) if (c[i] != POISON) return 0;
    return 1;
}
static int untouched(void)
{
    return still(fix.y, 2 * TOKENS * HIDDEN + 256) && still(fix.ids, 4 * TOKENS * TOPK + 256) &&
           still(fix.weights, 4 * TOKENS * TOPK + 256) && still(fix.workspace, fix.size + 256);
}
static moek_args good_args(void)
{
    moek_args a;
    memset(&a, 0, sizeof a);
    a.tokens = TOKENS; a.x = fix.x; a.y = fix.y;
    a.router_logits = fix.logits; a.topk_ids = fix.ids; a.topk_weights = fix.weights;
    a.workspace = fix.workspace; a.workspace_size = fix.size;
    return a;
}

/* Refused by run and by begin, with the sentence in buffers of every size, and nothing written. */
static void run_refused(const moek_plan *p, moek_args a, moek_status status, const char *sentence, const char *change,
                        int line)
{
    char why[MOEK_WHY], some[64];
    moek_step step;
    moek_status got;
    size_t size;
    int i, overflow = 0;
    poison();
    a.why = why; a.why_size = sizeof why;
    got = moek_run(p, &a, NULL);
    check_(got == status, __FILE__, line, change, "%s, not %s; %s", moek_status_name(got), moek_status_name(status),
           why);
    check_(has_text(why, sentence), __FILE__, line, change, "says \"%s\", nothing of \"%s\"", why, sentence);
    for (size = 0; size < 40; size++) {
        memset(some, POISON, sizeof some);
        a.why = some; a.why_size = size;
        moek_run(p, &a, NULL);
        for (i = (int)size; i < 64; i++) overflow |= some[i] != POISON;
        overflow |= size && (memchr(some, 0, size) == NULL || strncmp(some, why, size - 1) != 0);
    }
    check_(!overflow, __FILE__, line, change, "a small args.why overflows, or is not ended");
    a.why = NULL; a.why_size = 100;
    check_(moek_run(p, &a, NULL) == status && moek_begin(p, &a, &step) == status, __FILE__, line, change,
           "begin says otherwise");
    check_(untouched(), __FILE__, line, change, "something was written");
}
#define RUN_REFUSED(change, status, sentence) \
    do {                                                                                            \
        moek_args a = good_args();                                                                  \
        moek_plan p = fix.plan;                                                                     \
        change;                                                                                     \
        run_refused(&p, a, MOEK_##status, sentence, #change, __LINE__);                             \
    } while (0)
#define GIVEN(slot, id) a.router_logits = NULL; a.topk_ids = given; memset(given, 0, sizeof given); given[slot] = (id)

/* A prepare/finalize that has something against the run. */
static moek_status no_run(const moek_prepare_finalize *self, const moek_plan *plan, const moek_args *args)
{
    (void)plan;
    if (self->context && args->why && args->why_size) snprintf(args->why, args->why_size, "not on a Sunday");
    return MOEK_E_CAPACITY;
}

#define WIDE(id) \
    a.router_logits = NULL; a.topk_ids = NULL; a.topk_ids64 = wide; memset(wide, 0, sizeof wide); wide[3] = (id)

static void test_run_refused(void)
{
    moek_args none = good_args();
    int32_t given[TOKENS * TOPK], tokens[TOKENS];
    int64_t wide[TOKENS * TOPK];
    moek_prepare_finalize silent = moek_local, wordy = moek_local;
    CHECK(moek_run(&fix.plan, &none, (moek_stream)&none) == MOEK_E_ARGUMENT, "a stream on the CPU");
    CHECK(moek_run(NULL, &none, NULL) == MOEK_E_ARGUMENT && moek_run(&fix.plan, NULL, NULL) == MOEK_E_ARGUMENT, "NULL");
    silent.check = wordy.check = no_run;
    silent.name = "silent";
    wordy.context = &wordy;
    RUN_REFUSED(p.prepare_finalize = &silent, E_CAPACITY, "prepare/finalize silent refuses the run: a rank would");
    RUN_REFUSED(p.prepare_finalize = &wordy, E_CAPACITY, "not on a Sunday");
    RUN_REFUSED(p.prepare_finalize = &wordy; a.tokens = 0, E_CAPACITY, "not on a Sunday");
    RUN_REFUSED(memset(&p, 0, sizeof p), E_ARGUMENT, "the plan is not initialized");
    RUN_REFUSED(p.bound = 0, E_UNBOUND, "call moek_plan_bind after moek_plan_init");
    RUN_REFUSED(a.tokens = -1, E_ARGUMENT, "args.tokens is -1");
    RUN_REFUSED(a.tokens = TOKENS + 1, E_ARGUMENT, "made for 0 to 4 (config.max_tokens)");
    RUN_REFUSED(a.tokens = INT_MIN, E_ARGUMENT, "args.tokens is");
    RUN_REFUSED(a.handle = 2, E_ARGUMENT, "args.handle is 2; 0 or 1");
    RUN_REFUSED(a.handle = -1, E_ARGUMENT, "args.handle is -1");
    RUN_REFUSED(a.workspace = NULL, E_WORKSPACE, "args.workspace is NULL");
    RUN_REFUSED(a.workspace_size -= 1, E_WORKSPACE, "args.workspace_size is");
    RUN_REFUSED(a.workspace_size = 0, E_WORKSPACE, "args.workspace_size is 0");
    RUN_REFUSED(a.workspace = fix.workspace + 1, E_WORKSPACE, "not aligned to 256");
    RUN_REFUSED(a.workspace = fix.workspace + 128, E_WORKSPACE, "not aligned to 256");
    RUN_REFUSED(a.state = fix.workspace + 8, E_WORKSPACE, "args.state is not aligned to 256");
    RUN_REFUSED(a.x = NULL, E_ARGUMENT, "args.x is NULL");
    RUN_REFUSED(a.y = NULL, E_ARGUMENT, "args.y is NULL");
    RUN_REFUSED(a.x = fix.x + 1, E_ARGUMENT, "args.x is not aligned to 16");
    RUN_REFUSED(a.y = fix.y + 2, E_ARGUMENT, "args.y is not aligned to 16");
    RUN_REFUSED(a.shared_y = fix.x + 8, E_ARGUMENT, "args.shared_y is not aligned to 16");
    RUN_REFUSED(a.x_stride = HIDDEN - 8, E_ARGUMENT, "args.x_stride is 56 elements; 0 (hidden), 64 (hidden), or m");
    RUN_REFUSED(a.y_stride = HIDDEN + 4, E_ARGUMENT, "args.y_stride is 68 elements");
    RUN_REFUSED(a.shared_y = fix.x; a.shared_y_stride = 8, E_ARGUMENT, "args.shared_y_stride is 8 elements");
    RUN_REFUSED(a.x_stride = (size_t)1 << 30, E_ARGUMENT, "args.x_stride is 1073741824 elements, for 4 tokens a chunk");
    RUN_REFUSED(a.y_stride = (size_t)-8, E_ARGUMENT, "args.y_stride is");
    RUN_REFUSED(p.config.max_tokens = p.chunk = a.tokens = 1 << 20; a.x_stride = (1 << 15) + 8, E_ARGUMENT,
                "args.x_stride is 32776 elements, for 1048576 tokens a chunk");
    RUN_REFUSED(a.y = fix.x; a.y_stride = 72, E_ARGUMENT, "args.y is x, whose rows are 64 elements apart, and args.y");
    RUN_REFUSED(a.y = fix.x; a.x_stride = 72, E_ARGUMENT, "args.y_stride says 64: give both the same stride");
    RUN_REFUSED(a.shared_y = fix.y; a.y_stride = 72, E_ARGUMENT, "args.y is shared_y, whose rows are 64 elements");
    RUN_REFUSED(a.shared_y = fix.y; a.shared_y_stride = 80; a.y_stride = 72, E_ARGUMENT, "args.y is shared_y");
    RUN_REFUSED(a.router_logits = fix.logits + 1, E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.topk_ids = (int32_t *)((char *)fix.ids + 1), E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.topk_weights = (float *)((char *)fix.weights + 2), E_ARGUMENT, "not aligned");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids = NULL, E_ARGUMENT, "topk_ids is NULL");
    RUN_REFUSED(a.router_logits = NULL; a.topk_weights = NULL, E_ARGUMENT, "topk_weights is NULL");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids = NULL; a.topk_weights = NULL, E_ARGUMENT, "is NULL");
    RUN_REFUSED(GIVEN(3, EXPERTS), E_ARGUMENT, "args.topk_ids[1][1] is 8; ids are -1 to 7");
    RUN_REFUSED(GIVEN(0, -2), E_ARGUMENT, "args.topk_ids[0][0] is -2");
    RUN_REFUSED(GIVEN(TOKENS * TOPK - 1, INT_MAX), E_ARGUMENT, "args.topk_ids[3][1]");
    RUN_REFUSED(p.weights.router_table = given, E_ARGUMENT, "args.token_ids must be");
    RUN_REFUSED(p.config.physical_experts = 12; GIVEN(2, 12), E_ARGUMENT, "ids are -1 to 11");
    RUN_REFUSED(p.config.physical_experts = 12; p.weights.replicas = given; GIVEN(2, 8), E_ARGUMENT, "ids are -1 to 7");
    RUN_REFUSED(p.weights.router_table = given; p.weights.router_table_rows = 9; memset(tokens, 0, sizeof tokens);
                a.token_ids = tokens; tokens[2] = 9, E_ARGUMENT,
                "args.token_ids[2] is 9; weights.router_table has rows 0 to 8");
    RUN_REFUSED(p.weights.router_table = given; p.weights.router_table_rows = 9; memset(tokens, 0, sizeof tokens);
                a.token_ids = tokens; tokens[3] = -1, E_ARGUMENT, "args.token_ids[3] is -1");
    RUN_REFUSED(a.topk_ids64 = wide, E_ARGUMENT, "args.topk_ids and topk_ids64 are both given");
    RUN_REFUSED(a.router_logits = NULL; a.topk_ids64 = wide, E_ARGUMENT, "are both given");
    RUN_REFUSED(WIDE(0); a.topk_ids64 = (int64_t *)((char *)wide + 4), E_ARGUMENT, "not aligned");
    RUN_REFUSED(WIDE(0); a.topk_weights = NULL, E_ARGUMENT, "topk_weights is NULL");
    RUN_REFUSED(WIDE(EXPERTS), E_ARGUMENT, "args.topk_ids64[1][1] is 8; ids are -1 to 7");
    RUN_REFUSED(WIDE(-2), E_ARGUMENT, "args.topk_ids64[1][1] is -2");
    RUN_REFUSED(WIDE(((int64_t)1 << 32) + 1), E_ARGUMENT, "args.topk_ids64[1][1] is 4294967297; ids are -1 to 7");
    RUN_REFUSED(WIDE(INT64_MIN), E_ARGUMENT, "args.topk_ids64[1][1] is -9223372036854775808");
    RUN_REFUSED(a.shared_weights = fix.weights, E_ARGUMENT,
                "args.shared_weights is given, but config.shared_slots is 0");
    RUN_REFUSED(p.config.shared_slots = 1; a.shared_weights = fix.weights; GIVEN(0, 0), E_ARGUMENT,
                "args.shared_weights is given, but router_logits is NULL");
    RUN_REFUSED(p.config.shared_slots = 1; a.shared_weights = (float *)((char *)fix.weights + 2), E_ARGUMENT,
                "not aligned");
    RUN_REFUSED(a.router_logits_stride = EXPERTS - 1, E_ARGUMENT, "args.router_logits_stride is 7 elements");
    RUN_REFUSED(a.router_logits_stride = EXPERTS; GIVEN(0, 0), E_ARGUMENT, "but router_logits is NULL");
}

/* An address that is not aligned, by name. */
static void test_args_alignment(void)
{
    size_t i;
    for (i = 0; i < sizeof args_addresses / sizeof *args_addresses; i++) {
        const char *const field = field_of("args", args_addresses[i]);
        const size_t bytes = moek_alignment(&fix.plan, field);
        moek_args a = good_args();
        char why[128];
        CHECK(bytes && bytes <= 256, "%s: %d bytes", field, (int)bytes);
        if (bytes == 1) continue;
        snprintf(why, sizeof why, "%s is not aligned to %d bytes", field, (int)bytes);
        set_address(&a, field, (const char *)fix.x + bytes / 2);
        run_refused(&fix.plan, a, bytes == 256 ? MOEK_E_WORKSPACE : MOEK_E_ARGUMENT, why, field, __LINE__);
    }
}

enum { ROW = 2 * HIDDEN };                             /* bytes */
/* Arrays that lie in each other, one of them written. */
static void test_overlap(void)
{
    moek_args a;
    RUN_REFUSED(a.y = fix.x + ROW, E_ARGUMENT, "args.y and x lie in the same memory (y begins 128 bytes behind x)");
    RUN_REFUSED(a.y = fix.x + (TOKENS - 1) * ROW, E_ARGUMENT, "or both the same address and stride");
    RUN_REFUSED(a.x = fix.y + 16, E_ARGUMENT, "args.y and x lie in the same memory (y begins -16 bytes");
    RUN_REFUSED(a.x = fix.y + ROW; a.x_stride = a.y_stride = HIDDEN + 8, E_ARGUMENT, "args.y and x lie");
    RUN_REFUSED(a.tokens = 2; a.y = fix.x + 2 * ROW; a.x_stride = 2 * HIDDEN + 8, E_ARGUMENT, "args.y and x lie");
    RUN_REFUSED(a.shared_y = fix.y + ROW, E_ARGUMENT, "args.y and shared_y lie in the same memory");
    RUN_REFUSED(a.y = fix.workspace, E_ARGUMENT, "args.y and workspace lie in the same memory");
    RUN_REFUSED(a.x = fix.workspace + 256, E_ARGUMENT, "args.x and workspace lie in the same memory");
    RUN_REFUSED(a.y = fix.workspace + (fix.size - 1) / 16 * 16, E_ARGUMENT, "args.y and workspace");
    RUN_REFUSED(a.router_logits = fix.y, E_ARGUMENT, "args.y and router_logits lie in the same memory");
    RUN_REFUSED(a.topk_ids = (int32_t *)fix.workspace, E_ARGUMENT, "args.workspace and topk_ids lie");
    RUN_REFUSED(a.topk_weights = (float *)fix.ids, E_ARGUMENT, "args.topk_ids and topk_weights lie in the same memory");
    RUN_REFUSED(a.is_padding = (unsigned char *)fix.y + 8, E_ARGUMENT, "args.y and is_padding lie in the same memory");
    RUN_REFUSED(a.state = fix.workspace, E_ARGUMENT, "args.workspace and state lie in the same memory");
#define RUNS(change) do {                                                                                       \
        a = good_args();                                                                                        \
        change;                                                                                                 \
        a.why = fix.why; a.why_size = sizeof fix.why;                                                           \
        CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "%s: %s", #change, fix.why);                            \
    } while (0)
    memset(fix.y, 0, 2 * TOKENS * HIDDEN + 256);
    RUNS(a.y = fix.x);                                 /* row for row */
    RUNS(a.shared_y = fix.y);
    RUNS(a.tokens = 2; a.y = fix.x + ROW; a.x_stride = a.y_stride = 2 * HIDDEN);       /* between the rows of x */
    RUNS(a.tokens = 2; a.x = fix.y + ROW; a.x_stride = a.y_stride = 2 * HIDDEN);
    RUNS(a.tokens = 1; a.y = fix.x + ROW);             /* behind the rows that the run has */
    RUNS(a.token_ids = (const int32_t *)fix.y);        /* which are not read */
    memset(fix.x, 0, 2 * TOKENS * HIDDEN);
#undef RUNS
}

/* Accepted: the same arguments unbroken, ids of -1, no tokens (and then no pointers), more workspace than needed. */
static void test_run_accepted(void)
{
    moek_args a = good_args();
    int64_t wide[TOKENS * TOPK];
    moek_step step;
    poison();
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK && !untouched(), "the good run is refused");
    CHECK(still(fix.y + 2 * TOKENS * HIDDEN, 256) && still(fix.ids + TOKENS * TOPK, 256) &&
          still(fix.workspace + fix.size, 256), "beyond");
    a.router_logits = NULL;
    memset(fix.ids, 0xff, 4 * TOKENS * TOPK);
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "ids of -1 are refused");
    memset(wide, 0xff, sizeof wide);
    a.topk_ids = NULL; a.topk_ids64 = wide;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "ids of -1, of 64 bits, are refused");
    a.topk_ids = fix.ids; a.topk_ids64 = NULL;
    a.workspace_size += 1;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "a larger workspace is refused");
    a.x_stride = HIDDEN; a.shared_y_stride = 3;        /* nobody's: there is no shared_y */
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "x_stride is hidden: refused");
    a.x = a.shared_y = a.y;
    a.y_stride = a.shared_y_stride = HIDDEN;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "all in one place, with one stride: refused");
    poison();
    a.tokens = 0;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK && still(fix.y, 2 * TOKENS * HIDDEN), "no tokens: y was written");
    a.x = a.y = NULL; a.topk_ids = NULL; a.topk_weights = NULL;
    CHECK(moek_run(&fix.plan, &a, NULL) == MOEK_OK, "no tokens, no pointers: refused");
    CHECK(moek_begin(&fix.plan, &a, &step) == MOEK_OK, "begin");
}

static void test_begin(void)
{
    moek_args a = good_args();
    moek_config c = good();
    moek_weights w = good_weights(QUANT);
    moek_plan p;
    moek_step step;
    char why[200];
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_begin(&fix.plan, &a, NULL) == MOEK_E_ARGUMENT && has_text(why, "step is NULL"), "%s", why);
    c.chunk_tokens = 3;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chunk == 3 && moek_plan_bind(&p, &w) == MOEK_OK, "%s", p.why);
    CHECK(moek_workspace_size(&p) <= fix.size, "chunks need more workspace than the whole");
    CHECK(moek_begin(&p, &a, &step) == MOEK_E_ARGUMENT && has_text(why, "plan.chunk = 3"), "%s", why);
    a.tokens = 3;
    CHECK(moek_begin(&p, &a, &step) == MOEK_OK && step.tokens == 3 && step.first == 0 && step.plan == &p, "begin");
}

/* ---- moek_quantize ----------------------------------------------------------------------------------------------- */

static void test_quantize(void)
{
    static float scale[8 * 4], partial[MOEK_QUANT_PARTIALS];
    moek_quant_args good_quant;
    int i;
    memset(&good_quant, 0, sizeof good_quant);
    good_quant.rows = TOKENS; good_quant.cols = HIDDEN; good_quant.source_div = 1;
    good_quant.dtype = format_dtype_in(moek_format_of(QUANT), 0);
    good_quant.x = fix.x; good_quant.q = fix.y; good_quant.scale = scale; good_quant.partial = partial;
#define QUANTIZE(change, quant, arch, status) do {                                                        \
        moek_quant_args a = good_quant;                                                                   \
        change;                                                                                           \
        CHECK(moek_quantize(quant, arch, &a, NULL) == MOEK_##status, "%s, %s", #change, #quant);          \
        if (MOEK_##status != MOEK_OK) CHECK(untouched(), "%s: something was written", #change);           \
    } while (0)
    poison();
    CHECK(moek_quantize(QUANT, 0, NULL, NULL) == MOEK_E_ARGUMENT, "NULL");
    QUANTIZE(a.rows = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.source_div = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.rows = INT_MAX, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = (1 << 24) + 1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.cols = INT_MAX, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.source_div = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.zeros = 4, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.zeros = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.max_blocks = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.early = 3, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x = fix.x + 1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.q = fix.y + 8, QUANT, 80, E_ARGUMENT);
    QUANTIZE(a.scale = (char *)scale + 2, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.target = (const int32_t *)(fix.x + 1), QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.ue8m0 = 1, FORMAT_ROW, 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++)
        if (!format_at(i)->ue8m0)
            QUANTIZE(a.ue8m0 = 1; a.static_scale = scale; a.dtype = format_dtype_in(format_at(i), 0),
                     format_numbers[i], 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++) {
        static const float below = -0.25f;
        if (format_at(i)->static_x) QUANTIZE(a.static_scale = &below, format_numbers[i], 0, E_ARGUMENT);
    }
    QUANTIZE(a.x_stride = HIDDEN - 8, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x_stride = HIDDEN + 4, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x_stride = -8, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.x = NULL, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.q = NULL, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.dtype = 0, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.dtype = MOEK_DTYPE_F32, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = -1, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = 3, QUANT, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS - 1, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_TENSOR, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.scale = NULL, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.partial = NULL, FORMAT_TENSOR, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 16, FORMAT_ROW, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = -1, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 128, FORMAT_BLOCKED, 0, E_ARGUMENT);
    QUANTIZE(a.group_offset = 4, FORMAT_BLOCKED, 80, E_ARGUMENT);
    QUANTIZE(a.counts = fix.ids, FORMAT_BLOCKED, 0, E_ARGUMENT);
    for (i = 0; i < FORMATS; i++) {
        if (!format_x_second(format_at(i))) continue;
        QUANTIZE((void)0, format_numbers[i], 0, E_ARGUMENT);
        QUANTIZE(a.static_scale = scale; a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS,
                 format_numbers[i], 0, E_ARGUMENT);
    }
    QUANTIZE((void)0, 0, 0, E_NO_KERNEL);
    QUANTIZE((void)0, 99, 0, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, 75, E_NO_KERNEL);
    QUANTIZE((void)0, INT_MAX, 0, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, -1, E_NO_KERNEL);
    QUANTIZE((void)0, QUANT, INT_MIN, E_NO_KERNEL);
    QUANTIZE(a.rows = 0, QUANT, 0, OK);
    CHECK(untouched(), "no rows: something was written");
    QUANTIZE((void)0, QUANT, 0, OK);
    CHECK(!untouched() && still(fix.y + moek_element_bytes(moek_format_of(QUANT)->x, TOKENS * HIDDEN), 256), "rows");
#ifndef MOEK_QUANT
    QUANTIZE(a.rows = 0; a.source_div = INT_MAX, FORMAT_TENSOR, 0, OK);
    QUANTIZE((void)0, FORMAT_TENSOR, 0, OK);
    QUANTIZE(a.partial = NULL; a.static_scale = scale, FORMAT_TENSOR, 0, OK);
    for (i = 0; i < FORMATS; i++)
        if (format_x_second(format_at(i))) QUANTIZE(a.static_scale = scale, format_numbers[i], 0, OK);
    QUANTIZE((void)0, FORMAT_ROW, 0, OK);
    QUANTIZE(a.scale_layout = MOEK_SCALE_COLUMN; a.scale_stride = TOKENS, FORMAT_BLOCKED, 0, OK);
    QUANTIZE(a.scale_layout = MOEK_SCALE_PACKED; a.scale_stride = TOKENS; a.ue8m0 = 1, FORMAT_BLOCKED, 0, OK);
#endif
}
/* There and back, of an array with guards: what came; and in panels something else, if that is more than a group. */
typedef moek_status (*repacker)(const moek_plan *, const void *, void *, int, int, moek_stream);
static void repack_back(const moek_plan *p, repacker repack, const char *what, size_t bytes, int experts)
{
    enum { GUARD = 64 };
    const size_t all = bytes + 2 * GUARD;
    unsigned char *const a = (unsigned char *)mem_alloc(0, 3 * all), *const b = a + all, *const again = b + all;
    size_t i;
    for (i = 0; i < all; i++) a[i] = (unsigned char)rng_u32();
    memset(b, 0x5a, 2 * all);
    CHECK(repack(p, a + GUARD, b + GUARD, experts, 0, NULL) == MOEK_OK &&
          repack(p, b + GUARD, again + GUARD, experts, 1, NULL) == MOEK_OK, "%s: refused", what);
    CHECK(!memcmp(a + GUARD, again + GUARD, bytes), "%s: panels and back it is something else", what);
    CHECK(bytes < 16384 || memcmp(a + GUARD, b + GUARD, bytes), "%s: nothing was repacked", what);
    for (i = 0; i < GUARD; i++)
        CHECK(b[i] == 0x5a && b[all - 1 - i] == 0x5a && again[i] == 0x5a && again[all - 1 - i] == 0x5a,
              "%s: wrote outside", what);
    mem_free(0, a);
}
/* MOEK_WEIGHTS_PANELS: all that is repacked of a format, whatever the activation and the order of gate and up. */
static void test_panels_of(const moek_format *f, int block, int up_layout, int act, int offset)
{
    const moek_scale_shape of = moek_weight_scale(f, block);
    const int scales = of.rows == 1 && of.columns, gated = act != MOEK_RELU2_NO_MUL;
    const size_t experts = 3, hidden = (size_t)format_round_up(f, 96), inter = (size_t)format_round_up(f, 160);
    const size_t up_rows = gated && up_layout != MOEK_UP_SEPARATE ? 2 * inter : inter;
    char what[96];
    moek_config c = good();
    moek_plan p;
    c.exclude = MOEK_BACKENDS_GPU; c.quant = f->number; c.block = block; c.act = act; c.up_layout = up_layout;
    c.hidden = (int)hidden; c.inter = (int)inter; c.inter_offset = offset; c.dtype = format_dtype(f);
    snprintf(what, sizeof what, "%s, block %d, up_layout %d, act %d", f->name, block, up_layout, act);
    if (moek_plan_init(&p, &c) != MOEK_OK) { CHECK(0, "%s: %s", what, p.why); return; }
    repack_back(&p, moek_repack_up, what, experts * up_rows * moek_weight_bytes(f, MOEK_WEIGHTS_PANELS, hidden), 3);
    repack_back(&p, moek_repack_down, what, experts * hidden * moek_weight_bytes(f, MOEK_WEIGHTS_PANELS, inter), 3);
    if (scales) {
        const size_t up = moek_scale_count(&of, 1, hidden), down = moek_scale_count(&of, 1, inter + (size_t)offset);
        repack_back(&p, moek_repack_up_scale, what, experts * up_rows * moek_scale_bytes(&of, 1, hidden), 3);
        repack_back(&p, moek_repack_down_scale, what,
                    experts * hidden * moek_scale_bytes(&of, 1, inter + (size_t)offset), 3);
        if (!f->zero) return;
        repack_back(&p, moek_repack_up_zero, what, experts * up_rows * moek_element_bytes(f->w, up), 3);
        repack_back(&p, moek_repack_down_zero, what, experts * hidden * moek_element_bytes(f->w, down), 3);
    } else {
        CHECK(moek_repack_up_scale(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: scales", what);
        CHECK(moek_repack_down_zero(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "%s: zeros", what);
    }
}
static void test_panels(void)
{
    static const int sizes[][3] = { { 48, 64, 0 }, { 64, 80, 0 }, { 128, 128, 16 } };
    moek_config c = good();
    moek_plan p;
    int i, j, layout;
    c.exclude = MOEK_BACKENDS_GPU;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (!HAVE(f->number)) continue;
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++)
            for (layout = MOEK_UP_GATE_UP; layout <= MOEK_UP_SEPARATE; layout++)
                test_panels_of(f, format_block(f, j), layout, MOEK_SILU,
                               layout == MOEK_UP_GATE_UP && f->w_scale.rows == 1 && f->w_scale.columns == 128 ? 32 : 0);
        test_panels_of(f, format_block(f, 0), 0, MOEK_RELU2_NO_MUL, 0);
    }
    for (i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        c = good();
        if (sizes[i][2] && !HAVE(FORMAT_BLOCKED)) continue;
        if (sizes[i][2]) c.up_scales = 1;
        c.exclude = MOEK_BACKENDS_GPU; c.hidden = sizes[i][0]; c.inter = sizes[i][1]; c.inter_offset = sizes[i][2];
        c.weight_layout = MOEK_WEIGHTS_PANELS;
        CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "no multiple of 32: leave weight_layout 0"),
              "%s", p.why);
        c.weight_layout = 0;
        if (moek_plan_init(&p, &c) != MOEK_OK) { CHECK(0, "%s", p.why); continue; }
        CHECK(moek_repack_down(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "sizes that do not fit");
    }
}
/* Each order is refused by the other's plans. */
static void test_orders(void)
{
    moek_config c = good();
    moek_plan p;
    char text[16384];
    c.hidden = c.inter = 256;
    c.weight_layout = MOEK_WEIGHTS_TILED; c.exclude = MOEK_BACKENDS_GPU; c.backend = 0;
    CHECK(moek_plan_init(&p, &c) == MOEK_E_BACKEND && has_text(p.why, "or set MOEK_WEIGHTS_PANELS, the order of CPUs"),
          "%s", p.why);
    c.weight_layout = MOEK_WEIGHTS_PANELS; c.exclude = 1u << MOEK_BACKEND_CPU; c.backend = 0;
    CHECK(moek_plan_init(&p, &c) != MOEK_OK, "panels on a GPU");
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "only rows of CPUs read such weights") || has_text(text, "there is no CUDA device"), "%s",
          text);
}
