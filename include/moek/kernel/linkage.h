/* moek/kernel/linkage.h -- how functions of host and device are declared, launchers too; a float as its bits. */
#ifndef MOEK_LINKAGE_H
#define MOEK_LINKAGE_H
#include <stdint.h>
#include <string.h>
#include "../enums.h"

#if defined(__GNUC__)
#define MOEK_UNUSED __attribute__((unused))
#else
#define MOEK_UNUSED
#endif
#if defined(__CUDACC__)
#define MOEK_FN static MOEK_UNUSED __host__ __device__ __forceinline__
#elif defined(__cplusplus)
#define MOEK_FN static MOEK_UNUSED inline
#else
#define MOEK_FN static MOEK_UNUSED __inline
#endif

/* A launcher is static, so that two programs' kernels never meet; in split mode each is an object of its own. */
#if !defined(MOEK_SPLIT)
#define MOEK_LAUNCHER static MOEK_UNUSED moek_status
#elif defined(__cplusplus)
#define MOEK_LAUNCHER extern "C" moek_status
#else
#define MOEK_LAUNCHER moek_status
#endif

MOEK_FN uint32_t moek_bits_(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
MOEK_FN float moek_float_(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
#endif
