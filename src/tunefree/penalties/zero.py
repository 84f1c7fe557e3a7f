"""No penalty: the smooth problem itself.

    h(x) = 0,   prox(v, alpha) = v

Differences from the paper: none.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core.layout import Layout
from .penalty import Penalty


@dataclass(frozen=True)
class Zero(Penalty):
    """h = 0, so that a composite method can be run without a regulariser."""

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for every row."""
        return x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return v itself."""
        self.check(alpha, "Zero.prox")
        return v
