"""Output in the terminal: a live progress bar (in a notebook, too), a summary, tables."""

import html
import importlib
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.errors import LiveError
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.text import format_bytes
from ..training.callbacks import Event
from ..training.run import Run
from .payload import SUMMARY_MEASURES, summary_rows

SHOWN_IN_BAR = {
    "test_accuracy": "accuracy",
    "test_loss": "test loss",
}  # the first in a row is shown
PAUSE = 0.2  # seconds between two updates in a notebook, except for the last one
ENGINES = {"vmap": "batched", "vmap, compiled": "batched and compiled", "loop": "each by itself"}


def describe_engine(settings: dict[str, Any]) -> str:
    """Return one line about how a run trains its clients.

    >>> describe_engine({"cohort": 10, "engine": "vmap", "chunk": 5, "device": "cuda",
    ...     "precision": "tf32"})
    '10 clients a round, 5 at once, batched; tf32 on cuda.'
    """
    engine, chunk = settings["engine"], settings["chunk"]
    at_once = "" if engine == "loop" else f" {chunk} at once,"
    line = f"{settings['cohort']} clients a round,{at_once} {ENGINES.get(engine, engine)}; "
    line += f"{settings['precision']} on {settings['device']}."
    if "memory" in settings:
        line += f" Their memory is kept on the {settings['memory']}."
    return line.replace("kept on the file", "kept in a file")


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar that is redrawn in place; needs a notebook, and no widgets."""

    def __init__(self) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._handle, self._next = None, 0.0

    def show(self, done: float, total: float, text: str, *, last: bool = False) -> None:
        """Draw the bar at `done` of `total` with a text beside it."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + PAUSE
        bar = f'<progress value="{done:g}" max="{max(total, 1):g}"></progress>'
        content = self._display.HTML(f"{bar} {html.escape(text)}")
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)


class ProgressBar:
    """A callback that draws a progress bar, in a terminal or a notebook.

    With `lines`, it prints how clients are trained, and about ten lines where it can draw no bar.
    """

    def __init__(self, rounds: int, console: Console, *, lines: bool = True) -> None:
        self._rounds, self._console, self._lines = rounds, console, lines
        self._prints_lines = lines and not console.is_terminal
        self._bytes, self._rounds_seen, self._start = 0, 0, time.perf_counter()
        self._measured: str | None = None
        self._notebook = NotebookBar() if is_in_notebook() else None
        self._text = ""
        self._bar = Progress(
            TextColumn("[bold]round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, values="")

    def begin(self, settings: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Print how clients will be trained, and show the bar."""
        if self._lines:
            self._console.print(describe_engine(settings), markup=False, soft_wrap=True)
        with suppress(LiveError):  # another bar is being drawn: this one is not
            self._bar.start()

    def end(self, run: Run | None) -> None:
        """Leave the bar as it is."""
        self._bar.stop()
        if self._notebook is not None and self._rounds_seen:
            self._notebook.show(self._done, self._rounds, self._text, last=True)

    def __call__(self, event: Event) -> None:
        """Show one more round."""
        row = event.row
        self._rounds_seen += 1
        self._bytes += row["bytes_up"] + row["bytes_down"]
        for name, title in SHOWN_IN_BAR.items():
            if row.get(name) is not None:
                self._measured = f"{title} {row[name]:.4f}"
                break
        rate = self._rounds_seen / (time.perf_counter() - self._start)
        words = [f"loss {row['train_loss']:.4f}", *([self._measured] if self._measured else [])]
        words += [format_bytes(self._bytes), f"{rate:.1f} rounds/s"]
        self._done = done = event.round + 1
        self._bar.update(self._task, completed=done, values="  ".join(words))
        self._text = f"round {done}/{self._rounds}  " + "  ".join(words)
        if self._notebook is not None:
            self._notebook.show(done, self._rounds, self._text)
        elif self._prints_lines and done % max(1, self._rounds // 10) == 0:
            self._console.print(self._text, soft_wrap=True)


def make_bar(rounds: int) -> ProgressBar | None:
    """Return the progress bar of `fit`; None where there is neither a terminal nor a notebook."""
    console = Console(stderr=True, highlight=False)
    can_draw = console.is_terminal or is_in_notebook()
    return ProgressBar(rounds, console, lines=False) if can_draw else None


def make_summary(run: Run) -> Table:
    """Return a run's totals and last measurements as a table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in summary_rows(run, (*SUMMARY_MEASURES, "client_worst", "client_spread")):
        table.add_row(name, escape(text))
    return table


def make_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Return rows as a table; `columns` maps keys to headings."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(columns.values()):
        table.add_column(heading, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(escape(str(row.get(key, ""))) for key in columns))
    return table
