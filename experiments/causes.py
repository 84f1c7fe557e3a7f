"""Why claims fail: `causes.toml` names a cause for each, with its evidence.

    [[cause]]
    title = "Early rounds"
    kind = "scale"              # one of KINDS
    scale = "small"
    says = "The order of 60 rounds is not that of 500."
    evidence = "`python -m experiments P1-figure8 --scale small --rounds 300`"
    [cause.claims]
    P1-figure8 = ["FedDuAdam has the lowest training loss with server momentum"]

A claim that fails in some of its tasks only may be followed by them: "Auto beats FedAvg | T1; T2".
Claims that do not fail any more are not shown, and those without a cause count as not explained.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefree.core.errors import ArgumentError
from tunefree.study.tables import escape_markdown

from .overview import Finding, describe_pair

KINDS = {
    "code": "our code",
    "reading": "our reading of the paper",
    "scale": "small scale is another regime",
    "paper": "the paper",
    "open": "not explained",
}
Place = tuple[str, str, str]  # experiment, claim, task; "" is every task


@dataclass(frozen=True)
class Cause:
    """Why some claims fail.

    Args:
        title: A few words.
        kind: One of `KINDS`.
        scale: Of which scale the claims are.
        says: What was found.
        evidence: The commands or kept files that show it.
        places: The claims.
    """

    title: str
    kind: str
    scale: str
    says: str
    evidence: str
    places: tuple[Place, ...]

    def covers(self, one: Finding) -> bool:
        """Whether a finding has this cause."""
        name, says = one.found.name, one.claim.says
        return one.found.scale == self.scale and any(
            place in self.places for place in ((name, says, ""), (name, says, one.task.name))
        )


def read_causes(path: Path, findings: Sequence[Finding]) -> list[Cause]:
    """Return the causes of a file, none if it does not exist.

    Args:
        path: The file.
        findings: All claims, by which the names in the file are checked.
    """
    if not path.exists():
        return []
    raw = tomllib.loads(path.read_text("utf-8"))
    return [_read(table, findings, path.name) for table in raw.get("cause", ())]


def _read(table: Mapping[str, Any], findings: Sequence[Finding], file: str) -> Cause:
    words: dict[str, Any] = {
        key: table.get(key) for key in ("title", "kind", "scale", "says", "evidence")
    }
    unknown = table.keys() - words.keys() - {"claims"}
    if unknown or not all(isinstance(word, str) and word for word in words.values()):
        raise ArgumentError(
            f"{file}: a [[cause]] has title, kind, scale, says, evidence and claims, got {table!r}."
        )
    if words["kind"] not in KINDS:
        raise ArgumentError(f"{file}: kind must be one of {', '.join(KINDS)}, got {words['kind']}.")
    places = [
        place
        for name, claims in table.get("claims", {}).items()
        for claim in claims
        for place in _places(name, claim)
    ]
    known = {
        (one.found.name, one.claim.says, task)
        for one in findings
        if one.found.scale == words["scale"]
        for task in (one.task.name, "")
    }
    for place in places:
        if place not in known:
            raise ArgumentError(f"{file}: there is no claim {place} at scale {words['scale']}.")
    lines = {key: " ".join(word.split()) for key, word in words.items()}
    return Cause(**lines, places=tuple(places))


def _places(name: str, claim: str) -> list[Place]:
    says, bar, tasks = claim.rpartition(" | ")
    if not bar:
        return [(name, claim, "")]
    return [(name, says, task.strip()) for task in tasks.split(";")]


def describe_causes(causes: Iterable[Cause], failing: Sequence[Finding]) -> str:
    """Return a heading, a sentence, the evidence and a line per claim of every cause."""
    parts, left = [], list(failing)
    for cause in causes:
        mine = [one for one in left if cause.covers(one)]
        left = [one for one in left if not cause.covers(one)]
        if mine:
            parts += [
                f"**{cause.title}** ({KINDS[cause.kind]}; {_count(mine)}). {cause.says}",
                f"Evidence: {cause.evidence}",
                _list(mine),
            ]
    if left:
        parts += [f"**No cause was found yet** ({_count(left)}).", _list(left)]
    return "\n\n".join(parts)


def count_kinds(causes: Sequence[Cause], failing: Iterable[Finding]) -> dict[str, int]:
    """Return how many failing claims have which kind of cause."""
    found = dict.fromkeys(KINDS, 0)
    for one in failing:
        found[next((cause.kind for cause in causes if cause.covers(one)), "open")] += 1
    return found


def _count(findings: Sequence[Finding]) -> str:
    return f"{len(findings)} claim{'s' if len(findings) > 1 else ''}"


def _list(findings: Sequence[Finding]) -> str:
    return "\n".join(
        f"- {one.found.name}, {escape_markdown(one.task.label)}: "
        f"{escape_markdown(one.claim.says)}: {describe_pair(one)}"
        for one in findings
    )
