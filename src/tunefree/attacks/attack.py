"""The base class of attacks: some clients train honestly and send something else.

Vectors (on every channel) are changed before the wire, so that they arrive in a form that the wire
can produce; numbers are changed as they arrive. Hostile clients change their answers to queries
(losses, gradients) in the same way.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.errors import ArgumentError, check_argument
from ..core.fields import Checked
from ..core.random import key, subset
from ..core.types import Rows
from ..data.federation import Federation
from ..methods import Method


@dataclass(frozen=True)
class Moments:
    """Count, mean (d,) and summed squared deviations (d,) of rows, float64.

    Parts are added as by Chan, Golub & LeVeque 1983: with n, mean and squared deviations s of each,

        d = mean_b - mean_a,   mean = mean_a + d n_b / n,   s = s_a + s_b + d^2 n_a n_b / n
    """

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, rows: Rows) -> "Moments":
        """Return the moments of rows (m, d)."""
        z = rows.double()
        mean = z.mean(0) if len(z) else z.new_zeros(z.shape[1:])
        return cls(len(z), mean, (z - mean).square().sum(0))

    def plus(self, other: "Moments") -> "Moments":
        """Return the moments of the rows of both."""
        count = self.count + other.count
        if not count:
            return self
        apart, part = other.mean - self.mean, other.count / count
        squares = self.squares + other.squares + apart.square() * (self.count * part)
        return Moments(count, self.mean + apart * part, squares)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of each coordinate (divisor n)."""
        return torch.sqrt(self.squares / max(self.count, 1))


@dataclass(frozen=True)
class AttackContext:
    """What hostile clients know when they send a channel.

    Args:
        clients: Number of clients in the mean, m.
        hostile: Number of hostile ones among them, f.
        honest: Mean and spread of the honest uploads, for attacks that see them.
        keys: Random keys of the round, the client and the channel (k,), for noise.
    """

    clients: int
    hostile: int
    honest: Moments
    keys: Tensor


def read_clients(what: str, text: str) -> float | tuple[int, ...]:
    """Return a share of the clients, or client ids, from a text such as "0.2" or "0+3+7"."""
    try:
        if "." in text or "e" in text.lower():
            return float(text)
        return tuple(int(i) for i in text.split("+"))
    except ValueError:
        form = "a share such as 0.2, or client numbers such as 0+3+7"
        raise ArgumentError(f"{what} must be {form}, got {text!r}.") from None


@dataclass(frozen=True)
class Attack(Checked):
    """Some clients, and what they do. The hooks of this class change nothing.

    `sees_honest` says whether the attack uses the uploads of the honest clients of the cohort.

    Args:
        clients: Share of all clients in (0, 1), drawn by the run's seed, or the ids of clients.
    """

    sees_honest: ClassVar[bool] = False
    clients: float | tuple[int, ...] = field(default=0.2, metadata={"read": read_clients})

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.clients, float):
            good = 0 < self.clients < 1
        else:
            given: Any = self.clients
            good = isinstance(given, tuple | list) and len(set(given)) == len(given) > 0
            good = good and all(type(i) is int and i >= 0 for i in given)
            object.__setattr__(self, "clients", tuple(given) if good else given)
        rule = "a share between 0 and 1, or different client numbers"
        check_argument(type(self).__name__, "clients", self.clients, rule, good)

    def hostile_clients(self, clients: int, seed: int) -> Tensor:
        """Return the ids of the hostile clients."""
        if isinstance(self.clients, float):
            count = max(1, round(self.clients * clients))
            return subset(key(seed, "hostile"), clients, min(count, clients))
        ids = torch.tensor(sorted(self.clients))
        rule = f"below the number of clients, {clients}"
        last = int(ids[-1])
        check_argument(type(self).__name__, "clients", last, rule, last < clients)
        return ids

    def check(self, method: Method, federation: Federation) -> None:
        """Raise an ArgumentError if the attack would change nothing in this run."""

    def change_vectors(self, rows: Rows, context: AttackContext) -> Rows:
        """Return what the hostile clients send instead of the honest vectors (k, d)."""
        return rows

    def change_numbers(self, name: str, values: Rows) -> Rows:
        """Return what the hostile clients send instead of the honest numbers (k,) of a channel."""
        return values

    def poison(self, federation: Federation, ids: Tensor) -> Federation:
        """Return the data as changed by the hostile clients."""
        return federation
