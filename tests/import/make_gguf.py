"""make_gguf.py -- small .gguf files for test_gguf.c and test_lm.c, in plain Python.

    make_gguf.py FOLDER

FOLDER/layers/NAME has a model (model.gguf, or its parts), what its layers must become (expect.txt, a line as test_gguf
prints it) and their weights in F32 (reference.safetensors), which are computed here, from ggml's definition of each
type; or sentence.txt: the model must be refused with these words.  FOLDER/lm/NAME: models of tests/data/lm as
llama.cpp's convert_hf_to_gguf.py lays them out, with what transformers made of them (golden.safetensors), or with
plain.gguf, the same weights in f32."""
import json
import os
import random
import shutil
import struct
import sys

from make_checkpoints import E2M1, e4m3, save

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# ---- blocks: columns, bytes of each type, and what they mean ---------------------------------------------------------

IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def half(b):
    return struct.unpack("<e", b)[0]


def nibbles(q):
    """A plane of low halves, then one of high halves."""
    return [b & 15 for b in q] + [b >> 4 for b in q]


def signed(b):
    return b - 256 if b > 127 else b


def bits(q, per, step):
    """Numbers of `per` bits; the numbers of `step` bytes lie side by side, the lowest bits first."""
    return [q[at + i] >> shift & (1 << per) - 1 for at in range(0, len(q), step) for shift in range(0, 8, per)
            for i in range(step)]


def k_scales(s):
    """Scales and minimums of q4_K and q5_K: 8 numbers of 6 bits each."""
    low = [b & 63 for b in s[:8]]
    high = [(s[8 + i] & 15 | s[i] >> 6 << 4, s[8 + i] >> 4 | s[4 + i] >> 6 << 4) for i in range(4)]
    return low[:4] + [h[0] for h in high], low[4:] + [h[1] for h in high]


def q4_k(b, fifth=None):
    scale, least = k_scales(b[4:16])
    codes = [c for at in range(0, 128, 32) for c in nibbles(b[-128:][at:at + 32])]
    if fifth:
        codes = [c + 16 * (fifth[i % 32] >> i // 32 & 1) for i, c in enumerate(codes)]
    d, dmin = half(b[:2]), half(b[2:4])
    return [d * scale[i // 32] * c - dmin * least[i // 32] for i, c in enumerate(codes)]


def q6_k(b):
    codes = []
    for n in range(2):
        low = nibbles(b[64 * n:64 * n + 64])
        high = bits(b[128 + 32 * n:160 + 32 * n], 2, 32)
        codes += [lo + 16 * hi - 32 for lo, hi in zip(low, high)]
    return [half(b[208:]) * signed(b[192 + i // 16]) * c for i, c in enumerate(codes)]


def q3_k(b):
    s, high = b[96:108], bits(b[:32], 1, 32)
    scale = [(s[i % 8] >> 4 * (i // 8) & 15 | (s[8 + i % 4] >> 2 * (i // 4) & 3) << 4) - 32 for i in range(16)]
    codes = [lo + 4 * hi - 4 for lo, hi in zip(bits(b[32:96], 2, 32), high)]
    return [half(b[108:]) * scale[i // 16] * c for i, c in enumerate(codes)]


def q2_k(b):
    d, dmin = half(b[80:82]), half(b[82:])
    return [d * (b[i // 16] & 15) * c - dmin * (b[i // 16] >> 4) for i, c in enumerate(bits(b[16:80], 2, 32))]


def iq4_xs(b):
    high = struct.unpack("<H", b[2:4])[0]
    scale = [(b[4 + j // 2] >> 4 * (j % 2) & 15) + 16 * (high >> 2 * j & 3) - 32 for j in range(8)]
    codes = [c for at in range(8, 136, 16) for c in nibbles(b[at:at + 16])]
    return [half(b[:2]) * scale[i // 32] * IQ4[c] for i, c in enumerate(codes)]


def e2m1(code):
    return -float(E2M1[code & 7]) if code & 8 else float(E2M1[code])


def fifth(b):
    return [b[i // 8] >> i % 8 & 1 for i in range(32)]


TYPES = {  # number, columns, bytes, places of f16 in a block, meaning
    "f32": (0, 1, 4, [], lambda b: list(struct.unpack("<f", b))),
    "f16": (1, 1, 2, [0], lambda b: [half(b)]),
    "bf16": (30, 1, 2, [], lambda b: list(struct.unpack("<f", bytes(2) + b))),
    "q4_0": (2, 32, 18, [0], lambda b: [half(b[:2]) * (c - 8) for c in nibbles(b[2:])]),
    "q4_1": (3, 32, 20, [0, 2], lambda b: [half(b[:2]) * c + half(b[2:4]) for c in nibbles(b[4:])]),
    "q5_0": (6, 32, 22, [0],
             lambda b: [half(b[:2]) * (c + 16 * h - 16) for c, h in zip(nibbles(b[6:]), fifth(b[2:6]))]),
    "q5_1": (7, 32, 24, [0, 2],
             lambda b: [half(b[:2]) * (c + 16 * h) + half(b[2:4]) for c, h in zip(nibbles(b[8:]), fifth(b[4:8]))]),
    "q8_0": (8, 32, 34, [0], lambda b: [half(b[:2]) * signed(c) for c in b[2:]]),
    "q2_K": (10, 256, 84, [80, 82], q2_k),
    "q3_K": (11, 256, 110, [108], q3_k),
    "q4_K": (12, 256, 144, [0, 2], q4_k),
    "q5_K": (13, 256, 176, [0, 2], lambda b: q4_k(b, b[16:48])),
    "q6_K": (14, 256, 210, [208], q6_k),
    "iq4_nl": (20, 32, 18, [0], lambda b: [half(b[:2]) * IQ4[c] for c in nibbles(b[2:])]),
    "iq4_xs": (23, 256, 136, [0], iq4_xs),
    "mxfp4": (39, 32, 17, [], lambda b: [e2m1(c) * 2.0 ** (b[0] - 127) for c in nibbles(b[1:])]),
    "nvfp4": (40, 64, 36, [], lambda b: [e4m3(b[i // 16]) * e2m1(c) for i, c in enumerate(
        c for at in range(4, 36, 8) for c in nibbles(b[at:at + 8]))]), "iq2_xxs": (16, 256, 66, [0], None)}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def noise(rng, type, count, size=0.1):
    """Blocks of random codes, with scales that give weights of about this size; and what they mean, in f32."""
    number, columns, length, halves, means = TYPES[type]
    data, values = bytearray(), []
    for _ in range(count // columns):
        if type in ("f32", "bf16"):
            block = struct.pack("<f", rng.uniform(-2, 2) * size)[-length:]
        elif type == "f16":
            block = struct.pack("<e", rng.uniform(-2, 2) * size)
        else:
            block = bytearray(rng.randrange(256) for _ in range(length))
            if means:
                sample = list(block)
                for at in halves:
                    sample[at:at + 2] = struct.pack("<e", 1)
                if type == "mxfp4":
                    sample[0] = 127
                most = max(map(abs, means(bytes(sample))), default=1) if halves else 1
                for at in halves:
                    block[at:at + 2] = struct.pack("<e", rng.choice([1, 1, -1]) * size * rng.uniform(0.5, 2) / most)
            if type == "mxfp4":
                block[0] = rng.randint(120, 124)
            if type == "nvfp4":
                block[:4] = bytes(rng.randint(0x18, 0x20) for _ in range(4))
        data += block
        values += map(f32, means(bytes(block))) if means else []
    return bytes(data), values


# ---- the container ---------------------------------------------------------------------------------------------------

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACKED = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(type, v):
    return text(v) if type == STRING else struct.pack("<" + PACKED[type], v)


def pair(key, v, type=None):
    """Of a list: an array, of items of the type."""
    if type is None:
        type = {"bool": BOOL, "int": U32, "float": F32, "str": STRING}[(v[0] if isinstance(v, list)
                                                                       else v).__class__.__name__]
    if isinstance(v, list):
        return text(key) + struct.pack("<IIQ", ARRAY, type, len(v)) + b"".join(value(type, x) for x in v)
    return text(key) + struct.pack("<I", type) + value(type, v)


class File:
    """tensors: [name, sizes (the fastest first), type, bytes]; pairs: {key: value, or bytes as they are}."""

    def __init__(self, arch, pairs, tensors, alignment=32, version=3):
        keys = {"general.architecture": arch, **pairs}
        self.pairs = [v if isinstance(v, bytes) else pair(k.replace("*", arch), v) for k, v in keys.items()]
        self.tensors, self.alignment, self.version = tensors, alignment, version
        self.counts, self.offsets, self.magic, self.start = None, {}, b"GGUF", b""

    def write(self, path):
        infos, data = b"", bytearray(self.start)
        pairs = self.pairs + ([pair("general.alignment", self.alignment)] if self.alignment != 32 else [])
        for i, (name, sizes, type, blob) in enumerate(self.tensors):
            data += bytes(-len(data) % self.alignment)
            number = type if isinstance(type, int) else TYPES[type][0]
            infos += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, number,
                                              self.offsets.get(i, len(data)))
            data += blob
        counts = self.counts or (len(self.tensors), len(pairs))
        head = self.magic + struct.pack("<IQQ", self.version, *counts) + b"".join(pairs) + infos
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % self.alignment) + data)


# ---- layers ----------------------------------------------------------------------------------------------------------

EXPERTS, HIDDEN, INTER = 4, 64, 32


def experts(rng, layer, type, fused=False, gated=True, bias=False, hidden=HIDDEN, inter=INTER, down=None,
            count=EXPERTS, second=None):
    """Tensors of a layer's experts, and their values by the reference's names."""
    tensors, values = [], {}
    for matrix in ("gate", "up", "down") if gated else ("up", "down"):
        rows, columns = (hidden, inter) if matrix == "down" else (inter, hidden)
        of = down if down and matrix == "down" else type
        blob, flat = noise(rng, of, count * rows * columns)
        tensors.append([f"blk.{layer}.ffn_{matrix}_exps.weight", [columns, rows, count], of, blob])
        if second:                                     # a factor an expert
            scales = [rng.choice(second) for _ in range(count)] if not (fused and matrix == "up") else scales
            flat = [v * scales[i // (rows * columns)] for i, v in enumerate(flat)]
            if not (fused and matrix == "up"):
                name = "gate_up" if fused and matrix == "gate" else matrix
                tensors.append([f"blk.{layer}.ffn_{name}_exps.scale", [count], "f32",
                                struct.pack(f"<{count}f", *scales)])
        for e in range(count if flat else 0):
            values[f"layers.{layer}.experts.{e}.{matrix}"] = \
                "F32", [rows, columns], struct.pack(f"<{rows * columns}f", *flat[e * rows * columns:][:rows * columns])
        if bias:
            blob, flat = noise(rng, "bf16", count * rows)
            tensors.append([f"blk.{layer}.ffn_{matrix}_exps.bias", [rows, count], "f32",
                            struct.pack(f"<{len(flat)}f", *flat)])
            for e in range(count):
                values[f"layers.{layer}.experts.{e}.{matrix}_bias"] = \
                    "F32", [rows], struct.pack(f"<{rows}f", *flat[e * rows:][:rows])
    if fused:
        gate, up = [t for t in tensors if "gate_exps.w" in t[0] or "up_exps.w" in t[0]]
        tensors = [t for t in tensors if t not in (gate, up)]
        gate, up = gate[3], up[3]
        size = len(gate) // count
        tensors[:0] = [[f"blk.{layer}.ffn_gate_up_exps.weight", [hidden, 2 * inter, count], type,
                        b"".join(m[e * size:][:size] for e in range(count) for m in (gate, up))]]
    tensors.append([f"blk.{layer}.ffn_gate_inp.weight", [hidden, count], "f32",
                    noise(rng, "f32", count * hidden)[0]])
    return tensors, values


KEYS = {"*.block_count": 1, "*.embedding_length": HIDDEN, "*.expert_count": EXPERTS, "*.expert_used_count": 2,
        "*.expert_feed_forward_length": INTER, "tokenizer.ggml.tokens": ["a", "", "\u00e9" * 40],
        "general.name": "small", "*.rope.freq_base": 10000.0, "some.bools": [True, False]}


class Layers:
    def __init__(self, root):
        self.root, self.count = root, 0

    def folder(self, name):
        to = os.path.join(self.root, name)
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        return to

    def good(self, name, arch, says, type="bf16", keys=None, layers=1, more=(), dense=(), split=0, alignment=32,
             start=b"", version=3, change=None, **of):
        rng, tensors, values = random.Random(name), [], {}
        for n in range(layers):
            if n in dense:
                tensors.append([f"blk.{n}.ffn_down.weight", [INTER, HIDDEN], "f16", bytes(2 * INTER * HIDDEN)])
                continue
            t, v = experts(rng, n, type, **of)
            tensors += t
            values.update(v)
        for part, sizes in more:
            count = 1
            for size in sizes:
                count *= size
            tensors.append([part, sizes, "f32", noise(rng, "f32", count)[0]])
        to = self.folder(name)
        pairs = {**KEYS, "*.block_count": layers, **(keys or {})}
        if change:
            change(pairs, tensors)
        for i in range(split or 1):
            part = tensors[i::split] if split else tensors
            extra = {"split.no": pair("split.no", i, U16), "split.count": pair("split.count", split, U16),
                     "split.tensors.count": pair("split.tensors.count", len(tensors), I32)} if split else {}
            f = File(arch, {**(pairs if not i else {}), **extra}, part, alignment, version)
            f.start = start
            f.write(os.path.join(to, f"model-{i + 1:05d}-of-{split:05d}.gguf" if split else "model.gguf"))
        with open(os.path.join(to, "expect.txt"), "w") as f:
            f.write("\n".join(says) + "\n")
        save(os.path.join(to, "reference.safetensors"), values)

    def bad(self, name, words, change=None, arch="qwen3moe", after=None, type="bf16", keys=None, **of):
        """change: of the File; after: of its bytes."""
        tensors, _ = experts(random.Random(name), 0, type, **of)
        f = File(arch, {**KEYS, **(keys or {})}, tensors)
        if change:
            change(f)
        to = self.folder("refused_" + name)
        path = os.path.join(to, "model.gguf")
        f.write(path)
        if after:
            with open(path, "rb") as opened:
                data = after(bytearray(opened.read()))
            with open(path, "wb") as opened:
                opened.write(data)
        with open(os.path.join(to, "sentence.txt"), "w") as opened:
            opened.write(words + "\n")


def routed(f):
    f.good("qwen3moe", "qwen3moe", ["4 experts, topk 2, bf16, silu, SOFTMAX_RENORM, apart, in place"])
    f.good("qwen2moe", "qwen2moe", ["4 experts, topk 2, fp16, silu, SOFTMAX, apart, in place, shared 48, gated"], "f16",
           more=[("blk.0.ffn_gate_shexp.weight", [HIDDEN, 48]), ("blk.0.ffn_up_shexp.weight", [HIDDEN, 48]),
                 ("blk.0.ffn_down_shexp.weight", [48, HIDDEN]), ("blk.0.ffn_gate_inp_shexp.weight", [HIDDEN])])
    f.good("llama", "llama", ["4 experts, topk 2, bf16, silu, TOPK_SOFTMAX, apart, in place"] * 2, layers=2,
           keys={"*.expert_used_count": [2, 2]})
    f.good("olmoe", "olmoe", ["4 experts, topk 3, fp16, silu, SOFTMAX, apart, in place"], "f16",
           keys={"*.expert_used_count": pair("olmoe.expert_used_count", 3, I64)})
    f.good("gpt-oss", "gpt-oss", ["4 experts, topk 2, mxfp4_a16, swigluoai, TOPK_SOFTMAX, apart, copied, biases"],
           "mxfp4", bias=True, more=[("blk.0.ffn_gate_inp.bias", [EXPERTS])])
    f.good("deepseek2_v2", "deepseek2", ["dense", "4 experts, topk 2, bf16, silu, SOFTMAX, scale 16, apart, in place, "
                                         "shared 64"], layers=2, dense=(0,),
           keys={"*.expert_weights_scale": 16.0, "*.leading_dense_block_count": 1},
           more=[("blk.1.ffn_gate_shexp.weight", [HIDDEN, 64]), ("blk.1.ffn_up_shexp.weight", [HIDDEN, 64]),
                 ("blk.1.ffn_down_shexp.weight", [64, HIDDEN])])
    f.good("deepseek2_v3", "deepseek2", ["4 experts, topk 2, mxfp4_a16, silu, DEEPSEEK_V3, groups 2 of 4, scale 2.5, "
                                         "halves, copied, router bias"], "mxfp4", fused=True,
           keys={"*.expert_weights_scale": 2.5, "*.expert_weights_norm": True, "*.expert_gating_func": 2,
                 "*.expert_group_count": 4, "*.expert_group_used_count": 2},
           more=[("blk.0.exp_probs_b.bias", [EXPERTS])])
    f.good("deepseek2_flash", "deepseek2", ["4 experts, topk 2, bf16, silu, SIGMOID, apart, in place"] + ["dense"] * 46,
           layers=47, dense=range(1, 47), change=lambda pairs, tensors: tensors.append(
               ["token_embd.weight", [1, 154880], 24, bytes(154880)]))
    f.good("glm4moe", "glm4moe", ["4 experts, topk 2, fp16, silu, DEEPSEEK_V3, apart, in place, router bias"], "f16",
           layers=2, keys={"*.nextn_predict_layers": 1, "*.expert_weights_norm": True},
           more=[(f"blk.{n}.exp_probs_b.bias", [EXPERTS]) for n in range(2)])
    f.good("unknown", "grok", ["4 experts, topk 2, bf16, routing of architecture grok is not known, apart, in place"])
    f.good("not_gated", "nemotron_h_moe", ["4 experts, topk 2, fp16, routing of architecture nemotron_h_moe is not "
                                           "known, in place"], "f16", gated=False)


def blocks(f):
    """Read in place by a moek with kernels for them, refused with a sentence by another: both files are there."""
    for type in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_K", "q6_K"):
        big = type.endswith("_K")
        more = dict(hidden=256, inter=256, count=2, keys={"*.expert_count": 2}) if big else {}
        name = "blocks_" + type
        f.good(name, "qwen3moe", [f"{2 if big else 4} experts, topk 2, {type.lower()}_a16, silu, SOFTMAX_RENORM, "
                                  "apart, in place"], type, **more)
        with open(os.path.join(f.root, name, "sentence.txt"), "w") as opened:
            opened.write(f"is {type} (GGUF type {TYPES[type][0]}), for which this moek has no kernels\n")


def two_types(f):
    """Gate and up in one type, down in another."""
    for up, down, fused in (("q4_K", "q6_K", False), ("q5_K", "q6_K", True), ("q4_K", "q5_0", False),
                            ("q4_K", "q8_0", True), ("iq4_xs", "q5_K", False), ("q8_0", "bf16", False),
                            ("f16", "q8_0", False), ("mxfp4", "q8_0", False), ("q8_0", "mxfp4", False),
                            ("q4_0", "f32", False), ("q3_K", "q4_K", False), ("nvfp4", "bf16", False)):
        big, wide = "_K" in up or "xs" in up, "_K" in down
        names = {"bf16": "bf16", "f32": "bf16", "f16": "fp16"}
        places = ["copied" if t in ("mxfp4", "nvfp4", "f32") else "in place" for t in (up, down)]
        says = f"2 experts, topk 2, {names.get(up, up.lower() + '_a16')} / {names.get(down, down.lower() + '_a16')}, " \
               f"silu, SOFTMAX_RENORM, {'halves' if fused else 'apart'}, {places[0]}" + \
               (f", down {places[1]}" if places[1] != places[0] else "")
        f.good(f"two_{up}_{down}", "qwen3moe", [says], up, down=down, fused=fused, hidden=256 if big else HIDDEN,
               inter=256 if wide else 96, count=2, keys={"*.expert_count": 2})
        with open(os.path.join(f.root, f"two_{up}_{down}", "sentence.txt"), "w") as opened:
            opened.write("for which this moek has no kernels\n")
    f.good("two_of_one", "olmoe", ["4 experts, topk 2, bf16, silu, SOFTMAX, apart, in place, down copied"], down="f32")


def global_scales(f):
    says = ["4 experts, topk 2, nvfp4_a16, silu, SOFTMAX_RENORM, apart, copied"]
    f.good("nvfp4", "qwen3moe", says, "nvfp4", inter=64)
    f.good("nvfp4_scales", "qwen3moe", says, "nvfp4", inter=64, second=[0.5, 1.0, 2.0, 0.25])
    f.good("nvfp4_fused", "qwen3moe", [says[0].replace("apart", "halves")], "nvfp4", inter=64, fused=True,
           second=[0.5, 1.0, 2.0])
    f.bad("nvfp4_sign", "1 of 3072 scales have their sign set", type="nvfp4", inter=64,
          change=lambda x: set_tensor(1, blob=b"\x98" + x.tensors[1][3][1:])(x))
    f.bad("nvfp4_nan", "1 of 3072 scales are NaN or Inf", type="nvfp4", inter=64,
          change=lambda x: set_tensor(2, blob=b"\x7f" + x.tensors[2][3][1:])(x))
    f.bad("nvfp4_zero", "global scales", type="nvfp4", inter=64, second=[0.0])
    f.bad("scale_shape", "ffn_up_exps.scale has sizes 3, 1, 1, 1; those of the layer are 4, 1, 1", type="nvfp4",
          inter=64, change=lambda x: x.tensors.append(["blk.0.ffn_up_exps.scale", [3], "f32", bytes(12)]))


def containers(f):
    f.good("split", "qwen3moe", ["4 experts, topk 2, bf16, silu, SOFTMAX_RENORM, halves, in place"] * 2, layers=2,
           split=3, fused=True)
    f.good("version_2", "olmoe", ["4 experts, topk 2, bf16, silu, SOFTMAX, halves, in place"], fused=True, version=2)
    f.good("f32", "olmoe", ["4 experts, topk 2, bf16, silu, SOFTMAX, apart, copied"], "f32")
    f.good("alignment_8", "qwen3moe", ["4 experts, topk 2, bf16, silu, SOFTMAX_RENORM, apart, copied, biases, router "
                                       "bias"], alignment=8, start=bytes(8), bias=True,
           more=[("blk.0.exp_probs_b.bias", [EXPERTS])], change=lambda pairs, tensors: tensors.sort(
               key=lambda t: t[0]))
    f.good("alignment_1", "qwen3moe", ["4 experts, topk 2, mxfp4_a16, silu, SOFTMAX_RENORM, apart, copied, router "
                                       "bias"], "mxfp4", alignment=1, start=bytes(1),
           more=[("blk.0.exp_probs_b.bias", [EXPERTS])])
    f.good("alignment_4096", "qwen3moe", ["4 experts, topk 2, fp16, silu, SOFTMAX_RENORM, apart, in place"], "f16",
           alignment=4096)


def set_tensor(index, **of):
    def change(f):
        for k, v in of.items():
            f.tensors[index]["name sizes type blob".split().index(k)] = v
    return change


def set_counts(tensors=None, pairs=None):
    def change(f):
        f.counts = (len(f.tensors) if tensors is None else tensors, len(f.pairs) if pairs is None else pairs)
    return change


def offset(index, at):
    return lambda f: f.offsets.update({index: at})


def refused(f):
    name = "blk.0.ffn_gate_exps.weight"
    f.bad("magic", "no GGUF file", after=lambda b: b"GGML" + b[4:])
    f.bad("short", "no GGUF file", after=lambda b: b[:23])
    f.bad("version_1", "GGUF version 1 (2023): convert the model again", lambda x: setattr(x, "version", 1))
    f.bad("version_4", "GGUF version 4; 2 and 3 are read here", lambda x: setattr(x, "version", 4))
    f.bad("big_endian", "a big-endian file", lambda x: setattr(x, "version", 3 << 24))
    f.bad("cut_in_keys", "the file ends in a key", after=lambda b: b[:300])
    f.bad("cut", "ffn_gate_inp.weight lies outside of the file", after=lambda b: b[:-1])
    f.bad("many_keys", "18446744073709551615 keys do not fit", set_counts(pairs=2**64 - 1))
    f.bad("many_tensors", "1152921504606846976 tensors do not fit", set_counts(tensors=2**60))
    f.bad("more_tensors", "tensor", set_counts(tensors=20))
    f.bad("more_keys", "key", set_counts(pairs=40))
    f.bad("fewer_keys", "tensor", set_counts(pairs=3))
    f.bad("key_twice", "key general.name is there twice", keys={"twice": pair("general.name", "b")})
    f.bad("tensor_twice", name + " is there twice", set_tensor(1, name=name))
    f.bad("long_string", "key general.name is longer than the file",
          keys={"general.name": text("general.name") + struct.pack("<IQ", STRING, 2**63)})
    f.bad("long_array", "key a.b is longer than the file",
          keys={"a.b": text("a.b") + struct.pack("<IIQ", ARRAY, U64, 2**61 + 1) + bytes(64)})
    f.bad("long_strings", "key a.b is longer than the file",
          keys={"a.b": text("a.b") + struct.pack("<IIQ", ARRAY, STRING, 2**61 + 1) + bytes(64)})
    f.bad("nested", "key a.b is an array of arrays",
          keys={"a.b": text("a.b") + struct.pack("<IIQIQ", ARRAY, ARRAY, 1, U8, 1) + b"a"})
    f.bad("value_type", "key a.b has values of type 13", keys={"a.b": text("a.b") + struct.pack("<II", 13, 1)})
    f.bad("item_type", "key a.b has values of type 99",
          keys={"a.b": text("a.b") + struct.pack("<IIQI", ARRAY, 99, 1, 1)})
    f.bad("bool", "key a.b is longer than the file, or no bool",
          keys={"a.b": text("a.b") + struct.pack("<IB", BOOL, 2)})
    f.bad("bools", "key a.b is longer than the file, or no bool",
          keys={"a.b": text("a.b") + struct.pack("<IIQBB", ARRAY, BOOL, 2, 1, 7)})
    f.bad("alignment_0", "general.alignment is no power of two", keys={"general.alignment": 0})
    f.bad("alignment_48", "general.alignment is no power of two", keys={"general.alignment": 48})
    f.bad("alignment_type", "general.alignment is no power of two", keys={"general.alignment": "32"})
    f.bad("no_arch", "general.architecture is missing", keys={"general.architecture": pair("general.other", "x")})
    f.bad("arch_type", "general.architecture is missing",
          keys={"general.architecture": pair("general.architecture", 7)})
    f.bad("no_dims", name + " has 0 dimensions", set_tensor(0, sizes=[]))
    f.bad("five_dims", name + " has 5 dimensions", set_tensor(0, sizes=[1] * 5))
    f.bad("size_0", name + " has a size of 0", set_tensor(0, sizes=[64, 0, 4]))
    f.bad("sizes", "more elements than any file", set_tensor(0, sizes=[2**32, 2**32, 2]))
    f.bad("size_64", "more elements than any file", set_tensor(0, sizes=[2**63]))
    f.bad("size_63", name + " lies outside of the file", set_tensor(0, sizes=[2**62], type=24))
    f.bad("type_31", "GGUF type 31, a repacked order of another program", set_tensor(0, type=31))
    f.bad("type_99", "GGUF type 99, which is not known here", set_tensor(0, type=99))
    f.bad("rows", "has rows of 64; blocks of q4_K have 256", set_tensor(0, type=12))
    f.bad("unaligned", "begins at 33, which is no multiple of general.alignment, 32", offset(1, 33))
    f.bad("offset", "ffn_up_exps.weight lies outside", offset(1, 2**63))
    f.bad("offset_64", "ffn_up_exps.weight lies outside", offset(1, 2**64 - 32))
    f.bad("overlap", "begins where another one has its bytes", offset(1, 32))
    f.bad("same_place", "begins where another one has its bytes", offset(1, 0))
    f.bad("split_count", "split.count is 3, by the name it is 1", keys={"split.count": 3})
    f.bad("split_no", "split.no is 1, but the file is number 0", keys={"split.no": 1})
    f.bad("split_tensors", "there are 4 tensors, but split.tensors.count is 5", keys={"split.tensors.count": 5})
    f.bad("block_count", "block_count is no whole number", keys={"*.block_count": "1"})
    f.bad("nextn", "nextn_predict_layers is 2; it must be from 0 to 1", keys={"*.nextn_predict_layers": 2})
    f.bad("no_topk", "expert_used_count is 0; it must be from 1 to 4", keys={"*.expert_used_count": 0})
    f.bad("topk_type", "expert_used_count is no whole number", keys={"*.expert_used_count": 2.0})
    f.bad("topk_layers", "expert_used_count is no whole number, or not one for each layer",
          keys={"*.expert_used_count": pair("qwen3moe.expert_used_count", [], U32)})
    f.bad("experts", "blk.0 has 4 experts, the router 4, the key expert_count says 8", keys={"*.expert_count": 8})
    f.bad("gating", "expert_gating_func is 5; it must be from 0 to 4", arch="deepseek2",
          keys={"*.expert_gating_func": 5})
    f.bad("scale", "key deepseek2.expert_weights_scale is nan; it must be a number", arch="deepseek2",
          keys={"*.expert_weights_scale": float("nan")})
    f.bad("two_types", "ffn_gate_exps.weight is f16, blk.0.ffn_up_exps.weight is bf16: a layer has one format",
          set_tensor(0, type="f16"))
    f.bad("down_type", "ffn_down_exps.weight is f16: x and y of a layer have one type", set_tensor(2, type="f16"))
    f.bad("no_kernels", "is iq2_xxs (GGUF type 16), for which this moek has no kernels; it has some for f32, f16, bf16",
          type="iq2_xxs", hidden=256, inter=256)
    f.bad("global_scale", "blk.0.ffn_up_exps.scale: experts in bf16 with a global scale",
          lambda x: x.tensors.append(["blk.0.ffn_up_exps.scale", [4], "f32", bytes(16)]))
    f.bad("an_expert_each", "blk.0 has a tensor for each expert, as until April 2024",
          set_tensor(2, name="blk.0.ffn_down.0.weight", sizes=[32, 64]))
    f.bad("no_up", "neither ffn_up_exps", set_tensor(1, name="blk.0.other"))
    f.bad("no_gate", "blk.0 has no ffn_gate_exps, but models of architecture qwen3moe have", gated=False, type="mxfp4")
    f.bad("gate_and_both", "neither ffn_up_exps",
          set_tensor(1, name="blk.0.ffn_gate_up_exps.weight", sizes=[64, 32, 4]))
    f.bad("shape", "ffn_up_exps.weight has sizes 32, 64, 4, 1; those of the layer are 64, 32, 4",
          set_tensor(1, sizes=[32, 64, 4]))
    f.bad("router", "blk.0 has 4 experts, the router 8", set_tensor(3, sizes=[32, 8]))
    f.bad("one_bias", "one has a bias", lambda x: x.tensors.append(["blk.0.ffn_up_exps.bias", [32, 4], "f32",
                                                                   bytes(512)]))
    f.bad("bias_type", "ffn_up_exps.bias is f16; f32 is expected",
          lambda x: x.tensors.append(["blk.0.ffn_up_exps.bias", [32, 4], "f16", bytes(256)]))
    f.bad("bias_shape", "ffn_down_exps.bias has sizes 32, 4, 1, 1",
          lambda x: x.tensors.append(["blk.0.ffn_down_exps.bias", [32, 4], "f32", bytes(512)]))
    f.bad("scale_nan", "1 of 768 scales are NaN or Inf", type="mxfp4",
          change=lambda x: set_tensor(2, blob=b"\xff" + x.tensors[2][3][1:])(x))


def refused_splits(f):
    for name, words, change in (
            ("split_missing", "there is no such file", lambda to: os.remove(to + "/model-00002-of-00003.gguf")),
            ("split_swapped", "split.no is 2, but the file is number 1",
             lambda to: shutil.copy(to + "/model-00003-of-00003.gguf", to + "/model-00002-of-00003.gguf")),
            ("split_renamed", "split.count is 3, by the name it is 2",
             lambda to: [os.rename(to + f"/model-0000{i}-of-00003.gguf", to + f"/model-0000{i}-of-00002.gguf")
                         for i in (1, 2, 3)])):
        f.good("refused_" + name, "qwen3moe", [], split=3)
        to = os.path.join(f.root, "refused_" + name)
        os.remove(os.path.join(to, "expect.txt"))
        change(to)
        with open(os.path.join(to, "sentence.txt"), "w") as opened:
            opened.write(words + "\n")


# ---- models, from tests/data/lm --------------------------------------------------------------------------------------

def load(folder):
    """{name: (dtype, shape, bytes)} of all files of a folder."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.startswith("model") or not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            header, data = json.loads(f.read(length)), f.read()
        for key, t in header.items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                tensors[key] = t["dtype"], t["shape"], data[begin:end]
    return tensors


def floats(bf16):
    return struct.unpack(f"<{len(bf16) // 2}f", b"".join(b"\0\0" + bf16[i:i + 2] for i in range(0, len(bf16), 2)))


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
MATRICES = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


def rows_of(blob, rows):
    size = len(blob) // rows
    return [blob[i * size:][:size] for i in range(rows)]


def permuted(blob, heads, rows):
    """The converter of llama: rows i and i + half of a head become 2 i and 2 i + 1."""
    r, half = rows_of(blob, rows), rows // heads // 2
    return b"".join(r[2 * half * h + i + j * half] for h in range(heads) for i in range(half) for j in range(2))


def mxfp4(blocks, scales):
    """gpt-oss has columns 2 j and 2 j + 1 in a byte, GGUF j and j + 16."""
    out = bytearray()
    for i, scale in enumerate(scales):
        codes = [c for b in blocks[16 * i:16 * i + 16] for c in (b & 15, b >> 4)]
        out += bytes([scale] + [codes[j] | codes[j + 16] << 4 for j in range(16)])
    return bytes(out)


def stacked(tensors, layer):
    """[name, sizes, type, bytes] of the experts of a layer, from modules of one expert each, or from gpt-oss's."""
    prefix, found = f"model.layers.{layer}.", {}
    for name, (dtype, shape, data) in tensors.items():
        parts = name[len(prefix):].split(".")
        if name.startswith(prefix) and "experts" in parts and parts[-1] == "weight":
            found.setdefault(MATRICES[parts[-2]], []).append((int(parts[-3]), shape, data))
    for matrix, list in found.items():
        list.sort()
        rows, columns = list[0][1]
        yield [matrix + "_exps.weight", [columns, rows, len(list)], "bf16", b"".join(x[2] for x in list)]
    for name in () if found else ("gate_up_proj", "down_proj"):
        at = prefix + "mlp.experts." + name
        if at in tensors:                              # [experts][in][out]
            count, columns, rows = tensors[at][1]
            type, of = "bf16", [rows_of(expert, columns) for expert in rows_of(tensors[at][2], count)]
            of = [[b"".join(row[2 * r:2 * r + 2] for row in expert) for r in range(rows)] for expert in of]
        else:
            count, rows, groups, _ = tensors[at + "_blocks"][1]
            type, columns = "mxfp4", 32 * groups
            of = rows_of(mxfp4(tensors[at + "_blocks"][2], tensors[at + "_scales"][2]), count)
            of = [rows_of(expert, rows) for expert in of]
        bias = [rows_of(expert, rows) for expert in rows_of(tensors[at + "_bias"][2], count)]
        for i, matrix in enumerate(["gate", "up"] if "up" in name else ["down"]):
            step = 2 if "up" in name else 1
            yield [matrix + "_exps.weight", [columns, rows // step, count], type, b"".join(
                row for expert in of for row in expert[i::step])]
            flat = floats(b"".join(row for expert in bias for row in expert[i::step]))
            yield [matrix + "_exps.bias", [rows // step, count], "f32", struct.pack(f"<{len(flat)}f", *flat)]


def nearest(type, values):
    """q8_0 and q4_0: codes to nearest, a scale by the largest value."""
    out = bytearray()
    for at in range(0, len(values), 32):
        group = values[at:at + 32]
        most = max(group, key=abs)
        d = half(struct.pack("<e", abs(most) / 127 if type == "q8_0" else most / -8))
        codes = [round(v / d) if d else 0 for v in group]
        if type == "q8_0":
            out += struct.pack("<e32b", d, *(max(-127, min(127, c)) for c in codes))
        else:
            codes = [max(0, min(15, c + 8)) for c in codes]
            out += struct.pack("<e16B", d, *(codes[i] | codes[i + 16] << 4 for i in range(16)))
    return bytes(out), decoded(type, bytes(out))


def decoded(type, blob):
    length, means = TYPES[type][2], TYPES[type][4]
    return [f32(v) for at in range(0, len(blob), length) for v in means(blob[at:at + length])]


def to_bf16(values):
    """To nearest, ties to even."""
    bits = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]
    return struct.pack(f"<{len(bits)}H", *(b + 0x7fff + (b >> 16 & 1) >> 16 for b in bits))


def quantized(rng, type, values):
    """Blocks of about the size of the values: random codes.  And what they mean."""
    number, columns, length, halves, means = TYPES[type]
    if type in ("f32", "bf16"):
        blob = b"".join(struct.pack("<f", v)[4 - length:] for v in values)
        return blob, values
    if type == "f16":
        return struct.pack(f"<{len(values)}e", *values), [half(struct.pack("<e", v)) for v in values]
    blob, means_all = noise(rng, type, len(values), 1.3 * (sum(v * v for v in values) / len(values)) ** 0.5)
    return blob, means_all


def keys_of(config):
    """What convert_hf_to_gguf.py writes of config.json."""
    c, arch = config, {"qwen3_moe": "qwen3moe", "mixtral": "llama", "gpt_oss": "gpt-oss"}.get(config["model_type"],
                                                                                          config["model_type"])
    rope = {**c, **(c.get("rope_scaling") or {}), **(c.get("rope_parameters") or {})}
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    keys = {"*.block_count": c["num_hidden_layers"], "*.embedding_length": c["hidden_size"],
            "*.feed_forward_length": c["intermediate_size"], "*.attention.head_count": c["num_attention_heads"],
            "*.attention.head_count_kv": c["num_key_value_heads"], "*.attention.key_length": head,
            "*.attention.value_length": head, "*.rope.dimension_count": head,
            "*.attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "*.rope.freq_base": rope["rope_theta"],
            "*.expert_count": c.get("num_experts") or c["num_local_experts"],
            "*.expert_used_count": c["num_experts_per_tok"]}
    if c.get("sliding_window"):
        keys["*.attention.sliding_window"] = c["sliding_window"]
    if c.get("clip_qkv"):
        keys["*.attention.clamp_kqv"] = c["clip_qkv"]
    if rope.get("rope_type") == "yarn":
        keys.update({"*.rope.scaling.type": "yarn", "*.rope.scaling.factor": rope["factor"],
                     "*.rope.scaling.original_context_length": rope["original_max_position_embeddings"]})
    return arch, keys


def widened(config, source, rng):
    """A model of the same kind whose experts have rows of 256, as K types want, and of other, random weights."""
    sizes = {config["hidden_size"]: 256, config["moe_intermediate_size"]: 256, config["num_experts"]: 3}
    config.update(hidden_size=256, moe_intermediate_size=256, num_experts=3)
    wide = {}
    for name, (dtype, shape, data) in source.items():
        parts = name.split(".")
        if "experts" in parts and int(parts[parts.index("experts") + 1]) >= 3:
            continue
        shape = [sizes.get(n, n) for n in shape]
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        spread = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        wide[name] = dtype, shape, to_bf16([rng.gauss(0 if len(shape) > 1 else 1, spread) for _ in range(count)])
    return wide


def as_blocks(rng, type, dtype, blob):
    """Weights of experts in another type, and what they mean, in bf16."""
    values = floats(blob) if dtype == "bf16" else decoded(dtype, blob)
    blob, values = (nearest if type in ("q8_0", "q4_0") else lambda *of: quantized(rng, *of))(type, values)
    return blob, to_bf16(values)


def convert(name, type, rng, of_experts=None, of_down=None, wide=False):
    """(architecture, keys, tensors, the same tensors with values in f32): matrices outside of the experts in `type`.
    of_experts, of_down: types of gate and up, and of down, if they are not the folder's; and bf16 in the second list.
    of_down is the type of the first layer alone, as in files of llama.cpp, which take a better one for some layers."""
    folder = os.path.join(ROOT, "tests/data/lm", name)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    source, tensors, plain = load(folder), [], []
    if wide:
        source = widened(config, source, rng)
    arch, keys = keys_of(config)
    for name, (dtype, shape, data) in source.items():
        if "experts" in name:
            continue
        parts = name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else None
        part = parts[-1] if parts[-1] in ("weight", "bias") else "weight"
        module = ".".join(parts[3 if layer is not None else 0:len(parts) - (parts[-1] == part)])
        to = NAMES[module]
        if arch == "gpt-oss" and to == "ffn_norm":
            to = "post_attention_norm"
        if arch == "llama" and to in ("attn_q", "attn_k"):
            data = permuted(data, config["num_attention_heads" if to == "attn_q" else "num_key_value_heads"], shape[0])
        of = "f32" if len(shape) == 1 or to == "ffn_gate_inp" else type
        to = f"{'' if layer is None else f'blk.{layer}.'}{to}.{part}"
        blob, values = quantized(rng, of, floats(data))
        tensors.append([to, shape[::-1], of, blob])
        plain.append([to, shape[::-1], "f32", struct.pack(f"<{len(values)}f", *values)])
    for layer in range(config["num_hidden_layers"]):
        for part, sizes, dtype, blob in stacked(source, layer):
            of = of_down if of_down and part.startswith("down") and not layer else of_experts
            part = f"blk.{layer}.ffn_" + part
            if of and not part.endswith("bias"):
                blob, values = as_blocks(rng, of, dtype, blob)
                tensors.append([part, sizes, of, blob])
                plain.append([part, sizes, "bf16", values])
            else:
                tensors.append([part, sizes, dtype, blob])
                plain.append([part, sizes, dtype, blob])
    return arch, keys, tensors, plain


def models(root):
    """With bf16 they are models of transformers; with other types random ones, which plain.gguf has in f32, too.  With
    blocks of experts plain.gguf has the experts in bf16."""
    kinds = [(name, "bf16") for name in ("qwen3_moe", "olmoe", "mixtral", "gpt_oss", "gpt_oss_mxfp4")]
    kinds += [("qwen3_moe", "q8_0"), ("olmoe", "q4_0"), ("mixtral", "q5_1"), ("gpt_oss_mxfp4", "iq4_nl"),
              ("gpt_oss", "f16"), ("qwen3_moe", "mxfp4"), ("qwen3_moe", "bf16", "q8_0"), ("olmoe", "q8_0", "q4_0"),
              ("mixtral", "bf16", "q8_0"), ("gpt_oss", "bf16", "q8_0"),
              ("qwen3_moe", "q8_0", "q4_K", "q6_K", True), ("olmoe", "bf16", "q4_0", "q8_0"),
              ("gpt_oss_mxfp4", "bf16", None, "q8_0")]
    for name, type, of_experts, of_down, wide in ((*kind, None, None, None)[:5] for kind in kinds):
        to = os.path.join(root, f"{name}_{type}" + (f"_experts_{of_experts}" if of_experts else "") +
                          (f"_down_{of_down}" if of_down else ""))
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        arch, keys, tensors, plain = convert(name, type, random.Random(name + type), of_experts, of_down, wide)
        File(arch, keys, tensors).write(os.path.join(to, "model.gguf"))
        if type == "bf16" and not of_experts and not of_down:
            shutil.copy(os.path.join(ROOT, "tests/data/lm", name, "golden.safetensors"), to)
        else:
            File(arch, keys, plain).write(os.path.join(to, "plain.gguf"))


def main(root):
    shutil.rmtree(root, ignore_errors=True)
    layers = Layers(os.path.join(root, "layers"))
    routed(layers)
    blocks(layers)
    two_types(layers)
    global_scales(layers)
    containers(layers)
    refused(layers)
    refused_splits(layers)
    models(os.path.join(root, "lm"))


if __name__ == "__main__":
    main(sys.argv[1])
