"""FedExP: let the server step grow while clients pull in different directions.

Jhunjhunwala, Wang & Joshi, ICLR 2023, Algorithm 1, and the appendix on FedExP with momentum.
arXiv:2301.09604

    delta = mean_i delta_i,   q = mean_i |delta_i|^2
    FedExP:   eta   = max(1, q / (2 (|delta|^2 + eps)))
              x    <- x + eta delta
    FedExPM:  v <- mean_i delta_i + momentum v,     Q <- mean_i |delta_i|^2 + (momentum / 2) Q
              eta = Q / (2 (|v|^2 + eps)),          x <- x + eta v

Differences from the paper: the mean may be weighted; delta_i = y_i - x is the move itself, so
the server adds; averaging the last two iterates is the method's `output`; the cap
max_server_step is FedExpSLS's option. The authors' code uses cohort * eps instead of eps and
lets it decay: in round t it is eps eps_decay^t with eps_decay = 0.998^2; by default eps is
constant, as printed. FedExPM has no lower clip, as printed; the momentum branch of the authors'
code is inert, because of a misspelt name.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import AtLeastOne, Decay, Fraction, NonNegative
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class FedExP(Server):
    """Server rule with an extrapolated step size, never below FedAvg's 1.

    Args:
        eps: Keeps eta finite as delta vanishes, >= 0; in units of |delta|^2.
        max_server_step: Largest eta, >= 1, or None for no cap.
        eps_decay: Factor of eps after every round, in (0, 1].
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: NonNegative = 1e-3
    max_server_step: AtLeastOne | None = None
    eps_decay: Fraction = 1.0

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the extrapolated mean move."""
        delta, q = mean["delta"], mean["delta_sq"]  # (d,), ()
        length = 2 * (inner(delta, delta) + self.eps * self.eps_decay**t.index)
        eta = torch.where(length == 0, 1.0, q / length)  # moves that cancel, or no move
        eta = eta.clamp(min=1.0, max=self.max_server_step)
        return torch.addcmul(x, delta, eta), state, {"server_step": eta}


@dataclass(frozen=True)
class FedExPM(Server):
    """Server rule with momentum and an extrapolated step size.

    Args:
        eps: Keeps eta finite as v vanishes, >= 0; in units of |delta|^2.
        momentum: Share of the last v that is kept, in [0, 1).
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: NonNegative = 1e-3
    momentum: Decay = 0.9

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at rest."""
        return {"v": torch.zeros_like(x), "q": x.new_zeros(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the extrapolated momentum."""
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        q = mean["delta_sq"] + (self.momentum / 2) * state["q"]
        length = 2 * (inner(v, v) + self.eps)
        eta = torch.where(length == 0, 0.0, q / length)  # moves that cancel, or no move
        return torch.addcmul(x, v, eta), {"v": v, "q": q}, {"server_step": eta}
