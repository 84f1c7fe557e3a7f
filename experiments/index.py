"""docs/reproduced/index.md and the lines in README.md: what is confirmed, at which scale.

`reproduced.toml` names what cannot be had and the claims that are shown from the paper to the
verdict; `causes.toml` says why claims fail (`causes.py`); `differences.md` is prose. Numbers and
verdicts come from the kept results, in prose by their place:

    {{P4-table7 small | FMNIST MLP i.i.d. | FedDR | last}}   the mean of a row, as its table has it
    {{P4-table7 small | FMNIST MLP i.i.d. | FedDR | highest | published}}   the paper's number
    {{P4-table7 small | FMNIST MLP i.i.d. | A claim's words}}   its verdict
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.keep import current_command

from tunefree.core.errors import ArgumentError
from tunefree.study.tables import escape_markdown
from tunefree.study.tables import to_markdown as table

from . import text
from .causes import KINDS, count_kinds, describe_causes, read_causes
from .citations import count_sources
from .figure import has_curves
from .library import find, load
from .overview import (
    DECIDED,
    UNDECIDED,
    Finding,
    count,
    describe_deviations,
    describe_group,
    describe_pair,
    list_findings,
)
from .record import Record, record_path

PAPERS = {
    "P0": "FedProxLoD and FedProxWLoD",
    "P1": "FedDuA",
    "P2": "ParFreFL and ComParFreFL",
    "P3": "FedSLS and FedExpSLS",
    "P4": "FedCanon",
}
SIZES = {"paper": "the paper's size", "small": "small"}
INTRODUCTION = """# The papers' experiments

    python -m experiments LIST
    python -m experiments P1-table2 --scale small

Each table and figure of five papers is one command. Scale small takes minutes on two cores and
shows orderings, not the papers' numbers; scale paper is the paper's own size. A claim *holds* where
a one-sided paired t-test over seeds supports it at 5 % (that two methods are about equal: two
one-sided tests), *fails* where the test in the other direction does, and is undecided otherwise. A
run that diverged counts as worse than any other; a sign test then takes the place of the t-test.
"""
REASONS = """*Seeds do not decide*: it was tested, and the seeds (at the paper's size mostly one)
support neither direction. *Other settings*: it was run before a correction and not again since.
*No data*: a dataset or pretrained weights cannot be had. *Not run*: the rest.
"""
LEGEND = """A difference is that of the claim (better minus other, or how many times better),
± its standard error over seeds; of several pairs the worst is shown. The published one is beside
it where the paper prints both numbers and ours are of the same data. Data in brackets stands in for
that of the paper.
"""
PLACE = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
MARKS = (
    "<!-- What was reproduced: written by python -m experiments.render -->\n",
    "<!-- End of what was reproduced -->",
)


class Overview:
    """All claims of a folder of experiments, beside the kept records.

    Args:
        place: The folder.
        records: The kept records, updated by the specifications.
    """

    def __init__(self, place: Path, records: Sequence[Record]) -> None:
        self.place = place
        self.records = {(one["name"], one["scale"]): one for one in records}
        path = place / "reproduced.toml"
        self.facts: dict[str, Any] = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        self.findings: list[Finding] = []
        for name in find(place):
            spec = load(name, place)
            for scale in spec.scales:
                kept = self.records.get((name, scale))
                self.findings += list_findings(spec.at(scale), kept, self.facts.get("missing", ()))
        self.causes = read_causes(place / "causes.toml", self.findings)

    def of(self, scale: str, paper: str | None = None) -> list[Finding]:
        """Return the papers' claims at a scale, of one paper or all; without those of ours."""
        mine = [one for one in self.findings if one.found.scale == scale and not one.ours]
        return [one for one in mine if paper in (None, one.found.paper)]

    @property
    def papers(self) -> list[str]:
        """The papers that have an experiment."""
        return list(dict.fromkeys(one.found.paper for one in self.findings))

    def page(self) -> str:
        """Return the page."""
        parts = [
            INTRODUCTION,
            "## What is confirmed",
            self._count_table(),
            self._decided(),
            REASONS,
        ]
        prose = self.place / "differences.md"
        if prose.exists():
            parts.append(self.fill(prose.read_text("utf-8")))
        if self.facts.get("chain"):
            parts.append("## From the paper to the verdict")
            parts += [self._chain(one) for one in self.facts["chain"]]
        for paper in self.papers:
            parts += [
                f"## {paper}: {PAPERS.get(paper, paper)}",
                f"[All tables, curves and settings]({paper}.md)",
                LEGEND if paper == self.papers[0] else "",
                self._claims_table(paper),
                self._why(paper),
                self._experiments_table(paper),
            ]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    def _count_table(self) -> str:
        head = {"what": "claims of", "all": "all", "holds": "hold", "fails": "fail"}
        head |= {state: f"undecided: {words}" for state, words in UNDECIDED.items()}
        groups = {
            f"{paper}, {size}" if paper else f"**all papers, {size}**": self.of(scale, paper)
            for paper in (None, *self.papers)
            for scale, size in SIZES.items()
        }
        for scale, size in SIZES.items():
            ours = [one for one in self.findings if one.found.scale == scale and one.ours]
            groups |= {f"of our own, {size}": ours} if ours else {}
        rows = []
        for name, findings in groups.items():
            found = count(findings)
            numbers = {state: str(found[state] or "") for state in (*DECIDED, *UNDECIDED)}
            rows.append({"what": name, "all": str(found.total()), **numbers})
        return _join(rows, head)

    def _decided(self) -> str:
        """Return which claims are decided at the paper's size, and what else the counts need."""
        groups: dict[tuple[str, str], list[Finding]] = {}
        for one in self.of("paper"):
            groups.setdefault((one.found.name, one.claim.says), []).append(one)
        lines = []
        for verdict in DECIDED:
            claims = []
            for (name, says), mine in groups.items():
                n, every = count(mine)[verdict], len(mine)
                where = name if n == every else f"{name}, {n} of {every} tasks"
                claims += [f"{escape_markdown(says)} ({where})"] if n else []
            if claims:
                lines.append(f"At the paper's size it {verdict} that: {'; '.join(claims)}.")
        small = self.of("small")
        failing = [one for one in small if one.state == "fails"]
        if failing:
            kinds = count_kinds(self.causes, failing)
            said = "; ".join(f"{KINDS[kind]}: {n}" for kind, n in kinds.items() if n)
            lines.append(
                f"Causes of the {len(failing)} that fail at small scale, each below under its "
                f"paper: {said}."
            )
        instead = sum(one.task.label != one.task.name for one in small)
        lines.append(
            f"At small scale {instead} of {len(small)} claims are on data that stands in for the "
            'paper\'s. Claims of our own begin with "Ours:".'
        )
        return "\n\n".join(lines)

    def _claims_table(self, paper: str) -> str:
        groups: dict[tuple[str, str], list[Finding]] = {}
        for one in self.findings:
            if one.found.paper == paper:
                groups.setdefault((one.found.name, one.claim.says), []).append(one)
        rows = [
            {
                "says": escape_markdown(says),
                "name": name,
                **{
                    scale: describe_group([one for one in mine if one.found.scale == scale])
                    for scale in SIZES
                },
            }
            for (name, says), mine in groups.items()
        ]
        head = {"says": "claim", "name": "experiment", "small": "small", "paper": "paper's size"}
        return _join(rows, head)

    def _why(self, paper: str) -> str:
        """Return the causes of the claims of a paper that fail, by scale."""
        parts = []
        for scale, size in SIZES.items():
            failing = [one for one in self.of(scale, paper) if one.state == "fails"]
            if failing:
                parts += [f"### Why claims of {paper} fail, {size}"]
                parts += [describe_causes(self.causes, failing)]
        return "\n\n".join(parts)

    def _experiments_table(self, paper: str) -> str:
        head = {
            "name": "experiment",
            "title": "what",
            "scale": "scale",
            "claims": "claims",
            "deviation": "ours minus (or over) published: median (range)",
            "curves": "curves",
        }
        rows = []
        for (name, scale), kept in self.records.items():
            if name.partition("-")[0] == paper:
                curves = f"[curves]({name}-{scale}.svg)" if has_curves(kept) else ""
                row = {"name": name, "title": escape_markdown(kept["title"]), "scale": scale}
                row |= {"claims": text.tally(kept), "deviation": describe_deviations(kept)}
                rows.append(row | {"curves": curves})
        return _join(rows, head) if rows else "No results are kept yet."

    def fill(self, prose: str) -> str:
        """Return prose with the numbers and verdicts that it names."""
        return PLACE.sub(lambda match: self._look_up(match[1]), prose)

    def _look_up(self, words: str) -> str:
        where, task, *rest = [" ".join(word.split()) for word in words.split("|")]
        name, _, scale = where.partition(" ")
        kept = self.records.get((name, scale))
        if kept is None:
            raise ArgumentError(f"No result is kept of {where!r}, which {{{{{words}}}}} names.")
        if len(rest) == 1:
            verdicts = [
                c["verdict"] for c in kept["claims"] if (c["says"], c["task"]) == (*rest, task)
            ]
            if verdicts:
                return str({"open": "undecided"}.get(verdicts[0], verdicts[0]))
        for row in kept["rows"]:
            if len(rest) < 2 or (row["task"], row["label"]) != (task, rest[0]) or row["changes"]:
                continue
            number, _ = text.summarise(rest[1], row["values"].get(rest[1], ()))
            if rest[2:] == ["published"]:
                number = row["published"].get(rest[1])
            if number is not None:
                return text.format_number(number, text.measure_of(rest[1], kept))
        raise ArgumentError(f"{where} has no number or verdict for {{{{{words}}}}}.")

    def _chain(self, facts: dict[str, str]) -> str:
        """Return a claim from its place in the paper to the verdict."""
        key = (facts["experiment"], facts["scale"], facts["claim"], facts["task"])
        mine = [
            one
            for one in self.findings
            if (one.found.name, one.found.scale, one.claim.says, one.task.name) == key
        ]
        if not mine or not mine[0].judged.get("pairs"):
            raise ArgumentError(f"reproduced.toml shows a claim that is not tested: {key}.")
        one = mine[0]
        kept = self.records[one.found.name, one.found.scale]
        spec, by = load(one.found.name, self.place), one.claim.by.text
        home = f"experiments/{spec.path.parent.name}"
        sources = ", ".join(f"{n} {kind}" for kind, n in count_sources(one.found).items())
        than = ", ".join(one.claim.than) or f"{one.claim.value:g}"
        facts_of = {"margin": one.claim.margin, "within": one.claim.within}
        bounds = "".join(f", {k} {v:g}" for k, v in facts_of.items() if v)
        bounds += f", {one.claim.factor:g} times" if one.claim.factor is not None else ""
        names = {*one.claim.better, *one.claim.than}
        of_claim = [
            row
            for row in kept["rows"]
            if row["task"] == one.task.name and names & {row["label"], row["base"]}
        ]
        rows = [
            {
                "label": row["label"],
                "values": ", ".join(
                    text.format_number(v, text.measure_of(by, kept)) or "lost"
                    for v in row["values"].get(by, ())
                ),
                "chosen": " ".join(f"{k}={v:g}" for k, v in (row["chosen"] or {}).items()),
            }
            for row in of_claim
        ]
        calls = [current_command(row.get("made", kept)["command"]) for row in of_claim]
        tests = [t for t in text.verdicts(kept) if (t["claim"], t["task"]) == key[2:]]
        lines = [
            f"### {escape_markdown(one.claim.says)} ({one.found.name}, {one.found.scale})",
            f"- *The paper*: {facts['place']}",
            f"- *The specification*: `{home}/{spec.path.name}`, task {one.task.name}; better: "
            f"{', '.join(one.claim.better)}; than: {than}; by {by}{bounds}. Settings by source: "
            f"{sources}.",
            f"- *The command*: {', '.join(f'`{call}`' for call in dict.fromkeys(calls))}",
            f"- *The numbers*, one for each seed, in `{home}/results/"
            f"{record_path(spec, one.found.scale).name}`:",
            table(rows, {"label": "method", "values": by, "chosen": "chosen"}),
            "- *The test* (`experiments/significance.py`):",
            table(tests, {"pair": "rows", "difference": "difference", "verdict": "verdict"}),
            f"- *The verdict*: {one.judged['verdict'].replace('open', 'undecided')}; "
            f"{describe_pair(one)}.",
        ]
        return "\n\n".join(lines)

    def readme(self) -> str:
        """Return three lines: what was confirmed at either scale, and of which paper."""
        paper, small = (self.of(scale) for scale in ("paper", "small"))
        by_paper = []
        for name in self.papers:
            found = count(self.of("small", name))
            numbers = f"{found['holds']} hold, {found['fails']} fail"
            by_paper.append(f"{PAPERS.get(name, name)} {numbers} (of {found.total()})")
        where = ", ".join(dict.fromkeys(one.found.name for one in paper if one.state in DECIDED))
        decided = f" (decided: {where})" if where else ""
        return (
            f"- At the papers' own size {_totals(paper)}{decided}.\n"
            "- At small scale, which shows orderings and not the papers' numbers, "
            f"{_totals(small)}.\n"
            f"- By paper, small scale: {'; '.join(by_paper)}. "
            "[Which claims, and why](docs/reproduced/index.md).\n"
        )


def _totals(findings: Sequence[Finding]) -> str:
    found = count(findings)
    left = found.total() - found["holds"] - found["fails"]
    fail = f"{found['fails']} fail{'s' if found['fails'] == 1 else ''}"
    return f"{found['holds']} of {found.total()} claims hold, {fail} and {left} are undecided"


def _join(rows: Sequence[dict[str, str]], head: dict[str, str]) -> str:
    """Return a table whose cells are markdown already."""
    lines = ["| " + " | ".join(row[k] for k in head) + " |" for row in rows]
    return "\n".join([table([], head), *lines])


def replace_lines(readme: str, lines: str) -> str:
    """Return README.md with the lines between the marks; unchanged if it has no marks."""
    before, mark, rest = readme.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    return f"{before}{mark}{lines}{end}{after}" if end else readme
