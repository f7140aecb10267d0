"""sizes.py -- what each format costs to build: lines of generated/, seconds and bytes of the two-line implementation.

   python3 bench/sizes.py [FORMAT ...] > bench/results/sizes.tsv      needs cc and nvcc; 20 minutes for all formats

Seconds are CPU time of the compiler with all its passes, which other programs of the machine change little.

kernels, lines: rows of kernels.toml with the format, and their parts of files; a body in generated/ that formats share
counts for each, bodies in templates/ for none.
c, sm_80, sm_90a: gcc -O3 -march=native -fopenmp of layer.c; nvcc -O3 of layer.cu with -DMOEK_QUANT, one core."""
import os
import re
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NVCC = ["nvcc", "-std=c++17", "-O3"]
TARGETS = {
    "c": ("layer.c", ["cc", "-O3", "-march=native", "-fopenmp"]),
    "sm_80": ("layer.cu", [*NVCC, "-gencode", "arch=compute_80,code=sm_80"]),
    "sm_90a": ("layer.cu", [*NVCC, "-gencode", "arch=compute_90a,code=sm_90a"]),
}


def lines_of(quant):
    """Kernels and lines of a format."""
    folder, seen, kernels = os.path.join(ROOT, "generated"), {}, 0
    for name in os.listdir(folder):
        text = open(os.path.join(folder, name)).read()
        for part in re.split(r"(?m)^(?=#if MOEK_INSTANCE_\()", text)[1:]:
            if not part.startswith(f"#if MOEK_INSTANCE_(MOEK_{quant.upper()}, "):
                continue
            kernels += 1
            seen[part.partition("\n")[0]] = part.count("\n")
            for body in re.findall(r'#include "(\w+_body\.h)"', part):
                seen[body] = open(os.path.join(folder, body)).read().count("\n")
    return kernels, sum(seen.values())


def seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def built(quant, target):
    """Seconds and bytes of an object."""
    source, command = TARGETS[target]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, source)
        with open(path, "w") as f:
            f.write('#define MOEK_IMPLEMENTATION\n#include "moek.h"\n')
        start = seconds_of_children()
        subprocess.run([*command, f"-DMOEK_QUANT=MOEK_{quant.upper()}", "-I", os.path.join(ROOT, "include"), "-c", path,
                        "-o", path + ".o"], check=True)
        return seconds_of_children() - start, os.path.getsize(path + ".o")


def main():
    with open(os.path.join(ROOT, "kernels.toml")) as f:
        formats = re.findall(r"^formats\.(\w+)", f.read(), re.M)
    formats = sys.argv[1:] or formats
    version = subprocess.run(["nvcc", "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    print(f"# python3 bench/sizes.py; nvcc {re.search(r'release ([0-9.]+)', version).group(1)}, CPU time")
    print("format", "kernels", "lines", *(f"{t}_{what}" for t in TARGETS for what in ("s", "bytes")), sep="\t")
    for quant in formats:
        row = [quant, *lines_of(quant)]
        for target in TARGETS:
            seconds, size = built(quant, target)
            row += [f"{seconds:.1f}", size]
        print(*row, sep="\t")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
