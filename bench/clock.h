/* clock.h -- seconds on a clock that is never set back.  (_POSIX_C_SOURCE is 199309L or later.) */
#ifndef CLOCK_H
#define CLOCK_H
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
