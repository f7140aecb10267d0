/* clock.h -- seconds on a clock that is never set back, or another.  (_POSIX_C_SOURCE is 199309L or later.) */
#ifndef CLOCK_H
#define CLOCK_H
#include <time.h>

static double seconds_on(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double seconds(void) { return seconds_on(CLOCK_MONOTONIC); }
#endif
