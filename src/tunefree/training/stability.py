"""Runs that end badly: how the losses went, and the likely cause."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from .bind import BoundRun
from .decide import MAX_SPREAD

FAR = 100.0  # a loss this many times another is far above it
NEAR_ZERO = 1e-3  # losses below it count as this, so that warm starts do not look unstable
SUSPECT = 10.0  # a last test loss, or a first training loss, above it is compared with the start
LAST = 3  # measurements that must all be far above the start


def judge_losses(
    rows: Iterable[dict[str, Any]], start_loss: Callable[[], float] | None = None
) -> tuple[str, str] | None:
    """Return a status and what happened if the test or training loss went badly, else None.

    Rounds of an arm, a short run that may fail, count only as the start. `start_loss`, called only
    for large losses, returns the test loss before round 0, if there is a test set.

    >>> judge_losses([{"test_loss": v} for v in (2.0, 1.0, 5e3, 7e4, 2.6e29)])
    ('diverged', 'the test loss ended at 2.6e+29, from 2 at the start')
    >>> judge_losses([{"train_loss": v} for v in (2.0, 0.01, 40.0, 0.5)])
    ('unstable', 'the training loss rose from 0.01 to 40')
    >>> judge_losses([{"train_loss": v, "arm": 0} for v in (2.0, 0.01, 40.0)])
    """
    names = {"test_loss": "the test loss", "train_loss": "the training loss"}
    found: dict[str, list[float]] = {name: [] for name in names}
    for index, row in enumerate(rows):
        if index and "arm" in row:
            continue
        for name, values in found.items():
            if (value := row.get(name)) is not None and math.isfinite(value):
                values.append(value)
    said: list[tuple[str, str]] = []
    for name, values in found.items():
        if not values:
            continue
        suspect = values[-1] if name == "test_loss" else values[0]  # of steps within round 0
        if start_loss is not None and suspect > SUSPECT:
            values.insert(0, start_loss())
        first = values[0]
        if min(values[1:][-LAST:], default=first) >= FAR * max(first, NEAR_ZERO):
            ended = f"{names[name]} ended at {values[-1]:.2g}, from {first:.2g} at the start"
            said.append(("diverged", ended))
            continue
        least, floor = first, max(first / FAR, NEAR_ZERO)
        for value in values:
            if value >= FAR * max(least, floor):
                rose = f"{names[name]} rose from {least:.2g} to {value:.2g}"
                said.append(("unstable", rose))
                break
            least = min(least, value)
    return min(said, default=None)  # "diverged" comes first


def suggest_remedy(run: BoundRun) -> str:
    """Return the likely cause of a run that went badly, and what to try."""
    method, tips, causes = run.method, [], []
    if run.data.spread >= MAX_SPREAD and run.problem.scaling is None:
        causes.append(f"columns that differ in scale by a factor of {run.data.spread:.0e}")
        tips.append("tf.Preprocess(scale='standard')")
    elif alone := int((run.data.sizes == 1).sum()):
        causes.append(f"{alone} client{'s' * (alone > 1)} with one sample, fitted by local steps")
        tips += ["leaving them out", "weights='samples'"] if method.weights == "uniform" else []
    facts = method.describe()
    for part, name in (("step", "lr"), ("server", "server_lr")):
        rate = facts[part].get(name) if isinstance(facts[part], dict) else None
        if isinstance(rate, int | float):
            tips.append(f"a smaller {name} (it is {rate:g})")
            causes.append(f"too large a {name}")
    if method.clip is None:
        tips.append("clip=1.0")
    tips.append("method auto" if method.name != "auto" else "smaller inputs, or dtype float64")
    likely = f"Likely cause: {causes[0]}. " if causes else ""
    return f"{likely}Try {', '.join(tips[:-1])}{' or ' if len(tips) > 1 else ''}{tips[-1]}."
