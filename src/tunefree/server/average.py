"""Server rules that move by the mean move, or by vectors that they keep of the clients."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Decay, Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Average(Server):
    """FedAvg's server: move by the mean move.

    McMahan et al., AISTATS 2017, Algorithm 1, arXiv:1602.05629

        x <- x + server_lr mean_i delta_i

    Differences from the paper: clients count alike where uploads are masked, noised or aggregated
    by a robust rule, otherwise by their samples; server_lr as in Reddi et al., ICLR 2021. delta is
    the move itself, so the server adds.

    Args:
        server_lr: Multiplies the mean move, > 0; 1 is plain averaging.
    """

    server_lr: Positive = 1.0

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        eta = x.new_tensor(self.server_lr)
        return torch.add(x, mean["delta"], alpha=self.server_lr), state, {"server_step": eta}


@dataclass(frozen=True)
class Momentum(Server):
    """FedAvgM's server: move by the running sum of mean moves.

    Hsu, Qi & Brown, 2019, section 3, arXiv:1909.06335

        v <- momentum v + mean_i delta_i,     x <- x + server_lr v

    Differences from the paper: as in Average.

    Args:
        server_lr: Multiplies the running sum, > 0.
        momentum: Share of the last sum that is kept, in [0, 1).
    """

    server_lr: Positive = 1.0
    momentum: Decay = 0.9

    def init(self, x: Vector, plan: Plan) -> State:
        return {"v": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        v = torch.add(mean["delta"], state["v"], alpha=self.momentum)
        x = torch.add(x, v, alpha=self.server_lr)
        return x, {"v": v}, {"server_step": x.new_tensor(self.server_lr)}


@dataclass(frozen=True)
class ClientMomentum(Server):
    """The server of FedAvg-M and SCAFFOLD-M: average, and remember the direction.

    Cheng, Huang, Wu & Yuan, ICLR 2024, Algorithms 1 and 2. arXiv:2306.16504

        p <- -mean_i delta_i / (lr K),     x <- x + server_lr mean_i delta_i

    Differences from the paper: its gamma is server_lr lr K; K is the mean over clients where they
    differ.

    Args:
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean move, > 0.
    """

    lr: Positive = 0.1
    server_lr: Positive = 1.0
    sends: ClassVar[tuple[str, ...]] = ("momentum",)

    def init(self, x: Vector, plan: Plan) -> State:
        return {"momentum": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        delta = mean["delta"]
        p = delta * (-1 / (self.lr * t.factor * t.plan.steps))
        x = torch.add(x, delta, alpha=self.server_lr)
        return x, {"momentum": p}, {"server_step": x.new_tensor(self.server_lr)}


@dataclass(frozen=True)
class Scafcom(Server):
    """SCAFCOM's server: a step along the tracked mean momentum.

    Huang, Li & Li, 2024, Algorithm 3. arXiv:2308.08165

        x <- x - server_lr lr K (c + mean_i q_i)            with the old c, which was sent down
        c <- c + (1/N) sum_{i in cohort} q_i

    Differences from the paper: K is the mean over clients where they differ.

    Args:
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean client move, > 0.
    """

    lr: Positive = 0.1
    server_lr: Positive = 1.0
    needs: ClassVar[tuple[str, ...]] = ("innovation",)
    sends: ClassVar[tuple[str, ...]] = ("control",)
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        return {"control": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        q, c = mean["innovation"], state["control"]
        length = self.server_lr * self.lr * t.factor * t.plan.steps
        x = torch.add(x, c + q, alpha=-length)
        c = torch.add(c, q, alpha=t.fraction)
        return x, {"control": c}, {"server_step": x.new_tensor(self.server_lr)}


@dataclass(frozen=True)
class Drift(Server):
    """The server of FedDyn and FedDC: average, and add what everyone drifted so far.

    Acar et al., ICLR 2021, Algorithm 1, arXiv:2111.04263; Gao et al., CVPR 2022, arXiv:2203.11751

        h <- h + (1/N) sum_{i in cohort} delta_i,     x <- x + mean_i delta_i + h

    Differences from the paper: FedDyn's h is -mu times ours.
    """

    euclidean: ClassVar[bool] = False
    goes_with: ClassVar[tuple[str, ...]] = ("FedDyn", "FedDC")

    def init(self, x: Vector, plan: Plan) -> State:
        return {"drift": torch.zeros_like(x)}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        h = torch.add(state["drift"], mean["delta"], alpha=t.fraction)
        return (x + mean["delta"]).add_(h), {"drift": h}, {"server_step": x.new_ones(())}
