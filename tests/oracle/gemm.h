/* gemm.h -- a part of ref.h, which includes it once: up, down. */
enum { REF_ALL, REF_GATE, REF_UP };                    /* rows of w: not gated, or of what */
/* size: the sum of |terms|, for error bounds; lost: of those that may count as 0. */
typedef struct ref_sum { double value, size, lost; } ref_sum;

/* to[k] = from[row][k]: once for all sums that the row is in.  row_bytes: 0 if rows lie side by side. */
static inline void ref_decode_row(const ref_number *n, const void *from, int row_bytes, size_t row, int columns,
                                  double *to)
{
    const double *const table = ref_table_(n);
    int k;
    from = (const char *)from + row * (row_bytes ? (size_t)row_bytes : ref_bytes(n, (size_t)columns));
    for (k = 0; k < columns; k++) to[k] = table[ref_code(n, from, (size_t)k)];
}
/* Groups of k, each with a scale, of `columns`; 0: one of all. */
static inline size_t ref_groups_of(const moek_gemm_args *a, int columns)
{
    return columns ? (size_t)((a->k_offset + a->k + columns - 1) / columns) : 1;
}
/* Row of scales, of all of them in their array, for row wrow of an expert's, where `share` rows have one. */
static inline size_t ref_scale_row(const moek_gemm_args *a, int share, int of, int expert, int wrow)
{
    const size_t blocks = (size_t)((a->n_offset + a->n + share - 1) / share), e = (size_t)expert;
    const int swapped = a->gate_first > a->up_first;
    if (of == REF_ALL || a->gate.codes) return e * blocks + (size_t)((a->n_offset + wrow) / share);
    if (!a->scales_separate) return e * (size_t)((a->w_rows + share - 1) / share) + (size_t)(wrow / share);
    return e * 2 * blocks + ((of == REF_GATE) == swapped ? blocks : 0) + (size_t)((a->n_offset + wrow % a->n) / share);
}
/* The global scale of gate or up, or of all; 1: there is none. */
static inline double ref_second(const moek_gemm_args *a, const moek_format *f, int of, int expert)
{
    const int swapped = a->gate_first > a->up_first;
    if (!f->global_scale) return 1;
    if (a->gate.codes && of == REF_GATE) return a->gate.global_scale[expert];
    if (a->gate.codes || of == REF_ALL) return a->w.global_scale[expert];
    return a->w.global_scale[2 * expert + ((of == REF_GATE) == swapped)];
}
/* w_k, row wrow of an expert's, less the zero points of its groups, if there are any. */
static inline void ref_less_zeros(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow,
                                  double *w_k)
{
    const ref_number *const number = ref_element(f->w, a->dtype);
    const int columns = f->w_scale.columns;
    const size_t row = (size_t)expert * (a->gate.codes ? a->n : a->w_rows) + wrow;
    const void *const all = a->gate.codes && of == REF_GATE ? a->gate.zero_points : a->w.zero_points;
    const char *const zeros = all ? (const char *)all + row * ref_bytes(number, ref_groups_of(a, columns)) : NULL;
    int k;
    for (k = 0; zeros && k < a->k; k++)
        w_k[k] -= ref_get(number, zeros, (size_t)(columns ? (a->k_offset + k) / columns : 0));
}
/* Of row wrow of an expert's and column k, counted from where the groups of k begin; 1: there are none. */
static inline double ref_w_scale_of(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    const moek_scale_shape *const s = &f->w_scale;
    const size_t w_row = (size_t)expert * (a->gate.codes ? a->n : a->w_rows) + wrow;
    const size_t row = !s->rows ? (size_t)expert : s->rows == 1 ? w_row : ref_scale_row(a, s->rows, of, expert, wrow);
    const void *const scales = a->gate.codes && of == REF_GATE ? a->gate.scales : a->w.scales;
    if (!s->type) return 1;
    return ref_get(ref_scale_type(s->type, a->dtype), scales,
                   row * ref_groups_of(a, s->columns) + (size_t)(s->columns ? k / s->columns : 0));
}
/* Where x stays T, rows of GPUs make T of weights that have a scale for some columns of a row (w - zero times the
 * scale, rounded once) and multiply those.  Set by the test of a row. */
static int ref_w_in_t;
/* Kernels that make T of weights in blocks of files, rounded once (MOEK_TRAIT_BLOCKS_IN_T): of up (1), of down (2).  In
 * bf16 the other neighbour of a weight is right, too, within `block_off`.  Set by the test of a row. */
static int ref_blocks_in_t;
static inline int ref_makes_t(const moek_kernel *k) { return (k->traits & MOEK_TRAIT_BLOCKS_IN_T) != 0; }
static inline int ref_may_be_off(const moek_format *f, int up, int dtype)
{
    return f->only_blocks && ref_blocks_in_t >> !up & 1 && dtype == MOEK_DTYPE_BF16;
}
/* Rows of Hopper put scales of w of fewer than 128 columns into e4m3.  Set by the test of a row.  Scales that are e4m3
 * themselves: w times its scale rounds to e4m3, times the power of 2 that brings the largest scale of 128 columns to 32
 * up to 60; and is 0 where that brings its scale below 2^-5.  ref_w_expanded: the largest of the whole row (expand). */
static int ref_w_in_e4m3, ref_w_expanded;
static inline int ref_rounded(const moek_format *f)
{
    return ref_w_in_e4m3 && f->w_scale.type == MOEK_SCALE_TYPE_E4M3 && format_quantizes(f);
}
static inline double ref_round_e4m3(double v)
{
    return ref_decode(&ref_numbers[REF_E4M3], ref_encode(&ref_numbers[REF_E4M3], v));
}
static inline void ref_fold_e4m3(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow,
                                 double *w_k)
{
    const int unit = ref_w_expanded ? a->k : 128;
    int k, first, power;
    for (first = 0; first < a->k; first += unit) {
        const int end = first + unit < a->k ? first + unit : a->k;
        double most = 0;
        for (k = first; k < end; k++) {
            const double s = ref_w_scale_of(a, f, of, expert, wrow, k);
            if (most == most && !(s <= most)) most = s;                /* a NaN stays: it spoils all 128 */
        }
        frexp(most == most ? most : 1, &power);        /* most: 0.5 up to 1 times 2^power */
        for (k = first; k < end; k++) {
            const double s = ldexp(ref_w_scale_of(a, f, of, expert, wrow, k), 6 - power);
            w_k[k] = most != most ? most : s < ldexp(1, -5) ? 0 : ldexp(ref_round_e4m3(w_k[k] * s), power - 6);
        }
    }
}
static inline int ref_folded(const moek_format *f)
{
    return ref_rounded(f) || (ref_w_in_t && f->w_scale.rows == 1 && f->w_scale.columns && !format_quantizes(f));
}
static inline void ref_fold(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, double *w_k)
{
    double scale = 1;
    int k;
    if (ref_rounded(f)) { ref_fold_e4m3(a, f, of, expert, wrow, w_k); return; }
    for (k = 0; ref_folded(f) && k < a->k; k++) {
        const int at = a->k_offset + k;
        if (!k || at % f->w_scale.columns == 0) scale = ref_w_scale_of(a, f, of, expert, wrow, at);
        w_k[k] = ref_round_t(w_k[k] * scale, a->dtype);
    }
}
/* What the products of column k are multiplied by. */
static inline double ref_w_scale(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    return ref_second(a, f, of, expert) * (ref_folded(f) ? 1 : ref_w_scale_of(a, f, of, expert, wrow, k));
}
static inline double ref_x_scale(const moek_gemm_args *a, const moek_format *f, int row, int k)
{
    const moek_scale_shape *const s = &f->x_scale;
    if (!s->type) return 1;
    return (format_x_second(f) ? a->a_global_scale[0] : 1.0) *
           ref_get(ref_scale_type(s->type, a->dtype), a->a_scale,
                   (s->rows ? (size_t)row : 0) * ref_groups_of(a, s->columns) +
                   (size_t)(s->columns ? k / s->columns : 0));
}
/* Columns of k that have the same scales on both sides; 0: all. */
static inline int ref_columns(const moek_format *f)
{
    const int w = f->w_scale.columns, x = f->x_scale.columns;
    return !w || (x && x < w) ? x : w;
}
/* Scales of w that are powers of 2, there, of the ref_w_unit columns with column k: terms of a scale up to this one may
 * count as 0.  It is below 2^-11 of the largest of them, or 2^-127.  Else -1. */
static int ref_w_unit = 128;                           /* 0: all columns of a row */
static inline double ref_may_lose(const moek_gemm_args *a, const moek_format *f, int of, int expert, int wrow, int k)
{
    const int columns = f->w_scale.columns, unit = ref_w_unit ? ref_w_unit : a->k, first = k / unit * unit;
    double most = 0;
    int i;
    if (!ref_w_in_e4m3 || f->w_scale.type != MOEK_SCALE_TYPE_E8M0 || columns >= 128) return -1;
    for (i = first; i < first + unit && i < a->k; i += columns) {
        const double s = ref_w_scale_of(a, f, of, expert, wrow, i);
        if (s > most) most = s;
    }
    return ldexp(most, -12) > ldexp(1, -127) ? ldexp(most, -12) : ldexp(1, -127);
}
/* What the unit that multiplies adds to that: fp8 wgmma keeps 13 bits below its largest term, and drops the rest.
 * Set by the test of a row. */
static double ref_products_error;
/* What f32 sums of k terms may be off by, where the |terms| add up to 1.  The worst case is k * 2^-24; an eighth of it,
 * and some for the scales, is still far from what sums do (tensor cores truncate,
                                                            but add 8 or 16 products at a time). */
static inline double ref_f32_error(int k) { return (k / 16 + 16) * ldexp(1, -23) + ref_products_error; }

/* Sums are made of rows that are decoded before, each once: the same for a loop on the CPU and a kernel on a GPU.  What
 * a value is held in has all its bits: elements, and weights that are rounded to T or e4m3, are floats, too. */
#if REF_CUDA
typedef float ref_held;
#else
typedef double ref_held;
#endif
enum { REF_STRIP = REF_CUDA ? 8 : 32, REF_PIECES = 1024 };
/* A batch is at most so many held values of each side, and so many sums; or else one strip. */
#define REF_HELD ((size_t)1 << (REF_CUDA ? 24 : 20))
#define REF_OUT ((size_t)1 << (REF_CUDA ? 23 : 20))
/* Rows of a that belong to one expert, and columns of its w; out: where y of the first of both is. */
typedef struct ref_strip { int row, rows, column, columns; size_t out; } ref_strip;
typedef struct ref_batch {
    moek_gemm_args gemm;                               /* of it: n, k, k_offset, act, alpha, beta, limit */
    double error;                                      /* ref_f32_error */
    int up, sides, share, groups;                      /* sides: rows of w a column; share: columns of k a scale */
    int rows, columns, strips, most;                   /* in all; most: columns of a strip */
    ref_held *a_k, *w_k;                               /* [row][k], [column][side][k] */
    ref_held *off;                                     /* as w_k: what weights may be off by; NULL: nothing */
    int may_be_off;                                    /* off is there */
    double *a_scale, *w_scale;                         /* [row][group], [column][side][group] */
    double *bias;                                      /* [column][side]; -0: none, which changes no sum */
    unsigned char *lost;                               /* as w_scale: may terms of the group count as 0? */
    ref_strip *strip;
    double *y, *slack;                                 /* see strip */
    size_t out;                                        /* how many */
} ref_batch;

REF_BOTH int ref_group_end(const ref_batch *b, int k0)
{
    const int k = b->gemm.k, at = b->gemm.k_offset + k0;
    const int end = b->share ? (at / b->share + 1) * b->share - b->gemm.k_offset : k;
    return end < k ? end : k;
}
/* A group's sums, scaled. */
REF_BOTH void ref_add_group(ref_sum *sum, double part, double size, double scale, int lost)
{
    sum->value += part * scale;
    sum->size += size * fabs(scale);
    if (lost) sum->lost += size * fabs(scale);
}
REF_BOTH void ref_add_bias(ref_sum *sum, double bias)
{
    sum->value += bias;
    sum->size += fabs(bias);
}
/* sum over k of a[row][k] * w[w_row][k], scaled, plus bias; w_row: 2 * column + side, if there are two. */
static inline ref_sum ref_dot(const ref_batch *b, size_t row, size_t w_row)
{
    const ref_held *const a_k = b->a_k + row * b->gemm.k, *const w_k = b->w_k + w_row * b->gemm.k;
    const double *const a_scale = b->a_scale + row * b->groups, *const w_scale = b->w_scale + w_row * b->groups;
    ref_sum sum = { 0, 0, 0 };
    int k0, k, end, g = 0;
    for (k0 = 0; k0 < b->gemm.k; k0 = end, g++) {
        double part = 0, size = 0;
        end = ref_group_end(b, k0);
#ifdef _OPENMP
#pragma omp simd reduction(+ : part, size)
#endif
        for (k = k0; k < end; k++) {
            const double term = (double)a_k[k] * w_k[k];
            part += term;
            size += fabs(term);
        }
        ref_add_group(&sum, part, size, a_scale[g] * w_scale[g], b->lost[w_row * b->groups + g]);
    }
    for (k = 0; b->may_be_off && k < b->gemm.k; k++) sum.lost += fabs((double)a_k[k] * b->off[w_row * b->gemm.k + k]);
    ref_add_bias(&sum, b->bias[w_row]);
    return sum;
}
/* The same of all rows of a strip. */
REF_BOTH void ref_dots(const ref_batch *b, const ref_strip *s, size_t w_row, ref_sum *sum)
{
    const ref_held *const w_k = b->w_k + w_row * b->gemm.k, *a_k[REF_STRIP];
    const double *const w_scale = b->w_scale + w_row * b->groups;
    int i, k0, k, end, g = 0;
    for (i = 0; i < REF_STRIP; i++) {                  /* (beyond the last row: the last once more) */
        a_k[i] = b->a_k + (size_t)(s->row + (i < s->rows ? i : s->rows - 1)) * b->gemm.k;
        sum[i].value = sum[i].size = sum[i].lost = 0;
    }
    for (k0 = 0; k0 < b->gemm.k; k0 = end, g++) {
        double part[REF_STRIP] = { 0 }, size[REF_STRIP] = { 0 };
        end = ref_group_end(b, k0);
        for (k = k0; k < end; k++)
            for (i = 0; i < REF_STRIP; i++) {
                const double term = (double)a_k[i][k] * w_k[k];
                part[i] += term;
                size[i] += fabs(term);
            }
        for (i = 0; i < REF_STRIP; i++) {
            const size_t row = (size_t)(s->row + (i < s->rows ? i : s->rows - 1));
            ref_add_group(&sum[i], part[i], size[i], b->a_scale[row * b->groups + g] * w_scale[g],
                          b->lost[w_row * b->groups + g]);
        }
    }
    for (k = 0; b->may_be_off && k < b->gemm.k; k++)
        for (i = 0; i < REF_STRIP; i++) sum[i].lost += fabs((double)a_k[i][k] * b->off[w_row * b->gemm.k + k]);
    for (i = 0; i < REF_STRIP; i++) ref_add_bias(&sum[i], b->bias[w_row]);
}

/* out of up before rounding; g: the sum for the gate or only value, u: for the up value; *slack: how far f32 arithmetic
 * may be from it, if sums are off by `e` of their |terms|. */
REF_BOTH double ref_up_one(const moek_gemm_args *a, ref_sum g, ref_sum u, double e, double *slack)
{
    const int gated = ref_gated(a->epilogue.act);
    const double y = ref_act(a->epilogue.act, g.value, u.value, a->epilogue.alpha, a->epilogue.beta, a->epilogue.limit);
    const int act = a->epilogue.act;
    const int gelu = act == MOEK_GELU || act == MOEK_GELU_NO_MUL || act == MOEK_GELU_TANH ||
                     act == MOEK_GELU_TANH_NO_MUL;
    int i;
    *slack = 0;
    for (i = 0; i < 4; i++) {                          /* what the errors of g and u do to y */
        const double of_g = e * g.size + g.lost, of_u = e * u.size + u.lost;
        const double moved = ref_act(act, g.value + (i & 1 ? of_g : -of_g), u.value + (i & 2 ? of_u : -of_u),
                                     a->epilogue.alpha, a->epilogue.beta, a->epilogue.limit);
        if (fabs(moved - y) > *slack) *slack = fabs(moved - y);
    }
    *slack += ldexp(fabs(y), -18);                     /* f32 exp, tanh, erf and the products after them */
    if (gelu) *slack += ldexp(fabs(g.value) * (gated ? fabs(u.value) : 1), -22);       /* 1 + erf cancels for g < 0 */
    return y;
}
REF_BOTH double ref_down_one(ref_sum sum, double e, double *slack)
{
    *slack = sum.size * e + sum.lost;
    return sum.value;
}
/* y and slack of row i and column j of a strip. */
REF_BOTH void ref_put_sums(const ref_batch *b, const ref_strip *s, int i, int j, ref_sum g, ref_sum u)
{
    const size_t at = s->out + (size_t)i * s->columns + j;
    double *const slack = &b->slack[at];
    b->y[at] = b->up ? ref_up_one(&b->gemm, g, u, b->error, slack) : ref_down_one(g, b->error, slack);
}
/* Column j of a strip, as the kernel makes it. */
REF_BOTH void ref_strip_column(const ref_batch *b, const ref_strip *s, int j)
{
    const size_t w_row = (size_t)(s->column + j) * b->sides;
    ref_sum g[REF_STRIP], u[REF_STRIP];
    int i;
    ref_dots(b, s, w_row, g);
    for (i = 0; i < REF_STRIP; i++) u[i].value = u[i].size = u[i].lost = 0;
    if (b->sides > 1) ref_dots(b, s, w_row + 1, u);
    for (i = 0; i < REF_STRIP; i++) if (i < s->rows) ref_put_sums(b, s, i, j, g[i], u[i]);
}
static inline void ref_on_cpu(const ref_batch *b)
{
    int s, j;
    for (s = 0; s < b->strips; s++) {
        const ref_strip *const at = &b->strip[s];
#ifdef _OPENMP
#pragma omp parallel for
#endif
        for (j = 0; j < at->columns; j++) {
            const size_t w_row = (size_t)(at->column + j) * b->sides;
            const ref_sum zero = { 0, 0, 0 };
            int i;
            for (i = 0; i < at->rows; i++) {
                const ref_sum g = ref_dot(b, (size_t)(at->row + i), w_row);
                ref_put_sums(b, at, i, j, g, b->sides > 1 ? ref_dot(b, (size_t)(at->row + i), w_row + 1) : zero);
            }
        }
    }
}
/* Its arrays, one behind the other from `base`; what is computed comes last.  Returns bytes, and of them those before
 * y. */
static inline void *ref_place_(char *base, size_t *at, size_t bytes)
{
    void *const p = base ? base + *at : NULL;
    *at += (bytes + 15) / 16 * 16;
    return p;
}
static inline size_t ref_places(ref_batch *b, void *memory, size_t *inputs)
{
    const size_t rows = (size_t)b->rows, w_rows = (size_t)b->columns * b->sides, groups = (size_t)b->groups;
    char *const base = (char *)memory;                 /* NULL: only the sizes */
    size_t at = 0;
    b->a_k = (ref_held *)ref_place_(base, &at, rows * b->gemm.k * sizeof(ref_held));
    b->w_k = (ref_held *)ref_place_(base, &at, w_rows * b->gemm.k * sizeof(ref_held));
    b->off = (ref_held *)ref_place_(base, &at, b->may_be_off ? w_rows * b->gemm.k * sizeof(ref_held) : 0);
    b->a_scale = (double *)ref_place_(base, &at, rows * groups * sizeof(double));
    b->w_scale = (double *)ref_place_(base, &at, w_rows * groups * sizeof(double));
    b->bias = (double *)ref_place_(base, &at, w_rows * sizeof(double));
    b->lost = (unsigned char *)ref_place_(base, &at, w_rows * groups);
    b->strip = (ref_strip *)ref_place_(base, &at, (size_t)b->strips * sizeof(ref_strip));
    *inputs = at;
    b->y = (double *)ref_place_(base, &at, b->out * sizeof(double));
    b->slack = (double *)ref_place_(base, &at, b->out * sizeof(double));
    return at;
}
#if REF_CUDA
static __global__ void ref_kernel(const __grid_constant__ ref_batch b)
{
    const int j = (int)(blockIdx.y * blockDim.x + threadIdx.x), s = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    if (s < b.strips && j < b.strip[s].columns) ref_strip_column(&b, &b.strip[s], j);
}
/* Of the host (page-locked) or the device, at least so many bytes; the next batch gets the same again. */
static inline void *ref_memory(int device, size_t bytes)
{
    static struct { void *at; size_t bytes; } has[2];
    if (has[device].bytes >= bytes) return has[device].at;
    bytes += bytes / 2;
    if (has[device].at) mem_must(device ? cudaFree(has[device].at) : cudaFreeHost(has[device].at));
    mem_must(device ? cudaMalloc(&has[device].at, bytes) : cudaMallocHost(&has[device].at, bytes));
    has[device].bytes = bytes;
    return has[device].at;
}
static inline void ref_on_gpu(const ref_batch *b)
{
    ref_batch there = *b;
    const dim3 threads(32, 4), blocks((b->strips + 3) / 4, (b->most + 31) / 32);
    size_t inputs, all = ref_places(&there, NULL, &inputs);
    void *const device = ref_memory(1, all);
    ref_places(&there, device, &inputs);
    mem_must(cudaMemcpy(device, b->a_k, inputs, cudaMemcpyHostToDevice));
    ref_kernel<<<blocks, threads>>>(there);
    mem_must(cudaGetLastError());
    mem_must(cudaMemcpy(b->y, there.y, all - inputs, cudaMemcpyDeviceToHost));
}
static inline int ref_has_gpu(void)
{
    static int has;                                    /* 1: no, 2: yes */
    if (!has) has = 1 + mem_can_run(80);
    return has == 2;
}
#endif
/* b, placed in host memory; `own`: by the kernel's code, where it does not run on a GPU, too. */
static inline void ref_sums(const ref_batch *b, int own)
{
    int s, j;
#if REF_CUDA
    if (ref_has_gpu()) { ref_on_gpu(b); return; }
#endif
    if (!own) { ref_on_cpu(b); return; }
    for (s = 0; s < b->strips; s++)
        for (j = 0; j < b->strip[s].columns; j++) ref_strip_column(b, &b->strip[s], j);
}
static inline void *ref_batch_memory(size_t bytes)
{
#if REF_CUDA
    if (ref_has_gpu()) return ref_memory(0, bytes);
#endif
    return ref_alloc(bytes);
}
static inline void ref_batch_free(void *memory)
{
#if REF_CUDA
    if (ref_has_gpu()) return;                         /* (kept for the next one) */
#endif
    free(memory);
}

/* A part of one expert's rows and columns, as the batch has it: from sorted row `first`, and column j, on. */
typedef struct ref_piece { int expert, first, rows, row, j, columns, column; size_t out; } ref_piece;
typedef struct ref_pieces { ref_piece of[REF_PIECES]; int count; } ref_pieces;

static inline void ref_hold(const double *from, int k, ref_held *to)
{
    int i;
    for (i = 0; i < k; i++) to[i] = (ref_held)from[i];
}
/* Row p of those that are sorted. */
static inline void ref_a_row_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int p, size_t row)
{
    const int from = a->rows.order ? a->rows.order[p] / a->rows.div : p;
    double *const a_k = (double *)ref_alloc((size_t)a->k * sizeof *a_k);
    int k0, g = 0;
    ref_decode_row(ref_element(f->x, a->dtype), a->a, a->a_row_bytes, (size_t)from, a->k, a_k);
    ref_hold(a_k, a->k, b->a_k + row * a->k);
    for (k0 = 0; k0 < a->k; k0 = ref_group_end(b, k0), g++)
        b->a_scale[row * b->groups + g] = ref_x_scale(a, f, from, a->k_offset + k0);
    free(a_k);
}
/* Row wrow of w, or of gate or up in it, to row w_row of the batch. */
static inline void ref_w_row_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int of, int expert,
                              int wrow, size_t w_row)
{
    const int gate = a->gate.codes && of == REF_GATE;
    const size_t row = (size_t)expert * (a->gate.codes ? a->n : a->w_rows) + wrow;
    const void *const bias = gate ? a->gate.bias : a->w.bias;
    double *const w_k = (double *)ref_alloc((size_t)a->k * sizeof *w_k);
    double *const off = b->may_be_off ? (double *)ref_alloc((size_t)a->k * sizeof *off) : NULL, lost = -1;
    int k0, g = 0;
    if (f->only_blocks) block_row(f, gate ? a->gate.codes : a->w.codes, row, a->k, w_k, off);
    else ref_decode_row(ref_element(f->w, a->dtype), gate ? a->gate.codes : a->w.codes, 0, row, a->k, w_k);
    for (k0 = 0; f->only_blocks && ref_blocks_in_t >> !b->up & 1 && k0 < a->k; k0++) {
        const double w = w_k[k0], to = ref_round_t((float)w, a->dtype);
        if (off) {
            const double below = to - ref_round_t(w - off[k0], a->dtype);
            const double above = ref_round_t(w + off[k0], a->dtype) - to;
            off[k0] = below > above ? below : above;
        }
        w_k[k0] = to;
    }
    if (off) ref_hold(off, a->k, b->off + w_row * a->k);
    free(off);
    ref_less_zeros(a, f, of, expert, wrow, w_k);
    ref_fold(a, f, of, expert, wrow, w_k);
    ref_hold(w_k, a->k, b->w_k + w_row * a->k);
    for (k0 = 0; k0 < a->k; k0 = ref_group_end(b, k0), g++) {
        const int at = a->k_offset + k0;
        b->w_scale[w_row * b->groups + g] = ref_w_scale(a, f, of, expert, wrow, at);
        if (!k0 || (ref_w_unit && at % ref_w_unit == 0)) lost = ref_may_lose(a, f, of, expert, wrow, at);
        b->lost[w_row * b->groups + g] = lost >= 0 && ref_w_scale_of(a, f, of, expert, wrow, at) <= lost;
    }
    b->bias[w_row] = bias ? ref_get_t(bias, row, a->dtype) : -0.0;
    free(w_k);
}
/* Column j of up or down: its row of w, or two. */
static inline void ref_w_column_(const ref_batch *b, const moek_gemm_args *a, const moek_format *f, int expert, int j,
                                 size_t column)
{
    const int gated = b->sides > 1, apart = gated && a->gate.codes, step = apart ? 1 : a->w_step;
    const int gate_row = !gated || apart ? j : a->gate_first + j * step;
    ref_w_row_(b, a, f, gated ? REF_GATE : REF_ALL, expert, gate_row, column * b->sides);
    if (gated) ref_w_row_(b, a, f, REF_UP, expert, apart ? j : a->up_first + j * step, column * b->sides + 1);
}
static inline void ref_strips_(const ref_batch *b, const ref_pieces *pieces)
{
    int i, r, s = 0;
    for (i = 0; i < pieces->count; i++) {
        const ref_piece *const piece = &pieces->of[i];
        for (r = 0; r < piece->rows; r += REF_STRIP) {
            ref_strip *const strip = &b->strip[s++];
            strip->row = piece->row + r, strip->rows = piece->rows - r < REF_STRIP ? piece->rows - r : REF_STRIP;
            strip->column = piece->column, strip->columns = piece->columns;
            strip->out = piece->out + (size_t)r * piece->columns;
        }
    }
}
/* Sums of all pieces, to y and slack as ref_gemm_ has them; none is left. */
static inline void ref_flush_(ref_batch *b, ref_pieces *pieces, const moek_gemm_args *a, const moek_format *f,
                              double *y, double *slack)
{
    int *const of_column = (int *)ref_alloc(((size_t)b->columns + b->rows) * sizeof *of_column);
    int *const of_row = of_column + b->columns;
    void *memory;
    size_t inputs;
    int i, j, r;
    for (i = 0; i < pieces->count; i++) {
        const ref_piece *const piece = &pieces->of[i];
        for (j = 0; j < piece->columns; j++) of_column[piece->column + j] = i;
        for (r = 0; r < piece->rows; r++) of_row[piece->row + r] = i;
    }
    memory = ref_batch_memory(ref_places(b, NULL, &inputs));
    ref_places(b, memory, &inputs);
    ref_strips_(b, pieces);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 8)
#endif
    for (j = 0; j < b->columns + b->rows; j++) {       /* rows of w, then of a */
        const ref_piece *const piece = &pieces->of[of_column[j]];
        const int at = j - b->columns;
        if (at < 0) ref_w_column_(b, a, f, piece->expert, piece->j + j - piece->column, (size_t)j);
        else ref_a_row_(b, a, f, piece->first + at - piece->row, (size_t)at);
    }
    ref_sums(b, 0);
#ifdef _OPENMP
#pragma omp parallel for if (b->out > 100000)
#endif
    for (r = 0; r < b->rows; r++) {
        const ref_piece *const piece = &pieces->of[of_row[r]];
        const int p = piece->first + r - piece->row;
        const size_t to = (size_t)(a->rows.out_order ? a->rows.out_order[p] : p) * a->n + piece->j;
        const size_t from = piece->out + (size_t)(r - piece->row) * piece->columns, bytes = piece->columns * sizeof *y;
        memcpy(y + to, b->y + from, bytes);
        if (slack) memcpy(slack + to, b->slack + from, bytes);
    }
    ref_batch_free(memory);
    free(of_column);
    b->rows = b->columns = b->strips = b->most = pieces->count = 0;
    b->out = 0;
}
static inline void ref_add_piece_(ref_batch *b, ref_pieces *pieces, int expert, int first, int rows, int j, int columns)
{
    ref_piece *const piece = &pieces->of[pieces->count++];
    piece->expert = expert, piece->first = first, piece->rows = rows, piece->row = b->rows;
    piece->j = j, piece->columns = columns, piece->column = b->columns, piece->out = b->out;
    b->rows += rows, b->columns += columns, b->strips += (rows + REF_STRIP - 1) / REF_STRIP;
    b->out += (size_t)rows * columns;
    if (columns > b->most) b->most = columns;
}
static inline ref_batch ref_batch_of(const moek_gemm_args *a, int up, int share)
{
    ref_batch b;
    memset(&b, 0, sizeof b);
    b.gemm = *a, b.up = up, b.share = share;
    b.sides = 1 + (up && ref_gated(a->epilogue.act)), b.error = ref_f32_error(a->k);
    b.groups = share ? (a->k_offset + a->k + share - 1) / share - a->k_offset / share : 1;
    return b;
}
/* Of so many, at once; not too few. */
static inline int ref_at_once_(int all, size_t fit)
{
    const size_t least = REF_STRIP, some = fit < least ? least : fit;
    return all < 1 ? 1 : (size_t)all < some ? all : (int)some;
}
/* y and slack (or NULL): rows of n doubles, indexed as `out`; rows that nobody owns are left alone.  Of formats with a
 * global scale (of w or x) or zero points, a is the first part of a moek_gemm_args. */
static inline void ref_gemm_(const moek_gemm_args *a, const moek_format *f, int up, double *y, double *slack)
{
    const int R = a->rows_per_expert;
    ref_batch b = ref_batch_of(a, up, ref_columns(f));
    const size_t w_k = (size_t)a->k * b.sides;
    ref_pieces *const pieces = (ref_pieces *)ref_alloc(sizeof *pieces);
    int e, first, j;
    b.may_be_off = ref_may_be_off(f, up, a->dtype);
    ref_tables_(f, a->dtype);
    for (e = 0; e < a->experts; e++) {
        const int begin = R ? e * R : a->rows.offsets[e], end = R ? begin + a->rows.counts[e] : a->rows.offsets[e + 1];
        const int rows = ref_at_once_(end - begin, REF_HELD / a->k);
        const int columns = ref_at_once_(ref_at_once_(a->n, REF_HELD / w_k), REF_OUT / rows);
        for (j = 0; j < a->n; j += columns)
            for (first = begin; first < end; first += rows) {
                const int some = end - first < rows ? end - first : rows;
                const int wide = a->n - j < columns ? a->n - j : columns;
                if (pieces->count == REF_PIECES || (pieces->count && (b.rows + (size_t)some) * a->k > REF_HELD) ||
                    (pieces->count && (b.columns + (size_t)wide) * w_k > REF_HELD) ||
                    (pieces->count && b.out + (size_t)some * wide > REF_OUT))
                    ref_flush_(&b, pieces, a, f, y, slack);
                ref_add_piece_(&b, pieces, e, first, some, j, wide);
            }
    }
    if (pieces->count) ref_flush_(&b, pieces, a, f, y, slack);
    free(pieces);
}
static inline void ref_up(const moek_gemm_args *a, const moek_format *f, double *y, double *slack)
{
    ref_gemm_(a, f, 1, y, slack);
}
static inline void ref_down(const moek_gemm_args *a, const moek_format *f, double *y, double *slack)
{
    ref_gemm_(a, f, 0, y, slack);
}
