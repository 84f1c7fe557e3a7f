"""A multiple of another penalty.

    h(x)           = factor p(x),     rho = factor rho_p
    prox(v, alpha) = prox of p at v with step alpha factor

Differences from the paper: none; P4 writes its regularisers as kappa p.
"""

from dataclasses import dataclass, field

from torch import Tensor

from ..core.errors import ArgumentError, check_nonnegative
from ..core.layout import Layout
from .concave import SCAD
from .penalty import Penalty


@dataclass(frozen=True)
class Scaled(Penalty):
    """Another penalty, made weaker or stronger as a whole.

    Args:
        factor: What it is multiplied by, >= 0.
        penalty: The other one, such as SCAD(weight=1.0).
    """

    factor: float = 1e-4
    penalty: Penalty = field(default_factory=lambda: SCAD(1.0))

    def __post_init__(self) -> None:
        check_nonnegative("Scaled", "factor", self.factor)
        if not isinstance(self.penalty, Penalty):
            raise ArgumentError(f"Scaled(penalty=...) must be a Penalty, got {self.penalty!r}.")

    @property
    def rho(self) -> float:
        """The weak convexity, multiplied too."""
        return self.factor * self.penalty.rho

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return factor p(x)."""
        return self.factor * self.penalty.value(x, layout)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the other penalty's proximal point for a step of alpha factor."""
        self.check(alpha, "Scaled.prox")
        return self.penalty.prox(v, alpha * self.factor, layout)
