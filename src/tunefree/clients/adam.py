"""Adam on the client, started afresh each round (transformers need it).

Kingma & Ba, ICLR 2015, Algorithm 1. arXiv:1412.6980

    m <- beta1 m + (1 - beta1) d,     s <- beta2 s + (1 - beta2) d^2
    y <- y - lr (m / (1 - beta1^k)) / (sqrt(s / (1 - beta2^k)) + eps)       k = 1, 2, ...

Differences from the paper: none; the moments are not kept between rounds.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Decay, Positive
from ..core.types import Channels, Rows, State
from .rule import Step, StepContext, StepResult, descend, per_client


@dataclass(frozen=True)
class Adam(Step):
    """Step scaled per coordinate by running moments.

    Args:
        lr: Step size, > 0; a choice.
        beta1: Memory of the first moment, in [0, 1).
        beta2: Memory of the second moment, in [0, 1).
        eps: Keeps the division finite, > 0.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-8

    def begin(self, y: Rows, down: Channels) -> State:
        """Start with empty moments."""
        return {"m": torch.zeros_like(y), "s": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along the normalised first moment."""
        lr, k = per_client(y, self.lr * tick.factor), tick.index + 1
        m = self.beta1 * scratch["m"] + (1 - self.beta1) * d
        s = self.beta2 * scratch["s"] + (1 - self.beta2) * d.square()
        move = (m / (1 - self.beta1**k)) / ((s / (1 - self.beta2**k)).sqrt() + self.eps)
        return descend(y, move, lr), lr, {"m": m, "s": s}
