"""How fast it is: suites that measure the loop of `fit` beside a plain per-client PyTorch loop.

`tunefree bench SUITE` runs them, `docs/speed.md` keeps what they found.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunefree.core.errors import unknown_name
from tunefree.training.bind import find_device

from . import cpu, federation, gpu, pfl_cifar10, precision, rules, scale
from .keep import ready, record, save, where
from .watch import Say, silent


@dataclass(frozen=True)
class Suite:
    """Settings, what measures them, and how rows read as a table."""

    settings: type[Any]
    measure: Callable[[Any, Say], list[dict[str, Any]]]
    table: Callable[[list[dict[str, Any]]], list[dict[str, str]]]


SUITES = {
    "cpu": Suite(cpu.Cpu, cpu.measure, cpu.table),
    "gpu": Suite(gpu.Gpu, gpu.measure, gpu.table),
    "pfl-cifar10": Suite(pfl_cifar10.PflCifar10, pfl_cifar10.measure, pfl_cifar10.table),
    "federation": Suite(federation.Nodes, federation.measure, federation.table),
    "precision": Suite(precision.Precisions, precision.measure, precision.table),
    "scale": Suite(scale.Scale, scale.measure, scale.table),
    "rules": Suite(rules.Rules, rules.measure, rules.table),
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


__all__ = ["SUITES", "Suite", "measure", "ready", "save", "where"]
