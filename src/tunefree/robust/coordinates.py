"""Coordinate-wise median and trimmed mean.

Yin, Chen, Ramchandran & Bartlett, ICML 2018, Definitions 1 and 2. arXiv:1803.01498

    median:        out_j = median_i z_ij
    trimmed mean:  out_j = mean of z_ij without the f smallest and the f largest

Differences from the paper: weights may be unequal. The median is then the weighted median; the
trimmed mean drops f clients at each end, independent of weights, and averages the rest by weight.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import Channels, Rows
from .rule import Hostile, MeanContext, Robust, check_rows, count_hostile, median, weights_like


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate; withstands hostile clients of less than half the weight."""

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the medians."""
        return {name: median(z, p) for name, z in rows.items()}


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its f smallest and f largest entries.

    Args:
        f: Hostile clients to tolerate: a number, or a share of the clients that answer.
    """

    f: Hostile

    def check(self, clients: int, rows: int | None = None) -> None:
        """Raise an ArgumentError if no client would be left."""
        check_rows("TrimmedMean", self.f, clients, clients if rows is None else rows, 1)

    def aggregate_vectors(self, rows: Channels, p: Tensor, context: MeanContext) -> Channels:
        """Return the trimmed means."""
        return {name: self.aggregate_number(z, p, context) for name, z in rows.items()}

    def aggregate_number(self, values: Rows, p: Tensor, context: MeanContext) -> Tensor:
        """Return the trimmed mean of each column."""
        m = values.shape[0]
        f = count_hostile(self.f, context, m)
        light = torch.argsort(p, stable=True)  # ties: the entry with the smaller weight comes first
        ordered, order = values[light.to(values.device)].sort(dim=0, stable=True)
        w = weights_like(p[light], values)[order][f : m - f]
        w = w / w.sum(0).clamp(min=torch.finfo(values.dtype).tiny)
        return (w * ordered[f : m - f]).sum(0)
