/* moek/ep/group.h -- a group of ranks: fills in defaults, chooses the kind and explains the choice, opens, joins,
 * reports. */
#ifndef MOEK_EP_GROUP_H
#define MOEK_EP_GROUP_H
#include <string.h>
#include "gpu.h"

const char *moek_ep_kind_name(int kind)
{
    switch (kind) {
#define MOEK_CASE_(NAME, name, number) case number: return #name;
    MOEK_EACH_EP_KIND(MOEK_CASE_)
#undef MOEK_CASE_
    default: return NULL;
    }
}

static const char *moek_ep_combine_name_(int combine)
{
    return combine == MOEK_EP_EXACT ? "exact" : combine == MOEK_EP_REDUCED_F32 ? "reduced in f32" : "reduced";
}

/* ---- what needs no window ---------------------------------------------------------------------------------------- */

static moek_status moek_ep_check_(const moek_ep_config *c, moek_text_ *why)
{
    if (c->ranks < 1 || c->ranks > MOEK_EP_MAX_RANKS || c->rank < 0 || c->rank >= c->ranks)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "rank is %d of %d ranks; 0 <= rank < ranks <= %d", c->rank, c->ranks,
                   (int)MOEK_EP_MAX_RANKS);
    if (!c->layer) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "layer is NULL; it is the config of the layer");
    if (c->kind && !moek_ep_kind_name(c->kind))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "kind is %d; MOEK_EP_AUTO, MOEK_EP_ALLTOALL, ...", c->kind);
    if (c->combine < MOEK_EP_REDUCED || c->combine > MOEK_EP_EXACT)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "combine is %d; MOEK_EP_REDUCED, _REDUCED_F32 or _EXACT", c->combine);
    if (c->placement != MOEK_EP_LINEAR && c->placement != MOEK_EP_ROUND_ROBIN)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "placement is %d; MOEK_EP_LINEAR or _ROUND_ROBIN", c->placement);
    if (c->max_tokens < 0 || c->max_rows < 0 || c->timeout_ms < 0)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "max_tokens is %d, max_rows %d, timeout_ms %d; they must not be negative",
                   c->max_tokens, c->max_rows, c->timeout_ms);
    if (c->handles < 0 || c->handles > MOEK_EP_MAX_HANDLES)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "handles is %d; 1 or 2", c->handles);
    if (c->transport < 0 || c->transport > MOEK_EP_GPU)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "transport is %d; MOEK_EP_HOST or MOEK_EP_GPU", c->transport);
    if (c->transport == MOEK_EP_GPU && MOEK_HAVE_CUDA_ == 0)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "transport is MOEK_EP_GPU, but this was compiled without nvcc");
    return MOEK_OK;
}

static int moek_ep_allows_gpu_(const moek_config *layer)
{
    return ((layer->backend ? 1u << layer->backend : ~layer->exclude) & MOEK_BACKENDS_GPU) != 0;
}

/* hidden of a group on GPUs is a multiple of it: a row has 16-byte words, whether it travels as T or quantized. */
static int moek_ep_granule_(int quant) { return moek_format_of(quant)->x_bits < 8 ? 32 : 16; }

/* Checks the config, fills in its defaults, and derives the sizes of rows from the layer. */
static moek_status moek_ep_settle_(moek_ep *ep, const moek_ep_config *config, moek_text_ *why)
{
    moek_ep_config *c = &ep->config;
    moek_status status = moek_ep_check_(config, why);
    moek_config layer;
    const moek_format *f;
    int e, raw;
    *c = *config;
    if (status != MOEK_OK) return status;
    layer = *config->layer;
    if (!c->transport)
        c->transport = MOEK_HAVE_CUDA_ && moek_ep_allows_gpu_(&layer) && moek_device_query_().ordinal >= 0
                     ? MOEK_EP_GPU : MOEK_EP_HOST;
    if ((status = moek_check_sizes_(&layer, why)) != MOEK_OK || (status = moek_check_kinds_(&layer, why)) != MOEK_OK ||
        (status = moek_check_act_(&layer, why)) != MOEK_OK || (status = moek_check_routing_(&layer, why)) != MOEK_OK)
        return status;
    moek_fill_defaults_(&layer);
    ep->hidden = layer.hidden; ep->slots = layer.topk + layer.shared_slots; ep->quant = layer.quant;
    f = moek_format_of(layer.quant);
    ep->dtype = layer.dtype; ep->physical_experts = layer.physical_experts;
    if (c->move && c->transport != MOEK_EP_GPU)
        MOEK_FAIL_(why, MOEK_E_BACKEND, "move is for transport = MOEK_EP_GPU; ranks on the CPU share their windows");
    if (c->transport == MOEK_EP_GPU && ep->hidden % moek_ep_granule_(ep->quant))
        MOEK_FAIL_(why, MOEK_E_BACKEND, "hidden is %d; on a GPU rows travel 16 bytes at a time, so with %s it must be "
                   "a multiple of %d", ep->hidden, moek_quant_name(ep->quant), moek_ep_granule_(ep->quant));
    if (c->x_scale != 0 && !f->static_x)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "x_scale is %g, but x of %s has no static scale: leave it 0",
                   (double)c->x_scale, moek_quant_name(ep->quant));
    if (!(c->x_scale - c->x_scale == 0))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "x_scale is %g; it must be finite", (double)c->x_scale);
    for (e = 0; c->owner && e < ep->physical_experts; e++)
        if (c->owner[e] < 0 || c->owner[e] >= c->ranks)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "owner[%d] is %d; ranks are 0 to %d", e, (int)c->owner[e], c->ranks - 1);
    if (!c->max_tokens) c->max_tokens = moek_chunk_(&layer);
    if (!c->handles) c->handles = 1;
    if (!c->timeout_ms) c->timeout_ms = 30000;
    if ((double)c->max_tokens * c->ranks * ep->slots > 0x7fffffff)
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "%d tokens x %d ranks x %d slots overflow 31 bits: set chunk_tokens",
                   c->max_tokens, c->ranks, ep->slots);
    if (!c->max_rows || c->max_rows > c->max_tokens * c->ranks) c->max_rows = c->max_tokens * c->ranks;
    if (c->move) c->max_rows = ((c->max_rows - 1) / c->ranks + 1) * c->ranks;
    ep->local_experts = moek_ep_count_(c, ep->physical_experts, c->rank);
    if (!ep->local_experts) ep->local_experts = 1;
    for (ep->owners = 2166136261u, e = 0; e < ep->physical_experts; e++)
        ep->owners = (ep->owners ^ (uint32_t)moek_ep_owner_(c, ep->physical_experts, e)) * 16777619u;
    raw = !moek_quantizes_(f) || moek_by_tensor_(f) ||
          (layer.experts_impl && layer.experts_impl->expects_unquantized);
    ep->row_bytes = raw ? 2 * ep->hidden : (int)moek_x_bytes_(f, (size_t)ep->hidden);
    ep->ue8m0 = moek_rounds_up_(&layer, f);
    ep->scale_bytes = raw ? 0 : (int)moek_ep_scales_of_(f, ep->hidden, ep->ue8m0).wire;
    ep->chunks = moek_ep_chunks_(&layer);
    ep->layer = layer;
    return MOEK_OK;
}

/* The expected share of ranks that have at least one expert of a token, if its slots choose experts evenly. */
static double moek_ep_reach_(const moek_ep *ep)
{
    double miss = 1;
    int k;
    for (k = 0; k < ep->slots; k++) miss *= 1 - 1.0 / ep->config.ranks;
    return 1 - miss;
}

/* Appends the reason why a kind can not serve the layer or, unless the kind is demanded, why another one suits
 * better. */
static void moek_ep_kind_refuses_(const moek_ep *ep, const moek_config *layer, int kind, int demanded, moek_text_ *t)
{
    const moek_experts *x = layer->experts_impl;
    const int format = kind == MOEK_EP_LOW_LATENCY ? MOEK_BATCHED : MOEK_STANDARD, tokens = ep->config.max_tokens;
    if (x && x->format != format)
        moek_append_(t, "experts %s take %s format, it delivers %s", x->name, moek_format_name_(x->format),
                     moek_format_name_(format));
    else if (layer->format == MOEK_BATCHED && format != MOEK_BATCHED)
        moek_append_(t, "layer.format is MOEK_BATCHED, it delivers standard");
    else if (x && ep->config.combine == MOEK_EP_EXACT && x->weight_and_reduce == MOEK_NOOP)
        moek_append_(t, "experts %s add up by themselves, so there are no rows for MOEK_EP_EXACT", x->name);
    else if (kind == MOEK_EP_LOW_LATENCY && x && x->weight_and_reduce != MOEK_DELEGATE)
        moek_append_(t, "experts %s do not leave weights and sums to it (MOEK_DELEGATE)", x->name);
    else if (kind == MOEK_EP_LOW_LATENCY && x && x->expects_unquantized && moek_quantizes_(moek_format_of(ep->quant)))
        moek_append_(t, "it cannot defer quantization, and experts %s expect unquantized rows", x->name);
    else if (demanded) return;
    else if (kind == MOEK_EP_LOW_LATENCY && tokens > MOEK_EP_FEW_TOKENS)
        moek_append_(t, "for up to %d tokens a rank, not %d: an expert would be given room for %d rows",
                     (int)MOEK_EP_FEW_TOKENS, tokens, tokens * ep->config.ranks);
    else if (kind == MOEK_EP_ALLTOALL && ep->config.move && ep->config.max_rows == tokens * ep->config.ranks)
        moek_append_(t, "max_rows leaves room for all tokens of each rank, and so many rows would be moved, as by "
                     "allgather (of %d; %.0f arrive where all experts are as busy)", ep->config.max_rows,
                     tokens * ep->config.ranks * moek_ep_reach_(ep));
    else if (kind == MOEK_EP_ALLTOALL && ep->config.max_rows == tokens * ep->config.ranks && moek_ep_reach_(ep) >= 0.9)
        moek_append_(t, "%d slots reach %.0f %% of %d ranks: sending rows to all saves the exchange of counts",
                     ep->slots, 100 * moek_ep_reach_(ep), ep->config.ranks);
}

/* Refuses windows whose size overflows size_t.  (With 64 bits none does.) */
static moek_status moek_ep_countable_(const moek_ep *ep, moek_text_ *why)
{
    const moek_ep_config *c = &ep->config;
    const double row = (double)ep->row_bytes + ep->scale_bytes + 12.0 * ep->slots + 512;
    const double back = (double)c->ranks * c->max_tokens * ep->slots * ep->hidden * 4;
    const double bytes = c->handles * (row * c->ranks * c->max_tokens + back);
    if (bytes > (double)((size_t)-1 / 4))
        MOEK_FAIL_(why, MOEK_E_ARGUMENT, "a window would have up to %.0f bytes, more than an address has room for: set "
                   "chunk_tokens", bytes);
    return MOEK_OK;
}

/* Settles everything that needs no window: defaults, kind, layout.  log: a line for each kind. */
static moek_status moek_ep_choose_(moek_ep *ep, const moek_ep_config *config, moek_text_ *why, moek_text_ *log)
{
    static const int kinds[] = {
#define MOEK_KIND_(NAME, name, number) number,
        MOEK_EACH_EP_KIND(MOEK_KIND_)
#undef MOEK_KIND_
    };
    const int n = (int)(sizeof kinds / sizeof *kinds);
    int i, kind = MOEK_EP_AUTO;
    moek_status status = moek_ep_settle_(ep, config, why);
    if (status != MOEK_OK || (status = moek_ep_countable_(ep, why)) != MOEK_OK) return status;
    for (i = 0; i < n; i++) {
        char reason[256];
        moek_text_ t = moek_text_in_(reason, sizeof reason);
        const char *const name = moek_ep_kind_name(kinds[i]);
        if (config->kind && config->kind != kinds[i]) moek_append_(log, "%s: not demanded\n", name);
        else if (kind) moek_append_(log, "%s: not asked, a better one was taken\n", name);
        else {
            moek_ep_kind_refuses_(ep, config->layer, kinds[i], config->kind != MOEK_EP_AUTO, &t);
            if (!t.length) kind = kinds[i];
            else moek_append_(why, "%s%s: %s", why->length ? "\n" : "", name, reason);
            moek_append_(log, "%s: %s\n", name, t.length ? reason : "taken");
        }
    }
    if (!kind) return MOEK_E_BACKEND;
    moek_clear_(why);
    ep->config.kind = kind;
    moek_ep_level_(ep, &ep->layer);
    if (ep->config.transport == MOEK_EP_GPU && kind == MOEK_EP_LOW_LATENCY && ep->dtype == MOEK_DTYPE_BF16 &&
        ep->hidden == moek_hidden_round_up(ep->hidden)) ep->baked = ep->hidden;
    moek_ep_lay_out_(ep);
    return MOEK_OK;
}

size_t moek_ep_window_size_(const moek_ep_config *config, size_t config_size, int version)
{
    moek_text_ none = moek_text_in_(NULL, 0);
    moek_ep ep;
    memset(&ep, 0, sizeof ep);
    if (version != MOEK_VERSION || config_size != sizeof *config) return 0;
    return config && moek_ep_choose_(&ep, config, &none, &none) == MOEK_OK ? ep.layout.size : 0;
}

/* ---- prepare/finalize of the group ------------------------------------------------------------------------------- */

static int moek_ep_supports_(const moek_prepare_finalize *self, const moek_config *c, char *why, size_t why_size)
{
    const moek_ep *ep = (const moek_ep *)self->context;
    moek_text_ t = moek_text_in_(why, why_size);
    uint64_t ours[MOEK_EP_LAYER_FIELDS_], asked[MOEK_EP_LAYER_FIELDS_];
    moek_config level = *c;
    const int chunks = moek_ep_chunks_(c);
    int i;
    moek_ep_level_(ep, &level);
    moek_ep_layer_words_(&ep->layer, ours);
    moek_ep_layer_words_(&level, asked);
    for (i = 0; i < MOEK_EP_LAYER_FIELDS_; i++) {
        moek_ep_two_ two;
        if (asked[i] == ours[i] || (ep->config.mixed_layers && !moek_ep_compared_of_(MOEK_EP_FIRST_FIELDS_ + i).all))
            continue;
        two = moek_ep_two_of_(MOEK_EP_FIRST_FIELDS_ + i, asked[i], ours[i]);
        moek_append_(&t, "%s%s %s (the group was opened with %s)", t.length ? ", " : "",
                     moek_ep_compared_of_(MOEK_EP_FIRST_FIELDS_ + i).name, two.a, two.b);
    }
    if (c->local_experts != ep->local_experts)
        moek_append_(&t, "%slocal_experts %d (the group has %d here)", t.length ? ", " : "", c->local_experts,
                     ep->local_experts);
    if (!t.length && chunks > MOEK_EP_CHUNKS_ && chunks != ep->chunks)
        moek_append_(&t, "max_tokens %d by chunk_tokens %d, %d chunks (the group was opened with %d; other numbers "
                     "are up to %d)", c->max_tokens, c->chunk_tokens, chunks, ep->chunks, (int)MOEK_EP_CHUNKS_);
    if (!t.length && ep->config.transport == MOEK_EP_GPU &&
        (c->backend ? c->backend == MOEK_BACKEND_CPU : !(c->exclude >> MOEK_BACKEND_CPU & 1)))
        moek_append_(&t, "rows of the CPU: the group is in GPU memory (exclude must hold 1u << MOEK_BACKEND_CPU, as "
                     "moek_ep_join left it)");
    if (!t.length && ep->config.transport == MOEK_EP_HOST && moek_ep_allows_gpu_(c))
        moek_append_(&t, "rows of a GPU: the group is in host memory (backend must be 0 or MOEK_BACKEND_CPU, "
                     "and exclude hold MOEK_BACKENDS_GPU, as moek_ep_join left it)");
    if (!t.length) moek_ep_kind_refuses_(ep, c, ep->config.kind, 1, &t);
    if (!t.length && c->experts_impl && c->experts_impl->expects_unquantized && ep->row_bytes < 2 * ep->hidden)
        moek_append_(&t, "experts %s, which expect unquantized rows: the group was opened without them in its layer",
                     c->experts_impl->name);
    return !t.length;
}

static void moek_ep_part_(moek_ep *ep)
{
    moek_prepare_finalize *p = &ep->part;
    memset(p, 0, sizeof *p);
    p->name = moek_ep_kind_name(ep->config.kind);
    p->format = moek_ep_low_latency_(ep) ? MOEK_BATCHED : MOEK_STANDARD;
    p->output_is_reduced = 1;
    p->num_dispatchers = ep->config.ranks;
    p->max_tokens_per_rank = ep->config.max_tokens;
    p->cannot_defer = moek_ep_low_latency_(ep);
    p->context = ep;
    p->supports = moek_ep_supports_;
    p->workspace = moek_ep_workspace_;
    p->prepare_send = moek_ep_prepare_send_;
    p->prepare_receive = moek_ep_prepare_receive_;
    p->finalize_send = moek_ep_finalize_send_;
    p->finalize_receive = moek_ep_finalize_receive_;
#if MOEK_HAVE_CUDA_
    if (ep->config.transport == MOEK_EP_GPU) {
        p->prepare_send = moek_ep_prepare_send_gpu_;
        p->prepare_receive = moek_ep_prepare_receive_gpu_;
        p->finalize_send = moek_ep_finalize_send_gpu_;
        p->finalize_receive = moek_ep_finalize_receive_gpu_;
    }
#endif
    p->collective = 1;
    p->max_rows = ep->config.kind == MOEK_EP_ALLTOALL ? ep->config.max_rows : 0;
    p->check = moek_ep_check_run_;
}

moek_status moek_ep_join(const moek_ep *ep, moek_config *config)
{
    if (!ep || !config || !ep->open) return MOEK_E_ARGUMENT;
    config->prepare_finalize = &ep->part;
    config->format = ep->part.format;
    config->local_experts = ep->local_experts;
    config->physical_experts = ep->physical_experts;
    config->exclude |= ep->config.transport == MOEK_EP_HOST ? MOEK_BACKENDS_GPU : 1u << MOEK_BACKEND_CPU;
    return MOEK_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Compares line n of the handshake of rank p with this rank's. */
static moek_status moek_ep_compare_(moek_ep *ep, int n, int p, const uint64_t *mine, moek_text_ *why)
{
    const int first = n * MOEK_EP_HANDSHAKE_WORDS_;
    uint64_t theirs[1 + MOEK_EP_HANDSHAKE_WORDS_];       /* mark, values of the line */
    int i;
    if (moek_ep_copy_(ep, theirs, moek_ep_word_(ep, ep->config.rank, moek_ep_handshake_at_(ep, n, p)), sizeof theirs) !=
        MOEK_OK)
        MOEK_FAIL_(why, MOEK_E_CUDA, "the window of this rank can not be read");
    ep->sharing += !n && theirs[0] == ep->mark;
    for (i = first; i < MOEK_EP_HANDSHAKE_ && i < first + MOEK_EP_HANDSHAKE_WORDS_; i++) {
        moek_ep_two_ two;
        if (theirs[1 + i - first] == mine[i]) continue;
        two = moek_ep_two_of_(i, theirs[1 + i - first], mine[i]);
        moek_ep_fail_(ep, MOEK_E_MISMATCH, MOEK_EP_OPENING, 0, p, 0);
        MOEK_FAIL_(why, MOEK_E_MISMATCH, "%s: rank %d has %s, this rank, %d, has %s", moek_ep_compared_of_(i).name, p,
                   two.a, ep->config.rank, two.b);
    }
    return MOEK_OK;
}

/* Waits for line n of every rank.  Compares each line as soon as it is there; lines that are moved are only complete
 * when all moves have finished, and are compared by the caller. */
static moek_status moek_ep_hear_(moek_ep *ep, int n, const uint64_t *mine, moek_text_ *why)
{
    const moek_ep_config *c = &ep->config;
    uint64_t there = 0, start = 0;
    moek_status status = MOEK_OK;
    unsigned polls;
    int i, missing = 0;
    for (polls = 1; missing >= 0 && status == MOEK_OK; polls++) {
        for (missing = -1, i = 0; i < c->ranks && status == MOEK_OK; i++) {
            const int p = moek_ep_turn_(ep, i);
            if (there >> p & 1) continue;
            if (moek_ep_peek_(ep, moek_ep_word_(ep, c->rank, moek_ep_handshake_at_(ep, n, p)))) {
                there |= (uint64_t)1 << p;
                if (!c->move) status = moek_ep_compare_(ep, n, p, mine, why);
            } else if (missing < 0) missing = p;
        }
        if (missing >= 0 && status == MOEK_OK)
            status = moek_ep_again_(ep, polls, &start, MOEK_EP_OPENING, 0, missing, 0);
    }
    return status;
}

/* Exchanges line n with all ranks and compares.  If two ranks differ in a line, every rank differs from at least one of
 * the two; so all ranks find a difference, and in the same line.  mine: [lines][words].  stream: for moves, which may
 * never finish. */
static moek_status moek_ep_greet_by_(moek_ep *ep, int n, const uint64_t *mine, moek_stream stream, moek_text_ *why)
{
    const moek_ep_config *c = &ep->config;
    const uint64_t *const words = mine + n * MOEK_EP_HANDSHAKE_WORDS_;
    moek_status status;
    int i;
    for (i = 0; i < c->ranks; i++) {
        const int p = moek_ep_turn_(ep, i);
        uint64_t *line = moek_ep_word_(ep, p, moek_ep_handshake_at_(ep, n, c->move ? p : c->rank));
        if (moek_ep_copy_(ep, line + 1, words, sizeof *words * MOEK_EP_HANDSHAKE_WORDS_) != MOEK_OK ||
            moek_ep_poke_(ep, line, ep->mark) != MOEK_OK)
            MOEK_FAIL_(why, MOEK_E_CUDA, "the window of rank %d can not be written", p);
    }
    (void)stream;
#if MOEK_HAVE_CUDA_
    if (c->move && moek_ep_move_handshake_(ep, n, stream) != MOEK_OK)
        MOEK_FAIL_(why, MOEK_E_CUDA, "config.move could not move a line to each rank");
#endif
    status = moek_ep_hear_(ep, n, mine, why);
#if MOEK_HAVE_CUDA_
    if (c->move && status == MOEK_OK) status = moek_ep_wait_for_handshake_(ep, stream);
    for (i = 0; c->move && i < c->ranks && status == MOEK_OK; i++)
        status = moek_ep_compare_(ep, n, moek_ep_turn_(ep, i), mine, why);
#endif
    return status;
}
static moek_status moek_ep_greet_(moek_ep *ep, moek_stream stream, moek_text_ *why)
{
    uint64_t mine[MOEK_EP_HANDSHAKE_LINES_ * MOEK_EP_HANDSHAKE_WORDS_];
    moek_status status = MOEK_OK;
    int n;
    memset(mine, 0, sizeof mine);
    moek_ep_handshake_(ep, mine);
    for (n = 0; n < MOEK_EP_HANDSHAKE_LINES_ && status == MOEK_OK; n++)
        status = moek_ep_greet_by_(ep, n, mine, stream, why);
    if (status == MOEK_OK) status = moek_ep_ended_(ep);
    if (status != MOEK_OK && !why->length) moek_ep_say_(ep, why);
    return status;
}

static moek_status moek_ep_check_windows_(moek_ep *ep, void *const *base, moek_text_ *why)
{
    const moek_ep_layout *l = &ep->layout;
    char some[1024];
    size_t at, i, n;
    int p;
    if (!base) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "base is NULL; base[p] is the window of rank p");
    for (p = 0; p < ep->config.ranks; p++)
        if (!base[p] || (uintptr_t)base[p] % 256)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "base[%d] is %s", p, base[p] ? "not aligned to 256 bytes" : "NULL");
#if MOEK_HAVE_CUDA_
    if (ep->config.transport == MOEK_EP_GPU) {
        moek_status status = moek_ep_reach_windows_(ep, base, why);
        if (status == MOEK_OK) status = moek_ep_load_kernels_(ep, why);
        if (status != MOEK_OK) return status;
        if (!moek_ep_is_pinned_(ep->config.report) || *(const volatile uint64_t *)ep->config.report)
            MOEK_FAIL_(why, MOEK_E_ARGUMENT, "report is no pinned memory or was not zeroed; on GPUs it is "
                       "MOEK_EP_REPORT bytes of host memory by cudaHostAlloc");
    }
#endif
    for (at = l->latch; at < l->rows; at += n) {      /* no rank writes here before this one greets */
        n = l->rows - at < sizeof some ? l->rows - at : sizeof some;
        if (moek_ep_copy_(ep, some, (const char *)base[ep->config.rank] + at, n) != MOEK_OK)
            MOEK_FAIL_(why, MOEK_E_CUDA, "the window of this rank can not be read");
        for (i = 0; i < n; i++) if (some[i]) MOEK_FAIL_(why, MOEK_E_ARGUMENT, "the window was not zeroed");
    }
    return MOEK_OK;
}

moek_status moek_ep_open_(moek_ep *ep, const moek_ep_config *config, void *const *base, size_t ep_size,
                          size_t config_size, int version)
{
    moek_text_ why, log = moek_text_in_(NULL, 0);
    moek_stream stream = (moek_stream)0;
    moek_status status;
    int p;
    if (!ep) return MOEK_E_ARGUMENT;
    if (version != MOEK_VERSION || ep_size != sizeof *ep || config_size != sizeof *config)
        return MOEK_E_VERSION;                        /* its `why` may lie elsewhere: write nothing */
    memset(ep, 0, sizeof *ep);
    ep->device = -1;
    ep->mark = 1;
    why = moek_text_in_(ep->why, sizeof ep->why);
    if (!config) MOEK_FAIL_(&why, MOEK_E_ARGUMENT, "config is NULL");
    if ((status = moek_ep_choose_(ep, config, &why, &log)) != MOEK_OK ||
        (status = moek_ep_check_windows_(ep, base, &why)) != MOEK_OK)
        return status;
    for (p = 0; p < config->ranks; p++) ep->base[p] = (char *)base[p];
    if (moek_ep_fill_places_(ep, config->owner) != MOEK_OK)
        MOEK_FAIL_(&why, MOEK_E_CUDA, "the window of this rank can not be written");
    ep->config.layer = NULL;
    ep->config.owner = NULL;
    ep->layer.kernel = ep->layer.tuned = NULL;
    ep->layer.prepare_finalize = NULL;
    ep->layer.experts_impl = NULL;
    moek_ep_part_(ep);
#if MOEK_HAVE_CUDA_
    if (config->move) stream = moek_ep_new_stream_();
#endif
    status = moek_ep_greet_(ep, stream, &why);
#if MOEK_HAVE_CUDA_
    if (config->move) moek_ep_finish_(status, stream);
#endif
    ep->open = status == MOEK_OK;
    return status;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

void moek_ep_abort(moek_ep *ep)
{
    if (ep && ep->open) moek_ep_fail_(ep, MOEK_E_ABORTED, MOEK_EP_OPENING, 0, ep->config.rank, 0);
}

static void moek_ep_describe_(const moek_ep *ep, moek_text_ *t)
{
    const moek_ep_config *c = &ep->config;
    moek_append_(t, "group     %d ranks, in %s memory%s, %d experts (%d here)\n", c->ranks,
                 c->transport == MOEK_EP_GPU ? "GPU" : "host", c->move ? " (rows are moved)" : "", ep->physical_experts,
                 ep->local_experts);
    if (c->transport == MOEK_EP_GPU && ep->sharing > 1)
        moek_append_(t, "          %d of them share this GPU\n", ep->sharing);
    moek_append_(t, "exchange  %s, %s, up to %d tokens a rank, %d bytes a row", moek_ep_kind_name(c->kind),
                 moek_ep_combine_name_(c->combine), c->max_tokens, ep->row_bytes + ep->scale_bytes);
    if (c->kind == MOEK_EP_ALLTOALL) moek_append_(t, ", at most %d rows", c->max_rows);
    if (moek_ep_shares_(ep)) moek_append_(t, ", %d of each rank", moek_ep_share_(ep));
    if (ep->baked) moek_append_(t, ", hidden %d baked", ep->baked);
    moek_append_(t, "\nwindow    %s%.1f MiB a rank, for %d operation%s in flight; waits end after %d ms\n",
                 c->move ? "twice " : "", (double)ep->layout.size / 1048576.0, c->handles,
                 c->handles > 1 ? "s" : "", c->timeout_ms);
}

size_t moek_ep_explain(const moek_ep_config *config, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size), why;
    char reason[MOEK_WHY];
    moek_ep ep;
    moek_status status;
    memset(&ep, 0, sizeof ep);
    why = moek_text_in_(reason, sizeof reason);
    if (!config) { moek_append_(&t, "config is NULL\n"); return t.length; }
    status = moek_ep_choose_(&ep, config, &why, &t);
    if (status == MOEK_OK) moek_ep_describe_(&ep, &t);
    else if (!t.length) moek_append_(&t, "%s\n", reason);
    return t.length;
}

size_t moek_ep_describe(const moek_ep *ep, char *text, size_t size)
{
    moek_text_ t = moek_text_in_(text, size);
    if (!ep || !ep->base[0]) { moek_append_(&t, "not open: %s\n", ep ? ep->why : "NULL"); return t.length; }
    moek_ep_describe_(ep, &t);
    if (moek_ep_ended_(ep) != MOEK_OK) {
        moek_append_(&t, "ended     ");
        moek_ep_say_(ep, &t);
        moek_append_(&t, "\n");
    }
    return t.length;
}
#endif
