"""How fast a cohort-step is: our engine beside a plain per-client PyTorch loop, in one run.

A cohort-step is one local step of every client of the cohort. Both sides do the whole work of a
FedAvg round: gather batches, forward, backward, SGD step, average. Repetitions alternate between
the two, so that a noisy machine disturbs both alike; the median and the spread are reported.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .clients.rule import Plan
from .data.batches import Cut, draw
from .data.federation import Federation
from .engines.simulate import Local, Simulation
from .errors import whole
from .job import find_device
from .methods import get
from .models import nets
from .models.problem import Problem
from .rounds import begin, play

WORKS = {"linear": "linear", "mlp": "mlp", "cnn": "cnn-p2"}
LR = 0.1


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured.

    Args:
        models: linear, mlp, cnn, or the name of any network for 28 x 28 images.
        clients: Clients of the cohort, all trained each round.
        batch: Samples per local step.
        steps: Local steps per round.
        repeats: Rounds measured on each side.
        eager: Leave out compilation.
        device: auto, cpu, cuda, ...
        threads: Threads of PyTorch on the CPU; 0 leaves its own choice.
    """

    models: tuple[str, ...] = ("linear", "mlp", "cnn")
    clients: int = 20
    batch: int = 32
    steps: int = 20
    repeats: int = 7
    eager: bool = False
    device: str = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "batch", "steps", "repeats"):
            whole("Bench", name, getattr(self, name))
        whole("Bench", "threads", self.threads, 0)


def measure(bench: Bench) -> list[dict[str, Any]]:
    """Return one row per network: milliseconds per cohort-step on both sides, and the ratio."""
    if bench.threads:
        torch.set_num_threads(bench.threads)
    device = find_device(bench.device)
    fed = _data(bench).to(device)
    return [_row(name, bench, fed, device) for name in bench.models]


def _data(bench: Bench) -> Federation:
    g = torch.Generator().manual_seed(0)
    rows = bench.clients * 100
    x = torch.randn(rows, 1, 28, 28, generator=g)
    y = torch.randint(10, (rows,), generator=g)
    return Federation(x, y, torch.arange(rows) // 100, classes=10)


def _row(name: str, bench: Bench, fed: Federation, device: torch.device) -> dict[str, Any]:
    model = nets.build(WORKS.get(name, name), shape=(1, 28, 28), classes=10)
    cut = Cut(batch=bench.batch, steps=bench.steps)
    problem = Problem(model, device=device)
    plan = Plan(bench.clients, bench.clients, bench.repeats, bench.steps, problem.layout)
    method, ids = get("fedavg", lr=LR), torch.arange(bench.clients)
    began = time.perf_counter()
    crew = Simulation(method, problem, fed, cut, plan, 0, Local(compile=not bench.eager))
    ready = time.perf_counter() - began
    now = begin(method, problem.start, plan)
    model.to(device)

    def ours() -> object:
        return play(method, plan, now, crew, ids, ids)

    def plain() -> object:
        return plain_round(model, fed, cut, 0, 0)

    ours()
    plain()
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(bench.repeats):
        for side, work in (("ours", ours), ("plain", plain)):
            times[side].append(_seconds(work, device) / bench.steps * 1e3)
    ratios = [b / a for a, b in zip(times["ours"], times["plain"], strict=True)]
    return {
        "model": name,
        "parameters": problem.layout.size,
        "engine": crew.losses.name,
        "chunk": crew.chunk,
        "ours_ms": statistics.median(times["ours"]),
        "ours_range": (min(times["ours"]), max(times["ours"])),
        "plain_ms": statistics.median(times["plain"]),
        "plain_range": (min(times["plain"]), max(times["plain"])),
        "ratio": statistics.median(ratios),
        "ratio_range": (min(ratios), max(ratios)),
        "ready_s": ready,
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def plain_round(
    model: nn.Module, fed: Federation, cut: Cut, seed: int, t: int
) -> dict[str, torch.Tensor]:
    """Play a FedAvg round as anyone would write it: one client after another."""
    ids = torch.arange(fed.clients)
    draws = draw(seed, t, ids, fed.sizes, fed.starts, cut)
    index = draws.index.to(fed.y.device)
    mean = {name: torch.zeros_like(v) for name, v in model.state_dict().items()}
    x, y = fed.x, fed.y
    assert isinstance(x, torch.Tensor)
    for i in range(fed.clients):
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=LR)
        for k in range(int(draws.steps[i])):
            rows = index[i, k]
            optimizer.zero_grad()
            loss: torch.Tensor = nn.functional.cross_entropy(local(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, value in local.state_dict().items():
            mean[name] += value / fed.clients
    return mean
