"""Why a race must not climb on noise: a transformer whose classes are skewed over clients.

    python -m experiments.auto.transformer --out rows.jsonl --data-dir DATA    # on a CPU, minutes

BERT with one layer of width 256 on 3,000 phrases of SST-2 over 20 clients (Dirichlet 0.3), four of
them in a round. Arms of 4 rounds with decay, as in a race of 50 rounds, at rates a factor of 3
apart, and `fedrace` itself. The spread is the deviation of the scores over the test phrases: where
it is near zero, all phrases get the same answer. Finished runs in the file are skipped.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

import tunefree as tf
from tunefree.clients import Constant
from tunefree.server import Averaged, FedDuAdagrad
from tunefree.study.pool import Worker

from ..lines import append_rows, read_rows

RATES = tuple(3.0**-k for k in range(1, 7))
PHRASES, LENGTH, ROUNDS, ARM = 3000, 8, 50, 4
Job = tuple[float, int, str | None]  # rate, 0 for fedrace; seed, folder


def spread(output: Tensor, target: Tensor) -> float:
    """Return the deviation over the rows of the difference of the two scores."""
    return float((output[:, 1] - output[:, 0]).std())


def train_one(job: Job, worker: Worker) -> dict[str, Any]:
    """Train one run and return its row."""
    rate, seed, folder = job
    data = tf.load("sst2", folder, max_tokens=LENGTH, min_count=300)
    assert isinstance(data.x, dict)
    vocab = int(data.x["ids"].max()) + 1
    data = replace(data, x={n: t[:PHRASES] for n, t in data.x.items()}, y=data.y[:PHRASES])
    sizes = {"vocab": vocab, "layers": 1, "width": 256, "heads": 4, "hidden": 512, "positions": 8}
    arm = tf.Method(
        step=Constant(rate or 1.0),
        server=FedDuAdagrad(),
        output=Averaged(),
        weights="samples",
        schedule="linear:0",
    )
    run = tf.fit(
        tf.models.build("bert", shape=(LENGTH,), classes=2, seed=seed, **sizes),
        data.split(tf.Dirichlet(0.3), clients=20, seed=seed),
        arm if rate else tf.methods.get("fedrace", weights="samples"),
        rounds=ARM if rate else ROUNDS,
        cohort=4,
        batch=16,
        seed=seed,
        device="cpu",
        compile=False,
        progress=False,
        evaluate=tf.Evaluate(metrics={"spread": spread}),
    )
    chosen = next((r["lr"] for r in run.history if "arm" not in r and "lr" in r), rate)
    names = ("test_loss", "test_accuracy", "test_spread")
    return {"rate": rate, "seed": seed, "lr": chosen, **{n: run.summary[n] for n in names}}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table of the arms and of the races."""
    lines = ["| rate | loss | spread |", "|---|---|---|"]
    for rate in RATES:
        found = [r for r in rows if r["rate"] == rate]
        if found:
            losses = ", ".join(f"{r['test_loss']:.2f}" for r in found)
            mean = statistics.mean(r["test_spread"] for r in found)
            lines.append(f"| {rate:.2g} | {losses} | {mean:.2f} |")
    lines += ["", "| seed | rate of the run | accuracy | spread |", "|---|---|---|---|"]
    for r in rows:
        if not r["rate"]:
            cells = f"{r['lr']:.2g} | {r['test_accuracy']:.3f} | {r['test_spread']:.2f}"
            lines.append(f"| {r['seed']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    given = parser.parse_args()
    done = {(r["rate"], r["seed"]) for r in read_rows(given.out)}
    jobs: list[Job] = [
        (rate, seed, given.data_dir)
        for rate in (*RATES, 0.0)
        for seed in range(given.seeds)
        if (rate, seed) not in done
    ]
    append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
