#!/usr/bin/env python3
"""make_import_golden.py -- writes import_golden.tsv: bytes that public packers made of known weights, and the weights.

    python -m venv venv && venv/bin/pip install compressed-tensors==0.20.0 gguf==0.19.0 torch==2.15.0 numpy==2.4.6
    venv/bin/pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1     and unpack both
    venv/bin/python tests/data/make_import_golden.py AUTOAWQ_FOLDER AUTOGPTQ_FOLDER > tests/data/import_golden.tsv

Of autoawq and auto-gptq one file each is loaded, with stand-ins for the packages that the file imports but packing
does not use.  Columns: source, rows, columns, block, dtype of moek's scales, of the file's, w, scale, zero, global
(bytes as hex, - for none), values (bf16, [rows][columns]).
"""
import importlib.util
import sys
import types

import numpy as np
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gguf import GGMLQuantizationType, quants

torch.manual_seed(1)
BF16, FP16, F32 = 1, 2, 3                              # MOEK_DTYPE_*
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def stub(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(members)
    return module


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raw(tensor):
    if tensor is None:
        return "-"
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).tobytes().hex()
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def line(source, values, block, dtype, their, w, scale=None, zero=None, second=None):
    rounded = values.to(torch.bfloat16)
    assert torch.equal(rounded.float(), values.float()), source
    arrays = [raw(array) for array in (w, scale, zero, second, rounded)]
    print(source, *values.shape, block, dtype, their, *arrays, sep="\t")


def some(*shape):                                      # scales of four bits, near 1 / 16: products fit bf16
    return torch.randint(8, 16, shape) / 256.0


def fp4(rows, columns, of, scale):
    codes = torch.randint(0, 16, (rows, columns))
    codes[:, ::of] = 7                                 # each group has its largest element
    return E2M1[codes] * scale.repeat_interleave(of, 1)


def scheme(**facts):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**facts))


def mxfp4(rows=10, columns=96):
    how = scheme(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)
    scale = torch.exp2(torch.randint(-9, 3, (rows, columns // 32)).float())
    values = fp4(rows, columns, 32, scale)
    packed = MXFP4PackedCompressor.compress({"weight": values, "weight_scale": scale}, how)
    again = MXFP4PackedCompressor.decompress(packed, how)["weight"]
    assert torch.equal(again.float(), values)
    line("MXFP4", values, 0, BF16, 0, packed["weight_packed"], packed["weight_scale"])
    blocks = quants.quantize(values.numpy(), GGMLQuantizationType.MXFP4)
    assert np.array_equal(quants.dequantize(blocks, GGMLQuantizationType.MXFP4), values.numpy())
    line("MXFP4_GGUF", values, 0, BF16, 0, blocks)


def nvfp4(rows=10, columns=64):
    how = scheme(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                 scale_dtype=torch.float8_e4m3fn)
    second = torch.tensor([8.0])
    scale = torch.randint(8, 16, (rows, columns // 16)) * 0.25
    values = fp4(rows, columns, 16, scale / second)
    packed = NVFP4PackedCompressor.compress(
        {"weight": values, "weight_scale": scale, "weight_global_scale": second}, how)
    again = NVFP4PackedCompressor.decompress(packed, how)["weight"]
    assert torch.equal(again.float(), values)
    line("NVFP4_PACKED", values, 0, BF16, 0, packed["weight_packed"], packed["weight_scale"], None, second)


def packed(source, bits, symmetric, rows, columns, block):
    how = scheme(num_bits=bits, type="int", strategy="group" if block else "channel", symmetric=symmetric,
                 **({"group_size": block} if block else {}))
    half, of = 1 << (bits - 1), block or columns
    scale = some(rows, columns // of) if bits == 4 else torch.full((rows, 1), 0.25)
    scale = scale.to(torch.bfloat16)
    codes = torch.randint(-half, half, (rows, columns))
    zero = torch.zeros(rows, columns // of) if symmetric else torch.randint(-half, half, (rows, columns // of))
    values = (codes - zero.repeat_interleave(of, 1)) * scale.float().repeat_interleave(of, 1)
    state = {"weight": values, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    out = PackedQuantizationCompressor.compress(state, how)
    again = PackedQuantizationCompressor.decompress(out, how)["weight"]
    assert torch.equal(again.float(), values)
    line(source, values, block, BF16, BF16, out["weight_packed"], out["weight_scale"],
         None if symmetric else out["weight_zero_point"])


def gptq(folder, bits, block, rows=32, columns=64):
    conv1d = type("Conv1D", (), {})
    stub("transformers", pytorch_utils=types.SimpleNamespace(Conv1D=conv1d))
    linear_of = load("qlinear", folder + "/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py").QuantLinear
    top, of = 1 << bits, block or columns
    groups = columns // of
    # Zero points from 1 up: this packer damages the words of others (less 1 is -1).
    zero = torch.randint(1, top, (rows, groups)) if bits == 4 else torch.full((rows, groups), top // 2)
    scale = some(rows, groups) if bits == 4 else torch.full((rows, groups), 0.25)
    codes = torch.randint(0, top, (rows, columns))
    values = (codes - zero.repeat_interleave(of, 1)) * scale.repeat_interleave(of, 1)
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = values
    q = linear_of(bits, block or -1, columns, rows, False)
    q.pack(linear, scale, zero.float(), None)
    line(f"GPTQ_INT{bits}", values, block, FP16, FP16, q.qweight, q.scales.half(), q.qzeros)


def awq(folder, block, rows=32, columns=64):
    stub("awq"), stub("awq.utils"), stub("awq.utils.module", try_import=lambda name: (None, ""))
    stub("awq.utils.utils", get_best_device=lambda: "cpu")
    packing = load("awq.utils.packing_utils", folder + "/awq/utils/packing_utils.py")
    gemm = load("awq_gemm", folder + "/awq/modules/linear/gemm.py")
    groups = columns // block
    zero, scale = torch.randint(0, 16, (groups, rows)), some(groups, rows)
    codes = torch.randint(0, 16, (rows, columns))
    values = (codes - zero.t().repeat_interleave(block, 1)) * scale.t().repeat_interleave(block, 1)
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = values
    q = gemm.WQLinear_GEMM.from_linear(linear, 4, block, scales=scale, zeros=zero.float())
    again = packing.dequantize_gemm(q.qweight, q.qzeros, q.scales, 4, block)
    assert torch.equal(again.t().float(), values)
    line("AWQ", values, block, FP16, FP16, q.qweight, q.scales, q.qzeros)


def main():
    mxfp4()
    nvfp4()
    packed("PACKED_INT4", 4, True, 10, 64, 32)
    packed("PACKED_INT4", 4, False, 10, 96, 32)
    packed("PACKED_INT4", 4, False, 9, 128, 64)
    packed("PACKED_INT8", 8, True, 9, 36, 0)
    gptq(sys.argv[2], 4, 32)
    gptq(sys.argv[2], 8, 0, columns=32)
    awq(sys.argv[1], 32)


main()
