/* moek/kernel/ptx_sm120.h -- mma.sync by block scale, which sm_120 and sm_121 add (RTX 50, RTX PRO 6000, DGX Spark).
 *
 * Wants code for compute_120f, sm_120a, compute_121f or sm_121a (ptx.h: MOEK_SM120_CODE_).  Both operands come with
 * scales: products of a piece of k are multiplied by the scale of their row of a and by the scale of their column of
 * b.  Scales are read from registers of the lanes that a selector names.  THREAD: which of each four lanes.  Of a, the
 * lower two (0) or the upper two (1), of which the first has the scales of row g, the second of row g + 8; of b, one
 * of the four (0 to 3), with the scales of column g.  BYTE: which byte of the register, where one is used. */
#ifndef MOEK_PTX_SM120_H
#define MOEK_PTX_SM120_H
#include "ptx.h"

/* What an operand of moek_mma_mxf8f6f4_ holds. */
#define MOEK_MX_E4M3 0                                  /* a byte each */
#define MOEK_MX_E2M1 1                                  /* a byte each, the code in bits 2 to 5, the others 0 */
#define MOEK_MX_ONES 0x7f7f7f7f                         /* a register of its scales that change nothing */

#ifndef MOEK_EMU
#ifdef MOEK_SM120_CODE_
#define MOEK_MMA_MXF8F6F4_(type_a, type_b) \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32." type_a "." type_b \
                 ".f32.ue8m0 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%11, %12}, {%13}, " \
                 "{%14, %15};\n" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "n"(BYTE_A), \
                   "n"(THREAD_A), "r"(scale_b), "n"(BYTE_B), "n"(THREAD_B))
#endif

/* d += a b, 16 x 8 x 32, a and b as for moek_mma_e4m3_, a scale (ue8m0) for the 32 of a row and of a column. */
template <int A, int B, int BYTE_A, int THREAD_A, int BYTE_B, int THREAD_B>
MOEK_DEVICE void moek_mma_mxf8f6f4_(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t scale_a,
                                    uint32_t scale_b)
{
#ifdef MOEK_SM120_CODE_
    if constexpr (A == MOEK_MX_E4M3 && B == MOEK_MX_E4M3) MOEK_MMA_MXF8F6F4_("e4m3", "e4m3");
    else if constexpr (A == MOEK_MX_E4M3) MOEK_MMA_MXF8F6F4_("e4m3", "e2m1");
    else if constexpr (B == MOEK_MX_E4M3) MOEK_MMA_MXF8F6F4_("e2m1", "e4m3");
    else MOEK_MMA_MXF8F6F4_("e2m1", "e2m1");
#else
    (void)d, (void)a, (void)b, (void)scale_a, (void)scale_b;
#endif
}

/* d += a b, 16 x 8 x 64, both e2m1, eight a register: a lane's first word is k 8 q to 8 q + 7 of row (column) g, low
 * nibble first.  A register of scales is four ue4m3, of 16 of k each, the lowest byte first. */
template <int THREAD_A, int THREAD_B>
MOEK_DEVICE void moek_mma_mxf4nvf4_(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t scale_a,
                                    uint32_t scale_b)
{
#ifdef MOEK_SM120_CODE_
    asm volatile("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%11, %12}, {%13}, {%14, %15};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "n"(0),
                   "n"(THREAD_A), "r"(scale_b), "n"(0), "n"(THREAD_B));
#else
    (void)d, (void)a, (void)b, (void)scale_a, (void)scale_b;
#endif
}
#endif
#endif
