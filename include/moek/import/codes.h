/* moek/import/codes.h -- elements and zero points of 4 or 8 bits: how a checkpoint's words hold them, and one word of a
 * layout made of another layout.  For host and device.
 *
 * A layout is a plane of 32-bit words, [p][q], and two functions that are each other's inverse: which element is slot i
 * of word (p, q), and where an element lies.  Slot i has bits `bits` * i and up.
 *
 *     ROWS     [rows][ceil(columns of a row in bytes / 4)]: elements of a row side by side; moek's, and others'
 *     WORDS    ROWS, but each row ends with a whole word
 *     GPTQ     [ceil(columns / slots)][rows]: a word has successive columns of a row
 *     ACROSS   [ceil(rows / slots)][columns]: successive rows of a column
 *     TURNED   [columns][ceil(rows / slots)]: the same
 *     AWQ      TURNED, with slots 0 .. 7 for rows 0, 2, 4, 6, 1, 3, 5, 7
 *     GGUF     [rows][columns / 8], 4 words in a block of 32 columns, behind its scale (`lead` bytes): byte j has
 *              elements j and j + 16
 *     GGUF_64  the same, 8 words in a block of 64, behind 4 scales: byte j of each 8 has elements j and j + 8 of 16
 *     BYTES    [rows][ceil(columns / 4)]: ROWS, with a byte for an element of 4 bits, two's complement               */
#ifndef MOEK_IMPORT_CODES_H
#define MOEK_IMPORT_CODES_H
#include "../kernel/linkage.h"

enum {
    MOEK_CODES_NONE, MOEK_CODES_ROWS, MOEK_CODES_WORDS, MOEK_CODES_GPTQ, MOEK_CODES_ACROSS, MOEK_CODES_TURNED,
    MOEK_CODES_AWQ, MOEK_CODES_GGUF, MOEK_CODES_GGUF_64, MOEK_CODES_BYTES
};

typedef struct moek_codes_ {
    unsigned char *at;                                 /* NULL: nothing is written; read, all elements are `fill` */
    int layout, bits, cell, lead;                      /* cell: bits of a slot.  lead: GGUF, bytes ahead of codes */
    size_t rows, columns;
    size_t pitch, row_bytes;                           /* ROWS, BYTES: bytes from a row to the next, and of a row */
    uint32_t fill;
} moek_codes_;

/* rows by columns.  step: rows from one to the next (ROWS). */
static moek_codes_ moek_codes_of_(void *at, int layout, int bits, size_t rows, size_t columns, size_t step)
{
    moek_codes_ c;
    c.at = (unsigned char *)at;
    c.layout = layout == MOEK_CODES_WORDS ? MOEK_CODES_ROWS : layout;
    c.bits = bits; c.rows = rows; c.columns = columns; c.lead = 0;
    c.cell = layout == MOEK_CODES_BYTES ? 8 : bits;
    c.row_bytes = (columns * (size_t)c.cell + 7) / 8;
    if (layout == MOEK_CODES_WORDS) c.row_bytes = (c.row_bytes + 3) / 4 * 4;
    c.pitch = c.row_bytes * step;
    c.fill = 1u << (bits - 1);
    return c;
}

/* Blocks of GGUF: columns of one, columns of the halves of a group, bytes of one. */
MOEK_FN int moek_codes_in_blocks_(const moek_codes_ *c)
{
    return c->layout == MOEK_CODES_GGUF || c->layout == MOEK_CODES_GGUF_64;
}
MOEK_FN size_t moek_codes_block_(const moek_codes_ *c) { return c->layout == MOEK_CODES_GGUF_64 ? 64 : 32; }
MOEK_FN size_t moek_codes_half_(const moek_codes_ *c) { return c->layout == MOEK_CODES_GGUF_64 ? 8 : 16; }
MOEK_FN size_t moek_codes_block_bytes_(const moek_codes_ *c) { return (size_t)c->lead + moek_codes_block_(c) / 2; }
/* Where the codes of the block are that has this column. */
MOEK_FN size_t moek_codes_block_at_(const moek_codes_ *c, size_t row, size_t column)
{
    const size_t block = moek_codes_block_(c);
    return (row * (c->columns / block) + column / block) * moek_codes_block_bytes_(c) + (size_t)c->lead;
}
/* log2 of the slots of a word. */
MOEK_FN int moek_codes_slots_(const moek_codes_ *c) { return c->cell == 4 ? 3 : 2; }
MOEK_FN size_t moek_codes_words_(const moek_codes_ *c, size_t n)
{
    return (n + (c->cell == 4 ? 7 : 3)) >> moek_codes_slots_(c);
}
/* Rows lie one behind the other, `pitch` bytes apart. */
MOEK_FN int moek_codes_in_rows_(const moek_codes_ *c)
{
    return c->layout == MOEK_CODES_ROWS || c->layout == MOEK_CODES_BYTES;
}
typedef struct moek_plane_ { size_t p, q; } moek_plane_;
MOEK_FN moek_plane_ moek_codes_plane_(const moek_codes_ *c)
{
    moek_plane_ n = { c->rows, 0 };
    switch (c->layout) {
    case MOEK_CODES_GPTQ:   n.p = moek_codes_words_(c, c->columns); n.q = c->rows; break;
    case MOEK_CODES_ACROSS: n.p = moek_codes_words_(c, c->rows); n.q = c->columns; break;
    case MOEK_CODES_TURNED: /* fall through */
    case MOEK_CODES_AWQ:    n.p = c->columns; n.q = moek_codes_words_(c, c->rows); break;
    case MOEK_CODES_GGUF:   /* fall through */
    case MOEK_CODES_GGUF_64: n.q = c->columns / 8; break;
    default:                n.q = (c->row_bytes + 3) / 4;
    }
    return n;
}

/* The element that slot i of word (p, q) holds; it may be outside the matrix. */
typedef struct moek_element_ { size_t row, column; } moek_element_;
MOEK_FN moek_element_ moek_codes_element_(const moek_codes_ *c, size_t p, size_t q, int i)
{
    const int slots = moek_codes_slots_(c);
    const size_t half = moek_codes_half_(c), byte = q * 4 + (size_t)i / 2;      /* of the codes of blocks */
    moek_element_ e = { p, 0 };
    switch (c->layout) {
    case MOEK_CODES_GPTQ:   e.row = q; e.column = (p << slots) + (size_t)i; break;
    case MOEK_CODES_ACROSS: e.row = (p << slots) + (size_t)i; e.column = q; break;
    case MOEK_CODES_TURNED: e.row = (q << slots) + (size_t)i; e.column = p; break;
    case MOEK_CODES_AWQ:    e.row = (q << slots) + (0x75316420u >> 4 * i & 7); e.column = p; break;
    case MOEK_CODES_GGUF:   /* fall through */
    case MOEK_CODES_GGUF_64: e.column = byte / half * 2 * half + byte % half + (size_t)i % 2 * half; break;
    default:                e.column = (q << slots) + (size_t)i;
    }
    return e;
}
/* Where an element lies: bits `shift` and up of a byte. */
typedef struct moek_place_ { size_t byte; int shift; } moek_place_;
MOEK_FN moek_place_ moek_codes_place_(const moek_codes_ *c, size_t row, size_t column)
{
    const int slots = moek_codes_slots_(c);
    const size_t slot = ((size_t)1 << slots) - 1, half = moek_codes_half_(c);
    size_t word = 0, bit = 0;
    moek_place_ at;
    switch (c->layout) {
    case MOEK_CODES_GPTQ:   word = (column >> slots) * c->rows + row; bit = column & slot; break;
    case MOEK_CODES_ACROSS: word = (row >> slots) * c->columns + column; bit = row & slot; break;
    case MOEK_CODES_TURNED: word = column * moek_codes_words_(c, c->rows) + (row >> slots); bit = row & slot; break;
    case MOEK_CODES_AWQ:    word = column * moek_codes_words_(c, c->rows) + (row >> slots);
                            bit = 0x73625140u >> 4 * (row & slot) & 7; break;
    case MOEK_CODES_GGUF:   /* fall through */
    case MOEK_CODES_GGUF_64:
        at.byte = moek_codes_block_at_(c, row, column) + column % half;
        at.byte += column % moek_codes_block_(c) / (2 * half) * half;
        at.shift = (int)(column % (2 * half) / half) * 4;
        return at;
    default:                bit = column;
    }
    bit *= (size_t)c->cell;
    at.byte = word * 4 + bit / 8 + (moek_codes_in_rows_(c) ? row * c->pitch : 0);
    at.shift = (int)(bit % 8);
    return at;
}
/* Bytes from a column to the next that has the same shift in its byte, within 8 of a row; 0: it has another. */
MOEK_FN size_t moek_codes_stride_(const moek_codes_ *c)
{
    if (moek_codes_in_blocks_(c) || c->layout == MOEK_CODES_BYTES) return 1;
    return c->layout == MOEK_CODES_TURNED || c->layout == MOEK_CODES_AWQ ? 4 * moek_codes_words_(c, c->rows) : 0;
}
/* A word has successive columns of a row: the same elements in the same bits, whatever the layout. */
MOEK_FN int moek_codes_along_(const moek_codes_ *c)
{
    return c->layout == MOEK_CODES_ROWS || c->layout == MOEK_CODES_GPTQ;
}

/* Word `word` of a row, of a layout as above or BYTES: where, and how many bytes of it there are. */
typedef struct moek_span_ { size_t byte; int bytes; } moek_span_;
MOEK_FN moek_span_ moek_codes_along_at_(const moek_codes_ *c, size_t row, size_t word)
{
    moek_span_ s = { 0, 4 };
    if (c->layout == MOEK_CODES_GPTQ) {
        s.byte = 4 * (word * c->rows + row);
        return s;
    }
    s.byte = row * c->pitch + 4 * word;
    if (c->row_bytes - 4 * word < 4) s.bytes = (int)(c->row_bytes - 4 * word);
    return s;
}
MOEK_FN moek_span_ moek_codes_at_(const moek_codes_ *c, moek_plane_ n, size_t p, size_t q)
{
    moek_span_ s = { 4 * (p * n.q + q), 4 };
    if (moek_codes_in_rows_(c)) return moek_codes_along_at_(c, p, q);
    if (moek_codes_in_blocks_(c)) s.byte = moek_codes_block_at_(c, p, 8 * q) + 8 * q % moek_codes_block_(c) / 2;
    return s;
}
MOEK_FN uint32_t moek_codes_load_(const unsigned char *at, int bytes)
{
    uint32_t w = 0;
    int i;
    if (bytes == 4 && (uintptr_t)at % 4 == 0) return *(const uint32_t *)at;
    for (i = 0; i < bytes; i++) w |= (uint32_t)at[i] << 8 * i;
    return w;
}
MOEK_FN void moek_codes_store_(unsigned char *at, uint32_t w, int bytes)
{
    int i;
    if (bytes == 4 && (uintptr_t)at % 4 == 0) { *(uint32_t *)at = w; return; }
    for (i = 0; i < bytes; i++) at[i] = (unsigned char)(w >> 8 * i);
}

/* ---- one layout to another --------------------------------------------------------------------------------------- */

/* to = ((from ^ flip) + add) in `bits` bits.  Counted: elements that are `watch` then, or all but those; those that
 * are `watch2`; bytes whose element has more bits than it should. */
typedef struct moek_recode_ {
    moek_codes_ to, from;
    const int32_t *row_order, *column_order;           /* as in moek_import_args */
    uint32_t flip, add, watch, watch2;
    int counter, others, all, counter2;                /* counters of the report, or -1; others: of all but `watch` */
    uint64_t *report;                                  /* or NULL */
} moek_recode_;
typedef struct moek_recoded_ { uint32_t watched, others, watched2, outside, wide; } moek_recoded_;

MOEK_FN uint32_t moek_recode_one_(const moek_recode_ *a, uint32_t code)
{
    return ((code ^ a->flip) + a->add) & ((1u << a->to.bits) - 1);
}
/* The code in slot bits `raw` of from, as to has it. */
MOEK_FN uint32_t moek_recode_slot_(const moek_recode_ *a, uint32_t raw, moek_recoded_ *n)
{
    const uint32_t code = moek_recode_one_(a, raw);
    if (a->from.cell > a->from.bits) n->wide += ((raw + 8) & 0xff) > 15;
    return a->to.cell > a->to.bits ? ((code ^ 8) - 8) & 0xff : code;
}
/* How many of the slots of w that are in `live` have this code. */
MOEK_FN uint32_t moek_recode_equal_(uint32_t w, uint32_t live, uint32_t code, int bits)
{
    const uint32_t ones = bits == 4 ? 0x11111111u : 0x01010101u;
    uint32_t differs = w ^ code * ones;
    if (bits == 8) differs |= differs >> 4;
    differs |= differs >> 2;
    differs |= differs >> 1;
    return (live & ones & ~differs) * ones >> (bits == 4 ? 28 : 24);
}
MOEK_FN void moek_recode_count_(const moek_recode_ *a, uint32_t w, uint32_t live, moek_recoded_ *n)
{
    const int bits = a->to.bits;
    const uint32_t is = moek_recode_equal_(w, live, a->watch, bits);
    n->watched += is;
    n->others += moek_recode_equal_(live, live, bits == 4 ? 15 : 255, bits) - is;
    if (a->counter2 >= 0) n->watched2 += moek_recode_equal_(w, live, a->watch2, bits);
}
/* Both words hold successive columns. */
MOEK_FN uint32_t moek_recode_whole_(const moek_recode_ *a, size_t row, size_t word, uint32_t *live)
{
    const moek_span_ from = moek_codes_along_at_(&a->from, row, word);
    const size_t left = a->to.columns - (word << moek_codes_slots_(&a->to));
    const uint32_t ones = a->to.bits == 4 ? 0x11111111u : 0x01010101u;
    *live = left * (size_t)a->to.bits < 32 ? (1u << left * (size_t)a->to.bits) - 1 : 0xffffffffu;
    return (moek_codes_load_(a->from.at + from.byte, from.bytes) ^ a->flip * ones) & *live;
}
/* Slot by slot. */
MOEK_FN uint32_t moek_recode_slots_(const moek_recode_ *a, size_t p, size_t q, uint32_t *live, moek_recoded_ *n)
{
    const int cell = a->to.cell, slots = 32 / cell;
    const uint32_t mask = (1u << cell) - 1, from_mask = (1u << a->from.cell) - 1;
    uint32_t w = 0;
    int i;
    *live = 0;
    for (i = 0; i < slots; i++) {
        moek_element_ e = moek_codes_element_(&a->to, p, q, i);
        uint32_t code = a->from.fill;
        if (e.row >= a->to.rows || e.column >= a->to.columns) continue;
        if (a->row_order) e.row = (size_t)(uint32_t)a->row_order[e.row];
        if (a->column_order) e.column = (size_t)(uint32_t)a->column_order[e.column];
        if (e.row >= a->to.rows || e.column >= a->to.columns) { n->outside++; continue; }
        if (a->from.at) {
            const moek_place_ at = moek_codes_place_(&a->from, e.row, e.column);
            code = (uint32_t)a->from.at[at.byte] >> at.shift & from_mask;
        }
        w |= moek_recode_slot_(a, code, n) << cell * i;
        *live |= mask << cell * i;
    }
    return w;
}
/* The same where a word is successive columns, and from's columns are a fixed number of bytes apart. */
MOEK_FN uint32_t moek_recode_strided_(const moek_recode_ *a, size_t row, size_t word, size_t stride, uint32_t *live,
                                      moek_recoded_ *seen)
{
    const int slots = 32 / a->to.bits, shift = moek_codes_slots_(&a->to);
    const uint32_t mask = (1u << a->from.cell) - 1;
    const size_t column = word << shift, left = a->to.columns - column;
    const moek_place_ at = moek_codes_place_(&a->from, row, column);
    const int n = left < (size_t)slots ? (int)left : slots;
    uint32_t w = 0;
    int i;
    for (i = 0; i < n; i++)
        w |= moek_recode_slot_(a, (uint32_t)a->from.at[at.byte + (size_t)i * stride] >> at.shift & mask, seen)
             << a->to.bits * i;
    *live = n < slots ? (1u << a->to.bits * n) - 1 : 0xffffffffu;
    return w;
}
MOEK_FN void moek_recode_word_(const moek_recode_ *a, moek_plane_ plane, size_t p, size_t q, moek_recoded_ *n)
{
    const size_t stride = moek_codes_stride_(&a->from);
    const int plain = a->from.at && !a->column_order && moek_codes_along_(&a->to);
    const moek_span_ to = moek_codes_at_(&a->to, plane, p, q);
    uint32_t live = 0, w;
    if (plain && (stride || (!a->add && moek_codes_along_(&a->from)))) {
        const size_t word = a->to.layout == MOEK_CODES_GPTQ ? p : q;
        size_t row = a->to.layout == MOEK_CODES_GPTQ ? q : p;
        if (a->row_order) row = (size_t)(uint32_t)a->row_order[row];
        if (row >= a->from.rows) { n->outside++; return; }
        /* (A row of WORDS may have more words than one of ROWS: never one without an element.) */
        w = stride ? moek_recode_strided_(a, row, word, stride, &live, n) : moek_recode_whole_(a, row, word, &live);
    } else {
        w = moek_recode_slots_(a, p, q, &live, n);
    }
    if (a->counter >= 0 || a->all >= 0 || a->counter2 >= 0) moek_recode_count_(a, w, live, n);
    if (a->to.at) moek_codes_store_(a->to.at + to.byte, w, to.bytes);
}

/* Words are taken in squares, so that lines of memory are used up while they are in a cache, also where rows and
 * columns change places. */
enum { MOEK_SQUARE_ = 16 };
MOEK_FN size_t moek_squares_(size_t n) { return (n + MOEK_SQUARE_ - 1) / MOEK_SQUARE_; }
#endif
