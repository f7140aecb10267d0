/* bench_import.c -- how fast checkpoints become moek's arrays on the host: each source beside memcpy of the same bytes.
 *
 *   ninja build/cpu/bench_import && OMP_NUM_THREADS=1 build/cpu/bench_import
 *   cc -O3 -march=native -fopenmp -Iinclude bench/bench_import.c -o bench_import -lm; OMP_NUM_THREADS=2 ./bench_import
 *   ./bench_import [-r ROUNDS] [SOURCE ...]
 *
 * A matrix has 2048 rows and 7168 columns (gate of Kimi-K2).  There are so many of them, read and written in turns,
 * that each comes from memory: 384 MiB of a source.  Import and memcpy take turns, too; the figure is the time that a
 * tenth of all matrices beat, because other programs on the machine only ever add time.  memcpy has as many threads as
 * the import.  GB/s are bytes of the checkpoint. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L
#endif
#ifndef BENCH_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clock.h"
#ifdef _OPENMP
#include <omp.h>
#endif

enum { ROWS = 2048, COLUMNS = 7168, GROUP = 128, COPY = 1 << 20 };
static const size_t POOL = (size_t)384 << 20;

enum { CODES_ROWS, CODES_WORDS, CODES_GPTQ, CODES_AWQ, CODES_GGUF, CODES_GGUF_64, CODES_BYTES };
enum { ZEROS_NONE, ZEROS_ACROSS, ZEROS_TURNED, ZEROS_AWQ };
enum { SCALES_ROWS, SCALES_GROUPS, SCALES_ONE, SCALES_BLOCKS };
typedef struct subject {
    const char *name;
    int source, quant, codes, scales, type, zeros;
    size_t w, scale, zero;                             /* bytes of a matrix: the checkpoint's */
} subject;
#define SUBJECT(name, number, quant, codes, xor, scales, type, zeros, less, global) \
    { #name, number, MOEK_##quant, CODES_##codes, SCALES_##scales, MOEK_DTYPE_##type, ZEROS_##zeros, 0, 0, 0 },
#define PLAIN(name, number) \
    { #name, number, 0, CODES_ROWS, SCALES_BLOCKS, MOEK_DTYPE_##name, ZEROS_NONE, 0, 0, 0 },
static subject subjects[] = { MOEK_EACH_SOURCE(SUBJECT) MOEK_EACH_PLAIN_SOURCE(PLAIN) };
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

static unsigned char *from, *to;

static int plain(const subject *s) { return s->source >= MOEK_FROM_BF16 && s->source <= MOEK_FROM_F32; }
static int in_blocks(const subject *s) { return s->codes == CODES_GGUF || s->codes == CODES_GGUF_64; }
static int block_of(const subject *s)
{
    return !moek_format_of(s->quant)->blocks ? 0 : in_blocks(s) ? 32 : GROUP;
}
static size_t scale_bytes(int dtype) { return dtype == MOEK_DTYPE_F32 ? 4 : dtype ? 2 : 1; }
/* Bytes of the scales of a block, and of a block. */
static size_t lead_bytes(const subject *s) { return (s->codes == CODES_GGUF_64 ? 4 : 1) * scale_bytes(s->type); }
static size_t block_bytes(const subject *s) { return lead_bytes(s) + (s->codes == CODES_GGUF_64 ? 32 : 16); }
static void sizes(subject *s)
{
    int i = 0;
    const size_t all = (size_t)ROWS * COLUMNS;
    const moek_format *f;
    moek_scale_shape of;
    size_t scales;
    while (plain(s) && subjects[i].source != MOEK_FROM_FP8_BLOCK) i++;
    if (plain(s)) s->quant = subjects[i].quant;
    f = moek_format_of(s->quant);
    of = moek_weight_scale(f, block_of(s));
    scales = moek_scale_count(&of, ROWS, COLUMNS);
    s->w = s->codes == CODES_BYTES ? all : all * (size_t)f->w_bits / 8;
    if (plain(s)) s->w = all * scale_bytes(s->type);
    if (in_blocks(s)) s->w = all / (s->codes == CODES_GGUF_64 ? 64 : 32) * block_bytes(s);
    s->scale = s->scales == SCALES_BLOCKS ? 0 : s->scales == SCALES_ONE ? 4 : scales * scale_bytes(s->type);
    s->zero = s->zeros && f->zero ? scales / 2 : 0;
}
static size_t matrix_bytes(const subject *s) { return (s->w + s->scale + s->zero + 255) / 256 * 256; }
static int matrices(const subject *s) { return (int)(POOL / matrix_bytes(s)); }

/* Codes are random, scales near 1 / 64, of either sign where that may be. */
static void fill(const subject *s)
{
    const size_t each = matrix_bytes(s);
    uint32_t state = 1;
    size_t m, i;
    for (m = 0; m < (size_t)matrices(s); m++) {
        unsigned char *const at = from + m * each;
        for (i = 0; i + 4 <= each; i += 4) {
            uint32_t bits;
            state = state * 1664525u + 1013904223u;
            bits = state ^ state >> 13;
            if (s->codes == CODES_BYTES) bits = ((bits & 0x0f0f0f0f) ^ 0x08080808) - 0x08080808u;
            if (plain(s))
                bits = s->type == MOEK_DTYPE_F32 ? (bits & 0x807fffff) | 0x3c000000 : (bits & 0x807f807f) | 0x3c003c00;
            if (i >= s->w && i < s->w + s->scale)
                bits = s->type == MOEK_DTYPE_F32 ? 0x3c800000 + (bits & 0x7fffff)
                     : s->type == MOEK_DTYPE_FP16 ? 0x24002400 + (bits & 0x03f003f0)
                     : s->type ? 0x3c803c80 + (bits & 0x007f007f) : 0x38383838 + (bits & 0x07070707);
            memcpy(at + i, &bits, 4);
        }
        for (i = 0; in_blocks(s) && i < s->w; i += block_bytes(s)) {
            const unsigned char e8m0 = (unsigned char)(120 + at[i] % 8), half[2] = { at[i], 0x24 };
            if (s->type) memcpy(at + i, half, 2);
            else if (s->codes == CODES_GGUF_64) memset(at + i, 0x38 + at[i] % 8, 4);
            else at[i] = e8m0;
        }
    }
}
static void run(const subject *s, int m, moek_import_report *report)
{
    static float second = 0.5f, other;
    unsigned char *const at = from + (size_t)m * matrix_bytes(s);
    const moek_format *const f = moek_format_of(s->quant);
    const size_t all = (size_t)ROWS * COLUMNS, w = all * (size_t)f->w_bits / 8;
    unsigned char *const out = to + (size_t)m * (POOL * 5 / 4 / (size_t)matrices(s) / 256 * 256);
    char why[256] = "";
    moek_import_args a;
    memset(&a, 0, sizeof a);
    a.source = s->source; a.quant = s->quant; a.rows = ROWS; a.columns = COLUMNS; a.block = block_of(s);
    a.their_w = at; a.w = out; a.scale = out + w;
    if (s->scale) a.their_scale = at + s->w;
    if (s->zero) { a.their_zero = at + s->w + s->scale; a.zero = out + w + all / 16; }
    if (f->global_scale) { a.global = &other; a.their_global = &second; }
    a.report = report; a.why = why; a.why_size = sizeof why;
    if (moek_import(0, &a, 0) != MOEK_OK) { printf("%s: %s\n", s->name, why); exit(1); }
}
static void copied(const subject *s, int m)
{
    const unsigned char *const at = from + (size_t)m * matrix_bytes(s);
    const int bytes = (int)(s->w + s->scale + s->zero);
    unsigned char *const out = to + (size_t)m * matrix_bytes(s);
    int i;
#ifdef _OPENMP
    if (omp_get_max_threads() > 1) {
#pragma omp parallel for
        for (i = 0; i < bytes; i += COPY)
            memcpy(out + i, at + i, (size_t)(bytes - i < COPY ? bytes - i : COPY));
        return;
    }
#endif
    (void)i;
    memcpy(out, at, (size_t)bytes);
}
static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void time_of(const subject *s, int rounds)
{
    const int n = matrices(s);
    const double gigabytes = 1e-9 * (double)(s->w + s->scale + s->zero);
    double *const times[2] = { (double *)malloc(sizeof(double) * (size_t)(n * rounds)),
                               (double *)malloc(sizeof(double) * (size_t)(n * rounds)) }, best[2];
    moek_import_report report;
    int r, m, i;
    memset(&report, 0, sizeof report);
    for (r = 0; r < rounds; r++)
        for (i = 0; i < 2; i++)
            for (m = 0; m < n; m++) {
                const double t = seconds();
                if (i) copied(s, m);
                else run(s, m, &report);
                times[i][r * n + m] = seconds() - t;
            }
    for (i = 0; i < 2; i++) {
        qsort(times[i], (size_t)(n * rounds), sizeof(double), by_time);
        best[i] = times[i][n * rounds / 10];
        free(times[i]);
    }
    printf("%-15s %-10s %7.2f %7.2f %6.2f\n", s->name, moek_quant_name(s->quant), gigabytes / best[0],
           gigabytes / best[1], best[1] / best[0]);
    fflush(stdout);
}
int main(int argc, char **argv)
{
    int i, j, rounds = 5, threads = 1;
    if (argc > 2 && !strcmp(argv[1], "-r")) rounds = atoi(argv[2]), argc -= 2, argv += 2;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    from = (unsigned char *)malloc(POOL);
    to = (unsigned char *)malloc(POOL * 2);
    if (!from || !to) return 1;
    memset(to, 1, POOL * 2);
    printf("# %d threads, matrices of %d x %d, group %d, %d rounds\n", threads, ROWS, COLUMNS, GROUP, rounds);
    printf("%-15s %-10s %7s %7s %6s\n", "source", "becomes", "GB/s", "memcpy", "part");
    for (i = 0; i < SUBJECTS; i++) {
        for (j = 1; j < argc && strcmp(argv[j], subjects[i].name); j++) { }
        if (argc > 1 && j == argc) continue;
        sizes(&subjects[i]);
        fill(&subjects[i]);
        time_of(&subjects[i], rounds);
    }
    free(from); free(to);
    return 0;
}
