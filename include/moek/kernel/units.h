/* moek/kernel/units.h -- blocks of GGUF files in panels: codes, scales and minimums of a unit of 16 rows, in plain C
 * and with a set of instructions.  generated/moek_units.h has a layout for each format, and makes its functions. */
#ifndef MOEK_UNITS_H
#define MOEK_UNITS_H
#include "digits.h"

/* 32 columns are a part; 8 parts, or what is left of a row, are a unit (file_panels.h).  Of a unit of `all` parts, the
 * parts from `first` on become words of 4 codes, [word][16 rows], and scales and minimums with their sign, [group][16
 * rows].  raw: codes as sums of few rows take them, `offset` more than their value; else s8.  In blocks of 256 columns
 * `parts` are 4 from a multiple of 4 on, or all. */
typedef void moek_parts_(uint32_t *words, float *scale, float *min, const uint8_t *unit, int all, int first, int parts,
                         int raw);
enum { MOEK_PART = 32, MOEK_PART_WORDS = MOEK_PART / 4 * (int)MOEK_UNIT_ROWS, MOEK_UNIT_PARTS = MOEK_UNIT / MOEK_PART };
/* The scales and minimums, without the words. */
typedef void moek_unit_factors_(float *scale, float *min, const uint8_t *unit, int all, int first, int parts);
/* What a set of instructions has for a format.  element: raw codes are summed as codes of this element. */
typedef struct moek_units_ { moek_parts_ *parts; int element, offset, words; } moek_units_;
/* Scales or minimums, one for `columns` columns; 0: there are none.  Factors of 16 rows in f16 begin at byte `top` of
 * the heads: of a unit, or of a block of 32 columns, which has no others.  Numbers, minus `less`, multiply these f16;
 * they lie in planes (moek/format.h) of the heads, where a byte of a row is 16 bytes.  A plane of no bits is none.
 * minus: products change their sign. */
typedef struct moek_unit_numbers_ {
    int columns, top, less, minus;
    moek_plane plane[2];
} moek_unit_numbers_;
/* Where codes lie: codes of part p from byte at[p] on, behind `heads` bytes of each block or of the only one (whole);
 * `bits` of each from bit shift[p] on; the second 16 columns `by` bits higher in the same bytes, or behind (0).  more,
 * more_at, more_shift: the bits above, if any; single: these bits are 8 columns a byte.  look: codes are numbers of
 * `book`; else `less` is taken off.  wide: codes have 8 bits.  bytes: of 16 rows of a part, with their heads. */
typedef struct moek_unit_layout_ {
    int bits, by, more, single, look, less, wide, heads, whole, bytes;
    uint16_t at[8], more_at[8];
    uint8_t shift[8], more_shift[8];
    int8_t book[16];
    moek_unit_numbers_ scale, min;
} moek_unit_layout_;
MOEK_CPU_FN const uint8_t *moek_unit_begin_(const moek_unit_layout_ *l, const uint8_t *unit, int all)
{
    return unit + l->heads * (l->whole ? 1 : all);
}

/* moek_parts_ a row at a time, by what unpacks rows of blocks; not raw. */
static MOEK_UNUSED void moek_parts_by_rows_(uint32_t *words, float *scale, float *min, const uint8_t *unit, int all,
                                            int first, int parts, const moek_block *b, moek_unpack_ *unpack)
{
    enum { MOST = 8 * 34 };                            /* bytes of a unit of a row: of the largest, q8_0 */
    const moek_file_panel_ in_file = moek_file_panel_of_(b);
    const int columns = b->scale.of.columns, parts_of = b->columns / MOEK_PART;
    const int blocks = first / parts_of, begin = first % parts_of * MOEK_PART;
    uint8_t row[MOST];
    int8_t codes[MOEK_UNIT];
    float scales[MOEK_UNIT / 16], mins[MOEK_UNIT / 16];
    int r, i;
    for (r = 0; r < MOEK_UNIT_ROWS; r++) {
        moek_file_panel_move_(&in_file, (uint8_t *)(uintptr_t)unit, row, all / parts_of, r, 1);
        unpack(codes, scales, mins, row + blocks * b->bytes, begin, parts * MOEK_PART);
        for (i = 0; i < parts * MOEK_PART / 4; i++) words[i * MOEK_UNIT_ROWS + r] = moek_word_((uint8_t *)codes, i);
        for (i = 0; i < parts * MOEK_PART / columns; i++) {
            scale[i * MOEK_UNIT_ROWS + r] = scales[begin / columns + i];
            if (b->sign) min[i * MOEK_UNIT_ROWS + r] = mins[begin / columns + i];
        }
    }
}
/* moek_units_ of a format: in plain C, where its block is number `index` of moek_blocks_; and for a set of instructions
 * (units_body.h). */
#define MOEK_UNITS_PLAIN_(name, index, element) \
    static MOEK_UNUSED void moek_parts_##name##_cpu_(uint32_t *words, float *scale, float *min, const uint8_t *unit, \
                                                     int all, int first, int parts, int raw) \
    { \
        (void)raw; \
        moek_parts_by_rows_(words, scale, min, unit, all, first, parts, &moek_blocks_[index], \
                            moek_unpack_##name##_plain_); \
    } \
    static MOEK_UNUSED const moek_units_ moek_units_##name##_cpu_ = { moek_parts_##name##_cpu_, element, 0, 0 };
#define MOEK_UNITS_(name, set, SET, element, offset, words) \
    MOEK_##SET##_FN void moek_unit_factors_##name##_##set##_(float *scale, float *min, const uint8_t *unit, int all, \
                                                             int first, int parts) \
    { \
        (void)all; \
        moek_unit_factors_##set##_(scale, min, unit, first, parts, &moek_unit_layout_##name##_); \
    } \
    MOEK_##SET##_FN void moek_parts_##name##_##set##_(uint32_t *to, float *scale, float *min, const uint8_t *unit, \
                                                      int all, int first, int parts, int raw) \
    { \
        moek_unit_parts_##set##_(to, scale, min, unit, all, first, parts, raw, &moek_unit_layout_##name##_, \
                                 moek_unit_factors_##name##_##set##_); \
    } \
    static MOEK_UNUSED const moek_units_ moek_units_##name##_##set##_ = { \
        moek_parts_##name##_##set##_, element, offset, words \
    };
#endif
