"""Inner solvers: a subproblem solved to a tolerance instead of a few gradient steps.

    ConjugateGradient:  p <- -d + max(0, <d, d - d_old> / |d_old|^2) p,   y <- y + a p,
                        a = -<d, p> / <p, H p>,   H p = (d(y + s p) - d(y)) / s,   s = 1 / |p|;
                        while |<d, p>| is above a tenth of what it was along this p, the next step
                        keeps p, and a is the secant's
    Until:              any step, stopped when |d| <= tol max(1, |d_0|)

Hestenes & Stiefel, 1952; for other problems than quadratics Polak & Ribiere, 1969, whose factor of
the last direction is the same on quadratics and small after a short step elsewhere. Exact on
quadratics in as many steps as there are parameters, up to rounding; each step costs two gradients.
A client stops when |d| <= tol max(1, |d_0|), or after `most` steps, whatever the number of local
steps K is; the history's `unsolved` counts the latter.

Differences from the paper: the product with the Hessian is a difference of two gradients, which
is exact for quadratics; steps along one p are repeated where the problem is none.
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

LOOSE = 0.1  # of the first slope along a direction: above it, the direction is kept
FARTHER = 4.0  # times the last step: the longest that the secant may ask for


def _first_length(d: Rows, length: Rows, context: StepContext, scratch: State) -> Rows:
    return length.clamp(min=1) if context.index == 0 else scratch["first"]


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
        _check_whole_batch("ConjugateGradient", plan)

    def begin(self, y: Rows, down: Channels) -> State:
        one, zero = y.new_ones(y.shape[:1]), torch.zeros_like(y)
        numbers = dict.fromkeys(("slopes", "a", "slope", "first_slope"), torch.zeros_like(one))
        return {"p": zero, "d": zero, "first": one, "done": one < 0} | numbers

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        """Go to the lowest point along a conjugate direction, or nearer to it."""
        assert context.objective.slope is not None
        length, tiny = row_sq(d).sqrt(), torch.finfo(y.dtype).tiny
        first = _first_length(d, length, context, scratch)
        going = length > self.tol * first
        p, old, last = scratch["p"], scratch["d"], scratch["slope"]
        slope = (p * d).sum(-1)
        secant = (slope - last) / scratch["a"]
        again = (slope.abs() > LOOSE * scratch["first_slope"].abs()) & (secant > 0)
        if context.index:
            factor = ((d * (d - old)).sum(-1) / row_sq(old).clamp(min=tiny)).clamp(min=0)
            new = factor[:, None] * p - d
            uphill = (new * d).sum(-1) >= 0  # rounding has spoilt the directions: start again
            p = torch.where(again[:, None], p, torch.where(uphill[:, None], -d, new))
        else:
            p = -d
        slope = (p * d).sum(-1)
        s = 1 / row_sq(p).sqrt().clamp(min=tiny)
        ahead = (p * (context.objective.slope(y + s[:, None] * p) - d)).sum(-1) / s
        curve = torch.where(again, secant, ahead)
        going = going & (curve > 0)
        a = torch.where(going, -slope / curve, 0.0)
        farthest = FARTHER * scratch["a"].abs()
        a = torch.where(again, a.clamp(-farthest, farthest), a)
        after = {"p": p, "d": torch.where(again[:, None], old, d), "first": first}
        after |= {"a": a, "slope": slope, "done": ~going, "slopes": scratch["slopes"] + going}
        after["first_slope"] = torch.where(again, scratch["first_slope"], slope)
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
        _check_whole_batch("Until", plan)

    def begin(self, y: Rows, down: Channels) -> State:
        one = y.new_ones(y.shape[:1])
        return self.step.begin(y, down) | {"first": one, "done": one < 0}

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        length = row_sq(d).sqrt()
        first = _first_length(d, length, context, scratch)
        going = length > self.tol * first
        inner = {n: v for n, v in scratch.items() if n not in ("first", "done")}
        new, lr, after = self.step.take(y, d, context, inner)
        y = torch.where(going[:, None], new, y)
        return y, torch.where(going, lr, 0.0), after | {"first": first, "done": ~going}


def _check_whole_batch(owner: str, plan: Plan) -> None:
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
