"""moek_packed.py -- checkpoints whose experts are packed, loaded as they are saved: no dequantized copy of a weight.

Quantizers for mxfp4 (gpt-oss), compressed-tensors and fp8, in the places of transformers' own, which they are but for
the experts: parameters of an experts module get the names, shapes and bytes of the checkpoint, and moek reads those.
This holds for models with experts_implementation="moek", and not with dequantize=True.  Where a checkpoint has a matrix
for each expert, transformers' own conversions stack their bytes as they stack plain weights.

A checkpoint is packed as a whole: if moek cannot read one of its layers, transformers' own quantizer does its work, and
one warning says why.  moek_torch.FORMATS says which format of moek the bytes are.  Experts are found by all names that
models.toml has for the architecture: quantizers rename them.  On Hopper, the first run rearranges
weights of 4 bits at their place; state_dict and load_state_dict still give and take the bytes of the checkpoint."""
import importlib.util
import types

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, process_target_pattern
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers import auto
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

import moek_layers
import moek_torch
from moek_torch import DTYPES, UP_SCALES_SEPARATE, settings

_spec = importlib.util.spec_from_file_location("moek_names", settings["moek"] / "generated" / "moek_names.py")
moek_names = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(moek_names)


def register():
    auto.AUTO_QUANTIZER_MAPPING.update({"mxfp4": Mxfp4, "compressed-tensors": CompressedTensors, "fp8": Fp8})


# ---- an experts module with packed parameters ------------------------------------------------------------------------

def matrices(module):
    """(name, rows, columns, matrices in one) of its parameters.  A module that is packed has none."""
    up = "gate_up_proj" if module.has_gate else "up_proj"
    for name, parts in ((up, 1 + module.has_gate), ("down_proj", 1)):
        rows, columns = getattr(module, name).shape[1:][::-1 if module.is_transposed else 1]
        yield name, rows, columns, parts


def pack(module, suffixes, shapes, **fields):
    """Parameters of the module become those that shapes(rows, columns, parts) has, {suffix: (shape behind that of
    experts, dtype)}.  suffixes: of the weights and of their scales.  fields: of moek_config."""
    for name, *sizes in list(matrices(module)):
        weight = module._parameters.pop(name)
        for suffix, (shape, dtype) in shapes(*sizes).items():
            tensor = torch.empty(weight.shape[0], *shape, dtype=dtype, device=weight.device)
            module.register_parameter(name + suffix, torch.nn.Parameter(tensor, requires_grad=False))
    module.is_transposed = False                       # what is packed is [experts][out][in]
    module._moek_packed, module._moek_fields = suffixes, fields
    module._is_hf_initialized = True                   # by the checkpoint; its class knows other parameters
    module.forward = types.MethodType(_forward, module)
    module._apply = types.MethodType(_moved, module)
    module.register_state_dict_post_hook(_untiled)
    module.register_load_state_dict_pre_hook(_untile)


def _moved(module, act, recurse=True):
    """In the place of _apply, behind to(), cuda() and their like: what was tiled is tiled in its new place, too."""
    tiled = moek_layers.tiled_names(module)
    type(module)._apply(module, act, recurse)
    for name in tiled:
        moek_torch.mark(module._parameters[name], True)
    return module


def _untile(module, state_dict, prefix, *_):
    moek_layers.untile(module, [name for name in module._parameters if prefix + name in state_dict])


@torch.no_grad()
def _untiled(module, state_dict, prefix, _):
    if moek_layers.is_tiled(module):
        state_dict.update({prefix + name: copy for name, copy in moek_layers.untiled(module).items()})


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
    if not moek_layers.activation(module, torch.device("cpu")):
        return "its activation is none of moek's"
    return None


class Packing:
    """For a quantizer of transformers, which serves the layers that are no experts, and models that are not packed."""
    packed = ()                                        # names of the modules

    def _process_model_before_weight_loading(self, model, **kwargs):
        if self.pre_quantized and self.wants_packed():
            self.packed = self._pack(model)
        if not self.packed or self.has_others(model):
            self.check_late()
            super()._process_model_before_weight_loading(model, **kwargs)

    def wants_packed(self):
        return not self.quantization_config.dequantize

    def check_late(self):
        pass

    def fields(self, name, module):
        return {}

    def postprocess_model(self, model, **kwargs):
        self.check_loaded(model)
        return super().postprocess_model(model, **kwargs)

    def check_loaded(self, model):
        """transformers leaves what a checkpoint does not hold uninitialized in modules that are packed."""
        lost = [f"{name}.{key}" for name in self.packed
                for key, value in model.get_submodule(name).named_parameters(recurse=False)
                if not getattr(value, "_is_hf_initialized", False) and value.device.type != "meta"]    # (not offloaded)
        if lost:
            raise RuntimeError(f"the checkpoint does not hold {len(lost)} parameters of packed experts: "
                               f"{', '.join(lost[:6])}{', ...' if len(lost) > 6 else ''}.  transformers' report above "
                               "names what it found in their place, if anything: complete or rename these tensors")

    def _pack(self, model):
        """Packs all experts that the checkpoint has packed, or none."""
        self.conversions = get_model_conversion_mapping(model)
        of = {name: module for name, module in model.named_modules() if moek_layers.decorated(module)
              and module.config._experts_implementation == "moek" and self.is_packed(name, module)}
        for name, module in of.items():
            why = self.reason(name, module)
            if why:
                moek_layers.warn(f"moek does not read experts of {type(module).__name__} as they are packed, "
                                        f"and leaves them to transformers' unpacking: {why}")
                return ()
        for name, module in of.items():
            pack(module, self.suffixes, self.shapes(name, module), **self.fields(name, module))
        return tuple(of)


# ---- checkpoints with a matrix for each expert -----------------------------------------------------------------------

END = "" if process_target_pattern("$")[0] else "$"    # of a pattern; newer transformers see ends of names themselves


def stacking(conversions, names):
    """Those of transformers' conversions that stack `weight` of each expert to parameters with these names."""
    for of in conversions:
        if isinstance(of, WeightConverter) \
                and all(type(op) in (MergeModulelist, Concatenate) for op in of.operations) \
                and all(source.endswith(".weight") for source in of._original_source_patterns) \
                and any(name.endswith(of._original_target_patterns[0]) for name in names):
            yield of


def namings(model_type):
    """What gate, up and down of an expert are called in checkpoints of this architecture."""
    return [{key: row[key].rpartition(".")[2] for key in ("gate", "up", "down")} for row in moek_names.EXPERTS
            if model_type in row["models"] and row["gate"] and not row["methods"]]


def renamed(sources, names):
    """Patterns of transformers, x.NAME.weight, and the same with each of the other names."""
    of = [next((key for naming in names for key in naming if naming[key] == source.split(".")[-2]), None)
          for source in sources]
    every = [list(sources)]
    for naming in names if None not in of else []:
        other = [f"{source.rsplit('.', 2)[0]}.{naming[key]}.weight" for source, key in zip(sources, of)]
        if other not in every:
            every.append(other)
    return every


class Stacking(Packing):
    """Of these checkpoints: tensors `weight` with other ends."""
    def _pack(self, model):
        self.namings = namings(model.config.get_text_config().model_type)
        return super()._pack(model)

    def sources(self, name, module):
        """Names of the first expert's matrices: those of gate, up and down; [] where they are not stacked plainly."""
        found = list(stacking(self.conversions, [f"{name}.{of}" for of, *_ in matrices(module)]))
        if len(found) != 2 or module.is_transposed:
            return []
        return [f"{name}.0.{source.split('.')[-2]}" for of in found for source in of._original_source_patterns]

    def update_weight_conversions(self, conversions, *model):
        names = [f"{name}.{of}" for name in self.packed for of in ("gate_up_proj", "up_proj", "down_proj")]
        plain, ours = list(stacking(conversions, names)), []
        for of, sources in ((of, sources) for of in plain for sources in renamed(of._original_source_patterns,
                                                                                 getattr(self, "namings", []))):
            for end in self.ends:
                copy = WeightConverter([source + end + END for source in sources],
                                       [target + end + END for target in of._original_target_patterns],
                                       list(of.operations))
                copy.scope_prefix, copy.base_model_prefix = of.scope_prefix, of.base_model_prefix
                ours.append(copy)
        return ours + super().update_weight_conversions([of for of in conversions if of not in plain], *model)


# ---- formats ---------------------------------------------------------------------------------------------------------

def mxfp4_shapes(rows, columns, parts):
    return {"_blocks": ((rows, columns // 32, 16), torch.uint8), "_scales": ((rows, columns // 32), torch.uint8)}


class Mxfp4(Packing, Mxfp4HfQuantizer):
    """gpt-oss: blocks of 32 elements, 16 bytes, and a byte with their exponent."""
    suffixes = "_blocks", "_scales"

    def validate_environment(self, *args, **kwargs):
        self.environment = args, kwargs                # moek's experts need neither triton nor kernels

    def check_late(self):
        args, kwargs = self.environment
        super().validate_environment(*args, **kwargs)

    def has_others(self, model):
        return False

    def is_packed(self, name, module):
        return isinstance(module, GptOssExperts) and \
            should_convert_module(name, self.quantization_config.modules_to_not_convert)

    def reason(self, name, module):
        return _reason(module, 32)

    def shapes(self, name, module):
        return mxfp4_shapes

    def get_weight_conversions(self):
        return [] if self.packed else super().get_weight_conversions()


def int4_shapes(block, dtype):
    return lambda rows, columns, parts: {
        "_packed": ((rows, columns // 8), torch.int32),
        "_scale": ((rows, -(-columns // (block or columns))), dtype),
        "_shape": ((2 * parts,), torch.int64)}


class CompressedTensors(Stacking, CompressedTensorsHfQuantizer):
    """pack-quantized, 4 bits, symmetric: words of 8 elements, and a scale for 32, 64 or 128 of them, or for a row."""
    suffixes = "_packed", "_scale"
    ends = "_packed", "_scale", "_shape", ""           # (layers that the checkpoint ignores have plain weights)

    def has_others(self, model):
        from compressed_tensors.utils.match import match_named_modules
        config = self.compressor.quantization_config
        return any(not f"{name}.".startswith(tuple(f"{of}." for of in self.packed))
                   for scheme in config.config_groups.values()
                   for name, _ in match_named_modules(model, scheme.targets, config.ignore or ()))

    def schemes(self, name, module):
        """Of the checkpoint's configuration, for the matrices of an expert; None: such a one is not quantized."""
        from compressed_tensors.utils.match import is_match
        config, linear = self.compressor.quantization_config, torch.nn.Linear(1, 1, device="meta")
        return [next((scheme for scheme in config.config_groups.values()
                      if is_match(source, linear, scheme.targets, config.ignore or ())), None)
                for source in self.sources(name, module) or [f"{name}.0.gate_proj"]]

    def is_packed(self, name, module):
        return any(self.schemes(name, module))

    def reason(self, name, module):
        scheme, *others = self.schemes(name, module)
        if not self.sources(name, module) or scheme is None or any(other is not scheme for other in others):
            return "its matrices do not lie one by one in the checkpoint, with one scheme for all"
        w, config = scheme.weights, self.compressor.quantization_config
        format = getattr(scheme, "format", None) or config.format
        if format != "pack-quantized":
            return f"their format is {format}, not pack-quantized"
        if (w.num_bits, w.type) != (4, "int"):
            return f"they have {w.num_bits} bits, not 4"
        if not w.symmetric:
            return "they have zero points"
        if w.actorder == "group":
            return "their columns are in another order (g_idx)"
        if w.strategy != "channel" and (w.strategy != "group" or w.group_size not in (32, 64, 128)):
            return f"a {w.strategy} of {w.group_size} has a scale, neither a channel nor a group of 32, 64 or 128"
        if scheme.input_activations is not None:
            return "activations are quantized, too"
        if not self.quantization_config.is_quantization_compressed:
            return "they are not compressed"
        return _reason(module, 32)

    def shapes(self, name, module):
        self.dtype = module.down_proj.dtype
        return int4_shapes(self.fields(name, module)["block"], self.dtype)

    def fields(self, name, module):
        w = self.schemes(name, module)[0].weights
        return {"block": w.group_size if w.strategy == "group" else 0}

    def _process_model_after_weight_loading(self, model, **kwargs):
        for name in self.packed:
            module = model.get_submodule(name)
            for scale in (of for key, of in module.named_parameters(recurse=False) if key.endswith("_scale")):
                scale.data = scale.data.to(self.dtype)
        return super()._process_model_after_weight_loading(model, **kwargs)


def fp8_shapes(rows, columns, parts):                  # gate and up have blocks of their own
    return {"": ((rows, columns), torch.float8_e4m3fn),
            "_scale_inv": ((parts * -(-rows // parts // 128), -(-columns // 128)), torch.float32)}


class Fp8(Stacking, FineGrainedFP8HfQuantizer):
    """Blocks of 128 x 128, on machines where transformers would dequantize the whole model: CPUs, GPUs without fp8.
    There it dequantizes what are no experts; elsewhere it has FP8Experts, whose function moek is."""
    suffixes = ends = "", "_scale_inv"

    def validate_environment(self, *args, **kwargs):
        asked = self.quantization_config.dequantize
        super().validate_environment(*args, **kwargs)
        self.no_fp8_here = self.quantization_config.dequantize and not asked

    def wants_packed(self):
        return self.no_fp8_here

    def has_others(self, model):
        return True

    def is_packed(self, name, module):
        return should_convert_module(name, self.quantization_config.modules_to_not_convert)

    def reason(self, name, module):
        config = self.quantization_config
        if tuple(config.weight_block_size or ()) != (128, 128):
            return f"blocks are {config.weight_block_size}, not 128 x 128"
        if config.activation_scheme != "dynamic":
            return f"scales of activations are {config.activation_scheme}, not dynamic"
        expert_dtype = getattr(config, "expert_dtype", "fp8")
        if (config.scale_fmt, expert_dtype) != ("float", "fp8"):
            return f"they are {expert_dtype} with scales {config.scale_fmt}, not fp8 with float"
        if not self.sources(name, module):
            return "its matrices do not lie one by one in the checkpoint"
        return _reason(module, 16)

    def shapes(self, name, module):
        return fp8_shapes

    def fields(self, name, module):
        return {"up_scales": UP_SCALES_SEPARATE if module.has_gate and module.down_proj.shape[2] % 128 else 0}

    def postprocess_model(self, model, **kwargs):
        if self.packed:                                # is saved so: experts as they were, others as they are now
            config = self.quantization_config
            config.dequantize = False
            config.modules_to_not_convert = sorted({*(config.modules_to_not_convert or ()), *(
                name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))})
            model._weight_conversions = [of for of in model._weight_conversions if not any(
                hasattr(op, "hf_quantizer") for op in getattr(of, "operations", ()))]
        return super().postprocess_model(model, **kwargs)
