/* moek/kernel/blocks.h -- blocks of GGUF files on GPUs: what lies in them at multiples of 1, 2 or 4 bytes. */
#ifndef MOEK_BLOCKS_GPU_H
#define MOEK_BLOCKS_GPU_H
#include "ptx.h"

/* Four bytes at p, which is a multiple of ALIGN. */
template <int ALIGN> MOEK_DEVICE uint32_t moek_block_word_(const unsigned char *p)
{
    if constexpr (ALIGN >= 4) return *(const uint32_t *)p;
    else if constexpr (ALIGN == 1) {                   /* of the two words that hold them, or the one */
        const int before = (int)((uintptr_t)p & 3);
        const uint32_t low = *(const uint32_t *)(p - before), high = *(const uint32_t *)(p + (4 - before) % 4);
        return __byte_perm(low, high, 0x3210 + 0x1111 * before);
    } else return *(const uint16_t *)p | (uint32_t)*(const uint16_t *)(p + 2) << 16;
}
MOEK_DEVICE float moek_block_half_(const unsigned char *p)
{
    float f[2];
    moek_from_t2_(f, *(const uint16_t *)p, MOEK_DTYPE_FP16);
    return f[0];
}
/* Of v, N bits up, or -N down, the bits of MASK in each byte, which is UP bits up; and the bits of `more`. */
template <int N, unsigned MASK, int UP> MOEK_DEVICE uint32_t moek_block_bits_(uint32_t v, uint32_t more)
{
    if constexpr (N >= 0) return moek_and_or_(v << N, (MASK * 0x01010101u) << UP, more);
    else return moek_and_or_(v >> -N, (MASK * 0x01010101u) << UP, more);
}
/* Bits 0 to 3 of `bits`, each to bit 0 of a byte. */
MOEK_DEVICE uint32_t moek_bits_apart_(uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

/* Four codes of a byte each -> two pairs of T, which are
 *   fp16: code * 2^-24, a subnormal: the byte as it is
 *   bf16: 1 + code * 2^-BITS: the byte is the mantissa, codes of BITS < 8 being 7 - BITS bits up, with bit 7 set
 *   bf16, codes of 8 bits: (code - 128) * 2^-6.  As a subnormal, the byte is code * 2^-133.
 * by: what makes integers of that; less: minus what the T is more than the integer, as T, twice. */
template <int BITS> MOEK_DEVICE void moek_block_pairs_(uint32_t to[2], uint32_t codes, int dtype)
{
    const int fp16 = dtype == MOEK_DTYPE_FP16;
    const uint32_t above = fp16 || BITS == 8 ? 0 : 0x3f3f3f3f;
    to[0] = __byte_perm(codes, above, 0x4140);
    to[1] = __byte_perm(codes, above, 0x4342);
    if (!fp16 && BITS == 8) {
        to[0] = moek_fma_t2_(to[0], 0x7f007f00 /* 2^127 */, 0xc000c000 /* -2 */, dtype);
        to[1] = moek_fma_t2_(to[1], 0x7f007f00, 0xc000c000, dtype);
    }
}
template <int BITS> MOEK_DEVICE float moek_block_by_(int dtype)
{
    return dtype == MOEK_DTYPE_FP16 ? 16777216.0f : BITS == 8 ? 64.0f : (float)(1 << BITS);
}
template <int BITS, int MIDDLE> MOEK_DEVICE uint32_t moek_block_less_(int dtype)
{
    static_assert(BITS == 8 || MIDDLE == 0 || MIDDLE == 1 << (BITS - 1), "codes are from 0 on, or around 0");
    if (dtype == MOEK_DTYPE_FP16) return MIDDLE ? (0x8000 | MIDDLE) * 0x00010001u : 0;
    return BITS == 8 ? 0 : MIDDLE ? 0xbfc0bfc0 /* -1.5 */ : 0xbf80bf80 /* -1 */;
}
#endif
