/* moek/import/shape.h -- what a file says of an array against what a source has there. */
#ifndef MOEK_IMPORT_SHAPE_H
#define MOEK_IMPORT_SHAPE_H
#include "../text.h"
#include "codes.h"
#include "scales.h"

/* Sizes that an array of a source must have, and bytes of an element. */
typedef struct moek_wanted_ { const char *source, *name; uint64_t size[2]; int bytes; } moek_wanted_;

/* Do sizes multiply to those wanted, the slower one first?  One size may stand for both. */
static int moek_shape_fits_(const moek_import_tensor *is, uint64_t slow, uint64_t fast)
{
    const uint64_t whole = slow * fast;
    uint64_t product = 1;
    int i, apart = slow == 1 || fast == 1;
    for (i = 0; i < MOEK_IMPORT_SIZES && is->shape[i]; i++) {
        if (is->shape[i] < 0 || (uint64_t)is->shape[i] > whole / product) return 0;
        product *= (uint64_t)is->shape[i];
        apart |= product == slow || (uint64_t)is->shape[i] == whole;
    }
    return apart && product == whole;
}
static void moek_shape_say_(moek_text_ *t, const moek_import_tensor *is)
{
    int i;
    if (!is->shape[0]) moek_append_(t, " %llu bytes", (unsigned long long)is->bytes);
    for (i = 0; i < MOEK_IMPORT_SIZES && is->shape[i]; i++)
        moek_append_(t, "%s[%lld]", i ? "" : " ", (long long)is->shape[i]);
}
/* What the mistake may be. */
static const char *moek_shape_guess_(const moek_import_args *a, const moek_import_tensor *is, const moek_wanted_ *w)
{
    const uint64_t n = (uint64_t)a->rows, k = (uint64_t)a->columns;
    if (w->size[0] != w->size[1] && moek_shape_fits_(is, w->size[1], w->size[0])) return "; is it transposed?";
    if (is == &a->w_tensor && w->size[0] == n && w->size[1] == (k + 1) / 2 && moek_shape_fits_(is, n, k))
        return "; a byte an element is MOEK_FROM_INT4_BYTES, _INT8_BYTES or _FP8_*";
    if (is == &a->w_tensor && w->size[0] == n && w->size[1] == k && moek_shape_fits_(is, n, k / 2))
        return "; two elements a byte are another source";
    if (is == &a->scale_tensor) return "; is config.block the file's group_size, and this its source?";
    return "";
}
static moek_status moek_shape_check_(const moek_import_args *a, const moek_import_tensor *is, const moek_wanted_ *w)
{
    const uint64_t bytes = w->size[0] * w->size[1] * (uint64_t)w->bytes;
    const int fits = !is->shape[0] || moek_shape_fits_(is, w->size[0], w->size[1]);
    moek_text_ t;
    if (fits && (!is->bytes || is->bytes == bytes)) return MOEK_OK;
    t = moek_text_in_(a->why, a->why_size);
    moek_append_(&t, "%s is", w->name);
    moek_shape_say_(&t, is);
    if (fits && is->shape[0]) moek_append_(&t, " of %llu bytes", (unsigned long long)is->bytes);
    moek_append_(&t, ": %s with rows %d and columns %d has [%llu][%llu] there, %d bytes an element%s",
                 w->source, a->rows, a->columns, (unsigned long long)w->size[0],
                 (unsigned long long)w->size[1], w->bytes, fits ? "" : moek_shape_guess_(a, is, w));
    return MOEK_E_ARGUMENT;
}
/* [rows][columns] of a layout of codes.  (Whole words, or bytes.) */
static moek_wanted_ moek_shape_codes_(const char *source, const char *name, const moek_codes_ *c, int words)
{
    const moek_plane_ n = moek_codes_plane_(c);
    moek_wanted_ w;
    w.source = source; w.name = name;
    w.size[0] = n.p; w.size[1] = n.q; w.bytes = 4;
    if (words) return w;
    w.bytes = 1;
    w.size[1] = c->row_bytes;
    if (moek_codes_in_blocks_(c)) w.size[1] = c->columns / moek_codes_block_(c) * moek_codes_block_bytes_(c);
    return w;
}
static moek_status moek_shape_scales_(const moek_import_args *a, const char *source, const moek_factors_ *s,
                                      size_t rows, size_t groups, int turned)
{
    moek_wanted_ w;
    w.source = source; w.name = "their_scale"; w.bytes = (int)moek_factors_bytes_(s->type);
    w.size[0] = turned ? groups : rows; w.size[1] = turned ? rows : groups;
    if (s->tiles) {
        w.size[0] = 1;
        w.size[1] = (rows + MOEK_TILE_ROWS_ - 1) / MOEK_TILE_ROWS_ * s->tiles * MOEK_TILE_ROWS_ * MOEK_TILE_GROUPS_;
    }
    return moek_shape_check_(a, &a->scale_tensor, &w);
}
static moek_status moek_shape_global_(const moek_import_args *a, const char *source)
{
    moek_wanted_ w;
    w.source = source; w.name = "their_global"; w.bytes = 4;
    w.size[0] = w.size[1] = 1;
    return moek_shape_check_(a, &a->global_tensor, &w);
}
#endif
