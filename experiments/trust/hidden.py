"""One hostile client where uploads cannot be inspected: under masks, and with clipping and noise.

python -m experiments.trust.hidden    # every run, ten minutes; prints the table of docs/trust.md

Under masks, the server sees only a sum and refuses one with an entry beyond clients x bound. A
hostile client that sends -a sign(its own update) in every entry is refused only if a and the honest
sum exceed that. `Privacy` clips every upload to a norm, also that of a hostile client. Masks are
simulated by their effect, without the protocol, which gives the same sums up to quantization.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from benchmarks.keep import machine, versions
from torch import Tensor

import tunefree as tf
from tunefree.core.files import to_json, write_atomically
from tunefree.core.types import Channels
from tunefree.models import nets
from tunefree.privacy import Bounds, Privacy
from tunefree.server.aggregate import Mean

RESULTS = Path(__file__).parent / "results" / "hidden.json"
CLIENTS, ROUNDS, SEEDS, HOSTILE = 20, 20, 3, 7
PROBLEM = {"data": "fashion-mnist", "split": "dirichlet:0.5", "model": "linear", "lr": 0.1}
PROBLEM |= {"clients": CLIENTS, "rounds": ROUNDS, "steps": 10, "batch": 32}


@dataclass
class MaskedSum:
    """The mean that a server gets from masked uploads, one of them hostile.

    Args:
        bound: Bound on the entries; None accepts everything.
        times: Size of the hostile client's entries, in units of the bound; None is honest.
    """

    bound: float | None
    times: float | None
    lost: int = 0
    largest: float = 0.0

    def __call__(self, weight: float, round: int, what: str) -> "MaskedMean":
        """Return the aggregator of a mean."""
        return MaskedMean(weight, self, what)


class MaskedMean(Mean):
    """A mean over all clients, in the order of their ids."""

    def __init__(self, weight: float, settings: MaskedSum, what: str) -> None:
        super().__init__(weight)
        self._settings, self._what, self._count = settings, what, 0

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows; that of the hostile client is replaced."""
        s, at = self._settings, HOSTILE - self._count
        self._count += len(p)
        if self._what == "train":
            s.largest = max(s.largest, float(rows["delta"].abs().max()))
            if s.times is not None and 0 <= at < len(p):
                delta = rows["delta"].clone()
                delta[at] = -s.times * (s.bound or 1.0) * delta[at].sign()
                rows = rows | {"delta": delta}
        super().add(p, rows)

    def result(self) -> Channels:
        """Return the means; zeros if an entry is beyond the bound of all, which loses the round."""
        found, s = super().result(), self._settings
        if self._what != "train" or s.bound is None:
            return found
        if float(found["delta"].abs().max()) <= s.bound:  # the mean's bound is one client's
            return found
        s.lost += 1
        return {n: torch.zeros_like(v) for n, v in found.items()}


def private(norm: float, noise: float, seed: int) -> Privacy:
    """Return the mean with clipping to a norm, and noise."""
    scalars = {"loss": (0.0, 10.0), "lr": (0.0, 1.0)}
    bounds = Bounds(vectors={"delta": norm}, scalars=scalars)
    return Privacy(noise=noise, clients=CLIENTS, cohort=CLIENTS, bounds=bounds, seed=seed)


def list_cases() -> list[dict[str, Any]]:
    """Return the rows of the table."""
    out: list[dict[str, Any]] = [{"kind": "plain", "attack": "none"}]
    for bound in (1024.0, 1.0, 0.25):
        for times in (None, 1.0, CLIENTS / 2, float(CLIENTS)):
            out.append({"kind": "masks", "bound": bound, "times": times})
    for norm in (3.0, 1.0):
        for noise in (0.0, 0.5):
            for attack in ("none", "sign-flip:scale=1e6"):
                out.append({"kind": "privacy", "norm": norm, "noise": noise, "attack": attack})
    return out


def train_one(case: dict[str, Any], seed: int, federation: tf.Federation) -> dict[str, Any]:
    """Train one run and return its row."""
    aggregate: Any = MaskedSum(case.get("bound"), case.get("times"))
    attack = None
    if case["kind"] == "privacy":
        aggregate = private(case["norm"], case["noise"], seed)
        attack = tf.attacks.SignFlip((HOSTILE,), scale=1e6) if case["attack"] != "none" else None
    began = time.perf_counter()
    run = tf.fit(
        nets.build("linear", shape=(1, 28, 28), classes=10, seed=seed),
        federation,
        tf.methods.get("fedavg", lr=PROBLEM["lr"], weights="uniform"),
        rounds=ROUNDS,
        steps=PROBLEM["steps"],
        batch=PROBLEM["batch"],
        seed=seed,
        eval_every=ROUNDS,
        device="cpu",
        compile=False,
        aggregate=aggregate,
        scenario=tf.Scenario(attack=attack),
    )
    row = {**case, "seed": seed, "status": run.status, "seconds": time.perf_counter() - began}
    row["accuracy"] = run.history[-1].get("test_accuracy") if run.history else None
    if isinstance(aggregate, MaskedSum):
        row |= {"lost": aggregate.lost, "largest": aggregate.largest}
    return row


def render(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = ["| | hostile client | test accuracy | rounds lost |", "|---|---|---|---|"]
    for case in list_cases():
        same = [r for r in rows if all(r.get(k) == v for k, v in case.items())]
        scores = [100 * (r["accuracy"] or 0.1) for r in same]
        lost = mean(r.get("lost", 0) for r in same)
        times = case.get("times")
        if case["kind"] == "masks":
            name = f"`Secure(bound={case['bound']:g})`"
            does = "none" if times is None else f"{times:g} x bound in every entry"
        elif case["kind"] == "privacy":
            name = f"`Privacy(noise={case['noise']:g})`, norm {case['norm']:g}"
            does = "none" if case["attack"] == "none" else "-10⁶ times its update"
        else:
            name, does = "mean", "none"
        spread = f"{mean(scores):.1f} ± {stdev(scores):.1f}"
        lines.append(f"| {name} | {does} | {spread} | {lost:g} |")
    return "\n".join(lines)


def main() -> None:
    """Train every run, keep the results and print the table."""
    dataset, rows = tf.load(str(PROBLEM["data"])), []
    for seed in range(SEEDS):
        federation = dataset.split(tf.Dirichlet(0.5), clients=CLIENTS, seed=seed)
        for case in list_cases():
            rows.append(train_one(case, seed, federation))
            print(json.dumps(rows[-1]), flush=True)
    kept = {
        "settings": PROBLEM,
        "machine": machine(torch.device("cpu")),
        "versions": versions(),
        "rows": rows,
    }
    write_atomically(RESULTS, (to_json(kept) + "\n").encode())
    print(render(rows))


if __name__ == "__main__":
    main()
