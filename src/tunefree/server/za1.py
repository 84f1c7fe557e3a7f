"""ZA1's server: x is the point before the proximal map.

Zhang, Hu, Johansson & Wai, 2024, Algorithm 1. arXiv:2309.01795

    a = prox_{E h}(x),     x <- a + server_lr mean_i (zh_i - a),     model: prox_{E h}(x)

Differences from the paper: none.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.za1 import ZA1 as ClientZA1
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class ZA1(Server):
    """Server rule whose model is the proximal map of x.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientZA1 = field(default_factory=ClientZA1)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("ZA1",)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at the proximal map of x."""
        return {"x": self.direction.penalty.prox(x, self.direction.round_length(plan), plan.layout)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Move from the proximal point, and map again."""
        eta = x.new_tensor(self.direction.server_lr)
        x = torch.add(state["x"], mean["delta"], alpha=self.direction.server_lr)
        model = self.direction.penalty.prox(x, self.direction.round_length(t.plan), t.plan.layout)
        return x, {"x": model}, {"server_step": eta, "proxes": x.new_ones(())}

    def output(self, x: Vector, state: State) -> Vector:
        """Return the proximal point."""
        return state["x"]
