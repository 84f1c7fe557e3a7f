"""The squared l2 norm: ridge, or weight decay done by the proximal map.

Hoerl & Kennard, Technometrics 12(1), 1970.

    h(x) = (weight / 2) |x|^2
    prox(v, alpha) = v / (1 + alpha weight)

Differences from the paper: the factor 1/2.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.errors import check_nonnegative
from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class L2(Penalty):
    """(weight / 2) |x|^2.

    Args:
        weight: How strong, >= 0.
    """

    weight: float = 1e-4

    def __post_init__(self) -> None:
        check_nonnegative("L2", "weight", self.weight)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return weight / 2 times the squared length."""
        return self.weight / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return v, shrunk by one factor."""
        self.check(alpha, "L2.prox")
        return v / (1 + alpha * self.weight)
