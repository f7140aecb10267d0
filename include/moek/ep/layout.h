/* moek/ep/layout.h -- a window: what lies where, who writes it, and where experts live.
 *
 * Every rank has one window of the same layout; base[p] is rank p's.  S handles, R ranks, K slots, T tokens of a rank:
 *
 *     hello    [lines][R]    a line each: the configuration of rank p, when it opened            rank p writes
 *     abort_word             why another rank gave up                                            any rank, once
 *     latch                  what ended the group here                                           owner
 *     flags    [S][R][3 phases]  two lines each: running total of what rank p has sent here      rank p writes
 *                                                (ready), operations whose rows it has done with
 *                                                (credit)
 *     local    [3 phases][S][2R + 1]    totals sent, totals seen, operations sent                owner
 *     done     [3 phases][S] a line each: GPU: blocks of a kernel that sends that are through   owner
 *     counts   [S][R], behind the flags of each: alltoall: [R], how many rows rank p sends to    rank p writes
 *                            each rank; low_latency on GPUs: [P], how many it has for each expert here
 *     marks    [S]           GPU: of each row [R][T] of low_latency, of partial of the others:  rank of the token
 *                            the operation that wrote it last                                    rank of the expert
 *     place    [P]           rank << 16 | local expert, of each physical expert                  owner, when it opens
 *     rows     [S]           received rows, below                                                rank of the token
 *     partial  [S][T][C][H]  what comes back for a token: slot c is rank c's sum if R <= K, else rank of the expert
 *                            the sum of the rank of the token's slot c, at its first such slot;
 *                            EXACT: the row of its slot c (or that there is none: moek_ep_lost_)
 *
 * A line is 128 bytes and has one writer.  A received row has fields, each an offset and a stride:
 *     low_latency  [R][T] messages  { token, ids [K], weights [K], order [K], x, scale }, one after the other: one copy
 *                  a row.  On GPUs message t is token t's, without x where it has no expert here, and order tells which
 *                  of its expert's rows from that rank a slot is; partial is 0 where nothing has come, or was read
 *     alltoall     arrays x [max_rows], scale [..], ...: rows of rank 0, of rank 1, ..., no gaps, no copy on arrival
 *     allgather    arrays x [R][T], scale [R][T], ...: no copy on arrival
 * token is the row's number at its sender; ids are experts of the receiver, or -1.  x and scale are opaque bytes (with
 * ue8m0 a byte a scale, four in a word; rows of the latter two kinds are then given floats beside the window).
 *
 * ON GPUs kernels get base[R] by value, this layout, and nothing else of the group.  Epochs and totals (`local`) lie in
 * the window, so in device memory: a captured graph may be replayed any number of times.  A handle's flags, rows and
 * partials are its own, so two operations need no common order and an odd number of them is no special case.  Flags are
 * only ever added to (wire.h), so a transport that can not store but can add (GIN's SignalAdd) will do.
 *
 * WHERE ROWS ARE MOVED (config.move) a rank has two such windows: its own, and one for what goes out, which is base[p]
 * of all others.  In that one everything of rank p is what goes to rank p: its flags and counts, its T rows.  So a move
 * is an exchange of all p's parts, from the one window to the same place in the other, where what came from p lies.
 * (allgather with move_gathers: x and scale are the same for every rank, and go from the rank's own window.)
 * partial is [S][R][T][H] (EXACT: [S][R][T][K][H]) in both: the rows of rank p.  alltoall then has arrays as allgather
 * has, and max_rows / R in the place of T: the rows that go to a rank lie one after the other, and what comes back for
 * one lies where it went out.                                                                                        */
#ifndef MOEK_EP_LAYOUT_H
#define MOEK_EP_LAYOUT_H

#if MOEK_HAVE_CUDART_
#include <cuda_runtime_api.h>
#endif

enum { MOEK_EP_PAGE_ = 4096, MOEK_EP_PHASES_ = 3 };

/* ---- the host's hands on a window -------------------------------------------------------------------------------- */

/* On a GPU by a stream that waits for nobody's kernels but those on the NULL stream; done on return. */
static moek_status moek_ep_copy_(const moek_ep *ep, void *to, const void *from, size_t bytes)
{
#if MOEK_HAVE_CUDART_
    if (ep->config.transport == MOEK_EP_GPU) {
        if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread) == cudaSuccess &&
            cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess)
            return MOEK_OK;
        (void)cudaGetLastError();
        return MOEK_E_CUDA;
    }
#endif
    (void)ep;
    memcpy(to, from, bytes);
    return MOEK_OK;
}

/* ---- the layout -------------------------------------------------------------------------------------------------- */

static size_t moek_ep_up_(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Of a row's scales on the wire: floats, or with ue8m0 a byte a group, four in a word. */
static size_t moek_ep_scale_bytes_(size_t groups, int ue8m0) { return ue8m0 ? moek_ep_up_(groups, 4) : 4 * groups; }

/* EXACT by low_latency: what comes back in the place of a row for which its expert had no room, two elements of it: NaN
 * that signal.  No arithmetic gives those, so o never holds one, and who adds up passes over the slot, as on one rank:
 * zeros would give NaN with a weight that is not finite. */
MOEK_FN uint32_t moek_ep_lost_(int dtype) { return dtype == MOEK_DTYPE_FP16 ? 0x7d917d91u : 0x7f917f91u; }

/* Flags and counts of a rank and handle, side by side: one move takes all. */
enum { MOEK_EP_FLAGS_ = 2 * MOEK_EP_PHASES_ * MOEK_EP_LINE_ };

static size_t moek_ep_place_(size_t *used, size_t bytes, size_t align)
{
    const size_t at = moek_ep_up_(*used, align);
    *used = at + bytes;
    return at;
}

/* alltoall where rows are moved: how many go to whom is for devices to know, so each rank has as many places. */
static int moek_ep_shares_(const moek_ep *ep) { return ep->config.move && ep->config.kind == MOEK_EP_ALLTOALL; }

/* The most rows that a rank receives; of one rank, where these do not lie packed. */
static size_t moek_ep_rows_(const moek_ep *ep)
{
    return ep->config.kind == MOEK_EP_ALLTOALL ? (size_t)ep->config.max_rows
                                               : (size_t)ep->config.ranks * (size_t)ep->config.max_tokens;
}
static int moek_ep_share_(const moek_ep *ep)
{
    return moek_ep_shares_(ep) ? ep->config.max_rows / ep->config.ranks : ep->config.max_tokens;
}

static void moek_ep_messages_(moek_ep_layout *l, const moek_ep *ep)
{
    const size_t k = (size_t)ep->slots;
    size_t used = 0, stride;
    l->token.at = moek_ep_place_(&used, 4, 16);
    l->ids.at = moek_ep_place_(&used, 4 * k, 16);
    l->weights.at = moek_ep_place_(&used, 4 * k, 16);
    l->order.at = moek_ep_place_(&used, ep->config.transport == MOEK_EP_GPU ? 4 * k : 0, 16);
    l->x.at = moek_ep_place_(&used, (size_t)ep->row_bytes, 16);
    l->scale.at = moek_ep_place_(&used, (size_t)ep->scale_bytes, 16);
    stride = moek_ep_up_(used, MOEK_EP_LINE_);
    l->token.stride = l->ids.stride = l->weights.stride = l->order.stride = l->x.stride = l->scale.stride = stride;
    l->rows_size = moek_ep_rows_(ep) * stride;
}

static void moek_ep_arrays_(moek_ep_layout *l, const moek_ep *ep)
{
    const size_t rows = moek_ep_rows_(ep), k = (size_t)ep->slots;
    size_t used = 0;
    l->x.stride = (size_t)ep->row_bytes;
    l->scale.stride = (size_t)ep->scale_bytes;
    l->token.stride = 4;
    l->ids.stride = l->weights.stride = 4 * k;
    l->x.at = moek_ep_place_(&used, rows * l->x.stride, 256);
    l->scale.at = moek_ep_place_(&used, rows * l->scale.stride, 256);
    l->token.at = moek_ep_place_(&used, rows * l->token.stride, 256);
    l->ids.at = moek_ep_place_(&used, rows * l->ids.stride, 256);
    l->weights.at = moek_ep_place_(&used, rows * l->weights.stride, 256);
    l->rows_size = used;
}

/* Needs ep->config with its defaults, and the layer's sizes. */
static void moek_ep_lay_out_(moek_ep *ep)
{
    const moek_ep_config *c = &ep->config;
    const size_t ranks = (size_t)c->ranks, handles = (size_t)c->handles, line = MOEK_EP_LINE_;
    const size_t element = c->combine == MOEK_EP_REDUCED_F32 ? 4 : 2, apart = c->move ? ranks : 1;
    moek_ep_layout *l = &ep->layout;
    const int few = c->kind == MOEK_EP_LOW_LATENCY, marks = c->transport == MOEK_EP_GPU && !c->move;
    size_t used = 0;
    memset(l, 0, sizeof *l);
    l->slots = c->combine == MOEK_EP_EXACT ? ep->slots : c->move ? 1 : ep->slots < c->ranks ? ep->slots : c->ranks;
    l->hello = moek_ep_place_(&used, MOEK_EP_HELLO_LINES_ * ranks * line, line);
    l->abort_word = moek_ep_place_(&used, line, line);
    l->latch = moek_ep_place_(&used, line, line);
    l->counts_stride = MOEK_EP_FLAGS_ + moek_ep_up_(4 * (few ? (size_t)ep->physical_experts : ranks), line);
    l->flags = moek_ep_place_(&used, handles * ranks * l->counts_stride, line);
    l->counts = l->flags + MOEK_EP_FLAGS_;
    l->local = moek_ep_place_(&used, 8 * MOEK_EP_PHASES_ * handles * (2 * ranks + 1), line);
    l->done = moek_ep_place_(&used, MOEK_EP_PHASES_ * handles * line, line);
    l->marks_size = marks ? 8 * (size_t)c->max_tokens * (few ? ranks : (size_t)l->slots) : 0;
    l->marks = moek_ep_place_(&used, handles * l->marks_size, line);
    l->place = moek_ep_place_(&used, 4 * (size_t)ep->physical_experts, line);
    if (few) moek_ep_messages_(l, ep);
    else moek_ep_arrays_(l, ep);
    l->rows_size = moek_ep_up_(l->rows_size, MOEK_EP_PAGE_);
    l->rows = moek_ep_place_(&used, handles * l->rows_size, MOEK_EP_PAGE_);
    l->partial_size = moek_ep_up_(apart * (size_t)moek_ep_share_(ep) * (size_t)l->slots * (size_t)ep->hidden * element,
                                  MOEK_EP_PAGE_);
    l->partial = moek_ep_place_(&used, handles * l->partial_size, MOEK_EP_PAGE_);
    l->size = moek_ep_up_(used, MOEK_EP_PAGE_);
}

/* ---- where experts live ------------------------------------------------------------------------------------------ */

/* rank << 16 | local expert, of physical expert e.  (owner: its number there is counted by the caller.) */
static int32_t moek_ep_home_(const moek_ep_config *c, int physical, int e)
{
    const int base = physical / c->ranks, more = physical % c->ranks;      /* ranks below `more` have base + 1 */
    const int big = more * (base + 1);
    if (c->placement == MOEK_EP_ROUND_ROBIN) return (int32_t)(e % c->ranks << 16 | e / c->ranks);
    if (e < big) return (int32_t)(e / (base + 1) << 16 | e % (base + 1));
    return (int32_t)((more + (e - big) / base) << 16 | (e - big) % base);
}

static size_t moek_ep_places_at_(const moek_ep *ep, int e) { return ep->layout.place + 4 * (size_t)e; }

/* In host memory: all of them. */
static int32_t *moek_ep_places_(const moek_ep *ep) { return (int32_t *)(ep->base[ep->config.rank] + ep->layout.place); }

/* Wherever the window is: a few at a time. */
enum { MOEK_EP_PLACES_ = 512 };
static int moek_ep_few_(const moek_ep *ep, int first)
{
    return ep->physical_experts - first < MOEK_EP_PLACES_ ? ep->physical_experts - first : (int)MOEK_EP_PLACES_;
}
static int moek_ep_some_places_(const moek_ep *ep, int first, int32_t *place)
{
    const int n = moek_ep_few_(ep, first);
    if (n > 0) moek_ep_copy_(ep, place, ep->base[ep->config.rank] + moek_ep_places_at_(ep, first), 4 * (size_t)n);
    return n;
}

static moek_status moek_ep_fill_places_(const moek_ep *ep, const int32_t *owner)
{
    int32_t place[MOEK_EP_PLACES_];
    int count[MOEK_EP_MAX_RANKS], first, n, e;
    moek_status status = MOEK_OK;
    memset(count, 0, sizeof count);
    for (first = 0; first < ep->physical_experts && status == MOEK_OK; first += n) {
        n = moek_ep_few_(ep, first);
        for (e = 0; e < n; e++)
            place[e] = owner ? owner[first + e] << 16 | count[owner[first + e]]++
                     : moek_ep_home_(&ep->config, ep->physical_experts, first + e);
        status = moek_ep_copy_(ep, ep->base[ep->config.rank] + moek_ep_places_at_(ep, first), place, 4 * (size_t)n);
    }
    return status;
}

/* The rank of an expert, and experts of a rank, without a window. */
static int moek_ep_owner_(const moek_ep_config *c, int physical, int e)
{
    return c->owner ? (int)c->owner[e] : (int)(moek_ep_home_(c, physical, e) >> 16);
}
static int moek_ep_count_(const moek_ep_config *c, int physical, int rank)
{
    int e, n = 0;
    for (e = 0; e < physical; e++) n += moek_ep_owner_(c, physical, e) == rank;
    return n;
}

int moek_ep_local_experts(const moek_ep *ep, int rank)
{
    int32_t place[MOEK_EP_PLACES_];
    int first, i, some, n = 0;
    if (!ep || !ep->open || rank < 0 || rank >= ep->config.ranks) return 0;
    for (first = 0; (some = moek_ep_some_places_(ep, first, place)) > 0; first += some)
        for (i = 0; i < some; i++) n += place[i] >> 16 == rank;
    return n ? n : 1;
}

int moek_ep_expert(const moek_ep *ep, int rank, int local)
{
    int32_t place[MOEK_EP_PLACES_];
    int first, i, some;
    if (!ep || !ep->open || rank < 0 || rank >= ep->config.ranks || local < 0 || local > 0xffff) return -1;
    for (first = 0; (some = moek_ep_some_places_(ep, first, place)) > 0; first += some)
        for (i = 0; i < some; i++) if (place[i] == (int32_t)(rank << 16 | local)) return first + i;
    return -1;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Bytes from the base of a window: a field of a received row; a row of partial; the line of (kind 0 ready or 1 credit,
 * phase, handle, from), phases from MOEK_EP_COUNTS on; a rank's own totals of a phase and handle. */
MOEK_FN size_t moek_ep_field_at_(const moek_ep_layout *l, int handle, moek_ep_field field, size_t row)
{
    return l->rows + (size_t)handle * l->rows_size + field.at + row * field.stride;
}
MOEK_FN size_t moek_ep_partial_at_(const moek_ep_layout *l, int handle, size_t row, size_t row_bytes)
{
    return l->partial + (size_t)handle * l->partial_size + row * row_bytes;
}
MOEK_FN size_t moek_ep_flag_at_(const moek_ep_layout *l, int ranks, int kind, int phase, int handle, int from)
{
    return l->flags + ((size_t)handle * (size_t)ranks + (size_t)from) * l->counts_stride +
           (size_t)(2 * (phase - MOEK_EP_COUNTS) + kind) * MOEK_EP_LINE_;
}
MOEK_FN size_t moek_ep_local_at_(const moek_ep_layout *l, int handles, int ranks, int phase, int handle)
{
    const size_t n = (size_t)(phase - MOEK_EP_COUNTS) * (size_t)handles + (size_t)handle;
    return l->local + 8 * n * (2 * (size_t)ranks + 1);
}

/* Line n of what rank `from` said when it opened. */
static size_t moek_ep_hello_at_(const moek_ep *ep, int n, int from)
{
    return ep->layout.hello + ((size_t)n * (size_t)ep->config.ranks + (size_t)from) * MOEK_EP_LINE_;
}

/* counts of rank `from`; the mark of a row of dispatch (low_latency) or of partial (the others). */
MOEK_FN size_t moek_ep_counts_at_(const moek_ep_layout *l, int ranks, int handle, int from)
{
    return l->counts + ((size_t)handle * (size_t)ranks + (size_t)from) * l->counts_stride;
}
MOEK_FN size_t moek_ep_mark_at_(const moek_ep_layout *l, int handle, size_t row)
{
    return l->marks + (size_t)handle * l->marks_size + 8 * row;
}

static char *moek_ep_field_(const moek_ep *ep, int rank, int handle, moek_ep_field field, size_t row)
{
    return ep->base[rank] + moek_ep_field_at_(&ep->layout, handle, field, row);
}
static char *moek_ep_partial_(const moek_ep *ep, int rank, int handle, size_t row, size_t row_bytes)
{
    return ep->base[rank] + moek_ep_partial_at_(&ep->layout, handle, row, row_bytes);
}
static uint32_t *moek_ep_counts_(const moek_ep *ep, int rank, int handle, int from)
{
    return (uint32_t *)(ep->base[rank] + moek_ep_counts_at_(&ep->layout, ep->config.ranks, handle, from));
}
#endif
