"""test_moegen.py -- the generator: names, sentences, stable bytes, --check, bundles, a new row.

    python3 codegen/test_moegen.py [quick [OPTION]]        last line: N passed, N failed, N skipped

quick: of nonsense, bad rows and broken files one in so many (part); two seeds; no sm90 rows in the bundle for nvcc,
which gets OPTION.  Works in copies of the repository under build/; compiles with $CC (cc), and with nvcc where there is
one."""
import contextlib, io, os, platform, re, shutil, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import moegen, rules

CC = (os.environ.get("CC") or "cc").split()
CXX = os.environ["CXX"] if "CXX" in os.environ else shutil.which("c++")
NVCC = os.environ["NVCC"] if "NVCC" in os.environ else shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
os.environ["PYTHONPATH"] = os.path.join(ROOT, "build", "pylib")                      # where ./moek may have put Jinja2
QUICK = sys.argv[1:2] == ["quick"]
passed = failed = skipped = parted = 0


def part(cases, of):
    """All, or in the quick set one in so many: over several lists others each time."""
    global parted
    cases = list(cases)
    if not QUICK:
        return cases
    parted += len(cases)
    return [c for i, c in enumerate(cases, parted - len(cases)) if i % of == 0]


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"failed: {what}")
    return ok


def skip(what):
    global skipped
    skipped += 1
    print(f"skipped: {what}")


def copy(name):
    """A copy of what the generator and the compilers read."""
    to = os.path.join(work, name)
    for part in ("codegen", "include", "templates", "generated"):
        shutil.copytree(os.path.join(ROOT, part), os.path.join(to, part), ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("kernels.toml", "models.toml", "rules.toml", "README.md"):
        if os.path.exists(os.path.join(ROOT, part)):
            shutil.copy(os.path.join(ROOT, part), to)
    os.mkdir(os.path.join(to, "docs"))
    shutil.copy(os.path.join(ROOT, "docs", "kernels.md"), os.path.join(to, "docs"))
    return to


def run(command, cwd=ROOT, **environment):
    """(status, stdout, stderr)"""
    r = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                       env={**os.environ, **environment})
    return r.returncode, r.stdout, r.stderr


def generate(root, *words, **environment):
    return run([sys.executable, os.path.join(root, "codegen", "moegen.py"), *words], root, **environment)


def compile_and_run(command, cwd, program, what):
    """The program's output, or None."""
    status, out, err = run(command, cwd)
    if not check(status == 0 and not err.strip(), f"{what}: {' '.join(command)}: {err[:600]}"):
        return None
    status, out, err = run([os.path.join(cwd, program)], cwd)
    return out if check(status == 0, f"{what}: exit status {status}: {out}{err}") else None


def tree(root):
    files = {}
    for name in sorted(os.listdir(os.path.join(root, "generated"))):
        with open(os.path.join(root, "generated", name), "rb") as f:
            files[name] = f.read()
    return files


# ---- names -----------------------------------------------------------------------------------------------------------

def test_names():
    generator = moegen.Generator(ROOT)
    manifest, rows = {**generator.manifest}, generator.rows
    manifest["quant"] = {**manifest["quant"], "mxfp4_a16": 99}                # a format with _ in its name
    more = [{"op": "up", "template": "t", "quant": q, "hidden": 7168, "arch": "sm80", "m": 4, "w": 8}
            for q in manifest["quant"]]
    for row in [{**row, "name": moegen.name_of(row)} for row in more] + rows:
        back = moegen.row_of(row["name"], manifest)
        want = {k: v for k, v in row.items() if k not in ("name", "template")}
        check(back == want, f"{row['name']} parses to {back}, not {want}")
        check(re.fullmatch(r"moek_[a-z0-9_]+", row["name"]) and "__" not in row["name"],
              f"{row['name']} is no good C name")
    for name in ("moek_up", "moek_up_bf16", "moek_fly_on_cpu", "moek_up_bf16_h0_on_z80_m8",
                 "moek_up_int3_h0_on_cpu_m8", ""):
        try:
            moegen.row_of(name, manifest)
            check(False, f"{name!r} was taken for a kernel name")
        except moegen.Bad as e:
            check(name in str(e), f"{name!r}: the sentence does not name it: {e}")


# ---- rows that cannot be ---------------------------------------------------------------------------------------------

GOOD = 'op = "up", template = "gemm_cpu", quant = "bf16", hidden = 0, arch = "cpu", m = 8'
BAD = [                                                # row, what the sentence must say
    (GOOD + ", warps = 4", "unknown key warps"),
    (GOOD.replace("up", "fly"), "op 'fly' is not one of route"),
    (GOOD.replace("bf16", "int3"), "quant 'int3' is not one of bf16"),
    (GOOD.replace('"cpu"', '"z80"'), "arch 'z80' is not one of cpu"),
    (GOOD + ', act = "silu"', "unknown key act"),
    (GOOD + ", inter = 8", "unknown key inter"),
    (GOOD.replace('"bf16"', "1"), "quant 1 is not one of bf16"),
    (GOOD.replace('op = "up", ', ""), "op is missing"),
    (GOOD.replace('template = "gemm_cpu", ', ""), "template is missing"),
    (GOOD.replace('arch = "cpu", ', ""), "arch is missing"),
    (GOOD.replace("m = 8", 'm = "8"'), "m must be a whole number, not '8'"),
    (GOOD.replace("m = 8", "m = true"), "m must be a whole number, not True"),
    (GOOD.replace("m = 8", "m = -8"), "m must be a whole number, not -8"),
    (GOOD.replace("hidden = 0", "hidden = 2048.5"), "hidden must be a whole number, not 2048.5"),
    (GOOD.replace("hidden = 0", "hidden = [2048, [4096]]"), "hidden must be a whole number, not [4096]"),
    (GOOD.replace("hidden = 0", "hidden = [2048, 2048]"), "is there twice"),
    (GOOD + " },\n  { " + GOOD.replace('"bf16"', '["fp16", "bf16"]'), "is also made by op=up"),
    (GOOD.replace("gemm_cpu", "gemm_magic"), "there is no templates/gemm_magic.h.j2"),
    (GOOD.replace("gemm_cpu", "gemm_mma").replace('"cpu"', '"sm80"') + ", n = 63, s = 4, w = 4", "n=63"),
    (GOOD.replace("gemm_cpu", "gemm_mma").replace('"cpu"', '"sm89"') + ", n = 64, s = 3, w = 4",
     "rows of sm89 are for e4m3"),
    (GOOD.replace("gemm_cpu", "gemm_mma").replace('"cpu"', '"sm120"') + ", n = 64, s = 3, w = 4",
     "rows of sm120 are for e4m3 and e2m1"),
    ('op = "combine", template = "combine_simt", hidden = 2049, arch = "sm80", t = 128',
     "hidden must be a multiple of 8"),
    (GOOD.replace(", m = 8", ""), "m is missing"),
    (GOOD.replace("m = 8", "m = 0"), "m must be from 1 to 8"),
    (GOOD.replace("m = 8", "m = 99999999999999999999"), "at most 16777216"),
    (GOOD.replace("m = 8", "m = " + 5000 * "9"), ".toml"),
    (GOOD + ", s = 3", "template gemm_cpu has no s"),
    (GOOD.replace("gemm_cpu", "route_cpu"), "template route_cpu serves op route, not up"),
    (GOOD.replace("gemm_cpu", "moek_act"), "moek_act.h.j2 is no template of a kernel"),
    (GOOD.replace('"gemm_cpu"', "1"), "template must be the name of a file"),
    (GOOD.replace("gemm_cpu", "../templates/gemm_cpu"), "template must be the name of a file"),
    (GOOD.replace('"up"', "[[\"up\"]]"), "op ['up'] is not one of route"),
    (GOOD.replace('"bf16"', "[]"), "quant is an empty list"),
    (GOOD.replace('"bf16"', "{ bf16 = 1 }"), "quant {'bf16': 1} is not one of"),
    (GOOD.replace('"cpu"', "1979-05-27"), "arch"),
]


def test_bad_rows():
    path = os.path.join(work, "rows.toml")
    for row, says in part(BAD, 5):
        with open(path, "w") as f:
            f.write("kernels = [\n  { " + row + " },\n]\n")
        status, out, err = generate(ROOT, "bundle", "--rows", path, "-o", os.path.join(work, "never.h"))
        good = status == 1 and says in err and "Traceback" not in err and err.count("\n") <= 3 and ".toml: " in err
        check(good, f"{row}: wants a sentence with {says!r}: status {status}: {err[-300:]}")
    check(not os.path.exists(os.path.join(work, "never.h")), "a bad row left a file")
    for text, says in (("kernels = [ {", "rows.toml"), ("kernels = [ { op = up } ]", "rows.toml"), ("", "no up row")):
        with open(path, "w") as f:
            f.write(text)
        status, out, err = generate(ROOT, "bundle", "--rows", path)
        check(status == 1 and says in err and "Traceback" not in err, f"{text!r}: {err[-300:]}")
    for words, says in part(((("--rows", "none.toml", "list"), "none.toml: no such file"),
                        (("bundle", "nothing_like_it"), "nothing_like_it is neither a format (bf16 "),
                        (("list", "nothing_like_it"), "nothing_like_it"), (("one",), "wants the names of kernels"),
                        (("row",), "KEY=VALUE"), (("write", "bf16"), "a word is for list"),
                        (("--check", "list"), "--check is for writing generated/"),
                        (("list", "-o", "x"), "-o is for bundle"), (("row", "--rows", path), "--rows is for list"),
                        (("list", "--prefix", "acme"), "--prefix is for bundle"), (("--from", "/no", "list"), "/no"),
                        (("one", "moek_nothing"), "moek_nothing"), (("--prefix", "Acme-1", "bundle"), "Acme-1"),
                        (("--prefix", "acme_moek"), "for bundle"), (("--rows", path), "--rows is for list"),
                        (("bundle", "combine"), "nor an architecture (cpu avx2"), (("row", "foo"), "KEY=VALUE"),
                        (("row", "op=up", "template=gemm_mma", "quant=bf16", "arch=sm80"), "hidden is missing"),
                        (("row", "op=route", "template=route_cpu", "arch=cpu", "op=up"), "op is there twice"),
                        (("row", "op=up", "template=gemm_cpu", "quant=bf16", "hidden=0", "arch=cpu", "m=\u00b2"),
                         "m must be a whole number"),
                        (("bundle", "cpu", "-o", os.path.join(work, "no", "such", "folder")), "No such file"),
                        (("bundle", "cpu", "-o", work), "Is a directory"),
                        (("-C", os.path.join(work, "nowhere")), "kernels.toml: no such file"),
                        (("--rows", work, "list"), "Is a directory")), 3):
        status, out, err = generate(ROOT, *words)
        check(status == 1 and says in err and "Traceback" not in err, f"{words}: {err[-300:]}")
    status, out, err = generate(ROOT, "row", *re.sub(r'["\s]', "", GOOD).split(","))
    check(status == 0 and out.strip() == "{ " + GOOD + " },", f"row: {out}{err}")


# ---- nonsense in every place -----------------------------------------------------------------------------------------

NONSENSE = ["1", "-1", "0.5", "nan", "inf", "true", '""', '"x"', '"up"', '"\\n"', '"\\u00b2"', "[]", "[1]",
            '["x", 1]', "[[1]]", "[[[]]]", "{}", "{ x = 1 }", "1979-05-27", "07:32:00", 4301 * "9",
            "[" * 2000 + "]" * 2000]


def sentence(root, words, what):
    """In this process, which is fast: whatever it says, no exception but Bad, and that in a few lines."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            moegen.main(["-C", root, *words])
    except moegen.Bad as e:
        return check(0 < len(str(e)) < 700 and str(e).count("\n") <= 3, f"{what}: {e}") and str(e)
    except SystemExit as e:
        return check(e.code == 2, f"{what}: exit status {e.code}")
    except Exception as e:
        return check(False, f"{what}: {type(e).__name__}: {e}")
    return check(True, what) and ""


def test_nonsense_rows():
    """Each key of a row, and each whole row, is nonsense in turn."""
    path = os.path.join(work, "nonsense.toml")
    pairs = [p.strip() for p in (GOOD + ", n = 1, s = 1, w = 1, t = 1, act = 1, inter = 1").split(",")]
    for nonsense in NONSENSE:
        texts = [f"kernels = {nonsense}", f"kernels = [{nonsense}]", f"{nonsense} = 1", f"other = {nonsense}"]
        texts += ["kernels = [ { " + ", ".join(p.split("=")[0] + "= " + nonsense if p == bad else p for p in pairs[:6] +
                                               [q for q in pairs[6:] if q == bad]) + " } ]" for bad in pairs]
        for text in part(texts, 13):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text + "\n")
            says = sentence(ROOT, ["--rows", path, "bundle"], text[:200])
            # A number where one is wanted, or an op, may be a row that can be; all else is refused.
            fits = nonsense in ("1", "[1]") and re.search(r"\b(m|hidden) = \[?1\b", text)
            check(says or fits or nonsense == '"up"' and 'op = "up"' in text, f"{text[:200]}: accepted")


def test_expert_names():
    """names of models.toml: each key is nonsense in turn, or missing, or one that does not go with the others."""
    root = copy("expert_names")
    path = os.path.join(root, "models.toml")
    text = moegen.read(path)
    row = {"models": '["a_b"]', "methods": '["gptq"]', "router": '"m.gate"', "gate": '"m.N.g"', "up": '"m.N.u"',
           "down": '"m.N.d"', "order": '"INTERLEAVED"', "turned": "1", "cut": "1"}

    def says(layers, experts, what):
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"names.layers = {layers}\nnames.experts = {experts}\n" + text[text.index("[models]"):])
        return sentence(root, ["list"], f"names: {what[:100]}")

    def row_of(**other):
        return "[{ " + ", ".join(f"{k} = {v}" for k, v in {**row, **other}.items() if v is not None) + " }]"
    check(not says('["a.L."]', row_of(), "a good row"), "names: a good row is refused")
    for nonsense in part(NONSENSE + ['["a.L"]', '["a."]', '["L.L."]'], 7):
        check(says(nonsense, row_of(), f"layers = {nonsense}"), f"names.layers = {nonsense[:100]}: accepted")
        check(says('["a.L."]', nonsense, f"experts = {nonsense}"), f"names.experts = {nonsense[:100]}: accepted")
        for key in row:
            fits = key in ("turned", "cut") and nonsense == "1" or key == "router" and nonsense in ('"x"', '"up"') or \
                key == "methods" and nonsense == "[]"
            check(says('["a.L."]', row_of(**{key: nonsense}), f"{key} = {nonsense}") or fits,
                  f"names.experts: {key} = {nonsense[:100]}: accepted")
    for other in ({"models": None}, {"router": None}, {"down": None}, {"up": None}, {"gate_up": '"m.N.x"'},
                  {"down": '"m.d"'}, {"up": '"m.N.N.u"'}, {"unknown": "1"}, {"order": '"GATE_UP"'}):
        check(says('["a.L."]', row_of(**other), str(other)), f"names.experts: {other}: accepted")
    check(not says('["a.L."]', row_of(gate=None), "not gated"), "names: a row that is not gated is refused")


def test_rules():
    """Expressions of rules.toml in C give what Python makes of them; what is none is a sentence."""
    facts = {"a": "", "b": "", "c": ""}
    for text in ("a", "7", "a + b * c", "(a + b) * c", "a - (b - c)", "a - b - c", "a * b / (c + 1)",
                 "a / (b + 1) / (c + 1)", "a / (2 * (b + 1))", "a - b / 2", "a < b",
                 "a <= b and b <= c", "a == b or b != c and a > c",
                 "not a", "not (a < b)", "not a < b",
                 "(a < b) + (b < c)", "2 * a >= 3 * (b + c)", "a * 5000000000 > b", "(a or b) and c"):
        program = "#include <stdio.h>\nstruct f { long long a, b, c; };\n" \
                  "static long long rule(const struct f *f) { return " + rules.in_c(text, facts, "") + "; }\n" \
                  "int main(void) { struct f f; for (f.a = 0; f.a < 4; f.a++) for (f.b = 0; f.b < 4; f.b++) " \
                  "for (f.c = 0; f.c < 4; f.c++) printf(\"%lld\\n\", rule(&f)); return 0; }\n"
        path = os.path.join(work, "rule.c")
        with open(path, "w") as f:
            f.write(program)
        out = compile_and_run([*CC, "-std=c99", "-Wall", "-Werror", path, "-o", path + ".out"], work, path + ".out",
                              f"rule {text}")
        want = [int(bool(v) if re.search("and|or|not", text) else v)
                for v in (eval(text.replace("/", "//"), {}, {"a": a, "b": b, "c": c})
                          for a in range(4) for b in range(4) for c in range(4))]
        check(out is not None and [int(n) for n in out.split()] == want, f"rule {text}: {out}")
    for text in ("", "d", "a b", "a ** b", "a % b", "f(a)", "a < b < c", "1.5", "-a", "a if b else c", "'a'", "True",
                 "[a]", "a; b", "a = b", "lambda: a", "(", "99999999999999999", "1 / 0", "a / b", "a / (b * 1)",
                 "a / (2 - b)", "(a - b) / 2", "a / (b / 2)", "a / (0 + b)", "a / (b < c)", "(1 + (a - b)) / 7"):
        try:
            rules.in_c(text, facts, "here")
            check(False, f"rule {text}: accepted")
        except rules.Bad as e:
            check(str(e).startswith("here: "), f"rule {text}: {e}")
    root = copy("rules")
    path = os.path.join(root, "rules.toml")
    text = moegen.read(path)
    for was, now in (("note = \"x-in-order\"", "note = 1"),
                     ("{ value = 512, note", "{ when = \"by_row\", value = 512, note"),
                     ("[facts]", "[facts]\nBad = \"\""), ("[facts]", "[fact]"), ("about = \"1: comb", "about = 1 #"),
                     ("value = \"m - 8\"", "value = \"m - eight\""), ("lines = [", "lines = [ 7,"),
                     ("value = 48", "value = true"), ("[rules.x_sms]", "[rules.x_sms]\nextra = 1")):
        with open(path, "w") as f:
            f.write(text.replace(was, now, 1))
        check(was in text and sentence(root, ["list"], f"rules.toml: {now}"), f"rules.toml: {now}: accepted")
    with open(path, "w") as f:                         # a bound that changes changes one generated file
        f.write(text.replace("value = 48", "value = 47", 1))
    status, out, err = generate(root, "--check")
    check(status == 1 and "stale: generated/moek_rules.h\n" in out and out.count("stale") == 1,
          f"rules.toml: {out}{err}")


def test_nonsense_files():
    """Each key of kernels.toml and models.toml is nonsense in turn, or missing, or one too many; then whole files."""
    root = copy("nonsense")
    for name, line in (("kernels.toml", r"(?m)^(op|act|arch|devices|hidden|budget|formats\.\w+) *= .*$"),
                       ("models.toml", r"(?m)^(olmoe_7b) *= .*$")):
        path = os.path.join(root, name)
        text = moegen.read(path)
        for found in list(re.finditer(line, text)):
            for other in part([f"{found.group(1)} = {n}" for n in NONSENSE] + ["", "unknown = 1",
                                                                               "x " + found.group(0)], 13):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text[:found.start()] + other + text[found.end():])
                says = sentence(root, ["list"], f"{name}: {other[:100]}")
                check(says or other in ("hidden = [1]", "devices = {}") or
                      not other and found.group(1) in ("olmoe_7b", "devices"), f"{name}: {other[:100]}: accepted")
        with open(path, "w") as f:
            f.write(text)
    path = os.path.join(root, "models.toml")
    text = moegen.read(path)
    row = re.search(r"(?m)^olmoe_7b *= \{ (.*) \}$", text)
    pairs = row.group(1).split(", ") + [k + " = 0" for k in moegen.MODEL_MAY] + ["unknown = 0"]
    for bad in pairs:
        key = bad.split()[0]
        for nonsense in part(NONSENSE + ([None] if key in moegen.MODEL else []), 13):
            kept = [p for p in row.group(1).split(", ") if p.split()[0] != key] + ([f"{key} = {nonsense}"] if nonsense
                                                                                  else [])
            with open(path, "w", encoding="utf-8") as f:
                f.write(text[:row.start(1)] + ", ".join(kept) + text[row.end(1):])
            says = sentence(root, ["list"], f"models.toml: {key} = {str(nonsense)[:100]}")
            fits = (key in ("hidden", "inter", "experts", "topk") or key in moegen.MODEL_MAY) and \
                nonsense in ("1", "-1", "0.5")
            check(says or fits, f"models.toml: {key} = {str(nonsense)[:100]}: accepted")
    with open(path, "w") as f:
        f.write(text)
    for name in ("kernels.toml", "models.toml", "rules.toml", os.path.join("include", "moek", "plan", "fields.h"),
                 os.path.join("templates", "map_cpu.h.j2"), os.path.join("templates", "moek_enums.h.j2"), "README.md"):
        path = os.path.join(root, name)
        with open(path, "rb") as f:
            before = f.read()
        for what, bytes_ in part((("no UTF-8", b"\xff\xfe\x80" + before), ("zeros", b"\0" * 100), ("none", None),
                                  ("a folder", 0), ("{% if", before + b"{% if"),
                                  ("{{ 1 / 0 }}", b"{{ 1 / 0 }}" + before)), 9):
            os.remove(path)
            if bytes_ == 0:
                os.mkdir(path)
            elif bytes_ is not None:
                with open(path, "wb") as f:
                    f.write(bytes_)
            status, out, err = generate(root, "--check")
            check(status in (0, 1, 2) and "Traceback" not in err and err.count("\n") <= 3,
                  f"{name}: {what}: {status}: {err[-400:]}")
            if name.endswith(".toml") or what in ("no UTF-8", "a folder"):
                check(status == 1 and (name.split(os.sep)[-1] in err or what == "none"),
                      f"{name}: {what}: {err[-300:]}")
            if bytes_ == 0:
                os.rmdir(path)
            with open(path, "wb") as f:
                f.write(before)
    check(generate(root, "--check")[0] == 0, "everything is as it was")


# ---- templates and ops -----------------------------------------------------------------------------------------------

def test_serves():
    """Every template with every op and machine: what kernels.toml has, and no more."""
    manifest = moegen.load(os.path.join(ROOT, "kernels.toml"))
    generator = moegen.Generator(ROOT)
    manifest, rows = generator.manifest, generator.rows
    serves = {(r["template"], r["op"], r["arch"]) for r in rows}
    for template in generator.templates():
        like = next((r for r in rows if r["template"] == template), None)
        for op in manifest["op"]:
            for arch in manifest["arch"]:
                near = [r for r in rows if r["template"] == template and r["op"] == op]
                best = next((r for r in near if r["arch"] == arch), near[0] if near else like or rows[0])
                row = {**best, "template": template, "op": op, "arch": arch}
                row["name"] = moegen.name_of(row)
                try:
                    generator.kernel(row)
                    check((template, op, arch) in serves, f"{template} takes op {op}, arch {arch}")
                except moegen.Bad as e:
                    check((template, op, arch) not in serves and template in str(e), f"{template} {op} {arch}: {e}")
        for key in moegen.AXES + moegen.SCHEDULE:      # a key too few, or one too many
            row = {k: v for k, v in (like or rows[0]).items() if k != key}
            if like and key not in like:
                row[key] = "bf16" if key == "quant" else 8
            row["template"] = template
            row["name"] = moegen.name_of(row)
            try:
                generator.kernel(row)
                check(False, f"{template}: {moegen.text_of(row)} was taken")
            except moegen.Bad as e:
                check(not like or key in str(e), f"{template}, {key}: {e}")


def test_columns():
    """A template that leaves out a column of its op, or says nonsense in one, is one sentence, which names it."""
    said, real = {}, moegen.columns.checked

    def note(op, of, tiled, host):
        said[op, str(of), host] = op, of, tiled, host
        return real(op, of, tiled, host)
    moegen.columns.checked = note
    try:
        moegen.Generator(ROOT).kernels()
    finally:
        moegen.columns.checked = real
    ops = {op for op, _, _, _ in said.values()}
    check(ops == set(moegen.load(os.path.join(ROOT, "kernels.toml"))["op"]) and len(said) > 30, f"{len(said)}: {ops}")
    for op, of, tiled, host in said.values():
        for name in moegen.columns.known():
            if not moegen.columns.has(name, op, host):
                continue
            changes = [({k: v for k, v in of.items() if k != name}, f"columns lacks {name}, which each")]
            if name not in moegen.columns.TRAITS:
                changes.append(({**of, name: "sorted"}, "sorted"))
            for change, says in changes:
                try:
                    real(op, change, tiled, host)
                    check(False, f"{op}: {change} was taken")
                except moegen.columns.Bad as e:
                    check(says in str(e), f"{op}, {name}: {e}")
    for op, of, tiled, says in (("up", {"height": 1}, "lines", "height, which is no column"), ("map", None, None, None),
                                ("route", None, None, "lacks early"),
                                ("layer", {"reads": "lines", "fp16": 1, "scratch": 0, "max_tokens": 0, "ring": 0,
                                           "pages": 0}, "fragments",
                                 "tiled ones of this format are fragments")):
        try:
            real(op, of, tiled, False)
            check(not says, f"{op}: {of} was taken")
        except moegen.columns.Bad as e:
            check(says and says in str(e), f"{op}: {e}")
    root = copy("columns")                             # the generator asks all that
    path = os.path.join(root, "templates", "gemm", "wide.j2")
    text = moegen.read(path)
    with open(path, "w") as f:
        f.write(text.replace('"gathers": 1, ', ""))
    says = sentence(root, ["--check"], "wide.j2 without gathers")
    check(says and "templates/gemm/wide.j2: op=up template=gemm_wide" in says and "columns lacks gathers" in says, says)


def test_formats():
    """A format that no template decodes is one sentence; nonsense in each field of a format, too."""
    root = copy("formats")
    path = os.path.join(root, "kernels.toml")
    text = moegen.read(path)
    fine = {"number": "98", "w": '"e4m3"', "x": '"e4m3"', "w_scale": '["f32", 128, 128]', "x_scale": '["f32", 1, 128]',
            "static": "false", "ue8m0": "false", "about": '["a", "b"]'}

    def says(fields, row_template):
        line = "formats.fp8x = { " + ", ".join(f"{k} = {v}" for k, v in fields.items() if v) + " }"
        row = '  { op = "up", template = "%s", quant = "fp8x", hidden = 0, arch = "%s", m = %s },'
        arch = {"gemm_cpu": "cpu", "gemm_mma": "sm80"}.get(row_template, "sm90")
        more = {"gemm_cpu": "8", "gemm_mma": "16, n = 32, s = 5, w = 4"}
        more = more.get(row_template, "16, n = 128, s = 11, w = 12")
        with open(path, "w") as f:                     # no other kernel, which would take most of the time
            f.write(text.replace("formats.bf16 ", line + "\nformats.bf16 ").partition("kernels = [")[0] +
                    "kernels = [\n" + row % (row_template, arch, more) + "\n]\n")
        return sentence(root, ["--check"], line)
    for template in ("gemm_cpu", "gemm_mma", "gemm_wgmma"):
        check("knows" not in (says(fine, template) or ""), f"{template}: a copy of fp8b128 is refused")
    for template in ("gemm_mma", "gemm_wgmma"):
        for w, x in (('["f32", 1, 32]', '["f32", 1, 32]'), ('["f32", 128, 128]', '["f32", 1, 0]')):
            check("knows scales" in (says({**fine, "w_scale": w, "x_scale": x}, template) or ""),
                  f"{template}: {w} {x}")
    for field, nonsense in (("number", "0"), ("number", '"98"'), ("number", "5"), ("w", '"e5m2"'), ("x", "8"),
                            ("x", ""), ("w_scale", '["f64", 1, 1]'), ("x_scale", '["f32", 1]'),
                            ("x_scale", '["f32", -1, 128]'), ("w_scale", '["f32", 1, [32]]'),
                            ("w_scale", '["f32", 1, [32, 32]]'), ("w_scale", '["f32", 1, [1, 2, 4, 8, 16]]'),
                            ("x_scale", '["f32", 1, [32, 64]]'), ("w", '"T"'), ("x_scale", ""), ("x", '"T"'),
                            ("global_scale", "1"), ("zero", "true"), ("granule", "0"), ("static", "1"),
                            ("ue8m0", '"no"'),
                            ("expands", '"fp9"'), ("expands", '"bf16"'), ("expands", '["fp8c"]'), ("about", '["a"]'),
                            ("about", ""), ("unknown", "1")):
        check(says({**fine, field: nonsense}, "gemm_cpu"), f"{field} = {nonsense}: accepted")
    stays = {**fine, "x": '"T"', "x_scale": "", "static": "true"}
    check("static goes with an x_scale" in (says(stays, "gemm_cpu") or ""), "static without an x_scale")
    check("knows" in (says({**fine, "static": "true"}, "gemm_wgmma") or ""), "gemm_wgmma: a global scale of x")
    check(not says({**fine, "static": "true"}, "gemm_cpu"), "gemm_cpu: a global scale of x is refused")


BLOCKS = r"""
#include <math.h>
#include <stdio.h>
#include <string.h>
#define MOEK_IMPLEMENTATION
#include "moek.h"
#include "moek/format.h"
enum { H = 200, I = 136, E = 2, T = 3 };
static uint16_t x[T * H], y[T * H], scale[2][E * H * 7];
static uint8_t w[2][E * H * I], zero[2][E * H * 7];
static float global[2][E], logits[T * E];
static char workspace[1 << 20];
static unsigned state = 1;
static unsigned rnd(unsigned n) { state = state * 1664525u + 1013904223u; return (state >> 8) % n; }
static double at(int down, int e, int row, int k, int block, int zeros)
{
    const int columns = down ? I : H, rows = down ? H : I, groups = block ? (columns + block - 1) / block : 1;
    const size_t r = (size_t)e * rows + row, g = r * groups + (block ? k / block : 0);
    return ((double)moek_from_e4m3_(w[down][r * columns + k]) - (zeros ? moek_from_e4m3_(zero[down][g]) : 0)) *
           moek_from_bf16_(scale[down][g]) * global[down][e];
}
/* The largest distance from double, of what a layer of one expert a token should be. */
static double worst(int block, int zeros)
{
    double most = 0;
    int t, j, k;
    for (t = 0; t < T; t++) {
        const int e = logits[t * E] < logits[t * E + 1];
        double h[I];
        for (j = 0; j < I; j++) {
            double sum = 0;
            for (k = 0; k < H; k++) sum += moek_from_bf16_(x[t * H + k]) * at(0, e, j, k, block, zeros);
            h[j] = moek_from_bf16_(moek_to_bf16_((float)(sum > 0 ? sum : 0)));
        }
        for (j = 0; j < H; j++) {
            double sum = 0;
            for (k = 0; k < I; k++) sum += h[k] * at(1, e, j, k, block, zeros);
            sum = fabs(sum - moek_from_bf16_(y[t * H + j])) / (1 + fabs(sum));
            if (sum > most) most = sum;
        }
    }
    return most;
}
int main(int count, char **words)
{
    moek_config c;
    moek_plan plan;
    moek_weights weights;
    moek_args a;
    int block, i, d;
    for (i = 0; i < T * H; i++) x[i] = moek_to_bf16_((float)rnd(200) / 100 - 1);
    for (i = 0; i < T * E; i++) logits[i] = (float)rnd(100);
    for (d = 0; d < 2; d++) {
        for (i = 0; i < E * H * I; i++) w[d][i] = moek_to_e4m3_((float)rnd(200) / 100 - 1);
        for (i = 0; i < E * H * 7; i++) {
            zero[d][i] = moek_to_e4m3_((float)rnd(200) / 400);
            scale[d][i] = moek_to_bf16_((float)(50 + rnd(100)) / 1000);
        }
        for (i = 0; i < E; i++) global[d][i] = 0.5f + (float)rnd(100) / 100;
    }
    for (block = 0; block <= 64; block += 32) for (d = 0; d < 2; d++) {
        memset(&c, 0, sizeof c); memset(&weights, 0, sizeof weights); memset(&a, 0, sizeof a);
        c.hidden = H; c.inter = I; c.experts = E; c.topk = 1; c.quant = MOEK_OPEN8; c.act = MOEK_RELU_NO_MUL;
        c.max_tokens = T; c.block = block; c.backend = MOEK_BACKEND_CPU; c.routing = MOEK_ROUTE_TOPK_SOFTMAX;
        if (moek_plan_init(&plan, &c) != MOEK_OK) { printf("%d: no: %s\n", block, plan.why); continue; }
        weights.w_up = w[0]; weights.w_down = w[1]; weights.w_up_scale = scale[0]; weights.w_down_scale = scale[1];
        if (moek_plan_bind(&plan, &weights) == MOEK_OK || !strstr(plan.why, "w_up_global_scale")) return 1;
        weights.w_up_global_scale = global[0]; weights.w_down_global_scale = global[1];
        weights.w_up_zero = zero[0];
        if (moek_plan_bind(&plan, &weights) == MOEK_OK || !strstr(plan.why, "w_down_zero")) return 2;
        weights.w_up_zero = d ? zero[0] : NULL; weights.w_down_zero = d ? zero[1] : NULL;
        if (moek_plan_bind(&plan, &weights) != MOEK_OK) { puts(plan.why); return 3; }
        if (moek_workspace_size(&plan) > sizeof workspace - 256) return 4;
        a.tokens = T; a.x = x; a.router_logits = logits; a.y = y;
        a.workspace = (void *)(((uintptr_t)workspace + 255) / 256 * 256); a.workspace_size = sizeof workspace - 256;
        if (moek_run(&plan, &a, NULL) != MOEK_OK) return 5;
        printf("%d: %s %d %s\n", block, plan.chosen.up[0]->name, plan.chosen.up[0]->block,
               worst(block, d) < 0.006 ? "right" : "wrong");
    }
    return count < 0 || !words;
}
"""


def test_planes():
    """Panels move codes of a block by words."""
    root = copy("planes")
    path = os.path.join(root, "kernels.toml")
    text = moegen.read(path)
    line = 'blocks.q9_0 = { type = 61, bytes = 4, columns = 4, w = "u4b8", code = [[2, 4, 4]], ' \
           'scale = ["fp16", 4, [0, 16, 1]] }\n'
    with open(path, "w") as f:
        f.write(text.replace("blocks.q4_0 ", line + "blocks.q4_0 "))
    says = sentence(root, [], "a block of 4 columns")
    check("must be whole words of 4 bytes" in (says or ""), f"4 columns of a plane: {says}")


def test_blocks():
    """A made-up format that leaves the columns of a scale open, with global scales and zero points, on the CPU."""
    root = copy("blocks")
    path = os.path.join(root, "kernels.toml")
    text = moegen.read(path)
    line = 'formats.open8 = { number = 99, w = "e4m3", x = "T", w_scale = ["T", 1, [32, 0]], global_scale = true, ' \
           'zero = "optional", about = ["a", "b"] }\n'
    rows = '\n  { op = "quant", template = "quant_cpu", quant = "open8", hidden = 0, arch = "cpu" },' + "".join(
        '\n  { op = "%s", template = "gemm_cpu", quant = "open8", hidden = 0%s, arch = "cpu", m = 8 },'
        % (op, "%s") for op in ("up", "down"))

    def write(blocks):
        with open(path, "w") as f:
            f.write(text.replace("formats.bf16 ", line + "formats.bf16 ")
                    .replace("kernels = [", "kernels = [" + rows % (blocks, blocks)))
        return sentence(root, [], f"block {blocks}")
    for blocks, says in (("", "block is missing"), (", block = 64", "block must be one of [32, 0]"),
                         (", block = -1", "block must be a whole number"), (', block = "x"', "block must be a whole")):
        check(says in (write(blocks) or ""), f"block {blocks}: wants {says}")
    check(not write(", block = [32, 0]"), "a format with two blocks is refused")
    names = [r["name"] for r in moegen.Generator(root).rows if r.get("quant") == "open8" and "block" in r]
    check(names == [f"moek_{op}_open8_h0_b{b}_on_cpu_m8" for op in ("up", "down") for b in (32, 0)], f"names {names}")
    fixed = GOOD.replace("hidden = 0", "hidden = 0, block = 32")
    with open(os.path.join(root, "fixed.toml"), "w") as f:
        f.write("kernels = [ { " + fixed + " } ]")
    check("format bf16 says the block" in (sentence(root, ["--rows", os.path.join(root, "fixed.toml"), "bundle"], fixed)
                                           or ""), "block of a format that says it itself")
    with open(os.path.join(root, "blocks.c"), "w") as f:
        f.write(BLOCKS)
    want = {"0": "moek_up_open8_h0_b0_on_cpu_m8 0 right", "32": "moek_up_open8_h0_b32_on_cpu_m8 32 right",
            "64": "no: config.block is 64; of open8 it is one of 32 0"}
    for options, left in (([], "0 32"), (["-DMOEK_BLOCK=32"], "0 32"), (["-DMOEK_WANT_BLOCK(b)=((b)!=32)"], "0")):
        out = compile_and_run(CC + ["-std=c99", "-O0" if QUICK else "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude",
                                    "-DMOEK_ARCH=0", "-DMOEK_QUANT=MOEK_OPEN8", *options, "blocks.c", "-o", "blocks",
                                    "-lm"], root, "blocks", f"blocks {options}")
        for block in ("0", "32", "64") if out else ():
            lines = [ln for ln in out.splitlines() if ln.startswith(block + ": ")]
            says = want[block] if block in left or block == "64" else "no: CPU: no kernel"
            told = "this build left them out: compile the file with MOEK_IMPLEMENTATION without MOEK_BLOCK" in out
            check(told == ("32" not in left) and "add to kernels.toml" not in out, f"{options}: left out: {out}")
            check(len(lines) == 2 and all(says in ln for ln in lines), f"{options}: block {block}: {out}")


# ---- fields ----------------------------------------------------------------------------------------------------------

def declared(text, struct):
    """The fields of a struct as its declaration has them."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    body = re.search(r"typedef struct(?: " + struct + r")? \{([^}]*)\} " + struct + ";", text).group(1)
    fields = []
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        function = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
        names = [function.group(1)] if function else [re.search(r"(\w+)\s*(?:\[\w+\]\s*)*$", n.strip()).group(1)
                                                      for n in declaration.split(",")]
        fields += names
    return fields


def test_fields():
    """moek/plan/fields.h has every field of every struct that it names, in order, and names every public struct."""
    header = "".join(moegen.read(os.path.join(ROOT, "include", "moek", name)) for name in ("api.h", "stages.h"))
    ops = moegen.read(os.path.join(ROOT, "include", "moek", "ops.h"))
    fields = moegen.read(os.path.join(ROOT, "include", "moek", "plan", "fields.h"))
    structs = [s for s in re.findall(r"(?m)^\} (moek_\w+);", header) if s != "moek_status"] + \
              ["moek_quant_args"]
    check(len(structs) == 10, f"{len(structs)} structs: {structs}")
    for struct in structs:
        want = declared(ops if struct == "moek_quant_args" else header, struct)
        try:
            have = moegen.fields_of(fields, struct[5:].upper())
        except moegen.Bad as e:
            have = [str(e)]
        check(have == want, f"{struct}: moek/plan/fields.h has {[f for f in have if f not in want]} too many, lacks "
                            f"{[f for f in want if f not in have]}, or has another order")
        check(re.search(r'"' + struct[5:] + r'", #field, offsetof\(' + struct + r", field\)", fields),
              f"{struct}: moek_offset does not know it")


# ---- bytes -----------------------------------------------------------------------------------------------------------

def test_stable():
    root = copy("stable")
    shutil.rmtree(os.path.join(root, "generated"))
    seen = None
    for seed in ("0", "12345") if QUICK else ("0", "1", "12345"):
        start = os.times()
        status, out, err = generate(root, PYTHONHASHSEED=seed, LC_ALL="C", TZ="UTC")
        seconds = sum(os.times()[2:4]) - sum(start[2:4])                   # of the processor, whoever else works here
        check(status == 0, f"PYTHONHASHSEED={seed}: {err}")
        check(seconds < 5, f"generation took {seconds:.1f} s, 5 are allowed")
        now = tree(root)
        check(seen is None or now == seen, f"PYTHONHASHSEED={seed} gives other bytes: "
                                           f"{[n for n in now if now[n] != (seen or now).get(n)][:5]}")
        seen = now
        if seed != "12345":
            shutil.rmtree(os.path.join(root, "generated"))
    print(f"generation: {seconds:.2f} s, {len(seen)} files")
    before = {n: os.stat(os.path.join(root, "generated", n)).st_mtime_ns for n in seen}
    status, out, err = generate(root)
    check("0 changed, 0 removed" in out, f"a second run changed something: {out}")
    check(before == {n: os.stat(os.path.join(root, "generated", n)).st_mtime_ns for n in seen},
          "a second run touched files")
    check(seen == tree(ROOT), f"generated/ here is not what this Python makes: "
                              f"{[n for n in seen if seen[n] != tree(ROOT).get(n)][:5]}")
    for name, text in seen.items():
        check(root.encode() not in text and b"\r" not in text and text.endswith(b"\n"),
              f"{name}: a path, a carriage return or no end of line")
    of_root = moegen.Generator(ROOT)
    files = of_root.files()
    check(all(n in seen for n in files) and {r["file"] for r in of_root.rows} <= set(files), "each row has a file")
    kinds = {}                                         # of each: an instance, a text of its own, a text that rows share
    for row in of_root.rows:
        part = files[row["file"]].partition(f", {row['name']})\n")[2].partition("\n#if MOEK_INSTANCE_(")[0]
        kind = "instance" if row["body"] else "shared" if moegen.BODY in part else "own"
        kinds.setdefault((kind, row["file"] if row["body"] else ""), (row, part))
    check(len({kind for kind, _ in kinds}) == 3, f"kinds of kernels: {list(kinds)}")
    for (kind, _), (row, part) in kinds.items():
        status, out, err = generate(root, "one", row["name"])
        pieces = [part.partition("\n#endif\n")[0] if kind != "shared" else "", f"shared memory {row['shared']}\n"]
        if kind == "shared":
            body = files[re.search(r'#include "(.*_body[.]h)"', part).group(1)]
            pieces.append(body.partition(" */\n")[2].strip("\n"))
        if kind == "instance":
            pieces.append(moegen.read(os.path.join(ROOT, "templates", row["body"])).partition("*/")[0])
        whole = out.count("#if MOEK_INSTANCE_(") == 1 and moegen.BODY not in out
        check(whole and all(piece in out for piece in pieces),
              f"one {row['name']} ({kind}) prints something else than the kernel in one piece")
    words = generate(root, "list", "up", "cpu")[1].split()
    names = [r["name"] for r in of_root.rows]
    check(words == [name for name in names if "up" in name and "cpu" in name], f"list up cpu: {words}")


def test_objects():
    """kernels.ninja: each CUDA kernel is in one object of its file, by the options that the edge gives."""
    generator = moegen.Generator(ROOT)
    edges = re.findall(r"build build/(sm\d+/\S+): split_nvcc generated/(\S+)\n(?:  row = (.*)\n)?",
                       generator.files()["kernels.ninja"])
    rows = [r for r in generator.rows if r["arch"].startswith("sm")]
    times = dict.fromkeys((r["name"] for r in rows), 0)
    for _, file, options in edges:
        quants, block = re.findall(r"=MOEK_(\w+)", options), re.search(r"==(\d+)\)", options)
        for r in rows:
            times[r["name"]] += r["file"] == file and (not block or r.get("block") == int(block.group(1))) and \
                (not quants or {r.get(key, "").upper() for key in ("quant", "quant_down")} <= {"", *quants})
    check(rows and set(times.values()) == {1}, f"in none or several: {[n for n, t in times.items() if t != 1][:5]}")


def test_check():
    root = copy("check")
    status, out, err = generate(root, "--check")
    check(status == 0, f"--check of the repository as it is: {out}{err}")
    folder = os.path.join(root, "generated")
    names = [n for n in sorted(os.listdir(folder)) if re.search("_(cpu|sm80)[.]h$", n)]
    with open(os.path.join(folder, names[0]), "a") as f:
        f.write("/* by hand */\n")
    os.remove(os.path.join(folder, names[1]))
    open(os.path.join(folder, "old_cpu.h"), "w").close()
    with open(os.path.join(root, "docs", "kernels.md"), "a") as f:
        f.write("by hand\n")
    before = tree(root)
    status, out, err = generate(root, "--check")
    lines = out.splitlines()
    check(status == 1, "--check found nothing")
    check(f"stale: generated/{names[0]}" in lines, f"no stale: {out}")
    check(f"missing: generated/{names[1]}" in lines, f"no missing: {out}")
    check("left over: generated/old_cpu.h" in lines, f"no left over: {out}")
    check("stale: docs/kernels.md" in lines, f"a page by hand: {out}")
    check(len(lines) == 5, f"four findings and a summary: {out}")
    check(tree(root) == before, "--check wrote something")
    generate(root)
    status, out, err = generate(root, "--check")
    check(status == 0 and tree(root) == tree(ROOT), f"writing repairs all: {out}")
    with open(os.path.join(root, "kernels.toml")) as f:
        text = f.read()
    with open(os.path.join(root, "kernels.toml"), "w") as f:
        f.write(re.sub(r"(budget = \{ lines = )\d+", r"\g<1>3", text))
    status, out, err = generate(root, "--check")
    check(status == 1 and "over budget: " in out and "allows 3" in out, f"the budget: {out}")


def test_more_rows():
    """As docs/contributing.md says: one more row of each op of each template that has stages; --check then passes."""
    root = copy("more_rows")
    generator, have, more = moegen.Generator(root), {}, []
    for r in generator.rows:
        if "s" in r:
            have.setdefault((r["op"], r["template"], r["arch"], r["quant"]), r)
    for r in part(have.values(), 5):
        for s in range(r["s"] - 1, 1, -1):
            row = {k: r[k] for k in moegen.KEYS if k in r}
            row["s"] = s
            row["name"] = moegen.name_of(row)
            if row["name"] not in {old["name"] for old in generator.rows}:
                try:
                    generator.body(row)
                except moegen.Bad:
                    continue
                more.append(row)
                break
    check(len(more) >= len(have) // 10, f"{len(more)} more rows of {len(have)}")
    path = os.path.join(root, "kernels.toml")
    text = moegen.read(path).rstrip()
    with open(path, "w") as f:
        f.write(text[:-1] + "".join(f"  {moegen.toml_of(r)}\n" for r in more) + "]\n")
    status, out, err = generate(root)
    check(status == 0, f"{len(more)} more rows: {err}")
    status, out, err = generate(root, "--check")
    check(status == 0 and f"{len(generator.rows) + len(more)} kernels: up to date" in out,
          f"--check with {len(more)} more rows: {out}{err}")


def test_python():
    """A Python without Jinja2 (-S: without packages) gets a sentence, with the command to type."""
    status, out, err = run([sys.executable, "-S", "-E", os.path.join(ROOT, "codegen", "moegen.py"), "list"])
    check(status == 1 and "./moek gen" in err and "Traceback" not in err and err.count("\n") == 1, f"no Jinja2: {err}")
    status, out, err = run([os.path.join(ROOT, "moek"), "gen", "list", "up", "_on_cpu_m8", "bf16"], work,
                           PYTHON=sys.executable)
    check(status == 0 and out == "moek_up_bf16_h0_on_cpu_m8\n", f"./moek gen list: {out}{err}")
    status, out, err = run([os.path.join(ROOT, "moek"), "gen", "bundle", "bf16", "cpu", "-o", "here.h"], work,
                           PYTHON=sys.executable)
    check(status == 0 and os.path.exists(os.path.join(work, "here.h")), f"./moek gen bundle -o here.h: {out}{err}")


# ---- bundles ---------------------------------------------------------------------------------------------------------

MAIN = r"""
#include <stdio.h>
%(first)s
#include "%(header)s"
int main(void)
{
    int i, n, version = moek_version();
    const moek_kernel *k = moek_kernels(&n);
    printf("%%d rows %%d\n", n, version);
    for (i = 0; i < n; i++) printf("%%s\n", k[i].name);
    return 0;
}
"""


PLAN = r"""
#include <stdio.h>
#define MOEK_IMPLEMENTATION
#include "fp8b128.h"
int main(void)
{
    moek_config config = MOEK_DEEPSEEK_V3;
    moek_plan plan;
    config.max_tokens = 4;
    puts(moek_plan_init(&plan, &config) == MOEK_OK ? "ok" : plan.why);
    return 0;
}
"""


def compiles(path, what, *options):
    """Its kernels of CPUs as C99, and as C++11 where there is a C++ compiler, without a warning."""
    for name, first in (("c", CC + ["-std=c99"]), ("cc", [*CXX.split(), "-std=c++11"] if CXX else None)):
        source = os.path.join(work, "bundle_alone." + name)
        with open(source, "w") as f:
            f.write(f'#define MOEK_IMPLEMENTATION\n#include "{path}"\n')
        if not first:
            skip(f"no C++ compiler: {what}")
            continue
        strict = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-O0", "-fsyntax-only"]
        status, _, err = run(first + strict + [*options, source])
        check(status == 0 and not err.strip(), f"{what} {' '.join(options)}, {' '.join(first)}: {err[:600]}")


def rows_of(path):
    """The rows that a bundle says that it has."""
    head = moegen.read(path).partition("*/")[0]
    return re.findall(r"moek_\w+_on_\w+", head.partition("rows:")[2])


def test_bundle_words():
    """Any of the formats, on any of the architectures; each bundle has what its plans ask for, or is refused."""
    path, generator = os.path.join(work, "words.h"), moegen.Generator(ROOT)
    formats, arches = list(generator.manifest["formats"]), list(generator.manifest["arch"])
    for words in part([[q] for q in formats] + [[a] for a in arches] + [[formats[0], a] for a in arches] +
                      [formats[:2], formats[-2:] + arches[:2], arches[:2]], 16):
        status, out, err = generate(ROOT, "bundle", *words, "-o", path)
        asked = [w for w in words if w in arches] or arches
        hosts = [a for a in arches if not a.startswith("sm")]
        takes = {"cpu": hosts, "avx2": ["cpu", "avx2"], "avx512": ["cpu", "avx2", "avx512"],
                 "amx": ["cpu", "avx2", "avx512", "amx"], "neon": ["cpu", "neon"], "i8mm": ["cpu", "neon", "i8mm"],
                 "sm89": ["sm80", "sm89"], "sm120": ["sm80", "sm89", "sm120"]}
        taken = [a for arch in asked for a in takes.get(arch, [arch])]
        of = [None] + ([w for w in words if w in formats] or formats)
        want = [r["name"] for r in generator.rows if r.get("quant") in of and r.get("quant_down") in of and
                (r["arch"] in taken or r["arch"] == "sm80" and "sm90" in asked and r["op"] not in moegen.GEMMS)]
        check(status == 0 and rows_of(path) == want, f"bundle {' '.join(words)}: {err}{rows_of(path)}")
        if status == 0 and "cpu" in taken:
            compiles(path, f"bundle {' '.join(words)}")
    rows = os.path.join(work, "some_rows.toml")
    some = [r for r in generator.rows if r["arch"] != "sm80" and r.get("quant") in (None, *formats[:2])]
    for what, kept, says in (
            ("GEMMs only", [r for r in some if r["op"] in ("up", "down")],
             "no row of route, map, sort, quant, combine"),
            ("no quant of one format",
             [r for r in some if r["arch"] == "cpu" and (r["op"] != "quant" or r["quant"] != formats[1])],
             f"{formats[1]} on cpu has GEMMs, and no row of quant for them"),
            ("down of other tiles", [{**r, "m": 4} if r["op"] == "down" else r for r in some
                                     if r["arch"] == "cpu" and r["template"] != "gemm_panel"],
             "no row of down for them (down: with m"),
            ("sm90 without sm80", some, "on sm90 has GEMMs, and no row of route, map, sort, quant, combine"),
            ("a layer alone", [r for r in some if r["op"] != "up" or r["arch"] == "cpu"], "no row of up for them"),
            ("whole", [r for r in some if r["arch"] == "cpu"], "")):
        with open(rows, "w") as f:
            f.write("kernels = [\n" + "".join(moegen.toml_of(r) + "\n" for r in kept) + "]\n")
        status, out, err = generate(ROOT, "bundle", "--rows", rows, "-o", path)
        check((status == 1 and says in err) if says else status == 0, f"bundle of rows, {what}: {err}")


def test_bundle():
    folder = os.path.join(work, "bundle")
    os.makedirs(folder)
    warn = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O0"]
    status, out, err = generate(ROOT, "bundle", "-o", os.path.join(folder, "all.h"))
    check(status == 0, f"bundle: {err}")
    with open(os.path.join(folder, "all.h")) as f:
        check(not re.search(r'^\s*#\s*include\s*"', f.read(), re.M), "the bundle includes a file of ours")
    with open(os.path.join(folder, "main.c"), "w") as f:
        f.write(MAIN % {"first": "#define MOEK_IMPLEMENTATION", "header": "all.h"})
    out = compile_and_run(CC + warn + ["main.c", "-o", "main", "-lm"], folder, "main", "the whole bundle")
    quants = [f"-DMOEK_QUANT=MOEK_{quant.upper()}" for quant in moegen.Generator(ROOT).manifest["formats"]]
    archs = [f"-DMOEK_ARCH={a}" for a in (0, 2, 5, 6, 12, 13)] + ["-DMOEK_WANT_ARCH(a)=((a)==0)"]
    for option in part(quants + archs, 16):            # what is left out hides nothing from the rest
        compiles(os.path.join(folder, "all.h"), "the whole bundle", option)
    cpu = generate(ROOT, "list", "_on_cpu")[1].split()                 # (rows of this processor's sets are there, too)
    check(out and [n for n in out.split()[3:] if "_on_cpu" in n] == cpu and "_on_sm" not in out,
          f"the bundle lists {out}, not {cpu}")

    # the rows of one format, with those that serve every format: enough to plan
    status, out, err = generate(ROOT, "bundle", "fp8b128", "-o", os.path.join(folder, "fp8b128.h"))
    with open(os.path.join(folder, "plan.c"), "w") as f:
        f.write(PLAN)
    out = compile_and_run(CC + warn + ["plan.c", "-o", "plan", "-lm"], folder, "plan", "a bundle of one format")
    check(out and out.strip() == "ok", f"a plan from a bundle of one format: {out}{err}")

    # chosen rows, from a file of the user's own, under another name, beside the normal one
    mine = [r for r in moegen.Generator(ROOT).rows if r["arch"] == "cpu" and r.get("quant", "bf16") == "bf16"]
    with open(os.path.join(folder, "mine.toml"), "w") as f:
        f.write("kernels = [\n" + "".join(moegen.toml_of(r) + "\n" for r in mine) + "]\n")
    status, out, err = generate(ROOT, "bundle", "--rows", os.path.join(folder, "mine.toml"), "--prefix", "acme_moek",
                                "-o", os.path.join(folder, "acme.h"))
    check(status == 0, f"bundle --prefix: {err}")
    with open(os.path.join(folder, "acme.h")) as f:
        left = sorted(set(re.findall(r"\b(?:moek|MOEK)_\w+", f.read())))
    check(not left, f"--prefix left {left[:5]}")
    with open(os.path.join(folder, "acme.c"), "w") as f:
        f.write('#define ACME_MOEK_IMPLEMENTATION\n#include "acme.h"\n')
    with open(os.path.join(folder, "both.c"), "w") as f:
        f.write('#include <stdio.h>\n#include "acme.h"\n#define MOEK_IMPLEMENTATION\n#include "fp8b128.h"\n'
                "int main(void)\n{\n    int a, b;\n"
                "    acme_moek_kernels(&a); moek_kernels(&b);\n    printf(\"%d %d\\n\", a, b);\n    return 0;\n}\n")
    out = compile_and_run(CC + warn + ["both.c", "acme.c", "-o", "both", "-lm"], folder, "both",
                          "two copies in one program")
    of_fp8 = [r for r in moegen.Generator(ROOT).rows if r.get("quant", "fp8b128") == "fp8b128" and
              not r["arch"].startswith("sm")]
    plain = sum(r["arch"] == "cpu" for r in of_fp8)    # and the kernels of this compiler's sets
    check(out and out.split()[0] == str(len(mine)) and plain <= int(out.split()[1]) <= len(of_fp8),
          f"two copies: {out}, not {len(mine)} and {plain} to {len(of_fp8)}")
    if NVCC:
        x86 = platform.machine() in ("x86_64", "AMD64", "i686")
        others = ("neon", "i8mm") if x86 else ("avx2", "avx512", "amx")
        rows = [r for r in moegen.Generator(ROOT).rows      # (a table has no sets of other processors)
                if r.get("quant", "bf16") == "bf16" and not (QUICK and r["arch"] == "sm90") and r["arch"] not in others]
        with open(os.path.join(folder, "some.toml"), "w") as f:
            f.write("kernels = [\n" + "".join(moegen.toml_of(r) + "\n" for r in rows) + "]\n")
        generate(ROOT, "bundle", "--rows", os.path.join(folder, "some.toml"), "-o", os.path.join(folder, "some.h"))
        with open(os.path.join(folder, "main.cu"), "w") as f:
            f.write(MAIN % {"first": "#define MOEK_IMPLEMENTATION", "header": "some.h"})
        out = compile_and_run(NVCC.split() + ["-std=c++17", "-gencode=arch=compute_80,code=sm_80",
                                              "-Xcompiler", "-Wall,-Wextra", *sys.argv[2:], "main.cu", "-o", "main_cu"],
                              folder, "main_cu", "a bundle as CUDA")
        check(out and out.split()[3:] == [r["name"] for r in rows], f"the CUDA bundle lists {out}")
        for quant in part(("mxfp4_a16", "mxfp4_a8"), 2):               # files of bodies, which both formats have
            generate(ROOT, "bundle", "mxfp4_a16", "mxfp4_a8", "sm90", "-o", os.path.join(folder, "some.h"))
            status, _, err = run(NVCC.split() + ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler",
                                                 "-Wall,-Wextra", *(sys.argv[2:] or ["-fdevice-syntax-only"]),
                                                 f"-DMOEK_QUANT=MOEK_{quant.upper()}", "-c", "main.cu"], folder)
            check(status == 0 and not err.strip(), f"of a bundle of two formats as CUDA {quant}: {err[:600]}")
    else:
        skip("no nvcc: a bundle as CUDA")


# ---- a new row -------------------------------------------------------------------------------------------------------

LAYER = r"""
#define MOEK_IMPLEMENTATION
#include "moek.h"
enum { T = 3, H = 256, I = 128, E = 4, K = 2 };
static uint16_t x[T * H], y[T * H];
static uint8_t up[E * 2 * I * H], down[E * H * I];
static float logits[T * E], up_scale[E * 2 * I], down_scale[E * H];
static char memory[1 << 20];
int main(void)
{
    moek_config c = { H, I, E, K, MOEK_FP8C, MOEK_SILU, T };
    moek_weights w;
    moek_args a;
    moek_plan plan;
    memset(&w, 0, sizeof w);
    memset(&a, 0, sizeof a);
    if (moek_plan_init(&plan, &c) != MOEK_OK) { printf("%s\n", plan.why); return 3; }
    w.w_up = up; w.w_down = down; w.w_up_scale = up_scale; w.w_down_scale = down_scale;
    if (moek_plan_bind(&plan, &w) != MOEK_OK) { printf("%s\n", plan.why); return 1; }
    a.tokens = T; a.x = x; a.router_logits = logits; a.y = y;
    a.workspace = memory + (256 - (size_t)memory % 256); a.workspace_size = sizeof memory - 256;
    y[5] = 77;
    if (moek_run(&plan, &a, NULL) != MOEK_OK || y[5] != 0) { printf("moek_run\n"); return 1; }
    printf("up %s\n", plan.chosen.up[0]->name);
    return 0;
}
"""


def test_new_row():
    root = copy("new_row")
    path = os.path.join(root, "kernels.toml")
    with open(path) as f:
        text = f.read()
    text = re.sub(r'(, )?(?<!= )"fp8c"', "", text)                  # (expands = "fp8c" stays)
    with open(path, "w") as f:
        f.write(text)
    with open(os.path.join(root, "layer.c"), "w") as f:
        f.write(LAYER)
    build = CC + ["-std=c99", "-O0", "-Iinclude", "-DMOEK_ARCH=0", "layer.c", "-o", "layer", "-lm"]
    added = []
    for _ in range(8):
        status, out, err = generate(root)
        if not check(status == 0, f"generator after {added}: {err}"):
            return
        status, out, err = run(build, root)
        if not check(status == 0, f"compiles after {added}: {err[:500]}"):
            return
        status, out, err = run([os.path.join(root, "layer")], root)
        if status == 0:
            break
        row = re.search(r"add to kernels\.toml:\s*(\{.*\},)\n\s*then:\s*\./moek gen", out)
        if not check(status == 3 and row and row.group(1) not in added, f"the message names a row to add: {out}"):
            return
        added.append(row.group(1))
        text = text.rstrip()
        check(text.endswith("]"), "kernels.toml ends in the list of kernels")
        text = text[:-1] + "  " + row.group(1) + "\n]\n"
        with open(path, "w") as f:
            f.write(text)
    check(status == 0 and "up moek_up_fp8c_" in out, f"the layer runs after {added}: {out}")
    check(len(added) == 3, f"quant, up and down were to be added, not {added}")


if __name__ == "__main__":
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    work = tempfile.mkdtemp(prefix="moegen-", dir=os.path.join(ROOT, "build"))
    try:
        for test in (test_names, test_bad_rows, test_nonsense_rows, test_nonsense_files, test_expert_names, test_rules,
                     test_serves, test_columns, test_formats, test_planes, test_blocks, test_fields, test_stable,
                     test_objects, test_check, test_more_rows, test_python, test_bundle_words, test_bundle,
                     test_new_row):
            try:
                test()
            except Exception as e:                     # a test that breaks is a failure, not the end
                check(False, f"{test.__name__}: {type(e).__name__}: {e}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)
