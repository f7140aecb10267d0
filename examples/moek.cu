/* moek.cu -- the implementation for GPUs and CPUs.  Compile it once, link it with whatever calls moek, and with cudart.
 *
 *   nvcc -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude -c examples/moek.cu        (your GPU here)
 *
 * That compiles all formats, for a quarter of an hour on one core; -DMOEK_QUANT=MOEK_BF16 keeps one, in less than a
 * minute. */
#define MOEK_IMPLEMENTATION
#include "moek.h"
