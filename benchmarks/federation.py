"""Suite federation: a round over SuperNodes on this machine, as their number grows.

The app of `tunefree flower new` (digits, a linear network, fedavg, 20 local steps) three times with
the same seed: over a SuperLink and so many SuperNodes on the loopback, in Flower's own simulation
(Ray's actors, one for each core), and in our simulator. Everybody takes part in every round. The
first round of each is not counted; start is all but the rounds. Needs tunefree[flower]; without Ray
(`pip install 'flwr[simulation]'`) Flower's simulation is left out.

A message to a SuperNode starts a process there, which imports PyTorch, and both sides poll: that is
what a round over the loopback takes, and it grows with the nodes that share the machine's cores. On
machines of their own they would not wait for each other.
"""

import importlib.metadata
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefree.core.errors import ArgumentError, check_int
from tunefree.training.run import Run

from .text import format_number, format_range
from .timing import Say, silent, summarize

METHOD, WORDS = "fedavg", ("lr=0.1", "weights=uniform")


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Settings of the suite.

    Args:
        nodes: Numbers of SuperNodes, each >= 1.
        rounds: Rounds, >= 2; the first is not counted.
        device: cpu; nodes share one machine.
    """

    nodes: tuple[int, ...] = (2, 5, 10)
    rounds: int = 6
    device: str = "cpu"

    def __post_init__(self) -> None:
        for count in self.nodes:
            check_int("Nodes", "nodes", count)
        if not self.nodes:
            raise ArgumentError("Nodes(nodes=...) must name at least one number, got none.")
        check_int("Nodes", "rounds", self.rounds, 2)


def measure(settings: Nodes, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row for each number of SuperNodes: seconds of a round, three times."""
    from examples.federation import demo

    from tunefree.flower.apps import import_flower

    import_flower()
    ways: dict[str, Callable[..., Run]] = {
        "loopback": demo.train_federation,
        "simulation": demo.train_simulation,
    }
    if importlib.util.find_spec("ray") is not None:
        ways["runtime"] = demo.train_flower_simulation
    rows = []
    for count in settings.nodes:
        row: dict[str, Any] = {"nodes": count, "rounds": settings.rounds, "method": METHOD}
        row |= {"flwr": _version("flwr"), "ray": _version("ray"), "load": os.getloadavg()[0]}
        runs = {}
        with tempfile.TemporaryDirectory() as place:
            for way, play in ways.items():
                say(f"{count} nodes: {way}")
                began = time.perf_counter()
                run = play(Path(place), METHOD, WORDS, settings.rounds, 0, count)
                took = time.perf_counter() - began
                rounds = [float(r["seconds"]) for r in run.history]
                row |= summarize(f"{way}_ms", rounds[1:], 1000.0)
                row |= {f"{way}_start_s": took - sum(rounds)}
                say(f"  {format_number(row[f'{way}_ms'])} ms a round")
                runs[way] = run
        row["same"] = all(torch.equal(run.x, runs["simulation"].x) for run in runs.values())
        row["missing"] = sum(count - r.get("answered", count) for r in runs["loopback"].history)
        rows.append(row)
    return rows


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "SuperNodes": str(row["nodes"]),
            "over the loopback, ms": format_range(row, "loopback_ms"),
            "start": f"{row['loopback_start_s']:.0f} s",
            "Flower's simulation, ms": format_range(row, "runtime_ms") if row["ray"] else "no Ray",
            "its start": f"{row['runtime_start_s']:.0f} s" if row["ray"] else "",
            "ours, ms": format_range(row, "simulation_ms"),
            "the same model": "bit for bit" if row["same"] else "no",
            "answers missing": str(row["missing"]),
            "load before": f"{row['load']:.1f}",
        }
        for row in rows
    ]
