"""Which differences are real: a paired test over seeds.

Every method sees the same seeds, hence the same clients, cohorts, batches and starts, so methods
are compared seed by seed: d_s = score of a method - score of the best method, s = 1 .. n.

    t = mean(d) / (sd(d) / sqrt(n)),   p = P(|T| >= |t|),   T Student's with n - 1 degrees

A t-test, since with few seeds it is the one that can say anything: flipping the signs of d exactly
gives at best p = 2 / 2^n, 0.25 with three seeds. It assumes that the differences scatter like a
normal distribution. Several methods are tested against the best, so their p are raised by Holm's
rule. That the best is picked by the same numbers is not corrected for.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

LEVEL = 0.05


def student(t: float, degrees: int) -> float:
    """Return P(|T| >= |t|), by the finite sums for whole degrees (Abramowitz & Stegun 26.7.3-4).

    >>> round(student(2.776445, 4), 6)
    0.05
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sin, cos = math.sin(angle), math.cos(angle)
    first = 1 if degrees % 2 else 0
    term, total = (cos, 0.0) if first else (1.0, 0.0)
    for j in range(first, degrees - 1, 2):
        total += term
        term *= cos * cos * (j + 1) / (j + 2)
    inside = 2 / math.pi * (angle + sin * total) if first else sin * total
    return min(1.0, max(0.0, 1.0 - inside))


def paired(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of a paired t-test.

    None where nothing can be tested: with one difference, or when all are the same and not zero,
    so that there is no spread to hold the difference against.
    """
    n = len(differences)
    if n < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread <= 1e-12 * max(abs(d) for d in differences):
        return 1.0 if mean == 0 else None
    return student(mean / (spread / math.sqrt(n)), n - 1)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Return p values raised for being several (Holm 1979).

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    out: dict[str, float] = {}
    least = 0.0
    for rank, (label, p) in enumerate(sorted(ps.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(ps) - rank) * p))
        out[label] = least
    return out
