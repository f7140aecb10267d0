/* ep_moek.cu -- moek_ep.h's implementation, with the kernels for CPUs and GPUs, of one format.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_BF16 -Iinclude -c examples/ep_moek.cu */
#define MOEK_IMPLEMENTATION
#ifdef USE_NCCL
#include "moek_ep_nccl.h"
#else
#include "moek_ep.h"
#endif
