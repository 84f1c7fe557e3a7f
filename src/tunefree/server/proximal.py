"""One proximal map a round, after another server rule's move.

"FedCanon", Algorithm 1; FedMiD (Yuan, Zaheer & Reddi, ICML 2021, Algorithm 2, arXiv:2011.08474).

    u  = x + eta s mean_i delta_i         eta: the other rule's step, s = alpha / (lr K)
    x <- prox_{alpha eta h}(u)

alpha = lr K by default, the sum of the clients' step sizes, so that s = 1. FedCanon is the case
of plain averaging; FedMiD that of `server_lr` with proximal maps on the clients too.

Differences from the paper: over momentum or extrapolation it is ours; a preconditioned rule would
need the proximal map in its own metric and is refused. A schedule's factor multiplies alpha.
"""

import math
from dataclasses import dataclass, field

import torch

from ..core.errors import cannot_use
from ..core.fields import Positive
from ..core.plan import Plan, Query, Round
from ..core.types import Channels, State, Vector
from ..penalties import Penalty, Zero
from .average import Average, Momentum
from .rule import Server, ServerUpdate


@dataclass(frozen=True)
class Proximal(Server):
    """Server rule around another one, with the regulariser's proximal map.

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

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the other rule needs."""
        return self.inner.needs

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the other rule sends."""
        return self.inner.sends

    @property
    def full(self) -> bool:  # type: ignore[override]
        """As the other rule."""
        return self.inner.full

    @property
    def needs_constant_lr(self) -> bool:  # type: ignore[override]
        """As the other rule."""
        return self.inner.needs_constant_lr

    def prepare(self, x: Vector, mean: Channels, state: State, t: Round) -> tuple[Vector, State]:
        """Let the other rule take it in."""
        return self.inner.prepare(x, mean, state, t)

    def start_round(self, x: Vector, state: State, t: Round, ask: Query) -> State:
        """Open the other rule."""
        return self.inner.start_round(x, state, t, ask)

    def alpha_at(self, plan: Plan) -> float:
        """Return the proximal step under this plan, for a server step of 1."""
        return self.lr * plan.steps if self.alpha is None else self.alpha

    def check(self, plan: Plan) -> None:
        """Refuse a proximal step for which the subproblem is not convex."""
        self.inner.check(plan)
        most = self.alpha_at(plan) * getattr(self.inner, "server_lr", 1.0)
        self.penalty.check(most, "Proximal")

    def init(self, x: Vector, plan: Plan) -> State:
        """Start the other rule."""
        return self.inner.init(x, plan)

    def down(self, x: Vector, state: State, t: Round) -> Channels:
        """Send x, unless clients hold it."""
        return {} if self.silent else self.inner.down(x, state, t)

    def step(self, x: Vector, mean: Channels, state: State, t: Round, ask: Query) -> ServerUpdate:
        """Let the other rule move, then take the proximal map."""
        alpha, usual = self.alpha_at(t.plan), self.lr * t.plan.steps
        moved, state, trace = self.inner.step(x, mean, state, t, ask)
        if alpha != usual:
            moved = torch.lerp(x, moved, alpha / usual)
        eta = trace["server_step"] * (alpha / usual)
        weight = alpha * t.factor * float(trace["server_step"])
        is_finite = math.isfinite(weight)  # else `moved` is not finite either: the run diverged
        x = self.penalty.prox(moved, weight, t.plan.layout) if is_finite else moved
        calls = t.plan.cohort if self.silent else 1
        return x, state, trace | {"server_step": eta, "proxes": x.new_tensor(calls)}
