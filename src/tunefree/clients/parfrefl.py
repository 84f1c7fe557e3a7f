"""ParFreFL and ComParFreFL: normalised local momentum, and only its change is sent.

"ParFreFL / ComParFreFL", Algorithms 1 and 2.

    before round 0, everyone:  m_i = c_i = (1/K) sum_k g_i(x; batch k),   up: c_i
    d   = (1 - beta) m_i + beta g_i(y),     y <- y - lr d / |d|      m_i is last round's, fixed
    m_i <- mean of d over the local steps
    up: q_i = C(m_i - c_i),     c_i <- c_i + q_i

Differences from the paper: Algorithm 1 uploads m_i and keeps every c_i on the server; sending the
change is the same with one vector on the server. Without compression c_i = m_i by assignment.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rates import Rates
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class ParFreFL(Direction):
    """Direction with a client momentum that is sent as its change.

    Memory: a client owns m_i and c_i.

    Args:
        rates: Where beta comes from.
    """

    rates: Rates = field(default_factory=Rates)
    uploads: ClassVar[tuple[str, ...]] = ("innovation",)
    error_compensated: ClassVar[tuple[str, ...]] = ("innovation",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)
    prepares: ClassVar[bool] = True
    records: ClassVar[tuple[str, ...]] = ("grad_mean",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return m_i = c_i = 0, until everyone has prepared."""
        return {"momentum": torch.zeros_like(x), "control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Blend the gradient with m_i; before round 0, stay at x."""
        if t.preparing:
            return LocalProblem(scale=0.0)
        beta = self.rates.beta_at(t.plan)
        return LocalProblem(scale=beta, shift=(1 - beta) * own["momentum"])

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the change of c_i."""
        assert work.grad_mean is not None
        beta = 1.0 if t.preparing else self.rates.beta_at(t.plan)
        m = (1 - beta) * own["momentum"] + beta * work.grad_mean
        return {"innovation": m - own["control"]}, {"momentum": m, "control": own["control"]}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Move c_i by what arrived."""
        m = own["momentum"]
        return {"momentum": m, "control": up.apply("innovation", own["control"], m)}
