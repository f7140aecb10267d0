/* must_nccl.h -- a call of NCCL that has to go well. */
#ifndef MUST_NCCL_H
#define MUST_NCCL_H
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

static inline void must_nccl(ncclResult_t r)
{
    if (r == ncclSuccess) return;
    printf("NCCL: %s\n", ncclGetErrorString(r));
    exit(2);
}
#endif
