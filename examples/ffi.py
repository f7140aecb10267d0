"""ffi.py -- moek without a C header: from Python by ctypes, as from Rust, Go or Julia.  Structs are bytes, and fields
are found by their names: moek_offset.

   python3 examples/ffi.py -Iinclude

Compiles the two lines of moek.c into a shared library with the CPU rows ($CC, or cc), runs a small layer in bf16 and
compares with plain Python."""
import ctypes, math, os, random, struct, subprocess, sys, tempfile

HIDDEN, INTER, EXPERTS, TOPK, TOKENS = 64, 32, 4, 2, 3
SOFTMAX_RENORM = 4                                     # MOEK_ROUTE_*: numbers of moek.h


def library(flags):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "moek.c"), "w") as f:
            f.write('#define MOEK_IMPLEMENTATION\n#include "moek.h"\n')
        file = os.path.join(folder, "libmoek.so")
        subprocess.run([*os.environ.get("CC", "cc").split(), "-O1", "-shared", "-fPIC", "-DMOEK_ARCH=0", *flags,
                        os.path.join(folder, "moek.c"), "-lm", "-o", file], check=True)
        lib = ctypes.CDLL(file)
    for name in ("moek_offset", "moek_config_size", "moek_plan_size", "moek_workspace_size"):
        getattr(lib, name).restype = ctypes.c_size_t
    lib.moek_quant_name.restype = lib.moek_act_name.restype = lib.moek_status_name.restype = ctypes.c_char_p
    lib.moek_plan_init_.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2 + [ctypes.c_int]
    return lib


class Struct:
    """A struct of moek.h, all zeros."""
    def __init__(self, lib, name):
        self.offset = lambda field: lib.moek_offset(f"{name}.{field}".encode())
        self.bytes = ctypes.create_string_buffer(lib.moek_offset(name.encode()))
        self.kept = []                                 # what it points to lives as long

    def set(self, **fields):
        for field, value in fields.items():            # an int here is C's int, an array its address
            at, pointer = self.offset(field), not isinstance(value, int)
            assert at < len(self.bytes), field
            self.kept.append(value)
            struct.pack_into("@P" if pointer else "@i", self.bytes, at, ctypes.addressof(value) if pointer else value)

    def size(self, field, value):
        struct.pack_into("@N", self.bytes, self.offset(field), value)

    def text(self, field):
        return self.bytes[self.offset(field):].split(b"\0")[0].decode()


def bf16(values):
    words = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]
    return (ctypes.c_uint16 * len(words))(*[(w + 0x7fff + (w >> 16 & 1)) >> 16 for w in words])


def floats(codes):
    return [struct.unpack("<f", struct.pack("<I", code << 16))[0] for code in codes]


def aligned(size):
    whole = ctypes.create_string_buffer(size + 256)
    at = ctypes.c_char.from_buffer(whole, -ctypes.addressof(whole) % 256)
    at.whole = whole                                   # lives as long
    return at


def expert(x, up, down):
    dot = lambda row: sum(a * b for a, b in zip(x, row))
    gate_up = [dot(up[j * HIDDEN:(j + 1) * HIDDEN]) for j in range(2 * INTER)]
    h = [g / (1 + math.exp(-g)) * u for g, u in zip(gate_up[:INTER], gate_up[INTER:])]
    return [sum(a * b for a, b in zip(h, down[i * INTER:(i + 1) * INTER])) for i in range(HIDDEN)]


def plain(x, logits, up, down):
    y = [0.0] * HIDDEN
    best = sorted(range(EXPERTS), key=lambda e: -logits[e])[:TOPK]
    total = sum(math.exp(logits[e]) for e in best)
    for e in best:
        row = expert(x, up[e * 2 * INTER * HIDDEN:], down[e * HIDDEN * INTER:])
        y = [a + math.exp(logits[e]) / total * b for a, b in zip(y, row)]
    return y


def main():
    lib = library(sys.argv[1:] or ["-Iinclude"])
    number = lambda name_of, name: next(i for i in range(1, 100) if name_of(i) == name)
    new = lambda n, scale: bf16([random.uniform(-scale, scale) for _ in range(n)])
    random.seed(1)
    x, logits = new(TOKENS * HIDDEN, 1), [random.uniform(-2, 2) for _ in range(TOKENS * EXPERTS)]
    w_up, w_down = new(EXPERTS * 2 * INTER * HIDDEN, 0.3), new(EXPERTS * HIDDEN * INTER, 0.3)
    y, c_logits = (ctypes.c_uint16 * (TOKENS * HIDDEN))(), (ctypes.c_float * len(logits))(*logits)

    config, plan, weights, args = (Struct(lib, name) for name in ("config", "plan", "weights", "args"))
    config.set(hidden=HIDDEN, inter=INTER, experts=EXPERTS, topk=TOPK, max_tokens=TOKENS, routing=SOFTMAX_RENORM,
               quant=number(lib.moek_quant_name, b"bf16"), act=number(lib.moek_act_name, b"silu"))
    assert (len(config.bytes), len(plan.bytes)) == (lib.moek_config_size(), lib.moek_plan_size())
    if lib.moek_plan_init_(plan.bytes, config.bytes, len(config.bytes), len(plan.bytes), lib.moek_version()):
        sys.exit(plan.text("why"))
    weights.set(w_up=w_up, w_down=w_down)
    if lib.moek_plan_bind(plan.bytes, weights.bytes):
        sys.exit(plan.text("why"))
    size, why = lib.moek_workspace_size(plan.bytes), ctypes.create_string_buffer(256)
    args.set(tokens=TOKENS, x=x, router_logits=c_logits, y=y, workspace=aligned(size), why=why)
    args.size("workspace_size", size)
    args.size("why_size", len(why))
    status = lib.moek_run(plan.bytes, args.bytes, None)
    if status:
        sys.exit(f"{lib.moek_status_name(status).decode()}: {why.value.decode()}")

    got, f_x, f_up, f_down = floats(y), floats(x), floats(w_up), floats(w_down)
    want = [v for t in range(TOKENS) for v in plain(f_x[t * HIDDEN:(t + 1) * HIDDEN],
                                                    logits[t * EXPERTS:(t + 1) * EXPERTS], f_up, f_down)]
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))
    print(f"off by {error:.2e} of plain Python: {'ok' if error < 0.01 else 'WRONG'}")
    return not error < 0.01


if __name__ == "__main__":
    sys.exit(main())
