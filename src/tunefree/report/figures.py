"""Figures for papers, drawn with matplotlib: curves with bands, and the clients' data.

Lines differ in dash and marker as well as in colour, so that they can be told apart in black and
white; text in pdf and svg stays text. The same data give the same file, byte for byte.
"""

import importlib
import io
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import check_at_least, check_known, import_optional
from ..core.files import check_writable, write_file
from ..training.run import Run
from .payload import HistoryTable, build_pictures, mean_over_runs, spread_over_runs, tabulate

FORMATS = ("pdf", "svg", "png")
COLUMN = 3.25  # inches: a column of ICML's style; IEEE's has 3.5
CURVES = {"test_accuracy": "Test accuracy", "test_loss": "Test loss", "train_loss": "Training loss"}
AXES = {"rounds": "Rounds", "bytes": "Bytes sent, up and down"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>"
STYLE = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "grid.linewidth": 0.4,
    "grid.color": "#d8d8d8",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "tunefree",  # else names within the file are drawn anew each time
    "savefig.dpi": 300,
}


@contextmanager
def paper_style() -> Iterator[Any]:
    """Set the style of the figures; gives matplotlib's class `Figure`."""
    matplotlib = import_optional("matplotlib", "Figures", "matplotlib", extra="plots")
    canvas = importlib.import_module("matplotlib.figure").Figure
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        yield canvas


def render(figure: Any, format: str, *, crop: bool = True) -> bytes:
    """Return the content of a figure's file, without a date; lengths in svg have two decimals.

    Without `crop` the figure keeps its width.
    """
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[format]
    out = io.BytesIO()
    figure.savefig(out, format=format, bbox_inches="tight" if crop else None, metadata=metadata)
    content = out.getvalue()
    return re.sub(rb"(\d\.\d\d)\d+", rb"\1", content) if format == "svg" else content


def draw_curve(
    ax: Any, index: int, label: str, x: Any, y: Any, band: Any = None, total: int = 1
) -> None:
    """Draw one line, and a band from its lower to its upper values.

    The line's index decides its colour, dash and marker; if the figure has a `total` of more lines
    than colours, dashes change after each round of colours.
    """
    colour = COLOURS[index % len(COLOURS)]
    turn = index // len(COLOURS) if total > len(COLOURS) else index
    ax.plot(
        x,
        y,
        DASHES[turn % len(DASHES)],
        color=colour,
        label=label,
        marker=MARKERS[index % len(MARKERS)],
        markersize=4,
        markevery=(index % 3, max(1, len(x) // 6)),
    )
    if band is not None:
        ax.fill_between(x, *band, color=colour, alpha=0.18, linewidth=0)


def set_log_scale(ax: Any) -> None:
    """Make the vertical axis logarithmic once its curves are drawn, with plain numbers.

    Ticks are at 1, 2 and 5 times powers of ten, over many decades at some powers of ten.
    """
    ticks = importlib.import_module("matplotlib.ticker")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs, most = ((1, 2, 5), 15) if high < 300 * low else ((1,), 7)
    ax.yaxis.set_major_locator(ticks.LogLocator(subs=subs, numticks=most))
    ax.yaxis.set_minor_locator(ticks.NullLocator())
    ax.yaxis.set_major_formatter(ticks.FuncFormatter(lambda v, _: f"{v:g}"))


def draw(
    groups: Mapping[str, Sequence[Run]],
    folder: str | os.PathLike[str],
    format: str = "pdf",
    width: float = COLUMN,
) -> list[Path]:
    """Write the figures into a folder and return their paths.

    Lines are means over seeds, bands reach from the lowest to the highest seed.

    Args:
        groups: Labels, each with one run per seed.
        folder: Created if it does not exist.
        format: "pdf", "svg" or "png".
        width: Of each figure, in inches, >= 2.
    """
    check_known("format", format, FORMATS)
    check_at_least("figures", "width", width, 2)
    target = Path(folder)
    tables = {label: tabulate(runs) for label, runs in groups.items() if runs}
    drawn = {}
    with paper_style() as canvas:
        with check_writable("Figures must go to a folder", folder):
            target.mkdir(parents=True, exist_ok=True)
        for name, axis in itertools.product(CURVES, AXES):
            if (figure := _curves(canvas, tables, name, axis, width)) is not None:
                drawn[f"{name}-{axis}"] = figure
        for picture in build_pictures(groups)[:1]:
            drawn["clients"] = _clients(canvas, picture, width)
        with check_writable("Figures must go to a folder", folder):
            for name, figure in drawn.items():
                write_file(target / f"{name}.{format}", render(figure, format, crop=False))
    return [target / f"{name}.{format}" for name in drawn]


def _curves(
    canvas: Any, tables: Mapping[str, HistoryTable], name: str, axis: str, width: float
) -> Any | None:
    shown = [
        (i, label, found)
        for i, (label, found) in enumerate(tables.items())
        if name in found.columns
        and (np.isfinite(found.columns[name]) & np.isfinite(_along(found, axis))).any()
    ]
    if not shown:
        return None
    longest = max(len(label) for _, label, _ in shown)
    beside = max(1, int(width / (0.5 + 0.065 * longest)))  # names in a row of the legend, in inches
    room = 0.18 * math.ceil(len(shown) / beside) if len(shown) > 1 else 0.0  # of the legend
    figure = canvas(figsize=(width, 0.7 * width + room), layout="constrained")
    ax = figure.add_subplot()
    share = 100 if name.endswith("accuracy") else 1
    for i, label, found in shown:
        values = found.columns[name] * share
        there = np.isfinite(values).any(axis=0)
        values, x = values[:, there], _along(found, axis)[there]
        band = spread_over_runs(values)[:2] if len(values) > 1 else None
        draw_curve(ax, i, label, x, mean_over_runs(values), band, len(tables))
    ax.set_xlabel(AXES[axis])
    ax.set_ylabel(f"{CURVES[name]} (%)" if share == 100 else CURVES[name])
    if name.endswith("loss"):
        set_log_scale(ax)
    ticks = importlib.import_module("matplotlib.ticker")
    if axis == "bytes":
        ax.xaxis.set_major_formatter(ticks.EngFormatter("B"))
    else:
        ax.xaxis.set_major_locator(ticks.MaxNLocator("auto", integer=True))
    if len(shown) > 1:
        figure.legend(loc="outside lower center", ncols=beside, columnspacing=1.0)
    return figure


def _along(found: HistoryTable, axis: str) -> Any:
    if axis == "rounds":
        return found.rounds
    return mean_over_runs(found.cumulative("bytes_up") + found.cumulative("bytes_down"))


def _clients(canvas: Any, picture: Mapping[str, Any], wide: float) -> Any:
    sizes, counts = np.array(picture["sizes"]), picture.get("labels")
    place = np.arange(len(sizes))
    classes = len(counts[0]) if counts else 0
    tall = min(6.0, 0.8 + 0.16 * classes) if classes else 0.0
    figure = canvas(figsize=(wide, tall + 1.1), layout="constrained")
    heights = [tall, 1.1] if classes else [1.1]
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    rows = grid[:, 0]
    if classes:
        x, y = np.nonzero(np.array(counts))
        area = np.array(counts)[x, y] / np.array(counts).max()
        cell = 72 * min((wide - 0.7) / len(sizes), tall / (classes + 1))  # in points
        rows[0].scatter(x, y, s=area * cell**2, color=COLOURS[0], linewidths=0)
        rows[0].set_ylabel("Class")
        rows[0].set_ylim(-0.8, classes - 0.2)
    rows[-1].bar(place, sizes, color="#777777")
    rows[-1].set_ylabel("Samples")
    rows[-1].set_xlabel("Client")
    step = max(1, len(sizes) // 10)
    rows[-1].set_xticks(place[::step], [str(picture["clients"][i]) for i in place[::step]])
    return figure
