/* emu_sm120.h -- what the emulator (emu.h) knows of sm_120 and sm_121: mma.sync by block scale, in the place of the PTX
 * of moek/kernel/ptx_sm120.h.
 *
 * Written from the PTX manual alone (9.7.14.3 "Block Scaling for mma.sync" with its tables 35 to 37, and the fragments
 * of mma.m16n8k32 and mma.m16n8k64), before any kernel and without one.  No such GPU was at hand.
 *
 * Which lane of a pair has which row is in a figure of the manual, not in its text: lane 4 g + 2 thread has the scales
 * of row g, the next lane those of row g + 8.  CUTLASS has the same lanes in its layouts, and so have two probes that
 * others published, of 1X and of 4X on GPUs with sm_120.
 *
 * Products and their scales are exact here, and a sum is rounded once an instruction.  The manual does not say how
 * wide the sums of the hardware are.  What others measured on sm_120 fits products that are cut to 25 bits behind the
 * largest.  With emu_narrow a sum keeps EMU_NARROW_BITS, as for sm_89, which is less: what passes so has room.
 *
 * It stops with a sentence where the manual leaves the result open: a selector that is none of table 37, lanes of a
 * warp that differ in type or selector, an e2m1 with other bits in its byte, a ue4m3 with its highest bit. */
#ifndef EMU_SM120_H
#define EMU_SM120_H
#ifndef EMU_H
#error "emu.h includes this"
#endif

/* Kinds of table 36, and what an operand is made of: the numbers of MOEK_MX_*. */
enum emu_scaled_kind { EMU_MXF8F6F4, EMU_MXF4, EMU_MXF4NVF4_UE8M0, EMU_MXF4NVF4 };
enum { EMU_MX_E4M3, EMU_MX_E2M1 };
/* k of an instruction, bits that an element takes, scales of a row (scale_vec), and their type. */
static const struct emu_scaled_shape { int k, bits, scales, ue4m3; } emu_scaled_shapes[] = {
    { 32, 8, 1, 0 }, { 64, 4, 2, 0 }, { 64, 4, 4, 0 }, { 64, 4, 4, 1 }
};
/* Of a or b: its type, the register of scales, and the selector. */
struct emu_scaled_side { int type; uint32_t scales; int byte, thread; };
struct emu_scaled { emu_scaled_kind kind; emu_scaled_side a, b; };
enum { EMU_SCALED_K = 64, EMU_SCALED_ROWS = 16, EMU_SCALED_MOST = 4 };

EMU_FN double emu_e2m1(uint32_t code)
{
    static const double magnitudes[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}
/* Element `at` of a register. */
EMU_FN double emu_scaled_element(uint32_t word, int at, int bits, int type)
{
    const uint32_t code = word >> bits * at & ((1u << bits) - 1);
    if (type == EMU_MX_E4M3) return emu_all_e4m3()[code];
    if (bits == 4) return emu_e2m1(code);
    if (code & 0xc3) emu_die("mma by block scale: an e2m1 lies in bits 2 to 5 of its byte, and the others are 0");
    return emu_e2m1(code >> 2);
}
EMU_FN double emu_scaled_scale(uint32_t byte, int ue4m3)
{
    if (!ue4m3) return byte == 255 ? (double)NAN : ldexp(1, (int)byte - 127);
    if (byte & 128) emu_die("mma by block scale: the highest bit of a ue4m3 is 0");
    return emu_all_e4m3()[byte];
}
EMU_FN void emu_scaled_select(const emu_scaled_shape *shape, const emu_scaled_side *side, int threads)
{
    const int byte = side->byte, last = 4 - shape->scales;
    if (byte < 0 || byte > last || byte % shape->scales) emu_die("mma by block scale: a byte selector that is none");
    if (side->thread < 0 || side->thread >= threads) emu_die("mma by block scale: a thread selector that is none");
}
/* Operands with their scales: a[row][k] and b[column][k].  Lane 4 g + t has, in register i, elements of row g (b: of
 * column g; a, i odd: of row g + 8), k from t times the elements of a register on; in registers of the second half,
 * those half a k further on. */
EMU_FN void emu_scaled_load(double a[][EMU_SCALED_K], double b[][EMU_SCALED_K], const emu_fibre *warp)
{
    const emu_scaled *const op = warp[0].scaled;
    const emu_scaled_shape *const shape = &emu_scaled_shapes[op->kind];
    const int each = 32 / shape->bits, of_scale = shape->k / shape->scales;
    int lane, i, at;
    for (lane = 0; lane < 32; lane++)
        for (i = 0; i < 4; i++)
            for (at = 0; at < each; at++) {
                const int g = lane / 4, k = lane % 4 * each + at;
                a[g + 8 * (i % 2)][k + shape->k / 2 * (i / 2)] =
                    emu_scaled_element(warp[lane].a[i], at, shape->bits, op->a.type);
                if (i < 2)
                    b[g][k + shape->k / 2 * i] = emu_scaled_element(warp[lane].b[i], at, shape->bits, op->b.type);
            }
    for (i = 0; i < EMU_SCALED_ROWS; i++)
        for (at = 0; at < shape->k; at++) {
            const int by_a = 8 * (op->a.byte + at / of_scale), by_b = 8 * (op->b.byte + at / of_scale);
            const emu_fibre *const quad = warp + i % 8 * 4;
            a[i][at] *= emu_scaled_scale(quad[2 * op->a.thread + i / 8].scaled->a.scales >> by_a & 255, shape->ue4m3);
            if (i >= 8) continue;
            b[i][at] *= emu_scaled_scale(quad[op->b.thread].scaled->b.scales >> by_b & 255, shape->ue4m3);
        }
}
EMU_FN void emu_mma_scaled_work(const emu_fibre *warp)
{
    const emu_scaled *const op = warp[0].scaled;
    const emu_scaled_shape *const shape = &emu_scaled_shapes[op->kind];
    double a[EMU_SCALED_ROWS][EMU_SCALED_K], b[8][EMU_SCALED_K], terms[EMU_SCALED_K + 1];
    int lane, i, k;
    for (lane = 1; lane < 32; lane++) {
        const emu_scaled *const o = warp[lane].scaled;
        if (o->kind != op->kind || o->a.type != op->a.type || o->b.type != op->b.type || o->a.byte != op->a.byte ||
            o->b.byte != op->b.byte || o->a.thread != op->a.thread || o->b.thread != op->b.thread)
            emu_die("mma by block scale: lanes of a warp differ");
    }
    emu_scaled_select(shape, &op->a, 2);
    emu_scaled_select(shape, &op->b, 4);
    emu_scaled_load(a, b, warp);
    for (lane = 0; lane < 32; lane++)
        for (i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
            float *const d = (float *)warp[lane].d + i;
            double sum = terms[shape->k] = *d;
            for (k = 0; k < shape->k; k++) sum += terms[k] = a[row][k] * b[column][k];
            *d = emu_narrow ? emu_narrow_sum(terms, shape->k + 1) : (float)sum;
        }
}
/* d += (a scaled) * (b scaled). */
EMU_FN void emu_mma_scaled(float d[4], const uint32_t a[4], const uint32_t b[2], emu_scaled op)
{
    emu_fibres[emu_now].scaled = &op;
    emu_mma_meet(EMU_MMA_SCALED, d, a, b);
}
template <int A, int B, int BYTE_A, int THREAD_A, int BYTE_B, int THREAD_B>
EMU_FN void moek_mma_mxf8f6f4_(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t scale_a, uint32_t scale_b)
{
    const emu_scaled op = { EMU_MXF8F6F4, { A, scale_a, BYTE_A, THREAD_A }, { B, scale_b, BYTE_B, THREAD_B } };
    emu_mma_scaled(d, a, b, op);
}
template <int THREAD_A, int THREAD_B>
EMU_FN void moek_mma_mxf4nvf4_(float d[4], const uint32_t a[4], const uint32_t b[2], uint32_t scale_a, uint32_t scale_b)
{
    const emu_scaled_side of_a = { EMU_MX_E2M1, scale_a, 0, THREAD_A }, of_b = { EMU_MX_E2M1, scale_b, 0, THREAD_B };
    const emu_scaled op = { EMU_MXF4NVF4, of_a, of_b };
    emu_mma_scaled(d, a, b, op);
}
#endif
