"""The folder of a study: runs in LABEL/seed-0, LABEL/seed-1, ... and one JSON file about them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentError, first_line
from ..core.files import to_json, write_atomically
from .candidates import folder_name
from .tasks import RunTask


def make_task(
    folder: Path | None, label: str, seed: int, rounds: int, until: int | None = None
) -> RunTask:
    """Return the run of a label and a seed, with its folder."""
    out = None if folder is None else folder / folder_name(label) / f"seed-{seed}"
    return RunTask(label, seed, rounds, out, until)


def write_study(folder: Path, file: str, facts: Mapping[str, Any], what: str) -> None:
    """Write the JSON file of a study, so that it can be read and continued."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / file, (to_json(facts) + "\n").encode())
    except OSError as error:
        raise ArgumentError(
            f"{what}(out=...) must be a folder that can be written, got {str(folder)!r}: "
            f"{error.strerror or error}."
        ) from None


def read_study(folder: Path, file: str, what: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the content of a study's JSON file.

    Args:
        folder: The study's folder.
        file: Name of the JSON file.
        what: "comparison" or "search", for error messages.
        keys: Keys that it must have.
    """
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
