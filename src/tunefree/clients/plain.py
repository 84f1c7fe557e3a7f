"""No direction at all: the client follows its own gradient.

    d = g_i(y)

Differences from the paper: none; this is FedAvg's client (McMahan et al., AISTATS 2017).
"""

from dataclasses import dataclass

from ..types import Channels, State, Vector
from .rule import Direction, Local


@dataclass(frozen=True)
class Plain(Direction):
    """Direction that leaves the gradient as it is."""

    def local(self, x: Vector, down: Channels, own: State) -> Local:
        """Return no bend."""
        return Local()
