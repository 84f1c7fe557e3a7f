"""The folder of a run: settings, history and checkpoints. Files are written atomically.

    settings.json              everything that decides the run
    history.jsonl              one line per round, appended
    state-000012.safetensors   tensors after 12 rounds
    checkpoint.json            the newest and the previous state file, with their SHA-256; each
                               entry has a checksum of its own and agrees with plan and history
    model.safetensors          the shipped model's state dict, once the run has ended
    lock                       process id of the writer, while there is one

A state file counts once `checkpoint.json` names it, and is not written again after that. All files
are opened as `core.files` does: regular files only, of bounded size.
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

import torch
from torch import Tensor

from ..core.device import measure_free_ram
from ..core.errors import (
    CheckpointError,
    ResumeError,
    check_argument,
    check_int,
    convert_errors,
    first_line,
)
from ..core.files import (
    MAX_JSON,
    check_writable,
    flatten,
    open_regular,
    pack_tensors,
    read_file,
    to_json,
    unpack_tensors,
    write_atomically,
)
from ..core.lock import lock_folder

log = logging.getLogger("tunefree")

STATE = re.compile(r"state-([0-9]{1,18})(-[0-9a-f]{8})?\.safetensors")  # a name without a path
STATUSES = ("unfinished", "finished", "stopped early", "unstable", "diverged")
ROUNDS = "rounds"  # in a state file, the number of rounds before it
MAX_VECTORS = 64  # in a state, of the server and of each client; methods have less than a dozen

# Prefixes of the history's entries that must be numbers.
NUMERIC = ("round", "train_", "test_", "validation_", "client_", "bytes_", "seconds", "gradients")
MAX_VALUE = 1e300
MAX_ROUND = 1 << 53

# Recorded, not compared on resume.
INFORMATION = ("tunefree", "torch", "python", "numpy", "device", "memory", "chunk", "command")
NOT_WRITABLE = "fit(out=...) must be a folder"  # said before training
WRITTEN = ("settings.json", "history.jsonl", "checkpoint.json", "model.safetensors", "state-*")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of a run folder."""
    try:
        return json.loads(read_file(path, MAX_JSON))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, so {path.parent} is not a run folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}.") from None


def entry_checksum(entry: dict[str, Any]) -> str:
    """Return the checksum of an entry of `checkpoint.json`, over all but itself."""
    rest = {k: v for k, v in entry.items() if k != "check"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def is_history_row(row: Any) -> bool:
    """Whether this is a row of a history: a dict with a round >= 0 and numbers or None."""
    if not isinstance(row, dict):
        return False
    round = row.get("round", 0)
    if type(round) is not int or not 0 <= round < MAX_ROUND:
        return False
    for k, v in row.items():
        is_plain = v is None or (type(v) in (float, int) and -MAX_VALUE < v < MAX_VALUE)
        if not is_plain and k.startswith(NUMERIC):
            return False
    return True


def parse_history(lines: list[bytes]) -> list[Any]:
    """Return the rows of a history's lines; None for lines that are not JSON."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")  # one call is much faster
        if len(found) == len(lines):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [_parse_line(line) for line in lines]


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class RunFolder:
    """Reads and writes the folder of one run.

    Args:
        path: The folder.
        resume: Whether a run that is in it is continued.
        checkpoint_every: Rounds between checkpoints; None writes one when the last is 5 s old.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume: bool = True,
        checkpoint_every: int | None = None,
    ) -> None:
        check_argument("fit", "out", path, "a folder", bool(os.fspath(path)))
        if checkpoint_every is not None:
            check_int("fit", "checkpoint_every", checkpoint_every)
        self.path, self.resume, self.checkpoint_every = Path(path), resume, checkpoint_every
        self._valid: list[dict[str, Any]] = []  # entries of usable checkpoints, newest first

    @property
    def is_started(self) -> bool:
        """Whether a run was started here."""
        return os.path.lexists(self.path / "settings.json")

    @property
    def name(self) -> str:
        """The path, quoted, for messages."""
        return repr(str(self.path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock within the context; remove temporary files that a crash left."""
        with ExitStack() as held:
            with check_writable(NOT_WRITABLE, self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(lock_folder(self.path))
                for name in WRITTEN:
                    for left in self.path.glob(f".{name}.*"):
                        left.unlink(missing_ok=True)
            yield

    def start(self, settings: dict[str, Any]) -> None:
        """Create the folder and write the settings."""
        text = json.dumps(json.loads(to_json(settings)), indent=2) + "\n"
        with check_writable(NOT_WRITABLE, self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / "settings.json", text.encode())

    def read_settings(self) -> dict[str, Any]:
        """Return the settings."""
        found = read_json(self.path / "settings.json")
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.path / 'settings.json'} is damaged: not an object.")
        if str(found.get("tunefree", "")).startswith("0.1."):
            raise CheckpointError(
                f"The run in {self.name} was written by tunefree {found['tunefree']}, whose "
                "folders this version cannot read; train again in another folder, or install "
                f"tunefree {found['tunefree']} to read it."
            )
        return found

    def check_settings(self, settings: dict[str, Any], free: tuple[str, ...] = ()) -> None:
        """Check that a run can be continued with these settings, of which `free` may differ.

        Raises:
            ResumeError: If settings differ; it names them.
        """
        old, new = flatten(self.read_settings()), flatten(json.loads(to_json(settings)))
        old.setdefault("engine", new.get("engine"))  # missing if Ctrl-C was pressed while compiling
        changes = [
            f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name) and name.split(".")[0] not in (*INFORMATION, *free)
        ]
        if changes:
            raise ResumeError(
                f"The run in {self.name} has other settings: {'; '.join(changes)}. Give the "
                "same settings to continue it, or another folder for a new run."
            )

    def read_history(self) -> list[dict[str, Any]]:
        """Return the rows written so far; a truncated line is left out."""
        path, rows = self.path / "history.jsonl", parse_history(self._history_lines())
        for number, row in enumerate(rows):
            if row is None:
                log.warning("%s has a line cut short (line %d); it is left out.", path, number + 1)
        found: list[dict[str, Any]] = []
        for row in filter(is_history_row, rows):
            if found and "round" in row and row["round"] <= found[-1].get("round", -1):
                log.warning("%s has round %d out of order; it is left out.", path, row["round"])
            else:
                found.append(row)
        return found

    def _history_lines(self) -> list[bytes]:
        path = self.path / "history.jsonl"
        with convert_errors(f"{path} cannot be read", CheckpointError):
            lines = read_file(path).split(b"\n") if os.path.lexists(path) else []
        return [line for line in lines if line.strip()]

    def rewrite_history(self, rows: Iterable[dict[str, Any]]) -> None:
        """Replace the history, for a run that continues from an earlier checkpoint."""
        text = "".join(to_json(row) + "\n" for row in rows)
        with check_writable(NOT_WRITABLE, self.path):
            write_atomically(self.path / "history.jsonl", text.encode())

    @contextmanager
    def _report_write_error(self) -> Iterator[None]:
        """Report a write that failed during training, and what is safe."""
        try:
            yield
        except OSError as error:
            kept = f"rounds up to {self._valid[0]['rounds']} are" if self._valid else "settings are"
            raise CheckpointError(
                f"The run in {self.name} cannot be written: {error.strerror or error}. Its {kept} "
                "safe there; make room, or make it writable, and call fit again to continue."
            ) from None

    def append_row(self, row: dict[str, Any]) -> None:
        """Append the row of a round to the history."""
        with self._report_write_error(), open_regular(self.path / "history.jsonl", "a") as file:
            file.write(to_json(row) + "\n")

    def save_checkpoint(
        self, rounds: int, tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Write a checkpoint, and keep the previous one."""
        data = pack_tensors(tensors | {ROUNDS: torch.tensor(rounds)})
        digest, name = hashlib.sha256(data).hexdigest(), f"state-{rounds:06d}.safetensors"
        known = {e["file"]: e["sha256"] for e in self._valid}
        if known.get(name, digest) != digest:
            name = f"state-{rounds:06d}-{digest[:8]}.safetensors"
        entry = {"file": name, "rounds": rounds, "sha256": digest}
        entry["facts"] = json.loads(to_json(facts))  # as it will be read
        entry["check"] = entry_checksum(entry)
        entries = [entry, *(e for e in self._valid if e["file"] != name)][:2]
        history = self.path / "history.jsonl"
        with self._report_write_error():
            if os.path.lexists(history):  # the checkpoint needs its rows
                with open_regular(history, "a") as file:
                    os.fsync(file.fileno())
            if name not in known:
                write_atomically(self.path / name, data)
            write_atomically(self.path / "checkpoint.json", to_json(entries).encode())
            self._valid = entries
            for stale in self.path.glob("state-*.safetensors"):
                if stale.name not in {e["file"] for e in entries}:
                    stale.unlink(missing_ok=True)

    def export_model(self, tensors: dict[str, Tensor]) -> None:
        """Write the shipped model's state dict."""
        with self._report_write_error():
            write_atomically(self.path / "model.safetensors", pack_tensors(tensors))

    def _read_entries(self) -> list[dict[str, Any]]:
        path = self.path / "checkpoint.json"
        kinds = {"file": str, "rounds": int, "sha256": str, "facts": dict, "check": str}
        found = read_json(path)
        if not isinstance(found, list) or not all(
            isinstance(e, dict)
            and all(isinstance(e.get(k), t) for k, t in kinds.items())
            and STATE.fullmatch(e["file"])
            and e["rounds"] >= 0
            for e in found
        ):
            raise CheckpointError(f"{path} is damaged: it does not list checkpoints.")
        return found

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest usable checkpoint: rounds, tensors, facts; None if there is none."""
        if not os.path.lexists(self.path / "checkpoint.json"):
            return None
        entries, limit = self._read_entries(), measure_free_ram()
        if self.is_started:
            limit = min(limit, self._largest_state())
        for k, entry in enumerate(entries):
            try:
                self._check_entry(entry)
                data = read_file(self.path / entry["file"], limit)
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    raise CheckpointError("its checksum is wrong, so it was cut short or changed")
                tensors = unpack_tensors(data)
                after = tensors.pop(ROUNDS, torch.tensor(-1))
                if after.shape != () or int(after) != entry["rounds"]:
                    raise CheckpointError(f"it is not after {entry['rounds']} rounds")
                self._valid = entries[k:]
                return entry["rounds"], tensors, entry["facts"]
            except (OSError, CheckpointError) as error:
                said = "The checkpoint %s cannot be used (%s); trying the one before it."
                log.warning(said, entry["file"], error)
        why = "is whole; start again in another folder"
        raise CheckpointError(f"No checkpoint in {self.name} {why}.")

    def _largest_state(self) -> int:
        """Return an upper bound in bytes on a state of a run with these settings."""
        with convert_errors(f"{self.path / 'settings.json'} is damaged", CheckpointError):
            found = self.read_settings()
            sizes = int(found["model"]["parameters"]), int(found["data"]["clients"])
        return 8 * MAX_VECTORS * (sizes[0] + 256) * (sizes[1] + 1)

    def _check_entry(self, entry: dict[str, Any]) -> None:
        """Refuse an entry that was changed, or that does not fit the plan and the history."""
        rounds, facts = entry["rounds"], entry["facts"]
        named = STATE.fullmatch(entry["file"])
        if entry_checksum(entry) != entry["check"]:
            raise CheckpointError("its entry in checkpoint.json was changed")
        if named is None or int(named[1]) != rounds:
            raise CheckpointError(f"it is said to be after {rounds} rounds")
        if not self.is_started:
            return
        plan, status = self.read_settings().get("rounds"), facts.get("status")
        if type(plan) is not int or not rounds <= plan:
            raise CheckpointError(f"it is after {rounds} rounds, but the run has {plan}")
        if status not in STATUSES or (status == "finished" and rounds != plan):
            raise CheckpointError(f"after {rounds} of {plan} rounds the run cannot be {status!r}")
        best = facts.get("best")
        if not _is_best(best, rounds):
            raise CheckpointError(f"the best model cannot be {best!r} after {rounds} rounds")
        replays = facts.get("replays")
        if type(replays) is not int or not 0 <= replays < 1 << 60:
            raise CheckpointError(f"{replays!r} rounds cannot have been run again")
        if (lines := len(self._history_lines())) < rounds:
            raise CheckpointError(f"it is after {rounds} rounds, but the history has {lines}")


def _is_best(best: Any, rounds: int) -> bool:
    """Whether this is the record of the best model of this number of rounds."""
    names = {"score", "margin", "round", "lowest", "waited"}
    if not isinstance(best, dict) or best.keys() != names:
        return False
    round, waited = best["round"], best["waited"]
    numbers = (best["score"], best["margin"], best["lowest"])
    is_number = all(number is None or type(number) in (int, float) for number in numbers)
    is_count = type(round) is int and type(waited) is int
    return is_number and is_count and -1 <= round < max(rounds, 1) and 0 <= waited <= rounds
