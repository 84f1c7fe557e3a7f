"""A run's folder: settings, history and checkpoints, written so that nothing is ever half there.

    settings.json          what was asked for, enough to run it again
    history.jsonl          one line per round, appended
    state-000012.safetensors   numbers after 12 rounds
    checkpoint.json        names the newest and the previous state file, with their sha256
    model.safetensors      the shipped model's state dict, when the run has ended
    lock                   who writes here, while somebody does

`checkpoint.json` is the point of commitment: a state file counts once it is named there. A file
that is named there is never written again.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import ArgumentError, CheckpointError, ResumeError, convert_errors, first_line
from ..core.files import pack_tensors, to_json, unpack_tensors, write_atomically
from ..core.lock import lock_folder

log = logging.getLogger("tunefree")

STATE = re.compile(r"state-[0-9]{1,18}(-[0-9a-f]{8})?\.safetensors")  # in this folder, nowhere else

# Of a history, what must be numbers.
MEASURED = ("round", "train_", "test_", "validation_", "client_", "bytes_", "seconds", "gradients")
MOST = 1e300

# Recorded, not compared on resume.
INFORMATION = ("tunefree", "torch", "python", "numpy", "device", "memory", "chunk", "command")
WRITTEN = ("settings.json", "history.jsonl", "checkpoint.json", "model.safetensors", "state-*")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, so {path.parent} is not a run folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}.") from None


def is_history_row(row: Any) -> bool:
    """Whether this is a row of a history: an object whose measurements are numbers or missing."""
    if not isinstance(row, dict):
        return False
    for k, v in row.items():
        plain = v is None or (type(v) in (float, int) and -MOST < v < MOST)
        if not plain and k.startswith(MEASURED):
            return False
    return True


def parse_history(lines: list[bytes]) -> list[Any]:
    """Return what the lines of a history say, in order; None for those that are damaged."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")  # in one go, which is what there is
        if len(found) == len(lines):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [_row(line) for line in lines]


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Folder:
    """Reads and writes one run folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._whole: list[dict[str, Any]] = []  # checkpoints known to be whole, newest first

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "settings.json").exists()

    @property
    def name(self) -> str:
        """The path, quoted, for messages."""
        return repr(str(self.path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock in the context; remove files that a crash left half written."""
        with ExitStack() as held:
            with self._writing():
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(lock_folder(self.path))
                for name in WRITTEN:
                    for left in self.path.glob(f".{name}.*"):
                        left.unlink(missing_ok=True)
            yield

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
        if str(found.get("tunefree", "")).startswith("0.1."):
            raise CheckpointError(
                f"The run in {self.name} was written by tunefree {found['tunefree']}, whose "
                "folders this version cannot read; train again in another folder, or install "
                f"tunefree {found['tunefree']} to read it."
            )
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
                f"The run in {self.name} has other settings: {'; '.join(changes)}. Give the "
                "same settings to continue it, or another folder for a new run."
            )

    def history(self) -> list[dict[str, Any]]:
        """Return the rows written so far; a line cut short is left out."""
        path = self.path / "history.jsonl"
        with convert_errors(f"{path} cannot be read", CheckpointError):
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        lines = [line for line in lines if line.strip()]
        rows = parse_history(lines)
        for number, row in enumerate(rows):
            if row is None:
                log.warning("%s has a line cut short (line %d); it is left out.", path, number + 1)
        return [row for row in rows if is_history_row(row)]

    def rewrite_history(self, rows: Iterable[dict[str, Any]]) -> None:
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
                f"fit(out=...) must be a folder that can be written, got {self.name}: "
                f"{error.strerror or error}."
            ) from None

    @contextmanager
    def _going(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"rounds up to {self._whole[0]['rounds']} are" if self._whole else "settings are"
            raise CheckpointError(
                f"The run in {self.name} cannot be written: {error.strerror or error}. Its "
                f"{kept} safe there; make room, or make it writable, and call fit again to go on."
            ) from None

    def append(self, row: dict[str, Any]) -> None:
        """Add one round."""
        with self._going(), (self.path / "history.jsonl").open("a") as file:
            file.write(to_json(row) + "\n")

    def _settle_history(self) -> None:
        """Make sure that the rows are on disk before a checkpoint counts on them."""
        path = self.path / "history.jsonl"
        if path.exists():
            with path.open("a") as file:
                os.fsync(file.fileno())

    def save(self, rounds: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write a checkpoint and keep the one before it."""
        data = pack_tensors(tensors)
        digest, name = hashlib.sha256(data).hexdigest(), f"state-{rounds:06d}.safetensors"
        known = {e["file"]: e["sha256"] for e in self._whole}
        if known.get(name, digest) != digest:
            name = f"state-{rounds:06d}-{digest[:8]}.safetensors"
        entry = {"file": name, "rounds": rounds, "sha256": digest, "facts": facts}
        entries = [entry, *(e for e in self._whole if e["file"] != name)][:2]
        with self._going():
            self._settle_history()
            if name not in known:
                write_atomically(self.path / name, data)
            write_atomically(self.path / "checkpoint.json", to_json(entries).encode())
            self._whole = entries
            for stale in self.path.glob("state-*.safetensors"):
                if stale.name not in {e["file"] for e in entries}:
                    stale.unlink(missing_ok=True)

    def export(self, tensors: dict[str, Tensor]) -> None:
        """Write the shipped model's state dict."""
        with self._going():
            write_atomically(self.path / "model.safetensors", pack_tensors(tensors))

    def _entries(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoint.json"
        kinds = {"file": str, "rounds": int, "sha256": str, "facts": dict}
        found = _read_json(path)
        if not isinstance(found, list) or not all(
            isinstance(e, dict)
            and all(isinstance(e.get(k), t) for k, t in kinds.items())
            and STATE.fullmatch(e["file"])
            and e["rounds"] >= 0
            for e in found
        ):
            raise CheckpointError(f"{path} is damaged: it does not list checkpoints.")
        return found

    def load(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest checkpoint that is whole; None if there is none yet."""
        path = self.path / "checkpoint.json"
        if not path.exists():
            return None
        entries = self._entries()
        for k, entry in enumerate(entries):
            try:
                data = (self.path / entry["file"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    raise CheckpointError("its checksum is wrong, so it was cut short or changed")
                found = entry["rounds"], unpack_tensors(data), entry["facts"]
                self._whole = entries[k:]
                return found
            except (OSError, CheckpointError) as error:
                log.warning(
                    "The checkpoint %s cannot be used (%s); trying the one before it.",
                    entry["file"],
                    error,
                )
        raise CheckpointError(
            f"No checkpoint in {self.name} is whole; start again in another folder."
        )


def _differences(a: Any, b: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(a.keys() | b.keys())
        return [
            change
            for k in keys
            for change in _differences(a.get(k), b.get(k), f"{name}.{k}" if name else k)
        ]
    return [] if a == b else [(name, a, b)]
