"""What the terminal shows of a study: all runs, those under way, a line when one ends."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..training.run import Run
from .figures import MEASURES, final
from .work import Failure, Outcome, Task, Watch


class Terminal(Watch):
    """Bars on a terminal; elsewhere one line per finished run.

    Args:
        console: Where to; standard error unless given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._all = self._bar.add_task("runs", total=0, said="")
        self._total = 0  # rounds of all runs
        self._under_way: dict[Task, TaskID] = {}
        self._left: dict[Task, int] = {}  # rounds that are still to be played
        self._ended = self._wanted = self._kept = 0

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self._kept:
            self.say(f"{self._kept} of {self._wanted} runs were there already.")

    def plan(self, tasks: Sequence[Task]) -> None:
        """So many runs are to come."""
        self._left |= {task: task.until or task.rounds for task in tasks}
        self._wanted += len(tasks)
        self._add(sum(self._left[task] for task in tasks))

    def _add(self, rounds: int) -> None:
        """Count in rounds that are to be played, or out (below 0) those that need not be."""
        self._total += rounds
        said = f"{self._ended} of {self._wanted}"
        self._bar.update(self._all, total=self._total, said=said)

    def round(self, task: Task, row: dict[str, Any]) -> None:
        """One more round of a run."""
        far, done = task.until or task.rounds, row["round"] + 1
        words = [f"round {done}/{far}", f"loss {row['train_loss']:.4f}"]
        if row.get("test_accuracy") is not None:
            words.append(f"accuracy {row['test_accuracy']:.4f}")
        if task not in self._under_way:
            self._add(far - done + 1 - self._left[task])
            self._left[task] = far - done + 1
            name = f"{escape(task.label)}, seed {task.seed}"
            self._under_way[task] = self._bar.add_task(name, total=far, said="")
        self._left[task] -= 1
        self._bar.update(self._under_way[task], completed=done, said="  ".join(words))
        self._bar.advance(self._all)

    def end(self, task: Task, outcome: Outcome, played: bool) -> None:
        """A run has ended; not played: it was there already."""
        self._ended += 1
        self._add(-self._left.pop(task, 0))
        if task in self._under_way:
            self._bar.remove_task(self._under_way.pop(task))
        if played or isinstance(outcome, Failure):
            self.say(f"{task.label}, seed {task.seed}: {describe(task, outcome)}")
        else:
            self._kept += 1

    def say(self, line: str) -> None:
        """Something worth a line."""
        self._bar.console.print(line, markup=False, soft_wrap=True)


def describe(task: Task, outcome: Outcome) -> str:
    """Return what became of a run, in a line."""
    if isinstance(outcome, Failure):
        return outcome.reason
    words = [_status(task, outcome)]
    name = next((m for m in MEASURES if final(outcome, m) is not None), None)
    if name is not None:
        words.append(f"{name.replace('_', ' ')} {final(outcome, name):.4f}")
    seconds = sum(row.get("seconds") or 0 for row in outcome.history)
    return ", ".join([*words, f"{seconds:.1f} s"])


def _status(task: Task, run: Run) -> str:
    if task.until is not None and run.status in ("interrupted", "unfinished"):
        return f"played {len(run.history)} of {task.rounds} rounds"
    return run.status
