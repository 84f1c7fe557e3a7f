"""Timing: a callback that times the rounds of `fit`, and plain rounds between them.

A round of ours lasts from the end of this callback to its next call, the device idle at both ends:
the draw of the cohort, gathering, training, the ledger, the history, whatever `fit` does. After a
round of ours the callback plays and times one round of the plain loop, so that a noisy machine
disturbs both alike; where rounds are short, several of ours and then as many plain ones: in a run,
too, a round finds in the caches what the last one left. The first rounds are not counted on either
side: engines compile or record graphs in them. Set-up is the time until the first round is over,
less one round as they are later.
"""

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tunefree.core.errors import TunefreeError
from tunefree.core.threads import WAIT_LIMITER
from tunefree.methods import get
from tunefree.models.problem import Precision
from tunefree.training.callbacks import Event
from tunefree.training.config import Engine
from tunefree.training.fit import fit

from .workload import LR, HandLoop, PlainLoop, Workload

Say = Callable[[str], object]


def silent(line: str) -> None:
    """Print nothing."""


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, until the device is idle."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def run_module(
    words: list[str], title: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what a module, run by a new process, prints as JSON on its last line."""
    command = [sys.executable, "-m", *words]
    around = os.environ | (env or {})
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TunefreeError(f"{title} failed: {said}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class PeakMemory:
    """Peak memory since construction.

    On a GPU what PyTorch held beyond what it holds now; else the largest resident size that this
    process ever had, interpreter and libraries included.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            gc.collect()  # what earlier runs left in reference cycles is not held any more
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def peak(self) -> int:
        """Return bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self._before
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class RoundTimer:
    """A callback of `fit` that times its rounds.

    Args:
        device: Where the rounds are played.
        warm: Rounds that are not counted, >= 1.
        plain: Plays one round of the plain loop, or None.
        repeats: How many plain rounds are timed, one after each of our first counted rounds; one
            more is played before them.
        every: Wait for the device after every so many rounds; 1 times each round by itself.
        block: Rounds of ours between which no plain one is played, then as many plain ones; they
            are reported by their mean.
        hand: Plays one round of the hand-optimised loop after each of the plain loop, or None.

    Attributes:
        took: Seconds of each of our rounds; the first one's are from the making of this object.
        plain: Seconds of a plain round, one number a block.
        hand: The same of the hand-optimised loop.
        memory: Bytes at the most; the plain loop, which trains one client at a time, needs less.
    """

    def __init__(
        self,
        device: torch.device,
        warm: int = 1,
        plain: Callable[[], object] | None = None,
        repeats: int = 0,
        every: int = 1,
        block: int = 1,
        hand: Callable[[], object] | None = None,
    ) -> None:
        self.device, self.warm, self.every, self.block = device, warm, every, block
        self._repeats = repeats if plain is not None else 0
        self.took: list[float] = []
        self.plain: list[float] = []
        self.hand: list[float] = []
        self._plays = [(p, t) for p, t in ((plain, self.plain), (hand, self.hand)) if p is not None]
        self._peak = PeakMemory(device)
        self.memory = 0
        self._since = time.perf_counter()

    def __call__(self, event: Event) -> None:
        """Stop the clock, run the plain loop, start the clock."""
        counted, rest = divmod(event.round + 1 - self.warm, self.block)
        turn = 0 <= counted <= self._repeats and rest == 0 and bool(self._plays)
        if turn or (event.round + 1) % self.every == 0:
            synchronize(self.device)
        self.took.append(time.perf_counter() - self._since)
        self.memory = self._peak.peak()
        for play, times in self._plays if turn else ():
            took = [time_call(play, self.device) for _ in range(self.block)]
            times += [statistics.mean(took)] if counted else []
        self._since = time.perf_counter()

    @property
    def ours(self) -> list[float]:
        """Seconds of a counted round, one number a block."""
        rounds = self.took[self.warm :]
        blocks = (rounds[i : i + self.block] for i in range(0, len(rounds), self.block))
        return [statistics.mean(block) for block in blocks]

    @property
    def setup(self) -> float:
        """Seconds before the first round, and those that it took beyond an ordinary one."""
        return max(0.0, self.took[0] - statistics.median(self.ours))


def summarize(name: str, values: list[float], scale: float = 1.0) -> dict[str, Any]:
    """Return the median and the range of values, by name."""
    scaled = [v * scale for v in values]
    if not scaled:
        return {name: None, f"{name}_range": None}
    return {name: statistics.median(scaled), f"{name}_range": (min(scaled), max(scaled))}


def measure_beside(
    work: Workload,
    device: torch.device,
    *,
    warm: int,
    repeats: int,
    plain_repeats: int,
    block: int = 1,
    method: str = "fedavg",
    compile: bool | None = None,
    precision: Precision = "auto",
    hand: bool = False,
    limit_waits: bool = False,
) -> dict[str, Any]:
    """Return one row: `fit` beside the plain loop, in milliseconds per cohort-step.

    A cohort-step is one local step of every client of the cohort; a round's time is divided by its
    local steps. A ratio is that of the medians, its range over blocks that followed each other.
    With `hand`, the row has the hand-optimised loop too. PyTorch's threads wait as by default, on
    both sides, unless `limit_waits`.
    """
    if not limit_waits:
        WAIT_LIMITER.update = lambda: None  # type: ignore[method-assign]
    pair, model = work.data(), work.model()
    began = time.perf_counter()
    data = work.federation(pair)
    dealt = time.perf_counter() - began
    cohort = work.cohort or work.clients

    def make(loop: type[PlainLoop]) -> PlainLoop:
        sizes = {"cohort": cohort, "batch": work.batch, "steps": work.steps}
        return loop(work.model(), data.to(device), **sizes, precision=precision)

    by_hand = make(HandLoop).round if hand else None
    plays = (make(PlainLoop).round, plain_repeats)
    watch = RoundTimer(device, warm, *plays, block=block, hand=by_hand)
    run = fit(
        model,
        data,
        get(method, lr=LR, weights="uniform"),
        rounds=warm + repeats * block,
        cohort=cohort,
        steps=work.steps,
        batch=work.batch,
        device=device,
        compile=compile,
        callbacks=[watch],
        engine=Engine(precision=precision),
    )
    check_finished(run.status)
    each = 1e3 / work.steps
    ours = summarize("ours_ms", watch.ours, each)
    return {
        "model": work.net,
        "parameters": run.settings["model"]["parameters"],
        "clients": work.clients,
        "cohort": cohort,
        "batch": work.batch,
        "steps": work.steps,
        "precision": run.settings.get("precision", precision),
        "engine": run.settings.get("engine"),
        "chunk": run.settings.get("chunk"),
        **ours,
        **_compare("plain_ms", "ratio", watch.ours, watch.plain, each),
        **(_compare("hand_ms", "hand_ratio", watch.ours, watch.hand, each) if hand else {}),
        "repeats": len(watch.ours),
        "block": block,
        "plain_repeats": len(watch.plain),
        "setup_s": watch.setup,
        "federation_s": dealt,
        "memory": watch.memory,
    }


def _compare(
    name: str, ratio: str, ours: list[float], other: list[float], scale: float
) -> dict[str, Any]:
    """Return another loop's times, and their ratio to ours."""
    pairs = [b / a for a, b in zip(ours, other, strict=False)]
    times, near = summarize(name, other, scale), summarize(ratio, pairs)
    if pairs:
        near[ratio] = statistics.median(other) / statistics.median(ours)
    return times | near


def check_finished(status: str) -> None:
    """Raise an error for a run that ended early."""
    if status != "finished":
        raise TunefreeError(f"The measured run ended early ({status}), so it says nothing.")
