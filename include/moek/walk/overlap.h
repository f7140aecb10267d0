/* moek/walk/overlap.h -- a run's arrays: what is written must not lie where something else is.  A GPU would give wrong
 * numbers then, and on some runs right ones. */
#ifndef MOEK_OVERLAP_H
#define MOEK_OVERLAP_H
#include "../plan/alignment.h"

/* Elements from a row of a run's x, y and shared_y to the next. */
static size_t moek_x_stride_(const moek_args *a, const moek_config *c)
{
    return a->x_stride ? a->x_stride : (size_t)c->hidden;
}
static size_t moek_y_stride_(const moek_args *a, const moek_config *c)
{
    return a->y_stride ? a->y_stride : (size_t)c->hidden;
}
static size_t moek_shared_y_stride_(const moek_args *a, const moek_config *c)
{
    return a->shared_y_stride ? a->shared_y_stride : (size_t)c->hidden;
}
static size_t moek_logits_stride_(const moek_plan *plan, const moek_args *args)
{
    return args->router_logits_stride ? args->router_logits_stride : (size_t)plan->config.experts;
}

/* Rows of an array: bytes of a row, and from a row to the next.  like_y: may be y, row for row. */
typedef struct moek_region_ {
    const char *name;
    uintptr_t at, end;
    size_t row, stride;
    int rows, written, like_y;
} moek_region_;
enum { MOEK_REGIONS_ = 12 };
typedef struct moek_regions_ { int n; moek_region_ region[MOEK_REGIONS_]; } moek_regions_;

/* Does a byte lie in both, whose ends do not lie apart?  Rows may lie between the other's rows. */
static int moek_overlaps_(const moek_region_ *a, const moek_region_ *b)
{
    const uintptr_t q = b->at;
    int i;
    for (i = 0; i < a->rows; i++) {
        const uintptr_t row = a->at + (size_t)i * a->stride;
        const size_t j = row < q || b->rows < 2 ? 0 : (row - q) / b->stride;       /* the last that begins ahead */
        const size_t next = row < q ? 0 : j + 1;
        if (row >= q && j < (size_t)b->rows && row - q - j * b->stride < b->row) return 1;
        if (next < (size_t)b->rows && q + next * b->stride < row + a->row) return 1;
    }
    return 0;
}

/* The array, if there is one. */
static void moek_add_region_(moek_regions_ *to, const char *name, const void *at, size_t row, size_t stride, int rows,
                             int written)
{
    moek_region_ *const r = &to->region[to->n];
    if (!at || !row || rows < 1) return;
    r->name = name; r->at = (uintptr_t)at; r->row = row; r->stride = stride; r->rows = rows; r->written = written;
    r->end = r->at + (size_t)(rows - 1) * stride + row;
    r->like_y = 0;
    to->n++;
}
/* y first. */
static void moek_regions_of_(const moek_plan *plan, const moek_args *a, moek_regions_ *to)
{
    const moek_config *c = &plan->config;
    const size_t row = 2 * (size_t)c->hidden, logit = moek_logit_bytes_(c->logits_dtype);
    const size_t tokens = (size_t)a->tokens, slots = tokens * (size_t)plan->slots;
    const int routed = a->router_logits != NULL;
    int i;
    to->n = 0;
#define MOEK_ROWS_OF_(field, written) \
    moek_add_region_(to, #field, a->field, row, 2 * moek_##field##_stride_(a, c), a->tokens, written)
#define MOEK_ARRAY_(field, bytes, written) moek_add_region_(to, #field, a->field, bytes, bytes, 1, written)
    MOEK_ROWS_OF_(y, 1);
    MOEK_ROWS_OF_(x, 0);
    MOEK_ROWS_OF_(shared_y, 0);
    for (i = 1; i < to->n; i++) to->region[i].like_y = 1;
    MOEK_ARRAY_(workspace, plan->workspace_size, 1);
    MOEK_ARRAY_(state, moek_state_size(), 1);
    MOEK_ARRAY_(topk_ids, 4 * slots, routed);
    MOEK_ARRAY_(topk_weights, 4 * slots, routed);
    MOEK_ARRAY_(topk_ids64, 8 * slots, 0);
    moek_add_region_(to, "router_logits", a->router_logits, logit * (size_t)c->experts,
                     logit * moek_logits_stride_(plan, a), a->tokens, 0);
    MOEK_ARRAY_(token_ids, plan->weights.router_table ? 4 * tokens : 0, 0);
    MOEK_ARRAY_(is_padding, tokens, 0);
    MOEK_ARRAY_(shared_weights, 4 * tokens * (size_t)c->shared_slots, 0);
#undef MOEK_ROWS_OF_
#undef MOEK_ARRAY_
}

static moek_status moek_check_overlap_(const moek_plan *plan, const moek_args *args)
{
    moek_regions_ all;
    const moek_region_ *a, *b, *end;
    moek_regions_of_(plan, args, &all);
    end = all.region + all.n;
    for (a = all.region; a < end; a++)
        for (b = a + 1; b < end; b++) {
            const int may = a == all.region && b->like_y;
            if (a->end <= b->at || b->end <= a->at || !(a->written | b->written) || !moek_overlaps_(a, b)) continue;
            if (may && a->at == b->at) continue;
            MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s and %s lie in the same memory (%s begins %ld bytes behind "
                         "%s), and %s is written: each needs memory of its own%s", a->name, b->name, a->name,
                         (long)(intptr_t)(a->at - b->at), b->name, a->written ? a->name : b->name,
                         may ? ", or both the same address and stride" : "");
        }
    return MOEK_OK;
}
#endif
