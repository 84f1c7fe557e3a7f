"""Constraint sets: h is 0 inside and inf outside, so the proximal map is the projection.

Parikh & Boyd 2014, sections 6.2.4 and 6.5.1; Duchi et al., ICML 2008, Figure 1 and section 4,
after Held, Wolfe & Crowder 1974.

    Box:      low <= x_j <= high for all j
              prox(v, alpha)_j = min(max(v_j, low), high)
    L2Ball:   |x| <= radius
              prox(v, alpha) = v min(1, radius / |v|)
    L1Ball:   |x|_1 <= radius, hence zeros
              prox(v, alpha)_j = sign(v_j) max(|v_j| - tau, 0),   tau >= 0 the least that fits
    Simplex:  x_j >= 0 for all j and sum_j x_j = total
              prox(v, alpha)_j = max(v_j - tau, 0),   tau such that the sum is total

Differences from the paper: none; L1Ball and Simplex sort, so d log d, and compute tau in float64.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_argument
from ..core.fields import Positive
from ..core.layout import Layout
from .penalty import Number, Penalty, indicator, length, slack


@dataclass(frozen=True)
class Box(Penalty):
    """low <= x_j <= high.

    Args:
        low: Smallest value, < high; -inf for none.
        high: Largest value; inf for none.
    """

    fusible: ClassVar[bool] = True
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            is_number = is_number and not math.isnan(value)
            check_argument("Box", name, value, "a number", is_number)
        if not self.low < self.high:
            raise ArgumentError(
                f"Box(low=..., high=...) must have low < high, got {self.low!r} and {self.high!r}."
            )

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        low, high = (b + s * slack(x) * abs(b) for b, s in ((self.low, -1), (self.high, 1)))
        return indicator(((x >= low) & (x <= high)).all(-1), x)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "Box.prox")
        return v.clamp(self.low, self.high)


@dataclass(frozen=True)
class L2Ball(Penalty):
    """|x| <= radius.

    Args:
        radius: Greatest length, > 0.
    """

    fusible: ClassVar[bool] = True
    radius: Positive = 1.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return indicator(length(x) <= self.radius * (1 + slack(x)), x)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "L2Ball.prox")
        return v * (self.radius / length(v)).clamp(max=1)[..., None]


@dataclass(frozen=True)
class L1Ball(Penalty):
    """|x|_1 <= radius.

    Args:
        radius: Greatest sum of absolute values, > 0.
    """

    radius: Positive = 1.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return indicator(x.abs().sum(-1) <= self.radius * (1 + slack(x)), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        self.check(alpha, "L1Ball.prox")
        size = v.abs()
        tau = _threshold(size, self.radius).clamp_(min=0)  # negative inside the ball
        return (size - tau).clamp_(min=0).to(v.dtype).copysign_(v)


@dataclass(frozen=True)
class Simplex(Penalty):
    """x_j >= 0 and sum_j x_j = total.

    Args:
        total: The sum of all entries, > 0.
    """

    total: Positive = 1.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        room = slack(x) * self.total
        close = (x.sum(-1) - self.total).abs() <= room
        return indicator(close & (x >= -room).all(-1), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        self.check(alpha, "Simplex.prox")
        return (v - _threshold(v, self.total)).clamp_(min=0).to(v.dtype)


def _threshold(v: Tensor, total: float) -> Tensor:
    """Return tau of each row with sum_j max(v_j - tau, 0) = total: (..., d) -> (..., 1)."""
    down = v.sort(dim=-1, descending=True).values.double()
    excess = down.cumsum(-1) - total  # of the k largest
    k = torch.arange(1, v.shape[-1] + 1, device=v.device)
    count = (down * k > excess).sum(-1, keepdim=True).clamp(min=1)  # those that stay positive
    return excess.gather(-1, count - 1) / count
