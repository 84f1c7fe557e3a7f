"""The simplex: nothing negative, and a given sum.

Duchi et al., ICML 2008, Figure 1, after Held, Wolfe & Crowder 1974.

    h(x) = 0 if x_j >= 0 for all j and sum_j x_j = total, else inf
    prox(v, alpha)_j = max(v_j - tau, 0),   tau such that the sum is total

Differences from the paper: none; sorted, so d log d, and tau is computed in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import check_positive
from ..core.layout import Layout
from .penalty import Penalty, indicator, slack


@dataclass(frozen=True)
class Simplex(Penalty):
    """x_j >= 0 and sum_j x_j = total.

    Args:
        total: The sum of all entries, > 0.
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Simplex", "total", self.total)

    def value(self, x: Tensor, layout: Layout) -> Tensor:
        """Return 0 for rows on the simplex, inf for others."""
        room = slack(x) * self.total
        close = (x.sum(-1) - self.total).abs() <= room
        return indicator(close & (x >= -room).all(-1), x)

    def prox(self, v: Tensor, alpha: float, layout: Layout) -> Tensor:
        """Return the nearest point of the simplex."""
        self.check(alpha, "Simplex.prox")
        return (v - threshold(v, self.total)).clamp_(min=0).to(v.dtype)


def threshold(v: Tensor, total: float) -> Tensor:
    """Return tau of each row with sum_j max(v_j - tau, 0) = total: (..., d) -> (..., 1)."""
    down = v.sort(dim=-1, descending=True).values.double()
    excess = down.cumsum(-1) - total  # of the k largest
    k = torch.arange(1, v.shape[-1] + 1, device=v.device)
    count = (down * k > excess).sum(-1, keepdim=True).clamp(min=1)  # those that stay positive
    return excess.gather(-1, count - 1) / count
