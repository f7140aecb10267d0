"""cells.py -- which cells of the table did no test run?  A cell is an op, a format and an architecture, and for an op
that has one an activation.

    cells.py LOG ...        logs of test_rows.c; those of sm80 and sm90 count on the emulator or on a GPU
    cells.py --without ARCH ... -- LOG ...     this machine cannot run these architectures

Last line: N passed, N failed, N skipped."""
import os, re, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "codegen"))
sys.dont_write_bytecode = True
import moegen

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HAVE_ACT = ("up", "layer", "mlp")


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


def main(words):
    without = words[1:words.index("--")] if words[:1] == ["--without"] else []
    found = ran([w for w in words[len(without) + 2 if without else 0:] if w != "--without" and w != "--"])
    passed = failed = skipped = 0
    for cell, names in sorted(table().items()):
        if cell[2] in without:
            skipped += 1
        elif any(cell[3] in found.get(name, ()) for name in names):
            passed += 1
        else:
            failed += 1
            print("no test ran " + " ".join(filter(None, cell)))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


sys.exit(main(sys.argv[1:]))
