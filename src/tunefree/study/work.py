"""The engine of studies: runs that are wanted, done one after the other or in several processes.

A run that has ended is read, not repeated; one that was stopped is continued by `fit`. One that
fails leaves the reason in its place, and the others go on.
"""

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn

from ..core.errors import CheckpointError, Interrupted, TunefreeError, first_line
from ..data import Federation
from ..training.bind import SimulatedClients, bind
from ..training.callbacks import Callback, Event
from ..training.config import RunConfig
from ..training.fit import train
from ..training.folder import Folder
from ..training.run import Run

log = logging.getLogger("tunefree")

GOOD = ("finished", "stopped early")
ENDED = (*GOOD, "diverged")
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Task:
    """One run that is wanted.

    Args:
        label: Of which method or setting.
        seed: Its seed.
        rounds: Rounds of the whole run.
        out: Its folder.
        until: Stop after so many rounds, so that it can be continued; None plays them all.
    """

    label: str
    seed: int
    rounds: int
    out: Path | None = None
    until: int | None = None


@dataclass(frozen=True)
class Failure:
    """In the place of a run that there is none of.

    Attributes:
        seed: Its seed.
        reason: What went wrong, in a sentence.
        trace: Where, for those who mend it.
        history: The rounds that were played all the same; they were spent.
    """

    seed: int
    reason: str
    trace: str = ""
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)


Outcome = Run | Failure


class RunInputs(NamedTuple):
    """What a run of a study is trained with."""

    config: RunConfig
    model: nn.Module
    federation: Federation
    command: dict[str, Any] | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint_every: int | None = None


class Source(Protocol):
    """Where the runs of a study come from."""

    def inputs(self, task: Task) -> RunInputs:
        """Return what a run is trained with."""
        ...


class Watch:
    """Somebody who looks on; this one says nothing."""

    def plan(self, tasks: Sequence[Task]) -> None:
        """So many runs are to come."""

    def round(self, task: Task, row: dict[str, Any]) -> None:
        """One more round of a run."""

    def end(self, task: Task, outcome: Outcome, played: bool) -> None:
        """A run has ended; not played: it was there already."""

    def say(self, line: str) -> None:
        """Something worth a line."""

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None: ...


def do(task: Task, source: Source, show: Callback) -> tuple[Outcome, bool]:
    """Do one run, or read it if it has ended, and say which; a failure is an outcome too."""
    rows: list[dict[str, Any]] = []
    try:
        inputs = source.inputs(task)
        found = None if task.out is None else ended(task, inputs)
        if found is not None:
            return found, False
        return _train(task, inputs, [lambda event: rows.append(event.row), show]), True
    except TunefreeError as error:
        return Failure(task.seed, str(error), traceback.format_exc(), rows), True
    except Exception as error:  # a user's model, loss or part may raise anything
        log.debug("%s, seed %d failed.", task.label, task.seed, exc_info=True)
        reason = f"{type(error).__name__}: {first_line(error)}"
        return Failure(task.seed, reason, traceback.format_exc(), rows), True


def _train(task: Task, inputs: RunInputs, callbacks: list[Callback]) -> Run:
    stop = _StopAfter(task.until)
    try:
        return train(
            inputs.config,
            inputs.model,
            inputs.federation,
            out=task.out,
            callbacks=[*callbacks, *inputs.callbacks, stop],
            command=inputs.command,
            checkpoint_every=inputs.checkpoint_every,
        )
    except Interrupted as error:
        if stop.reached:
            return error.run  # type: ignore[return-value]
        raise


class _StopAfter:
    """A callback that stops a run after some rounds, so that it can be continued."""

    def __init__(self, until: int | None) -> None:
        self.until, self.reached = until, False

    def __call__(self, event: Event) -> None:
        if self.until is not None and event.round + 1 >= self.until:
            self.reached = True
            event.request_stop()


def ended(task: Task, inputs: RunInputs) -> Run | None:
    """Return the run if it has come as far as it should; settings that differ are refused."""
    assert task.out is not None
    folder = Folder(task.out)
    if not folder.started:
        return None
    bound = bind(inputs.config, inputs.model, SimulatedClients(inputs.federation))
    folder.compare(bound.settings)
    run = standing(task)
    if isinstance(run, Failure):
        return None
    far = run.status in ENDED or (task.until is not None and len(run.history) >= task.until)
    return replace(run, problem=bound.problem) if far else None


def standing(task: Task) -> Outcome:
    """Return what is on disk of a run."""
    if task.out is None or not Folder(task.out).started:
        return Failure(task.seed, NOT_RUN)
    try:
        return Run.load(task.out)
    except CheckpointError as error:
        return Failure(task.seed, str(error))


@contextmanager
def notes(watch: Watch, task: Task) -> Iterator[None]:
    """Send what the package logs to the watch, which knows where to print."""
    if type(watch) is Watch:
        yield
        return

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            watch.say(f"{task.label}, seed {task.seed}: {record.getMessage()}")

    handler, before = Handler(logging.WARNING), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
