"""Suite methods: every kind of local computation in the catalogue, beside FedAvg.

Methods whose clients compute alike take alike, so that one of each kind is measured. A method is
judged per gradient: a step of MIME takes two, and each trial of a line search counts as a third.
Losses that a server asks for between rounds (FedProxLoD) are in the time and are not counted.
"""

import statistics
from dataclasses import dataclass
from typing import Any, get_args

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import check_int, check_known
from tunefree.methods import get, names
from tunefree.methods.registry import settings as settings_of
from tunefree.models.problem import Precision
from tunefree.training.config import Engine
from tunefree.training.fit import fit

from .gpu import WARM, WORKS
from .text import format_bytes, format_number, format_range
from .timing import RoundTimer, Say, check_finished, silent, summarize

LR = 0.01  # of the methods that have one
TRIAL = 1 / 3  # of a gradient


def one_of_each() -> list[str]:
    """Return one method for each kind of local computation; FedAvg is the first."""
    kinds: dict[Any, str] = {}
    for name in ("fedavg", *names()):
        method = get(name)
        descends = method.descent_lr(1.0) is not None
        kind = (type(method.step), method.direction.sets, method.records)
        kinds.setdefault("descent" if descends else kind, name)
    return list(kinds.values())


@dataclass(frozen=True, kw_only=True)
class Methods:
    """Settings of the suite.

    Args:
        models: Workloads of the suite gpu: mlp and cnn-pfl by default.
        methods: Names; by default one of each kind. FedAvg is always measured, first.
        precisions: tf32 and bf16 on a GPU, elsewhere auto; also fp32.
        repeats: Rounds that are measured.
        eager: Leave out compilation.
        device: auto, cuda, cpu, ...
    """

    models: tuple[str, ...] = ("mlp", "cnn-pfl")
    methods: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    repeats: int = 5
    eager: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for kind, given, known in (
            ("model", self.models, tuple(WORKS)),
            ("method", self.methods, tuple(names())),
            ("precision", self.precisions, get_args(Precision)),
        ):
            for name in given:
                check_known(kind, name, known)
        check_int("Methods", "repeats", self.repeats)


def measure(settings: Methods, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per workload, precision and method."""
    device = find_device(settings.device)
    asked: tuple[Precision, ...] = ("tf32", "bf16") if device.type == "cuda" else ("auto",)
    chosen = dict.fromkeys(("fedavg", *(settings.methods or one_of_each())))
    rows: list[dict[str, Any]] = []
    for model in settings.models:
        for precision in settings.precisions or asked:
            fedavg = 0.0
            for name in chosen:
                row = _measure_method(model, precision, name, settings, device)
                fedavg = fedavg or row["gradient_ms"]
                row["ratio"] = row["gradient_ms"] / fedavg
                say(f"{model}, {precision}, {name}: {format_number(row['ours_ms'])} ms")
                rows.append(row)
    return rows


def _measure_method(
    model: str, precision: Precision, name: str, settings: Methods, device: torch.device
) -> dict[str, Any]:
    rounds = WARM + settings.repeats
    work, watch = WORKS[model], RoundTimer(device, WARM)
    chosen = get(name, weights="uniform", **({"lr": LR} if "lr" in settings_of(name) else {}))
    run = fit(
        work.model(),
        work.federation(work.data()),
        chosen,
        rounds=rounds,
        steps=work.steps,
        batch=work.batch,
        device=device,
        compile=not settings.eager,
        eval_every=rounds,
        callbacks=[watch],
        engine=Engine(precision=precision),
    )
    check_finished(run.status)
    counted = run.history[WARM:]
    gradients = [row["gradients"] / (work.clients * work.steps) for row in counted]
    trials = [row.get("trials", 0.0) for row in counted]
    each = zip(watch.ours, gradients, trials, strict=True)
    ours = summarize("ours_ms", watch.ours, 1e3 / work.steps)
    return {
        "model": model,
        "method": name,
        "clients": work.clients,
        "batch": work.batch,
        "precision": run.settings.get("precision", precision),
        "engine": run.settings.get("engine"),
        **ours,
        "gradients": statistics.mean(gradients),
        "trials": statistics.mean(trials),
        "gradient_ms": statistics.median(
            1e3 * t / work.steps / (g + TRIAL * n) for t, g, n in each
        ),
        "setup_s": watch.setup,
        "memory": watch.memory,
    }


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "model": row["model"],
            "precision": row["precision"],
            "method": row["method"],
            "ours, ms": format_range(row, "ours_ms"),
            "gradients": format_number(row["gradients"]),
            "trials": format_number(row["trials"]) if row["trials"] else "",
            "per gradient, ms": format_number(row["gradient_ms"]),
            "to fedavg": f"{row['ratio']:.2f}x",
            "memory": format_bytes(row["memory"]),
        }
        for row in rows
    ]
