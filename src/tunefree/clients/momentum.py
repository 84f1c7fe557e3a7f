"""Heavy-ball momentum on the client, started afresh each round.

    v <- momentum v + d,     y <- y - lr v          v = 0 at the start of a round

Differences from the paper: none; PyTorch's SGD with momentum (Sutskever et al., ICML 2013).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Decay, Positive
from ..core.types import Channels, Rows, State
from .rule import Step, StepContext, StepResult, descend, per_client


@dataclass(frozen=True)
class Momentum(Step):
    """Step with a running sum of directions.

    Args:
        lr: Step size, > 0; a choice.
        momentum: Share of the last move that is kept, in [0, 1).
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.1
    momentum: Decay = 0.9

    def begin(self, y: Rows, down: Channels) -> State:
        """Start at rest."""
        return {"v": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along the running sum."""
        lr = per_client(y, self.lr * tick.factor)
        v = self.momentum * scratch["v"] + d
        return descend(y, v, lr), lr, {"v": v}
