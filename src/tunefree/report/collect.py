"""Find run folders, read them, and group the runs that differ only in their seed."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..core.files import MAX_BYTES, flatten, open_regular
from ..training.folder import (
    INFORMATION,
    STATUSES,
    RunFolder,
    is_history_row,
    parse_history,
    read_json,
)
from ..training.run import Run
from .payload import method_name

SEEDED = ("seed", "start", "frozen", "data.digest", "data.picture")  # settings that follow the seed
SEED_FOLDER = re.compile(r"seed-\d+")
RUNNING_SECONDS = 60.0  # an unfinished run counts as running this long after its last write
MAX_DEPTH = 4
COMPARISON, SEARCHES = "compare.json", "tuning"  # of a comparison: its file, its folder of searches


def find_run_folders(root: Path, searches: bool = True) -> Iterator[Path]:
    """Yield the run folders at or below a folder, in natural order of their names.

    Without `searches`, the runs that tuned a method of a comparison are left out.
    """
    for name, subfolders, files in os.walk(root):
        if not searches and COMPARISON in files and SEARCHES in subfolders:
            subfolders.remove(SEARCHES)
        subfolders.sort(key=_natural_order)
        folder = Path(name)
        if RunFolder(folder).is_started:
            subfolders.clear()
            yield folder
        elif len(folder.relative_to(root).parts) >= MAX_DEPTH:
            subfolders.clear()


def _natural_order(name: str) -> list[Any]:
    words = re.split(r"([0-9]{1,99})", name)
    return [(0, int(w), "") if re.fullmatch("[0-9]+", w) else (1, 0, w) for w in words]


class HistoryReader:
    """Reads a history file that is still being written; each line is read once."""

    def __init__(self) -> None:
        self._file: tuple[int, int] | None = None
        self._position, self._rows = 0, list[dict[str, Any]]()

    def read(self, folder: Path) -> list[dict[str, Any]]:
        """Return the rows of all complete lines; the last line may still be incomplete."""
        try:
            file = open_regular(folder / "history.jsonl")
        except FileNotFoundError:
            return []
        with file:
            stat = os.fstat(file.fileno())
            this = stat.st_dev, stat.st_ino
            if this != self._file or stat.st_size < self._position:  # the file was replaced
                self._file, self._position, self._rows = this, 0, []
            file.seek(self._position)
            new = stat.st_size - self._position
            if new > MAX_BYTES:
                raise OSError(f"history.jsonl has {new} bytes, more than {MAX_BYTES}")
            data = file.read(new)
        complete = data[: data.rfind(b"\n") + 1]
        complete.decode()  # raises for a file that is not text
        self._position += len(complete)
        rows = parse_history(complete.split(b"\n")[:-1])
        self._rows += [row for row in rows if is_history_row(row)]
        return list(self._rows)


def read_run(folder: Path, reader: HistoryReader | None = None) -> Run:
    """Read what a report needs of a run folder, which may have no checkpoint yet.

    The model is not read: `x` and `output` are empty. The folder's own reader reads only new lines.
    """
    empty, reader = torch.empty(0), reader or HistoryReader()
    try:
        settings, history = RunFolder(folder).read_settings(), reader.read(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"The run in {str(folder)!r} cannot be read: {error}.") from None
    status = None
    with suppress(CheckpointError, LookupError, TypeError):  # no checkpoint yet
        status = read_json(folder / "checkpoint.json")[0]["facts"]["status"]
    status = status if status in STATUSES else "unfinished"
    return Run(empty, empty, history, settings, status, folder)


def is_running(run: Run) -> bool:
    """Return whether an unfinished run wrote to its folder recently."""
    if run.status != "unfinished" or run.path is None:
        return False
    for name in ("history.jsonl", "settings.json"):
        try:
            age = time.time() - (run.path / name).stat().st_mtime
            return abs(age) < RUNNING_SECONDS  # a file far in the future is not recent either
        except OSError:
            continue
    return False


def load_groups(folders: Sequence[str | os.PathLike[str]]) -> dict[str, list[Run]]:
    """Return the runs at or below these folders, grouped by `group_runs`."""
    found: dict[Path, Run] = {}
    for name in folders:
        folder = Path(name)
        here = {path.resolve(): path for path in find_run_folders(folder, searches=False)}
        if not here:
            why = f"{str(name)!r} " + ("holds none" if os.path.isdir(folder) else "is no folder")
            raise ArgumentError(f"report takes run folders, or folders that contain some; {why}.")
        found |= {key: read_run(path) for key, path in here.items() if key not in found}
    return group_runs(found.values())


@convert_errors("These runs cannot be told apart: their settings are damaged", CheckpointError)
def group_runs(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs that differ only in their seed, by label.

    Runs in LABEL/seed-0, LABEL/seed-1, ... are grouped by that folder and named after it. A second
    run with the same settings and seed starts a group of its own.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        folder, seed, copy = _label_folder(run), run.settings.get("seed"), 0
        key = str(folder or json.dumps(_configuration(run), sort_keys=True, default=str))
        while any(r.settings.get("seed") == seed for r in groups.get((key, copy), ())):
            copy += 1
        groups.setdefault((key, copy), []).append(run)
    by_seed = [
        sorted(g, key=lambda r: _natural_order(str(r.settings.get("seed"))))
        for g in groups.values()
    ]
    return dict(zip(make_labels(by_seed), by_seed, strict=True))


def _label_folder(run: Run) -> Path | None:
    """Return LABEL of a run in LABEL/seed-0."""
    path = None if run.path is None else run.path.resolve()
    return path.parent if path is not None and SEED_FOLDER.fullmatch(path.name) else None


def _configuration(run: Run) -> dict[str, Any]:
    """Return the settings that define a configuration, without the seed, by dotted name."""
    command = run.settings.get("command")
    command = command if isinstance(command, Mapping) else {}
    own = {k: v for k, v in run.settings.items() if k not in INFORMATION}
    both = own | {f"command.{k}": command[k] for k in ("split", "model") if k in command}
    given = ((k, v) for k, v in flatten(both).items() if v is not None and v is not False)
    return {k: v for k, v in given if not any(k == s or k.startswith(f"{s}.") for s in SEEDED)}


def make_labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a unique label for each group.

    A label is the group's folder or method, then the settings in which groups of that name differ,
    then the run folder's name, then a number, as far as needed.
    """
    first = [runs[0] for runs in groups]
    names = [(_label_folder(run) or Path()).name or method_name(run) for run in first]
    settings = [_configuration(run) for run in first]
    out = _disambiguate(names, lambda i, same: _differences(settings, i, same))
    out = _disambiguate(out, lambda i, same: first[i].path.name if first[i].path else "")  # type: ignore[union-attr]
    return _disambiguate(out, lambda i, same: str(same.index(i) + 1))


def _disambiguate(names: list[str], suffix: Callable[[int, list[int]], str]) -> list[str]:
    """Append `suffix(i, indices of this name)` to each name that occurs more than once."""
    out = []
    for i, name in enumerate(names):
        same = [j for j, other in enumerate(names) if other == name]
        out.append(f"{name} {suffix(i, same)}".strip() if len(same) > 1 else name)
    return out


def _differences(settings: list[dict[str, Any]], i: int, same: list[int]) -> str:
    """Return the settings of group i in which the groups `same` differ: "lr=0.1 cohort=5"."""
    words: dict[str, None] = {}
    for name in dict.fromkeys(k for j in same for k in settings[j]):
        values = {json.dumps(settings[j].get(name), default=str) for j in same}
        if len(values) > 1 and name in settings[i]:
            words[f"{name.split('.')[-1]}={settings[i][name]}"] = None
    return " ".join(list(words)[:4])
