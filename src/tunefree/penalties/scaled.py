"""A multiple of another penalty, and no penalty: the smooth problem itself.

    Scaled:  h(x) = factor p(x),     rho = factor rho_p
             prox(v, alpha) = prox of p at v with step alpha factor
    Zero:    h(x) = 0,   prox(v, alpha) = v

Differences from the paper: none; P4 writes its regularisers as kappa p.
"""

from dataclasses import dataclass, field

from torch import Tensor

from ..core.fields import NonNegative
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

    factor: NonNegative = 1e-4
    penalty: Penalty = field(default_factory=lambda: SCAD(1.0))

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


@dataclass(frozen=True)
class Zero(Penalty):
    """h = 0, so that a composite method can be run without a regulariser."""

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for every row."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return v itself."""
        self.check(alpha, "Zero.prox")
        return v
