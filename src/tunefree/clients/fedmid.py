"""FedMiD: a proximal map after every local step.

Yuan, Zaheer & Reddi, ICML 2021, Algorithm 2 (federated mirror descent). arXiv:2011.08474

    y <- prox_{lr h}(y - lr g_i(y))

Differences from the paper: Euclidean mirror map, as in its experiments.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..penalties import Penalty, Zero
from .rule import Direction, LocalProblem


@dataclass(frozen=True)
class FedMiD(Direction):
    """Direction with a proximal map after each step.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    sets: ClassVar[tuple[str, ...]] = ("project",)

    def check(self, plan: Plan) -> None:
        """Refuse a step for which the proximal problem is not convex."""
        self.penalty.check(self.lr, "FedMiD")

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Apply the proximal map after each step."""

        def project(y: Rows, k: int) -> Rows:
            return self.penalty.prox(y, self.lr * t.factor, t.plan.layout)

        return LocalProblem(project=project)
