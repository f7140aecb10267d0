/* emu_strict.h -- memory of the emulated device (mem.h).  With EMU_STRICT in the environment it can be touched by
 * kernels, copies and sets alone, as a GPU's: a touch by the host ends the program with a sentence.  While one of these
 * is under way on any thread, a touch opens the stretch around it, until the last of them ends.  (To open and close all
 * of it for each copy of some bytes took most of a test's time.) */
#ifndef EMU_STRICT_H
#define EMU_STRICT_H
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EMU_PIECE_PAGE = 4096, EMU_PIECES = 1 << 14, EMU_STRETCH = 64 * EMU_PIECE_PAGE, EMU_STRETCHES = 1 << 12 };
typedef struct emu_piece { char *at; size_t bytes; } emu_piece;
/* What the device has, while it is strict; stretches of it that are open; how many kernels, copies and sets are under
 * way. */
typedef struct emu_pieces {
    emu_piece piece[EMU_PIECES], stretch[EMU_STRETCHES];
    int count, stretches, open, strict;
    pthread_mutex_t lock;
} emu_pieces;

/* One for the whole program, whose parts are all C++. */
inline emu_pieces emu_own = { {}, {}, 0, 0, 0, -1, PTHREAD_MUTEX_INITIALIZER };

/* All that is open is closed. */
static inline void emu_shut(void)
{
    int i;
    for (i = 0; i < emu_own.stretches; i++) mprotect(emu_own.stretch[i].at, emu_own.stretch[i].bytes, PROT_NONE);
    emu_own.stretches = 0;
}
/* The stretch of a piece around a touched byte; 0: nothing is under way, so that it was the host. */
static inline int emu_open_stretch(const emu_piece *p, const char *at)
{
    const size_t before = (size_t)(at - p->at) / EMU_STRETCH * EMU_STRETCH, left = p->bytes - before;
    emu_piece *s;
    int open;
    pthread_mutex_lock(&emu_own.lock);
    open = emu_own.open > 0;
    if (open) {
        if (emu_own.stretches == EMU_STRETCHES) emu_shut();            /* they open again when they are touched */
        s = &emu_own.stretch[emu_own.stretches++];
        s->at = p->at + before, s->bytes = left < (size_t)EMU_STRETCH ? left : (size_t)EMU_STRETCH;
        open = !mprotect(s->at, s->bytes, PROT_READ | PROT_WRITE);
    }
    pthread_mutex_unlock(&emu_own.lock);
    return open;
}
static inline void emu_touched(int number, siginfo_t *info, void *)
{
    const char *const at = (const char *)info->si_addr;
    char text[160];
    int i, n;
    for (i = 0; i < emu_own.count; i++) {
        const emu_piece *const p = &emu_own.piece[i];
        if (at < p->at || at >= p->at + p->bytes) continue;
        if (emu_open_stretch(p, at)) return;
        n = snprintf(text, sizeof text, "emulator: the host touches byte %lld of %lld bytes of the device's memory\n",
                     (long long)(at - p->at), (long long)p->bytes);
        if (write(2, text, (size_t)n) < n) break;
    }
    signal(number, SIG_DFL);
    raise(number);
}
/* With the lock: is it strict? */
static inline int emu_is_strict(void)
{
    struct sigaction act;
    if (emu_own.strict >= 0) return emu_own.strict;
    emu_own.strict = getenv("EMU_STRICT") != NULL;
    if (!emu_own.strict) return 0;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = emu_touched;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, NULL);
    return 1;
}
/* A kernel, a copy or a set begins, and ends. */
static inline void emu_open(void)
{
    pthread_mutex_lock(&emu_own.lock);
    emu_own.open++;
    pthread_mutex_unlock(&emu_own.lock);
}
static inline void emu_close(void)
{
    pthread_mutex_lock(&emu_own.lock);
    if (!--emu_own.open) emu_shut();
    pthread_mutex_unlock(&emu_own.lock);
}
static inline void emu_copy_bytes(void *to, const void *from, size_t bytes)
{
    emu_open();
    if (bytes) memcpy(to, from, bytes);
    emu_close();
}
static inline void emu_set_bytes(void *to, int value, size_t bytes)
{
    emu_open();
    if (bytes) memset(to, value, bytes);
    emu_close();
}

/* Aligned to a page; all of it in one part of the address space, as a GPU's is.  (malloc has two, more than 2^40 bytes
 * apart.)  The page before has its size. */
static inline void *emu_take(size_t bytes)
{
    const size_t all = EMU_PIECE_PAGE + (bytes + EMU_PIECE_PAGE - 1) / EMU_PIECE_PAGE * EMU_PIECE_PAGE;
    char *const at = (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == (char *)MAP_FAILED) abort();
    memcpy(at, &all, sizeof all);
    pthread_mutex_lock(&emu_own.lock);
    if (emu_is_strict() && all > EMU_PIECE_PAGE) {
        emu_piece *const p = &emu_own.piece[emu_own.count++];
        if (emu_own.count > EMU_PIECES) abort();
        p->at = at + EMU_PIECE_PAGE;
        p->bytes = all - EMU_PIECE_PAGE;
        mprotect(p->at, p->bytes, PROT_NONE);
    }
    pthread_mutex_unlock(&emu_own.lock);
    return at + EMU_PIECE_PAGE;
}
static inline void emu_give_back(void *p)
{
    char *const at = (char *)p - EMU_PIECE_PAGE;
    size_t all;
    int i;
    memcpy(&all, at, sizeof all);
    pthread_mutex_lock(&emu_own.lock);
    for (i = 0; i < emu_own.stretches; i++)            /* what lies there later is another's */
        if (emu_own.stretch[i].at >= at && emu_own.stretch[i].at < at + all)
            emu_own.stretch[i--] = emu_own.stretch[--emu_own.stretches];
    for (i = 0; i < emu_own.count && emu_own.piece[i].at != (char *)p; i++) { }
    if (i < emu_own.count) emu_own.piece[i] = emu_own.piece[--emu_own.count];
    pthread_mutex_unlock(&emu_own.lock);
    munmap(at, all);
}
#endif
