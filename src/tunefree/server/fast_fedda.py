"""Fast-FedDA's server: the dual sum, and the model it stands for.

Bao et al., ICML 2022, "Fast composite optimization and statistical recovery in federated
learning"; read in the released code.

    S <- S + K mean_i (mean gradient - (mu/2) mean point),   n <- n + K,   x = w(S, n)

Differences from the paper: see the direction of the same name.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.fast_fedda import FastFedDA as ClientFastFedDA
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class FastFedDA(Server):
    """Server rule with the dual sum S in memory.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientFastFedDA = field(default_factory=ClientFastFedDA)
    needs: ClassVar[tuple[str, ...]] = ("grad", "point")
    sends: ClassVar[tuple[str, ...]] = ("dual",)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("FastFedDA",)

    def init(self, x: Vector, plan: Plan) -> State:
        """Return S = -x / lr."""
        return {"dual": x / -self.direction.lr}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send x and S."""
        return {"x": x, "dual": state["dual"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the round to the sum and map back."""
        K = t.plan.steps
        moved = torch.sub(mean["grad"], mean["point"], alpha=self.direction.mu / 2)
        dual = moved.mul_(K).add_(state["dual"])
        n = K * (t.index + 1)
        x = self.direction.primal(dual, n, t.plan)
        trace = {"server_step": x.new_tensor(1 / self.direction.bound(n)), "proxes": x.new_ones(())}
        return x, {"dual": dual}, trace
