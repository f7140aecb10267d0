"""test_numbers.py -- conversions (include/moek/kernel/numbers.h) and moek_quantize against numpy and ml_dtypes,
bit for bit.

All codes of bf16, fp16, e4m3, e8m0, e2m1, s8 and u4b8 to float; and to the first four: every 16-bit float prefix, every
tie and its neighbours, random floats, NaN, Inf.  Quantizers: rows of bf16 of many sizes, zeros among them; each OBJECT
(or option of the linker) has a part of the implementation.  Skipped where ml_dtypes is not installed.

    python3 tests/api/test_numbers.py [OBJECT ...]

Last line: N passed, N failed, N skipped."""
import os, subprocess, sys

TESTS = ["bf16 to float", "fp16 to float", "e4m3 to float", "e8m0 to float",
         "e2m1 to float", "s8 to float", "u4b8 to float",
         "float to bf16", "float to fp16", "float to e4m3", "float to ue8m0", "float to e8m0",
         "fp8t static", "fp8t dynamic", "fp8c", "fp8b128", "fp8b128 ue8m0", "mxfp8"]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VENV = os.path.join(ROOT, "build", "venv", "bin", "python")         # ./moek test puts ml_dtypes there or in build/pylib
sys.path.append(os.path.join(ROOT, "build", "pylib"))
try:
    import numpy as np
    import ml_dtypes
except ImportError as e:
    if os.path.exists(VENV) and not os.environ.get("MOEK_IN_VENV"):
        os.environ["MOEK_IN_VENV"] = "1"
        os.execv(VENV, [VENV] + sys.argv)
    print(f"skipped: {e}")
    print(f"0 passed, 0 failed, {len(TESTS)} skipped")
    sys.exit(0)

PROGRAM = r"""
#include <stdio.h>
#include "moek/kernel/numbers.h"
static void put(const void *p, size_t n) { fwrite(p, n, 1, stdout); }
int main(void)
{
    long i;
    uint32_t u;
    for (i = 0; i < 65536; i++) { float f = moek_from_bf16_((uint16_t)i); put(&f, 4); }
    for (i = 0; i < 65536; i++) { float f = moek_from_fp16_((uint16_t)i); put(&f, 4); }
    for (i = 0; i < 256; i++) { float f = moek_from_e4m3_((uint8_t)i); put(&f, 4); }
    for (i = 0; i < 256; i++) { float f = moek_from_e8m0_((uint8_t)i); put(&f, 4); }
    for (i = 0; i < 16; i++) { float f = moek_from_e2m1_((uint8_t)i); put(&f, 4); }
    for (i = 0; i < 256; i++) { float f = moek_from_s8_((uint8_t)i); put(&f, 4); }
    for (i = 0; i < 16; i++) { float f = moek_from_u4b8_((uint8_t)i); put(&f, 4); }
    while (fread(&u, 4, 1, stdin) == 1) {
        const float f = moek_float_(u);
        const uint16_t b = moek_to_bf16_(f), h = moek_to_fp16_(f);
        const uint8_t e = moek_to_e4m3_(f), s = f > 0 ? (uint8_t)moek_ue8m0_(f) : 0;
        const uint8_t p = moek_to_e8m0_(f);
        put(&b, 2); put(&h, 2); put(&e, 1); put(&s, 1); put(&p, 1);
    }
    return 0;
}
"""


ROWS, COLS, GROUPS, SMALL = 96, 640, 5, 20                          # groups of 128 and of 32 columns
QUANTIZE = r"""
#include <stdio.h>
#include <string.h>
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
enum { ROWS = %d, COLS = %d, GROUPS = COLS / 128 };
static uint16_t x[ROWS * COLS];
static uint8_t q[ROWS * COLS];
static float scale[ROWS * GROUPS], partial[MOEK_QUANT_PARTIALS];
int main(void)
{
    static const int quant[6] = { MOEK_FP8T, MOEK_FP8T, MOEK_FP8C, MOEK_FP8B128, MOEK_FP8B128, MOEK_MXFP8 };
    static const size_t bytes[6] = { 4, 4, 4 * ROWS, 4 * ROWS * GROUPS, 4 * ROWS * GROUPS, ROWS * COLS / 32 };
    const float fixed = 0.37f;
    int i;
    if (fread(x, sizeof x, 1, stdin) != 1) return 1;
    for (i = 0; i < 6; i++) {
        moek_quant_args a;
        memset(&a, 0, sizeof a);
        a.rows = ROWS; a.cols = COLS; a.source_div = 1; a.dtype = MOEK_DTYPE_BF16;
        a.x = x; a.static_scale = i ? NULL : &fixed; a.ue8m0 = i == 4; a.partial = partial; a.q = q; a.scale = scale;
        if (moek_quantize(quant[i], 0, &a, NULL) != MOEK_OK) return 1;
        fwrite(q, sizeof q, 1, stdout);
        fwrite(scale, bytes[i], 1, stdout);
    }
    return 0;
}
""" % (ROWS, COLS)


def quantized(x):
    """name, e4m3 codes and scales of each format, by the formulas of moek/ops.h in float32."""
    f32, floor = np.float32, np.float32(1.0) / (np.float32(448.0) * np.float32(512.0))

    def codes(v):
        return np.clip(v, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    yield "fp8t static", codes(x * (f32(1) / f32(0.37))), np.array([0.37], f32)
    s = np.abs(x).max() / f32(448)
    yield "fp8t dynamic", codes(x * (f32(1) / s)), np.array([s], f32)
    s = np.maximum(np.abs(x).max(1) / f32(448), floor)
    yield "fp8c", codes(x / s[:, None]), s
    blocks = x.reshape(ROWS, GROUPS, 128)
    s = np.maximum(np.abs(blocks).max(2), f32(1e-10)) / f32(448)
    yield "fp8b128", codes(blocks / s[:, :, None]), s
    mantissa, exponent = np.frexp(np.maximum(s, f32(1e-10)).astype(np.float64))
    s = np.ldexp(1.0, exponent - (mantissa == 0.5)).astype(f32)
    yield "fp8b128 ue8m0", codes(blocks / s[:, :, None]), s
    blocks = x.reshape(ROWS, SMALL, 32)
    powers = ceil_e8m0(np.abs(blocks).max(2) / f32(448)).view(ml_dtypes.float8_e8m0fnu)
    yield "mxfp8", codes(blocks / powers.astype(f32)[:, :, None]), powers


def ceil_e8m0(s):
    """Codes of the powers of two that s is rounded up to; NaN: 255."""
    mantissa, exponent = np.frexp(s.astype(np.float64))
    power = np.where(s > 0, exponent - (mantissa == 0.5) + 127, 0)
    return np.where(np.isnan(s), 255, np.where(s == np.inf, 254, np.clip(power, 0, 254))).astype(np.uint8)


def inputs():
    """Bits of floats to convert."""
    rng = np.random.default_rng(1)
    prefix = np.arange(65536, dtype=np.uint32) << 16
    parts = [prefix, prefix | 0x8000, prefix | 0x7fff, prefix | 0x8001,
             rng.integers(0, 2**32, 2_000_000, dtype=np.uint32)]
    for code, dtype in ((np.uint16, np.float16), (np.uint8, ml_dtypes.float8_e4m3fn), (np.uint16, ml_dtypes.bfloat16)):
        values = np.arange(2 ** (8 * code().itemsize), dtype=code).view(dtype).astype(np.float64)
        values = np.unique(values[np.isfinite(values)])
        ties = ((values[1:] + values[:-1]) / 2).astype(np.float32).view(np.uint32)      # exact: float has the bits
        parts += [ties, ties + 1, ties - 1, values.astype(np.float32).view(np.uint32)]
    parts.append((rng.standard_normal(1_000_000) * 10.0 ** rng.uniform(-9, 6, 1_000_000))
                 .astype(np.float32).view(np.uint32))
    parts.append(np.float32([464, 448.0001, 447.999, 480, 1e30, 65504, 65519.996, 65520, 3.4e38]).view(np.uint32))
    return np.unique(np.concatenate(parts + [p | 0x80000000 for p in parts[5:]]).astype(np.uint32))


def same(a, b, bits_a, bits_b):
    """Equal bits; or both NaN, of the same sign."""
    top = bits_a.dtype.type(1 << (8 * bits_a.itemsize - 1))
    nan = np.isnan(a) & np.isnan(b) & ((bits_a & top) == (bits_b & top))
    return (bits_a == bits_b) | nan


def main():
    out = os.path.join(ROOT, "build", "numbers")
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "numbers.c"), "w") as f:
        f.write(PROGRAM)
    with open(os.path.join(out, "quantize.c"), "w") as f:
        f.write(QUANTIZE)
    cc = (os.environ.get("CC") or "cc").split()
    objects = sys.argv[1:]
    for program, options in (("numbers", []), ("quantize", (["-DMOEK_SPLIT"] if objects else []) + objects)):
        program = os.path.join(out, program)
        subprocess.run(cc + ["-std=c99", "-O2", "-I", os.path.join(ROOT, "include"), program + ".c", *options,
                             "-o", program, "-lm"], check=True)
    np.seterr(all="ignore")
    bits = inputs()
    raw = subprocess.run([os.path.join(out, "numbers")], input=bits.tobytes(), stdout=subprocess.PIPE,
                         check=True).stdout
    f = bits.view(np.float32)
    failed = 0

    def check(name, good, shown, have, want):
        nonlocal failed
        bad = np.flatnonzero(~good)
        for i in bad[:5]:
            print(f"{name}: {shown[i]:#x}: {have[i]:#x}, not {want[i]:#x}")
        if bad.size:
            failed += 1
            print(f"{name}: {bad.size} of {good.size} differ")

    at = 0
    for name, width, dtype, less in (("bf16 to float", 16, ml_dtypes.bfloat16, 0),
                                     ("fp16 to float", 16, np.float16, 0),
                                     ("e4m3 to float", 8, ml_dtypes.float8_e4m3fn, 0),
                                     ("e8m0 to float", 8, ml_dtypes.float8_e8m0fnu, 0),
                                     ("e2m1 to float", 4, ml_dtypes.float4_e2m1fn, 0),
                                     ("s8 to float", 8, np.int8, 0),
                                     ("u4b8 to float", 4, np.uint8, 8)):
        codes = np.arange(2 ** width, dtype=np.uint16 if width == 16 else np.uint8)
        have = np.frombuffer(raw, np.float32, codes.size, at)
        at += 4 * codes.size
        want = codes.view(dtype).astype(np.float32) - np.float32(less)
        check(name, same(have, want, have.view(np.uint32), want.view(np.uint32)), codes,
              have.view(np.uint32), want.view(np.uint32))
    record = np.dtype([("b", "<u2"), ("h", "<u2"), ("e", "u1"), ("s", "u1"), ("p", "u1")])
    table = np.frombuffer(raw, record, bits.size, at)
    clipped = np.where(np.isnan(f), f, np.clip(f, -448, 448))                      # ours saturates, ml_dtypes makes NaN
    for name, have, want in (("float to bf16", table["b"].copy().view(ml_dtypes.bfloat16),
                              f.astype(ml_dtypes.bfloat16)),
                             ("float to fp16", table["h"].copy().view(np.float16), f.astype(np.float16)),
                             ("float to e4m3", table["e"].copy().view(ml_dtypes.float8_e4m3fn),
                              clipped.astype(ml_dtypes.float8_e4m3fn))):
        code = np.uint16 if have.itemsize == 2 else np.uint8
        check(name, same(have.astype(np.float32), want.astype(np.float32), have.view(code), want.view(code)), bits,
              have.view(code), want.view(code))
    normal = (f >= np.float32(2.0 ** -126)) & np.isfinite(f)                       # ceil(log2(f)), as a biased exponent
    mantissa, exponent = np.frexp(f[normal].astype(np.float64))
    want = np.minimum(exponent - (mantissa == 0.5) + 127, 254).astype(np.uint8)
    have = table["s"][normal]
    check("float to ue8m0", have == want, bits[normal], have, want)
    want = ceil_e8m0(f)
    check("float to e8m0", table["p"] == want, bits, table["p"], want)

    rng = np.random.default_rng(2)
    x = (rng.standard_normal((ROWS, COLS)) * 10.0 ** rng.uniform(-8, 3, (ROWS, 1))).astype(ml_dtypes.bfloat16)
    x[5], x[7, 128:256], x[:, 3] = 0, 0, x[:, 3] * ml_dtypes.bfloat16(64)          # empty groups, and an outlier
    raw = subprocess.run([os.path.join(out, "quantize")], input=x.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    at = 0
    for name, want, scale in quantized(x.astype(np.float32)):
        have = np.frombuffer(raw, np.uint8, want.size, at)
        got = np.frombuffer(raw, scale.dtype, scale.size, at + want.size)
        at += want.size + scale.nbytes
        good = (have == want.ravel()).all() and got.tobytes() == scale.tobytes()
        if not good:
            failed += 1
            print(f"{name}: {(have != want.ravel()).sum()} codes and {(got != scale.ravel()).sum()} scales differ")
    print(f"{bits.size} floats, {x.size} quantized numbers in each format")
    print(f"{len(TESTS) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
