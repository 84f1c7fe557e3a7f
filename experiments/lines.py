"""Results of our own studies: a file with one line of JSON per run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tunefree.study.pool import ProcessPool, Worker

TaskT = TypeVar("TaskT")
ResultRow = dict[str, Any]


def read_rows(path: Path) -> list[ResultRow]:
    """Return the rows of a file, none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_rows(
    path: Path, tasks: Sequence[TaskT], work: Callable[[TaskT, Worker], ResultRow], processes: int
) -> None:
    """Do the tasks in several processes and append each result when it is there.

    A task that fails does not end the others; the first failure is raised after them.
    """
    failed: BaseException | None = None
    with ProcessPool(work, processes) as pool, path.open("a") as file:
        for _, row in pool.run(tasks, lambda task, message: None):
            if isinstance(row, BaseException):
                failed = failed or row
                continue
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(*(value for value in row.values() if isinstance(value, str | int)), flush=True)
    if failed is not None:
        raise failed
