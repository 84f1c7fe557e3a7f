"""FedSPS: a stochastic Polyak step, each client for itself.

Mukherjee, Loizou & Stich, 2023, "Locally adaptive federated learning", equation (2),
arXiv:2307.06306; after Loizou et al., AISTATS 2021.

    lr = min((phi(y) - lower) / (c |d|^2), max_lr),     y <- y - lr d

phi is the batch loss as the direction modifies it, so that the step holds with a proximal term too.

Differences from the paper: none for plain clients; a negative gap counts as 0. With a direction
that shifts the gradient (control variates) phi has no known lower bound, and `lower` must be given.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Finite, Positive
from ..core.types import Rows, State
from ..core.vectors import row_sq
from .rule import Step, StepContext, StepResult, descend


@dataclass(frozen=True)
class Polyak(Step):
    """Step from the gap between the batch loss and its lower bound.

    Args:
        c: Divides the step, > 0; 0.5 in the paper.
        max_lr: Largest step, > 0.
        lower: A bound below every batch loss; 0 for losses that are never negative.
    """

    c: Positive = 0.5
    max_lr: Positive = 1.0
    lower: Finite = 0.0
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Take the Polyak step, at most max_lr."""
        sq = row_sq(d)
        gap = (tick.phi.here() - self.lower).clamp(min=0)
        some = (gap > 0) & (sq > 0)  # of a tiny gradient even c |d|^2 may be 0
        lr = torch.where(some, gap / (self.c * sq), 0.0).clamp(max=self.max_lr)
        return descend(y, d, lr), lr, scratch
