"""FedHyper: learning rates grow while successive updates agree, and shrink while they do not.

Wang, Wang & Li, ICLR 2024, "FedHyper: a universal and robust learning rate scheduler for federated
learning with hypergradient descent", section 3, arXiv:2310.03156

    clip(r; r_0, bound) = min(max(r, r_0 / bound), bound r_0),     delta = mean_i delta_i

    G:    eta <- clip(eta + <delta_t, delta_{t-1}>; 1, server_bound),     x <- x + eta delta_t
    SL:   lr  <- clip(lr + <delta_{t-1}, delta_{t-2}>; lr_0, bound),      all local steps of round t
    CL:   lr_k = clip(lr_{k-1} + <g_k, g_{k-1}> - <g_k, delta_{t-1}> / K; lr_0, bound)
          y <- y - lr_k g_k                      lr_0 in the first step of every round

One method with the setting `schedulers`: G is a server rule, SL and CL are client steps, and either
goes with G; the default is G with CL, which the paper runs from many first rates.

Differences from the paper: delta is the move itself, so the server adds, and CL's last term, which
is <g, Delta> / K with Delta = -delta in the paper, is subtracted. `bound` is relative to the first
rate, as in the authors' code: theirs is 0.01, which bounds of 1/10 and 10 would not admit. CL
starts anew in every round, also as in their code. Otherwise that code differs from the equations,
which are followed here: SL multiplies the sum of inner products by lr_0, and its rate is
overwritten before it is used; CL multiplies the rate instead of adding to it, takes moves for
gradients and divides by clients instead of K; server_bound is 5.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..clients import Constant
from ..clients.rule import Step, StepContext, StepResult, descend
from ..core.errors import check_known
from ..core.fields import AtLeastOne, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import inner
from ..server import Average, Server
from ..server.rule import ServerUpdate
from .method import Method
from .registry import register_method


@dataclass(frozen=True)
class GlobalHyper(Server):
    """Server rule whose step grows by the inner product of the last two mean moves; FedHyper-G.

    Args:
        server_bound: Largest server step and the inverse of the smallest, >= 1; 3 in the paper.
    """

    server_bound: AtLeastOne = 3.0

    def init(self, x: Vector, plan: Plan) -> State:
        return {"last": torch.zeros_like(x), "eta": x.new_ones(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        delta = mean["delta"]
        eta = state["eta"] + inner(delta, state["last"])
        eta = eta.clamp(1 / self.server_bound, self.server_bound)
        return torch.addcmul(x, delta, eta), {"last": delta, "eta": eta}, {"server_step": eta}


@dataclass(frozen=True)
class _Hyper(Step):
    """Base of the local schedulers, which share the last mean move.

    Args:
        lr: First rate, > 0; 0.01 in the authors' code.
        bound: Largest and smallest rate relative to `lr`, >= 1; 10 in the paper.
    """

    lr: Positive = 0.01
    bound: AtLeastOne = 10.0
    needs: ClassVar[tuple[str, ...]] = ("delta",)
    sets_lr: ClassVar[bool] = True

    def _clip(self, lr: Rows) -> Rows:
        return lr.clamp(self.lr / self.bound, self.lr * self.bound)


@dataclass(frozen=True)
class ServerSideHyper(_Hyper):
    """Step whose size the server updates by the last two mean moves; FedHyper-SL."""

    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("lr",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {}, {"last": torch.zeros_like(x), "lr": x.new_tensor(self.lr)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr = context.down["lr"].expand(y.shape[:1])
        return descend(y, d, lr), lr, scratch

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        lr = self._clip(shared["lr"] + inner(mean["delta"], shared["last"]))
        return {"last": mean["delta"], "lr": lr}


@dataclass(frozen=True)
class ClientSideHyper(_Hyper):
    """Step whose size each client updates by its last two gradients; FedHyper-CL.

    Args:
        lr: First rate of every round, > 0; 0.01 in the authors' code.
    """

    fusible: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("last",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {}, {"last": torch.zeros_like(x)}

    def begin(self, y: Rows, down: Channels) -> State:
        one = y.new_ones(y.shape[:1])
        return {"g": torch.zeros_like(y), "lr": self.lr * one, "later": torch.zeros_like(one)}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        agree = (d * scratch["g"]).sum(-1) - (d * context.down["last"]).sum(
            -1
        ) / context.steps  # (m,)
        lr = self._clip(scratch["lr"] + scratch["later"] * agree)
        return descend(y, d, lr), lr, {"g": d, "lr": lr, "later": torch.ones_like(lr)}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        return {"last": mean["delta"]}


@register_method("Wang 2024", arxiv="2310.03156")
def fedhyper(
    *,
    lr: float = 0.01,
    schedulers: Literal["G", "SL", "CL", "G+SL", "G+CL"] = "G+CL",
    bound: float = 10.0,
    server_bound: float = 3.0,
) -> Method:
    """Rates that follow hypergradients, from a first one; no search. Wang et al. 2024.

    Args:
        schedulers: Which rates are adapted: the server's (G), the clients' by the server (SL) or
            by each client (CL). A rate that is not adapted stays at `lr`, or 1 on the server.
    """
    check_known("schedulers", schedulers, ("G", "SL", "CL", "G+SL", "G+CL"))
    local: Step = Constant(lr)
    if "SL" in schedulers:
        local = ServerSideHyper(lr, bound)
    elif "CL" in schedulers:
        local = ClientSideHyper(lr, bound)
    server = GlobalHyper(server_bound) if "G" in schedulers else Average()
    return Method(step=local, server=server)
