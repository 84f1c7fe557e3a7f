"""The byte ledger: what crossed the network, by direction and channel.

Every vector and scalar is counted at the length of its real encoding, both ways, exchanges
inside a round included. A vector that a cohort was sent in this round is not sent to it again.
Measurements for the history (the training loss) are not traffic.
"""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from ..core.types import Channels


@dataclass
class Ledger:
    """Bytes of one round, by channel name; `counted_up` as papers count, without indices."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    counted_up: float = 0.0
    _held: list[Tensor] = field(default_factory=list)  # vectors that the cohort has by now

    def send_down(self, channels: Channels, receivers: int, *, all: bool = False) -> None:
        """Count a broadcast to the cohort, or to all: every channel, once per receiver."""
        for name, value in channels.items():
            if not all and any(value is held for held in self._held):
                continue
            self.down[name] += value.numel() * value.element_size() * receivers
            if value.ndim > 0:
                self._held.append(value)

    def send_up(self, name: str, size: int, counted: float | None = None) -> None:
        """Count what clients sent on a channel."""
        self.up[name] += size
        self.counted_up += size if counted is None else counted

    def add(self, other: "Ledger") -> None:
        """Count what another ledger counted on the way up."""
        self.up.update(other.up)
        self.counted_up += other.counted_up

    @property
    def bytes_up(self) -> int:
        """Bytes from clients to server."""
        return sum(self.up.values())

    @property
    def bytes_down(self) -> int:
        """Bytes from server to clients."""
        return sum(self.down.values())
