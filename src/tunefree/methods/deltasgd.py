"""Delta-SGD: every client's step follows the smoothness that it meets on its way.

Kim, Toghani, Uribe & Kyrillidis, ICLR 2024, "Adaptive federated learning with auto-tuned
clients", Algorithm 1, arXiv:2306.11201; after Malitsky & Mishchenko, ICML 2020.

    lr_k    = min(gamma |y_k - y_{k-1}| / (2 |d(y_k) - d(y_{k-1})|),
                  sqrt(1 + delta theta_{k-1}) lr_{k-1})
    theta_k = lr_k / lr_{k-1},     y_{k+1} = y_k - lr_k d(y_k)

from lr_0 = lr and theta_0 = theta in every round; both gradients d are of the batch of step k.

Differences from the paper: none known. The two gradients are of the batch of the step, as in the
authors' code, which costs two gradients for every step but the first. Their code also lets the
first step of a round grow by sqrt(1 + delta theta), and adds 1e-8 to every step size; here the
first step has size lr and nothing is added. Where point or gradient did not change, the step grows,
as in their code.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..clients.rule import Step, StepContext, StepResult, descend
from ..core.fields import NonNegative, Positive
from ..core.types import Channels, Rows, State
from ..core.vectors import row_sq
from ..server import Average
from .method import Method
from .registry import register_method


@dataclass(frozen=True)
class DeltaSGD(Step):
    """Step from the change of the gradient since the last iterate, on the same batch.

    Args:
        gamma: Multiplies half of the inverse local smoothness, > 0; 2 in the paper.
        delta: How fast steps may grow, >= 0; 0.1 in the paper.
        lr: First step of a round, > 0; 0.2 in the paper.
        theta: First ratio of two steps, > 0; 1 in the paper.
    """

    gamma: Positive = 2.0
    delta: NonNegative = 0.1
    lr: Positive = 0.2
    theta: Positive = 1.0
    sets_lr: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    def extra_gradients(self, steps: float) -> float:
        return max(steps - 1, 0.0)

    def begin(self, y: Rows, down: Channels) -> State:
        one = y.new_ones(y.shape[:1])
        start = {"last": y, "lr": self.lr * one, "theta": self.theta * one}
        return start | {"slopes": torch.zeros_like(one)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        first = context.index == 0
        if first is True:
            return descend(y, d, scratch["lr"]), scratch["lr"], scratch
        assert context.objective.slope is not None
        last = scratch["last"]
        moved = row_sq(y - last).sqrt()  # (m,)
        changed = row_sq(d - context.objective.slope(last)).sqrt()
        grown = (1 + self.delta * scratch["theta"]).sqrt() * scratch["lr"]
        known = (moved > 0) & (changed > 0)
        found = torch.where(known, self.gamma * moved / (2 * changed), grown)
        lr = torch.minimum(found, grown)
        after = {"lr": lr, "theta": lr / scratch["lr"], "slopes": scratch["slopes"] + 1}
        if isinstance(first, Tensor):  # a fused step: the gradient at `last` is computed in vain
            after = {name: torch.where(first, scratch[name], v) for name, v in after.items()}
        lr = after["lr"]
        return descend(y, d, lr), lr, after | {"last": y}


@register_method("Kim 2024", arxiv="2306.11201")
def deltasgd(
    *,
    gamma: float = 2.0,
    delta: float = 0.1,
    lr: float = 0.2,
    theta: float = 1.0,
    server_lr: float = 1.0,
) -> Method:
    """Client steps from the local smoothness; no learning rate. Kim et al. 2024."""
    return Method(step=DeltaSGD(gamma, delta, lr, theta), server=Average(server_lr))
