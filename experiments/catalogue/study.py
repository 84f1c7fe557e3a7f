"""Every method of the catalogue on one problem, with the settings it comes with.

    python -m experiments.catalogue.study --out catalogue.jsonl            # three seeds
    python -m experiments.catalogue.study --out catalogue.jsonl --table    # print what is there

Fashion-MNIST, perceptron 784-128-64-10, 100 clients by Dirichlet 0.1, 10 of them a round, 20 local
steps of batch 50, 50 rounds. Methods that are defined for full participation have 10 clients, all
of them. Finished runs in the file are skipped, so the study can be stopped and repeated.
"""

import argparse
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import tunefree as tf
from tunefree.clients import Armijo, Constant, Mime, Proximal, Scaffold
from tunefree.server import FedDuAdagrad, FedDuAdam, LastTwo
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows

WORK: dict[str, Any] = {"cohort": 10, "steps": 20, "batch": 50, "rounds": 50, "eval_every": 5}
COHORT, STEPS, ROUNDS = 10, 20, 50
GAMMA = (COHORT * STEPS) ** 0.25 / ROUNDS**0.75  # ParFreFL's server step by its theorem
PENALISED = ("fedcanon", "fedmid", "fedda", "fastfedda", "za1", "feddr", "fedadmm")


def methods() -> dict[str, tf.Method]:
    """Return what is compared, by name."""
    named = {name: tf.methods.get(name) for name in tf.methods.names()}
    scaled = {
        f"{name}, server step {gamma}": tf.methods.get(name, scale=gamma / GAMMA)
        for name in ("parfrefl", "comparfrefl", "padamfed")
        for gamma in (0.05, 0.1, 0.25, 0.5)
    }
    servers = {"fedduadagrad": FedDuAdagrad(), "fedduadam": FedDuAdam()}
    clients: dict[str, dict[str, Any]] = {
        "scaffold": {"direction": Scaffold(), "step": Constant(0.1)},
        "mime": {"direction": Mime(), "step": Constant(0.1)},
        "fedprox": {"direction": Proximal(0.1), "step": Constant(0.1)},
        "armijo": {"step": Armijo()},
    }
    products = {
        f"{a} over {b}": tf.Method(server=server, output=LastTwo(), **parts)
        for a, server in servers.items()
        for b, parts in clients.items()
    }
    packed = {
        "feddowgdua, qsgd of 15 levels": tf.methods.get("feddowgdua", wire="qsgd:15"),
        "feddowgdua, qsgd of 3 levels": tf.methods.get("feddowgdua", wire="qsgd:3"),
        "feddowgdua, sign with error feedback": tf.methods.get("feddowgdua", wire="ef+sign"),
        "feddowgdua, top 5 % with error feedback": tf.methods.get(
            "feddowgdua", wire="ef+topk:0.05"
        ),
        "fedsps, qsgd of 15 levels": tf.methods.get("fedsps", wire="qsgd:15"),
        "fedavg, top 5 % with error feedback": tf.methods.get("fedavg", wire="ef+topk:0.05"),
        "fedexp, top 5 % with error feedback": tf.methods.get("fedexp", wire="ef+topk:0.05"),
        "fedavg, sign with error feedback": tf.methods.get("fedavg", wire="ef+sign"),
        "fedavg, qsgd of 15 levels": tf.methods.get("fedavg", wire="qsgd:15"),
        "scaffold, top 5 %": tf.methods.get("scaffold", wire="topk:0.05"),
    }
    sparse = {f"{n}, l1 1e-4": tf.methods.get(n, penalty="l1:1e-4") for n in PENALISED}
    found = {**named, **scaled, **products, **packed, **sparse}
    return {name: replace(method, weights="uniform") for name, method in found.items()}


@cache
def data(folder: str | None) -> tf.Dataset:
    """Load the dataset once per process."""
    return tf.load("fashion-mnist", folder)


def train_one(job: tuple[str, int, str | None], worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    name, seed, folder = job
    method, dataset = methods()[name], data(folder)
    clients = COHORT if method.full else 100
    fed = dataset.split(tf.Dirichlet(0.1), clients=clients, seed=seed)
    model = tf.models.build("mlp", shape=(1, 28, 28), classes=10, seed=seed)
    began = time.perf_counter()
    run = tf.fit(model, fed, method, seed=seed, device="cpu", compile=False, **WORK)
    seconds = time.perf_counter() - began
    history = run.history
    scores = [row["test_accuracy"] for row in history if "test_accuracy" in row]
    return {
        "method": name,
        "seed": seed,
        "clients": clients,
        "status": run.status,
        "accuracy": scores[-1] if run.status == "finished" else None,
        "best": max(scores, default=None),
        "sparsity": next((r["sparsity"] for r in reversed(history) if "sparsity" in r), None),
        "up": sum(row["bytes_up"] for row in history) / 1e6,
        "down": sum(row["bytes_down"] for row in history) / 1e6,
        "gradients": sum(row["gradients"] for row in history),
        "seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table: means over the seeds."""
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["method"]].append(row)
    heads = ("method", "accuracy", "best", "MB up", "MB down", "gradients", "seconds")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, found in sorted(cells.items()):
        good = [r["accuracy"] for r in found if r["accuracy"] is not None]
        spread = f" ± {statistics.stdev(good):.3f}" if len(good) > 1 else ""
        score = f"{statistics.mean(good):.3f}{spread}" if good else "diverges"
        lost = len(found) - len(good)
        note = f" ({lost} of {len(found)} diverge)" if good and lost else ""
        sparse = found[0].get("sparsity")
        zeros = f" ({sparse:.0%} zeros)" if sparse is not None else ""
        star = " *" if found[0]["clients"] == COHORT else ""
        best = [r["best"] for r in found if r["best"] is not None]
        words = (
            name + star,
            score + note + zeros,
            f"{statistics.mean(best):.3f}" if best else "",
            *(f"{statistics.mean(r[k] for r in found):.1f}" for k in ("up", "down")),
            f"{statistics.mean(r['gradients'] for r in found):,.0f}",
            f"{statistics.median(r['seconds'] for r in found):.1f}",
        )
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=None, help="separated by ';'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        done = {(r["method"], r["seed"]) for r in read_rows(given.out)}
        wanted = given.methods.split(";") if given.methods else list(methods())
        jobs = [
            (name, seed, given.data_dir)
            for seed in range(given.seeds)
            for name in wanted
            if (name, seed) not in done
        ]
        append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
