/* moek/kernel/isa.h -- instruction sets of CPUs: which of them this compiler can make, and which of them this
 * processor has.  A set is an arch of the table (moek_enums.h) below 80; MOEK_ARCH_CPU is plain C.
 *
 * Functions of a set have an attribute (MOEK_AVX2_FN, ..), so that one object, compiled for any processor of the
 * family, holds all sets.  What such a function calls and is to be inlined has the same attribute.  The loop of OpenMP
 * stands in a function without one: some compilers move its body to a function that would lose the attribute.
 *
 * MOEK_LINE_ALIGNED_: what vectors of 64 bytes are loaded from; across lines of a cache they take twice as long.     */
#ifndef MOEK_ISA_H
#define MOEK_ISA_H
#include "linkage.h"

/* What loops call becomes a part of them, by constants that an optimizer folds.  Without an optimizer each loop would
 * get the code of all kinds of loops: 5.5 MB of fp8b128. */
#if defined(__OPTIMIZE__)
#define MOEK_INTO_LOOPS_ __attribute__((always_inline)) __inline
#else
#define MOEK_INTO_LOOPS_
#endif
/* Compilers with these attributes and intrinsics; others make plain C. */
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 8 : defined(__GNUC__) && __GNUC__ >= 9)
#define MOEK_HAVE_X86_ 1
#include <cpuid.h>
#if defined(__GNUC__) && !defined(__clang__)            /* g++ takes its own _mm512_undefined_* for a mistake */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#define MOEK_TARGET_(name, set) static MOEK_UNUSED __attribute__((target(set)))
#define MOEK_AVX2_FN MOEK_TARGET_(avx2, "avx2,fma,f16c")
#define MOEK_AVX2_INLINE MOEK_AVX2_FN MOEK_INTO_LOOPS_
#define MOEK_AVX512_FN MOEK_TARGET_(avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define MOEK_AVX512_INLINE MOEK_AVX512_FN MOEK_INTO_LOOPS_
#define MOEK_LINE_ALIGNED_ __attribute__((aligned(64)))
#else
#define MOEK_HAVE_X86_ 0
#define MOEK_LINE_ALIGNED_
#endif
/* Tiles want the permission of the operating system: Linux is asked. */
#if MOEK_HAVE_X86_ && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define MOEK_HAVE_AMX_ 1
#define MOEK_AMX_FN MOEK_TARGET_(amx, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#define MOEK_AMX_INLINE MOEK_AMX_FN MOEK_INTO_LOOPS_
#else
#define MOEK_HAVE_AMX_ 0
#endif
/* Clang before 16, and Apple's, know no such attributes on Arm: all of the file is compiled for the set, or none. */
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__AARCH64EB__) && !defined(__CUDACC__)
#if !defined(__clang__) || (__clang_major__ >= 16 && !defined(__apple_build_version__))
#define MOEK_HAVE_NEON_ 1
#define MOEK_NEON_TARGET_ __attribute__((target("arch=armv8.2-a+dotprod")))
#elif defined(__ARM_FEATURE_DOTPROD)
#define MOEK_HAVE_NEON_ 1
#define MOEK_NEON_TARGET_
#endif
#endif
#if defined(MOEK_HAVE_NEON_)
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#define MOEK_NEON_FN static MOEK_UNUSED MOEK_NEON_TARGET_
#define MOEK_NEON_INLINE MOEK_NEON_FN MOEK_INTO_LOOPS_
#else
#define MOEK_HAVE_NEON_ 0
#endif
#if !MOEK_HAVE_NEON_
#define MOEK_HAVE_I8MM_ 0
#elif defined(__ARM_FEATURE_MATMUL_INT8)                /* all of the file is compiled for it */
#define MOEK_HAVE_I8MM_ 1
#define MOEK_I8MM_FN MOEK_NEON_FN
#elif defined(__clang__) ? __clang_major__ >= 16 && !defined(__apple_build_version__) : __GNUC__ >= 10
#define MOEK_HAVE_I8MM_ 1
#define MOEK_I8MM_FN static MOEK_UNUSED __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#else
#define MOEK_HAVE_I8MM_ 0
#endif
#define MOEK_I8MM_INLINE MOEK_I8MM_FN MOEK_INTO_LOOPS_

/* Is there code for an arch below 80?  (For #if, and so by numbers.) */
#define MOEK_HAVE_SET_(arch) \
    ((arch) == 0 || (((arch) == 2 || (arch) == 5) && MOEK_HAVE_X86_) || ((arch) == 6 && MOEK_HAVE_AMX_) || \
     ((arch) == 12 && MOEK_HAVE_NEON_) || ((arch) == 13 && MOEK_HAVE_I8MM_))

/* Are rows of `below` taken, too, where rows of `arch` are?  (Both below 80.) */
#define MOEK_SET_BELOW_(below, arch) \
    ((below) == (arch) || (below) == 0 || ((below) == 2 && ((arch) == 5 || (arch) == 6)) || \
     ((below) == 5 && (arch) == 6) || ((below) == 12 && (arch) == 13))

/* Plain C that is compiled for AVX-512 reads weights as fast as rows of the set; s8 beside T faster (docs/notes). */
#ifdef __AVX512F__
#define MOEK_PLAIN_IS_WIDE_ 1
#else
#define MOEK_PLAIN_IS_WIDE_ 0
#endif

#define MOEK_NO_SET_ "this compiler, or this processor's family, has no such instructions"

/* What this processor, or its operating system, lacks of a set that is compiled; NULL: nothing. */
#if MOEK_HAVE_X86_
/* Linux keeps room for tiles only for processes that have asked; once granted, that holds for all of the process.  (A
 * thread with a small signal stack makes Linux refuse.) */
static MOEK_UNUSED int moek_tiles_refused_(void)
{
#if MOEK_HAVE_AMX_
    long status;
    __asm__ volatile ("syscall" : "=a"(status) : "0"(158L /* arch_prctl */), "D"(0x1023L /* ARCH_REQ_XCOMP_PERM */),
                      "S"(18L /* tiles */) : "rcx", "r11", "memory");
    return status != 0;
#else
    return 1;
#endif
}
static MOEK_UNUSED const char *moek_lacks_(int arch)
{
    enum { EBX, ECX, EDX };
    static const struct { int leaf, in, bit, arch; const char *text; } wanted[] = {
        { 1, ECX, 12, 2, "this processor has no fma" }, { 1, ECX, 29, 2, "this processor has no f16c" },
        { 7, EBX, 5, 2, "this processor has no avx2" }, { 7, EBX, 16, 5, "this processor has no avx512f" },
        { 7, EBX, 17, 5, "this processor has no avx512dq" }, { 7, EBX, 30, 5, "this processor has no avx512bw" },
        { 7, EBX, 31, 5, "this processor has no avx512vl" }, { 7, ECX, 11, 5, "this processor has no avx512_vnni" },
        { 7, EDX, 24, 6, "this processor has no amx_tile" }, { 7, EDX, 25, 6, "this processor has no amx_int8" }
    };
    unsigned a, b, c, d, saved, i;
    if (!arch) return NULL;
#ifdef MOEK_EMU_AMX                                    /* tests/emu/emu_amx.h */
    if (arch == 6) arch = 5;
#endif
    if (!MOEK_HAVE_SET_(arch)) return MOEK_NO_SET_;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return "this processor has no avx";
    for (i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (wanted[i].arch > arch) continue;
        a = b = c = d = 0;
        if (wanted[i].leaf == 7 ? !__get_cpuid_count(7, 0, &a, &b, &c, &d) : !__get_cpuid(1, &a, &b, &c, &d))
            return wanted[i].text;
        if (!((wanted[i].in == EBX ? b : wanted[i].in == ECX ? c : d) >> wanted[i].bit & 1)) return wanted[i].text;
    }
    __asm__ volatile ("xgetbv" : "=a"(saved) : "c"(0) : "edx");
    if ((saved & 6) != 6) return "this operating system does not save registers of 256 bits";
    if (arch >= 5 && (saved & 0xe6) != 0xe6) return "this operating system does not save registers of 512 bits";
    if (arch >= 6 && (saved >> 17 & 3) != 3) return "this operating system does not save tiles";
    if (arch >= 6 && moek_tiles_refused_()) return "this operating system does not let this process use tiles";
    return NULL;
}
#elif MOEK_HAVE_NEON_
static MOEK_UNUSED const char *moek_lacks_(int arch)
{
    if (!MOEK_HAVE_SET_(arch)) return MOEK_NO_SET_;
#if defined(__linux__)
    if (arch && !(getauxval(16 /* AT_HWCAP */) >> 20 & 1 /* HWCAP_ASIMDDP */)) return "this processor has no dotprod";
    if (arch == 13 && !(getauxval(26 /* AT_HWCAP2 */) >> 13 & 1 /* HWCAP2_I8MM */)) return "this processor has no i8mm";
#elif !defined(__APPLE__)
    if (arch) return "this operating system is not asked for dotprod";
#elif !defined(__ARM_FEATURE_MATMUL_INT8)
    if (arch == 13) return "this operating system is not asked for i8mm: compile the file for it";
#endif
    (void)arch;
    return NULL;
}
#else
static MOEK_UNUSED const char *moek_lacks_(int arch) { return arch ? MOEK_NO_SET_ : NULL; }
#endif
#endif
