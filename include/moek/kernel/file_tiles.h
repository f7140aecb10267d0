/* moek/kernel/file_tiles.h -- blocks of GGUF files to the order of fragments and back, for host and device: where a
 * code, a scale and an f16 of 64 rows lie (moek/ops.h: repack draws the order), piece by piece. */
#ifndef MOEK_FILE_TILES_H
#define MOEK_FILE_TILES_H
#include "../format.h"
#include "../ops.h"
#include "linkage.h"

/* Of 64 rows: a unit is 64 of k, codes plane by plane, then `row_bits` of scales and minimums a row.  Behind `units` of
 * them, which are a block or two blocks of a row, its f16: `top` bytes a row. */
typedef struct moek_file_tiles_ { int scale_bits, groups, row_bits, codes, unit, top, units; } moek_file_tiles_;
MOEK_FN moek_file_tiles_ moek_file_tiles_of_(const moek_block *b)
{
    moek_file_tiles_ t = {0, 0, 0, 0, 0, 0, 1};
    int i;
    for (i = 0; i < b->planes; i++) t.codes += 512 * b->plane[i].bits;
    for (i = 0; i < b->scale.planes; i++) t.scale_bits += b->scale.plane[i].bits;
    t.groups = 64 / b->scale.of.columns;
    t.row_bits = t.groups * t.scale_bits * (b->sign ? 2 : 1);
    t.unit = t.codes + 8 * t.row_bits;
    if (!b->scale.top.type) return t;
    t.top = b->sign ? 4 : 2;
    t.units = b->columns / 64;
    return t;
}
/* Do rows and their blocks fill units? */
MOEK_FN int moek_file_tiles_take_(const moek_repack_args *a, const moek_block *b)
{
    const size_t bytes = (size_t)b->bytes, columns = (size_t)b->columns;
    return a->w_rows >= 64 && a->w_rows % 64 == 0 && (a->w_rows == a->n || a->w_rows == 2 * a->n) && a->row_bytes &&
           a->row_bytes % bytes == 0 && a->row_bytes / bytes * columns % 64 == 0 && !a->panels && !a->codes &&
           !a->group && !a->zeros;
}
/* Where row j of the tiled order lies in the other one. */
MOEK_FN size_t moek_file_tile_row_(const moek_repack_args *a, int j)
{
    const int swapped = a->gate_first > a->up_first;
    const int first = swapped ? a->up_first : a->gate_first, second = swapped ? a->gate_first : a->up_first;
    if (a->w_rows == a->n) return (size_t)j;
    return (size_t)(j / 8 % 2 ? second : first) + (size_t)(j / 16 * 8 + j % 8) * (size_t)a->w_step;
}

/* Number n of a plane: its byte in the block, and the bit there. */
MOEK_FN int moek_plane_byte_(const moek_plane *p, int n)
{
    const int in = n % p->unit;
    return p->at + n / p->unit * (p->unit * p->bits / 8) + in / p->run * p->step + in % p->run;
}
MOEK_FN int moek_plane_bit_(const moek_plane *p, int n) { return p->shift + n % p->unit / p->run * p->by; }
/* Its bits, or where they are put. */
MOEK_FN unsigned moek_plane_get_(const moek_plane *p, const uint8_t *block, int n)
{
    const uint8_t *const at = block + moek_plane_byte_(p, n);
    if (p->bits == 16) return at[0] | (unsigned)at[1] << 8;
    return (unsigned)at[0] >> moek_plane_bit_(p, n) & ((1u << p->bits) - 1);
}
MOEK_FN void moek_plane_put_(const moek_plane *p, uint8_t *block, int n, unsigned bits)
{
    uint8_t *const at = block + moek_plane_byte_(p, n);
    at[0] = (uint8_t)(at[0] | bits << moek_plane_bit_(p, n));
    if (p->bits == 16) at[1] = (uint8_t)(bits >> 8);
}
MOEK_FN unsigned moek_planes_get_(const moek_plane *p, int planes, const uint8_t *block, int n)
{
    unsigned bits = 0;
    int i, at = 0;
    for (i = 0; i < planes; at += p[i++].bits) bits |= moek_plane_get_(&p[i], block, n) << at;
    return bits;
}
MOEK_FN void moek_planes_put_(const moek_plane *p, int planes, uint8_t *block, int n, unsigned bits)
{
    int i, at = 0;
    for (i = 0; i < MOEK_MAX_PLANES; i++) {            /* (so nvcc unrolls the loop, and keeps no plane in memory) */
        if (i >= planes) continue;
        moek_plane_put_(&p[i], block, n, bits >> at & ((1u << p[i].bits) - 1));
        at += p[i].bits;
    }
}

/* Bits of a plane of N bits a code, of number 4i + n of a lane (16 of k, number i; n: of the four pairs of mma): the
 * word of theirs in the unit, and the first bit of the even column, 16 below the odd one's. */
MOEK_FN size_t moek_file_tile_word_(int bits, int lane, int number, int *bit)
{
    const int word = number * bits / 16, beside = bits < 4 ? bits : 4;
    *bit = number * bits % 16;
    return (size_t)(word / 4 * 2048 + lane * 4 * beside + word % 4 * 4);
}
/* Column c of row r of a unit: which lane has the code, and as which number. */
MOEK_FN int moek_file_tile_lane_(int r, int c) { return r / 16 * 32 + r % 8 * 4 + c % 8 / 2; }
MOEK_FN int moek_file_tile_number_(int r, int c) { return c / 16 * 4 + r / 8 % 2 + c % 16 / 8 * 2; }

/* A lane's codes of a unit, of `lane` 0 to 127.  row, other: the file's bytes of row r of 16 and of r + 8, from column
 * 0 on; first: the first column. */
MOEK_FN void moek_file_tile_codes_(uint8_t *unit, const moek_block *b, int lane, const uint8_t *row,
                                   const uint8_t *other, int first)
{
    int p, number, odd, bit;
    for (p = 0; p < b->planes; unit += 512 * b->plane[p++].bits) {
        const int bits = b->plane[p].bits;
        uint32_t w = 0;
        for (number = 0; number < 16; number++) {
            uint32_t *const to = (uint32_t *)(void *)(unit + moek_file_tile_word_(bits, lane, number, &bit));
            for (odd = 0; odd < 2; odd++) {
                const int c = first + number / 4 * 16 + number % 4 / 2 * 8 + lane % 4 * 2 + odd;
                const uint8_t *const block = (number % 2 ? other : row) + (size_t)(c / b->columns) * (size_t)b->bytes;
                w |= (uint32_t)moek_plane_get_(&b->plane[p], block, c % b->columns) << (bit + 16 * odd);
            }
            if (bit + bits == 16) *to = w, w = 0;
        }
    }
}
/* Scales and minimums of a row in a unit, one behind the other. */
MOEK_FN uint64_t moek_file_tile_scales_(const moek_block *b, const moek_file_tiles_ *t, const uint8_t *row, int first)
{
    uint64_t bits = 0;
    int i, kind, at = 0;
    for (kind = 0; kind < (b->sign ? 2 : 1); kind++)
        for (i = 0; i < t->groups; i++, at += t->scale_bits) {
            const moek_block_scale *const s = kind ? &b->min : &b->scale;
            const int c = first + i * s->of.columns;
            bits |= (uint64_t)moek_planes_get_(s->plane, s->planes, row + (size_t)(c / b->columns) * (size_t)b->bytes,
                                               c % b->columns / s->of.columns) << at;
        }
    return bits;
}
/* Row r of a unit, an even one: scales of this row and of the next one, `other`.  tops: of all 64, NULL: these are
 * written with another unit. */
MOEK_FN void moek_file_tile_heads_(uint8_t *unit, uint8_t *tops, const moek_block *b, int r, const uint8_t *row,
                                   const uint8_t *other, int first)
{
    const moek_file_tiles_ t = moek_file_tiles_of_(b);
    const uint64_t one = moek_file_tile_scales_(b, &t, row, first), two = moek_file_tile_scales_(b, &t, other, first);
    int i, h;
    for (i = 0; i < 2 * t.row_bits; i += 8) {           /* (12 bits a row: a byte has some of both) */
        const uint64_t low = i < t.row_bits ? one >> i : 0;
        const uint64_t high = i >= t.row_bits ? two >> (i - t.row_bits)
                              : i + 8 > t.row_bits ? two << (t.row_bits - i) : 0;
        unit[t.codes + (r * t.row_bits + i) / 8] = (uint8_t)(low | high);
    }
    for (h = 0; h < 2 && tops; h++)
        for (i = 0; i < t.top; i++)
            tops[(r + h) * t.top + i] =
                (h ? other : row)[(size_t)(first / b->columns) * (size_t)b->bytes +
                                  (size_t)(i / 2 ? b->min.top_at : b->scale.top_at) + (size_t)(i % 2)];
}
/* Block number n of row r of 64 rows, which lie tiled at `tiles`, as the file has it. */
MOEK_FN void moek_file_tile_back_(uint8_t *block, const uint8_t *tiles, const moek_block *b, int r, int n)
{
    const moek_file_tiles_ t = moek_file_tiles_of_(b);
    const size_t whole = (size_t)(t.units * t.unit + 64 * t.top);
    const uint8_t *const unit = tiles + (size_t)(n * b->columns / 64 / t.units) * whole;
    int c, p, i, bit, kind;
    for (i = 0; i < b->bytes; i++) block[i] = 0;
    for (c = 0; c < b->columns; c++) {
        const int of = n * b->columns + c;
        const int lane = moek_file_tile_lane_(r, of % 64), number = moek_file_tile_number_(r, of % 64);
        const uint8_t *plane = unit + (size_t)(of / 64 % t.units * t.unit);
        for (p = 0; p < b->planes; plane += 512 * b->plane[p++].bits) {
            const int bits = b->plane[p].bits;
            const size_t at = moek_file_tile_word_(bits, lane, number, &bit);
            const uint32_t w = *(const uint32_t *)(const void *)(plane + at);
            moek_plane_put_(&b->plane[p], block, c, (unsigned)(w >> (bit + of % 2 * 16)) & ((1u << bits) - 1));
        }
    }
    for (kind = 0; kind < (b->sign ? 2 : 1); kind++)
        for (c = 0; c < b->columns; c += b->scale.of.columns) {
            const moek_block_scale *const s = kind ? &b->min : &b->scale;
            const int of = n * b->columns + c, group = kind * t.groups + of % 64 / s->of.columns;
            const int first = r * t.row_bits + group * t.scale_bits;
            const uint8_t *const at = unit + (size_t)(of / 64 % t.units * t.unit + t.codes + first / 8);
            const unsigned low = at[0], high = first % 8 + t.scale_bits > 8 ? at[1] : 0;
            moek_planes_put_(s->plane, s->planes, block, c / s->of.columns,
                             (low | high << 8) >> first % 8 & ((1u << t.scale_bits) - 1));
        }
    for (i = 0; i < t.top; i++)
        block[(i / 2 ? b->min.top_at : b->scale.top_at) + i % 2] = unit[t.units * t.unit + r * t.top + i];
}

/* On the host: 64 rows of the tiled order, number w_block of all of them, from the file or back. */
static MOEK_UNUSED void moek_file_tile_task_(const void *data, long long w_block)
{
    const moek_repack_args *const a = (const moek_repack_args *)data;
    const moek_block *const b = a->block;
    const moek_file_tiles_ t = moek_file_tiles_of_(b);
    const int columns = (int)(a->row_bytes / (size_t)b->bytes) * b->columns;
    const size_t e = (size_t)(w_block / (a->w_rows / 64)), whole = (size_t)(t.units * t.unit + 64 * t.top);
    const int j0 = (int)(w_block % (a->w_rows / 64)) * 64;
    uint8_t *const plain = (uint8_t *)(uintptr_t)(a->back ? a->to : a->from) + e * (size_t)a->w_rows * a->row_bytes;
    uint8_t *const tiles = (uint8_t *)(uintptr_t)(a->back ? a->from : a->to) + (size_t)w_block * 64 * a->row_bytes;
    int u, i, r;
    for (r = 0; r < 64 && a->back; r++)
        for (i = 0; i < columns / b->columns; i++)
            moek_file_tile_back_(plain + moek_file_tile_row_(a, j0 + r) * a->row_bytes + (size_t)(i * b->bytes), tiles,
                                 b, r, i);
    for (u = 0; u < columns / 64 && !a->back; u++) {
        uint8_t *const block = tiles + (size_t)(u / t.units) * whole, *const unit = block + u % t.units * t.unit;
        for (i = 0; i < 128; i++) {
            const int of = j0 + i / 32 * 16 + i % 32 / 4;
            moek_file_tile_codes_(unit, b, i, plain + moek_file_tile_row_(a, of) * a->row_bytes,
                                  plain + moek_file_tile_row_(a, of + 8) * a->row_bytes, u * 64);
        }
        for (r = 0; r < 64; r += 2)
            moek_file_tile_heads_(unit, u % t.units ? NULL : block + t.units * t.unit, b, r,
                                  plain + moek_file_tile_row_(a, j0 + r) * a->row_bytes,
                                  plain + moek_file_tile_row_(a, j0 + r + 1) * a->row_bytes, u * 64);
    }
}
#endif
