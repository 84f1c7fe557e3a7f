"""Reading a specification at a scale: tables are merged, grids and sweeps expanded."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefree.methods import CATALOGUE

from . import named, numbers
from .citations import read_sources
from .keys import SCALES, WORDS
from .numbers import Statistic
from .spec import Claim, Experiment, PaperTask, Row, SpecFile, Table


def merge_tables(*tables: Mapping[str, Any]) -> Table:
    """Merge tables; later ones win, except that `set` is merged and `says` collected.

    >>> merge_tables({"set": {"a": 1}, "batch": 5}, {"set": {"b": 2}, "batch": 6})
    {'set': {'a': 1, 'b': 2}, 'batch': 6}
    """
    out: Table = {}
    for table in tables:
        out = override(out, {k: table[k] for k in INSTEAD if k in table})
        for key, value in table.items():
            if key == "set":
                out[key] = {**out.get(key, {}), **value}
            elif key == "says":
                out[key] = (*_several(out.get(key)), *_several(value))
            elif key not in SCALES:
                out[key] = value
    return out


INSTEAD = {"steps": "epochs", "epochs": "steps"}


def override(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Merge two tables, the second wins; steps replace epochs and vice versa.

    >>> override({"steps": 5, "batch": 2}, {"epochs": 1})
    {'batch': 2, 'epochs': 1}
    """
    gone = {INSTEAD[key] for key in INSTEAD if key in above and INSTEAD[key] not in above}
    return {**{k: v for k, v in below.items() if k not in gone}, **above}


def merge_scale(table: Mapping[str, Any], scale: str) -> Table:
    """Merge the table of a task, method or sweep with its table of the scale."""
    return merge_tables(table, table.get(scale, {}))


def _several(value: Any) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def is_at_scale(table: Mapping[str, Any], scale: str) -> bool:
    """Return whether a task, method, sweep or claim exists at this scale."""
    return scale in table.get("scales", SCALES)


def read(spec: SpecFile, scale: str) -> Experiment:
    """Return the experiment at a scale; its keys must have been checked."""
    raw = spec.raw
    base = merge_tables(raw.get("common", {}), raw["scale"][scale])
    measure, higher = raw.get("measure", "test_accuracy"), raw.get("higher")
    shown = raw.get("show") or (["last"] if raw.get("kind", "runs") in ("runs", "toy") else [])
    tasks = [_task(t, base, spec, scale) for t in raw["task"] if is_at_scale(t, scale)]
    rows = [
        row for task in raw["task"] if is_at_scale(task, scale) for row in _rows(raw, task, scale)
    ]
    return Experiment(
        name=spec.name,
        scale=scale,
        title=raw["title"],
        kind=raw.get("kind", "runs"),
        alone=raw.get("alone", raw.get("kind", "runs") in ("prox-cost", "peak-memory")),
        measure=measure,
        show=tuple(_number(text, raw, higher) for text in shown),
        curves=tuple(raw.get("curves", ())),
        x=raw.get("x", "round"),
        seeds=base.get("seeds", 3),
        tune_rounds=base.get("tune_rounds"),
        tune_by=base.get("tune_by", "test"),
        minutes=base.get("minutes"),
        assume=_several(raw.get("assume")),
        sources=read_sources(raw.get("sources", {})),
        says=_several(base.get("says")),
        note=spec.expected.get("note", ""),
        tasks=tuple(tasks),
        rows=tuple(rows),
        claims=tuple(_claim(c, raw) for c in raw.get("claim", ()) if is_at_scale(c, scale)),
    )


def _number(text: str, raw: Table, higher: bool | None) -> Statistic:
    measure = raw.get("measure", "test_accuracy")
    if raw.get("kind", "runs") in ("runs", "toy"):
        return numbers.parse(text, measure, higher)
    return Statistic(text, text, "last", bool(higher))  # a special kind measures them by name


def _task(table: Table, base: Table, spec: SpecFile, scale: str) -> PaperTask:
    found = merge_tables(base, merge_scale(table, scale))
    words = {k: v for k, v in found.items() if k in WORDS}
    words["set"] = found.get("set", {})
    true, used = table.get("data"), words.get("data")
    stands_in = true not in (None, used)
    label = f"{table['name']} ({scale}: {used})" if stands_in else table["name"]
    says = _several(merge_scale(table, scale).get("says"))
    published = {} if stands_in else spec.expected.get(table["name"], {})
    share = 0.01 if spec.expected.get("percent") else 1.0
    numbers_of = {row: {k: v * share for k, v in found.items()} for row, found in published.items()}
    return PaperTask(table["name"], label, words, says, found.get("skip", ""), numbers_of)


def _rows(raw: Table, task: Table, scale: str) -> list[Row]:
    out = []
    for table in raw["method"]:
        asked = merge_scale(table, scale)
        if task["name"] not in asked.get("tasks", [task["name"]]) or not is_at_scale(asked, scale):
            continue
        row = Row(
            task["name"],
            asked["name"],
            asked["name"],
            str(asked.get("method") or asked.get("penalty") or ""),
            asked.get("set", {}),
            expand_grid(asked.get("grid", {})),
            {k: v for k, v in asked.items() if k in WORDS},
            _several(asked.get("says")),
            asked.get("skip", ""),
        )
        swept = [merge_scale(s, scale) for s in raw.get("sweep", ()) if is_at_scale(s, scale)]
        mine = [
            s for s in swept if row.base in s["methods"] and row.task in s.get("tasks", [row.task])
        ]
        out += [one for s in mine for one in _swept(row, s)] if mine else [row]
    return out


def _swept(row: Row, sweep: Table) -> list[Row]:
    setting, out = sweep["setting"], []
    for value in sweep["values"]:
        left = [{k: v for k, v in point.items() if k != setting} for point in row.points]
        rest = tuple(p for i, p in enumerate(left) if p not in left[:i])
        fixed = {k: v for k, v in row.set.items() if k != setting}
        said = (*row.says, *_several(sweep.get("says")))
        one = replace(row, label=label_sweep(row.base, setting, value), points=rest, says=said)
        if is_setting(row.method, setting):
            out.append(replace(one, set={**fixed, setting: value}))
        else:
            out.append(replace(one, words={**row.words, setting: value}))
    return out


def label_sweep(base: str, setting: str, value: Any) -> str:
    """Return the label of a sweep's row.

    >>> label_sweep("FedDuAdam", "eps_g", 0.001)
    'FedDuAdam, eps_g=0.001'
    """
    return (
        f"{base}, {setting}={value:g}" if isinstance(value, float) else f"{base}, {setting}={value}"
    )


def is_setting(method: str, key: str) -> bool:
    """Return whether a key is a setting of the method, not of the run."""
    known = all(name in CATALOGUE for name in method.split("+"))
    return known and key in named.settings(method)


def expand_grid(grid: Mapping[str, Sequence[Any]] | Sequence[Table]) -> tuple[Table, ...]:
    """Return the points of a grid, one table each; a list of points is returned as it is.

    >>> expand_grid({"lr": [0.1, 1.0], "mu": [0.5]})
    ({'lr': 0.1, 'mu': 0.5}, {'lr': 1.0, 'mu': 0.5})
    """
    if isinstance(grid, Mapping):
        found = itertools.product(*grid.values())
        return tuple(dict(zip(grid, values, strict=True)) for values in found)
    return tuple(dict(point) for point in grid)


def _claim(table: Table, raw: Table) -> Claim:
    every = tuple(t["name"] for t in raw["task"])
    measure = table.get("measure", raw.get("measure", "test_accuracy"))
    higher = table.get("higher", raw.get("higher") if "measure" not in table else None)
    first = (raw.get("show") or ["last"])[0]
    by = _number(table.get("by", first), {**raw, "measure": measure}, higher)
    if measure != raw.get("measure", "test_accuracy") and by.measure == measure:
        by = replace(by, text=f"{measure} {by.text.removeprefix(f'{measure} ')}")
    than = table["than"]
    value = float(than) if isinstance(than, int | float) else None
    return Claim(
        table["says"],
        _several(table.get("task")) or every,
        _several(table["better"]),
        () if value is not None else _several(than),
        by,
        float(table.get("margin", 0.0)),
        table.get("within"),
        table.get("factor"),
        value,
    )
