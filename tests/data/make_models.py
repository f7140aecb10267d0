#!/usr/bin/env python3
"""make_models.py -- writes models.tsv: what each row of models.toml is to say, from configurations of transformers.

    python -m venv venv && venv/bin/pip install transformers==5.24.0
    venv/bin/python tests/data/make_models.py > tests/data/models.tsv

No network, no torch: a row is a configuration class with its defaults, and with the fields of a published config.json
where these differ.  The published fields stand here, with the place they were read at.  layer_of() is the table of
docs/models.md as a program: fields of config.json -> fields of moek_config.  What is in no config.json, because the
classes have it as code (which scores a router takes, its eps), is in ROUTER; layer_golden.txt has what these routers
gave.  tests/models.py compares models.tsv with models.toml.

The last three columns: the class; which fields of it a published config.json changes; where that was read."""
import os

import transformers

# Copies of published config.json files, byte for byte but for removed blanks:  <owner>--<name>_config.json
AIC = "ai-dynamo/aiconfigurator@095f58a aic-core/src/aiconfigurator_core/model_configs"
SLIME = "THUDM/slime@624b824 scripts/models"

FP8 = dict(quantization_config=dict(quant_method="fp8", weight_block_size=[128, 128]))
INT4 = dict(quantization_config=dict(quant_method="compressed-tensors", format="pack-quantized", num_bits=4,
                                     group_size=32))
MXFP4 = dict(quantization_config=dict(quant_method="mxfp4"))
K2 = dict(hidden_size=7168, moe_intermediate_size=2048, n_routed_experts=384, num_experts_per_tok=8, n_group=1,
          topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.827)
NEMOTRON = dict(mlp_hidden_act="relu2", n_group=1, topk_group=1, norm_topk_prob=True)
V4 = dict(expert_dtype="fp4", swiglu_limit=10.0)

# name -> class, what a published config.json has, where
MODELS = {
    "deepseek_v3": ("DeepseekV3Config", FP8, f"{AIC}/deepseek-ai--DeepSeek-V3"),
    "kimi_k2": ("DeepseekV3Config", {**K2, **FP8}, f"{AIC}/moonshotai--Kimi-K2-Instruct"),
    "qwen3_30b_a3b": ("Qwen3MoeConfig", dict(norm_topk_prob=True), f"{AIC}/Qwen--Qwen3-30B-A3B"),
    "qwen3_235b_a22b": ("Qwen3MoeConfig", dict(hidden_size=4096, moe_intermediate_size=1536, norm_topk_prob=True),
                        f"{AIC}/Qwen--Qwen3-235B-A22B"),
    "qwen3_next_80b": ("Qwen3NextConfig", {}, ""),
    "mixtral_8x7b": ("MixtralConfig", {}, f"{AIC}/mistralai--Mixtral-8x7B-v0.1"),
    "mixtral_8x22b": ("MixtralConfig", dict(hidden_size=6144, intermediate_size=16384),
                      f"{AIC}/mistralai--Mixtral-8x22B-v0.1"),
    "gpt_oss_20b": ("GptOssConfig", dict(num_local_experts=32, **MXFP4), f"{AIC}/openai--gpt-oss-20b"),
    "gpt_oss_120b": ("GptOssConfig", MXFP4, f"{AIC}/openai--gpt-oss-120b"),
    "glm_4_5_air": ("Glm4MoeConfig", {}, f"{SLIME}/glm4.5-106B-A12B.sh"),
    "glm_4_5": ("Glm4MoeConfig", dict(hidden_size=5120, moe_intermediate_size=1536, n_routed_experts=160,
                                      routed_scaling_factor=2.5), f"{SLIME}/glm4.5-355B-A32B.sh"),
    "llama_4_scout": ("Llama4TextConfig", {}, f"{AIC}/meta-llama--Llama-4-Scout-17B-16E-Instruct"),
    "llama_4_maverick": ("Llama4TextConfig", dict(num_local_experts=128),
                         f"{AIC}/meta-llama--Llama-4-Maverick-17B-128E-Instruct"),
    "minimax_m2": ("MiniMaxM2Config", FP8, f"{AIC}/MiniMaxAI--MiniMax-M2.5"),
    "phi_3_5_moe": ("PhimoeConfig", {}, ""),
    # 6919.162M parameters in all, which only this width gives
    "olmoe_7b": ("OlmoeConfig", dict(intermediate_size=1024), "ml-explore/mlx-examples#1321"),
    "nemotron_3_nano": ("NemotronHConfig", dict(
        hidden_size=2688, moe_intermediate_size=1856, n_routed_experts=128, num_experts_per_tok=6,
        routed_scaling_factor=2.5, **NEMOTRON), f"{AIC}/nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    "deepseek_v2": ("DeepseekV2Config", dict(
        hidden_size=5120, moe_intermediate_size=1536, n_routed_experts=160, num_experts_per_tok=6, n_group=8,
        topk_group=3, topk_method="group_limited_greedy", routed_scaling_factor=16.0),
        "NVIDIA-NeMo/Megatron-Bridge@67ec9b1 tests/unit_tests/models/deepseek/test_deepseek_bridges.py"),
    "deepseek_v2_lite": ("DeepseekV2Config", dict(
        hidden_size=2048, moe_intermediate_size=1408, n_routed_experts=64, num_experts_per_tok=6),
        "ggml-org/llama.cpp#7652; NVIDIA/TensorRT-LLM@07f9fcc tests/microbenchmarks/bench_moe/specs.py"),
    "qwen1_5_moe": ("Qwen2MoeConfig", {}, ""),
    "qwen3_5_35b_a3b": ("Qwen3_5MoeTextConfig", {}, f"{AIC}/Qwen--Qwen3.5-35B-A3B"),
    "glm_4_7_flash": ("Glm4MoeLiteConfig", {}, f"{SLIME}/glm4.7-30B-A3B.sh"),
    "mistral_small_4": ("Mistral4Config", {}, ""),
    "lfm2_8b_a1b": ("Lfm2MoeConfig", {}, ""),
    "ernie_4_5_21b": ("Ernie4_5_MoeConfig", {}, ""),
    "step_3_5_flash": ("Step3p7TextConfig", dict(moe_router_scaling_factor=3.0),
                       f"{AIC}/stepfun-ai--Step-3.7-Flash; sgl-project/sglang-jax#1367 for Step-3.5"),
    "deepseek_v4_flash": ("DeepseekV4Config", V4, f"{AIC}/deepseek-ai--DeepSeek-V4-Flash"),
    "deepseek_v4_pro": ("DeepseekV4Config", dict(
        hidden_size=7168, moe_intermediate_size=3072, n_routed_experts=384, routed_scaling_factor=2.5, **V4),
        f"{AIC}/deepseek-ai--DeepSeek-V4-Pro"),
    "kimi_k2_thinking": ("DeepseekV3Config", {**K2, **INT4},
                         f"{SLIME}/kimi-k2-thinking.sh; lightseekorg/tokenspeed#444; {AIC}/moonshotai--Kimi-K2.5"),
    "kimi_k3": ("KimiLinearConfig", dict(
        hidden_size=7168, routed_expert_hidden_size=3584, moe_intermediate_size=3072, num_experts=896,
        num_experts_per_token=16, hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0,
        num_expert_group=1, topk_group=1, moe_renormalize=True, routed_scaling_factor=1.0,
        quantization_config=dict(quant_method="compressed-tensors", format="mxfp4-pack-quantized")),
        f"{AIC}/moonshotai--Kimi-K3"),
    "minimax_m3": ("MiniMaxM3VLTextConfig", {}, f"{AIC}/MiniMaxAI--MiniMax-M3"),
    "nemotron_3_super": ("NemotronHConfig", dict(
        hidden_size=4096, moe_latent_size=1024, moe_intermediate_size=2688, n_routed_experts=512,
        num_experts_per_tok=22, routed_scaling_factor=5.0, **NEMOTRON),
        f"{AIC}/nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8; NVIDIA/TensorRT-Model-Connect#186 for bf16"),
    "nemotron_3_ultra": ("NemotronHConfig", dict(
        hidden_size=8192, moe_latent_size=2048, moe_intermediate_size=5120, n_routed_experts=512,
        num_experts_per_tok=22, routed_scaling_factor=5.0, **NEMOTRON),
        f"{AIC}/nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
}

# What the router of a class does, in code: (method if the weights are divided by their sum, method if not, eps that
# the method has not).  One method: no field of the class decides.
ROUTER = {
    "DeepseekV2Config": ("SOFTMAX",), "DeepseekV3Config": ("DEEPSEEK_V3", "SIGMOID"),
    "DeepseekV4Config": ("DEEPSEEK_V4",), "Ernie4_5_MoeConfig": ("SOFTMAX_RENORM",),
    "Glm4MoeConfig": ("DEEPSEEK_V3", "SIGMOID"), "Glm4MoeLiteConfig": ("DEEPSEEK_V3", "SIGMOID"),
    "GptOssConfig": ("TOPK_SOFTMAX",), "KimiLinearConfig": ("DEEPSEEK_V3", "SIGMOID"),
    "Lfm2MoeConfig": ("DEEPSEEK_V3", "SIGMOID", 1e-6), "Llama4TextConfig": ("LLAMA4",),
    "MiniMaxM2Config": ("MINIMAX2",), "MiniMaxM3VLTextConfig": ("MINIMAX2",),
    "Mistral4Config": ("SOFTMAX_RENORM", "SOFTMAX", 1e-20), "MixtralConfig": ("TOPK_SOFTMAX",),
    "NemotronHConfig": ("DEEPSEEK_V3", "SIGMOID"), "OlmoeConfig": ("SOFTMAX_RENORM", "SOFTMAX"),
    "PhimoeConfig": ("SPARSEMIXER",), "Qwen2MoeConfig": ("SOFTMAX_RENORM", "SOFTMAX"),
    "Qwen3MoeConfig": ("SOFTMAX_RENORM", "SOFTMAX"), "Qwen3NextConfig": ("SOFTMAX_RENORM", "SOFTMAX"),
    "Qwen3_5MoeTextConfig": ("SOFTMAX_RENORM",), "Step3p7TextConfig": ("MINIMAX2",),
}
COLUMNS = ("hidden", "inter", "experts", "topk", "quant", "block", "act", "alpha", "beta", "limit", "routing", "groups",
           "topk_groups", "scale", "router_eps", "router_weight_on_input")


def first(config, *names):
    """The first of these fields that a configuration has."""
    return next((v for v in (getattr(config, name, None) for name in names) if v is not None), None)


def format_of(config):
    """(quant, block) of its quantization_config."""
    q = getattr(config, "quantization_config", None) or {}
    q = q if isinstance(q, dict) else q.to_dict()
    if getattr(config, "expert_dtype", None) == "fp4" or "mxfp4" in (q.get("quant_method"), q.get("format", "")[:5]):
        return "mxfp4_a16", 0
    if q.get("format") == "pack-quantized" and q["num_bits"] == 4:
        return "int4_a16", q["group_size"]
    if q.get("weight_block_size") == [128, 128]:
        return "fp8b128", 0
    assert not q, q
    return "bf16", 0


def activation_of(name, config):
    """(act, alpha, beta, limit)."""
    act = first(config, "mlp_hidden_act", "hidden_act") or "silu"
    alpha, limit = first(config, "swiglu_alpha") or 0, first(config, "swiglu_limit") or 0
    if name == "GptOssConfig":                         # its hidden_act says silu
        return "swigluoai", alpha, 0, limit
    if name == "MiniMaxM3VLTextConfig":                # the same formula, but gate and up are two tensors
        return "swigluoai_uninterleave", alpha, 0, limit
    if act == "situ":
        return act, config.activation_situ_beta, config.activation_situ_linear_beta, 0
    if name == "Step3p7TextConfig":                    # swiglu_limits: a list, by layer
        return "swiglustep", 0, 0, 0
    return {"relu2": "relu2_no_mul"}.get(act, act), 0, 0, limit


def layer_of(name, config):
    method, *other = ROUTER[name]
    norm = first(config, "moe_renormalize", "norm_topk_prob")
    act, alpha, beta, limit = activation_of(name, config)
    quant, block = format_of(config)
    groups = first(config, "num_expert_group", "n_group") or 0
    if getattr(config, "topk_method", None) == "greedy":
        groups = 0
    return dict(
        hidden=first(config, "routed_expert_hidden_size", "moe_latent_size", "hidden_size"),
        inter=first(config, "expert_ffn_hidden_size", "moe_intermediate_size", "intermediate_size"),
        experts=first(config, "n_routed_experts", "num_local_experts", "moe_num_experts", "num_experts"),
        topk=first(config, "num_experts_per_token", "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k"),
        quant=quant, block=block, act=act, alpha=alpha, beta=beta, limit=limit,
        routing=other[0] if other and not norm else method, groups=groups,
        topk_groups=first(config, "topk_group") if groups else 0,
        scale=first(config, "moe_router_scaling_factor", "routed_scaling_factor") or 1,
        router_eps=other[1] if len(other) > 1 else 0, router_weight_on_input=int(name == "Llama4TextConfig"))


def main():
    print(f"# made by tests/data/{os.path.basename(__file__)}: transformers {transformers.__version__}")
    print("model", *COLUMNS, "class", "published", "source", sep="\t")
    for name, (kind, published, source) in MODELS.items():
        of = getattr(transformers, kind)
        config, default = of(**published), of()
        layer = layer_of(kind, config)
        differs = [key for key in published if getattr(config, key, None) != getattr(default, key, None)]
        print(name, *(f"{layer[c]:.9g}" if isinstance(layer[c], float) else layer[c] for c in COLUMNS), kind,
              ",".join(sorted(differs)) or "-", source or "-", sep="\t")


main()
