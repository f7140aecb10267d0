/* moek/text.h -- sentences: a string that never overflows, and a status that comes with one. */
#ifndef MOEK_TEXT_H
#define MOEK_TEXT_H
#include <stdarg.h>
#include <stdio.h>
#include "enums.h"

typedef struct moek_text_ { char *at; size_t size, length; } moek_text_;      /* length: what it would need */

static void moek_clear_(moek_text_ *t)
{
    t->length = 0;
    if (t->size) t->at[0] = 0;
}

static moek_text_ moek_text_in_(char *at, size_t size)
{
    moek_text_ t;
    t.at = at; t.size = at ? size : 0;
    moek_clear_(&t);
    return t;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void moek_append_(moek_text_ *t, const char *format, ...)
{
    const size_t room = t->length < t->size ? t->size - t->length : 0;
    va_list list;
    int n;
    va_start(list, format);
    n = vsnprintf(room ? t->at + t->length : NULL, room, format, list);
    va_end(list);
    if (n > 0) t->length += (size_t)n;
}

/* A sentence, and the status is returned. */
#define MOEK_FAIL_(text, status, ...) do { moek_append_((text), __VA_ARGS__); return (status); } while (0)
/* E_VERSION: of the caller, of the implementation. */
#define MOEK_VERSION_TEXT_ \
    "this file was compiled with moek.h version %d, the implementation with version %d, or with structs of other " \
    "sizes: compile both with the same moek.h"
/* A sentence for the caller of a run; the status is passed through. */
#define MOEK_REFUSE_(args, status, ...) \
    do { \
        moek_text_ t_ = moek_text_in_((args)->why, (args)->why_size); \
        moek_append_(&t_, __VA_ARGS__); \
        return (status); \
    } while (0)
#endif
