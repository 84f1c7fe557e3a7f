"""A run's folder: settings, history and checkpoints, written so that nothing is ever half there.

    settings.json          what was asked for, enough to run it again
    history.jsonl          one line per round, appended
    state-000012.safetensors   numbers after 12 rounds
    checkpoint.json        names the newest and the previous state file, with their sha256
    model.safetensors      the shipped model's state dict, when the run has ended

`checkpoint.json` is the point of commitment: a state file counts once it is named there.
"""

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ArgumentError, CheckpointError, ResumeError

log = logging.getLogger("tunefree")

# Recorded, not compared on resume.
INFORMATION = ("tunefree", "torch", "python", "numpy", "device", "memory", "command")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_json(value: Any) -> str:
    """Return JSON text; numbers that JSON lacks (NaN, Inf) become null."""

    def plain(v: Any) -> Any:
        if isinstance(v, Real) and not isinstance(v, bool):  # NumPy numbers become plain ones
            number = int(v) if isinstance(v, Integral) else float(v)
            return number if math.isfinite(number) else None
        if isinstance(v, dict):
            return {str(k): plain(w) for k, w in v.items()}
        return [plain(w) for w in v] if isinstance(v, list | tuple) else v

    return json.dumps(plain(value), allow_nan=False)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, so {path.parent} is not a run folder.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.") from None


class Folder:
    """Reads and writes one run folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._whole: dict[str, Any] | None = None  # the last checkpoint known to be whole

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "settings.json").exists()

    def start(self, settings: dict[str, Any]) -> None:
        """Make the folder and write the settings."""
        text = json.dumps(json.loads(to_json(settings)), indent=2) + "\n"
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / "settings.json", text.encode())

    def settings(self) -> dict[str, Any]:
        """Return the settings."""
        found = _read_json(self.path / "settings.json")
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.path / 'settings.json'} is damaged: not an object.")
        return found

    def compare(self, settings: dict[str, Any]) -> None:
        """Refuse to continue a run under other settings, and say which differ."""
        old, new = self.settings(), json.loads(to_json(settings))
        changes = [
            f"{name} was {a!r}, now {b!r}"
            for name, a, b in _differences(old, new)
            if name.split(".")[0] not in INFORMATION
        ]
        if changes:
            raise ResumeError(
                f"The run in {str(self.path)!r} has other settings: {'; '.join(changes)}. Give the "
                "same settings to continue it, or another folder for a new run."
            )

    def history(self) -> list[dict[str, Any]]:
        """Return the rows written so far; a line cut short is left out."""
        path = self.path / "history.jsonl"
        rows = []
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else []):
            try:
                rows.append(json.loads(line))
            except ValueError:
                log.warning("%s has a line cut short (line %d); it is left out.", path, number + 1)
        return [row for row in rows if isinstance(row, dict)]

    def rewrite_history(self, rows: list[dict[str, Any]]) -> None:
        """Replace the history, as when a run goes back to its checkpoint."""
        text = "".join(to_json(row) + "\n" for row in rows)
        with self._writing():
            write_atomically(self.path / "history.jsonl", text.encode())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArgumentError(
                f"fit(out=...) must be a folder that can be written, got {str(self.path)!r}: "
                f"{error.strerror or error}."
            ) from None

    def append(self, row: dict[str, Any]) -> None:
        """Add one round."""
        with (self.path / "history.jsonl").open("a") as file:
            file.write(to_json(row) + "\n")

    def _settle_history(self) -> None:
        """Make sure that the rows are on disk before a checkpoint counts on them."""
        path = self.path / "history.jsonl"
        if path.exists():
            with path.open("a") as file:
                os.fsync(file.fileno())

    def save(self, rounds: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write a checkpoint and keep the one before it."""
        self._settle_history()
        data = pack_tensors(tensors)
        name = f"state-{rounds:06d}.safetensors"
        write_atomically(self.path / name, data)
        entry = {
            "file": name,
            "rounds": rounds,
            "sha256": hashlib.sha256(data).hexdigest(),
            "facts": facts,
        }
        before = self._whole if self._whole is not None and self._whole["file"] != name else None
        entries = [entry] if before is None else [entry, before]
        write_atomically(self.path / "checkpoint.json", to_json(entries).encode())
        self._whole = entry
        for stale in self.path.glob("state-*.safetensors"):
            if stale.name not in {e["file"] for e in entries}:
                stale.unlink(missing_ok=True)

    def _entries(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoint.json"
        kinds = {"file": str, "rounds": int, "sha256": str, "facts": dict}
        found = _read_json(path)
        if not isinstance(found, list) or not all(
            isinstance(e, dict) and all(isinstance(e.get(k), t) for k, t in kinds.items())
            for e in found
        ):
            raise CheckpointError(f"{path} is damaged: it does not list checkpoints.")
        return found

    def load(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest checkpoint that is whole; None if there is none yet."""
        path = self.path / "checkpoint.json"
        if not path.exists():
            return None
        for entry in self._entries():
            try:
                data = (self.path / entry["file"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    raise CheckpointError("its checksum is wrong, so it was cut short or changed")
                found = entry["rounds"], unpack_tensors(data), entry["facts"]
                self._whole = entry
                return found
            except (OSError, CheckpointError) as error:
                log.warning(
                    "The checkpoint %s cannot be used (%s); trying the one before it.",
                    entry["file"],
                    error,
                )
        raise CheckpointError(
            f"No checkpoint in {str(self.path)!r} is whole; start again in another folder."
        )


def pack_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Return tensors as safetensors bytes."""
    from safetensors.torch import save

    return save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def unpack_tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors in safetensors bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"not readable as safetensors: {error}") from None


def _differences(a: Any, b: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys())
        return [
            change
            for k in keys
            for change in _differences(a.get(k), b.get(k), f"{name}.{k}" if name else k)
        ]
    return [] if a == b else [(name, a, b)]
