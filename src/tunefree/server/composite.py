"""Server rules for f + h with a regulariser h, whose model is a proximal point."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.composite import ZA1 as ClientZA1
from ..clients.composite import DualAverage as ClientDualAverage
from ..clients.composite import FastFedDA as ClientFastFedDA
from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..penalties import Penalty, Zero
from .rule import Server, ServerUpdate


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
        """Start at tau = 0."""
        return {"x": x, "tau": x.new_zeros(())}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Move in the dual space and map back."""
        eta = x.new_tensor(self.direction.server_lr)
        z = torch.add(x, mean["delta"], alpha=self.direction.server_lr)
        tau = self.direction.round_length(t.plan) * (t.index + 1)
        model = self.direction.penalty.prox(z, tau, t.plan.layout)
        trace = {"server_step": eta, "proxes": x.new_ones(())}
        return z, {"x": model, "tau": x.new_tensor(tau)}, trace

    def output(self, x: Vector, state: State) -> Vector:
        """Return the primal point."""
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
        """Return S = -x / lr."""
        return {"dual": x / -self.direction.lr}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send x and S."""
        return {"x": x, "dual": state["dual"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the round to the sum and map back."""
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
        """Start at the proximal map of x."""
        return {"x": self.direction.penalty.prox(x, self.direction.round_length(plan), plan.layout)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Move from the proximal point, and map again."""
        eta = x.new_tensor(self.direction.server_lr)
        x = torch.add(state["x"], mean["delta"], alpha=self.direction.server_lr)
        model = self.direction.penalty.prox(x, self.direction.round_length(t.plan), t.plan.layout)
        return x, {"x": model}, {"server_step": eta, "proxes": x.new_ones(())}

    def output(self, x: Vector, state: State) -> Vector:
        """Return the proximal point."""
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
        """Refuse a proximal step for which the subproblem is not convex."""
        self.penalty.check(1 / self.mu, "Splitting")

    def init(self, x: Vector, plan: Plan) -> State:
        """Start at x."""
        return {"z": x}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Add the changes and take the proximal map."""
        z = torch.add(state["z"], mean["reflected"], alpha=t.fraction)
        x = self.penalty.prox(z, 1 / self.mu, t.plan.layout)
        return x, {"z": z}, {"server_step": x.new_ones(()), "proxes": x.new_ones(())}
