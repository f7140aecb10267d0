"""tables.py -- the tables and pictures of measured figures in the pages, made from bench/results.

    python3 bench/tables.py            writes tables between their markers in the pages, and pictures to bench/results
    python3 bench/tables.py --check    says which are not what the results say

A table stands between  <!-- NAME: made by bench/tables.py -->  and  <!-- end of NAME -->.
"""
import math, os, re, sys

import plot

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")
PAGES = ("README.md", "docs/numbers.md", "docs/expert-parallelism.md", "clients/transformers/README.md")
SHAPES = (("qwen3-30b-a3b", "Qwen3-30B-A3B"), ("deepseek-v3-tp8", "DeepSeek-V3, TP8 shard"),
          ("deepseek-v3-32-local", "DeepSeek-V3, 32 local experts"), ("mixtral-8x7b", "Mixtral-8x7B"),
          ("qwen3-235b-tp4", "Qwen3-235B, TP4 shard"))
TOKENS = (1, 4, 8, 32, 128, 512, 1024, 2048, 8192)
SPANS = (("1", 1, 1), ("4 to 128", 4, 128), ("512", 512, 512), ("1024", 1024, 1024), ("2048", 2048, 2048),
         ("8192", 8192, 8192))


def rows_of(name):
    """The rows of a .tsv, each {column: text}."""
    with open(os.path.join(RESULTS, name)) as f:
        lines = [line.rstrip("\n").split("\t") for line in f if line[0] != "#"]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def layers(name):
    """{(shape, format, tokens): (us, floor)} of a .tsv."""
    return {(r["shape"], r["quant"], int(r["tokens"])): (float(r["us"]), float(r.get("floor_us", "nan")))
            for r in rows_of(name)}


def exchange(name):
    """{(section, tokens, format, kind, what): (us, floor)} of what ./moek bench-ep printed."""
    out, section = {}, ""
    with open(os.path.join(RESULTS, name)) as f:
        for line in f:
            word = line.split()
            if line.startswith(("# peer access", "# ./moek")):
                section = ""
            elif line.startswith("# over NCCL:"):
                section = word[3]
            elif word and word[0].isdigit():
                key = section, int(word[0]), word[1], word[2], word[3]
                out.setdefault(key, (float(word[4]), float(word[7])))          # the newest run stands first
    return out


def table(head, rows):
    return "".join("| " + " | ".join(r) + " |\n" for r in [head, ["---"] * len(head)] + rows)


def microseconds(us):
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table_layers():
    plain, tiled = layers("h200-sm90.tsv"), layers("h200-sm90-tiled.tsv")
    rows = []
    for shape, title in SHAPES:
        for quant in ("bf16", "fp8b128"):
            row = [title, f"`{quant}`"]
            for m in TOKENS:
                (us, floor), (us_tiled, _) = plain[shape, quant, m], tiled[shape, quant, m]
                share = 100 * floor / min(us, us_tiled)
                row.append(f"{microseconds(us)}, {microseconds(us_tiled)} ({share:.0f} %)")
            rows.append(row)
    return table(["shape", "format"] + [f"M {m}" for m in TOKENS], rows)


def against():
    """(span, [(ratio, ratio of tiled weights, cell)]): the best of the others over ours."""
    plain, tiled, others = layers("h200-sm90.tsv"), layers("h200-sm90-tiled.tsv"), layers("h200-others.tsv")
    for title, low, high in SPANS:
        yield title, [(us / plain[k][0], us / tiled[k][0], k) for k, (us, _) in others.items()
                      if k in plain and low <= k[2] <= high]


def picture_others():
    """The best of the others over ours, by format and shape."""
    of, names = {"bf16": {}, "fp8b128": {}}, dict(SHAPES)
    for _, cells in against():
        for ratio, _, (shape, quant, tokens) in cells:
            of[quant].setdefault(names[shape], []).append((tokens, ratio))
    shapes = [names[s] for s in ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3-tp8", "deepseek-v3-32-local",
                                 "qwen3-235b-tp4")]
    return plot.picture("moek beside the best other library: one MoE layer on one NVIDIA H200, November 2026",
                        ["The shortest time of vLLM's tuned Triton kernel, DeepGEMM 2.1.1 and Alpha-MoE, over the time "
                         "of moek.", "Above 1 x, in green, moek is faster. Sorting is in the time of moek only."],
                        shapes, list(of.items()), 2)


def x_of(quant):
    """What the activations of a format are in the GEMMs."""
    return "bf16" if quant.endswith("_a16") else "int8" if quant.startswith("int8") else "e4m3"


def picture_humming():
    """Humming over ours, by format and shape."""
    names = {"qwen3-30b": "Qwen3-30B-A3B", "mixtral": "Mixtral-8x7B", "deepseek-v3-tp8": "DeepSeek-V3, TP8 shard",
             "kimi-k2-48-local": "Kimi-K2, 48 local experts", "gpt-oss-120b": "gpt-oss-120b"}
    of = {}
    for r in rows_of("h200-fragments.tsv"):
        if r["humming_us"] != "-":
            of.setdefault(r["quant"], {}).setdefault(names[r["shape"]], []).append(
                (int(r["tokens"]), float(r["humming_us"]) / float(r["us"])))
    return plot.picture("moek beside Humming: one MoE layer on one NVIDIA H200, weights of 4 bits, and int8",
                        ["The time of Humming 0.1.19 over the time of moek, weights of 4 bits tiled, November 2026.",
                         "Above 1 x, in green, moek is faster. Sorting is in the time of moek only."], names.values(),
                        [(f"{q}: activations in {x_of(q)}", curves) for q, curves in of.items()], 3)


CPU_FORMATS = ("int4_a16", "mxfp4_a16", "nvfp4_a16", "int4_s8", "mxfp4_s8", "int8_a16", "int8_a8", "bf16", "fp16")
CPU_BLOCKS = ("q4_k_a16", "q4_k_s8", "q6_k_a16", "q6_k_s8", "q8_0_a16", "q8_0_s8")     # GGUF blocks: no panels
CPU_BARS = {"moek": "moek, weights as they come", "panels": "moek, weights in panels", "ggml": "ggml",
            "ik": "ik_llama.cpp"}


def cpu_others():
    """{(quant, tokens): {library: (GB/s of weights, GFLOPS)}} of one thread."""
    of = {}
    for r in rows_of("zen5-cpu-others.tsv"):
        of.setdefault((r["quant"], int(r["tokens"])), {})[r["library"]] = float(r["gb_s"]), float(r["gflops"])
    return of


def picture_cpu():
    """GB/s of weights with few tokens, GFLOPS with many."""
    of = cpu_others()
    panels = []
    for tokens in (1, 4, 512):
        few = tokens < 512
        rows = [(q, {name: of[q, tokens][k][not few] for k, name in CPU_BARS.items()},
                 of[q, tokens]["reads"][0] if few else None) for q in CPU_FORMATS]
        panels.append((f"{tokens} token{'s' if tokens > 1 else ''}", "GB/s of weights" if few else "GFLOPS", rows))
    return plot.bars("moek beside ggml and ik_llama.cpp: one MoE layer on one core of an AMD EPYC (Zen 5)",
                     ["Qwen3-30B-A3B, CPU time, the fastest of interleaved runs, November 2026. Black: plain reads.",
                      "Theirs: q4_0, mxfp4, q4_K, q8_0, q8_0, bf16, f16, repacked where they can; x in 8 bits but for "
                      "16-bit weights."], list(CPU_BARS.values()), panels)


PICTURES = {"zen5-cpu-beside-others.svg": picture_cpu, "h200-beside-others.svg": picture_others,
            "h200-beside-humming.svg": picture_humming}


def table_others():
    rows = []
    for title, cells in against():
        worst = min(cells)
        rows.append([title, str(len(cells)), f"{mean([c[0] for c in cells]):.2f}, {mean([c[1] for c in cells]):.2f}",
                     f"{worst[0]:.2f} ({dict(SHAPES)[worst[2][0]]}, `{worst[2][1]}`, M {worst[2][2]})",
                     f"{max(cells)[0]:.2f}"])
    return table(["tokens", "cells", "geometric mean: weights as they come, tiled", "least", "most"], rows)


def span(of):
    """The least and the most, as a page says them."""
    return f"{min(of):.2f} to {max(of):.2f}"


def table_headlines():
    spans = {title: [c[0] for c in cells] for title, cells in against()}
    large = [k for k in spans if k not in ("1", "4 to 128")]
    many = [ratio for k in large for ratio in spans[k]]
    pair = exchange("h200x2-ep.txt")["", 128, "fp8b128", "low_latency", "pair"][0]
    humming = against_humming()
    in_t = [of for quant, of in humming.items() if quant.endswith("_a16")]
    few, some, most = (span([mean(of[i]) for of in in_t]) for i in range(3))
    least = min(ratio for of in in_t for ratios in of for ratio in ratios)
    a8, int4 = humming["mxfp4_a8"], humming["int4_a8"]
    gains = [best / float(of["moek"]["block_us"]) for _, of, best in clients()]
    ggml, (few16, many16, exact16, blocks16, wide16) = against_ggml(), against_cpu_threads()
    one, tens, wide = mean(spans["1"]), mean(spans["4 to 128"]), span([mean(spans[k]) for k in large])
    return (f"- **{one:.2f} times** as fast as the best other library at 1 token (worst case {min(spans['1']):.2f}), "
            f"**{tens:.2f} times** at 4 to 128 ({min(spans['4 to 128']):.2f}),\n  **{wide} times** from 512 on "
            f"({min(many):.2f}): geometric means over shapes, bf16 and fp8b128, one H200.\n"
            f"- **Weights of 4 bits, activations in bf16**, beside Humming: **{few} times** at 1 token, "
            f"**{some}** at 4 to 128, {most} from 512 on ({least:.2f}).\n"
            f"- **Slower** than Humming: `mxfp4_a8` {mean(a8[1]):.2f} times at 4 to 128 tokens, {mean(a8[2]):.2f} from "
            f"512 on (worst case {min(map(min, a8)):.2f}); `int4_a8` {mean(int4[2]):.2f} from 512 on "
            f"({min(map(min, int4)):.2f}).\n"
            f"- **GGUF blocks**, tiled, beside ggml in one call: **{mean(ggml):.2f} times** as fast at 1 to 8 tokens "
            f"({min(ggml):.2f}; q4_K, q6_K, q8_0, q4_0).\n"
            f"- **CPU**, beside the better of ggml and ik_llama.cpp, 16 threads of a Xeon: "
            f"**{mean(few16):.2f} times** up to 8 tokens ({min(few16):.2f};\n  GGUF blocks as files have them "
            f"{span(blocks16)}, from 512 on {span(wide16)}), **{span(many16)} times** from 512 on with x in 8 bits, "
            f"{span(exact16)} in bf16.\n"
            f"- **{pair:.1f} us** for dispatch and combine of 128 tokens a rank between two H200 (fp8, bf16 back).\n"
            f"- **{min(gains):.1f} to {max(gains):.1f} times** as fast as the best experts of transformers: "
            "Qwen3-30B-A3B, gpt-oss-20b, one H200 ([table](clients/transformers/README.md#timings)).\n")



def table_humming(name, alone=False):
    """Of each cell of a file the fastest row of those that were timed in one call with Humming.  alone: cells without
    Humming are shown, too."""
    best = {}
    for row in rows_of(name):
        beside = row["humming_us"] != "-"
        if not beside and not alone:
            continue
        of = best.setdefault((row["shape"], row["quant"]), {}).setdefault(int(row["tokens"]), [math.inf, None])
        of[0] = min(of[0], float(row["us"]))
        of[1] = float(row["humming_us"]) if beside else of[1]
    tokens = next(iter(best.values()))
    rows = [[shape, f"`{quant}`"] + [f"{microseconds(a)}, {microseconds(b)} ({a / b:.2f})" if b else
                                     microseconds(a) if a < math.inf else "-"
                                     for a, b in (of.get(m, (math.inf, None)) for m in tokens)]
            for (shape, quant), of in best.items()]
    return table(["shape", "format (block)"] + [f"M {m}" for m in tokens], rows)


HUMMING_SPANS = ("1", 1, 1), ("4 to 128", 4, 128), ("512 to 8192", 512, 8192)


def against_humming():
    """{format: for each span [Humming's time over ours]}."""
    of = {}
    for row in rows_of("h200-fragments.tsv"):
        if row["humming_us"] != "-":
            of.setdefault(row["quant"], []).append((int(row["tokens"]), float(row["humming_us"]) / float(row["us"])))
    return {quant: [[ratio for tokens, ratio in cells if low <= tokens <= high] for _, low, high in HUMMING_SPANS]
            for quant, cells in of.items()}


def table_fragments_means():
    """Geometric means of Humming's time over ours."""
    rows = [[f"`{quant}`"] + [f"{mean(some):.2f} ({len(some)} cells; least {min(some):.2f})" for some in of]
            for quant, of in against_humming().items()]
    return table(["format"] + [f"M {title}" for title, *_ in HUMMING_SPANS], rows)


def table_mixed():
    return table_humming("h200-mixed.tsv")


def table_fragments():
    return table_humming("h200-fragments.tsv", alone=True)


def table_expanded():
    """Weights of 4 bits as they are, and made e4m3 first; beside Humming, where it was timed."""
    of, humming = {}, {}
    for r in rows_of("h200-expanded.tsv"):
        plain, expanded = float(r["us"]), float(r["expanded_us"])
        expands = r["quant"] not in r["row"]           # else the rule took the same kernels
        of.setdefault((r["shape"], r["quant"]), {})[r["tokens"]] = microseconds(plain) + (
            f", {microseconds(expanded)} ({expanded / plain:.2f})" if expands else "")
        if r["humming_us"] != "-":
            humming.setdefault(r["shape"], []).append(microseconds(float(r["humming_us"])))
    tokens = next(iter(of.values()))
    rows = []
    for shape, us in humming.items():
        rows += [[shape, f"`{q}`"] + list(cells.values()) for (s, q), cells in of.items() if s == shape]
        rows.append([shape, "Humming, mxfp4 and e4m3"] + us)
    return table(["shape", "format"] + [f"M {m}" for m in tokens], rows)


def table_weight_only():
    """Weight-only 8-bit: mma.sync, tiled weights by wgmma, and how many times as fast those are."""
    of = {}
    for r in rows_of("h200-weight-only-8-bit.tsv"):
        mma, tiled = float(r["mma_us"]), float(r["tiled_us"])
        of.setdefault(r["quant"], {})[r["tokens"]] = f"{microseconds(mma)}, {microseconds(tiled)} ({mma / tiled:.2f})"
    tokens = next(iter(of.values()))
    return table(["format"] + [f"M {m}" for m in tokens],
                 [[f"`{q}`"] + list(cells.values()) for q, cells in of.items()])


def table_mma_tiled():
    """Weights as they come and tiled, both by mma.sync, the fastest tile of each."""
    of = {}
    for r in rows_of("h200-fragments-mma.tsv"):
        cell = of.setdefault((r["shape"], r["quant"]), {}).setdefault(r["tokens"], {})
        cell[r["template"]] = min(cell.get(r["template"], math.inf), float(r["us"]))
    tokens = max((list(cells) for cells in of.values()), key=len)

    def text(us):
        old, new = us["gemm_mixed"], us["gemm_fragments_mma"]
        return f"{microseconds(old)}, {microseconds(new)} ({old / new:.2f})"
    return table(["shape", "format"] + [f"M {m}" for m in tokens],
                 [[shape, f"`{q}`"] + [text(cells[m]) if m in cells else "" for m in tokens]
                  for (shape, q), cells in of.items()])


def mma_beside_humming():
    """{(shape, quant): {tokens: (ours in 99 KB, Humming's)}}, both by kernels of sm_80."""
    of = {}
    for r in rows_of("h200-mma-humming.tsv"):
        of.setdefault((r["shape"], r["quant"]), {})[r["tokens"]] = float(r["us_99"]), float(r["humming_us"])
    return of


def span_beside_humming(ending):
    return span([peer / us for (_, quant), cells in mma_beside_humming().items() if quant.endswith(ending)
                 for us, peer in cells.values()])


def table_mma_humming():
    of = mma_beside_humming()
    return table(["shape", "format"] + [f"M {m}" for m in next(iter(of.values()))],
                 [[shape, f"`{quant}`"] + [f"{microseconds(us)}, {microseconds(peer)} ({peer / us:.2f})"
                                           for us, peer in cells.values()]
                  for (shape, quant), cells in of.items()])


def table_mma_launch():
    """A layer of few tokens step by step and in one launch, the fastest row for each shared memory."""
    of, kinds = {}, (("step by step", "163"), ("one launch", "99"), ("one launch", "163"), ("one launch", "227"))
    for r in rows_of("h200-one-launch.tsv"):
        cell = of.setdefault((r["shape"], r["quant"], r["tokens"]), {})
        cell[r["how"], r["kb"]] = min(cell.get((r["how"], r["kb"]), math.inf), float(r["us"]))
    return table(["shape", "format", "M", "step by step", "99 KB", "163 KB", "227 KB (Hopper's)"],
                 [[shape, f"`{q}`", m] + [microseconds(us[k]) if k in us else "-" for k in kinds]
                  for (shape, q, m), us in sorted(of.items(), key=lambda r: (r[0][1], r[0][0], int(r[0][2])))])


def table_gguf_launch():
    """Layers of few tokens of GGUF blocks and others: in one launch, step by step, ggml's; all in one call."""
    of = {}
    for r in rows_of("h200-gguf-launch.tsv"):
        name = f"`{r['quant']}`" + (f", down `{r['down']}`" if r["down"] != "-" else "")
        of.setdefault(name, {})[r["tokens"]] = [microseconds(float(r[k])) if r[k] != "-" else "-"
                                                for k in ("launch_us", "steps_us", "ggml_us")]
    return table(["format"] + [f"M {m}" for m in ("1", "2", "4", "8")],
                 [[name] + [", ".join(us[m]) for m in ("1", "2", "4", "8")] for name, us in of.items()])


def against_ggml():
    """ggml's time over ours, of cells of one call."""
    return [float(r["ggml_us"]) / min(float(r[k]) for k in ("launch_us", "steps_us") if r[k] != "-")
            for r in rows_of("h200-gguf-launch.tsv") if r["ggml_us"] != "-"]


def table_gguf_tiled():
    """Blocks of GGUF files: tiled, by Hopper's rows and by those of every GPU, and in place, the fastest tile of each;
    ggml's."""
    of, tokens = {}, ("1", "8", "64", "512", "2048")
    for r in rows_of("h200-gguf-tiled.tsv"):
        of.setdefault(r["quant"], {})[r["how"], r["tokens"]] = microseconds(float(r["us"]))
    return table(["format"] + [f"M {m}" for m in tokens],
                 [[f"`{q}`"] + [", ".join(us.get((how, m), "-") for how in ("hopper", "tiled", "file", "ggml"))
                                for m in tokens] for q, us in of.items()])


def clients():
    """[((model, sequences x tokens), {implementation: row}, best block_us of batched_mm and grouped_mm)]."""
    of = {}
    for row in rows_of("h200-transformers.tsv"):
        of.setdefault((row["model"], f"{row['sequences']} x {row['tokens']}"), {})[row["implementation"]] = row
    return [(key, of, min(float(of[name]["block_us"]) for name in ("batched_mm", "grouped_mm")
                          if of[name]["block_us"] != "-")) for key, of in of.items()]


def table_clients():
    names = ("eager", "batched_mm", "grouped_mm", "moek")
    rows = []
    for (model, shape), of, best in clients():
        us = {name: of[name]["block_us"] for name in names}
        row = [model, shape] + [v if v == "-" else microseconds(float(v)) for v in us.values()]
        made = [of[name]["generate"] for name in names]
        made = "" if made[0] == "-" else ", ".join(v if v == "-" else f"{float(v):.0f}" for v in made)
        rows.append(row + [f"{best / float(us['moek']):.2f}", made])
    return table(["model", "sequences x tokens"] + [f"`{name}`" for name in names] +
                 ["best of transformers over moek", "generate, tokens a second: the same four"], rows)


def percent(of):
    return f"{100 * min(of):.0f} to {100 * max(of):.0f} %"


def times(of):
    return f"{min(of):.1f} to {max(of):.1f} times"


def cpu_headline():
    of = cpu_others()
    def share(k, quants, tokens, base):
        got = [max(of[q, t][n][k] for n in ("moek", "panels", "native")) / base(of[q, t], k)
               for q in quants for t in tokens]
        return f"{min(got):.2f} to {max(got):.2f}"
    reads, best = lambda cell, k: cell["reads"][k], lambda cell, k: max(cell["ggml"][k], cell["ik"][k])
    return (f"**behind the best library**: one core of a Zen 5 reads {share(0, CPU_FORMATS[:5], (1, 4), reads)} of "
            f"what memory gives with weights of 4 bits, {share(0, CPU_FORMATS[5:], (1, 4), reads)} with 8 and 16; "
            f"{share(0, CPU_FORMATS, (1, 4), best)} times as fast as the better of ggml and ik_llama.cpp up to 4 "
            f"tokens, {share(1, CPU_FORMATS, (512,), best)} times at 512")


def table_cpu_others():
    of, rows = cpu_others(), []
    for quant in CPU_FORMATS + CPU_BLOCKS:
        for tokens in (t for t in (1, 4, 8, 512) if (quant, t) in of):
            cell, k = of[quant, tokens], tokens == 512
            best = max(cell["ggml"][k], cell["ik"][k])
            rows.append([f"`{quant}`", str(tokens)] +
                        ["-" if name not in cell or k and name == "reads" else f"{cell[name][k]:.{0 if k else 1}f}"
                         for name in ("moek", "panels", "native", "ggml", "ik", "reads")] +
                        [f"{max(cell[name][k] for name in ('moek', 'panels', 'native') if name in cell) / best:.2f}"])
    return table(["format", "tokens", "as they come", "panels", "`-march=native`", "ggml", "ik", "plain reads",
                  "our best over theirs"], rows)


def cpu_threads():
    """[(quant, tokens, {library: GB/s with few tokens, GFLOPS with many}, ours over theirs or None, times one thread or
    None)], by 16 threads."""
    of, cells = {}, []
    for r in rows_of("xeon-cpu-threads.tsv"):
        k = "gflops" if int(r["tokens"]) >= 512 else "gb_s"
        of.setdefault((r["quant"], int(r["tokens"]), r["threads"]), {})[r["library"]] = float(r[k])
    for (quant, tokens, threads), cell in of.items():
        ours, theirs = ([cell[name] for name in names if name in cell] for names in (("moek", "amx"), ("ggml", "ik")))
        one = of.get((quant, tokens, "1"))
        if threads == "16" and ours:
            cells.append((quant, tokens, cell, max(ours) / max(theirs) if theirs else None,
                          cell["moek"] / one["moek"] if one and "moek" in cell else None))
    return cells


def table_cpu_threads():
    rows = [[f"`{quant}`", str(tokens)] + [f"{cell[name]:.0f}" if name in cell else "-"
                                           for name in ("moek", "amx", "ggml", "ik")] +
            [f"{ratio:.2f}" if ratio else "-", f"{scale:.1f}" if scale else "-"]
            for quant, tokens, cell, ratio, scale in cpu_threads()]
    return table(["format", "tokens", "AVX-512", "AMX", "ggml", "ik", "our best over theirs", "times one thread"], rows)


def against_cpu_threads():
    """Ours over the better peer's: up to 8 tokens; from 512 on with x in 8 bits, and in T; both of GGUF blocks."""
    of = [(quant, tokens, ratio) for quant, tokens, _, ratio, _ in cpu_threads() if ratio]
    blocks = [[r for quant, tokens, r in of if quant.startswith("q") and (tokens > 8) == many] for many in (0, 1)]
    rest = [cell for cell in of if not cell[0].startswith("q")]
    return ([r for _, tokens, r in rest if tokens <= 8],
            [r for quant, tokens, r in rest if tokens >= 512 and quant.endswith("8")],
            [r for quant, tokens, r in rest if tokens >= 512 and not quant.endswith("8")], *blocks)


def table_first():
    """The first page of docs/numbers.md: what is fast, what is slow."""
    plain, tiled, beside = layers("h200-sm90.tsv"), layers("h200-sm90-tiled.tsv"), dict(against())
    share = [(k[2], floor / min(us, tiled[k][0])) for k, (us, floor) in plain.items()]
    humming, older = against_humming(), [(k[2], us / plain[k][0]) for k, (us, _) in layers("h200-sm80.tsv").items()
                                         if k in plain]
    in_t = [[r for q, of in humming.items() if q.endswith("_a16") for r in of[i]] for i in range(3)]
    wide = [c[0] for title, cells in beside.items() if title not in ("1", "4 to 128") for c in cells]
    expanded = [float(r["expanded_us"]) / float(r["humming_us"]) for r in rows_of("h200-expanded.tsv")
                if r["quant"] == "mxfp4_a8" and r["tokens"] in ("8192", "16384") and r["quant"] not in r["row"]]
    mxfp8 = [float(r["sm90_us"]) / plain[r["shape"] + "-a3b", "fp8b128", int(r["tokens"])][0]
             for r in rows_of("h200-8-bit-tune.tsv")
             if r["quant"] == "mxfp8" and r["shape"] == "qwen3-30b" and int(r["tokens"]) >= 512]
    bytes8 = [float(r["mma_us"]) / float(r["tiled_us"]) for r in rows_of("h200-weight-only-8-bit.tsv")
              if int(r["tokens"]) >= 512]
    gains = [best / float(of["moek"]["block_us"]) for _, of, best in clients()]
    rest = [r for m, r in share if 4 <= m <= 128], [r for m, r in share if m >= 512]
    few, many = ([r for m, r in older if m <= 128], [r for m, r in older if m >= 512])
    a8 = [mean(of) for of in humming["mxfp4_a8"] + humming["int4_a8"]]
    return table(["what", "where it stands"], [
        ["`bf16`, `fp8b128` on Hopper, 1 to 128 tokens",
         f"**fast**: {percent([r for m, r in share if m == 1])} of the floor at 1 token, {percent(rest[0])} at 4 to "
         f"128; beside the best other library {mean([c[0] for c in beside['1']]):.2f} times and "
         f"{mean([c[0] for c in beside['4 to 128']]):.2f} times as fast"],
        ["the same, 512 to 8192 tokens",
         f"**fast, power-bound**: {percent(rest[1])} of the floor; {span(wide)} times as fast as the best other "
         "library"],
        ["4-bit weights, x in bf16, tiled, on Hopper", "**fast**: beside Humming " + ", ".join(
            f"{mean(of):.2f} times (worst case {min(of):.2f}) at {title}"
            for of, (title, *_) in zip(in_t, HUMMING_SPANS)) + " tokens"],
        ["4-bit weights, x in e4m3",
         "**slow for many tokens**: `mxfp4_a8` {:.2f}, {:.2f}, {:.2f} times as fast as Humming at the same three, "
         "`int4_a8` {:.2f}, {:.2f}, {:.2f}; ".format(*a8) +
         f"with `expand_weights`, where that acts, `mxfp4_a8` takes {span(expanded)} times Humming's time from 8192 "
         "on"],
        ["`int8_a8`",
         "**fast for many tokens**: beside Humming {:.2f}, {:.2f}, {:.2f}".format(*map(mean, humming["int8_a8"]))],
        ["`mxfp8`", f"**slow for many tokens**: {times(mxfp8)} as long as `fp8b128` from 512 tokens on"],
        ["weight-only formats as they come, on Hopper",
         f"**slow for many tokens**: 8-bit {times(bytes8)} as long as tiled from 512 tokens on"],
        ["Ampere's kernels (`mma.sync`)",
         f"timed on an H200 only: {times(few)} as long as Hopper's up to 128 tokens, {times(many)} from 512 on; "
         f"beside Humming's kernels for such machines 4-bit weights in tiles {span_beside_humming('_a16')} times as "
         f"fast, `int8_a8` {span_beside_humming('int8_a8')} times ([below]"
         "(#tiled-weights-one-launch-and-gguf-blocks-by-mmasync)); `nvfp4_a4` was not timed on a GPU"],
        ["CPUs", cpu_headline()],
        ["other pages", "[exchange between GPUs](expert-parallelism.md); [Hugging Face transformers]"
         f"(../clients/transformers/README.md#timings): {times(gains)} as fast as their best experts"]])


def table_accuracy():
    """What each format costs, by bench/accuracy.c."""
    return table(["format", "block", "bits of a weight, scales included", "off"],
                 [[f"`{r['format']}`", r["block"] if r["block"] != "0" else "", r["bits"], f"{float(r['off']):.1e}"]
                  for r in rows_of("accuracy.tsv")])


def table_sizes():
    """What each format costs to build, by bench/sizes.py."""
    rows = rows_of("sizes.tsv")
    return table(["format", "kernels", "lines of generated/", "CPU", "sm_80", "sm_90a"],
                 [[f"`{r['format']}`", r["kernels"], r["lines"]] +
                  [f"{float(r[of + '_s']):.0f} s, {int(r[of + '_bytes']) / 1e6:.1f} MB"
                   for of in ("c", "sm_80", "sm_90a")] for r in rows] +
                 [["sum", "", "", ""] + [f"{sum(float(r[of]) for r in rows) / 60:.0f} minutes"
                                         for of in ("sm_80_s", "sm_90a_s")]])


def exchange_rows(names, what):
    of = [exchange(n) for n in names]
    return [[str(m)] + [", ".join(microseconds(e["", m, "fp8b128", kind, w][0]) for e in of) + " us" for w in what]
            for m, kind in ((1, "low_latency"), (128, "low_latency"), (4096, "alltoall"))]


def table_exchange():
    return table(["tokens a rank", "fp8 dispatch", "bf16 combine", "both"],
                 exchange_rows(("h200x2-ep.txt", "h200x4-ep.txt"), ("dispatch", "combine", "pair")))


def table_exchange_formats():
    """Each kind of rows on two H200: dispatch, combine and both of 128 tokens, then of 4096."""
    e = exchange("h200x2-ep.txt")
    quants = list(dict.fromkeys(key[2] for key in e if key[1] == 128))
    return table(["rows of", "128 tokens: dispatch, combine, both", "4096 tokens: dispatch, combine, both"],
                 [[f"`{quant}`"] + [", ".join(microseconds(e["", m, quant, kind, w][0])
                                              for w in ("dispatch", "combine", "pair")) + " us"
                                    for m, kind in ((128, "low_latency"), (4096, "alltoall"))] for quant in quants])


def table_exchange_layer():
    rows = []
    for m, kind in ((1, "low_latency"), (128, "low_latency"), (4096, "alltoall")):
        row = [str(m)]
        for name in ("h200x2-ep-layer.txt", "h200x4-ep-layer.txt"):
            e = exchange(name)
            us, floor = e["", m, "fp8b128", kind, "layer"]
            row.append(f"{microseconds(e['', m, 'fp8b128', kind, 'sum'][0])}, {microseconds(us)}, {floor:.0f} us")
        rows.append(row)
    return table(["tokens a rank", "two H200: sum, layer, floor", "four H200: sum, layer, floor"], rows)


def table_exchange_nccl():
    e = exchange("h200x2-ep-nccl.txt")
    kind = {1: "low_latency", 128: "low_latency", 4096: "alltoall"}
    rows = [[title] + [microseconds(e[section, m, "fp8b128", kind[m], "pair"][0]) for m in kind]
            for title, section in (("peer access", ""), ("`window`", "window"), ("`ipc`", "ipc"),
                                    ("`sends`", "sends"))]
    rows += [[title] + [microseconds(e["", m, "fp8b128", "NCCL's", what][0]) for m in kind]
             for title, what in (("NCCL's all-to-all of the rows dispatched", "alltoall"),
                                 ("NCCL's reduce-scatter in bf16, all tokens", "reducesctr"))]
    return table(["tokens a rank, fp8"] + [str(m) for m in kind], rows)


def made(text):
    def one(match):
        name = match.group(1)
        return (f"<!-- {name}: made by bench/tables.py -->\n\n" + globals()["table_" + name.replace("-", "_")]() +
                f"\n<!-- end of {name} -->\n")
    return re.sub(r"<!-- ([a-z-]+): made by bench/tables.py -->\n.*?<!-- end of \1 -->\n", one, text, flags=re.S)


def main():
    """Each page with its tables, and each picture: (path, text as it is, text as it should be)."""
    stale, files = 0, []
    for page in PAGES:
        with open(os.path.join(ROOT, page)) as f:
            old = f.read()
        files.append((page, old, made(old)))
    for name, draw in PICTURES.items():
        path = os.path.join("bench", "results", name)
        old = ""
        if os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path)) as f:
                old = f.read()
        files.append((path, old, draw()))
    for path, old, new in files:
        if new == old:
            continue
        stale += 1
        if "--check" in sys.argv[1:]:
            print(f"stale: figures in {path}: python3 bench/tables.py")
        else:
            with open(os.path.join(ROOT, path), "w") as f:
                f.write(new)
            print(f"{path}: written")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
