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

/* Rows of an array: bytes of a row, and from a row to the next. */
typedef struct moek_region_ { const char *name; const void *at; size_t row, stride; int rows, written; } moek_region_;
enum { MOEK_REGIONS_ = 12 };

/* Does a byte lie in both?  Rows may lie between the other's rows. */
static int moek_meet_(const moek_region_ *a, const moek_region_ *b)
{
    const uintptr_t p = (uintptr_t)a->at, q = (uintptr_t)b->at;
    int i;
    if (!p || !q || !a->row || !b->row || a->rows < 1 || b->rows < 1) return 0;
    if (p + (size_t)(a->rows - 1) * a->stride + a->row <= q || q + (size_t)(b->rows - 1) * b->stride + b->row <= p)
        return 0;
    for (i = 0; i < a->rows; i++) {
        const uintptr_t row = p + (size_t)i * a->stride;
        const size_t j = row < q || b->rows < 2 ? 0 : (row - q) / b->stride;       /* the last that begins ahead */
        const size_t next = row < q ? 0 : j + 1;
        if (row >= q && j < (size_t)b->rows && row - q - j * b->stride < b->row) return 1;
        if (next < (size_t)b->rows && q + next * b->stride < row + a->row) return 1;
    }
    return 0;
}

static moek_region_ moek_region_of_(const char *name, const void *at, size_t row, size_t stride, int rows, int written)
{
    moek_region_ r;
    r.name = name; r.at = at; r.row = row; r.stride = stride; r.rows = rows; r.written = written;
    return r;
}
/* y first, which may be x or shared_y. */
static void moek_regions_of_(const moek_plan *plan, const moek_args *a, moek_region_ r[MOEK_REGIONS_])
{
    const moek_config *c = &plan->config;
    const size_t row = 2 * (size_t)c->hidden, logit = moek_logit_bytes_(c->logits_dtype);
    const size_t tokens = (size_t)a->tokens, slots = tokens * (size_t)plan->slots;
    const int routed = a->router_logits != NULL;
#define MOEK_ROWS_OF_(field) \
    moek_region_of_(#field, a->field, row, 2 * moek_##field##_stride_(a, c), a->tokens, 0)
#define MOEK_ARRAY_(field, bytes, written) moek_region_of_(#field, a->field, bytes, bytes, 1, written)
    r[0] = MOEK_ROWS_OF_(y); r[0].written = 1;
    r[1] = MOEK_ROWS_OF_(x);
    r[2] = MOEK_ROWS_OF_(shared_y);
    r[3] = MOEK_ARRAY_(workspace, plan->workspace_size, 1);
    r[4] = MOEK_ARRAY_(state, moek_state_size(), 1);
    r[5] = MOEK_ARRAY_(topk_ids, 4 * slots, routed);
    r[6] = MOEK_ARRAY_(topk_weights, 4 * slots, routed);
    r[7] = MOEK_ARRAY_(topk_ids64, 8 * slots, 0);
    r[8] = moek_region_of_("router_logits", a->router_logits, logit * (size_t)c->experts,
                           logit * moek_logits_stride_(plan, a), a->tokens, 0);
    r[9] = MOEK_ARRAY_(token_ids, plan->weights.router_table ? 4 * tokens : 0, 0);
    r[10] = MOEK_ARRAY_(is_padding, tokens, 0);
    r[11] = MOEK_ARRAY_(shared_weights, 4 * tokens * (size_t)c->shared_slots, 0);
#undef MOEK_ROWS_OF_
#undef MOEK_ARRAY_
}

static moek_status moek_check_overlap_(const moek_plan *plan, const moek_args *args)
{
    moek_region_ r[MOEK_REGIONS_];
    int i, j;
    moek_regions_of_(plan, args, r);
    for (i = 0; i < MOEK_REGIONS_; i++)
        for (j = i + 1; j < MOEK_REGIONS_; j++) {
            if ((!r[i].written && !r[j].written) || !moek_meet_(&r[i], &r[j])) continue;
            if (i == 0 && j <= 2 && r[i].at == r[j].at) continue;      /* row for row */
            MOEK_REFUSE_(args, MOEK_E_ARGUMENT, "args.%s and %s lie in the same memory (%s begins %ld bytes behind "
                         "%s), and %s is written: each needs memory of its own%s", r[i].name, r[j].name, r[i].name,
                         (long)((intptr_t)r[i].at - (intptr_t)r[j].at), r[j].name,
                         r[i].written ? r[i].name : r[j].name,
                         i == 0 && j <= 2 ? ", or both the same address and stride" : "");
        }
    return MOEK_OK;
}
#endif
