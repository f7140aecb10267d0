/* element/bf16.cuh -- bf16 on GPUs (bf16.j2 says what it is). */
#ifndef MOEK_BF16_CUH
#define MOEK_BF16_CUH
#include "../../include/moek/kernel/ptx.h"

/* sum += x times w, of what ldmatrix brings, which is what mma.sync takes: 16 bytes of k. */
template <int MI, int NI>
MOEK_DEVICE void moek_mma_of_bf16_(float sum[MI][NI][4], const uint32_t xs[MI][4], const uint32_t ws[NI][2])
{
    int mi, ni;
    #pragma unroll
    for (ni = 0; ni < NI; ni++)
        #pragma unroll
        for (mi = 0; mi < MI; mi++) moek_mma_bf16_(sum[mi][ni], xs[mi], ws[ni]);
}

#endif
