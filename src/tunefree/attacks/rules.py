"""Attacks by clients that know nothing about the others, and by clients that see honest uploads.

    sign flip:    -scale z_i                                 Li et al., AAAI 2019, arXiv:1811.03761
    large norm:   scale z_i
    Gaussian:     scale |z_i| g / sqrt(d),   g ~ N(0, I)     as in Blanchard et al., NeurIPS 2017
    misreport:    z_i, and every number times scale          ours
    label flip:   trained on labels C - 1 - y                as in Fang et al., USENIX Security 2020

Differences from the papers: noise is as long as `scale` honest uploads instead of having a fixed
deviation, so that it means the same for every model. Large norm scales the reported numbers, too,
except for delta_sq, which is the squared norm of what is sent; misreport scales all of them.
"""

import copy
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import cannot_use
from ..core.fields import NonNegative, Positive
from ..core.random import uniform
from ..core.types import Rows
from ..core.vectors import row_sq
from ..data.federation import Federation
from ..methods import Method
from .attack import Attack, AttackContext


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the negated upload.

    Args:
        scale: Factor of the norm, > 0.
    """

    scale: Positive = 1.0

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        return -self.scale * rows


@dataclass(frozen=True)
class LargeNorm(Attack):
    """Sends the honest upload, scaled up.

    Args:
        scale: Factor of the norm, > 0.
    """

    scale: Positive = 100.0

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        return self.scale * rows

    def change_numbers(self, name: str, values: Rows) -> Rows:
        """Return scale times the numbers; delta_sq is already that of the scaled upload."""
        return values if name == "delta_sq" else self.scale * values


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends Gaussian noise, about `scale` times as long as the honest upload.

    Args:
        scale: Length of the noise in units of the honest upload, > 0.
    """

    scale: Positive = 10.0

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        d = rows.shape[1]
        u = uniform(context.keys.to(rows.device)[:, None], torch.arange(d, device=rows.device))
        noise: Tensor = torch.special.ndtri(u.clamp(min=2.0**-54)).to(rows.dtype)
        return noise * (self.scale / math.sqrt(d) * row_sq(rows).sqrt())[:, None]


@dataclass(frozen=True)
class Misreport(Attack):
    """Sends honest vectors and wrong numbers: losses, squared norms of updates, gradient norms.

    Args:
        scale: Factor of the numbers, > 0.
    """

    scale: Positive = 100.0

    def check(self, method: Method, federation: Federation) -> None:
        if not method.scalars:
            why = "its clients send no numbers to lie about; use SignFlip or LargeNorm"
            raise cannot_use("Misreport", method.name, why)

    def change_numbers(self, name: str, values: Rows) -> Rows:
        return self.scale * values


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains honestly on wrong labels: class c becomes C - 1 - c."""

    def check(self, method: Method, federation: Federation) -> None:
        if federation.classes is None:
            why = "its targets are no class labels; use SignFlip or Gaussian"
            raise cannot_use("LabelFlip", "this data", why)

    def poison(self, federation: Federation, ids: Tensor) -> Federation:
        assert federation.classes is not None
        theirs = torch.isin(federation.owners(), ids).to(federation.y.device)
        other = copy.copy(federation)
        other.y = torch.where(theirs, federation.classes - 1 - federation.y, federation.y)
        return other


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
    """Attacks by clients that act together and see the uploads of the honest clients.

    Baruch, Baruch & Goldberg, NeurIPS 2019, Algorithm 3, arXiv:1902.06156 (a little is enough);
    Xie, Koyejo & Gupta, UAI 2020, Section 4, arXiv:1903.03936 (inner-product manipulation).

        little is enough:  mu - z sigma,  z = Phi^-1((m - f - s) / (m - f)),  s = floor(m/2 + 1) - f
        inner product:     -eps mu

    with mu and sigma the mean and deviation of each coordinate over the honest rows, m clients and
    f hostile ones.

    Differences from the papers: mu and sigma are those of the honest clients, while the attackers
    of the first paper estimate them from their own uploads, as here if a cohort has no honest
    client. The first paper's z is 0 in small cohorts with few attackers; `z` sets another value.

    Args:
        z: Distance from the mean in standard deviations, >= 0; None is the paper's.
    """

    sees_honest: ClassVar[bool] = True
    z: NonNegative | None = None

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        z = largest_z(context.clients, context.hostile) if self.z is None else self.z
        return _repeat(rows, context.honest.mean - z * context.honest.deviation)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Sends a negative multiple of the honest mean.

    Args:
        eps: Norm in units of the honest mean, > 0.
    """

    sees_honest: ClassVar[bool] = True
    eps: Positive = 0.5

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        return _repeat(rows, -self.eps * context.honest.mean)


def _repeat(rows: Rows, one: Tensor) -> Rows:
    return one.to(rows).expand_as(rows).clone()
