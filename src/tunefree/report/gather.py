"""Finding runs on disk and putting those that differ only in their seed together."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ArgumentError, CheckpointError, convert_errors
from ..training.folder import INFORMATION, Folder, is_history_row, parse_history
from ..training.run import Run
from .shape import flat, method_name

SEEDED = ("seed", "start", "frozen", "data.digest", "data.picture")  # follow from the seed
SEED_FOLDER = re.compile(r"seed-\d+")
RUNNING = 60.0  # seconds since its last round after which a run no longer counts as going
DEEP = 4


def find(place: Path) -> Iterator[Path]:
    """Yield the run folders at or below a place, in order."""
    for root, inside, _ in os.walk(place):
        inside.sort(key=_natural)
        here = Path(root)
        if (here / "settings.json").is_file():
            inside.clear()
            yield here
        elif len(here.relative_to(place).parts) >= DEEP:
            inside.clear()


def _natural(name: str) -> list[Any]:
    words = re.split(r"([0-9]{1,99})", name)
    return [(0, int(w), "") if re.fullmatch("[0-9]+", w) else (1, 0, w) for w in words]


class Tail:
    """A history that grows: what was read once is not read again."""

    def __init__(self) -> None:
        self._file: tuple[int, int] | None = None
        self._at, self._rows = 0, list[dict[str, Any]]()

    def read(self, path: Path) -> list[dict[str, Any]]:
        """Return the rows whose line is whole: a run may be writing the last one right now."""
        try:
            file = (path / "history.jsonl").open("rb")
        except FileNotFoundError:
            return []
        with file:
            facts = os.fstat(file.fileno())
            this = facts.st_dev, facts.st_ino
            if this != self._file or facts.st_size < self._at:  # written anew
                self._file, self._at, self._rows = this, 0, []
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        whole.decode()  # what is no text at all is no history
        self._at += len(whole)
        self._rows += [row for row in parse_history(whole.split(b"\n")[:-1]) if is_history_row(row)]
        return list(self._rows)


def read(path: Path, tail: Tail | None = None) -> Run:
    """Read what a report needs of a run folder, which may be without a checkpoint so far.

    The model is left on disk: `x` and `output` are empty. With the `tail` that read it before,
    only what is new is read.
    """
    nothing, tail = torch.empty(0), tail or Tail()
    try:
        settings, history = Folder(path).settings(), tail.read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"The run in {str(path)!r} cannot be read: {error}.") from None
    return Run(nothing, nothing, history, settings, _status(path), path)


def _status(path: Path) -> str:
    try:
        found = json.loads((path / "checkpoint.json").read_text())
        status = str(found[0]["facts"]["status"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "unfinished"  # no checkpoint so far
    return status


def running(run: Run) -> bool:
    """Return whether a run without an end has written something lately."""
    if run.status != "unfinished" or run.path is None:
        return False
    for name in ("history.jsonl", "settings.json"):
        try:
            age = time.time() - (run.path / name).stat().st_mtime
            return abs(age) < RUNNING  # a clock that was set back makes old files young
        except OSError:
            continue
    return False


def load(places: Sequence[str | os.PathLike[str]]) -> dict[str, list[Run]]:
    """Return the runs at or below these folders, by label."""
    found: dict[Path, Run] = {}
    for name in places:
        place = Path(name)
        here = {path.resolve(): path for path in find(place)} if place.is_dir() else {}
        if not here:
            why = "holds none" if place.is_dir() else "is no folder"
            raise ArgumentError(
                f"report takes run folders, or folders that contain some; {str(name)!r} {why}."
            )
        found |= {key: read(path) for key, path in here.items() if key not in found}
    return grouped(found.values())


@convert_errors("These runs cannot be told apart: their settings are damaged", CheckpointError)
def grouped(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Put runs together that differ only in their seed, under labels that tell them apart.

    Runs in LABEL/seed-0, LABEL/seed-1, ... are grouped by that folder and named after it. A second
    run with the same settings and seed opens a group of its own.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        key, copy = _key(run), 0
        seed = run.settings.get("seed")
        while any(r.settings.get("seed") == seed for r in groups.get((key, copy), ())):
            copy += 1
        groups.setdefault((key, copy), []).append(run)
    ordered = [
        sorted(g, key=lambda r: _natural(str(r.settings.get("seed")))) for g in groups.values()
    ]
    return dict(zip(labels(ordered), ordered, strict=True))


def _folder_label(run: Run) -> str | None:
    path = run.path
    if path is None or not SEED_FOLDER.fullmatch(path.resolve().name):
        return None
    return path.resolve().parent.name


def _key(run: Run) -> str:
    if _folder_label(run) is not None and run.path is not None:
        return str(run.path.resolve().parent)
    return json.dumps(_told_apart(run), sort_keys=True, default=str)


def _told_apart(run: Run) -> dict[str, Any]:
    """Return the settings that make a configuration, by dotted name."""
    asked = run.settings.get("command")
    words = asked if isinstance(asked, Mapping) else {}
    own = {k: v for k, v in run.settings.items() if k not in INFORMATION}
    both = own | {f"command.{k}": words.get(k) for k in ("split", "model") if k in words}
    kept = ((k, v) for k, v in flat(both).items() if v is not None and v is not False)  # unset
    return {k: v for k, v in kept if not any(k == s or k.startswith(f"{s}.") for s in SEEDED)}


def labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a label for each group: folder or method, and as much more as tells them apart."""
    first = [runs[0] for runs in groups]
    names = [_folder_label(run) or method_name(run) for run in first]
    facts = [_told_apart(run) for run in first]
    out = _unique(names, lambda i, alike: _differences(facts, i, alike))
    out = _unique(out, lambda i, alike: first[i].path.name if first[i].path else "")  # type: ignore[union-attr]
    return _unique(out, lambda i, alike: str(alike.index(i) + 1))


def _unique(names: list[str], more: Callable[[int, list[int]], str]) -> list[str]:
    """Add `more` to each name that several have."""
    out = []
    for i, name in enumerate(names):
        alike = [j for j, other in enumerate(names) if other == name]
        out.append(f"{name} {more(i, alike)}".strip() if len(alike) > 1 else name)
    return out


def _differences(facts: list[dict[str, Any]], i: int, alike: list[int]) -> str:
    """Return the settings of i in which groups of one name differ: "lr=0.1 cohort=5"."""
    differ = [
        name
        for name in dict.fromkeys(k for j in alike for k in facts[j])
        if len({json.dumps(facts[j].get(name), default=str) for j in alike}) > 1
    ]
    words: dict[str, None] = {}
    for name in differ:
        if name in facts[i]:
            words[f"{name.split('.')[-1]}={facts[i][name]}"] = None
    return " ".join(list(words)[:4])
