"""Significance of differences between methods, over paired seeds.

Every method sees the same seeds, hence the same clients, cohorts, batches and starts, so methods
are compared seed by seed: d_s = score of one method - score of another, s = 1 .. n, counted so that
more is better.

    t = (mean(d) - margin) / (sd(d) / sqrt(n)),   T Student's with n - 1 degrees

A t-test, since with few seeds it is the one that can decide anything: flipping the signs of d gives
at best a two-sided p of 2 / 2^n, 0.25 with three seeds. It assumes that the differences are
normally distributed.

Methods of a study are compared with the best of them: two-sided p = P(|T| >= |t|), raised by Holm's
rule because there are several (`two_sided_p`, `holm`). That the best is picked by the same numbers
is not corrected for.

A claim that was stated beforehand is tested in its direction, at 5 % (`judge`):

    margin m   holds if H0: E d <= m is rejected, fails if H0: E d >= m is rejected (one-sided)
    within w   holds if both E d <= -w and E d >= w are rejected (two one-sided tests, TOST),
               fails if H0: -w <= E d <= w is rejected on one side
    open       otherwise, and with one seed

For a factor, d_s is the logarithm of a ratio. A diverged run is worse than any other, so its
difference is infinite, and the sign test takes the place of the t-test: p = P(B >= k), with k the
number of d_s above the margin and B binomial(n, 1/2). Differences without spread (nothing is
random, or all are infinite) leave nothing to estimate: p is 0 above the margin, 1 below it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.05
Verdict = Literal["holds", "open", "fails", "not tested"]


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim."""

    verdict: Verdict  # "not tested" without any difference
    mean: float | None = None  # of the differences; None if one is infinite
    error: float | None = None  # standard error of the mean
    p: float | None = None  # of the test whose rejection supports the claim; None with one seed


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
    if _is_constant(differences):
        return 1.0 if mean == 0 else None
    return student_p(mean / (statistics.stdev(differences) / math.sqrt(n)), n - 1)


def one_sided_p(differences: Sequence[float], margin: float = 0.0) -> float | None:
    """Return the p of H0: E d <= margin; None with fewer than two differences.

    A t-test, or the sign test where a difference is infinite.

    >>> one_sided_p([math.inf, 0.2, 0.1, 0.3, -0.1])  # P(B >= 4) = 6 / 32
    0.1875
    """
    n = len(differences)
    if n < 2:
        return None
    if _is_constant(differences):
        if math.isclose(differences[0], margin, rel_tol=1e-12):
            return 0.5
        return 0.0 if differences[0] > margin else 1.0
    if not all(map(math.isfinite, differences)):
        k = sum(d > margin for d in differences)
        ways = sum(math.comb(n, j) for j in range(k, n + 1))
        return ways / float(2**n)
    error = statistics.stdev(differences) / math.sqrt(n)
    t = (statistics.fmean(differences) - margin) / error
    half = student_p(t, n - 1) / 2
    return half if t > 0 else 1.0 - half


def _is_constant(values: Sequence[float]) -> bool:
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


def judge(
    differences: Sequence[float], margin: float = 0.0, within: float | None = None
) -> Judgement:
    """Return whether a claim that was stated beforehand holds.

    Args:
        differences: One for each seed, more is better; infinite where one side diverged.
        margin: The claimed advantage; negative: may trail by this much.
        within: The claim is instead that the mean difference lies within +- `within`.

    >>> judge([0.02, 0.03, 0.04]).verdict, judge([0.02, -0.03]).verdict
    ('holds', 'open')
    """
    if not differences:
        return Judgement("not tested")
    is_finite = all(map(math.isfinite, differences))
    mean = statistics.fmean(differences) if is_finite else None
    if len(differences) == 1:
        return Judgement("open", mean)
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if is_finite else None
    reverse = [-d for d in differences]
    if within is None:
        p, contrary = _p(differences, margin), _p(reverse, -margin)
    else:
        p = max(_p(differences, -within), _p(reverse, -within))
        contrary = min(_p(differences, within), _p(reverse, within))
    verdict: Verdict = "holds" if p < LEVEL else "fails" if contrary < LEVEL else "open"
    return Judgement(verdict, mean, error, p)


def _p(differences: Sequence[float], margin: float) -> float:
    p = one_sided_p(differences, margin)
    assert p is not None
    return p
