"""Suites that measure the speed of `fit` beside a plain per-client PyTorch loop.

`python -m benchmarks SUITE` runs them, `docs/speed.md` keeps what they found.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunefree.core.device import find_device
from tunefree.core.errors import unknown_name

from . import (
    busy,
    cpu,
    federation,
    gpu,
    lora,
    methods,
    pfl_cifar10,
    precision,
    rules,
    scale,
    startup,
)
from .keep import record
from .timing import Say, silent


@dataclass(frozen=True)
class Suite:
    """One suite of measurements.

    Attributes:
        summary: One sentence for the help text.
        settings: Dataclass of the suite's options.
        measure: Runs the suite and returns its rows.
        table: Formats rows for a table, by heading.
    """

    summary: str
    settings: type[Any]
    measure: Callable[[Any, Say], list[dict[str, Any]]]
    table: Callable[[list[dict[str, Any]]], list[dict[str, str]]]


SUITES = {
    "cpu": Suite(
        "Every reference network, 20 clients, batches of 32.", cpu.Cpu, cpu.measure, cpu.table
    ),
    "gpu": Suite(
        "Workloads of the size that a GPU is used for, in TF32 and bfloat16.",
        gpu.Gpu,
        gpu.measure,
        gpu.table,
    ),
    "lora": Suite(
        "Low-rank adapters of GPT-2 and BERT on a frozen base, beside the plain loop.",
        lora.Lora,
        lora.measure,
        lora.table,
    ),
    "methods": Suite(
        "Every kind of local computation in the catalogue, beside FedAvg.",
        methods.Methods,
        methods.measure,
        methods.table,
    ),
    "pfl-cifar10": Suite(
        "The CIFAR-10 benchmark of pfl-research, the whole run.",
        pfl_cifar10.PflCifar10,
        pfl_cifar10.measure,
        pfl_cifar10.table,
    ),
    "federation": Suite(
        "A round over 2, 5 and 10 SuperNodes on this machine, beside two simulations.",
        federation.Nodes,
        federation.measure,
        federation.table,
    ),
    "busy": Suite("Rounds on cores that other programs use.", busy.Busy, busy.measure, busy.table),
    "startup": Suite(
        "Set-up in a first process and in a second one, which finds what was compiled.",
        startup.Startup,
        startup.measure,
        startup.table,
    ),
    "precision": Suite(
        "Test accuracy in fp32, tf32 and bf16 over several seeds.",
        precision.Precisions,
        precision.measure,
        precision.table,
    ),
    "scale": Suite(
        "Time and memory against clients, cohort, parameters and local steps.",
        scale.Scale,
        scale.measure,
        scale.table,
    ),
    "rules": Suite(
        "Every proximal map and server rule beside plain copies.",
        rules.Rules,
        rules.measure,
        rules.table,
    ),
}


def measure(name: str, settings: Any = None, say: Say = silent) -> dict[str, Any]:
    """Return the record of one suite: its rows, the machine, versions, date and command."""
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    suite = SUITES[name]
    settings = suite.settings() if settings is None else settings
    began = time.perf_counter()
    rows = suite.measure(settings, say)
    took = time.perf_counter() - began
    return record(name, settings, find_device(settings.device), rows, took)


__all__ = ["SUITES", "Suite", "measure"]
