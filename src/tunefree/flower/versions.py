"""The server's record of the clients' memory: which version of each client's memory is current.

A round creates new versions, which become current when the round is committed. For methods that
send means back to the clients, the server also records which clients have not confirmed them.
"""

import json
import secrets
from collections.abc import Container

import torch
from torch import Tensor

from ..core.types import Channels
from .store import FIRST


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
