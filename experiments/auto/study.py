"""Why `auto` is what it is: candidates without a learning rate beside tuned baselines.

    python -m experiments.auto.study --out auto.jsonl            # all tasks, three seeds
    python -m experiments.auto.study --out auto.jsonl --table    # print what is there

Finished runs in the file are skipped, so the study can be stopped and repeated. Every method
ships the averaged output, the baselines too: what remains is the choice of step sizes.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tunefree as tf
from tunefree.clients import Constant, DoG
from tunefree.server import Average, Averaged, FedDuAdagrad, FedExP
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows

COMMON: dict[str, Any] = {"cohort": 10, "steps": 20, "batch": 50, "eval_every": 5}
TASKS: dict[str, dict[str, Any]] = {
    "digits-0.1": {"data": "digits", "alpha": 0.1, "clients": 20, "model": "mlp", "rounds": 60},
    "digits-1": {"data": "digits", "alpha": 1.0, "clients": 20, "model": "mlp", "rounds": 60},
    "fmnist-0.1": {
        "data": "fashion-mnist", "alpha": 0.1, "clients": 100, "model": "mlp", "rounds": 200,
    },
    "fmnist-1": {
        "data": "fashion-mnist", "alpha": 1.0, "clients": 100, "model": "mlp", "rounds": 200,
    },
    "writers": {
        "data": "mnist-writers", "alpha": None, "clients": 200, "model": "cnn-p2", "rounds": 150,
    },
    "cifar-0.3": {
        "data": "cifar10-subset", "alpha": 0.3, "clients": 50, "model": "cnn-p4", "rounds": 150,
    },
    "a9a-0.3": {"data": "a9a", "alpha": 0.3, "clients": 20, "model": "linear", "rounds": 100},
}  # fmt: skip


def methods() -> dict[str, tf.Method]:
    """Return the candidates and the baselines' grids by name."""
    servers = {"fedavg": Average(), "fedexp": FedExP(), "fedduadagrad": FedDuAdagrad()}
    tuned = {
        f"{name} lr={lr}": tf.Method(step=Constant(lr), server=server, output=Averaged())
        for name, server in servers.items()
        for lr in (0.03, 0.1, 0.3)
    }
    capped = FedDuAdagrad(max_move=1.0)
    candidates = {
        "DoWG x average": (DoG(weighted=True), Average()),
        "DoWG x FedDuAdagrad": (DoG(weighted=True), FedDuAdagrad()),
        "live DoWG x FedDuAdagrad": (DoG(weighted=True, live=True), FedDuAdagrad()),
        "live DoG x capped FedDuAdagrad": (DoG(live=True), capped),
        "live DoWG x capped FedDuAdagrad (feddowgdua)": (DoG(weighted=True, live=True), capped),
    }
    free = {n: tf.Method(step=a, server=b, output=Averaged()) for n, (a, b) in candidates.items()}
    return {n: replace(method, weights="uniform") for n, method in (tuned | free).items()}


@cache
def data(name: str, folder: str | None) -> tf.Dataset:
    """Load a dataset once per process."""
    return tf.load(name, folder)


def train_one(job: tuple[str, str, int, str | None], worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    task, name, seed, folder = job
    spec = TASKS[task]
    dataset = data(spec["data"], folder)
    split = tf.ByOwner() if spec["alpha"] is None else tf.Dirichlet(spec["alpha"])
    fed = dataset.split(split, clients=spec["clients"], seed=seed)
    assert isinstance(dataset.x, torch.Tensor)
    assert dataset.classes is not None
    shape = tuple(dataset.x.shape[1:])
    model = tf.models.build(spec["model"], shape=shape, classes=dataset.classes, seed=seed)
    run = tf.fit(model, fed, methods()[name], rounds=spec["rounds"], seed=seed, **COMMON)
    accuracy = [r["test_accuracy"] for r in run.history if "test_accuracy" in r] or [0.0]
    last = accuracy[-max(1, len(accuracy) // 5) :]
    return {
        "task": task,
        "method": name,
        "seed": seed,
        "status": run.status,
        "accuracy": statistics.mean(last) if run.status == "finished" else 0.0,
        "final": accuracy[-1],
        "best": max(accuracy),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table: mean accuracy over the last fifth, and best minus final."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["method"], row["task"]].append(row)
    tasks = [t for t in TASKS if any(key[1] == t for key in cells)]
    lines = ["| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for name in methods():
        words = []
        for task in tasks:
            found = cells.get((name, task), [])
            scores = [r["accuracy"] for r in found]
            lost = max((r["best"] - r["final"] for r in found), default=0.0)
            mark = f" (−{lost:.2f})" if lost > 0.02 else ""
            words.append(f"{statistics.mean(scores):.4f}{mark}" if scores else "")
        lines.append(f"| {name} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=",".join(methods()))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        done = {(r["task"], r["method"], r["seed"]) for r in read_rows(given.out)}
        jobs = [
            (task, name, seed, given.data_dir)
            for seed in range(given.seeds)
            for task in given.tasks.split(",")
            for name in given.methods.split(",")
            if (task, name, seed) not in done
        ]
        append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
