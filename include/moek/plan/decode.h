/* moek/plan/decode.h -- what a row of `layer` for few tokens has of a block, for moek_decode_smem_of. */
#ifndef MOEK_PLAN_DECODE_H
#define MOEK_PLAN_DECODE_H
#include "../stages.h"
#include "../kernel/decode_smem.h"

static inline moek_decode_room moek_decode_room_of(const moek_kernel *k)
{
    const int in_blocks = moek_format_of(k->quant)->only_blocks &&
                          (!k->down_quant || moek_format_of(k->down_quant)->only_blocks);
    moek_decode_room room;
    room.bytes = k->shared_bytes; room.ring = k->ring; room.warps = k->threads / 32; room.pages = k->pages;
    room.fragments = !(k->reads & MOEK_READS_FRAGMENTS) ? 0 : in_blocks ? 2 : 1;
    return room;
}
#endif
