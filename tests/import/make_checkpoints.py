"""make_checkpoints.py -- tiny checkpoints as quantizers write them, for test_checkpoint.c, in plain Python.

    make_checkpoints.py FOLDER

Codes and scales are random; what they mean is computed here, from the formats' own definitions, and lies beside them in
reference.safetensors.  Each folder is one family of quantization_config, or one way to name experts; sentence.txt: it
has to be refused with these words; expect.txt: what test_checkpoint must say of it."""
import json
import os
import random
import struct
import sys

EXPERTS = 2
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]                         # which row is at bits 4 n of a word
PROJ = ("gate_proj", "up_proj", "down_proj")


# ---- numbers ---------------------------------------------------------------------------------------------------------

def e4m3(code):
    exponent, fraction = code >> 3 & 15, code & 7
    value = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0 ** -9
    return -value if code & 128 else value


def e2m1(code):
    return -E2M1[code & 7] if code & 8 else E2M1[code & 7]


def bf16(x):
    """Bits of a number that bf16 holds."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    assert not bits & 0xffff, x
    return bits >> 16


PACK = {"F32": lambda v: struct.pack(f"<{len(v)}f", *v), "F16": lambda v: struct.pack(f"<{len(v)}e", *v),
        "BF16": lambda v: struct.pack(f"<{len(v)}H", *map(bf16, v)), "U8": bytes, "F8_E4M3": bytes, "F8_E8M0": bytes,
        "I8": lambda v: struct.pack(f"<{len(v)}b", *v), "I32": lambda v: struct.pack(f"<{len(v)}I", *v)}


def array(dtype, shape, values):
    data = PACK[dtype](values)
    return dtype, list(shape), data


def flat(rows):
    return [v for row in rows for v in row]


def words(rows, bits, count):
    """Codes of each row as words: [rows][ceil(count / per)], the first in the lowest bits."""
    per = 32 // bits
    return [[sum(code << bits * i for i, code in enumerate(row[at:at + per])) for at in range(0, count, per)]
            for row in rows]


def turned(rows):
    return [list(column) for column in zip(*rows)]


# ---- a matrix: what it means, and its parts --------------------------------------------------------------------------

class Integers:
    """Codes of `bits` bits, scales for `group` columns, and zero points."""

    def __init__(self, rng, rows, columns, bits=4, group=32, zero=False, scale="BF16", signed=False, order=None,
                 **ignored):
        self.rows, self.columns, self.bits, self.type = rows, columns, bits, scale
        group = group or columns
        groups, middle = -(-columns // group), 1 << bits - 1
        self.codes = [[rng.randrange(1 << bits) for _ in range(columns)] for _ in range(rows)]
        self.scales = [[rng.randint(1, 127) * 2.0 ** -10 * (rng.choice([1, -1]) if signed else 1)
                        for _ in range(groups)] for _ in range(rows)]
        self.zeros = [[rng.randint(1, (1 << bits) - 1) if zero else middle for _ in range(groups)] for _ in range(rows)]
        self.g_idx = order or [k // group for k in range(columns)]
        self.values = [[(c - self.zeros[r][g]) * self.scales[r][g] for c, g in zip(self.codes[r], self.g_idx)]
                       for r in range(rows)]

    def scale(self, turn=False, vector=False):
        s = turned(self.scales) if turn else self.scales
        return array(self.type, [len(s)] if vector else [len(s), len(s[0])], flat(s))

    def packed(self, parts):                           # compressed-tensors pack-quantized
        w = words(self.codes, self.bits, self.columns)
        of = {"weight_packed": array("I32", [self.rows, len(w[0])], flat(w)), "weight_scale": self.scale(),
              "weight_shape": array("I32", [2], [self.rows, self.columns])}
        if "zero" in parts:
            z = turned(words(turned(self.zeros), self.bits, self.rows))
            of["weight_zero_point"] = array("I32", [len(z), len(z[0])], flat(z))
        if "order" in parts:
            of["weight_g_idx"] = array("I32", [self.columns], self.g_idx)
        return of

    def one_a_byte(self, parts):                       # naive-quantized, int-quantized
        middle = 1 << self.bits - 1
        return {"weight": array("I8", [self.rows, self.columns], [c - middle for c in flat(self.codes)]),
                "weight_scale": self.scale()}

    def gptq(self, parts):
        w = turned(words(self.codes, self.bits, self.columns))
        less = 0 if "v2" in parts else 1
        z = words([[v - less for v in row] for row in turned(self.zeros)], self.bits, self.rows)
        return {"qweight": array("I32", [len(w), self.rows], flat(w)), "scales": self.scale(True),
                "qzeros": array("I32", [len(z), len(z[0])], flat(z)), "g_idx": array("I32", [self.columns], self.g_idx)}

    def awq(self, parts):
        def pack(rows):
            return [sum(row[at + AWQ[i]] << 4 * i for i in range(8)) for row in rows for at in range(0, len(row), 8)]
        groups = len(self.scales[0])
        return {"qweight": array("I32", [self.columns, self.rows // 8], pack(turned(self.codes))),
                "scales": self.scale(True), "qzeros": array("I32", [groups, self.rows // 8], pack(turned(self.zeros)))}

    def w4afp8(self, parts):
        codes = [c ^ 8 for c in flat(self.codes)]
        return {"weight": array("I8", [self.rows, self.columns // 2],
                                [(lambda b: b - 256 if b > 127 else b)(low | high << 4)
                                 for low, high in zip(codes[::2], codes[1::2])]), "weight_scale_inv": self.scale()}


class Floats:
    """e4m3 or e2m1 with scales of a kind: tensor, row, block, mx, nv."""

    def __init__(self, rng, rows, columns, kind="block", scale="F32", scale_of=None, **ignored):
        self.rows, self.columns, self.kind, self.type = rows, columns, kind, scale
        r, k = {"tensor": (rows, columns), "row": (1, columns), "block": (128, 128), "mx": (1, 32), "mx4": (1, 32),
                "nv": (1, 16)}[kind]
        across, self.groups = -(-rows // r), -(-columns // k)
        small = kind in ("mx4", "nv")
        self.codes = [[rng.randrange(16) if small else rng.choice([0, 128]) + rng.randrange(127)
                       for _ in range(columns)] for _ in range(rows)]
        if kind in ("mx", "mx4") or scale == "F8_E8M0":
            self.bits = [rng.randint(118, 126) for _ in range(across * self.groups)]
            scales = [2.0 ** (b - 127) for b in self.bits]
        elif kind == "nv":
            self.bits = [rng.randint(0x20, 0x7e) for _ in range(across * self.groups)]
            scales = [e4m3(b) for b in self.bits]
        else:
            scales = [rng.randint(1, 127) * 2.0 ** -16 for _ in range(across * self.groups)]
            if kind == "tensor" and scale_of is not None:
                scales = [scale_of]
            self.bits = scales
        self.across, self.second = across, 2.0 ** -rng.randint(6, 9) if kind == "nv" else 1
        decode = e2m1 if small else e4m3
        self.values = [[decode(c) * scales[i // r * self.groups + j // k] * self.second for j, c in enumerate(row)]
                       for i, row in enumerate(self.codes)]

    def scale(self, shape=None):
        kind = {"mx": self.type, "mx4": self.type, "nv": "F8_E4M3"}.get(self.kind, self.type)
        return array(kind, [self.across, self.groups] if shape is None else shape, self.bits)

    def bytes_of(self):
        c = flat(self.codes)
        if self.kind in ("mx4", "nv"):
            return array("U8", [self.rows, self.columns // 2], [a | b << 4 for a, b in zip(c[::2], c[1::2])])
        return array("F8_E4M3", [self.rows, self.columns], c)

    def fp8(self, parts):
        shape = None
        if self.kind == "tensor":
            shape = [] if "scalar" in parts else [1]
        if "pb" in parts:
            shape = [self.across, 1, self.groups, 1]
        of = {"weight": self.bytes_of(), "weight_scale_inv" if "inv" in parts else "weight_scale": self.scale(shape)}
        if "static" in parts:
            of["input_scale"] = array("F32", [], [self.columns / 1024])
        return of

    def nvfp4(self, parts):
        if "modelopt" in parts:
            return {"weight": self.bytes_of(), "weight_scale": self.scale(),
                    "weight_scale_2": array("F32", [], [self.second])}
        return {"weight_packed": self.bytes_of(), "weight_scale": self.scale(),
                "weight_global_scale": array("F32", [1], [1 / self.second])}

    def mxfp4(self, parts):
        return {"weight" if "weight" in parts else "weight_packed": self.bytes_of(),
                "scale" if "scale" in parts else "weight_scale": self.scale()}


class Plain:
    def __init__(self, rng, rows, columns, scale="BF16", **ignored):
        self.rows, self.columns, self.type = rows, columns, scale
        self.values = [[rng.randint(-127, 127) * 2.0 ** -8 for _ in range(columns)] for _ in range(rows)]

    def plain(self, parts):
        return {"weight": array(self.type, [self.rows, self.columns], flat(self.values))}


# ---- a folder --------------------------------------------------------------------------------------------------------

def save(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in sorted(tensors.items(), key=lambda t: (-len(t[1][2]) % 8, t[0])):
        data += b"\0" * (-len(data) % 8)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def config_of(model, hidden, inter, quantization, dtype="bfloat16"):
    of = {"model_type": model, "hidden_size": hidden, "num_hidden_layers": 1, "num_experts_per_tok": 1,
          "num_experts" if model in ("qwen3_moe", "olmoe") else "num_local_experts": EXPERTS, "hidden_act": "silu",
          "intermediate_size" if model in ("mixtral", "gpt_oss") else "moe_intermediate_size": inter,
          "torch_dtype": dtype}
    if quantization:
        of["quantization_config"] = quantization
    return of


class Folder:
    def __init__(self, root):
        self.root = root

    def write(self, name, config, tensors, values, says, files):
        to = os.path.join(self.root, name)
        os.makedirs(to, exist_ok=True)
        for file in os.listdir(to):
            os.remove(os.path.join(to, file))
        files = {"config.json": json.dumps(config, indent=1), **{k: json.dumps(v) for k, v in files.items()}}
        files["sentence.txt" if name.startswith("refused") else "expect.txt"] = says + "\n"
        for file, text in files.items():
            with open(os.path.join(to, file), "w") as f:
                f.write(text)
        save(os.path.join(to, "model.safetensors"), tensors)
        save(os.path.join(to, "reference.safetensors"), values)

    def make(self, name, says, cls, how, quantization, model="qwen3_moe", hidden=64, inter=32, parts="",
             module="mlp.experts.{}.", proj=PROJ, change=None, files=None, biases=False, prefix="model.layers.0.",
             down_order=None, more=None, dtype="bfloat16", gated=True, sizes=None, **of):
        """A matrix for each of gate, up, down of each expert.  cls: its class, how: the method for its parts."""
        rng, tensors, values = random.Random(name), {}, {}
        for e in range(EXPERTS):
            for i, matrix in enumerate(("gate", "up", "down")):
                if not gated and not i:
                    continue
                rows, columns = (hidden, inter) if matrix == "down" else (inter, hidden)
                if matrix == "down" and down_order:
                    of["order"] = down_order(rng, columns)
                else:
                    of.pop("order", None)
                m = cls(rng, rows, columns, **of)
                base = prefix + module.format(e) + proj[i]
                for part, value in getattr(m, how)(parts.split()).items():
                    tensors[f"{base}.{part}"] = value
                key = f"layers.0.experts.{e}.{matrix}"
                values[key] = array("F32", [rows, columns], flat(m.values))
                if biases:
                    bias = [rng.randint(-127, 127) * 2.0 ** -6 for _ in range(rows)]
                    tensors[base + ".bias"] = array(biases, [rows], bias)
                    values[key + "_bias"] = array("F32", [rows], bias)
        tensors[prefix + "input_layernorm.weight"] = array("BF16", [hidden], [1.0] * hidden)
        tensors.update(more or {})
        if change:
            change(tensors)
        config = {**config_of(model, hidden, inter, quantization, dtype), **(sizes or {})}
        self.write(name, config, tensors, values, says, files or {})

    def stack(self, name, says, model, base, both, down, weights="", turn=False, alternate=False, nv=False, **of):
        """All experts in one tensor, and gate with up: [experts][out][in], or [in][out]; nv: nvfp4 of ModelOpt."""
        hidden, inter, rng, second = 64, 32, random.Random(name), 2.0 ** -7
        tensors, values = {}, {}

        def array_of(dtype, matrices):                 # of all experts
            rows = [turned(m) if turn else m for m in matrices]
            return array(dtype, [EXPERTS, len(rows[0]), len(rows[0][0])], flat(flat(m) for m in rows))

        def joined(parts):                             # rows of gate and up, or of down
            return flat(zip(*parts)) if alternate else flat(parts)
        for module, keys, rows, columns in ((both, ("gate", "up"), inter, hidden), (down, ("down",), hidden, inter)):
            codes, scales = [], []
            for e in range(EXPERTS):
                of_expert = [Floats(rng, rows, columns, kind="nv") if nv else Plain(rng, rows, columns) for _ in keys]
                for key, m in zip(keys, of_expert):
                    factor = second / m.second if nv else 1
                    values[f"layers.0.experts.{e}.{key}"] = array("F32", [rows, columns],
                                                                  [v * factor for v in flat(m.values)])
                if not nv:
                    codes.append(joined([m.values for m in of_expert]))
                    continue
                codes.append(joined([[[a | b << 4 for a, b in zip(r[::2], r[1::2])] for r in m.codes]
                                     for m in of_expert]))
                scales.append(joined([[m.bits[r * m.groups:(r + 1) * m.groups] for r in range(rows)]
                                      for m in of_expert]))
            tensors[f"model.layers.0.{base}{module}{weights}"] = array_of("U8" if nv else "BF16", codes)
            if nv:
                tensors[f"model.layers.0.{base}{module}_weight_scale"] = array_of("F8_E4M3", scales)
                tensors[f"model.layers.0.{base}{module}_weight_scale_2"] = array("F32", [], [second])
        config = config_of(model, hidden, inter, {"quant_method": "modelopt", "quant_algo": "NVFP4"} if nv else None)
        self.write(name, {**config, **of}, tensors, values, says, {})

    def gpt_oss(self, name, says, way, quantization=None):
        """Both in one tensor, rows of gate and up alternating: stacked, per expert, or cut in two."""
        hidden, inter, rng = 64, 32, random.Random(name)
        tensors, values, stack = {}, {}, {"gate_up_proj": [], "down_proj": []}
        base = "model.layers.0.mlp.experts."
        for e in range(EXPERTS):
            gate, up, down = (Plain(rng, rows, columns) for rows, columns in
                              ((inter, hidden), (inter, hidden), (hidden, inter)))
            if way == "blocks":
                gate, up, down = (Floats(rng, m.rows, m.columns, kind="mx4") for m in (gate, up, down))
            bias = [[rng.randint(-127, 127) * 2.0 ** -6 for _ in range(m.rows)] for m in (gate, up, down)]
            for key, m, b in zip(("gate", "up", "down"), (gate, up, down), bias):
                values[f"layers.0.experts.{e}.{key}"] = array("F32", [m.rows, m.columns], flat(m.values))
                values[f"layers.0.experts.{e}.{key}_bias"] = array("F32", [m.rows], b)

            def both(a, b):
                return [v for pair in zip(a, b) for v in pair]
            rows, of_both = both(gate.values, up.values), both(bias[0], bias[1])
            if way in ("stacked", "blocks"):
                stack["gate_up_proj"].append((gate, up, rows, of_both))
                stack["down_proj"].append((down, None, down.values, bias[2]))
                continue
            modules = {"lists": ((f"gate_up_projs.{e}", rows, of_both), (f"down_projs.{e}", down.values, bias[2])),
                       "fused": ((f"gate_up.{e}", rows, of_both), (f"down.{e}", down.values, bias[2])),
                       "cut": ((f"{e}.gate_proj", rows[:inter], of_both[:inter]),
                               (f"{e}.up_proj", rows[inter:], of_both[inter:]),
                               (f"{e}.down_proj", down.values, bias[2]))}[way]
            for module, w, b in modules:
                tensors[f"{base}{module}.weight"] = array("BF16", [len(w), len(w[0])], flat(w))
                tensors[f"{base}{module}.bias"] = array("BF16", [len(b)], b)
        for module, all_of in stack.items():
            if not all_of:
                continue
            rows, columns = len(all_of[0][2]), len(all_of[0][2][0])
            tensors[f"{base}{module}_bias"] = array("BF16", [EXPERTS, rows], flat(m[3] for m in all_of))
            if way == "stacked":
                tensors[base + module] = array("BF16", [EXPERTS, columns, rows],
                                               flat(flat(turned(m[2])) for m in all_of))
                continue
            codes, scales = [], []
            for m, other, *_ in all_of:
                for r in range(m.rows):
                    for of in (m, other) if other else (m,):
                        codes += [a | b << 4 for a, b in zip(of.codes[r][::2], of.codes[r][1::2])]
                        scales += of.bits[r * of.groups:(r + 1) * of.groups]
            tensors[f"{base}{module}_blocks"] = array("U8", [EXPERTS, rows, columns // 32, 16], codes)
            tensors[f"{base}{module}_scales"] = array("U8", [EXPERTS, rows, columns // 32], scales)
        self.write(name, config_of("gpt_oss", hidden, inter, quantization), tensors, values, says, {})


def compressed(format, strategy="group", group=32, bits=4, type="int", symmetric=True, x=None, **more):
    weights = dict(num_bits=bits, type=type, strategy=strategy, group_size=group, symmetric=symmetric, dynamic=False,
                   **more)
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": x}}}


def dynamic(bits, type="float"):
    return dict(num_bits=bits, type=type, strategy="token", dynamic=True, symmetric=True)


def shuffled(group):
    def order(rng, columns):
        of = [k // group for k in range(columns)]
        rng.shuffle(of)
        return of
    return order


def compressed_tensors(f):
    f.make("ct-int4-group", "PACKED_INT4 to int4_a16", Integers, "packed", compressed("pack-quantized"))
    f.make("ct-int4-channel", "PACKED_INT4 to int4_a16", Integers, "packed",
           compressed("pack-quantized", "channel", None), group=0)
    f.make("ct-int4-asym", "PACKED_INT4 to int4_a16, zero points", Integers, "packed",
           compressed("pack-quantized", symmetric=False), zero=True, parts="zero")
    f.make("ct-int4-actorder", "PACKED_INT4 to int4_a16, act-order", Integers, "packed",
           compressed("pack-quantized", actorder="group"), inter=64, down_order=shuffled(32), parts="order")
    f.make("ct-int4-negative", "PACKED_INT4 to int4_a16", Integers, "packed", compressed("pack-quantized"), signed=True)
    f.make("ct-int8-channel", "PACKED_INT8 to int8_a16", Integers, "packed",
           compressed("pack-quantized", "channel", None, 8), bits=8, group=0)
    f.make("ct-w8a8", "INT8_BYTES to int8_a8", Integers, "one_a_byte",
           compressed("int-quantized", "channel", None, 8, x=dynamic(8, "int")), bits=8, group=0)
    f.make("ct-w4afp8", "INT4_BYTES to int4_a8", Integers, "one_a_byte",
           compressed("int-quantized", group=128, x=dynamic(8)), hidden=128, inter=128, group=128)
    f.make("ct-w4a8", "INT4_BYTES to int4_a16", Integers, "one_a_byte",
           compressed("int-quantized", group=128, x=dynamic(8, "int")), hidden=128, inter=128, group=128)
    f.make("ct-fp8-dynamic", "FP8_CHANNEL to fp8c", Floats, "fp8",
           compressed("float-quantized", "channel", None, 8, "float", x=dynamic(8)), kind="row", scale="BF16")
    f.make("ct-fp8-w8a16", "FP8_CHANNEL to fp8c_a16", Floats, "fp8",
           compressed("naive-quantized", "channel", None, 8, "float"), kind="row", scale="F32")
    f.make("ct-fp8-tensor", "FP8_TENSOR to fp8c", Floats, "fp8",
           compressed("float-quantized", "tensor", None, 8, "float", x=dict(dynamic(8), dynamic=False)), kind="tensor",
           scale="BF16", parts="static")
    f.make("ct-fp8-tensor-same", "FP8_TENSOR to fp8t, static x", Floats, "fp8",
           compressed("float-quantized", "tensor", None, 8, "float", x=dict(dynamic(8), dynamic=False)), kind="tensor",
           scale="BF16", scale_of=2.0 ** -8, parts="static")
    f.make("ct-fp8-block", "FP8_BLOCK to fp8b128", Floats, "fp8",
           compressed("float-quantized", "block", None, 8, "float", x=dynamic(8), block_structure=[128, 128]),
           kind="block", scale="BF16", hidden=192, inter=144)
    f.make("ct-mxfp8", "MXFP8 to mxfp8", Floats, "fp8", compressed("mxfp8-quantized", "group", 32, 8, "float"),
           kind="mx", scale="U8")
    f.make("ct-mxfp4", "MXFP4 to mxfp4_a16", Floats, "mxfp4",
           compressed("mxfp4-pack-quantized", "group", 32, 4, "float"), kind="mx4", scale="U8")
    f.make("ct-nvfp4", "NVFP4_PACKED to nvfp4_a16", Floats, "nvfp4",
           compressed("nvfp4-pack-quantized", "tensor_group", 16, 4, "float"), kind="nv")
    two = compressed("mixed-precision", "group", 32, 4)
    two["config_groups"]["group_0"].update(format="pack-quantized", targets=["re:.*experts.*"])
    two["config_groups"]["group_1"] = {"targets": ["re:.*self_attn.*"], "format": "float-quantized", "weights": dict(
        num_bits=8, type="float", strategy="channel", symmetric=True), "input_activations": dynamic(8)}
    f.make("ct-mixed", "PACKED_INT4 to int4_a16", Integers, "packed", two)
    two["config_groups"] = dict(reversed(two["config_groups"].items()))
    f.make("ct-mixed-turned", "PACKED_INT4 to int4_a16", Integers, "packed", two)
    f.make("ct-experts-ignored", "plain to bf16", Plain, "plain", compressed("pack-quantized"))


def gptq_and_awq(f):
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    f.make("gptq", "GPTQ_INT4 to int4_a16", Integers, "gptq", gptq, scale="F16")
    f.make("gptq-asym", "GPTQ_INT4 to int4_a16, zero points", Integers, "gptq", dict(gptq, sym=False), zero=True,
           scale="F16")
    f.make("gptq-v2", "GPTQ_V2_INT4 to int4_a16", Integers, "gptq",
           dict(gptq, checkpoint_format="gptq_v2"), parts="v2", scale="BF16")
    f.make("gptq-desc-act", "GPTQ_INT4 to int4_a16, act-order", Integers, "gptq",
           dict(gptq, desc_act=True), inter=64, down_order=shuffled(32), scale="F16")
    f.make("gptq-row", "GPTQ_INT4 to int4_a16", Integers, "gptq", dict(gptq, group_size=-1), group=0,
           scale="F16")
    f.make("gptq-8bit", "GPTQ_INT8 to int8_a16", Integers, "gptq", dict(gptq, bits=8, group_size=-1), bits=8, group=0,
           scale="F16")
    f.make("gptq-old", "GPTQ_INT4 to int4_a16", Integers, "gptq", None, scale="F16",
           files={"quantize_config.json": {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}})
    f.make("awq", "AWQ to int4_a16, zero points", Integers, "awq",
           {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}, zero=True,
           group=64, scale="F16", inter=64, dtype="float16")
    auto = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "data_type": "int"}
    f.make("auto-round-gptq", "GPTQ_INT4 to int4_a16", Integers, "gptq",
           dict(auto, packing_format="auto_round:auto_gptq"), scale="F16", signed=True)
    f.make("auto-round-awq", "AWQ to int4_a16, zero points", Integers, "awq",
           dict(auto, sym=False, packing_format="auto_round:auto_awq"), zero=True, scale="F16")
    f.make("auto-round-own", "GPTQ_V2_INT4 to int4_a16, zero points", Integers, "gptq",
           dict(auto, sym=False, packing_format="auto_round"), zero=True, parts="v2", scale="F16")
    f.make("auto-round-gptqmodel", "GPTQ_V2_INT4 to int4_a16", Integers, "gptq",
           dict(auto, packing_format="auto_round:gptqmodel"), parts="v2", scale="F16")
    f.make("auto-round-mxfp4", "MXFP4 to mxfp4_a16", Floats, "mxfp4",
           dict(auto, data_type="mx_fp", packing_format="auto_round:llm_compressor"), kind="mx4", scale="U8")
    f.make("w4afp8", "INT4_SIGNED to int4_a8", Integers, "w4afp8", {"quant_method": "w4afp8"}, hidden=128, inter=128,
           group=128, scale="F32")


def modelopt_and_fp8(f):
    for name, says, kind, how, algo, of in (
            ("nvfp4", "NVFP4_MODELOPT to nvfp4_a16", Floats, "nvfp4", "NVFP4", dict(kind="nv", parts="modelopt")),
            ("fp8", "FP8_TENSOR to fp8c", Floats, "fp8", "FP8", dict(kind="tensor", parts="scalar static")),
            ("fp8-pb-wo", "FP8_BLOCK to fp8b128_a16", Floats, "fp8", "fp8_pb_wo",
             dict(kind="block", parts="pb", hidden=256, inter=128)),
            ("mxfp4", "MXFP4 to mxfp4_a16", Floats, "mxfp4", "mxfp4", dict(kind="mx4", scale="U8", parts="weight")),
            ("mxfp8", "MXFP8 to mxfp8", Floats, "fp8", "MXFP8", dict(kind="mx", scale="U8")),
            ("mixed", "NVFP4_MODELOPT to nvfp4_a16", Floats, "nvfp4", "MIXED_PRECISION",
             dict(kind="nv", parts="modelopt")),
            ("int8", "INT8_BYTES to int8_a8", Integers, "one_a_byte", "W8A8_SQ_PER_CHANNEL",
             dict(bits=8, group=0, scale="F32"))):
        f.make(f"modelopt-{name}", says, kind, how, {"quant_method": "modelopt", "quant_algo": algo}, **of)
    f.make("modelopt-file", "NVFP4_MODELOPT to nvfp4_a16", Floats, "nvfp4", None, kind="nv", parts="modelopt",
           files={"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {
               "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}})
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    for scale in "F32", "BF16", "F8_E8M0":
        f.make(f"fp8-block-{scale.lower()}", "FP8_BLOCK to fp8b128", Floats, "fp8", block, kind="block", scale=scale,
               parts="inv", hidden=160, inter=144)
    f.make("fp8-mxfp4-experts", "MXFP4 to mxfp4_a16", Floats, "mxfp4", block, "deepseek_v4", kind="mx4",
           scale="F8_E8M0", module="ffn.experts.{}.", proj=("w1", "w3", "w2"), parts="weight scale",
           sizes={"expert_dtype": "fp4"})
    for end in "inv", "":
        f.make(f"mxfp8-{end or 'scale'}", "MXFP8 to mxfp8", Floats, "fp8", {"quant_method": "mxfp8"}, kind="mx",
               scale="F8_E8M0", parts=end)
    f.make("fp8-tensor", "FP8_TENSOR to fp8c", Floats, "fp8", {"quant_method": "fp8", "activation_scheme": "dynamic"},
           kind="tensor")


def names(f):
    sparse, proj = "block_sparse_moe.experts.{}.", ("w1", "w3", "w2")
    f.make("names-mixtral", "plain to bf16", Plain, "plain", None, "mixtral", module=sparse, proj=proj)
    f.make("names-mixtral-proj", "plain to bf16", Plain, "plain", None, "mixtral", module=sparse)
    f.make("names-mixtral-mlp", "plain to bf16", Plain, "plain", None, "mixtral")
    f.make("names-fp16", "plain to fp16", Plain, "plain", None, scale="F16", dtype="float16")
    f.make("names-unknown-model", "plain to bf16", Plain, "plain", None, "my_own_moe")
    f.make("names-language-model", "plain to bf16", Plain, "plain", None, prefix="model.language_model.layers.0.")
    f.gpt_oss("names-gpt-oss", "plain to bf16, biases, interleaved, swigluoai", "stacked")
    f.gpt_oss("names-gpt-oss-mxfp4", "MXFP4 to mxfp4_a16, biases, interleaved, swigluoai", "blocks",
              {"quant_method": "mxfp4"})
    f.gpt_oss("names-gpt-oss-fused", "plain to bf16, biases, interleaved, swigluoai", "fused")
    f.gpt_oss("names-gpt-oss-lists", "plain to bf16, biases, interleaved, swigluoai", "lists")
    f.gpt_oss("names-gpt-oss-cut", "plain to bf16, biases, interleaved, swigluoai", "cut",
              {"quant_method": "gptq", "meta": {"quantizer": ["gptqmodel:5.0.0"]}})
    experts = "mlp.experts."
    f.stack("names-gpt-oss-nvfp4", "NVFP4_MODELOPT to nvfp4_a16, interleaved, swigluoai", "gpt_oss", experts,
            "gate_up_proj", "down_proj", turn=True, alternate=True, nv=True)
    f.stack("names-qwen3-5", "plain to bf16", "qwen3_5_moe", experts, "gate_up_proj", "down_proj",
            moe_intermediate_size=32)
    f.stack("names-qwen3-vl", "plain to bf16", "qwen3_vl_moe", experts, "gate_up_proj", "down_proj", turn=True,
            moe_intermediate_size=32)
    f.stack("names-llama-4", "plain to bf16", "llama4", "feed_forward.experts.", "gate_up_proj", "down_proj", turn=True)
    f.stack("names-granite", "plain to bf16", "granitemoe", "block_sparse_moe.", "input_linear", "output_linear",
            weights=".weight", intermediate_size=32)
    for more, biases in ("", False), ("-biases", "BF16"):
        f.make("names-nemotron" + more, "plain to bf16" + (", biases" if biases else "") + ", relu2_no_mul", Plain,
               "plain", None, "nemotron_h", module="mixer.experts.{}.", prefix="backbone.layers.0.", gated=False,
               biases=biases, sizes={"mlp_hidden_act": "relu2", "n_routed_experts": EXPERTS})
    f.make("names-no-gate", "plain to bf16, gelu_tanh_no_mul", Plain, "plain", None, "nemotron_h", gated=False,
           module="mixer.experts.{}.", prefix="backbone.layers.0.", sizes={"hidden_activation": "gelu_pytorch_tanh",
                                                                           "n_routed_experts": EXPERTS})
    f.make("names-lfm2", "plain to bf16", Plain, "plain", None, "lfm2_moe", module="feed_forward.experts.{}.",
           proj=proj)
    f.make("names-gpt-oss-apart", "GPTQ_INT4 to int4_a16, biases, swigluoai", Integers, "gptq",
           {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "gpt_oss", biases="F16", scale="F16")


def refused(f):
    int4 = compressed("pack-quantized")
    f.make("refused-names", "model.layers.0.mlp.experts.0.down_proj.weight_packed is not in the folder, which has "
           "model.layers.0.mlp.specialists.0.down_proj.weight_packed", Integers, "packed", int4,
           module="mlp.specialists.{}.")
    f.make("refused-group", "has 4096 bytes", Plain, "plain", None, hidden=128, change=lambda t: t.update(
        {k: (d, [32, 64], v[:4096]) for k, (d, s, v) in t.items() if "gate_proj" in k}))
    f.make("refused-group-size", "weight_scale has 64 scales; int4_a16 wants 32", Integers, "packed",
           compressed("pack-quantized", group=64))
    f.make("refused-transposed", "is it transposed?", Floats, "fp8",
           {"quant_method": "fp8", "activation_scheme": "dynamic"}, kind="tensor", change=lambda t: t.update(
               {k: (d, s[::-1], v) for k, (d, s, v) in t.items() if k.endswith("proj.weight")}))
    f.make("refused-int8-groups", "int8 with a scale for 32 columns", Integers, "packed",
           compressed("pack-quantized", bits=8), bits=8)
    f.make("refused-gemv", "AWQ of another version", Integers, "awq",
           {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, scale="F16")
    f.make("refused-3bit", "GPTQ with bits: 3", Integers, "gptq", {"quant_method": "gptq", "bits": 3, "group_size": 32},
           scale="F16")
    f.make("refused-block-16", "a scale for 16 columns", Integers, "packed", compressed("pack-quantized", group=16),
           group=16)
    f.make("refused-method", "quant_method bitsandbytes", Integers, "packed", {"quant_method": "bitsandbytes"})
    f.make("refused-pre-quant", "no place for that", Floats, "nvfp4",
           {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, kind="nv", parts="modelopt", more={
               f"model.layers.0.mlp.experts.{e}.{p}.pre_quant_scale": array("BF16", [64 if p != "down_proj" else 32],
                                                                            [1.0] * (64 if p != "down_proj" else 32))
               for e in range(EXPERTS) for p in PROJ})
    f.make("refused-act-order", "model.layers.0.mlp.experts.0.up_proj.g_idx: g_idx[1] is 1", Integers, "gptq",
           {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, scale="F16",
           change=lambda t: t.update({k: array("I32", [64], [i % 2 for i in range(64)])
                                      for k in t if k.endswith("up_proj.g_idx")}))
    f.make("refused-expert-count", "but config.json has 2 experts", Plain, "plain", None, more={
        "model.layers.0.mlp.experts.2.down_proj.weight": array("BF16", [64, 32], [0.0] * 2048)})
    f.make("refused-gptq-sym", "zero points", Integers, "gptq",
           {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, zero=True, scale="F16")
    f.make("refused-fp8-block", "fp8 with weight_block_size [128,64]", Floats, "fp8",
           {"quant_method": "fp8", "weight_block_size": [128, 64]}, kind="block", parts="inv", hidden=160, inter=144)
    stray = "model.layers.0.mlp.experts.down_proj_bias"
    f.make("refused-stray-bias", stray + ": biases of all experts in one tensor", Plain, "plain", None, "gpt_oss",
           more={stray: array("BF16", [EXPERTS, 64], [1.0] * 64 * EXPERTS)})
    f.make("refused-half-biases", "there is no bias of 32 rows", Plain, "plain", None, "gpt_oss", biases="BF16",
           change=lambda t: [t.pop(k) for k in list(t) if k.endswith("up_proj.bias")])
    for name, says, end, kind, how, quantization, of in (
            ("zeros", "gate_proj.qzeros is empty", ".qzeros", Integers, "gptq",
             {"quant_method": "gptq", "bits": 4, "group_size": 32}, dict(zero=True, scale="F16")),
            ("global", "gate_proj.weight_scale_2 is empty", ".weight_scale_2", Floats, "nvfp4",
             {"quant_method": "modelopt", "quant_algo": "NVFP4"}, dict(kind="nv", parts="modelopt"))):
        f.make("refused-empty-" + name, says, kind, how, quantization, change=lambda t, end=end: t.update(
            {k: (d, [0] + s[1:], b"") for k, (d, s, v) in t.items() if k.endswith(end)}), **of)
    f.make("refused-no-zeros", "experts.1.up_proj.qzeros is not in the folder", Integers, "gptq",
           {"quant_method": "gptq", "bits": 4, "group_size": 32}, zero=True, scale="F16",
           change=lambda t: t.pop("model.layers.0.mlp.experts.1.up_proj.qzeros"))
    f.make("refused-act", "config.act is 0", Plain, "plain", None, sizes={"hidden_act": "quick_gelu"})
    f.make("refused-static", "no .input_scale above 0 of gate and up", Floats, "fp8",
           compressed("float-quantized", "tensor", 0, 8, "float", x={"num_bits": 8, "type": "float", "dynamic": False}),
           kind="tensor", scale="BF16", scale_of=2.0 ** -8, parts="static", change=lambda t: [
               t.pop(k) for k in list(t) if k.endswith("input_scale") and "down_proj" not in k])
    f.make("refused-type", "has type F32", Plain, "plain", None, scale="F32")
    f.make("refused-last-expert", "model.layers.0.mlp.experts.1.up_proj.weight is not in the folder", Plain, "plain",
           None, change=lambda t: t.pop("model.layers.0.mlp.experts.1.up_proj.weight"))


def main(root):
    f = Folder(root)
    for part in compressed_tensors, gptq_and_awq, modelopt_and_fp8, names, refused:
        part(f)
    print(f"{root}: {len(os.listdir(root))} folders")


if __name__ == "__main__":
    main(*sys.argv[1:])
