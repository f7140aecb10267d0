/* moek.c -- the implementation for CPUs.  Compile it once, link it with whatever calls moek.
 *
 *   cc -O3 -march=native -fopenmp -Iinclude -c examples/moek.c                              */
#define MOEK_IMPLEMENTATION
#include "moek.h"
