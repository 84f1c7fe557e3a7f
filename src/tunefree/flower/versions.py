"""The server's record of the clients' memory: which version of each client's memory is current.

A round creates new versions, which become current when the round is committed. For methods that
send means back to the clients, the server also records which clients have not confirmed them.
"""

import json
import secrets

import torch
from torch import Tensor

from ..core.types import Channels
from .store import FIRST


class MemoryVersions:
    """Versions of the clients' memories, and means that clients have not confirmed.

    Args:
        has_memory: Whether the method's clients have a memory.
    """

    def __init__(self, has_memory: bool) -> None:
        self.has_memory = has_memory
        self._versions: dict[int, str] = {}  # current version by client; FIRST if missing
        self._renewed: set[int] = set()  # clients that were reset
        self._unconfirmed: dict[int, str] = {}  # version whose means a client has not confirmed
        self._means: dict[str, Channels] = {}  # unconfirmed means by version
        self._pending: dict[int, str] = {}  # versions of the current round

    def base_of(self, i: int) -> str:
        """Return the version from which a client starts its local work."""
        return self._versions.get(i, FIRST)

    def needs_start(self, i: int, t: int) -> bool:
        """Return whether a client joins after round 0 and so needs the first model."""
        return self.has_memory and self.base_of(i) == FIRST and t > 0 and i not in self._renewed

    def unconfirmed(self, i: int) -> str | None:
        """Return the version whose means a client has not confirmed, if any."""
        return self._unconfirmed.get(i)

    def means_of(self, version: str) -> Channels:
        """Return the means that belong to a version."""
        return self._means[version]

    def store_means(self, version: str, means: Channels) -> None:
        """Keep means until every client has confirmed them."""
        self._means[version] = means

    def record_confirmations(
        self, answered: list[int], confirmed: dict[int, bool], version: str
    ) -> None:
        """Record which clients confirmed a version's means; drop means that all have confirmed."""
        self._unconfirmed = {i: v for i, v in self._unconfirmed.items() if i not in answered}
        self._unconfirmed |= {i: version for i in answered if i not in confirmed}
        self._means = {v: self._means[v] for v in set(self._unconfirmed.values())}

    def record_answers(self, clients: list[int], version: str) -> None:
        """Record which clients have the version of the current round."""
        self._pending = dict.fromkeys(clients, version) if self.has_memory else {}

    def reset(self, i: int) -> bool:
        """Let a client start from its first memory; return False if it was reset before."""
        if i in self._renewed:
            return False
        self._versions.pop(i, None)
        self._unconfirmed.pop(i, None)
        self._renewed.add(i)
        return True

    def record_preparation(self, i: int, version: str) -> None:
        """Record that a client has prepared again after a reset."""
        self._versions[i] = version

    def commit(self) -> None:
        """Make the versions of the current round current."""
        self._versions |= self._pending
        self._renewed -= self._pending.keys()
        self._pending = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        state = {
            "versions": self._versions,
            "owed": self._unconfirmed,
            "renewed": sorted(self._renewed),
        }
        text = bytearray(json.dumps(state).encode())
        out = {"nodes": torch.frombuffer(text, dtype=torch.uint8)}
        for version, means in self._means.items():
            out |= {f"echo/{version}/{name}": v for name, v in means.items()}
        return out

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Restore the state from a checkpoint."""
        state = json.loads(bytes(tensors["nodes"].tolist()))
        self._versions = {int(i): v for i, v in state["versions"].items()}
        self._unconfirmed = {int(i): v for i, v in state["owed"].items()}
        self._renewed = set(state["renewed"])
        self._means = {}
        for name, value in tensors.items():
            if name.startswith("echo/"):
                _, version, channel = name.split("/", 2)
                self._means.setdefault(version, {})[channel] = value.to(device)


def new_version(t: int) -> str:
    """Return a new name for the memory that round t creates."""
    return f"{t}-{secrets.token_hex(4)}"
