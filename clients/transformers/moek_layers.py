"""moek_layers.py -- what moek finds of an experts module of transformers.

Which arrays and which formula it has, why moek cannot serve it, and whether its arrays lie in the order of Hopper's
kernels.  moek_transformers.py, which runs such modules, and moek_packed.py, which loads them, ask here."""
import collections
import copy
import itertools
import warnings

import torch
import torch.nn.functional as F

import moek_torch
from moek_torch import DTYPES, FORMATS, UP_GATE_UP, UP_INTERLEAVED, Formula, Weights


def decorated(module):                                # by @use_experts_implementation, or by use()
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate")


# What a look at a module found.  names: of its parameters.  facts, addresses: of these, to see whether they still hold.
Layer = collections.namedtuple("Layer", "why formula names facts addresses")
GATED = {
    "silu": lambda g, u, alpha, limit: F.silu(g) * u,
    "gelu": lambda g, u, alpha, limit: F.gelu(g) * u,
    "gelu_tanh": lambda g, u, alpha, limit: F.gelu(g, approximate="tanh") * u,
}
LIMITED = {                                            # with a limit, and maybe alpha, that the module has
    "silu": lambda g, u, alpha, limit: F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit),
    "swigluoai": lambda g, u, alpha, limit:
        g.clamp(max=limit) * torch.sigmoid(alpha * g.clamp(max=limit)) * (u.clamp(-limit, limit) + 1),
    "swiglustep": lambda g, u, alpha, limit: F.silu(g).clamp(max=limit) * u.clamp(-limit, limit),
}
SINGLE = {
    "silu_no_mul": F.silu, "gelu_no_mul": F.gelu, "relu_no_mul": F.relu,
    "gelu_tanh_no_mul": lambda g: F.gelu(g, approximate="tanh"), "relu2_no_mul": lambda g: F.relu(g).square(),
}


def _same(got, want):
    return got.shape == want.shape and torch.allclose(got.float(), want, rtol=1e-4, atol=1e-5)


def activation(module, device):
    """The formula that gives what the module's own function gives, or None."""
    edge = torch.tensor([-1e4, -80.0, -9.0, 9.0, 80.0, 1e4], dtype=torch.float32, device=device)
    some = torch.cat([torch.linspace(-8, 8, 33, dtype=torch.float32, device=device), edge])
    if not module.has_gate:
        got = module.act_fn(some)
        acts = [act for act, f in SINGLE.items() if _same(got, f(some))]
        return Formula(acts[0], 0, 0.0, 0.0, 0.0, False, 0, 0, False) if acts else None
    g, u = (x.reshape(1, -1) for x in torch.meshgrid(some, some, indexing="ij"))
    numbers = {float(v) for v in vars(module).values() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    numbers = sorted(v for v in numbers if 0 < v < 1e4)
    layouts = {UP_GATE_UP: torch.cat([g, u], 1), UP_INTERLEAVED: torch.stack([g, u], 2).flatten(1)}
    for up_layout, both in layouts.items():
        got = module._apply_gate(both)
        for act, f in GATED.items():
            if _same(got, f(g, u, 0, 0)):
                return Formula(act, up_layout, 0.0, 0.0, 0.0, False, 0, 0, False)
        for (act, f), limit in itertools.product(LIMITED.items(), numbers):
            for alpha in numbers if act == "swigluoai" else [0.0]:
                if _same(got, f(g, u, alpha, limit)):
                    return Formula(act, up_layout, alpha, 0.0, limit, False, 0, 0, False)
    return None


def _names(module):
    up = "gate_up_proj" if module.has_gate else "up_proj"
    w, scale = getattr(module, "_moek_packed", ("", "_scale_inv"))
    return up + w, "down_proj" + w, up + "_bias", "down_proj_bias", up + scale, "down_proj" + scale


def weights_of(module, names=None):
    has = module._parameters                           # (faster than getattr, and only parameters count)
    return Weights(*map(has.get, names or _names(module)))


def _facts(weights):
    return [w if w is None else (type(w), w.dtype, w.device, w.shape, w.stride()) for w in weights]


def _addresses(weights):
    return [w if w is None else w.data_ptr() for w in weights]


def _turn(parameter):
    """From [experts][in][out] in memory to [experts][out][in], an expert at a time and at its place.  The parameter's
    shape stays, its strides change: what else reads the parameter sees the same values."""
    if parameter.transpose(1, 2).is_contiguous():
        return
    if not moek_torch.alone(parameter):                # what else has this memory would not see the strides
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    data = parameter.data.contiguous()
    experts, rows, columns = data.shape
    for expert in data:
        expert.view(columns, rows).copy_(expert.t().clone(memory_format=torch.contiguous_format))
    parameter.data = data.view(experts, columns, rows).transpose(1, 2)


def _reason(module):
    """Why moek cannot serve it, or None."""
    weights = weights_of(module)
    if weights.w_up is None or weights.w_down is None:
        return "it has no parameters gate_up_proj (or up_proj) and down_proj"
    for w in filter(lambda w: w is not None, weights):
        if type(w) not in (torch.nn.Parameter, torch.Tensor):
            return f"its weights are {type(w).__name__}"
        if w.device.type not in ("cpu", "cuda") or w.device != weights.w_up.device:
            return f"its weights are on {w.device}"
    dtype = weights.w_up.dtype
    if dtype not in FORMATS or weights.w_down.dtype != dtype or not (dtype.is_floating_point or is_packed(module)):
        return f"its weights are {dtype}, neither bfloat16 nor float16 nor float8_e4m3fn"
    for bias in weights.w_up_bias, weights.w_down_bias:
        if bias is not None and bias.dtype not in ((dtype,) if dtype in DTYPES else DTYPES):
            return f"its biases are {bias.dtype}, its weights {dtype}"
    if getattr(module, "has_post_expert_norm", False):
        return "it has a norm behind each expert"
    why = _fp8_reason(module, weights) if dtype == torch.float8_e4m3fn and not is_packed(module) else None
    return why or _scales_reason(weights) or _shapes_reason(module, weights)


def _fp8_reason(module, weights):
    if tuple(module.block_size or ()) != (128, 128) or module.activation_scheme != "dynamic":
        return f"block_size {module.block_size}, activation_scheme {module.activation_scheme}, not (128, 128), dynamic"
    if weights.w_down.shape[2] % 128:
        return f"inter is {weights.w_down.shape[2]}: gate and up share blocks of 128 rows"
    return None


def _scales_reason(weights):
    dtype, scales = weights.w_up.dtype, (weights.w_up_scale, weights.w_down_scale)
    wanted = {torch.float8_e4m3fn: [torch.float32], torch.uint8: [torch.uint8], torch.int32: DTYPES}.get(dtype)
    found = [getattr(scale, "dtype", None) for scale in scales]
    if wanted and (found[0] not in wanted or found[1] != found[0]):
        return f"its scales are {' and '.join(map(str, found))}, not {' or '.join(map(str, wanted))}"
    return None


def _shapes_reason(module, weights):
    """Kernels read no sizes but those of w_up and w_down, so each other array has what these ask for."""
    hidden, inter = (moek_torch.columns(w, module.is_transposed) for w in weights[:2])
    block = getattr(module, "_moek_fields", {}).get("block")
    for name, w, parts, rows, columns in zip(_names(module), weights, (1 + module.has_gate, 1) * 3,
                                             (inter, hidden) * 3, (hidden, inter) * 3):
        if w is None:
            continue
        found, wanted = [w.shape[0], w.shape[2 if module.is_transposed and w.dim() == 3 else 1]], [parts * rows]
        if w is weights.w_up_scale or w is weights.w_down_scale:
            high, wide = {torch.float8_e4m3fn: (128, 128), torch.uint8: (1, 32)}.get(
                weights.w_up.dtype, (1, block or columns))                 # of what has a scale
            found, wanted = [*found, w.shape[2]], [parts * -(-rows // high), -(-columns // wide)]
        if found != [weights.w_up.shape[0], *wanted]:
            return f"{name} has the shape {tuple(w.shape)}: not {weights.w_up.shape[0]} experts with {wanted}"
    return None


# Packed weights of 4 bits have faster kernels on Hopper, which read an order of their own (moek_torch.tile).

class Tiled:
    """Of a module whose parameters were brought into this order: with which formula and on which device."""
    def __init__(self, module, formula, device):
        self.module, self.formula, self.device = module, formula, device

    def __deepcopy__(self, memo):                      # of the module: what is a copy of tiled bytes is tiled
        for w in filter(lambda w: w is not None and moek_torch.lies_tiled(w), self.module._parameters.values()):
            moek_torch.mark(copy.deepcopy(w, memo), True)
        return Tiled(copy.deepcopy(self.module, memo), self.formula, self.device)


def tiled_names(module):
    """Names of the parameters that lie so now."""
    lie = {name: moek_torch.lies_tiled(w) for name, w in module._parameters.items() if w is not None}
    for name in (name for name, tiled in lie.items() if tiled is None):
        raise RuntimeError(f"{name} of {type(module).__name__} was written, or its .data replaced, while it lay in the "
                           "order of Hopper's kernels: nothing tells which order it has now.  Load it again with "
                           "load_state_dict, and call moek_transformers.untile(module) before a program writes it")
    return [name for name, tiled in lie.items() if tiled]


def is_tiled(module):
    return bool(tiled_names(module))


def _tile(module, weights, formula):
    """The formula with tiled weights, where there are kernels for these; else the formula as it was."""
    tiled = formula._replace(tiled=True)
    try:
        plan = moek_torch.plan_of(x_dtype(weights, weights.w_up), 1, 1, weights, tiled, False)
    except RuntimeError:                               # no Hopper, or sizes that are no multiples of 64
        untile(module)                                 # (which was there before)
        return formula
    tiled_names(module)                                # or an error
    moek_torch.tile(plan, weights)
    module._moek_tiled = Tiled(module, tiled, weights.w_up.device)
    return tiled


def untiled(module):
    """Copies of its tiled parameters in the checkpoint's order, {name: tensor}, on the GPU."""
    names = tiled_names(module)
    if not getattr(module, "_moek_tiled", None):       # a layer that shares its weights has tiled them
        look_at(module)
    weights, of = weights_of(module), module._moek_tiled
    device = weights.w_up.device if weights.w_up.is_cuda else of.device
    copies = Weights(*(None if w is None else w.detach().to(device, copy=True) for w in weights))
    made = {name: w for name, w in zip(_names(module), copies) if name in names}
    for w in made.values():
        moek_torch.mark(w, True)
    plan = moek_torch.plan_of(x_dtype(copies, copies.w_up), 1, 1, copies, of.formula, False)
    moek_torch.tile(plan, copies, back=True)
    return made


def untile(module, unknown=()):
    """The parameters lie as in the checkpoint again.  The next run of the module tiles them anew.  unknown: names of
    those that the caller is about to write, so that their order now does not matter."""
    for name in unknown:
        if moek_torch.lies_tiled(module._parameters[name]) is None:
            moek_torch.mark(module._parameters[name], False)
    if is_tiled(module):
        for name, values in untiled(module).items():
            module._parameters[name].data.copy_(values)
            moek_torch.mark(module._parameters[name], False)
    module._moek_tiled = module._moek = None


@torch.compiler.disable
@torch.no_grad()
def look_at(module, on_input=False, before=None):
    """before: what was found when the activation was looked at, which does not depend on weights."""
    weights = weights_of(module)
    w_up, w_down = weights.w_up, weights.w_down
    why, formula = _reason(module), before and before.formula
    if not why:
        formula = formula or activation(module, w_up.device)
        why = None if formula else "its activation is none of moek's"
    if not why:
        formula = formula._replace(on_input=on_input, tiled=False, **getattr(module, "_moek_fields", {}))
        turns = weights[:2] if module.is_transposed else ()
        if not all(w is None or w.is_contiguous() for w in weights[len(turns):]):
            why = "its weights are not contiguous"
    if not why:
        for w in filter(lambda w: w is not None and w.data_ptr() % 16, weights):       # mapped from a file
            w.data = w.data.clone()
        try:                                           # compiles, and tells whether there are kernels
            moek_torch.plan_of(x_dtype(weights, w_up), 1, 1, weights, formula, module.is_transposed)
        except (RuntimeError, OSError) as error:
            why = str(error)
    if not why:
        for w in turns:
            _turn(w)
        if not w_up.dtype.is_floating_point:
            formula = _tile(module, weights, formula)
    if why and not is_packed(module):
        warn(f"moek does not serve {type(module).__name__}, transformers' own code does: {why}")
    module._moek = Layer(why or "", formula, _names(module), _facts(weights), [] if why else _addresses(weights))
    return module._moek


def x_dtype(weights, x):                              # of what goes into the operator
    for of in weights.w_up, weights.w_up_scale, weights.w_up_bias, x:
        if of is not None and of.dtype in DTYPES:
            return of.dtype
    return torch.bfloat16


def is_packed(module):                                   # by moek_packed: there is no other code for its weights
    return hasattr(module, "_moek_packed")


_warned = set()


@torch.compiler.disable
def warn(text):
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text)


def still(layer, weights):
    """Are these the arrays that _look_at saw?  A graph of torch.compile has no addresses: guards of its own see whether
    arrays are others, and the operator whether they are tiled."""
    if layer.facts != _facts(weights):
        return False
    if torch.compiler.is_compiling() or layer.why:
        return True
    return layer.addresses == _addresses(weights) and \
        (not layer.formula.tiled or all(moek_torch.lies_tiled(w) for w in moek_torch.tileable(weights)))
