"""Clients that fail: not there, lost, slow or late.

What happens to a client of the cohort is drawn for it and the round, one of

    before   it never answers: no work, no upload
    after    it works, and its upload is lost
    stale    its upload arrives up to `delay` rounds later
    slow     it does 1 to K_i - 1 of its K_i steps, and answers in time

with these probabilities, else it works and answers. Means are over those whose answer is there,
with their weights. A client's memory changes when its answer arrives, not before: whoever is lost
remembers what the server knows of it. A late answer was made from the model of its own round and
counts in the round in which it arrives, once, beside that round's others and like them; until then
its client is not drawn. When nobody answers, the round leaves everything as it was. The pass before
round 0, where a method has one, goes without faults.

The ledger counts what the server sent and what arrived: everyone drawn is sent the model, a lost
upload is not counted, a late one in the round in which it arrives. Work counts in the round in
which it is done, for nothing or not. The history says how many `answered` (late ones included),
and how many were `lost`, `slow`, `late` (on the way from now on) and `stale` (late until now).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..clients.rule import LocalPhases
from ..core.errors import ArgumentError, check_int, check_nonnegative
from ..core.plan import Plan, Round
from ..core.random import below, key, uniform
from ..core.text import parse_arguments
from ..methods import Method
from .available import Available, Cycle, Trace, read_available

BEFORE, AFTER, STALE, SLOW, FINE = range(5)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often clients fail.

    Args:
        before: Probability that a client never answers.
        after: Probability that it works and its upload is lost.
        stale: Probability that its upload is late.
        slow: Probability that it does only part of its steps.
        delay: Most rounds that an upload is late, >= 1, each number as likely; None is 1.
        available: Who can be drawn: booleans (rounds, clients), repeated when they end, a `Cycle`,
            or a function of the round; None is everyone.
    """

    before: float = 0.0
    after: float = 0.0
    stale: float = 0.0
    slow: float = 0.0
    delay: int | None = None
    available: Any = field(default=None, metadata={"read": read_available})

    def __post_init__(self) -> None:
        each = (self.before, self.after, self.stale, self.slow)
        for name, value in zip(("before", "after", "stale", "slow"), each, strict=True):
            check_nonnegative("Faults", name, value)
        if sum(each) > 1 + 1e-12:
            raise ArgumentError(
                "Faults(before, after, stale, slow) are probabilities of different things, so that "
                f"their sum must be at most 1, got {sum(each):g}."
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
        """Whether some clients of a round may not answer in it."""
        return bool(self.before or self.after or self.stale or self.available is not None)

    def check(self, method: Method, plan: Plan) -> None:
        """Refuse a method for which some fault makes no sense, before round 0."""
        if self.loses and method.full:
            raise ArgumentError(
                f"Cannot use Faults(before, after, stale, available) with {method.name}. This is "
                "because it is defined for full participation; use another method."
            )
        if self.slow and method.step.most is not None:
            raise ArgumentError(
                f"Cannot use Faults(slow=...) with {method.name}. This is because its clients "
                "solve their problem to a tolerance, not in a number of steps."
            )
        if self.slow and method.direction.local_phases(Round(plan, 0)) != LocalPhases():
            raise ArgumentError(
                f"Cannot use Faults(slow=...) with {method.name}. This is because its clients "
                "agree on how many steps they take, and its controls count on it."
            )
        if self.stale and method.echo:
            raise ArgumentError(
                f"Cannot use Faults(stale=...) with {method.name}. This is because its clients "
                "compare their move with the mean of the same round."
            )
        self.there(0, plan.clients, plan.seed)

    def there(self, t: int, clients: int, seed: int) -> Tensor:
        """Return who can be drawn in round t: (N,) booleans."""
        if self.available is None:
            return torch.ones(clients, dtype=torch.bool)
        cycle = self.available
        who: Available = cycle.over(clients, seed) if isinstance(cycle, Cycle) else cycle
        found = torch.as_tensor(who(t))
        if found.shape != (clients,) or found.dtype != torch.bool:
            raise ArgumentError(
                f"Faults(available=...) must say of each of {clients} clients whether it is there, "
                f"got {found.dtype} of shape {tuple(found.shape)}."
            )
        return found.cpu()

    def fates(self, seed: int, t: int, ids: Tensor) -> Tensor:
        """Return what happens to each of these clients in round t: BEFORE ... FINE."""
        edges = torch.tensor([self.before, self.after, self.stale, self.slow]).double().cumsum(0)
        u = uniform(key(seed, "fate", t, ids), torch.zeros(1, dtype=torch.int64))
        return torch.searchsorted(edges, u, right=True)

    def delays(self, seed: int, t: int, ids: Tensor) -> Tensor:
        """Return how many rounds late the uploads of these clients are."""
        return 1 + below(key(seed, "delay", t, ids), torch.zeros(1).long(), self.delay or 1)

    def steps(self, seed: int, t: int, ids: Tensor, full: Tensor) -> Tensor:
        """Return how many of its steps each of these clients takes, of those it should (m,)."""
        u = uniform(key(seed, "slow", t, ids), torch.zeros(1, dtype=torch.int64))
        part = 1 + (u * (full - 1).double()).floor().long().clamp(max=(full - 2).clamp(min=0))
        return torch.where(self.fates(seed, t, ids) == SLOW, part, full)


@dataclass(frozen=True)
class PartialPlan(Plan):
    """A plan in which some may be missing, although all are asked."""

    @property
    def full(self) -> bool:
        """Nobody can count on everyone."""
        return False


def parse(text: str) -> Faults | None:
    """Return the faults that a command-line word stands for; None for "none".

    >>> parse("before=0.1,after=0.2")
    Faults(before=0.1, after=0.2, stale=0.0, slow=0.0, delay=None, available=None)
    >>> parse("slow=0.3,available=24/0.5").available
    Cycle(period=24, share=0.5)
    """
    if text.strip().lower() == "none":
        return None
    words: Sequence[str] = text.strip().split(",")
    if not all("=" in word for word in words):
        raise ArgumentError(
            "Faults must be written KEY=VALUE,KEY=VALUE, such as before=0.1,slow=0.2, got "
            f"{text!r}."
        )
    return Faults(**parse_arguments("faults", words, Faults))
