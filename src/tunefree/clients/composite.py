"""Directions for f + h with a regulariser h, which take proximal maps in their local steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..core.fields import NonNegative, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..penalties import Penalty, Zero
from .local_problem import Map, StepMap
from .rule import Direction, LocalProblem, LocalResult, Upload

# In a compiled step, the numbers of a map and the index of the step are scalar tensors: Any.


def _make_map(h: Penalty, function: Callable[..., Rows], plan: Plan, *numbers: float) -> Map:
    """Return a map that is compiled with the step if the proximal map of h can be."""
    found = StepMap(function, plan, numbers)
    return found if h.is_fusible else found.__call__


def _is_fusible(self: Any) -> bool:
    """Whether the proximal map of the penalty can be compiled."""
    return bool(self.penalty.is_fusible)


@dataclass(frozen=True)
class FedMiD(Direction):
    """FedMiD: a proximal map after every local step.

    Yuan, Zaheer & Reddi, ICML 2021, Algorithm 2 (federated mirror descent). arXiv:2011.08474

        y <- prox_{lr h}(y - lr g_i(y))

    Differences from the paper: Euclidean mirror map, as in its experiments.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    sets: ClassVar[tuple[str, ...]] = ("project",)
    has_fusible_maps = property(_is_fusible)

    def check(self, plan: Plan) -> None:
        """Refuse a step for which the proximal problem is not convex."""
        self.penalty.check(self.lr, "FedMiD")

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        alpha = self.lr * t.factor
        return LocalProblem(project=_make_map(self.penalty, self.project, t.plan, alpha))

    def project(self, y: Rows, k: Any, plan: Plan, alpha: Any) -> Rows:
        """Return the proximal point of y."""
        return self.penalty.prox(y, alpha, plan.layout)


@dataclass(frozen=True)
class DualAverage(Direction):
    """FedDualAvg: clients move in the dual space and take gradients at the primal point.

    Yuan, Zaheer & Reddi, ICML 2021, Algorithm 3. arXiv:2011.08474

        z_i = x at first;  w = prox_{(tau + k lr) h}(z_i),  z_i <- z_i - lr g_i(w),  k = 0, 1, ...

    x is the server's dual vector and tau = server_lr lr K t the sum of steps so far.

    Differences from the paper: Euclidean mirror map, constant step sizes; K is the mean over
    clients where they differ.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
        server_lr: The server's, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    server_lr: Positive = 1.0
    sets: ClassVar[tuple[str, ...]] = ("grad_at",)
    has_fusible_maps = property(_is_fusible)
    goes_with: ClassVar[tuple[str, ...]] = ("DualAverage",)
    needs_constant_lr: ClassVar[bool] = True

    def check(self, plan: Plan) -> None:
        """Refuse a plan in whose last round the proximal problem is not convex."""
        self.penalty.check(self.round_length(plan) * plan.rounds, "DualAverage")

    def round_length(self, plan: Plan) -> float:
        """Return by how much tau grows in a round."""
        return self.server_lr * self.lr * plan.steps

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        tau = self.round_length(t.plan) * t.index
        return LocalProblem(grad_at=_make_map(self.penalty, self.primal, t.plan, tau))

    def primal(self, z: Rows, k: Any, plan: Plan, tau: Any) -> Rows:
        """Return w at the dual point z."""
        return self.penalty.prox(z, tau + k * self.lr, plan.layout)


@dataclass(frozen=True)
class FastFedDA(Direction):
    """Fast-FedDA: dual averaging with growing weights, for strongly convex losses.

    Bao et al., ICML 2022, "Fast composite optimization and statistical recovery in federated
    learning"; read in the released code (MingruiLiu-ML-Lab/Federated-Sparse-Learning).

        w(S, n) = prox_{(n/b) h}(-S / b),   b = 1/lr + n mu / 2
        w = x at first;   S_i <- S_i + g_i(w) - (mu/2) w,   w <- w(S_i, n + k),   k = 1, 2, ...
        up: mean gradient and mean point of the round
        server:  S <- S + K mean_i (mean gradient - (mu/2) mean point),   n <- n + K,   x = w(S, n)

    S is the dual sum, the gradients so far; it starts at -x / lr. n is the number of steps before
    the round.

    Differences from the paper: every gradient's point is counted once (the released code counts one
    more a round, which shifts the fixed point by (mu / 2K) w); clients send means over their own
    steps.

    Args:
        penalty: The regulariser h.
        lr: First step size, > 0.
        mu: Assumed strong convexity, >= 0; 0 keeps the step constant.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    mu: NonNegative = 1e-3
    uploads: ClassVar[tuple[str, ...]] = ("grad", "point")
    reads: ClassVar[tuple[str, ...]] = ("dual",)
    sets: ClassVar[tuple[str, ...]] = ("grad_at", "start")
    has_fusible_maps = property(_is_fusible)
    needs_constant_lr: ClassVar[bool] = True
    goes_with: ClassVar[tuple[str, ...]] = ("FastFedDA",)
    records: ClassVar[tuple[str, ...]] = ("grad_mean", "point_mean")

    def check(self, plan: Plan) -> None:
        """Refuse a plan in whose last round the proximal problem is not convex."""
        n = plan.steps * (plan.rounds + 1)
        self.penalty.check(n / self.bound(n), "FastFedDA")

    def bound(self, n: Any) -> Any:
        """Return b after n steps."""
        return 1 / self.lr + n * self.mu / 2

    def primal(self, dual: Rows, n: Any, plan: Plan) -> Rows:
        """Return w(S, n)."""
        b = self.bound(n)
        return self.penalty.prox(dual / -b, n / b, plan.layout)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Iterate on y = -lr S_i, so that a step of lr adds to S_i."""
        grad_at = _make_map(self.penalty, self.point, t.plan, t.plan.steps * t.index)
        zero = x.new_zeros(())  # a number: a vector of zeros would be read in every step
        return LocalProblem(
            mu=-self.mu / 2, anchor=zero, start=-self.lr * down["dual"], grad_at=grad_at
        )

    def point(self, y: Rows, k: Any, plan: Plan, n: Any) -> Rows:
        """Return w at S = -y / lr, after n steps before this round."""
        return self.primal(y / -self.lr, n + k, plan)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_mean is not None
        assert result.point_mean is not None
        return {"grad": result.grad_mean, "point": result.point_mean}, own


@dataclass(frozen=True)
class ZA1(Direction):
    """ZA1: composite federated learning that decouples communication and proximal maps.

    Zhang, Hu, Johansson & Wai, 2024, "Composite federated learning with heterogeneous data",
    Algorithm 1. arXiv:2309.01795

        a = prox_{E h}(x),   zh = z = a,   E = server_lr lr K
        zh <- zh - lr (g_i(z) + c_i),   z <- prox_{(k+1) lr h}(zh),   k = 0, 1, ...
        up: zh,     x <- a + server_lr mean_i (zh_i - a)
        c_i <- (a - x) / E - (1/K) sum_k g_i(z)

    zh is the client's iterate before its proximal map, z the point after it, and c_i a control
    variate, which the client completes when the next x arrives.

    Differences from the paper: where K_i differ, c_i moves by its own change (zh - a) / (lr K) in
    place of the mean gradient, which keeps sum_i c_i = 0.

    Memory: a client owns c_i + x / E, which x completes.

    Args:
        penalty: The regulariser h.
        lr: The clients' step size, > 0.
        server_lr: Multiplies the mean move, > 0.
    """

    penalty: Penalty = field(default_factory=Zero)
    lr: Positive = 0.1
    server_lr: Positive = 1.0
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    error_compensated: ClassVar[tuple[str, ...]] = ("delta",)
    sets: ClassVar[tuple[str, ...]] = ("grad_at", "start")
    has_fusible_maps = property(_is_fusible)
    goes_with: ClassVar[tuple[str, ...]] = ("ZA1",)
    full: ClassVar[bool] = True
    needs_constant_lr: ClassVar[bool] = True

    def round_length(self, plan: Plan) -> float:
        """Return E."""
        return self.server_lr * self.lr * plan.steps

    def check(self, plan: Plan) -> None:
        """Refuse steps for which the proximal problem is not convex."""
        self.penalty.check(max(self.round_length(plan), self.lr * plan.steps), "ZA1")

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return the memory for which c_i = 0 at x."""
        return {"half": x / self.round_length(plan)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        start = self.penalty.prox(x, self.round_length(t.plan), t.plan.layout)
        return LocalProblem(
            shift=own["half"] - x / self.round_length(t.plan),
            start=start,
            grad_at=_make_map(self.penalty, self.point, t.plan),
        )

    def point(self, y: Rows, k: Any, plan: Plan) -> Rows:
        """Return z, which is zh at first."""
        return self.penalty.prox(y, k * self.lr, plan.layout)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        start = result.y - result.delta
        return {"delta": result.delta}, {
            "half": own["half"] + (start - result.x) / self.round_length(t.plan)
        }

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Add the move as the server received it; the next x completes c_i."""
        return {"half": own["half"] + up.arrived["delta"] / (self.lr * t.plan.steps)}


@dataclass(frozen=True)
class Canon(Direction):
    """FedCanon: client controls that sum to zero, so that one proximal map a round is enough.

    "FedCanon", Algorithms 1 and 2.

        y   <- y - lr (g_i(y) + c_i),    delta_i = y - x
        c_i <- c_i + (delta_i - mean_j delta_j) / (lr K)          the mean comes back to the clients
        II:  x <- prox_{alpha h}(x + (alpha / (lr K)) mean_j delta_j)   on every client's own copy

    In I the server takes the proximal step (its rule `Proximal`).

    Differences from the paper: defined there for full participation; with a cohort, only its
    members renew c_i, by the cohort's mean, which keeps sum_i c_i = 0 (experimental). Where K_i
    differ, delta_i K / K_i is sent, so that the controls still sum to zero.

    Memory: a client owns c_i, and with `copy` its own x.

    Args:
        lr: The clients' step size, > 0.
        copy: Whether each client keeps x itself and takes the proximal step (FedCanon II).
        alpha: Server step in FedCanon II, > 0; None is lr K.
        penalty: The regulariser h in FedCanon II.
    """

    lr: Positive = 0.1
    copy: bool = False
    alpha: Positive | None = None
    penalty: Penalty | None = None
    uploads: ClassVar[tuple[str, ...]] = ("delta",)
    error_compensated: ClassVar[tuple[str, ...]] = ("delta",)
    echo: ClassVar[tuple[str, ...]] = ("delta",)

    @property
    def sets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The first iterate, which is the client's copy of x."""
        return ("start",) if self.copy else ()

    @property
    def full(self) -> bool:  # type: ignore[override]
        """True with `copy`: a client that misses a round would not know x."""
        return self.copy

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        zero = {"control": torch.zeros_like(x)}
        return zero | ({"x": x} if self.copy else {}), {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(shift=own["control"], start=own["x"] if self.copy else None)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the move, as if it had taken K steps."""
        ratio = (t.plan.steps / result.steps)[:, None]
        return {"delta": result.delta * ratio}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Update c_i by the distance of the client's move from the mean move."""
        away = (up.arrived["delta"] - up.mean["delta"]) / (self.lr * t.factor * t.plan.steps)
        new = {"control": own["control"] + away}
        if not self.copy:
            return new
        usual = self.lr * t.plan.steps
        alpha = usual if self.alpha is None else self.alpha
        x = own["x"] + (alpha / usual) * up.mean["delta"]
        h = Zero() if self.penalty is None else self.penalty
        return new | {"x": h.prox(x, alpha * t.factor, t.plan.layout)}
