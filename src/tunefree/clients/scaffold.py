"""Control variates and the server's momentum on clients."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.fields import Fraction, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalPhases, LocalProblem, LocalResult, Upload


class _Controls(Direction):
    """Base of directions with control variates: a client owns c_i, the server shares c."""

    uploads: ClassVar[tuple[str, ...]] = ("control",)
    error_compensated: ClassVar[tuple[str, ...]] = ("control",)
    records: ClassVar[tuple[str, ...]] = ("grad_mean",)
    sends: ClassVar[tuple[str, ...]] = ("control",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {"control": torch.zeros_like(x)}, {"control": torch.zeros_like(x)}

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        new = result.grad_mean if "grad_mean" in self.records else result.grad_full
        assert new is not None
        return {"control": new - own["control"]}, own | {"new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        return {"control": up.apply("control", own["control"], own["new"])}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean change; clients that were absent count as no change."""
        return {"control": shared["control"] + t.fraction * mean["control"]}


@dataclass(frozen=True)
class Scaffold(_Controls):
    """SCAFFOLD: cancel client drift with control variates.

    Karimireddy et al., ICML 2020, Algorithm 1. arXiv:1910.06378

        y_i <- y_i - lr (g_i - c_i + c)                     each local step
        option I:   c_i+ = grad f_i(x) over all of the client's data
        option II:  c_i+ = mean of the K_i local gradients  = c_i - c + (x - y_i) / (K_i lr)
        c   <- c + (1/n) sum_{i in cohort} (c_i+ - c_i)     server

    Differences from the paper: K_i may differ between clients; option II is written as the mean
    gradient, so that it also holds for line search, schedules, momentum and clipping. Where a wire
    compresses c_i+ - c_i, the client keeps what the server received, so that c stays the mean of
    the c_i.

    Memory: a client owns c_i, the server shares c.

    Args:
        option: "II" (default) or "I", how a client renews c_i.
    """

    option: Literal["I", "II"] = "II"

    @property
    def records(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the new c_i is made of."""
        return ("grad_mean",) if self.option == "II" else ("grad_full",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(shift=down["control"] - own["control"])


@dataclass(frozen=True)
class ClientMomentum(Direction):
    """FedAvg-M: the server's last direction in every local step.

    Cheng, Huang, Wu & Yuan, ICLR 2024, "Momentum benefits non-iid federated learning simply and
    provably", Algorithm 1. arXiv:2306.16504

        d = beta g_i(y) + (1 - beta) p

    p, the last mean direction, comes from the server rule of the same name.

    Differences from the paper: none.

    Args:
        beta: Weight of the new gradient, in (0, 1]; 1 is FedAvg.
    """

    beta: Fraction = 0.1
    reads: ClassVar[tuple[str, ...]] = ("momentum",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(scale=self.beta, shift=(1 - self.beta) * down["momentum"])


@dataclass(frozen=True)
class ScaffoldM(_Controls):
    """SCAFFOLD-M: control variates, and the server's last direction in every local step.

    Cheng, Huang, Wu & Yuan, ICLR 2024, Algorithm 2. arXiv:2306.16504

        d = beta (g_i(y) - c_i + c) + (1 - beta) p
        c_i+ = mean of the K_i local gradients,   c <- c + (1/N) sum (c_i+ - c_i)

    p, the last mean direction, comes from the server rule ClientMomentum.

    Differences from the paper: controls start at zero instead of at a batch's gradient.

    Args:
        beta: Weight of the new gradient, in (0, 1]; 1 is SCAFFOLD.
    """

    beta: Fraction = 0.1
    reads: ClassVar[tuple[str, ...]] = ("momentum",)
    sets: ClassVar[tuple[str, ...]] = ("scale",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        shift = self.beta * (down["control"] - own["control"])
        return LocalProblem(scale=self.beta, shift=shift + (1 - self.beta) * down["momentum"])


@dataclass(frozen=True)
class Scafcom(Direction):
    """SCAFCOM: SCAFFOLD with local momentum, whose change is compressed.

    Huang, Li & Li, 2024, "Stochastic controlled averaging for federated learning with communication
    compression", Algorithm 3. arXiv:2308.08165

        d    = beta g_i(y) + (1 - beta) v_i - c_i + c,     y <- y - lr d       v_i is last round's
        v_i <- (1 - beta) v_i + beta mean_k g_i
        up: q_i = C(v_i - c_i),     c_i <- c_i + q_i

    Differences from the paper: v_i, c_i and c start at zero, as in public code, instead of at a
    large batch's gradient.

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
        return {"momentum": torch.zeros_like(x), "control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        shift = (1 - self.beta) * own["momentum"] - own["control"] + down["control"]
        return LocalProblem(scale=self.beta, shift=shift)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_mean is not None
        v = (1 - self.beta) * own["momentum"] + self.beta * result.grad_mean
        return {"innovation": v - own["control"]}, {"momentum": v, "control": own["control"]}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        v = own["momentum"]
        return {"momentum": v, "control": up.apply("innovation", own["control"], v)}


@dataclass(frozen=True)
class Scaffnew(Direction):
    """Scaffnew (ProxSkip): communication at random steps, with control variates.

    Mishchenko, Malinovsky, Stich & Richtarik, ICML 2022, Algorithm 2. arXiv:2202.09357

        y <- y - lr (g_i(y) + e_i)      L local steps, L geometric with success p, the same for all
        x <- mean_i y_i
        e_i <- e_i - (p / lr) (x - y_i)

    A round is the local steps up to the next communication. The client completes e_i when the next
    x arrives: what it keeps is e_i + (p / lr) y_i.

    Differences from the paper: p = 1/K by default, so that a round has K local steps on average.

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

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        return {"delta": result.delta}, own

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Add the move as the server received it; the next x completes e_i."""
        return {"half": own["half"] + self._pull(t.plan) * up.arrived["delta"]}
