"""plot.py -- draws a benchmark: microseconds over tokens, with the floor and other libraries' figures.  Plain SVG.

    python3 bench/plot.py bench/results/h200-sm90.tsv bench/results/h200-others.tsv -o bench/results/h200-sm90.svg
        [--shapes qwen3-30b-a3b,deepseek-v3-tp8,mixtral-8x7b] [--quant fp8b128]
    python3 bench/plot.py bench/results/h200-fragments.tsv -o bench/results/h200-fragments.svg
        --shapes gpt-oss-120b:mxfp4_a16,kimi-k2-48-local:int4_a16,qwen3-30b:nvfp4_a16

A shape may name its format behind a colon.  With one file the others are its column humming_us, where it has figures.
"""
import argparse, math

WIDTH, HEIGHT, LEFT, BOTTOM = 320, 300, 46, 30
LINES = (("floor", "#999999", "4 3"), ("others", "#d08020", ""), ("moek", "#2060c0", ""))


def read(path):
    """[{column: text}]"""
    with open(path) as f:
        lines = [line.rstrip("\n").split("\t") for line in f if line[0] != "#"]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def curves(ours, others, shape, quant):
    def points(rows, column):
        return sorted((int(r["tokens"]), float(r[column])) for r in rows
                      if (r["shape"], r["quant"]) == (shape, quant) and r[column] != "-")
    return {"moek": points(ours, "us"), "floor": points(ours, "floor_us"),
            "others": points(others, "us") if others else points(ours, "humming_us")}


def panel(title, data, x0):
    low = 10 ** math.floor(math.log10(min(y for line in data.values() for _, y in line)))
    high = 10 ** math.ceil(math.log10(max(y for line in data.values() for _, y in line)))
    most = max(x for line in data.values() for x, _ in line)
    def at(x, y):
        return (x0 + LEFT + math.log(x) / math.log(most) * (WIDTH - LEFT - 14),
                HEIGHT - BOTTOM - math.log(y / low) / math.log(high / low) * (HEIGHT - BOTTOM - 34))
    out = [f'<text x="{x0 + WIDTH / 2}" y="18" text-anchor="middle" font-weight="bold">{title}</text>']
    y = low
    while y <= high:
        (x1, y1), (x2, _) = at(1, y), at(most, y)
        out += [f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y1:.1f}" stroke="#dddddd"/>',
                f'<text x="{x1 - 5:.1f}" y="{y1 + 4:.1f}" text-anchor="end">{y:g}</text>']
        y *= 10
    x = 1
    while x <= most:
        x1, y1 = at(x, low)
        out.append(f'<text x="{x1:.1f}" y="{y1 + 15:.1f}" text-anchor="middle">{x}</text>')
        x *= 8
    for name, color, dash in LINES:
        if data[name]:
            path = "\n".join(f"{a:.1f},{b:.1f}" for a, b in (at(*p) for p in data[name]))
            out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}" '
                       f'points="{path}"/>')
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ours")
    ap.add_argument("others", nargs="?")
    ap.add_argument("-o", dest="out", required=True)
    ap.add_argument("--shapes", default="qwen3-30b-a3b,deepseek-v3-tp8,mixtral-8x7b")
    ap.add_argument("--quant", default="fp8b128")
    a = ap.parse_args()
    shapes, ours, others = a.shapes.split(","), read(a.ours), a.others and read(a.others)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(shapes)}" height="{HEIGHT + 22}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for i, shape in enumerate(shapes):
        shape, quant = shape.split(":") if ":" in shape else (shape, a.quant)
        out += panel(f"{shape}, {quant}", curves(ours, others, shape, quant), i * WIDTH)
    x = LEFT
    for name, color, dash in LINES:
        text = {"moek": "moek", "floor": "floor: bytes or FLOPs",
                "others": "best of the others" if others else "Humming"}[name]
        out += [f'<line x1="{x}" y1="{HEIGHT + 10}" x2="{x + 24}" y2="{HEIGHT + 10}" stroke="{color}" '
                f'stroke-width="2" stroke-dasharray="{dash}"/>', f'<text x="{x + 30}" y="{HEIGHT + 14}">{text}</text>']
        x += 180
    out.append(f'<text x="{x}" y="{HEIGHT + 14}">microseconds a layer over tokens</text></svg>')
    with open(a.out, "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
