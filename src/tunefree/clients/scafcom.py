"""SCAFCOM: SCAFFOLD with local momentum, whose change is compressed.

Huang, Li & Li, 2024, "Stochastic controlled averaging for federated learning with communication
compression", Algorithm 3. arXiv:2308.08165

    d    = beta g_i(y) + (1 - beta) v_i - c_i + c,     y <- y - lr d       v_i is last round's
    v_i <- (1 - beta) v_i + beta mean_k g_i
    up: q_i = C(v_i - c_i),     c_i <- c_i + q_i

Differences from the paper: v_i, c_i and c start at zero, as in public code, instead of at a large
batch's gradient.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Fraction
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class Scafcom(Direction):
    """Direction with a control variate and a momentum; only one compressed vector goes up.

    Memory: a client owns v_i and c_i; the server's rule sends c.

    Args:
        beta: Weight of the new gradient, in (0, 1]; 1 is SCAFFOLD.
    """

    beta: Fraction = 0.1
    uploads: ClassVar[tuple[str, ...]] = ("innovation",)
    error_compensated: ClassVar[tuple[str, ...]] = ("innovation",)
    reads: ClassVar[tuple[str, ...]] = ("control",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)
    records: ClassVar[tuple[str, ...]] = ("grad_mean",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return v_i = c_i = 0."""
        return {"momentum": torch.zeros_like(x), "control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Blend the gradient with v_i and shift it by c - c_i."""
        shift = (1 - self.beta) * own["momentum"] - own["control"] + down["control"]
        return LocalProblem(scale=self.beta, shift=shift)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the change of c_i."""
        assert work.grad_mean is not None
        v = (1 - self.beta) * own["momentum"] + self.beta * work.grad_mean
        return {"innovation": v - own["control"]}, {"momentum": v, "control": own["control"]}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Move c_i by what arrived."""
        v = own["momentum"]
        return {"momentum": v, "control": up.apply("innovation", own["control"], v)}
