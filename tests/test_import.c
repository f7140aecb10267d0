/* test_import.c -- moek_import.h: every source of MOEK_EACH_SOURCE, on the host and as kernels.
 *
 *   test_import [quick] [FOLDER OF import_golden.tsv, gguf_import_golden.tsv, quantize_golden.tsv]
 *
 * What a checkpoint's bytes mean is written here once more, element by element, from the page on formats: source_code,
 * source_scale, source_zero.  moek's arrays are read by ref.h. */
#ifdef MOEK_EMU
#include "emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include "check.h"
#include "mem.h"
#include "ref.h"
#include "quick.h"
#include <limits.h>

enum { GUARD = 64, POISON = 0xa5 };
enum { ROWS, GROUPS, ONE, BLOCKS };
#define FACTS_(name, number, quant, codes, flip, scales, type, zeros, less, global) \
    { MOEK_FROM_##name, MOEK_##quant, MOEK_DTYPE_##type, scales },
static const struct { int source, quant, type, scales; } facts[] = { MOEK_EACH_SOURCE(FACTS_) };
enum { SOURCES = sizeof facts / sizeof facts[0] };
static int source_at(int source)
{
    int i = 0;
    while (facts[i].source != source) i++;
    return i;
}

/* ---- a matrix of a checkpoint ------------------------------------------------------------------------------------ */

typedef struct matrix {
    int source, rows, columns, block, dtype, scale_dtype, scale_rows, groups, step, has_zero, keep_zero, swizzled;
    int told;                                          /* the call says what the file says of its arrays */
    int quant;                                         /* as the call says it; 0: what the source becomes */
    const moek_format *format;                         /* with its block */
    size_t w_bytes, scale_bytes, zero_bytes, our_w, our_scale, our_zero;       /* ours: of all rows * step */
    unsigned char *w, *scale, *zero;                   /* the checkpoint's, host */
    float global;
    int32_t *row_order, *column_order;                 /* host, or NULL */
    const int32_t *g_idx;                              /* groups of the columns, if not in order */
    char what[160];
} matrix;

static int is_gptq(int s)
{
    return s == MOEK_FROM_GPTQ_INT4 || s == MOEK_FROM_GPTQ_INT8 || s == MOEK_FROM_GPTQ_V2_INT4 ||
           s == MOEK_FROM_GPTQ_V2_INT8;
}
static int is_v1(int s) { return s == MOEK_FROM_GPTQ_INT4 || s == MOEK_FROM_GPTQ_INT8; }
static int is_packed(int s) { return s == MOEK_FROM_PACKED_INT4 || s == MOEK_FROM_PACKED_INT8; }
static int is_nvfp4(int s)
{
    return s == MOEK_FROM_NVFP4_MODELOPT || s == MOEK_FROM_NVFP4_PACKED || s == MOEK_FROM_NVFP4_GGUF;
}
/* Blocks of GGUF: columns of a block and of a scale, bytes of a scale.  NULL: another source. */
typedef struct gguf_block { int source, columns, group, scale; } gguf_block;
static const gguf_block *gguf_of(int s)
{
    static const gguf_block all[] = {
        { MOEK_FROM_MXFP4_GGUF, 32, 32, 1 }, { MOEK_FROM_NVFP4_GGUF, 64, 16, 1 }, { MOEK_FROM_Q4_0_GGUF, 32, 32, 2 }
    };
    int i;
    for (i = 0; i < 3; i++) if (all[i].source == s) return &all[i];
    return NULL;
}
static int gguf_bytes(const gguf_block *b) { return b->columns / b->group * b->scale + b->columns / 2; }
static int takes_zero(int s) { return is_gptq(s) || is_packed(s) || s == MOEK_FROM_AWQ; }
static int is_byte(int s)
{
    return s == MOEK_FROM_INT4_BYTES || s == MOEK_FROM_INT8_BYTES || s == MOEK_FROM_FP8_TENSOR ||
           s == MOEK_FROM_FP8_CHANNEL || s == MOEK_FROM_FP8_BLOCK || s == MOEK_FROM_MXFP8;
}
static int is_int(const matrix *m) { return format_integers(m->format); }
/* Is the type of scales the file's own choice? */
static int is_open(const moek_format *f)
{
    return f->w_scale.type == MOEK_SCALE_TYPE_F32 || f->w_scale.type == MOEK_SCALE_TYPE_T;
}
static int up(int n, int by) { return (n + by - 1) / by; }

static int scale_size(const matrix *m)
{
    return !is_open(m->format) || m->scale_dtype == MOEK_DTYPE_E8M0 ? 1 : m->scale_dtype == MOEK_DTYPE_F32 ? 4 : 2;
}
static unsigned word_slot(const unsigned char *words, size_t word, int slot, int bits)
{
    const unsigned char *b = words + 4 * word;
    const uint32_t w = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return w >> (slot * bits) & ((1u << bits) - 1);
}
/* Bits of the element, as the file has them. */
static unsigned source_code(const matrix *m, int n, int k)
{
    static const int awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };              /* where element i of 8 is */
    const int bits = m->format->w_bits, per = 32 / bits;
    const size_t N = (size_t)m->rows, K = (size_t)m->columns;
    if (is_gptq(m->source)) return word_slot(m->w, (size_t)(k / per) * N + (size_t)n, k % per, bits);
    if (is_packed(m->source))
        return word_slot(m->w, (size_t)n * (size_t)up(m->columns, per) + (size_t)(k / per), k % per, bits);
    if (m->source == MOEK_FROM_AWQ) return word_slot(m->w, (size_t)k * (N / 8) + (size_t)(n / 8), awq[n % 8], 4);
    if (gguf_of(m->source)) {
        const gguf_block *b = gguf_of(m->source);
        const size_t number = (size_t)n * (K / (size_t)b->columns) + (size_t)(k / b->columns);
        const unsigned char *group = m->w + number * (size_t)gguf_bytes(b) + b->columns / b->group * b->scale +
                                     k % b->columns / b->group * (b->group / 2);
        return k % b->group < b->group / 2 ? group[k % b->group] & 15 : group[k % b->group - b->group / 2] >> 4;
    }
    if (is_byte(m->source)) return m->w[(size_t)n * K + (size_t)k];
    return m->w[(size_t)n * (K / 2) + (size_t)(k / 2)] >> (k % 2 * 4) & 15;
}
static double source_element(const matrix *m, unsigned code, double zero)
{
    if (!is_int(m)) return ref_decode(&ref_numbers[m->format->w_bits == 8 ? REF_E4M3 : REF_E2M1], code);
    if (is_byte(m->source)) return code < 128 ? code : (double)code - 256;
    if (m->source == MOEK_FROM_INT4_SIGNED) return code < 8 ? code : (double)code - 16;
    return (double)code - zero;
}
/* Where the scale of row n, group g is: its number in the array.  (n: of rows of scales.) */
static size_t scale_at(const matrix *m, int n, int g)
{
    if (is_gptq(m->source) || m->source == MOEK_FROM_AWQ) return (size_t)g * (size_t)m->rows + (size_t)n;
    if (m->source == MOEK_FROM_FP8_TENSOR) return 0;
    if (m->swizzled) {                                 /* [n / 128][g / 4][n % 32][n / 32 % 4][g % 4] */
        size_t i = (size_t)(n / 128) * (size_t)up(m->groups, 4) + (size_t)(g / 4);
        i = i * 32 + (size_t)(n % 32);
        i = i * 4 + (size_t)(n / 32 % 4);
        return i * 4 + (size_t)(g % 4);
    }
    return (size_t)n * (size_t)m->groups + (size_t)g;
}
/* A scale of the file, by its number. */
static unsigned char *scale_place(const matrix *m, size_t i)
{
    const gguf_block *b = gguf_of(m->source);
    const size_t per = b ? (size_t)(b->columns / b->group) : 1;
    if (!b) return m->scale + i * (size_t)scale_size(m);
    return m->w + i / per * (size_t)gguf_bytes(b) + i % per * (size_t)b->scale;
}
static double scale_of(const matrix *m, int n, int g)
{
    const size_t i = scale_at(m, n, g);
    if (m->source == MOEK_FROM_MXFP4_GGUF) return ref_decode(&ref_numbers[REF_E8M0], *scale_place(m, i));
    if (m->source == MOEK_FROM_NVFP4_GGUF) return ref_decode(&ref_numbers[REF_E4M3], *scale_place(m, i));
    if (m->source == MOEK_FROM_Q4_0_GGUF) return ref_get_t(scale_place(m, i), 0, MOEK_DTYPE_FP16);
    if (is_open(m->format) && m->scale_dtype == MOEK_DTYPE_E8M0)
        return ref_decode(&ref_numbers[REF_E8M0], m->scale[i]);
    if (m->format->w_scale.type == MOEK_SCALE_TYPE_E8M0) return ref_decode(&ref_numbers[REF_E8M0], m->scale[i]);
    if (m->format->w_scale.type == MOEK_SCALE_TYPE_E4M3) return ref_decode(&ref_numbers[REF_E4M3], m->scale[i]);
    if (m->scale_dtype == MOEK_DTYPE_F32) return ref_get(&ref_numbers[REF_F32], m->scale, i);
    return ref_get_t(m->scale, i, m->scale_dtype);
}
/* The row of scales that a row of the matrix has. */
static int scale_row(const matrix *m, int n)
{
    return m->format->w_scale.rows ? n / m->format->w_scale.rows : 0;
}
static double source_scale(const matrix *m, int n, int g) { return scale_of(m, scale_row(m, n), g); }
static double source_zero(const matrix *m, int n, int g)
{
    static const int awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    const int bits = m->format->w_bits, per = 32 / bits, middle = 1 << (bits - 1), N = m->rows;
    unsigned z;
    if (!m->has_zero) return middle;
    if (is_packed(m->source))
        return word_slot(m->zero, (size_t)(n / per) * (size_t)m->groups + (size_t)g, n % per, bits);
    z = word_slot(m->zero, (size_t)g * (size_t)up(N, per) + (size_t)(n / per),
                  m->source == MOEK_FROM_AWQ ? awq[n % per] : n % per, bits);
    return is_v1(m->source) ? (z + 1) % (2 * (unsigned)middle) : z;
}
static double source_second(const matrix *m)
{
    return !is_nvfp4(m->source) ? 1 : m->source == MOEK_FROM_NVFP4_PACKED ? 1.0f / m->global : m->global;
}
/* The scale as moek's array can hold it. */
static double rounded_scale(const matrix *m, double s)
{
    return m->format->w_scale.type == MOEK_SCALE_TYPE_T ? ref_round_t(s, m->dtype) : s;
}
static int columns_of_scale(const matrix *m)
{
    return m->format->w_scale.columns ? m->format->w_scale.columns : m->columns;
}

static void matrix_sizes(matrix *m)
{
    const size_t N = (size_t)m->rows, K = (size_t)m->columns;
    const int bits = m->format->w_bits, per = 32 / bits;
    const size_t all = N * (size_t)m->step;
    m->groups = up(m->columns, columns_of_scale(m));
    m->scale_rows = m->format->w_scale.rows ? up(m->rows, m->format->w_scale.rows) : 1;
    m->w_bytes = is_byte(m->source) ? N * K : N * K / 2;
    if (is_packed(m->source)) m->w_bytes = N * (size_t)up(m->columns, per) * 4;
    if (is_gptq(m->source)) m->w_bytes = N * (size_t)up(m->columns, per) * 4;
    if (gguf_of(m->source))
        m->w_bytes = N * K / (size_t)gguf_of(m->source)->columns * (size_t)gguf_bytes(gguf_of(m->source));
    m->scale_bytes = (size_t)m->scale_rows * (size_t)m->groups * (size_t)scale_size(m);
    if (gguf_of(m->source)) m->scale_bytes = 0;
    if (m->source == MOEK_FROM_FP8_TENSOR) m->scale_bytes = (size_t)scale_size(m);
    if (m->swizzled) m->scale_bytes = (size_t)up(m->rows, 128) * 128 * (size_t)up(m->groups, 4) * 4;
    m->zero_bytes = m->has_zero ? (size_t)up(m->rows, per) * (size_t)m->groups * 4 : 0;
    m->our_w = all * moek_element_bytes(m->format->w, K);
    m->our_scale = moek_scale_bytes(&m->format->w_scale, m->format->w_scale.rows == 1 ? all : N, K);
    m->our_zero = m->keep_zero ? all * moek_element_bytes(m->format->w, (size_t)m->groups) : 0;
}

/* ---- random ones ------------------------------------------------------------------------------------------------- */

enum { SANE, HOSTILE };                                /* scales: near 2^-4, exact in each T; any bits */
static void random_bytes(unsigned char *p, size_t n) { while (n--) *p++ = (unsigned char)rng_u32(); }
static unsigned sane_scale(const matrix *m)
{
    const double v = ldexp(64 + rng_below(64), -10 - rng_below(3)) * (is_int(m) && rng_below(2) ? -1 : 1);
    if (m->format->w_scale.type == MOEK_SCALE_TYPE_E8M0) return 121 + (unsigned)rng_below(4);
    if (m->format->w_scale.type == MOEK_SCALE_TYPE_E4M3) return 0x20 + (unsigned)rng_below(0x20);
    if (m->scale_dtype == MOEK_DTYPE_E8M0) return 121 + (unsigned)rng_below(4);
    return ref_encode(m->scale_dtype == MOEK_DTYPE_F32 ? &ref_numbers[REF_F32] : ref_t(m->scale_dtype), v);
}
static void put_scale(matrix *m, size_t i, unsigned bits)
{
    const int size = scale_size(m);
    int b;
    unsigned char *const to = scale_place(m, i);
    for (b = 0; b < size; b++) to[b] = (unsigned char)(bits >> 8 * b);
}
/* Unused bits of words are 0. */
static void clear_unused(matrix *m)
{
    const int bits = m->format->w_bits, per = 32 / bits, words = up(m->columns, per), used = m->columns % per;
    int n, g, i;
    if (used && (is_packed(m->source) || is_gptq(m->source)))
        for (n = 0; n < m->rows; n++) {
            const size_t w = is_gptq(m->source) ? (size_t)(words - 1) * (size_t)m->rows + (size_t)n
                                                : (size_t)n * (size_t)words + (size_t)words - 1;
            for (i = used * bits / 8; i < 4; i++) m->w[4 * w + (size_t)i] = 0;
        }
    if (m->has_zero && m->rows % per)
        for (g = 0; g < m->groups; g++) {
            const int last = m->rows / per;
            const size_t w = is_packed(m->source) ? (size_t)last * (size_t)m->groups + (size_t)g
                                                  : (size_t)g * (size_t)(last + 1) + (size_t)last;
            for (i = 0; i < 32; i++)
                if (i / bits >= m->rows % per) m->zero[4 * w + (size_t)(i / 8)] &= (unsigned char)~(1 << i % 8);
        }
}
static void matrix_fill(matrix *m, int scales, int middle_zeros)
{
    const int bits = m->format->w_bits;
    int n, g;
    size_t i;
    m->w = (unsigned char *)ref_alloc(m->w_bytes);
    m->scale = (unsigned char *)ref_alloc(m->scale_bytes);
    m->zero = (unsigned char *)ref_alloc(m->zero_bytes);
    random_bytes(m->w, m->w_bytes);
    random_bytes(m->zero, m->zero_bytes);
    for (i = 0; m->source == MOEK_FROM_INT4_BYTES && i < m->w_bytes; i++) m->w[i] = (unsigned char)(rng_below(16) - 8);
    if (m->format->w == MOEK_ELEMENT_E4M3 && scales == SANE)
        for (i = 0; i < m->w_bytes; i++) m->w[i] &= 0xbf;                        /* below 2, no NaN */
    for (n = 0; n < m->scale_rows; n++)
        for (g = 0; g < m->groups; g++)
            put_scale(m, scale_at(m, n, g), scales == SANE ? sane_scale(m) : rng_u32() % 9 ? rng_u32() : 0);
    if (middle_zeros)
        memset(m->zero, (bits == 8 ? 0x80 : 0x88) - (is_v1(m->source) ? bits == 8 ? 1 : 0x11 : 0), m->zero_bytes);
    clear_unused(m);
    m->global = ldexpf(1.0f + rng_uniform(), m->source == MOEK_FROM_NVFP4_PACKED ? 2 : -3);
}
static int32_t *random_order(int n)
{
    int32_t *order = (int32_t *)ref_alloc(4 * (size_t)n);
    int i;
    for (i = 0; i < n; i++) order[i] = i;
    for (i = n - 1; i > 0; i--) {
        const int j = rng_below(i + 1);
        const int32_t t = order[i];
        order[i] = order[j]; order[j] = t;
    }
    return order;
}
static void matrix_free(matrix *m)
{
    free(m->w); free(m->scale); free(m->zero); free(m->row_order); free(m->column_order);
}

/* ---- where a call works ------------------------------------------------------------------------------------------ */

/* An array there, between guards; `host` is its content, or NULL: poison. */
typedef struct there { unsigned char *at; size_t bytes; int arch; } there;
static there put_there(int arch, const void *host, size_t bytes)
{
    unsigned char *all = (unsigned char *)ref_alloc(bytes + 2 * GUARD);
    there t;
    t.bytes = bytes; t.arch = arch;
    memset(all, POISON, bytes + 2 * GUARD);
    if (host) memcpy(all + GUARD, host, bytes);
    t.at = (unsigned char *)mem_alloc(arch, bytes + 2 * GUARD) + GUARD;
    mem_put(arch, t.at - GUARD, all, bytes + 2 * GUARD);
    free(all);
    return t;
}
/* The content, which the caller frees; frees the array there.  Checks the guards. */
static unsigned char *take_back(there t, const char *what)
{
    unsigned char *all = (unsigned char *)ref_alloc(t.bytes + 2 * GUARD);
    int i, intact = 1;
    mem_get(t.arch, all, t.at - GUARD, t.bytes + 2 * GUARD);
    mem_free(t.arch, t.at - GUARD);
    for (i = 0; i < GUARD; i++) intact &= all[i] == POISON && all[GUARD + t.bytes + (size_t)i] == POISON;
    CHECK(intact, "%s: wrote outside an array", what);
    memmove(all, all + GUARD, t.bytes);
    return all;
}

typedef struct imported {
    unsigned char *w, *scale, *zero;
    float global;
    moek_import_report report;
} imported;
static void imported_free(imported *i) { free(i->w); free(i->scale); free(i->zero); }

static void tensor(moek_import_tensor *t, int slow, int fast, size_t bytes)
{
    t->shape[0] = slow; t->shape[1] = fast; t->bytes = bytes;
}
/* What the file says. */
static void matrix_tensors(const matrix *m, moek_import_args *a)
{
    const int per = 32 / m->format->w_bits, gptq = is_gptq(m->source), awq = m->source == MOEK_FROM_AWQ;
    const int N = m->rows, K = m->columns, packed = is_packed(m->source);
    if (gptq) tensor(&a->w_tensor, up(K, per), N, m->w_bytes);
    else if (awq) tensor(&a->w_tensor, K, N / 8, m->w_bytes);
    else tensor(&a->w_tensor, N, (int)(m->w_bytes / (size_t)N / (packed ? 4 : 1)), m->w_bytes);
    if (gptq || awq) tensor(&a->scale_tensor, m->groups, N, m->scale_bytes);
    else if (m->source == MOEK_FROM_FP8_TENSOR) tensor(&a->scale_tensor, 1, 0, m->scale_bytes);
    else tensor(&a->scale_tensor, m->scale_rows, m->groups, m->scale_bytes);
    if (m->swizzled) tensor(&a->scale_tensor, up(N, 128) * 128, up(m->groups, 4) * 4, m->scale_bytes);
    if (packed) tensor(&a->zero_tensor, up(N, per), m->groups, m->zero_bytes);
    else tensor(&a->zero_tensor, m->groups, up(N, per), m->zero_bytes);
    tensor(&a->global_tensor, 1, 0, 4);
    if (m->source == MOEK_FROM_MXFP4) {                /* as gpt-oss has it */
        a->w_tensor.shape[1] = K / 32; a->w_tensor.shape[2] = 16;
    }
    if (m->source == MOEK_FROM_FP8_BLOCK) {            /* as ModelOpt has it */
        a->scale_tensor.shape[1] = 1; a->scale_tensor.shape[2] = m->groups; a->scale_tensor.shape[3] = 1;
    }
}
static moek_import_args matrix_args(const matrix *m)
{
    moek_import_args a;
    memset(&a, 0, sizeof a);
    a.source = m->source; a.rows = m->rows; a.columns = m->columns; a.block = m->block; a.dtype = m->dtype;
    a.quant = m->quant;
    if (is_open(m->format) && !gguf_of(m->source)) a.scale_dtype = m->scale_dtype;
    a.row_step = m->step;
    if (m->swizzled) a.scale_order = MOEK_SCALE_ORDER_128X4;
    if (m->told) matrix_tensors(m, &a);
    return a;
}
/* back: host arrays of `from` are moek's; the result has the checkpoint's. */
static imported run(int arch, const matrix *m, int back, const imported *from)
{
    const size_t in[4] = { back ? m->our_w : m->w_bytes, back ? m->our_scale : m->scale_bytes,
                           back ? m->our_zero : m->zero_bytes, 4 };
    const size_t out[4] = { back ? m->w_bytes : m->our_w, back ? m->scale_bytes : m->our_scale,
                            back ? m->zero_bytes : m->our_zero, 4 };
    const void *host[4];
    there i[4], o[4], report, rows, columns;
    moek_import_args a = matrix_args(m);
    moek_import_report none;
    imported r;
    moek_status status;
    unsigned char *got;
    char why[256] = "";
    int j;
    memset(&none, 0, sizeof none);
    host[0] = back ? from->w : m->w; host[1] = back ? from->scale : m->scale; host[2] = back ? from->zero : m->zero;
    host[3] = back ? &from->global : &m->global;
    for (j = 0; j < 4; j++) { i[j] = put_there(arch, host[j], in[j]); o[j] = put_there(arch, NULL, out[j]); }
    report = put_there(arch, &none, sizeof none);
    rows = put_there(arch, m->row_order, m->row_order ? 4 * (size_t)m->rows : 0);
    columns = put_there(arch, m->column_order, m->column_order ? 4 * (size_t)m->columns : 0);
    a.their_w = back ? o[0].at : i[0].at; a.w = back ? i[0].at : o[0].at;
    a.scale = back ? i[1].at : o[1].at;
    if (m->scale_bytes) a.their_scale = back ? o[1].at : i[1].at;
    if (m->zero_bytes) a.their_zero = back ? o[2].at : i[2].at;
    if (m->our_zero) a.zero = back ? i[2].at : o[2].at;
    if (is_nvfp4(m->source)) {
        a.their_global = (float *)(back ? o[3].at : i[3].at);
        a.global = (float *)(back ? i[3].at : o[3].at);
    }
    a.row_order = m->row_order ? (const int32_t *)rows.at : NULL;
    a.column_order = m->column_order ? (const int32_t *)columns.at : NULL;
    a.report = (moek_import_report *)report.at;
    a.why = why; a.why_size = sizeof why;
    status = back ? moek_export(arch, &a, 0) : moek_import(arch, &a, 0);
    CHECK(status == MOEK_OK, "%s: %s: %s", m->what, moek_status_name(status), why);
    for (j = 0; j < 4; j++) {
        got = take_back(i[j], m->what);
        CHECK(!in[j] || !memcmp(got, host[j], in[j]), "%s: an input was written to", m->what);
        free(got);
    }
    r.w = take_back(o[0], m->what); r.scale = take_back(o[1], m->what); r.zero = take_back(o[2], m->what);
    got = take_back(o[3], m->what); memcpy(&r.global, got, 4); free(got);
    got = take_back(report, m->what); memcpy(&r.report, got, sizeof r.report); free(got);
    free(take_back(rows, m->what)); free(take_back(columns, m->what));
    return r;
}

/* ---- what must be there ------------------------------------------------------------------------------------------ */

static int same(double a, double b) { return isnan(b) ? isnan(a) : a == b; }
static double our_value(const matrix *m, const imported *got, int n, int k)
{
    const moek_format *f = m->format;
    const size_t row = (size_t)n * (size_t)m->step, groups = (size_t)m->groups;
    const size_t g = (size_t)(k / columns_of_scale(m));
    const size_t at = f->w_scale.rows == 1 ? row : (size_t)scale_row(m, n);
    const ref_number *const e = ref_element(f->w, m->dtype);
    const unsigned char *w = got->w + row * moek_element_bytes(f->w, (size_t)m->columns);
    const double scale = ref_get(ref_scale_type(f->w_scale.type, m->dtype), got->scale, at * groups + g);
    double v = ref_decode(e, ref_code(e, w, (size_t)k));
    if (m->our_zero)
        v = ref_code(e, w, (size_t)k) -
            (double)ref_code(e, got->zero + row * moek_element_bytes(f->w, groups), g);
    return v * scale * (f->second ? got->global : 1);
}
static double source_value(const matrix *m, int n, int k)
{
    const int g = k / columns_of_scale(m), row = m->row_order ? m->row_order[n] : n;
    const unsigned code = source_code(m, row, m->column_order ? m->column_order[k] : k);
    const double zero = m->has_zero && !m->keep_zero ? 1 << (m->format->w_bits - 1) : source_zero(m, row, g);
    return source_element(m, code, zero) * rounded_scale(m, source_scale(m, row, g)) *
           source_second(m);
}
static void check_values(const matrix *m, const imported *got)
{
    int n, k, wrong = 0, at_n = 0, at_k = 0;
    size_t i, untouched = 1;
    const size_t pitch = m->our_w / (size_t)(m->rows * m->step);
    for (n = 0; n < m->rows; n++)
        for (k = 0; k < m->columns; k++)
            if (!same(our_value(m, got, n, k), source_value(m, n, k)) && !wrong++) { at_n = n; at_k = k; }
    CHECK(!wrong, "%s: %d values differ, first [%d][%d]: %g instead of %g", m->what, wrong, at_n, at_k,
          our_value(m, got, at_n, at_k), source_value(m, at_n, at_k));
    for (n = 1; n < m->rows * m->step; n += m->step)
        for (i = 0; m->step == 2 && i < pitch; i++) untouched &= got->w[(size_t)n * pitch + i] == POISON;
    CHECK(untouched, "%s: wrote to a row between", m->what);
}

/* What the report must say of scales; the exponents of the smallest and the largest. */
static void want_scales(const matrix *m, moek_import_report *of, int *lowest, int *highest)
{
    moek_import_report want = *of;
    int n, g, low = 999, high = -999;
    for (n = 0; n < m->scale_rows; n++) {
        int most = -999;
        for (g = 0; g < m->groups; g++) {
            const double s = scale_of(m, n, g), t = rounded_scale(m, s);
            int e;
            want.scales++;
            want.scales_zero += s == 0;
            want.scales_nan += !isfinite(s);
            if (m->format->w_scale.type == MOEK_SCALE_TYPE_E4M3)
                want.scales_negative += *scale_place(m, scale_at(m, n, g)) >> 7;
            else want.scales_negative += signbit(s) != 0 && !isnan(s);
            if (isfinite(s)) want.scales_rounded += t != s;
            if (isfinite(s) && s != 0) want.scales_lost += t == 0 || !isfinite(t);
            if (!isfinite(s) || s == 0) continue;
            frexp(s, &e);
            e--;
            low = e < low ? e : low; high = e > high ? e : high; most = s > 0 && e > most ? e : most;
        }
        for (g = 0; !is_open(m->format) && g < m->groups; g++) {
            const double s = scale_of(m, n, g);
            int e;
            if (!isfinite(s) || !(s > 0)) continue;
            frexp(s, &e);
            want.groups_beyond += e - 1 < most - (m->format->second ? 10 : 11);
        }
    }
    if (!is_int(m)) want.signs_bad = want.scales_negative;
    *of = want;
    *lowest = low; *highest = high;
}
static void check_report(const matrix *m, const moek_import_report *r)
{
    moek_import_report want;
    int n, g, k, low, high, got_low = 999, got_high = -999;
    const int top = (1 << m->format->w_bits) - 1, middle = (top + 1) / 2;
    memset(&want, 0, sizeof want);
    want_scales(m, &want, &low, &high);
    for (n = 0; n < m->rows; n++) {
        for (k = 0; is_int(m) && !m->has_zero && !m->keep_zero && k < m->columns; k++)
            want.codes_lowest += source_element(m, source_code(m, n, k), middle) == -middle;
        for (g = 0; m->has_zero && g < m->groups; g++) {
            want.zeros++;
            want.zeros_other += is_gptq(m->source) && source_zero(m, n, g) == middle + (is_v1(m->source) ? 1 : -1);
            if (m->keep_zero) want.zeros_wrapped += is_v1(m->source) && source_zero(m, n, g) == 0;
            else want.zeros_lost += source_zero(m, n, g) != middle;
        }
    }
    if (m->source == MOEK_FROM_NVFP4_PACKED) want.globals_rounded = 1.0f / (1.0f / m->global) != m->global;
#define SAME_(name, text) \
    CHECK(r->name == want.name, "%s: %s: %llu instead of %llu", m->what, #name, (unsigned long long)r->name, \
          (unsigned long long)want.name);
    if (!is_open(m->format) || !r->scales_nan) { MOEK_EACH_IMPORT_COUNT(SAME_) }   /* (a NaN's sign is not ref.h's) */
#undef SAME_
    CHECK(moek_import_exponents(r, &got_low, &got_high) == (low != 999), "%s", m->what);
    CHECK(got_low == low && got_high == high, "%s: exponents %d to %d instead of %d to %d", m->what, got_low, got_high,
          low, high);
}

static void invert(int32_t **order, int n)
{
    int32_t *inverse;
    if (!*order) return;
    inverse = (int32_t *)ref_alloc(4 * (size_t)n);
    CHECK(moek_import_inverse(*order, n, inverse) == MOEK_OK, "an order of %d", n);
    free(*order);
    *order = inverse;
}
static int scale_same_type(const matrix *m)
{
    return !is_open(m->format) || (m->format->w_scale.type == MOEK_SCALE_TYPE_T ? m->scale_dtype == m->dtype
                                                                               : m->scale_dtype == MOEK_DTYPE_F32);
}
/* Are elements those of the checkpoint?  In blocks scales lie between them, which may have been rounded. */
static int same_elements(const matrix *m, const unsigned char *w, int scales)
{
    const gguf_block *b = gguf_of(m->source);
    const size_t bytes = b ? (size_t)gguf_bytes(b) : m->w_bytes, lead = bytes - (b ? (size_t)b->columns / 2 : bytes);
    const int all = scales == SANE || scale_same_type(m);
    size_t at;
    for (at = 0; b && at < m->w_bytes; at += bytes)
        if (memcmp(w + at + (all ? 0 : lead), m->w + at + (all ? 0 : lead), bytes - (all ? 0 : lead))) return 0;
    return b || !memcmp(w, m->w, m->w_bytes);
}
/* Import on each device that there is, the same bytes and report; back, the bytes of the checkpoint. */
static void check_matrix(matrix *m, int scales)
{
    const imported host = run(0, m, 0, NULL);
    imported r = host, back;
    int arch;
    check_values(m, &host);
    check_report(m, &host.report);
    for (arch = 80; arch && mem_can_run(arch); arch = 0) {
        r = run(arch, m, 0, NULL);
        CHECK(!memcmp(r.w, host.w, m->our_w), "%s: other elements on a GPU", m->what);
        CHECK(!memcmp(r.scale, host.scale, m->our_scale), "%s: other scales on a GPU", m->what);
        CHECK(!m->our_zero || !memcmp(r.zero, host.zero, m->our_zero), "%s: other zero points on a GPU", m->what);
        CHECK(!memcmp(&r.report, &host.report, sizeof r.report), "%s: another report on a GPU", m->what);
        CHECK(!memcmp(&r.global, &host.global, 4), "%s: another second scale on a GPU", m->what);
        imported_free(&r);
    }
    if (host.report.zeros_lost) { imported_free((imported *)&host); return; }
    invert(&m->row_order, m->rows);
    invert(&m->column_order, m->columns);
    for (arch = 0; mem_can_run(arch) && arch <= 80; arch += 80) {
        back = run(arch, m, 1, &host);
        CHECK(same_elements(m, back.w, scales), "%s: elements are not those of the checkpoint", m->what);
        if (scales == SANE || scale_same_type(m))
            CHECK(!memcmp(back.scale, m->scale, m->scale_bytes), "%s: scales are not those of the checkpoint", m->what);
        CHECK(!memcmp(back.zero, m->zero, m->zero_bytes), "%s: zero points are not those of the checkpoint", m->what);
        if (is_nvfp4(m->source) && !host.report.globals_rounded)
            CHECK(back.global == m->global, "%s: second scale %g", m->what, back.global);
        imported_free(&back);
    }
    imported_free((imported *)&host);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* The source may become it. */
static int fits(int i, const moek_format *f)
{
    const moek_format *const own = moek_format_of(facts[i].quant);
    return f->w == own->w && f->second == own->second && is_open(f) == is_open(own) && format_scaled(f) &&
           (facts[i].scales == ONE || f->w_scale.rows == own->w_scale.rows) &&
           (!gguf_of(facts[i].source) || f->blocks || f->w_scale.columns == gguf_of(facts[i].source)->group);
}
static matrix matrix_new(int i, const moek_format *f, int turn)
{
    static const int rows[] = { 8, 40, 24, 104 }, odd[] = { 7, 33, 1, 130 };
    matrix m;
    memset(&m, 0, sizeof m);
    m.source = facts[i].source;
    if (f->number != facts[i].quant || turn % 2) m.quant = f->number;
    m.block = m.source == MOEK_FROM_Q4_0_GGUF ? 32 : format_block(f, turn);
    m.format = format_with(f, m.block);
    m.dtype = turn % 2 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    m.scale_dtype = facts[i].type;
    if (is_open(f) && turn % 3 && !gguf_of(m.source)) m.scale_dtype = turn % 3 == 1 ? m.dtype : MOEK_DTYPE_F32;
    if (is_open(f) && !is_int(&m) && turn % 5 == 4) m.scale_dtype = MOEK_DTYPE_E8M0;
    m.rows = m.source == MOEK_FROM_AWQ ? rows[turn % 4] : odd[turn % 4];
    m.columns = (m.format->w_scale.columns ? m.format->w_scale.columns : 34) * (1 + rng_below(5));
    if (gguf_of(m.source)) m.columns = gguf_of(m.source)->columns * (1 + rng_below(6));
    m.step = m.format->w_scale.rows > 1 ? 1 : 1 + turn / 2 % 2;
    m.told = turn / 3 % 2;
    m.swizzled = !is_open(f) && !gguf_of(m.source) && turn % 4 > 1;
    return m;
}
static void test_source(int i, const moek_format *f, int turns)
{
    int turn;
    for (turn = 0; turn < turns; turn++) {
        const int scales = turn / 2 % 3 == 2 ? HOSTILE : SANE, orders = turn % 4 == 3 && f->w_scale.rows < 2;
        matrix m = matrix_new(i, f, turn);
        int zeros = 0;
        if (takes_zero(m.source)) zeros = turn % 4;    /* none; lost; kept; made up (int8: middle ones) */
        m.has_zero = zeros == 1 || zeros == 2;
        m.keep_zero = zeros >= 2 && m.format->zero;
        if (orders) {
            m.row_order = random_order(m.rows);
            if (is_int(&m)) m.column_order = random_order(m.columns);
        }
        matrix_sizes(&m);
        matrix_fill(&m, scales, zeros == 2 && !m.format->zero);
        snprintf(m.what, sizeof m.what, "%s to %s %d x %d block %d T %d scales %d step %d zeros %d%s%s%s%s",
                 moek_source_name(m.source), f->name, m.rows, m.columns, m.block, m.dtype, m.scale_dtype, m.step, zeros,
                 scales == HOSTILE ? " hostile" : "", orders ? " orders" : "", m.told ? " told" : "",
                 m.swizzled ? " swizzled" : "");
        check_matrix(&m, scales);
        matrix_free(&m);
    }
}

#ifndef MOEK_EMU
/* So large that rows are shared out among threads, that tiles are full, and that some are not. */
static void test_large(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    int turn;
    for (turn = 0; turn < 3; turn++) {
        matrix m = matrix_new(i, f, turn ? 4 * turn : 0);      /* none; lost or kept; with an order of rows */
        m.rows = 1112; m.columns = 1792 + (f->blocks ? 0 : f->w_scale.columns ? f->w_scale.columns : 36);
        if (gguf_of(m.source)) m.columns = m.source == MOEK_FROM_NVFP4_GGUF ? 1856 : 1824;
        m.step = 1;
        m.has_zero = turn && takes_zero(m.source);
        m.keep_zero = m.has_zero && f->zero;
        if (turn == 2 && f->w_scale.rows < 2) m.row_order = random_order(m.rows);
        matrix_sizes(&m);
        matrix_fill(&m, turn == 1 ? HOSTILE : SANE, m.has_zero && !f->zero);
        snprintf(m.what, sizeof m.what, "%s, large, turn %d", moek_source_name(m.source), turn);
        check_matrix(&m, turn == 1 ? HOSTILE : SANE);
        matrix_free(&m);
    }
}
#endif

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

enum { HIDDEN = 128, INTER = 192, EXPERTS = 4, TOPK = 2, TOKENS = 9, GROUP = 32 };

static moek_config layer_config(int quant, int layout)
{
    moek_config c;
    memset(&c, 0, sizeof c);
    c.hidden = HIDDEN; c.inter = INTER; c.experts = EXPERTS; c.topk = TOPK; c.max_tokens = TOKENS;
    c.act = MOEK_SILU; c.quant = quant; c.dtype = MOEK_DTYPE_BF16; c.up_layout = layout;
    c.block = moek_format_of(quant)->blocks ? GROUP : 0;
    c.backend = MOEK_BACKEND_CPU;
    return c;
}
static size_t aligned(size_t n) { return (n + 255) / 256 * 256; }
/* All arrays that a layer of the format has, in `arrays` (freed by the caller). */
static moek_weights layer_arrays(const moek_config *c, int zeros, void *arrays[12])
{
    const moek_format *const f = format_with(moek_format_of(c->quant), c->block);
    const int apart = c->up_layout == MOEK_UP_APART;
    size_t up_rows = (size_t)EXPERTS * INTER * (apart ? 1 : 2), rows[3], columns[3], i;
    moek_weights w;
    memset(&w, 0, sizeof w);
    rows[0] = rows[1] = up_rows; rows[2] = (size_t)EXPERTS * HIDDEN;
    columns[0] = columns[1] = HIDDEN; columns[2] = INTER;
    for (i = 0; i < 3; i++) {
        const size_t groups = moek_scale_count(&f->w_scale, 1, columns[i]);
        arrays[4 * i] = mem_alloc(0, aligned(rows[i] * moek_element_bytes(f->w, columns[i])));
        arrays[4 * i + 1] =
            mem_alloc(0, aligned(EXPERTS * moek_scale_bytes(&f->w_scale, rows[i] / EXPERTS, columns[i])));
        arrays[4 * i + 2] = mem_alloc(0, aligned(rows[i] * moek_element_bytes(f->w, groups)));
        arrays[4 * i + 3] = mem_alloc(0, 256);
    }
    w.w_up = arrays[4]; w.w_up_scale = arrays[5]; w.w_down = arrays[8]; w.w_down_scale = arrays[9];
    if (zeros) { w.w_up_zero = arrays[6]; w.w_down_zero = arrays[10]; }
    if (f->second) { w.w_up_global_scale = (float *)arrays[7]; w.w_down_global_scale = (float *)arrays[11]; }
    if (!apart) return w;
    w.w_gate = arrays[0]; w.w_gate_scale = arrays[1];
    if (zeros) w.w_gate_zero = arrays[2];
    if (f->second) w.w_gate_global_scale = (float *)arrays[3];
    return w;
}
static uint16_t *layer_run(const moek_config *config, const moek_weights *w, const char *what)
{
    moek_plan plan;
    moek_args a;
    uint16_t *const x = (uint16_t *)mem_alloc(0, 2 * TOKENS * HIDDEN);
    uint16_t *const y = (uint16_t *)mem_alloc(0, 2 * TOKENS * HIDDEN);
    int32_t ids[TOKENS * TOPK];
    float weights[TOKENS * TOPK];
    void *workspace;
    int i;
    memset(&a, 0, sizeof a);
    rng_seed(77);
    for (i = 0; i < TOKENS * HIDDEN; i++) x[i] = ref_to_t(rng_normal(), MOEK_DTYPE_BF16);
    for (i = 0; i < TOKENS * TOPK; i++) {
        ids[i] = (i / TOPK + i % TOPK * 3) % EXPERTS;
        weights[i] = 0.25f + rng_uniform();
    }
    CHECK(moek_plan_init(&plan, config) == MOEK_OK, "%s: %s", what, plan.why);
    CHECK(moek_plan_bind(&plan, w) == MOEK_OK, "%s: %s", what, plan.why);
    workspace = mem_alloc(0, moek_workspace_size(&plan));
    a.tokens = TOKENS; a.x = x; a.y = y; a.topk_ids = ids; a.topk_weights = weights;
    a.workspace = workspace; a.workspace_size = moek_workspace_size(&plan);
    CHECK(moek_run(&plan, &a, 0) == MOEK_OK, "%s: run", what);
    mem_free(0, workspace);
    mem_free(0, x);
    return y;
}
/* Imports a matrix to where it belongs, and writes what its bytes mean to `plain`: row r to first + r * step. */
static void layer_matrix(matrix *m, const moek_config *c, const moek_weights *w, int which, int expert, uint16_t *plain,
                         moek_import_report *report)
{
    moek_import_args a;
    char why[256] = "";
    int n, k;
    memset(&a, 0, sizeof a);
    a.source = m->source;
    if (is_open(m->format) && !gguf_of(m->source)) a.scale_dtype = m->scale_dtype;
    a.report = report; a.why = why; a.why_size = sizeof why;
    CHECK(moek_import_place(c, w, which, expert, &a) == MOEK_OK, "%s: %s", m->what, why);
    CHECK(a.rows == m->rows && a.columns == m->columns, "%s: %d x %d", m->what, a.rows, a.columns);
    a.their_w = m->w; a.their_scale = m->scale_bytes ? m->scale : NULL; a.their_zero = m->has_zero ? m->zero : NULL;
    if (is_nvfp4(m->source)) a.their_global = &m->global;
    a.row_order = m->row_order; a.column_order = m->column_order;
    CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s: %s", m->what, why);
    for (n = 0; n < m->rows; n++)
        for (k = 0; k < m->columns; k++) {
            const int g = m->g_idx ? m->g_idx[k] : k / columns_of_scale(m);
            plain[(size_t)n * (size_t)m->columns + (size_t)k] =
                ref_to_t(source_element(m, source_code(m, n, k), source_zero(m, n, g)) * source_scale(m, n, g) *
                         source_second(m), MOEK_DTYPE_BF16);
        }
}
static matrix layer_source(int i, const moek_format *f, int rows, int columns, int block)
{
    matrix m;
    memset(&m, 0, sizeof m);
    m.source = facts[i].source; m.rows = rows; m.columns = columns; m.block = block; m.step = 1;
    m.format = format_with(f, block);
    m.dtype = MOEK_DTYPE_BF16; m.scale_dtype = facts[i].type;
    m.has_zero = takes_zero(m.source) && m.format->zero;
    m.keep_zero = m.has_zero;
    matrix_sizes(&m);
    matrix_fill(&m, SANE, 0);
    return m;
}
/* act-order of down: groups of columns as g_idx says, and gate and up in down's order. */
static void layer_act_order(matrix m[3], int32_t *g_idx, int block)
{
    int32_t *const shuffled = random_order(INTER), *const order = (int32_t *)ref_alloc(4 * INTER);
    char why[256] = "";
    int k, i, moved = 0;
    for (k = 0; k < INTER; k++) g_idx[shuffled[k]] = k / block;
    CHECK(moek_import_order(g_idx, INTER, block, order, &moved, why, sizeof why) == MOEK_OK && moved, "%s", why);
    m[2].column_order = order;
    m[2].g_idx = g_idx;
    for (i = 0; i < 2; i++) {
        m[i].row_order = (int32_t *)ref_alloc(4 * INTER);
        memcpy(m[i].row_order, order, 4 * INTER);
    }
    free(shuffled);
}
/* The imported layer against a bf16 layer with weights read from the checkpoint's bytes by this file. */
static void test_layer_of(int i, const moek_format *f, int layout, int act_order, int fused)
{
    moek_config c = layer_config(f->number, layout);
    const double most = format_quantizes(f) ? 0.08 : 0.01;
    int plain_quant = 0;
    moek_config p;
    moek_weights w, plain;
    moek_import_report report;
    void *arrays[12], *plain_arrays[12];
    uint16_t *y, *z;
    double *want = (double *)ref_alloc(8 * TOKENS * HIDDEN);
    ref_distance far;
    char what[160], text[512];
    int e, j, n;
    if (format_rows_share(f) && layout != MOEK_UP_APART) c.up_scales = MOEK_UP_SCALES_APART;
    while (format_dtype(format_at(plain_quant)) != MOEK_DTYPE_BF16) plain_quant++;
    p = layer_config(format_at(plain_quant)->number, fused ? MOEK_UP_INTERLEAVED : MOEK_UP_HALVES);
    snprintf(what, sizeof what, "layer of %s to %s, up_layout %d%s%s", moek_source_name(facts[i].source), f->name,
             layout, act_order ? ", act-order" : "", fused ? ", gate and up in one" : "");
    memset(&report, 0, sizeof report);
    w = layer_arrays(&c, takes_zero(facts[i].source) && f->zero, arrays);
    plain = layer_arrays(&p, 0, plain_arrays);
    plain.w_up_scale = plain.w_down_scale = NULL;
    for (e = 0; e < EXPERTS; e++) {
        uint16_t *const at = (uint16_t *)plain_arrays[4] + (size_t)e * 2 * INTER * HIDDEN;
        matrix m[3];
        int32_t g_idx[INTER];
        for (j = 0; j < 3; j++)
            m[j] = layer_source(i, f, j < 2 ? INTER * (fused ? 2 : 1) : HIDDEN, j < 2 ? HIDDEN : INTER, c.block);
        if (act_order) layer_act_order(m, g_idx, c.block);
        if (!f->w_scale.rows && layout != MOEK_UP_APART) memcpy(m[1].scale, m[0].scale, m[0].scale_bytes);
        for (j = 0; j < 3; j++) snprintf(m[j].what, sizeof m[j].what, "%.100s, matrix %d", what, j);
        layer_matrix(&m[0], &c, &w, fused ? MOEK_MATRIX_GATE_UP : MOEK_MATRIX_GATE, e, at, &report);
        if (!fused) layer_matrix(&m[1], &c, &w, MOEK_MATRIX_UP, e, at + INTER * HIDDEN, &report);
        layer_matrix(&m[2], &c, &w, MOEK_MATRIX_DOWN, e, (uint16_t *)plain_arrays[8] + (size_t)e * HIDDEN * INTER,
                     &report);
        for (j = 0; j < 3; j++) matrix_free(&m[j]);
    }
    CHECK(moek_import_verdict(&report, text, sizeof text) == MOEK_OK, "%s: %s", what, text);
    CHECK(moek_import_describe(&report, text, sizeof text) == strlen(text) && strstr(text, " scales, "), "%s", text);
    y = layer_run(&c, &w, what);
    z = layer_run(&p, &plain, what);
    for (n = 0; n < TOKENS * HIDDEN; n++) want[n] = ref_get_t(z, (size_t)n, MOEK_DTYPE_BF16);
    far = ref_compare_t(y, want, TOKENS * HIDDEN, MOEK_DTYPE_BF16);
    CHECK(far.rel_l2 < most && far.same_nonfinite, "%s: %g from the bf16 layer", what, far.rel_l2);
    free(want);
    mem_free(0, y); mem_free(0, z);
    for (j = 0; j < 12; j++) { mem_free(0, arrays[j]); mem_free(0, plain_arrays[j]); }
}
static void test_layers(void)
{
    int i, layout = 0;
    for (i = 0; i < SOURCES; i++) {
        static const int layouts[] = { MOEK_UP_HALVES, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_APART };
        const moek_format *const own = moek_format_of(facts[i].quant);
        int n;
        for (n = 0; n < (quick_set ? 1 : 4); n++, layout++)
            if (!format_rows_share(own) || layouts[layout % 4] != MOEK_UP_INTERLEAVED)
                test_layer_of(i, own, layouts[layout % 4], 0, 0);
        if (quick_set && is_nvfp4(facts[i].source)) test_layer_of(i, own, layouts[layout++ % 4], 0, 0);
        layout += quick_set;
        if (facts[i].source == MOEK_FROM_MXFP4) test_layer_of(i, own, MOEK_UP_INTERLEAVED, 0, 1);
        if (facts[i].source == MOEK_FROM_GPTQ_INT4) test_layer_of(i, own, MOEK_UP_INTERLEAVED, 1, 0);
        for (n = 0; n < FORMATS && (facts[i].source == MOEK_FROM_INT4_SIGNED || facts[i].scales == ONE); n++)
            if (fits(i, format_at(n)) && format_at(n) != own) test_layer_of(i, format_at(n), MOEK_UP_HALVES, 0, 0);
    }
}

/* ---- plain weights ----------------------------------------------------------------------------------------------- */

/* What moek_import.h says of them, in double. */
typedef struct plain {
    int source, recipe, rows, columns, block, dtype, step;             /* dtype: T */
    const moek_format *format;                                         /* with its block */
    void *from;
    char what[160];
} plain;
static const ref_number *plain_number(const plain *p)
{
    return p->source == MOEK_FROM_F32 ? &ref_numbers[REF_F32]
                                      : ref_t(p->source == MOEK_FROM_FP16 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16);
}
static double plain_at(const plain *p, int n, int k)
{
    return ref_get(plain_number(p), p->from, (size_t)n * (size_t)p->columns + (size_t)k);
}
/* Of the rows and columns from n and k on; NaN: there is a NaN or an Inf. */
static double plain_most(const plain *p, int n, int k, int rows, int columns)
{
    double most = 0;
    int i, j;
    for (i = n; i < n + rows && i < p->rows; i++)
        for (j = k; j < k + columns && j < p->columns; j++) {
            const double v = fabs(plain_at(p, i, j));
            if (!isfinite(v)) return NAN;
            most = v > most ? v : most;
        }
    return most;
}
static int plain_is_int(const plain *p) { return ref_element(p->format->w, 0)->kind != REF_FLOAT; }
static double plain_largest(const plain *p)
{
    const double half = 1 << (p->format->w_bits - 1);
    if (!plain_is_int(p)) return ref_largest(ref_element(p->format->w, p->dtype));
    return p->recipe == MOEK_RECIPE_NARROW ? half - 1 : half - 0.5;
}
static double plain_power(const plain *p, double most)
{
    const double largest = plain_largest(p);
    const int recipe = p->recipe ? p->recipe : p->format->w_bits == 4 ? MOEK_RECIPE_ROUND : MOEK_RECIPE_CEIL;
    int e, of;
    if (!isfinite(most)) return NAN;
    if (most == 0) return ldexp(1, -127);
    frexp(most, &e);
    frexp(largest, &of);
    if (recipe == MOEK_RECIPE_ROUND && most >= ldexp(1.75, e - 1)) e++;
    e -= of;
    if (recipe == MOEK_RECIPE_CEIL) for (; most > ldexp(largest, e); e++) { }
    return ldexp(1, e < -127 ? -127 : e > 127 ? 127 : e);
}
/* most / largest, as an f32; 1 for zeros. */
static double plain_divide(double most, double largest)
{
    const float s = (float)(most / largest);
    return s == 0 ? 1 : s;
}
static double plain_scale(const plain *p, double most, double whole)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    double s;
    if (shape->type == MOEK_SCALE_TYPE_E8M0) return plain_power(p, most);
    if (shape->type == MOEK_SCALE_TYPE_E4M3) {
        const float above = (float)(most / (float)(6 * whole));
        s = most == 0 ? 1 : fmax(above, ldexp(1, -9));
        return isnan(most) || isnan(whole) ? NAN
            : ref_decode(&ref_numbers[REF_E4M3], ref_encode(&ref_numbers[REF_E4M3], s));
    }
    if (isnan(most)) return NAN;
    s = p->recipe == MOEK_RECIPE_CEIL && most > 0 ? plain_power(p, most) : plain_divide(most, plain_largest(p));
    if (shape->type == MOEK_SCALE_TYPE_T) s = ref_round_t(s, p->dtype);
    return s == 0 ? 1 : s;
}
static unsigned plain_code(const plain *p, double w, double scale)
{
    const double half = 1 << (p->format->w_bits - 1);
    const float v = isnan(scale) ? 0 : (float)(w / (float)scale);
    double r;
    if (!plain_is_int(p)) return ref_encode(ref_element(p->format->w, p->dtype), v);
    r = fmax(-half, fmin(half - 1, nearbyint(v)));
    return p->format->w_bits == 4 ? (unsigned)(r + 8) : (unsigned)(int)r & 255;
}

typedef struct planted { unsigned char *w, *scale, *zero; float global; moek_import_report report; } planted;
static void planted_free(planted *g) { free(g->w); free(g->scale); free(g->zero); }
static size_t plain_scales(const plain *p)             /* bytes */
{
    const moek_scale_shape *const s = &p->format->w_scale;
    return s->rows == 1 ? moek_scale_bytes(s, (size_t)(p->rows * p->step), (size_t)p->columns)
                        : moek_scale_bytes(s, (size_t)p->rows, (size_t)p->columns);
}
static planted plain_run(int arch, const plain *p)
{
    const size_t rows = (size_t)(p->rows * p->step), K = (size_t)p->columns;
    const size_t groups = moek_scale_count(&p->format->w_scale, 1, K);
    const size_t zeros = p->format->zero ? rows * moek_element_bytes(p->format->w, groups) : 0;
    const size_t bytes = (size_t)p->rows * K * (size_t)plain_number(p)->width / 8;
    there from = put_there(arch, p->from, bytes), w = put_there(arch, NULL, rows * moek_element_bytes(p->format->w, K));
    there scale = put_there(arch, NULL, plain_scales(p)), zero = put_there(arch, NULL, zeros);
    there global = put_there(arch, NULL, 4), report;
    moek_import_report none;
    moek_import_args a;
    planted g;
    unsigned char *got;
    char why[256] = "";
    memset(&none, 0, sizeof none);
    memset(&a, 0, sizeof a);
    report = put_there(arch, &none, sizeof none);
    a.source = p->source; a.quant = p->format->number; a.recipe = p->recipe; a.rows = p->rows; a.columns = p->columns;
    a.block = p->block; a.dtype = p->dtype; a.row_step = p->step;
    a.their_w = from.at; a.w = w.at; a.scale = scale.at;
    if (zeros) a.zero = zero.at;
    if (p->format->second) a.global = (float *)global.at;
    a.report = (moek_import_report *)report.at; a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(arch, &a, 0) == MOEK_OK, "%s: %s", p->what, why);
    got = take_back(from, p->what);
    CHECK(!memcmp(got, p->from, bytes), "%s: an input was written to", p->what);
    free(got);
    g.w = take_back(w, p->what); g.scale = take_back(scale, p->what); g.zero = take_back(zero, p->what);
    got = take_back(global, p->what); memcpy(&g.global, got, 4); free(got);
    got = take_back(report, p->what); memcpy(&g.report, got, sizeof g.report); free(got);
    return g;
}
/* The group of columns from k on, of rows from n on: its scale and its codes. */
static void plain_check_group(const plain *p, const planted *g, int n, int k, int rows, int columns, double whole)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    const ref_number *const type = ref_scale_type(shape->type, p->dtype);
    const ref_number *const e = ref_element(p->format->w, p->dtype);
    const size_t groups = moek_scale_count(shape, 1, (size_t)p->columns);
    const size_t pitch = moek_element_bytes(p->format->w, (size_t)p->columns);
    const size_t row = shape->rows == 1 ? (size_t)(n * p->step) : shape->rows ? (size_t)(n / shape->rows) : 0;
    const double scale = shape->rows ? plain_scale(p, plain_most(p, n, k, rows, columns), whole) : whole;
    const double got = ref_get(type, g->scale, row * groups + (size_t)(shape->columns ? k / shape->columns : 0));
    const double by = p->format->second ? (float)(scale * whole) : scale;
    int i, j, wrong = 0;
    CHECK(same(got, scale), "%s: scale of [%d][%d] is %g, not %g", p->what, n, k, got, scale);
    for (i = n; i < n + rows && i < p->rows; i++)
        for (j = k; j < k + columns && j < p->columns; j++) {
            const unsigned want = plain_code(p, plain_at(p, i, j), by);
            const unsigned code = ref_code(e, g->w + (size_t)(i * p->step) * pitch, (size_t)j);
            if (code != want && !wrong++)
                CHECK(0, "%s: [%d][%d] is %x, not %x (%g / %g)", p->what, i, j, code, want, plain_at(p, i, j), by);
        }
}
static void plain_check(const plain *p)
{
    const moek_scale_shape *const shape = &p->format->w_scale;
    const planted host = plain_run(0, p);
    const size_t pitch = moek_element_bytes(p->format->w, (size_t)p->columns);
    const int rows = shape->rows ? shape->rows : p->rows, columns = shape->columns ? shape->columns : p->columns;
    double whole = 1;
    int n, k;
    uint64_t bad = 0, scales = 0;
    size_t i, untouched = 1;
    if (p->format->second || !shape->rows) {
        const double most = plain_most(p, 0, 0, p->rows, p->columns);
        whole = isnan(most) ? NAN : plain_divide(most, p->format->second ? 6 * 448 : plain_largest(p));
    }
    if (p->format->second) CHECK(same(host.global, whole), "%s: global %g, not %g", p->what, host.global, whole);
    for (n = 0; n < p->rows; n += rows)
        for (k = 0; k < p->columns; k += columns) {
            plain_check_group(p, &host, n, k, rows, columns, whole);
            bad += !isfinite(shape->rows ? plain_scale(p, plain_most(p, n, k, rows, columns), whole) : whole);
            scales++;
        }
    CHECK(host.report.scales == scales && host.report.scales_nan == bad &&
          host.report.globals_bad == (uint64_t)(p->format->second && isnan(whole)),
          "%s: report of %d scales, %d bad", p->what, (int)scales, (int)bad);
    CHECK((moek_import_verdict(&host.report, NULL, 0) != MOEK_OK) == (bad || isnan(whole)), "%s: verdict", p->what);
    for (n = 1; n < p->rows * p->step; n += p->step)
        for (i = 0; p->step == 2 && i < pitch; i++) untouched &= host.w[(size_t)n * pitch + i] == POISON;
    CHECK(untouched, "%s: wrote to a row between", p->what);
    for (n = 0; p->format->zero && n < p->rows; n++)
        for (k = 0; k < p->columns; k += columns)
            CHECK(ref_code(ref_element(p->format->w, 0), host.zero + (size_t)(n * p->step) * moek_element_bytes(
                  p->format->w, moek_scale_count(shape, 1, (size_t)p->columns)), (size_t)(k / columns)) == 8,
                  "%s: zero point of [%d][%d]", p->what, n, k);
    if (mem_can_run(80)) {
        planted there = plain_run(80, p);
        CHECK(!memcmp(there.w, host.w, (size_t)(p->rows * p->step) * pitch), "%s: other elements on a GPU", p->what);
        CHECK(!memcmp(there.scale, host.scale, plain_scales(p)), "%s: other scales on a GPU", p->what);
        CHECK(!memcmp(&there.global, &host.global, 4), "%s: another global scale on a GPU", p->what);
        CHECK(!memcmp(&there.report, &host.report, sizeof host.report), "%s: another report on a GPU", p->what);
        planted_free(&there);
    }
    planted_free((planted *)&host);
}
/* kind 0: ordinary; 1: largest elements at the edges of recipes, the others on ties; 2: zeros, subnormals, huge;
 * 3: NaN, Inf. */
enum { PLAIN_KINDS = 4 };
static void plain_fill(plain *p, int kind)
{
    static const double edges[] = { 1, 1.5, 1.75, 1.9921875, 1.4921875, 1.7421875, 1.7578125, 1.5078125 };
    const ref_number *const number = plain_number(p);
    const int of = p->format->w_scale.columns ? p->format->w_scale.columns : p->columns;
    int n, k, e = 0;
    double edge = 1;
    p->from = ref_alloc((size_t)p->rows * (size_t)p->columns * (size_t)number->width / 8);
    for (n = 0; n < p->rows; n++)
        for (k = 0; k < p->columns; k++) {
            double v = rng_normal() * 0.05;
            if (k % of == 0) { edge = edges[rng_below(8)]; e = rng_below(12) - 6; }
            if (kind == 1) v = ldexp(k % of == 0 ? edge : (rng_below(65) - 32) / 32.0 , e);
            if (kind == 2 && n % 4 == 1) v = k % of < of / 2 ? 0.0 : -0.0;
            if (kind == 2 && n % 4 == 2) v *= number == ref_t(MOEK_DTYPE_FP16) ? 1e-6 : 1e-38;
            if (kind == 2 && n % 4 == 3 && k % 3 == 0) v *= number == ref_t(MOEK_DTYPE_FP16) ? 1e5 : 1e37;
            if (kind == 3 && !rng_below(p->columns)) v = rng_below(2) ? NAN : INFINITY;
            ref_put(number, p->from, (size_t)n * (size_t)p->columns + (size_t)k, v);
        }
}
static int plain_takes(const moek_format *f, int recipe)
{
    if (recipe == MOEK_RECIPE_NARROW) return ref_element(f->w, 0)->kind != REF_FLOAT;
    if (f->w_scale.type == MOEK_SCALE_TYPE_E8M0) return 1;
    return !recipe || (recipe == MOEK_RECIPE_CEIL && f->w_scale.rows > 1);
}
static void test_plain(const moek_format *f, int turns)
{
    static const int rows[] = { 8, 7, 33, 130 };
    int turn, recipe;
    for (recipe = 0; recipe <= MOEK_RECIPE_NARROW; recipe++)
        for (turn = 0; plain_takes(f, recipe) && turn < turns; turn++) {
            plain p;
            memset(&p, 0, sizeof p);
            p.source = MOEK_FROM_BF16 + turn % 3;
            p.recipe = recipe;
            p.block = format_block(f, turn);
            p.format = format_with(f, p.block);
            p.dtype = turn / 12 % 2 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
            p.rows = rows[turn / 4 % 4];
            p.columns = 2 + 2 * rng_below(150) + (f->granule % 2 && turn % 5 == 0);
            p.step = f->w_scale.rows == 1 ? 1 + turn / 3 % 2 : 1;
            snprintf(p.what, sizeof p.what, "%s to %s, recipe %d, %d x %d block %d T %d step %d kind %d",
                     moek_source_name(p.source), f->name, recipe, p.rows, p.columns, p.block, p.dtype, p.step,
                     turn % PLAIN_KINDS);
            plain_fill(&p, turn % PLAIN_KINDS);
            plain_check(&p);
            free(p.from);
        }
}

/* Of formats without scales: where a matrix belongs, for the caller to copy it. */
static void test_place_plain(const moek_config *c, const moek_weights *w, int matrix, int e, const void *want, int step,
                             const char *what)
{
    moek_import_args a;
    char why[256] = "";
    moek_status status;
    memset(&a, 0, sizeof a);
    a.scale = &a; a.why = why; a.why_size = sizeof why;
    status = moek_import_place(c, w, matrix, e, &a);
    CHECK(status == MOEK_OK && a.w == want && !a.scale && a.row_step == step, "%s: matrix %d of expert %d, bf16: %s",
          what, matrix, e, why);
}
/* A layer of plain weights in a format against the bf16 layer: is each matrix, and each scale, where it belongs? */
static void test_plain_layer(const moek_format *f, int layout, int up_scales)
{
    static const int matrices[] = { MOEK_MATRIX_GATE, MOEK_MATRIX_UP, MOEK_MATRIX_DOWN, MOEK_MATRIX_GATE_UP };
    static float static_scale = 1.0f / 256;
    const double most = f->x_bits == 4 ? 0.4 : f->w_bits == 4 ? 0.25 : 0.12;
    moek_config c = layer_config(f->number, layout);
    int plain_quant = 0, e, j, n, both = 0;
    moek_config p;
    moek_weights w, plain;
    moek_import_report report;
    void *arrays[12], *plain_arrays[12];
    uint16_t *y, *z;
    double *want = (double *)ref_alloc(8 * TOKENS * HIDDEN);
    ref_distance far;
    char what[160], why[256];
    while (format_dtype(format_at(plain_quant)) != MOEK_DTYPE_BF16) plain_quant++;
    c.up_scales = up_scales;
    p = layer_config(format_at(plain_quant)->number, layout);
    memset(&report, 0, sizeof report);
    snprintf(what, sizeof what, "plain layer of %s, up_layout %d, up_scales %d", f->name, layout, up_scales);
    w = layer_arrays(&c, 0, arrays);
    plain = layer_arrays(&p, 0, plain_arrays);
    plain.w_up_scale = plain.w_down_scale = plain.w_gate_scale = NULL;
    if (format_x_second(f)) w.x_scale = w.h_scale = &static_scale;
    for (e = 0; e < EXPERTS; e++) {
        const int apart = layout == MOEK_UP_APART, step = layout == MOEK_UP_INTERLEAVED ? 2 : 1;
        uint16_t *const up = (uint16_t *)plain_arrays[4] + (size_t)e * (apart ? 1 : 2) * INTER * HIDDEN;
        uint16_t *const gate = (uint16_t *)plain_arrays[0] + (size_t)e * INTER * HIDDEN;
        uint16_t *const down = (uint16_t *)plain_arrays[8] + (size_t)e * HIDDEN * INTER;
        uint16_t *const one = (uint16_t *)ref_alloc(2 * INTER * HIDDEN);
        for (n = 0; n < (apart ? 1 : 2) * INTER * HIDDEN; n++)
            up[n] = ref_to_t(rng_normal() * ldexp(1, e - 5 - (n / HIDDEN) % 5), MOEK_DTYPE_BF16);
        for (n = 0; n < INTER * HIDDEN; n++) down[n] = ref_to_t(rng_normal() * ldexp(1, -3 - e), MOEK_DTYPE_BF16);
        for (n = 0; apart && n < INTER * HIDDEN; n++) gate[n] = ref_to_t(rng_normal() / 4, MOEK_DTYPE_BF16);
        for (j = 0; j < 4; j++) {
            const int second = !apart && (matrices[j] == MOEK_MATRIX_UP) == (layout != MOEK_UP_SWAPPED);
            moek_import_args a;
            moek_status status;
            memset(&a, 0, sizeof a);
            a.why = why; a.why_size = sizeof why; a.report = &report; a.source = MOEK_FROM_BF16;
            if (j < 3 || !apart)
                test_place_plain(&p, &plain, matrices[j], e, j == 2 ? down : apart && !j ? gate : j == 3 || apart ? up :
                                 up + (step == 2 ? second : second * INTER) * HIDDEN, j < 2 ? step : 1, what);
            if (j == 3 && !both) break;
            status = moek_import_place(&c, &w, matrices[j], e, &a);
            if (j < 2 && status == MOEK_E_ARGUMENT && strstr(why, "MOEK_MATRIX_GATE_UP has both")) {
                both = 1;
                continue;
            }
            CHECK(status == MOEK_OK, "%s: %s", what, why);
            a.their_w = j == 2 ? down : j == 3 || (apart && j) ? up : apart ? gate : one;
            for (n = 0; a.their_w == one && n < INTER; n++)
                memcpy(one + n * HIDDEN, up + (step == 2 ? 2 * n + second : n + second * INTER) * HIDDEN, 2 * HIDDEN);
            CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s: %s", what, why);
        }
        free(one);
    }
    CHECK(both == (layout != MOEK_UP_APART && f->w_scale.rows != 1 && !up_scales), "%s: gate and up %s", what,
          both ? "at once" : "one by one");
    CHECK(moek_import_verdict(&report, why, sizeof why) == MOEK_OK, "%s: %s", what, why);
    y = layer_run(&c, &w, what);
    z = layer_run(&p, &plain, what);
    for (n = 0; n < TOKENS * HIDDEN; n++) want[n] = ref_get_t(z, (size_t)n, MOEK_DTYPE_BF16);
    far = ref_compare_t(y, want, TOKENS * HIDDEN, MOEK_DTYPE_BF16);
    CHECK(far.rel_l2 < most && far.same_nonfinite, "%s: %g from the bf16 layer", what, far.rel_l2);
    free(want);
    mem_free(0, y); mem_free(0, z);
    for (j = 0; j < 12; j++) { mem_free(0, arrays[j]); mem_free(0, plain_arrays[j]); }
}
/* Blocks of gate and up, kept apart, are not those of one matrix. */
static void test_scales_apart(const moek_format *f)
{
    moek_config c = layer_config(f->number, MOEK_UP_HALVES);
    moek_weights w;
    moek_import_args a;
    char why[256] = "";
    void *arrays[12];
    int i;
    memset(&a, 0, sizeof a);
    c.up_scales = MOEK_UP_SCALES_APART;
    w = layer_arrays(&c, 0, arrays);
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import_place(&c, &w, MOEK_MATRIX_GATE_UP, 0, &a) == MOEK_E_ARGUMENT &&
          strstr(why, "one after the other"), "%s: \"%s\"", f->name, why);
    for (i = 0; i < 12; i++) mem_free(0, arrays[i]);
}
static void test_plain_layers(void)
{
    static const int layouts[] = { MOEK_UP_HALVES, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_APART };
    int n, j;
    for (n = 0; n < FORMATS; n++)
        for (j = 0; j < 4 && format_scaled(format_at(n)); j++) {
            const moek_format *const f = format_at(n);
            test_plain_layer(f, layouts[j], 0);
            if (format_rows_share(f) && !j) test_scales_apart(f);
            if (format_rows_share(f) && layouts[j] != MOEK_UP_INTERLEAVED && layouts[j] != MOEK_UP_APART)
                test_plain_layer(f, layouts[j], MOEK_UP_SCALES_APART);
        }
}

/* ---- bytes that public packers made ------------------------------------------------------------------------------ */

static size_t from_hex(const char *hex, unsigned char **bytes)         /* "-": none */
{
    const size_t n = hex[0] == '-' ? 0 : strlen(hex) / 2;
    size_t i;
    *bytes = (unsigned char *)ref_alloc(n);
    for (i = 0; i < n; i++) {
        unsigned b = 0;
        sscanf(hex + 2 * i, "%2x", &b);
        (*bytes)[i] = (unsigned char)b;
    }
    return n;
}
static void test_golden_line(char *line)
{
    char *field[11];
    matrix m;
    unsigned char *second, *values;
    size_t sizes[3];
    imported got;
    int i, n = 0, k, wrong = 0;
    for (i = 0; i < 11; i++) {
        field[i] = line;
        line += strcspn(line, "\t\n");
        if (!CHECK(*line, "import_golden.tsv: %d columns", i)) return;
        *line++ = 0;
    }
    memset(&m, 0, sizeof m);
    for (i = 0; i < SOURCES; i++)
        if (!strcmp(field[0], moek_source_name(facts[i].source))) m.source = facts[n = i].source;
    if (!CHECK(m.source, "import_golden.tsv: source %s", field[0])) return;
    m.rows = atoi(field[1]); m.columns = atoi(field[2]); m.block = atoi(field[3]);
    m.dtype = atoi(field[4]); m.scale_dtype = atoi(field[5]);
    m.format = format_with(moek_format_of(facts[n].quant), m.block);
    m.step = 1; m.has_zero = field[8][0] != '-'; m.keep_zero = m.has_zero && m.format->zero;
    snprintf(m.what, sizeof m.what, "golden %s %d x %d", field[0], m.rows, m.columns);
    matrix_sizes(&m);
    sizes[0] = from_hex(field[6], &m.w); sizes[1] = from_hex(field[7], &m.scale);
    sizes[2] = from_hex(field[8], &m.zero);
    CHECK(sizes[0] == m.w_bytes && sizes[1] == m.scale_bytes && sizes[2] == m.zero_bytes, "%s: sizes", m.what);
    if (from_hex(field[9], &second) == 4) memcpy(&m.global, second, 4);
    from_hex(field[10], &values);
    got = run(0, &m, 0, NULL);
    for (n = 0; n < m.rows; n++)
        for (k = 0; k < m.columns; k++)
            wrong += our_value(&m, &got, n, k) != ref_get_t(values, (size_t)n * (size_t)m.columns + (size_t)k,
                                                            MOEK_DTYPE_BF16);
    CHECK(!wrong, "%s: %d values are not those that were packed", m.what, wrong);
    imported_free(&got);
    check_matrix(&m, SANE);
    free(second); free(values);
    matrix_free(&m);
}
static void test_golden(const char *folder, const char *name, int least, void (*test)(char *line))
{
    static char line[1 << 16], path[512];
    FILE *f;
    int lines = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "r");
    if (!CHECK(f != NULL, "can not read %s", path)) return;
    for (; fgets(line, sizeof line, f); lines++) test(line);
    CHECK(lines >= least, "%s: %d lines", path, lines);
    fclose(f);
}

/* What public packages made of weights. */
static void test_quantized_line(char *line)
{
    char *field[11];
    plain p;
    planted got;
    unsigned char *w, *scale, *second;
    size_t groups, pitch, bytes[3];
    int i, k, n, wrong = 0;
    for (i = 0; i < 11; i++) {
        field[i] = line;
        line += strcspn(line, "\t\n");
        if (!CHECK(*line, "quantize_golden.tsv: %d columns", i)) return;
        *line++ = 0;
    }
    memset(&p, 0, sizeof p);
    p.source = strcmp(field[0], "F32") ? MOEK_FROM_BF16 : MOEK_FROM_F32;
    p.recipe = atoi(field[2]); p.rows = atoi(field[3]); p.columns = atoi(field[4]); p.block = atoi(field[5]);
    p.dtype = atoi(field[6]); p.step = 1;
    for (i = 0; i < FORMATS; i++)
        if (!strcmp(field[1], format_at(i)->name)) p.format = format_with(format_at(i), p.block);
    if (!CHECK(p.format, "quantize_golden.tsv: format %s", field[1])) return;
    snprintf(p.what, sizeof p.what, "golden %s, recipe %d, block %d", field[1], p.recipe, p.block);
    from_hex(field[7], (unsigned char **)&p.from);
    bytes[0] = from_hex(field[8], &w); bytes[1] = from_hex(field[9], &scale); bytes[2] = from_hex(field[10], &second);
    pitch = moek_element_bytes(p.format->w, (size_t)p.columns);
    groups = plain_scales(&p);
    if (!CHECK(bytes[0] == (size_t)p.rows * pitch && bytes[1] == groups && bytes[2] == (p.format->second ? 4u : 0u),
               "%s: sizes", p.what)) return;
    got = plain_run(0, &p);
    CHECK(!memcmp(got.scale, scale, groups), "%s: other scales", p.what);
    CHECK(!bytes[2] || !memcmp(&got.global, second, 4), "%s: another global scale", p.what);
    for (n = 0; n < p.rows; n++)
        for (k = 0; k < p.columns; k++) {
            const ref_number *const e = ref_element(p.format->w, p.dtype);
            wrong += ref_decode(e, ref_code(e, got.w + (size_t)n * pitch, (size_t)k)) !=
                     ref_decode(e, ref_code(e, w + (size_t)n * pitch, (size_t)k));
        }
    CHECK(!wrong, "%s: %d codes differ", p.what, wrong);
    plain_check(&p);
    planted_free(&got);
    free(p.from); free(w); free(scale); free(second);
}
/* ---- in place, refusals ------------------------------------------------------------------------------------------ */

static void test_in_place(int i, int arch)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    matrix m = layer_source(i, f, 24, 64, f->blocks ? 32 : 0);
    const int can = m.w_bytes == m.our_w && !is_gptq(m.source) && m.source != MOEK_FROM_AWQ;
    moek_import_args a = matrix_args(&m);
    there w = put_there(arch, m.w, m.w_bytes), scale = put_there(arch, m.scale, m.scale_bytes);
    there out = put_there(arch, NULL, m.our_scale), global = put_there(arch, &m.global, 4);
    char why[256] = "";
    imported host;
    unsigned char *got;
    m.has_zero = m.keep_zero = 0;
    matrix_sizes(&m);
    host = run(0, &m, 0, NULL);
    a.w = a.their_w = w.at; a.scale = out.at; a.their_scale = m.scale_bytes ? scale.at : NULL;
    if (is_nvfp4(m.source)) a.global = a.their_global = (float *)global.at;
    if (scale_same_type(&m) && m.scale_bytes && !is_gptq(m.source) && m.source != MOEK_FROM_AWQ) a.scale = scale.at;
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(arch, &a, 0) == (can ? MOEK_OK : MOEK_E_ARGUMENT) && (*why == 0) == can, "%s in place: %s",
          moek_source_name(m.source), why);
    got = take_back(w, "in place");
    CHECK(!memcmp(got, can ? host.w : m.w, m.w_bytes), "%s: elements in place", moek_source_name(m.source));
    free(got);
    got = take_back(scale, "in place");
    if (a.scale == scale.at && can)
        CHECK(!memcmp(got, host.scale, m.our_scale), "%s: scales in place", moek_source_name(m.source));
    free(got);
    free(take_back(out, "in place")); free(take_back(global, "in place"));
    imported_free(&host);
    matrix_free(&m);
}

/* Refused, with a sentence that has these words; nothing is written. */
static void refused(moek_import_args a, const char *words, int line)
{
    char why[256] = "";
    a.why = why; a.why_size = sizeof why;
    CHECK(moek_import(0, &a, 0) == MOEK_E_ARGUMENT, "line %d: not refused", line);
    CHECK(strstr(why, words) != NULL, "line %d: \"%s\" does not say \"%s\"", line, why, words);
}
/* Each array of each source in a shape that it has not: transposed, of another length, of other bytes.  As it is, and
 * with sizes of 1, or as one size: taken. */
static void test_shapes(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    static unsigned char out[1 << 16];
    matrix m = layer_source(i, f, 40, 256, !f->blocks ? 0 : gguf_of(facts[i].source) ? 32 : 64);
    moek_import_args good = matrix_args(&m);
    int which, kind;
    char why[256] = "";
    m.zero_bytes = m.has_zero ? m.zero_bytes : 0;
    good.their_w = m.w; good.their_scale = m.scale_bytes ? m.scale : NULL;
    good.their_zero = m.has_zero ? m.zero : NULL;
    good.w = out; good.scale = out + (1 << 15);
    if (m.keep_zero) good.zero = out + (1 << 15) + (1 << 14);
    if (is_nvfp4(m.source)) { good.their_global = &m.global; good.global = (float *)(void *)(out + sizeof out - 4); }
    good.why = why; good.why_size = sizeof why;
    matrix_tensors(&m, &good);
    CHECK(moek_import(0, &good, 0) == MOEK_OK, "%s: %s", moek_source_name(m.source), why);
    for (which = 0; which < 4; which++)
        for (kind = 0; kind < 6; kind++) {
            static const char *const names[] = { "their_w is [", "their_scale is [", "their_zero is [",
                                                 "their_global is [" };
            moek_import_args a = good;
            moek_import_tensor *const all[4] = { &a.w_tensor, &a.scale_tensor, &a.zero_tensor, &a.global_tensor };
            moek_import_tensor *const t = all[which];
            int64_t slow = t->shape[0], fast = t->shape[1] ? t->shape[1] : 1;
            if ((which == 1 && !m.scale_bytes) || (which == 2 && !m.has_zero) || (which == 3 && !is_nvfp4(m.source)))
                continue;
            if (which == 1 && m.source == MOEK_FROM_FP8_BLOCK) fast = m.groups;
            if (which == 0 && m.source == MOEK_FROM_MXFP4) fast *= 16;
            memset(t->shape, 0, sizeof t->shape);
            t->shape[0] = slow; t->shape[1] = fast;
            if (kind == 0 && slow == fast) continue;   /* no one can tell */
            if (kind == 0) { t->shape[0] = fast; t->shape[1] = slow; }
            if (kind == 1) t->shape[1] = fast + 1;
            if (kind == 2) { t->shape[1] = fast; t->shape[2] = 2; }
            if (kind == 3) t->bytes += 1;
            if (kind == 4) { t->shape[0] = 1; t->shape[1] = slow; t->shape[2] = 1; t->shape[3] = fast; }
            if (kind == 5) { t->shape[0] = slow * fast; t->shape[1] = 0; }
            if (kind >= 4 || (kind == 0 && (slow == 1 || fast == 1)))
                CHECK(moek_import(0, &a, 0) == MOEK_OK, "%s, array %d, shape %d: %s", moek_source_name(m.source),
                      which, kind, why);
            else {
                memset(out, POISON, 64);
                refused(a, names[which], __LINE__);
                refused(a, moek_source_name(m.source), __LINE__);
                if (kind == 0) refused(a, "is it transposed?", __LINE__);
                CHECK(out[0] == POISON, "%s: something was written", moek_source_name(m.source));
            }
        }
    matrix_free(&m);
}
/* Whole matrices that are another source: two elements a byte, and one. */
static void test_wrong_source(void)
{
    static unsigned char some[64 * 64], to[64 * 64];
    static float scale[64];
    moek_import_args a;
    memset(&a, 0, sizeof a);
    a.rows = 16; a.columns = 64; a.block = 32; a.source = MOEK_FROM_INT4_SIGNED;
    a.their_w = some; a.w = to; a.their_scale = scale; a.scale = to + 2048;
    a.w_tensor.shape[0] = 16; a.w_tensor.shape[1] = 64;
    refused(a, "MOEK_FROM_INT4_BYTES", __LINE__);
    a.source = MOEK_FROM_INT4_BYTES; a.w_tensor.shape[1] = 32;
    refused(a, "two elements a byte", __LINE__);
    a.w_tensor.shape[1] = 64; a.scale_tensor.shape[0] = 16; a.scale_tensor.shape[1] = 1;
    refused(a, "config.block", __LINE__);
    a.scale_tensor.shape[1] = -2;
    refused(a, "their_scale is [16][-2]", __LINE__);
    a.scale_tensor.shape[0] = a.scale_tensor.shape[1] = (int64_t)1 << 62;
    refused(a, "their_scale is [", __LINE__);
    memset(&a.scale_tensor, 0, sizeof a.scale_tensor);
    a.scale_tensor.bytes = 16 * 2 * 4;                 /* f32, where the call says bf16 */
    refused(a, "their_scale is 128 bytes", __LINE__);
    memset(&a.scale_tensor, 0, sizeof a.scale_tensor);
    a.scale_order = MOEK_SCALE_ORDER_128X4;
    refused(a, "scale_order is 1", __LINE__);
    a.source = MOEK_FROM_BF16; a.scale_order = 0; a.their_scale = NULL;
    a.quant = facts[source_at(MOEK_FROM_INT4_BYTES)].quant;
    a.w_tensor.shape[0] = 64; a.w_tensor.shape[1] = 16;
    refused(a, "is it transposed?", __LINE__);
}

/* A format that the source may become, or not, and does not by itself. */
static int other_format(int source, int fitting)
{
    int i = 0, n = 0;
    while (facts[i].source != source) i++;
    while (fits(i, format_at(n)) != fitting || format_at(n)->number == facts[i].quant) n++;
    return format_at(n)->number;
}
static void test_refusals(void)
{
    static uint32_t some[4096];
    static float second[2];
    static const int32_t order[64] = { 0 };
    moek_import_args good, a;
    memset(&good, 0, sizeof good);
    good.source = MOEK_FROM_AWQ; good.rows = 16; good.columns = 64; good.block = 32;
    good.their_w = some; good.their_scale = some + 512; good.their_zero = some + 1024;
    good.w = some + 2048; good.scale = some + 2560; good.zero = some + 3072;
    CHECK(moek_import(0, &good, 0) == MOEK_OK && moek_import(0, NULL, 0) == MOEK_E_ARGUMENT, "arguments");
#define REFUSED(change, words) do { a = good; change; refused(a, words, __LINE__); } while (0)
    REFUSED(a.source = 0, "source is 0");
    REFUSED(a.source = MOEK_SOURCE_COUNT_, "MOEK_FROM_");
    REFUSED(a.quant = 999, "quant is 999");
    REFUSED(a.quant = other_format(MOEK_FROM_AWQ, 0); a.block = 0, "AWQ becomes int4_a16");
    REFUSED(a.source = MOEK_FROM_MXFP4; a.quant = other_format(MOEK_FROM_NVFP4_PACKED, 1); a.block = 0,
            "MXFP4 becomes mxfp4_a16");
    REFUSED(a.quant = other_format(MOEK_FROM_AWQ, 1), "block is 32");
    REFUSED(a.rows = 0, "rows are 0");
    REFUSED(a.rows = 12, "AWQ packs 8");
    REFUSED(a.columns = -4, "columns");
    REFUSED(a.columns = 33, "multiples of");
    REFUSED(a.block = 48, "block is 48");
    REFUSED(a.source = MOEK_FROM_GPTQ_INT8; a.block = 32, "block is 32");
    REFUSED(a.source = MOEK_FROM_MXFP4_GGUF; a.block = 0; a.columns = 48, "blocks of GGUF");
    REFUSED(a.dtype = MOEK_DTYPE_F32, "dtype");
    REFUSED(a.scale_dtype = 9, "scale_dtype is 9");
    REFUSED(a.source = MOEK_FROM_MXFP4; a.block = 0; a.scale_dtype = MOEK_DTYPE_F32, "leave it 0");
    REFUSED(a.row_step = -1, "row_step");
    REFUSED(a.w = NULL, "w or their_w is NULL");
    REFUSED(a.their_w = (char *)a.their_w + 2, "aligned");
    REFUSED(a.scale = (char *)a.scale + 1, "aligned");
    REFUSED(a.their_scale = NULL, "their_scale is NULL");
    REFUSED(a.their_zero = (char *)a.their_zero + 2, "their_zero");
    REFUSED(a.source = MOEK_FROM_INT4_SIGNED, "no zero points");
    REFUSED(a.source = MOEK_FROM_GPTQ_INT8; a.block = 0, "has none");
    REFUSED(a.global = second, "leave both NULL");
    REFUSED(a.source = MOEK_FROM_NVFP4_PACKED; a.block = 0; a.zero = a.their_zero = NULL; a.global = second,
            "an f32 each");
    REFUSED(a.zero = a.their_zero, "zero is their_zero");
    REFUSED(a.scale = a.their_scale, "scale is their_scale");
    REFUSED(a.recipe = MOEK_RECIPE_CEIL, "quantized already");
    REFUSED(a.source = MOEK_FROM_PACKED_INT4; a.w = a.their_w; a.row_order = order, "there is an order");
    REFUSED(a.source = MOEK_FROM_PACKED_INT4; a.w = a.their_w; a.row_step = 2, "side by side");
    memset(&a, 0, sizeof a);
    a.source = MOEK_FROM_BF16; a.rows = 16; a.columns = 64; a.quant = format_nth(format_by_row, 0);
    a.their_w = some; a.w = some + 2048; a.scale = some + 2560;
    good = a;
    CHECK(moek_import(0, &good, 0) == MOEK_OK, "plain weights");
    a.why = NULL;
    CHECK(moek_export(0, &good, 0) == MOEK_E_ARGUMENT, "plain weights back");
    REFUSED(a.quant = 0, "quant is 0, no format");
    REFUSED(a.quant = FORMAT_PLAIN, "a format with scales");
    REFUSED(a.rows = 0, "rows are 0");
    REFUSED(a.block = 32, "block is 32");
    REFUSED(a.recipe = MOEK_RECIPE_CEIL, "recipe is 3: ");
    REFUSED(a.recipe = 5, "recipe is 5: ");
    REFUSED(a.quant = format_nth(format_rows_share, 0); a.recipe = MOEK_RECIPE_FLOOR, "takes 0 or MOEK_RECIPE_CEIL");
    REFUSED(a.quant = format_nth(format_rows_share, 0); a.row_step = 2, "side by side");
    REFUSED(a.their_scale = some, "leave them 0");
    REFUSED(a.row_order = order, "leave them 0");
    REFUSED(a.scale_dtype = MOEK_DTYPE_F32, "leave them 0");
    REFUSED(a.their_w = NULL, "is NULL");
    REFUSED(a.their_w = (char *)some + 1, "not aligned");
    REFUSED(a.source = MOEK_FROM_F32; a.their_w = (char *)some + 2, "not aligned");
    REFUSED(a.w = a.their_w, "another of them");
    REFUSED(a.scale = (char *)a.scale + 2, "not aligned");
    REFUSED(a.global = second, "global: ");
    REFUSED(a.quant = format_nth(format_x_second, 0), "has one, an f32");
    REFUSED(a.zero = some, "zero: ");
#undef REFUSED
}
/* Each count that makes weights unfit is refused by the verdict; orders outside are counted. */
static void test_verdicts(void)
{
    static uint32_t words[64], to[64];
    static uint16_t scales[16], out[16];
    int32_t order[8] = { 0, 1, 2, 3, 4, 5, 6, 8 }, g_idx[64], moved = -1;
    moek_import_report r;
    moek_import_args a;
    char why[256];
    uint64_t *const counts = (uint64_t *)&r;
    unsigned i;
    memset(&r, 0, sizeof r);
    CHECK(moek_import_verdict(&r, why, sizeof why) == MOEK_OK && moek_import_verdict(NULL, NULL, 0), "verdict");
    for (i = 0; i < sizeof r / 8 - 2; i++) {
        int bad;
        memset(&r, 0, sizeof r);
        counts[i] = 3;
        bad = r.scales_nan || r.signs_bad || r.scales_lost || r.zeros_lost || r.globals_bad || r.orders_bad ||
              r.scales_apart || r.codes_outside;
        why[0] = 0;
        CHECK((moek_import_verdict(&r, why, sizeof why) != MOEK_OK) == bad && (strchr(why, '3') != NULL) == bad,
              "count %u: \"%s\"", i, why);
        CHECK(moek_import_describe(&r, why, sizeof why) > 4 && why[0] == '3', "count %u: \"%s\"", i, why);
    }
    memset(&a, 0, sizeof a);
    memset(&r, 0, sizeof r);
    a.source = MOEK_FROM_GPTQ_INT4; a.rows = 8; a.columns = 32; a.block = 32; a.report = &r;
    a.their_w = words; a.their_scale = scales; a.w = to; a.scale = out; a.row_order = order;
    CHECK(moek_import(0, &a, 0) == MOEK_OK && r.orders_bad, "an order that leads outside");
    for (i = 0; i < 64; i++) g_idx[i] = (int)i / 32;
    CHECK(moek_import_order(g_idx, 64, 32, NULL, &moved, NULL, 0) == MOEK_OK && !moved, "in order");
    g_idx[3] = 1;
    CHECK(moek_import_order(g_idx, 64, 32, NULL, &moved, why, sizeof why) && moved && strstr(why, "g_idx[3] is 1"),
          "%s", why);
    CHECK(moek_import_order(g_idx, 64, 32, (int32_t *)words, NULL, why, sizeof why) && strstr(why, "has 31 columns"),
          "%s", why);
    CHECK(moek_import_inverse(order, 8, (int32_t *)words) == MOEK_E_ARGUMENT, "no permutation");
    CHECK(!moek_source_name(0) && !moek_source_name(MOEK_SOURCE_COUNT_), "names");
}

/* What a report says of checkpoints that are read as something else, or of damaged ones. */
static moek_import_report report_of(matrix *m, const char *what)
{
    imported got;
    moek_import_report r;
    snprintf(m->what, sizeof m->what, "%s: %.60s", moek_source_name(m->source), what);
    got = run(0, m, 0, NULL);
    r = got.report;
    imported_free(&got);
    return r;
}
static void test_reports(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    matrix m = layer_source(i, f, 24, 256, !f->blocks ? 0 : gguf_of(facts[i].source) ? 32 : 64);
    const int middle = 1 << (f->w_bits - 1), v1 = is_v1(m.source);
    moek_import_report r;
    char why[300] = "";
    int n;
    r = report_of(&m, "sane");
    CHECK(moek_import_verdict(&r, why, sizeof why) == MOEK_OK, "%s: %s", m.what, why);
    CHECK((r.scales_negative > 0) == is_int(&m), "%s: %d negative scales", m.what, (int)r.scales_negative);
    if (is_gptq(m.source)) {                           /* one off the middle, all of them: as the other version */
        m.has_zero = 1;
        m.keep_zero = f->zero;
        matrix_free(&m);
        matrix_sizes(&m);
        matrix_fill(&m, SANE, 1);
        r = report_of(&m, "symmetric");
        CHECK(!r.zeros_other && r.zeros && moek_import_verdict(&r, why, sizeof why) == MOEK_OK, "%s", m.what);
        memset(m.zero, f->w_bits == 8 ? v1 ? middle : middle - 1 : (v1 ? middle : middle - 1) * 0x11, m.zero_bytes);
        clear_unused(&m);
        r = report_of(&m, "the other version");
        CHECK(r.zeros_other == r.zeros && r.zeros, "%s: %d of %d", m.what, (int)r.zeros_other, (int)r.zeros);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "GPTQ's other version"), "%s", why);
    }
    if (!is_int(&m) && f->w_scale.type != MOEK_SCALE_TYPE_E8M0) {      /* a sign that the format has not */
        const int last = scale_size(&m) - 1;
        scale_place(&m, 0)[last] |= 0x80;
        r = report_of(&m, "a sign");
        CHECK(r.signs_bad && r.signs_bad == r.scales_negative, "%s: %d", m.what, (int)r.signs_bad);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "sign"), "%s", why);
    }
    if (m.source == MOEK_FROM_INT4_BYTES) {
        static const signed char bad[] = { -9, 8, 127, -128 };
        for (n = 0; n < 4; n++) m.w[7 * n] = (unsigned char)bad[n];
        m.w[70] = 7; m.w[71] = (unsigned char)-8;
        r = report_of(&m, "weights of 8 bits");
        CHECK(r.codes_outside == 4, "%s: %d outside", m.what, (int)r.codes_outside);
        CHECK(moek_import_verdict(&r, why, sizeof why) != MOEK_OK && strstr(why, "outside -8 .. 7"), "%s", why);
    }
    matrix_free(&m);
}
/* A scale a tensor where gate's is not up's: one array of scales for both is refused by the verdict, up apart and a
 * format of a scale a row are not. */
static void test_scales_of_tensors(void)
{
    static const int layouts[] = { MOEK_UP_HALVES, MOEK_UP_INTERLEAVED, MOEK_UP_SWAPPED, MOEK_UP_APART };
    const int i = source_at(MOEK_FROM_FP8_TENSOR);
    int n, j, equal;
    for (n = 0; n < FORMATS; n++)
        for (j = 0; j < 8 && fits(i, format_at(n)); j++) {
            const moek_format *const f = format_at(n);
            moek_config c = layer_config(f->number, layouts[j / 2]);
            const int one = !f->w_scale.rows && c.up_layout != MOEK_UP_APART;
            void *arrays[12];
            moek_weights w = layer_arrays(&c, 0, arrays);
            moek_import_report r;
            char why[300] = "";
            uint16_t *plain = (uint16_t *)ref_alloc(2 * INTER * HIDDEN);
            matrix m[2];
            int k;
            equal = j % 2;
            if (format_rows_share(f) && c.up_layout != MOEK_UP_APART) c.up_scales = MOEK_UP_SCALES_APART;
            memset(&r, 0, sizeof r);
            for (k = 0; k < 2 && !(format_rows_share(f) && c.up_layout == MOEK_UP_INTERLEAVED); k++) {
                m[k] = layer_source(i, f, INTER, HIDDEN, 0);
                put_scale(&m[k], 0, ref_encode(&ref_numbers[REF_F32], equal || !k ? 0.0625 : 0.046875));
                snprintf(m[k].what, sizeof m[k].what, "a scale a tensor, %s, up_layout %d", f->name, c.up_layout);
                layer_matrix(&m[k], &c, &w, k ? MOEK_MATRIX_UP : MOEK_MATRIX_GATE, 1, plain, &r);
                CHECK(r.scales_apart == (uint64_t)(k && one && !equal), "%s: %d apart", m[k].what, (int)r.scales_apart);
                CHECK((moek_import_verdict(&r, why, sizeof why) != MOEK_OK) == (k && one && !equal), "%s: %s",
                      m[k].what, why);
                CHECK(!r.scales_apart || strstr(why, "MOEK_UP_APART"), "%s", why);
                matrix_free(&m[k]);
            }
            free(plain);
            for (k = 0; k < 12; k++) mem_free(0, arrays[k]);
        }
}
/* Layers that there are not. */
static void test_places(void)
{
    const int formats[] = { FORMAT_ROW, FORMAT_PLAIN, facts[source_at(MOEK_FROM_NVFP4_PACKED)].quant };
    int i, n;
    for (i = 0; i < 3; i++) {
        moek_config good = layer_config(formats[i], 0), c;
        void *arrays[12];
        moek_weights w = layer_arrays(&good, 0, arrays);
        moek_import_args a;
        char why[256] = "";
        memset(&a, 0, sizeof a);
        a.why = why; a.why_size = sizeof why;
        good.experts = 4; good.local_experts = 0;
        CHECK(moek_import_place(&good, &w, MOEK_MATRIX_UP, EXPERTS - 1, &a) == MOEK_OK, "%s", why);
#define NO_PLACE(change, matrix, expert, words) do {                                                      \
            c = good;                                                                                     \
            change;                                                                                       \
            a.w = NULL; why[0] = 0;                                                                       \
            CHECK(moek_import_place(&c, &w, matrix, expert, &a) == MOEK_E_ARGUMENT && !a.w &&             \
                  strstr(why, words), "line %d: %s", __LINE__, why);                                      \
        } while (0)
        for (n = MOEK_MATRIX_GATE; n <= MOEK_MATRIX_DOWN; n++) {
            NO_PLACE(c.inter = 0, n, 0, "config.hidden is 128 and inter 0");
            NO_PLACE(c.hidden = -128, n, 0, "config.hidden is -128");
            NO_PLACE(c.inter = INT_MAX, n, 0, "config.hidden is 128 and inter 2147483647");
            NO_PLACE(c.inter = 1 << 30, n, 0, "config.hidden is 128 and inter");
            NO_PLACE((void)0, n, EXPERTS, "expert is 4: this rank has 4");
            NO_PLACE((void)0, n, 1000, "expert is 1000");
            NO_PLACE((void)0, n, -1, "expert is -1");
            NO_PLACE(c.local_experts = 2, n, 2, "this rank has 2");
            NO_PLACE(c.experts = INT_MAX; c.shared_slots = INT_MAX, n, INT_MAX, "expert is");
            NO_PLACE(c.block = 48, n, 0, "config.block is 48");
            NO_PLACE(c.act = 99, n, 0, "config.act is 99");
            NO_PLACE(c.up_layout = 99, n, 0, "config.up_layout is 99");
            NO_PLACE(c.quant = 0, n, 0, "config.quant is 0");
        }
        c = good; c.shared_slots = 2;
        CHECK(moek_import_place(&c, &w, MOEK_MATRIX_UP, EXPERTS + 1, &a) == MOEK_OK, "shared experts: %s", why);
        NO_PLACE((void)0, 9, 0, "there is none");
#undef NO_PLACE
        for (n = 0; n < 12; n++) mem_free(0, arrays[n]);
    }
}
/* Group sizes that no int holds the sum of. */
static void test_orders(void)
{
    const int32_t in_order[4] = { 0, 0, 0, 0 }, wrong[4] = { 3, 1, 7, 2 };
    int32_t order[4] = { -9, -9, -9, -9 };
    int moved = -1;
    char why[200] = "";
    CHECK(moek_import_order(in_order, 4, INT_MAX, order, &moved, why, sizeof why) == MOEK_OK && !moved && order[3] == 3,
          "block %d: %s", INT_MAX, why);
    CHECK(moek_import_order(wrong, 4, INT_MAX, order, &moved, why, sizeof why) == MOEK_E_ARGUMENT &&
          strstr(why, "has 0 columns, not 4"), "%s", why);
    CHECK(moek_import_order(in_order, 4, -1, order, &moved, why, sizeof why) == MOEK_E_ARGUMENT, "block -1");
}

int main(int argc, char **argv)
{
    int i, n;
    quick_word(&argc, &argv);
    ref_tables_(moek_format_of(1), MOEK_DTYPE_BF16);
    for (i = 0; i < SOURCES; i++) {
        for (n = 0; n < FORMATS; n++)
            if (fits(i, format_at(n))) test_source(i, format_at(n), quick_set ? 12 : 48);
#ifndef MOEK_EMU
        test_large(i);
#endif
        test_in_place(i, 0);
        if (mem_can_run(80)) test_in_place(i, 80);
    }
    for (n = 0; n < FORMATS; n++)
        if (format_scaled(format_at(n))) test_plain(format_at(n), quick_set ? 24 : 96);
    test_plain_layers();
    test_layers();
    for (i = 0; i < SOURCES; i++) {
        test_shapes(i);
        test_reports(i);
    }
    test_scales_of_tensors();
    test_wrong_source();
    test_refusals();
    test_places();
    test_orders();
    test_verdicts();
    test_golden(argc > 1 ? argv[1] : "tests/data", "import_golden.tsv", 10, test_golden_line);
    test_golden(argc > 1 ? argv[1] : "tests/data", "gguf_import_golden.tsv", 2, test_golden_line);
    test_golden(argc > 1 ? argv[1] : "tests/data", "quantize_golden.tsv", 10, test_quantized_line);
    return check_end();
}
