"""A client's memory on the disk of its node, in versions.

Each version of the memory is a file of its own, named after the round that created it. The server
states in each message from which version the work starts and what the new version is called. So a
repeated round starts from the same memory as before, a round that the server did not commit has no
effect, and a node that lacks the requested version knows that its memory is lost.

    HOME / RUN / CLIENT / 12-5f0c9a3e.memory     after round 12
    HOME / RUN / CLIENT / 12-5f0c9a3e.half       the same, until the means come back

A file is the SHA-256 of its content followed by safetensors; it is replaced atomically and synced.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError, DataError
from ..core.files import check_writable, pack_tensors, read_file, unpack_tensors, write_atomically
from ..core.types import State
from ..simulation.memory import free_ram

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
            stored = read_file(self._file(version, kind), free_ram())
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
