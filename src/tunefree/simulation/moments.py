"""The mean of the clients' moments, by the aggregation of the run."""

import torch
from torch import Tensor

from ..core.types import Channels
from ..privacy import Secure
from ..robust import Robust
from ..server.aggregate import Aggregation


class MomentSums:
    """Adds up moments of clients, each of weight 1 / clients.

    Under masks they are sent as digits, which add up without rounding at any size. A robust rule
    gets the moments of one sample of each client, since any number of samples can be claimed.
    """

    def __init__(self, aggregate: Aggregation, clients: int) -> None:
        self._wide, self._clients = isinstance(aggregate, Secure), clients
        self._each = isinstance(aggregate, Robust)
        rule = aggregate.for_digits() if isinstance(aggregate, Secure) else aggregate
        self._mean = rule(1.0, -1, "moments")

    def add(self, rows: Tensor) -> None:
        """Add rows of clients, as `column_moments` returns them."""
        weights = torch.full((len(rows),), 1 / self._clients, dtype=torch.float64)
        if self._each:
            rows = rows / rows[:, :1]
        self._mean.add(weights, {"moments": to_digits(rows) if self._wide else rows})

    def result(self) -> Channels:
        """Return the mean, as it was sent."""
        return self._mean.result()

    def zeros(self, shift: Tensor) -> Channels:
        """Return the mean of no clients."""
        zero = shift.new_zeros(1, 2 * len(shift) + 1)
        return {"moments": (to_digits(zero) if self._wide else zero)[0]}

    def decode(self, found: Tensor) -> Tensor:
        """Return the mean of the moments from that of what was sent."""
        return from_digits(found) if self._wide else found


DIGITS = (64, 32, 0, -32, -64, -96)  # exponents of the digits' units


def to_digits(rows: Tensor) -> Tensor:
    """Return numbers (m, k) below 2^96 as digits (m, 6 k) in base 2^32, integers with their sign.

    >>> rows = torch.tensor([[1e15 + 0.125, -3e-9]], dtype=torch.float64)
    >>> torch.equal(from_digits(to_digits(rows)[0]), rows[0])
    True
    """
    parts = []
    for power in DIGITS:
        parts.append(torch.trunc(rows * 2.0**-power))
        rows = rows - parts[-1] * 2.0**power  # exact
    return torch.cat(parts, 1)


def from_digits(digits: Tensor) -> Tensor:
    """Undo `to_digits` for one vector, which may be a sum of several."""
    units = torch.tensor([2.0**power for power in DIGITS], dtype=digits.dtype)
    return (digits.reshape(len(DIGITS), -1) * units.to(digits.device)[:, None]).flip(0).sum(0)
