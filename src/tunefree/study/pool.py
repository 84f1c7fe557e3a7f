"""Runs in several processes, each with one run at a time and one thread.

The runs are started by words (a recipe), so that only words cross, and stay in their folders.
Ctrl-C reaches the first process alone, which asks the others to stop after their round.
"""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import torch

from ..core.errors import ArgumentError, first_line
from ..training.callbacks import Event
from .work import NOT_RUN, Failure, Outcome, Source, Task, Watch, do, notes, standing


def together(
    tasks: Sequence[Task], source: Source, watch: Watch, jobs: int
) -> Generator[tuple[Task, Outcome, bool], None, None]:
    """Do the runs in so many processes; yield each as it ends, and whether it was played."""
    if any(task.out is None for task in tasks):
        raise ArgumentError("jobs > 1 needs a folder: the processes leave their runs there.")
    context = multiprocessing.get_context("spawn")
    stop, said = context.Event(), context.Queue()
    pool = ProcessPoolExecutor(jobs, context, _enter, (source, stop, said))

    def listen() -> None:
        while True:
            try:
                task, news = said.get_nowait()
            except queue.Empty:
                return
            if isinstance(news, str):
                watch.say(news)
            else:
                watch.round(task, news)

    try:
        waiting = {pool.submit(_work, task): task for task in tasks}
        while waiting:
            done, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            listen()
            for future in done:
                task, error = waiting.pop(future), future.exception()
                if error is not None:  # the process died: no memory, say
                    yield task, Failure(task.seed, f"Its process ended: {first_line(error)}"), True
                    continue
                failure, played = future.result()
                yield task, failure or standing(task), played
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


_mine: dict[str, Any] = {}  # what a process of the pool was given


def _enter(source: Source, stop: Any, said: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # the terminal's Ctrl-C is for the first process, which sets `stop`
    said.cancel_join_thread()  # news that nobody reads must not keep the process
    _mine.update(source=source, stop=stop, said=said)
    threading.Thread(
        target=_end_with, args=(multiprocessing.parent_process(),), daemon=True
    ).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(task: Task) -> tuple[Failure | None, bool]:
    """Do one run in a process of the pool; the run itself stays in its folder."""
    stop, said = _mine["stop"], _mine["said"]

    def show(event: Event) -> None:
        said.put((task, event.row))
        if stop.is_set():
            event.request_stop()

    class Teller(Watch):
        def say(self, line: str) -> None:
            said.put((task, line))

    if stop.is_set():
        return Failure(task.seed, NOT_RUN), False
    try:
        with notes(Teller(), task):
            outcome, played = do(task, _mine["source"], show)
    except KeyboardInterrupt:
        return Failure(task.seed, "stopped by Ctrl-C"), True
    return (outcome if isinstance(outcome, Failure) else None), played
