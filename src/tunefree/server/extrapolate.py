"""FedExProx: extrapolate the mean of the clients' proximal points.

Li, Acharya & Richtarik, 2024, "The power of extrapolation in federated learning", arXiv:2405.13766

    x <- x + a mean_i (p_i - x),     p_i = argmin_y f_i(y) + (mu / 2) |y - x|^2
    constant:  a
    GraDS:     a = mean_i |p_i - x|^2 / |mean_i p_i - x|^2                   >= 1
    StoPS:     a = mean_i (M_i - lower) / (mu |mean_i p_i - x|^2)
               M_i = f_i(p_i) + (mu/2) |p_i - x|^2

Differences from the paper: the adaptive rules are for full participation there; with a cohort the
means are over it. a = 1 where the mean move is 0. One lower bound serves all clients.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from ..core.errors import check_argument, check_positive
from ..core.fields import Finite, Positive
from ..core.plan import Query, Round
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Extrapolate(Server):
    """Server rule that goes beyond the mean of proximal points.

    Args:
        by: "grads", "stops", or a constant > 0.
        mu: The clients' proximal weight, > 0; StoPS divides by it.
        lower: A bound below every client's loss, for StoPS.
    """

    by: float | Literal["grads", "stops"] = "grads"
    mu: Positive = 0.1
    lower: Finite = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.by, str):
            rule, is_known = "'grads', 'stops' or a number > 0", self.by in ("grads", "stops")
            check_argument("Extrapolate", "by", self.by, rule, is_known)
        else:
            check_positive("Extrapolate", "by", self.by)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the factor is made of."""
        more = {"grads": ("delta_sq",), "stops": ("envelope",)}
        return ("delta", *(more[self.by] if isinstance(self.by, str) else ()))

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the extrapolated mean move."""
        delta = mean["delta"]
        if not isinstance(self.by, str):
            a = x.new_tensor(self.by)
        else:
            length = inner(delta, delta)
            if self.by == "grads":
                top = mean["delta_sq"]
            else:
                top = (mean["envelope"] - self.lower) / self.mu
            a = torch.where(length > 0, top / length, 1.0)
        return torch.addcmul(x, delta, a), state, {"server_step": a}
