"""Searching a grid of settings: all of it, or by successive halving.

Halving plays all settings for a few rounds, keeps the best third (rounded up), plays these three
times as far, and so on to the end. A rung is the beginning of the whole run, not a short run of its
own: schedules and methods that look at the number of rounds see the whole number from the start, so
what survives is continued, not repeated, and nothing is spent twice.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import methods
from ..core.errors import ArgumentError, Interrupted, unknown_name
from ..training.command import parse_method_settings
from . import grids, names
from .execute import make_progress, run_all
from .keep import keep, task
from .names import Entrant
from .source import MakeFederation, MakeModel, PythonStudy, StudyConfig, check
from .tuning import FILE, MEASURES, By, Point, Tuning
from .work import Outcome, Watch

THIRD = 3
VALIDATION = 0.1


@dataclass(frozen=True)
class Grid:
    """A method, what is fixed about it, and the settings to try.

    Args:
        name: The method's name.
        fixed: Its settings that are not searched.
        points: Every combination of values.
    """

    name: str
    fixed: dict[str, Any]
    points: list[Point]


def grid_of(entrant: Entrant, values: Mapping[str, Sequence[Any]] | None = None) -> Grid:
    """Return the grid of a named method; None takes the papers' values.

    >>> grid = grid_of(names.parse("fedprox:lr=0.1"), {"mu": (0.1, 1.0)})
    >>> [point.entrant.label for point in grid.points]
    ['fedprox:lr=0.1:mu=0.1', 'fedprox:lr=0.1:mu=1']
    """
    assert entrant.name is not None
    found = _points(entrant.name, entrant.fixed, values, entrant.words)
    return Grid(entrant.name, entrant.fixed, found)


def _points(
    name: str,
    fixed: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] | None,
    words: tuple[str, ...],
) -> list[Point]:
    own = methods.settings(name)
    if grid is None:
        grid = {k: v for k, v in grids.grid(name).items() if k not in fixed}
    if not isinstance(grid, Mapping) or not grid:
        raise ArgumentError(f"tune(grid=...) must map settings of {name} to values, got {grid!r}.")
    for key, values in grid.items():
        if key not in own and key not in methods.COMMON:
            raise unknown_name(f"argument of {name}", key, [*own, *methods.COMMON])
        if key in fixed:
            raise ArgumentError(f"{key} cannot be both set to {fixed[key]!r} and searched.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ArgumentError(f"tune(grid=...) must list values for {key}, got {values!r}.")
    out: dict[str, Point] = {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        said = tuple(f"{k}={_word(v)}" for k, v in settings.items())
        method = methods.get(name, **fixed, **settings)
        label = ":".join((name, *words, *said))
        entrant = Entrant(label, method, name, (*words, *said))
        if label in out:
            raise ArgumentError(f"tune(grid=...) must list different values, got {label} twice.")
        out[label] = Point(settings, entrant)
    return list(out.values())


def _word(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def read_grid(name: str, lines: Sequence[str]) -> dict[str, list[Any]]:
    """Read KEY=VALUE,VALUE,... by the types of the method's own settings.

    >>> read_grid("fedavg", ["lr=0.1,1"])
    {'lr': [0.1, 1.0]}
    """
    out: dict[str, list[Any]] = {}
    for line in lines:
        key, equals, text = line.partition("=")
        values = [word.strip() for word in text.split(",") if word.strip()]
        if not equals or not key or not values or key in out:
            raise ArgumentError(
                f"--grid must be KEY=VALUE,VALUE,... once per setting, got {line!r}."
            )
        out[key] = [parse_method_settings(name, (f"{key}={word}",))[key] for word in values]
    return out


def rungs(count: int, rounds: int, every: int) -> list[tuple[int, int]]:
    """Return how many settings are played how far; evaluations fall on every end.

    >>> rungs(9, 90, 1)
    [(9, 10), (3, 30), (1, 90)]
    """
    height = int(math.log(count, THIRD) + 1e-9)
    ends = [math.ceil(rounds / THIRD ** (height - k) / every) * every for k in range(height + 1)]
    far = sorted({min(end, rounds) for end in ends})
    return [(math.ceil(count / THIRD**k), end) for k, end in enumerate(far)]


def search(
    grid: Grid,
    seeds: list[int],
    study: StudyConfig,
    *,
    out: Path | None,
    watch: Watch,
    by: By = "validation",
    halving: bool = False,
    jobs: int = 1,
    words: Mapping[str, Any] | None = None,
) -> Tuning:
    """Play the grid and return what came out; Ctrl-C raises `Interrupted` with it."""
    if by not in MEASURES:
        raise unknown_name("way to choose", by, MEASURES)
    if halving and out is None:
        raise ArgumentError("Halving continues runs, so it needs a folder: give out=...")
    if by == "validation":
        study = study.with_validation(VALIDATION)
    alive = [point.entrant.label for point in grid.points]
    run = check(study, [point.entrant for point in grid.points], seeds[0])
    if by == "test" and run.data.test is None:
        raise ArgumentError("tune(by='test') needs a test set; choose by validation data.")
    tuning = Tuning(grid.name, grid.points, seeds, study.rounds, by, out)
    ladder = (
        rungs(len(alive), study.rounds, study.eval_every)
        if halving
        else [(len(alive), study.rounds)]
    )
    try:
        for count, far in ladder:
            _keep(tuning, grid.fixed, words)
            tuning = _rung(tuning, alive[:count], far, study, watch, jobs)
            alive = [p.entrant.label for p in tuning.ranked(far)]
    except KeyboardInterrupt:
        where = "" if out is None else f" Call tune again with out={str(out)!r}."
        raise Interrupted(f"Stopped by Ctrl-C.{where}", tuning) from None
    _keep(tuning, grid.fixed, words)
    return tuning


def _rung(
    tuning: Tuning, alive: list[str], far: int, study: StudyConfig, watch: Watch, jobs: int
) -> Tuning:
    until = None if far == tuning.rounds else far
    chosen = [p for p in tuning.points if p.entrant.label in alive]
    tasks = [
        task(tuning.path, p.entrant.label, seed, tuning.rounds, until)
        for seed in tuning.seeds
        for p in chosen
    ]
    source = study.source([p.entrant for p in chosen])
    done: dict[str, dict[int, Outcome]] = {label: {} for label in alive}
    for one, outcome in run_all(tasks, source, watch, jobs):
        done[one.label][one.seed] = outcome
    played = [
        replace(p, runs=tuple(done[label][s] for s in tuning.seeds), rounds=far)
        if (label := p.entrant.label) in done
        else p
        for p in tuning.points
    ]
    return replace(tuning, points=played)


def _keep(tuning: Tuning, fixed: Mapping[str, Any], words: Mapping[str, Any] | None) -> None:
    if tuning.path is None:
        return
    points = [
        [p.entrant.label, {k: _plain(v) for k, v in p.settings.items()}, p.rounds]
        for p in tuning.points
    ]
    facts = {
        "method": tuning.name,
        "fixed": {k: _plain(v) for k, v in fixed.items()},
        "points": points,
        "seeds": tuning.seeds,
        "rounds": tuning.rounds,
        "by": tuning.by,
        "command": words,
    }
    keep(tuning.path, FILE, facts, "tune")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else repr(value)


def tune(
    model: MakeModel,
    federation: MakeFederation,
    method: str = "fedavg",
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | os.PathLike[str] | None = None,
    by: By = "validation",
    halving: bool = False,
    fixed: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Tuning:
    """Search a method's settings over a grid, and count everything that it costs.

    Args:
        model: A module, the start of every seed; or a function f(seed) that makes one.
        federation: Who owns which samples; or a function f(seed).
        method: A method's name.
        grid: Values by setting; None takes the papers' grid for what is left to choose.
        seeds: How many, or which ones; a setting's score is the mean over them.
        out: Folder for the runs; None writes nothing.
        by: Choose by "validation" data (a tenth of every client's, unless validation=... says
            otherwise), or by the "test" set, which flatters.
        halving: Drop two thirds of the settings early, again and again.
        fixed: Settings of the method that are not searched.
        progress: Show progress on standard error.
        **settings: Further arguments of `fit`.
    """
    names.check_settings("tune", settings)
    own = dict(fixed or {})
    entrant = Entrant(method, methods.get(method, **own), method, fixed=own)
    with make_progress(progress) as watch:
        return search(
            grid_of(entrant, grid),
            names.seeds(seeds, "tune"),
            PythonStudy.create(model, federation, settings),
            out=None if out is None else Path(out),
            watch=watch,
            by=by,
            halving=halving,
        )
