#!/usr/bin/env python3
"""moegen.py -- expands kernels.toml, models.toml and templates/ into generated/.

    moegen.py                       write generated/ (only what changed)
    moegen.py --check               write nothing; name each stale, missing or left-over file; exit 1 if there is one
    moegen.py list [WORD ...]       the rows whose name holds every word
    moegen.py one NAME              print one kernel
    moegen.py row KEY=VALUE ...     print a row for kernels.toml, checked
    moegen.py bundle [WORD ...] [--rows FILE.toml] [-o FILE]
                                    one self-contained header with the rows whose name holds every word
    --prefix acme_moek              (bundle) rename moek_ to acme_moek_ and MOEK_ to ACME_MOEK_
    -C DIR                          work in this checkout
"""
import argparse, itertools, os, re, sys, time

try:
    import tomllib
except ImportError:                                   # Python before 3.11
    import tomli as tomllib
import jinja2

AXES = ("quant", "act", "hidden", "inter")            # the contract: left of _on_
SCHEDULE = ("m", "n", "s", "w", "t", "u")             # right of it
KEYS = ("op", "template", "quant", "act", "hidden", "inter", "arch") + SCHEDULE
LETTER = {"hidden": "h", "inter": "i"}


class Bad(Exception):
    """A sentence for the user."""


def load(path):
    try:
        with open(path, "rb") as f:
            return tomllib.load(f)
    except FileNotFoundError:
        raise Bad(f"{path}: no such file")
    except tomllib.TOMLDecodeError as e:
        raise Bad(f"{path}: {e}")


def text_of(row):
    return " ".join(f"{k}={row[k]}" for k in KEYS if k in row)


def toml_of(row):
    return "{ " + ", ".join(f'{k} = "{row[k]}"' if isinstance(row[k], str) else f"{k} = {row[k]}"
                            for k in KEYS if k in row) + " },"


def row_text(row):
    """The row as a C string."""
    return '"' + toml_of(row).replace('"', '\\"') + '"'


def name_of(row):
    contract = [row["op"]] + [LETTER.get(k, "") + str(row[k]) for k in AXES if k in row]
    schedule = "".join(f"{k}{row[k]}" for k in SCHEDULE if k in row)
    return "moek_" + "_".join(contract) + "_on_" + row["arch"] + ("_" + schedule if schedule else "")


def row_of(name, manifest):
    """The row of a name; the template is not part of it."""
    try:
        left, right = re.sub("^moek_", "", name).split("_on_")
        op, *words = left.split("_")
        row = {"op": op}
        for letter, key in (("i", "inter"), ("h", "hidden")):
            if words and re.fullmatch(letter + r"\d+", words[-1]):
                row[key] = int(words.pop()[1:])
        if words:
            row["quant"] = words.pop(0)
        if words:
            row["act"] = "_".join(words)
        arch, *schedule = right.split("_")
        row["arch"] = arch
        row.update((k, int(v)) for k, v in re.findall(r"([a-z])(\d+)", "".join(schedule)))
    except ValueError:
        raise Bad(f"{name}: not a kernel name")
    for key in ("op", "quant", "act", "arch"):
        if key in row and row[key] not in manifest[key]:
            raise Bad(f"{name}: {key} {row[key]} is not in kernels.toml")
    return row


def expand(manifest, where):
    """Each row for each value of its lists, checked."""
    rows, seen = [], {}
    for entry in manifest["kernels"]:
        def no(why):
            raise Bad(f"{where}: {text_of(entry)}: {why}")
        for key in entry:
            if key not in KEYS:
                no(f"unknown key {key}; known: {' '.join(KEYS)}")
        for key in ("op", "template", "arch"):
            if key not in entry:
                no(f"{key} is missing")
        values = [v if isinstance(v, list) else [v] for v in entry.values()]
        for combination in itertools.product(*values):
            row = dict(zip(entry, combination))
            for key, value in row.items():
                if key in ("op", "quant", "arch", "act") and value not in manifest[key]:
                    no(f"{key} {value!r} is not one of {' '.join(manifest[key])}")
                if key in ("hidden", "inter") + SCHEDULE and (
                        not isinstance(value, int) or isinstance(value, bool) or value < 0):
                    no(f"{key} must be a whole number, not {value!r}")
            if "act" in row or "inter" in row:
                no("act and inter are run-time arguments of every template; the table has no column to bake them")
            name = name_of(row)
            if name in seen:
                no(f"{name} is there twice" if seen[name] is entry else f"{name} is also made by {text_of(seen[name])}")
            seen[name] = entry
            rows.append({**row, "name": name})
    return rows


class Generator:
    def __init__(self, root, rows_file=None):
        self.root = root
        self.manifest = load(os.path.join(root, "kernels.toml"))
        self.models = load(os.path.join(root, "models.toml"))["models"]
        where = "kernels.toml"
        if rows_file:
            self.manifest["kernels"], where = load(rows_file).get("kernels", []), rows_file
        self.rows = expand(self.manifest, where)
        self.env = jinja2.Environment(loader=jinja2.FileSystemLoader(os.path.join(root, "templates")),
                                      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                                      keep_trailing_newline=True)
        self.env.globals.update(manifest=self.manifest, models=self.models, rows=self.rows, text_of=text_of,
                                gated=lambda act: not act.endswith("_no_mul"), row_text=row_text)

    def template(self, name):
        try:
            return self.env.get_template(name)
        except jinja2.TemplateNotFound:
            raise Bad(f"kernels.toml: there is no templates/{name}")

    def kernel(self, row):
        """The text of a row's file.  The template sets granule, threads and shared: they go into the table."""
        def require(ok, sentence):
            if not ok:
                raise Bad(f"kernels.toml: {text_of(row)}: {sentence}")
            return ""
        axes = {k: row.get(k) for k in KEYS}
        template = self.template(row["template"] + ".h.j2")
        try:
            module = template.make_module({**axes, "name": row["name"], "row": row, "require": require})
        except jinja2.TemplateError as e:
            raise Bad(f"templates/{row['template']}.h.j2: {text_of(row)}: {e}")
        for key in ("granule", "threads", "shared"):
            row[key] = getattr(module, key, {"granule": 1}.get(key, 0))
        return str(module)

    def files(self):
        """name -> text, for all of generated/."""
        out = {row["name"] + ".h": self.kernel(row) for row in self.rows}
        for name in sorted(os.listdir(os.path.join(self.root, "templates"))):
            if name.startswith("moek_") and name.endswith(".j2") or name == "kernels.ninja.j2":
                out[name[:-3]] = self.template(name).render()
        return out

    def readme(self, text):
        """README.md with the table of kernels between its markers."""
        table = self.template("readme_table.j2").render()
        head, sep, rest = text.partition("<!-- kernels: made by codegen/moegen.py -->\n")
        old, end, tail = rest.partition("<!-- end of kernels -->\n")
        return head + sep + table + end + tail if sep and end else text


def renamed(text, prefix):
    if prefix == "moek":
        return text
    return re.sub(r"\bMOEK(?=_|\b)", prefix.upper(), re.sub(r"\bmoek(?=_)", prefix, text))


def wanted(rows, words):
    return [r for r in rows if all(w in r["name"] for w in words)]


def bundle(generator, words, prefix):
    """moek.h with everything it includes put in place, and only the wanted rows."""
    quants = generator.manifest["quant"]              # a row without a format serves every format: it stays
    generator.rows[:] = [r for r in generator.rows
                         if all(w in r["name"] or w in quants and "quant" not in r for w in words)]
    root = os.path.join(generator.root, "include", "moek.h")
    files, done = generator.files(), {os.path.normpath(root)}
    if not any(r["op"] == "up" for r in generator.rows):
        raise Bad(f"bundle: no up row's name holds {' '.join(words)}; python3 codegen/moegen.py list")

    def inline(path):
        name = os.path.basename(path)
        if os.path.dirname(path).endswith("generated"):
            text = files[name]
        else:
            with open(path) as f:
                text = f.read()
        for line in text.splitlines(keepends=True):
            m = re.match(r'\s*#\s*include "([^"]+)"', line)
            if not m:
                yield line
                continue
            inner = os.path.normpath(os.path.join(os.path.dirname(path), m.group(1)))
            again = os.path.basename(inner) in ("moek_table.h",)            # X-macro lists are included more than once
            if inner not in done or again:
                done.add(inner)
                yield from inline(inner)

    head = (f"/* {prefix}.h -- one self-contained header, GENERATED by codegen/moegen.py bundle "
            f"{' '.join(words)}".rstrip() + "\n"
            + " * Apache-2.0, see the LICENSE of moek.\n"
            + " * rows: " + "\n *       ".join(r["name"] for r in generator.rows) + " */\n")
    return renamed(head + "".join(inline(root)), prefix)


def write_if_changed(path, text):
    try:
        with open(path) as f:
            if f.read() == text:
                return False
    except FileNotFoundError:
        pass
    with open(path, "w") as f:
        f.write(text)
    return True


def main(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("command", nargs="?", default="write", choices=["write", "list", "one", "row", "bundle"])
    ap.add_argument("words", nargs="*")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--rows")
    ap.add_argument("--prefix", default="moek")
    ap.add_argument("-C", dest="root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap.add_argument("-o", dest="out")
    a = ap.parse_args(argv)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", a.prefix):
        raise Bad(f"--prefix {a.prefix}: small letters, digits and _ only")
    start = time.perf_counter()
    g = Generator(a.root, a.rows)
    if a.command == "list":
        print("\n".join(r["name"] for r in wanted(g.rows, a.words)))
    elif a.command == "one":
        for name in a.words:
            row = next((r for r in g.rows if r["name"] == name), None)
            if not row:
                raise Bad(f"{name} is not in kernels.toml; python3 codegen/moegen.py list")
            sys.stdout.write(g.kernel(row))
    elif a.command == "row":
        if not all("=" in w for w in a.words):
            raise Bad("row wants KEY=VALUE ..., as in  row op=up template=gemm_cpu quant=bf16 hidden=0 arch=cpu m=8")
        row = dict(w.split("=", 1) for w in a.words)
        row = {k: int(v) if v.isdigit() else v for k, v in row.items()}
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
    if a.prefix != "moek" or a.rows:
        raise Bad("--prefix and --rows are for bundle: generated/ serves this checkout")
    files = g.files()
    os.makedirs(folder, exist_ok=True)
    left_over = sorted(set(os.listdir(folder)) - set(files))
    readme = os.path.join(g.root, "README.md")
    targets = {os.path.join(folder, n): t for n, t in files.items()}
    if os.path.exists(readme):
        with open(readme) as f:
            targets[readme] = g.readme(f.read())
    if a.check:
        bad = 0
        for path, text in sorted(targets.items()):
            state = None
            if not os.path.exists(path):
                state = "missing"
            else:
                with open(path) as f:
                    state = None if f.read() == text else "stale"
            if state:
                bad += 1
                print(f"{state}: {os.path.relpath(path, g.root)}")
        for name in left_over:
            bad += 1
            print(f"left over: generated/{name}")
        lines = sum(t.count("\n") for t in files.values())
        for what, have in (("files", len(files)), ("lines", lines), ("seconds", time.perf_counter() - start)):
            if have > g.manifest["budget"][what]:
                bad += 1
                print(f"over budget: {have:.6g} {what}, kernels.toml allows {g.manifest['budget'][what]}")
        print(f"{len(files)} files, {lines} lines, {len(g.rows)} kernels: "
              + ("run python3 codegen/moegen.py" if bad else "up to date"))
        return 1 if bad else 0
    changed = sum(write_if_changed(path, text) for path, text in sorted(targets.items()))
    for name in left_over:
        os.remove(os.path.join(folder, name))
    inputs = ["kernels.toml", "models.toml", "codegen/moegen.py"] + \
             ["templates/" + n for n in sorted(os.listdir(os.path.join(g.root, "templates")))]
    os.makedirs(os.path.join(g.root, "build"), exist_ok=True)
    write_if_changed(os.path.join(g.root, "build", "gen.d"), "generated/kernels.ninja: " + " ".join(inputs) + "\n")
    print(f"{len(files)} files, {changed} changed, {len(left_over)} removed, {time.perf_counter() - start:.2f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Bad as e:
        sys.exit(str(e))
