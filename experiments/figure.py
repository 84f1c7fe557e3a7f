"""The curves of a record as one SVG: a column for each task, a line for each row of the table.

Lines are means over seeds; a band from the least to the greatest value is drawn where a panel has
few lines. Needs matplotlib.
"""

import importlib
from typing import Any

import numpy as np

from tunefree.report.figures import draw_curve, paper_style, render, set_log_scale

from .record import Record

BANDS = 6  # lines up to which bands are drawn
LOG = 20  # ratio of the greatest to the least value from which on the scale is logarithmic
PANEL = 3.4, 2.3  # inches
AXES = {
    "round": "Rounds",
    "bytes_up": "Bytes sent up",
    "values_up": "Bytes of values sent up",
    "gradients": "Gradients",
    "seconds": "Seconds",
}


def has_curves(kept: Record) -> bool:
    """Return whether a figure can be drawn of a record."""
    return any(row["curves"] for row in kept["rows"])


def draw_svg(kept: Record) -> str:
    """Return the figure of a record that has curves."""
    rows = [row for row in kept["rows"] if row["curves"]]
    names = list(dict.fromkeys(name for row in rows for name in row["curves"]))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    tasks = [t for t in kept["tasks"] if any(row["task"] == t["name"] for row in rows)]
    columns = max(1, int(len(tasks) * PANEL[0] / (0.6 + 0.065 * max(map(len, labels)))))
    height = PANEL[1] * len(names) + 0.16 * -(-len(labels) // columns)
    with paper_style() as canvas:
        figure = canvas(figsize=(PANEL[0] * len(tasks), height), layout="constrained")
        axes = figure.subplots(len(names), len(tasks), squeeze=False)
        for i, name in enumerate(names):
            for j, task in enumerate(tasks):
                curves = {
                    row["label"]: row["curves"][name]
                    for row in rows
                    if row["task"] == task["name"] and name in row["curves"]
                }
                _draw_panel(axes[i][j], curves, labels)
                axes[i][j].set_title(f"{task['label']}: {name.replace('_', ' ')}")
                axes[i][j].set_xlabel(AXES.get(kept["x"], kept["x"]))
        lines = {line.get_label(): line for ax in axes.flat for line in ax.get_lines()}
        shown = [label for label in labels if label in lines]
        handles = [lines[label] for label in shown]
        figure.legend(handles, shown, loc="outside lower center", ncols=min(columns, len(shown)))
        return render(figure, "svg").decode()


def _draw_panel(ax: Any, curves: dict[str, dict[str, Any]], labels: list[str]) -> None:
    low, high = np.inf, -np.inf
    for label, curve in curves.items():
        x, y, *band = (np.array(curve[k], dtype=float) for k in ("x", "mean", "low", "high"))
        low, high = np.nanmin([low, *band[0]]), np.nanmax([high, *band[1]])
        few = len(curves) <= BANDS
        draw_curve(ax, labels.index(label), label, x, y, band if few else None, len(labels))
    if low > 0 and high / low > LOG:
        set_log_scale(ax)
    ticks = importlib.import_module("matplotlib.ticker")
    ax.xaxis.set_major_formatter(ticks.EngFormatter(sep=""))
