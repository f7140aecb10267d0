/* bind.h -- a part of test_api.c, which includes it once: moek_plan_bind, alignment. */
static moek_weights good_weights(int quant)
{
    moek_weights w;
    memset(&w, 0, sizeof w);
    w.w_up = w.w_down = memory;
    if (scaled(quant)) w.w_up_scale = w.w_down_scale = (const float *)memory;
    if (moek_format_of(quant)->global_scale) w.w_up_global_scale = w.w_down_global_scale = (const float *)memory;
    if (format_x_second(moek_format_of(quant))) w.x_scale = w.h_scale = (const float *)memory;
    return w;
}
static moek_weights separate_weights(int quant)
{
    moek_weights w = good_weights(quant);
    w.w_gate = memory + 16;
    w.w_gate_scale = w.w_up_scale, w.w_gate_global_scale = w.w_up_global_scale;
    return w;
}
static void bind_refused(moek_plan *p, const moek_weights *w, const char *sentence, const char *change, int line)
{
    moek_weights fine = good_weights(p->config.quant);
    if (p->config.up_layout == MOEK_UP_SEPARATE) fine = separate_weights(p->config.quant);
    fine.expert_map = fine.replicas = fine.replica_count = (const int32_t *)memory;
    if (!p->config.max_replicas) fine.replicas = fine.replica_count = NULL;
    if (moek_format_of(p->config.quant)->static_x) fine.x_scale = fine.h_scale = (const float *)memory;
    check_(moek_plan_bind(p, &fine) == MOEK_OK && p->bound && !p->why[0], __FILE__, line, change,
           "the good weights are refused: %s", p->why);
    check_(moek_plan_bind(p, w) == MOEK_E_ARGUMENT, __FILE__, line, change, "accepted");
    check_(has_text(p->why, sentence), __FILE__, line, change, "says \"%s\", nothing of \"%s\"", p->why, sentence);
    check_(!p->bound, __FILE__, line, change, "bound, to what it was before");
}
/* configure: of the plan; change: of the weights. */
#define BIND_REFUSED(configure, change, sentence) do {                                       \
        moek_config c = good(); moek_plan p; moek_weights w;                                 \
        configure;                                                                           \
        if (!CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s", p.why)) break;                   \
        w = good_weights(c.quant);                                                           \
        change;                                                                              \
        bind_refused(&p, &w, sentence, #change, __LINE__);                                   \
    } while (0)
#define BESIDE(field) w.field = (const float *)(memory + 1)

/* moek_repack_up, _down: what is refused, of a plan for the CPU. */
static void test_repack(void)
{
    moek_config c = good();
    moek_plan p;
    memset(&p, 0, sizeof p);
    CHECK(moek_repack_up(NULL, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "no plan");
    CHECK(moek_repack_down(&p, memory, memory + 64, 1, 0, NULL) == MOEK_E_ARGUMENT, "a plan not initialized");
    c.exclude = MOEK_BACKENDS_GPU;
    if (moek_plan_init(&p, &c) != MOEK_OK) return;
    CHECK(moek_repack_up(&p, memory, memory + 64, 1, 0, (moek_stream)memory) == MOEK_E_ARGUMENT, "a stream on the CPU");
    CHECK(moek_repack_up(&p, NULL, memory, 1, 0, NULL) == MOEK_E_ARGUMENT, "from is NULL");
    CHECK(moek_repack_up(&p, memory, NULL, 1, 0, NULL) == MOEK_E_ARGUMENT, "to is NULL");
    CHECK(moek_repack_up(&p, memory, memory, 1, 0, NULL) == MOEK_E_ARGUMENT, "to is from");
    CHECK(moek_repack_down(&p, memory, memory + 8, 1, 0, NULL) == MOEK_E_ARGUMENT, "to is not aligned");
    CHECK(moek_repack_down(&p, memory, memory + 64, -1, 0, NULL) == MOEK_E_ARGUMENT, "-1 experts");
    c.weight_layout = MOEK_WEIGHTS_BLOCKS + 1;
    CHECK(moek_plan_init(&p, &c) == MOEK_E_ARGUMENT && has_text(p.why, "config.weight_layout is"), "%s", p.why);
}
/* Formats that have arrays and blocks: a plan of blocks repacks neither, for its weights are no arrays.  (No expert:
 * what is taken moves nothing.) */
static void test_repack_blocks(void)
{
    int quant;
    for (quant = 1; moek_format_of(quant); quant++) {
        const moek_format *const f = moek_format_of(quant);
        moek_config c = good();
        moek_plan p;
        moek_status status;
        if (!moek_block_of(f->file_type) || f->only_blocks) continue;
        c.quant = quant; c.dtype = 0; c.hidden = c.inter = 256; c.exclude = MOEK_BACKENDS_GPU;
        if ((status = moek_plan_init(&p, &c)) == MOEK_E_NO_KERNEL) continue;
        if (!CHECK(status == MOEK_OK, "%s: %s", f->name, p.why)) continue;
        CHECK(moek_repack_up(&p, NULL, NULL, 0, 0, NULL) == MOEK_OK, "%s: arrays, up", f->name);
        CHECK(moek_repack_down(&p, NULL, NULL, 0, 1, NULL) == MOEK_OK, "%s: arrays, down, back", f->name);
        CHECK(moek_repack_up_scale(&p, NULL, NULL, 0, 0, NULL) == MOEK_OK, "%s: scales", f->name);
        c.weight_layout = MOEK_WEIGHTS_BLOCKS;
        if (!CHECK(moek_plan_init(&p, &c) == MOEK_OK, "%s: %s", f->name, p.why)) continue;
        CHECK(moek_repack_up(&p, NULL, NULL, 0, 0, NULL) == MOEK_E_ARGUMENT, "%s: blocks, up", f->name);
        CHECK(moek_repack_down(&p, NULL, NULL, 0, 1, NULL) == MOEK_E_ARGUMENT, "%s: blocks, down, back", f->name);
        CHECK(moek_repack_up_scale(&p, NULL, NULL, 0, 0, NULL) == MOEK_E_ARGUMENT, "%s: blocks, scales", f->name);
    }
}

#define BESIDE_INT(field) w.field = (int32_t *)(memory + 1)
#define TABLE w.router_table = (const int32_t *)memory; w.router_table_rows = 9

static void test_bind(void)
{
    moek_config c = good();
    moek_weights w = good_weights(QUANT);
    moek_plan p;
    CHECK(moek_plan_bind(NULL, &w) == MOEK_E_ARGUMENT, "no plan");
    memset(&p, 0, sizeof p);
    CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, "not initialized"), "%s", p.why);
    moek_plan_init(&p, &c);
    CHECK(moek_plan_bind(&p, NULL) == MOEK_E_ARGUMENT && has_text(p.why, "weights is NULL"), "%s", p.why);
    CHECK(moek_plan_bind(&p, &w) == MOEK_OK && p.bound && !p.why[0], "%s", p.why);
    CHECK(moek_plan_bind(&p, &p.weights) == MOEK_OK && p.bound, "to itself: %s", p.why);
    BIND_REFUSED((void)0, w.w_up = NULL, "weights.w_up is NULL");
    BIND_REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER; c.topk = 2, w.router_bias = (const float *)memory,
                 "MOEK_ROUTE_SPARSEMIXER has neither");
    BIND_REFUSED((void)0, w.w_down = NULL, "weights.w_down is NULL");
    BIND_REFUSED((void)0, w.w_up = memory + 1, "weights.w_up is not aligned to 16");
    BIND_REFUSED((void)0, w.w_down = memory + 8, "weights.w_down is not aligned to 16");
    BIND_REFUSED((void)0, w.w_up_bias = memory + 1, "weights.w_up_bias is not aligned");
    BIND_REFUSED((void)0, w.w_down_bias = memory + 1, "weights.w_down_bias is not aligned");
    BIND_REFUSED((void)0, BESIDE(router_bias), "weights.router_bias is not aligned to 4");
    BIND_REFUSED((void)0, BESIDE(router_expert_scale), "weights.router_expert_scale is not aligned");
    BIND_REFUSED((void)0, BESIDE_INT(router_table), "weights.router_table is not aligned");
    BIND_REFUSED((void)0, w.router_table = (const int32_t *)memory, "weights.router_table_rows is 0");
    BIND_REFUSED((void)0, TABLE; w.router_table_rows = -3, "weights.router_table_rows is -3");
    BIND_REFUSED((void)0, w.router_table_rows = 9, "weights.router_table_rows is 9, but router_table is NULL");
    BIND_REFUSED((void)0, TABLE; w.router_bias = (const float *)memory, "router_bias is given beside router_table");
    BIND_REFUSED(c.groups = 4; c.topk_groups = 2, TABLE, "config.groups is 4");
    BIND_REFUSED(c.routing = MOEK_ROUTE_SPARSEMIXER, TABLE, "MOEK_ROUTE_SPARSEMIXER has neither");
    BIND_REFUSED((void)0, w.replica_count = (const int32_t *)memory, "weights.replica_count is given, but replicas");
    BIND_REFUSED((void)0, w.expert_load = (int64_t *)(memory + 4), "weights.expert_load is not aligned to 8");
    BIND_REFUSED((void)0, BESIDE_INT(expert_map), "weights.expert_map is not aligned");
    BIND_REFUSED(c.local_experts = 4, (void)0, "weights.expert_map is NULL");
    BIND_REFUSED((void)0, w.replicas = w.replica_count = (const int32_t *)memory, "config.max_replicas is 0");
    BIND_REFUSED(c.max_replicas = 2, w.replicas = (const int32_t *)memory, "weights.replica_count is NULL");
    BIND_REFUSED(c.max_replicas = 2; c.physical_experts = 6, (void)0, "weights.replicas is NULL");
}

static void test_bind_apart(void)
{
    const int quant = good().quant;
#define APART_REFUSED(change, sentence) \
    BIND_REFUSED(c.up_layout = MOEK_UP_SEPARATE, w = separate_weights(quant); change, sentence)
    BIND_REFUSED((void)0, w.w_gate = memory + 16, "w_gate is given, but config.up_layout is not MOEK_UP_SEPARATE");
    BIND_REFUSED((void)0, w.w_gate_scale = (const float *)memory, "w_gate_scale is given, but config.up_layout");
    BIND_REFUSED((void)0, w.w_gate_bias = memory, "w_gate_bias is given, but config.up_layout");
    APART_REFUSED(w.w_gate = NULL, "weights.w_gate is NULL");
    APART_REFUSED(w.w_gate = w.w_up, "the same array");
    APART_REFUSED(w.w_gate = memory + 8, "weights.w_gate is not aligned to 16");
    APART_REFUSED(w.w_gate_bias = memory, "weights.w_up_bias is NULL and w_gate_bias is given");
    APART_REFUSED(w.w_up_bias = memory, "weights.w_gate_bias is NULL and w_up_bias is given");
    APART_REFUSED(w.w_up_bias = memory; w.w_gate_bias = memory + 8, "weights.w_gate_bias is not aligned to 16");
    if (scaled(quant)) APART_REFUSED(w.w_gate_scale = NULL, "weights.w_gate_scale is NULL and w_up_scale is given");
    else APART_REFUSED(w.w_gate_scale = (const float *)memory, "weights.w_up_scale is NULL and w_gate_scale is given");
    if (scaled(quant)) APART_REFUSED(BESIDE(w_gate_scale), "weights.w_gate_scale is not aligned to 4");
#undef APART_REFUSED
}

/* Second scales and zero points, of a format that has them. */
static void test_bind_more(const moek_format *f)
{
    const int quant = f->number;
#define APART c.quant = quant; c.up_layout = MOEK_UP_SEPARATE
    if (f->global_scale) {
        BIND_REFUSED(c.quant = quant, w.w_up_global_scale = NULL, "weights.w_up_global_scale is NULL");
        BIND_REFUSED(c.quant = quant, w.w_down_global_scale = NULL, "weights.w_down_global_scale is NULL");
        BIND_REFUSED(c.quant = quant, BESIDE(w_up_global_scale), "weights.w_up_global_scale is not aligned to 4");
        BIND_REFUSED(c.quant = quant, w.w_gate_global_scale = w.w_up_global_scale, "has gate's, too");
        BIND_REFUSED(APART, w = separate_weights(quant); w.w_gate_global_scale = NULL,
                     "weights.w_gate_global_scale is NULL");
    }
    if (format_x_second(f)) {
        BIND_REFUSED(c.quant = quant, w.x_scale = NULL, "weights.x_scale is NULL");
        BIND_REFUSED(c.quant = quant, w.h_scale = NULL, "weights.h_scale is NULL");
    }
    if (f->zero) {
        BIND_REFUSED(c.quant = quant, w.w_up_zero = memory, "w_up_zero and w_down_zero go together");
        BIND_REFUSED(c.quant = quant, w.w_down_zero = memory, "w_up_zero and w_down_zero go together");
        BIND_REFUSED(c.quant = quant, w.w_up_zero = w.w_down_zero = w.w_gate_zero = memory, "and only there");
        BIND_REFUSED(APART, w = separate_weights(quant); w.w_up_zero = w.w_down_zero = memory, "w_gate_zero with them");
    }
#undef APART
}
/* config.block: one of the format's, where there is a choice. */
static void test_blocks(void)
{
    int i, j;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        moek_config c = good();
        moek_plan p;
        c.quant = f->number;
        if (moek_plan_init(&p, &c) != MOEK_OK) continue;
        if (!f->blocks)
            REFUSED(c.quant = f->number; c.block = 64, E_ARGUMENT, "says itself how many columns have a scale");
        else REFUSED(c.quant = f->number; c.block = 65, E_ARGUMENT, "config.block is 65; of");
        for (j = 0; j < f->blocks; j++) {
            c.block = f->block[j];
            CHECK(moek_plan_init(&p, &c) == MOEK_OK && p.chosen.up[0]->block == c.block &&
                  p.chosen.down[0]->block == c.block,
                  "%s, block %d: %s", f->name, c.block, p.why);
        }
    }
}

/* ---- alignment --------------------------------------------------------------------------------------------------- */

static const char *const weights_addresses[] = {
    "w_up", "w_down", "w_gate", "w_up_bias", "w_down_bias", "w_gate_bias", "w_up_scale", "w_down_scale", "w_gate_scale",
    "w_up_zero", "w_down_zero", "w_gate_zero", "w_up_global_scale", "w_down_global_scale", "w_gate_global_scale",
    "x_scale", "h_scale", "router_bias", "router_expert_scale", "router_table", "replicas", "replica_count",
    "expert_map", "expert_load"
};
static const char *const args_addresses[] = {
    "workspace", "state", "x", "y", "shared_y", "router_logits", "topk_ids", "topk_ids64", "topk_weights", "token_ids",
    "shared_weights", "is_padding"
};
static const char *field_of(const char *of, const char *name)
{
    static char field[64];
    snprintf(field, sizeof field, "%s.%s", of, name);
    return field;
}
/* A pointer field of a struct. */
static const void *address_of(const void *fields, const char *field)
{
    const void *address;
    memcpy(&address, (const char *)fields + moek_offset(field), sizeof address);
    return address;
}
static void set_address(void *fields, const char *field, const void *address)
{
    memcpy((char *)fields + moek_offset(field), &address, sizeof address);
}
/* As if planned for a format, an architecture and a layout. */
static moek_plan plan_as(const moek_format *f, int block, int arch, int layout)
{
    moek_config c = good();
    moek_plan p = planned(&c);
    p.arch = arch;
    p.config.quant = f->number; p.config.block = block; p.config.weight_layout = layout;
    p.config.up_layout = MOEK_UP_SEPARATE; p.config.max_replicas = 1;
    return p;
}
/* Activations in s8 by groups of columns are for CPUs. */
static int cpu_only(const moek_format *f) { return f->x == MOEK_ELEMENT_S8 && f->x_scale.columns; }
/* All that the format may have, so that one address at a time can be wrong; but a table or a bias of the router. */
static moek_weights full_weights(const moek_format *f, int table)
{
    moek_weights w = separate_weights(f->number);
    w.w_up_bias = w.w_down_bias = w.w_gate_bias = memory;
    if (f->zero) w.w_up_zero = w.w_down_zero = w.w_gate_zero = memory;
    if (f->static_x) w.x_scale = w.h_scale = (const float *)memory;
    if (table) w.router_table = (const int32_t *)memory, w.router_table_rows = 1;
    else w.router_bias = (const float *)memory;
    w.router_expert_scale = (const float *)memory;
    w.replicas = w.replica_count = w.expert_map = (const int32_t *)memory;
    w.expert_load = (int64_t *)memory;
    return w;
}
/* Bind accepts each address that moek_alignment allows, and refuses others by name. */
static int bind_by_alignment(const moek_format *f, int block, int arch, int layout)
{
    const size_t n = sizeof weights_addresses / sizeof *weights_addresses;
    moek_plan p = plan_as(f, block, arch, layout);
    int wrong = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        const char *const name = weights_addresses[i], *const field = field_of("weights", name);
        moek_weights w = full_weights(f, !strcmp(name, "router_table"));
        const size_t bytes = moek_alignment(&p, field);
        char why[128];
        CHECK(bytes && bytes <= 16 && !(bytes & (bytes - 1)), "%s, %s: %d bytes", f->name, field, (int)bytes);
        if (!address_of(&w, field)) continue;          /* not of this format */
        set_address(&w, field, memory + 64 + bytes);
        CHECK(moek_plan_bind(&p, &w) == MOEK_OK, "%s, arch %d, layout %d, %s: %s", f->name, arch, layout, field, p.why);
        if (bytes == 1) continue;
        snprintf(why, sizeof why, "%s is not aligned to %d bytes", field, (int)bytes);
        set_address(&w, field, memory + 64 + bytes / 2);
        CHECK(moek_plan_bind(&p, &w) == MOEK_E_ARGUMENT && has_text(p.why, why), "%s, arch %d, layout %d: %s", f->name,
              arch, layout, p.why);
        wrong++;
    }
    return wrong;
}
/* docs/formats.md has the table, line by line. */
static void test_alignment_page(void)
{
    FILE *const file = fopen("docs/formats.md", "rb");
    char *page, line[128];
    size_t n;
    int i;
    if (!file) { check_skipped++; return; }            /* started elsewhere */
    page = (char *)mem_alloc(0, BIG);
    n = fread(page, 1, BIG - 1, file);
    page[n] = 0;
    fclose(file);
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int block = format_block(f, 0);
        const moek_plan cpu = plan_as(f, block, 0, 0), gpu = plan_as(f, block, 80, 0), tiled = plan_as(f, block, 90, 1);
        if (!format_scaled(f)) continue;
        n = (size_t)snprintf(line, sizeof line, "| `%s` | %d | %d | %d |", f->name,
                             (int)moek_alignment(&cpu, "weights.w_up_scale"),
                             (int)moek_alignment(&gpu, "weights.w_up_scale"),
                             (int)moek_alignment(&tiled, "weights.w_up_scale"));
        if (cpu_only(f))
            snprintf(line, sizeof line, "| `%s` | %d | - | - |%s", f->name,
                     (int)moek_alignment(&cpu, "weights.w_up_scale"), f->zero ? " zero points 1 |" : " |");
        else if (f->zero) snprintf(line + n, sizeof line - n, " zero points %d, tiled %d |",
                              (int)moek_alignment(&gpu, "weights.w_up_zero"),
                              (int)moek_alignment(&tiled, "weights.w_up_zero"));
        else snprintf(line + n, sizeof line - n, " |");
        CHECK(has_text(page, line), "docs/formats.md, Alignment, has no line %s", line);
    }
    mem_free(0, page);
}
static void test_alignment(void)
{
    static const char *const nothing[] = {
        "", "w_up", "weights.", "weights.w_up ", "weights.nothing", "args", "args.why", "config.hidden", "args.w_up",
        "weightsxw_up"
    };
    const moek_plan p = plan_as(moek_format_of(FORMAT_BLOCKED), 0, 80, 0);
    moek_plan none;
    int i, j, arch, wrong = 0;
    memset(&none, 0, sizeof none);
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        for (j = 0; j < (f->blocks ? f->blocks : 1); j++)
            for (arch = 0; arch <= 160; arch += 80) wrong += bind_by_alignment(f, f->block[j], arch, arch > 80);
    }
    CHECK(wrong > 500, "only %d addresses were refused", wrong);
    for (i = 0; i < (int)(sizeof nothing / sizeof *nothing); i++)
        CHECK(!moek_alignment(&p, nothing[i]), "\"%s\" has an alignment", nothing[i]);
    CHECK(!moek_alignment(NULL, "weights.w_up") && !moek_alignment(&p, NULL) && !moek_alignment(&none, "weights.w_up"),
          "no plan, or no field");
    /* What kernels load at once, and not what a scale is: two e4m3 of 16 columns; 16 bytes of tiles. */
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const moek_plan gpu = plan_as(f, format_block(f, 0), 80, 0), tiled = plan_as(f, format_block(f, 0), 90, 1);
        const int pair = f->w_scale.columns == 16;
        if (!format_scaled(f) || cpu_only(f)) continue;
        CHECK(moek_alignment(&gpu, "weights.w_up_scale") ==
              (size_t)(pair ? 2 : 1) * moek_scale_bytes(&f->w_scale, 1, 1), "%s", f->name);
        CHECK((moek_alignment(&tiled, "weights.w_down_scale") == 16) == (f->w_bits == 4), "%s, tiled", f->name);
    }
    for (i = 0; i < FORMATS; i++) {                    /* tensors and experts of a file begin anywhere */
        const moek_format *const f = format_at(i);
        const moek_plan cpu = plan_as(f, format_block(f, 0), 0, 0), gpu = plan_as(f, format_block(f, 0), 80, 0);
        moek_plan mixed = plan_as(format_at(0), 0, 0, 0);              /* down alone is of this format */
        mixed.config.down_quant = f->number;
        for (j = 0; j < 3; j++) {
            const char *const field = field_of("weights", weights_addresses[j]);
            const int down = !strcmp(weights_addresses[j], "w_down");
            CHECK(moek_alignment(&cpu, field) == (f->only_blocks ? 1 : 16) && moek_alignment(&gpu, field) == 16 &&
                  moek_alignment(&mixed, field) == (f->only_blocks && down ? 1 : 16), "%s, %s", f->name, field);
        }
    }
    test_alignment_page();
}

/* What a format needs, and what it must not be given; for the formats that are compiled in. */
static void test_bind_formats(void)
{
    int i;
    moek_config c = good();
    moek_plan p;
#define HAVE(number) (c.quant = (number), moek_plan_init(&p, &c) == MOEK_OK)
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int number = f->number;
        if (!HAVE(number)) continue;
        if (format_scaled(f)) {
            BIND_REFUSED(c.quant = number, w.w_up_scale = NULL, "weights.w_up_scale is NULL");
            BIND_REFUSED(c.quant = number, w.w_down_scale = NULL, "weights.w_down_scale is NULL");
        } else {
            BIND_REFUSED(c.quant = number, w.w_up_scale = (const float *)memory,
                         of_format("but config.quant is %s", number));
            BIND_REFUSED(c.quant = number, w.w_down_scale = (const float *)memory, "which has none");
        }
        if (moek_scale_bytes(&f->w_scale, 1, 1) > 1) {
            BIND_REFUSED(c.quant = number, BESIDE(w_up_scale), "weights.w_up_scale is not aligned to");
            BIND_REFUSED(c.quant = number, BESIDE(w_down_scale), "weights.w_down_scale is not aligned to");
        }
        test_bind_more(f);
        if (!f->global_scale) {
            BIND_REFUSED(c.quant = number, w.w_up_global_scale = (const float *)memory, "which has no global scale");
            BIND_REFUSED(c.quant = number, w.w_down_global_scale = (const float *)memory, "which has no global scale");
            BIND_REFUSED(c.quant = number, w.w_gate_global_scale = (const float *)memory, "which has no global scale");
        }
        if (!f->zero) {
            BIND_REFUSED(c.quant = number, w.w_up_zero = memory, "which has no zero points");
            BIND_REFUSED(c.quant = number, w.w_down_zero = memory, "which has no zero points");
            BIND_REFUSED(c.quant = number, w.w_gate_zero = memory, "which has no zero points");
        }
        if (f->static_x) continue;
        BIND_REFUSED(c.quant = number, w.x_scale = (const float *)memory, of_format("not %s", number));
        BIND_REFUSED(c.quant = number, w.h_scale = (const float *)memory, of_format("not %s", number));
    }
    if (!HAVE(FORMAT_TENSOR)) return;
    BIND_REFUSED(c.quant = FORMAT_TENSOR, BESIDE(x_scale), "weights.x_scale is not aligned");
    BIND_REFUSED(c.quant = FORMAT_TENSOR, BESIDE(h_scale), "weights.h_scale is not aligned");
    BIND_REFUSED(c.quant = FORMAT_TENSOR; c.batch_invariant = 1, w.x_scale = (const float *)memory, "batch invariance");
}
