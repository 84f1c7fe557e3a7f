"""Suite rules: the arithmetic of a round, proximal maps and server rules beside a plain copy.

A copy of the vector is the floor for whatever returns a new one. A server rule is compared with
the copies it must make: one for every vector it returns anew, the next x and its memory. Copy and
rule are measured in turns, so that a noisy machine disturbs both alike; median and range are
reported. Most of a copy's time goes into fresh pages, and a rule's temporaries pay for them too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from tunefree import penalties as h
from tunefree import server as s
from tunefree.clients import ZA1, DualAverage, FastFedDA, Plan, Round
from tunefree.core.device import find_device
from tunefree.core.errors import check_int
from tunefree.core.layout import Layout
from tunefree.core.plan import What, Who
from tunefree.core.types import Channels, Vector
from tunefree.models import nets

from .text import format_range
from .timing import Say, silent, summarize, time_call

RESNET18 = 11_175_370  # for 28 x 28 images and 10 classes
PUBLISHED = {"L1": 134, "MCP": 255, "SCAD": 636}  # ms for ResNet-18: "FedCanon", Table I
PLUGS = 4
SLOW = 1.0  # seconds from which on three measurements are enough

PENALTIES: dict[str, h.Penalty] = {
    type(p).__name__: p
    for p in (
        h.L1(),
        h.MCP(),
        h.SCAD(),
        h.L2(),
        h.ElasticNet(),
        h.GroupLasso(),
        h.Box(),
        h.L2Ball(),
        h.L1Ball(),
        h.Simplex(),
        h.Nuclear(),
    )
}
SERVERS: dict[str, s.Server] = {
    "Average": s.Average(),
    "Momentum": s.Momentum(),
    "FedExP": s.FedExP(),
    "FedExPM": s.FedExPM(),
    "FedDuAdagrad": s.FedDuAdagrad(),
    "FedDuAdam": s.FedDuAdam(),
    "FedDuAdam, bounded": s.FedDuAdam(max_move=1.0),
    "FedDuA": s.FedDuA(s.Quadratic()),
    "FedDuA, beta1": s.FedDuA(s.Quadratic(), 0.9),
    "Adaptive, adagrad": s.Adaptive("adagrad", beta1=0.0),
    "Adaptive, adam": s.Adaptive("adam"),
    "Adaptive, yogi": s.Adaptive("yogi"),
    "AMSGrad": s.AMSGrad(),
    "Extrapolate": s.Extrapolate(),
    "ParFreFL": s.ParFreFL(),
    "PAdaMFed": s.PAdaMFed(),
    "Scafcom": s.Scafcom(),
    "ClientMomentum": s.ClientMomentum(),
    "Drift": s.Drift(),
    "DualAverage, l1": s.DualAverage(DualAverage(h.L1())),
    "FastFedDA, l1": s.FastFedDA(FastFedDA(h.L1())),
    "ZA1, l1": s.ZA1(ZA1(h.L1())),
    "Splitting, l1": s.Splitting(h.L1()),
    "Proximal, l1": s.Proximal(h.L1()),
    "LoD": s.LoD(),
    "Race": s.Race(),
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Settings of the suite.

    Args:
        size: Numbers in the vector; by default those of ResNet-18.
        repeats: Measurements of each rule, and of the copy beside it.
        device: auto, cpu, cuda, ...
    """

    size: int = RESNET18
    repeats: int = 15
    device: str = "auto"

    def __post_init__(self) -> None:
        check_int("Rules", "size", self.size)
        check_int("Rules", "repeats", self.repeats)


def measure(bench: Rules, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per proximal map and server rule: milliseconds, copies and their ratio."""
    device = find_device(bench.device)
    draw = torch.Generator().manual_seed(0)
    layout = _layout(bench.size)

    def vector() -> Vector:
        return torch.randn(bench.size, generator=draw).mul_(1e-3).to(device)

    v, rows = vector(), []
    say(f"{len(PENALTIES)} proximal maps")
    for name, penalty in PENALTIES.items():
        row = _row(name, bench, v, partial(_prox, penalty, v, layout), [v])
        published = PUBLISHED.get(name) if bench.size == RESNET18 else None
        rows.append(row | {"kind": "prox", "published_ms": published})
    say(f"{len(SERVERS)} server rules")
    for name, rule in SERVERS.items():
        work, given = _round(rule, v, layout, vector)
        row = _row(name, bench, v, work, given)
        rows.append(row | {"kind": "server", "published_ms": None})
    return rows


def _layout(size: int) -> Layout:
    """Return ResNet-18's layout, or for another size a square matrix and what is left."""
    if size == RESNET18:
        net = nets.build("resnet18", shape=(1, 28, 28), classes=10, stem="imagenet")
        named = [(name, tuple(p.shape)) for name, p in net.named_parameters()]
        return Layout(tuple(n for n, _ in named), tuple(shape for _, shape in named))
    side = isqrt(size)
    return Layout(("weight", "bias"), ((side, side), (size - side**2,)))


def _prox(penalty: h.Penalty, v: Vector, layout: Layout) -> list[Tensor]:
    return [penalty.prox(v, 0.1, layout)]


def _round(
    rule: s.Server, x: Vector, layout: Layout, vector: Callable[[], Vector]
) -> tuple[Callable[[], list[Tensor]], list[Tensor]]:
    """Return the rule's step in a round that is not its first, and the tensors it is given."""
    plan = Plan(clients=100, cohort=10, rounds=100, steps=5.0, layout=layout)
    scalars = ("delta_sq", "loss", "train_loss", "grad_sq", "envelope")
    mean: Channels = {n: x.new_tensor(100.0) if n in scalars else vector() for n in rule.needs}

    def ask(
        what: What, at: list[Vector], who: Who = "cohort", sent: Channels | None = None
    ) -> list[Tensor]:
        return [x.new_tensor(0.5) for _ in at]

    x, state = rule.prepare(x, mean, rule.init(x, plan), Round(plan, -1))
    state = rule.start_round(x, state, Round(plan, 0, 0.1), ask)
    x, state, _ = rule.step(x, mean, state, Round(plan, 0, 0.1), ask)

    def work() -> list[Tensor]:
        after, memory, _ = rule.step(x, mean, state, Round(plan, 1, 0.1), ask)
        return [after, *memory.values()]

    return work, [x, *mean.values(), *state.values()]


def _row(
    name: str, bench: Rules, v: Vector, work: Callable[[], list[Tensor]], given: list[Tensor]
) -> dict[str, Any]:
    # What earlier rules left free in the heap is taken, so that no side finds pages ready by luck.
    plugs = [torch.empty_like(v) for _ in range(PLUGS)]
    old = {t.data_ptr() for t in given}
    copies = len({t.data_ptr() for t in work() if t.numel() == v.numel()} - old)
    repeats = bench.repeats if time_call(work, v.device) < SLOW else min(bench.repeats, 3)
    rule, copy = [], []
    for _ in range(repeats):
        copy.append(time_call(v.clone, v.device) * 1e3)
        rule.append(time_call(work, v.device) * 1e3)
    del plugs
    ratios = [b / (a * max(copies, 1)) for a, b in zip(copy, rule, strict=True)]
    return {
        "name": name,
        "copies": copies,
        **summarize("ms", rule),
        **summarize("copy_ms", copy),
        **summarize("ratio", ratios),
    }


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "rule": row["name"],
            "ms": format_range(row, "ms"),
            "one copy, ms": format_range(row, "copy_ms"),
            "copies to make": str(row["copies"]),
            "ratio": format_range(row, "ratio"),
            "published, ms": str(row["published_ms"] or ""),
        }
        for row in rows
    ]
