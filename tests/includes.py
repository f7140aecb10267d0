"""includes.py -- which header includes which: none from a floor above its own, none in a circle; and no two define a
function of one name.  The floors are a table of docs/contributing.md.  A line a finding, and at the end N passed, N
failed, N skipped.  (Whether each header compiles alone: compile/matrix.sh.)"""
import fnmatch
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def floors():
    """[(number, pattern)] of the table, patterns without a star first."""
    with open(os.path.join(ROOT, "docs", "contributing.md")) as f:
        table = f.read().partition("\n## Floors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (\d+) \|.*\| (`.*`) \|$", table)
    found = [(int(number), pattern) for number, files in rows for pattern in re.findall(r"`([^`]+)`", files)]
    return sorted(found, key=lambda f: "*" in f[1])


def included():
    """file -> {file that it includes: line}, by paths from the root."""
    graph = {}
    for pattern in ("include/**/*.h", "generated/*.h", "templates/**/*.cuh"):
        for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
            name, graph_of = os.path.relpath(path, ROOT), {}
            with open(path) as f:
                for n, line in enumerate(f, 1):
                    m = re.match(r'\s*#\s*include "([^"]+)"', line)
                    if m:
                        graph_of.setdefault(os.path.normpath(os.path.join(os.path.dirname(name), m.group(1))), n)
            graph[name] = graph_of
    return graph


def circles(graph):
    """Each circle once, as a list of files whose last one includes the first."""
    done, path, found = set(), [], []

    def walk(name):
        if name in path:
            found.append(path[path.index(name):])
        elif name not in done:
            path.append(name)
            for inner in sorted(graph.get(name, ())):
                walk(inner)
            path.pop()
            done.add(name)
    for name in sorted(graph):
        walk(name)
    return found


def twice():
    """Each function of the library's own that two headers of include/ define: `name: files`."""
    where = {}
    for path in glob.glob(os.path.join(ROOT, "include/**/*.h"), recursive=True):
        with open(path) as f:
            for name in re.findall(r"(?m)^(?:static|MOEK_\w+|template)\b[^=;(\n]*\b(moek_\w+)\(", f.read()):
                where.setdefault(name, set()).add(os.path.relpath(path, ROOT))
    return [f"{name}: {', '.join(sorted(files))}" for name, files in sorted(where.items()) if len(files) > 1]


def main():
    graph, table = included(), floors()
    floor = {name: next((n for n, pattern in table if fnmatch.fnmatchcase(name, pattern)), None) for name in graph}
    lines = [(name, n, inner) for name, inners in sorted(graph.items()) for inner, n in inners.items()]
    checks = (
        ("there is no such file", [f"{name}:{n}: {inner}" for name, n, inner in lines if inner not in graph]),
        ("no floor of docs/contributing.md has it", sorted(name for name in floor if floor[name] is None)),
        ("docs/contributing.md has a floor for files that there are none of",
         [pattern for _, pattern in table if not fnmatch.filter(graph, pattern)]),
        ("a file includes one from a floor above",
         [f"{name}:{n}: {inner}, of floor {floor[inner]}, from floor {floor[name]}" for name, n, inner in lines
          if (floor.get(inner) or 0) > (floor[name] or 99)]),
        ("two headers define a function", twice()),
        ("files include each other in a circle", [" -> ".join(c + c[:1]) for c in circles(graph)]),
    )
    for what, findings in checks:
        for finding in findings:
            print(f"{what}: {finding}")
    failed = sum(1 for _, findings in checks if findings)
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped  ({len(graph)} headers, {len(lines)} includes)")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
