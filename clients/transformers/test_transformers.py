"""test_transformers.py -- small random models of many classes: logits and greedy tokens of "moek" against eager ones.

   python clients/transformers/test_transformers.py [quick] [cuda] [TEST ...]       quick: all but torch.compile, and
                                                                the library without -O3, which takes a minute

The last line counts, as that of all tests does; where torch or transformers is missing, one test is skipped.

Logits of whole models: eager in f32, of the same bf16 weights, is the truth.  "moek" may be off by 1.25 times what
eager in bf16 is off by, and by 1e-3 more, in relative L2: the median over tokens, since a token whose experts score
alike may take another one after any rounding.  Experts must matter: without them logits are off by 20 times that bound.
Blocks: what each one made of its input, against f32, per token and at most.
Tokens: those of eager, up to a step where the best two logits of eager are close: a tenth of their standard deviation.
"""
import ast
import contextlib
import copy
import ctypes
import importlib.util
import io
import itertools
import json
import logging
import os
import pathlib
import re
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "cuda" not in sys.argv:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""            # what transformers does on a CPU depends on a GPU beside

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers.integrations import moe
    assert int(transformers.__version__.split(".")[0]) >= 5
except (ImportError, AssertionError) as missing:
    print(f"no torch with transformers 5 for {sys.executable}: {missing}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit()

import moek_layers
import moek_torch
import moek_transformers

if "quick" in sys.argv:
    optimized = moek_torch._compilers
    moek_torch._compilers = lambda *of: [["-O1" if word == "-O3" else word for word in c] for c in optimized(*of)]

SMALL = dict(vocab_size=160, hidden_size=64, intermediate_size=96, moe_intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128, num_experts=8,
             num_local_experts=8, n_routed_experts=8, num_experts_per_tok=2, initializer_range=0.1, pad_token_id=0,
             bos_token_id=1, eos_token_id=None, tie_word_embeddings=False)
LATENT = dict(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
              num_key_value_heads=4, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1)
CLASSES = {                                            # model: what its config has beside SMALL
    "Mixtral": {},
    "Qwen2Moe": dict(shared_expert_intermediate_size=64),
    "Qwen3Moe": dict(norm_topk_prob=True),
    "Qwen3Next": dict(shared_expert_intermediate_size=64, linear_num_value_heads=4, linear_num_key_heads=2,
                      linear_key_head_dim=16, linear_value_head_dim=16,
                      layer_types=["linear_attention", "full_attention"]),
    "Olmoe": {},
    "DeepseekV2": dict(LATENT, topk_method="group_limited_greedy"),
    "DeepseekV3": dict(LATENT, head_dim=8),
    "Glm4Moe": dict(n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1),
    "GptOss": dict(layer_types=["sliding_attention", "full_attention"], sliding_window=16),
    "Llama4Text:Llama4": dict(intermediate_size_mlp=96, num_experts_per_tok=1, interleave_moe_layer_step=1,
                              moe_layers=[0, 1], layer_types=["full_attention", "full_attention"]),
    "MiniMaxM2": dict(rotary_dim=8),
    "Phimoe": {},
    "Ernie4_5_Moe": dict(moe_num_experts=8, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=0,
                         moe_layer_end_index=1, moe_layer_interval=1),
    "NemotronH": dict(layers_block_type=["mamba", "moe", "attention", "moe"], num_hidden_layers=4, mamba_num_heads=4,
                      mamba_head_dim=16, ssm_state_size=16, n_groups=2, n_group=1, topk_group=1, chunk_size=16,
                      moe_shared_expert_intermediate_size=64, n_shared_experts=1, routed_scaling_factor=1.0),
    "Gemma4Text:Gemma4": dict(enable_moe_block=True, top_k_experts=2, num_global_key_value_heads=2,
                              global_head_dim=16, layer_types=["sliding_attention", "full_attention"],
                              vocab_size_per_layer_input=160, hidden_size_per_layer_input=0, num_kv_shared_layers=0),
    "HunYuanMoEV1": dict(moe_topk=[2, 2], moe_intermediate_size=[48, 48], num_shared_expert=[1, 1]),
    "Lfm2Moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "DeepseekV4": {},
}
PROMPT, STEPS, DEVICE = 21, 12, "cuda" if "cuda" in sys.argv else "cpu"
FP8 = 8e-2                                             # x and h are e4m3: 2^-4 at most each, 0.03 on average
BLOCK = 8e-3                                           # x, h, o and y of a block are bf16: 2^-9 each, and sums


def build(name, dtype=torch.bfloat16, **more):
    config, _, model = name.partition(":")
    config = getattr(transformers, config + "Config")(**{**SMALL, **CLASSES[name], **more})
    torch.manual_seed(1)
    model = getattr(transformers, (model or name) + "ForCausalLM")(config).eval().requires_grad_(False)
    for key, value in [*model.named_parameters(), *model.named_buffers()]:
        if "bias" in key or "correction" in key or "statics" in key:       # what starts as zeros
            value.add_(0.1 * torch.randn_like(value))
        elif "proj" in key and value.dim() == 3:
            value.normal_(0, value.shape[-1] ** -0.5)
    return model.to(dtype).to(DEVICE)


def prompt():
    return torch.randint(2, SMALL["vocab_size"], (2, PROMPT), generator=torch.Generator().manual_seed(2)).to(DEVICE)


def some(tokens):                                      # what a block of SMALL takes: x, ids, weights
    return (torch.randn(tokens, 64).bfloat16().to(DEVICE), torch.rand(tokens, 8).topk(2)[1].to(DEVICE),
            torch.rand(tokens, 2).to(DEVICE))


def off(got, want):                                    # relative L2 of each token
    got, want = got.double().flatten(0, -2), want.double().flatten(0, -2)
    return (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)


def is_block(module):                                  # the experts; in Llama 4, where moek takes the router in, both
    return hasattr(module, "is_concatenated") or type(module).__name__ == "Llama4TextMoe"


def eager(model):
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    return model


def without_experts(model, ids):
    for block in filter(is_block, model.modules()):
        block = getattr(block, "experts", block)
        block.down_proj.zero_()
        if getattr(block, "has_bias", False):
            block.down_proj_bias.zero_()
    return model(ids).logits


def run_with_blocks(model, exact, ids):
    """Logits of the model, and the largest error of a token in a block: each block's input goes to that of `exact`."""
    exact, worst, hooks = dict(exact.named_modules()), [], []
    for name, block in model.named_modules():
        if is_block(block):
            def compare(_, inputs, out, block=exact[name]):
                want = block(*[x.float() if x.is_floating_point() else x for x in inputs])
                out, want = (v[0] if isinstance(v, tuple) else v for v in (out, want))
                worst.append(off(out, want).max().item())
            hooks.append(block.register_forward_hook(compare))
    logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    return logits, max(worst)


def greedy(model, ids):
    steps = []
    for _ in range(STEPS):
        steps.append(model(ids, use_cache=False).logits[:, -1].float())
        ids = torch.cat([ids, steps[-1].argmax(-1, keepdim=True)], 1)
    return ids[:, -STEPS:], torch.stack(steps, 1)


def check_tokens(got, want, logits):
    for row, (a, b) in enumerate(zip(got.tolist(), want.tolist())):
        step = next((i for i in range(STEPS) if a[i] != b[i]), None)
        if step is not None:
            best = logits[row, step].topk(2)[0]
            gap = ((best[0] - best[1]) / logits[row, step].std()).item()
            assert gap < 0.1, f"token {step} is {a[step]}, not {b[step]}, which is better by {gap:.2f} deviations"


def check_class(name):
    model = build(name)
    return check(model, model, build_exact(model))


def build_exact(model):
    return eager(copy.deepcopy(model)).float()


def check(plain, model, exact, rounded=0):
    """The logits' and the blocks' errors of moek in `model`, and tokens, against those of eager in `plain`, which may
    be the same; returns what was measured.  rounded: what quantized activations may add to the errors."""
    ids = prompt()
    truth, theirs = exact(ids).logits, eager(plain)(ids).logits
    tokens, steps = greedy(plain, ids)
    served = moek_transformers.use(model)
    assert served and not any(served.values()), f"not served: {served}"
    ours, block = run_with_blocks(model, exact, ids)
    check_tokens(greedy(model, ids)[0], tokens, steps)
    by_moek, by_eager = off(ours, truth).median().item(), off(theirs, truth).median().item()
    matter = off(without_experts(exact, ids), truth).median().item()
    assert block < BLOCK + rounded, f"a block is off by {block:.2e}"
    bound = 1.25 * by_eager + 1e-3
    assert by_moek < bound + rounded, f"off by {by_moek:.2e}, eager by {by_eager:.2e}"
    assert matter > 20 * bound, f"experts matter {matter:.2e} only, bound {bound:.2e}"
    return f"eager {by_eager:.2e}  moek {by_moek:.2e}  between {off(ours, theirs).median():.2e}  block {block:.2e}"


# ---- the rest --------------------------------------------------------------------------------------------------------

def two_lines():
    """from_pretrained(..., experts_implementation="moek"), and generate."""
    with tempfile.TemporaryDirectory() as folder:
        build("Qwen3Moe").save_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, experts_implementation="moek").eval().to(DEVICE)
    got = model.generate(prompt(), max_new_tokens=STEPS, do_sample=False)[:, -STEPS:]
    assert all(m._moek.why == "" for m in model.modules() if is_block(m)), "moek did not run"
    check_tokens(got, *greedy(eager(model), prompt()))


def transposed():
    """gpt-oss: parameters keep their values, and eager reads them as before."""
    model, ids = build("GptOss"), prompt()
    before, want = copy.deepcopy(model.state_dict()), eager(model)(ids).logits
    address = model.model.layers[0].mlp.experts.gate_up_proj.data_ptr()
    moek_transformers.use(model)
    w = model.model.layers[0].mlp.experts.gate_up_proj
    assert w.data_ptr() == address and w.transpose(1, 2).is_contiguous(), "a copy was made"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "values changed"
    assert off(eager(model)(ids).logits, want).median() < 1e-2
    want = model.set_experts_implementation("moek") or model(ids).logits
    for block in filter(is_block, model.modules()):    # new weights, as they come from a checkpoint
        block.gate_up_proj.data, block.down_proj.data = (v.contiguous() for v in (block.gate_up_proj, block.down_proj))
    assert torch.equal(model(ids).logits, want)


def compiled():
    """torch.compile: without a graph break once prepared; and unprepared.  Then torch's own checks of an operator."""
    ids = prompt()
    for name, full in ("GptOss", True), ("Mixtral", False):
        model, fresh = build(name), build(name)
        moek_transformers.use(model)
        want = model(ids, use_cache=False).logits
        fresh.set_experts_implementation("moek")
        code = torch.compile(model if full else fresh, fullgraph=full, backend="aot_eager")
        for _ in range(2):
            assert off(code(ids, use_cache=False).logits, want).median() < 5e-3
    x, chosen, share = some(5)
    block = fresh.model.layers[0].mlp.experts
    torch.library.opcheck(torch.ops.moek.experts.default, (
        x, chosen, share, *moek_layers.weights_of(block), *block._moek.formula, False))


def capturable(model, ids):
    """Can transformers' own code of this model, with its grouped_mm, become a CUDA graph?"""
    model.set_experts_implementation("grouped_mm")
    for _ in range(2):
        model(ids, use_cache=False)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(ids, use_cache=False)
    except RuntimeError:
        torch.cuda.synchronize()
        return False
    return True


def graphs():
    """CUDA graphs: of blocks alone, and of a whole model; new inputs through an old graph; a stream of one's own."""
    left_out = []
    for name in "Mixtral", "GptOss", "NemotronH":
        model, ids = build(name), prompt()
        if not capturable(model, ids):
            left_out.append(name)
            continue
        moek_transformers.use(model)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            want = model(ids, use_cache=False).logits
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            got = model(ids, use_cache=False).logits
        for turn in range(2):
            ids.copy_(ids.flip(1) if turn else ids)
            graph.replay()
            assert torch.equal(got, model(ids, use_cache=False).logits), f"{name}, replay {turn}"
        assert off(got, want).max() > 0
    model, ids = build("Mixtral"), prompt()
    want = moek_transformers.use(model) and model(ids, use_cache=False).logits
    moek_transformers.settings["one_launch"] = True
    got = [model(ids[:1, :n], use_cache=False).logits for n in (1, 2, 4, PROMPT)]
    moek_transformers.settings["one_launch"] = False
    assert off(got[-1], want[:1]).median() < 1e-2 and off(got[0], want[:1, :1]).median() < 1e-2
    assert len(left_out) < 3
    return f"not capturable, whatever runs its experts: {', '.join(left_out)}" if left_out else ""


class Skipped(Exception):
    pass


def needs(package):
    if not importlib.util.find_spec(package):
        raise Skipped(f"no {package}")


class AnyConfig(dict):                                 # sizes under all the names that classes have for them
    __getattr__ = dict.__getitem__


def decorated_classes():
    for file in sorted(pathlib.Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and "use_experts_implementation" in map(
                    lambda d: ast.unparse(d).partition("(")[0], node.decorator_list):
                yield getattr(importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}"), node.name)


def each_class():
    """The experts of each class of transformers that has @use_experts_implementation: eager's numbers, or a reason."""
    sizes = AnyConfig(SMALL, moe_num_experts=8, moe_hidden_size=64, hidden_act="silu", mlp_hidden_act="relu2",
                      hidden_activation="gelu_pytorch_tanh", swiglu_limit=1.5, swiglu_alpha=1.702, moe_latent_size=None,
                      mlp_gate_softcap=5.0, mlp_up_softcap=5.0, rms_norm_eps=1e-6, post_norm_eps=1e-6)
    served, reasons = 0, []
    x, chosen, share = some(7)
    for of_class in decorated_classes():
        block = of_class(sizes).bfloat16().to(DEVICE).requires_grad_(False)
        for value in block.parameters():
            value.normal_(0, 0.2)
        sizes["_experts_implementation"] = "eager"
        want = block(x, chosen, share.bfloat16())
        sizes["_experts_implementation"] = "moek"
        got, said = told(lambda: block(x, chosen, share.bfloat16()))
        worst = off(got, want).max()
        assert worst < 2e-2, f"{of_class.__name__} is off by {worst:.2e}"
        served += block._moek.why == ""
        reasons += [f"{of_class.__name__}: {block._moek.why}"] if said else []
    assert served >= 50 and len(reasons) < 8, (served, reasons)
    return f"{served} served; not: " + "; ".join(reasons)


def check_fp8(block, w_up, w_down):
    """A block against f32 with the same rounding of activations to e4m3."""
    def rounded(x):
        groups = torch.nn.functional.pad(x, (0, -len(x) % 128)).unflatten(-1, (-1, 128))
        scale = groups.abs().amax(-1, keepdim=True) / 448
        return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)[:len(x)]
    x, chosen, share = torch.randn(7, 256).bfloat16().to(DEVICE), *some(7)[1:]
    want = torch.zeros(7, 256, device=DEVICE)
    for token, (ids, weights) in enumerate(zip(chosen.tolist(), share.tolist())):
        for expert, weight in zip(ids, weights):
            gate, up = (w_up[expert] @ rounded(x[token].float())).chunk(2)
            h = (torch.nn.functional.silu(gate) * up).bfloat16().float()
            want[token] += weight * (w_down[expert] @ rounded(h))
    got, said = told(lambda: block(x, chosen, share))
    assert not said and block._moek.why == "", said
    worst = off(got, want)                             # an h may fall to the next e4m3: 2^-3 of one of a few large ones
    assert worst.median() < 2 * BLOCK and worst.max() < 5 * BLOCK, worst
    return f"off by {off(got, want).max():.2e}"


def fp8():
    """FP8Experts of a FineGrainedFP8Config."""
    from transformers.integrations import finegrained_fp8
    config = transformers.Qwen3MoeConfig(**{**SMALL, "hidden_size": 256, "moe_intermediate_size": 128})
    config._experts_implementation = "moek"
    block = moe.use_experts_implementation(
        experts_class=finegrained_fp8.FP8Experts, experts_interface=finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS)(
            config, block_size=[128, 128]).requires_grad_(False)
    for name, value in block.named_parameters():
        value.copy_(torch.rand(value.shape) / 256 if "scale" in name else torch.randn(value.shape) * 16)
    block, w = block.to(DEVICE), []
    for name in "gate_up_proj", "down_proj":
        scale = getattr(block, name + "_scale_inv").repeat_interleave(128, 1).repeat_interleave(128, 2)
        w.append(getattr(block, name).float() * scale)
    return check_fp8(block, *w)


# ---- packed checkpoints ----------------------------------------------------------------------------------------------

def save(folder, model, edit, quantization=None):
    """A checkpoint of the model: edit(tensors) packs what it is to have packed, config.json says so."""
    model.save_pretrained(folder)
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    if quantization:
        config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": quantization}))


def load(folder, implementation="moek", **more):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, experts_implementation=implementation, **{"dtype": torch.bfloat16, **more}).eval().to(DEVICE)


def packed_blocks(model):
    return [block for block in model.modules() if hasattr(block, "_moek_packed")]


def check_packed(folder, dequantize, rounded=0, tiles=False):
    """The model with moek, packed, and that of transformers with dequantized weights; saved again; compiled.
    tiles: Hopper's kernels read the weights in another order."""
    model, said = told(lambda: load(folder))
    assert not said, said
    blocks = packed_blocks(model)
    assert blocks and all(moek_layers.weights_of(block).w_up.dtype not in moek_torch.DTYPES for block in blocks)
    plain = load(folder, "eager", quantization_config=dequantize)
    text = check(plain, model, build_exact(plain), rounded)
    tiles = tiles and DEVICE == "cuda" and torch.cuda.get_device_capability()[0] == 9
    assert all(moek_layers.is_tiled(block) == tiles for block in blocks)
    before, want = load_file(folder / "model.safetensors"), model(prompt()).logits
    model.save_pretrained(folder / "again")
    after = load_file(folder / "again" / "model.safetensors")
    for key, value in before.items():
        if rounded and not re.search(r"experts\.\d", key):                 # transformers has dequantized it
            continue
        assert torch.equal(value.flatten().view(torch.uint8), after[key].flatten().view(torch.uint8)), key
    assert torch.equal(load(folder / "again")(prompt()).logits, want)
    assert torch.equal(copy.deepcopy(model)(prompt()).logits, want)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    for block in blocks:
        for value in block._parameters.values():
            if value is not None:
                value.data.zero_()
    model.load_state_dict(state)
    assert torch.equal(model(prompt()).logits, want)
    if DEVICE == "cuda":
        moved = copy.deepcopy(model).cpu()
        assert off(moved(prompt().cpu()).logits.to(DEVICE), want).median() < 1e-2 + rounded
    if "quick" not in sys.argv:
        code = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert off(code(prompt(), use_cache=False).logits, want).median() < 5e-3
    try:
        eager(model)(prompt())
        raise AssertionError("eager ran packed weights")
    except RuntimeError as error:
        assert "packed" in str(error), error
    return text


def save_mxfp4(folder, inter=96):
    def edit(tensors):
        for key in [key for key in tensors if key.endswith("_proj")]:
            experts, columns, rows = tensors.pop(key).shape
            tensors[key + "_blocks"] = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            tensors[key + "_scales"] = torch.randint(121, 125, (experts, rows, columns // 32), dtype=torch.uint8)
    save(folder, build("GptOss", intermediate_size=inter), edit, {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})


def mxfp4(inter):
    """gpt-oss as it is published: blocks and scales."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save_mxfp4(folder, inter)
        if importlib.util.find_spec("accelerate") and not importlib.util.find_spec("kernels"):   # for its part
            check_unpacked(folder, "float32", dtype=torch.float32)
        assert not packed_blocks(load(folder, quantization_config=transformers.Mxfp4Config(dequantize=True)))
        return check_packed(folder, transformers.Mxfp4Config(dequantize=True), tiles=inter % 64 == 0)


def build_128(name="Qwen3Moe"):                        # with groups of 128 columns
    return build(name, hidden_size=256, intermediate_size=128, moe_intermediate_size=128)


def save_int4(folder, model, block, packed=r"experts.\d.*weight", targets="re:.*experts.*", ignore=(), **more):
    """A checkpoint of compressed-tensors, pack-quantized: random codes and scales.  Returns what they mean."""
    def edit(tensors):
        for key in [key for key in tensors if re.search(packed, key)]:
            (rows, columns), of = tensors.pop(key).shape, key.removesuffix("weight")
            codes = torch.randint(16, (rows, columns), dtype=torch.uint8)
            scale = (torch.rand(rows, columns // (block or columns)) * 0.01 + 0.01).bfloat16()
            tensors[of + "weight_packed"] = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int32)
            tensors[of + "weight_scale"], tensors[of + "weight_shape"] = scale, torch.tensor([rows, columns])
            values = (codes.float() - 8) * scale.float().repeat_interleave(columns // scale.shape[1], 1)
            plain[key] = values.bfloat16()
    plain, weights = {}, {"num_bits": 4, "type": "int", "symmetric": True, "group_size": block or None,
                          "strategy": "group" if block else "channel", **more}
    save(folder, model, edit, {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": [targets], "weights": weights}}, "ignore": ["lm_head", *ignore]})
    return plain


def int4(block):
    """int4 of compressed-tensors, symmetric, a scale for so many columns or (0) a row."""
    needs("compressed_tensors")
    with tempfile.TemporaryDirectory() as folder:
        save_int4(pathlib.Path(folder), build_128("Mixtral" if block == 64 else "Qwen3Moe"), block)
        dequantize = transformers.CompressedTensorsConfig(dequantize=True)
        return check_packed(pathlib.Path(folder), dequantize, tiles=block > 0)


def int4_and_others():
    """Attention of int4, which stays with compressed-tensors, and experts of a layer that are not quantized."""
    needs("compressed_tensors")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        plain = save_int4(folder / "packed", build_128(), 32, "self_attn.*_proj.weight|layers.1.*experts.*_proj.weight",
                          "Linear", ["re:.*layers.0.mlp.experts.*"])
        save(folder / "plain", build_128(), lambda tensors: tensors.update(plain))
        model, plain = load(folder / "packed"), load(folder / "plain", "eager")
        assert len(packed_blocks(model)) == 1
        return check(plain, model, build_exact(plain))


def int4_renamed():
    """Mixtral with the names that llm-compressor gives to its experts."""
    needs("compressed_tensors")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        plain = save_int4(folder / "packed", build_128("Mixtral"), 32)
        save(folder / "plain", build_128("Mixtral"), lambda tensors: tensors.update(plain))
        for file in (folder / "packed").glob("*.safetensors"):
            tensors = load_file(file)
            for theirs, ours in ("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj"):
                tensors = {name.replace(f".{theirs}.", f".{ours}."): of for name, of in tensors.items()}
            save_file(tensors, file, {"format": "pt"})
        model, plain = load(folder / "packed"), load(folder / "plain", "eager")
        assert len(packed_blocks(model)) == len(plain.model.layers)
        return check(plain, model, build_exact(plain))


def int4_unpacked():
    """What of compressed-tensors moek does not read packed."""
    needs("compressed_tensors")
    for word, more in ("zero points", dict(symmetric=False)), ("8 bits", dict(num_bits=8)), \
            ("16", dict(group_size=16)):
        with tempfile.TemporaryDirectory() as folder:
            save_int4(pathlib.Path(folder), build_128(), 16 if word == "16" else 32, **more)
            check_unpacked(pathlib.Path(folder), word, fails=word != "16")


def save_fp8(folder, model, packed):
    """A checkpoint with blocks of 128 x 128 where `packed` matches.  Returns what they mean."""
    def edit(tensors):
        for key in [key for key in tensors if re.search(packed, key)]:
            w = tensors[key].float()
            rows, columns = w.shape
            scale = torch.rand(-(-rows // 128), -(-columns // 128)) * 0.01 + 0.01
            full = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            tensors[key], tensors[key + "_scale_inv"] = (w / full).to(torch.float8_e4m3fn), scale
            plain[key] = tensors[key].float() * full
    plain = {}
    save(folder, model, edit, {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "mlp.gate"] + ([] if "attn" in packed else ["self_attn"])})
    return plain


def fp8_saved():
    """Blocks of 128 x 128 in a checkpoint: where the machine has no fp8, experts stay as they are, and attention is
    dequantized; where it has, FP8Experts.  Then inter that is no multiple of 128: no block has rows of gate and up."""
    needs("accelerate")
    texts, dequantize = [], transformers.FineGrainedFP8Config(dequantize=True)
    with tempfile.TemporaryDirectory() as folder:
        folder, native = pathlib.Path(folder), DEVICE == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
        save_fp8(folder, build_128(), r"experts.\d.*weight|self_attn.*_proj.weight" if not native else r"experts.\d")
        if native:
            needs("kernels")                           # transformers' FP8Linear, which serves other layers, wants it
            plain = load(folder, "eager", quantization_config=dequantize)
            return check(plain, load(folder), build_exact(plain), FP8)
        texts.append(check_packed(folder, dequantize, FP8))
    with tempfile.TemporaryDirectory() as folder:
        folder, model = pathlib.Path(folder), build("Qwen3Moe", hidden_size=256, moe_intermediate_size=192)
        w = save_fp8(folder / "packed", copy.deepcopy(model), r"experts.\d")
        save(folder / "plain", model, lambda tensors: tensors.update({key: of.bfloat16() for key, of in w.items()}))
        plain, packed = load(folder / "plain", "eager"), load(folder / "packed")
        texts.append(check(plain, packed, build_exact(plain), FP8))
        for i, layer in enumerate(packed.model.layers):
            gate, up, down = (torch.stack([w[f"model.layers.{i}.mlp.experts.{e}.{of}_proj.weight"] for e in range(8)])
                              .to(DEVICE) for of in ("gate", "up", "down"))
            texts.append(check_fp8(layer.mlp.experts, torch.cat([gate, up], 1), down))
        config = json.loads((folder / "packed" / "config.json").read_text())
        config["quantization_config"]["activation_scheme"] = "static"
        (folder / "packed" / "config.json").write_text(json.dumps(config))
        check_unpacked(folder / "packed", "static", fails=True)
    return "; ".join(texts)


def check_unpacked(folder, word, fails=False, **more):
    """What moek cannot read packed is left to transformers, and a sentence with this word says why.  fails:
    transformers may refuse it, as those files do not have what their configuration says."""
    def work():
        try:
            return load(folder, **more)
        except RuntimeError:
            assert fails
    model, said = told(work)
    assert len(said) == 1 and word in said[0], said
    if model:
        assert not packed_blocks(model)
        model(prompt())


def told(act):
    moek_layers._warned.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = act()
    return out, [str(w.message) for w in said if "moek" in str(w.message)]


def falls_back():
    """What moek cannot serve runs transformers' code, and one warning says why."""
    ids = prompt()
    model = build("Mixtral", torch.float32)
    want = eager(model)(ids).logits
    model.set_experts_implementation("moek")
    got, said = told(lambda: model(ids).logits)
    assert off(got, want).max() < 1e-5 and len(said) == 1 and "float32" in said[0], said
    model = build("Mixtral", hidden_act="tanh")
    want = eager(model)(ids).logits
    model.set_experts_implementation("moek")
    got, said = told(lambda: model(ids).logits)
    assert off(got, want).median() < 2e-2 and len(said) == 1 and "activation" in said[0], said
    model = build("Mixtral").requires_grad_(True)
    model.set_experts_implementation("moek")
    with torch.enable_grad():
        loss, said = told(lambda: model(ids, labels=ids).loss)
        loss.backward()
    assert model.model.layers[0].mlp.experts.down_proj.grad.abs().sum() > 0
    assert len(said) == 1 and "grad" in said[0], said


def moves():
    """Weights that change their dtype or their place; activations in f32 (autocast); no tokens; odd strides."""
    model, ids = build("Mixtral"), prompt()
    moek_transformers.use(model)
    block = model.model.layers[0].mlp.experts
    x, chosen, share = some(7)
    want = block(x, chosen, share)
    assert torch.equal(copy.deepcopy(block)(x, chosen, share), want)
    block.down_proj.data = block.down_proj.data.clone()
    assert torch.equal(block(x, chosen, share), want)
    assert block(x.float(), chosen, share).dtype == torch.float32
    assert block(x[:0], chosen[:0], share[:0]).shape == (0, 64)
    odd = torch.empty(7, 65, dtype=x.dtype, device=DEVICE)[:, 1:]
    odd.copy_(x)
    assert torch.equal(block(odd, chosen.int(), share.double()), want)
    half = copy.deepcopy(block).half()
    assert off(half(x.half(), chosen, share), want).max() < 1e-2 and half._moek.facts[0][1] == torch.float16
    many, chosen, share = some(9000)                   # more than one chunk
    part = slice(8000, 8100)
    assert off(block(many, chosen, share)[part], block(many[part], chosen[part], share[part])).max() < BLOCK


# ---- weights that change after the first run -------------------------------------------------------------------------

def view(values):                                      # the same values, in wider rows
    wide = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype, device=values.device)
    wide[..., ::2] = values
    return wide[..., ::2]


def odd_address(values):
    room = torch.empty(values.numel() + 1, dtype=values.dtype, device=values.device)[1:].view(values.shape)
    return room.copy_(values)


def parameter(values):
    return torch.nn.Parameter(values, requires_grad=False)


CHANGES = {                                            # how an array of a module gets other values
    "data": lambda block, name, new: setattr(getattr(block, name), "data", new),
    "parameter": lambda block, name, new: setattr(block, name, parameter(new)),
    "assign": lambda block, name, new: block.load_state_dict({name: new}, strict=False, assign=True),
    "load": lambda block, name, new: block.load_state_dict({name: new}, strict=False),
    "in place": lambda block, name, new: getattr(block, name).copy_(new),
    "swapped": lambda block, name, new: torch.utils.swap_tensors(getattr(block, name), parameter(new)),
    "view": lambda block, name, new: setattr(getattr(block, name), "data", view(new)),
    "odd address": lambda block, name, new: setattr(block, name, parameter(odd_address(new))),
}


def replaced():
    """Each array of a layer gets other values after a run, in each of the ways: eager's numbers, of the same change."""
    count = 0
    x, chosen, share = some(7)
    for model in "Mixtral", "GptOss", "NemotronH":
        block = next(filter(is_block, build(model).modules()))
        for name, (how, change) in itertools.product([name for name, _ in block.named_parameters()], CHANGES.items()):
            got, want = copy.deepcopy(block), copy.deepcopy(block)
            want.config, got.config = copy.copy(block.config), copy.copy(block.config)
            want.config._experts_implementation, got.config._experts_implementation = "eager", "moek"
            got(x, chosen, share.bfloat16())
            new = 0.2 * torch.randn_like(getattr(block, name), memory_format=torch.contiguous_format)
            given = new.clone()
            change(got, name, given), change(want, name, new)
            try:
                y = told(lambda: got(x, chosen, share.bfloat16()))[0]
                error = off(y, want(x, chosen, share.bfloat16())).max()
                assert error < 2e-2, f"{model}: {name}, {how}: off by {error:.2e}"
            except RuntimeError:                       # of torch, which has views too wide
                assert how == "view"
            assert how == "view" or not got._moek.why, f"{model}: {name}, {how}: {got._moek.why}"
            assert torch.equal(given, new) or how == "swapped", f"{name}, {how}: values of others were moved"
            count += 1
    return f"{count} changes"


def replaced_by_others():
    """Arrays of another dtype or shape: for the code of transformers, which may refuse them; no numbers of moek."""
    x, chosen, share = some(7)
    changes = lambda w: w.float(), lambda w: w[:4].clone(), lambda w: torch.cat([w, w], 1), \
        lambda w: torch.cat([w, w], -1)
    with tempfile.TemporaryDirectory() as folder:
        save_mxfp4(pathlib.Path(folder), 64)
        packed = packed_blocks(load(pathlib.Path(folder)))[0]
    for plain in next(filter(is_block, build("GptOss").modules())), packed:
        for (name, _), other in itertools.product(plain.named_parameters(), changes):
            block = copy.deepcopy(plain)
            block.config._experts_implementation = "moek"
            block(x, chosen, share)
            setattr(block, name, parameter(other(getattr(block, name).data)))
            try:
                told(lambda: block(x, chosen, share))
            except (RuntimeError, IndexError):
                pass
            assert block._moek.why, f"{name}: moek took {getattr(block, name).dtype} {getattr(block, name).shape}"


def gradients():
    """moek has no backward pass: whatever wants one, each array of a layer and the router's weights too, gets it."""
    x, chosen, share = some(7)
    for model in "Mixtral", "GptOss":
        block = next(filter(is_block, build(model).modules()))
        block.config._experts_implementation = "moek"
        for name in [name for name, _ in block.named_parameters()] + ["share", "x"]:
            inputs = {"x": x.clone(), "share": share.bfloat16()}
            of = inputs[name] if name in inputs else getattr(block, name)
            with torch.enable_grad():
                of.requires_grad_(True)
                y, said = told(lambda: block(inputs["x"], chosen, inputs["share"]))
                assert y.requires_grad and len(said) == 1 and "backward" in said[0], f"{model}: {name}: no gradient"
                y.float().sum().backward()
            assert of.grad.abs().sum() > 0, name
            of.requires_grad_(False).grad = None


def shared():
    """Two layers with the same parameters, and with parameters at the same place."""
    ids = prompt()
    for alike in False, True:
        for model in build("GptOss"), build("Mixtral"):
            one, two = filter(is_block, model.modules())
            for name, value in list(one.named_parameters()):
                setattr(two, name, parameter(value.data) if alike else value)
            want, truth = eager(model)(ids).logits, build_exact(model)(ids).logits
            model.set_experts_implementation("moek")
            for _ in range(2):
                ours, theirs = (off(of, truth).median().item() for of in (model(ids).logits, want))
                assert ours < 1.25 * theirs + 1e-3, f"off by {ours:.2e}, eager by {theirs:.2e}"


class EmulatedTiles:
    """On the CPU, in the place of Hopper's kernels for weights of 4 bits: "tiled" is all bits turned over."""
    def __init__(self):
        self.plan_of, self.kept = moek_torch.plan_of, []

    def __enter__(self):
        moek_torch.plan_of = self.plan

    def __exit__(self, *_):
        moek_torch.plan_of = self.plan_of

    def plan(self, x_dtype, tokens, topk, weights, formula, transposed):
        if not formula.tiled:
            return self.plan_of(x_dtype, tokens, topk, weights, formula, transposed)
        flat = weights._replace(**{name: (~getattr(weights, name).contiguous().view(torch.uint8)).view(
            getattr(weights, name).dtype) for name in moek_torch.REPACK.values()})
        self.kept.append(flat)                         # a plan has addresses only
        plan = self.plan_of(x_dtype, tokens, topk, flat, formula._replace(tiled=False), transposed)
        self.lib = plan.lib
        self.sizes = {f: getattr(weights, w)[0].numel() * getattr(weights, w).element_size()
                      for f, w in moek_torch.REPACK.items()}
        return plan._replace(lib=self)

    def __getattr__(self, name):
        if name not in moek_torch.REPACK:
            return getattr(self.lib, name)
        return lambda plan, source, target, *_: ctypes.memmove(
            target, bytes(255 - byte for byte in ctypes.string_at(source, self.sizes[name])), self.sizes[name]) and 0


def tiled():
    """Weights of 4 bits that Hopper's kernels want in another order: on Hopper that, on the CPU an emulation of it."""
    needs("compressed_tensors")
    if DEVICE == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        raise Skipped("no Hopper")
    with tempfile.TemporaryDirectory() as folder, EmulatedTiles() if DEVICE == "cpu" else contextlib.nullcontext():
        save_int4(pathlib.Path(folder), build_128(), 32)
        model = load(pathlib.Path(folder))
        check_tiled(model, packed_blocks(model))


def check_tiled(model, blocks):
    one, two = blocks
    x, chosen, share = torch.randn(7, 256).bfloat16().to(DEVICE), *some(7)[1:]

    def run(block):
        return block(x, chosen, share)
    states = [{key: value.clone() for key, value in block.state_dict().items()} for block in blocks]
    ys = [run(block) for block in blocks]
    names = moek_layers.tiled_names(one)
    assert len(names) == 4 and off(*ys).min() > 0.1 and torch.equal(run(one), ys[0])
    assert all(torch.equal(value, states[0][key]) for key, value in one.state_dict().items())
    assert any(not torch.equal(value, states[0][key]) for key, value in one.named_parameters())
    for same in copy.deepcopy(one), one.to(DEVICE), one._apply(torch.clone), packed_blocks(copy.deepcopy(model))[0]:
        assert torch.equal(run(same), ys[0]) and moek_layers.is_tiled(same)
        assert all(torch.equal(value, states[0][key]) for key, value in same.state_dict().items())
    for how in "parameter", "assign", "load", "swapped":                   # what tells that these are a checkpoint's
        for some_names in [[name] for name in names] + [names]:
            block, plain = copy.deepcopy(one), copy.deepcopy(one)
            run(block), moek_transformers.untile(plain)
            given = {name: states[1][name].clone() for name in some_names}
            for name, values in given.items():
                CHANGES[how](block, name, values)
                plain._parameters[name].data.copy_(values)
            assert torch.equal(run(block), run(plain)), f"{some_names} by {how}"
            assert all(torch.equal(values, states[1][name]) for name, values in given.items()), "of others, turned over"
    for how in "data", "in place":                                         # what does not tell
        for name in names:
            block = copy.deepcopy(one)
            run(block)
            CHANGES[how](block, name, states[1][name].clone())
            for act in (lambda: run(block)), block.state_dict:
                try:
                    act()
                    raise AssertionError(f"{name}, {how}: ran in an unknown order")
                except RuntimeError as error:
                    assert name in str(error) and "untile" in str(error), error
            block.load_state_dict(states[1])
            assert torch.equal(run(block), ys[1]), f"{name}, {how}: loaded again"
            moek_transformers.untile(block)
            CHANGES[how](block, name, states[0][name].clone())
            run(block)
    for alike in False, True:                                              # tied layers: tiled once
        a, b = copy.deepcopy(one), copy.deepcopy(two)
        for name, value in list(a.named_parameters()):
            setattr(b, name, parameter(value.data) if alike else value)
        assert all(torch.equal(run(block), ys[0]) for block in (b, a, b))
        moek_transformers.untile(a)
        assert all(torch.equal(run(block), ys[0]) for block in (b, a))
        b.load_state_dict(states[1])                                       # (those at one place have parted)
        assert torch.equal(run(a), ys[0 if alike else 1]) and torch.equal(run(b), ys[1])
    if "quick" not in sys.argv:                                            # a graph from before says so
        block = copy.deepcopy(one)
        run(block)
        code = torch.compile(block, fullgraph=True, backend="aot_eager")
        assert torch.equal(code(x, chosen, share), ys[0])
        for name in names:
            setattr(block, name, parameter(states[1][name].clone()))
        try:
            code(x, chosen, share)
            raise AssertionError("a graph ran with weights that are not tiled")
        except RuntimeError as error:
            assert "prepare" in str(error), error


def incomplete():
    """Checkpoints of packed experts where tensors are missing, or have other names: refused, with the names."""
    needs("compressed_tensors")

    def without(word):
        return lambda tensors: [tensors.pop(key) for key in list(tensors) if word in key]

    def renamed(tensors):
        for key in [key for key in tensors if ".experts." in key]:
            tensors[key.replace("down_proj", "third")] = tensors.pop(key)
    expert = "layers.1.mlp.experts"
    spoils = {"layers.1.mlp.experts.gate_up_proj_packed": without(expert), "down_proj_packed": renamed,
              "layers.0.mlp.experts.down_proj_scale": without("layers.0.mlp.experts.3.down_proj.weight_scale"),
              "layers.1.mlp.experts.down_proj_packed": without(expert + ".2.down_proj.weight_packed")}
    for word, spoil in spoils.items():
        check_refused(lambda folder: save_int4(folder, build_128(), 32), spoil, word)
    for word, part in (".down_proj_scale_inv", ".0.down_proj.weight_scale"), ("", ""):
        check_refused(lambda folder: save_fp8(folder, build_128(), r"experts.\d"), without(expert + part),
                      expert + word)
    for word in "layers.0.mlp.experts.gate_up_proj_bias", "layers.1.mlp.experts.down_proj_blocks":
        check_refused(save_mxfp4, without(word), word)


def check_refused(write, spoil, word):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write(folder)
        if DEVICE == "cuda" and "fp8" in (folder / "config.json").read_text():
            return                                     # (GPUs with fp8: FP8Experts, which transformers fills)
        tensors = load_file(folder / "model.safetensors")
        spoil(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        logging.getLogger("transformers").addHandler(handler)
        for more in {}, {"ignore_mismatched_sizes": True}:
            try:
                load(folder, **more)
                raise AssertionError(f"a checkpoint without {word} was loaded")
            except RuntimeError as error:
                assert word in str(error) + log.getvalue(), f"{word}: {error}"
        logging.getLogger("transformers").removeHandler(handler)


def imports():
    """No module here imports, at any place, a module that imports it."""
    of = {file.stem: {name.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import)
                      for name in node.names} |
                     {node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)}
          for file in pathlib.Path(__file__).parent.glob("moek_*.py")}
    while of:
        free = {name for name in of if not of[name] & of.keys()}
        assert free, f"a circle: {sorted(of)}"
        of = {name: of[name] for name in of.keys() - free}


def main():
    moek_transformers.register()
    tests = {name: (lambda name=name: check_class(name)) for name in CLASSES}
    tests.update((f.__name__, f) for f in (imports, two_lines, transposed, each_class, fp8, fp8_saved))
    tests.update((f"mxfp4-{inter}", lambda inter=inter: mxfp4(inter)) for inter in (96, 128))
    tests.update((f"int4-{block}", lambda block=block: int4(block)) for block in (32, 64, 128, 0))
    tests.update((f.__name__, f) for f in (int4_and_others, int4_renamed, int4_unpacked, compiled, graphs, falls_back,
                                           moves, replaced, replaced_by_others, gradients, shared, tiled, incomplete))
    words = [word for word in sys.argv[1:] if word not in ("quick", "cuda")]
    if "quick" in sys.argv:
        del tests["compiled"]
    if DEVICE == "cpu":
        del tests["graphs"]
    chosen = words or list(tests)
    failed = skipped = 0
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {DEVICE}")
    for name in chosen:
        start = time.time()
        try:
            with torch.no_grad():
                text, word = tests[name]() or "", "ok"
        except Skipped as missing:
            text, word, skipped = str(missing), "skipped", skipped + 1
        except Exception as error:
            text, word, failed = f"{type(error).__name__}: {error}", "FAILED", failed + 1
        print(f"{name:18} {text}  {time.time() - start:.1f} s  {word}", flush=True)
    print(f"{len(chosen) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
