"""Suite cpu: every reference network on data of its shape, 20 clients, batches of 32.

`bert` and `gpt` have two layers of width 128 here. Networks that take long get fewer steps and
repetitions, and are left to `fit`'s own choice whether to compile, so that the whole suite takes
minutes; those whose rounds are short play several in a row. Each row says what it was measured
with.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, check_int, unknown_name

from .text import format_number, format_range
from .timing import Say, measure_beside, silent
from .workload import Workload

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
DATA: dict[str, tuple[tuple[int, ...], int]] = {  # shape of a sample, classes
    "linear": (GREY, 10),
    "regression": ((1000,), 1),
    "mlp": (GREY, 10),
    "convex": (GREY, 10),
    "cnn-p1": (GREY, 62),
    "cnn-p2": (GREY, 10),
    "cnn-p4": (GREY, 10),
    "cnn-pfl": (COLOUR, 10),
    "resnet18": (COLOUR, 10),
    "vit": (COLOUR, 10),
    "lstm": ((80,), 80),
    "gru": ((80,), 80),
    "text": ((64,), 2),
    "bert": ((64,), 2),
    "gpt": ((64,), 1_000),
}
SMALLER: dict[str, dict[str, Any]] = {  # than by default, so that minutes suffice
    "bert": {"vocab": 10_000, "width": 128, "layers": 2, "heads": 2, "hidden": 512},
    "gpt": {"width": 128, "layers": 2, "heads": 2},
}


@dataclass(frozen=True)
class Size:
    """Default size of the measurement of a network."""

    clients: int = 20
    steps: int = 20
    repeats: int = 7
    warm: int = 2
    block: int = 1  # rounds in a row
    compile: bool | None = True  # None leaves the choice to fit


SIZES = {
    "linear": Size(block=10),
    "regression": Size(block=10),
    "mlp": Size(block=5),
    "convex": Size(steps=10, repeats=5),
    "cnn-p4": Size(steps=10, repeats=5),
    "cnn-p1": Size(steps=2, repeats=3, warm=1, compile=None),
    "cnn-pfl": Size(steps=2, repeats=3, warm=1, compile=None),
    "vit": Size(steps=1, repeats=3, warm=1, compile=None),
    "lstm": Size(steps=1, repeats=3, warm=1, compile=None),
    "gru": Size(steps=1, repeats=3, warm=1, compile=None),
    "bert": Size(steps=1, repeats=3, warm=1, compile=None),
    "gpt": Size(steps=1, repeats=3, warm=1, compile=None),
    "resnet18": Size(clients=10, steps=1, repeats=3, compile=None),
}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Settings of the suite.

    Args:
        models: Names of networks; all of them by default.
        clients: Clients of the cohort, all trained each round; 20, but 10 for resnet18.
        batch: Samples per local step.
        steps: Local steps per round; 20, but 10, 2 or 1 for networks that take long.
        repeats: Rounds measured on each side; 7, but 5 or 3 for networks that take long, and blocks
            of 10 or 5 rounds for linear, regression and mlp.
        eager: Leave out compilation.
        device: auto, cpu, cuda, ...
        threads: Threads of PyTorch on the CPU; 0 leaves its own choice.
    """

    models: tuple[str, ...] = tuple(DATA)
    clients: int | None = None
    batch: int = 32
    steps: int | None = None
    repeats: int | None = None
    eager: bool = False
    device: str = "cpu"
    threads: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise ArgumentError("Cpu(models=...) must name at least one network, got none.")
        for name in self.models:
            if name not in DATA:
                raise unknown_name("model", name, DATA)
        for name in ("clients", "batch", "steps", "repeats"):
            if getattr(self, name) is not None:
                check_int("Cpu", name, getattr(self, name))
        check_int("Cpu", "threads", self.threads, 0)


def measure(settings: Cpu, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per network."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = find_device(settings.device)
    rows = []
    for name in settings.models:
        say(f"{name}: set-up and rounds, beside the plain loop")
        size = SIZES.get(name, Size())
        shape, classes = DATA[name]
        work = Workload(
            net=name,
            shape=shape,
            classes=classes,
            clients=settings.clients or size.clients,
            batch=settings.batch,
            steps=settings.steps or size.steps,
            args=SMALLER.get(name, {}),
        )
        repeats = settings.repeats or size.repeats
        compile = False if settings.eager else size.compile
        row = measure_beside(
            work,
            device,
            warm=size.warm,
            repeats=repeats,
            plain_repeats=repeats,
            block=size.block,
            compile=compile,
            hand=True,
        )
        ours, plain = format_number(row["ours_ms"]), format_number(row["plain_ms"])
        say(f"{name}: {ours} ms, plain loop {plain} ms")
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "model": row["model"],
            "parameters": f"{row['parameters']:,}",
            "clients x batch x steps": f"{row['clients']} x {row['batch']} x {row['steps']}",
            "engine": str(row["engine"]),
            "ours, ms": format_range(row, "ours_ms"),
            "plain loop, ms": format_range(row, "plain_ms"),
            "ratio": format_range(row, "ratio", "x"),
            "by hand, ms": format_range(row, "hand_ms"),
            "ratio by hand": format_range(row, "hand_ratio", "x"),
            "set-up": f"{row['setup_s']:.1f} s",
        }
        for row in rows
    ]
