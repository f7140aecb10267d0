/* pool.h -- pools for moek_parallel (moek/enums.h), each with an order or with threads that an engine's could have: the
 * bits must not depend on which. */
#ifndef POOL_H
#define POOL_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"

/* What moek/enums.h says a task takes.  (Detectors of errors take more.) */
enum { POOL_THREADS = 8, POOL_STACK = 96 * 1024 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { POOL_MORE = 1 << 20 };
#else
enum { POOL_MORE = 2 * 16384 };                        /* the C library's own */
#endif
typedef struct pool {
    const char *name;
    int threads;                      /* beside the caller's, which waits; 0: the caller's alone                      */
    int backwards;                    /* the last task first                                                          */
    int small;                        /* threads with stacks of no more than a task may take                          */
    long long runs, wrong;            /* so far, and how many of them did not run each task once                      */
} pool;
static pool pools[] = {
    { "backwards", 0, 1, 0, 0, 0 }, { "1 thread", 1, 0, 0, 0, 0 }, { "3 threads", 3, 0, 0, 0, 0 },
    { "7 threads, backwards", 7, 1, 0, 0, 0 }, { "2 threads of small stacks", 2, 0, 1, 0, 0 }
};
enum { POOLS = sizeof pools / sizeof *pools };

typedef struct pool_job {
    moek_task_fn task;
    const void *data;
    long long tasks, next;            /* the next one that nobody has taken                                           */
    int backwards;
    unsigned char *seen;              /* of each task, how often                                                      */
    pthread_mutex_t lock;
} pool_job;
static void *pool_thread(void *job)
{
    pool_job *const j = (pool_job *)job;
    for (;;) {
        long long i;
        pthread_mutex_lock(&j->lock);
        i = j->next++;
        pthread_mutex_unlock(&j->lock);
        if (i >= j->tasks) return NULL;
        if (j->backwards) i = j->tasks - 1 - i;
        j->task(j->data, i);
        j->seen[i]++;
    }
}
/* moek_parallel.run; p: a pool that no other thread has. */
static void pool_run(void *p, long long tasks, moek_task_fn task, const void *data)
{
    pool *const of = (pool *)p;
    pthread_t thread[POOL_THREADS];
    pthread_attr_t attr;
    pool_job j;
    long long i, once = 0;
    int t;
    if (tasks < 1) abort();
    memset(&j, 0, sizeof j);
    j.task = task; j.data = data; j.tasks = tasks; j.backwards = of->backwards;
    j.seen = (unsigned char *)calloc((size_t)tasks, 1);
    pthread_mutex_init(&j.lock, NULL);
    pthread_attr_init(&attr);
    if (of->small) pthread_attr_setstacksize(&attr, POOL_STACK + POOL_MORE);
    for (t = 0; t < of->threads; t++)
        if (pthread_create(&thread[t], &attr, pool_thread, &j)) abort();
    if (!of->threads) pool_thread(&j);
    while (t--) pthread_join(thread[t], NULL);
    for (i = 0; i < tasks; i++) once += j.seen[i] == 1;
    of->wrong += once != tasks;
    pthread_attr_destroy(&attr);
    pthread_mutex_destroy(&j.lock);
    free(j.seen);
    of->runs++;
}
static inline moek_parallel pool_parallel(pool *p)
{
    moek_parallel parallel;
    parallel.run = pool_run;
    parallel.pool = p;
    parallel.threads = p->threads * p->threads;        /* 0: not known; up to 49: tasks are cut otherwise */
    return parallel;
}
#endif
