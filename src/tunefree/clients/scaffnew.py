"""Scaffnew (ProxSkip): communication at random steps, with control variates.

Mishchenko, Malinovsky, Stich & Richtarik, ICML 2022, Algorithm 2. arXiv:2202.09357

    y <- y - lr (g_i(y) + e_i)        L local steps, L geometric with success p, the same for all
    x <- mean_i y_i
    e_i <- e_i - (p / lr) (x - y_i)

A round is the local steps up to the next communication. The client completes e_i when the next x
arrives: what it keeps is e_i + (p / lr) y_i.

Differences from the paper: p = 1/K by default, so that a round has K local steps on average.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.fields import Fraction, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalPhases, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class Scaffnew(Direction):
    """Direction with controls that sum to zero; everyone takes part.

    Memory: a client owns e_i + (p / lr) y_i.

    Args:
        lr: The clients' step size, > 0.
        p: Probability of communication after a local step, in (0, 1]; None is 1/K.
    """

    lr: Positive = 0.1
    p: Fraction | None = None
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    error_compensated: ClassVar[tuple[str, ...]] = ("delta",)
    sets: ClassVar[tuple[str, ...]] = ("local_phases",)
    goes_with: ClassVar[tuple[str, ...]] = ("Average",)
    full: ClassVar[bool] = True
    needs_constant_lr: ClassVar[bool] = True

    def _pull(self, plan: Plan) -> float:
        return self.chance(plan) / self.lr

    def chance(self, plan: Plan) -> float:
        """Return the probability of communication after a local step."""
        return min(1.0, 1 / plan.steps) if self.p is None else self.p

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return the memory for which e_i = 0 at x."""
        return {"half": self._pull(plan) * x}, {}

    def local_phases(self, t: Round) -> LocalPhases:
        """Return one phase whose number of steps is drawn, alike for all clients."""
        p = self.chance(t.plan)
        if p == 1:
            return LocalPhases(1, 1)
        return LocalPhases(1, 1 + int(math.log1p(-t.coin("scaffnew")) / math.log1p(-p)))

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Shift the gradient by e_i, now that x is known."""
        return LocalProblem(shift=own["half"] - self._pull(t.plan) * x)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move."""
        return {"delta": work.delta}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Add the move as the server received it; the next x completes e_i."""
        return {"half": own["half"] + self._pull(t.plan) * up.arrived["delta"]}
