"""FedDyn and FedDC: clients remember how far they drifted.

Acar et al., ICLR 2021, Algorithm 1 (FedDyn), arXiv:2111.04263; Gao et al., CVPR 2022 (FedDC),
arXiv:2203.11751; both read in released code (alpemreacar/FedDyn, gaoliang13/FedDC).

    FedDyn:  y ~ argmin_u f_i(u) + (mu/2) |u - x + h_i|^2
    FedDC:   d = g_i(y) + mu (y - x + h_i) + c - c_i,     c_i+ = c_i - c - delta_i / (K_i lr)
             c <- c + (1/N) sum_{i in cohort} (c_i+ - c_i)
    h_i <- h_i + delta_i

Differences from the paper: FedDyn's linear term is -<l_i, u> with l_i = -mu h_i, the same up to a
constant. One mu for all, and weighted means; the code divides mu by a client's relative weight.
FedDC's D_i and D are -K lr c_i and -K lr c, as in its code.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.fields import Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class FedDyn(Direction):
    """Direction with a pull away from where the client drifted.

    Memory: a client owns h_i.

    Args:
        mu: Strength of the pull, > 0; alpha in the paper.
    """

    mu: Positive = 0.01
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    goes_with: ClassVar[tuple[str, ...]] = ("Drift",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return h_i = 0."""
        return {"drift": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Pull to x - h_i."""
        return LocalProblem(mu=self.mu, anchor=x - own["drift"])

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move."""
        return {"delta": work.delta}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Add the move, as the server knows it, to the drift."""
        return {"drift": own["drift"] + up.arrived["delta"]}


@dataclass(frozen=True)
class FedDC(Direction):
    """The same with control variates.

    Memory: a client owns h_i and c_i, the server shares c.

    Args:
        mu: Strength of the pull, > 0; alpha in the paper.
        lr: The clients' step size, > 0.
    """

    mu: Positive = 0.01
    lr: Positive = 0.1
    uploads: ClassVar[tuple[str, ...]] = ("delta", "control")
    error_compensated: ClassVar[tuple[str, ...]] = ("control",)
    goes_with: ClassVar[tuple[str, ...]] = ("Drift",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return h_i = c_i = 0 and c = 0."""
        zero = torch.zeros_like(x)
        return {"drift": zero, "control": zero}, {"control": zero}

    def down(self, shared: State) -> Channels:
        """Send c."""
        return {"control": shared["control"]}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Pull to x - h_i and shift by c - c_i."""
        shift = down["control"] - own["control"]
        return LocalProblem(shift=shift, mu=self.mu, anchor=x - own["drift"])

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move and the change of c_i."""
        mean = work.delta / (-self.lr * t.factor * work.steps[:, None])
        change = mean - work.down["control"]
        new = own["control"] + change
        return {"delta": work.delta, "control": change}, own | {"new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Keep drift and control as the server knows them."""
        c = up.apply("control", own["control"], own["new"])
        return {"drift": own["drift"] + up.arrived["delta"], "control": c}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean change; clients that were absent count as no change."""
        return {"control": shared["control"] + t.fraction * mean["control"]}
