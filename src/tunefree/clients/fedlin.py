"""FedLin: every client follows the cohort's gradient, corrected by its own change.

Mitra, Jaafar, Pappas & Hassani, NeurIPS 2021, Algorithm 1. arXiv:2102.07053

    G = mean_{i in cohort} grad f_i(x), over all of each client's data
    d = g_i(y) - grad f_i(x) + G

Differences from the paper: the gradients at x are exchanged at the start of a round instead of at
the end of the last, which costs the same; full participation there, the cohort's mean here. Its
sparsified gradients are not offered.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.plan import Query, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem


@dataclass(frozen=True)
class FedLin(Direction):
    """Direction without memory; two exchanges a round."""

    needs_full_grad: ClassVar[bool] = True

    def start_round(self, x: Vector, shared: State, t: Round, ask: Query) -> State:
        """Ask the cohort for its gradients at x."""
        (grad,) = ask("grad", [x])
        return {"grad": grad}

    def down(self, shared: State) -> Channels:
        """Send G."""
        return {"grad": shared["grad"]}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Shift by G minus the client's own gradient at x."""
        return LocalProblem(shift=down["grad"] - down["own_grad"])

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Drop G, which holds for one round."""
        return {}
