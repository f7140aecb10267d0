/* moek/kernel/parallel.h -- tasks of the CPU rows, on threads of the caller or of OpenMP. */
#ifndef MOEK_PARALLEL_H
#define MOEK_PARALLEL_H
#include "gemm.h"
#include "linkage.h"

#if defined(_OPENMP)
#include <omp.h>
#define MOEK_PARALLEL_FOR_ _Pragma("omp parallel for schedule(dynamic)")
#else
#define MOEK_PARALLEL_FOR_
#endif

/* What rows of cpu take as their stream: NULL, or where the caller's threads are. */
static MOEK_UNUSED moek_stream moek_stream_of_(const moek_parallel *p)
{
    return p->run ? (moek_stream)(void *)(uintptr_t)p : NULL;
}
/* task(data, i) for each i below tasks, by a row's stream. */
static MOEK_UNUSED void moek_parallel_for_(moek_stream stream, long long tasks, moek_task_fn task, const void *data)
{
    const moek_parallel *const p = (const moek_parallel *)(const void *)stream;
    long long i;
    if (tasks < 1) return;
    if (p) {
        p->run(p->pool, tasks, task, data);
        return;
    }
    if (tasks == 1) {                                  /* nobody is waited for */
        task(data, 0);
        return;
    }
    MOEK_PARALLEL_FOR_
    for (i = 0; i < tasks; i++) task(data, i);
}

/* So many tasks keep the threads busy: two a thread, of few threads four, so that these end together.  More and smaller
 * ones cost more than they win (docs/notes/cpu.md: tasks-by-threads). */
static MOEK_UNUSED int moek_tasks_wanted_(moek_stream stream)
{
    const moek_parallel *const p = (const moek_parallel *)(const void *)stream;
    enum { NOT_KNOWN = 16 };
    int threads = 1;
#if defined(_OPENMP)
    threads = omp_get_max_threads();
#endif
    if (p) threads = p->threads > 0 ? p->threads : (int)NOT_KNOWN;
    return (threads < 8 ? 4 : 2) * (threads < 1024 ? threads : 1024);
}

/* A task of up or down: columns j0 on of expert e, rows first to end - 1 of the work, all that the expert has: so its
 * weights come from memory once.  first == end: none. */
typedef struct moek_gemm_task_ { int e, first, end, j0, columns; } moek_gemm_task_;
static MOEK_UNUSED long long moek_gemm_tasks_(const moek_gemm_ *a, int columns)
{
    return (long long)(a->rows_per_expert ? a->experts : a->rows.num_blocks[0]) * ((a->n + columns - 1) / columns);
}
/* Columns of a task: `columns`, halved while that gives too few tasks, and at least `min`. */
static MOEK_UNUSED int moek_gemm_columns_(const moek_gemm_ *a, moek_stream stream, int columns, int min)
{
    const int wanted = moek_tasks_wanted_(stream);
    while (columns / 2 >= min && moek_gemm_tasks_(a, columns) < wanted) columns /= 2;
    return columns;
}
static MOEK_UNUSED moek_gemm_task_ moek_gemm_task_of_(const moek_gemm_ *a, int columns, long long task)
{
    const int groups = (a->n + columns - 1) / columns, b = (int)(task / groups);
    moek_gemm_task_ t;
    t.j0 = (int)(task % groups) * columns;
    t.columns = a->n - t.j0 < columns ? a->n - t.j0 : columns;
    t.e = a->rows_per_expert ? b : a->rows.block_expert[b];
    t.first = a->rows_per_expert ? t.e * a->rows_per_expert : a->rows.offsets[t.e];
    t.end = a->rows_per_expert ? t.first + a->rows.counts[t.e] : a->rows.offsets[t.e + 1];
    /* The list of blocks only says which experts have rows: the expert's first block does all. */
    if (!a->rows_per_expert && a->rows.block_row[b] != t.first) t.end = t.first;
    return t;
}
/* Rows of the expert that has the most. */
static MOEK_UNUSED int moek_gemm_most_rows_(const moek_gemm_ *a)
{
    int e, most = 0;
    for (e = 0; e < a->experts; e++) {
        const int rows = a->rows_per_expert ? a->rows.counts[e] : a->rows.offsets[e + 1] - a->rows.offsets[e];
        if (rows > most) most = rows;
    }
    return most;
}
#endif
