/* blocks.h -- blocks of GGUF files in double, from their facts alone (moek/format.h: moek_block): what a column holds,
 * and random ones.  ref.h includes this. */
#ifndef BLOCKS_H
#define BLOCKS_H

/* Where number n lies in a plane: the byte that its lowest bit is in, and the shift there. */
static inline int block_byte(const moek_plane *p, int n, int *shift)
{
    const int in_unit = n % p->unit, part = in_unit / p->run, unit = p->unit * p->bits / 8;
    const int bit = p->shift + part * p->by;
    *shift = bit % 8;
    return p->at + n / p->unit * unit + part * p->step + in_unit % p->run + bit / 8;
}
/* Its first bit, counted in bits of the block. */
static inline int block_bit(const moek_plane *p, int n)
{
    int shift;
    const int byte = block_byte(p, n, &shift);
    return byte * 8 + shift;
}
/* `bits` that lie side by side from this one on. */
static inline unsigned block_bits(const uint8_t *block, int bit, int bits)
{
    const uint8_t *const from = block + bit / 8;
    const int shift = bit % 8;
    unsigned word = 0;
    int i;
    if (shift + bits <= 8) return (unsigned)*from >> shift & ((1u << bits) - 1);       /* most are */
    for (i = 0; 8 * i < shift + bits; i++) word |= (unsigned)from[i] << 8 * i;
    return word >> shift & ((1u << bits) - 1);
}
static inline unsigned block_get(const moek_plane *planes, int count, const uint8_t *block, int n)
{
    unsigned code = 0;
    int p, at = 0;
    for (p = 0; p < count; at += planes[p++].bits)
        code |= block_bits(block, block_bit(&planes[p], n), planes[p].bits) << at;
    return code;
}
/* block_bit of the code of each column: made once, for a row is decoded column by column. */
enum { BLOCK_COLUMNS = 256, BLOCK_TYPES = 64 };
typedef int block_columns[MOEK_MAX_PLANES][BLOCK_COLUMNS];
static inline block_columns *block_columns_of(const moek_block *b)
{
    static block_columns *made[BLOCK_TYPES];
    block_columns *to;
    int p, n;
    if (b->columns > BLOCK_COLUMNS || b->type >= BLOCK_TYPES) abort();
    if (made[b->type]) return made[b->type];
    to = (block_columns *)ref_alloc(sizeof *to);
    for (p = 0; p < b->planes; p++) for (n = 0; n < b->columns; n++) (*to)[p][n] = block_bit(&b->plane[p], n);
    return made[b->type] = to;
}
static inline void block_put(const moek_plane *planes, int count, uint8_t *block, int n, unsigned code)
{
    int p, i, shift, at = 0;
    for (p = 0; p < count; at += planes[p++].bits) {
        uint8_t *const to = block + block_byte(&planes[p], n, &shift);
        const unsigned mask = ((1u << planes[p].bits) - 1) << shift, word = code >> at << shift & mask;
        for (i = 0; 8 * i < shift + planes[p].bits; i++)
            to[i] = (uint8_t)((to[i] & ~(mask >> 8 * i)) | word >> 8 * i);
    }
}
/* An f16 in it. */
static inline unsigned block_half(const uint8_t *block, int at) { return block[at] | (unsigned)block[at + 1] << 8; }
static inline void block_put_half(uint8_t *block, int at, double x)
{
    const unsigned code = ref_encode(&ref_numbers[REF_FP16], x);
    block[at] = (uint8_t)(code & 255), block[at + 1] = (uint8_t)(code >> 8);
}

/* A scale or a minimum of column c, with what is on top. */
static inline double block_factor(const moek_block_scale *s, const uint8_t *block, int c)
{
    const unsigned code = block_get(s->plane, s->planes, block, c / s->of.columns);
    const double of = ref_decode(ref_scale_type(s->of.type, 0), code);
    return s->top.type ? of * ref_decode(&ref_numbers[REF_FP16], block_half(block, s->top_at)) : of;
}
/* The weight of a decoded code, of its scale and its minimum. */
static inline double block_sum(const moek_block *b, double code, double scale, double min)
{
    return b->sign ? code * scale + b->sign * min : code * scale;
}
/* The weight in column c of a block. */
static inline double block_weight(const moek_format *f, const moek_block *b, const uint8_t *block, int c)
{
    const double code = ref_decode(ref_element(f->w, 0), block_get(b->plane, b->planes, block, c));
    return block_sum(b, code, block_factor(&b->scale, block, c), b->sign ? block_factor(&b->min, block, c) : 0);
}
/* What a tiled weight in bf16, of such a scale and minimum, may be off by, before the weight is rounded once: a scale
 * is the sum of two bf16.  With a minimum, what the minimum is more than a whole number of scales (one below 200, and
 * in parts of 2^(8 - bits) where that number is a code) is a bf16, too, and rounded once more with products that are
 * little beside it. */
static inline double block_off(const moek_block *b, int bits, double w, double scale, double min)
{
    const double off = fabs(w) * ldexp(1.2, -15);
    double rest = fabs(scale) * 0.505;
    if (!b->sign) return off;
    if (-b->sign * min / scale > 0.01 && -b->sign * min / scale < (1 << bits) - 0.01) rest /= 1 << (8 - bits);
    if (fabs(min) > 199 * fabs(scale)) rest += fabs(min) - 199 * fabs(scale);
    return off + rest * ldexp(1.05, -7);
}
/* Weights of a row, which has so many columns; and, if off is not NULL, block_off of them.  Codes are decoded once a
 * row, a scale and a minimum once for the columns which share them: block by block and bit by bit this was most of the
 * time that a row of the kernel table took on a GPU. */
static inline void block_row(const moek_format *f, const void *rows, size_t row, int columns, double *to, double *off)
{
    const moek_block *const b = moek_block_of(f->file_type);
    const uint8_t *block = (const uint8_t *)rows + row * moek_weight_bytes(f, MOEK_WEIGHTS_BLOCKS, (size_t)columns);
    const int bits = ref_element(f->w, 0)->width;
    block_columns *const at = block_columns_of(b);
    double number[256], scale = 0, min = 0;
    int c, i;
    for (i = 0; i < 1 << bits; i++) number[i] = ref_decode(ref_element(f->w, 0), (unsigned)i);
    for (; columns > 0; columns -= b->columns, block += b->bytes, to += b->columns, off += off ? b->columns : 0)
        for (c = 0; c < b->columns && c < columns; c++) {
            unsigned code = 0;
            int p, low = 0;
            for (p = 0; p < b->planes; low += b->plane[p++].bits)
                code |= block_bits(block, (*at)[p][c], b->plane[p].bits) << low;
            if (c % b->scale.of.columns == 0) scale = block_factor(&b->scale, block, c);
            if (b->sign && c % b->min.of.columns == 0) min = block_factor(&b->min, block, c);
            to[c] = block_sum(b, number[code], scale, min);
            if (off) off[c] = block_off(b, bits, to[c], scale, min);
        }
}

/* Mean and deviation of an element's numbers, if all codes are as frequent. */
static inline void block_spread(const ref_number *n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    unsigned code;
    for (code = 0; code < 1u << n->width; code++) {
        const double v = ref_decode(n, code);
        sum += v, squares += v * v;
    }
    *mean = sum / (1 << n->width);
    *deviation = sqrt(squares / (1 << n->width) - *mean * *mean);
}
/* xorshift32: the next of a list of random numbers; never 0. */
static inline uint32_t block_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}
/* A code of a scale that is not small, of either sign if it has one. */
static inline unsigned block_some(const ref_number *n, uint32_t *state)
{
    unsigned code;
    do code = block_random(state) >> 7 & ((1u << n->width) - 1);
    while (!(fabs(ref_decode(n, code)) >= ref_largest(n) / 4));
    return code;
}
/* Random scales of a block, about `size` each, and of one sign if there are minimums. */
static inline void block_fill_scale(const moek_block_scale *s, uint8_t *block, int groups, double size,
                                    uint32_t *state)
{
    const ref_number *const n = ref_scale_type(s->of.type, 0);
    const double by = (0.5 + block_random(state) * ldexp(1, -32)) * size;
    int g;
    if (s->top.type) block_put_half(block, s->top_at, by / (0.6 * ref_largest(n)));
    for (g = 0; g < groups; g++)
        block_put(s->plane, s->planes, block, g, s->top.type ? block_some(n, state) : ref_encode(n, by));
}
/* Random weights of a deviation of about `size`; the same for the same seed. */
static inline void block_fill(const moek_format *f, void *rows, size_t count, size_t columns, double size,
                              uint32_t seed)
{
    const moek_block *const b = moek_block_of(f->file_type);
    const size_t all = count * moek_weight_bytes(f, MOEK_WEIGHTS_BLOCKS, columns) / (size_t)b->bytes;
    const int positive = b->sign || b->scale.of.type == MOEK_SCALE_TYPE_E8M0 ||        /* scales without a sign */
                         b->scale.of.type == MOEK_SCALE_TYPE_E4M3;
    uint32_t state = seed * 2654435761u | 1;
    double mean, deviation;
    size_t i;
    int j;
    block_spread(ref_element(f->w, 0), &mean, &deviation);
    for (i = 0; i < all; i++) {
        uint8_t *const block = (uint8_t *)rows + i * (size_t)b->bytes;
        const double scale = (positive || block_random(&state) & 1 ? 1 : -1) * size / deviation;
        for (j = 0; j < b->bytes; j++) block[j] = (uint8_t)(block_random(&state) >> 9);
        block_fill_scale(&b->scale, block, b->columns / b->scale.of.columns, scale, &state);
        if (b->sign)
            block_fill_scale(&b->min, block, b->columns / b->min.of.columns, -b->sign * mean * scale, &state);
    }
}
#endif
