/* must.h -- ends a program where a status is not OK, with a sentence.  Behind moek.h. */
#ifndef MUST_H
#define MUST_H
#include <stdio.h>
#include <stdlib.h>

static void must(moek_status status, const char *what, const char *why)
{
    if (status == MOEK_OK) return;
    printf("%s: %s: %s\n", what, moek_status_name(status), why && why[0] ? why : moek_status_text(status));
    fflush(NULL);
    _Exit(1);                                          /* other threads may be in the middle of a run */
}
#endif
