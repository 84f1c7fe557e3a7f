"""The server of FedDyn and FedDC: average, and add what everyone drifted so far.

Acar et al., ICLR 2021, Algorithm 1, arXiv:2111.04263; Gao et al., CVPR 2022, arXiv:2203.11751

    h <- h + (1/N) sum_{i in cohort} delta_i,     x <- x + mean_i delta_i + h

Differences from the paper: FedDyn's h is -mu times ours.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Drift(Server):
    """Server rule with the mean drift h in memory."""

    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("FedDyn", "FedDC")

    def init(self, x: Vector, plan: Plan) -> State:
        """Return h = 0."""
        return {"drift": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the mean move and the drift."""
        h = torch.add(state["drift"], mean["delta"], alpha=t.fraction)
        return (x + mean["delta"]).add_(h), {"drift": h}, {"server_step": x.new_ones(())}
