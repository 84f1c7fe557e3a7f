"""Weighted means over the cohort, which are all that the server sees."""

from typing import Literal, Protocol

import torch
from torch import Tensor

from ..core.types import Channels, to_device

Weights = Literal["uniform", "samples"]


def client_weights(weights: Weights, sizes: Tensor) -> Tensor:
    """Return each client's share of the whole population's weight: (N,), sum 1, float64."""
    if weights == "samples":
        return sizes.to(torch.float64) / sizes.sum()
    return torch.full(sizes.shape, 1 / sizes.numel(), dtype=torch.float64)


class Aggregator(Protocol):
    """Computes one mean from the rows of clients; it may clip, mask or discard rows."""

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); each row is one client."""

    def result(self) -> Channels:
        """Return the means."""


class Aggregation(Protocol):
    """Creates the aggregator of each mean: `weighted_mean`, or one of `robust` and `privacy`."""

    def __call__(self, weight: float, round: int, what: str) -> Aggregator:
        """Return an aggregator.

        Args:
            weight: The clients' share of the population's weight.
            round: The round; -1 before the first.
            what: Name of the mean within the round: "train", "measured", "probe 0", ...
        """


class Mean:
    """A weighted mean that takes chunks of rows as they come; memory O(d).

    The weights of rows are divided by `weight`, the total weight of the cohort.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._sum: Channels = {}

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,)."""
        for name, value in rows.items():
            w = to_device((p / self._weight).to(value.dtype), value.device)
            part = torch.tensordot(w, value, dims=1)
            self._sum[name] = self._sum[name] + part if name in self._sum else part

    def result(self) -> Channels:
        """Return the means."""
        return self._sum


def weighted_mean(weight: float, round: int, what: str) -> Mean:
    """Return the aggregator of a plain weighted mean."""
    return Mean(weight)
