"""Who is told of a run while it goes on: callbacks, and what they are told.

A callback is called with an `Event` after each round. It may also have

    begin(settings, history)   before the first round of this call; history: the rows of rounds
                               that were played before, empty unless the run is resumed
    end(run)                   after the last; None where an error broke the run off

Whoever was begun is ended, whatever happens between.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.types import Vector
from .run import Run


@dataclass(frozen=True)
class Event:
    """What a callback sees after each round."""

    round: int
    x: Vector
    output: Vector
    row: dict[str, Any]


Callback = Callable[[Event], object]


class Watch:
    """Those who are told of one run; `run` is what they are told at its end."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self.run: Run | None = None

    def tell(self, event: Event) -> None:
        """Tell everyone of one more round."""
        for callback in self._callbacks:
            callback(event)


@contextmanager
def watching(
    callbacks: Sequence[Callback], settings: dict[str, Any], history: Iterable[dict[str, Any]]
) -> Iterator[Watch]:
    """Begin the callbacks that want it, and end them with the run, or with None."""
    watch = Watch(callbacks)
    with ExitStack() as ends:
        for callback in callbacks:
            if begin := getattr(callback, "begin", None):
                begin(settings, list(history))
            if end := getattr(callback, "end", None):
                ends.callback(_finish, end, watch)
        yield watch


def _finish(end: Callable[[Run | None], object], watch: Watch) -> None:
    end(watch.run)
