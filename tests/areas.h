/* areas.h -- arrays of a test, on the host and where a kernel works: all of them there in one copy, and back in one.
 *
 * Arrays for a GPU lie side by side in areas, and one area stays from case to case.  (With memory of its own for each
 * array there were a hundred calls of CUDA a case, and processes that share a GPU wait for each other at every one.)
 * Arrays for a CPU, emulated ones, and all with the word `apart` have memory of their own, so that sanitizers see where
 * an array ends. */
#ifndef AREAS_H
#define AREAS_H
#include "mem.h"

enum { AREAS = 64, AREA_BYTES = 1 << 27 };
/* `bytes` on both sides, of which so many are taken.  got, again: what one run left, and another; again may be NULL. */
typedef struct area { unsigned char *host, *got, *again, *there; size_t bytes, used; int arch; } area;
typedef struct area_list { area of[AREAS]; int count; } area_list;
/* Where an array lies. */
typedef struct area_place { unsigned char *host, *got, *there; } area_place;

static int areas_apart;                                /* 1: an area an array, on a GPU, too */
static area areas_kept;                                /* of a GPU, for the next list; bytes 0: there is none */

#if MEM_CUDA && !defined(MOEK_EMU_CUDA)
static inline int area_side_by_side(int arch) { return mem_on_gpu(arch) && !areas_apart; }
#else
static inline int area_side_by_side(int arch) { (void)arch; return 0; }
#endif
static inline area area_new(int arch, size_t bytes)
{
    area a = areas_kept;
    if (area_side_by_side(arch) && a.bytes >= bytes) { areas_kept.bytes = 0; return a; }
    if (area_side_by_side(arch) && bytes < AREA_BYTES) bytes = AREA_BYTES;
    a.bytes = bytes, a.used = 0, a.arch = arch, a.again = NULL;
    a.host = (unsigned char *)mem_alloc(0, bytes);
    a.got = (unsigned char *)mem_alloc(0, bytes);
    a.there = (unsigned char *)mem_alloc(arch, bytes);
    return a;
}
static inline void area_free(area *a)
{
    a->used = 0;
    if (area_side_by_side(a->arch) && !areas_kept.bytes && a->bytes == AREA_BYTES) { areas_kept = *a; return; }
    mem_free(0, a->host), mem_free(0, a->got), mem_free(0, a->again);
    mem_free(a->arch, a->there);
}
static inline size_t area_room(int arch, size_t bytes)
{
    return area_side_by_side(arch) ? (bytes + 255) / 256 * 256 : bytes;
}
/* For an array of so many bytes. */
static inline area_place areas_take(area_list *s, int arch, size_t bytes)
{
    const size_t room = area_room(arch, bytes);
    area_place place;
    area *a;
    int i = 0;
    while (i < s->count && s->of[i].bytes - s->of[i].used < room) i++;
    a = &s->of[i];
    if (i == AREAS) abort();
    if (i == s->count) *a = area_new(arch, room), s->count++;
    place.host = a->host + a->used, place.got = a->got + a->used, place.there = a->there + a->used;
    a->used += room;
    return place;
}
/* An array less, of so many bytes: its memory, where nothing lies behind it. */
static inline void areas_drop(area_list *s, const unsigned char *host, size_t bytes)
{
    const size_t room = area_room(s->of[0].arch, bytes);
    int i;
    for (i = 0; i < s->count; i++) if (s->of[i].host + s->of[i].used == host + room) break;
    if (i == s->count || (s->of[i].used -= room) != 0) return;
    area_free(&s->of[i]);
    s->of[i] = s->of[--s->count];
}
static inline void areas_free(area_list *s)
{
    while (s->count) area_free(&s->of[--s->count]);
}
static inline void areas_put(const area_list *s)
{
    int i;
    for (i = 0; i < s->count; i++) mem_put(s->of[i].arch, s->of[i].there, s->of[i].host, s->of[i].used);
}
/* Of a second run to `again`, so that both can be compared. */
static inline void areas_get(area_list *s, int again)
{
    int i;
    for (i = 0; i < s->count; i++) {
        area *const a = &s->of[i];
        if (again && !a->again) a->again = (unsigned char *)mem_alloc(0, a->bytes);
        mem_get(a->arch, again ? a->again : a->got, a->there, a->used);
    }
}
/* What areas_get(s, 1) left of the array whose first run is at `got`. */
static inline const unsigned char *areas_again(const area_list *s, const unsigned char *got)
{
    int i;
    for (i = 0; i < s->count; i++) {
        const area *const a = &s->of[i];
        if (got >= a->got && got < a->got + a->bytes) return a->again + (got - a->got);
    }
    abort();
}
/* Takes the word `apart`, if it is there. */
static inline void areas_word(int *argc, char ***argv)
{
    if (*argc < 2 || strcmp((*argv)[1], "apart")) return;
    areas_apart = 1;
    (*argv)[1] = (*argv)[0];
    --*argc, ++*argv;
}
#endif
