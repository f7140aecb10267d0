/* moek/kernel/decode_smem.h -- shared memory of rows of `layer` for few tokens: how large its parts are, and whether
 * they fit.  Launchers lay it out so, and the plan asks which rows serve. */
#ifndef MOEK_KERNEL_DECODE_SMEM_H
#define MOEK_KERNEL_DECODE_SMEM_H
#include "../ops.h"

/* What a row has (moek/plan/decode.h finds it): bytes of shared memory; of them, for weights on their way; warps of a
 * block; pages of sums of a warp, or 0: a page for each unit of rows of w, and for each warp; whether weights are
 * fragments, or (2) blocks of files as such, with all scales in the ring. */
typedef struct moek_decode_room { int bytes, ring, warps, pages, fragments; } moek_decode_room;
/* Fragments: an eighth of the ring are scales on their way; behind them, with `more`, zero points, or scales of
 * activations, which are a 32nd.  (Rows that fit have fewer groups of 128 columns than that has places for.) */
static inline int moek_decode_scales(moek_decode_room room) { return room.ring / 8; }
static inline int moek_decode_beside(moek_decode_room room) { return room.ring / 32; }

/* Shared memory of a kernel, in bytes, one part behind the other: rows of x or h; factors (fragments:
 * scales and zero points on their way, scales of activations); pages of sums; weights on their way.  fits: the kernel
 * serves this many tokens of this shape.  bits: of a weight; more: with fragments, that they have zero
 * points, or activations have scales; blocks: one an SM. */
typedef struct moek_decode_smem { int fits, act, factors, pages; } moek_decode_smem;
static inline moek_decode_smem moek_decode_smem_of_fragments(moek_decode_room room, int tokens, int topk, int experts,
                                                             int hidden, int inter, int gated, int more, int blocks)
{
    const int factors = room.fragments > 1 ? 0 : moek_decode_scales(room) + (more ? moek_decode_beside(room) : 0);
    const long long slots = (long long)tokens * topk, used = slots < experts ? slots : experts;
    const long long x = tokens * ((hidden + 127LL) / 128 * 256 + 16), h = slots * ((inter + 127LL) / 128 * 256 + 16);
    /* A page for each unit of 16 rows of w, and for each warp; or so many a warp, of the tokens that there are. */
    const long long up = (used * (inter / (gated ? 8 : 16)) + blocks - 1) / blocks + room.warps;
    const long long down = (hidden / 16 + blocks - 1) / blocks + room.warps;
    const long long most = up > down ? up : down, own = 128LL * ((tokens + 1) / 2) * room.pages * room.warps;
    const long long pages = room.pages ? own : 512 * most;
    const long long act = x > h ? x : h;
    moek_decode_smem smem = {0, 0, 0, 0};
    if (tokens > 8 || slots > MOEK_DECODE_SLOTS || act + factors + pages + room.ring > room.bytes)
        return smem;
    smem.fits = 1; smem.act = (int)act; smem.factors = factors; smem.pages = (int)pages;
    return smem;
}
static inline moek_decode_smem moek_decode_smem_of(moek_decode_room room, int tokens, int topk, int experts, int hidden,
                                                   int inter, int gated, int bits, int more, int blocks)
{
    const int element = bits < 8 ? 1 : bits / 8, warps = room.warps;
    const long long slots = (long long)tokens * topk, used = slots < experts ? slots : experts;
    const long long x_steps = ((long long)hidden * element + 255) / 256;
    const long long h_steps = ((long long)inter * element + 255) / 256;
    const long long step = 512 / element;                      /* in two bytes an element */
    const long long x = tokens * (x_steps * step + 64), h = slots * (h_steps * step + 64);     /* 64: against banks */
    const long long up = ((used * ((inter + 7) / 8) + blocks - 1) / blocks + 1) * (gated ? 2 : 1);      /* of halves */
    const long long down = ((hidden + 7) / 8 + blocks - 1) / blocks;
    const long long act = x > h ? x : h, factors = 32 * (x_steps > used * h_steps ? x_steps : used * h_steps);
    /* Of two halves; besides, a warp has a page in up, three in down. */
    const long long pages = 128 * (up + 2 * warps > 2 * down + 6 * warps ? up + 2 * warps : 2 * down + 6 * warps);
    moek_decode_smem smem = {0, 0, 0, 0};
    if (room.fragments)
        return moek_decode_smem_of_fragments(room, tokens, topk, experts, hidden, inter, gated, more, blocks);
    if (tokens > 4 || slots > MOEK_DECODE_SLOTS || act + factors + pages + room.ring > room.bytes) return smem;
    smem.fits = 1; smem.act = (int)act; smem.factors = (int)factors; smem.pages = (int)pages;
    return smem;
}
#endif
