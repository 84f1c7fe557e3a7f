"""Callbacks: functions that `fit` calls with an `Event` after each round.

A callback may also have the methods

    begin(settings, history)   called before the first round; `history` holds the rows of earlier
                               rounds, empty unless the run is resumed
    end(run)                   called after the last round; `run` is None if an error ended the run

If `begin` was called, `end` is called too, even after an error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.types import Vector
from .run import Run


@dataclass
class Event:
    """What a callback receives after each round.

    Attributes:
        round: Index of the round.
        x: The server's iterate.
        output: The model that the method ships.
        row: The round's row of the history; a callback may add entries.
        stop_requested: Whether a callback asked the run to stop.
    """

    round: int
    x: Vector
    output: Vector
    row: dict[str, Any]
    stop_requested: bool = False

    def request_stop(self) -> None:
        """Ask the run to stop after this round, as Ctrl-C does: saved and resumable."""
        self.stop_requested = True


Callback = Callable[[Event], object]


@dataclass
class CallbackList:
    """The callbacks of one run; `run` is passed to `end`."""

    callbacks: Sequence[Callback]
    run: Run | None = None

    def call(self, event: Event) -> None:
        """Call every callback."""
        for callback in self.callbacks:
            callback(event)

    def end(self, callback: Any) -> None:
        """Call `end` of a callback that has it."""
        if hasattr(callback, "end"):
            callback.end(self.run)


@contextmanager
def begin_callbacks(
    callbacks: Sequence[Callback], settings: dict[str, Any], history: Iterable[dict[str, Any]]
) -> Iterator[CallbackList]:
    """Call `begin` of the callbacks that have it, and `end` on leaving the context."""
    called = CallbackList(callbacks)
    with ExitStack() as ends:
        for callback in callbacks:
            if begin := getattr(callback, "begin", None):
                begin(settings, list(history))
            ends.callback(called.end, callback)
        yield called
