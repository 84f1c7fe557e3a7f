"""Server rules of methods with normalised steps: ParFreFL and PAdaMFed."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..clients.normalised import Rates
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..core.vectors import inner
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class ParFreFL(Server):
    """ParFreFL's server: a step of known length along the tracked mean momentum.

    "ParFreFL / ComParFreFL", Algorithms 1 and 2.

        before round 0:  c = mean over everyone of c_i
        g  = c + mean_i q_i            with the old c
        c <- c + (1/N) sum_{i in cohort} q_i
        x <- x - server_lr g / |g|     server_lr from S, K and T

    Differences from the paper: none; see the direction of the same name.

    Args:
        rates: Where the length of a step comes from.
    """

    rates: Rates = field(default_factory=Rates)
    needs: ClassVar[tuple[str, ...]] = ("innovation",)
    euclidean: ClassVar[bool] = False

    def init(self, x: Vector, plan: Plan) -> State:
        return {"control": torch.zeros_like(x)}

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        return x, {"control": state["control"] + mean["innovation"]}

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        q, c = mean["innovation"], state["control"]
        g = c + q
        norm = inner(g, g).sqrt()
        length = x.new_tensor(self.rates.server_lr_at(t.plan))
        x = torch.addcmul(x, g, torch.where(norm > 0, length / norm, 0.0), value=-1)
        return x, {"control": torch.add(c, q, alpha=t.fraction)}, {"server_step": length}


@dataclass(frozen=True)
class PAdaMFed(Server):
    """PAdaMFed's server: averaged normalised moves, and momentum over control variates.

    Yan, Zhang & Wang, 2025, "Problem-parameter-free federated learning", Algorithms 1 and 2.

        before round 0:  c = p = mean over everyone of c_i
        x <- x + (server_lr / (lr K)) mean_i delta_i            lr, server_lr from S, K and T
        p <- beta (c + mean_i (c_i+ - c_i)) + (1 - beta) p      with the old c
        c <- c + (1/N) sum_{i in cohort} (c_i+ - c_i)
        down: x and beta c + (1 - beta) p                       VR: and the last x

    Differences from the paper: p starts at c, as in public code.

    Args:
        rates: Where the step sizes come from.
    """

    rates: Rates = field(default_factory=lambda: Rates("padamfed"))
    needs: ClassVar[tuple[str, ...]] = ("delta", "control")

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the direction of the same kind reads."""
        return ("momentum", "before") if self.rates.reduces_variance else ("momentum",)

    def init(self, x: Vector, plan: Plan) -> State:
        zero = {"control": torch.zeros_like(x), "momentum": torch.zeros_like(x)}
        return zero | ({"before": x} if self.rates.reduces_variance else {})

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        return x, state | {"control": mean["control"], "momentum": mean["control"]}

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        if t.preparing:
            return {"x": x}
        blend = torch.lerp(state["momentum"], state["control"], self.rates.beta_at(t.plan))
        sent = {"x": x, "momentum": blend}
        return sent | ({"before": state["before"]} if self.rates.reduces_variance else {})

    def step(self, x: Vector, mean: Channels, state: State, t: Round, query: Query) -> ServerUpdate:
        change, beta = mean["control"], self.rates.beta_at(t.plan)
        eta = self.rates.server_lr_at(t.plan) / (self.rates.lr_at(t.plan) * t.plan.steps)
        after = {
            "momentum": torch.lerp(state["momentum"], state["control"] + change, beta),
            "control": torch.add(state["control"], change, alpha=t.fraction),
        }
        if self.rates.reduces_variance:
            after["before"] = x
        x = torch.add(x, mean["delta"], alpha=eta)
        return x, after, {"server_step": x.new_tensor(eta)}
