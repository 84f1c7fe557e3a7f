"""Runs that are kept: one line of JSON per run, a few kB, so that they can be committed.

experiments/P1/results/table2-paper.jsonl has the runs of P1-table2 at paper size. A line has the
run's key, specification and settings, how it ended, where and by which code it was made, the
columns of its history that the experiment needs, and its last round. A run counts for every
experiment that has a run with the same key and needs no other columns.

experiments/queue.toml lists what was withdrawn, with the reason: such a run counts as missing.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefree.core.errors import ArgumentError, first_line
from tunefree.core.files import read_file, to_json, write_atomically
from tunefree.training.folder import is_history_row
from tunefree.training.run import Run

from .runner import load_run
from .runs import RunSpec, run_path
from .spec import Experiment

Line = dict[str, Any]
TOTALS = ("seconds", "gradients")  # columns that count in sums, whether they are kept or not
WITHDRAWN = ("experiments", "methods", "keys", "code", "before")


def needed_columns(found: Experiment) -> list[str]:
    """Return the columns of a history that the experiment's tables, claims and curves need."""
    numbers = (*found.show, *(claim.by for claim in found.claims))
    names = {found.measure, *found.curves, *(n.measure for n in numbers)}
    names |= {n.how for n in numbers if n.target is not None}
    return sorted((names | {found.x}) - {"round", "rounds"})


def make_line(experiment: str, spec: RunSpec, run: Run, columns: Sequence[str]) -> Line:
    """Return the line of a run that has ended."""
    rows = [{k: _shorten(v) for k, v in row.items()} for row in run.history]
    kept = [c for c in columns if any(row.get(c) is not None for row in rows)]
    line = {
        "key": spec.key,
        "experiment": experiment,
        "label": spec.label,
        "seed": spec.seed,
        "status": run.status,
        "made": run.settings.get("made", {}),
        "words": spec.words,
        "settings": _shorten_settings(run.settings),
        "columns": sorted(columns),
        "rounds": [row.get("round", i) for i, row in enumerate(rows)],
        "history": {c: [row.get(c) for row in rows] for c in kept},
        "last": rows[-1] if rows else {},
        "totals": {c: _shorten(sum(r.get(c) or 0 for r in run.history)) for c in TOTALS},
    }
    if line["rounds"] == list(range(len(rows))):
        line["rounds"] = len(rows)
    for name, values in line["history"].items():
        if all(v == values[0] for v in values):
            line["history"][name] = values[0]
    return line


def _shorten(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _shorten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the picture of the clients' labels."""
    out = {k: v for k, v in settings.items() if k != "made"}
    if isinstance(out.get("data"), dict):
        out["data"] = {k: v for k, v in out["data"].items() if k != "picture"}
    return out


def make_run(line: Line) -> Run | None:
    """Return the run of a line; None if the line is damaged."""
    try:
        at = line["rounds"] if isinstance(line["rounds"], list) else list(range(line["rounds"]))
        columns = {
            name: values if isinstance(values, list) else [values] * len(at)
            for name, values in line["history"].items()
        }
        rows: list[dict[str, Any]] = [
            {"round": t} | {c: v[i] for c, v in columns.items() if v[i] is not None}
            for i, t in enumerate(at)
        ]
        if rows:
            rows[-1] = dict(line["last"])
            for name in TOTALS:
                if name not in columns:
                    rows[-1][name] = line["totals"][name]
        settings = dict(line["settings"]) | ({"made": line["made"]} if line["made"] else {})
        status = line["status"]
    except (KeyError, TypeError, IndexError, ValueError):
        return None
    if not all(map(is_history_row, rows)) or not isinstance(status, str):
        return None
    nothing = torch.empty(0)
    return Run(nothing, nothing, rows, settings, status)


@dataclass(frozen=True)
class Withdrawal:
    """Runs that do not count; every condition that is given must hold.

    Args:
        why: The reason.
        experiments: Names of experiments.
        methods: Names of methods as in the catalogue.
        keys: Keys of runs.
        code: Digests of the code that made them.
        before: A date, as in "2026-11-18"; those made earlier.
    """

    why: str
    experiments: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    before: str = ""

    def covers(self, line: Line) -> bool:
        """Return whether a run is withdrawn."""
        made = line.get("made", {})
        tests = (
            (self.experiments, line["experiment"] in self.experiments),
            (self.methods, line["words"].get("method") in self.methods),
            (self.keys, line["key"] in self.keys),
            (self.code, made.get("code") in self.code),
            (self.before, made.get("date", "") < self.before),
        )
        return all(holds for given, holds in tests if given)


def read_queue(place: Path) -> dict[str, Any]:
    """Return the content of queue.toml; empty if there is none."""
    path = place / "queue.toml"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path} cannot be read: {first_line(error)}.") from None


def read_withdrawals(place: Path) -> list[Withdrawal]:
    """Return what queue.toml withdraws."""
    out = []
    for table in read_queue(place).get("withdrawn", []):
        given = {k: v for k, v in table.items() if k != "why"}
        if not table.get("why") or not given or not given.keys() <= set(WITHDRAWN):
            raise ArgumentError(
                f"queue.toml: [[withdrawn]] must have a why and some of {', '.join(WITHDRAWN)}, "
                f"got {table!r}."
            )
        lists = {k: tuple(v) for k, v in given.items() if k != "before"}
        out.append(Withdrawal(table["why"], before=str(given.get("before", "")), **lists))
    return out


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; one that was cut short or changed is left out."""
    out = []
    for text in read_file(path).splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
            if RunSpec("", 0, 0, None, None, to_json(line["words"])).key != line["key"]:
                continue
        except (ValueError, KeyError, TypeError):
            continue
        if make_run(line) is not None:
            out.append(line)
    return out


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write lines in an order that does not depend on when they were made."""
    ordered = sorted(lines, key=lambda one: (one["experiment"], one["label"], one["seed"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(to_json(line) + "\n" for line in ordered).encode())


def kept_files(place: Path) -> list[Path]:
    """Return the files of kept runs."""
    return sorted(place.glob("*/results/*-paper.jsonl"))


def kept_path(place: Path, experiment: str) -> Path:
    """Return the file of an experiment's kept runs."""
    paper, _, what = experiment.partition("-")
    return place / paper / "results" / f"{what}-paper.jsonl"


class Kept:
    """Kept runs by key; of several with the same key the one that is not withdrawn.

    Args:
        withdrawals: What does not count.
    """

    def __init__(self, withdrawals: Sequence[Withdrawal] = ()) -> None:
        self._withdrawals = withdrawals
        self.lines: dict[str, Line] = {}

    @classmethod
    def at(cls, place: Path) -> "Kept":
        """Return the kept runs of a folder of experiments."""
        kept = cls(read_withdrawals(place))
        for path in kept_files(place):
            for line in read_lines(path):
                kept.add(line)
        return kept

    def reason(self, line: Line) -> str:
        """Return why a run does not count, "" if it does."""
        return next((w.why for w in self._withdrawals if w.covers(line)), "")

    def add(self, line: Line) -> bool:
        """Add a run; return whether it is new, or replaces one that was withdrawn or had less."""
        old = self.lines.get(line["key"])
        if old is not None and self._rank(old) >= self._rank(line):
            return False
        self.lines[line["key"]] = line
        return True

    def _rank(self, line: Line) -> tuple[bool, int]:
        return not self.reason(line), len(line["columns"])

    def has(self, key: str, columns: Sequence[str]) -> bool:
        """Return whether there is a run that counts and has these columns."""
        line = self.lines.get(key)
        if line is None or self.reason(line):
            return False
        return set(columns) <= set(line["columns"])

    def find(self, key: str, columns: Sequence[str]) -> Run | None:
        """Return a run that counts and has these columns, or None."""
        return make_run(self.lines[key]) if self.has(key, columns) else None

    def finder(self, found: Experiment) -> Callable[[RunSpec], Run | None]:
        """Return what finds the runs of an experiment."""
        columns = needed_columns(found)
        return lambda spec: self.find(spec.key, columns)


def take_lines(folder: Path, runs: Mapping[str, tuple[str, RunSpec, Sequence[str]]]) -> list[Line]:
    """Return lines of the runs that have ended in a folder.

    Args:
        folder: As `python -m experiments --out` has it.
        runs: By key, the experiment, the run and the columns to keep.
    """
    out = []
    for experiment, spec, columns in runs.values():
        run = load_run(run_path(folder, spec))
        if run is not None:
            out.append(make_line(experiment, spec, run, columns))
    return out
