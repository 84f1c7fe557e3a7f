"""FedExPM: FedExP's extrapolation along a momentum.

Jhunjhunwala, Wang & Joshi, ICLR 2023, appendix on FedExP with momentum. arXiv:2301.09604

    v <- mean_i delta_i + momentum v,     Q <- mean_i |delta_i|^2 + (momentum / 2) Q
    eta = Q / (2 (|v|^2 + eps)),          x <- x + eta v

Differences from the paper: none; there is no lower clip. (The momentum branch of the authors'
code is inert, because of a misspelt name; this is the formula.)
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import check_in_range, check_nonnegative
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Trace, Vector
from ..core.vectors import inner
from .rule import Server


@dataclass(frozen=True)
class FedExPM(Server):
    """Server rule with momentum and an extrapolated step size.

    Args:
        eps: Keeps eta finite as v vanishes, >= 0; in units of |delta|^2.
        momentum: Share of the last v that is kept, in [0, 1).
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: float = 1e-3
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_nonnegative("FedExPM", "eps", self.eps)
        check_in_range("FedExPM", "momentum", self.momentum, 0, 1)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at rest."""
        return {"v": torch.zeros_like(x), "q": x.new_zeros(())}

    def step(
        self, x: Vector, mean: Channels, state: State, t: Round, ask: Query
    ) -> tuple[Vector, State, Trace]:
        """Add the extrapolated momentum."""
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        q = mean["delta_sq"] + (self.momentum / 2) * state["q"]
        length = 2 * (inner(v, v) + self.eps)
        eta = torch.where(length == 0, 0.0, q / length)  # moves that cancel, or no move
        return torch.addcmul(x, v, eta), {"v": v, "q": q}, {"server_step": eta}
