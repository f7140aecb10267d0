/* test_ep.c -- layers on 1 to 8 ranks, threads or processes, on the CPU rows: against the same layer on one rank (the
 * same bits, with MOEK_EP_EXACT) and against the double reference; and what happens when ranks disagree, stop, or send
 * too much.
 *
 *   cc -std=c99 -O2 -Iinclude -Itests tests/test_ep.c -pthread -lm -o ep && ./ep [sample] [quick]
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  sample: fewer cases and no processes, for a build under
 * a sanitizer (ThreadSanitizer does not like fork); quick: fewer again, for the quick set.
 * A rank of a test is a thread that lives for one call of each_rank.  Windows, workspaces and y lie between guards. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* MAP_ANONYMOUS */
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek_ep.h"
#include "layer.h"
#include "../bench/clock.h"
#include "ep_fields.h"
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { RANKS = 8, EXPERTS = 11, TOPK = 3, MOST = 6, HIDDEN = 128, INTER = 48, GUARD = 256 };
enum { SOON = 700 };                                   /* ms: a rank that does not answer by then is dead */

static int sample, quick, fewer;                       /* as main was told; either: fewer */

/* ---- a group ----------------------------------------------------------------------------------------------------- */

typedef struct rank {
    int number, first, tokens;                         /* of the whole layer's tokens, mine */
    moek_ep ep;
    moek_ep_config group;
    moek_config config;
    moek_plan plan;
    moek_weights w;
    moek_args args[2];                                 /* by handle */
    unsigned char *window, *workspace[2], *y, *x, *shared_y;           /* behind a guard; the last two with gaps */
    size_t window_size;
    int64_t *load;
    moek_status status;
    char why[MOEK_WHY];
    int answer;
} rank;

typedef struct scene {
    char what[140];
    moek_ep_config group;
    moek_config config;                                /* of the whole layer; max_tokens: of a rank */
    int options;                                       /* LAYER_* */
    size_t gap;                                        /* elements between rows of x; twice and three times as many
                                                          between those of y and shared_y */
    int tokens[RANKS], total;
    int copies;                                        /* physical experts: copies * EXPERTS + 1, if above 1 */
    int physical, logical[4 * EXPERTS];                /* expert of the whole layer, of each physical one */
    int32_t owner[4 * EXPERTS], replicas[EXPERTS * 3], replica_count[EXPERTS];
    void *base[RANKS];
    layer whole;
    uint16_t *one;                                     /* y of one rank */
    rank rank[RANKS];
    moek_status (*drive)(rank *r);
} scene;

static unsigned char *guarded(size_t bytes, int fill)
{
    unsigned char *p = (unsigned char *)mem_alloc(0, bytes + 2 * GUARD);
    memset(p, LAYER_POISON, bytes + 2 * GUARD);
    memset(p + GUARD, fill, bytes);
    return p + GUARD;
}
static int intact(const unsigned char *p, size_t bytes)
{
    int i, ok = 1;
    for (i = 1; i <= GUARD; i++) ok &= p[-i] == LAYER_POISON && p[bytes + (size_t)i - 1] == LAYER_POISON;
    return ok;
}
static void drop(unsigned char *p) { if (p) mem_free(0, p - GUARD); }

typedef struct call { moek_status (*what)(rank *); rank *r; } call;
static void *in_thread(void *p)
{
    call *c = (call *)p;
    int i;
#ifdef _OPENMP
    omp_set_num_threads(1);                            /* ranks are threads enough */
#endif
    for (i = 0; i < c->r->number * 7 % 5; i++) sched_yield();
    c->r->status = c->what(c->r);
    return NULL;
}
/* All ranks but those in `dead` (bits). */
static void each_rank_but(scene *s, unsigned dead, moek_status (*what)(rank *))
{
    pthread_t thread[RANKS];
    call c[RANKS];
    int r;
    for (r = 0; r < s->group.ranks; r++) {
        c[r].what = what; c[r].r = &s->rank[r];
        s->rank[r].why[0] = 0;
        if (!(dead >> r & 1) && pthread_create(&thread[r], NULL, in_thread, &c[r])) abort();
    }
    for (r = 0; r < s->group.ranks; r++) if (!(dead >> r & 1)) pthread_join(thread[r], NULL);
}
static void each_rank(scene *s, moek_status (*what)(rank *)) { each_rank_but(s, 0, what); }

/* ---- the layer on one rank, and its parts ------------------------------------------------------------------------ */

/* Copies of the chosen experts' pieces of an array of `experts` pieces. */
static const void *pieces(const scene *s, const rank *r, const void *from, size_t bytes)
{
    unsigned char *to;
    int i;
    if (!from) return NULL;
    to = (unsigned char *)mem_alloc(0, bytes * (size_t)r->config.local_experts);
    memset(to, 0xff, bytes * (size_t)r->config.local_experts);
    for (i = 0; i < r->config.local_experts; i++) {
        const int p = moek_ep_expert(&r->ep, r->number, i);
        if (p >= 0) memcpy(to + (size_t)i * bytes, (const char *)from + (size_t)s->logical[p] * bytes, bytes);
    }
    return to;
}
static void free_weights(moek_weights *w)
{
    mem_free(0, (void *)(size_t)w->w_up); mem_free(0, (void *)(size_t)w->w_down);
    mem_free(0, (void *)(size_t)w->w_up_scale); mem_free(0, (void *)(size_t)w->w_down_scale);
    mem_free(0, (void *)(size_t)w->w_up_bias); mem_free(0, (void *)(size_t)w->w_down_bias);
    mem_free(0, (void *)(size_t)w->w_up_global_scale); mem_free(0, (void *)(size_t)w->w_down_global_scale);
    mem_free(0, (void *)(size_t)w->w_up_zero); mem_free(0, (void *)(size_t)w->w_down_zero);
}
static void weights_of(const scene *s, rank *r)
{
    const layer *l = &s->whole;
    const moek_format *const f = l->format;
    const size_t h = (size_t)s->config.hidden, i = (size_t)s->config.inter, up = (size_t)l->up_rows;
    moek_weights *w = &r->w;
    memset(w, 0, sizeof *w);
    w->w_up = pieces(s, r, l->w.w_up, up * moek_weight_bytes(f, 0, h));
    w->w_down = pieces(s, r, l->w.w_down, h * moek_weight_bytes(f, 0, i));
    w->w_up_scale = (const float *)pieces(s, r, l->w.w_up_scale, moek_scale_bytes(&f->w_scale, up, h));
    w->w_down_scale = (const float *)pieces(s, r, l->w.w_down_scale, moek_scale_bytes(&f->w_scale, h, i));
    w->w_up_global_scale = (const float *)pieces(s, r, l->w.w_up_global_scale, 4 * up / i);
    w->w_down_global_scale = (const float *)pieces(s, r, l->w.w_down_global_scale, 4);
    w->w_up_zero = pieces(s, r, l->w.w_up_zero, up * layer_zero_row(f, h));
    w->w_down_zero = pieces(s, r, l->w.w_down_zero, h * layer_zero_row(f, i));
    w->w_up_bias = pieces(s, r, l->w.w_up_bias, 2 * up);
    w->w_down_bias = pieces(s, r, l->w.w_down_bias, 2 * h);
    w->x_scale = l->w.x_scale; w->h_scale = l->w.h_scale;
    if (s->copies > 1) { w->replicas = s->replicas; w->replica_count = s->replica_count; }
    w->expert_load = r->load;
}

/* The whole layer on one rank; `total` tokens, of which the ranks have theirs in a row. */
static int one_rank(scene *s)
{
    moek_config c = s->config;
    layer *l = &s->whole;
    int r;
    for (s->total = 0, r = 0; r < s->group.ranks; r++) s->total += s->tokens[r];
    c.max_tokens = s->total ? s->total : 1;
    c.chunk_tokens = 0;
    c.backend = MOEK_BACKEND_CPU;
    layer_new(l, &c, s->options, s->total ? s->total : 1);
    l->args.tokens = s->total;
    snprintf(l->what, sizeof l->what, "%s: one rank", s->what);
    return 1;
}
static int run_one_rank(scene *s)
{
    s->one = NULL;
    if (!layer_plan(&s->whole)) return 0;
    return (s->one = layer_y(&s->whole, moek_run)) != NULL;
}

/* ---- opening and running ----------------------------------------------------------------------------------------- */

static moek_status open_rank(rank *r)
{
    scene *s = (scene *)r->group.layer;                /* set below: the scene, whose config is the layer */
    moek_ep_config g = r->group;
    moek_status status;
    g.layer = &s->config;
    status = moek_ep_open(&r->ep, &g, s->base);
    snprintf(r->why, sizeof r->why, "%s", r->ep.why);
    return status;
}
static void new_windows(scene *s)
{
    int r;
    for (r = 0; r < s->group.ranks; r++) {
        rank *k = &s->rank[r];
        k->number = r;
        k->group = s->group;
        k->group.rank = r;
        k->group.layer = &s->config;
        drop(k->window);
        k->window_size = moek_ep_window_size(&k->group);
        k->window = guarded(k->window_size, 0);
        s->base[r] = k->window;
        k->group.layer = (const moek_config *)s;
    }
}
static int opened(scene *s)
{
    int r, ok = 1;
    new_windows(s);
    each_rank(s, open_rank);
    for (r = 0; r < s->group.ranks; r++) {
        const rank *k = &s->rank[r];
        if (!CHECK(k->status == MOEK_OK, "%s: rank %d does not open: %s", s->what, r, k->ep.why)) { ok = 0; continue; }
        memset(k->window + k->ep.layout.rows, 0x7b, k->window_size - k->ep.layout.rows);     /* as if long in use */
    }
    return ok;
}

/* Rows with NaN between them, from rows that lie side by side. */
static unsigned char *apart(const uint16_t *from, size_t rows, size_t hidden, size_t gap)
{
    uint16_t *to = (uint16_t *)(void *)guarded(2 * rows * (hidden + gap), 0xff);
    size_t i;
    for (i = 0; i < rows; i++) memcpy(to + i * (hidden + gap), from + i * hidden, 2 * hidden);
    return (unsigned char *)to;
}
static size_t y_row(const scene *s) { return 2 * ((size_t)s->config.hidden + 2 * s->gap); }
static void check_gaps(const scene *s, const rank *r)
{
    const size_t row = y_row(s);
    size_t i, j, written = 0;
    for (i = 0; i < (size_t)s->tokens[r->number]; i++)
        for (j = 2 * (size_t)s->config.hidden; j < row; j++) written += r->y[i * row + j] != LAYER_POISON;
    CHECK(!written, "%s: rank %d: %d bytes between rows of y", s->what, r->number, (int)written);
}

/* The plan and the tokens of a rank. */
static int plan_rank(scene *s, rank *r)
{
    const size_t h = (size_t)s->config.hidden, slots = (size_t)(s->config.topk + s->config.shared_slots);
    const layer *l = &s->whole;
    const int handles = s->group.handles > 1 ? 2 : 1;
    int i;
    r->config = s->config;
    if (!CHECK(moek_ep_join(&r->ep, &r->config) == MOEK_OK, "%s: join", s->what)) return 0;
    if (!CHECK(moek_plan_init(&r->plan, &r->config) == MOEK_OK, "%s: rank %d: %s", s->what, r->number, r->plan.why))
        return 0;
    r->load = (int64_t *)calloc((size_t)r->plan.config.physical_experts, 8);
    weights_of(s, r);
    if (!CHECK(moek_plan_bind(&r->plan, &r->w) == MOEK_OK, "%s: rank %d: %s", s->what, r->number, r->plan.why))
        return 0;
    r->tokens = s->tokens[r->number];
    r->y = guarded(y_row(s) * (size_t)r->tokens, LAYER_POISON);
    if (s->gap) r->x = apart((const uint16_t *)l->args.x + h * (size_t)r->first, (size_t)r->tokens, h, s->gap);
    if (s->gap && l->args.shared_y)
        r->shared_y = apart((const uint16_t *)l->args.shared_y + h * (size_t)r->first, (size_t)r->tokens, h,
                            3 * s->gap);
    for (i = 0; i < handles; i++) {
        moek_args *a = &r->args[i];
        memset(a, 0, sizeof *a);
        a->tokens = r->tokens;
        a->handle = i;
        a->x = (const char *)l->args.x + 2 * h * (size_t)r->first;
        if (s->options & LAYER_LOGITS) {
            a->router_logits = (const float *)l->args.router_logits + (size_t)r->first * (size_t)s->config.experts;
        } else {
            a->topk_ids = l->args.topk_ids + (size_t)r->first * slots;
            a->topk_weights = l->args.topk_weights + (size_t)r->first * slots;
        }
        if (l->args.is_padding) a->is_padding = l->args.is_padding + r->first;
        if (l->args.shared_y) a->shared_y = (const char *)l->args.shared_y + 2 * h * (size_t)r->first;
        a->y = r->y;
        if (s->gap) { a->x = r->x; a->x_stride = h + s->gap; a->y_stride = h + 2 * s->gap; }
        if (r->shared_y) { a->shared_y = r->shared_y; a->shared_y_stride = h + 3 * s->gap; }
        a->workspace_size = moek_workspace_size(&r->plan);
        r->workspace[i] = guarded(a->workspace_size, 0xff);
        a->workspace = r->workspace[i];
        a->why = r->why; a->why_size = sizeof r->why;
    }
    return 1;
}
static int planned(scene *s)
{
    int r, first = 0, ok = opened(s);
    for (r = 0; r < s->group.ranks && ok; r++) {
        s->rank[r].first = first;
        ok &= plan_rank(s, &s->rank[r]);
        first += s->tokens[r];
    }
    return ok;
}
static void forget(scene *s)
{
    int r, i;
    for (r = 0; r < s->group.ranks; r++) {
        rank *k = &s->rank[r];
        if (k->window) CHECK(intact(k->window, k->window_size), "%s: beside the window of rank %d", s->what, r);
        if (k->y) CHECK(intact(k->y, y_row(s) * (size_t)k->tokens), "%s: beside y", s->what);
        if (k->y) check_gaps(s, k);
        for (i = 0; i < 2 && k->workspace[i]; i++)
            CHECK(intact(k->workspace[i], k->args[i].workspace_size), "%s: beside the workspace of rank %d", s->what,
                  r);
        drop(k->window); drop(k->y); drop(k->x); drop(k->shared_y); drop(k->workspace[0]); drop(k->workspace[1]);
        free(k->load);
        free_weights(&k->w);
    }
    if (s->whole.arrays) layer_free(&s->whole);
    free(s->one);
    free(s);
}
static moek_status run_rank(rank *r) { return moek_run(&r->plan, &r->args[0], NULL); }
static int ran(scene *s, moek_status (*drive)(rank *))
{
    int r, ok = 1;
    each_rank(s, drive);
    for (r = 0; r < s->group.ranks; r++)
        ok &= CHECK(s->rank[r].status == MOEK_OK, "%s: rank %d: %s: %s", s->what, r,
                    moek_status_name(s->rank[r].status), s->rank[r].why);
    for (r = 0; r < s->group.ranks; r++)
        if (s->rank[r].status == MOEK_E_TIMEOUT) { printf("no use to wait for more\n"); exit(check_end()); }
    return ok;
}

/* ---- what must come out ------------------------------------------------------------------------------------------ */

static uint16_t *all_y(const scene *s)
{
    const size_t row = 2 * (size_t)s->config.hidden;
    char *y = (char *)malloc(row * (size_t)s->total + 1);
    int r, t;
    for (r = 0; r < s->group.ranks; r++)
        for (t = 0; t < s->tokens[r]; t++)
            memcpy(y + row * (size_t)(s->rank[r].first + t), s->rank[r].y + y_row(s) * (size_t)t, row);
    return (uint16_t *)y;
}
static int late(const scene *s) { return format_by_tensor(s->whole.format) && !s->whole.w.x_scale; }

/* Dynamic scales of a tensor are of the rows that a rank received, so the reference must go by rank. */
static double *ref_by_rank(const scene *s)
{
    const layer *l = &s->whole;
    const size_t h = (size_t)s->config.hidden;
    const int k = l->plan.slots;
    double *want = (double *)ref_alloc(8 * h * (size_t)s->total), *part = (double *)ref_alloc(8 * h * (size_t)s->total);
    uint16_t *x = (uint16_t *)ref_alloc(2 * h * (size_t)s->total);
    int32_t *ids = (int32_t *)ref_alloc(4 * (size_t)(s->total * k)), *at = (int32_t *)ref_alloc(4 * (size_t)s->total);
    float *weights = (float *)ref_alloc(4 * (size_t)(s->total * k));
    const int32_t *whole_ids = (const int32_t *)layer_got((layer *)(size_t)l, l->args.topk_ids);
    const float *whole_weights = (const float *)layer_got((layer *)(size_t)l, l->args.topk_weights);
    int r, t, i, n;
    size_t j;
    for (r = 0; r < s->group.ranks; r++) {
        const moek_config *c = &l->plan.config;
        ref_layer_args a;
        for (n = 0, t = 0; t < s->total; t++) {
            int here = s->rank[r].ep.config.kind == MOEK_EP_ALLGATHER;
            for (i = 0; i < k; i++) {
                const int32_t id = whole_ids[t * k + i];
                int e = s->rank[r].config.local_experts;
                while (--e >= 0 && (id < 0 || moek_ep_expert(&s->rank[r].ep, r, e) != id)) { }
                ids[n * k + i] = e;
                weights[n * k + i] = whole_weights[t * k + i];
                here |= e >= 0;
            }
            if (here) { memcpy(x + (size_t)n * h, (const char *)l->args.x + 2 * h * (size_t)t, 2 * h); at[n++] = t; }
        }
        memset(&a, 0, sizeof a);
        a.tokens = n; a.hidden = c->hidden; a.inter = c->inter; a.slots = k;
        a.experts = s->rank[r].config.local_experts;
        a.format = l->format; a.dtype = c->dtype; a.act = c->act;
        a.alpha = c->alpha; a.beta = c->beta; a.limit = c->limit;
        a.up_layout = c->up_layout; a.router_weight_on_input = c->router_weight_on_input;
        a.x = x; a.ids = ids; a.weights = weights; a.w = &s->rank[r].w;
        if (!n) continue;
        ref_layer(&a, part);
        for (i = 0; i < n; i++) for (j = 0; j < h; j++) want[(size_t)at[i] * h + j] += part[(size_t)i * h + j];
    }
    for (j = 0; l->args.shared_y && j < h * (size_t)s->total; j++)
        want[j] += ref_get_t(l->args.shared_y, j, l->plan.config.dtype);
    free(part); free(x); free(ids); free(at); free(weights);
    return want;
}

/* On top of layer_tolerance: partial sums that are rounded to T add as much again as y's rounding, at the most. */
static double tolerance(const scene *s)
{
    const double t = layer_tolerance(&s->whole);
    return s->group.combine != MOEK_EP_REDUCED ? t : t + (s->whole.config.dtype == MOEK_DTYPE_FP16 ? 3e-4 : 2e-3);
}
static double worst;

static void compare(scene *s)
{
    double *want = late(s) ? ref_by_rank(s) : layer_ref(&s->whole);
    uint16_t *y = all_y(s);
    const ref_distance d = ref_compare_t(y, want, (size_t)s->total * (size_t)s->config.hidden,
                                         s->whole.plan.config.dtype);
    CHECK(d.rel_l2 < tolerance(s) && d.same_nonfinite, "%s: off by %.2e, at most %.2e", s->what, d.rel_l2, d.max_abs);
    if (d.rel_l2 / tolerance(s) > worst) worst = d.rel_l2 / tolerance(s);
    if (s->group.combine == MOEK_EP_EXACT && (!format_by_tensor(s->whole.format) || (s->options & LAYER_STATIC)))
        CHECK(!memcmp(y, s->one, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: other bits than on one rank",
              s->what);
    free(want);
    free(y);
}

/* The counters of all ranks against the reference's, rank by rank, since replicas go by the token's number there. */
static void compare_loads(const scene *s, int runs)
{
    const int k = s->whole.plan.slots, n = s->rank[0].plan.config.physical_experts;
    const int32_t *ids = (const int32_t *)layer_got((layer *)(size_t)&s->whole, s->whole.args.topk_ids);
    int32_t *out = (int32_t *)malloc(4 * (size_t)(s->total * k + 1));
    int64_t *load = (int64_t *)malloc(8 * (size_t)n);
    int r, e, wrong = 0;
    for (r = 0; r < s->group.ranks; r++) {
        moek_map_args a;
        memset(&a, 0, sizeof a);
        memset(load, 0, 8 * (size_t)n);
        a.tokens = s->tokens[r]; a.topk = k; a.experts = s->config.experts + s->config.shared_slots; a.physical = n;
        a.max_replicas = 3;
        a.ids = ids + s->rank[r].first * k;
        a.replicas = s->rank[r].w.replicas; a.replica_count = s->rank[r].w.replica_count;
        a.load = load; a.out = out;
        a.is_padding = s->whole.args.is_padding ? s->whole.args.is_padding + s->rank[r].first : NULL;
        ref_map(&a);
        for (e = 0; e < n; e++) wrong += s->rank[r].load[e] != runs * load[e];
    }
    CHECK(!wrong, "%s: %d counters of experts", s->what, wrong);
    free(load);
    free(out);
}

/* Run, compare, run again on other rubbish: the same bits. */
static void checked(scene *s, moek_status (*drive)(rank *))
{
    uint16_t *y, *again;
    int r;
    if (!run_one_rank(s) || !planned(s) || !ran(s, drive)) return;
    if (s->total) compare(s);
    y = all_y(s);
    for (r = 0; r < s->group.ranks; r++) {
        memset(s->rank[r].workspace[0], 0x7b, s->rank[r].args[0].workspace_size);
        memset(s->rank[r].y, LAYER_POISON, y_row(s) * (size_t)s->tokens[r]);
    }
    if (ran(s, drive)) {
        again = all_y(s);
        CHECK(!memcmp(y, again, 2 * (size_t)s->total * (size_t)s->config.hidden), "%s: a second run gives other bits",
              s->what);
        free(again);
        compare_loads(s, 2);
    }
    free(y);
}

/* ---- scenes ------------------------------------------------------------------------------------------------------ */

static scene *scene_new(int kind, int combine, int ranks, int quant)
{
    scene *s = (scene *)calloc(1, sizeof *s);
    int e, r;
    s->group.kind = kind; s->group.combine = combine; s->group.ranks = ranks;
    s->group.timeout_ms = 30000;
    s->config.hidden = format_round_up(moek_format_of(quant), HIDDEN);
    s->config.inter = format_round_up(moek_format_of(quant), INTER);
    s->config.experts = EXPERTS; s->config.topk = TOPK;
    s->config.quant = quant; s->config.act = MOEK_SILU; s->config.max_tokens = MOST;
    s->copies = 1;
    s->physical = EXPERTS;
    for (e = 0; e < EXPERTS; e++) s->logical[e] = e;
    for (r = 0; r < RANKS; r++) s->tokens[r] = MOST;
    snprintf(s->what, sizeof s->what, "%s, combine %d, %d ranks, %s", moek_ep_kind_name(kind), combine, ranks,
             moek_quant_name(quant));
    return s;
}
static void say(scene *s, const char *what)
{
    const size_t n = strlen(s->what);
    snprintf(s->what + n, sizeof s->what - n, ", %s", what);
}

enum { EVEN, SOME_EMPTY, ONLY_FIRST, NOBODY_HAS_ANY, UNEVEN, TOKENS_OF };
static void give_tokens(scene *s, int how)
{
    static const char *const names[] = { "even", "some ranks empty", "only rank 0 has tokens", "no tokens", "uneven" };
    int r;
    for (r = 0; r < RANKS; r++)
        s->tokens[r] = how == EVEN ? MOST : how == SOME_EMPTY ? (r % 3 == 1 ? MOST : 0)
                     : how == ONLY_FIRST ? (r ? 0 : MOST) : how == NOBODY_HAS_ANY ? 0 : (r * 5 + 1) % (MOST + 1);
    say(s, names[how]);
}

enum { UNIFORM, ONE_RANK, ONE_HOT, SOME_MISSING, NOBODY, HOT_EXPERT, ROUTINGS };
static void give_ids(scene *s, int how)
{
    static const char *const names[] = { "uniform", "all to one rank", "one-hot", "some -1", "nobody", "a hot expert" };
    const int k = s->config.topk + s->config.shared_slots;
    int i;
    for (i = 0; i < s->total * k; i++) {
        int32_t *id = &s->whole.args.topk_ids[i];
        if (how == ONE_RANK) *id = i % k < 2 ? EXPERTS - 1 - i % k : -1;
        if (how == ONE_HOT) *id = i % k == k - 1 ? i / k % EXPERTS : -1;
        if (how == SOME_MISSING && i % 4 == 1) *id = -1;
        if (how == NOBODY) *id = -1;
        if (how == HOT_EXPERT && i % k == 0) {
            const int32_t was = *id;
            int j;
            for (j = 1; j < k; j++) if (id[j] == 5) id[j] = was;
            *id = 5;
        }
    }
    say(s, names[how]);
}

/* A table of owners that no rule has: rank 1 (if there is one) has none. */
static void own_table(scene *s)
{
    int e;
    for (e = 0; e < s->physical; e++) {
        s->owner[e] = (e * 5 + 2) % s->group.ranks;
        if (s->owner[e] == 1) s->owner[e] = 0;
    }
    s->group.owner = s->owner;
}
/* 2 * EXPERTS + 1 physical experts: expert e has 1 to 3 replicas, wherever they come to lie. */
static void give_replicas(scene *s)
{
    int p;
    s->copies = 2;
    s->physical = 2 * EXPERTS + 1;
    s->config.physical_experts = s->physical;
    s->config.max_replicas = 3;
    for (p = 0; p < s->physical; p++) {
        const int e = p * 3 % EXPERTS, n = s->replica_count[e];
        s->logical[p] = e;
        s->replicas[3 * e + n] = p;
        s->replica_count[e]++;
    }
    say(s, "replicas");
}

/* The config of one rank has no replicas: they are copies. */
static int whole_of(scene *s)
{
    const moek_config c = s->config;
    int ok;
    s->config.physical_experts = s->config.max_replicas = 0;
    ok = one_rank(s);
    s->config = c;
    return ok;
}

/* Every format, and with powers of two as scales, and with static ones, if it may have such. */
typedef struct flavour { const moek_format *f; int ue8m0, options; } flavour;
static int flavours(flavour *to)                       /* or NULL; returns how many there are */
{
    int i, n = 0;
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        const int zero = f->zero ? LAYER_ZERO : 0;
        const flavour some[] = { { f, 0, zero }, { f, 1, zero }, { f, 0, LAYER_STATIC } };
        if (to) to[n] = some[0];
        n++;
        if (f->ue8m0 && to) to[n] = some[1];
        n += f->ue8m0;
        if (f->static_x && to) to[n] = some[2];
        n += f->static_x;
    }
    return n;
}
/* Scales of a rank's own rows: no padding, nor another rank's tokens, may be among them. */
static int by_rank(const scene *s)
{
    return format_by_tensor(moek_format_of(s->config.quant)) && !(s->options & LAYER_STATIC);
}
static scene *turn_of(int kind, int combine, int format, int turn)
{
    static flavour all[3 * FORMATS];
    static const int sizes[] = { 4, 2, 8, 1, 3, 5, 7, 6 };
    const int placement = rng_below(3), tokens = rng_below(TOKENS_OF);
    const flavour *const is = &all[format];
    scene *s;
    if (!all[0].f) flavours(all);
    s = scene_new(kind, combine, sizes[(format + combine + 3 * turn) % 8], is->f->number);
    s->config.ue8m0 = is->ue8m0;
    s->config.block = format_block(is->f, turn + combine);
    s->options = is->options;
    if (!format_dtype(is->f)) s->config.dtype = format_dtype_in(is->f, rng_below(2));
    if (rng_below(4) == 0 && !by_rank(s)) give_replicas(s);
    if (placement == 1) s->group.placement = MOEK_EP_ROUND_ROBIN;
    if (placement == 2) own_table(s);
    if (rng_below(3) == 0) s->options |= LAYER_BIAS;
    if (rng_below(4) == 0) s->options |= LAYER_LOGITS, s->config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
    if (rng_below(4) == 0) { s->config.topk = 1; s->config.router_weight_on_input = 1; say(s, "weight on the input"); }
    give_tokens(s, tokens == NOBODY_HAS_ANY && turn ? UNEVEN : tokens);
    if ((turn + format + combine) % 2) { s->gap = 8 * (size_t)(1 + rng_below(4)); say(s, "rows apart"); }
    return s;
}
static void turn_once(int kind, int combine, int format, int turn)
{
    scene *s = turn_of(kind, combine, format, turn);
    whole_of(s);
    if (!(s->options & LAYER_LOGITS)) give_ids(s, rng_below(4) ? rng_below(ROUTINGS) : UNIFORM);
    if (rng_below(4) == 0 && s->total) {
        unsigned char *padding = (unsigned char *)layer_array_new(&s->whole, (size_t)s->total, LAYER_IN);
        int t;
        for (t = 0; t < s->total; t++) padding[t] = t % 4 == 1;
        if (!by_rank(s)) s->whole.args.is_padding = padding;
    }
    if (rng_below(3) == 0) s->whole.args.shared_y = layer_new_t(&s->whole, (size_t)s->total * HIDDEN + 1, 1);
    checked(s, run_rank);
    forget(s);
}
/* Every kind, way to combine and format; ranks take turns, placements, patterns and options are thrown. */
static void test_all(void)
{
    int kind, combine, format, turn;
    for (turn = 0; turn < (fewer ? 1 : 3); turn++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
            for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
                for (format = 0; format < flavours(NULL); format++) {
                    if (quick && (format / 3 + kind) % 3) continue;
                    if (!fewer || (format + combine) % 3 == 0) turn_once(kind, combine, format, turn);
                }
}

/* All numbers of ranks, all patterns: the same bits as on one rank. */
static void test_ranks(void)
{
    int ranks, kind, how;
    for (ranks = 1; ranks <= RANKS; ranks++) {
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
            for (how = 0; how < ROUTINGS; how++) {
                scene *s;
                if ((fewer && (ranks + kind + how) % 7) || (ranks + kind + how) % 2) continue;
                s = scene_new(kind, MOEK_EP_EXACT, ranks, how % 2 ? FORMAT_BLOCKED : FORMAT_PLAIN);
                s->group.placement = how / 2 % 2;
                give_tokens(s, (how + ranks) % 2 ? UNEVEN : EVEN);
                whole_of(s);
                give_ids(s, how);
                checked(s, run_rank);
                forget(s);
            }
        }
    }
}

/* Chunks: ranks with few tokens still take part in all of them.  And rows beyond max_rows_per_expert. */
static void test_chunks(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 4, FORMAT_PLAIN);
        s->config.chunk_tokens = 2;
        s->group.max_tokens = 2;
        s->gap = 8;
        give_tokens(s, UNEVEN);
        say(s, "chunks of 2, rows apart");
        whole_of(s);
        checked(s, run_rank);
        forget(s);
    }
    for (kind = MOEK_EP_REDUCED; kind <= MOEK_EP_EXACT; kind++) {
        scene *s = scene_new(MOEK_EP_LOW_LATENCY, kind, 4, FORMAT_BLOCKED);
        s->config.max_rows_per_expert = 3;
        say(s, "more rows than max_rows_per_expert");
        s->config.format = MOEK_BATCHED;
        whole_of(s);
        give_ids(s, HOT_EXPERT);
        checked(s, run_rank);
        forget(s);
    }
}

/* Slots that every token has: constant experts, on ranks as others are. */
static void test_shared_slots(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 3, FORMAT_PLAIN);
        s->config.experts = EXPERTS - 2;
        s->config.shared_slots = 2;
        s->config.shared_weight = 0.25f;
        s->options = LAYER_LOGITS;
        say(s, "shared slots");
        whole_of(s);
        checked(s, run_rank);
        forget(s);
    }
}

/* Fewer experts than ranks, and a group that was opened for more tokens than the layer has. */
static void test_odd_sizes(void)
{
    int kind, turn;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (turn = 0; turn < 3; turn++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 7, turn ? FORMAT_ROW : FORMAT_PLAIN);
            s->config.experts = 3; s->config.topk = 2;
            s->group.placement = turn % 2;
            if (turn == 2) s->group.max_tokens = MOST + 5;
            s->config.hidden = turn == 1 ? 104 : HIDDEN; s->config.inter = turn == 1 ? 37 : INTER;
            give_tokens(s, UNEVEN);
            say(s, "odd sizes");
            whole_of(s);
            checked(s, run_rank);
            forget(s);
        }
    }
}

/* y in the place of x. */
static moek_status in_place(rank *r)
{
    moek_args a = r->args[0];
    memcpy(a.y, a.x, 2 * (size_t)r->config.hidden * (size_t)r->tokens);
    a.x = a.y;
    return moek_run(&r->plan, &a, NULL);
}
/* A token that is all NaN, or has an Inf, changes no other's bits on any rank.  (Beside zeros, for scales
 * of a tensor.) */
static void test_nonfinite(void)
{
    int kind, q, j, t;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (q = quick ? kind % 2 : 0; q < 4; q += quick ? 2 : 1) {
            scene *s = scene_new(kind, q % 2 ? MOEK_EP_REDUCED : MOEK_EP_EXACT, 4, format_of_kind(q));
            uint16_t *x, *y, *again;
            int others = 0, seen = 0;
            say(s, "NaN and Inf");
            whole_of(s);
            x = (uint16_t *)(size_t)s->whole.args.x + 7 * HIDDEN;
            memset(x, 0, 2 * HIDDEN);
            if (run_one_rank(s) && planned(s) && ran(s, in_place)) {
                compare(s);
                y = all_y(s);
                for (j = 0; j < HIDDEN; j++) x[j] = q % 2 || j == 9 ? (uint16_t)(q % 2 ? 0x7fc0 : 0x7f80) : 0;
                if (ran(s, in_place)) {
                    again = all_y(s);
                    for (t = 0; t < s->total; t++)
                        for (j = 0; j < HIDDEN; j++) {
                            if (t != 7) others += y[t * HIDDEN + j] != again[t * HIDDEN + j];
                            else seen += (again[t * HIDDEN + j] & 0x7f80) == 0x7f80;
                        }
                    CHECK(!others && seen, "%s: %d entries of other tokens, %d of its own", s->what, others, seen);
                    free(again);
                }
                free(y);
            }
            forget(s);
        }
    }
}

/* A slot that does not count is never multiplied: whatever its weight is, y has the same bits.  Such a slot has no
 * expert or, low_latency, one that had no room for it. */
static void test_slots_without(void)
{
    int kind, combine, how, i, n;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (combine = MOEK_EP_REDUCED; combine <= MOEK_EP_EXACT; combine++)
            for (how = 0; how < 6; how++) {
                const int dropped = how == 2 || how == 3, on_input = how > 3;
                const float bad = how % 2 ? INFINITY : NAN;
                scene *s;
                float *weights;
                uint16_t *y, *again;
                if ((dropped && kind != MOEK_EP_LOW_LATENCY) || (quick && (how + kind + combine) % 3)) continue;
                s = scene_new(kind, combine, 4, how % 3 ? format_of_t(MOEK_DTYPE_FP16) : FORMAT_BLOCKED);
                say(s, dropped ? "no room" : on_input ? "weights on the input" : "no expert");
                if (on_input) { s->config.topk = 1; s->config.router_weight_on_input = 1; }
                if (dropped) { s->config.max_rows_per_expert = 3; s->config.format = MOEK_BATCHED; }
                whole_of(s);
                give_ids(s, dropped ? HOT_EXPERT : SOME_MISSING);
                n = s->total * s->config.topk;
                weights = s->whole.args.topk_weights;
                if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
                    compare(s);
                    y = all_y(s);
                    for (i = 0; i < n; i++)            /* (of HOT_EXPERT's tokens the first three have room) */
                        if (dropped ? i % TOPK == 0 && i >= 3 * TOPK : s->whole.args.topk_ids[i] < 0) weights[i] = bad;
                    if (ran(s, run_rank)) {
                        again = all_y(s);
                        CHECK(!memcmp(y, again, 2 * (size_t)s->total * HIDDEN), "%s: the weight of a slot without an "
                              "expert, %g, is seen", s->what, (double)bad);
                        free(again);
                    }
                    free(y);
                }
                forget(s);
            }
}

/* What moek_ep.h says of the ways to combine, entry by entry: REDUCED is off from exact sums by what rounds the partial
 * sums (which REDUCED_F32 leaves in the window) and y; REDUCED_F32 by the order of f32 sums, and y. */
static uint16_t *combined(int kind, int combine, int dtype, double *partials)
{
    scene *s = scene_new(kind, combine, TOPK, format_of_t(dtype));
    uint16_t *y = NULL;
    int r, t, p, j;
    rng_seed(7);
    say(s, "bounds");
    whole_of(s);
    if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
        y = all_y(s);
        for (r = 0; r < TOPK && combine == MOEK_EP_REDUCED_F32; r++) {              /* slot p: of rank p */
            const moek_ep *ep = &s->rank[r].ep;
            const float *sums = (const float *)(s->rank[r].window + ep->layout.partial);
            for (t = 0; t < MOST; t++)
                for (p = 0; p < TOPK; p++) {
                    const int32_t *ids = s->whole.args.topk_ids + (r * MOST + t) * TOPK;
                    int e, k, here = 0;
                    for (e = 0; e < s->rank[p].ep.local_experts; e++)
                        for (k = 0; k < TOPK; k++) here |= ids[k] == moek_ep_expert(&s->rank[p].ep, p, e);
                    for (j = 0; j < HIDDEN && here; j++)
                        partials[(r * MOST + t) * HIDDEN + j] += fabs(sums[(t * TOPK + p) * HIDDEN + j]);
                }
        }
    }
    forget(s);
    return y;
}
static void test_bounds(void)
{
    static const int dtypes[] = { MOEK_DTYPE_BF16, MOEK_DTYPE_FP16 };
    int kind, d, i;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (d = quick ? kind % 2 : 0; d < (quick ? kind % 2 + 1 : 2); d++) {
            const int n = TOPK * MOST * HIDDEN;
            const double half = ldexp(1, d ? -11 : -8);                            /* half a last place, at the most */
            double *partials = (double *)ref_alloc(8 * (size_t)n);
            uint16_t *f32 = combined(kind, MOEK_EP_REDUCED_F32, dtypes[d], partials);
            uint16_t *reduced = combined(kind, MOEK_EP_REDUCED, dtypes[d], partials);
            uint16_t *exact = combined(kind, MOEK_EP_EXACT, dtypes[d], partials);
            int far = 0, far32 = 0, differ = 0;
            for (i = 0; i < n && f32 && reduced && exact; i++) {
                const double want = ref_get_t(exact, (size_t)i, dtypes[d]), sum = partials[i];
                const double y = fabs(want) + half * sum, tiny = ldexp(1, d ? -24 : -130);
                far += fabs(ref_get_t(reduced, (size_t)i, dtypes[d]) - want) > half * sum + 2 * half * y + 4 * tiny;
                far32 += fabs(ref_get_t(f32, (size_t)i, dtypes[d]) - want) > 1e-6 * sum + 2 * half * y + 4 * tiny;
                differ += reduced[i] != exact[i];
            }
            CHECK(!far && !far32 && differ, "%s, %s: %d entries reduced, %d in f32 are beyond their bounds; %d differ",
                  moek_ep_kind_name(kind), d ? "fp16" : "bf16", far, far32, differ);
            free(partials); free(f32); free(reduced); free(exact);
        }
    }
}

/* ---- two in flight ----------------------------------------------------------------------------------------------- */

/* Both handles are in use: a third operation is an argument error, and touches neither. */
static int third_refused(rank *r, const moek_step *under_way)
{
    moek_args a = under_way->args;
    moek_step third;
    char why[512];
    a.why = why; a.why_size = sizeof why;
    return moek_begin(&r->plan, &a, &third) == MOEK_E_ARGUMENT && strstr(why, "has not ended") &&
           (a.handle = 2, moek_begin(&r->plan, &a, &third) == MOEK_E_ARGUMENT);
}
/* Halves of the tokens on two handles, their stages interleaved; odd ranks begin with the other handle where that is
 * allowed, and start the next operation on a handle while the other one is still under way. */
static moek_status two_in_flight(rank *r)
{
    static moek_status (*const stages[])(moek_step *, moek_stream) = {
        moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
        moek_finalize_send, moek_finalize_receive
    };
    const int swap = r->number % 2 && r->ep.config.kind != MOEK_EP_ALLTOALL;
    const int half = r->tokens / 2, slots = r->plan.slots;
    moek_args a[2];
    moek_step step[2];
    moek_status status = MOEK_OK;
    int i, k, round;
    for (k = 0; k < 2; k++) {
        const size_t first = k ? (size_t)half : 0;
        a[k] = r->args[k];
        a[k].tokens = k ? r->tokens - half : half;
        a[k].x = (const char *)a[k].x + 2 * first * HIDDEN;
        a[k].y = (char *)a[k].y + 2 * first * HIDDEN;
        a[k].topk_ids += first * (size_t)slots;
        a[k].topk_weights += first * (size_t)slots;
    }
    for (round = 0; round < 5; round++) {              /* an odd number of operations */
        for (k = 0; k < 2 && status == MOEK_OK; k++) status = moek_begin(&r->plan, &a[k], &step[k]);
        for (i = 0; i < 6; i++) {
            for (k = 0; k < 2 && status == MOEK_OK; k++) status = stages[i](&step[k ^ swap], NULL);
            r->answer += status == MOEK_OK && i >= 1 && i < 5 && !third_refused(r, &step[round % 2]);
        }
        if (round % 2 && status == MOEK_OK) status = moek_run(&r->plan, &a[0], NULL);        /* and one alone */
    }
    return status;
}
static void test_two_in_flight(void)
{
    int kind, turn, r;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (turn = 0; turn < (fewer ? 1 : 4); turn++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 2 + 2 * turn, turn % 2 ? FORMAT_ROW : FORMAT_PLAIN);
            s->group.handles = 2;
            give_tokens(s, turn % 2 ? UNEVEN : EVEN);
            say(s, "two in flight");
            whole_of(s);
            if (run_one_rank(s) && planned(s) && ran(s, two_in_flight)) {
                compare(s);
                for (r = 0; r < s->group.ranks; r++)
                    CHECK(!s->rank[r].answer, "%s: rank %d: a third operation was not refused", s->what, r);
            }
            forget(s);
        }
    }
}

/* All ranks by one thread, half after half, as they would take turns on one GPU: a send waits for nobody.  But in
 * alltoall, which must know the counts first. */
static void test_one_thread(void)
{
    static moek_status (*const halves[])(moek_step *, moek_stream) = {
        moek_route, moek_prepare_send, moek_prepare_receive, moek_experts_apply,
        moek_finalize_send, moek_finalize_receive
    };
    int kind, i, r, round;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 5, FORMAT_BLOCKED);
        moek_step step[RANKS];
        moek_status status = MOEK_OK;
        s->group.timeout_ms = SOON;
        give_tokens(s, UNEVEN);
        say(s, "by one thread");
        whole_of(s);
        if (run_one_rank(s) && planned(s)) {
            for (round = 0; round < 3; round++) {
                for (r = 0; r < 5 && status == MOEK_OK; r++)
                    status = moek_begin(&s->rank[r].plan, &s->rank[r].args[0], &step[r]);
                for (i = 0; i < 6; i++)
                    for (r = 0; r < 5 && status == MOEK_OK; r++) status = halves[i](&step[(r * 2 + i) % 5], NULL);
            }
            if (kind == MOEK_EP_ALLTOALL) CHECK(status == MOEK_E_TIMEOUT, "%s: %s", s->what, moek_status_name(status));
            else if (CHECK(status == MOEK_OK, "%s: %s", s->what, moek_status_name(status))) compare(s);
        }
        forget(s);
    }
}

/* ---- many runs --------------------------------------------------------------------------------------------------- */

enum { SOAK_RUNS = 240 };
static struct { int first[SOAK_RUNS], tokens[SOAK_RUNS]; } soak_plan[RANKS];
static const uint16_t *soak_y;

/* Other tokens in each run, often none, now on this handle and now on that; each must get the bits it always gets. */
static moek_status soak_rank(rank *r)
{
    const size_t row = 2 * HIDDEN;
    moek_status status = MOEK_OK;
    int run, i;
    for (run = 0; run < (fewer ? SOAK_RUNS / 8 : SOAK_RUNS) && status == MOEK_OK; run++) {
        const size_t first = (size_t)soak_plan[r->number].first[run];
        moek_args a = r->args[run / 3 % 2];
        a.tokens = soak_plan[r->number].tokens[run];
        a.x = (const char *)a.x + row * first;
        a.topk_ids += first * TOPK;
        a.topk_weights += first * TOPK;
        for (i = 0; i < (run + r->number * 5) % 7; i++) sched_yield();
        status = moek_run(&r->plan, &a, NULL);
        r->answer += status == MOEK_OK && memcmp(r->y, soak_y + first * HIDDEN, row * (size_t)a.tokens);
    }
    return status;
}
static void test_soak(void)
{
    int kind, r, i;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        scene *s = scene_new(kind, MOEK_EP_EXACT, 3 + kind, FORMAT_BLOCKED);
        s->group.handles = 2;
        s->config.hidden = HIDDEN; s->config.inter = 16;
        say(s, "many runs");
        whole_of(s);
        for (r = 0; r < s->group.ranks; r++)
            for (i = 0; i < SOAK_RUNS; i++) {
                const int n = rng_below(3) ? rng_below(MOST + 1) : 0;
                soak_plan[r].tokens[i] = n;
                soak_plan[r].first[i] = rng_below(s->total - n + 1);
            }
        if (run_one_rank(s) && planned(s)) {
            for (r = 0; r < s->group.ranks; r++) {     /* all of them begin at the first token of all */
                rank *k = &s->rank[r];
                for (i = 0; i < 2; i++) {
                    k->args[i].x = s->whole.args.x;
                    k->args[i].topk_ids = s->whole.args.topk_ids;
                    k->args[i].topk_weights = s->whole.args.topk_weights;
                }
            }
            soak_y = s->one;
            if (ran(s, soak_rank))
                for (r = 0; r < s->group.ranks; r++)
                    CHECK(!s->rank[r].answer, "%s: rank %d: %d runs with other bits", s->what, r, s->rank[r].answer);
        }
        forget(s);
    }
}

/* ---- capacity ---------------------------------------------------------------------------------------------------- */

/* Too much for a rank: an error on all, the same sentence, nothing written; and then less. */
static void test_capacity(void)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_EXACT, 4, FORMAT_PLAIN);
    int32_t *ids;
    int r, i, n, runs;
    s->group.max_rows = 17;                            /* 24 at the most, and 18 in the first routing */
    give_tokens(s, EVEN);
    say(s, "capacity");
    whole_of(s);
    n = s->total * TOPK;
    ids = s->whole.args.topk_ids;
    for (i = 0; i < n; i++) ids[i] = i / TOPK < 18 ? i % TOPK : -1;                /* experts 0, 1, 2: all of rank 0 */
    if (run_one_rank(s) && planned(s)) {
        for (runs = 0; runs < 3; runs++) {
            each_rank(s, run_rank);
            for (r = 0; r < 4; r++) {
                const rank *k = &s->rank[r];
                size_t j, written = 0;
                for (j = 0; j < 2 * HIDDEN * (size_t)k->tokens; j++) written += k->y[j] != LAYER_POISON;
                CHECK(k->status == MOEK_E_CAPACITY && strstr(k->why, "rank 0 would receive 18 rows") && !written,
                      "%s: rank %d: %s: %s", s->what, r, moek_status_name(k->status), k->why);
                CHECK(moek_ep_poll(&k->ep, NULL) == MOEK_OK, "%s: ended the group", s->what);
            }
        }
        ids[17 * TOPK] = ids[17 * TOPK + 1] = ids[17 * TOPK + 2] = -1;            /* 17 */
        free(s->one);
        if ((s->one = layer_y(&s->whole, moek_run)) != NULL && ran(s, run_rank)) compare(s);
    }
    forget(s);
}

/* ---- when a rank stops ------------------------------------------------------------------------------------------- */

static void poll_all(scene *s, unsigned dead, int peer, int phase, moek_status first)
{
    int r, timeouts = 0, alive = 0;
    for (r = 0; r < s->group.ranks; r++) {
        const rank *k = &s->rank[r];
        moek_ep_error e;
        char text[2000];
        const moek_status polled = moek_ep_poll(&k->ep, &e);
        if (dead >> r & 1) continue;
        alive++;
        CHECK(k->status == first || k->status == MOEK_E_ABORTED, "%s: rank %d: %s: %s", s->what, r,
              moek_status_name(k->status), k->why);
        timeouts += k->status == first;
        CHECK(polled == k->status && e.cause == first && e.phase == phase &&
              (peer < 0 || e.peer == peer), "%s: rank %d: status %d, cause %d, peer %d, phase %d", s->what, r,
              (int)e.status, (int)e.cause, e.peer, e.phase);
        CHECK(strstr(k->why, "ended the group") != NULL, "%s: rank %d says: %s", s->what, r, k->why);
        moek_ep_describe(&k->ep, text, sizeof text);
        CHECK(strstr(text, "ended     ") != NULL, "%s: describe says: %s", s->what, text);
    }
    CHECK(timeouts >= 1 && timeouts <= alive, "%s: %d of %d have the first error", s->what, timeouts, alive);
}

static moek_status stop_after_send(rank *r)
{
    moek_step step;
    moek_status status = moek_begin(&r->plan, &r->args[0], &step);
    if (status == MOEK_OK) status = moek_route(&step, NULL);
    if (status == MOEK_OK) status = moek_prepare_send(&step, NULL);
    if (status != MOEK_OK || r->number == 1) return status;                        /* rank 1 is gone */
    if ((status = moek_prepare_receive(&step, NULL)) == MOEK_OK) status = moek_experts_apply(&step, NULL);
    return status == MOEK_OK ? moek_finalize(&step, NULL) : status;
}
static moek_status abort_run(rank *r)
{
    if (r->number != 2) return run_rank(r);
    moek_ep_abort(&r->ep);
    return run_rank(r);
}
/* A rank that is not there, one that stops in the middle, one that gives up. */
static void test_dead_rank(void)
{
    int kind;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        const int combine = kind == MOEK_EP_ALLTOALL ? MOEK_EP_COUNTS : MOEK_EP_DISPATCH;
        int how;
        for (how = fewer ? kind - 1 : 0; how < (fewer ? kind : 3); how++) {
            scene *s = scene_new(kind, MOEK_EP_REDUCED, 4, FORMAT_PLAIN);
            uint64_t start;
            int r;
            s->group.timeout_ms = how == 2 ? 60000 : SOON;
            say(s, how == 0 ? "a rank is dead" : how == 1 ? "a rank stops" : "a rank gives up");
            whole_of(s);
            if (run_one_rank(s) && planned(s)) {
                start = (uint64_t)time(NULL);
                if (how == 0) { each_rank_but(s, 2, run_rank); poll_all(s, 2, 1, combine, MOEK_E_TIMEOUT); }
                if (how == 1) {
                    each_rank(s, stop_after_send);
                    CHECK(s->rank[1].status == MOEK_OK, "%s: %s", s->what, s->rank[1].why);
                    poll_all(s, 2, 1, MOEK_EP_COMBINE, MOEK_E_TIMEOUT);
                }
                if (how == 2) { each_rank(s, abort_run); poll_all(s, 0, 2, MOEK_EP_OPENING, MOEK_E_ABORTED); }
                CHECK((uint64_t)time(NULL) - start < 20, "%s: took %d s", s->what, (int)((uint64_t)time(NULL) - start));
                for (r = 0; r < 4; r++) {              /* y is not written, and the next run fails, too */
                    rank *k = &s->rank[r];
                    size_t j, written = 0;
                    if (r == 1) continue;
                    for (j = 0; j < 2 * HIDDEN * (size_t)k->tokens; j++) written += k->y[j] != LAYER_POISON;
                    CHECK(!written && run_rank(k) == k->status, "%s: rank %d wrote y, or goes on", s->what, r);
                }
                for (r = 0; r < 4; r++) {              /* opened again, in the same place: plans are still good */
                    memset(s->rank[r].window, 0, s->rank[r].window_size);
                    s->rank[r].group.timeout_ms = 60000;
                }
                each_rank(s, open_rank);
                if (ran(s, run_rank)) compare(s);
            }
            forget(s);
        }
    }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

#ifdef MAP_ANONYMOUS
/* What a rank does as a process of its own; 0: as it should be.  Rank 1, if it is to die, does so before its run. */
static int process(scene *s, rank *r, int dies)
{
    const size_t bytes = 2 * (size_t)s->config.hidden * (size_t)s->tokens[r->number];
    moek_ep_error e;
#ifdef _OPENMP
    omp_set_num_threads(1);                            /* the parent's other threads are not here */
#endif
    if (open_rank(r) != MOEK_OK || !plan_rank(s, r)) return 1;
    if (dies && r->number == 1) raise(SIGKILL);
    r->status = run_rank(r);
    if (!dies) return r->status != MOEK_OK || memcmp(r->y, (const char *)s->one + 2 * HIDDEN * r->first, bytes);
    return moek_ep_poll(&r->ep, &e) != r->status || e.cause != MOEK_E_TIMEOUT || e.peer != 1;
}
/* Windows may as well be memory that processes share; kill -9 is then what it says. */
static void test_processes(void)
{
    int kind, dies, r, first;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
        for (dies = 0; dies < 2; dies++) {
            scene *s = scene_new(kind, MOEK_EP_EXACT, 4, FORMAT_BLOCKED);
            pid_t child[RANKS];
            size_t size;
            say(s, dies ? "processes, one is killed" : "processes");
            give_tokens(s, UNEVEN);
            if (dies) s->group.timeout_ms = SOON;
            whole_of(s);
            if (!run_one_rank(s)) { forget(s); continue; }
            new_windows(s);
            size = s->rank[0].window_size;
            fflush(stdout);
            for (r = 0; r < 4; r++)
                s->base[r] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            for (r = 0, first = 0; r < 4; first += s->tokens[r++]) {
                s->rank[r].first = first;
                child[r] = fork();
                if (child[r] == 0) _exit(process(s, &s->rank[r], dies));
            }
            for (r = 0; r < 4; r++) {
                int status = 0;
                waitpid(child[r], &status, 0);
                if (dies && r == 1) CHECK(WIFSIGNALED(status), "%s: rank 1 lives", s->what);
                else CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: rank %d: status %d", s->what, r, status);
            }
            for (r = 0; r < 4; r++) munmap(s->base[r], size);
            forget(s);
        }
    }
}
#else
static void test_processes(void) { check_skipped++; }
#endif

/* ---- what is refused --------------------------------------------------------------------------------------------- */

#define EXPLAINS(change, words) do { \
        moek_config layer_ = c; \
        moek_ep_config g_ = g; \
        char text_[4000]; \
        g_.layer = &layer_; \
        change; \
        moek_ep_explain(&g_, text_, sizeof text_); \
        CHECK(strstr(text_, words) != NULL, "%s: explain says: %s", #change, text_); \
        CHECK((moek_ep_window_size(&g_) > 0) == (strstr(text_, "window") != NULL), "%s: window size", #change); \
    } while (0)

static void test_selection(void)
{
    moek_experts own = { "mine", MOEK_STANDARD, MOEK_NOOP, 0, NULL, NULL, NULL, NULL };
    moek_ep_config g;
    moek_config c;
    memset(&g, 0, sizeof g);
    memset(&c, 0, sizeof c);
    c.hidden = 7168; c.inter = 2048; c.experts = 256; c.topk = 8; c.quant = FORMAT_BLOCKED; c.act = MOEK_SILU;
    c.max_tokens = 128;
    g.ranks = 4;
    EXPLAINS((void)0, "low_latency: taken");
    EXPLAINS((void)0, "alltoall: not asked, a better one was taken");
    EXPLAINS((void)0, "4 ranks, in host memory, 256 experts (64 here)");
    EXPLAINS(layer_.max_tokens = 4096, "low_latency: for up to 256 tokens a rank, not 4096");
    EXPLAINS(layer_.max_tokens = 4096, "alltoall: taken");
    EXPLAINS(layer_.max_tokens = 4096; layer_.chunk_tokens = 64, "low_latency: taken");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2, "alltoall: 8 slots reach 100 % of 2 ranks");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2, "allgather: taken");
    EXPLAINS(layer_.max_tokens = 4096; g_.ranks = 2; g_.max_rows = 5000, "alltoall: taken");
    EXPLAINS(g_.kind = MOEK_EP_ALLGATHER, "low_latency: not demanded");
    EXPLAINS(g_.kind = MOEK_EP_ALLGATHER, "allgather: taken");
    EXPLAINS(g_.kind = MOEK_EP_LOW_LATENCY; layer_.max_tokens = 300, "low_latency: taken");
    EXPLAINS(layer_.experts_impl = &own, "low_latency: experts mine take standard format");
    EXPLAINS(layer_.experts_impl = &own; g_.combine = MOEK_EP_EXACT, "alltoall: experts mine add up by themselves");
    EXPLAINS(layer_.format = MOEK_BATCHED; g_.kind = MOEK_EP_ALLTOALL, "alltoall: layer.format is MOEK_BATCHED");
    EXPLAINS(g_.ranks = 0, "rank is 0 of 0 ranks");
    EXPLAINS(g_.rank = 4, "rank is 4 of 4 ranks");
    EXPLAINS(g_.ranks = 65, "rank is 0 of 65 ranks");
    EXPLAINS(g_.layer = NULL, "layer is NULL");
    EXPLAINS(g_.kind = 9, "kind is 9");
    EXPLAINS(g_.combine = 9, "combine is 9");
    EXPLAINS(g_.placement = 9, "placement is 9");
    EXPLAINS(g_.handles = 3, "handles is 3; 1 or 2");
    EXPLAINS(g_.timeout_ms = -1, "timeout_ms -1");
    EXPLAINS(g_.transport = 3, "transport is 3; MOEK_EP_HOST or MOEK_EP_GPU");
    if (!MEM_CUDA) EXPLAINS(g_.transport = MOEK_EP_GPU, "compiled without nvcc");
    EXPLAINS(layer_.hidden = 0, "config.hidden is 0");
    EXPLAINS(layer_.quant = 77, "config.quant is 77");
    EXPLAINS(layer_.max_tokens = 100000000, "overflow 31 bits");
    CHECK(moek_ep_explain(NULL, NULL, 0) > 0 && !moek_ep_window_size(NULL), "explain of NULL");
    {
        const int32_t owner[256] = { 0, 1, 2, 4 };
        EXPLAINS(g_.owner = owner, "owner[3] is 4; ranks are 0 to 3");
    }
}

/* What the exchange rests on: no layer of a group may differ in it. */
static int plan_rests_on(const char *field)
{
    static const char *const all[] = {
        "hidden", "experts", "topk", "shared_slots", "quant", "dtype", "ue8m0", "router_weight_on_input",
        "physical_experts", "max_rows_per_expert", "chunks of a run (max_tokens by chunk_tokens)"
    };
    int i, is = 0;
    for (i = 0; i < (int)(sizeof all / sizeof *all); i++) is |= !strcmp(field, all[i]);
    return is;
}
/* A plan that is made later has the fields that ranks compared; with mixed_layers, those that the exchange rests on. */
static void test_plan_field(int i, int mixed)
{
    const ep_field *const f = &ep_fields[i];
    moek_ep_config g;
    moek_config layer, c;
    moek_plan plan;
    moek_ep ep;
    void *base[1];
    size_t size;
    char words[80];
    memset(&g, 0, sizeof g);
    g.ranks = 1; g.kind = MOEK_EP_ALLTOALL; g.transport = MOEK_EP_HOST; g.mixed_layers = mixed;
    ep_fields_layer(f->layer, &g, &layer);
    g.layer = &layer;
    size = moek_ep_window_size(&g);
    base[0] = memset(mem_alloc(0, size), 0, size);
    if (CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "%s: %s", f->name, ep.why)) {
        c = layer;
        moek_ep_join(&ep, &c);
        CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s: %s", f->name, plan.why);
        ep_fields_change(i, &g, &c);
        snprintf(words, sizeof words, "%s ", strcmp(f->name, "chunks of a run (max_tokens by chunk_tokens)")
                                             ? f->name : "max_tokens 65 by chunk_tokens 1, 65 chunks");
        if (mixed && !plan_rests_on(f->name))
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK, "%s, mixed layers: %s", f->name, plan.why);
        else
            CHECK(moek_plan_init(&plan, &c) == MOEK_E_BACKEND && strstr(plan.why, words) &&
                  strstr(plan.why, "(the group was opened with "), "%s: %s", f->name, plan.why);
    }
    mem_free(0, base[0]);
}
static void test_plan_fields(void)
{
    int i;
    for (i = 0; i < 2 * EP_FIELDS; i++) if (ep_fields[i / 2].plan) test_plan_field(i / 2, i % 2);
}

/* What means the same is no mismatch: a default that one rank says. */
static void test_same(void)
{
    int i;
    for (i = 0; i < 8; i++) {
        static const int layers[8] = { EP_OAI, EP_PLAIN, EP_PLAIN, EP_GROUPS, EP_FP8, EP_FEW, EP_PLAIN, EP_PLAIN };
        ep_fields_rank rank[EP_FIELDS_RANKS];
        void *window[2 * EP_FIELDS_RANKS + 1];
        int r;
        memset(rank, 0, sizeof rank);
        for (r = 0; r < EP_FIELDS_RANKS; r++) {
            moek_ep_config *g = &rank[r].group;
            moek_config *c = &rank[r].config;
            g->rank = r; g->ranks = EP_FIELDS_RANKS; g->transport = MOEK_EP_HOST; g->timeout_ms = 5000;
            ep_fields_layer(layers[i], g, c);
            if (i == 4) c->ue8m0 = 1;
            if (r != EP_FIELDS_ODD) continue;
            if (i == 0) { c->limit = 7; c->alpha = 1.702f; c->beta = 1; c->up_layout = MOEK_UP_INTERLEAVED; }
            if (i == 1) { c->scale = 1; c->dtype = MOEK_DTYPE_BF16; c->up_layout = MOEK_UP_HALVES; c->groups = 1; }
            if (i == 2) { c->physical_experts = 12; c->chunk_tokens = 6; c->logits_dtype = MOEK_DTYPE_F32; }
            if (i == 3) { c->router_eps = 1e-20f; c->group_score = MOEK_GROUP_SCORE_TOP2; }
            if (i == 4) c->ue8m0 = 512;
            if (i == 5) c->max_rows_per_expert = 18;
            if (i == 6) { c->beta = -0.0f; c->exclude = MOEK_BACKENDS_GPU; c->batch_invariant = 0; }
            if (i == 7) { g->max_rows = 18; g->handles = 1; g->max_tokens = 6; }
        }
        ep_fields_open_all(rank, window, 0);
        for (r = 0; r < EP_FIELDS_RANKS; r++)
            CHECK(rank[r].status == MOEK_OK, "the same, %d: rank %d: %s", i, r, rank[r].ep.why);
        for (r = 0; r < 2 * EP_FIELDS_RANKS + 1; r++) mem_free(0, window[r]);
    }
}

/* Configs that no plan has looked at, with some fields as large or small as they can be: sizes that are right or 0, and
 * a sentence.  (To run with -fsanitize=undefined,address.) */
static void spoil(moek_ep_config *g, moek_config *c)
{
    static const int extremes[] = { INT_MIN, INT_MIN + 1, -129, -1, 0, 1, 2, 3, 16, 32, 64, 127, 1024, 65535, 65536,
                                    65537, 1 << 20, (1 << 24) - 8, 1 << 24, (1 << 24) + 1, 1 << 30, INT_MAX - 127,
                                    INT_MAX - 1, INT_MAX };
    static const float floats[] = { -1, 0, 1e-38f, 3.4e38f, INFINITY, NAN };
    int *const ints[] = {
        &c->hidden, &c->inter, &c->experts, &c->topk, &c->quant, &c->act, &c->max_tokens, &c->dtype, &c->up_layout,
        &c->ue8m0, &c->router_weight_on_input, &c->routing, &c->groups, &c->topk_groups, &c->logits_dtype,
        &c->shared_slots, &c->local_experts, &c->physical_experts, &c->max_replicas, &c->chunk_tokens, &c->format,
        &c->max_rows_per_expert, &c->batch_invariant, &c->weight_layout, &c->group_score, &c->up_scales,
        &c->inter_offset, &c->max_tokens, &c->hidden, &g->rank, &g->ranks, &g->kind, &g->combine, &g->placement,
        &g->max_tokens, &g->max_rows, &g->handles, &g->timeout_ms, &g->max_tokens, &g->ranks
    };
    float *const of[] = { &c->alpha, &c->beta, &c->limit, &c->scale, &c->shared_weight, &c->router_eps };
    int n;
    for (n = 1 + rng_below(4); n; n--)
        if (rng_below(6)) *ints[rng_below((int)(sizeof ints / sizeof *ints))] = extremes[rng_below(24)];
        else *of[rng_below(6)] = floats[rng_below(6)];
}
static void test_extremes(void)
{
    int i, opened_ = 0, refused = 0;
    for (i = 0; i < (quick ? 8000 : 40000); i++) {
        moek_ep_config g;
        moek_config c;
        moek_plan plan;
        moek_ep ep;
        char text[4000];
        void *base[1];
        double least;
        size_t size;
        memset(&g, 0, sizeof g);
        g.ranks = 1 + rng_below(8); g.kind = rng_below(4); g.combine = rng_below(3); g.transport = MOEK_EP_HOST;
        ep_fields_layer(rng_below(EP_CHUNKS), &g, &c);
        spoil(&g, &c);
        g.layer = &c;
        size = moek_ep_window_size(&g);
        moek_ep_explain(&g, text, sizeof text);
        CHECK((size > 0) == (strstr(text, "\nwindow ") != NULL), "%lu bytes, and explain says: %s", (unsigned long)size,
              text);
        refused += !size;
        if (!size) continue;
        least = g.max_tokens ? g.max_tokens : c.chunk_tokens && c.chunk_tokens < c.max_tokens ? c.chunk_tokens
              : c.max_tokens;                          /* of a token: a row of T that comes back for it */
        least *= 2.0 * c.hidden * (g.handles ? g.handles : 1);
        CHECK((double)size >= least && size % 4096 == 0, "%lu bytes, at least %.0f: %s", (unsigned long)size, least,
              text);
        if (size > 1 << 22) continue;
        g.ranks = 1; g.rank = 0;                       /* (a group of one: nobody has to come) */
        if ((size = moek_ep_window_size(&g)) == 0 || size > 1 << 22) continue;
        base[0] = memset(mem_alloc(0, size), 0, size);
        if (CHECK(moek_ep_open(&ep, &g, base) == MOEK_OK, "%s", ep.why)) {
            moek_ep_join(&ep, &c);
            opened_++;
            CHECK(moek_plan_init(&plan, &c) == MOEK_OK || plan.why[0], "refused without a sentence");
        }
        mem_free(0, base[0]);
    }
    CHECK(opened_ > 1000 && refused > 1000, "%d configs open, %d do not", opened_, refused);
}

/* Ranks that were given different things: all of them learn it, at open. */
static void mismatch(void (*change)(rank *), const char *words)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_REDUCED, 3, FORMAT_PLAIN);
    int r, said = 0;
    s->group.timeout_ms = 5000;
    say(s, words);
    new_windows(s);
    change(&s->rank[2]);
    each_rank(s, open_rank);
    for (r = 0; r < 3; r++) {
        const moek_status status = s->rank[r].status;
        CHECK(status == MOEK_E_MISMATCH, "%s: rank %d: %s: %s", s->what, r, moek_status_name(status),
              s->rank[r].ep.why);
        CHECK(moek_run(&s->rank[r].plan, &s->rank[r].args[0], NULL) == MOEK_E_ARGUMENT, "%s: runs", s->what);
        said += strstr(s->rank[r].ep.why, words) != NULL;
    }
    CHECK(said == 3, "%s: not all say it: %s / %s / %s", s->what, s->rank[0].ep.why, s->rank[1].ep.why,
          s->rank[2].ep.why);
    forget(s);
}
static void other_combine(rank *r) { r->group.combine = MOEK_EP_REDUCED_F32; }
static void other_rows(rank *r) { r->group.max_rows = 3; }
static void other_placement(rank *r) { r->group.placement = MOEK_EP_ROUND_ROBIN; }

/* A rank that never comes. */
static void test_absent(void)
{
    scene *s = scene_new(MOEK_EP_LOW_LATENCY, MOEK_EP_REDUCED, 4, FORMAT_PLAIN);
    int r;
    s->group.timeout_ms = SOON;
    say(s, "a rank does not open");
    new_windows(s);
    each_rank_but(s, 4, open_rank);
    for (r = 0; r < 4; r++) {
        const moek_ep *ep = &s->rank[r].ep;
        if (r == 2) continue;
        CHECK((s->rank[r].status == MOEK_E_TIMEOUT || s->rank[r].status == MOEK_E_ABORTED) &&
              strstr(ep->why, "rank 2 did not answer within 700 ms") && !ep->open, "%s: rank %d: %s", s->what, r,
              ep->why);
    }
    forget(s);
}

static int again_on(scene *s)                          /* with windows that are in use */
{
    moek_ep ep;
    moek_ep_config g = s->group;
    g.layer = &s->config;
    return CHECK(moek_ep_open(&ep, &g, s->base) == MOEK_E_ARGUMENT && strstr(ep.why, "not zeroed"), "opened twice: %s",
                 ep.why);
}
static void test_refused(void)
{
    scene *s = scene_new(MOEK_EP_LOW_LATENCY, MOEK_EP_REDUCED, 2, FORMAT_PLAIN);
    rank *k = &s->rank[0];
    moek_config c;
    moek_plan plan;
    moek_weights w;
    moek_step step;
    moek_ep ep;
    moek_ep_config g;
    void *base[2];
    mismatch(other_combine, "combine: rank");
    mismatch(other_rows, "max_rows: rank");
    mismatch(other_placement, "the owners of experts");
    whole_of(s);
    if (!run_one_rank(s) || !planned(s)) { forget(s); return; }
    again_on(s);
    g = s->group; g.layer = &s->config;
    CHECK(moek_ep_open(&ep, NULL, s->base) == MOEK_E_ARGUMENT && moek_ep_open(NULL, &g, s->base) == MOEK_E_ARGUMENT &&
          moek_ep_open(&ep, &g, NULL) == MOEK_E_ARGUMENT, "open of NULL");
    base[0] = NULL; base[1] = s->base[1];
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "base[0] is NULL"), "%s", ep.why);
    base[0] = (char *)s->base[0] + 8;
    CHECK(moek_ep_open(&ep, &g, base) == MOEK_E_ARGUMENT && strstr(ep.why, "base[0] is not aligned"), "%s", ep.why);
    c = s->config;
    CHECK(moek_ep_join(&ep, &c) == MOEK_E_ARGUMENT && moek_ep_join(NULL, &c) == MOEK_E_ARGUMENT &&
          moek_ep_join(&k->ep, NULL) == MOEK_E_ARGUMENT, "join of what is not open");
#define NO_PLAN(change, words) \
    c = s->config; moek_ep_join(&k->ep, &c); change; \
    CHECK(moek_plan_init(&plan, &c) != MOEK_OK && strstr(plan.why, words), "%s: %s", #change, plan.why)
    NO_PLAN((c.backend = 0, c.exclude = 0), "the group is in host memory");
    NO_PLAN(c.hidden = 256, "hidden 256 (the group was opened with 128)");
    NO_PLAN(c.topk = 2, "topk 2 (the group was opened with 3)");
    NO_PLAN(c.quant = format_of_t(MOEK_DTYPE_FP16), "dtype");
    NO_PLAN(c.local_experts = 3, "local_experts 3");
    NO_PLAN(c.max_tokens = 100, "low_latency takes 6 tokens a rank, config.max_tokens is 100: set chunk_tokens");
#undef NO_PLAN
    w = k->w;
    w.expert_map = s->owner;
    plan = k->plan;
    CHECK(moek_plan_bind(&plan, &w) == MOEK_E_ARGUMENT && strstr(plan.why, "knows where experts are"), "%s", plan.why);
    k->args[0].handle = 1;
    CHECK(run_rank(k) == MOEK_E_ARGUMENT && strstr(k->why, "opened with handles = 1"), "handle 1: %s", k->why);
    k->args[0].handle = 0;
    CHECK(moek_begin(&k->plan, &k->args[0], &step) == MOEK_OK && moek_route(&step, NULL) == MOEK_OK &&
          moek_prepare_receive(&step, NULL) == MOEK_E_ARGUMENT && strstr(k->why, "where prepare_send comes next"),
          "receive before send: %s", k->why);
    CHECK(moek_prepare_send(&step, NULL) == MOEK_OK, "send: %s", k->why);
    CHECK(run_rank(k) == MOEK_E_ARGUMENT && strstr(k->why, "(prepare_receive comes next)"), "a second one: %s", k->why);
    CHECK(moek_ep_poll(&k->ep, NULL) == MOEK_OK && moek_ep_poll(NULL, NULL) == MOEK_E_ARGUMENT, "poll");
    forget(s);
}

/* A run that a group refuses has written nothing, of a caller's arrays or of the workspace: nor has a step that was
 * begun before. */
enum { NO_HANDLE, UNDER_WAY, ABORTED, CLOSED, OTHER_DEVICE, REFUSALS };
static moek_status send_only(rank *r)
{
    moek_step step;
    moek_status status = moek_begin(&r->plan, &r->args[0], &step);
    if (status == MOEK_OK) status = moek_route(&step, NULL);
    return status == MOEK_OK ? moek_prepare_send(&step, NULL) : status;
}
static void refuses(scene *s, int how)
{
    static const moek_status statuses[] = { MOEK_E_ARGUMENT, MOEK_E_ARGUMENT, MOEK_E_ABORTED, MOEK_E_ARGUMENT,
                                            MOEK_E_ARGUMENT };
    static const char *const words[] = { "opened with handles = 1", "(prepare_receive comes next)",
                                         "moek_ep_abort was called", "the group is not open",
                                         "the group was opened on 3" };
    rank *r = &s->rank[0];
    const size_t slots = (size_t)(r->tokens * TOPK), y = 2 * HIDDEN * (size_t)r->tokens;
    const size_t n[] = { 4 * slots, 4 * slots, y, r->args[0].workspace_size, 4 * EXPERTS };
    unsigned char *const ids = guarded(n[0], LAYER_POISON), *const weights = guarded(n[1], LAYER_POISON);
    unsigned char *const at[] = { ids, weights, r->y, r->workspace[0], (unsigned char *)r->load };
    unsigned char *before[5];
    moek_args a = r->args[0];
    moek_step begun, step;
    int i, k, written = 0;
    a.topk_ids = (int32_t *)(void *)ids; a.topk_weights = (float *)(void *)weights;
    CHECK(moek_begin(&r->plan, &a, &begun) == MOEK_OK, "%s: %s", s->what, r->why);
    if (how == NO_HANDLE) a.handle = begun.args.handle = 1;
    if (how == UNDER_WAY) ran(s, send_only);
    if (how == ABORTED) moek_ep_abort(&r->ep);
    if (how == CLOSED) r->ep.open = 0;
    if (how == OTHER_DEVICE) r->ep.device = 3;
    for (i = 0; i < 5; i++) before[i] = (unsigned char *)memcpy(malloc(n[i]), at[i], n[i]);
    for (i = 0; i < 4; i++) {
        moek_status status;
        snprintf(r->why, sizeof r->why, "nothing");
        status = i == 0 ? moek_run(&r->plan, &a, NULL) : i == 1 ? moek_begin(&r->plan, &a, &step)
               : i == 2 ? moek_route(&begun, NULL) : (a.tokens = 0, moek_run(&r->plan, &a, NULL));
        CHECK(status == statuses[how] && strstr(r->why, words[how]), "%s, %d: %s: %s", s->what,
              i, moek_status_name(status), r->why);
        for (k = 0; k < 5; k++) written |= memcmp(before[k], at[k], n[k]) != 0;
    }
    CHECK(!written, "%s: something was written", s->what);
    if (how == CLOSED) r->ep.open = 1;
    if (how == OTHER_DEVICE) r->ep.device = -1;
    for (i = 0; i < 5; i++) free(before[i]);
    drop(ids); drop(weights);
}
static void test_refused_first(void)
{
    static const char *const names[] = { "handle 1 of 1", "one under way", "aborted", "closed", "another device" };
    int kind, how;
    for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++)
        for (how = 0; how < REFUSALS; how++) {
            scene *s = scene_new(kind, MOEK_EP_REDUCED, 2, FORMAT_PLAIN);
            s->options = LAYER_LOGITS;
            s->config.routing = MOEK_ROUTE_SOFTMAX_RENORM;
            say(s, names[how]);
            whole_of(s);
            if (planned(s)) refuses(s, how);
            forget(s);
        }
}

/* ue8m0: a byte a scale on the wire, four to a word; and the group's layers all have it, or none. */
static void test_packed_scales(void)
{
    int ue8m0;
    for (ue8m0 = 0; ue8m0 < 2; ue8m0++) {
        scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_REDUCED, 2, FORMAT_BLOCKED);
        moek_config wide = s->config, c;
        moek_ep_config g = s->group;
        moek_plan plan;
        char text[2048];
        s->config.ue8m0 = wide.ue8m0 = ue8m0;
        wide.hidden = 640;
        g.layer = &wide;
        moek_ep_explain(&g, text, sizeof text);
        CHECK(strstr(text, ue8m0 ? ", 648 bytes a row" : ", 660 bytes a row"), "ue8m0 %d: %s", ue8m0, text);
        whole_of(s);
        if (run_one_rank(s) && planned(s)) {
            c = s->config;
            moek_ep_join(&s->rank[0].ep, &c);
            c.ue8m0 = !ue8m0;
            CHECK(moek_plan_init(&plan, &c) != MOEK_OK && strstr(plan.why, "ue8m0"), "ue8m0 %d: %s", ue8m0, plan.why);
        }
        forget(s);
    }
}

/* Every format: a row on the wire is as long as the format says, codes and scales; what arrives has the bits of one
 * rank.  hidden: scales of bytes fill words, or not. */
static int wire_bytes(const moek_format *f, int hidden, int ue8m0)
{
    const size_t h = (size_t)hidden, scales = moek_scale_bytes(&f->x_scale, 1, h) / (ue8m0 ? 4 : 1);
    if (!format_own_scales(f)) return 2 * hidden;       /* T, or maybe T */
    return (int)(moek_element_bytes(f->x, h) + (scales + 3) / 4 * 4);
}
static void wire_of(const flavour *is, int kind, int hidden)
{
    scene *s = scene_new(kind, MOEK_EP_EXACT, 3, is->f->number);
    char text[2048], words[40];
    moek_ep_config g = s->group;
    s->config.hidden = hidden; s->config.ue8m0 = is->ue8m0; s->config.block = format_block(is->f, kind);
    s->options = is->options;
    g.layer = &s->config;
    moek_ep_explain(&g, text, sizeof text);
    snprintf(words, sizeof words, ", %d bytes a row", wire_bytes(is->f, hidden, is->ue8m0));
    CHECK(strstr(text, words) != NULL, "%s, hidden %d: not%s: %s", s->what, hidden, words, text);
    snprintf(words, sizeof words, "hidden %d", hidden);
    say(s, words);
    if (is->ue8m0) say(s, "ue8m0");
    give_tokens(s, UNEVEN);
    whole_of(s);
    if (!by_rank(s)) checked(s, run_rank);
    forget(s);
}
static void test_wire(void)
{
    static const int hidden[] = { 128, 144, 176 };
    flavour all[3 * FORMATS];
    const int n = flavours(all);
    int i, kind, k;
    for (i = 0; i < n; i++)
        for (kind = 1; kind < MOEK_EP_KIND_COUNT_; kind++) {
            if (sample && quick && (i / 3 + kind) % 3) continue;       /* each flavour once */
            for (k = 0; k < 3; k++)
                if (!fewer || (i + kind + k) % 3 == 0) wire_of(&all[i], kind, hidden[k]);
        }
}

/* A static scale of x that ranks do not share: refused when they open; and in host memory a plan that has another. */
static void other_scale(rank *r) { r->group.x_scale = 0.25f; }
static void test_static_scale(void)
{
    scene *s = scene_new(MOEK_EP_ALLTOALL, MOEK_EP_EXACT, 3, format_nth(format_x_second, 0));
    moek_config c;
    moek_ep_config g;
    char text[2048];
    float other, given;
    int r;
    whole_of(s);
    s->group.timeout_ms = 5000;
    s->group.x_scale = given = *s->whole.w.x_scale;
    if (run_one_rank(s) && planned(s) && ran(s, run_rank)) {
        compare(s);
        other = nextafterf(given, 1);
        for (r = 0; r < 3; r++) s->rank[r].plan.weights.x_scale = &other;
        each_rank(s, run_rank);
        for (r = 0; r < 3; r++)
            CHECK(s->rank[r].status == MOEK_E_ARGUMENT && strstr(s->rank[r].why, "the group was opened with x_scale"),
                  "rank %d: %s: %s", r, moek_status_name(s->rank[r].status), s->rank[r].why);
    }
    new_windows(s);
    other_scale(&s->rank[1]);
    each_rank(s, open_rank);
    for (r = 0; r < 3; r++)
        CHECK(s->rank[r].status == MOEK_E_MISMATCH && strstr(s->rank[r].ep.why, "x_scale: rank ") &&
              strstr(s->rank[r].ep.why, "0.25"), "rank %d: %s: %s", r, moek_status_name(s->rank[r].status),
              s->rank[r].ep.why);
    g = s->group; c = s->config; g.layer = &c;
    c.quant = FORMAT_PLAIN;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "x of bf16 has no static scale: leave it 0"), "%s", text);
    c.quant = s->config.quant; g.x_scale = NAN;
    moek_ep_explain(&g, text, sizeof text);
    CHECK(strstr(text, "it must be finite"), "%s", text);
    forget(s);
}

/* ---- own experts ------------------------------------------------------------------------------------------------- */

/* They add up by themselves: out [rows] = sum over k here of weight * x; and want x unquantized. */
static moek_status sum_apply(const moek_experts *self, moek_step *step, moek_stream stream)
{
    const int slots = step->plan->slots, hidden = step->plan->config.hidden;
    const uint16_t *x = (const uint16_t *)step->a;
    int row, k, j;
    (void)self; (void)stream;
    for (row = 0; row < step->rows; row++) {
        float weight = 0;
        for (k = 0; k < slots; k++)
            if (step->expert_ids[row * slots + k] >= 0) weight += step->expert_weights[row * slots + k];
        for (j = 0; j < hidden; j++) {
            const size_t i = (size_t)row * (size_t)hidden + (size_t)j;
            ((uint16_t *)step->out)[i] = ref_to_t(weight * ref_get_t(x, i, MOEK_DTYPE_BF16), MOEK_DTYPE_BF16);
        }
    }
    return step->a_scale ? MOEK_E_ARGUMENT : MOEK_OK;
}
static void test_own_experts(void)
{
    static const moek_experts own = { "sum", MOEK_STANDARD, MOEK_NOOP, 1, NULL, NULL, NULL, sum_apply };
    int kind;
    for (kind = MOEK_EP_ALLTOALL; kind <= MOEK_EP_ALLGATHER; kind++) {
        scene *s = scene_new(kind, MOEK_EP_REDUCED, 4, FORMAT_BLOCKED);
        int t, k, j, r, far = 0;
        say(s, "own experts");
        give_tokens(s, UNEVEN);
        whole_of(s);
        give_ids(s, SOME_MISSING);
        s->config.experts_impl = &own;
        if (planned(s) && ran(s, run_rank)) {
            for (r = 0; r < 4; r++) {
                for (t = 0; t < s->tokens[r]; t++) {
                    const int row = s->rank[r].first + t;
                    double weight = 0;
                    for (k = 0; k < TOPK; k++)
                        if (s->whole.args.topk_ids[row * TOPK + k] >= 0)
                            weight += s->whole.args.topk_weights[row * TOPK + k];
                    for (j = 0; j < HIDDEN; j++) {
                        const double want = weight * ref_get_t(s->whole.args.x, (size_t)(row * HIDDEN + j),
                                                               MOEK_DTYPE_BF16);
                        const double got = ref_get_t(s->rank[r].y, (size_t)(t * HIDDEN + j), MOEK_DTYPE_BF16);
                        far += fabs(got - want) > fabs(want) / 100;
                    }
                }
            }
            CHECK(!far, "%s: %d entries", s->what, far);
        }
        forget(s);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void run(const char *name, void (*test)(void))
{
    const int failed = check_failed;
    const double start = seconds();
    rng_seed(1);
    worst = 0;
    test();
    printf("%-18s worst %.3f of the tolerance, %.1f s  %s\n", name, worst, seconds() - start,
           check_failed == failed ? "ok" : "FAILED");
    fflush(stdout);
}
#define RUN(test) run(#test, test)
int main(int argc, char **argv)
{
    for (; argc > 1; argc--) {
        sample |= !strcmp(argv[argc - 1], "sample");
        quick |= !strcmp(argv[argc - 1], "quick");
    }
    fewer = sample || quick;
    RUN(test_selection);
    RUN(test_all);
    RUN(test_ranks);
    RUN(test_chunks);
    RUN(test_shared_slots);
    RUN(test_odd_sizes);
    RUN(test_nonfinite);
    RUN(test_slots_without);
    RUN(test_bounds);
    RUN(test_two_in_flight);
    RUN(test_one_thread);
    RUN(test_soak);
    RUN(test_capacity);
    RUN(test_dead_rank);
    if (!sample) RUN(test_processes);
    RUN(test_absent);
    RUN(test_plan_fields);
    RUN(test_same);
    RUN(test_extremes);
    RUN(test_refused);
    RUN(test_refused_first);
    RUN(test_packed_scales);
    RUN(test_wire);
    RUN(test_static_scale);
    RUN(test_own_experts);
    return check_end();
}
