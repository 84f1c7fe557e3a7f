"""SCAFCOM's server: a step along the tracked mean momentum.

Huang, Li & Li, 2024, Algorithm 3. arXiv:2308.08165

    x <- x - server_lr lr K (c + mean_i q_i)            with the old c, which was sent down
    c <- c + (1/N) sum_{i in cohort} q_i

Differences from the paper: K is the mean over clients where they differ.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Scafcom(Server):
    """Server rule with one vector of memory, c.

    Args:
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean client move, > 0.
    """

    lr: Positive = 0.1
    server_lr: Positive = 1.0
    needs: ClassVar[tuple[str, ...]] = ("innovation",)
    sends: ClassVar[tuple[str, ...]] = ("control",)
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        """Return c = 0."""
        return {"control": torch.zeros_like(x)}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send x and c."""
        return {"x": x, "control": state["control"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Go along the tracked mean."""
        q, c = mean["innovation"], state["control"]
        length = self.server_lr * self.lr * t.factor * t.plan.steps
        x = torch.add(x, c + q, alpha=-length)
        c = torch.add(c, q, alpha=t.fraction)
        return x, {"control": c}, {"server_step": x.new_tensor(self.server_lr)}
