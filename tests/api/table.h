/* table.h -- a part of test_api.c, which includes it once: the table, rows that are missing, texts, config.tuned. */
/* Is it  { key = "word", key = number, ... },  as TOML has it?  The value of `key` goes to value. */
static int toml_row(const char *p, const char *key, char *value, size_t size)
{
    char name[32], word[64];
    int n;
    *value = 0;
    if (strncmp(p, "{ ", 2)) return 0;
    for (p += 2; ; p += 2) {
        if (sscanf(p, "%31[a-z0-9_] = %n", name, &n) != 1) return 0;
        p += n;
        if (sscanf(p, "\"%63[a-z0-9_]\"%n", word, &n) != 1 && sscanf(p, "%63[0-9]%n", word, &n) != 1) return 0;
        p += n;
        if (!strcmp(name, key)) snprintf(value, size, "%s", word);
        if (!strncmp(p, " },", 3)) return 1;
        if (strncmp(p, ", ", 2)) return 0;
    }
}

static const char *op_name(int op)
{
#define OP(NAME, name, number) if (op == number) return #name;
    MOEK_EACH_OP(OP)
#undef OP
    return "?";
}

static void test_table(void)
{
    int n, i, j;
    const moek_kernel *k = moek_kernels(&n);
    char value[64];
    CHECK(n > 0 && moek_kernels(NULL) == k, "%d rows", n);
    CHECK(!moek_kernel_find(NULL) && !moek_kernel_find("") && !moek_kernel_find("moek"), "found what is not there");
    for (i = 0; i < n; i++) {
        CHECK(moek_kernel_find(k[i].name) == &k[i], "%s is there twice, or not at all", k[i].name);
        CHECK(k[i].launch && k[i].granule >= 1, "%s", k[i].name);
        CHECK(k[i].arch != MOEK_ARCH_CPU || k[i].launch(NULL, NULL) == MOEK_OK, "%s is not ready", k[i].name);
        CHECK(toml_row(k[i].row, "op", value, sizeof value) && !strcmp(value, op_name(k[i].op)), "%s", k[i].row);
        CHECK(toml_row(k[i].row, "quant", value, sizeof value) &&
              !strcmp(value, k[i].quant ? moek_quant_name(k[i].quant) : ""), "%s", k[i].row);
        for (j = 0; j < i; j++)
            CHECK(k[i].op != k[j].op || k[i].arch <= k[j].arch || mem_on_gpu(k[j].arch),
                  "%s is behind a worse one", k[i].name);
    }
}

static int has_up(int quant)
{
    int n, i, have = 0;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < n; i++) have |= k[i].op == MOEK_OP_UP && !k[i].arch && k[i].quant == quant;
    return have;
}
static int best_set(const moek_config *c, const int *sets, int count)
{
    int n, i, j;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < count; i++)
        for (j = 0; j < n; j++)
            if (k[j].op == MOEK_OP_UP && k[j].quant == c->quant && k[j].arch == sets[i] &&
                k[j].launch(NULL, NULL) == MOEK_OK) return sets[i];
    return MOEK_ARCH_CPU;
}
/* The best set that has rows of a format is taken. */
static void test_best_set(void)
{
    static const int sets[] = { MOEK_ARCH_AMX, MOEK_ARCH_AVX512, MOEK_ARCH_AVX2, MOEK_ARCH_I8MM,
                                MOEK_ARCH_NEON };
    moek_plan p;
#define FORMAT(NAME, name, number) {                                                                          \
        moek_config c = good();                                                                               \
        const int sets_ = (int)(sizeof sets / sizeof *sets);                                                  \
        of_quant(&c, number);                                                                                 \
        if (has_up(number))                                                                                   \
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == best_set(&c, sets, sets_),             \
                  "%s takes %d, and the best is %d: %s", #name, p.chosen.cpu, best_set(&c, sets, sets_), p.why); \
    }
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
}
/* The sets of this processor: as the compiler knows it, so by no code of the library.  Rows of each are there, are
 * taken where config.cpu asks for them, and are named; rows of another set are refused with a sentence. */
static void test_sets(void)
{
    static const struct { int arch; const char *name; } sets[] = {
        { MOEK_ARCH_AMX, "amx" }, { MOEK_ARCH_AVX512, "avx512" }, { MOEK_ARCH_AVX2, "avx2" },
        { MOEK_ARCH_I8MM, "i8mm" }, { MOEK_ARCH_NEON, "neon" } };
    moek_config c = good();
    moek_plan p;
    char text[1 << 16];
    size_t i;
    int n, j, any = 0;
    const moek_kernel *k = moek_kernels(&n);
    for (i = 0; i < sizeof sets / sizeof *sets; i++) {
        int rows = 0, ready = 0;
        for (j = 0; j < n; j++)
            if (k[j].arch == sets[i].arch) rows++, ready += k[j].launch(NULL, NULL) == MOEK_OK;
        CHECK(!ready || ready == rows, "%s: %d of %d rows are ready", sets[i].name, ready, rows);
        any |= ready;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MOEK_QUANT)
        if (sets[i].arch == MOEK_ARCH_AVX2)
            CHECK(rows > 0 && (ready > 0) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")),
                  "%d rows of avx2, of which %d are ready", rows, ready);
#endif
        c.cpu = sets[i].arch;
        if (!ready && !rows) {
            CHECK(moek_plan_init(&p, &c) != MOEK_OK || p.chosen.cpu == c.cpu, "%s without rows", sets[i].name);
        } else if (!ready) {
            refused(&c, MOEK_E_ARCH, "config.cpu asks for", sets[i].name, __LINE__);
        } else {
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == c.cpu && p.arch == 0, "%s: %s", sets[i].name,
                  p.why);
            moek_describe(&p, text, sizeof text);
            CHECK(has_text(text, sets[i].name), "%s: %s", sets[i].name, text);
        }
    }
    c.cpu = MOEK_CPU_PLAIN;
    CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.cpu == MOEK_ARCH_CPU, "plain C: %s", p.why);
    for (j = 0; j < p.chosen.gemms; j++)
        CHECK(p.chosen.up[j]->arch == MOEK_ARCH_CPU && p.chosen.down[j]->arch == MOEK_ARCH_CPU, "plain C: %s",
              p.chosen.up[j]->name);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "kernels of cpu") && (!any || has_text(text, ": config.cpu")), "%s", text);
    test_best_set();
    c.cpu = 77;
    refused(&c, MOEK_E_ARGUMENT, "config.cpu is 77", "MOEK_CPU_PLAIN", __LINE__);
}

static void check_row_text(const char *why, int quant)
{
    const char *row = strstr(why, "add to kernels.toml:  ");
    char value[64];
    if (!CHECK(row && has_text(why, "./moek gen"), "no row to add: %s", why)) return;
    CHECK(toml_row(row + 22, "quant", value, sizeof value) && !strcmp(value, moek_quant_name(quant)), "%s", row);
    CHECK(toml_row(row + 22, "op", value, sizeof value) && !strcmp(value, "up"), "%s", row);
    CHECK(toml_row(row + 22, "template", value, sizeof value) && value[0], "%s", row);
}

/* Formats that are not here.  kernels.toml has a row: the option that left it out is said; else the row to add. */
static void test_missing_row(void)
{
    int missing = 0;
    moek_plan p;
#define FORMAT(NAME, name, number) {                                                                          \
        moek_config c = good();                                                                               \
        of_quant(&c, number);                                                                                 \
        CHECK(moek_plan_init(&p, &c) == (has_up(number) ? MOEK_OK : MOEK_E_NO_KERNEL), "%s: %s", #name, p.why); \
        if (!has_up(number)) {                                                                                \
            missing++;                                                                                        \
            if (number != QUANT + 1) check_row_text(p.why, number);                                           \
            else CHECK(has_text(p.why, "this build left them out") && has_text(p.why, "without MOEK_QUANT") && \
                       !has_text(p.why, "add to kernels.toml"), "%s", p.why);                                 \
            REFUSED(of_quant(&c, number), E_NO_KERNEL, "no kernel: up " #name " hidden=");                    \
        }                                                                                                     \
    }
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
    if (!missing) check_skipped++;
}

static void test_names(void)
{
#define STATUS(name, number, text) \
    CHECK(!strcmp(moek_status_name(MOEK_##name), "MOEK_" #name) && MOEK_##name == number, "%d", number); \
    CHECK(!strcmp(moek_status_text(MOEK_##name), text), "%d", number);
    MOEK_EACH_STATUS(STATUS)
#undef STATUS
    CHECK(moek_status_name(MOEK_STATUS_COUNT_)[0] && moek_status_text(MOEK_STATUS_COUNT_)[0], "an unknown status");
#define FORMAT(NAME, name, number) CHECK(!strcmp(moek_quant_name(MOEK_##NAME), #name), "%d", number);
    MOEK_EACH_QUANT(FORMAT)
#undef FORMAT
#define ACT(NAME, name, number, gated) CHECK(!strcmp(moek_act_name(MOEK_##NAME), #name), "%d %d", number, gated);
    MOEK_EACH_ACT(ACT)
#undef ACT
    CHECK(!moek_quant_name(0) && !moek_quant_name(99) && !moek_quant_name(-1), "a format that is none");
    CHECK(!moek_act_name(0) && !moek_act_name(99) && !moek_act_name(-1), "an activation that is none");
    CHECK(moek_hidden_round_up(1) == 2048 && moek_hidden_round_up(2048) == 2048 && moek_hidden_round_up(2049) == 2560,
          "round up");
    CHECK(moek_hidden_round_up(7169) == 8192 && moek_hidden_round_up(8193) == 0 && moek_hidden_round_up(INT_MAX) == 0,
          "round up");
}

/* For callers without this header; codegen/test_moegen.py sees to it that all fields are there. */
static void test_offsets(void)
{
    static const char *const nothing[] = {
        "", ".", "config.", "config.topk ", "config.nothing", ".topk", "conf", "nothing", "nothing.topk",
        "config.topk.x", "moek_config", "args.hidden", " config"
    };
    size_t i;
#define AT(of, field) CHECK(moek_offset(#of "." #field) == offsetof(moek_##of, field), "%s", #of "." #field)
#define SIZE(of) CHECK(moek_offset(#of) == sizeof(moek_##of), "%s", #of)
    AT(config, hidden); AT(config, kernel); AT(config, inter_offset); AT(weights, w_up);
    AT(weights, router_table_rows);
    AT(args, tokens); AT(args, x); AT(args, router_logits_stride); AT(plan, config); AT(plan, why);
    AT(plan, chosen);
    AT(step, out); AT(step, routed); AT(kernel, name); AT(kernel, row); AT(quant_args, max_blocks);
    AT(prepare_finalize, max_rows); AT(experts, apply);
    SIZE(config); SIZE(weights); SIZE(args); SIZE(plan); SIZE(step); SIZE(kernel); SIZE(selection); SIZE(quant_args);
    SIZE(prepare_finalize); SIZE(experts);
    CHECK(moek_config_size() == sizeof(moek_config) && moek_plan_size() == sizeof(moek_plan), "sizes");
    CHECK(moek_offset(NULL) == (size_t)-1, "NULL");
    for (i = 0; i < sizeof nothing / sizeof nothing[0]; i++)
        CHECK(moek_offset(nothing[i]) == (size_t)-1, "\"%s\" is at %lu", nothing[i],
              (unsigned long)moek_offset(nothing[i]));
}

static void test_models(void)
{
    moek_plan p;
#define MODEL(NAME, name) {                                                                         \
        moek_config c = MOEK_##NAME;                                                                \
        CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "max_tokens"), "%s: %s", #name, p.why); \
        c.max_tokens = 64; c.backend = MOEK_BACKEND_CPU;                                            \
        MODEL_QUANT                                                                                 \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s: %s", #name, p.why);                           \
        CHECK(moek_workspace_size(&p) > 64 * 2 * (size_t)c.hidden, "%s", #name);                    \
        c.format = MOEK_BATCHED;                                                                    \
        CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s batched: %s", #name, p.why);                   \
    }
#ifdef MOEK_QUANT
#define MODEL_QUANT c.quant = MOEK_QUANT; c.block = 0;
#else
#define MODEL_QUANT
#endif
    MOEK_EACH_MODEL(MODEL)
#undef MODEL
}

/* ---- texts never overflow ---------------------------------------------------------------------------------------- */

typedef size_t (*text_fn)(const void *of, char *text, size_t size);
static size_t explain(const void *c, char *text, size_t size)
{
    return moek_explain((const moek_config *)c, text, size);
}
static size_t describe(const void *p, char *text, size_t size)
{
    return moek_describe((const moek_plan *)p, text, size);
}

/* Every size from none to one too many: a prefix, ended, and nothing behind it. */
static void check_text(text_fn write, const void *of, const char *what)
{
    const size_t length = write(of, NULL, 0);
    char *all = (char *)malloc(length + 2), *some = (char *)malloc(length + 10);
    size_t size, i, sizes = 0, good_sizes = 0;
    CHECK(write(of, all, length + 1) == length && strlen(all) == length, "%s: %d is not its length", what, (int)length);
    CHECK(write(of, NULL, 100) == length, "%s: NULL with a size", what);
    /* Each size of a short text and near the ends of a long one, else one in 37: each write takes as long as all. */
    for (size = 0; size <= length + 2; size += size < 1000 || size + 200 > length ? 1 : 37) {
        int ok;
        memset(some, 0x5a, length + 10);
        ok = write(of, some, size) == length;
        for (i = size; i < length + 10; i++) ok &= some[i] == 0x5a;
        if (size) ok &= strlen(some) == (size - 1 < length ? size - 1 : length) && !strncmp(some, all, size - 1);
        sizes++, good_sizes += ok != 0;
    }
    CHECK(good_sizes == sizes, "%s: %d of %d sizes are wrong", what, (int)(sizes - good_sizes), (int)sizes);
    free(all); free(some);
}

static void test_texts(void)
{
    moek_config c = good();
    moek_plan p;
    char text[BIG];
    int n, i;
    const moek_kernel *k = moek_kernels(&n);
    memset(&p, 0, sizeof p);
    check_text(explain, &c, "explain");
    check_text(explain, NULL, "explain NULL");
    check_text(describe, NULL, "describe NULL");
    check_text(describe, &p, "describe an empty plan");
    CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s", p.why);
    check_text(describe, &p, "describe");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, p.chosen.route->name) && has_text(text, p.chosen.up[moek_plan_tile(&p, 1)]->name) &&
          has_text(text, p.chosen.down[moek_plan_tile(&p, 1)]->name) &&
          has_text(text, p.chosen.combine->name) && has_text(text, "hidden 64"), "%s", text);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "CPU: taken") && has_text(text, "SM90: not demanded"), "%s", text);
    for (i = 0; i < n; i++) CHECK(has_text(text, k[i].name), "%s is not explained", k[i].name);
    c.backend = 0; c.exclude = ~0u;
    check_text(explain, &c, "explain all excluded");
    c.hidden = -1;
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "config.hidden is -1"), "%s", text);
    moek_plan_init(&p, &c);
    check_text(describe, &p, "describe a refused plan");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "config.hidden is -1"), "%s", text);
}

/* Numbers in force, also those that the config left to be what they are by default. */
static void describes(const moek_config *c, const char *part)
{
    moek_plan p;
    char text[4000];
    CHECK(moek_plan_init(&p, c) == MOEK_OK, "%s", p.why);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, part), "nothing of \"%s\" in %s", part, text);
}
#define DESCRIBES(change, part) do { moek_config c = good(); change; describes(&c, part); } while (0)
static void test_describe(void)
{
#define ACT(NAME, name, number, gated) \
    DESCRIBES(c.act = number, "\nact       " #name); \
    DESCRIBES(c.act = number, (gated) ? "; rows of w_up: gate" : "; not gated\n");
    MOEK_EACH_ACT(ACT)
#undef ACT
#define KNOWN(name, number, score, normalize, eps, group, text) \
    DESCRIBES(c.routing = number, ", MOEK_ROUTE_" #name ": " text);
    MOEK_EACH_ROUTING(KNOWN)
#undef KNOWN
    DESCRIBES((void)0, "act       silu, limit none; rows of w_up: gate, then up\n");
    DESCRIBES(c.limit = 10; c.up_layout = MOEK_UP_SWAPPED, "act       silu, limit 10; rows of w_up: up, then gate\n");
    DESCRIBES(c.act = MOEK_SWIGLUOAI, "swigluoai, alpha 1.702, beta 1, limit 7; rows of w_up: gate and up inter");
    DESCRIBES(c.act = MOEK_SWIGLUOAI; c.alpha = 2; c.beta = 0.5f; c.limit = 3, "alpha 2, beta 0.5, limit 3;");
    DESCRIBES(c.act = MOEK_SITU, "situ, alpha 1, beta none;");
    DESCRIBES(c.act = MOEK_SITU; c.alpha = 4; c.beta = 5, "situ, alpha 4, beta 5;");
    DESCRIBES(c.act = MOEK_GELU, "act       gelu; rows");
    DESCRIBES(c.groups = 4; c.topk_groups = 2; c.scale = 2.5f; c.shared_slots = 1,
              "; 2 of 4 groups, by their best; scale 2.5; 1 sh");
    DESCRIBES(c.act = MOEK_SWIGLUSTEP, "swiglustep, limit none;");
}

/* ---- measured choices: config.tuned ------------------------------------------------------------------------------ */

static char tuned[BIG];                                /* a file; tuned_line adds to it */

static void tuned_line(const char *device, int quant, int hidden, int experts, int topk, int tokens, const char *row)
{
    const size_t length = strlen(tuned);
    snprintf(tuned + length, sizeof tuned - length, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t12.50\t13\n", device,
             moek_quant_name(quant), hidden, INTER, experts, topk, tokens, row);
}
static void tuned_start(void)
{
    snprintf(tuned, sizeof tuned, "# ./moek tune\ndevice\tquant\thidden\tinter\texperts\ttopk\ttokens\tup_row\tus\t"
             "built_in_us\n\r\n\n");
}
/* Lines for the layer of good(), on the CPU, from the fifth on. */
static void tuned_mine(int tokens, const char *row) { tuned_line("cpu", QUANT, HIDDEN, EXPERTS, TOPK, tokens, row); }

/* A line's row is one of the plan's: a machine's set, and the limits of a build, say which number that is. */
static void check_choice(const moek_plan *p, int i, int tokens, const char *up)
{
    const int gemms = i < p->chosen.choices ? p->chosen.choice[i].gemms : MOEK_CHOICE_RULE;
    const char *const found = gemms < 0 ? "the built-in rule" : p->chosen.up[gemms]->name;
    if (CHECK(i < p->chosen.choices, "%d choices", p->chosen.choices))
        CHECK(p->chosen.choice[i].tokens == tokens && !strcmp(found, up), "choice %d: up to %d, not %d, %s, not %s", i,
              p->chosen.choice[i].tokens, tokens, found, up);
}

static void test_tuned_refused(void)
{
#define FIRST "cpu\tbf16\t"
    REFUSED(c.tuned = "nonsense", E_ARGUMENT, "config.tuned, line 1 has 1 columns; it must have 10");
    REFUSED(c.tuned = "# a\n\n" FIRST "1\t1\t1\t1\t1\trow\t1\n", E_ARGUMENT, "config.tuned, line 3 has 9 columns");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1\t1\t", E_ARGUMENT, "line 1 has 11 columns");
    REFUSED(c.tuned = "\tbf16\t1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "line 1: device is \"\"; it must be a name");
    REFUSED(c.tuned = "cpu\tint5\t1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "quant is \"int5\"; it must be a format");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t0\trow\t1\t1", E_ARGUMENT, "tokens is \"0\"; it must be a whole number");
    REFUSED(c.tuned = FIRST "-1\t1\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "hidden is \"-1\"");
    REFUSED(c.tuned = FIRST "1\t2147483648\t1\t1\t1\trow\t1\t1", E_ARGUMENT, "inter is \"2147483648\"");
    REFUSED(c.tuned = FIRST "1\t1\t99999999999999999999\t1\t1\trow\t1\t1", E_ARGUMENT, "experts is \"9999");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1x\t1\trow\t1\t1", E_ARGUMENT, "topk is \"1x\"");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\t\t1\t1", E_ARGUMENT, "up_row is \"\"");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1,5\t1", E_ARGUMENT, "us is \"1,5\"; it must be a time, as 12.5");
    REFUSED(c.tuned = FIRST "1\t1\t1\t1\t1\trow\t1\t.\r\n", E_ARGUMENT, "built_in_us is \".\"");
    REFUSED(tuned_start(); tuned_mine(1, "row"); strcat(tuned, FIRST); c.tuned = tuned, E_ARGUMENT,
            "config.tuned, line 6 has 3 columns");                            /* line 5 is good */
    memset(tuned, 'x', 3000), tuned[3000] = 0;
    REFUSED(c.tuned = tuned, E_ARGUMENT, "line 1 has 1 columns");
    memset(tuned, '\t', 3000);
    REFUSED(c.tuned = tuned, E_ARGUMENT, "line 1 has 3001 columns");
    ACCEPTED(c.tuned = "");
    ACCEPTED(c.tuned = "# nothing\n\r\n");
    ACCEPTED(c.tuned = "device\tand whatever\n");
}

/* The thresholds: geometric middles, half below, twice above; rows that are not there leave the built-in rule. */
static void test_tuned_choices(void)
{
    const char *const up = cpu_row(MOEK_OP_UP);
    moek_config c = good();
    char text[BIG];
    moek_plan p = planned(&c);
    const size_t size = moek_workspace_size(&p);
    int i;
    CHECK(p.chosen.gemms == p.chosen.tiles && !p.chosen.choices && !p.note[0], "without a file");
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "choice    built-in rule, bounds measured on other CPUs\n"), "%s", text);
    c.cpu = MOEK_CPU_PLAIN;
    p = planned(&c);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "built-in rule, bounds measured on other CPUs\n"), "plain C: %s", text);
    c.cpu = MOEK_CPU_BEST;
    tuned_start();
    tuned_mine(256, up); tuned_mine(16, "moek_up_of_another_binary"); tuned_mine(1, "not_yet"); tuned_mine(1, up);
    c.tuned = tuned;
    p = planned(&c);
    memset(tuned, 'x', 500);                           /* the caller's again: the plan looks at it no more */
    CHECK(!p.config.tuned && p.chosen.choices == 3 && moek_workspace_size(&p) == size, "%d choices", p.chosen.choices);
    check_choice(&p, 0, 4, up); check_choice(&p, 1, 64, "the built-in rule"); check_choice(&p, 2, 512, up);
    moek_describe(&p, text, sizeof text);
    CHECK(has_text(text, "choice    measured") && has_text(text, "up to 64 tokens: the built-in rule") &&
          has_text(text, up) && has_text(text, "line 6: moek_up_of_another_binary is not compiled in"), "%s", text);
    check_text(describe, &p, "describe measured choices");
    tuned_start();
    tuned_mine(64, cpu_row(MOEK_OP_DOWN)); tuned_mine(128, up); tuned_mine(64, up);
    moek_explain(&c, text, sizeof text);
    CHECK(has_text(text, "tuned: line 5: moek_down_") && has_text(text, "is no up row"), "%s", text);
    check_text(explain, &c, "explain measured choices");
    p = planned(&c);
    CHECK(p.chosen.choices == 2, "%d choices", p.chosen.choices);
    check_choice(&p, 0, 31, "the built-in rule"); check_choice(&p, 1, 256, up);
    tuned_start();
    for (i = 0; i < 31; i++) tuned_mine(1 << i, i % 2 ? "a_row_whose_name_is_long_so_that_the_note_ends" : up);
    p = planned(&c);
    CHECK(p.chosen.choices == 31 && p.chosen.choice[30].tokens == INT_MAX, "%d choices", p.chosen.choices);
    tuned_start();
    for (i = 1; i < 100; i++) tuned_mine(3 * i, i % 2 ? up : "none");
    p = planned(&c);
    CHECK(p.chosen.choices == MOEK_MAX_CHOICES && has_text(p.note, "none is not compiled in"), "%d choices",
          p.chosen.choices);
    c.batch_invariant = 1;
    p = planned(&c);
    CHECK(!p.chosen.choices && has_text(p.note, "batch_invariant"), "%s", p.note);
}

/* Whose lines they are. */
static void test_tuned_lines(void)
{
    const char *const up = cpu_row(MOEK_OP_UP);
    moek_config c = good();
    moek_plan p;
    c.tuned = tuned;
    tuned_start();
    tuned_line("NVIDIA H200", QUANT, HIDDEN, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", FORMAT_TENSOR, HIDDEN, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN + 8, EXPERTS, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN, EXPERTS + 1, TOPK, 4, up);
    tuned_line("cpu", QUANT, HIDDEN, EXPERTS, TOPK + 2, 4, up);
    p = planned(&c);
    CHECK(!p.chosen.choices && has_text(p.note, "no line is for cpu (cpu), ") &&
          has_text(p.note, "8 experts, 2 slots"), "%s",
          p.note);
    c.shared_slots = 2; c.experts = EXPERTS - 2;
    p = planned(&c);
    CHECK(p.chosen.choices == 2 && !p.note[0], "shared slots count: %s", p.note);
    c.shared_slots = 0; c.experts = 4 * EXPERTS + 4; c.local_experts = EXPERTS + 1;       /* a quarter is here */
    p = planned(&c);
    CHECK(p.chosen.choices == 2, "local experts count: %s", p.note);
    check_choice(&p, 0, 4, "the built-in rule"); check_choice(&p, 1, 32, up);
}

/* What the choices do at run time; the pairs are made up. */
static void test_tuned_tile(void)
{
    moek_config c = good();
    moek_plan p = planned(&c);
    const int built_in = 0;
    p.chosen.gemms = 3; p.chosen.choices = 3; p.chosen.tiles = 1;
    p.chosen.up[1] = p.chosen.up[2] = p.chosen.up[0]; p.chosen.down[1] = p.chosen.down[2] = p.chosen.down[0];
    p.chosen.choice[0].tokens = 2; p.chosen.choice[0].gemms = 2;
    p.chosen.choice[1].tokens = 7; p.chosen.choice[1].gemms = -1;
    p.chosen.choice[2].tokens = 9; p.chosen.choice[2].gemms = 1;
    CHECK(moek_plan_tile(&p, 0) == 2 && moek_plan_tile(&p, 1) == 2 && moek_plan_tile(&p, 2) == 2, "the first");
    CHECK(moek_plan_tile(&p, 3) == built_in && moek_plan_tile(&p, 7) == built_in, "none");
    CHECK(moek_plan_tile(&p, 8) == 1 && moek_plan_tile(&p, 9) == 1, "the last");
    CHECK(moek_plan_tile(&p, 10) == moek_plan_tile(&p, INT_MAX), "beyond");
}
