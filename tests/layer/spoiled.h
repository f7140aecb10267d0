/* spoiled.h -- a part of test_layer.c, which includes it once: NaN and Inf, an engine's own parts, what explain says.
 * */
/* A token that is spoilt changes no other's bits.  (Compared with zeros in its place: the dynamic scale of fp8t is that
 * of all finite x, so the token may not have any.) */
static void test_nonfinite(void)
{
    static const uint16_t bad[2][2] = { { 0x7fc0, 0x7f80 }, { 0x7e00, 0x7c00 } };         /* NaN, Inf; bf16, fp16 */
    FOR_EACH_FORMAT(f) {
        int kind;
        for (kind = 0; kind < 3; kind++) {
            moek_config c = config_of(f->number);
            uint16_t *y, *x;
            layer l;
            int j, visible = 0;
            SKIP_IF_SMALL(f->number != FORMAT_TENSOR || kind == 2);
            c.format = kind == 2;
            layer_new(&l, &c, 0, TOKENS);
            x = (uint16_t *)(size_t)l.args.x + 4 * c.hidden;
            memset(x, 0, 2 * (size_t)c.hidden);
            if (layer_check(&l, "a token of zeros") && (y = layer_y(&l, moek_run)) != NULL) {
                for (j = 0; j < c.hidden; j++)           /* all NaN, or one Inf */
                    if (kind != 1 || j == 7) x[j] = bad[l.config.dtype == MOEK_DTYPE_FP16][kind == 1];
                if (layer_run(&l, moek_run)) {
                    uint16_t *got = (uint16_t *)layer_got(&l, l.args.y);
                    for (j = 0; j < c.hidden; j++) {
                        const double v = ref_get_t(got, 4 * c.hidden + j, l.config.dtype);
                        visible += isnan(v) || isinf(v);
                    }
                    memcpy(got + 4 * c.hidden, y + 4 * c.hidden, 2 * (size_t)c.hidden);
                    CHECK(!memcmp(got, y, layer_y_bytes(&l)), "%s: NaN or Inf of a token reaches others", l.what);
                    CHECK(visible, "%s: NaN or Inf of a token is not to be seen", l.what);
                }
                free(y);
            }
            layer_free(&l);
        }
    }
}

/* Element i of x or of weights. */
static void rounding_put(const layer *l, const void *array, size_t i, double value)
{
    ref_put(array == l->args.x ? ref_t(l->config.dtype) : ref_element(l->format->w, l->config.dtype),
            (void *)(size_t)array, i, value);
}
static void rounding_ones(layer *l, const void *scale, int type)
{
    const ref_number *const number = ref_scale_type(type, l->config.dtype);
    size_t i;
    for (i = 0; scale && i < layer_find(l, scale)->bytes * 8 / (size_t)number->width; i++)
        ref_put(number, (void *)(size_t)scale, i, 1);
}
/* Each x is a 1 among zeros, so that h are the weights there, powers of two; weights of down are integers, and the
 * router's powers of two: all sums are exact, in any order, and y shows where T rounds.  o of every 16th column is more
 * than fp16 holds. */
static void rounding_fill(layer *l)
{
    const size_t hidden = (size_t)l->config.hidden, inter = (size_t)l->config.inter, all = EXPERTS * hidden * inter;
    const size_t tokens = (size_t)l->args.tokens;
    size_t i;
    for (i = 0; i < tokens * hidden; i++) rounding_put(l, l->args.x, i, i % hidden == i / hidden * 37 % hidden);
    for (i = 0; i < all; i++) rounding_put(l, l->w.w_up, i, 1 << rng_below(4));
    for (i = 0; i < all; i++) rounding_put(l, l->w.w_down, i, i / inter % 16 == 5 ? 448 : 1 + rng_below(15));
    rounding_ones(l, l->w.w_up_scale, l->format->w_scale.type);
    rounding_ones(l, l->w.w_down_scale, l->format->w_scale.type);
    rounding_ones(l, l->w.x_scale, l->format->x_scale.type), rounding_ones(l, l->w.h_scale, l->format->x_scale.type);
    for (i = 0; l->w.w_up_bias && i < EXPERTS * inter; i++) ((uint16_t *)(size_t)l->w.w_up_bias)[i] = 0;
    for (i = 0; l->w.w_down_bias && i < EXPERTS * hidden; i++)
        ((uint16_t *)(size_t)l->w.w_down_bias)[i] = ref_to_t(rng_below(16), l->config.dtype);
    for (i = 0; i < tokens * l->config.topk; i++) l->args.topk_weights[i] = ldexpf(1, -1 - rng_below(4));
}
static void rounding_case(const moek_format *f, const moek_kernel *k, int tokens, int turn)
{
    moek_config c = config_of(f->number);
    const uint16_t *got;
    double *want;
    layer l;
    int i, n, wrong = 0, infinite = 0;
    c.act = MOEK_RELU_NO_MUL;
    c.hidden = k && k->op == MOEK_OP_UP_DOWN ? 1024 : turn % 2 ? 256 : format_round_up(f, 320); c.inter = 768;
    c.topk = 1 + turn % 4;
    c.max_tokens = tokens;
    c.kernel = k ? k->name : NULL;
    c.format = !k && turn % 3 == 2;
    c.ue8m0 = f->ue8m0;
    c.dtype = format_dtype_in(f, 1);
    layer_new(&l, &c, LAYER_STATIC | (turn % 2 ? LAYER_BIAS : 0), tokens);
    rounding_fill(&l);
    snprintf(l.what, sizeof l.what, "rounding of o, %s, %s, %d tokens, turn %d", f->name,
             k ? k->name : "step by step", tokens, turn);
    if (k) layer_state = layer_zeros(moek_state_size());
    if (layer_plan(&l) && layer_run(&l, moek_run)) {
        got = (const uint16_t *)layer_got(&l, l.args.y);
        want = layer_ref(&l);
        for (i = n = 0; i < tokens * c.hidden; i++) {
            const uint16_t right = ref_to_t(want[i], l.config.dtype);
            infinite += isinf(want[i]) != 0;
            n = wrong ? n : i;
            wrong += got[i] != right;
        }
        CHECK(!wrong, "%s: %d are wrong, the first is %.9g, not %.9g, of column %d", l.what, wrong,
              ref_get_t(got, n, l.config.dtype), want[n], n % c.hidden);
        CHECK((infinite > 0) == (l.config.dtype == MOEK_DTYPE_FP16), "%s: %d overflow", l.what, infinite);
        free(want);
    }
    if (layer_state) mem_free(layer_arch, layer_state);
    layer_state = NULL;
    layer_free(&l);
}
/* Scales of e8m0 as small as docs/formats.md says, beside x as large: products of element and scale are exact in bf16
 * down to there, on every row.  (Where tiled weights become e4m3, other limits hold.) */
static void small_case(const moek_format *f, int tiled)
{
    moek_config c = config_of(f->number);
    uint16_t *y;
    layer l;
    size_t i;
    c.act = MOEK_RELU_NO_MUL; c.weight_layout = tiled ? MOEK_WEIGHTS_TILED : 0;
    layer_new(&l, &c, 0, TOKENS);
    snprintf(l.what, sizeof l.what, "scales of 2^-100, %s, layout %d", f->name, tiled);
    for (i = 0; i < (size_t)TOKENS * c.hidden; i++)
        rounding_put(&l, l.args.x, i, ldexp(ref_get_t(l.args.x, i, MOEK_DTYPE_BF16), 100));
    for (i = 0; i < layer_find(&l, l.w.w_up_scale)->bytes; i++)
        ref_put(ref_scale_type(f->w_scale.type, 0), (void *)(size_t)l.w.w_up_scale, i, ldexp(1, -100));
    if (layer_plan(&l)) {
        if (tiled) {
            repack_by(&l, moek_repack_up, l.w.w_up); repack_by(&l, moek_repack_down, l.w.w_down);
            repack_by(&l, moek_repack_up_scale, l.w.w_up_scale);
            repack_by(&l, moek_repack_down_scale, l.w.w_down_scale);
        }
        if ((y = layer_y(&l, moek_run)) != NULL) layer_compare_some(&l, 4);
        free(y);
    }
    layer_free(&l);
}
static void test_small_scales(void)
{
    int i;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int tiled = layer_arch == 90 && format_in_fragments(f);
        if (f->w_scale.type != MOEK_SCALE_TYPE_E8M0 || !format_has(f, MOEK_OP_UP, layer_arch)) continue;
        if (!tiled || f->x_bits == 16) small_case(f, tiled);
    }
}

/* Rows for few tokens that do not round o are in no plan whose T is fp16. */
static void rounding_refused(int quant, const moek_kernel *k)
{
    moek_config c = config_of(quant);
    moek_plan plan;
    int tokens;
    c.dtype = MOEK_DTYPE_FP16;
    CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s", plan.why);
    for (tokens = 1; tokens <= 4; tokens++)
        CHECK(!moek_plan_layer(&plan, tokens) || moek_plan_layer(&plan, tokens)->traits & MOEK_TRAIT_FP16,
              "%s, %d tokens", k->name, tokens);
    c.kernel = k->name;
    CHECK(moek_plan_init(&plan, &c) != MOEK_OK && (strstr(plan.why, "does not round") ||
                                                   strstr(plan.why, "of shared memory a block, the device has")),
          "%s: %s", k->name, plan.why);
}
/* o is rounded to T before the router's weights, whatever row does it, and however many tokens there are: in fp16 it
 * overflows in each, or in none.  (Where T is bf16, rows for 4 tokens do not round it.) */
static void test_rounding(void)
{
    FOR_EACH_FORMAT(f) {
        int i, n, tokens, turn = 0;
        const moek_kernel *const k = moek_kernels(&n);
        if (format_by_row(f)) continue;                /* (its scales are no powers of two) */
        if (ref_largest(ref_element(f->w, MOEK_DTYPE_BF16)) < 448) continue;
        for (tokens = 1; tokens <= 8; tokens++, turn++) {
            SKIP_IF_QUICK(tokens, 8);
            rounding_case(f, NULL, tokens, turn);
        }
        for (i = 0; i < n; i++) {
            if (!row_of(&k[i], f) || (quick_set && !quick_row(&k[i]))) continue;
            if (k[i].op != MOEK_OP_LAYER && k[i].op != MOEK_OP_UP_DOWN) continue;
            if (k[i].op == MOEK_OP_LAYER && !(k[i].traits & MOEK_TRAIT_FP16)) {
                if (!format_dtype(f)) rounding_refused(f->number, &k[i]);
                continue;
            }
            for (tokens = 1; tokens <= 8; tokens++, turn++) {
                SKIP_IF_QUICK(i, 3);
                SKIP_IF_SMALL(!k[i].max_tokens && (tokens + i) % (k[i].op == MOEK_OP_UP_DOWN || quick_set ? 8 : 3));
                rounding_case(f, &k[i], tokens, turn);
            }
        }
    }
}

/* ---- own parts --------------------------------------------------------------------------------------------------- */

static char events[256];
static void event(char what)
{
    const size_t n = strlen(events);
    if (n + 1 < sizeof events) events[n] = what, events[n + 1] = 0;
}
#define INNER(self) ((const moek_prepare_finalize *)(self)->context)
static moek_status own_prepare_send(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    event('p');
    return INNER(self)->prepare_send(INNER(self), step, stream);
}
static moek_status own_prepare_receive(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    event('r');
    return INNER(self)->prepare_receive(INNER(self), step, stream);
}
static moek_status own_finalize_send(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                     moek_stream stream)
{
    event('s');
    return INNER(self)->finalize_send(INNER(self), step, weight_and_reduce, stream);
}
static moek_status own_finalize_receive(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                        moek_stream stream)
{
    event('f');
    return INNER(self)->finalize_receive(INNER(self), step, weight_and_reduce, stream);
}
static size_t own_workspace(const moek_prepare_finalize *self, const moek_plan *plan)
{
    return INNER(self)->workspace(INNER(self), plan);
}
static moek_prepare_finalize own_around(const moek_prepare_finalize *inner)
{
    moek_prepare_finalize own = *inner;
    own.name = "own";
    own.context = (void *)(size_t)inner;
    own.workspace = own_workspace;
    own.prepare_send = own_prepare_send;
    own.prepare_receive = own_prepare_receive;
    own.finalize_send = own_finalize_send;
    own.finalize_receive = own_finalize_receive;
    return own;
}

/* Shared experts that take their time: y comes when they are called, a chunk at a time, between send and receive. */
typedef struct shared_call { const void *from; void *to; int next, wrong; size_t row; } shared_call;
static moek_status shared_experts(void *context, int first, int tokens, moek_stream stream)
{
    shared_call *s = (shared_call *)context;
    event('S');
    s->wrong |= first != s->next || tokens != (first + 4 > TOKENS ? TOKENS - first : 4);
    s->next = first + tokens;
    layer_copy((char *)s->to + first * s->row, (const char *)s->from + first * s->row, tokens * s->row, stream);
    return MOEK_OK;
}
static moek_status shared_fails(void *context, int first, int tokens, moek_stream stream)
{
    (void)context; (void)first; (void)tokens; (void)stream;
    return MOEK_E_CUDA;
}

static shared_call shared_now;
static moek_status with_shared(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    moek_args a = *args;
    shared_call s = shared_now;
    moek_status status;
    a.shared = shared_experts;
    a.shared_context = &s;
    s.next = s.wrong = 0;
    events[0] = 0;
    status = moek_run(plan, &a, stream);
    CHECK(!s.wrong && s.next == args->tokens, "the shared experts are called with other tokens");
    return status;
}

/* A user's prepare/finalize is called in order, once a chunk; shared_y is added, and may come late. */
static void test_shared(void)
{
    int format;
    for (format = 0; format < 2; format++) {
        const moek_prepare_finalize own = own_around(format ? &moek_batched : &moek_local);
        moek_config c = config_of(FORMAT_PLAIN);
        char expected[256] = "";
        uint16_t *y;
        void *late;
        int t;
        layer l;
        c.format = format;
        layer_new(&l, &c, 0, TOKENS);
        l.args.shared_y = layer_new_t(&l, TOKENS * HIDDEN, 1);
        if (layer_check(&l, "shared experts") && (y = layer_y(&l, moek_run)) != NULL) {
            shared_now.from = layer_find(&l, l.args.shared_y)->there + LAYER_GUARD;
            shared_now.row = 2 * HIDDEN;
            l.args.shared_y = late = layer_array_new(&l, layer_y_bytes(&l), LAYER_OUT);
            shared_now.to = layer_find(&l, late)->there + LAYER_GUARD;
            l.config.prepare_finalize = &own;
            l.config.chunk_tokens = 4;
            for (t = 0; t < TOKENS; t += 4) strcat(expected, "prsSf");
            if (layer_plan(&l)) layer_same(&l, with_shared, y, "shared experts that come late");
            CHECK(!strcmp(events, expected), "calls are %s, not %s", events, expected);
            free(y);
        }
        layer_free(&l);
    }
}
static void test_failing_part(void)
{
    moek_config c = config_of(FORMAT_PLAIN);
    moek_args a;
    layer l;
    layer_new(&l, &c, 0, TOKENS);
    if (layer_plan(&l)) {
        layer_put(&l);
        a = layer_args(&l);
        a.shared = shared_fails;
        CHECK(moek_run(&l.plan, &a, NULL) == MOEK_E_CUDA && strstr(l.why, "token 0"), "a part's status is lost: %s",
              l.why);
        CHECK(layer_get(&l), "a guard was written to");
    }
    layer_free(&l);
}

static int into_y;                                     /* NOOP experts write y themselves */
/* Experts that give back their input, so y is known exactly: the weighted sum of x over slots that are somebody's. */
static moek_status identity_apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int one = plan->rows_per_expert || self->weight_and_reduce == MOEK_NOOP, times = one ? 1 : plan->slots;
    const int rows = plan->rows_per_expert ? plan->local_experts * plan->rows_per_expert : step->rows;
    const size_t row = 2 * (size_t)plan->config.hidden, from = 2 * step->a_stride;
    size_t to = row;
    int r, k;
    event('e');
    if (self->expects_unquantized) CHECK(!step->a_scale, "quantized rows for experts that quantize themselves");
    if (into_y) {
        step->out = step->args.y;
        if (step->args.y_stride) to = 2 * step->args.y_stride;
    }
    for (r = 0; r < rows; r++)
        for (k = 0; k < times; k++)
            layer_copy((char *)step->out + (r * times + k) * to, (const char *)step->a + r * from, row, stream);
    return MOEK_OK;
}
static size_t some_workspace(const moek_experts *self, const moek_plan *plan) { (void)self; (void)plan; return 1000; }

static void check_identity(layer *l, int kind)
{
    const int dtype = l->config.dtype;
    const void *got = layer_got(l, l->args.y);
    int t, k, j, wrong = 0;
    for (t = 0; t < l->args.tokens; t++) {
        double sum = 0;
        for (k = 0; k < TOPK; k++) if (l->args.topk_ids[t * TOPK + k] >= 0) sum += l->args.topk_weights[t * TOPK + k];
        for (j = 0; j < l->config.hidden; j++) {
            const size_t i = (size_t)t * l->config.hidden + j;
            const double x = ref_get_t(l->args.x, i, dtype), y = ref_get_t(got, i, dtype);
            if (kind == MOEK_NOOP && !l->args.shared_y) wrong += x != y;
            else if (kind == MOEK_NOOP)
                wrong += ref_round_t(x + ref_get_t(l->args.shared_y, i, dtype), dtype) != y;
            else wrong += fabs(x * sum - y) > fabs(x * sum) / 255 + 6e-8;        /* of which 2^-25: fp16 below 2^-14 */
        }
    }
    CHECK(!wrong, "%s: %d entries are wrong", l->what, wrong);
}
static void own_experts_once(int kind, int format, int quant, int shared)
{
    moek_experts own = { "identity", 0, 0, 0, NULL, NULL, some_workspace, identity_apply };
    moek_config c = config_of(quant);
    uint16_t *y;
    layer l;
    int i;
    own.format = format;
    own.weight_and_reduce = kind;
    own.expects_unquantized = format_by_row(moek_format_of(quant));
    c.format = format;
    c.experts_impl = &own;
    c.backend = MOEK_BACKEND_USER;
    if (!layer_arch) c.exclude = MOEK_BACKENDS_GPU;
    layer_new(&l, &c, 0, TOKENS);
    for (i = 0; i < TOKENS * TOPK && kind != MOEK_NOOP; i += 5) l.args.topk_ids[i] = -1;
    snprintf(l.what, sizeof l.what, "own experts, weight_and_reduce %d, format %d, %s", kind, format,
             moek_quant_name(quant));
    if (shared) l.args.shared_y = layer_new_t(&l, TOKENS * HIDDEN, 1);
    events[0] = 0;
    if (layer_plan(&l) && (y = layer_y(&l, moek_run)) != NULL) {
        CHECK(!strcmp(events, "e"), "apply was called not once: %s", events);
        check_identity(&l, kind);
        for (i = 0; i < 4; i++) {
            struct layer_strides s = { HIDDEN + 8, 2 * HIDDEN, HIDDEN + 16, 0, 0 };
            s.in_place = i == 1 && !into_y;            /* (a would be out, in other rows) */
            s.over = i == 2 && shared && !into_y;
            l.config.chunk_tokens = i == 3 ? 4 : 0;
            layer_strides_now = s;
            layer_strided_drive = moek_run;
            if (layer_plan(&l)) layer_same(&l, layer_strided, y, "strides");
        }
        free(y);
    }
    layer_free(&l);
}
static void test_own_experts(void)
{
    const int half = format_of_t(MOEK_DTYPE_FP16);
    own_experts_once(MOEK_DELEGATE, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, half, 1);
    into_y = 1;
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NOOP, MOEK_STANDARD, half, 1);
    into_y = 0;
    own_experts_once(MOEK_CONTIGUOUS, MOEK_STANDARD, half, 0);
    own_experts_once(MOEK_DELEGATE, MOEK_STANDARD, FORMAT_ROW, 0);
    own_experts_once(MOEK_DELEGATE, MOEK_BATCHED, FORMAT_PLAIN, 0);
    own_experts_once(MOEK_NAIVE_BATCHED, MOEK_BATCHED, half, 0);
}

/* ---- explain ----------------------------------------------------------------------------------------------------- */

static int in_plan(const moek_plan *p, const moek_kernel *k)
{
    const moek_chosen *const h = &p->chosen;
    int i, found = k == h->route || k == h->map || k == h->sort || k == h->quant || k == h->combine;
    for (i = 0; i < p->chosen.gemms; i++) found |= k == p->chosen.up[i] || k == p->chosen.down[i];
    for (i = 0; i < p->chosen.layers; i++) found |= k == p->chosen.layer[i];
    for (i = 0; i < p->chosen.up_downs; i++) found |= k == p->chosen.up_down[i];
    return found;
}
static int arch_of(const char *name)
{
#define ARCH(NAME, its, number) if (!strcmp(name, #its)) return number;
    MOEK_EACH_ARCH(ARCH)
#undef ARCH
    return -1;
}
/* What moek_explain says is what moek_plan_init does: its status and sentence, the backend, each row; and a row of
 * another architecture is told the architecture of the backend taken. */
static void check_explained(const moek_config *c, const char *what)
{
    static char text[1 << 18];
    char want[MOEK_WHY + 128];
    moek_plan p;
    int n, i, wrong = 0, arch = -1;
    const moek_kernel *k = moek_kernels(&n);
    const moek_status status = moek_plan_init(&p, c);
    const size_t length = moek_explain(c, text, sizeof text);
    const char *line;
    snprintf(want, sizeof want, "moek_plan_init: %s%s%s\n", moek_status_name(status), *p.why ? ": " : "", p.why);
    CHECK(length < sizeof text && !strcmp(text + length - strlen(want), want), "%s: no \"%s\" at the end of %s", what,
          want, text);
    CHECK((strstr(text, ": taken\n") != NULL) == (status == MOEK_OK), "%s: %s: %s", what, p.why, text);
#define BACKEND(name, number, its_arch) \
    if (status == MOEK_OK && p.backend == number) { \
        arch = its_arch; \
        CHECK(strstr(text, #name ": taken\n") != NULL, "%s: %s", what, text); \
    }
    MOEK_EACH_BACKEND(BACKEND)
#undef BACKEND
    for (i = 0; status == MOEK_OK && i < n; i++) {
        char of[16], not_of[16];
        snprintf(want, sizeof want, "\n  %s ", k[i].name);
        line = strstr(text, want);
        if (!line) { wrong++; continue; }
        line += strlen(want);
        line += strspn(line, " ");
        wrong += in_plan(&p, &k[i]) != !strncmp(line, "taken\n", 6);
        if (sscanf(line, "its rows are for %15[a-z0-9], not %15[a-z0-9]", of, not_of) == 2)
            wrong += arch_of(of) != k[i].arch || !strcmp(of, not_of) ||
                     (arch >= 0 && arch_of(not_of) != (arch ? arch : p.chosen.cpu));
    }
    CHECK(!wrong, "%s: %d rows are explained as what they are not: %s", what, wrong, text);
}
static void test_explain(void)
{
    static const moek_experts mine = { "mine", MOEK_STANDARD, MOEK_CONTIGUOUS, 0, NULL, NULL, NULL, identity_apply };
    int n, i, at;
    const moek_kernel *k = moek_kernels(&n);
    FOR_EACH_FORMAT(f) {
        for (i = -2; i < n; i++) {                     /* row i is demanded; none; one that is not there */
            /* Of its own rows one in 3, of other formats' one in 29; quick, and on a GPU, where an explanation asks the
             * driver for each row and takes 2 ms: one in 5, and 16. */
            const int own = i >= 0 && k[i].quant == f->number;
            if (i >= 0 && (i + q_) % (quick_set || MEM_CUDA ? own ? 5 : n / 16 + 1 : own ? 3 : 29)) continue;
            for (at = 0; at <= MOEK_BACKEND_COUNT_; at++) {
                moek_config c = config_of(f->number);
                char what[160];
                c.backend = at;
                c.kernel = i >= 0 ? k[i].name : i == -1 ? NULL : "moek_up_of_another_binary";
                if (at == MOEK_BACKEND_USER) c.experts_impl = &mine;
                snprintf(what, sizeof what, "%s, backend %d, kernel %s", f->name, at,
                         c.kernel ? c.kernel : "any");
                check_explained(&c, what);
                if (i >= 0 && i % 7 != at) continue;
                c.format = MOEK_BATCHED;
                check_explained(&c, what);
                c.batch_invariant = 1;
                check_explained(&c, what);
                c.format = MOEK_STANDARD; c.topk = 1; c.router_weight_on_input = 1;
                check_explained(&c, what);
                c.batch_invariant = 0; c.weight_layout = MOEK_WEIGHTS_TILED; c.exclude = 1u << MOEK_BACKEND_SM90;
                check_explained(&c, what);
                c.hidden += 8; c.tuned = "cpu";
                check_explained(&c, what);
                c.tuned = NULL;
                check_explained(&c, what);
            }
        }
    }
}
