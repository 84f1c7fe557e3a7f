"""Which rows `auto` holds back on SST-2, and which model of a run is shipped by them.

    python -m experiments.auto.held --out rows.jsonl --data-dir DATA    # on a CPU
    python -m experiments.auto.held --out rows.jsonl --table

Every way holds back about 2,000 of the 67,349 phrases; draws differ in nothing else:

    rows        random rows of every client, as `auto` does; draw 0 is that of `auto`
    blocks      the last rows of every client, in the order of the data
    clients     all rows of some clients
    sentences   some sentences (phrases that are part of no other one) with all of their phrases of
                three words or more

All rounds are trained, so that the rules are compared on the same models. Finished runs in the file
are skipped.
"""

import argparse
import math
import random
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tunefree as tf
from tunefree.data.federation import count_held
from tunefree.study.pool import Worker
from tunefree.training.decide import ENOUGH, PATIENCE, PATIENCE_SHARE, choose_share

from ..lines import append_rows, read_rows
from .tuned import MORE, TASKS, federation, network

TASK, EVERY = "sst2-text", 2
WAYS = {"rows": 3, "blocks": 1, "clients": 3, "sentences": 2}  # and their draws
SHORTEST, LONG = 3, 8  # words of a phrase that is held with its sentence; of a sentence
BEST_TUNED = {1: 0.7763761467889908, 2: 0.7844036697247706, 3: 0.7626146788990825}
Phrase = tuple[int, ...]
Job = tuple[str, int, int, str | None]  # way, draw, seed, folder


class Chosen(tf.Federation):
    """A federation that holds back rows that were chosen before."""

    taken: Tensor

    def choose_rows(self, fraction: float, seed: int = 0) -> Tensor:
        """Return the rows."""
        return self.taken


def choose(fed: tf.Federation, way: str, draw: int, share: float, seed: int) -> Tensor:
    """Return which rows are held back, (samples,)."""
    if way == "rows":
        return fed.choose_rows(share, seed + 100 * draw)
    ids = fed.owners()
    if way == "blocks":
        position = torch.arange(fed.samples) - fed.starts[ids]
        return position >= (fed.sizes - count_held(fed.sizes, share))[ids]
    order = random.Random(100 * draw + seed)
    if way == "clients":
        found: list[int] = []
        clients = list(range(fed.clients))
        order.shuffle(clients)
        while int(fed.sizes[found].sum()) < ENOUGH:
            found.append(clients.pop())
        return torch.isin(ids, torch.tensor(found))
    assert isinstance(fed.x, dict)
    return _choose_sentences(fed.x["ids"].tolist(), order)


def _choose_sentences(ids: Iterable[list[int]], order: random.Random) -> Tensor:
    phrases = [tuple(token for token in row if token) for row in ids]
    rows: dict[Phrase, list[int]] = {}
    for row, phrase in enumerate(phrases):
        rows.setdefault(phrase, []).append(row)
    inside = {part for phrase in rows for part in _parts(phrase) if part != phrase}
    sentences = sorted(phrase for phrase in rows if phrase not in inside and len(phrase) >= LONG)
    order.shuffle(sentences)
    taken = torch.zeros(len(phrases), dtype=torch.bool)
    while int(taken.sum()) < ENOUGH:
        for part in _parts(sentences.pop()):
            taken[rows.get(part, [])] = True
    return taken


def _parts(phrase: Phrase) -> Iterator[Phrase]:
    """Return all runs of a phrase's words that are long enough."""
    for begin in range(len(phrase)):
        for end in range(begin + SHORTEST, len(phrase) + 1):
            yield phrase[begin:end]


def positive(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the share of phrases that are called positive."""
    return outputs.argmax(1).double().mean()


def train_one(job: Job, worker: Worker) -> dict[str, Any]:
    """Train one run and return its row: test accuracies of the models that the rules ship."""
    way, draw, seed, folder = job
    spec, fed = TASKS[TASK], federation(TASK, seed, folder)
    share = choose_share(fed.sizes)
    assert share is not None
    taken = choose(fed, way, draw, share, seed)
    chosen = object.__new__(Chosen)
    chosen.__dict__ = {**vars(fed), "taken": taken}
    rounds = round(spec.rounds * MORE)
    run = tf.fit(
        network(TASK, seed, folder),
        chosen,
        rounds=rounds,
        cohort=spec.cohort,
        steps=spec.steps,
        batch=spec.batch,
        eval_every=EVERY,
        seed=seed,
        device="cpu",
        progress=False,
        evaluate=tf.Evaluate(
            validation=share,
            keep_best=True,
            monitor="calibrated_loss",
            metrics={"positive": positive},
        ),
    )
    rows = [row for row in run.history if "test_accuracy" in row]
    shipped = rules(rows, rounds)
    found: dict[str, Any] = {"way": way, "draw": draw, "seed": seed, "held": int(taken.sum())}
    found |= {f"by_{name}": row["test_accuracy"] for name, row in shipped.items()}
    for name in ("test_positive", "validation_positive", "validation_accuracy"):
        found[name] = shipped["auto"][name]
    accuracy = [row["test_accuracy"] for row in rows]
    return found | {"last": accuracy[-1], "best": max(accuracy)}


def rules(rows: list[dict[str, Any]], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the evaluation that each rule ships; `auto` may stop the run before its end."""
    raced = sum("arm" in row for row in rows)
    patience = max(PATIENCE, math.ceil(PATIENCE_SHARE * -(-rounds // EVERY)))
    scores = [row["validation_calibrated_loss"] for row in rows]
    best = raced
    for end, score in enumerate(scores[raced:], raced):
        best = end if score < scores[best] else best
        if end - best >= patience:
            break
    return {
        "auto": rows[best],
        "calibrated_loss": min(rows, key=lambda row: row["validation_calibrated_loss"]),
        "loss": min(rows, key=lambda row: row["validation_loss"]),
        "accuracy": max(rows, key=lambda row: row["validation_accuracy"]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table: points above the best tuned setting, means over seeds and draws."""
    names = {"by_auto": "`auto`", "by_loss": "lowest loss", "by_accuracy": "highest accuracy"}
    names |= {"last": "last", "best": "best on the test set"}
    shares = {"test_positive": "positive, test", "validation_positive": "positive, held"}
    shares |= {"validation_accuracy": "accuracy, held"}
    titles = [*names.values(), *shares.values()]
    lines = [f"| held back | runs | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for way in WAYS:
        of = [row for row in rows if row["way"] == way]
        if not of:
            continue
        gaps = {n: [100 * (row[n] - BEST_TUNED[row["seed"]]) for row in of] for n in names}
        cells = [f"{statistics.mean(found):+.1f}" for found in gaps.values()]
        cells += [f"{statistics.mean(row[n] for row in of):.3f}" for n in shares]
        lines.append(f"| {way} | {len(of)} | {' | '.join(cells)} |")
    found = [100 * (r["by_auto"] - BEST_TUNED[r["seed"]]) for r in rows if r["way"] == "rows"]
    if found:
        lines += ["", f"rows, `auto`: {min(found):+.1f} to {max(found):+.1f} points"]
    return "\n".join(lines)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    done = {(r["way"], r["draw"], r["seed"]) for r in read_rows(given.out)}
    jobs: list[Job] = [
        (way, draw, seed, given.data_dir)
        for way, draws in WAYS.items()
        for draw in range(draws)
        for seed in map(int, given.seeds.split(","))
        if (way, draw, seed) not in done
    ]
    if not given.table:
        append_rows(given.out, jobs, train_one, given.processes)
    print(table(read_rows(given.out)))


if __name__ == "__main__":
    main()
