"""The plan of a run, one round of it, and the queries that a rule may send to clients."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .layout import Layout
from .random import key, uniform
from .types import Channels, Vector


@dataclass(frozen=True)
class Plan:
    """What is known before round 0: clients, cohort, rounds, local steps and layout."""

    clients: int  # N
    cohort: int  # S
    rounds: int  # T
    steps: float  # K; the mean over clients if they differ
    layout: Layout
    seed: int = 0
    batch: int | None = None  # samples per local step; None is all of a client's data
    held: bool = False  # whether the server has a sample of its own

    @property
    def full(self) -> bool:
        """Whether all clients take part in every round."""
        return self.cohort == self.clients


@dataclass(frozen=True)
class Round:
    """One round: its index, the weight of its cohort and the schedule's factor."""

    plan: Plan
    index: int  # t; -1 is the pass over all clients before round 0
    fraction: float = 1.0  # weight of the cohort; cohort / clients under uniform weights
    factor: float = 1.0  # multiplies every learning rate
    phase: int = 0  # index of the local phase within the round

    @property
    def preparing(self) -> bool:
        """Whether this is the pass before round 0."""
        return self.index < 0

    def coin(self, name: str) -> float:
        """Return a number in [0, 1) that server and clients draw alike in this round."""
        return float(uniform(key(self.plan.seed, name, self.index), torch.zeros(1).long()))


Who = Literal["cohort", "panel", "all", "held"]
What = Literal["loss", "grad", "grad_sq", "moments"]


class Query(Protocol):
    """A query to clients within a round: sends points, returns means, counts bytes."""

    def __call__(
        self,
        what: What,
        at: list[Vector],
        who: Who = "cohort",
        sent: Channels | None = None,
    ) -> list[Tensor]:
        """Return the weighted mean over clients' full data of `what` at each point.

        `who` is asked: the round's cohort, a panel of three times as many clients that is the same
        in all rounds, everyone, or the server's own sample. `sent` is what is transmitted so that
        clients know the points; by default the points.
        """
