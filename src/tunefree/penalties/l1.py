"""The l1 norm: many exact zeros, at the price of shrinking what stays.

Tibshirani, JRSS B 58(1), 1996.

    h(x) = weight sum_j |x_j|
    prox(v, alpha)_j = sign(v_j) max(|v_j| - alpha weight, 0)

Differences from the paper: a penalty with a weight instead of a bound on the norm (that is
L1Ball).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softshrink

from ..core.errors import check_nonnegative
from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class L1(Penalty):
    """weight |x|_1.

    Args:
        weight: How strong, >= 0.
    """

    weight: float = 1e-4

    def __post_init__(self) -> None:
        check_nonnegative("L1", "weight", self.weight)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return weight times the sum of absolute values."""
        return self.weight * x.abs().sum(-1)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the soft threshold."""
        self.check(alpha, "L1.prox")
        return softshrink(v, alpha * self.weight)
