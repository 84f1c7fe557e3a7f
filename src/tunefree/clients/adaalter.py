"""Local AdaAlter: AdaGrad whose clients share one denominator between rounds.

Xie et al., 2019, "Local AdaAlter", Algorithm 4. arXiv:1911.09030

    y <- y - lr d / sqrt(B + k eps^2),   a_i <- a_i + d^2,    k = 1, 2, ...     per coordinate
    server:  B <- B + mean_i a_i,     B = b0^2 at first

A step does not see its own square: that is the "alter".

Differences from the paper: partial participation takes the means over the cohort. The released
code (xcgoner/AISTATS2020-AdaAlter-GluonNLP) adds eps once instead of k eps^2.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.fields import NonNegative, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from .rule import LocalResult, Step, StepContext, StepResult, per_client


@dataclass(frozen=True)
class AdaAlter(Step):
    """Step scaled per coordinate by the federation's past gradients.

    Memory: the server shares B.

    Args:
        lr: Step size, > 0; a choice.
        eps: How fast the denominator grows within a round, >= 0.
        b0: First denominator, > 0.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.5
    eps: NonNegative = 1.0
    b0: Positive = 1.0
    uploads: ClassVar[tuple[str, ...]] = ("squares",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Start at b0^2."""
        return {}, {"squares": torch.full_like(x, self.b0**2)}

    def down(self, shared: State) -> Channels:
        """Send B."""
        return {"squares": shared["squares"]}

    def begin(self, y: Rows, down: Channels) -> State:
        """Start with a sum of zero."""
        return {"squares": torch.zeros_like(y)}

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along the scaled direction."""
        lr = self.lr * tick.factor
        root = (tick.down["squares"] + (tick.index + 1) * self.eps**2).sqrt()
        after = {"squares": torch.addcmul(scratch["squares"], d, d)}
        each = per_client(y, lr)
        if isinstance(lr, Tensor):
            return y - lr * (d / root), each, after
        return torch.addcdiv(y, d, root, value=-lr), each, after

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the squares of the round."""
        return {"squares": work.scratch["squares"]}, own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean squares."""
        return {"squares": shared["squares"] + mean["squares"]}
