/* mem.h -- memory where a row wants it: the host for archs below 80, the device for others.  MOEK_EMU: the host for
 * all. */
#ifndef MEM_H
#define MEM_H
#include <stdlib.h>
#include <string.h>
#ifdef MOEK_EMU
#include "emu/emu_strict.h"
#endif
#if defined(__CUDACC__) && !defined(MOEK_EMU) || defined(MOEK_EMU_CUDA)
#define MEM_CUDA 1
#include <cuda_runtime.h>
#include <stdio.h>
static inline void mem_must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    printf("CUDA: %s\n", cudaGetErrorString(error));
    fflush(stdout);
    _Exit(2);                                          /* not exit: other threads may be in CUDA, or here, too */
}
#else
#define MEM_CUDA 0
#endif

/* For what is no row: an arch that stands for the host, and one that stands for a device.  (1 is a set of CPUs.) */
enum { MEM_HOST = 0, MEM_DEVICE = 80 };
static inline int mem_where(int on_gpu) { return on_gpu ? MEM_DEVICE : MEM_HOST; }

/* Does it work on memory of a device? */
static inline int mem_on_gpu(int arch) { return arch >= 80; }

/* 1 if rows of this arch can run here; if not, they are skipped.  (What a CPU has, a launcher says that is called with
 * NULL.) */
static inline int mem_can_run(int arch)
{
    if (!mem_on_gpu(arch)) return 1;
#if MEM_CUDA
    {
        int n = 0;
        if (cudaGetDeviceCount(&n) != cudaSuccess) return (void)cudaGetLastError(), 0;
        return n > 0;
    }
#elif defined(MOEK_EMU)
    return 1;
#else
    return 0;
#endif
}

/* 256-byte aligned. */
static inline void *mem_alloc(int arch, size_t bytes)
{
    char *raw, *at;
#if MEM_CUDA
    if (mem_on_gpu(arch)) {
        void *p;
        mem_must(cudaMalloc(&p, bytes ? bytes : 1));
        return p;
    }
#endif
#ifdef MOEK_EMU
    if (mem_on_gpu(arch)) return emu_take(bytes);
#endif
    (void)arch;
    raw = (char *)malloc(bytes + 256 + sizeof(void *));
    if (!raw) abort();
    at = raw + sizeof(void *);
    at += (256 - ((size_t)at & 255)) & 255;
    memcpy(at - sizeof(void *), &raw, sizeof(void *));
    return at;
}
static inline void mem_free(int arch, void *p)
{
    void *raw;
    if (!p) return;
#if MEM_CUDA
    if (mem_on_gpu(arch)) { mem_must(cudaFree(p)); return; }
#endif
#ifdef MOEK_EMU
    if (mem_on_gpu(arch)) { emu_give_back(p); return; }
#endif
    (void)arch;
    memcpy(&raw, (char *)p - sizeof(void *), sizeof(void *));
    free(raw);
}
/* Host to where the row works, and back; both wait for what was launched. */
static inline void mem_put(int arch, void *there, const void *host, size_t bytes)
{
#if MEM_CUDA
    if (mem_on_gpu(arch)) {
        mem_must(cudaMemcpy(there, host, bytes, cudaMemcpyHostToDevice));
        mem_must(cudaStreamSynchronize(0));            /* cudaMemcpy may return before its last bytes are there */
        return;
    }
#endif
#ifdef MOEK_EMU
    if (mem_on_gpu(arch)) { emu_copy_bytes(there, host, bytes); return; }
#endif
    (void)arch;
    if (bytes) memcpy(there, host, bytes);
}
static inline void mem_get(int arch, void *host, const void *there, size_t bytes)
{
#if MEM_CUDA
    if (mem_on_gpu(arch)) {
        mem_must(cudaDeviceSynchronize());
        mem_must(cudaMemcpy(host, there, bytes, cudaMemcpyDeviceToHost));
        return;
    }
#endif
#ifdef MOEK_EMU
    if (mem_on_gpu(arch)) { emu_copy_bytes(host, there, bytes); return; }
#endif
    (void)arch;
    if (bytes) memcpy(host, there, bytes);
}
#endif
