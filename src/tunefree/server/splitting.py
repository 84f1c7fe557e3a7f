"""The server of FedDR and FedADMM: the mean of the reflected points, through one proximal map.

Tran-Dinh, Pham, Phan & Nguyen, NeurIPS 2021, Algorithm 1. arXiv:2103.03452

    z <- z + (1/N) sum_{i in cohort} (r_i - its last value),     x = prox_{(1/mu) h}(z)

Differences from the paper: none.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..penalties import Penalty, Zero
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Splitting(Server):
    """Server rule with the mean z of all clients' reflected points in memory.

    Args:
        penalty: The regulariser h.
        mu: The clients' proximal weight, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    mu: Positive = 1.0
    needs: ClassVar[tuple[str, ...]] = ("reflected",)
    euclidean: ClassVar[bool] = False

    def alpha_at(self, plan: Plan) -> float:
        """Return the proximal step."""
        return 1 / self.mu

    def check(self, plan: Plan) -> None:
        """Refuse a proximal step for which the subproblem is not convex."""
        self.penalty.check(1 / self.mu, "Splitting")

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at x."""
        return {"z": x}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the changes and take the proximal map."""
        z = torch.add(state["z"], mean["reflected"], alpha=t.fraction)
        x = self.penalty.prox(z, 1 / self.mu, t.plan.layout)
        return x, {"z": z}, {"server_step": x.new_ones(()), "proxes": x.new_ones(())}
