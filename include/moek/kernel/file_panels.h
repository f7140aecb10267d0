/* moek/kernel/file_panels.h -- blocks of GGUF files to panels and back: where the bytes of 16 rows lie (moek/ops.h:
 * repack draws the order). */
#ifndef MOEK_FILE_PANELS_H
#define MOEK_FILE_PANELS_H
#include "file_tiles.h"

/* 256 columns of 16 rows are a unit, or what is left of a row.  In front lie the scales of all its blocks, f16 and
 * bytes of 16 rows side by side, then their codes, words of 4 bytes of 16 rows side by side. */
enum { MOEK_UNIT = 256, MOEK_UNIT_ROWS = 16, MOEK_FILE_RUNS = 9 };
/* Bytes of a block that go the same way: `each` of a row, then as many of the next row. */
typedef struct moek_file_run_ {
    int first, bytes, each, at;                        /* at: byte `first` among the heads, or the codes, of 16 rows */
} moek_file_run_;
typedef struct moek_file_panel_ {
    int bytes, heads, columns, runs;                   /* of a block: bytes, of which so many are no codes; columns */
    moek_file_run_ run[MOEK_FILE_RUNS];                /* each: 4 of codes, 2 of f16, 1 of other scales */
} moek_file_panel_;
MOEK_FN void moek_file_copy_(uint8_t *to, const uint8_t *from, int bytes)
{
    if (bytes == 4) memcpy(to, from, 4);
    else if (bytes == 2) memcpy(to, from, 2);
    else *to = *from;
}
/* What begins at byte i of a block. */
MOEK_FN moek_file_run_ moek_file_run_at_(const moek_block *b, int i)
{
    const moek_block_scale *const scales[2] = { &b->scale, &b->min };
    moek_file_run_ run = { 0, 1, 1, 0 };
    int k;
    run.first = i;
    for (k = 0; k < b->planes; k++)
        if (b->plane[k].at == i) run.each = 4, run.bytes = b->columns * b->plane[k].bits / 8;
    for (k = 0; k < (b->sign ? 2 : 1); k++) {
        const moek_block_scale *const s = scales[k];
        if (s->top.type ? s->top_at == i : s->plane[0].bits == 16 && s->plane[0].at == i) run.each = run.bytes = 2;
    }
    return run;
}
MOEK_FN moek_file_panel_ moek_file_panel_of_(const moek_block *b)
{
    moek_file_panel_ p;
    int i, codes = 0;
    p.bytes = b->bytes; p.columns = b->columns; p.heads = p.runs = 0;
    for (i = 0; i < b->bytes; ) {
        moek_file_run_ run = moek_file_run_at_(b, i);
        int *const before = run.each == 4 ? &codes : &p.heads;
        i += run.bytes;
        run.at = MOEK_UNIT_ROWS * *before;
        *before += run.bytes;
        if (p.runs && run.each == 1 && p.run[p.runs - 1].each == 1) p.run[p.runs - 1].bytes++;
        else p.run[p.runs++] = run;
    }
    return p;
}
/* Row r of a unit of `all` blocks: its blocks, side by side, to the unit or back. */
MOEK_FN void moek_file_panel_move_(const moek_file_panel_ *p, uint8_t *unit, uint8_t *row, int all, int r, int back)
{
    int b, k, i;
    for (b = 0; b < all; b++, row += p->bytes) {
        uint8_t *const heads = unit + MOEK_UNIT_ROWS * b * p->heads;
        uint8_t *const codes = unit + MOEK_UNIT_ROWS * (all * p->heads + b * (p->bytes - p->heads));
        for (k = 0; k < p->runs; k++) {
            const moek_file_run_ *const run = &p->run[k];
            uint8_t *const in = (run->each == 4 ? codes : heads) + run->at + r * run->each;
            uint8_t *const out = row + run->first;
            for (i = 0; i < run->bytes; i += run->each)
                moek_file_copy_(back ? out + i : in + MOEK_UNIT_ROWS * i, back ? in + MOEK_UNIT_ROWS * i : out + i,
                                run->each);
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
