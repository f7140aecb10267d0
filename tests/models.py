"""models.py -- models.toml against tests/data/models.tsv, which tests/data/make_models.py made of transformers'
configuration classes and of published configurations; and docs/models.md has each model.

    python3 tests/models.py

Last line: N passed, N failed, N skipped."""
import os, re, sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "codegen"))
import moegen


def read(*path):
    with open(os.path.join(ROOT, *path)) as f:
        return f.read()


def plain(row):
    """What moek_config makes of a row: 0 is no groups, as 1 is, and a scale of 1."""
    row = {k: v if isinstance(v, str) else float(v) for k, v in row.items()}
    if row.get("groups", 0) <= 1:
        row["groups"] = row["topk_groups"] = 0
    row["scale"] = row.get("scale") or 1
    return {k: v for k, v in row.items() if v}


def number(text):
    return text if re.match("[a-zA-Z]", text) else float(text)


def main():
    rows = moegen.load(os.path.join(ROOT, "models.toml"))["models"]
    head, *lines = [line.split("\t") for line in read("tests", "data", "models.tsv").splitlines() if line[0] != "#"]
    sources = {line[0]: dict(zip(head[1:], line[1:])) for line in lines}
    page, bad = read("docs", "models.md"), []
    for name in sorted({*rows, *sources}):
        if name not in rows or name not in sources:
            bad.append(f"{name}: not in {'models.toml' if name in sources else 'tests/data/models.tsv'}")
            continue
        want = {key: number(text) for key, text in sources[name].items() if key not in ("class", "published", "source")}
        row, want = plain(rows[name]), plain(want)
        bad += [f"models.toml: {name}: {key} is {row.get(key, 0)}, its source has {want.get(key, 0)} "
                f"({sources[name]['class']}, {sources[name]['source']})"
                for key in sorted({*row, *want}) if row.get(key) != want.get(key)]
    bad += [f"docs/models.md: there is no `MOEK_{name.upper()}`" for name in rows
            if not re.search(rf"\bMOEK_{name.upper()}\b", page)]
    for line in bad:
        print(line)
    print(f"{max(0, 2 * len(rows) - len(bad))} passed, {len(bad)} failed, 0 skipped")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
