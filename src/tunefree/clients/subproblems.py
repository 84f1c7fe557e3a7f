"""Directions whose clients solve problems of their own."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import check_between
from ..core.fields import Decay, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalPhases, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class FedDyn(Direction):
    """FedDyn: clients remember how far they drifted.

    Acar et al., ICLR 2021, Algorithm 1, arXiv:2111.04263; read in the code (alpemreacar/FedDyn).

        y ~ argmin_u f_i(u) + (mu/2) |u - x + h_i|^2,     h_i <- h_i + delta_i

    Differences from the paper: its linear term is -<l_i, u> with l_i = -mu h_i, the same up to a
    constant. One mu for all, and weighted means; the code divides mu by a client's relative weight.

    Memory: a client owns h_i.

    Args:
        mu: Strength of the pull, > 0; alpha in the paper.
    """

    mu: Positive = 0.01
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    goes_with: ClassVar[tuple[str, ...]] = ("Drift",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {"drift": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(mu=self.mu, anchor=x - own["drift"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        return {"delta": result.delta}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        return {"drift": own["drift"] + up.arrived["delta"]}


@dataclass(frozen=True)
class FedDC(Direction):
    """FedDC: FedDyn with control variates.

    Gao et al., CVPR 2022, arXiv:2203.11751; read in the code (gaoliang13/FedDC).

        d = g_i(y) + mu (y - x + h_i) + c - c_i,     h_i <- h_i + delta_i
        c_i+ = c_i - c - delta_i / (K_i lr),         c <- c + (1/N) sum_{i in cohort} (c_i+ - c_i)

    Differences from the paper: its D_i and D are -K lr c_i and -K lr c, as in its code. One mu for
    all, and weighted means; the code divides mu by a client's relative weight.

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
    sends: ClassVar[tuple[str, ...]] = ("control",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        zero = torch.zeros_like(x)
        return {"drift": zero, "control": zero}, {"control": zero}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        shift = down["control"] - own["control"]
        return LocalProblem(shift=shift, mu=self.mu, anchor=x - own["drift"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        mean = result.delta / (-self.lr * t.factor * result.steps[:, None])
        change = mean - result.down["control"]
        new = own["control"] + change
        return {"delta": result.delta, "control": change}, own | {"new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        c = up.apply("control", own["control"], own["new"])
        return {"drift": own["drift"] + up.arrived["delta"], "control": c}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean change; clients that were absent count as no change."""
        return {"control": shared["control"] + t.fraction * mean["control"]}


@dataclass(frozen=True)
class FedDR(Direction):
    """FedDR: Douglas-Rachford splitting.

    Tran-Dinh, Pham, Phan & Nguyen, NeurIPS 2021, Algorithm 1, arXiv:2103.03452

        y_i <- y_i + relax (x - x_i),   x_i ~ argmin_u f_i(u) + (mu/2) |u - y_i|^2
        up: the change of r_i = 2 x_i - y_i

    The argmin is approached by the step part, K times from the client's last x_i, or solved by it.

    Differences from the paper: the change of r_i is sent, so a client also keeps what the server
    received of it. The pass of everyone before round 0 is each client's first round here
    (x_i = y_i = x at first), which has the same fixed points; the authors' code starts at y_i = 0.

    Memory: a client owns y_i and x_i.

    Args:
        mu: Proximal weight, > 0; 1/eta in the paper.
        relax: Relaxation, in (0, 2).
    """

    mu: Positive = 1.0
    relax: float = 0.9
    uploads: ClassVar[tuple[str, ...]] = ("reflected",)
    error_compensated: ClassVar[tuple[str, ...]] = ("reflected",)
    sets: ClassVar[tuple[str, ...]] = ("start",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("FedDR", "relax", self.relax, 0, 2)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return y_i = x_i = x, and the r_i that the server has received."""
        return {"y": x, "x": x, "received": x}, {}

    def _anchor(self, x: Vector, own: State) -> Vector:
        return own["y"] + self.relax * (x - own["x"])

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(mu=self.mu, anchor=self._anchor(x, own), start=own["x"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        y = self._anchor(result.x, own)
        new = 2 * result.y - y
        return {"reflected": new - own["received"]}, own | {"y": y, "x": result.y, "new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        received = up.apply("reflected", own["received"], own["new"])
        return {"y": own["y"], "x": own["x"], "received": received}


@dataclass(frozen=True)
class FedADMM(Direction):
    """FedADMM: the alternating direction method of multipliers.

    Wang, Marella & Anderson, 2022, arXiv:2203.15104

        x_i ~ argmin_u f_i(u) + <z_i, u - x> + (mu/2) |u - x|^2,   z_i <- z_i + mu (x_i - x)
        up: the change of r_i = x_i + z_i / mu

    Differences from the paper: the change of r_i is sent, so a client also keeps what the server
    received of it; a client starts from its last x_i, as in FedDR.

    Memory: a client owns z_i and x_i.

    Args:
        mu: Penalty weight, > 0; 1/eta in the paper.
    """

    mu: Positive = 1.0
    uploads: ClassVar[tuple[str, ...]] = ("reflected",)
    error_compensated: ClassVar[tuple[str, ...]] = ("reflected",)
    sets: ClassVar[tuple[str, ...]] = ("start",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return z_i = 0, x_i = x, and the r_i that the server has received."""
        return {"dual": torch.zeros_like(x), "x": x, "received": x}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(shift=own["dual"], mu=self.mu, anchor=x, start=own["x"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        dual = own["dual"] + self.mu * (result.y - result.x)
        new = result.y + dual / self.mu
        return {"reflected": new - own["received"]}, own | {"dual": dual, "x": result.y, "new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        received = up.apply("reflected", own["received"], own["new"])
        return {"dual": own["dual"], "x": own["x"], "received": received}


@dataclass(frozen=True)
class FedPD(Direction):
    """FedPD: a primal-dual method that may skip communication; full participation.

    Zhang, Hong, Dhople, Yin & Liu, IEEE TSP 2021, Algorithm 1, arXiv:2005.11418

        x_i ~ argmin_u f_i(u) + <l_i, u - a_i> + (mu/2) |u - a_i|^2
        l_i <- l_i + mu (x_i - a_i),   a_i = x_i + l_i / mu
        up with probability 1 - skip: a_i,   then a_i = x = mean a_i

    Differences from the paper: a round is all local solves up to the next communication.

    Memory: a client owns l_i and x_i.

    Args:
        mu: Penalty weight, > 0; 1/s in the paper.
        skip: Probability of no communication after a local solve, in [0, 1).
    """

    mu: Positive = 1.0
    skip: Decay = 0.0
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    sets: ClassVar[tuple[str, ...]] = ("start", "local_phases")
    full: ClassVar[bool] = True

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {"dual": torch.zeros_like(x), "x": x}, {}

    def local_phases(self, t: Round) -> LocalPhases:
        """Return the number of local solves, drawn alike for all clients."""
        if self.skip == 0:
            return LocalPhases()
        return LocalPhases(1 + int(math.log1p(-t.coin("fedpd")) / math.log(self.skip)))

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(
            shift=own["dual"], mu=self.mu, anchor=own.get("anchor", x), start=own["x"]
        )

    def between_phases(self, result: LocalResult, own: State, t: Round) -> State:
        dual = own["dual"] + self.mu * (result.y - own.get("anchor", result.x))
        return {"dual": dual, "x": result.y, "anchor": result.y + dual / self.mu}

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        after = self.between_phases(result, own, t)
        return {"delta": after.pop("anchor") - result.x}, after
