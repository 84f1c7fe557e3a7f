"""The Euclidean ball: the whole vector no longer than a radius.

    h(x) = 0 if |x| <= radius, else inf
    prox(v, alpha) = v min(1, radius / |v|)

Differences from the paper: none; Parikh & Boyd 2014, section 6.5.1.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.errors import check_positive
from ..core.layout import Layout
from .penalty import Penalty, indicator, length, slack


@dataclass(frozen=True)
class L2Ball(Penalty):
    """|x| <= radius.

    Args:
        radius: Greatest length, > 0.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("L2Ball", "radius", self.radius)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for rows in the ball, inf for others."""
        return indicator(length(x) <= self.radius * (1 + slack(x)), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the nearest point of the ball."""
        self.check(alpha, "L2Ball.prox")
        return v * (self.radius / length(v)).clamp(max=1)[..., None]
