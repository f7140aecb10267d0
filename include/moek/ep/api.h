/* moek/ep/api.h -- the types and functions of moek_ep.h, which says how they are used. */
#ifndef MOEK_EP_API_H
#define MOEK_EP_API_H
#include "../stages.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOEK_EP_MAX_RANKS = 64, MOEK_EP_MAX_HANDLES = 2, MOEK_EP_FEW_TOKENS = 256 };

/* X(NAME, name, number), best first. */
#define MOEK_EACH_EP_KIND(X) X(LOW_LATENCY, low_latency, 1) X(ALLTOALL, alltoall, 2) X(ALLGATHER, allgather, 3)
#define MOEK_EP_KIND_(NAME, name, number) MOEK_EP_##NAME = number,
enum { MOEK_EP_AUTO = 0, MOEK_EACH_EP_KIND(MOEK_EP_KIND_) MOEK_EP_KIND_COUNT_ };

enum { MOEK_EP_REDUCED, MOEK_EP_REDUCED_F32, MOEK_EP_EXACT };          /* combine (above) */
enum { MOEK_EP_LINEAR, MOEK_EP_ROUND_ROBIN };                          /* placement (above) */
enum { MOEK_EP_HOST = 1, MOEK_EP_GPU };                 /* transport (above) */
enum { MOEK_EP_REPORT = 128 };                         /* bytes of config.report */
enum { MOEK_EP_OPENING, MOEK_EP_COUNTS, MOEK_EP_DISPATCH, MOEK_EP_COMBINE };               /* phase of an operation */

/* For ranks that do not reach each other's windows: sends and receives of one phase, to be enqueued on `stream` as one
 * group.  A piece: `bytes` from `from` go to rank `rank`, and as many come from it to `to`.  All ranks are asked in the
 * same order, and pieces of a pair of ranks have the same order and sizes on both.  0: enqueued.
 * With move_gathers the first of allgather's dispatch are of rank MOEK_EP_EVERY, and the same on all ranks: they go to
 * all others, rank p's bytes come to `to` + p * bytes (an all-gather in place: `from` is where its own would come to).
 */
enum { MOEK_EP_EVERY = -1 };
typedef struct moek_ep_piece { int rank; const void *from; void *to; size_t bytes; } moek_ep_piece;
typedef int (*moek_ep_move)(void *context, const moek_ep_piece *pieces, int count, moek_stream stream);

/* Zero means "the default".  The same on all ranks, but for `rank` (and pointers).                                   */
typedef struct moek_ep_config {
    int rank, ranks;                  /* required: 0 <= rank < ranks <= MOEK_EP_MAX_RANKS                             */
    const moek_config *layer;         /* required: the layer, or of several that differ in nothing but max_tokens and
                                         chunk_tokens (see mixed_layers) the one with most tokens.  Read here; no
                                         pointer of it is kept                                                        */
    int kind;                         /* MOEK_EP_*; AUTO: chosen                                                      */
    int combine;                      /* MOEK_EP_REDUCED, _REDUCED_F32, _EXACT                                        */
    int placement;                    /* MOEK_EP_LINEAR, _ROUND_ROBIN                                                 */
    const int32_t *owner;             /* [physical_experts]: rank of each, or NULL.  Host memory, not kept            */
    int max_tokens;                   /* the most tokens a rank sends at once; 0: tokens of a chunk of the layer      */
    int max_rows;                     /* alltoall: the most rows a rank receives; 0: ranks * max_tokens: enough.  With
                                         `move`: rounded up, and a share of 1 / ranks for the rows of each rank       */
    int handles;                      /* operations in flight, 1 or 2; 0: 1                                           */
    int timeout_ms;                   /* of each wait; 0: 30000.  A rank may compile, load or page in meanwhile       */
    int transport;                    /* MOEK_EP_HOST, _GPU; 0: _GPU where the layer may run on one, else _HOST       */
    void *report;                     /* _GPU: MOEK_EP_REPORT bytes of pinned host memory (cudaHostAlloc), zeroed, of
                                         this rank alone: what ended the group or did not fit, for moek_ep_poll       */
    moek_ep_move move;                /* _GPU: NULL, or what moves rows.  base[rank] is this rank's window then, and
                                         base[] of all others a second piece of its memory, as large: what goes out   */
    void *move_context;
    int move_gathers;                 /* 1: `move` takes pieces for every rank, too.  The same on all ranks           */
    int mixed_layers;                 /* 1: plans on this group may differ from `layer`, and from each other, in what
                                         the exchange does not rest on: inter, act, alpha, beta, limit, up_layout, how
                                         logits are routed, scale, shared_weight, batch_invariant, up_scales and
                                         inter_offset.  Ranks compare these for `layer` alone then: that any other layer
                                         has the same on all ranks is the caller's to see to                          */
    float x_scale;                    /* formats with a static scale of x: weights.x_scale[0], for ranks to compare when
                                         they open (MOEK_E_MISMATCH).  In host memory, runs then compare the plan's,
                                         too (MOEK_E_ARGUMENT).  0: nobody compares, as for a group whose layers have
                                         different scales                                                             */
} moek_ep_config;

/* Where things are in a window: bytes from its base, the same for all ranks (moek/ep/layout.h has the drawing).      */
typedef struct moek_ep_field { size_t at, stride; } moek_ep_field;
typedef struct moek_ep_layout {
    size_t size;                      /* of a window: a multiple of 4096                                              */
    size_t handshake, abort_word, latch, flags, local, counts, place;
    size_t rows, rows_size;           /* received rows: of handle 0; of one handle                                    */
    size_t partial, partial_size;     /* what comes back: of handle 0; of one handle                                  */
    moek_ep_field x, scale, token, ids, weights;      /* of a received row, from the start of its handle's rows       */
    int slots;                        /* rows of `partial` a token                                                    */
    size_t done;
    size_t counts_stride;             /* of flags and counts of a rank and handle                                     */
    size_t marks, marks_size;                         /* of handle 0; of one handle                                   */
    moek_ep_field order;              /* of a received row                                                            */
} moek_ep_layout;

/* A rank's end of a group.  Yours: it must stay where it is while plans use it.  Read it; only the functions below and
 * runs write it.                                                                                                     */
typedef struct moek_ep {
    moek_ep_config config;            /* with the defaults filled in; layer and owner NULL                            */
    moek_prepare_finalize part;       /* what moek_ep_join puts in a config                                           */
    moek_ep_layout layout;
    int hidden, slots, physical_experts, local_experts, quant, dtype;      /* of the layer; local: at least 1         */
    int ue8m0;                        /* of the layer: scales that are floats travel as bytes                         */
    int row_bytes, scale_bytes;       /* the most that a row of x, and its scales, take on the wire                   */
    char *base[MOEK_EP_MAX_RANKS];
    int open;
    int stage[MOEK_EP_MAX_HANDLES];   /* of the operation on a handle: 0, or the halves that have been done           */
    char why[MOEK_WHY];               /* the reason, when moek_ep_open said no; else empty                            */
    int device, multiprocessors;      /* GPU: the one that was current at moek_ep_open; device -1: the CPU            */
    int sharing;                      /* ranks on the same device as this one, itself included                        */
    uint64_t mark;                    /* the device, as ranks know it of each other                                   */
    uint32_t owners;                  /* a number for the ranks of all experts                                        */
    int baked;                        /* low_latency on a GPU: hidden, if there are kernels of that size; else 0      */
    moek_config layer;                /* as ranks compared it, defaults filled in: plans on the group have the same   */
    int chunks;                       /* of a run of that layer                                                       */
} moek_ep;

/* What ended a group; or (on GPUs) which operation did not fit. */
typedef struct moek_ep_error {
    moek_status status;               /* MOEK_OK: nothing                                                             */
    moek_status cause;                /* ABORTED: what the rank that aborted had; else the same as status             */
    int reporter;                     /* the rank that failed first, as far as this one knows                         */
    int peer;                         /* the rank that it waited for, or its own number                               */
    int phase, handle;                /* MOEK_EP_OPENING, ...                                                         */
    unsigned operation;               /* number of the operation on that handle and phase, from 1 (24 bits)           */
    int rows;                         /* E_CAPACITY: those that `peer` would have received; with `move` ranks times the
                                         most that a rank had for `peer`: the max_rows that it takes; else 0          */
} moek_ep_error;

/* Bytes of this rank's window; 0 for a config that can not be opened (moek_ep_explain says why).  Align it to 256
 * bytes, and zero it before any other rank learns its address.                                                       */
#define moek_ep_window_size(config) moek_ep_window_size_((config), sizeof(moek_ep_config), MOEK_VERSION)
size_t      moek_ep_window_size_(const moek_ep_config *config, size_t config_size, int version);

/* Opens this rank's end: base[p] is the window of rank p, as this rank addresses it (copied).  Waits for all ranks, at
 * most timeout_ms, and compares their configs.  OK, E_ARGUMENT, E_BACKEND, E_TIMEOUT, E_ABORTED, E_MISMATCH, with a
 * sentence in ep->why; E_VERSION.  There is no close: when all ranks are done, let go of the windows.                */
#define moek_ep_open(ep, config, base) \
    moek_ep_open_((ep), (config), (base), sizeof(moek_ep), sizeof(moek_ep_config), MOEK_VERSION)
moek_status moek_ep_open_(moek_ep *ep, const moek_ep_config *config, void *const *base, size_t ep_size,
                          size_t config_size, int version);

/* MOEK_EP_GPU, with ranks in several processes of a host (cudaIpc): fills base[0 .. ranks - 1] for moek_ep_open, on
 * every rank.  window: this rank's own, anywhere in what cudaMalloc gave.  gather(context, mine, all, bytes) brings
 * `bytes` of each rank to all ranks, rank p's bytes to all + p * bytes, and returns 0 if that went well: by
 * MPI_Allgather, ncclAllGather or files.  It is called twice; all ranks get OK or none.  OK, E_ARGUMENT, E_BACKEND,
 * E_CUDA, with a sentence in why.  Close when all ranks are done, before anybody frees a window.                     */
typedef int (*moek_ep_gather)(void *context, const void *mine, void *all, size_t bytes);
moek_status moek_ep_ipc_open(int rank, int ranks, void *window, moek_ep_gather gather, void *context, void **base,
                             char *why, size_t why_size);
void        moek_ep_ipc_close(int ranks, void *window, void **base);

/* The layer of `config` runs on the group: sets prepare_finalize, format, local_experts and physical_experts, and
 * excludes GPUs for a group in host memory.  What does not fit the group is refused by moek_plan_init, with a sentence.
 * OK, E_ARGUMENT (a NULL, or a group that is not open).                                                              */
moek_status moek_ep_join(const moek_ep *ep, moek_config *config);

/* Experts of a rank, at least 1; and the physical number of its expert `local`, or -1 where it has none.  Of an open
 * group.                                                                                                             */
int         moek_ep_local_experts(const moek_ep *ep, int rank);
int         moek_ep_expert(const moek_ep *ep, int rank, int local);

/* What ended the group, if anything did: MOEK_OK or the status that runs return; on GPUs MOEK_E_CAPACITY, once, where
 * rows did not fit (above).  Any thread, no waiting.                                                                 */
moek_status moek_ep_poll(const moek_ep *ep, moek_ep_error *error);
/* Ends an open group for all ranks; runs that wait return MOEK_E_ABORTED.  Any thread.                               */
void        moek_ep_abort(moek_ep *ep);

/* Every kind: taken, or why not; window and transport.  Describe: an open group.  Both return the length needed.     */
size_t      moek_ep_explain(const moek_ep_config *config, char *text, size_t size);
size_t      moek_ep_describe(const moek_ep *ep, char *text, size_t size);
const char *moek_ep_kind_name(int kind);                                         /* "alltoall"; NULL if there is none */

#ifdef __cplusplus
}
#endif
#endif
