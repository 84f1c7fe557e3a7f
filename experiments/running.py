"""Running an experiment: train what is missing, compare with the paper."""

import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tunefree.core.device import find_device
from tunefree.core.errors import ArgumentError, Interrupted, check_int
from tunefree.study.pool import make_progress
from tunefree.study.tasks import FailedRun, Outcome, ProgressListener
from tunefree.training.run import Run

from . import page, text
from .earlier import add_earlier_rows
from .kept import Kept
from .library import load
from .record import Record, apply_spec, record_path, save
from .record import load as load_record
from .runner import Runner
from .runs import RunSpec, make_run, narrow
from .source import ExperimentSource
from .spec import Experiment
from .study import ExperimentStudy


@dataclass(frozen=True)
class Result:
    """The result of an experiment.

    Attributes:
        record: Everything as plain data.
        groups: The runs by task and method, one for each seed that has one.
        path: The folder.
    """

    record: Record
    groups: dict[str, list[Run]]
    path: Path

    def markdown(self) -> str:
        """Return the table, the claims and the assumptions in markdown."""
        return text.markdown(self.record)

    def write(self) -> Path:
        """Write record, markdown and page into the folder; return the page."""
        name = f"{self.record['name']}-{self.record['scale']}"
        save(self.record, self.path / f"{name}.json")
        (self.path / f"{name}.md").write_text(self.markdown(), "utf-8")
        return page.write(self.record, self.groups, self.path / f"{name}.html")


def run(
    name: str | os.PathLike[str],
    *,
    scale: str = "small",
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
    tasks: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    device: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    keep: bool = False,
    progress: bool = True,
    watch: ProgressListener | None = None,
) -> Result:
    """Run an experiment of a paper and set the result beside the published one.

    Runs that are in the folder are read, not repeated; Ctrl-C raises `Interrupted` with the result
    so far. Needs only PyTorch and NumPy.

    Args:
        name: Such as "P1-table2", or the path of a specification.
        scale: "small", minutes on two cores; "paper", the paper's own size, for a GPU.
        out: Folder; by default runs/experiments/NAME-SCALE.
        jobs: Processes that train runs, each with one thread; by default 2 on a CPU with two
            cores or more, and 1 on a GPU, which several may share. With 0 nothing is trained: the
            result is that of the runs in the folder and of those that are kept.
        seeds: Instead of the specification's: 0 .. seeds-1.
        rounds: Instead of the specification's; beside the numbers it is said that it is shorter.
        tasks: Only these.
        methods: Only these, by their names in the table.
        device: As `fit` takes it.
        data_dir: Where datasets are looked for first.
        keep: Also write experiments/PAPER/results/WHAT-SCALE.json, with the rows that were there
            and have no run in this call.
        progress: Show progress on standard error.
        watch: Shows progress instead.
    """
    spec = load(name)
    full = spec.at(scale)
    found = narrow(full, seeds=seeds, rounds=rounds, tasks=tasks, methods=methods)
    folder = Path("runs") / "experiments" / f"{found.name}-{scale}" if out is None else Path(out)
    where = find_device(device)
    if jobs is not None:
        check_int("run", "jobs", jobs, low=0)
    count = count_workers(jobs, where)
    count = min(1, count) if found.alone else count
    source = ExperimentSource(device, None if data_dir is None else Path(data_dir))
    given = format_options(seeds=seeds, rounds=rounds, tasks=tasks, methods=methods)
    _make(folder)
    looking = watch or _make_progress(progress)
    stopped, began = False, time.perf_counter()
    kept = Kept.at(spec.path.parents[1]) if count == 0 else Kept()
    with looking, Runner(source, folder, looking, count, kept.finder(found)) as runner:
        study = ExperimentStudy(found, runner)
        try:
            study.check()
            study.search()
            study.play()
        except KeyboardInterrupt:
            stopped = True
    record = {**study.make_record(where, given), "cut": list_cuts(full, found)}
    if runner.trained and runner.trained == len(study.done) and not stopped:
        record |= {"wall": round(time.perf_counter() - began, 1), "jobs": count}
    facts = apply_spec(record, found)
    result = Result(facts, study.groups(), folder)
    result.write()
    if stopped:
        raise Interrupted(f"Stopped by Ctrl-C; what was played is in {str(folder)!r}.", result)
    if keep:
        path = record_path(spec, scale)
        if path.exists():
            facts = apply_spec(add_earlier_rows(record, load_record(path), full), full)
        save(facts, path)
    return result


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"run(out=...) must be a folder that can be written, got {str(folder)!r}: "
            f"{error.strerror or error}."
        ) from None


def count_workers(jobs: int | None, device: torch.device) -> int:
    """Return the number of processes."""
    if jobs is not None:
        return jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 2 if device.type == "cpu" and (cores or 1) >= 2 else 1


def _make_progress(progress: bool) -> ProgressListener:
    try:
        return make_progress(progress)
    except ImportError:  # no rich
        return LineProgress()


class LineProgress(ProgressListener):
    """Prints a line for each run, if rich is not installed."""

    def __init__(self) -> None:
        self._done = self._all = 0

    def on_plan(self, tasks: Sequence[Any]) -> None:
        """Count the runs to come."""
        self._all += len(tasks)

    def on_end(self, task: Any, outcome: Outcome, trained: bool) -> None:
        """Print the outcome of a run."""
        self._done += 1
        said = outcome.reason if isinstance(outcome, FailedRun) else outcome.status
        if trained:
            self.on_message(f"{self._done} of {self._all}  {task.label}, seed {task.seed}: {said}")

    def on_message(self, text: str) -> None:
        """Print a line at once."""
        print(text, flush=True)


def format_options(**given: Any) -> str:
    """Return the options that make an experiment smaller than its specification, as typed.

    >>> format_options(seeds=2, tasks=["a", "b"], rounds=None)
    '--seeds 2 --tasks a,b'
    """
    words = []
    for key, value in given.items():
        if value is not None:
            words += [f"--{key}", str(value) if isinstance(value, int) else ",".join(value)]
    return shlex.join(words)


def list_cuts(full: Experiment, found: Experiment) -> list[str]:
    """Return sentences about what is shorter than the specification, and so than the paper."""
    out = []
    if found.seeds < full.seeds:
        out.append(f"{found.seeds} seed{'s' if found.seeds > 1 else ''} instead of {full.seeds}.")
    said: dict[str, None] = {}
    for row in found.rows:
        now = {**found.of(row.task).words, **row.words}.get("rounds")
        whole_row = next(r for r in full.rows if (r.task, r.label) == (row.task, row.label))
        before = {**full.of(row.task).words, **whole_row.words}.get("rounds")
        if now is not None and before is not None and now < before:
            said[f"Shorter than the paper: {now} rounds instead of {before}."] = None
    return out + list(said)


def plan_runs(
    name: str | os.PathLike[str],
    scale: str,
    *,
    seeds: int | None = None,
    rounds: int | None = None,
    tasks: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
) -> tuple[Experiment, list[tuple[RunSpec, int]]]:
    """Return the experiment and its runs with their counts, grids before final runs."""
    found = narrow(load(name).at(scale), seeds=seeds, rounds=rounds, tasks=tasks, methods=methods)
    skipped = {t.name for t in found.tasks if t.skip}
    out: dict[str, tuple[RunSpec, int]] = {}
    for row in found.rows:
        if row.task in skipped or row.skip:
            continue
        if len(row.points) > 1:
            one = make_run(found, replace(row, label=f"{row.label}, grid"), {}, 0, tuning=True)
            out[f"{row.task} {row.label} grid"] = (one, len(row.points))
        out[f"{row.task} {row.label}"] = (make_run(found, row, {}, 0), found.seeds)
    return found, list(out.values())
