"""Which clients are available in a round: a trace, a cycle, or a function of the round."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_fraction, check_int
from ..core.random import below, key

Available = Callable[[int], Any]
"""Returns which clients are available in a round: N bool."""


class Trace:
    """Availability as a table, repeated at its end.

    Args:
        table: Bool (rounds, clients).
    """

    def __init__(self, table: Any) -> None:
        found = torch.as_tensor(table)
        if found.ndim != 2 or not found.numel() or found.dtype != torch.bool:
            raise ArgumentError(
                "Faults(available=...) must be a table of booleans (rounds, clients), got "
                f"{found.dtype} of shape {tuple(found.shape)}."
            )
        self._table = found.cpu().clone()

    def __call__(self, t: int) -> Tensor:
        """Return which clients are available in round t."""
        return self._table[t % len(self._table)]

    def __repr__(self) -> str:
        rounds, clients = self._table.shape
        digest = hashlib.sha256(self._table.numpy().tobytes()).hexdigest()[:16]
        return f"Trace({rounds} x {clients}, {digest})"


@dataclass(frozen=True)
class Cycle:
    """Each client is available for a part of every period, from a round of its own.

    Args:
        period: Rounds in a period, >= 1.
        share: Part of the period in which a client is available, in (0, 1]; at least one round.
    """

    period: int
    share: float = 0.5

    def __post_init__(self) -> None:
        check_int("Cycle", "period", self.period)
        check_fraction("Cycle", "share", self.share)

    def for_clients(self, clients: int, seed: int) -> Available:
        """Return the availability of a population of this size."""
        first = below(key(seed, "cycle"), torch.arange(clients), self.period)
        long = max(1, round(self.share * self.period))
        return lambda t: (t + first) % self.period < long


def read_available(what: str, text: str) -> Cycle:
    """Return the cycle that a text, PERIOD or PERIOD/SHARE, stands for."""
    period, slash, share = text.partition("/")
    try:
        return Cycle(int(period), float(share) if slash else 0.5)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"{what} must be PERIOD or PERIOD/SHARE, such as 24/0.5, got {text!r}."
        ) from None
