#!/usr/bin/env python3
"""make_gguf_golden.py -- writes gguf_golden.tsv: blocks of GGUF types, and what the gguf package makes of them.

    python -m venv venv && venv/bin/pip install gguf==0.19.0 numpy==2.4.6
    venv/bin/python tests/data/make_gguf_golden.py > tests/data/gguf_golden.tsv
    venv/bin/python tests/data/make_gguf_golden.py packed > tests/data/gguf_import_golden.tsv
    venv/bin/python tests/data/make_gguf_golden.py quantized > tests/data/gguf_quantize_golden.tsv
    venv/bin/python tests/data/make_gguf_golden.py file tests/data/qwen3moe.gguf
    venv/bin/python tests/data/make_gguf_golden.py decode PROGRAM
    venv/bin/python tests/data/make_gguf_golden.py compare FOLDER

packed: matrices of blocks, and what they mean, in the columns of import_golden.tsv.  quantized: f32 weights, and the
blocks that the package makes of them; columns: type, rows, columns, weights, blocks.  file: two layers of a model that
never was, bf16 and mxfp4, by GGUFWriter; reference.* is what the package makes of the second.  decode: 20,000 blocks of
each type, which `PROGRAM decode TYPE` reads, and of which it writes f32.  compare: files of
tests/import/make_gguf.py; of what GGUFReader reads in them GGUFWriter writes the same bytes.

A line: ggml's number of the type, the block, and its f32 values, in hex.  Blocks are random, zeros, all ones, and have
scales that are 0, subnormal, the largest, negative, Inf and NaN."""
import glob
import os
import subprocess
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

np.seterr(all="ignore")
HALVES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
TYPES = ["F32", "BF16", *HALVES, "MXFP4", "NVFP4"]
EXTREME = np.array([0, 0x8000, 1, 0x83ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0x7e01, 0xbc00], np.uint16)


def blocks(rng, name, count):
    type = GGMLQuantizationType[name]
    columns, size = GGML_QUANT_SIZES[type]
    b = rng.integers(0, 256, (count, size), dtype=np.uint8)
    b[count - 2], b[count - 1] = 0, 255
    for at in HALVES.get(name, []):
        half = count // 2
        b[:half, at:at + 2] = rng.choice(EXTREME, half).astype("<u2").view(np.uint8).reshape(half, 2)
    return int(type), b, quants.dequantize(b, type).astype(np.float32).reshape(count, columns)


def golden():
    rng = np.random.default_rng(48)
    for name in TYPES:
        type, b, f = blocks(rng, name, 4 if "_K" in name or "XS" in name else 12)
        for block, values in zip(b, f):
            print(type, block.tobytes().hex(), values.astype("<f4").tobytes().hex(), sep="\t")


def quantized():
    """Rows: of several sizes; zeros and one block of -0; two of the largest, of both signs; halves between codes; the
    largest that an f16 scale holds; so small that the scale is subnormal, or 0."""
    rng = np.random.default_rng(49)
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        type, columns = GGMLQuantizationType[name], 96
        w = rng.standard_normal((16, columns)).astype(np.float32) * np.exp2(np.arange(-8, 8, dtype=np.float32))[:, None]
        odd = rng.standard_normal((8, columns)).astype(np.float32)
        odd[0, :32], odd[0, 32:64] = 0, -0.0
        odd[1, ::8], odd[1, 4::8] = 4, -4
        steps = np.tile(np.arange(-16, 16, dtype=np.float32) + 0.5, 3)
        odd[2], odd[3] = steps * 0.5, np.where(np.arange(columns) % 32 == 5, -16, steps)
        odd[4] = odd[4] / np.abs(odd[4]).max() * 65504 * 7
        odd[5], odd[6], odd[7] = odd[5] * np.float32(2e-6), odd[6] * np.float32(1e-9), np.abs(odd[7]) + 3
        w = np.concatenate([w, odd]).astype(np.float32)
        print(name.lower(), *w.shape, w.astype("<f4").tobytes().hex(), quants.quantize(w, type).tobytes().hex(),
              sep="\t")


def decode(program, count=20000):
    rng, failed = np.random.default_rng(7), 0
    for name in TYPES:
        type, b, want = blocks(rng, name, count)
        out = subprocess.run([program, "decode", str(type)], input=b.tobytes(), stdout=subprocess.PIPE,
                             check=True).stdout
        got = np.frombuffer(out, "<f4").reshape(want.shape)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        if name in ("MXFP4", "NVFP4"):                 # moek's -0, and its NaN
            same |= (got == 0) & (want == 0)
            same |= b[:, :1] == 255 if name == "MXFP4" else np.repeat(b[:, :4], 16, axis=1) >= 127
        failed += not same.all()
        print(f"{name}: {count} blocks, {int((~same).sum())} values are others")
    return failed


def file(path, hidden=32, inter=32, experts=2):
    rng, writer = np.random.default_rng(1), GGUFWriter(path, "qwen3moe")
    for key, value in (("block_count", 2), ("embedding_length", hidden), ("expert_feed_forward_length", inter),
                       ("expert_count", experts), ("expert_used_count", 1)):
        writer.add_uint32("qwen3moe." + key, value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for layer, type in enumerate((GGMLQuantizationType.BF16, GGMLQuantizationType.MXFP4)):
        for name, shape in (("gate", (inter, hidden)), ("up", (inter, hidden)), ("down", (hidden, inter))):
            blob = quants.quantize(rng.normal(0, 0.1, (experts, *shape)).astype(np.float32), type)
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight", blob, raw_dtype=type)
            if layer:
                writer.add_tensor(f"reference.{layer}.{name}", quants.dequantize(blob, type))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", rng.normal(0, 1, (experts, hidden)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(rows=10):
    """q4_0 as the package quantizes it; nvfp4, for which it has no quantizer, of random codes."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (rows, 3, 32))
    codes[:, :, 5] = 0                                 # -8: each group has its largest element
    values = ((codes - 8) * (rng.integers(8, 16, (rows, 3, 1)) / 256)).astype(np.float32).reshape(rows, 96)
    q4_0 = quants.quantize(values, GGMLQuantizationType.Q4_0)
    assert np.array_equal(quants.dequantize(q4_0, GGMLQuantizationType.Q4_0), values)
    nvfp4 = rng.integers(0, 256, (rows, 2, 36), dtype=np.uint8)
    nvfp4[:, :, :4] = rng.integers(0x20, 0x40, (rows, 2, 4))
    nvfp4 = nvfp4.reshape(rows, 72)
    for source, blocks, block, their, second in (("Q4_0_GGUF", q4_0, 32, 2, "-"),
                                                 ("NVFP4_GGUF", nvfp4, 0, 0, np.float32(0.5).tobytes().hex())):
        means = values if block else quants.dequantize(nvfp4, GGMLQuantizationType.NVFP4) * np.float32(0.5)
        bits = means.astype(np.float32).view(np.uint32)
        assert not (bits & 0xffff).any(), source       # all are bf16
        print(source, *means.shape, block, 1, their, blocks.tobytes().hex(), "-", "-", second,
              (bits >> 16).astype("<u2").tobytes().hex(), sep="\t")


def compare(folder):
    failed, again = 0, os.path.join(folder, "again.gguf")
    for path in sorted(glob.glob(folder + "/**/*.gguf", recursive=True)):
        # It writes version 3, and no gap ahead of the tensors.
        if any(name in path for name in ("refused", "version_2", "alignment_1/", "alignment_8/")):
            continue
        reader = GGUFReader(path)
        pairs = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        arch = pairs.get("general.architecture")
        writer = GGUFWriter(again, arch.contents() if arch else "")
        writer.kv_data = [{}]                          # (of split files only the first has an architecture)
        for key, f in pairs.items():
            writer.add_key_value(key, f.contents(), f.types[0],
                                 f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
        if "general.alignment" in pairs:
            writer.data_alignment = pairs["general.alignment"].contents()
        for t in reader.tensors:
            writer.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with open(path, "rb") as a, open(again, "rb") as b:
            ours, theirs = a.read(), b.read()
        # The package ends with zeros up to the alignment.
        same = theirs.startswith(ours) and not any(theirs[len(ours):]) and len(theirs) - len(ours) < 4096
        failed += not same
        print(f"{path}: {len(reader.tensors)} tensors, {'the same' if same else 'OTHER'} bytes")
        os.remove(again)
    return failed


if __name__ == "__main__":
    do = {"decode": decode, "compare": compare, "file": file, "packed": packed,
          "quantized": quantized}.get("".join(sys.argv[1:2]), golden)
    sys.exit(do(*sys.argv[2:]))
