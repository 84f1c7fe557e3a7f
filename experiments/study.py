"""The course of an experiment: check its data, search its grids, train its seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tunefree.core.errors import ArgumentError, TunefreeError
from tunefree.data import describe
from tunefree.study import measures
from tunefree.study.tasks import NOT_RUN, FailedRun, Outcome
from tunefree.training.bind import bind
from tunefree.training.client_data import SimulatedClients
from tunefree.training.run import Run

from . import named
from .record import Record, RowResult, make_record, sum_search_cost, summarize_origins
from .runner import Runner
from .runs import RunSpec, make_run
from .spec import Experiment, Row
from .special import SPECIAL

MISSING = (
    "Not run: its data is not here; tf.load({0!r}) fetches it, `tunefree datasets` says where it "
    "is looked for."
)


class ExperimentStudy:
    """An experiment while it runs."""

    def __init__(self, found: Experiment, runner: Runner) -> None:
        self.found, self.runner = found, runner
        self.skipped = {t.name: t.skip for t in found.tasks if t.skip}
        self.chosen: dict[tuple[str, str], Mapping[str, Any] | None] = {}
        self.costs: dict[tuple[str, str], dict[str, Any]] = {}
        self.lost: dict[tuple[str, str], str] = {}
        self.done: dict[str, Outcome] = {}

    @property
    def rows(self) -> list[Row]:
        """The rows that are trained."""
        return [r for r in self.found.rows if r.task not in self.skipped and not r.skip]

    def check(self) -> None:
        """Skip tasks whose data is missing; refuse, before training, what cannot be trained."""
        if self.found.kind in SPECIAL and self.found.kind != "peak-memory":
            return
        here = {row["name"]: row["found"] for row in describe(self.runner.source.data_dir)}
        for task in self.found.tasks:
            rows = [r for r in self.rows if r.task == task.name]
            there = [self.runner.find(run) is not None for row in rows for run in self._first(row)]
            if all(there) or (not self.runner.jobs and any(there)):
                continue
            if here[task.words["data"]] == "missing":
                self.skipped[task.name] = MISSING.format(task.words["data"])
                self.runner.watch.on_message(f"{task.name}: {self.skipped[task.name]}")
                continue
            if not self.runner.jobs:
                self.skipped[task.name] = "Not run."
                continue
            self._bind(rows)

    def _first(self, row: Row) -> list[RunSpec]:
        """Return the runs of a row that need no search before."""
        if len(row.points) > 1:
            return self.tries(row)
        return [make_run(self.found, row, row.points[0], s) for s in range(self.found.seeds)]

    def tries(self, row: Row) -> list[RunSpec]:
        """Return the runs that search the grid of a row; none if it has only one setting."""
        if len(row.points) < 2:
            return []
        return [make_run(self.found, row, point, 0, tuning=True) for point in row.points]

    def _bind(self, rows: Sequence[Row]) -> None:
        """Bind the first run of a task, and check the other methods with its plan."""
        first = make_run(self.found, rows[0], rows[0].points[0], 0)
        plan = None
        for row in rows:
            try:
                if plan is None:
                    inputs = self.runner.source.inputs(first)
                    clients = SimulatedClients(inputs.federation)
                    plan = bind(inputs.config, inputs.model, clients).plan
                for point in row.points:
                    settings = make_run(self.found, row, point, 0).words["set"]
                    cohort = row.words.get("cohort", plan.cohort) or plan.clients
                    named.make(row.method, settings).check(replace(plan, cohort=cohort))
            except TunefreeError as error:
                raise ArgumentError(f"{row.label} in {row.task}: {error}") from None

    def search(self) -> None:
        """Choose the settings of every row that has a grid, on the first seed."""
        self._perform([one for row in self.rows for one in self.tries(row)])
        for row in self.rows:
            mine = self.tries(row)
            if not mine:
                continue
            outcomes = [self.done[one.key] for one in mine]
            key = (row.task, row.label)
            ended = [o for o in outcomes if isinstance(o, Run) or o.reason != NOT_RUN]
            if len(ended) < len(outcomes):
                of = f"{len(ended)} of {len(outcomes)} settings were tried"
                self.lost[key] = f"Not run: its grid was not searched to the end, {of}."
                continue
            self.costs[key] = sum_search_cost(outcomes, mine[0].rounds)
            scores = [score(o, self.found.tune_by) for o in outcomes]
            ranked = sorted((-s, i) for i, s in enumerate(scores) if s is not None)
            if not ranked:
                self.lost[key] = "No setting of its grid ended well: " + _reasons(outcomes)
            self.chosen[key] = row.points[ranked[0][1]] if ranked else None

    def play(self) -> None:
        """Train every row with every seed, task by task and seed by seed."""
        self._perform(self.final())

    def final(self) -> list[RunSpec]:
        """Return the runs of the table whose settings are known."""
        order = {t.name: i for i, t in enumerate(self.found.tasks)}
        out = [
            (order[row.task], seed, one)
            for row in self.rows
            for seed in range(self.found.seeds)
            if (one := self._make_run(row, seed)) is not None
        ]
        return [one for _, _, one in sorted(out, key=lambda item: item[:2])]

    def _make_run(self, row: Row, seed: int) -> RunSpec | None:
        point = row.points[0]
        if len(row.points) > 1:
            found = self.chosen.get((row.task, row.label))
            if found is None:
                return None
            point = dict(found)
        return make_run(self.found, row, point, seed)

    def _perform(self, tasks: Sequence[RunSpec]) -> None:
        for one, outcome in self.runner.perform(tasks):
            self.done[one.key] = outcome

    def row_results(self) -> list[RowResult]:
        """Return every row with its runs."""
        out = []
        for row in self.found.rows:
            key = (row.task, row.label)
            reason = self.skipped.get(row.task) or row.skip or self.lost.get(key, "")
            tasks = [] if reason else [self._make_run(row, s) for s in range(self.found.seeds)]
            outcomes = [
                self.done.get(one.key) or self.runner.find(one) or FailedRun(one.seed, NOT_RUN)
                for one in tasks
                if one is not None
            ]
            chosen = self.chosen.get(key) if len(row.points) > 1 else row.points[0] or None
            out.append(RowResult(row, chosen, outcomes, self.costs.get(key), reason))
        return out

    def groups(self) -> dict[str, list[Run]]:
        """Return the runs by task and method."""
        several = len(self.found.tasks) > 1
        return {
            f"{one.row.task}: {one.row.label}" if several else one.row.label: runs
            for one in self.row_results()
            if (runs := [o for o in one.outcomes if isinstance(o, Run)])
        }

    def make_record(self, device: torch.device, narrowed: str) -> Record:
        """Return the record."""
        every = [o for o in self.done.values() if isinstance(o, Run)]
        took = sum(row.get("seconds") or 0 for o in every for row in o.history)
        facts = make_record(self.found, self.row_results(), self.skipped, device, narrowed, took)
        return facts | summarize_origins(
            [o.settings["made"] for o in every if "made" in o.settings]
        )


def score(outcome: Outcome, by: str) -> float | None:
    """Return the score of a run of a grid, higher is better; None if it was lost."""
    if not measures.ended_well(outcome):
        return None
    names = {"test": ["test_accuracy", "test_loss"], "train": []}
    names["validation"] = ["validation_accuracy", "validation_loss"]
    for name in (*names[by], "train_loss"):
        found = [
            v for row in outcome.history if (v := measures.to_float(row.get(name))) is not None
        ]
        if found:
            return found[-1] if measures.is_higher_better(name) else -found[-1]
    return None


def _reasons(outcomes: Sequence[Outcome]) -> str:
    said = [o.reason if isinstance(o, FailedRun) else o.status for o in outcomes]
    return ", ".join(dict.fromkeys(said)) + "."
