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


class Memories:
    """The versions of the clients' memories, and the means that are owed to them.

    Args:
        kept: Whether clients remember anything.
    """

    def __init__(self, kept: bool) -> None:
        self.kept = kept
        self._versions: dict[int, str] = {}  # whose memory is at which; others' is the first
        self._renewed: set[int] = set()
        self._owed: dict[int, str] = {}  # who has not confirmed the means of a round
        self._echoes: dict[str, Channels] = {}
        self._pending: dict[int, str] = {}

    def base(self, i: int) -> str:
        """Return the version that a client begins from."""
        return self._versions.get(i, FIRST)

    def starts(self, i: int, t: int) -> bool:
        """Whether a client is first asked after round 0, and needs the first model."""
        return self.kept and self.base(i) == FIRST and t > 0 and i not in self._renewed

    def owed(self, i: int) -> str | None:
        """Return the version whose means a client has not confirmed."""
        return self._owed.get(i)

    def means(self, version: str) -> Channels:
        """Return the means that were sent back for a version."""
        return self._echoes[version]

    def echo(self, version: str, means: Channels) -> None:
        """Keep means until everybody has confirmed them."""
        self._echoes[version] = means

    def confirmed(self, answered: list[int], kept: dict[int, bool], version: str) -> None:
        """Note who of those that answered confirmed the means; forget what nobody is owed."""
        self._owed = {i: v for i, v in self._owed.items() if i not in answered}
        self._owed |= {i: version for i in answered if i not in kept}
        self._echoes = {v: self._echoes[v] for v in set(self._owed.values())}

    def answered(self, people: list[int], version: str) -> None:
        """Note whose memory is at a version if the round counts."""
        self._pending = dict.fromkeys(people, version) if self.kept else {}

    def renew(self, i: int) -> bool:
        """Let a client begin anew; whether it had not in this round already."""
        if i in self._renewed:
            return False
        self._versions.pop(i, None)
        self._owed.pop(i, None)
        self._renewed.add(i)
        return True

    def prepared(self, i: int, version: str) -> None:
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
            "owed": self._owed,
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
        self._owed = {int(i): v for i, v in known["owed"].items()}
        self._renewed = set(known["renewed"])
        self._echoes = {}
        for name, value in tensors.items():
            if name.startswith("echo/"):
                _, version, channel = name.split("/", 2)
                self._echoes.setdefault(version, {})[channel] = value.to(device)


def new_version(t: int) -> str:
    """Return a new name for what round t makes of a memory."""
    return f"{t}-{secrets.token_hex(4)}"
