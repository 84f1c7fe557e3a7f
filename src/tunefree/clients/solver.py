"""Inner solvers: a subproblem solved to a tolerance instead of a few gradient steps.

    ConjugateGradient:  p <- -d + (|d|^2 / |d_old|^2) p,   y <- y + a p,
                        a = -<d, p> / <p, H p>,   H p = (d(y + s p) - d(y)) / s,   s = 1 / |p|
    Until:              any step, stopped when |d| <= tol max(1, |d_0|)

Hestenes & Stiefel, 1952. Exact on quadratics in as many steps as there are parameters, up to
rounding; each step costs two gradients. A client stops when |d| <= tol max(1, |d_0|), or after
`most` steps, whatever the number of local steps K is; the history's `unsolved` counts the latter.

Differences from the paper: the product with the Hessian is a difference of two gradients, which
is exact for quadratics.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.errors import ArgumentError, unknown_name
from ..core.fields import NonNegative, PositiveInt
from ..core.plan import Plan
from ..core.types import Channels, Rows, State
from ..core.vectors import row_sq
from .loss_steps import Armijo
from .rule import Step, StepContext, StepResult
from .steps import Constant


def _first_length(d: Rows, length: Rows, tick: StepContext, scratch: State) -> Rows:
    return length.clamp(min=1) if tick.index == 0 else scratch["first"]


@dataclass(frozen=True)
class ConjugateGradient(Step):
    """Step of a solver for quadratic client problems; needs the whole local batch.

    Args:
        tol: A client stops when its gradient is this small relative to max(1, the first), >= 0.
        most: Most steps, >= 1.
    """

    tol: NonNegative = 1e-12
    most: PositiveInt = 1000
    sets_lr: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def check(self, plan: Plan) -> None:
        """Refuse minibatches, which have no fixed quadratic to solve."""
        _whole("ConjugateGradient", plan)

    def begin(self, y: Rows, down: Channels) -> State:
        """Start without a direction."""
        one = y.new_ones(y.shape[:1])
        start = {"p": torch.zeros_like(y), "sq": one, "first": one, "slopes": torch.zeros_like(one)}
        return start | {"done": one < 0}

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go to the lowest point along the next conjugate direction."""
        assert tick.phi.slope is not None
        sq, tiny = row_sq(d), torch.finfo(y.dtype).tiny
        first = _first_length(d, sq.sqrt(), tick, scratch)
        going = sq.sqrt() > self.tol * first
        p = -d + (sq / scratch["sq"])[:, None] * scratch["p"] if tick.index else -d
        uphill = (p * d).sum(-1) >= 0  # rounding has spoilt the directions: start again
        p = torch.where(uphill[:, None], -d, p)
        s = 1 / row_sq(p).sqrt().clamp(min=tiny)
        curve = (p * (tick.phi.slope(y + s[:, None] * p) - d)).sum(-1) / s
        going = going & (curve > 0)
        a = torch.where(going, -(p * d).sum(-1) / curve, 0.0)
        after = {"p": p, "sq": sq.clamp(min=tiny), "first": first}
        after |= {"slopes": scratch["slopes"] + going, "done": ~going}
        return y + a[:, None] * p, a, after


@dataclass(frozen=True)
class Until(Step):
    """Another step, stopped for each client once its gradient is small.

    Args:
        step: The step that is repeated, such as Armijo.
        tol: A client stops when its gradient is this small relative to max(1, the first), >= 0.
        most: Most steps, >= 1.
    """

    step: Step = field(default_factory=Armijo)
    tol: NonNegative = 1e-6
    most: PositiveInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = isinstance(self.step, Step) and self.step.most is None
        if not fits or self.step.uploads or self.step.reports:
            raise ArgumentError(
                "Until(step=...) must be a step that is no solver itself and has no traffic of its "
                f"own, got {self.step!r}."
            )

    sets_lr = property(lambda self: self.step.sets_lr, doc="As the step that is repeated.")
    exact = property(lambda self: self.step.exact, doc="As the step that is repeated.")

    def check(self, plan: Plan) -> None:
        """Refuse minibatches: their gradients never vanish."""
        _whole("Until", plan)

    def begin(self, y: Rows, down: Channels) -> State:
        """Start the other step."""
        one = y.new_ones(y.shape[:1])
        return self.step.begin(y, down) | {"first": one, "done": one < 0}

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Take the other step, or stop."""
        length = row_sq(d).sqrt()
        first = _first_length(d, length, tick, scratch)
        going = length > self.tol * first
        inner = {n: v for n, v in scratch.items() if n not in ("first", "done")}
        new, lr, after = self.step.take(y, d, tick, inner)
        y = torch.where(going[:, None], new, y)
        return y, torch.where(going, lr, 0.0), after | {"first": first, "done": ~going}


def _whole(owner: str, plan: Plan) -> None:
    if plan.batch is not None:
        raise ArgumentError(
            f"Cannot use {owner} with batches of {plan.batch}. This is because it solves the "
            "client's own problem to a tolerance; use batch=None (--batch 0)."
        )


def solver(name: str | Step, lr: float) -> Step:
    """Return the step that a method's `solver` argument stands for."""
    if isinstance(name, Step):
        return name
    known = {
        "steps": Constant(lr),
        "exact": ConjugateGradient(),
        "armijo": Until(Armijo(max_lr=10.0)),
    }
    if name not in known:
        raise unknown_name("solver", name, known)
    return known[name]
