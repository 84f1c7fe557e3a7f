"""Several methods on one problem, seed by seed, and what came out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, convert_errors
from ..core.text import human
from ..training.run import Run
from . import figures, text
from .keep import keep, recall, task
from .significance import LEVEL
from .work import NOT_RUN, Failure, Outcome, standing

FILE = "compare.json"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        runs: For each label one `Run` per seed, or the `Failure` in its place.
        seeds: The seeds, in the order of the runs.
        target: Score that the table counts up to; None takes 95 % of the best final mean (a loss:
            5 % above it).
        tunings: For each label that was tuned, what that cost: gradients, bytes_up, bytes_down,
            seconds, runs, and the settings found.
        path: The comparison's folder, or None.
    """

    runs: dict[str, list[Outcome]]
    seeds: list[int]
    target: float | None = None
    tunings: dict[str, dict[str, Any]] = field(default_factory=dict)
    path: Path | None = None

    @property
    def measure(self) -> str:
        """What methods are judged by: test_accuracy where there is one, else a loss."""
        return figures.measure_of(self.runs)

    @property
    def goal(self) -> float | None:
        """The target, the automatic one included."""
        if self.target is not None:
            return self.target
        return figures.automatic(self.runs, self.measure)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per method as plain data: means over seeds, costs, the test's verdict."""
        return figures.table(self.runs, self.measure, self.goal, self.tunings)

    @property
    def columns(self) -> dict[str, str]:
        """The headings of the table as text, by key."""
        word = self.measure.removeprefix("test_").replace("_", " ")
        names = {
            "label": "method",
            "final": word,
            "best": "best",
            "rounds": "rounds",
            "bytes_up": "sent up",
            "gradients": "gradients",
            "seconds": "seconds",
            "choose": "to choose",
            "tuning": "tuning",
            "against": "vs the best",
        }
        return names if self.tunings else {k: v for k, v in names.items() if k != "tuning"}

    def cells(self) -> list[dict[str, str]]:
        """Return the table as text, one dict per method."""
        return [self._cells(row) for row in self.table()]

    def _cells(self, row: Mapping[str, Any]) -> dict[str, str]:
        score = text.spread(row["final"], row["final_sd"])
        lost = f" ({row['lost']})" if score and row["lost"] else row["lost"]
        difference, p = row["difference"], row["p"]
        against = "best" if row["verdict"] == "best" else ""
        if difference is not None:
            sign = "−" if difference < 0 else "+"
            said = "" if p is None else f" ({text.p_text(p)})"
            against = (
                f"{sign}{abs(difference):.4f}{said}{' *' if row['verdict'] == 'worse' else ''}"
            )
        tuned = row["tuning_gradients"]
        up, gradients = row["bytes_up_to_target"], row["gradients_to_target"]
        return {
            "label": row["label"],
            "final": score + lost,
            "best": text.spread(row["best"], row["best_sd"]),
            "rounds": text.rounds_cell(row),
            "bytes_up": "–" if up is None else human(up),
            "gradients": "–" if gradients is None else f"{gradients:,.0f}",
            "seconds": "" if row["seconds"] is None else f"{row['seconds']:.1f}",
            "choose": row["choose"],
            "tuning": "" if tuned is None else f"{tuned:,.0f} gradients",
            "against": against,
        }

    @property
    def header(self) -> str:
        """What was compared, and what the columns up to the target mean."""
        seeds = ", ".join(map(str, self.seeds))
        words = [f"Seeds {seeds}." if len(self.seeds) > 1 else f"Seed {seeds}."]
        known = next(
            (r.settings for g in self.runs.values() for r in g if isinstance(r, Run)), None
        )
        if known is not None:
            data, steps = known["data"], known["steps"]
            local = f"{known['epochs']} epochs" if steps is None else f"{steps} local steps"
            words.insert(
                0,
                f"{data['name']}, {data['clients']} clients, {known['cohort']} a round, {local}, "
                f"{known['rounds']} rounds.",
            )
        if self.goal is not None:
            own = f"{figures.SHARE:.0%} of the best final mean"
            loss = f"{1 - figures.SHARE:.0%} above the best final mean"
            why = own if figures.rises(self.measure) else loss
            said = "" if self.target is not None else f" ({why})"
            word = self.measure.replace("_", " ")
            words.append(f"Rounds, sent up, gradients: until {word} {self.goal:.4f}{said}.")
        return " ".join(words)

    @property
    def sentences(self) -> list[str]:
        """What the paired test says, and what became of seeds that were lost."""
        rows = self.table()
        out = [self._verdict(rows)] if len(rows) > 1 else []
        return out + [f"{row['label']}: {row['note']}." for row in rows if row["note"]]

    def _verdict(self, rows: Sequence[Mapping[str, Any]]) -> str:
        first = next((row["label"] for row in rows if row["verdict"] == "best"), None)
        if first is None:
            return "No method finished, so there is nothing to compare."
        if len(self.seeds) == 1:
            return "One seed cannot tell which differences are real; three or more can."
        by = {v: [r["label"] for r in rows if r["verdict"] == v] for v in VERDICTS}
        words = [
            f"* worse than {first} beyond chance ({LEVEL:.0%}, paired t-test over "
            f"{len(self.seeds)} seeds, Holm): {', '.join(by['worse']) or 'none'}."
        ]
        if by["not told apart"]:
            words.append(f"Not told apart from {first}: {', '.join(by['not told apart'])}.")
        if by["not tested"]:
            words.append(
                "Not tested (seeds lost, or the same difference in every seed): "
                f"{', '.join(by['not tested'])}."
            )
        return " ".join(words)

    def markdown(self) -> str:
        """Return the table in markdown, with the header above and the verdict below."""
        lines = [text.for_markdown(line) for line in self.sentences]
        body = text.markdown(self.cells(), self.columns)
        return "\n\n".join([text.for_markdown(self.header), body, *lines])

    def csv(self) -> str:
        """Return the table as comma-separated plain numbers."""
        return text.comma_separated(self.table())

    def latex(self) -> str:
        """Return the table as a LaTeX tabular; header and verdict are comments."""
        said = [f"% {' '.join(line.split())}" for line in (self.header, *self.sentences)]
        return "\n".join([*said, text.latex(self.cells(), self.columns)])

    def _repr_html_(self) -> str:
        from ..report.page import render_frame

        table = text.as_html(self.cells(), self.columns, [self.header, *self.sentences])
        return table + render_frame(self._done()) if self._done() else table

    def _done(self) -> dict[str, list[Run]]:
        """Return the runs that there are, by label."""
        groups = {k: [r for r in v if isinstance(r, Run)] for k, v in self.runs.items()}
        return {k: v for k, v in groups.items() if v}

    def json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "measure": self.measure,
            "target": self.goal,
            "seeds": self.seeds,
            "rows": self.table(),
            "header": self.header,
            "sentences": self.sentences,
            "tunings": self.tunings,
            "path": None if self.path is None else str(self.path),
        }

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that shows the runs side by side."""
        from ..report.page import write as write_page

        spent = [
            figures.on_page(row["label"], row, self.tunings.get(row["label"], {}), "final")
            for row in self.table()
            if row["finished"]
        ]
        return write_page(self._done(), Path(path), tuning=spent if self.tunings else None)

    @staticmethod
    @convert_errors("This comparison cannot be read: its folder is damaged", CheckpointError)
    def load(path: str | os.PathLike[str]) -> "Comparison":
        """Read a comparison's folder; runs that are not there yet say so."""
        folder = Path(path)
        facts = read(folder)
        runs = {
            label: [_found(folder, facts, label, seed) for seed in facts["seeds"]]
            for label in facts["labels"]
        }
        found = Comparison(runs, facts["seeds"], facts["target"], facts["tunings"], folder)
        found.markdown()  # what is damaged shows here, not later
        return found


VERDICTS = ("best", "worse", "not told apart", "not tested")


def _found(folder: Path, facts: Mapping[str, Any], label: str, seed: int) -> Outcome:
    reason = facts["failures"].get(label, {}).get(str(seed))
    return standing(task(folder, label, seed, 0)) if reason is None else Failure(seed, reason)


def write(folder: Path, comparison: Comparison, words: Mapping[str, Any] | None) -> None:
    """Write down what is compared, so that it can be read again and continued."""
    failures: dict[str, dict[str, str]] = {}
    for label, group in comparison.runs.items():
        for outcome in group:
            if isinstance(outcome, Failure) and outcome.reason != NOT_RUN:
                failures.setdefault(label, {})[str(outcome.seed)] = outcome.reason
    facts = {
        "labels": list(comparison.runs),
        "seeds": comparison.seeds,
        "target": comparison.target,
        "tunings": comparison.tunings,
        "failures": failures,
        "command": words,
    }
    keep(folder, FILE, facts, "compare")


def read(folder: Path) -> dict[str, Any]:
    """Return what a comparison's folder says about itself."""
    keys = ("labels", "seeds", "target", "tunings", "failures", "command")
    return recall(folder, FILE, "comparison", keys)
