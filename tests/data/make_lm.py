#!/usr/bin/env python3
"""make_lm.py -- writes lm/: tiny random checkpoints of transformers, and what transformers makes of them.

    python -m venv venv
    venv/bin/pip install torch==2.15.0 transformers==5.24.0 compressed-tensors==0.20.0 safetensors==0.8.0 numpy==2.4.6
    venv/bin/python tests/data/make_lm.py tests/data/lm

A folder is one as Hugging Face has them, and golden.safetensors:
    tokens        i64 [PROMPT + NEW]           a random prompt, then the greedy choice NEW times
    logits        f32 [PROMPT + NEW][vocab]    of each position, of a run in f32
    bf16_error    f32 [1]                      relative L2 of a run in bf16 against these logits: what rounding costs
A seed is passed over if an f32 and a bf16 run might choose other experts or other tokens: no test has to allow ties.
Formats are read back by transformers (mxfp4) or by compressed-tensors (int4), not by this file; fp8 is a
multiplication."""
import json
import pathlib
import sys
import types

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GptOssConfig, MixtralConfig, Mxfp4Config, OlmoeConfig, Qwen3MoeConfig,
                          logging)

logging.set_verbosity_error()
logging.disable_progress_bar()
PROMPT, NEW = 12, 12
SMALL = dict(vocab_size=80, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             num_experts_per_tok=2, bos_token_id=0, eos_token_id=None, pad_token_id=None)
LEAST_GAP, LEAST_LEAD = 0.03, 0.15                     # between experts' logits, chosen or not; of the token chosen


def fill(model, seed):
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        values = torch.randn(p.shape)
        if "norm" in name:
            values = 1 + 0.2 * values
        elif "sinks" in name or "embed" in name:
            pass
        elif name.endswith("bias"):
            values *= 0.3
        else:
            transposed = "experts" in name and type(model).__name__.startswith("GptOss")
            gain = 1.6 if "lm_head" in name or "gate.weight" in name or "router" in name else 1.3
            values *= gain * p.shape[1 if transposed else -1] ** -0.5
        p.data = values.to(torch.bfloat16)


# ---- formats ---------------------------------------------------------------------------------------------------------

def to_mxfp4(tensors):
    """gpt-oss: [experts][in][out] -> blocks [experts][out][in / 32][16] and scales [experts][out][in / 32]."""
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        w = tensors.pop(name).float().transpose(1, 2)
        groups = w.reshape(*w.shape[:2], -1, 32)
        exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
        codes = (groups / torch.exp2(exponent))[..., None].sub(e2m1).abs().argmin(-1).to(torch.uint8)
        tensors[name + "_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        tensors[name + "_scales"] = (exponent[..., 0] + 127).to(torch.uint8)
    return {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                "model.embed_tokens", "lm_head"]}


def linears(tensors):
    return [n for n in tensors if n.endswith("_proj.weight")]


def to_int4(tensors):
    weights = dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    args = QuantizationArgs(**weights)
    how = QuantizationScheme(targets=["Linear"], weights=args)
    for name in linears(tensors):
        w = tensors.pop(name)
        groups = w.reshape(len(w), -1, 32)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        packed = PackedQuantizationCompressor.compress({"weight": w, "weight_scale": scale.to(w.dtype)}, how)
        packed.pop("weight_zero_point", None)
        for part, value in packed.items():
            tensors[name.removesuffix("weight") + part] = value
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**weights, "actorder": None}}}}


def from_int4(tensors):
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    how = QuantizationScheme(targets=["Linear"], weights=args)
    for name in [n for n in tensors if n.endswith("_packed")]:
        base = name.removesuffix("weight_packed")
        parts = {part: tensors.pop(base + part) for part in ("weight_packed", "weight_scale", "weight_shape")}
        parts["weight_scale"] = parts["weight_scale"].float()
        tensors[base + "weight"] = PackedQuantizationCompressor.decompress(parts, how)["weight"]


def to_fp8(tensors):
    for name in linears(tensors):
        w = tensors[name].float()
        scale = torch.empty(-(-w.shape[0] // 128), -(-w.shape[1] // 128))
        for i, j in torch.cartesian_prod(*(torch.arange(n) for n in scale.shape)).tolist():
            block = w[128 * i:128 * i + 128, 128 * j:128 * j + 128]
            scale[i, j] = block.abs().max() / 448
            if ".layers.1." in name:                   # both types are published
                scale[i, j] = scale[i, j].bfloat16()
            block /= scale[i, j]
        tensors[name] = w.to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale.bfloat16() if ".layers.1." in name else scale
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def from_fp8(tensors):
    for name in linears(tensors):
        w, scale = tensors[name].float(), tensors.pop(name + "_scale_inv")
        large = scale.float().repeat_interleave(128, 0).repeat_interleave(128, 1)
        tensors[name] = w * large[:w.shape[0], :w.shape[1]]


def e4m3(x):
    scale = x.to(torch.bfloat16).float().abs().amax(-1, keepdim=True) / 448            # at most 128 columns: one scale
    return ((x.to(torch.bfloat16).float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def fp8_experts(model):
    """Experts whose activations are e4m3, too."""
    def forward(self, x, ids, weights):
        y = torch.zeros_like(x)
        for k in range(ids.shape[1]):
            gate, up = torch.einsum("thi,ti->th", self.gate_up_proj[ids[:, k]], e4m3(x)).chunk(2, -1)
            h = e4m3(torch.nn.functional.silu(gate) * up)
            y += weights[:, k, None] * torch.einsum("thi,ti->th", self.down_proj[ids[:, k]], h)
        return y

    for module in model.modules():
        if type(module).__name__ == "Qwen3MoeExperts":
            module.forward = types.MethodType(forward, module)


# ---- a checkpoint ----------------------------------------------------------------------------------------------------

def published(config):
    """The keys of files that are older than transformers 5."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    config["torch_dtype"] = config.pop("dtype")


def write(folder, config, seed, shards, older, quantize_to):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fill(model, seed)
    for file in folder.glob("*"):
        file.unlink()
    model.save_pretrained(folder, max_shard_size="150KB" if shards else "5GB")
    (folder / "generation_config.json").unlink()
    of = json.loads((folder / "config.json").read_text())
    if quantize_to:
        tensors = load_file(folder / "model.safetensors")
        of["quantization_config"] = quantize_to(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if older:
        published(of)
    (folder / "config.json").write_text(json.dumps(of, indent=2) + "\n")


def read(folder, config, decode):
    """transformers' model, in f32."""
    if not decode:
        how = {"quantization_config": Mxfp4Config(dequantize=True)} if "mxfp4" in folder.name else {}
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **how)
    tensors = load_file(folder / "model.safetensors")
    decode(tensors)
    plain = folder / "plain"
    plain.mkdir()
    save_file({n: t.float().contiguous() for n, t in tensors.items()}, plain / "model.safetensors", {"format": "pt"})
    of = json.loads((folder / "config.json").read_text())
    of.pop("quantization_config")
    (plain / "config.json").write_text(json.dumps(of))
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")
    for file in plain.glob("*"):
        file.unlink()
    plain.rmdir()
    if decode == from_fp8:
        fp8_experts(model)
    return model


@torch.no_grad()
def golden(model, seed):
    """(tensors, the smallest gap between experts, the smallest lead of a token)"""
    gaps = []
    for name, module in model.named_modules():
        if name.endswith(("mlp.gate", "mlp.router")):
            k = module.top_k
            module.register_forward_hook(
                lambda m, i, out, k=k: gaps.append((lambda s: (s[:, k - 1] - s[:, k]).min().item())
                                                   (out[0].float().sort(-1, descending=True)[0])))
    torch.manual_seed(1000 + seed)
    tokens = torch.randint(0, 80, (1, PROMPT))
    for _ in range(NEW):
        logits = model(tokens).logits[0]
        tokens = torch.cat([tokens, logits[-1].argmax().view(1, 1)], 1)
    logits = model(tokens).logits[0]
    best = logits[PROMPT - 1:-1].topk(2).values
    bf16 = model.to(torch.bfloat16)(tokens).logits[0].float()
    error = ((bf16 - logits).norm() / logits.norm()).view(1)
    return ({"tokens": tokens[0], "logits": logits.contiguous(), "bf16_error": error}, min(gaps),
            (best[:, 0] - best[:, 1]).min().item(), len(set(tokens[0, PROMPT:].tolist())))


def make(root, name, config, shards=False, older=False, quantize_to=None, decode=None):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(1000):
        write(folder, config, seed, shards, older, quantize_to)
        data, gap, lead, different = golden(read(folder, config, decode), seed)
        if gap >= LEAST_GAP and lead >= LEAST_LEAD and different >= NEW // 2:
            break
    save_file(data, folder / "golden.safetensors")
    size = sum(file.stat().st_size for file in folder.glob("*"))
    print(f"{name}: seed {seed}, experts {gap:.3f} apart, tokens {lead:.2f}, bf16 off by "
          f"{data['bf16_error'].item():.2e}, {size} bytes")


def main(root):
    root = pathlib.Path(root)
    qwen = dict(SMALL, moe_intermediate_size=32, num_experts=6, head_dim=24, norm_topk_prob=True)
    gpt = dict(SMALL, intermediate_size=32, num_local_experts=6, head_dim=16, sliding_window=8,
               rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                    truncate=False, original_max_position_embeddings=400),
               max_position_embeddings=1600)
    make(root, "qwen3_moe", Qwen3MoeConfig(**qwen), older=True)
    make(root, "olmoe", OlmoeConfig(**dict(SMALL, intermediate_size=32, num_experts=6, num_experts_per_tok=3,
                                           num_key_value_heads=4, clip_qkv=1.5)), shards=True)
    make(root, "mixtral", MixtralConfig(**SMALL, intermediate_size=32, num_local_experts=6, sliding_window=8))
    make(root, "gpt_oss", GptOssConfig(**gpt))
    make(root, "gpt_oss_mxfp4", GptOssConfig(**gpt), older=True, quantize_to=to_mxfp4)
    make(root, "qwen3_moe_int4", Qwen3MoeConfig(**dict(qwen, head_dim=16)), quantize_to=to_int4, decode=from_int4)
    make(root, "qwen3_moe_fp8", Qwen3MoeConfig(**qwen), older=True, quantize_to=to_fp8, decode=from_fp8)


if __name__ == "__main__":
    main(*sys.argv[1:])
