/* test_checkpoint.c -- examples/checkpoint.h: what it imports from folders against what their quantizers mean.
 *
 *   cc -std=c99 -O2 -Iinclude -Iexamples tests/import/test_checkpoint.c -lm -o checkpoint &&
 *        python3 tests/import/make_checkpoints.py folders && ./checkpoint folders
 *   ./checkpoint load FOLDER                           only reads it (tests/import/fuzz_lm.py): a sentence, and 1, or 0
 *
 * Of each folder in `folders` reference.safetensors has layers.L.experts.E.gate, up, down (and gate_bias, ...) in F32,
 * which make_checkpoints.py, or a quantizer's own library, computed.  sentence.txt: the folder must be refused with
 * these words.  expect.txt: what the layer must become, a line as this program prints it. */
#define _DEFAULT_SOURCE
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include "checkpoint.h"
#include "example.h"
#include "../oracle/ref.h"
#include "../check.h"

/* Element k of row r, of matrix `which` of expert e; what is bound is read by the facts of the format. */
typedef struct side {
    const char *w, *scale;
    const void *zero;
    const float *global;
    int rows, columns, up;                             /* up: w_up, with the rows of gate, too */
} side;

static double scale_of(const checkpoint_layer *l, const side *s, int e, int row, int k)
{
    const moek_format *f = moek_format_of(l->config.quant);
    const moek_scale_shape shape = moek_weight_scale(f, l->config.block);
    const ref_number *n = ref_scale_type(shape.type, l->config.dtype);
    const size_t groups = shape.columns ? (size_t)((s->columns + shape.columns - 1) / shape.columns) : 1;
    const size_t group = shape.columns ? (size_t)(k / shape.columns) : 0;
    size_t rows = (size_t)s->rows, at = (size_t)row;
    if (!shape.type) return 1;
    if (!shape.rows) rows = 1, at = 0;
    if (shape.rows > 1) {                              /* gate and up have blocks of their own */
        const int inter = l->config.inter, both = s->up && l->config.up_scales, up = both && row >= inter;
        const size_t of_one = (size_t)(((both ? inter : s->rows) + shape.rows - 1) / shape.rows);
        rows = both ? 2 * of_one : of_one;
        at = up ? of_one + (size_t)((row - inter) / shape.rows) : (size_t)(row / shape.rows);
    }
    return ref_get(n, s->scale, ((size_t)e * rows + at) * groups + group);
}
static double value_of(const checkpoint_layer *l, const moek_weights *w, int e, int which, int r, int k)
{
    const moek_format *f = moek_format_of(l->config.quant);
    const moek_scale_shape shape = moek_weight_scale(f, l->config.block);
    const ref_number *n = ref_element(f->w, l->config.dtype);
    const int down = which == MOEK_MATRIX_DOWN, inter = l->config.inter;
    const int both = !down && checkpoint_parts(l) == 2, apart = l->config.up_layout == MOEK_UP_INTERLEAVED;
    const int row = !both ? r : apart ? 2 * r + (which == MOEK_MATRIX_UP) : r + (which == MOEK_MATRIX_UP) * inter;
    side s;
    size_t bytes, groups;
    double code;
    s.rows = down ? l->config.hidden : both ? 2 * inter : inter;
    s.up = both;
    s.columns = down ? inter : l->config.hidden;
    s.w = (const char *)(down ? w->w_down : w->w_up);
    s.scale = (const char *)(down ? w->w_down_scale : w->w_up_scale);
    s.zero = down ? w->w_down_zero : w->w_up_zero;
    s.global = down ? w->w_down_global_scale : w->w_up_global_scale;
    bytes = moek_element_bytes(f->w, (size_t)s.columns);
    code = ref_decode(n, ref_code(n, s.w + ((size_t)e * (size_t)s.rows + (size_t)row) * bytes, (size_t)k));
    if (s.zero) {
        groups = moek_scale_count(&shape, 1, (size_t)s.columns);
        bytes = moek_element_bytes(f->w, groups);
        code -= ref_decode(n, ref_code(n, (const char *)s.zero + ((size_t)e * (size_t)s.rows + (size_t)row) * bytes,
                                       (size_t)(shape.columns ? k / shape.columns : 0)));
    }
    code *= scale_of(l, &s, e, row, k);
    if (f->global_scale) code *= s.global[both ? 2 * e + (which == MOEK_MATRIX_UP) : e];
    return code;
}
/* act-order: which of the file's rows of gate each row is.  Rows of up and columns of down must have the same order. */
static void find_order(const checkpoint_layer *l, const moek_weights *w, const tensors *reference, int e, int *order)
{
    const int rows = l->config.inter, columns = l->config.hidden;
    char name[NAME];
    const tensor *want;
    int r, from, k;
    snprintf(name, sizeof name, "layers.%d.experts.%d.gate", l->number, e);
    want = tensor_of(reference, name);
    for (r = 0; want && r < rows; r++) {
        for (from = 0; from < rows; from++) {
            for (k = 0; k < columns; k++) {
                const double v = tensor_number(want, (size_t)from * (size_t)columns + (size_t)k);
                if (fabs(value_of(l, w, e, MOEK_MATRIX_GATE, r, k) - v) > fabs(v) / 128) break;
            }
            if (k == columns) break;
        }
        CHECK(from < rows, "row %d of gate is none of the file's", r);
        order[r] = from < rows ? from : 0;
    }
}
/* The largest difference, relative to what is wanted. */
static double worst_of(const checkpoint_layer *l, const moek_weights *w, const tensors *reference, int e, int which,
                       const int *order)
{
    static const char *const names[] = { "gate", "up", "down" };
    const int rows = which == MOEK_MATRIX_DOWN ? l->config.hidden : l->config.inter;
    const int columns = which == MOEK_MATRIX_DOWN ? l->config.inter : l->config.hidden;
    const tensor *want, *bias;
    char name[NAME];
    double worst = 0;
    int r, k;
    snprintf(name, sizeof name, "layers.%d.experts.%d.%s", l->number, e, names[which]);
    want = tensor_of(reference, name);
    if (!want) return 0;
    if (want->count != (size_t)rows * (size_t)columns) return INFINITY;
    for (r = 0; r < rows; r++)
        for (k = 0; k < columns; k++) {
            const int row = order && which != MOEK_MATRIX_DOWN ? order[r] : r;
            const int column = order && which == MOEK_MATRIX_DOWN ? order[k] : k;
            const double v = tensor_number(want, (size_t)row * (size_t)columns + (size_t)column);
            const double d = fabs(value_of(l, w, e, which, r, k) - v) / fmax(fabs(v), 1e-20);
            if (!(d <= worst)) worst = d;
        }
    snprintf(name, sizeof name, "layers.%d.experts.%d.%s_bias", l->number, e, names[which]);
    bias = tensor_of(reference, name);
    for (r = 0; bias && r < rows; r++) {
        const int down = which == MOEK_MATRIX_DOWN, apart = l->config.up_layout == MOEK_UP_INTERLEAVED, up = which == 1;
        const uint16_t *b = (const uint16_t *)(down ? w->w_down_bias : w->w_up_bias);
        const size_t at = down || checkpoint_parts(l) < 2 ? (size_t)(e * rows + r)
                               : (size_t)(2 * e * rows) + (size_t)(apart ? 2 * r + up : up * rows + r);
        const double v = tensor_number(bias, (size_t)(order && !down ? order[r] : r));
        if (!b || fabs(ref_get_t(b, at, l->config.dtype) - v) > fabs(v) / 256) return INFINITY;
    }
    return worst;
}

/* How far a layer is off, -1: it is refused.  *rounded: scales were. */
static double check_layer(checkpoint *c, checkpoint_layer *l, const tensors *reference, int *rounded, char *line)
{
    const char *from = moek_source_name(l->format->source);
    moek_import_report report;
    moek_weights w;
    double worst = 0;
    char why[WHY];
    size_t bytes;
    void *memory;
    int e, which, *order;
    memset(&report, 0, sizeof report);
    bytes = checkpoint_carve(l, NULL, &w);
    memory = example_new(-1, NULL, bytes);
    CHECK(checkpoint_carve(l, memory, &w) == bytes, "%d", l->number);
    *rounded = 0;
    if (!checkpoint_load(c, l, 0, &w, &report)) {
        example_free(-1, memory);
        return -1;
    }
    if (moek_import_verdict(&report, why, sizeof why) != MOEK_OK) {
        say(c->why, "%s", why);
        example_free(-1, memory);
        return -1;
    }
    *rounded = report.scales_rounded > 0;
    order = (int *)calloc((size_t)l->config.inter, sizeof *order);
    for (e = 0; e < l->experts; e++) {
        if (c->order_moved) find_order(l, &w, reference, e, order);
        for (which = 0; which < 3; which++)
            worst = fmax(worst, worst_of(l, &w, reference, e, which, c->order_moved ? order : NULL));
    }
    free(order);
    sprintf(line, "%s to %s%s%s%s%s%s%s%s", from ? from : "plain", moek_format_of(l->config.quant)->name,
            w.w_up_zero ? ", zero points" : "", w.w_up_bias ? ", biases" : "", w.x_scale ? ", static x" : "",
            l->config.up_layout == MOEK_UP_INTERLEAVED ? ", interleaved" : "",
            l->format->order && report.scales && c->order_moved ? ", act-order" : "",
            l->config.act == MOEK_SILU ? "" : ", ", l->config.act == MOEK_SILU ? "" : moek_act_name(l->config.act));
    example_free(-1, memory);
    return worst;
}
static int read_line(const char *folder, const char *name, char *to, size_t size)
{
    char path[PATH];
    FILE *f;
    int there;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "r");
    there = f && fgets(to, (int)size, f);
    if (f) fclose(f);
    if (there) to[strcspn(to, "\n")] = 0;
    return there;
}
static void check_folder(const char *folder)
{
    checkpoint c;
    checkpoint_layer l;
    tensors reference;
    char path[PATH], line[WHY] = "", want[WHY], first[WHY] = "";
    double worst = 0, again;
    const int failed = check_failed;
    int n, good, rounded = 0, any = 0;
    memset(&reference, 0, sizeof reference);
    good = checkpoint_open(&c, folder);
    for (n = 0; good && n < c.depth; n++) {
        good = checkpoint_find(&c, n, &l);
        if (!good || !l.experts) continue;
        snprintf(path, sizeof path, "%s/reference.safetensors", folder);
        if (!any && !read_line(folder, "sentence.txt", want, sizeof want))
            CHECK(add_file(&reference, path) && sort_tensors(&reference, folder), "%s", reference.why);
        any = 1;
        again = check_layer(&c, &l, &reference, &rounded, line);
        if (rounded && again > 1e-6) {                 /* scales in fp16 lose in bf16, and nothing in fp16 */
            CHECK(again < 1.0 / 256, "%s: layer %d is off by %.2e", folder, n, again);
            l.config.dtype = MOEK_DTYPE_FP16;
            again = check_layer(&c, &l, &reference, &rounded, line);
        }
        good = again >= 0;
        worst = fmax(worst, again);
        if (!*first) strcpy(first, line);
    }
    if (read_line(folder, "sentence.txt", want, sizeof want))
        CHECK(!good && strstr(c.why, want), "%s: %s, not \"%s\"", folder, good ? "it is read" : c.why, want);
    else if (CHECK(good, "%s: %s", folder, c.why)) {
        CHECK(worst < 1e-6, "%s: off by %.2e", folder, worst);
        if (read_line(folder, "expect.txt", want, sizeof want))
            CHECK(!strcmp(first, want), "%s: %s, not %s", folder, first, want);
    }
    printf("%-60s %s  %s\n", strrchr(folder, '/') ? strrchr(folder, '/') + 1 : folder, good ? first : c.why,
           check_failed == failed ? "ok" : "FAILED");
    close_tensors(&reference);
    checkpoint_close(&c);
}

static int load_only(const char *folder)
{
    checkpoint c;
    checkpoint_layer l;
    moek_import_report report;
    moek_weights w;
    void *memory;
    int n, good = checkpoint_open(&c, folder);
    memset(&report, 0, sizeof report);
    for (n = 0; good && n < c.depth; n++) {
        good = checkpoint_find(&c, n, &l);
        if (!good || !l.experts) continue;
        memory = example_new(-1, NULL, checkpoint_carve(&l, NULL, &w));
        checkpoint_carve(&l, memory, &w);
        good = checkpoint_load(&c, &l, 0, &w, &report);
        example_free(-1, memory);
    }
    if (!good) printf("%s: %s\n", folder, c.why);
    checkpoint_close(&c);
    return !good;
}
/* All values of fp16, and of bf16, come back. */
static void check_halves(void)
{
    unsigned h, halves = 0, brains = 0;
    for (h = 0; h < 65536; h++) {
        const float half = float_of_half(h), brain = float_of_bits((uint32_t)h << 16);
        halves += half == half && half_of(half) != h;
        brains += brain == brain && bf16_of(brain) != h;
    }
    CHECK(!halves && !brains, "%u of fp16 and %u of bf16 become others", halves, brains);
}
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int main(int argc, char **argv)
{
    const char *const root = argc > 1 ? argv[1] : "build/checkpoints";
    DIR *d = argc > 2 ? NULL : opendir(root);
    char **names = NULL, path[PATH];
    struct dirent *e;
    int n = 0, i;
    if (argc > 2) return load_only(argv[2]);
    check_halves();
    if (CHECK(d != NULL, "can not read %s", root))
        while ((e = readdir(d)) != NULL) {
            struct stat s;
            snprintf(path, sizeof path, "%s/%s/config.json", root, e->d_name);
            if (e->d_name[0] == '.' || stat(path, &s)) continue;
            names = (char **)realloc(names, (size_t)(n + 1) * sizeof *names);
            names[n] = (char *)malloc(strlen(root) + strlen(e->d_name) + 2);
            sprintf(names[n++], "%s/%s", root, e->d_name);
        }
    if (d) closedir(d);
    if (n) qsort(names, (size_t)n, sizeof *names, by_text);
    for (i = 0; i < n; i++) {
        check_folder(names[i]);
        free(names[i]);
    }
    free(names);
    CHECK(n > 0, "%s has no checkpoints", root);
    return check_end();
}
