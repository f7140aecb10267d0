/* moek/ep/nccl_api.h -- the types and functions of moek_ep_nccl.h, which says how they are used. */
#ifndef MOEK_EP_NCCL_API_H
#define MOEK_EP_NCCL_API_H
#include <nccl.h>
#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOEK_EP_NCCL_AUTO, MOEK_EP_NCCL_WINDOW, MOEK_EP_NCCL_IPC, MOEK_EP_NCCL_SENDS };      /* path (above) */

/* Read it; only the functions below write it.  It must stay where it is while the group is used. */
typedef struct moek_ep_nccl {
    ncclComm_t comm;                  /* yours; NULL once it had to be aborted                                        */
    int path;                         /* MOEK_EP_NCCL_WINDOW, ...; 0: not open                                        */
    int rank, ranks, timeout_ms;
    moek_ep *ep;
    void *memory;                     /* yours, if you brought it; else NULL                                          */
    size_t memory_size;
    void *window, *out;               /* out: sends                                                                   */
    void *registered;                 /* window: the ncclWindow_t                                                     */
    void *scratch, *report, *stream;
    void *base[MOEK_EP_MAX_RANKS];
    char text[2048];                  /* a line a path: taken, or why not; or why it does not open; or what did not
                                         fit (moek_ep_nccl_wait)                                                      */
} moek_ep_nccl;

/* Opens `ep` over `comm`.  path: MOEK_EP_NCCL_AUTO, or the only one to take.  group: rank and ranks are 0 or as in
 * the communicator; transport, move and move_gathers are not looked at; report may be NULL.  All ranks get OK, or none.
 * OK, E_ARGUMENT, E_MISMATCH, E_BACKEND (no path), E_CUDA, E_TIMEOUT, as moek_ep_open, with a sentence in wire->text;
 * then all is freed, and the communicator is as before or, after E_TIMEOUT and on a rank that had no memory even to
 * vote, aborted and wire->comm NULL.                                                                                 */
#define moek_ep_nccl_open(wire, ep, group, comm, path) moek_ep_nccl_open_in(wire, ep, group, comm, path, NULL, 0)

/* The same in memory of yours, `size` bytes (above); with NULL, 0 it is moek_ep_nccl_open.  E_ARGUMENT: it is no memory
 * of the communicator's GPU; E_MISMATCH: ranks bring more and less; a path that it is too small for, or of the wrong
 * kind, says so in wire->text, with the size needed.                                                                 */
#define moek_ep_nccl_open_in(wire, ep, group, comm, path, memory, size) \
    moek_ep_nccl_open_((wire), (ep), (group), (comm), (path), (memory), (size), sizeof(moek_ep_nccl), sizeof(moek_ep), \
                       sizeof(moek_ep_config), MOEK_VERSION)
moek_status moek_ep_nccl_open_(moek_ep_nccl *wire, moek_ep *ep, const moek_ep_config *group, ncclComm_t comm, int path,
                               void *memory, size_t size, size_t wire_size, size_t ep_size, size_t config_size,
                               int version);

/* Bytes of memory that opening by a path takes; AUTO: by any of those that the group can take.  0: by none of them.
 * group: with rank and ranks.                                                                                        */
#define moek_ep_nccl_memory_size(group, path) \
    moek_ep_nccl_memory_size_((group), (path), sizeof(moek_ep_config), MOEK_VERSION)
size_t      moek_ep_nccl_memory_size_(const moek_ep_config *group, int path, size_t config_size, int version);

/* Waits for all that was enqueued on the stream, at most `ms`; then what moek_ep_poll says (E_CAPACITY: with a sentence
 * in wire->text), or E_TIMEOUT (the group was ended by this rank), or E_CUDA.                                        */
moek_status moek_ep_nccl_wait(moek_ep_nccl *wire, moek_ep *ep, moek_stream stream, int ms);

/* Ends the group as moek_ep_abort does; on `sends` aborts the communicator, too. */
void        moek_ep_nccl_abort(moek_ep_nccl *wire, moek_ep *ep);

/* When this rank's streams are idle: waits for all ranks (at most timeout_ms), takes back what was registered, frees.
 * OK, or E_TIMEOUT: not all came; everything of this rank is freed all the same.                                     */
moek_status moek_ep_nccl_close(moek_ep_nccl *wire);

const char *moek_ep_nccl_path_name(int path);                                    /* "window"; NULL if there is none */

#ifdef __cplusplus
}
#endif
#endif
