"""Clients' memory in versions: files on the disk of a node, and the server's record of them.

Each version of the memory is a file of its own, named after the round that created it. The server
states in each message from which version the work starts and what the new version is called. So a
repeated round starts from the same memory as before, a round that the server did not commit has no
effect, and a node that lacks the requested version knows that its memory is lost.

    HOME / RUN / CLIENT / 12-5f0c9a3e.memory     after round 12
    HOME / RUN / CLIENT / 12-5f0c9a3e.half       the same, until the means come back

A file is the SHA-256 of its content followed by safetensors; it is replaced atomically and synced.

A round creates new versions, which become current when the server commits it. For methods that send
means back to the clients, the server also records which clients have not confirmed them.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.device import measure_free_ram
from ..core.errors import CheckpointError, DataError
from ..core.files import check_writable, pack_tensors, read_file, unpack_tensors, write_atomically
from ..core.types import Channels, State

FIRST = ""  # the version before a client's first round
MEMORY_VARIABLE = "TUNEFREE_MEMORY"  # folder of the memory, unless the node's configuration has one
KEEP_NEWEST = 3  # versions that are never removed: the server may go back to an older checkpoint
_RUN, _VERSION = re.compile(r"[0-9a-f]{8,64}"), re.compile(r"-?[0-9]{1,9}-[0-9a-f]{8}")


def memory_home(config: Mapping[str, Any]) -> Path:
    """Return the folder for all memory of a node, from its configuration."""
    home = config.get("memory") or os.environ.get(MEMORY_VARIABLE) or "~/.tunefree/memory"
    return Path(str(home)).expanduser()


class MemoryStore:
    """The versions of one client's memory in one run, below the home of all memory of a node."""

    def __init__(self, home: Path, run: str, client: int) -> None:
        if not _RUN.fullmatch(run):
            raise DataError(f"The id of a run must be hexadecimal, got {run!r}.")
        self.home, self.client = home, int(client)
        self.path = home / run / str(self.client)

    def _file(self, version: str, kind: str) -> Path:
        if not _VERSION.fullmatch(version):
            raise DataError(f"A version must have the form 12-5f0c9a3e, got {version!r}.")
        return self.path / f"{version}.{kind}"

    def write(self, version: str, state: State, kind: str = "memory") -> None:
        """Write a version and sync it to disk."""
        data, path = pack_tensors(state), self._file(version, kind)
        with check_writable("A client's memory must be a file", path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(path, hashlib.sha256(data).digest() + data)

    def read(self, version: str, kind: str = "memory") -> State | None:
        """Return a version, or None if it is missing or damaged."""
        try:
            stored = read_file(self._file(version, kind), measure_free_ram())
            if hashlib.sha256(stored[32:]).digest() != stored[:32]:
                return None
            return unpack_tensors(stored[32:])
        except (OSError, CheckpointError):
            return None

    def prune(self, *needed: str) -> None:
        """Remove all versions except the newest and the needed ones."""
        found = sorted(self.path.glob("*.*"), key=lambda p: p.lstat().st_mtime_ns)
        versions = dict.fromkeys(p.stem for p in found if _VERSION.fullmatch(p.stem))
        keep = {*list(versions)[-KEEP_NEWEST:], *needed}
        for path in found:
            if path.stem in versions and path.stem not in keep:
                path.unlink(missing_ok=True)


class MemoryVersions:
    """Versions of the clients' memories, and means that clients have not confirmed."""

    def __init__(self, has_memory: bool) -> None:
        self.has_memory = has_memory
        self.current: dict[int, str] = {}  # version by client; FIRST if missing
        self.unconfirmed: dict[int, str] = {}  # version whose means a client has not confirmed
        self.means: dict[str, Channels] = {}  # unconfirmed means by version
        self.excluded: set[int] = set()  # clients that are not asked for masked numbers any more
        self._renewed: set[int] = set()  # clients that were reset
        self._pending: dict[int, str] = {}  # versions of the current round

    def needs_start(self, i: int, t: int) -> bool:
        """Return whether a client joins after round 0 and so needs the first model."""
        is_first = self.current.get(i, FIRST) == FIRST and i not in self._renewed
        return self.has_memory and is_first and t > 0

    def record_confirmations(
        self, answered: list[int], confirmed: Container[int], version: str
    ) -> None:
        """Record which clients confirmed a version's means; drop means that all have confirmed."""
        self.unconfirmed = {i: v for i, v in self.unconfirmed.items() if i not in answered}
        self.unconfirmed |= {i: version for i in answered if i not in confirmed}
        self.means = {v: self.means[v] for v in set(self.unconfirmed.values())}

    def record_answers(self, clients: list[int], version: str) -> None:
        """Record which clients have the version of the current round."""
        self._pending = dict.fromkeys(clients, version) if self.has_memory else {}

    def reset(self, i: int) -> bool:
        """Let a client start from its first memory; return False if it was reset before."""
        if i in self._renewed:
            return False
        self.current.pop(i, None)
        self.unconfirmed.pop(i, None)
        self._renewed.add(i)
        return True

    def commit(self) -> None:
        """Make the versions of the current round current."""
        self.current |= self._pending
        self._renewed -= self._pending.keys()
        self._pending = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        state = {
            "versions": self.current,
            "owed": self.unconfirmed,
            "renewed": sorted(self._renewed),
            "excluded": sorted(self.excluded),
        }
        text = bytearray(json.dumps(state).encode())
        out = {"nodes": torch.frombuffer(text, dtype=torch.uint8)}
        for version, means in self.means.items():
            out |= {f"echo/{version}/{name}": v for name, v in means.items()}
        return out

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore the state from a checkpoint."""
        state = json.loads(bytes(tensors["nodes"].tolist()))
        self.current = {int(i): v for i, v in state["versions"].items()}
        self.unconfirmed = {int(i): v for i, v in state["owed"].items()}
        self._renewed, self.excluded = set(state["renewed"]), set(state["excluded"])
        self.means = {}
        for name, value in tensors.items():
            if name.startswith("echo/"):
                _, version, channel = name.split("/", 2)
                self.means.setdefault(version, {})[channel] = value.to(device)


def new_version(t: int) -> str:
    """Return a new name for the memory that round t creates."""
    return f"{t}-{secrets.token_hex(4)}"
