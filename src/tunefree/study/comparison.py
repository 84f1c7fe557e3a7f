"""Comparing methods on one problem, seed by seed: the runs and their result."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ..core.errors import Interrupted, check_finite
from ..core.text import format_bytes
from ..methods import Method
from ..report import page
from ..report.collect import COMPARISON, SEARCHES
from ..training.run import Run
from . import measures, tables
from .candidates import Candidate, folder_name, parse_candidates
from .pool import make_progress, run_all
from .significance import LEVEL
from .source import MakeFederation, MakeModel, PythonStudy, Study
from .tasks import NOT_RUN, FailedRun, Outcome, ProgressListener, RunTask, read_outcome, run_folder
from .tuning import Tuning, make_grid, run_search

VERDICTS = ("best", "worse", "not told apart", "not tested")
COLUMNS = {
    "label": "method",
    "final": "",  # the name of the measure
    "best": "best",
    "rounds": "rounds",
    "bytes_up": "sent up",
    "gradients": "gradients",
    "seconds": "seconds",
    "choose": "to choose",
    "tuning": "tuning",
    "against": "vs the best",
}


@dataclass(frozen=True, repr=False)
class Comparison(tables.StudyResult):
    """The result of `compare`.

    Attributes:
        runs: For each label one `Run` per seed, or a `FailedRun` in its place.
        seeds: The seeds, in the order of the runs.
        target: Score up to which the table counts rounds, bytes and gradients; None takes 95 % of
            the best final mean (for a loss, 5 % above it).
        tunings: For each label that was tuned, the cost of that: gradients, bytes_up, bytes_down,
            seconds, runs, and the settings found.
        path: The comparison's folder, or None.
    """

    FILE, KIND = COMPARISON, "comparison"
    KEYS = ("labels", "seeds", "target", "tunings", "failures", "command")
    IMPORTANT = ("label", "final", "against", "rounds", "choose", "tuning")
    runs: dict[str, list[Outcome]]
    seeds: list[int]
    target: float | None = None
    tunings: dict[str, dict[str, Any]] = field(default_factory=dict)
    path: Path | None = None

    @property
    def measure(self) -> str:
        """The measure that methods are ranked by: test_accuracy if there is one, else a loss."""
        return measures.choose_measure(self.runs)

    @property
    def goal(self) -> float | None:
        """The target, or the default one."""
        if self.target is not None:
            return self.target
        return measures.default_target(self.runs, self.measure)

    def table(self) -> list[dict[str, Any]]:
        """Return one row per method as plain data: means over seeds, costs, the test's verdict."""
        return measures.make_rows(self.runs, self.measure, self.goal, self.tunings)

    @property
    def groups(self) -> dict[str, list[Run]]:
        """The runs of each method by its label, without those that failed."""
        return measures.select_runs(self.runs)

    @property
    def columns(self) -> dict[str, str]:
        columns = COLUMNS | {"final": self.measure.removeprefix("test_").replace("_", " ")}
        return columns if self.tunings else {k: v for k, v in columns.items() if k != "tuning"}

    def cells(self) -> list[dict[str, str]]:
        """Return the table as text, one dict per method."""
        return [self._format_row(row) for row in self.table()]

    def _format_row(self, row: Mapping[str, Any]) -> dict[str, str]:
        score = tables.format_mean(row["final"], row["final_sd"])
        lost = f" ({row['lost']})" if score and row["lost"] else row["lost"]
        tuning = row["tuning_gradients"]
        searched = f", {row['tuning_runs']} runs" if row["tuning_runs"] else ""
        up, gradients = row["bytes_up_to_target"], row["gradients_to_target"]
        return {
            "label": row["label"],
            "final": score + lost,
            "best": tables.format_mean(row["best"], row["best_sd"]),
            "rounds": tables.format_rounds(row),
            "bytes_up": "–" if up is None else format_bytes(up),
            "gradients": "–" if gradients is None else f"{gradients:,.0f}",
            "seconds": "" if row["seconds"] is None else f"{row['seconds']:.1f}",
            "choose": row["choose"],
            "tuning": "" if tuning is None else f"{tuning:,.0f} gradients{searched}",
            "against": tables.format_verdict(row),
        }

    @property
    def bold(self) -> set[tuple[int, str]]:
        """The best mean of each column that has one; the fewest rounds, bytes and gradients.

        A method that lost seeds has none of them while another has all of its seeds.
        """
        rows = self.table()
        whole = {i for i, row in enumerate(rows) if row["finished"] == row["seeds"]}
        best = max if measures.is_higher_better(self.measure) else min
        columns = {"final": ("final", best), "best": ("best", best)}
        names = ("rounds", "bytes_up", "gradients")
        columns |= {name: (f"{name}_to_target", min) for name in names}
        out = set()
        for key, (source, choose) in columns.items():
            found = {i: v for i, row in enumerate(rows) if (v := row[source]) is not None}
            found = {i: v for i, v in found.items() if i in whole or not whole}
            if len(rows) > 1 and found:
                out |= {(i, key) for i, v in found.items() if v == choose(found.values())}
        return out

    @property
    def header(self) -> str:
        """What was compared, and what the columns up to the target mean."""
        seeds = ", ".join(map(str, self.seeds))
        parts = []
        if groups := self.groups:
            known = next(iter(groups.values()))[0].settings
            data, steps = known["data"], known["steps"]
            local = f"{known['epochs']} epochs" if steps is None else f"{steps} local steps"
            parts = [
                f"{data['name']}, {data['clients']} clients, {known['cohort']} a round, {local}, "
                f"{known['rounds']} rounds."
            ]
        parts.append(f"Seeds {seeds}." if len(self.seeds) > 1 else f"Seed {seeds}.")
        if self.goal is not None:
            why = ""
            if self.target is None and measures.is_higher_better(self.measure):
                why = f" ({measures.TARGET_SHARE:.0%} of the best final mean)"
            elif self.target is None:
                why = f" ({1 - measures.TARGET_SHARE:.0%} above the best final mean)"
            name = self.measure.replace("_", " ")
            parts.append(f"Rounds, sent up, gradients: until {name} {self.goal:.4f}{why}.")
        return " ".join(parts)

    @property
    def sentences(self) -> list[str]:
        """The result of the paired test, and what happened to lost seeds."""
        rows = self.table()
        out = [self._describe_verdicts(rows)] if len(rows) > 1 else []
        return out + [f"{row['label']}: {row['note']}." for row in rows if row["note"]]

    def _describe_verdicts(self, rows: Sequence[Mapping[str, Any]]) -> str:
        first = next((row["label"] for row in rows if row["verdict"] == "best"), None)
        if first is None:
            return "No method finished, so there is nothing to compare."
        if len(self.seeds) == 1:
            return "One seed cannot tell which differences are real; three or more can."
        labels = {v: ", ".join(r["label"] for r in rows if r["verdict"] == v) for v in VERDICTS}
        test = f"{LEVEL:.0%}, paired t-test over {len(self.seeds)} seeds, Holm"
        out = f"* worse than {first} beyond chance ({test}): {labels['worse'] or 'none'}."
        if labels["not told apart"]:
            out += f" Not told apart from {first}: {labels['not told apart']}."
        if labels["not tested"]:
            why = "seeds lost, or the same difference in every seed"
            out += f" Not tested ({why}): {labels['not tested']}."
        return out

    def _repr_html_(self) -> str:
        runs = self.groups
        return super()._repr_html_() + (page.render_frame(runs, **self._facts()) if runs else "")

    def json(self) -> dict[str, Any]:
        own = {"target": self.goal, "header": self.header, "tunings": self.tunings}
        return super().json() | own

    def _facts(self) -> dict[str, Any]:
        """Return what the page says beyond the runs: verdicts, choices, the cost of tuning."""
        columns = {k: v for k, v in self.columns.items() if k in ("against", "choose", "tuning")}
        if self.goal is not None:
            share = f"{self.goal:.2%}" if self.measure.endswith("accuracy") else f"{self.goal:.4g}"
            columns["rounds"] = f"rounds to {share.replace('%', ' %')}"
        rows = {cells["label"]: {k: cells[k] for k in columns} for cells in self.cells()}
        if self.measure.endswith("accuracy"):  # the page shows accuracy in percent
            for row in self.table():
                rows[row["label"]]["against"] = tables.format_verdict(row, points=True)
        costs = [
            measures.make_page_row(row["label"], row, self.tunings.get(row["label"], {}), "final")
            for row in self.table()
            if row["finished"]
        ]
        found = {"columns": columns, "rows": rows, "lines": self.sentences}
        return {"comparison": found, "tuning": costs if self.tunings else None}

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write an HTML page that shows the runs side by side, with what the test found."""
        return page.write(self.groups, Path(path), title=title, **self._facts())

    def _record(self) -> dict[str, Any]:
        failures: dict[str, dict[str, str]] = {}
        for label, group in self.runs.items():
            for outcome in group:
                if isinstance(outcome, FailedRun) and outcome.reason != NOT_RUN:
                    failures.setdefault(label, {})[str(outcome.seed)] = outcome.reason
        return {
            "labels": list(self.runs),
            "seeds": self.seeds,
            "target": self.target,
            "tunings": self.tunings,
            "failures": failures,
        }

    @classmethod
    def _from_record(cls, folder: Path, record: dict[str, Any]) -> Self:
        runs: dict[str, list[Outcome]] = {label: [] for label in record["labels"]}
        for label, group in runs.items():
            for seed in record["seeds"]:
                reason = record["failures"].get(label, {}).get(str(seed))
                task = RunTask(label, seed, 0, run_folder(folder, label, seed))
                group.append(read_outcome(task) if reason is None else FailedRun(seed, reason))
        return cls(runs, record["seeds"], record["target"], record["tunings"], folder)


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

    If a method fails or diverges, the table says so and the other methods are still trained. If the
    function is called again with the same `out`, only missing runs are trained.

    Args:
        model: A module or a `Run`, the start of every seed; or a function f(seed) that returns one,
            called once per seed under that torch seed.
        federation: The clients' data; or a function f(seed).
        methods: Names (with settings as in "fedavg:lr=0.1", or "fedavg:tuned" to search them
            first, on the first seed) and Methods; or a dict of them by label, which may also hold
            results of `tune`.
        seeds: Number of seeds, or a list of them.
        out: Folder for the runs; None writes nothing.
        target: Score up to which the table counts costs; None takes 95 % of the best final mean.
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
    study = PythonStudy.create("compare", model, federation, settings, seeds, out)
    tunings = {}
    if isinstance(methods, Mapping):
        tunings = {str(k): v.summary for k, v in methods.items() if isinstance(v, Tuning)}
        methods = {k: v.method if isinstance(v, Tuning) else v for k, v in methods.items()}
    listener = make_progress(progress)
    return run_comparison(study, parse_candidates(methods), listener, target, tunings)


def run_comparison(
    study: Study,
    candidates: list[Candidate],
    listener: ProgressListener,
    target: float | None = None,
    tunings: Mapping[str, dict[str, Any]] | None = None,
) -> Comparison:
    """Check the candidates, tune them where asked for, train the missing runs.

    `tunings` has the cost of earlier tunings by label.

    Raises:
        Interrupted: After Ctrl-C; it holds the result so far.
    """
    if target is not None:
        check_finite("compare", "target", target)
    study.check(candidates)
    grids = {c.label: make_grid(c) for c in candidates if c.is_tuned}
    ready, spent = {c.label: c for c in candidates}, dict(tunings or {})
    tasks = [study.task(c.label, seed) for seed in study.seeds for c in candidates]
    done: dict[RunTask, Outcome] = {}

    def make_result() -> Comparison:
        runs: dict[str, list[Outcome]] = {c.label: [] for c in candidates}
        for task in tasks:
            runs[task.label].append(done.get(task, FailedRun(task.seed, NOT_RUN)))
        result = Comparison(runs, list(study.seeds), target, spent, study.out)
        tables.save(result, study.command)
        return result

    make_result()  # the folder can be resumed from now on
    try:
        with listener:
            for label, points in grids.items():
                folder = None if study.out is None else study.out / SEARCHES / folder_name(label)
                first = replace(study, seeds=study.seeds[:1], out=folder, command=None)
                tuning = run_search(first, ready[label], points, listener)
                spent[label] = tuning.summary
                if found := tuning.ranked():
                    ready[label] = replace(found[0].candidate, label=label)
                else:
                    lost = [task for task in tasks if task.label == label]
                    done |= {task: FailedRun(task.seed, tuning.sentences[0]) for task in lost}
            left = [task for task in tasks if task not in done]
            trained = study.with_candidates(list(ready.values()))
            for task, outcome in run_all(left, trained.inputs, listener, study.jobs):
                done[task] = outcome
    except KeyboardInterrupt:
        done |= {task: read_outcome(task) for task in tasks if task not in done}
        hint = "" if study.out is None else f" Call compare again with out={str(study.out)!r}."
        raise Interrupted(f"Stopped by Ctrl-C.{hint}", make_result()) from None
    return make_result()
