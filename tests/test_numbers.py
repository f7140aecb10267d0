"""test_numbers.py -- the conversions of include/moek/common.h against numpy and ml_dtypes, bit for bit.

All codes of bf16, fp16 and e4m3 to float; and to them: every 16-bit float prefix, every tie and its neighbours, random
floats, NaN, Inf.  Skipped where ml_dtypes is not installed.  Last line: N passed, N failed, N skipped."""
import os, subprocess, sys

TESTS = ["bf16 to float", "fp16 to float", "e4m3 to float",
         "float to bf16", "float to fp16", "float to e4m3", "float to ue8m0"]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
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
#include "moek/common.h"
static void put(const void *p, size_t n) { fwrite(p, n, 1, stdout); }
int main(void)
{
    long i;
    uint32_t u;
    for (i = 0; i < 65536; i++) { float f = moek_from_bf16_((uint16_t)i); put(&f, 4); }
    for (i = 0; i < 65536; i++) { float f = moek_from_fp16_((uint16_t)i); put(&f, 4); }
    for (i = 0; i < 256; i++) { float f = moek_from_e4m3_((uint8_t)i); put(&f, 4); }
    while (fread(&u, 4, 1, stdin) == 1) {
        const float f = moek_float_(u);
        const uint16_t b = moek_to_bf16_(f), h = moek_to_fp16_(f);
        const uint8_t e = moek_to_e4m3_(f), s = f > 0 ? (uint8_t)moek_ue8m0_(f) : 0;
        put(&b, 2); put(&h, 2); put(&e, 1); put(&s, 1);
    }
    return 0;
}
"""


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
    cc = (os.environ.get("CC") or "cc").split()
    subprocess.run(cc + ["-std=c99", "-O2", "-I", os.path.join(ROOT, "include"), os.path.join(out, "numbers.c"), "-o",
                         os.path.join(out, "numbers"), "-lm"], check=True)
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
    for name, code, dtype in (("bf16 to float", np.uint16, ml_dtypes.bfloat16),
                              ("fp16 to float", np.uint16, np.float16),
                              ("e4m3 to float", np.uint8, ml_dtypes.float8_e4m3fn)):
        codes = np.arange(2 ** (8 * code().itemsize), dtype=code)
        have = np.frombuffer(raw, np.float32, codes.size, at)
        at += 4 * codes.size
        want = codes.view(dtype).astype(np.float32)
        check(name, same(have, want, have.view(np.uint32), want.view(np.uint32)), codes,
              have.view(np.uint32), want.view(np.uint32))
    table = np.frombuffer(raw, np.dtype([("b", "<u2"), ("h", "<u2"), ("e", "u1"), ("s", "u1")]), bits.size, at)
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
    print(f"{bits.size} floats")
    print(f"{len(TESTS) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
