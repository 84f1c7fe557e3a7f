"""FedDuA: a server step that is optimal for a diagonal geometry, with nothing to tune.

"FedDuA", Algorithm 1 and Theorem 3.2.

    FedDuAdagrad:  s <- s + delta^2,                     v = delta,   m = q / 2
    FedDuAdam:     s <- beta2 s + (1 - beta2) delta^2
                   v <- beta1 v + (1 - beta1) delta
                   m <- (beta1 / 2) m + ((1 - beta1) / 2) q
    G = sqrt(s) + eps,   eta = m / (sum_j v_j^2 / G_j + eps_g),   x <- x + eta v / G

where delta = mean_i delta_i and q = mean_i |delta_i|^2. No bias correction, no lower clip.

Differences from the paper: the norm in the denominator is that of G^-1, as Theorem 3.2 and the
appendices have it; the algorithm box prints G, which breaks <v, x+ - x> = m.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..clients.rule import Plan, Round
from ..errors import ArgumentError, within
from ..types import Channels, State, Trace, Vector
from .rule import Server


def _check(owner: str, **smalls: float) -> None:
    for name, value in smalls.items():
        if not 0 <= value < float("inf"):
            raise ArgumentError(f"{owner}({name}=...) must be finite and >= 0, got {value!r}.")


def _move(
    v: Vector, m: Vector, s: Vector, eps: float, eps_g: float, state: State, x: Vector
) -> tuple[Vector, State, Trace]:
    bent = (v / (s.sqrt() + eps)).nan_to_num(nan=0.0)  # 0/0 is 0: a parameter nobody moved
    eta = (m / ((v * bent).sum() + eps_g)).nan_to_num(nan=0.0, posinf=0.0)
    return x + eta * bent, state, {"server_step": eta}


@dataclass(frozen=True)
class FedDuAdagrad(Server):
    """Server rule with AdaGrad's geometry.

    Args:
        eps: Added to the root of the summed squares, >= 0.
        eps_g: Added to the denominator of the step, >= 0; 0 leaves nothing to tune.
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    eps: float = 1e-9
    eps_g: float = 0.0

    def __post_init__(self) -> None:
        _check("FedDuAdagrad", eps=self.eps, eps_g=self.eps_g)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start with an empty sum."""
        return {"s": torch.zeros_like(x)}

    def step(
        self, x: Vector, mean: Channels, state: State, t: Round
    ) -> tuple[Vector, State, Trace]:
        """Move along the preconditioned mean."""
        delta = mean["delta"]
        s = state["s"] + delta.square()
        return _move(delta, mean["delta_sq"] / 2, s, self.eps, self.eps_g, {"s": s}, x)


@dataclass(frozen=True)
class FedDuAdam(Server):
    """Server rule with Adam's geometry.

    Args:
        beta1: Memory of the move, in [0, 1).
        beta2: Memory of the squares, in [0, 1).
        eps: Added to the root of the squares, >= 0.
        eps_g: Added to the denominator of the step, >= 0; 0 leaves nothing to tune.
    """

    needs: ClassVar[tuple[str, ...]] = ("delta", "delta_sq")
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-9
    eps_g: float = 0.0

    def __post_init__(self) -> None:
        within("FedDuAdam", "beta1", self.beta1, 0, 1)
        within("FedDuAdam", "beta2", self.beta2, 0, 1)
        _check("FedDuAdam", eps=self.eps, eps_g=self.eps_g)

    def init(self, x: Vector, plan: Plan) -> State:
        """Start with empty moments."""
        return {"s": torch.zeros_like(x), "v": torch.zeros_like(x), "m": x.new_zeros(())}

    def step(
        self, x: Vector, mean: Channels, state: State, t: Round
    ) -> tuple[Vector, State, Trace]:
        """Move along the preconditioned running mean."""
        delta, q = mean["delta"], mean["delta_sq"]
        s = self.beta2 * state["s"] + (1 - self.beta2) * delta.square()
        v = self.beta1 * state["v"] + (1 - self.beta1) * delta
        m = (self.beta1 / 2) * state["m"] + ((1 - self.beta1) / 2) * q
        return _move(v, m, s, self.eps, self.eps_g, {"s": s, "v": v, "m": m}, x)
