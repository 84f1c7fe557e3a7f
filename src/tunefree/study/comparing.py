"""Comparing methods: who takes part, the runs, the result."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import Interrupted, check_finite
from ..methods import Method
from . import names, searching
from .comparison import Comparison, write
from .execute import make_progress, run_all
from .keep import task
from .names import Entrant
from .source import MakeFederation, MakeModel, PythonStudy, StudyConfig, check
from .tuning import Tuning
from .work import NOT_RUN, Failure, Outcome, Watch, standing


def compare(
    model: MakeModel,
    federation: MakeFederation,
    methods: Sequence[str | Method] | Mapping[str, str | Method | Tuning],
    *,
    seeds: int | Sequence[int] = 3,
    out: str | os.PathLike[str] | None = None,
    target: float | None = None,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Train with several methods on the same clients, cohorts, batches and starts.

    A method that fails or diverges is marked; the others go on. Call it again with the same `out`
    and only what is missing is trained.

    Args:
        model: A module, the start of every seed; or a function f(seed) that makes one, called once
            per seed under that seed of torch.
        federation: Who owns which samples; or a function f(seed).
        methods: Names (with settings as in "fedavg:lr=0.1", or "fedavg:tuned" to search them
            first, on the first seed) and Methods; or a dict of them by label, which may also hold
            what `tune` returned.
        seeds: How many, or which ones.
        out: Folder for the runs; None writes nothing.
        target: Score that the table counts up to; None takes 95 % of the best final mean.
        progress: Show progress on standard error.
        **settings: Further arguments of `fit`, the same for all runs.

    >>> import torch
    >>> from tunefree import Federation
    >>> fed = Federation([[0.0], [1.0]], [0, 1], owner=[0, 1], test=([[0.0], [1.0]], [0, 1]))
    >>> found = compare(torch.nn.Linear(1, 2), fed, ["fedavg", "auto"], seeds=2, rounds=2,
    ...                 steps=1, device="cpu", progress=False)
    >>> [row["label"] for row in found.table()]
    ['fedavg', 'auto']
    """
    names.check_settings("compare", settings)
    tuned: dict[str, Tuning] = {}
    if isinstance(methods, Mapping):
        tuned = {str(k): v for k, v in methods.items() if isinstance(v, Tuning)}
        methods = {k: v.method if isinstance(v, Tuning) else v for k, v in methods.items()}
    return contest(
        names.entrants(methods),
        names.seeds(seeds),
        PythonStudy.create(model, federation, settings),
        out=None if out is None else Path(out),
        target=target,
        watch=make_progress(progress),
        tunings={label: found.spent() for label, found in tuned.items()},
    )


def contest(
    entrants: list[Entrant],
    seeds: list[int],
    study: StudyConfig,
    *,
    out: Path | None,
    target: float | None = None,
    watch: Watch,
    jobs: int = 1,
    tunings: dict[str, dict[str, Any]] | None = None,
    words: Mapping[str, Any] | None = None,
) -> Comparison:
    """Check, run what is missing, and return the result; Ctrl-C raises `Interrupted` with it."""
    if target is not None:
        check_finite("compare", "target", target)
    check(study, entrants, seeds[0])
    match = _Contest(entrants, seeds, study, out, target, dict(tunings or {}), words)
    try:
        with watch:
            match.tune(watch, jobs)
            match.play(watch, jobs)
    except KeyboardInterrupt:
        where = "" if out is None else f" Call compare again with out={str(out)!r}."
        raise Interrupted(f"Stopped by Ctrl-C.{where}", match.result()) from None
    return match.result()


class _Contest:
    """A comparison under way."""

    def __init__(
        self,
        entrants: list[Entrant],
        seeds: list[int],
        study: StudyConfig,
        out: Path | None,
        target: float | None,
        tunings: dict[str, dict[str, Any]],
        words: Mapping[str, Any] | None,
    ) -> None:
        self.labels, self.seeds, self.study = [e.label for e in entrants], seeds, study
        self.out, self.target, self.tunings, self.words = out, target, tunings, words
        self.ready = {e.label: e for e in entrants}
        self.grids = {e.label: searching.grid_of(e) for e in entrants if e.tuned}
        self.done: dict[tuple[str, int], Outcome] = {}
        nothing: dict[str, list[Outcome]] = {
            label: [Failure(seed, NOT_RUN) for seed in seeds] for label in self.labels
        }
        self._write(nothing)  # from the start a folder that can be read and continued

    def tune(self, watch: Watch, jobs: int) -> None:
        """Put the best settings of its grid in the place of each method that is to be tuned."""
        for label, grid in self.grids.items():
            folder = None if self.out is None else self.out / "tuning" / names.place(label)
            tuning = searching.search(
                grid, self.seeds[:1], self.study, out=folder, watch=watch, jobs=jobs
            )
            self.tunings[label] = tuning.spent()
            found = tuning.ranked()
            if found:
                self.ready[label] = replace(found[0].entrant, label=label)
            else:
                reason = tuning.sentences[0]
                self.done |= {(label, seed): Failure(seed, reason) for seed in self.seeds}
                del self.ready[label]

    def play(self, watch: Watch, jobs: int) -> None:
        """Run every method with every seed, seed by seed."""
        ready, rounds = list(self.ready.values()), self.study.rounds
        tasks = [task(self.out, e.label, seed, rounds) for seed in self.seeds for e in ready]
        for one, outcome in run_all(tasks, self.study.source(ready), watch, jobs):
            self.done[one.label, one.seed] = outcome

    def result(self) -> Comparison:
        """Return what there is so far, and write it down."""
        return self._write(
            {label: [self._outcome(label, seed) for seed in self.seeds] for label in self.labels}
        )

    def _outcome(self, label: str, seed: int) -> Outcome:
        found = self.done.get((label, seed))
        return found or standing(task(self.out, label, seed, self.study.rounds))

    def _write(self, runs: dict[str, list[Outcome]]) -> Comparison:
        found = Comparison(runs, self.seeds, self.target, self.tunings, self.out)
        if self.out is not None:
            write(self.out, found, self.words)
        return found
