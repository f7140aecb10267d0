/* moek/want.h -- which kernels are compiled: what MOEK_QUANT, MOEK_ARCH, MOEK_HIDDEN and MOEK_BLOCK, or tests of the
 * user's own, leave (docs/embedding.md).  For the table, and for files of kernels. */
#ifndef MOEK_WANT_H
#define MOEK_WANT_H
#include "kernel/isa.h"

#define MOEK_ARCH_IS_HOST_(arch) ((arch) < 80)           /* (for #if, too) */

#if defined(__CUDACC__) || defined(MOEK_EMU)
#define MOEK_HAVE_CUDA_ 1
#else
#define MOEK_HAVE_CUDA_ 0
#endif
#if MOEK_HAVE_CUDA_ && (!defined(MOEK_EMU) || defined(MOEK_EMU_CUDA))
#define MOEK_HAVE_CUDART_ 1                            /* what cuda_runtime_api.h declares: CUDA's, or a test's */
#else
#define MOEK_HAVE_CUDART_ 0
#endif
#ifndef MOEK_WANT_HIDDEN
#ifdef MOEK_HIDDEN
#define MOEK_WANT_HIDDEN(h) ((h) == 0 || (h) == (MOEK_HIDDEN))
#else
#define MOEK_WANT_HIDDEN(h) 1
#endif
#endif
#ifndef MOEK_WANT_BLOCK
#ifdef MOEK_BLOCK
#define MOEK_WANT_BLOCK(b) ((b) == 0 || (b) == (MOEK_BLOCK))
#else
#define MOEK_WANT_BLOCK(b) 1
#endif
#endif
#ifndef MOEK_WANT_QUANT
#ifdef MOEK_QUANT
#define MOEK_WANT_QUANT(q) ((q) == (MOEK_QUANT))
#else
#define MOEK_WANT_QUANT(q) 1
#endif
#endif
#ifndef MOEK_WANT_ARCH
#ifdef MOEK_ARCH
#define MOEK_WANT_ARCH(a) \
    (MOEK_ARCH_IS_HOST_(MOEK_ARCH) && MOEK_ARCH_IS_HOST_(a) ? (MOEK_ARCH) == 0 || MOEK_SET_BELOW_(a, MOEK_ARCH) \
                                                            : (a) == (MOEK_ARCH))
#else
#define MOEK_WANT_ARCH(a) 1
#endif
#endif
/* In #if a name, as sm80 or fp8b128, would count as 0: MOEK_ARCH=sm80 would leave the CPU alone. */
enum {
#ifdef MOEK_ARCH
    moek_MOEK_ARCH_is_a_number_as_0_or_80_or_90_ = MOEK_ARCH,
#endif
#ifdef MOEK_QUANT
    moek_MOEK_QUANT_is_a_format_as_MOEK_FP8B128_ = MOEK_QUANT,
#endif
#ifdef MOEK_HIDDEN
    moek_MOEK_HIDDEN_is_a_number_ = MOEK_HIDDEN,
#endif
#ifdef MOEK_BLOCK
    moek_MOEK_BLOCK_is_a_number_ = MOEK_BLOCK,
#endif
    moek_options_are_numbers_
};
#define MOEK_WANT_(quant, hidden, block, arch) \
    (((quant) == 0 || MOEK_WANT_QUANT(quant)) && MOEK_WANT_HIDDEN(hidden) && MOEK_WANT_BLOCK(block) && \
     MOEK_WANT_ARCH(arch) && (MOEK_ARCH_IS_HOST_(arch) ? MOEK_HAVE_SET_(arch) : MOEK_HAVE_CUDA_))

/* The same of a kernel by its name: with MOEK_ONE_KERNEL (each kernel is an object of its own, MOEK_SPLIT), the one for
 * which MOEK_ONLY_<name> is 1. */
#ifdef MOEK_ONE_KERNEL
#define MOEK_INSTANCE_(quant, hidden, block, arch, name) \
    (MOEK_ONLY_##name + 0 && MOEK_WANT_(quant, hidden, block, arch))
#else
#define MOEK_INSTANCE_(quant, hidden, block, arch, name) MOEK_WANT_(quant, hidden, block, arch)
#endif
#endif
