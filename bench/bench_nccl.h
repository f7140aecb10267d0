/* bench_nccl.h -- what NCCL's own collectives take for the bytes of an exchange, a thread a GPU: for bench_ep.cu.
 *
 * Each rank replays a CUDA graph of OPERATIONS of them; a figure is the median over replays of the slowest rank's time,
 * divided by OPERATIONS. */
#ifndef BENCH_NCCL_H
#define BENCH_NCCL_H
#include <nccl.h>

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

static void must_nccl(ncclResult_t r)
{
    if (r == ncclSuccess) return;
    printf("bench_ep: NCCL: %s\n", ncclGetErrorString(r));
    exit(1);
}
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
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms;
    int kind, i;
    mem_must(cudaSetDevice(me));
    nccl_comm(b->ranks, me);
    for (kind = 0; kind < NCCL_KINDS; kind++) if (b->bytes[kind] > most) most = b->bytes[kind];
    from = (char *)mem_alloc(1, most * (size_t)b->ranks); to = (char *)mem_alloc(1, most * (size_t)b->ranks);
    mem_must(cudaMemset(from, 0, most * (size_t)b->ranks));
    mem_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mem_must(cudaEventCreate(&begin)); mem_must(cudaEventCreate(&end));
    mem_must(cudaDeviceSynchronize());
    for (kind = 0; kind < NCCL_KINDS; kind++) {
        if (!b->bytes[kind]) continue;
        nccl_enqueue(kind, me, from, to, stream);
        mem_must(cudaStreamSynchronize(stream));
        mem_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (i = 0; i < OPERATIONS; i++) nccl_enqueue(kind, me, from, to, stream);
        mem_must(cudaStreamEndCapture(stream, &graph));
        mem_must(cudaGraphInstantiate(&exec, graph, 0));
        for (i = -2; i < REPLAYS; i++) {
            pthread_barrier_wait(&b->barrier);
            mem_must(cudaEventRecord(begin, stream));
            mem_must(cudaGraphLaunch(exec, stream));
            mem_must(cudaEventRecord(end, stream));
            mem_must(cudaStreamSynchronize(stream));
            mem_must(cudaEventElapsedTime(&ms, begin, end));
            if (i >= 0) b->us[kind][me][i] = 1e3 * (double)ms / OPERATIONS;
        }
        mem_must(cudaGraphExecDestroy(exec));
        mem_must(cudaGraphDestroy(graph));
    }
    mem_must(cudaEventDestroy(begin)); mem_must(cudaEventDestroy(end));
    mem_must(cudaStreamDestroy(stream));
    mem_free(1, from); mem_free(1, to);
    return NULL;
}

/* us[kind]: median and 90th percentile; bytes as in nccl_bench. */
static void nccl_measure(int ranks, const size_t *bytes, double us[NCCL_KINDS][2],
                         int (*ascending)(const void *, const void *))
{
    struct nccl_bench *const b = &nccl_bench;
    pthread_t thread[RANKS];
    int number[RANKS], kind, r, i;
    double slowest[REPLAYS];
    b->ranks = ranks;
    memcpy(b->bytes, bytes, sizeof b->bytes);
    pthread_barrier_init(&b->barrier, NULL, (unsigned)ranks);
    for (r = 0; r < ranks; r++) {
        number[r] = r;
        if (pthread_create(&thread[r], NULL, nccl_rank, &number[r])) abort();
    }
    for (r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&b->barrier);
    for (kind = 0; kind < NCCL_KINDS; kind++) {
        for (i = 0; i < REPLAYS; i++)
            for (slowest[i] = 0, r = 0; r < ranks; r++)
                if (b->us[kind][r][i] > slowest[i]) slowest[i] = b->us[kind][r][i];
        qsort(slowest, REPLAYS, sizeof *slowest, ascending);
        us[kind][0] = slowest[REPLAYS / 2]; us[kind][1] = slowest[REPLAYS * 9 / 10];
    }
}
#endif
