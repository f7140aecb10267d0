"""registers.py -- compares what nvcc gave each kernel with tests/data/registers.tsv, so that a change shows.

    registers.py                             compares build/cuda/registers.tsv; last line: N passed, N failed, N skipped
    registers.py --part                      the same of registers_broad.tsv beside that file: of kernels in there alone
    registers.py --write                     ./moek registers: puts this architecture's lines into that file
    registers.py --collect NVCC ARCH FILES   prints the lines of these objects, and of those in archives
"""
import os, subprocess, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
COMMITTED = os.path.join(ROOT, "tests", "data", "registers.tsv")
BUILT = os.path.join(ROOT, "build", "cuda", "registers.tsv")
PART = os.path.join(ROOT, "build", "cuda", "registers_broad.tsv")


def read(path):
    """(nvcc version, {(name, arch): [registers, shared, complaint]})"""
    if not os.path.exists(path):
        return "", {}
    with open(path) as f:
        first, *lines = f.read().splitlines()
    rows = [line.split("\t") for line in lines if line and line[0] != "#"]
    return first.replace("# nvcc ", ""), {(r[0], r[1]): r[2:] + [""] * (5 - len(r)) for r in rows}


OWN = {"sm120": "120f", "sm90": "90a", "sm89": "89", "sm80": "80"}


def recorded(key):
    """The committed file has kernels as compiled for the architecture that their names have, those of moek_ep.h and
    moek_import.h for sm_80.  On a machine whose GPU is newer, rows of sm80 are compiled for that GPU."""
    return OWN[next((arch for arch in OWN if "_on_" + arch in key[0]), "sm80")] == key[1]


def objects(file):
    if file.endswith(".o"):
        return [file]
    names = subprocess.run(["ar", "t", file], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    return [os.path.join(os.path.dirname(file), name) for name in sorted(names)]


def collect(version, files):
    print(f"# nvcc {version}")
    for file in files:
        for name in objects(file):
            with open(name + ".tsv") as f:
                sys.stdout.write(f.read())


def write():
    version, built = read(BUILT)
    old_version, rows = read(COMMITTED)
    archs = {arch for _, arch in filter(recorded, built)}
    rows = {k: v for k, v in rows.items() if k[1] not in archs and old_version == version}
    rows.update((k, v) for k, v in built.items() if recorded(k))
    with open(COMMITTED, "w") as f:
        f.write(f"# nvcc {version}\n"
                "# kernel, architecture, registers, bytes of static shared memory.  ./moek registers\n")
        for (name, arch), (registers, shared, _) in sorted(rows.items()):
            f.write(f"{name}\t{arch}\t{registers}\t{shared}\n")
    print(f"tests/data/registers.tsv: {len(rows)} lines")


def compare(part):
    version, built = read(PART if part else BUILT)
    old_version, rows = read(COMMITTED)
    passed = failed = skipped = 0
    for (name, arch), (registers, shared, complaint) in sorted(built.items()):
        if complaint:
            failed += 1
            print(f"{name} sm_{arch}: {complaint}")
    known = set(filter(recorded, built))
    archs = {arch for _, arch in known}
    if old_version != version:
        print(f"tests/data/registers.tsv is of nvcc {old_version or '?'}, not of nvcc {version}: "
              "nothing to compare with")
        skipped = len(built)
    else:
        skipped = len(built) - len(known)
        if skipped:
            print(f"{skipped} kernels are compiled for another architecture than their own: not compared")
        for key in sorted(known | (set() if part else {k for k in rows if k[1] in archs})):
            was, now = rows.get(key, ["no", "no"])[:2], built.get(key, ["no", "no"])[:2]
            if was == now:
                passed += 1
            else:
                failed += 1
                print(f"{key[0]} sm_{key[1]}: {now[0]} registers, {now[1]} bytes shared; "
                      f"tests/data/registers.tsv: {was[0]}, {was[1]}.  If that is right: ./moek registers")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        collect(sys.argv[2], sys.argv[4:])
    elif sys.argv[1:] == ["--write"]:
        write()
    else:
        sys.exit(compare(sys.argv[1:] == ["--part"]))
