"""A step whose size the server sends.

    y <- y - lr d;   up: the mean batch loss of the local steps

Differences from the paper: there is none, the step is ours; the server rule `Race` finds lr.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ..core.plan import Round
from ..core.types import Channels, Rows, State
from .constant import Constant
from .rule import LocalResult, Step, StepContext, StepResult

_DESCENT = Constant(1.0)


@dataclass(frozen=True)
class ServerRate(Step):
    """Step of the size that the server sends."""

    reports: ClassVar[tuple[str, ...]] = ("train_loss",)
    reads: ClassVar[tuple[str, ...]] = ("lr",)
    sets_lr: ClassVar[bool] = True
    consumes_grad: ClassVar[bool] = True
    fusible: ClassVar[bool] = True

    def descent_lr(self, factor: float) -> float | None:
        """Return the factor: steps are plain descent."""
        return factor

    def resolve(self, down: Channels, t: Round) -> tuple[Step, Round]:
        """Return a constant step of size 1, and the round with the size sent as its factor."""
        return _DESCENT, replace(t, factor=float(down["lr"]))

    def take(self, y: Rows, d: Rows, tick: StepContext, scratch: State) -> StepResult:
        """Go lr along -d."""
        step, this = self.resolve(tick.down, tick.round)
        return step.take(y, d, replace(tick, factor=this.factor), scratch)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send the mean batch loss."""
        return {"train_loss": work.loss}, own
