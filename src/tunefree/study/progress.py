"""Progress of a study in the terminal: bars for all runs and for each current one."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..report.terminal import NotebookBar, is_in_notebook
from .measures import MEASURES, final_value
from .tasks import FailedRun, Outcome, ProgressListener, RunTask


class TerminalProgress(ProgressListener):
    """Progress bars on a terminal, one bar in a notebook; otherwise one line per finished run."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._notebook = NotebookBar() if is_in_notebook() else None
        self._all = self._bar.add_task("runs", total=0, status="")
        self._total = self._done = 0  # rounds of all runs
        self._bars: dict[RunTask, TaskID] = {}  # of the current runs
        self._left: dict[RunTask, int] = {}  # rounds still to be trained
        self._ended = self._planned = self._read = 0  # runs

    def __enter__(self) -> "TerminalProgress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self._notebook is not None:
            text = f"{self._ended} of {self._planned} runs"
            self._notebook.show(self._done, self._total, text, last=True)
        if self._read:
            self.on_message(f"{self._read} of {self._planned} runs were there already.")

    def on_plan(self, tasks: Sequence[RunTask]) -> None:
        self._left |= {task: task.until or task.rounds for task in tasks}
        self._planned += len(tasks)
        self._add_rounds(sum(self._left[task] for task in tasks))

    def _add_rounds(self, rounds: int) -> None:
        """Change the total; `rounds` is negative for rounds that need not be trained."""
        self._total += rounds
        status = f"{self._ended} of {self._planned}"
        self._bar.update(self._all, total=self._total, status=status)

    def on_round(self, task: RunTask, row: dict[str, Any]) -> None:
        last, done = task.until or task.rounds, row["round"] + 1
        parts = [f"round {done}/{last}", f"loss {row['train_loss']:.4f}"]
        if row.get("test_accuracy") is not None:
            parts.append(f"accuracy {row['test_accuracy']:.4f}")
        if task not in self._bars:  # a resumed run does not start at round 0
            self._add_rounds(last - done + 1 - self._left[task])
            self._left[task] = last - done + 1
            name = f"{escape(task.label)}, seed {task.seed}"
            self._bars[task] = self._bar.add_task(name, total=last, status="")
        self._left[task] -= 1
        self._bar.update(self._bars[task], completed=done, status="  ".join(parts))
        self._bar.advance(self._all)
        self._done += 1
        if self._notebook is not None:
            name = f"{task.label}, seed {task.seed}"
            text = "  ".join([f"{self._ended} of {self._planned} runs", name, *parts])
            self._notebook.show(self._done, self._total, text)

    def on_end(self, task: RunTask, outcome: Outcome, trained: bool) -> None:
        self._ended += 1
        self._add_rounds(-self._left.pop(task, 0))
        if task in self._bars:
            self._bar.remove_task(self._bars.pop(task))
        if isinstance(outcome, FailedRun) or (trained and self._notebook is None):
            self.on_message(f"{task.label}, seed {task.seed}: {describe_outcome(task, outcome)}")
        self._read += not (trained or isinstance(outcome, FailedRun))

    def on_message(self, text: str) -> None:
        self._bar.console.print(text, markup=False, soft_wrap=True)


def describe_outcome(task: RunTask, outcome: Outcome) -> str:
    """Return the outcome of a run as one line: status, score and seconds, or the failure."""
    if isinstance(outcome, FailedRun):
        return outcome.reason
    parts = [outcome.status]
    if task.until is not None and outcome.status in ("interrupted", "unfinished"):
        parts = [f"trained {len(outcome.history)} of {task.rounds} rounds"]
    for name in MEASURES:
        if (value := final_value(outcome, name)) is not None:
            parts.append(f"{name.replace('_', ' ')} {value:.4f}")
            break
    seconds = sum(row.get("seconds") or 0 for row in outcome.history)
    return ", ".join([*parts, f"{seconds:.1f} s"])
