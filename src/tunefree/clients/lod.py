"""The client's side of FedProxLoD and FedProxWLoD: a pull and a step size that the server sets.

"FedProxLoD / FedProxWLoD", Algorithms 1 and 3.

    Pull:    phi_i(y) = f_i(y) + (mu/2) |y - x|^2          mu from the server;   up: f_i(y_K)
    Follow:  explicit:  y <- y - lr (g_i(y) + mu (y - x))      lr from the server
             implicit:  y <- (y - lr g_i(y) + lr mu x) / (1 + lr mu)
             up: q_i = sum over the local steps of |g_i|^2

The implicit step is the explicit one of size lr / (1 + lr mu): stable for any mu.

Differences from the paper: Algorithm 3 prints the pull with the opposite sign, and one gradient
norm a round, which does not train (`printed` keeps that reading for study); f_i is over all of the
client's data.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core.plan import Round
from ..core.types import Channels, Rows, State, Vector
from ..core.vectors import row_sq
from .rule import Direction, LocalProblem, LocalResult, Step, StepContext, StepResult, descend


@dataclass(frozen=True)
class Pull(Direction):
    """Direction with the proximal weight that the server sends."""

    reports: ClassVar[tuple[str, ...]] = ("loss",)
    reads: ClassVar[tuple[str, ...]] = ("mu",)
    records: ClassVar[tuple[str, ...]] = ("loss_end",)

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Pull to x."""
        return LocalProblem(mu=down["mu"], anchor=x)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send f_i(y)."""
        assert work.loss_end is not None
        return {"loss": work.loss_end}, own


@dataclass(frozen=True)
class Follow(Step):
    """Step of the size that the server sends.

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

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along -d, less where the pull is implicit."""
        lr = tick.down["lr"]
        step = lr / (1 + lr * tick.down["mu"]) if self.implicit else lr
        return descend(y, d, step.expand(y.shape[:1])), lr.expand(y.shape[:1]), scratch

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send q_i."""
        if self.printed:
            assert work.grad_end is not None
            return {"grad_sq": row_sq(work.grad_end)}, own
        assert work.grad_sq is not None
        return {"grad_sq": work.grad_sq}, own
