/* bench_nccl.h -- what NCCL's own collectives take for the bytes of an exchange, a thread a GPU: for bench_ep.cu.
 *
 * Each rank replays a CUDA graph of OPERATIONS of them; a figure is the median over replays of the slowest rank's time,
 * divided by OPERATIONS: bench_ep.cu has replay and slowest_of. */
#ifndef BENCH_NCCL_H
#define BENCH_NCCL_H
#include "../tests/ep/must_nccl.h"

enum { NCCL_ALLTOALL, NCCL_ALLGATHER, NCCL_REDUCESCATTER, NCCL_KINDS };
static const char *const nccl_names[] = { "alltoall", "allgather", "reducesctr" };

static struct nccl_bench {
    int ranks;
    size_t bytes[NCCL_KINDS];                          /* that a rank gives to each rank */
    ncclComm_t comm[RANKS];                            /* made once */
    ncclUniqueId id;
    pthread_barrier_t barrier;
    double us[NCCL_KINDS][RANKS][REPLAYS];
} nccl_bench;

/* By all ranks, a thread each. */
static ncclComm_t nccl_comm(int ranks, int me)
{
    struct nccl_bench *const b = &nccl_bench;
    if (!b->comm[me]) must_nccl(ncclCommInitRank(&b->comm[me], ranks, b->id, me));
    return b->comm[me];
}
static void nccl_enqueue(int kind, int me, char *from, char *to, cudaStream_t stream)
{
    struct nccl_bench *const b = &nccl_bench;
    const size_t n = b->bytes[kind];
    int p;
    if (kind == NCCL_ALLGATHER) must_nccl(ncclAllGather(from, to, n, ncclInt8, b->comm[me], stream));
    if (kind == NCCL_REDUCESCATTER)
        must_nccl(ncclReduceScatter(from, to, n / 2, ncclBfloat16, ncclSum, b->comm[me], stream));
    if (kind != NCCL_ALLTOALL) return;
    must_nccl(ncclGroupStart());
    for (p = 0; p < b->ranks; p++) {
        if (p == me) continue;
        must_nccl(ncclSend(from + (size_t)p * n, n, ncclInt8, p, b->comm[me], stream));
        must_nccl(ncclRecv(to + (size_t)p * n, n, ncclInt8, p, b->comm[me], stream));
    }
    must_nccl(ncclGroupEnd());
}
static void *nccl_rank(void *number)
{
    struct nccl_bench *const b = &nccl_bench;
    const int me = *(const int *)number;
    char *from, *to;
    size_t most = 0;
    cudaStream_t stream;
    cudaGraphExec_t exec;
    uint64_t *stamps;
    int kind, i;
    mem_must(cudaSetDevice(me));
    nccl_comm(b->ranks, me);
    for (kind = 0; kind < NCCL_KINDS; kind++) if (b->bytes[kind] > most) most = b->bytes[kind];
    from = (char *)mem_alloc(MEM_DEVICE, most * (size_t)b->ranks);
    to = (char *)mem_alloc(MEM_DEVICE, most * (size_t)b->ranks);
    mem_must(cudaMemset(from, 0, most * (size_t)b->ranks));
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stamps = (uint64_t *)mem_alloc(MEM_DEVICE, 16);
    mem_must(cudaDeviceSynchronize());
    for (kind = 0; kind < NCCL_KINDS; kind++) {
        if (!b->bytes[kind]) continue;
        nccl_enqueue(kind, me, from, to, stream);
        mem_must(cudaStreamSynchronize(stream));
        mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (i = -1; i < OPERATIONS; i++) {            /* the first lets ranks start together */
            nccl_enqueue(kind, me, from, to, stream);
            if (i == -1) stamp_k<<<1, 1, 0, stream>>>(stamps);
        }
        stamp_k<<<1, 1, 0, stream>>>(stamps + 1);
        exec = captured(stream);
        for (i = -2; i < REPLAYS; i++) {
            double us;
            pthread_barrier_wait(&b->barrier);
            us = replay(exec, stream, stamps) / OPERATIONS;
            if (i >= 0) b->us[kind][me][i] = us;
        }
        mem_must(cudaGraphExecDestroy(exec));
    }
    mem_must(cudaStreamDestroy(stream));
    mem_free(MEM_DEVICE, from); mem_free(MEM_DEVICE, to); mem_free(MEM_DEVICE, stamps);
    return NULL;
}

/* bytes as in nccl_bench. */
static void nccl_measure(int ranks, const size_t *bytes, spread *us)
{
    struct nccl_bench *const b = &nccl_bench;
    pthread_t thread[RANKS];
    int number[RANKS], kind, r;
    b->ranks = ranks;
    memcpy(b->bytes, bytes, sizeof b->bytes);
    pthread_barrier_init(&b->barrier, NULL, (unsigned)ranks);
    for (r = 0; r < ranks; r++) {
        number[r] = r;
        if (pthread_create(&thread[r], NULL, nccl_rank, &number[r])) abort();
    }
    for (r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&b->barrier);
    for (kind = 0; kind < NCCL_KINDS; kind++) us[kind] = slowest_of(ranks, b->us[kind]);
}
#endif
