"""The adaptive server family: AdaGrad, Adam, Yogi and AMSGrad on the mean move.

Reddi et al., ICLR 2021, Algorithm 2, arXiv:2003.00295; FedAMS: Wang, Lin & Chen, ICML 2022,
Algorithm 1, arXiv:2205.02719; Fed-EF-AMS: Li & Li, 2023, Algorithm 1, arXiv:2211.14292

    m <- beta1 m + (1 - beta1) delta                                    delta = mean_i delta_i
    AdaGrad:  s <- s + delta^2
    Adam:     s <- beta2 s + (1 - beta2) delta^2
    Yogi:     s <- s - (1 - beta2) delta^2 sign(s - delta^2)
    x <- x + server_lr m / (sqrt(s) + eps)                              s = eps^2 at first
    AMSGrad:  s as Adam from 0,  top <- max(top, s, eps),  x <- x + server_lr m / sqrt(top)
              eps added:         top <- max(top, s),       x <- x + server_lr m / sqrt(top + eps)

Differences from the paper: none; no bias correction, as printed (released code of FedAMS corrects
it). Where eps = 0 and nothing moved yet, 0/0 is 0. `s0` is the first s: FedDuA's experiments start
from 0 with eps = 1e-9. The baselines in the code of FedExP are other rules: FedAdaGrad without
momentum over sqrt(s + 0.01); FedAdam with the squares of m instead of delta, (m / 0.1) over
sqrt(s / 0.01 + 0.01) in every round.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.fields import Decay, NonNegative, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Adaptive(Server):
    """Server rule that scales every coordinate by its own past.

    Args:
        kind: "adagrad", "adam" or "yogi".
        server_lr: Multiplies the scaled move, > 0; a choice.
        beta1: Memory of the move, in [0, 1).
        beta2: Memory of the squares, in [0, 1); not used by AdaGrad.
        eps: Added to the root of the squares, >= 0.
        s0: First value of the squares, >= 0; None is eps^2.
    """

    kind: Literal["adagrad", "adam", "yogi"] = "adam"
    server_lr: Positive = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    eps: NonNegative = 1e-3
    s0: NonNegative | None = None
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        s = torch.full_like(x, self.eps**2 if self.s0 is None else self.s0)
        return {"s": s} | ({"m": torch.zeros_like(x)} if self.beta1 else {})

    def _squares(self, s: Vector, delta: Vector) -> Vector:
        if self.kind == "adagrad":
            return torch.addcmul(s, delta, delta)
        if self.kind == "adam":
            return (self.beta2 * s).addcmul_(delta, delta, value=1 - self.beta2)
        sq = delta.square()
        return torch.addcmul(s, sq, (s - sq).sign_(), value=self.beta2 - 1)

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        delta = mean["delta"]
        s = self._squares(state["s"], delta)
        m = torch.lerp(state["m"], delta, 1 - self.beta1) if self.beta1 else delta
        root = s.sqrt().add_(self.eps)
        if self.eps == 0:
            root = torch.where(m == 0, 1.0, root)
        after = {"s": s} | ({"m": m} if self.beta1 else {})
        x = torch.addcdiv(x, m, root, value=self.server_lr)
        return x, after, {"server_step": x.new_tensor(self.server_lr)}


@dataclass(frozen=True)
class AMSGrad(Server):
    """Server rule whose scaling of a coordinate never relaxes.

    Args:
        server_lr: Multiplies the scaled move, > 0; a choice.
        beta1: Memory of the move, in [0, 1).
        beta2: Memory of the squares, in [0, 1).
        eps: Smallest square, or what is added to it, > 0.
        add: Whether eps is added under the root (Fed-EF) or a floor (FedAMS).
    """

    server_lr: Positive = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    eps: Positive = 1e-3
    add: bool = False
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        return {name: torch.zeros_like(x) for name in ("m", "s", "top")}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        delta = mean["delta"]
        m = torch.lerp(state["m"], delta, 1 - self.beta1)
        s = torch.lerp(state["s"], delta.square(), 1 - self.beta2)
        top = torch.maximum(state["top"], s)
        if self.add:
            root = (top + self.eps).sqrt_()
        else:
            top = top.clamp_(min=self.eps)
            root = top.sqrt()
        x = torch.addcdiv(x, m, root, value=self.server_lr)
        trace = {"server_step": x.new_tensor(self.server_lr)}
        return x, {"m": m, "s": s, "top": top}, trace
