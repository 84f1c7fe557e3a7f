"""What a search over settings found, and everything that it cost."""

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .. import methods
from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..core.text import human
from ..methods import Method
from ..training.run import Run
from . import figures, text
from .keep import recall, task
from .names import Entrant
from .work import GOOD, Outcome, standing

FILE = "tune.json"
By = Literal["validation", "test"]
MEASURES: dict[By, tuple[str, ...]] = {
    "validation": ("validation_accuracy", "validation_loss"),
    "test": ("test_accuracy", "test_loss"),
}


@dataclass(frozen=True)
class Point:
    """One setting of the grid, and its runs.

    Attributes:
        settings: What was tried, by name.
        entrant: The method with these settings.
        runs: One per seed.
        rounds: Rounds after which it was judged last; fewer than asked for where it was dropped.
    """

    settings: dict[str, Any]
    entrant: Entrant
    runs: tuple[Outcome, ...] = ()
    rounds: int = 0

    def finals(self, measure: str, rounds: int) -> list[float | None]:
        """Return each seed's number after so many rounds; None where the run was lost before."""
        out: list[float | None] = []
        for run in self.runs:
            there = isinstance(run, Run) and (len(run.history) >= rounds or run.status in GOOD)
            if not isinstance(run, Run) or not there:
                out.append(None)
                continue
            rows = [row for row in run.history if row["round"] < rounds]
            out.append(figures.final(replace(run, history=rows), measure))
        return out

    def score(self, measure: str, rounds: int) -> float | None:
        """Return the mean over seeds; None if a seed was lost."""
        found = self.finals(measure, rounds)
        values = [v for v in found if v is not None]
        return statistics.fmean(values) if values and len(values) == len(found) else None


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        name: The method.
        points: Every setting that was tried, with its runs.
        seeds: The seeds of each.
        rounds: Rounds of a whole run.
        by: What settings were judged by: "validation" or "test".
        path: The search's folder, or None.
    """

    name: str
    points: list[Point]
    seeds: list[int]
    rounds: int
    by: By = "validation"
    path: Path | None = None

    @property
    def measure(self) -> str:
        """The number that settings were judged by."""
        accuracy, loss = MEASURES[self.by]
        rows = (row for point in self.points for run in point.runs for row in run.history)
        return accuracy if any(row.get(accuracy) is not None for row in rows) else loss

    def ranked(self, rounds: int | None = None) -> list[Point]:
        """Return the points that were judged after so many rounds (all of them), best first."""
        far, measure = rounds or self.rounds, self.measure
        sign = -1 if figures.rises(measure) else 1
        found = [(p.score(measure, far), p) for p in self.points if p.rounds >= far]
        kept = [(sign * score, i, p) for i, (score, p) in enumerate(found) if score is not None]
        return [p for _, _, p in sorted(kept, key=lambda item: item[:2])]

    @property
    def best(self) -> Point:
        """The setting with the best mean; a search in which every run was lost has none."""
        found = self.ranked()
        if not found:
            raise ArgumentError(
                f"Tuning {self.name} found no setting whose runs all ended well; try a grid with "
                "smaller steps."
            )
        return found[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings found."""
        return self.best.settings

    @property
    def method(self) -> Method:
        """The method with the settings found."""
        return self.best.entrant.method

    @property
    def runs(self) -> list[Run]:
        """The runs of the settings found, one per seed; they were trained beside the validation."""
        return [run for run in self.best.runs if isinstance(run, Run)]

    @property
    def cost(self) -> dict[str, float]:
        """Everything spent, discarded runs included: gradients, bytes both ways, seconds, runs."""
        every = [figures.spent(run) for point in self.points for run in point.runs]
        total = {name: sum(one[name] for one in every) for name in figures.COSTS}
        return {**total, "runs": len(every)}

    def spent(self) -> dict[str, Any]:
        """Return the cost with what it bought, for tables and pages."""
        found = self.ranked()
        settings = found[0].settings if found else None
        return {"method": self.name, "settings": settings, **self.cost}

    @property
    def edges(self) -> list[str]:
        """Sentences about settings whose best value is the grid's first or last."""
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
        """Return one row per setting as plain data, in the order of the grid."""
        measure, first = self.measure, next(iter(self.ranked()), None)
        out = []
        for point in self.points:
            found = point.finals(measure, point.rounds)
            values = [v for v in found if v is not None]
            mean, sd = figures.middle(values)
            tests = [t for r in point.runs if isinstance(r, Run) if (t := _test(r)) is not None]
            every = [figures.spent(run) for run in point.runs]
            row = {**point.settings, "rounds": point.rounds, "score": mean, "score_sd": sd}
            row["test"] = statistics.fmean(tests) if tests else None
            row |= {name: sum(one[name] for one in every) for name in figures.COSTS}
            row["chosen"] = point is first
            row["note"] = "; ".join(figures.notes(point.runs, point.rounds))
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
        """Return the table as text, the sum of all costs in its last line."""
        rows = [self._cells(row) for row in self.table()]
        cost = self.cost
        total = self._cells(
            {"rounds": "", "score": None, "score_sd": None, "test": None, "note": "", **cost}
        )
        return [*rows, {**total, "chosen": "all"}]

    @staticmethod
    def _cells(row: Mapping[str, Any]) -> dict[str, str]:
        return {
            **{k: str(v) for k, v in row.items()},
            "chosen": "best" if row.get("chosen") else "",
            "score": text.spread(row["score"], row["score_sd"]),
            "test": text.spread(row["test"], None),
            "gradients": f"{row['gradients']:,.0f}",
            "bytes_up": human(row["bytes_up"]),
            "bytes_down": human(row["bytes_down"]),
            "seconds": f"{row['seconds']:.1f}",
        }

    @property
    def sentences(self) -> list[str]:
        """What was found, and what to mind about it."""
        out = []
        if self.ranked():
            words = " ".join(f"{k}={_short(v)}" for k, v in self.settings.items())
            out += [f"Best: {self.name} with {words}.", *self.edges]
        else:
            out.append(f"No setting of {self.name} ended well; try a grid with smaller steps.")
        cost = self.cost
        out.append(
            f"It took {cost['runs']} runs, {cost['gradients']:,.0f} gradients, "
            f"{human(cost['bytes_up'])} up, {human(cost['bytes_down'])} down."
        )
        if self.by == "test":
            out.append(WARNING)
        return out

    def markdown(self) -> str:
        """Return the table in markdown, with what was found below."""
        lines = [text.for_markdown(line) for line in self.sentences]
        return "\n\n".join([text.markdown(self.cells(), self.columns), *lines])

    def csv(self) -> str:
        """Return the table as comma-separated plain numbers."""
        return text.comma_separated(self.table())

    def latex(self) -> str:
        """Return the table as a LaTeX tabular; what was found is in comments."""
        said = [f"% {' '.join(line.split())}" for line in self.sentences]
        return "\n".join([*said, text.latex(self.cells(), self.columns)])

    def _repr_html_(self) -> str:
        return text.as_html(self.cells(), self.columns, self.sentences)

    def json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            **self.spent(),
            "measure": self.measure,
            "seeds": self.seeds,
            "rows": self.table(),
            "sentences": self.sentences,
            "path": None if self.path is None else str(self.path),
        }

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that shows the settings side by side."""
        from ..report.page import write

        groups = {
            p.entrant.label: found
            for p in self.points
            if (found := [r for r in p.runs if isinstance(r, Run)])
        }
        table = {p.entrant.label: row for p, row in zip(self.points, self.table(), strict=True)}
        names = [p.entrant.label for p in self.ranked()[:1]]
        cost = [figures.on_page(label, table[label], self.cost) for label in names]
        return write(groups, Path(path), title=f"Tuning {self.name}", tuning=cost)

    @staticmethod
    @convert_errors("This search cannot be read: its folder is damaged", CheckpointError)
    def load(path: str | os.PathLike[str]) -> "Tuning":
        """Read a search's folder."""
        folder = Path(path)
        facts = recall(
            folder, FILE, "search", ("method", "fixed", "points", "seeds", "rounds", "by")
        )
        name, seeds, fixed = facts["method"], facts["seeds"], facts["fixed"]
        points = []
        for label, settings, rounds in facts["points"]:
            tasks = [task(folder, label, seed, facts["rounds"]) for seed in seeds]
            method = methods.get(name, **fixed, **settings)
            runs = tuple(standing(t) for t in tasks)
            points.append(Point(settings, Entrant(label, method, name), runs, rounds))
        found = Tuning(name, points, seeds, facts["rounds"], facts["by"], folder)
        found.markdown()  # what is damaged shows here, not later
        return found


WARNING = (
    "Chosen by the test set, so its test score flatters; choose by validation data to compare."
)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _test(run: Run) -> float | None:
    facts = run.summary
    return figures.number(facts.get("test_accuracy", facts.get("test_loss")))
