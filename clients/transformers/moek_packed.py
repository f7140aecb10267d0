"""moek_packed.py -- checkpoints whose experts are packed, loaded as they are saved: no dequantized copy of a weight.

Quantizers of transformers for mxfp4 (gpt-oss), in the places of transformers' own, which they are but for the experts:
parameters of an experts module get the names, shapes and bytes of the checkpoint, and moek reads those.  This holds for
models with experts_implementation="moek", and not with dequantize=True.

A checkpoint is packed as a whole: if moek cannot read one of its layers, transformers' own quantizer does its work, and
one warning says why.  moek_torch.FORMATS says which format of moek the bytes are; none of them moves."""
import types

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers import auto
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

import moek_transformers
from moek_torch import DTYPES


def register():
    auto.AUTO_QUANTIZER_MAPPING.update({"mxfp4": Mxfp4})


# ---- an experts module with packed parameters ------------------------------------------------------------------------

def matrices(module):
    """(name, rows, columns, matrices in one) of its parameters.  A module that is packed has none."""
    up = "gate_up_proj" if module.has_gate else "up_proj"
    for name, parts in ((up, 1 + module.has_gate), ("down_proj", 1)):
        rows, columns = getattr(module, name).shape[1:][::-1 if module.is_transposed else 1]
        yield name, rows, columns, parts


def pack(module, suffixes, shapes):
    """Parameters of the module become those that shapes(rows, columns, parts) has, {suffix: (shape behind that of
    experts, dtype)}.  suffixes: of the weights and of their scales."""
    for name, *sizes in list(matrices(module)):
        weight = module._parameters.pop(name)
        for suffix, (shape, dtype) in shapes(*sizes).items():
            tensor = torch.empty(weight.shape[0], *shape, dtype=dtype, device=weight.device)
            module.register_parameter(name + suffix, torch.nn.Parameter(tensor, requires_grad=False))
    module.is_transposed = False                       # what is packed is [experts][out][in]
    module._moek_packed = suffixes
    module._is_hf_initialized = True                   # by the checkpoint; its class knows other parameters
    module.forward = types.MethodType(_forward, module)


def _forward(self, *args, **kwargs):
    if self.config._experts_implementation != "moek":
        raise RuntimeError(f"experts_implementation={self.config._experts_implementation!r}: the experts are packed as "
                           "in the checkpoint, and only moek reads that.  Load the model with this implementation")
    return type(self).forward(self, *args, **kwargs)


def _reason(module, multiple):
    """Why moek could not serve the module, or None.  It has no values yet, and no device."""
    weight = module.down_proj
    odd = [n for _, rows, columns, _ in matrices(module) for n in (rows, columns) if n % multiple]
    if weight.dtype not in DTYPES:
        return f"it is loaded as {weight.dtype}, neither bfloat16 nor float16"
    if odd:
        return f"{odd[0]} rows or columns of its weights are no multiple of {multiple}"
    if getattr(module, "has_post_expert_norm", False):
        return "it has a norm behind each expert"
    if not moek_transformers._activation(module, torch.device("cpu")):
        return "its activation is none of moek's"
    return None


class Packing:
    """For a quantizer of transformers.  Its checks of the machine come late: they are for models that it serves."""
    packed = ()                                        # names of the modules

    def validate_environment(self, *args, **kwargs):
        self._environment = args, kwargs

    def _process_model_before_weight_loading(self, model, **kwargs):
        args, environment = self._environment
        if self.pre_quantized and not self.quantization_config.dequantize:
            self.packed = self._pack(model)
        if not self.packed or self.has_other_layers:
            super().validate_environment(*args, **environment)
            super()._process_model_before_weight_loading(model, **kwargs)

    def _pack(self, model):
        """Packs all experts that the checkpoint has packed, or none."""
        of = {name: module for name, module in model.named_modules() if moek_transformers._decorated(module)
              and module.config._experts_implementation == "moek" and self.is_packed(name, module)}
        for module in of.values():
            why = self.reason(module)
            if why:
                moek_transformers._warn(f"moek does not read experts of {type(module).__name__} as they are packed, "
                                        f"transformers unpacks them: {why}")
                return ()
        for module in of.values():
            pack(module, self.suffixes, self.shapes(module))
        return tuple(of)


# ---- formats ---------------------------------------------------------------------------------------------------------

def mxfp4_shapes(rows, columns, parts):
    return {"_blocks": ((rows, columns // 32, 16), torch.uint8), "_scales": ((rows, columns // 32), torch.uint8)}


class Mxfp4(Packing, Mxfp4HfQuantizer):
    """gpt-oss: blocks of 32 elements, 16 bytes, and a byte with their exponent."""
    has_other_layers = False
    suffixes = "_blocks", "_scales"

    def is_packed(self, name, module):
        return isinstance(module, GptOssExperts) and \
            should_convert_module(name, self.quantization_config.modules_to_not_convert)

    def reason(self, module):
        return _reason(module, 32)

    def shapes(self, module):
        return mxfp4_shapes

    def get_weight_conversions(self):
        return [] if self.packed else super().get_weight_conversions()
