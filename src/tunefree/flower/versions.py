"""Which memory of each client counts, as the server knows it.

A round makes new versions; they count once the round is committed. Where means are sent back, the
server also remembers who has not confirmed them.
"""

import json
import secrets

import torch
from torch import Tensor

from ..core.types import Channels
from .store import FIRST


class MemoryVersions:
    """The versions of the clients' memories, and the means that are owed to them.

    Args:
        kept: Whether clients remember anything.
    """

    def __init__(self, kept: bool) -> None:
        self.has_memory = kept
        self._versions: dict[int, str] = {}  # whose memory is at which; others' is the first
        self._renewed: set[int] = set()
        self._unconfirmed: dict[int, str] = {}  # who has not confirmed the means of a round
        self._echoes: dict[str, Channels] = {}
        self._pending: dict[int, str] = {}

    def base_of(self, i: int) -> str:
        """Return the version that a client begins from."""
        return self._versions.get(i, FIRST)

    def needs_start(self, i: int, t: int) -> bool:
        """Whether a client is first asked after round 0, and needs the first model."""
        return self.has_memory and self.base_of(i) == FIRST and t > 0 and i not in self._renewed

    def unconfirmed(self, i: int) -> str | None:
        """Return the version whose means a client has not confirmed."""
        return self._unconfirmed.get(i)

    def means_of(self, version: str) -> Channels:
        """Return the means that were sent back for a version."""
        return self._echoes[version]

    def store_means(self, version: str, means: Channels) -> None:
        """Keep means until everybody has confirmed them."""
        self._echoes[version] = means

    def record_confirmations(
        self, answered: list[int], kept: dict[int, bool], version: str
    ) -> None:
        """Note who of those that answered confirmed the means; forget what nobody is owed."""
        self._unconfirmed = {i: v for i, v in self._unconfirmed.items() if i not in answered}
        self._unconfirmed |= {i: version for i in answered if i not in kept}
        self._echoes = {v: self._echoes[v] for v in set(self._unconfirmed.values())}

    def record_answers(self, people: list[int], version: str) -> None:
        """Note whose memory is at a version if the round counts."""
        self._pending = dict.fromkeys(people, version) if self.has_memory else {}

    def reset(self, i: int) -> bool:
        """Let a client begin anew; whether it had not in this round already."""
        if i in self._renewed:
            return False
        self._versions.pop(i, None)
        self._unconfirmed.pop(i, None)
        self._renewed.add(i)
        return True

    def record_preparation(self, i: int, version: str) -> None:
        """Note that a renewed client has prepared."""
        self._versions[i] = version

    def commit(self) -> None:
        """Let the versions of the round count."""
        self._versions |= self._pending
        self._renewed -= self._pending.keys()
        self._pending = {}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs: which versions count, and means that are still owed."""
        known = {
            "versions": self._versions,
            "owed": self._unconfirmed,
            "renewed": sorted(self._renewed),
        }
        text = bytearray(json.dumps(known).encode())
        out = {"nodes": torch.frombuffer(text, dtype=torch.uint8)}
        for version, means in self._echoes.items():
            out |= {f"echo/{version}/{name}": v for name, v in means.items()}
        return out

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Take it from a checkpoint."""
        known = json.loads(bytes(tensors["nodes"].tolist()))
        self._versions = {int(i): v for i, v in known["versions"].items()}
        self._unconfirmed = {int(i): v for i, v in known["owed"].items()}
        self._renewed = set(known["renewed"])
        self._echoes = {}
        for name, value in tensors.items():
            if name.startswith("echo/"):
                _, version, channel = name.split("/", 2)
                self._echoes.setdefault(version, {})[channel] = value.to(device)


def new_version(t: int) -> str:
    """Return a new name for what round t makes of a memory."""
    return f"{t}-{secrets.token_hex(4)}"
