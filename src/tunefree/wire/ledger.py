"""The byte ledger: what crossed the network, by direction and channel.

Every vector and scalar is counted at the length of its real encoding, both ways, exchanges
inside a round included. Measurements for the history (the training loss) are not traffic.
"""

from collections import Counter
from dataclasses import dataclass, field

from ..types import Channels
from .dense import Dense


@dataclass
class Ledger:
    """Bytes of one round, by channel name."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)

    def send_down(self, channels: Channels, receivers: int) -> None:
        """Count a broadcast: every channel, once per receiver."""
        for name, value in channels.items():
            self.down[name] += Dense().pack(value)[1] * receivers

    def send_up(self, name: str, size: int) -> None:
        """Count what clients sent on a channel."""
        self.up[name] += size

    @property
    def bytes_up(self) -> int:
        """Bytes from clients to server."""
        return sum(self.up.values())

    @property
    def bytes_down(self) -> int:
        """Bytes from server to clients."""
        return sum(self.down.values())
