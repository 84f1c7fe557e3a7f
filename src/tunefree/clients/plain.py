"""No direction at all: the client follows its own gradient.

    d = g_i(y)

Differences from the paper: none; this is FedAvg's client (McMahan et al., AISTATS 2017).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.plan import Round
from ..core.types import Channels, State, Vector
from .rule import Direction, Local


@dataclass(frozen=True)
class Plain(Direction):
    """Direction that leaves the gradient as it is."""

    @property
    def bends(self) -> bool:
        """Whether somebody has put another bend in here."""
        return type(self).local is not Plain.local

    def local(self, x: Vector, down: Channels, own: State, t: Round) -> Local:
        """Return no bend."""
        return Local()


@dataclass(frozen=True)
class Everyone(Plain):
    """The same, for methods that are defined for full participation alone."""

    full: ClassVar[bool] = True
