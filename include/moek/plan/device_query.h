/* moek/plan/device_query.h -- the little that the host asks of a device; without nvcc there is none. */
#ifndef MOEK_DEVICE_QUERY_H
#define MOEK_DEVICE_QUERY_H
#include <stdio.h>
#include "../want.h"

typedef struct moek_device_ { int ordinal, arch, shared_bytes, multiprocessors; } moek_device_;

#if MOEK_HAVE_CUDART_
#include <cuda_runtime_api.h>
#ifdef MOEK_LIMIT_DEVICE_                              /* of bench.cu: it takes a device for a smaller one */
void MOEK_LIMIT_DEVICE_(int *arch, int *shared_bytes);
#endif
static moek_device_ moek_device_query_(void)
{
    moek_device_ d = { -1, 0, 0, 0 };
    int major = 0, minor = 0, ordinal = -1;
    if (cudaGetDevice(&ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&d.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal) == cudaSuccess &&
        cudaDeviceGetAttribute(&d.multiprocessors, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess) {
        d.ordinal = ordinal;
        d.arch = 10 * major + minor;
#ifdef MOEK_LIMIT_DEVICE_
        MOEK_LIMIT_DEVICE_(&d.arch, &d.shared_bytes);
#endif
    } else {
        (void)cudaGetLastError();                     /* no driver, no device: the CPU rows serve */
    }
    return d;
}
static void moek_device_name_(int ordinal, char *name, size_t size)      /* "NVIDIA H200" */
{
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, ordinal) == cudaSuccess) snprintf(name, size, "%s", p.name);
    else (void)cudaGetLastError();
}
static int moek_device_current_(void) { int d = -1; return cudaGetDevice(&d) == cudaSuccess ? d : -1; }
static const char *moek_device_error_(void)           /* of an earlier call of this thread, or NULL */
{
    const cudaError_t error = cudaPeekAtLastError();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
#else
static moek_device_ moek_device_query_(void)
{
#ifdef MOEK_EMU
    moek_device_ d = { 0, MOEK_EMU_ARCH, (EMU_KB ? EMU_KB : MOEK_EMU_ARCH < 90 ? 163 : 227) * 1024, EMU_RESIDENT };
#else
    moek_device_ d = { -1, 0, 0, 0 };
#endif
    return d;
}
static void moek_device_name_(int ordinal, char *name, size_t size) { (void)ordinal; snprintf(name, size, "none"); }
static int moek_device_current_(void) { return moek_device_query_().ordinal; }
static const char *moek_device_error_(void) { return NULL; }
#endif
#endif
