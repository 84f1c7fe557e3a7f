"""Server rules for f + h with a regulariser h, whose model is a proximal point."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.composite import ZA1 as ClientZA1
from ..clients.composite import DualAverage as ClientDualAverage
from ..clients.composite import FastFedDA as ClientFastFedDA
from ..core.errors import cannot_use
from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..penalties import Penalty, Zero
from .average import Average, Momentum
from .rule import Server, ServerUpdate, delegate_to_inner


@dataclass(frozen=True)
class Proximal(Server):
    """One proximal map a round, after another server rule's move.

    "FedCanon", Algorithm 1; FedMiD (Yuan, Zaheer & Reddi, ICML 2021, Algorithm 2,
    arXiv:2011.08474).

        u  = x + eta s mean_i delta_i         eta: the other rule's step, s = alpha / (lr K)
        x <- prox_{alpha eta h}(u)

    alpha = lr K by default, the sum of the clients' step sizes, so that s = 1. FedCanon is the case
    of plain averaging; FedMiD that of `server_lr` with proximal maps on the clients too.

    Differences from the paper: over momentum or extrapolation it is ours; a preconditioned rule
    would need the proximal map in its own metric and is refused. A schedule's factor multiplies
    alpha.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
        alpha: Proximal step for a server step of 1, > 0; None is lr K.
        inner: The rule that moves x first.
        silent: Clients hold x themselves, so that it is not sent (FedCanon II).
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    alpha: Positive | None = None
    inner: Server = field(default_factory=Average)
    silent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self.inner).__name__
        if not isinstance(self.inner, Server) or not self.inner.euclidean:
            why = "it scales coordinates differently: the proximal map would need another metric"
            raise cannot_use("Proximal", name, f"{why}; use Average, Momentum or FedExP")
        if type(self.inner).output is not Server.output:
            why = "that rule's model is not its x; use Average, Momentum or FedExP"
            raise cannot_use("Proximal", name, why)
        if self.penalty.rho > 0 and not isinstance(self.inner, Average | Momentum):
            why = "its step has no bound, and a weakly convex penalty needs alpha < 1/rho"
            raise cannot_use(type(self.penalty).__name__, name, f"{why}; use Average")

    needs = delegate_to_inner("needs")
    sends = delegate_to_inner("sends")
    full = delegate_to_inner("full")
    needs_constant_lr = delegate_to_inner("needs_constant_lr")

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        return self.inner.prepare(x, mean, state, t)

    def start_round(self, x: Vector, state: State, t: Round, query: Query) -> State:
        return self.inner.start_round(x, state, t, query)

    def alpha_at(self, plan: Plan) -> float:
        """Return the proximal step under this plan, for a server step of 1."""
        return self.lr * plan.steps if self.alpha is None else self.alpha

    def check(self, plan: Plan) -> None:
        self.inner.check(plan)
        most = self.alpha_at(plan) * getattr(self.inner, "server_lr", 1.0)
        self.penalty.check(most, "Proximal")

    def init(self, x: Vector, plan: Plan) -> State:
        return self.inner.init(x, plan)

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        return {} if self.silent else self.inner.down(x, state, t)

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        alpha, usual = self.alpha_at(t.plan), self.lr * t.plan.steps
        moved, state, trace = self.inner.step(x, mean, state, t, query)
        if alpha != usual:
            moved = torch.lerp(x, moved, alpha / usual)
        eta = trace["server_step"] * (alpha / usual)
        weight = alpha * t.factor * float(trace["server_step"])
        is_finite = math.isfinite(weight)  # else `moved` is not finite either: the run diverged
        x = self.penalty.prox(moved, weight, t.plan.layout) if is_finite else moved
        calls = t.plan.cohort if self.silent else 1
        return x, state, trace | {"server_step": eta, "proxes": x.new_tensor(calls)}


@dataclass(frozen=True)
class DualAverage(Server):
    """FedDualAvg's server: the mean is taken in the dual space, the model is its proximal map.

    Yuan, Zaheer & Reddi, ICML 2021, Algorithm 3. arXiv:2011.08474

        z <- z + server_lr mean_i (z_i - z),   tau <- tau + server_lr lr K,   model: prox_{tau h}(z)

    Differences from the paper: none. The server's x is z.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientDualAverage = field(default_factory=ClientDualAverage)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("DualAverage",)

    def init(self, x: Vector, plan: Plan) -> State:
        return {"x": x, "tau": x.new_zeros(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        eta = x.new_tensor(self.direction.server_lr)
        z = torch.add(x, mean["delta"], alpha=self.direction.server_lr)
        tau = self.direction.round_length(t.plan) * (t.index + 1)
        model = self.direction.penalty.prox(z, tau, t.plan.layout)
        trace = {"server_step": eta, "proxes": x.new_ones(())}
        return z, {"x": model, "tau": x.new_tensor(tau)}, trace

    def output(self, x: Vector, state: State) -> Vector:
        return state["x"]


@dataclass(frozen=True)
class FastFedDA(Server):
    """Fast-FedDA's server: the dual sum, and the model it stands for.

    Bao et al., ICML 2022, "Fast composite optimization and statistical recovery in federated
    learning"; read in the released code.

        S <- S + K mean_i (mean gradient - (mu/2) mean point),   n <- n + K,   x = w(S, n)

    Differences from the paper: see the direction of the same name.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientFastFedDA = field(default_factory=ClientFastFedDA)
    needs: ClassVar[tuple[str, ...]] = ("grad", "point")
    sends: ClassVar[tuple[str, ...]] = ("dual",)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("FastFedDA",)

    def init(self, x: Vector, plan: Plan) -> State:
        return {"dual": x / -self.direction.lr}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        K = t.plan.steps
        moved = torch.sub(mean["grad"], mean["point"], alpha=self.direction.mu / 2)
        dual = moved.mul_(K).add_(state["dual"])
        n = K * (t.index + 1)
        x = self.direction.primal(dual, n, t.plan)
        trace = {"server_step": x.new_tensor(1 / self.direction.bound(n)), "proxes": x.new_ones(())}
        return x, {"dual": dual}, trace


@dataclass(frozen=True)
class ZA1(Server):
    """ZA1's server: x is the point before the proximal map.

    Zhang, Hu, Johansson & Wai, 2024, Algorithm 1. arXiv:2309.01795

        a = prox_{E h}(x),     x <- a + server_lr mean_i (zh_i - a),     model: prox_{E h}(x)

    Differences from the paper: none.

    Args:
        direction: The clients' half, which has the penalty and the step sizes.
    """

    direction: ClientZA1 = field(default_factory=ClientZA1)
    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("ZA1",)

    def init(self, x: Vector, plan: Plan) -> State:
        return {"x": self.direction.penalty.prox(x, self.direction.round_length(plan), plan.layout)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        eta = x.new_tensor(self.direction.server_lr)
        x = torch.add(state["x"], mean["delta"], alpha=self.direction.server_lr)
        model = self.direction.penalty.prox(x, self.direction.round_length(t.plan), t.plan.layout)
        return x, {"x": model}, {"server_step": eta, "proxes": x.new_ones(())}

    def output(self, x: Vector, state: State) -> Vector:
        return state["x"]


@dataclass(frozen=True)
class Splitting(Server):
    """The server of FedDR and FedADMM: the mean of the reflected points, through one proximal map.

    Tran-Dinh, Pham, Phan & Nguyen, NeurIPS 2021, Algorithm 1. arXiv:2103.03452

        z <- z + (1/N) sum_{i in cohort} (r_i - its last value),     x = prox_{(1/mu) h}(z)

    Differences from the paper: none.

    Args:
        penalty: The regulariser h.
        mu: The clients' proximal weight, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    mu: Positive = 1.0
    needs: ClassVar[tuple[str, ...]] = ("reflected",)
    euclidean: ClassVar[bool] = False

    def alpha_at(self, plan: Plan) -> float:
        """Return the proximal step."""
        return 1 / self.mu

    def check(self, plan: Plan) -> None:
        self.penalty.check(1 / self.mu, "Splitting")

    def init(self, x: Vector, plan: Plan) -> State:
        return {"z": x}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        z = torch.add(state["z"], mean["reflected"], alpha=t.fraction)
        x = self.penalty.prox(z, 1 / self.mu, t.plan.layout)
        return x, {"z": z}, {"server_step": x.new_ones(()), "proxes": x.new_ones(())}
