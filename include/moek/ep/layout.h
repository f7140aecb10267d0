/* moek/ep/layout.h -- the layout of a window: what lies where, which side writes it, and where experts live.
 *
 * Every rank has one window; all windows have the same layout.  base[p] is the window of rank p.  S handles, R ranks,
 * K slots (topk + shared_slots), T tokens of a rank, P physical experts, H hidden:
 *
 *     contents                                                                                   writer
 *     handshake    [lines][64]   one line each: the configuration of rank p when it opened           rank p
 *     abort_word             the error of another rank that ended the group                      any rank, once
 *     latch                  the first error here                                                owner
 *     flags    [S][R][3 phases]  two lines each.  ready: running total of what rank p has sent   rank p
 *                                here.  credit: operations whose rows from here rank p has
 *                                finished reading
 *     local    [3 phases][S][2R + 1]    totals sent, totals seen, operations sent                owner
 *     done     [3 phases][S] one line each.  GPU: blocks of a sending kernel that have finished  owner
 *     counts   [S][R], after the flags of each.  alltoall: [R], rows that rank p sends to each   rank p
 *                            rank; low_latency on GPUs: [P], rows it has for each expert here
 *     marks    [S]           GPU: the last operation that wrote a row: of the received rows       rank of the token
 *                            [R][T] (low_latency), of the rows of partial (other kinds)           rank of the expert
 *     place    [P]           rank << 16 | local expert, of each physical expert                  owner, when it opens
 *     rows     [S]           received rows, see below                                            rank of the token
 *     partial  [S][T][C][H]  results that come back for a token.  R <= K: slot c has the sum of  rank of the expert
 *                            rank c.  Otherwise a rank's sum lies at the first slot of the
 *                            token that has an expert of this rank.  EXACT: slot c has the row
 *                            of the token's slot c, or the pattern for a dropped row
 *                            (moek_ep_lost_)
 *
 * A line is 128 bytes and has one writer.  A received row has fields; each field has an offset and a stride:
 *     low_latency  [R][T] messages  { token, ids [K], weights [K], order [K], x, scale }, one after the other, so that
 *                  one copy moves a row.  On GPUs message t is token t's; x is not written if the token has no
 *                  expert here.  order: the index of a slot's row among the rows that its expert gets from this rank.
 *                  partial is 0 where nothing has arrived or where the result was already read
 *     alltoall     arrays x [max_rows], scale [..], ...: rows of rank 0, then of rank 1, and so on, without gaps.  Rows
 *                  are used in place, without a copy after arrival
 *     allgather    arrays x [R][T], scale [R][T], ...: also used in place
 * token is the row's index at its sender.  ids are local expert numbers of the receiver, or -1.  x and scale are opaque
 * bytes: the codes of a row and their scales, in the types that the format has (moek/format.h).  Scales of one byte
 * fill words of four bytes, with 0 behind the last.  With ue8m0 a float travels as one byte, its exponent.  alltoall
 * and allgather: where the scales of a row then look different from what the experts read, the receiver writes what
 * they read outside the window.
 *
 * ON GPUs kernels get base[R] by value, this layout, and no other state of the group.  Epochs and totals (`local`) lie
 * in the window, thus in device memory, so that a captured graph may be replayed any number of times.  Flags, rows and
 * partials are separate for each handle: two operations need no common order, and an odd number of operations needs no
 * special case.  Flags are only ever added to (wire.h), so a transport with remote adds but no remote stores (GIN's
 * SignalAdd) can carry them.
 *
 * WHERE ROWS ARE MOVED (config.move) a rank has two such windows: its own for incoming data, and one for outgoing data,
 * which is base[p] of every other rank p.  Both have the parts of rank p (its flags and counts, its T rows) at the same
 * offsets.  A move sends the parts of rank p of the outgoing window to rank p, and receives what rank p sent into the
 * parts of rank p of the own window.  (allgather with move_gathers: x and scale are the same for every rank, and are
 * sent from the own window.)
 * partial is [S][R][T][H] (EXACT: [S][R][T][K][H]) in both windows: the rows of rank p.  alltoall then has arrays like
 * allgather, with max_rows / R in the place of T: the rows for one rank lie one after the other, and the result for a
 * row comes back at the index where the row went out.                                                                */
#ifndef MOEK_EP_LAYOUT_H
#define MOEK_EP_LAYOUT_H
#include <string.h>
#include "../want.h"
#include "../plan/workspace.h"
#include "handshake.h"

#if MOEK_HAVE_CUDART_
#include <cuda_runtime_api.h>
#endif

enum { MOEK_EP_PAGE_ = 4096, MOEK_EP_PHASES_ = 3 };

/* ---- how the host copies from and to a window -------------------------------------------------------------------- */

/* Complete on return.  GPU memory is copied on a stream that waits for no kernels but those on the NULL stream: other
 * streams may hold kernels that wait for a peer. */
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
#ifdef MOEK_EMU
    emu_copy_bytes(to, from, bytes);                  /* memory of the device is closed to the host there, too */
#else
    memcpy(to, from, bytes);
#endif
    (void)ep;
    return MOEK_OK;
}

/* ---- the layout -------------------------------------------------------------------------------------------------- */

static size_t moek_ep_up_(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* The scales of a row, in memory and on the wire.  FLOATS: floats.  EXPONENTS: floats, on the wire a byte each.  BYTES:
 * bytes.  Bytes on the wire are padded to words of four. */
enum { MOEK_EP_FLOATS_, MOEK_EP_EXPONENTS_, MOEK_EP_BYTES_ };
typedef struct moek_ep_scales_ {
    int how;                          /* MOEK_EP_FLOATS_, ...                                                         */
    size_t count;                     /* floats of a row; BYTES: bytes                                                */
    size_t row, wire;                 /* bytes of a row: in memory; on the wire                                       */
} moek_ep_scales_;
static moek_ep_scales_ moek_ep_scales_of_(const moek_format *f, int hidden, int ue8m0)
{
    moek_ep_scales_ s;
    s.row = moek_scales_bytes_(f, 1, (size_t)hidden);
    s.how = f->x_scale.type != MOEK_SCALE_TYPE_F32 ? MOEK_EP_BYTES_
          : ue8m0 ? MOEK_EP_EXPONENTS_ : MOEK_EP_FLOATS_;
    s.count = s.how == MOEK_EP_BYTES_ ? s.row : s.row / 4;
    s.wire = s.how == MOEK_EP_FLOATS_ ? s.row : moek_ep_up_(s.count, 4);
    return s;
}

/* Two elements of a "lost" row: low_latency with EXACT sends it back for a slot whose expert had no room.  The elements
 * are signaling NaNs.  No arithmetic produces those, so a real o never holds one.  The sum skips a lost slot, as one
 * rank does.  Rows of zeros would not do: they give NaN when the weight is not finite. */
MOEK_FN uint32_t moek_ep_lost_(int dtype) { return dtype == MOEK_DTYPE_FP16 ? 0x7d917d91u : 0x7f917f91u; }

/* The flags of a rank and handle; its counts follow directly, so that one move takes both. */
enum { MOEK_EP_FLAGS_ = 2 * MOEK_EP_PHASES_ * MOEK_EP_LINE_ };

static size_t moek_ep_place_(size_t *used, size_t bytes, size_t align)
{
    const size_t at = moek_ep_up_(*used, align);
    *used = at + bytes;
    return at;
}

/* alltoall where rows are moved: only the device knows how many rows go to each rank, but the host must size each move.
 * So max_rows is divided into equal shares, one a rank. */
static int moek_ep_shares_(const moek_ep *ep) { return ep->config.move && ep->config.kind == MOEK_EP_ALLTOALL; }

/* The most rows that a rank receives from all ranks (rows_) and, where rows are not packed, from one rank (share_). */
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

/* Needs ep->config with its defaults filled in, and the layer's sizes. */
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
    /* For the most ranks: ranks that were told different numbers of ranks find each other's abort_word, too. */
    l->handshake = moek_ep_place_(&used, (size_t)MOEK_EP_HANDSHAKE_LINES_ * MOEK_EP_MAX_RANKS * line, line);
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

/* rank << 16 | local expert, of physical expert e, where config.owner is NULL.  (With owner the caller counts the local
 * numbers.) */
static int32_t moek_ep_home_(const moek_ep_config *c, int physical, int e)
{
    const int base = physical / c->ranks, more = physical % c->ranks;      /* ranks below `more` have base + 1 */
    const int big = more * (base + 1);
    if (c->placement == MOEK_EP_ROUND_ROBIN) return (int32_t)(e % c->ranks << 16 | e / c->ranks);
    if (e < big) return (int32_t)(e / (base + 1) << 16 | e % (base + 1));
    return (int32_t)((more + (e - big) / base) << 16 | (e - big) % base);
}

static size_t moek_ep_places_at_(const moek_ep *ep, int e) { return ep->layout.place + 4 * (size_t)e; }

/* The whole table; only for windows in host memory. */
static int32_t *moek_ep_places_(const moek_ep *ep) { return (int32_t *)(ep->base[ep->config.rank] + ep->layout.place); }

/* For windows in any memory: the table is copied in pieces. */
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

/* The rank of an expert, and the number of experts of a rank, from the config alone: there is no window yet. */
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

/* Offsets in bytes from the base of a window: of a field of a received row; of a row of partial; of the flag line of
 * (kind: 0 ready, 1 credit; phase; handle; from); of a rank's own totals of a phase and handle.  Phases start at
 * MOEK_EP_COUNTS: opening has no flags. */
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

/* Line n of the handshake of rank `from`. */
static size_t moek_ep_handshake_at_(const moek_ep *ep, int n, int from)
{
    return ep->layout.handshake + ((size_t)n * MOEK_EP_MAX_RANKS + (size_t)from) * MOEK_EP_LINE_;
}

/* Offset of the counts of rank `from`; of the mark of a received row (low_latency) or of a row of partial (others). */
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
