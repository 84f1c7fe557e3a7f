"""The order of the paper-size runs: what is next, what it costs, what has to wait.

experiments/queue.toml has the order and the numbers behind the estimates; what it does not name
comes last. A grid is searched before the runs that use its settings, which wait until then.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tunefree.core.errors import ArgumentError
from tunefree.study.tasks import NOT_RUN, ProgressListener

from .kept import Kept, needed_columns, read_queue
from .library import find, load
from .runner import Runner
from .runs import RunSpec, make_run
from .source import ExperimentSource
from .spec import Experiment, Row
from .study import ExperimentStudy

ENTRY = ("experiment", "tasks", "methods", "seeds", "side")
UNKNOWN = (10.0, 1000)  # a step of a model that queue.toml has no number for
SIDE = 4  # runs side by side on one GPU, if the queue does not say


@dataclass(frozen=True)
class Entry:
    """Some of an experiment's runs that are trained together.

    Args:
        experiment: Its name.
        found: The experiment with the entry's tasks, methods and seeds alone.
        whole: The same with all of them.
        side: How many of its runs share a GPU, at most.
        hold: Why none of it is trained now; "" if it is.
    """

    experiment: str
    found: Experiment
    whole: Experiment
    side: int
    hold: str = ""


@dataclass(frozen=True)
class Item:
    """A run of the queue.

    Args:
        entry: Where it comes from.
        spec: The run. Of one that waits for a grid the settings are those of its first point.
        key: The run's key; "" if its settings are not known yet.
        grid: The experiment, task and method whose grid it searches; "" if it searches none.
    """

    entry: Entry
    spec: RunSpec
    key: str
    grid: str = ""

    @property
    def name(self) -> str:
        """Experiment, task, method and seed, for messages."""
        about = "grid" if self.grid else f"seed {self.spec.seed}"
        return f"{self.entry.experiment}, {self.spec.label}, {about}"


def read_entries(place: Path | None = None) -> tuple[list[Entry], dict[str, Any]]:
    """Return the queue's entries in order, the rest of the experiments last, and queue.toml."""
    known = find(place)
    folder = place or (next(iter(known.values())).parents[1] if known else Path())
    facts = read_queue(folder)
    hold, out = facts.get("hold", {}), []
    for name in hold:
        _check_name(name, known)
    specs = {name: load(name, place) for name in known}
    at = {name: spec.at("paper") for name, spec in specs.items() if "paper" in spec.scales}
    for table in facts.get("take", []):
        unknown = table.keys() - set(ENTRY)
        if unknown or "experiment" not in table:
            raise ArgumentError(
                f"queue.toml: [[take]] must have an experiment and may have {', '.join(ENTRY[1:])},"
                f" got {table!r}."
            )
        name = table["experiment"]
        _check_name(name, at)
        part = _part(at[name], table)
        out.append(Entry(name, part, at[name], table.get("side", SIDE), hold.get(name, "")))
    sides = {one.experiment: one.side for one in out}
    out += [
        Entry(name, one, one, sides.get(name, SIDE), hold.get(name, "")) for name, one in at.items()
    ]
    return out, facts


def _check_name(name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ArgumentError(f"queue.toml: there is no experiment {name!r} of paper size.")


def _part(found: Experiment, table: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the tasks and methods that match an entry's patterns."""

    def is_asked(name: str, what: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in table.get(what, ["*"]))

    for what, names in (
        ("tasks", [t.name for t in found.tasks]),
        ("methods", [n for r in found.rows for n in (r.label, r.base)]),
    ):
        for pattern in table.get(what, []):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ArgumentError(
                    f"queue.toml: no {what[:-1]} of {found.name} matches {pattern!r}."
                )
    rows = tuple(
        row
        for row in found.rows
        if is_asked(row.task, "tasks")
        and (is_asked(row.label, "methods") or is_asked(row.base, "methods"))
    )
    left = {row.task for row in rows}
    return replace(
        found,
        seeds=min(table.get("seeds", found.seeds), found.seeds),
        rows=rows,
        tasks=tuple(t for t in found.tasks if t.name in left),
    )


def list_items(entries: Sequence[Entry], kept: Kept) -> tuple[list[Item], dict[str, list[str]]]:
    """Return the runs of the queue in order, each once, and by key the columns they must keep."""
    out: dict[str, Item] = {}
    columns: dict[str, set[str]] = {}
    for entry in entries:
        needed = needed_columns(entry.whole)
        for item in _entry_items(entry, kept):
            out.setdefault(item.key or item.spec.text, item)
            columns.setdefault(item.key, set()).update(needed)
    return list(out.values()), {key: sorted(names) for key, names in columns.items()}


def _entry_items(entry: Entry, kept: Kept) -> Iterator[Item]:
    found = entry.found
    nowhere = Path("no folder")
    runner = Runner(ExperimentSource(), nowhere, ProgressListener(), 0, kept.finder(entry.whole))
    study = ExperimentStudy(found, runner)
    study.search()
    for row in study.rows:
        grid = f"{entry.experiment}, {row.task}: {row.label}"
        yield from (Item(entry, one, one.key, grid) for one in study.tries(row))
    yield from (Item(entry, one, one.key) for one in study.final())
    for row in study.rows:
        if _waits(study, row):
            for seed in range(found.seeds):
                yield Item(entry, make_run(found, row, row.points[0], seed), "")


def _waits(study: ExperimentStudy, row: Row) -> bool:
    """Return whether the grid of a row is not searched to the end yet."""
    outcomes = [study.done[one.key] for one in study.tries(row)]
    return any(getattr(o, "reason", "") == NOT_RUN for o in outcomes)


@dataclass(frozen=True)
class Costs:
    """Estimates of what a run takes, from kept runs or from the numbers in queue.toml.

    Args:
        start: Seconds besides the steps: data, compilation.
        evaluation: Seconds of an evaluation.
        step: By model, and by "model:precision" where it was measured, the milliseconds of a local
            step of the cohort, and the samples in it.
        method: A factor for methods that need more than a gradient.
        samples: By dataset, the training rows; for steps that are given in epochs.
        measured: Seconds of runs that were trained, by their specification without the seed.
    """

    start: float = 10.0
    evaluation: float = 0.1
    step: Mapping[str, Sequence[float]] = field(default_factory=dict)
    method: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, spec: RunSpec) -> float:
        """Return the seconds that a run takes alone on a GPU."""
        words = spec.words
        measured = self.measured.get(_without_seed(words))
        if measured is not None:
            return measured
        rounds = words.get("rounds", 1)
        clients = words.get("clients") or 1
        cohort = words.get("cohort") or clients
        batch = words.get("batch", 50) or 50
        steps = words.get("steps", 10)
        if "epochs" in words:
            rows = words.get("rows") or self.samples.get(words.get("data", ""), 50_000)
            steps = words["epochs"] * math.ceil(rows / clients / batch)
        model = words.get("model", "")
        exact = self.step.get(f"{model}:{words.get('precision')}")
        ms, samples = exact or self.step.get(model, UNKNOWN)
        factor = max(self.method.get(n, 1.0) for n in words.get("method", "").split("+"))
        work = rounds * steps * ms / 1000 * max(1.0, cohort * batch / samples) * factor
        return float(self.start + work + rounds / words.get("eval_every", 1) * self.evaluation)


def _without_seed(words: Mapping[str, Any]) -> str:
    free = ("seed", "checkpoint_every")
    return json.dumps({k: v for k, v in words.items() if k not in free}, sort_keys=True)


def read_costs(facts: Mapping[str, Any], kept: Kept) -> Costs:
    """Return the estimates of queue.toml and of the kept runs that a GPU made."""
    took: dict[str, list[float]] = {}
    for line in kept.lines.values():
        if line["made"].get("machine", {}).get("gpu"):
            took.setdefault(_without_seed(line["words"]), []).append(line["totals"]["seconds"])
    known = facts.get("cost", {})
    unknown = known.keys() - {"start", "evaluation", "step", "method", "samples"}
    if unknown:
        raise ArgumentError(f"queue.toml: [cost] has no {', '.join(sorted(unknown))}.")
    return Costs(**known, measured={k: max(v) for k, v in took.items()})
