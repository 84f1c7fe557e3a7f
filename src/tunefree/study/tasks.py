"""The runs of a study: what one is trained with, how it is trained, and what is left of it.

A run that has ended is read from its folder and not repeated; an interrupted run is continued. If a
run fails, its outcome is a `FailedRun` and the study goes on.
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
from ..training.folder import RunFolder
from ..training.run import Run

log = logging.getLogger("tunefree")

GOOD = ("finished", "stopped early")
ENDED = (*GOOD, "diverged")
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class RunTask:
    """One run of a study.

    Args:
        label: Label of its candidate.
        seed: Its seed.
        rounds: Rounds of the complete run.
        out: Its folder, or None.
        until: Stop after this many rounds, to be continued later; None runs all rounds.
    """

    label: str
    seed: int
    rounds: int
    out: Path | None = None
    until: int | None = None


@dataclass(frozen=True)
class FailedRun:
    """The outcome of a run that failed or was not started.

    Attributes:
        seed: Its seed.
        reason: What went wrong.
        trace: The traceback.
        history: The rows of the rounds before the failure; their cost counts.
    """

    seed: int
    reason: str
    trace: str = ""
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)


Outcome = Run | FailedRun


class RunInputs(NamedTuple):
    """What a run of a study is trained with."""

    config: RunConfig
    model: nn.Module
    federation: Federation
    command: dict[str, Any] | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint_every: int | None = None


class RunSource(Protocol):
    """Builds the runs of a study."""

    def inputs(self, task: RunTask) -> RunInputs:
        """Return what a run is trained with."""
        ...


class ProgressListener:
    """Receives the progress of a study; this class ignores it."""

    def on_plan(self, tasks: Sequence[RunTask]) -> None:
        """Called before these runs are started."""

    def on_round(self, task: RunTask, row: dict[str, Any]) -> None:
        """Called after each round of a run, with its row of the history."""

    def on_end(self, task: RunTask, outcome: Outcome, trained: bool) -> None:
        """Called after each run; `trained` is False if it was read from its folder."""

    def on_message(self, text: str) -> None:
        """Called with warnings."""

    def __enter__(self) -> "ProgressListener":
        return self

    def __exit__(self, *error: object) -> None: ...


def run_one(task: RunTask, callback: Callback, source: RunSource) -> tuple[Outcome, bool]:
    """Train one run, or read it if it has ended.

    Returns:
        The outcome, and whether the run was trained.
    """
    rows: list[dict[str, Any]] = []
    try:
        inputs = source.inputs(task)
        found = None if task.out is None else _find_finished(task, inputs)
        if found is not None:
            return found, False
        return _train(task, inputs, [lambda event: rows.append(event.row), callback]), True
    except TunefreeError as error:
        return FailedRun(task.seed, str(error), traceback.format_exc(), rows), True
    except Exception as error:  # a user's model, loss or part may raise anything
        log.debug("%s, seed %d failed.", task.label, task.seed, exc_info=True)
        reason = f"{type(error).__name__}: {first_line(error)}"
        return FailedRun(task.seed, reason, traceback.format_exc(), rows), True


def _train(task: RunTask, inputs: RunInputs, callbacks: list[Callback]) -> Run:
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


def _find_finished(task: RunTask, inputs: RunInputs) -> Run | None:
    """Return the run in the task's folder if it needs no more rounds; check its settings."""
    assert task.out is not None
    folder = RunFolder(task.out)
    if not folder.is_started:
        return None
    bound = bind(inputs.config, inputs.model, SimulatedClients(inputs.federation))
    folder.check_settings(bound.settings)
    run = read_outcome(task)
    if isinstance(run, FailedRun):
        return None
    complete = run.status in ENDED or (task.until is not None and len(run.history) >= task.until)
    return replace(run, problem=bound.problem) if complete else None


def read_outcome(task: RunTask) -> Outcome:
    """Return the outcome of a run from its folder."""
    if task.out is None or not RunFolder(task.out).is_started:
        return FailedRun(task.seed, NOT_RUN)
    try:
        return Run.load(task.out)
    except CheckpointError as error:
        return FailedRun(task.seed, str(error))


@contextmanager
def forward_logs(listener: ProgressListener, task: RunTask) -> Iterator[None]:
    """Send the package's warnings to the listener within the context."""
    if type(listener) is ProgressListener:
        yield
        return

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            listener.on_message(f"{task.label}, seed {task.seed}: {record.getMessage()}")

    handler, before = Handler(logging.WARNING), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
