"""A box: every entry between two bounds.

    h(x) = 0 if low <= x_j <= high for all j, else inf
    prox(v, alpha)_j = min(max(v_j, low), high)

Differences from the paper: none; Parikh & Boyd 2014, section 6.2.4.
"""

import math
from dataclasses import dataclass
from numbers import Real

from torch import Tensor

from ..core.errors import ArgumentError
from ..core.layout import Layout
from .penalty import Penalty, indicator, slack


@dataclass(frozen=True)
class Box(Penalty):
    """low <= x_j <= high.

    Args:
        low: Smallest value, < high; -inf for none.
        high: Largest value; inf for none.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
                raise ArgumentError(f"Box({name}=...) must be a number, got {value!r}.")
        if not self.low < self.high:
            raise ArgumentError(
                f"Box(low=..., high=...) must have low < high, got {self.low!r} and {self.high!r}."
            )

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for rows in the box, inf for others."""
        low, high = (b + s * slack(x) * abs(b) for b, s in ((self.low, -1), (self.high, 1)))
        return indicator(((x >= low) & (x <= high)).all(-1), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the nearest point of the box."""
        self.check(alpha, "Box.prox")
        return v.clamp(self.low, self.high)
