"""All claims of all experiments at both scales: what is confirmed, what is not, and why not."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefree.study.tables import escape_markdown

from . import text
from .record import Record
from .spec import Claim, Experiment, PaperTask

DECIDED = ("holds", "fails")
MANY = 6  # tasks that are named
UNDECIDED = {  # why a claim is undecided, in words of a table
    "seeds": "seeds do not decide",
    "settings": "other settings",
    "data": "no data",
    "not run": "not run",
}


@dataclass(frozen=True)
class Finding:
    """What is known of a claim in one task at one scale.

    Args:
        found: The experiment.
        kept: Its kept record, or None.
        claim: The claim.
        task: The task.
        judged: The verdict of the record, empty if it has none.
        state: holds, fails, or one of `UNDECIDED`.
    """

    found: Experiment
    kept: Record | None
    claim: Claim
    task: PaperTask
    judged: Record
    state: str

    @property
    def ours(self) -> bool:
        """Whether the claim is one of ours and not of a paper."""
        return self.claim.says.startswith("Ours:")


def list_findings(
    found: Experiment, kept: Record | None, missing: Iterable[str] = ()
) -> list[Finding]:
    """Return what is known of every claim of an experiment in every task.

    Args:
        found: The experiment.
        kept: Its kept record, or None.
        missing: Datasets that cannot be had.
    """
    judged = {(c["says"], c["task"]): c for c in (kept["claims"] if kept else ())}
    out = []
    for claim in found.claims:
        for task in found.tasks:
            if task.name in claim.tasks:
                one = judged.get((claim.says, task.name), {})
                state = _state(one, task, found.scale, set(missing))
                out.append(Finding(found, kept, claim, task, one, state))
    return out


def _state(judged: Record, task: PaperTask, scale: str, missing: set[str]) -> str:
    verdict = judged.get("verdict", "not tested")
    if verdict != "not tested":
        return "seeds" if verdict == "open" else str(verdict)
    if task.words.get("data") in missing or (task.skip and scale == "paper"):
        return "data"
    return "settings" if judged.get("superseded") else "not run"


def count(findings: Iterable[Finding]) -> Counter[str]:
    """Return the number of claims by state."""
    return Counter(one.state for one in findings)


def describe_group(findings: Sequence[Finding]) -> str:
    """Return the verdicts on one claim at one scale: a line for each state, with its tasks."""
    out = []
    for state in (*DECIDED, *UNDECIDED):
        mine = [one for one in findings if one.state == state]
        if not mine:
            continue
        names = [_place(one) for one in mine]
        if state not in (*DECIDED, "seeds"):
            why = f"undecided: {_reason(mine)}"
            where = ", ".join(names) if len(names) <= MANY else f"{len(names)} tasks"
            out.append(f"{why} ({where})" if all(names) else why)
            continue
        facts = [
            ": ".join(filter(None, (name, describe_pair(one))))
            for name, one in zip(names, mine, strict=True)
        ]
        said = f"**{state}**" if state in DECIDED else f"undecided: {_reason(mine)}"
        out.append(f"{said}; {'; '.join(facts)}")
    return "<br>".join(out) or "no such claim"


def _place(one: Finding) -> str:
    """Return the task, with the data that stands in; "" for the only task with its own data."""
    label = one.task.label.replace(f"({one.found.scale}: ", "(")
    several = len(one.found.tasks) > 1
    return escape_markdown(label) if several or label != one.task.name else ""


def _reason(findings: Sequence[Finding]) -> str:
    if findings[0].state != "seeds":
        return UNDECIDED[findings[0].state]
    seeds = max(pair["seeds"] for one in findings for pair in one.judged["pairs"])
    return "one seed" if seeds == 1 else f"{seeds} seeds do not decide"


def describe_pair(one: Finding) -> str:
    """Return the difference that decided a claim, and the published one where there is one."""
    pair = _deciding(one)
    of_several = len(one.judged["pairs"]) > 1
    against = f" against {escape_markdown(pair['than'])}" if of_several else ""
    if pair["difference"] is None:
        return f"a run was lost{against}"
    error = "" if pair["error"] is None else f" ± {_number(one, pair['error'])}"
    ours = f"{_signed(one, pair['difference'])}{'' if one.claim.factor else error}{against}"
    published = published_difference(one, pair)
    return ours if published is None else f"{ours} (published {_signed(one, published)})"


def _deciding(one: Finding) -> Mapping[str, Any]:
    """Return the pair with the worst verdict, and of these the one that is worst."""
    verdict = one.judged["verdict"]
    pairs = [p for p in one.judged["pairs"] if p["verdict"] == verdict]

    def badness(pair: Mapping[str, Any]) -> float:
        gap = pair["difference"]
        return math.inf if gap is None else abs(gap) if one.claim.within else -gap

    return max(pairs, key=badness)


def published_difference(one: Finding, pair: Mapping[str, Any]) -> float | None:
    """Return a pair's difference in the paper's numbers; None if they are not shown beside ours."""
    assert one.kept is not None
    rows = {r["label"]: r["published"] for r in one.kept["rows"] if r["task"] == one.task.name}
    name = one.claim.by.text
    better = rows[pair["better"]].get(name)
    than = rows.get(pair["than"], {}).get(name) if one.claim.value is None else one.claim.value
    if better is None or than is None:
        return None
    sign = 1.0 if one.claim.by.rises else -1.0
    if one.claim.factor is None:
        return sign * float(better - than)
    return sign * math.log(better / than) if better > 0 and than > 0 else None


def _number(one: Finding, value: float) -> str:
    return text.format_number(value, one.claim.by.measure if one.claim.by.target is None else "")


def _signed(one: Finding, value: float) -> str:
    if one.claim.factor is not None:
        return f"{math.exp(value):.3g} times"
    return ("−" if value < 0 else "+") + _number(one, abs(value))


def describe_deviations(kept: Record) -> str:
    """Return how far ours are from the published numbers: the median and the range.

    Accuracies in points, other numbers as ratios; without sums, which grow with the rounds.
    """
    points, ratios = [], []
    shown = [name for name in kept["show"] if not name.endswith("sum")]
    for row in kept["rows"]:
        for name in shown:
            paper = row["published"].get(name)
            ours, _ = text.summarise(name, row["values"].get(name, ()))
            if paper is None or ours is None:
                continue
            if text.measure_of(name, kept).endswith("accuracy"):
                points.append(100 * (ours - paper))
            elif paper > 0:
                ratios.append(ours / paper)
    out = []
    if points:
        middle, low, high = (_points(f(points)) for f in (statistics.median, min, max))
        out.append(f"{len(points)} accuracies: {middle} points ({low} to {high})")
    if ratios:
        middle, low, high = (f"{f(ratios):.2g}" for f in (statistics.median, min, max))
        out.append(f"{len(ratios)} numbers: {middle} times ({low} to {high})")
    return "; ".join(out)


def _points(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{abs(value):.1f}"
