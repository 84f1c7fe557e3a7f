"""Figures for a paper, drawn with matplotlib: curves with bands, and who has what.

Lines differ in dash and marker as well as in colour, so that they survive a black and white
printer; text in pdf and svg stays text.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ArgumentError, unknown_name
from ..training.run import Run
from .payload import HistoryTable, build_pictures, mean_over_runs, spread_over_runs, tabulate

FORMATS = ("pdf", "svg", "png")
CURVES = {"test_accuracy": "Test accuracy", "test_loss": "Test loss", "train_loss": "Training loss"}
AXES = {"rounds": "Rounds", "bytes": "Bytes sent, up and down"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d8d8d8",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 300,
}


def draw(
    groups: Mapping[str, Sequence[Run]], folder: str | os.PathLike[str], format: str = "pdf"
) -> list[Path]:
    """Write the figures into a folder and return their paths.

    Args:
        groups: Labels, each with one run per seed.
        folder: Made if it is not there.
        format: "pdf", "svg" or "png".
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    try:
        matplotlib = importlib.import_module("matplotlib")
        canvas = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise ArgumentError(
            "Figures are drawn with matplotlib, which is not installed; "
            "pip install 'tunefree[plots]'."
        ) from None
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"Figures must go to a folder that can be written, got {str(folder)!r}: "
            f"{error.strerror or error}."
        ) from None
    tables = {label: tabulate(runs) for label, runs in groups.items() if runs}
    drawn = {}
    with matplotlib.rc_context(STYLE):
        for name, heading in CURVES.items():
            for axis in AXES:
                figure = _curves(canvas, tables, name, heading, axis)
                if figure is not None:
                    drawn[f"{name}-{axis}"] = figure
        for picture in build_pictures(groups)[:1]:
            drawn["clients"] = _clients(canvas, picture)
        plain = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[format]
        for name, figure in drawn.items():
            path = target / f"{name}.{format}"
            figure.savefig(path, format=format, bbox_inches="tight", metadata=plain)
    return [target / f"{name}.{format}" for name in drawn]


def _curves(
    canvas: Any, tables: Mapping[str, HistoryTable], name: str, heading: str, axis: str
) -> Any | None:
    shown = [
        (i, label, found)
        for i, (label, found) in enumerate(tables.items())
        if name in found.columns
        and (np.isfinite(found.columns[name]) & np.isfinite(_along(found, axis))).any()
    ]
    if not shown:
        return None
    beside = len(shown) > 5  # the legend
    figure = canvas(figsize=(4.8 if beside else 3.5, 2.5), layout="constrained")
    ax = figure.add_subplot()
    share = 100 if name.endswith("accuracy") else 1
    for i, label, found in shown:
        values = found.columns[name] * share
        there = np.isfinite(values).any(axis=0)
        values, x = values[:, there], _along(found, axis)[there]
        colour, style = COLOURS[i % 7], DASHES[i // 7 % 4] if len(tables) > 7 else DASHES[i % 4]
        n = len(x)
        marks = {"marker": MARKERS[i % 10], "markersize": 4, "markevery": (i % 3, max(1, n // 6))}
        ax.plot(x, mean_over_runs(values), style, color=colour, label=label, **marks)
        if len(values) > 1:
            low, high, _ = spread_over_runs(values)
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.set_xlabel(AXES[axis])
    ax.set_ylabel(f"{heading} (%)" if share == 100 else heading)
    ticks = importlib.import_module("matplotlib.ticker")
    if name.endswith("loss"):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticks.LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(ticks.FuncFormatter(lambda v, _: f"{v:g}"))
        ax.yaxis.set_minor_formatter(ticks.NullFormatter())
    if axis == "bytes":
        ax.xaxis.set_major_formatter(ticks.EngFormatter("B"))
    if len(shown) > 1:
        ax.legend(**({"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if beside else {}))
    return figure


def _along(found: HistoryTable, axis: str) -> Any:
    if axis == "rounds":
        return found.rounds
    return mean_over_runs(found.cumulative("bytes_up") + found.cumulative("bytes_down"))


def _clients(canvas: Any, picture: Mapping[str, Any]) -> Any:
    sizes, counts = np.array(picture["sizes"]), picture.get("labels")
    place = np.arange(len(sizes))
    classes = len(counts[0]) if counts else 0
    wide = min(7.0, 2.0 + 0.12 * len(sizes))
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
