"""`auto` with nothing set beside scikit-learn on all rows: probabilities, regression, imbalance.

    python -m experiments.auto.tables --out tables.jsonl --data-dir DATA
    python -m experiments.auto.tables --out tables.jsonl --tasks 'digits;a9a;fmnist' --data-dir DATA
    python -m experiments.auto.tables --out tables.jsonl --rules

Small tables, each split into training and test rows three times and over ten clients whose classes
(for regression, fifths of the target) are skewed by a Dirichlet distribution with parameter 0.3.
Every run is made twice, with nothing set and with `validation=0`; the larger tasks show what it
costs to hold rows back. `--rules` trains classes of tables with other rules that choose the round,
from the same fifth of the rows. Finished runs in the file are skipped. Prints tables of means over
the splits; larger tasks have no central model.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets, metrics  # type: ignore[import-untyped]
from sklearn.compose import TransformedTargetRegressor  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from sklearn.neural_network import MLPClassifier, MLPRegressor  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

import tunefree as tf
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows

CLIENTS, ALPHA, WIDTH = 10, 0.3, 64
Array = Any


def rare() -> tuple[Array, Array]:
    """Return 4,000 rows, of which 4 in 100 are of the second class."""
    x, y = datasets.make_classification(
        4000,
        20,
        n_informative=6,
        n_redundant=2,
        weights=[0.96],
        flip_y=0.01,
        random_state=0,
    )
    return x, y


def loader(read: Callable[..., Any]) -> Callable[[], tuple[Array, Array]]:
    """Return a function that reads one of scikit-learn's datasets."""

    def load() -> tuple[Array, Array]:
        x, y = read(return_X_y=True)
        return x, y

    return load


@dataclass(frozen=True)
class Table:
    """A small table and the network that is trained on it."""

    load: Callable[[], tuple[Array, Array]]
    model: str
    score: str  # the measure with a goal


@dataclass(frozen=True)
class Larger:
    """A dataset of the library, its network and how long it is trained."""

    data: str
    model: str
    clients: int
    rounds: int
    every: int


TABLES = {
    f"{name}, {model}": Table(loader(read) if read is not rare else read, model, score)
    for name, read, score in (
        ("breast cancer", datasets.load_breast_cancer, "log_loss"),
        ("wine", datasets.load_wine, "log_loss"),
        ("diabetes", datasets.load_diabetes, "r2"),
        ("4 % positive", rare, "average_precision"),
    )
    for model in ("linear", "mlp")
}
LARGER = {
    "digits": Larger("digits", "mlp", 20, 60, 1),
    "a9a": Larger("a9a", "linear", 20, 100, 2),
    "fmnist": Larger("fashion-mnist", "mlp", 100, 100, 2),
}
GOALS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "log_loss": ("at most 1.15 times", lambda own, central: own <= 1.15 * central),
    "r2": ("at most 0.02 below", lambda own, central: own >= central - 0.02),
    "average_precision": ("at most 0.03 below", lambda own, central: own >= central - 0.03),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "all rows": {"evaluate": tf.Evaluate(validation=0)},
}
HELD: dict[str, Any] = {"validation": 0.2, "keep_best": True}
RULES: dict[str, dict[str, Any]] = {
    "lowest loss, stopped": {"evaluate": tf.Evaluate(**HELD, monitor="loss", patience=20)},
    "lowest loss": {"evaluate": tf.Evaluate(**HELD, monitor="loss")},
    "lowest calibrated loss": {"evaluate": tf.Evaluate(**HELD, monitor="calibrated_loss")},
    "latest within 0.5": {"evaluate": tf.Evaluate(**HELD, monitor="loss", tolerance=0.5)},
    "latest within 1": {"evaluate": tf.Evaluate(**HELD, monitor="loss", tolerance=1.0)},
    "last round": {"evaluate": tf.Evaluate(validation=0.2)},
}
ALL = VARIANTS | RULES
Job = tuple[str, str, int, str | None]  # task, variant, seed, folder


def owners(y: Array, seed: int) -> Array:
    """Return the client of each row: classes, or fifths of numbers, are unequally spread."""
    draw, owner = np.random.default_rng(seed), np.zeros(len(y), dtype=np.int64)
    kinds = np.searchsorted(np.quantile(y, (0.2, 0.4, 0.6, 0.8)), y) if is_real(y) else y
    for kind in np.unique(kinds):
        rows = kinds == kind
        owner[rows] = draw.choice(CLIENTS, rows.sum(), p=draw.dirichlet([ALPHA] * CLIENTS))
    return owner


def is_real(y: Array) -> bool:
    """Return whether targets are numbers rather than classes."""
    return bool(np.issubdtype(y.dtype, np.floating))


def network(kind: str, inputs: int, outputs: int, seed: int) -> torch.nn.Module:
    """Return a newly initialised network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "linear":
            return torch.nn.Linear(inputs, outputs)
        hidden = torch.nn.Linear(inputs, WIDTH)
        return torch.nn.Sequential(hidden, torch.nn.ReLU(), torch.nn.Linear(WIDTH, outputs))


def central_models(kind: str, real: bool, seed: int) -> dict[str, Any]:
    """Return the models of scikit-learn that are trained on all rows in one place, by name."""
    if kind == "linear":
        return {"central": Ridge() if real else LogisticRegression(max_iter=1000)}
    make = MLPRegressor if real else MLPClassifier
    common = {"hidden_layer_sizes": (WIDTH,), "max_iter": 1000, "random_state": seed}
    return {
        "central": make(**common),
        "central, early stopping": make(early_stopping=True, **common),
    }


def measure(predict: Any, x: Array, y: Array) -> dict[str, float]:
    """Return the measures of a model with `predict`, and with `predict_proba` for classes."""
    if is_real(y):
        return {"r2": float(metrics.r2_score(y, predict.predict(x)))}
    chance = predict.predict_proba(x)
    found = {
        "log_loss": float(metrics.log_loss(y, chance)),
        "accuracy": float((chance.argmax(1) == y).mean()),
    }
    if chance.shape[1] == 2:
        found["average_precision"] = float(metrics.average_precision_score(y, chance[:, 1]))
    return found


def train_table(name: str, variant: str, seed: int) -> dict[str, Any]:
    """Train one run on a small table, and scikit-learn on the same rows."""
    spec = TABLES[name]
    x, y = spec.load()
    y = y.astype(np.float64) if is_real(y) else y
    same = None if is_real(y) else y
    x, x_test, y, y_test = train_test_split(x, y, random_state=seed, stratify=same)
    if variant not in ALL:
        inner = central_models(spec.model, is_real(y), seed)[variant]
        if is_real(y):
            inner = TransformedTargetRegressor(inner, transformer=StandardScaler())
        fitted = make_pipeline(StandardScaler(), inner).fit(x, y)
        return measure(fitted, x_test, y_test)
    federation = tf.Federation(x, y, owners(y, seed), test=(x_test, y_test), name=name)
    outputs = 1 if is_real(y) else int(y.max()) + 1
    model = network(spec.model, x.shape[1], outputs, seed)
    run = tf.fit(model, federation, seed=seed, device="cpu", progress=False, **ALL[variant])
    about = {"status": run.status, "rounds": len(run.history)}
    return measure(run, x_test, y_test) | about


def train_larger(name: str, variant: str, seed: int, folder: str | None) -> dict[str, Any]:
    """Train one run on a dataset of the library."""
    spec = LARGER[name]
    dataset = tf.load(spec.data, folder)
    assert isinstance(dataset.x, torch.Tensor)
    assert dataset.classes is not None
    shape = tuple(dataset.x.shape[1:])
    model = tf.models.build(spec.model, shape=shape, classes=dataset.classes, seed=seed)
    run = tf.fit(
        model,
        dataset.split(tf.Dirichlet(ALPHA), clients=spec.clients, seed=seed),
        rounds=spec.rounds,
        cohort=10,
        eval_every=spec.every,
        seed=seed,
        device="cpu",
        progress=False,
        **ALL[variant],
    )
    return {
        "log_loss": run.summary["test_loss"],
        "accuracy": run.summary["test_accuracy"],
        "status": run.status,
        "rounds": len(run.history),
    }


def train_one(job: Job, worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    task, variant, seed, folder = job
    torch.set_num_threads(1)
    began = time.monotonic()
    if task in TABLES:
        found = train_table(task, variant, seed)
    else:
        found = train_larger(task, variant, seed, folder)
    row = {"task": task, "variant": variant, "seed": seed, **found}
    return row | {"seconds": time.monotonic() - began}


def mean_of(rows: list[dict[str, Any]], task: str, variant: str) -> dict[str, float]:
    """Return the means over the splits of what was measured."""
    found = [r for r in rows if (r["task"], r["variant"]) == (task, variant)]
    names = ("log_loss", "accuracy", "r2", "average_precision", "rounds")
    return {n: statistics.mean(r[n] for r in found) for n in names if found and n in found[0]}


def table(rows: list[dict[str, Any]]) -> str:
    """Return both tables in markdown."""
    lines = ["| | measure | scikit-learn | `auto` | rounds | goal | | all rows, all rounds |"]
    lines.append("|---" * 8 + "|")
    for task, spec in TABLES.items():
        own, whole = (mean_of(rows, task, variant) for variant in VARIANTS)
        names = central_models(spec.model, spec.score == "r2", 0)
        central = [found for name in names if (found := mean_of(rows, task, name))]
        if not (own and whole and central):
            continue
        for score in ("log_loss", "r2", "average_precision", "accuracy"):
            if score not in own or (score == "average_precision" and spec.score != score):
                continue
            better = min if score == "log_loss" else max
            best = better(found[score] for found in central)
            words = f"| {task} | {score.replace('_', ' ')} | {best:.3f} | {own[score]:.3f} "
            goal, is_met = GOALS.get(score, ("", lambda a, b: True))
            met = "" if not goal else "met" if is_met(own[score], best) else "missed"
            words += f"| {own['rounds']:.0f} | {goal} | {met} | {whole[score]:.3f} |"
            lines.append(words)
    lines += ["", "| | accuracy | log-loss | rounds | accuracy, all rows | log-loss | rounds |"]
    lines.append("|---" * 7 + "|")
    for task in LARGER:
        cells = []
        for variant in VARIANTS:
            found = mean_of(rows, task, variant)
            if found:
                cells += [f"{found['accuracy']:.4f}", f"{found['log_loss']:.4f}"]
                cells.append(f"{found['rounds']:.0f}")
        if len(cells) == 6:
            lines.append(f"| {task} | " + " | ".join(cells) + " |")
    tasks = [task for task in TABLES if any(mean_of(rows, task, rule) for rule in RULES)]
    lines += ["", "| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for rule in RULES:
        cells = []
        for task in tasks:
            found, scores = (
                mean_of(rows, task, rule),
                dict.fromkeys(("log_loss", TABLES[task].score)),
            )
            cells.append(", ".join(f"{found[score]:.3f}" for score in scores if found))
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def list_jobs(
    tasks: Mapping[str, Table | Larger], seeds: int, folder: str | None, *, rules: bool = False
) -> list[Job]:
    """Return every run of some tasks, or of the rules on tables where classes are held back."""
    jobs: list[Job] = []
    for seed in range(seeds):
        for task, spec in tasks.items():
            names = list(VARIANTS)
            if rules:
                names = [] if task.startswith(("wine", "diabetes", *LARGER)) else list(RULES)
            elif isinstance(spec, Table):
                names += central_models(spec.model, spec.score == "r2", 0)
            jobs += [(task, name, seed, folder) for name in names]
    return jobs


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=";".join(TABLES), help="names, separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--rules", action="store_true")
    given = parser.parse_args()
    known = TABLES | LARGER
    done = {(r["task"], r["variant"], r["seed"]) for r in read_rows(given.out)}
    tasks = {name: known[name] for name in given.tasks.split(";")}
    wanted = list_jobs(tasks, given.seeds, given.data_dir, rules=given.rules)
    jobs = [job for job in wanted if job[:3] not in done]
    append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
