"""plot.py -- pictures of how many times as fast as other libraries moek is.  Plain SVG; bench/tables.py calls it.

    python3 bench/tables.py            writes them into bench/results, with the tables of the pages
    python3 bench/tables.py --check    says which are not what the results say
"""
import math

WIDTH, LEFT, RIGHT, GAP = 880, 46, 14, 26              # pixels of the picture, and around its panels
PANEL, TITLE, BOTTOM = 190, 26, 42                     # of a panel: its height, its title, the numbers under it
COLORS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#997700")
MEAN, TEXT, QUIET, GRID, AHEAD = "#111111", "#1f2328", "#59636e", "#d8dee4", "#eef6ee"
MOST = 8192                                            # tokens


def text(x, y, what, size=12, anchor="start", color=TEXT, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}"\n>{what}</text>')


def line(points, color, width):
    path = "\n".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"\npoints="{path}"/>'


def mean_of(curves):
    """[(tokens, geometric mean)] of curves, where at least two of them have a figure."""
    at = {}
    for points in curves.values():
        for tokens, ratio in points:
            at.setdefault(tokens, []).append(math.log(ratio))
    return [(tokens, math.exp(sum(of) / len(of))) for tokens, of in sorted(at.items()) if len(of) > 1]


def panel(title, curves, colors, x0, y0, width, low, high):
    """curves: {shape: [(tokens, times as fast)]}"""
    def at(tokens, ratio):
        return (x0 + math.log2(tokens) / math.log2(MOST) * width, y0 + PANEL - (ratio - low) / (high - low) * PANEL)
    (left, even), (_, top) = at(1, 1), at(1, high)
    out = [f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{even - top:.1f}" fill="{AHEAD}"/>',
           text(x0, y0 - 9, title, 13, weight="bold")]
    for i in range(round(low * 4), round(high * 4) + 1):
        x, y = at(1, i / 4)
        out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + width:.1f}" y2="{y:.1f}" '
                   f'stroke="{MEAN if i == 4 else GRID}"/>')
        if i % 2 == 0:
            out.append(text(x - 6, y + 4, f"{i / 4:g} x", 11, "end", QUIET))
    for tokens in (1, 8, 64, 512, MOST):
        out.append(text(at(tokens, low)[0], y0 + PANEL + 16, tokens, 11, "end" if tokens == MOST else "middle", QUIET))
    for shape, points in curves.items():
        out.append(line([at(*p) for p in points], colors[shape], 1.3))
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colors[shape]}"/>'
                for x, y in (at(*p) for p in points)]
    out.append(line([at(*p) for p in mean_of(curves)], MEAN, 3))
    return out


def legend(names):
    """(x, y, name) of each, in as many lines as they take."""
    x, y = 16, 82
    for name in names:
        long = 42 + 7 * len(name)
        if x + long > WIDTH:
            x, y = 16, y + 20
        yield x, y, name
        x += long


def head(title, subtitles, height):
    """How an SVG begins."""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"\n'
           'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
           f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="white" stroke="{GRID}"/>',
           text(16, 26, title, 15, weight="bold")]
    return out + [text(16, 45 + 16 * i, subtitle, 12, color=QUIET) for i, subtitle in enumerate(subtitles)]


def bars(title, subtitles, names, panels):
    """An SVG of bars side by side.  names: of bars, at most as many as there are colors; panels: [(title, unit,
    [(label, {name: figure}, figure of the mark or None)])], all with the same labels."""
    colors = dict(zip(names, COLORS))
    left, each, group = 86, 8, 8 * len(names) + 10     # pixels: of labels, of a bar, of a label's bars
    width = (WIDTH - left - RIGHT - (len(panels) - 1) * GAP) / len(panels)
    lines = list(legend(list(names)))
    top = lines[-1][1] + 12 + TITLE
    low = top + group * len(panels[0][2])
    out = head(title, subtitles, low + BOTTOM - 14)
    for x, y, name in lines:
        out += [line([(x, y - 4), (x + 20, y - 4)], colors[name], 6), text(x + 25, y, name)]
    for i, (name, unit, rows) in enumerate(panels):
        x0 = left + i * (width + GAP)
        most = max(max(list(of.values()) + [mark or 0]) for _, of, mark in rows) * 1.04
        step = next(n for n in (5, 10, 20, 50, 100, 200) if most / n <= 5)
        out.append(text(x0, top - 9, f"{name}, {unit}", 13, weight="bold"))
        for n in range(0, int(most) + 1, step):
            x = x0 + n / most * width
            out += [line([(x, top), (x, low)], GRID, 1), text(x, low + 16, n, 11, "middle", QUIET)]
        for j, (label, of, mark) in enumerate(rows):
            y0 = top + j * group + 5
            if not i:
                out.append(text(left - 6, y0 + each * len(names) / 2 + 4, label, 11, "end"))
            for k, n in enumerate(names):
                if n in of:
                    out.append(f'<rect x="{x0:.1f}" y="{y0 + k * each:.1f}" width="{of[n] / most * width:.1f}" '
                               f'height="{each - 1}" fill="{colors[n]}"/>')
            if mark:
                x = x0 + mark / most * width
                out.append(line([(x, y0 - 2), (x, y0 + each * len(names) + 1)], MEAN, 2))
    return "\n".join(out) + "\n</svg>\n"


def picture(title, subtitles, shapes, panels, columns):
    """An SVG.  shapes: at most as many as there are colors; panels: [(title, curves)], all on one scale."""
    colors = dict(zip(shapes, COLORS))
    ratios = [r for _, curves in panels for points in curves.values() for _, r in points]
    low, high = math.floor(min(ratios) * 4) / 4, math.ceil(max(ratios) * 4) / 4
    width = (WIDTH - RIGHT - columns * LEFT - (columns - 1) * (GAP - RIGHT)) / columns
    rows = -(-len(panels) // columns)
    lines = list(legend(["geometric mean of the shapes timed"] + list(shapes)))
    top = lines[-1][1] + 12
    height = top + rows * (TITLE + PANEL + BOTTOM)
    out = head(title, subtitles, height)
    for x, y, name in lines:
        out += [line([(x, y - 4), (x + 20, y - 4)], colors.get(name, MEAN), 1.8 if name in colors else 3),
                text(x + 25, y, name)]
    for i, (name, curves) in enumerate(panels):
        out += panel(name, curves, colors, LEFT + i % columns * (width + LEFT + GAP - RIGHT),
                     top + TITLE + i // columns * (TITLE + PANEL + BOTTOM), width, low, high)
    for row in range(rows):
        y = top + TITLE + row * (TITLE + PANEL + BOTTOM) + PANEL + 32
        out += [text(LEFT + i * (width + LEFT + GAP - RIGHT) + width / 2, y, "tokens in a run", 11, "middle", QUIET)
                for i in range(min(columns, len(panels) - row * columns))]
    return "\n".join(out) + "\n</svg>\n"
