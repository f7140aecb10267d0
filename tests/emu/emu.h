/* emu.h -- runs the CUDA rows on a CPU, a fibre a thread, so that CI tests them without a GPU.  C++17, one host thread.
 *
 *     #define MOEK_EMU
 *     #include "emu.h"            before moek.h or a generated kernel
 *
 * The blocks of a grid are all there at once if they are no more than EMU_RESIDENT, else they run one after another.
 * Threads run until they wait: at __syncthreads, or in a warp for the lanes of a mask; the last lane that comes does
 * the work of all.  It stops with a sentence (and abort) where a GPU would hang or give any result: a barrier that some
 * threads never reach, lanes that meet at different words or lines, a shuffle from a lane that is not there, writes
 * behind dynamic shared memory, a stack that overflows.  Shared memory starts as 0x7f bytes in each block.  cp.async
 * delivers at the wait for it, no sooner: until then its target reads 0x7f.  Of Hopper: emu_sm90.h; of sm_120:
 * emu_sm120.h.
 * With -Wall, add -Wno-unknown-pragmas for #pragma unroll.
 * moek_emu_backwards = 1 runs blocks, warps and lanes in falling order: results that change show a race.
 * moek_emu_hold = "name" keeps kernels with that in their name waiting, until moek_emu_let_go() runs them in order: as
 * on a stream of their own, for kernels that wait for others still to be launched. */
#ifndef EMU_H
#define EMU_H
#if !defined(MOEK_EMU) || !defined(__cplusplus)
#error "emu.h: compile as C++ with -DMOEK_EMU"
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

/* ---- The compiler's words. ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/* A section: so that it can be filled.  EMU_UNIT names the object: a block that runs in the place of another one takes
 * what the kernels of its own object have, and most have none. */
#ifndef EMU_UNIT
#define EMU_UNIT program
#endif
#define EMU_TEXT_(name) #name
#define EMU_TEXT(name) EMU_TEXT_(name)
#define __shared__ static __attribute__((section("moek_emu_" EMU_TEXT(EMU_UNIT))))
#define MOEK_DEVICE static __attribute__((unused)) inline
#define EMU_FN static __attribute__((unused)) inline
#define EMU_STATE inline                              /* one of the program, however many objects have kernels */

/* Ranks are processes, more of them than cores: one that waits sleeps.  (sched_yield takes a whole core.) */
EMU_FN uint64_t emu_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
#define MOEK_EP_MS() emu_ms()
#define MOEK_EP_PAUSE() ((void)usleep(200))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
EMU_STATE dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize __attribute__((unused)) = 32;

struct __align__(8) int2 { int x, y; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) float4 { float x, y, z, w; };
EMU_FN int2 make_int2(int x, int y) { int2 v = { x, y }; return v; }
EMU_FN uint2 make_uint2(unsigned x, unsigned y) { uint2 v = { x, y }; return v; }
EMU_FN float2 make_float2(float x, float y) { float2 v = { x, y }; return v; }
EMU_FN int4 make_int4(int x, int y, int z, int w) { int4 v = { x, y, z, w }; return v; }
EMU_FN uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { uint4 v = { x, y, z, w }; return v; }
EMU_FN float4 make_float4(float x, float y, float z, float w) { float4 v = { x, y, z, w }; return v; }

EMU_FN float __fdiv_rn(float a, float b) { return a / b; }
EMU_FN float __fdividef(float a, float b) { return a / b; }
EMU_FN float __frcp_rn(float a) { return 1.0f / a; }
EMU_FN float __fmul_rn(float a, float b) { return a * b; }
EMU_FN float __fadd_rn(float a, float b) { return a + b; }
/* A GPU passes every NaN over; libm's give NaN for a signaling one. */
EMU_FN float emu_fmaxf(float a, float b) { return a != a || a < b ? b : a; }
EMU_FN float emu_fminf(float a, float b) { return a != a || a > b ? b : a; }
#define fmaxf emu_fmaxf
#define fminf emu_fminf
#define __expf expf                                   /* a function of that name is libm's own */
EMU_FN float rsqrtf(float a) { return 1.0f / sqrtf(a); }
EMU_FN unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
EMU_FN float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
EMU_FN int __float_as_int(float f) { return (int)__float_as_uint(f); }
EMU_FN float __int_as_float(int i) { return __uint_as_float((unsigned)i); }
EMU_FN int __popc(unsigned u) { return __builtin_popcount(u); }
EMU_FN int __clz(int i) { return i ? __builtin_clz((unsigned)i) : 32; }
EMU_FN int __ffs(int i) { return __builtin_ffs(i); }
EMU_FN unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(bytes >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
template <class T> EMU_FN T __ldg(const T *p) { return *p; }
template <class T> EMU_FN T __ldcg(const T *p) { return *p; }
template <class T> EMU_FN void __stcg(T *p, T v) { *p = v; }
EMU_FN int min(int a, int b) { return a < b ? a : b; }
EMU_FN int max(int a, int b) { return a > b ? a : b; }
EMU_FN void __threadfence() {}
EMU_FN void __threadfence_block() {}

/* Threads only change at waits, so atomics are plain. */
template <class T> EMU_FN T emu_swap_(T *p, T v) { const T old = *p; *p = v; return old; }
template <class T, class V> EMU_FN T atomicAdd(T *p, V v) { return emu_swap_(p, (T)(*p + (T)v)); }
template <class T, class V> EMU_FN T atomicMax(T *p, V v) { return emu_swap_(p, *p < (T)v ? (T)v : *p); }
template <class T, class V> EMU_FN T atomicMin(T *p, V v) { return emu_swap_(p, (T)v < *p ? (T)v : *p); }
template <class T, class V> EMU_FN T atomicOr(T *p, V v) { return emu_swap_(p, (T)(*p | (T)v)); }
template <class T, class V> EMU_FN T atomicExch(T *p, V v) { return emu_swap_(p, (T)v); }
template <class T, class V> EMU_FN T atomicCAS(T *p, V is, V v) { return emu_swap_(p, *p == (T)is ? (T)v : *p); }

#include "emu_strict.h"
#include "emu_fibres.h"

/* ---- Barriers and meetings of lanes. ---- */

EMU_FN void emu_syncthreads(int line)
{
    emu_residents[emu_here].at_block++;
    emu_fibres[emu_now].state = EMU_AT_BLOCK;
    emu_fibres[emu_now].line = line;
    emu_yield();
}
#define __syncthreads() emu_syncthreads(__LINE__)

EMU_FN int emu_syncthreads_or(int p, int line)
{
    int *const of_all = &emu_residents[emu_here].any, any;
    if (p) *of_all = 1;
    emu_syncthreads(line);
    any = *of_all;
    emu_syncthreads(line);                             /* all have read it */
    *of_all = 0;
    emu_syncthreads(line);
    return any;
}
#define __syncthreads_or(p) emu_syncthreads_or((p) != 0, __LINE__)

EMU_FN const float *emu_all_fp16()                     /* of each code */
{
    static std::vector<float> fp16;
    for (int i = (int)fp16.size(); i < 65536; i++) {
        const int exponent = i >> 10 & 31, fraction = i & 1023;
        const double v = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);
        fp16.push_back((float)(i & 0x8000 ? -v : v));
    }
    return &fp16[0];
}
/* fp16: emu_all_fp16, or NULL of bf16. */
EMU_FN float emu_half(const float *fp16, uint16_t bits)
{
    return fp16 ? fp16[bits] : __uint_as_float((unsigned)bits << 16);
}
typedef float emu_4 __attribute__((vector_size(16), may_alias));
typedef int32_t emu_4_integers __attribute__((vector_size(16), may_alias));
/* m16n8k16.  Lane 4 g + t: a[i] is row g (+8: i odd), columns 2t, 2t+1 (+8: i >= 2); b[i] is rows 2t, 2t+1 (+8: i = 1)
 * of column g; d[i] is row g (+8: i >= 2), column 2t (+1: i odd). */
EMU_FN void emu_mma(int word, const emu_fibre *warp)
{
    const float *const fp16 = word == EMU_MMA_FP16 ? emu_all_fp16() : NULL;
    float a[16][16];
    __attribute__((aligned(16))) float b[16][8];
    int lane, i, row, k;
    for (lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (i = 0; i < 4; i++) {
            const uint32_t two = warp[lane].a[i];
            float *const to = &a[g + 8 * (i % 2)][2 * t + 8 * (i / 2)];
            to[0] = emu_half(fp16, (uint16_t)two), to[1] = emu_half(fp16, (uint16_t)(two >> 16));
        }
        for (i = 0; i < 2; i++) {
            const uint32_t two = warp[lane].b[i];
            b[2 * t + 8 * i][g] = emu_half(fp16, (uint16_t)two);
            b[2 * t + 8 * i + 1][g] = emu_half(fp16, (uint16_t)(two >> 16));
        }
    }
    for (row = 0; row < 16; row++) {                   /* of its columns, four at a time */
        emu_4 low = {0}, high = {0};
        for (k = 0; k < 16; k++) {
            low += *(const emu_4 *)&b[k][0] * a[row][k];
            high += *(const emu_4 *)&b[k][4] * a[row][k];
        }
        for (i = 0; i < 8; i++)
            ((float *)warp[row % 8 * 4 + i / 2].d)[row / 8 * 2 + i % 2] += i < 4 ? low[i] : high[i - 4];
    }
}
/* m16n8k32 of s8: the same, with four columns in the place of two. */
EMU_FN void emu_mma_s8(const emu_fibre *warp)
{
    int8_t a[16][32];
    __attribute__((aligned(16))) int32_t b[32][8];
    int lane, i, byte, row, k;
    for (lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (i = 0; i < 4; i++) for (byte = 0; byte < 4; byte++) {
            a[g + 8 * (i % 2)][4 * t + byte + 16 * (i / 2)] = (int8_t)(warp[lane].a[i] >> 8 * byte);
            if (i < 2) b[4 * t + byte + 16 * i][g] = (int8_t)(warp[lane].b[i] >> 8 * byte);
        }
    }
    for (row = 0; row < 16; row++) {                   /* of its columns, four at a time */
        emu_4_integers low = {0}, high = {0};
        for (k = 0; k < 32; k++) {
            low += *(const emu_4_integers *)&b[k][0] * a[row][k];
            high += *(const emu_4_integers *)&b[k][4] * a[row][k];
        }
        for (i = 0; i < 8; i++) {
            int32_t *const d = (int32_t *)warp[row % 8 * 4 + i / 2].d + row / 8 * 2 + i % 2;
            *d = (int32_t)((uint32_t)*d + (uint32_t)(i < 4 ? low[i] : high[i - 4]));
        }
    }
}
EMU_FN const float *emu_all_e4m3()                     /* of each code */
{
    static std::vector<float> e4m3;
    for (int i = (int)e4m3.size(); i < 256; i++) {
        const int e = i >> 3 & 15, m = i & 7;
        const double v = (i & 127) == 127 ? NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        e4m3.push_back((float)(i & 128 ? -v : v));
    }
    return &e4m3[0];
}
/* What a tensor core of sm_89 or sm_120 makes of a sum and `n` products: each is cut, towards zero, to a multiple of
 * 2^-EMU_NARROW_BITS of the power of two in the largest, and these are added exactly.  (What is known of it: docs of
 * DeepGEMM and SageAttention2 for wgmma and for Ada; 13 bits.) */
enum { EMU_NARROW_BITS = 13 };
#ifdef EMU_NARROW
static const int emu_is_narrow __attribute__((unused)) = (emu_narrow = 1);
#endif
EMU_FN float emu_narrow_sum(const double *terms, int n)
{
    double most = 0, sum = 0;
    int i, exponent;
    for (i = 0; i < n; i++) {
        if (!(fabs(terms[i]) <= 1e300)) { for (sum = 0, i = 0; i < n; i++) sum += terms[i]; return (float)sum; }
        if (fabs(terms[i]) > most) most = fabs(terms[i]);
    }
    frexp(most, &exponent);                            /* most < 2^exponent */
    for (i = 0; i < n; i++) sum += trunc(ldexp(terms[i], EMU_NARROW_BITS + 1 - exponent));
    return (float)ldexp(sum, exponent - EMU_NARROW_BITS - 1);
}
/* The same of e4m3, with f32 sums: exact and rounded once, or emu_narrow. */
EMU_FN void emu_mma_e4m3(const emu_fibre *warp)
{
    const float *const e4m3 = emu_all_e4m3();
    double a[16][32], b[32][8], terms[33];
    int lane, i, byte, k;
    for (lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (i = 0; i < 4; i++) for (byte = 0; byte < 4; byte++) {
            a[g + 8 * (i % 2)][4 * t + byte + 16 * (i / 2)] = e4m3[warp[lane].a[i] >> 8 * byte & 255];
            if (i < 2) b[4 * t + byte + 16 * i][g] = e4m3[warp[lane].b[i] >> 8 * byte & 255];
        }
    }
    for (lane = 0; lane < 32; lane++) {
        for (i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
            float *const d = (float *)warp[lane].d + i;
            double sum = terms[32] = *d;
            for (k = 0; k < 32; k++) sum += terms[k] = a[row][k] * b[k][column];
            *d = emu_narrow ? emu_narrow_sum(terms, 33) : (float)sum;
        }
    }
}
EMU_FN uint32_t emu_reduce_two(int word, uint32_t x, uint32_t y)
{
    switch (word) {
    case EMU_REDUCE_ADD:  return x + y;
    case EMU_REDUCE_MIN:  return (int32_t)x < (int32_t)y ? x : y;
    case EMU_REDUCE_MAX:  return (int32_t)x > (int32_t)y ? x : y;
    case EMU_REDUCE_UMIN: return x < y ? x : y;
    case EMU_REDUCE_UMAX: return x > y ? x : y;
    case EMU_REDUCE_AND:  return x & y;
    case EMU_REDUCE_OR:   return x | y;
    default:              return x ^ y;
    }
}
EMU_FN void emu_wgmma_work(emu_fibre *warp);           /* emu_sm90.h */
EMU_FN void emu_mma_scaled_work(const emu_fibre *warp); /* emu_sm120.h */
/* All lanes of the mask are there: each gets its value. */
EMU_FN void emu_mma_work(int word, uint32_t mask, emu_fibre *warp)
{
    if (mask != 0xffffffff) emu_die("mma needs all 32 lanes");
    if (word == EMU_WGMMA) emu_wgmma_work(warp);
    else if (word == EMU_MMA_S8) emu_mma_s8(warp);
    else if (word == EMU_MMA_E4M3) emu_mma_e4m3(warp);
    else if (word == EMU_MMA_SCALED) emu_mma_scaled_work(warp);
    else emu_mma(word, warp);
}
EMU_FN void emu_work(int word, uint32_t mask, emu_fibre *warp)
{
    uint64_t in[32];
    uint32_t total = 0;
    int lane, other, first = 1;
    if (word == EMU_SYNCWARP) return;
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        in[lane] = warp[lane].value;
        total = word == EMU_BALLOT ? total | (uint32_t)(in[lane] != 0) << lane
              : first ? (uint32_t)in[lane] : emu_reduce_two(word, total, (uint32_t)in[lane]);
        first = 0;
    }
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        if (word == EMU_SHFL) {
            if (!(mask >> warp[lane].from & 1)) emu_die("a shuffle reads a lane that is not in the mask");
            warp[lane].value = in[warp[lane].from];
        } else if (word == EMU_MATCH) {
            for (warp[lane].value = 0, other = 0; other < 32; other++)
                if (mask >> other & 1 && in[other] == in[lane]) warp[lane].value |= 1u << other;
        } else {
            warp[lane].value = total;
        }
    }
}
EMU_FN int emu_all_look(const emu_fibre *me, emu_fibre *warp, uint32_t mask)   /* 1: all lanes of the mask are there */
{
    int lane;
    for (lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        if (warp[lane].state != EMU_AT_WARP || warp[lane].mask != me->mask) return 0;
        if (warp[lane].word != me->word || warp[lane].line != me->line) emu_die("lanes meet at different words");
    }
    return 1;
}
EMU_FN void emu_meet(int word, uint32_t mask, int line)
{
    emu_fibre *const me = &emu_fibres[emu_now], *const warp = &emu_fibres[emu_now / 32 * 32];
    emu_meeting *const m = &emu_residents[emu_here].meetings[emu_now / 32];
    const int lanes = emu_count - emu_now / 32 * 32;
    int lane;
    me->state = EMU_AT_WARP, me->word = word, me->mask = mask, me->line = line;
    if (!(mask >> emu_now % 32 & 1)) emu_die("its own lane is not in the mask");
    if (lanes < 32) mask &= (1u << lanes) - 1;        /* a warp that is not full: its other lanes never were */
    if (mask & m->done) emu_die("the mask names a lane that has finished");
    if (m->came ? m->mask == mask : !m->others) {
        if (!m->came) m->mask = mask, m->word = word, m->line = line;
        if (m->word != word || m->line != line) emu_die("lanes meet at different words");
        m->came |= 1u << emu_now % 32;
        if (m->came != mask) { emu_yield(); return; }
        m->came = 0;
    } else {
        m->others++;
        if (!emu_all_look(me, warp, mask)) { emu_yield(); return; }
        m->others -= __popc(mask);
    }
    if (word >= EMU_MMA_BF16) emu_mma_work(word, mask, warp);
    else emu_work(word, mask, warp);
    for (lane = 0; lane < 32; lane++) if (mask >> lane & 1) warp[lane].state = EMU_RUNS;
}
EMU_FN uint64_t emu_share(int word, uint32_t mask, uint64_t value, int from, int line)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    me->value = value, me->from = from;
    emu_meet(word, mask, line);
    return me->value;
}
template <class T> EMU_FN T emu_shuffle(uint32_t mask, T v, int from, int width, int line)
{
    uint64_t bits = 0;
    const int lane = emu_now % 32, first = lane / width * width;
    memcpy(&bits, &v, sizeof v);
    bits = emu_share(EMU_SHFL, mask, bits, from < first || from >= first + width ? lane : from, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
/* The forms of a shuffle with and without a width. */
template <class T> EMU_FN T emu_shfl(int line, uint32_t mask, T v, int from, int width = 32)
{
    return emu_shuffle(mask, v, emu_now % 32 / width * width + from % width, width, line);
}
template <class T> EMU_FN T emu_shfl_xor(int line, uint32_t mask, T v, int by, int width = 32)
{
    return emu_shuffle(mask, v, emu_now % 32 ^ by, width, line);
}
template <class T> EMU_FN T emu_shfl_up(int line, uint32_t mask, T v, int by, int width = 32)
{
    return emu_shuffle(mask, v, emu_now % 32 - by, width, line);
}
template <class T> EMU_FN T emu_shfl_down(int line, uint32_t mask, T v, int by, int width = 32)
{
    return emu_shuffle(mask, v, emu_now % 32 + by, width, line);
}
#define __shfl_sync(...) emu_shfl(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emu_shfl_xor(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emu_shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emu_shfl_down(__LINE__, __VA_ARGS__)

EMU_FN uint32_t emu_mask(uint32_t mask = 0xffffffff) { return mask; }
#define __syncwarp(...) emu_meet(EMU_SYNCWARP, emu_mask(__VA_ARGS__), __LINE__)
EMU_FN uint32_t emu_share32(int word, uint32_t mask, uint64_t v, int line)
{
    return (uint32_t)emu_share(word, mask, v, -1, line);
}
#define __ballot_sync(mask, p) emu_share32(EMU_BALLOT, (mask), (p) != 0, __LINE__)
#define __any_sync(mask, p) (__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) (__ballot_sync(mask, !(p)) == 0)
#define __match_any_sync(mask, v) emu_share32(EMU_MATCH, (mask), (uint64_t)(v), __LINE__)

template <class T> EMU_FN T emu_reduce(int word, int unsigned_word, uint32_t mask, T v, int line)
{
    static_assert(sizeof(T) == 4, "redux takes 32 bits");
    return (T)emu_share((T)-1 > (T)0 ? unsigned_word : word, mask, (uint32_t)v, -1, line);
}
#define __reduce_add_sync(mask, v) emu_reduce(EMU_REDUCE_ADD, EMU_REDUCE_ADD, (mask), (v), __LINE__)
#define __reduce_min_sync(mask, v) emu_reduce(EMU_REDUCE_MIN, EMU_REDUCE_UMIN, (mask), (v), __LINE__)
#define __reduce_max_sync(mask, v) emu_reduce(EMU_REDUCE_MAX, EMU_REDUCE_UMAX, (mask), (v), __LINE__)
#define __reduce_and_sync(mask, v) emu_reduce(EMU_REDUCE_AND, EMU_REDUCE_AND, (mask), (v), __LINE__)
#define __reduce_or_sync(mask, v) emu_reduce(EMU_REDUCE_OR, EMU_REDUCE_OR, (mask), (v), __LINE__)
#define __reduce_xor_sync(mask, v) emu_reduce(EMU_REDUCE_XOR, EMU_REDUCE_XOR, (mask), (v), __LINE__)

/* ---- Stand-ins for the PTX of moek/kernel/ptx.h that moves data or needs a warp. ---- */

EMU_FN void emu_mma_meet(int word, void *d, const uint32_t a[4], const uint32_t b[2])
{
    emu_fibre *const me = &emu_fibres[emu_now];
    me->d = d, me->a = a, me->b = b;
    emu_meet(word, 0xffffffff, word);
}
EMU_FN void moek_mma_bf16_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_meet(EMU_MMA_BF16, d, a, b);
}
EMU_FN void moek_mma_fp16_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_meet(EMU_MMA_FP16, d, a, b);
}
EMU_FN void moek_mma_s8_(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_meet(EMU_MMA_S8, d, a, b);
}
EMU_FN void moek_mma_e4m3_(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_meet(EMU_MMA_E4M3, d, a, b);
}
EMU_FN void moek_mma_e4m3_k16_(float d[4], const uint32_t a[2], uint32_t b)     /* the first 16 of 32 columns */
{
    const uint32_t wide_a[4] = { a[0], a[1], 0, 0 }, wide_b[2] = { b, 0 };
    emu_mma_meet(EMU_MMA_E4M3, d, wide_a, wide_b);
}

EMU_FN void emu_cp_async(void *shared, const void *global, int bytes, int size)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    const emu_copy c = { shared, global, bytes, size, me->groups };
    if ((uintptr_t)shared % (unsigned)size || (bytes && (uintptr_t)global % (unsigned)size))
        emu_die("cp.async: not aligned");
    if (me->copies_count == me->copies_room) {
        me->copies_room = me->copies_room ? 2 * me->copies_room : 64;
        me->copies = (emu_copy *)realloc(me->copies, (size_t)me->copies_room * sizeof *me->copies);
        if (!me->copies) abort();
    }
    me->copies[me->copies_count++] = c;
    memset(shared, EMU_POISON, (size_t)size);
}
EMU_FN void emu_land(const emu_copy *c)
{
    memset(c->to, 0, (size_t)c->size);
    if (c->bytes) memcpy(c->to, c->from, (size_t)c->bytes);
}
EMU_FN void emu_land_counted(int thread, int until);   /* emu_sm90.h */
EMU_FN void emu_cp_async_wait(int n)
{
    emu_fibre *const me = &emu_fibres[emu_now];
    int i, left = 0;
    emu_land_counted(emu_now, me->groups - n);
    for (i = 0; i < me->copies_count; i++) {
        const emu_copy c = me->copies[i];
        if (c.group >= me->groups - n) me->copies[left++] = c;
        else emu_land(&c);
    }
    me->copies_count = left;
}
EMU_FN void moek_cp_async16_(void *shared, const void *global, int bytes) { emu_cp_async(shared, global, bytes, 16); }
EMU_FN void moek_cp_async4_(void *shared, const void *global) { emu_cp_async(shared, global, 4, 4); }
EMU_FN void moek_cp_async8_(void *shared, const void *global) { emu_cp_async(shared, global, 8, 8); }
EMU_FN void moek_cp_async4_of_(void *shared, const void *global, int bytes) { emu_cp_async(shared, global, bytes, 4); }
EMU_FN void moek_cp_async_commit_(void) { emu_fibres[emu_now].groups++; }
#define moek_cp_async_wait_(n) emu_cp_async_wait(n)
EMU_FN void emu_let_others(int state)                  /* until every warp has had its turn */
{
    emu_residents[emu_here].yielded++;
    emu_fibres[emu_now].state = state;
    emu_yield();
}
EMU_FN void moek_pause_(unsigned) { emu_let_others(EMU_PAUSES); }

#ifndef MOEK_EMU_ARCH
#define MOEK_EMU_ARCH 80                              /* the GPU that is emulated */
#endif

#include "emu_sm90.h"
#include "emu_sm120.h"
#endif
