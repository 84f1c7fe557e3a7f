"""SCAFFOLD: cancel client drift with control variates.

Karimireddy et al., ICML 2020, Algorithm 1. arXiv:1910.06378

    y_i <- y_i - lr (g_i - c_i + c)                     each local step
    option I:   c_i+ = grad f_i(x) over all of the client's data
    option II:  c_i+ = mean of the K_i local gradients  = c_i - c + (x - y_i) / (K_i lr)
    c   <- c + (1/n) sum_{i in cohort} (c_i+ - c_i)     server

Differences from the paper: K_i may differ between clients; option II is written as the mean
gradient, so that it also holds for line search, schedules, momentum and clipping. Where a wire
compresses c_i+ - c_i, the client keeps what the server received, so that c stays the mean of the
c_i.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class Scaffold(Direction):
    """Direction; pairs with any step and any server rule, since those see only delta.

    Memory: a client owns c_i, the server shares c.

    Args:
        option: "II" (default) or "I", how a client renews c_i.
    """

    option: Literal["I", "II"] = "II"
    uploads: ClassVar[tuple[str, ...]] = ("control",)
    error_compensated: ClassVar[tuple[str, ...]] = ("control",)

    @property
    def records(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the new c_i is made of."""
        return ("grad_mean",) if self.option == "II" else ("grad_full",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return c_i = 0 and c = 0."""
        return {"control": torch.zeros_like(x)}, {"control": torch.zeros_like(x)}

    def down(self, shared: State) -> Channels:
        """Send c."""
        return {"control": shared["control"]}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Shift the gradient by c - c_i."""
        return LocalProblem(shift=down["control"] - own["control"])

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send c_i+ - c_i and keep c_i+."""
        new = work.grad_mean if self.option == "II" else work.grad_full
        assert new is not None
        return {"control": new - own["control"]}, own | {"new": new}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Keep c_i+ as the server knows it."""
        return {"control": up.apply("control", own["control"], own["new"])}

    def update_shared(self, mean: Channels, shared: State, t: Round) -> State:
        """Add the mean change; clients that were absent count as no change."""
        return {"control": shared["control"] + t.fraction * mean["control"]}
