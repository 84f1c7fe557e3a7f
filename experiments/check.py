"""Checks of a specification, before anything is trained."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from tunefree.core.errors import ArgumentError, TunefreeError, check_int, unknown_name
from tunefree.data import names as datasets
from tunefree.data import partition
from tunefree.methods import CATALOGUE
from tunefree.models import nets
from tunefree.penalties import get as penalty

from . import keys, named
from .citations import check_sources
from .reading import is_at_scale, merge_scale, read
from .spec import Experiment, PaperTask, Row, SpecFile

Table = Mapping[str, Any]


def check_spec(spec: SpecFile, scale: str) -> Experiment:
    """Return the experiment at a scale; an `ArgumentError` says what is wrong with it."""
    try:
        _check_all_keys(spec, scale)
        found = read(spec, scale)
        _check_experiment(spec, found)
    except TunefreeError as error:
        raise ArgumentError(f"{spec.name} ({spec.path}), {scale}: {error}") from None
    return found


def _check_keys(what: str, table: Any, known: Iterable[str], needed: Iterable[str] = ()) -> None:
    if not isinstance(table, Mapping):
        raise ArgumentError(f"{what} must be a table, got {table!r}.")
    for key in table:
        if key not in known:
            raise unknown_name(f"key of {what}", key, known)
    for key in needed:
        if key not in table:
            raise ArgumentError(f"{what} lacks {key!r}.")


def _check_all_keys(spec: SpecFile, scale: str) -> None:
    raw = spec.raw
    _check_keys("the specification", raw, keys.TOP, ("title", "task", "method", "scale"))
    if raw.get("kind", "runs") not in keys.KINDS:
        raise unknown_name("kind", raw["kind"], keys.KINDS)
    _check_keys("[scale]", raw["scale"], keys.SCALES)
    shared = (*keys.STUDY, *keys.WORDS)
    for name, table in {
        "common": raw.get("common", {}),
        f"scale.{scale}": raw["scale"][scale],
    }.items():
        _check_keys(f"[{name}]", table, shared)
        if table.get("tune_by", "test") not in keys.TUNE_BY:
            raise unknown_name("way to choose", table["tune_by"], keys.TUNE_BY)
        _check_counts(f"[{name}]", table)
    needs = {"task": ("name",), "method": ("name",), "claim": ("says", "better", "than")}
    needs["sweep"] = ("methods", "setting", "values")
    kinds = {"task": keys.TASK, "method": keys.METHOD, "sweep": keys.SWEEP, "claim": keys.CLAIM}
    for kind, known in kinds.items():
        for number, table in enumerate(raw.get(kind, ())):
            what = f"[[{kind}]] {table.get('name', number + 1)}"
            scaled = () if kind == "claim" else keys.SCALES
            _check_keys(what, table, (*known, *scaled), needs[kind])
            for one in scaled:
                _check_keys(f"{what}, .{one}", table.get(one, {}), set(known) - {"name", "tasks"})
                _check_counts(f"{what}, .{one}", table.get(one, {}))
            for one in table.get("scales", ()):
                if one not in keys.SCALES:
                    raise unknown_name("scale", one, keys.SCALES)
            _check_counts(what, table)


def _check_counts(what: str, table: Table) -> None:
    for key in keys.COUNTS:
        if key in table:
            check_int(what, key, table[key])


def _check_experiment(spec: SpecFile, found: Experiment) -> None:
    _check_unique("task", [t.name for t in found.tasks])
    tasks = {t.name for t in found.tasks} | {t["name"] for t in spec.raw["task"]}
    for table in [*spec.raw["method"], *spec.raw.get("sweep", ())]:
        for name in table.get("tasks", ()):
            if name not in tasks:
                raise unknown_name("task", name, tasks)
    for task in found.tasks:
        rows = [row for row in found.rows if row.task == task.name]
        _check_unique(f"row of {task.name}", [row.label for row in rows])
        if not task.skip:
            _check_task(found, task)
        for row in rows:
            _check_row(found, task, row)
    bases = {row.base for row in found.rows}
    every = {t["name"] for t in spec.raw["method"]}
    for table in (
        merge_scale(s, found.scale)
        for s in spec.raw.get("sweep", ())
        if is_at_scale(s, found.scale)
    ):
        for name in table["methods"]:
            if name not in every:
                raise unknown_name("method of a sweep", name, every)
    labels = bases | {row.label for row in found.rows}
    for claim in found.claims:
        for name in (*claim.better, *claim.than):
            if name not in labels and name not in every:
                raise unknown_name("row of a claim", name, labels)
        for name in claim.tasks:
            if name not in tasks:
                raise unknown_name("task of a claim", name, tasks)
    _check_published(spec, found, tasks)
    if "sources" in spec.raw and found.scale == "paper":
        check_sources(spec.raw, found)


def _check_unique(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"There must be one {what} called {name!r}, got several.")


def _check_task(found: Experiment, task: PaperTask) -> None:
    words = task.words
    what = f"PaperTask {task.name!r}"
    if found.kind == "prox-cost":
        if "size" not in words and "model" not in words:
            raise ArgumentError(f"{what} needs the size of its vector, or a model.")
        return
    for key in ("data", "split", "model", "rounds"):
        if key not in words:
            raise ArgumentError(f"{what} lacks {key!r}.")
    if words["data"] not in datasets():
        raise unknown_name("dataset", words["data"], datasets())
    if words["model"] not in nets.NETS:
        raise unknown_name("model", words["model"], nets.NETS)
    known = set(inspect.signature(nets.NETS[words["model"]]).parameters) - {"shape", "classes"}
    for arg in words.get("model_args", {}):
        if arg not in known:
            raise unknown_name(f"argument of model {words['model']!r}", arg, known)
    natural = isinstance(partition.parse(words["split"]), partition.ByOwner)
    if "clients" not in words and not natural:
        raise ArgumentError(f"{what} lacks 'clients'.")
    if words.get("cohort") and "clients" in words and words["cohort"] > words["clients"]:
        raise ArgumentError(
            f"{what} must have a cohort of at most {words['clients']} clients, got "
            f"{words['cohort']}."
        )
    if "steps" in words and "epochs" in words:
        raise ArgumentError(f"{what} takes steps or epochs, got both.")
    if words.get("test", "own") not in ("own", "train"):
        raise unknown_name("test set", words["test"], ("own", "train"))


def _check_row(found: Experiment, task: PaperTask, row: Row) -> None:
    if found.kind == "prox-cost":
        penalty(row.method)
        return
    for name in row.method.split("+"):
        if name not in CATALOGUE:
            raise unknown_name(f"method (of row {row.label!r})", name, CATALOGUE)
    if not row.points:
        raise ArgumentError(f"The grid of {row.label!r} must list values.")
    everyone = {**task.words, **row.words}
    for point in row.points:
        for key in point:
            if key in row.set:
                raise ArgumentError(f"{row.label!r}: {key} cannot be both set and searched.")
        settings, _ = split_settings(row.method, {**task.words["set"], **row.set, **point})
        made = named.make(row.method, settings)
        cohort, clients = everyone.get("cohort"), everyone.get("clients")
        if made.full and cohort and clients and cohort < clients and not (task.skip or row.skip):
            raise ArgumentError(
                f"{row.label!r} in {task.name!r} is defined for full participation; give it "
                "cohort = 0."
            )


def split_settings(method: str, given: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of the method and those of the run.

    >>> split_settings("fedavg", {"lr": 0.1, "steps": 5})
    ({'lr': 0.1}, {'steps': 5})
    """
    own = named.settings(method)
    mine = {k: v for k, v in given.items() if k in own}
    rest = {k: v for k, v in given.items() if k not in mine}
    for key in rest:
        if key not in keys.WORDS:
            raise unknown_name(f"argument of {method}", key, own)
    return mine, rest


def _check_published(spec: SpecFile, found: Experiment, tasks: set[str]) -> None:
    shown = {number.text for number in found.show}
    for name, table in spec.expected.items():
        if name in keys.EXPECTED:
            continue
        if name not in tasks:
            raise unknown_name("task in expected.toml", name, tasks)
        labels = {r.label for r in found.rows if r.task == name}
        if not labels:
            continue  # not at this scale
        for label, numbers in table.items():
            if label not in labels and not _elsewhere(spec, name, label, found.scale):
                raise unknown_name(f"row of {name} in expected.toml", label, labels)
            for key, value in numbers.items():
                base = key.removesuffix("_sd")
                if base not in shown:
                    raise unknown_name(f"number of {label} in expected.toml", key, shown)
                accuracy = next(n for n in found.show if n.text == base).measure.endswith(
                    "accuracy"
                )
                if accuracy and value > 1 and not spec.expected.get("percent"):
                    raise ArgumentError(
                        f"expected.toml has {value} as an accuracy of {label}; give fractions, or "
                        f"percent = true in [{spec.path.stem}]."
                    )


def _elsewhere(spec: SpecFile, task: str, label: str, scale: str) -> bool:
    """Return whether a published row belongs to the other scale."""
    others = [s for s in spec.scales if s != scale]
    return any(
        row.task == task and row.label == label for s in others for row in read(spec, s).rows
    )
