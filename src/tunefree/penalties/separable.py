"""Penalties of each entry: norms, concave penalties, multiples of another one, and none.

Tibshirani, JRSS B 58(1), 1996; Hoerl & Kennard, Technometrics 12(1), 1970; Zou & Hastie,
JRSS B 67(2), 2005, the naive form.

    L1:          h(x) = weight sum_j |x_j|
                 prox(v, alpha)_j = sign(v_j) max(|v_j| - alpha weight, 0)
    L2:          h(x) = (weight / 2) |x|^2
                 prox(v, alpha) = v / (1 + alpha weight)
    ElasticNet:  h(x) = l1 |x|_1 + (l2 / 2) |x|^2
                 prox(v, alpha)_j = sign(v_j) max(|v_j| - alpha l1, 0) / (1 + alpha l2)

L1 gives many exact zeros, at the price of shrinking what stays; L2 is ridge, or weight decay done
by the proximal map; with l2, entries that are correlated stay together.

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

    Scaled:  h(x) = factor p(x),     rho = factor rho_p
             prox(v, alpha) = prox of p at v with step alpha factor
    Zero:    h(x) = 0,   prox(v, alpha) = v

Differences from the paper: l1 is a penalty with a weight instead of a bound on the norm (that is
L1Ball); the factor 1/2 on squares; no rescaling of the elastic net's solution by 1 + l2; SCAD takes
any step alpha < a - 1 instead of 1. Scaled: none; P4 writes its regularisers as kappa p.
"""

from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softshrink

from ..core.errors import check_between
from ..core.fields import NonNegative, Positive
from ..core.layout import Layout
from ..core.vectors import blockwise
from .penalty import Number, Penalty, is_zero


def _shrink(v: Tensor, low: Number) -> Tensor:
    """Return sign(v) max(|v| - low, 0), a new tensor."""
    return v - v.clamp(-low, low) if isinstance(low, Tensor) else softshrink(v, low)


@dataclass(frozen=True)
class L1(Penalty):
    """weight |x|_1.

    Args:
        weight: How strong, >= 0.
    """

    fusible: ClassVar[bool] = True
    weight: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return self.weight * x.abs().sum(-1)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "L1.prox")
        return _shrink(v, alpha * self.weight)


@dataclass(frozen=True)
class L2(Penalty):
    """(weight / 2) |x|^2.

    Args:
        weight: How strong, >= 0.
    """

    fusible: ClassVar[bool] = True
    weight: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return self.weight / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "L2.prox")
        return v / (1 + alpha * self.weight)


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """l1 |x|_1 + (l2 / 2) |x|^2.

    Args:
        l1: Weight of the l1 norm, >= 0.
        l2: Weight of half the squared l2 norm, >= 0.
    """

    fusible: ClassVar[bool] = True
    l1: NonNegative = 1e-4
    l2: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return self.l1 * x.abs().sum(-1) + self.l2 / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "ElasticNet.prox")
        return _shrink(v, alpha * self.l1).div_(1 + alpha * self.l2)


@dataclass(frozen=True)
class MCP(Penalty):
    """l1 near zero, flat beyond gamma weight; 1/gamma weakly convex.

    Args:
        weight: Slope at zero, the paper's lambda, >= 0; also sets where h is flat.
        gamma: How far the slope takes to vanish, in weights, > 0; l1 as it grows.
    """

    fusible: ClassVar[bool] = True
    weight: NonNegative = 1e-4
    gamma: Positive = 3.0

    @property
    def rho(self) -> float:
        return 1 / self.gamma if self.weight else 0.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        t = x.abs().clamp(max=self.gamma * self.weight)  # p is constant beyond
        return self.weight * t.sum(-1) - t.square().sum(-1) / (2 * self.gamma)

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "MCP.prox")
        if is_zero(alpha) or self.weight == 0:
            return v
        low, slope = alpha * self.weight, 1 / (1 - alpha / self.gamma)

        def shrink(v: Tensor) -> Tensor:
            size = v.abs()
            line = _shrink(size, low).mul_(slope)
            return torch.minimum(line, size).copysign(v)

        return blockwise(shrink, v)


@dataclass(frozen=True)
class SCAD(Penalty):
    """l1 up to weight, flat beyond a weight; 1/(a - 1) weakly convex.

    Args:
        weight: Slope at zero, the paper's lambda, >= 0; also sets where h is quadratic.
        a: Where h becomes flat, in weights, > 2; l1 as it grows.
    """

    fusible: ClassVar[bool] = True
    weight: NonNegative = 1e-4
    a: Annotated[float, partial(check_between, low=2, high=inf)] = 3.7

    @property
    def rho(self) -> float:
        return 1 / (self.a - 1) if self.weight else 0.0

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        t = x.abs().clamp(max=self.a * self.weight)  # p is constant beyond
        over = (t - self.weight).clamp(min=0).square()  # how far below weight t, scaled
        return self.weight * t.sum(-1) - over.sum(-1) / (2 * (self.a - 1))

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "SCAD.prox")
        if is_zero(alpha) or self.weight == 0:
            return v
        low, knee = alpha * self.weight, (1 + alpha) * self.weight
        steeper = alpha / (self.a - 1 - alpha)  # than the soft threshold, from the knee on

        def shrink(v: Tensor) -> Tensor:
            size = v.abs()
            line, more = _shrink(size, low), _shrink(size, knee)
            if isinstance(steeper, Tensor):
                line = line.addcmul_(more, steeper)
            else:
                line = line.add_(more, alpha=steeper)
            return torch.minimum(line, size).copysign(v)

        return blockwise(shrink, v)


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
    def is_fusible(self) -> bool:
        """Whether that of the other penalty can be compiled."""
        return type(self).prox is Scaled.prox and self.penalty.is_fusible

    @property
    def rho(self) -> float:
        return self.factor * self.penalty.rho

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return self.factor * self.penalty.value(x, layout)

    def prox(self, v: Tensor, alpha: Any, layout: Layout) -> Tensor:
        self.check(alpha, "Scaled.prox")
        return self.penalty.prox(v, alpha * self.factor, layout)


@dataclass(frozen=True)
class Zero(Penalty):
    """h = 0, so that a composite method can be run without a regulariser."""

    fusible: ClassVar[bool] = True

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, alpha: Number, layout: Layout) -> Tensor:
        self.check(alpha, "Zero.prox")
        return v
