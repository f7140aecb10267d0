/* moek/ep/host.h -- prepare/finalize across ranks for low_latency, alltoall and allgather, with windows in host memory.
 * Also what GPUs share with it: the order of the halves, the workspace, what travels.
 *
 * The three kinds differ in where a row is written and in how it is processed after arrival.  What comes back, and how
 * it is added up, is the same for all.  An operation has four halves; on a GPU each is a kernel with the same contract
 * (gpu.h):
 *
 *     prepare_send      quantize; alltoall: exchange counts; store rows into the windows of their ranks; publish
 *                       (a row: its codes and their scales, opaque; weight-only formats: T)
 *     prepare_receive   arrive; low_latency: sort rows by expert; others: rows lie where the experts read them
 *     finalize_send     store the results of the experts, reduced by token, into the windows of the tokens' ranks;
 *                       publish; release the received rows, which the experts have read by now
 *     finalize_receive  arrive; add up, ranks ascending; release
 *
 * step->rows must be known to the host without waiting.  On a GPU with alltoall it is max_rows, and ids are -1 after
 * the rows that arrived; with allgather, and where rows are moved, ids are -1 after the rows of each rank. */
#ifndef MOEK_EP_HOST_H
#define MOEK_EP_HOST_H
#include <string.h>
#include "../walk/quantize.h"
#include "wire.h"

enum { MOEK_EP_IDLE_, MOEK_EP_SENT_, MOEK_EP_ARRIVED_, MOEK_EP_RETURNED_ };      /* ep.stage: the last half done */

/* ---- the order of the halves ------------------------------------------------------------------------------------- */

/* MOEK_OK if the half after `stage` may begin on this handle; otherwise refuses with a sentence in args->why. */
static moek_status moek_ep_may_(const moek_ep *ep, const moek_plan *plan, const moek_args *args, int stage)
{
    static const char *const halves[] = { "prepare_send", "prepare_receive", "finalize_send", "finalize_receive" };
    const int handle = args->handle;
    moek_status ended;
    if (!ep->open)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "the group is not open: it was closed, or did not open again");
    if ((ended = moek_ep_ended_(ep)) != MOEK_OK) return moek_ep_tell_(ep, args, ended);
    if (handle >= ep->config.handles)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.handle is %d; the group was opened with handles = %d", handle,
                     ep->config.handles);
    if (plan->device != ep->device)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "the plan is for device %d, the group was opened on %d (-1: the CPU)",
                     plan->device, ep->device);
    if (ep->config.x_scale != 0 && ep->config.transport == MOEK_EP_HOST && plan->weights.x_scale &&
        *plan->weights.x_scale != ep->config.x_scale)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "weights.x_scale is %.9g; the group was opened with x_scale = %.9g",
                     (double)*plan->weights.x_scale, (double)ep->config.x_scale);
    if (ep->stage[handle] == stage) return MOEK_OK;
    if (stage == MOEK_EP_IDLE_)
        MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "the operation before on handle %d has not ended (%s comes next): "
                     "finish it, use another handle, or call moek_ep_abort if it failed", handle,
                     halves[ep->stage[handle]]);
    MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "%s on handle %d, where %s comes next", halves[stage], handle,
                 halves[ep->stage[handle]]);
}
static moek_status moek_ep_enter_(const moek_ep *ep, const moek_step *step, int stage)
{
    return moek_ep_may_(ep, step->plan, &step->args, stage);
}
/* moek_prepare_finalize.check */
static moek_status moek_ep_check_run_(const moek_prepare_finalize *self, const moek_plan *plan, const moek_args *args)
{
    return moek_ep_may_((const moek_ep *)self->context, plan, args, MOEK_EP_IDLE_);
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

typedef struct moek_ep_work_ {
    moek_quantized_ sent;             /* quantized rows of x, before they are sent                                    */
    uint16_t *weighted;               /* rows of x times the router's weight                                          */
    moek_quantized_ arrived;          /* received rows.  low_latency: by expert; others: only for fp8t, without a static
                                         scale                                                                        */
    uint16_t *unquantized;            /* low_latency with fp8t: received rows by expert as T, before quantization     */
    int32_t *counts, *offsets;        /* [ranks]: rows that arrived from a rank, and where they begin.  alltoall on a
                                         GPU: offsets[ranks] is the number of all rows                                */
    int32_t *expert_tokens;           /* low_latency: [local experts]                                                 */
    int32_t *slot_row;                /* low_latency: [received rows][slots]: row in expert order, or -1; on a GPU -2 if
                                         the expert was full                                                          */
    int32_t *ids, *token;             /* others, on a GPU: [received rows][slots], [received rows]: copies that no peer
                                         can change                                                                   */
    float *weights;                   /* on a GPU: [received rows][slots]: a copy, too                                */
    void *scale;                      /* others: [received rows]: scales as the experts read them, where the wire has
                                         them otherwise                                                               */
    uint64_t *to;                     /* alltoall on a GPU: [tokens]: bit mask of the ranks that a token goes to      */
    int32_t *before;                  /* alltoall on a GPU: [warps that send][ranks]: rows for a rank from all tokens
                                         ahead of the warp's                                                          */
    int32_t *kept;                    /* EXACT with low_latency, in host memory: [tokens][slots]: ids, or -1 where the
                                         expert was full                                                              */
    int32_t *rows, *back;             /* alltoall where rows are moved.  rows: [ranks], rows for each rank.  back:
                                         [tokens][slots], the row where a slot goes out and comes back                */
} moek_ep_work_;

enum { MOEK_EP_WARPS_ = 24 * 32 };                     /* alltoall on a GPU: the most warps of the send kernel        */

static int moek_ep_low_latency_(const moek_ep *ep) { return ep->config.kind == MOEK_EP_LOW_LATENCY; }
static int moek_ep_may_lose_(const moek_ep *ep)
{
    return moek_ep_low_latency_(ep) && ep->config.combine == MOEK_EP_EXACT;
}

/* 1 if scales of received rows are not read in the window: the wire has them in another form, or padded. */
static int moek_ep_expands_(const moek_ep_scales_ *s) { return s->how == MOEK_EP_EXPONENTS_ || s->wire != s->row; }

static size_t moek_ep_work_layout_(const moek_ep *ep, const moek_plan *plan, void *base, moek_ep_work_ *w)
{
    const moek_config *c = &plan->config;
    const int fp8 = moek_quantizes_(plan->chosen.format) && !plan->experts->expects_unquantized;
    const int batched = moek_ep_low_latency_(ep);
    const int late = fp8 && moek_by_tensor_(plan->chosen.format);                      /* or may be */
    const moek_format *const f = plan->chosen.format;
    const moek_ep_scales_ scales = moek_ep_scales_of_(f, c->hidden, moek_rounds_up_(c, f));
    const size_t hidden = (size_t)c->hidden, chunk = (size_t)plan->chunk, ranks = (size_t)ep->config.ranks;
    const size_t rows = (size_t)plan->local_experts * (size_t)plan->rows_per_expert, received = moek_ep_rows_(ep);
    const int gpu = ep->config.transport == MOEK_EP_GPU, packed = ep->config.kind == MOEK_EP_ALLTOALL;
    const int shares = moek_ep_shares_(ep);
    moek_arena_ arena;
    arena.base = (char *)base; arena.used = 0;
    w->sent = moek_arena_take_quantized_(&arena, f, fp8 ? chunk : 0, hidden);
    w->weighted = (uint16_t *)moek_arena_take_(&arena, c->router_weight_on_input ? 2 * chunk * hidden : 0);
    w->arrived = moek_arena_take_quantized_(&arena, f, batched ? rows : late ? received : 0, hidden);
    w->unquantized = (uint16_t *)moek_arena_take_(&arena, batched && late ? 2 * rows * hidden : 0);
    w->counts = (int32_t *)moek_arena_take_(&arena, 4 * ranks);
    w->offsets = (int32_t *)moek_arena_take_(&arena, 4 * (ranks + 1));
    w->expert_tokens = (int32_t *)moek_arena_take_(&arena, batched ? 4 * (size_t)plan->local_experts : 0);
    w->slot_row = (int32_t *)moek_arena_take_(&arena, batched ? 4 * received * (size_t)plan->slots : 0);
    w->ids = (int32_t *)moek_arena_take_(&arena, gpu && !batched ? 4 * received * (size_t)plan->slots : 0);
    w->token = (int32_t *)moek_arena_take_(&arena, gpu && !batched ? 4 * received : 0);
    w->weights = (float *)moek_arena_take_(&arena, gpu ? 4 * received * (size_t)plan->slots : 0);
    w->scale = moek_arena_take_(&arena, fp8 && !batched && moek_ep_expands_(&scales) ? received * scales.row : 0);
    w->to = (uint64_t *)moek_arena_take_(&arena, gpu && packed ? 8 * chunk : 0);
    w->before = (int32_t *)moek_arena_take_(&arena, gpu && packed ? 4 * MOEK_EP_WARPS_ * ranks : 0);
    w->kept = (int32_t *)moek_arena_take_(&arena, !gpu && moek_ep_may_lose_(ep) ? 4 * chunk * (size_t)plan->slots : 0);
    w->rows = (int32_t *)moek_arena_take_(&arena, shares ? 4 * ranks : 0);
    w->back = (int32_t *)moek_arena_take_(&arena, shares ? 4 * chunk * (size_t)plan->slots : 0);
    return arena.used;
}

static size_t moek_ep_workspace_(const moek_prepare_finalize *self, const moek_plan *plan)
{
    moek_ep_work_ w;
    return moek_ep_work_layout_((const moek_ep *)self->context, plan, NULL, &w);
}

/* ---- what travels ------------------------------------------------------------------------------------------------ */

/* 1 if rows are quantized after arrival: where all of x has one scale that is not known before (fp8t). */
static int moek_ep_late_(const moek_plan *plan)
{
    const moek_format *const f = plan->chosen.format;
    return moek_quantizes_(f) && !plan->experts->expects_unquantized && moek_by_tensor_(f) &&
           !plan->weights.x_scale;
}
static int moek_ep_sends_t_(const moek_plan *plan)
{
    return !moek_quantizes_(plan->chosen.format) || plan->experts->expects_unquantized || moek_ep_late_(plan);
}

/* Rows of x and their scales: their sizes on the wire and, at the sender, their addresses. */
typedef struct moek_ep_message_ {
    size_t x_bytes;
    moek_ep_scales_ scales;                            /* zeros: rows have none                                       */
    size_t x_row;                                      /* bytes from one row at the sender to the next                */
    const char *x, *scale;
} moek_ep_message_;

static moek_ep_message_ moek_ep_message_of_(const moek_plan *plan)
{
    const moek_config *c = &plan->config;
    const moek_format *const f = plan->chosen.format;
    moek_ep_message_ m;
    memset(&m, 0, sizeof m);
    m.x_bytes = moek_ep_sends_t_(plan) ? 2 * (size_t)c->hidden : moek_x_bytes_(f, (size_t)c->hidden);
    if (!moek_ep_sends_t_(plan) && !moek_by_tensor_(f))
        m.scales = moek_ep_scales_of_(f, c->hidden, moek_rounds_up_(c, f));
    m.x_row = m.x_bytes;
    return m;
}

/* The scales of a row, from memory to the wire and back.  (The next row's lie behind them without a gap.) */
static void moek_ep_put_scales_(const moek_ep_scales_ *s, void *to, const void *from)
{
    const float *const floats = (const float *)from;
    size_t i;
    memset(to, 0, s->wire);
    if (s->how != MOEK_EP_EXPONENTS_) memcpy(to, from, s->row);
    else for (i = 0; i < s->count; i++) ((uint8_t *)to)[i] = (uint8_t)(moek_bits_(floats[i]) >> 23);
}
static void moek_ep_get_scales_(const moek_ep_scales_ *s, void *to, const void *from)
{
    const uint8_t *const bytes = (const uint8_t *)from;
    size_t i;
    if (s->how != MOEK_EP_EXPONENTS_) memcpy(to, from, s->row);
    else for (i = 0; i < s->count; i++) ((float *)to)[i] = moek_float_((uint32_t)bytes[i] << 23);
}

/* A tag that ranks compare in every operation: whether rows are T or quantized, and the chunks of a run.  Chunks have
 * six bits: their number, or CHUNKS_ + 1 for any larger number.  That is sufficient, because the only larger number
 * that plans may have is the one on which ranks agreed when they opened (moek_ep_supports_). */
enum { MOEK_EP_CHUNKS_ = 62 };
static int moek_ep_tag_(const moek_plan *plan)
{
    const int chunks = moek_ep_chunks_(&plan->config);
    return (moek_ep_sends_t_(plan) ? 1 : 2) | (chunks > MOEK_EP_CHUNKS_ ? MOEK_EP_CHUNKS_ + 1 : chunks) << 2;
}

/* The layout for rows of message m.  In arrays, rows of x must be dense, because the experts read them in place; in the
 * group's layout strides fit the largest rows. */
static moek_ep_layout moek_ep_fields_(const moek_ep *ep, const moek_ep_message_ *m)
{
    moek_ep_layout l = ep->layout;
    if (!moek_ep_low_latency_(ep)) { l.x.stride = m->x_bytes; l.scale.stride = m->scales.wire; }
    return l;
}

/* A row of x times the router's weight, on the host; quant of T may not be compiled. */
static void moek_ep_weigh_row_(const void *data, long long t)
{
    const moek_quant_args *const a = (const moek_quant_args *)data;
    const float weight = moek_from_t_(moek_to_t_(a->row_weight[t], a->dtype), a->dtype);
    const uint16_t *const x = (const uint16_t *)a->x + (size_t)t * (size_t)a->x_stride;
    uint16_t *const to = (uint16_t *)a->q + (size_t)t * (size_t)a->cols;
    int j;
    for (j = 0; j < a->cols; j++) to[j] = moek_to_t_(moek_from_t_(x[j], a->dtype) * weight, a->dtype);
}

/* Makes the rows that travel: x unchanged, weighted, or quantized. */
static moek_status moek_ep_quantize_(const moek_ep *ep, moek_step *step, moek_ep_message_ *m, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int hidden = plan->config.hidden, dtype = plan->config.dtype, weighted = plan->config.router_weight_on_input;
    const size_t x_stride = moek_x_stride_(&step->args, &plan->config);
    moek_ep_work_ w;
    moek_quant_args a;
    moek_ep_work_layout_(ep, plan, step->prepare_workspace, &w);
    *m = moek_ep_message_of_(plan);
    m->x = (const char *)step->args.x;
    m->x_row = 2 * x_stride;
    if (!step->tokens) return MOEK_OK;
    a = moek_quant_to_(plan, step->args.x, (size_t)step->tokens, (size_t)hidden, w.sent);
    a.x_stride = (int)x_stride;
    a.row_weight = weighted ? step->topk_weights : NULL;
    if (weighted || !moek_ep_sends_t_(plan)) m->x_row = m->x_bytes;
    if (moek_ep_sends_t_(plan)) {
        if (!weighted) return MOEK_OK;
        m->x = (const char *)w.weighted;
        a.q = w.weighted;
        if (plan->device >= 0) return moek_quantize(moek_plain_format_of_(dtype), plan->arch, &a, stream);
        moek_parallel_for_(moek_stream_of_step_(step, stream), step->tokens, moek_ep_weigh_row_, &a);
        return MOEK_OK;
    }
    a.static_scale = plan->weights.x_scale;
    m->x = (const char *)w.sent.q;
    m->scale = (const char *)w.sent.scale;
    return plan->chosen.quant->launch(&a, moek_stream_of_step_(step, stream));
}

/* The local number of physical expert `id` at rank p, or -1 if it lives elsewhere. */
static int32_t moek_ep_local_id_(const moek_ep *ep, int32_t id, int p)
{
    const int32_t place = id >= 0 && id < ep->physical_experts ? moek_ep_places_(ep)[id] : -1;
    return place >= 0 && place >> 16 == p ? place & 0xffff : -1;
}
static int moek_ep_goes_(const moek_ep *ep, const int32_t *ids, int p)
{
    int k;
    if (ep->config.kind == MOEK_EP_ALLGATHER) return 1;
    for (k = 0; k < ep->slots; k++) if (moek_ep_local_id_(ep, ids[k], p) >= 0) return 1;
    return 0;
}

static void moek_ep_put_row_(const moek_ep *ep, const moek_step *step, const moek_ep_message_ *m,
                             const moek_ep_layout *l, int t, int p, size_t row)
{
    const int handle = step->args.handle, k_end = ep->slots;
    const size_t slot = (size_t)t * (size_t)k_end;
    int32_t *ids = (int32_t *)moek_ep_field_(ep, p, handle, l->ids, row);
    float *weights = (float *)moek_ep_field_(ep, p, handle, l->weights, row);
    int k;
    *(int32_t *)moek_ep_field_(ep, p, handle, l->token, row) = t;
    for (k = 0; k < k_end; k++) {
        ids[k] = moek_ep_local_id_(ep, step->ids[slot + (size_t)k], p);
        weights[k] = step->plan->config.router_weight_on_input ? 1 : step->topk_weights[slot + (size_t)k];
    }
    memcpy(moek_ep_field_(ep, p, handle, l->x, row), m->x + (size_t)t * m->x_row, m->x_bytes);
    if (m->scales.row)
        moek_ep_put_scales_(&m->scales, moek_ep_field_(ep, p, handle, l->scale, row),
                            m->scale + (size_t)t * m->scales.row);
}

/* ---- prepare ----------------------------------------------------------------------------------------------------- */

/* alltoall: every rank gets the counts of all ranks.  first: where my rows begin at each rank; offsets: where the rows
 * of each rank begin here.  All ranks have the same counts, so all come to the same result on whether rows fit. */
static moek_status moek_ep_exchange_counts_(const moek_ep *ep, moek_step *step, const int32_t *counts, int32_t *first,
                                            int32_t *offsets)
{
    const int handle = step->args.handle, ranks = ep->config.ranks, me = ep->config.rank;
    const int tag = moek_ep_tag_(step->plan);
    int32_t unused[MOEK_EP_MAX_RANKS];
    uint64_t most = 0;
    int p, s, fullest = 0;
    moek_status status = moek_ep_grant_(ep, MOEK_EP_COUNTS, handle);
    for (p = 0; p < ranks && status == MOEK_OK; p++)
        memcpy(moek_ep_counts_(ep, p, handle, me), counts, 4 * (size_t)ranks);
    if (status == MOEK_OK) status = moek_ep_publish_(ep, MOEK_EP_COUNTS, handle, tag, counts);
    if (status == MOEK_OK) status = moek_ep_arrive_(ep, MOEK_EP_COUNTS, handle, tag, unused);
    if (status != MOEK_OK) return moek_ep_tell_(ep, &step->args, status);
    for (p = 0; p < ranks; p++) {
        uint64_t rows = 0;
        for (s = 0; s < ranks; s++) {
            if (s == me) first[p] = (int32_t)rows;
            if (p == me) offsets[s] = (int32_t)rows;
            rows += moek_ep_counts_(ep, me, handle, s)[p];
        }
        if (rows > most) { most = rows; fullest = p; }
    }
    moek_ep_release_(ep, MOEK_EP_COUNTS, handle);
    if (most > (uint64_t)ep->config.max_rows)
        MOEK_REFUSE_(&step->args, MOEK_E_CAPACITY, "rank %d would receive %lu rows, the group was opened with max_rows "
                     "= %d: nothing was sent.  max_rows = ranks * max_tokens = %d is always enough", fullest,
                     (unsigned long)most, ep->config.max_rows, ranks * ep->config.max_tokens);
    return MOEK_OK;
}

static moek_status moek_ep_prepare_send_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const int handle = step->args.handle, ranks = ep->config.ranks;
    int32_t counts[MOEK_EP_MAX_RANKS], first[MOEK_EP_MAX_RANKS];
    moek_ep_message_ m;
    moek_ep_layout l;
    moek_ep_work_ w;
    int i, t;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_IDLE_);
    if (status == MOEK_OK) status = moek_ep_quantize_(ep, step, &m, stream);
    if (status != MOEK_OK) return status;
    l = moek_ep_fields_(ep, &m);
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    for (i = 0; i < ranks; i++) {
        first[i] = ep->config.rank * ep->config.max_tokens;
        w.offsets[i] = i * ep->config.max_tokens;
        for (counts[i] = 0, t = 0; t < step->tokens; t++)
            counts[i] += moek_ep_goes_(ep, step->ids + (size_t)t * (size_t)ep->slots, i);
    }
    if (ep->config.kind == MOEK_EP_ALLTOALL &&
        (status = moek_ep_exchange_counts_(ep, step, counts, first, w.offsets)) != MOEK_OK)
        return status;
    status = moek_ep_grant_(ep, MOEK_EP_DISPATCH, handle);
    for (i = 0; i < ranks && status == MOEK_OK; i++) {
        const int p = moek_ep_turn_(ep, i);
        size_t row = (size_t)first[p];
        for (t = 0; t < step->tokens; t++)
            if (moek_ep_goes_(ep, step->ids + (size_t)t * (size_t)ep->slots, p))
                moek_ep_put_row_(ep, step, &m, &l, t, p, row++);
    }
    if (status == MOEK_OK)
        status = moek_ep_publish_(ep, MOEK_EP_DISPATCH, handle, moek_ep_tag_(step->plan), counts);
    if (status != MOEK_OK) return moek_ep_tell_(ep, &step->args, status);
    ep->stage[handle] = MOEK_EP_SENT_;
    return MOEK_OK;
}

/* low_latency: copies received rows to [local experts][rows_per_expert], ordered by rank and token within an expert. */
static void moek_ep_sort_rows_(const moek_ep *ep, const moek_step *step, const moek_ep_work_ *w)
{
    const moek_plan *plan = step->plan;
    char *const to = moek_ep_late_(plan) ? (char *)w->unquantized : (char *)w->arrived.q;
    const moek_ep_message_ m = moek_ep_message_of_(plan);
    const int me = ep->config.rank, handle = step->args.handle;
    int s, i, k;
    memset(w->expert_tokens, 0, 4 * (size_t)plan->local_experts);
    for (s = 0; s < ep->config.ranks; s++) {
        for (i = 0; i < w->counts[s]; i++) {
            const size_t row = (size_t)(w->offsets[s] + i);
            const int32_t *ids = (const int32_t *)moek_ep_field_(ep, me, handle, ep->layout.ids, row);
            for (k = 0; k < plan->slots; k++) {
                const int32_t e = ids[k];
                const int fits = e >= 0 && w->expert_tokens[e] < plan->rows_per_expert;
                const int at = fits ? e * plan->rows_per_expert + w->expert_tokens[e]++ : -1;
                w->slot_row[row * (size_t)plan->slots + (size_t)k] = at;
                if (!fits) continue;
                memcpy(to + (size_t)at * m.x_bytes, moek_ep_field_(ep, me, handle, ep->layout.x, row), m.x_bytes);
                if (m.scales.row)
                    moek_ep_get_scales_(&m.scales, (char *)w->arrived.scale + (size_t)at * m.scales.row,
                                        moek_ep_field_(ep, me, handle, ep->layout.scale, row));
            }
        }
    }
}

/* low_latency: describes the sorted rows in *step; quantizes them if they are late. */
static moek_status moek_ep_arrived_low_latency_(moek_step *step, const moek_ep_work_ *w, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int late = moek_ep_late_(plan);
    moek_quant_args a;
    step->a = w->arrived.q;
    step->a_scale = !moek_quantizes_(plan->chosen.format) ? NULL
                  : moek_by_tensor_(plan->chosen.format) && !late ? plan->weights.x_scale : w->arrived.scale;
    step->rows = plan->rows_per_expert;
    step->expert_ids = NULL;
    step->expert_weights = NULL;
    step->expert_tokens = w->expert_tokens;
    if (!late) return MOEK_OK;
    a = moek_quant_to_(plan, w->unquantized, (size_t)plan->local_experts * (size_t)plan->rows_per_expert,
                       (size_t)plan->config.hidden, w->arrived);
    a.static_scale = plan->weights.x_scale;
    a.counts = w->expert_tokens;
    a.rows_per_expert = plan->rows_per_expert;
    return plan->chosen.quant->launch(&a, moek_stream_of_step_(step, stream));
}

/* allgather: sets ids to -1 after the rows of each rank, where there are no tokens. */
static void moek_ep_nobody_(const moek_ep *ep, const moek_step *step, const moek_ep_work_ *w)
{
    const size_t bytes = 4 * (size_t)ep->slots;
    int s, i;
    for (s = 0; s < ep->config.ranks; s++)
        for (i = w->counts[s]; i < ep->config.max_tokens; i++)
            memset(moek_ep_field_(ep, ep->config.rank, step->args.handle, ep->layout.ids,
                                  (size_t)(w->offsets[s] + i)), 0xff, bytes);
}

/* alltoall, allgather: describes the received rows in *step; quantizes them if they are late. */
static moek_status moek_ep_arrived_rows_(const moek_ep *ep, moek_step *step, const moek_ep_work_ *w,
                                         moek_stream stream)
{
    const moek_plan *plan = step->plan;
    const int me = ep->config.rank, handle = step->args.handle, gather = ep->config.kind == MOEK_EP_ALLGATHER;
    const int last = ep->config.ranks - 1, gpu = ep->config.transport == MOEK_EP_GPU;
    const moek_ep_message_ m = moek_ep_message_of_(plan);
    moek_quant_args a;
    step->rows = gather || gpu ? (int)moek_ep_rows_(ep) : w->offsets[last] + w->counts[last];
    step->a = moek_ep_field_(ep, me, handle, ep->layout.x, 0);
    step->a_scale = moek_ep_expands_(&m.scales) ? w->scale
                  : m.scales.row ? moek_ep_field_(ep, me, handle, ep->layout.scale, 0)
                  : moek_ep_sends_t_(plan) ? NULL : (const void *)plan->weights.x_scale;
    step->expert_ids = gpu ? w->ids : (const int32_t *)moek_ep_field_(ep, me, handle, ep->layout.ids, 0);
    step->expert_weights = (const float *)moek_ep_field_(ep, me, handle, ep->layout.weights, 0);
    step->expert_tokens = NULL;
    if (!moek_ep_late_(plan) || !step->rows) return MOEK_OK;
    a = moek_quant_to_(plan, step->a, (size_t)step->rows, (size_t)plan->config.hidden, w->arrived);
    a.static_scale = plan->weights.x_scale;
    if (gather || ep->config.move) { a.counts = w->counts; a.rows_per_expert = moek_ep_share_(ep); }
    else if (gpu) a.row_limit = w->offsets + last + 1;
    step->a = w->arrived.q;
    step->a_scale = w->arrived.scale;
    return plan->chosen.quant->launch(&a, moek_stream_of_step_(step, stream));
}

/* alltoall, allgather: writes the scales of received rows as the experts read them, where the wire has another form. */
static void moek_ep_unpack_scales_(const moek_ep *ep, const moek_step *step, const moek_ep_work_ *w)
{
    const moek_ep_message_ m = moek_ep_message_of_(step->plan);
    const moek_ep_layout l = moek_ep_fields_(ep, &m);
    int s, i;
    for (s = 0; s < ep->config.ranks && moek_ep_expands_(&m.scales); s++)
        for (i = 0; i < w->counts[s]; i++) {
            const size_t row = (size_t)(w->offsets[s] + i);
            moek_ep_get_scales_(&m.scales, (char *)w->scale + row * m.scales.row,
                                moek_ep_field_(ep, ep->config.rank, step->args.handle, l.scale, row));
        }
}

static moek_status moek_ep_prepare_receive_(const moek_prepare_finalize *self, moek_step *step, moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const int handle = step->args.handle;
    moek_ep_work_ w;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_SENT_);
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    status = moek_ep_arrive_(ep, MOEK_EP_DISPATCH, handle, moek_ep_tag_(step->plan), w.counts);
    if (status != MOEK_OK) return moek_ep_tell_(ep, &step->args, status);
    if (moek_ep_low_latency_(ep)) moek_ep_sort_rows_(ep, step, &w);
    else moek_ep_unpack_scales_(ep, step, &w);
    if (ep->config.kind == MOEK_EP_ALLGATHER) moek_ep_nobody_(ep, step, &w);
    status = moek_ep_low_latency_(ep) ? moek_ep_arrived_low_latency_(step, &w, stream)
                                      : moek_ep_arrived_rows_(ep, step, &w, stream);
    if (status == MOEK_OK) ep->stage[handle] = MOEK_EP_ARRIVED_;
    return status;
}

/* ---- finalize ---------------------------------------------------------------------------------------------------- */

/* A received row and its results: slot k has the row at out + at[k] * hidden; at[k] < 0: the row was dropped. */
typedef struct moek_ep_given_ {
    int slots, hidden, dtype;
    const int32_t *ids;
    const float *weights;
    const uint16_t *out;
    ptrdiff_t at[MOEK_MAX_TOPK_];
    int reduced;                      /* the experts weighted and added up themselves: only at[0] is used             */
} moek_ep_given_;

/* Stores the weighted sum over the row's experts on this rank, as T or f32. */
static void moek_ep_reduce_row_(const moek_ep_given_ *g, void *to, int f32)
{
    enum { STRETCH = 512 };
    int j0, j, k;
    for (j0 = 0; j0 < g->hidden; j0 += STRETCH) {
        const int n = g->hidden - j0 < STRETCH ? g->hidden - j0 : (int)STRETCH;
        float sum[STRETCH] = {0};
        for (k = 0; k < (g->reduced ? 1 : g->slots); k++) {
            const float weight = g->reduced ? 1.0f : g->weights[k];
            const uint16_t *from;
            if (!g->reduced && (g->ids[k] < 0 || g->at[k] < 0)) continue;
            from = g->out + g->at[k] * g->hidden + j0;
            for (j = 0; j < n; j++) sum[j] += weight * moek_from_t_(from[j], g->dtype);
        }
        if (f32) memcpy((float *)to + j0, sum, 4 * (size_t)n);
        else for (j = 0; j < n; j++) ((uint16_t *)to)[j0 + j] = moek_to_t_(sum[j], g->dtype);
    }
}

/* Sends results to the window of the token's rank: one row, or with EXACT one a slot (the lost pattern for a dropped
 * row). */
static void moek_ep_return_row_(const moek_ep *ep, const moek_ep_given_ *g, int rank, int handle, int token)
{
    const int f32 = ep->config.combine == MOEK_EP_REDUCED_F32, exact = ep->config.combine == MOEK_EP_EXACT;
    const size_t bytes = (size_t)g->hidden * (f32 ? 4 : 2), first = (size_t)token * (size_t)ep->layout.slots;
    int j, k, mine = -1;
    for (k = 0; k < g->slots; k++) {
        char *to;
        if (g->ids[k] < 0) continue;
        if (mine < 0) mine = k;
        if (!exact) continue;
        to = moek_ep_partial_(ep, rank, handle, first + (size_t)k, bytes);
        for (j = 0; j < g->hidden && g->at[k] < 0; j++) ((uint16_t *)to)[j] = (uint16_t)moek_ep_lost_(g->dtype);
        if (g->at[k] >= 0) memcpy(to, g->out + g->at[k] * g->hidden, bytes);
    }
    if (mine < 0 || exact) return;
    if (ep->config.ranks <= ep->slots) mine = ep->config.rank;
    moek_ep_reduce_row_(g, moek_ep_partial_(ep, rank, handle, first + (size_t)mine, bytes), f32);
}

/* Rows from a rank, and their results. */
typedef struct moek_ep_return_ {
    const moek_ep *ep;
    const moek_step *step;
    const moek_ep_work_ *w;
    int weight_and_reduce, rank;
} moek_ep_return_;
static const int32_t *moek_ep_arrived_ids_(const moek_ep_return_ *r, size_t row)
{
    const moek_ep *const ep = r->ep;
    return (const int32_t *)moek_ep_field_(ep, ep->config.rank, r->step->args.handle, ep->layout.ids, row);
}
static void moek_ep_return_task_(const void *data, long long i)
{
    const moek_ep_return_ *const r = (const moek_ep_return_ *)data;
    const moek_ep *const ep = r->ep;
    const moek_plan *const plan = r->step->plan;
    const int me = ep->config.rank, handle = r->step->args.handle;
    const size_t row = (size_t)(r->w->offsets[r->rank] + i), slot = row * (size_t)plan->slots;
    moek_ep_given_ g;
    int k;
    g.slots = plan->slots; g.hidden = plan->config.hidden; g.dtype = plan->config.dtype;
    g.ids = moek_ep_arrived_ids_(r, row);
    g.weights = (const float *)moek_ep_field_(ep, me, handle, ep->layout.weights, row);
    g.out = (const uint16_t *)r->step->out;
    g.reduced = r->weight_and_reduce == MOEK_NOOP;
    for (k = 0; k < g.slots; k++)
        g.at[k] = moek_ep_low_latency_(ep) ? (ptrdiff_t)r->w->slot_row[slot + (size_t)k]
                : (ptrdiff_t)(g.reduced ? row : slot + (size_t)k);
    moek_ep_return_row_(ep, &g, r->rank, handle,
                        *(const int32_t *)moek_ep_field_(ep, me, handle, ep->layout.token, row));
}
/* Returns the number of rows that go back. */
static int moek_ep_return_rows_(const moek_ep_return_ *r, moek_stream stream)
{
    const int rows = r->w->counts[r->rank], slots = r->step->plan->slots;
    int i, k, back = 0;
    moek_parallel_for_(stream, rows, moek_ep_return_task_, r);
    for (i = 0; i < rows; i++) {
        const int32_t *const ids = moek_ep_arrived_ids_(r, (size_t)(r->w->offsets[r->rank] + i));
        int n = 0;
        for (k = 0; k < slots; k++) n += ids[k] >= 0;
        back += r->ep->config.combine == MOEK_EP_EXACT ? n : n > 0;
    }
    return back;
}

static moek_status moek_ep_finalize_send_(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                          moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const int handle = step->args.handle;
    int32_t counts[MOEK_EP_MAX_RANKS];
    moek_ep_work_ w;
    int i;
    moek_ep_return_ back;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_ARRIVED_);
    if (status != MOEK_OK) return status;
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    back.ep = ep; back.step = step; back.w = &w; back.weight_and_reduce = weight_and_reduce;
    status = moek_ep_grant_(ep, MOEK_EP_COMBINE, handle);
    for (i = 0; i < ep->config.ranks && status == MOEK_OK; i++) {
        back.rank = moek_ep_turn_(ep, i);
        counts[back.rank] = moek_ep_return_rows_(&back, moek_stream_of_step_(step, stream));
    }
    if (status == MOEK_OK) status = moek_ep_publish_(ep, MOEK_EP_COMBINE, handle, moek_ep_tag_(step->plan), counts);
    if (status != MOEK_OK) return moek_ep_tell_(ep, &step->args, status);
    moek_ep_release_(ep, MOEK_EP_DISPATCH, handle);
    ep->stage[handle] = MOEK_EP_RETURNED_;
    return MOEK_OK;
}

/* rows: the indices of the rows of `partial` that ranks sent back for a token, ranks ascending.  Returns their
 * number. */
static int moek_ep_returned_(const moek_ep *ep, const int32_t *ids, int *rows)
{
    int first[MOEK_EP_MAX_RANKS], p, k, n = 0;
    for (p = 0; p < ep->config.ranks; p++) first[p] = -1;
    for (k = ep->slots - 1; k >= 0; k--)
        if (ids[k] >= 0 && ids[k] < ep->physical_experts) first[moek_ep_places_(ep)[ids[k]] >> 16] = k;
    for (p = 0; p < ep->config.ranks; p++)
        if (first[p] >= 0) rows[n++] = ep->config.ranks <= ep->slots ? p : first[p];
    return n;
}

/* y of a token. */
static void moek_ep_add_up_(const void *data, long long t)
{
    enum { STRETCH = 512 };
    const moek_ep *const ep = ((const moek_ep_return_ *)data)->ep;
    const moek_step *const step = ((const moek_ep_return_ *)data)->step;
    const int f32 = ep->config.combine == MOEK_EP_REDUCED_F32, hidden = ep->hidden, dtype = ep->dtype;
    const moek_config *c = &step->plan->config;
    const size_t bytes = (size_t)hidden * (f32 ? 4 : 2), row = (size_t)t;
    const uint16_t *addend = step->args.shared_y
                           ? (const uint16_t *)step->args.shared_y + row * moek_shared_y_stride_(&step->args, c) : NULL;
    uint16_t *y = (uint16_t *)step->args.y + row * moek_y_stride_(&step->args, c);
    int rows[MOEK_EP_MAX_RANKS], i, j0, j;
    const int n = moek_ep_returned_(ep, step->ids + (size_t)t * (size_t)ep->slots, rows);
    for (j0 = 0; j0 < hidden; j0 += STRETCH) {
        const int end = hidden - j0 < STRETCH ? hidden : j0 + (int)STRETCH;
        float sum[STRETCH] = {0};
        for (i = 0; i < n; i++) {
            const char *from = moek_ep_partial_(ep, ep->config.rank, step->args.handle,
                                                (size_t)t * (size_t)ep->layout.slots + (size_t)rows[i], bytes);
            for (j = j0; j < end; j++)
                sum[j - j0] += f32 ? ((const float *)from)[j] : moek_from_t_(((const uint16_t *)from)[j], dtype);
        }
        for (j = j0; j < end; j++)
            y[j] = moek_to_t_(sum[j - j0] + (addend ? moek_from_t_(addend[j], dtype) : 0.0f), dtype);
    }
}

/* EXACT: the ids of a run, with -1 for slots whose rows were lost.  A copy where rows can be lost (low_latency). */
static const int32_t *moek_ep_kept_(const moek_ep *ep, const moek_step *step)
{
    const size_t slots = (size_t)step->tokens * (size_t)ep->slots, bytes = 2 * (size_t)ep->hidden;
    const uint16_t lost = (uint16_t)moek_ep_lost_(ep->dtype);
    moek_ep_work_ w;
    size_t i;
    if (!moek_ep_may_lose_(ep)) return step->ids;
    moek_ep_work_layout_(ep, step->plan, step->prepare_workspace, &w);
    for (i = 0; i < slots; i++) {                      /* (a slot with id -1 has an undefined row) */
        const char *row = moek_ep_partial_(ep, ep->config.rank, step->args.handle, i, bytes);
        w.kept[i] = *(const uint16_t *)row == lost ? -1 : step->ids[i];
    }
    return w.kept;
}

/* EXACT: adds up with the combine kernel of one rank. */
static moek_status moek_ep_combine_(const moek_ep *ep, const moek_step *step, moek_stream stream)
{
    const moek_plan *plan = step->plan;
    moek_combine_args a;
    memset(&a, 0, sizeof a);
    a.tokens = step->tokens; a.topk = plan->slots; a.hidden = plan->config.hidden;
    a.experts = ep->physical_experts;
    a.dtype = plan->config.dtype;
    a.rows = moek_ep_partial_(ep, ep->config.rank, step->args.handle, 0, 0);
    a.ids = moek_ep_kept_(ep, step);
    a.weights = plan->config.router_weight_on_input ? NULL : step->topk_weights;
    a.addend = step->args.shared_y; a.addend_stride = (int)moek_shared_y_stride_(&step->args, &plan->config);
    a.y = step->args.y; a.y_stride = (int)moek_y_stride_(&step->args, &plan->config);
    return plan->chosen.combine->launch(&a, moek_stream_of_step_(step, stream));
}

static moek_status moek_ep_finalize_receive_(const moek_prepare_finalize *self, moek_step *step, int weight_and_reduce,
                                             moek_stream stream)
{
    moek_ep *ep = (moek_ep *)self->context;
    const int handle = step->args.handle;
    int32_t counts[MOEK_EP_MAX_RANKS];
    moek_ep_return_ back;
    moek_status status = moek_ep_enter_(ep, step, MOEK_EP_RETURNED_);
    if (status != MOEK_OK) return status;
    memset(&back, 0, sizeof back);
    back.ep = ep; back.step = step; back.weight_and_reduce = weight_and_reduce;
    status = moek_ep_arrive_(ep, MOEK_EP_COMBINE, handle, moek_ep_tag_(step->plan), counts);
    if (status != MOEK_OK) return moek_ep_tell_(ep, &step->args, status);
    if (ep->config.combine == MOEK_EP_EXACT) status = moek_ep_combine_(ep, step, stream);
    else moek_parallel_for_(moek_stream_of_step_(step, stream), step->tokens, moek_ep_add_up_, &back);
    moek_ep_release_(ep, MOEK_EP_COMBINE, handle);
    ep->stage[handle] = MOEK_EP_IDLE_;
    return status;
}
#endif
