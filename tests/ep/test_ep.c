/* test_ep.c -- layers on 1 to 8 ranks, threads or processes, on the CPU rows: against the same layer on one rank (the
 * same bits, with MOEK_EP_EXACT) and against the double reference; and what happens when ranks disagree, stop, or send
 * too much.
 *
 *   cc -std=c99 -O2 -Iinclude tests/ep/test_ep.c -pthread -lm -o ep && ./ep [sample] [quick]
 *
 * With MOEK_SPLIT the implementation is linked from elsewhere.  sample: fewer cases and no processes, for a build under
 * a sanitizer (ThreadSanitizer does not like fork); quick: fewer again, for the quick set.
 * A rank of a test is a thread that lives for one call of each_rank.  Windows, workspaces and y lie between guards. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE                                /* MAP_ANONYMOUS */
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek_ep.h"
#include "../layer/layer.h"
#include "../../bench/clock.h"
#include "../pool.h"
#include "ep_fields.h"
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { RANKS = 8, EXPERTS = 11, TOPK = 3, MOST = 6, HIDDEN = 128, INTER = 48, GUARD = 256 };
enum { SOON = 700 };                                   /* ms: a rank that does not answer by then is dead */

static int sample, quick, fewer;                       /* as main was told; either: fewer */

#include "cpu_group.h"
#include "cpu_scenes.h"
#include "cpu_refused.h"

/* ---- all --------------------------------------------------------------------------------------------------------- */

static void run(const char *name, void (*test)(void))
{
    const int failed = check_failed;
    const double start = seconds();
    rng_seed(1);
    worst = 0;
    test();
    printf("%-18s worst %.3f of the tolerance, %.1f s  %s\n", name, worst, seconds() - start,
           check_failed == failed ? "ok" : "FAILED");
    fflush(stdout);
}
#define RUN(test) run(#test, test)
int main(int argc, char **argv)
{
    for (; argc > 1; argc--) {
        sample |= !strcmp(argv[argc - 1], "sample");
        quick |= !strcmp(argv[argc - 1], "quick");
    }
    fewer = sample || quick;
    RUN(test_selection);
    RUN(test_all);
    RUN(test_two_formats);
    RUN(test_ranks);
    RUN(test_chunks);
    RUN(test_shared_slots);
    RUN(test_odd_sizes);
    RUN(test_nonfinite);
    RUN(test_slots_without);
    RUN(test_bounds);
    RUN(test_two_in_flight);
    RUN(test_one_thread);
    RUN(test_soak);
    RUN(test_capacity);
    RUN(test_dead_rank);
    if (!sample) RUN(test_processes);
    RUN(test_absent);
    RUN(test_plan_fields);
    RUN(test_same);
    RUN(test_extremes);
    RUN(test_refused);
    RUN(test_refused_first);
    RUN(test_packed_scales);
    RUN(test_wire);
    RUN(test_static_scale);
    RUN(test_own_experts);
    return check_end();
}
