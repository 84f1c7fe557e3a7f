"""The l1 ball: a bound on the sum of absolute values, hence zeros.

Duchi et al., ICML 2008, Figure 1 and section 4.

    h(x) = 0 if |x|_1 <= radius, else inf
    prox(v, alpha)_j = sign(v_j) max(|v_j| - tau, 0),   tau >= 0 the least that fits

Differences from the paper: none; sorted, so d log d, and tau is computed in float64.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.errors import check_positive
from ..core.layout import Layout
from .penalty import Penalty, indicator, slack
from .simplex import threshold


@dataclass(frozen=True)
class L1Ball(Penalty):
    """|x|_1 <= radius.

    Args:
        radius: Greatest sum of absolute values, > 0.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("L1Ball", "radius", self.radius)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for rows in the ball, inf for others."""
        return indicator(x.abs().sum(-1) <= self.radius * (1 + slack(x)), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the nearest point of the ball."""
        self.check(alpha, "L1Ball.prox")
        size = v.abs()
        tau = threshold(size, self.radius).clamp_(min=0)  # negative inside the ball
        return (size - tau).clamp_(min=0).to(v.dtype).copysign_(v)
