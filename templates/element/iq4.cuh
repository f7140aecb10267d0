/* element/iq4.cuh -- iq4 on GPUs (iq4.j2 says what it is). */
#ifndef MOEK_IQ4_CUH
#define MOEK_IQ4_CUH
#include "../../include/moek/kernel/ptx.h"

/* Four codes of a byte each -> their integers + 128, from the sixteen, eight of which are two words for __byte_perm. */
MOEK_DEVICE uint32_t moek_codebook_iq4_(uint32_t codes)
{
    const uint32_t two = codes | codes >> 4;           /* a nibble each, in bytes 0 and 2 */
    const uint32_t four = (two & 0xff) | (two >> 8 & 0xff00), which = four & 0x7777;
    const uint32_t low = __byte_perm(0x3f2d1801, 0x766a5d4f, which);
    const uint32_t high = __byte_perm(0xa6998d81, 0xf1d9c5b5, which);
    return __byte_perm(low, high, 0x3210 | (four & 0x8888) >> 1);
}
#endif
