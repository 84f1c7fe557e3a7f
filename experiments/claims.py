"""Claims of a paper about the order of methods, tested over paired seeds.

`significance` has the tests. A run that diverged, or missed the target, is worse
than any other; one that failed with an error of the program is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import significance
from .spec import Claim

Values = Sequence[float | None]


def differences(
    claim: Claim, better: Values, than: Values, failed: tuple[Sequence[bool], Sequence[bool]]
) -> list[float]:
    """Return d_s of the seeds that both rows have, infinite where one of the runs was lost.

    Seeds count from 0, so that of rows of different lengths the first ones are paired.
    """
    sign = 1.0 if claim.by.rises else -1.0
    out = []
    for a, b, bad, worse in zip(better, than, *failed, strict=False):
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
    """Return the verdict on a claim in one task, and that of each of its pairs.

    A claim holds if every pair does (each at 5 %, which needs no correction), and fails if one
    pair fails.

    Args:
        claim: The claim.
        task: Of which task the rows are.
        rows: Records of rows: label, base, values by number, status of each seed.
        reason: Why nothing could be tested, where that is known.
    """
    pairs = []
    for first in _find_rows(rows, claim.better):
        if claim.value is not None:
            pairs.append(_judge_pair(claim, first, _constant(claim, first)))
        for other in _find_rows(rows, claim.than):
            if first["label"] != other["label"]:
                pairs.append(_judge_pair(claim, first, other))
    found = {pair["verdict"] for pair in pairs} - {"not tested"}
    overall = next((v for v in ("fails", "open", "holds") if v in found), "not tested")
    facts = {"margin": claim.margin, "within": claim.within, "factor": claim.factor}
    return {
        "says": claim.says,
        "task": task,
        "by": claim.by.text,
        **{k: v for k, v in facts.items() if v},
        "verdict": overall,
        "reason": "" if found else reason or "No run of it is there.",
        "pairs": pairs,
    }


def _constant(claim: Claim, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a claim's number: it has the same value in every run."""
    runs = len(row["status"])
    values = {claim.by.text: [claim.value] * runs}
    return {"label": f"{claim.value:g}", "values": values, "status": ["finished"] * runs}


def _find_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    return [r for name in names for r in rows if name in (r["label"], r["base"])]


def _judge_pair(claim: Claim, first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    values = [row["values"].get(claim.by.text) for row in (first, other)]
    out = {"better": first["label"], "than": other["label"], "seeds": 0}
    if not values[0] or not values[1]:  # a row without runs: its grid had no winner, say
        return {**out, "difference": None, "error": None, "verdict": "not tested"}
    failed = [
        [status in ("failed", "not run") for status in row["status"]] for row in (first, other)
    ]
    each = differences(claim, values[0], values[1], (failed[0], failed[1]))
    margin = claim.margin if claim.factor is None else math.log(claim.factor)
    found = significance.judge(each, margin, claim.within)
    return {
        **out,
        "seeds": len(each),
        "difference": found.mean,
        "error": found.error,
        "p": found.p,
        "verdict": found.verdict,
    }
