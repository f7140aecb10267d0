"""fuzz_lm.py -- examples/moe_lm.c and checkpoint.h on damaged folders: an answer or a sentence each, no crash, no
endless loop.

    fuzz_lm.py MOE_LM TEST_CHECKPOINT [COUNT [SEED]]   both compiled with AddressSanitizer and UBSan; COUNT: 400

A folder of tests/data/lm, or one that make_checkpoints.py writes, is damaged in one to three places: a value of
config.json or of a tensor's entry becomes another, an entry goes or comes twice, a byte of a file flips, a file ends
early.  Passed: the program (moe_lm runs the former, test_checkpoint loads the latter) ends within 20 s, with 0, or with
1 and one sentence.  Prints the seed of a folder that fails, and keeps it; COUNT 1 and this SEED make it again."""
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NUMBERS = [0, 1, 2, 3, 7, -1, -3, 31, 33, 64, 127, 128, 129, 255, 1000, 65536, 2**24, 2**31 - 1, -2**31, 2**32, 2**53,
           -2**63, 2**64, 10**30, 0.5, -0.5, 1e300, -1e300, 1e-300, float("nan"), float("inf"), -float("inf")]
OTHERS = [None, True, False, "", "x", "fp8", "mxfp4", "auto", "BF16", "F32", "I32", [], [1], [0, 0], [[]], {}, {"a": 1},
          "x" * 300, "%s%n%d", [128, 128], "\u00e9"]
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1",
                   ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512",
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


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


def one(programs, folders, seed, root):
    """What went wrong, or the status: 0 or 1."""
    rng = random.Random(seed)
    to = os.path.join(root, str(seed))
    os.makedirs(to)
    kind = seed % 2
    make(rng, rng.choice(folders[kind]), to)
    try:
        p = subprocess.run(programs[kind] + (["load", to] if kind else [to, "2", "1", "2", "3"]), timeout=20,
                           env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return f"seed {seed}: {to}: more than 20 s"
    text = p.stdout.decode("latin-1")
    found = re.search(r".*(runtime error|ERROR: AddressSanitizer(?!: requested allocation)|Sanitizer:DEADLY).*", text)
    if found or p.returncode not in (0, 1) or (p.returncode and ": " not in text):
        return f"seed {seed}: {to}: status {p.returncode}: {found.group(0)[:200] if found else text[-200:]}"
    shutil.rmtree(to)
    return 0 if p.returncode == 0 else 1


def main(moe_lm, checkpoint, count=400, seed=1):
    count, seed = int(count), int(seed)
    programs = [[os.path.abspath(moe_lm)], [os.path.abspath(checkpoint)]]
    root = tempfile.mkdtemp(prefix="fuzz_lm.")
    make_checkpoints.main(os.path.join(root, "checkpoints"))
    folders = [sorted(glob.glob(os.path.join(ROOT, "tests/data/lm/*"))),
               sorted(glob.glob(os.path.join(root, "checkpoints/*")))]
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda n: one(programs, folders, n, root), range(seed, seed + count)))
    bad = [r for r in results if isinstance(r, str)]
    for line in bad[:40]:
        print(line)
    shutil.rmtree(root if not bad else os.path.join(root, "checkpoints"))
    print(f"{count} folders: {results.count(0)} run all the same, {results.count(1)} are refused in a sentence")
    print(f"{count - len(bad)} passed, {len(bad)} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
