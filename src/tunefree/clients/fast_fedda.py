"""Fast-FedDA: dual averaging with growing weights, for strongly convex losses.

Bao et al., ICML 2022, "Fast composite optimization and statistical recovery in federated
learning"; read in the released code (MingruiLiu-ML-Lab/Federated-Sparse-Learning).

    w(S, n) = prox_{(n/b) h}(-S / b),   b = 1/lr + n mu / 2
    w = x at first;   S_i <- S_i + g_i(w) - (mu/2) w,   w <- w(S_i, n + k),   k = 1, 2, ...
    up: mean gradient and mean point of the round
    server:  S <- S + K mean_i (mean gradient - (mu/2) mean point),   n <- n + K,   x = w(S, n)

where S starts at -x / lr and n at 0.

Differences from the paper: every gradient's point is counted once (the released code counts one
more a round, which shifts the fixed point by (mu / 2K) w); clients send means over their own steps.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.fields import NonNegative, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..penalties import Penalty, Zero
from .rule import Direction, LocalProblem, LocalResult


@dataclass(frozen=True)
class FastFedDA(Direction):
    """Direction that moves in the dual space with a decreasing step.

    Args:
        penalty: The regulariser h.
        lr: First step size, > 0.
        mu: Assumed strong convexity, >= 0; 0 keeps the step constant.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    mu: NonNegative = 1e-3
    uploads: ClassVar[tuple[str, ...]] = ("grad", "point")
    reads: ClassVar[tuple[str, ...]] = ("dual",)
    sets: ClassVar[tuple[str, ...]] = ("grad_at", "start")
    needs_constant_lr: ClassVar[bool] = True
    goes_with: ClassVar[tuple[str, ...]] = ("FastFedDA",)
    records: ClassVar[tuple[str, ...]] = ("grad_mean", "point_mean")

    def check(self, plan: Plan) -> None:
        """Refuse a plan in whose last round the proximal problem is not convex."""
        n = plan.steps * (plan.rounds + 1)
        self.penalty.check(n / self.bound(n), "FastFedDA")

    def bound(self, n: float) -> float:
        """Return b after n steps."""
        return 1 / self.lr + n * self.mu / 2

    def primal(self, dual: Rows, n: float, plan: Plan) -> Rows:
        """Return w(S, n)."""
        b = self.bound(n)
        return self.penalty.prox(dual / -b, n / b, plan.layout)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Iterate on y = -lr S_i, so that a step of lr adds to S_i."""
        n = t.plan.steps * t.index

        def grad_at(y: Rows, k: int) -> Rows:
            return self.primal(y / -self.lr, n + k, t.plan)

        zero = torch.zeros_like(x)
        return LocalProblem(
            mu=-self.mu / 2, anchor=zero, start=-self.lr * down["dual"], grad_at=grad_at
        )

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the mean gradient and the mean point."""
        assert work.grad_mean is not None
        assert work.point_mean is not None
        return {"grad": work.grad_mean, "point": work.point_mean}, own
