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
    """What is known before round 0; schedules and defaults are bound to it once."""

    clients: int  # N
    cohort: int  # S
    rounds: int  # T
    steps: float  # K; its mean over clients where they differ
    layout: Layout
    seed: int = 0
    batch: int | None = None  # samples per local step; None is all of a client's data
    held: bool = False  # whether the server has a sample of its own

    @property
    def full(self) -> bool:
        """Whether everyone takes part in every round."""
        return self.cohort == self.clients


@dataclass(frozen=True)
class Round:
    """One round: its number, the weight of those who answered, the schedule's factor."""

    plan: Plan
    index: int  # t; -1 is the pass before round 0 in which everyone prepares
    fraction: float = 1.0  # 1 under full participation, cohort / clients under uniform weights
    factor: float = 1.0  # multiplies every learning rate
    turn: int = 0  # local turns made since the last talk

    @property
    def preparing(self) -> bool:
        """Whether this is the pass before round 0."""
        return self.index < 0

    def coin(self, name: str) -> float:
        """Return a number in [0, 1) that everybody draws alike in this round."""
        return float(uniform(key(self.plan.seed, name, self.index), torch.zeros(1).long()))


Who = Literal["cohort", "all", "held"]
What = Literal["loss", "grad", "grad_sq"]


class Query(Protocol):
    """An exchange inside a round: points go out, means come back, bytes are counted."""

    def __call__(
        self,
        what: What,
        at: list[Vector],
        who: Who = "cohort",
        sent: Channels | None = None,
    ) -> list[Tensor]:
        """Return the weighted mean over clients' full data of `what` at each point.

        `sent` is what must travel so that the clients know the points; by default the points.
        """
        ...
