/* rows.h -- what a test of a kernel row needs: buffers on both sides, and a launch that checks what every row promises.
 *
 * A case asks for buffers, fills them, points the row's struct at them and calls launch_twice: outputs start as
 * poison; inputs and a stretch on both sides of every buffer must come back untouched; two runs must give the same
 * bits (emulated, the second in another order; of thin rows: of one case in three). */
#ifndef ROWS_H
#define ROWS_H
#include "../../bench/clock.h"
#include "../check.h"
#include "../areas.h"
#include "../oracle/ref.h"

enum { ROWS_GUARD = 256, ROWS_BUFFERS = 28, ROWS_POISON = 0xa5 };
enum { ROWS_IN, ROWS_OUT, ROWS_SCRATCH };

/* Each is `bytes` with a guard on both sides.  host: what the case put in; got: what the row left; there: its own. */
typedef struct rows_buffer { unsigned char *host, *got, *there; size_t bytes; int kind; } rows_buffer;

static struct {
    const moek_kernel *row;
    const moek_format *format;                         /* of the row; NULL: it has none */
    rows_buffer buffer[ROWS_BUFFERS];
    area_list areas;                                   /* in which buffers lie */
    int buffers, cases;
    int thin;                                          /* 1: it has the cases of the quick set (quick.h) */
    int sharers, share;                                /* rows that share some cases, and which of them this one is */
    double worst, worst_element, start;                /* error over tolerance, also of elements; in seconds */
    void (*before)(const void *args);                  /* or NULL: launches something ahead of the row, on `stream` */
    moek_stream stream;
    unsigned acts;                                     /* activations that a case had, a bit each */
    char what[160];                                    /* the case, for messages */
} now;

static int rows_tell;                                  /* each case, before it runs: which one hangs, which is slow? */
static inline void rows_say(const char *what)
{
    if (rows_tell) fprintf(stderr, "%8.2f s  %s: %s\n", seconds() - now.start, now.row->name, what);
}

static inline void *rows_buffer_new(size_t bytes, int kind)
{
    rows_buffer *b = &now.buffer[now.buffers++];
    const size_t all = bytes + 2 * ROWS_GUARD;
    area_place place;
    if (now.buffers > ROWS_BUFFERS) abort();
    place = areas_take(&now.areas, now.row->arch, all);
    b->host = place.host, b->got = place.got, b->there = place.there;
    b->bytes = bytes;
    b->kind = kind;
    memset(b->host, kind == ROWS_IN ? 0xff : ROWS_POISON, all);     /* 0xff.. is NaN in every format: a read shows */
    return b->host + ROWS_GUARD;
}
static inline void *in(size_t bytes) { return rows_buffer_new(bytes, ROWS_IN); }
static inline void *out(size_t bytes) { return rows_buffer_new(bytes, ROWS_OUT); }
static inline void *scratch(size_t bytes) { return rows_buffer_new(bytes, ROWS_SCRATCH); }
static inline float *in_f32(int n) { return (float *)in((size_t)n * 4); }
static inline int32_t *in_i32(int n) { return (int32_t *)in((size_t)n * 4); }
static inline int32_t *out_i32(int n) { return (int32_t *)out((size_t)n * 4); }

static inline rows_buffer *rows_find(const void *host)
{
    int i;
    for (i = 0; i < now.buffers; i++) if (now.buffer[i].host + ROWS_GUARD == host) return &now.buffer[i];
    abort();
}
static inline void *got(const void *host) { return rows_find(host)->got + ROWS_GUARD; }
/* A pointer field of a struct: from the host's buffer to the row's. */
static inline void move_(void *field)
{
    void *p;
    memcpy(&p, field, sizeof p);
    if (p) p = rows_find(p)->there + ROWS_GUARD;
    memcpy(field, &p, sizeof p);
}
#define MOVE(field) move_(&(field))

static inline void rows_clear(void)
{
    areas_free(&now.areas);
    now.buffers = 0;
}

/* Once: put, launch, get; the results go to got, or are compared with it. */
static inline int rows_launch(const void *args, int again)
{
    moek_status status;
    int i, same = 1;
    areas_put(&now.areas);
    if (now.before) now.before(args);
#ifdef MOEK_EMU
    moek_emu_backwards = again;                        /* blocks, warps and lanes in falling order */
#endif
    status = now.row->launch(args, now.stream);
    if (!CHECK(status == MOEK_OK, "%s: %s: status %d", now.row->name, now.what, (int)status)) return 0;
    areas_get(&now.areas, again);
    for (i = 0; again && i < now.buffers; i++) {
        const rows_buffer *const b = &now.buffer[i];
        const unsigned char *const other = areas_again(&now.areas, b->got);
        if (b->kind != ROWS_SCRATCH && memcmp(other, b->got, b->bytes + 2 * ROWS_GUARD)) same = 0;
    }
    if (again) CHECK(same, "%s: %s: a second run gave other bits", now.row->name, now.what);
    return same;
}
static inline int launch_twice(const void *args)
{
    const int of = now.thin ? 3 : 1;                   /* cases, one is run a second time */
    int i, clean = 1;
    now.cases++;
    rows_say(now.what);
    if (!rows_launch(args, 0) || (now.cases % of == 0 && !rows_launch(args, 1))) return 0;
    for (i = 0; i < now.buffers; i++) {
        const rows_buffer *b = &now.buffer[i];
        const size_t end = ROWS_GUARD + b->bytes;
        if (memcmp(b->got, b->host, ROWS_GUARD) || memcmp(b->got + end, b->host + end, ROWS_GUARD)) clean = 0;
        if (b->kind == ROWS_IN && memcmp(b->got, b->host, end)) clean = 0;
    }
    return CHECK(clean, "%s: %s: wrote outside its outputs", now.row->name, now.what);
}

/* For a reference that writes like the row: a copy of the output as it was.  The caller frees it. */
static inline void *rows_want(const void *host)
{
    const rows_buffer *b = rows_find(host);
    void *copy = ref_alloc(b->bytes);
    memcpy(copy, host, b->bytes);
    return copy;
}
/* Compares all of it, what nobody should have written too. */
static inline void rows_same(const char *field, const void *host, void *want)
{
    const rows_buffer *b = rows_find(host);
    const unsigned char *g = b->got + ROWS_GUARD, *w = (const unsigned char *)want;
    size_t i = 0;
    while (i < b->bytes && g[i] == w[i]) i++;
    CHECK(i == b->bytes, "%s: %s: %s differs at byte %lu of %lu: %d, not %d", now.row->name, now.what, field,
          (unsigned long)i, (unsigned long)b->bytes, i < b->bytes ? g[i] : 0, i < b->bytes ? w[i] : 0);
    free(want);
}
/* Launched anew, otherwise: `host` gets the bits that the launch before left there. */
static inline void rows_again(const char *field, const void *args, const void *host)
{
    const rows_buffer *b = rows_find(host);
    void *const want = ref_alloc(b->bytes);
    memcpy(want, b->got + ROWS_GUARD, b->bytes);
    if (launch_twice(args)) rows_same(field, host, want);
    else free(want);
}

static inline int round_up(int n, int to) { return (n + to - 1) / to * to; }
/* Rows of T, as wide as `stride`, of which the first `columns` are written: those side by side, in memory that the
 * caller frees.  Nothing may have been written between them. */
static inline void *rows_dense(const char *field, const void *host, int rows, int columns, int stride)
{
    const uint16_t *const from = (const uint16_t *)got(host), *const before = (const uint16_t *)host;
    uint16_t *const dense = (uint16_t *)ref_alloc((size_t)rows * columns * 2);
    const size_t row = (size_t)stride, gap = 2 * (row - columns);
    int r, bad = 0;
    for (r = 0; r < rows; r++) {
        memcpy(dense + (size_t)r * columns, from + r * row, (size_t)columns * 2);
        bad += r + 1 < rows && memcmp(from + r * row + columns, before + r * row + columns, gap);
    }
    CHECK(!bad, "%s: %s: %s was written between %d rows", now.row->name, now.what, field, bad);
    return dense;
}
/* Elements that rows of T with strides take. */
static inline size_t rows_size(int rows, int columns, int stride)
{
    return rows ? (size_t)(rows - 1) * stride + columns : 0;
}
/* Not rng: cases stay what they are.  0: the default. */
static inline int rows_stride(int turn, int columns)
{
    return turn % 3 == 0 ? 0 : turn % 3 == 1 ? round_up(columns, 8) + 8 * (turn / 3 % 5) : 2 * round_up(columns, 8);
}
/* Normal numbers times size, as codes; of large arrays each is one of SOME that are made.  (ref_encode is slow: it has
 * all threads.) */
static inline void fill_codes_each(void *array, size_t n, const ref_number *number, double size)
{
    float *const normal = (float *)ref_alloc(n * sizeof *normal);
    size_t i;
    for (i = 0; i < n; i++) normal[i] = rng_normal();
#ifdef _OPENMP
#pragma omp parallel for if (n > 2000)
#endif
    for (i = 0; i < n; i += 2) {                       /* two may share a byte */
        ref_put(number, array, i, normal[i] * size);
        if (i + 1 < n) ref_put(number, array, i + 1, normal[i + 1] * size);
    }
    free(normal);
}
static inline void fill_codes(void *array, size_t n, const ref_number *number, double size)
{
    enum { SOME = 1 << 14 };
    static uint32_t some[SOME];
    size_t i;
    if (n < 4 * SOME) { fill_codes_each(array, n, number, size); return; }
    for (i = 0; i < SOME; i++) some[i] = ref_encode(number, rng_normal() * size);
    for (i = 0; i < n; i += 2) {
        const uint32_t two = rng_u32();
        ref_put_code(number, array, i, some[two % SOME]);
        if (i + 1 < n) ref_put_code(number, array, i + 1, some[two >> 16 & (SOME - 1)]);
    }
}
static inline void fill_t(void *array, size_t n, int dtype, double size) { fill_codes(array, n, ref_t(dtype), size); }
/* Scales from `from` to `to`, as their type holds them. */
static inline void fill_scales(void *array, size_t n, const ref_number *type, double from, double to)
{
    size_t i;
    for (i = 0; i < n; i++) ref_put(type, array, i, from + (to - from) * rng_uniform());
}
/* Every other one becomes negative, at random. */
static inline void fill_signs(void *array, size_t n, const ref_number *type)
{
    size_t i;
    for (i = 0; i < n; i++) if (rng_below(2)) ref_put(type, array, i, -ref_get(type, array, i));
}
static inline void fill_f32(float *array, size_t n, float from, float to)
{
    size_t i;
    for (i = 0; i < n; i++) array[i] = from + (to - from) * rng_uniform();
}
#endif
