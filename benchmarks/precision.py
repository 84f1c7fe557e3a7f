"""Suite precision: whether lower precision costs accuracy.

The same runs (data, split, start, cohorts, batches) in every precision, over several seeds. Test
accuracies are compared with those of fp32 seed by seed, by a two-sided paired t-test.
"""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from tunefree import Engine
from tunefree.core.device import find_device
from tunefree.core.errors import check_int, unknown_name
from tunefree.data import Dirichlet, load
from tunefree.methods import get
from tunefree.models import nets
from tunefree.models.problem import Precision
from tunefree.study.significance import holm, two_sided_p
from tunefree.study.tables import format_p
from tunefree.training.fit import fit

from .timing import Say, check_finished, silent

LR = 0.05


@dataclass(frozen=True, kw_only=True)
class Precisions:
    """Settings of the suite.

    Args:
        data: Dataset of images; `tunefree datasets` lists them.
        models: Networks.
        methods: fedavg at rate 0.05, or methods that need no rate.
        precisions: Held against fp32; by default bf16, and on a GPU also tf32.
        seeds: Runs of each, >= 2.
        rounds: Rounds of each run.
        clients: Clients, with labels drawn from Dirichlet(0.3).
        cohort: Clients per round.
        device: auto, cuda, cpu, ...
        data_dir: Folder with dataset files, looked at before $TUNEFREE_DATA and the cache.
    """

    data: str = "fashion-mnist"
    models: tuple[str, ...] = ("mlp", "cnn-p2")
    methods: tuple[str, ...] = ("fedavg", "auto")
    precisions: tuple[Precision, ...] = ()
    seeds: int = 5
    rounds: int = 50
    clients: int = 100
    cohort: int = 10
    device: str = "auto"
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        for name, least in (("seeds", 2), ("rounds", 1), ("clients", 1), ("cohort", 1)):
            check_int("Precisions", name, getattr(self, name), least)
        for name in self.precisions:
            if name not in get_args(Precision):
                raise unknown_name("precision", name, get_args(Precision))
        for name in self.models:
            if name not in nets.names():
                raise unknown_name("model", name, nets.names())


def measure(settings: Precisions, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row per network, method and precision."""
    device = find_device(settings.device)
    usual: tuple[Precision, ...] = ("tf32", "bf16") if device.type == "cuda" else ("bf16",)
    rows = []
    for model in settings.models:
        for method in settings.methods:
            for precision in ("fp32", *(settings.precisions or usual)):
                say(f"{model}, {method}, {precision}")
                found = [
                    _accuracy(settings, model, method, precision, seed, device)
                    for seed in range(settings.seeds)
                ]
                rows.append(
                    {
                        "model": model,
                        "method": method,
                        "precision": precision,
                        "seeds": settings.seeds,
                        "accuracy": statistics.mean(found),
                        "error": statistics.stdev(found) / math.sqrt(settings.seeds),
                        "accuracies": found,
                    }
                )
    return rows


def _accuracy(
    s: Precisions, model: str, method: str, precision: Any, seed: int, device: torch.device
) -> float:
    dataset = load(s.data, s.data_dir)
    federation = dataset.split(Dirichlet(0.3), clients=s.clients, seed=seed)
    assert isinstance(dataset.x, torch.Tensor)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nets.build(model, shape=tuple(dataset.x.shape[1:]), classes=dataset.classes or 0)
    run = fit(
        net,
        federation,
        get(method, weights="uniform", **{"lr": LR} if method == "fedavg" else {}),
        rounds=s.rounds,
        cohort=s.cohort,
        batch=50,
        steps=20,
        seed=seed,
        eval_every=s.rounds,
        device=device,
        engine=Engine(precision=precision),
    )
    check_finished(run.status)
    return float(run.history[-1]["test_accuracy"])


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows, by heading; p values are raised for being several by Holm's rule."""
    exact = {
        (row["model"], row["method"]): row["accuracies"]
        for row in rows
        if row["precision"] == "fp32"
    }
    differences: dict[str, list[float]] = {}
    for i, row in enumerate(rows):
        if row["precision"] != "fp32":
            pairs = zip(row["accuracies"], exact[row["model"], row["method"]], strict=True)
            differences[str(i)] = [a - b for a, b in pairs]
    found = {i: two_sided_p(each) for i, each in differences.items()}
    raised = holm({i: p for i, p in found.items() if p is not None})

    def compare(i: str) -> str:
        if i not in differences:
            return ""
        tested = f" ({format_p(raised[i])})" if i in raised else ""
        return f"{statistics.mean(differences[i]):+.4f}{tested}"

    return [
        {
            "model": row["model"],
            "method": row["method"],
            "precision": row["precision"],
            "accuracy": f"{row['accuracy']:.4f} ± {row['error']:.4f} ({row['seeds']} seeds)",
            "difference to fp32": compare(str(i)),
        }
        for i, row in enumerate(rows)
    ]
