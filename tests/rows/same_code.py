"""same_code.py -- is the machine code of kernels the same before and after a change of their source?

    same_code.py [--keep DIR] [--arch sm_90a] OLD NEW [WORD ...]
                                                      of two checkouts: their kernels whose name holds every word
    same_code.py OLD.cubin NEW.cubin                  of two files: cubin, or objects and libraries with such in them

Says of each kernel that is not: identical but for constant-bank offsets (where its arguments lie), different, or gone;
last line: N passed, N failed, N skipped.

Of checkouts, a batch of kernels at a time becomes PTX; where one differs, each alone.  Where PTX is the same word for
word, so is what ptxas makes of it; the others are assembled and compared.  --keep: PTX of OLD lies there, and is not
made again.  --arch: for what (as the table says: sm_80, or sm_90a).

Wants nvcc ($NVCC), nice; where code differs, or files are no cubin, nvdisasm and cuobjdump of CUDA, or from
  pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm   (in PATH, or where this Python has them)"""
import argparse, glob, os, re, shutil, struct, subprocess, sys, tempfile

BATCH = 6                                              # kernels of the table in one file for nvcc
NVCC = os.environ.get("NVCC") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def tool(name):
    """A program of CUDA: beside nvcc, in PATH, or in this Python's packages."""
    found = [os.path.join(os.path.dirname(NVCC), name), shutil.which(name) or ""]
    found += glob.glob(os.path.join(sys.prefix, "lib", "python*", "site-packages", "nvidia", "*", "bin", name))
    found = [path for path in found if os.path.exists(path)]
    if not found:
        sys.exit(f"there is no {name}: pip install nvidia-cuda-{name}")
    return found[0]


def run(*command, **more):
    done = subprocess.run(["nice", "-n", "10", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    return done.stdout


def plain(symbol):
    """A kernel's name in a mangled one: _Z26moek_... has 26 characters."""
    at = re.search(r"(\d+)(?=moek_)", symbol)
    for first in range(at.start(), at.end()) if at else ():
        length = int(symbol[first:at.end()])
        if at.end() + length <= len(symbol) and symbol[at.end() + length - 1] == "_":
            return symbol[at.end():at.end() + length]
    return symbol


# ---- cubin -----------------------------------------------------------------------------------------------------------

def code_of(path):
    """kernel -> its machine code, of a cubin: an ELF with a section .text.<kernel> each."""
    with open(path, "rb") as f:
        data = f.read()
    start, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3a)
    sections = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    name = [data[sections[names][4] + s[0]:].split(b"\0", 1)[0].decode() for s in sections]
    return {plain(n[len(".text."):]): data[s[4]:s[4] + s[5]] for n, s in zip(name, sections) if n.startswith(".text.")}


def masked_of(path):
    """kernel -> its instructions as text, without the offsets of constant bank 0."""
    found, text = {}, run(tool("cuobjdump"), "-sass", path, env=dict(os.environ, PATH=os.path.dirname(tool("nvdisasm"))
                                                                   + os.pathsep + os.environ.get("PATH", "")))
    for part in text.split("Function : ")[1:]:
        lines = re.findall(r"(?m)^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", part)
        found[plain(part.split(None, 1)[0])] = [re.sub(r"c\[0x0\]\[(\w+\+)?0x[0-9a-f]+\]", "c[0x0][]", line)
                                                for line in lines]
    return found


def compare(old, new, passed, findings):
    """Of two cubin; returns how many passed."""
    before, after, masked = code_of(old), code_of(new), None
    for name in sorted(before):
        if name not in after:
            findings.append(f"{name}: gone")
        elif before[name] == after[name]:
            passed += 1
        else:
            masked = masked or (masked_of(old), masked_of(new))
            same = masked[0].get(name) == masked[1].get(name) is not None
            findings.append(f"{name}: " + ("identical but for constant-bank offsets" if same else "different") +
                            f" ({len(before[name])} bytes, {len(after[name])})")
    return passed


def cubins_of(path, work):
    """The cubin in a file, by their names."""
    with open(path, "rb") as f:
        if f.read(4) == b"\x7fELF" and path.endswith(".cubin"):
            return {"": path}
    folder = tempfile.mkdtemp(dir=work)
    run(tool("cuobjdump"), "-xelf", "all", os.path.abspath(path), cwd=folder)
    return {re.sub(r"^.*?(\d+)\.(sm_\w+)\.cubin$", r"\1 \2", n): os.path.join(folder, n) for n in os.listdir(folder)}


# ---- checkouts -------------------------------------------------------------------------------------------------------

def kernels_of(root, words):
    names = run(sys.executable, os.path.join(root, "codegen", "moegen.py"), "list", *words).split()
    return [n for n in names if "_on_cpu" not in n]


def source_of(root, names):
    """Text that has these kernels, and options for it."""
    lines, options = [], []
    for name in names:
        own = os.path.join(root, "generated", name + ".h")
        if os.path.exists(own):
            lines.append(own)
            continue
        for path in glob.glob(os.path.join(root, "generated", "*_sm??.h")):
            with open(path) as f:
                if re.search(rf"(?m)^#if MOEK_INSTANCE_\(.*, {name}\)$", f.read()):
                    lines.append(path)
                    options += ["-DMOEK_ONE_KERNEL", f"-DMOEK_ONLY_{name}=1"]
    return "".join(f'#include "{os.path.abspath(line)}"\n' for line in dict.fromkeys(lines)), sorted(set(options))


def ptx_of(root, names, to, arch):
    """(nvcc may order instructions by the name of a file: old and new have the same name.)"""
    text, options = source_of(root, names)
    with open(to + ".cu", "w") as f:
        f.write(text)
    if not os.path.exists(to + ".ptx"):
        run(NVCC, "-std=c++17", f"-arch={arch}", "-DMOEK_SPLIT", *options, "-ptx", to + ".cu", "-o", to + ".tmp")
        os.rename(to + ".tmp", to + ".ptx")
    with open(to + ".ptx") as f:
        text = f.read()
    text = re.sub(r"L__BB\d+_", "L__BB_", text)        # a kernel's place in its file, and the name of that file
    text = re.sub(r"_INTERNAL_[0-9a-f]+_\d+_\w*?_cu_[0-9a-f]{8}", "", text)
    kernels = {}
    for part in re.split(r"\.entry ", text)[1:]:       # (asm has lines of one brace, too: a kernel ends with the next)
        symbol = re.match(r"\w+", part).group()
        kernels[plain(symbol)] = re.sub(r"\s*(\.visible)?\s*$", "", unnamed(part, symbol))
    return kernels


def unnamed(text, symbol):
    """A kernel's PTX without its name, and with numbers for the names of its shared variables, which hold the function
    that declares them."""
    shared = list(dict.fromkeys(re.findall(r"\b_ZZ\w+", text)))
    return re.sub(r"\b_ZZ\w+", lambda m: f"shared_{shared.index(m.group())}", text).replace(symbol, "")


def assembled(ptx, arch):
    run(os.path.join(os.path.dirname(NVCC), "ptxas"), f"-arch={arch}", ptx + ".ptx", "-o", ptx + ".cubin")
    return ptx + ".cubin"


def checkouts(old, new, words, keep, work, target_of):
    passed, findings = 0, []
    names, after = kernels_of(old, words), kernels_of(new, words)
    findings += [f"{name}: gone" for name in names if name not in after]
    names = [name for name in names if name in after]
    by_arch = {a: [n for n in names if f"_on_{a}" in n] for a in ("sm80", "sm89", "sm90", "sm120")}
    for arch, of_arch in by_arch.items():
        target = target_of or {"sm80": "sm_80", "sm89": "sm_89", "sm90": "sm_90a", "sm120": "sm_120f"}[arch]
        batches = [of_arch[i:i + BATCH] for i in range(0, len(of_arch), BATCH)]
        for batch in batches:
            where = [os.path.join(folder, f"{batch[0]}.{len(batch)}") for folder in (keep or f"{work}/old", work)]
            ptx = [ptx_of(root, batch, to, target) for root, to in zip((old, new), where)]
            if ptx[0] == ptx[1]:
                passed += len(ptx[0])
            elif len(batch) > 1:                       # (names of the others move shared memory: each alone)
                batches += [[name] for name in batch]
                continue
            else:
                passed = compare(*(assembled(to, target) for to in where), passed, findings)
            print(f"{batch[0]} and {len(batch) - 1} more: {passed} identical so far", file=sys.stderr)
    return passed, findings


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keep")
    options.add_argument("--arch")
    options.add_argument("old")
    options.add_argument("new")
    options.add_argument("words", nargs="*")
    options = options.parse_args()
    passed, findings = 0, []
    with tempfile.TemporaryDirectory() as work:
        if os.path.isdir(options.old):
            os.makedirs(options.keep or os.path.join(work, "old"), exist_ok=True)
            passed, findings = checkouts(options.old, options.new, options.words, options.keep, work, options.arch)
        else:
            before, after = (cubins_of(path, work) for path in (options.old, options.new))
            for name in sorted(before):
                if name in after:
                    passed = compare(before[name], after[name], passed, findings)
                else:
                    findings.append(f"{options.new}: no cubin {name}")
    if not passed and not findings:
        findings.append("no kernel to compare")
    print("".join(line + "\n" for line in findings) + f"{passed} passed, {len(findings)} failed, 0 skipped")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
