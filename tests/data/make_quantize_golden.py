#!/usr/bin/env python3
"""make_quantize_golden.py -- writes quantize_golden.tsv: weights, and what public packages make of them in a format.

    python -m venv venv && venv/bin/pip install compressed-tensors==0.20.0 gguf==0.19.0 torch==2.15.0 numpy==2.4.6
    venv/bin/pip download --no-deps nvidia-modelopt==0.47.0     and unpack it
    venv/bin/python tests/data/make_quantize_golden.py MODELOPT_FOLDER > tests/data/quantize_golden.tsv

Of nvidia-modelopt the files of qtensor/ are loaded, with stand-ins for what they import: maxima of blocks.  Columns:
source, format, recipe, rows, columns, block, dtype of moek's scales, weights (in the source's type), w, scale, global
(bytes as hex, - for none).  Some packages differ where a number lies in the middle between two codes: their weights are
f32, of which none does.  -0 may be 0.
"""
import importlib.util
import sys
import types

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from gguf import GGMLQuantizationType, quants

torch.manual_seed(2)
BF16, F32 = "BF16", "F32"
T = 1                                                  # MOEK_DTYPE_BF16
FLOOR, ROUND, CEIL, NARROW = 1, 2, 3, 4                # MOEK_RECIPE_*
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def modelopt(folder):
    base = "modelopt.torch.quantization."

    def stub(name, **members):
        module = sys.modules[(base + name).rstrip(".")] = types.ModuleType(base + name)
        module.__path__ = []
        module.__dict__.update(members)

    class Quantized:
        def __init__(self, shape, dtype, data):
            self.data = data

    def blocks(x, sizes):
        return x.unflatten(-1, (-1, sizes[-1])).abs().amax(-1)

    for name in ("", "qtensor", "backends"):
        stub(name)
    stub("qtensor.base_qtensor", BaseQuantizedTensor=Quantized)
    stub("backends.utils", fp4_compatible=lambda: False)
    stub("utils", reduce_block_amax=lambda x, block_sizes: blocks(x, block_sizes),
         reduce_block_padding=lambda x, block_sizes: x, convert_quantization_axis_to_reduce_axis=lambda x, axis: -1,
         reduce_amax=lambda x, axis=None, **_: x.abs().amax() if axis is None else x.abs().amax(axis, keepdim=True))
    stub("utils.numeric_utils", E2M1_MAX=6.0, E4M3_MAX=448.0, fp8_max_for_normalization=lambda q: 448.0)
    for name, needs in (("nvfp4", "NVFP4QTensor"), ("mxfp4", "MXFP4QTensor"), ("mxfp8", "MXFP8QTensor"),
                        ("int8", "INT8QTensor")):
        full = f"{base}qtensor.{name}_tensor"
        spec = importlib.util.spec_from_file_location(full, f"{folder}/modelopt/torch/quantization/qtensor/"
                                                            f"{name}_tensor.py")
        module = sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield getattr(module, needs)


def raw(array):
    if array is None:
        return "-"
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).tobytes().hex()
    return array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()


def line(source, quant, recipe, weights, block, w, scale, second=None):
    print(source, quant, recipe, *weights.shape, block, T, raw(weights.bfloat16() if source == BF16 else weights),
          raw(w), raw(scale), raw(second), sep="\t")


def some(rows, columns, kind=BF16):                    # rows of different sizes, a group of zeros
    weights = torch.randn(rows, columns) * torch.exp2(torch.randint(-9, 1, (rows, 1)).float())
    if kind == BF16:
        weights = weights.bfloat16().float()
        weights[0, :32] = 0
    return weights


def pack4(codes):
    codes = codes.to(torch.uint8) & 15
    return codes[:, ::2] | codes[:, 1::2] << 4


def e2m1(values):                                      # exact ones
    magnitude = (values.abs().unsqueeze(-1) == E2M1[:8]).int().argmax(-1)
    return pack4(magnitude + 8 * (values < 0))


def tensors(weights, of, **facts):
    """scale, codes as numbers: compressed-tensors, from the largest and smallest of each row of `of`."""
    args = QuantizationArgs(symmetric=True, **facts)
    scale, zero = calculate_qparams(of.amin(-1), of.amax(-1), args)
    return args, scale, zero


def fp8():
    weights = some(5, 72)
    args, scale, zero = tensors(weights, weights.reshape(1, -1), num_bits=8, type="float", strategy="tensor")
    codes = quantize(weights, scale, None, args, dtype=torch.float8_e4m3fn)
    line(BF16, "fp8t", 0, weights, 0, codes, scale)
    args, scale, zero = tensors(weights, weights, num_bits=8, type="float", strategy="channel")
    codes = quantize(weights, scale.unsqueeze(-1), None, args, dtype=torch.float8_e4m3fn)
    line(BF16, "fp8c", 0, weights, 0, codes, scale)
    weights = some(12, 200)                            # two blocks, the second with fewer columns
    first, second = weights[:, :128].reshape(1, -1), weights[:, 128:].reshape(1, -1)
    scales = [tensors(weights, of, num_bits=8, type="float", strategy="block", block_structure=[128, 128])[1]
              for of in (first, second)]
    args = QuantizationArgs(symmetric=True, num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    scale = torch.stack(scales, 1)
    codes = quantize(weights, scale, None, args, dtype=torch.float8_e4m3fn)
    line(BF16, "fp8b128", 0, weights, 0, codes, scale)


def mx(mxfp4, mxfp8):
    for bits, quant in ((4, "mxfp4_a16"), (8, "mxfp8")):
        weights = some(6, 96)
        weights[0, :32] = 1.75                         # (it has no scale for zeros)
        args, scale, zero = tensors(weights, weights.unflatten(-1, (-1, 32)), num_bits=bits, type="float",
                                    strategy="group", group_size=32, scale_dtype=torch.uint8)
        args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32, symmetric=True)
        values = quantize(weights, scale.float(), None, args)
        line(BF16, quant, ROUND, weights, 0, e2m1(values) if bits == 4 else values.to(torch.float8_e4m3fn),
             (scale.float().log2() + 127).to(torch.uint8))
    weights = some(6, 96, F32)
    codes, scale = mxfp4.quantize(weights, 32)
    line(F32, "mxfp4_a16", CEIL, weights, 0, codes.data, scale)
    weights = some(6, 96)
    codes, scale = mxfp8.quantize(weights)
    line(BF16, "mxfp8", CEIL, weights, 0, codes.data, scale)
    weights = some(6, 96, F32)
    blocks = quants.quantize(weights.numpy(), GGMLQuantizationType.MXFP4)
    exponents = torch.from_numpy(blocks.reshape(-1, 17)[:, 0].copy()).reshape(6, 3)
    values = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType.MXFP4))
    values = values.unflatten(-1, (-1, 32)) / torch.exp2(exponents.float() - 127).unsqueeze(-1)
    line(F32, "mxfp4_a16", FLOOR, weights, 0, e2m1(values.flatten(1)), exponents)


def nvfp4(of):
    weights = some(6, 96)
    codes, scale, second = of.quantize(weights.clone(), 16)
    line(BF16, "nvfp4_a16", 0, weights, 0, codes.data, scale, second.reshape(1))


def integers(int8):
    for block in (32, 64, 128, 0):
        weights = some(4, 128)
        of = weights.unflatten(-1, (-1, block)) if block else weights.unsqueeze(1)
        group = {"group_size": block} if block else {}
        strategy = "group" if block else "channel"
        weights[0, :32] = 0.25
        args, scale, zero = tensors(weights, of, num_bits=4, type="int", strategy=strategy, **group)
        scale = scale.bfloat16()
        how = QuantizationScheme(targets=["Linear"], weights=args)
        out = PackedQuantizationCompressor.compress({"weight": weights, "weight_scale": scale.float()}, how)
        line(BF16, "int4_a16", 0, weights, block, out["weight_packed"], scale)
    weights = some(4, 128)
    args, scale, zero = tensors(weights, weights, num_bits=8, type="int", strategy="channel")
    codes = quantize(weights, scale.unsqueeze(-1), None, args, dtype=torch.int8)
    line(BF16, "int8_a16", 0, weights, 0, codes, scale)
    weights = some(4, 128)
    codes, scale = int8.quantize(weights, axis=0)
    line(BF16, "int8_a16", NARROW, weights, 0, codes.data, scale)


def main():
    nvfp4_of, mxfp4, mxfp8, int8 = modelopt(sys.argv[1])
    fp8()
    mx(mxfp4, mxfp8)
    nvfp4(nvfp4_of)
    integers(int8)


if __name__ == "__main__":
    main()
