"""The runs of a study: what one is trained with, how it is trained, and the folder of all of them.

A run that has ended is read from its folder and not repeated; an interrupted run is continued. If a
run fails, its outcome is a `FailedRun` and the study goes on. The folder of a study has the runs in
LABEL/seed-0, LABEL/seed-1, ... and one JSON file about them.
"""

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..core.errors import ArgumentError, CheckpointError, Interrupted, TunefreeError, first_line
from ..core.files import MAX_JSON, check_writable, read_file, to_json, write_atomically
from ..data import Federation
from ..training.bind import bind
from ..training.callbacks import Callback, Event
from ..training.client_data import SimulatedClients
from ..training.config import RunConfig
from ..training.fit import train
from ..training.folder import RunFolder
from ..training.run import Run
from .candidates import folder_name

log = logging.getLogger("tunefree")

GOOD = ("finished", "stopped early", "unstable")
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class RunTask:
    """One run of a study: the label of its candidate, its seed, its rounds and its folder.

    With `until` it stops after this many rounds, to be continued later.
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


class RunInputs(NamedTuple):
    """What a run of a study is trained with."""

    config: RunConfig
    model: nn.Module | Run
    federation: Federation
    command: dict[str, Any] | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint_every: int | None = None


Outcome = Run | FailedRun
MakeInputs = Callable[[RunTask], RunInputs]


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


def run_one(task: RunTask, callback: Callback, make_inputs: MakeInputs) -> tuple[Outcome, bool]:
    """Train one run, or read it if it has ended; return its outcome and whether it was trained."""
    rows: list[dict[str, Any]] = []
    try:
        inputs = make_inputs(task)
        found = None if task.out is None else _find_finished(task, inputs)
        if found is not None:
            return found, False
        return _train(task, inputs, [lambda event: rows.append(event.row), callback]), True
    except Exception as error:  # a user's model, loss or part may raise anything
        log.debug("%s, seed %d failed.", task.label, task.seed, exc_info=True)
        is_ours = isinstance(error, TunefreeError)
        reason = str(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"
        return FailedRun(task.seed, reason, traceback.format_exc(), rows), True


def _train(task: RunTask, inputs: RunInputs, callbacks: list[Callback]) -> Run:
    def stop(event: Event) -> None:
        if task.until is not None and event.round + 1 >= task.until:
            event.request_stop()

    folder = None
    if task.out is not None:
        folder = RunFolder(task.out, checkpoint_every=inputs.checkpoint_every)
    try:
        return train(
            inputs.config,
            inputs.model,
            inputs.federation,
            folder,
            callbacks=[*callbacks, *inputs.callbacks, stop],
            command=inputs.command,
        )
    except Interrupted as error:
        run = error.run
        if task.until is not None and isinstance(run, Run) and len(run.history) >= task.until:
            return run
        raise


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
    is_paused = task.until is not None and len(run.history) >= task.until
    if run.status in (*GOOD, "diverged") or is_paused:
        return replace(run, problem=bound.problem)
    return None


def run_folder(study: Path | None, label: str, seed: int) -> Path | None:
    """Return the folder of a run in that of its study, if this has one."""
    return None if study is None else study / folder_name(label) / f"seed-{seed}"


def read_outcome(task: RunTask) -> Outcome:
    """Return the outcome of a run from its folder."""
    if task.out is None or not RunFolder(task.out).is_started:
        return FailedRun(task.seed, NOT_RUN)
    try:
        return Run.load(task.out)
    except CheckpointError as error:
        return FailedRun(task.seed, str(error))


def write_study(folder: Path, file: str, facts: Mapping[str, Any]) -> None:
    """Write the JSON file of a study, so that it can be read and continued."""
    with check_writable(f"{Path(file).stem}(out=...) must be a folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / file, (to_json(facts) + "\n").encode())


def read_study(folder: Path, file: str, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the content of the JSON file of a `what`, which must have these keys."""
    try:
        facts = json.loads(read_file(folder / file, MAX_JSON))
        missing = [key for key in keys if key not in facts]
    except (FileNotFoundError, NotADirectoryError):
        raise ArgumentError(f"{str(folder)!r} holds no {what}: {file} is missing.") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(f"{folder / file} is damaged: {first_line(error)}.") from None
    if missing or not isinstance(facts, dict):
        raise ArgumentError(f"{folder / file} is damaged: it lacks {', '.join(missing)}.")
    return facts


@contextmanager
def forward_warnings(send: Callable[[str], None], task: RunTask) -> Iterator[None]:
    """Send the package's warnings, as one text each, instead of logging them."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            send(f"{task.label}, seed {task.seed}: {record.getMessage()}")

    handler, before = Handler(logging.WARNING), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
