"""What the sinks of tracking tools share: opened late, closed for certain, each round once."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from ..training.callbacks import Event
from ..training.run import Run
from ._values import numbers

Row = dict[str, Any]
Numbers = dict[str, int | float]


class Tracker(ABC):
    """A callback that hands every round's numbers to a tool; the step is the round.

    Args:
        folder: Where the tool keeps its files; it is made.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._opened = False

    def begin(self, settings: Row, history: list[Row]) -> None:
        """Open the tool's files, and give it the rounds played before that it lacks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self._open(settings, len(history))
        self._opened = True
        for row in history:
            if row["round"] >= first:
                self._log(row["round"], _measured(row))

    def __call__(self, event: Event) -> None:
        """Hand over one round."""
        if not self._opened:  # nobody said begin
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open({}, event.round)
            self._opened = True
        self._log(event.round, _measured(event.row))

    def end(self, run: Run | None) -> None:
        """Close the tool's files."""
        if self._opened:
            self._opened = False
            self._close("failed" if run is None else run.status)

    @abstractmethod
    def _open(self, settings: Row, played: int) -> int:
        """Open, `played` rounds in; return the first that the tool lacks."""

    @abstractmethod
    def _log(self, round: int, values: Numbers) -> None:
        """Hand over one round's numbers."""

    @abstractmethod
    def _close(self, status: str) -> None:
        """Close, and keep how the run ended."""


def _measured(row: Row) -> Numbers:
    values = numbers(row)
    values.pop("round", None)
    return values
