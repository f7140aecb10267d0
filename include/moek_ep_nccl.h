/* moek_ep_nccl.h -- expert parallelism on GPUs over NCCL: from a communicator to an open group, in one call.
 *
 * Do this, in the ONE file that holds the implementation (instead of moek_ep.h, all of which it has); link with -lnccl:
 *
 *     #define MOEK_IMPLEMENTATION
 *     #include "moek_ep_nccl.h"
 *
 * and on every rank, a thread or a process with a GPU of its own, which is the current device:
 *
 *     moek_ep_config group = {0};
 *     group.layer = &config;                                         rank and ranks come from the communicator
 *     moek_ep_nccl_open(&wire, &ep, &group, comm, 0);                collective; wire.text says what was taken, and why
 *     moek_ep_join(&ep, &config);                                    from here as moek_ep.h says:
 *     moek_run(&plan, &args, stream);                                plan, bind, run
 *     moek_ep_nccl_wait(&wire, &ep, stream, 0);                      instead of cudaStreamSynchronize and moek_ep_poll
 *     moek_ep_nccl_close(&wire);                                     collective
 *
 * PATHS, best first.  All ranks take the same one: the first that all of them can take.
 *     window  a window of NCCL (2.28.7 and later, cuMem on), by which kernels reach the memory of all ranks.  One host
 *     ipc     cudaMalloc and, between processes, cudaIpc, whatever NCCL's version: NCCL only carries the handles.  One
 *             host
 *     sends   nobody reaches anybody: grouped ncclSend and ncclRecv, behind the kernels that write what goes out and
 *             ahead of those that read what came.  Any number of hosts
 * Kernels are the same on all of them, and so are the bits of y.  `sends` moves max_tokens rows to each rank and back,
 * alltoall max_rows / ranks, however many there are (so that the host need not know, and graphs can be captured): open
 * the group with a max_tokens, or a chunk_tokens of the layer, near to what it gets, and for many tokens give it
 * max_rows (moek_ep.h), with room to spare: there it is a share for each pair of ranks.  It takes twice the window.
 * Between hosts allgather sends rows and their scales, which are the same for all, by ncclAllGather: so they cross as
 * often as NCCL's algorithm has them, not once for each rank there.  ncclReduceScatter does not serve what comes back:
 * it adds in an order of its own, and in T or else moves floats; here f32 sums are taken with ranks ascending.
 * (Two ranks are on one host if one kernel runs there, or if NCCL_HOSTID, where it is set, says so: as for NCCL.)
 *
 * No multicast is asked for.  NCCL makes objects of its own for that when a communicator is made, unless
 * NCCL_NVLS_ENABLE=0 was in the environment before the process called NCCL first: set it where that matters.
 *
 * WAITS.  window and ipc: all that moek_ep.h promises; no kernel waits longer than timeout_ms.  sends: a kernel of NCCL
 * waits for its peer without an end.  moek_ep_nccl_wait ends that: after `ms` (0: timeout_ms), or when NCCL reports an
 * error, it ends the group and aborts the communicator (ncclCommAbort), which lets the stream go on; comm is NULL then,
 * and not to be used or destroyed by you.  So wait for the stream by it, or watch it from another thread.  Each rank
 * finds out by itself, or hears it from you: moek_ep_nccl_abort does the same at once (not while another thread of this
 * rank is in moek_run or moek_ep_nccl_wait; moek_ep_abort may be called then, and the wait ends after its `ms`).  After
 * any end a rank's moek_run refuses, and what it no longer sends the others wait for as long; graphs that it replays
 * go on sending, but nothing that counts.
 * On `sends` two handles need the same order on all ranks, as all that is given to a communicator does; no two of its
 * operations may be enqueued by different threads at once.
 * Opening waits at most timeout_ms a step, but for what NCCL does in ncclCommWindowRegister, and in a communicator's
 * first collective, where it connects ranks: of a blocking communicator (config.blocking, NCCL's default) that may wait
 * for a rank that never comes.  With config.blocking = 0 it does not.
 *
 * MEMORY.  moek_ep_nccl_open allocates what ranks exchange by, and close frees it: one piece a rank, a window; on
 * `sends` two, one behind the other.  Or bring it:
 *
 *     group.rank = r;  group.ranks = n;                              as the communicator has them
 *     size = moek_ep_nccl_memory_size(&group, path);
 *     ncclMemAlloc(&memory, size);                                   window; for ipc and sends: cudaMalloc
 *     moek_ep_nccl_open_in(&wire, &ep, &group, comm, path, memory, size);
 *
 * All ranks bring as much, or none does.  Opening zeroes it, and registers or maps it once; it is free again when close
 * has returned (E_TIMEOUT: when the other ranks have ended, too).  On no path does anything allocate while runs go on.
 * What ncclMemAlloc gave serves window and sends (with NCCL_CUMEM_ENABLE=0: ipc and sends), what cudaMalloc gave ipc
 * and sends.  AUTO passes over paths that it does not serve, or is too small for.  window: the memory is aligned to
 * 4096 bytes, and on all ranks at the same place of an allocation of the same size; ipc and sends: to 256, anywhere in
 * an allocation.  Opening allocates little else: 512 bytes a rank and 1 KiB on the device, 128 bytes of pinned memory
 * for config.report if that is NULL.                                                                                 */
#include "moek_ep.h"
#include "moek/ep/nccl_api.h"

#ifdef MOEK_IMPLEMENTATION
#include "moek/ep/nccl.h"
#endif
