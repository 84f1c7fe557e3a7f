"""A constant step: gradient descent on the client.

    y <- y - lr d          balanced: lr K / K_i, so that all clients move equally far

Differences from the paper: none (McMahan et al., AISTATS 2017, FederatedAveraging's ClientUpdate).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.fields import Positive
from ..core.types import Rows, State
from .rule import Step, StepContext, StepResult, descend, per_client


@dataclass(frozen=True)
class Constant(Step):
    """Step of fixed size, times the schedule's factor.

    Args:
        lr: Step size, > 0; a choice, since no value fits every problem.
        balanced: Whether clients with more steps take shorter ones, as in FedLin.
    """

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    lr: Positive = 0.1
    balanced: bool = False

    def descent_lr(self, factor: float) -> float | None:
        """Return lr, or None if clients differ in it or a subclass overrides `take`."""
        other = self.balanced or type(self).take is not Constant.take
        return None if other else self.lr * factor

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along -d."""
        lr = self.lr * tick.factor
        each = per_client(y, lr)
        if self.balanced:
            each = each * (tick.round.plan.steps / tick.steps)
        return descend(y, d, each if self.balanced else lr), each, scratch
