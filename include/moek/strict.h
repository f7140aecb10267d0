/* moek/strict.h -- refuses compilers that were told to bend arithmetic, and machines that kernels are not written for;
 * included wherever code of the library is made.
 *
 * NaN and Inf must be seen, sums be added in the order written, and each result be rounded once, to its own type: "the
 * same bits in every run", the bits of fp8 codes, and "a NaN in a token's input reaches only that token's output" all
 * lean on it.  Files that only call moek.h may be compiled in any way. */
#ifndef MOEK_STRICT_H
#define MOEK_STRICT_H
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(_M_FP_FAST)
#define MOEK_BENT_ 1
#elif defined(__FINITE_MATH_ONLY__)
#define MOEK_BENT_ (__FINITE_MATH_ONLY__ + 0 > 0)
#else
#define MOEK_BENT_ 0
#endif
#if MOEK_BENT_
#error "moek: compile the file with MOEK_IMPLEMENTATION without -ffast-math, -Ofast or /fp:fast (callers may have it)"
#endif
#undef MOEK_BENT_

/* Codes of 4 and 8 bits are unpacked from words, and checkpoints have 16 and 32 bits in this order, too. */
#if defined(__BYTE_ORDER__) && defined(__ORDER_LITTLE_ENDIAN__)
#define MOEK_BIG_ (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#elif defined(__BIG_ENDIAN__) || (defined(_BIG_ENDIAN) && !defined(_LITTLE_ENDIAN))
#define MOEK_BIG_ 1
#else
#define MOEK_BIG_ 0
#endif
#if MOEK_BIG_
#error "moek: this machine is big-endian, where kernels would compute wrong numbers: moek needs a little-endian one"
#endif
#undef MOEK_BIG_

/* What x87 does, and gcc on s390x: float is reckoned in a wider type, and rounded when a compiler happens to store it.
 * 0: in its own type.  16 and 32 are the same to float: they are about _Float16. */
#if defined(__FLT_EVAL_METHOD__)
#define MOEK_EVAL_ __FLT_EVAL_METHOD__
#else
#include <float.h>
#if defined(FLT_EVAL_METHOD)
#define MOEK_EVAL_ FLT_EVAL_METHOD
#else
#define MOEK_EVAL_ 0
#endif
#endif
#if MOEK_EVAL_ != 0 && MOEK_EVAL_ != 16 && MOEK_EVAL_ != 32
#error "moek: float is computed in a wider type here (FLT_EVAL_METHOD); on x86 of 32 bits add -msse2 -mfpmath=sse"
#endif
#undef MOEK_EVAL_

/* nvcc has no macro for --use_fast_math, --ftz=true or --prec-div=false; its compiler only knows when it removes dead
 * code.  What is left then is a call of a function whose name is the sentence. */
#if defined(__NVCC__) && defined(__CUDA_ARCH__)
extern "C" __device__ int __nvvm_reflect(const char *what);
extern "C" __device__ void moek_is_not_for_use_fast_math_nor_ftz_nor_prec_div_false_(void);
#define MOEK_STRICT_() \
    do { \
        if (__nvvm_reflect("__CUDA_FTZ") || !__nvvm_reflect("__CUDA_PREC_DIV")) \
            moek_is_not_for_use_fast_math_nor_ftz_nor_prec_div_false_(); \
    } while (0)
#else
#define MOEK_STRICT_() do { } while (0)
#endif
#endif
