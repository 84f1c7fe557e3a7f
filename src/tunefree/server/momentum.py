"""FedAvgM: momentum on the server.

Hsu, Qi & Brown, 2019, section 3. arXiv:1909.06335

    v <- momentum v + mean_i delta_i,     x <- x + server_lr v

Differences from the paper: none (delta is the move itself, so the server adds).
"""

from dataclasses import dataclass

import torch

from ..core.errors import check_in_range, check_positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Trace, Vector
from .rule import Server


@dataclass(frozen=True)
class Momentum(Server):
    """Server rule with a running sum of moves.

    Args:
        server_lr: Multiplies the running sum, > 0.
        momentum: Share of the last sum that is kept, in [0, 1).
    """

    server_lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_positive("Momentum", "server_lr", self.server_lr)
        check_in_range("Momentum", "momentum", self.momentum, 0, 1)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at rest."""
        return {"v": torch.zeros_like(x)}

    def step(
        self, x: Vector, mean: Channels, state: State, t: Round, ask: Query
    ) -> tuple[Vector, State, Trace]:
        """Add the running sum."""
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        x = torch.add(x, v, alpha=self.server_lr)
        return x, {"v": v}, {"server_step": x.new_tensor(self.server_lr)}
