"""Attacks of clients that know nothing of the others.

    sign flip:    -scale z_i                                 Li et al., AAAI 2019, arXiv:1811.03761
    large norm:   scale z_i
    Gaussian:     scale |z_i| g / sqrt(d),   g ~ N(0, I)     as in Blanchard et al., NeurIPS 2017
    misreport:    z_i, and every number times scale          ours
    label flip:   trained on labels C - 1 - y                as in Fang et al., USENIX Security 2020

Differences from the papers: noise is as long as `scale` honest uploads instead of having a fixed
deviation, so that it means the same for every model. Large norms lie about other numbers alike,
while delta_sq stays the squared length of what is sent; misreporting lies about that, too.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_positive
from ..core.random import uniform
from ..core.types import Rows
from ..core.vectors import row_sq
from ..data.federation import Federation
from ..methods import Method
from .attack import Attack, AttackContext


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends the opposite.

    Args:
        clients: Share of all clients, or which ones.
        scale: How many times as long, > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("SignFlip", "scale", self.scale)

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return -scale times the rows."""
        return -self.scale * rows


@dataclass(frozen=True)
class LargeNorm(Attack):
    """Sends the right thing, enlarged.

    Args:
        clients: Share of all clients, or which ones.
        scale: How many times, > 0.
    """

    scale: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("LargeNorm", "scale", self.scale)

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return scale times the rows."""
        return self.scale * rows

    def numbers(self, name: str, values: Rows) -> Rows:
        """Return scale times the numbers; the squared length is that of what was sent."""
        return values if name == "delta_sq" else self.scale * values


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends noise.

    Args:
        clients: Share of all clients, or which ones.
        scale: How many times as long as the honest upload, > 0.
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Gaussian", "scale", self.scale)

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return noise in place of the rows."""
        d = rows.shape[1]
        u = uniform(view.keys.to(rows.device)[:, None], torch.arange(d, device=rows.device))
        noise: Tensor = torch.special.ndtri(u.clamp(min=2.0**-54)).to(rows.dtype)
        return noise * (self.scale / math.sqrt(d) * row_sq(rows).sqrt())[:, None]


@dataclass(frozen=True)
class Misreport(Attack):
    """Sends the right vectors and wrong numbers: losses, lengths of moves, gradient norms.

    Args:
        clients: Share of all clients, or which ones.
        scale: How many times too large, > 0.
    """

    scale: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Misreport", "scale", self.scale)

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method in which clients send vectors alone."""
        if not method.scalars:
            raise ArgumentError(
                f"Cannot use Misreport with {method.name}. This is because its clients send no "
                "numbers to lie about; use SignFlip or LargeNorm."
            )

    def numbers(self, name: str, values: Rows) -> Rows:
        """Return scale times the numbers."""
        return self.scale * values


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains honestly on wrong labels: class c is called C - 1 - c."""

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse targets that are no labels."""
        if federation.classes is None:
            raise ArgumentError(
                "Cannot use LabelFlip on this data. This is because its targets are no class "
                "labels; use SignFlip or Gaussian."
            )

    def data(self, federation: Federation, ids: Tensor) -> Federation:
        """Return the data with the labels of these clients turned round."""
        assert federation.classes is not None
        theirs = torch.isin(federation.owners(), ids).to(federation.y.device)
        other = copy.copy(federation)
        other.y = torch.where(theirs, federation.classes - 1 - federation.y, federation.y)
        return other
