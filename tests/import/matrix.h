/* matrix.h -- a part of test_import.c, which includes it once: a matrix of a checkpoint, where a call works, what must
 * be there. */
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
    return v * scale * (f->global_scale ? got->global : 1);
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
            want.groups_beyond += e - 1 < most - (m->format->global_scale ? 10 : 11);
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
/* Are elements the checkpoint's?  In blocks scales lie between them, which may have been rounded. */
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
        CHECK(!memcmp(&r.global, &host.global, 4), "%s: another global scale on a GPU", m->what);
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
            CHECK(back.global == m->global, "%s: global scale %g", m->what, back.global);
        imported_free(&back);
    }
    imported_free((imported *)&host);
}
