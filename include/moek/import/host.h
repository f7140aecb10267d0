/* moek/import/host.h -- the loops over words, rows and scales on the host: many words at a time where a layout lets
 * them, on the threads of the caller or of OpenMP.  The functions for one word and one scale (codes.h,
 * scales.h) have the same results, and also take what is left over. */
#ifndef MOEK_IMPORT_HOST_H
#define MOEK_IMPORT_HOST_H
#include <string.h>
#include "codes.h"
#include "scales.h"
#include "../kernel/cpu.h"

/* The first word of square number s. */
typedef struct moek_square_ { size_t p, q; } moek_square_;
MOEK_FN moek_square_ moek_square_at_(moek_plane_ n, size_t s)
{
    const size_t across = moek_squares_(n.q);
    moek_square_ at;
    at.p = s / across * MOEK_SQUARE_;
    at.q = s % across * MOEK_SQUARE_;
    return at;
}
static size_t moek_square_count_(moek_plane_ n) { return moek_squares_(n.p) * moek_squares_(n.q); }
MOEK_FN void moek_recode_tally_(const moek_recode_ *a, const moek_recoded_ *seen, uint64_t *n)
{
    if (a->counter >= 0) n[a->counter] += a->others ? seen->others : seen->watched;
    if (a->all >= 0) n[a->all] += (uint64_t)seen->watched + seen->others;
    if (a->counter2 >= 0) n[a->counter2] += seen->watched2;
    n[MOEK_COUNT_orders_bad_] += seen->outside;
    n[MOEK_COUNT_codes_outside_] += seen->wide;
}

/* ---- pieces of a job --------------------------------------------------------------------------------------------- */

/* `begin` to `end` of rows, or of squares; n: the counters of the report, of this piece. */
typedef void moek_piece_fn_(const void *job, size_t begin, size_t end, uint64_t *n);
typedef struct moek_pieces_of_ {
    moek_piece_fn_ *piece;
    const void *job;
    size_t units, each;               /* of the job, of a piece                                                       */
    uint64_t (*n)[MOEK_TALLY_];       /* of each piece                                                                */
} moek_pieces_of_;
static void moek_piece_(const void *data, long long i)
{
    const moek_pieces_of_ *const p = (const moek_pieces_of_ *)data;
    const size_t begin = (size_t)i * p->each, left = p->units - begin;
    p->piece(p->job, begin, begin + (left < p->each ? left : p->each), p->n[i]);
}
enum { MOEK_PIECES_ = 32, MOEK_PIECE_ROWS_ = 512 };
static const size_t moek_piece_bytes_ = 1 << 18;       /* less than that is not worth a thread */

static void moek_tally_merge_(uint64_t *to, const uint64_t *from)
{
    int i;
    for (i = 0; i < MOEK_TALLY_; i++)
        if (i < MOEK_COUNTS_) to[i] += from[i];
        else if (to[i] < from[i]) to[i] = from[i];
}
/* All of a job, `units` long, of so many bytes; pieces begin at multiples of `step`. */
static void moek_pieces_(moek_stream stream, moek_piece_fn_ *piece, const void *job, size_t units, size_t step,
                         size_t bytes, uint64_t *report)
{
    uint64_t n[MOEK_PIECES_][MOEK_TALLY_];
    const size_t steps = (units + step - 1) / step;
    size_t pieces = bytes / moek_piece_bytes_ + 1;
    moek_pieces_of_ p;
    int i, count;
    if (pieces > MOEK_PIECES_) pieces = MOEK_PIECES_;
    p.piece = piece; p.job = job; p.units = units; p.n = n;
    p.each = (steps + pieces - 1) / pieces * step;
    count = p.each ? (int)((units + p.each - 1) / p.each) : 0;
    memset(n, 0, sizeof n);
    if (count == 1) moek_piece_(&p, 0);
    else moek_parallel_for_(stream, count, moek_piece_, &p);
    for (i = 0; report && i < count; i++) moek_tally_merge_(report, n[i]);
}

/* ---- codes: many words at a time --------------------------------------------------------------------------------- */

static const uint64_t moek_nibbles_ = 0x1111111111111111u, moek_byte_ones_ = 0x0101010101010101u;
enum { MOEK_TURNS_ = 15 };                             /* so often may 1 be added to 4 bits */

/* A 1 in each slot of w that is not 0. */
static uint64_t moek_slots_other_(uint64_t w, int bits)
{
    if (bits == 8) w |= w >> 4;
    w |= w >> 2;
    w |= w >> 1;
    return w & (bits == 8 ? moek_byte_ones_ : moek_nibbles_);
}
/* What is in all slots of 4 bits. */
static uint32_t moek_slots_sum_(uint64_t n)
{
    n = (n & 0x0f0f0f0f0f0f0f0fu) + (n >> 4 & 0x0f0f0f0f0f0f0f0fu);
    return (uint32_t)(n * moek_byte_ones_ >> 56);
}
/* Copies whole blocks of 4 * MOEK_TURNS_ words of 8 bytes, each xor flip; returns how many slots are not `watch`. */
static uint64_t moek_copy_blocks_(unsigned char *to, const unsigned char *from, size_t blocks, uint64_t flip,
                                  uint64_t watch, const int bits)
{
    uint64_t others = 0;
    for (; blocks; blocks--) {
        uint64_t n[4] = { 0, 0, 0, 0 }, w[4];
        int i, j;
        for (i = 0; i < MOEK_TURNS_; i++, from += 32, to += 32) {
            memcpy(w, from, 32);
            for (j = 0; j < 4; j++) {
                w[j] ^= flip;
                n[j] += moek_slots_other_(w[j] ^ watch, bits);
            }
            memcpy(to, w, 32);
        }
        for (j = 0; j < 4; j++) others += moek_slots_sum_(n[j]);
    }
    return others;
}
/* The same of any number of bytes. */
static uint64_t moek_copy_span_(unsigned char *to, const unsigned char *from, size_t bytes, uint64_t flip,
                                uint64_t watch, const int bits)
{
    const size_t block = 32 * MOEK_TURNS_, blocks = bytes / block;
    uint64_t others = bits == 4 ? moek_copy_blocks_(to, from, blocks, flip, watch, 4)
                                : moek_copy_blocks_(to, from, blocks, flip, watch, 8), n = 0, w;
    size_t i = blocks * block, next;
    while (i + 8 <= bytes) {
        for (next = i + 8 * MOEK_TURNS_, n = 0; i + 8 <= bytes && i < next; i += 8) {
            memcpy(&w, from + i, 8);
            w ^= flip;
            n += moek_slots_other_(w ^ watch, bits);
            memcpy(to + i, &w, 8);
        }
        others += moek_slots_sum_(n);
    }
    for (; i < bytes; i++) {
        to[i] = (unsigned char)(from[i] ^ flip);
        others += moek_slots_sum_(moek_slots_other_(to[i] ^ (watch & 0xff), bits) & 0xff);
    }
    return others;
}
/* Codes that have moek's bits: to a row of to. */
static void moek_recode_span_(const moek_recode_ *a, unsigned char *to, const unsigned char *from, size_t bytes,
                              moek_recoded_ *seen)
{
    const int bits = a->to.bits;
    const uint64_t ones = bits == 4 ? moek_nibbles_ : moek_byte_ones_;
    uint64_t others;
    if (!a->flip && a->counter < 0) {
        if (to != from) memcpy(to, from, bytes);
        return;
    }
    others = moek_copy_span_(to, from, bytes, a->flip * ones, a->watch * ones, bits);
    seen->others += (uint32_t)others;
    seen->watched += (uint32_t)(bytes * 8 / (size_t)bits - others);
}
/* w + a->add in each slot. */
static uint32_t moek_recode_add_(const moek_recode_ *a, uint32_t w)
{
    const uint32_t ones = a->to.bits == 4 ? 0x11111111u : 0x01010101u, by = a->add * ones;
    const uint32_t high = ones << (a->to.bits - 1);
    return ((w & ~high) + (by & ~high)) ^ ((w ^ by) & high);
}
/* The first n whole words of a row from word q on: they have its elements side by side, but not moek's bits yet. */
static void moek_recode_words_(const moek_recode_ *a, size_t row, size_t q, const uint32_t *words, size_t n,
                               moek_recoded_ *seen)
{
    unsigned char *const to = a->to.at ? a->to.at + row * a->to.pitch + 4 * q : NULL;
    const uint32_t flip = a->flip * (a->to.bits == 4 ? 0x11111111u : 0x01010101u);
    size_t i;
    if (to && !a->add && a->all < 0) {
        moek_recode_span_(a, to, (const unsigned char *)words, 4 * n, seen);
        return;
    }
    for (i = 0; i < n; i++) {
        const uint32_t w = moek_recode_add_(a, words[i] ^ flip);
        moek_recode_count_(a, w, 0xffffffffu, seen);
        if (to) memcpy(to + 4 * i, &w, 4);
    }
}

enum { MOEK_TILE_ = 16, MOEK_TILES_ = 4 };             /* words of a line of memory; lines side by side that are read */
/* The same of `rows` rows at once, each of which is there; the words may be changed. */
static void moek_recode_tile_(const moek_recode_ *a, size_t row, size_t rows, size_t q, uint32_t (*words)[MOEK_TILE_],
                              size_t n, moek_recoded_ *seen)
{
    unsigned char *const to = a->to.at ? a->to.at + row * a->to.pitch + 4 * q : NULL;
    size_t i;
    if (n < MOEK_TILE_ || !to || a->add || a->all >= 0) {
        for (i = 0; i < rows; i++) moek_recode_words_(a, row + i, q, words[i], n, seen);
        return;
    }
    moek_recode_span_(a, (unsigned char *)words, (unsigned char *)words, rows * sizeof *words, seen);
    for (i = 0; i < rows; i++) memcpy(to + i * a->to.pitch, words[i], sizeof *words);
}

/* ---- codes: one way for each pair of layouts --------------------------------------------------------------------- */

/* The row that is read. */
static size_t moek_recode_row_(const int32_t *row_order, size_t row)
{
    return row_order ? (size_t)(uint32_t)row_order[row] : row;
}
static size_t moek_recode_from_(const moek_recode_ *a, size_t row) { return moek_recode_row_(a->row_order, row); }
/* From word q on, one by one: what is left over, or a row that an order takes from outside, whose words are counted. */
static void moek_recode_rest_(const moek_recode_ *a, size_t row, size_t q, moek_recoded_ *seen)
{
    const moek_plane_ n = moek_codes_plane_(&a->to);
    for (; q < n.q; q++) moek_recode_word_(a, n, row, q, seen);
}
/* All that follow: `count` rows of to from `row` on, at most MOEK_PIECE_ROWS_. */
static void moek_recode_same_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen)
{
    const size_t bytes = a->to.row_bytes, end = row + count;
    if (!a->row_order && a->to.pitch == bytes && a->from.pitch == bytes) {
        moek_recode_span_(a, a->to.at + row * bytes, a->from.at + row * bytes, count * bytes, seen);
        return;
    }
    for (; row < end; row++) {
        const size_t from = moek_recode_from_(a, row);
        if (from >= a->from.rows) moek_recode_rest_(a, row, 0, seen);
        else moek_recode_span_(a, a->to.at + row * a->to.pitch, a->from.at + from * a->from.pitch, bytes, seen);
    }
}

/* GPTQ: words change places. */
static void moek_recode_gptq_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen)
{
    const size_t full = a->to.columns >> moek_codes_slots_(&a->to), end = row + count, pitch = a->from.rows;
    const uint32_t *const from = (const uint32_t *)(const void *)a->from.at;
    size_t q, r, i, j;
    for (; row < end; row += MOEK_TILE_ * MOEK_TILES_) {
        const size_t most = MOEK_TILE_ * MOEK_TILES_, rows = end - row < most ? end - row : most;
        for (q = 0; q < full; q += MOEK_TILE_) {
            const size_t words = full - q < MOEK_TILE_ ? full - q : (size_t)MOEK_TILE_;
            uint32_t tile[MOEK_TILE_ * MOEK_TILES_][MOEK_TILE_];
            for (j = 0; j < words; j++) {
                const uint32_t *const line = from + (q + j) * pitch;
                for (i = 0; i < rows && q + j + MOEK_TILE_ < full; i += MOEK_TILE_)
                    MOEK_PREFETCH(line + MOEK_TILE_ * pitch + row + i);
                for (i = j; i < rows && a->to.at; i += MOEK_TILE_)
                    MOEK_PREFETCH(a->to.at + (row + i) * a->to.pitch + 4 * q);
                for (i = 0; i < rows && !a->row_order; i++) tile[i][j] = line[row + i];
                for (i = 0; i < rows && a->row_order; i++) {
                    r = moek_recode_from_(a, row + i);
                    tile[i][j] = r < pitch ? line[r] : 0;
                }
            }
            if (!a->row_order) moek_recode_tile_(a, row, rows, q, tile, words, seen);
            for (i = 0; i < rows && a->row_order; i++)
                if (moek_recode_from_(a, row + i) < pitch) moek_recode_words_(a, row + i, q, tile[i], words, seen);
        }
        for (i = 0; i < rows; i++)
            moek_recode_rest_(a, row + i, moek_recode_from_(a, row + i) < pitch ? full : 0, seen);
    }
}

enum { MOEK_STRIP_ = MOEK_PIECE_ROWS_ / 8 };           /* words of 8 rows */
/* Slots of 4 bits of 8 words change places, in each of n columns: slot 4 i of word j and slot 4 j of word i. */
static void moek_turn_eight_(uint32_t x[8][MOEK_STRIP_], size_t n)
{
    uint32_t t[MOEK_STRIP_];
    size_t k;
    int by, i;
    for (by = 1; by < 8; by *= 2) {
        const uint32_t mask = by == 1 ? 0x0f0f0f0fu : by == 2 ? 0x00ff00ffu : 0x0000ffffu;
        const int shift = 4 * by;
        for (i = 0; i < 8; i++) {
            if (i & by) continue;
            for (k = 0; k < n; k++) t[k] = (x[i][k] >> shift ^ x[i + by][k]) & mask;
            for (k = 0; k < n; k++) x[i + by][k] ^= t[k];
            for (k = 0; k < n; k++) x[i][k] ^= t[k] << shift;
        }
    }
}
/* TURNED, AWQ, ACROSS, of 4 bits: a word has 8 rows of a column.  Without an order of rows. */
static void moek_recode_turned_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen)
{
    const int across = a->from.layout == MOEK_CODES_ACROSS;
    const size_t per_column = across ? 1 : moek_codes_words_(&a->from, a->from.rows);
    const size_t per_word = across ? a->from.columns : 1, full = a->to.columns >> 3, words = (count + 7) / 8;
    const uint32_t slots = a->from.layout == MOEK_CODES_AWQ ? 0x75316420u : 0x76543210u;
    const uint32_t *const from = (const uint32_t *)(const void *)a->from.at + row / 8 * per_word;
    uint32_t tile[MOEK_PIECE_ROWS_][MOEK_TILE_], x[8][MOEK_STRIP_];
    size_t q, j, k, i;
    for (q = 0; q < full; q += MOEK_TILE_) {
        const size_t n = full - q < MOEK_TILE_ ? full - q : (size_t)MOEK_TILE_;
        for (j = 0; j < n; j++) {
            for (i = 0; i < 8 && q + j + 2 < full; i++)
                for (k = 0; k < words; k += MOEK_TILE_)
                    MOEK_PREFETCH(from + ((q + j + 2) * 8 + i) * per_column + k * per_word);
            for (i = j; i < count && a->to.at; i += MOEK_TILE_)
                MOEK_PREFETCH(a->to.at + (row + i) * a->to.pitch + 4 * q);
            for (i = 0; i < 8; i++) {
                const uint32_t *const line = from + ((q + j) * 8 + i) * per_column;
                if (!across) memcpy(x[i], line, 4 * words);
                else for (k = 0; k < words; k++) x[i][k] = line[k * per_word];
            }
            moek_turn_eight_(x, words);
            for (i = 0; i < 8; i++)
                for (k = 0; k < words; k++) tile[k * 8 + (slots >> 4 * i & 7)][j] = x[i][k];
        }
        moek_recode_tile_(a, row, count, q, tile, n, seen);
    }
    for (i = 0; i < count; i++) moek_recode_rest_(a, row + i, full, seen);
}

/* The low halves of 8 bytes, side by side. */
static uint32_t moek_halves_(uint64_t x)
{
    x &= 0x0f0f0f0f0f0f0f0fu;
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(x | x >> 16);
}
enum { MOEK_BLOCKS_ = 32 };                            /* at a time */
/* GGUF: of each group the low halves of its bytes, then the high ones.  per: words of a block; high: from a word to
 * the one with the high halves.  Constants, where it is called. */
static inline void moek_recode_blocks_(const moek_recode_ *a, size_t row, size_t count, size_t per, size_t high,
                                       moek_recoded_ *seen)
{
    const size_t bytes = moek_codes_block_bytes_(&a->from), blocks = a->from.columns / (8 * per), end = row + count;
    for (; row < end; row++) {
        const size_t r = moek_recode_from_(a, row);
        const unsigned char *at = a->from.at + r * blocks * bytes + a->from.lead;
        size_t block, n, i, j;
        if (r >= a->from.rows) { moek_recode_rest_(a, row, 0, seen); continue; }
        for (block = 0; block < blocks; block += n) {
            uint32_t words[8 * MOEK_BLOCKS_];
            n = blocks - block < MOEK_BLOCKS_ ? blocks - block : (size_t)MOEK_BLOCKS_;
            for (i = 0; i < n; i++, at += bytes)
                for (j = 0; j < per / 2; j++) {
                    uint32_t *const to = words + per * i + j / high * 2 * high + j % high;
                    uint64_t x;
                    memcpy(&x, at + 8 * j, 8);
                    to[0] = moek_halves_(x);
                    to[high] = moek_halves_(x >> 4);
                }
            moek_recode_words_(a, row, per * block, words, per * n, seen);
        }
    }
}
static void moek_recode_gguf_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen)
{
    if (a->from.layout == MOEK_CODES_GGUF) moek_recode_blocks_(a, row, count, 4, 2, seen);
    else moek_recode_blocks_(a, row, count, 8, 1, seen);
}
/* Bits of each byte that is not one of -8 .. 7. */
static uint64_t moek_outside_(uint64_t x)
{
    x = ((x & 0x7f7f7f7f7f7f7f7fu) + 8 * moek_byte_ones_) ^ (x & 0x8080808080808080u);        /* + 8, without carries */
    return x & 0xf0f0f0f0f0f0f0f0u;
}
enum { MOEK_BYTES_ = 240 };                            /* words at a time */
/* BYTES: 8 elements a word. */
static void moek_recode_bytes_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen)
{
    const size_t full = a->to.columns >> 3, end = row + count;
    for (; row < end; row++) {
        const size_t r = moek_recode_from_(a, row);
        const unsigned char *at = a->from.at + r * a->from.pitch;
        size_t q, i, n;
        if (r >= a->from.rows) { moek_recode_rest_(a, row, 0, seen); continue; }
        for (q = 0; q < full; q += n) {
            uint32_t words[MOEK_BYTES_];
            uint64_t any = 0;
            n = full - q < MOEK_BYTES_ ? full - q : (size_t)MOEK_BYTES_;
            for (i = 0; i < n; i++) {
                uint64_t x;
                memcpy(&x, at + 8 * i, 8);
                any |= moek_outside_(x);
                words[i] = moek_halves_(x);
            }
            for (i = 0; i < n && any; i++) {
                uint64_t x;
                memcpy(&x, at + 8 * i, 8);
                seen->wide += moek_slots_sum_(moek_slots_other_(moek_outside_(x), 8));
            }
            at += 8 * n;
            moek_recode_words_(a, row, q, words, n, seen);
        }
        moek_recode_rest_(a, row, full, seen);
    }
}

typedef void moek_recode_fn_(const moek_recode_ *a, size_t row, size_t count, moek_recoded_ *seen);
/* NULL: word by word. */
static moek_recode_fn_ *moek_recode_way_(const moek_recode_ *a)
{
    const int from = a->from.layout, whole = a->to.columns * (size_t)a->to.bits % 8 == 0;
    if (a->to.layout != MOEK_CODES_ROWS || !a->from.at || a->column_order) return NULL;
    if (from == MOEK_CODES_ROWS)
        return a->to.at && whole && !a->add && a->all < 0 && a->from.row_bytes >= a->to.row_bytes ? moek_recode_same_
                                                                                                  : NULL;
    if (from == MOEK_CODES_GPTQ) return moek_recode_gptq_;
    if (moek_codes_in_blocks_(&a->from)) return moek_recode_gguf_;
    if (from == MOEK_CODES_BYTES) return moek_recode_bytes_;
    return a->to.bits == 4 && !a->row_order ? moek_recode_turned_ : NULL;
}
static void moek_recode_rows_(const void *job, size_t begin, size_t end, uint64_t *n)
{
    const moek_recode_ *const a = (const moek_recode_ *)job;
    moek_recode_fn_ *const way = moek_recode_way_(a);
    for (; begin < end; begin += MOEK_PIECE_ROWS_) {
        moek_recoded_ seen = { 0, 0, 0, 0, 0 };
        way(a, begin, end - begin < MOEK_PIECE_ROWS_ ? end - begin : (size_t)MOEK_PIECE_ROWS_, &seen);
        moek_recode_tally_(a, &seen, n);
    }
}
static void moek_recode_squares_(const void *job, size_t begin, size_t end, uint64_t *n)
{
    const moek_recode_ *const a = (const moek_recode_ *)job;
    const moek_plane_ plane = moek_codes_plane_(&a->to);
    size_t s, p, q;
    for (s = begin; s < end; s++) {
        const moek_square_ at = moek_square_at_(plane, s);
        moek_recoded_ seen = { 0, 0, 0, 0, 0 };
        for (p = at.p; p < at.p + MOEK_SQUARE_ && p < plane.p; p++)
            for (q = at.q; q < at.q + MOEK_SQUARE_ && q < plane.q; q++) moek_recode_word_(a, plane, p, q, &seen);
        moek_recode_tally_(a, &seen, n);
    }
}
static void moek_recode_host_(const moek_recode_ *a, moek_stream stream)
{
    const size_t bytes = a->to.rows * a->to.row_bytes, squares = moek_square_count_(moek_codes_plane_(&a->to));
    if (moek_recode_way_(a))
        moek_pieces_(stream, moek_recode_rows_, a, a->to.rows, MOEK_PIECE_ROWS_, bytes, a->report);
    else moek_pieces_(stream, moek_recode_squares_, a, squares, 1, bytes, a->report);
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

typedef struct moek_extent_ { uint32_t low, high, negative; } moek_extent_;    /* of magnitudes; how many have a sign */
/* Of n > 0 scales of a byte; sign: its bit, or 0. */
static moek_extent_ moek_extent_bytes_(const unsigned char *at, size_t n, unsigned char sign)
{
    const unsigned char keep = (unsigned char)~sign;
    unsigned char low = 255, high = 0, any = 0;
    moek_extent_ e;
    size_t i;
    for (i = 0; i < n; i++) {
        const unsigned char b = at[i] & keep;
        low = b < low ? b : low;
        high = b > high ? b : high;
        any |= at[i];
    }
    e.low = low; e.high = high; e.negative = any & sign;
    return e;
}
/* Of n > 0 scales of T. */
static moek_extent_ moek_extent_t_(const uint16_t *at, size_t n)
{
    uint16_t low = 0xffff, high = 0;
    uint32_t negative = 0;
    moek_extent_ e;
    size_t i;
    for (i = 0; i < n; i++) {
        const uint16_t m = at[i] & 0x7fff;
        low = m < low ? m : low;
        high = m > high ? m : high;
        negative += at[i] >> 15;
    }
    e.low = low; e.high = high; e.negative = negative;
    return e;
}
/* A row of scales that are copied; 0: there is one that must be looked at by itself, they are not counted yet. */
static int moek_rescale_copy_(const moek_rescale_ *a, size_t row, size_t from_row, uint64_t *n)
{
    const int type = a->from.type, bytes = (int)moek_factors_bytes_(type), e8m0 = type == MOEK_SCALE_TYPE_E8M0;
    const unsigned char *const from = a->from.at + from_row * a->from.row;
    unsigned char *const to = a->to.at + row * a->to.row;
    const uint32_t nan = e8m0 ? 255 : bytes == 1 ? 127 : a->from.dtype == MOEK_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    moek_extent_ e;
    float low, high;
    size_t g;
    if (a->from.group == 1 || bytes == 2) { if (to != from) memcpy(to, from, a->groups * (size_t)bytes); }
    else if (a->from.per == 4)                         /* nvfp4 */
        for (g = 0; g < a->groups / 4; g++) memcpy(to + 4 * g, from + g * a->from.group, 4);
    else for (g = 0; g < a->groups; g++) to[g] = from[g * a->from.group];
    e = bytes == 1 ? moek_extent_bytes_(to, a->groups, e8m0 ? 0 : 0x80)
                   : moek_extent_t_((const uint16_t *)(const void *)to, a->groups);
    low = moek_factors_value_(&a->from, e.low); high = moek_factors_value_(&a->from, e.high);
    if (e.high >= nan || low == 0 || (bytes == 1 && e.negative)) return 0;
    n[MOEK_COUNT_scales_] += a->groups;
    n[MOEK_COUNT_scales_negative_] += e.negative;
    if (a->positive) n[MOEK_COUNT_signs_bad_] += e.negative;
    moek_tally_max_(n, moek_factors_exponent_(low));
    moek_tally_max_(n, moek_factors_exponent_(high));
    if (bytes == 1) {
        const int most = moek_rescale_power_(type, e.high, high), least = moek_rescale_power_(type, e.low, low);
        if (most - least >= (e8m0 ? MOEK_BINADES_ : MOEK_BINADES_E4M3_)) moek_rescale_fold_(a, row, 0, 1, most, n);
    }
    return 1;
}
enum { MOEK_SCALES_ = 128 };                           /* at a time */
/* What is counted of scales of f32 or T.  low: the smallest magnitude less 1, so that 0 is above all. */
typedef struct moek_seen_scales_ { uint32_t zero, bad, negative, rounded, lost, low, high; } moek_seen_scales_;
/* n scales side by side, at most MOEK_SCALES_, to `out`, as to has them. */
static void moek_rescale_piece_(const moek_rescale_ *a, const unsigned char *at, int n, void *out,
                                moek_seen_scales_ *seen)
{
    float v[MOEK_SCALES_], w[MOEK_SCALES_];
    uint16_t *const t = (uint16_t *)out;
    moek_seen_scales_ s = *seen;
    int i;
    if (a->from.type == MOEK_SCALE_TYPE_F32) memcpy(v, at, 4 * (size_t)n);
    else moek_decode_t_(v, (const uint16_t *)(const void *)at, n, a->from.dtype);
    if (a->to.type == MOEK_SCALE_TYPE_F32) memcpy(out, v, 4 * (size_t)n);
    else if (a->to.dtype == MOEK_DTYPE_FP16) for (i = 0; i < n; i++) t[i] = moek_to_fp16_(v[i]);
    else for (i = 0; i < n; i++) t[i] = moek_to_bf16_(v[i]);
    if (a->to.type == MOEK_SCALE_TYPE_F32) memcpy(w, v, 4 * (size_t)n);
    else moek_decode_t_(w, t, n, a->to.dtype);
    if (a->to.type == a->from.type && a->to.dtype == a->from.dtype) memcpy(out, at, (size_t)n * (a->to.dtype ? 2 : 4));
    for (i = 0; i < n; i++) {
        const uint32_t bits = moek_bits_(v[i]), magnitude = bits & 0x7fffffff, becomes = moek_bits_(w[i]);
        const uint32_t finite = magnitude < 0x7f800000, kept = becomes & 0x7fffffff;
        s.zero += magnitude == 0;
        s.bad += !finite;
        s.negative += bits >> 31;
        s.rounded += finite & (becomes != bits);
        s.lost += finite & (magnitude != 0) & ((kept == 0) | (kept >= 0x7f800000));
        s.low = magnitude - 1 < s.low ? magnitude - 1 : s.low;
        s.high = finite && magnitude > s.high ? magnitude : s.high;
    }
    *seen = s;
}
/* n scales that are `step` apart, side by side. */
static const unsigned char *moek_rescale_gather_(const unsigned char *at, size_t step, size_t bytes, size_t n,
                                                 float *to)
{
    size_t i;
    for (i = 0; i < n && bytes == 2; i++) memcpy((unsigned char *)to + 2 * i, at + i * step, 2);
    for (i = 0; i < n && bytes == 4; i++) memcpy((unsigned char *)to + 4 * i, at + i * step, 4);
    return (const unsigned char *)to;
}
/* Scales of f32 or T, of `rows` rows from `row` on, each of which is there. */
static void moek_rescale_open_(const moek_rescale_ *a, size_t row, size_t rows, uint64_t *n)
{
    const size_t bytes = moek_factors_bytes_(a->from.type), to_bytes = moek_factors_bytes_(a->to.type);
    const int blocks = a->from.group != bytes && a->from.row > a->from.group;  /* codes lie between them */
    const int turned = a->from.group != bytes && !blocks;                      /* rows lie side by side */
    moek_seen_scales_ seen = { 0, 0, 0, 0, 0, 0xffffffffu, 0 };
    float out[MOEK_SCALES_], some[MOEK_SCALES_];
    size_t g, r, i;
    for (r = row; r < row + rows && !turned; r++)
        for (g = 0; g < a->groups; g += i) {
            const unsigned char *at = a->from.at + moek_recode_row_(a->row_order, r) * a->from.row;
            at += g * a->from.group;
            i = a->groups - g < MOEK_SCALES_ ? a->groups - g : (size_t)MOEK_SCALES_;
            if (blocks) at = moek_rescale_gather_(at, a->from.group, bytes, i, some);
            moek_rescale_piece_(a, at, (int)i, out, &seen);
            memcpy(a->to.at + r * a->to.row + g * to_bytes, out, i * to_bytes);
        }
    for (g = 0; g < a->groups && turned; g++) {
        const unsigned char *at = a->from.at + g * a->from.group + row * a->from.row;
        unsigned char *to = a->to.at + row * a->to.row + g * to_bytes;
        for (i = 0; i < rows && (a->row_order || a->from.row != bytes); i++, at = (const unsigned char *)some)
            memcpy((unsigned char *)some + i * bytes,
                   a->from.at + moek_recode_row_(a->row_order, row + i) * a->from.row + g * a->from.group, bytes);
        moek_rescale_piece_(a, at, (int)rows, out, &seen);
        for (i = 0; i < rows && to_bytes == 2; i++, to += a->to.row) memcpy(to, (const uint16_t *)(void *)out + i, 2);
        for (i = 0; i < rows && to_bytes == 4; i++, to += a->to.row) memcpy(to, out + i, 4);
    }
    n[MOEK_COUNT_scales_] += a->groups * rows;
    n[MOEK_COUNT_scales_zero_] += seen.zero;
    n[MOEK_COUNT_scales_nan_] += seen.bad;
    n[MOEK_COUNT_scales_negative_] += seen.negative;
    if (a->positive) n[MOEK_COUNT_signs_bad_] += seen.negative;
    n[MOEK_COUNT_scales_rounded_] += seen.rounded;
    n[MOEK_COUNT_scales_lost_] += seen.lost;
    if (seen.high) moek_tally_max_(n, moek_factors_exponent_(moek_float_(seen.high)));
    if (seen.high) moek_tally_max_(n, moek_factors_exponent_(moek_float_(seen.low + 1)));
}
static void moek_rescale_rows_(const void *job, size_t begin, size_t end, uint64_t *n)
{
    const moek_rescale_ *const a = (const moek_rescale_ *)job;
    const size_t bytes = moek_factors_bytes_(a->from.type);
    const int fixed = bytes == 1, plain = !a->shared && !a->to.tiles && !a->from.tiles && a->to.per < 2;
    const int same = a->to.type == a->from.type && a->to.dtype == a->from.dtype && bytes < 4 &&
                     a->to.group == bytes && (a->from.group == bytes || bytes == 1);
    const int open = !fixed && moek_factors_bytes_(a->to.type) > 1 && a->to.group == moek_factors_bytes_(a->to.type);
    const size_t step = open && a->from.group != bytes ? MOEK_TILE_ * MOEK_TILES_ : 1;
    size_t rows, r;
    for (; begin < end; begin += rows) {
        int there = plain && begin < a->rows;
        rows = end - begin < step ? end - begin : step;
        for (r = begin; there && r < begin + rows; r++)
            there = r < a->rows && (!a->row_order || (uint32_t)a->row_order[r] < a->rows);
        if (there && same && rows == 1 &&
            moek_rescale_copy_(a, begin, moek_recode_row_(a->row_order, begin), n)) continue;
        if (there && open) { moek_rescale_open_(a, begin, rows, n); continue; }
        for (r = begin; r < begin + rows; r++) moek_rescale_fold_(a, r, 0, 1, moek_rescale_row_(a, r, 0, 1, n), n);
    }
}
static void moek_rescale_host_(const moek_rescale_ *a, moek_stream stream)
{
    uint64_t ignored[MOEK_TALLY_] = { 0 }, *const n = a->report ? a->report : ignored;
    const size_t bytes = a->all_rows * a->all_groups * moek_factors_bytes_(a->to.type);
    moek_pieces_(stream, moek_rescale_rows_, a, a->all_rows, MOEK_PIECE_ROWS_, bytes, n);
    if (a->from_global) moek_rescale_global_(a, n);
}
#endif
