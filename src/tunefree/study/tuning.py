"""The result of a search over settings, and its cost."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .. import methods
from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..core.text import format_bytes
from ..methods import Method
from ..report import page
from ..training.run import Run
from . import measures, tables
from .candidates import Candidate
from .tasks import GOOD, Outcome, make_task, read_outcome, read_study

FILE = "tune.json"
KEYS = ("method", "fixed", "points", "seeds", "rounds", "by")
WARNING = "Chosen by the test set, so its score is biased; choose by validation data to compare."
Criterion = Literal["validation", "test"]
MEASURES: dict[Criterion, tuple[str, ...]] = {
    "validation": ("validation_accuracy", "validation_loss"),
    "test": ("test_accuracy", "test_loss"),
}


@dataclass(frozen=True)
class GridPoint:
    """One combination of settings in a grid, and its runs.

    Attributes:
        settings: The values, by name.
        candidate: The method with these settings.
        runs: One per seed.
        rounds: Rounds after which it was scored; fewer than all if successive halving dropped it.
    """

    settings: dict[str, Any]
    candidate: Candidate
    runs: tuple[Outcome, ...] = ()
    rounds: int = 0

    def final_scores(self, measure: str, rounds: int) -> list[float | None]:
        """Return each seed's score after `rounds` rounds; None if the run was lost before."""
        out: list[float | None] = []
        for run in self.runs:
            if isinstance(run, Run) and (len(run.history) >= rounds or run.status in GOOD):
                rows = [row for row in run.history if row["round"] < rounds]
                out.append(measures.final_value(replace(run, history=rows), measure))
            else:
                out.append(None)
        return out

    def score(self, measure: str, rounds: int) -> float | None:
        """Return the mean score over seeds; None if a seed was lost."""
        found = self.final_scores(measure, rounds)
        return None if None in found else measures.mean_and_sd(found)[0]


@dataclass(frozen=True)
class Tuning(tables.StudyResult):
    """The result of `tune`.

    Attributes:
        name: The method.
        points: All combinations of settings, with their runs.
        seeds: The seeds of each.
        rounds: Rounds of a complete run.
        by: What settings are chosen by: "validation" or "test".
        path: The search's folder, or None.
    """

    name: str
    points: list[GridPoint]
    seeds: list[int]
    rounds: int
    by: Criterion = "validation"
    path: Path | None = None

    @property
    def measure(self) -> str:
        """The measure that settings are ranked by."""
        accuracy, loss = MEASURES[self.by]
        rows = (row for point in self.points for run in point.runs for row in run.history)
        return accuracy if any(row.get(accuracy) is not None for row in rows) else loss

    def ranked(self, rounds: int | None = None) -> list[GridPoint]:
        """Return the points that were scored after `rounds` rounds (by default all), best first."""
        until, measure = rounds or self.rounds, self.measure
        sign = -1 if measures.is_higher_better(measure) else 1
        points = [p for p in self.points if p.rounds >= until]
        scored = [(s, p) for p in points if (s := p.score(measure, until)) is not None]
        return [p for _, p in sorted(scored, key=lambda pair: sign * pair[0])]

    @property
    def best(self) -> GridPoint:
        """The point with the best mean score.

        Raises:
            ArgumentError: If every point lost a run.
        """
        found = self.ranked()
        if not found:
            raise ArgumentError(self.sentences[0])
        return found[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the best point."""
        return self.best.settings

    @property
    def method(self) -> Method:
        """The method with the best settings."""
        return self.best.candidate.method

    @property
    def runs(self) -> list[Run]:
        """The runs of the best point, one per seed; trained without the validation data."""
        return [run for run in self.best.runs if isinstance(run, Run)]

    @property
    def cost(self) -> dict[str, float]:
        """The cost of all runs: gradients, bytes both ways, seconds, and the number of runs."""
        runs = [run for point in self.points for run in point.runs]
        return {**measures.total_cost(runs), "runs": len(runs)}

    @property
    def summary(self) -> dict[str, Any]:
        """The method, the settings found (None if there are none) and the cost."""
        settings = self.best.settings if self.ranked() else None
        return {"method": self.name, "settings": settings, **self.cost}

    @property
    def edges(self) -> list[str]:
        """Sentences about settings whose best value is the smallest or largest of the grid."""
        out = []
        for name, value in self.best.settings.items():
            tried = {p.settings[name] for p in self.points}
            if not all(isinstance(v, int | float) for v in tried) or len(tried) < 2:
                continue
            side = {min(tried): "smallest", max(tried): "largest"}.get(value)
            if side is not None:
                out.append(f"The best {name}, {value:g}, is the {side} tried: widen the grid.")
        return out

    def table(self) -> list[dict[str, Any]]:
        """Return one row per point as plain data, in the order of the grid."""
        measure, first = self.measure, next(iter(self.ranked()), None)
        out = []
        for point in self.points:
            mean, sd = measures.mean_and_sd(point.final_scores(measure, point.rounds))
            row = {**point.settings, "rounds": point.rounds, "score": mean, "score_sd": sd}
            tests = (_test_score(r) for r in point.runs if isinstance(r, Run))
            row["test"], _ = measures.mean_and_sd(tests)
            row |= measures.total_cost(point.runs)
            row["chosen"] = point is first
            row["note"] = "; ".join(measures.describe_lost_seeds(point.runs, point.rounds))
            out.append(row)
        return out

    @property
    def columns(self) -> dict[str, str]:
        """The headings of the table as text, by key."""
        names = dict.fromkeys(k for p in self.points for k in p.settings)
        return {
            "chosen": "",
            **{name: name for name in names},
            "rounds": "rounds",
            "score": self.measure.replace("_", " "),
            "test": "test",
            "gradients": "gradients",
            "bytes_up": "sent up",
            "bytes_down": "sent down",
            "seconds": "seconds",
            "note": "note",
        }

    def cells(self) -> list[dict[str, str]]:
        """Return the table as text; the last row has the sum of all costs."""
        rows = [self._format_row(row) for row in self.table()]
        total = self._format_row(
            {"rounds": "", "score": None, "score_sd": None, "test": None, "note": "", **self.cost}
        )
        return [*rows, {**total, "chosen": "all"}]

    @staticmethod
    def _format_row(row: Mapping[str, Any]) -> dict[str, str]:
        return {
            **{k: str(v) for k, v in row.items()},
            "chosen": "best" if row.get("chosen") else "",
            "score": tables.format_mean(row["score"], row["score_sd"]),
            "test": tables.format_mean(row["test"], None),
            "gradients": f"{row['gradients']:,.0f}",
            "bytes_up": format_bytes(row["bytes_up"]),
            "bytes_down": format_bytes(row["bytes_down"]),
            "seconds": f"{row['seconds']:.1f}",
        }

    @property
    def sentences(self) -> list[str]:
        """The best settings, warnings about them, and the cost."""
        out = []
        if self.ranked():
            found = " ".join(
                f"{k}={f'{v:g}' if isinstance(v, float) else v}" for k, v in self.settings.items()
            )
            out += [f"Best: {self.name} with {found}.", *self.edges]
        else:
            out.append(f"No setting of {self.name} ended well; try a grid with smaller steps.")
        cost = self.cost
        out.append(
            f"It took {cost['runs']} runs, {cost['gradients']:,.0f} gradients, "
            f"{format_bytes(cost['bytes_up'])} up, {format_bytes(cost['bytes_down'])} down."
        )
        if self.by == "test":
            out.append(WARNING)
        return out

    def json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **self.summary,
            "measure": self.measure,
            "seeds": self.seeds,
            "rows": self.table(),
            "sentences": self.sentences,
            "path": None if self.path is None else str(self.path),
        }

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page that shows the settings side by side."""
        groups = measures.select_runs({p.candidate.label: p.runs for p in self.points})
        cost = [
            measures.make_page_row(point.candidate.label, row, self.cost)
            for point, row in zip(self.points, self.table(), strict=True)
            if row["chosen"]
        ]
        return page.write(groups, Path(path), title=f"Tuning {self.name}", tuning=cost)

    @staticmethod
    @convert_errors("This search cannot be read: its folder is damaged", CheckpointError)
    def load(path: str | os.PathLike[str]) -> "Tuning":
        """Read a search's folder."""
        folder = Path(path)
        facts = read_study(folder, FILE, "search", KEYS)
        name, seeds, fixed = facts["method"], facts["seeds"], facts["fixed"]
        points = []
        for label, settings, rounds in facts["points"]:
            tasks = [make_task(folder, label, seed, facts["rounds"]) for seed in seeds]
            method = methods.get(name, **fixed, **settings)
            runs = tuple(map(read_outcome, tasks))
            points.append(GridPoint(settings, Candidate(label, method, name), runs, rounds))
        found = Tuning(name, points, seeds, facts["rounds"], facts["by"], folder)
        found.markdown()  # raises now if something is damaged
        return found


def _test_score(run: Run) -> float | None:
    facts = run.summary
    return measures.to_float(facts.get("test_accuracy", facts.get("test_loss")))
