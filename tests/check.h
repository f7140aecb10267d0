/* check.h -- counters, CHECK, the last line of a test program, and a small random number generator. */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

enum { CHECK_SHOWN = 40 };                             /* failures that are printed; all are counted */
static int check_passed, check_failed, check_skipped;

static inline int check_(int ok, const char *file, int line, const char *text, const char *format, ...)
{
    va_list list;
    if (ok) return ++check_passed, 1;
    if (++check_failed > CHECK_SHOWN) return 0;
    printf("%s:%d: failed: %s: ", file, line, text);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    return 0;
}
/* CHECK(condition, "what it was about %d", number); one count each; its value is the condition. */
#define CHECK(condition, ...) check_((condition) != 0, __FILE__, __LINE__, #condition, __VA_ARGS__)

static inline int check_end(void)
{
    printf("%d passed, %d failed, %d skipped\n", check_passed, check_failed, check_skipped);
    return check_failed != 0;
}

/* xorshift64*: the same numbers on every machine. */
static uint64_t rng_state = 88172645463325252u;
static inline void rng_seed(uint64_t seed) { rng_state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u; }
static inline uint32_t rng_u32(void)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return (uint32_t)((rng_state * 2685821657736338717u) >> 32);
}
static inline int rng_below(int n) { return (int)(((uint64_t)rng_u32() * (uint32_t)n) >> 32); }
static inline float rng_uniform(void) { return (float)(rng_u32() >> 8) * (1.0f / 16777216.0f); }       /* [0, 1) */
static inline float rng_normal(void)                   /* near enough: 4 uniforms, variance 1 */
{
    const float sum = rng_uniform() + rng_uniform() + rng_uniform() + rng_uniform();
    return (sum - 2.0f) * 1.7320508f;
}
#endif
