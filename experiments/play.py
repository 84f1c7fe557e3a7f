"""Playing what is missing: a file for each run, one after the other or in several processes.

A run leaves runs/KEY.json with its words, history, settings and status, and on what it was made.
Nothing else is written while it is played, so one that is broken off begins anew, unless
`checkpoint_every` is given (and safetensors are installed).
"""

import importlib
import json
import multiprocessing
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from benchmarks.keep import machine, versions

from tunefree.core.device import find_device
from tunefree.core.errors import first_line
from tunefree.core.files import to_json, write_atomically
from tunefree.study.work import NOT_RUN, Failure, Outcome, Watch, do, notes
from tunefree.training.callbacks import Event
from tunefree.training.folder import is_history_row
from tunefree.training.run import Run

from .source import Source
from .special import SPECIAL
from .wanted import Wanted, place


class Crew:
    """Those who play: this process, or several that stay until the end.

    Args:
        source: Where the arguments of runs come from.
        folder: Where runs are kept.
        watch: Who looks on.
        jobs: Processes; with 0 nothing is played.
    """

    def __init__(self, source: Source, folder: Path, watch: Watch, jobs: int) -> None:
        self.source, self.folder, self.watch, self.jobs = source, folder, watch, jobs
        self.played = 0  # runs that were not there
        self._pool: ProcessPoolExecutor | None = None
        context = multiprocessing.get_context("spawn")
        self._stop, self._said = context.Event(), context.Queue()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def perform(self, tasks: Sequence[Wanted]) -> Iterator[tuple[Wanted, Outcome]]:
        """Play the runs that are missing and yield every one, those that are there first."""
        unique = list({task.key: task for task in tasks}.values())
        self.watch.plan(unique)
        missing = []
        for task in unique:
            found = kept(place(self.folder, task))
            if found is None:
                missing.append(task)
                continue
            self.watch.end(task, found, False)
            yield task, found
        if not self.jobs:
            yield from ((task, Failure(task.seed, NOT_RUN)) for task in missing)
            return
        for task, outcome in self._together(missing) if self.jobs > 1 else self._in_turn(missing):
            self.played += 1
            self.watch.end(task, outcome, True)
            yield task, outcome

    def _in_turn(self, tasks: Sequence[Wanted]) -> Iterator[tuple[Wanted, Outcome]]:
        for task in tasks:

            def show(event: Event, task: Wanted = task) -> None:
                self.watch.round(task, event.row)

            with notes(self.watch, task):
                outcome = one(task, self.source, self.folder, show)
            yield task, outcome

    def _together(self, tasks: Sequence[Wanted]) -> Iterator[tuple[Wanted, Outcome]]:
        if tasks and self._pool is None:
            context = multiprocessing.get_context("spawn")
            given = (self.source, self.folder, self._stop, self._said)
            self._pool = ProcessPoolExecutor(self.jobs, context, _enter, given)
        names = {task.key: task for task in tasks}
        waiting = {self._pool.submit(_work, task): task for task in tasks} if self._pool else {}
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for key, news in _news(self._said):
                if isinstance(news, str):
                    self.watch.say(news)
                elif key in names:
                    self.watch.round(names[key], news)
            for future in done:
                task, error = waiting.pop(future), future.exception()
                if error is not None:  # the process died: no memory, say
                    yield task, Failure(task.seed, f"Its process ended: {first_line(error)}")
                    continue
                found = future.result() or kept(place(self.folder, task))
                yield task, found or Failure(task.seed, NOT_RUN)


def kept(path: Path) -> Run | None:
    """Return a run that has ended, None if there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
        status, history, settings = found["status"], found["history"], found["settings"]
        right = (
            isinstance(settings, dict)
            and isinstance(history, list)
            and all(map(is_history_row, history))
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not right:
        return None
    if "made" in found:
        settings["made"] = found["made"]
    nothing = torch.empty(0)
    return Run(nothing, nothing, history, settings, status, path)


def made(device: str) -> dict[str, Any]:
    """Return on what, with what and when a run was made."""
    on = machine(find_device(device))
    return {"machine": on, "versions": versions(), "date": datetime.now(UTC).strftime("%Y-%m-%d")}


def _can_save() -> bool:
    try:
        importlib.import_module("safetensors")
    except ImportError:
        return False
    return True


def keep(path: Path, task: Wanted, run: Run, seconds: float) -> None:
    """Write down a run that has ended."""
    facts = {
        "label": task.label,
        "words": task.words,
        "status": run.status,
        "seconds": seconds,
        "made": run.settings["made"],
        "settings": {k: v for k, v in run.settings.items() if k != "made"},
        "history": run.history,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_json(facts).encode())


def one(task: Wanted, source: Source, folder: Path, show: Callable[[Event], object]) -> Outcome:
    """Play one run and write it down; a failure is an outcome too, and is not written."""
    began, words = time.perf_counter(), task.words
    if words["kind"] in SPECIAL:
        outcome = SPECIAL[words["kind"]](task, source)
        if isinstance(outcome, Run):
            outcome.history[0]["seconds"] = time.perf_counter() - began
    else:
        often = words.get("checkpoint_every") if _can_save() else None
        live = folder / "live" / task.key
        outcome, _ = do(replace(task, out=live if often else None), source, show)
        if often and isinstance(outcome, Run):
            shutil.rmtree(live, ignore_errors=True)
    if isinstance(outcome, Run):
        outcome.settings["made"] = made(source.device)
        keep(place(folder, task), task, outcome, time.perf_counter() - began)
    return outcome


def _news(said: Any) -> Iterable[tuple[str, Any]]:
    while True:
        try:
            yield said.get_nowait()
        except queue.Empty:
            return


_mine: dict[str, Any] = {}  # what a process of the pool was given


def _enter(source: Source, folder: Path, stop: Any, said: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # the terminal's Ctrl-C is for the first process, which sets `stop`
    said.cancel_join_thread()
    _mine.update(source=source, folder=folder, stop=stop, said=said)
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(task: Wanted) -> Failure | None:
    stop, said = _mine["stop"], _mine["said"]

    def show(event: Event) -> None:
        said.put((task.key, event.row))
        if stop.is_set():
            signal.raise_signal(signal.SIGINT)

    class Teller(Watch):
        def say(self, line: str) -> None:
            said.put((task.key, line))

    if stop.is_set():
        return Failure(task.seed, NOT_RUN)
    try:
        with notes(Teller(), task):
            outcome = one(task, _mine["source"], _mine["folder"], show)
    except KeyboardInterrupt:
        return Failure(task.seed, "stopped by Ctrl-C")
    return outcome if isinstance(outcome, Failure) else None
