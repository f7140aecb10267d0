/* steps.h -- a part of ref.h, which includes it once: route, map, sort, quant. */
#define REF_MASKED (-(double)1e38f)                    /* a raw logit that is not finite */

static inline double ref_logit(const moek_route_args *a, int t, int e)
{
    const size_t i = (size_t)t * (a->logits_stride ? a->logits_stride : (size_t)a->experts) + (size_t)e;
    return a->logits_dtype == MOEK_DTYPE_F32 ? ((const float *)a->logits)[i] : ref_get_t(a->logits, i, a->logits_dtype);
}
static inline int ref_raw(const moek_route_args *a)
{
    return a->score == MOEK_SCORE_RAW || a->score == MOEK_SCORE_SPARSEMIXER;
}
static inline double ref_score_one(int score, double x)
{
    if (score == MOEK_SCORE_SIGMOID) return isnan(x) ? 0 : ref_sigmoid(x);
    if (score == MOEK_SCORE_SQRTSOFTPLUS) return isnan(x) || isinf(x) ? 0 : sqrt(x > 40 ? x : log1p(exp(x)));
    return isnan(x) || isinf(x) ? REF_MASKED : x;
}
/* s[experts] of a token.  Returns 0 if its logits have no softmax. */
static inline int ref_scores(const moek_route_args *a, int t, double *s)
{
    double top = -INFINITY, sum = 0;
    int e, spoiled = 0;
    for (e = 0; e < a->experts; e++) {
        const double x = ref_logit(a, t, e);
        s[e] = a->score == MOEK_SCORE_SOFTMAX ? x : ref_score_one(a->score, x);
        if (isnan(x) || x == INFINITY) spoiled = 1;
        if (x > top) top = x;
    }
    if (a->score != MOEK_SCORE_SOFTMAX) return 1;
    for (e = 0; e < a->experts; e++) sum += s[e] = spoiled || s[e] == -INFINITY ? 0 : exp(s[e] - top);
    for (e = 0; e < a->experts && sum > 0; e++) s[e] /= sum;
    return !spoiled;
}
/* What expert e is chosen by; -Inf: masked, at least by the bias. */
static inline double ref_choice(const moek_route_args *a, const double *s, int e)
{
    const double c = s[e] + (a->bias ? a->bias[e] : 0);
    return isnan(c) ? -INFINITY : c;
}
static inline int ref_is_masked(const moek_route_args *a, const double *s, int e)
{
    return (ref_raw(a) && s[e] <= REF_MASKED) || (!a->table && ref_choice(a, s, e) == -INFINITY);
}
/* score[g] of each group, for the choice of groups. */
static inline void ref_group_scores(const moek_route_args *a, const double *s, double *score)
{
    const int size = a->experts / a->groups;
    int g, i;
    for (g = 0; g < a->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (i = g * size; i < (g + 1) * size; i++) {
            const double c = ref_choice(a, s, i);
            if (c > best) second = best, best = c;
            else if (c > second) second = c;
        }
        score[g] = a->group_score == MOEK_GROUP_SCORE_TOP2 && size > 1 ? best + second : best;
        if (isnan(score[g])) score[g] = -INFINITY;
    }
}
/* allowed[experts]: 1 where the expert's group stays. */
static inline void ref_groups(const moek_route_args *a, const double *s, unsigned char *allowed)
{
    const int grouped = a->groups > 1;
    double score[1024];
    unsigned char stays[1024] = { 0 };
    int e, g, k;
    for (e = 0; e < a->experts; e++) allowed[e] = (unsigned char)!grouped;
    if (!grouped) return;
    ref_group_scores(a, s, score);
    for (k = 0; k < a->topk_groups; k++) {
        int best = -1;
        for (g = 0; g < a->groups; g++) if (!stays[g] && (best < 0 || score[g] > score[best])) best = g;
        stays[best] = 1;
    }
    for (e = 0; e < a->experts; e++) allowed[e] = stays[e / (a->experts / a->groups)];
}
/* weight of expert `at` by the rule of SPARSEMIXER; without expert `without` (or -1). */
static inline double ref_sparsemixer(const double *s, int experts, int at, int without)
{
    double sum = 0;
    int e;
    for (e = 0; e < experts; e++) {
        const double factor = fabs(s[e]) > s[at] ? fabs(s[e]) : s[at];
        if (e != without && s[at] - s[e] <= 0.02 * factor) sum += exp(s[e] - s[at]);  /* no 0 / 0 where s is 0 */
    }
    return 1 / sum;
}
/* w[topk] of given ids, before `shared`; id -1: nobody.  sound: what ref_scores returned. */
static inline void ref_route_weights(const moek_route_args *a, const double *s, const int32_t *ids, int sound,
                                     double *w)
{
    const int sigmoid = a->normalize == MOEK_NORM_SIGMOID || a->normalize == MOEK_NORM_SIGMOID_SUM;
    double sum = 0, top = -INFINITY;
    int k, counts[32];
    for (k = 0; k < a->topk; k++) {
        counts[k] = ids[k] >= 0 && !ref_is_masked(a, s, ids[k]);
        if (counts[k] && s[ids[k]] > top) top = s[ids[k]];
    }
    for (k = 0; k < a->topk; k++) {
        w[k] = 0;
        if (!counts[k]) continue;
        w[k] = s[ids[k]];
        if (a->score == MOEK_SCORE_SPARSEMIXER) w[k] = ref_sparsemixer(s, a->experts, ids[k], k ? ids[0] : -1);
        if (sigmoid) w[k] = ref_sigmoid(w[k]);
        if (a->normalize == MOEK_NORM_SOFTMAX) w[k] = exp(w[k] - top);
        sum += w[k];
    }
    if (a->normalize == MOEK_NORM_SUM || a->normalize == MOEK_NORM_SIGMOID_SUM) sum += a->eps;
    else if (a->normalize != MOEK_NORM_SOFTMAX) sum = 1;
    for (k = 0; k < a->topk; k++) {
        if (sum > 0) w[k] /= sum;
        if (ids[k] >= 0 && !sound) w[k] = NAN;
        w[k] *= a->scale * (a->expert_scale && ids[k] >= 0 ? a->expert_scale[ids[k]] : 1.0);
    }
}
/* The best by s + bias, lower ids first among equals. */
static inline void ref_pick(const moek_route_args *a, const double *s, const unsigned char *allowed, int32_t *ids)
{
    unsigned char taken[1024];
    int e, k;
    for (e = 0; e < a->experts; e++) taken[e] = !allowed[e];
    for (k = 0; k < a->topk; k++) {
        int best = -1;
        double c, most = 0;
        for (e = 0; e < a->experts; e++) {
            if (taken[e]) continue;
            c = ref_choice(a, s, e);
            if (best < 0 || c > most) best = e, most = c;
        }
        ids[k] = best;
        if (best >= 0) taken[best] = 1;
    }
}
/* ids[topk] by the table. */
static inline void ref_look_up(const moek_route_args *a, int t, int32_t *ids)
{
    const int32_t row = a->token_ids[t];
    int k;
    for (k = 0; k < a->topk; k++) {
        ids[k] = row < 0 || row >= a->table_rows ? -1 : a->table[(size_t)row * a->topk + k];
        if (ids[k] < 0 || ids[k] >= a->experts) ids[k] = -1;
    }
}
static inline void ref_route_token(const moek_route_args *a, int t, int32_t *ids, float *weights)
{
    double s[1024], w[1024];
    unsigned char allowed[1024];
    const int sound = ref_scores(a, t, s);
    int k;
    if (a->table) ref_look_up(a, t, ids);
    else ref_groups(a, s, allowed), ref_pick(a, s, allowed, ids);
    ref_route_weights(a, s, ids, sound, w);
    for (k = 0; k < a->topk; k++) weights[k] = (float)w[k];
    for (k = 0; k < a->shared; k++) {
        ids[a->topk + k] = a->experts + k;
        weights[a->topk + k] = a->shared_weights ? a->shared_weights[(size_t)t * a->shared + k] : a->shared_weight;
    }
}
static inline void ref_route(const moek_route_args *a)
{
    const int slots = a->topk + a->shared;
    int t, k;
    for (t = 0; t < a->tokens; t++) {
        const size_t to = (size_t)t * slots;
        if (a->is_padding && a->is_padding[t]) for (k = 0; k < slots; k++) a->ids[to + k] = -1, a->weights[to + k] = 0;
        else ref_route_token(a, t, a->ids + to, a->weights + to);
        for (k = 0; a->ids64 && k < slots; k++) a->ids64[to + k] = a->ids[to + k];
    }
}

/* ---- map, sort --------------------------------------------------------------------------------------------------- */

static inline void ref_map(const moek_map_args *a)
{
    int i;
    for (i = 0; i < a->tokens * a->topk; i++) {
        int32_t id;
        if (a->ids64) a->given[i] = a->ids64[i] < 0 || a->ids64[i] >= a->experts ? -1 : (int32_t)a->ids64[i];
        id = a->ids64 ? a->given[i] : a->ids[i];
        if (id < 0 || id >= a->experts || (a->is_padding && a->is_padding[i / a->topk])) id = -1;
        if (id >= 0 && a->replicas) {
            const uint32_t hash = (uint32_t)(a->first + i / a->topk) * 2654435769u;
            const int32_t n = a->replica_count[id];
            id = n < 1 || n > a->max_replicas ? -1 : a->replicas[(size_t)id * a->max_replicas + hash % (uint32_t)n];
        }
        if (id < 0 || id >= a->physical) id = -1;
        if (id >= 0 && a->load) a->load[id]++;
        if (id >= 0 && a->map) id = a->map[id];
        a->out[i] = id;
    }
}

static inline void ref_sort(const moek_sort_args *a)
{
    const int batched = a->rows_per_expert > 0;
    int e, i, at = 0, blocks = 0;
    for (i = 0; a->slot_row && i < a->slots; i++) a->slot_row[i] = -1;
    for (i = 0; i < a->zeros; i++) a->zero[i] = 0;
    for (e = 0; e < a->experts; e++) {
        int n = 0, row;
        if (!batched) a->offsets[e] = at;
        for (i = 0; i < a->slots; i++) {
            if (a->ids[i] != e || (batched && n == a->rows_per_expert)) continue;
            if (a->slot_row) a->slot_row[i] = (batched ? e * a->rows_per_expert : at) + n;
            if (!batched) a->order[at + n] = i;
            n++;
        }
        a->counts[e] = n;
        for (row = 0; !batched && a->block_expert && row < n; row += a->block_m) {
            a->block_expert[blocks] = e;
            a->block_row[blocks++] = at + row;
        }
        at += n;
    }
    if (batched) return;
    a->offsets[a->experts] = at;
    if (a->block_expert) *a->num_blocks = blocks;
}

/* ---- quant: float, see the top ----------------------------------------------------------------------------------- */

/* x: T, weighted and rounded to T; exact in a float. */
static inline float ref_quant_x(const moek_quant_args *a, int source, int column)
{
    const size_t stride = (size_t)(a->x_stride ? a->x_stride : a->cols);
    const float x = (float)ref_get_t(a->x, source * stride + column, a->dtype);
    float w, product;
    if (!a->row_weight) return x;
    w = (float)ref_round_t(a->row_weight[source], a->dtype);
    product = x * w;
    return (float)ref_round_t(product, a->dtype);
}
static inline int ref_quant_live(const moek_quant_args *a, int r)
{
    if (a->row_limit && r >= *a->row_limit) return 0;
    return !a->counts || r % a->rows_per_expert < a->counts[r / a->rows_per_expert];
}
/* The largest |x|, NaN passed over; Inf too if `finite`. */
static inline float ref_amax(const moek_quant_args *a, int source, int begin, int end, int finite)
{
    float most = 0;
    int j;
    for (j = begin; j < end; j++) {
        const float x = fabsf(ref_quant_x(a, source, j));
        if (x > most && !(finite && isinf(x))) most = x;
    }
    return most;
}
/* The same, but a NaN stays where the codes of x have none. */
static inline float ref_amax_or_nan(const moek_quant_args *a, const moek_format *f, int source, int begin, int end)
{
    int j;
    for (j = begin; j < end; j++)
        if (isnan(ref_quant_x(a, source, j)) && !ref_has_nan(ref_element(f->x, a->dtype))) return NAN;
    return ref_amax(a, source, begin, end, 0);
}
/* 2^ceil(log2(s)), kept below the 255 that UE8M0 means NaN by. */
static inline float ref_power_of_two(float s)
{
    return (float)ref_decode(&ref_numbers[REF_E8M0], ref_encode(&ref_numbers[REF_E8M0], s));
}
/* Of columns begin .. end - 1, as its type holds it. */
static inline float ref_group_scale(const moek_quant_args *a, const moek_format *f, int source, int begin, int end)
{
    const ref_number *const type = ref_scale_type(f->x_scale.type, a->dtype);
    float s = ref_amax(a, source, begin, end, 0);
    if (type->width == 32 && s < 1e-10f) s = 1e-10f;
    s = s / (float)ref_largest(ref_element(f->x, a->dtype));
    if (type->width < 32) return (float)ref_decode(type, ref_encode(type, s));
    if (!a->ue8m0) return s;
    if (s < 1e-10f) s = 1e-10f;
    return ref_power_of_two(s);
}
static inline void ref_put_group_scale(const moek_quant_args *a, const moek_format *f, int row, int g, float s)
{
    const ref_number *const type = ref_scale_type(f->x_scale.type, a->dtype);
    const int columns = f->x_scale.columns, groups = (a->group_offset + a->cols + columns - 1) / columns;
    int e;
    if (a->scale_layout == MOEK_SCALE_ROW) ref_put(type, a->scale, (size_t)row * groups + g, s);
    else if (a->scale_layout == MOEK_SCALE_COLUMN) ref_put(type, a->scale, (size_t)g * a->scale_stride + row, s);
    else {
        uint32_t *word = (uint32_t *)a->scale + (size_t)(g / 4) * a->scale_stride + row;
        frexpf(s, &e);                                 /* s = 2^(e - 1) */
        if (g % 4 == 0) *word = 0;
        *word |= (uint32_t)(e - 1 + 127) << (8 * (g % 4));
    }
}
/* What x is multiplied by to become an integer; 0 where f32 does not hold it. */
static inline float ref_integer_factor(const ref_number *x, float amax)
{
    const float factor = (float)(ref_largest(x) / (double)amax);       /* (a double holds more than twice the bits) */
    return isinf(factor) || isnan(factor) ? 0 : factor;
}
/* The e4m3 scale of a group under the scale g of all, and what x is multiplied by: both by f32 operations, which
 * doubles round right. */
static inline float ref_scale_under(const ref_number *x, const ref_number *type, float g, float amax, float *factor)
{
    const double most = ref_decode(&ref_numbers[REF_F32], 0x7f7fffff), sixth = (float)(1 / ref_largest(x));
    const float over = (float)(1 / (double)g), part = (float)(amax * sixth);
    const float under = (float)((isinf(over) || isnan(over) ? 0.0 : over) * part);
    const float s = isinf(amax) || isnan(amax) ? NAN : (float)ref_decode(type, ref_encode(type, under));
    const float product = (float)((double)s * g);
    const double inverse = 1 / (double)product;
    *factor = (float)(!(s > 0) ? 0 : inverse > most ? most : inverse);
    return s;
}
/* x / s; of one scale for all, by its reciprocal. */
static inline float ref_scaled_down(const moek_format *f, float x, float s)
{
    float reciprocal;
    if (!format_by_tensor(f)) return x / s;
    reciprocal = 1.0f / s;
    return isinf(x) ? NAN : isnan(x) ? x : isinf(reciprocal) ? 0 : x * reciprocal;
}
/* s: of the tensor. */
static inline void ref_quant_row(const moek_quant_args *a, const moek_format *f, int r, float s)
{
    const ref_number *const x = ref_element(f->x, a->dtype);
    const int source = r / a->source_div, row = a->target ? a->target[r] : r, columns = f->x_scale.columns;
    const float largest = (float)ref_largest(x), least = 1.0f / (largest * 512.0f);
    char *const q = (char *)a->q + (size_t)row * ref_bytes(x, (size_t)a->cols);
    float factor = 0;
    int j;
    if (format_by_row(f)) {
        const float amax = ref_amax_or_nan(a, f, source, 0, a->cols);
        s = amax / largest;
        if (x->kind == REF_SIGNED) factor = ref_integer_factor(x, amax);
        else if (s < least) s = least;
        ref_put(ref_scale_type(f->x_scale.type, a->dtype), a->scale, (size_t)row, s);
    }
    for (j = 0; j < a->cols; j++) {
        const float value = ref_quant_x(a, source, j);
        if (columns && (j == 0 || (a->group_offset + j) % columns == 0)) {
            const int g = (a->group_offset + j) / columns, last = columns * (g + 1) - a->group_offset;
            const int end = last < a->cols ? last : a->cols;
            const float amax = ref_amax_or_nan(a, f, source, j, end);
            if (format_x_second(f))
                s = ref_scale_under(x, ref_scale_type(f->x_scale.type, a->dtype), a->static_scale[0], amax, &factor);
            else if (x->kind == REF_SIGNED) s = amax / largest, factor = ref_integer_factor(x, amax);
            else s = ref_group_scale(a, f, source, j, end);
            ref_put_group_scale(a, f, row, g, s);
        }
        if (!ref_has_nan(x)) ref_put(x, q, (size_t)j, (float)((double)value * factor));
        else ref_put(x, q, (size_t)j, format_quantizes(f) ? ref_scaled_down(f, value, s) : value);
    }
}
static inline void ref_quant(const moek_quant_args *a, const moek_format *f)
{
    float s = 0, m;
    int r;
    ref_tables_(f, a->dtype);
    if (format_by_tensor(f)) {
        for (r = 0; r < a->rows && !a->static_scale; r++) {
            if (!ref_quant_live(a, r)) continue;
            m = ref_amax(a, r / a->source_div, 0, a->cols, 1);
            if (m > s) s = m;
        }
        s = a->static_scale ? *a->static_scale : s / (float)ref_largest(ref_element(f->x, a->dtype));
        *(float *)a->scale = s;
    }
#ifdef _OPENMP
#pragma omp parallel for if (a->rows > 100)                            /* (no two rows have one target) */
#endif
    for (r = 0; r < a->rows; r++)
        if (ref_quant_live(a, r) && (!a->target || a->target[r] >= 0)) ref_quant_row(a, f, r, s);
}
