/* steps/route_warp.cuh -- router logits -> ids and weights of the chosen experts: a warp a token.
 *
 * A lane has V experts side by side (V: 4, 8, 16 or 32, as few as do), which no group shares with another lane's, and
 * sorts them; then a redux a choice finds the best of what the lanes have left, and a vote the first lane that has it,
 * which is the lowest id.  Bound by latency: of one load, and of topk such pairs.
 */
#ifndef MOEK_STEPS_ROUTE_WARP_CUH
#define MOEK_STEPS_ROUTE_WARP_CUH
#include "../../include/moek/kernel/cuda.h"

/* Groups (one, if there are none), experts of a group, log2 of the lanes that have one. */
typedef struct moek_route_params_ { moek_route_args a; int groups, size, shift, whole, whole_bias; } moek_route_params_;

template <int V> struct moek_route_warp_ {
    typedef moek_route_params_ params;
    enum { LIST = V < 8 ? V : 8 };                     /* keys that are sorted among themselves */

    /* One logit. */
    MOEK_DEVICE float logit(const moek_route_args *a, size_t index)
    {
        float f[2];
        if (a->logits_dtype != MOEK_DTYPE_BF16 && a->logits_dtype != MOEK_DTYPE_FP16)
            return ((const float *)a->logits)[index];
        moek_from_t2_(f, ((const uint16_t *)a->logits)[index], a->logits_dtype);
        return f[0];
    }

    /* x: V f32 from p on, of which n are there; `rest` behind them.  All loads are on their way before one is
     * needed. */
    MOEK_DEVICE void floats(float *x, const float *p, int n, float rest, int whole)
    {
        int i;
        if (whole) {
            #pragma unroll
            for (i = 0; i < V; i += 4) {
                const float4 v = i < n ? *(const float4 *)(p + i) : make_float4(rest, rest, rest, rest);
                x[i] = v.x; x[i + 1] = v.y; x[i + 2] = v.z; x[i + 3] = v.w;
            }
        } else {
            #pragma unroll
            for (i = 0; i < V; i++) x[i] = i < n ? p[i] : rest;
        }
    }
    /* The same of T; -Inf behind them. */
    MOEK_DEVICE void from_t(float *x, const uint16_t *p, int n, int whole, int dtype)
    {
        uint32_t two[16];
        int i;
        if (whole) {
            #pragma unroll
            for (i = 0; i < V; i += 4) {
                const uint2 v = i < n ? *(const uint2 *)(p + i) : make_uint2(0, 0);
                two[i / 2] = v.x; two[i / 2 + 1] = v.y;
            }
        } else {
            #pragma unroll
            for (i = 0; i < V; i += 2)
                two[i / 2] = (i < n ? p[i] : 0) | (uint32_t)(i + 1 < n ? p[i + 1] : 0) << 16;
        }
        #pragma unroll
        for (i = 0; i < V; i += 2) moek_from_t2_(x + i, two[i / 2], dtype);
        #pragma unroll
        for (i = 0; i < V; i++) x[i] = i < n ? x[i] : -INFINITY;
    }

    /* As moek_sigmoid_, but for 0 below -88 and of NaN, and without a branch. */
    MOEK_DEVICE float sigmoid(float x)
    {
        const float d = 1.0f + expf(-x), about = moek_about_one_over_(d);
        return d < INFINITY ? fmaf(fmaf(-d, about, 1.0f), about, about) : 0;
    }

    /* s of a logit, but of softmax. */
    MOEK_DEVICE float score_of(float x, int score)
    {
        if (score == MOEK_SCORE_SIGMOID) return sigmoid(x);
        if (score == MOEK_SCORE_SQRTSOFTPLUS) x = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
        if (fabsf(x) < INFINITY) return x;
        return score == MOEK_SCORE_RAW || score == MOEK_SCORE_SPARSEMIXER ? MOEK_MASKED_ : 0.0f;
    }

    /* x: V logits -> their s.  top and inverse: of the token's softmax, for those that come later. */
    MOEK_DEVICE void scores(float *x, int score, float *top, float *inverse)
    {
        float sum = 0;
        int i;
        switch (score) {
        case MOEK_SCORE_SOFTMAX:
            #pragma unroll
            for (i = 0; i < V; i++) *top = fmaxf(*top, x[i]);
            *top = moek_warp_max_(*top);
            #pragma unroll
            for (i = 0; i < V; i++) sum += x[i] = expf(x[i] - *top);
            *inverse = moek_about_one_over_(moek_warp_sum_(sum));        /* the sum is 1 at least, or 0, or NaN */
            #pragma unroll
            for (i = 0; i < V; i++) x[i] = fabsf(x[i] * *inverse) < INFINITY ? x[i] * *inverse : 0;
            break;
        case MOEK_SCORE_SIGMOID:
            #pragma unroll
            for (i = 0; i < V; i++) x[i] = sigmoid(x[i]);
            break;
        case MOEK_SCORE_SQRTSOFTPLUS:
            #pragma unroll
            for (i = 0; i < V; i++) x[i] = score_of(x[i], MOEK_SCORE_SQRTSOFTPLUS);
            break;
        default:
            #pragma unroll
            for (i = 0; i < V; i++) x[i] = score_of(x[i], MOEK_SCORE_RAW);
        }
    }

    /* The s of one logit, by itself. */
    MOEK_DEVICE float again(const moek_route_args *a, size_t index, float top, float inverse)
    {
        const float x = logit(a, index);
        float s;
        if (a->score != MOEK_SCORE_SOFTMAX) return score_of(x, a->score);
        s = expf(x - top) * inverse;
        return fabsf(s) < INFINITY ? s : 0;
    }

    /* Lists of 8 keys (4, if V is 4), highest first; of equal ones the lower id stays first, as only neighbours
     * change. */
    MOEK_DEVICE void sort(uint32_t *key, int *place)
    {
        int pass, i, l;
        #pragma unroll
        for (pass = 0; pass < LIST; pass++) {
            #pragma unroll
            for (l = 0; l < V; l += LIST) {
                #pragma unroll
                for (i = l + pass % 2; i + 1 < l + LIST; i += 2) {
                    const uint32_t high = key[i], low = key[i + 1];
                    const int swap = low > high, first = place[i], second = place[i + 1];
                    key[i] = swap ? low : high; key[i + 1] = swap ? high : low;
                    place[i] = swap ? second : first; place[i + 1] = swap ? first : second;
                }
            }
        }
    }

    /* key: V of a lane, before they are sorted -> its two best. */
    MOEK_DEVICE void two_best(const uint32_t *key, uint32_t *first, uint32_t *second)
    {
        int i;
        *first = *second = 0;
        #pragma unroll
        for (i = 0; i < V; i++) {
            const uint32_t least = key[i] < *first ? key[i] : *first;
            *second = least > *second ? least : *second;
            *first = key[i] > *first ? key[i] : *first;
        }
    }

    /* Does this lane's group stay? */
    MOEK_DEVICE int group_stays(const params *p, uint32_t first, uint32_t second, int lane)
    {
        const unsigned all = 0xffffffff;
        uint32_t own_key = 0;
        int step, g, before = 0;
        for (step = 1; step < 1 << p->shift; step *= 2) {
            const uint32_t f = __shfl_xor_sync(all, first, step), s = __shfl_xor_sync(all, second, step);
            const uint32_t least = f < first ? f : first, most = s > second ? s : second;
            second = least > most ? least : most;
            first = f > first ? f : first;
        }
        if (lane >> p->shift < p->groups) {
            float score = moek_unorder_(first);
            if (p->a.group_score == MOEK_GROUP_SCORE_TOP2 && p->size > 1) score += moek_unorder_(second);
            own_key = moek_order_(score == score ? score : -INFINITY);
        }
        for (g = 0; g < p->groups; g++) {
            const uint32_t other = __shfl_sync(all, own_key, g << p->shift);
            before += other > own_key || (other == own_key && g < lane >> p->shift);
        }
        return before < p->a.topk_groups;
    }

    /* The same of groups that lanes do not keep apart (more than 32, or too large for theirs): keys of those that go
     * become 0.  group: shared, [groups] of this warp. */
    MOEK_DEVICE void many_groups(const moek_route_args *a, uint32_t *key, uint32_t *group, int lane)
    {
        const unsigned all = 0xffffffff;
        const int size = a->experts / a->groups;
        int g, i, k;
        for (g = 0; g < a->groups; g++) {
            uint32_t first = 0, second = 0, top;
            float score;
            #pragma unroll
            for (i = 0; i < V; i++) {
                const uint32_t c = (uint32_t)(lane * V + i - g * size) < (uint32_t)size ? key[i] : 0;
                second = c > first ? first : c > second ? c : second;
                first = c > first ? c : first;
            }
            top = __reduce_max_sync(all, first);
            score = moek_unorder_(top);
            if (a->group_score == MOEK_GROUP_SCORE_TOP2 && size > 1) {
                const int winner = __ffs(__ballot_sync(all, first == top)) - 1;
                score += moek_unorder_(__reduce_max_sync(all, lane == winner ? second : first));
            }
            if (lane == 0) group[g] = score == score ? moek_order_(score) : moek_order_(-INFINITY);
        }
        __syncwarp();
        for (k = 0; k < a->topk_groups; k++) {                           /* a group that stays is marked by 0 */
            uint32_t best = 0, top;
            int winner = lane;
            for (g = lane; g < a->groups; g += 32) if (group[g] > best) best = group[g], winner = g;
            top = __reduce_max_sync(all, best);
            winner = __reduce_min_sync(all, best == top ? winner : a->groups);
            __syncwarp();                                                /* all have read before one writes */
            if (lane == 0) group[winner] = 0;
            __syncwarp();
        }
        #pragma unroll
        for (i = 0; i < V; i++)
            if (lane * V + i < a->experts && group[(lane * V + i) / size]) key[i] = 0;
    }

    /* chosen[k]: the place of the k-th best; equal scores, the lower id first.  Returns how many of them, the first,
     * are not masked. */
    MOEK_DEVICE int pick(int topk, uint32_t *key, int *place, int32_t *chosen, int lane)
    {
        const unsigned all = 0xffffffff, before = (1u << lane) - 1;
        int k, l, i, some = 0;
        for (k = 0; k < topk; k++) {
            uint32_t best = key[0], top, votes;
            int list = 0, taken;
            #pragma unroll
            for (l = LIST; l < V; l += LIST) if (key[l] > best) best = key[l], list = l;
            top = __reduce_max_sync(all, best);
            some += top > moek_order_(-INFINITY);
            votes = __ballot_sync(all, best == top);
            taken = best == top && !(votes & before);
            #pragma unroll
            for (l = 0; l < V; l += LIST) {
                const int go = taken && list == l;
                if (go) chosen[k] = place[l];
                #pragma unroll
                for (i = l; i < l + LIST; i++) {
                    key[i] = !go ? key[i] : i + 1 < l + LIST ? key[i + 1] : 0;
                    if (i + 1 < l + LIST) place[i] = go ? place[i + 1] : place[i];
                }
            }
        }
        __syncwarp();
        return some;
    }

    /* SPARSEMIXER: lane k's weight is the softmax at its logit s over the experts near it, the first choice left
     * out. */
    MOEK_DEVICE float mix(const moek_route_args *a, size_t row, int id, float s, int lane)
    {
        const int first = __shfl_sync(0xffffffff, id, 0);
        float weight = 0;
        int k, i;
        for (k = 0; k < a->topk; k++) {
            const float top = __shfl_sync(0xffffffff, s, k);
            float sum = 0;
            for (i = lane; i < a->experts; i += 32) {
                const float x = again(a, row + i, 0, 0);
                if ((k == 0 || i != first) && top - x <= 0.02f * fmaxf(fabsf(x), top)) sum += expf(x - top);
            }
            sum = moek_warp_sum_(sum);
            if (lane == k) weight = 1.0f / sum;
        }
        return weight;
    }

    /* Of lane k's weight, over those that count. */
    MOEK_DEVICE float normalize(const moek_route_args *a, float weight, int counts)
    {
        float sum, top;
        if (a->normalize == MOEK_NORM_SOFTMAX) {
            top = moek_warp_max_(counts ? weight : -INFINITY);
            weight = counts ? expf(weight - top) : 0;
            sum = moek_warp_sum_(weight);
            return sum > 0 ? weight / sum : 0;
        }
        if (a->normalize == MOEK_NORM_SIGMOID || a->normalize == MOEK_NORM_SIGMOID_SUM) weight = moek_sigmoid_(weight);
        if (!counts) weight = 0;
        if (a->normalize == MOEK_NORM_SUM || a->normalize == MOEK_NORM_SIGMOID_SUM) {
            sum = moek_warp_sum_(weight) + a->eps;
            weight /= sum > 0 ? sum : 1.0f;
        }
        return weight;
    }

    /* Id of choice `lane` in a table; -1: there is none. */
    MOEK_DEVICE int look_up(const moek_route_args *a, int token, int lane)
    {
        const int32_t row = a->token_ids[token];
        int32_t id = -1;
        if ((uint32_t)row < (uint32_t)a->table_rows) id = a->table[(size_t)row * a->topk + lane];
        return (uint32_t)id < (uint32_t)a->experts ? id : -1;
    }

    MOEK_DEVICE void run(const params *p)
    {
        MOEK_SHARED_(uint32_t, group);                                   /* many_groups: [groups] */
        __shared__ int32_t chosen[32];                 /* their places in score */
        __shared__ float score[32 * V];
        const moek_route_args *const a = &p->a;
        const int lane = threadIdx.x, token = blockIdx.x, slots = a->topk + a->shared, mask = (1 << p->shift) - 1;
        const size_t row = (size_t)token * a->logits_stride, slot_0 = (size_t)token * slots;
        const int in = (lane & mask) * V, first = (lane >> p->shift) * p->size + in;
        const int n = lane >> p->shift < p->groups ? p->size - in : 0;   /* experts first .. first + n - 1 */
        uint32_t key[32], two[2] = { 0, 0 };
        float x[32], bias[32], top = MOEK_LOWEST_, inverse = 0, weight = MOEK_MASKED_;
        int place[32], id = -1, counts, padding, i;
        moek_grid_wait_();
        moek_grid_go_();                                   /* after that: what is older than routing is there for all */
        padding = a->is_padding && a->is_padding[token];
        if (!a->table || a->score == MOEK_SCORE_SOFTMAX) {
            if (a->logits_dtype == MOEK_DTYPE_BF16)
                from_t(x, (const uint16_t *)a->logits + row + first, n, p->whole, MOEK_DTYPE_BF16);
            else if (a->logits_dtype == MOEK_DTYPE_FP16)
                from_t(x, (const uint16_t *)a->logits + row + first, n, p->whole, MOEK_DTYPE_FP16);
            else floats(x, (const float *)a->logits + row + first, n, -INFINITY, p->whole);
            if (a->bias) floats(bias, a->bias + first, n, 0, p->whole_bias);
            scores(x, a->score, &top, &inverse);
        }
        if (a->table) {
            if (lane < a->topk && !padding) id = look_up(a, token, lane);
            if (id >= 0) weight = again(a, row + id, top, inverse);
        } else {
            #pragma unroll
            for (i = 0; i < V; i++) {
                const float c = a->bias ? x[i] + bias[i] : x[i];
                key[i] = i >= n ? 0 : moek_order_(c == c ? c : -INFINITY);      /* 0: never chosen */
                place[i] = i * 32 + lane;
                score[i * 32 + lane] = x[i];
            }
            if (p->groups < a->groups) many_groups(a, key, group, lane);
            else if (p->groups > 1) two_best(key, &two[0], &two[1]);
            sort(key, place);
            if (p->groups > 1 && !group_stays(p, two[0], two[1], lane)) {
                #pragma unroll
                for (i = 0; i < V; i++) key[i] = 0;
            }
            i = pick(a->topk, key, place, chosen, lane);
            if (lane < a->topk) {
                const int score_at = chosen[lane];
                if (lane < i) weight = score[score_at];
                id = (score_at % 32 >> p->shift) * p->size + (score_at % 32 & mask) * V + score_at / 32;
            }
        }
        counts = lane < a->topk && weight > MOEK_MASKED_;
        if (a->score == MOEK_SCORE_SPARSEMIXER) weight = mix(a, row, id, weight, lane);
        weight = normalize(a, weight, counts);
        if (inverse != inverse && id >= 0) weight = inverse;             /* no softmax */
        if (lane < a->topk) {
            weight *= a->expert_scale && id >= 0 ? a->scale * a->expert_scale[id] : a->scale;
            if (padding) id = -1;
            a->ids[slot_0 + lane] = id;
            a->weights[slot_0 + lane] = padding ? 0 : weight;
            if (a->ids64) a->ids64[slot_0 + lane] = id;
        }
        for (i = lane; i < a->shared; i += 32) {
            const float constant = a->shared_weights ? a->shared_weights[(size_t)token * a->shared + i]
                                                     : a->shared_weight;
            id = padding ? -1 : a->experts + i;
            a->ids[slot_0 + a->topk + i] = id;
            a->weights[slot_0 + a->topk + i] = padding ? 0 : constant;
            if (a->ids64) a->ids64[slot_0 + a->topk + i] = id;
        }
    }
};

/* Launches one of such kernels.  args NULL: makes them ready. */
static MOEK_UNUSED moek_status moek_launch_route_warp_(const void *args, moek_stream stream,
                                                       void (*kernel_4)(moek_route_params_),
                                                       void (*kernel_8)(moek_route_params_),
                                                       void (*kernel_16)(moek_route_params_),
                                                       void (*kernel_32)(moek_route_params_))
{
    void (*const kernels[4])(moek_route_params_) = { kernel_4, kernel_8, kernel_16, kernel_32 };
    const moek_route_args *const a = (const moek_route_args *)args;
    moek_route_params_ p;
    size_t element;
    int shared, lanes, i;
    if (!a) {
        for (i = 0; i < 4; i++) if (MOEK_READY_(kernels[i], 0) != MOEK_OK) return MOEK_E_ARCH;
        return MOEK_OK;
    }
    if (a->tokens < 1) return MOEK_OK;
    p.a = *a;
    if (!p.a.logits_stride) p.a.logits_stride = (size_t)a->experts;
    p.groups = a->groups > 1 && a->groups <= 32 ? a->groups : 1;
    for (p.shift = 5; p.groups << p.shift > 32; p.shift--) continue;
    if (a->experts / p.groups > 32 << p.shift) p.groups = 1, p.shift = 5;      /* lanes of a group would not hold it */
    p.size = a->experts / p.groups;
    lanes = 1 << p.shift;
    element = a->logits_dtype == MOEK_DTYPE_BF16 || a->logits_dtype == MOEK_DTYPE_FP16 ? 2 : 4;
    p.whole = p.size % 4 == 0 && p.a.logits_stride % 4 == 0 && (size_t)a->logits % (4 * element) == 0;
    p.whole_bias = p.size % 4 == 0 && (size_t)a->bias % 16 == 0;
    shared = p.groups < a->groups ? 4 * a->groups : 0;
    for (i = 0; i < 3 && p.size > (4 << i) * lanes; i++) continue;
    return MOEK_CHAIN_(kernels[i], dim3((unsigned)a->tokens), 32, shared, stream, a->early, p);
}
#endif
