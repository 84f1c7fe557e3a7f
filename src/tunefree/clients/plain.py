"""No correction: the client follows its own gradient.

    d = g_i(y)

Differences from the paper: none; this is FedAvg's client (McMahan et al., AISTATS 2017).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.plan import Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem


@dataclass(frozen=True)
class Plain(Direction):
    """Direction that leaves the gradient as it is."""

    @property
    def changes_gradient(self) -> bool:
        """False, unless a subclass overrides `local_problem`."""
        return type(self).local_problem is not Plain.local_problem

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Return the client's own loss."""
        return LocalProblem()


@dataclass(frozen=True)
class Everyone(Plain):
    """The same direction, for methods that are defined for full participation only."""

    full: ClassVar[bool] = True
