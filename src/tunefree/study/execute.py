"""Training the runs of a study, one after the other or in several processes."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

from ..core.errors import ArgumentError, first_line
from ..simulation.ranks import init_ranks
from ..training.callbacks import Callback, Event
from .pool import ProcessPool, Worker
from .tasks import (
    NOT_RUN,
    FailedRun,
    MakeInputs,
    Outcome,
    ProgressListener,
    RunTask,
    forward_warnings,
    read_outcome,
    run_one,
)

TaskT = TypeVar("TaskT", bound=RunTask)
TrainTask = Callable[[TaskT, Callback], tuple[Outcome, bool]]
"""Trains a run; returns its outcome, and whether it was trained (not read from disk)."""


def make_progress(shown: bool) -> ProgressListener:
    """Return a listener that shows progress in the terminal, or one that shows nothing."""
    if not shown:
        return ProgressListener()
    from .progress import TerminalProgress  # needs rich, which `fit` does without

    return TerminalProgress()


def run_all(
    tasks: Sequence[RunTask], make_inputs: MakeInputs, listener: ProgressListener, jobs: int = 1
) -> Iterator[tuple[RunTask, Outcome]]:
    """Train the runs and yield each as it ends; Ctrl-C leaves all of them resumable."""
    if init_ranks().size > 1:
        raise ArgumentError(
            "A study runs in one process, or starts its own with jobs=...; leave torchrun out."
        )
    if jobs > 1 and any(task.out is None for task in tasks):
        raise ArgumentError("jobs > 1 needs a folder: the processes leave their runs there.")
    listener.on_plan(tasks)
    pool = RunPool(partial(run_one, make_inputs=make_inputs), read_outcome, jobs)
    with closing(pool), closing(pool.run(tasks, listener)) as found:
        for task, outcome, trained in found:
            listener.on_end(task, outcome, trained)
            yield task, outcome


class RunPool(Generic[TaskT]):
    """Trains runs in this process, or in several (`jobs`) that live until `close`.

    In several, `train` must be picklable, and `load` reads a run that a process has left on disk.
    """

    def __init__(
        self, train: TrainTask[TaskT], load: Callable[[TaskT], Outcome], jobs: int
    ) -> None:
        self._train, self._load = train, load
        work = partial(_train_in_worker, train=train)
        self._processes = ProcessPool(work, jobs) if jobs > 1 else None

    def close(self) -> None:
        """Ask the processes to stop, and wait for them."""
        if self._processes is not None:
            self._processes.close()

    def run(
        self, tasks: Sequence[TaskT], listener: ProgressListener
    ) -> Generator[tuple[TaskT, Outcome, bool], None, None]:
        """Train the runs; yield each as it ends, with its outcome and whether it was trained."""
        if self._processes is None:
            for task in tasks:
                yield task, *self._train_here(task, listener)
            return

        def forward(task: TaskT, message: Any) -> None:
            if isinstance(message, str):
                listener.on_message(message)
            else:
                listener.on_round(task, message)

        for task, result in self._processes.run(tasks, forward):
            if isinstance(result, BaseException):  # the process died, perhaps for lack of memory
                yield task, FailedRun(task.seed, f"Its process ended: {first_line(result)}"), True
            else:
                failed, trained = result
                yield task, failed or self._load(task), trained

    def _train_here(self, task: TaskT, listener: ProgressListener) -> tuple[Outcome, bool]:
        is_shown = type(listener) is not ProgressListener  # else warnings are logged as usual
        with forward_warnings(listener.on_message, task) if is_shown else nullcontext():
            return self._train(task, lambda event: listener.on_round(task, event.row))


def _train_in_worker(
    task: TaskT, worker: Worker, train: TrainTask[TaskT]
) -> tuple[FailedRun | None, bool]:
    """Train a run in a process of the pool, which leaves it on disk.

    Rounds and warnings are sent as messages; the result is the run's failure, or None, and whether
    it was trained.
    """

    def send_row(event: Event) -> None:
        worker.send(event.row)
        if worker.stop_requested:
            event.request_stop()

    if worker.stop_requested:
        return FailedRun(task.seed, NOT_RUN), True
    try:
        with forward_warnings(worker.send, task):
            outcome, trained = train(task, send_row)
    except KeyboardInterrupt:
        return FailedRun(task.seed, "stopped by Ctrl-C"), True
    return (outcome if isinstance(outcome, FailedRun) else None), trained
