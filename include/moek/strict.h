/* moek/strict.h -- refuses compilers that were told to bend arithmetic; included wherever code of the library is made.
 *
 * NaN and Inf must be seen, sums be added in the order written, and quotients be rounded once: "the same bits in every
 * run", the bits of fp8 codes, and "a NaN in a token's input reaches only that token's output" all lean on it.  Files
 * that only call moek.h may be compiled in any way. */
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
