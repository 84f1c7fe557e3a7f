"""Training the runs of a study, one after the other or in several processes."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from ..core.errors import ArgumentError, first_line
from ..simulation.ranks import init_ranks
from ..training.callbacks import Callback, Event
from .pool import ProcessPool, Worker
from .work import NOT_RUN, Failure, Outcome, Source, Task, Watch, do, notes, standing

ResultT = TypeVar("ResultT")


def make_progress(shown: bool) -> Watch:
    """Return a listener that shows progress in the terminal, or one that shows nothing."""
    if not shown:
        return Watch()
    from .watch import Terminal  # needs rich, which `fit` does without

    return Terminal()


def run_all(
    tasks: Sequence[Task], source: Source, watch: Watch, jobs: int = 1
) -> Iterator[tuple[Task, Outcome]]:
    """Train the runs and yield each as it ends; Ctrl-C leaves all of them resumable."""
    if init_ranks().size > 1:
        raise ArgumentError(
            "A study runs in one process, or starts its own with jobs=...; leave torchrun out."
        )
    watch.plan(tasks)
    run = _run_in_pool if jobs > 1 else _run_in_turn
    work = run(tasks, source, watch, jobs)
    with closing(work) as done:
        for task, outcome, played in done:
            watch.end(task, outcome, played)
            yield task, outcome


def _run_in_turn(
    tasks: Sequence[Task], source: Source, watch: Watch, jobs: int
) -> Generator[tuple[Task, Outcome, bool], None, None]:
    for task in tasks:

        def show(event: Event, task: Task = task) -> None:
            watch.round(task, event.row)

        with notes(watch, task):
            outcome, played = do(task, source, show)
        yield task, outcome, played


def _run_in_pool(
    tasks: Sequence[Task], source: Source, watch: Watch, jobs: int
) -> Generator[tuple[Task, Outcome, bool], None, None]:
    if any(task.out is None for task in tasks):
        raise ArgumentError("jobs > 1 needs a folder: the processes leave their runs there.")
    with ProcessPool(_TrainInPool(source), jobs) as pool:
        for task, result in pool.run(tasks, forward_messages(watch)):
            if isinstance(result, BaseException):
                yield task, process_failure(task, result), True
            else:
                failure, played = result
                yield task, failure or standing(task), played


@dataclass(frozen=True)
class _TrainInPool:
    """The work of a study's pool; the run itself stays in its folder."""

    source: Source

    def __call__(self, task: Task, worker: Worker) -> tuple[Failure | None, bool]:
        found = train_in_worker(task, worker, lambda show: do(task, self.source, show))
        if isinstance(found, Failure):
            return found, True
        outcome, played = found
        return (outcome if isinstance(outcome, Failure) else None), played


def train_in_worker(
    task: Task, worker: Worker, train: Callable[[Callback], ResultT]
) -> ResultT | Failure:
    """Train in a process of a pool: rounds and warnings are sent as messages.

    Args:
        task: The run.
        worker: What the process sees of the pool.
        train: Trains, with a callback for `fit`.

    Returns:
        The result, or a `Failure` if the pool asked to stop.
    """

    def send_row(event: Event) -> None:
        worker.send(event.row)
        if worker.stop_requested:
            event.request_stop()

    class Sender(Watch):
        def say(self, line: str) -> None:
            worker.send(line)

    if worker.stop_requested:
        return Failure(task.seed, NOT_RUN)
    try:
        with notes(Sender(), task):
            return train(send_row)
    except KeyboardInterrupt:
        return Failure(task.seed, "stopped by Ctrl-C")


def forward_messages(watch: Watch) -> Callable[[Task, Any], None]:
    """Return what passes the messages of `train_in_worker` to a watch."""

    def forward(task: Task, message: Any) -> None:
        if isinstance(message, str):
            watch.say(message)
        else:
            watch.round(task, message)

    return forward


def process_failure(task: Task, error: BaseException) -> Failure:
    """Return the outcome of a run whose process died, for lack of memory for instance."""
    return Failure(task.seed, f"Its process ended: {first_line(error)}")
