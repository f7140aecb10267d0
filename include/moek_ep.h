/* moek_ep.h -- expert parallelism: the experts of a layer on several ranks, and still one call a layer.
 *
 * Do this, in the ONE file that holds the implementation (instead of moek.h; it has all of moek.h):
 *
 *     #define MOEK_IMPLEMENTATION
 *     #include "moek_ep.h"
 *
 * and on every rank, with the same config but for `rank`:
 *
 *     moek_ep_config group = {0};
 *     group.rank = r;  group.ranks = 4;  group.layer = &config;         1. this rank; the layer, as for one rank
 *     window = memory of moek_ep_window_size(&group) bytes, ZEROED      2. bring a window; tell the others where it is
 *     moek_ep_open(&ep, &group, base);                                  3. base[p]: the window of rank p.  Collective
 *     moek_ep_join(&ep, &config);                                       4. from here as on one rank:
 *     moek_plan_init(&plan, &config);  moek_plan_bind(&plan, &weights);    weights: of this rank's experts only
 *     moek_run(&plan, &args, stream);                                      args: this rank's tokens.  Collective
 *
 * moek_run gives each rank the result of its own tokens, over all experts, wherever they live.
 *
 * WHERE RANKS ARE (transport):
 *     MOEK_EP_HOST   on the CPU rows of one host: threads of a process, or processes that share the windows (mmap; a
 *                    window holds no pointers, and base[] is each rank's own)
 *     MOEK_EP_GPU    on GPUs that reach each other's memory (NVLink, PCIe peer access), or several on one of them.  A
 *                    window is memory of its rank's GPU, by cudaMalloc; threads of a process hand each other the
 *                    pointers, and moek_ep_open turns peer access on; processes call moek_ep_ipc_open.  A rank opens
 *                    and runs with its GPU as the current device.  hidden a multiple of 16; of 32 where x has 4 bits
 *                  where ranks do not reach each other's memory, or are on several hosts: `move` (moek_ep_config)
 *                  takes rows from rank to rank.  With NCCL see moek_ep_nccl.h: it finds out which of these it is
 * WHAT IS NOT HERE YET: ranks on the CPUs of several hosts.  A group that has ended can not go on with the ranks that
 * survive.  But all ranks may open it again, in the same moek_ep: when the runs of all of them have returned (on GPUs:
 * and their streams are idle), each zeroes its window (and report); after a barrier of yours they open.  Plans that
 * have joined are then good again.
 *
 * RANKS AND EXPERTS.  Each physical expert (0 .. config.physical_experts - 1, which without replicas are the router's
 * ids) lives on one rank.  P experts on R ranks:
 *     MOEK_EP_LINEAR        rank r has P / R in a row, the first P % R ranks one more
 *     MOEK_EP_ROUND_ROBIN   expert e lives on rank e % R, there as number e / R
 *     owner                 your own table: expert e lives on rank owner[e]; on a rank they are numbered in order of e
 * A rank may have no experts but then still needs one in its weights (moek_ep_local_experts() returns at least 1).
 * weights.w_up and the others hold the experts of this rank in that order (moek_ep_expert() tells their physical
 * number); weights.expert_map stays NULL.  weights.replicas maps logical to physical experts before rows are sent,
 * weights.expert_load counts physical experts for the tokens of this rank: add the counters of all ranks.
 *
 * KINDS of prepare/finalize, MOEK_EACH_EP_KIND, best first.  AUTO takes the first that serves the layer and suits it,
 * by rules that count bytes; moek_ep_explain says why.  T: the tokens of a rank and chunk; R: ranks; K: topk +
 * shared_slots; E: experts of a rank.
 *     low_latency  batched format [E][R * T][hidden]; a token goes once to each rank that has an expert of it.  Sending
 *                  waits for no other rank, and receiving is a hook (moek_prepare_receive).  For few tokens
 *     alltoall     standard format, packed; a token goes once to each rank that has an expert of it.  Ranks exchange
 *                  their counts first, so that rows are written where they stay; where they would not fit (max_rows),
 *                  every rank gets MOEK_E_CAPACITY, with the size needed, before any row moves, and can go on
 *                  (where rows are moved: below)
 *     allgather    standard format [R][T]; every token goes to every rank.  No counts, no capacity; moves little more
 *                  than alltoall where nearly every token has experts on nearly every rank
 * A group is of one kind: for low_latency with few tokens and another kind with many, open two groups and make a plan
 * for each.
 * ROWS travel as the experts read them.  Formats that quantize x: codes and their scales, quantized by the rank of the
 * token.  Scales keep the type of the format, but with config.ue8m0 a float travels as one byte, its exponent (all
 * layers of a group have ue8m0 or none).  Weight-only formats: T.  Two cases of formats that quantize travel as T all
 * the same: fp8t without weights.x_scale is quantized where rows arrive, with the scale of all rows that arrived
 * (low_latency: and are kept; allgather: of all tokens); experts that quantize themselves get T (not low_latency).
 * A static scale of x (weights.x_scale of fp8t and nvfp4_a4) must be the same on all ranks: codes of one rank are
 * multiplied by the scale of another.  group.x_scale has ranks compare the scale when they open.
 *
 * COMBINE.  The rank of an expert sends back, o being what the experts gave, rounded to T:
 *     MOEK_EP_REDUCED      T(sum over the token's experts here, k ascending, of weight * o), a row a token: the default
 *     MOEK_EP_REDUCED_F32  the same, not rounded
 *     MOEK_EP_EXACT        the rows o themselves, one a slot
 * and the rank of the token adds them up in f32, ranks ascending (EXACT: k ascending, as one rank does), then shared_y,
 * and rounds to T once.  The same inputs give the same bits in every run, however ranks are timed.  EXACT gives the
 * bits of one rank that holds all experts, whatever R, where a token's o do not depend on the tokens beside it
 * (batch_invariant; fp8t: with x_scale and h_scale).  Before y is rounded, REDUCED is off from it
 * by at most 2^-8 (bf16; 2^-11 in fp16) of the sum of the partial sums' sizes; REDUCED_F32 by the order of f32 sums.
 *
 * ALL RANKS DO THE SAME: the same config and the same order of runs on a handle; only tokens and what is in them differ
 * (0 tokens are fine; a rank without tokens still calls moek_run).  Opening compares what the group was given and the
 * layer, field by field, with defaults filled in (moek/ep/handshake.h has the list): where two ranks differ, all get
 * MOEK_E_MISMATCH with the name of the field and both values.  A plan that is made later, by each rank alone, has the
 * layer's fields, too, but for max_tokens and chunk_tokens: moek_plan_init names the one that it has otherwise.  A run
 * that one rank alone refuses (say, for a workspace that is too small) leaves the others waiting until their timeout;
 * what the group refuses (it has ended; a handle is in use, or not there) is refused before anything is written.
 * args.handle 0 and 1 are two operations in flight, if the group has handles = 2: each has its own part of the window,
 * its own flags, its own workspace.  They need no common order but in alltoall, where all ranks must start them in the
 * same order.  A second operation on a handle before the first has ended is MOEK_E_ARGUMENT, of moek_begin already: so
 * there is never a third in flight.
 *
 * TWO IN FLIGHT, with handles = 2: what one half of the tokens waits for on the wire passes while the other half's
 * experts run (dual-batch overlap).  Receiving is a hook: it may be called wherever the program has got to by then.
 *
 *     moek_begin(&plan, &args[h], &step[h]);               h = 0, 1: args[h].handle = h; a workspace and a stream each
 *     moek_route(&step[h], s[h]);  moek_prepare_send(&step[h], s[h]);         rows of both halves are on their way
 *     moek_prepare_receive(&step[0], s[0]);  moek_experts_apply(&step[0], s[0]);  moek_finalize_send(&step[0], s[0]);
 *     moek_prepare_receive(&step[1], s[1]);  moek_experts_apply(&step[1], s[1]);  moek_finalize_send(&step[1], s[1]);
 *     moek_finalize_receive(&step[h], s[h]);                   y of a half is there
 *
 * ERRORS.  No wait is longer than timeout_ms.  The first failure is kept, told to all ranks, and ends the group: every
 * run returns it (MOEK_E_TIMEOUT on the rank that waited, MOEK_E_ABORTED on the others) with a sentence in args.why,
 * and moek_ep_poll says which rank, phase and operation it was.  What was half written is never taken for whole; y of
 * that chunk and later ones is then not written, or on GPUs in part.  MOEK_E_CAPACITY alone does not end the group: it
 * is the same on all ranks (the chunk has been routed by then, and counted in expert_load).  If a part of yours fails
 * between send and receive, call moek_ep_abort: the others then need not wait for their timeout.
 *
 * ON GPUs a run returns when its kernels are enqueued; what goes wrong later is found by moek_ep_poll (which reads
 * config.report in host memory and calls nothing of CUDA) once the stream has been waited for, and by the next run.
 * Replays of a captured run are found out by moek_ep_poll alone.
 *
 * MOEK_E_CAPACITY on GPUs: the host waits for no counts, so no run returns it.  Where rows of alltoall do not fit, no
 * rank sends any; the operation goes through all the same, with nothing received, and y of that chunk is not written.
 * moek_ep_poll then returns MOEK_E_CAPACITY on every rank, with the rows that the fullest rank would have received and
 * the operation's number: once, for the last such operation on each handle.  Later operations run as if it had not
 * been, also those behind it in the stream or graph (a run can not refuse for it: ranks would hear of it at different
 * times).  So wait for the stream and poll before y is used, or take max_rows = 0, which always fits.
 *
 * alltoall WHERE ROWS ARE MOVED: the host knows no counts, so max_rows / ranks rows go from each rank to each other and
 * back, however many are in use: what does not count is not read, but travels.  With max_rows = 0 that is max_tokens,
 * as much as allgather moves, and AUTO takes that.  So give it max_rows: at R ranks and K slots, T tokens that choose
 * experts evenly bring a rank R * T * (1 - (1 - 1/R)^K) rows (moek_ep_explain has the number); to that comes what your
 * router is off from even, for any two ranks.  Where the rows of one rank for another are more than the share of it,
 * that is MOEK_E_CAPACITY as above (rows of other ranks have then been moved, and are not looked at); `rows` of
 * moek_ep_poll is the max_rows that it takes.  A max_rows that fits in all on other transports may be too small here,
 * since it is a share for each pair: leave more room, and poll, or ask for kind MOEK_EP_ALLGATHER.
 *
 * Any number of runs may be captured in a graph and replayed, on all ranks the same.  Kernels of a rank wait for other
 * ranks: ranks that share a GPU, or a process with one thread for several GPUs, must be able to get all their sends
 * started (a stream each; CUDA_DEVICE_MAX_CONNECTIONS at least the streams of a GPU), and nothing may synchronize a
 * device on which another rank waits (cudaFree and cudaDeviceSynchronize do).  Kernels that wait may hold every
 * SM: of two groups on the same GPUs, and of other kernels that a peer's progress depends on, only one may be under way
 * at a time.  The handles of one group leave room for each other.  moek_ep_poll hears of a peer's end when
 * a run of this rank does.  moek_ep_expert and moek_ep_local_experts read the window: not while runs are on the NULL
 * stream.
 *
 * THREADS.  One thread at a time for each handle of a moek_ep; moek_ep_poll and moek_ep_abort from any thread.
 * MEMORY.  Nothing is allocated.  A window must stay until all ranks have ended their last run (or failed).          */
#include "moek.h"
#include "moek/ep/api.h"

#ifdef MOEK_IMPLEMENTATION

/* The files of moek/ep/, lowest first: a file calls itself and those before it (tests/format.sh checks).
 *     handshake the list of what ranks compare when a group opens
 *     layout    a window: what lies where, and where experts live
 *     flags     flags, totals and packed errors: 64-bit words of a window
 *     device    the protocol in kernels, and device code that the stages share
 *     dispatch_send, dispatch_receive, combine_send, combine_receive
 *               kernels, a file for each stage; none calls another
 *     error     the first error on the host: kept, sent to all ranks, polled, put in a sentence
 *     wire      the protocol on the host: flags, credits, waits
 *     host      prepare/finalize with windows in host memory, and what GPUs share with it
 *     gpu       prepare/finalize on GPUs: launches
 *     group     defaults, the choice of a kind, opening, joining, reports
 *     nccl      a group over NCCL: moek_ep_nccl.h includes it */
#include "moek/ep/handshake.h"
#include "moek/ep/layout.h"
#include "moek/ep/flags.h"
#if MOEK_HAVE_CUDA_
#include "moek/ep/device.h"
#include "moek/ep/dispatch_send.h"
#include "moek/ep/dispatch_receive.h"
#include "moek/ep/combine_send.h"
#include "moek/ep/combine_receive.h"
#endif
#include "moek/ep/error.h"
#include "moek/ep/wire.h"
#include "moek/ep/host.h"
#include "moek/ep/gpu.h"
#include "moek/ep/group.h"
#endif
