"""Training the runs of a study, one after the other or in several processes."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from ..core.errors import ArgumentError
from ..simulation.ranks import init_ranks
from ..training.callbacks import Event
from .pool import together
from .work import Outcome, Source, Task, Watch, do, notes


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
    work = together(tasks, source, watch, jobs) if jobs > 1 else _run_in_turn(tasks, source, watch)
    with closing(work) as done:
        for task, outcome, played in done:
            watch.end(task, outcome, played)
            yield task, outcome


def _run_in_turn(
    tasks: Sequence[Task], source: Source, watch: Watch
) -> Generator[tuple[Task, Outcome, bool], None, None]:
    for task in tasks:

        def show(event: Event, task: Task = task) -> None:
            watch.round(task, event.row)

        with notes(watch, task):
            outcome, played = do(task, source, show)
        yield task, outcome, played
