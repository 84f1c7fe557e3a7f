"""Simulated clients that fail: absent, lost, slow or late, as `tf.Scenario(faults=...)`.

What happens to a client of the cohort is drawn for it and the round, one of

    before   it never answers: no work, no upload
    after    it works, and its upload is lost
    stale    its upload arrives up to `delay` rounds later
    slow     it does 1 to K_i - 1 of its K_i steps, and answers in time

with these probabilities; otherwise it works and answers. Means are over the clients whose uploads
arrive, with their weights. A client's memory changes when its upload arrives: a client whose upload
is lost keeps the memory that the server knows of. A late upload was computed from the model of its
own round and counts once, in the round in which it arrives, like the other uploads of that round;
until then its client is not sampled. If no client answers, the round changes nothing. The pass
before round 0, if the method has one, has no faults.

The ledger counts what the server sent and what arrived: the model is sent to the whole cohort, a
lost upload is not counted, a late one is counted in the round in which it arrives. Work is counted
in the round in which it is done, even if its result is lost. The history has the number of clients
that `answered` (late ones included) and that were `lost`, `slow`, `late` (upload queued in this
round) and `stale` (late upload that arrived in this round).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from .clients.loop import LocalBatches
from .clients.rule import LocalPhases
from .core.errors import (
    ArgumentError,
    cannot_use,
    check_fraction,
    check_int,
    check_nonnegative,
)
from .core.plan import Plan, Round
from .core.random import below, key, uniform
from .core.text import parse_arguments
from .methods import Method

__all__ = ["Cycle", "Fate", "Faults", "PartialPlan", "Trace", "parse"]

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
            rule = "Faults(available=...) must be a table of booleans (rounds, clients)"
            raise ArgumentError(f"{rule}, got {found.dtype} of shape {tuple(found.shape)}.")
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
    try:
        period, share = text.split("/") if "/" in text else (text, "0.5")
        numbers = int(period), float(share)
    except ValueError:
        form = "PERIOD or PERIOD/SHARE, such as 24/0.5"
        raise ArgumentError(f"{what} must be {form}, got {text!r}.") from None
    return Cycle(*numbers)


class Fate(IntEnum):
    """What happens to a client in a round."""

    BEFORE = 0
    AFTER = 1
    STALE = 2
    SLOW = 3
    FINE = 4


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often clients fail.

    Args:
        before: Probability that a client never answers.
        after: Probability that it works and its upload is lost.
        stale: Probability that its upload is late.
        slow: Probability that it does only part of its steps.
        delay: An upload is late by 1 to `delay` rounds, uniformly drawn; >= 1, None is 1.
        available: Which clients can be sampled: a table of bool (rounds, clients), repeated at its
            end, a `Cycle`, or a function of the round; None is all of them.
    """

    before: float = 0.0
    after: float = 0.0
    stale: float = 0.0
    slow: float = 0.0
    delay: int | None = None
    available: Any = field(default=None, metadata={"read": read_available})

    def __post_init__(self) -> None:
        total = 0.0
        for name in ("before", "after", "stale", "slow"):
            check_nonnegative("Faults", name, getattr(self, name))
            total += getattr(self, name)
        if total > 1 + 1e-12:
            raise ArgumentError(
                "Faults(before, after, stale, slow) exclude each other, so that their sum must be "
                f"at most 1, got {total:g}."
            )
        if self.delay is not None:
            check_int("Faults", "delay", self.delay)
            if not self.stale:
                raise ArgumentError("Faults(delay=...) is how late uploads are; give stale, too.")
        given = self.available
        if given is not None and not callable(given) and not isinstance(given, Cycle):
            object.__setattr__(self, "available", Trace(given))

    @property
    def loses(self) -> bool:
        """Whether some clients of a cohort may not answer in its round."""
        return bool(self.before or self.after or self.stale or self.available is not None)

    def check(self, method: Method, plan: Plan) -> None:
        """Raise an ArgumentError if the method cannot run with these faults."""
        name = method.name
        if self.loses and method.full:
            why = "it is defined for full participation; use another method"
            raise cannot_use("Faults(before, after, stale, available)", name, why)
        if self.slow and method.step.most is not None:
            why = "its clients solve their problem to a tolerance, not in a number of steps"
            raise cannot_use("Faults(slow=...)", name, why)
        if self.slow and method.direction.local_phases(Round(plan, 0)) != LocalPhases():
            why = "its clients agree on how many steps they take, and its controls count on it"
            raise cannot_use("Faults(slow=...)", name, why)
        if self.stale and method.echo:
            why = "its clients compare their move with the mean of the same round"
            raise cannot_use("Faults(stale=...)", name, why)
        self.available_in(0, plan.clients, plan.seed)

    def available_in(self, t: int, clients: int, seed: int) -> Tensor:
        """Return which clients can be sampled in round t: (N,) bool."""
        if self.available is None:
            return torch.ones(clients, dtype=torch.bool)
        cycle = self.available
        who: Available = cycle.for_clients(clients, seed) if isinstance(cycle, Cycle) else cycle
        found = torch.as_tensor(who(t))
        if found.shape != (clients,) or found.dtype != torch.bool:
            rule = f"Faults(available=...) must return one bool for each of {clients} clients"
            raise ArgumentError(f"{rule}, got {found.dtype} of shape {tuple(found.shape)}.")
        return found.cpu()

    def fates(self, seed: int, t: int, ids: Tensor) -> Tensor:
        """Return the `Fate` of each of these clients in round t."""
        edges = torch.tensor([self.before, self.after, self.stale, self.slow]).double().cumsum(0)
        u = uniform(key(seed, "fate", t, ids), torch.zeros(1, dtype=torch.int64))
        return torch.searchsorted(edges, u, right=True)

    def delays(self, seed: int, t: int, ids: Tensor) -> Tensor:
        """Return by how many rounds the uploads of these clients are late."""
        return 1 + below(key(seed, "delay", t, ids), torch.zeros(1).long(), self.delay or 1)

    def steps(self, seed: int, t: int, ids: Tensor, full: Tensor) -> Tensor:
        """Return each client's number of local steps (m,): `full`, or fewer if it is slow."""
        u = uniform(key(seed, "slow", t, ids), torch.zeros(1, dtype=torch.int64))
        part = 1 + (u * (full - 1).double()).floor().long().clamp(max=(full - 2).clamp(min=0))
        return torch.where(self.fates(seed, t, ids) == Fate.SLOW, part, full)

    def limit_steps(self, seed: int, batches: LocalBatches, ids: Tensor, t: Round) -> LocalBatches:
        """Return the batches of these clients, with fewer steps for slow ones."""
        if t.preparing or not bool((self.fates(seed, t.index, ids) == Fate.SLOW).any()):
            return batches
        taken = self.steps(seed, t.index, ids, batches.steps.cpu())
        span = (int(taken.min()), int(taken.max()))
        return replace(batches, steps=taken.to(batches.steps.device), span=span)


@dataclass(frozen=True)
class PartialPlan(Plan):
    """A plan in which clients may be missing, even if the cohort is everyone."""

    @property
    def full(self) -> bool:
        return False


def parse(text: str) -> Faults | None:
    """Return the faults that a text stands for, or None for "none".

    >>> parse("before=0.1,after=0.2")
    Faults(before=0.1, after=0.2, stale=0.0, slow=0.0, delay=None, available=None)
    >>> parse("slow=0.3,available=24/0.5").available
    Cycle(period=24, share=0.5)
    """
    if text.strip().lower() == "none":
        return None
    words = text.strip().split(",")
    if not all("=" in word for word in words):
        form = "KEY=VALUE,KEY=VALUE, such as before=0.1,slow=0.2"
        raise ArgumentError(f"Faults must be written {form}, got {text!r}.")
    return Faults(**parse_arguments("faults", words, Faults))
