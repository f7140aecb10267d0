/* test_lm.c -- examples/moe_lm.c against transformers: logits and greedy tokens of the checkpoints in tests/data/lm,
 * which tests/data/make_lm.py made, or of the .gguf files that tests/import/make_gguf.py makes of them.
 *
 *   cc -std=c99 -O2 -Iinclude -Iexamples tests/layer/test_lm.c -lm -o lm && ./lm [FOLDER ..]
 *   c++ -std=c++17 -O1 -DMOEK_EMU -DMOEK_EMU_CUDA -DEXAMPLE_CUDA -DMOEK_ARCH=80 -Iinclude -Itests/emu/include \
 *       -x c++ -pthread tests/layer/test_lm.c -o lm         (a GPU and its memory, emulated)
 *
 * The prompt runs at once and the rest a token at a time, then all a token at a time: each position's logits count, and
 * the cache of keys and values.  Bound: what a run of transformers in bf16 is off by, which rounds more often.  Half
 * more where activations are quantized: another last bit of x may be another code of e4m3, 1 / 16 away.
 * A folder with model.gguf and plain.gguf, the same weights in f32: the same bits.  Where plain.gguf has experts in
 * bf16 that are blocks in model.gguf: the same tokens, if moek has kernels for such blocks. */
#ifdef MOEK_EMU
#include "../emu/emu_cuda.h"
#undef MOEK_IMPLEMENTATION                             /* the example defines it */
#endif
#define main moe_lm_main
#include "../../examples/moe_lm.c"
#undef main
#include "../check.h"

enum { MOST = 64 };

typedef struct golden { int tokens, id[MOST], vocab; const float *logits; double bf16_error; } golden;

static void read_golden(golden *g, const char *folder)
{
    static lm none;
    const tensor *t, *of;
    char path[PATH];
    float error;
    int i;
    memset(&none.of.files, 0, sizeof none.of.files);   /* (what golden points to stays mapped) */
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    example_must(add_file(&none.of.files, path) && sort_tensors(&none.of.files, folder), path, none.of.files.why);
    t = find(&none, -1, "tokens", "", 1); of = find(&none, -1, "logits", "", 1);
    g->tokens = (int)(t->bytes / 8);
    CHECK(g->tokens <= MOST, "%s: %d tokens", folder, g->tokens);
    for (i = 0; i < g->tokens; i++) {
        int64_t id;
        memcpy(&id, t->data + 8 * i, 8);
        g->id[i] = (int)id;
    }
    g->vocab = (int)(of->bytes / 4) / g->tokens;
    g->logits = (const float *)(const void *)of->data;
    memcpy(&error, find(&none, -1, "bf16_error", "", 1)->data, 4);
    g->bf16_error = error;
}

/* Relative L2 of all logits from position `first` on. */
static double run(lm *m, const golden *g, int prompt, const char *folder)
{
    double error = 0, square = 0;
    float *logits = floats((size_t)g->vocab);
    int t, i;
    m->position = 0;
    for (t = prompt - 1; t < g->tokens; t++) {
        const float *const want = g->logits + (size_t)t * (size_t)g->vocab;
        lm_run(m, t < prompt ? g->id : g->id + t, t < prompt ? prompt : 1, logits);
        for (i = 0; i < g->vocab; i++) {
            const double d = logits[i] - want[i];
            error += d * d;
            square += (double)want[i] * want[i];
        }
        if (t >= g->tokens / 2 - 1 && t + 1 < g->tokens)
            CHECK(best_of(logits, g->vocab) == g->id[t + 1], "%s, %d at once: token %d is %d, transformers has %d",
                  folder, prompt, t + 1, best_of(logits, g->vocab), g->id[t + 1]);
    }
    free(logits);
    return sqrt(error / square);
}
/* The model in a folder: model.gguf, or the folder itself. */
static const char *model_of(const char *folder, char path[PATH])
{
    struct stat s;
    snprintf(path, PATH, "%s/model.gguf", folder);
    if (stat(path, &s)) snprintf(path, PATH, "%s", folder);
    return path;
}
/* The type of a matrix of the first layer; NULL: moek, or this build of it, has no kernels for it. */
static const gguf_type *experts_of(const char *path, const char *matrix)
{
    gguf g;
    const gguf_tensor *t = NULL;
    const gguf_type *type = NULL;
    const moek_kernel *k;
    int i, n;
    if (!CHECK(gguf_open(&g, path) && (t = gguf_part(&g, 0, matrix)) != NULL, "%s: %s", path, g.why)) return NULL;
    k = moek_kernels(&n);
    for (i = 0; i < n; i++) if (k[i].quant && k[i].quant == gguf_quant(t->type)) type = t->type;
    gguf_close(&g);
    return type;
}
/* Logits of model.gguf and of plain.gguf: bit for bit, unless the two have experts of other types. */
static void check_plain(const char *folder, const char *plain)
{
    enum { STEPS = 16 };
    static const int prompt[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    const int given = (int)(sizeof prompt / sizeof *prompt), failed = check_failed;
    char path[PATH];
    const gguf_type *const type = experts_of(model_of(folder, path), "ffn_up_exps.weight");
    const gguf_type *const down = experts_of(path, "ffn_down_exps.weight");
    const gguf_type *const other = experts_of(plain, "ffn_down_exps.weight");
    lm *m[2];
    float *logits[2], most = 0;
    double error = 0, square = 0;
    int i, k, step, token = 0;
    if (!type || !down) {
        check_skipped++;
        printf("%-34s no kernels for its experts  skipped\n", folder);
        return;
    }
    m[0] = lm_open(path, given + STEPS);
    m[1] = lm_open(plain, given + STEPS);
    for (step = 0; step < STEPS; step++) {
        for (i = 0; i < 2; i++) {
            if (!step) logits[i] = floats((size_t)m[i]->vocab);
            lm_run(m[i], step ? &token : prompt, step ? 1 : given, logits[i]);
        }
        token = best_of(logits[0], m[0]->vocab);
        for (k = 0; k < m[0]->vocab; k++) {
            const double d = logits[0][k] - logits[1][k];
            most = fmaxf(most, fabsf(logits[0][k]));
            error += d * d;
            square += (double)logits[1][k] * logits[1][k];
        }
        CHECK(token == best_of(logits[1], m[1]->vocab), "%s: token %d is another than from plain.gguf", folder, step);
    }
    error = sqrt(error / square);
    CHECK(error <= (down == other ? 0 : 0.02), "%s: logits are off by %.2e", folder, error);
    CHECK(most > 0.1f && most < 1e4f, "%s: logits up to %g", folder, most);
    printf("%-34s attention in %s, experts in %s and %s, %s: off by %.2e  %s\n", folder,
           m[0]->layers[0].q.type->name, type->name, down->name, other->name, error,
           check_failed == failed ? "ok" : "FAILED");
}
static void check_folder(const char *folder)
{
    char path[PATH];
    struct stat s;
    golden g;
    lm *m;
    double whole, single, bound;
    const int failed = check_failed;
    snprintf(path, sizeof path, "%s/plain.gguf", folder);
    if (!stat(path, &s)) {
        check_plain(folder, path);
        return;
    }
    read_golden(&g, folder);
    m = lm_open(model_of(folder, path), g.tokens);
    bound = g.bf16_error * (moek_format_of(m->config.quant)->x_bits < 16 ? 1.5 : 1);
    whole = run(m, &g, g.tokens / 2, folder);
    single = run(m, &g, 1, folder);
    CHECK(whole < bound && single < bound, "%s: logits are off by %.2e and %.2e, more than %.2e", folder, whole, single,
          bound);
    printf("%-34s off by %.2e, a token at a time %.2e, transformers in bf16 %.2e  %s\n", folder, whole, single,
           g.bf16_error, check_failed == failed ? "ok" : "FAILED");
}

static void check_root(const char *root)
{
    DIR *d = opendir(root);
    struct dirent *e;
    char path[512];
    int n = 0;
    if (CHECK(d != NULL, "can not read %s", root))
        while ((e = readdir(d)) != NULL) {
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", root, e->d_name);
            check_folder(path);
            n++;
        }
    if (d) closedir(d);
    CHECK(n >= 5, "%s has %d checkpoints", root, n);
}
int main(int argc, char **argv)
{
    int i;
    if (argc < 2) check_root("tests/data/lm");
    for (i = 1; i < argc; i++) check_root(argv[i]);
    return check_end();
}
