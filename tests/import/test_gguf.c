/* test_gguf.c -- examples/gguf.h and gguf_decode.h: what they read in files that make_gguf.py writes, against what
 * those mean, and in damaged ones.
 *
 *   cc -std=c99 -O2 -Iinclude -Iexamples tests/import/test_gguf.c -lm -o gguf &&
 *        python3 tests/import/make_gguf.py files && ./gguf files
 *   ./gguf files COUNT SEED                            COUNT damaged files besides (1000)
 *   ./gguf decode TYPE < BLOCKS                        writes f32 (tests/data/make_gguf_golden.py)
 *
 * Of each folder in files/layers expect.txt has a line a layer, which must be what this program makes of it,
 * reference.safetensors the weights, layers.L.experts.E.gate, up, down (gate_bias, ...) in F32: a plan with what gguf.h
 * binds must give what a plan with these as plain weights gives.  sentence.txt: the file must be refused so.  Both: it
 * is read by a moek that has kernels for its blocks. */
#define _DEFAULT_SOURCE
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include "gguf_decode.h"
#include "example.h"
#include "../check.h"

enum { TOKENS = 5 };

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static int decode_stdin(int number)
{
    const gguf_type *t = gguf_type_of((uint32_t)number);
    unsigned char block[512];
    float values[256];
    while (t && fread(block, (size_t)t->bytes, 1, stdin) == 1) {
        if (!gguf_decode(t, block, (size_t)t->columns, values)) return 1;
        fwrite(values, 4, (size_t)t->columns, stdout);
    }
    return !t;
}
static size_t from_hex(const char *text, unsigned char *to)
{
    unsigned byte;
    size_t n = 0;
    while (sscanf(text + 2 * n, "%2x", &byte) == 1) to[n++] = (unsigned char)byte;
    return n;
}
/* Blocks of the gguf package.  Three differences are on purpose (gguf_decode.h): the sign of 0, and two scales. */
static void check_golden(const char *path)
{
    static char line[8192], hex[4096], values[4096];
    static unsigned char block[2048], want[2048];
    float got[256];
    int type, i, seen[64] = { 0 }, types = 0, on_purpose = 0;
    FILE *f = fopen(path, "r");
    CHECK(f != NULL, "can not read %s", path);
    while (f && fgets(line, sizeof line, f)) {
        const gguf_type *t;
        if (!CHECK(sscanf(line, "%d %4095s %4095s", &type, hex, values) == 3, "%s", line)) break;
        t = gguf_type_of((uint32_t)type);
        if (!CHECK(t && from_hex(hex, block) == (size_t)t->bytes &&
                   from_hex(values, want) == 4 * (size_t)t->columns, "%s: a block of type %d", path, type)) break;
        types += !seen[type]++;
        CHECK(gguf_decode(t, block, (size_t)t->columns, got), "%s", t->name);
        for (i = 0; i < t->columns; i++) {
            const int scale = type == 39 ? block[0] : type == 40 ? block[i / 16] : 0;
            const float theirs = float_of_bits((uint32_t)want[4 * i] | (uint32_t)want[4 * i + 1] << 8 |
                                               (uint32_t)want[4 * i + 2] << 16 | (uint32_t)want[4 * i + 3] << 24);
            if ((type == 39 && scale == 255) || (type == 40 && scale >= 127)) {
                CHECK(got[i] != got[i], "%s: the scale %d gives %g", t->name, scale, got[i]);
                on_purpose++;
            } else if (type == 39 || type == 40)
                CHECK(got[i] == theirs, "%s: column %d is %g, not %g", t->name, i, got[i], theirs);
            else
                CHECK(!memcmp(&got[i], &theirs, 4) || (got[i] != got[i] && theirs != theirs),
                      "%s: column %d is %g, not %g", t->name, i, got[i], theirs);
        }
    }
    if (f) fclose(f);
    for (i = 0; i < GGUF_TYPES; i++) {
        const gguf_type *t = &gguf_types[i];
        CHECK(gguf_decode(t, block, (size_t)t->columns, got) == (seen[t->number] > 0), "%s: no golden block", t->name);
    }
    CHECK(types == 17 && on_purpose, "%d types, %d values that are others on purpose", types, on_purpose);
}

/* A file that the package wrote, with what it makes of the experts. */
static void check_package(const char *path)
{
    static const char *const names[] = { "gate", "up", "down" };
    char name[NAME];
    gguf g;
    gguf_layer l;
    int which;
    if (!CHECK(gguf_open(&g, path), "%s", g.why)) return;
    CHECK(g.depth == 2 && gguf_find(&g, 0, &l) && l.experts == 2 && gguf_find(&g, 1, &l) && l.experts == 2 &&
          !*l.unrouted && l.matrix[0]->type->way == GGUF_MXFP4, "%s: %d layers: %s", path, g.depth, g.why);
    for (which = 0; which < 3; which++) {
        const gguf_tensor *want, *t = l.matrix[which];
        size_t i, n = (size_t)(t->ne[0] * t->ne[1] * t->ne[2]), wrong = 0;
        float *got = (float *)malloc(n * sizeof *got);
        snprintf(name, NAME, "reference.1.%s", names[which]);
        want = gguf_tensor_of(&g, name);
        if (CHECK(want && want->bytes == 4 * n && gguf_decode(t->type, t->data, n, got), "%s: %s", path, name))
            for (i = 0; i < n; i++) wrong += got[i] != gguf_f32(want, i);
        CHECK(!wrong, "%s: %zu of %zu values are others", name, wrong, n);
        free(got);
    }
    gguf_close(&g);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* A line of expect.txt. */
static void describe(const gguf_layer *l, char line[WHY])
{
    static const char *const routings[] = {
#define ROUTING(name, number, score, normalize, eps, group, text) #name,
        MOEK_EACH_ROUTING(ROUTING) NULL
#undef ROUTING
    };
    static const int numbers[] = {
#define ROUTING(name, number, score, normalize, eps, group, text) number,
        MOEK_EACH_ROUTING(ROUTING)
#undef ROUTING
    };
    const moek_config *c = &l->config;
    moek_weights w;
    int i = 0, n;
    if (!l->experts) { strcpy(line, "dense"); return; }
    while (routings[i] && numbers[i] != c->routing) i++;
    n = sprintf(line, "%d experts, topk %d, %s", c->experts, c->topk, moek_quant_name(c->quant));
    if (c->down_quant) n += sprintf(line + n, " / %s", moek_quant_name(c->down_quant));
    if (*l->unrouted) n += sprintf(line + n, ", %.*s", (int)(strchr(l->unrouted, ':') - l->unrouted) - 5, l->unrouted);
    else n += sprintf(line + n, ", %s, %s", moek_act_name(c->act), routings[i] ? routings[i] : "?");
    if (c->groups) n += sprintf(line + n, ", groups %d of %d", c->topk_groups, c->groups);
    if (c->scale != 0) n += sprintf(line + n, ", scale %g", c->scale);
    if (l->matrix[MOEK_MATRIX_GATE] || l->matrix[MOEK_MATRIX_GATE_UP])
        n += sprintf(line + n, c->up_layout == MOEK_UP_SEPARATE ? ", apart" : ", halves");
    gguf_carve(l, 0, NULL, &w);
    n += sprintf(line + n, w.w_up ? ", in place" : ", copied");
    if (!w.w_up != !w.w_down) n += sprintf(line + n, w.w_down ? ", down in place" : ", down copied");
    if (l->bias[MOEK_MATRIX_DOWN]) n += sprintf(line + n, ", biases");
    if (l->exp_probs_b) n += sprintf(line + n, ", router bias");
    if (l->shared[1]) n += sprintf(line + n, ", shared %d", (int)l->shared[1]->ne[1]);
    if (l->shared_gate) sprintf(line + n, ", gated");
}
static const tensor *reference_of(const tensors *reference, int layer, int e, int which, const char *part)
{
    static const char *const names[] = { "gate", "up", "down" };
    char name[NAME];
    const tensor *t;
    snprintf(name, NAME, "layers.%d.experts.%d.%s%s", layer, e, names[which], part);
    t = tensor_of(reference, name);
    return CHECK(t != NULL, "%s is missing", name) ? t : NULL;
}
/* What the file has of a matrix is the reference, bit for bit.  Of gate and up in one tensor `begin` is up's first. */
static void check_values(const gguf_layer *l, const tensors *reference, int which, int e)
{
    const int both = l->matrix[MOEK_MATRIX_GATE_UP] && which != MOEK_MATRIX_DOWN;
    const gguf_tensor *t = l->matrix[both ? MOEK_MATRIX_GATE_UP : which];
    const tensor *want = reference_of(reference, l->number, e, which, "");
    const size_t rows = (size_t)gguf_rows(l, which), columns = (size_t)gguf_columns(l, which), all = (size_t)t->ne[1];
    const size_t begin = both && which == MOEK_MATRIX_UP ? rows : 0;
    float *got = (float *)malloc(rows * columns * 4);
    const unsigned char *from = t->data + ((size_t)e * all + begin) * gguf_row_bytes(t);
    const gguf_tensor *second = l->scale[both ? MOEK_MATRIX_GATE_UP : which];
    size_t i;
    if (want && CHECK(gguf_decode(t->type, from, rows * columns, got), "%s", t->type->name))
        for (i = 0; second && i < rows * columns; i++) got[i] *= gguf_f32(second, (size_t)e);
    if (want)
        CHECK(want->count == rows * columns && !memcmp(got, want->data, rows * columns * 4),
              "matrix %d of expert %d of layer %d is another", which, e, l->number);
    free(got);
}
/* Plain weights of the layer, in one array for gate and up: T of bf16, or fp16. */
static void plain_weights(const gguf_layer *l, const tensors *reference, const moek_config *c, moek_weights *w)
{
    const int gated = l->matrix[MOEK_MATRIX_UP] == NULL || l->matrix[MOEK_MATRIX_GATE] != NULL;
    const size_t up_rows = (size_t)(gated ? 2 : 1) * (size_t)c->inter, hidden = (size_t)c->hidden;
    const size_t inter = (size_t)c->inter, n = (size_t)l->experts;
    uint16_t *up = (uint16_t *)example_new(-1, NULL, 2 * n * up_rows * hidden), *at;
    uint16_t *down = (uint16_t *)example_new(-1, NULL, 2 * n * hidden * inter);
    uint16_t *up_bias = (uint16_t *)example_new(-1, NULL, 2 * n * up_rows);
    uint16_t *down_bias = (uint16_t *)example_new(-1, NULL, 2 * n * hidden);
    int e, which, part;
    size_t i;
    for (e = 0; e < l->experts; e++)
        for (which = gated ? 0 : 1; which < 3; which++)
            for (part = 0; part < (l->bias[MOEK_MATRIX_DOWN] ? 2 : 1); part++) {
                const tensor *t = reference_of(reference, l->number, e, which, part ? "_bias" : "");
                const size_t rows = which == 2 ? hidden : inter, columns = part ? 1 : which == 2 ? inter : hidden;
                const size_t row = (size_t)e * (which == 2 ? hidden : up_rows) + (which == 1 && gated ? inter : 0);
                at = (part ? which == 2 ? down_bias : up_bias : which == 2 ? down : up) + row * columns;
                for (i = 0; t && i < rows * columns; i++)
                    at[i] = c->dtype == MOEK_DTYPE_FP16 ? half_of(tensor_number(t, i)) : bf16_of(tensor_number(t, i));
            }
    w->w_up = up; w->w_down = down;
    w->w_up_bias = l->bias[MOEK_MATRIX_DOWN] ? up_bias : NULL;
    w->w_down_bias = l->bias[MOEK_MATRIX_DOWN] ? down_bias : NULL;
    if (!w->w_up_bias) example_free(-1, up_bias), example_free(-1, down_bias);
}
static void run(const moek_config *c, const moek_weights *w, const uint16_t *x, const float *logits, uint16_t *y)
{
    static moek_plan plan;
    moek_args args;
    char why[256] = "";
    if (!CHECK(moek_plan_init(&plan, c) == MOEK_OK && moek_plan_bind(&plan, w) == MOEK_OK, "%s", plan.why)) return;
    memset(&args, 0, sizeof args);
    args.tokens = TOKENS; args.x = x; args.y = y; args.router_logits = logits;
    args.why = why; args.why_size = sizeof why;
    args.workspace_size = moek_workspace_size(&plan);
    args.workspace = example_new(-1, NULL, args.workspace_size);
    CHECK(moek_run(&plan, &args, NULL) == MOEK_OK, "%s", why);
    example_free(-1, args.workspace);
}
/* The layer, its experts from `first` on, against the same as plain weights. */
static double check_run(gguf *g, gguf_layer *l, const tensors *reference, int first, int local)
{
    const size_t n = (size_t)TOKENS * (size_t)l->config.hidden;
    moek_config plain;
    moek_weights w, want;
    moek_import_report report;
    char why[WHY];
    int32_t *map = (int32_t *)malloc(sizeof *map * (size_t)l->experts);
    uint16_t *x = (uint16_t *)example_new(-1, NULL, 2 * n), *y = (uint16_t *)example_new(-1, NULL, 2 * n);
    uint16_t *y_plain = (uint16_t *)example_new(-1, NULL, 2 * n);
    float logits[TOKENS * 64];
    const int fp16 = l->config.dtype == MOEK_DTYPE_FP16;
    double error = 0, square = 0;
    size_t i, bytes;
    void *memory;
    if (*l->unrouted) {                                /* what the user has to do */
        l->config.act = l->matrix[MOEK_MATRIX_GATE] ? MOEK_SILU : MOEK_RELU2_NO_MUL;
        l->config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    }
    l->config.max_tokens = TOKENS;
    l->config.backend = MOEK_BACKEND_CPU;
    l->config.local_experts = local;
    for (i = 0; i < n; i++) x[i] = fp16 ? half_of(rng_normal()) : bf16_of(rng_normal());
    for (i = 0; i < TOKENS * (size_t)l->experts; i++) logits[i] = rng_normal();
    for (i = 0; i < (size_t)l->experts; i++)
        map[i] = local && ((int)i < first || (int)i >= first + local) ? -1 : (int32_t)i - first;
    memset(&report, 0, sizeof report);
    bytes = gguf_carve(l, first, NULL, &w);
    memory = example_new(-1, NULL, bytes);
    CHECK(gguf_carve(l, first, memory, &w) == bytes && gguf_load(g, l, first, &w, &report), "%s", g->why);
    CHECK(moek_import_verdict(&report, why, sizeof why) == MOEK_OK, "%s", why);
    if (local) w.expert_map = map;
    run(&l->config, &w, x, logits, y);
    plain = l->config;
    plain.quant = gguf_quant(gguf_type_of(fp16 ? 1 : 30));             /* f16 or bf16 */
    plain.down_quant = plain.weight_layout = 0;
    plain.up_layout = plain.act == MOEK_RELU2_NO_MUL ? MOEK_UP_DEFAULT : MOEK_UP_GATE_UP;
    plain.local_experts = 0;
    memset(&want, 0, sizeof want);
    want.router_bias = w.router_bias;
    for (i = 0; local && i < (size_t)l->experts; i++) if (map[i] >= 0) map[i] = (int32_t)i;
    if (local) want.expert_map = map;
    plain_weights(l, reference, &plain, &want);
    run(&plain, &want, x, logits, y_plain);
    for (i = 0; i < n; i++) {
        const double a = fp16 ? float_of_half(y[i]) : example_float(y[i]);
        const double b = fp16 ? float_of_half(y_plain[i]) : example_float(y_plain[i]);
        error += (a - b) * (a - b);
        square += b * b;
    }
    example_free(-1, want.w_up); example_free(-1, want.w_down);
    if (want.w_up_bias) example_free(-1, want.w_up_bias), example_free(-1, want.w_down_bias);
    example_free(-1, memory); example_free(-1, x); example_free(-1, y); example_free(-1, y_plain);
    free(map);
    CHECK(square > 0, "y is 0");
    return sqrt(error / square);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* model.gguf, or any of its parts. */
static void path_of(const char *folder, char path[PATH])
{
    struct dirent *e;
    DIR *d = opendir(folder);
    size_t length;
    snprintf(path, PATH, "%s/model.gguf", folder);
    while (d && (e = readdir(d)) != NULL) {
        length = strlen(e->d_name);
        if (length > 5 && !strcmp(e->d_name + length - 5, ".gguf")) snprintf(path, PATH, "%s/%s", folder, e->d_name);
    }
    if (d) closedir(d);
}
/* All that an engine does with a file; 0: a sentence in g->why. */
static int load_all(gguf *g)
{
    moek_import_report report;
    gguf_layer l;
    moek_weights w;
    char why[WHY];
    int n, good = 1;
    for (n = 0; good && n < g->depth; n++) {
        void *memory;
        if (!gguf_find(g, n, &l)) return 0;
        if (!l.experts) continue;
        memset(&report, 0, sizeof report);
        memory = example_new(-1, NULL, gguf_carve(&l, 0, NULL, &w));
        gguf_carve(&l, 0, memory, &w);
        good = gguf_load(g, &l, 0, &w, &report);
        if (good && moek_import_verdict(&report, why, sizeof why) != MOEK_OK) good = say(g->why, "%s", why);
        example_free(-1, memory);
    }
    return good;
}
static void check_refused(const char *folder, const char *words)
{
    char path[PATH];
    gguf g;
    path_of(folder, path);
    CHECK(!(gguf_open(&g, path) && load_all(&g)) && strstr(g.why, words), "%s: %s, not \"%s\"", folder,
          *g.why ? g.why : "it is read", words);
    printf("%s\n", g.why);
    gguf_close(&g);
}
/* Of all types of experts in a file? */
static int has_kernels(const char *folder)
{
    char path[PATH];
    size_t i;
    int all = 1;
    gguf g;
    path_of(folder, path);
    if (!CHECK(gguf_open(&g, path), "%s: %s", folder, g.why)) return 0;
    for (i = 0; i < g.tensors; i++) all &= gguf_quant(g.tensor[i].type) > 0;
    gguf_close(&g);
    return all;
}
static int fp4_in_file;                                /* layers whose fp4 stayed in the file */
static void check_folder(const char *folder, FILE *expect)
{
    char path[PATH], line[WHY], want[WHY];
    tensors reference;
    gguf g;
    gguf_layer l;
    double error;
    const int failed = check_failed;
    int n, e, which, blocks;
    memset(&reference, 0, sizeof reference);
    path_of(folder, path);
    if (!CHECK(gguf_open(&g, path), "%s: %s", folder, g.why)) return;
    snprintf(path, sizeof path, "%s/reference.safetensors", folder);
    CHECK(add_file(&reference, path) && sort_tensors(&reference, folder), "%s", reference.why);
    for (n = 0; n < g.depth; n++) {
        if (!CHECK(gguf_find(&g, n, &l), "%s: %s", folder, g.why)) break;
        describe(&l, line);
        *want = 0;
        if (fgets(want, sizeof want, expect)) want[strcspn(want, "\n")] = 0;
        CHECK(!strcmp(line, want), "%s: layer %d: %s, not %s", folder, n, line, want);
        if (!l.experts) continue;
        for (e = 0; e < l.experts; e++)
            for (which = l.config.up_layout ? 0 : 1; which < 3; which++) check_values(&l, &reference, which, e);
        error = check_run(&g, &l, &reference, 0, 0);
        error = fmax(error, check_run(&g, &l, &reference, 1, l.experts / 2));          /* as of a rank */
        for (which = 0; which < 4; which++)
            if (l.matrix[which] && gguf_fp4(l.matrix[which])) l.config.weight_layout = MOEK_WEIGHTS_BLOCKS;
        if (l.config.weight_layout) {                  /* the same in the file */
            error = fmax(error, check_run(&g, &l, &reference, 0, 0));
            error = fmax(error, check_run(&g, &l, &reference, 1, l.experts / 2));
            fp4_in_file++;
        }
        /* Plain weights are rounded to T where a block's value is no bf16. */
        for (which = 0, blocks = 0; which < 4; which++)
            blocks |= l.matrix[which] && l.matrix[which]->type->way == GGUF_BLOCKS;
        CHECK(error < (blocks ? 1e-2 : 1e-3),
              "%s: layer %d is off by %.2e", folder, n, error);
        printf("%-40s %s, off by %.1e  %s\n", strrchr(folder, '/') + 1, line, error,
               check_failed == failed ? "ok" : "FAILED");
    }
    CHECK(!fgets(want, sizeof want, expect), "%s: there is no layer of: %s", folder, want);
    close_tensors(&reference);
    gguf_close(&g);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static unsigned char *read_file(const char *path, size_t *bytes)
{
    char why[WHY];
    const unsigned char *at = map_file(path, bytes, why);
    unsigned char *copy = (unsigned char *)malloc(at ? *bytes : 1);
    if (!at || !copy) return NULL;
    memcpy(copy, at, *bytes);
    munmap((void *)(size_t)at, *bytes);
    return copy;
}
/* Bytes of the head become others: numbers at the edges, of 1 to 8 bytes, a flipped bit; or the file ends. */
static size_t damage(unsigned char *at, size_t size, size_t head)
{
    static const uint64_t numbers[] = { 0, 1, 2, 3, 5, 8, 13, 31, 32, 33, 255, 65536, 0x7fffffffu, 0xffffffffu,
                                        (uint64_t)1 << 32, (uint64_t)1 << 61, (uint64_t)1 << 62, (uint64_t)1 << 63,
                                        ~(uint64_t)0, ~(uint64_t)31, ~(uint64_t)0 >> 1 };
    int n = 1 + rng_below(3);
    while (n--) {
        const size_t most = rng_below(8) ? head : size, place = (size_t)rng_below((int)most);
        uint64_t value = numbers[rng_below((int)(sizeof numbers / sizeof *numbers))];
        size_t bytes = (size_t)1 << rng_below(4);
        if (bytes > size - place) bytes = 1;
        switch (rng_below(6)) {
        case 0: at[place] ^= (unsigned char)(1 << rng_below(8)); break;
        case 1: at[place] = (unsigned char)rng_u32(); break;
        case 2: if (!rng_below(4)) size = place + 1; break;
        case 3: memcpy(&value, at + place, bytes); value += (uint64_t)rng_below(9) - 4;        /* fall through */
        default: memcpy(at + place, &value, bytes);
        }
        if (head > size) head = size;
    }
    return size;
}
/* Each damaged file is read, or refused with a sentence; a sanitizer sees the rest.  In memory that ends with it. */
static void check_damaged(char *const *folders, int n, int count, int seed)
{
    int i, refused = 0, silent = 0;
    for (i = 0; i < count; i++) {
        char path[PATH];
        unsigned char *file, *copy;
        size_t size, head, left;
        gguf g;
        rng_seed((uint64_t)seed + (uint64_t)i);
        do path_of(folders[rng_below(n)], path); while (strstr(path, "refused"));
        file = read_file(path, &size);
        if (!CHECK(file != NULL, "can not read %s", path)) return;
        head = size;                                   /* of small files: what is not weights */
        for (left = 0; left + 4 < size && left < 4096; left++) if (!memcmp(file + left, "blk.", 4)) head = left + 200;
        left = damage(file, size, head < size ? head : size);
        copy = (unsigned char *)malloc(left ? left : 1);
        memcpy(copy, file, left);
        free(file);
        memset(&g, 0, sizeof g);
        if (!gguf_read(&g, copy, left, 0, 1, path) || !gguf_finish(&g, path) || !load_all(&g)) {
            refused++;
            silent += !strchr(g.why, ' ');
        }
        gguf_close(&g);
        free(copy);
    }
    CHECK(!silent && refused > count / 4 && refused < count, "%d of %d damaged files are refused, %d of them without a "
          "sentence", refused, count, silent);
    printf("%d damaged files, %d are refused\n", count, refused);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int main(int argc, char **argv)
{
    const char *const root = argc > 1 ? argv[1] : "build/gguf";
    char **names = NULL, path[PATH], words[WHY];
    struct dirent *e;
    DIR *d;
    FILE *f, *refused;
    int n = 0, whole = 0, i;
    if (argc > 2 && !strcmp(root, "decode")) return decode_stdin(atoi(argv[2]));
    check_golden("tests/data/gguf_golden.tsv");
    check_package("tests/data/qwen3moe.gguf");
    snprintf(path, sizeof path, "%s/layers", root);
    d = opendir(path);
    if (CHECK(d != NULL, "can not read %s", path))
        while ((e = readdir(d)) != NULL) {
            if (e->d_name[0] == '.') continue;
            names = (char **)realloc(names, (size_t)(n + 1) * sizeof *names);
            names[n] = (char *)malloc(strlen(path) + strlen(e->d_name) + 2);
            sprintf(names[n++], "%s/%s", path, e->d_name);
        }
    if (d) closedir(d);
    if (n) qsort(names, (size_t)n, sizeof *names, by_text);
    for (i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/expect.txt", names[i]);
        f = fopen(path, "r");
        snprintf(path, sizeof path, "%s/sentence.txt", names[i]);
        refused = fopen(path, "r");
        if (f && (!refused || has_kernels(names[i]))) check_folder(names[i], f), whole++;
        else if (CHECK(refused && fgets(words, sizeof words, refused), "%s", path)) {
            words[strcspn(words, "\n")] = 0;
            check_refused(names[i], words);
        }
        if (f) fclose(f);
        if (refused) fclose(refused);
    }
    CHECK(whole > 10 && n > whole + 50, "%s has %d folders, %d of them good", root, n, whole);
    if (n) check_damaged(names, n, argc > 2 ? atoi(argv[2]) : 1000, argc > 3 ? atoi(argv[3]) : 1);
    for (i = 0; i < n; i++) free(names[i]);
    free(names);
    CHECK(fp4_in_file > 1, "%d layers of fp4 in the file", fp4_in_file);
    return check_end();
}
