"""Rows of an earlier result that a call did not play, kept beside those that it did."""

from collections.abc import Mapping
from typing import Any

from .spec import Experiment

Record = dict[str, Any]
FACTS = ("command", "narrowed", "date", "machine", "versions", "elsewhere")
LOST = "not run"  # the status of a seed that was not played


def add_earlier_rows(now: Record, earlier: Mapping[str, Any], whole: Experiment) -> Record:
    """Return a record with the rows that another one has runs of, and it has not.

    Such a row says under `made` by which command, when and where it was played, and with which
    settings of its task. Rows that the specification no longer has are left out.

    Args:
        now: The record of this call, perhaps of some tasks and methods only.
        earlier: The record that is replaced.
        whole: The experiment with all of its tasks and methods.
    """
    mine = {(row["task"], row["label"]): row for row in now["rows"]}
    words = {task["name"]: task["words"] for task in earlier["tasks"]}
    before = {
        (row["task"], row["label"]): row
        for row in earlier["rows"]
        if _is_played(row) and row["task"] in words
    }
    rows, brought = [], set()
    for key in ((row.task, row.label) for row in whole.rows):
        if key in before and not (key in mine and _is_played(mine[key])):
            facts = {name: earlier[name] for name in FACTS if name in earlier}
            made = before[key].get("made", facts | {"words": words[key[0]]})
            rows.append({**before[key], "made": made})
            brought.add(key[0])
        elif key in mine:
            rows.append(mine[key])
    tasks = {task["name"]: task for task in (*earlier["tasks"], *now["tasks"])}
    there = {row["task"] for row in rows}
    return {
        **now,
        "tasks": [
            {**tasks[task.name], "skipped": ""} if task.name in brought else tasks[task.name]
            for task in whole.tasks
            if task.name in there
        ],
        "rows": rows,
    }


def _is_played(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a run of some seed."""
    return any(status != LOST for status in row["status"])
