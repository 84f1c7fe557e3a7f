"""The curves of a record as one SVG: a column for each task, a line for each row of the table.

Lines are means over seeds; a band from the least to the greatest value is drawn where a panel has
few lines.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

from tunefree.report.figures import COLOURS

from .record import Record

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 200, 62, 34, 40  # of a panel, and around it
LINE, INK, PALE = 15, "#666", "#8884"
BANDS = 6  # lines up to which bands are drawn
DASHES = ("", "6 3", "2 3", "8 3 2 3")
AXES = {"round": "rounds", "bytes_up": "bytes up", "gradients": "gradients"}


def svg(kept: Record) -> str:
    """Return the figure, "" where no curves were kept."""
    names = list(dict.fromkeys(n for row in kept["rows"] for n in row["curves"]))
    tasks = [
        t for t in kept["tasks"] if any(r["curves"] for r in kept["rows"] if r["task"] == t["name"])
    ]
    labels = list(dict.fromkeys(r["label"] for r in kept["rows"] if r["curves"]))
    if not names or not tasks:
        return ""
    parts = []
    for i, name in enumerate(names):
        for j, task in enumerate(tasks):
            lines = [
                (labels.index(r["label"]), r["curves"][name])
                for r in kept["rows"]
                if r["task"] == task["name"] and name in r["curves"]
            ]
            at = (LEFT + j * (WIDTH + LEFT), TOP + i * (HEIGHT + TOP + GAP))
            title = f"{task['label']}: {name.replace('_', ' ')}"
            parts += panel(at, title, AXES.get(kept["x"]) or str(kept["x"]), lines)
    bottom = len(names) * (HEIGHT + TOP + GAP) + 10
    wide = LEFT + len(tasks) * (WIDTH + LEFT)
    across = max(1, (wide - 20) // 240)
    for i, label in enumerate(labels):
        x, y = 20 + i % across * 240, bottom + i // across * LINE
        parts.append(_path([(x, y), (x + 26, y)], i))
        parts.append(_text(x + 32, y + 4, label, "start"))
    tall = bottom + math.ceil(len(labels) / across) * LINE
    style = 'font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" {style}>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def panel(
    at: tuple[int, int], title: str, axis: str, lines: Sequence[tuple[int, dict[str, Any]]]
) -> list[str]:
    """Return one set of axes with its lines."""
    x0, y0 = at
    values = [v for _, c in lines for k in ("low", "high") for v in c[k] if v is not None]
    along = [v for _, c in lines for v in c["x"] if v is not None]
    if not values or not along:
        return []
    low, high = min(values), max(values)
    logs = low > 0 and high / low > 20
    marks = decades(low, high) if logs else steps(low, high)
    low, high = min(low, *marks), max(high, *marks)
    right = max(along)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (
            (math.log(y / low) / math.log(high / low) if logs else (y - low) / (high - low))
            if high > low
            else 0.5
        )
        return x0 + WIDTH * x / (right or 1), y0 + HEIGHT * (1 - share)

    out = [_text(x0 + WIDTH / 2, y0 - 10, title, "middle")]
    for mark in marks:
        y = place(0, mark)[1]
        out.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="{PALE}" stroke-width="0.7"/>')
        out.append(_text(x0 - 5, y + 4, short(mark), "end"))
    for mark in steps(0, right):
        if mark <= right:
            out.append(_text(place(mark, high)[0], y0 + HEIGHT + 14, short(mark), "middle"))
    out.append(_text(x0 + WIDTH / 2, y0 + HEIGHT + 28, axis, "middle"))
    for number, curve in lines:
        if len(lines) <= BANDS:
            up = [place(x, y) for x, y in zip(curve["x"], curve["high"], strict=True)]
            down = [place(x, y) for x, y in zip(curve["x"], curve["low"], strict=True)]
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*up, *reversed(down)])
            colour = COLOURS[number % len(COLOURS)]
            out.append(f'<polygon points="{corners}" fill="{colour}" opacity="0.15"/>')
    for number, curve in lines:
        out.append(_path([place(*p) for p in zip(curve["x"], curve["mean"], strict=True)], number))
    return out


def steps(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers that cover a range.

    >>> steps(0.13, 0.92)
    [0.2, 0.4, 0.6, 0.8]
    """
    if high <= low:
        return [low]
    rough = (high - low) / most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.6g}") for i in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return powers of ten in a range, few of them.

    >>> decades(0.02, 30)
    [0.1, 1.0, 10.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first) / 6))
    return [10.0**i for i in range(first, last + 1, every)] or [low, high]


def short(value: float) -> str:
    """Return a number for an axis.

    >>> short(2500000.0), short(0.25)
    ('2.5M', '0.25')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / min(size, 1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}"


def _path(points: Sequence[tuple[float, float]], number: int) -> str:
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    colour = COLOURS[number % len(COLOURS)]
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="1.6"{dashed}/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    said = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}">{said}</text>'
