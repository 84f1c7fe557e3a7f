"""Federated Prodigy: the step size follows an estimate of the distance to a solution.

Mishchenko & Defazio, ICML 2024, "Prodigy: an expeditiously adaptive parameter-free learner",
Algorithm 1 (the gradient descent form), arXiv:2306.06101

    paper:    lr_k = d_k^2 / sqrt(sum_{j <= k} d_j^2 |g_j|^2),     x_{k+1} = x_k - lr_k g_k
              d_{k+1} = max(d_k, sum_{j <= k} lr_j <g_j, x_0 - x_j> / |x_{k+1} - x_0|)

    clients:  q <- q + |g|^2,   lr = d^2 / sqrt(v + d^2 q),   y <- y - lr g        q = 0 at first
              up: q_i and a_i = sum_k lr_k <g_k, x - y_k> = (|delta_i|^2 - sum_k lr_k^2 |g_k|^2) / 2
    server:   n <- n + mean_i a_i + <mean_i delta_i, z>,     z <- z + mean_i delta_i
              v <- v + d^2 mean_i q_i,     d <- max(d, n / |z|)
    start:    z = 0,   n = v = 0,   d = d_rel (1 + |x|)

Since sum_k lr_k <g_k, x_0 - x> = <delta_i, x - x_0> and z = x - x_0, n is the paper's sum, and
clients need not know x_0. With one client and one local step it is Algorithm 1 with G = 0 and all
weights 1, step for step.

Differences from the paper: it is about one machine. Here every local step counts as a step, sums
over clients are means, and d is estimated by the server, once a round; d, v, n and z are kept over
rounds. z is where plain averaging would have moved, as in feddog. d_rel is relative and 1e-2, not
1e-6 for all problems: with one estimate a round, a tiny start costs rounds. The model is the last
iterate, not the average that the theorem is about. The Adam form is not carried over.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..clients.rule import LocalResult, Step, StepContext, StepResult, descend
from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import inner, row_sq
from ..server import Average
from .method import Method
from .registry import register_method


@dataclass(frozen=True)
class Prodigy(Step):
    """Step from the federation's estimate of the distance to a solution.

    Args:
        d_rel: First estimate relative to 1 + |x|, > 0; enters the result through a logarithm.
    """

    d_rel: Positive = 1e-2
    reports: ClassVar[tuple[str, ...]] = ("grad_sq", "along")
    needs: ClassVar[tuple[str, ...]] = ("delta",)
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True
    sends: ClassVar[tuple[str, ...]] = ("d", "v")

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        d = self.d_rel * (1 + inner(x, x).sqrt())
        return {}, {"z": torch.zeros_like(x), "d": d, "v": d.new_zeros(()), "n": d.new_zeros(())}

    def begin(self, y: Rows, down: Channels) -> State:
        zero = y.new_zeros(y.shape[:1])
        return {"q": zero, "path": zero.clone()}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        far, sq = context.down["d"], row_sq(d)  # (), (m,)
        q = scratch["q"] + sq
        seen = context.down["v"] + far.square() * q
        lr = torch.where(seen > 0, far.square() / seen.sqrt(), 0.0)  # no gradient, no step
        return descend(y, d, lr), lr, {"q": q, "path": scratch["path"] + lr.square() * sq}

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        along = (row_sq(result.delta) - result.scratch["path"]) / 2
        return {"grad_sq": result.scratch["q"], "along": along}, own

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        n = shared["n"] + mean["along"] + inner(mean["delta"], shared["z"])
        z = shared["z"] + mean["delta"]
        v = shared["v"] + shared["d"].square() * mean["grad_sq"]
        length = inner(z, z).sqrt()
        found = torch.where(length > 0, n / length, 0.0)
        return {"z": z, "d": torch.maximum(shared["d"], found), "v": v, "n": n}


@register_method("Mishchenko 2024", arxiv="2306.06101")
def fedprodigy(*, d_rel: float = 1e-2, server_lr: float = 1.0) -> Method:
    """Prodigy steps over the federation; no learning rate. After Mishchenko & Defazio 2024."""
    return Method(step=Prodigy(d_rel), server=Average(server_lr))
