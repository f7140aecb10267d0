/* moek/kernel/blocks.h -- blocks of GGUF files on GPUs: what lies in them at multiples of two bytes, or of four. */
#ifndef MOEK_BLOCKS_GPU_H
#define MOEK_BLOCKS_GPU_H
#include "ptx.h"

/* Four bytes at p, which is a multiple of ALIGN. */
template <int ALIGN> MOEK_DEVICE uint32_t moek_block_word_(const unsigned char *p)
{
    if constexpr (ALIGN >= 4) return *(const uint32_t *)p;
    else return *(const uint16_t *)p | (uint32_t)*(const uint16_t *)(p + 2) << 16;
}
MOEK_DEVICE float moek_block_half_(const unsigned char *p)
{
    float f[2];
    moek_from_t2_(f, *(const uint16_t *)p, MOEK_DTYPE_FP16);
    return f[0];
}
/* Bits 0 to 3 of `bits`, each to bit 0 of a byte. */
MOEK_DEVICE uint32_t moek_bits_apart_(uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

/* Four codes of a byte each -> two pairs of T: (code - MIDDLE) times 2^-6 in bf16, 2^-9 in fp16, exactly.  A byte is a
 * subnormal T. */
enum { MOEK_BLOCK_SHIFT_BF16_ = 6, MOEK_BLOCK_SHIFT_FP16_ = 9 };
MOEK_DEVICE float moek_block_shift_factor_(int dtype) { return dtype == MOEK_DTYPE_FP16 ? 512.0f : 64.0f; }
template <int MIDDLE> MOEK_DEVICE void moek_block_pairs_(uint32_t to[2], uint32_t codes, int dtype)
{
    enum {
        POWER = MIDDLE == 128 ? 7 : MIDDLE == 32 ? 5 : MIDDLE == 16 ? 4 : MIDDLE == 8 ? 3 : 2,
        OF_BF16 = MIDDLE ? (127 + POWER - MOEK_BLOCK_SHIFT_BF16_) << 7 : 0,
        OF_FP16 = MIDDLE ? (15 + POWER - MOEK_BLOCK_SHIFT_FP16_) << 10 : 0
    };
    const uint32_t less = 0x80008000 | (uint32_t)(dtype == MOEK_DTYPE_FP16 ? OF_FP16 : OF_BF16) * 0x00010001;
    const uint32_t by = dtype == MOEK_DTYPE_FP16 ? 0x78007800 /* 2^15 */ : 0x7f007f00 /* 2^127 */;
    to[0] = moek_fma_t2_(__byte_perm(codes, 0, 0x4140), by, less, dtype);
    to[1] = moek_fma_t2_(__byte_perm(codes, 0, 0x4342), by, less, dtype);
}
#endif
