"""Suite busy: rounds of `fit` on cores that other programs use.

For each number of other programs (processes that count for as long as they are not ended), a work
of suite cpu is played by two new processes: as it is, and with PyTorch's threads waiting for each
other as they do by themselves (`core/threads.py`). The first rounds are not counted: in them it is
found out that the cores are busy.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tunefree.core.errors import ArgumentError, check_int, unknown_name

from .cpu import DATA
from .text import format_range
from .timing import Say, measure_beside, run_module, silent
from .workload import Workload

COUNTING = "import time; end = time.time() + 600\nwhile time.time() < end: pass"
WARM = 3  # rounds
CLIENTS, STEPS = 20, 20


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Settings of the suite.

    Args:
        models: Networks of suite cpu, uncompiled.
        programs: Numbers of other programs.
        repeats: Rounds that are measured.
        device: cpu.
    """

    models: tuple[str, ...] = ("mlp",)
    programs: tuple[int, ...] = (0, 1, 2, 4)
    repeats: int = 5
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in self.models:
            if name not in DATA:
                raise unknown_name("model", name, DATA)
        for count in self.programs:
            check_int("Busy", "programs", count, 0)
        check_int("Busy", "repeats", self.repeats)
        if self.device != "cpu":
            raise ArgumentError(f"Busy(device=...) must be 'cpu', got {self.device!r}.")


def measure(settings: Busy, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per network and number of programs."""
    rows = []
    for name in settings.models:
        for count in settings.programs:
            with keep_busy(count):
                found = {w: _play(name, settings.repeats, w) for w in ("limited", "unlimited")}
            row: dict[str, Any] = {"model": name, "programs": count}
            for which, one in found.items():
                row |= {f"{which}_{key}": one[f"ours_{key}"] for key in ("ms", "ms_range")}
            say(f"{name}, {count}: {row['limited_ms']:.3g} ms, {row['unlimited_ms']:.3g} ms")
            rows.append(row)
    return rows


@contextmanager
def keep_busy(programs: int) -> Iterator[None]:
    """Keep so many processes busy inside."""
    running = [subprocess.Popen([sys.executable, "-c", COUNTING]) for _ in range(programs)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _play(name: str, repeats: int, which: str) -> dict[str, Any]:
    """Return what a new process found."""
    words = ["benchmarks.busy", name, str(repeats), which]
    return run_module(words, f"The process that plays {name}")


def play(name: str, repeats: int, which: str) -> dict[str, Any]:
    """Play a work in this process and return its row."""
    shape, classes = DATA[name]
    work = Workload(net=name, shape=shape, classes=classes, clients=CLIENTS, batch=32, steps=STEPS)
    return measure_beside(
        work,
        torch.device("cpu"),
        warm=WARM,
        repeats=repeats,
        plain_repeats=0,
        compile=False,
        limit_waits=which == "limited",
    )


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "model": row["model"],
            "other programs": str(row["programs"]),
            "ours, ms": format_range(row, "limited_ms"),
            "waiting as by default, ms": format_range(row, "unlimited_ms"),
        }
        for row in rows
    ]


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
