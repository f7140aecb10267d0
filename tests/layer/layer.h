/* layer.h -- what a test of a whole layer needs: its tensors on the host and where its rows work, runs that check what
 * every run promises, and the double-precision result.
 *
 * Structs hold host pointers; LAYER_MOVE turns them into the backend's.  Every array has a stretch on both sides that
 * must come back untouched, and so must inputs.  Outputs start as poison, the workspace as NaN in every format, and in
 * the second run as large numbers (a dynamic scale passes over NaN).  Two runs must give the same bits. */
#ifndef LAYER_H
#define LAYER_H
#include "../areas.h"
#include "../check.h"
#include "../oracle/ref.h"

enum { LAYER_GUARD = 256, LAYER_ARRAYS = 48, LAYER_POISON = 0xa5 };
enum { LAYER_IN, LAYER_OUT };
/* biases; static scales and zero points, where the format has such; logits, not ids */
enum { LAYER_BIAS = 1, LAYER_STATIC = 2, LAYER_LOGITS = 4, LAYER_ZERO = 8 };

static int layer_arch;                                 /* of the backend under test: 0, 80 or 90 */
static void *layer_state;                              /* args.state of the next runs, or NULL */
static void (*layer_says)(const char *what);           /* or NULL: what comes next */

/* repacked: what lies there in place of host, or NULL. */
typedef struct layer_array { unsigned char *host, *got, *there, *repacked; size_t bytes; int kind; } layer_array;
typedef struct layer {
    moek_config config;
    const moek_format *format, *down;                  /* of quant; of down_quant, or NULL; with config.block */
    moek_plan plan;
    moek_weights w;                                    /* host pointers */
    moek_args args;                                    /* host pointers */
    int options, up_rows;                              /* up_rows: of w_up, of one expert */
    layer_array array[LAYER_ARRAYS];
    area_list areas;                                   /* in which arrays lie */
    int arrays;
    char why[MOEK_WHY], what[160];
} layer;
typedef moek_status (*layer_driver)(const moek_plan *plan, const moek_args *args, moek_stream stream);

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static inline void *layer_array_new(layer *l, size_t bytes, int kind)
{
    layer_array *a = &l->array[l->arrays++];
    const size_t all = bytes + 2 * LAYER_GUARD;
    area_place place;
    if (l->arrays > LAYER_ARRAYS) abort();
    place = areas_take(&l->areas, layer_arch, all);
    a->host = place.host, a->got = place.got, a->there = place.there;
    a->bytes = bytes;
    a->kind = kind;
    a->repacked = NULL;
    memset(a->host, kind == LAYER_IN ? 0xff : LAYER_POISON, all);
    return a->host + LAYER_GUARD;
}
static inline layer_array *layer_find(layer *l, const void *host)
{
    int i;
    for (i = 0; i < l->arrays; i++) if (l->array[i].host + LAYER_GUARD == host) return &l->array[i];
    abort();
}
static inline void *layer_got(layer *l, const void *host) { return layer_find(l, host)->got + LAYER_GUARD; }
static inline void layer_move_(layer *l, void *field)
{
    void *p;
    memcpy(&p, field, sizeof p);
    if (p) p = layer_find(l, p)->there + LAYER_GUARD;
    memcpy(field, &p, sizeof p);
}
#define LAYER_MOVE(field) layer_move_(l, &(field))

static inline moek_weights layer_weights(layer *l)
{
    moek_weights w = l->w;
    LAYER_MOVE(w.w_gate); LAYER_MOVE(w.w_gate_scale); LAYER_MOVE(w.w_gate_bias);
    LAYER_MOVE(w.w_up); LAYER_MOVE(w.w_down); LAYER_MOVE(w.w_up_scale); LAYER_MOVE(w.w_down_scale);
    LAYER_MOVE(w.w_up_bias); LAYER_MOVE(w.w_down_bias); LAYER_MOVE(w.x_scale); LAYER_MOVE(w.h_scale);
    LAYER_MOVE(w.router_bias); LAYER_MOVE(w.router_expert_scale); LAYER_MOVE(w.router_table);
    LAYER_MOVE(w.replicas); LAYER_MOVE(w.replica_count); LAYER_MOVE(w.expert_map); LAYER_MOVE(w.expert_load);
    LAYER_MOVE(w.w_up_global_scale); LAYER_MOVE(w.w_down_global_scale); LAYER_MOVE(w.w_gate_global_scale);
    LAYER_MOVE(w.w_up_zero); LAYER_MOVE(w.w_down_zero); LAYER_MOVE(w.w_gate_zero);
    return w;
}
static inline moek_args layer_args(layer *l)
{
    moek_args a = l->args;
    LAYER_MOVE(a.x); LAYER_MOVE(a.router_logits); LAYER_MOVE(a.topk_ids); LAYER_MOVE(a.topk_weights); LAYER_MOVE(a.y);
    LAYER_MOVE(a.workspace); LAYER_MOVE(a.token_ids); LAYER_MOVE(a.is_padding); LAYER_MOVE(a.shared_y);
    LAYER_MOVE(a.topk_ids64); LAYER_MOVE(a.shared_weights);
    a.why = l->why;
    a.why_size = sizeof l->why;
    a.state = layer_state;
    return a;
}
static inline void *layer_zeros(size_t bytes)
{
    void *zeros = calloc(1, bytes), *there = mem_alloc(layer_arch, bytes);
    mem_put(layer_arch, there, zeros, bytes);
    free(zeros);
    return there;
}
/* For things done on the stream between launches. */
static inline void layer_copy(void *to, const void *from, size_t bytes, moek_stream stream)
{
#if MEM_CUDA
    if (layer_arch) { mem_must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)); return; }
#endif
    (void)stream;
    memcpy(to, from, bytes);
}

/* ---- rows that do not lie side by side --------------------------------------------------------------------------- */

/* Where rows of x, of y and of shared_y lie: strides (0: hidden), with a stretch in front and behind that is nobody's.
 * in_place: y is x.  over: shared_y is y.  What drives a run. */
static struct layer_strides { size_t x, y, shared; int in_place, over; } layer_strides_now;
static layer_driver layer_strided_drive;
typedef struct layer_rows { char *there; size_t rows, row, step, bytes; } layer_rows;        /* in bytes */

/* `rows` of hidden at `from` (NULL: none), in new memory of poison, `stride` apart. */
static inline layer_rows layer_spread(const void *from, int rows, int hidden, size_t stride, moek_stream stream)
{
    layer_rows r;
    unsigned char *poison;
    size_t i;
    r.rows = (size_t)rows, r.row = 2 * (size_t)hidden, r.step = stride ? 2 * stride : r.row;
    r.bytes = 2 * LAYER_GUARD + r.rows * r.step;
    poison = (unsigned char *)malloc(r.bytes);
    memset(poison, LAYER_POISON, r.bytes);
    r.there = (char *)mem_alloc(layer_arch, r.bytes);
    mem_put(layer_arch, r.there, poison, r.bytes);
    free(poison);
    for (i = 0; from && i < r.rows; i++)
        layer_copy(r.there + LAYER_GUARD + i * r.step, (const char *)from + i * r.row, r.row, stream);
    return r;
}
/* The rows back side by side (to NULL: nowhere), the memory free.  Returns how many bytes between rows, or beside them,
 * are no longer poison; `kept`: and of rows that differ from those. */
static inline int layer_gather(layer_rows r, void *to, const void *kept, moek_stream stream)
{
    unsigned char *got = (unsigned char *)malloc(r.bytes), *was = (unsigned char *)malloc(r.rows * r.row + 1);
    size_t i;
    int other = 0;
    for (i = 0; to && i < r.rows; i++)
        layer_copy((char *)to + i * r.row, r.there + LAYER_GUARD + i * r.step, r.row, stream);
    mem_get(layer_arch, got, r.there, r.bytes);
    if (kept) mem_get(layer_arch, was, kept, r.rows * r.row);
    for (i = 0; i < r.bytes; i++) {
        const size_t in = i - LAYER_GUARD, row = in / r.step, at = in % r.step;
        const int is_row = i >= LAYER_GUARD && row < r.rows && at < r.row;
        if (is_row) other += kept && got[i] != was[row * r.row + at];
        else other += got[i] != LAYER_POISON;
    }
    free(got); free(was);
    mem_free(layer_arch, r.there);
    return other;
}
/* A run of the same arguments, with strides: y is what it is without. */
static inline moek_status layer_strided(const moek_plan *plan, const moek_args *args, moek_stream stream)
{
    const struct layer_strides s = layer_strides_now;
    const int n = args->tokens, hidden = plan->config.hidden;
    layer_rows x = layer_spread(args->x, n, hidden, s.x, stream), y = x, shared;
    moek_args a = *args;
    moek_status status;
    int other = 0;
    memset(&shared, 0, sizeof shared);
    if (!s.in_place) y = layer_spread(s.over ? args->shared_y : NULL, n, hidden, s.y, stream);
    if (args->shared_y && !s.over) shared = layer_spread(args->shared_y, n, hidden, s.shared, stream);
    a.x = x.there + LAYER_GUARD, a.y = y.there + LAYER_GUARD;
    a.x_stride = s.x, a.y_stride = s.in_place ? s.x : s.y, a.shared_y_stride = s.over ? s.y : s.shared;
    if (args->shared_y) a.shared_y = s.over ? a.y : shared.there + LAYER_GUARD;
    status = (layer_strided_drive ? layer_strided_drive : moek_run)(plan, &a, stream);
    other += layer_gather(y, args->y, NULL, stream);
    if (!s.in_place) other += layer_gather(x, NULL, args->x, stream);
    if (shared.there) other += layer_gather(shared, NULL, args->shared_y, stream);
    CHECK(!other, "%d bytes beside rows, or of inputs, were written", other);
    return status;
}

/* ---- random tensors ---------------------------------------------------------------------------------------------- */

static inline void layer_fill_t(void *array, size_t n, double scale, int dtype)
{
    uint16_t some[1024];                               /* ref_to_t is slow: large arrays choose among as many */
    size_t i;
    for (i = 0; i < 1024 && i < n; i++) some[i] = ref_to_t(rng_normal() * scale, dtype);
    for (i = 0; i < n; i++) ((uint16_t *)array)[i] = some[n > 1024 ? rng_u32() % 1024 : i];
}
static inline const void *layer_new_t(layer *l, size_t n, double scale)
{
    void *array = layer_array_new(l, 2 * n, LAYER_IN);
    layer_fill_t(array, n, scale, l->config.dtype);
    return array;
}
/* The format of w_down and of h. */
static inline const moek_format *layer_down(const layer *l) { return l->down ? l->down : l->format; }
enum { LAYER_SECOND = 8 };                             /* global scales are a part of 1, the others as much larger */
/* Deviation 1 / sqrt(columns) after scaling. */
static inline const void *layer_new_weights(layer *l, const moek_format *f, size_t rows, size_t columns)
{
    const ref_number *const number = ref_element(f->w, l->config.dtype);
    const size_t n = rows * columns;
    unsigned some[1024];
    void *array;
    size_t i;
    if (format_plain(f)) return layer_new_t(l, n, 1 / sqrt((double)columns));
    array = layer_array_new(l, rows * moek_weight_bytes(f, 0, columns), LAYER_IN);
    if (f->only_blocks) {
        block_fill(f, array, rows, columns, (f->global_scale ? LAYER_SECOND : 1) / sqrt((double)columns), rng_u32());
        return array;
    }
    for (i = 0; i < 1024; i++) some[i] = ref_encode(number, ref_spread(number) * rng_normal());
    for (i = 0; i < n; i++) ref_put_code(number, array, i, some[rng_u32() % 1024]);
    return array;
}
static inline const float *layer_new_scales(layer *l, const moek_format *f, size_t experts, size_t rows,
                                            size_t columns)
{
    const moek_scale_shape *const of = &f->w_scale;
    const double spread = ref_spread(ref_element(f->w, l->config.dtype));
    const double size = (f->global_scale ? LAYER_SECOND : 1) / (spread * sqrt((double)columns));
    const size_t n = experts * moek_scale_count(of, rows, columns);
    void *s;
    size_t i;
    if (!n) return NULL;
    s = layer_array_new(l, experts * moek_scale_bytes(of, rows, columns), LAYER_IN);
    for (i = 0; i < n; i++) {
        const int sign = format_integers(f) && rng_below(2) ? -1 : 1;
        ref_put(ref_scale_type(of->type, l->config.dtype), s, i, sign * (0.5 + rng_uniform()) * size);
    }
    return (const float *)s;
}
static inline float *layer_new_f32(layer *l, size_t n, float low, float high)
{
    float *f = (float *)layer_array_new(l, 4 * n, LAYER_IN);
    size_t i;
    for (i = 0; i < n; i++) f[i] = low + (high - low) * rng_uniform();
    return f;
}
static inline const float *layer_new_second(layer *l, const moek_format *f, size_t n)
{
    return f->global_scale ? layer_new_f32(l, n, 0.5f / LAYER_SECOND, 1.5f / LAYER_SECOND) : NULL;
}
/* A static scale of x or of h, where the format must have it, or may. */
static inline const float *layer_new_static(layer *l, const moek_format *f)
{
    double largest = 1;
    float most;
    if (!format_x_second(f) && !(l->options & LAYER_STATIC && f->static_x)) return NULL;
    if (format_x_second(f)) largest = ref_largest(ref_scale_type(f->x_scale.type, l->config.dtype));
    most = (float)(4.5 / ref_largest(ref_element(f->x, l->config.dtype)) / largest);
    return layer_new_f32(l, 1, 0.9f * most, most);
}
/* Bytes of a row of zero points, one for each scale; of any codes. */
static inline size_t layer_zero_row(const moek_format *f, size_t columns)
{
    return moek_element_bytes(f->w, moek_scale_count(&f->w_scale, 1, columns));
}
static inline const void *layer_new_zeros(layer *l, const moek_format *f, size_t rows, size_t columns)
{
    const size_t n = rows * layer_zero_row(f, columns);
    uint8_t *zero;
    size_t i;
    if (!f->zero || !(l->options & LAYER_ZERO)) return NULL;
    zero = (uint8_t *)layer_array_new(l, n, LAYER_IN);
    for (i = 0; i < n; i++) zero[i] = (uint8_t)rng_below(256);
    return zero;
}
static inline int32_t *layer_new_i32(layer *l, size_t n)
{
    int32_t *p = (int32_t *)layer_array_new(l, 4 * n, LAYER_IN);
    memset(p, 0, 4 * n);
    return p;
}
/* `n` different numbers below `bound`. */
static inline void layer_choose(int32_t *ids, int n, int bound)
{
    int i, j;
    for (i = 0; i < n; i++) {
        ids[i] = rng_below(bound);
        for (j = 0; j < i; j++) if (ids[j] == ids[i]) { i--; break; }
    }
}
/* Of a token: all different, and far enough apart that no rounding changes their order. */
static inline void layer_fill_logits(const layer *l, void *array)
{
    const int n = l->config.experts, dtype = l->config.logits_dtype;
    int32_t *order = (int32_t *)malloc(4 * (size_t)n);
    int t, e;
    for (t = 0; t < l->args.tokens; t++) {
        layer_choose(order, n, n);
        for (e = 0; e < n; e++) {
            const size_t i = (size_t)t * n + e;
            const float x = (float)(order[e] - n / 2) * 4.0f / (float)n + (float)rng_below(4) / 64;
            if (dtype == MOEK_DTYPE_BF16 || dtype == MOEK_DTYPE_FP16) ((uint16_t *)array)[i] = ref_to_t(x, dtype);
            else ((float *)array)[i] = x;
        }
    }
    free(order);
}

static inline void layer_new_inputs(layer *l, int tokens)
{
    const moek_config *c = &l->config;
    const int slots = c->topk + c->shared_slots;
    const int f32 = c->logits_dtype != MOEK_DTYPE_BF16 && c->logits_dtype != MOEK_DTYPE_FP16;
    const int kind = l->options & LAYER_LOGITS ? LAYER_OUT : LAYER_IN;
    int t;
    l->args.tokens = tokens;
    l->args.x = layer_new_t(l, (size_t)tokens * c->hidden, 1);
    l->args.topk_ids = (int32_t *)layer_array_new(l, 4 * (size_t)tokens * slots, kind);
    l->args.topk_weights = (float *)layer_array_new(l, 4 * (size_t)tokens * slots, kind);
    l->args.y = layer_array_new(l, 2 * (size_t)tokens * c->hidden, LAYER_OUT);
    if (l->options & LAYER_LOGITS) {
        void *logits = layer_array_new(l, (f32 ? 4 : 2) * (size_t)tokens * c->experts, LAYER_IN);
        layer_fill_logits(l, logits);
        l->args.router_logits = logits;
        return;
    }
    for (t = 0; t < tokens; t++) layer_choose(l->args.topk_ids + t * slots, slots, c->experts + c->shared_slots);
    for (t = 0; t < tokens * slots; t++) l->args.topk_weights[t] = 0.05f + rng_uniform();
}

/* Logits with a gap of NaN behind each token's. */
static inline void layer_stretch_logits(layer *l, int gap)
{
    const int f32 = l->config.logits_dtype != MOEK_DTYPE_BF16 && l->config.logits_dtype != MOEK_DTYPE_FP16;
    const size_t element = f32 ? 4 : 2, row = element * (size_t)l->config.experts;
    const size_t stride = (size_t)(l->config.experts + gap);
    const char *from = (const char *)l->args.router_logits;
    char *to = (char *)layer_array_new(l, element * stride * (size_t)l->args.tokens, LAYER_IN);
    int t;
    for (t = 0; t < l->args.tokens; t++) memcpy(to + (size_t)t * stride * element, from + (size_t)t * row, row);
    l->args.router_logits = to;
    l->args.router_logits_stride = stride;
}
/* topk_ids becomes topk_ids64. */
static inline void layer_widen_ids(layer *l)
{
    const size_t n = (size_t)l->args.tokens * (size_t)(l->config.topk + l->config.shared_slots);
    const layer_array *a = layer_find(l, l->args.topk_ids);
    size_t i;
    l->args.topk_ids64 = (int64_t *)layer_array_new(l, 8 * n, a->kind);
    for (i = 0; i < n; i++) l->args.topk_ids64[i] = l->args.topk_ids[i];
    l->args.topk_ids = NULL;
}

/* Weights of local_experts experts (default: all) and the inputs of `tokens` tokens. */
static inline void layer_new(layer *l, const moek_config *config, int options, int tokens)
{
    const int gated = ref_gated(config->act), apart = gated && config->up_layout == MOEK_UP_SEPARATE;
    const moek_format *const f = format_lying(config, config->quant);
    const moek_format *const d = !config->down_quant ? f : format_lying(config, config->down_quant);
    const int share = format_rows_share(f);
    size_t e, rows, blocks, h = (size_t)config->hidden, i = (size_t)config->inter;
    memset(l, 0, sizeof *l);
    l->config = *config;
    l->format = f;
    l->down = config->down_quant ? d : NULL;
    l->options = options;
    if (format_dtype(f)) l->config.dtype = format_dtype(f);
    if (format_dtype(d)) l->config.dtype = format_dtype(d);
    if (!l->config.dtype) l->config.dtype = MOEK_DTYPE_BF16;
    e = (size_t)(config->local_experts ? config->local_experts : config->experts + config->shared_slots);
    rows = i * (gated && !apart ? 2 : 1);
    l->up_rows = (int)rows;
    blocks = rows;                                     /* rows: of whole blocks */
    if (share) blocks = (i + (size_t)config->inter_offset + f->w_scale.rows - 1) / f->w_scale.rows * f->w_scale.rows;
    if (apart) {
        l->w.w_gate = layer_new_weights(l, f, e * rows, h);
        l->w.w_gate_scale = layer_new_scales(l, f, e, blocks, h);
        l->w.w_gate_global_scale = layer_new_second(l, f, e);
        l->w.w_gate_zero = layer_new_zeros(l, f, e * rows, h);
        if (options & LAYER_BIAS) l->w.w_gate_bias = layer_new_t(l, e * rows, 0.5);
    }
    l->w.w_up = layer_new_weights(l, f, e * rows, h);
    l->w.w_down = layer_new_weights(l, d, e * h, i);
    l->w.w_up_scale = layer_new_scales(l, f, e, apart || !gated ? blocks :
                                       share && config->up_scales ? 2 * blocks : rows, h);
    l->w.w_down_scale = layer_new_scales(l, d, e, h, i + (size_t)config->inter_offset);
    l->w.w_up_global_scale = layer_new_second(l, f, e * (gated && !apart ? 2 : 1));
    l->w.w_down_global_scale = layer_new_second(l, d, e);
    l->w.w_up_zero = layer_new_zeros(l, f, e * rows, h);
    l->w.w_down_zero = layer_new_zeros(l, d, e * h, i + (size_t)config->inter_offset);
    if (options & LAYER_BIAS) {
        l->w.w_up_bias = layer_new_t(l, e * rows, 0.5);
        l->w.w_down_bias = layer_new_t(l, e * h, 0.5);
    }
    l->w.x_scale = layer_new_static(l, f);
    l->w.h_scale = layer_new_static(l, d);
    layer_new_inputs(l, tokens);
}
static inline void layer_free(layer *l)
{
    while (l->arrays) free(l->array[--l->arrays].repacked);
    areas_free(&l->areas);
}

/* ---- plan, run --------------------------------------------------------------------------------------------------- */

/* Plans and binds; a workspace of exactly the size that the plan asks for.  Again after a change of config or w. */
static inline int layer_plan(layer *l)
{
    moek_weights w;
    if (!CHECK(moek_plan_init(&l->plan, &l->config) == MOEK_OK, "%s: %s", l->what, l->plan.why)) return 0;
    w = layer_weights(l);
    if (!CHECK(moek_plan_bind(&l->plan, &w) == MOEK_OK, "%s: %s", l->what, l->plan.why)) return 0;
    CHECK(!l->config.batch_invariant || l->plan.chosen.tiles <= 1, "%s: batch_invariant with %d tiles", l->what,
          l->plan.chosen.tiles);
    if (l->args.workspace) {                           /* of an earlier plan */
        layer_array *a = layer_find(l, l->args.workspace);
        areas_drop(&l->areas, a->host, a->bytes + 2 * LAYER_GUARD);
        *a = l->array[--l->arrays];
    }
    l->args.workspace_size = moek_workspace_size(&l->plan);
    l->args.workspace = layer_array_new(l, l->args.workspace_size, LAYER_OUT);
    memset(l->args.workspace, 0xff, l->args.workspace_size);
    return 1;
}
static inline void layer_put(layer *l)
{
    int i;
    areas_put(&l->areas);
    for (i = 0; i < l->arrays; i++) {
        const layer_array *const a = &l->array[i];
        if (a->repacked) mem_put(layer_arch, a->there, a->repacked, a->bytes + 2 * LAYER_GUARD);
    }
}
/* Fetches all; returns 0 if an input or a guard was written to. */
static inline int layer_get(layer *l)
{
    int i, intact = 1;
    areas_get(&l->areas, 0);
    for (i = 0; i < l->arrays; i++) {
        const layer_array *const a = &l->array[i];
        const size_t end = LAYER_GUARD + a->bytes;
        if (a->kind == LAYER_IN) intact &= !memcmp(a->got, a->repacked ? a->repacked : a->host, end + LAYER_GUARD);
        else intact &= !memcmp(a->got, a->host, LAYER_GUARD) && !memcmp(a->got + end, a->host + end, LAYER_GUARD);
    }
    return intact;
}
static inline size_t layer_y_bytes(const layer *l) { return 2 * (size_t)l->args.tokens * l->config.hidden; }

/* One run; y stays in layer_got(l, l->args.y). */
static inline int layer_run(layer *l, layer_driver drive)
{
    moek_args a = layer_args(l);
    moek_status status;
    l->why[0] = 0;
    if (layer_says) layer_says(l->what);
    layer_put(l);
    status = drive(&l->plan, &a, NULL);
    if (!CHECK(status == MOEK_OK, "%s: %s: %s", l->what, moek_status_name(status), l->why)) return 0;
    return CHECK(layer_get(l), "%s: an input, or something beside an array, was written to", l->what);
}
/* A copy of y after a run (NULL: it failed); the caller frees it. */
static inline uint16_t *layer_y(layer *l, layer_driver drive)
{
    uint16_t *y;
    if (!layer_run(l, drive)) return NULL;
    y = (uint16_t *)malloc(layer_y_bytes(l) + 1);
    memcpy(y, layer_got(l, l->args.y), layer_y_bytes(l));
    return y;
}
/* Does `drive` give the bits of `y`?  If not: in which tokens and columns. */
static inline int layer_same(layer *l, layer_driver drive, const uint16_t *y, const char *how)
{
    const int hidden = l->config.hidden, n = l->args.tokens * hidden;
    int other = 0, first = n, last = 0, left = hidden, right = 0, i;
    const uint16_t *got;
    if (!y || !layer_run(l, drive)) return 0;
    got = (const uint16_t *)layer_got(l, l->args.y);
    for (i = 0; i < n; i++) {
        if (got[i] == y[i]) continue;
        other++, last = i;
        if (first == n) first = i;
        if (i % hidden < left) left = i % hidden;
        if (i % hidden > right) right = i % hidden;
    }
    return CHECK(!other, "%s: %s gives other bits: %d of tokens %d to %d, columns %d to %d; the first is %04x for %04x",
                 l->what, how, other, first / hidden, last / hidden, left, right, other ? got[first] : 0,
                 other ? y[first] : 0);
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

static inline void layer_route_args(const layer *l, moek_route_args *a)
{
    const moek_config *c = &l->plan.config;
    memset(a, 0, sizeof *a);
#define LAYER_ROUTING(name, number, how, norm, e, group, text) \
    if (c->routing == number) a->score = MOEK_SCORE_##how, a->normalize = MOEK_NORM_##norm, a->eps = e, \
        a->group_score = MOEK_GROUP_SCORE_##group;
    MOEK_EACH_ROUTING(LAYER_ROUTING)
#undef LAYER_ROUTING
    if (l->config.router_eps > 0) a->eps = l->config.router_eps;
    if (l->w.router_bias) a->group_score = MOEK_GROUP_SCORE_TOP2;
    if (l->config.group_score) a->group_score = l->config.group_score;
    a->tokens = l->args.tokens; a->experts = c->experts; a->topk = c->topk; a->scale = c->scale;
    a->groups = c->groups; a->topk_groups = c->topk_groups;
    a->logits = l->args.router_logits; a->logits_dtype = c->logits_dtype;
    a->bias = l->w.router_bias; a->expert_scale = l->w.router_expert_scale;
    a->table = l->w.router_table; a->table_rows = l->w.router_table_rows;
    a->token_ids = l->args.token_ids; a->is_padding = l->args.is_padding;
    a->shared = c->shared_slots; a->shared_weight = c->shared_weight; a->shared_weights = l->args.shared_weights;
    a->logits_stride = l->args.router_logits_stride;
}
/* [tokens][slots] of the last run, from whichever array has them; the caller frees it. */
static inline int32_t *layer_ids(layer *l)
{
    const int n = l->args.tokens * l->plan.slots;
    int32_t *ids = (int32_t *)ref_alloc(4 * (size_t)n);
    const int64_t *wide = l->args.topk_ids64 ? (const int64_t *)layer_got(l, l->args.topk_ids64) : NULL;
    int i;
    if (!wide) memcpy(ids, layer_got(l, l->args.topk_ids), 4 * (size_t)n);
    for (i = 0; wide && i < n; i++) ids[i] = wide[i] == (int32_t)wide[i] ? (int32_t)wide[i] : -1;
    return ids;
}
/* What the router chose against ref_route; the layer then goes on from the row's own ids and weights. */
static inline void layer_check_route(layer *l)
{
    const int n = l->args.tokens * l->plan.slots;
    int32_t *const ids = layer_ids(l);
    const float *weights = (const float *)layer_got(l, l->args.topk_weights);
    moek_route_args a;
    int i, wrong = 0, far = 0;
    layer_route_args(l, &a);
    a.ids = (int32_t *)ref_alloc(4 * (size_t)n);
    a.weights = (float *)ref_alloc(4 * (size_t)n);
    ref_route(&a);
    for (i = 0; i < n; i++) {
        wrong += ids[i] != a.ids[i];
        if (isnan(weights[i]) && isnan(a.weights[i])) continue;
        far += !(fabsf(weights[i] - a.weights[i]) <= 1e-5f * (1 + fabsf(a.weights[i])));  /* f32: exp, sum, division */
    }
    CHECK(!wrong && !far, "%s: the router gives %d other ids and %d other weights", l->what, wrong, far);
    free(a.ids);
    free(a.weights);
    free(ids);
}
/* ids [tokens][slots] on this rank; counts into load [physical_experts]. */
static inline void layer_map(layer *l, int32_t *ids, int64_t *load)
{
    const moek_config *c = &l->plan.config;
    int32_t *const given = layer_ids(l);
    moek_map_args a;
    memset(&a, 0, sizeof a);
    a.tokens = l->args.tokens; a.topk = l->plan.slots;
    a.experts = l->w.replicas ? c->experts + c->shared_slots : c->physical_experts;
    a.physical = c->physical_experts; a.max_replicas = c->max_replicas;
    a.ids = given;
    a.replicas = l->w.replicas; a.replica_count = l->w.replica_count;
    a.map = l->w.expert_map; a.load = load; a.is_padding = l->args.is_padding;
    a.out = ids;
    ref_map(&a);
    free(given);
}
static inline ref_layer_args layer_ref_args(layer *l, const int32_t *ids)
{
    const moek_config *c = &l->plan.config;
    const moek_selection selection = moek_selection_of(&l->plan, l->args.tokens, MOEK_FUSE_NONE);
    const int whole = layer_state && moek_plan_layer(&l->plan, l->args.tokens) != NULL;      /* in one launch */
    const moek_kernel *const up = selection.details.expands ? NULL : l->plan.chosen.up[selection.details.tile];
    const moek_kernel *const down = selection.details.expands ? NULL : selection.down;
    const int arch = up ? up->arch : layer_arch;       /* tuned plans take kernels of an older architecture, too */
    ref_layer_args r;
    memset(&r, 0, sizeof r);
    r.tokens = l->args.tokens; r.hidden = c->hidden; r.inter = c->inter; r.slots = l->plan.slots;
    r.experts = c->local_experts;
    r.format = l->format; r.down = l->down;
    r.dtype = c->dtype; r.act = c->act; r.alpha = c->alpha; r.beta = c->beta; r.limit = c->limit;
    r.up_layout = c->up_layout; r.up_scales = c->up_scales; r.inter_offset = c->inter_offset;
    r.ue8m0 = c->ue8m0; r.router_weight_on_input = c->router_weight_on_input;
    r.rows_per_expert = l->plan.rows_per_expert;
    r.x = l->args.x; r.ids = ids; r.weights = (const float *)layer_got(l, l->args.topk_weights);
    r.w = &l->w; r.addend = l->args.shared_y;
    ref_w_in_t = mem_on_gpu(arch);
    ref_blocks_in_t = whole ? 0 : (up && ref_makes_t(up)) | (down && ref_makes_t(down)) << 1;
    ref_w_in_e4m3 = arch == 90 && format_in_fragments(l->format) && format_quantizes(l->format);
    ref_w_expanded = selection.details.expands;
    return r;
}
/* Of the last run, in double. */
static inline double *layer_ref(layer *l)
{
    const moek_config *c = &l->plan.config;
    int32_t *ids = (int32_t *)ref_alloc(4 * (size_t)l->args.tokens * l->plan.slots);
    int64_t *load = (int64_t *)ref_alloc(8 * (size_t)c->physical_experts);
    double *y = (double *)ref_alloc(8 * (size_t)l->args.tokens * c->hidden);
    ref_layer_args r;
    layer_map(l, ids, load);
    if (l->w.expert_load)
        CHECK(!memcmp(load, layer_got(l, l->w.expert_load), 8 * (size_t)c->physical_experts), "%s: expert_load",
              l->what);
    r = layer_ref_args(l, ids);
    ref_layer(&r, y);
    free(ids);
    free(load);
    return y;
}
/* The architecture whose bounds hold: of two formats sm90, where h has a scale a row (layer_tolerance). */
static inline int layer_rounds_as(const layer *l)
{
    return l->down && format_by_row(l->down) ? 90 : layer_arch;
}
/* Relative L2 distance to the reference, which quantizes and rounds where the kernels do.  Left over:
 *   - the rounding of y to T: an error of at most 2^-8 of an entry in bf16, 1.7e-3 on average (2^-7 / sqrt(12), over a
 *     mean significand of 1.36); 2^-11 and 2e-4 in fp16;
 *   - f32 sums: about 1e-6;
 *   - the few h and o that these push over to the next T, and in the fp8 formats to the next e4m3, 2^-3 of an entry:
 *     one h in a thousand moves the sum over inter by 2^-3 / sqrt(1000 * 12), about 1e-3. */
static inline double layer_tolerance(const layer *l)
{
    const int t = !format_quantizes(l->format) && !format_quantizes(layer_down(l));
    /* fp8 wgmma sums to 13 bits, as e4m3 by mma.sync does (sm89, sm120), and what that moves in h may fall to another
     * e4m3.  With a scale a row, the largest h of the row may fall to the next T: the scale moves by 2^-8, and one code
     * in 16 of that row with it, by 2^-3.5 on average, 1.5e-2 of the row.  (So has a group of 128 columns where inter
     * is 128: 1.02e-2 was seen on an H200 in 9 tokens.)  The worst seen on an H100 is 1.1e-2; of two
     * formats on a CPU 1.7e-2, where up had weights of 4 bits, whose sums in f32 are less exact than sums of codes.
     * With a scale a tensor, the largest h of all rows may fall so: 2.4e-2, of sm89 emulated.  sm120, where each 32 of
     * k of a sum have scales of their own inside: sums are off by twice as much (test_rows.c), and y by 1.19e-2; the
     * next e2m1 is four times as far as the next e4m3, and 1.44e-2 was seen, both emulated. */
    const int mma = layer_arch == MOEK_ARCH_SM89 || layer_arch == MOEK_ARCH_SM120;
    const int of_tensor = mma && layer_down(l)->x_scale.columns == 0;
    const int sm120 = layer_arch == MOEK_ARCH_SM120, e2m1 = sm120 && layer_down(l)->x == MOEK_ELEMENT_E2M1;
    const int inside = sm120 && l->format->w_scale.columns == 32;
    const int of_row = format_by_row(layer_down(l)) || layer_down(l)->x_scale.columns >= l->config.inter;
    const double of_h = layer_rounds_as(l) < MOEK_ARCH_SM89 ? 2e-3
                      : of_row || of_tensor ? 2.5e-2 : e2m1 ? 2.4e-2
                      : inside ? 1.2e-2 : 6e-3;
    return (l->config.dtype == MOEK_DTYPE_FP16 ? 1e-3 : 3e-3) + (t ? 0 : of_h);
}
static double layer_worst, layer_worst_element;        /* in parts of what is allowed */

/* y of so many tokens. */
static inline void layer_compare_y(layer *l, const void *y, const double *want, int tokens)
{
    const int dtype = l->plan.config.dtype, hidden = l->config.hidden;
    const ref_distance d = ref_compare_t(y, want, (size_t)tokens * hidden, dtype);
    const ref_worst w = ref_worst_of(y, want, tokens, hidden, dtype);
    const double bound = ref_bound(layer_down(l), dtype, l->config.inter, layer_rounds_as(l));
    CHECK(d.rel_l2 < layer_tolerance(l) && d.same_nonfinite, "%s: off by %.2e, at most %.2e", l->what, d.rel_l2,
          d.max_abs);
    CHECK(w.off < bound, "%s: token %d column %d is off by %.3f of its row's rms", l->what, w.row, w.column, w.off);
    if (w.off / bound > layer_worst_element) layer_worst_element = w.off / bound;
    if (d.rel_l2 / layer_tolerance(l) > layer_worst) layer_worst = d.rel_l2 / layer_tolerance(l);
}
static inline void layer_compare(layer *l)
{
    double *want = (layer_says ? layer_says("the reference") : (void)0, layer_ref(l));
    layer_compare_y(l, layer_got(l, l->args.y), want, l->args.tokens);
    free(want);
}
/* Some tokens of the last run, from the first to the last: the reference would take too long for all.  Not for dynamic
 * scales of a tensor, which are of all tokens, nor for rows_per_expert. */
static inline void layer_compare_some(layer *l, int some)
{
    const size_t row = 2 * (size_t)l->config.hidden, k = (size_t)l->plan.slots;
    int32_t *const all = (int32_t *)ref_alloc(4 * k * l->args.tokens), *const ids = (int32_t *)ref_alloc(4 * k * some);
    float *const weights = (float *)ref_alloc(4 * k * some);
    char *const x = (char *)ref_alloc(row * some), *const y = (char *)ref_alloc(row * some);
    double *const want = (double *)ref_alloc(4 * row * some);
    int64_t *const load = (int64_t *)ref_alloc(8 * (size_t)l->plan.config.physical_experts);
    ref_layer_args r = layer_ref_args(l, ids);
    int i;
    layer_map(l, all, load);
    for (i = 0; i < some; i++) {
        const size_t t = some > 1 ? (size_t)(l->args.tokens - 1) * i / (some - 1) : 0;
        memcpy(x + i * row, (const char *)l->args.x + t * row, row);
        memcpy(y + i * row, (const char *)layer_got(l, l->args.y) + t * row, row);
        memcpy(ids + i * k, all + t * k, 4 * k);
        memcpy(weights + i * k, r.weights + t * k, 4 * k);
    }
    r.tokens = some, r.x = x, r.weights = weights;
    ref_layer(&r, want);
    layer_compare_y(l, y, want, some);
    free(all), free(ids), free(weights), free(x), free(y), free(want), free(load);
}
/* Plan, run, compare, run again.  Returns 0 if there is nothing to go on with. */
static inline int layer_check(layer *l, const char *what)
{
    uint16_t *y;
    int same;
    snprintf(l->what, sizeof l->what, "%s%.0d %s%s%s %s: %s", layer_arch ? "sm" : "cpu", layer_arch,
             moek_quant_name(l->config.quant), l->down ? "/" : "", l->down ? l->down->name : "",
             l->config.format == MOEK_BATCHED ? "batched" : "standard", what);
    if (!layer_plan(l) || !(y = layer_y(l, moek_run))) return 0;
    if (l->options & LAYER_LOGITS) layer_check_route(l);
    layer_compare(l);
    memset(l->args.workspace, 0x7b, l->args.workspace_size);
    same = layer_same(l, moek_run, y, "a second run, on another workspace");
    memset(l->args.workspace, 0xff, l->args.workspace_size);
    if (moek_plan_layer(&l->plan, l->args.tokens) || moek_plan_up_down(&l->plan, l->args.tokens)) {
        /* Other sums; zeroed once, then left from run to run. */
        static void *state;
        void *const before = layer_state;
        if (!state) state = layer_zeros(moek_state_size());
        layer_state = state;
        free(y);
        y = layer_y(l, moek_run);
        if (y) layer_compare(l);
        same &= layer_same(l, moek_run, y, "a second run with a state");
        layer_state = before;
    }
    free(y);
    return same;
}
#endif
