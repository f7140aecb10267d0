/* emu_amx.h -- AMX's tiles in plain C, as Intel's manual describes palette 1: eight tiles of at most 16 rows of 64
 * bytes.  What the processor answers with a fault ends the program with a sentence.  Include before moek.h: then AMX is
 * there on any x86-64 with AVX-512. */
#ifndef EMU_AMX_H
#define EMU_AMX_H
#if defined(__x86_64__) && defined(__linux__)
#define MOEK_EMU_AMX
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct emu_tile { int rows, bytes; uint8_t at[16][64]; } emu_tile;
static __thread struct { int palette; emu_tile tile[8]; } emu_amx;

static inline void emu_amx_must(int right, const char *what)
{
    if (right) return;
    printf("AMX: %s\n", what);
    exit(1);
}
static inline emu_tile *emu_amx_tile(int of)
{
    emu_amx_must(emu_amx.palette == 1 && emu_amx.tile[of].rows, "a tile that no config has");
    return &emu_amx.tile[of];
}
/* ldtilecfg: byte 0 palette, 1 the row to begin with, 2 to 15 zeros; 16 on bytes of rows, 48 on rows. */
static inline void emu_tile_config(const void *config)
{
    const uint8_t *const c = (const uint8_t *)config;
    int i;
    emu_amx.palette = c[0];
    emu_amx_must(c[0] == 1 && !c[1], "only palette 1, from row 0 on");
    for (i = 2; i < 16; i++) emu_amx_must(!c[i], "config bytes 2 to 15 are not 0");
    for (i = 0; i < 8; i++) {
        const int bytes = c[16 + 2 * i] | c[17 + 2 * i] << 8, rows = c[48 + i];
        emu_amx_must(bytes <= 64 && rows <= 16 && !bytes == !rows, "a tile is too large, or has but one size");
        memset(&emu_amx.tile[i], 0, sizeof emu_amx.tile[i]);
        emu_amx.tile[i].rows = rows;
        emu_amx.tile[i].bytes = bytes;
    }
    for (i = 8; i < 16; i++) emu_amx_must(!c[16 + 2 * i] && !c[17 + 2 * i] && !c[48 + i], "palette 1 has 8 tiles");
}
static inline void emu_tile_release(void) { memset(&emu_amx, 0, sizeof emu_amx); }
static inline void emu_tile_zero(int of)
{
    emu_tile *const t = emu_amx_tile(of);
    memset(t->at, 0, sizeof t->at);
}
static inline void emu_tile_load(int of, const void *from, long stride)
{
    emu_tile *const t = emu_amx_tile(of);
    int r;
    emu_tile_zero(of);
    for (r = 0; r < t->rows; r++) memcpy(t->at[r], (const char *)from + r * stride, (size_t)t->bytes);
}
static inline void emu_tile_store(int of, void *to, long stride)
{
    emu_tile *const t = emu_amx_tile(of);
    int r;
    for (r = 0; r < t->rows; r++) memcpy((char *)to + r * stride, t->at[r], (size_t)t->bytes);
}
/* tdpbssd, tdpbsud: sums of fours of bytes of a (with signs) times those of b (with signs, or without). */
static inline void emu_tile_products(int to, int of_a, int of_b, int sign)
{
    emu_tile *const c = emu_amx_tile(to), *const a = emu_amx_tile(of_a), *const b = emu_amx_tile(of_b);
    int m, k, n, i;
    emu_amx_must(to != of_a && to != of_b && of_a != of_b, "a tile twice in one instruction");
    emu_amx_must(c->rows == a->rows && c->bytes == b->bytes && a->bytes == 4 * b->rows, "sizes do not fit");
    emu_amx_must(c->bytes % 4 == 0 && a->bytes % 4 == 0, "no whole fours");
    for (m = 0; m < c->rows; m++)
        for (n = 0; n < c->bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, c->at[m] + 4 * n, 4);
            for (k = 0; k < a->bytes / 4; k++)
                for (i = 0; i < 4; i++) {
                    const int of_w = b->at[k][4 * n + i];
                    sum += (uint32_t)((int8_t)a->at[m][4 * k + i] * (sign ? (int8_t)of_w : of_w));
                }
            memcpy(c->at[m] + 4 * n, &sum, 4);
        }
    for (m = c->rows; m < 16; m++) memset(c->at[m], 0, 64);
}
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(config) emu_tile_config(config)
#define _tile_release() emu_tile_release()
#define _tile_zero(of) emu_tile_zero(of)
#define _tile_loadd(of, from, stride) emu_tile_load(of, from, stride)
#define _tile_stored(of, to, stride) emu_tile_store(of, to, stride)
#define _tile_dpbssd(to, a, b) emu_tile_products(to, a, b, 1)
#define _tile_dpbsud(to, a, b) emu_tile_products(to, a, b, 0)
#endif
#endif
