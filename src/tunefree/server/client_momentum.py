"""The server of FedAvg-M and SCAFFOLD-M: average, and remember the direction.

Cheng, Huang, Wu & Yuan, ICLR 2024, Algorithms 1 and 2. arXiv:2306.16504

    p <- -mean_i delta_i / (lr K),     x <- x + server_lr mean_i delta_i

Differences from the paper: its gamma is server_lr lr K; K is the mean over clients where they
differ.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class ClientMomentum(Server):
    """Server rule that sends its last mean direction to the clients.

    Args:
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean move, > 0.
    """

    lr: Positive = 0.1
    server_lr: Positive = 1.0
    sends: ClassVar[tuple[str, ...]] = ("momentum",)

    def init(self, x: Vector, plan: Plan) -> State:
        """Return p = 0."""
        return {"momentum": torch.zeros_like(x)}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send x and p."""
        return {"x": x, "momentum": state["momentum"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the mean move."""
        delta = mean["delta"]
        p = delta * (-1 / (self.lr * t.factor * t.plan.steps))
        x = torch.add(x, delta, alpha=self.server_lr)
        return x, {"momentum": p}, {"server_step": x.new_tensor(self.server_lr)}
