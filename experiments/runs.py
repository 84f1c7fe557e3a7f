"""The runs of an experiment, each specified by plain data."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefree.core.errors import ArgumentError, check_int, unknown_name
from tunefree.core.files import to_json
from tunefree.study.tasks import RunTask

from .check import split_settings
from .reading import override
from .spec import Experiment, Row

VALIDATION = 0.1


@dataclass(frozen=True)
class RunSpec(RunTask):
    """One run.

    Args:
        text: Everything that decides it, as JSON.
    """

    text: str = ""

    @property
    def words(self) -> dict[str, Any]:
        """Everything that decides the run."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def key(self) -> str:
        """A name for the run, by its specification."""
        deciding = {k: v for k, v in self.words.items() if k != "checkpoint_every"}
        own = deciding.get("set", {})
        if own.get("weights") == "uniform":  # as runs had it before it was stated
            deciding["set"] = {k: v for k, v in own.items() if k != "weights"}
        return hashlib.sha256(to_json(deciding).encode()).hexdigest()[:20]


def make_run(
    found: Experiment, row: Row, point: Mapping[str, Any], seed: int, tuning: bool = False
) -> RunSpec:
    """Return the run of a row's settings and a seed; a shorter one if `tuning`."""
    task = found.of(row.task)
    words = override(task.words, row.words)
    common = words.pop("set")
    if found.kind == "prox-cost":
        words["penalty"] = row.method
    else:
        settings, more = split_settings(row.method, {**common, **row.set, **point})
        words = override(words, more) | {"method": row.method, "set": settings}
    words |= {"kind": found.kind, "seed": seed}
    if tuning:
        words["rounds"] = short_rounds(found, words["rounds"])
        if found.tune_by == "validation":
            words.setdefault("validation", VALIDATION)
    label = " ".join(
        [f"{task.name}: {row.label}", *(f"{k}={_format_value(v)}" for k, v in point.items())]
    )
    text = to_json(dict(sorted(words.items())))
    return RunSpec(label, seed, words.get("rounds", 1), None, None, text)


def short_rounds(found: Experiment, rounds: int) -> int:
    """Return the rounds of a run of a search."""
    return min(found.tune_rounds or rounds, rounds)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def narrow(
    found: Experiment,
    *,
    seeds: int | None = None,
    rounds: int | None = None,
    tasks: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
) -> Experiment:
    """Return the experiment with fewer tasks and methods, or other rounds and seeds."""
    if seeds is not None:
        check_int("run", "seeds", seeds)
        found = replace(found, seeds=seeds)
    if rounds is not None:
        check_int("run", "rounds", rounds)
        other = [replace(t, words={**t.words, "rounds": rounds}) for t in found.tasks]
        rows = [
            replace(r, words={k: v for k, v in r.words.items() if k != "rounds"})
            for r in found.rows
        ]
        found = replace(found, tasks=tuple(other), rows=tuple(rows))
    if tasks is not None:
        asked = _match_names("task", tasks, {t.name: t.name for t in found.tasks})
        found = replace(
            found,
            tasks=tuple(t for t in found.tasks if t.name in asked),
            rows=tuple(r for r in found.rows if r.task in asked),
        )
    if methods is not None:
        labels = {n: n for r in found.rows for n in (r.label, r.base)}
        asked = _match_names("method", methods, labels)
        kept = tuple(r for r in found.rows if r.label in asked or r.base in asked)
        left = {r.task for r in kept}
        found = replace(found, rows=kept, tasks=tuple(t for t in found.tasks if t.name in left))
    if not found.rows:
        raise ArgumentError("No method is left in these tasks.")
    return found


def _match_names(what: str, asked: Iterable[str], known: Mapping[str, str]) -> set[str]:
    lower = {name.lower(): name for name in known}
    out = set()
    for name in asked:
        if name.strip().lower() not in lower:
            raise unknown_name(what, name, known)
        out.add(lower[name.strip().lower()])
    return out


def run_path(folder: Path, one: RunSpec) -> Path:
    """Return the file of a run."""
    return folder / "runs" / f"{one.key}.json"
