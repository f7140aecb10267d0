"""cells.py -- which cells of the table did no test run?  A cell is an op, a format and an architecture, and for an op
that has one an activation.

    cells.py [--without ARCH] LOG ...      logs of test_rows.c, of the emulator or of a GPU; an ARCH that this machine
                                           cannot run is skipped, and so are instructions of CPUs that no log
                                           has a case of (tests/api/test_api.c: that this machine's are there)

Last line: N passed, N failed, N skipped."""
import argparse, os, re, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "codegen"))
sys.dont_write_bytecode = True
import moegen

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HAVE_ACT = ("up", "layer", "up_down")


def table():
    """Cells, each with the names of its kernels."""
    generator, cells = moegen.Generator(ROOT), {}
    for row in generator.rows:
        cell = (row["op"], row.get("quant", "any format"), row["arch"])
        for act in generator.manifest["act"] if row["op"] in HAVE_ACT else [""]:
            cells.setdefault(cell + (act,), set()).add(row["name"])
    return cells


def ran(logs):
    """Of each kernel with cases: its activations, and "" for itself."""
    found = {}
    for log in logs:
        with open(log, encoding="utf-8", errors="replace") as f:
            for line in f:
                m = re.match(r"(moek_\w+) +(\d+) cases ", line)
                if m and int(m.group(2)):
                    found.setdefault(m.group(1), set()).add("")
                m = re.match(r"acts of (moek_\w+):(.*)", line)
                if m:
                    found.setdefault(m.group(1), set()).update(m.group(2).split())
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--without", action="append", default=[])
    options.add_argument("logs", nargs="*")
    options = options.parse_args()
    found = ran(options.logs)
    sets = {arch for arch, number in moegen.load(os.path.join(ROOT, "kernels.toml"))["arch"].items() if 0 < number < 80}
    options.without += [arch for arch in sets if not any(f"_on_{arch}_" in name for name in found)]
    passed = failed = skipped = 0
    for cell, names in sorted(table().items()):
        if cell[2] in options.without:
            skipped += 1
        elif any(cell[3] in found.get(name, ()) for name in names):
            passed += 1
        else:
            failed += 1
            print("no test ran " + " ".join(filter(None, cell)))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


sys.exit(main())
