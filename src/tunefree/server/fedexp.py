"""Server rules that extrapolate the mean move."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.errors import check_argument, check_positive
from ..core.fields import AtLeastOne, Decay, Finite, Fraction, NonNegative, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class FedExP(Server):
    """FedExP: let the server step grow while clients pull in different directions.

    Jhunjhunwala, Wang & Joshi, ICLR 2023, Algorithm 1. arXiv:2301.09604

        delta = mean_i delta_i,   q = mean_i |delta_i|^2
        eta   = max(1, q / (2 (|delta|^2 + eps)))
        x    <- x + eta delta

    Differences from the paper: the mean may be weighted; delta_i = y_i - x is the move itself, so
    the server adds; averaging the last two iterates is the method's `output`; the cap
    max_server_step is FedExpSLS's option. The authors' code uses cohort * eps instead of eps and
    lets it decay: in round t it is eps eps_decay^t with eps_decay = 0.998^2; by default eps is
    constant, as printed.

    Args:
        eps: Keeps eta finite as delta vanishes, >= 0; in units of |delta|^2.
        max_server_step: Largest eta, >= 1, or None for no cap.
        eps_decay: Factor of eps after every round, in (0, 1].
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: NonNegative = 1e-3
    max_server_step: AtLeastOne | None = None
    eps_decay: Fraction = 1.0

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        delta, q = mean["delta"], mean["delta_sq"]  # (d,), ()
        length = 2 * (inner(delta, delta) + self.eps * self.eps_decay**t.index)
        eta = torch.where(length == 0, 1.0, q / length)  # moves that cancel, or no move
        eta = eta.clamp(min=1.0, max=self.max_server_step)
        return torch.addcmul(x, delta, eta), state, {"server_step": eta}


@dataclass(frozen=True)
class FedExPM(Server):
    """FedExP with momentum.

    Jhunjhunwala, Wang & Joshi, ICLR 2023, the appendix on FedExP with momentum. arXiv:2301.09604

        v <- mean_i delta_i + momentum v,     Q <- mean_i |delta_i|^2 + (momentum / 2) Q
        eta = Q / (2 (|v|^2 + eps)),          x <- x + eta v

    Differences from the paper: as in FedExP. No lower clip, as printed; the momentum branch of the
    authors' code is inert, because of a misspelt name.

    Args:
        eps: Keeps eta finite as v vanishes, >= 0; in units of |delta|^2.
        momentum: Share of the last v that is kept, in [0, 1).
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: NonNegative = 1e-3
    momentum: Decay = 0.9

    def init(self, x: Vector, plan: Plan) -> State:
        return {"v": torch.zeros_like(x), "q": x.new_zeros(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        q = mean["delta_sq"] + (self.momentum / 2) * state["q"]
        length = 2 * (inner(v, v) + self.eps)
        eta = torch.where(length == 0, 0.0, q / length)  # moves that cancel, or no move
        return torch.addcmul(x, v, eta), {"v": v, "q": q}, {"server_step": eta}


@dataclass(frozen=True)
class Extrapolate(Server):
    """FedExProx: extrapolate the mean of the clients' proximal points.

    Li, Acharya & Richtarik, 2024, "The power of extrapolation in federated learning",
    arXiv:2405.13766

        x <- x + a mean_i (p_i - x),     p_i = argmin_y f_i(y) + (mu / 2) |y - x|^2
        constant:  a
        GraDS:     a = mean_i |p_i - x|^2 / |mean_i p_i - x|^2                   >= 1
        StoPS:     a = mean_i (M_i - lower) / (mu |mean_i p_i - x|^2)
                   M_i = f_i(p_i) + (mu/2) |p_i - x|^2

    Differences from the paper: the adaptive rules are for full participation there; with a cohort
    the means are over it. a = 1 where the mean move is 0. One lower bound serves all clients.

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

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
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
