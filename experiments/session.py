"""Training the next runs of the queue for some minutes, in several processes."""

import shutil
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tunefree.core.files import to_json, write_atomically
from tunefree.study.pool import ProcessPool, Worker
from tunefree.study.tasks import FailedRun
from tunefree.training.callbacks import Event

from .backlog import Backlog
from .carry import bring_home, pack_cut
from .runner import digest_code, live_path, train_run
from .runs import RunSpec
from .schedule import Costs, Item
from .source import ExperimentSource

CODE = "code"  # in the folder of a run that has not ended, the code that began it
GRACE = 20.0  # seconds that runs have to stop
BETWEEN = 60.0  # seconds between checkpoints, about


class Session:
    """Training the next runs of the queue until a time limit.

    Args:
        backlog: The queue.
        end: When everything has ended, by `time.monotonic`.
        out: Folder for what comes home, or None.
        jobs: Processes, at most.
        device: As `fit` takes it.
    """

    def __init__(
        self, backlog: Backlog, end: float, out: Path | None, jobs: int, device: str
    ) -> None:
        self._backlog, self._out, self._jobs, self._end = backlog, out, jobs, end
        self._began = time.monotonic()
        self._last = end - min(GRACE, (end - self._began) / 4)  # then runs are asked to stop
        self._running: dict[RunSpec, Item] = {}
        self._ended: set[str] = set()
        self._done = self._failed = 0
        self._stop = False
        source = ExperimentSource(device, backlog.data_dir)
        self._pool: ProcessPool[RunSpec, tuple[str, str]] = ProcessPool(
            partial(train_in_worker, source=source, folder=backlog.work), jobs
        )

    def train(self) -> bool:
        """Train until the time is over or nothing is left; return whether all processes ended."""
        before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._look()
            bring_home(self._backlog, self._out)
            self._loop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        pack_cut(self._backlog, self._out)
        if not self._running:
            self._pool.close()
        return not self._running

    def _loop(self) -> None:
        asked = False
        while True:
            now = time.monotonic()
            self._stop = self._stop or now >= self._last
            if not self._stop:
                self._fill(now)
            elif not asked:
                asked = True
                self._pool.request_stop()
                print(f"Stopping; runs that are asked to end: {len(self._running)}.", flush=True)
            if not self._running or (asked and now >= self._end):
                return
            for spec, result in self._pool.poll(lambda spec, message: print(message, flush=True)):
                self._take(self._running.pop(spec), result)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop = True
        self._end = min(self._end, time.monotonic() + GRACE)

    def _look(self) -> None:
        """Find the runs that can be started."""
        self._able = [i for i in self._backlog.items if self._backlog.state(i) in ("open", "cut")]

    def _fill(self, now: float) -> None:
        """Start the next runs."""
        for item in self._choose(now):
            spec = save_often(item.spec, self._backlog.costs)
            self._running[spec] = item
            self._pool.submit(spec)

    def _choose(self, now: float) -> list[Item]:
        left = self._last - now
        if len(self._running) >= self._jobs or left < self._backlog.costs.start:
            return []
        running = list(self._running.values())
        skip = self._ended | {item.key for item in running}
        able = [item for item in self._able if item.key not in skip]
        return choose(able, running, self._jobs, left, self._backlog.costs)

    def _take(self, item: Item, result: tuple[str, str] | BaseException) -> None:
        if isinstance(result, BaseException):
            status, reason = "failed", f"its process ended: {result}"
            self._stop = True  # the other processes ended with it
        else:
            status, reason = result
        self._ended.add(item.key)
        if status == "done" and self._backlog.add(item):
            self._done += 1
            bring_home(self._backlog, self._out)
            if item.grid and all(i.key in self._ended for i in self._able if i.grid == item.grid):
                self._backlog.plan()  # with the settings that were found
                self._look()
        self._failed += status == "failed"
        left = max(0.0, self._end - time.monotonic()) / 60
        said = f": {reason}" if reason else ""
        print(f"{status}: {item.name}{said} ({left:.1f} min left)", flush=True)

    def summary(self) -> str:
        """Return what was done, in a sentence."""
        failed = f", {self._failed} failed" if self._failed else ""
        took = (time.monotonic() - self._began) / 60
        new = len(self._backlog.list_new())
        return f"{self._done} runs done{failed} in {took:.2f} min; {new} are not kept yet."


def choose(
    able: Sequence[Item], running: Collection[Item], jobs: int, left: float, costs: Costs
) -> list[Item]:
    """Return the runs to start now: in order, but those first that end in the seconds left."""
    fits = [item for item in able if costs.seconds(item.spec) <= left]
    keys = {item.key for item in fits}
    out: list[Item] = []
    for item in (*fits, *(item for item in able if item.key not in keys)):
        together = [*running, *out]
        room = min([jobs, item.entry.side, *(one.entry.side for one in together)])
        alone = any(one.entry.found.alone for one in (*together, item))
        if len(together) >= (1 if alone else room):
            break  # the next one has to wait, and none overtakes it
        out.append(item)
    return out


def save_often(spec: RunSpec, costs: Costs) -> RunSpec:
    """Return the run with a checkpoint about every minute, where it does not say how often."""
    rounds = max(1, round(spec.rounds * BETWEEN / costs.seconds(spec)))
    words = {"checkpoint_every": min(rounds, spec.rounds), **spec.words}
    return replace(spec, text=to_json(dict(sorted(words.items()))))


def train_in_worker(
    spec: RunSpec, worker: Worker, source: ExperimentSource, folder: Path
) -> tuple[str, str]:
    """Train a run in a process of the pool, or continue it if the same code began it.

    Returns:
        "done", "cut" or "failed", and the reason.
    """

    def look(event: Event) -> None:
        if worker.stop_requested:
            event.request_stop()

    if worker.stop_requested:
        return "cut", ""
    live = live_path(folder, spec)
    mark = live / CODE
    if not mark.exists() or mark.read_text() != digest_code():
        shutil.rmtree(live, ignore_errors=True)
    again = live.exists()
    try:
        while True:
            live.mkdir(parents=True, exist_ok=True)
            write_atomically(mark, digest_code().encode())
            outcome, _ = train_run(spec, look, source, folder)
            if not isinstance(outcome, FailedRun):
                return "done", "" if outcome.status == "finished" else outcome.status
            shutil.rmtree(live, ignore_errors=True)
            if not again:
                return "failed", outcome.reason
            again = False
            worker.send(f"{spec.label}, seed {spec.seed} starts again: {outcome.reason}")
    except KeyboardInterrupt:
        return "cut", ""
