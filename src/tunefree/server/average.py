"""The servers of FedAvg and FedAvgM: move by the mean move, or by its running sum.

McMahan et al., AISTATS 2017, Algorithm 1, arXiv:1602.05629; Hsu, Qi & Brown, 2019, section 3,
arXiv:1909.06335

    Average:   x <- x + server_lr mean_i delta_i
    Momentum:  v <- momentum v + mean_i delta_i,     x <- x + server_lr v

Differences from the paper: clients count alike where uploads are masked, noised or aggregated by a
robust rule, otherwise by their samples; server_lr as in Reddi et al., ICLR 2021. delta is the move
itself, so the server adds.
"""

from dataclasses import dataclass

import torch

from ..core.fields import Decay, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Average(Server):
    """Server rule without memory.

    Args:
        server_lr: Multiplies the mean move, > 0; 1 is plain averaging.
    """

    server_lr: Positive = 1.0

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the mean move."""
        eta = x.new_tensor(self.server_lr)
        return torch.add(x, mean["delta"], alpha=self.server_lr), state, {"server_step": eta}


@dataclass(frozen=True)
class Momentum(Server):
    """Server rule with a running sum of moves.

    Args:
        server_lr: Multiplies the running sum, > 0.
        momentum: Share of the last sum that is kept, in [0, 1).
    """

    server_lr: Positive = 1.0
    momentum: Decay = 0.9

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at rest."""
        return {"v": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the running sum."""
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        x = torch.add(x, v, alpha=self.server_lr)
        return x, {"v": v}, {"server_step": x.new_tensor(self.server_lr)}
