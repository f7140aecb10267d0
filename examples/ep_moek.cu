/* ep_moek.cu -- moek_ep.h's implementation, with the kernels for CPUs and GPUs.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -c examples/ep_moek.cu -o ep_moek.o */
#define MOEK_IMPLEMENTATION
#include "moek_ep.h"
