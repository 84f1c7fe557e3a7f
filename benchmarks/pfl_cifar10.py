"""Suite pfl-cifar10: pfl-research's CIFAR-10 benchmark, the whole run.

Granqvist et al., "pfl-research: simulation framework for accelerating research in private federated
learning", NeurIPS 2024. arXiv:2404.06430

1,000 users with 50 images each, dealt evenly; 1,500 rounds with cohorts of 50; one epoch of batches
of 10 at rate 0.1; server rate 1, every user counts alike; all 10,000 test images every 10 rounds
and at the end; the network `cnn-pfl` with its dropout. Where CIFAR-10 is not found, random images
of its shape stand in: the time is the same, the accuracy says nothing.

Set-up (binding, compilation, and what the first round takes beyond an ordinary one) is apart; the
total is of all rounds, evaluation included. A few plain rounds are timed between ours, without
evaluation, and multiplied by the number of rounds.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, check_int, unknown_name
from tunefree.data import Dataset, Iid, load
from tunefree.data.sources import SOURCES, locate
from tunefree.methods import get
from tunefree.models import nets
from tunefree.models.problem import Precision
from tunefree.training.callbacks import Event
from tunefree.training.config import Engine
from tunefree.training.fit import fit

from .text import format_bytes, format_number, format_range
from .timing import RoundTimer, Say, check_finished, silent, summarize
from .workload import LR, PlainLoop, make_samples

SHAPE, CLASSES = (3, 32, 32), 10
USERS, IMAGES, TESTED = 1000, 50, 10_000
BATCH, BLOCK, EVERY = 10, 100, 10
Source = Literal["auto", "cifar10", "random"]


@dataclass(frozen=True, kw_only=True)
class PflCifar10:
    """Settings of the suite.

    Args:
        rounds: Rounds of communication.
        users: Clients, at most 1,000; the first 50 images for each of them are dealt.
        cohort: Clients per round.
        precision: fp32, tf32 or bf16; auto is what fit takes by itself.
        plain_rounds: Rounds of the plain loop that are timed; 0 leaves it out.
        data: cifar10 (fetched where it is missing), random, or auto: cifar10 where it is found.
        data_dir: Folder with dataset files, looked at before $TUNEFREE_DATA and the cache.
        eager: Leave out compilation.
        device: auto, cuda, cpu, ...
    """

    rounds: int = 1500
    users: int = USERS
    cohort: int = 50
    precision: Precision = "auto"
    plain_rounds: int = 3
    data: Source = "auto"
    data_dir: Path | None = None
    eager: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        check_int("PflCifar10", "rounds", self.rounds, 2)
        for name in ("users", "cohort"):
            check_int("PflCifar10", name, getattr(self, name))
        if self.users > USERS:
            raise ArgumentError(f"PflCifar10(users=...) must be at most {USERS}, got {self.users}.")
        check_int("PflCifar10", "plain_rounds", self.plain_rounds, 0)
        for name, known in (("precision", get_args(Precision)), ("data", get_args(Source))):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)


def measure(settings: PflCifar10, say: Say = silent) -> list[dict[str, Any]]:
    """Return one row: the run."""
    device = find_device(settings.device)
    dataset = _dataset(settings)
    said = dataset.name if dataset.name == "cifar10" else "random images of CIFAR-10's shape"
    say(f"data: {said}")
    fed = dataset.split(Iid(), clients=settings.users)
    model = nets.build("cnn-pfl", shape=SHAPE, classes=CLASSES)
    steps = -(-int(fed.sizes.max()) // BATCH)
    plain = PlainLoop(
        nets.build("cnn-pfl", shape=SHAPE, classes=CLASSES),
        fed.to(device),
        cohort=settings.cohort,
        batch=BATCH,
        steps=steps,
        precision=settings.precision,
    )
    warm = min(10, settings.rounds - 1)  # all rounds count here; these pass before plain ones
    watch = RoundTimer(device, warm, plain.round, settings.plain_rounds, every=BLOCK)

    def progress(event: Event) -> None:
        done = event.round + 1
        if done % BLOCK == 0 or done == settings.rounds:
            said = f", accuracy {event.row['test_accuracy']:.4f}" if done % EVERY == 0 else ""
            say(f"round {done}/{settings.rounds}{said}")

    run = fit(
        model,
        fed,
        get("fedavg", lr=LR, server_lr=1.0, weights="uniform"),
        rounds=settings.rounds,
        cohort=settings.cohort,
        epochs=1,
        batch=BATCH,
        eval_every=EVERY,
        device=device,
        compile=False if settings.eager else None,
        callbacks=[progress, watch],
        engine=Engine(precision=settings.precision),
    )
    check_finished(run.status)
    rounds = [watch.took[0] - watch.setup, *watch.took[1:]]
    blocks = [sum(rounds[i : i + BLOCK]) for i in range(0, len(rounds) - BLOCK + 1, BLOCK)]
    total, slow = sum(rounds), summarize("plain_round_s", watch.plain)
    whole_plain = statistics.median(watch.plain) * settings.rounds if watch.plain else None
    return [
        {
            "data": dataset.name,
            "users": fed.clients,
            "cohort": settings.cohort,
            "rounds": settings.rounds,
            "steps": steps,
            "parameters": run.settings["model"]["parameters"],
            "precision": run.settings.get("precision", settings.precision),
            "engine": run.settings.get("engine"),
            "total_s": total,
            **summarize("per_100_s", blocks or [total / settings.rounds * BLOCK]),
            "setup_s": watch.setup,
            "accuracy": run.history[-1]["test_accuracy"],
            "loss": run.history[-1]["test_loss"],
            "memory": watch.memory,
            **slow,
            "plain_rounds": len(watch.plain),
            "plain_total_s": whole_plain,
            "ratio": None if whole_plain is None else whole_plain / total,
        }
    ]


def _dataset(settings: PflCifar10) -> Dataset:
    found = settings.data == "cifar10" or (
        settings.data == "auto" and locate(SOURCES["cifar10"], settings.data_dir) is not None
    )
    rows = settings.users * IMAGES
    if found:
        known = load("cifar10", settings.data_dir)
        assert isinstance(known.x, torch.Tensor)
        return Dataset(known.name, known.x[:rows], known.y[:rows], known.test, classes=CLASSES)
    x, y = make_samples("cnn-pfl", SHAPE, CLASSES, rows)
    test = make_samples("cnn-pfl", SHAPE, CLASSES, TESTED, seed=1)
    return Dataset("random", x, y, test, classes=CLASSES)


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Format the rows for a table, by heading."""
    return [
        {
            "data": "random, not CIFAR-10" if row["data"] == "random" else row["data"],
            "rounds": f"{row['rounds']:,}",
            "precision": row["precision"],
            "engine": str(row["engine"]),
            "total": f"{format_number(row['total_s'])} s",
            "per 100 rounds, s": format_range(row, "per_100_s"),
            "set-up": f"{row['setup_s']:.1f} s",
            "accuracy": f"{row['accuracy']:.4f}",
            "memory": format_bytes(row["memory"]),
            "plain loop, extrapolated": _format_extrapolated(row),
        }
        for row in rows
    ]


def _format_extrapolated(row: dict[str, Any]) -> str:
    if row["plain_total_s"] is None:
        return ""
    few = row["plain_rounds"]
    return (
        f"{format_number(row['plain_total_s'])} s from {few} rounds, {format_number(row['ratio'])}x"
    )
