"""Suite startup: set-up of the works of suite gpu in a first and in a second process.

Each work is played by two new processes for two rounds, compiled, with an empty folder of what the
compiler keeps for the first. Set-up is as elsewhere; `process` is the whole process, with the
import of PyTorch. With PyTorch and NumPy alone:

    PYTHONPATH=src python -uc "import benchmarks; benchmarks.measure('startup', say=print)"
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, check_int, unknown_name

from .gpu import WORKS
from .text import format_number
from .timing import Say, measure_beside, run_module, silent

FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Settings of the suite.

    Args:
        models: Works of suite gpu.
        clients: Clients of the cohort, in place of each work's own number.
        batch: Samples per local step, likewise.
        device: auto, cuda, cpu, ...
    """

    models: tuple[str, ...] = ("mlp", "cnn-pfl", "resnet18", "lstm")
    clients: int | None = None
    batch: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.models:
            raise ArgumentError("Startup(models=...) must name at least one network, got none.")
        for name in self.models:
            if name not in WORKS:
                raise unknown_name("model", name, WORKS)
        for name in ("clients", "batch"):
            if getattr(self, name) is not None:
                check_int("Startup", name, getattr(self, name))


def measure(settings: Startup, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per work."""
    rows = []
    for name in settings.models:
        work = WORKS[name]
        sizes = (settings.clients or work.clients, settings.batch or work.batch)
        with tempfile.TemporaryDirectory() as folder:
            cold, again = (_play(name, *sizes, settings.device, folder) for _ in range(2))
        say(f"{name}: {cold['setup_s']:.1f} s, again {again['setup_s']:.1f} s")
        row = {"model": name, "clients": sizes[0], "batch": sizes[1], "engine": cold["engine"]}
        for key in ("setup_s", "process_s"):
            row |= {key: cold[key], f"{key}_again": again[key]}
        rows.append(row | {"precision": cold["precision"]})
    return rows


def _play(name: str, clients: int, batch: int, device: str, folder: str) -> dict[str, Any]:
    """Return what a new process found."""
    words = ["benchmarks.startup", name, str(clients), str(batch), device]
    kept = {variable: os.path.join(folder, variable) for variable in FOLDERS}
    began = time.perf_counter()
    found = run_module(words, f"The process that plays {name}", kept)
    return found | {"process_s": time.perf_counter() - began}


def play(name: str, clients: int, batch: int, device: torch.device) -> dict[str, Any]:
    """Play a work in this process and return its set-up."""
    work = replace(WORKS[name], clients=clients, batch=batch, steps=STEPS)
    row = measure_beside(work, device, warm=1, repeats=1, plain_repeats=0, compile=True)
    return {key: row[key] for key in ("setup_s", "engine", "precision")}


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "model": row["model"],
            "clients x batch": f"{row['clients']} x {row['batch']}",
            "precision": row["precision"],
            "engine": str(row["engine"]),
            "set-up, s": format_number(row["setup_s"]),
            "again, s": format_number(row["setup_s_again"]),
            "process, s": format_number(row["process_s"]),
            "process again, s": format_number(row["process_s_again"]),
        }
        for row in rows
    ]


if __name__ == "__main__":
    name, clients, batch, device = sys.argv[1:]
    print(json.dumps(play(name, int(clients), int(batch), find_device(device))))
