"""FedAvg's server: move by the mean move.

McMahan et al., AISTATS 2017, Algorithm 1. arXiv:1602.05629

    x <- x + server_lr mean_i delta_i

Differences from the paper: weights are uniform unless asked for by samples; server_lr as in
Reddi et al., ICLR 2021.
"""

from dataclasses import dataclass

import torch

from ..core.errors import check_positive
from ..core.plan import Query, Round
from ..core.types import Channels, State, Trace, Vector
from .rule import Server


@dataclass(frozen=True)
class Average(Server):
    """Server rule without memory.

    Args:
        server_lr: Multiplies the mean move, > 0; 1 is plain averaging.
    """

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Average", "server_lr", self.server_lr)

    def step(
        self, x: Vector, mean: Channels, state: State, t: Round, ask: Query
    ) -> tuple[Vector, State, Trace]:
        """Add the mean move."""
        eta = x.new_tensor(self.server_lr)
        return torch.add(x, mean["delta"], alpha=self.server_lr), state, {"server_step": eta}
