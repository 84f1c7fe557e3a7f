"""FedAvg-M and SCAFFOLD-M: the server's last direction in every local step.

Cheng, Huang, Wu & Yuan, ICLR 2024, "Momentum benefits non-iid federated learning simply and
provably", Algorithms 1 and 2. arXiv:2306.16504

    FedAvg-M:    d = beta g_i(y) + (1 - beta) p
    SCAFFOLD-M:  d = beta (g_i(y) - c_i + c) + (1 - beta) p
                 c_i+ = mean of the K_i local gradients,   c <- c + (1/N) sum (c_i+ - c_i)

p, the last mean direction, comes from the server rule of the same name.

Differences from the paper: controls start at zero instead of at a batch's gradient.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Fraction
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class ClientMomentum(Direction):
    """Direction that blends the gradient with the server's last one.

    Args:
        beta: Weight of the new gradient, in (0, 1]; 1 is FedAvg.
    """

    beta: Fraction = 0.1
    reads: ClassVar[tuple[str, ...]] = ("momentum",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Blend with p."""
        return LocalProblem(scale=self.beta, shift=(1 - self.beta) * down["momentum"])


@dataclass(frozen=True)
class ScaffoldM(Direction):
    """The same with control variates.

    Memory: a client owns c_i, the server shares c.

    Args:
        beta: Weight of the new gradient, in (0, 1]; 1 is SCAFFOLD.
    """

    beta: Fraction = 0.1
    uploads: ClassVar[tuple[str, ...]] = ("control",)
    error_compensated: ClassVar[tuple[str, ...]] = ("control",)
    reads: ClassVar[tuple[str, ...]] = ("momentum",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)
    records: ClassVar[tuple[str, ...]] = ("grad_mean",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return c_i = 0 and c = 0."""
        return {"control": torch.zeros_like(x)}, {"control": torch.zeros_like(x)}

    def down(self, shared: State) -> Channels:
        """Send c."""
        return {"control": shared["control"]}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Correct by c - c_i, then blend with p."""
        shift = self.beta * (down["control"] - own["control"])
        return LocalProblem(scale=self.beta, shift=shift + (1 - self.beta) * down["momentum"])

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send c_i+ - c_i."""
        assert work.grad_mean is not None
        return {"control": work.grad_mean - own["control"]}, own | {"new": work.grad_mean}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Keep c_i+ as the server knows it."""
        return {"control": up.apply("control", own["control"], own["new"])}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean change; clients that were absent count as no change."""
        return {"control": shared["control"] + t.fraction * mean["control"]}
