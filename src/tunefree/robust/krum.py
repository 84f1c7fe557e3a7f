"""Krum and multi-Krum: select the clients with the nearest neighbours.

Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017, Section 3. arXiv:1703.02757

    score_i = sum of |z_i - z_j|^2 over the m - f - 2 nearest j != i
    Krum: the row of the least score;   multi-Krum: the mean of the `keep` rows of the least scores

Differences from the paper: rows with the same score are all selected, so that the order of clients
does not matter; the mean of multi-Krum may be weighted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.fields import PositiveInt
from ..core.types import Channels
from .rule import Hostile, MeanContext, SelectionRule, check_rows, count_hostile, distances


def krum_weights(rows: Channels, p: Tensor, f: int, keep: int) -> Tensor:
    """Return the weights (m,) of the `keep` clients with the least scores, 0 for the others."""
    m = len(p)
    near = distances(rows).sort(1).values[:, 1:]  # without itself
    score = near[:, : max(1, m - f - 2)].sum(1)
    taken = score <= score.kthvalue(keep).values
    p = p.cpu()
    w = torch.where(taken, p, 0.0) if float(p[taken].sum()) > 0 else taken.to(p.dtype)
    return w / w.sum()


@dataclass(frozen=True)
class Krum(SelectionRule):
    """One client's upload: the one nearest to its neighbours.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    f: Hostile

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if m < 2 f + 3."""
        check_rows("Krum", self.f, clients, clients if rows is None else rows, 3)

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the rows, with all weight on the best one."""
        return rows, krum_weights(rows, p, count_hostile(self.f, context, len(p)), 1)


@dataclass(frozen=True)
class MultiKrum(SelectionRule):
    """The mean of several clients' uploads, those nearest to their neighbours.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
        keep: Number of selected clients, >= 1; None is all but f.
    """

    f: Hostile
    keep: PositiveInt | None = None

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if m < 2 f + 3."""
        check_rows("MultiKrum", self.f, clients, clients if rows is None else rows, 3)

    def select(self, rows: Channels, p: Tensor, context: MeanContext) -> tuple[Channels, Tensor]:
        """Return the rows, with the weight on the best ones."""
        f = count_hostile(self.f, context, len(p))
        keep = len(p) - f if self.keep is None else min(self.keep, len(p))
        return rows, krum_weights(rows, p, f, keep)
