/* workers.h -- a test program's parts (rows, tests) shared out among processes: its word -j, or -j8.
 *
 * Each process goes through all parts and runs those that nobody has taken; a part does the same in whichever process.
 * They share out the GPUs, and take turns on each; of the host's threads each gets as many.  What a part prints comes
 * in one piece.
 * Where a system has no fork, one process does all. */
#ifndef WORKERS_H
#define WORKERS_H
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "mem.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
enum { WORKERS = 32, WORKERS_PARTS = 2048 };           /* numbers of parts fit in a pipe */
#else
enum { WORKERS = 0 };
#endif

static int workers_parts[2] = { -1, -1 };              /* the numbers of parts that are free: read it, and take one */
static int workers_part;                               /* that the program has come to */

static inline int workers_processors(void)
{
#ifdef _OPENMP
    return omp_get_num_procs();
#else
    return 1;
#endif
}
/* Takes the word, if it is there: how many there shall be.  (-j: as many as processors, up to 16.) */
static inline int workers_word(int *argc, char ***argv)
{
    int n = 0;
    if (*argc < 2 || strncmp((*argv)[1], "-j", 2)) return 0;
    n = (*argv)[1][2] ? atoi((*argv)[1] + 2) : workers_processors();
    if (!(*argv)[1][2] && n > 16) n = 16;
    (*argv)[1] = (*argv)[0];
    --*argc, ++*argv;
    return n < WORKERS ? n : WORKERS;
}
/* 1: the next part is this process's. */
static inline int workers_take(void)
{
    static int taken = -1;
    const int part = workers_part++;
    if (workers_parts[0] < 0) return 1;
#if defined(__unix__) || defined(__APPLE__)
    if (taken < part && read(workers_parts[0], &taken, sizeof taken) != sizeof taken) taken = WORKERS_PARTS;
#endif
    return taken == part;
}
#if defined(__unix__) || defined(__APPLE__)
/* Process i has the i-th GPU, or that of one before. */
static inline void workers_gpu_(int i)
{
#if MEM_CUDA
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
    if (gpus) mem_must(cudaSetDevice(i % gpus));
    else (void)cudaGetLastError();
#endif
    (void)i;
}
/* In process i of n: its counts go into the pipe. */
static inline void workers_child_(int i, int n, const int *counts, void (*all)(int argc, char **argv), int argc,
                                  char **argv)
{
    int mine[3];
    workers_gpu_(i);
#ifdef _OPENMP
    omp_set_num_threads(workers_processors() > n ? workers_processors() / n : 1);
#endif
    (void)n;
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);            /* each part ends with fflush */
    all(argc, argv);
    fflush(stdout);
    mine[0] = check_passed, mine[1] = check_failed, mine[2] = check_skipped;
    _exit(workers_part > WORKERS_PARTS || write(counts[1], mine, sizeof mine) != sizeof mine);
}
#endif
/* `all` in n processes, or in this one; what they count, this one has afterwards.  Nothing of CUDA before. */
static inline void workers_run(int n, void (*all)(int argc, char **argv), int argc, char **argv)
{
#if defined(__unix__) || defined(__APPLE__)
    pid_t child[WORKERS];
    int counts[2], mine[3], i, status;
    if (n > 1) {
        if (pipe(workers_parts) || pipe(counts)) abort();
        for (i = 0; i < WORKERS_PARTS; i++) if (write(workers_parts[1], &i, sizeof i) != sizeof i) abort();
        close(workers_parts[1]);
        fflush(stdout);
        for (i = 0; i < n; i++) {
            child[i] = fork();
            if (child[i] < 0) abort();
            if (!child[i]) workers_child_(i, n, counts, all, argc, argv);
        }
        close(counts[1]);
        while (read(counts[0], mine, sizeof mine) == (ssize_t)sizeof mine)
            check_passed += mine[0], check_failed += mine[1], check_skipped += mine[2];
        for (i = 0; i < n; i++) {
            waitpid(child[i], &status, 0);
            CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "process %d of %d ended with status %x", i, n, status);
        }
        return;
    }
#endif
    (void)n;
    all(argc, argv);
}
#endif
