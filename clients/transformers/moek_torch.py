"""moek_torch.py -- moek's experts as an operator of torch: torch.ops.moek.experts.  ctypes and torch, nothing else.

Compiles moek once for a device and a format, into a shared library in ~/.cache/moek, and loads the library.  Keeps no
weight: a plan has their addresses, and is looked up by these addresses.

The operator launches kernels on torch's current stream.  No synchronization; y and the workspace come from torch's
allocator, which hands each layer the same block and keeps it in the pool of a CUDA graph under capture."""
import collections
import ctypes
import functools
import hashlib
import itertools
import math
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import torch

FORMATS = {torch.bfloat16: b"bf16", torch.float16: b"fp16", torch.float8_e4m3fn: b"fp8b128",       # by the weights
           torch.uint8: b"mxfp4_a16", torch.int32: b"int4_a16"}        # (integers: elements of 4 bits, packed)
DTYPES = {torch.bfloat16: 1, torch.float16: 2}         # of x and y: MOEK_DTYPE_*
UP_GATE_UP, UP_INTERLEAVED = 1, 2                      # MOEK_UP_*
UP_SCALES_SEPARATE = 1                                 # MOEK_UP_SCALES_*
WEIGHTS_TILED = 1                                      # MOEK_WEIGHTS_*
CPU_ROWS = 1 << 4                                      # bit of MOEK_BACKEND_CPU in config.exclude
CHUNK = 4096                                           # tokens that share a workspace: longer prefills run in chunks
LEAST_TOKENS, MOST_TOPK = 64, 32

settings = {"moek": pathlib.Path(__file__).resolve().parents[2], "library": None, "one_launch": False}


# ---- the library -----------------------------------------------------------------------------------------------------

def _sources(root):
    for folder, name in (("include", "*.h"), ("generated", "*.h"), ("templates", "*.cuh")):
        yield from sorted((root / folder).rglob(name))


def _compilers(arch, quant):
    """Commands to try, in this order, without their output."""
    wants = [f"-I{settings['moek'] / 'include'}", f"-DMOEK_QUANT=MOEK_{quant.decode().upper()}"]
    if arch:
        nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
        lib64 = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "lib64")
        name, rows = f"{arch}a" if arch >= 90 else arch, "(a)==80||(a)==90" if arch == 90 else "(a)==80"
        return [[nvcc, "-std=c++17", "-O3", "-split-compile", "0", "-gencode", f"arch=compute_{name},code=sm_{name}",
                 f"-DMOEK_WANT_ARCH(a)=({rows})", "-shared", "-cudart", "shared", "-Xcompiler", "-fPIC",
                 "-Xlinker", f"-rpath={lib64}", *wants]]
    cc = [*os.environ.get("CC", "cc").split(), "-std=c99", "-O3", "-shared", "-fPIC", "-DMOEK_ARCH=0", *wants]
    return [cc + ["-march=native", "-fopenmp"], cc + ["-fopenmp"], cc]


def _compile(commands, source, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        text, made = os.path.join(folder, source), os.path.join(folder, "made.so")
        with open(text, "w") as f:
            f.write('#define MOEK_IMPLEMENTATION\n#include "moek.h"\n')
        for command in commands:
            done = subprocess.run([*command, text, "-lm", "-o", made], stderr=subprocess.PIPE, text=True)
            if not done.returncode:
                return os.replace(made, file)          # two processes may compile at once: the last one stays
    raise RuntimeError(f"moek does not compile: {' '.join(command)}\n{done.stderr[-2000:]}")


def library_file(arch, quant):
    """Where the library for this architecture (0: CPU, 90: Hopper) and format is, or will be."""
    digest = hashlib.sha256(repr(_compilers(arch, quant)).encode())
    for path in _sources(settings["moek"]):
        digest.update(path.read_bytes())
    if not arch and os.path.exists("/proc/cpuinfo"):   # -march=native: a home folder may be shared by machines
        with open("/proc/cpuinfo") as f:
            digest.update(next((line for line in f if line.startswith(("flags", "Features"))), "").encode())
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "moek" / f"moek-{quant.decode()}-{arch or 'cpu'}-{digest.hexdigest()[:16]}.so"


@functools.lru_cache(maxsize=None)
def _library(arch, quant):
    file = settings["library"]
    if not file:
        file = library_file(arch, quant)
        if not file.exists():
            _compile(_compilers(arch, quant), "moek.cu" if arch else "moek.c", file)
    lib = ctypes.CDLL(str(file))
    for name in ("moek_offset", "moek_config_size", "moek_plan_size", "moek_workspace_size", "moek_state_size"):
        getattr(lib, name).restype = ctypes.c_size_t
    for name in ("moek_quant_name", "moek_act_name", "moek_status_name"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.moek_plan_init_.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2 + [ctypes.c_int]
    lib.moek_run.argtypes = [ctypes.c_void_p] * 3
    for name in REPACK:
        if hasattr(lib, name):                         # (of libraries for GPUs)
            getattr(lib, name).argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
    return lib


def library(device, dtype):
    arch = 0
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        arch = 10 * major + minor
    return _library(arch, FORMATS[dtype])


class _Struct:
    """A struct of moek.h, all zeros.  Fields are found by their names."""
    def __init__(self, lib, name):
        self.offset = lambda field: lib.moek_offset(f"{name}.{field}".encode())
        self.bytes = ctypes.create_string_buffer(lib.moek_offset(name.encode()))

    def set(self, code, **fields):                     # code: i int, f float, P pointer, N size_t
        for field, value in fields.items():
            at = self.offset(field)
            assert at < len(self.bytes), field
            struct.pack_into("@" + code, self.bytes, at, value)

    def text(self, field):
        return self.bytes[self.offset(field):].split(b"\0")[0].decode()


def _number(name_of, name):
    return next(i for i in range(1, 1000) if name_of(i) == name)


# ---- plans -----------------------------------------------------------------------------------------------------------

# What an expert computes: a name and a layout of moek.h, and the numbers of the activation.  on_input: x is multiplied
# by its weight ahead of the experts, in the place of their output.  block, up_scales: as in moek_config.  tiled:
# weights of 4 bits and their scales lie as tile() leaves them.
Formula = collections.namedtuple("Formula", "act up_layout alpha beta limit on_input block up_scales tiled")
Weights = collections.namedtuple("Weights", "w_up w_down w_up_bias w_down_bias w_up_scale w_down_scale")
Plan = collections.namedtuple("Plan", "lib bytes workspace args at")
REPACK = {"moek_repack_up": "w_up", "moek_repack_down": "w_down", "moek_repack_up_scale": "w_up_scale",
          "moek_repack_down_scale": "w_down_scale"}
FIELDS = ("tokens", "x", "topk_ids64", "topk_weights", "y", "workspace", "workspace_size", "state", "why", "why_size")


@functools.lru_cache(maxsize=4096)
def _plan(device, dtype, x_dtype, tokens, experts, hidden, inter, topk, formula, addresses):
    """For at most so many tokens of a layer whose weights lie at these addresses.  moek_plan_bind stores addresses and
    nothing else, so a plan of a layer that is gone serves the next layer at its place."""
    lib = library(device, dtype)
    config, plan, weights, args = (_Struct(lib, name) for name in ("config", "plan", "weights", "args"))
    config.set("i", hidden=hidden, inter=inter, experts=experts, topk=topk, max_tokens=tokens, chunk_tokens=CHUNK,
               quant=_number(lib.moek_quant_name, FORMATS[dtype]), act=_number(lib.moek_act_name, formula.act.encode()),
               dtype=DTYPES[x_dtype], up_layout=formula.up_layout, router_weight_on_input=formula.on_input,
               block=formula.block, up_scales=formula.up_scales, weight_layout=WEIGHTS_TILED if formula.tiled else 0)
    config.set("f", alpha=formula.alpha, beta=formula.beta, limit=formula.limit)
    config.set("I", exclude=CPU_ROWS if device.type == "cuda" else 0xffffffff & ~CPU_ROWS)
    if lib.moek_plan_init_(plan.bytes, config.bytes, lib.moek_config_size(), lib.moek_plan_size(), lib.moek_version()):
        raise RuntimeError(plan.text("why"))
    weights.set("P", **addresses._asdict())
    if lib.moek_plan_bind(plan.bytes, weights.bytes):
        raise RuntimeError(plan.text("why"))
    return Plan(lib, plan.bytes, lib.moek_workspace_size(plan.bytes), bytes(args.bytes),
                {field: args.offset(field) for field in FIELDS})


def columns(w, transposed):
    """Of a matrix: [experts][columns][rows] if transposed, else [experts][rows] and what a row has."""
    if transposed:
        return w.shape[1]
    return math.prod(w.shape[2:]) * (1 if w.dtype.is_floating_point else 2 * w.element_size())


def plan_of(x_dtype, tokens, topk, weights, formula, transposed):
    w_up, w_down = weights.w_up, weights.w_down
    most = max(LEAST_TOKENS, 1 << (tokens - 1).bit_length())
    addresses = Weights(*(0 if w is None else w.data_ptr() for w in weights))
    with torch.cuda.device_of(w_up):
        return _plan(w_up.device, w_up.dtype, x_dtype, most, w_up.shape[0], columns(w_up, transposed),
                     columns(w_down, transposed), topk, formula, addresses)


def tile(plan, weights, back=False):
    """Weights of 4 bits and their scales, from the order of a checkpoint to that of Hopper's kernels, or back: an
    expert at a time, at its place.  What lies so already stays.  `plan`: of these weights, on their device."""
    with torch.cuda.device_of(weights.w_up):
        stream = torch.cuda.current_stream().cuda_stream if weights.w_up.is_cuda else None
        for function, name in REPACK.items():
            matrices = getattr(weights, name)
            if lies_tiled(matrices) != back:
                continue
            if not back and not alone(matrices):       # another tensor keeps its values
                matrices.data = matrices.data.clone()
            for expert in matrices.detach():
                copy = expert.clone()
                status = getattr(plan.lib, function)(plan.bytes, copy.data_ptr(), expert.data_ptr(), 1, back, stream)
                if status:
                    raise RuntimeError(f"{function}: {plan.lib.moek_status_name(status).decode()}")
            mark(matrices, not back)


def tileable(weights):
    return [getattr(weights, name) for name in REPACK.values()]


# What tile() has rearranged is marked: at the storage, which goes with the bytes, so that layers with the same weights
# see the mark: {address: a number of its own, or 0 once the bytes are back}.  The tensor has a note of that number and
# of the version of its values, which tells bytes that came from elsewhere.

_numbers = itertools.count(1)


def mark(w, tiled):
    marks = w.untyped_storage().__dict__.setdefault("_moek_tiled", {})
    marks[w.data_ptr()] = next(_numbers) if tiled else 0
    w.__dict__.pop("_moek_note", None)


def lies_tiled(w):
    """Are its bytes in the order of tile()?  None: it was written or got other bytes since, in an unknown order."""
    number = getattr(w.untyped_storage(), "_moek_tiled", {}).get(w.data_ptr())
    noted, version = getattr(w, "_moek_note", (0, None))
    if number is None:                                 # no bytes that tile() knows
        return None if noted else False
    if number and number != noted:                     # the first look after tile()
        w._moek_note = number, _version(w)
    elif number and version != _version(w):
        return None
    return number > 0


def alone(w):
    """Has no other tensor the same memory?  (Two use a storage here: the tensor, and the object of Python.)"""
    return torch._C._storage_Use_Count(w.untyped_storage()._cdata) <= 2


def _version(w):
    return None if w.is_inference() else w._version    # (tensors of inference_mode have none)


# ---- the operator ----------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=None)
def _state(device, size):                              # one for all layers of a GPU: they run one after the other
    return torch.zeros(size + 256, dtype=torch.uint8, device=device)


def _up256(tensor):
    return tensor.data_ptr() + -tensor.data_ptr() % 256


def _rows(tensor, dtype):
    tensor = tensor.to(dtype).contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _run(plan, device, tokens, **pointers):
    args = ctypes.create_string_buffer(plan.args)
    struct.pack_into("@i", args, plan.at["tokens"], tokens)
    for field, value in pointers.items():
        struct.pack_into("@N", args, plan.at[field], value)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    status = plan.lib.moek_run(plan.bytes, args, stream)
    if status:                                         # nothing was launched: once more, for the sentence
        why = ctypes.create_string_buffer(512)
        struct.pack_into("@N", args, plan.at["why"], ctypes.addressof(why))
        struct.pack_into("@N", args, plan.at["why_size"], len(why))
        plan.lib.moek_run(plan.bytes, args, stream)
        raise RuntimeError(f"{plan.lib.moek_status_name(status).decode()}: {why.value.decode()}")


def _experts(x, ids, weights, w_up, w_down, w_up_bias, w_down_bias, w_up_scale, w_down_scale, act, up_layout, alpha,
             beta, limit, on_input, block, up_scales, tiled, transposed):
    """y [tokens][hidden] of x, and of ids and weights [tokens][topk].  transposed: w_up [experts][hidden][rows] and
    w_down [experts][inter][hidden] are views of [experts][rows][hidden] and [experts][hidden][inter] in memory."""
    device, tokens = x.device, x.shape[0]
    x, ids, weights = _rows(x, x.dtype), _rows(ids, torch.int64), _rows(weights, torch.float32)
    y = torch.empty_like(x)
    if not tokens:
        return y
    of = Weights(w_up, w_down, w_up_bias, w_down_bias, w_up_scale, w_down_scale)
    if tiled and not all(map(lies_tiled, tileable(of))):                   # (in a graph that is older than the weights)
        raise RuntimeError("weights were replaced behind a compiled graph: moek_transformers.prepare(model) tiles them")
    plan = plan_of(x.dtype, tokens, ids.shape[1], of,
                   Formula(act, up_layout, alpha, beta, limit, on_input, block, up_scales, tiled), transposed)
    room = torch.empty(plan.workspace + 256, dtype=torch.uint8, device=device)
    state = {}
    if settings["one_launch"] and x.is_cuda:
        state["state"] = _up256(_state(device, plan.lib.moek_state_size()))
    with torch.cuda.device_of(x):
        _run(plan, device, tokens, x=x.data_ptr(), topk_ids64=ids.data_ptr(), topk_weights=weights.data_ptr(),
             y=y.data_ptr(), workspace=_up256(room), workspace_size=plan.workspace, **state)
    return y


_ops = torch.library.Library("moek", "DEF")
_ops.define("experts(Tensor x, Tensor ids, Tensor weights, Tensor w_up, Tensor w_down, Tensor? w_up_bias, "
            "Tensor? w_down_bias, Tensor? w_up_scale, Tensor? w_down_scale, str act, int up_layout, float alpha, "
            "float beta, float limit, bool on_input, int block, int up_scales, bool tiled, bool transposed) -> Tensor")
for _key in ("CPU", "CUDA"):
    _ops.impl("experts", _experts, _key)
torch.library.register_fake("moek::experts", lambda x, *_: x.new_empty(x.shape))
