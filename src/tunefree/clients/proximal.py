"""No correction, and a pull to the server's model."""

from dataclasses import dataclass
from typing import ClassVar

from ..core.fields import NonNegative
from ..core.plan import Round
from ..core.types import Channels, State, Vector
from ..core.vectors import row_sq
from .rule import Direction, LocalProblem, LocalResult


@dataclass(frozen=True)
class Plain(Direction):
    """No correction: the client follows its own gradient.

        d = g_i(y)

    Differences from the paper: none; this is FedAvg's client (McMahan et al., AISTATS 2017).
    """

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


@dataclass(frozen=True)
class Proximal(Direction):
    """FedProx's direction: pull each client back towards the server's model.

    Li et al., MLSys 2020, equation (2). arXiv:1812.06127

        phi_i(y) = f_i(y) + (mu / 2) |y - x|^2,     d = g_i(y) + mu (y - x)

    Differences from the paper: the inexactness gamma is not tracked; a client takes its local
    steps.

    Args:
        mu: Strength of the pull, >= 0, in units of 1 / lr.
    """

    mu: NonNegative = 0.1

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Return the pull to x."""
        return LocalProblem(mu=self.mu, anchor=x) if self.mu else LocalProblem()


@dataclass(frozen=True)
class Moreau(Proximal):
    """The same pull, with the value of the client's Moreau envelope sent along (FedExProx).

    Args:
        mu: Strength of the pull, >= 0, in units of 1 / lr.
    """

    reports: ClassVar[tuple[str, ...]] = ("envelope",)
    records: ClassVar[tuple[str, ...]] = ("loss_end",)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send f_i(y) + (mu / 2) |y - x|^2."""
        assert work.loss_end is not None
        return {"envelope": work.loss_end + (self.mu / 2) * row_sq(work.delta)}, own
