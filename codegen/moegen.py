#!/usr/bin/env python3
"""moegen.py -- expands kernels.toml, models.toml, rules.toml and templates/ into generated/.

    moegen.py                       write generated/ (only what changed)
    moegen.py --check               write nothing; name each stale, missing or left-over file; exit 1 if there is one
    moegen.py list [WORD ...]       the kernels whose name holds every word
    moegen.py one NAME ...          print these kernels
    moegen.py row KEY=VALUE ...     print a row for kernels.toml, checked
    moegen.py bundle [FORMAT ...] [ARCH ...] [--rows FILE.toml] [-o FILE]
                                    one self-contained header with the kernels of these formats on these
                                    architectures (neither: of all), and of the steps that have no format
    --rows FILE.toml                (bundle, list, one) the rows of this file, in place of the rows of kernels.toml
    --prefix acme_moek              (bundle) rename moek_ to acme_moek_ and MOEK_ to ACME_MOEK_
    -C DIR                          work in this checkout
    --from DIR                      names of files, as of -o, begin at this folder

./moek gen calls this program with a Python that has Jinja2.
"""
import argparse, codecs, copy, itertools, os, re, sys, time

try:
    try:
        import tomllib
    except ImportError:                               # Python before 3.11
        import tomli as tomllib
    import jinja2
except ImportError as e:
    sys.exit(f"moegen.py: {sys.executable} has no {e.name}.  Type  ./moek gen  in place of  python3 "
             "codegen/moegen.py: it takes a Python that has all, or fetches what is missing into build/")
import columns, rules

AXES = ("quant", "quant_down", "hidden", "block")     # the contract: left of _on_
SCHEDULE = ("m", "n", "s", "w", "t", "u")             # right of it
KEYS = ("op", "template", "quant", "quant_down", "hidden", "block", "arch") + SCHEDULE
LETTER = {"quant_down": "down_", "hidden": "h", "block": "b"}
MOST = 1 << 24                                        # of any number in a row, as of config.hidden
GEMMS = ("up", "down", "layer", "up_down")
LISTS = ("op", "act", "arch")                         # of names and their numbers
FOLDERS = ("gemm", "fused", "layer")                  # of templates/: bodies in C++, and their instances
STEPS_FOLDER = "steps"                                # the same of steps beside GEMMs: files of a template's whole name
GPUS = 80                                             # archs from here on; below: of the host
BODY = "_body.h"                                      # the end of the name of a file that rows share
SCALES = {"f32": 32, "e8m0": 8, "T": 16, "e4m3": 8, "fp16": 16, "u6": 6, "u6b32": 6, "u4": 4, "s8": 8}
                                                      # types of scales, and their bits; append: the ABI, too
PLANES = 2                                            # the most planes of bits of a code, or of a scale, in a block
BLOCKS = 4                                            # the most numbers of columns a scale that a format leaves open
BUDGET = {"lines": "the most lines of a kernel's text", "seconds": "CPU time of a run"}
STEPS = ("route", "map", "sort", "quant", "up", "down", "combine")       # a plan has one of each at least
MODEL = {"hidden": int, "inter": int, "experts": int, "topk": int, "quant": "quant", "act": "act", "routing": "routing"}
MODEL_MAY = {"groups": int, "topk_groups": int, "scale": float, "router_weight_on_input": int, "shared_slots": int,
             "shared_weight": float, "router_eps": float, "group_score": "group_score", "alpha": float, "beta": float,
             "limit": float, "up_layout": "up_layout", "ue8m0": int, "block": int}


class Bad(Exception):
    """A sentence for the user."""


def read(path):
    try:
        with open(path, "rb") as f:
            return codecs.decode(f.read(), "utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise Bad(f"{path}: no such file")
    except OSError as e:
        raise Bad(f"{path}: {e.strerror}")
    except UnicodeDecodeError as e:
        raise Bad(f"{path}: byte {e.start} is no UTF-8: save it as text")


def load(path):
    text = read(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as e:         # no TOML; a number with thousands of digits; lists in lists ...
        raise Bad(f"{path}: {e}")


def is_number(value, least=0, most=MOST):
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_name(value):
    return isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9_]*", value) is not None


def shown(value):
    """As a sentence shows it: on one line, and not for ever."""
    text = str(value) if isinstance(value, str) and re.fullmatch(r"[\w./-]+", value) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def no_more(where, table, known):
    for key in table:
        if key not in known:
            raise Bad(f"{where}: unknown key {shown(key)}; known: {' '.join(known)}")


class Scale:
    """A scale's type (None: there is none) and how many rows and columns share one; 0: all of them.  blocks: the
    numbers of columns that a format leaves open."""

    def __init__(self, given, at, may_be_open=False):
        self.type, self.rows, self.columns, self.blocks = None, 0, 0, []
        if given is None:
            return
        if not isinstance(given, list) or len(given) != 3 or given[0] not in list(SCALES) or \
                not is_number(given[1], 0, 1 << 16) or not self.columns_of(given[2], may_be_open):
            raise Bad(f"{at} must be [type, rows, columns], the type one of {' '.join(SCALES)}, not {shown(given)}" +
                      (f"; columns may be a list of at most {BLOCKS}" if may_be_open else ""))
        self.type, self.rows = given[:2]

    def columns_of(self, given, may_be_open):
        if may_be_open and isinstance(given, list) and 1 < len(set(map(str, given))) == len(given) <= BLOCKS and \
                all(is_number(n, 0, 1 << 16) for n in given):
            self.blocks = given
            return True
        self.columns = given
        return is_number(given, 0, 1 << 16)

    def kind(self):
        """A word by which a template says what it can: none, tensor (one for all), row, block, open."""
        return "none" if not self.type else "open" if self.blocks else "block" if self.columns else \
            "row" if self.rows == 1 else "tensor" if not self.rows else f"rows{self.rows}"

    def facts(self):
        return self.type, self.rows, self.columns


def planes_of(given, bits, bytes_, at):
    """Planes of bits, as kernels.toml says at blocks: each with all of its seven numbers."""
    planes = [p if len(p) == 7 else p + [p[2] * min(p[1], 8) // 8, 0, 0, p[1]] for p in given
              if isinstance(p, list) and len(p) in (3, 7) and all(is_number(n, 0, 1 << 10) for n in p)] \
        if isinstance(given, list) else []
    if not planes or len(planes) != len(given) or len(planes) > PLANES or sum(p[1] for p in planes) != bits or \
            not all(p[0] < bytes_ and p[1] and p[2] and p[3] and p[2] % p[3] == 0 for p in planes):
        raise Bad(f"{at} must be a list of 1 to {PLANES} planes [byte, bits, unit] or [byte, bits, unit, run, step, "
                  f"shift, by], {bits} bits in all, not {shown(given)}")
    return planes


class Block:
    """A line of [blocks], checked: how codes and scales lie in rows of a file."""
    KEYS = ("type", "bytes", "columns", "instead", "w", "code", "scale", "super", "min", "super_min", "sign")

    def __init__(self, name, given, where, elements):
        at = f"{where}: blocks.{shown(name)}"
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or not isinstance(given, dict):
            raise Bad(f"{at}: blocks are a name and a table, as in  blocks.q8_0 = {{ type = 8, ... }}")
        no_more(at, given, self.KEYS)
        self.name, self.w = name, given.get("w")
        for key in ("type", "bytes", "columns"):
            setattr(self, key, given.get(key))
            if not is_number(given.get(key), 1, 1 << 10):
                raise Bad(f"{at}: {key} must be a whole number from 1 on, not {shown(given.get(key))}")
        self.instead = given.get("instead", 0)
        if not is_number(self.instead):
            raise Bad(f"{at}: instead must be the type of other blocks, not {shown(self.instead)}")
        if self.w not in elements or self.w == "T":
            raise Bad(f"{at}: w must be one of {' '.join(e for e in elements if e != 'T')}, not {shown(self.w)}")
        self.code = planes_of(given.get("code"), elements[self.w], self.bytes, f"{at}: code")
        if any(self.columns * plane[1] % 32 for plane in self.code):
            raise Bad(f"{at}: code: {self.columns} columns of each plane must be whole words of 4 bytes, for panels")
        self.scale, self.super = self.scale_of(given, "scale", "super", at)
        self.min, self.super_min = self.scale_of(given, "min", "super_min", at) if "min" in given else (None, None)
        self.sign = given.get("sign", 0)
        if self.sign not in ((-1, 1) if self.min else (0,)):
            raise Bad(f"{at}: sign is -1 or 1 where there is a min, else absent, not {shown(self.sign)}")

    def scale_of(self, given, key, above, at):
        """(type, columns, planes) of a scale or minimum; and the byte of the f16 on top, or None."""
        of = given.get(key)
        if not isinstance(of, list) or len(of) < 3 or of[0] not in list(SCALES) or of[0] in ("f32", "T") or \
                not is_number(of[1], 1) or self.columns % of[1]:
            raise Bad(f"{at}: {key} must be [type, columns, planes ..], the type one of {' '.join(SCALES)} but f32 and "
                      f"T, columns that divide those of the block, not {shown(of)}")
        top = given.get(above)
        if top is not None and not is_number(top, 0, self.bytes - 2):
            raise Bad(f"{at}: {above} must be the byte of an f16 in the block, not {shown(top)}")
        return (of[0], of[1], planes_of(of[2:], SCALES[of[0]], self.bytes, f"{at}: {key}")), top


def check_blocks(manifest, where, elements):
    blocks = manifest.get("blocks", {})
    if not isinstance(blocks, dict):
        raise Bad(f"{where}: blocks must be a table, as in  blocks.q8_0 = {{ type = 8, ... }}")
    blocks = {name: Block(name, given, where, elements) for name, given in blocks.items()}
    if len({b.type for b in blocks.values()}) != len(blocks):
        raise Bad(f"{where}: blocks: two of them have the same type")
    return blocks


class Format:
    """A line of [formats], checked: what templates ask."""
    KEYS = ("number", "w", "x", "w_scale", "x_scale", "global_scale", "zero", "granule", "static", "ue8m0", "expands",
            "tiled", "file", "about")

    def __init__(self, name, given, where, elements, blocks):
        at = f"{where}: formats.{shown(name)}"
        if not is_name(name) or re.search(r"_[hb]\d+$", name) or not isinstance(given, dict):
            raise Bad(f"{at}: a format is a name (without _h0 or _b0 at its end) and a table, as in  "
                      "formats.bf16 = { number = 1, ... }")
        no_more(at, given, self.KEYS)
        self.name, self.number = name, given.get("number")
        if not is_number(self.number, 1, 1 << 16):
            raise Bad(f"{at}: number must be a whole number from 1 on, not {shown(self.number)}")
        for key in ("w", "x"):
            known = [e for e in elements if key == "x" or e != "T"]
            if given.get(key) not in known:
                raise Bad(f"{at}: {key} must be one of {' '.join(known)}, which templates/element/ holds, "
                          f"not {shown(given.get(key))}")
        self.w, self.x = given["w"], given["x"]
        self.w_bits, self.x_bits = elements[self.w], elements[self.x]
        self.w_scale, self.x_scale = Scale(given.get("w_scale"), at, True), Scale(given.get("x_scale"), at)
        for key in ("global_scale", "static", "ue8m0"):
            if not isinstance(given.get(key, False), bool):
                raise Bad(f"{at}: {key} must be true or false, not {shown(given[key])}")
        flags = ("global_scale", "static", "ue8m0")
        self.global_scale, self.static, self.ue8m0 = (given.get(key, False) for key in flags)
        if given.get("zero", "none") not in ("none", "optional"):
            raise Bad(f"{at}: zero must be none or optional, not {shown(given['zero'])}")
        self.zero = given.get("zero", "none") == "optional"
        self.block = blocks.get(given.get("file")) if isinstance(given.get("file"), str) else None
        if "file" in given and (not self.block or self.block.w != self.w):
            known = [b.name for b in blocks.values() if b.w == self.w]
            raise Bad(f"{at}: file must be one of blocks, with the same w ({' '.join(known) or 'there is none'}), "
                      f"not {shown(given['file'])}")
        self.arrays = not self.block or bool(self.w_scale.type)             # of codes and of scales
        self.only_blocks = not self.arrays
        if self.w_bits not in (4, 8, 16) and not self.only_blocks:
            raise Bad(f"{at}: {self.w} of {self.w_bits} bits lies in blocks alone: file, and no w_scale")
        least = self.block.columns if self.only_blocks else max(8 // self.w_bits, 8 // self.x_bits, 1)
        self.granule = given.get("granule", least)
        if not is_number(self.granule, 1, 1 << 16) or self.granule * self.w_bits % 8 or self.granule * self.x_bits % 8:
            raise Bad(f"{at}: granule must be a whole number of elements that fill bytes, not {shown(self.granule)}")
        if (self.x_bits < 16) != bool(self.x_scale.type):
            raise Bad(f"{at}: x has an x_scale if it has fewer than 16 bits, and only then")
        if self.static and not self.x_scale.type:
            raise Bad(f"{at}: static goes with an x_scale, and there is none")
        if (self.global_scale or self.zero) and not self.w_scale.type:
            raise Bad(f"{at}: global_scale and zero go with a w_scale, and there is none")
        self.tiled = given.get("tiled", "lines")
        if self.tiled not in ("lines", "fragments"):
            raise Bad(f"{at}: tiled must be lines or fragments, not {shown(self.tiled)}")
        self.expands = given.get("expands")
        self.about = given.get("about")
        if not isinstance(self.about, list) or len(self.about) != 2 or \
                not all(isinstance(a, str) and re.fullmatch(r"[ -~]+", a) and '"' not in a for a in self.about):
            raise Bad(f"{at}: about must be two short texts, of the weights and of the activations")

    @property
    def x_global_scale(self):
        """x has a static scale of the whole tensor on top of its x_scale."""
        return self.static and self.x_scale.kind() != "tensor"

    @property
    def scaling(self):
        """A word for scales of f32 of both sides, by which templates of pairs say what they can: none tensor row
        block128; or the scales as they are, with what is on top."""
        sides = self.w_scale.facts(), self.x_scale.facts()
        known = {((None, 0, 0), (None, 0, 0)): "none", (("f32", 0, 0), ("f32", 0, 0)): "tensor",
                 (("f32", 1, 0), ("f32", 1, 0)): "row", (("f32", 128, 128), ("f32", 1, 128)): "block128"}
        more = "_global_scale" * self.global_scale + "_zero" * self.zero + "_x_global_scale" * self.x_global_scale
        return known.get(sides, "_".join(str(part) for part in sides[0] + sides[1])) + more

    def of(self, block):
        """With the columns that a row's `block` says, where the format leaves them open."""
        if not self.w_scale.blocks:
            return self
        fixed = copy.copy(self)
        fixed.w_scale = copy.copy(self.w_scale)
        fixed.w_scale.columns, fixed.w_scale.blocks = block, []
        return fixed

    def in_blocks(self):
        """As its blocks of a file have the weights: with all scales in them, but for a global one."""
        if self.only_blocks:
            return self
        fixed = copy.copy(self)
        fixed.w_scale, fixed.zero, fixed.only_blocks = Scale(None, ""), False, True
        fixed.granule, fixed.expands = self.block.columns, None
        return fixed


def elements_of(env, names):
    """name -> the module of templates/element/<name>.j2, by their numbers; each says its number and its bits."""
    found = {}
    for file in names:
        name = file[:-len(".j2")]
        try:
            found[name] = env.get_template("element/" + file).module
        except Exception as e:                        # of jinja2, or whatever an expression of the template raises
            raise Bad(f"templates/element/{file}: {type(e).__name__}: {e}")
    by_number = sorted(found.items(), key=lambda item: getattr(item[1], "number", 0))
    if [getattr(m, "number", 0) for _, m in by_number] != list(range(1, len(found) + 1)):
        raise Bad("templates/element: numbers must be 1, 2, ...: the ABI; append")
    for name, module in by_number:
        if getattr(module, "bits", None) not in (2, 3, 4, 5, 6, 8, 16):
            raise Bad(f"templates/element/{name}.j2: bits must be 2 to 6, 8 or 16")
    return dict(by_number)


def check_formats(manifest, where, elements, blocks):
    formats = manifest.get("formats")
    if not isinstance(formats, dict) or not formats:
        raise Bad(f"{where}: formats is missing, as in  formats.bf16 = {{ number = 1, w = \"bf16\", ... }}")
    formats = {name: Format(name, given, where, elements, blocks) for name, given in formats.items()}
    if len({f.number for f in formats.values()}) != len(formats):
        raise Bad(f"{where}: formats: two formats have the same number")
    for f in formats.values():
        to = formats.get(f.expands) if isinstance(f.expands, str) else None
        scales = {("e8m0", 1, 32): ("f32", 128, 128), ("e4m3", 1, 16): ("f32", 1, 0)}.get(f.w_scale.facts())
        if f.expands is not None and (not to or (f.w, to.w, to.x) != ("e2m1", "e4m3", f.x) or
                                      to.x_scale.facts() != f.x_scale.facts() or to.w_scale.facts() != scales):
            raise Bad(f"{where}: formats.{f.name}: expands must be a format with w e4m3, the same x and x_scale, and "
                      f"the scales that expand_fragments makes of those of e2m1, not {shown(f.expands)}")
    return formats


def check_manifest(manifest, where, elements):
    """kernels.toml, but for its rows.  Adds quant: the names and numbers of the formats."""
    no_more(where, manifest, LISTS + ("devices", "formats", "blocks", "hidden", "budget", "kernels"))
    manifest["blocks"] = check_blocks(manifest, where, elements)
    manifest["formats"] = check_formats(manifest, where, elements, manifest["blocks"])
    manifest["quant"] = {name: f.number for name, f in manifest["formats"].items()}
    for key in LISTS:
        names = manifest.get(key)
        if not isinstance(names, dict) or not names:
            raise Bad(f"{where}: {key} must be a table of names and numbers, as in  {key} = {{ one = 1 }}")
        for name, number in names.items():
            if not is_name(name) or not is_number(number):
                raise Bad(f"{where}: {key}: {shown(name)} = {shown(number)}: a name is of small letters, digits and _, "
                          "its number whole")
        if len(set(names.values())) != len(names):
            raise Bad(f"{where}: {key}: two names have the same number")
    devices = manifest.setdefault("devices", {})
    if not isinstance(devices, dict) or not all(
            arch in manifest["arch"] and isinstance(of, list) and of and
            all(is_number(d, manifest["arch"][arch]) for d in of) for arch, of in devices.items()):
        raise Bad(f"{where}: devices must be a table of architectures and lists of compute capabilities times 10, none "
                  "below the architecture's number, as in  devices = { sm89 = [89, 120] }")
    sizes, budget = manifest.get("hidden"), manifest.get("budget")
    if not isinstance(sizes, list) or not sizes or not all(is_number(h, 1) for h in sizes) or \
            sizes != sorted(set(sizes)):
        raise Bad(f"{where}: hidden must be a list of whole numbers, the smallest first")
    if not isinstance(budget, dict) or not all(is_number(budget.get(k), 1) for k in BUDGET):
        raise Bad(f"{where}: budget must be a table of whole numbers: {', '.join(BUDGET)}")
    no_more(f"{where}: budget", budget, BUDGET)


def enum_names(header, macro):
    """The names of an X-macro of moek/enums.h."""
    found = re.search(r"#define " + macro + r"\(X\)((?:.*\\\n)*.*\n)", header)
    return re.findall(r"\bX\((\w+),", found.group(1)) if found else []


def check_models(models, where, manifest, header):
    """name -> model, with all that templates ask for."""
    no_more(where, models, ("models", "names"))
    models = models.get("models")
    if not isinstance(models, dict):
        raise Bad(f"{where}: models must be a table, as in  [models]")
    words = {"quant": list(manifest["quant"]), "act": list(manifest["act"]), "group_score": ["MAX", "TOP2"],
             "up_layout": ["GATE_UP", "INTERLEAVED", "SWAPPED"], "routing": enum_names(header, "MOEK_EACH_ROUTING")}
    taken = {n.upper() for n in words["quant"] + words["act"]}
    for name, model in models.items():
        at = f"{where}: {shown(name)}"
        if not is_name(name) or name.upper() in taken:
            raise Bad(f"{at}: a model's name is of small letters, digits and _, and none of a format or activation")
        if not isinstance(model, dict):
            raise Bad(f"{at}: it must be a table, as in  {{ hidden = 4096, inter = 1536, ... }}")
        no_more(at, model, list(MODEL) + list(MODEL_MAY))
        for key in MODEL:
            if key not in model:
                raise Bad(f"{at}: {key} is missing")
        for key, value in model.items():
            kind = {**MODEL, **MODEL_MAY}[key]
            if kind is int and not is_number(value, 1 if key in MODEL else 0):
                raise Bad(f"{at}: {key} must be a whole number, not {shown(value)}")
            if kind is float and not (is_number(value, -MOST) or isinstance(value, float) and abs(value) <= MOST):
                raise Bad(f"{at}: {key} must be a number, not {shown(value)}")
            if isinstance(kind, str) and (not isinstance(value, str) or value not in words[kind]):
                raise Bad(f"{at}: {key} {shown(value)} is not one of {' '.join(words[kind])}")
    return models


NAMES = ("models", "methods", "router", "gate", "up", "gate_up", "down", "order", "turned", "cut")


def check_names(names, where):
    """The names of experts' tensors: layers and rows, each with all of NAMES (None: absent)."""
    if not isinstance(names, dict):
        raise Bad(f"{where}: names must be a table, as in  names.layers = [...], names.experts = [...]")
    no_more(f"{where}: names", names, ("layers", "experts"))
    layers, rows = names.get("layers"), names.get("experts")
    if not isinstance(layers, list) or not layers or not all(is_module(l, "L") and l.endswith(".") for l in layers):
        raise Bad(f"{where}: names.layers must be a list as  [\"model.layers.L.\"], with one L each")
    if not isinstance(rows, list) or not rows:
        raise Bad(f"{where}: names.experts must be a list of rows, as in  {{ models = [...], down = ... }}")
    return {"layers": layers, "experts": [check_naming(row, where) for row in rows]}


def is_module(text, number):
    """Names with dots between, and at most one that is `number`."""
    return isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\.?", text) is not None and \
        text.split(".").count(number) <= 1 and (number == "N" or number in text.split("."))


def check_naming(row, where):
    at = f"{where}: names.experts: {shown(row)}"
    if not isinstance(row, dict):
        raise Bad(f"{at}: a row is a table, as in  {{ models = [...], down = ... }}")
    no_more(at, row, NAMES)
    for key in ("models", "methods"):
        if not isinstance(row.get(key, []), list) or not all(is_name(str(m).replace("-", "_")) and isinstance(m, str)
                                                             for m in row.get(key, [])):
            raise Bad(f"{at}: {key} must be a list of names, not {shown(row[key])}")
    for key in ("router", "gate", "up", "gate_up", "down"):
        if key in row and not is_module(row[key], "N"):
            raise Bad(f"{at}: {key} must be a module, as \"mlp.experts.N.up_proj\", not {shown(row[key])}")
    if not row.get("models") or "router" not in row or "down" not in row or ("up" in row) == ("gate_up" in row) or \
            "gate" in row and "up" not in row:
        raise Bad(f"{at}: a row has models, router and down, and up, gate and up, or gate_up")
    if len({"N" in row[key].split(".") for key in ("gate", "up", "gate_up", "down") if key in row}) > 1:
        raise Bad(f"{at}: N is in all of its matrices or in none")
    if row.get("order") not in (None, "INTERLEAVED") or \
            not all(is_number(row.get(k, 1), 1, 1) for k in ("turned", "cut")):
        raise Bad(f"{at}: order must be \"INTERLEAVED\" or absent, turned and cut 1 or absent")
    return {key: row.get(key) for key in NAMES}


def fields_of(header, struct):
    """The fields of a public struct, in order, from the list in moek/plan/fields.h."""
    found = re.search(r"#define MOEK_EACH_" + struct + r"_FIELD_\(X\)((?:.*\\\n)*.*\n)", header)
    if not found:
        raise Bad(f"include/moek/plan/fields.h: there is no MOEK_EACH_{struct}_FIELD_")
    return re.findall(r"\bX\((\w+)\)", found.group(1))


def text_of(row):
    return " ".join(f"{k}={shown(row[k])}" for k in KEYS if k in row)


def toml_of(row):
    return "{ " + ", ".join(f'{k} = "{row[k]}"' if isinstance(row[k], str) else f"{k} = {row[k]}"
                            for k in KEYS if k in row) + " },"


def initializer(model, fields):
    """The lines of a moek_config in braces, positional: the same in C99 and in C++11."""
    def value(key):
        if key == "parallel":                          # a struct
            return "{ 0, 0, 0 }"
        v = model.get(key, 0)
        if isinstance(v, str):
            return "MOEK_" + {"routing": "ROUTE_", "group_score": "GROUP_SCORE_", "up_layout": "UP_"}.get(key, "") \
                   + v.upper()
        return repr(float(v)) + "f" if v and MODEL_MAY.get(key) is float else str(v)
    lines = [""]
    for word in [value(f) + "," for f in fields[:-1]] + [value(fields[-1])]:
        if len(lines[-1]) + len(word) > 100:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def row_text(row):
    """The row as a C string."""
    return '"' + toml_of(row).replace('"', '\\"') + '"'


def name_of(row):
    contract = [row["op"]] + [LETTER.get(k, "") + str(row[k]) for k in AXES if k in row]
    schedule = "".join(f"{k}{row[k]}" for k in SCHEDULE if k in row)
    return "moek_" + "_".join(contract) + "_on_" + row["arch"] + ("_" + schedule if schedule else "")


def file_of(row):
    """The file of the kernels of a row's op and family on its machine."""
    family = row["template"].partition("_")[2] or row["template"]
    return "_".join(dict.fromkeys((row["op"], family, row["arch"]))) + ".h"


def struct_of(fmt, block=None):
    """The struct of a format's facts (moek_formats.h)."""
    own = "in_blocks_" if fmt.arrays and fmt.only_blocks else f"b{block}_" if block is not None else ""
    return f"moek_format_{fmt.name}_{own}"


def moved(text, path):
    """The text of a file of templates/ with its includes as a file of generated/ writes them."""
    folder = os.path.dirname(os.path.join("templates", path))

    def include(m):
        return f'#include "{os.path.relpath(os.path.join(folder, m.group(1)), "generated")}"'.replace(os.sep, "/")
    return re.sub(r'#include "([^"]+)"', include, text)


def mentioned(word, text):
    """Is the macro MOEK_X_ or MOEK_X_(x) in a text?"""
    return re.search(word.partition("(")[0] + r"\b", text) is not None      # (\b in front would cost a second)


def row_of(name, manifest):
    """The row of a name; the template is not part of it."""
    try:
        left, right = re.sub("^moek_", "", name).split("_on_")
        op = max((o for o in manifest["op"] if (left + "_").startswith(o + "_")), key=len, default=left.split("_")[0])
        words = left[len(op) + 1:].split("_") if left != op else []          # (up_down is no up of the format "down")
        row = {"op": op}
        for key in ("block", "hidden"):
            if words and re.fullmatch(LETTER[key] + r"\d+", words[-1]):
                row[key] = int(words.pop()[1:])
        if words:
            row["quant"], down, second = "_".join(words).partition("_down_")
            row.update({"quant_down": second} if down else {})
        arch, *schedule = right.split("_")
        row["arch"] = arch
        row.update((k, int(v)) for k, v in re.findall(r"([a-z])(\d+)", "".join(schedule)))
    except ValueError:
        raise Bad(f"{name}: not a kernel name")
    for key in ("op", "quant", "quant_down", "arch"):
        if key in row and row[key] not in manifest[key.partition("_")[0]]:
            raise Bad(f"{name}: {key} {row[key]} is not in kernels.toml")
    return row


def expand(manifest, where):
    """Each row for each value of its lists, checked."""
    rows, seen = [], {}
    kernels = manifest.get("kernels", [])
    if not isinstance(kernels, list):
        raise Bad(f"{where}: kernels must be a list of rows, as in  kernels = [ {{ op = \"up\", ... }}, ]")
    for entry in kernels:
        if not isinstance(entry, dict):
            raise Bad(f"{where}: {shown(entry)} is no row; a row is a table, as in  {{ op = \"up\", ... }}")

        def no(why):
            raise Bad(f"{where}: {text_of(entry)}: {why}")
        for key in entry:
            if key not in KEYS:
                no(f"unknown key {shown(key)}; known: {' '.join(KEYS)}")
            if entry[key] == []:
                no(f"{key} is an empty list, which makes no kernel at all")
        for key in ("op", "template", "arch"):
            if key not in entry:
                no(f"{key} is missing")
        values = [v if isinstance(v, list) else [v] for v in entry.values()]
        for combination in itertools.product(*values):
            row = dict(zip(entry, combination))
            for key, value in row.items():
                known = manifest[key.partition("_")[0]] if key in LISTS + ("quant", "quant_down") else None
                if known and (not isinstance(value, str) or value not in known):
                    no(f"{key} {repr(value)[:60]} is not one of {' '.join(known)}")
                if key == "template" and not (isinstance(value, str) and re.fullmatch(r"\w+", value)):
                    no(f"template must be the name of a file in templates/, without .h.j2, not {shown(value)}")
                if key in ("hidden", "block") + SCHEDULE and not is_number(value):
                    no(f"{key} must be a whole number, not {repr(value)[:60]}" +
                       (f"; at most {MOST}" if isinstance(value, int) and value > MOST else ""))
            name = name_of(row)
            if name in seen:
                no(f"{name} is there twice" if seen[name] is entry else f"{name} is also made by {text_of(seen[name])}")
            seen[name] = entry
            rows.append({**row, "name": name})
    return rows


class Generator:
    def __init__(self, root, rows_file=None):
        self.root, self.where = root, rows_file or "kernels.toml"
        self.env = jinja2.Environment(loader=jinja2.FileSystemLoader(os.path.join(root, "templates")),
                                      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                                      keep_trailing_newline=True)
        self.manifest = load(os.path.join(root, "kernels.toml"))
        self.elements = elements_of(self.env, self.names("element"))
        bits = {name: module.bits for name, module in self.elements.items()}
        check_manifest(self.manifest, "kernels.toml", bits)
        header, fields = (read(os.path.join(root, "include", *name))
                          for name in (("moek", "enums.h"), ("moek", "plan", "fields.h")))
        models = load(os.path.join(root, "models.toml"))
        self.models = check_models(models, "models.toml", self.manifest, header)
        names = check_names(models.get("names"), "models.toml")
        try:
            self.rules = rules.check_rules(load(os.path.join(root, "rules.toml")), "rules.toml")
        except rules.Bad as e:
            raise Bad(str(e))
        if rows_file:
            rows = load(rows_file)
            no_more(rows_file, rows, ("kernels",))
            self.manifest["kernels"] = rows.get("kernels", [])
        self.rows, self.longest = expand(self.manifest, self.where), (0, "")
        self.env.globals.update(manifest=self.manifest, models=self.models, rows=self.rows, rules=self.rules,
                                naming=names, text_of=text_of, about=self.about,
                                gated=lambda act: not act.endswith("_no_mul"), row_text=row_text,
                                granules=self.granules, mentioned=mentioned, elements=bits, scale_types=SCALES,
                                max_blocks=BLOCKS, element=lambda name: self.elements[name], having=self.having,
                                in_blocks=lambda: " ".join({b.w: 1 for b in self.manifest["blocks"].values()}),
                                struct_of=struct_of, wanted=self.wanted, wanted_too=self.wanted_too,
                                any_wanted=self.any_wanted,
                                gpu_elements=self.gpu_elements(), kernel_columns=columns,
                                hosts=[n for n, number in self.manifest["arch"].items() if number < GPUS])
        self.env.globals["initializer"] = lambda model: initializer(model, fields_of(fields, "CONFIG"))
        self.env.globals["shipped"] = list(dict.fromkeys(           # whatever a bundle leaves out
            (r["op"], r.get("quant"), r.get("hidden", 0), r.get("block", 0), r["arch"]) for r in self.rows))

    def names(self, folder=""):
        """The templates in a folder."""
        try:
            return sorted(n for n in os.listdir(os.path.join(self.root, "templates", folder)) if n.endswith(".j2"))
        except OSError as e:
            raise Bad(f"templates/{folder}: {e.strerror}")

    def gpu_elements(self):
        """The elements that have a file for GPUs, too."""
        return [n for n in self.elements if os.path.exists(os.path.join(self.root, "templates", "element", n + ".cuh"))]

    def wanted(self, row):
        """What MOEK_WANT_ asks of a row."""
        quant = "MOEK_" + row["quant"].upper() if row.get("quant") else 0
        return f"{quant}, {row.get('hidden', 0)}, {row.get('block', 0)}, {self.manifest['arch'][row['arch']]}"

    def wanted_too(self, row):
        """For #if, behind that: is the format of down, where it is another?"""
        return f" && MOEK_WANT_QUANT(MOEK_{row['quant_down'].upper()})" if row.get("quant_down") else ""

    def any_wanted(self, rows):
        """For #if: is one of these rows wanted?"""
        def one(row):
            first, too = f"MOEK_WANT_({self.wanted(row)})", self.wanted_too(row)
            return f"({first}{too})" if too else first
        return " || ".join(dict.fromkeys(map(one, rows)))

    def having(self, *macros):
        """The elements whose files define all of these macros."""
        return " ".join(n for n, module in self.elements.items() if all(hasattr(module, m) for m in macros))

    def source(self, template):
        """The file in templates/ of the rows of a template: in the folder of its first word, or in steps, of
        instances of a body."""
        word, _, family = template.partition("_")
        for inner in (f"{word}/{family}.j2", f"{STEPS_FOLDER}/{template}.j2"):
            if os.path.exists(os.path.join(self.root, "templates", inner)):
                return inner
        return template + ".h.j2"

    def templates(self):
        """What a row may have as its template, and other files of that form."""
        inner = [f"{word}_{n[:-3]}" for word in FOLDERS for n in self.names(word)
                 if not n.startswith("_")]
        inner += [n[:-3] for n in self.names(STEPS_FOLDER) if not n.startswith("_")]
        return inner + [n[:-len(".h.j2")] for n in self.names() if n.endswith(".h.j2")]

    def template(self, name):
        try:
            return self.env.get_template(name)
        except jinja2.TemplateNotFound as e:
            raise Bad(f"{self.where}: there is no templates/{e.name}")
        except (jinja2.TemplateError, UnicodeDecodeError, OSError) as e:
            raise Bad(f"templates/{name}: {e}")

    def granules(self, op, quant, arch):
        """What hidden and inter must be multiples of, for rows that files() has made."""
        return sorted({r["granule"] for r in self.rows
                       if (r["op"], r.get("quant"), r["arch"]) == (op, quant, arch) and not r.get("hidden")})

    def format_of(self, row):
        """A row's format, if it has one, with the columns that the row's `block` says."""
        fmt = self.manifest["formats"].get(row.get("quant"))
        return fmt and fmt.of(row.get("block"))

    def body(self, row):
        """A row's kernel, without its name or as an instance of a body.  The template sets granule, threads, shared
        and columns: they go into the table; and body, the file of templates/ of which the row is an instance."""
        def require(ok, sentence):
            if not ok:
                raise Bad(f"{self.where}: {text_of(row)}: {sentence}")
            return ""

        def serves(op, arch, keys, elements="", scales="", w_scales="", x_scales="", more=""):
            """The first line of each template of a kernel: the ops and machines, and what a row must say; block only
            where the format leaves it open.  Of a template that decodes or encodes: the elements, and the scales: pairs
            of both sides by a word, or kinds of each side (more: global_scale, zero, x_global_scale)."""
            template, open_blocks = row["template"], fmt.w_scale.blocks if fmt else []
            down = self.manifest["formats"].get(row.get("quant_down"))
            asked.append(op)
            require(row["op"] in op.split(), f"template {template} serves op {' or '.join(op.split())}, "
                                             f"not {row['op']}")
            require(row["arch"] in arch.split(), f"template {template} serves arch {' or '.join(arch.split())}, "
                                                 f"not {row['arch']}")
            needed = [key for key in keys.split() if key != "block" or open_blocks]
            for key in AXES + SCHEDULE:
                require(key in row or key not in needed, f"{key} is missing; template {template} needs {keys}")
                require(key not in row or key in needed, f"template {template} has no {key}; leave it away"
                        if key not in keys.split() else f"format {fmt and fmt.name} says the {key}; leave it away")
            require("block" not in row or row["block"] in open_blocks,
                    f"block must be one of {open_blocks}, the columns of a scale of {fmt and fmt.name}")
            if fmt:
                fits(fmt.of(row.get("block")), elements.split(), scales.split(), (w_scales.split(), x_scales.split()),
                     more.split())
            if down:
                fits(down, elements.split(), scales.split(), (w_scales.split(), x_scales.split()), more.split())
            return ""

        def fits(fmt, elements, pairs, sides, more):
            template = row["template"]
            require(fmt.w in elements and fmt.x in elements,
                    f"template {template} knows elements {' '.join(elements) or '(none)'}; {fmt.name} has {fmt.w}, "
                    f"{fmt.x}")
            if not sides[0]:
                require(fmt.scaling in pairs,
                        f"template {template} knows scales {' '.join(pairs) or '(none)'}; {fmt.name} has {fmt.scaling}")
                return
            for side, kinds, scale in (("w", sides[0], fmt.w_scale), ("x", sides[1], fmt.x_scale)):
                require(scale.kind() in kinds,
                        f"template {template} knows scales {' '.join(kinds)} of {side}; {fmt.name} has {scale.kind()}")
            for what in ("global_scale", "zero", "x_global_scale"):
                require(what in more or not getattr(fmt, what),
                        f"template {template} knows no {what}; {fmt.name} has it")
        fmt = self.manifest["formats"].get(row.get("quant"))
        asked, axes, source = [], {k: row.get(k) for k in KEYS}, self.source(row["template"])
        template = self.template(source)
        try:
            module = template.make_module({**axes, "row": row, "require": require, "serves": serves,
                                           "fmt": self.format_of(row),
                                           "down": self.manifest["formats"].get(row.get("quant_down"))})
        except Bad:
            raise
        except Exception as e:                        # of jinja2, or whatever an expression of the template raises
            raise Bad(f"templates/{source}: {text_of(row)}: {type(e).__name__}: {e}")
        require(asked, f"templates/{source} is no template of a kernel: it does not say what it serves")
        for key in ("granule", "threads", "shared"):
            row[key] = getattr(module, key, {"granule": 1}.get(key, 0))
        try:
            row["columns"] = columns.checked(row["op"], getattr(module, "columns", None), fmt and fmt.tiled,
                                             self.manifest["arch"][row["arch"]] < GPUS)
        except columns.Bad as e:
            raise Bad(f"templates/{source}: {text_of(row)}: {e}")
        row["header"], row["body"] = getattr(module, "header", None), getattr(module, "body", None)
        row["file"], row["together"] = file_of(row), getattr(module, "together", False)      # together: one object
        return str(module)

    def instances(self, rows, texts, one=False):
        """The text of a file of kernels; one: of one of them, in one piece."""
        row = rows[0]
        file = row["name"] + ".h" if one else row["file"]
        guard = "MOEK_" + re.sub("^MOEK_", "", file[:-2].upper()) + "_H"
        room = row["header"] or {"cpu": "kernel/cpu", "sm90": "kernel/sm90_schedule"}.get(row["arch"], "kernel/cuda")
        whole = None
        if row["body"] and one:
            whole = moved(read(os.path.join(self.root, "templates", row["body"])), row["body"])
        return self.rendered("_instances.j2", file=file, guard=guard, source=self.source(row["template"]), whole=whole,
                             room=f"../templates/{row['body']}" if row["body"] else f"../include/moek/{room}.h",
                             one=one, shared=rows, texts=texts)

    def kernel(self, row):
        """The text of a row's kernel in a file of its own, in one piece."""
        return self.instances([row], [self.section(row, self.body(row))], one=True)

    def section(self, row, body, file=None):
        """A row's part of its file; file: where its body is, if not in place."""
        if row["body"]:
            return body
        return self.rendered("_kernel.j2", name=row["name"], row=row, body=body, file=file, fmt=self.format_of(row))

    def rendered(self, which, **given):
        """The text of a template that is not a kernel's body."""
        template = self.template(which)
        try:
            return template.render(given)
        except Exception as e:                        # as above
            raise Bad(f"templates/{which}: {type(e).__name__}: {e}")

    def kernels(self):
        """name -> text, for the files of all rows, one an op, family and machine.  A text that several rows have is a
        file of its own."""
        out, families = {}, {}
        for row in self.rows:
            body = self.body(row)
            families.setdefault(row["file"], []).append((row, body))
        for file, of in families.items():
            alike, sections = {}, []
            for row, body in of:
                alike.setdefault(None if row["body"] else body, []).append(row)
            shared = [body for body, rows in alike.items() if body and len(rows) > 1]
            names = {body: f"{file[:-2]}_{n}{BODY}" for n, body in enumerate(shared, 1)}
            for body, name in names.items():
                out[name] = self.rendered("_body.j2", file=name, source=self.source(of[0][0]["template"]),
                                          shared=alike[body], body=body)
            sections = [self.section(row, body, names.get(body)) for row, body in of]
            out[file] = self.instances([row for row, _ in of], sections)
            self.longest = max([self.longest] + [(text.count("\n"), row["name"])
                                                 for text, (row, _) in zip(sections, of)] +
                               [(out[name].count("\n"), name) for name in names.values()])
        return out

    def files(self):
        """name -> text, for all of generated/."""
        out = self.kernels()
        for name in sorted(os.listdir(os.path.join(self.root, "templates"))):
            if name.startswith("moek_") and name.endswith(".j2") or name == "kernels.ninja.j2":
                out[name[:-3]] = self.rendered(name)
        return out

    def about(self, quant, arch):
        """What pages say of the kernels of a format on an architecture; None: there are none."""
        of = [r for r in self.rows if (r.get("quant"), r["arch"]) == (quant, arch)]
        if not any(r["op"] == "up" for r in of):
            return None
        granules = self.granules("up", quant, arch)
        sizes = ["any" if g == 1 else str(g) for g in granules[:1]]
        sizes += [f"hidden {h}" for h in sorted({r["hidden"] for r in of if r["op"] == "up" and r["hidden"]})]
        reads = set(sum((r["columns"]["reads"] for r in of), []))
        return {"sizes": " or ".join(sizes), "tiled": not reads & {"checkpoint", "blocks"},
                **{op: ", ".join(f"{m} tokens" if few else str(m) for m, few in sorted(
                    {(r["m"], r["columns"]["max_tokens"]) for r in of if r["op"] == op})) for op in GEMMS}}

    def pages(self):
        """path -> text: README.md and docs/formats.md with their tables, and docs/kernels.md, where they belong."""
        docs, out = os.path.join(self.root, "docs"), {}
        for path, word, table in (("README.md", "kernels", "readme_table.j2"),
                                  ("docs/formats.md", "scales", "formats_table.j2")):
            path = os.path.join(self.root, path)
            if os.path.exists(path):
                out[path] = self.with_part(read(path), word, table)
        if os.path.isdir(docs):
            out[os.path.join(docs, "kernels.md")] = self.rendered("kernels_page.j2")
        return out

    def with_part(self, text, word, table):
        """A page with the text of a template between its markers of this word."""
        head, sep, rest = text.partition(f"<!-- {word}: made by codegen/moegen.py -->\n")
        old, end, tail = rest.partition(f"<!-- end of {word} -->\n")
        return head + sep + self.rendered(table) + end + tail if sep and end else text


def renamed(text, prefix):
    if prefix == "moek":
        return text
    return re.sub(r"\bMOEK(?=_|\b)", prefix.upper(), re.sub(r"\bmoek(?=_)", prefix, text))


def wanted(rows, words):
    found = [r for r in rows if all(w in r["name"] for w in words)]
    if not found:
        raise Bad(f"list: no kernel's name holds {' and '.join(words)};  ./moek gen list  has all names")
    return found


def lends(arch, op):
    """The architectures whose rows of an op a plan on one takes (moek_arch_below_ in moek/plan/arch.h): on sm90, which
    has GEMMs of its own, other steps of sm80; on sm89 all of sm80, too, and on sm120 of both; with a set of
    instructions of CPUs, which has few GEMMs, plain C."""
    if arch == "sm90":
        return ("sm90",) if op in GEMMS else ("sm90", "sm80")
    return {"sm89": ("sm89", "sm80"), "sm120": ("sm120", "sm89", "sm80"),
            "avx2": ("avx2", "cpu"), "avx512": ("avx512", "avx2", "cpu"),
            "amx": ("amx", "avx512", "avx2", "cpu"), "neon": ("neon", "cpu"),
            "i8mm": ("i8mm", "neon", "cpu")}.get(arch, (arch,))


def chosen(generator, words):
    """The rows of a bundle: of any of the formats and on any of the architectures that words name."""
    formats, arches = generator.manifest["formats"], generator.manifest["arch"]
    for w in words:
        if w not in formats and w not in arches:
            raise Bad(f"bundle: {w} is neither a format ({' '.join(formats)}) nor an architecture "
                      f"({' '.join(arches)}); for single kernels write their rows to a file: bundle --rows FILE.toml")
    quants = [w for w in words if w in formats] or list(formats)
    own = [w for w in words if w in arches] or list(arches)
    if "cpu" in own:                                  # all sets: a plan takes the best that there is (MOEK_ARCH=0)
        own += [a for a, number in arches.items() if number < GPUS]
    return [r for r in generator.rows if r.get("quant", quants[0]) in quants and
            r.get("quant_down", quants[0]) in quants and
            any(r["arch"] in lends(a, r["op"]) for a in own)]


def runs(rows, words):
    """Has each format, on each architecture where it has GEMMs, all that a plan asks for?"""
    def fits(r, up, op):
        return r["op"] == op and r.get("quant", up["quant"]) == up["quant"] and \
            r["arch"] in lends(up["arch"], op) and \
            len({r.get("hidden") or 0, up["hidden"], 0}) < 3 and \
            (op != "down" or (r["m"], r.get("block")) == (up["m"], up.get("block")))
    if not any(r["op"] == "up" for r in rows):
        raise Bad(f"bundle: there is no up row{' of ' * bool(words)}{' '.join(words)}, so no plan can be made; "
                  "./moek gen list up  shows what kernels.toml has")
    ups = {r["quant"] for r in rows if r["op"] == "up"}
    lacking = {(r["quant"], r["arch"]): ["up"] for r in rows if r["op"] in GEMMS and
               not (r["op"] == "layer" and r["quant"] in ups)}          # a layer goes with GEMMs of an older machine
    for up in (r for r in rows if r["op"] == "up"):
        none, least = [op for op in STEPS if not any(fits(r, up, op) for r in rows)], lacking[up["quant"], up["arch"]]
        if least == ["up"] or len(none) < len(least):
            lacking[up["quant"], up["arch"]] = none
    for (quant, arch), none in lacking.items():
        if none:
            raise Bad(f"bundle: {quant} on {arch} has GEMMs, and no row of {', '.join(none)} for them"
                      f"{' (down: with m and block of an up row)' if 'down' in none else ''}, so every plan would "
                      f"fail; ./moek gen list {none[0]} _on_  shows what kernels.toml has")


def bundle(generator, words, prefix):
    """moek.h with everything it includes put in place, and only the chosen rows."""
    generator.rows[:] = chosen(generator, words)
    root = os.path.join(generator.root, "include", "moek.h")
    files, done, table = generator.files(), {os.path.normpath(root)}, "moek_kernels.h"
    runs(generator.rows, words)

    def included(path):
        """The lines of a file, each with the file that it includes, or None."""
        generated = os.path.dirname(path).endswith("generated")
        for line in (files[os.path.basename(path)] if generated else read(path)).splitlines(keepends=True):
            m = re.match(r'\s*#\s*include "([^"]+)"', line)
            yield line, m and os.path.normpath(os.path.join(os.path.dirname(path), m.group(1)))

    def inline(path):
        for line, inner in included(path):
            again = inner and inner.endswith((table, BODY))                 # what is included more than once
            if not inner:
                yield line
            elif inner not in done or again:
                if inner.endswith(table) and inner not in done:
                    yield from rooms(os.path.dirname(inner))
                done.add(inner)
                yield from inline(inner)

    def rooms(folder):
        """What files of kernels include, ahead of them all: an #if around one of these files would hide that from
        the next."""
        for row in {r["file"]: r for r in generator.rows}.values():
            for _, inner in included(os.path.join(folder, row["file"])):
                if not inner or inner in done or inner.endswith(BODY):
                    continue
                done.add(inner)
                gpu = generator.manifest["arch"][row["arch"]] >= GPUS
                yield "#if MOEK_HAVE_CUDA_\n" * gpu + "".join(inline(inner)) + "#endif\n" * gpu

    head = (f"/* {prefix}.h -- one self-contained header, GENERATED by codegen/moegen.py bundle "
            f"{' '.join(words)}".rstrip() + "\n"
            + " * Apache-2.0, see the LICENSE of moek.\n"
            + " * rows: " + "\n *       ".join(r["name"] for r in generator.rows) + " */\n")
    return renamed(head + "".join(inline(root)), prefix)


def write_if_changed(path, text):
    try:
        if read_bytes(path) == text.encode():
            return False
        with open(path, "wb") as f:
            f.write(text.encode())
    except OSError as e:
        raise Bad(f"{path}: {e.strerror}")
    return True


def read_bytes(path):
    """What a file holds; None: there is no such file."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def main(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("command", nargs="?", default="write", choices=["write", "list", "one", "row", "bundle"])
    ap.add_argument("words", nargs="*")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--rows")
    ap.add_argument("--prefix", default="moek")
    ap.add_argument("-C", dest="root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap.add_argument("--from", dest="folder", default=".")
    ap.add_argument("-o", dest="out")
    a = ap.parse_args(argv)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", a.prefix):
        raise Bad(f"--prefix {a.prefix}: small letters, digits and _ only")
    for given, option, commands in ((a.words, "a word", ("list", "one", "row", "bundle")),
                                    (a.check, "--check", ("write",)), (a.out, "-o", ("bundle",)),
                                    (a.rows, "--rows", ("list", "one", "bundle")),
                                    (a.prefix != "moek", "--prefix", ("bundle",))):
        if given and a.command not in commands:
            known = ", ".join(commands).replace("write", "writing generated/")
            raise Bad(f"{option} is for {known}, not for {a.command}")
    a.root = os.path.abspath(a.root)
    os.chdir(a.folder)
    start = time.process_time()                        # of this process: the machine may have other work
    g = Generator(a.root, a.rows)
    if a.command == "list":
        print("\n".join(r["name"] for r in wanted(g.rows, a.words)))
    elif a.command == "one":
        if not a.words:
            raise Bad("one wants the names of kernels;  ./moek gen list  has them")
        for name in a.words:
            row = next((r for r in g.rows if r["name"] == name), None)
            if not row:
                raise Bad(f"{name} is not in {g.where};  ./moek gen list  has all names")
            sys.stdout.write(g.kernel(row))
    elif a.command == "row":
        if not a.words or not all("=" in w for w in a.words):
            raise Bad("row wants KEY=VALUE ..., as in  row op=up template=gemm_cpu quant=bf16 hidden=0 arch=cpu m=8")
        row = {}
        for key, value in (w.split("=", 1) for w in a.words):
            if key in row:
                raise Bad(f"row: {key} is there twice")
            row[key] = int(value) if re.fullmatch("[0-9]{1,18}", value) else value
        g.where = "row"
        for r in expand({**g.manifest, "kernels": [row]}, "row"):
            g.kernel(r)
            print(toml_of(r))
    elif a.command == "bundle":
        text = bundle(g, a.words, a.prefix)
        if a.out:
            write_if_changed(a.out, text)
        else:
            sys.stdout.write(text)
    else:
        return write(g, a, start)
    return 0


def write(g, a, start):
    folder = os.path.join(g.root, "generated")
    files = g.files()
    os.makedirs(folder, exist_ok=True)
    left_over = sorted(set(os.listdir(folder)) - set(files))
    targets = {**{os.path.join(folder, n): t for n, t in files.items()}, **g.pages()}
    if a.check:
        bad = 0
        for path, text in sorted(targets.items()):
            have = read_bytes(path)
            state = "missing" if have is None else None if have == text.encode() else "stale"
            if state:
                bad += 1
                print(f"{state}: {os.path.relpath(path, g.root)}")
        for name in left_over:
            bad += 1
            print(f"left over: generated/{name}")
        longest = g.longest
        for what, have, of in (("lines", longest[0], ": " + longest[1]),
                               ("seconds", time.process_time() - start, " of CPU time")):
            if have > g.manifest["budget"][what]:
                bad += 1
                print(f"over budget: {have:.6g} {what}, kernels.toml allows {g.manifest['budget'][what]}{of}")
        print(f"{len(files)} files, {sum(t.count(chr(10)) for t in files.values())} lines, {len(g.rows)} kernels: "
              + ("run ./moek gen" if bad else "up to date"))
        return 1 if bad else 0
    changed = sum(write_if_changed(path, text) for path, text in sorted(targets.items()))
    for name in left_over:
        os.remove(os.path.join(folder, name))
    inputs = ["kernels.toml", "models.toml", "rules.toml", "codegen/moegen.py", "codegen/rules.py",
              "codegen/columns.py", "include/moek/enums.h", "include/moek/plan/fields.h"]
    inputs += [os.path.join("templates", folder, n) for folder in ("", "element", STEPS_FOLDER, *FOLDERS)
               for n in g.names(folder)]
    os.makedirs(os.path.join(g.root, "build"), exist_ok=True)
    write_if_changed(os.path.join(g.root, "build", "gen.d"), "generated/kernels.ninja: " + " ".join(inputs) + "\n")
    print(f"{len(files)} files, {changed} changed, {len(left_over)} removed, {time.process_time() - start:.2f} s")
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except Bad as e:
        sys.exit(str(e))
    except BrokenPipeError:                           # ... list | head
        sys.stdout = None
        sys.exit(1)
    except OSError as e:                              # a folder where a file should be, no space, no right
        sys.exit(f"{e.filename or 'moegen.py'}: {e.strerror}")
    sys.exit(status)
