/* gguf_decode.h -- rows of GGUF tensors as f32, plainly: for what of a model is not moek's.  Copy it with gguf.h.
 *
 *     gguf_decode(t->type, t->data + row * gguf_row_bytes(t), columns, to);        0: a type that is not here
 *
 * Each value is ggml's, to the last bit: products are exact in f32, so that only a minimum rounds, once.  But for mxfp4
 * and nvfp4, which are as in moek: the code 8 is -0, the scales e8m0 255 and ue4m3 127 are NaN, as is a ue4m3 with a
 * sign.  (ggml: 0; 2^128; 0; bit 7 is ignored.)  tests/import/test_gguf.c compares with the gguf package. */
#ifndef GGUF_DECODE_H
#define GGUF_DECODE_H
#include "gguf.h"

static inline size_t gguf_row_bytes(const gguf_tensor *t)
{
    return (size_t)(t->ne[0] / (uint64_t)t->type->columns) * (size_t)t->type->bytes;
}
static inline float gguf_half(const unsigned char *at) { return float_of_half(at[0] | (unsigned)at[1] << 8); }
static inline int gguf_byte(unsigned char u) { return u < 128 ? u : u - 256; }
/* Code of column c of n, which are n / 2 low halves of bytes, then n / 2 high halves. */
static inline int gguf_nibble(const unsigned char *q, int c, int n)
{
    return c < n / 2 ? q[c] & 15 : q[c - n / 2] >> 4;
}
/* Column r of 128, as 4 planes of 2 bits in 32 bytes. */
static inline int gguf_crumb(const unsigned char *q, int r) { return q[r % 32] >> 2 * (r / 32) & 3; }

static inline void gguf_decode_32(const char *name, const unsigned char *b, float *to)
{
    static const signed char book[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    const int fives = name[1] == '5', least = name[3] == '1', iq = *name == 'i';
    const float d = gguf_half(b), m = least ? gguf_half(b + 2) : 0;
    const unsigned char *high = b + (least ? 4 : 2), *q = high + (fives ? 4 : 0);
    int c;
    for (c = 0; c < 32; c++) {
        int code = name[1] == '8' ? gguf_byte(q[c]) : gguf_nibble(q, c, 32);
        if (fives) code += 16 * (high[c / 8] >> c % 8 & 1);
        if (iq) code = book[code];
        else if (!least && name[1] != '8') code -= fives ? 16 : 8;
        to[c] = least ? d * (float)code + m : d * (float)code;
    }
}
static inline void gguf_decode_iq4_xs(const unsigned char *b, float *to)
{
    float group[32];
    unsigned char block[18];
    int j, c, scale;
    block[0] = 0; block[1] = 0x3c;                     /* 1 */
    for (j = 0; j < 8; j++) {
        scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) + 16 * (b[2 + j / 4] >> 2 * (j % 4) & 3) - 32;
        memcpy(block + 2, b + 8 + 16 * j, 16);
        gguf_decode_32("iq4_nl", block, group);
        for (c = 0; c < 32; c++) to[32 * j + c] = gguf_half(b) * (float)scale * group[c];
    }
}
/* q4_K; and q5_K, which has a bit more of each code in 32 bytes ahead of the others. */
static inline void gguf_decode_q4_K(const unsigned char *b, int fives, float *to)
{
    const unsigned char *s = b + 4, *high = b + 16, *q = b + (fives ? 48 : 16);
    const float d = gguf_half(b), dmin = gguf_half(b + 2);
    int c, j, scale, least, code;
    for (c = 0; c < 256; c++) {
        j = c / 32;
        scale = j < 4 ? s[j] & 63 : (s[4 + j] & 15) | s[j - 4] >> 6 << 4;
        least = j < 4 ? s[4 + j] & 63 : s[4 + j] >> 4 | s[j] >> 6 << 4;
        code = gguf_nibble(q + 32 * (c / 64), c % 64, 64);
        if (fives) code += 16 * (high[c % 32] >> j & 1);
        to[c] = d * (float)scale * (float)code - dmin * (float)least;
    }
}
static inline void gguf_decode_q6_K(const unsigned char *b, float *to)
{
    const float d = gguf_half(b + 208);
    int c, code;
    for (c = 0; c < 256; c++) {
        code = gguf_nibble(b + 64 * (c / 128), c % 128, 128) + 16 * gguf_crumb(b + 128 + 32 * (c / 128), c % 128) - 32;
        to[c] = d * (float)gguf_byte(b[192 + c / 16]) * (float)code;
    }
}
static inline void gguf_decode_q3_K(const unsigned char *b, float *to)
{
    const unsigned char *s = b + 96;
    const float d = gguf_half(b + 108);
    int c, j, scale, code;
    for (c = 0; c < 256; c++) {
        j = c / 16;
        scale = (s[j % 8] >> 4 * (j / 8) & 15) + 16 * (s[8 + j % 4] >> 2 * (j / 4) & 3) - 32;
        code = gguf_crumb(b + 32 + 32 * (c / 128), c % 128) + 4 * (b[c % 32] >> c / 32 & 1) - 4;
        to[c] = d * (float)scale * (float)code;
    }
}
static inline void gguf_decode_q2_K(const unsigned char *b, float *to)
{
    const float d = gguf_half(b + 80), dmin = gguf_half(b + 82);
    int c;
    for (c = 0; c < 256; c++)
        to[c] = d * (float)(b[c / 16] & 15) * (float)gguf_crumb(b + 16 + 32 * (c / 128), c % 128) -
                dmin * (float)(b[c / 16] >> 4);
}
static inline float gguf_e2m1(int code)
{
    static const float size[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    return code & 8 ? -size[code & 7] : size[code];
}
static inline void gguf_decode_fp4(const gguf_type *t, const unsigned char *b, float *to)
{
    const int nv = t->columns == 64, n = nv ? 16 : 32;
    int c;
    for (c = 0; c < t->columns; c++) {
        const int s = b[c / n], e = s >> 3, f = s & 7;
        const float scale = !nv ? (s == 255 ? NAN : ldexpf(1, s - 127)) : s >= 127 ? NAN
                          : e ? ldexpf((float)(8 + f), e - 10) : ldexpf((float)f, -9);
        to[c] = scale * gguf_e2m1(gguf_nibble(b + t->columns / n + c / n * (n / 2), c % n, n));
    }
}
/* A row, or some whole blocks of one. */
static inline int gguf_decode(const gguf_type *t, const unsigned char *b, size_t columns, float *to)
{
    size_t n = columns / (size_t)t->columns;
    for (; n > 0; n--, b += t->bytes, to += t->columns)
        switch (t->number) {
        case 0: memcpy(to, b, 4); break;
        case 1: *to = gguf_half(b); break;
        case 30: *to = float_of_bits((uint32_t)b[0] << 16 | (uint32_t)b[1] << 24); break;
        case 2: case 3: case 6: case 7: case 8: case 20: gguf_decode_32(t->name, b, to); break;
        case 10: gguf_decode_q2_K(b, to); break;
        case 11: gguf_decode_q3_K(b, to); break;
        case 12: case 13: gguf_decode_q4_K(b, t->number == 13, to); break;
        case 14: gguf_decode_q6_K(b, to); break;
        case 23: gguf_decode_iq4_xs(b, to); break;
        case 39: case 40: gguf_decode_fp4(t, b, to); break;
        default: return 0;
        }
    return 1;
}
#endif
