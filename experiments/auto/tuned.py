"""Methods without a learning rate beside tuned ones, on all tasks.

    python -m experiments.auto.tuned tune --out rows.jsonl --data-dir DATA      # seed 0, the grid
    python -m experiments.auto.tuned compare --out rows.jsonl --data-dir DATA   # seeds 1 to 3
    python -m experiments.auto.tuned table --out rows.jsonl

`tune` trains every setting of the grid with seed 0. `compare` trains the best two of each task, by
test accuracy with that seed, the setting that is best on average over the tasks, and the methods
without a learning rate with three others. Finished runs in the file are skipped, so that a study
can be stopped and repeated.

`auto` is `tf.fit` with nothing set: it holds back rows and may stop early. All methods weight
clients by their samples, as it does, and ship the averaged output. Methods without a learning rate
have 1.4 times the rounds of the tuned ones.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tunefree as tf
from tunefree.clients import Adam, Constant, Scaffold
from tunefree.server import Average, Averaged, FedDuAdagrad, FedExP
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows


@dataclass(frozen=True)
class Task:
    """A dataset, its split over clients, a network and how long it is trained."""

    data: str
    model: str
    alpha: float | None  # of the Dirichlet split; None: by owner
    clients: int
    rounds: int
    cohort: int | None = 10
    steps: int = 20
    batch: int = 50
    cost: float = 1.0  # rough seconds of a run on a GPU, for the order of the runs
    grid: tuple[str, ...] = ("",)  # how the settings begin that are tried; all
    model_args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


# Fewer settings where runs are long: rates that are not far from the best ones of other tasks.
_SLOW = ("fedavg 0.3", "fedexp 0.1", "fedduadagrad 0.03", "fedduadagrad 0.1", "fedduadagrad 0.3")
_CNN = (*_SLOW, "scaffold 0.1", "adam 0.001")
_RESNET = ("fedavg 0.1", "fedduadagrad 0.03", "fedduadagrad 0.1", "scaffold 0.1")
_LSTM = ("fedavg 1 decay", "fedduadagrad 0.3 decay", "fedduadagrad 1", "adam 0.003")
_BERT = ("fedduadagrad 0.03", "fedduadagrad 0.1", "adam 0.0003", "adam 0.001")
_SMALL_BERT = {"layers": 4, "width": 256, "heads": 4, "hidden": 1024, "positions": 64}
TASKS = {
    "digits-0.1": Task("digits", "mlp", 0.1, 20, 60),
    "digits-1": Task("digits", "mlp", 1.0, 20, 60),
    "a9a": Task("a9a", "linear", 0.3, 20, 100),
    "fmnist-mlp-0.1": Task("fashion-mnist", "mlp", 0.1, 100, 200, cost=6),
    "fmnist-mlp-1": Task("fashion-mnist", "mlp", 1.0, 100, 200, cost=6),
    "fmnist-cnn-0.1": Task("fashion-mnist", "cnn-p4", 0.1, 100, 200, cost=15, grid=_CNN),
    "fmnist-cnn-1": Task("fashion-mnist", "cnn-p4", 1.0, 100, 200, cost=15, grid=_CNN),
    "writers": Task("mnist-writers", "cnn-p2", None, 200, 150, cost=12, grid=_CNN),
    "cifar-cnn": Task("cifar10", "cnn-p4", 0.3, 100, 300, cost=20, grid=_CNN),
    "cifar-resnet18": Task(
        "cifar10", "resnet18", 0.3, 100, 100, cost=40, grid=_RESNET,
        options={
            "preprocess": tf.Preprocess(augment="crop-flip"),
            "engine": tf.Engine(precision="bf16", chunk=10),
        },
    ),
    "shakespeare": Task("shakespeare", "lstm", None, 0, 100, batch=20, cost=60, grid=_LSTM),
    "sst2-text": Task("sst2", "text", 0.3, 100, 100, cost=8),
    "sst2-bert": Task(
        "sst2", "bert", 0.3, 100, 100, cost=40, grid=_BERT, model_args=_SMALL_BERT
    ),
    "everyone": Task("fashion-mnist", "mlp", 0.1, 100, 200, cohort=None, cost=10),
    "5-steps": Task("fashion-mnist", "mlp", 0.1, 100, 200, steps=5, cost=4),
    "50-steps": Task("fashion-mnist", "mlp", 0.1, 100, 200, steps=50, cost=12),
    "1000-clients": Task("fashion-mnist", "mlp", 0.1, 1000, 200, batch=20, cost=8),
}  # fmt: skip

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
ADAM_RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def _tuned(make: Callable[[float], tf.Method], rates: tuple[float, ...]) -> dict[str, tf.Method]:
    found = {}
    for lr in rates:
        for name, schedule in (("", "constant"), (" decay", "linear:0")):
            found[f"{lr:g}{name}"] = replace(make(lr), schedule=schedule)
    return found


def tuned_methods() -> dict[str, tf.Method]:
    """Return every setting of the tuned methods' grids, by name."""
    grids: dict[str, tuple[Callable[[float], tf.Method], tuple[float, ...]]] = {
        "fedavg": (lambda lr: _method(Constant(lr), Average()), RATES),
        "fedexp": (lambda lr: _method(Constant(lr), FedExP()), RATES),
        "fedduadagrad": (lambda lr: _method(Constant(lr), FedDuAdagrad()), RATES),
        "scaffold": (
            lambda lr: replace(_method(Constant(lr), Average()), direction=Scaffold()),
            RATES,
        ),
        "adam": (lambda lr: _method(Adam(lr), Average()), ADAM_RATES),
    }
    return {
        f"{name} {setting}": method
        for name, (make, rates) in grids.items()
        for setting, method in _tuned(make, rates).items()
    }


def _method(step: Any, server: Any) -> tf.Method:
    return tf.Method(step=step, server=server, output=Averaged(), weights="samples")


@cache
def data(name: str, folder: str | None) -> tf.Dataset:
    """Load a dataset once per process."""
    return tf.load(name, folder)


@cache
def federation(task: str, seed: int, folder: str | None) -> tf.Federation:
    """Split the data of a task over its clients."""
    spec = TASKS[task]
    split = tf.ByOwner() if spec.alpha is None else tf.Dirichlet(spec.alpha)
    return data(spec.data, folder).split(split, clients=spec.clients or None, seed=seed)


def network(task: str, seed: int, folder: str | None) -> torch.nn.Module:
    """Return the newly initialised network of a task."""
    spec, dataset = TASKS[task], data(TASKS[task].data, folder)
    inputs = dataset.x["ids"] if isinstance(dataset.x, dict) else dataset.x
    assert isinstance(inputs, torch.Tensor)
    args = dict(spec.model_args)
    if spec.data == "sst2":
        args["vocab"] = int(inputs.max()) + 1
    assert dataset.classes is not None
    shape = tuple(inputs.shape[1:])
    return tf.models.build(spec.model, shape=shape, classes=dataset.classes, seed=seed, **args)


FREE = tuple(n for n, e in tf.methods.CATALOGUE.items() if not e.choose)  # nothing to choose
PUBLISHED = ("deltasgd", "fedhyper", "fedprodigy")  # of these, what `auto` is compared with
MORE = 1.4  # rounds of these, in units of the tuned methods'
Job = tuple[str, str, int, str | None, str]  # task, method, seed, folder, device


def train_one(job: Job, worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    task, name, seed, folder, device = job
    spec = TASKS[task]
    method: tf.Method | str = name
    if name != "auto":
        found = tuned_methods().get(name) or tf.methods.get(name, weights="samples")
        method = replace(found, output=Averaged())
    began = time.monotonic()
    run = tf.fit(
        network(task, seed, folder),
        federation(task, seed, folder),
        method,
        rounds=round(spec.rounds * (MORE if name in FREE else 1)),
        cohort=spec.cohort,
        steps=spec.steps,
        batch=spec.batch,
        eval_every=max(1, spec.rounds // 40),
        seed=seed,
        device=device,
        progress=False,
        **spec.options,
    )
    accuracy = [r["test_accuracy"] for r in run.history if "test_accuracy" in r] or [0.0]
    shipped = run.summary.get("test_accuracy", accuracy[-1])
    names = ("gradients", "bytes_up", "bytes_down")
    return {
        "task": task,
        "method": name,
        "seed": seed,
        "status": run.status,
        "final": shipped if run.status != "diverged" else 0.0,
        "best": max(accuracy),
        **{n: run.summary[n] for n in names},
        "seconds": time.monotonic() - began,
    }


def gaps_of_settings(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return how far settings are below the best one of each task, with seed 0.

    Tasks whose grid is not searched to the end do not count; settings are in all grids.
    """
    grid = tuned_methods()
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["seed"] == 0 and row["method"] in grid:
            found.setdefault(row["task"], {})[row["method"]] = row["final"]
    done = [
        final
        for task, final in found.items()
        if all(name in final for name in grid if name.startswith(TASKS[task].grid))
    ]
    names = [name for name in grid if all(name in final for final in done)] if done else []
    return {name: [final[name] - max(final.values()) for final in done] for name in names}


def fixed_setting(rows: list[dict[str, Any]]) -> list[str]:
    """Return the tuned setting that is best on average over the tasks."""
    gaps = gaps_of_settings(rows)
    return [max(gaps, key=lambda name: statistics.mean(gaps[name]))] if gaps else []


def best_settings(rows: list[dict[str, Any]], task: str) -> list[str]:
    """Return the two best tuned settings of a task with seed 0."""
    grid = tuned_methods()
    found = [r for r in rows if r["task"] == task and r["seed"] == 0 and r["method"] in grid]
    return [r["method"] for r in sorted(found, key=lambda r: -r["final"])[:2]]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table of mean final accuracies over the seeds of `compare`.

    The first two rows are the best tuned setting; those below are differences to it in points, on
    the seeds of the row. Brackets: how far a run ended below its own best evaluation, where it is
    more than 1 point; and the number of seeds, where it is less than three. Means are over the
    tasks on which `auto`, the best setting for all tasks and the published methods have three
    seeds.
    """
    scores: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["seed"] > 0:
            scores.setdefault((row["task"], row["method"]), []).append(row)
    mean = {key: statistics.mean(r["final"] for r in found) for key, found in scores.items()}
    grid = tuned_methods()
    tasks = [t for t in TASKS if any(key[0] == t and key[1] in grid for key in mean)]
    best = {}
    for task in tasks:
        tuned = [key for key in mean if key[0] == task and key[1] in grid]
        best[task] = max(tuned, key=lambda key: mean[key])
    lines = ["| | " + " | ".join(tasks) + " | mean |", "|---" * (len(tasks) + 2) + "|"]
    lines.append("| best tuned | " + " | ".join(f"{mean[best[t]]:.4f}" for t in tasks) + " | |")
    lines.append("| its setting | " + " | ".join(best[t][1] for t in tasks) + " | |")
    others = [key[1] for key in mean if key[1] not in grid]
    fixed = fixed_setting(rows)
    wanted = ("auto", *PUBLISHED, *fixed)
    whole = [t for t in tasks if all(len(scores.get((t, n), [])) >= 3 for n in wanted)]
    for name in dict.fromkeys(["auto", "fedrace", "feddowgdua", *FREE, *others, *fixed]):
        cells, gaps = [], dict[str, float]()
        for task in tasks:
            found = scores.get((task, name))
            if found is None:
                cells.append("")
                continue
            top = {r["seed"]: r["final"] for r in scores[best[task]]}
            both = [r["final"] - top[r["seed"]] for r in found if r["seed"] in top]
            gaps[task] = 100 * statistics.mean(both) if both else math.nan
            drop = 100 * max(r["best"] - r["final"] for r in found)
            notes = [f"-{drop:.1f}"] * (drop > 1) + [f"{len(both)} of 3"] * (len(both) < 3)
            cells.append(f"{gaps[task]:+.1f}" + (f" ({', '.join(notes)})" if notes else ""))
        if gaps:
            is_whole = whole and all(len(scores.get((t, name), [])) >= 3 for t in whole)
            last = f"{statistics.mean(gaps[t] for t in whole):+.1f}" if is_whole else ""
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {last} |")
    lines += ["", f"Means over {', '.join(whole)}."]
    for name in fixed:
        below = [-100 * gap for gap in gaps_of_settings(rows)[name]]
        usual, most = statistics.mean(below), max(below)
        far = f"{usual:.1f} points below the best of each, {most:.1f} at most (seed 0)"
        lines += ["", f"The best setting for all {len(below)} tasks, {name}: {far}."]
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("tune", "compare", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default="", help="only methods whose name begins so; comma")
    parser.add_argument("--seeds", default="1,2,3", help="of compare")
    parser.add_argument("--free", default=",".join(FREE), help="methods without a learning rate")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", default=None)
    given = parser.parse_args()
    rows, seeds = read_rows(given.out), [int(s) for s in given.seeds.split(",")]
    begins = tuple(given.methods.split(","))
    done = {(r["task"], r["method"], r["seed"]) for r in rows}
    wanted: list[tuple[str, str, int]] = []
    for task in given.tasks.split(","):
        if given.command == "tune":
            names = [n for n in tuned_methods() if n.startswith(TASKS[task].grid)]
            wanted += [(task, name, 0) for name in names]
        elif given.command == "compare":
            names = [*given.free.split(","), *best_settings(rows, task), *fixed_setting(rows)]
            wanted += [(task, name, seed) for seed in seeds for name in dict.fromkeys(names)]
    wanted = [job for job in wanted if job[1].startswith(begins)]
    wanted.sort(key=lambda job: -TASKS[job[0]].cost)
    jobs: list[Job] = [(*j, given.data_dir, given.device) for j in wanted if j not in done]
    append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
