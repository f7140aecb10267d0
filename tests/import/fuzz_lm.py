"""fuzz_lm.py -- examples/moe_lm.c and checkpoint.h on damaged folders: an answer or a sentence each, no crash, no
endless loop.

    fuzz_lm.py MOE_LM TEST_CHECKPOINT [COUNT [SEED]]   both compiled with AddressSanitizer and UBSan; COUNT: 400

A folder of tests/data/lm, or one that make_checkpoints.py writes, is damaged in one to three places: a value of
config.json or of a tensor's entry becomes another, an entry goes or comes twice, a byte of a file flips, a file ends
early; or numbers in the head of a .gguf of make_gguf.py become others.  Passed: the program (moe_lm runs the first and
the last, test_checkpoint loads the second) ends within 20 s, with 0, or with 1 and one sentence.
Prints the seed of a folder that fails, and keeps it; COUNT 1 and this SEED make it again.
Besides, faults that have been there (FAULTS): each with the words of its sentence."""
import concurrent.futures
import glob
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import make_checkpoints
import make_gguf

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NUMBERS = [0, 1, 2, 3, 7, -1, -3, 31, 33, 64, 127, 128, 129, 255, 1000, 65536, 2**24, 2**31 - 1, -2**31, 2**32, 2**53,
           -2**63, 2**64, 10**30, 0.5, -0.5, 1e300, -1e300, 1e-300, float("nan"), float("inf"), -float("inf")]
OTHERS = [None, True, False, "", "x", "fp8", "mxfp4", "auto", "BF16", "F32", "I32", [], [1], [0, 0], [[]], {}, {"a": 1},
          "x" * 300, "%s%n%d", [128, 128], "\u00e9"]
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1",
                   ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512",
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


LAYER = "model.layers.0."


def value(key, number):
    return lambda config, header: config.__setitem__(key, number)


def elements(name, count, dtype="BF16", size=2):
    """The tensor has so many elements."""
    def change(config, header):
        begin = header[name]["data_offsets"][0]
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [begin, begin + size * count]}
    return change


FAULTS = [                                             # model, words of the sentence, what is damaged
    ("qwen3_moe", "num_attention_heads is 0", value("num_attention_heads", 0)),
    ("qwen3_moe", "num_key_value_heads is 0", value("num_key_value_heads", 0)),
    ("qwen3_moe", "must divide num_attention_heads", value("num_key_value_heads", 3)),
    ("qwen3_moe", "hidden_size is 1e+300", value("hidden_size", 1e300)),
    ("qwen3_moe", "hidden_size is NaN", value("hidden_size", float("nan"))),
    ("qwen3_moe", "hidden_size is 64.5", value("hidden_size", 64.5)),
    ("qwen3_moe", "head_dim is 16777216", value("head_dim", 1 << 24)),
    ("qwen3_moe", "head_dim: must be even", value("head_dim", 23)),
    ("qwen3_moe", "num_hidden_layers is -1", value("num_hidden_layers", -1)),
    ("qwen3_moe", "num_hidden_layers is 0", value("num_hidden_layers", 0)),
    ("qwen3_moe", "vocab_size is 0", value("vocab_size", 0)),
    ("qwen3_moe", "rms_norm_eps is NaN", value("rms_norm_eps", float("nan"))),
    ("qwen3_moe", "rope_theta is 0", value("rope_theta", 0)),
    ("qwen3_moe", "num_experts is 2000", value("num_experts", 2000)),
    ("gpt_oss", "sliding_window is -2147483648", value("sliding_window", -2**31)),
    ("gpt_oss", "sliding_window is NaN", value("sliding_window", float("nan"))),
    ("qwen3_moe", "model.norm.weight: has another length", elements("model.norm.weight", 0)),
    ("qwen3_moe", "input_layernorm.weight: has another length", elements(LAYER + "input_layernorm.weight", 9600)),
    ("qwen3_moe", "q_norm.weight: has another length", elements(LAYER + "self_attn.q_norm.weight", 23)),
    ("gpt_oss", "sinks: has another length", elements(LAYER + "self_attn.sinks", 1)),
    ("gpt_oss", "q_proj.bias: has another length", elements(LAYER + "self_attn.q_proj.bias", 1)),
    ("qwen3_moe", "model.embed_tokens.weight: is neither BF16", elements("model.embed_tokens.weight", 2560, "F32", 4)),
    ("qwen3_moe", "lm_head.weight: has another shape", elements("lm_head.weight", 2)),
    ("qwen3_moe", "down_proj.weight is not in the folder, which has no tensors", lambda config, header: header.clear()),
    ("qwen3_moe", "begins at an odd address", None)]


def paths(value, at=()):
    """Of all values in JSON, containers too."""
    yield at
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], at + (key,))


def other(rng, value):
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.6:
        return rng.choice(NUMBERS + [value + 1, value - 1, value * 2, value // 2, -value])
    return rng.choice(NUMBERS + OTHERS)


def damage(rng, tree):
    """One value of JSON is another, or gone, or there under another key."""
    at = rng.choice([p for p in paths(tree) if p])
    inner = tree
    for key in at[:-1]:
        inner = inner[key]
    kind = rng.random()
    if kind < 0.7:
        inner[at[-1]] = other(rng, inner[at[-1]])
    elif kind < 0.85:
        del inner[at[-1]]
    elif isinstance(inner, dict):
        inner[rng.choice(list(inner))] = inner[at[-1]]
    else:
        inner.append(inner[at[-1]])


def tensor_damage(rng, header):
    """Of what a file says of a tensor."""
    name = rng.choice(list(header))
    entry = header[name]
    if "data_offsets" not in entry or rng.random() < 0.3:
        damage(rng, header)
        return
    begin, end = entry["data_offsets"]
    kind = rng.randrange(6)
    if kind == 0:
        entry["data_offsets"] = [begin, begin]
        entry["shape"] = [0]
    elif kind == 1:
        elements = rng.choice([1, 2, 3, 5, 64])
        entry["data_offsets"], entry["shape"] = [begin, begin + 2 * elements], [elements]
    elif kind == 2:
        entry["shape"] = list(reversed(entry["shape"]))
    elif kind == 3:
        entry["dtype"] = rng.choice(["F32", "F16", "BF16", "I32", "U8", "F8_E4M3", "F8_E8M0", "I64", "I8", "X"])
        if rng.random() < 0.5:
            entry["shape"] = [(end - begin) // rng.choice([1, 2, 4])]
    elif kind == 4:
        header[rng.choice(list(header))] = entry
    else:
        del header[name]


def bytes_damage(rng, data):
    kind = rng.random()
    if kind < 0.4:
        return data[:rng.randrange(len(data) + 1)]
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 4, 40])):
        if data:
            data[rng.randrange(min(len(data), rng.choice([9, 400, len(data)])))] = rng.randrange(256)
    return bytes(data)


def make(rng, folder, to):
    names = [n for n in os.listdir(folder) if n.endswith((".json", ".safetensors"))
             and n not in ("golden.safetensors", "reference.safetensors")]
    files = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as f:
            files[name] = f.read()
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice([n for n in files if not n.endswith("index.json")])
        data, kind = files[name], rng.random()
        if kind < 0.2:
            files[name] = bytes_damage(rng, data)
            continue
        try:
            if name.endswith(".json"):
                tree = json.loads(data)
                damage(rng, tree)
                files[name] = json.dumps(tree).encode()
            else:
                length = struct.unpack("<Q", data[:8])[0]
                header = json.loads(data[8:8 + length])
                (tensor_damage if rng.random() < 0.8 else damage)(rng, header)
                text = json.dumps(header).encode()
                text += b" " * (-len(text) % 8 if rng.random() < 0.9 else rng.randrange(8))
                files[name] = struct.pack("<Q", len(text)) + text + data[8 + length:]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error):
            files[name] = bytes_damage(rng, data)      # (no JSON any more, or another tree)
    for name, data in files.items():
        with open(os.path.join(to, name), "wb") as f:
            f.write(data)


def make_model(rng, folder, to):
    """Numbers in the head of a .gguf become others: sizes, counts, types, values of keys; or the file ends."""
    with open(os.path.join(folder, "model.gguf"), "rb") as f:
        data = bytearray(f.read())
    head = data.rindex(b"blk.") + 100
    for _ in range(rng.choice([1, 1, 2, 3])):
        if rng.random() < 0.05:
            data = data[:rng.randrange(len(data))]
        at, size = rng.randrange(max(min(head, len(data) - 8), 1)), rng.choice([1, 1, 2, 4, 8])
        old = int.from_bytes(data[at:at + size], "little")
        new = rng.choice([n for n in NUMBERS if isinstance(n, int)] + [old + 1, old - 1, old ^ 1 << rng.randrange(64)])
        data[at:at + size] = (new % 256**size).to_bytes(size, "little")
    with open(os.path.join(to, "model.gguf"), "wb") as f:
        f.write(data)


def write(folder, config, header, data, odd=False):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + odd)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def fault(program, root, model, words, change):
    """What went wrong, or 1: it is refused with these words."""
    to, of = os.path.join(root, "fault"), os.path.join(ROOT, "tests/data/lm", model)
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(of, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(of, "model.safetensors"), "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(length)), f.read()
    if change:
        change(config, header)
    write(to, config, header, data, change is None)
    status, text = run(program + [to, "2", "1", "2", "3"])
    return 1 if status == 1 and words in text and not BAD.search(text) else f"{words}: status {status}: {text[-300:]}"


BAD = re.compile(r".*(runtime error|ERROR: AddressSanitizer(?!: requested allocation)|Sanitizer:DEADLY).*")


def run(command):
    """(status, output); None: it took more than 20 s."""
    try:
        p = subprocess.run(command, timeout=20, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return None, "more than 20 s"
    return p.returncode, p.stdout.decode("latin-1")


def one(programs, folders, seed, root):
    """What went wrong, or the status: 0 or 1."""
    rng = random.Random(seed)
    to = os.path.join(root, str(seed))
    os.makedirs(to)
    kind = seed % 3
    (make_model if kind == 2 else make)(rng, rng.choice(folders[kind]), to)
    path = os.path.join(to, "model.gguf") if kind == 2 else to
    status, text = run(programs[kind % 2] + (["load", to] if kind == 1 else [path, "2", "1", "2", "3"]))
    found = BAD.search(text)
    if found or status not in (0, 1) or (status and ": " not in text):
        return f"seed {seed}: {to}: status {status}: {found.group(0)[:200] if found else text[-200:]}"
    shutil.rmtree(to)
    return status


def main(moe_lm, checkpoint, count=400, seed=1):
    count, seed = int(count), int(seed)
    programs = [[os.path.abspath(moe_lm)], [os.path.abspath(checkpoint)]]
    root = tempfile.mkdtemp(prefix="fuzz_lm.")
    make_checkpoints.main(os.path.join(root, "checkpoints"))
    make_gguf.models(os.path.join(root, "gguf"))
    folders = [sorted(glob.glob(os.path.join(ROOT, "tests/data/lm/*"))),
               sorted(glob.glob(os.path.join(root, "checkpoints/*"))),
               sorted(glob.glob(os.path.join(root, "gguf/*")))]
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda n: one(programs, folders, n, root), range(seed, seed + count)))
    results += [fault(programs[0], root, *f) for f in FAULTS]
    bad = [r for r in results if isinstance(r, str)]
    for line in bad[:40]:
        print(line)
    for made in ("checkpoints", "gguf") if bad else ("",):
        shutil.rmtree(os.path.join(root, made))
    print(f"{len(results)} folders: {results.count(0)} run all the same, {results.count(1)} are refused in a sentence")
    print(f"{len(results) - len(bad)} passed, {len(bad)} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
