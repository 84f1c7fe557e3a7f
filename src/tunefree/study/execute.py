"""Training the runs of a study, one after the other or in several processes."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..core.errors import ArgumentError, first_line
from ..simulation.ranks import init_ranks
from ..training.callbacks import Callback, Event
from .pool import ProcessPool, Worker
from .tasks import (
    NOT_RUN,
    FailedRun,
    Outcome,
    ProgressListener,
    RunSource,
    RunTask,
    forward_logs,
    read_outcome,
    run_one,
)

TaskT = TypeVar("TaskT", bound=RunTask)
Outcomes = Generator[tuple[TaskT, Outcome, bool], None, None]
WorkerResult = tuple[FailedRun | None, bool]
TrainTask = Callable[[TaskT, Callback], tuple[Outcome, bool]]
"""Trains a run; returns its outcome, and whether it was trained (not read from disk)."""


def make_progress(shown: bool) -> ProgressListener:
    """Return a listener that shows progress in the terminal, or one that shows nothing."""
    if not shown:
        return ProgressListener()
    from .progress import TerminalProgress  # needs rich, which `fit` does without

    return TerminalProgress()


def run_all(
    tasks: Sequence[RunTask], source: RunSource, listener: ProgressListener, jobs: int = 1
) -> Iterator[tuple[RunTask, Outcome]]:
    """Train the runs and yield each as it ends; Ctrl-C leaves all of them resumable."""
    if init_ranks().size > 1:
        raise ArgumentError(
            "A study runs in one process, or starts its own with jobs=...; leave torchrun out."
        )
    listener.on_plan(tasks)
    train = partial(run_one, source=source)
    if jobs > 1:
        outcomes = _run_in_new_pool(tasks, train, listener, jobs)
    else:
        outcomes = run_in_turn(tasks, train, listener)
    with closing(outcomes) as found:
        for task, outcome, trained in found:
            listener.on_end(task, outcome, trained)
            yield task, outcome


def run_in_turn(
    tasks: Sequence[TaskT], train: TrainTask[TaskT], listener: ProgressListener
) -> Outcomes[TaskT]:
    """Train the runs one after the other; yield each with its outcome and whether it was trained.

    Args:
        tasks: The runs.
        train: Trains one run.
        listener: Receives rounds and warnings.
    """
    for task in tasks:

        def show(event: Event, task: TaskT = task) -> None:
            listener.on_round(task, event.row)

        with forward_logs(listener, task):
            outcome, trained = train(task, show)
        yield task, outcome, trained


def _run_in_new_pool(
    tasks: Sequence[RunTask], train: TrainTask[RunTask], listener: ProgressListener, jobs: int
) -> Outcomes[RunTask]:
    if any(task.out is None for task in tasks):
        raise ArgumentError("jobs > 1 needs a folder: the processes leave their runs there.")
    with ProcessPool(TrainInWorker(train), jobs) as pool:
        yield from run_in_pool(pool, tasks, listener, read_outcome)


def run_in_pool(
    pool: ProcessPool[TaskT, WorkerResult],
    tasks: Sequence[TaskT],
    listener: ProgressListener,
    load: Callable[[TaskT], Outcome],
) -> Outcomes[TaskT]:
    """Train the runs in a pool whose work is a `TrainInWorker`; yield as `run_in_turn` does.

    Args:
        pool: The pool.
        tasks: The runs.
        listener: Receives rounds and warnings.
        load: Reads a run that a process has left on disk.
    """

    def forward(task: TaskT, message: Any) -> None:
        if isinstance(message, str):
            listener.on_message(message)
        else:
            listener.on_round(task, message)

    for task, result in pool.run(tasks, forward):
        if isinstance(result, BaseException):  # the process died, for lack of memory for instance
            yield task, FailedRun(task.seed, f"Its process ended: {first_line(result)}"), True
        else:
            failed, trained = result
            yield task, failed or load(task), trained


@dataclass(frozen=True)
class TrainInWorker(Generic[TaskT]):
    """The work of a pool that trains runs.

    Rounds and warnings are sent as messages. The run itself stays on disk; the result is its
    failure, or None, and whether it was trained.

    Args:
        train: Trains one run; picklable.
    """

    train: TrainTask[TaskT]

    def __call__(self, task: TaskT, worker: Worker) -> WorkerResult:
        """Train a run in a process of the pool."""

        def send_row(event: Event) -> None:
            worker.send(event.row)
            if worker.stop_requested:
                event.request_stop()

        class Sender(ProgressListener):
            def on_message(self, text: str) -> None:
                worker.send(text)

        if worker.stop_requested:
            return FailedRun(task.seed, NOT_RUN), True
        try:
            with forward_logs(Sender(), task):
                outcome, trained = self.train(task, send_row)
        except KeyboardInterrupt:
            return FailedRun(task.seed, "stopped by Ctrl-C"), True
        return (outcome if isinstance(outcome, FailedRun) else None), trained
