"""What an attack is: some clients train honestly and send something else.

What is sent as a vector (every channel of it) is changed before the wire, so that it arrives as
something the wire could have written; numbers are changed as they arrive. Hostile clients answer
questions in a round (losses, gradients) in the same way.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.errors import ArgumentError
from ..core.random import key, subset
from ..core.types import Rows
from ..data.federation import Federation
from ..methods import Method
from .moments import Moments


@dataclass(frozen=True)
class AttackContext:
    """What hostile clients know when they send a channel."""

    clients: int  # that work for this mean, m
    hostile: int  # of them, f
    honest: Moments  # mean and spread of what the honest ones send, for attacks that see it
    keys: Tensor  # of the round, client and channel (k,), for noise


def read_clients(what: str, text: str) -> float | tuple[int, ...]:
    """Return a share of the clients, or their numbers, from "0.2" or "0+3+7"."""
    try:
        if "." in text or "e" in text.lower():
            return float(text)
        return tuple(int(i) for i in text.split("+"))
    except ValueError:
        raise ArgumentError(
            f"{what} must be a share such as 0.2, or client numbers such as 0+3+7, got {text!r}."
        ) from None


@dataclass(frozen=True)
class Attack:
    """Some clients, and what they do; every hook does nothing unless an attack says otherwise.

    `sees`: it uses what the honest clients of the cohort send.

    Args:
        clients: Share of all clients, in (0, 1), drawn by the run's seed; or which ones.
    """

    sees: ClassVar[bool] = False
    clients: float | tuple[int, ...] = field(default=0.2, metadata={"read": read_clients})

    def __post_init__(self) -> None:
        if isinstance(self.clients, float):
            good = 0 < self.clients < 1
        else:
            given: Any = self.clients
            good = isinstance(given, tuple | list) and len(set(given)) == len(given) > 0
            good = good and all(type(i) is int and i >= 0 for i in given)
            object.__setattr__(self, "clients", tuple(given) if good else given)
        if not good:
            raise ArgumentError(
                f"{type(self).__name__}(clients=...) must be a share between 0 and 1, or different "
                f"client numbers, got {self.clients!r}."
            )

    def who(self, clients: int, seed: int) -> Tensor:
        """Return the numbers of the hostile clients."""
        if isinstance(self.clients, float):
            count = max(1, round(self.clients * clients))
            return subset(key(seed, "hostile"), clients, min(count, clients))
        ids = torch.tensor(sorted(self.clients))
        if int(ids[-1]) >= clients:
            raise ArgumentError(
                f"{type(self).__name__}(clients=...) must be below the number of clients, "
                f"{clients}, got {int(ids[-1])}."
            )
        return ids

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a run on which the attack would do nothing."""

    def vectors(self, rows: Rows, view: AttackContext) -> Rows:
        """Return what hostile clients send instead of the vectors they should (k, d)."""
        return rows

    def numbers(self, name: str, values: Rows) -> Rows:
        """Return what they send instead of the numbers they should (k,)."""
        return values

    def data(self, federation: Federation, ids: Tensor) -> Federation:
        """Return the data with what hostile clients made of theirs."""
        return federation
