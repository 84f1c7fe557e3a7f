"""A study's folder: LABEL/seed-0, LABEL/seed-1, ... and one file that says what belongs to it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentError, first_line
from ..core.files import to_json, write_atomically
from .names import place
from .work import Task


def task(folder: Path | None, label: str, seed: int, rounds: int, until: int | None = None) -> Task:
    """Return the run of a label and a seed, in its place."""
    out = None if folder is None else folder / place(label) / f"seed-{seed}"
    return Task(label, seed, rounds, out, until)


def keep(folder: Path, file: str, facts: Mapping[str, Any], what: str) -> None:
    """Write down what a study is, so that it can be read again and continued."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / file, (to_json(facts) + "\n").encode())
    except OSError as error:
        raise ArgumentError(
            f"{what}(out=...) must be a folder that can be written, got {str(folder)!r}: "
            f"{error.strerror or error}."
        ) from None


def recall(folder: Path, file: str, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return what a study's folder says about itself."""
    try:
        facts = json.loads((folder / file).read_text())
        missing = [key for key in keys if key not in facts]
    except (FileNotFoundError, NotADirectoryError):
        raise ArgumentError(f"{str(folder)!r} holds no {what}: {file} is missing.") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(f"{folder / file} is damaged: {first_line(error)}.") from None
    if missing or not isinstance(facts, dict):
        raise ArgumentError(f"{folder / file} is damaged: it lacks {', '.join(missing)}.")
    return facts
