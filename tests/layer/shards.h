/* shards.h -- a part of test_layer.c, which includes it once: shards of a layer; long, empty and chunked runs. */
/* A layer cut in shards as tensor parallelism cuts them, some of which begin inside a block of scales: what they give
 * adds up to what the whole gives.  Scales of the whole are by blocks of its own; of a shard they are the blocks that
 * it has a part of, and of w_down those from the group of h on in which it begins: NaN where all columns of a scale are
 * another shard's. */
typedef struct shard_of { const layer *whole; layer *l; int first, all; } shard_of;
/* Rows of w, or columns of w or of h, that share a scale, the most of them: inter_offset is below it. */
static int shard_shared(const moek_format *f, int inter)
{
    const int most = f->w_scale.rows > f->w_scale.columns ? f->w_scale.rows : f->w_scale.columns;
    const int shared = most > f->x_scale.columns ? most : f->x_scale.columns;
    return shared > 1 ? shared : inter;
}
/* Groups of so many columns ahead of the first scale of a row of w_down. */
static size_t shard_skipped(const shard_of *s, int columns)
{
    return columns ? (size_t)((s->first - s->l->config.inter_offset) / columns) : 0;
}
/* Blocks of so many that elements first .. first + n - 1 have a part of; 0: there is one of all. */
static size_t shard_blocks(int first, int n, int block)
{
    return block ? (size_t)((first + n + block - 1) / block - first / block) : 1;
}
static size_t shard_row(const shard_of *s, int columns)               /* of w */
{
    return moek_weight_bytes(s->l->format, 0, (size_t)columns);
}
static const void *shard_rows(const shard_of *s, const void *from, int first_of_expert, int rows_of_expert)
{
    const size_t row = shard_row(s, s->l->config.hidden), bytes = (size_t)s->l->config.inter * row;
    char *const to = (char *)layer_array_new(s->l, bytes * EXPERTS, LAYER_IN);
    int e;
    for (e = 0; e < EXPERTS; e++)
        memcpy(to + e * bytes, (const char *)from + ((size_t)e * rows_of_expert + first_of_expert + s->first) * row,
               bytes);
    return to;
}
/* Rows of scales, `row` bytes each, of its gate or up, from `per_expert` of them an expert to `to_each`. */
static void shard_scales(const shard_of *s, char *to, const char *from, size_t to_each, size_t per_expert, size_t row)
{
    const int share = s->l->format->w_scale.rows;
    const size_t first = (size_t)(s->first / share), blocks = shard_blocks(s->first, s->l->config.inter, share);
    int e;
    for (e = 0; e < EXPERTS; e++)
        memcpy(to + e * to_each * row, from + (e * per_expert + first) * row, blocks * row);
}
/* What the format has on top, of a layer whose gate comes first: global scales are the whole layer's. */
static const float *shard_second(const shard_of *s, const float *from, int first, int step, int halves)
{
    float *const to = from ? (float *)layer_array_new(s->l, 4 * (size_t)EXPERTS * halves, LAYER_IN) : NULL;
    int i;
    for (i = 0; to && i < EXPERTS * halves; i++) to[i] = from[i / halves * step + (first + i % halves) % step];
    return to;
}
/* Static scales of x and of h are the whole layer's. */
static const float *shard_static(const shard_of *s, const float *from)
{
    float *const to = (float *)layer_array_new(s->l, 4, LAYER_IN);
    *to = *from;
    return to;
}
/* Rows of zero points of gate, of up or of what is not gated: from `first` of so many rows of an expert of the whole to
 * `at` of so many of its own. */
static void shard_zeros(const shard_of *s, void *to, int at, int rows, int first, int whole_rows)
{
    const size_t row = layer_zero_row(s->l->format, (size_t)s->l->config.hidden);
    int e;
    for (e = 0; to && e < EXPERTS; e++)
        memcpy((char *)to + ((size_t)e * rows + at) * row, (const char *)s->whole->w.w_up_zero +
               ((size_t)e * whole_rows + first + s->first) * row, (size_t)s->l->config.inter * row);
}
static void shard_more(const shard_of *s)
{
    moek_weights *const w = &s->l->w;
    const float *const up = s->whole->w.w_up_global_scale;
    const moek_config *const c = &s->l->config;
    const moek_format *const f = s->l->format;
    const int gated = ref_gated(c->act), swapped = c->up_layout == MOEK_UP_SWAPPED, n = c->inter;
    const size_t skipped = shard_skipped(s, f->w_scale.columns);
    const size_t row = layer_zero_row(f, (size_t)(c->inter + c->inter_offset)), all = layer_zero_row(f, (size_t)s->all);
    const ref_number *const number = ref_element(f->w, c->dtype);
    uint8_t *const down = (uint8_t *)(size_t)w->w_down_zero;
    size_t r, g;
    w->w_down_global_scale = shard_second(s, s->whole->w.w_down_global_scale, 0, 1, 1);
    if (s->whole->w.x_scale) w->x_scale = shard_static(s, s->whole->w.x_scale);
    if (s->whole->w.h_scale) w->h_scale = shard_static(s, s->whole->w.h_scale);
    if (c->up_layout == MOEK_UP_SEPARATE) {
        w->w_gate_global_scale = shard_second(s, up, 0, 2, 1);
        w->w_up_global_scale = shard_second(s, up, 1, 2, 1);
        shard_zeros(s, (void *)(size_t)w->w_gate_zero, 0, n, 0, 2 * s->all);
        shard_zeros(s, (void *)(size_t)w->w_up_zero, 0, n, s->all, 2 * s->all);
    } else {
        w->w_up_global_scale = shard_second(s, up, swapped, 1 + gated, 1 + gated);
        shard_zeros(s, (void *)(size_t)w->w_up_zero, swapped ? n : 0, n * (1 + gated), 0, s->all * (1 + gated));
        if (gated)
            shard_zeros(s, (void *)(size_t)w->w_up_zero, swapped ? 0 : n, 2 * n, s->all, 2 * s->all);
    }
    for (r = 0; down && r < (size_t)EXPERTS * c->hidden; r++)
        for (g = 0; g < moek_scale_count(&f->w_scale, 1, (size_t)(c->inter + c->inter_offset)); g++)
            ref_put_code(number, down + r * row, g,
                         ref_code(number, (const char *)s->whole->w.w_down_zero + r * all, g + skipped));
}
static void shard_down(const shard_of *s)
{
    const moek_config *c = &s->l->config;
    const moek_scale_shape *const shape = &s->l->format->w_scale;
    const moek_weights *const from = &s->whole->w;
    const ref_number *const type = ref_scale_type(shape->type, c->dtype);
    const size_t one = moek_scale_bytes(shape, 1, 1), rows = EXPERTS * shard_blocks(0, c->hidden, shape->rows);
    const size_t all = shard_blocks(0, s->all, shape->columns);
    const size_t blocks = shard_blocks(0, c->inter_offset + c->inter, shape->columns);
    const size_t row = shard_row(s, c->inter), skipped = shard_row(s, s->first);
    char *const w = (char *)layer_array_new(s->l, (size_t)EXPERTS * c->hidden * row, LAYER_IN);
    char *const scale = (char *)layer_array_new(s->l, rows * blocks * one, LAYER_IN);
    size_t r, g;
    for (r = 0; r < (size_t)EXPERTS * c->hidden; r++)
        memcpy(w + r * row, (const char *)from->w_down + r * shard_row(s, s->all) + skipped, row);
    for (r = 0; r < rows; r++) {
        memcpy(scale + r * blocks * one, (const char *)from->w_down_scale +
               (r * all + shard_skipped(s, shape->columns)) * one, blocks * one);
        for (g = 0; (g + 1) * (size_t)shape->columns <= (size_t)c->inter_offset && shape->columns; g++)
            ref_put(type, scale, r * blocks + g, NAN);
    }
    s->l->w.w_down = w, s->l->w.w_down_scale = (const float *)scale;
}
static void shard_weights(shard_of *s)
{
    const moek_config *c = &s->l->config;
    const moek_scale_shape *const shape = &s->l->format->w_scale;
    const moek_weights *const from = &s->whole->w;
    const char *const scales = (const char *)from->w_up_scale;
    const size_t gk = moek_scale_bytes(shape, 1, (size_t)c->hidden), all = shard_blocks(0, s->all, shape->rows);
    const size_t blocks = shard_blocks(s->first, c->inter, shape->rows), row = shard_row(s, c->hidden);
    const int apart = c->up_layout == MOEK_UP_SEPARATE, swapped = c->up_layout == MOEK_UP_SWAPPED;
    const int gated = ref_gated(c->act), halves = gated && !apart ? 2 : 1;
    char *scale = (char *)layer_array_new(s->l, EXPERTS * blocks * halves * gk, LAYER_IN);
    size_t e;
    int i;
    s->l->w.w_up_scale = (const float *)scale;
    if (apart) {
        s->l->w.w_gate = shard_rows(s, from->w_up, 0, 2 * s->all);
        s->l->w.w_up = shard_rows(s, from->w_up, s->all, 2 * s->all);
        shard_scales(s, scale, scales + all * gk, blocks, 2 * all, gk);
        scale = (char *)layer_array_new(s->l, EXPERTS * blocks * gk, LAYER_IN);
        s->l->w.w_gate_scale = (const float *)scale;
        shard_scales(s, scale, scales, blocks, 2 * all, gk);
    } else {
        const size_t half = (size_t)c->inter * row;
        char *const up = (char *)layer_array_new(s->l, EXPERTS * halves * half, LAYER_IN);
        s->l->w.w_up = up;
        for (i = 0; i < halves; i++) {
            const int of = swapped ? 1 - i : i;        /* of the whole, which has gate first */
            for (e = 0; e < EXPERTS; e++)
                memcpy(up + (e * halves + i) * half, (const char *)from->w_up +
                       ((e * halves + of) * (size_t)s->all + s->first) * row, half);
            shard_scales(s, scale + i * blocks * gk, scales + of * all * gk, halves * blocks, halves * all, gk);
        }
    }
    shard_down(s);
    shard_more(s);
}
static void shards_case(const moek_format *f, int shards, int inter, int act, int layout, int format, int tokens)
{
    moek_config c = config_of(f->number), part;
    const int block = shard_shared(format_with(f, c.block), inter);
    const ref_number *const x = ref_element(f->x, MOEK_DTYPE_BF16);
    double *want, *sum, square = 0, error = 0;
    layer whole, l;
    size_t n, i;
    int shard, fine = 1;
    c.inter = shards * inter; c.act = act; c.format = format; c.max_tokens = tokens;
    c.up_scales = format_rows_share(f) ? MOEK_UP_SCALES_SEPARATE : 0;
    layer_new(&whole, &c, LAYER_ZERO, tokens);
    snprintf(whole.what, sizeof whole.what, "%s, the whole of %d shards of %d, act %d, layout %d, format %d", f->name,
             shards, inter, act, layout, format);
    if (layer_plan(&whole) && layer_run(&whole, moek_run)) {
        n = layer_y_bytes(&whole) / 2;
        want = layer_ref(&whole);
        sum = (double *)ref_alloc(n * sizeof *sum);
        for (shard = 0; shard < shards; shard++) {
            shard_of s;
            part = c;
            part.inter = inter; part.inter_offset = shard * inter % block; part.up_layout = layout;
            layer_new(&l, &part, LAYER_ZERO, tokens);
            s.whole = &whole, s.l = &l, s.first = shard * inter, s.all = c.inter;
            shard_weights(&s);
            memcpy((void *)(uintptr_t)l.args.x, whole.args.x, 2 * n);
            memcpy(l.args.topk_ids, whole.args.topk_ids, 4 * (size_t)tokens * TOPK);
            memcpy(l.args.topk_weights, whole.args.topk_weights, 4 * (size_t)tokens * TOPK);
            fine &= layer_check(&l, "a shard");
            if (fine) {
                const void *y = layer_got(&l, l.args.y);
                CHECK(!part.inter_offset || (!moek_plan_layer(&l.plan, tokens) && !moek_plan_up_down(&l.plan, tokens)),
                      "%s: a row that quantizes h takes it", l.what);
                CHECK(l.plan.backend == backend, "%s: backend %d", l.what, l.plan.backend);
                for (i = 0; i < n; i++) sum[i] += ref_get_t(y, i, l.plan.config.dtype);
            }
            layer_free(&l);
        }
        for (i = 0; i < n; i++) square += want[i] * want[i], error += (sum[i] - want[i]) * (sum[i] - want[i]);
        /* A block of h in the whole and its part in a shard may have different largest elements, hence different
         * scales. Both round h then: e4m3 by a relative rms of 0.026 each, 0.037 together. */
        if (fine)
            CHECK(sqrt(error / square) < (x->kind == REF_FLOAT && x->bits < 4 ? 0.12 : 0.04),
                  "%s: the shards do not add up: %.2e", whole.what, sqrt(error / square));
        free(want), free(sum);
    }
    layer_free(&whole);
}
static void shards_of(const moek_format *f)
{
    static const int layouts[] = { MOEK_UP_GATE_UP, MOEK_UP_SEPARATE, MOEK_UP_SWAPPED };
    const int g = format_granule(f, layer_arch);
    moek_config c = config_of(f->number);
    moek_plan plan;
    int i;
    for (i = quick_set ? f->number % 3 : 0; i < 3; i += quick_set ? 3 : 1) {
        if (!quick_set || quick_cases++ % 2 == 0) shards_case(f, 2, 192, MOEK_SILU, layouts[i], i % 2, TOKENS);
        if (layer_arch < 90 || g < 64) shards_case(f, 3, (79 / g + 1) * g, MOEK_SILU, layouts[i], i % 2, TOKENS);
        if (!layer_arch) shards_case(f, 4, 35 + (f->granule > 1), MOEK_GELU, layouts[i], i % 2, TOKENS);
    }
    shards_case(f, 2, 64, MOEK_RELU2_NO_MUL, 0, 0, TOKENS);
    if (!SMALL && !quick_set) shards_case(f, 2, 192, MOEK_SILU, MOEK_UP_GATE_UP, 0, layer_arch ? 1500 : 100);
    for (i = 0; i < f->blocks && !c.block; i++) c.block = f->block[i];   /* (scales of whole rows have no groups) */
    c.inter = g + g / 2;
    if (layer_arch && g > 1)
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "shard") &&
              strstr(plan.why, "cut inter in multiples of"), "%s", plan.why);
    c.inter = g; c.hidden += g / 2; c.inter_offset = g / 2; c.up_scales = MOEK_UP_SCALES_SEPARATE;
    if (layer_arch && format_rows_share(f))
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "; or, of a shard"), "%s", plan.why);
    c.hidden -= g / 2;
    c.inter = 80; c.inter_offset = 80; c.up_scales = MOEK_UP_SCALES_SEPARATE;
    if (layer_arch == 90 && format_rows_share(f))
        CHECK(moek_plan_init(&plan, &c) == MOEK_E_NO_KERNEL && strstr(plan.why, "multiple of 64"), "%s", plan.why);
}
static void test_shards(void)
{
    FOR_EACH_FORMAT(f) if (f->w_scale.columns || f->blocks) shards_of(f);
}

/* How far apart they may be, and what else goes with them. */
static void apart_refused(void)
{
    const uint64_t base = (uint64_t)1 << 45;
    moek_config c = config_of(FORMAT_PLAIN);
    moek_plan plan;
    moek_weights w;
    if (sizeof(void *) < 8) return;                    /* nothing is so far apart there */
    memset(&w, 0, sizeof w);
    c.up_layout = MOEK_UP_SEPARATE;
    w.w_up = w.w_down = (const void *)(uintptr_t)base;
    w.w_gate = (const void *)(uintptr_t)(base + ((uint64_t)1 << 40));
    if (!CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s", plan.why)) return;
    CHECK(moek_plan_bind(&plan, &w) == (layer_arch == 90 ? MOEK_E_ARGUMENT : MOEK_OK), "2^40 bytes apart: %s",
          plan.why);
    CHECK(layer_arch != 90 || strstr(plan.why, "2^40 bytes apart"), "2^40 bytes apart: %s", plan.why);
    w.w_up = (const void *)(uintptr_t)(base + ((uint64_t)1 << 41) - 16);
    CHECK(moek_plan_bind(&plan, &w) == MOEK_OK, "less than 2^40 bytes apart: %s", plan.why);
}
static void test_apart(void)
{
    FOR_EACH_FORMAT(f) {
        int turn;
        for (turn = 0; turn < 12; turn++) {
            SKIP_IF_SMALL((turn + 2 * q_) % 6 > (layer_arch == 90) || (layer_arch < 90 && turn % 6 > 3));
            SKIP_IF_SMALL(quick_set && turn >= 6);
            SKIP_IF_QUICK(turn, SMALL ? 2 : 4);
            apart_case(f->number, turn);
        }
    }
    apart_refused();
}

/* Rows of sm90 find rows of x by 32 bits; and no row of a plan for so much h is one that does so with h. */
static void test_large(void)
{
    moek_config c = config_of(FORMAT_PLAIN);
    moek_plan plan;
    if (layer_arch != 90) return;
    c.hidden = 1 << 16; c.max_tokens = 1 << 19;
    CHECK(moek_plan_init(&plan, &c) == MOEK_E_ARGUMENT && strstr(plan.why, "64 GiB or more: set chunk_tokens"),
          "x of 64 GiB: %s", plan.why);
    c.chunk_tokens = (1 << 19) - 1;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "x of less than 64 GiB: %s", plan.why);
    c = config_of(FORMAT_PLAIN);
    c.inter = 1 << 21; c.hidden = 4096; c.experts = 64; c.topk = 8; c.max_tokens = 1024;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "h of 64 GiB: %s", plan.why);
    CHECK(moek_plan_up_down(&plan, 512) && !moek_plan_up_down(&plan, 1024), "up_down rows, with h of 64 GiB");
}

/* Without batch_invariant: chunks give the same bits on GPUs while tiles are the same, which such few tokens see to. */
static void test_chunks(void)
{
    FOR_EACH_FORMAT(f) {
        moek_config c = config_of(f->number);
        uint16_t *y;
        layer l;
        SKIP_IF_SMALL(f->number != FORMAT_PLAIN);
        if (format_by_tensor(f)) continue;             /* its scale is of the chunk */
        c.batch_invariant = !layer_arch;
        layer_new(&l, &c, LAYER_LOGITS, TOKENS);
        if (layer_check(&l, "in chunks") && (y = layer_y(&l, moek_run)) != NULL) {
            l.config.chunk_tokens = 5;
            if (layer_plan(&l)) layer_same(&l, moek_run, y, "chunks of 5");
            free(y);
        }
        layer_free(&l);
    }
}

/* No tokens: nothing is written. */
static moek_status shared_of_nothing(void *context, int first, int tokens, moek_stream stream)
{
    (void)context; (void)first; (void)stream;
    CHECK(0, "shared experts are called for %d tokens", tokens);
    return MOEK_OK;
}
static void test_no_tokens(void)
{
    FOR_EACH_FORMAT(f) {
        int format;
        for (format = 0; format < 2; format++) {
            moek_config c = config_of(f->number);
            layer l;
            SKIP_IF_SMALL(f->number != FORMAT_TENSOR);
            c.format = format;
            layer_new(&l, &c, 0, TOKENS);
            snprintf(l.what, sizeof l.what, "no tokens, %s, format %d", f->name, format);
            l.args.tokens = 0;
            l.args.shared = shared_of_nothing;
            if (layer_plan(&l) && layer_run(&l, moek_run)) {
                const layer_array *y = layer_find(&l, l.args.y);
                CHECK(!memcmp(y->got, y->host, y->bytes), "%s: y was written", l.what);
                l.args.shared = NULL;                  /* by_stages calls it by itself */
                layer_run(&l, by_stages);
                CHECK(!memcmp(y->got, y->host, y->bytes), "%s: y was written by the stages", l.what);
            }
            layer_free(&l);
        }
    }
}
