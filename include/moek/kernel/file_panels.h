/* moek/kernel/file_panels.h -- blocks of GGUF files to panels and back: where the bytes of 16 rows lie (moek/ops.h:
 * repack draws the order). */
#ifndef MOEK_FILE_PANELS_H
#define MOEK_FILE_PANELS_H
#include "file_tiles.h"

/* 256 columns of 16 rows are a unit, or what is left of a row.  In front lie the scales of all its blocks, f16 and
 * bytes of 16 rows side by side, then their codes, words of 4 bytes of 16 rows side by side. */
enum { MOEK_UNIT = 256, MOEK_UNIT_ROWS = 16, MOEK_UNIT_BLOCK = 256 /* bytes, at least those of a block */ };
typedef struct moek_file_panel_ {
    int bytes, heads, columns;                         /* of a block: bytes, of which so many are no codes; columns */
    int at[MOEK_UNIT_BLOCK];                           /* byte of a block: among the heads, or the codes, of 16 rows */
    uint8_t each[MOEK_UNIT_BLOCK];                     /* from a row to the next; 4: codes */
} moek_file_panel_;
MOEK_FN void moek_file_panel_each_(moek_file_panel_ *p, int first, int bytes, int each)
{
    int i;
    for (i = 0; i < bytes; i++) p->each[first + i] = (uint8_t)each;
}
MOEK_FN moek_file_panel_ moek_file_panel_of_(const moek_block *b)
{
    const moek_block_scale *const scales[2] = { &b->scale, &b->min };
    moek_file_panel_ p;
    int i, codes = 0;
    p.bytes = b->bytes; p.columns = b->columns; p.heads = 0;
    moek_file_panel_each_(&p, 0, b->bytes, 1);
    for (i = 0; i < b->planes; i++)
        moek_file_panel_each_(&p, b->plane[i].at, b->columns * b->plane[i].bits / 8, 4);
    for (i = 0; i < (b->sign ? 2 : 1); i++) {
        if (scales[i]->top.type) moek_file_panel_each_(&p, scales[i]->top_at, 2, 2);
        else if (scales[i]->plane[0].bits == 16) moek_file_panel_each_(&p, scales[i]->plane[0].at, 2, 2);
    }
    for (i = 0; i < b->bytes; i++) {                   /* a run of `each` bytes of a row, then those of the next row */
        int *const before = p.each[i] == 4 ? &codes : &p.heads;
        const int in = p.each[i] == 4 ? codes % 4 : i && p.each[i] == 2 && p.each[i - 1] == 2 ? p.heads % 2 : 0;
        p.at[i] = MOEK_UNIT_ROWS * (*before - in) + in;
        ++*before;
    }
    return p;
}
/* Row r of a unit of `all` blocks: its blocks, side by side, to the unit or back. */
MOEK_FN void moek_file_panel_move_(const moek_file_panel_ *p, uint8_t *unit, uint8_t *row, int all, int r, int back)
{
    int b, i;
    for (b = 0; b < all; b++, row += p->bytes) {
        uint8_t *const heads = unit + MOEK_UNIT_ROWS * b * p->heads;
        uint8_t *const codes = unit + MOEK_UNIT_ROWS * (all * p->heads + b * (p->bytes - p->heads));
        for (i = 0; i < p->bytes; i++) {
            uint8_t *const in = (p->each[i] == 4 ? codes : heads) + p->at[i] + r * p->each[i];
            if (back) row[i] = *in;
            else *in = row[i];
        }
    }
}
/* Row r of a panel, whose row_bytes are whole blocks. */
MOEK_FN void moek_file_panel_row_(const moek_file_panel_ *p, uint8_t *panel, uint8_t *row, size_t row_bytes, int r,
                                  int back)
{
    const size_t each = (size_t)(MOEK_UNIT / p->columns * p->bytes);
    size_t at;
    for (at = 0; at < row_bytes; at += each)
        moek_file_panel_move_(p, panel + MOEK_UNIT_ROWS * at, row + at,
                              (int)((row_bytes - at < each ? row_bytes - at : each) / (size_t)p->bytes), r, back);
}
#endif
