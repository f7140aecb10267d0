/* moek.cu -- the implementation for GPUs and CPUs.  Compile it once, link it with whatever calls moek, and with cudart.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -c examples/moek.cu        (your GPU here) */
#define MOEK_IMPLEMENTATION
#include "moek.h"
