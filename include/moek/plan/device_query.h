/* moek/plan/device_query.h -- the little that the host asks of a device; without nvcc there is none. */
#ifndef MOEK_DEVICE_QUERY_H
#define MOEK_DEVICE_QUERY_H
#include <stdio.h>
#include <string.h>
#include "../want.h"

/* mhz to geforce: moek_device_speed_.  mhz 0: not known. */
typedef struct moek_device_ {
    int ordinal, arch, shared_bytes, multiprocessors;
    int mhz, gbs, l2_kb;                              /* clock of an SM; GB/s of memory; L2 */
    int geforce;                                      /* 1: f32 sums at half the rate, as GeForce has */
} moek_device_;

#if MOEK_HAVE_CUDART_
#include <cuda_runtime_api.h>
#ifdef MOEK_LIMIT_DEVICE_                              /* of bench.cu: it takes a device for a smaller one */
void MOEK_LIMIT_DEVICE_(int *arch, int *shared_bytes);
#endif
static moek_device_ moek_device_query_(void)
{
    moek_device_ d;
    int major = 0, minor = 0, ordinal = -1;
    memset(&d, 0, sizeof d);
    d.ordinal = -1;
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
/* How fast it is, as computed bounds want to know (moek/plan/bounds.h).  classes: by name it is GeForce or not.  CUDA
 * asks the card over PCIe for clocks, and for the properties that have the name. */
static void moek_device_speed_(moek_device_ *d, int classes)
{
    char name[256] = "GeForce";
    int khz = 0, memory_khz = 0, bits = 0, bytes = 0;
    if (d->ordinal < 0 || cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, d->ordinal) != cudaSuccess || !khz) return;
    (void)cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, d->ordinal);
    (void)cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, d->ordinal);
    (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, d->ordinal);
    (void)cudaGetLastError();
    if (classes) moek_device_name_(d->ordinal, name, sizeof name);
    d->mhz = khz / 1000;
    d->gbs = (int)(2LL * memory_khz * (bits / 8) / 1000000);     /* two bits a clock and pin */
    d->l2_kb = bytes / 1024;
    d->geforce = strstr(name, "GeForce") != NULL;
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
    moek_device_ d;
    memset(&d, 0, sizeof d);
#ifdef MOEK_EMU
    d.arch = MOEK_EMU_ARCH;
    d.shared_bytes = (EMU_KB ? EMU_KB : MOEK_EMU_ARCH < 90 ? 163 : 227) * 1024;
    d.multiprocessors = EMU_RESIDENT;
#else
    d.ordinal = -1;
#endif
    return d;
}
static void moek_device_speed_(moek_device_ *d, int classes)
{
    (void)classes;
#ifdef EMU_SPEED                                       /* of tests/layer/test_rule.c */
    EMU_SPEED(d);
#else
    (void)d;
#endif
}
static void moek_device_name_(int ordinal, char *name, size_t size) { (void)ordinal; snprintf(name, size, "none"); }
static int moek_device_current_(void) { return moek_device_query_().ordinal; }
static const char *moek_device_error_(void) { return NULL; }
#endif
#endif
