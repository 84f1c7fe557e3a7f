"""What the terminal shows: a live progress bar, a summary, tables."""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.text import human
from ..training.callbacks import Event
from ..training.run import Run

ENGINES = {
    "vmap": "batched",
    "vmap, compiled": "batched and compiled",
    "loop": "each by itself",
}


def how(settings: dict[str, Any]) -> str:
    """Return in a line what was chosen for a run.

    >>> how({"cohort": 10, "engine": "vmap", "chunk": 5, "device": "cuda", "precision": "tf32"})
    '10 clients a round, 5 at once, batched; tf32 on cuda.'
    """
    engine, chunk = settings["engine"], settings["chunk"]
    at_once = "" if engine == "loop" else f" {chunk} at once,"
    line = f"{settings['cohort']} clients a round,{at_once} {ENGINES.get(engine, engine)}; "
    line += f"{settings['precision']} on {settings['device']}."
    if "memory" in settings:
        line += f" Their memory is kept on the {settings['memory']}."
    return line.replace("kept on the file", "kept in a file")


class Bar:
    """A callback that draws progress; without a terminal it prints a line now and then."""

    def __init__(self, rounds: int, console: Console) -> None:
        self._rounds, self._console = rounds, console
        self._bytes, self._seen, self._began = 0, 0, time.perf_counter()
        self._accuracy: float | None = None
        self._bar = Progress(
            TextColumn("[bold]round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=rounds, said="")

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, settings: dict[str, Any], history: list[dict[str, Any]]) -> None:
        """Say how clients will be trained."""
        self._console.print(how(settings), markup=False, soft_wrap=True)

    def __call__(self, event: Event) -> None:
        """Show one more round."""
        row = event.row
        self._seen += 1
        self._bytes += row["bytes_up"] + row["bytes_down"]
        self._accuracy = row.get("test_accuracy", self._accuracy)
        rate = self._seen / (time.perf_counter() - self._began)
        words = [f"loss {row['train_loss']:.4f}"]
        if self._accuracy is not None:
            words.append(f"accuracy {self._accuracy:.4f}")
        words += [human(self._bytes), f"{rate:.1f} rounds/s"]
        done = event.round + 1
        self._bar.update(self._task, completed=done, said="  ".join(words))
        if not self._console.is_terminal and done % max(1, self._rounds // 10) == 0:
            self._console.print(f"round {done}/{self._rounds}  " + "  ".join(words), soft_wrap=True)


def summary(run: Run) -> Table:
    """Return a run's last numbers as a table."""
    facts = run.summary
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("method", str(run.settings["method"]["name"]))
    table.add_row("rounds", f"{facts['rounds']} ({facts['status']})")
    for name in ("test_accuracy", "best_test_accuracy", "test_loss"):
        if facts.get(name) is not None:
            table.add_row(name.replace("_", " "), f"{facts[name]:.4f}")
    for name in ("client_worst", "client_spread"):
        if facts.get(name) is not None:
            table.add_row(name.replace("_", " "), f"{facts[name]:.4f}")
    table.add_row("sent up / down", f"{human(facts['bytes_up'])} / {human(facts['bytes_down'])}")
    table.add_row("seconds", f"{facts['seconds']:.1f}")
    if run.path is not None:
        table.add_row("run folder", escape(str(run.path)))
    return table


def grid(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Return rows as a table; `columns` maps keys to headings."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, heading in enumerate(columns.values()):
        table.add_column(heading, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(escape(str(row.get(key, ""))) for key in columns))
    return table
