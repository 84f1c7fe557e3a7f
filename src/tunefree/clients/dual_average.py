"""FedDualAvg: clients move in the dual space and take gradients at the primal point.

Yuan, Zaheer & Reddi, ICML 2021, Algorithm 3. arXiv:2011.08474

    z_i = x at first;   w = prox_{(tau + k lr) h}(z_i),   z_i <- z_i - lr g_i(w),   k = 0, 1, ...

x is the server's dual vector and tau = server_lr lr K t the sum of steps so far.

Differences from the paper: Euclidean mirror map, constant step sizes; K is the mean over clients
where they differ.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..penalties import Penalty, Zero
from .rule import Direction, LocalProblem


@dataclass(frozen=True)
class DualAverage(Direction):
    """Direction that takes its gradients at the proximal map of the dual point.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
        server_lr: The server's, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    server_lr: Positive = 1.0
    sets: ClassVar[tuple[str, ...]] = ("grad_at",)
    goes_with: ClassVar[tuple[str, ...]] = ("DualAverage",)
    needs_constant_lr: ClassVar[bool] = True

    def check(self, plan: Plan) -> None:
        """Refuse a plan in whose last round the proximal problem is not convex."""
        self.penalty.check(self.round_length(plan) * plan.rounds, "DualAverage")

    def round_length(self, plan: Plan) -> float:
        """Return by how much tau grows in a round."""
        return self.server_lr * self.lr * plan.steps

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Take gradients at the primal point."""
        tau = self.round_length(t.plan) * t.index

        def grad_at(z: Rows, k: int) -> Rows:
            return self.penalty.prox(z, tau + k * self.lr, t.plan.layout)

        return LocalProblem(grad_at=grad_at)
