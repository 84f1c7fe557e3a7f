"""Few rounds: `fedrace` beside `feddowgdua`, which has no race, and its steps decayed as in `auto`.

    python -m experiments.auto.short --out rows.jsonl --data-dir DATA    # on a CPU
    python -m experiments.auto.short --out rows.jsonl --table

Clients count by their samples. Finished runs in the file are skipped.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import tunefree as tf
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows
from .tuned import TASKS, federation, network

ROUNDS = (10, 30)
METHODS = {
    "fedrace": {},
    "feddowgdua": {},
    "feddowgdua, decayed": {"schedule": "linear:0+hold:0.75"},
}
ON = ("digits-0.1", "digits-1", "a9a", "fmnist-mlp-0.1", "fmnist-mlp-1")
Job = tuple[str, str, int, int, str | None]  # task, method, rounds, seed, folder


def train_one(job: Job, worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    task, name, rounds, seed, folder = job
    spec = TASKS[task]
    run = tf.fit(
        network(task, seed, folder),
        federation(task, seed, folder),
        tf.methods.get(name.partition(",")[0], weights="samples", **METHODS[name]),
        rounds=rounds,
        cohort=spec.cohort,
        steps=spec.steps,
        batch=spec.batch,
        eval_every=rounds,
        seed=seed,
        device="cpu",
        compile=False,
        progress=False,
        preprocess=tf.Preprocess(scale="standard" if task == "a9a" else None),
    )
    final = run.summary["test_accuracy"]
    return {"task": task, "method": name, "rounds": rounds, "seed": seed, "final": final}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table of mean final accuracies."""
    lines = ["| rounds | method | " + " | ".join(ON) + " |", "|---" * (2 + len(ON)) + "|"]
    for rounds in ROUNDS:
        for name in METHODS:
            of = [r for r in rows if (r["rounds"], r["method"]) == (rounds, name)]
            finals = [[r["final"] for r in of if r["task"] == task] for task in ON]
            cells = [f"{statistics.mean(found):.3f}" if found else "" for found in finals]
            lines.append(f"| {rounds} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    done = {(r["task"], r["method"], r["rounds"], r["seed"]) for r in read_rows(given.out)}
    jobs: list[Job] = [
        (task, name, rounds, seed, given.data_dir)
        for rounds in ROUNDS
        for task in ON
        for seed in map(int, given.seeds.split(","))
        for name in METHODS
        if (task, name, rounds, seed) not in done
    ]
    if not given.table:
        append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
