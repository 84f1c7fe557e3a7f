"""Norms that treat every entry alike: l1 for zeros, l2 for shrinkage, the elastic net for both.

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

Differences from the paper: l1 is a penalty with a weight instead of a bound on the norm (that is
L1Ball); the factor 1/2 on squares; no rescaling of the elastic net's solution by 1 + l2.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softshrink

from ..core.fields import NonNegative
from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class L1(Penalty):
    """weight |x|_1.

    Args:
        weight: How strong, >= 0.
    """

    weight: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return weight times the sum of absolute values."""
        return self.weight * x.abs().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the soft threshold."""
        self.check(alpha, "L1.prox")
        return softshrink(v, alpha * self.weight)


@dataclass(frozen=True)
class L2(Penalty):
    """(weight / 2) |x|^2.

    Args:
        weight: How strong, >= 0.
    """

    weight: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return weight / 2 times the squared length."""
        return self.weight / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return v, shrunk by one factor."""
        self.check(alpha, "L2.prox")
        return v / (1 + alpha * self.weight)


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """l1 |x|_1 + (l2 / 2) |x|^2.

    Args:
        l1: Weight of the l1 norm, >= 0.
        l2: Weight of half the squared l2 norm, >= 0.
    """

    l1: NonNegative = 1e-4
    l2: NonNegative = 1e-4

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the sum of both norms, weighted."""
        return self.l1 * x.abs().sum(-1) + self.l2 / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the soft threshold, shrunk by one factor."""
        self.check(alpha, "ElasticNet.prox")
        return softshrink(v, alpha * self.l1).div_(1 + alpha * self.l2)
