#!/usr/bin/env python3
"""make_layer_golden.py -- writes layer_golden.txt: small MoE blocks of transformers, what goes in and what comes out.

    python -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0 numpy==2.4.6
    venv/bin/python tests/data/make_layer_golden.py > tests/data/layer_golden.txt

A block is run in f32, with x, weights and biases that bf16 and fp16 hold exactly: multiples of 1 / 8, a hexadecimal
digit each, from 0 (-1) to f (7/8).  Lines: `layer` and the class; `config` and fields of moek_config; then an array a
line.  w_up has the rows of moek's up_layout, whatever the class has.  ids and weights are those that the router handed
to the experts, y is what the experts gave; with shared_slots the block's own shared expert is the last slot."""
import importlib
import os

import torch
import transformers

HIDDEN, INTER, EXPERTS, TOPK, TOKENS = 16, 8, 8, 2, 5
SMALL = dict(vocab_size=16, hidden_size=HIDDEN, intermediate_size=INTER, moe_intermediate_size=INTER,
             num_experts=EXPERTS, num_local_experts=EXPERTS, n_routed_experts=EXPERTS, num_experts_per_tok=TOPK,
             top_k_experts=TOPK, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_shared_experts=1,
             pad_token_id=0, bos_token_id=1, eos_token_id=2, n_group=1, topk_group=1)


def class_of(name):
    """"qwen3_moe.Qwen3MoeExperts": a class of transformers."""
    module, name = name.split(".")
    return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name)


def grid(*shape):
    return torch.randint(-8, 8, shape) / 8


def fill(module):
    """Weights on the grid; routers and their corrections are anything."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        exact = "experts" in name or "proj" in name and value.dim() == 3
        value.data.copy_(grid(*value.shape) if exact else (0.2 if "bias" in name else 0.5) * torch.randn(value.shape))


def digits(tensor):
    codes = (tensor * 8 + 8).round().long()
    assert torch.equal((codes - 8) / 8, tensor.float()) and 0 <= codes.min() and codes.max() < 16
    return "".join("0123456789abcdef"[i] for i in codes.flatten())


def show(name, tensor):
    if tensor is None:
        return
    if name in ("x", "w_up", "w_down", "w_gate", "w_up_bias", "w_down_bias"):
        print(name, digits(tensor))
    else:
        print(name, *(f"{v:.9g}" if tensor.is_floating_point() else v for v in tensor.flatten().tolist()))


def halves(experts):
    """(gate [E][I][H], up, down [E][H][I], gate_bias, up_bias, down_bias); gate None: not gated."""
    if hasattr(experts, "up_proj"):
        return None, experts.up_proj, experts.down_proj, None, None, None
    w, down = experts.gate_up_proj, experts.down_proj
    bias, down_bias = getattr(experts, "gate_up_proj_bias", None), getattr(experts, "down_proj_bias", None)
    if getattr(experts, "is_transposed", type(experts).__name__.startswith("Llama4")):
        w, down = w.transpose(1, 2), down.transpose(1, 2)
    if getattr(experts, "is_concatenated", True):
        (gate, up), biases = w.chunk(2, 1), (None, None) if bias is None else bias.chunk(2, 1)
    else:
        gate, up, biases = w[:, ::2], w[:, 1::2], (bias[:, ::2], bias[:, 1::2])
    return gate, up, down, *biases, down_bias


def join(layout, gate, up):
    if gate is None or layout == "APART":
        return up
    if layout == "INTERLEAVED":
        return torch.stack([gate, up], 2).flatten(1, 2)
    return torch.cat([up, gate] if layout == "SWAPPED" else [gate, up], 1)


def layer(title, experts, x, logits, ids, weights, y, layout="HALVES", shared=None, bias=None, expert_scale=None,
          table=None, token_ids=None, act="silu", **config):
    gate, up, down, gate_bias, up_bias, down_bias = halves(experts)
    if shared is not None:                             # one more expert, in a slot that each token has
        up, down = torch.cat([up, shared.up_proj.weight[None]]), torch.cat([down, shared.down_proj.weight[None]])
        gate = torch.cat([gate, shared.gate_proj.weight[None]])
        y = y + shared(x)
        config["shared_slots"] = 1
    print("layer", title)
    fields = dict(hidden=x.shape[1], inter=down.shape[2], experts=logits.shape[1], topk=ids.shape[1], act=act, **config)
    if gate is not None:
        fields["up_layout"] = layout
    print("config", *(f"{key}={value}" for key, value in fields.items()))
    w_up_bias = None if up_bias is None else join(layout, gate_bias, up_bias)
    arrays = dict(x=x, router_logits=logits, router_bias=bias, router_expert_scale=expert_scale, router_table=table,
                  token_ids=token_ids, w_up=join(layout, gate, up), w_gate=gate if layout == "APART" else None,
                  w_down=down, w_up_bias=w_up_bias, w_down_bias=down_bias, ids=ids, weights=weights, y=y)
    for name, tensor in arrays.items():
        show(name, tensor)


def run(name, config_name, block="SparseMoeBlock", settings=(), router="gate", args=(), inputs=(), bias=None,
        shared=False, change=None, factor=1.0, seed=None, **more):
    """The block of a class.  router: where its router is; bias: where the correction is; change: of the block, once it
    is filled; factor: what the block multiplies y by; seed: one for which the case shows what it is about."""
    torch.manual_seed(seed or run.seed)
    run.seed += 1
    config = getattr(transformers, config_name)(**{**SMALL, **dict(settings)})
    config._experts_implementation = "eager"
    module, prefix = name.split(".")
    block = class_of(f"{module}.{prefix}{block}")(config, *args).float().eval()
    fill(block)
    if change:
        change(block)
    seen = {}
    block.get_submodule(router).register_forward_hook(
        lambda m, i, o: seen.update(logits=o[0] if isinstance(o, tuple) else o))
    block.experts.register_forward_hook(lambda m, i, o: seen.update(x=i[0], ids=i[1], weights=i[2], y=o))
    block(grid(1, TOKENS, HIDDEN), *inputs)
    if bias:
        owner, _, leaf = bias.rpartition(".")
        more["bias"] = getattr(block.get_submodule(owner), leaf)
    layer(prefix, block.experts, seen["x"], seen["logits"], seen["ids"], seen["weights"] * factor, seen["y"] * factor,
          shared=block.shared_experts if shared else None, **more)


run.seed = 1


def alike(block):                                      # logits near each other: the threshold of sparsemixer acts
    weight = block.router.weight
    weight.data.copy_(weight[:1] + 0.01 * torch.randn(weight.shape))


def small_scores(block):                               # sums so small that router_eps shows
    weight = block.gate.weight
    weight.data.copy_(0.1 * weight - 8 * weight[:1])


def routings():
    qwen = "qwen3_moe.Qwen3Moe", "Qwen3MoeConfig"
    run(*qwen, settings=dict(norm_topk_prob=True), routing="SOFTMAX_RENORM")
    run(*qwen, settings=dict(norm_topk_prob=False), routing="SOFTMAX")
    run("mixtral.Mixtral", "MixtralConfig", routing="TOPK_SOFTMAX")
    run("phimoe.Phimoe", "PhimoeConfig", router="router", routing="SPARSEMIXER")
    run("phimoe.Phimoe", "PhimoeConfig", router="router", change=alike, routing="SPARSEMIXER")
    run("ernie4_5_moe.Ernie4_5_Moe", "Ernie4_5_MoeConfig", settings=dict(moe_num_shared_experts=0, moe_k=TOPK),
        bias="gate.moe_statics.e_score_correction_bias", routing="SOFTMAX_RENORM")
    groups = dict(n_group=4, topk_group=2)
    run("deepseek_v2.DeepseekV2", "DeepseekV2Config", "Moe", dict(
        groups, topk_method="group_limited_greedy", routed_scaling_factor=1.5),
        routing="SOFTMAX", groups=4, topk_groups=2, scale=1.5)
    run("mistral4.Mistral4", "Mistral4Config", "MoE", dict(groups, norm_topk_prob=True), seed=101,
        routing="SOFTMAX_RENORM", groups=4, topk_groups=2, group_score="TOP2")
    v3, correction = ("deepseek_v3.DeepseekV3", "DeepseekV3Config", "MoE"), "gate.e_score_correction_bias"
    run(*v3, dict(groups, norm_topk_prob=True, routed_scaling_factor=2.5), bias=correction,
        routing="DEEPSEEK_V3", groups=4, topk_groups=2, scale=2.5)
    run(*v3, dict(groups, norm_topk_prob=False, routed_scaling_factor=2.5), bias=correction,
        routing="SIGMOID", groups=4, topk_groups=2, scale=2.5)
    run(*v3, dict(norm_topk_prob=True, routed_scaling_factor=2.5), bias=correction, shared=True,
        routing="DEEPSEEK_V3", scale=2.5)
    run("minimax_m2.MiniMaxM2", "MiniMaxM2Config", bias="e_score_correction_bias", routing="MINIMAX2")
    run("lfm2_moe.Lfm2Moe", "Lfm2MoeConfig", settings=dict(use_expert_bias=True, norm_topk_prob=True),
        bias="expert_bias", change=small_scores, routing="SIGMOID_RENORM", router_eps=1e-6)
    cohere = dict(expert_selection_fn="sigmoid", num_shared_experts=0)
    run("cohere2_moe.Cohere2Moe", "Cohere2MoeConfig", settings=dict(cohere, norm_topk_prob=False), routing="LLAMA4")
    run("cohere2_moe.Cohere2Moe", "Cohere2MoeConfig", settings=dict(cohere, norm_topk_prob=True),
        routing="LLAMA4_RENORM")
    v4 = "deepseek_v4.DeepseekV4", "DeepseekV4Config"
    v4_settings = dict(mlp_layer_types=["hash_moe", "moe"], routed_scaling_factor=1.5, swiglu_limit=1.5)
    run(*v4, settings=v4_settings, args=[1], bias=correction, routing="DEEPSEEK_V4", scale=1.5, limit=1.5)
    tokens, table = torch.randint(0, 16, (1, TOKENS)), torch.rand(16, EXPERTS).topk(TOPK)[1]
    run(*v4, settings=v4_settings, args=[0], inputs=[tokens], table=table, token_ids=tokens,
        change=lambda block: block.gate.tid2eid.copy_(table), routing="DEEPSEEK_V4", scale=1.5, limit=1.5)
    gemma(), llama4()


def gemma():
    torch.manual_seed(99)
    config = transformers.Gemma4TextConfig(**SMALL, hidden_activation="gelu_pytorch_tanh")
    config._experts_implementation = "eager"
    router, experts = (class_of("gemma4.Gemma4Text" + name)(config).float() for name in ("Router", "Experts"))
    fill(router)
    for value in experts.parameters():
        value.data.copy_(grid(*value.shape))
    x, seen = grid(TOKENS, HIDDEN), {}
    router.proj.register_forward_hook(lambda m, i, o: seen.update(logits=o))
    _, weights, ids = router(x)
    layer("Gemma4", experts, x, seen["logits"], ids, weights, experts(x, ids, weights), act="gelu_tanh",
          routing="SOFTMAX_RENORM", expert_scale=router.per_expert_scale)


def llama4():
    torch.manual_seed(98)
    config = transformers.Llama4TextConfig(**{**SMALL, "num_experts_per_tok": 1})
    block = class_of("llama4.Llama4TextMoe")(config).float()
    fill(block)
    x = grid(TOKENS, HIDDEN)
    y, logits = block(x)
    weights, ids = logits.sigmoid().max(1, keepdim=True)
    layer("Llama4", block.experts, x, logits, ids, weights, y - block.shared_expert(x), routing="LLAMA4",
          router_weight_on_input=1)


def activations_and_layouts():
    mixtral = "mixtral.Mixtral", "MixtralConfig"
    for act in "gelu", "gelu_pytorch_tanh":
        run(*mixtral, settings=dict(hidden_act=act), act=act.replace("_pytorch", ""), routing="TOPK_SOFTMAX")
    for layout in "SWAPPED", "INTERLEAVED", "APART":
        run(*mixtral, layout=layout, routing="TOPK_SOFTMAX")
    oss = dict(swiglu_alpha=1.702, swiglu_limit=1.5)
    run("gpt_oss.GptOss", "GptOssConfig", "MLP", oss, router="router", layout="INTERLEAVED", act="swigluoai",
        routing="TOPK_SOFTMAX", limit=1.5)
    run("gpt_oss.GptOss", "GptOssConfig", "MLP", dict(oss, swiglu_alpha=0.5), router="router", layout="HALVES",
        act="swigluoai", routing="TOPK_SOFTMAX", alpha=0.5, limit=1.5)
    run("minimax_m3_vl.MiniMaxM3VL", "MiniMaxM3VLTextConfig", settings=dict(
        oss, routed_scaling_factor=2.0, shared_intermediate_size=INTER), bias="gate.e_score_correction_bias",
        factor=2.0, act="swigluoai_uninterleave", routing="MINIMAX2", scale=2.0, limit=1.5)
    run("step3p7.Step3p7", "Step3p7TextConfig", settings=dict(
        swiglu_limits=[1.0, 1.0], swiglu_limits_shared=None, share_expert_dim=INTER, moe_router_scaling_factor=3.0),
        args=[0], bias="gate.e_score_correction_bias", factor=3.0, act="swiglustep", routing="MINIMAX2", scale=3.0,
        limit=1.0)
    for theirs, act in ("relu2", "relu2"), ("relu", "relu"), ("silu", "silu"), ("gelu", "gelu"), \
                       ("gelu_pytorch_tanh", "gelu_tanh"):
        run("nemotron_h.NemotronH", "NemotronHConfig", "MoE", dict(
            mlp_hidden_act=theirs, moe_latent_size=None, moe_shared_expert_intermediate_size=INTER,
            routed_scaling_factor=2.5, norm_topk_prob=True, layers_block_type=["moe", "moe"]),
            bias="gate.e_score_correction_bias", act=act + "_no_mul", routing="DEEPSEEK_V3", scale=2.5)


with torch.no_grad():
    print(f"# made by tests/data/{os.path.basename(__file__)}: torch {torch.__version__.partition('+')[0]}, "
          f"transformers {transformers.__version__}")
    routings()
    activations_and_layouts()
