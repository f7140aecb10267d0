/* test_blocks.c -- blocks of GGUF files: what the CPU's functions and blocks.h make of them.  Against what the package
 * gguf makes (tests/data/gguf_golden.tsv, which make_gguf_golden.py writes), bit by bit, and against each other.
 *
 *   cc -std=c99 -O2 -Iinclude tests/rows/test_blocks.c -lm -o test_blocks && ./test_blocks [FOLDER OF THE FILE] */
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#define MOEK_ARCH 0
#endif
#include "moek.h"
#include "moek/kernel/panel.h"
#include <stdio.h>
#include <stdlib.h>
#include "../check.h"
#include "../oracle/ref.h"

enum { COLUMNS = 256, BYTES = 256 };

typedef void (*decoder)(float *to, const uint8_t *block, int part);
#define DECODER(name, type, part) { moek_block_##name##_, type, part },
static const struct { decoder run; int type, part; } decoders[] = { MOEK_EACH_BLOCK_(DECODER) };
enum { DECODERS = sizeof decoders / sizeof *decoders };

static const moek_format *format_of(int type)
{
    const moek_format *const f = moek_format_of_file(type);
    CHECK(f && f->file_type == type && f->x_bits == 16, "type %d has no format", type);
    return f;
}
/* The block in memory of its own, so that a read beside it is found. */
static void decode(int d, const uint8_t *block, float to[COLUMNS])
{
    const moek_block *const b = moek_block_of(decoders[d].type);
    uint8_t *const own = (uint8_t *)malloc((size_t)b->bytes);
    int part;
    memcpy(own, block, (size_t)b->bytes);
    for (part = 0; part < b->columns / decoders[d].part; part++)
        decoders[d].run(to + part * decoders[d].part, own, part);
    free(own);
}
static int same_bits(float have, float want)
{
    return isnan(want) ? isnan(have) : moek_bits_(have) == moek_bits_(want) || (have == 0 && want == 0);
}

static int from_hex(const char *hex, uint8_t *to, int most)
{
    static const char digits[] = "0123456789abcdef";
    int n = 0;
    for (; n < most && strchr(digits, hex[0]) && hex[0] && hex[1]; n++, hex += 2)
        to[n] = (uint8_t)((strchr(digits, hex[0]) - digits) * 16 + (strchr(digits, hex[1]) - digits));
    return n;
}
/* What gguf says is not what moek does: a scale without a sign has the sign of its bit 7 here, and is NaN where the
 * type says so. */
static float means(const moek_block *b, const uint8_t *block, int c, float theirs)
{
    const double scale = block_factor(&b->scale, block, c);
    if (b->scale.of.type == MOEK_SCALE_TYPE_FP16 || b->scale.top.type) return theirs;
    return isnan(scale) ? NAN : scale < 0 ? -theirs : theirs;
}
/* A line of the file: its block as the CPU has it, and as blocks.h has it. */
static void golden_line(const char *line, int seen[DECODERS])
{
    static uint8_t bits[4 * COLUMNS];
    const int type = atoi(line);
    const moek_block *const b = moek_block_of(type);
    const char *const hex = strchr(line, '\t') + 1, *const wanted = strchr(hex, '\t') + 1;
    const moek_format *f;
    uint8_t block[BYTES];
    float have[COLUMNS], want[COLUMNS];
    int d = 0, c, wrong = 0, others = 0;
    if (!b) return;                                    /* F32 and the like */
    if (!CHECK(from_hex(hex, block, BYTES) == b->bytes && from_hex(wanted, bits, 4 * COLUMNS) == 4 * b->columns,
               "type %d of gguf_golden.tsv", type)) return;
    for (c = 0; c < b->columns; c++)
        want[c] = moek_float_(bits[4 * c] | (uint32_t)bits[4 * c + 1] << 8 | (uint32_t)bits[4 * c + 2] << 16 |
                              (uint32_t)bits[4 * c + 3] << 24);
    for (c = 0; c < b->columns; c++) want[c] = means(b, block, c, want[c]);
    while (d < DECODERS && decoders[d].type != type) d++;
    if (!(f = format_of(type)) || !CHECK(d < DECODERS, "%s: nothing decodes it", b->name)) return;
    seen[d]++;
    decode(d, block, have);
    for (c = 0; c < b->columns; c++) {
        wrong += !same_bits(have[c], want[c]);
        others += !same_bits((float)block_weight(f, b, block, c), want[c]);
    }
    CHECK(!wrong && !others, "%s, block %d: %d columns of the CPU, %d of blocks.h are not gguf's", b->name, seen[d],
          wrong, others);
}
static void test_golden(const char *folder)
{
    static char line[1 << 14], path[512];
    int seen[DECODERS] = { 0 }, d;
    FILE *file;
    snprintf(path, sizeof path, "%s/gguf_golden.tsv", folder);
    file = fopen(path, "r");
    if (!CHECK(file != NULL, "can not read %s", path)) return;
    while (fgets(line, sizeof line, file)) golden_line(line, seen);
    fclose(file);
    for (d = 0; d < DECODERS; d++) CHECK(seen[d] >= 4, "%d blocks of type %d", seen[d], decoders[d].type);
}

/* Random bytes, scales too. */
static void test_random(int d)
{
    const moek_block *const b = moek_block_of(decoders[d].type);
    const moek_format *const f = format_of(decoders[d].type);
    int i, j, c, wrong = 0;
    for (i = 0; f && i < 2000; i++) {
        uint8_t block[BYTES];
        float have[COLUMNS];
        for (j = 0; j < b->bytes; j++) block[j] = (uint8_t)rng_below(256);
        decode(d, block, have);
        for (c = 0; c < b->columns; c++) {
            const double want = block_weight(f, b, block, c);
            wrong += !same_bits(have[c], (float)want) && !(fabs(have[c] - want) <= ldexp(fabs(want), -24));
        }
    }
    CHECK(!wrong, "%s: %d columns of random blocks", b->name, wrong);
}
/* Rows of blocks as codes, scales and minimums, by each set of instructions. */
#if MOEK_HAVE_X86_
#define UNPACK(name, type, part) { type, { moek_unpack_##name##_plain_, moek_unpack_##name##_avx2_ } },
static const int unpack_arch[2] = { MOEK_ARCH_CPU, MOEK_ARCH_AVX2 };
#elif MOEK_HAVE_NEON_
#define UNPACK(name, type, part) { type, { moek_unpack_##name##_plain_, moek_unpack_##name##_neon_ } },
static const int unpack_arch[2] = { MOEK_ARCH_CPU, MOEK_ARCH_NEON };
#else
#define UNPACK(name, type, part) { type, { moek_unpack_##name##_plain_, NULL } },
static const int unpack_arch[2] = { MOEK_ARCH_CPU, MOEK_ARCH_AVX2 };
#endif
static const struct { int type; moek_unpack_ *by[2]; } unpackers[] = { MOEK_EACH_BLOCK_(UNPACK) };
/* How many times its value a code is as a whole number. */
static int parts_of(const moek_format *f)
{
    const ref_number *const n = ref_element(f->w, 0);
    double least = 1;
    unsigned code;
    for (code = 0; code < 1u << n->width; code++) {
        const double v = fabs(ref_decode(n, code));
        if (v > 0 && v < least) least = v;
    }
    return (int)(1 / least);
}
/* `columns` from column `begin` of the first block on; the blocks in memory of their own. */
static void test_unpack(int d, int begin, int columns)
{
    enum { MOST = 1024, GROUPS = MOST / 16 };
    const moek_block *const b = moek_block_of(unpackers[d].type);
    const moek_format *const f = format_of(unpackers[d].type);
    const int blocks = (begin + columns + b->columns - 1) / b->columns;
    const int groups = blocks * b->columns / b->scale.of.columns;
    const size_t bytes = (size_t)blocks * (size_t)b->bytes;
    uint8_t *const own = (uint8_t *)malloc(bytes);
    const int parts = parts_of(f);
    int set, c, wrong = 0;
    size_t i;
    if (!f || !own) { CHECK(0, "no format, or no memory"); free(own); return; }
    for (i = 0; i < bytes; i++) own[i] = (uint8_t)rng_below(256);
    for (set = 0; set < 2; set++) {
        int8_t codes[MOST + 1];
        float scale[GROUPS + 1], min[GROUPS + 1];
        if (!unpackers[d].by[set] || moek_lacks_(unpack_arch[set])) continue;
        codes[columns] = 99; scale[groups] = min[groups] = 99;
        unpackers[d].by[set](codes, scale, min, own, begin, columns);
        CHECK(codes[columns] == 99 && scale[groups] == 99 && min[groups] == 99, "%s, set %d: more is written", b->name,
              unpack_arch[set]);
        for (c = 0; c < columns; c++) {
            const uint8_t *const block = own + (begin + c) / b->columns * b->bytes;
            const int at = (begin + c) % b->columns, g = (begin + c) / b->scale.of.columns;
            const double code = ref_decode(ref_element(f->w, 0), block_get(b->plane, b->planes, block, at));
            wrong += codes[c] != parts * code ||
                     !same_bits(scale[g], (float)(block_factor(&b->scale, block, at) / parts)) ||
                     (b->sign && !same_bits(min[g], (float)(b->sign * block_factor(&b->min, block, at))));
        }
    }
    CHECK(!wrong, "%s, %d columns from %d on: %d are wrong", b->name, columns, begin, wrong);
    free(own);
}
static void test_unpacks(int d)
{
    const moek_block *const b = moek_block_of(unpackers[d].type);
    int columns, i;
    for (i = 0; i < 20; i++) {
        for (columns = b->columns; columns <= 1024; columns += b->columns) test_unpack(d, 0, columns);
        if (b->columns > 128) test_unpack(d, 0, 128), test_unpack(d, 128, 128);
    }
}
/* 16 rows of blocks in panels, by each set of instructions. */
#if MOEK_HAVE_X86_
#define UNITS(name, element, kind) \
    { #name, { &moek_units_##name##_cpu_, &moek_units_##name##_avx2_, &moek_units_##name##_avx512_ } },
static const int unit_arch[3] = { MOEK_ARCH_CPU, MOEK_ARCH_AVX2, MOEK_ARCH_AVX512 };
#elif MOEK_HAVE_NEON_
#define UNITS(name, element, kind) { #name, { &moek_units_##name##_cpu_, &moek_units_##name##_neon_, NULL } },
static const int unit_arch[3] = { MOEK_ARCH_CPU, MOEK_ARCH_NEON, MOEK_ARCH_NEON };
#else
#define UNITS(name, element, kind) { #name, { &moek_units_##name##_cpu_, NULL, NULL } },
static const int unit_arch[3] = { MOEK_ARCH_CPU, MOEK_ARCH_AVX2, MOEK_ARCH_AVX512 };
#endif
static const struct { const char *name; const moek_units_ *by[3]; } units[] = { MOEK_EACH_UNIT_(UNITS) };
enum { UNIT_FORMATS = sizeof units / sizeof *units };
static const moek_block *block_named(const char *name)
{
    int d;
    size_t i;
    for (d = 0; d < DECODERS; d++) {
        const moek_block *const b = moek_block_of(decoders[d].type);
        for (i = 0; name[i] && (name[i] | 32) == (b->name[i] | 32); i++) continue;
        if (!name[i] && !b->name[i]) return b;
    }
    return NULL;
}
/* Parts first to first + parts - 1 of a unit, which lies in memory of its own; rows: its rows as a file has them. */
static void test_parts(int u, int set, const uint8_t *unit, const uint8_t *rows, int all, int first, int parts, int raw)
{
    enum { MOST = MOEK_UNIT_PARTS * MOEK_PART_WORDS, GROUPS = 16 * 16 };
    static uint32_t words[MOST + 1];
    static float scale[GROUPS + 1], min[GROUPS + 1];
    const moek_block *const b = block_named(units[u].name);
    const moek_format *const f = format_of(b->type);
    const int groups = parts * 32 / b->scale.of.columns * 16, row_bytes = all * 32 / b->columns * b->bytes;
    int r, c, wrong = 0;
    words[parts * MOEK_PART_WORDS] = 99; scale[groups] = min[groups] = 99;
    units[u].by[set]->parts(words, scale, min, unit, all, first, parts, raw);
    CHECK(words[parts * MOEK_PART_WORDS] == 99 && scale[groups] == 99 && min[groups] == 99, "%s: more is written",
          b->name);
    for (r = 0; r < 16; r++)
        for (c = 0; c < 32 * parts; c++) {
            const int from = 32 * first + c, at = from % b->columns, g = c / b->scale.of.columns * 16 + r;
            const uint8_t *const block = rows + r * row_bytes + from / b->columns * b->bytes;
            const double code = ref_decode(ref_element(f->w, 0), block_get(b->plane, b->planes, block, at));
            const int byte = (int)(words[c / 4 * 16 + r] >> c % 4 * 8 & 255);
            const int offset = raw ? units[u].by[set]->offset : 0;
            wrong += byte != (((int)code + offset) & 255) || (raw && offset && code + offset < 0) ||
                     !same_bits(scale[g], (float)block_factor(&b->scale, block, at)) ||
                     (b->sign && !same_bits(min[g], (float)(b->sign * block_factor(&b->min, block, at))));
        }
    CHECK(!wrong, "%s in panels, set %d, parts %d to %d of %d, raw %d: %d are wrong", b->name, unit_arch[set], first,
          first + parts - 1, all, raw, wrong);
}
static void test_units(int u)
{
    const moek_block *const b = block_named(units[u].name);
    const moek_file_panel_ in_file = b ? moek_file_panel_of_(b) : moek_file_panel_of_(moek_block_of(2));
    int all, set, r, part, raw;
    if (!CHECK(b != NULL, "no block has the name %s", units[u].name)) return;
    for (all = b->columns / 32; all <= MOEK_UNIT_PARTS; all++) {
        const size_t row = (size_t)(all * 32 / b->columns * b->bytes), bytes = 16 * row;
        uint8_t *const rows = (uint8_t *)malloc(bytes), *const unit = (uint8_t *)malloc(bytes);
        uint8_t *const back = (uint8_t *)malloc(bytes);
        size_t i;
        if (!CHECK(rows && unit && back, "no memory")) return;
        for (i = 0; i < bytes; i++) rows[i] = (uint8_t)rng_below(256), unit[i] = back[i] = 0;
        for (r = 0; r < 16; r++) moek_file_panel_row_(&in_file, unit, rows + (size_t)r * row, row, r, 0);
        for (r = 0; r < 16; r++) moek_file_panel_row_(&in_file, unit, back + (size_t)r * row, row, r, 1);
        CHECK(!memcmp(rows, back, bytes), "%s: panels and back, %d parts", b->name, all);
        for (set = 0; set < 3; set++)
            for (raw = 0; raw < 2 && units[u].by[set] && !moek_lacks_(unit_arch[set]); raw++) {
                test_parts(u, set, unit, rows, all, 0, all, raw);
                for (part = 0; part < all; part += 4)
                    test_parts(u, set, unit, rows, all, part, all - part < 4 ? all - part : 4, raw);
            }
        free(rows); free(unit); free(back);
    }
}
/* Each bit of a block belongs to one number, but for bits of scales on top of others: a change of one bit shows. */
static void test_bits(int d)
{
    const moek_block *const b = moek_block_of(decoders[d].type);
    uint8_t used[8 * BYTES] = { 0 };
    const moek_block_scale *const scales[2] = { &b->scale, &b->min };
    int n, i, p, s, once = 1;
    for (p = 0; p < b->planes; p++)
        for (n = 0; n < b->columns; n++)
            for (i = 0; i < b->plane[p].bits; i++) used[block_bit(&b->plane[p], n) + i]++;
    for (s = 0; s < 1 + (b->sign != 0); s++) {
        for (p = 0; p < scales[s]->planes; p++)
            for (n = 0; n < b->columns / scales[s]->of.columns; n++)
                for (i = 0; i < scales[s]->plane[p].bits; i++) used[block_bit(&scales[s]->plane[p], n) + i]++;
        for (i = 0; scales[s]->top.type && i < 16; i++) used[8 * scales[s]->top_at + i]++;
    }
    for (i = 0; i < 8 * b->bytes; i++) once &= used[i] == 1;
    for (; i < 8 * BYTES; i++) once &= !used[i];
    CHECK(once, "%s: its bits are not each one number's", b->name);
}
/* What the table says, in numbers that engines size arrays by. */
static void test_sizes(void)
{
    int i, d;
    for (d = 0; d < DECODERS; d++) {
        const moek_block *const b = moek_block_of(decoders[d].type);
        const moek_format *const f = format_of(b->type);
        CHECK(f->file_bytes == b->bytes && f->file_columns == b->columns &&
              moek_weight_bytes(f, MOEK_WEIGHTS_BLOCKS, 3 * (size_t)b->columns) == 3 * (size_t)b->bytes, "%s", f->name);
    }
    CHECK(moek_block_of(16) == NULL && moek_format_of_file(16) == NULL, "iq2_xxs is served");
    CHECK(moek_format_of_file(1)->number == format_of_t(MOEK_DTYPE_FP16) &&
          moek_format_of_file(30)->number == format_of_t(MOEK_DTYPE_BF16), "F16 and BF16 of a file");
    for (i = 0; i < FORMATS; i++) {
        const moek_format *const f = format_at(i);
        if (f->only_blocks) continue;
        CHECK(moek_weight_bytes(f, 0, 512) == moek_element_bytes(f->w, 512), "%s: bytes of a row", f->name);
    }
}

int main(int argc, char **argv)
{
    int d;
    test_golden(argc > 1 ? argv[1] : "tests/data");
    for (d = 0; d < DECODERS; d++) test_random(d), test_bits(d), test_unpacks(d);
    for (d = 0; d < UNIT_FORMATS; d++) test_units(d);
    test_sizes();
    return check_end();
}
