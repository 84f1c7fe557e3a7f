"""Attacks of clients that act together and see what the honest ones of the cohort send.

Baruch, Baruch & Goldberg, NeurIPS 2019, Algorithm 3, arXiv:1902.06156 (a little is enough);
Xie, Koyejo & Gupta, UAI 2020, Section 4, arXiv:1903.03936 (inner-product manipulation).

    little is enough:  mu - z sigma,     z = Phi^-1((m - f - s) / (m - f)),  s = floor(m/2 + 1) - f
    inner product:     -eps mu

with mu and sigma the mean and deviation of each coordinate over the honest rows, m clients and f
hostile ones.

Differences from the papers: mu and sigma are those of the honest clients, whom the attackers of the
first paper estimate from their own; where a cohort has no honest client, they do the same. The
first paper's z is 0 in small cohorts with few attackers: `z` sets another.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import check_nonnegative, check_positive
from ..core.types import Rows
from .attack import Attack, AttackContext


def most(clients: int, hostile: int) -> float:
    """Return the z up to which enough honest clients are farther from the mean.

    >>> round(most(50, 12), 3), most(10, 2)
    (0.336, 0.0)
    """
    honest = clients - hostile
    needed = clients // 2 + 1 - hostile
    if honest < 1 or needed < 1:  # they are the majority
        return 3.0
    share = torch.tensor((honest - needed) / honest, dtype=torch.float64)
    z = float(torch.special.ndtri(share))
    return max(z, 0.0) if math.isfinite(z) else 0.0


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Stays within the spread of the honest clients, always on the same side.

    Args:
        clients: Share of all clients, or which ones.
        z: How many deviations from the mean, >= 0; None is the paper's.
    """

    sees: ClassVar[bool] = True
    z: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z is not None:
            check_nonnegative("LittleIsEnough", "z", self.z)

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return mu - z sigma for all of them."""
        z = most(view.clients, view.hostile) if self.z is None else self.z
        return _all(rows, view.honest.mean - z * view.honest.deviation)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Turns the mean round.

    Args:
        clients: Share of all clients, or which ones.
        eps: How long, in units of the honest mean, > 0.
    """

    sees: ClassVar[bool] = True
    eps: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("InnerProduct", "eps", self.eps)

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return -eps mu for all of them."""
        return _all(rows, -self.eps * view.honest.mean)


def _all(rows: Rows, one: Tensor) -> Rows:
    return one.to(rows).expand_as(rows).clone()
