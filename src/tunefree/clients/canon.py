"""FedCanon: client controls that sum to zero, so that one proximal map a round is enough.

"FedCanon", Algorithms 1 and 2.

    y   <- y - lr (g_i(y) + c_i),    delta_i = y - x
    c_i <- c_i + (delta_i - mean_j delta_j) / (lr K)           the mean comes back to the clients
    II:  x <- prox_{alpha h}(x + (alpha / (lr K)) mean_j delta_j)   on every client's own copy

Differences from the paper: defined there for full participation; with a cohort, only its members
renew c_i, by the cohort's mean, which keeps sum_i c_i = 0 (experimental). Where K_i differ,
delta_i K / K_i is sent, so that the controls still sum to zero.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from ..penalties import Penalty, Zero
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class Canon(Direction):
    """Direction with a control variate that the server need not know.

    Memory: a client owns c_i, and with `copy` its own x.

    Args:
        lr: The clients' step size, > 0.
        copy: Whether each client keeps x itself and takes the proximal step (FedCanon II).
        alpha: Server step in FedCanon II, > 0; None is lr K.
        penalty: The regulariser h in FedCanon II.
    """

    lr: Positive = 0.1
    copy: bool = False
    alpha: Positive | None = None
    penalty: Penalty | None = None
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    error_compensated: ClassVar[tuple[str, ...]] = ("delta",)
    echo: ClassVar[tuple[str, ...]] = ("delta",)

    @property
    def sets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The first iterate, which is the client's copy of x."""
        return ("start",) if self.copy else ()

    @property
    def full(self) -> bool:  # type: ignore[override]
        """True with `copy`: a client that misses a round would not know x."""
        return self.copy

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return c_i = 0."""
        zero = {"control": torch.zeros_like(x)}
        return zero | ({"x": x} if self.copy else {}), {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Shift the gradient by c_i."""
        return LocalProblem(shift=own["control"], start=own["x"] if self.copy else None)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move, as if it had taken K steps."""
        ratio = (t.plan.steps / work.steps)[:, None]
        return {"delta": work.delta * ratio}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Update c_i by the distance of the client's move from the mean move."""
        away = (up.arrived["delta"] - up.mean["delta"]) / (self.lr * t.factor * t.plan.steps)
        new = {"control": own["control"] + away}
        if not self.copy:
            return new
        usual = self.lr * t.plan.steps
        alpha = usual if self.alpha is None else self.alpha
        x = own["x"] + (alpha / usual) * up.mean["delta"]
        h = Zero() if self.penalty is None else self.penalty
        return new | {"x": h.prox(x, alpha * t.factor, t.plan.layout)}
