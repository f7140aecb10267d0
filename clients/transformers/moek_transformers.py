"""moek_transformers.py -- moek as an experts implementation of Hugging Face transformers 5.

    import moek_transformers
    moek_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto", experts_implementation="moek")

Needs torch, transformers and a compiler: nvcc for models on a GPU, a C compiler for models on the CPU.  The first layer
that runs compiles moek's kernels into a shared library, in ~/.cache/moek; later processes load the library.

What a layer is, comes from its module: shapes from the weights, layout from is_transposed and is_concatenated, the
activation from a few values that the module's own function is asked for.  A layer that moek cannot serve runs
transformers' grouped_mm instead, and one warning says why.

Nothing here holds a weight: a plan has their addresses and is looked up by these addresses.  Each run compares its
layer's arrays with those that were seen, and looks at the layer anew if one is another.  README.md of this folder says
what happens to transposed weights, what works under torch.compile and CUDA graphs, and what one_launch is."""
import pathlib
import types

import torch
from transformers.integrations import finegrained_fp8, moe

import moek_torch
from moek_layers import decorated, is_packed, look_at, still, warn, weights_of, x_dtype
from moek_layers import untile                         # noqa: F401: for programs that write weights
from moek_torch import settings


def register(moek=None, library=None, one_launch=False):
    """Makes "moek" an experts_implementation.

    moek: folder of moek, by default the one that this file is in.  library: a shared library that you built from it
    (README.md has the commands); by default one is compiled where it is needed.  one_launch: GPU layers of few tokens
    take one launch.  Only where no other process and no other stream runs moek on the same GPU: docs/one-launch.md."""
    settings.update(library=library, one_launch=one_launch)
    if moek:
        settings["moek"] = pathlib.Path(moek).resolve()
    moe.ALL_EXPERTS_FUNCTIONS.register("moek", experts_forward)
    finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS.register("moek", fp8_experts_forward)
    import moek_packed                                 # (which reads a file of that folder)
    moek_packed.register()


def use(model):
    """For a model that is there already, and for blocks without an experts_implementation (Llama 4): sets "moek", then
    prepares."""
    if "moek" not in moe.ALL_EXPERTS_FUNCTIONS:
        register()
    if any(decorated(module) for module in model.modules()):
        model.set_experts_implementation("moek")
    for module in model.modules():
        if type(module).__name__ == "Llama4TextMoe":
            experts = module.experts
            experts.has_gate, experts.has_bias, experts.is_transposed = True, False, True
            experts._apply_gate = types.MethodType(moe._default_apply_gate, experts)
            module.forward = types.MethodType(_llama4_forward, module)
    return prepare(model)


def prepare(model):
    """Does ahead what the first run would do: compiles moek, looks at each layer, rearranges transposed weights.  To be
    called before torch.compile(fullgraph=True).  Returns {name of a layer: "", or why moek does not serve it}."""
    return {name: look_at(module, on_input=not hasattr(module, "is_concatenated")).why
            for name, module in model.named_modules() if decorated(module)}


# ---- the forward functions -------------------------------------------------------------------------------------------

def _call(module, found, x, ids, scores):
    layer, weights = found
    y = torch.ops.moek.experts(x.to(x_dtype(weights, x)), ids, scores, *weights, *layer.formula, module.is_transposed)
    return y.to(x.dtype)


def _layer(module, x, scores, topk, on_input=False):
    """What _look_at found, and the arrays; or None: transformers' own code is to run."""
    layer = getattr(module, "_moek", None)
    weights = layer and weights_of(module, layer.names)
    if layer is None or not still(layer, weights):
        layer = look_at(module, on_input, layer)      # the first run, or there are new weights
        weights = weights_of(module, layer.names)
    why, grad = layer.why, torch.is_grad_enabled() and any(
        of is not None and of.requires_grad for of in (x, scores, *weights))
    if topk > moek_torch.MOST_TOPK:
        why = f"{topk} experts a token, more than {moek_torch.MOST_TOPK}"
    if is_packed(module) and (why or grad):
        raise RuntimeError(f"{type(module).__name__} is packed, and only moek could run it: " +
                           (why or "moek has no backward pass, so torch.no_grad() or inference_mode()"))
    if grad and not why:
        warn("moek has no backward pass, so transformers' own code runs: torch.no_grad() or inference_mode()")
    return None if why or grad else (layer, weights)


def _forward(self, default, hidden_states, top_k_index, top_k_weights):
    found = _layer(self, hidden_states, top_k_weights, top_k_index.shape[-1])
    if found is None:
        return default(self, hidden_states, top_k_index, top_k_weights)
    if getattr(self, "_is_expert_parallel", True):     # there, num_experts is the id of an expert of another rank
        top_k_index = top_k_index.masked_fill(top_k_index >= self.num_experts, -1)
    return _call(self, found, hidden_states, top_k_index, top_k_weights)


def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """In the place of the forward function of a class that has @use_experts_implementation."""
    return _forward(self, moe.grouped_mm_experts_forward, hidden_states, top_k_index, top_k_weights)


def fp8_experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """experts_forward where a model with FineGrainedFP8Config has FP8Experts."""
    return _forward(self, finegrained_fp8.fp8_grouped_mm_experts_forward, hidden_states, top_k_index, top_k_weights)


def _llama4_forward(self, hidden_states):
    """In the place of Llama4TextMoe.forward, which runs each token through each expert, most of them with zeros."""
    found = _layer(self.experts, hidden_states, self.router.weight, 1, True) if self.top_k == 1 else None
    if found is None:
        return type(self).forward(self, hidden_states)
    x = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(x)
    weights, ids = scores.max(1, keepdim=True)
    return self.shared_expert(x) + _call(self.experts, found, x, ids, weights), logits
