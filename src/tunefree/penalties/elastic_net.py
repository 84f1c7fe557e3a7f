"""The elastic net: l1 for zeros, l2 so that correlated entries stay together.

Zou & Hastie, JRSS B 67(2), 2005, the naive form.

    h(x) = l1 |x|_1 + (l2 / 2) |x|^2
    prox(v, alpha)_j = sign(v_j) max(|v_j| - alpha l1, 0) / (1 + alpha l2)

Differences from the paper: the factor 1/2 on the square; no rescaling of the solution by 1 + l2.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softshrink

from ..core.errors import check_nonnegative
from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """l1 |x|_1 + (l2 / 2) |x|^2.

    Args:
        l1: Weight of the l1 norm, >= 0.
        l2: Weight of half the squared l2 norm, >= 0.
    """

    l1: float = 1e-4
    l2: float = 1e-4

    def __post_init__(self) -> None:
        check_nonnegative("ElasticNet", "l1", self.l1)
        check_nonnegative("ElasticNet", "l2", self.l2)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the sum of both norms, weighted."""
        return self.l1 * x.abs().sum(-1) + self.l2 / 2 * x.square().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the soft threshold, shrunk by one factor."""
        self.check(alpha, "ElasticNet.prox")
        return softshrink(v, alpha * self.l1).div_(1 + alpha * self.l2)
