"""Accuracy under attack: what withstands hostile clients on Fashion-MNIST, and at what price.

python -m experiments.trust.attacks                  # every run that is missing, about 10 minutes
python -m experiments.trust.attacks --seeds 5        # more seeds; runs that are kept stay
python -m experiments.trust.attacks --model mlp --results experiments/trust/results/mlp.json

Results are kept after each run, so that it may be stopped at any time. The page is written from
them by `python -m experiments.trust.render`.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.keep import machine, versions

import tunefree as tf
from tunefree.core.files import to_json, write_atomically
from tunefree.models import nets

HERE = Path(__file__).parent
RULES = (
    "mean",
    "median",
    "trimmed-mean:f=4",
    "geometric-median",
    "krum:f=4",
    "multi-krum:f=4",
    "norm-clip",
    "centred-clip",
    "nnm:f=4+trimmed-mean:f=4",
    "nnm:f=4+krum:f=4",
    "bucketing:size=2+median",
)
ATTACKS = {
    "fedavg": (
        "none",
        "sign-flip:0.2:scale=4",
        "large-norm:0.2:scale=100",
        "gaussian:0.2:scale=20",
        "label-flip:0.2",
        "little-is-enough:0.2:z=1.5",
        "inner-product:0.2:eps=2",
    ),
    "fedduadagrad": (
        "none",
        "sign-flip:0.2:scale=4",
        "large-norm:0.2:scale=100",
        "little-is-enough:0.2:z=1.5",
        "misreport:0.2:scale=1000",
    ),
}
METHODS: dict[str, dict[str, Any]] = {"fedavg": {"lr": 0.1}, "fedduadagrad": {"lr": 0.1}}


def list_runs(seeds: int) -> list[dict[str, Any]]:
    """Return the runs of the table, seed by seed."""
    return [
        {"seed": seed, "method": method, "aggregate": rule, "attack": attack}
        for seed in range(seeds)
        for method in METHODS
        for attack in ATTACKS[method]
        for rule in RULES
    ]


def train_one(one: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    """Train one run and return its row of the results."""
    began = time.perf_counter()
    run = tf.fit(
        **problem,
        method=tf.methods.get(one["method"], weights="uniform", **METHODS[one["method"]]),
        seed=one["seed"],
        aggregate=tf.robust.parse(one["aggregate"]),
        scenario=tf.Scenario(attack=tf.attacks.parse(one["attack"])),
    )
    last = run.history[-1] if run.history else {}
    return {
        **one,
        "status": run.status,
        "accuracy": last.get("test_accuracy"),
        "loss": last.get("test_loss"),
        "seconds": time.perf_counter() - began,
    }


def main(words: list[str]) -> int:
    """Train the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="linear", choices=nets.names())
    parser.add_argument("--results", type=Path, default=HERE / "results" / "attacks.json")
    given = parser.parse_args(words)
    settings = {
        "data": "fashion-mnist",
        "split": "dirichlet:0.5",
        "clients": 20,
        "model": given.model,
        "rounds": given.rounds,
        "steps": 10,
        "batch": 32,
        "methods": METHODS,
    }
    place: Path = given.results
    found = json.loads(place.read_text()) if place.exists() else {"rows": []}
    if found["rows"] and found["settings"] != json.loads(to_json(settings)):
        print(f"{place} has other settings; give another --results.", file=sys.stderr)
        return 2
    names = ("seed", "method", "aggregate", "attack")
    known = {tuple(row[n] for n in names) for row in found["rows"]}
    missing = [w for w in list_runs(given.seeds) if tuple(w.values()) not in known]
    dataset, problem, seed = tf.load(str(settings["data"])), {}, -1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for k, one in enumerate(missing):
        if one["seed"] != seed:
            seed = one["seed"]
            problem = {
                "model": nets.build(given.model, shape=(1, 28, 28), classes=10, seed=seed),
                "federation": dataset.split(tf.Dirichlet(0.5), clients=20, seed=seed),
                "rounds": given.rounds,
                "steps": settings["steps"],
                "batch": settings["batch"],
                "eval_every": given.rounds,
                "device": device,
                "compile": False,
            }
        row = train_one(one, problem)
        found = {
            "settings": settings,
            "command": " ".join(["python", "-m", "experiments.trust.attacks", *words]),
            "machine": machine(device),
            "versions": versions(),
            "each": len(list_runs(1)),  # runs of a seed
            "rows": [*found["rows"], row],
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, (json.dumps(json.loads(to_json(found)), indent=1) + "\n").encode())
        said = "diverged" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        print(f"{k + 1}/{len(missing)}  {', '.join(map(str, one.values()))}: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
