"""FedProx's direction: pull each client back towards the server's model.

Li et al., MLSys 2020, equation (2). arXiv:1812.06127

    phi_i(y) = f_i(y) + (mu / 2) |y - x|^2,     d = g_i(y) + mu (y - x)

Differences from the paper: the inexactness gamma is not tracked; a client takes its local steps.
"""

from dataclasses import dataclass

from ..errors import not_negative
from ..types import Channels, State, Vector
from .rule import Direction, Local


@dataclass(frozen=True)
class Proximal(Direction):
    """Direction with a quadratic pull to x; mu = 0 is no pull.

    Args:
        mu: Strength of the pull, >= 0, in units of 1 / lr.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        not_negative("Proximal", "mu", self.mu)

    def local(self, x: Vector, down: Channels, own: State) -> Local:
        """Return the pull to x."""
        return Local(mu=self.mu, centre=x)
