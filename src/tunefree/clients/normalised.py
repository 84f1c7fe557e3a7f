"""Normalised steps, whose lengths depend only on the numbers of clients, steps and rounds."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from ..core.fields import Checked, Fraction, Positive
from ..core.plan import Plan, Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import row_sq
from .rule import (
    Direction,
    LocalProblem,
    LocalResult,
    Step,
    StepContext,
    StepResult,
    Upload,
    descend,
)

Kind = Literal["parfrefl", "padamfed", "padamfed-vr"]


@dataclass(frozen=True)
class Rates(Checked):
    """Step sizes that depend only on the numbers of clients, steps and rounds.

        ParFreFL:     beta = min(1, sqrt(S K / T)),  lr = 1 / (K (S K T)^(1/4)),
                      server_lr = (S K)^(1/4) / T^(3/4)
        PAdaMFed:     the same beta and server_lr,   lr = 1 / (K sqrt(T))
        PAdaMFed-VR:  beta = min(1, (S K)^(1/3) / T^(2/3)),  lr = 1 / (K T),  server_lr = the same
                      number as beta before it is cut at 1

    The theorems fix them up to a constant: `scale` multiplies lr and server_lr together.

    Differences from the paper: beta is cut at 1, which the theorems reach by T >= S K.

    Args:
        kind: Whose theorem: "parfrefl", "padamfed" or "padamfed-vr".
        scale: Multiplies the theorem's lr and server_lr, > 0.
        beta: Weight of the new gradient, in (0, 1]; None is the theorem's.
        lr: Length of a local step, > 0; None is the theorem's.
        server_lr: Length of a server step, > 0; None is the theorem's.
    """

    kind: Kind = "parfrefl"
    scale: Positive = 1.0
    beta: Fraction | None = None
    lr: Positive | None = None
    server_lr: Positive | None = None

    @property
    def reduces_variance(self) -> bool:
        """Whether gradients at the last x are subtracted, as in PAdaMFed-VR."""
        return self.kind == "padamfed-vr"

    def beta_at(self, plan: Plan) -> float:
        """Return beta under this plan."""
        if self.beta is not None:
            return self.beta
        work = plan.cohort * plan.steps  # S K
        if self.reduces_variance:
            return float(min(1.0, work ** (1 / 3) / plan.rounds ** (2 / 3)))
        return float(min(1.0, (work / plan.rounds) ** 0.5))

    def lr_at(self, plan: Plan) -> float:
        """Return the length of a local step under this plan."""
        K, T = plan.steps, plan.rounds
        found = {
            "parfrefl": 1 / (K * (plan.cohort * K * T) ** 0.25),
            "padamfed": 1 / (K * T**0.5),
            "padamfed-vr": 1 / (K * T),
        }[self.kind]
        return self.scale * found if self.lr is None else self.lr

    def server_lr_at(self, plan: Plan) -> float:
        """Return the length of a server step under this plan."""
        work, T = plan.cohort * plan.steps, plan.rounds
        exponents = (1 / 3, 2 / 3) if self.reduces_variance else (0.25, 0.75)
        found = work ** exponents[0] / T ** exponents[1]
        return self.scale * found if self.server_lr is None else self.server_lr


@dataclass(frozen=True)
class Normalised(Step):
    """A step of given length along the normalised gradient.

        y <- y - lr d / |d|          d / |d| = 0 where d = 0

    Differences from the paper: none; the local step of PAdaMFed and of ParFreFL (Algorithms 1 and
    2).

    Args:
        rates: Where the length comes from.
    """

    rates: Rates = field(default_factory=Rates)
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        norm = row_sq(d).sqrt()
        length = self.rates.lr_at(context.round.plan)
        lr = torch.where(norm > 0, length / norm, 0.0)
        return descend(y, d, lr), torch.full_like(lr, length), scratch


@dataclass(frozen=True)
class ParFreFL(Direction):
    """ParFreFL and ComParFreFL: normalised local momentum, and only its change is sent.

    "ParFreFL / ComParFreFL", Algorithms 1 and 2.

        before round 0, everyone:  m_i = c_i = (1/K) sum_k g_i(x; batch k),   up: c_i
        d   = (1 - beta) m_i + beta g_i(y),     y <- y - lr d / |d|      m_i is last round's, fixed
        m_i <- mean of d over the local steps
        up: q_i = C(m_i - c_i),     c_i <- c_i + q_i

    Differences from the paper: Algorithm 1 uploads m_i and keeps every c_i on the server; sending
    the change is the same with one vector on the server. Without compression c_i = m_i by
    assignment.

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
        return {"momentum": torch.zeros_like(x), "control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Blend the gradient with m_i; before round 0, stay at x."""
        if t.preparing:
            return LocalProblem(scale=0.0)
        beta = self.rates.beta_at(t.plan)
        return LocalProblem(scale=beta, shift=(1 - beta) * own["momentum"])

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_mean is not None
        beta = 1.0 if t.preparing else self.rates.beta_at(t.plan)
        m = (1 - beta) * own["momentum"] + beta * result.grad_mean
        return {"innovation": m - own["control"]}, {"momentum": m, "control": own["control"]}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        m = own["momentum"]
        return {"momentum": m, "control": up.apply("innovation", own["control"], m)}


@dataclass(frozen=True)
class PAdaMFed(Direction):
    """PAdaMFed: normalised steps along control variates and the server's momentum.

    Yan, Zhang & Wang, 2025, "Problem-parameter-free federated learning", Algorithms 1 and 2.

        before round 0, everyone:  c_i = (1/K) sum_k g_i(x; batch k),   up: c_i
        d  = beta (g_i(y) - c_i) + w,               w = beta c + (1 - beta) p comes from the server
        VR:  d = g_i(y) - (1 - beta) g_i(x_prev) - beta c_i + w       same batch in both
        y <- y - lr d / |d|,     c_i+ = mean of the K_i local gradients,     up: delta_i, c_i+ - c_i

    Differences from the paper: the change of c_i is sent, so that the server keeps one vector.

    Memory: a client owns c_i.

    Args:
        rates: Where beta comes from; kind "padamfed-vr" reduces variance with the last x.
    """

    rates: Rates = field(default_factory=lambda: Rates("padamfed"))
    uploads: ClassVar[tuple[str, ...]] = ("control",)
    error_compensated: ClassVar[tuple[str, ...]] = ("control",)
    prepares: ClassVar[bool] = True
    records: ClassVar[tuple[str, ...]] = ("grad_mean",)

    @property
    def sets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The plain form scales the gradient, the other refers to the last x."""
        return ("ref", "scale") if self.rates.reduces_variance else ("scale",)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the server's rule must send."""
        return ("momentum", "before") if self.rates.reduces_variance else ("momentum",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        return {"control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Correct by c_i and blend with the server's vector; before round 0, stay at x."""
        if t.preparing:
            return LocalProblem(scale=0.0)
        beta = self.rates.beta_at(t.plan)
        shift = down["momentum"] - beta * own["control"]
        if self.rates.reduces_variance:
            return LocalProblem(shift=shift, ref=down["before"], ref_scale=1 - beta)
        return LocalProblem(scale=beta, shift=shift)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.grad_mean is not None
        return {"control": result.grad_mean - own["control"]}, own | {"new": result.grad_mean}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        return {"control": up.apply("control", own["control"], own["new"])}
