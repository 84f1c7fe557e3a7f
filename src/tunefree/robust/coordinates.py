"""Coordinate-wise median and trimmed mean.

Yin, Chen, Ramchandran & Bartlett, ICML 2018, Definitions 1 and 2. arXiv:1803.01498

    median:        out_j = median_i z_ij
    trimmed mean:  out_j = mean of z_ij without the f smallest and the f largest

Differences from the paper: weights may be unequal. The median is then where half the weight is on
either side; the trimmed mean drops f clients at each end, whatever they weigh, and weighs the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import Channels, Rows
from .rule import Robust, Sight, check_f, check_rows, hostile, like, median


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate; withstands hostile clients of less than half the weight."""

    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return the medians."""
        return {name: median(z, p) for name, z in rows.items()}


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its f smallest and f largest entries.

    Args:
        f: Hostile clients to withstand: a number of them, or a share of those who answer.
    """

    f: int | float

    def __post_init__(self) -> None:
        check_f("TrimmedMean", self.f)

    def check(self, clients: int, rows: int | None = None) -> None:
        """Refuse a cohort of which nothing would be left."""
        check_rows("TrimmedMean", self.f, clients, clients if rows is None else rows, 1)

    def vectors(self, rows: Channels, p: Tensor, sight: Sight) -> Channels:
        """Return the trimmed means."""
        return {name: self.number(z, p, sight) for name, z in rows.items()}

    def number(self, values: Rows, p: Tensor, sight: Sight) -> Tensor:
        """Return the trimmed mean of each column."""
        m = values.shape[0]
        f = hostile(self.f, sight, m)
        light = torch.argsort(p, stable=True)  # equal entries: the lighter one is the smaller
        ordered, order = values[light.to(values.device)].sort(dim=0, stable=True)
        w = like(p[light], values)[order][f : m - f]
        w = w / w.sum(0).clamp(min=torch.finfo(values.dtype).tiny)
        return (w * ordered[f : m - f]).sum(0)
