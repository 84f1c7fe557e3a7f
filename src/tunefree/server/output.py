"""Which model is evaluated and shipped, while training goes on from x.

    Last:      x
    LastTwo:   (x + x_previous) / 2                    (FedExP, FedExpSLS and FedDuA report this)
    Averaged:  xbar <- (1 - a) xbar + a x,   a = (gamma + 1) / (t + gamma),   t = 1, 2, ...

Averaged is the polynomial-decay average of Shamir & Zhang, ICML 2013, as DoG uses it
(arXiv:2302.12022, gamma = 8): it damps the variation caused by partial participation.

Differences from the paper: none.
"""

from dataclasses import dataclass

from ..core.fields import NonNegative
from ..core.plan import Round
from ..core.types import State, Vector
from .rule import Output


@dataclass(frozen=True)
class Last(Output):
    """The last iterate."""


@dataclass(frozen=True)
class LastTwo(Output):
    """The mean of the last two iterates; before the second round, the start counts."""

    def init(self, x: Vector) -> State:
        return {"last": x, "before": x}

    def update(self, x: Vector, state: State, t: Round) -> State:
        return {"last": x, "before": state["last"]}

    def value(self, x: Vector, state: State) -> Vector:
        return (state["last"] + state["before"]) / 2


@dataclass(frozen=True)
class Averaged(Output):
    """The polynomial-decay average of all iterates.

    Args:
        gamma: Weight of late iterates, >= 0; 0 is the plain mean.
    """

    gamma: NonNegative = 8.0

    def init(self, x: Vector) -> State:
        """Start at x; the first iterate replaces it."""
        return {"mean": x}

    def update(self, x: Vector, state: State, t: Round) -> State:
        a = (self.gamma + 1) / (t.index + 1 + self.gamma)
        return {"mean": (1 - a) * state["mean"] + a * x}

    def value(self, x: Vector, state: State) -> Vector:
        return state["mean"]
