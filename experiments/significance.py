"""The tests of a paper's claims over paired seeds.

A claim was stated beforehand and is tested in its direction, at 5 %, by a paired t-test of
differences d_s, as in `tunefree.study.significance`, here with

    t = (mean(d) - margin) / (sd(d) / sqrt(n))

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tunefree.study.significance import LEVEL, is_constant, student_p

Verdict = Literal["holds", "open", "fails", "not tested"]


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim."""

    verdict: Verdict  # "not tested" without any difference
    mean: float | None = None  # of the differences; None if one is infinite
    error: float | None = None  # standard error of the mean
    p: float | None = None  # of the test whose rejection supports the claim; None with one seed


def one_sided_p(differences: Sequence[float], margin: float = 0.0) -> float | None:
    """Return the p of H0: E d <= margin; None with fewer than two differences.

    A t-test, or the sign test where a difference is infinite.

    >>> one_sided_p([math.inf, 0.2, 0.1, 0.3, -0.1])  # P(B >= 4) = 6 / 32
    0.1875
    """
    n = len(differences)
    if n < 2:
        return None
    if is_constant(differences):
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
