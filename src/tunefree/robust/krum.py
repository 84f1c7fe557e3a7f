"""Krum and multi-Krum: the clients that have the nearest neighbours.

Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017, Section 3. arXiv:1703.02757

    score_i = sum of |z_i - z_j|^2 over the m - f - 2 nearest j != i
    Krum: the row of the least score;   multi-Krum: the mean of the `keep` rows of the least scores

Differences from the paper: rows with the same score are taken together, so that the order of
clients does not matter; the mean of multi-Krum may be weighted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import check_int
from ..core.types import Channels
from .rule import Choosing, Sight, check_f, check_rows, distances, hostile


def chosen(rows: Channels, p: Tensor, f: int, keep: int) -> Tensor:
    """Return the weights (m,) of the `keep` clients of the least scores, 0 for the others."""
    m = len(p)
    near = distances(rows).sort(1).values[:, 1:]  # without itself
    score = near[:, : max(1, m - f - 2)].sum(1)
    taken = score <= score.kthvalue(keep).values
    p = p.cpu()
    w = torch.where(taken, p, 0.0) if float(p[taken].sum()) > 0 else taken.to(p.dtype)
    return w / w.sum()


@dataclass(frozen=True)
class Krum(Choosing):
    """One client's upload: the one nearest to its neighbours.

    Args:
        f: Hostile clients to withstand: a number of them, or a share of those who answer.
    """

    f: int | float

    def __post_init__(self) -> None:
        check_f("Krum", self.f)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse m < 2 f + 3."""
        check_rows("Krum", self.f, clients, clients if rows is None else rows, 3)

    def counted(self, rows: Channels, p: Tensor, sight: Sight) -> tuple[Channels, Tensor]:
        """Return the rows, all weight on the best one."""
        return rows, chosen(rows, p, hostile(self.f, sight, len(p)), 1)


@dataclass(frozen=True)
class MultiKrum(Choosing):
    """The mean of several clients' uploads, those nearest to their neighbours.

    Args:
        f: Hostile clients to withstand: a number of them, or a share of those who answer.
        keep: Clients that count, >= 1; None is all but f.
    """

    f: int | float
    keep: int | None = None

    def __post_init__(self) -> None:
        check_f("MultiKrum", self.f)
        if self.keep is not None:
            check_int("MultiKrum", "keep", self.keep)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse m < 2 f + 3."""
        check_rows("MultiKrum", self.f, clients, clients if rows is None else rows, 3)

    def counted(self, rows: Channels, p: Tensor, sight: Sight) -> tuple[Channels, Tensor]:
        """Return the rows, the weight on the best ones."""
        f = hostile(self.f, sight, len(p))
        keep = len(p) - f if self.keep is None else min(self.keep, len(p))
        return rows, chosen(rows, p, f, keep)
