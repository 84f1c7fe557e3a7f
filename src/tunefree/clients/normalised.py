"""A step of given length along the normalised gradient.

    y <- y - lr d / |d|          d / |d| = 0 where d = 0

Differences from the paper: none; the local step of PAdaMFed and of ParFreFL (Algorithms 1 and 2).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.types import Rows, State
from ..core.vectors import row_sq
from .rates import Rates
from .rule import Step, StepContext, StepResult, descend


@dataclass(frozen=True)
class Normalised(Step):
    """Step whose length follows from S, K and T, times the schedule's factor.

    Args:
        rates: Where the length comes from.
    """

    rates: Rates = field(default_factory=Rates)
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Take a step of the given length along -d."""
        norm = row_sq(d).sqrt()
        length = self.rates.lr_at(tick.round.plan)
        lr = torch.where(norm > 0, length / norm, 0.0)
        return descend(y, d, lr), torch.full_like(lr, length), scratch
