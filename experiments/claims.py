"""Whether an ordering that a paper claims holds here, over paired seeds.

d_s = better - than at seed s, counted so that more is good. With mean, standard error and margin m

    holds   mean >= m, and (mean - m > 2 s.e. or d_s >= m at every seed)
    fails   mean < m, and m - mean > 2 s.e.
    open    otherwise, and with a single seed, which has no spread

`within` asks for the opposite, that the two are about equal: holds where |mean| <= within, and
(within - |mean| > 2 s.e. or |d_s| <= within at every seed); fails where |mean| - within > 2 s.e.
`factor` compares ratios: d_s is the logarithm of how many times better, m that of the factor.
A run that diverged, or missed the target, is worse than any that did not; one that failed, with an
error of the program, is left out.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .spec import Claim

HOLDS, OPEN, FAILS, UNTESTED = "holds", "open", "fails", "not tested"
Values = Sequence[float | None]


def verdict(
    differences: Sequence[float], margin: float = 0.0, within: float | None = None
) -> tuple[str, float | None, float | None]:
    """Return verdict, mean and standard error of differences (inf: one side was lost).

    >>> verdict([0.02, 0.03, 0.04])[0], verdict([0.02, -0.03])[0], verdict([-0.02, -0.021])[0]
    ('holds', 'open', 'fails')
    """
    n = len(differences)
    if not n:
        return UNTESTED, None, None
    if not all(math.isfinite(d) for d in differences):
        same = {d > margin for d in differences}
        lost = FAILS if within is not None or same == {False} else HOLDS
        return (lost if len(same) == 1 and n > 1 else OPEN), None, None
    mean = statistics.fmean(differences)
    if n == 1:
        return OPEN, mean, None
    error = statistics.stdev(differences) / math.sqrt(n)
    if within is None:
        above, every = mean - margin, all(d >= margin for d in differences)
    else:
        above, every = within - abs(mean), all(abs(d) <= within for d in differences)
    if above >= 0:
        return (HOLDS if above > 2 * error or every else OPEN), mean, error
    return (FAILS if -above > 2 * error else OPEN), mean, error


def differences(
    claim: Claim, better: Values, than: Values, failed: tuple[Sequence[bool], Sequence[bool]]
) -> list[float]:
    """Return d_s of the seeds that both have, inf where one of them was lost on the way."""
    sign = 1.0 if claim.by.rises else -1.0
    out = []
    for a, b, bad, worse in zip(better, than, *failed, strict=True):
        if bad or worse or (a is None and b is None):
            continue
        if a is None or b is None:
            out.append(-math.inf if a is None else math.inf)
        elif claim.factor is None:
            out.append(sign * (a - b))
        elif a > 0 and b > 0:
            out.append(sign * (math.log(a) - math.log(b)))
    return out


def judge(
    claim: Claim, task: str, rows: Sequence[Mapping[str, Any]], reason: str = ""
) -> dict[str, Any]:
    """Return what became of a claim in one task: the verdict of all pairs, and each pair's.

    Args:
        claim: The claim.
        task: Of which task the rows are.
        rows: Records of rows: label, base, values by number, status of each seed.
        reason: Why nothing could be tested, where that is known.
    """
    pairs = []
    for first in _named(rows, claim.better):
        for other in _named(rows, claim.than):
            if first["label"] != other["label"]:
                pairs.append(_pair(claim, first, other))
    found = {pair["verdict"] for pair in pairs} - {UNTESTED}
    overall = FAILS if FAILS in found else OPEN if OPEN in found else HOLDS
    facts = {"margin": claim.margin, "within": claim.within, "factor": claim.factor}
    return {
        "says": claim.says,
        "task": task,
        "by": claim.by.text,
        **{k: v for k, v in facts.items() if v},
        "verdict": overall if found else UNTESTED,
        "reason": "" if found else reason or "No run of it is there.",
        "pairs": pairs,
    }


def _named(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    return [r for name in names for r in rows if name in (r["label"], r["base"])]


def _pair(claim: Claim, first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    values = [row["values"].get(claim.by.text) for row in (first, other)]
    out = {"better": first["label"], "than": other["label"], "seeds": 0}
    if not values[0] or not values[1]:  # a row without runs: its grid had no winner, say
        return {**out, "difference": None, "error": None, "verdict": UNTESTED}
    failed = [
        [status in ("failed", "not run") for status in row["status"]] for row in (first, other)
    ]
    each = differences(claim, values[0], values[1], (failed[0], failed[1]))
    margin = claim.margin if claim.factor is None else math.log(claim.factor)
    said, mean, error = verdict(each, margin, claim.within)
    return {**out, "seeds": len(each), "difference": mean, "error": error, "verdict": said}
