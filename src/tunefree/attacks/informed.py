"""Attacks by clients that act together and see the uploads of the honest clients.

Baruch, Baruch & Goldberg, NeurIPS 2019, Algorithm 3, arXiv:1902.06156 (a little is enough);
Xie, Koyejo & Gupta, UAI 2020, Section 4, arXiv:1903.03936 (inner-product manipulation).

    little is enough:  mu - z sigma,     z = Phi^-1((m - f - s) / (m - f)),  s = floor(m/2 + 1) - f
    inner product:     -eps mu

with mu and sigma the mean and deviation of each coordinate over the honest rows, m clients and f
hostile ones.

Differences from the papers: mu and sigma are those of the honest clients, while the attackers of
the first paper estimate them from their own uploads, as here if a cohort has no honest client. The
first paper's z is 0 in small cohorts with few attackers; `z` sets another value.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.fields import NonNegative, Positive
from ..core.types import Rows
from .attack import Attack, AttackContext


def largest_z(clients: int, hostile: int) -> float:
    """Return the largest z for which enough honest clients are farther from the mean.

    >>> round(largest_z(50, 12), 3), largest_z(10, 2)
    (0.336, 0.0)
    """
    honest = clients - hostile
    needed = clients // 2 + 1 - hostile
    if honest < 1 or needed < 1:  # hostile clients are the majority
        return 3.0
    share = torch.tensor((honest - needed) / honest, dtype=torch.float64)
    z = float(torch.special.ndtri(share))
    return max(z, 0.0) if math.isfinite(z) else 0.0


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Stays within the spread of the honest uploads, always on the same side of the mean.

    Args:
        clients: Share of all clients, or their ids.
        z: Distance from the mean in standard deviations, >= 0; None is the paper's.
    """

    sees_honest: ClassVar[bool] = True
    z: NonNegative | None = None

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        """Return mu - z sigma for every hostile client."""
        z = largest_z(context.clients, context.hostile) if self.z is None else self.z
        return _repeat(rows, context.honest.mean - z * context.honest.deviation)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Sends a negative multiple of the honest mean.

    Args:
        clients: Share of all clients, or their ids.
        eps: Norm in units of the honest mean, > 0.
    """

    sees_honest: ClassVar[bool] = True
    eps: Positive = 0.5

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        """Return -eps mu for every hostile client."""
        return _repeat(rows, -self.eps * context.honest.mean)


def _repeat(rows: Rows, one: Tensor) -> Rows:
    return one.to(rows).expand_as(rows).clone()
