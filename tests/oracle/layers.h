/* layers.h -- a part of ref.h, which includes it once: repack, expand, combine, a whole layer. */
/* Row j as a tiled one. */
static inline int ref_tiled_row_(const moek_repack_args *a, int j)
{
    const int low = a->gate_first < a->up_first ? a->gate_first : a->up_first, high = a->gate_first + a->up_first - low;
    const int other = a->w_step == 1 ? j >= high : (j - high) % 2 == 0;
    const int i = a->w_rows > a->n ? (j - (other ? high : low)) / a->w_step : 0;
    return a->w_rows > a->n ? i / 8 * 16 + (other ? 8 : 0) + i % 8 : j;    /* row i of what lies first, or the other */
}
/* The same for activations of 8 bits, code by code. */
static inline void ref_fragments_8_(const moek_repack_args *a)
{
    static const uint8_t places[8] = { 0, 3, 1, 2, 4, 5, 6, 7 }, magnitudes[8] = { 0, 2, 3, 1, 4, 5, 6, 7 };
    const size_t columns = a->row_bytes * 2, w_rows = (size_t)a->w_rows;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, k;
    int j;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (k = 0; k < columns; k++) {
                const int row = ref_tiled_row_(a, j), other = row / 8 % 2, column = (int)(k % 4);
                const size_t unit = (e * (w_rows / 64) + (size_t)row / 64) * (columns / 64) + k / 64;
                const size_t q = a->columns == 16 ? k / 16 % 4 : k % 16 / 4;
                const size_t i = a->columns == 16 ? k % 16 / 4 : k / 16 % 4;
                const size_t lane = (size_t)(row / 16 % 4 * 32 + row % 8 * 4) + q, word = (unit * 128 + lane) * 4 + i;
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + k / 2;
                const int shift = (int)(k % 2) * 4, e2m1 = a->codes == MOEK_ELEMENT_E2M1;
                uint8_t *const tiled = a->back ? (uint8_t *)from + word * 4 : to + word * 4;
                uint8_t *const low = tiled + column / 2 + 2 * other, *const high = tiled + column;
                unsigned code = from[plain] >> shift & 15;
                if (e2m1 && a->back) {
                    code = magnitudes[*low >> column % 2 * 4 & 7] | (*high >> (3 + 4 * other) & 1) << 3;
                } else if (e2m1) {
                    *low |= (uint8_t)(places[code & 7] << column % 2 * 4);
                    *high |= (uint8_t)(code >> 3 << (3 + 4 * other));
                } else if (a->back) {
                    code = *high >> 4 * other & 15;
                    code = code % 2 ? 7 - code / 2 : 8 + code / 2;
                } else {
                    *high |= (uint8_t)((code < 8 ? 1 + 2 * (7 - code) : 2 * (code - 8)) << 4 * other);
                }
                if (a->back) to[plain] |= (uint8_t)(code << shift);
            }
}
/* Codes of 8 bits. */
static inline void ref_fragments_of_bytes_(const moek_repack_args *a)
{
    const size_t columns = a->row_bytes, w_rows = (size_t)a->w_rows;
    size_t e, k;
    int j;
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (k = 0; k < columns; k++) {
                const size_t row = (size_t)ref_tiled_row_(a, j), in16 = k % 16;
                const size_t unit = (e * (w_rows / 64) + row / 64) * (columns / 32) + k / 32;
                const size_t lane = row / 16 % 4 * 32 + row % 8 * 4 + in16 % 8 / 2;
                const size_t word = (unit * 128 + lane) * 4 + k / 16 % 2 * 2 + row / 8 % 2;
                const size_t plain = (e * w_rows + (size_t)j) * columns + k, tiled = word * 4 + in16 / 8 * 2 + k % 2;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
}
/* Where bit b of a code goes, of those that a lane has of 16 columns: the word of two, and the bit in it.  second: of
 * the other 16 columns of 32; odd: the column; number: 0 up to 3. */
typedef struct ref_bit_place { unsigned char word, bit; } ref_bit_place;
static inline ref_bit_place ref_bit_place_of(const moek_repack_args *a, int second, int odd, int number, int b)
{
    static const uint8_t e2m1_bit[4] = { 6, 7, 8, 15 }, e2m1_right[2][4] = { { 0, 4, 10, 14 }, { 2, 6, 12, 8 } };
    ref_bit_place to;
    int bit = odd * 16 + 4 * number + b, word = second;
    if (a->codes == MOEK_ELEMENT_E2M1) {
        bit = (odd * 16 + e2m1_bit[b] + 32 - e2m1_right[second][number]) % 32;
        if (number == 3) word = !(bit % 16 < 2 || bit % 16 == 9 || bit % 16 == 10);
    }
    to.word = (unsigned char)word, to.bit = (unsigned char)bit;
    return to;
}
/* Code by code, bit by bit, of one expert's row j and columns first .. end - 1; place: [second][odd][number][bit]. */
static inline void ref_fragments_part_(const moek_repack_args *a, const ref_bit_place *place, size_t e, int j,
                                       size_t first, size_t end)
{
    const size_t columns = a->row_bytes * 2, w_rows = (size_t)a->w_rows, row = (size_t)ref_tiled_row_(a, j);
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t k, b;
    for (k = first; k < end; k++) {
        const size_t in16 = k % 16, number = row / 8 % 2 + in16 / 8 * 2;
        const size_t unit = (e * (w_rows / 64) + row / 64) * (columns / 64) + k / 64;
        const size_t lane = row / 16 % 4 * 32 + row % 8 * 4 + in16 % 8 / 2;
        const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + k / 2;
        const size_t word = (unit * 128 + lane) * 4 + k / 32 % 2 * 2;
        const ref_bit_place *const at = place + (k / 16 % 2 * 8 + k % 2 * 4 + number) * 4;
        for (b = 0; b < 4; b++) {
            const size_t tiled = (word + at[b].word) * 4 + at[b].bit / 8u, in_byte = k % 2 * 4 + b;
            if (a->back) to[plain] |= (uint8_t)((from[tiled] >> at[b].bit % 8 & 1) << in_byte);
            else to[tiled] |= (uint8_t)((from[plain] >> in_byte & 1) << at[b].bit % 8);
        }
    }
}
/* (No two parts of 64 columns have a byte in common, rows have.) */
static inline void ref_fragments_(const moek_repack_args *a)
{
    const int columns = (int)a->row_bytes * 2;
    ref_bit_place place[64];
    int part;
    for (part = 0; part < 64; part++)
        place[part] = ref_bit_place_of(a, part / 32, part / 16 % 2, part / 4 % 4, part % 4);
    memset(a->to, 0, (size_t)a->experts * a->w_rows * a->row_bytes);
#ifdef _OPENMP
#pragma omp parallel for if (columns % 64 == 0)
#endif
    for (part = 0; part < columns; part += 64) {
        const int end = part + 64 < columns ? part + 64 : columns;
        int e, j;
        for (e = 0; e < a->experts; e++)
            for (j = 0; j < a->w_rows; j++) ref_fragments_part_(a, place, (size_t)e, j, (size_t)part, (size_t)end);
    }
}
static inline void ref_tiled_scales_(const moek_repack_args *a)
{
    const size_t w_rows = (size_t)a->w_rows, size = (size_t)a->scale_bytes, group = (size_t)a->group;
    size_t e, b;
    int j;
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (b = 0; b < a->row_bytes; b++) {
                const size_t row = (size_t)ref_tiled_row_(a, j), unit = b / group, scale = b % group / size;
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + b;
                size_t tiled = (e * (w_rows / 64) + row / 64) * (a->row_bytes / group) + unit;
                tiled = ((tiled * 4 + row / 16 % 4) * 8 + row % 8) * (group / size) + scale;
                tiled = (tiled * 2 + row / 8 % 2) * size + b % size;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
}
/* Zero points of 4 bits, one by one. */
static inline void ref_tiled_zeros_(const moek_repack_args *a)
{
    const size_t w_rows = (size_t)a->w_rows, group = (size_t)a->group;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, g;
    int j;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (g = 0; g < 2 * a->row_bytes; g++) {
                const size_t row = (size_t)ref_tiled_row_(a, j);
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + g / 2;
                const size_t unit = (e * (w_rows / 64) + row / 64) * (2 * a->row_bytes / group) + g / group;
                const size_t tiled = ((unit * 4 + row / 16 % 4) * 8 + row % 8) * group + g % group;
                const int at = g % 2 ? 4 : 0, tiled_at = row / 8 % 2 ? 4 : 0;
                if (a->back) to[plain] |= (uint8_t)((from[tiled] >> tiled_at & 15) << at);
                else to[tiled] |= (uint8_t)((from[plain] >> at & 15) << tiled_at);
            }
}
/* Panels: nibble by nibble, and every byte has two. */
static inline void ref_panels_(const moek_repack_args *a)
{
    const size_t nibbles = 2 * a->row_bytes, w_rows = (size_t)a->w_rows;
    const uint8_t *const from = (const uint8_t *)a->from;
    uint8_t *const to = (uint8_t *)a->to;
    size_t e, i;
    int row;
    memset(to, 0, (size_t)a->experts * w_rows * a->row_bytes);
    for (e = 0; e < (size_t)a->experts; e++)
        for (row = 0; row < a->w_rows; row++)              /* of the order of panels */
            for (i = 0; i < nibbles; i++) {
                const int gated = a->w_rows > a->n, first = row / 16 % 2 ? a->up_first : a->gate_first;
                const size_t j = (size_t)(gated ? first + (row / 32 * 16 + row % 16) * a->w_step : row);
                const size_t panel = (e * (w_rows / 16) + (size_t)(row / 16)) * 16 * nibbles, r = (size_t)(row % 16);
                const size_t each = 2 * (size_t)a->group, c = i % 32;
                const size_t plain = (e * w_rows + j) * nibbles + i;
                const size_t in = a->zeros ? panel + (i * 8 + r % 8) * 2 + r / 8
                                : a->codes ? panel + ((i / 32 * 4 + c % 16 / 4) * 64 + r * 4 + c % 4) * 2 + c / 16
                                : panel + (i / each * 16 + r) * each + i % each;
                const size_t source = a->back ? in : plain, target = a->back ? plain : in;
                to[target / 2] |= (uint8_t)((from[source / 2] >> 4 * (source % 2) & 15) << 4 * (target % 2));
            }
}
/* How many bytes of a row lie side by side in panels, byte `at` of a block among them: of codes 4, of an f16 2. */
static inline int ref_beside_(const moek_block *b, int at)
{
    const moek_block_scale *const scales[2] = { &b->scale, &b->min };
    int i;
    for (i = 0; i < b->planes; i++)
        if (at >= b->plane[i].at && at < b->plane[i].at + b->columns * b->plane[i].bits / 8) return 4;
    for (i = 0; i < (b->sign ? 2 : 1); i++) {
        const int half = scales[i]->top.type ? scales[i]->top_at : scales[i]->plane[0].at;
        if ((scales[i]->top.type || scales[i]->of.type == MOEK_SCALE_TYPE_FP16) && (at == half || at == half + 1))
            return 2;
    }
    return 1;
}
/* Is that the second byte of an f16? */
static inline int ref_second_(const moek_block *b, int at)
{
    const moek_block_scale *const scales[2] = { &b->scale, &b->min };
    int i;
    for (i = 0; i < (b->sign ? 2 : 1); i++)
        if (at == (scales[i]->top.type ? scales[i]->top_at : scales[i]->plane[0].at) + 1) return 1;
    return 0;
}
/* Blocks of GGUF files in panels: of 256 columns scales of 16 rows, then codes. */
static inline void ref_block_panels_(const moek_repack_args *a)
{
    const moek_block *const b = a->block;
    const size_t w_rows = (size_t)a->w_rows, per = 256 / (size_t)b->columns, bytes = (size_t)b->bytes;
    const size_t blocks = a->row_bytes / bytes;
    const char *const from = (const char *)a->from;
    size_t e, n, of_kind[2] = { 0, 0 };
    int row, i, j;
    for (i = 0; i < b->bytes; i++) of_kind[ref_beside_(b, i) == 4]++;
    for (i = 0; i < b->bytes; i++) {
        const int beside = ref_beside_(b, i), code = beside == 4;
        size_t before = 0, in;
        for (j = 0; j < i; j++) before += (ref_beside_(b, j) == 4) == code;
        in = code ? before % 4 : beside == 2 && ref_second_(b, i) ? 1 : 0;
        for (e = 0; e < (size_t)a->experts; e++)
            for (row = 0; row < a->w_rows; row++)          /* of the order of panels */
                for (n = 0; n < blocks; n++) {
                    const int gated = a->w_rows > a->n, first = row / 16 % 2 ? a->up_first : a->gate_first;
                    const size_t plain_row = (size_t)(gated ? first + (row / 32 * 16 + row % 16) * a->w_step : row);
                    const size_t first_n = n / per * per, left = blocks - first_n, all = left < per ? left : per;
                    const size_t unit = (e * w_rows + (size_t)(row / 16 * 16)) * a->row_bytes + 16 * first_n * bytes;
                    const size_t block = code ? all * of_kind[0] + (n - first_n) * of_kind[1]
                                              : (n - first_n) * of_kind[0];
                    const size_t panel = unit + 16 * (block + before - in) + (size_t)(row % 16 * beside) + in;
                    const size_t plain = (e * w_rows + plain_row) * a->row_bytes + n * bytes + (size_t)i;
                    ((char *)a->to)[a->back ? plain : panel] = from[a->back ? panel : plain];
                }
    }
}
/* Blocks of GGUF files, number by number; where a number of the file's block and of the tiles lies, as the tables of
 * both orders say: `bits` side by side. */
static inline void ref_move_bits_(const moek_repack_args *a, size_t plain, size_t tiled, int bits)
{
    const size_t from = a->back ? tiled : plain, to = a->back ? plain : tiled;
    uint8_t *const target = (uint8_t *)a->to + to / 8;
    const int by = (int)(to % 8);
    const unsigned word = block_bits((const uint8_t *)a->from + from / 8, (int)(from % 8), bits) << by;
    target[0] |= (uint8_t)word;
    if (by + bits > 8) target[1] |= (uint8_t)(word >> 8);
    if (by + bits > 16) target[2] |= (uint8_t)(word >> 16);
}
static inline int ref_planes_bits_(const moek_plane *p, int planes)
{
    int i, bits = 0;
    for (i = 0; i < planes; i++) bits += p[i].bits;
    return bits;
}
/* What the tiles of blocks have, in bits: a row's scales and minimums in 64 columns (of a kind: groups of `bits`);
 * what 64 columns of 64 rows take, of so many codes; so many of these in a block, and with the block's f16s.  of_code:
 * where a code of 64 columns lies, by plane, in rows 0 up to 7 of 16 and in the others. */
typedef struct ref_tiles {
    int groups, bits, row_bits, kinds, tops, units;
    size_t codes, unit, whole;
    int of_code[2][MOEK_MAX_PLANES][64];
} ref_tiles;
static inline int ref_plane_side_(const moek_plane *p) { return p->bits < 4 ? p->bits : 4; }
static inline ref_tiles ref_tiles_of_(const moek_block *b)
{
    ref_tiles t;
    int half, p, at, c;
    for (p = 0; p < b->planes; p++) if (8 % b->plane[p].bits || b->plane[p].shift % b->plane[p].bits) abort();
    t.groups = 64 / b->scale.of.columns, t.bits = ref_planes_bits_(b->scale.plane, b->scale.planes);
    t.kinds = b->sign ? 2 : 1, t.row_bits = t.groups * t.kinds * t.bits, t.tops = b->scale.top.type ? t.kinds : 0;
    t.codes = (size_t)(64 * 64 * ref_planes_bits_(b->plane, b->planes)), t.unit = t.codes + (size_t)(64 * t.row_bits);
    t.units = t.tops ? b->columns / 64 : 1;
    t.whole = t.unit * (size_t)t.units + (size_t)t.tops * 64 * 16;
    for (half = 0; half < 2; half++)
        for (p = at = 0; p < b->planes; at += 64 * 64 * b->plane[p++].bits)
            for (c = 0; c < 64; c++) {
                const int number = c / 16 * 4 + half + c % 16 / 8 * 2, bit = number * b->plane[p].bits;
                const int word = (bit / 64 * 128 + c % 8 / 2) * ref_plane_side_(&b->plane[p]) + bit / 16 % 4;
                t.of_code[half][p][c] = at + word * 32 + bit % 16 + c % 2 * 16;
            }
    return t;
}
/* Scales and minimums of a group of columns, the first of which is c, of row r of 64; and the block's f16s. */
static inline void ref_block_scales_(const moek_repack_args *a, const ref_tiles *t, int c, int r, size_t plain,
                                     size_t super, size_t here)
{
    const moek_block *const b = a->block;
    const int n = c % b->columns;
    int kind, p;
    for (kind = 0; kind < t->kinds; kind++) {
        const moek_block_scale *const s = kind ? &b->min : &b->scale;
        const int group = kind * t->groups + c % 64 / b->scale.of.columns;
        size_t to_bit = here + t->codes + (size_t)(r * t->row_bits + group * t->bits);
        for (p = 0; p < s->planes; to_bit += (size_t)s->plane[p++].bits)
            ref_move_bits_(a, plain + (size_t)block_bit(&s->plane[p], n / b->scale.of.columns), to_bit,
                           s->plane[p].bits);
        if (t->tops && n == 0)
            ref_move_bits_(a, plain + (size_t)(s->top_at * 8),
                           super + t->unit * (size_t)t->units + (size_t)((r * t->tops + kind) * 16), 16);
    }
}
/* Numbers of `bits`, each inside a byte: the i-th from bit from_bit[i] of `from` to bit to_bit[i] of `to`. */
static inline void ref_move_numbers_(const uint8_t *from, const int *from_bit, uint8_t *to, const int *to_bit, int n,
                                     int bits)
{
    const unsigned mask = (1u << bits) - 1;
    int i;
    for (i = 0; i < n; i++) {
        const unsigned at = (unsigned)from_bit[i], there = (unsigned)to_bit[i];
        to[there / 8] |= (uint8_t)((from[at / 8] >> at % 8 & mask) << there % 8);
    }
}
/* Codes of row r of 64 and of 64 columns, the first of which is c. */
static inline void ref_block_codes_(const moek_repack_args *a, const ref_tiles *t, int c, int n, int r, size_t plain,
                                    size_t here)
{
    const moek_block *const b = a->block;
    int p;
    for (p = 0; p < b->planes; p++) {
        const int *const in_block = &(*block_columns_of(b))[p][c % b->columns], *const tiled = t->of_code[r / 8 % 2][p];
        const size_t at = here / 8 + (size_t)((r / 16 * 32 + r % 8 * 4) * ref_plane_side_(&b->plane[p])) * 4;
        if (a->back)
            ref_move_numbers_((const uint8_t *)a->from + at, tiled + c % 64, (uint8_t *)a->to + plain / 8, in_block, n,
                              b->plane[p].bits);
        else
            ref_move_numbers_((const uint8_t *)a->from + plain / 8, in_block, (uint8_t *)a->to + at, tiled + c % 64, n,
                              b->plane[p].bits);
    }
}
static inline void ref_block_row_(const moek_repack_args *a, const ref_tiles *t, size_t e, int j)
{
    const moek_block *const b = a->block;
    const int columns = (int)(a->row_bytes / (size_t)b->bytes) * b->columns, to = ref_tiled_row_(a, j), r = to % 64;
    const int step = b->columns < 64 ? b->columns : 64;
    const size_t w_rows = (size_t)a->w_rows, rows = (e * w_rows + (size_t)(to / 64 * 64)) * a->row_bytes * 8;
    const size_t first = (e * w_rows + (size_t)j) * a->row_bytes * 8;
    int c, group;
    for (c = 0; c < columns; c += step) {
        const size_t super = rows + (size_t)(c / 64 / t->units) * t->whole;
        const size_t here = super + (size_t)(c / 64 % t->units) * t->unit;
        const size_t plain = first + (size_t)(c / b->columns * b->bytes) * 8;
        ref_block_codes_(a, t, c, step, r, plain, here);
        for (group = c; group < c + step; group += b->scale.of.columns)
            ref_block_scales_(a, t, group, r, plain, super, here);
    }
}
static inline void ref_blocks_(const moek_repack_args *a)
{
    const ref_tiles t = ref_tiles_of_(a->block);
    int e, j;
    memset(a->to, 0, (size_t)a->experts * a->w_rows * a->row_bytes);
    for (e = 0; e < a->experts; e++)
        for (j = 0; j < a->w_rows; j++) ref_block_row_(a, &t, (size_t)e, j);
}
static inline void ref_repack(const moek_repack_args *a)
{
    const size_t steps = a->row_bytes / 128, w_rows = (size_t)a->w_rows;
    size_t e, b;
    int j;
    if (a->panels && a->block) { ref_block_panels_(a); return; }
    if (a->panels) { ref_panels_(a); return; }
    if (a->block) { ref_blocks_(a); return; }
    if (a->codes == MOEK_ELEMENT_E4M3 || a->codes == MOEK_ELEMENT_S8) { ref_fragments_of_bytes_(a); return; }
    if (a->codes && a->x == MOEK_ELEMENT_E4M3) { ref_fragments_8_(a); return; }
    if (a->codes) { ref_fragments_(a); return; }
    if (a->zeros) { ref_tiled_zeros_(a); return; }
    if (a->group) { ref_tiled_scales_(a); return; }
    for (e = 0; e < (size_t)a->experts; e++)
        for (j = 0; j < a->w_rows; j++) {
            const int to = ref_tiled_row_(a, j);
            for (b = 0; b < a->row_bytes; b++) {
                const size_t plain = (e * w_rows + (size_t)j) * a->row_bytes + b;
                const size_t tiled = ((e * steps + b / 128) * w_rows + (size_t)to) * 128 + b % 128;
                ((char *)a->to)[a->back ? plain : tiled] = ((const char *)a->from)[a->back ? tiled : plain];
            }
        }
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

/* codes, scales: as checkpoints have them (a->w, a->w_scale are not read).  Code by code; the scales of a block, or of
 * a row, are looked through for each of its rows anew. */
static inline double ref_expand_scale_(const moek_expand_args *a, const uint8_t *scales, size_t row, int k)
{
    const size_t groups = (size_t)a->k / (size_t)a->columns;
    return ref_decode(&ref_numbers[a->columns == 16 ? REF_E4M3 : REF_E8M0],
                      scales[row * groups + (size_t)(k / a->columns)]);
}
static inline void ref_expand(const moek_expand_args *a, const uint8_t *codes, const uint8_t *scales)
{
    const int blocks = a->columns == 32, gated = a->w_rows > a->n, apart = gated && a->w_step == 1;
    const int of = apart ? a->n : a->w_rows, parts = (a->k + 127) / 128, groups = (of + 127) / 128;
    uint8_t *const to = (uint8_t *)a->to;
    int e, j, k, from, i, c;
    for (e = 0; e < a->experts; e++)
        for (j = 0; j < a->w_rows; j++)
            for (from = 0; from < a->k; from += blocks ? 128 : a->k) {
                const size_t row = (size_t)e * a->w_rows + j, base = (size_t)e * a->w_rows + (size_t)(j / of * of);
                const int group = j % of / 128, first = blocks ? group * 128 : j % of;
                const int until = blocks ? from + 128 : a->k;
                const int second = a->w_step == 2 ? j % 2 : gated && j >= a->n;
                double most = 0, unit;
                int power;
                for (i = first; i < (blocks ? first + 128 : first + 1) && i < of; i++)
                    for (c = from; c < until && c < a->k; c += a->columns) {
                        const double s = ref_expand_scale_(a, scales, base + (size_t)i, c);
                        if (most == most && !(s <= most)) most = s;
                    }
                frexp(most == most ? most : 1, &power);
                if (blocks && most < ldexp(1, -115)) power = -114;     /* 2^-115 = half of 2^-114 */
                unit = most != most ? most : ldexp(most || blocks ? 1 : 0, blocks ? power - 7 : power - 6);
                if (blocks)
                    a->to_scale[(((size_t)e * (1 + apart) + (size_t)(j / of)) * groups + group) * parts + from / 128] =
                        (float)unit;
                else a->to_scale[row] = (float)unit * a->w_global_scale[e * (1 + gated) + second];
                for (k = from; k < until && k < a->k; k++) {
                    const uint8_t code = codes[(row * a->k + (size_t)k) / 2] >> k % 2 * 4 & 15;
                    double s = ref_expand_scale_(a, scales, row, k);
                    if (blocks && most != most) s = s != s ? 64 : 0;
                    else if (blocks) s = s < ldexp(1, power - 12) ? 0 : ldexp(s, 7 - power);
                    else s = ldexp(s, 6 - power) < ldexp(1, -5) ? 0 : ldexp(s, 6 - power);
                    to[row * a->k + (size_t)k] = (uint8_t)(code / 8 << 7 |
                        ref_encode(&ref_numbers[REF_E4M3], s * ref_decode(&ref_numbers[REF_E2M1], code & 7)));
                }
            }
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* y and slack: [tokens][hidden], whatever y_stride. */
static inline void ref_combine(const moek_combine_args *a, double *y, double *slack)
{
    const size_t rows = (size_t)(a->rows_stride ? a->rows_stride : a->hidden);
    const size_t addend = (size_t)(a->addend_stride ? a->addend_stride : a->hidden);
    int t;
    ref_table_(ref_t(a->dtype));
#ifdef _OPENMP
#pragma omp parallel for if (a->tokens > 16)
#endif
    for (t = 0; t < a->tokens; t++) {
        int j, k;
        for (j = 0; j < a->hidden; j++) {
            const size_t at = (size_t)t * a->hidden + j;
            double sum = a->addend ? ref_get_t(a->addend, t * addend + j, a->dtype) : 0, size = fabs(sum);
            for (k = 0; k < a->topk; k++) {
                const size_t slot = (size_t)t * a->topk + k;
                const int32_t row = a->slot_row ? a->slot_row[slot] : (int32_t)slot;
                const int32_t id = a->ids ? a->ids[slot] : 0;
                double term;
                if (row < 0 || id < 0 || (a->ids && id >= a->experts)) continue;
                term = ref_get_t(a->rows, row * rows + j, a->dtype);
                if (a->weights) term *= a->weights[slot];
                sum += term;
                size += fabs(term);
            }
            y[at] = sum;
            if (slack) slack[at] = size * (a->topk + 2) * ldexp(1, -24);     /* a product and a sum each: the worst */
        }
    }
}

/* ---- a whole layer ----------------------------------------------------------------------------------------------- */

typedef struct ref_layer_args {
    int tokens, hidden, inter, slots, experts;    /* slots: of a token; experts: in the weights */
    const moek_format *format, *down;             /* down: of w_down and of h; NULL: format */
    int dtype, act;
    float alpha, beta, limit;                     /* defaults filled in */
    int up_layout;                               /* MOEK_UP_GATE_UP, _INTERLEAVED, _SWAPPED, _SEPARATE */
    int up_scales, inter_offset;                  /* moek.h */
    int ue8m0, router_weight_on_input;
    int rows_per_expert;                          /* slots beyond it are dropped; 0: none */
    const void *x;                                /* [tokens][hidden] T */
    const int32_t *ids;                           /* [tokens][slots]: row of the weights, or nobody */
    const float *weights;                         /* [tokens][slots] */
    const moek_weights *w;
    const void *addend;                           /* [tokens][hidden] T or NULL: shared_y */
    int x_stride, addend_stride;                  /* elements from a row to the next; 0: hidden */
} ref_layer_args;

/* How far an element of y may be from ref_layer, in parts of the rms of its row.  ref_layer rounds and quantizes where
 * the kernels do, so that what is left is
 *   - y rounded to T, 2^-bits of an entry that is up to 6 times the rms, and twice that where o falls to the next T;
 *   - the few h that f32 sums push over to the next code: a step of 2^(1 - bits) of h, in a sum over inter of which a
 *     term of twice the usual h and w is 4 / sqrt(inter) of the rms.  An integer's step is a 127th of the largest h,
 *     that is 2^-5 of a usual one.
 * That is four to six times the worst seen on the CPU.  sm90, sm89 and sm120 sum e4m3 to 13 bits, which moves more h,
 * and where a row has one scale, that scale (layer.h).  The worst seen on an H200: 0.8 of these bounds, where one h,
 * the largest of its row by far (gelu), fell to the next code: that step explained all of the row's error. */
static inline double ref_bound(const moek_format *f, int dtype, int inter, int arch)
{
    const ref_number *const h = ref_element(f->x, dtype);
    const double of_t = ldexp(18, -ref_t(dtype)->bits);
    const double of_h = ldexp(4, 1 - (h->kind == REF_FLOAT ? h->bits : h->width - 2)) / sqrt((double)inter);
    return of_t + of_h * (arch < MOEK_ARCH_SM89 || !format_quantizes(f) ? 1 : format_by_row(f) ? 14 : 8);
}

/* The format of what up reads, or down. */
static inline const moek_format *ref_layer_format(const ref_layer_args *l, int up)
{
    return up || !l->down ? l->format : l->down;
}
/* Rows of T -> what up and down read; the scales go to *scale.  The caller frees both. */
static inline void *ref_layer_quant(const ref_layer_args *l, const moek_format *f, const void *x, int stride, int rows,
                                    int cols, int offset, const float *weight, const float *fixed, void **scale)
{
    const int columns = f->x_scale.columns, groups = columns ? (offset + cols + columns - 1) / columns : 1;
    moek_quant_args q;
    memset(&q, 0, sizeof q);
    q.x_stride = stride;
    q.rows = rows, q.cols = cols, q.source_div = 1, q.dtype = l->dtype, q.x = x, q.row_weight = weight;
    q.static_scale = fixed, q.ue8m0 = l->ue8m0 && f->ue8m0, q.group_offset = offset;
    q.q = ref_alloc((size_t)rows * cols * 2);
    q.scale = *scale = ref_alloc(((size_t)rows * groups + 1) * sizeof(float));
    ref_quant(&q, f);
    return q.q;
}
static inline moek_gemm_args ref_layer_gemm(const ref_layer_args *l, const int32_t *offsets, const int32_t *order,
                                            int up)
{
    const int gated = ref_gated(l->act), inter = l->inter;
    moek_gemm_args g;
    memset(&g, 0, sizeof g);
    g.n = up ? inter : l->hidden, g.k = up ? l->hidden : inter, g.w_rows = up ? inter * (1 + gated) : l->hidden;
    g.experts = l->experts, g.dtype = l->dtype, g.rows.offsets = offsets;
    g.w.codes = up ? l->w->w_up : l->w->w_down, g.w.scales = up ? l->w->w_up_scale : l->w->w_down_scale;
    g.w.bias = up ? l->w->w_up_bias : l->w->w_down_bias;
    g.rows.order = up ? order : NULL, g.rows.div = l->slots, g.rows.out_order = up ? NULL : order;
    g.epilogue.act = l->act, g.epilogue.alpha = l->alpha, g.epilogue.beta = l->beta, g.epilogue.limit = l->limit;
    g.scales_separate = up && gated && l->up_scales, g.n_offset = up ? l->inter_offset : 0;
    g.k_offset = up ? 0 : l->inter_offset;
    if (up && l->up_layout == MOEK_UP_SEPARATE)
        g.gate.codes = l->w->w_gate, g.gate.scales = l->w->w_gate_scale, g.gate.bias = l->w->w_gate_bias;
    g.w_step = l->up_layout == MOEK_UP_INTERLEAVED ? 2 : 1;
    g.gate_first = l->up_layout == MOEK_UP_SWAPPED ? inter : 0;
    g.up_first = l->up_layout == MOEK_UP_SWAPPED ? 0 : l->up_layout == MOEK_UP_INTERLEAVED ? 1 : inter;
    g.w.global_scale = up ? l->w->w_up_global_scale : l->w->w_down_global_scale;
    g.w.zero_points = up ? l->w->w_up_zero : l->w->w_down_zero;
    if (format_x_second(ref_layer_format(l, up))) g.a_global_scale = up ? l->w->x_scale : l->w->h_scale;
    if (g.gate.codes) g.gate.global_scale = l->w->w_gate_global_scale, g.gate.zero_points = l->w->w_gate_zero;
    return g;
}
/* Sorted rows of each expert, as ref_sort gives them, less what overflows rows_per_expert.  Returns their number. */
static inline int ref_layer_sort(const ref_layer_args *l, int32_t *offsets, int32_t *order)
{
    const int slots = l->tokens * l->slots;
    int e, i, n, at = 0;
    for (e = 0; e < l->experts; e++) {
        offsets[e] = at;
        for (i = 0, n = 0; i < slots; i++)
            if (l->ids[i] == e && (!l->rows_per_expert || n < l->rows_per_expert)) order[at++] = i, n++;
    }
    return offsets[l->experts] = at;
}
/* up or down of all sorted rows, rounded to T. */
static inline uint16_t *ref_layer_step(const ref_layer_args *l, const moek_gemm_args *g, int up, int rows)
{
    const size_t n = (size_t)rows * g->n;
    double *y = (double *)ref_alloc(n * sizeof(double));
    uint16_t *t = (uint16_t *)ref_alloc(n * 2);
    size_t i;
    ref_gemm_(g, ref_layer_format(l, up), up, y, NULL);
#ifdef _OPENMP
#pragma omp parallel for if (n > 10000)
#endif
    for (i = 0; i < n; i++) t[i] = ref_to_t(y[i], l->dtype);
    free(y);
    return t;
}
/* y: [tokens][hidden], before the rounding to T.  x and h are quantized as the kernels do it, h and o rounded to T
 * once; so it is off only by f32 sums, and by the few h and o that these round to the next T. */
static inline void ref_layer(const ref_layer_args *l, double *y)
{
    const int slots = l->tokens * l->slots;
    int32_t *offsets = (int32_t *)ref_alloc(((size_t)l->experts + 1) * 4);
    int32_t *order = (int32_t *)ref_alloc((size_t)slots * 4);
    int32_t *kept = (int32_t *)ref_alloc((size_t)slots * 4);
    const int rows = ref_layer_sort(l, offsets, order);
    void *x_scale, *h_scale;
    void *x = ref_layer_quant(l, l->format, l->x, l->x_stride, l->tokens, l->hidden, 0,
                              l->router_weight_on_input ? l->weights : NULL, l->w->x_scale, &x_scale);
    moek_gemm_args up = ref_layer_gemm(l, offsets, order, 1), down = ref_layer_gemm(l, offsets, order, 0);
    moek_combine_args c;
    uint16_t *h, *o;
    void *hq;
    int i;
    up.a = x, up.a_scale = x_scale;
    h = ref_layer_step(l, &up, 1, rows);
    hq = ref_layer_quant(l, ref_layer_format(l, 0), h, 0, rows, l->inter, l->inter_offset, NULL, l->w->h_scale,
                         &h_scale);
    down.a = hq, down.a_scale = h_scale;
    for (i = 0; i < slots; i++) kept[i] = -1;
    for (i = 0; i < rows; i++) kept[order[i]] = l->ids[order[i]];
    o = ref_layer_step(l, &down, 0, slots);
    memset(&c, 0, sizeof c);
    c.tokens = l->tokens, c.topk = l->slots, c.hidden = l->hidden, c.experts = l->experts, c.dtype = l->dtype;
    c.rows = o, c.ids = kept, c.weights = l->router_weight_on_input ? NULL : l->weights, c.addend = l->addend;
    c.addend_stride = l->addend_stride;
    ref_combine(&c, y, NULL);
    free(offsets), free(order), free(kept), free(x), free(x_scale), free(h), free(hq), free(h_scale), free(o);
}
