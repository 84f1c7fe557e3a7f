"""Kept results whose settings are no longer those of their specification."""

import shlex
from collections.abc import Mapping
from typing import Any

from .citations import NOT_DECIDING
from .runs import short_rounds
from .spec import Experiment

Record = dict[str, Any]
NESTED = ("model_args", "data_args")


def describe_changes(kept: Record, row: Record, found: Experiment) -> str:
    """Return how the settings of a kept row differ from its specification; "" if they do not.

    A row may also say itself that it is superseded, for example by a correction of its method. One
    of an earlier call is compared at the rounds of the record's own call.

    Args:
        kept: A record, perhaps of an older specification.
        row: One of its rows.
        found: The specification now, at the record's scale.
    """
    if row.get("superseded"):
        return str(row["superseded"])
    now = next((r for r in found.rows if (r.task, r.label) == (row["task"], row["label"])), None)
    if now is None:
        return "the specification has no such row"
    made = row.get("made", {})  # by an earlier call
    was = made.get("words") or next(t["words"] for t in kept["tasks"] if t["name"] == row["task"])
    is_now = found.of(row["task"]).words
    point = row["chosen"] or {}
    before = _flatten(was, row.get("words", now.words), row["set"], point, row["method"])
    if dict(point) not in now.points:
        several = len(now.points) > 1
        point = dict.fromkeys(now.points[0], "a value of its grid") if several else now.points[0]
    after = _flatten(is_now, now.words, now.set, point, now.method)
    if "--rounds" in kept["narrowed"]:
        after["rounds"] = _read_rounds(kept["narrowed"]) if made else before["rounds"]
    search = row["search"]
    if search and len(now.points) > 1:
        rounds = short_rounds(found, before["rounds"])
        before |= {"points of the grid": search["runs"], "rounds of a search": search["rounds"]}
        after |= {"points of the grid": len(now.points), "rounds of a search": rounds}
    return ", ".join(
        f"{key} {_show(before, key)} instead of {_show(after, key)}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    )


def _read_rounds(narrowed: str) -> int:
    """Return the number of rounds that a call was given.

    >>> _read_rounds("--rounds 20 --tasks 'a task'")
    20
    """
    words = shlex.split(narrowed)
    return int(words[words.index("--rounds") + 1])


def _flatten(
    task: Mapping[str, Any],
    own: Mapping[str, Any],
    settings: Mapping[str, Any],
    point: Mapping[str, Any],
    method: str,
) -> dict[str, Any]:
    """Return everything that decides a row's runs, by name; uniform weights are the default."""
    words = {k: v for k, v in {**task, **own}.items() if k not in NOT_DECIDING}
    nested = {k: v for key in NESTED for k, v in words.pop(key, {}).items()}
    out = {**words, **nested, **task.get("set", {}), **settings, **point, "method": method}
    return {k: v for k, v in out.items() if (k, v) != ("weights", "uniform")}


def _show(table: Mapping[str, Any], key: str) -> str:
    return str(table.get(key, "not set"))
