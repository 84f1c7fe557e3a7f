"""MCP and SCAD: zeros as with l1, but large entries are not shrunk.

Zhang, Annals of Statistics 38(2), 2010 (minimax concave penalty); Fan & Li, JASA 96(456), 2001
(smoothly clipped absolute deviation). h(x) = sum_j p(|x_j|):

    MCP:   p(t) = weight t - t^2 / (2 gamma)                                 for t <= gamma weight
           p(t) = gamma weight^2 / 2                                         beyond
           prox(v, alpha)_j = sign(v_j) min(|v_j|, max(|v_j| - alpha weight, 0) / (1 - alpha/gamma))

    SCAD:  p(t) = weight t                                                   for t <= weight
           p(t) = (2 a weight t - t^2 - weight^2) / (2 (a - 1))              for t <= a weight
           p(t) = weight^2 (a + 1) / 2                                       beyond
           prox(v, alpha)_j = sign(v_j) min(|v_j|, line(|v_j|))
    line(t) = max(t - alpha weight, 0) + alpha / (a - 1 - alpha) max(t - (1 + alpha) weight, 0)

SCAD's line is the soft threshold first, from (1 + alpha) weight on ((a - 1) t - a alpha weight) /
(a - 1 - alpha), and meets t at a weight. A multiple kappa h of MCP is MCP(kappa weight,
gamma / kappa).

Differences from the paper: SCAD takes any step alpha < a - 1 instead of 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from ..core.errors import check_between
from ..core.fields import NonNegative, Positive
from ..core.layout import Layout
from ..core.vectors import blockwise
from .penalty import Penalty


@dataclass(frozen=True)
class MCP(Penalty):
    """l1 near zero, flat beyond gamma weight; 1/gamma weakly convex.

    Args:
        weight: Slope at zero, the paper's lambda, >= 0; also sets where h is flat.
        gamma: How far the slope takes to vanish, in weights, > 0; l1 as it grows.
    """

    weight: NonNegative = 1e-4
    gamma: Positive = 3.0

    @property
    def rho(self) -> float:
        """1 / gamma, and 0 without a weight."""
        return 1 / self.gamma if self.weight else 0.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the sum of p over the entries."""
        t = x.abs().clamp(max=self.gamma * self.weight)  # p is constant beyond
        return self.weight * t.sum(-1) - t.square().sum(-1) / (2 * self.gamma)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return zero, a line that catches up with v, or v."""
        self.check(alpha, "MCP.prox")
        if alpha == 0 or self.weight == 0:
            return v
        low, slope = alpha * self.weight, 1 / (1 - alpha / self.gamma)

        def shrink(v: Tensor) -> Tensor:
            size = v.abs()
            line = softshrink(size, low).mul_(slope)
            return torch.minimum(line, size).copysign_(v)

        return blockwise(shrink, v)


@dataclass(frozen=True)
class SCAD(Penalty):
    """l1 up to weight, flat beyond a weight; 1/(a - 1) weakly convex.

    Args:
        weight: Slope at zero, the paper's lambda, >= 0; also sets where h is quadratic.
        a: Where h becomes flat, in weights, > 2; l1 as it grows.
    """

    weight: NonNegative = 1e-4
    a: float = 3.7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("SCAD", "a", self.a, 2, float("inf"))

    @property
    def rho(self) -> float:
        """1 / (a - 1), and 0 without a weight."""
        return 1 / (self.a - 1) if self.weight else 0.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the sum of p over the entries."""
        t = x.abs().clamp(max=self.a * self.weight)  # p is constant beyond
        over = (t - self.weight).clamp(min=0).square()  # how far below weight t, scaled
        return self.weight * t.sum(-1) - over.sum(-1) / (2 * (self.a - 1))

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the soft threshold, a line that catches up with v, or v."""
        self.check(alpha, "SCAD.prox")
        if alpha == 0 or self.weight == 0:
            return v
        low, knee = alpha * self.weight, (1 + alpha) * self.weight
        steeper = alpha / (self.a - 1 - alpha)  # than the soft threshold, from the knee on

        def shrink(v: Tensor) -> Tensor:
            size = v.abs()
            line = softshrink(size, low).add_(softshrink(size, knee), alpha=steeper)
            return torch.minimum(line, size).copysign_(v)

        return blockwise(shrink, v)
