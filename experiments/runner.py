"""Training the runs that are missing: one file per run, in this process or in several.

A run leaves runs/KEY.json with its specification, history, settings and status, and the machine it
was trained on. Nothing else is written during training, so an interrupted run starts again, unless
`checkpoint_every` is given (and safetensors is installed).
"""

import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import torch
from benchmarks.keep import machine, versions

import tunefree
from tunefree.core.device import find_device
from tunefree.core.files import read_file, to_json, write_atomically
from tunefree.study.pool import RunPool
from tunefree.study.tasks import (
    NOT_RUN,
    FailedRun,
    Outcome,
    ProgressListener,
    run_one,
)
from tunefree.training.callbacks import Callback
from tunefree.training.folder import is_history_row
from tunefree.training.run import Run

from .runs import RunSpec, run_path
from .source import ExperimentSource
from .special import SPECIAL


class Runner:
    """Trains runs in this process, or in several that stay until the end.

    Args:
        source: Builds models, federations and configurations of runs.
        folder: Where runs are saved.
        watch: Shows progress.
        jobs: Processes; with 0 nothing is trained.
        kept: Returns a run that was kept elsewhere, or None; asked where the folder has none.
    """

    def __init__(
        self,
        source: ExperimentSource,
        folder: Path,
        watch: ProgressListener,
        jobs: int,
        kept: Callable[[RunSpec], Run | None] = lambda run: None,
    ) -> None:
        self.source, self.folder, self.watch, self.jobs = source, folder, watch, jobs
        self._kept = kept
        self.trained = 0  # runs that were missing
        train = partial(train_run, source=source, folder=folder)
        self._pool = RunPool(train, self._load, jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()

    def perform(self, runs: Sequence[RunSpec]) -> Iterator[tuple[RunSpec, Outcome]]:
        """Train the runs that are missing and yield every one, those that exist first."""
        unique = list({run.key: run for run in runs}.values())
        self.watch.on_plan(unique)
        missing = []
        for run in unique:
            found = self.find(run)
            if found is None:
                missing.append(run)
                continue
            self.watch.on_end(run, found, False)
            yield run, found
        if not self.jobs:
            yield from ((run, FailedRun(run.seed, NOT_RUN)) for run in missing)
            return
        for run, outcome, _ in self._pool.run(missing, self.watch):
            self.trained += 1
            self.watch.on_end(run, outcome, True)
            yield run, outcome

    def find(self, run: RunSpec) -> Run | None:
        """Return a run that has ended, or None."""
        return load_run(run_path(self.folder, run)) or self._kept(run)

    def _load(self, run: RunSpec) -> Outcome:
        return self.find(run) or FailedRun(run.seed, NOT_RUN)


def load_run(path: Path) -> Run | None:
    """Return a run that has ended, or None."""
    try:
        found = json.loads(read_file(path))
        status, history, settings = found["status"], found["history"], found["settings"]
        right = (
            isinstance(settings, dict)
            and isinstance(history, list)
            and all(map(is_history_row, history))
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not right:
        return None
    if "made" in found:
        settings["made"] = found["made"]
    nothing = torch.empty(0)
    return Run(nothing, nothing, history, settings, status, path)


def save_run(path: Path, spec: RunSpec, run: Run, seconds: float) -> None:
    """Write a run that has ended to its file."""
    facts = {
        "label": spec.label,
        "words": spec.words,
        "status": run.status,
        "seconds": seconds,
        "made": run.settings["made"],
        "settings": {k: v for k, v in run.settings.items() if k != "made"},
        "history": run.history,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_json(facts).encode())


def live_path(folder: Path, spec: RunSpec) -> Path:
    """Return the folder of a run that has not ended."""
    return folder / "live" / spec.key


@cache
def digest_code() -> str:
    """Return a name for the code that trains runs: a digest of its files."""
    digest, here = hashlib.sha256(), Path(__file__).parent
    package = Path(tunefree.__file__).parent
    for root, files in ((package, package.rglob("*.py")), (here, here.glob("*.py"))):
        for path in sorted(files):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def describe_origin(device: str) -> dict[str, Any]:
    """Return the machine, the versions, the date and the code of a run."""
    return {
        "machine": machine(find_device(device)),
        "versions": versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "code": digest_code(),
    }


def train_run(
    spec: RunSpec, callback: Callback, source: ExperimentSource, folder: Path
) -> tuple[Outcome, bool]:
    """Train one run and save it; a failure is returned and not saved.

    Returns:
        The outcome, and True: the run was trained.
    """
    began, words = time.perf_counter(), spec.words
    if words["kind"] in SPECIAL:
        outcome = SPECIAL[words["kind"]](spec, source)
        if isinstance(outcome, Run):
            outcome.history[0]["seconds"] = time.perf_counter() - began
    else:
        resumable = words.get("checkpoint_every") and importlib.util.find_spec("safetensors")
        live = live_path(folder, spec) if resumable else None
        outcome, _ = run_one(replace(spec, out=live), callback, source.inputs)
    if isinstance(outcome, Run):
        outcome.settings["made"] = describe_origin(source.device)
        save_run(run_path(folder, spec), spec, outcome, time.perf_counter() - began)
        shutil.rmtree(live_path(folder, spec), ignore_errors=True)
    return outcome, True
