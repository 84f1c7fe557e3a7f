"""Searching a grid of settings: all of it, or by successive halving.

Successive halving trains all settings for a few rounds, keeps the best third (rounded up), trains
those three times as far, and so on. A rung is the beginning of the complete run: schedules and
methods see its total number of rounds from the start. Surviving runs are continued, so that no
round is trained twice.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import methods
from ..core.errors import ArgumentError, Interrupted, unknown_name
from ..training.command import parse_method_settings
from .candidates import Candidate, make_seeds
from .execute import make_progress, run_all
from .source import MakeFederation, MakeModel, PythonStudy, Study
from .tasks import ProgressListener, make_task, write_study
from .tuning import FILE, MEASURES, Criterion, GridPoint, Tuning

REDUCTION = 3  # of the settings, from one rung to the next
VALIDATION = 0.1


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
        if key not in own and key not in methods.COMMON:
            raise unknown_name(f"argument of {name}", key, [*own, *methods.COMMON])
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
    candidate: Candidate,
    points: list[GridPoint],
    seeds: list[int],
    study: Study,
    *,
    out: Path | None,
    listener: ProgressListener,
    by: Criterion = "validation",
    halving: bool = False,
    jobs: int = 1,
    command: Mapping[str, Any] | None = None,
) -> Tuning:
    """Train the points of a candidate's grid; `command` is kept in the study's JSON file.

    Raises:
        Interrupted: After Ctrl-C; it holds the result so far.
    """
    if by not in MEASURES:
        raise unknown_name("way to choose", by, MEASURES)
    if halving and out is None:
        raise ArgumentError("Halving continues runs, so it needs a folder: give out=...")
    if by == "validation":
        study = study.with_validation(VALIDATION)
    candidates = [point.candidate for point in points]
    run = study.check(candidates, seeds[0])
    if by == "test" and run.data.test is None:
        raise ArgumentError("tune(by='test') needs a test set; choose by validation data.")
    assert candidate.name is not None
    tuning = Tuning(candidate.name, points, seeds, study.rounds, by, out)
    rungs = [(len(candidates), study.rounds)]
    if halving:
        rungs = plan_rungs(len(candidates), study.rounds, int(study.options["eval_every"]))
    labels = [candidate.label for candidate in candidates]
    try:
        for count, until in rungs:
            _write(tuning, candidate.settings, command)
            chosen = [c for c in candidates if c.label in labels[:count]]
            stop = None if until == study.rounds else until
            tasks = [make_task(out, c.label, s, study.rounds, stop) for s in seeds for c in chosen]
            done = dict(run_all(tasks, study.with_candidates(chosen).inputs, listener, jobs))
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
        hint = "" if out is None else f" Call tune again with out={str(out)!r}."
        raise Interrupted(f"Stopped by Ctrl-C.{hint}", tuning) from None
    _write(tuning, candidate.settings, command)
    return tuning


def _write(tuning: Tuning, fixed: Mapping[str, Any], command: Mapping[str, Any] | None) -> None:
    if tuning.path is None:
        return
    facts = {
        "method": tuning.name,
        "fixed": _to_plain(fixed),
        "points": [[p.candidate.label, _to_plain(p.settings), p.rounds] for p in tuning.points],
        "seeds": tuning.seeds,
        "rounds": tuning.rounds,
        "by": tuning.by,
        "command": command,
    }
    write_study(tuning.path, FILE, facts, "tune")


def _to_plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = str | int | float | None
    return {k: v if isinstance(v, plain) else repr(v) for k, v in settings.items()}


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
        model: A module, the start of every seed; or a function f(seed) that returns one.
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
    study = PythonStudy.create("tune", model, federation, settings)
    own = dict(fixed or {})
    candidate = Candidate(method, methods.get(method, **own), method, settings=own)
    with make_progress(progress) as listener:
        return run_search(
            candidate,
            make_grid(candidate, grid),
            make_seeds(seeds, "tune"),
            study,
            out=None if out is None else Path(out),
            listener=listener,
            by=by,
            halving=halving,
        )
