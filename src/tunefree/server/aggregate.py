"""From rows to means: the server sees weighted means over the cohort, nothing else."""

from typing import Literal, Protocol, runtime_checkable

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
    """Turns what clients sent into means, whatever it does to each of them on the way."""

    def add(self, p: Tensor, rows: Channels) -> None:
        """Add rows (m, ...) with weights p (m,); each row is one client."""
        ...

    def result(self) -> Channels:
        """Return the means."""
        ...


class Aggregation(Protocol):
    """Creates the aggregator of each mean: `weighted_mean`, or one of `robust` and `privacy`."""

    def __call__(self, weight: float, round: int, what: str) -> Aggregator:
        """Return an aggregator.

        Args:
            weight: The clients' share of the population's weight.
            round: The round; -1 before the first.
            what: Tells means of a round apart: "train", "measured", "probe 0", ...
        """
        ...


@runtime_checkable
class Accounted(Protocol):
    """An aggregation that knows what a run has cost so far."""

    def cost(self, rounds: int, *, prepares: bool, memory: bool) -> dict[str, float]:
        """Return entries for the history.

        Args:
            rounds: Rounds played.
            prepares: Whether everybody sent once before the first.
            memory: Whether clients remember anything between rounds.
        """
        ...


class Mean:
    """A weighted mean that takes chunks of rows as they come; memory O(d).

    Args:
        weight: Total weight of the cohort; rows' weights are divided by it.
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
    """Make a plain mean."""
    return Mean(weight)
