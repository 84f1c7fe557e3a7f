"""No correction, and pulls to the server's model, with a fixed strength or the server's."""

from dataclasses import dataclass
from typing import ClassVar

from ..core.fields import NonNegative
from ..core.plan import Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import row_sq
from .rule import Direction, LocalProblem, LocalResult, Step, StepContext, StepResult, descend


@dataclass(frozen=True)
class Plain(Direction):
    """No correction: the client follows its own gradient.

        d = g_i(y)

    Differences from the paper: none; this is FedAvg's client (McMahan et al., AISTATS 2017).
    """

    @property
    def changes_gradient(self) -> bool:
        """False, unless a subclass overrides `local_problem`."""
        return type(self).local_problem is not Plain.local_problem

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem()


@dataclass(frozen=True)
class Everyone(Plain):
    """The same direction, for methods that are defined for full participation only."""

    full: ClassVar[bool] = True


@dataclass(frozen=True)
class Proximal(Direction):
    """FedProx's direction: pull each client back towards the server's model.

    Li et al., MLSys 2020, equation (2). arXiv:1812.06127

        phi_i(y) = f_i(y) + (mu / 2) |y - x|^2,     d = g_i(y) + mu (y - x)

    Differences from the paper: the inexactness gamma is not tracked; a client takes its local
    steps.

    Args:
        mu: Strength of the pull, >= 0, in units of 1 / lr.
    """

    mu: NonNegative = 0.1

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(mu=self.mu, anchor=x) if self.mu else LocalProblem()


@dataclass(frozen=True)
class Moreau(Proximal):
    """The same pull, with the value of the client's Moreau envelope sent along (FedExProx)."""

    reports: ClassVar[tuple[str, ...]] = ("envelope",)
    records: ClassVar[tuple[str, ...]] = ("loss_end",)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.loss_end is not None
        return {"envelope": result.loss_end + (self.mu / 2) * row_sq(result.delta)}, own


@dataclass(frozen=True)
class Pull(Direction):
    """FedProxLoD's direction: a pull whose strength the server sets.

    "FedProxLoD / FedProxWLoD", Algorithms 1 and 3.

        phi_i(y) = f_i(y) + (mu/2) |y - x|^2          mu from the server;   up: f_i(y_K)

    Differences from the paper: Algorithm 3 prints the pull with the opposite sign; f_i is over all
    of the client's data.
    """

    reports: ClassVar[tuple[str, ...]] = ("loss",)
    reads: ClassVar[tuple[str, ...]] = ("mu",)
    records: ClassVar[tuple[str, ...]] = ("loss_end",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        return LocalProblem(mu=down["mu"], anchor=x)

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        assert result.loss_end is not None
        return {"loss": result.loss_end}, own


@dataclass(frozen=True)
class Follow(Step):
    """FedProxLoD's step, of the size that the server sends.

    "FedProxLoD / FedProxWLoD", Algorithms 1 and 3.

        explicit:  y <- y - lr (g_i(y) + mu (y - x))      lr from the server
        implicit:  y <- (y - lr g_i(y) + lr mu x) / (1 + lr mu)
        up: q_i = sum over the local steps of |g_i|^2

    The implicit step is the explicit one of size lr / (1 + lr mu): stable for any mu.

    Differences from the paper: Algorithm 3 prints one gradient norm a round, which does not train
    (`printed` keeps that reading for study).

    Args:
        implicit: Whether the pull is taken implicitly.
        printed: Whether the one gradient norm at the end is counted instead of every step's.
    """

    implicit: bool = True
    printed: bool = False
    reports: ClassVar[tuple[str, ...]] = ("grad_sq",)
    reads: ClassVar[tuple[str, ...]] = ("mu", "lr")
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    @property
    def records(self) -> tuple[str, ...]:  # type: ignore[override]
        """What q_i is made of."""
        return ("grad_end",) if self.printed else ("grad_sq",)

    def take(self, y: Rows, d: Rows, context: StepContext, scratch: State) -> StepResult:
        lr = context.down["lr"]
        step = lr / (1 + lr * context.down["mu"]) if self.implicit else lr
        return descend(y, d, step.expand(y.shape[:1])), lr.expand(y.shape[:1]), scratch

    def upload(self, result: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        if self.printed:
            assert result.grad_end is not None
            return {"grad_sq": row_sq(result.grad_end)}, own
        assert result.grad_sq is not None
        return {"grad_sq": result.grad_sq}, own
