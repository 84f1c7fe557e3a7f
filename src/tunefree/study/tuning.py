"""Searching a grid of settings, all of it or by successive halving: the runs and their result.

Successive halving trains all settings for a few rounds, keeps the best third (rounded up), trains
those three times as far, and so on. A rung is the beginning of the complete run: schedules and
methods see its total number of rounds from the start. Surviving runs are continued, so that no
round is trained twice.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from .. import methods
from ..core.errors import ArgumentError, Interrupted, check_known
from ..core.text import format_bytes
from ..methods import Method
from ..report import page
from ..training.command import parse_method_settings
from ..training.run import Run
from . import measures, tables
from .candidates import Candidate
from .pool import make_progress, run_all
from .source import MakeFederation, MakeModel, PythonStudy, Study
from .tasks import GOOD, Outcome, ProgressListener, RunTask, read_outcome, run_folder

WARNING = "Chosen by the test set, so its score is biased; choose by validation data to compare."
Criterion = Literal["validation", "test"]
CRITERIA: dict[Criterion, tuple[str, ...]] = {
    "validation": ("validation_accuracy", "validation_loss"),
    "test": ("test_accuracy", "test_loss"),
}
REDUCTION = 3  # of the settings, from one rung to the next
VALIDATION = 0.1


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


@dataclass(frozen=True, repr=False)
class Tuning(tables.StudyResult):
    """The result of `tune`.

    Attributes:
        name: The method.
        points: All combinations of settings, with their runs.
        seeds: The seeds of each.
        rounds: Rounds of a complete run.
        by: What settings are chosen by: "validation" or "test".
        path: The search's folder, or None.
        fixed: Settings that are not searched.
    """

    FILE, KIND = "tune.json", "search"
    KEYS = ("method", "fixed", "points", "seeds", "rounds", "by")
    name: str
    points: list[GridPoint]
    seeds: list[int]
    rounds: int
    by: Criterion = "validation"
    path: Path | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        accuracy, loss = CRITERIA[self.by]
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
        """The method with the best settings.

        Raises:
            ArgumentError: If it was loaded, and has settings that are neither texts nor numbers.
        """
        if (method := self.best.candidate.method) is None:
            instead = f"give them to tf.methods.get({self.name!r}, ...) yourself"
            raise ArgumentError(
                f"A folder keeps objects among the settings of {self.name} as a description only; "
                f"{instead}."
            )
        return method

    @property
    def runs(self) -> list[Run]:
        """The runs of the best point, one per seed; trained without the validation data."""
        return [run for run in self.best.runs if isinstance(run, Run)]

    @property
    def groups(self) -> dict[str, list[Run]]:
        """The runs of each point by its label, without those that failed."""
        return measures.select_runs({p.candidate.label: p.runs for p in self.points})

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
            facts = [run.summary for run in point.runs if isinstance(run, Run)]
            tests = (f.get("test_accuracy", f.get("test_loss")) for f in facts)
            row["test"], _ = measures.mean_and_sd(map(measures.to_float, tests))
            row |= measures.total_cost(point.runs)
            row["chosen"] = point is first
            row["note"] = "; ".join(measures.describe_lost_seeds(point.runs, point.rounds))
            out.append(row)
        return out

    @property
    def columns(self) -> dict[str, str]:
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
    def bold(self) -> set[tuple[int, str]]:
        """The score of the settings that were chosen."""
        return {(i, "score") for i, row in enumerate(self.table()) if row["chosen"]}

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
        return {**self.summary, **super().json()}

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write an HTML page that shows the settings side by side."""
        cost = [
            measures.make_page_row(point.candidate.label, row, self.cost)
            for point, row in zip(self.points, self.table(), strict=True)
            if row["chosen"]
        ]
        title = title or f"Tuning {self.name}"
        return page.write(self.groups, Path(path), title=title, tuning=cost)

    def _record(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "fixed": _to_plain(self.fixed),
            "points": [[p.candidate.label, _to_plain(p.settings), p.rounds] for p in self.points],
            "seeds": self.seeds,
            "rounds": self.rounds,
            "by": self.by,
        }

    @classmethod
    def _from_record(cls, folder: Path, record: dict[str, Any]) -> Self:
        name, total = record["method"], record["rounds"]
        fixed, fixed_objects = _from_plain(record["fixed"])
        points = []
        for label, plain, rounds in record["points"]:
            settings, objects = _from_plain(plain)
            folders = {seed: run_folder(folder, label, seed) for seed in record["seeds"]}
            runs = (read_outcome(RunTask(label, s, total, out)) for s, out in folders.items())
            is_known = not (objects or fixed_objects)
            method = methods.get(name, **fixed, **settings) if is_known else None
            points.append(GridPoint(settings, Candidate(label, method, name), tuple(runs), rounds))
        return cls(name, points, record["seeds"], total, record["by"], folder, fixed)


def _to_plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain data: of an object, which JSON cannot hold, its description."""
    plain = str | int | float | None
    return {k: v if isinstance(v, plain) else {"object": repr(v)} for k, v in settings.items()}


def _from_plain(settings: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return what `_to_plain` was given, objects as descriptions, and whether there are any."""
    objects = {k: str(v["object"]) for k, v in settings.items() if isinstance(v, dict)}
    return {**settings, **objects}, bool(objects)


def default_grid(name: str) -> dict[str, tuple[float, ...]]:
    """Return the values to search for a method, by setting, as it was registered with them.

    >>> default_grid("fedprox")["mu"]
    (0.001, 0.01, 0.1, 1.0)
    """
    methods.settings(name)  # raises for an unknown name
    found = methods.CATALOGUE[name].grid
    if not found:
        hint = "give grid=... (--grid KEY=VALUES) to search a setting"
        raise ArgumentError(f"{name} has nothing to choose, so it has no grid of its own; {hint}.")
    return dict(found)


def make_grid(
    candidate: Candidate, grid: Mapping[str, Sequence[Any]] | None = None
) -> list[GridPoint]:
    """Return every combination of values, by default of `default_grid`, for a named method.

    >>> fedprox = Candidate("fedprox", methods.get("fedprox"), "fedprox", ("lr=0.1",), {"lr": 0.1})
    >>> [point.candidate.label for point in make_grid(fedprox, {"mu": (0.1, 1.0)})]
    ['fedprox:lr=0.1:mu=0.1', 'fedprox:lr=0.1:mu=1']
    """
    name, fixed = candidate.name, candidate.settings
    assert name is not None
    own = methods.settings(name)
    if grid is None:
        grid = {k: v for k, v in default_grid(name).items() if k not in fixed}
    if not isinstance(grid, Mapping) or not grid:
        raise ArgumentError(f"tune(grid=...) must map settings of {name} to values, got {grid!r}.")
    for key, values in grid.items():
        check_known(f"argument of {name}", key, [*own, *methods.COMMON])
        if key in fixed:
            raise ArgumentError(f"{key} cannot be both set to {fixed[key]!r} and searched.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentError(f"tune(grid=...) must list values for {key}, got {values!r}.")
    points: dict[str, GridPoint] = {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        texts = (*candidate.texts, *(f"{k}={_format_value(v)}" for k, v in settings.items()))
        label = ":".join((name, *texts))
        if label in points:
            raise ArgumentError(f"tune(grid=...) must list different values, got {label} twice.")
        method = methods.get(name, **fixed, **settings)
        points[label] = GridPoint(settings, Candidate(label, method, name, texts))
    return list(points.values())


def _format_value(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def parse_grid(name: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid of KEY=VALUE,VALUE,... texts; values have the types of the settings.

    >>> parse_grid("fedavg", ["lr=0.1,1"])
    {'lr': [0.1, 1.0]}
    """
    out: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        values = [part.strip() for part in rest.split(",") if part.strip()]
        if not equals or not key or not values or key in out:
            rule = "KEY=VALUE,VALUE,... once per setting"
            raise ArgumentError(f"--grid must be {rule}, got {text!r}.")
        out[key] = [parse_method_settings(name, (f"{key}={value}",))[key] for value in values]
    return out


def plan_rungs(count: int, rounds: int, every: int) -> list[tuple[int, int]]:
    """Return the rungs of successive halving: number of settings, and rounds to train them for.

    `count` settings are searched over `rounds` rounds; each rung ends with an evaluation, which is
    made `every` few rounds.

    >>> plan_rungs(9, 90, 1)
    [(9, 10), (3, 30), (1, 90)]
    """
    height = int(math.log(count, REDUCTION) + 1e-9)
    ends = [
        math.ceil(rounds / REDUCTION ** (height - k) / every) * every for k in range(height + 1)
    ]
    unique = sorted({min(end, rounds) for end in ends})
    return [(math.ceil(count / REDUCTION**k), end) for k, end in enumerate(unique)]


def run_search(
    study: Study,
    candidate: Candidate,
    points: list[GridPoint],
    listener: ProgressListener,
    by: Criterion = "validation",
    halving: bool = False,
) -> Tuning:
    """Train the points of a candidate's grid.

    Raises:
        Interrupted: After Ctrl-C; it holds the result so far.
    """
    check_known("way to choose", by, CRITERIA)
    if halving and study.out is None:
        raise ArgumentError("Halving continues runs, so it needs a folder: give out=...")
    if by == "validation":
        study = study.with_validation(VALIDATION)
    candidates = [point.candidate for point in points]
    run = study.check(candidates)
    if by == "test" and run.data.test is None:
        raise ArgumentError("tune(by='test') needs a test set; choose by validation data.")
    assert candidate.name is not None
    seeds, rounds, fixed = list(study.seeds), study.rounds, candidate.settings
    tuning = Tuning(candidate.name, points, seeds, rounds, by, study.out, fixed)
    rungs = [(len(points), rounds)]
    if halving:
        rungs = plan_rungs(len(points), rounds, int(study.options["eval_every"]))
    labels = [candidate.label for candidate in candidates]
    try:
        for count, until in rungs:
            tables.save(tuning, study.command)
            chosen = [c for c in candidates if c.label in labels[:count]]
            stop = None if until == rounds else until
            tasks = [study.task(c.label, seed, stop) for seed in seeds for c in chosen]
            make_inputs = study.with_candidates(chosen).inputs
            done = dict(run_all(tasks, make_inputs, listener, study.jobs))
            runs = {c.label: tuple(done[t] for t in tasks if t.label == c.label) for c in chosen}
            points = [
                replace(p, runs=runs[p.candidate.label], rounds=until)
                if p.candidate.label in runs
                else p
                for p in points
            ]
            tuning = replace(tuning, points=points)
            labels = [p.candidate.label for p in tuning.ranked(until)]
    except KeyboardInterrupt:
        hint = "" if study.out is None else f" Call tune again with out={str(study.out)!r}."
        raise Interrupted(f"Stopped by Ctrl-C.{hint}", tuning) from None
    tables.save(tuning, study.command)
    return tuning


def tune(
    model: MakeModel,
    federation: MakeFederation,
    method: str = "fedavg",
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | os.PathLike[str] | None = None,
    by: Criterion = "validation",
    halving: bool = False,
    fixed: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Tuning:
    """Search a method's settings over a grid, and count the cost of all runs.

    Args:
        model: A module or a `Run`, the start of every seed; or a function f(seed) that returns one.
        federation: The clients' data; or a function f(seed).
        method: A method's name.
        grid: Values by setting; None takes the papers' grid for the settings that must be chosen.
        seeds: Number of seeds, or a list of them; a setting's score is the mean over them.
        out: Folder for the runs; None writes nothing.
        by: Choose by "validation" data (a tenth of every client's samples unless
            `evaluate=Evaluate(validation=...)` is given), or by the "test" set, whose score is
            then biased.
        halving: Use successive halving: drop two thirds of the settings early, repeatedly.
        fixed: Settings of the method that are not searched.
        progress: Show progress on standard error.
        **settings: Further arguments of `fit`.
    """
    study = PythonStudy.create("tune", model, federation, settings, seeds, out)
    own = dict(fixed or {})
    candidate = Candidate(method, methods.get(method, **own), method, settings=own)
    points = make_grid(candidate, grid)
    with make_progress(progress) as listener:
        return run_search(study, candidate, points, listener, by, halving)
