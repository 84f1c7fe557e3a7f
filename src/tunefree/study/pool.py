"""A pool of processes for long tasks that report progress and can be asked to stop.

Each process does one task at a time with one thread. Only the tasks, their results and messages
cross between processes. Only the first process receives Ctrl-C; when the pool is closed, the others
see `Worker.stop_requested` and end early.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Generic, Self, TypeVar

import torch

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


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
