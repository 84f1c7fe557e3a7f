"""Training the runs of a study: one after the other, or in a pool of processes.

Each process of the pool does one task at a time with one thread. Only the tasks, their results and
messages cross between processes. Only the first process receives Ctrl-C; when the pool is closed,
the others see `Worker.stop_requested` and end early.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, Generic, Self, TypeVar

import torch

from ..core.errors import ArgumentError, first_line
from ..core.ranks import init_ranks
from ..training.callbacks import Callback, Event
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

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")
RunT = TypeVar("RunT", bound=RunTask)
TrainTask = Callable[[RunT, Callback], tuple[Outcome, bool]]
"""Trains a run; returns its outcome, and whether it was trained (not read from disk)."""


class Worker:
    """What a task sees of the pool, in the process that does it."""

    def __init__(self, task: Any, stop: Any, messages: Any) -> None:
        self._task, self._stop, self._messages = task, stop, messages

    @property
    def stop_requested(self) -> bool:
        """Whether the task should end early."""
        return bool(self._stop.is_set())

    def send(self, message: Any) -> None:
        """Send a message to the first process, beside the result."""
        self._messages.put((self._task, message))


class ProcessPool(Generic[TaskT, ResultT]):
    """Processes that do tasks; they are started with the first one and live until `close`.

    Args:
        work: Does one task, `work(task, worker) -> result`; picklable, sent to each process once.
        jobs: Number of processes.
    """

    def __init__(self, work: Callable[[TaskT, Worker], ResultT], jobs: int) -> None:
        self._work, self._jobs = work, jobs
        context = multiprocessing.get_context("spawn")
        self._context, self._stop, self._messages = context, context.Event(), context.Queue()
        self._executor: ProcessPoolExecutor | None = None
        self._waiting: dict[Future[ResultT], TaskT] = {}

    def run(
        self, tasks: Sequence[TaskT], on_message: Callable[[TaskT, Any], object]
    ) -> Iterator[tuple[TaskT, ResultT | BaseException]]:
        """Do the tasks and yield each with its result as it ends.

        If a process died, the result is the exception. In between messages are passed to
        `on_message`; those that arrive after their task's result are dropped.
        """
        for task in tasks:
            self.submit(task)
        while self._waiting:
            yield from self.poll(on_message)

    def submit(self, task: TaskT) -> None:
        """Do a task as soon as a process is free; `poll` returns its result."""
        if self._executor is None:
            given = (self._work, self._stop, self._messages)
            self._executor = ProcessPoolExecutor(self._jobs, self._context, _start_process, given)
        self._waiting[self._executor.submit(_do_task, task)] = task

    def poll(
        self, on_message: Callable[[TaskT, Any], object]
    ) -> list[tuple[TaskT, ResultT | BaseException]]:
        """Wait a tenth of a second at most; return the tasks that have ended, as `run` does."""
        done, _ = wait(self._waiting, timeout=0.1, return_when=FIRST_COMPLETED)
        while not self._messages.empty():
            task, message = self._messages.get()
            if task in self._waiting.values():  # else it came after the task's result
                on_message(task, message)
        return [(self._waiting.pop(f), f.exception() or f.result()) for f in done]

    def request_stop(self) -> None:
        """Ask the processes to end their tasks early."""
        self._stop.set()

    def close(self) -> None:
        """Ask the processes to stop, and wait for them."""
        self.request_stop()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_state: dict[str, Any] = {}  # of a process of the pool


def _start_process(work: Any, stop: Any, messages: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # the terminal's Ctrl-C is for the first process, which sets `stop`
    messages.cancel_join_thread()  # unread messages must not keep the process alive
    _state.update(work=work, stop=stop, messages=messages)
    parent = multiprocessing.parent_process()
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _do_task(task: Any) -> Any:
    return _state["work"](task, Worker(task, _state["stop"], _state["messages"]))


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


class RunPool(Generic[RunT]):
    """Trains runs in this process, or in several (`jobs`) that live until `close`.

    In several, `train` must be picklable, and `load` reads a run that a process has left on disk.
    """

    def __init__(self, train: TrainTask[RunT], load: Callable[[RunT], Outcome], jobs: int) -> None:
        self._train, self._load = train, load
        work = partial(_train_in_worker, train=train)
        self._processes = ProcessPool(work, jobs) if jobs > 1 else None

    def close(self) -> None:
        """Ask the processes to stop, and wait for them."""
        if self._processes is not None:
            self._processes.close()

    def run(
        self, tasks: Sequence[RunT], listener: ProgressListener
    ) -> Generator[tuple[RunT, Outcome, bool], None, None]:
        """Train the runs; yield each as it ends, with its outcome and whether it was trained."""
        if self._processes is None:
            for task in tasks:
                yield task, *self._train_here(task, listener)
            return

        def forward(task: RunT, message: Any) -> None:
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

    def _train_here(self, task: RunT, listener: ProgressListener) -> tuple[Outcome, bool]:
        is_shown = type(listener) is not ProgressListener  # else warnings are logged as usual
        with forward_warnings(listener.on_message, task) if is_shown else nullcontext():
            return self._train(task, lambda event: listener.on_round(task, event.row))


def _train_in_worker(
    task: RunT, worker: Worker, train: TrainTask[RunT]
) -> tuple[FailedRun | None, bool]:
    """Train a run and leave it on disk; return its failure or None, and whether it was trained."""

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
