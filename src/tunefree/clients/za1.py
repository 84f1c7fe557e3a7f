"""ZA1: composite federated learning that decouples communication and proximal maps.

Zhang, Hu, Johansson & Wai, 2024, "Composite federated learning with heterogeneous data",
Algorithm 1. arXiv:2309.01795

    a = prox_{E h}(x),   zh = z = a,   E = server_lr lr K
    zh <- zh - lr (g_i(z) + c_i),   z <- prox_{(k+1) lr h}(zh),   k = 0, 1, ...
    up: zh,     x <- a + server_lr mean_i (zh_i - a)
    c_i <- (a - x) / E - (1/K) sum_k g_i(z)

The client completes c_i when the next x arrives.

Differences from the paper: where K_i differ, c_i moves by its own change (zh - a) / (lr K) in place
of the mean gradient, which keeps sum_i c_i = 0.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..penalties import Penalty, Zero
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class ZA1(Direction):
    """Direction with controls that sum to zero and gradients at proximal points.

    Memory: a client owns c_i + x / E, which x completes.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean move, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    server_lr: Positive = 1.0
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    error_compensated: ClassVar[tuple[str, ...]] = ("delta",)
    sets: ClassVar[tuple[str, ...]] = ("grad_at", "start")
    goes_with: ClassVar[tuple[str, ...]] = ("ZA1",)
    full: ClassVar[bool] = True
    needs_constant_lr: ClassVar[bool] = True

    def round_length(self, plan: Plan) -> float:
        """Return E."""
        return self.server_lr * self.lr * plan.steps

    def check(self, plan: Plan) -> None:
        """Refuse steps for which the proximal problem is not convex."""
        self.penalty.check(max(self.round_length(plan), self.lr * plan.steps), "ZA1")

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return the memory for which c_i = 0 at x."""
        return {"half": x / self.round_length(plan)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Start at prox(x) and take gradients at proximal points."""
        layout = t.plan.layout

        def grad_at(y: Rows, k: int) -> Rows:
            return self.penalty.prox(y, k * self.lr, layout) if k else y

        start = self.penalty.prox(x, self.round_length(t.plan), layout)
        return LocalProblem(
            shift=own["half"] - x / self.round_length(t.plan), start=start, grad_at=grad_at
        )

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move."""
        start = work.y - work.delta
        return {"delta": work.delta}, {
            "half": own["half"] + (start - work.x) / self.round_length(t.plan)
        }

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Add the move as the server received it; the next x completes c_i."""
        return {"half": own["half"] + up.arrived["delta"] / (self.lr * t.plan.steps)}
