"""Suite scale: how time and memory grow with clients, cohort, parameters and local steps.

Each point is a process of its own, so that its peak memory is its own. One quantity of `BASE`
changes at a time:

    clients     1,000 to 1,000,000, for a method that remembers nothing of a client (fedavg) and one
                that does (scaffold); one sample of 784 numbers each (3.1 GB for a million), the
                linear network, cohorts of 100, 5 steps
    cohort      10 to 1,000 of 2,000 clients
    parameters  784-10 (7,850) to 784-2048-2048-2048-10 (10 million), cohorts of 10
    steps       1 to 100

Set-up is that of the federation and of `fit`, without the drawing of random numbers. Required: for
a million clients less than 60 s, and rounds at most 1.3 times as long as with 1,000. These two are
measured in turns, several times, so that a noisy machine disturbs both alike; the median of the
quotients counts.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, TunefreeError, check_int, unknown_name
from tunefree.core.files import to_json

from .text import format_bytes, format_number, format_range
from .timing import PeakMemory, Say, measure_beside, silent
from .workload import Workload

SHAPE, CLASSES = (1, 28, 28), 10
BASE: dict[str, Any] = {
    "method": "fedavg",
    "clients": 2000,
    "samples": 8,
    "cohort": 100,
    "steps": 5,
    "hidden": (),
}
COUNTS = (1000, 10_000, 100_000, 1_000_000)
CURVES: dict[str, list[dict[str, Any]]] = {
    "clients": [
        {"method": method, "clients": n, "samples": 1}
        for method in ("fedavg", "scaffold")
        for n in COUNTS
    ],
    "cohort": [{"cohort": m} for m in (10, 30, 100, 300, 1000)],
    "parameters": [
        {"hidden": hidden, "cohort": 10}
        for hidden in ((), (128, 64), (512, 512), (1024,) * 3, (2048,) * 3)
    ],
    "steps": [{"steps": k} for k in (1, 3, 10, 30, 100)],
}
WARM_STEPS = 25  # an engine that records graphs has done so by then
LARGE = 10**8  # parameters x cohort x steps from which on few rounds are enough
SETUP, TIMES = 60.0, 1.3  # required of a million clients
TURNS = 5  # in which they are compared with the first point
ROOT = Path(__file__).parents[1]
CHILD = "from benchmarks.scale import child; child()"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Settings of the suite.

    Args:
        curves: clients, cohort, parameters, steps; all by default.
        most: Leave out points with more clients, a larger cohort or more steps than this.
        repeats: Rounds measured on each side; 3 where a round takes long.
        device: auto, cpu, cuda, ...
        threads: Threads of PyTorch on the CPU; 0 leaves its own choice.
    """

    curves: tuple[str, ...] = tuple(CURVES)
    most: int = COUNTS[-1]
    repeats: int = 9
    device: str = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        for name in self.curves:
            if name not in CURVES:
                raise unknown_name("curve", name, CURVES)
        if not self.curves:
            raise ArgumentError("Scale(curves=...) must name at least one curve, got none.")
        check_int("Scale", "most", self.most)
        if not any(_within(c, self.most) for name in self.curves for c in CURVES[name]):
            raise ArgumentError(f"Scale(most={self.most}) leaves no point of these curves.")
        check_int("Scale", "repeats", self.repeats)
        check_int("Scale", "threads", self.threads, 0)


def measure(settings: Scale, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per point; `times` compares a round with the curve's first."""
    find_device(settings.device)
    rows: list[dict[str, Any]] = []
    for curve in settings.curves:
        first: dict[str, tuple[dict[str, Any], float]] = {}
        for change in CURVES[curve]:
            if not _within(change, settings.most):
                continue
            point = BASE | change
            say(f"{curve}: " + ", ".join(f"{k} {v}" for k, v in change.items()))
            row = {"curve": curve} | _in_a_process(point, settings)
            start, took = first.setdefault(point["method"], (point, row["round_ms"]))
            row["times"] = row["round_ms"] / took
            row["times_range"] = (row["times"],) * 2
            if curve == "clients" and row["clients"] == COUNTS[-1]:
                row |= _in_turns(start, point, settings)
                met = row["setup_s"] < SETUP and row["times"] <= TIMES
                row |= {"setup_limit_s": SETUP, "times_limit": TIMES, "met": met}
            say(f"  {format_number(row['round_ms'])} ms a round, {format_bytes(row['memory'])}")
            rows.append(row)
    return rows


def _within(change: dict[str, Any], most: int) -> bool:
    return max(v for v in change.values() if isinstance(v, int)) <= most


def _in_turns(first: dict[str, Any], last: dict[str, Any], settings: Scale) -> dict[str, Any]:
    """Return how many times as long a round takes at the last point as at the first."""
    found = [
        [_in_a_process(point, settings)["round_ms"] for point in (first, last)]
        for _ in range(TURNS)
    ]
    times = [after / before for before, after in found]
    return {"times": statistics.median(times), "times_range": (min(times), max(times))}


def _in_a_process(point: dict[str, Any], settings: Scale) -> dict[str, Any]:
    words = point | {
        "repeats": settings.repeats,
        "device": settings.device,
        "threads": settings.threads,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(words)],
        capture_output=True,
        text=True,
        cwd=ROOT,  # where `benchmarks` can be imported
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise TunefreeError(f"The point {json.dumps(point)} could not be measured: {said[0]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def child() -> None:
    """Measure the point that the command line names, and print it."""
    print(to_json(measure_point(**json.loads(sys.argv[1]))))


def measure_point(
    *,
    method: str,
    clients: int,
    samples: int,
    cohort: int,
    steps: int,
    hidden: tuple[int, ...],
    repeats: int,
    device: str,
    threads: int,
) -> dict[str, Any]:
    """Return one row: milliseconds of a round on both sides, set-up, memory."""
    if threads:
        torch.set_num_threads(threads)
    place = find_device(device)
    host = PeakMemory(torch.device("cpu"))
    before = host.peak()
    work = Workload(
        net="mlp" if hidden else "linear",
        shape=SHAPE,
        classes=CLASSES,
        clients=clients,
        cohort=cohort,
        batch=samples,
        steps=steps,
        samples=samples,
        args={"hidden": hidden} if hidden else {},
    )
    large = sum(p.numel() for p in work.model().parameters()) * cohort * steps >= LARGE
    repeats = min(repeats, 3) if large else repeats
    warm = 2 if large else 1 + -(-WARM_STEPS // steps)
    row = measure_beside(
        work, place, warm=warm, repeats=repeats, plain_repeats=repeats, method=method
    )
    for side, name in (("ours", "round_ms"), ("plain", "plain_ms")):
        row[name] = row[f"{side}_ms"] * steps
        row[f"{name}_range"] = [v * steps for v in row[f"{side}_ms_range"]]
    row["setup_s"] += row["federation_s"]
    started = {
        "method": method,
        "samples": samples,
        "host_memory": host.peak(),
        "host_memory_at_start": before,
    }
    kept = ["clients", "cohort", "parameters", "steps", "engine", "setup_s", "repeats", "memory"]
    kept += ["round_ms", "round_ms_range", "plain_ms", "plain_ms_range", "ratio", "ratio_range"]
    return started | {name: row[name] for name in kept}


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "point": f"{row['curve']} {row[row['curve']]:,}{_method(row)}",
            "ours, ms": format_range(row, "round_ms"),
            "to the first point": format_range(row, "times", "x"),
            "plain loop, ms": format_range(row, "plain_ms"),
            "set-up": f"{row['setup_s']:.1f} s",
            "memory": format_bytes(row["memory"]),
            "required": _format_required(row),
        }
        for row in rows
    ]


def _method(row: dict[str, Any]) -> str:
    return f", {row['method']}" if row["curve"] == "clients" else ""


def _format_required(row: dict[str, Any]) -> str:
    if "met" not in row:
        return ""
    limits = f"set-up < {row['setup_limit_s']:.0f} s, <= {row['times_limit']}x"
    return f"{limits}: {'met' if row['met'] else 'NOT met'}"
