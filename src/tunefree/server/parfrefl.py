"""ParFreFL's server: a step of known length along the tracked mean momentum.

"ParFreFL / ComParFreFL", Algorithms 1 and 2.

    before round 0:  c = mean over everyone of c_i
    g  = c + mean_i q_i            with the old c
    c <- c + (1/N) sum_{i in cohort} q_i
    x <- x - server_lr g / |g|     server_lr from S, K and T

Differences from the paper: none; see the direction of the same name.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.rates import Rates
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class ParFreFL(Server):
    """Server rule with one vector of memory, c.

    Args:
        rates: Where the length of a step comes from.
    """

    rates: Rates = field(default_factory=Rates)
    needs: ClassVar[tuple[str, ...]] = ("innovation",)
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at zero, until everyone has prepared."""
        return {"control": torch.zeros_like(x)}

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        """Take everyone's first c_i."""
        return x, {"control": state["control"] + mean["innovation"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Go the known length along -g."""
        q, c = mean["innovation"], state["control"]
        g = c + q
        norm = inner(g, g).sqrt()
        length = x.new_tensor(self.rates.server_lr_at(t.plan))
        x = torch.addcmul(x, g, torch.where(norm > 0, length / norm, 0.0), value=-1)
        return x, {"control": torch.add(c, q, alpha=t.fraction)}, {"server_step": length}
