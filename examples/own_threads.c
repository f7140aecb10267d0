/* own_threads.c -- an engine's own threads run the CPU kernels, in the place of OpenMP's.
 *
 *   cc -O3 -Iinclude examples/own_threads.c examples/moek.c -pthread -lm -o own_threads && ./own_threads
 *   ./own_threads [THREADS]
 *
 * Fill in a moek_parallel: a function that calls a task for each number below `tasks`, and what it needs for that.  In
 * config.parallel it serves all that a plan does, repacking of weights too; in args.parallel, one run.  Here they are
 * pthreads that sleep between runs; an engine has its own, which take numbers by an atomic counter. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "example.h"
#include <pthread.h>

enum { HIDDEN = 256, INTER = 128, EXPERTS = 8, TOPK = 2, TOKENS = 16, MOST = 64 };

typedef struct threads {
    pthread_t thread[MOST];
    int n;                            /* beside the caller's                                                          */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int job, busy, end;               /* number of the job; threads that are in it; no more will come                 */
    moek_task_fn task;
    const void *data;
    long long tasks, next;
} threads;

/* Tasks that nobody has taken, one after the other. */
static void take(threads *t)
{
    for (;;) {
        long long i;
        pthread_mutex_lock(&t->lock);
        i = t->next < t->tasks ? t->next++ : -1;
        pthread_mutex_unlock(&t->lock);
        if (i < 0) return;
        t->task(t->data, i);
    }
}
static void *thread(void *p)
{
    threads *const t = (threads *)p;
    int job = 0;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->job == job && !t->end) pthread_cond_wait(&t->work, &t->lock);
        if (t->end) break;
        job = t->job;
        pthread_mutex_unlock(&t->lock);
        take(t);
        pthread_mutex_lock(&t->lock);
        if (!--t->busy) pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* moek_parallel.run: returns when each task has run once.  The mutex makes what they wrote visible here. */
static void run(void *pool, long long tasks, moek_task_fn task, const void *data)
{
    threads *const t = (threads *)pool;
    pthread_mutex_lock(&t->lock);
    t->task = task; t->data = data; t->tasks = tasks; t->next = 0;
    t->busy = t->n;
    t->job++;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    take(t);
    pthread_mutex_lock(&t->lock);
    while (t->busy) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static void open_threads(threads *t, int n)
{
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    for (; t->n < n; t->n++)
        example_must(!pthread_create(&t->thread[t->n], NULL, thread, t), "pthread_create", "no more threads");
}
static void close_threads(threads *t)
{
    pthread_mutex_lock(&t->lock);
    t->end = 1;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    while (t->n) pthread_join(t->thread[--t->n], NULL);
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 3;
    static uint16_t y[2][TOKENS * HIDDEN];
    static float logits[TOKENS * EXPERTS];
    uint16_t *const up = example_random((size_t)EXPERTS * 2 * INTER * HIDDEN, 0.08f, 1);
    uint16_t *const down = example_random((size_t)EXPERTS * HIDDEN * INTER, 0.1f, 2);
    uint16_t *const random_x = example_random((size_t)TOKENS * HIDDEN, 1, 3);
    const void *there[5];
    threads pool;
    char why[256] = "";
    moek_plan plan;
    moek_config config;
    moek_weights weights;
    moek_args args;
    int i;
    example_must(n >= 0 && n <= MOST, "THREADS", "0 to 64");
    for (i = 0; i < TOKENS * EXPERTS; i++) logits[i] = (float)(i * 7919 % 1009) / 250.0f;

    memset(&config, 0, sizeof config);
    config.hidden = HIDDEN; config.inter = INTER; config.experts = EXPERTS; config.topk = TOPK;
    config.quant = MOEK_BF16; config.act = MOEK_SILU; config.max_tokens = TOKENS;
    config.exclude = MOEK_BACKENDS_GPU;                /* these threads run CPU kernels; a GPU's have no use for them */
    example_must(moek_plan_init(&plan, &config) == MOEK_OK, "plan", plan.why);
    memset(&weights, 0, sizeof weights);
    there[0] = weights.w_up = example_new(-1, up, 2 * (size_t)EXPERTS * 2 * INTER * HIDDEN);
    there[1] = weights.w_down = example_new(-1, down, 2 * (size_t)EXPERTS * HIDDEN * INTER);
    example_must(moek_plan_bind(&plan, &weights) == MOEK_OK, "bind", plan.why);

    memset(&args, 0, sizeof args);
    args.tokens = TOKENS;
    there[2] = args.x = example_new(-1, random_x, 2 * TOKENS * HIDDEN);
    args.router_logits = logits;
    there[3] = args.y = example_new(-1, NULL, 2 * TOKENS * HIDDEN);
    args.workspace_size = moek_workspace_size(&plan);
    there[4] = args.workspace = example_new(-1, NULL, args.workspace_size);
    args.why = why; args.why_size = sizeof why;

    open_threads(&pool, n);
    for (i = 0; i < 2; i++) {                          /* OpenMP, if that is compiled in, or this thread; then these */
        if (i) { args.parallel.run = run; args.parallel.pool = &pool; args.parallel.threads = n + 1; }
        example_must(moek_run(&plan, &args, NULL) == MOEK_OK, "run", why);
        example_get(-1, y[i], args.y, sizeof y[i]);
    }
    printf("%d threads and the caller's, %d jobs: %s\n", pool.n, pool.job,
           memcmp(y[0], y[1], sizeof y[0]) ? "other bits" : "the same bits");
    example_must(pool.job > 0 && !memcmp(y[0], y[1], sizeof y[0]), "own_threads", "wrong");
    close_threads(&pool);
    for (i = 0; i < 5; i++) example_free(-1, there[i]);
    free(up); free(down); free(random_x);
    return 0;
}
