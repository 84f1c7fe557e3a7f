"""Significance of differences between methods, over paired seeds.

Every method sees the same seeds, hence the same clients, cohorts, batches and starts, so methods
are compared seed by seed: d_s = score of one method - score of another, s = 1 .. n, counted so that
more is better.

    t = mean(d) / (sd(d) / sqrt(n)),   T Student's with n - 1 degrees

A t-test, since with few seeds it is the one that can decide anything: flipping the signs of d gives
at best a two-sided p of 2 / 2^n, 0.25 with three seeds. It assumes that the differences are
normally distributed.

Methods of a study are compared with the best of them: two-sided p = P(|T| >= |t|), raised by Holm's
rule because there are several (`two_sided_p`, `holm`). That the best is picked by the same numbers
is not corrected for.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

LEVEL = 0.05


def student_p(t: float, degrees: int) -> float:
    """Return P(|T| >= |t|), by the finite sums for whole degrees (Abramowitz & Stegun 26.7.3-4).

    >>> round(student_p(2.776445, 4), 6)
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


def two_sided_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of a paired t-test of H0: E d = 0.

    None where nothing can be tested: with one difference, or when all are the same and not zero,
    so that there is no spread to compare the difference with.
    """
    n = len(differences)
    if n < 2:
        return None
    mean = statistics.fmean(differences)
    if is_constant(differences):
        return 1.0 if mean == 0 else None
    return student_p(mean / (statistics.stdev(differences) / math.sqrt(n)), n - 1)


def is_constant(values: Sequence[float]) -> bool:
    """Return whether values have no spread beyond rounding."""
    if not all(map(math.isfinite, values)):
        return len(set(values)) == 1
    return statistics.stdev(values) <= 1e-12 * max(map(abs, values))


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
