/* processes.h -- ranks of a test as processes: the program started once more for each, with a file that all map. */
#ifndef PROCESSES_H
#define PROCESSES_H
#include "../check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 8 };

/* Each is started as  self WORD RANK RANKS FILE  and exits with 0 if all is well; but `victim` (-1: none) dies of a
 * signal.  The file is `bytes` of zeros. */
static inline void processes(const char *self, const char *word, int ranks, int victim, size_t bytes)
{
    char path[] = "/tmp/moek_ep_XXXXXX", number[2][16];
    const int file = mkstemp(path);
    pid_t child[PROCESSES];
    int r, status;
    if (file < 0 || ftruncate(file, (off_t)bytes) || ranks > PROCESSES) abort();
    for (r = 0; r < ranks; r++) {
        snprintf(number[0], sizeof number[0], "%d", r);
        snprintf(number[1], sizeof number[1], "%d", ranks);
        fflush(stdout);
        child[r] = fork();
        if (child[r]) continue;
        execl(self, self, word, number[0], number[1], path, (char *)NULL);
        _exit(127);
    }
    for (r = 0; r < ranks; r++) {
        waitpid(child[r], &status, 0);
        if (r == victim) CHECK(WIFSIGNALED(status), "%d processes, %s: rank %d did not die", ranks, word, r);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d processes, %s: rank %d: status %x", ranks, word,
                   r, status);
    }
    close(file);
    unlink(path);
}

/* In such a process: the file. */
static inline void *mapped(const char *path, size_t bytes)
{
    const int file = open(path, O_RDWR);
    void *p = file < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) abort();
    close(file);
    return p;
}
#endif
