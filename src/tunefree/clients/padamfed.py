"""PAdaMFed: normalised steps along control variates and the server's momentum.

Yan, Zhang & Wang, 2025, "Problem-parameter-free federated learning", Algorithms 1 and 2.

    before round 0, everyone:  c_i = (1/K) sum_k g_i(x; batch k),   up: c_i
    d  = beta (g_i(y) - c_i) + w,                   w = beta c + (1 - beta) p comes from the server
    VR:  d = g_i(y) - (1 - beta) g_i(x_prev) - beta c_i + w       same batch in both
    y <- y - lr d / |d|,     c_i+ = mean of the K_i local gradients,     up: delta_i, c_i+ - c_i

Differences from the paper: the change of c_i is sent, so that the server keeps one vector.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..core.plan import Plan, Round
from ..core.types import Channels, State, Vector
from .rates import Rates
from .rule import Direction, LocalProblem, LocalResult, Upload


@dataclass(frozen=True)
class PAdaMFed(Direction):
    """Direction of the normalised method with momentum on the server.

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
    def _vr(self) -> bool:
        return self.rates.kind == "padamfed-vr"

    @property
    def sets(self) -> tuple[str, ...]:  # type: ignore[override]
        """The plain form scales the gradient, the other refers to the last x."""
        return ("ref", "scale") if self._vr else ("scale",)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the server's rule must send."""
        return ("momentum", "before") if self._vr else ("momentum",)

    def init(self, x: Vector, plan: Plan) -> tuple[State, State]:
        """Return c_i = 0, until everyone has prepared."""
        return {"control": torch.zeros_like(x)}, {}

    def local_problem(self, x: Vector, down: Channels, own: State, t: Round) -> LocalProblem:
        """Correct by c_i and blend with the server's vector; before round 0, stay at x."""
        if t.preparing:
            return LocalProblem(scale=0.0)
        beta = self.rates.beta_at(t.plan)
        shift = down["momentum"] - beta * own["control"]
        if self._vr:
            return LocalProblem(shift=shift, ref=down["before"], ref_scale=1 - beta)
        return LocalProblem(scale=beta, shift=shift)

    def upload(self, work: LocalResult, own: State, t: Round) -> tuple[Channels, State]:
        """Send c_i+ - c_i."""
        assert work.grad_mean is not None
        return {"control": work.grad_mean - own["control"]}, own | {"new": work.grad_mean}

    def update_memory(self, up: Upload, own: State, t: Round) -> State:
        """Keep c_i+ as the server knows it."""
        return {"control": up.apply("control", own["control"], own["new"])}
