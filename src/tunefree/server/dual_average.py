"""FedDualAvg's server: the mean is taken in the dual space, the model is its proximal map.

Yuan, Zaheer & Reddi, ICML 2021, Algorithm 3. arXiv:2011.08474

    z <- z + server_lr mean_i (z_i - z),   tau <- tau + server_lr lr K,   model: prox_{tau h}(z)

Differences from the paper: none. The server's x is z.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.dual_average import DualAverage as ClientDualAverage
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class DualAverage(Server):
    """Server rule whose x is a dual vector.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientDualAverage = field(default_factory=ClientDualAverage)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("DualAverage",)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at tau = 0."""
        return {"x": x, "tau": x.new_zeros(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Move in the dual space and map back."""
        eta = x.new_tensor(self.direction.server_lr)
        z = torch.add(x, mean["delta"], alpha=self.direction.server_lr)
        tau = self.direction.round_length(t.plan) * (t.index + 1)
        model = self.direction.penalty.prox(z, tau, t.plan.layout)
        trace = {"server_step": eta, "proxes": x.new_ones(())}
        return z, {"x": model, "tau": x.new_tensor(tau)}, trace

    def output(self, x: Vector, state: State) -> Vector:
        """Return the primal point."""
        return state["x"]
